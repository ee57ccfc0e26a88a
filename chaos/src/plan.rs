//! The plan of a run, drawn from a seed before anything begins: what will be done to which server, and when.
//!
//! A round is a busy stretch, one in which a server is gone, and a calm one. In the busy one each server has one
//! fault at a time, at most `FAULTY_MAX` of them together, so that there is somebody for repeats; in every sixth
//! round all are killed at once first. In the second stretch the configuration rests and one server is killed or
//! stopped for longer than the engine needs to find out, so that it can be seen whether the server is then left alone.

use crate::timeline::ServerId;
use fastrand::Rng;
use std::time::Duration;

/// Servers from the start, and those that come and go by configuration.
pub const SERVERS: u8 = 4;
pub const SPARES: u8 = 2;
/// Key servers of a run.
pub const KEY_SERVERS: usize = 2;
/// Together: fewer than a request has attempts, so that a GET never fails for want of a good server.
const FAULTY_MAX: usize = 2;

const BUSY: u64 = 15_000;
/// Without changes of the configuration; one server is gone for the last part of it.
const GONE: u64 = 16_000;
/// A change must be over for so long before a server goes that its being new to the engine is no excuse.
const GONE_LEAD: u64 = 6_000;
/// Longer than a server's last fault is felt, so that some of it is calm by the model's count.
const CALM: u64 = 10_000;
const ROUND: u64 = BUSY + GONE + CALM;
const BLACKOUT_EVERY: u64 = 6;
/// Between two faults of key servers: links are made anew, and a server that was passed over has answered a trial.
const KEY_SERVER_PAUSE: u64 = 6_000;
/// Before the first fault, in which the load and the engine's memory come to their level.
pub const WARM_UP: u64 = 4_000;

/// One thing that is done. Times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// SIGKILL, and another process after a while.
    Kill {
        server: ServerId,
        down: u64,
    },
    /// SIGKILL of all at once.
    Blackout {
        down: u64,
    },
    /// SIGSTOP and SIGCONT.
    Stop {
        server: ServerId,
        lasts: u64,
    },
    Slow {
        server: ServerId,
        delay: u64,
        lasts: u64,
    },
    Fail {
        server: ServerId,
        percent: u8,
        lasts: u64,
    },
    Cut {
        server: ServerId,
        percent: u8,
        lasts: u64,
    },
    Deafen {
        server: ServerId,
        lasts: u64,
    },
    /// Killed and started again at once, several times.
    Flap {
        server: ServerId,
        times: u8,
        period: u64,
    },
    /// SIGKILL of a key server, and another process after a while.
    KillKeyServer {
        server: usize,
        down: u64,
    },
    /// SIGSTOP and SIGCONT of a key server.
    StopKeyServer {
        server: usize,
        lasts: u64,
    },
    /// Changes of the configuration, one after the other in the order in which they fall due.
    Configure(Configure),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Configure {
    /// Another whole configuration: `seed` draws what it is, `pushed` says by which way it comes.
    Whole { seed: u64, pushed: bool },
    /// Drained by the admin API: no new requests for a while.
    Drain { server: ServerId, lasts: u64 },
    /// Removed by the admin API, and put back after a while.
    Remove { server: ServerId, lasts: u64 },
    /// New files of certificates, and SIGHUP.
    Certificate,
    /// A certificate is put by the admin API, and taken away again.
    PutCertificate,
    /// Configurations that are none, by both ways.
    Mistake { seed: u64 },
    /// A file of certificates that is none, and SIGHUP.
    BrokenCertificate,
    /// Changes with a wrong token.
    Stranger,
}

impl Action {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Kill { .. } => "kill -9",
            Self::Blackout { .. } => "kill -9 of all",
            Self::Stop { .. } => "stop",
            Self::Slow { .. } => "slow",
            Self::Fail { .. } => "answers 500",
            Self::Cut { .. } => "closes at random",
            Self::Deafen { .. } => "refuses connections",
            Self::Flap { .. } => "flaps",
            Self::KillKeyServer { .. } => "kill -9 of a key server",
            Self::StopKeyServer { .. } => "stop of a key server",
            Self::Configure(Configure::Whole { pushed: false, .. }) => "configuration by SIGHUP",
            Self::Configure(Configure::Whole { pushed: true, .. }) => "configuration by PUT",
            Self::Configure(Configure::Drain { .. }) => "drain by PATCH",
            Self::Configure(Configure::Remove { .. }) => "removal by DELETE",
            Self::Configure(Configure::Certificate) => "certificate by file",
            Self::Configure(Configure::PutCertificate) => "certificate by PUT",
            Self::Configure(Configure::Mistake { .. }) => "mistake pushed",
            Self::Configure(Configure::BrokenCertificate) => "broken certificate",
            Self::Configure(Configure::Stranger) => "wrong token",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Milliseconds after the start.
    pub at: u64,
    pub action: Action,
}

/// All of a run, in order.
pub fn draw(seed: u64, duration: Duration) -> Vec<Step> {
    let mut random = Rng::with_seed(seed);
    let end = duration.as_millis() as u64;
    let mut steps = Vec::new();
    let rounds = end.saturating_sub(WARM_UP).div_ceil(ROUND);
    for round in 0..rounds {
        let from = WARM_UP + round * ROUND;
        let busy = (from + BUSY).min(end.saturating_sub(CALM / 2));
        let free_at = draw_faults(&mut random, round, from, busy, &mut steps);
        draw_changes(&mut random, from, busy, &mut steps);
        if busy + GONE + CALM / 2 <= end {
            steps.push(draw_gone(&mut random, round, busy, &free_at));
        }
    }
    draw_key_servers(seed, end.saturating_sub(CALM / 2), &mut steps);
    steps.sort_by_key(|step| step.at);
    steps
}

/// One key server at a time, and the next one after a pause in which the engine finds it again: somebody signs always.
/// Drawn by a chance of its own, so that a seed does to servers what it did without key servers.
fn draw_key_servers(seed: u64, to: u64, steps: &mut Vec<Step>) {
    let mut random = Rng::with_seed(seed.rotate_left(17) ^ 0x6b65_7973);
    let mut at = WARM_UP;
    loop {
        at += KEY_SERVER_PAUSE + random.u64(..2_000);
        let lasts = random.u64(500..6_000);
        if at + lasts >= to {
            return;
        }
        let server = random.usize(..KEY_SERVERS);
        let action = match random.bool() {
            true => Action::KillKeyServer { server, down: lasts },
            false => Action::StopKeyServer { server, lasts },
        };
        steps.push(Step { at, action });
        at += lasts;
    }
}

/// Draws the faults of a round. Each server is free again a moment after its fault, so that two of one server
/// cannot be taken for each other. Returns when each is, in milliseconds after the start.
fn draw_faults(random: &mut Rng, round: u64, from: u64, to: u64, steps: &mut Vec<Step>) -> [u64; SERVERS as usize] {
    let mut free_at = [from; SERVERS as usize];
    let mut at = from;
    if round % BLACKOUT_EVERY == BLACKOUT_EVERY - 1 {
        let down = random.u64(500..2_500);
        steps.push(Step { at, action: Action::Blackout { down } });
        at += down + 3_000;
        free_at = [at; SERVERS as usize];
    }
    loop {
        at += random.u64(150..1_800);
        let faulty = free_at.iter().filter(|free| **free > at).count();
        let idle: Vec<u8> = (0..SERVERS).filter(|server| free_at[usize::from(*server)] <= at).collect();
        if at >= to {
            return free_at;
        }
        if faulty >= FAULTY_MAX || idle.is_empty() {
            continue;
        }
        let server = idle[random.usize(..idle.len())];
        let (action, lasts) = draw_fault(random, ServerId(server), to - at);
        free_at[usize::from(server)] = at + lasts + 1_500;
        steps.push(Step { at, action });
    }
}

/// Killed in one round, stopped in the next, for longer than the engine needs to notice.
fn draw_gone(random: &mut Rng, round: u64, from: u64, free_at: &[u64; SERVERS as usize]) -> Step {
    let at = free_at.iter().fold(from + GONE_LEAD, |at, free| at.max(*free));
    let server = ServerId(random.u8(..SERVERS));
    let action = match round % 2 {
        0 => Action::Kill { server, down: random.u64(4_500..5_500) },
        _ => Action::Stop { server, lasts: random.u64(5_800..6_800) },
    };
    Step { at, action }
}

fn draw_fault(random: &mut Rng, server: ServerId, room: u64) -> (Action, u64) {
    let lasts = random.u64(600..6_000).min(room);
    let percent = random.u8(10..=70);
    let action = match random.u8(..9) {
        0 | 1 => Action::Kill { server, down: lasts },
        2 => Action::Stop { server, lasts },
        3 => Action::Slow { server, delay: random.u64(50..900), lasts },
        4 => Action::Fail { server, percent, lasts },
        5 | 6 => Action::Cut { server, percent, lasts },
        7 => Action::Deafen { server, lasts },
        _ => {
            let (times, period) = (random.u8(2..=5), random.u64(200..700));
            return (Action::Flap { server, times, period }, u64::from(times) * 2 * period);
        }
    };
    (action, lasts)
}

fn draw_changes(random: &mut Rng, from: u64, to: u64, steps: &mut Vec<Step>) {
    let mut at = from;
    loop {
        at += random.u64(500..2_500);
        if at >= to {
            return;
        }
        let server = ServerId(random.u8(..SERVERS));
        let lasts = random.u64(300..2_000).min(to - at);
        let configure = match random.u8(..14) {
            0..=2 => Configure::Whole { seed: random.u64(..), pushed: false },
            3..=5 => Configure::Whole { seed: random.u64(..), pushed: true },
            6 | 7 => Configure::Drain { server, lasts },
            8 => Configure::Remove { server, lasts },
            9 => Configure::Certificate,
            10 => Configure::PutCertificate,
            11 => Configure::Mistake { seed: random.u64(..) },
            12 => Configure::BrokenCertificate,
            _ => Configure::Stranger,
        };
        steps.push(Step { at, action: Action::Configure(configure) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(action: &Action) -> Option<(ServerId, u64)> {
        match *action {
            Action::Kill { server, down: lasts }
            | Action::Stop { server, lasts }
            | Action::Slow { server, lasts, .. }
            | Action::Fail { server, lasts, .. }
            | Action::Cut { server, lasts, .. }
            | Action::Deafen { server, lasts } => Some((server, lasts)),
            Action::Flap { server, times, period } => Some((server, u64::from(times) * 2 * period)),
            Action::Blackout { .. }
            | Action::Configure(_)
            | Action::KillKeyServer { .. }
            | Action::StopKeyServer { .. } => None,
        }
    }

    #[test]
    fn a_seed_is_a_plan_and_another_seed_another() {
        let minute = Duration::from_secs(60);
        assert_eq!(draw(7, minute), draw(7, minute));
        assert_ne!(draw(7, minute), draw(8, minute));
    }

    #[test]
    fn a_server_has_one_fault_at_a_time_and_few_have_any() {
        for seed in 0..200 {
            let steps = draw(seed, Duration::from_secs(300));
            let spans: Vec<_> = steps
                .iter()
                .filter_map(|step| span(&step.action).map(|(server, lasts)| (server, step.at, lasts)))
                .collect();
            for (index, (server, at, lasts)) in spans.iter().enumerate() {
                let others = spans[index + 1..].iter().filter(|(_, from, _)| *from < at + lasts);
                assert!(others.clone().all(|(other, ..)| other != server), "seed {seed}");
                let beginning = spans.iter().filter(|(_, from, lasts)| (*from..from + lasts).contains(at)).count();
                assert!(beginning <= FAULTY_MAX, "seed {seed}: {beginning}");
            }
        }
    }

    #[test]
    fn of_two_key_servers_one_always_signs() {
        for seed in 0..200 {
            let mut free_at = 0;
            for step in draw(seed, Duration::from_secs(300)) {
                let (Action::KillKeyServer { down: lasts, .. } | Action::StopKeyServer { lasts, .. }) = step.action
                else {
                    continue;
                };
                assert!(step.at >= free_at, "seed {seed}: one at {} and the other until {free_at}", step.at);
                free_at = step.at + lasts + KEY_SERVER_PAUSE;
            }
            assert!(free_at > 0, "seed {seed}");
        }
    }

    #[test]
    fn in_each_round_a_server_is_gone_for_longer_than_it_takes_to_find_out_while_nothing_is_changed() {
        for seed in 0..200 {
            let steps = draw(seed, Duration::from_secs(10 * 60));
            let is_change = |step: &&Step| matches!(step.action, Action::Configure(_));
            let quiet = |from: u64, to: u64| !steps.iter().filter(is_change).any(|step| (from..to).contains(&step.at));
            let looked_at = steps.iter().filter(|step| match step.action {
                Action::Kill { down, .. } => down >= 3_500 && quiet(step.at.saturating_sub(4_000), step.at + down),
                Action::Stop { lasts, .. } => lasts >= 5_500 && quiet(step.at.saturating_sub(6_000), step.at + lasts),
                _ => false,
            });
            assert!(looked_at.count() >= 14, "seed {seed}");
        }
    }

    #[test]
    fn ten_minutes_have_everything_in_them_whatever_the_seed() {
        for seed in 0..20 {
            let steps = draw(seed, Duration::from_secs(600));
            let names: std::collections::BTreeSet<_> = steps.iter().map(|step| step.action.name()).collect();
            assert_eq!(names.len(), 19, "seed {seed}: {names:?}");
        }
    }

    #[test]
    fn the_end_is_calm_and_so_is_the_beginning() {
        for seed in 0..50 {
            let steps = draw(seed, Duration::from_secs(30));
            assert!(steps.len() >= 8, "seed {seed}: {}", steps.len());
            assert!(steps.iter().all(|step| step.at >= WARM_UP && step.at < 25_000), "seed {seed}");
        }
    }
}

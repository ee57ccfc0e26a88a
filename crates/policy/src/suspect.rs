//! Passing over a server that has just failed, and trying it again with care.
//!
//! This is what one core learns from its own traffic; it needs no probe and no other core.

use crate::predecessors::Predecessors;

/// The first pass-over after a failure, in milliseconds; it doubles with every failed trial.
pub const BACKOFF_MIN: u64 = 1_000;
/// The longest, in milliseconds.
pub const BACKOFF_MAX: u64 = 30_000;
/// A trial that ends without a verdict (its request was cancelled) is forgotten after this, in milliseconds.
pub const TRIAL_WAIT_MAX: u64 = 30_000;

/// The servers of a backend that cannot be trusted at the moment.
///
/// A server becomes suspect when it fails. It is passed over for [`BACKOFF_MIN`]; then one request at a time is let
/// through as a trial. A trial that succeeds clears it, one that fails doubles the wait up to [`BACKOFF_MAX`].
///
/// **When all servers are suspect, all are eligible.** Suspicion is a reason to prefer another server and never a
/// reason to refuse a request: with one server left, or with the network between gone for a second, trying is better
/// than a 503. For the same reason a caller that excludes servers on grounds of its own (those that this request has
/// tried already) picks once more without asking here when nothing is left.
///
/// `now` is in milliseconds of any clock that does not go backwards.
#[derive(Clone, Debug)]
pub struct Suspects {
    servers: Box<[Standing]>,
    suspects: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Trusted,
    /// No request until then.
    PassedOver {
        until: u64,
        failures: u32,
    },
    /// One request is out to see.
    OnTrial {
        since: u64,
        failures: u32,
    },
}

impl Suspects {
    pub fn new(servers: usize) -> Self {
        Self { servers: vec![Standing::Trusted; servers].into(), suspects: 0 }
    }

    /// For a later list: servers that stay keep their standing.
    #[must_use]
    pub fn succeeded_by(&self, predecessors: &Predecessors) -> Self {
        let mut servers: Box<[Standing]> = vec![Standing::Trusted; predecessors.servers()].into();
        predecessors.pairs().for_each(|(server, before)| servers[server] = self.servers[before]);
        let suspects = servers.iter().filter(|standing| **standing != Standing::Trusted).count();
        Self { servers, suspects }
    }

    /// Whether a request may go to this server.
    pub fn eligible(&self, server: usize, now: u64) -> bool {
        if self.suspects == self.servers.len() {
            return true;
        }
        match self.servers[server] {
            Standing::Trusted => true,
            Standing::PassedOver { until, .. } => now >= until,
            Standing::OnTrial { since, .. } => now >= since + TRIAL_WAIT_MAX,
        }
    }

    /// A request goes out to this server: to be said for every pick, right after it, or two trials run at once.
    pub fn tried(&mut self, server: usize, now: u64) {
        let standing = &mut self.servers[server];
        match *standing {
            Standing::PassedOver { until, failures } if now >= until => {
                *standing = Standing::OnTrial { since: now, failures };
            }
            Standing::OnTrial { since, failures } if now >= since + TRIAL_WAIT_MAX => {
                *standing = Standing::OnTrial { since: now, failures };
            }
            Standing::Trusted | Standing::PassedOver { .. } | Standing::OnTrial { .. } => {}
        }
    }

    /// The server could not be reached. True if it was trusted until now: worth a line in the log.
    ///
    /// Failures are not told apart: a straggler, sent before the suspicion, that fails during a trial is taken for the
    /// trial. It costs the server one doubling and is made good by the first success.
    pub fn failed(&mut self, server: usize, now: u64) -> bool {
        let standing = self.servers[server];
        let failures = match standing {
            Standing::Trusted => 1,
            // Requests that were on their way together fail together, and that is one failure and not many.
            Standing::PassedOver { until, .. } if now < until => return false,
            Standing::PassedOver { failures, .. } | Standing::OnTrial { failures, .. } => failures.saturating_add(1),
        };
        self.servers[server] = Standing::PassedOver { until: now + backoff(failures), failures };
        let news = standing == Standing::Trusted;
        self.suspects += usize::from(news);
        news
    }

    /// The server answered. True if it was suspect until now.
    pub fn succeeded(&mut self, server: usize) -> bool {
        let news = self.servers[server] != Standing::Trusted;
        self.servers[server] = Standing::Trusted;
        self.suspects -= usize::from(news);
        news
    }

    /// Whether any server is suspect.
    pub fn any(&self) -> bool {
        self.suspects > 0
    }

    /// Whether this server answered when it was asked last, or has never been asked: no trial is wanted.
    pub fn is_trusted(&self, server: usize) -> bool {
        self.servers[server] == Standing::Trusted
    }

    /// Whether this server was found wanting lately: a view for metrics, [`Suspects::eligible`] is for decisions. A
    /// suspicion that no request confirms for as long again as the server was passed over says nothing of it now.
    pub fn is_passed_over(&self, server: usize, now: u64) -> bool {
        match self.servers[server] {
            Standing::Trusted => false,
            Standing::PassedOver { until, failures } => now < until + backoff(failures),
            Standing::OnTrial { since, .. } => now < since + TRIAL_WAIT_MAX,
        }
    }
}

fn backoff(failures: u32) -> u64 {
    let doublings = (failures - 1).min(16);
    (BACKOFF_MIN << doublings).min(BACKOFF_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_stay_keep_their_standing_when_others_come_and_go() {
        let mut suspects = Suspects::new(3);
        suspects.failed(0, 100);
        suspects.failed(1, 100);
        let mut later = suspects.succeeded_by(&Predecessors::by_identity(b"cdea", b"abc"));
        assert_eq!([0, 1, 2, 3].map(|server| later.is_passed_over(server, 200)), [false, false, false, true]);
        assert!(!later.eligible(3, 200) && later.eligible(0, 200));
        assert!(later.succeeded(3) && !later.any());
        assert!(suspects.is_passed_over(0, 200), "the earlier one goes its own way");
    }

    #[test]
    fn a_suspicion_that_nobody_confirms_is_over_in_time() {
        let mut suspects = Suspects::new(2);
        let mut now = 0;
        for wait in [1_000, 2_000, 4_000] {
            suspects.failed(0, now);
            let seen = [0, wait, 2 * wait - 1, 2 * wait].map(|later| suspects.is_passed_over(0, now + later));
            assert_eq!(seen, [true, true, true, false], "{wait}");
            now += wait;
        }
        suspects.tried(0, now);
        let seen = [0, TRIAL_WAIT_MAX - 1, TRIAL_WAIT_MAX].map(|later| suspects.is_passed_over(0, now + later));
        assert_eq!(seen, [true, true, false], "on trial");
        assert!(suspects.any(), "what is not seen any more is still acted on");
    }

    #[test]
    fn a_failed_server_is_passed_over_and_then_tried_by_one() {
        let mut suspects = Suspects::new(2);
        assert!(suspects.failed(0, 100));
        assert!(!suspects.eligible(0, 1_099));
        assert!(suspects.eligible(1, 1_099));
        assert!(suspects.eligible(0, 1_100));
        suspects.tried(0, 1_100);
        assert!(!suspects.eligible(0, 1_101), "one trial at a time");
        assert!(suspects.succeeded(0));
        assert!(suspects.eligible(0, 1_102));
        assert!(suspects.is_trusted(0));
        assert!(!suspects.succeeded(0));
    }

    #[test]
    fn the_wait_doubles_with_failed_trials_up_to_its_limit() {
        let mut suspects = Suspects::new(2);
        let (mut now, mut waits) = (0, Vec::new());
        suspects.failed(0, now);
        for _ in 0..40 {
            let start = now;
            while !suspects.eligible(0, now) {
                now += 500;
            }
            waits.push(now - start);
            suspects.tried(0, now);
            assert!(!suspects.failed(0, now));
        }
        assert_eq!(waits[..7], [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
        assert_eq!(waits[39], BACKOFF_MAX);
    }

    #[test]
    fn requests_that_fail_together_are_one_failure() {
        let mut suspects = Suspects::new(2);
        assert!(suspects.failed(0, 0));
        for _ in 0..100 {
            assert!(!suspects.failed(0, 1));
        }
        assert!(suspects.eligible(0, 1_000));
    }

    #[test]
    fn a_success_forgets_all_failures() {
        let mut suspects = Suspects::new(2);
        for now in [0, 10_000, 30_000] {
            suspects.failed(0, now);
        }
        suspects.succeeded(0);
        suspects.failed(0, 100_000);
        assert!(suspects.eligible(0, 101_000));
    }

    #[test]
    fn when_all_are_suspect_all_are_eligible() {
        let mut suspects = Suspects::new(2);
        suspects.failed(0, 0);
        suspects.failed(1, 0);
        assert!(suspects.eligible(0, 1) && suspects.eligible(1, 1));
        suspects.succeeded(1);
        assert!(!suspects.eligible(0, 1));
        let mut alone = Suspects::new(1);
        alone.failed(0, 0);
        assert!(alone.eligible(0, 0));
    }

    #[test]
    fn a_trial_without_a_verdict_does_not_last_for_ever() {
        let mut suspects = Suspects::new(2);
        suspects.failed(0, 0);
        suspects.tried(0, 1_000);
        assert!(!suspects.eligible(0, 1_000 + TRIAL_WAIT_MAX - 1));
        let later = 1_000 + TRIAL_WAIT_MAX;
        assert!(suspects.eligible(0, later));
        suspects.tried(0, later);
        assert!(!suspects.eligible(0, later));
    }

    #[test]
    fn a_dead_server_gets_a_trial_now_and_then_and_never_the_traffic() {
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut suspects = Suspects::new(3);
            let (mut now, mut sent_to_dead, mut trials_out) = (0, 0, Vec::new());
            while now < 600_000 {
                now += random.u64(0..20);
                trials_out.retain(|end: &u64| {
                    let ended = *end <= now;
                    if ended {
                        suspects.failed(0, now);
                    }
                    !ended
                });
                let server = random.usize(0..3);
                if suspects.eligible(server, now) {
                    suspects.tried(server, now);
                    if server == 0 {
                        sent_to_dead += 1;
                        // Shorter than the first wait, so that what was out before the first failure is home by then.
                        trials_out.push(now + random.u64(1..BACKOFF_MIN));
                        let out = trials_out.len();
                        assert!(out == 1 || suspects.is_trusted(0), "seed {seed}: {out} trials at once");
                    }
                }
            }
            // Some before the first failure is known, then one per half minute or so.
            assert!(sent_to_dead < 200, "seed {seed}: {sent_to_dead}");
        }
    }
}

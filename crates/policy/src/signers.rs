//! Which key server signs next, and which ones are passed over because they do not answer.
//!
//! The one of two servers drawn at random with less work ahead of it is chosen: answers outstanding times the latency
//! that it had lately (Mitzenmacher 2001; the weight is Finagle's). One that leaves several questions in a row without a
//! timely answer is ejected. It comes back by itself, when it has answered a trial in time; no handshake is risked for
//! that.

/// Questions in a row without a timely answer that eject a server.
pub const FAILURES_MAX: u32 = 3;
/// The first pause before a trial, in microseconds; it doubles with every trial that fails.
pub const EJECTION_MIN: u64 = 1_000_000;
/// The longest, in microseconds.
pub const EJECTION_MAX: u64 = 30_000_000;
/// Latency assumed of a server that has never answered, in microseconds.
const LATENCY_UNKNOWN: u64 = 1_000;
/// Costs are guesses: of two servers that differ by less than this factor neither is the better one, and chance has
/// decided. Or else a server that is a little slower would see no work at all, and nobody would know what it is like.
const CLEARLY: u64 = 2;
/// A latency that was measured longer ago, in microseconds, says nothing any more.
const LATENCY_KEPT: u64 = 5_000_000;
/// The share of a new sample in the smoothed latency, as a power of two: a quarter where it rises, an eighth where it
/// falls, so that a server that has become slow is noticed sooner than one that has become fast.
const RISE_SHIFT: u32 = 2;
const FALL_SHIFT: u32 = 3;

/// One core's knowledge of one signer's key servers. Times are microseconds of any clock that does not go backwards.
#[derive(Clone, Debug)]
pub struct Signers {
    servers: Box<[Server]>,
}

#[derive(Clone, Debug, Default)]
struct Server {
    /// Connections that are up.
    links: u32,
    outstanding: u32,
    /// Smoothed; 0: it has never answered.
    latency: u64,
    /// When that was last measured.
    measured: u64,
    /// In a row.
    failures: u32,
    standing: Standing,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standing {
    #[default]
    Trusted,
    /// Passed over until then.
    Ejected { until: u64, trials: u32 },
    /// Passed over while a trial is out, which has to succeed before `until`.
    OnTrial { until: u64, trials: u32 },
}

/// Change that a report has brought: worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    None,
    Ejected,
    Readmitted,
}

impl Signers {
    #[must_use]
    pub fn new(servers: usize) -> Signers {
        Signers { servers: vec![Server::default(); servers].into() }
    }

    /// Chooses the server for a question: among the servers that are connected and `allowed`, one that is trusted, or,
    /// when none of those is, any (to ask is better than to fail). None when no server is connected and allowed.
    pub fn choose(&self, allowed: impl Fn(usize) -> bool, random: u64) -> Option<usize> {
        let usable = |index: usize| self.servers[index].links > 0 && allowed(index);
        self.choose_trusted(&allowed, random).or_else(|| self.better_of_two(usable, random))
    }

    /// As [`Signers::choose`], but never one that is ejected.
    pub fn choose_trusted(&self, allowed: impl Fn(usize) -> bool, random: u64) -> Option<usize> {
        let trusted = |index: usize| self.servers[index].links > 0 && !self.is_ejected(index) && allowed(index);
        self.better_of_two(trusted, random)
    }

    fn better_of_two(&self, eligible: impl Fn(usize) -> bool, random: u64) -> Option<usize> {
        let count = (0..self.servers.len()).filter(|&index| eligible(index)).count();
        let nth = |nth: usize| (0..self.servers.len()).filter(|&index| eligible(index)).nth(nth);
        match count {
            0 | 1 => nth(0),
            _ => {
                let first = (random as u32) as usize % count;
                let second = (first + 1 + (random >> 32) as usize % (count - 1)) % count;
                let (first, second) = (nth(first)?, nth(second)?);
                Some(if self.cost(second) * CLEARLY < self.cost(first) { second } else { first })
            }
        }
    }

    fn cost(&self, server: usize) -> u64 {
        let server = &self.servers[server];
        let latency = if server.latency == 0 { LATENCY_UNKNOWN } else { server.latency };
        // Far from overflow: hours times millions.
        latency.min(1 << 34) * (u64::from(server.outstanding) + 1)
    }

    /// A connection has come up. True if it is the server's first.
    pub fn connected(&mut self, server: usize) -> bool {
        self.servers[server].links += 1;
        self.servers[server].links == 1
    }

    /// A connection is gone. True if it was the server's last.
    pub fn disconnected(&mut self, server: usize) -> bool {
        let links = &mut self.servers[server].links;
        *links = links.saturating_sub(1);
        *links == 0
    }

    /// A question is on its way.
    pub fn asked(&mut self, server: usize) {
        self.servers[server].outstanding += 1;
    }

    /// A question is no longer on its way: answered, given up, or lost with its connection.
    pub fn settled(&mut self, server: usize) {
        let outstanding = &mut self.servers[server].outstanding;
        *outstanding = outstanding.saturating_sub(1);
    }

    /// An answer has come after so long. In time it makes good for all failures, and ends an ejection if it is the answer
    /// to a trial; too late it tells of the latency only, its failure having been reported.
    pub fn answered(&mut self, server: usize, latency: u64, in_time: bool, to_trial: bool, now: u64) -> Change {
        let server = &mut self.servers[server];
        server.sample(latency, now);
        if !in_time {
            return Change::None;
        }
        match server.standing {
            Standing::OnTrial { .. } if to_trial => {
                server.standing = Standing::Trusted;
                server.failures = 0;
                // Latencies from before the ejection say nothing any more.
                server.latency = latency.max(1);
                Change::Readmitted
            }
            Standing::Trusted => {
                server.failures = 0;
                Change::None
            }
            _ => Change::None,
        }
    }

    /// A question was not answered in time, or its answer was none.
    pub fn failed(&mut self, server: usize, waited: u64, now: u64) -> Change {
        let server = &mut self.servers[server];
        server.sample(waited, now);
        server.failures = server.failures.saturating_add(1);
        if server.standing != Standing::Trusted || server.failures < FAILURES_MAX {
            return Change::None;
        }
        server.standing = Standing::Ejected { until: now + EJECTION_MIN, trials: 0 };
        Change::Ejected
    }

    /// Whether a trial is due at this server; if so it counts as begun, and has until `now + wait_max`. To be asked now
    /// and then: it is also where a trial that was not answered counts as failed.
    pub fn trial_due(&mut self, server: usize, now: u64, wait_max: u64) -> bool {
        let server = &mut self.servers[server];
        match server.standing {
            Standing::OnTrial { until, trials } if now >= until => {
                let pause = (EJECTION_MIN << (trials + 1).min(16)).min(EJECTION_MAX);
                server.standing = Standing::Ejected { until: now + pause, trials: trials + 1 };
                false
            }
            Standing::Ejected { until, trials } if now >= until && server.links > 0 => {
                server.standing = Standing::OnTrial { until: now + wait_max, trials };
                true
            }
            _ => false,
        }
    }

    #[must_use]
    pub fn is_ejected(&self, server: usize) -> bool {
        self.servers[server].standing != Standing::Trusted
    }

    /// Connections that are up.
    #[must_use]
    pub fn links(&self, server: usize) -> u32 {
        self.servers[server].links
    }

    /// Whether any server is connected.
    #[must_use]
    pub fn any_connected(&self) -> bool {
        self.servers.iter().any(|server| server.links > 0)
    }

    #[must_use]
    pub fn outstanding(&self, server: usize) -> u32 {
        self.servers[server].outstanding
    }
}

impl Server {
    fn sample(&mut self, latency: u64, now: u64) {
        let latency = latency.max(1);
        let stale = now.saturating_sub(self.measured) > LATENCY_KEPT;
        self.measured = now;
        self.latency = match self.latency {
            0 => latency,
            _ if stale => latency,
            old if latency > old => old + ((latency - old) >> RISE_SHIFT).max(1),
            old => old - ((old - latency) >> FALL_SHIFT),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connected(servers: usize) -> Signers {
        let mut signers = Signers::new(servers);
        for server in 0..servers {
            signers.connected(server);
        }
        signers
    }

    #[test]
    fn only_what_is_connected_and_allowed_is_chosen() {
        let mut signers = Signers::new(3);
        assert_eq!(signers.choose(|_| true, 7), None);
        assert!(signers.connected(2));
        assert!(!signers.connected(2));
        assert_eq!(signers.choose(|_| true, 7), Some(2));
        assert_eq!(signers.choose(|server| server != 2, 7), None);
        assert!(!signers.disconnected(2));
        assert!(signers.disconnected(2));
        assert!(!signers.any_connected());
    }

    #[test]
    fn three_questions_without_an_answer_eject_and_a_trial_that_is_answered_readmits() {
        let mut signers = connected(2);
        assert_eq!(signers.failed(0, 250_000, 0), Change::None);
        assert_eq!(signers.failed(0, 250_000, 1), Change::None);
        assert_eq!(signers.failed(0, 250_000, 2), Change::Ejected);
        for random in 0..100_u64 {
            assert_eq!(signers.choose(|_| true, random << 32 | random), Some(1));
        }
        assert!(!signers.trial_due(0, EJECTION_MIN, 250_000));
        assert_eq!(signers.answered(0, 5, true, false, 5), Change::None, "no trial has been made");
        assert!(signers.trial_due(0, 2 + EJECTION_MIN, 250_000));
        assert!(!signers.trial_due(0, 3 + EJECTION_MIN, 250_000), "one trial at a time");
        assert_eq!(signers.answered(0, 900, true, true, 2 * EJECTION_MIN), Change::Readmitted);
        assert!(!signers.is_ejected(0));
    }

    #[test]
    fn the_pause_doubles_with_trials_that_fail_up_to_its_limit() {
        let mut signers = connected(1);
        for _ in 0..FAILURES_MAX {
            signers.failed(0, 1, 0);
        }
        let (mut now, mut last, mut pauses) = (0, 0, Vec::new());
        while pauses.len() < 8 {
            now += 100_000;
            if signers.trial_due(0, now, 100_000) {
                pauses.push((now - last) / 1_000_000);
                now += 100_000;
                assert!(!signers.trial_due(0, now, 100_000));
                last = now;
            }
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
    }

    #[test]
    fn when_all_are_ejected_all_are_asked() {
        let mut signers = connected(2);
        for server in [0, 0, 0, 1, 1, 1] {
            signers.failed(server, 1, 0);
        }
        assert!(signers.is_ejected(0) && signers.is_ejected(1));
        assert!(signers.choose(|_| true, 0).is_some());
    }

    #[test]
    fn an_answer_in_time_makes_good_for_failures_and_a_late_one_does_not() {
        let mut signers = connected(1);
        signers.failed(0, 1, 0);
        signers.failed(0, 1, 0);
        signers.answered(0, 400_000, false, false, 2);
        assert_eq!(signers.failed(0, 1, 0), Change::Ejected);
        let mut signers = connected(1);
        signers.failed(0, 1, 0);
        signers.failed(0, 1, 0);
        signers.answered(0, 400, true, false, 2);
        assert_eq!(signers.failed(0, 1, 0), Change::None);
    }

    #[test]
    fn a_little_slower_is_no_reason_to_see_no_work_and_much_slower_is() {
        let mut signers = connected(2);
        signers.answered(0, 300, true, false, 0);
        signers.answered(1, 500, true, false, 0);
        let asked_second =
            |signers: &Signers| (0..100).filter(|draw| signers.choose(|_| true, *draw) == Some(1)).count();
        assert_eq!(asked_second(&signers), 50);
        signers.answered(1, 5_000, true, false, 1);
        assert_eq!(asked_second(&signers), 0);
        // Much later what was slow is what it is found to be.
        signers.answered(1, 400, true, false, LATENCY_KEPT + 2);
        assert_eq!(asked_second(&signers), 50);
    }

    /// Servers with a latency each (one question at a time per thousand microseconds of it), and a stream of questions.
    struct World {
        signers: Signers,
        random: fastrand::Rng,
        /// Latencies by server; none: it does not answer.
        latencies: Vec<Option<u64>>,
        /// When the answer comes (or the wait ends), to which server, whether it is an answer, and to a trial.
        flights: Vec<(u64, u64, usize, bool, bool)>,
        asked: Vec<u64>,
        unanswered: u64,
    }

    const WAIT_MAX: u64 = 250_000;

    impl World {
        fn new(seed: u64, latencies: &[Option<u64>]) -> World {
            World {
                signers: connected(latencies.len()),
                random: fastrand::Rng::with_seed(seed),
                latencies: latencies.to_vec(),
                flights: Vec::new(),
                asked: vec![0; latencies.len()],
                unanswered: 0,
            }
        }

        fn send(&mut self, server: usize, now: u64, trial: bool) {
            self.signers.asked(server);
            let spread = self.random.u64(80..120);
            let latency = self.latencies[server].map(|latency| latency * spread / 100);
            let (end, answer) = match latency {
                Some(latency) if latency < WAIT_MAX => (now + latency, true),
                _ => (now + WAIT_MAX, false),
            };
            self.flights.push((end, now, server, answer, trial));
        }

        fn land(&mut self, now: u64) {
            let landed: Vec<_> = self.flights.extract_if(.., |flight| flight.0 <= now).collect();
            for (end, sent, server, answer, trial) in landed {
                self.signers.settled(server);
                if answer {
                    self.signers.answered(server, end - sent, true, trial, end);
                } else {
                    self.unanswered += u64::from(!trial);
                    self.signers.failed(server, end - sent, end);
                }
            }
        }

        fn run(&mut self, from: u64, until: u64) {
            let mut now = from;
            while now < until {
                now += self.random.u64(50..150);
                self.land(now);
                for server in 0..self.latencies.len() {
                    if self.signers.trial_due(server, now, WAIT_MAX) {
                        self.send(server, now, true);
                    }
                }
                let random = self.random.u64(..);
                let server = self.signers.choose(|_| true, random).expect("all are connected");
                self.asked[server] += 1;
                self.send(server, now, false);
            }
        }
    }

    #[test]
    fn equal_servers_share_equally() {
        for seed in 0..5 {
            let mut world = World::new(seed, &[Some(1_000); 4]);
            world.run(0, 1_000_000);
            let total: u64 = world.asked.iter().sum();
            for share in &world.asked {
                assert!((share * 4).abs_diff(total) < total / 5, "seed {seed}: {:?}", world.asked);
            }
        }
    }

    #[test]
    fn a_slow_server_gets_the_share_that_its_latency_allows() {
        for seed in 0..5 {
            let mut world = World::new(seed, &[Some(1_000), Some(50_000)]);
            world.run(0, 1_000_000);
            assert!(world.asked[1] * 10 < world.asked[0], "seed {seed}: {:?}", world.asked);
        }
    }

    #[test]
    fn a_silent_server_costs_a_handful_of_questions_and_comes_back_when_it_speaks() {
        for seed in 0..4 {
            let mut world = World::new(seed, &[Some(1_000), None, Some(1_200)]);
            world.run(0, 5_000_000);
            // 50,000 questions were asked.
            assert!(world.unanswered < 50, "seed {seed}: {} unanswered", world.unanswered);
            assert!(world.signers.is_ejected(1));
            world.latencies[1] = Some(900);
            world.asked = vec![0; 3];
            world.run(5_000_000, 15_000_000);
            assert!(!world.signers.is_ejected(1), "seed {seed}");
            assert!(world.asked[1] * 10 > world.asked[0], "seed {seed}: {:?}", world.asked);
        }
    }
}

//! Whether engines that try a configuration do worse than the others, by what all have counted since. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::records::LoadRecord;

/// Fewer of them say nothing.
const REQUESTS_MIN: u64 = 50;
/// As many bad ones may be chance.
const BAD_MIN: u64 = 5;
/// So many times the others' share of faults, and this much beside, is worse.
const FACTOR: f64 = 2.0;
const SHARE_BESIDE: f64 = 0.01;
/// Slower by the factor and by this much is worse.
const LATENCY_BESIDE: Duration = Duration::from_millis(5);

/// Figures at the time when the canary began.
#[derive(Debug)]
pub struct Trial {
    since: Instant,
    canary: BTreeMap<String, LoadRecord>,
    rest: BTreeMap<String, LoadRecord>,
    /// The canary's own figures before, for a cluster without others.
    before: Sums,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// As far as can be said.
    Fine,
    /// With the figures.
    Worse(String),
}

/// Differences of counts, over engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    requests: u64,
    faults: u64,
    handshakes: u64,
    handshake_failures: u64,
    microseconds: u64,
}

impl Trial {
    pub fn begin(canary: &[String], loads: &BTreeMap<String, LoadRecord>, now: Instant) -> Trial {
        let is_canary = |name: &String| canary.contains(name);
        let (canary, rest): (BTreeMap<_, _>, BTreeMap<_, _>) =
            loads.iter().map(|(name, load)| (name.clone(), load.clone())).partition(|(name, _)| is_canary(name));
        let mut before = Sums::default();
        canary.values().for_each(|load| before.add(&LoadRecord::default(), load));
        Trial { since: now, canary, rest, before }
    }

    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }

    /// Compares what was counted since the beginning. Engines that came later, or began anew, count from zero.
    pub fn judge(&self, canary: &[String], loads: &BTreeMap<String, LoadRecord>) -> Judgement {
        let (mut tried, mut rest) = (Sums::default(), Sums::default());
        for (name, load) in loads {
            let sums = if canary.contains(name) { &mut tried } else { &mut rest };
            let begin = self.canary.get(name).or_else(|| self.rest.get(name)).cloned().unwrap_or_default();
            sums.add(&begin, load);
        }
        let (rest, others) =
            if rest.requests < REQUESTS_MIN { (self.before, "itself before") } else { (rest, "the rest") };
        let name = canary.first().map_or("", String::as_str);
        if let Some(shares) = is_worse((tried.faults, tried.requests), (rest.faults, rest.requests)) {
            return Judgement::Worse(format!("{name} has more faults with it than {others}: {shares} of requests"));
        }
        let (ours, theirs) = ((tried.handshake_failures, tried.handshakes), (rest.handshake_failures, rest.handshakes));
        if let Some(shares) = is_worse(ours, theirs) {
            return Judgement::Worse(format!("{name} fails more handshakes with it than {others}: {shares}"));
        }
        match (tried.latency(), rest.latency()) {
            (Some(ours), Some(theirs)) if ours > theirs.mul_f64(FACTOR) + LATENCY_BESIDE => {
                let (ours, theirs) = (ours.as_secs_f64() * 1e3, theirs.as_secs_f64() * 1e3);
                let what = format!("{ours:.1} ms a request against {theirs:.1} ms");
                Judgement::Worse(format!("{name} is slower with it than {others}: {what}"))
            }
            _ => Judgement::Fine,
        }
    }
}

/// The two shares in words, where the first is worse.
fn is_worse((bad, all): (u64, u64), (bad_of_others, all_of_others): (u64, u64)) -> Option<String> {
    if bad < BAD_MIN || all == 0 {
        return None;
    }
    let share = |bad: u64, all: u64| if all == 0 { 0.0 } else { bad as f64 / all as f64 };
    let (ours, theirs) = (share(bad, all), share(bad_of_others, all_of_others));
    (ours > theirs * FACTOR + SHARE_BESIDE).then(|| format!("{:.1} % against {:.1} %", ours * 100.0, theirs * 100.0))
}

impl Sums {
    /// Adds what was counted between the two. Counts that are lower than before began anew.
    fn add(&mut self, begin: &LoadRecord, end: &LoadRecord) {
        let began_anew = end.requests < begin.requests || end.handshakes < begin.handshakes;
        let begin = if began_anew { &LoadRecord::default() } else { begin };
        self.requests += end.requests.saturating_sub(begin.requests);
        self.faults += end.faults.saturating_sub(begin.faults);
        self.handshakes += end.handshakes.saturating_sub(begin.handshakes);
        self.handshake_failures += end.handshake_failures.saturating_sub(begin.handshake_failures);
        self.microseconds += end.request_microseconds.saturating_sub(begin.request_microseconds);
    }

    /// The mean; nothing can be said of few.
    fn latency(&self) -> Option<Duration> {
        (self.requests >= REQUESTS_MIN).then(|| Duration::from_micros(self.microseconds / self.requests))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(requests: u64, faults: u64, milliseconds_each: u64) -> LoadRecord {
        let request_microseconds = requests * milliseconds_each * 1000;
        LoadRecord { requests, faults, request_microseconds, ..LoadRecord::default() }
    }

    fn loads(of: &[(&str, LoadRecord)]) -> BTreeMap<String, LoadRecord> {
        of.iter().map(|(name, load)| ((*name).to_owned(), load.clone())).collect()
    }

    fn judged(begin: &[(&str, LoadRecord)], end: &[(&str, LoadRecord)]) -> Judgement {
        let canary = ["a".to_owned()];
        Trial::begin(&canary, &loads(begin), Instant::now()).judge(&canary, &loads(end))
    }

    #[test]
    fn faults_count_from_the_beginning_of_the_trial_and_against_the_rest() {
        let begin = [("a", load(1000, 900, 1)), ("b", load(1000, 0, 1))];
        assert_eq!(judged(&begin, &[("a", load(1100, 900, 1)), ("b", load(1100, 0, 1))]), Judgement::Fine);
        let worse = judged(&begin, &[("a", load(1100, 910, 1)), ("b", load(1100, 1, 1))]);
        let Judgement::Worse(why) = worse else { panic!("{worse:?}") };
        assert_eq!(why, "a has more faults with it than the rest: 10.0 % against 1.0 % of requests");
        // All have them: the servers are to blame.
        assert_eq!(judged(&begin, &[("a", load(1100, 950, 1)), ("b", load(1100, 40, 1))]), Judgement::Fine);
        // Four of five may be chance.
        assert_eq!(judged(&begin, &[("a", load(1005, 904, 1)), ("b", load(1100, 0, 1))]), Judgement::Fine);
    }

    #[test]
    fn a_slower_canary_is_worse_and_a_lone_one_is_compared_with_itself() {
        let begin = [("a", load(1000, 0, 10)), ("b", load(1000, 0, 10))];
        let slow = LoadRecord { request_microseconds: 10_000_000 + 100 * 40_000, ..load(1100, 0, 0) };
        let worse = judged(&begin, &[("a", slow.clone()), ("b", load(1100, 0, 10))]);
        assert!(
            matches!(&worse, Judgement::Worse(why) if why.contains("40.0 ms a request against 10.0 ms")),
            "{worse:?}"
        );
        let alone = judged(&begin[..1], &[("a", slow)]);
        assert!(matches!(&alone, Judgement::Worse(why) if why.contains("than itself before")), "{alone:?}");
    }

    #[test]
    fn failed_handshakes_are_worse_and_an_engine_that_began_anew_counts_from_zero() {
        let handshakes = |all, failed| LoadRecord { handshakes: all, handshake_failures: failed, ..load(1000, 0, 1) };
        let begin = [("a", handshakes(100, 0)), ("b", handshakes(100, 0))];
        let end = [("a", handshakes(200, 50)), ("b", LoadRecord { requests: 1100, ..handshakes(200, 1) })];
        assert!(matches!(judged(&begin, &end), Judgement::Worse(why) if why.contains("fails more handshakes")));
        let anew = [("a", handshakes(50, 0)), ("b", handshakes(200, 1))];
        assert_eq!(judged(&begin, &anew), Judgement::Fine);
    }
}

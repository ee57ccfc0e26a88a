//! The end of a run: every request against the model, and the engine's own account against the clients'.

use crate::clock::{Micros, micros, since};
use crate::engine::{Engine, Metrics};
use crate::journal::Arrival;
use crate::load::{Endpoint, LoadResults, mark};
use crate::model::{self, Excuse, Kind, Outcome, Promises, RequestRecord, Stage, Verdict};
use crate::operator::ChangeCounts;
use crate::timeline::{Timeline, Window};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Time before a violation of which the surroundings are told.
const BEFORE: Duration = Duration::from_secs(8);
/// Gauges that are 0 when nobody is there.
pub const GAUGES: [&str; 12] = [
    "propylon_connections",
    "propylon_requests_in_progress",
    "propylon_http2_connections",
    "propylon_http2_streams",
    "propylon_server_requests_in_flight",
    "propylon_server_connections",
    "propylon_backend_client_connections",
    "propylon_queue_depth",
    "propylon_handshakes_in_progress",
    "propylon_handshakes_queued",
    "propylon_tls_parked_handshakes",
    "propylon_config_old_snapshots",
];

/// Results of the requests of one kind.
#[derive(Default)]
pub struct Tally {
    pub requests: u64,
    pub served: u64,
    pub allowed: BTreeMap<Excuse, u64>,
    pub violations: u64,
    /// Latencies of the requests that were served, in microseconds: in calm moments, and in others.
    pub calm: Vec<Micros>,
    pub troubled: Vec<Micros>,
}

pub struct Checker<'a> {
    pub timeline: &'a Timeline,
    pub promises: Promises,
    pub arrivals: &'a HashMap<u64, Vec<Arrival>>,
}

impl Checker<'_> {
    /// Every request; the violations, each with all that is known of it.
    pub fn evaluate(&self, records: &[RequestRecord], engine: &Engine) -> (BTreeMap<Kind, Tally>, Vec<String>) {
        let mut tallies: BTreeMap<Kind, Tally> = BTreeMap::new();
        let mut violations = Vec::new();
        for record in records {
            let arrivals = self.arrivals.get(&record.id).map_or(&[][..], Vec::as_slice);
            let tally = tallies.entry(record.kind).or_default();
            tally.requests += 1;
            match model::evaluate(record, arrivals, self.timeline, &self.promises) {
                Verdict::Right => {
                    tally.served += 1;
                    let window = Window::new(record.begun, record.ended).since_before(model::WELL_AFTER);
                    let is_calm = self.timeline.is_calm(window);
                    let times = if is_calm { &mut tally.calm } else { &mut tally.troubled };
                    times.push(record.ended - record.begun);
                }
                Verdict::Allowed(excuse) => *tally.allowed.entry(excuse).or_default() += 1,
                Verdict::Violation(what) => {
                    tally.violations += 1;
                    violations.push(self.describe(record, arrivals, &what, engine));
                }
            }
        }
        (tallies, violations)
    }

    fn describe(&self, record: &RequestRecord, arrivals: &[Arrival], what: &str, engine: &Engine) -> String {
        let at = |moment| since(self.timeline.start, moment);
        let mut lines =
            vec![format!("{what}\n  {record}"), format!("  begun {}, ended {}", at(record.begun), at(record.ended))];
        for Arrival { at: moment, server, run, progress } in arrivals {
            lines.push(format!("  {}: {server}.{run} {progress:?}", at(*moment)));
        }
        lines.extend(engine.logged(record.id).into_iter().map(|line| format!("  the engine's log: {line}")));
        let window = Window::new(record.begun, record.ended).since_before(micros(BEFORE));
        lines.extend(self.timeline.around(window).into_iter().map(|line| format!("  around it: {line}")));
        lines.join("\n")
    }

    /// Which certificates were shown, and when they should have been.
    pub fn check_handshakes(&self, load_results: &LoadResults, leaves: &[Vec<u8>]) -> Vec<String> {
        let numbers: HashMap<u64, u32> = leaves.iter().map(|leaf| mark(leaf)).zip(0..).collect();
        let wrong = load_results.handshakes.iter().filter_map(|handshake| {
            let window = Window::new(handshake.from, handshake.to);
            let number = numbers.get(&handshake.leaf);
            let is_right =
                number.is_some_and(|number| self.timeline.setups(window).any(|setup| setup.certificate == *number));
            let at = since(self.timeline.start, handshake.from);
            (!is_right).then(|| format!("a handshake at {at} has shown certificate {number:?}, which is not in use"))
        });
        wrong.collect()
    }
}

/// Compares the engine's counts with what its clients and its operator did.
pub fn check_counts(load_results: &LoadResults, counted: &ChangeCounts, metrics: &Metrics) -> Vec<String> {
    let mut violations = Vec::new();
    let mut expect = |what: &str, engine: u64, least: u64, most: u64| {
        if !(least..=most).contains(&engine) {
            violations.push(format!("{what}: the engine counts {engine}, and it should be {least} to {most}"));
        }
    };
    let http = || load_results.records.iter().filter(|record| record.kind.is_http());
    // Whether these had an answer nobody can tell.
    let uncertain = http().filter(|record| record.status.is_none() && !is_outside(record)).count() as u64;
    for (class, first) in [("1xx", 100), ("2xx", 200), ("3xx", 300), ("4xx", 400), ("5xx", 500)] {
        let is_of_class =
            |record: &&RequestRecord| record.status.is_some_and(|status| (first..first + 100).contains(&status));
        let seen = http().filter(is_of_class).count() as u64;
        let engine = metrics.count("propylon_responses_total", &[("class", class)]);
        expect(&format!("responses {class}"), engine, seen, seen + uncertain);
    }
    let outside = load_results.records.iter().filter(|record| is_outside(record)).count() as u64;
    let endpoints = [
        (Endpoint::Secure, "secure"),
        (Endpoint::Plain, "plain"),
        (Endpoint::Relay, "relay"),
        (Endpoint::Keyed, "keyed"),
    ];
    for (endpoint, listener) in endpoints {
        let made = load_results.connections.get(&endpoint).copied().unwrap_or(0);
        let engine = metrics.count("propylon_connections_total", &[("listener", listener)]);
        expect(&format!("connections to {listener}"), engine, made, made + outside);
    }
    let reloads = |result| metrics.count("propylon_config_reloads_total", &[("result", result)]);
    expect("configurations applied", reloads("applied") + reloads("unchanged"), counted.applied, counted.applied);
    expect("configurations refused", reloads("failed"), counted.failed, counted.failed);
    let refused = metrics.count("propylon_admin_refused_total", &[("reason", "wrong-token")]);
    expect("wrong tokens", refused, counted.wrong_tokens, counted.wrong_tokens);
    let generation = metrics.count("propylon_config_generation", &[]);
    expect("the generation", generation, 1 + reloads("applied"), 1 + reloads("applied"));
    expect("panics", metrics.count("propylon_panics_total", &[]), 0, 0);
    for gauge in GAUGES {
        expect(gauge, metrics.count(gauge, &[]), 0, 0);
    }
    violations
}

/// Whether the connection ended before it came as far as a request.
fn is_outside(record: &RequestRecord) -> bool {
    matches!(record.outcome, Outcome::Broken(Stage::Connect | Stage::Handshake, _))
}

/// Resident memory over a run: the last quarter against the second, when everything had been used once.
pub fn growth_kib(samples: &[u64]) -> i64 {
    let quarter = samples.len() / 4;
    let mean = |part: &[u64]| part.iter().sum::<u64>() as i64 / part.len().max(1) as i64;
    mean(&samples[samples.len() - quarter..]) - mean(&samples[quarter..2 * quarter])
}

/// The value below which so many of a hundred lie.
pub fn percentile(times: &mut [Micros], percent: usize) -> Option<Micros> {
    times.sort_unstable();
    let last = times.len().checked_sub(1)?;
    Some(times[last * percent / 100])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_grew_at_the_start_is_not_growing() {
        assert_eq!(growth_kib(&[0, 50, 100, 100, 100, 100, 100, 100]), 0);
        assert_eq!(growth_kib(&[0, 50, 100, 100, 150, 200, 250, 250]), 150);
        assert_eq!(growth_kib(&[]), 0);
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        assert_eq!(percentile(&mut [], 50), None);
        assert_eq!(percentile(&mut [3, 1, 2], 50), Some(2));
        assert_eq!(percentile(&mut (0..=100).collect::<Vec<_>>(), 99), Some(99));
    }
}

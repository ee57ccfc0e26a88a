//! The summary of a run and of its results, in tables and as JSON.

use crate::actions::Done;
use crate::checker::{Tally, percentile};
use crate::clock::Micros;
use crate::engine::Metrics;
use crate::journal::Protocol;
use crate::model::{Excuse, Kind};
use propylon_bench::report::Table;
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Serialize)]
pub struct Summary {
    command: &'static str,
    seed: u64,
    seconds: u64,
    kinds: Vec<KindSummary>,
    /// Failures that were allowed, by reason.
    allowed: BTreeMap<&'static str, u64>,
    disturbances: Done,
    /// Requests to servers, repeats among them, by what they came in.
    protocols: BTreeMap<&'static str, u64>,
    engine: EngineSummary,
    /// Moments at which this machine did not get round to what was due.
    stalls: usize,
    /// Stretches in which a server was known to be gone, and was sent nothing.
    quiet_stretches: u64,
    pub violations: Vec<String>,
}

/// The results that a summary is made of.
pub struct RunResults<'a> {
    pub tallies: BTreeMap<Kind, Tally>,
    pub done: Done,
    pub protocols: BTreeMap<Protocol, u64>,
    pub metrics: &'a Metrics,
    pub rss_kib: &'a [u64],
    pub growth_kib: i64,
    pub files: (usize, usize),
    pub stalls: usize,
    pub quiet_stretches: u64,
    pub violations: Vec<String>,
}

#[derive(Serialize)]
struct KindSummary {
    kind: &'static str,
    requests: u64,
    served: u64,
    allowed: u64,
    violations: u64,
    /// Milliseconds; while nothing was done to anybody, and otherwise.
    calm_p50: Option<f64>,
    calm_p99: Option<f64>,
    troubled_p50: Option<f64>,
    troubled_p99: Option<f64>,
}

#[derive(Serialize)]
struct EngineSummary {
    rss_first_kib: u64,
    rss_most_kib: u64,
    rss_last_kib: u64,
    growth_kib: i64,
    files_before: usize,
    files_after: usize,
    repeats: u64,
    repeats_refused: u64,
    stale_repeats: u64,
    generation: u64,
    refused_configurations: u64,
}

impl Summary {
    pub fn new(seed: u64, duration: Duration, found: RunResults) -> Self {
        let RunResults { tallies, done, protocols, metrics, rss_kib, growth_kib, files, .. } = found;
        let mut allowed: BTreeMap<&'static str, u64> = BTreeMap::new();
        let all: Vec<(Excuse, u64)> = tallies.values().flat_map(|tally| tally.allowed.clone()).collect();
        all.into_iter().for_each(|(excuse, count)| *allowed.entry(excuse.name()).or_default() += count);
        let mut tallies = tallies;
        let kinds = Kind::ALL.iter().filter_map(|kind| Some(KindSummary::of(*kind, tallies.get_mut(kind)?))).collect();
        let engine = EngineSummary {
            rss_first_kib: rss_kib.first().copied().unwrap_or(0),
            rss_most_kib: rss_kib.iter().copied().max().unwrap_or(0),
            rss_last_kib: rss_kib.last().copied().unwrap_or(0),
            growth_kib,
            files_before: files.0,
            files_after: files.1,
            repeats: metrics.count("propylon_retries_total", &[]),
            repeats_refused: metrics.count("propylon_retries_refused_total", &[]),
            stale_repeats: metrics.count("propylon_stale_retries_total", &[]),
            generation: metrics.count("propylon_config_generation", &[]),
            refused_configurations: metrics.count("propylon_config_reloads_total", &[("result", "failed")]),
        };
        let seconds = duration.as_secs();
        Self {
            command: "chaos",
            seed,
            seconds,
            kinds,
            allowed,
            disturbances: done,
            protocols: protocols.into_iter().map(|(protocol, count)| (protocol.name(), count)).collect(),
            engine,
            stalls: found.stalls,
            quiet_stretches: found.quiet_stretches,
            violations: found.violations,
        }
    }

    pub fn print(&self) {
        let head =
            ["kind", "requests", "served", "allowed", "violations", "calm p50", "calm p99", "else p50", "else p99"];
        let mut table = Table::with_head(head).with_words(1);
        let time = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1} ms"));
        for kind in &self.kinds {
            let KindSummary { requests, served, allowed, violations, .. } = kind;
            let counts = [requests, served, allowed, violations].map(u64::to_string);
            let times = [kind.calm_p50, kind.calm_p99, kind.troubled_p50, kind.troubled_p99].map(time);
            table.row([kind.kind.to_owned()].into_iter().chain(counts).chain(times));
        }
        table.print();
        println!();
        let tables = [
            ("failures that may be", &self.allowed),
            ("what was done", &self.disturbances),
            ("requests to servers in", &self.protocols),
        ];
        for (title, rows) in tables {
            let mut table = Table::with_head([title, "times"]).with_words(1);
            rows.iter().for_each(|(name, count)| table.row([(*name).to_owned(), count.to_string()]));
            table.print();
            println!();
        }
        let EngineSummary { rss_first_kib, rss_most_kib, rss_last_kib, growth_kib, files_before, files_after, .. } =
            &self.engine;
        let EngineSummary { repeats, repeats_refused, stale_repeats, generation, refused_configurations, .. } =
            &self.engine;
        let mut facts = Table::of_facts();
        facts.row([
            "memory of the engine".to_owned(),
            format!(
                "{rss_first_kib} KiB at first, {rss_most_kib} at most, {rss_last_kib} at last; grown by {growth_kib}"
            ),
        ]);
        facts.row(["files of the engine".to_owned(), format!("{files_before} before, {files_after} after")]);
        facts.row([
            "repeats".to_owned(),
            format!("{repeats}, of these {stale_repeats} of stale connections; {repeats_refused} refused"),
        ]);
        facts.row(["configurations".to_owned(), format!("generation {generation}, {refused_configurations} refused")]);
        facts.row(["servers known to be gone".to_owned(), format!("{} times, and sent nothing", self.quiet_stretches)]);
        facts.row(["stalls of this machine".to_owned(), self.stalls.to_string()]);
        facts.row(["violations".to_owned(), self.violations.len().to_string()]);
        facts.print();
    }
}

impl KindSummary {
    fn of(kind: Kind, tally: &mut Tally) -> Self {
        let milliseconds = |times: &mut [Micros], percent| percentile(times, percent).map(|time| time as f64 / 1e3);
        Self {
            kind: kind.name(),
            requests: tally.requests,
            served: tally.served,
            allowed: tally.allowed.values().sum(),
            violations: tally.violations,
            calm_p50: milliseconds(&mut tally.calm, 50),
            calm_p99: milliseconds(&mut tally.calm, 99),
            troubled_p50: milliseconds(&mut tally.troubled, 50),
            troubled_p99: milliseconds(&mut tally.troubled, 99),
        }
    }
}

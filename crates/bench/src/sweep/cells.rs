//! Measurements of a sweep: rows of suites, cells of numbers of workers, rounds.

use crate::compare::verdict::median;
use crate::load_threads::RunResult;
use crate::pressure::{Pressure, Shortage};
use crate::quantity::{CpuNanoseconds, Label, PerSecond};
use serde::{Deserialize, Serialize};

/// One suite with one key.
#[derive(Serialize, Deserialize)]
pub struct Row {
    pub suite: Label,
    pub version: Label,
    pub key: String,
    /// In the order of the numbers of workers.
    pub cells: Vec<Cell>,
}

#[derive(Serialize, Deserialize)]
pub struct Cell {
    pub workers: Option<usize>,
    /// Load and server had cores in common.
    pub shares_cores: bool,
    pub full: Samples,
    pub resumed: Option<Samples>,
}

/// The rounds of one cell, full or resumed.
#[derive(Default, Serialize, Deserialize)]
pub struct Samples {
    pub per_second: Option<PerSecond>,
    pub cpu_nanoseconds_each: Option<CpuNanoseconds>,
    /// The server was not full in every round: it may do more transactions per second than this.
    pub is_lower_bound: bool,
    pub shortages: Vec<Shortage>,
    pub errors: u64,
    pub first_error: Option<String>,
    pub rounds: Vec<Sample>,
}

#[derive(Serialize, Deserialize)]
pub struct Sample {
    pub per_second: f64,
    pub done: u64,
    pub cpu_nanoseconds_each: Option<f64>,
    pub cpu_source: Option<crate::cpu::Source>,
    pub pressure: Pressure,
}

impl Samples {
    pub fn take(&mut self, result: &RunResult) {
        self.errors += result.stats.errors_total();
        if self.first_error.is_none() {
            self.first_error = result.stats.first_error().map(str::to_owned);
        }
        self.rounds.push(Sample {
            per_second: result.stats.per_second(),
            done: result.stats.done,
            cpu_nanoseconds_each: result.cpu_each.map(|seconds| seconds * 1e9),
            cpu_source: result.cpu_source,
            pressure: result.pressure.clone(),
        });
    }

    /// Medians, once all rounds are in.
    pub fn summarize(&mut self) {
        let median_of = |of: fn(&Sample) -> Option<f64>| {
            let mut values: Vec<f64> = self.rounds.iter().filter_map(of).collect();
            values.sort_by(f64::total_cmp);
            median(&values)
        };
        self.per_second = median_of(|sample| Some(sample.per_second)).map(PerSecond);
        self.cpu_nanoseconds_each = median_of(|sample| sample.cpu_nanoseconds_each).map(CpuNanoseconds);
        let mut shortages: Vec<Shortage> = self.rounds.iter().flat_map(|sample| sample.pressure.shortages()).collect();
        shortages.sort_by_key(|shortage| *shortage as u8);
        shortages.dedup();
        // In a closed loop something is always full; if it is not the server, the rate is not the server's. Of a
        // server whose CPU is not known, only a full load can be said to be the limit.
        let servers_own = |sample: &Sample| match sample.pressure.server_share() {
            Some(_) => sample.pressure.shortages().contains(&Shortage::ServerCpu),
            None => !sample.pressure.load_is_full(),
        };
        self.is_lower_bound = !self.rounds.iter().all(servers_own);
        self.shortages = shortages;
    }
}

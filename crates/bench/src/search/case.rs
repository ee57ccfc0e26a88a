//! The search for one type of key at one number of workers: its trials, and the rate that they found.

use super::rate_search::{Fault, Step};
use crate::load_threads::RunResult;
use crate::pressure::{Pressure, Shortage};
use crate::quantity::{CpuNanoseconds, Label, PerSecond};
use crate::stats::Summary;
use crate::units::{show_nanoseconds, show_number};
use serde::{Deserialize, Serialize};

/// One type of key at one number of workers.
#[derive(Serialize, Deserialize)]
pub struct Case {
    pub key: String,
    /// Absent for an endpoint.
    pub workers: Option<usize>,
    pub load_threads: usize,
    /// Load and server had cores in common: rates are then the machine's, not the server's.
    pub shares_cores: bool,
    pub sustained: Option<Sustained>,
    /// Why nothing was sustained.
    pub gave_up: Option<String>,
    pub trials: Vec<TrialReport>,
}

/// The rate that was confirmed for the full duration.
#[derive(Serialize, Deserialize)]
pub struct Sustained {
    /// Good answers per second.
    pub per_second: PerSecond,
    /// The load was full or other programs had the cores, there or at the lowest rate that was not sustained, and the
    /// server was not full: it may do more.
    pub is_lower_bound: bool,
    /// Resources that were full there or at the lowest rate that was not sustained.
    pub shortages: Vec<Shortage>,
    /// Why the lowest rate above was not sustained; absent if none was tried.
    pub fault_above: Option<Fault>,
    pub cpu_nanoseconds_each: Option<CpuNanoseconds>,
    /// Workers divided by the CPU time of a connection: what the server's cores would do if they did nothing else.
    pub per_second_by_cpu: Option<f64>,
}

/// A trial as the report has it.
#[derive(Serialize, Deserialize)]
pub struct TrialReport {
    pub step: Label,
    pub in_flight: Option<usize>,
    pub offered_per_second: Option<PerSecond>,
    pub fault: Option<Fault>,
    pub cpu_nanoseconds_each: Option<CpuNanoseconds>,
    #[serde(flatten)]
    pub summary: Summary,
    pub pressure: Pressure,
}

impl TrialReport {
    pub fn new(step: Step, fault: Option<Fault>, result: &RunResult) -> Self {
        let (name, in_flight, offered_per_second) = match step {
            Step::Climb { in_flight } => ("climb", Some(in_flight), None),
            Step::Probe { rate } => ("probe", None, Some(rate)),
            Step::Confirm { rate } => ("confirm", None, Some(rate)),
            Step::Sustained | Step::GaveUp(_) => ("over", None, None),
        };
        Self {
            step: name.into(),
            in_flight,
            offered_per_second: offered_per_second.map(PerSecond),
            fault,
            cpu_nanoseconds_each: result.cpu_each.map(|seconds| CpuNanoseconds(seconds * 1e9)),
            summary: result.stats.summary(),
            pressure: result.pressure.clone(),
        }
    }

    pub fn show(&self) -> String {
        let load = match (self.in_flight, self.offered_per_second) {
            (Some(in_flight), _) => format!("{in_flight} in flight"),
            (_, Some(rate)) => format!("{} {} per second", self.step, show_number(rate.0)),
            _ => String::new(),
        };
        let worst = show_nanoseconds(self.summary.latency.max as f64);
        let mut text = format!("{load}: {} done per second, worst {worst}", show_number(self.summary.per_second.0));
        if let Some(share) = self.pressure.server_share() {
            text.push_str(&format!(", server {:.0} %", share * 100.0));
        }
        let load: Vec<String> = self.pressure.load_threads.iter().map(|thread| thread.show()).collect();
        text.push_str(&format!(", load {}", load.join(", ")));
        if let Some(fault) = self.fault {
            text.push_str(&format!("; NOT sustained: {}", fault.name()));
        }
        if self.fault == Some(Fault::Errors) {
            text.push_str(&format!(": {}", self.summary.show_errors()));
        }
        text
    }
}

impl TrialReport {
    pub fn offered_or_zero(&self) -> f64 {
        self.offered_per_second.map_or(0.0, |rate| rate.0)
    }
}

impl Sustained {
    /// The sustained rate by the trials of a search that ended well: the last was the confirmation.
    pub fn of(trials: &[TrialReport], server_cores: Option<usize>) -> Option<Self> {
        let last = trials.last()?;
        let above = lowest_unsustained(trials);
        let mut shortages = last.pressure.shortages();
        if let Some(above) = above {
            shortages.extend(above.pressure.shortages());
        }
        shortages.sort_by_key(|shortage| *shortage as u8);
        shortages.dedup();
        let by_cpu = last.cpu_nanoseconds_each.zip(server_cores).map(|(each, cores)| cores as f64 * 1e9 / each.0);
        Some(Self {
            per_second: last.summary.per_second,
            is_lower_bound: !shortages.contains(&Shortage::ServerCpu)
                && shortages.iter().any(|short| matches!(short, Shortage::LoadCpu | Shortage::OtherPrograms)),
            shortages,
            fault_above: above.and_then(|above| above.fault),
            cpu_nanoseconds_each: last.cpu_nanoseconds_each,
            per_second_by_cpu: by_cpu,
        })
    }
}

/// The lowest of the open-loop trials above the confirmed rate that failed, failed confirmations included. A rate
/// below it that failed once and then passed was a stall of the machine.
pub fn lowest_unsustained(trials: &[TrialReport]) -> Option<&TrialReport> {
    let confirmed = trials.last().filter(|last| last.fault.is_none()).map_or(0.0, TrialReport::offered_or_zero);
    let failed = trials.iter().filter(|trial| trial.fault.is_some() && trial.offered_or_zero() > confirmed);
    // Probes come in pairs; of equals the later is taken, which is the one that decided.
    failed.rev().min_by(|one, other| f64::total_cmp(&one.offered_or_zero(), &other.offered_or_zero()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_below_the_confirmed_one_is_not_what_was_too_much() {
        let trial = |step, fault| {
            let result = RunResult {
                stats: crate::stats::LoadStats::new(),
                pressure: Pressure::default(),
                cpu_each: None,
                cpu_source: None,
                cpu: None,
                busiest: None,
                origin_cores: 0.0,
            };
            TrialReport::new(step, fault, &result)
        };
        let behind = Some(Fault::FallsBehind);
        let trials = [
            trial(Step::Climb { in_flight: 1 }, None),
            trial(Step::Probe { rate: 900.0 }, behind),
            trial(Step::Probe { rate: 900.0 }, None),
            trial(Step::Probe { rate: 1500.0 }, behind),
            trial(Step::Probe { rate: 1600.0 }, behind),
            trial(Step::Confirm { rate: 1400.0 }, None),
        ];
        let above = lowest_unsustained(&trials).and_then(|trial| trial.offered_per_second);
        assert_eq!(above, Some(PerSecond(1500.0)));
        // Nothing was confirmed: then the lowest of all says why.
        let above = lowest_unsustained(&trials[..2]).and_then(|trial| trial.offered_per_second);
        assert_eq!(above, Some(PerSecond(900.0)));
    }
}

//! The search itself, without a socket or a clock: which trial comes next, and what a trial proves.
//!
//! Two knobs, because each answers a question that the other cannot.
//!
//! *In flight* (a closed loop: so many connections at once, each end begins the next). Raised first, for the curve and
//! for a guess at the capacity. It cannot find the limit: past capacity the rate stays where it is and the latency is
//! just the number in flight divided by the rate (Little's law), so "no latency above 2 s" would be met by any number
//! in flight below twice the rate, and a stalled server would be sent less work for its stall.
//!
//! *Rate* (an open loop: arrivals by the clock, answered or not, latency counted from when each was due). A rate above
//! capacity leaves a queue that grows for as long as it lasts, so "no latency above the limit for the whole duration"
//! has one boundary, and that is bisected.
//!
//! A short probe must not pass what the full duration would not: a queue that grows by 1/60 s per second is harmless
//! after 5 s and 2 s long after 120. So what a probe leaves unanswered at its end is projected to the full duration.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A step of the climb that adds less than this to the best rate has added nothing.
const GAIN_MIN: f64 = 0.03;
/// Steps in a row without a gain that end the climb.
const RUNGS_WITHOUT_GAIN: usize = 2;
/// The first probe, as a share of the closed loop's best rate.
const FIRST_PROBE: f64 = 0.9;
const STEP_UP: f64 = 1.1;
const STEP_DOWN: f64 = 0.8;
const PROBES_MAX: usize = 32;
const CONFIRMATIONS_MAX: usize = 5;

/// The goal to be met, and how closely the boundary is to be found.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    pub limit: Duration,
    pub duration: Duration,
    pub probe: Duration,
    /// Highest sustained and lowest unsustained rate may differ by this share.
    pub precision: f64,
    pub in_flight_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// A closed loop with so many connections, for as long as a probe.
    Climb { in_flight: usize },
    /// An open loop, for as long as a probe.
    Probe { rate: f64 },
    /// An open loop for the full duration.
    Confirm { rate: f64 },
    /// This rate was confirmed.
    Sustained,
    /// Why nothing was.
    GaveUp(&'static str),
}

/// The result of a step.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// Good answers per second.
    pub rate: f64,
    /// The worst latency, the age of what was unanswered at the end included.
    pub worst: Duration,
    pub errors: u64,
    /// Arrivals without an answer at the end.
    pub unanswered: u64,
}

/// Why a trial did not meet the goal.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    Errors,
    TooSlow,
    /// The queue at its end grows too long within the full duration.
    FallsBehind,
    NothingDone,
}

pub struct RateSearch {
    goal: Goal,
    step: Step,
    /// Best rate of the climb so far.
    best: f64,
    without_gain: usize,
    sustained: Option<f64>,
    unsustained: Option<f64>,
    /// The current rate failed once: a probe is short, and one stall of a shared machine is not the server's limit.
    failed_once: bool,
    probes: usize,
    confirmations: usize,
}

impl Goal {
    pub fn fault(&self, trial: &Trial, length: Duration) -> Option<Fault> {
        if trial.errors > 0 {
            return Some(Fault::Errors);
        }
        if trial.rate <= 0.0 {
            return Some(Fault::NothingDone);
        }
        if trial.worst > self.limit {
            return Some(Fault::TooSlow);
        }
        let behind = trial.unanswered as f64 / trial.rate;
        let scale = self.duration.as_secs_f64() / length.as_secs_f64().max(1e-9);
        (behind * scale > self.limit.as_secs_f64()).then_some(Fault::FallsBehind)
    }
}

impl Fault {
    pub fn name(self) -> &'static str {
        match self {
            Self::Errors => "errors",
            Self::TooSlow => "a latency above the limit",
            Self::FallsBehind => "a queue that would exceed the limit within the full duration",
            Self::NothingDone => "no answer at all",
        }
    }
}

impl RateSearch {
    pub fn new(goal: Goal) -> Self {
        Self {
            goal,
            step: Step::Climb { in_flight: 1 },
            best: 0.0,
            without_gain: 0,
            sustained: None,
            unsustained: None,
            failed_once: false,
            probes: 0,
            confirmations: 0,
        }
    }

    pub fn step(&self) -> Step {
        self.step
    }

    /// The trial's fault, if it has one, and on to the next step.
    pub fn record(&mut self, trial: &Trial) -> Option<Fault> {
        match self.step {
            Step::Climb { in_flight } => {
                let fault = self.goal.fault(&Trial { unanswered: 0, ..*trial }, self.goal.probe);
                self.step = self.after_climb(in_flight, trial.rate, fault);
                fault
            }
            Step::Probe { rate } => {
                let fault = self.goal.fault(trial, self.goal.probe);
                self.step = self.after_probe(rate, fault);
                fault
            }
            Step::Confirm { rate } => {
                let fault = self.goal.fault(trial, self.goal.duration);
                self.step = self.after_confirmation(rate, fault);
                fault
            }
            Step::Sustained | Step::GaveUp(_) => None,
        }
    }

    fn after_climb(&mut self, in_flight: usize, rate: f64, fault: Option<Fault>) -> Step {
        if fault.is_none() {
            let gained = rate > self.best * (1.0 + GAIN_MIN);
            self.without_gain = if gained { 0 } else { self.without_gain + 1 };
            self.best = self.best.max(rate);
        }
        if self.best <= 0.0 {
            return Step::GaveUp("one connection at a time is already too much");
        }
        let at_end = in_flight >= self.goal.in_flight_max || self.without_gain >= RUNGS_WITHOUT_GAIN;
        if fault.is_some() || at_end {
            return Step::Probe { rate: self.best * FIRST_PROBE };
        }
        Step::Climb { in_flight: (in_flight * 2).min(self.goal.in_flight_max) }
    }

    fn after_probe(&mut self, rate: f64, fault: Option<Fault>) -> Step {
        self.probes += 1;
        if fault.is_some() && !self.failed_once && self.probes < PROBES_MAX {
            self.failed_once = true;
            return Step::Probe { rate };
        }
        self.failed_once = false;
        match fault {
            None => self.sustained = Some(rate),
            Some(_) => self.unsustained = Some(rate),
        }
        let out_of_probes = self.probes >= PROBES_MAX;
        match (self.sustained, self.unsustained) {
            (Some(low), _) if out_of_probes => Step::Confirm { rate: low },
            (None, _) if out_of_probes => Step::GaveUp("no probe met the limit"),
            (Some(low), Some(high)) if high <= low * (1.0 + self.goal.precision) => Step::Confirm { rate: low },
            (Some(low), Some(high)) => Step::Probe { rate: (low + high) / 2.0 },
            (Some(low), None) => Step::Probe { rate: low * STEP_UP },
            (None, _) => Step::Probe { rate: rate * STEP_DOWN },
        }
    }

    /// A rate that failed for the full duration is tried again lower, by larger and larger steps.
    fn after_confirmation(&mut self, rate: f64, fault: Option<Fault>) -> Step {
        self.confirmations += 1;
        match fault {
            None => Step::Sustained,
            Some(_) if self.confirmations >= CONFIRMATIONS_MAX => {
                Step::GaveUp("no rate was sustained for the full duration")
            }
            Some(_) => {
                let step = self.goal.precision * f64::from(1 << self.confirmations);
                Step::Confirm { rate: rate * (1.0 - step).max(0.5) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOAL: Goal = Goal {
        limit: Duration::from_secs(2),
        duration: Duration::from_secs(120),
        probe: Duration::from_secs(5),
        precision: 0.02,
        in_flight_max: 1024,
    };

    /// A server that answers `capacity` per second and never more than 64 at once in less than 1 ms each.
    fn trial(step: Step, capacity: f64) -> Trial {
        let open = |rate: f64, length: f64| {
            let queue = ((rate - capacity) * length).max(rate * 0.001);
            let worst = Duration::from_secs_f64(queue / capacity + 0.001);
            Trial { rate: rate.min(capacity), worst, errors: 0, unanswered: queue as u64 }
        };
        match step {
            Step::Climb { in_flight } => {
                let rate = (in_flight as f64 / 0.001).min(capacity);
                let worst = Duration::from_secs_f64(in_flight as f64 / rate);
                Trial { rate, worst, errors: 0, unanswered: in_flight as u64 }
            }
            Step::Probe { rate } => open(rate, 5.0),
            Step::Confirm { rate } => open(rate, 120.0),
            _ => unreachable!("the rate search is over"),
        }
    }

    /// All steps, the last one included, and faults.
    fn rate_search(mut server: impl FnMut(Step) -> Trial) -> Vec<Step> {
        let mut rate_search = RateSearch::new(GOAL);
        let mut steps = vec![rate_search.step()];
        while !matches!(rate_search.step(), Step::Sustained | Step::GaveUp(_)) {
            rate_search.record(&server(rate_search.step()));
            steps.push(rate_search.step());
            assert!(steps.len() < 100, "it goes on and on: {steps:?}");
        }
        steps
    }

    fn confirmed(steps: &[Step]) -> f64 {
        match steps[steps.len() - 2..] {
            [Step::Confirm { rate }, Step::Sustained] => rate,
            _ => panic!("{steps:?}"),
        }
    }

    #[test]
    fn the_capacity_is_found_within_the_precision() {
        for capacity in [90.0, 5_000.0, 12_345.0, 300_000.0] {
            let rate = confirmed(&rate_search(|step| trial(step, capacity)));
            // At most 2 s / 120 s above capacity is within the limit for the whole duration.
            assert!(rate > capacity * 0.97 && rate < capacity * (1.0 + 2.0 / 120.0), "{capacity}: {rate}");
        }
    }

    #[test]
    fn a_short_probe_does_not_pass_what_the_full_duration_would_not() {
        // A tenth too much for 5 s: half a second of queue, well below the limit, and 12 s after two minutes.
        let trial = trial(Step::Probe { rate: 5_500.0 }, 5_000.0);
        assert!(trial.worst < GOAL.limit);
        assert_eq!(GOAL.fault(&trial, GOAL.probe), Some(Fault::FallsBehind));
    }

    #[test]
    fn one_stall_does_not_decide_a_probe_and_does_decide_a_confirmation() {
        let mut stalls = 2;
        let steps = rate_search(|step| {
            let honest = trial(step, 5_000.0);
            let hit = stalls > 0 && !matches!(step, Step::Climb { .. });
            let now = hit && (stalls == 2 || matches!(step, Step::Confirm { .. }));
            stalls -= i32::from(now);
            if now { Trial { worst: Duration::from_secs(3), ..honest } } else { honest }
        });
        assert_eq!(steps.iter().filter(|step| matches!(step, Step::Confirm { .. })).count(), 2);
        let rate = confirmed(&steps);
        assert!(rate > 4_600.0 && rate < 4_900.0, "{rate}");
    }

    #[test]
    fn a_server_that_fails_is_given_up() {
        let broken = Trial { rate: 0.0, worst: Duration::ZERO, errors: 5, unanswered: 0 };
        assert!(matches!(rate_search(|_| broken)[..], [Step::Climb { in_flight: 1 }, Step::GaveUp(_)]));
        let breaks_later = |step| match step {
            Step::Climb { .. } => trial(step, 1_000.0),
            _ => broken,
        };
        assert!(matches!(rate_search(breaks_later).last(), Some(Step::GaveUp(_))));
    }
}

//! `search`: the highest rate of new TLS connections that a server sustains for two minutes with no latency above two
//! seconds, per type of key and number of workers; how it scales; and what was full at the top.
//!
//! `rate_search` decides what is tried next, `verdict` is the report.

mod arguments;
pub mod case;
mod rate_search;
pub mod verdict;

use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::load_threads::{Length, RunResult, TargetSpec};
use crate::report::{self, progress};
use crate::testbed::{Served, Subject, Testbed};
pub use arguments::Arguments;
use case::{Case, Sustained, TrialReport};
use rate_search::{RateSearch, Step, Trial};
use std::time::Duration;

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    let testbed = Testbed::new(&arguments.testbed, &interrupt)?;
    let mut cases = Vec::new();
    for subject in &testbed.subjects()? {
        for workers in testbed.workers() {
            cases.push(Search::start(&testbed, arguments, subject, workers)?.run(workers)?);
        }
    }
    let verdict = verdict::Verdict::new(arguments, &testbed, cases);
    verdict.print();
    report::save_result(arguments.json.as_deref(), "search", &verdict)?;
    verdict.outcome()
}

/// The search of one case: one type of key at one number of workers, on a server that was started for it.
struct Search<'a> {
    testbed: &'a Testbed<'a>,
    arguments: &'a Arguments,
    subject: &'a Subject,
    served: Served,
    label: String,
}

impl<'a> Search<'a> {
    fn start(
        testbed: &'a Testbed,
        arguments: &'a Arguments,
        subject: &'a Subject,
        workers: Option<usize>,
    ) -> Outcome<Self> {
        let served = testbed.serve(&[subject], workers)?;
        let label = match workers {
            Some(workers) => format!("{} x {workers}", subject.name),
            None => subject.name.clone(),
        };
        Ok(Self { testbed, arguments, subject, served, label })
    }

    /// Searches from the first step of the climb to the confirmation.
    fn run(&self, workers: Option<usize>) -> Outcome<Case> {
        let Self { testbed, served, label, .. } = self;
        let handshake = testbed.handshake(&self.target_spec())?;
        let suite = handshake.suite.as_str().unwrap_or("an unknown suite");
        let cores = served.load_cores();
        progress(format_args!("{label}: {suite}, {} key, load on cores {cores:?}", handshake.key.name()));
        let mut rate_search = RateSearch::new(self.arguments.goal());
        let mut trials: Vec<TrialReport> = Vec::new();
        let gave_up = loop {
            testbed.interrupt.check()?;
            let step = rate_search.step();
            match step {
                Step::Sustained => break None,
                Step::GaveUp(why) => break Some(why.to_owned()),
                _ => {}
            }
            let result = self.try_step(step).map_err(|failure| served.explain(failure))?;
            // Without this, a server that is gone would be searched to the end as a very slow one.
            if let Some(ended) = served.ended() {
                return Err(Failure::new(format!("{label}: {ended}")));
            }
            let fault = rate_search.record(&Trial::of(&result));
            let trial = TrialReport::new(step, fault, &result);
            progress(format_args!("{label}: {}", trial.show()));
            trials.push(trial);
        };
        let sustained = gave_up.is_none().then(|| Sustained::of(&trials, served.server_cores())).flatten();
        Ok(Case {
            key: self.subject.name.clone(),
            workers,
            load_threads: cores.len(),
            shares_cores: served.shares_cores,
            sustained,
            gave_up,
            trials,
        })
    }

    fn target_spec(&self) -> TargetSpec {
        self.testbed.target_spec(self.served.address, self.arguments.offer(self.testbed, self.subject))
    }

    fn try_step(&self, step: Step) -> Outcome<RunResult> {
        let goal = self.arguments.goal();
        // Past the limit a connection has failed the trial; waiting on shows by how much.
        let timeout = goal.limit * 2;
        let (in_flight, rate, duration) = match step {
            Step::Climb { in_flight } => (in_flight, None, goal.probe),
            Step::Probe { rate } => (goal.in_flight_max, Some(rate), goal.probe),
            Step::Confirm { rate } => (goal.in_flight_max, Some(rate), goal.duration),
            Step::Sustained | Step::GaveUp(_) => return Err(Failure::new("a search that is over was continued")),
        };
        let plan = self.testbed.plan(in_flight, timeout, rate);
        let length = Length { warmup: self.arguments.warmup, duration };
        self.served.load_threads(self.testbed.interrupt).run(&self.target_spec(), &plan, length, &self.label)
    }
}

impl Trial {
    fn of(result: &RunResult) -> Self {
        let summary = result.stats.summary();
        Self {
            rate: summary.per_second.0,
            worst: Duration::from_nanos(summary.latency.max),
            errors: summary.errors_total(),
            unanswered: summary.unanswered,
        }
    }
}

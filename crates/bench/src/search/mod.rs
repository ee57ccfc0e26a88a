//! `search`: the highest rate of new TLS connections that a server sustains for two minutes with no latency above two
//! seconds, per type of key and number of workers; how it scales; and what was full at the top.
//!
//! `hunt` decides what is tried next, `verdict` tells what came of it.

mod hunt;
mod verdict;

use crate::failure::{Failure, Outcome};
use crate::interrupt::Interrupt;
use crate::pressure::{Pressure, Shortage};
use crate::report::{self, progress};
use crate::stage::{Served, Stage, StageArguments, Subject};
use crate::tally::Summary;
use crate::target::{Cipher, TlsOffer, Version};
use crate::team::Together;
use crate::units::{parse_duration, show_nanoseconds, show_number};
use hunt::{Fault, Goal, Hunt, Step, Trial};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// Highest rate of new connections sustained for --duration with no latency above --limit
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    propylon-bench search\n  \
    propylon-bench search --keys ec --workers 1,2 --duration 20 --probe 2 --json search.json\n  \
    propylon-bench search --server haproxy --keys rsa --workers 1\n  \
    propylon-bench search --target 10.0.0.5:443 --name shop.example --path /health --source 10.0.0.9 --source 10.0.0.10\n\n\
    First the number of connections in flight is raised (closed loop), which gives the curve and a guess at the\n\
    capacity. Then the rate of arrivals is bisected (open loop: arrivals come by the clock, and latency counts from\n\
    when each was due), because only a rate has one boundary between sustained and not. The highest rate is confirmed\n\
    for the full duration. No error is allowed at any point. A rate that the load could not have exceeded itself is\n\
    reported as a lower bound.")]
pub struct Arguments {
    #[command(flatten)]
    pub stage: StageArguments,
    /// TLS version to offer
    #[arg(long, value_name = "VERSION", default_value = "1.3")]
    pub tls: Version,
    /// Offer only this cipher
    #[arg(long = "suite", value_name = "CIPHER", default_value = "aes128gcm")]
    pub cipher: Cipher,
    /// How long the rate must be sustained
    #[arg(long, default_value = "120", value_parser = parse_length)]
    pub duration: Duration,
    /// No connection may take longer than this, from when it was due to the end of its answer
    #[arg(long, default_value = "2", value_parser = parse_length)]
    pub limit: Duration,
    /// Length of the trials before the last
    #[arg(long, default_value = "5", value_parser = parse_length)]
    pub probe: Duration,
    /// Load before each trial that is not counted
    #[arg(long, default_value = "500ms", value_parser = parse_duration)]
    pub warmup: Duration,
    /// How closely the boundary is searched for, as a share of the rate
    #[arg(long, default_value_t = 0.02, value_parser = parse_precision)]
    pub precision: f64,
    /// Connections at once at most; in the open loop arrivals beyond it wait, and their wait counts
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=16_384))]
    pub in_flight_max: usize,
    /// Write everything measured as JSON ("-": to stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// One type of key at one number of workers.
#[derive(Serialize)]
struct Case {
    key: String,
    /// Absent for an endpoint.
    workers: Option<usize>,
    load_threads: usize,
    /// Load and server had cores in common: rates are then the machine's, not the server's.
    shares_cores: bool,
    sustained: Option<Sustained>,
    /// Why nothing was sustained.
    gave_up: Option<String>,
    trials: Vec<Told>,
}

/// The rate that was confirmed for the full duration.
#[derive(Serialize)]
struct Sustained {
    /// Good answers per second.
    per_second: f64,
    /// The load was full or other programs had the cores, there or at the lowest rate that was not sustained, and the
    /// server was not full: it may do more.
    is_lower_bound: bool,
    /// Resources that were full there or at the lowest rate that was not sustained.
    shortages: Vec<Shortage>,
    /// Why the lowest rate above was not sustained; absent if none was tried.
    fault_above: Option<Fault>,
    cpu_nanoseconds_each: Option<f64>,
    /// Workers divided by the CPU time of a connection: what the server's cores would do if they did nothing else.
    per_second_by_cpu: Option<f64>,
}

/// A trial, as it is told.
#[derive(Serialize)]
struct Told {
    step: &'static str,
    in_flight: Option<usize>,
    offered_per_second: Option<f64>,
    fault: Option<Fault>,
    cpu_nanoseconds_each: Option<f64>,
    #[serde(flatten)]
    summary: Summary,
    pressure: Pressure,
}

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    let stage = Stage::new(&arguments.stage, &interrupt)?;
    let goal = arguments.goal();
    let mut cases = Vec::new();
    for subject in &stage.subjects()? {
        for workers in stage.workers() {
            cases.push(search(&stage, arguments, goal, subject, workers)?);
        }
    }
    let verdict = verdict::Verdict::new(arguments, &stage, cases);
    verdict.print();
    report::save_json(arguments.json.as_deref(), &verdict)?;
    verdict.outcome()
}

impl Arguments {
    fn goal(&self) -> Goal {
        Goal {
            limit: self.limit,
            duration: self.duration,
            probe: self.probe.min(self.duration),
            precision: self.precision,
            in_flight_max: self.in_flight_max,
        }
    }

    fn offer(&self, stage: &Stage, subject: &Subject) -> TlsOffer {
        TlsOffer { version: self.tls, cipher: Some(self.cipher), ..stage.offer(subject.family) }
    }
}

/// One server, started once, from the first rung to the confirmation.
fn search(
    stage: &Stage,
    arguments: &Arguments,
    goal: Goal,
    subject: &Subject,
    workers: Option<usize>,
) -> Outcome<Case> {
    let served = stage.serve(&[subject], workers)?;
    let witnessed = stage.witness(&stage.asked(served.address, arguments.offer(stage, subject)))?;
    let label = match workers {
        Some(workers) => format!("{} x {workers}", subject.name),
        None => subject.name.clone(),
    };
    let suite = witnessed.suite.as_str().unwrap_or("an unknown suite");
    progress(format_args!("{label}: {suite}, {} key, load on cores {:?}", witnessed.key.name(), served.load_cores()));
    let mut hunt = Hunt::new(goal);
    let mut trials: Vec<Told> = Vec::new();
    let gave_up = loop {
        stage.interrupt.check()?;
        let step = hunt.step();
        match step {
            Step::Sustained => break None,
            Step::GaveUp(why) => break Some(why.to_owned()),
            _ => {}
        }
        let together = try_step(stage, arguments, goal, subject, &served, step, &label)
            .map_err(|failure| served.explain(failure))?;
        // Without this, a server that is gone would be searched to the end as a very slow one.
        if let Some(ended) = served.ended() {
            return Err(Failure::new(format!("{label}: {ended}")));
        }
        let fault = hunt.record(&Trial::of(&together));
        let told = Told::new(step, fault, &together);
        progress(format_args!("{label}: {}", told.show()));
        trials.push(told);
    };
    let sustained = gave_up.is_none().then(|| Sustained::of(&trials, served.server_cores())).flatten();
    Ok(Case {
        key: subject.name.clone(),
        workers,
        load_threads: served.load_cores().len(),
        shares_cores: served.shares_cores,
        sustained,
        gave_up,
        trials,
    })
}

fn try_step(
    stage: &Stage,
    arguments: &Arguments,
    goal: Goal,
    subject: &Subject,
    served: &Served,
    step: Step,
    label: &str,
) -> Outcome<Together> {
    // Past the limit a connection has failed the trial; waiting on shows by how much.
    let timeout = goal.limit * 2;
    let (in_flight, rate, length) = match step {
        Step::Climb { in_flight } => (in_flight, None, goal.probe),
        Step::Probe { rate } => (goal.in_flight_max, Some(rate), goal.probe),
        Step::Confirm { rate } => (goal.in_flight_max, Some(rate), goal.duration),
        Step::Sustained | Step::GaveUp(_) => return Err(Failure::new("a search that is over was continued")),
    };
    let plan = stage.plan(in_flight, timeout, rate);
    let asked = stage.asked(served.address, arguments.offer(stage, subject));
    served.team(stage.interrupt).run(&asked, &plan, arguments.warmup, length, label)
}

impl Trial {
    fn of(together: &Together) -> Self {
        let summary = together.tally.summary();
        Self {
            rate: summary.per_second,
            worst: Duration::from_nanos(summary.latency.max),
            errors: summary.errors_total(),
            unanswered: summary.unanswered,
        }
    }
}

impl Told {
    fn new(step: Step, fault: Option<Fault>, together: &Together) -> Self {
        let (name, in_flight, offered_per_second) = match step {
            Step::Climb { in_flight } => ("climb", Some(in_flight), None),
            Step::Probe { rate } => ("probe", None, Some(rate)),
            Step::Confirm { rate } => ("confirm", None, Some(rate)),
            Step::Sustained | Step::GaveUp(_) => ("over", None, None),
        };
        Self {
            step: name,
            in_flight,
            offered_per_second,
            fault,
            cpu_nanoseconds_each: together.cpu_each.map(|seconds| seconds * 1e9),
            summary: together.tally.summary(),
            pressure: together.pressure.clone(),
        }
    }

    fn show(&self) -> String {
        let asked = match (self.in_flight, self.offered_per_second) {
            (Some(in_flight), _) => format!("{in_flight} in flight"),
            (_, Some(rate)) => format!("{} {} per second", self.step, show_number(rate)),
            _ => String::new(),
        };
        let worst = show_nanoseconds(self.summary.latency.max as f64);
        let mut text = format!("{asked}: {} done per second, worst {worst}", show_number(self.summary.per_second));
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

impl Sustained {
    /// The sustained rate by the trials of a search that ended well: the last was the confirmation.
    fn of(trials: &[Told], server_cores: Option<usize>) -> Option<Self> {
        let last = trials.last()?;
        let above = lowest_unsustained(trials);
        let mut shortages = last.pressure.shortages();
        if let Some(above) = above {
            shortages.extend(above.pressure.shortages());
        }
        shortages.sort_by_key(|shortage| *shortage as u8);
        shortages.dedup();
        let by_cpu = last.cpu_nanoseconds_each.zip(server_cores).map(|(each, cores)| cores as f64 * 1e9 / each);
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
fn lowest_unsustained(trials: &[Told]) -> Option<&Told> {
    let confirmed = trials.last().filter(|last| last.fault.is_none()).map_or(0.0, Told::offered_or_zero);
    let failed = trials.iter().filter(|told| told.fault.is_some() && told.offered_or_zero() > confirmed);
    // Probes come in pairs; of equals the later is taken, which is the one that decided.
    failed.rev().min_by(|one, other| f64::total_cmp(&one.offered_or_zero(), &other.offered_or_zero()))
}

impl Told {
    fn offered_or_zero(&self) -> f64 {
        self.offered_per_second.unwrap_or(0.0)
    }
}

fn parse_length(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        length if length >= Duration::from_millis(100) => Ok(length),
        _ => Err("at least 100ms".to_owned()),
    }
}

fn parse_precision(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.001..=0.2).contains(&share) => Ok(share),
        _ => Err("a share between 0.001 and 0.2".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_below_the_confirmed_one_is_not_what_was_too_much() {
        let told = |step, fault| {
            let together = Together {
                tally: crate::tally::Tally::new(),
                pressure: Pressure::default(),
                cpu_each: None,
                cpu_source: None,
            };
            Told::new(step, fault, &together)
        };
        let behind = Some(Fault::FallsBehind);
        let trials = [
            told(Step::Climb { in_flight: 1 }, None),
            told(Step::Probe { rate: 900.0 }, behind),
            told(Step::Probe { rate: 900.0 }, None),
            told(Step::Probe { rate: 1500.0 }, behind),
            told(Step::Probe { rate: 1600.0 }, behind),
            told(Step::Confirm { rate: 1400.0 }, None),
        ];
        let above = lowest_unsustained(&trials).and_then(|told| told.offered_per_second);
        assert_eq!(above, Some(1500.0));
        // Nothing was confirmed: then the lowest of all says why.
        let above = lowest_unsustained(&trials[..2]).and_then(|told| told.offered_per_second);
        assert_eq!(above, Some(900.0));
    }
}

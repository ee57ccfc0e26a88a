//! The results of a search, as a table: rate, latency, CPU, scaling, and what was full.

use super::arguments::Arguments;
use super::case::{Case, TrialReport, lowest_unsustained};
use crate::failure::{Failure, Outcome};
use crate::report::Table;
use crate::testbed::Testbed;
use crate::units::{show_nanoseconds, show_number};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub struct Verdict {
    pub server: String,
    duration_seconds: f64,
    limit_seconds: f64,
    precision: f64,
    in_flight_max: usize,
    pub cases: Vec<Case>,
    pub scaling: Vec<Scaling>,
}

/// n workers against one, for one type of key.
#[derive(Serialize, Deserialize)]
pub struct Scaling {
    pub key: String,
    pub workers: usize,
    /// Rate of n / (n x rate of 1): 1 is perfect.
    pub by_rate: f64,
    /// CPU per connection of 1 / of n: 1 if a connection costs no more in company.
    pub by_cpu: Option<f64>,
    /// The load had cores of its own and was not full, in both searches.
    rates_are_the_servers: bool,
}

impl Verdict {
    pub fn new(arguments: &Arguments, testbed: &Testbed, cases: Vec<Case>) -> Self {
        Self {
            server: testbed.server_name(),
            duration_seconds: arguments.duration.as_secs_f64(),
            limit_seconds: arguments.limit.as_secs_f64(),
            precision: arguments.precision,
            in_flight_max: arguments.in_flight_max,
            scaling: cases.iter().filter_map(|case| Scaling::of(case, &cases)).collect(),
            cases,
        }
    }

    pub fn print(&self) {
        println!("{}", self.server);
        println!(
            "highest rate of new connections sustained for {} s, none above {} s, no errors\n",
            self.duration_seconds, self.limit_seconds
        );
        let head =
            ["key", "workers", "sustained/s", "p50", "p99", "worst", "CPU each", "scaling", "of CPU", "bottleneck"];
        let mut table = Table::with_head(head);
        self.cases.iter().for_each(|case| table.row(self.cells(case)));
        table.print();
        println!();
        for case in &self.cases {
            case.print_details();
        }
        if self.cases.iter().any(|case| case.is_doubtful()) {
            println!(
                "≥  the load was full, shared cores with the server, or other programs had them: the server may do"
            );
            println!("   more than this, and \"scaling\" is the machine's; \"CPU each\" is the server's, and so is");
            println!("   \"of CPU\" (CPU each at 1 worker / at n: 1 if a connection costs no more in company)");
        }
    }

    fn cells(&self, case: &Case) -> Vec<String> {
        let dash = || "-".to_owned();
        let workers = case.workers.map_or_else(dash, |workers| workers.to_string());
        let (Some(sustained), Some(last)) = (&case.sustained, case.trials.last()) else {
            let why = case.gave_up.clone().unwrap_or_default();
            return vec![case.key.clone(), workers, "nothing".to_owned(), why];
        };
        let scaling = self.scaling.iter().find(|scaling| case.is(&scaling.key, scaling.workers));
        let shown = |value: u64| show_nanoseconds(value as f64);
        let mark = if case.is_doubtful() { "≥ " } else { "" };
        let full: Vec<&str> = sustained.shortages.iter().map(|shortage| shortage.name()).collect();
        vec![
            case.key.clone(),
            workers,
            format!("{mark}{}", show_number(sustained.per_second.0)),
            shown(last.summary.latency.p50),
            shown(last.summary.latency.p99),
            shown(last.summary.latency.max),
            sustained.cpu_nanoseconds_each.map_or_else(dash, |each| show_nanoseconds(each.0)),
            scaling.map_or_else(dash, |scaling| format!("{:.2}", scaling.by_rate)),
            scaling.and_then(|scaling| scaling.by_cpu).map_or_else(dash, |by_cpu| format!("{by_cpu:.2}")),
            if full.is_empty() { "nothing known".to_owned() } else { full.join(", ") },
        ]
    }

    /// Not to have found a rate is a failure.
    pub fn outcome(&self) -> Outcome<()> {
        match self.cases.iter().find_map(|case| Some((case, case.gave_up.as_ref()?))) {
            Some((case, why)) => Err(Failure::new(format!("{}: {why}", case.name()))),
            None => Ok(()),
        }
    }
}

impl Scaling {
    /// Against the same key's search with one worker, if there is one.
    fn of(case: &Case, cases: &[Case]) -> Option<Self> {
        let workers = case.workers?;
        let alone = cases.iter().find(|other| other.is(&case.key, 1))?;
        let (one, many) = (alone.sustained.as_ref()?, case.sustained.as_ref()?);
        Some(Self {
            key: case.key.clone(),
            workers,
            by_rate: many.per_second.0 / (workers as f64 * one.per_second.0),
            by_cpu: one.cpu_nanoseconds_each.zip(many.cpu_nanoseconds_each).map(|(one, many)| one.0 / many.0),
            rates_are_the_servers: !case.is_doubtful() && !alone.is_doubtful(),
        })
    }
}

impl Case {
    fn is(&self, key: &str, workers: usize) -> bool {
        self.key == key && self.workers == Some(workers)
    }

    pub fn name(&self) -> String {
        match self.workers {
            Some(1) => format!("{}, 1 worker", self.key),
            Some(workers) => format!("{}, {workers} workers", self.key),
            None => self.key.clone(),
        }
    }

    pub fn is_doubtful(&self) -> bool {
        self.shares_cores || self.sustained.as_ref().is_some_and(|sustained| sustained.is_lower_bound)
    }

    fn print_details(&self) {
        println!("{}{}", self.name(), if self.shares_cores { " (load on the server's cores too)" } else { "" });
        let climb: Vec<String> = self.trials.iter().filter_map(TrialReport::show_ramp_step).collect();
        println!("  in flight -> done per second (worst): {}", climb.join(", "));
        if let (Some(_), Some(last)) = (&self.sustained, self.trials.last()) {
            print_pressure(&format!("at {} per second", show_number(last.summary.per_second.0)), last);
        }
        if let Some(above) = lowest_unsustained(&self.trials) {
            let offered = show_number(above.offered_or_zero());
            let fault = above.fault.map_or("", |fault| fault.name());
            print_pressure(&format!("not sustained: {offered} per second, {fault}"), above);
            if above.summary.errors_total() > 0 {
                println!("    errors: {}", above.summary.show_errors());
            }
        }
        if let Some(by_cpu) = self.sustained.as_ref().and_then(|sustained| sustained.per_second_by_cpu) {
            println!("  by CPU per connection the server's cores alone would do {} per second", show_number(by_cpu));
        }
        println!();
    }
}

fn print_pressure(title: &str, lines: &TrialReport) {
    println!("  {title}");
    for line in lines.pressure.lines() {
        println!("    {line}");
    }
}

impl TrialReport {
    fn show_ramp_step(&self) -> Option<String> {
        let worst = show_nanoseconds(self.summary.latency.max as f64);
        let mark = if self.fault.is_some() { "!" } else { "" };
        Some(format!("{} -> {} ({worst}{mark})", self.in_flight?, show_number(self.summary.per_second.0)))
    }
}

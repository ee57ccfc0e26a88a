//! The curve as a table.

use super::super::arguments::Arguments;
use super::middle;
use crate::compare::rows::{Row, Unit};
use crate::compare::setting::Setting;
use crate::failure::{Failure, Outcome};
use crate::load_threads::RunResult;
use crate::pressure::count;
use crate::report::Table;
use crate::testbed::Testbed;
use crate::units::{show_nanoseconds, show_number};
use serde::Serialize;

#[derive(Serialize)]
pub struct Curve {
    server: String,
    /// Cores of this machine that this process may use.
    cores: usize,
    duration_seconds: f64,
    rounds: u32,
    /// Numbers of workers that have not a core each.
    left_out: Vec<usize>,
    lines: Vec<Line>,
}

/// One kind of work with one configuration.
#[derive(Serialize)]
pub struct Line {
    pub row: String,
    /// The settings, or a dash.
    pub variant: String,
    pub unit: Unit,
    pub points: Vec<Point>,
}

/// One number of workers.
#[derive(Default, Serialize)]
pub struct Point {
    pub workers: usize,
    pub load_cores: Vec<usize>,
    /// Load and engine had cores in common.
    pub shares_cores: bool,
    /// Connections or requests, or gigabytes.
    per_second: Option<f64>,
    /// CPU time of the engine, in the line's unit.
    cpu_each: Option<f64>,
    /// CPU time of a unit with the fewest workers, by that with these.
    efficiency: Option<f64>,
    engine_cores: Option<f64>,
    busiest: Option<f64>,
    load_share: Option<f64>,
    p99_nanoseconds: Option<f64>,
    pub rounds: Vec<Round>,
}

/// One measurement.
#[derive(Default, Serialize)]
pub struct Round {
    done: u64,
    per_second: Option<f64>,
    cpu_each: Option<f64>,
    engine_cores: Option<f64>,
    /// CPU time of the busiest worker by the mean of all; 1 is even.
    busiest: Option<f64>,
    /// CPU time of load and origins by that of the machine, 0 to 1.
    load_share: f64,
    /// Cores kept busy by other programs.
    other_cores: Option<f64>,
    p99_nanoseconds: Option<f64>,
    errors: u64,
    first_error: Option<String>,
}

impl Round {
    pub fn of(row: Row, result: &RunResult, cores: usize) -> Self {
        let (stats, pressure) = (&result.stats, &result.pressure);
        let seconds = stats.elapsed.as_secs_f64().max(1e-9);
        // Connections, requests, or gigabytes, and a second of CPU in the unit of the row.
        let (units, scale) = match row.unit() {
            Unit::SecondsPerGigabyte => (stats.body_bytes as f64 / 1e9, 1.0),
            _ => (stats.done as f64, 1e6),
        };
        let load: f64 = pressure.load_threads.iter().map(|thread| thread.busy).sum();
        Self {
            done: stats.done,
            per_second: Some(units / seconds),
            cpu_each: result.cpu.map(|cpu| cpu * scale / units),
            engine_cores: pressure.server_cores,
            busiest: result.busiest,
            load_share: (load + result.origin_cores) / cores.max(1) as f64,
            other_cores: pressure.other_cores.map(|others| (others - result.origin_cores).max(0.0)),
            p99_nanoseconds: Some(stats.latency().value_at_quantile(0.99) as f64),
            errors: stats.errors_total(),
            first_error: stats.first_error().map(str::to_owned),
        }
    }

    pub fn failed(failure: &Failure) -> Self {
        Self { errors: 1, first_error: Some(failure.to_string()), ..Self::default() }
    }

    pub fn show(&self, unit: Unit) -> String {
        let Some(rate) = self.per_second else { return self.first_error.clone().unwrap_or_default() };
        let each = self.cpu_each.map_or("unknown".to_owned(), show_number);
        let (rate, name, load) = (show_number(rate), unit.name(), self.load_share * 100.0);
        format!("{rate} per second, {each} {name} each, load {load:.0} % of the machine, {} errors", self.errors)
    }
}

impl Line {
    pub fn new(row: Row, settings: &[Setting], workers: &[usize]) -> Self {
        let shown: Vec<String> = settings.iter().map(Setting::show).collect();
        let variant = if shown.is_empty() { "-".to_owned() } else { shown.join(" ") };
        let points = workers.iter().map(|workers| Point { workers: *workers, ..Point::default() }).collect();
        Self { row: row.name(), variant, unit: row.unit(), points }
    }

    /// Medians and efficiencies, once all rounds are in.
    pub fn summarize(&mut self) {
        for point in &mut self.points {
            let rounds = &point.rounds;
            point.per_second = middle(rounds, |round| round.per_second);
            point.cpu_each = middle(rounds, |round| round.cpu_each);
            point.engine_cores = middle(rounds, |round| round.engine_cores);
            point.busiest = middle(rounds, |round| round.busiest);
            point.load_share = middle(rounds, |round| round.per_second.map(|_| round.load_share));
            point.p99_nanoseconds = middle(rounds, |round| round.p99_nanoseconds);
        }
        let fewest = self.points.iter().min_by_key(|point| point.workers).and_then(|point| point.cpu_each);
        for point in &mut self.points {
            point.efficiency = fewest.zip(point.cpu_each).map(|(fewest, each)| fewest / each);
        }
    }
}

impl Point {
    fn errors(&self) -> u64 {
        self.rounds.iter().map(|round| round.errors).sum()
    }
}

impl Curve {
    pub fn new(arguments: &Arguments, testbed: &Testbed, left_out: Vec<usize>, lines: Vec<Line>) -> Self {
        Self {
            server: testbed.server_name(),
            cores: testbed.cores.len(),
            duration_seconds: arguments.duration.as_secs_f64(),
            rounds: arguments.rounds,
            left_out,
            lines,
        }
    }

    pub fn print(&self) {
        println!("{}, on a machine of {}\n", self.server, count(self.cores, "core"));
        self.table().print();
        println!(
            "\nefficiency is CPU of a unit with the fewest workers / CPU of it with these; busiest is the busiest worker / the mean"
        );
        let points = || self.lines.iter().flat_map(|line| &line.points);
        for workers in &self.left_out {
            println!("{}: left out, this machine has fewer cores", count(*workers, "worker"));
        }
        let mut shared: Vec<usize> = points().filter(|point| point.shares_cores).map(|point| point.workers).collect();
        shared.sort_unstable();
        shared.dedup();
        for workers in shared {
            let workers = count(workers, "worker");
            println!(
                "*  with {workers} load and engine share cores: rate and p99 are theirs together, CPU of a unit is the engine's own"
            );
        }
        for (line, point) in self.lines.iter().flat_map(|line| line.points.iter().map(move |point| (line, point))) {
            let first = point.rounds.iter().find_map(|round| round.first_error.as_deref());
            if let (errors @ 1.., Some(first)) = (point.errors(), first) {
                let (row, variant, workers) = (&line.row, &line.variant, point.workers);
                println!("!  {row} {variant} x{workers}: {errors} errors; first: {first}");
            }
        }
    }

    fn table(&self) -> Table {
        let head =
            ["row", "set", "workers", "per s", "CPU each", "efficiency", "engine cores", "busiest", "load", "p99"];
        let mut table = Table::with_head(head).with_words(2);
        let number = |value: Option<f64>| value.map_or("-".to_owned(), show_number);
        for line in &self.lines {
            let unit = if line.unit == Unit::SecondsPerGigabyte { " GB" } else { "" };
            let each = if line.unit == Unit::SecondsPerGigabyte { " s/GB" } else { " µs" };
            for point in &line.points {
                let marks = format!(
                    "{}{}",
                    if point.shares_cores { "*" } else { "" },
                    if point.errors() > 0 { "!" } else { "" }
                );
                table.row([
                    line.row.clone(),
                    line.variant.clone(),
                    format!("{}{marks}", point.workers),
                    format!("{}{unit}", number(point.per_second)),
                    format!("{}{each}", number(point.cpu_each)),
                    point.efficiency.map_or("-".to_owned(), |efficiency| format!("{efficiency:.2}")),
                    point.engine_cores.map_or("-".to_owned(), |cores| format!("{cores:.2}")),
                    point.busiest.map_or("-".to_owned(), |busiest| format!("{busiest:.2}")),
                    point.load_share.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0)),
                    point.p99_nanoseconds.map_or("-".to_owned(), show_nanoseconds),
                ]);
            }
        }
        table
    }

    /// A table with holes is a failure.
    pub fn outcome(&self) -> Outcome<()> {
        let errors: u64 = self.lines.iter().flat_map(|line| &line.points).map(Point::errors).sum();
        if errors > 0 {
            return Err(Failure::new("some points have errors; they are marked with ! in the table"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(cpu_each: f64) -> Round {
        Round { cpu_each: Some(cpu_each), per_second: Some(1.0), ..Round::default() }
    }

    #[test]
    fn efficiency_is_by_the_medians_and_the_fewest_workers() {
        let mut line = Line::new(Row::RequestsH2, &[], &[2, 1, 4]);
        for (point, each) in line.points.iter_mut().zip([[10.0, 99.0, 9.0], [8.0, 7.0, 9.0], [16.0, 16.0, 16.0]]) {
            point.rounds = each.map(round).into();
        }
        line.summarize();
        let seen: Vec<_> = line.points.iter().map(|point| point.efficiency.unwrap()).collect();
        assert_eq!(seen, [0.8, 1.0, 0.5]);
    }

    #[test]
    fn a_point_that_failed_is_a_hole_in_the_table_and_a_failure() {
        let mut line = Line::new(Row::Ec13, &[Setting::parse("process.batch=off").unwrap()], &[1, 2]);
        line.points[0].rounds.push(round(80.0));
        line.points[1].rounds.push(Round::failed(&Failure::new("it ended at once")));
        line.points[1].shares_cores = true;
        line.summarize();
        let mut curve = Curve {
            server: String::new(),
            cores: 2,
            duration_seconds: 1.0,
            rounds: 1,
            left_out: vec![4],
            lines: vec![line],
        };
        let table = curve.table().render();
        assert!(
            table.contains("process.batch=\"off\"") && table.contains("2*!") && table.contains("80.0 µs"),
            "{table}"
        );
        assert!(curve.outcome().is_err());
        curve.lines[0].points.pop();
        assert!(curve.outcome().is_ok());
    }
}

//! `keyserver --background`: one operation alone, and with another in the background that saturates the key server, in
//! turn, so that other work of the machine falls on both alike.

use super::arguments::Arguments;
use super::measure::{self, measure};
use crate::failure::{Failure, Outcome, While};
use crate::interrupt::Interrupt;
use crate::report::{self, Table};
use crate::scratch::ScratchDir;
use crate::stats::LatencySummary;
use crate::units::{show_nanoseconds, show_number};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Niceness of the background load's client: it shares a machine with the client that is measured.
const BACKGROUND_NICENESS: &str = "10";
/// The background load is there so long before the measurement's warm-up, and after the measurement.
const MARGIN: Duration = Duration::from_millis(300);

#[derive(Serialize, Deserialize)]
pub struct Report {
    pub operation: String,
    pub background: String,
    rounds: Vec<Round>,
    pub alone: Medians,
    pub with_background: Medians,
}

#[derive(Serialize, Deserialize)]
struct Round {
    alone: LatencySummary,
    with_background: LatencySummary,
    /// Rate of the background operation, while both went on.
    background_per_second: f64,
}

/// Over the rounds, in nanoseconds.
#[derive(Serialize, Deserialize)]
pub struct Medians {
    pub p50: u64,
    pub p99: u64,
    /// Least and most of the rounds.
    pub p99_range: [u64; 2],
}

pub fn run(arguments: &Arguments, interrupt: &Interrupt) -> Outcome<()> {
    let scratch = ScratchDir::new()?;
    let mut rounds = Vec::new();
    for number in 1..=arguments.rounds {
        let alone = measured(arguments, interrupt)?;
        let file = scratch.path().join(format!("{number}.json"));
        let mut background_load = BackgroundLoad::start(arguments, &file)?;
        std::thread::sleep(MARGIN);
        let with_background = measured(arguments, interrupt)?;
        let background_per_second = background_load.finish(&file)?;
        report::progress(format_args!(
            "round {number} of {}: p99 {} alone, {} with {}/s in the background",
            arguments.rounds,
            show_nanoseconds(alone.p99 as f64),
            show_nanoseconds(with_background.p99 as f64),
            show_number(background_per_second)
        ));
        rounds.push(Round { alone, with_background, background_per_second });
    }
    let medians = |of: fn(&Round) -> &LatencySummary| Medians::of(rounds.iter().map(of));
    let report = Report {
        operation: arguments.op.name(),
        background: arguments.background.map(|operation| operation.name()).unwrap_or_default(),
        alone: medians(|round| &round.alone),
        with_background: medians(|round| &round.with_background),
        rounds,
    };
    report.print();
    report::save_result(arguments.json.as_deref(), "keyserver-background", &report)
}

fn measured(arguments: &Arguments, interrupt: &Interrupt) -> Outcome<LatencySummary> {
    let report = measure(arguments, interrupt)?;
    report.verdict()?;
    Ok(report.summary.latency)
}

/// The background load: this program once more.
struct BackgroundLoad(Child);

impl BackgroundLoad {
    fn start(arguments: &Arguments, file: &Path) -> Outcome<BackgroundLoad> {
        let Some(operation) = arguments.background.and_then(|operation| operation.to_possible_value()) else {
            return Err(Failure::new("which operation? --background OPERATION"));
        };
        let program = std::env::current_exe().when("finding this program")?;
        let duration = arguments.warmup + arguments.duration + 2 * MARGIN;
        let mut command = Command::new("nice");
        command.args(["-n", BACKGROUND_NICENESS]).arg(program).args(["keyserver", "--target", &arguments.target]);
        command.args(["--name", &arguments.name]).arg("--identity").arg(&arguments.identity);
        command.arg("--ca").arg(&arguments.ca).args(["--op", operation.get_name()]);
        command.args(["--outstanding", &arguments.background_outstanding.to_string(), "--warmup", "0ms"]);
        command.args(["--duration", &format!("{}ms", duration.as_millis())]).arg("--json").arg(file);
        // Verifying comes after the measurement, and would be in the next one's way.
        command.args(["--verify-share", "0.01"]);
        if let Some(certificate) = &arguments.background_certificate {
            command.arg("--certificate").arg(certificate);
        }
        if let Some(core) = arguments.core {
            command.args(["--core", &core.to_string()]);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().when("starting the background load")?;
        Ok(BackgroundLoad(child))
    }

    /// Waits for its end; operations per second.
    fn finish(&mut self, file: &Path) -> Outcome<f64> {
        let status = self.0.wait().when("the background load")?;
        if !status.success() {
            return Err(Failure::new(format!("the background load failed: {status}")));
        }
        let text = std::fs::read_to_string(file).when("the background load's result")?;
        let report: measure::Report = serde_json::from_str(&text).when("the background load's result")?;
        Ok(report.summary.per_second.0)
    }
}

impl Drop for BackgroundLoad {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Medians {
    fn of<'a>(rounds: impl Iterator<Item = &'a LatencySummary> + Clone) -> Medians {
        let sorted = |of: fn(&LatencySummary) -> u64| {
            let mut all: Vec<u64> = rounds.clone().map(of).collect();
            all.sort_unstable();
            all
        };
        let (p50, p99) = (sorted(|latency| latency.p50), sorted(|latency| latency.p99));
        let middle = |all: &[u64]| all.get(all.len() / 2).copied().unwrap_or_default();
        let range = [p99.first().copied().unwrap_or_default(), p99.last().copied().unwrap_or_default()];
        Medians { p50: middle(&p50), p99: middle(&p99), p99_range: range }
    }
}

impl Report {
    fn print(&self) {
        let mut table = Table::with_head(["", "p50", "p99", "p99 of the rounds"]);
        let background = format!("with {}", self.background);
        for (name, medians) in [("alone", &self.alone), (background.as_str(), &self.with_background)] {
            let [least, most] = medians.p99_range.map(|value| show_nanoseconds(value as f64));
            let [p50, p99] = [medians.p50, medians.p99].map(|value| show_nanoseconds(value as f64));
            table.row([format!("{} {name}", self.operation), p50, p99, format!("{least} to {most}")]);
        }
        table.print();
        println!("Medians of {} rounds, alone and with the background load in turn.", self.rounds.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_those_of_the_rounds_and_the_range_shows_how_far_they_lie_apart() {
        let latency = |p50, p99| LatencySummary { mean: 0.0, p50, p90: 0, p99, p99_9: 0, max: 0 };
        let rounds = [latency(3, 90), latency(1, 10), latency(2, 1000)];
        let medians = Medians::of(rounds.iter());
        assert_eq!((medians.p50, medians.p99, medians.p99_range), (2, 90, [10, 1000]));
    }
}

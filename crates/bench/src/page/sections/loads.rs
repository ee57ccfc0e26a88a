//! `handshakes`, `requests`, `throughput` and `keyserver`: what each load came to, side by side.

use super::super::chart::{Named, bars};
use super::super::html::{Cell, details, note, shorten, table};
use super::super::latency::{self, Latency};
use super::super::result::{Body, Result};
use super::shared::figures;
use crate::agents::{AgentReport, FleetReport};
use crate::handshakes::LOAD_SATURATED;
use crate::quantity::{Cores, CpuNanoseconds, CpuSecondsPerGigabyte, GigabytesPerSecond, PerSecond, Quantity};
use crate::results::Measurement;
use crate::stats::Summary;
use crate::units::show_nanoseconds;

/// Bodies from which on the CPU time of a gigabyte is worth telling.
const BULK_BYTES_MIN: u64 = 100_000_000;

/// One load, whichever command measured it.
struct Load<'r> {
    name: &'r str,
    errors: u64,
    summary: &'r Summary,
    load_busy: f64,
    cpu_each: Option<CpuNanoseconds>,
    cpu_per_gigabyte: Option<CpuSecondsPerGigabyte>,
    cores: Option<Cores>,
    throughput: Option<GigabytesPerSecond>,
    agents: Option<&'r FleetReport>,
}

impl<'r> Load<'r> {
    fn of(result: &'r Result) -> Option<Self> {
        let Body::Measured(measurement) = &result.body else { return None };
        let load = match measurement {
            Measurement::Load(report) => {
                let cpu = report.server_cpu.as_ref();
                Self {
                    cpu_each: cpu.map(|cpu| cpu.nanoseconds_per_request),
                    cpu_per_gigabyte: cpu.map(|cpu| cpu.seconds_per_gigabyte),
                    cores: cpu.map(|cpu| cpu.cores),
                    agents: report.fleet.as_ref(),
                    ..Self::new(result, &report.summary, report.load_busy)
                }
            }
            Measurement::Throughput(report) => {
                let cpu = report.server_cpu.as_ref();
                Self {
                    cpu_each: cpu.map(|cpu| cpu.nanoseconds_each),
                    cpu_per_gigabyte: cpu.map(|cpu| cpu.seconds_per_gigabyte),
                    cores: cpu.map(|cpu| cpu.cores),
                    throughput: Some(report.gigabytes_per_second),
                    ..Self::new(result, &report.summary, report.load_busy)
                }
            }
            Measurement::Keyserver(report) => {
                let cpu = report.server_cpu.as_ref();
                Self {
                    cpu_each: cpu.map(|cpu| cpu.nanoseconds_per_operation),
                    cores: cpu.map(|cpu| cpu.cores),
                    ..Self::new(result, &report.summary, report.load_busy)
                }
            }
            _ => return None,
        };
        Some(load)
    }

    fn new(result: &'r Result, summary: &'r Summary, load_busy: f64) -> Self {
        let (name, errors) = (result.name(), result.errors);
        Self {
            name,
            errors,
            summary,
            load_busy,
            cpu_each: None,
            cpu_per_gigabyte: None,
            cores: None,
            throughput: None,
            agents: None,
        }
    }

    fn is_full(&self) -> bool {
        self.load_busy > LOAD_SATURATED
    }

    fn cells(&self) -> Vec<Cell> {
        let Summary { latency, elapsed_seconds, body_bytes, .. } = self.summary;
        let time = |nanoseconds: f64| match nanoseconds {
            time if time > 0.0 => Cell::Number(show_nanoseconds(time)),
            _ => Cell::Empty,
        };
        let busy = format!("{:.0} %", self.load_busy * 100.0);
        vec![
            Cell::text(shorten(self.name, 60)),
            Cell::number(Some(self.summary.done as f64)),
            Cell::number(Some(self.summary.per_second.0)),
            Cell::number((*elapsed_seconds > 0.0).then(|| *body_bytes as f64 / 1e6 / elapsed_seconds)),
            self.cpu_each.map_or(Cell::Empty, |each| time(each.0)),
            Cell::number(self.cpu_per_gigabyte.filter(|_| *body_bytes >= BULK_BYTES_MIN).map(|each| each.0)),
            Cell::number(self.cores.map(|cores| cores.0)),
            time(latency.p50 as f64),
            time(latency.p99 as f64),
            time(latency.p99_9 as f64),
            time(latency.max as f64),
            if self.is_full() { Cell::Bad(busy) } else { Cell::Number(busy) },
            Cell::errors(self.summary.errors_total()),
        ]
    }
}

const HEAD: [&str; 13] = [
    "result",
    "done",
    "per second",
    "MB/s",
    "CPU each",
    "CPU s/GB",
    "cores",
    "p50",
    "p99",
    "p99.9",
    "max",
    "load",
    "errors",
];

pub fn render(results: &[&Result]) -> String {
    let loads: Vec<Load> = results.iter().filter_map(|result| Load::of(result)).collect();
    if loads.is_empty() {
        return String::new();
    }
    let mut html = table(&HEAD, &loads.iter().map(Load::cells).collect::<Vec<_>>());
    if loads.iter().any(|load| load.is_full()) {
        html.push_str(&note("⚠ in \"load\": the load filled its core, so the rate is its own; the server could do more. CPU for each still holds."));
    }
    html.push_str(&figures(&pictures(&loads)));
    loads.iter().for_each(|load| html.push_str(&agents(load)));
    html
}

fn pictures(loads: &[Load]) -> String {
    let mut drawn = String::new();
    // One bar alone says no more than the table.
    if loads.len() > 1 {
        let named = loads.iter().map(|load| Named { name: load.name.to_owned(), record: load, errors: load.errors });
        let named: Vec<Named<Load>> = named.collect();
        let rate = |load: &Load| Some(load.summary.per_second);
        drawn.push_str(&bars(PerSecond::TITLE, &[("", &rate)], &named));
        drawn.push_str(&bars(GigabytesPerSecond::TITLE, &[("", &|load: &Load| load.throughput)], &named));
        drawn.push_str(&bars(CpuNanoseconds::TITLE, &[("", &|load: &Load| load.cpu_each)], &named));
    }
    let latencies = loads.iter().map(|load| Latency {
        name: load.name.to_owned(),
        summary: &load.summary.latency,
        count: load.summary.done,
        errors: load.errors,
    });
    drawn + &latency::pictures(&latencies.collect::<Vec<_>>())
}

/// Shares of the agents, if the load came from some.
fn agents(load: &Load) -> String {
    let Some(report) = load.agents else { return String::new() };
    let row = |agent: &AgentReport| {
        vec![
            Cell::text(shorten(&agent.address, 60)),
            Cell::Number(format!("{:.0} %", agent.share * 100.0)),
            Cell::number(Some(agent.connections as f64)),
            Cell::number(agent.rate),
            Cell::number(Some(agent.done as f64)),
            Cell::errors(agent.errors),
            agent.lost.as_ref().map_or(Cell::Empty, |lost| Cell::Bad(shorten(lost, 160))),
        ]
    };
    let rows: Vec<Vec<Cell>> = report.agents.iter().map(row).collect();
    let head = ["agent", "share", "connections", "per second", "done", "errors", "lost"];
    let spread = show_nanoseconds(report.start_spread as f64);
    let title = format!("Agents of {}, started within {spread}", shorten(load.name, 80));
    details(&title, &table(&head, &rows))
}

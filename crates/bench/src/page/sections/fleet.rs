//! `fleet`: connections that several engines hold, and what each costs them.

use super::super::chart::{Named, bars};
use super::super::html::{Cell, note, table};
use super::super::latency::{self, Latency};
use super::shared::figures;
use crate::fleet::{EngineReport, FleetReport};

pub fn render(name: &str, report: &FleetReport) -> String {
    let mut html = note(&format!(
        "{} client connections over {} to the server; {} requests answered, {} failed.",
        report.held, report.server_connections, report.requests, report.failures
    ));
    let row = |(index, engine): (usize, &EngineReport)| {
        vec![
            Cell::number(Some(index as f64)),
            Cell::number(Some(engine.connections as f64)),
            Cell::number(Some(engine.kib_per_connection.0)),
            Cell::number(Some(engine.cpu_seconds)),
        ]
    };
    let rows: Vec<Vec<Cell>> = report.engines.iter().enumerate().map(row).collect();
    html.push_str(&table(&["engine", "connections", "KiB RSS for each", "CPU s"], &rows));
    let named = |(index, engine)| Named { name: format!("engine {index}"), record: engine, errors: 0 };
    let engines: Vec<Named<EngineReport>> = report.engines.iter().enumerate().map(named).collect();
    let memory = |engine: &EngineReport| Some(engine.kib_per_connection);
    let mut drawn = bars("Memory for each connection", &[("", &memory)], &engines);
    let latency =
        Latency { name: name.to_owned(), summary: &report.answer, count: report.holding.done, errors: report.failures };
    drawn.push_str(&latency::pictures(&[latency]));
    html + &figures(&drawn)
}

//! `sweep`: bars by suite and key, a bar for each number of workers.

use super::super::bars::{Bar, Bars, Group};
use super::super::html::{Cell, shorten, table};
use super::shared::{figures, lower_bounds, workers};
use crate::quantity::{CpuNanoseconds, PerSecond, Quantity};
use crate::sweep::cells::{self, Row, Samples};
use crate::sweep::table::Sweep;

pub fn render(name: &str, sweep: &Sweep) -> String {
    let mut html = String::new();
    if sweep.rows.iter().flat_map(|row| &row.cells).any(|cell| cell.is_doubtful()) {
        html.push_str(&lower_bounds(name));
    }
    let rate: Value<PerSecond> = |samples| samples.per_second;
    let cpu: Value<CpuNanoseconds> = |samples| samples.cpu_nanoseconds_each;
    let mut drawn = String::new();
    for (what, of) in HANDSHAKES {
        drawn.push_str(&picture(sweep, format!("Rate: {what}"), of, rate));
        drawn.push_str(&picture(sweep, format!("CPU time: {what}"), of, cpu));
    }
    html.push_str(&figures(&drawn));
    html.push_str(&values(sweep));
    html
}

type Value<Q> = fn(&Samples) -> Option<Q>;
type Handshakes = fn(&cells::Cell) -> Option<&Samples>;

const HANDSHAKES: [(&str, Handshakes); 2] =
    [("full handshakes", |cell| Some(&cell.full)), ("resumed handshakes", |cell| cell.resumed.as_ref())];

fn title_of(row: &Row) -> String {
    format!("{} · {} · {}", row.suite, row.version, row.key)
}

fn picture<Q: Quantity>(sweep: &Sweep, title: String, of: Handshakes, value: Value<Q>) -> String {
    let cells = sweep.rows.first().map_or(&[][..], |row| &row.cells);
    let bar = |cell: &cells::Cell| {
        let samples = of(cell)?;
        Some(Bar { value: value(samples)?.drawn(), spread: None, errors: samples.errors })
    };
    let group = |row: &Row| Group { name: title_of(row), bars: row.cells.iter().map(bar).collect() };
    let series = cells.iter().map(|cell| cell.workers.map_or_else(|| "server".to_owned(), workers));
    Bars::new(title, Q::UNIT, series.collect(), sweep.rows.iter().map(group).collect()).render()
}

fn values(sweep: &Sweep) -> String {
    let row = |(row, cell): (&Row, &cells::Cell)| {
        let resumed = cell.resumed.as_ref();
        let rate = |samples: &Samples| samples.per_second.map(|rate| rate.0);
        let cpu = |samples: &Samples| samples.cpu_nanoseconds_each.map(Quantity::drawn);
        vec![
            Cell::text(shorten(&title_of(row), 100)),
            Cell::number(cell.workers.map(|workers| workers as f64)),
            Cell::number(rate(&cell.full)),
            Cell::number(cpu(&cell.full)),
            Cell::number(resumed.and_then(rate)),
            Cell::number(resumed.and_then(cpu)),
            Cell::errors(cell.errors()),
        ]
    };
    let all = sweep.rows.iter().flat_map(|row| row.cells.iter().map(move |cell| (row, cell)));
    let rows: Vec<Vec<Cell>> = all.map(row).collect();
    table(&["suite", "workers", "per second", "CPU µs", "resumed per second", "CPU µs", "errors"], &rows)
}

#[cfg(test)]
mod tests {
    use super::super::super::render_value;
    use serde_json::json;

    #[test]
    fn numbers_of_workers_are_bars_of_one_group() {
        let samples = |rate: f64| {
            json!({"per_second": rate, "cpu_nanoseconds_each": 1e5, "is_lower_bound": false, "shortages": [],
                "errors": 0, "first_error": null, "rounds": []})
        };
        let cell =
            |workers: usize, rate: f64| json!({"workers": workers, "shares_cores": false, "full": samples(rate)});
        let row = json!({"suite": "TLS_A", "version": "1.3", "key": "ec", "cells": [cell(1, 100.0), cell(2, 190.0)]});
        let html = render_value(json!({"command": "sweep", "server": "s", "duration_seconds": 1.0, "rounds": 1,
            "in_flight_per_load_thread": 4, "rows": [row], "refused": []}));
        assert!(html.contains("class=\"bar\"") && html.contains("2 workers") && html.contains("TLS_A · 1.3 · ec"));
    }
}

//! `keyserver --background`: waits for an operation, alone and with another in the background.

use super::super::chart::{Named, bars};
use super::super::html::{Cell, table};
use super::shared::figures;
use crate::keyserver::background::{Medians, Report};
use crate::quantity::{Nanoseconds, Quantity};

pub fn render(report: &Report) -> String {
    let named = |name: String, record| Named { name, record, errors: 0 };
    let both = [
        named(format!("{} alone", report.operation), &report.alone),
        named(format!("{} with {}", report.operation, report.background), &report.with_background),
    ];
    let milliseconds = |nanoseconds: u64| Cell::number(Some(Nanoseconds(nanoseconds as f64).drawn()));
    let row = |named: &Named<Medians>| {
        let [least, most] = named.record.p99_range;
        let values = [named.record.p50, named.record.p99, least, most];
        [Cell::text(named.name.clone())].into_iter().chain(values.map(milliseconds)).collect()
    };
    let rows: Vec<Vec<Cell>> = both.iter().map(row).collect();
    let html = table(&["operation", "p50, ms", "p99, ms", "lowest p99 of a round, ms", "highest, ms"], &rows);
    let p50 = |medians: &Medians| Some(Nanoseconds(medians.p50 as f64));
    let p99 = |medians: &Medians| Some(Nanoseconds(medians.p99 as f64));
    html + &figures(&bars("Wait for an operation, medians of the rounds", &[("p50", &p50), ("p99", &p99)], &both))
}

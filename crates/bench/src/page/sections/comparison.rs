//! `compare`: ratios to the best peer in one picture, absolute values by unit, and a table with both.

use super::super::bars::{Bar, Bars, Group};
use super::super::html::{Cell, escape, note, shorten, show, table};
use super::super::result::{Result, errors_of, number};
use super::{figures, told_errors};
use serde_json::Value;

struct Row<'v> {
    name: &'v str,
    unit: &'v str,
    /// Cells of the row, in the programs' order.
    cells: Vec<Option<&'v Value>>,
}

pub fn render(result: &Result) -> String {
    let programs = programs_of(&result.value);
    let rows = rows_of(&result.value, &programs);
    let mut html = format!("<h3>{}</h3>\n", escape(&shorten(&result.name, 80)));
    html.push_str(&told_errors(result));
    let mut drawn = ratios(&rows, &programs);
    let mut units: Vec<&str> = Vec::new();
    rows.iter().for_each(|row| {
        if !units.contains(&row.unit) {
            units.push(row.unit)
        }
    });
    units.iter().take(6).for_each(|unit| drawn.push_str(&absolutes(&rows, &programs, unit)));
    html.push_str(&figures(&drawn));
    html.push_str(&values(&rows, &programs));
    let rounds = number(&result.value, &["rounds"]).unwrap_or(0.0);
    let seconds = number(&result.value, &["duration_seconds"]).unwrap_or(0.0);
    html.push_str(&note(&format!(
        "Medians of {} rounds of {} s, spread is minimum–maximum. Ratio: to the best program other than propylon; below 1 is \
         cheaper. ⚠: had errors, and is nobody's yardstick. * at a rate: the load was full, the program could do more.",
        show(rounds),
        show(seconds)
    )));
    html
}

fn programs_of(value: &Value) -> Vec<&str> {
    let programs = value["programs"].as_array().into_iter().flatten();
    programs.filter_map(|program| program["name"].as_str().or_else(|| program.as_str())).take(8).collect()
}

fn rows_of<'v>(value: &'v Value, programs: &[&str]) -> Vec<Row<'v>> {
    let rows = value["rows"].as_array().into_iter().flatten();
    let row = |row: &'v Value| {
        let cells = row["cells"].as_array();
        let cell = |program: &&str| cells?.iter().find(|cell| cell["program"] == **program);
        Row {
            name: row["row"].as_str().unwrap_or("?"),
            unit: row["unit"].as_str().unwrap_or(""),
            cells: programs.iter().map(cell).collect(),
        }
    };
    rows.map(row).collect()
}

fn bar_of(cell: &Value, divisor: f64) -> Option<Bar> {
    let value = number(cell, &["median"])? / divisor;
    let spread = number(cell, &["minimum"]).zip(number(cell, &["maximum"]));
    Some(Bar { value, spread: spread.map(|(low, high)| (low / divisor, high / divisor)), errors: errors_of(cell) })
}

/// Ratios of each program to the best peer: rows of different units in one picture.
fn ratios(rows: &[Row], programs: &[&str]) -> String {
    let group = |row: &Row| {
        // The yardstick is written nowhere, but each ratio is a median over it.
        let best = row.cells.iter().flatten().find_map(|cell| {
            let ratio = number(cell, &["ratio_to_best_peer"]).filter(|ratio| *ratio > 0.0)?;
            Some(number(cell, &["median"])? / ratio)
        })?;
        let bars = row.cells.iter().map(|cell| bar_of((*cell)?, best)).collect();
        Some(Group { name: row.name.to_owned(), bars })
    };
    let bars = Bars {
        title: "Cost relative to the best peer".to_owned(),
        note: Some("Dashed: the best peer. Shorter is cheaper; whiskers are minimum and maximum.".to_owned()),
        label: "ratio of CPU time or memory for the same work".to_owned(),
        series: programs.iter().map(|name| (*name).to_owned()).collect(),
        groups: rows.iter().filter_map(group).collect(),
        reference: Some(1.0),
        decimals: Some(2),
    };
    bars.render()
}

fn absolutes(rows: &[Row], programs: &[&str], unit: &str) -> String {
    let rows = rows.iter().filter(|row| row.unit == unit);
    let group = |row: &Row| Group {
        name: row.name.to_owned(),
        bars: row.cells.iter().map(|cell| bar_of((*cell)?, 1.0)).collect(),
    };
    let title = match unit {
        "CPU µs" => "CPU time of a connection or request",
        "CPU s/GB" => "CPU time of a gigabyte",
        "KiB RSS" => "Memory of an idle connection",
        other => other,
    };
    let bars = Bars {
        title: title.to_owned(),
        note: None,
        label: unit.to_owned(),
        series: programs.iter().map(|name| (*name).to_owned()).collect(),
        groups: rows.map(group).collect(),
        reference: None,
        decimals: None,
    };
    bars.render()
}

fn values(rows: &[Row], programs: &[&str]) -> String {
    let mut head = vec!["row".to_owned(), "unit".to_owned()];
    for program in programs {
        head.extend([(*program).to_owned(), "spread".to_owned(), "ratio".to_owned(), "per s".to_owned()]);
    }
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let line = |row: &Row| {
        let mut cells = vec![Cell::text(row.name), Cell::text(row.unit)];
        row.cells.iter().for_each(|cell| cells.extend(cell.map_or_else(|| vec![Cell::Empty; 4], columns)));
        cells
    };
    table(&head, &rows.iter().map(line).collect::<Vec<_>>())
}

fn columns(cell: &Value) -> Vec<Cell> {
    let median = number(cell, &["median"]);
    let median = match errors_of(cell) {
        0 => Cell::number(median),
        errors => Cell::Bad(format!("{} ({errors} errors)", median.map_or("–".to_owned(), show))),
    };
    let spread = number(cell, &["minimum"]).zip(number(cell, &["maximum"]));
    let spread = spread.map_or(Cell::Empty, |(low, high)| Cell::Number(format!("{}–{}", show(low), show(high))));
    let ratio = number(cell, &["ratio_to_best_peer"]);
    let star = if cell["load_saturated"] == true { "*" } else { "" };
    let rate =
        number(cell, &["per_second"]).map_or(Cell::Empty, |rate| Cell::Number(format!("{}{star}", show(rate.round()))));
    vec![median, spread, ratio.map_or(Cell::Empty, |ratio| Cell::Number(format!("{ratio:.2}×"))), rate]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_comparison_has_ratios_with_spread_and_marks_errors() {
        let value = json!({"command": "compare", "rounds": 3, "duration_seconds": 3.0,
            "programs": [{"name": "propylon", "version": "p 1"}, {"name": "haproxy", "version": "h 2"}],
            "rows": [{"row": "ec13", "unit": "CPU µs", "cells": [
                {"program": "propylon", "median": 100.0, "minimum": 90.0, "maximum": 120.0, "ratio_to_best_peer": 0.5,
                 "per_second": 9000.0, "load_saturated": true, "errors": 0},
                {"program": "haproxy", "median": 200.0, "minimum": 190.0, "maximum": 230.0, "ratio_to_best_peer": 1.0, "errors": 0}]},
              {"row": "idle", "unit": "KiB RSS", "cells": [{"program": "propylon", "median": 3.0, "errors": 7}]}]});
        let html = render(&Result::new("r".into(), value).unwrap());
        assert!(html.contains("0.50×") && html.contains("0.45–0.6") | html.contains("0.450–0.600"), "{html}");
        assert!(html.contains("(7 errors)") && html.contains("9\u{202f}000*") && html.contains("class=\"reference\""));
    }
}

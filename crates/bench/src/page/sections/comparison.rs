//! `compare`: ratios to the best peer in one picture, absolute values by unit, and a table with both.

use super::super::bars::{Bar, Bars, Group};
use super::super::html::{self, note, show, table};
use super::shared::figures;
use crate::compare::rows::Unit;
use crate::compare::verdict::{Cell, RowSummary, Verdict};

/// Programs that are drawn.
const PROGRAMS_MAX: usize = 8;

pub fn render(verdict: &Verdict) -> String {
    let units = [Unit::Microseconds, Unit::SecondsPerGigabyte, Unit::Kibibytes];
    let drawn: String = units.into_iter().map(|unit| absolutes(verdict, unit)).collect();
    let mut html = figures(&(ratios(verdict) + &drawn));
    html.push_str(&values(verdict));
    html.push_str(&note(&format!(
        "Medians of {} rounds of {} s, spread is minimum–maximum. Ratio: to the best program other than propylon; below 1 is \
         cheaper. ⚠: had errors, and is nobody's yardstick. * at a rate: the load was full, the program could do more.",
        verdict.rounds,
        show(verdict.duration_seconds)
    )));
    html
}

fn bar_of(cell: &Cell, divisor: f64) -> Option<Bar> {
    let spread = cell.minimum.zip(cell.maximum).map(|(low, high)| (low / divisor, high / divisor));
    Some(Bar { value: cell.median? / divisor, spread, errors: cell.errors })
}

fn picture(verdict: &Verdict, title: &str, label: &str, groups: Vec<Group>) -> Bars {
    let series = verdict.programs.iter().take(PROGRAMS_MAX).map(|program| program.name.to_string());
    Bars::new(title, label, series.collect(), groups)
}

/// Ratios of each program to the best peer: rows of different units in one picture.
fn ratios(verdict: &Verdict) -> String {
    let group = |row: &RowSummary| {
        // The yardstick is written nowhere, but each ratio is a median over it.
        let best = row.cells.iter().find_map(|cell| {
            let ratio = cell.ratio_to_best_peer.filter(|ratio| *ratio > 0.0)?;
            Some(cell.median? / ratio)
        })?;
        let bars = row.cells.iter().take(PROGRAMS_MAX).map(|cell| bar_of(cell, best)).collect();
        Some(Group { name: row.row.clone(), bars })
    };
    let groups = verdict.rows.iter().filter_map(group).collect();
    let label = "ratio of CPU time or memory for the same work";
    Bars {
        note: Some("Dashed: the best peer. Shorter is cheaper; whiskers are minimum and maximum.".to_owned()),
        reference: Some(1.0),
        decimals: Some(2),
        ..picture(verdict, "Cost relative to the best peer", label, groups)
    }
    .render()
}

fn absolutes(verdict: &Verdict, unit: Unit) -> String {
    let group = |row: &RowSummary| Group {
        name: row.row.clone(),
        bars: row.cells.iter().take(PROGRAMS_MAX).map(|cell| bar_of(cell, 1.0)).collect(),
    };
    let title = match unit {
        Unit::Microseconds => "CPU time of a connection or request",
        Unit::SecondsPerGigabyte => "CPU time of a gigabyte",
        Unit::Kibibytes => "Memory of an idle connection",
    };
    let groups = verdict.rows.iter().filter(|row| row.unit == unit).map(group).collect();
    picture(verdict, title, unit.name(), groups).render()
}

fn values(verdict: &Verdict) -> String {
    let mut head = vec!["row".to_owned(), "unit".to_owned()];
    for program in verdict.programs.iter().take(PROGRAMS_MAX) {
        head.extend([program.name.to_string(), "spread".to_owned(), "ratio".to_owned(), "per s".to_owned()]);
    }
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let line = |row: &RowSummary| {
        let mut cells = vec![html::Cell::text(row.row.clone()), html::Cell::text(row.unit.name())];
        row.cells.iter().take(PROGRAMS_MAX).for_each(|cell| cells.extend(columns(cell)));
        cells
    };
    table(&head, &verdict.rows.iter().map(line).collect::<Vec<_>>())
}

fn columns(cell: &Cell) -> [html::Cell; 4] {
    let number = |text: String| html::Cell::Number(text);
    let median = match cell.errors {
        0 => html::Cell::number(cell.median),
        errors => html::Cell::Bad(format!("{} ({errors} errors)", cell.median.map_or("–".to_owned(), show))),
    };
    let spread = cell.minimum.zip(cell.maximum).map(|(low, high)| format!("{}–{}", show(low), show(high)));
    let star = if cell.load_saturated { "*" } else { "" };
    let rate = (cell.per_second > 0.0).then(|| format!("{}{star}", show(cell.per_second.round())));
    [
        median,
        spread.map_or(html::Cell::Empty, number),
        cell.ratio_to_best_peer.map_or(html::Cell::Empty, |ratio| number(format!("{ratio:.2}×"))),
        rate.map_or(html::Cell::Empty, number),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::super::render_value;
    use crate::results::tests::{comparison, with};
    use serde_json::json;

    #[test]
    fn a_comparison_has_ratios_with_spread_and_marks_errors() {
        let mut value = comparison(&[
            ("ec13", "CPU µs", "propylon", 100.0, 0),
            ("ec13", "CPU µs", "haproxy", 200.0, 0),
            ("idle", "KiB RSS", "propylon", 3.0, 7),
        ]);
        let program = |name: &str| json!({"name": name, "version": "1", "path": "p"});
        value["programs"] = json!([program("propylon"), program("haproxy")]);
        let cell = &mut value["rows"][0]["cells"][0];
        *cell = with(
            cell,
            json!({"minimum": 90.0, "maximum": 120.0, "ratio_to_best_peer": 0.5, "per_second": 9000.0,
            "load_saturated": true}),
        );
        let html = render_value(value);
        assert!(html.contains("0.50×") && html.contains("0.450–0.600"), "{html}");
        assert!(html.contains("(7 errors)") && html.contains("9\u{202f}000*") && html.contains("class=\"reference\""));
    }
}

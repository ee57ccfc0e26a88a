//! `plan`: the answer, then the steps that led to it.

use super::super::html::{Cell, escape, note, shorten, table, warning};
use super::super::measure::readable;
use super::super::result::Result;
use serde_json::Value;

pub fn render(result: &Result) -> String {
    let value = &result.value;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| -> Vec<Value> { value.as_array().cloned().unwrap_or_default() };
    let mut html = format!("<h3>{}</h3>\n", escape(&shorten(&result.name, 80)));
    if value["feasible"] == false {
        html.push_str(&warning(&format!("Infeasible: {}", text(&value["refusal"]["why"]))));
        for remedy in list(&value["refusal"]["remedies"]) {
            html.push_str(&note(&format!("Feasible with: {}", text(&remedy))));
        }
    }
    let facts = |part: &Value| -> Vec<Vec<Cell>> {
        let rows = super::all_fields(part);
        // Words and numbers are mixed here, so all are to the left.
        let to_text = |(column, cell): (usize, Cell)| match cell {
            Cell::Text(name) if column == 0 => Cell::Text(readable(&name)),
            Cell::Number(number) => Cell::Text(number),
            other => other,
        };
        let readable_name = |cells: Vec<Cell>| cells.into_iter().enumerate().map(to_text).collect();
        let is_there = |cells: &Vec<Cell>| !matches!(cells.last(), Some(Cell::Empty));
        rows.into_iter().filter(is_there).map(readable_name).collect()
    };
    if value["answer"].is_object() {
        html.push_str(&table(&["answer", "value"], &facts(&value["answer"])));
    }
    html.push_str(&table(&["demand", "value"], &facts(&value["demand"])));
    let step = |step: &Value| {
        vec![
            Cell::text(text(&step["what"])),
            Cell::text(text(&step["formula"])),
            Cell::number(step["value"].as_f64()),
            Cell::text(text(&step["unit"])),
        ]
    };
    let steps: Vec<Vec<Cell>> = list(&value["steps"]).iter().map(step).collect();
    html.push_str(&table(&["step", "arithmetic", "result", "unit"], &steps));
    let figure = |pair: &Value| {
        let (name, figure) = (text(&pair[0]), &pair[1]);
        vec![
            Cell::text(readable(&name.replace('-', " "))),
            Cell::number(figure["value"].as_f64()),
            Cell::text(text(&figure["source"])),
        ]
    };
    let figures: Vec<Vec<Cell>> = list(&value["figures"]).iter().map(figure).collect();
    html.push_str(&table(&["figure", "value", "source"], &figures));
    list(&value["assumptions"])
        .iter()
        .for_each(|line| html.push_str(&note(&format!("Taken for granted: {}", text(line)))));
    html
}

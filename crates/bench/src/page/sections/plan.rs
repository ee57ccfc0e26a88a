//! `plan`: the answer, then the steps that led to it.

use super::super::html::{Cell, note, table, warning};
use super::shared::{all_fields, readable};
use crate::plan::Plan;
use serde::Serialize;

pub fn render(plan: &Plan) -> String {
    let mut html = String::new();
    if let Some(refusal) = &plan.refusal {
        html.push_str(&warning(&format!("Infeasible: {}", refusal.why)));
        refusal.remedies.iter().for_each(|remedy| html.push_str(&note(&format!("Feasible with: {remedy}"))));
    }
    if let Some(answer) = &plan.answer {
        html.push_str(&table(&["answer", "value"], &facts(answer)));
    }
    html.push_str(&table(&["requirements", "value"], &facts(&plan.requirements)));
    let steps = plan.steps.iter().map(|step| {
        vec![
            Cell::text(step.what.clone()),
            Cell::text(step.formula.clone()),
            Cell::number(Some(step.value)),
            Cell::text(step.unit.to_string()),
        ]
    });
    html.push_str(&table(&["step", "arithmetic", "result", "unit"], &steps.collect::<Vec<_>>()));
    let figures = plan.figures.iter().map(|(kind, figure)| {
        let [name, value] = kind.show(figure.value);
        vec![Cell::text(name), Cell::text(value), Cell::text(figure.source.clone())]
    });
    html.push_str(&table(&["figure", "value", "source"], &figures.collect::<Vec<_>>()));
    plan.assumptions.iter().for_each(|line| html.push_str(&note(&format!("Taken for granted: {line}"))));
    html
}

/// Fields that have a value, by their names. Words and numbers are mixed here, so all are to the left.
fn facts(part: &impl Serialize) -> Vec<Vec<Cell>> {
    let rows = all_fields(&serde_json::to_value(part).unwrap_or_default());
    let to_text = |(column, cell): (usize, Cell)| match cell {
        Cell::Text(name) if column == 0 => Cell::Text(readable(&name)),
        Cell::Number(number) => Cell::Text(number),
        other => other,
    };
    let is_there = |cells: &Vec<Cell>| !matches!(cells.last(), Some(Cell::Empty));
    rows.into_iter().filter(is_there).map(|cells| cells.into_iter().enumerate().map(to_text).collect()).collect()
}

//! ClientProcesses that several sections have.

use super::super::html::{Cell, shorten, warning};
use serde_json::Value;

pub fn figures(pictures: &str) -> String {
    if pictures.is_empty() { String::new() } else { format!("<div class=\"figures\">\n{pictures}</div>\n") }
}

/// A rate that the load or shared cores held down must not be read as the server's.
pub fn lower_bounds(name: &str) -> String {
    warning(&format!(
        "{}: some rates are lower bounds, since the load was full or shared cores with the server; \
         do not read scaling from them. CPU time for each still holds.",
        shorten(name, 80)
    ))
}

pub fn workers(count: usize) -> String {
    if count == 1 { "1 worker".to_owned() } else { format!("{count} workers") }
}

/// A field's name as words: `engine_cores` reads "engine cores".
pub fn readable(name: &str) -> String {
    name.replace('.', ", ").replace('_', " ")
}

/// Every leaf of a value with its path, in the order of the file.
pub fn all_fields(value: &Value) -> Vec<Vec<Cell>> {
    let mut rows = Vec::new();
    walk(value, String::new(), &mut rows);
    rows
}

fn walk(value: &Value, path: String, rows: &mut Vec<Vec<Cell>>) {
    const FIELDS_MAX: usize = 2000;
    if rows.len() >= FIELDS_MAX {
        return;
    }
    let cell = match value {
        Value::Object(fields) => {
            let join = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            return fields.iter().for_each(|(name, field)| walk(field, shorten(&join(name), 200), rows));
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            return items.for_each(|(index, item)| walk(item, format!("{path}[{index}]"), rows));
        }
        Value::Number(number) => Cell::number(number.as_f64()),
        Value::String(text) => Cell::text(shorten(text, 2000)),
        Value::Bool(is) => Cell::text(if *is { "yes" } else { "no" }),
        Value::Null => Cell::Empty,
    };
    rows.push(vec![Cell::Text(path), cell]);
}

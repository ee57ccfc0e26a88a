//! Values of `/status.json`: one that is missing is nothing, 0 or an empty text.

use serde_json::Value;

pub const SECONDS_PER_DAY: f64 = 86_400.0;

pub fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// Without what would act on a terminal.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().chars().filter(|one| !one.is_control()).collect()
}

//! One JSON result, as far as it can be understood without knowing which version of which command wrote it.

use crate::failure::{Failure, Outcome, While};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Largest size of one file, in bytes; results are some kilobytes, with time series some megabytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

pub struct Result {
    /// The file's name without folder and ending.
    pub name: String,
    /// Empty if it does not say.
    pub command: String,
    pub value: Value,
    pub errors: u64,
    pub first_error: Option<String>,
}

impl Result {
    /// Reads a result. serde_json refuses nesting beyond 128 levels, NaN, and numbers beyond the range of a double,
    /// with line and column.
    pub fn read(path: &Path) -> Outcome<Self> {
        let shown = path.display();
        let metadata = fs::metadata(path).when(format_args!("reading {shown}"))?;
        if !metadata.is_file() {
            return Err(Failure::new(format!("{shown} is not a file")));
        }
        if metadata.len() > FILE_BYTES_MAX {
            let megabytes = metadata.len() >> 20;
            return Err(Failure::new(format!(
                "{shown}: {megabytes} MiB; a result has at most {}",
                FILE_BYTES_MAX >> 20
            )));
        }
        let bytes = fs::read(path).when(format_args!("reading {shown}"))?;
        let value: Value = serde_json::from_slice(&bytes).when(format_args!("{shown} is not valid JSON"))?;
        let name = path.file_stem().map_or_else(|| shown.to_string(), |stem| stem.to_string_lossy().into_owned());
        Self::new(name, value).map_err(|failure| Failure::new(format!("{shown}: {failure}")))
    }

    pub fn new(name: String, value: Value) -> Outcome<Self> {
        if !value.is_object() {
            return Err(Failure::new("a result is a JSON object; write one with --json FILE"));
        }
        // Results of `compare` did not always say what they are.
        let is_comparison = value["rows"].is_array() && value["programs"].is_array();
        let command = match value["command"].as_str() {
            Some(command) => command.to_owned(),
            None if is_comparison => "compare".to_owned(),
            None => String::new(),
        };
        let (mut errors, mut first_error) = (0, None);
        count_errors(&value, &mut errors, &mut first_error);
        Ok(Self { name, command, value, errors, first_error })
    }

    pub fn provenance(&self, field: &str) -> Option<&str> {
        self.value["provenance"][field].as_str()
    }

    /// As it can be typed again.
    pub fn command_line(&self) -> Option<String> {
        let words = self.value["provenance"]["command_line"].as_array()?;
        let words: Vec<String> = words.iter().filter_map(Value::as_str).map(quote).collect();
        (!words.is_empty()).then(|| words.join(" "))
    }
}

/// For a shell, if it needs quotes at all.
fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=@%+[]".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// A number at a path of field names.
pub fn number(value: &Value, path: &[&str]) -> Option<f64> {
    path.iter().try_fold(value, |value, name| value.get(name))?.as_f64()
}

/// `errors` is a count in some results and counts by kind in others; `failures` is what they are called elsewhere.
pub fn errors_of(value: &Value) -> u64 {
    match value.get("errors").unwrap_or(&value["failures"]) {
        Value::Object(kinds) => kinds.values().filter_map(Value::as_u64).fold(0, u64::saturating_add),
        Value::Array(list) => list.len() as u64,
        count => count.as_u64().unwrap_or(0),
    }
}

/// Counts errors. If a part sums up its own parts, the sum counts and not they again. Depth is limited by the parser.
fn count_errors(value: &Value, errors: &mut u64, first: &mut Option<String>) {
    let own = if value.is_object() { errors_of(value) } else { 0 };
    if first.is_none() {
        *first = value["first_error"].as_str().map(str::to_owned);
    }
    if own > 0 {
        *errors = errors.saturating_add(own);
        return;
    }
    match value {
        Value::Object(fields) => {
            // Trials of a search and steps of an offload may fail: that is how they find the limit.
            let parts = fields.iter().filter(|(name, _)| !matches!(name.as_str(), "trials" | "steps" | "provenance"));
            parts.for_each(|(_, part)| count_errors(part, errors, first));
        }
        Value::Array(parts) => parts.iter().for_each(|part| count_errors(part, errors, first)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_are_found_wherever_they_are_and_counted_once() {
        let value = json!({"rows": [{"cells": [
            {"errors": 3, "first_error": "tls: no", "samples": [{"errors": 3}]}, {"errors": 0}]}], "programs": []});
        let result = Result::new("x".into(), value).unwrap();
        assert_eq!((result.errors, result.command.as_str()), (3, "compare"));
        assert_eq!(result.first_error.as_deref(), Some("tls: no"));
        let by_kind = Result::new("y".into(), json!({"errors": {"tls": 2, "reset": 1}})).unwrap();
        assert_eq!((by_kind.errors, by_kind.command.as_str()), (3, ""));
    }

    #[test]
    fn hostile_files_get_a_clear_error() {
        let scratch = crate::scratch::ScratchDir::new().unwrap();
        let path = scratch.path().join("r.json");
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        for (text, part) in [
            (deep.as_str(), "recursion"),
            ("{\"a\": NaN}", "line 1"),
            ("{\"a\": 1e999}", "range"),
            ("[]", "object"),
            ("\u{0}", "JSON"),
        ] {
            fs::write(&path, text).unwrap();
            let failure = Result::read(&path).err().map(|failure| failure.to_string()).unwrap_or_default();
            assert!(failure.contains(part) && failure.contains("r.json"), "{part}: {failure}");
        }
        fs::File::create(&path).unwrap().set_len(FILE_BYTES_MAX + 1).unwrap();
        assert!(Result::read(&path).is_err());
        assert!(Result::read(scratch.path()).is_err());
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        let value = json!({"provenance": {"command_line": ["bench", "--header", "A: b'c"]}});
        assert_eq!(Result::new("x".into(), value).unwrap().command_line().unwrap(), "bench --header 'A: b'\\''c'");
    }
}

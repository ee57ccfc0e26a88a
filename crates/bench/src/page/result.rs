//! A result on the page: what was measured, as the type that its command has for it.

use crate::failure::Outcome;
use crate::plan::Plan;
use crate::results::{Measurement, ResultFile};
use std::path::Path;

pub struct Result {
    pub file: ResultFile,
    pub body: Body,
    pub errors: u64,
    pub first_error: Option<String>,
}

pub enum Body {
    Measured(Measurement),
    Plan(Plan),
    /// Result of a command that has no figures here: a table of its values.
    Other,
}

impl Result {
    pub fn read(path: &Path) -> Outcome<Self> {
        Self::new(ResultFile::read(path)?)
    }

    pub fn new(file: ResultFile) -> Outcome<Self> {
        let body = match file.measurement()? {
            Some(measurement) => Body::Measured(measurement),
            None if file.command == "plan" => Body::Plan(file.parse()?),
            None => Body::Other,
        };
        let (errors, first_error) = match &body {
            Body::Measured(measurement) => measurement.errors(),
            _ => (0, None),
        };
        let first_error = first_error.map(str::to_owned);
        Ok(Self { file, body, errors, first_error })
    }

    pub fn name(&self) -> &str {
        &self.file.name
    }

    pub fn command(&self) -> &str {
        &self.file.command
    }

    /// The command line, as it can be typed again.
    pub fn command_line(&self) -> Option<String> {
        let words = &self.file.provenance.as_ref()?.command_line;
        let words: Vec<String> = words.iter().map(|word| quote(word)).collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_command_line_can_be_typed_again() {
        let provenance = json!({"command_line": ["bench", "--header", "X: it's"], "version": "1", "build": "release",
            "finished": "", "cpu": "", "cores": 1, "memory_kib": 1, "kernel": ""});
        let file = ResultFile::new("x".into(), json!({"provenance": provenance})).unwrap();
        let line = Result::new(file).unwrap().command_line();
        assert_eq!(line.as_deref(), Some("bench --header 'X: it'\\''s'"));
    }
}

//! A metric of a limit, a drop, a refusal or a failure has its row in its process's table of conditions, and each row its line
//! in the manual: else something is wrong, is counted, and nobody hears of it.

use std::path::Path;

use super::finding::{Finding, line_of};

/// Folders whose metrics are compared, by process, and the table with which they are.
const PROCESSES: [(&[&str], &str); 2] = [
    (
        &["crates/observe/src", "crates/net/src", "crates/proxy/src", "crates/control/src"],
        "crates/observe/src/conditions/table.rs",
    ),
    (&["crates/keyserver/src"], "crates/keyserver/src/conditions.rs"),
];
const MANUAL: &str = "docs/manual.md";
/// Parts of names, between underscores, by which such a metric is known.
const WORDS: [&str; 32] = [
    "abandoned",
    "bad",
    "cancelled",
    "closed",
    "crowded",
    "denied",
    "dropped",
    "ejected",
    "ejections",
    "errors",
    "evicted",
    "exceeded",
    "expired",
    "exhausted",
    "failed",
    "failures",
    "faults",
    "floods",
    "full",
    "late",
    "lost",
    "overflow",
    "panic",
    "panics",
    "passed",
    "paused",
    "pauses",
    "refused",
    "rejected",
    "stuck",
    "timeouts",
    "unavailable",
];
/// What rows of the table begin with.
const ROWS: [&str; 3] = ["rises(", "above(", "below("];

/// The texts that are compared.
#[derive(Default)]
pub struct Conditions {
    /// By process: file, line and name.
    metrics: [Vec<(std::path::PathBuf, usize, String)>; 2],
    tables: [Option<String>; 2],
    manual: String,
}

impl Conditions {
    pub fn read(&mut self, file: &Path, text: &str) {
        if file == Path::new(MANUAL) {
            text.clone_into(&mut self.manual);
        }
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for (process, (folders, table)) in PROCESSES.iter().enumerate() {
            if file == Path::new(table) {
                self.tables[process] = Some(code.to_owned());
            } else if folders.iter().any(|folder| file.starts_with(folder)) && !is_test(file) {
                let metrics = literals(code).filter(|(_, name)| is_metric(name) && is_about_trouble(name));
                self.metrics[process].extend(metrics.map(|(line, name)| (file.to_owned(), line, name.to_owned())));
            }
        }
    }

    pub fn check(&self) -> Vec<Finding> {
        (0..PROCESSES.len()).flat_map(|process| self.check_one(process)).collect()
    }

    fn check_one(&self, process: usize) -> Vec<Finding> {
        let (_, path) = PROCESSES[process];
        let Some(table) = &self.tables[process] else {
            return vec![Finding::error(Path::new(path), 1, "the table of conditions is missing")];
        };
        let known: Vec<&str> = literals(table).map(|(_, text)| text).filter(|text| is_metric(text)).collect();
        let missing = self.metrics[process].iter().filter(|(_, _, name)| !known.contains(&name.as_str()));
        let missing = missing.map(|(file, line, name)| {
            let what = format!("{name} has no row in {path}: say when it is a condition, or in NO_CONDITION why never");
            Finding::error(file, *line, what)
        });
        let untold = names(table).into_iter().filter(|(_, name)| !self.manual.contains(&format!("`{name}`")));
        let untold = untold.map(|(line, name)| {
            Finding::error(Path::new(path), line, format!("`{name}` is not in the manual's table of what is wrong"))
        });
        missing.chain(untold).collect()
    }
}

pub fn is_test(file: &Path) -> bool {
    file.components().any(|part| part.as_os_str() == "tests") || file.ends_with("tests.rs")
}

pub fn is_metric(text: &str) -> bool {
    text.strip_prefix("propylon_")
        .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'))
}

fn is_about_trouble(name: &str) -> bool {
    name.split('_').any(|part| WORDS.contains(&part))
}

/// String literals on one line, with their lines. Escapes do not matter here.
pub fn literals(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .flat_map(|(line, text)| text.split('"').skip(1).step_by(2).map(move |each| (line + 1, each)))
}

/// The first literal of each row.
fn names(table: &str) -> Vec<(usize, String)> {
    let mut names = Vec::new();
    for row in ROWS {
        for (at, _) in table.match_indices(row) {
            let rest = &table[at + row.len()..];
            if let Some(name) = rest.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next()) {
                names.push((line_of(table, at), name.to_owned()));
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(engine: &str, table: &str, manual: &str) -> Vec<String> {
        let mut conditions = Conditions::default();
        for (folders, path) in PROCESSES {
            conditions.read(&Path::new(folders[0]).join("telemetry.rs"), engine);
            conditions.read(Path::new(path), table);
        }
        conditions.read(Path::new(MANUAL), manual);
        conditions.check().iter().map(|finding| finding.what.clone()).collect()
    }

    #[test]
    fn a_metric_of_a_refusal_needs_a_row_or_a_reason() {
        let engine =
            "r.counter(\n\"propylon_queue_refused_total\", \"Refused.\", &[]);\nr.gauge(\"propylon_open\", \"\", &[]);";
        let row = "rises(\n    \"queue\",\n    \"propylon_queue_refused_total\",\n)";
        let found = findings(engine, "", "");
        let is_told = |what: &String| what.starts_with("propylon_queue_refused_total has no row");
        assert!(found.len() == 2 && found.iter().all(is_told), "{found:?}");
        assert!(findings(engine, row, "| `queue` | ... |").is_empty());
        assert!(findings(engine, "(\"propylon_queue_refused_total\", \"never\")", "").is_empty());
    }

    #[test]
    fn a_row_that_the_manual_does_not_have_is_found() {
        let found = findings("", "above(\"paused\", \"propylon_paused\", 0)", "nothing");
        assert_eq!(found, ["`paused` is not in the manual's table of what is wrong"; 2], "of each process");
    }
}

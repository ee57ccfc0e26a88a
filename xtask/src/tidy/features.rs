//! The table of features names a test in each row, and the test is there.

use std::collections::BTreeSet;
use std::path::Path;

use super::finding::Finding;
use super::lexer::Source;

const FEATURES: &str = "docs/features.md";
/// The heading of the column with the tests.
const COLUMN: &str = "shown by";

#[derive(Default)]
pub struct Features {
    text: String,
    functions: BTreeSet<String>,
}

impl Features {
    pub fn read_document(&mut self, file: &Path, text: &str) {
        if file == Path::new(FEATURES) {
            text.clone_into(&mut self.text);
        }
    }

    pub fn read(&mut self, source: &Source<'_>) {
        let named = source.text.lines().filter_map(|line| line.trim_start().strip_prefix("fn "));
        self.functions.extend(named.filter_map(|rest| rest.split(['(', '<']).next()).map(str::to_owned));
    }

    pub fn check(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut is_table = false;
        for (index, line) in self.text.lines().enumerate() {
            let error = |what: String| Finding::error(Path::new(FEATURES), index + 1, what);
            let Some(row) = line.strip_prefix('|') else {
                is_table = false;
                continue;
            };
            let last = row.trim_end().trim_end_matches('|').rsplit('|').next().unwrap_or_default().trim();
            if last == COLUMN {
                is_table = true;
            } else if is_table && !last.starts_with("---") {
                let tests: Vec<&str> = last.split('`').skip(1).step_by(2).collect();
                if tests.is_empty() {
                    findings.push(error("the row names no test that shows it".to_owned()));
                }
                let unknown = tests.into_iter().filter(|test| !self.functions.contains(*test));
                findings.extend(unknown.map(|test| error(format!("there is no test `{test}`"))));
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(table: &str) -> Vec<String> {
        let mut features = Features::default();
        features.read(&Source::of("#[test]\nfn it_works() {}\n#[tokio::test]\nasync fn other() {}\n"));
        features.read_document(Path::new(FEATURES), table);
        features.check().into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn each_row_names_tests_that_are_there() {
        let head = "| feature | shown by |\n|---|---|\n";
        assert_eq!(found(&format!("{head}| `x` | `it_works` |\n\n| no | table |\n")), [""; 0]);
        assert_eq!(found(&format!("{head}| x | |\n")), ["docs/features.md:3: the row names no test that shows it"]);
        assert_eq!(found(&format!("{head}| x | `gone` |\n")), ["docs/features.md:3: there is no test `gone`"]);
    }
}

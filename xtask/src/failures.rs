//! Which tests failed, read from what cargo prints of a run that goes on after failures, and how to run each alone.

use std::fmt::Write as _;

/// The failed tests of one run of `cargo test --no-fail-fast`.
#[derive(Default)]
pub struct Failures {
    /// One entry for each test binary with failed tests, in the order of the run.
    binaries: Vec<Binary>,
    /// The binary that runs now, as cargo names it: `tests/limits.rs`.
    running: String,
    /// Cargo's selectors of the binaries that failed, in the order of the run: `-p propylon-e2e --test limits`.
    selectors: Vec<String>,
}

struct Binary {
    name: String,
    tests: Vec<String>,
}

impl Failures {
    pub fn read(&mut self, line: &str) {
        let trimmed = line.trim_start();
        if let Some(rest) = trimmed.strip_prefix("Running ").filter(|rest| rest.ends_with(')')) {
            rest.split(" (").next().unwrap_or(rest).clone_into(&mut self.running);
        } else if let Some(rest) = trimmed.strip_prefix("Doc-tests ") {
            self.running = format!("doc-tests of {rest}");
        } else if let Some(test) = line.strip_prefix("test ").and_then(|rest| rest.strip_suffix(" ... FAILED")) {
            self.failed(test);
        } else if let Some(selector) = trimmed.strip_prefix("`-p ").and_then(|rest| rest.strip_suffix('`')) {
            self.selectors.push(format!("-p {selector}"));
        }
    }

    fn failed(&mut self, test: &str) {
        match self.binaries.last_mut().filter(|binary| binary.name == self.running) {
            Some(binary) => binary.tests.push(test.to_owned()),
            None => self.binaries.push(Binary { name: self.running.clone(), tests: vec![test.to_owned()] }),
        }
    }

    /// Empty if nothing failed. `arguments` are those of the run: features of it are needed again.
    pub fn summary(&self, arguments: &[&str]) -> String {
        let mut text = String::new();
        let features: String =
            arguments.iter().filter(|argument| argument.starts_with("--features")).map(|f| format!(" {f}")).collect();
        // A binary that dies names no failed test, and then the two lists cannot be told apart line by line.
        let paired = self.selectors.len() == self.binaries.len();
        for (index, binary) in self.binaries.iter().enumerate() {
            for test in &binary.tests {
                let _ = write!(text, "FAILED: {test} of {}", binary.name);
                if let Some(selector) = self.selectors.get(index).filter(|_| paired) {
                    // A doc-test's name has spaces and a line number, so it is chosen by its file alone.
                    let (test, exact) = match test.split_once(" - ") {
                        Some((file, _)) => (file, ""),
                        None => (test.as_str(), " --exact"),
                    };
                    let _ = write!(text, "; alone: cargo test{features} {selector} -- {test}{exact}");
                }
                text.push('\n');
            }
        }
        if !paired {
            self.selectors.iter().for_each(|selector| {
                let _ = writeln!(text, "FAILED: cargo test{features} {selector}");
            });
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Failures {
        let mut failures = Failures::default();
        text.lines().for_each(|line| failures.read(line));
        failures
    }

    #[test]
    fn each_failed_test_is_named_with_the_command_that_runs_it_alone() {
        let failures = read(
            "     Running unittests src/lib.rs (target/debug/deps/propylon_policy-1)\n\
             test gate::tests::a_turn ... ok\n\
             test gate::tests::another ... FAILED\n\
             \x20    Running tests/limits.rs (target/debug/deps/limits-2)\n\
             test first ... FAILED\ntest second ... FAILED\n\
             error: 2 targets failed:\n    `-p propylon-policy --lib`\n    `-p propylon-e2e --test limits`\n",
        );
        assert_eq!(
            failures.summary(&["test"]),
            "FAILED: gate::tests::another of unittests src/lib.rs; alone: cargo test -p propylon-policy --lib -- gate::tests::another --exact\n\
             FAILED: first of tests/limits.rs; alone: cargo test -p propylon-e2e --test limits -- first --exact\n\
             FAILED: second of tests/limits.rs; alone: cargo test -p propylon-e2e --test limits -- second --exact\n"
        );
    }

    #[test]
    fn a_binary_that_died_is_named_although_no_test_of_it_is() {
        let failures = read(
            "     Running tests/a.rs (target/debug/deps/a-1)\n\
             \x20    Running tests/b.rs (target/debug/deps/b-1)\ntest first ... FAILED\n\
             error: 2 targets failed:\n    `-p x --test a`\n    `-p x --test b`\n",
        );
        let summary = failures.summary(&["test", "--features=pkcs11"]);
        assert!(summary.contains("FAILED: first of tests/b.rs\n"), "{summary}");
        assert!(summary.contains("FAILED: cargo test --features=pkcs11 -p x --test a\n"), "{summary}");
    }

    #[test]
    fn a_run_without_failures_has_no_summary() {
        assert_eq!(read("     Running tests/a.rs (target/debug/deps/a-1)\ntest first ... ok\n").summary(&[]), "");
    }
}

//! The rules of the source files.

use std::path::Path;

use super::arrows::allows_unsafe;
use super::finding::Finding;
use super::lexer::{Separated, Source, lines_with_word};

const LINES_MAX: usize = 1_000;
/// How far above its block a SAFETY sentence may begin.
const SAFETY_LINES_MAX: usize = 8;

pub fn check(file: &Path, source: &Source<'_>) -> Vec<Finding> {
    let mut findings = leftovers(file, &source.separated);
    findings.extend(unsafe_code(file, &source.separated));
    let lines = source.text.lines().count();
    if lines > LINES_MAX {
        findings.push(Finding::note(file, LINES_MAX + 1, format!("{lines} lines: a noun may be missing")));
    }
    findings
}

fn leftovers(file: &Path, source: &Separated) -> Vec<Finding> {
    let in_comments = ["TODO", "FIXME", "XXX"].map(|word| (word, source.comments.as_str()));
    let in_code = ["dbg!", "todo!", "unimplemented!"].map(|word| (word, source.code.as_str()));
    in_comments
        .into_iter()
        .chain(in_code)
        .flat_map(|(word, text)| lines_with_word(text, word).map(move |line| (word, line)))
        .map(|(word, line)| Finding::error(file, line, format!("{word} must not stay")))
        .collect()
}

fn unsafe_code(file: &Path, source: &Separated) -> Vec<Finding> {
    let lines = lines_with_word(&source.code, "unsafe");
    if !allows_unsafe(file) {
        return lines.map(|line| Finding::error(file, line, "unsafe code lives in sys and lanes only")).collect();
    }
    let comments: Vec<&str> = source.comments.lines().collect();
    let has_sentence = |line: usize| {
        let above = &comments[line.saturating_sub(SAFETY_LINES_MAX + 1)..line];
        above.iter().any(|comment| comment.contains("SAFETY:") || comment.contains("# Safety"))
    };
    lines
        .filter(|line| !has_sentence(*line))
        .map(|line| Finding::error(file, line, "unsafe code without a SAFETY: sentence above it"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(file: &str, text: &str) -> Vec<String> {
        check(Path::new(file), &Source::of(text)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn leftovers_are_found_in_comments_and_code_and_not_in_strings() {
        let text = "let a = \"TODO dbg!(1)\";\n// TODO later\ndbg!(a);\nlet todo = 1;\n// dbg!(a) is a macro\n";
        assert_eq!(
            findings("crates/tls/src/lib.rs", text),
            ["crates/tls/src/lib.rs:2: TODO must not stay", "crates/tls/src/lib.rs:3: dbg! must not stay"]
        );
    }

    #[test]
    fn unsafe_code_is_found_outside_its_rooms() {
        let text = "// unsafe\nlet a = \"unsafe\";\n#![forbid(unsafe_code)]\nunsafe { b() }\n";
        assert_eq!(
            findings("crates/tls/src/lib.rs", text),
            ["crates/tls/src/lib.rs:4: unsafe code lives in sys and lanes only"]
        );
    }

    #[test]
    fn unsafe_code_in_its_rooms_needs_its_sentence() {
        assert_eq!(findings("crates/sys/src/lib.rs", "// SAFETY: it is.\nunsafe { b() }\n"), Vec::<String>::new());
        assert_eq!(
            findings("crates/sys/src/lib.rs", "unsafe { b() }\n// SAFETY: too late.\n"),
            ["crates/sys/src/lib.rs:1: unsafe code without a SAFETY: sentence above it"]
        );
    }

    #[test]
    fn a_long_file_is_only_a_note() {
        let found = check(Path::new("xtask/src/main.rs"), &Source::of(&"\n".repeat(1_001)));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].severity, crate::tidy::finding::Severity::Note);
    }
}

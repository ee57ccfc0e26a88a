//! The figures by which a rebuilt house is compared with the one before, as one table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use super::lexer::Source;
use super::tokens::{tokens, without_tests};

/// Lines of a crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// All of its Rust, tests, comments and empty lines included.
    pub all: usize,
    /// Those with code that is no test.
    pub source: usize,
}

/// One line of the table.
#[derive(Debug, Default)]
pub struct Row {
    pub lines: Lines,
    /// Modules and lines of the largest circle, of files and of rooms.
    pub file_circle: (usize, usize),
    pub room_circle: (usize, usize),
    /// Arrows between files, and those of them that run back.
    pub arrows: usize,
    pub back_arrows: usize,
    pub long_functions: usize,
    pub functions_of_many_parameters: usize,
    pub pronouns: usize,
}

pub fn lines(file: &Path, source: &Source<'_>) -> Lines {
    let all = source.text.lines().count();
    let is_test =
        file.ends_with("tests.rs") || !file.iter().any(|part| part == "src") || file.iter().any(|part| part == "tests");
    if is_test {
        return Lines { all, source: 0 };
    }
    let tokens = tokens(&source.separated.code);
    let (code, _) = without_tests(&tokens);
    // A literal over several lines counts by its first and last.
    let with_code: BTreeSet<usize> = code.iter().map(|token| token.line).collect();
    Lines { all, source: with_code.len() }
}

/// The table, with a last line for all crates; of circles that is the largest.
pub fn table(rows: &BTreeMap<String, Row>, engine_packages: &Result<usize, String>) -> String {
    let mut text = String::from(
        "crate       source    all  file circle    room circle    arrows  back  >70 lines  >5 parameters  pronouns\n",
    );
    let mut total = Row::default();
    for (name, row) in rows {
        tell(&mut text, name, row);
        total.lines.all += row.lines.all;
        total.lines.source += row.lines.source;
        total.file_circle = total.file_circle.max(row.file_circle);
        total.room_circle = total.room_circle.max(row.room_circle);
        total.arrows += row.arrows;
        total.back_arrows += row.back_arrows;
        total.long_functions += row.long_functions;
        total.functions_of_many_parameters += row.functions_of_many_parameters;
        total.pronouns += row.pronouns;
    }
    tell(&mut text, "all", &total);
    let packages = match engine_packages {
        Ok(count) => count.to_string(),
        Err(error) => error.clone(),
    };
    let _ = writeln!(text, "\npackages in the engine, its own crates among them: {packages}");
    text += "source: lines with code, without tests, comments and empty lines; all: every line of Rust of the crate\n";
    text += "circles: modules/lines with tests left out; back: arrows between files without which there is no circle\n";
    text
}

fn tell(text: &mut String, name: &str, row: &Row) {
    let circle = |(modules, lines): (usize, usize)| format!("{modules}/{lines}");
    let _ = writeln!(
        text,
        "{name:10} {:>7} {:>6}  {:>11}  {:>13}  {:>8} {:>5} {:>10} {:>14} {:>9}",
        row.lines.source,
        row.lines.all,
        circle(row.file_circle),
        circle(row.room_circle),
        row.arrows,
        row.back_arrows,
        row.long_functions,
        row.functions_of_many_parameters,
        row.pronouns,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_lines_are_those_with_code_that_is_no_test() {
        let text =
            "//! Why.\n\nfn a() {\n    // b\n    c(\"// d\");\n}\n\n#[cfg(test)]\nmod tests {\n    fn e() {}\n}\n";
        let count = |file: &str| lines(Path::new(file), &Source::of(text));
        assert_eq!(count("crates/x/src/a.rs"), Lines { all: 11, source: 3 });
        for test in ["crates/x/src/a/tests.rs", "crates/x/tests/a.rs", "crates/x/src/tests/a.rs"] {
            assert_eq!(count(test), Lines { all: 11, source: 0 }, "{test}");
        }
    }

    #[test]
    fn the_last_line_has_sums_and_the_largest_circle() {
        let row = |source, circle| Row { lines: Lines { all: 9, source }, file_circle: circle, ..Row::default() };
        let rows = [("a".to_owned(), row(3, (2, 7))), ("b".to_owned(), row(4, (3, 5)))].into();
        let text = table(&rows, &Ok(8));
        let all = text.lines().find(|line| line.starts_with("all")).expect("a last line");
        assert_eq!(all.split_whitespace().take(4).collect::<Vec<_>>(), ["all", "7", "18", "3/5"]);
        assert!(text.contains("among them: 8\n"));
    }
}

//! Problems of a configuration: what is wrong, where, and what to do about it; printed for people and for machines.

use std::fmt::Write;

use serde_json::json;

use crate::model::At;
use crate::provenance::{Named, PUSHED, PUSHED_JSON};
use crate::text::Lines;

/// Whether a configuration with this problem can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// The configuration can be used, but is probably not what was meant.
    Warning,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Whether the configuration can be used in spite of it.
    pub severity: Severity,
    /// The file as the user named it, or [`PUSHED`] or [`PUSHED_JSON`].
    pub file: String,
    /// Position in the file. Absent: the file as a whole, or it could not be read.
    pub at: Option<At>,
    /// Description of the fault.
    pub what: String,
    /// Remedy.
    pub fix: String,
}

impl Problem {
    /// A problem that makes the configuration unusable.
    pub fn error(
        file: &(impl Named + ?Sized),
        at: Option<At>,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Problem {
        let (file, at) = file.placed(at.and_then(At::known));
        Problem { severity: Severity::Error, file, at, what: what.into(), fix: fix.into() }
    }

    /// A problem that the configuration can be used with.
    pub fn warning(
        file: &(impl Named + ?Sized),
        at: Option<At>,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Problem {
        Problem { severity: Severity::Warning, ..Problem::error(file, at, what, fix) }
    }

    /// `FILE:LINE:COLUMN: WHAT; FIX` whatever its severity, for a log, whose lines have a level of their own.
    pub fn unmarked(&self) -> impl std::fmt::Display + '_ {
        Unmarked(self)
    }
}

struct Unmarked<'p>(&'p Problem);

impl std::fmt::Display for Unmarked<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.write(out, "")
    }
}

/// `FILE:LINE:COLUMN: WHAT; FIX`, without control characters; what was pushed is no file, and its place is in words.
impl std::fmt::Display for Problem {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.write(out, if self.severity == Severity::Warning { " warning:" } else { "" })
    }
}

impl Problem {
    fn write(&self, out: &mut std::fmt::Formatter<'_>, mark: &str) -> std::fmt::Result {
        write!(out, "{}", escaped(&self.file))?;
        match self.at {
            // Nobody has a file to open at that place.
            Some(at) if [PUSHED, PUSHED_JSON].contains(&&*self.file) => {
                write!(out, ", line {}, column {}:", at.line, at.column)?;
            }
            Some(at) => write!(out, ":{}:{}:", at.line, at.column)?,
            None => out.write_str(":")?,
        }
        write!(out, "{mark} {}; {}", escaped(&self.what), escaped(&self.fix))
    }
}

impl std::error::Error for Problem {}

/// Characters of a source line that are shown; a longer line is cut to a window around the problem.
const WINDOW: usize = 100;
/// Characters of the window that come before the problem.
const WINDOW_BEFORE: usize = 30;
const TAB: &str = "    ";

/// How lines of PEM end that say where a private key begins, and where it ends.
const PRIVATE_KEY: &str = "PRIVATE KEY-----";
/// How the first line of something in PEM begins.
const PEM: &str = "-----BEGIN ";

/// PEM in a text that is no configuration, which may be a key: nothing of it is to be repeated.
pub(crate) fn of_pem(file: &str, text: &str) -> Option<Problem> {
    let is_pem =
        text.contains(PRIVATE_KEY) || without_mark(text).lines().any(|line| line.trim_start().starts_with(PEM));
    is_pem.then(|| {
        let what = "this has a key or a certificate in it, in PEM, and is no configuration";
        let fix = "give the path of the configuration, which names files of keys and certificates by their paths";
        Problem::error(file, None, what, fix)
    })
}

/// Each problem as `FILE:LINE:COLUMN: WHAT; FIX` (`warning: ` before WHAT where it is one), then the source line,
/// then carets below the characters meant. `text` is the text of the file that the problems are about. Of one with a
/// private key in it no line is shown.
pub fn render(problems: &[Problem], text: &str) -> String {
    let lines = Lines::new(without_mark(text));
    let is_secret = text.contains(PRIVATE_KEY);
    let mut out = String::new();
    for problem in problems {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{problem}");
        if let Some(at) = problem.at.filter(|_| !is_secret) {
            excerpt(&mut out, &lines, at);
        }
    }
    out
}

fn excerpt(out: &mut String, lines: &Lines<'_>, at: At) {
    let (line, column) = (at.line as usize, (at.column as usize).max(1));
    let total = lines.length(line);
    let first = if total > WINDOW { column.saturating_sub(WINDOW_BEFORE).max(1) } else { 1 };
    let part = lines.part(line, first, WINDOW);
    let cut_before = if first > 1 { "…" } else { "" };
    let cut_after = if first + WINDOW <= total { "…" } else { "" };
    let mut source = String::from(cut_before);
    let mut carets = " ".repeat(cut_before.chars().count());
    let end = column + (at.length as usize).max(1);
    let mut shown = first;
    for character in part.chars() {
        let before = source.chars().count();
        push_harmless(&mut source, character);
        let mark = if (column..end).contains(&shown) { "^" } else { " " };
        carets.push_str(&mark.repeat(source.chars().count() - before));
        shown += 1;
    }
    if column >= shown {
        carets.push_str(&" ".repeat((column - shown).min(WINDOW)));
        carets.push('^');
    }
    let number = at.line.to_string();
    let gutter = " ".repeat(number.len());
    let _ = writeln!(out, "  {number} | {source}{cut_after}");
    let _ = writeln!(out, "  {gutter} | {}", carets.trim_end());
}

/// Appends a character so that a terminal shows it and does nothing else.
fn push_harmless(out: &mut String, character: char) {
    match character {
        '\t' => out.push_str(TAB),
        '\0'..='\x1f' => out.push(char::from_u32(0x2400 + character as u32).unwrap_or('\u{fffd}')),
        '\x7f' => out.push('\u{2421}'),
        _ if acts_on_terminal(character) => out.push('\u{fffd}'),
        _ => out.push(character),
    }
}

/// Control characters, and those that reorder or hide the text around them.
pub(crate) fn acts_on_terminal(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
}

/// The text with everything that acts on a terminal written as an escape.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if acts_on_terminal(character) {
            out.extend(character.escape_unicode());
        } else {
            out.push(character);
        }
    }
    out
}

/// An array of objects with `file`, `line`, `column`, `length`, `severity`, `what` and `fix`; the three numbers are
/// null where a problem has no position.
pub fn to_json(problems: &[Problem]) -> String {
    let list: Vec<_> = problems
        .iter()
        .map(|problem| {
            json!({
                "file": problem.file,
                "line": problem.at.map(|at| at.line),
                "column": problem.at.map(|at| at.column),
                "length": problem.at.map(|at| at.length),
                "severity": match problem.severity {
                    Severity::Error => "error",
                    Severity::Warning => "warning",
                },
                "what": problem.what,
                "fix": problem.fix,
            })
        })
        .collect();
    serde_json::Value::Array(list).to_string()
}

/// The text without a byte order mark, which is no part of any line.
pub(crate) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(line: u32, column: u32, length: u32) -> Option<At> {
        Some(At { line, column, length })
    }

    #[test]
    fn a_problem_is_printed_with_its_line_and_a_caret_under_each_character() {
        let text = "[[route]]\nhost = \"a\"\nbackend = \"apii\"\n";
        let problem =
            Problem::error("propylon.toml", at(3, 11, 6), "no backend named \"apii\"", "did you mean \"api\"?");
        assert_eq!(
            render(&[problem], text),
            "propylon.toml:3:11: no backend named \"apii\"; did you mean \"api\"?\n  \
               3 | backend = \"apii\"\n    \
                 |           ^^^^^^\n"
        );
    }

    #[test]
    fn of_a_text_with_a_private_key_no_line_is_shown() {
        let secret = "MC4CAQAwBQYDK2VwBCIEIA";
        for label in ["PRIVATE KEY", "RSA PRIVATE KEY", "ENCRYPTED PRIVATE KEY"] {
            let text = format!("x = 1\n-----BEGIN {label}-----\n{secret}\n-----END {label}-----\n");
            let out = render(&[Problem::error("a", at(3, 1, 22), "w", "f")], &text);
            assert_eq!(out, "a:3:1: w; f\n");
        }
    }

    #[test]
    fn warnings_say_so_and_problems_without_a_position_have_no_excerpt() {
        let problems = [
            Problem::warning("a.toml", at(1, 1, 1), "w", "do"),
            Problem::error("a.toml", None, "no such file", "check"),
        ];
        assert_eq!(
            render(&problems, "x\n"),
            "a.toml:1:1: warning: w; do\n  1 | x\n    | ^\na.toml: no such file; check\n"
        );
    }

    #[test]
    fn what_was_pushed_is_no_file() {
        for (name, at, expected) in [
            (PUSHED, at(3, 4, 1), "the pushed configuration, line 3, column 4: w; f"),
            (PUSHED_JSON, at(1, 2, 1), "the pushed JSON configuration, line 1, column 2: w; f"),
            (PUSHED, None, "the pushed configuration: w; f"),
        ] {
            assert_eq!(Problem::error(name, at, "w", "f").to_string(), expected);
        }
    }

    #[test]
    fn tabs_are_widened_in_the_line_and_below_it() {
        let problem = Problem::error("a.toml", at(1, 4, 2), "w", "f");
        assert_eq!(render(&[problem], "\ta\tbc"), "a.toml:1:4: w; f\n  1 |     a    bc\n    |          ^^\n");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let problem = Problem::error("a\x1b.toml", at(1, 3, 1), "w\x1b[2J", "f\u{202e}");
        let out = render(&[problem], "a\x1b[31m\u{9b}\u{202e}\0b");
        assert_eq!(
            out,
            "a\\u{1b}.toml:1:3: w\\u{1b}[2J; f\\u{202e}\n  1 | a\u{241b}[31m\u{fffd}\u{fffd}\u{2400}b\n    |   ^\n"
        );
    }

    #[test]
    fn a_long_line_is_cut_to_a_window_around_the_problem() {
        let text = format!("{}HERE{}", "a".repeat(500), "b".repeat(500));
        let out = render(&[Problem::error("a", at(1, 501, 4), "w", "f")], &text);
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[1], format!("  1 | …{}HERE{}…", "a".repeat(30), "b".repeat(66)));
        assert_eq!(lines[2], format!("    | {}^^^^", " ".repeat(31)));
    }

    #[test]
    fn positions_outside_of_the_text_are_harmless() {
        assert_eq!(render(&[Problem::error("a", at(0, 0, 0), "w", "f")], "x\n"), "a: w; f\n", "written nowhere");
        for (line, column) in [(1, 0), (1, 7), (9, 9), (u32::MAX, u32::MAX)] {
            let out = render(&[Problem::error("a", at(line, column, u32::MAX), "w", "f")], "x\n");
            assert_eq!(out.lines().count(), 3);
            assert!(out.len() < 500);
        }
    }

    #[test]
    fn machines_get_every_field() {
        let problems = [Problem::warning("a.toml", at(3, 4, 5), "w\"", "f"), Problem::error("a.toml", None, "x", "y")];
        assert_eq!(
            to_json(&problems),
            "[{\"column\":4,\"file\":\"a.toml\",\"fix\":\"f\",\"length\":5,\"line\":3,\"severity\":\"warning\",\"what\":\"w\\\"\"},\
             {\"column\":null,\"file\":\"a.toml\",\"fix\":\"y\",\"length\":null,\"line\":null,\"severity\":\"error\",\"what\":\"x\"}]"
        );
    }
}

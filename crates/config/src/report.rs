//! Collection of problems while a configuration is walked.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use crate::describe::Recorder;
use crate::environment::Substituted;
use crate::model::At;
use crate::problem::{Problem, Severity};
use crate::provenance::Provenance;
use crate::read::{Fault, Reading};
use crate::text::{Lines, Span};

/// Problems that are kept; of the rest only the number is told.
const PROBLEMS_MAX: usize = 1000;
/// Comparisons of names that are made for all "did you mean" of a file together. Without a limit, thousands of wrong
/// names among thousands of right ones would take minutes.
const COMPARISONS_MAX: usize = 50_000;

/// The problems found so far, and what is needed to judge whether one is worth telling.
#[derive(Debug)]
pub(crate) struct Report<'t> {
    file: &'t Provenance,
    lines: &'t Lines<'t>,
    problems: RefCell<Vec<Problem>>,
    left_out: Cell<usize>,
    errors: Cell<usize>,
    comparisons: Cell<usize>,
    /// Lines that a syntax error made unreliable, in order and apart.
    damage: Vec<Range<u32>>,
    /// Strings in which variables were put, with their places.
    substituted: Vec<(At, &'t Substituted)>,
    /// Recorder of what is asked for, while the schema is described.
    recorder: Option<Recorder>,
}

impl<'t> Report<'t> {
    pub fn new(file: &'t Provenance, lines: &'t Lines<'t>, reading: &'t Reading<'_>) -> Report<'t> {
        let report = Report {
            file,
            lines,
            problems: RefCell::new(Vec::new()),
            left_out: Cell::new(0),
            errors: Cell::new(0),
            comparisons: Cell::new(0),
            damage: damage(lines, &reading.faults),
            substituted: reading.substituted.iter().map(|each| (lines.at(each.span), each)).collect(),
            recorder: None,
        };
        for fault in &reading.faults {
            let at = fault.span.map(|span| lines.at(span));
            report.keep(Problem::error(file, at, &fault.what, &fault.fix));
        }
        report
    }

    /// Report of a schema that is described; its problems are of no use.
    pub fn describing(
        file: &'t Provenance,
        lines: &'t Lines<'t>,
        nothing: &'t Reading<'_>,
        recorder: Recorder,
    ) -> Report<'t> {
        Report { recorder: Some(recorder), ..Report::new(file, lines, nothing) }
    }

    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    pub fn into_recorder(self) -> Option<Recorder> {
        self.recorder
    }

    pub fn error(&self, span: Span, what: impl Into<String>, fix: impl Into<String>) {
        self.error_at(self.at(span), what, fix);
    }

    pub fn error_at(&self, at: At, what: impl Into<String>, fix: impl Into<String>) {
        self.push(Problem::error(self.file, Some(at), what, fix), at);
    }

    pub fn warning(&self, span: Span, what: impl Into<String>, fix: impl Into<String>) {
        self.warning_at(self.at(span), what, fix);
    }

    pub fn warning_at(&self, at: At, what: impl Into<String>, fix: impl Into<String>) {
        self.push(Problem::warning(self.file, Some(at), what, fix), at);
    }

    /// Refuses what is valid and will have its effect later.
    pub fn unsupported(&self, span: Span, key: &str, alternative: &str) {
        let fix = if alternative.is_empty() { "remove it".to_string() } else { format!("remove it, {alternative}") };
        self.error(span, format!("`{key}` is not supported yet"), fix);
    }

    /// Whether the whole text could be read. If not, nothing may be said about what is absent from it.
    pub fn is_whole(&self) -> bool {
        self.damage.is_empty()
    }

    pub fn is_blank(&self) -> bool {
        self.lines.text().trim().is_empty()
    }

    pub fn errors(&self) -> usize {
        self.errors.get()
    }

    pub fn at(&self, span: Span) -> At {
        self.lines.at(span)
    }

    /// `line 3`, or `sites/shop.toml, line 3` where that is in an included file.
    pub fn line(&self, span: Span) -> String {
        self.line_at(self.at(span))
    }

    pub fn line_at(&self, at: At) -> String {
        self.file.line(at.line)
    }

    pub fn provenance(&self) -> &Provenance {
        self.file
    }

    /// Whether variables were put in the string at this place, which may then stand for a number.
    pub fn is_substituted(&self, span: Span) -> bool {
        self.substituted.iter().any(|(_, each)| each.span == span)
    }

    /// The text as written.
    pub fn written(&self, span: Span) -> &'t str {
        self.lines.text().get(span.start..span.end).unwrap_or_default()
    }

    /// The candidate that is most likely meant.
    pub fn closest<'c>(&self, name: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
        const NAME_BYTES_MAX: usize = 64;
        const PREFIX_BYTES_MIN: usize = 3;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return None;
        }
        // Case and the marks between words are what people get wrong first.
        let plain = |name: &str| name.to_ascii_lowercase().replace(['-', '_'], "");
        let written = name;
        let name = plain(name);
        let mut best: Option<(usize, &str)> = None;
        for candidate in candidates.into_iter().filter(|candidate| candidate.len() <= NAME_BYTES_MAX) {
            let made = self.comparisons.get();
            if made >= COMPARISONS_MAX {
                break;
            }
            self.comparisons.set(made + 1);
            let other = plain(candidate);
            let as_many_words = words(written).count() == words(candidate).count();
            // `host` begins `hostname`, and is not what is meant by `host_header`.
            let begins = other.starts_with(&name) || as_many_words && name.starts_with(&other);
            let distance = match begins && name.len().min(other.len()) >= PREFIX_BYTES_MIN {
                true => 1,
                false => strsim::osa_distance(&name, &other),
            };
            // A writer of `response_headers` has not mistyped `request_headers`.
            let has_other_words = as_many_words && !words(written).zip(words(candidate)).all(is_typo_of);
            let is_near = distance <= typos_max(&name, &other) && distance < other.len() && !has_other_words;
            if is_near && best.is_none_or(|(least, _)| distance < least) {
                best = Some((distance, candidate));
            }
        }
        best.map(|(_, candidate)| candidate)
    }

    /// All problems, in the order of their positions.
    pub fn finish(self) -> Vec<Problem> {
        let mut problems = self.problems.into_inner();
        let place = |problem: &Problem| (self.file.rank(&problem.file), problem.at.map(|at| (at.line, at.column)));
        problems.sort_by_key(|problem| (place(problem), problem.severity));
        if self.left_out.get() > 0 {
            let what = format!("{} more problems are not shown", self.left_out.get());
            problems.push(Problem::error(self.file, None, what, "correct these first"));
        }
        problems
    }

    fn push(&self, mut problem: Problem, at: At) {
        let is_in = |place: At| {
            place.line == at.line && (place.column..place.column.saturating_add(place.length)).contains(&at.column)
        };
        // Nothing else is to be said of a string whose variable could not be had.
        if self.substituted.iter().any(|(place, each)| each.whole.is_none() && is_in(*place)) {
            return;
        }
        for (place, each) in &self.substituted {
            let mut message = (problem.what, problem.fix);
            each.mask(&mut message, is_in(*place));
            (problem.what, problem.fix) = message;
        }
        let index = self.damage.partition_point(|damage| damage.start <= at.line);
        if index.checked_sub(1).is_none_or(|index| at.line >= self.damage[index].end) {
            self.keep(problem);
        }
    }

    fn keep(&self, problem: Problem) {
        if problem.severity == Severity::Error {
            self.errors.set(self.errors.get() + 1);
        }
        let mut problems = self.problems.borrow_mut();
        if problems.len() < PROBLEMS_MAX {
            problems.push(problem);
        } else if problem.severity == Severity::Error {
            self.left_out.set(self.left_out.get() + 1);
        }
    }
}

/// From the first line of each damage to the `[header]` after its last: keys there may have been lost, or be in the
/// wrong section.
fn damage(lines: &Lines<'_>, faults: &[Fault]) -> Vec<Range<u32>> {
    let line_at = |offset| lines.at(Span::new(offset, offset)).line;
    let mut parts: Vec<(u32, u32)> =
        faults.iter().filter_map(|fault| fault.damage).map(|span| (line_at(span.start), line_at(span.end))).collect();
    parts.sort_unstable();
    let mut damage: Vec<Range<u32>> = Vec::new();
    for (first, last) in parts {
        if damage.last().is_some_and(|known| last < known.end) {
            continue;
        }
        let rest = lines.text()[lines.start_of(last as usize)..].split('\n').skip(1);
        let length = rest.take_while(|line| !line.trim_start().starts_with('[')).count();
        let end = last.saturating_add(1 + u32::try_from(length).unwrap_or(u32::MAX));
        match damage.last_mut() {
            Some(known) if first < known.end => known.end = end,
            _ => damage.push(first..end),
        }
    }
    damage
}

fn words(name: &str) -> impl Iterator<Item = &str> {
    name.split(['-', '_'])
}

/// Letters that may be wrong in one name for the other.
fn typos_max(one: &str, other: &str) -> usize {
    (one.len().max(other.len()) / 3).max(1)
}

fn is_typo_of((one, other): (&str, &str)) -> bool {
    let (one, other) = (one.to_ascii_lowercase(), other.to_ascii_lowercase());
    one.starts_with(&other) || other.starts_with(&one) || strsim::osa_distance(&one, &other) <= typos_max(&one, &other)
}

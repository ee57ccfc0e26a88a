//! Typed access to the tree: a section is asked for its keys one after the other, reports what is not as it should
//! be, and knows in the end which keys nobody asked for.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::json;

use crate::describe::{Form, Table, TableId};
use crate::foreign;
use crate::report::Report;
use crate::text::Span;
use crate::tree::{Entry, Node, Value};
use crate::units;
use crate::wording::{one_of, shown};

/// A value that is as it should be, and where it was written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<T> {
    pub value: T,
    pub span: Span,
}

/// A table on its way to become a type.
pub(crate) struct Section<'r, 't> {
    pub report: &'r Report<'t>,
    /// As messages call it: `[listener.web]`, `limits`.
    pub title: String,
    /// Position at which the section is named.
    pub span: Span,
    entries: &'r [Entry<'t>],
    known: Vec<&'static str>,
    /// Which of the recorder's tables it is, while the schema is described.
    table: TableId,
}

/// A section of a kind of which there can be many: `[backend.NAME]`.
pub(crate) struct Named<'r, 't> {
    pub name: &'r str,
    /// Position at which the name is written.
    pub span: Span,
    pub section: Section<'r, 't>,
}

impl<'r, 't> Section<'r, 't> {
    pub fn root(report: &'r Report<'t>, entries: &'r [Entry<'t>]) -> Section<'r, 't> {
        Section { report, title: String::new(), span: Span::default(), entries, known: Vec::new(), table: 0 }
    }

    /// A table in a list, or one that a key holds; `None`, and a problem, if it is none.
    pub fn of(report: &'r Report<'t>, node: &'r Node<'t>, title: &str, span: Span) -> Option<Section<'r, 't>> {
        match &node.value {
            Value::Table(entries) => {
                let table = node.span.start;
                Some(Section { report, title: title.to_string(), span, entries, known: Vec::new(), table })
            }
            _ => mismatch(report, title, "a table", node),
        }
    }

    /// The entry of a key, as it is. What its forms are is said by whoever reads the value.
    pub fn entry(&mut self, key: &'static str) -> Option<&'r Entry<'t>> {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        self.describe(|table| _ = table.key(key));
        self.entries.iter().find(|entry| entry.key == key)
    }

    pub fn node(&mut self, key: &'static str) -> Option<&'r Node<'t>> {
        self.entry(key).map(|entry| &entry.node)
    }

    /// The entry of a key whose value has one of these forms, as it is.
    pub fn forms(&mut self, key: &'static str, forms: &[Form<'_>]) -> Option<&'r Entry<'t>> {
        if let Some(recorder) = self.report.recorder() {
            recorder.record(self.table, key, forms);
        }
        self.entry(key)
    }

    /// Notes something about the table while the schema is described, and does nothing otherwise.
    fn describe(&self, note: impl FnOnce(&mut Table)) {
        if let Some(recorder) = self.report.recorder() {
            recorder.change(self.table, note);
        }
    }

    /// Whether the schema is only being described: every key is to be asked for then, and the answer is of no use.
    pub fn is_described(&self) -> bool {
        self.report.recorder().is_some()
    }

    /// Says which value stands in for an absent key, for readers that do not say it by themselves.
    pub fn default_is(&self, key: &'static str, default: impl FnOnce() -> serde_json::Value) {
        self.describe(|table| table.key(key).default = Some(default()));
    }

    pub fn string(&mut self, key: &'static str) -> Option<Found<&'r str>> {
        let node = &self.forms(key, &[Form::String])?.node;
        string(self.report, key, node)
    }

    pub fn boolean(&mut self, key: &'static str) -> Option<Found<bool>> {
        let node = &self.forms(key, &[Form::Boolean])?.node;
        match &node.value {
            Value::Boolean(value) => Some(Found { value: *value, span: node.span }),
            Value::String(text) if (text == "true" || text == "false") && self.report.is_substituted(node.span) => {
                Some(Found { value: text == "true", span: node.span })
            }
            _ => mismatch(self.report, key, "a boolean", node),
        }
    }

    pub fn boolean_or(&mut self, key: &'static str, default: bool) -> bool {
        let found = self.boolean(key);
        self.default_is(key, || default.into());
        found.map_or(default, |found| found.value)
    }

    pub fn integer<T: TryFrom<i128>>(&mut self, key: &'static str, range: RangeInclusive<i128>) -> Option<Found<T>> {
        let node = &self.forms(key, &[Form::Integer(range.clone())])?.node;
        integer(self.report, key, node, range)
    }

    pub fn integer_or<T>(&mut self, key: &'static str, range: RangeInclusive<i128>, default: T) -> T
    where
        T: TryFrom<i128> + TryInto<u64> + Copy,
    {
        let found = self.integer(key, range);
        self.default_is(key, || default.try_into().ok().map_or(serde_json::Value::Null, |number: u64| json!(number)));
        found.map_or(default, |found| found.value)
    }

    pub fn duration(&mut self, key: &'static str, range: RangeInclusive<Duration>) -> Option<Found<Duration>> {
        let node = &self.forms(key, &[Form::Duration])?.node;
        let text = match &node.value {
            Value::String(text) => text,
            Value::Integer(number) => {
                let what = format!("`{key}` has no unit");
                self.report.error(node.span, what, format!("write \"{number}s\" or \"{number}ms\""));
                return None;
            }
            _ => return mismatch(self.report, key, "a duration such as \"30s\"", node),
        };
        match units::duration(text) {
            Ok(value) => within(self.report, key, Found { value, span: node.span }, range, units::write_duration),
            Err(fix) => {
                let what = format!("`{key}`: \"{}\" is not a duration", shown(text));
                self.report.error(node.span, what, fix);
                None
            }
        }
    }

    pub fn duration_or(&mut self, key: &'static str, range: RangeInclusive<Duration>, default: Duration) -> Duration {
        let found = self.duration(key, range);
        self.default_is(key, || json!(units::duration_text(&default)));
        found.map_or(default, |found| found.value)
    }

    /// A part of something, in percent.
    pub fn share(&mut self, key: &'static str) -> Option<Found<units::Share>> {
        let node = &self.forms(key, &[Form::Share])?.node;
        let written = match &node.value {
            Value::String(text) => text.to_string(),
            Value::Integer(number) => number.to_string(),
            _ => return mismatch(self.report, key, "a share such as \"20%\"", node),
        };
        match units::share(&written) {
            Ok(value) => Some(Found { value, span: node.span }),
            Err(fix) => {
                let what = format!("`{key}`: \"{}\" is not a share", shown(&written));
                self.report.error(node.span, what, fix);
                None
            }
        }
    }

    /// A number of bytes.
    pub fn size(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<Found<u64>> {
        let node = &self.forms(key, &[Form::Size(range.clone())])?.node;
        let value = match &node.value {
            Value::Integer(number) if *number < 0 => {
                let what = format!("`{key}` is too small");
                self.report.error(node.span, what, format!("use {} or more", units::write_size(range.start())));
                return None;
            }
            Value::Integer(number) => u64::try_from(*number).unwrap_or(u64::MAX),
            Value::String(_) if let Some(number) = number_of(self.report, node) => {
                u64::try_from(number).unwrap_or(u64::MAX)
            }
            Value::String(text) => match units::size(text) {
                Ok(value) => value,
                Err(fix) => {
                    let what = format!("`{key}`: \"{}\" is not a size", shown(text));
                    self.report.error(node.span, what, fix);
                    return None;
                }
            },
            _ => return mismatch(self.report, key, "a size such as \"16KiB\"", node),
        };
        within(self.report, key, Found { value, span: node.span }, range, units::write_size)
    }

    pub fn size_or(&mut self, key: &'static str, range: RangeInclusive<u64>, default: u64) -> u64 {
        let found = self.size(key, range);
        self.default_is(key, || default.into());
        found.map_or(default, |found| found.value)
    }

    pub fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&'static str, T)]) -> Option<Found<T>> {
        let node = &self.forms(key, &[Form::Words(&words(choices))])?.node;
        choice(self.report, key, node, choices)
    }

    pub fn choice_or<T>(&mut self, key: &'static str, choices: &[(&'static str, T)], default: T) -> T
    where
        T: Copy + PartialEq,
    {
        let found = self.choice(key, choices);
        self.default_is(key, || choices.iter().find(|(_, value)| *value == default).map(|(word, _)| *word).into());
        found.map_or(default, |found| found.value)
    }

    /// An array of items, each in one of these forms.
    pub fn list(&mut self, key: &'static str, items: &[Form<'_>]) -> Option<Found<&'r [Node<'t>]>> {
        let node = &self.forms(key, &[Form::List(items)])?.node;
        match &node.value {
            Value::Array(items) => Some(Found { value: items, span: node.span }),
            _ => mismatch(self.report, key, "an array", node),
        }
    }

    pub fn table(&mut self, key: &'static str) -> Option<Section<'r, 't>> {
        let entry = self.forms(key, &[Form::Table])?;
        Section::of(self.report, &entry.node, &format!("`{key}`"), entry.key_span)
    }

    /// A key that is known and cannot be had: said with `alternative`.
    pub fn unsupported(&mut self, key: &'static str, alternative: &str) {
        let entry = self.entry(key);
        self.describe(|table| table.key(key).is_refused = true);
        if let Some(entry) = entry {
            self.report.unsupported(entry.key_span, key, alternative);
        }
    }

    /// Says that a key is only understood for files that were written for earlier versions.
    pub fn is_former(&self, key: &'static str) {
        self.describe(|table| table.key(key).is_former = true);
    }

    /// Says which keys exclude each other while one of them has to be there; whoever reads them checks it.
    pub fn one_of(&self, keys: &[&'static str]) {
        self.describe(|table| table.one_of = keys.to_vec());
    }

    /// Says of which sets of keys one has to be there; whoever reads them checks it.
    pub fn any_of(&self, sets: &[&'static [&'static str]]) {
        self.describe(|table| table.any_of = sets.to_vec());
    }

    /// A section of which there is at most one, `[process]`.
    pub fn section(&mut self, key: &'static str) -> Option<Section<'r, 't>> {
        let entry = self.forms(key, &[Form::Table])?;
        if let Value::Array(_) = entry.node.value {
            let what = format!("there can be only one [{key}]");
            self.report.error(entry.key_span, what, format!("write [{key}] in single brackets"));
            return None;
        }
        Section::of(self.report, &entry.node, &format!("[{key}]"), entry.key_span)
    }

    /// All `[KIND.NAME]`, in file order. What is no table is reported and left out.
    pub fn named(&mut self, kind: &'static str) -> Vec<Named<'r, 't>> {
        let Some(entry) = self.forms(kind, &[Form::Named]) else {
            return Vec::new();
        };
        let report = self.report;
        let Value::Table(entries) = &entry.node.value else {
            let what = format!("`{kind}` has no name");
            report.error(entry.key_span, what, format!("write [{kind}.NAME] with a name of your choice"));
            return Vec::new();
        };
        let mut all = Vec::new();
        for entry in entries {
            let title = format!("[{kind}.{}]", shown(&entry.key));
            let Value::Table(inner) = &entry.node.value else {
                let what = format!("{title}: expected a table, found {}", entry.node.value.kind());
                let fix = match entry.node.value {
                    Value::Array(ref items) if items.iter().any(|item| matches!(item.value, Value::Table(_))) => {
                        format!("write {title} in single brackets")
                    }
                    _ => format!("put the keys of a {kind} below [{kind}.NAME], with a name of your choice"),
                };
                report.error(entry.key_span, what, fix);
                continue;
            };
            check_name(report, kind, &entry.key, entry.key_span);
            let table = entry.node.span.start;
            let section = Section { report, title, span: entry.key_span, entries: inner, known: Vec::new(), table };
            all.push(Named { name: &entry.key, span: entry.key_span, section });
        }
        all
    }

    /// Reports a key that every such table has to have, where it is absent.
    pub fn require(&mut self, key: &'static str, fix: &str) {
        if self.node(key).is_none() {
            self.missing(key, fix);
        }
    }

    /// Reports that a key is absent that every such table has to have.
    pub fn missing(&self, key: &'static str, fix: &str) {
        self.describe(|table| table.key(key).is_required = true);
        self.missing_here(key, fix);
    }

    /// Reports that a key is absent which others make necessary, unless a syntax error may have hidden it, or it is
    /// there and misspelt.
    pub fn missing_here(&self, key: &str, fix: &str) {
        let misspelt = |entry: &Entry<'_>| self.report.closest(&entry.key, [key]).is_some();
        if self.report.is_whole() && !self.entries.iter().any(misspelt) {
            self.report.error(self.span, format!("{} has no `{key}`", self.title), fix);
        }
    }

    /// Reports the keys that nobody asked for, and says whether there were any.
    pub fn close(self) -> bool {
        self.describe(|table| table.is_closed = true);
        let mut any = false;
        let place = if self.title.is_empty() { String::new() } else { format!(" in {}", self.title) };
        let kind = if self.title.is_empty() { "section" } else { "key" };
        for entry in self.entries.iter().filter(|entry| !self.known.contains(&entry.key.as_ref())) {
            let what = format!("unknown {kind} `{}`{place}", shown(&entry.key));
            let close = self.report.closest(&entry.key, self.known.iter().copied());
            // A key such as `not_source` means the contrary of `source`.
            let fix = match close.filter(|_| !foreign::negates(&entry.key)) {
                Some(close) => format!("did you mean `{close}`?"),
                None => match foreign::cure(&self.title, &entry.key) {
                    Some(cure) => format!("write {cure}"),
                    None => format!("use {}", one_of(self.known.iter().copied()).replace('"', "`")),
                },
            };
            self.report.error(entry.key_span, what, fix);
            any = true;
        }
        any
    }
}

/// Names of one kind of section, to resolve references to them.
pub(crate) struct Names<'r> {
    kind: &'static str,
    ids: HashMap<&'r str, usize>,
    /// In file order, for messages that are the same in every run.
    order: Vec<&'r str>,
    /// Whether a reference led nowhere: then any of the names may be the one that was meant.
    missed: Cell<bool>,
}

impl<'r> Names<'r> {
    pub fn new(kind: &'static str, all: &[Named<'r, '_>]) -> Names<'r> {
        let order: Vec<&str> = all.iter().map(|named| named.name).collect();
        let ids = order.iter().enumerate().map(|(id, name)| (*name, id)).collect();
        Names { kind, ids, order, missed: Cell::new(false) }
    }

    pub fn resolve(&self, report: &Report<'_>, name: Found<&str>) -> Option<usize> {
        let id = self.ids.get(name.value).copied();
        self.missed.set(self.missed.get() || id.is_none());
        if id.is_none() && report.is_whole() {
            let kind = self.kind;
            let fix = match report.closest(name.value, self.order.iter().copied()) {
                Some(close) => format!("did you mean \"{close}\"?"),
                None if self.order.is_empty() => {
                    format!("add a section [{kind}.{}]", shown(name.value))
                }
                None => format!("use {}, or add a section [{kind}.NAME]", one_of(self.order.iter().copied())),
            };
            report.error(name.span, format!("no {kind} named \"{}\"", shown(name.value)), fix);
        }
        id
    }

    /// Notes that a reference could not be read.
    pub fn miss(&self) {
        self.missed.set(true);
    }

    pub fn missed(&self) -> bool {
        self.missed.get()
    }
}

pub(crate) fn string<'r>(report: &Report<'_>, key: &str, node: &'r Node<'_>) -> Option<Found<&'r str>> {
    match &node.value {
        Value::String(text) => Some(Found { value: text, span: node.span }),
        _ => mismatch(report, key, "a string", node),
    }
}

pub(crate) fn integer<T: TryFrom<i128>>(
    report: &Report<'_>,
    key: &str,
    node: &Node<'_>,
    range: RangeInclusive<i128>,
) -> Option<Found<T>> {
    let Some(value) = number_of(report, node) else {
        return mismatch(report, key, "an integer", node);
    };
    let found = within(report, key, Found { value, span: node.span }, range, |number| number.to_string())?;
    let value = T::try_from(found.value).ok()?;
    Some(Found { value, span: found.span })
}

/// An integer, or a string of one in which variables were put.
pub(crate) fn number_of(report: &Report<'_>, node: &Node<'_>) -> Option<i128> {
    match &node.value {
        Value::Integer(number) => Some(*number),
        Value::String(text) if report.is_substituted(node.span) => text.parse().ok(),
        _ => None,
    }
}

pub(crate) fn choice<T: Copy>(
    report: &Report<'_>,
    key: &str,
    node: &Node<'_>,
    choices: &[(&'static str, T)],
) -> Option<Found<T>> {
    let text = string(report, key, node)?;
    if let Some((_, value)) = choices.iter().find(|(name, _)| *name == text.value) {
        return Some(Found { value: *value, span: text.span });
    }
    let names = choices.iter().map(|(name, _)| *name);
    let fix = match report.closest(text.value, names.clone()) {
        Some(close) => format!("did you mean \"{close}\"?"),
        None => format!("use {}", one_of(names)),
    };
    report.error(text.span, format!("`{key}` cannot be \"{}\"", shown(text.value)), fix);
    None
}

/// The words of choices.
pub(crate) fn words<T>(choices: &[(&'static str, T)]) -> Vec<&'static str> {
    choices.iter().map(|(word, _)| *word).collect()
}

pub(crate) fn within<T: PartialOrd>(
    report: &Report<'_>,
    key: &str,
    found: Found<T>,
    range: RangeInclusive<T>,
    write: impl Fn(&T) -> String,
) -> Option<Found<T>> {
    if range.contains(&found.value) {
        return Some(found);
    }
    let (what, fix) = if found.value < *range.start() {
        (format!("`{key}` is too small"), format!("use {} or more", write(range.start())))
    } else {
        (format!("`{key}` is too large"), format!("use {} or less", write(range.end())))
    };
    report.error(found.span, what, fix);
    None
}

/// Reports a value of the wrong type, and says how to write it if that can be guessed.
pub(crate) fn mismatch<T>(report: &Report<'_>, key: &str, expected: &str, node: &Node<'_>) -> Option<T> {
    // Titles of sections bring their own marks.
    let key = if key.contains(['`', '[', ' ']) { key.to_string() } else { format!("`{key}`") };
    let what = format!("{key}: expected {expected}, found {}", node.value.kind());
    let written = report.written(node.span);
    let short = written.len() <= 60 && !written.contains('\n');
    let fix = match &node.value {
        Value::Boolean(false) if expected != "a boolean" => "remove it".to_string(),
        Value::Boolean(_) if key == "`tls`" && expected == "a string" => {
            "write the name of a [tls.NAME] with the certificates: tls = \"NAME\"".to_string()
        }
        Value::Integer(_) | Value::Float | Value::Boolean(_) | Value::Datetime if expected == "a string" && short => {
            format!("write \"{}\"", shown(written))
        }
        Value::String(_) if expected == "an array" && short => {
            format!("write [{}]", shown(written))
        }
        Value::String(text) if expected == "an integer" && text.parse::<i64>().is_ok() => {
            format!("write {} without quotes", shown(text))
        }
        Value::String(text) if expected == "a boolean" && (text == "true" || text == "false") => {
            format!("write {} without quotes", shown(text))
        }
        _ if expected == "a table" && foreign::example_table(&key).is_some() => {
            format!("write {}", foreign::example_table(&key).unwrap_or_default())
        }
        Value::Boolean(_) if expected == "a table" => "write a table, in braces".to_string(),
        _ if expected == "a boolean" => "write true or false".to_string(),
        Value::Table(entries) if expected == "a string" && entries.iter().any(|entry| foreign::negates(&entry.key)) => {
            "write a text in quotes; requests that are meant not to fit have a route of their own".to_string()
        }
        _ if expected == "a string" && key == "`host`" => {
            "write one host in quotes, in a [[route]] for each; patterns are in match = { host = { regex = \"^(a|b)[.]test$\" } }"
                .to_string()
        }
        _ if expected == "a string" => "write a text in quotes".to_string(),
        _ => format!("write {expected}"),
    };
    report.error(node.span, what, fix);
    None
}

const NAME_BYTES_MAX: usize = 64;
/// Names that [`check_name`] accepts.
pub(crate) const NAME_PATTERN: &str = "^[A-Za-z0-9._-]{1,64}$";

/// Names are seen in logs, metrics and the admin API.
fn check_name(report: &Report<'_>, kind: &str, name: &str, span: Span) {
    let fix = "use letters, digits, `-`, `_` and `.`";
    if name.is_empty() {
        report.error(span, format!("the name of this {kind} is empty"), fix);
    } else if name.len() > NAME_BYTES_MAX {
        report.error(
            span,
            format!("the name of this {kind} is too long"),
            format!("use at most {NAME_BYTES_MAX} characters"),
        );
    } else if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        report.error(span, format!("\"{}\" cannot be the name of a {kind}", shown(name)), fix);
    }
}

//! The texts of a file and of the files that it includes, read as one tree.

use std::collections::HashMap;

use super::{Fault, Reading, json, toml};
use crate::provenance::Provenance;
use crate::text::{Lines, Span};
use crate::tree::{Entry, Node, Value};
use crate::wording::shown;
use crate::{environment, provenance};

/// Sections of which there may be many, by the names of their entries.
const NAMED: [&str; 5] = ["listener", "tls", "signer", "acme", "backend"];
/// Section of which there may be many, in a list.
const LISTED: &str = "route";

/// Reads a whole text, each file in its own language, and puts variables in.
pub(crate) fn whole<'t>(lines: &Lines<'t>, file: &Provenance, is_json: bool) -> Reading<'t> {
    let mut reading = if file.parts().is_empty() { one(lines, is_json) } else { all(lines, file, is_json) };
    for (range, what, fix) in file.faults() {
        let (what, fix) = (what.clone(), fix.clone());
        let span = Span::new(range.start, range.end);
        // Sections of that file may be missing anywhere.
        reading.faults.push(Fault { span: Some(span), what, fix, damage: Some(Span::new(range.start, range.start)) });
    }
    if let Some(root) = &mut reading.root
        && environment::is_mentioned(lines.text())
    {
        let (substituted, faults) = environment::substitute(root, lines.text(), file.lookup());
        reading.substituted = substituted;
        let fault = |(span, what, fix)| Fault { span: Some(span), what, fix, damage: None };
        reading.faults.extend(faults.into_iter().map(fault));
    }
    reading
}

fn one<'t>(lines: &Lines<'t>, is_json: bool) -> Reading<'t> {
    if is_json { json::read(lines) } else { toml::read(lines) }
}

fn all<'t>(lines: &Lines<'t>, file: &Provenance, is_json: bool) -> Reading<'t> {
    let text = lines.text();
    let parts = file.parts();
    let ends = parts.iter().map(|part| part.start).chain([text.len()]);
    let starts =
        [(0, is_json)].into_iter().chain(parts.iter().map(|part| (part.start, provenance::is_json(&part.name))));
    let mut tree = Tree { lines, file, entries: Vec::new(), faults: Vec::new() };
    let mut is_read = true;
    for ((start, is_json), end) in starts.zip(ends) {
        let mut reading = one(&Lines::new(&text[start..end]), is_json);
        for fault in &mut reading.faults {
            fault.span.iter_mut().chain(&mut fault.damage).for_each(|span| shift(span, start));
        }
        tree.faults.extend(reading.faults);
        match reading.root {
            Some(mut root) => {
                shift_node(&mut root, start);
                tree.add(root, start == 0);
            }
            None => is_read &= start > 0,
        }
    }
    let root = Node { span: Span::default(), value: Value::Table(tree.entries) };
    Reading::new(is_read.then_some(root), tree.faults)
}

fn shift(span: &mut Span, by: usize) {
    (span.start, span.end) = (span.start + by, span.end + by);
}

fn shift_node(node: &mut Node<'_>, by: usize) {
    shift(&mut node.span, by);
    match &mut node.value {
        Value::Array(items) => items.iter_mut().for_each(|item| shift_node(item, by)),
        Value::Table(entries) => entries.iter_mut().for_each(|entry| {
            shift(&mut entry.key_span, by);
            shift_node(&mut entry.node, by);
        }),
        _ => {}
    }
}

/// Sections of all files.
struct Tree<'a, 't> {
    lines: &'a Lines<'t>,
    file: &'a Provenance,
    entries: Vec<Entry<'t>>,
    faults: Vec<Fault>,
}

impl<'t> Tree<'_, 't> {
    fn add(&mut self, root: Node<'t>, is_first: bool) {
        let Value::Table(entries) = root.value else { return };
        for entry in entries {
            // An included file's own patterns have been followed.
            let is_followed =
                !is_first && entry.key == provenance::INCLUDE && matches!(entry.node.value, Value::Array(_));
            if !is_followed {
                self.add_section(entry);
            }
        }
    }

    fn add_section(&mut self, entry: Entry<'t>) {
        let Some(known) = self.entries.iter_mut().find(|known| known.key == entry.key) else {
            self.entries.push(entry);
            return;
        };
        match (&mut known.node.value, entry.node.value) {
            (Value::Array(all), Value::Array(more)) if entry.key == LISTED => all.extend(more),
            (Value::Table(all), Value::Table(more)) if NAMED.contains(&&*entry.key) => {
                let mut twice = Vec::new();
                let names: HashMap<String, Span> =
                    all.iter().map(|entry| (entry.key.to_string(), entry.key_span)).collect();
                for each in more {
                    match names.get(&*each.key) {
                        Some(first) => twice.push((each.key.to_string(), each.key_span, *first)),
                        None => all.push(each),
                    }
                }
                for (name, span, first) in twice {
                    let section = format!("[{}.{}]", entry.key, shown(&name));
                    self.twice(&section, span, first, "give one of the two another name, or remove it");
                }
            }
            _ => {
                let (section, first) = (format!("[{}]", shown(&entry.key)), known.key_span);
                self.twice(&section, entry.key_span, first, "put all of it into one of the two files");
            }
        }
    }

    fn twice(&mut self, section: &str, span: Span, first: Span, fix: &str) {
        let line = self.lines.at(first).line;
        let (name, at) = self.file.place(self.lines.at(first));
        debug_assert!(at.line <= line, "lines of a file are fewer than those of all");
        let what = format!("{section} is already in {name}, line {}", at.line);
        self.faults.push(Fault { span: Some(span), what, fix: fix.into(), damage: None });
    }
}

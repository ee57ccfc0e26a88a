//! `${env:NAME}` and `${env:NAME:-default}` in the strings of a configuration.
//!
//! As in a shell, the default stands for a variable that is not set or is empty. `$${env:` is `${env:` as it is.
//! Values never reach a message: what is said of such a string names the variable.

use std::borrow::Cow;
use std::collections::HashSet;

use crate::provenance::Lookup;
use crate::text::Span;
use crate::tree::{Node, Value};
use crate::wording::shown;

/// Beginning of a reference.
const OPEN: &str = "${env:";
const DEFAULT: &str = ":-";
/// Bytes that are put in at most.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Longest name of a variable.
const NAME_BYTES_MAX: usize = 256;

/// A string in which variables were put.
#[derive(Debug)]
pub(crate) struct Substituted {
    pub span: Span,
    /// The string as it is written.
    pub written: String,
    /// The string with the variables' values; none if one could not be had, which is reported.
    pub whole: Option<String>,
    /// Values of the variables.
    pub values: Vec<String>,
}

/// A reference that is wrong: its place, what is wrong and what to do.
pub(crate) type Failure = (Span, String, String);

/// Whether a text can have references in it.
pub(crate) fn is_mentioned(text: &str) -> bool {
    text.contains(OPEN) || text.contains("\\u")
}

/// Replaces the references in all strings of a tree. Without a lookup each is a fault.
pub(crate) fn substitute(root: &mut Node<'_>, text: &str, lookup: Option<Lookup>) -> (Vec<Substituted>, Vec<Failure>) {
    let mut work = Work { text, lookup, bytes: 0, all: Vec::new(), faults: Vec::new() };
    work.node(root);
    (work.all, work.faults)
}

struct Work<'w> {
    text: &'w str,
    lookup: Option<Lookup>,
    /// Bytes that were put in so far.
    bytes: usize,
    all: Vec<Substituted>,
    faults: Vec<Failure>,
}

impl Work<'_> {
    fn node(&mut self, node: &mut Node<'_>) {
        match &mut node.value {
            Value::String(text) if text.contains(OPEN) => self.string(text, node.span),
            Value::Array(items) => items.iter_mut().for_each(|item| self.node(item)),
            Value::Table(entries) => entries.iter_mut().for_each(|entry| self.node(&mut entry.node)),
            _ => {}
        }
    }

    fn string(&mut self, text: &mut Cow<'_, str>, span: Span) {
        let written = text.to_string();
        let (mut out, mut values, mut is_whole) = (String::new(), Vec::new(), true);
        let mut rest = written.as_str();
        let mut references = 0;
        while let Some((before, after)) = rest.split_once(OPEN) {
            if let Some(before) = before.strip_suffix('$') {
                out.push_str(before);
                out.push_str(OPEN);
                rest = after;
                continue;
            }
            out.push_str(before);
            references += 1;
            let (reference, after) = after.split_once('}').unwrap_or((after, ""));
            let is_closed = rest.len() > before.len() + OPEN.len() + reference.len();
            rest = after;
            match self.value(reference, is_closed) {
                Ok((value, is_secret)) => {
                    self.bytes += value.len();
                    out.push_str(&value);
                    values.extend(is_secret.then_some(value));
                }
                Err((what, fix)) => {
                    is_whole = false;
                    let span = self.place(span, reference);
                    self.faults.push((span, what, fix));
                }
            }
        }
        out.push_str(rest);
        if is_whole {
            *text = Cow::Owned(out.clone());
        }
        if references > 0 {
            self.all.push(Substituted { span, written, whole: is_whole.then_some(out), values });
        }
    }

    /// The value of a reference, and whether it is of the environment; else what is wrong, and what to do.
    fn value(&self, reference: &str, is_closed: bool) -> Result<(String, bool), (String, String)> {
        let (name, default) = match reference.split_once(DEFAULT) {
            Some((name, default)) => (name, Some(default)),
            None => (reference, None),
        };
        let escape = || format!("write $${{env: for the text {OPEN} itself");
        if !is_closed {
            return Err((format!("`{OPEN}` has no `}}` after it"), format!("write ${{env:NAME}}; {}", escape())));
        }
        let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            && !name.starts_with(|first: char| first.is_ascii_digit())
            && (1..=NAME_BYTES_MAX).contains(&name.len());
        if !is_name {
            let what = format!("\"{}\" cannot be the name of a variable", shown(name));
            let fix =
                format!("write ${{env:NAME}} or ${{env:NAME:-default}}, with letters, digits and `_`; {}", escape());
            return Err((what, fix));
        }
        if default.is_some_and(|default| default.contains(OPEN)) {
            let what = format!("the default of {name} has a variable in it, and they do not stand inside each other");
            return Err((what, "write the default out, or set the variable itself".into()));
        }
        let Some(lookup) = self.lookup else {
            let what = format!("${{env:{name}}} is only for configurations in a file of this machine");
            return Err((what, "write the value".into()));
        };
        let value = lookup(name).filter(|value| default.is_none() || !value.is_empty());
        match (value, default) {
            (Some(value), _) if self.bytes + value.len() > BYTES_MAX => {
                Err((format!("${{env:{name}}} makes the configuration too large"), "name it fewer times".into()))
            }
            (Some(value), _) => Ok((value, true)),
            (None, Some(default)) => Ok((default.to_owned(), false)),
            (None, None) => {
                let what = format!("the variable {name} is not set in the environment, or is not UTF-8");
                Err((what, format!("set it where this program is started, or write a default: ${{env:{name}:-VALUE}}")))
            }
        }
    }

    /// The place of a reference within a string, unless it is written with escapes.
    fn place(&self, span: Span, reference: &str) -> Span {
        let written = self.text.get(span.start..span.end).unwrap_or_default();
        let found = written.find(&format!("{OPEN}{reference}"));
        let length = OPEN.len() + reference.len() + 1;
        found.map_or(span, |index| Span::new(span.start + index, (span.start + index + length).min(span.end)))
    }
}

/// Characters of a value that a message must not have beside each other.
const PIECE_CHARACTERS: usize = 4;

impl Substituted {
    /// A message, and what to do, without the values of variables. `is_here` says that it is about this string, of
    /// which it may then repeat parts.
    pub fn mask(&self, message: &mut (String, String), is_here: bool) {
        let Some(whole) = self.whole.as_deref() else { return };
        let mut hidden: Vec<&str> = self.values.iter().map(String::as_str).collect();
        hidden.sort_by_key(|value| std::cmp::Reverse(value.len()));
        for (value, instead) in
            [(whole, self.written.as_str())].into_iter().chain(hidden.iter().map(|value| (*value, "…")))
        {
            if !self.values.is_empty() && value.chars().count() >= PIECE_CHARACTERS {
                for value in [value.to_owned(), shown(value)] {
                    message.0 = message.0.replace(&value, instead);
                    message.1 = message.1.replace(&value, instead);
                }
            }
        }
        let has_piece = |text: &str| self.values.iter().any(|value| has_piece(text, value) || has_word(text, value));
        if is_here && (has_piece(&message.0) || has_piece(&message.1)) {
            *message = (
                format!("{} has a value that cannot stand here", shown(&self.written)),
                "set the variable to what this key takes".into(),
            );
        }
    }
}

/// Whether a message has a value in it that is shorter than a piece, apart from letters and digits around it.
fn has_word(message: &str, value: &str) -> bool {
    let is_short = (1..PIECE_CHARACTERS).contains(&value.chars().count());
    let is_apart = |beside: Option<char>| beside.is_none_or(|beside| !beside.is_alphanumeric());
    is_short
        && message.match_indices(value).any(|(at, _)| {
            is_apart(message[..at].chars().next_back()) && is_apart(message[at + value.len()..].chars().next())
        })
}

/// Whether a message has a piece of a value in it, whatever the case of letters.
fn has_piece(message: &str, value: &str) -> bool {
    let lower = |text: &str| text.to_lowercase().chars().collect::<Vec<char>>();
    let (message, value) = (lower(message), lower(value));
    let said: HashSet<&[char]> = message.windows(PIECE_CHARACTERS).collect();
    value.windows(PIECE_CHARACTERS).any(|piece| said.contains(piece))
}

//! TOML text to tree, over the `toml` crate, which recovers after syntax errors and so finds all of them.

use std::borrow::Cow;
use std::collections::HashSet;

use toml::de::{DeTable, DeValue, Error};

use super::{Fault, Reading};
use crate::text::{Lines, Span};
use crate::tree::{DEPTH_MAX, Entry, Node, Value};
use crate::wording::shown;

/// The `toml` crate bounds the nesting of values and the length of dotted keys, but not their product, and works
/// recursively; on an ordinary stack a hostile 13 KB file ends a debug build. The memory is touched only when used.
const STACK_BYTES: usize = 64 << 20;

/// Reads on a thread of its own, which has the stack and contains a panic of the reader.
///
/// The library's errors each have a share in a copy of the text, which may be a private key that was taken for a
/// configuration. They are dropped by the caller's thread, since that may be one that wipes what it frees.
pub(crate) fn read<'t>(lines: &Lines<'t>) -> Reading<'t> {
    let outcome = std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("toml".into()).stack_size(STACK_BYTES);
        let thread = builder.spawn_scoped(scope, || read_here(lines)).ok()?;
        thread.join().ok()
    });
    outcome.map(|(reading, _errors)| reading).unwrap_or_else(|| {
        let what = "the file could not be parsed, and that is not its fault".to_string();
        let fix = "try again, and report it if it stays".to_string();
        Reading::new(None, vec![Fault { span: None, what, fix, damage: Some(Span::default()) }])
    })
}

fn read_here<'t>(lines: &Lines<'t>) -> (Reading<'t>, Vec<Error>) {
    let (table, errors) = DeTable::parse_recoverable(lines.text());
    let mut faults = faults(lines, &errors);
    let mut too_deep = None;
    let entries = entries(table.into_inner(), 0, &mut too_deep);
    if let Some(span) = too_deep {
        let what = format!("tables and arrays are nested more than {DEPTH_MAX} deep");
        faults.push(Fault {
            span: Some(span),
            what,
            fix: "nothing in a configuration needs that".into(),
            damage: Some(span),
        });
    }
    (Reading::new(Some(Node { span: Span::default(), value: Value::Table(entries) }), faults), errors)
}

fn entries<'t>(table: DeTable<'t>, depth: usize, too_deep: &mut Option<Span>) -> Vec<Entry<'t>> {
    let mut entries: Vec<Entry<'t>> = table
        .into_iter()
        .map(|(key, value)| {
            let key_span = Span::from(key.span());
            let span = Span::from(value.span());
            let value = convert(value.into_inner(), span, depth + 1, too_deep);
            Entry { key: key.into_inner(), key_span, node: Node { span, value } }
        })
        .collect();
    entries.sort_by_key(|entry| entry.key_span.start);
    entries
}

fn convert<'t>(value: DeValue<'t>, span: Span, depth: usize, too_deep: &mut Option<Span>) -> Value<'t> {
    if depth > DEPTH_MAX {
        too_deep.get_or_insert(span);
        return Value::Null;
    }
    match value {
        DeValue::String(text) => Value::String(text),
        DeValue::Integer(integer) => Value::Integer(saturated(integer.as_str(), integer.radix())),
        DeValue::Float(_) => Value::Float,
        DeValue::Boolean(boolean) => Value::Boolean(boolean),
        DeValue::Datetime(_) => Value::Datetime,
        DeValue::Array(array) => Value::Array(
            array
                .into_iter()
                .map(|item| {
                    let span = Span::from(item.span());
                    Node { span, value: convert(item.into_inner(), span, depth + 1, too_deep) }
                })
                .collect(),
        ),
        DeValue::Table(table) => Value::Table(entries(table, depth, too_deep)),
    }
}

fn saturated(digits: &str, radix: u32) -> i128 {
    let limit = if digits.starts_with('-') { i128::MIN } else { i128::MAX };
    i128::from_str_radix(digits, radix).unwrap_or(limit)
}

/// One fault per line: what follows the first one on a line is nearly always its echo.
fn faults(lines: &Lines<'_>, errors: &[Error]) -> Vec<Fault> {
    let mut spans: Vec<(Option<Span>, &Error)> =
        errors.iter().map(|error| (error.span().map(Span::from), error)).collect();
    spans.sort_by_key(|(span, _)| span.map(|span| span.start));
    let swallowed = swallowed(lines, &spans);
    let mut seen = HashSet::new();
    let mut faults = Vec::new();
    for (span, error) in &spans {
        let echo = swallowed.is_some_and(|(first, lost)| {
            span.is_some_and(|span| span != first && lost.start <= span.start && span.start <= lost.end)
        });
        if echo || !seen.insert(span.map(|span| lines.at(span).line)) {
            continue;
        }
        let damage = match swallowed {
            _ if error.message().starts_with("duplicate key") => None,
            Some((first, lost)) if *span == Some(first) => Some(lost),
            _ => Some(span.unwrap_or_default()),
        };
        let (what, fix) = explain(lines, *span, error.message());
        faults.push(Fault { span: *span, what, fix, damage });
    }
    faults
}

/// An array without its `]` takes in the lines after it, and each of them is in error. Gives the first fault of which
/// that can be told, and all that was taken in from its line on.
fn swallowed(lines: &Lines<'_>, spans: &[(Option<Span>, &Error)]) -> Option<(Span, Span)> {
    let is = |start: &'static str| move |(_, error): &&(Option<Span>, &Error)| error.message().starts_with(start);
    let first = spans.iter().find(is("unexpected `=` in array"))?.0?;
    let end = spans.iter().rev().find(is("unclosed array"))?.0?;
    let mut line = lines.at(first).line as usize;
    // Headers between the array and the first `=` were taken in as arrays.
    while line > 1 && lines.line(line - 1).trim_start().starts_with(['[', '#']) {
        line -= 1;
    }
    let start = lines.start_of(line);
    Some((first, Span::new(start, end.start)))
}

/// The reader's message in this house's form: what is wrong, and what to do.
fn explain(lines: &Lines<'_>, span: Option<Span>, message: &str) -> (String, String) {
    let span = span.unwrap_or_default();
    let written = lines.text().get(span.start..span.end).unwrap_or_default();
    let line = lines.line(lines.at(span).line as usize).trim_start();
    let (what, expected) = message.split_once(", expected ").unwrap_or((message, ""));
    let pair = |what: &str, fix: &str| (what.to_string(), fix.to_string());
    match what {
        "string values must be quoted" | "missing value" | "missing value for key" if written.is_empty() => {
            pair("there is no value after `=`", "write one, or remove the line")
        }
        "string values must be quoted" => {
            (format!("`{}` is not in quotes", shown(written)), format!("write \"{}\"", shown(written)))
        }
        "invalid float" | "unexpected leading zero" => pair("this is not a number", "put it in quotes if it is a text"),
        "duplicate key" if line.starts_with('[') => (
            format!("`{}` is already there, further up", shown(written)),
            "put the keys of both into one section".into(),
        ),
        "duplicate key" => (format!("`{}` is given twice", shown(written)), "remove one of the two".into()),
        "invalid unquoted key" if written == ":" => pair("a key is followed by `:`", "write `key = value`"),
        "invalid unquoted key" if line.starts_with("//") || line.starts_with("/*") || line.starts_with(';') => {
            pair("this is not a comment in TOML", "begin comments with `#`")
        }
        "key with no value" => {
            pair("there is a key without a value", "write `key = value`, or `[section]` in brackets")
        }
        "unexpected `=` in array" => pair("there is a `=` inside an array", "close the array with `]` before it"),
        "invalid basic string" if expected == "`\"`" => pair("the string does not end", "add the closing `\"`"),
        "invalid literal string" if expected == "`'`" => pair("the string does not end", "add the closing `'`"),
        "missing escaped value" => {
            pair("`\\` is followed by what it cannot escape", "write `\\\\`, or the string in single quotes")
        }
        "recursion limit" | "cannot recurse further; max recursion depth met" => {
            pair("keys, tables or arrays are nested too deep", "nothing in a configuration needs that")
        }
        "unclosed table" if let Some(dotted) = dotted(line) => {
            pair("the name of a section has a space in it", &format!("write {dotted}"))
        }
        "unexpected key or value" => pair("there is something after the end of this value", "begin a new line there"),
        _ if expected.is_empty() || expected == "nothing" => (what.to_string(), "remove it".into()),
        _ => (what.to_string(), format!("TOML expects {} here", alternatives(expected))),
    }
}

/// `[kind name]` as `[kind.name]`, for a kind of sections that have names.
fn dotted(line: &str) -> Option<String> {
    const NAMED: [&str; 5] = ["acme", "backend", "listener", "signer", "tls"];
    let line = line.split('#').next().unwrap_or_default();
    let (kind, name) = line.trim_end().strip_prefix('[')?.strip_suffix(']')?.split_once(' ')?;
    let is_word =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    let name = name.trim().trim_matches('"');
    (NAMED.contains(&kind) && is_word(name)).then(|| format!("[{kind}.{name}]"))
}

fn alternatives(expected: &str) -> Cow<'_, str> {
    match expected.rsplit_once(", ") {
        Some((rest, last)) => Cow::Owned(format!("{rest} or {last}")),
        None => Cow::Borrowed(expected),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_would_exhaust_the_stack_is_refused() {
        let key = vec!["a"; 80].join(".");
        let text = format!("{key}={}1{}", format!("{{{key}=").repeat(79), "}".repeat(79));
        let reading = read(&Lines::new(&text));
        assert!(reading.faults.iter().any(|fault| fault.what.contains("nested more than 24 deep")));
    }

    #[test]
    fn an_array_without_its_end_is_one_fault() {
        let reading = read(&Lines::new("[backend.a]\nservers = [\"a:1\",\nreuse = \"never\"\n[backend.b]\nx = 1\n"));
        assert_eq!(reading.faults.len(), 1, "{:?}", reading.faults);
        assert_eq!(reading.faults[0].fix, "close the array with `]` before it");
    }
}

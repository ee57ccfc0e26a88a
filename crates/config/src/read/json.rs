//! JSON text to tree. `serde_json` judges the syntax; what is left is to cut a text known to be well formed.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::de::IgnoredAny;

use super::{Fault, Reading};
use crate::text::{Lines, Span};
use crate::tree::{DEPTH_MAX, Entry, Node, Value};
use crate::wording::shown;

pub(crate) fn read<'t>(lines: &Lines<'t>) -> Reading<'t> {
    if let Err(error) = serde_json::from_str::<IgnoredAny>(lines.text()) {
        return Reading::new(None, vec![syntax_fault(lines, &error)]);
    }
    let mut cutter = Cutter { lines, offset: 0, faults: Vec::new() };
    let root = cutter.node(0);
    if let Some(node) = &root
        && !matches!(node.value, Value::Table(_))
    {
        let what = format!("expected an object, found {}", node.value.kind());
        cutter.fault(Span::new(node.span.start, node.span.start + 1), what, "put the configuration in `{ }`".into());
        return Reading::new(None, cutter.faults);
    }
    Reading::new(root, cutter.faults)
}

fn syntax_fault(lines: &Lines<'_>, error: &serde_json::Error) -> Fault {
    let offset = lines.start_of(error.line()) + error.column().saturating_sub(1);
    let message = error.to_string();
    let before = lines.text().get(..offset).unwrap_or_default().trim_end();
    let what = message.rsplit_once(" at line ").map_or(message.as_str(), |(what, _)| what);
    let what = if what == "key must be a string" && before.ends_with(',') { "trailing comma" } else { what };
    let fix = match what {
        "trailing comma" => "remove the comma",
        "key must be a string" => "put the key in double quotes",
        _ if what.starts_with("EOF") => "close what is open; the file may have been cut off",
        _ => "mind that JSON has no comments, no single quotes and no trailing commas",
    };
    Fault {
        span: Some(Span::new(offset, offset)),
        what: what.to_string(),
        fix: fix.into(),
        damage: Some(Span::new(offset, offset)),
    }
}

struct Cutter<'l, 't> {
    lines: &'l Lines<'t>,
    offset: usize,
    faults: Vec<Fault>,
}

/// `None` stands for "give up": the text is not what `serde_json` said it was, or it is nested too deep.
impl<'t> Cutter<'_, 't> {
    fn node(&mut self, depth: usize) -> Option<Node<'t>> {
        let first = self.peek()?;
        let start = self.offset;
        if depth > DEPTH_MAX {
            let what = format!("objects and arrays are nested more than {DEPTH_MAX} deep");
            self.fault(Span::new(start, start + 1), what, "nothing in a configuration needs that".into());
            return None;
        }
        let value = match first {
            b'{' => self.table(depth)?,
            b'[' => self.array(depth)?,
            b'"' => Value::String(self.string()?),
            _ => self.word(),
        };
        Some(Node { span: Span::new(start, self.offset), value })
    }

    fn table(&mut self, depth: usize) -> Option<Value<'t>> {
        let mut entries: Vec<Entry<'t>> = Vec::new();
        let mut lines_of_keys = HashMap::new();
        while self.another(b'}')? {
            self.peek()?;
            let start = self.offset;
            let key = self.string()?;
            let key_span = Span::new(start, self.offset);
            self.peek()?;
            self.offset += 1; // the colon
            let node = self.node(depth + 1)?;
            let line = self.lines.at(key_span).line;
            if let Some(first) = lines_of_keys.insert(key.clone(), line) {
                let what = format!("`{}` is given twice, first in line {first}", shown(&key));
                self.faults.push(Fault {
                    span: Some(key_span),
                    what,
                    fix: "remove one of the two".into(),
                    damage: None,
                });
            } else {
                entries.push(Entry { key, key_span, node });
            }
        }
        Some(Value::Table(entries))
    }

    fn array(&mut self, depth: usize) -> Option<Value<'t>> {
        let mut items = Vec::new();
        while self.another(b']')? {
            items.push(self.node(depth + 1)?);
        }
        Some(Value::Array(items))
    }

    /// Steps over an opening bracket or a comma, or over the closing bracket, after which nothing follows.
    fn another(&mut self, close: u8) -> Option<bool> {
        let here = self.peek()?;
        self.offset += 1;
        if here == close {
            return Some(false);
        }
        if self.peek()? == close {
            self.offset += 1;
            return Some(false);
        }
        Some(true)
    }

    fn string(&mut self) -> Option<Cow<'t, str>> {
        let text = self.lines.text();
        let start = self.offset;
        let mut escaped = false;
        let length = text.as_bytes().get(start + 1..)?.iter().position(|byte| {
            let ends = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            ends
        })?;
        self.offset = start + length + 2;
        let quoted = text.get(start..self.offset)?;
        if !quoted.contains('\\') {
            return Some(Cow::Borrowed(&quoted[1..quoted.len() - 1]));
        }
        match serde_json::from_str(quoted) {
            Ok(string) => Some(Cow::Owned(string)),
            Err(_) => {
                let fix = "write both halves of the surrogate pair, or the character itself".into();
                self.fault(Span::new(start, self.offset), "an escape in this string is half a character".into(), fix);
                Some(Cow::Borrowed(""))
            }
        }
    }

    fn word(&mut self) -> Value<'t> {
        let rest = &self.lines.text()[self.offset..];
        let length = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c)).unwrap_or(rest.len());
        // A step of at least one byte; no word is empty in a well-formed text.
        self.offset += length.max(1);
        match &rest[..length] {
            "true" => Value::Boolean(true),
            "false" => Value::Boolean(false),
            "null" => Value::Null,
            number if number.contains(['.', 'e', 'E']) => Value::Float,
            number => {
                let limit = if number.starts_with('-') { i128::MIN } else { i128::MAX };
                Value::Integer(number.parse().unwrap_or(limit))
            }
        }
    }

    /// The next byte that is not white space; the offset is put on it.
    fn peek(&mut self) -> Option<u8> {
        let rest = &self.lines.text().as_bytes()[self.offset.min(self.lines.text().len())..];
        let skip = rest.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))?;
        self.offset += skip;
        Some(rest[skip])
    }

    fn fault(&mut self, span: Span, what: String, fix: String) {
        self.faults.push(Fault { span: Some(span), what, fix, damage: Some(span) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<(u32, u32, String)> {
        let lines = Lines::new(text);
        let reading = read(&lines);
        let place = |fault: &Fault| lines.at(fault.span.expect("a position"));
        reading.faults.iter().map(|f| (place(f).line, place(f).column, f.what.clone())).collect()
    }

    #[test]
    fn values_are_cut_where_they_were_written() {
        let text = "{ \"a\" : [1, -2.5, true,null],\n\"é\\u00e9\":{\"x\":\"\\\"\",\"y\":{}} , \"z\":[]}";
        let reading = read(&Lines::new(text));
        let Some(Node { value: Value::Table(entries), .. }) = reading.root else { panic!("{reading:?}") };
        let spans: Vec<_> =
            entries.iter().map(|e| (&text[e.node.span.start..e.node.span.end], e.key.as_ref())).collect();
        assert_eq!(spans, [("[1, -2.5, true,null]", "a"), ("{\"x\":\"\\\"\",\"y\":{}}", "éé"), ("[]", "z")]);
        assert!(reading.faults.is_empty());
    }

    #[test]
    fn syntax_errors_have_their_position() {
        assert_eq!(faults("{\n  \"é\": 1,\n}"), [(3, 1, "trailing comma".into())]);
        assert_eq!(faults("{\n \"é\": x}"), [(2, 7, "expected value".into())]);
        assert_eq!(faults(""), [(1, 1, "EOF while parsing a value".into())]);
        assert_eq!(faults("{\"a\":1}}"), [(1, 8, "trailing characters".into())]);
        assert_eq!(faults("{\"a\":\"\\ud800\"}"), [(1, 6, "an escape in this string is half a character".into())]);
        assert_eq!(faults("[1]"), [(1, 1, "expected an object, found an array".into())]);
    }

    #[test]
    fn duplicate_keys_and_deep_nesting_are_refused() {
        assert_eq!(faults("{\"a\":1,\n\"\\u0061\":2}"), [(2, 1, "`a` is given twice, first in line 1".into())]);
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(faults(&deep)[0].2, "objects and arrays are nested more than 24 deep");
        // The bracket that is one too many is what is shown, and no more.
        let shown = |text: &str| read(&Lines::new(text)).faults[0].span;
        assert_eq!(shown(&deep), Some(Span::new(29, 30)));
        assert_eq!(shown("[1]"), Some(Span::new(0, 1)));
    }
}

//! `propylon fmt`: one form for the text of a configuration.
//!
//! Nothing but white space, and the comma behind the last item of an array, is changed: the text is cut into its
//! tokens, and these are laid out anew. What comes out is compared with what went in before anybody gets it.

use crate::problem::{self, Problem};
use crate::read;
use crate::source::Source;
use crate::text::Lines;
use crate::tree::{Node, Value};

/// Columns that an array may reach in one line.
const COLUMNS_MAX: usize = 100;
const INDENT: &str = "    ";

/// The text of a configuration in TOML, formatted: the tokens, comments and order of the text with one kind of white
/// space. Problems are those of the syntax; other mistakes of a configuration are no obstacle.
pub fn format(source: &Source) -> Result<String, Vec<Problem>> {
    let one = |what: &str, fix: &str| vec![Problem::error(&source.name, None, what, fix)];
    if source.is_json() {
        return Err(one("JSON is not formatted", "use jq, or write the configuration in TOML"));
    }
    let text = problem::without_mark(&source.text);
    let lines = Lines::new(text);
    let reading = read::toml::read(&lines);
    if !reading.faults.is_empty() {
        let place = |fault: &read::Fault| fault.span.map(|span| lines.at(span));
        let problem = |fault: &read::Fault| Problem::error(&source.name, place(fault), &*fault.what, &*fault.fix);
        return Err(reading.faults.iter().map(problem).collect());
    }
    let tokens = tokens(text);
    let out = Layout { tokens: &tokens, at: 0, out: String::new(), ends: Vec::new() }.text();
    let again = Lines::new(&out);
    let reading_again = read::toml::read(&again);
    let is_kept = reading_again.faults.is_empty()
        && is_same(reading.root.as_ref(), reading_again.root.as_ref())
        && comments(&tokens).eq(comments(&self::tokens(&out)));
    match is_kept {
        true => Ok(out),
        false => Err(one("this file cannot be formatted without a change of its meaning", "please report it")),
    }
}

fn comments<'t>(tokens: &'t [Token<'t>]) -> impl Iterator<Item = &'t str> {
    tokens.iter().filter(|token| token.kind == Kind::Comment).map(|token| token.text.trim_end())
}

/// Whether two trees say the same, wherever.
fn is_same(one: Option<&Node<'_>>, two: Option<&Node<'_>>) -> bool {
    let (Some(one), Some(two)) = (one, two) else { return one.is_none() && two.is_none() };
    match (&one.value, &two.value) {
        (Value::String(one), Value::String(two)) => one == two,
        (Value::Integer(one), Value::Integer(two)) => one == two,
        (Value::Boolean(one), Value::Boolean(two)) => one == two,
        // Their texts are tokens, which are not touched.
        (Value::Float, Value::Float) | (Value::Datetime, Value::Datetime) | (Value::Null, Value::Null) => true,
        (Value::Array(one), Value::Array(two)) => {
            one.len() == two.len() && one.iter().zip(two).all(|(one, two)| is_same(Some(one), Some(two)))
        }
        (Value::Table(one), Value::Table(two)) => {
            let is_same = |(one, two): (&crate::tree::Entry<'_>, &crate::tree::Entry<'_>)| {
                one.key == two.key && is_same(Some(&one.node), Some(&two.node))
            };
            one.len() == two.len() && one.iter().zip(two).all(is_same)
        }
        _ => false,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Newline,
    Comment,
    /// `[`, `]`, `{`, `}`, `=`, `,` or `.` between parts of a key.
    Mark,
    /// A string, number, date, word, or part of a key.
    Word,
}

#[derive(Clone, Copy, Debug)]
struct Token<'t> {
    kind: Kind,
    text: &'t str,
}

impl Token<'_> {
    fn is(&self, mark: &str) -> bool {
        self.kind == Kind::Mark && self.text == mark
    }
}

/// Cuts a well-formed text. White space inside of lines is left out.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (kind, length) = match first {
            ' ' | '\t' | '\r' => {
                rest = &rest[1..];
                continue;
            }
            '\n' => (Kind::Newline, 1),
            '#' => (Kind::Comment, rest.find('\n').unwrap_or(rest.len())),
            '[' | ']' | '{' | '}' | '=' | ',' | '.' => (Kind::Mark, 1),
            '"' | '\'' => (Kind::Word, string_length(rest)),
            // Dots are parts of numbers, dates and bare keys here: keys are put together by whoever reads them.
            _ => (Kind::Word, word_length(rest)),
        };
        tokens.push(Token { kind, text: rest[..length].trim_end_matches('\r') });
        rest = &rest[length..];
    }
    tokens
}

fn word_length(text: &str) -> usize {
    let end = |c: char| c.is_whitespace() || "#[]{}=,\"'".contains(c);
    let length = text.find(end).unwrap_or(text.len());
    // A date may be apart from its time by one space.
    let is_date = length == 10 && text.as_bytes()[4] == b'-' && text.as_bytes()[7] == b'-';
    let time = text.get(length + 1..length + 4).unwrap_or_default().as_bytes();
    let has_time = matches!(time, [a, b, b':'] if a.is_ascii_digit() && b.is_ascii_digit());
    if is_date && has_time && text.as_bytes()[length] == b' ' {
        return length + 1 + word_length(&text[length + 1..]);
    }
    length.max(text.chars().next().map_or(1, char::len_utf8))
}

/// Length of the string that a text begins with, with its quotes.
fn string_length(text: &str) -> usize {
    let quote = &text[..1];
    let triple = quote.repeat(3);
    let is_long = text.starts_with(&triple);
    let end = if is_long { triple.as_str() } else { quote };
    let bytes = text.as_bytes();
    let mut at = end.len();
    while at < text.len() {
        if bytes[at] == b'\\' && quote == "\"" {
            at += 2;
        } else if bytes[at..].starts_with(end.as_bytes()) {
            at += end.len();
            // Up to two quotes may stand before the last three.
            while is_long && bytes.get(at) == quote.as_bytes().first() {
                at += 1;
            }
            return at;
        } else {
            at += 1;
        }
    }
    text.len()
}

/// A value that is laid out.
enum Piece<'t> {
    Word(&'t str),
    List(List<'t>),
}

/// An array, or a table in braces.
struct List<'t> {
    is_table: bool,
    items: Vec<Item<'t>>,
    /// Comments behind the last item.
    last: Vec<&'t str>,
    /// Whether its items stand in lines of their own.
    is_long: bool,
}

struct Item<'t> {
    has_blank_before: bool,
    /// Comments in lines of their own.
    before: Vec<&'t str>,
    key: Option<String>,
    value: Piece<'t>,
    /// A comment at the end of its line.
    after: Option<&'t str>,
}

struct Layout<'l, 't> {
    tokens: &'l [Token<'t>],
    at: usize,
    out: String,
    /// Bytes before the comments at the ends of keys' lines.
    ends: Vec<usize>,
}

impl<'t> Layout<'_, 't> {
    fn text(mut self) -> String {
        let (mut blank, mut comments, mut is_in_comments) = (false, Vec::new(), false);
        while let Some(token) = self.peek() {
            match token.kind {
                Kind::Newline => {
                    self.at += 1;
                    let is_blank = self.peek().is_some_and(|next| next.kind == Kind::Newline);
                    if is_blank && is_in_comments {
                        // Comments that are apart from what follows stay so.
                        self.write_comments(&mut comments, blank);
                        (blank, is_in_comments) = (true, false);
                    }
                    blank |= is_blank && comments.is_empty();
                }
                Kind::Comment => {
                    comments.push(token.text.trim_end());
                    is_in_comments = true;
                    self.at += 1;
                }
                _ => {
                    let is_header = token.is("[");
                    self.write_comments_apart(&mut comments, blank || is_header);
                    if is_header {
                        self.header()
                    } else {
                        self.pair()
                    }
                    (blank, is_in_comments) = (false, false);
                }
            }
        }
        self.write_comments(&mut comments, blank);
        aligned(&self.out, &self.ends)
    }

    fn write_comments(&mut self, comments: &mut Vec<&'t str>, blank: bool) {
        if !comments.is_empty() {
            self.write_comments_apart(comments, blank);
        }
    }

    fn write_comments_apart(&mut self, comments: &mut Vec<&'t str>, is_apart: bool) {
        if is_apart && !self.out.is_empty() {
            self.out.push('\n');
        }
        for comment in comments.drain(..) {
            self.out.push_str(comment);
            self.out.push('\n');
        }
    }

    fn peek(&self) -> Option<Token<'t>> {
        self.tokens.get(self.at).copied()
    }

    fn next(&mut self) -> Option<Token<'t>> {
        let token = self.peek();
        self.at += usize::from(token.is_some());
        token
    }

    /// The rest of a line behind what it is about: its comment.
    fn end_of_line(&mut self) {
        if let Some(comment) = self.peek().filter(|token| token.kind == Kind::Comment) {
            self.out.push(' ');
            self.out.push_str(comment.text.trim_end());
            self.at += 1;
        }
        self.out.push('\n');
    }

    fn header(&mut self) {
        while let Some(token) = self.peek().filter(|token| !matches!(token.kind, Kind::Newline | Kind::Comment)) {
            self.out.push_str(token.text);
            self.at += 1;
        }
        self.end_of_line();
    }

    fn pair(&mut self) {
        let start = self.out.len();
        let key = self.key();
        self.out.push_str(&key);
        self.out.push_str(" = ");
        let value = self.value();
        let column = key.chars().count() + 3;
        let is_long = is_long(&value, column);
        write(&mut self.out, &value, 0, is_long);
        let is_one_line = !self.out[start..].contains('\n');
        if is_one_line && self.peek().is_some_and(|next| next.kind == Kind::Comment) {
            self.ends.push(self.out.len());
        }
        self.end_of_line();
    }

    /// A key with its dots, and the `=` behind it.
    fn key(&mut self) -> String {
        let mut key = String::new();
        while let Some(token) = self.next().filter(|token| !token.is("=")) {
            key.push_str(token.text);
        }
        key
    }

    fn value(&mut self) -> Piece<'t> {
        let Some(token) = self.next() else { return Piece::Word("") };
        let end = match token.text {
            "[" if token.kind == Kind::Mark => "]",
            "{" if token.kind == Kind::Mark => "}",
            // A number may begin with a dot nowhere in TOML; what follows a word is not part of it.
            text => return Piece::Word(text),
        };
        let mut list = List { is_table: end == "}", items: Vec::new(), last: Vec::new(), is_long: false };
        list.is_long = self.peek().is_some_and(|next| next.kind == Kind::Newline);
        let (mut has_blank_before, mut is_on_line) = (false, true);
        while let Some(token) = self.peek() {
            match token.kind {
                Kind::Newline => {
                    self.at += 1;
                    is_on_line = false;
                    has_blank_before |= self.peek().is_some_and(|next| next.kind == Kind::Newline);
                }
                Kind::Comment => {
                    self.at += 1;
                    list.is_long = true;
                    let comment = token.text.trim_end();
                    match list
                        .items
                        .last_mut()
                        .filter(|item| is_on_line && item.after.is_none() && list.last.is_empty())
                    {
                        Some(item) => item.after = Some(comment),
                        None => list.last.push(comment),
                    }
                }
                Kind::Mark if token.text == end => {
                    self.at += 1;
                    break;
                }
                Kind::Mark if token.text == "," => self.at += 1,
                _ => {
                    let key = list.is_table.then(|| self.key());
                    let before = std::mem::take(&mut list.last);
                    has_blank_before &= !list.items.is_empty();
                    let value = self.value();
                    list.items.push(Item { has_blank_before, before, key, value, after: None });
                    (has_blank_before, is_on_line) = (false, true);
                }
            }
        }
        // A table in braces stands in one line, unless it has comments.
        list.is_long &= !list.is_table || !list.last.is_empty() || list.items.iter().any(Item::has_comment);
        list.is_long &= !list.items.is_empty() || !list.last.is_empty();
        Piece::List(list)
    }
}

impl Item<'_> {
    fn has_comment(&self) -> bool {
        self.after.is_some() || !self.before.is_empty()
    }
}

/// Whether a value is to be spread over lines where it begins in this column.
fn is_long(value: &Piece<'_>, column: usize) -> bool {
    let Piece::List(list) = value else { return false };
    let is_too_wide = || column + width(value) > COLUMNS_MAX;
    list.is_long || !list.is_table && !list.items.is_empty() && (has_long(list) || is_too_wide())
}

/// Whether something inside stands in several lines, or is an array that is to.
fn has_long(list: &List<'_>) -> bool {
    list.items.iter().any(|item| match &item.value {
        Piece::Word(text) => text.contains('\n'),
        Piece::List(inner) => inner.is_long || has_long(inner),
    })
}

/// The text with comments below each other at the ends of lines that follow each other.
fn aligned(text: &str, ends: &[usize]) -> String {
    let (mut out, mut written, mut run, mut next_line) = (String::new(), 0, Vec::new(), 0);
    let mut flush = |run: &mut Vec<(usize, usize)>| {
        let columns = run.iter().map(|(_, columns)| *columns).max().unwrap_or_default();
        for (end, own) in run.drain(..) {
            out.push_str(&text[written..end]);
            out.push_str(&" ".repeat(columns - own));
            written = end;
        }
    };
    for end in ends {
        let start = text[..*end].rfind('\n').map_or(0, |newline| newline + 1);
        let columns = text[start..*end].chars().count();
        if start != next_line || columns > COLUMNS_MAX {
            flush(&mut run);
        }
        run.push((*end, columns));
        next_line = text[*end..].find('\n').map_or(text.len(), |length| end + length + 1);
    }
    flush(&mut run);
    out + &text[written..]
}

/// Columns of a value in one line.
fn width(value: &Piece<'_>) -> usize {
    let mut line = String::new();
    write(&mut line, value, 0, false);
    line.chars().count()
}

/// Writes a value; what is inside of it is written in lines of its own if `is_long`.
fn write(out: &mut String, value: &Piece<'_>, depth: usize, is_long: bool) {
    let list = match value {
        Piece::Word(text) => return out.push_str(text),
        Piece::List(list) => list,
    };
    let (open, close) = if list.is_table { ('{', '}') } else { ('[', ']') };
    out.push(open);
    if !is_long {
        let inner = if list.is_table && !list.items.is_empty() { " " } else { "" };
        out.push_str(inner);
        for (index, item) in list.items.iter().enumerate() {
            out.push_str(if index > 0 { ", " } else { "" });
            write_item(out, item, depth, false);
        }
        out.push_str(inner);
        out.push(close);
        return;
    }
    let indent = INDENT.repeat(depth + 1);
    for (index, item) in list.items.iter().enumerate() {
        out.push('\n');
        if item.has_blank_before {
            out.push('\n');
        }
        for comment in &item.before {
            out.push_str(&format!("{indent}{comment}\n"));
        }
        out.push_str(&indent);
        write_item(out, item, depth + 1, true);
        // In a table there is no comma behind the last in every version of TOML.
        out.push_str(if list.is_table && index + 1 == list.items.len() { "" } else { "," });
        if let Some(comment) = item.after {
            out.push_str(&format!(" {comment}"));
        }
    }
    for comment in &list.last {
        out.push_str(&format!("\n{indent}{comment}"));
    }
    out.push('\n');
    out.push_str(&INDENT.repeat(depth));
    out.push(close);
}

fn write_item(out: &mut String, item: &Item<'_>, depth: usize, may_be_long: bool) {
    let mut column = depth * INDENT.len();
    if let Some(key) = &item.key {
        out.push_str(key);
        out.push_str(" = ");
        column += key.chars().count() + 3;
    }
    let must = matches!(&item.value, Piece::List(list) if list.is_long);
    let is_long = must || may_be_long && is_long(&item.value, column);
    write(out, &item.value, depth, is_long);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formatted(text: &str) -> String {
        let source = Source { name: "a.toml".into(), base: "".into(), text: text.into() };
        let once = format(&source).unwrap_or_else(|problems| panic!("{}\n{text}", crate::render(&problems, text)));
        let again = Source { text: once.clone(), ..source };
        assert_eq!(format(&again).as_ref(), Ok(&once), "twice is once");
        once
    }

    #[test]
    fn one_form_comes_out_and_every_comment_is_kept() {
        let text = "\u{feff}\n\n#  first\r\n  #:schema x\r\n\n\n\n[ process ]   # why\n\tworkers=2#two\n  a . \"b.c\"  = 1.5\n\n\n\
                    # about x\n  [[ route ]]\nhost   = 'a'\nredirect={ port=1 ,path = \"/#x\"  }\nrespond={ }\n\
                    list = [ 1,2 ,3, ]\nlong=[\n1, # one\n\n# two\n 2\n# end\n]\nx = []\ny = [\n]\n# last\n[log]\nd = 1979-05-27 07:32:00Z\n\n\n# end  \n\n";
        let expected = "\
#  first
#:schema x

[process] # why
workers = 2 #two
a.\"b.c\" = 1.5

# about x
[[route]]
host = 'a'
redirect = { port = 1, path = \"/#x\" }
respond = {}
list = [1, 2, 3]
long = [
    1, # one

    # two
    2,
    # end
]
x = []
y = []

# last
[log]
d = 1979-05-27 07:32:00Z

# end
";
        assert_eq!(formatted(text), expected);
    }

    #[test]
    fn comments_at_the_ends_of_lines_stand_below_each_other() {
        let text = "a = 1 # a\nbcd = \"é\"   # b\nc = 1\nd = [ # x\n] # d\ne = 1 # e\n\nf = 1234 # f\n";
        let expected = "a = 1     # a\nbcd = \"é\" # b\nc = 1\nd = [\n    # x\n] # d\ne = 1 # e\n\nf = 1234 # f\n";
        assert_eq!(formatted(text), expected);
    }

    #[test]
    fn arrays_that_are_too_wide_are_spread() {
        let server = "{ address = \"app-1.internal:8080\", weight = 2 }";
        let text = format!("servers = [{server}, {server}, {server}]\nshort = [[1], [2]]\n");
        let expected = format!("servers = [\n    {server},\n    {server},\n    {server},\n]\nshort = [[1], [2]]\n");
        assert_eq!(formatted(&text), expected);
    }

    #[test]
    fn strings_are_left_as_they_are() {
        for string in
            ["'''a\n  b # c\n'''", "\"\"\"x \\\"\"  y \"\" \\\n   z\"\"\"\"\"", "'\\'", "\"\\\\\"", "\"# ] }\""]
        {
            assert_eq!(formatted(&format!("a   =  {string}   # c\n")), format!("a = {string} # c\n"));
        }
    }

    #[test]
    fn what_is_no_toml_is_refused_with_its_place() {
        let source = Source { name: "a.toml".into(), base: "".into(), text: "[a]\nb = \n".into() };
        let problems = format(&source).expect_err("an error");
        assert_eq!(problems[0].to_string(), "a.toml:2:5: there is no value after `=`; write one, or remove the line");
        let json = Source { name: "a.json".into(), base: "".into(), text: "{}".into() };
        assert!(format(&json).is_err());
    }

    #[test]
    fn any_white_space_is_laid_out_to_the_same_text() {
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
        let mut random = fastrand::Rng::with_seed(seed);
        for whole in [
            include_str!("../tests/full.toml"),
            include_str!("../tests/design.toml"),
            include_str!("../../../examples/propylon.toml"),
        ] {
            let expected = formatted(whole);
            let before = Source { name: "a.toml".into(), base: "/etc".into(), text: whole.into() };
            let after = Source { text: expected.clone(), ..before.clone() };
            let shown = |source: &Source| crate::effective::config(&crate::parse(source).expect("a good file").0);
            if crate::parse(&before).is_ok() {
                assert_eq!(shown(&before), shown(&after));
            }
            for _ in 0..50 {
                let disturbed = disturb(&expected, &mut random);
                assert_eq!(formatted(&disturbed), expected, "seed {seed}\n{disturbed}");
            }
        }
    }

    /// The same tokens with other white space within lines.
    fn disturb(text: &str, random: &mut fastrand::Rng) -> String {
        let mut out = String::new();
        for line in text.lines() {
            // Two brackets stand for one mark there; strings of several lines are not in these texts.
            if line.starts_with("[[") {
                out.push_str(line);
            }
            for token in tokens(if line.starts_with("[[") { "" } else { line }) {
                out.push_str(&" ".repeat(random.usize(..3)));
                let is_apart = token.kind == Kind::Word || token.kind == Kind::Comment;
                out.push_str(if is_apart && random.bool() { "\t" } else { "" });
                out.push_str(token.text);
            }
            out.push_str(["\n", "\r\n", " \n"][random.usize(..3)]);
        }
        out
    }
}

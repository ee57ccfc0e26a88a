//! Lines of `haproxy.cfg`, and its sections.

use std::collections::BTreeMap;

use super::environment::variable;
use crate::changed::Changed;
use crate::plan::Note;
use crate::variables::plain;

/// A line of a section.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) number: usize,
    pub(super) words: Vec<String>,
}

impl Line {
    pub(super) fn word(&self, index: usize) -> &str {
        self.words.get(index).map_or("", String::as_str)
    }

    pub(super) fn text(&self) -> String {
        self.words.join(" ")
    }

    /// The word behind this one.
    pub(super) fn after(&self, word: &str) -> Option<&str> {
        let index = self.words.iter().position(|each| each == word)?;
        self.words.get(index + 1).map(String::as_str)
    }

    /// The line's first so many words.
    pub(super) fn until(&self, place: usize) -> Line {
        Line { number: self.number, words: self.words[..place].to_vec() }
    }

    pub(super) fn has(&self, word: &str) -> bool {
        self.words.iter().any(|each| each == word)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Section {
    pub(super) number: usize,
    pub(super) kind: String,
    pub(super) name: String,
    /// Name of the `defaults` that it has, where it says so.
    pub(super) from: Option<String>,
    pub(super) lines: Vec<Line>,
}

impl Section {
    pub(super) fn of<'s>(&'s self, word: &'s str) -> impl Iterator<Item = &'s Line> {
        self.lines.iter().filter(move |line| line.word(0) == word)
    }
}

const SECTIONS: &[&str] = &[
    "global",
    "defaults",
    "frontend",
    "backend",
    "listen",
    "resolvers",
    "userlist",
    "peers",
    "cache",
    "mailers",
    "program",
    "http-errors",
    "ring",
    "log-forward",
    "crt-store",
    "fcgi-app",
];

pub(super) fn sections(text: &str) -> Result<Vec<Section>, Note> {
    let mut all: Vec<Section> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let (number, words) = (index + 1, joined(words(line)));
        let Some(first) = words.first() else { continue };
        if SECTIONS.contains(&first.as_str()) {
            let place = words.iter().skip(1).position(|word| word == "from").map(|place| place + 1);
            // A section that is not `defaults` has a name, which may be any word.
            let place = place.filter(|place| *place > 1 || first == "defaults");
            let (own, from) = words.split_at(place.unwrap_or(words.len()));
            let name = own.get(1).cloned().unwrap_or_default();
            all.push(Section { number, kind: first.clone(), name, from: from.get(1).cloned(), lines: Vec::new() });
            // `frontend NAME ADDRESS`, as it was written long ago.
            if let (Some(address), true) = (own.get(2), ["frontend", "listen"].contains(&first.as_str())) {
                let bind = Line { number, words: vec!["bind".into(), address.clone()] };
                all.last_mut().into_iter().for_each(|section| section.lines.push(bind.clone()));
            }
            continue;
        }
        match all.last_mut() {
            Some(section) => section.lines.push(Line { number, words }),
            None if first.starts_with('.') => {}
            None => {
                return Err(Note::new(number, line.trim(), "it is in no section; is it a configuration of haproxy?"));
            }
        }
    }
    Ok(all)
}

/// Words with the signs of conditions as they are mostly written: `!` may stand apart, and `or` in capitals.
fn joined(words: Vec<String>) -> Vec<String> {
    let (mut all, mut is_condition): (Vec<String>, bool) = (Vec::new(), false);
    for word in words {
        match all.last_mut() {
            Some(last) if is_condition && last == "!" => last.push_str(&word),
            _ if is_condition && word.eq_ignore_ascii_case("or") => all.push("or".into()),
            _ => all.push(word),
        }
        is_condition |= all.last().is_some_and(|word| word == "if" || word == "unless");
    }
    all
}

/// Words of a line without its comment.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut is_word, mut quote) = (Vec::new(), String::new(), false, None);
    let line = plain(line);
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (None | Some('"'), '\\') => {
                match characters.next() {
                    Some('n') => word.push('\n'),
                    Some('r') => word.push('\r'),
                    Some('t') => word.push('\t'),
                    Some(next @ (' ' | '#' | '\\' | '"' | '\'')) => word.push(next),
                    Some('$') if quote.is_some() => word.push('$'),
                    // Others are of a regular expression.
                    other => word.extend(['\\'].into_iter().chain(other)),
                }
                is_word = true;
            }
            (Some('"'), '$') => match variable(characters.as_str()) {
                Some((sign, rest)) => {
                    word.push_str(&sign);
                    characters = rest.chars();
                }
                None => word.push('$'),
            },
            (Some(_), _) => word.push(character),
            (None, '"' | '\'') => (quote, is_word) = (Some(character), true),
            (None, '#') => break,
            (None, ' ' | '\t') => {
                if is_word {
                    words.push(std::mem::take(&mut word));
                }
                is_word = false;
            }
            (None, _) => {
                word.push(character);
                is_word = true;
            }
        }
    }
    if is_word {
        words.push(word);
    }
    words
}

/// The line of this kind that holds: the section's own, or that of `defaults`.
pub(super) fn holding<'l>(section: &'l Section, defaults: &'l [Line], words: &[&str]) -> Option<&'l Line> {
    let is =
        |line: &&Line| words.iter().zip(&line.words).all(|(one, two)| one == two) && line.words.len() >= words.len();
    section.lines.iter().rfind(is).or_else(|| defaults.iter().rfind(is))
}

/// Tables of all sections, by the sections' names.
pub(super) type Tables = BTreeMap<String, Line>;

pub(super) fn tables(sections: &[Section]) -> Tables {
    let table = |section: &Section| Some((section.name.clone(), section.of("stick-table").next()?.clone()));
    sections.iter().filter_map(table).collect()
}

/// Whether a line changes requests or responses on their way.
pub(super) fn is_change(line: &Line) -> bool {
    const CHANGES: &[&str] = &[
        "set-header",
        "add-header",
        "del-header",
        "replace-header",
        "replace-value",
        "set-path",
        "replace-path",
        "replace-pathq",
        "set-pathq",
        "set-uri",
        "replace-uri",
        "set-query",
    ];
    match line.word(0) {
        "http-request" | "http-response" | "http-after-response" => CHANGES.contains(&line.word(1)),
        "compression" => true,
        _ => false,
    }
}

/// Whether a word is of the rules of long ago, as `reqrep`, which are asked behind those of `http-request`.
pub(super) fn is_of_old(word: &str) -> bool {
    const KINDS: &[&str] = &["add", "allow", "del", "deny", "pass", "rep", "set", "tarpit"];
    let rest = word.strip_prefix("req");
    rest.is_some_and(|rest| KINDS.contains(&rest) || rest.strip_prefix('i').is_some_and(|rest| KINDS.contains(&rest)))
}

/// Parts of requests that a line changes, whatever its condition is.
pub(super) fn changed(line: &Line) -> Changed {
    let mut changed = Changed::default();
    let is_script = line.word(1).starts_with("lua.");
    match (line.word(0), line.word(1)) {
        ("http-request", "set-header" | "add-header" | "replace-header" | "replace-value") => {
            changed.field(line.word(2));
        }
        ("http-request", "del-header") if line.word(3) == "-m" => changed.has_all_fields = true,
        ("http-request", "del-header") => changed.field(line.word(2)),
        ("http-request", "set-path" | "replace-path") => changed.has_path = true,
        ("http-request", "set-query") => changed.has_query = true,
        ("http-request", "set-pathq" | "replace-pathq" | "normalize-uri") => {
            (changed.has_path, changed.has_query) = (true, true);
        }
        ("http-request", "set-uri" | "replace-uri") => {
            (changed.has_path, changed.has_query) = (true, true);
            changed.field("host");
        }
        ("http-request", "set-method") => changed.has_method = true,
        ("http-request" | "tcp-request", _) if line.word(1) == "set-src" || line.word(2) == "set-src" => {
            changed.has_source = true;
        }
        ("http-request", _) if is_script => changed = Changed::all(),
        (word, _) if is_of_old(word) && !is_guard(line) => {
            changed = Changed::all();
            changed.has_source = false;
        }
        _ => {}
    }
    changed
}

/// Whether a line keeps requests out.
pub(super) fn is_guard(line: &Line) -> bool {
    // Relays by name take nothing but TLS.
    let is_of_protocol = ["ssl_hello_type", "proto_http", "WAIT_END"].iter().any(|word| line.text().contains(word));
    match (line.word(0), line.word(1)) {
        ("http-request", "deny" | "tarpit" | "reject" | "auth" | "silent-drop") | ("block", _) => true,
        ("http-request", "return") => refusal(line).is_some(),
        (word, _) if is_of_old(word) => word.ends_with("deny") || word.ends_with("tarpit"),
        ("tcp-request", _) => ["reject", "silent-drop"].contains(&line.word(2)) && !is_of_protocol,
        _ => false,
    }
}

/// The status of a fixed answer that keeps requests out.
pub(super) fn refusal(line: &Line) -> Option<u16> {
    let status = line.after("status").and_then(|status| status.parse().ok());
    status.filter(|status| line.word(1) == "return" && (400..600).contains(status))
}

/// Whether a line only says what is counted: nothing comes of it but by a rule that compares.
pub(super) fn is_tracking(line: &Line) -> bool {
    line.word(0) == "stick-table" || line.words.iter().any(|word| word.starts_with("track-sc"))
}

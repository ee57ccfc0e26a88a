//! Lines of `haproxy.cfg`, and its sections.

use std::collections::BTreeMap;

use crate::plan::Note;

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
        let (number, words) = (index + 1, words(line));
        let Some(first) = words.first() else { continue };
        if SECTIONS.contains(&first.as_str()) && !line.starts_with([' ', '\t']) {
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

/// Words of a line without its comment.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut is_word, mut quote) = (Vec::new(), String::new(), false, None);
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
                    // Others are of a regular expression.
                    other => word.extend(['\\'].into_iter().chain(other)),
                }
                is_word = true;
            }
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

/// Whether a line keeps requests out.
pub(super) fn is_guard(line: &Line) -> bool {
    // Relays by name take nothing but TLS.
    let is_of_protocol = ["ssl_hello_type", "proto_http", "WAIT_END"].iter().any(|word| line.text().contains(word));
    match (line.word(0), line.word(1)) {
        ("http-request", "deny" | "tarpit" | "reject" | "auth" | "silent-drop") | ("block", _) => true,
        ("http-request", "return") => refusal(line).is_some(),
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

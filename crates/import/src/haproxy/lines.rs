//! Lines of `haproxy.cfg`, and its sections.

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

    pub(super) fn has(&self, word: &str) -> bool {
        self.words.iter().any(|each| each == word)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Section {
    pub(super) number: usize,
    pub(super) kind: String,
    pub(super) name: String,
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
            let name = words.get(1).cloned().unwrap_or_default();
            all.push(Section { number, kind: first.clone(), name, lines: Vec::new() });
            // `frontend NAME ADDRESS`, as it was written long ago.
            if let (Some(address), true) = (words.get(2), ["frontend", "listen"].contains(&first.as_str())) {
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

//! Configurations of haproxy, nginx and Caddy in; one of Propylon out, and the lines that it does not have.
//!
//! A reader for each language fills the [`Plan`], which is written as TOML. Whatever a reader does not carry over
//! becomes a [`Note`] with its line: nothing is left out in silence but what Propylon does anyway.

// `fuzzing` is set by cargo-fuzz.
#![allow(unexpected_cfgs)]
#![warn(missing_docs)]

use std::collections::{BTreeMap, BTreeSet};

mod caddy;
mod changed;
mod changes;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod guards;
mod haproxy;
mod listeners;
mod nginx;
mod patterns;
mod plan;
mod terms;
mod variables;
mod words;
mod write;

pub use plan::Note;
use plan::Plan;

/// Longest text that is read.
pub const TEXT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The language of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// `haproxy.cfg`
    Haproxy,
    /// `nginx.conf`, or a file of its sites.
    Nginx,
    /// A `Caddyfile`.
    Caddy,
}

impl Language {
    /// Tells the language by the name of the file, and else by its text.
    pub fn of(name: &str, text: &str) -> Option<Language> {
        let name = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
        if name.contains("haproxy") || name.ends_with(".cfg") {
            return Some(Language::Haproxy);
        }
        if name.contains("caddy") {
            return Some(Language::Caddy);
        }
        if name.contains("nginx") {
            return Some(Language::Nginx);
        }
        let first_words = || text.lines().filter_map(|line| line.split_whitespace().next());
        if first_words().any(|word| ["frontend", "backend", "listen", "defaults"].contains(&word))
            && !text.contains('{')
        {
            return Some(Language::Haproxy);
        }
        if first_words().any(|word| ["server", "upstream", "http", "server{"].contains(&word)) && text.contains(';') {
            return Some(Language::Nginx);
        }
        first_words().any(|word| word == "reverse_proxy").then_some(Language::Caddy)
    }
}

/// Outcome of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// A configuration of Propylon in TOML.
    pub text: String,
    /// Files that it names, to lie beside it for nobody but the engine to read: names and texts.
    pub files: BTreeMap<String, String>,
    /// Lines that are not carried over, in their order, with what to do.
    pub notes: Vec<Note>,
}

/// Reads a configuration. An error is a text that is not of that language: its line, what is wrong and what to do.
pub fn import(language: Language, name: &str, text: &str) -> Result<Imported, Note> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(Note::new(1, "the file", "it is larger than 4 MiB; import its parts one by one"));
    }
    let mut plan = Plan::default();
    match language {
        Language::Haproxy => haproxy::read(text, &mut plan)?,
        Language::Nginx => nginx::read(text, &mut plan)?,
        Language::Caddy => caddy::read(text, &mut plan)?,
    }
    // Programs answer so where there are no servers.
    plan.finish(if language == Language::Nginx { 502 } else { 503 });
    let text = write::text(&plan, name);
    let used = plan.files.into_iter().filter(|(name, _)| text.contains(&plan::quoted(name)));
    let files = used.collect();
    let mut notes = plan.notes;
    notes.sort_by_key(|note| note.line);
    // Lines that are read for each address of a listener are told once.
    let mut told = BTreeSet::new();
    notes.retain(|note| told.insert((note.line, note.what.clone(), note.fix.clone())));
    Ok(Imported { text, files, notes })
}

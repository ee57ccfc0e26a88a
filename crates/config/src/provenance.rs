//! Origin of a text: the file that was named, the files that it includes, and the variables that it may name.

use std::ffi::OsStr;
use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::at::At;

/// The name of a configuration that was pushed, which is in no file.
pub const PUSHED: &str = "the pushed configuration";
/// The name of a pushed one in JSON.
pub const PUSHED_JSON: &str = "the pushed JSON configuration";
/// Longest configuration that is read, with all that it includes. 10,000 routes take about one of these four MiB.
pub const SOURCE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Name of the key by which a configuration has several files.
pub(crate) const INCLUDE: &str = "include";

/// Looks a variable of the environment up; none where it is not set, or is not UTF-8.
pub type Lookup = fn(&str) -> Option<String>;

/// Place that a text is from. As a `str` it is the name of the file as the user gave it, or [`PUSHED`] or
/// [`PUSHED_JSON`].
///
/// The texts of included files stand behind the text of the file that was named, and positions are those in all of it:
/// [`Provenance::place`] says which file and which of its lines is meant.
#[derive(Clone, Default)]
pub struct Provenance {
    name: String,
    rest: Option<Arc<Rest>>,
    lookup: Option<Lookup>,
}

/// Further facts about a text with includes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rest {
    /// Included files, in the order of their texts.
    pub parts: Vec<Part>,
    /// Folders in which included files were looked for.
    pub folders: Vec<PathBuf>,
    /// Faults of the includes themselves: bytes of the whole text, what is wrong, what to do.
    pub faults: Vec<(std::ops::Range<usize>, String, String)>,
    /// Whether the text of the file that was named ends without a newline.
    pub unended: bool,
}

/// An included file.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// The file as messages name it.
    pub name: String,
    /// Path by which it was read.
    pub path: PathBuf,
    /// Byte of the whole text at which its own begins.
    pub start: usize,
    /// Lines of the whole text before its first.
    pub lines_before: u32,
    /// Whether its own text ends without a newline.
    pub unended: bool,
}

/// How a file of a configuration ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileEnd<'p> {
    /// The file as messages name it.
    pub name: &'p str,
    /// Whether it is read as JSON, which ends where its value does.
    pub is_json: bool,
    /// Whether its last line has a newline.
    pub has_newline: bool,
    /// Whether there is nothing in it.
    pub is_blank: bool,
}

impl Provenance {
    /// A text that may name variables of the environment.
    pub fn with_variables(name: impl Into<Provenance>, lookup: Lookup) -> Provenance {
        Provenance { lookup: Some(lookup), ..name.into() }
    }

    pub(crate) fn including(self, rest: Rest) -> Provenance {
        Provenance { rest: Some(Arc::new(rest)), ..self }
    }

    /// The name of the file.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Whether the text is JSON, by the name.
    pub(crate) fn is_json(&self) -> bool {
        self.name == PUSHED_JSON || is_json(&self.name)
    }

    /// Lookup of variables; none for a text that may not name any.
    pub(crate) fn lookup(&self) -> Option<Lookup> {
        self.lookup
    }

    /// Whether includes were looked for. They are not in a text that is in no file.
    pub(crate) fn has_includes(&self) -> bool {
        self.rest.is_some()
    }

    pub(crate) fn parts(&self) -> &[Part] {
        self.rest.as_ref().map_or(&[], |rest| &rest.parts)
    }

    pub(crate) fn faults(&self) -> &[(std::ops::Range<usize>, String, String)] {
        self.rest.as_ref().map_or(&[], |rest| &rest.faults)
    }

    /// Paths of included files, and of folders in which included files were looked for: a change of one of these may
    /// change the text.
    pub fn watched(&self) -> Vec<&Path> {
        let Some(rest) = &self.rest else { return Vec::new() };
        rest.parts.iter().map(|part| part.path.as_path()).chain(rest.folders.iter().map(PathBuf::as_path)).collect()
    }

    /// Number of the file that holds a line of the whole text: 0 for the one that was named.
    fn part_of(&self, line: u32) -> usize {
        self.parts().partition_point(|part| part.lines_before < line)
    }

    /// The file that holds a position of the whole text, and the position in that file.
    pub fn place(&self, at: At) -> (&str, At) {
        match self.part_of(at.line).checked_sub(1).map(|index| &self.parts()[index]) {
            None => (&self.name, at),
            Some(part) => (&part.name, At { line: at.line - part.lines_before, ..at }),
        }
    }

    /// `line 3`, or `sites/shop.toml, line 3` where the line is of an included file.
    pub fn line(&self, line: u32) -> String {
        let (name, at) = self.place(At { line, column: 1, length: 1 });
        if name == self.name { format!("line {}", at.line) } else { format!("{name}, line {}", at.line) }
    }

    /// How the file that was named ends in this text, and each that it includes.
    pub(crate) fn ends<'p>(&'p self, text: &'p str) -> Vec<FileEnd<'p>> {
        let end = |name: &'p str, unended: bool| FileEnd {
            name,
            is_json: is_json(name),
            has_newline: !unended,
            is_blank: self.text_of(name, text).trim().is_empty(),
        };
        let own = self.rest.as_ref().map_or(!text.ends_with('\n'), |rest| rest.unended);
        let first = FileEnd { is_json: self.is_json(), ..end(&self.name, own) };
        std::iter::once(first).chain(self.parts().iter().map(|part| end(&part.name, part.unended))).collect()
    }

    /// Sorts by file, the one that was named first.
    pub(crate) fn rank(&self, file: &str) -> usize {
        self.parts().iter().position(|part| part.name == file).map_or(0, |index| index + 1)
    }

    /// The part of the whole text that is the file of this name: that of the named file for any other name.
    pub(crate) fn text_of<'t>(&self, file: &str, text: &'t str) -> &'t str {
        let parts = self.parts();
        let (start, next) = match self.rank(file).checked_sub(1) {
            None => (0, parts.first()),
            Some(index) => (parts[index].start, parts.get(index + 1)),
        };
        text.get(start..next.map_or(text.len(), |part| part.start)).unwrap_or_default()
    }
}

/// Whether a file of this name is JSON.
pub(crate) fn is_json(name: &str) -> bool {
    name.to_ascii_lowercase().ends_with(".json")
}

impl Deref for Provenance {
    type Target = str;

    fn deref(&self) -> &str {
        &self.name
    }
}

impl From<String> for Provenance {
    fn from(name: String) -> Provenance {
        Provenance { name, ..Provenance::default() }
    }
}

impl From<&str> for Provenance {
    fn from(name: &str) -> Provenance {
        name.to_owned().into()
    }
}

impl PartialEq for Provenance {
    fn eq(&self, other: &Provenance) -> bool {
        self.name == other.name
            && self.parts().iter().map(|part| &part.name).eq(other.parts().iter().map(|part| &part.name))
    }
}

impl PartialEq<String> for Provenance {
    fn eq(&self, other: &String) -> bool {
        self.name == *other
    }
}

impl AsRef<OsStr> for Provenance {
    fn as_ref(&self) -> &OsStr {
        self.name.as_ref()
    }
}

/// Name alone.
impl Serialize for Provenance {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name)
    }
}

impl fmt::Display for Provenance {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.name)
    }
}

impl fmt::Debug for Provenance {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.name, out)
    }
}

/// Name of what a problem is about: it says in which file a position is, and where in that.
pub trait Named {
    /// The file, and the position in it.
    fn placed(&self, at: Option<At>) -> (String, Option<At>);
}

impl Named for str {
    fn placed(&self, at: Option<At>) -> (String, Option<At>) {
        (self.to_owned(), at)
    }
}

impl Named for String {
    fn placed(&self, at: Option<At>) -> (String, Option<At>) {
        (self.clone(), at)
    }
}

impl Named for Provenance {
    fn placed(&self, at: Option<At>) -> (String, Option<At>) {
        match at.and_then(At::known) {
            None => (self.name.clone(), None),
            Some(at) => {
                let (name, at) = self.place(at);
                (name.to_owned(), Some(at))
            }
        }
    }
}

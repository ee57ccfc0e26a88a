//! `include`: the texts of the files that a configuration names, gathered behind its own.
//!
//! Files are read by what the caller hands in. Patterns are relative to the folder of the file that was named first,
//! whichever file they stand in, as all other paths of a configuration are. What a pattern names is taken in the order
//! of names, byte by byte; a file is read once, whatever names it.

use std::path::{Path, PathBuf};

use crate::problem;
use crate::provenance::{INCLUDE, Part, Provenance, Rest, SOURCE_BYTES_MAX, is_json};
use crate::read;
use crate::text::Lines;
use crate::tree::{Node, Value};

/// Files that a configuration may be of.
pub const FILES_MAX: usize = 1024;
/// Files inside each other by `include`, the first not counted.
pub const DEPTH_MAX: usize = 4;
/// Entries that are looked at for all patterns together.
const ENTRIES_MAX: usize = 16 * 1024;

/// Message and fix of what failed.
pub type Failure = (String, String);

/// Access to files.
pub trait Files {
    /// The content of a file, of at most so many bytes.
    fn read(&mut self, path: &Path, bytes_max: usize) -> Result<Vec<u8>, Failure>;
    /// Names in a folder, in any order; none where there is no such folder.
    fn names(&mut self, folder: &Path) -> Result<Vec<String>, Failure>;
}

/// Adds the texts of included files to a text, in which positions then say which file they are in. Faults are kept, to
/// be reported with those of the text. Relative paths start at `base`.
pub fn gather(name: Provenance, base: &Path, text: String, files: &mut dyn Files) -> (Provenance, String) {
    let unended = !text.ends_with('\n');
    if !mentions(&text) {
        return (name.including(Rest { unended, ..Rest::default() }), text);
    }
    let text = problem::without_mark(&text).to_owned();
    let own = PathBuf::from(&*name);
    let rest = Rest { unended, ..Rest::default() };
    let mut gatherer = Gatherer { base, files, text, rest, taken: vec![own.clone()], entries: 0 };
    gatherer.take_in(0, name.is_json(), &mut vec![own]);
    (name.including(gatherer.rest), gatherer.text)
}

/// Whether the key may be in a text, which spares most of them a second reading.
fn mentions(text: &str) -> bool {
    text.contains(INCLUDE) || text.contains("\\u")
}

struct Gatherer<'g> {
    base: &'g Path,
    files: &'g mut dyn Files,
    /// Text that has been gathered.
    text: String,
    rest: Rest,
    /// Paths that need not be read again.
    taken: Vec<PathBuf>,
    entries: usize,
}

impl Gatherer<'_> {
    /// Takes in what the text from a place on includes. `inside` is the files that it is in.
    fn take_in(&mut self, start: usize, is_json: bool, inside: &mut Vec<PathBuf>) {
        for (range, pattern) in patterns(&self.text[start..], is_json) {
            let range = range.start + start..range.end + start;
            if let Err((what, fix)) = self.take_pattern(&range, &pattern, inside) {
                self.rest.faults.push((range, what, fix));
            }
        }
    }

    fn take_pattern(
        &mut self,
        range: &std::ops::Range<usize>,
        pattern: &str,
        inside: &mut Vec<PathBuf>,
    ) -> Result<(), Failure> {
        if inside.len() > DEPTH_MAX {
            let what = format!("`include`: files are inside each other more than {DEPTH_MAX} deep");
            return Err((what, "include them from fewer files".into()));
        }
        for name in self.matching(pattern)? {
            let path = self.base.join(&name);
            if inside.contains(&path) {
                let what = format!("`include`: {} is included by itself", path.display());
                return Err((what, "remove it here, or write a pattern that leaves it out".into()));
            }
            if self.taken.contains(&path) {
                continue;
            }
            if self.rest.parts.len() >= FILES_MAX {
                return Err((format!("`include`: there are more than {FILES_MAX} files"), "put some into one".into()));
            }
            self.taken.push(path.clone());
            if let Err((what, fix)) = self.take_file(&path, inside) {
                self.rest.faults.push((range.clone(), format!("`include`: {}: {what}", path.display()), fix));
            }
        }
        Ok(())
    }

    fn take_file(&mut self, path: &Path, inside: &mut Vec<PathBuf>) -> Result<(), Failure> {
        let bytes = self.files.read(path, SOURCE_BYTES_MAX.saturating_sub(self.text.len()))?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let line =
                error.as_bytes()[..error.utf8_error().valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
            (format!("line {} is not UTF-8", line + 1), "save the file as UTF-8".to_owned())
        })?;
        if !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        let lines_before = self.text.bytes().filter(|byte| *byte == b'\n').count();
        let start = self.text.len();
        self.text.push_str(problem::without_mark(&text));
        let unended = !text.ends_with('\n');
        let name = path.display().to_string();
        let is_json = is_json(&name);
        let lines_before = u32::try_from(lines_before).unwrap_or(u32::MAX);
        self.rest.parts.push(Part { name, path: path.to_owned(), start, lines_before, unended });
        if mentions(&text) {
            inside.push(path.to_owned());
            self.take_in(start, is_json, inside);
            inside.pop();
        }
        Ok(())
    }

    /// Files of a pattern, sorted. A name without `*` and `?` is itself, whether or not there is such a file.
    fn matching(&mut self, pattern: &str) -> Result<Vec<PathBuf>, Failure> {
        let mut found = vec![PathBuf::new()];
        let mut parts = Path::new(pattern).components().peekable();
        while let Some(part) = parts.next() {
            let word = part.as_os_str().to_string_lossy().into_owned();
            let is_last = parts.peek().is_none();
            if !word.contains(['*', '?']) {
                let folder_is_last = is_last && found.len() == 1;
                if folder_is_last {
                    self.look_in(&found[0]);
                }
                found.iter_mut().for_each(|path| path.push(part));
                continue;
            }
            let mut next = Vec::new();
            for folder in found {
                self.look_in(&folder);
                let mut names = self.files.names(&self.base.join(&folder))?;
                names.sort_unstable();
                self.entries += names.len();
                if self.entries > ENTRIES_MAX {
                    let what = format!("`include`: {} has too many entries", self.base.join(&folder).display());
                    return Err((what, "put what is included in a folder of its own".into()));
                }
                next.extend(names.iter().filter(|name| fits(&word, name)).map(|name| folder.join(name)));
            }
            found = next;
        }
        Ok(found)
    }

    fn look_in(&mut self, folder: &Path) {
        let folder = self.base.join(folder);
        let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
        if !self.rest.folders.contains(&folder) {
            self.rest.folders.push(folder);
        }
    }
}

/// The folder that a pattern's files are in, or beneath which they are.
pub(crate) fn folder(pattern: &str) -> PathBuf {
    let fixed =
        Path::new(pattern).components().take_while(|part| !part.as_os_str().to_string_lossy().contains(['*', '?']));
    let folder: PathBuf = fixed.collect();
    if folder == Path::new(pattern) { folder.parent().map(Path::to_path_buf).unwrap_or_default() } else { folder }
}

/// The patterns of a text with their places. What is no list of strings is reported by the schema.
fn patterns(text: &str, is_json: bool) -> Vec<(std::ops::Range<usize>, String)> {
    let lines = Lines::new(text);
    let reading = if is_json { read::json::read(&lines) } else { read::toml::read(&lines) };
    let Some(Node { value: Value::Table(entries), .. }) = &reading.root else { return Vec::new() };
    let Some(entry) = entries.iter().find(|entry| entry.key == INCLUDE) else { return Vec::new() };
    let Value::Array(items) = &entry.node.value else { return Vec::new() };
    let pattern = |node: &Node<'_>| match &node.value {
        Value::String(text) if names_files(text) => Some((node.span.start..node.span.end, text.to_string())),
        _ => None,
    };
    items.iter().filter_map(pattern).collect()
}

/// Whether a pattern can be of files.
pub(crate) fn names_files(pattern: &str) -> bool {
    !pattern.is_empty() && !pattern.ends_with('/')
}

/// Whether a name fits a word with `*` (any characters) and `?` (one). A name that begins with `.` fits only what
/// begins so too, as in a shell.
fn fits(word: &str, name: &str) -> bool {
    if name.starts_with('.') && !word.starts_with('.') {
        return false;
    }
    let (word, name): (Vec<char>, Vec<char>) = (word.chars().collect(), name.chars().collect());
    // The last `*`, and how far of the name it has taken: going back to the last one is enough.
    let (mut at, mut here, mut star) = (0, 0, None);
    while here < name.len() {
        match word.get(at) {
            Some('*') => {
                star = Some((at, here));
                at += 1;
            }
            Some(one) if *one == '?' || *one == name[here] => (at, here) = (at + 1, here + 1),
            _ => {
                let Some((after, taken)) = star else { return false };
                star = Some((after, taken + 1));
                (at, here) = (after + 1, taken + 1);
            }
        }
    }
    word[at..].iter().all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_patterns_as_in_a_shell() {
        for (word, name, is_fit) in [
            ("*.toml", "a.toml", true),
            ("*.toml", "a.toml~", false),
            ("*.toml", ".a.toml", false),
            (".*", ".a", true),
            ("a?c*", "abcde", true),
            ("a?c*", "ac", false),
            ("*a*b*", "xxaxxb", true),
            ("*", "", true),
            ("**x", "yx", true),
        ] {
            assert_eq!(fits(word, name), is_fit, "{word} {name}");
        }
    }

    #[test]
    fn a_pattern_has_the_folder_of_its_files() {
        for (pattern, expected) in [
            ("sites/*.toml", "sites"),
            ("*.toml", ""),
            ("a/b.toml", "a"),
            ("/etc/p/*/x.toml", "/etc/p"),
            ("b.toml", ""),
        ] {
            assert_eq!(folder(pattern), Path::new(expected), "{pattern}");
        }
    }
}

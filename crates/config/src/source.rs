//! The text of a configuration, and where it came from.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::include;
use crate::model::At;
use crate::problem::{self, Problem, render};
use crate::provenance::{FileEnd, Provenance, SOURCE_BYTES_MAX};
use crate::text::{Lines, Span};

/// A configuration as it was written.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file as the user named it, for messages, or [`crate::PUSHED`] or [`crate::PUSHED_JSON`]. A name that ends
    /// in `.json` is read as JSON, and so is the last of these, any other as TOML.
    pub name: Provenance,
    /// The folder that relative paths inside the text are joined to.
    pub base: PathBuf,
    /// The text itself, and behind it the texts of the files that it includes.
    pub text: String,
}

impl Source {
    /// Reads a file. The problem says whether it is missing, out of reach, a directory, too large or not UTF-8. What is
    /// wrong with files that it includes is reported with what is wrong with its text.
    pub fn read(path: impl AsRef<Path>) -> Result<Source, Problem> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let bytes = read_bytes(path, SOURCE_BYTES_MAX).map_err(|(what, fix)| Problem::error(&name, None, what, fix))?;
        Ok(Source::of(path, bytes)?.completed())
    }

    /// A file's text with the files that it includes, which are read, and with the variables of this process's
    /// environment.
    pub fn completed(self) -> Source {
        let Source { name, base, text } = self;
        let name = Provenance::with_variables(name, |name| std::env::var(name).ok());
        let (name, text) = include::gather(name, &base, text, &mut Disk);
        Source { name, base, text }
    }

    /// Makes a source of what somebody else has read from a file. The problem says whether it is not UTF-8. It includes
    /// nothing and has no variables until it is [`Source::completed`].
    pub fn of(path: &Path, bytes: Vec<u8>) -> Result<Source, Problem> {
        let name = path.display().to_string();
        let text = String::from_utf8(bytes).map_err(|error| {
            let valid = error.utf8_error().valid_up_to();
            not_utf8(&name, error.as_bytes(), valid)
        })?;
        let base = path.parent().map(Path::to_path_buf).unwrap_or_default();
        Ok(Source { name: name.into(), base, text })
    }

    /// The file that a position is in, and the position in that file.
    pub fn place(&self, at: At) -> (&str, At) {
        self.name.place(at)
    }

    /// How each of its files ends, the one that was named first.
    pub fn ends(&self) -> Vec<FileEnd<'_>> {
        self.name.ends(&self.text)
    }

    /// Order of problems: by file, the first one first, and by their places there.
    pub fn order(&self, problem: &Problem) -> (usize, Option<At>) {
        (self.name.rank(&problem.file), problem.at)
    }

    /// Problems as [`render`] prints them, each with the line of its own file.
    pub fn render(&self, problems: &[Problem]) -> String {
        let text = problem::without_mark(&self.text);
        problems.iter().map(|one| render(std::slice::from_ref(one), self.name.text_of(&one.file, text))).collect()
    }

    /// Whether the text is JSON, by the name.
    pub fn is_json(&self) -> bool {
        self.name.is_json()
    }
}

/// Reads at most one byte more than is allowed, so that a device without an end cannot hold us.
fn read_bytes(path: &Path, bytes_max: usize) -> Result<Vec<u8>, (String, String)> {
    let failed = |error: std::io::Error| {
        use std::io::ErrorKind::{IsADirectory, NotFound, PermissionDenied};
        let (what, fix) = match error.kind() {
            NotFound => ("there is no such file", "check the path"),
            PermissionDenied => ("this account may not read the file", "change its owner or its mode"),
            IsADirectory => ("this is a directory", "name the configuration file in it"),
            _ => {
                return (format!("the file cannot be read: {error}"), "check the path and the disk".into());
            }
        };
        (what.to_string(), fix.to_string())
    };
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > bytes_max {
        return Err(too_large());
    }
    Ok(bytes)
}

/// Included files as this process may read them.
struct Disk;

impl include::Files for Disk {
    fn read(&mut self, path: &Path, bytes_max: usize) -> Result<Vec<u8>, include::Failure> {
        let too_many = |failure: (String, String)| match bytes_max < SOURCE_BYTES_MAX && failure == too_large() {
            true => ("with it the configuration is larger than 4 MiB".to_owned(), failure.1),
            false => failure,
        };
        // A pipe has nobody at its other end, perhaps, and would be waited for.
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
            let what = format!("`include`: {} is not a file", path.display());
            return Err((
                what,
                "take it out of the folder, or name the files by a pattern that it does not fit".into(),
            ));
        }
        read_bytes(path, bytes_max).map_err(too_many)
    }

    fn names(&mut self, folder: &Path) -> Result<Vec<String>, include::Failure> {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            // A file beside the folders that a pattern goes through.
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => return Ok(Vec::new()),
            Err(error) => {
                let what = format!("`include`: {} cannot be listed: {error}", folder.display());
                return Err((what, "change its owner or its mode".into()));
            }
        };
        Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }
}

/// Message and fix for a text above the limit.
pub(crate) fn too_large() -> (String, String) {
    let mebibytes = SOURCE_BYTES_MAX >> 20;
    (format!("the file is larger than {mebibytes} MiB"), "check that it is a configuration file".into())
}

fn not_utf8(name: &str, bytes: &[u8], valid: usize) -> Problem {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Problem::error(name, None, "the file is in UTF-16", "save it as UTF-8");
    }
    let text = String::from_utf8_lossy(&bytes[..valid]);
    let mut at = Lines::new(&text).at(Span::new(valid, valid));
    at = At { length: 1, ..at };
    let what = format!("byte 0x{:02x} is not UTF-8", bytes.get(valid).copied().unwrap_or_default());
    Problem::error(name, Some(at), what, "save the file as UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(bytes: &[u8]) -> (PathBuf, Result<Source, Problem>) {
        // A folder for each call, so that each can remove its own.
        let folder = std::env::temp_dir().join(format!("propylon-config-{}-{}", std::process::id(), fastrand::u64(..)));
        std::fs::create_dir_all(&folder).expect("a folder for the test");
        let path = folder.join("propylon.toml");
        std::fs::write(&path, bytes).expect("a file for the test");
        let source = Source::read(&path);
        std::fs::remove_dir_all(&folder).expect("the folder is still there");
        (folder, source)
    }

    #[test]
    fn a_file_is_read_with_its_folder_as_base() {
        let (folder, source) = written(b"a = 1\n");
        let source = source.expect("a readable file");
        assert_eq!(source.base, folder);
        assert_eq!(source.text, "a = 1\n");
    }

    #[test]
    fn what_is_not_utf_8_is_refused_with_its_position() {
        let problem = written("a = 1\nä = \"".bytes().chain([0xff]).collect::<Vec<_>>().as_slice()).1.unwrap_err();
        assert_eq!(problem.at, Some(At { line: 2, column: 6, length: 1 }));
        assert_eq!(problem.what, "byte 0xff is not UTF-8");
        let problem = written(&[0xff, 0xfe, b'a', 0]).1.unwrap_err();
        assert_eq!(problem.what, "the file is in UTF-16");
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_the_reason() {
        assert_eq!(Source::read("/").unwrap_err().what, "this is a directory");
        assert_eq!(Source::read("/nowhere/x.toml").unwrap_err().what, "there is no such file");
        let problem = written(&vec![b'#'; SOURCE_BYTES_MAX + 1]).1.unwrap_err();
        assert_eq!(problem.what, "the file is larger than 4 MiB");
        #[cfg(target_os = "linux")]
        assert_eq!(Source::read("/dev/zero").unwrap_err().what, "the file is larger than 4 MiB");
    }
}

//! The text of a configuration, and where it came from.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::model::At;
use crate::problem::{PUSHED_JSON, Problem};
use crate::text::{Lines, Span};

/// Longest configuration that is read. 10,000 routes take about one of these four MiB.
pub const SOURCE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// A configuration as it was written.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file as the user named it, for messages, or [`PUSHED`] or [`PUSHED_JSON`]. A name that ends in `.json` is
    /// read as JSON, and so is the last of these, any other as TOML.
    pub name: String,
    /// The folder that relative paths inside the text are joined to.
    pub base: PathBuf,
    /// The text itself.
    pub text: String,
}

impl Source {
    /// Reads a file. The problem says whether it is missing, out of reach, a directory, too large or not UTF-8.
    pub fn read(path: impl AsRef<Path>) -> Result<Source, Problem> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let bytes = read_bytes(path).map_err(|(what, fix)| Problem::error(&name, None, what, fix))?;
        Source::of(path, bytes)
    }

    /// Makes a source of what somebody else has read from a file. The problem says whether it is not UTF-8.
    pub fn of(path: &Path, bytes: Vec<u8>) -> Result<Source, Problem> {
        let name = path.display().to_string();
        let text = String::from_utf8(bytes).map_err(|error| {
            let valid = error.utf8_error().valid_up_to();
            not_utf8(&name, error.as_bytes(), valid)
        })?;
        let base = path.parent().map(Path::to_path_buf).unwrap_or_default();
        Ok(Source { name, base, text })
    }

    /// Whether the text is JSON, by the name.
    pub fn is_json(&self) -> bool {
        self.name == PUSHED_JSON || self.name.to_ascii_lowercase().ends_with(".json")
    }
}

/// Reads at most one byte more than is allowed, so that a device without an end cannot hold us.
fn read_bytes(path: &Path) -> Result<Vec<u8>, (String, String)> {
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
    file.take(SOURCE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > SOURCE_BYTES_MAX {
        return Err(too_large());
    }
    Ok(bytes)
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

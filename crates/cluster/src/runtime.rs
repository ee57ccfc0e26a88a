//! The runtime folder: opened files that the engine serves from, in memory (`/run`), for its account alone.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Longest name of a certificate.
const NAME_CHARS_MAX: usize = 128;
/// Certificates with their keys are below it, one file each.
pub const CERTIFICATES: &str = "certificates";
/// The same, as configurations name it.
pub const CERTIFICATES_PATH: &str = "certificates/";
pub const TICKET_KEYS: &str = "ticket-keys";
pub const STICKY_KEY: &str = "sticky-key";
/// The flow table, for the process that loads it.
pub const FLOWS_TABLE: &str = "flows.table";
/// Counts of that process.
pub const FLOWS_STATUS: &str = "flows.status";

#[derive(Clone, Debug)]
pub struct Runtime {
    folder: PathBuf,
}

impl Runtime {
    /// Makes the folder where it is missing.
    pub fn open(folder: &Path) -> io::Result<Runtime> {
        let folder = folder.to_owned();
        DirBuilder::new().recursive(true).mode(0o700).create(folder.join(CERTIFICATES))?;
        // The folder's parent may be everybody's.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
        Ok(Runtime { folder })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub fn certificate(&self, name: &str) -> PathBuf {
        self.folder.join(CERTIFICATES).join(format!("{name}.pem"))
    }

    /// Replaces a file whole, if its content is another. Returns whether it was.
    pub fn write(&self, path: &Path, content: &[u8]) -> io::Result<bool> {
        if fs::read(path).is_ok_and(|known| known == content) {
            return Ok(false);
        }
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        let _ = fs::remove_file(&beside);
        let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside);
        let mut file: File = written?;
        let result = file.write_all(content).and_then(|()| fs::rename(&beside, path));
        if result.is_err() {
            let _ = fs::remove_file(&beside);
        }
        result.map(|()| true)
    }

    /// Names of certificates that have a file.
    pub fn certificates(&self) -> Vec<String> {
        let files = fs::read_dir(self.folder.join(CERTIFICATES)).into_iter().flatten().flatten();
        files.filter_map(|file| file.file_name().to_str()?.strip_suffix(".pem").map(str::to_owned)).collect()
    }

    /// Removes a file. Returns whether it was there.
    pub fn remove(&self, path: &Path) -> io::Result<bool> {
        match fs::remove_file(path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Whether a text may be a certificate's name, and so part of a file's.
pub fn is_name(text: &str) -> bool {
    let is_usual = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '*');
    (1..=NAME_CHARS_MAX).contains(&text.len()) && !text.starts_with('.') && text.chars().all(is_usual)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_never_paths() {
        for name in ["shop", "*.shop.example", "a_b-c.1"] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", ".", "..", ".hidden", "a/b", "a\\b", "a b", "ü", "a\0", &"a".repeat(129)] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn files_are_replaced_whole_for_this_account_alone_and_only_when_they_change() {
        let folder = std::env::temp_dir().join(format!("propylon-runtime-{}", std::process::id()));
        let runtime = Runtime::open(&folder).unwrap();
        let path = runtime.certificate("shop");
        assert!(runtime.write(&path, b"one").unwrap());
        assert!(!runtime.write(&path, b"one").unwrap());
        assert!(runtime.write(&path, b"two").unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(runtime.remove(&path).unwrap() && !runtime.remove(&path).unwrap());
        fs::remove_dir_all(&folder).unwrap();
    }
}

//! Files without a name, which end with those who have them open.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Makes a file in this folder, to be written and read by this process alone. Where the file system knows no files
/// without a name (O_TMPFILE, open(2)) it has one for a moment.
///
/// # Errors
/// The folder is not there or not to be written to.
pub fn temporary_file(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    match options.clone().custom_flags(libc::O_TMPFILE).open(folder) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => named(folder, &options),
        made => made,
    }
}

fn named(folder: &Path, options: &OpenOptions) -> io::Result<File> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = format!(".propylon-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let path = folder.join(name);
    let file = options.clone().create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    #[test]
    fn a_file_has_no_name_and_is_nobody_elses() {
        let folder = std::env::temp_dir().join(format!("propylon-nameless-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        for file in [temporary_file(&folder).unwrap(), named(&folder, &options).unwrap()] {
            file.write_all_at(b"body", 7).unwrap();
            let mut read = [0; 4];
            file.read_exact_at(&mut read, 7).unwrap();
            assert_eq!(&read, b"body");
            let metadata = file.metadata().unwrap();
            assert_eq!((metadata.nlink(), metadata.mode() & 0o777), (0, 0o600));
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        fs::remove_dir(&folder).unwrap();
        assert_eq!(temporary_file(&folder).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}

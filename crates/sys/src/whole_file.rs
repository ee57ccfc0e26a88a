//! Small files, read whole.

use std::fs::OpenOptions;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Contents of a file of so many bytes at most.
///
/// # Errors
/// [`ErrorKind::FileTooLarge`] for a longer one, [`ErrorKind::InvalidInput`] for what is no regular file, and those of
/// the system.
pub fn read_whole_file(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    // A pipe has nobody at its other end, perhaps.
    let file = OpenOptions::new().read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is not a file"));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("it has more than {} KiB", bytes_max >> 10)));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit_and_what_is_none_is_refused() {
        let path = std::env::temp_dir().join(format!("propylon-whole-file-{}", std::process::id()));
        std::fs::write(&path, [b'x'; 1024]).unwrap();
        assert_eq!(read_whole_file(&path, 1024).unwrap().len(), 1024);
        assert_eq!(read_whole_file(&path, 1023).unwrap_err().kind(), ErrorKind::FileTooLarge);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read_whole_file(&path, 1).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(read_whole_file(&std::env::temp_dir(), 1).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

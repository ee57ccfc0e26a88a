//! A file's metadata (inode, size, times), by which an unchanged file is recognised without being read.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

/// Metadata of a file. A file with the same metadata as before, which had settled by then, has the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    device: u64,
    inode: u64,
    size: u64,
    /// Nanoseconds since 1970; wraps around, since it is only compared.
    modified_ns: i64,
    changed_ns: i64,
}

/// Coarsest step of a file system's times: two seconds (FAT).
const TIME_STEP: Duration = Duration::from_secs(2);

impl FileStamp {
    pub fn of(metadata: &fs::Metadata) -> FileStamp {
        let ns = |seconds: i64, ns: i64| seconds.wrapping_mul(1_000_000_000).wrapping_add(ns);
        FileStamp {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Metadata of a file that is older than the steps of its times: if it changes after `now`, its metadata will
    /// differ.
    pub fn settled(metadata: &fs::Metadata, now: SystemTime) -> Option<FileStamp> {
        FileStamp::is_settled(metadata, now).then(|| FileStamp::of(metadata))
    }

    /// As [`FileStamp::settled`], of a file that another process has read: device, inode, size, times of modification
    /// and of change.
    pub fn of_numbers([device, inode, size, modified, changed]: [u64; 5], now: SystemTime) -> Option<FileStamp> {
        let since = SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(modified))?;
        let (modified_ns, changed_ns) = (modified as i64, changed as i64);
        is_old(since, now).then_some(FileStamp { device, inode, size, modified_ns, changed_ns })
    }

    pub fn is_settled(metadata: &fs::Metadata, now: SystemTime) -> bool {
        metadata.modified().is_ok_and(|modified| is_old(modified, now))
    }

    pub fn bytes(&self) -> [u8; 40] {
        let mut bytes = [0; 40];
        let numbers = [self.device, self.inode, self.size, self.modified_ns as u64, self.changed_ns as u64];
        for (room, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            room.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }
}

/// Whether a file is older than a step. A time in the future is taken for another clock's, not for a reason to read the
/// file again and again.
fn is_old(modified: SystemTime, now: SystemTime) -> bool {
    now.duration_since(modified).map_or(true, |age| age >= TIME_STEP)
}

//! Bounds on what the engine holds of bodies, in memory and in files.
//!
//! Both are credits, which cores take without a line that all of them write.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use propylon_policy::credits::Credits;

use crate::disk::Disk;

/// Bytes of memory that a credit stands for, and of a piece that a body is kept in.
pub const PIECE_BYTES: usize = 16 * 1024;
/// Bytes of a file that a credit stands for.
pub const BLOCK_BYTES: usize = 64 * 1024;

/// Bounds of the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Bytes in memory.
    pub memory: u64,
    /// Bytes in files.
    pub disk: u64,
    /// Folder of the files; without one there are none.
    pub folder: Option<PathBuf>,
}

/// Bounds of one body, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub memory: u64,
    pub disk: u64,
}

/// Why a body is not held any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The body is longer than its own bounds.
    TooLong,
    /// The engine has no memory left for bodies.
    Memory,
    /// The engine has no room left in files.
    Disk,
    /// A file could not be made, written or read.
    Failed,
}

/// Room of the engine for bodies.
pub struct Space {
    pub(crate) memory: Credits,
    pub(crate) disk: Credits,
    folder: Mutex<Option<PathBuf>>,
    threads: OnceLock<Disk>,
    /// When it was last told that a file failed.
    warned: Mutex<Option<Instant>>,
    cores: usize,
}

/// Pause between two lines of the log about files that fail: each request may have one, and metrics count them.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

impl Space {
    /// For so many cores. There is room for nothing before [`Space::set_terms`].
    #[must_use]
    pub fn new(cores: usize) -> Arc<Space> {
        let (memory, disk) = (Credits::new(0, cores), Credits::new(0, cores));
        Arc::new(Space {
            memory,
            disk,
            folder: Mutex::new(None),
            threads: OnceLock::new(),
            warned: Mutex::new(None),
            cores,
        })
    }

    /// Puts terms into effect; one thread at a time may, which is on no core in particular: threads inherit that. What
    /// is held stays. Where terms have no folder the last one stays as well, with its bound: nobody who begins by these
    /// terms holds anything in files, and requests that have begun by earlier ones end by those.
    pub fn set_terms(&self, terms: &Terms) {
        self.memory.set_limit(credits(terms.memory, PIECE_BYTES));
        let Some(folder) = &terms.folder else { return };
        self.disk.set_limit(credits(terms.disk, BLOCK_BYTES));
        *self.folder.lock().unwrap_or_else(PoisonError::into_inner) = Some(folder.clone());
        self.threads();
    }

    /// Says in the log that a file cannot be `written to` or `read from`, with its folder and what to do, now and then.
    pub(crate) fn warn(&self, how: &str, error: &io::Error) {
        let now = Instant::now();
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.is_some_and(|warned| now.duration_since(warned) < WARN_INTERVAL) {
            return;
        }
        *warned = Some(now);
        let folder = self.folder.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default();
        log::warn!(
            "a body cannot be {how} its file in {folder} (process.temp_dir): {error}; its request gets 503 buffer-failed; make room \
             there (df -h {folder}), or lower process.buffer_disk below what there is",
            folder = folder.display()
        );
    }

    /// Bytes of memory and of files that are taken.
    #[must_use]
    pub fn taken(&self) -> (u64, u64) {
        (u64::from(self.memory.taken()) * PIECE_BYTES as u64, u64::from(self.disk.taken()) * BLOCK_BYTES as u64)
    }

    pub(crate) fn threads(&self) -> &Disk {
        self.threads.get_or_init(Disk::start)
    }

    /// A new file that has no name. It blocks.
    pub(crate) fn file(&self) -> io::Result<File> {
        let folder = self.folder.lock().unwrap_or_else(PoisonError::into_inner).clone();
        propylon_sys::temporary_file(&folder.ok_or(io::ErrorKind::NotFound)?)
    }
}

fn credits(bytes: u64, each: usize) -> u32 {
    u32::try_from(bytes / each as u64).unwrap_or(u32::MAX)
}

/// Credits that a body has taken; dropping it gives them back.
pub(crate) struct Claim {
    pub(crate) space: Arc<Space>,
    pub(crate) core: usize,
    pieces: u32,
    blocks: u32,
}

impl Claim {
    pub(crate) fn new(space: &Arc<Space>, core: usize) -> Claim {
        Claim { space: Arc::clone(space), core: core % space.cores, pieces: 0, blocks: 0 }
    }

    pub(crate) fn take_piece(&mut self) -> bool {
        let is_taken = self.space.memory.take(self.core);
        self.pieces += u32::from(is_taken);
        is_taken
    }

    /// Takes so many pieces, or none where there are fewer.
    pub(crate) fn take_pieces(&mut self, wanted: usize) -> bool {
        for taken in 0..wanted {
            if !self.take_piece() {
                (0..taken).for_each(|_| self.give_piece());
                return false;
            }
        }
        true
    }

    pub(crate) fn give_piece(&mut self) {
        self.pieces -= 1;
        self.space.memory.give_back(self.core);
    }

    /// Takes blocks until there are enough for a file of so many bytes.
    pub(crate) fn cover(&mut self, bytes: u64) -> bool {
        while u64::from(self.blocks) * (BLOCK_BYTES as u64) < bytes {
            if !self.space.disk.take(self.core) {
                return false;
            }
            self.blocks += 1;
        }
        true
    }

    pub(crate) fn give_blocks(&mut self) {
        (0..std::mem::take(&mut self.blocks)).for_each(|_| self.space.disk.give_back(self.core));
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        (0..self.pieces).for_each(|_| self.space.memory.give_back(self.core));
        self.give_blocks();
    }
}

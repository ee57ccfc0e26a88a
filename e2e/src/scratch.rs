//! A folder of a story's own, gone when the story is over.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

const PREFIX: &str = "propylon-e2e-";
/// A file system in memory.
const MEMORY: &str = "/dev/shm";
/// Bytes that have to be free there: a member of etcd takes 64 MiB for its log at once.
const MEMORY_MIN: u64 = 2 << 30;

pub struct Scratch(PathBuf);

impl Scratch {
    #[allow(clippy::new_without_default, reason = "making one touches the file system")]
    pub fn new() -> Scratch {
        Scratch::below(&std::env::temp_dir())
    }

    /// In the machine's memory, where it has room for it: members of etcd, each of which waits for its disk at every
    /// write, are not to share one.
    pub fn in_memory() -> Scratch {
        let has_room = |place: &Path| {
            let free = rustix::fs::statvfs(place).map_or(0, |place| place.f_bavail.saturating_mul(place.f_frsize));
            free >= MEMORY_MIN
        };
        let place = Path::new(MEMORY);
        if has_room(place) { Scratch::below(place) } else { Scratch::new() }
    }

    /// Where folders of stories may be.
    pub(crate) fn places() -> [PathBuf; 2] {
        [std::env::temp_dir(), PathBuf::from(MEMORY)]
    }

    fn below(place: &Path) -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        static SWEEP: Once = Once::new();
        SWEEP.call_once(sweep);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = place.join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("a temporary folder");
        Scratch(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file, for nobody else to read (some hold keys), and returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(content.as_ref())).expect("a file in a temporary folder");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes what processes have left that are gone: statics are not dropped, and a test may have been killed.
fn sweep() {
    let entries = Scratch::places().into_iter().flat_map(|place| fs::read_dir(place).into_iter().flatten());
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

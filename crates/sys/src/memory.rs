//! How much memory there is to be used, and how much is: of the machine, and of the control group that confines us.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::control_groups::{Kind, ROOT, folders, parse_membership};

/// Memory of the machine, in bytes.
pub fn machine_memory_bytes() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib: Option<u64> = line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok());
    let kib = kib.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/meminfo has no MemTotal"))?;
    Ok(kib.saturating_mul(1024))
}

/// The control group with the narrowest limit on memory among ours and those around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryGroup {
    folder: PathBuf,
    kind: Kind,
    limit: u64,
}

/// Names of the files of memory.
impl Kind {
    fn limit(self) -> &'static str {
        match self {
            Kind::V2 => "memory.max",
            Kind::V1 => "memory.limit_in_bytes",
        }
    }

    fn usage(self) -> &'static str {
        match self {
            Kind::V2 => "memory.current",
            Kind::V1 => "memory.usage_in_bytes",
        }
    }

    /// Cached files that nobody has asked for lately: the kernel gives them up before it kills anybody.
    fn spare(self) -> &'static str {
        match self {
            Kind::V2 => "inactive_file",
            Kind::V1 => "total_inactive_file",
        }
    }
}

impl MemoryGroup {
    /// The group that confines this process; none where no limit below `machine_bytes` does, or none can be read.
    pub fn own(machine_bytes: u64) -> Option<MemoryGroup> {
        let text = fs::read_to_string("/proc/self/cgroup").ok()?;
        let (kind, path) = parse_membership(&text, "memory")?;
        let root = match kind {
            Kind::V2 => PathBuf::from(ROOT),
            Kind::V1 => Path::new(ROOT).join("memory"),
        };
        narrowest(&root, path, kind, machine_bytes)
    }

    /// In bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that the group uses and the kernel cannot have back at once, its sockets' memory included. Two reads.
    pub fn used(&self) -> io::Result<u64> {
        let number = fs::read_to_string(self.folder.join(self.kind.usage()))?;
        let used: u64 = number.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
        let details = fs::read_to_string(self.folder.join("memory.stat"))?;
        let spare = details.lines().find_map(|line| line.strip_prefix(self.kind.spare())?.trim().parse().ok());
        Ok(used.saturating_sub(spare.unwrap_or(0)))
    }
}

fn narrowest(root: &Path, path: &str, kind: Kind, machine_bytes: u64) -> Option<MemoryGroup> {
    let mut found: Option<MemoryGroup> = None;
    for folder in folders(root, path) {
        let text = fs::read_to_string(folder.join(kind.limit())).unwrap_or_default();
        // "max", or a number near 2^63: no limit.
        let Ok(limit) = text.trim().parse::<u64>() else { continue };
        if limit < machine_bytes && found.as_ref().is_none_or(|narrower| limit < narrower.limit) {
            found = Some(MemoryGroup { folder, kind, limit });
        }
    }
    found
}

/// Releases memory to the kernel that the calling thread's allocators hold for later, and that other threads have
/// freed.
///
/// The allocator does so by itself as well, but only while memory is allocated: a thread that has become idle would
/// keep the memory of its busiest hour. There are two: Rust's, which is mimalloc where the program says so, and C's,
/// which the cryptographic library uses. A call visits every page that they have, which takes milliseconds.
#[allow(unsafe_code)]
pub fn release_memory() {
    // SAFETY: mi_collect(3) may be called at any time, by any thread, and touches no block that is in use.
    unsafe { mi_collect(true) };
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim(3) may be called at any time, by any thread, and frees no block that is in use.
    unsafe {
        libc::malloc_trim(0)
    };
}

// The bindings have it only with a feature that costs another crate; naming the crate here links the library.
use libmimalloc_sys as _;

#[allow(unsafe_code)]
// SAFETY: as mimalloc.h declares it: `void mi_collect(bool force)`.
unsafe extern "C" {
    fn mi_collect(force: bool);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_limit_on_the_way_to_the_root_holds() {
        let root = std::env::temp_dir().join(format!("propylon-sys-memory-{}", std::process::id()));
        let inner = root.join("slice/service");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("memory.max"), "max\n").unwrap();
        fs::write(root.join("slice/memory.max"), "1000\n").unwrap();
        fs::write(root.join("slice/memory.current"), "700\n").unwrap();
        fs::write(root.join("slice/memory.stat"), "anon 5\ninactive_file 200\n").unwrap();
        fs::write(root.join("memory.max"), "2000\n").unwrap();
        let group = narrowest(&root, "/slice/service", Kind::V2, 1 << 40).unwrap();
        assert_eq!((group.limit(), group.used().unwrap()), (1000, 500));
        assert_eq!(narrowest(&root, "/slice/service", Kind::V2, 900), None);
        // A path of the outside is looked for in vain; the root counts.
        let group = narrowest(&root, "/docker/7f", Kind::V2, 1 << 40).unwrap();
        assert_eq!(group.limit(), 2000);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_machine_has_more_memory_than_this_process_uses() {
        assert!(machine_memory_bytes().unwrap() > crate::resident_bytes().unwrap());
    }
}

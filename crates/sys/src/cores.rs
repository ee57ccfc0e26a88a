//! Which cores there are, and staying on one.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::{fs, io, thread};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::control_groups::{Kind, ROOT, folders, parse_membership};

/// The cores this thread may run on, in rising order; never empty.
///
/// A quota is not part of it: with four cores and a quota of one, this says four, and [`usable_cores`] one.
pub fn allowed_cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        // The kernel has more cores than its mask has bits here; it still knows how many of them are ours.
        return (0..thread::available_parallelism().map_or(1, NonZeroUsize::get)).collect();
    };
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

/// Cores that this process can use at once: those that this thread may run on, or the quota of its control groups,
/// rounded up; at least one. A quota of 1.5 is two: of whole cores half a one would be left over.
pub fn usable_cores() -> usize {
    let allowed = allowed_cores().len();
    quota().map_or(allowed, |quota| allowed.min(quota.ceil() as usize)).max(1)
}

/// The narrowest quota of this process's control groups, in cores; none without one (cgroup `cpu.max`, and
/// `cpu.cfs_quota_us` of version 1).
pub fn quota() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/cgroup").ok()?;
    let (kind, path) = parse_membership(&text, "cpu")?;
    let root = match kind {
        Kind::V2 => PathBuf::from(ROOT),
        Kind::V1 => Path::new(ROOT).join("cpu"),
    };
    folders(&root, path).filter_map(|folder| quota_of(&folder, kind)).min_by(f64::total_cmp)
}

fn quota_of(folder: &Path, kind: Kind) -> Option<f64> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let text = match kind {
        Kind::V2 => read("cpu.max")?,
        Kind::V1 => format!("{} {}", read("cpu.cfs_quota_us")?.trim(), read("cpu.cfs_period_us")?.trim()),
    };
    // "max" and -1 are no quota.
    let mut microseconds = text.split_ascii_whitespace().map(|number| number.parse::<u64>().ok());
    let (quota, period) = (microseconds.next()??, microseconds.next()??);
    (period > 0).then(|| quota as f64 / period as f64)
}

/// Keeps the calling thread, and threads that it starts later, on one core.
pub fn pin_to_core(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("core {core} is beyond {}", CpuSet::MAX_CPU - 1),
        ));
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_is_allowed_one_core() {
        for core in allowed_cores() {
            let seen = thread::spawn(move || pin_to_core(core).map(|()| allowed_cores())).join().unwrap();
            assert_eq!(seen.unwrap(), [core]);
        }
    }

    #[test]
    fn pinning_leaves_other_threads_alone() {
        let before = allowed_cores();
        let first = before[0];
        thread::spawn(move || pin_to_core(first)).join().unwrap().unwrap();
        assert_eq!(allowed_cores(), before);
    }

    #[test]
    fn quotas_are_read_as_each_hierarchy_writes_them() {
        let folder = std::env::temp_dir().join(format!("propylon-sys-quota-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        assert_eq!(quota_of(&folder, Kind::V2), None);
        for (text, wanted) in [("max 100000\n", None), ("150000 100000\n", Some(1.5)), ("5 0\n", None), ("", None)] {
            write("cpu.max", text);
            assert_eq!(quota_of(&folder, Kind::V2), wanted, "{text}");
        }
        write("cpu.cfs_period_us", "100000\n");
        for (text, wanted) in [("-1\n", None), ("400000\n", Some(4.0))] {
            write("cpu.cfs_quota_us", text);
            assert_eq!(quota_of(&folder, Kind::V1), wanted, "{text}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_core_that_is_not_there_is_an_error() {
        assert!(pin_to_core(CpuSet::MAX_CPU - 1).is_err());
        assert!(pin_to_core(usize::MAX).is_err());
    }
}

//! Which cores there are, and staying on one.

use std::io;
use std::num::NonZeroUsize;
use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores this thread may run on, in rising order; never empty.
///
/// A CPU quota (cgroup `cpu.max`) is not part of it: with four cores and a quota of one, this says four.
pub fn allowed_cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else {
        // The kernel has more cores than its mask has bits here; it still knows how many of them are ours.
        return (0..thread::available_parallelism().map_or(1, NonZeroUsize::get)).collect();
    };
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
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
    fn a_core_that_is_not_there_is_an_error() {
        assert!(pin_to_core(CpuSet::MAX_CPU - 1).is_err());
        assert!(pin_to_core(usize::MAX).is_err());
    }
}

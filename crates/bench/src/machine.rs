//! The machine's resources that this process asks for: a core, open files, free ports.

use crate::failure::{Failure, Outcome, While};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::net::TcpListener;

/// Keeps the calling thread, and whatever it starts from now on, on one core.
pub fn pin_to_core(core: usize) -> Outcome<()> {
    pin_to_cores(&[core])
}

/// The same for several cores, among which the kernel chooses.
pub fn pin_to_cores(cores: &[usize]) -> Outcome<()> {
    let mut set = CpuSet::new();
    for &core in cores {
        if core >= CpuSet::MAX_CPU {
            return Err(Failure::new(format!("core {core}: this machine has no such core")));
        }
        set.set(core);
    }
    sched_setaffinity(None, &set).when(format_args!("pinning to cores {cores:?}"))
}

/// Runs `work` with the calling thread on `cores`, so that a process it starts is born there, and goes back.
pub fn on_cores<T>(cores: &[usize], work: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let before = sched_getaffinity(None).when("asking for this thread's cores")?;
    pin_to_cores(cores)?;
    let result = work();
    sched_setaffinity(None, &before).when("going back to this thread's cores")?;
    result
}

/// Cores that this thread may run on.
pub fn cores_allowed() -> Vec<usize> {
    let Ok(cores) = sched_getaffinity(None) else {
        return vec![0];
    };
    (0..CpuSet::MAX_CPU).filter(|&core| cores.is_set(core)).collect()
}

/// Raises the soft limit of open files to the hard one and returns it.
pub fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Fails early, with advice, when `connections` sockets would not fit into one process.
pub fn require_open_files(connections: usize) -> Outcome<()> {
    /// Standard streams, epoll, /proc files and the like.
    const SPARE_FILES: u64 = 64;
    let limit = raise_open_files();
    if connections as u64 + SPARE_FILES > limit {
        return Err(Failure::new(format!(
            "{connections} connections do not fit into the limit of {limit} open files; \
             use --processes to split them, or raise it with ulimit -n"
        )));
    }
    Ok(())
}

/// `count` ports on 127.0.0.1 that nobody listens on at the moment, all different.
pub fn free_ports(count: usize) -> Outcome<Vec<u16>> {
    let held = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0").when("looking for a free port"))
        .collect::<Outcome<Vec<_>>>()?;
    held.iter().map(|listener| Ok(listener.local_addr().when("looking for a free port")?.port())).collect()
}

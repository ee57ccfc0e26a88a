//! The process as a whole: its limits, its core dumps, what it has used.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::time::Duration;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setpriority_process, setrlimit,
};
use rustix::thread::{disable_transparent_huge_pages, set_name, set_no_new_privs};
use rustix::time::{ClockId, clock_gettime};

/// How many files may be open at once (the soft limit); `u64::MAX` when there is no limit.
pub fn files_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the soft limit to the hard one and says what the limit is now.
///
/// Failure is not an error: the limit that is returned is what the caller must live with anyway.
pub fn raise_files_limit() -> u64 {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    files_limit()
}

/// Bytes that a core file may have: too few for one, and the only limit by which the kernel does not start the program
/// of a `core_pattern` that is a pipe; with 0 it would, and hand the whole memory to it (core(5)).
const CORE_BYTES: u64 = 1;

/// Private keys must never reach a core dump, nor a debugger of the same user.
///
/// The limit and the flag guard each other: a limit can be lifted by root, and the kernel sets the flag again where an
/// account changes (as `fs.suid_dumpable` has it), for which [`crate::drop_privileges`] makes up. From then on
/// `/proc/self` belongs to root: after `drop_privileges` files like `/proc/self/fd` cannot be listed any more, while
/// `statm`, `status` and `task` stay readable.
pub fn no_core_dumps() -> io::Result<()> {
    let least = |limit: u64| Rlimit { current: Some(limit), maximum: Some(limit) };
    // The starter of the process may have set the hard limit to 0 already, and only root can raise it.
    setrlimit(Resource::Core, least(CORE_BYTES)).or_else(|_| setrlimit(Resource::Core, least(0)))?;
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Blocks signals in this thread, so that those sent to the process are delivered to other threads. A handler's frame,
/// which holds all registers, would go on the stack that this thread happens to run on, and that may be a small one.
///
/// Signals that the thread brings upon itself (SIGSEGV and its like) still come to it.
pub fn block_signals() -> io::Result<()> {
    // SAFETY: the set is written by sigfillset before it is read, and belongs to this call.
    #[allow(unsafe_code)]
    let refused = unsafe {
        let mut set = std::mem::MaybeUninit::uninit();
        libc::sigfillset(set.as_mut_ptr());
        for own in OWN_SIGNALS {
            libc::sigdelset(set.as_mut_ptr(), own);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut())
    };
    if refused == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(refused)) }
}

/// Signals that a thread causes itself.
const OWN_SIGNALS: [libc::c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGABRT, libc::SIGSYS];

/// Keeps all memory of the process out of swap, what it will map later included, page by page as they are touched.
///
/// Says whether it did: without a limit on locked memory only, which root can lift for itself. Under a limit, memory
/// that is mapped later would be refused, and a process that dies when it is busiest keeps no secrets better.
pub fn lock_memory() -> io::Result<bool> {
    let unlimited = Rlimit { current: None, maximum: None };
    let _ = setrlimit(Resource::Memlock, unlimited);
    if getrlimit(Resource::Memlock) != unlimited {
        return Ok(false);
    }
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)?;
    Ok(true)
}

/// Memory is taken by the page of 4 KiB from here on, whatever the allocator asks for: in pages of 2 MiB a hundred
/// connections would take as much as a thousand, and what is left of a crowd would keep nearly all of what the crowd
/// took.
pub fn no_huge_pages() -> io::Result<()> {
    Ok(disable_transparent_huge_pages(true)?)
}

/// Names the calling thread: on the main thread, the process as `ps -o comm` and `top` show it. Of more than 15 bytes
/// the kernel keeps the first 15.
pub fn name_process(name: &CStr) -> io::Result<()> {
    Ok(set_name(name)?)
}

/// No program that is started from here on gets more rights than its starter, whatever its mode bits say.
pub fn no_new_privileges() -> io::Result<()> {
    Ok(set_no_new_privs(true)?)
}

/// Marks all files of this process, inherited ones among them, to be closed in programs that it starts; standard input,
/// output and error stay open. An error on kernels before 5.11, which cannot.
pub fn close_files_on_exec() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: the call takes three numbers and touches no memory; which file has which number stays as it is.
    #[allow(unsafe_code)]
    let refused = unsafe {
        libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_uint)
    };
    if refused == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets other threads go first; for the calling thread only. 19 is the last of all, 0 the usual place.
pub fn lower_priority(nice: u8) -> io::Result<()> {
    Ok(setpriority_process(None, i32::from(nice.min(19)))?)
}

/// CPU time that all threads together have used, in user and kernel mode.
pub fn process_cpu() -> Duration {
    cpu(ClockId::ProcessCPUTime)
}

/// CPU time that the calling thread has used, in user and kernel mode.
pub fn thread_cpu() -> Duration {
    cpu(ClockId::ThreadCPUTime)
}

/// Memory that is resident now, in bytes, shared pages included. Reads `/proc`: not for a hot path.
pub fn resident_bytes() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages: Option<u64> = text.split_ascii_whitespace().nth(1).and_then(|field| field.parse().ok());
    let pages =
        pages.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/self/statm has no second number"))?;
    Ok(pages * page_bytes())
}

/// The size of a page of memory, which the C library knows since the process began.
fn page_bytes() -> u64 {
    // SAFETY: `sysconf` takes a number and returns one.
    #[allow(unsafe_code)]
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).unwrap_or(4096)
}

/// Whether somebody keeps the kernel's clock right (NTP, PTP or the host); none where it cannot be asked.
pub fn is_clock_synchronised() -> Option<bool> {
    // Nothing is set where no mode is named, so that it takes no rights. SAFETY: `timex` is a C struct of numbers, for
    // which zeros are values; the kernel writes into it and keeps no pointer.
    #[allow(unsafe_code)]
    let (state, clock) = unsafe {
        let mut clock: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&raw mut clock), clock)
    };
    (state >= 0).then_some(clock.status & libc::STA_UNSYNC == 0)
}

/// Traces another process, and detaches at once: a process that may do that may read the other's memory.
pub fn try_trace(pid: u32) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: neither request reads or writes memory of this process: address and data mean nothing to them.
    #[allow(unsafe_code)]
    unsafe {
        if libc::ptrace(libc::PTRACE_ATTACH, pid, none, none) != 0 {
            return Err(io::Error::last_os_error());
        }
        // The child has to have stopped before it can be let go.
        libc::waitpid(pid, std::ptr::null_mut(), 0);
        libc::ptrace(libc::PTRACE_DETACH, pid, none, none);
    }
    Ok(())
}

fn cpu(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::thread;

    use rustix::process::dumpable_behavior;

    use super::*;

    #[test]
    fn the_soft_limit_reaches_the_hard_one() {
        let raised = raise_files_limit();
        assert_eq!(raised, files_limit());
        assert_eq!(Some(raised), getrlimit(Resource::Nofile).maximum.or(Some(u64::MAX)));
    }

    #[test]
    fn a_thread_that_leaves_signals_to_others_keeps_its_own() {
        thread::spawn(|| {
            block_signals().unwrap();
            let status = fs::read_to_string("/proc/thread-self/status").unwrap();
            let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
            let blocked = u64::from_str_radix(blocked.trim(), 16).unwrap();
            let is_blocked = |signal: libc::c_int| blocked & (1 << (signal - 1)) != 0;
            for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGCHLD, libc::SIGPROF, libc::SIGRTMAX()] {
                assert!(is_blocked(signal), "{signal}");
            }
            assert!(!OWN_SIGNALS.into_iter().any(is_blocked));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn no_core_dump_is_left_possible() {
        no_core_dumps().unwrap();
        let limit = getrlimit(Resource::Core);
        assert_eq!((limit.current, limit.maximum), (Some(CORE_BYTES), Some(CORE_BYTES)));
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }

    #[test]
    fn work_shows_in_the_clocks() {
        let (process, thread) = (process_cpu(), thread_cpu());
        while thread_cpu() - thread < Duration::from_millis(20) {
            black_box((0..10_000_u64).sum::<u64>());
        }
        assert!(process_cpu() - process >= Duration::from_millis(20));
        // A new thread has a clock of its own.
        assert!(thread::spawn(thread_cpu).join().unwrap() < Duration::from_millis(20));
    }

    #[test]
    fn memory_that_is_touched_becomes_resident() {
        let before = resident_bytes().unwrap();
        let block = black_box(vec![1_u8; 64 << 20]);
        assert!(resident_bytes().unwrap() >= before + (48 << 20));
        drop(block);
    }
}

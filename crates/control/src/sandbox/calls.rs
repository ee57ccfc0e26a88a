//! Which system calls the process may make: those of a server that reads, writes and connects. Others fail with EPERM, and
//! those that only somebody else would make end the process.
//!
//! Failing, and not ending, is the rule because a C library may try something new and go on without it; the process's
//! end would be an outage.

use propylon_sys::{Argument, CallFilter, CallFilterError, Confined};

use super::enforced::Enforced;

/// Options of `prctl` that are not among libc's for every system (linux/prctl.h): names of memory, which allocators give, and
/// what the kernel has told the process at its start.
const PR_SET_VMA: u64 = 0x5356_4d41;
const PR_GET_AUXV: u64 = 0x4155_5856;

/// For the calling thread and those that it starts. `connects_to_unix`: some servers are Unix sockets.
pub fn confine(connects_to_unix: bool) -> Result<Enforced, CallFilterError> {
    match filter(connects_to_unix).apply(Confined::ThisThread) {
        Ok(()) => Ok(Enforced::Fully),
        Err(error @ CallFilterError::UnknownProcessor) => Ok(Enforced::Not(error.to_string())),
        Err(error) => Err(error),
    }
}

/// Calls that only an attacker who has got in would make.
const DEADLY: [i64; 24] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_memfd_create,
    libc::SYS_io_uring_setup,
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_perf_event_open,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_mount,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_kexec_load,
];

/// Sockets, client and server side.
const NETWORK: [i64; 18] = [
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_connect,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_socketpair,
    libc::SYS_shutdown,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendfile,
];

/// Bytes, whatever they go to.
const BYTES: [i64; 24] = [
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_pipe2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_lseek,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
];

/// Files: Landlock says which.
const FILES: [i64; 26] = [
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fadvise64,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_umask,
];

/// Memory, threads, time, chance, and the process itself.
const PROCESS: [i64; 57] = [
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_mincore,
    libc::SYS_membarrier,
    libc::SYS_clone3,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_getpriority,
    libc::SYS_setpriority,
    libc::SYS_getcpu,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getgroups,
    libc::SYS_getrusage,
    libc::SYS_times,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    // Ends of processes that it has started before, and of those that it takes over from.
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_pidfd_open,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_getrandom,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_sigsuspend,
    libc::SYS_signalfd4,
    libc::SYS_sigaltstack,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// The same by the names that only this processor's C libraries still use.
#[cfg(target_arch = "x86_64")]
const OLD: [i64; 26] = [
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_link,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_creat,
    libc::SYS_pipe,
    libc::SYS_dup2,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_time,
    libc::SYS_getrlimit,
    libc::SYS_arch_prctl,
    libc::SYS_signalfd,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: [i64; 1] = [libc::SYS_renameat];

fn filter(connects_to_unix: bool) -> CallFilter {
    use Argument::{Is, IsInt, Masked};
    let no_code = || [vec![Masked { argument: 2, mask: libc::PROT_EXEC, value: 0 }]];
    const KIND: i32 = 0xf;
    let socket = |family, kind| vec![IsInt(0, family), Masked { argument: 1, mask: KIND, value: kind }];
    let requests = [libc::FIONBIO, libc::FIOCLEX, libc::FIONCLEX, libc::FIONREAD, libc::TCGETS, libc::TIOCOUTQ];
    let requests = requests.map(|request| vec![IsInt(1, request as i32)]);
    // Names of threads and of memory; not whether it may be dumped.
    let names = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_GET_DUMPABLE].map(|option| vec![IsInt(0, option)]);
    let memory = [PR_SET_VMA, PR_GET_AUXV].map(|option| vec![Is(0, option)]);
    let own = u64::from(std::process::id());
    CallFilter::default()
        .kill(&DEADLY)
        // Flags of `clone3` are in memory, where a filter cannot look. A C library that is told so asks by `clone`.
        .hide(&[libc::SYS_clone3])
        .allow(&NETWORK)
        .allow(&BYTES)
        .allow(&FILES)
        .allow(&PROCESS)
        .allow(&OLD)
        // Memory that code could be written to is never run.
        .allow_with(libc::SYS_mmap, no_code())
        .allow_with(libc::SYS_mprotect, no_code())
        // Threads, and no processes.
        .allow_with(
            libc::SYS_clone,
            [vec![Masked { argument: 0, mask: libc::CLONE_THREAD, value: libc::CLONE_THREAD }]],
        )
        // Datagrams to Unix sockets tell the service manager of the process. Its others would be those of whoever gives
        // orders on this machine, unless servers are there.
        .allow_with(
            libc::SYS_socket,
            [
                socket(libc::AF_INET, libc::SOCK_STREAM),
                socket(libc::AF_INET, libc::SOCK_DGRAM),
                socket(libc::AF_INET6, libc::SOCK_STREAM),
                socket(libc::AF_INET6, libc::SOCK_DGRAM),
                socket(libc::AF_UNIX, libc::SOCK_DGRAM),
            ]
            .into_iter()
            .chain(connects_to_unix.then(|| socket(libc::AF_UNIX, libc::SOCK_STREAM))),
        )
        .allow_with(libc::SYS_ioctl, requests)
        .allow_with(libc::SYS_prctl, names.into_iter().chain(memory))
        // Limits of this process, and signals to itself.
        .allow_with(libc::SYS_prlimit64, [vec![IsInt(0, 0)], vec![Is(0, own)]])
        .allow_with(libc::SYS_tgkill, [vec![Is(0, own)]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_can_be_compiled_and_do_not_contradict_each_other() {
        let filter = filter(false);
        assert_eq!(filter.contradictions(), [0; 0]);
        filter.check().expect("programs");
    }
}

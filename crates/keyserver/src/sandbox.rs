//! What the process denies itself once it has what it needs: other files and connections by Landlock, other system calls
//! by seccomp.
//!
//! Nothing here has to hold for the server to be right; it limits what somebody gains who finds a way to run code in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
    path_beneath_rules,
};
use propylon_config::keyserver::KeyServer;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Operator, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// What the kernel is asked for; of an older one, what it has.
const LANDLOCK: ABI = ABI::V6;

/// From here on the calling thread, and those that it starts, may open the keys, the certificates and their folders for
/// reading, and nothing else; they can neither listen anew nor connect. Says how much of that the kernel enforces.
pub fn confine_files(config: &KeyServer) -> Result<&'static str, String> {
    let changeable: Vec<PathBuf> = module_paths(config).cloned().collect();
    restrict(&readable(config), &changeable, makes_connections(config))
        .map_err(|error| format!("Landlock: {error}; to do without, say landlock = false"))
}

fn module_paths(config: &KeyServer) -> impl Iterator<Item = &PathBuf> {
    config.tokens.iter().flat_map(|token| &token.module_paths).map(|named| &named.path)
}

fn makes_connections(config: &KeyServer) -> bool {
    config.tokens.iter().any(|token| token.network)
}

/// `changeable` is what the library of a hardware module works with: there everything may be done but run programs.
fn restrict(
    paths: &BTreeSet<PathBuf>,
    changeable: &[PathBuf],
    connections: bool,
) -> Result<&'static str, RulesetError> {
    let net = if connections { AccessNet::BindTcp.into() } else { AccessNet::from_all(LANDLOCK) };
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(net)?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?
        .add_rules(path_beneath_rules(paths, AccessFs::ReadFile | AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(changeable, AccessFs::from_all(LANDLOCK) & !AccessFs::Execute))?
        .restrict_self()?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => "enforced",
        RulesetStatus::PartiallyEnforced => "enforced as far as this kernel can",
        RulesetStatus::NotEnforced => "not enforced: this kernel cannot",
    })
}

/// Of files their folders, because a file that is replaced is another file under the same name.
fn readable(config: &KeyServer) -> BTreeSet<PathBuf> {
    let files = [&config.server.identity.path, &config.server.ca.path];
    let folder = |path: &Path| match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let keys = config.keys.paths.iter().map(|named| &named.path);
    let keys = keys.map(|path| if path.is_dir() { path.clone() } else { folder(path) });
    let pins = config.tokens.iter().filter_map(|token| token.pin_file.as_ref()).map(|named| folder(&named.path));
    files.into_iter().map(|path| folder(path)).chain(keys).chain(pins).collect()
}

/// From here on no thread of the process gets through with another system call than serving needs: it fails with EPERM,
/// and those that only somebody else would make end the process.
///
/// Failing, and not ending, is the rule because a C library may try something new and go on without it; the process's
/// end would be an outage. Call it when all threads run and have what they need. False if this processor is not known.
pub fn confine_calls(config: &KeyServer) -> Result<bool, String> {
    let Ok(arch) = TargetArch::try_from(std::env::consts::ARCH) else { return Ok(false) };
    let told = |error: &dyn std::fmt::Display| format!("seccomp: {error}; to do without, say seccomp = false");
    let permission = u32::try_from(libc::EPERM).unwrap_or(1);
    let programs = [
        program(deadly(!config.tokens.is_empty()), SeccompAction::Allow, SeccompAction::KillProcess, arch),
        program(
            allowed_to(config).map_err(|error| told(&error))?,
            SeccompAction::Errno(permission),
            SeccompAction::Allow,
            arch,
        ),
    ];
    for program in programs {
        let program = program.map_err(|error| told(&error))?;
        seccompiler::apply_filter_all_threads(&program).map_err(|error| told(&error))?;
    }
    Ok(true)
}

/// Rules by number of the call; without a rule, a call is meant with any arguments.
type Calls = BTreeMap<i64, Vec<SeccompRule>>;

fn program(
    calls: Calls,
    others: SeccompAction,
    these: SeccompAction,
    arch: TargetArch,
) -> Result<BpfProgram, seccompiler::BackendError> {
    SeccompFilter::new(calls, others, these, arch)?.try_into()
}

/// What the library of a hardware module may do beside: lock and write files, which Landlock limits to `module_paths`, and
/// make connections if it is said that it does. New code it cannot load.
fn allowed_to(config: &KeyServer) -> Result<Calls, seccompiler::BackendError> {
    let mut calls = allowed()?;
    if config.tokens.is_empty() {
        return Ok(calls);
    }
    let files = [
        libc::SYS_openat,
        libc::SYS_flock,
        libc::SYS_faccessat,
        libc::SYS_faccessat2,
        libc::SYS_readlinkat,
        libc::SYS_pread64,
        libc::SYS_pwrite64,
        libc::SYS_ftruncate,
        libc::SYS_fsync,
        libc::SYS_fdatasync,
        libc::SYS_fchmod,
        libc::SYS_mkdirat,
        libc::SYS_unlinkat,
        libc::SYS_renameat2,
        libc::SYS_umask,
        libc::SYS_dup,
        libc::SYS_pipe2,
        libc::SYS_eventfd2,
        libc::SYS_epoll_create1,
        libc::SYS_ppoll,
        libc::SYS_uname,
        libc::SYS_getppid,
        libc::SYS_getuid,
        libc::SYS_geteuid,
        libc::SYS_getgid,
        libc::SYS_getegid,
        libc::SYS_times,
        libc::SYS_clock_getres,
        libc::SYS_mlock,
        libc::SYS_munlock,
    ];
    calls.extend(files.map(|call| (call, Vec::new())));
    #[cfg(target_arch = "x86_64")]
    calls.extend(
        [
            libc::SYS_open,
            libc::SYS_access,
            libc::SYS_readlink,
            libc::SYS_mkdir,
            libc::SYS_unlink,
            libc::SYS_rmdir,
            libc::SYS_rename,
            libc::SYS_select,
            libc::SYS_time,
        ]
        .map(|call| (call, Vec::new())),
    );
    if makes_connections(config) {
        let calls_of_clients =
            [libc::SYS_socket, libc::SYS_connect, libc::SYS_sendmmsg, libc::SYS_recvmmsg, libc::SYS_pselect6];
        calls.extend(calls_of_clients.map(|call| (call, Vec::new())));
    }
    Ok(calls)
}

/// What somebody does who has got in.
fn deadly(has_modules: bool) -> Calls {
    let calls = [
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_socket,
        libc::SYS_connect,
        libc::SYS_bind,
        libc::SYS_listen,
        libc::SYS_memfd_create,
        libc::SYS_io_uring_setup,
        libc::SYS_bpf,
        libc::SYS_setuid,
        libc::SYS_setgid,
        libc::SYS_mount,
        libc::SYS_unshare,
        libc::SYS_init_module,
        libc::SYS_finit_module,
        libc::SYS_kexec_load,
    ];
    // A library may want to tell the system's log something, and has to live with that it cannot.
    let is_meant = |call: &i64| !(has_modules && [libc::SYS_socket, libc::SYS_connect].contains(call));
    calls.into_iter().filter(is_meant).map(|call| (call, Vec::new())).collect()
}

/// Found by tracing the server while it served, read changed keys, answered its admin address, drained and ended; and
/// what allocators, threads that end and a panic need beside that.
fn allowed() -> Result<Calls, seccompiler::BackendError> {
    let calls = [
        // Links.
        libc::SYS_accept4,
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_shutdown,
        libc::SYS_close,
        libc::SYS_getpeername,
        libc::SYS_getsockname,
        libc::SYS_getsockopt,
        libc::SYS_setsockopt,
        libc::SYS_ioctl,
        libc::SYS_fcntl,
        libc::SYS_epoll_ctl,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        // Files.
        libc::SYS_newfstatat,
        libc::SYS_statx,
        libc::SYS_fstat,
        libc::SYS_getdents64,
        libc::SYS_lseek,
        // Memory. Not mlock: what the kernels lock is taken before, by `Kernels::install`.
        libc::SYS_brk,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        // Threads, time and chance.
        libc::SYS_futex,
        libc::SYS_sched_yield,
        libc::SYS_sched_getaffinity,
        libc::SYS_membarrier,
        libc::SYS_rseq,
        libc::SYS_set_robust_list,
        libc::SYS_getpid,
        libc::SYS_gettid,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_nanosleep,
        libc::SYS_gettimeofday,
        libc::SYS_getrandom,
        libc::SYS_restart_syscall,
        // Signals, a panic, the end.
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sigaltstack,
        libc::SYS_tgkill,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ];
    let mut calls: Calls = calls.into_iter().map(|call| (call, Vec::new())).collect();
    #[cfg(target_arch = "x86_64")]
    calls
        .extend([libc::SYS_epoll_wait, libc::SYS_poll, libc::SYS_stat, libc::SYS_lstat].map(|call| (call, Vec::new())));
    let unset = |argument, mask: i32| {
        let mask = u64::from(mask.unsigned_abs());
        let condition = SeccompCondition::new(argument, Length::Dword, Operator::MaskedEq(mask), 0)?;
        SeccompRule::new(vec![condition])
    };
    // Memory that code could be written to is never run.
    calls.insert(libc::SYS_mmap, vec![unset(2, libc::PROT_EXEC)?]);
    calls.insert(libc::SYS_mprotect, vec![unset(2, libc::PROT_EXEC)?]);
    // For reading only.
    let writing = libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
    calls.insert(libc::SYS_openat, vec![unset(2, writing)?]);
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_can_be_compiled_and_do_not_contradict_each_other() {
        let arch = TargetArch::try_from(std::env::consts::ARCH).expect("tests run where filters are known");
        let (deadly, allowed) = (deadly(false), allowed().expect("conditions that are valid"));
        assert!(deadly.keys().all(|call| !allowed.contains_key(call)));
        program(deadly, SeccompAction::Allow, SeccompAction::KillProcess, arch).expect("a program");
        program(allowed, SeccompAction::Errno(1), SeccompAction::Allow, arch).expect("a program");
    }
    /// In a thread of its own, which is the only one that the kernel then holds to it.
    fn confined<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(work).join().expect("no panic")
    }

    #[test]
    fn only_what_is_named_can_be_read_where_the_kernel_has_landlock() {
        let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let (own, other) = (here.join("Cargo.toml"), here.join("../../Cargo.toml"));
        let result = confined(move || {
            let status = restrict(&BTreeSet::from([here.join("src"), own.clone()]), &[], false).expect("a ruleset");
            let read = |path: &Path| std::fs::read(path).map(drop).map_err(|error| error.kind());
            let append = |path: &Path| {
                let opened = std::fs::OpenOptions::new().append(true).open(path);
                opened.map(drop).map_err(|error| error.kind())
            };
            (status, read(&own), read(&other), append(&own))
        });
        let denied = Err(std::io::ErrorKind::PermissionDenied);
        if result.0.starts_with("enforced") {
            assert_eq!((result.1, result.2, result.3), (Ok(()), denied, denied));
        }
    }

    #[test]
    fn other_calls_than_those_of_serving_fail_and_those_go_through() {
        let arch = TargetArch::try_from(std::env::consts::ARCH).expect("tests run where filters are known");
        let (read, write) = confined(move || {
            let calls = allowed().expect("conditions that are valid");
            let errno = SeccompAction::Errno(libc::EPERM as u32);
            let program = program(calls, errno, SeccompAction::Allow, arch).expect("a program");
            seccompiler::apply_filter(&program).expect("a filter");
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
            (std::fs::read(&path), std::fs::OpenOptions::new().append(true).open(&path))
        });
        assert!(read.is_ok());
        assert_eq!(write.expect_err("it is for reading").raw_os_error(), Some(libc::EPERM));
    }
}

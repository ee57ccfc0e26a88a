//! The rights that the process gives up once it has what it needs: other files and connections by Landlock, other
//! system calls by seccomp.
//!
//! Nothing here has to hold for the server to be right; it limits what somebody gains who finds a way to run code
//! in it.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
    Scope, path_beneath_rules,
};
use propylon_config::keyserver::KeyServer;
use propylon_sys::{
    Argument, CallFilter, CallFilterError, Confined, folders_of, is_broad, is_out_of_reach, set_reachable_folders,
};

/// The Landlock ABI that the kernel is asked for; an older kernel enforces what it has.
const LANDLOCK: ABI = ABI::V6;
const NOT_ENFORCED: &str = "not enforced: this kernel cannot";

/// Confines the calling thread, and those that it starts: from here on they may open the keys, the certificates and
/// their folders for reading, and the paths of hardware modules for changes, and nothing else; they can neither
/// listen anew nor connect, unless a token is said to use the network. Returns how much of that the kernel
/// enforces.
pub fn confine_files(config: &KeyServer) -> Result<&'static str, String> {
    let changeable: Vec<PathBuf> = module_paths(config).cloned().collect();
    let readable = readable(config);
    let read = readable.iter().map(|folder| (folder, "read"));
    for (folder, done) in
        read.chain(changeable.iter().map(|folder| (folder, "changed"))).filter(|(each, _)| is_broad(each))
    {
        log::warn!(
            "Landlock: everything in {} can be {done}, since the configuration names a file in it; move that to a folder \
             of its own",
            folder.display()
        );
    }
    let all = AccessFs::from_all(LANDLOCK) & !AccessFs::Execute;
    let enforced = restrict(&readable, (&changeable, all), makes_connections(config))
        .map_err(|error| format!("Landlock: {error}; to do without, say landlock = false"))?;
    if enforced != NOT_ENFORCED {
        let changeable = changeable.iter().filter_map(|path| std::fs::canonicalize(path).ok());
        set_reachable_folders(readable.into_iter().chain(changeable).collect());
    }
    Ok(enforced)
}

/// Confines the key process of an engine likewise: nothing but these folders, for reading, and its folder of
/// uploads, in which it makes files and removes them.
pub fn confine_to(folders: &BTreeSet<PathBuf>, store: Option<&Path>) -> Result<&'static str, String> {
    let made = AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::RemoveFile;
    let store: Vec<PathBuf> = store.map(Path::to_path_buf).into_iter().collect();
    let readable = folders.iter().chain(&store).cloned().collect();
    restrict(&readable, (&store, made), false).map_err(|error| format!("Landlock: {error}"))
}

fn module_paths(config: &KeyServer) -> impl Iterator<Item = &PathBuf> {
    config.tokens.iter().flat_map(|token| &token.module_paths).map(|named| &named.path)
}

fn makes_connections(config: &KeyServer) -> bool {
    config.tokens.iter().any(|token| token.network)
}

/// Applies the Landlock rules. `changeable` are paths where more may be done than reading, such as those that the
/// library of a hardware module works with.
fn restrict(
    paths: &BTreeSet<PathBuf>,
    (changeable, done): (&[PathBuf], BitFlags<AccessFs>),
    connections: bool,
) -> Result<&'static str, RulesetError> {
    let net = if connections { AccessNet::BindTcp.into() } else { AccessNet::from_all(LANDLOCK) };
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(net)?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?
        .add_rules(path_beneath_rules(paths, AccessFs::ReadFile | AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(changeable, done))?
        .restrict_self()?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => "enforced",
        RulesetStatus::PartiallyEnforced => "enforced as far as this kernel can",
        RulesetStatus::NotEnforced => NOT_ENFORCED,
    })
}

/// Adds to `error`, the error for a file that cannot be opened, whether Landlock is the cause: the kernel's error is
/// the same for a file that its mode keeps away.
pub fn explained(path: &Path, error: impl Display) -> String {
    match std::fs::canonicalize(path) {
        Ok(leads) if is_out_of_reach(path) => {
            let leads = leads.display();
            format!(
                "{error}: Landlock keeps this process from {leads}, in whose folder nothing was at its start: restart it"
            )
        }
        _ => error.to_string(),
    }
}

/// The folders of files, of links to them and of where these lead, because a file that is replaced is another file
/// under the same name: certbot's `live` has links to its `archive`. The folders' own paths are without links.
fn readable(config: &KeyServer) -> BTreeSet<PathBuf> {
    let own = [&config.server.identity, &config.server.ca];
    let pins = config.tokens.iter().filter_map(|token| token.pin_file.as_ref());
    let named = own.into_iter().chain(&config.keys.paths).chain(pins);
    named.flat_map(|named| folders_of(&named.path)).filter_map(|folder| std::fs::canonicalize(folder).ok()).collect()
}

/// Confines all threads of the process: from here on a system call that serving does not need fails with EPERM, and
/// one that only an intruder would make ends the process.
///
/// Call it when all threads run and have what they need. False if this processor is not known.
pub fn confine_calls(config: &KeyServer) -> Result<bool, String> {
    apply(&filter(config)).map_err(|error| format!("seccomp: {error}; to do without, say seccomp = false"))
}

/// The same of the key process of an engine, which writes files where it has a folder of uploads.
pub fn confine_calls_of_key_process(writes: bool) -> Result<bool, String> {
    apply(&key_process_calls(writes)).map_err(|error| format!("seccomp: {error}"))
}

fn key_process_calls(writes: bool) -> CallFilter {
    let calls = allowed().kill(&deadly(false));
    if !writes {
        return calls;
    }
    // Landlock limits which files can be opened for writing.
    let calls = calls.allow(&[libc::SYS_openat, libc::SYS_fsync, libc::SYS_unlinkat, libc::SYS_renameat2]);
    #[cfg(target_arch = "x86_64")]
    let calls = calls.allow(&[libc::SYS_unlink, libc::SYS_rename]);
    #[cfg(not(target_arch = "x86_64"))]
    let calls = calls.allow(&[libc::SYS_renameat]);
    calls
}

fn apply(filter: &CallFilter) -> Result<bool, CallFilterError> {
    match filter.apply(Confined::AllThreads) {
        Ok(()) => Ok(true),
        Err(CallFilterError::UnknownProcessor) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The system calls of the process. The library of a hardware module may also lock and write files, which Landlock
/// limits to `module_paths`, and make connections if the configuration says that it does. New code it cannot load.
fn filter(config: &KeyServer) -> CallFilter {
    let mut calls = allowed().kill(&deadly(!config.tokens.is_empty()));
    if config.tokens.is_empty() {
        return calls;
    }
    calls = calls.allow(&[
        libc::SYS_openat,
        libc::SYS_flock,
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
    ]);
    #[cfg(target_arch = "x86_64")]
    {
        calls = calls.allow(&[
            libc::SYS_open,
            libc::SYS_access,
            libc::SYS_mkdir,
            libc::SYS_unlink,
            libc::SYS_rmdir,
            libc::SYS_rename,
            libc::SYS_select,
            libc::SYS_time,
        ]);
    }
    if makes_connections(config) {
        calls = calls.allow(&[
            libc::SYS_socket,
            libc::SYS_connect,
            libc::SYS_sendmmsg,
            libc::SYS_recvmmsg,
            libc::SYS_pselect6,
        ]);
    }
    calls
}

/// The system calls that only an intruder would make.
fn deadly(has_modules: bool) -> Vec<i64> {
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
    calls.into_iter().filter(is_meant).collect()
}

/// Calls of links.
const LINKS: &[i64] = &[
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
];
/// Calls on files. Opening is allowed for reading alone.
const FILES: &[i64] = &[
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstat,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    // Resolves links, to know a file by one name and to say whether it is out of reach (behind `..` faccessat).
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getcwd,
];
/// Calls on memory. mlock is not among them: `Kernels::install` has locked before what the kernels need.
const MEMORY: &[i64] = &[libc::SYS_brk, libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise];
/// Calls of threads, of clocks and for random numbers.
const THREADS: &[i64] = &[
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
];
/// Calls of signals, of a panic and of the process's end.
const END: &[i64] = &[
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
];
/// Calls of older system libraries, which other processors never had.
#[cfg(target_arch = "x86_64")]
const OLD: &[i64] = &[libc::SYS_epoll_wait, libc::SYS_poll, libc::SYS_stat, libc::SYS_lstat, libc::SYS_readlink];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[i64] = &[];

/// The filter of a server: calls that were found by tracing it while it served, read changed keys, answered its admin
/// address, drained and ended; and those of allocators, of threads that end and of a panic.
fn allowed() -> CallFilter {
    let unset = |mask: i32| [vec![Argument::Masked { argument: 2, mask, value: 0 }]];
    let writing = libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;
    CallFilter::default()
        .allow(LINKS)
        .allow(FILES)
        .allow(MEMORY)
        .allow(THREADS)
        .allow(END)
        .allow(OLD)
        // Memory that code could be written to is never run.
        .allow_with(libc::SYS_mmap, unset(libc::PROT_EXEC))
        .allow_with(libc::SYS_mprotect, unset(libc::PROT_EXEC))
        // Opening for reading only.
        .allow_with(libc::SYS_openat, unset(writing))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_filters_can_be_compiled_and_do_not_contradict_each_other() {
        for filter in [key_process_calls(false), key_process_calls(true)] {
            assert_eq!(filter.contradictions(), [0; 0]);
            filter.check().expect("programs");
        }
    }

    /// Runs `work` in a thread of its own, which is the only one that the kernel then confines.
    fn confined<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(work).join().expect("no panic")
    }

    #[test]
    fn only_what_is_named_can_be_read_where_the_kernel_has_landlock() {
        let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let (own, other) = (here.join("Cargo.toml"), here.join("../../Cargo.toml"));
        let result = confined(move || {
            let status =
                restrict(&BTreeSet::from([here.join("src"), own.clone()]), (&[], AccessFs::Execute.into()), false)
                    .expect("a ruleset");
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
    fn a_key_process_writes_in_its_folder_of_uploads_and_nowhere_else() {
        let folder = std::env::temp_dir().join(format!("propylon-store-{}", std::process::id()));
        let (store, other) = (folder.join("keys"), folder.join("other"));
        std::fs::create_dir_all(&store).expect("a folder");
        std::fs::create_dir_all(&other).expect("a folder");
        let (own, others) = (store.clone(), other.clone());
        let outcome = confined(move || {
            let status = confine_to(&BTreeSet::from([others.clone()]), Some(&own)).expect("a ruleset");
            key_process_calls(true).apply(Confined::ThisThread).expect("a filter");
            let write = |folder: &Path| -> std::io::Result<()> {
                let mut file = std::fs::File::create_new(folder.join("draft"))?;
                std::io::Write::write_all(&mut file, b"key")?;
                file.sync_all()?;
                std::fs::rename(folder.join("draft"), folder.join("a.pem"))?;
                std::fs::File::open(folder)?.sync_all()?;
                std::fs::read(folder.join("a.pem"))?;
                std::fs::remove_file(folder.join("a.pem"))
            };
            let made = std::fs::create_dir(own.join("folder")).map_err(|error| error.kind());
            (status, write(&own), write(&others).map_err(|error| error.kind()), made)
        });
        let _ = std::fs::remove_dir_all(&folder);
        outcome.1.expect("its own folder");
        let denied = Err(std::io::ErrorKind::PermissionDenied);
        assert_eq!(outcome.3, denied, "no such call");
        if outcome.0.starts_with("enforced") {
            assert_eq!(outcome.2, denied);
        }
    }

    #[test]
    fn other_calls_than_those_of_serving_fail_and_those_go_through() {
        let (read, known, write) = confined(move || {
            allowed().apply(Confined::ThisThread).expect("a filter");
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
            let other = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/../src//./../Cargo.toml");
            (
                std::fs::read(&path),
                std::fs::canonicalize(other).ok(),
                std::fs::OpenOptions::new().append(true).open(&path),
            )
        });
        assert!(read.is_ok() && known.is_some_and(|path| path.ends_with("keyserver/Cargo.toml")));
        assert_eq!(write.expect_err("it is for reading").raw_os_error(), Some(libc::EPERM));
    }
}

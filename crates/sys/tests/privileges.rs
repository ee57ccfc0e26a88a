//! Dropping privileges for real. It needs a process with one thread, so this is a plain program that runs itself
//! again in each of its roles; only root has something to drop, anybody else must be refused.

use std::env;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, ExitCode};
use std::thread;

use propylon_sys::{Account, ListenOptions, PrivilegesError, drop_privileges, listen, no_core_dumps, resident_bytes};

const ROLE: &str = "PROPYLON_SYS_TEST_ROLE";
const ROLES: [(&str, fn()); 4] = [
    ("root_is_given_up_for_good", root_is_given_up_for_good),
    ("with_other_threads_nothing_is_dropped", with_other_threads_nothing_is_dropped),
    ("what_is_needed_still_works_afterwards", what_is_needed_still_works_afterwards),
    ("core_dumps_stay_given_up_where_the_kernel_would_have_them_back", core_dumps_stay_given_up),
];

fn main() -> ExitCode {
    if let Ok(role) = env::var(ROLE) {
        let (_, story) = ROLES.iter().find(|(name, _)| *name == role).expect("a known role");
        story();
        return ExitCode::SUCCESS;
    }
    let mut code = ExitCode::SUCCESS;
    for (name, _) in ROLES {
        let program = env::current_exe().expect("the test knows its own path");
        let _dumps = name.starts_with("core_dumps").then(DumpsByAccount::set);
        let status = Command::new(program).env(ROLE, name).status().expect("the test starts itself");
        println!("test {name} ... {}", if status.success() { "ok" } else { "FAILED" });
        if !status.success() {
            code = ExitCode::FAILURE;
        }
    }
    code
}

fn is_root() -> bool {
    identity("Uid:")[1] == 0
}

/// Real, effective, saved and file-system id, as the kernel tells them.
fn identity(field: &str) -> Vec<u32> {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("the field is there");
    line.split_whitespace().map(|id| id.parse().expect("ids are numbers")).collect()
}

fn find(user: &str) -> Account {
    Account::find(user).expect("an account of every machine")
}

fn root_is_given_up_for_good() {
    let (root, account) = (find("root"), find("nobody"));
    if !is_root() {
        assert!(matches!(drop_privileges(&root), Err(PrivilegesError::Refused(..))));
        return;
    }
    drop_privileges(&account).expect("root may become anybody");
    assert_ne!(account.uid, 0);
    assert_eq!(identity("Uid:"), [account.uid; 4]);
    assert_eq!(identity("Gid:"), [account.gid; 4]);
    assert!(!identity("Groups:").contains(&0));
    assert!(matches!(drop_privileges(&root), Err(PrivilegesError::Refused(..))));
    // A second time is no harm: the process is who it should be.
    drop_privileges(&account).expect("nothing to do");
}

fn with_other_threads_nothing_is_dropped() {
    let before = identity("Uid:");
    thread::scope(|scope| {
        let (finish, wait) = std::sync::mpsc::channel::<()>();
        scope.spawn(move || wait.recv());
        assert!(matches!(drop_privileges(&find("root")), Err(PrivilegesError::OtherThreads(1))));
        drop(finish);
    });
    assert_eq!(identity("Uid:"), before);
}

/// Where the kernel is told to set the flag again with an account, as debuggers' packages do.
fn core_dumps_stay_given_up() {
    no_core_dumps().expect("anybody may give up core dumps");
    if is_root() {
        drop_privileges(&find("nobody")).expect("root may become anybody");
        // The kernel tells the flag by whose files these are.
        let owner = fs::metadata("/proc/self/mem").expect("/proc is mounted").uid();
        assert_eq!(owner, 0, "a debugger of the same account could read the memory");
    }
    let limits = fs::read_to_string("/proc/self/limits").expect("/proc is mounted");
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).expect("a limit");
    // A program that cores are piped to is not started at a limit of 1, and is at 0, which only root can raise.
    assert_eq!(limit.split_whitespace().next(), Some("1"), "{limits}");
}

/// `fs.suid_dumpable = 1` for as long as it lives, where this process may set it.
struct DumpsByAccount(Option<(fs::File, String)>);

impl DumpsByAccount {
    const SETTING: &str = "/proc/sys/fs/suid_dumpable";

    fn set() -> DumpsByAccount {
        // One at a time: it is the whole machine's.
        let lock = fs::File::open(Self::SETTING).and_then(|file| file.lock().map(|()| file));
        let (Ok(lock), Ok(before)) = (lock, fs::read_to_string(Self::SETTING)) else { return DumpsByAccount(None) };
        match fs::write(Self::SETTING, "1") {
            Ok(()) => DumpsByAccount(Some((lock, before))),
            Err(error) => {
                println!("{} stays as it is: {error}", Self::SETTING);
                DumpsByAccount(None)
            }
        }
    }
}

impl Drop for DumpsByAccount {
    fn drop(&mut self) {
        if let Some((_lock, before)) = self.0.take() {
            fs::write(Self::SETTING, before).expect("what was set can be restored");
        }
    }
}

fn what_is_needed_still_works_afterwards() {
    no_core_dumps().expect("anybody may give up core dumps");
    if is_root() {
        drop_privileges(&find("nobody")).expect("root may become anybody");
    }
    assert!(resident_bytes().expect("statm stays readable") > 0);
    let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    listen(any, ListenOptions::default()).expect("a high port needs no privilege");
}

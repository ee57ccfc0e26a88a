//! Network namespaces with a keeper, who removes them and all that runs in them once their owner is gone, however it
//! went.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::options::Skip;
use super::programs::system;
use crate::program::{finish, run};
use crate::wait::WAIT_MAX;

/// `ip netns` has its names here.
const FOLDER: &str = "/run/netns";
/// Names are `pe2e-PID-RIG-NAME`: whoever finds one knows whether its owner still lives.
const PREFIX: &str = "pe2e-";
/// Many namespaces take their time.
const REMOVAL: Duration = Duration::from_secs(60);
/// Ends what runs in the namespaces, by its number, and removes them. Its arguments: a folder, or nothing, and the
/// namespaces.
const REMOVE: &str = r#"
trap '' INT TERM HUP
PATH="$PATH:/usr/sbin:/sbin"
cat > /dev/null
folder="$1"
shift
for namespace in "$@"; do
    for pid in $(ip netns pids "$namespace" 2>/dev/null); do kill -9 "$pid" 2>/dev/null; done
done
for namespace in "$@"; do ip netns del "$namespace" 2>/dev/null; done
[ -z "$folder" ] || rm -rf "$folder"
"#;

/// All namespaces of a rig, by their short names.
pub struct Namespaces {
    all: BTreeMap<String, Namespace>,
    keeper: Child,
    /// The keeper does its work when this is closed: by us, or by the kernel when this process is killed.
    life: Option<ChildStdin>,
}

/// A network namespace: a name that `ip netns` knows.
#[derive(Clone, Debug)]
pub struct Namespace {
    name: String,
}

impl Namespaces {
    /// Makes namespaces. The folder goes with them when this process is killed.
    ///
    /// # Errors
    /// When the kernel or this container allows none.
    pub fn make(names: &[String], folder: &Path) -> Result<Namespaces, Skip> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        static SWEEP: Once = Once::new();
        SWEEP.call_once(sweep);
        let rig = COUNT.fetch_add(1, Ordering::Relaxed);
        let full = |name: &String| Namespace { name: format!("{PREFIX}{}-{rig}-{name}", std::process::id()) };
        let all: BTreeMap<String, Namespace> = names.iter().map(|name| (name.clone(), full(name))).collect();
        // Before the first of them is there, so that none is without a keeper at any time.
        let mut keeper = remove(folder.as_os_str(), all.values().map(Namespace::name));
        let life = keeper.stdin.take();
        let namespaces = Namespaces { all, keeper, life };
        let mut command = system("ip");
        command.args(["-batch", "-"]);
        let lines: String = namespaces.all.values().map(|each| format!("netns add {}\n", each.name)).collect();
        let said = run(command, lines.as_bytes(), WAIT_MAX);
        if !said.status.success() {
            return Err(Skip(format!("no network namespaces can be made here: {}", said.stderr.trim())));
        }
        Ok(namespaces)
    }

    /// A namespace by its short name.
    #[track_caller]
    pub fn of(&self, name: &str) -> &Namespace {
        self.all.get(name).unwrap_or_else(|| panic!("no namespace {name}"))
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        drop(self.life.take());
        if std::thread::panicking() {
            let _ = self.keeper.wait();
            return;
        }
        finish(&mut self.keeper, REMOVAL, "namespaces are removed");
    }
}

impl Namespace {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A program that runs inside. Its process is the program's own: `nsenter` becomes it. Unlike `ip netns exec` that
    /// leaves the mounts alone, and with them what an engine reads below /sys.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={FOLDER}/{}", self.name)).arg("--").arg(program);
        command
    }

    /// Writes values below /proc/sys/net, of which each namespace has its own.
    #[track_caller]
    pub fn set(&self, values: &[(&str, u32)]) {
        let script: String =
            values.iter().map(|(name, value)| format!("echo {value} > /proc/sys/net/{name} || exit 1\n")).collect();
        let mut command = self.command("sh");
        command.arg("-c").arg(script);
        run(command, b"", WAIT_MAX).ok();
    }
}

/// A batch of `ip`, in a namespace or in this one, all of which has to succeed. Lines that begin with `-6` are of IPv6.
#[track_caller]
pub fn ip(namespace: Option<&Namespace>, lines: &[String]) {
    for is_ipv6 in [false, true] {
        let of_family = lines.iter().filter(|line| line.starts_with("-6 ") == is_ipv6);
        let batch: Vec<&str> = of_family.map(|line| line.strip_prefix("-6 ").unwrap_or(line)).collect();
        if batch.is_empty() {
            continue;
        }
        let mut command = system("ip");
        if let Some(namespace) = namespace {
            command.arg("-n").arg(namespace.name());
        }
        command.args(is_ipv6.then_some("-6")).args(["-batch", "-"]);
        let said = run(command, batch.join("\n").as_bytes(), WAIT_MAX);
        assert!(said.status.success(), "ip: {}{}\n{}", said.text(), said.stderr, batch.join("\n"));
    }
}

/// Starts a process that removes namespaces as soon as its standard input ends.
fn remove<'a>(folder: &OsStr, names: impl Iterator<Item = &'a str>) -> Child {
    let mut command = Command::new("sh");
    command.args(["-c", REMOVE, "sh"]).arg(folder).args(names);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("a shell")
}

/// Removes what processes have left that are gone, keeper and all, and what one with our number had.
fn sweep() {
    let Ok(entries) = std::fs::read_dir(FOLDER) else { return };
    let left: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let left: Vec<&str> = left.iter().map(String::as_str).filter(|name| is_left(name)).collect();
    if !left.is_empty() {
        let mut child = remove(OsStr::new(""), left.into_iter());
        drop(child.stdin.take());
        finish(&mut child, REMOVAL, "namespaces of tests that are gone are removed");
    }
}

fn is_left(name: &str) -> bool {
    owner(name).is_some_and(|pid| pid == std::process::id() || !PathBuf::from(format!("/proc/{pid}")).exists())
}

fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse().ok())
}

/// Namespaces of a process that are there.
pub(super) fn of_process(pid: u32) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(FOLDER).into_iter().flatten().flatten();
    let owned = entries.filter(|entry| entry.file_name().to_str().and_then(owner) == Some(pid));
    owned.map(|entry| entry.path()).collect()
}

//! The sandbox that the process enters before it serves: Landlock denies other files and ports, seccomp denies other
//! system calls, and no_new_privs denies further rights.
//!
//! The engine is right without it; the sandbox limits what an attacker gains who can run code in the process. The
//! process cannot lift or widen it, so a configuration that names files outside is refused. A successor has to start
//! outside of the sandbox: the `launcher`, a process that was started before, does that. The reasons for this design
//! are in `docs/decisions/0035-sandbox.md`.

mod calls;
mod enforced;

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::{fmt, io};

use landlock::{
    ABI, Access, AccessFs, AccessNet, NetPort, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus,
    Scope, path_beneath_rules,
};
use propylon_config::{Acme, Config, FileAccess, Problem, Severity, Source};
use propylon_sys::{folder_of, is_out_of_reach, set_reachable_folders};
use propylon_tls::Finding;
use serde_json::{Value, json};

use crate::folders::{self, Folders, SingleFile};
use crate::isolation;
use crate::names;
pub use enforced::Enforced;

/// Folders that this process has confined itself to, for [`denial`].
static FOLDERS: OnceLock<Folders> = OnceLock::new();

/// Landlock version that is asked for; an older kernel enforces what it has.
const LANDLOCK: ABI = ABI::V6;

const NO_LANDLOCK: &str = "this kernel has no Landlock, or a filter around this process keeps it away (SystemCallFilter= of a systemd unit, \
                           the seccomp profile of a container)";

/// The sandbox that this process is in.
pub struct Sandbox {
    pub landlock: Enforced,
    pub seccomp: Enforced,
    pub no_new_privileges: bool,
    folders: Folders,
    /// Files of the system that are allowed by themselves.
    single_files: Vec<SingleFile>,
    /// The configuration's own file, and what takes another configuration's files in.
    path: PathBuf,
    remedy: String,
    /// Files and folders that the configuration of the start names, whether or not they existed. Problems with them
    /// were reported at the start, and are no reason to refuse a later configuration.
    named: BTreeSet<(PathBuf, FileAccess)>,
    /// Ports to which connections are allowed; `None` for any.
    ports: Option<Vec<u16>>,
    /// Unix sockets to which connections are allowed.
    sockets: Sockets,
    /// Files of the kernel that are allowed by themselves and held open: the kernel makes them anew when nobody holds
    /// them, and a new file would not be allowed.
    _held: Vec<OwnedFd>,
}

/// Unix sockets that a process lets itself connect to. The kernel tells them apart by kind alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sockets {
    /// Sockets with a path.
    paths: bool,
    /// Sockets of the abstract namespace, of other processes.
    names: bool,
}

impl Sockets {
    fn of(config: &Config) -> Sockets {
        let sockets = config.named_sockets();
        Sockets { paths: !sockets.is_empty(), names: sockets.iter().any(|(name, _)| name.starts_with('@')) }
    }
}

impl Sandbox {
    /// Takes effect on the calling thread and on those that it starts: to be called while there is no other, with
    /// everything open that takes more rights. `path` is the configuration's own.
    pub fn enter(config: &Config, path: &Path) -> Sandbox {
        if !config.process.sandbox.on {
            return Sandbox::none();
        }
        let folders = Folders::of(config, path);
        // The file may be another one by the time that it is needed.
        let _ = names::system_configuration();
        let ports = config.process.sandbox.ports.as_ref().map(|ports| {
            let named = config.named_ports().into_iter().map(|(port, _)| port);
            let mut all: Vec<u16> = ports.iter().cloned().flatten().chain(named).collect();
            all.sort_unstable();
            all.dedup();
            all
        });
        let not_enforced = |error: &dyn fmt::Display| Enforced::Not(error.to_string());
        let no_new_privileges = propylon_sys::no_new_privileges();
        let held = folders::hold();
        let single_files = folders.single_files();
        let sockets = Sockets::of(config);
        let reach = (ports.as_deref(), sockets.names);
        let landlock = restrict(&folders, reach).unwrap_or_else(|error| not_enforced(&error));
        // The last, since it forbids what the others take.
        let seccomp = calls::confine(sockets.paths).unwrap_or_else(|error| not_enforced(&error));
        let no_new_privileges = no_new_privileges.is_ok();
        let named = config.named_files().iter().map(|file| (file.path.to_owned(), file.access)).collect();
        if !matches!(landlock, Enforced::Not(_)) {
            set_reachable_folders(folders.reach());
            let _ = FOLDERS.set(folders.clone());
        }
        let sandbox = Sandbox {
            landlock,
            seccomp,
            no_new_privileges,
            folders,
            single_files,
            path: path.to_owned(),
            remedy: remedy(config, path),
            named,
            ports,
            sockets,
            _held: held,
        };
        sandbox.log_state();
        sandbox
    }

    /// For `/status.json` and `/snapshot`.
    pub fn to_json(&self) -> Value {
        let one = |enforced: &Enforced| json!({ "state": enforced.word(), "told": enforced.to_string() });
        json!({
            "landlock": one(&self.landlock),
            "seccomp": one(&self.seccomp),
            "no_new_privileges": self.no_new_privileges,
        })
    }

    /// For `/snapshot`: with the folders.
    pub fn to_json_whole(&self) -> Value {
        let mut value = self.to_json();
        if self.is_in_folders() {
            value["folders"] = json!({
                "read": self.folders.readable(),
                "written": self.folders.writable(),
                "cleared": self.folders.cleared(),
            });
        }
        value
    }

    fn is_in_folders(&self) -> bool {
        !matches!(self.landlock, Enforced::Not(_))
    }

    /// Files of the system that cannot be read any more, since others have taken their places.
    pub fn replaced(&self) -> Vec<&'static str> {
        if self.is_in_folders() { self.folders.replaced(&self.single_files) } else { Vec::new() }
    }

    /// Advice on how to get replaced files, or files elsewhere, read.
    pub fn remedy(&self) -> &str {
        &self.remedy
    }

    fn none() -> Sandbox {
        let off = Enforced::Not("process.sandbox is \"off\"".to_owned());
        let (landlock, seccomp) = (off.clone(), off);
        Sandbox {
            landlock,
            seccomp,
            no_new_privileges: false,
            folders: Folders::default(),
            single_files: Vec::new(),
            path: PathBuf::new(),
            remedy: String::new(),
            named: BTreeSet::new(),
            ports: None,
            sockets: Sockets { paths: true, names: true },
            _held: Vec::new(),
        }
    }

    fn log_state(&self) {
        for (what, enforced) in [("Landlock", &self.landlock), ("seccomp", &self.seccomp)] {
            match enforced {
                Enforced::Fully | Enforced::Partly => log::info!("sandbox: {what} {enforced}"),
                Enforced::Not(_) => log::warn!("sandbox: {what} {enforced}"),
            }
        }
    }

    /// Errors for files that a configuration names and that the sandbox hides.
    pub fn refused(&self, config: &Config, source: &Source) -> Vec<Problem> {
        let mut problems = isolation::problems(config, source);
        problems.retain(|problem| problem.severity == Severity::Error);
        self.refuse_sockets(config, source, &mut problems);
        if !self.is_in_folders() {
            return problems;
        }
        for (path, at) in config.key_files().into_iter().filter(|_| config.keys.isolate.is_some()) {
            if !self.folders.has_keys(path) && !self.named.contains(&(path.to_owned(), FileAccess::Read)) {
                let path = path.display();
                let what = format!("{path} is outside of the folders that the key process was started with");
                problems.push(Problem::error(&source.name, Some(at), what, self.remedy.clone()));
            }
        }
        for file in config.other_files() {
            if self.folders.was_replaced(file.path) {
                let path = file.path.display();
                let what = format!(
                    "{path} has been replaced, and lies in a folder with private keys in it, above or below, where this process \
                     may read nothing new (keys.isolate)"
                );
                let near = self.folders.near_keys(file.path).map(|(folder, keys)| isolation::apart(&folder, &keys));
                let fix = format!("{}; {}", near.unwrap_or_default(), self.remedy);
                problems.push(Problem::error(&source.name, Some(file.at), what, fix));
                continue;
            }
            if let Err(what) = self.folders.allow(&file)
                && !self.named.contains(&(file.path.to_owned(), file.access))
            {
                let path = file.path.display();
                let what = format!("{path} is outside of the folders that this process lets itself be {what}");
                let fix = self.fix(file.path, source);
                problems.push(Problem::error(&source.name, folders::place(config, source, &file), what, fix));
            }
        }
        let ports = self.ports.as_ref().map(|ports| (ports, config.named_ports()));
        for (port, at) in ports.into_iter().flat_map(|(ports, named)| {
            named.into_iter().filter(|(port, _)| ports.binary_search(port).is_err()).collect::<Vec<_>>()
        }) {
            let what = format!("port {port} is none of those that this process lets itself connect to");
            let fix = "add it to process.sandbox_ports, and restart (or upgrade)";
            problems.push(Problem::error(&source.name, Some(at), what, fix));
        }
        problems
    }

    /// Adds errors for Unix sockets of a kind that this process keeps itself from.
    fn refuse_sockets(&self, config: &Config, source: &Source, problems: &mut Vec<Problem>) {
        let is_denied = |name: &str| match name.starts_with('@') {
            true => !self.sockets.names && self.is_in_folders() || !self.sockets.paths && self.filters_calls(),
            false => !self.sockets.paths && self.filters_calls(),
        };
        for (name, at) in config.named_sockets().into_iter().filter(|(name, _)| is_denied(name)) {
            let kind = if name.starts_with('@') { "abstract Unix socket" } else { "Unix socket" };
            let what = format!(
                "unix:{name}: this process lets itself connect to no {kind}: none was a server when it started"
            );
            let file = self.path.display();
            let fix = match source.name == file.to_string() {
                true => format!("{}: the new process takes what the file names then", self.remedy),
                false => format!("add the server to {file}, {}, and do this again", self.remedy),
            };
            problems.push(Problem::error(&source.name, Some(at), what, fix));
        }
    }

    fn filters_calls(&self) -> bool {
        !matches!(self.seccomp, Enforced::Not(_))
    }

    /// Advice on how to get a file read. A new process starts with the file's configuration, not with a pushed one.
    fn fix(&self, file: &Path, source: &Source) -> String {
        let folder = if file.is_dir() { file.to_owned() } else { folder_of(file) };
        // A relative one would begin in the configuration's folder.
        let folder = std::path::absolute(&folder).unwrap_or(folder);
        let folder = folder.display();
        match source.name == self.path.display().to_string() {
            true => format!(
                "{}: the new process takes what the file names then; sandbox_paths = [\"{folder}\"] in [process] \
                 beforehand makes that unnecessary",
                self.remedy
            ),
            false => format!(
                "add sandbox_paths = [\"{folder}\"] to [process] in {}, {}, and do this again",
                self.path.display(),
                self.remedy
            ),
        }
    }
}

/// Files that a configuration names and a process that runs may not come by, each with its place; none where that
/// process is not known to be kept from any. `shown` is what its `/snapshot` has about its sandbox.
pub fn out_of_reach(config: &Config, source: &Source, shown: &Value) -> Option<Vec<String>> {
    let folders = Folders::from_json(&shown["folders"])?;
    let out = |file: &propylon_config::NamedFile<'_>| {
        let what = folders.allow(file).err()?;
        let place = folders::place(config, source, file).map(|at| source.place(at));
        let at = place.map(|(_, at)| format!(":{}:{}", at.line, at.column)).unwrap_or_default();
        let name = place.map_or(source.name.as_str(), |(name, _)| name);
        Some(format!("{name}{at}: {} cannot be {what}", file.path.display()))
    };
    Some(config.other_files().iter().filter_map(out).collect())
}

/// Accounts with authorities that the key process was not told of at its start, as errors: it neither makes nor uses
/// keys for others, since it is not to take their names from this process. `file` is what the next one begins with.
pub fn untold_accounts(config: &Config, source: &Source, file: &Source) -> Vec<Problem> {
    let Some(files) = propylon_tls::key_files() else { return Vec::new() };
    let problem = |acme: &Acme| {
        let what = format!("[acme.{}] is no account that the key process was started with (keys.isolate)", acme.name);
        let remedy = remedy(config, Path::new(&file.name));
        let fix = match source.name == file.name {
            true => format!("{remedy}: the new process takes what the file names then"),
            false => format!("add it to {}, {remedy}, and do this again", file.name),
        };
        Problem::error(&source.name, Some(acme.at), what, fix)
    };
    config.acmes.iter().filter(|acme| !files.keeps_for(&acme.name)).map(problem).collect()
}

/// Advice on how to start a new process.
pub fn remedy(config: &Config, path: &Path) -> String {
    match &config.process.upgrade_socket {
        Some(_) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            format!("run `propylon upgrade -c {}`", path.display())
        }
        None => {
            "restart (process.upgrade_socket, set before that, lets `propylon upgrade` do it without a pause)".into()
        }
    }
}

/// Why a file cannot be opened, and what to do about it, if it is this process that denies it to itself: the kernel
/// says the same of it as of a file whose mode forbids it.
pub fn denial(path: &Path) -> Option<(String, String)> {
    let leads = std::fs::canonicalize(path).ok()?;
    is_out_of_reach(path).then(|| {
        let folder = folder_of(&leads);
        if let Some((_, keys)) = FOLDERS.get().and_then(|folders| folders.near_keys(path)) {
            let what = "it was replaced, and lies in a folder with private keys in it, above or below, where this process may read \
                        nothing new (keys.isolate)";
            let fix = format!("{}, and upgrade (`propylon upgrade`) or restart", isolation::apart(&folder, &keys));
            return (what.to_owned(), fix);
        }
        let what = format!("the sandbox of this process keeps {} from it, which nothing named at its start", leads.display());
        let fix = format!(
            "upgrade (`propylon upgrade`) or restart; sandbox_paths = [\"{}\"] in [process] beforehand makes that unnecessary",
            folder.display()
        );
        (what, fix)
    })
}

/// A finding about a file, with the sandbox's part in it: the mode of a file is not what has to be mended where it is
/// this process that keeps itself from it.
pub fn judged(finding: &Finding) -> Finding {
    // A file that could be read, by this process or by its key process, has a problem that the sandbox has no part in.
    match finding.error.and_then(|error| denial_by(&finding.path, error)) {
        Some((why, fix)) => Finding { what: format!("{}: {why}", finding.what), fix, ..finding.clone() },
        None => finding.clone(),
    }
}

/// An error message for a file that cannot be opened, with the sandbox's part in it.
pub fn explained(path: &Path, error: &io::Error) -> String {
    match denial_by(path, error.kind()) {
        Some((what, fix)) => format!("{error}: {what}; {fix}"),
        None => error.to_string(),
    }
}

/// The denial, where the error is one that it can have led to.
fn denial_by(path: &Path, error: io::ErrorKind) -> Option<(String, String)> {
    (error == io::ErrorKind::PermissionDenied).then(|| denial(path)).flatten()
}

/// Rules are about what is there at this moment, and what comes to be in its folders.
/// `ports`: those of TCP, if not all, and whether abstract Unix sockets of others are in reach.
fn restrict(folders: &Folders, (ports, names): (Option<&[u16]>, bool)) -> Result<Enforced, RulesetError> {
    let all = AccessFs::from_all(LANDLOCK);
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    // Files and folders are made, changed, removed and renamed; no links, devices, pipes or sockets.
    let made = AccessFs::MakeReg | AccessFs::MakeDir | AccessFs::RemoveFile | AccessFs::RemoveDir;
    let written = read | made | AccessFs::WriteFile | AccessFs::Truncate;
    let mut scope = Scope::from_all(LANDLOCK);
    if names {
        scope.remove(Scope::AbstractUnixSocket);
    }
    let mut ruleset = Ruleset::default().handle_access(all)?.scope(scope)?;
    if ports.is_some() {
        ruleset = ruleset.handle_access(AccessNet::ConnectTcp)?;
    }
    let ports =
        ports.into_iter().flatten().map(|port| Ok::<_, RulesetError>(NetPort::new(*port, AccessNet::ConnectTcp)));
    let status = ruleset
        .create()?
        .add_rules(path_beneath_rules(folders.readable(), read))?
        .add_rules(path_beneath_rules(folders.listed(), AccessFs::ReadDir))?
        .add_rules(path_beneath_rules(folders::ALSO_WRITTEN, AccessFs::ReadFile | AccessFs::WriteFile))?
        .add_rules(path_beneath_rules(folders.devices(), AccessFs::ReadFile | AccessFs::WriteFile))?
        .add_rules(path_beneath_rules(folders.writable(), written))?
        .add_rules(path_beneath_rules(folders.cleared(), AccessFs::RemoveFile))?
        .add_rules(ports)?
        .restrict_self()?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => Enforced::Fully,
        RulesetStatus::PartiallyEnforced => Enforced::Partly,
        RulesetStatus::NotEnforced => Enforced::Not(NO_LANDLOCK.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;

    use super::*;

    /// In a thread of its own, which is the only one that the kernel then holds to it.
    fn confined<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(work).join().expect("no panic")
    }

    #[test]
    fn what_is_to_be_done_can_be_done_from_any_folder() {
        let here = std::env::current_dir().unwrap();
        let text =
            "[process]\nupgrade_socket = 'up.sock'\n[listener.web]\nbind = '127.0.0.1:0'\n[[route]]\nrespond = {}\n";
        let source = Source { name: "conf/a.toml".into(), base: "conf".into(), text: text.into() };
        let config = propylon_config::parse(&source).unwrap().0;
        let path = Path::new("conf/a.toml");
        let remedy = remedy(&config, path);
        assert_eq!(remedy, format!("run `propylon upgrade -c {}`", here.join(path).display()));
        let sandbox = Sandbox { path: path.to_owned(), remedy: remedy.clone(), ..Sandbox::none() };
        let named = format!("sandbox_paths = [\"{}\"]", here.join("conf/new").display());
        let fix = sandbox.fix(Path::new("conf/new/x.pem"), &source);
        assert!(fix.starts_with(&remedy) && fix.contains(&named), "{fix}");
        // A pushed text is not what a new process begins with: its folder has to be in the file first.
        let pushed = Source { name: propylon_config::PUSHED.into(), ..source };
        let fix = sandbox.fix(Path::new("conf/new/x.pem"), &pushed);
        assert!(fix.starts_with(&format!("add {named}")) && fix.contains(&remedy), "{fix}");
    }

    #[test]
    fn folders_can_be_read_and_written_as_they_are_named_where_the_kernel_has_landlock() {
        let name = format!("propylon-sandbox-{}-{:016x}", std::process::id(), fastrand::u64(..));
        let folder = std::env::temp_dir().join(name);
        for part in ["read", "written", "other"] {
            fs::create_dir_all(folder.join(part)).unwrap();
            fs::write(folder.join(part).join("file"), part).unwrap();
        }
        let here = folder.clone();
        let (enforced, outcomes) = confined(move || {
            let folders = Folders::new(here.join("read"), here.join("written"));
            let enforced = restrict(&folders, (None, false)).unwrap();
            let outcomes = ["read", "written", "other"].map(|part| {
                let path = here.join(part);
                (fs::read(path.join("file")).is_ok(), fs::write(path.join("new"), "").map_err(|error| error.kind()))
            });
            (enforced, outcomes)
        });
        let _ = fs::remove_dir_all(&folder);
        let denied = Err(ErrorKind::PermissionDenied);
        if !matches!(enforced, Enforced::Not(_)) {
            assert_eq!(outcomes, [(true, denied), (true, Ok(())), (false, denied)]);
        }
    }
}

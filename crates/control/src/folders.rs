//! Folders that the process may read, and folders in which it may write.
//! Access to a file is given by its folder, since a file that is replaced is another file under the same name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use propylon_config::{AccessLog, At, Config, FileAccess, NamedFile, Problem, Source};
use propylon_sys::{folder_of, folders_of, is_beneath, is_broad};

use crate::key_folders;

/// Folders of most installations with authorities' certificates, name service files and certificates.
const ALSO_READ: &[&str] = &[
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/etc/letsencrypt",
    "/usr/lib/ssl",
    "/usr/local/share/ca-certificates",
    "/usr/share/ca-certificates",
    "/run/systemd/resolve",
    "/run/NetworkManager",
    "/run/resolvconf",
    "/sys/fs/cgroup",
    "/dev/urandom",
];
/// How this machine looks up names. Their folder is not for root, so for root they are files, which stay what they were.
const NAME_FILES: &[&str] =
    &["/etc/resolv.conf", "/etc/hosts", "/etc/host.conf", "/etc/nsswitch.conf", "/etc/gai.conf"];
/// Folder that is read unless by root: an account with few rights can read its public files alone, while root could
/// read everything in it.
const ALSO_READ_UNLESS_ROOT: &str = "/etc";
/// Files of the kernel about this process and this machine. `/proc` as a whole shows all other processes.
const HELD: &[&str] = &["/proc/self", "/proc/meminfo", "/proc/sys/kernel/hostname"];
pub const ALSO_WRITTEN: &[&str] = &["/dev/null"];

/// Usual folders of keys: a process that is to have no keys must not read them, whatever names them.
const USUAL_KEYS: &[&str] = &["/etc/letsencrypt", "/etc/ssl/private", "/etc/pki/tls/private"];

/// So far down from a folder that may be read its parts are told apart, where there are keys beneath.
const DEPTH_MAX: usize = 16;
/// Limit on the entries of a folder that are opened one by one; the others cannot be read.
const ENTRIES_MAX: usize = 4096;

/// Without links and `..` in them.
#[derive(Clone, Debug, Default)]
pub struct Folders {
    read: BTreeSet<PathBuf>,
    /// Files are made, changed and removed in them.
    written: BTreeSet<PathBuf>,
    /// This process's own Unix sockets are removed from them at its end.
    cleared: BTreeSet<PathBuf>,
    /// Devices and pipes that are written to: themselves, and not their folders.
    devices: BTreeSet<PathBuf>,
    /// Folders of keys that another process holds.
    keys: BTreeSet<PathBuf>,
    /// Folders in which names can be looked at, and nothing else.
    listed: BTreeSet<PathBuf>,
    /// Files that are allowed by themselves, since they lie where keys are: as each was named, and which it was at the start.
    single: BTreeMap<PathBuf, Option<(u64, u64)>>,
}

/// A file that is allowed by itself, as it was at the start. One that takes its place is another one, and is not allowed.
#[derive(Debug)]
pub struct SingleFile {
    path: &'static str,
    identity: (u64, u64),
}

impl Folders {
    /// Folders of the files that a configuration names; `path` is the configuration's own file.
    pub fn of(config: &Config, path: &Path) -> Folders {
        let (mut folders, mut files) = (Folders::default(), Vec::new());
        folders.read.extend(folders_of(path));
        for file in config.other_files() {
            match file.access {
                FileAccess::Read => {
                    folders.read.extend(folders_of(file.path));
                    files.push(file.path.to_owned());
                }
                FileAccess::Write if is_device(file.path) => drop(folders.devices.insert(file.path.to_owned())),
                FileAccess::Write => folders.written.extend(folders_of(file.path)),
                FileAccess::WriteFolder => drop(folders.written.insert(file.path.to_owned())),
                FileAccess::Socket => drop(folders.cleared.insert(folder_of(file.path))),
            }
        }
        for named in &config.process.sandbox.paths {
            folders.read.extend(PathAccess::of(&named.path).folders(&named.path));
        }
        folders.read.extend(ALSO_READ.iter().chain(HELD).chain(NAME_FILES).map(PathBuf::from));
        if !runs_as_root(config) {
            folders.read.insert(PathBuf::from(ALSO_READ_UNLESS_ROOT));
        }
        // As rustls-native-certs finds them.
        let by_environment = ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter().filter_map(std::env::var_os);
        folders.read.extend(by_environment.flat_map(|path| folders_of(Path::new(&path))));
        let folders = folders.found();
        match config.keys.isolate {
            None => folders,
            Some(_) => folders.apart_from(key_folders::folders(config), key_folders::store(config), &files),
        }
    }

    /// Replaces each path by its canonical one, and leaves out paths that do not exist.
    fn found(self) -> Folders {
        let whole = |paths: BTreeSet<PathBuf>| paths.iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
        let Folders { read, written, cleared, devices, .. } = self;
        let (read, written, cleared, devices) = (whole(read), whole(written), whole(cleared), whole(devices));
        Folders { read, written, cleared, devices, ..Folders::default() }
    }

    /// Without those in which there are keys, which another process holds. Of them these files can be read, as long as they are
    /// not replaced.
    fn apart_from(mut self, keys: BTreeSet<PathBuf>, store: Option<PathBuf>, files: &[PathBuf]) -> Folders {
        let usual = USUAL_KEYS.iter().filter_map(|path| fs::canonicalize(path).ok());
        let closed: BTreeSet<PathBuf> = keys.iter().cloned().chain(usual).collect();
        let read = std::mem::take(&mut self.read);
        read.iter().for_each(|path| self.open(path, &closed, 0));
        let single = files.iter().map(PathBuf::as_path).chain(NAME_FILES.iter().map(Path::new));
        for name in single.filter(|path| !path.is_dir()) {
            let Ok(path) = fs::canonicalize(name) else { continue };
            if !is_beneath(&self.read, &path) {
                self.single.insert(name.to_owned(), identity(name));
                self.read.insert(path);
            }
        }
        // Which files there are: what is in them is not read.
        self.listed.extend(keys.iter().filter(|folder| Some(*folder) != store.as_ref()).cloned());
        self.keys = keys;
        self
    }

    /// All of a folder but what has keys in it.
    fn open(&mut self, path: &Path, closed: &BTreeSet<PathBuf>, depth: usize) {
        if path.ancestors().any(|above| closed.contains(above)) {
            return;
        }
        let is_above = closed.range(path.to_owned()..).next().is_some_and(|first| first.starts_with(path));
        if !is_above {
            self.read.insert(path.to_owned());
            return;
        }
        self.listed.insert(path.to_owned());
        if depth >= DEPTH_MAX {
            return;
        }
        let entries = fs::read_dir(path).into_iter().flatten().flatten().take(ENTRIES_MAX);
        // A link's target is opened under its own name, or not at all.
        let own = entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_symlink()));
        own.for_each(|entry| self.open(&entry.path(), closed, depth + 1));
    }

    /// As `/snapshot` tells them of another process.
    pub fn from_json(value: &serde_json::Value) -> Option<Folders> {
        let set = |key: &str| serde_json::from_value(value[key].clone()).ok();
        let (read, written, cleared) = (set("read")?, set("written")?, set("cleared")?);
        Some(Folders { read, written, cleared, ..Folders::default() })
    }

    #[cfg(test)]
    pub fn new(read: PathBuf, written: PathBuf) -> Folders {
        Folders { read: [read].into(), written: [written].into(), ..Folders::default() }.found()
    }

    pub fn readable(&self) -> &BTreeSet<PathBuf> {
        &self.read
    }

    pub fn listed(&self) -> &BTreeSet<PathBuf> {
        &self.listed
    }

    /// Whether a file that can be read by itself is another by now.
    pub fn was_replaced(&self, path: &Path) -> bool {
        let is_another = |known: &Option<(u64, u64)>| identity(path).is_some_and(|now| Some(now) != *known);
        self.single.get(path).is_some_and(is_another)
    }

    /// The folder of a file, and one with keys that is this one, above it or below.
    pub fn near_keys(&self, path: &Path) -> Option<(PathBuf, PathBuf)> {
        let folder = fs::canonicalize(folder_of(path)).ok()?;
        let keys = self.keys.iter().find(|keys| keys.starts_with(&folder) || folder.starts_with(keys))?.clone();
        Some((folder, keys))
    }

    /// Whether the process that holds keys may read this file.
    pub fn has_keys(&self, path: &Path) -> bool {
        is_beneath(&self.keys, path)
    }

    pub fn writable(&self) -> &BTreeSet<PathBuf> {
        &self.written
    }

    pub fn cleared(&self) -> &BTreeSet<PathBuf> {
        &self.cleared
    }

    pub fn devices(&self) -> &BTreeSet<PathBuf> {
        &self.devices
    }

    /// All in which a file can be opened.
    pub fn reach(&self) -> BTreeSet<PathBuf> {
        [&self.read, &self.written, &self.devices].into_iter().flatten().cloned().collect()
    }

    pub fn may_read(&self, path: &Path) -> bool {
        is_beneath(&self.read, path) || is_beneath(&self.written, path)
    }

    /// Whether a file that is put here can be read by this process, or by the next one, which opens folders that have
    /// come to be beside those of keys.
    pub fn may_come_to_be_read(&self, path: &Path) -> bool {
        self.may_read(path) || is_beneath(&self.listed, path)
    }

    /// A file that is made, changed or removed.
    fn may_write(&self, path: &Path) -> bool {
        is_beneath(&self.written, &folder_of(path)) || is_beneath(&self.devices, path)
    }

    /// A folder, in which that happens.
    fn may_write_in(&self, path: &Path) -> bool {
        is_beneath(&self.written, path)
    }

    /// Whether what is named can be come by, and what is done with it otherwise.
    pub fn allow(&self, file: &NamedFile<'_>) -> Result<(), &'static str> {
        let (may, what) = match file.access {
            FileAccess::Read => (self.may_read(file.path), "read"),
            FileAccess::Write => (is_device(file.path) || self.may_write(file.path), "written"),
            FileAccess::WriteFolder => (self.may_write_in(file.path), "written"),
            // Sockets are fixed for the life of a process.
            FileAccess::Socket => (true, "removed"),
        };
        if may { Ok(()) } else { Err(what) }
    }

    /// Files that are there and in no folder that is allowed.
    pub fn single_files(&self) -> Vec<SingleFile> {
        let file = |path: &&'static str| {
            let identity = identity(path)?;
            let is_single = self.read.contains(&fs::canonicalize(path).ok()?) && !self.has_folder_of(path);
            is_single.then_some(SingleFile { path, identity })
        };
        NAME_FILES.iter().filter_map(file).collect()
    }

    /// Paths of those `files` that another file has replaced.
    pub fn replaced(&self, files: &[SingleFile]) -> Vec<&'static str> {
        let is_another = |file: &&SingleFile| {
            identity(file.path).is_some_and(|now| now != file.identity) && !self.has_folder_of(file.path)
        };
        files.iter().filter(is_another).map(|file| file.path).collect()
    }

    /// Whether what a path leads to is in a folder that is allowed, whichever file it is.
    fn has_folder_of(&self, path: &str) -> bool {
        fs::canonicalize(path).is_ok_and(|target| is_beneath(&self.read, &folder_of(&target)))
    }
}

fn identity(path: impl AsRef<Path>) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Whether the account that serves is root: asked before it is changed as well.
fn runs_as_root(config: &Config) -> bool {
    rustix::process::geteuid().is_root() && config.process.user.as_deref().is_none_or(|user| user == "root")
}

/// A device, a pipe: nobody replaces it, and its folder has others.
fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
}

/// Access that can be had to a path of `process.sandbox_paths`.
enum PathAccess {
    There,
    /// The path does not exist yet: its folder is allowed in its place, so that it can appear.
    Later,
    Nothing,
}

impl PathAccess {
    fn of(path: &Path) -> PathAccess {
        if fs::symlink_metadata(path).is_ok() {
            return PathAccess::There;
        }
        match fs::canonicalize(folder_of(path)) {
            Ok(folder) if !is_broad(&folder) => PathAccess::Later,
            _ => PathAccess::Nothing,
        }
    }

    fn folders(&self, path: &Path) -> BTreeSet<PathBuf> {
        match self {
            PathAccess::There => folders_of(path),
            PathAccess::Later => [folder_of(path)].into(),
            PathAccess::Nothing => BTreeSet::new(),
        }
    }
}

/// Warnings about paths that will be allowed otherwise than the configuration means; `path` is its own file.
pub fn warnings(config: &Config, source: &Source, path: &Path) -> Vec<Problem> {
    if !config.process.sandbox.on {
        return Vec::new();
    }
    let warning = |at, what, fix: &str| Problem::warning(&source.name, at, what, fix);
    let mut warnings = Vec::new();
    for named in &config.process.sandbox.paths {
        let shown_path = named.path.display();
        let (what, fix) = match PathAccess::of(&named.path) {
            PathAccess::There => continue,
            PathAccess::Later => {
                let folder = folder_of(&named.path);
                let folder = fs::canonicalize(&folder).unwrap_or(folder);
                let what =
                    format!("`sandbox_paths`: {shown_path} is not there: all of {} can be read", folder.display());
                (what, "make it before the start, so that it alone can be read")
            }
            PathAccess::Nothing => {
                let what = format!("`sandbox_paths`: {shown_path} is not there: it cannot be read when it comes");
                (what, "make it, and then start (or upgrade)")
            }
        };
        warnings.push(warning(Some(named.at), what, fix));
    }
    const FIX: &str = "put it in a folder of its own";
    let mut reported = BTreeSet::new();
    let mut report = |folders: BTreeSet<PathBuf>, at, done: &str| {
        for folder in folders.iter().filter_map(|folder| fs::canonicalize(folder).ok()).filter(|each| is_broad(each)) {
            if reported.insert((folder.clone(), done.to_owned())) {
                let what = format!(
                    "the sandbox lets everything in {} be {done}, since the configuration names something in it",
                    folder.display()
                );
                warnings.push(warning(at, what, FIX));
            }
        }
    };
    let is_meant = |folder: &PathBuf| !runs_as_root(config) && folder.as_os_str() == ALSO_READ_UNLESS_ROOT;
    let read = |path: &Path| folders_of(path).into_iter().filter(|folder| !is_meant(folder)).collect();
    report(read(path), None, "read");
    for file in config.other_files() {
        let at = place(config, source, &file);
        match file.access {
            FileAccess::Read => report(read(file.path), at, "read"),
            FileAccess::Write if is_device(file.path) => {}
            FileAccess::Write => report(folders_of(file.path), at, "written"),
            FileAccess::WriteFolder => report([file.path.to_owned()].into(), at, "written"),
            FileAccess::Socket => report([folder_of(file.path)].into(), at, "removed"),
        }
    }
    for named in &config.process.sandbox.paths {
        report(PathAccess::of(&named.path).folders(&named.path), Some(named.at), "read");
    }
    warnings
}

/// Position in the configuration at which a file is named.
pub fn place(config: &Config, source: &Source, file: &NamedFile<'_>) -> Option<At> {
    match &config.log.access {
        AccessLog::File(path) if path == file.path => propylon_config::locate(source, "log.access"),
        _ => file.at.known(),
    }
}

/// Makes the folders in which a configuration wants files made, for this account alone. Whoever needs one says what is wrong
/// with it. Not for those who only look: the account that serves has to own them.
pub fn make_folders(config: &Config) {
    for file in config.named_files().iter().filter(|file| file.access == FileAccess::WriteFolder) {
        let _ = DirBuilder::new().recursive(true).mode(0o700).create(file.path);
    }
}

/// Opens what is allowed by itself and made anew by the kernel, and returns it to be held.
pub fn hold() -> Vec<OwnedFd> {
    const PATH_ONLY: i32 = libc::O_PATH | libc::O_CLOEXEC;
    let open = |path: &&str| OpenOptions::new().read(true).custom_flags(PATH_ONLY).open(path);
    HELD.iter().filter_map(|path| open(path).ok()).map(OwnedFd::from).collect()
}

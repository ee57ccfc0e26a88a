//! Which folders the process may read, and in which it may write.
//!
//! Of files their folders, because a file that is replaced is another file under the same name.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use propylon_config::{Config, FileAccess};

/// Where authorities' certificates, the names of this network and certificates of most installations are.
const ALSO_READ: &[&str] = &[
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/etc/letsencrypt",
    "/usr/lib/ssl",
    "/usr/local/share/ca-certificates",
    "/usr/share/ca-certificates",
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/run/systemd/resolve",
    "/run/NetworkManager",
    "/run/resolvconf",
    "/sys/fs/cgroup",
    "/dev/urandom",
];
/// What everybody may read in it is no secret, and what is one has other rights than those of an account that may do little;
/// root could read it all.
const ALSO_READ_UNLESS_ROOT: &str = "/etc";
/// Of the kernel, about this process and this machine. `/proc` as a whole has all other processes in it.
const HELD: &[&str] = &["/proc/self", "/proc/meminfo", "/proc/sys/kernel/hostname"];
pub const ALSO_WRITTEN: &[&str] = &["/dev/null"];
/// Folders in which there is more than somebody who names a file in them means.
const BROAD: &[&str] = &["/", "/etc", "/root", "/home", "/var", "/var/lib", "/usr", "/tmp"];

/// Without links and `..` in them.
#[derive(Clone, Debug, Default)]
pub struct Folders {
    read: BTreeSet<PathBuf>,
    written: BTreeSet<PathBuf>,
}

impl Folders {
    /// What a configuration names; `path` is its own.
    pub fn of(config: &Config, path: &Path) -> Folders {
        let (mut read, mut written) = (folders_of(path), Vec::new());
        for file in config.named_files() {
            match file.access {
                FileAccess::Read => read.extend(folders_of(file.path)),
                FileAccess::Write => written.push(folder_of(file.path)),
                FileAccess::WriteFolder => written.push(file.path.to_owned()),
            }
        }
        read.extend(ALSO_READ.iter().chain(HELD).map(PathBuf::from));
        if !rustix::process::geteuid().is_root() {
            read.push(PathBuf::from(ALSO_READ_UNLESS_ROOT));
        }
        // As rustls-native-certs finds them.
        let by_environment = ["SSL_CERT_FILE", "SSL_CERT_DIR"].into_iter().filter_map(std::env::var_os);
        read.extend(by_environment.map(PathBuf::from));
        Folders::new(read, written)
    }

    /// What is not there is left out.
    pub fn new(read: Vec<PathBuf>, written: Vec<PathBuf>) -> Folders {
        let whole = |paths: Vec<PathBuf>| paths.iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
        Folders { read: whole(read), written: whole(written) }
    }

    pub fn readable(&self) -> &BTreeSet<PathBuf> {
        &self.read
    }

    pub fn writable(&self) -> &BTreeSet<PathBuf> {
        &self.written
    }

    pub fn may_read(&self, path: &Path) -> bool {
        has(&self.read, path) || has(&self.written, path)
    }

    /// A file that is made, changed or removed.
    pub fn may_write(&self, path: &Path) -> bool {
        has(&self.written, &folder_of(path))
    }

    /// A folder, in which that happens.
    pub fn may_write_in(&self, path: &Path) -> bool {
        has(&self.written, path)
    }

    /// Those in which more can be read than was meant.
    pub fn broad(&self) -> impl Iterator<Item = &PathBuf> {
        let is_root = rustix::process::geteuid().is_root();
        let meant = move |path: &&PathBuf| is_root || path.as_os_str() != ALSO_READ_UNLESS_ROOT;
        let is_broad = |path: &&PathBuf| BROAD.iter().any(|broad| path.as_os_str() == *broad);
        self.read.iter().filter(is_broad).filter(meant)
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

fn has(folders: &BTreeSet<PathBuf>, path: &Path) -> bool {
    // What is not there yet will be in a folder that is, or in none.
    let Ok(path) = std::path::absolute(path) else { return false };
    let known = path.ancestors().find_map(|path| fs::canonicalize(path).ok());
    known.is_some_and(|known| known.ancestors().any(|folder| folders.contains(folder)))
}

/// The folders through which a file is come by: its own and, if it is a link, that of what it leads to.
fn folders_of(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() {
        return vec![path.to_owned()];
    }
    let target = fs::canonicalize(path).ok().map(|target| folder_of(&target));
    [Some(folder_of(path)), target].into_iter().flatten().collect()
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

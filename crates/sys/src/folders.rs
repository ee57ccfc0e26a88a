//! Folders through which files are come by: what a process that confines itself names in place of the files, because a
//! file that is replaced is another file under the same name.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Links from one to the next that are followed, as many as the kernel follows (path_resolution(7)).
const LINKS_MAX: usize = 40;
/// Entries of a folder that are looked at for links.
const ENTRIES_MAX: usize = 100_000;

/// Folders of the whole system, in which there is more than what one program keeps there.
const BROAD: &[&str] =
    &["/", "/boot", "/dev", "/etc", "/home", "/opt", "/proc", "/root", "/run", "/srv", "/sys", "/tmp", "/usr", "/var"];
const BROAD_BELOW: &[&str] = &["/usr/lib", "/usr/local", "/usr/share", "/var/lib", "/var/log", "/var/run", "/var/tmp"];

/// Folders to which this process has confined itself, without links.
static REACHABLE_FOLDERS: OnceLock<BTreeSet<PathBuf>> = OnceLock::new();

/// The folders through which a file is come by: its own, that of each link on the way, and that of what they lead to.
/// For a folder these are its own and those that links in it lead to; not those of folders that are links.
pub fn folders_of(path: &Path) -> BTreeSet<PathBuf> {
    if !path.is_dir() {
        return folders_of_file(path);
    }
    let entries = fs::read_dir(path).into_iter().flatten().flatten().take(ENTRIES_MAX);
    let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
    let links = links.map(|link| link.path()).filter(|link| !link.is_dir());
    links.flat_map(|link| folders_of_file(&link)).chain([path.to_owned()]).collect()
}

fn folders_of_file(path: &Path) -> BTreeSet<PathBuf> {
    let mut folders = BTreeSet::from([folder_of(path)]);
    let mut at = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(target) = fs::read_link(&at) else { break };
        at = folder_of(&at).join(target);
        folders.insert(folder_of(&at));
    }
    folders
}

/// The folder that a path's last part is in. Of a path without one it is the folder that this process is in.
pub fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Whether what is at `path`, or will be, is in one of these folders or below. They have no links in them.
pub fn is_beneath(folders: &BTreeSet<PathBuf>, path: &Path) -> bool {
    // A path that is not there yet will be in a folder that is, or in none.
    let Ok(path) = std::path::absolute(path) else { return false };
    let known = path.ancestors().find_map(|path| fs::canonicalize(path).ok());
    known.is_some_and(|known| known.ancestors().any(|folder| folders.contains(folder)))
}

/// Whether a folder, which has no links in it, is one of the whole system's.
pub fn is_broad(folder: &Path) -> bool {
    BROAD.iter().chain(BROAD_BELOW).any(|broad| folder.as_os_str() == *broad)
}

/// Whether two paths, however they are written, lead to one file that is there.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    let one = identity(one);
    one.is_some() && one == identity(other)
}

/// Sets the folders that this process has confined itself to, for [`is_out_of_reach`]. The first call counts:
/// confinement cannot be widened.
pub fn set_reachable_folders(folders: BTreeSet<PathBuf>) {
    let _ = REACHABLE_FOLDERS.set(folders);
}

/// Whether this process has confined itself to folders that `path` does not lead to: then an error on opening it is its
/// own doing, and not that of the file's mode.
pub fn is_out_of_reach(path: &Path) -> bool {
    REACHABLE_FOLDERS.get().is_some_and(|folders| !is_beneath(folders, path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str, folders: &[&str]) -> Scratch {
            let path = std::env::temp_dir().join(format!("propylon-folders-{}-{name}", std::process::id()));
            folders.iter().for_each(|folder| fs::create_dir_all(path.join(folder)).unwrap());
            Scratch(fs::canonicalize(path).unwrap())
        }

        /// Names in here of the folders found, without `.` and `..`.
        fn names(&self, found: &BTreeSet<PathBuf>) -> Vec<String> {
            let whole = found.iter().map(|path| fs::canonicalize(path).unwrap());
            let mut names: Vec<String> =
                whole.filter_map(|path| Some(path.strip_prefix(&self.0).ok()?.display().to_string())).collect();
            names.sort();
            names.dedup();
            names
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_link_is_come_by_through_its_own_folder_and_each_on_the_way() {
        let scratch = Scratch::new("links", &["live/shop", "archive/shop", "between"]);
        let at = |name: &str| scratch.0.join(name);
        fs::write(at("archive/shop/key1.pem"), "").unwrap();
        symlink("../archive/shop/key1.pem", at("between/key.pem")).unwrap();
        symlink("../../between/key.pem", at("live/shop/key.pem")).unwrap();
        let found = folders_of(&at("live/shop/key.pem"));
        assert_eq!(scratch.names(&found), ["archive/shop", "between", "live/shop"]);
        assert_eq!(folders_of(&at("live/shop")), found.into_iter().chain([at("live/shop")]).collect());
    }

    #[test]
    fn links_that_lead_to_each_other_come_to_an_end() {
        let scratch = Scratch::new("circle", &["a", "b"]);
        symlink("../b/x", scratch.0.join("a/x")).unwrap();
        symlink("../a/x", scratch.0.join("b/x")).unwrap();
        assert_eq!(scratch.names(&folders_of(&scratch.0.join("a/x"))), ["a", "b"]);
    }

    #[test]
    fn what_is_not_there_yet_is_beneath_the_folder_it_will_be_in() {
        let scratch = Scratch::new("beneath", &["here/below", "there"]);
        symlink("here", scratch.0.join("link")).unwrap();
        let folders = BTreeSet::from([scratch.0.join("here")]);
        for (path, is_in) in
            [("here/new", true), ("here/below/new/x", true), ("link/new", true), ("there/x", false), ("new", false)]
        {
            assert_eq!(is_beneath(&folders, &scratch.0.join(path)), is_in, "{path}");
        }
    }

    #[test]
    fn a_file_is_the_same_however_its_path_is_written() {
        let scratch = Scratch::new("same", &["here"]);
        let at = |name: &str| scratch.0.join(name);
        fs::write(at("here/file"), "").unwrap();
        fs::write(at("other"), "").unwrap();
        symlink("here", at("link")).unwrap();
        assert!(is_same_file(&at("here/file"), &at("link/../here/./file")));
        assert!(!is_same_file(&at("here/file"), &at("other")));
        assert!(!is_same_file(&at("nowhere"), &at("nowhere")));
    }

    #[test]
    fn folders_of_the_whole_system_are_broad_and_those_of_one_program_are_not() {
        for folder in ["/", "/etc", "/run", "/var/log", "/dev", "/tmp"] {
            assert!(is_broad(Path::new(folder)), "{folder}");
        }
        for folder in ["/run/propylon", "/var/lib/propylon", "/etc/propylon", "/home/me/keys"] {
            assert!(!is_broad(Path::new(folder)), "{folder}");
        }
    }
}

//! Remains of a process that had rigs, however it ended: folders, namespaces, and what is pinned in the kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::namespaces;
use crate::scratch::Scratch;

/// The place of maps and programs that outlive their processes.
const BPF: &str = "/sys/fs/bpf";
/// Names are of the form `propylon-e2e-PID-NUMBER`, as those of temporary folders.
const PREFIX: &str = "propylon-e2e-";
/// Keepers of many namespaces take their time.
const REMOVAL: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(20);

/// A folder for what one `propylon-flows` of this process pins.
pub fn pins(number: usize) -> PathBuf {
    Path::new(BPF).join(format!("{PREFIX}{}-{number}", std::process::id()))
}

/// Detaches and forgets what is pinned in a folder.
pub fn remove_pins(folder: &Path) {
    let _ = fs::remove_dir_all(folder);
}

/// Removes the pins of processes that are gone.
pub fn sweep_pins() {
    let is_gone = |pid: u32| !Path::new("/proc").join(pid.to_string()).exists();
    of(Path::new(BPF), is_gone).iter().for_each(|folder| remove_pins(folder));
}

/// Removes all that a process has left, which has ended. Its keepers remove namespaces; those are waited for.
///
/// # Errors
/// Names what is still there.
pub fn remove(pid: u32) -> Result<(), String> {
    let began = Instant::now();
    while !namespaces::of_process(pid).is_empty() && began.elapsed() < REMOVAL {
        std::thread::sleep(PAUSE);
    }
    let folders = || {
        let places = Scratch::places().into_iter().chain([PathBuf::from(BPF)]);
        places.flat_map(|place| of(&place, |owner| owner == pid)).collect::<Vec<PathBuf>>()
    };
    folders().iter().for_each(|folder| remove_pins(folder));
    let left = folders().into_iter().chain(namespaces::of_process(pid));
    let left: Vec<String> = left.map(|path| path.display().to_string()).collect();
    match left.is_empty() {
        true => Ok(()),
        false => Err(format!("could not be removed: {}", left.join(", "))),
    }
}

/// Folders in a place whose owner is such a process.
fn of(place: &Path, is_owner: impl Fn(u32) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let owned = entries.filter(|entry| entry.file_name().to_str().and_then(owner).is_some_and(&is_owner));
    owned.map(|entry| entry.path()).collect()
}

fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_tells_whose_it_is_and_others_are_nobodys() {
        assert_eq!(owner("propylon-e2e-4711-0"), Some(4711));
        assert_eq!(owner("propylon-e2e-shot-0"), None);
        assert_eq!(owner("propylon"), None);
    }
}

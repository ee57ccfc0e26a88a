//! The cluster as an engine with `[cluster]` needs it: etcd, sealing keys, folders, clocks, and the second hop.

mod etcd;
mod flows;

use std::fs;
use std::path::Path;

use propylon_cluster::seal::{Sealer, SealingKeyError};
use propylon_config::{Cluster, Config};

use super::Machine;
use super::account::{self, Owner};
use super::finding::{Finding, State};

/// A file system in memory, by its number: it does without pages on disk (`statfs(2)`).
const TMPFS: i64 = 0x0102_1994;
const RAMFS: i64 = 0x8584_58f6;
const RUNTIME: &str = "cluster.runtime";
const STATE: &str = "cluster.state";

/// Findings, judged as the account that serves.
pub fn findings(machine: &Machine, config: &Config) -> Vec<Finding> {
    let Some(cluster) = &config.cluster else { return Vec::new() };
    // Sealing keys are read, and the key by which etcd knows this engine.
    let _ = propylon_sys::no_core_dumps();
    let mut findings = match propylon_cluster::Settings::of(cluster) {
        Ok(settings) => etcd::findings(&settings),
        Err(what) => vec![
            Finding::new("cluster.engine", State::Bad, what, "a name of its own for each engine")
                .fix("engine = \"NAME\" in [cluster]"),
        ],
    };
    findings.push(sealing_keys(cluster));
    let owner = Owner::of(config);
    findings.extend(runtime(&cluster.runtime.path, &owner, number_of));
    findings.extend(state(&cluster.state.path, &owner, number_of));
    findings.extend(flows::findings(machine, cluster));
    findings
}

/// The keys without which nothing that engines share can be opened.
fn sealing_keys(cluster: &Cluster) -> Finding {
    const WHAT: &str = "cluster.sealing_keys";
    const WANTED: &str = "keys that this account reads, and no other";
    let paths: Vec<_> = cluster.sealing_keys.iter().map(|file| file.path.clone()).collect();
    match Sealer::read(&paths) {
        Ok(sealer) => {
            let ids: Vec<String> = sealer.ids().map(|id| id.to_string()).collect();
            let current = format!("{}; the first seals: it is the same on all engines", ids.join(", "));
            Finding::new(WHAT, State::Good, current, WANTED)
        }
        Err(SealingKeyError { path, what, fix }) => {
            Finding::new(WHAT, State::Bad, format!("{}: {what}", path.display()), WANTED).fix(fix)
        }
    }
}

/// The number of the file system that a folder is on, or would be on once it is made.
fn number_of(folder: &Path) -> Option<i64> {
    #[expect(clippy::unnecessary_cast, reason = "the kernel's type differs with the architecture")]
    rustix::fs::statfs(account::nearest_folder(folder)).ok().map(|system| system.f_type as i64)
}

fn is_in_memory(number: i64) -> bool {
    [TMPFS, RAMFS].contains(&number)
}

/// Private keys lie there, opened.
fn runtime(folder: &Path, owner: &Owner, number_of: fn(&Path) -> Option<i64>) -> Vec<Finding> {
    const WANTED: &str = "a folder in memory: opened private keys lie there";
    let shown = folder.display();
    let finding = match number_of(folder) {
        None => Finding::new(RUNTIME, State::Unknown, shown.to_string(), WANTED),
        Some(number) if is_in_memory(number) => {
            Finding::new(RUNTIME, State::Good, format!("{shown} is in memory"), WANTED)
        }
        Some(_) => {
            let fix = "runtime = \"/run/propylon/cluster\" in [cluster], and RuntimeDirectory=propylon in the unit";
            Finding::new(RUNTIME, State::Bad, format!("{shown} is on a disk"), WANTED).fix(fix)
        }
    };
    vec![finding, may_write(RUNTIME, folder, owner)]
}

/// From there an engine starts while etcd is away.
fn state(folder: &Path, owner: &Owner, number_of: fn(&Path) -> Option<i64>) -> Vec<Finding> {
    let mut findings = vec![may_write(STATE, folder, owner)];
    if number_of(folder).is_some_and(is_in_memory) {
        let current = format!("{} is in memory", folder.display());
        let wanted = "a folder that outlives a restart of the machine: an engine starts from it while etcd is away";
        let fix = "state = \"/var/lib/propylon/cluster\" in [cluster]";
        findings.push(Finding::new(STATE, State::Advice, current, wanted).fix(fix));
    }
    findings
}

fn may_write(what: &'static str, folder: &Path, owner: &Owner) -> Finding {
    const WANTED: &str = "a folder of this account's to write in";
    let shown = folder.display();
    let there = account::nearest_folder(folder);
    let (state, current) = match fs::metadata(folder) {
        Ok(metadata) if !metadata.is_dir() => (State::Bad, format!("{shown} is no folder")),
        _ if account::may_write(there) => (State::Good, format!("{shown} can be written in")),
        _ => (State::Bad, format!("{shown} cannot be written in")),
    };
    Finding::new(what, state, current, WANTED).fix(owner.installs(folder, 700))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: i64 = 0xef53;

    fn owner() -> Owner {
        Owner::of(&super::super::tests::config(
            "[[route]]\nrespond = { status = 200 }\n[listener.web]\nbind = \"127.0.0.1:0\"\n",
        ))
    }

    #[test]
    fn opened_keys_belong_in_memory_and_sealed_ones_on_a_disk() {
        let folder = std::env::temp_dir();
        let states = |findings: Vec<Finding>| findings.iter().map(|finding| finding.state).collect::<Vec<State>>();
        assert_eq!(states(runtime(&folder, &owner(), |_| Some(TMPFS))), [State::Good, State::Good]);
        assert_eq!(states(runtime(&folder, &owner(), |_| Some(DISK))), [State::Bad, State::Good]);
        assert_eq!(states(runtime(&folder, &owner(), |_| None)), [State::Unknown, State::Good]);
        assert_eq!(states(state(&folder, &owner(), |_| Some(DISK))), [State::Good]);
        assert_eq!(states(state(&folder, &owner(), |_| Some(RAMFS))), [State::Good, State::Advice]);
    }

    #[test]
    fn a_folder_that_is_a_file_is_bad() {
        let file = std::env::current_exe().unwrap();
        assert_eq!(may_write(STATE, &file, &owner()).state, State::Bad);
    }

    #[test]
    fn the_kernel_tells_which_file_systems_are_in_memory() {
        assert!(number_of(Path::new("/proc")).is_some_and(|number| !is_in_memory(number)));
        if fs::read_to_string("/proc/mounts").is_ok_and(|mounts| mounts.contains(" /dev/shm tmpfs ")) {
            assert!(number_of(Path::new("/dev/shm/not-made-yet")).is_some_and(is_in_memory));
        }
    }
}

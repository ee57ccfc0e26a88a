//! How many workers serve, where the cores that a process can use come and go.

use std::fs;
use std::process::Command;
use std::time::Duration;

use propylon_e2e::engine::simple;
use propylon_e2e::lineage::{How, Lineage};
use propylon_e2e::{Origin, binaries, eventually};

const WAIT_MAX: Duration = Duration::from_secs(30);
const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";

/// Threads of a process that serve.
fn workers(pid: u32) -> usize {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("a process").flatten();
    let names = threads.map(|thread| fs::read_to_string(thread.path().join("comm")).unwrap_or_default());
    names.filter(|name| name.starts_with("worker-")).count()
}

/// Changes the cores that all threads of a process and of its children may run on, as a cpuset does.
fn allow(pid: u32, cores: &str) {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    for pid in children.split_ascii_whitespace().chain([pid.to_string().as_str()]) {
        let done = Command::new("taskset").args(["-a", "-c", "-p", cores, pid]).output().expect("taskset");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

#[test]
fn a_process_whose_cores_have_changed_says_so_and_its_successor_has_as_many_workers() {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    if cores < 2 {
        return eprintln!("skipped: this machine has one core");
    }
    let origin = Origin::always(HELLO);
    let mut command = Command::new("taskset");
    command.args(["-c", "0,1"]).arg(binaries::propylon()).arg("run");
    let mut lineage = Lineage::start_by(command, "drain_timeout = \"1s\"", &simple(&[origin.address()]));
    // A thread has its name when it has run.
    eventually(WAIT_MAX, "there are two", || (workers(lineage.pid()) == 2).then_some(()));
    assert_eq!(lineage.metric("propylon_workers_outdated"), 0.0);

    allow(lineage.pid(), "0");
    lineage.says("cores that the process can use by now: 1; workers that serve: 2");
    lineage.says("workers-outdated");
    assert_eq!(lineage.metric("propylon_workers_outdated"), 1.0);
    lineage.upgrade(How::Signal);
    eventually(WAIT_MAX, "there is one", || (workers(lineage.pid()) == 1).then_some(()));
    assert_eq!(lineage.metric("propylon_workers_outdated"), 0.0);

    // A change that is taken back needs nothing.
    allow(lineage.pid(), "0,1");
    let outdated = || lineage.metric("propylon_workers_outdated");
    eventually(WAIT_MAX, "it is seen", || (outdated() == 1.0).then_some(()));
    allow(lineage.pid(), "0");
    eventually(WAIT_MAX, "it is over", || (outdated() == 0.0).then_some(()));
}

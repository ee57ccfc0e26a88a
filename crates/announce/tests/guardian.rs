//! The guardian with real BIRD. It needs a process with one thread, which the usual test harness is not, so this is a
//! plain program that runs itself again as the guardian.

mod lab;

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Instant;

use lab::Running;
use lab::pair::{Pair, V4, V6, name};
use propylon_announce::guard::{self, GuardEnd};
use propylon_announce::{GuardLine, Settings, Wanted, birdconf};

const STORIES: [(&str, fn()); 2] = [
    (
        "the_routes_of_an_engine_that_is_killed_are_withdrawn_by_its_guardian",
        the_routes_of_an_engine_that_is_killed_are_withdrawn_by_its_guardian,
    ),
    ("the_routes_of_an_engine_that_has_handed_over_stay", the_routes_of_an_engine_that_has_handed_over_stay),
];

/// A story that fails panics, and with it the program.
fn main() {
    if let Some(socket) = std::env::var_os(GUARDED) {
        return guardian_process(socket);
    }
    for (name, story) in STORIES {
        story();
        println!("test {name} ... ok");
    }
}

/// A process that has an engine's end of the line, and the guardian at its other end.
fn guarded(settings: &Settings, line: GuardLine, other: OwnedFd) -> (Running, Running) {
    let engine = Running::start(Command::new("sleep").arg("600").stdin(Stdio::from(OwnedFd::from(line))));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(GUARDED, &settings.socket);
    let guardian = Running::start(command.stdin(Stdio::from(other)).stdout(Stdio::piped()));
    (engine, guardian)
}

/// Environment variable with BIRD's socket, in a guardian.
const GUARDED: &str = "PROPYLON_ANNOUNCE_GUARDED";

fn guardian_process(socket: OsString) {
    let protocols = [birdconf::PROTOCOL_V4, birdconf::PROTOCOL_V6].map(name).to_vec();
    let line = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let end = guard::watch(line, &Settings { socket: socket.into(), protocols }).unwrap();
    println!("{end}");
    assert!(!matches!(end, GuardEnd::Failed(_)));
}

/// Waits until a guardian has come to its loop: SIGTERM is blocked.
fn guards(guardian: &Running) {
    lab::holds("the guardian blocks signals", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", guardian.0.id())).unwrap();
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
        u64::from_str_radix(blocked.trim(), 16).unwrap() & 1 << (15 - 1) != 0
    });
}

/// Words of a guardian, line by line.
fn said(guardian: &mut Running) -> impl Iterator<Item = String> + use<> {
    BufReader::new(guardian.0.stdout.take().unwrap()).lines().map(Result::unwrap)
}

fn the_routes_of_an_engine_that_is_killed_are_withdrawn_by_its_guardian() {
    let Some(pair) = Pair::start() else { return };
    for round in 0..5 {
        let announcer = pair.announcer();
        announcer.set(Wanted::Announce, "ready".to_owned());
        pair.announced();
        drop(announcer);
        let (line, other) = GuardLine::pair().unwrap();
        let (mut engine, mut guardian) = guarded(&pair.settings, line, other);
        let mut said = said(&mut guardian);
        guards(&guardian);
        // A service manager's signal to the whole service does not keep the guardian from its work.
        lab::run(Command::new("kill").args(["-TERM", &guardian.0.id().to_string()]));
        assert!(pair.router.has_route(V4) && pair.router.has_route(V6));
        let began = Instant::now();
        engine.kill();
        pair.gone();
        println!("round {round}: the router's kernel was without {:?} after the engine's death", began.elapsed());
        let end = said.find(|line| line.contains("the engine")).unwrap();
        println!("round {round}: {end}");
        assert!(end.contains("the engine died; its virtual addresses were withdrawn"), "{end}");
    }
}

fn the_routes_of_an_engine_that_has_handed_over_stay() {
    let Some(pair) = Pair::start() else { return };
    let announcer = pair.announcer();
    announcer.set(Wanted::Announce, "ready".to_owned());
    pair.announced();
    drop(announcer);
    let (line, other) = GuardLine::pair().unwrap();
    line.hand_over().unwrap();
    let (mut engine, mut guardian) = guarded(&pair.settings, line, other);
    engine.kill();
    let mut words = said(&mut guardian);
    assert!(words.any(|line| line.contains("its successor announces")));
    // Read to the end, or its last words would break it.
    words.for_each(drop);
    assert!(guardian.0.wait().unwrap().success());
    assert!(pair.router.has_route(V4) && pair.router.has_route(V6));
    // A successor that was passed the line itself.
    let (line, other) = GuardLine::pair().unwrap();
    let passed = GuardLine::from(line.as_fd().try_clone_to_owned().unwrap());
    let (mut engine, mut guardian) = guarded(&pair.settings, line, other);
    guards(&guardian);
    engine.kill();
    assert!(passed.is_guarded() && guardian.0.try_wait().unwrap().is_none());
    assert!(pair.router.has_route(V4) && pair.router.has_route(V6));
    drop(passed);
    pair.gone();
}

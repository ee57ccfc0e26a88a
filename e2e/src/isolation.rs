//! Engines whose keys another process has: that process, and what of keys may be nowhere else.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;

use crate::binaries;
use crate::program::{Said, run};
use crate::wait::{WAIT_MAX, eventually};

/// What of a key may be in no memory: its numbers as files have them and as they are computed with, and its base64.
pub fn traces(name: &str, pem: &str) -> Vec<(String, Vec<u8>)> {
    let der = PrivateKeyDer::from_pem_slice(pem.as_bytes()).expect("a key").secret_der().to_vec();
    let key = &pem[pem.find("-----BEGIN PRIVATE KEY-----").expect("a key")..];
    let lines: Vec<&str> = key.lines().filter(|line| !line.starts_with("-----")).collect();
    let mut traces = vec![(format!("{name}: base64"), lines[lines.len() / 2].as_bytes()[..32].to_vec())];
    for (part, number) in numbers(&der) {
        let turned: Vec<u8> = number.iter().rev().copied().collect();
        traces.push((format!("{name}: {part}"), number));
        traces.push((format!("{name}: {part}, turned round"), turned));
    }
    traces
}

/// The private numbers of a key in PKCS#8, 32 bytes of each: a curve's scalar; RSA's d, p, q and the rest of them.
fn numbers(der: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let inner = |der: &[u8]| elements(&elements(der)[0].1);
    let private = &inner(der)[2].1;
    let parts = inner(private);
    match parts.len() {
        9 => ["d", "p", "q", "dp", "dq", "qinv"]
            .into_iter()
            .zip(&parts[3..])
            .map(|(name, (_, number))| (name, number[number.len() - 40..number.len() - 8].to_vec()))
            .collect(),
        _ => vec![("scalar", parts[1].1[..32].to_vec())],
    }
}

/// DER elements in a row: tags and contents.
fn elements(mut der: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut all = Vec::new();
    while let [tag, first, rest @ ..] = der {
        let (length, rest) = match first {
            0..=0x7f => (usize::from(*first), rest),
            _ => {
                let (digits, rest) = rest.split_at(usize::from(first & 0x7f));
                (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
            }
        };
        all.push((*tag, rest[..length].to_vec()));
        der = &rest[length..];
    }
    all
}

/// The process that a process has started with this in its command line.
pub fn child(parent: u32, what: &str) -> Option<u32> {
    pids().filter(|pid| parent_of(*pid) == Some(parent)).find(|pid| is_called(*pid, what))
}

/// Every process there is.
fn pids() -> impl Iterator<Item = u32> {
    let all = fs::read_dir("/proc").expect("processes").flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether a process has this in its command line.
fn is_called(pid: u32, what: &str) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).contains(what)
}

fn parent_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

/// The key process of an engine, when there is one.
#[track_caller]
pub fn key_process(engine: u32) -> u32 {
    let supervisor = child(engine, "key-supervisor").expect("a supervisor");
    eventually(WAIT_MAX, "a key process", || child(supervisor, "key-process"))
}

/// The supervisor of keys of another engine than this one, with the same configuration.
pub fn supervisor_beside(engine: u32, config: &Path) -> Option<u32> {
    let is_another = |pid: u32| pid != engine && is_called(pid, &config.to_string_lossy());
    pids().find(|pid| is_called(*pid, "key-supervisor") && parent_of(*pid).is_some_and(is_another))
}

/// `propylonctl attempt` in the sandbox of this configuration.
pub fn attempt(config: &Path, what: &[&str]) -> Said {
    let mut command = Command::new(binaries::propylonctl());
    command.arg("attempt").arg("-c").arg(config).args(what);
    run(command, b"", Duration::from_secs(20))
}

/// Whether no thread of a process goes on: a signal that stops it takes its time to reach all of them.
pub fn is_stopped(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("its threads").flatten();
    let states = threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    states.into_iter().all(|status| status.contains("State:\tT"))
}

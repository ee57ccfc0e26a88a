//! What is in another process's memory.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use memchr::memmem::Finder;
use rustix::process::geteuid;

/// Read at once.
const CHUNK_BYTES: usize = 1 << 16;
/// No needle is longer.
const OVERLAP_BYTES: usize = 256;

/// Whether this account may look: the processes that hold keys let nobody but root.
pub fn may_look() -> bool {
    let root = geteuid().is_root();
    if !root {
        eprintln!("only root can look into these processes: nothing was looked for");
    }
    root
}

/// Which of these are anywhere in the memory of a process, but in what it maps of files and cannot write to, by their names.
#[track_caller]
pub fn found(pid: u32, needles: &[(String, Vec<u8>)]) -> Vec<String> {
    assert!(needles.iter().all(|(_, needle)| (8..=OVERLAP_BYTES).contains(&needle.len())));
    let finders: Vec<_> = needles.iter().map(|(name, needle)| (name, Finder::new(needle))).collect();
    let memory = File::open(format!("/proc/{pid}/mem")).expect("its memory");
    let mut chunk = vec![0; CHUNK_BYTES + OVERLAP_BYTES];
    let nothing = vec![0; chunk.len()];
    let mut found = Vec::new();
    for (start, end) in regions(pid) {
        let mut at = start;
        while at < end {
            let wanted = chunk.len().min((end - at) as usize);
            // What is not there, or has gone meanwhile, holds nothing.
            let length = memory.read_at(&mut chunk[..wanted], at).unwrap_or(0);
            // Most of it has never been written to.
            let finders = if chunk[..length] == nothing[..length] { &[][..] } else { &finders };
            for (name, finder) in finders {
                if let Some(place) = finder.find(&chunk[..length]) {
                    found.push(format!("{name} at {:#x}", at + place as u64));
                }
            }
            at += CHUNK_BYTES as u64;
        }
    }
    found
}

fn regions(pid: u32) -> Vec<(u64, u64)> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let region = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let is_nobodys = rest.split_ascii_whitespace().count() < 5;
        let is_meant = rest.starts_with("rw") || (rest.starts_with('r') && is_nobodys);
        is_meant.then_some((number(start)?, number(end)?))
    };
    let regions: Vec<_> = maps.lines().filter_map(region).collect();
    assert!(!regions.is_empty(), "no memory in:\n{maps}");
    regions
}

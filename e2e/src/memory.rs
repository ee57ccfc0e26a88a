//! What is in another process's memory.

use std::collections::HashMap;
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

/// The writable memory of a process at one moment, by pages, as far as there is something in it, and without the stacks
/// of its threads, which are each one's own.
pub struct Pages(HashMap<u64, Box<[u8]>>);

impl Pages {
    /// The memory of a process that may go on meanwhile.
    #[track_caller]
    pub fn of(pid: u32) -> Pages {
        let memory = File::open(format!("/proc/{pid}/mem")).expect("its memory");
        let page_map = File::open(format!("/proc/{pid}/pagemap")).expect("its page table");
        let mut pages = HashMap::new();
        let stacks = stacks(pid);
        for (start, end) in regions(pid).into_iter().filter(|(start, _)| !stacks.contains(start)) {
            let mut entries = vec![0; ((end - start) / PAGE_BYTES) as usize * ENTRY_BYTES];
            let length = page_map.read_at(&mut entries, start / PAGE_BYTES * ENTRY_BYTES as u64).unwrap_or(0);
            for (index, entry) in entries[..length].chunks_exact(ENTRY_BYTES).enumerate() {
                let entry = u64::from_ne_bytes(entry.try_into().expect("eight bytes"));
                let address = start + index as u64 * PAGE_BYTES;
                if entry & PRESENT == 0 {
                    continue;
                }
                let mut page = vec![0; PAGE_BYTES as usize].into_boxed_slice();
                if memory.read_exact_at(&mut page, address).is_ok() {
                    pages.insert(address, page);
                }
            }
        }
        Pages(pages)
    }

    /// Addresses of lines of so many bytes that are others now than they were.
    pub fn changed<'a>(&'a self, before: &'a Pages, line_bytes: u64) -> impl Iterator<Item = u64> + 'a {
        static NOTHING: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];
        let page_before = |address| before.0.get(address).map_or(&NOTHING[..], |page| &page[..]);
        // Most pages are as they were, and are compared at once.
        let changed = self.0.iter().map(move |(address, now)| (address, now, page_before(address)));
        changed.filter(|(_, now, before)| now[..] != before[..]).flat_map(move |(address, now, before)| {
            let lines = now.chunks(line_bytes as usize).zip(before.chunks(line_bytes as usize));
            let is_other = |(_, (now, before)): &(usize, (&[u8], &[u8]))| now != before;
            lines.enumerate().filter(is_other).map(move |(index, _)| address + index as u64 * line_bytes)
        })
    }
}

/// Addresses at which stacks of threads begin: behind a page that nobody may touch.
fn stacks(pid: u32) -> Vec<u64> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let guards = maps.lines().filter(|line| line.contains(" ---p "));
    let range = guards.filter_map(|line| line.split_once(' ')?.0.split_once('-'));
    let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
    range
        .map(|(start, end)| (number(start), number(end)))
        .filter(|(start, end)| end - start == PAGE_BYTES)
        .map(|(_, end)| end)
        .collect()
}

const PAGE_BYTES: u64 = 4096;
/// An entry of a process's page table, and the bits of a page that is in memory or swapped out (Linux,
/// admin-guide/mm/pagemap).
const ENTRY_BYTES: usize = 8;
const PRESENT: u64 = 0b11 << 62;

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

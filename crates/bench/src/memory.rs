//! Memory of a server: what its processes hold, and what the kernel holds for its sockets.

use crate::cpu::process_tree;
use crate::failure::{Failure, Outcome, While};
use serde::{Deserialize, Serialize};
use std::fs;

/// One reading, in KiB. User memory is summed over a process tree; kernel memory is the whole machine's.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    pub rss_kib: u64,
    /// Shared pages divided among those who share them; 0 where smaps_rollup may not be read.
    pub pss_kib: u64,
    /// Buffers of all TCP sockets (`/proc/net/sockstat`).
    pub tcp_kib: u64,
    /// Kernel objects, sockets among them (`/proc/meminfo`, Slab).
    pub slab_kib: u64,
}

/// Growth per connection between two readings, in KiB.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Growth {
    pub rss: f64,
    pub pss: f64,
    /// Socket buffers and kernel objects of both ends, if both are on this machine.
    pub kernel: f64,
}

impl Memory {
    /// Without roots, kernel memory only.
    pub fn of(roots: &[u32]) -> Outcome<Self> {
        let mut memory = Self { tcp_kib: tcp_kib()?, slab_kib: slab_kib()?, ..Self::default() };
        for &root in roots {
            if !std::path::Path::new(&format!("/proc/{root}")).exists() {
                return Err(Failure::new(format!("process {root} is not there")));
            }
        }
        for pid in process_tree(roots)? {
            let (rss, pss) = user_kib(pid);
            memory.rss_kib += rss;
            memory.pss_kib += pss;
        }
        Ok(memory)
    }

    pub fn growth_since(&self, earlier: &Self, connections: usize) -> Growth {
        let per = |now: u64, then: u64| (now as f64 - then as f64) / connections.max(1) as f64;
        Growth {
            rss: per(self.rss_kib, earlier.rss_kib),
            pss: per(self.pss_kib, earlier.pss_kib),
            kernel: per(self.tcp_kib + self.slab_kib, earlier.tcp_kib + earlier.slab_kib),
        }
    }
}

/// RSS and PSS; a process that ended meanwhile holds nothing.
fn user_kib(pid: u32) -> (u64, u64) {
    if let Ok(text) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) {
        return (field_kib(&text, "Rss:"), field_kib(&text, "Pss:"));
    }
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    (field_kib(&text, "VmRSS:"), 0)
}

fn tcp_kib() -> Outcome<u64> {
    let text = fs::read_to_string("/proc/net/sockstat").when("reading /proc/net/sockstat")?;
    let pages = text
        .lines()
        .find_map(|line| line.strip_prefix("TCP:"))
        .and_then(|line| line.split_ascii_whitespace().skip_while(|word| *word != "mem").nth(1)?.parse::<u64>().ok());
    Ok(pages.unwrap_or(0) * (rustix::param::page_size() as u64 / 1024))
}

fn slab_kib() -> Outcome<u64> {
    let text = fs::read_to_string("/proc/meminfo").when("reading /proc/meminfo")?;
    Ok(field_kib(&text, "Slab:"))
}

/// `Name:   123 kB`
fn field_kib(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory() {
        let memory = Memory::of(&[std::process::id()]).unwrap();
        assert!(memory.rss_kib > 500 && memory.slab_kib > 0, "{memory:?}");
        assert_eq!(field_kib("Rss:       12 kB\nPss:  7 kB\n", "Pss:"), 7);
    }
}

//! Kernel memory for sockets, the objects and what is in their buffers apart.

use crate::failure::Outcome;
use crate::memory::Memory;
use serde::{Deserialize, Serialize};

/// Slab caches that a TCP connection takes an object from. Each socket has also a dentry (192 bytes), whose cache
/// moves too much for other reasons to be counted. Caches of equal objects may be merged by the kernel under one
/// of their names, so a little of what others do is in here too.
const CACHES: [&str; 6] = ["TCP", "TCPv6", "sock_inode_cache", "filp", "eventpoll_epi", "request_sock_TCP"];

/// One reading for the whole machine, in KiB.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Kernel {
    /// Socket objects; by `/proc/slabinfo` if it may be read (root), else all of the kernel's slabs.
    pub sockets_kib: f64,
    /// Whether other things than sockets are in it.
    pub is_coarse: bool,
    /// TCP sockets of every program (`/proc/net/sockstat`), to tell when others came or went.
    pub sockets: u64,
    /// Pages charged to TCP buffers (`/proc/net/sockstat`).
    pub buffers_kib: f64,
}

impl Kernel {
    pub fn now(memory: &Memory) -> Self {
        let fine = std::fs::read_to_string("/proc/slabinfo").ok().map(|text| socket_kib(&text));
        Self {
            sockets_kib: fine.unwrap_or(memory.slab_kib as f64),
            is_coarse: fine.is_none(),
            sockets: tcp_sockets(&std::fs::read_to_string("/proc/net/sockstat").unwrap_or_default()),
            buffers_kib: memory.tcp_kib as f64,
        }
    }
}

/// `TCP: inuse 6 orphan 0 tw 0 alloc 12 mem 1`
fn tcp_sockets(text: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:")).unwrap_or_default();
    let mut words = line.split_ascii_whitespace().skip_while(|word| *word != "alloc");
    words.nth(1).and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// slabinfo(5): name, objects in use, objects, bytes of an object.
fn socket_kib(text: &str) -> f64 {
    let bytes = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let is_ours = fields.next().is_some_and(|name| CACHES.contains(&name));
        let in_use = fields.next()?.parse::<f64>().ok()?;
        let size = fields.nth(1)?.parse::<f64>().ok()?;
        is_ours.then_some(in_use * size)
    };
    text.lines().filter_map(bytes).sum::<f64>() / 1024.0
}

/// Memory that the server's processes and the kernel hold at one moment.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Reading {
    pub memory: Memory,
    pub kernel: Kernel,
}

impl Reading {
    pub fn of(pids: &[u32]) -> Outcome<Self> {
        let memory = Memory::of(pids)?;
        Ok(Self { kernel: Kernel::now(&memory), memory })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_objects_of_sockets_count() {
        let text = "slabinfo - version: 2.1\n# name <active_objs> <num_objs> <objsize>\n\
            TCP 4 117 2048 13 8 : tunables 0 0 0 : slabdata 9 9 0\n\
            dentry 272287 273231 192 21 1 : tunables 0 0 0 : slabdata 13011 13011 0\n\
            filp 8 966 256 21 1 : tunables 0 0 0 : slabdata 46 46 0\n";
        assert_eq!(socket_kib(text), 10.0);
        assert_eq!(tcp_sockets("sockets: used 9\nTCP: inuse 6 orphan 0 tw 3 alloc 12 mem 1\n"), 12);
    }
}

//! The rule on open files: how many clients a limit has room for, and how high it has to be.
//!
//! A client takes a file, and one more while it has a request in progress. Before any client comes the process has its
//! own, and of every limit some are kept for servers and some for the admin address. The start, `propylon check`,
//! `propylon doctor` and the condition all go by this.

use propylon_config::{Config, ServerAddress};
use propylon_observe::telemetry::LimitedBy;

/// Files of a process, whatever it serves: logs, timers, the main thread's event loop, what is read again.
const PROCESS_FILES: u64 = 24;
/// Files of a worker beside its listening sockets: its event loop, its sockets at rest, its link to the key process.
const WORKER_FILES: u64 = 6;
/// Clients that a process without `max_connections` is to have room for.
const CLIENTS_LEAST: u64 = 400;

/// Part of every limit on files that is kept for the admin address, the logs and the files that are read again: one in
/// so many, within bounds.
const ADMIN_FILES_PART: u64 = 8;
const ADMIN_FILES: std::ops::RangeInclusive<u64> = 4..=16;
/// The same for connections to servers.
const SERVER_FILES_PART: u64 = 16;
const SERVER_FILES: std::ops::RangeInclusive<u64> = 4..=256;

/// The open files that a configuration takes.
#[derive(Clone, Copy, Debug)]
pub struct FilesPlan {
    /// Files that are open, or may be, while there is no client.
    own: u64,
    /// `process.max_connections`.
    stated: Option<u64>,
}

/// How many client connections there may be at once.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionsMax {
    /// Over all workers.
    pub all: usize,
    /// The share of each worker.
    pub each: usize,
    pub by: LimitedBy,
}

impl FilesPlan {
    /// `probes_max` is how many health checks are under way at once.
    pub fn of(config: &Config, workers: usize, probes_max: usize) -> FilesPlan {
        let sockets: usize = config.listeners.iter().map(|listener| listener.bind.len()).sum();
        let probed = config.backends.iter().filter(|backend| backend.health.is_some());
        let probes: usize = probed.flat_map(|backend| &backend.servers).map(|server| probes_of(&server.address)).sum();
        let own = PROCESS_FILES + workers as u64 * (WORKER_FILES + sockets as u64) + probes.min(probes_max) as u64;
        FilesPlan { own, stated: config.process.max_connections.map(|clients| clients as u64) }
    }

    /// Client connections at once: `max_connections`, or nine tenths of what is left to clients.
    pub fn connections_max(self, limit: u64, workers: usize) -> ConnectionsMax {
        let by_files = client_files(limit).saturating_sub(self.own) / 10 * 9;
        let (all, by) = match self.stated {
            Some(stated) => (stated, LimitedBy::Configuration),
            None => (by_files, LimitedBy::Files),
        };
        let all = usize::try_from(all).unwrap_or(usize::MAX).max(1);
        ConnectionsMax { all, each: all.div_ceil(workers), by }
    }

    /// The limit that has room for all clients with a request in progress each.
    pub fn needed(self) -> u64 {
        let used = self.own.saturating_add(self.clients().saturating_mul(2));
        let mut limit = used;
        while limit < used.saturating_add(kept_files(limit)) {
            limit = used.saturating_add(kept_files(limit));
        }
        limit
    }

    /// The complaint about a limit that is lower than that, and what to do.
    pub fn shortfall(self, limit: u64) -> Option<(String, String)> {
        let (needed, clients) = (self.needed(), self.clients());
        (limit < needed).then(|| {
            let what = format!(
                "the limit on open files is {limit} here, and {clients} clients with a request in progress each take {needed}"
            );
            (what, format!("raise it: LimitNOFILE={needed} or more in the unit (ulimit -n {needed}), or state fewer clients"))
        })
    }

    fn clients(self) -> u64 {
        self.stated.unwrap_or(CLIENTS_LEAST)
    }
}

/// Health checks of a server at once: one for each address.
fn probes_of(address: &ServerAddress) -> usize {
    match address {
        ServerAddress::Ip(_) | ServerAddress::Unix { .. } => 1,
        ServerAddress::Name { .. } => 2,
        ServerAddress::Srv { .. } => 8,
    }
}

/// The files of a limit that are for clients and servers: some are kept for the admin address.
pub fn server_files(limit: u64) -> u64 {
    limit.saturating_sub((limit / ADMIN_FILES_PART).clamp(*ADMIN_FILES.start(), *ADMIN_FILES.end()))
}

/// The files of a limit that are for clients.
pub fn client_files(limit: u64) -> u64 {
    let kept = (limit / SERVER_FILES_PART).clamp(*SERVER_FILES.start(), *SERVER_FILES.end());
    server_files(limit).saturating_sub(kept)
}

/// The files of a limit that are not for clients.
fn kept_files(limit: u64) -> u64 {
    limit - client_files(limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use propylon_config::Source;

    fn plan(process: &str) -> FilesPlan {
        let text = format!("[process]\n{process}\n[listener.web]\nbind = \"127.0.0.1:0\"\n[[route]]\nrespond = {{}}\n");
        let source = Source { name: "a.toml".into(), base: "".into(), text };
        FilesPlan::of(&propylon_config::parse(&source).expect("a good file").0, 2, 128)
    }

    #[test]
    fn a_low_limit_serves_as_many_as_it_has_files_for_and_a_high_one_nearly_as_many() {
        let served = |limit| plan("").connections_max(limit, 2).each * 2;
        assert_eq!([0, 64, 200, 1024, 20_000].map(served), [2, 10, 118, 810, 17_722]);
        assert_eq!(plan("").connections_max(u64::MAX, 2).by, LimitedBy::Files);
        let stated = plan("max_connections = 9").connections_max(64, 2);
        assert_eq!((stated.all, stated.each, stated.by), (9, 5, LimitedBy::Configuration));
    }

    #[test]
    fn the_limit_that_is_needed_has_room_for_every_client_and_its_request() {
        for clients in [1, 100, 5_000, 1_000_000] {
            let plan = plan(&format!("max_connections = {clients}"));
            let needed = plan.needed();
            assert_eq!(client_files(needed), plan.own + 2 * clients, "{clients} take {needed}");
            assert!(plan.shortfall(needed).is_none() && plan.shortfall(needed - 1).is_some());
        }
        let (what, fix) = plan("max_connections = 20").shortfall(64).expect("too few");
        assert!(what.contains("is 64 here, and 20 clients") && fix.contains("LimitNOFILE=94 "), "{what}; {fix}");
        assert!(plan("").shortfall(1024).is_none() && plan("").shortfall(512).is_some());
    }
}

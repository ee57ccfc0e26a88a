//! Memory and files that run short, and the clients that pay for it.

use propylon_metrics::{Counter, Gauge, Registry};

/// Why a client's connection was refused or closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Memory,
    Files,
    Source,
}

pub struct ShortageMetrics {
    /// Refused connections, in the order of `Reason`.
    refused: [Counter; 3],
    closed: [Counter; 2],
    /// Limit on open files.
    pub files: Gauge,
    /// Limit on open files that is needed, if the present one is lower.
    pub files_needed: Gauge,
    pub limit: Gauge,
    pub used: Gauge,
    pub refusing: Gauge,
}

impl ShortageMetrics {
    pub fn new(r: &mut Registry) -> ShortageMetrics {
        let mut refused = |reason| {
            let help = "Client connections reset at their accept, because memory or files ran short, or their source had its share.";
            r.counter("propylon_connections_refused_total", help, &[("reason", reason)])
        };
        let refused = [refused("memory"), refused("files"), refused("source")];
        let mut closed = |reason| {
            let help = "Idle client connections closed before their time, because memory or files ran short.";
            r.counter("propylon_idle_closed_total", help, &[("reason", reason)])
        };
        ShortageMetrics {
            refused,
            closed: [closed("memory"), closed("files")],
            files: r.gauge("propylon_files_limit", "Files that the process may have open at once.", &[]),
            files_needed: r.gauge(
                "propylon_files_needed",
                "Files that the process needs at once for its clients, where its limit is lower; else 0.",
                &[],
            ),
            limit: r.gauge("propylon_memory_limit_bytes", "process.memory_limit; 0 where there is none.", &[]),
            used: r.gauge("propylon_memory_used_bytes", "What counts against process.memory_limit.", &[]),
            refusing: r.gauge("propylon_memory_refused_percent", "New connections refused for want of memory.", &[]),
        }
    }

    pub fn refused(&self, reason: Reason) -> Counter {
        self.refused[reason as usize]
    }

    pub fn closed(&self, reason: Reason) -> Counter {
        self.closed[reason as usize % 2]
    }
}

/// The reason for the number of client connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitedBy {
    /// `process.max_connections`.
    Configuration,
    /// The limit on open files.
    Files,
}

impl LimitedBy {
    pub const ALL: [LimitedBy; 2] = [LimitedBy::Configuration, LimitedBy::Files];

    pub fn name(self) -> &'static str {
        match self {
            LimitedBy::Configuration => "max_connections",
            LimitedBy::Files => "files",
        }
    }
}

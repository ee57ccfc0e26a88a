//! State of one core's connections, and what cores share: the keys, the rules and the number of connections of each.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use propylon_crypto::{Job, Outcome};
use propylon_metrics::Column;
use rustls::ServerConfig;
use tokio::sync::{Notify, mpsc};

use crate::access::Rules;
use crate::hsm::Tokens;
use crate::kernels::Seen;
use crate::keys::Keys;
use crate::pending_handshakes::PendingHandshakes;
use crate::rate::Rates;
use crate::signing::TaskQueues;
use crate::task::{ConnectionEvent, Task, ThreadKind};
use crate::telemetry::Telemetry;

/// Bytes read from a socket at once: 60 requests.
const READ_BYTES: usize = 64 * 1024;

/// State that all cores share.
pub struct Shared {
    pub keys: ArcSwap<Keys>,
    /// Absent in a key process, to which nobody connects by TCP.
    pub tls: ArcSwapOption<ServerConfig>,
    pub rules: Rules,
    pub rates: Rates,
    pub connections_max: usize,
    /// Connections of each core.
    counts: Box<[AtomicUsize]>,
}

/// A command to a worker.
pub enum Command {
    Serve(std::net::TcpStream),
    /// A token to be dropped: the sender counts how many are left, and so sees which cores still run.
    Beat(Arc<()>),
    /// Accept no more, have every connection finish, and end.
    Drain,
}

/// State that the connections of a core share.
pub struct Core {
    pub shared: Arc<Shared>,
    pub queues: TaskQueues,
    pub tokens: Tokens,
    pub column: Column,
    pub telemetry: &'static Telemetry,
    pub idle_timeout: Duration,
    pub timeout: Duration,
    pub scratch: RefCell<Scratch>,
    pub index: usize,
    pub command_senders: Vec<mpsc::Sender<Command>>,
    pub open: RefCell<HashMap<u64, mpsc::Sender<ConnectionEvent>>>,
    pub pending: RefCell<PendingHandshakes>,
    pub last: Notify,
}

/// Buffers of one turn, which connections of a core take turns with.
pub struct Scratch {
    pub bytes: Box<[u8]>,
    pub ids: Vec<u32>,
    pub jobs: Vec<Job>,
    pub outcomes: Vec<Outcome>,
    /// Tasks for threads of their own, by [`ThreadKind`]: those of a turn go to their queue together.
    pub tasks: [Vec<Task>; ThreadKind::ALL.len()],
    /// The counts of this thread's kernels that have been reported.
    pub seen: Seen,
}

impl Shared {
    pub fn new(
        keys: Keys,
        tls: Option<Arc<ServerConfig>>,
        rules: Rules,
        connections_max: usize,
        workers: usize,
    ) -> Shared {
        let counts = (0..workers).map(|_| AtomicUsize::new(0)).collect();
        let (keys, tls) = (ArcSwap::from_pointee(keys), ArcSwapOption::new(tls));
        Shared { keys, tls, rules, rates: Rates::default(), connections_max, counts }
    }

    /// Takes a place on the core that has the fewest connections, `own` if it is one of them. Connections are few
    /// and live long, so that the kernel's dice alone would leave some cores with none. Absent if all places are
    /// taken.
    pub fn admit(&self, own: usize) -> Option<usize> {
        let load = |index: usize| self.counts[index].load(Ordering::Relaxed);
        if (0..self.counts.len()).map(load).sum::<usize>() >= self.connections_max {
            return None;
        }
        let least = (0..self.counts.len()).min_by_key(|index| (load(*index), *index != own)).unwrap_or(own);
        self.counts[least].fetch_add(1, Ordering::Relaxed);
        Some(least)
    }

    pub fn leave(&self, index: usize) {
        self.counts[index].fetch_sub(1, Ordering::Relaxed);
    }
}

impl Core {
    /// Evicts a connection without a certificate, if this core has any, when all places are taken. The evicted one ends
    /// in a moment, and until then there is one connection more.
    pub fn make_room(&self) -> Option<usize> {
        let serial = self.pending.borrow().next_evicted()?;
        self.displace(serial);
        self.shared.counts[self.index].fetch_add(1, Ordering::Relaxed);
        Some(self.index)
    }

    pub fn displace(&self, serial: u64) {
        self.handshake_is_over(serial);
        if let Some(events) = self.open.borrow().get(&serial) {
            // The channel has room for this event.
            let _ = events.try_send(ConnectionEvent::Evict);
        }
    }

    /// Removes a connection from those that have not shown a certificate.
    pub fn handshake_is_over(&self, serial: u64) {
        self.pending.borrow_mut().leave(serial);
        self.column.set(self.telemetry.handshaking, self.pending.borrow().len() as i64);
    }
}

impl Scratch {
    pub fn new(seen: Seen) -> Scratch {
        let bytes = vec![0; READ_BYTES].into_boxed_slice();
        let tasks = ThreadKind::ALL.map(|_| Vec::new());
        Scratch { bytes, ids: Vec::new(), jobs: Vec::new(), outcomes: Vec::new(), tasks, seen }
    }
}

//! Report of one core on a signer: numbers for the metrics, and a line in the log when something changes.

use std::cell::Cell;
use std::fmt::Write;

use propylon_crypto::Ski;
use propylon_crypto::keyless::ErrorCode;
use propylon_metrics::{Column, Counter, Gauge};
use propylon_observe::telemetry::{CONCLUSIONS, OUTCOMES, SignerMetrics};
use propylon_observe::throttle::Throttle;

/// One core's.
pub struct Report {
    column: Column,
    metrics: SignerMetrics,
    signer: String,
    /// As the user wrote them.
    servers: Vec<String>,
    throttle: Throttle,
    /// Cores learn the same at the same time; one of them tells it, the others at the level for debugging.
    speaks: bool,
    /// Milliseconds.
    now: u64,
    /// This core's share of the gauges, given back in the end: another signer may have the same series.
    unsent: Cell<i64>,
    levels: Box<[Levels]>,
}

/// A server's gauges.
#[derive(Clone, Default)]
struct Levels {
    outstanding: Cell<i64>,
    connections: Cell<i64>,
    ejected: Cell<i64>,
}

/// Logs a message about a server, with the signer's name, as often as the throttle admits.
macro_rules! report {
    ($self:ident, $level:ident, $($message:tt)+) => {
        if let Some(withheld) = $self.throttle.admit($self.now) {
            let level = if $self.speaks { log::Level::$level } else { log::Level::Debug };
            let others = if withheld > 0 { format!(" ({withheld} more were not logged)") } else { String::new() };
            log::log!(level, "signer \"{}\": {}{others}", $self.signer, format_args!($($message)+));
        }
    };
}

impl Report {
    pub fn new(column: Column, metrics: SignerMetrics, signer: &str, servers: Vec<String>) -> Report {
        let speaks = column.index() == 0;
        let levels = vec![Levels::default(); servers.len()].into();
        let (throttle, unsent) = (Throttle::default(), Cell::new(0));
        Report { column, metrics, signer: signer.to_owned(), servers, throttle, speaks, now: 0, unsent, levels }
    }

    fn shift(&self, gauge: Gauge, level: &Cell<i64>, change: i64) {
        level.set(level.get() + change);
        self.column.shift(gauge, change);
    }

    /// The process beside this one was started again; all cores learn it, and one counts.
    pub fn restarted(&self) {
        if let Some(restarts) = self.metrics.restarts.filter(|_| self.speaks) {
            self.column.increment(restarts);
        }
    }

    /// Reports that no key process will be there any more.
    pub fn over(&mut self, why: &str) {
        if let Some(is_over) = self.metrics.is_over {
            self.column.set(is_over, 1);
        }
        report!(self, Error, "no key process will be there any more: {why}; restart, or upgrade, this one");
    }

    /// For the limit on lines.
    pub fn at(&mut self, millis: u64) {
        self.now = millis;
    }

    pub fn concluded(&self, outcome: &str) {
        if let Some(at) = CONCLUSIONS.iter().position(|known| *known == outcome) {
            self.column.increment(self.metrics.conclusions[at]);
        }
    }

    pub fn full(&self) {
        self.concluded("full");
    }

    pub fn retried(&self) {
        self.column.increment(self.metrics.retries);
    }

    pub fn hedged(&self) {
        self.column.increment(self.metrics.hedges);
    }

    pub fn unsent(&self, count: usize) {
        let before = self.unsent.replace(count as i64);
        self.column.shift(self.metrics.unsent, count as i64 - before);
    }

    pub fn outstanding(&self, server: usize, change: i64) {
        self.shift(self.metrics.servers[server].outstanding, &self.levels[server].outstanding, change);
    }

    pub fn answered(&self, server: usize, outcome: &str) {
        if let Some(at) = OUTCOMES.iter().position(|known| *known == outcome) {
            self.column.increment(self.metrics.servers[server].outcomes[at]);
        }
    }

    pub fn duration(&self, server: usize, micros: u64) {
        self.column.observe(self.metrics.servers[server].duration, micros);
    }

    pub fn strays(&self, server: usize, count: u64) {
        self.column.add(self.metrics.servers[server].strays, count);
    }

    pub fn links(&self, server: usize, change: i64) {
        self.shift(self.metrics.servers[server].connections, &self.levels[server].connections, change);
    }

    pub fn server_up(&mut self, server: usize) {
        report!(self, Info, "key server {} is connected", self.servers[server]);
    }

    pub fn server_down(&mut self, server: usize, why: &str) {
        report!(self, Warn, "key server {} is no longer connected: {why}", self.servers[server]);
    }

    pub fn connect_failed(&mut self, server: usize, why: &str) {
        self.not_connected(server, self.metrics.servers[server].connect_failures, why);
    }

    /// No fault of the server's.
    pub fn unsigned(&mut self, server: usize, why: &str) {
        self.not_connected(server, self.metrics.servers[server].unsigned, why);
    }

    fn not_connected(&self, server: usize, counter: Counter, why: &str) {
        self.column.increment(counter);
        log::debug!("signer \"{}\": key server {}: no connection: {why}", self.signer, self.servers[server]);
    }

    /// The first failure after a server was connected, or ever; later ones are only counted.
    pub fn unreachable(&mut self, server: usize, why: &str) {
        report!(self, Warn, "key server {} cannot be reached: {why}", self.servers[server]);
    }

    pub fn ejected(&mut self, server: usize) {
        let metrics = &self.metrics.servers[server];
        self.column.increment(metrics.ejections);
        self.shift(metrics.ejected, &self.levels[server].ejected, 1);
        report!(self, Info, "key server {} does not answer in time and is passed over", self.servers[server]);
    }

    pub fn readmitted(&mut self, server: usize) {
        self.shift(self.metrics.servers[server].ejected, &self.levels[server].ejected, -1);
        report!(self, Info, "key server {} answers in time again", self.servers[server]);
    }

    pub fn wrong(&mut self, server: usize) {
        report!(self, Error, "key server {} has sent what is not a signature by the key", self.servers[server]);
    }

    pub fn refused(&mut self, server: usize, ski: &Ski, code: Option<ErrorCode>) {
        let mut key = String::new();
        for byte in ski {
            let _ = write!(key, "{byte:02x}");
        }
        let why = code.map_or_else(|| "unknown error".to_owned(), |code| code.to_string());
        let cure = "`propylon-keyserver keys` there lists the keys that it has";
        report!(self, Warn, "key server {} does not sign with the key {key}: {why}; {cure}", self.servers[server]);
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        self.column.shift(self.metrics.unsent, -self.unsent.get());
        for (levels, metrics) in self.levels.iter().zip(&self.metrics.servers) {
            self.column.shift(metrics.outstanding, -levels.outstanding.get());
            self.column.shift(metrics.connections, -levels.connections.get());
            self.column.shift(metrics.ejected, -levels.ejected.get());
        }
    }
}

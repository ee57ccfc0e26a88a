//! What the service manager is told (sd_notify(3)): readiness, reloads, the end, who the main process is, and that all is well.
//!
//! Without one, which is to say without NOTIFY_SOCKET, each of these does nothing.

use std::time::Duration;

use propylon_metrics::{Counter, Store};
use sd_notify::NotifyState;

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        log::warn!("the service manager cannot be told anything: {error}");
    }
}

/// Everything is up.
pub fn ready(workers: usize, generation: u64) {
    let status = serving(workers, generation);
    tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

pub fn reloading() {
    // Since systemd 253 the one is worth nothing without the other.
    let Ok(now) = NotifyState::monotonic_usec_now() else { return };
    tell(&[NotifyState::Reloading, now, NotifyState::Status("reading the configuration again")]);
}

/// Whatever came of it.
pub fn reloaded(workers: usize, generation: u64) {
    ready(workers, generation);
}

pub fn stopping(connections: u64) {
    let status = format!("draining: {connections} connections");
    tell(&[NotifyState::Stopping, NotifyState::Status(&status)]);
}

/// Another process is the main one from now on. It can only be said by the one that has been.
pub fn tell_successor(pid: u32) {
    tell(&[NotifyState::MainPid(pid)]);
}

fn serving(workers: usize, generation: u64) -> String {
    format!("serving with {workers} workers, configuration {generation}")
}

/// The service manager's watchdog: it hears of us for as long as every worker's clock goes on.
pub struct Watchdog {
    limit: Duration,
    /// By worker, as it was the last time.
    ticks: Vec<u64>,
}

impl Watchdog {
    /// None where nobody asks for it.
    pub fn start() -> Option<Watchdog> {
        Some(Watchdog { limit: sd_notify::watchdog_enabled()?, ticks: Vec::new() })
    }

    /// How often to look: thrice before the limit.
    pub fn every(&self) -> Duration {
        (self.limit / 3).max(Duration::from_millis(10))
    }

    pub fn look(&mut self, store: &Store, counter: Counter) {
        let ticks: Vec<u64> = (0..store.columns() - 1).map(|worker| store.count_in(worker, counter)).collect();
        let all_go = self.ticks.len() != ticks.len() || ticks.iter().zip(&self.ticks).all(|(now, then)| now != then);
        self.ticks = ticks;
        if all_go {
            tell(&[NotifyState::Watchdog]);
        }
    }
}

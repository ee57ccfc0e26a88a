//! Notifications for the service manager (sd_notify(3)): readiness, reloads, the end, who the main process is, and that
//! all is well.
//!
//! Without one, which is to say without NOTIFY_SOCKET, each of these does nothing.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::OnceLock;
use std::time::Duration;

use propylon_metrics::{Counter, Store};
use sd_notify::NotifyState;

/// How long the service manager may take to have room for a message.
const MANAGER_WAIT_MAX: Duration = Duration::from_secs(1);

/// The service manager's socket, from before the sandbox.
static MANAGER: OnceLock<UnixDatagram> = OnceLock::new();

/// Connects to the service manager, for the process's whole life: inside of the sandbox an abstract socket of somebody
/// outside cannot be connected to.
pub fn connect() {
    match manager() {
        Ok(Some(socket)) => drop(MANAGER.set(socket)),
        Ok(None) => {}
        Err(error) => log::warn!("the service manager cannot be notified: {error}"),
    }
}

/// Socket of the service manager; `None` if there is no manager that wants to hear.
fn manager() -> io::Result<Option<UnixDatagram>> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(None) };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(MANAGER_WAIT_MAX))?;
    socket.connect_addr(&address(&name)?)?;
    Ok(Some(socket))
}

/// A path, or after an `@` an abstract name (sd_notify(3)).
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(name),
    }
}

fn notify(states: &[NotifyState<'_>]) {
    let message: String = states.iter().map(|state| format!("{state}\n")).collect();
    if MANAGER.get().is_some_and(|socket| socket.send(message.as_bytes()).is_ok()) {
        return;
    }
    // Not connected yet, or another one has the name by now.
    let sent = manager().and_then(|socket| socket.map_or(Ok(0), |socket| socket.send(message.as_bytes())));
    if let Err(error) = sent {
        log::warn!("the service manager cannot be notified: {error}");
    }
}

/// Everything is up.
pub fn ready(workers: usize, generation: u64) {
    let status = serving(workers, generation);
    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

pub fn reloading() {
    // Since systemd 253 the one is worth nothing without the other.
    let Ok(now) = NotifyState::monotonic_usec_now() else { return };
    notify(&[NotifyState::Reloading, now, NotifyState::Status("reading the configuration again")]);
}

/// Whatever came of it.
pub fn reloaded(workers: usize, generation: u64) {
    ready(workers, generation);
}

pub fn stopping(connections: u64) {
    let status = format!("draining: {connections} connections");
    notify(&[NotifyState::Stopping, NotifyState::Status(&status)]);
}

/// Another process is the main one from now on. It can only be said by the one that has been.
pub fn notify_main_pid(pid: u32) {
    notify(&[NotifyState::MainPid(pid)]);
}

fn serving(workers: usize, generation: u64) -> String {
    format!("serving with {workers} workers, configuration {generation}")
}

/// The service manager's watchdog: it hears of us for as long as every worker's clock goes on.
pub struct Watchdog {
    limit: Duration,
    /// Ticks by worker, as they were the last time.
    ticks: Vec<u64>,
}

impl Watchdog {
    /// Starts the watchdog; `None` if the service manager does not ask for it.
    pub fn start() -> Option<Watchdog> {
        Some(Watchdog { limit: sd_notify::watchdog_enabled()?, ticks: Vec::new() })
    }

    /// How often to look: thrice before the limit.
    pub fn every(&self) -> Duration {
        (self.limit / 3).max(Duration::from_millis(10))
    }

    pub fn notify_if_alive(&mut self, store: &Store, counter: Counter) {
        let ticks: Vec<u64> = (0..store.columns() - 1).map(|worker| store.count_in(worker, counter)).collect();
        let all_go = self.ticks.len() != ticks.len() || ticks.iter().zip(&self.ticks).all(|(now, then)| now != then);
        self.ticks = ticks;
        if all_go {
            notify(&[NotifyState::Watchdog]);
        }
    }
}

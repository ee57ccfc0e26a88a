//! Addresses of the key servers of a `[signer.NAME]`: their names are resolved periodically, on a thread of its own,
//! because a resolver may take seconds. Cores read the addresses found last, and ask for a lookup when a connection
//! fails.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use propylon_config::ServerAddress;

/// Pause after a lookup that a failure has asked for, before the next one of that kind; it doubles each time that the
/// answer is the same, up to the interval.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Count of a name's addresses that are used, at most.
const ADDRESSES_MAX: usize = 32;

/// Addresses of one signer's servers.
pub struct KeyServerAddresses {
    entries: Box<[Entry]>,
    interval: Duration,
    /// Thread that looks names up, once it runs.
    resolver: OnceLock<Thread>,
    /// The signer is gone from the configuration: its last handshakes use the addresses known, and lookups end.
    is_over: AtomicBool,
    /// Counts of lookups by [`Found`], since they were last taken.
    counts: [AtomicU64; 3],
}

/// Addresses of one key server.
struct Entry {
    /// Name and port to look up; `None` for a server that is configured by its address.
    name: Option<(String, u16)>,
    /// Addresses found last; `None` while the name has never been found.
    addresses: ArcSwap<Vec<SocketAddr>>,
    /// Counter of changes of the addresses.
    generation: AtomicU64,
    /// A connection did not come up, so the name is to be looked up soon.
    wanted: AtomicBool,
}

/// Result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Same,
    Changed,
    /// The lookup failed, and the addresses known before stay.
    Failed,
}

/// When one name is looked up next; times are since the start.
#[derive(Debug)]
struct Schedule {
    interval: Duration,
    next: Duration,
    /// Earliest time of a lookup that a failure asks for.
    not_before: Duration,
    pause: Duration,
}

impl KeyServerAddresses {
    /// Looks every name up. Returns the errors of names that are not found, each with the server's index; these names
    /// are looked up again later.
    pub fn find(servers: &[&ServerAddress], interval: Duration) -> (KeyServerAddresses, Vec<(usize, io::Error)>) {
        let mut unfound = Vec::new();
        let entry = |(at, server): (usize, &&ServerAddress)| {
            let (name, addresses) = match server {
                ServerAddress::Ip(address) => (None, vec![*address]),
                ServerAddress::Name { host, port } => {
                    let addresses = look_up(host, *port).unwrap_or_else(|error| {
                        unfound.push((at, error));
                        Vec::new()
                    });
                    (Some((host.clone(), *port)), addresses)
                }
                ServerAddress::Srv { .. } | ServerAddress::Unix { .. } => {
                    unreachable!("the schema takes addresses and names of hosts alone for key servers")
                }
            };
            let addresses = ArcSwap::from_pointee(addresses);
            Entry { name, addresses, generation: AtomicU64::new(0), wanted: AtomicBool::new(false) }
        };
        let entries = servers.iter().enumerate().map(entry).collect();
        let (resolver, counts) = (OnceLock::new(), Default::default());
        (KeyServerAddresses { entries, interval, resolver, is_over: AtomicBool::new(false), counts }, unfound)
    }

    /// One of a server's addresses, by round robin: the one of number `turn`; `None` while its name was never found.
    pub fn address(&self, server: usize, turn: usize) -> Option<SocketAddr> {
        let addresses = self.entries[server].addresses.load();
        addresses.get(turn % addresses.len().max(1)).copied()
    }

    pub fn is_current(&self, server: usize, address: SocketAddr) -> bool {
        self.entries[server].addresses.load().contains(&address)
    }

    /// Counter that rises when the server's addresses change.
    pub fn generation(&self, server: usize) -> u64 {
        self.entries[server].generation.load(Ordering::Acquire)
    }

    /// Asks for a lookup of the server's name: a connection to it did not come up, or has ended.
    pub fn doubt(&self, server: usize) {
        let entry = &self.entries[server];
        if entry.name.is_some()
            && !entry.wanted.swap(true, Ordering::Relaxed)
            && let Some(resolver) = self.resolver.get()
        {
            resolver.unpark();
        }
    }

    /// Ends the lookups.
    pub fn look_no_more(&self) {
        if !self.is_over.swap(true, Ordering::Relaxed)
            && let Some(resolver) = self.resolver.get()
        {
            resolver.unpark();
        }
    }

    /// Counts of lookups since the last call, in the order of [`Found`].
    pub fn take_counts(&self) -> [u64; 3] {
        self.counts.each_ref().map(|count| count.swap(0, Ordering::Relaxed))
    }

    /// Stores the result of a lookup.
    fn keep(&self, server: usize, found: io::Result<Vec<SocketAddr>>) -> Found {
        let entry = &self.entries[server];
        let found = match found {
            Err(_) => Found::Failed,
            Ok(addresses) if same(&addresses, &entry.addresses.load()) => Found::Same,
            Ok(addresses) => {
                entry.addresses.store(Arc::new(addresses));
                entry.generation.fetch_add(1, Ordering::Release);
                Found::Changed
            }
        };
        self.counts[found as usize].fetch_add(1, Ordering::Relaxed);
        found
    }
}

/// Whether two lists have the same addresses, in any order: resolvers rotate their answers.
fn same(a: &[SocketAddr], b: &[SocketAddr]) -> bool {
    a.len() == b.len() && a.iter().all(|address| b.contains(address))
}

fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in (host, port).to_socket_addrs()?.take(ADDRESSES_MAX) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(addresses)
}

/// Starts the thread that looks names up, if there are names; `signers` are pairs of a name for the log and addresses.
pub fn start(signers: Vec<(String, Arc<KeyServerAddresses>)>) -> io::Result<()> {
    let is_named =
        |(_, addresses): &(String, Arc<KeyServerAddresses>)| addresses.entries.iter().any(|entry| entry.name.is_some());
    let signers: Vec<_> = signers.into_iter().filter(is_named).collect();
    if signers.is_empty() {
        return Ok(());
    }
    thread::Builder::new().name("resolver".into()).spawn(move || keep_looking(&signers))?;
    Ok(())
}

/// Looks names up as long as another thread has the signers and they are in the configuration.
fn keep_looking(signers: &[(String, Arc<KeyServerAddresses>)]) {
    let started = Instant::now();
    for (_, addresses) in signers {
        let _ = addresses.resolver.set(thread::current());
    }
    let schedule = |addresses: &KeyServerAddresses| {
        addresses.entries.iter().map(|_| Schedule::new(addresses.interval)).collect::<Vec<_>>()
    };
    let mut schedules: Vec<Vec<Schedule>> = signers.iter().map(|(_, addresses)| schedule(addresses)).collect();
    let is_wanted = |addresses: &Arc<KeyServerAddresses>| {
        Arc::strong_count(addresses) > 1 && !addresses.is_over.load(Ordering::Relaxed)
    };
    while signers.iter().any(|(_, addresses)| is_wanted(addresses)) {
        for ((signer, addresses), schedules) in
            signers.iter().zip(&mut schedules).filter(|((_, addresses), _)| is_wanted(addresses))
        {
            for (server, schedule) in schedules.iter_mut().enumerate() {
                let entry = &addresses.entries[server];
                let Some((host, port)) = &entry.name else { continue };
                let is_wanted = entry.wanted.load(Ordering::Relaxed);
                if !schedule.is_due(started.elapsed(), is_wanted) {
                    continue;
                }
                entry.wanted.store(false, Ordering::Relaxed);
                let result = look_up(host, *port);
                let error = result.as_ref().err().map(ToString::to_string);
                let found = addresses.keep(server, result);
                schedule.looked_up(started.elapsed(), is_wanted, found);
                log_change(signer, host, addresses, server, found, error);
            }
        }
        let now = started.elapsed();
        let looked_up = signers.iter().zip(&schedules).filter(|((_, addresses), _)| is_wanted(addresses));
        let due = looked_up.flat_map(|((_, addresses), schedules)| {
            let named = addresses.entries.iter().zip(schedules).filter(|(entry, _)| entry.name.is_some());
            named.map(|(entry, schedule)| schedule.due(entry.wanted.load(Ordering::Relaxed)))
        });
        let next = due.min().unwrap_or(now + PAUSE_MIN);
        thread::park_timeout(next.saturating_sub(now));
    }
}

fn log_change(
    signer: &str,
    host: &str,
    addresses: &KeyServerAddresses,
    server: usize,
    found: Found,
    error: Option<String>,
) {
    match found {
        Found::Same => {}
        Found::Changed => {
            let listed: Vec<String> =
                addresses.entries[server].addresses.load().iter().map(ToString::to_string).collect();
            log::info!("signer \"{signer}\": {host} is at {} now", listed.join(", "));
        }
        Found::Failed => {
            let why = error.unwrap_or_default();
            log::warn!(
                "signer \"{signer}\": {host} cannot be looked up: {why}; its last addresses stay in use; check the name and process.resolver"
            );
        }
    }
}

impl Schedule {
    fn new(interval: Duration) -> Schedule {
        Schedule { interval, next: interval, not_before: Duration::ZERO, pause: PAUSE_MIN.min(interval) }
    }

    fn due(&self, is_wanted: bool) -> Duration {
        if is_wanted { self.next.min(self.not_before) } else { self.next }
    }

    fn is_due(&self, now: Duration, is_wanted: bool) -> bool {
        now >= self.due(is_wanted)
    }

    fn looked_up(&mut self, now: Duration, was_wanted: bool, found: Found) {
        self.next = now + self.interval;
        self.pause = match (found, was_wanted) {
            (Found::Changed, _) | (_, false) => PAUSE_MIN.min(self.interval),
            (Found::Same | Found::Failed, true) => (self.pause * 2).min(self.interval),
        };
        self.not_before = now + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn names_are_looked_up_at_intervals_and_after_failures_ever_less_often() {
        let mut schedule = Schedule::new(seconds(30));
        assert!(!schedule.is_due(seconds(29), false) && schedule.is_due(seconds(30), false));
        // The first failure asks at once; those that follow wait.
        assert!(schedule.is_due(seconds(5), true));
        schedule.looked_up(seconds(5), true, Found::Same);
        assert!(!schedule.is_due(seconds(6), true) && schedule.is_due(seconds(7), true));
        schedule.looked_up(seconds(7), true, Found::Failed);
        assert_eq!(schedule.due(true), seconds(11));
        for _ in 0..10 {
            schedule.looked_up(seconds(100), true, Found::Same);
        }
        assert_eq!((schedule.due(true), schedule.due(false)), (seconds(130), seconds(130)));
        schedule.looked_up(seconds(130), true, Found::Changed);
        assert_eq!((schedule.due(true), schedule.due(false)), (seconds(131), seconds(160)));
    }

    #[test]
    fn other_addresses_are_taken_over_and_a_failure_or_another_order_changes_nothing() {
        let server = ServerAddress::Name { host: "localhost".into(), port: 2407 };
        let addresses = KeyServerAddresses::find(&[&server], seconds(30)).0;
        let (a, b) = (address("192.0.2.1:2407"), address("192.0.2.2:2407"));
        assert_eq!(addresses.keep(0, Ok(vec![a, b])), Found::Changed);
        let generation = addresses.generation(0);
        assert_eq!(addresses.keep(0, Ok(vec![b, a])), Found::Same);
        assert_eq!(addresses.keep(0, Err(io::Error::other("no resolver"))), Found::Failed);
        assert_eq!(addresses.generation(0), generation);
        assert_eq!((0..3).filter_map(|turn| addresses.address(0, turn)).collect::<Vec<_>>(), [a, b, a]);
        assert_eq!(addresses.keep(0, Ok(vec![b])), Found::Changed);
        assert!(addresses.generation(0) != generation && addresses.is_current(0, b) && !addresses.is_current(0, a));
        assert_eq!(addresses.take_counts(), [1, 2, 1]);
        assert_eq!(addresses.take_counts(), [0; 3]);
    }
}

//! State of a server that the main thread shares with the cores: whether the server is open to requests, and the
//! addresses that it listens on now.
//!
//! A core reads the endpoint without waiting, at every pick and at every connect. The main thread writes the endpoint,
//! but for three things that only cores know: which address is next in the round robin, which addresses refused a
//! connection while another one accepted it, and whether the server answered HTTP/2's preface.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use propylon_config::ServerAddress;
use propylon_sys::{Address, UnixName};

/// Number of connects after which addresses that had failed lose that mark.
const CONNECTS_TO_RETRY: usize = 32;

/// Picks of the heaviest target in one round of the round robin; others have their share of it, and one at least.
const ROUND_PICKS_MAX: u32 = 100;

/// One address of a server. Addresses of one priority are used in weighted round robin; those of a higher priority
/// number are the fallback (RFC 2782).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    pub priority: u16,
    pub address: Address,
    pub weight: u32,
}

/// Addresses that a name resolves to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// In order, without repeats; at least one, at most `names::ADDRESSES_MAX`.
    pub targets: Vec<Target>,
    /// Time to live of the addresses, within the bounds of the configuration.
    pub valid: Duration,
}

impl From<Address> for Target {
    fn from(address: Address) -> Target {
        Target { priority: 0, address, weight: 1 }
    }
}

impl Target {
    /// Target of an address that needs no look-up; `None` for names.
    pub fn literal(address: &ServerAddress) -> Option<Target> {
        match address {
            ServerAddress::Ip(address) => Some(Address::from(*address).into()),
            ServerAddress::Unix { name } => Some(Address::from(UnixName::new(name)).into()),
            ServerAddress::Name { .. } | ServerAddress::Srv { .. } => None,
        }
    }
}

/// Count of times that any server of this process was closed or opened, so that a core that sees the same number as
/// before need not look at each of its servers.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// Number that changes whenever any server was closed or opened.
pub fn changes() -> u32 {
    CHANGES.load(Ordering::Acquire)
}

/// Whether requests may go to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Availability {
    Closed,
    /// The server is unhealthy, and gets requests all the same: too few are healthy, or the verdict on it is wrong.
    Panic,
    Open,
}

/// On cache lines of its own, which all cores read for each request.
#[repr(align(128))]
pub struct Endpoint {
    /// An [`Availability`].
    availability: AtomicU8,
    /// Number of times that the server was closed and opened again.
    reopened: AtomicU32,
    targets: ArcSwap<Targets>,
    /// Counter that rises when an address is gone, so that a connection knows when to ask whether it was its own.
    generation: AtomicU32,
    round: Round,
}

/// State that cores write when they connect to a server of several addresses, apart from what is read for each request.
#[derive(Default)]
#[repr(align(128))]
struct Round {
    /// Counter of connects, which gives the position in the round.
    connects: AtomicUsize,
    /// Bits, by an address' position, of those to which a connect has failed lately; they are tried last.
    failed: AtomicU32,
    /// Milliseconds since [`BEGUN`] until which the server is taken for one that speaks HTTP/1.1 alone; 0 if it is not.
    http1_until: AtomicU64,
    /// The server has spoken HTTP/2 since it last met the preface without a word.
    spoke_http2: AtomicBool,
}

/// A server that did not answer HTTP/2's preface in plaintext is asked again after this.
const HTTP1_KNOWN: Duration = Duration::from_secs(300);
/// The clock of what endpoints remember, one for all cores.
static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Milliseconds.
fn clock() -> u64 {
    BEGUN.elapsed().as_millis() as u64
}

/// Addresses of a server, and the order in which the round robin picks them.
#[derive(Debug)]
pub struct Targets {
    all: Vec<Target>,
    /// Positions of the addresses of the first priority, each as often as it is picked in one round.
    round: Box<[u8]>,
}

impl Targets {
    fn new(all: Vec<Target>) -> Targets {
        let first = all.iter().map(|target| target.priority).min();
        let ordinary: Vec<(usize, u64)> = all
            .iter()
            .enumerate()
            .filter(|(_, target)| Some(target.priority) == first)
            .map(|(position, target)| (position, u64::from(target.weight)))
            .collect();
        let heaviest = ordinary.iter().map(|(_, weight)| *weight).max().unwrap_or(0).max(1);
        let is_even = ordinary.iter().all(|(_, weight)| *weight == ordinary[0].1);
        let picks = |weight: u64| match is_even {
            true => 1,
            // A weight of 0 is a small chance, not none (RFC 2782).
            false => (weight * u64::from(ROUND_PICKS_MAX)).div_ceil(heaviest).max(1) as i64,
        };
        let due: Vec<i64> = ordinary.iter().map(|(_, weight)| picks(*weight)).collect();
        let total: i64 = due.iter().sum();
        // Smooth weighted round robin: no address has all its picks in a row.
        let mut credits = vec![0; due.len()];
        let pick = |_| {
            credits.iter_mut().zip(&due).for_each(|(credit, due)| *credit += due);
            let next = (0..due.len()).max_by_key(|index| (credits[*index], std::cmp::Reverse(*index))).unwrap_or(0);
            credits[next] -= total;
            ordinary[next].0 as u8
        };
        let round = (0..total).map(pick).collect();
        Targets { all, round }
    }

    pub fn addresses(&self) -> Vec<Address> {
        self.all.iter().map(|target| target.address).collect()
    }

    fn has(&self, address: Address) -> bool {
        self.all.iter().any(|target| target.address == address)
    }
}

/// Address that a connection was made to, with what tells later whether the server still has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointAddress {
    pub address: Address,
    generation: u32,
}

impl Endpoint {
    /// Endpoint of an open server; a server without an address is closed until the main thread opens it.
    pub fn new(targets: Vec<Target>) -> Endpoint {
        let availability = if targets.is_empty() { Availability::Closed } else { Availability::Open };
        Endpoint {
            availability: AtomicU8::new(availability as u8),
            targets: ArcSwap::from_pointee(Targets::new(targets)),
            generation: AtomicU32::new(0),
            reopened: AtomicU32::new(0),
            round: Round::default(),
        }
    }

    /// Whether the server, spoken to in plaintext, is known to speak no HTTP/2.
    pub fn is_known_as_http1(&self) -> bool {
        let until = self.round.http1_until.load(Ordering::Relaxed);
        until != 0 && clock() < until
    }

    /// Notes that the server did not answer HTTP/2's preface, in HTTP/1.1 or not at all. A server that was closed and
    /// is open again, or that has got another address, may be another one.
    pub fn note_http1(&self) {
        self.round.spoke_http2.store(false, Ordering::Relaxed);
        self.round.http1_until.store(clock() + HTTP1_KNOWN.as_millis() as u64, Ordering::Relaxed);
    }

    /// Notes that the server has answered HTTP/2's preface in HTTP/2.
    pub fn note_http2(&self) {
        self.round.spoke_http2.store(true, Ordering::Relaxed);
    }

    /// Whether the server has spoken HTTP/2 and met the preface without a word now: it fails, or is about to begin or
    /// to end. Once: a second time in a row it may have become one of HTTP/1.1.
    pub fn falls_silent(&self) -> bool {
        self.round.spoke_http2.swap(false, Ordering::Relaxed)
    }

    /// Forgets that the server was taken for one of HTTP/1.1, which it has not answered in.
    pub fn forget_http1(&self) {
        if self.round.http1_until.load(Ordering::Relaxed) != 0 {
            self.round.http1_until.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the server may get requests, as far as the whole engine knows.
    pub fn is_open(&self) -> bool {
        self.availability.load(Ordering::Relaxed) != Availability::Closed as u8
    }

    /// Whether the server is healthy.
    pub fn is_fit(&self) -> bool {
        self.availability.load(Ordering::Relaxed) == Availability::Open as u8
    }

    pub fn set_availability(&self, availability: Availability) {
        let before = self.availability.swap(availability as u8, Ordering::Relaxed);
        if before == availability as u8 {
            return;
        }
        // A server that has had its share of the requests meanwhile is warm.
        if before == Availability::Closed as u8 && availability == Availability::Open {
            self.reopened.fetch_add(1, Ordering::Relaxed);
            self.round.http1_until.store(0, Ordering::Relaxed);
        }
        // Written after the others: a core that sees the new number sees them too.
        CHANGES.fetch_add(1, Ordering::Release);
    }

    /// Number of times that the server was closed and opened again.
    pub fn reopened(&self) -> u32 {
        self.reopened.load(Ordering::Relaxed)
    }

    pub fn addresses(&self) -> Vec<Address> {
        self.targets.load().addresses()
    }

    pub fn targets(&self) -> Vec<Target> {
        self.targets.load().all.clone()
    }

    /// Sets the addresses that new connections go to; an empty list changes nothing. True if an address is gone.
    pub fn set_targets(&self, targets: Vec<Target>) -> bool {
        let before = self.targets.load();
        if targets.is_empty() || before.all == targets {
            return false;
        }
        let later = Targets::new(targets);
        let gone = before.all.iter().any(|target| !later.has(target.address));
        self.targets.store(Arc::new(later));
        self.round.http1_until.store(0, Ordering::Relaxed);
        self.round.failed.store(0, Ordering::Relaxed);
        if gone {
            // Written after the addresses: a core that sees the new number sees them too.
            self.generation.fetch_add(1, Ordering::Release);
        }
        gone
    }

    /// Addresses for a new connection, in the order in which to try them; none if the server never had one.
    pub fn connect_order(&self) -> impl ExactSizeIterator<Item = EndpointAddress> + use<> {
        let generation = self.generation.load(Ordering::Acquire);
        let targets = self.targets.load_full();
        let count = targets.all.len();
        let connects = if count > 1 { self.round.connects.fetch_add(1, Ordering::Relaxed) } else { 0 };
        if count > 1 && connects.is_multiple_of(CONNECTS_TO_RETRY) {
            self.round.failed.store(0, Ordering::Relaxed);
        }
        let failed = self.round.failed.load(Ordering::Relaxed);
        let first = targets.round.get(connects % targets.round.len().max(1)).map_or(0, |first| usize::from(*first));
        let mut order: Vec<usize> = (0..count).map(|step| (first + step) % count).collect();
        // Addresses that have failed lately are tried last, and of the others those of the fallback.
        order.sort_by_key(|position| (failed & bit(*position) != 0, targets.all[*position].priority));
        order.into_iter().map(move |position| EndpointAddress { address: targets.all[position].address, generation })
    }

    /// Notes that a connect to this address has failed, while one to another of the server's has not.
    pub fn note_failed(&self, remote: EndpointAddress) {
        if let Some(position) = self.targets.load().all.iter().position(|target| target.address == remote.address) {
            self.round.failed.fetch_or(bit(position), Ordering::Relaxed);
        }
    }

    /// Whether the address of a connection still is one of the server's.
    pub fn is_current(&self, remote: &mut EndpointAddress) -> bool {
        let generation = self.generation.load(Ordering::Acquire);
        if generation == remote.generation {
            return true;
        }
        let current = self.targets.load().has(remote.address);
        if current {
            remote.generation = generation;
        }
        current
    }
}

/// Bit of an address by its position; 0 for positions past the last bit.
fn bit(position: usize) -> u32 {
    1_u32.checked_shl(position as u32).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn connects_write_no_line_that_requests_read() {
        use std::mem::{offset_of, size_of};
        let read = [offset_of!(Endpoint, availability), offset_of!(Endpoint, reopened), offset_of!(Endpoint, targets)];
        let generation = offset_of!(Endpoint, generation);
        let written = offset_of!(Endpoint, round);
        assert!(read.into_iter().chain([generation]).all(|offset| offset / 128 != written / 128));
        assert_eq!((size_of::<Endpoint>(), align_of::<Endpoint>()), (256, 128), "and a neighbour's are apart");
    }

    fn target(port: u16) -> Target {
        Address::from(SocketAddr::from(([127, 0, 0, 1], port))).into()
    }

    fn port(remote: &EndpointAddress) -> u16 {
        remote.address.ip().map_or(0, |address| address.port())
    }

    fn addresses(ports: &[u16]) -> Vec<Target> {
        ports.iter().map(|port| target(*port)).collect()
    }

    fn weighted(targets: &[(u16, u16, u32)]) -> Vec<Target> {
        let weigh = |(port, priority, weight): &(u16, u16, u32)| Target {
            priority: *priority,
            weight: *weight,
            ..target(*port)
        };
        targets.iter().map(weigh).collect()
    }

    #[test]
    fn a_server_that_is_back_or_elsewhere_may_speak_http2() {
        let endpoint = Endpoint::new(addresses(&[1]));
        assert!(!endpoint.is_known_as_http1());
        endpoint.note_http1();
        assert!(endpoint.is_known_as_http1());
        endpoint.set_targets(addresses(&[2]));
        assert!(!endpoint.is_known_as_http1());
        endpoint.note_http1();
        endpoint.set_availability(Availability::Closed);
        assert!(endpoint.is_known_as_http1());
        endpoint.set_availability(Availability::Open);
        assert!(!endpoint.is_known_as_http1());
        endpoint.note_http1();
        endpoint.forget_http1();
        assert!(!endpoint.is_known_as_http1());
    }

    #[test]
    fn a_server_that_spoke_http2_may_fall_silent_once() {
        let endpoint = Endpoint::new(addresses(&[1]));
        assert!(!endpoint.falls_silent());
        endpoint.note_http2();
        assert!(endpoint.falls_silent() && !endpoint.falls_silent());
        endpoint.note_http2();
        endpoint.note_http1();
        assert!(!endpoint.falls_silent());
    }

    #[test]
    fn picks_are_as_frequent_as_the_weights_and_no_address_has_them_in_a_row() {
        let endpoint = Endpoint::new(weighted(&[(1, 5, 30), (2, 5, 10), (3, 9, 50)]));
        let ports: Vec<u16> = (0..8).map(|_| port(&endpoint.connect_order().next().unwrap())).collect();
        let [ones, twos] = [1, 2].map(|port| ports.iter().filter(|each| **each == port).count());
        assert_eq!((ones, twos), (6, 2), "{ports:?}");
        assert!(!ports.windows(4).any(|four| four.iter().all(|port| *port == four[0])), "{ports:?}");
        // Whatever the weights, a round is short, and every address is picked in it.
        let endpoint = Endpoint::new(weighted(&[(1, 0, u32::MAX), (2, 0, 0), (3, 0, 65_535)]));
        assert!(endpoint.targets.load().round.len() <= 3 * ROUND_PICKS_MAX as usize);
        let picked: std::collections::BTreeSet<u16> =
            (0..300).map(|_| port(&endpoint.connect_order().next().unwrap())).collect();
        assert_eq!(picked.len(), 3);
        let endpoint = Endpoint::new(weighted(&[(1, 0, 0), (2, 0, 0)]));
        assert_eq!(endpoint.targets.load().round.len(), 2);
    }

    #[test]
    fn a_higher_priority_number_is_the_fallback_where_the_others_fail() {
        let endpoint = Endpoint::new(weighted(&[(1, 0, 1), (2, 0, 1), (3, 7, 9), (4, 8, 9)]));
        let ports = || endpoint.connect_order().map(|remote| port(&remote)).collect::<Vec<_>>();
        assert_eq!([ports(), ports()], [[1, 2, 3, 4], [2, 1, 3, 4]]);
        endpoint.connect_order().take(2).for_each(|remote| endpoint.note_failed(remote));
        assert_eq!(ports()[..2], [3, 4]);
    }

    #[test]
    fn connections_take_the_addresses_in_round_robin_and_each_knows_the_others() {
        let endpoint = Endpoint::new(addresses(&[1, 2, 3]));
        let ports = || endpoint.connect_order().map(|remote| port(&remote)).collect::<Vec<_>>();
        assert_eq!([ports(), ports(), ports(), ports()], [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]]);
    }

    #[test]
    fn an_address_that_failed_is_tried_last_for_a_while() {
        let endpoint = Endpoint::new(addresses(&[1, 2]));
        let first = || endpoint.connect_order().next().unwrap();
        let mut remotes = endpoint.connect_order();
        let (_, two) = (remotes.next().unwrap(), remotes.next().unwrap());
        endpoint.note_failed(two);
        let picked: Vec<u16> = (1..CONNECTS_TO_RETRY).map(|_| port(&first())).collect();
        assert!(picked.iter().all(|port| *port == 1), "{picked:?}");
        let picked: Vec<u16> = (0..4).map(|_| port(&first())).collect();
        assert_eq!(picked, [1, 2, 1, 2]);
    }

    #[test]
    fn a_server_without_an_address_is_closed() {
        let endpoint = Endpoint::new(Vec::new());
        assert!(!endpoint.is_open());
        assert_eq!(endpoint.connect_order().count(), 0);
        endpoint.set_targets(addresses(&[1]));
        assert_eq!(endpoint.connect_order().count(), 1);
    }

    #[test]
    fn openings_are_counted_and_staying_open_is_none() {
        let endpoint = Endpoint::new(addresses(&[1]));
        [Availability::Open, Availability::Closed, Availability::Closed, Availability::Open, Availability::Open]
            .iter()
            .for_each(|availability| endpoint.set_availability(*availability));
        assert_eq!((endpoint.is_open(), endpoint.is_fit(), endpoint.reopened()), (true, true, 1));
        [Availability::Closed, Availability::Panic]
            .iter()
            .for_each(|availability| endpoint.set_availability(*availability));
        assert_eq!((endpoint.is_open(), endpoint.is_fit()), (true, false));
        endpoint.set_availability(Availability::Open);
        assert_eq!(endpoint.reopened(), 1, "it has had its requests meanwhile");
    }

    #[test]
    fn cores_see_by_one_number_that_a_server_was_closed_or_opened() {
        let endpoint = Endpoint::new(addresses(&[1]));
        for availability in [Availability::Closed, Availability::Panic, Availability::Open] {
            let before = changes();
            endpoint.set_availability(availability);
            assert_ne!(changes(), before, "{availability:?}");
        }
    }

    #[test]
    fn a_connection_is_current_until_its_own_address_is_gone() {
        let endpoint = Endpoint::new(addresses(&[1, 2]));
        let (mut one, mut two) = {
            let mut remotes = endpoint.connect_order();
            (remotes.next().unwrap(), remotes.next().unwrap())
        };
        assert!(!endpoint.set_targets(addresses(&[1, 2, 3])), "none is gone");
        assert!(endpoint.is_current(&mut one) && endpoint.is_current(&mut two));
        assert!(endpoint.set_targets(addresses(&[2, 4])));
        assert!(!endpoint.is_current(&mut one));
        assert!(endpoint.is_current(&mut two) && endpoint.is_current(&mut two));
        assert!(!endpoint.set_targets(Vec::new()), "a server keeps its last addresses");
        assert_eq!(endpoint.addresses().len(), 2);
    }
}

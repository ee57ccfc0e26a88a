//! What the main thread tells the cores of a server: whether it is open to requests, and where it listens now.
//!
//! A core reads it without waiting, at every pick and at every connect. The main thread writes it, but for two things that
//! only cores know: whose turn it is, and which addresses refused a connection that another of them took.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

use arc_swap::ArcSwap;

/// After so many turns addresses that had failed are tried again.
const TURNS_TO_RETRY: usize = 32;

/// How often any server of this process was closed or opened, so that a core that sees the same number as before need not look at
/// each of its servers.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// A number that is another one after any server was closed or opened.
pub fn changes() -> u32 {
    CHANGES.load(Ordering::Acquire)
}

/// Whether requests may go to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Door {
    Closed,
    /// It is not fit, and as good as any: too few are, or what is thought of them is wrong.
    Ajar,
    Open,
}

pub struct Notice {
    /// A [`Door`].
    door: AtomicU8,
    /// Times that it was closed and opened again.
    reopened: AtomicU32,
    addresses: ArcSwap<Vec<SocketAddr>>,
    /// Goes up when an address is gone, so that a connection knows when to ask whether it was its own.
    generation: AtomicU32,
    /// Whose turn it is, where there are several.
    turn: AtomicUsize,
    /// A bit for each address, by position, that has failed lately; they are tried last.
    failed: AtomicU32,
}

/// Where a connection leads, as far as it must be known later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub address: SocketAddr,
    generation: u32,
}

impl Notice {
    /// An open server. There must be an address.
    pub fn new(addresses: Vec<SocketAddr>) -> Notice {
        assert!(!addresses.is_empty(), "a server without an address");
        Notice {
            door: AtomicU8::new(Door::Open as u8),
            addresses: ArcSwap::from_pointee(addresses),
            generation: AtomicU32::new(0),
            turn: AtomicUsize::new(0),
            reopened: AtomicU32::new(0),
            failed: AtomicU32::new(0),
        }
    }

    /// Whether requests may go there, as far as the whole engine knows.
    pub fn is_open(&self) -> bool {
        self.door.load(Ordering::Relaxed) != Door::Closed as u8
    }

    /// Whether it is fit for them.
    pub fn is_fit(&self) -> bool {
        self.door.load(Ordering::Relaxed) == Door::Open as u8
    }

    pub fn set_door(&self, door: Door) {
        let before = self.door.swap(door as u8, Ordering::Relaxed);
        if before == door as u8 {
            return;
        }
        // Who has had its share of the requests meanwhile is warm.
        if before == Door::Closed as u8 && door == Door::Open {
            self.reopened.fetch_add(1, Ordering::Relaxed);
        }
        // After the others: who sees the new number sees them.
        CHANGES.fetch_add(1, Ordering::Release);
    }

    /// How often it was closed and opened again.
    pub fn reopened(&self) -> u32 {
        self.reopened.load(Ordering::Relaxed)
    }

    pub fn addresses(&self) -> Arc<Vec<SocketAddr>> {
        self.addresses.load_full()
    }

    /// New connections go to these. None of them: nothing changes. True if any is gone that was there.
    pub fn set_addresses(&self, addresses: Vec<SocketAddr>) -> bool {
        let before = self.addresses.load();
        if addresses.is_empty() || **before == addresses {
            return false;
        }
        let gone = before.iter().any(|address| !addresses.contains(address));
        self.addresses.store(Arc::new(addresses));
        self.failed.store(0, Ordering::Relaxed);
        if gone {
            // After the addresses: who sees the new number sees them.
            self.generation.fetch_add(1, Ordering::Release);
        }
        gone
    }

    /// Where a new connection may lead, the one whose turn it is first; at least one.
    pub fn ways(&self) -> impl ExactSizeIterator<Item = Way> + use<> {
        let generation = self.generation.load(Ordering::Acquire);
        let addresses = self.addresses.load_full();
        let count = addresses.len();
        let turn = if count > 1 { self.turn.fetch_add(1, Ordering::Relaxed) } else { 0 };
        if count > 1 && turn.is_multiple_of(TURNS_TO_RETRY) {
            self.failed.store(0, Ordering::Relaxed);
        }
        let failed = self.failed.load(Ordering::Relaxed);
        let mut order: Vec<usize> = (0..count).map(|step| turn.wrapping_add(step) % count).collect();
        order.sort_by_key(|position| failed & bit(*position) != 0);
        order.into_iter().map(move |position| Way { address: addresses[position], generation })
    }

    /// A connect to this address has failed, and to another of the server's it has not.
    pub fn note_failed(&self, way: Way) {
        if let Some(position) = self.addresses.load().iter().position(|address| *address == way.address) {
            self.failed.fetch_or(bit(position), Ordering::Relaxed);
        }
    }

    /// Whether a connection still leads to where the server is.
    pub fn is_current(&self, way: &mut Way) -> bool {
        let generation = self.generation.load(Ordering::Acquire);
        if generation == way.generation {
            return true;
        }
        let current = self.addresses.load().contains(&way.address);
        if current {
            way.generation = generation;
        }
        current
    }
}

/// None for positions that there are no bits for.
fn bit(position: usize) -> u32 {
    1_u32.checked_shl(position as u32).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(ports: &[u16]) -> Vec<SocketAddr> {
        ports.iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port))).collect()
    }

    #[test]
    fn connections_take_the_addresses_in_turn_and_each_knows_the_others() {
        let notice = Notice::new(addresses(&[1, 2, 3]));
        let ports = || notice.ways().map(|way| way.address.port()).collect::<Vec<_>>();
        assert_eq!([ports(), ports(), ports(), ports()], [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]]);
    }

    #[test]
    fn an_address_that_failed_is_tried_last_for_a_while() {
        let notice = Notice::new(addresses(&[1, 2]));
        let first = || notice.ways().next().unwrap();
        let mut ways = notice.ways();
        let (_, two) = (ways.next().unwrap(), ways.next().unwrap());
        notice.note_failed(two);
        let turns: Vec<u16> = (1..TURNS_TO_RETRY).map(|_| first().address.port()).collect();
        assert!(turns.iter().all(|port| *port == 1), "{turns:?}");
        let turns: Vec<u16> = (0..4).map(|_| first().address.port()).collect();
        assert_eq!(turns, [1, 2, 1, 2]);
    }

    #[test]
    fn openings_are_counted_and_staying_open_is_none() {
        let notice = Notice::new(addresses(&[1]));
        [Door::Open, Door::Closed, Door::Closed, Door::Open, Door::Open].iter().for_each(|door| notice.set_door(*door));
        assert_eq!((notice.is_open(), notice.is_fit(), notice.reopened()), (true, true, 1));
        [Door::Closed, Door::Ajar].iter().for_each(|door| notice.set_door(*door));
        assert_eq!((notice.is_open(), notice.is_fit()), (true, false));
        notice.set_door(Door::Open);
        assert_eq!(notice.reopened(), 1, "it has had its requests meanwhile");
    }

    #[test]
    fn cores_see_by_one_number_that_a_server_was_closed_or_opened() {
        let notice = Notice::new(addresses(&[1]));
        for door in [Door::Closed, Door::Ajar, Door::Open] {
            let before = changes();
            notice.set_door(door);
            assert_ne!(changes(), before, "{door:?}");
        }
    }

    #[test]
    fn a_connection_is_current_until_its_own_address_is_gone() {
        let notice = Notice::new(addresses(&[1, 2]));
        let (mut one, mut two) = {
            let mut ways = notice.ways();
            (ways.next().unwrap(), ways.next().unwrap())
        };
        assert!(!notice.set_addresses(addresses(&[1, 2, 3])), "none is gone");
        assert!(notice.is_current(&mut one) && notice.is_current(&mut two));
        assert!(notice.set_addresses(addresses(&[2, 4])));
        assert!(!notice.is_current(&mut one));
        assert!(notice.is_current(&mut two) && notice.is_current(&mut two));
        assert!(!notice.set_addresses(Vec::new()), "a server keeps its last addresses");
        assert_eq!(notice.addresses().len(), 2);
    }
}

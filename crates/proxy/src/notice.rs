//! What the main thread tells the cores of a server: whether it is open to requests, and where it listens now.
//!
//! One writer, the main thread; a core reads it without waiting, at every pick and at every connect.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use arc_swap::ArcSwap;

pub struct Notice {
    open: AtomicBool,
    addresses: ArcSwap<Vec<SocketAddr>>,
    /// Goes up when an address is gone, so that a connection knows when to ask whether it was its own.
    generation: AtomicU32,
    /// Whose turn it is, where there are several.
    turn: AtomicUsize,
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
            open: AtomicBool::new(true),
            addresses: ArcSwap::from_pointee(addresses),
            generation: AtomicU32::new(0),
            turn: AtomicUsize::new(0),
        }
    }

    /// Whether requests may go there, as far as the whole engine knows.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    pub fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::Relaxed);
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
        (0..count).map(move |step| Way { address: addresses[turn.wrapping_add(step) % count], generation })
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

//! Which of a route's requests another backend gets a copy of, and how many copies there may be at once.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use propylon_config::{self as config, BackendId};
use propylon_policy::split::Turns;

/// Share that is every request.
const ALL: u32 = 1_000_000;

/// Copies of one route's requests. Each core has its own.
pub struct Mirror {
    pub backend: BackendId,
    /// Longest body that is copied, in bytes.
    pub body_bytes_max: u64,
    in_flight_max: u32,
    in_flight: Rc<Cell<u32>>,
    turns: Option<RefCell<Turns>>,
}

/// The right to have a copy under way, until it is dropped.
pub struct Place(Rc<Cell<u32>>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Mirror {
    /// `random` decides with which turn it begins.
    pub fn of(mirror: &config::Mirror, random: u64) -> Mirror {
        Mirror {
            backend: mirror.backend,
            body_bytes_max: mirror.body_bytes_max,
            in_flight_max: mirror.in_flight_max,
            in_flight: Rc::default(),
            turns: Turns::new(&[mirror.millionths, ALL.saturating_sub(mirror.millionths)], random).map(RefCell::new),
        }
    }

    /// Whether a copy is to be made of this request.
    pub fn is_due(&self) -> bool {
        self.turns.as_ref().is_some_and(|turns| turns.borrow_mut().take_turn() == 0)
    }

    /// A place for a copy; `None` if as many are under way as may be.
    pub fn place(&self) -> Option<Place> {
        let in_flight = self.in_flight.get();
        (in_flight < self.in_flight_max).then(|| {
            self.in_flight.set(in_flight + 1);
            Place(Rc::clone(&self.in_flight))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror(millionths: u32, in_flight_max: u32) -> Mirror {
        Mirror::of(&config::Mirror { backend: BackendId(0), millionths, body_bytes_max: 0, in_flight_max }, 77)
    }

    #[test]
    fn a_share_is_kept_to_the_request() {
        for (millionths, copies) in [(1_000_000, 1_000), (50_000, 50), (1_000, 1), (0, 0)] {
            let mirror = mirror(millionths, 1);
            assert_eq!((0..1_000).filter(|_| mirror.is_due()).count(), copies, "{millionths}");
        }
    }

    #[test]
    fn places_are_bounded_and_come_back() {
        let mirror = mirror(ALL, 2);
        let (first, second) = (mirror.place(), mirror.place());
        assert!(first.is_some() && second.is_some() && mirror.place().is_none());
        drop(first);
        assert!(mirror.place().is_some());
    }
}

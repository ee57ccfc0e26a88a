//! Those who wait for something that comes one at a time, and who of them gets it.
//!
//! First come, first served, as long as that serves anybody: in overload it hands what there is to those who have waited for
//! the longest, and so to those who are the likeliest to have given up. So a line may have a target, a wait that is still
//! well. While the one who came first has waited for longer, those who came last are served first, and where the line is full
//! the one who came first makes way. This is the adaptive LIFO of B. Maurer, "Fail at Scale", ACM Queue 13 (8), 2015, with
//! the wait itself as the sign of overload, as in CoDel (RFC 8289 §3.2).

use std::collections::BTreeMap;

/// In which order those in a line are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// A wait, in milliseconds, beyond which the newest are served first. Absent: never.
    pub target: Option<u64>,
}

impl Order {
    /// Whether one who has come at `since` has waited for too long for the line to be served in its order.
    pub fn is_overload(self, since: u64, now: u64) -> bool {
        self.target.is_some_and(|target| now.saturating_sub(since) > target)
    }
}

/// Places by ticket. Tickets rise, and may have gaps.
#[derive(Debug)]
pub struct Line<T> {
    /// With the milliseconds at which they came, on any clock that does not go back.
    places: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for Line<T> {
    fn default() -> Line<T> {
        Line { places: BTreeMap::new() }
    }
}

impl<T> Line<T> {
    pub fn join(&mut self, ticket: u64, now: u64, who: T) {
        self.places.insert(ticket, (now, who));
    }

    pub fn leave(&mut self, ticket: u64) -> Option<T> {
        self.places.remove(&ticket).map(|(_, who)| who)
    }

    /// The ticket of the one who came first, and when.
    pub fn oldest(&self) -> Option<(u64, u64)> {
        self.places.first_key_value().map(|(ticket, (since, _))| (*ticket, *since))
    }

    /// The ticket of the one who came last.
    pub fn newest(&self) -> Option<u64> {
        self.places.last_key_value().map(|(ticket, _)| *ticket)
    }

    /// Whose turn it is.
    pub fn next(&self, order: Order, now: u64) -> Option<u64> {
        let (oldest, since) = self.oldest()?;
        if order.is_overload(since, now) { self.newest() } else { Some(oldest) }
    }

    pub fn get(&self, ticket: u64) -> Option<&T> {
        self.places.get(&ticket).map(|(_, who)| who)
    }

    /// Those in it, the one who came first first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.places.iter().map(|(ticket, (_, who))| (*ticket, who))
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(came: &[u64]) -> Line<()> {
        let mut line = Line::default();
        came.iter().enumerate().for_each(|(ticket, now)| line.join(ticket as u64, *now, ()));
        line
    }

    #[test]
    fn without_a_target_who_came_first_is_served_first_however_long_that_takes() {
        let line = line(&[0, 10, 20]);
        assert_eq!(line.next(Order::default(), 1_000_000), Some(0));
    }

    #[test]
    fn while_somebody_has_waited_for_longer_than_the_target_the_newest_is_served_first() {
        let mut line = line(&[0, 10, 20]);
        let order = Order { target: Some(100) };
        assert_eq!(line.next(order, 100), Some(0), "a wait of the target is still well");
        assert_eq!(line.next(order, 101), Some(2));
        line.leave(2);
        assert_eq!(line.next(order, 101), Some(1));
        line.leave(0);
        assert_eq!(line.next(order, 101), Some(1), "the last one left has not waited for too long");
        line.join(3, 101, ());
        assert_eq!(line.next(order, 102), Some(1), "and the line goes by its order again");
    }

    #[test]
    fn a_place_can_be_given_up_once_from_anywhere() {
        let mut line = line(&[0, 0, 0]);
        assert_eq!((line.leave(1), line.leave(1)), (Some(()), None));
        let left: Vec<u64> = line.iter().map(|(ticket, ())| ticket).collect();
        assert_eq!((left, line.len(), line.is_empty()), (vec![0, 2], 2, false));
    }
}

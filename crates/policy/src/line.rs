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

/// A place in a line: who came first has the lower one. Who comes back, having waited for something else, keeps the time at
/// which it came, and so does not stand behind those who came since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    /// Milliseconds, on any clock that does not go back.
    pub since: u64,
    /// Rises with each ticket of a line.
    number: u64,
}

impl Ticket {
    pub fn new(since: u64, number: u64) -> Ticket {
        Ticket { since, number }
    }
}

/// Those who wait, by their tickets.
#[derive(Debug)]
pub struct Line<T> {
    places: BTreeMap<Ticket, T>,
}

impl<T> Default for Line<T> {
    fn default() -> Line<T> {
        Line { places: BTreeMap::new() }
    }
}

impl<T> Line<T> {
    pub fn join(&mut self, ticket: Ticket, who: T) {
        self.places.insert(ticket, who);
    }

    pub fn leave(&mut self, ticket: Ticket) -> Option<T> {
        self.places.remove(&ticket)
    }

    /// The ticket of the one who came first.
    pub fn oldest(&self) -> Option<Ticket> {
        self.places.first_key_value().map(|(ticket, _)| *ticket)
    }

    /// The ticket of the one who came last.
    pub fn newest(&self) -> Option<Ticket> {
        self.places.last_key_value().map(|(ticket, _)| *ticket)
    }

    /// Whose turn it is.
    pub fn next(&self, order: Order, now: u64) -> Option<Ticket> {
        let oldest = self.oldest()?;
        if order.is_overload(oldest.since, now) { self.newest() } else { Some(oldest) }
    }

    pub fn get(&self, ticket: Ticket) -> Option<&T> {
        self.places.get(&ticket)
    }

    /// Those in it, the one who came first first.
    pub fn iter(&self) -> impl Iterator<Item = (Ticket, &T)> {
        self.places.iter().map(|(ticket, who)| (*ticket, who))
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

    /// Tickets by number, of those who came at these times.
    fn line<const N: usize>(came: [u64; N]) -> (Line<()>, [Ticket; N]) {
        let (mut line, mut number) = (Line::default(), 0);
        let tickets = came.map(|since| {
            number += 1;
            Ticket::new(since, number)
        });
        tickets.iter().for_each(|ticket| line.join(*ticket, ()));
        (line, tickets)
    }

    #[test]
    fn without_a_target_who_came_first_is_served_first_however_long_that_takes() {
        let (line, tickets) = line([0, 10, 20]);
        assert_eq!(line.next(Order::default(), 1_000_000), Some(tickets[0]));
    }

    #[test]
    fn while_somebody_has_waited_for_longer_than_the_target_the_newest_is_served_first() {
        let (mut line, [first, second, third]) = line([0, 10, 20]);
        let order = Order { target: Some(100) };
        assert_eq!(line.next(order, 100), Some(first), "a wait of the target is still well");
        assert_eq!(line.next(order, 101), Some(third));
        line.leave(third);
        assert_eq!(line.next(order, 101), Some(second));
        line.leave(first);
        assert_eq!(line.next(order, 101), Some(second), "the last one left has not waited for too long");
        line.join(Ticket::new(101, 9), ());
        assert_eq!(line.next(order, 102), Some(second), "and the line goes by its order again");
    }

    #[test]
    fn who_comes_back_stands_where_it_stood_and_is_as_old_as_it_was() {
        let (mut line, [first, second, third]) = line([0, 10, 20]);
        line.leave(second);
        let back = Ticket::new(second.since, 9);
        line.join(back, ());
        assert_eq!(line.iter().map(|(ticket, ())| ticket).collect::<Vec<_>>(), [first, back, third]);
        line.leave(first);
        assert_eq!(line.next(Order { target: Some(100) }, 111), Some(third), "its wait is a sign of overload");
        assert_eq!(line.next(Order { target: Some(100) }, 110), Some(back));
    }

    #[test]
    fn a_place_can_be_given_up_once_from_anywhere() {
        let (mut line, [first, second, third]) = line([0, 0, 0]);
        assert_eq!((line.leave(second), line.leave(second)), (Some(()), None));
        let left: Vec<Ticket> = line.iter().map(|(ticket, ())| ticket).collect();
        assert_eq!((left, line.len(), line.is_empty()), (vec![first, third], 2, false));
    }
}

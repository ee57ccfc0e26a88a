//! A queue for something that comes one at a time, and the order in which waiters get it.
//!
//! First come, first served, as long as that serves anybody: in overload it hands what there is to those who have waited for
//! the longest, and so to those who are the likeliest to have given up. So a queue may have a target, a wait that is still
//! well. While the one who came first has waited for longer, and some go away before their turn would have come,
//! those who came last are served first; and where the queue is full the one who came first makes way. This is the
//! adaptive LIFO of B. Maurer, "Fail at Scale", ACM Queue 13 (8), 2015.
//!
//! Some matter more than others: one of high priority counts as having come a while earlier than it did, one of low
//! priority as much later. So a high one passes all that have not waited for longer than that, and nobody waits for
//! ever behind those who come later: two tickets keep their order whatever the time. What the newest get stays within
//! the priority whose turn it is, and a full queue turns away the lowest first.
//!
//! A long wait is no sign of overload by itself, as it is in CoDel (RFC 8289 §3.2): where a fixed number of clients
//! wait for their answers and ask again, each waits for all others, and any other order than their own lets some wait
//! for ever. Nor is it one that somebody goes away who was passed over by those who came later.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// In which order those in a queue are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// A wait, in milliseconds, beyond which the newest are served first while others go away. Absent: never.
    pub target: Option<u64>,
    /// Time, in milliseconds, that a priority is worth beside the next one.
    pub head_start: u64,
}

/// How much it matters that a request is served soon. The higher one is the lesser.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    High,
    #[default]
    Normal,
    Low,
}

const PRIORITIES: usize = 3;

/// Time and weight with which somebody comes to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Milliseconds, on any clock that does not go back.
    pub since: u64,
    pub priority: Priority,
}

impl Arrival {
    /// Somebody who matters as most do.
    pub fn at(since: u64) -> Arrival {
        Arrival { since, priority: Priority::Normal }
    }
}

/// Turns that go to the newest for each one who has gone away: where one of 16 does, nearly all of them.
const NEWEST_PER_LOSS: usize = 16;
/// Waiting for this many times the wait in its order before leaving means having been passed over: that says nothing.
const WAITS_PASSED_OVER: u64 = 2;

/// The turns of a queue, and how many of the next ones go to the newest.
#[derive(Debug, Default)]
pub struct Turns {
    given: u64,
    newest: usize,
}

impl Turns {
    /// The turn by which one who joins behind so many should be served: in their order that takes half of these turns.
    pub fn due(&self, ahead: usize) -> u64 {
        self.given + WAITS_PASSED_OVER * ahead as u64 + 1
    }

    /// Somebody goes away unserved, which was due by then, and leaves so many behind.
    pub fn lose(&mut self, due: u64, left: usize) {
        if self.given < due {
            self.newest = self.newest.saturating_add(NEWEST_PER_LOSS).min(left);
        }
    }

    /// Somebody has had a turn.
    pub fn give(&mut self) {
        self.given += 1;
        self.newest = self.newest.saturating_sub(1);
    }

    /// Whether the next turn is of the one who came last, where the one who came first has come at `since`.
    pub fn is_newest_first(&self, order: Order, since: u64, now: u64) -> bool {
        self.newest > 0 && order.is_overload(since, now)
    }
}

impl Order {
    /// Whether one who has come at `since` has waited for too long: in a full queue it makes way.
    pub fn is_overload(self, since: u64, now: u64) -> bool {
        self.target.is_some_and(|target| now.saturating_sub(since) > target)
    }

    /// The ticket of one who comes; `number` rises with each ticket of a queue.
    pub fn ticket(self, arrival: Arrival, number: u64) -> QueueTicket {
        let Arrival { since, priority } = arrival;
        let place = match priority {
            Priority::High => since.saturating_sub(self.head_start),
            Priority::Normal => since,
            Priority::Low => since.saturating_add(self.head_start),
        };
        QueueTicket { place, number, since, priority }
    }
}

/// A place in a queue: who came first has the lower one. Who comes back, having waited for something else, keeps the time at
/// which it came, and so does not stand behind those who came since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueTicket {
    /// Time, in milliseconds, at which it counts as having come.
    place: u64,
    /// Rises with each ticket of a queue.
    number: u64,
    /// Time at which it has come.
    pub since: u64,
    pub priority: Priority,
}

impl QueueTicket {
    pub fn arrival(self) -> Arrival {
        Arrival { since: self.since, priority: self.priority }
    }

    /// Whether the turn is its before it is this one's of another queue, where those who came first are served first.
    pub fn is_before(self, other: QueueTicket) -> bool {
        self.place <= other.place
    }

    /// As [`QueueTicket::is_before`], where those who came last are served first.
    pub fn is_newer(self, other: QueueTicket) -> bool {
        (self.priority, Reverse(self.since)) < (other.priority, Reverse(other.since))
    }
}

/// Waiters by their tickets.
#[derive(Debug)]
pub struct Queue<T> {
    /// Waiters by priority.
    places: [BTreeMap<QueueTicket, T>; PRIORITIES],
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { places: Default::default() }
    }
}

impl<T> Queue<T> {
    pub fn join(&mut self, ticket: QueueTicket, who: T) {
        self.places[ticket.priority as usize].insert(ticket, who);
    }

    pub fn leave(&mut self, ticket: QueueTicket) -> Option<T> {
        self.places[ticket.priority as usize].remove(&ticket)
    }

    /// The ticket of the one who counts as having come first.
    pub fn oldest(&self) -> Option<QueueTicket> {
        self.places.iter().filter_map(|places| places.first_key_value()).map(|(ticket, _)| *ticket).min()
    }

    /// The ticket of the one of this priority who came first.
    pub fn oldest_of(&self, priority: Priority) -> Option<QueueTicket> {
        self.places[priority as usize].first_key_value().map(|(ticket, _)| *ticket)
    }

    /// The ticket of the one of this priority who came last.
    pub fn newest_of(&self, priority: Priority) -> Option<QueueTicket> {
        self.places[priority as usize].last_key_value().map(|(ticket, _)| *ticket)
    }

    /// The lowest priority of those in the queue.
    pub fn lowest(&self) -> Option<Priority> {
        [Priority::Low, Priority::Normal, Priority::High]
            .into_iter()
            .find(|priority| !self.places[*priority as usize].is_empty())
    }

    /// Whose turn it is.
    pub fn next(&self, turns: &Turns, order: Order, now: u64) -> Option<QueueTicket> {
        let oldest = self.oldest()?;
        match turns.is_newest_first(order, oldest.since, now) {
            true => self.newest_of(oldest.priority),
            false => Some(oldest),
        }
    }

    pub fn get(&self, ticket: QueueTicket) -> Option<&T> {
        self.places[ticket.priority as usize].get(&ticket)
    }

    /// The waiters, those of the highest priority first, and of each the oldest.
    pub fn iter(&self) -> impl Iterator<Item = (QueueTicket, &T)> {
        self.places.iter().flatten().map(|(ticket, who)| (*ticket, who))
    }

    pub fn len(&self) -> usize {
        self.places.iter().map(BTreeMap::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.places.iter().all(BTreeMap::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tickets by number, of those who came at these times.
    fn queue<const N: usize>(came: [u64; N]) -> (Queue<()>, [QueueTicket; N]) {
        let (mut queue, mut number) = (Queue::default(), 0);
        let tickets = came.map(|since| {
            number += 1;
            Order::default().ticket(Arrival::at(since), number)
        });
        tickets.iter().for_each(|ticket| queue.join(*ticket, ()));
        (queue, tickets)
    }

    /// So many turns go to the newest, if somebody has waited for too long.
    fn after_losses(newest: usize) -> Turns {
        Turns { given: 0, newest }
    }

    #[test]
    fn without_a_target_who_came_first_is_served_first_however_long_that_takes() {
        let (queue, tickets) = queue([0, 10, 20]);
        assert_eq!(queue.next(&after_losses(9), Order::default(), 1_000_000), Some(tickets[0]));
    }

    #[test]
    fn while_somebody_has_waited_for_longer_than_the_target_and_others_go_away_the_newest_is_served_first() {
        let (mut queue, [first, second, third]) = queue([0, 10, 20]);
        let (order, turns) = (Order { target: Some(100), head_start: 0 }, after_losses(9));
        assert_eq!(queue.next(&turns, order, 100), Some(first), "a wait of the target is still well");
        assert_eq!(queue.next(&Turns::default(), order, 101), Some(first), "nobody has gone away");
        assert_eq!(queue.next(&turns, order, 101), Some(third));
        queue.leave(third);
        assert_eq!(queue.next(&turns, order, 101), Some(second));
        queue.leave(first);
        assert_eq!(queue.next(&turns, order, 101), Some(second), "the last one left has not waited for too long");
        queue.join(Order::default().ticket(Arrival::at(101), 9), ());
        assert_eq!(queue.next(&turns, order, 102), Some(second), "and the queue goes by its order again");
    }

    #[test]
    fn who_goes_away_before_its_turn_buys_some_turns_for_the_newest_and_no_more_than_there_are_in_the_line() {
        let order = Order { target: Some(100), head_start: 0 };
        // How many turns go to the newest until one goes to the oldest.
        let newest = |turns: &mut Turns| {
            let given = turns.given;
            while turns.is_newest_first(order, 0, 101) {
                turns.give();
            }
            turns.given - given
        };
        let mut turns = Turns::default();
        let (first, third) = (turns.due(0), turns.due(2));
        turns.lose(first, 40);
        assert_eq!(newest(&mut turns), 16);
        turns.lose(third, 40);
        assert_eq!(newest(&mut turns), 0, "in the queue's order its turn would have come");
        let next = turns.due(0);
        (0..2).for_each(|_| turns.lose(next, 40));
        assert_eq!(newest(&mut turns), 32);
        let next = turns.due(0);
        (0..9).for_each(|_| turns.lose(next, 40));
        assert_eq!(newest(&mut turns), 40);
        let next = turns.due(0);
        turns.lose(next, 3);
        assert_eq!(newest(&mut turns), 3);
    }

    #[test]
    fn who_comes_back_stands_where_it_stood_and_is_as_old_as_it_was() {
        let (mut queue, [first, second, third]) = queue([0, 10, 20]);
        queue.leave(second);
        let back = Order::default().ticket(second.arrival(), 9);
        queue.join(back, ());
        assert_eq!(queue.iter().map(|(ticket, ())| ticket).collect::<Vec<_>>(), [first, back, third]);
        queue.leave(first);
        let next = |now: u64| queue.next(&after_losses(1), Order { target: Some(100), head_start: 0 }, now);
        assert_eq!(next(111), Some(third), "its wait is too long");
        assert_eq!(next(110), Some(back));
    }

    #[test]
    fn a_place_can_be_given_up_once_from_anywhere() {
        let (mut queue, [first, second, third]) = queue([0, 0, 0]);
        assert_eq!((queue.leave(second), queue.leave(second)), (Some(()), None));
        let left: Vec<QueueTicket> = queue.iter().map(|(ticket, ())| ticket).collect();
        assert_eq!((left, queue.len(), queue.is_empty()), (vec![first, third], 2, false));
    }

    /// Tickets of those of these priorities who came at these times, where a priority is worth 100 ms.
    fn ranked<const N: usize>(came: [(u64, Priority); N]) -> (Queue<()>, [QueueTicket; N]) {
        let (mut queue, mut number) = (Queue::default(), 0);
        let order = Order { target: Some(1_000), head_start: 100 };
        let tickets = came.map(|(since, priority)| {
            number += 1;
            order.ticket(Arrival { since, priority }, number)
        });
        tickets.iter().for_each(|ticket| queue.join(*ticket, ()));
        (queue, tickets)
    }

    #[test]
    fn a_higher_priority_is_a_head_start_and_so_nobody_waits_for_ever() {
        use Priority::{High, Low, Normal};
        let came = [
            (1_000, Low),
            (1_050, Normal),
            (1_100, Normal),
            (1_149, High),
            (1_199, High),
            (1_200, High),
            (1_201, High),
        ];
        let (mut queue, [low, first, second, soon, later, _, last]) = ranked(came);
        let (order, turns) = (Order { target: None, head_start: 100 }, Turns::default());
        let mut served = Vec::new();
        while let Some(next) = queue.next(&turns, order, 9_999) {
            queue.leave(next);
            served.push(next);
        }
        assert_eq!(served[..5], [soon, first, later, low, second], "a low one comes before what is 200 ms younger");
        assert_eq!(served.last(), Some(&last));
    }

    #[test]
    fn the_newest_of_the_priority_whose_turn_it_is_goes_first_in_overload() {
        use Priority::{High, Low, Normal};
        let (mut queue, [old, _, new, low]) = ranked([(0, High), (10, Normal), (20, High), (30, Low)]);
        let order = Order { target: Some(1_000), head_start: 100 };
        assert_eq!(queue.next(&after_losses(9), order, 1_001), Some(new));
        assert_eq!(queue.next(&after_losses(9), order, 1_000), Some(old));
        assert_eq!(queue.lowest(), Some(Low));
        queue.leave(low);
        assert_eq!(queue.lowest(), Some(Normal));
    }
}

//! Priorities of responses (RFC 9218), and whose turn it is to send.

use std::collections::VecDeque;

/// Urgency from 0, the most urgent, to 7, and whether a part of a response is of use before the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    pub urgency: u8,
    pub incremental: bool,
}

impl Default for Priority {
    /// RFC 9218 §4.
    fn default() -> Priority {
        Priority { urgency: 3, incremental: false }
    }
}

impl Priority {
    /// Reads a Priority field's value, a dictionary of structured fields (RFC 8941 §3.2). What it does not say is as by
    /// default, and so is what it says wrongly: priorities are hints.
    pub fn read(value: &[u8]) -> Priority {
        let mut priority = Priority::default();
        for member in value.split(|byte| *byte == b',') {
            // Parameters mean nothing here.
            let member = member.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
            match member {
                [b'u', b'=', digit @ b'0'..=b'7'] => priority.urgency = digit - b'0',
                b"i" | b"i=?1" => priority.incremental = true,
                b"i=?0" => priority.incremental = false,
                _ => {}
            }
        }
        priority
    }
}

/// Streams that have something to send and may, in the order of their turns.
///
/// More urgent ones go first. Of the same urgency those that are of use only whole go one after the other, in the order
/// in which they began, and before those that are not, which share what is left frame by frame (RFC 9218 §10).
#[derive(Debug, Default)]
pub struct SendQueue {
    waiting: VecDeque<Place>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    stream: u32,
    priority: Priority,
}

impl Place {
    /// Whether this one comes before another that joins.
    fn is_before(&self, other: &Place) -> bool {
        let rank = |place: &Place| (place.priority.urgency, place.priority.incremental);
        match rank(self).cmp(&rank(other)) {
            std::cmp::Ordering::Equal => self.priority.incremental || self.stream < other.stream,
            order => order.is_lt(),
        }
    }
}

impl SendQueue {
    /// Puts a stream that is not there in its place.
    pub fn join(&mut self, stream: u32, priority: Priority) {
        let place = Place { stream, priority };
        let at = self.waiting.partition_point(|waiting| waiting.is_before(&place));
        self.waiting.insert(at, place);
    }

    /// The stream whose turn it is.
    pub fn first(&self) -> Option<u32> {
        self.waiting.front().map(|place| place.stream)
    }

    /// All of them, in the order of their turns.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.waiting.iter().map(|place| place.stream)
    }

    pub fn leave(&mut self, stream: u32) {
        match self.first() == Some(stream) {
            true => _ = self.waiting.pop_front(),
            false => self.waiting.retain(|place| place.stream != stream),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Gives up memory that an empty queue does not need.
    pub fn shrink(&mut self) {
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_the_rfc_writes_them_and_nonsense_is_the_default() {
        let priority = |urgency, incremental| Priority { urgency, incremental };
        for (value, expected) in [
            ("", Priority::default()),
            ("u=0", priority(0, false)),
            ("u=7, i", priority(7, true)),
            ("i", priority(3, true)),
            ("i=?1,u=1", priority(1, true)),
            ("u=2, i=?0", priority(2, false)),
            ("u=5;foo=bar, i;x", priority(5, true)),
            ("u=8", Priority::default()),
            ("u=-1, u=, =, ,,", Priority::default()),
            ("u=1, u=4", priority(4, false)),
            ("U=1, I", Priority::default()),
        ] {
            assert_eq!(Priority::read(value.as_bytes()), expected, "{value}");
        }
    }

    fn turns(queue: &mut SendQueue, count: usize, again: &[(u32, Priority)]) -> Vec<u32> {
        let turn = |queue: &mut SendQueue| {
            let stream = queue.first()?;
            queue.leave(stream);
            if let Some((_, priority)) = again.iter().find(|(known, _)| *known == stream) {
                queue.join(stream, *priority);
            }
            Some(stream)
        };
        (0..count).map_while(|_| turn(queue)).collect()
    }

    #[test]
    fn the_urgent_go_first_and_the_others_as_they_began() {
        let mut queue = SendQueue::default();
        for (stream, urgency) in [(9, 3), (1, 7), (7, 0), (3, 3), (5, 0)] {
            queue.join(stream, Priority { urgency, incremental: false });
        }
        assert_eq!(turns(&mut queue, 9, &[]), [5, 7, 3, 9, 1]);
    }

    #[test]
    fn incremental_ones_share_and_whole_ones_do_not() {
        let (whole, parts) = (Priority::default(), Priority { urgency: 3, incremental: true });
        let all = [(1, parts), (3, parts), (5, whole), (7, parts)];
        let mut queue = SendQueue::default();
        all[..2].iter().for_each(|(stream, priority)| queue.join(*stream, *priority));
        assert_eq!(turns(&mut queue, 5, &all), [1, 3, 1, 3, 1]);
        queue.join(7, parts);
        assert_eq!(turns(&mut queue, 6, &all), [3, 1, 7, 3, 1, 7]);
        queue.join(5, whole);
        assert_eq!(turns(&mut queue, 3, &all), [5, 5, 5]);
        queue.leave(5);
        assert_eq!(turns(&mut queue, 3, &all), [3, 1, 7]);
    }
}

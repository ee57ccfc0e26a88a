//! How fast the bytes of one direction flow, and so how wide the pieces are that they are moved in.
//!
//! A direction begins in whatever memory it is given. One that turns out to be long goes on in large buffers, and one
//! whose reads are full as well, again and again, in wide ones, while its core has leave to give for them.

use crate::buffer::{BufferPool, LARGE_BYTES, WIDE_BYTES, WideLease};

/// Reads that bring so much, all but a record of what a large buffer takes, are full.
const FULL_READ_BYTES: usize = 48 * 1024;
/// Full reads in a row that show the flow to be fast: most of what they brought has gone on.
const FULL_READS_MIN: u8 = 3;
/// Reads that bring so little are no use for wide buffers, and so many of them in a row end the leave for these.
const SCANT_READ_BYTES: usize = 20 * 1024;
const SCANT_READS_MAX: u8 = 32;

/// One direction.
#[derive(Debug, Default)]
pub struct Pace {
    is_long: bool,
    /// Full reads in a row, and scant ones.
    full: u8,
    scant: u8,
    wide: Option<WideLease>,
}

impl Pace {
    /// Takes note of a sign that more is to come than fits a small buffer, or of none.
    pub fn note_long(&mut self, is_long: bool) {
        self.is_long |= is_long;
    }

    /// Takes note of bytes that were read at one go. `count`: wide buffers that the direction then needs at once.
    pub fn note_read(&mut self, bytes: usize, count: usize, buffers: &BufferPool) {
        self.full = if bytes >= FULL_READ_BYTES { self.full.saturating_add(1) } else { 0 };
        self.scant = if bytes < SCANT_READ_BYTES { self.scant.saturating_add(1) } else { 0 };
        if self.wide.is_none() && self.full >= FULL_READS_MIN {
            self.wide = buffers.lease_wide(count);
        } else if self.scant >= SCANT_READS_MAX {
            self.wide = None;
        }
    }

    /// Memory that is to be read into, at least; 0 where any will do.
    pub fn read_bytes(&self) -> usize {
        match (&self.wide, self.is_long) {
            (_, false) => 0,
            (None, true) => LARGE_BYTES,
            (Some(_), true) => WIDE_BYTES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_wide_after_full_reads_in_a_row_and_large_again_after_many_scant_ones() {
        let (buffers, mut pace) = (BufferPool::default(), Pace::default());
        let read = |pace: &mut Pace, bytes| {
            pace.note_read(bytes, 2, &buffers);
            pace.read_bytes()
        };
        assert_eq!([read(&mut pace, 1 << 16), read(&mut pace, 1 << 16)], [0, 0], "nothing says that it is long");
        pace.note_long(true);
        pace.note_long(false);
        assert_eq!(read(&mut pace, FULL_READ_BYTES - 1), LARGE_BYTES, "the row is broken");
        assert_eq!([1 << 16; 3].map(|bytes| read(&mut pace, bytes)), [LARGE_BYTES, LARGE_BYTES, WIDE_BYTES]);
        for _ in 1..SCANT_READS_MAX {
            assert_eq!(read(&mut pace, 1), WIDE_BYTES);
        }
        read(&mut pace, SCANT_READ_BYTES);
        assert_eq!([1; SCANT_READS_MAX as usize].map(|bytes| read(&mut pace, bytes)).last(), Some(&LARGE_BYTES));
        assert!(buffers.lease_wide(64).is_some(), "the leave was given back");
    }

    #[test]
    fn without_leave_pieces_stay_large_and_get_wide_when_others_are_over() {
        let (buffers, mut pace) = (BufferPool::default(), Pace::default());
        pace.note_long(true);
        let others = buffers.lease_wide(63);
        (0..10).for_each(|_| pace.note_read(1 << 16, 2, &buffers));
        assert_eq!(pace.read_bytes(), LARGE_BYTES);
        drop(others);
        pace.note_read(1 << 16, 2, &buffers);
        assert_eq!(pace.read_bytes(), WIDE_BYTES);
    }
}

//! A list that grows at its end while others read it without a lock.
//!
//! Entries that are there at the beginning lie in one piece, so that reading costs what reading a slice costs; later
//! ones lie in blocks, each twice as long as the one before. Nothing ever moves.

use std::fmt;
use std::ops::Index;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Entries of the first block.
const FIRST_BLOCK: usize = 16;
/// Together they hold 16 * (2^26 - 1) entries: more than slots can be numbered.
const BLOCKS: usize = 26;

type Block<T> = OnceLock<Box<[OnceLock<T>]>>;

/// See the module's first lines. Reading beyond the end panics, as it does with a slice.
pub struct Growing<T> {
    first: Box<[T]>,
    more: [Block<T>; BLOCKS],
    length: AtomicUsize,
    appending: Mutex<()>,
}

impl<T> Growing<T> {
    /// With these entries to begin with.
    pub fn new(first: impl IntoIterator<Item = T>) -> Growing<T> {
        let first: Box<[T]> = first.into_iter().collect();
        let length = AtomicUsize::new(first.len());
        Growing { first, more: [const { OnceLock::new() }; BLOCKS], length, appending: Mutex::new(()) }
    }

    /// Appends an entry and returns its index.
    pub fn push(&self, value: T) -> usize {
        let _appending = self.appending.lock().unwrap_or_else(PoisonError::into_inner);
        let index = self.length.load(Ordering::Relaxed);
        let (block, offset) = place(index - self.first.len());
        let entries = || std::iter::repeat_with(OnceLock::new).take(FIRST_BLOCK << block).collect();
        let is_new = self.more[block].get_or_init(entries)[offset].set(value).is_ok();
        assert!(is_new, "two entries have the same place");
        self.length.store(index + 1, Ordering::Release);
        index
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.length.load(Ordering::Acquire)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All that are there now.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        (0..self.len()).map(|index| &self[index])
    }

    #[cold]
    fn later(&self, index: usize) -> &T {
        let (block, offset) = place(index);
        match self.more[block].get().and_then(|entries| entries[offset].get()) {
            Some(value) => value,
            None => panic!("entry {} of {}", index + self.first.len(), self.len()),
        }
    }
}

/// The block, and the place in it, of an entry that came later.
fn place(index: usize) -> (usize, usize) {
    let block = (index / FIRST_BLOCK + 1).ilog2() as usize;
    (block, index - FIRST_BLOCK * ((1 << block) - 1))
}

impl<T> Index<usize> for Growing<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        match self.first.get(index) {
            Some(value) => value,
            None => self.later(index - self.first.len()),
        }
    }
}

impl<T> FromIterator<T> for Growing<T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Growing<T> {
        Growing::new(entries)
    }
}

impl<T: fmt::Debug> fmt::Debug for Growing<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_index_and_their_place_while_others_come() {
        for first in [0, 1, 5] {
            let list: Growing<usize> = (0..first).collect();
            let mut known = Vec::new();
            for index in first..1_000 {
                assert_eq!(list.push(index), index);
                known.push(&raw const list[index]);
            }
            assert_eq!(list.len(), 1_000);
            assert!(list.iter().copied().eq(0..1_000));
            assert!(known.iter().zip(first..).all(|(known, index)| std::ptr::eq(*known, &list[index])));
        }
    }

    #[test]
    fn readers_see_whole_entries_while_one_appends() {
        let list: Growing<String> = Growing::new([]);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                while list.len() < 500 {
                    assert!(list.iter().enumerate().all(|(index, entry)| *entry == index.to_string()));
                }
            });
            for index in 0..500 {
                list.push(index.to_string());
            }
            reader.join().expect("no entry is half there");
        });
    }

    #[test]
    #[should_panic(expected = "entry 3 of 3")]
    fn reading_beyond_the_end_is_our_bug() {
        let list: Growing<u8> = Growing::new([0, 1]);
        list.push(2);
        let _ = list[3];
    }
}

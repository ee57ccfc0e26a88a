//! The dynamic table of one direction (RFC 7541 §2.3.2, §4): fields that have come before, in as much memory as they
//! take.

use std::collections::VecDeque;

use super::FIELD_BYTES;
use crate::fault::Fault;
use crate::h1::Name;

/// Step by which the arena grows, in bytes.
const GROWTH_BYTES: usize = 256;

/// Knowledge of a field in the table.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub kind: Name,
    /// Whether the name has token bytes other than letters, digits and `-`.
    pub odd: bool,
    /// Flaws of the name, and of the field.
    pub name_flaw: Option<Fault>,
    pub flaw: Option<Fault>,
    /// Hash by which a writer looks for the field.
    pub hash: u32,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Offset of the name in the arena; the value is behind it.
    at: u32,
    name_bytes: u16,
    value_bytes: u16,
    known: Known,
}

impl Entry {
    fn bytes(&self) -> usize {
        usize::from(self.name_bytes) + usize::from(self.value_bytes)
    }
}

/// Fields in the order in which they were put in.
#[derive(Debug)]
pub struct Table {
    /// Names and values, the oldest first, behind those of fields that are gone.
    arena: Vec<u8>,
    entries: VecDeque<Entry>,
    /// Size as the RFC counts it, and what it may be.
    bytes: usize,
    bytes_max: usize,
}

impl Table {
    pub fn new(bytes_max: usize) -> Table {
        Table { arena: Vec::new(), entries: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// Size as RFC 7541 §4.1 counts it, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Memory that the table owns beside itself, in bytes.
    pub fn owned_bytes(&self) -> usize {
        self.arena.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    /// Name and value of a field, the newest of which is at 0, and what is known of it.
    pub fn field(&self, place: usize) -> Option<(&[u8], &[u8], Known)> {
        let entry = self.entries.get(self.entries.len().checked_sub(place + 1)?)?;
        let text = &self.arena[entry.at as usize..entry.at as usize + entry.bytes()];
        let (name, value) = text.split_at(usize::from(entry.name_bytes));
        Some((name, value, entry.known))
    }

    /// Place of the newest field that `is_it` takes for the one with this hash.
    pub fn find(&self, hash: u32, is_it: impl Fn(&[u8], &[u8]) -> bool) -> Option<usize> {
        let (older, newer) = self.entries.as_slices();
        let matches = |place: usize| self.field(place).is_some_and(|(name, value, _)| is_it(name, value));
        // Two loops over slices take a third of the instructions of one over both, and this runs for each field sent.
        for (slice, before) in [(newer, 0), (older, newer.len())] {
            for (place, entry) in slice.iter().rev().enumerate() {
                if entry.known.hash == hash && matches(before + place) {
                    return Some(before + place);
                }
            }
        }
        None
    }

    /// Puts a field in, and takes out those that have no room beside it. A field that is larger than the table empties
    /// it (RFC 7541 §4.4).
    pub fn insert(&mut self, name: &[u8], value: &[u8], known: Known) {
        let bytes = name.len() + value.len() + FIELD_BYTES;
        self.evict(bytes);
        if bytes > self.bytes_max {
            return;
        }
        self.make_room(name.len() + value.len());
        let at = self.arena.len() as u32;
        self.arena.extend_from_slice(name);
        self.arena.extend_from_slice(value);
        let (name_bytes, value_bytes) = (name.len() as u16, value.len() as u16);
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact((self.entries.len() / 2).max(8));
        }
        self.entries.push_back(Entry { at, name_bytes, value_bytes, known });
        self.bytes += bytes;
    }

    /// Puts the field at `place` in again, with another value.
    pub fn insert_named(&mut self, place: usize, value: &[u8], known: Known) {
        let name = self.field(place).map_or_else(Vec::new, |(name, ..)| name.to_vec());
        self.insert(&name, value, known);
    }

    pub fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        self.evict(0);
    }

    /// Makes room for so many bytes, as far as there are entries.
    fn evict(&mut self, wanted: usize) {
        while self.bytes + wanted > self.bytes_max
            && let Some(entry) = self.entries.pop_front()
        {
            self.bytes -= entry.bytes() + FIELD_BYTES;
        }
    }

    /// Makes room for so many bytes of text: where those of fields that are gone do not suffice, the arena grows.
    fn make_room(&mut self, bytes: usize) {
        if self.arena.capacity() - self.arena.len() >= bytes {
            return;
        }
        let gone = self.entries.front().map_or(self.arena.len(), |oldest| oldest.at as usize);
        if gone > 0 {
            self.arena.drain(..gone);
            self.entries.iter_mut().for_each(|entry| entry.at -= gone as u32);
        }
        // Moving the rest again and again costs more than some room to spare.
        let spare = self.arena.len() / 4;
        if self.arena.capacity() - self.arena.len() < bytes + spare {
            let wanted = (self.arena.len() + bytes + spare).next_multiple_of(GROWTH_BYTES);
            self.arena.reserve_exact(wanted - self.arena.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: Known = Known { kind: Name::Other, odd: false, name_flaw: None, flaw: None, hash: 7 };

    #[test]
    fn an_entry_is_small() {
        assert!(size_of::<Entry>() <= 20, "{}", size_of::<Entry>());
    }

    #[test]
    fn a_table_has_what_a_list_of_the_newest_fields_has_and_owns_little_more() {
        let mut random = fastrand::Rng::with_seed(3);
        let (mut table, mut model) = (Table::new(4096), VecDeque::<(Vec<u8>, Vec<u8>)>::new());
        for _ in 0..20_000 {
            let text = |random: &mut fastrand::Rng, most| (0..random.usize(..most)).map(|_| random.u8(..)).collect();
            let (name, value): (Vec<u8>, Vec<u8>) = (text(&mut random, 40), text(&mut random, 200));
            let size = |model: &VecDeque<(Vec<u8>, Vec<u8>)>| -> usize {
                model.iter().map(|(name, value)| name.len() + value.len() + FIELD_BYTES).sum()
            };
            if random.u8(..) == 0 {
                table.set_bytes_max(random.usize(..=4096));
                while size(&model) > table.bytes_max() {
                    model.pop_back();
                }
            }
            match random.usize(..3) {
                0 if !model.is_empty() => {
                    let place = random.usize(..model.len());
                    let name = model[place].0.clone();
                    table.insert_named(place, &value, KNOWN);
                    model.push_front((name, value));
                }
                _ => {
                    table.insert(&name, &value, KNOWN);
                    model.push_front((name, value));
                }
            }
            while size(&model) > table.bytes_max() {
                model.pop_back();
            }
            assert_eq!(table.bytes(), size(&model));
            for (place, (name, value)) in model.iter().enumerate() {
                let (known_name, known_value, _) = table.field(place).unwrap();
                assert_eq!((known_name, known_value), (&name[..], &value[..]));
            }
            assert!(table.field(model.len()).is_none());
            assert!(table.owned_bytes() < 3 * 4096);
        }
    }

    #[test]
    fn an_empty_table_owns_nothing() {
        assert_eq!(Table::new(4096).owned_bytes(), 0);
    }
}

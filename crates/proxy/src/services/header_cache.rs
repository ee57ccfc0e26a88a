//! Fields that servers say again and again, as the library wants them: checked, copied and counted once, and shared
//! after that.

use http::header::{HeaderName, HeaderValue, SET_COOKIE};

/// Lines of this length are kept, name and value together, in bytes: a hash reads the first and the last eight.
const LINE_BYTES_MIN: usize = 8;
const LINE_BYTES_MAX: usize = 128;
/// Number of slots for lines: a power of two.
const SLOTS: usize = 128;

/// Lines that a core keeps. A line is kept when it comes a second time while no other has come for its slot, so that
/// lines that differ from response to response cost no more than a hash.
#[derive(Default)]
pub struct HeaderCache {
    slots: Vec<Slot>,
}

#[derive(Clone, Default)]
struct Slot {
    /// Hash of the last line of this slot that was not kept.
    seen: u64,
    kept: Option<Box<Kept>>,
}

#[derive(Clone)]
struct Kept {
    /// As it was written.
    line: Box<[u8]>,
    name: HeaderName,
    value: HeaderValue,
}

impl HeaderCache {
    /// The field of a line that reads `name: value`, whose name takes `name_bytes`. `None` if HTTP/2 cannot have it.
    pub fn field(&mut self, line: &[u8], name_bytes: usize) -> Option<(HeaderName, HeaderValue)> {
        if !(LINE_BYTES_MIN..=LINE_BYTES_MAX).contains(&line.len()) {
            return read(line, name_bytes);
        }
        if self.slots.is_empty() {
            self.slots.resize_with(SLOTS, Slot::default);
        }
        let hash = hash(line);
        let slot = &mut self.slots[(hash >> (u64::BITS - SLOTS.ilog2())) as usize];
        if let Some(kept) = &slot.kept
            && *kept.line == *line
        {
            return Some((kept.name.clone(), kept.value.clone()));
        }
        let (name, value) = read(line, name_bytes)?;
        if slot.seen == hash && name != SET_COOKIE {
            slot.kept = Some(Box::new(Kept { line: line.into(), name: name.clone(), value: value.clone() }));
        }
        slot.seen = hash;
        Some((name, value))
    }
}

fn read(line: &[u8], name_bytes: usize) -> Option<(HeaderName, HeaderValue)> {
    let name = HeaderName::from_bytes(line.get(..name_bytes)?).ok()?;
    let value = HeaderValue::from_bytes(line.get(name_bytes + 2..)?).ok()?;
    Some((name, value))
}

/// Hash of a line. It is good enough for a few lines; those that share a slot only replace each other.
fn hash(line: &[u8]) -> u64 {
    let word = |bytes: Option<&[u8; 8]>| bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let (first, last) = (word(line.first_chunk()), word(line.last_chunk()));
    let mixed = (first ^ line.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ last;
    mixed.wrapping_mul(0xff51_afd7_ed55_8ccd)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(cache: &mut HeaderCache, name: &str, value: &str) -> (String, String) {
        let line = format!("{name}: {value}");
        let (name, value) = cache.field(line.as_bytes(), name.len()).expect("a field");
        (name.as_str().to_owned(), value.to_str().expect("text").to_owned())
    }

    fn kept(cache: &HeaderCache) -> usize {
        cache.slots.iter().filter(|slot| slot.kept.is_some()).count()
    }

    #[test]
    fn a_line_is_kept_the_second_time_and_reads_the_same_ever_after() {
        let mut cache = HeaderCache::default();
        for times in 1..5 {
            assert_eq!(said(&mut cache, "X-Origin", "one"), ("x-origin".to_owned(), "one".to_owned()));
            assert_eq!(kept(&cache), usize::from(times > 1));
        }
    }

    #[test]
    fn lines_that_share_first_and_last_bytes_are_told_apart() {
        let mut cache = HeaderCache::default();
        for _ in 0..3 {
            for middle in ["aaaa", "bbbb", "cccc"] {
                let value = format!("beginning{middle}the-end!");
                assert_eq!(said(&mut cache, "x-long-name", &value).1, value);
            }
        }
    }

    #[test]
    fn what_changes_every_time_does_not_push_out_what_stays() {
        let mut cache = HeaderCache::default();
        said(&mut cache, "server", "something/1.0");
        said(&mut cache, "server", "something/1.0");
        for number in 0..10_000 {
            said(&mut cache, "etag", &format!("{number:016x}"));
        }
        let server = |slot: &&Slot| slot.kept.as_ref().is_some_and(|kept| kept.name == "server");
        assert_eq!(cache.slots.iter().filter(server).count(), 1);
    }

    #[test]
    fn cookies_and_long_lines_are_not_kept() {
        let mut cache = HeaderCache::default();
        for _ in 0..4 {
            said(&mut cache, "Set-Cookie", "session=1234");
            said(&mut cache, "x-long", &"x".repeat(LINE_BYTES_MAX));
        }
        assert_eq!(kept(&cache), 0);
    }

    #[test]
    fn what_is_no_field_is_refused_kept_or_not() {
        let mut cache = HeaderCache::default();
        for _ in 0..3 {
            assert!(cache.field(b"na me: value", 5).is_none());
            assert!(cache.field(b"a: \0", 1).is_none());
            assert!(cache.field(b"name", 4).is_none());
        }
    }
}

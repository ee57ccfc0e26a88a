//! Header blocks (RFC 7541) followed beside the library: which fields it could not read, and what to tell it instead.
//!
//! The library gives a connection up over one field that is none: it decodes straight into types that take no others,
//! and has lost track of the table by then. RFC 9113 §8.1.1 wants the stream given up and no other. So blocks are
//! followed here first, with a table of lengths in place of texts. When a field is flawed the library gets another
//! block, which has the same entries put in its table, as far as lengths go, and which it will call malformed: the
//! stream's error.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::h1::{TARGET, TOKEN, all, is_token};

use super::huffman;
pub use super::huffman::Corrupt;

/// Bytes of a table as we announce it: the initial value of SETTINGS_HEADER_TABLE_SIZE (RFC 9113 §6.5.2).
const TABLE_BYTES_MAX: usize = 4096;
/// Bytes that an entry costs beside its texts (RFC 7541 §4.1).
const ENTRY_BYTES: usize = 32;
/// Bytes of an integer, as many as the library reads.
const INTEGER_BYTES_MAX: u32 = 5;
/// A field that no message of HTTP/2 may have (RFC 9113 §8.2.2), as a literal: its stream is reset; the table stays.
pub const MALFORMED: &[u8] = b"\x00\x0aconnection\x01x";

/// Names of the static table (RFC 7541 Appendix A).
const STATIC: [&str; 61] = [
    ":authority",
    ":method",
    ":method",
    ":path",
    ":path",
    ":scheme",
    ":scheme",
    ":status",
    ":status",
    ":status",
    ":status",
    ":status",
    ":status",
    ":status",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "accept-ranges",
    "accept",
    "access-control-allow-origin",
    "age",
    "allow",
    "authorization",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-length",
    "content-location",
    "content-range",
    "content-type",
    "cookie",
    "date",
    "etag",
    "expect",
    "expires",
    "from",
    "host",
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-range",
    "if-unmodified-since",
    "last-modified",
    "link",
    "location",
    "max-forwards",
    "proxy-authenticate",
    "proxy-authorization",
    "range",
    "referer",
    "refresh",
    "retry-after",
    "server",
    "set-cookie",
    "strict-transport-security",
    "transfer-encoding",
    "user-agent",
    "vary",
    "via",
    "www-authenticate",
];

/// Contents of a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// A field that the library could not read, or would read as another.
    pub flawed: bool,
    pub pseudo: bool,
    /// A pseudo-header field other than `:status`.
    pub of_request: bool,
    /// There is a `:status`: that of an interim response.
    pub interim: bool,
    /// There is a path that the library takes for none; it is to get the block with another in its place.
    pub edited: bool,
}

impl Seen {
    fn note(&mut self, kind: Kind, interim: bool) {
        self.pseudo |= kind != Kind::Field;
        self.of_request |= !matches!(kind, Kind::Field | Kind::Status);
        self.interim |= interim;
    }
}

/// Kind of value that a field has to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Field,
    Method,
    Path,
    Status,
    /// Another pseudo-header field: text.
    Text,
    /// No name at all.
    Nothing,
}

#[derive(Clone, Debug)]
struct Entry {
    name_bytes: u32,
    value_bytes: u32,
    kind: Kind,
    flawed: bool,
    /// The status of an interim response.
    interim: bool,
    /// A path that the library takes for none.
    path: Option<Rc<[u8]>>,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.name_bytes as usize + self.value_bytes as usize + ENTRY_BYTES
    }
}

/// Change that a block has made to the table, and that its substitute must make as well. Places are in the block.
#[derive(Debug)]
enum Change {
    /// The bytes `from` to `to` of the block.
    Same { from: usize, to: usize },
    /// The bytes `from` to `to`, and then a value of `value_bytes`.
    Value { from: usize, to: usize, value_bytes: u32 },
    /// The bytes `from` to `to`, and then a path of `value_bytes` that stands in for another.
    Path { from: usize, to: usize, value_bytes: u32 },
    /// An entry of such lengths.
    Whole { name_bytes: u32, value_bytes: u32 },
}

/// Follows the header blocks of one direction of a connection.
#[derive(Debug)]
pub struct Follower {
    /// The dynamic table, the newest first.
    entries: VecDeque<Entry>,
    bytes: usize,
    bytes_max: usize,
    /// Changes of the block that came last.
    changes: Vec<Change>,
    /// Paths of that block that the library takes for none: begin, end and decoded length of each.
    edits: Vec<(usize, usize, u32)>,
    path: Option<Rc<[u8]>>,
}

impl Default for Follower {
    fn default() -> Follower {
        Follower {
            entries: VecDeque::new(),
            bytes: 0,
            bytes_max: TABLE_BYTES_MAX,
            changes: Vec::new(),
            edits: Vec::new(),
            path: None,
        }
    }
}

impl Follower {
    /// Takes the next block, which must be whole. `scratch` is for texts.
    pub fn track(&mut self, block: &[u8], scratch: &mut Vec<u8>) -> Result<Seen, Corrupt> {
        let (mut rest, mut seen, mut begun) = (Rest { block, at: 0 }, Seen::default(), false);
        self.changes.clear();
        self.edits.clear();
        self.path = None;
        while let Some(&first) = block.get(rest.at) {
            let from = rest.at;
            if first & 0xe0 == 0x20 {
                self.resize(rest.integer(5)?, begun)?;
                self.changes.push(Change::Same { from, to: rest.at });
                continue;
            }
            begun = true;
            if first & 0x80 != 0 {
                let entry = self.named(rest.integer(7)?)?;
                seen.note(entry.kind, entry.interim);
                seen.flawed |= entry.flawed;
                if entry.path.is_some() {
                    self.path = entry.path;
                }
                continue;
            }
            let kept = first & 0x40 != 0;
            let index = rest.integer(if kept { 6 } else { 4 })?;
            let (name_bytes, kind) = match index {
                0 => name(rest.string(scratch)?),
                _ => self.named(index).map(|entry| (entry.name_bytes, entry.kind))?,
            };
            let value_at = rest.at;
            let value = rest.string(scratch)?;
            let (value_bytes, fine) = (value.len() as u32, is_value(kind, value));
            let interim = kind == Kind::Status && value.first() == Some(&b'1');
            let path = (kind == Kind::Path && is_unfit(value)).then(|| Rc::<[u8]>::from(value));
            if path.is_some() {
                seen.edited = true;
                self.edits.push((value_at, rest.at, value_bytes));
                self.path.clone_from(&path);
            }
            seen.note(kind, interim);
            seen.flawed |= !fine;
            if kept {
                let place = (from, value_at, rest.at);
                self.insert(Entry { name_bytes, value_bytes, kind, flawed: !fine, interim, path }, place)?;
            }
        }
        Ok(seen)
    }

    /// Substitute for the block that came last, which was `block`.
    pub fn substitute(&self, block: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for change in &self.changes {
            match *change {
                Change::Same { from, to } => out.extend_from_slice(&block[from..to]),
                Change::Value { from, to, value_bytes } => {
                    out.extend_from_slice(&block[from..to]);
                    write_filler(value_bytes, &mut out);
                }
                Change::Path { from, to, value_bytes } => {
                    out.extend_from_slice(&block[from..to]);
                    write_stand_in(value_bytes, &mut out);
                }
                Change::Whole { name_bytes, value_bytes } => {
                    out.push(0x40);
                    write_filler(name_bytes, &mut out);
                    write_filler(value_bytes, &mut out);
                }
            }
        }
        out.extend_from_slice(MALFORMED);
        out
    }

    /// Edited copy of the block that came last, which was `block`, for the library: a path that it takes for none is
    /// replaced by one of the same length, so that both tables are the same, which no request may have.
    pub fn edited(&self, block: &[u8]) -> Vec<u8> {
        let (mut out, mut done) = (Vec::with_capacity(block.len()), 0);
        for &(from, to, value_bytes) in &self.edits {
            out.extend_from_slice(&block[done..from]);
            write_stand_in(value_bytes, &mut out);
            done = to;
        }
        out.extend_from_slice(&block[done..]);
        out
    }

    /// The path of the block that came last, if the library takes it for none.
    pub fn take_path(&mut self) -> Option<Rc<[u8]>> {
        self.path.take()
    }

    fn named(&self, index: usize) -> Result<Entry, Corrupt> {
        let index = index.checked_sub(1).ok_or(Corrupt)?;
        if let Some(name) = STATIC.get(index) {
            let kind = match index + 1 {
                1 | 6 | 7 => Kind::Text,
                2 | 3 => Kind::Method,
                4 | 5 => Kind::Path,
                8..=14 => Kind::Status,
                _ => Kind::Field,
            };
            return Ok(Entry {
                name_bytes: name.len() as u32,
                value_bytes: 0,
                kind,
                flawed: false,
                interim: false,
                path: None,
            });
        }
        self.entries.get(index - STATIC.len()).cloned().ok_or(Corrupt)
    }

    /// RFC 7541 §4.2: where a block begins, and not beyond what was announced.
    fn resize(&mut self, bytes_max: usize, begun: bool) -> Result<(), Corrupt> {
        if begun || bytes_max > TABLE_BYTES_MAX {
            return Err(Corrupt);
        }
        self.bytes_max = bytes_max;
        self.evict(0);
        Ok(())
    }

    /// `place`: where the literal begins, its value, and what follows it.
    fn insert(&mut self, entry: Entry, (from, value, to): (usize, usize, usize)) -> Result<(), Corrupt> {
        let Entry { name_bytes, value_bytes, .. } = entry;
        let change = match &entry {
            Entry { flawed: false, path: Some(_), .. } => Change::Path { from, to: value, value_bytes },
            Entry { flawed: false, .. } => Change::Same { from, to },
            // No filler would do for these.
            Entry { kind: Kind::Nothing, .. } | Entry { kind: Kind::Status | Kind::Method, .. } => {
                // There is no field without a name: one of the same length has a byte of the value for it.
                let missing = u32::from(name_bytes == 0);
                let value_bytes = value_bytes.checked_sub(missing).ok_or(Corrupt)?;
                Change::Whole { name_bytes: name_bytes + missing, value_bytes }
            }
            _ => Change::Value { from, to: value, value_bytes },
        };
        // The library knows it by another name than the client then.
        let kind = if matches!(change, Change::Whole { .. }) { Kind::Nothing } else { entry.kind };
        self.changes.push(change);
        self.evict(entry.bytes());
        if entry.bytes() <= self.bytes_max {
            self.bytes += entry.bytes();
            self.entries.push_front(Entry { kind, ..entry });
        }
        Ok(())
    }

    /// Makes room for so many bytes, as far as there are entries (RFC 7541 §4.4).
    fn evict(&mut self, wanted: usize) {
        while self.bytes + wanted > self.bytes_max
            && let Some(entry) = self.entries.pop_back()
        {
            self.bytes -= entry.bytes();
        }
    }
}

/// Unread rest of a block.
struct Rest<'a> {
    block: &'a [u8],
    at: usize,
}

impl<'a> Rest<'a> {
    fn byte(&mut self) -> Result<u8, Corrupt> {
        let byte = self.block.get(self.at).copied().ok_or(Corrupt)?;
        self.at += 1;
        Ok(byte)
    }

    /// RFC 7541 §5.1.
    fn integer(&mut self, prefix_bits: u32) -> Result<usize, Corrupt> {
        let mask = (1_usize << prefix_bits) - 1;
        let mut value = usize::from(self.byte()?) & mask;
        if value < mask {
            return Ok(value);
        }
        for index in 0..INTEGER_BYTES_MAX - 1 {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Corrupt)
    }

    /// RFC 7541 §5.2.
    fn string<'b>(&mut self, scratch: &'b mut Vec<u8>) -> Result<&'b [u8], Corrupt>
    where
        'a: 'b,
    {
        let coded = self.block.get(self.at).is_some_and(|first| first & 0x80 != 0);
        let length = self.integer(7)?;
        let text = self.block.get(self.at..).and_then(|rest| rest.get(..length)).ok_or(Corrupt)?;
        self.at += length;
        if !coded {
            return Ok(text);
        }
        huffman::decode(text, scratch)?;
        Ok(scratch)
    }
}

/// Length of the name, and the kind of value that the field has to have.
fn name(name: &[u8]) -> (u32, Kind) {
    let kind = match name {
        b":method" => Kind::Method,
        b":path" => Kind::Path,
        b":status" => Kind::Status,
        b":authority" | b":scheme" | b":protocol" => Kind::Text,
        // RFC 9113 §8.2.1.
        _ if is_token(name) && !name.iter().any(u8::is_ascii_uppercase) => Kind::Field,
        _ => Kind::Nothing,
    };
    (name.len() as u32, kind)
}

/// Whether the library could read it, and would not leave out a part.
fn is_value(kind: Kind, value: &[u8]) -> bool {
    match kind {
        Kind::Field => value.iter().all(|byte| matches!(byte, b'\t' | b' '..=b'~' | 0x80..)),
        Kind::Method => !value.is_empty() && all(value, TOKEN),
        Kind::Status => matches!(value, [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9']),
        // A fragment is no part of a path (RFC 9113 §8.3.1), and the library drops it.
        Kind::Path => !value.contains(&b'#') && std::str::from_utf8(value).is_ok(),
        Kind::Text => std::str::from_utf8(value).is_ok(),
        Kind::Nothing => false,
    }
}

/// Whether the library takes this path for none (its type has no such bytes) although the path goes on all the same,
/// escaped: RFC 3986 does not have those bytes, and clients send them.
fn is_unfit(path: &[u8]) -> bool {
    path.first() == Some(&b'/')
        && all(path, TARGET)
        && path.iter().any(|byte| matches!(byte, b'"' | b'<' | b'>' | b'`'))
}

/// A path of so many bytes whose request is refused: it has escapes that are none.
fn write_stand_in(count: u32, out: &mut Vec<u8>) {
    let at = out.len();
    write_filler(count, out);
    let text = out.len() - count as usize;
    debug_assert!(text > at);
    out[text..].fill(b'%');
    out[text] = b'/';
}

/// A string of so many bytes that may be a name and a value.
fn write_filler(count: u32, out: &mut Vec<u8>) {
    if count < 127 {
        out.push(count as u8);
    } else {
        out.push(127);
        let mut rest = count - 127;
        while rest >= 128 {
            out.push(rest as u8 | 128);
            rest >>= 7;
        }
        out.push(rest as u8);
    }
    out.resize(out.len() + count as usize, b'x');
}

impl Follower {
    /// Sizes of the table's entries in bytes, the newest first: for tests of those who use this.
    #[doc(hidden)]
    pub fn lengths(&self) -> Vec<usize> {
        self.entries.iter().map(Entry::bytes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_static_table_are_of_the_kind_that_they_say() {
        for (index, text) in STATIC.iter().enumerate() {
            let entry = Follower::default().named(index + 1).unwrap();
            assert_eq!((entry.name_bytes, entry.kind), name(text.as_bytes()), "{text}");
        }
    }
}

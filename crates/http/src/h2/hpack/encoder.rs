//! Header blocks, written.
//!
//! A field that is in a table is a byte or two. One that is not goes into the dynamic table only if it has come before
//! on this core (`Recurring`): dates, lengths and tags that are never seen again would push out what is. The Huffman
//! code is used for what goes into the table, since that is written once and saves its bytes for the connection's life;
//! for the rest copying is cheaper than coding. Secrets are in no table, here or further on (RFC 7541 §7.1.3).

use super::table::{Known, Table};
use super::{FIELD_BYTES, integer, statics};
use crate::h1::{Name, Pseudo};
use crate::h2::fields::FieldWriter;
use crate::h2::huffman;

/// The dynamic table at most, whatever the peer would hold: an idle connection owns what is in it.
const TABLE_BYTES_MAX: usize = 4096;
/// A field larger than this part of the table does not go into it: it would push out the others.
const SHARE_MIN: usize = 4;
/// Slots for hashes of fields that have come before: a power of two.
const SLOTS: usize = 512;
/// Indexes of the static table that literals refer to.
const AUTHORIZATION: usize = 23;
const CONTENT_LENGTH: usize = 28;
const CONTENT_RANGE: usize = 30;
const COOKIE: usize = 32;
const ETAG: usize = 34;
const LAST_MODIFIED: usize = 44;
const PROXY_AUTHORIZATION: usize = 49;
const SET_COOKIE: usize = 55;
const PATH: usize = 4;
const FIRST_DYNAMIC: usize = statics::COUNT + 1;

/// Fields that have come before on a core, as far as their hashes tell. A slot has the hash of the last field of its
/// own that came.
#[derive(Debug)]
pub struct Recurring {
    slots: Box<[u32; SLOTS]>,
}

impl Default for Recurring {
    fn default() -> Recurring {
        Recurring { slots: Box::new([0; SLOTS]) }
    }
}

impl Recurring {
    /// Whether the field of this hash is the last that came in its slot; it is from now on.
    fn has_come(&mut self, hash: u32) -> bool {
        let slot = &mut self.slots[hash as usize % SLOTS];
        std::mem::replace(slot, hash) == hash
    }
}

/// The writing side of one direction.
#[derive(Debug)]
pub struct Encoder {
    table: Table,
    /// The smallest size that the peer has wanted since the last block, and the one that it wants now.
    resize: Option<(usize, usize)>,
}

impl Default for Encoder {
    fn default() -> Encoder {
        Encoder { table: Table::new(TABLE_BYTES_MAX), resize: None }
    }
}

impl Encoder {
    pub fn new() -> Encoder {
        Encoder::default()
    }

    /// Memory that the table owns beside this, in bytes.
    pub fn owned_bytes(&self) -> usize {
        self.table.owned_bytes()
    }

    /// Size of the dynamic table, in bytes.
    pub fn table_bytes(&self) -> usize {
        self.table.bytes()
    }

    /// The peer's SETTINGS_HEADER_TABLE_SIZE.
    pub fn set_table_bytes_max(&mut self, bytes: u32) {
        let bytes = (bytes as usize).min(TABLE_BYTES_MAX);
        let least = self.resize.map_or(bytes, |(least, _)| least.min(bytes));
        let is_same = bytes == self.table.bytes_max() && least == bytes;
        self.resize = (!is_same).then_some((least, bytes));
    }

    /// Begins a block behind what `out` has.
    pub fn begin<'a>(&'a mut self, recurring: &'a mut Recurring, out: &'a mut Vec<u8>) -> BlockWriter<'a> {
        if let Some((least, bytes)) = self.resize.take() {
            // RFC 7541 §4.2: the smallest of them, and then the last.
            for size in [Some(least), (bytes != least).then_some(bytes)].into_iter().flatten() {
                self.table.set_bytes_max(size);
                integer::write(size, 5, 0x20, out);
            }
        }
        BlockWriter { table: &mut self.table, recurring, out }
    }
}

/// A block that is being written.
pub struct BlockWriter<'a> {
    table: &'a mut Table,
    recurring: &'a mut Recurring,
    out: &'a mut Vec<u8>,
}

/// How a literal is written (RFC 7541 §6.2).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Literal {
    Indexed,
    Plain,
    Never,
}

impl BlockWriter<'_> {
    fn index(&mut self, index: usize) {
        integer::write(index, 7, 0x80, self.out);
    }

    /// Writes a field that no table has. Its name is that of `index`, if that is none of 0.
    fn literal(&mut self, how: Literal, index: usize, name: &[u8], value: &[u8], hash: u32) {
        let (bits, first) = match how {
            Literal::Indexed => (6, 0x40),
            Literal::Plain => (4, 0),
            Literal::Never => (4, 0x10),
        };
        integer::write(index, bits, first, self.out);
        let is_coded = how == Literal::Indexed;
        if index == 0 {
            let start = self.out.len();
            write_string(name, false, self.out);
            // The length is no letter: it is below 0x41, or the name goes on behind it all the same.
            let text = self.out.len() - name.len();
            debug_assert!(text > start);
            self.out[text..].make_ascii_lowercase();
        }
        write_string(value, is_coded, self.out);
        if how == Literal::Indexed {
            self.insert(name, value, hash);
        }
    }

    fn insert(&mut self, name: &[u8], value: &[u8], hash: u32) {
        let known = Known { kind: Name::Other, odd: false, name_flaw: None, flaw: None, hash };
        if name.iter().any(u8::is_ascii_uppercase) {
            self.table.insert(&name.to_ascii_lowercase(), value, known);
        } else {
            self.table.insert(name, value, known);
        }
    }

    /// Writes a field that is no secret, if the dynamic table has it. No secret is ever put there.
    fn write_known(&mut self, hash: u32, name: &[u8], value: &[u8]) -> bool {
        let is_it = |known: &[u8], other: &[u8]| other == value && statics::is_name(known, name);
        let place = self.table.find(hash, is_it);
        place.into_iter().for_each(|place| self.index(FIRST_DYNAMIC + place));
        place.is_some()
    }

    /// Writes a field that the dynamic table does not have, and whose name is at `index` of the static table, or 0.
    fn write_new(&mut self, index: usize, name: &[u8], value: &[u8], hash: u32) {
        let size = name.len() + value.len() + FIELD_BYTES;
        let how = match index {
            // Values that belong to one resource, of which there are many.
            CONTENT_LENGTH | CONTENT_RANGE | ETAG | LAST_MODIFIED => Literal::Plain,
            // A query may have a secret in it, of which nobody says so.
            PATH if value.contains(&b'?') => Literal::Plain,
            _ if size * SHARE_MIN > self.table.bytes_max() => Literal::Plain,
            _ if self.recurring.has_come(hash) => Literal::Indexed,
            _ => Literal::Plain,
        };
        self.literal(how, index, name, value, hash);
    }
}

impl FieldWriter for BlockWriter<'_> {
    fn pseudo(&mut self, name: Pseudo, value: [&[u8]; 2]) {
        let joined;
        let value = match value {
            [value, []] | [[], value] => value,
            parts => {
                joined = parts.concat();
                &joined
            }
        };
        let text = name.as_str().as_bytes();
        let (same, index) = match (name, value) {
            (Pseudo::Method, b"GET") => (true, 2),
            (Pseudo::Method, b"POST") => (true, 3),
            (Pseudo::Path, b"/") => (true, 4),
            (Pseudo::Path, b"/index.html") => (true, 5),
            (Pseudo::Scheme, b"http") => (true, 6),
            (Pseudo::Scheme, b"https") => (true, 7),
            (Pseudo::Status, b"200") => (true, 8),
            (Pseudo::Status, b"204") => (true, 9),
            (Pseudo::Status, b"206") => (true, 10),
            (Pseudo::Status, b"304") => (true, 11),
            (Pseudo::Status, b"400") => (true, 12),
            (Pseudo::Status, b"404") => (true, 13),
            (Pseudo::Status, b"500") => (true, 14),
            (Pseudo::Authority, _) => (false, 1),
            (Pseudo::Method, _) => (false, 2),
            (Pseudo::Path, _) => (false, 4),
            (Pseudo::Scheme, _) => (false, 6),
            (Pseudo::Status, _) => (false, 8),
            (Pseudo::Protocol, _) => (false, 0),
        };
        match same {
            true => self.index(index),
            false => {
                let hash = hash(text, value);
                if !self.write_known(hash, text, value) {
                    self.write_new(index, text, value, hash);
                }
            }
        }
    }

    fn field(&mut self, name: &[u8], value: &[u8], secret: bool) {
        let hash = hash(name, value);
        // The name is looked for last: what is in the dynamic table needs no other.
        if !secret && self.write_known(hash, name, value) {
            return;
        }
        let index = statics::index_of(name).unwrap_or(0);
        match secret || matches!(index, AUTHORIZATION | COOKIE | PROXY_AUTHORIZATION | SET_COOKIE) {
            true => self.literal(Literal::Never, index, name, value, 0),
            false => self.write_new(index, name, value, hash),
        }
    }
}

fn write_string(text: &[u8], may_code: bool, out: &mut Vec<u8>) {
    if may_code {
        let length = huffman::encoded_len(text);
        if length < text.len() {
            integer::write(length, 7, 0x80, out);
            return huffman::encode_onto(text, out);
        }
    }
    integer::write(text.len(), 7, 0, out);
    out.extend_from_slice(text);
}

/// Hash of a field, by a few of its bytes: fields that share it are compared before anything comes of it.
fn hash(name: &[u8], value: &[u8]) -> u32 {
    let word = |bytes: &[u8]| match (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
        (Some(first), Some(last)) => {
            u64::from_le_bytes(*first) ^ u64::from_le_bytes(*last).wrapping_mul(0xff51_afd7_ed55_8ccd)
        }
        _ => bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    };
    // Letters of names count the same in any case.
    let name_word = word(name) | 0x2020_2020_2020_2020;
    let lengths = (name.len() as u64) << 32 | value.len() as u64;
    let mixed = (name_word ^ lengths).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word(value);
    (mixed.wrapping_mul(0xc4ce_b9fe_1a85_ec53) >> 32) as u32 | 1
}

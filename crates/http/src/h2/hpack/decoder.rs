//! Header blocks, read: each field becomes a line of the message's text.

use super::table::{Known, Table};
use super::{Corrupt, FIELD_BYTES, integer, statics};
use crate::fault::Fault;
use crate::h1::{Field, Name, Pseudo, Span, check_name, check_value};
use crate::h2::huffman;

/// Size updates at a block's begin: two are as many as ever make sense (RFC 7541 §4.2).
const UPDATES_MAX: u32 = 2;
/// Fields of the static table come before those of the dynamic one.
const FIRST_DYNAMIC: usize = statics::COUNT + 1;

/// Limits of one header list.
#[derive(Clone, Copy, Debug)]
pub struct ListLimits {
    /// Bytes as RFC 9113 §10.5.1 counts them.
    pub list_bytes: usize,
    pub fields: usize,
}

/// Summary of a block that was decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Size of the list, as RFC 9113 §10.5.1 counts it.
    pub list_bytes: usize,
    pub fields: usize,
    /// The list is longer than it may be: what is beyond was not written, nor handed on.
    pub is_cut: bool,
    /// The first flaw that makes the message malformed (RFC 9113 §8.2.1).
    pub flaw: Option<Fault>,
}

/// The reading side of one direction.
#[derive(Debug)]
pub struct Decoder {
    table: Table,
    /// The table's size at most, as we have announced it.
    announced: usize,
}

/// Source of a line's name.
struct NameFrom {
    known: Known,
    /// Place in the dynamic table, where it is from there.
    place: Option<usize>,
}

/// Knowledge of a field whose name is fine, and of whose value nobody knows anything.
fn known(kind: Name) -> Known {
    Known { kind, odd: false, name_flaw: None, flaw: None, hash: 0 }
}

impl Decoder {
    /// The reading side whose table may be as large as this, which the peer is told.
    pub fn new(table_bytes_max: usize) -> Decoder {
        Decoder { table: Table::new(table_bytes_max), announced: table_bytes_max }
    }

    /// Memory that the tables own beside this, in bytes.
    pub fn owned_bytes(&self) -> usize {
        self.table.owned_bytes()
    }

    /// Size of the dynamic table, in bytes.
    pub fn table_bytes(&self) -> usize {
        self.table.bytes()
    }

    /// Decodes a whole block. Each field is written behind `text` as a line `name: value CRLF` and then handed to
    /// `sink`, with the text; those that are flawed are not handed on.
    ///
    /// # Errors
    /// The block is no HPACK: the connection's error (RFC 9113 §4.3).
    pub fn decode(
        &mut self,
        block: &[u8],
        text: &mut Vec<u8>,
        limits: &ListLimits,
        sink: &mut impl FnMut(&[u8], Field),
    ) -> Result<Decoded, Corrupt> {
        let (mut at, mut decoded) = (0, Decoded::default());
        self.read_updates(block, &mut at)?;
        while let Some(&first) = block.get(at) {
            if first & 0xe0 == 0x20 {
                // A size update behind a field.
                return Err(Corrupt);
            }
            let start = text.len();
            let (field, flaw) = match first & 0x80 {
                0 => self.literal(block, &mut at, first, text)?,
                _ => {
                    let index = integer::read(block, &mut at, 7)?;
                    self.indexed(index, text, limits.list_bytes - limits.list_bytes.min(decoded.list_bytes))?
                }
            };
            decoded.fields += 1;
            decoded.list_bytes += field.name.len() + field.value.len() + FIELD_BYTES;
            decoded.flaw = decoded.flaw.or(flaw);
            decoded.is_cut |= decoded.list_bytes > limits.list_bytes || decoded.fields > limits.fields;
            match flaw {
                _ if decoded.is_cut => text.truncate(start),
                None => sink(text, field),
                Some(_) => {}
            }
        }
        Ok(decoded)
    }

    fn read_updates(&mut self, block: &[u8], at: &mut usize) -> Result<(), Corrupt> {
        let mut updates = 0;
        while block.get(*at).is_some_and(|first| first & 0xe0 == 0x20) {
            let bytes_max = integer::read(block, at, 5)?;
            updates += 1;
            if bytes_max > self.announced || updates > UPDATES_MAX {
                return Err(Corrupt);
            }
            self.table.set_bytes_max(bytes_max);
        }
        Ok(())
    }

    /// A field of a table. One that is longer than `room` is not written: a byte is not to cost that much again and
    /// again.
    fn indexed(&self, index: usize, text: &mut Vec<u8>, room: usize) -> Result<(Field, Option<Fault>), Corrupt> {
        let (name, value, known) = self.named(index)?;
        if name.len() + value.len() + FIELD_BYTES > room {
            let length = (name.len() + value.len()) as u32;
            let value = Span { start: 0, end: length };
            return Ok((Field { value, ..Field::default() }, known.flaw));
        }
        let start = text.len();
        text.reserve(name.len() + value.len() + 4);
        text.extend_from_slice(name);
        text.extend_from_slice(b": ");
        text.extend_from_slice(value);
        let field = line(text, start, start + name.len(), &known, false);
        Ok((field, known.flaw))
    }

    fn named(&self, index: usize) -> Result<(&[u8], &[u8], Known), Corrupt> {
        match index.checked_sub(FIRST_DYNAMIC) {
            Some(place) => self.table.field(place).ok_or(Corrupt),
            None => {
                let field = statics::FIELDS.get(index.wrapping_sub(1)).ok_or(Corrupt)?;
                Ok((field.name.as_bytes(), field.value.as_bytes(), known(field.kind)))
            }
        }
    }

    fn literal(
        &mut self,
        block: &[u8],
        at: &mut usize,
        first: u8,
        text: &mut Vec<u8>,
    ) -> Result<(Field, Option<Fault>), Corrupt> {
        let (is_kept, is_secret) = (first & 0x40 != 0, first & 0x50 == 0x10);
        let index = integer::read(block, at, if is_kept { 6 } else { 4 })?;
        let start = text.len();
        let from = self.read_name(block, at, index, text)?;
        let name_end = text.len();
        text.extend_from_slice(b": ");
        read_string(block, at, text)?;
        let value = &text[name_end + 2..];
        let flaw = from.known.name_flaw.or_else(|| check_value(value));
        let known = Known { flaw, ..from.known };
        if is_kept {
            match from.place {
                Some(place) => self.table.insert_named(place, value, known),
                None => self.table.insert(&text[start..name_end], value, known),
            }
        }
        Ok((line(text, start, name_end, &known, is_secret), flaw))
    }

    /// Writes a literal's name behind the text.
    fn read_name(&self, block: &[u8], at: &mut usize, index: usize, text: &mut Vec<u8>) -> Result<NameFrom, Corrupt> {
        if index > 0 {
            let (name, _, known) = self.named(index)?;
            text.extend_from_slice(name);
            return Ok(NameFrom { known: Known { flaw: None, ..known }, place: index.checked_sub(FIRST_DYNAMIC) });
        }
        let start = text.len();
        read_string(block, at, text)?;
        let name = &text[start..];
        let known = match (check_name(name), Pseudo::of(name)) {
            (_, Some(pseudo)) => known(Name::Pseudo(pseudo)),
            (Ok(odd), None) => Known { odd, ..known(Name::of(name)) },
            (Err(fault), None) => Known { name_flaw: Some(fault), ..known(Name::Other) },
        };
        Ok(NameFrom { known, place: None })
    }
}

/// Ends the line that begins at `start`, and says where its parts lie.
fn line(text: &mut Vec<u8>, start: usize, name_end: usize, known: &Known, secret: bool) -> Field {
    let value_end = text.len();
    text.extend_from_slice(b"\r\n");
    let span = |start: usize, end: usize| Span { start: start as u32, end: end as u32 };
    let (name, value) = (span(start, name_end), span(name_end + 2, value_end));
    Field::of_line(name, value, known.kind, known.odd, secret)
}

/// Writes a string behind the text (RFC 7541 §5.2).
#[inline]
fn read_string(block: &[u8], at: &mut usize, text: &mut Vec<u8>) -> Result<(), Corrupt> {
    let is_coded = block.get(*at).is_some_and(|first| first & 0x80 != 0);
    let length = integer::read(block, at, 7)?;
    let bytes = block.get(*at..).and_then(|rest| rest.get(..length)).ok_or(Corrupt)?;
    *at += length;
    if is_coded {
        return huffman::decode_onto(bytes, text);
    }
    text.extend_from_slice(bytes);
    Ok(())
}

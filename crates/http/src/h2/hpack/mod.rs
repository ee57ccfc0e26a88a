//! HPACK (RFC 7541): header blocks read into lines, and fields written into blocks.
//!
//! Both sides keep a table of fields that have come before (`table.rs`). A reader checks a field once, when it is put
//! into the table, and copies it from there into the message's text (`decoder.rs`). A writer puts only those into the
//! table that come again and again on its core, and no secret (`encoder.rs`).

mod decoder;
mod encoder;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod integer;
mod statics;
mod table;
#[cfg(test)]
mod tests;

pub use super::huffman::Corrupt;
pub use decoder::{Decoded, Decoder, ListLimits};
pub use encoder::{BlockWriter, Encoder, Recurring};

/// Bytes that a field costs beside its name and its value, in tables and in lists (RFC 7541 §4.1, RFC 9113 §10.5.1).
pub const FIELD_BYTES: usize = 32;

//! HTTP/2's header blocks (HPACK, RFC 7541), as far as somebody reads them beside another decoder.

mod fields;
pub mod follower;
mod huffman;

pub use fields::{FieldWriter, Pseudo};

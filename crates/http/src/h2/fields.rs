//! Writers of fields: what takes the fields of a message to be sent.

use crate::h1::Pseudo;

/// A writer that takes the fields of one message in the order in which its peer gets them.
pub trait FieldWriter {
    /// A value may come in two parts, which are to be read as one.
    fn pseudo(&mut self, name: Pseudo, value: [&[u8]; 2]);

    /// `name` may have capital letters, as HTTP/1 writes it. `secret`: in no table of compression, here or further on
    /// (RFC 7541 §7.1.3).
    fn field(&mut self, name: &[u8], value: &[u8], secret: bool);
}

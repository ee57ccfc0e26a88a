//! Writers of fields: what takes the fields of a message to be sent.

use crate::h1::{Field, Name, Pseudo};

/// A writer that takes the fields of one message in the order in which its peer gets them.
pub trait FieldWriter {
    /// A value may come in two parts, which are to be read as one.
    fn pseudo(&mut self, name: Pseudo, value: [&[u8]; 2]);

    /// `name` may have capital letters, as HTTP/1 writes it. `secret`: in no table of compression, here or further on
    /// (RFC 7541 §7.1.3).
    fn field(&mut self, name: &[u8], value: &[u8], secret: bool);

    /// Takes fields that are lines, `name: value CRLF`. Those of secrets have no blank behind their colon.
    fn lines(&mut self, lines: &[u8]) {
        for line in lines.split(|byte| *byte == b'\n') {
            if let Some(colon) = memchr::memchr(b':', line) {
                let value = &line[colon + 1..];
                self.field(&line[..colon], value.trim_ascii(), !value.starts_with(b" "));
            }
        }
    }
}

/// Writes a field that no table of compression may have as a line that says so, and that means the same to HTTP/1.
pub(super) fn write_secret_line(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.push(b':');
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Whether a field is one of HTTP/1's connections, which makes a message of HTTP/2 malformed (RFC 9113 §8.2.2).
#[inline]
pub(super) fn is_connection_specific(text: &[u8], field: &Field) -> bool {
    match field.kind {
        Name::Connection | Name::KeepAlive | Name::ProxyConnection | Name::TransferEncoding | Name::Upgrade => true,
        Name::Te => field.value.bytes(text) != b"trailers",
        _ => false,
    }
}

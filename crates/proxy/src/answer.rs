//! Responses of the engine itself.

use propylon_http::h1::Pseudo;
use propylon_http::h2::FieldWriter;

/// An answer that is given here.
#[derive(Clone, Copy)]
pub struct Answer<'a> {
    pub status: u16,
    pub fields: &'a [(&'a str, &'a str)],
    /// Further fields as whole lines.
    pub lines: &'a [u8],
    /// Type of the body; empty where none is said.
    pub content_type: &'a str,
    pub body: &'a [u8],
    /// The connection ends with it.
    pub close: bool,
    /// The body is that of the route's `respond`, or the part of it that is not `whole`.
    pub is_fixed: bool,
    /// Bytes of the whole of which the body is a part; 0: it is no part.
    pub whole: usize,
    /// More than the status says, where it is an error.
    pub detail: &'a str,
    /// The answer ends a call of gRPC: its type is said without a body as well, and no length.
    pub is_call: bool,
}

impl Answer<'_> {
    pub fn plain(status: u16) -> Answer<'static> {
        Answer {
            status,
            fields: &[],
            lines: b"",
            content_type: "text/plain; charset=utf-8",
            body: b"",
            close: false,
            is_fixed: false,
            whole: 0,
            detail: "",
            is_call: false,
        }
    }
}

/// Writes the fields of an answer for a client of HTTP/2. Returns about how many bytes they come to before they are
/// compressed.
pub fn write_fields(answer: &Answer<'_>, date: &[u8], out: &mut impl FieldWriter) -> usize {
    let mut written = 16;
    let mut digits = itoa::Buffer::new();
    out.pseudo(Pseudo::Status, [digits.format(answer.status).as_bytes(), b""]);
    let mut field = |name: &str, value: &[u8]| {
        written += name.len() + value.len() + 4;
        out.field(name.as_bytes(), value, false);
    };
    for (name, value) in answer.fields {
        // Made by us, but perhaps of what a client sent.
        if !value.bytes().any(|byte| byte.is_ascii_control()) {
            field(name, value.as_bytes());
        }
    }
    let may_have_body = !matches!(answer.status, 204 | 304);
    if may_have_body && (answer.is_call || !answer.body.is_empty()) && !answer.content_type.is_empty() {
        field("content-type", answer.content_type.as_bytes());
    }
    if may_have_body && !answer.is_call {
        field("content-length", itoa::Buffer::new().format(answer.body.len()).as_bytes());
    }
    field("date", date);
    out.lines(answer.lines);
    written + answer.lines.len()
}

//! HTTP/1.1 as a strict intermediary reads and writes it: bytes in, decisions out, no socket and no clock.
//!
//! The promise of this module is that no two parsers can read differently what it lets through. So it accepts one
//! spelling of framing (RFC 9112 with every leniency left out), keeps none of the sender's framing, and writes its
//! own: the line endings, the lengths and the chunk lines a server or a client sees were all made here.
//!
//! Read `request.rs` first, then `rewrite.rs`; `response.rs` and `answer.rs` are the same way back. `chunk.rs` is the
//! body in between. Heads are plain owned structs of offsets into the caller's buffer, so they can be kept while the
//! buffer waits for a socket.
//!
//! # What is decided where RFC 9110 and RFC 9112 leave a choice
//!
//! | matter | decision |
//! |---|---|
//! | empty line before a request | one CRLF is skipped (§2.2 of RFC 9112), a second is refused; none before a response |
//! | bare LF, bare CR, folded line, space before the colon | refused in requests (400) and in responses (502) |
//! | HTTP/1.2 to HTTP/1.9 | read as HTTP/1.1 (RFC 9110 §2.5); other major versions are 505 |
//! | `CONNECT` | 501: a reverse proxy opens no tunnels |
//! | `TRACE` | 405: it would show a client what the hops before the server added |
//! | method longer than 32 bytes | 501; other unknown methods are forwarded |
//! | `Content-Length` twice, also when equal, or as a list | refused |
//! | `Transfer-Encoding` other than the single word `chunked` | 501 where it is a known shape (`gzip, chunked`), else 400 |
//! | `Transfer-Encoding` in HTTP/1.0 | refused |
//! | `Connection` naming Host, Content-Length or Transfer-Encoding | refused |
//! | `Connection` naming another field we know (Cookie, Authorization, X-Forwarded-For, ...) | not heeded: a client must not decide that the server goes without it |
//! | `Connection` naming any other field | that field is dropped |
//! | names that a CGI-like server would fold into one we know (`Content_Length`, `X.Forwarded.For`) | dropped |
//! | `Proxy` in requests | dropped: CGI servers turn it into `HTTP_PROXY` |
//! | `Proxy-Authorization`, `Proxy-Authenticate`, `Proxy-Authentication-Info` | dropped: this is no proxy that a client chose |
//! | all of `X-Forwarded-*` from clients that are not trusted | dropped, as are `X-Forwarded-Port` and its like |
//! | `Client-Cert`, `Client-Cert-Chain` in requests | dropped: what a server reads there was verified here |
//! | `X-Real-IP`, `True-Client-IP`, `X-Original-URL` and their like from clients that are not trusted | dropped |
//! | `Upgrade` | only GET, HTTP/1.1, no body, named in Connection; never h2c, HTTP/x or TLS/x |
//! | `Expect` other than `100-continue` | 417; dropped in HTTP/1.0 and where there is no body |
//! | path | brought into its canonical form, in which it is matched and forwarded (`path.rs`); refused where servers read it differently |
//! | absolute-form | authority must equal Host; forwarded in origin-form |
//! | host names | letters, digits, `-`, `_`, `.`, `~`; no empty label; IPv6 in brackets; port in digits, at most 65535 |

use crate::fault::Fault;
mod answer;
pub(crate) mod answer_build;
pub(crate) mod build;
mod chunk;
mod fields;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod grammar;
mod host;
pub mod path;
mod request;
mod response;
mod restate;
mod rewrite;
#[cfg(test)]
mod tests;

pub use answer::{
    AnswerContext, CONTINUE, OwnResponse, drop_via, reason_phrase, write_informational, write_own_response,
    write_response,
};
pub(crate) use chunk::may_trail;
pub use chunk::{
    ChunkHeader, Decoder, Event, LAST_CHUNK, is_chunked_longer, whole_chunked, write_chunk_header, write_last_chunk,
};
pub use fields::{Field, Fields, Name, NameSet, Pseudo, Span, cookies, is_same_or_lookalike, write_line};
pub(crate) use fields::{check_name, check_value};

pub use grammar::{TARGET, TOKEN, all, elements, first_control, is_token};
pub use host::HOST_BYTES_MAX;
pub use request::{Asked, Method, RequestBody, RequestHead, Scheme, Version, parse_request};
pub use response::{Framing, ResponseBody, ResponseHead, parse_response};
pub use rewrite::{ClientAddress, ForwardContext, add_lines, is_believed, lower_version, write_request};

/// Bounds on one head. A head that needs more is refused with 414 or 431 (502 from a server).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From the first byte to the end of the blank line; the buffer must be able to hold as many.
    pub head_bytes: usize,
    /// Header fields.
    pub headers: usize,
}

/// Result of looking at the bytes received so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The head is whole; it takes up `length` bytes of the buffer.
    Complete,
    /// Nothing wrong yet. Call again with the same head and a buffer that begins with the same bytes.
    Partial,
}

/// The peer broke a rule. A request is answered with `status` and its connection closed: where the next message
/// begins is unknown. A response is answered with 502 in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    pub status: u16,
    pub fault: Fault,
}

impl Reject {
    pub const fn of(fault: Fault) -> Reject {
        Reject { status: fault.status(), fault }
    }

    /// Whether the head was read whole, and is what it says: what is asked for is not done here.
    pub fn is_of_whole_head(&self) -> bool {
        self.fault == Fault::UnknownExpectation
    }
}

impl std::fmt::Display for Reject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.status, self.fault)
    }
}

impl std::error::Error for Reject {}

//! Bytes written to a server, and heads and bodies read from it, whatever its version of HTTP.

use propylon_http::h1;
use propylon_net::buffer::Buffer;

use crate::exchange::transfer::stop::Stop;
use crate::fault::Attempt;

/// A server's head may be this long, and have this many fields.
pub const RESPONSE_LIMITS: h1::Limits = h1::Limits { head_bytes: 32 * 1024, headers: 200 };

/// Part of a response's body.
#[derive(Default)]
pub struct Part {
    pub data: Option<Buffer>,
    /// The body is over: lines of its trailers, if it has any.
    pub end: Option<Vec<u8>>,
}

/// Bytes that one call has written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Written {
    /// Head, framing and body.
    pub all: usize,
    /// The body alone.
    pub body: usize,
}

pub fn bad_head(reject: &h1::Reject) -> Stop {
    Stop::Server(Attempt::of_bad_head(reject))
}

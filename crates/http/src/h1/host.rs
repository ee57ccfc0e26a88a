//! The authority of a request, `name[:port]`, as Host or an absolute target gives it (RFC 9110 §7.2, RFC 3986 §3.2).

use std::io::Write;
use std::net::Ipv6Addr;

use super::grammar::{HOST, class, word_prefix};
use super::{Reject, Span};
use crate::fault::Fault;

/// A name as DNS can carry it, with a trailing dot.
pub const HOST_BYTES_MAX: usize = 254;

/// A checked authority.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Authority {
    /// As received, with its port.
    pub text: Span,
    /// Without the port; IPv6 keeps its brackets.
    pub name: Span,
    pub port: Option<u16>,
}

impl Authority {
    /// Reads the authority at `span`; an empty one is the caller's to judge.
    pub fn read(buf: &[u8], span: Span) -> Result<Authority, Reject> {
        let bytes = span.bytes(buf);
        let is_ipv6 = bytes.first() == Some(&b'[');
        let (name_length, is_name) = match is_ipv6 {
            true => (bytes.iter().position(|&b| b == b']').map_or(bytes.len(), |i| i + 1), false),
            false => name_prefix(bytes),
        };
        let (name, rest) = bytes.split_at(name_length);
        let port = match rest {
            b"" => None,
            [b':', digits @ ..] => Some(port(digits).ok_or(BAD)?),
            _ => return Err(BAD),
        };
        let good = match is_ipv6 {
            true => ipv6(name).is_some(),
            false => is_name || bytes.is_empty(),
        };
        let start = span.start as usize;
        let name = Span::new(start, start + name_length);
        good.then_some(Authority { text: span, name, port }).ok_or(BAD)
    }

    /// Whether both mean the same place when `default_port` stands for none.
    pub fn is_same(&self, other: &Authority, default_port: u16, buf: &[u8]) -> bool {
        self.name.bytes(buf).eq_ignore_ascii_case(other.name.bytes(buf))
            && self.port.unwrap_or(default_port) == other.port.unwrap_or(default_port)
    }
}

const BAD: Reject = Reject::of(Fault::BadHost);

fn port(digits: &[u8]) -> Option<u16> {
    if digits.len() > 5 {
        return None;
    }
    super::grammar::decimal(digits).and_then(|port| u16::try_from(port).ok())
}

/// Length of what may be a name, up to a colon, and whether it is one: labels of at least one byte, with or without a
/// dot at the end. An empty label would let `.example` or `..example` meet patterns that no real name meets.
fn name_prefix(bytes: &[u8]) -> (usize, bool) {
    let (mut length, mut is_good, mut before) = (0, true, b'.');
    loop {
        // Names are hardly ever made of anything but these, and dots.
        let word = word_prefix(&bytes[length..]);
        if word > 0 {
            length += word;
            before = b'-';
        }
        let Some(&byte) = bytes.get(length).filter(|byte| **byte != b':') else { break };
        is_good &= class(byte) & HOST != 0 && !(byte == b'.' && before == b'.');
        before = byte;
        length += 1;
    }
    (length, is_good && (1..=HOST_BYTES_MAX).contains(&length))
}

/// `[` address `]`, without zone and without the form for future versions.
fn ipv6(name: &[u8]) -> Option<Ipv6Addr> {
    let address = name.strip_prefix(b"[")?.strip_suffix(b"]")?;
    std::str::from_utf8(address).ok()?.parse().ok()
}

/// Lower-case, without port and trailing dot, as routes spell it: an IPv6 address in the form of RFC 5952, of its many. Copies
/// into `scratch` only if it must.
pub(crate) fn normal_name<'a>(name: &'a [u8], scratch: &'a mut [u8; HOST_BYTES_MAX]) -> &'a str {
    if let Some(address) = ipv6(name) {
        let mut rest = &mut scratch[..];
        write!(rest, "[{address}]").expect("an address is shorter than a name may be");
        let length = HOST_BYTES_MAX - rest.len();
        return std::str::from_utf8(&scratch[..length]).expect("an address is ASCII");
    }
    let name = name.strip_suffix(b".").unwrap_or(name);
    let name = if name.iter().any(u8::is_ascii_uppercase) {
        let copy = &mut scratch[..name.len()];
        copy.copy_from_slice(name);
        copy.make_ascii_lowercase();
        copy
    } else {
        name
    };
    std::str::from_utf8(name).expect("a checked name is ASCII")
}

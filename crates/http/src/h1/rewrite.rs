//! The request as the server gets it: our request line, our framing, the client's fields that go on, and who asked.

use std::io::Write;
use std::net::IpAddr;

use propylon_config::Forwarded;

use super::fields::{write_elements, write_known, write_line};
use super::grammar::is_token;
use super::{Field, Name, RequestBody, RequestHead, Scheme, Version};

/// An address as X-Forwarded-For spells it. IPv4 in IPv6 is written as IPv4.
#[derive(Clone, Copy, Debug)]
pub struct ClientAddress {
    text: [u8; 39],
    length: u8,
    v6: bool,
}

impl ClientAddress {
    pub fn new(address: IpAddr) -> ClientAddress {
        let address = address.to_canonical();
        let mut text = [0; 39];
        if let IpAddr::V4(address) = address {
            // Nearly all of them, once for each request: the standard library's way takes several times as long.
            let length = write_v4(address.octets(), &mut text);
            return ClientAddress { text, length, v6: false };
        }
        let room = text.len();
        let mut rest = &mut text[..];
        write!(rest, "{address}").expect("no canonical address is longer than 39 bytes");
        let length = (room - rest.len()) as u8;
        ClientAddress { text, length, v6: address.is_ipv6() }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.text[..self.length as usize]
    }
}

/// Four numbers with dots between them; returns the length.
fn write_v4(octets: [u8; 4], out: &mut [u8; 39]) -> u8 {
    let mut at = 0;
    for octet in octets {
        // Four bytes always: what is too much of them the next number overwrites, or the length leaves out.
        let (text, length) = OCTETS[usize::from(octet)];
        out[at..at + text.len()].copy_from_slice(&text);
        at += usize::from(length);
    }
    // Without the last dot.
    at as u8 - 1
}

/// The numbers of an IPv4 address with a dot behind them, and how long that is.
static OCTETS: [([u8; 4], u8); 256] = octets();

const fn octets() -> [([u8; 4], u8); 256] {
    let mut table = [([0; 4], 0); 256];
    let mut octet = 0;
    while octet < table.len() {
        let [a, b, c] = [b'0' + (octet / 100) as u8, b'0' + (octet / 10 % 10) as u8, b'0' + (octet % 10) as u8];
        table[octet] = match octet {
            0..10 => ([c, b'.', 0, 0], 2),
            10..100 => ([b, c, b'.', 0], 3),
            _ => ([a, b, c, b'.'], 4),
        };
        octet += 1;
    }
    table
}

/// Settings by which a request is forwarded.
#[derive(Clone, Copy, Debug)]
pub struct ForwardContext<'a> {
    pub client: &'a ClientAddress,
    /// Scheme of the client's connection.
    pub scheme: Scheme,
    pub forwarded: Forwarded,
    /// In place of the client's Host; must be given where `RequestHead::host` is empty.
    pub host: Option<&'a [u8]>,
    /// How the body will be framed; `RequestHead::body` unless the driver changes it.
    pub body: RequestBody,
    /// Whether the client's expectation goes on to the server. False where we have answered 100 ourselves.
    pub expect_continue: bool,
    /// False: the server is told that this connection carries no other request.
    pub keep_alive: bool,
    /// Whether the server is told in Via that the request was handed on (RFC 9110 §7.6.3).
    pub via: bool,
}

/// Writes the head for the server, in HTTP/1.1. Fields keep their order and their spelling; ours come last.
pub fn write_request(head: &RequestHead, buf: &[u8], context: &ForwardContext, out: &mut Vec<u8>) {
    debug_assert!(context.host.is_some() || !head.host.is_empty(), "a request without a host");
    out.reserve(head.length + 384);
    let opening = head.opening(buf).filter(|_| context.host.is_none());
    if opening.is_none() {
        let [prefix, target] = head.target(buf);
        for part in [head.method_text.bytes(buf), b" ", prefix, target, b" HTTP/1.1\r\nHost: "] {
            out.extend_from_slice(part);
        }
        out.extend_from_slice(context.host.unwrap_or_else(|| head.host.bytes(buf)));
        out.extend_from_slice(b"\r\n");
    }
    head.fields.write_some(buf, opening.unwrap_or_default(), |kind| is_told(kind, context), out);
    if context.body == RequestBody::Chunked {
        out.extend_from_slice(CHUNKED);
    }
    write_body_lines(head, context, out);
    write_connection(head, buf, context.keep_alive, out);
    write_origin_lines(head, buf, context, out);
    out.extend_from_slice(b"\r\n");
}

/// Whether a field of this kind goes on: strangers tell nothing about themselves that a server could take for a proxy's
/// word.
fn is_told(kind: Name, context: &ForwardContext) -> bool {
    is_believed(kind, context.forwarded)
}

/// Whether a client's field of this kind goes on to servers.
#[inline]
pub fn is_believed(kind: Name, forwarded: Forwarded) -> bool {
    forwarded == Forwarded::Append || kind != Name::Claim
}

/// Whether a client's field goes on as it is.
pub(crate) fn goes_on(field: &Field, context: &ForwardContext) -> bool {
    field.forward && is_told(field.kind, context)
}

/// Writes the lines on the body and on what is expected, for servers of all versions.
pub(crate) fn write_body_lines(head: &RequestHead, context: &ForwardContext, out: &mut Vec<u8>) {
    if let RequestBody::Length(length) = context.body {
        write_content_length(length, out);
    }
    if context.expect_continue && head.expect_continue {
        out.extend_from_slice(b"Expect: 100-continue\r\n");
    }
    if let Some(hops) = head.max_forwards {
        let mut digits = itoa::Buffer::new();
        write_line(b"Max-Forwards", digits.format(hops.saturating_sub(1)).as_bytes(), out);
    }
}

/// Writes the lines on trailers and on where the request comes from, for servers of all versions.
pub(crate) fn write_origin_lines(head: &RequestHead, buf: &[u8], context: &ForwardContext, out: &mut Vec<u8>) {
    if head.te_trailers {
        out.extend_from_slice(b"TE: trailers\r\n");
    }
    write_forwarded(head, buf, context, out);
    if context.via {
        write_via(head.version, out);
    }
}

/// Adds lines to a head that [`write_request`] has just written, before the blank line at its end.
pub fn add_lines(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    debug_assert!(out.ends_with(b"\r\n\r\n"), "a whole head");
    out.truncate(out.len() - 2);
    write(out);
    out.extend_from_slice(b"\r\n");
}

/// Makes a head that [`write_request`] has just written one of HTTP/1.0; `keep_alive` asks the server to keep the
/// connection, which it would not do by itself (RFC 2068 §19.7.1).
pub fn lower_version(out: &mut Vec<u8>, keep_alive: bool) {
    let end = out.iter().position(|byte| *byte == b'\r').unwrap_or_default();
    debug_assert!(out[..end].ends_with(b"HTTP/1.1"), "a request line");
    if let Some(minor) = end.checked_sub(1) {
        out[minor] = b'0';
    }
    if keep_alive {
        add_lines(out, |out| out.extend_from_slice(b"Connection: keep-alive\r\n"));
    }
}

pub(crate) const CHUNKED: &[u8] = b"Transfer-Encoding: chunked\r\n";

pub(crate) fn write_content_length(length: u64, out: &mut Vec<u8>) {
    write_known(b"Content-Length: ", itoa::Buffer::new().format(length).as_bytes(), out);
}

/// The version is that of the message as it came to us (RFC 9110 §7.6.3).
pub(crate) fn write_via(received: Version, out: &mut Vec<u8>) {
    out.extend_from_slice(match received {
        Version::Http10 => b"Via: 1.0 propylon\r\n",
        Version::Http11 => b"Via: 1.1 propylon\r\n",
        Version::Http2 => b"Via: 2 propylon\r\n",
    });
}

/// Upgrade and TE are for the next hop only, so each is named in Connection.
fn write_connection(head: &RequestHead, buf: &[u8], keep_alive: bool, out: &mut Vec<u8>) {
    let close = !keep_alive && head.upgrade.is_none();
    let options: &[u8] = match (close, head.upgrade.is_some(), head.te_trailers) {
        (false, false, false) => return,
        (true, _, false) => b"close",
        (true, _, true) => b"close, TE",
        (false, true, false) => b"upgrade",
        (false, true, true) => b"upgrade, TE",
        (false, false, true) => b"TE",
    };
    write_line(b"Connection", options, out);
    if let Some(protocols) = head.protocols(buf) {
        write_elements(b"Upgrade", protocols, out);
    }
}

fn write_forwarded(head: &RequestHead, buf: &[u8], context: &ForwardContext, out: &mut Vec<u8>) {
    let trusted = match context.forwarded {
        Forwarded::Remove => return,
        Forwarded::Replace => false,
        Forwarded::Append => true,
    };
    let mut came = Came::default();
    if trusted {
        came = write_trusted(head, buf, context, out);
    }
    if !came.chain {
        write_known(b"X-Forwarded-For: ", context.client.as_bytes(), out);
    }
    if !came.scheme {
        out.extend_from_slice(match context.scheme {
            Scheme::Http => b"X-Forwarded-Proto: http\r\n",
            Scheme::Https => b"X-Forwarded-Proto: https\r\n",
        });
    }
    if !came.host && !head.host.is_empty() {
        write_known(b"X-Forwarded-Host: ", head.host.bytes(buf), out);
    }
}

/// Which fields a trusted client has brought.
#[derive(Default)]
struct Came {
    chain: bool,
    scheme: bool,
    host: bool,
}

/// Continues the lists a trusted proxy began. Each list becomes one line: a server that reads only the first line, or
/// only the last, sees the whole chain.
fn write_trusted(head: &RequestHead, buf: &[u8], context: &ForwardContext, out: &mut Vec<u8>) -> Came {
    let mut came = Came::default();
    for field in head.fields.iter() {
        match field.kind {
            Name::XForwardedProto => came.scheme = true,
            Name::XForwardedHost => came.host = true,
            Name::XForwardedOther => {}
            Name::XForwardedFor if !came.chain => {
                came.chain = true;
                write_list(head, buf, field.kind, b"X-Forwarded-For", out);
                out.extend_from_slice(context.client.as_bytes());
                out.extend_from_slice(b"\r\n");
                continue;
            }
            _ => continue,
        }
        write_line(field.name.bytes(buf), field.value.bytes(buf), out);
    }
    if head.fields.of_kind(Name::Forwarded).next().is_some() {
        write_list(head, buf, Name::Forwarded, b"Forwarded", out);
        write_forwarded_element(head, buf, context, out);
    }
    came
}

/// Writes the name and the received elements, and leaves room for one more.
fn write_list(head: &RequestHead, buf: &[u8], kind: Name, name: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    for field in head.fields.of_kind(kind).filter(|f| !f.value.is_empty()) {
        let value = field.value.bytes(buf);
        // An open quote would swallow the element that comes after it.
        if kind == Name::Forwarded && !quotes_are_closed(value) {
            continue;
        }
        out.extend_from_slice(value);
        out.extend_from_slice(b", ");
    }
}

fn quotes_are_closed(value: &[u8]) -> bool {
    let (mut quoted, mut escaped) = (false, false);
    for &byte in value {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ => {}
        }
    }
    !quoted
}

/// `for=...;host=...;proto=...` (RFC 7239 §4): what is not a token is quoted, IPv6 is bracketed as well.
fn write_forwarded_element(head: &RequestHead, buf: &[u8], context: &ForwardContext, out: &mut Vec<u8>) {
    let (before, after): (&[u8], &[u8]) = match context.client.v6 {
        true => (b"for=\"[", b"]\""),
        false => (b"for=", b""),
    };
    for part in [before, context.client.as_bytes(), after] {
        out.extend_from_slice(part);
    }
    let host = head.host.bytes(buf);
    if !host.is_empty() {
        // A checked host holds neither quotes nor backslashes.
        let quote: &[u8] = if is_token(host) { b"" } else { b"\"" };
        for part in [b";host=", quote, host, quote] {
            out.extend_from_slice(part);
        }
    }
    for part in [b";proto=", context.scheme.as_str().as_bytes(), b"\r\n"] {
        out.extend_from_slice(part);
    }
}

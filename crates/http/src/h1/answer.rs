//! Responses for the client: a server's response with our framing, and the answers we give ourselves.

use super::fields::{write_elements, write_known, write_line};
use super::rewrite::{CHUNKED, write_content_length, write_via};
use super::{Framing, ResponseHead, Version};

/// Settings by which a response is handed on.
#[derive(Clone, Copy, Debug)]
pub struct AnswerContext<'a> {
    pub client: Version,
    /// `ResponseHead::framing_for` unless the driver changes it.
    pub framing: Framing,
    /// Whether we will read another request from the client. Not heeded with `Framing::UntilClose`.
    pub keep_alive: bool,
    /// Now, as an IMF-fixdate; written if the server sent no Date (RFC 9110 §6.6.1).
    pub date: &'a [u8],
}

/// The interim answer to `Expect: 100-continue`.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Writes the head of a final response, or of a switch of protocols (101).
pub fn write_response(head: &ResponseHead, buf: &[u8], context: &AnswerContext, out: &mut Vec<u8>) {
    out.reserve(head.length + 160);
    write_status_line(head.status, head.reason.bytes(buf), out);
    head.fields.write_forwarded(buf, out);
    match context.framing {
        Framing::None | Framing::UntilClose => {}
        Framing::Length(length) => write_content_length(length, out),
        Framing::Chunked => out.extend_from_slice(CHUNKED),
    }
    let keep_alive = context.keep_alive && context.framing != Framing::UntilClose;
    match head.protocols(buf) {
        Some(protocols) => {
            let close = head.status != 101 && !keep_alive;
            let options: &[u8] = if close { b"upgrade, close" } else { b"upgrade" };
            write_line(b"Connection", options, out);
            write_elements(b"Upgrade", protocols, out);
        }
        None => write_keep_alive(context.client, keep_alive, out),
    }
    if !head.has_date {
        write_known(b"Date: ", context.date, out);
    }
    write_via(head.version, out);
    out.extend_from_slice(b"\r\n");
}

/// Takes the line of Via out of a head that [`write_response`] has just written.
pub fn drop_via(head: &ResponseHead, out: &mut Vec<u8>) {
    let mut line = Vec::new();
    write_via(head.version, &mut line);
    line.extend_from_slice(b"\r\n");
    debug_assert!(out.ends_with(&line), "Via is written last");
    out.truncate(out.len() - line.len());
    out.extend_from_slice(b"\r\n");
}

/// Writes a 1xx response that is followed by another. Must not be sent to an HTTP/1.0 client (RFC 9110 §15.2). It does
/// not say Via, which a gateway may leave out of responses (RFC 9110 §7.6.3): the final one does.
pub fn write_informational(head: &ResponseHead, buf: &[u8], out: &mut Vec<u8>) {
    debug_assert!(head.is_informational());
    write_status_line(head.status, head.reason.bytes(buf), out);
    head.fields.write_forwarded(buf, out);
    out.extend_from_slice(b"\r\n");
}

/// An answer of our own: an error, a redirect, a fixed response.
#[derive(Clone, Copy, Debug)]
pub struct OwnResponse<'a> {
    /// 200 to 599.
    pub status: u16,
    /// Further fields, such as Location, Retry-After or Allow. A value with a control byte in it is left out.
    pub fields: &'a [(&'a str, &'a str)],
    /// Further fields as whole lines.
    pub lines: &'a [u8],
    /// Empty: none is stated.
    pub content_type: &'a str,
    pub body: &'a [u8],
    pub client: Version,
    pub keep_alive: bool,
    /// The request was HEAD: the body is described and left out.
    pub head_only: bool,
    /// Now, as an IMF-fixdate.
    pub date: &'a [u8],
}

pub fn write_own_response(response: &OwnResponse, out: &mut Vec<u8>) {
    write_status_line(response.status, reason_phrase(response.status).as_bytes(), out);
    for (name, value) in response.fields {
        // Made by us, but perhaps of what a client sent: one more look before it ends up between two CRLFs.
        if super::grammar::first_control(value.as_bytes()).is_none() {
            write_line(name.as_bytes(), value.as_bytes(), out);
        }
    }
    out.extend_from_slice(response.lines);
    let has_content = !matches!(response.status, 204 | 304);
    if has_content {
        if !response.content_type.is_empty() {
            write_line(b"Content-Type", response.content_type.as_bytes(), out);
        }
        write_content_length(response.body.len() as u64, out);
    }
    write_keep_alive(response.client, response.keep_alive, out);
    write_known(b"Date: ", response.date, out);
    out.extend_from_slice(b"\r\n");
    if has_content && !response.head_only {
        out.extend_from_slice(response.body);
    }
}

/// Always HTTP/1.1: a sender states the highest version it speaks (RFC 9110 §6.2).
fn write_status_line(status: u16, reason: &[u8], out: &mut Vec<u8>) {
    if status == 200 && reason == b"OK" {
        // Most responses are this one.
        return out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(itoa::Buffer::new().format(status).as_bytes());
    out.extend_from_slice(b" ");
    out.extend_from_slice(reason);
    out.extend_from_slice(b"\r\n");
}

/// States what the client's version does not take for granted.
fn write_keep_alive(client: Version, keep_alive: bool, out: &mut Vec<u8>) {
    match (client, keep_alive) {
        (Version::Http11 | Version::Http2, true) => {}
        (Version::Http10, true) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        (_, false) => out.extend_from_slice(b"Connection: close\r\n"),
    }
}

/// The phrase of RFC 9110 §15, or of the registry of statuses, for what is common; empty for others.
pub fn reason_phrase(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        203 => "Non-Authoritative Information",
        204 => "No Content",
        205 => "Reset Content",
        206 => "Partial Content",
        300 => "Multiple Choices",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        511 => "Network Authentication Required",
        _ => "",
    }
}

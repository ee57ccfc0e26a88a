//! Messages of HTTP/2 as HTTP/1.1 writes them, and back (RFC 9113 §8).
//!
//! A request is written as the text that a client of HTTP/1.1 would have sent, and `h1::parse_request` reads it: what
//! that refuses is refused, whatever version it came by. So nothing may get into the text that would read as something
//! else: what could (CR, LF, NUL, spaces, colons in names) is refused here.

use base64ct::{Base64, Encoding};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, VIA};
use http::{Request, Response, StatusCode};
use propylon_http::fault::Fault;
use propylon_http::h1::{
    Asked, Decoder, Event, Framing, Method, Reject, ResponseHead, TARGET, TOKEN, Version, all, first_control, is_token,
    reason_phrase,
};

use crate::answer::Answer;
use crate::services::HeaderCache;

/// Bytes that the text has beyond the header list: the request line, line ends, the fields added.
pub const OVERHEAD_BYTES_MAX: usize = 8 * 1024;
/// Fields added: Host, Transfer-Encoding or Content-Length, and for a WebSocket three more.
pub const FIELDS_ADDED_MAX: usize = 5;

/// A request's pseudo-header fields (RFC 9113 §8.3.1, RFC 8441 §4).
#[derive(Clone, Copy, Debug)]
pub struct Pseudo<'a> {
    pub method: &'a [u8],
    pub scheme: Option<&'a [u8]>,
    pub authority: Option<&'a [u8]>,
    pub path: Option<&'a [u8]>,
    pub protocol: Option<&'a [u8]>,
}

/// Writes the head of a request as the library has decoded it; `path` is used when the library takes the path for none.
/// `end`: no body follows. `random` is for the key of a WebSocket, whose servers of HTTP/1.1 want one.
pub fn write_request(
    parts: &http::request::Parts,
    path: Option<&[u8]>,
    end: bool,
    random: &mut fastrand::Rng,
    out: &mut Vec<u8>,
) -> Result<(), Reject> {
    let uri = &parts.uri;
    let protocol = parts.extensions.get::<h2::ext::Protocol>();
    let pseudo = Pseudo {
        method: parts.method.as_str().as_bytes(),
        scheme: uri.scheme_str().map(str::as_bytes),
        authority: uri.authority().map(|authority| authority.as_str().as_bytes()),
        path: path.or(uri.path_and_query().map(|path| path.as_str().as_bytes())),
        protocol: protocol.map(|protocol| protocol.as_str().as_bytes()),
    };
    let fields = || parts.headers.iter().map(|(name, value)| (name.as_str().as_bytes(), value.as_bytes()));
    write_head(&pseudo, fields, end, random, out)
}

/// As [`write_request`], of bytes that nobody has looked at.
pub fn write_head<'a, I: Iterator<Item = (&'a [u8], &'a [u8])>>(
    pseudo: &Pseudo<'_>,
    fields: impl Fn() -> I,
    end: bool,
    random: &mut fastrand::Rng,
    out: &mut Vec<u8>,
) -> Result<(), Reject> {
    let tunnel = is_websocket(pseudo)?;
    let method: &[u8] = if tunnel { b"GET" } else { pseudo.method };
    if !is_token(method) {
        return Err(Reject::of(Fault::BadMethod));
    }
    if method == b"CONNECT" {
        return Err(Reject::of(Fault::ConnectNotSupported));
    }
    let path = pseudo.path.unwrap_or_default();
    let of_whole_server = path == b"*" && method == b"OPTIONS";
    if !path.starts_with(b"/") && !of_whole_server {
        return Err(Reject::of(Fault::BadTarget));
    }
    if !all(path, TARGET) {
        return Err(Reject::of(Fault::BadTargetByte));
    }
    write_request_line(pseudo, method, path, fields(), out)?;
    let has_length = write_fields(&fields, tunnel, out)?;
    if tunnel {
        if has_length {
            return Err(Reject::of(Fault::ContentLengthInTunnel));
        }
        let key = websocket_key(random);
        let lines = [&b"Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: "[..], &key, b"\r\n"];
        lines.iter().for_each(|part| out.extend_from_slice(part));
    } else if !end && !has_length {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    } else if end && !has_length && matches!(method, b"POST" | b"PUT" | b"PATCH") {
        // RFC 9110 §8.6: these say so when they have no content.
        out.extend_from_slice(b"Content-Length: 0\r\n");
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Whether it is a WebSocket's request (RFC 8441 §4).
fn is_websocket(pseudo: &Pseudo<'_>) -> Result<bool, Reject> {
    match pseudo.protocol {
        None => Ok(false),
        Some(_) if pseudo.method != b"CONNECT" => Err(Reject::of(Fault::BadMethod)),
        Some(protocol) if protocol.eq_ignore_ascii_case(b"websocket") => Ok(true),
        Some(_) => Err(Reject::of(Fault::UnknownProtocol)),
    }
}

fn write_request_line<'a>(
    pseudo: &Pseudo<'_>,
    method: &[u8],
    path: &[u8],
    mut fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    out: &mut Vec<u8>,
) -> Result<(), Reject> {
    let scheme = pseudo.scheme.unwrap_or(b"https");
    if scheme != b"http" && scheme != b"https" {
        return Err(Reject::of(Fault::BadScheme));
    }
    let authority = pseudo.authority.unwrap_or_default();
    if !all(authority, TARGET) {
        return Err(Reject::of(Fault::BadHost));
    }
    if authority.iter().any(|byte| matches!(byte, b'/' | b'?')) {
        return Err(Reject::of(Fault::BadHost));
    }
    out.extend_from_slice(method);
    out.extend_from_slice(b" ");
    let host = fields.find(|(name, _)| *name == b"host");
    // If both are there and differ in spelling the parser is to judge whether they mean the same.
    if !authority.is_empty() && host.is_some_and(|(_, host)| host != authority) {
        for part in [scheme, b"://", authority] {
            out.extend_from_slice(part);
        }
        if path != b"*" {
            out.extend_from_slice(path);
        }
        out.extend_from_slice(b" HTTP/1.1\r\n");
        return Ok(());
    }
    out.extend_from_slice(path);
    out.extend_from_slice(b" HTTP/1.1\r\n");
    if host.is_none() && !authority.is_empty() {
        for part in [b"Host: ", authority, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    Ok(())
}

/// Whether there is a Content-Length among them.
fn write_fields<'a, I: Iterator<Item = (&'a [u8], &'a [u8])>>(
    fields: &impl Fn() -> I,
    tunnel: bool,
    out: &mut Vec<u8>,
) -> Result<bool, Reject> {
    let (mut cookies, mut has_length) = (false, false);
    for (name, value) in fields() {
        check_field(name, value)?;
        match name {
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => {
                return Err(Reject::of(Fault::ConnectionSpecificField));
            }
            b"te" if value != b"trailers" => return Err(Reject::of(Fault::BadTe)),
            b"content-length" => has_length = true,
            // Not used over HTTP/2 (RFC 8441 §5). The engine writes one of its own, by which the server is judged.
            b"sec-websocket-key" if tunnel => continue,
            b"cookie" => {
                cookies = true;
                continue;
            }
            _ => {}
        }
        for part in [name, b": ", value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    if cookies {
        write_cookies(fields(), out);
    }
    Ok(has_length)
}

/// Crumbs become one field again (RFC 9113 §8.2.3).
fn write_cookies<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"cookie: ");
    let crumbs = fields.filter(|(name, _)| *name == b"cookie");
    for (index, (_, crumb)) in crumbs.enumerate() {
        if index > 0 {
            out.extend_from_slice(b"; ");
        }
        out.extend_from_slice(crumb);
    }
    out.extend_from_slice(b"\r\n");
}

/// RFC 9113 §8.2.1.
fn check_field(name: &[u8], value: &[u8]) -> Result<(), Reject> {
    if name.is_empty() {
        return Err(Reject::of(Fault::EmptyFieldName));
    }
    if !all(name, TOKEN) || name.iter().any(u8::is_ascii_uppercase) {
        return Err(Reject::of(Fault::BadFieldName));
    }
    if first_control(value).is_some() {
        return Err(Reject::of(Fault::ControlByte));
    }
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    if blank(value.first()) || blank(value.last()) {
        return Err(Reject::of(Fault::SpaceAroundValue));
    }
    Ok(())
}

/// Key that a WebSocket's client makes up (RFC 6455 §4.1): 16 bytes in Base64.
fn websocket_key(random: &mut fastrand::Rng) -> [u8; 24] {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut key = [b'='; 24];
    key[..21].iter_mut().for_each(|digit| *digit = DIGITS[random.usize(..64)]);
    // 128 bits: two of them in the last digit.
    key[21] = DIGITS[random.usize(..4) * 16];
    key
}

/// Proof that a server has understood a WebSocket's handshake (RFC 6455 §4.2.2).
pub fn websocket_accept(key: &[u8]) -> String {
    const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    Base64::encode_string(&propylon_crypto::sha1(&[key, GUID]))
}

/// Converts a response that a server of HTTP/1 has sent, for a client of HTTP/2; `text` is what its head was parsed
/// from. `date` is for a final response that has none. `None` if HTTP/2 cannot express it.
pub fn response(
    head: &ResponseHead,
    text: &[u8],
    date: Option<HeaderValue>,
    familiar: &mut HeaderCache,
) -> Option<Response<()>> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(head.status).ok()?;
    let fields = response.headers_mut();
    fields.reserve(head.fields.len() + 2);
    for field in head.fields.iter().filter(|field| field.forward) {
        let (name, value) = match field.plain_line(text) {
            Some(line) => familiar.field(line, field.name.len())?,
            None => {
                let name = HeaderName::from_bytes(field.name.bytes(text)).ok()?;
                (name, HeaderValue::from_bytes(field.value.bytes(text)).ok()?)
            }
        };
        fields.append(name, value);
    }
    if let Framing::Length(length) = head.framing_for(Version::Http2) {
        fields.insert(CONTENT_LENGTH, content_length(length));
    }
    if let Some(date) = date.filter(|_| !head.has_date) {
        fields.insert(DATE, date);
    }
    fields.append(VIA, via(head.version));
    Some(response)
}

/// In one piece of memory: `HeaderValue::from` takes two.
fn content_length(length: u64) -> HeaderValue {
    HeaderValue::from_str(itoa::Buffer::new().format(length)).expect("digits")
}

fn via(received: Version) -> HeaderValue {
    HeaderValue::from_static(match received {
        Version::Http10 => "1.0 propylon",
        Version::Http11 => "1.1 propylon",
        Version::Http2 => "2 propylon",
    })
}

/// The request for a server of HTTP/2, of a head as `h1::write_request` writes it. None for what HTTP/2 cannot say.
pub fn server_request(text: &[u8], tunnel: bool, tls: bool) -> Option<Request<()>> {
    let mut lines = text.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let mut first = lines.next()?.split(|byte| *byte == b' ');
    let (method, target) = (first.next()?, first.next()?);
    let mut request = Request::new(());
    *request.version_mut() = http::Version::HTTP_2;
    *request.method_mut() = http::Method::from_bytes(if tunnel { b"CONNECT" } else { method }).ok()?;
    let mut host: &[u8] = b"";
    let fields = request.headers_mut();
    for line in lines.filter(|line| !line.is_empty()) {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if is("host") {
            host = value;
        } else if is("connection") || is("transfer-encoding") || is("upgrade") || (tunnel && is("sec-websocket-key")) {
            // Between neighbours, and said otherwise here.
        } else {
            fields.append(HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?);
        }
    }
    let scheme = if tls { http::uri::Scheme::HTTPS } else { http::uri::Scheme::HTTP };
    let mut parts = http::uri::Parts::default();
    parts.scheme = Some(scheme);
    parts.authority = Some(http::uri::Authority::try_from(host).ok()?);
    parts.path_and_query = Some(http::uri::PathAndQuery::try_from(target).ok()?);
    *request.uri_mut() = http::Uri::from_parts(parts).ok()?;
    if tunnel {
        request.extensions_mut().insert(h2::ext::Protocol::from_static("websocket"));
    }
    Some(request)
}

/// The head of a response of HTTP/2 as a server of HTTP/1.1 would have sent it. `ended`: no body follows.
pub fn write_response<T>(
    response: &Response<T>,
    asked: Asked<'_>,
    ended: bool,
    out: &mut Vec<u8>,
) -> Result<(), Reject> {
    let status = response.status();
    // Any 2xx opens the tunnel (RFC 9110 §9.3.6).
    let switched = asked.upgrade.is_some() && status.is_success();
    let shown = if switched { StatusCode::SWITCHING_PROTOCOLS } else { status };
    for part in [b"HTTP/1.1 ", shown.as_str().as_bytes(), b" ", reason_phrase(shown.as_u16()).as_bytes(), b"\r\n"] {
        out.extend_from_slice(part);
    }
    let mut has_length = false;
    for (name, value) in response.headers() {
        let (name, value) = (name.as_str().as_bytes(), value.as_bytes());
        check_field(name, value)?;
        match name {
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => {
                return Err(Reject::of(Fault::ConnectionSpecificField));
            }
            // Not heeded in a tunnel (RFC 9110 §9.3.6).
            b"content-length" if switched => continue,
            b"content-length" => has_length = true,
            _ => {}
        }
        for part in [name, b": ", value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    let bodiless = asked.method == Method::Head || status.is_informational() || matches!(status.as_u16(), 204 | 304);
    if switched {
        out.extend_from_slice(b"Connection: upgrade\r\nUpgrade: websocket\r\n");
    } else if !has_length && !bodiless {
        let framing: &[u8] = if ended { b"Content-Length: 0\r\n" } else { b"Transfer-Encoding: chunked\r\n" };
        out.extend_from_slice(framing);
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

/// Adds a field as HTTP/1.1 writes it, such as a cookie of ours.
pub fn add_line(line: &[u8], response: &mut Response<()>) {
    for (name, value) in &trailer_map(line) {
        response.headers_mut().append(name.clone(), value.clone());
    }
}

/// Turns the 101 of HTTP/1.1 into a 200, without the fields that only the handshake there needs (RFC 8441 §5).
pub fn accept_tunnel(response: &mut Response<()>) {
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().remove(http::header::SEC_WEBSOCKET_ACCEPT);
}

/// An answer of our own.
pub fn own_response(answer: &Answer<'_>, date: HeaderValue) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let fields = response.headers_mut();
    for (name, value) in answer.fields {
        // Made by us, but perhaps of what a client sent.
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) {
            fields.append(name, value);
        }
    }
    if !matches!(answer.status, 204 | 304) {
        if !answer.body.is_empty()
            && let Ok(value) = HeaderValue::from_str(answer.content_type)
        {
            fields.insert(CONTENT_TYPE, value);
        }
        fields.insert(CONTENT_LENGTH, content_length(answer.body.len() as u64));
    }
    fields.insert(DATE, date);
    response
}

/// About what a response's head comes to, before it is compressed: for accounts.
pub fn head_bytes(response: &Response<()>) -> usize {
    response.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>() + 16
}

/// Trailers as lines that go on by HTTP/1.1, without those that may not trail; none if there are none, or if they are
/// malformed.
pub fn trailer_lines(trailers: &HeaderMap, decoder: Decoder) -> Vec<u8> {
    let mut section = b"0\r\n".to_vec();
    for (name, value) in trailers {
        if check_field(name.as_str().as_bytes(), value.as_bytes()).is_err() {
            return Vec::new();
        }
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            section.extend_from_slice(part);
        }
    }
    section.extend_from_slice(b"\r\n");
    let mut decoder = decoder;
    match decoder.next(&section) {
        Ok(Event::End { consumed }) if consumed == section.len() => decoder.trailers().to_vec(),
        _ => Vec::new(),
    }
}

/// Lines of trailers, as `Decoder::trailers` gives them, for HTTP/2.
pub fn trailer_map(lines: &[u8]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for line in lines.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let value = line[colon + 1..].trim_ascii();
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(value)) {
            map.append(name, value);
        }
    }
    map
}

#[cfg(any(test, fuzzing))]
pub mod fuzz;
#[cfg(test)]
mod tests;

//! Requests of HTTP/2 (RFC 9113 §8.3.1): read field by field by the rules that HTTP/1's are read by, and written.

use crate::fault::Fault;
use crate::h1::{
    Field, ForwardContext, Limits, Method, Name, Pseudo, Reject, RequestBody, RequestHead, Span, TARGET, Version, all,
    build, is_token,
};

use super::fields::{FieldWriter, is_connection_specific};

/// Bytes of a WebSocket's key, in Base64 (RFC 6455 §4.1).
const KEY_BYTES: usize = 24;

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A malformed request: its stream is reset, and nobody answers it (RFC 9113 §8.1.1).
    Malformed,
    /// A request that is answered with the status.
    Rejected(Reject),
}

impl From<Reject> for Refusal {
    fn from(reject: Reject) -> Refusal {
        Refusal::Rejected(reject)
    }
}

/// Reads a request's head field by field.
#[derive(Debug, Default)]
pub struct RequestReader {
    method: Option<Span>,
    scheme: Option<Span>,
    authority: Option<Span>,
    path: Option<Span>,
    protocol: Option<Span>,
    /// A field that is no pseudo-header field has come: behind it there may be none.
    has_fields: bool,
    is_malformed: bool,
    /// The first field that is refused with a status.
    reject: Option<Reject>,
    cookies: u32,
    fields: usize,
    has_length: bool,
    has_host: bool,
    /// Extended CONNECT was not announced.
    refuses_connect: bool,
}

impl RequestReader {
    /// A reader of one request. `allows_connect`: extended CONNECT was announced (RFC 8441 §3).
    pub fn new(allows_connect: bool) -> RequestReader {
        RequestReader { refuses_connect: !allows_connect, ..RequestReader::default() }
    }

    /// Takes the next field of the block. `text` holds it; it is a line there.
    #[inline]
    pub fn field(&mut self, text: &[u8], field: Field, head: &mut RequestHead) {
        if let Name::Pseudo(pseudo) = field.kind {
            return self.pseudo(pseudo, field.value);
        }
        if !std::mem::replace(&mut self.has_fields, true) {
            // The method has a part in what other fields mean.
            head.method = Method::of(self.method.map_or(b"", |method| method.bytes(text)));
        }
        self.fields += 1;
        if is_connection_specific(text, &field) {
            self.is_malformed = true;
            return;
        }
        match field.kind {
            Name::ContentLength => self.has_length = true,
            Name::Host => self.has_host = true,
            Name::EndToEnd => self.cookies += u32::from(is_cookie(text, &field)),
            // RFC 8441 §5: not used over HTTP/2. The engine writes one of its own, by which the server is judged.
            Name::Other if self.protocol.is_some() && field.name.bytes(text) == b"sec-websocket-key" => return,
            _ => {}
        }
        head.version = Version::Http11;
        if let Err(reject) = build::note_field(text, field, head) {
            // RFC 9113 §8.1.1. One of a sender that has no number to say is told what is wrong.
            self.is_malformed |= field.kind == Name::ContentLength && !field.value.is_empty();
            self.reject.get_or_insert(reject);
        }
    }

    fn pseudo(&mut self, pseudo: Pseudo, value: Span) {
        let slot = match pseudo {
            Pseudo::Method => &mut self.method,
            Pseudo::Scheme => &mut self.scheme,
            Pseudo::Authority => &mut self.authority,
            Pseudo::Path => &mut self.path,
            Pseudo::Protocol => &mut self.protocol,
            Pseudo::Status => {
                self.is_malformed = true;
                return;
            }
        };
        self.is_malformed |= self.has_fields || slot.is_some();
        *slot = Some(value);
    }

    /// Completes the head. `end`: no body follows. What the client has not written, and the head needs, is written
    /// behind the text; `random` is for the key of a WebSocket, whose servers of HTTP/1.1 want one.
    ///
    /// # Errors
    /// The request is malformed, or refused with a status.
    pub fn finish(
        mut self,
        text: &mut Vec<u8>,
        end: bool,
        limits: &Limits,
        random: impl FnOnce() -> [u8; 16],
        head: &mut RequestHead,
    ) -> Result<(), Refusal> {
        head.version = Version::Http11;
        let is_tunnel = self.check_pseudo(text)?;
        self.read_request_line(text, is_tunnel, head)?;
        if let Some(reject) = self.reject {
            return Err(reject.into());
        }
        if self.fields > limits.headers {
            return Err(Reject::of(Fault::TooManyFields).into());
        }
        if is_tunnel {
            self.open_tunnel(text, random, head)?;
        } else {
            build::frame(head, !end, self.has_length);
        }
        let crumbs = if self.cookies > 1 { join_cookies(text, head) } else { 0 };
        head.length = text.len() - crumbs;
        build::finish(text, head)?;
        if end && matches!(head.body, RequestBody::Length(1..)) {
            return Err(Refusal::Malformed);
        }
        head.version = Version::Http2;
        Ok(())
    }

    /// Checks which pseudo-header fields there are (RFC 9113 §8.3.1, RFC 8441 §4). True for a tunnel.
    fn check_pseudo(&self, text: &[u8]) -> Result<bool, Refusal> {
        let method = self.method.map(|method| method.bytes(text));
        let Some(method) = method.filter(|method| is_token(method) && !self.is_malformed) else {
            return Err(Refusal::Malformed);
        };
        let is_connect = method == b"CONNECT";
        let is_whole = match (is_connect, self.protocol) {
            (true, None) => self.scheme.is_none() && self.path.is_none() && self.authority.is_some(),
            (false, Some(_)) => false,
            (true, Some(_)) if self.refuses_connect => false,
            _ => self.scheme.is_some() && self.path.is_some(),
        };
        let fits = |span: Option<Span>, rule: fn(&[u8]) -> bool| span.is_none_or(|span| rule(span.bytes(text)));
        if !is_whole
            || !fits(self.scheme, is_scheme)
            || !fits(self.authority, is_authority)
            || !fits(self.path, is_path)
        {
            return Err(Refusal::Malformed);
        }
        match self.protocol.map(|protocol| protocol.bytes(text)) {
            None if is_connect => Err(Reject::of(Fault::ConnectNotSupported).into()),
            None => Ok(false),
            Some(protocol) if protocol.eq_ignore_ascii_case(b"websocket") => Ok(true),
            Some(_) => Err(Reject::of(Fault::UnknownProtocol).into()),
        }
    }

    fn read_request_line(
        &mut self,
        text: &mut Vec<u8>,
        is_tunnel: bool,
        head: &mut RequestHead,
    ) -> Result<(), Refusal> {
        let method = match is_tunnel {
            true => write(text, b"GET"),
            false => self.method.unwrap_or_default(),
        };
        build::read_method(text, method, head)?;
        let scheme = self.scheme.unwrap_or_default().bytes(text);
        if scheme != b"http" && scheme != b"https" {
            return Err(Reject::of(Fault::BadScheme).into());
        }
        let is_https = scheme == b"https";
        build::read_target(text, self.path.unwrap_or_default(), head)?;
        if let Some(authority) = self.authority {
            build::note_authority(text, authority, self.has_host, is_https, head)?;
            if !self.has_host {
                let name = write(text, b"host");
                head.fields.push(Field { name, value: authority, kind: Name::Host, ..Field::default() });
            }
        }
        Ok(())
    }

    /// Makes the GET of a WebSocket's handshake of an extended CONNECT (RFC 8441 §5).
    fn open_tunnel(
        &self,
        text: &mut Vec<u8>,
        random: impl FnOnce() -> [u8; 16],
        head: &mut RequestHead,
    ) -> Result<(), Refusal> {
        if self.has_length {
            return Err(Reject::of(Fault::ContentLengthInTunnel).into());
        }
        let start = text.len();
        text.extend_from_slice(b"Sec-WebSocket-Key: ");
        let value = write(text, &websocket_key(random()));
        text.extend_from_slice(b"\r\n");
        let name = Span { start: start as u32, end: value.start - 2 };
        build::note_field(text, Field::of_line(name, value, Name::Other, false, false), head)?;
        let protocol = write(text, b"websocket");
        build::note_upgrade(protocol, head);
        Ok(())
    }
}

/// RFC 3986 §3.1.
fn is_scheme(scheme: &[u8]) -> bool {
    scheme.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
}

/// Whether the bytes are such as an authority of some scheme may have.
fn is_authority(authority: &[u8]) -> bool {
    !authority.is_empty() && all(authority, TARGET) && !authority.iter().any(|byte| matches!(byte, b'/' | b'?'))
}

/// Origin-form, or `*`. Text above ASCII, which should have been escaped, is answered.
fn is_path(path: &[u8]) -> bool {
    match path {
        b"*" => true,
        [b'/', ..] => all(path, TARGET) || is_unescaped(path),
        _ => false,
    }
}

#[cold]
fn is_unescaped(path: &[u8]) -> bool {
    std::str::from_utf8(path).is_ok() && path.iter().all(|byte| !byte.is_ascii() || all(&[*byte], TARGET))
}

/// Writes a text behind the others.
fn write(text: &mut Vec<u8>, bytes: &[u8]) -> Span {
    let start = text.len() as u32;
    text.extend_from_slice(bytes);
    Span { start, end: text.len() as u32 }
}

fn is_cookie(text: &[u8], field: &Field) -> bool {
    field.name.len() == 6 && field.name.bytes(text) == b"cookie"
}

/// Crumbs become one field again (RFC 9113 §8.2.3), in the place of the first. They themselves are found no more.
/// Returns their bytes.
fn join_cookies(text: &mut Vec<u8>, head: &mut RequestHead) -> usize {
    let start = text.len();
    let mut crumbs = 0;
    text.extend_from_slice(b"cookie: ");
    let value_start = text.len();
    let (mut between, mut is_secret): (&[u8], bool) = (b"", false);
    let mut first = None;
    for field in head.fields.iter_mut() {
        if !is_cookie(text, field) {
            continue;
        }
        text.extend_from_slice(std::mem::replace(&mut between, b"; "));
        text.extend_from_within(field.value.start as usize..field.value.end as usize);
        is_secret |= field.secret;
        crumbs += field.name.len() + field.value.len();
        field.forget();
        first.get_or_insert(field);
    }
    // The last crumb may be empty, and a value has no blanks around it.
    let end = value_start + text[value_start..].trim_ascii_end().len();
    text.truncate(end);
    text.extend_from_slice(b"\r\n");
    let span = |start: usize, end: usize| Span { start: start as u32, end: end as u32 };
    if let Some(first) = first {
        let (name, value) = (span(start, start + 6), span(value_start, end));
        *first = Field::of_line(name, value, Name::EndToEnd, false, is_secret);
    }
    crumbs
}

/// Key that a WebSocket's client makes up (RFC 6455 §4.1): 16 bytes in Base64 (RFC 4648 §4).
fn websocket_key(random: [u8; 16]) -> [u8; KEY_BYTES] {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u128::from_be_bytes(random);
    let mut key = [b'='; KEY_BYTES];
    for (index, digit) in key[..21].iter_mut().enumerate() {
        *digit = DIGITS[(bits >> (122 - 6 * index)) as usize & 63];
    }
    // Two bits are left, and four zeros.
    key[21] = DIGITS[(bits as usize & 3) << 4];
    key
}

/// Writes a request for a server of HTTP/2. `scheme` is that of the server's connection; `more` writes further lines,
/// `name: value CRLF`, behind those that every server gets. `scratch` is for lines.
pub fn write_request(
    (head, text): (&RequestHead, &[u8]),
    context: &ForwardContext<'_>,
    (scheme, more): (&[u8], impl FnOnce(&mut Vec<u8>)),
    scratch: &mut Vec<u8>,
    out: &mut impl FieldWriter,
) {
    let is_tunnel = head.upgrade.is_some();
    let method = if is_tunnel { b"CONNECT" } else { head.method_text.bytes(text) };
    out.pseudo(Pseudo::Method, [method, b""]);
    out.pseudo(Pseudo::Scheme, [scheme, b""]);
    out.pseudo(Pseudo::Authority, [context.host.unwrap_or_else(|| head.host.bytes(text)), b""]);
    out.pseudo(Pseudo::Path, head.target(text));
    if is_tunnel {
        out.pseudo(Pseudo::Protocol, [b"websocket", b""]);
    }
    for field in head.fields.iter().filter(|field| build::goes_on(field, context)) {
        let name = field.name.bytes(text);
        if is_tunnel && name.eq_ignore_ascii_case(b"sec-websocket-key") {
            continue;
        }
        out.field(name, field.value.bytes(text), field.secret);
    }
    scratch.clear();
    build::write_body_lines(head, context, scratch);
    build::write_origin_lines(head, text, context, scratch);
    more(scratch);
    out.lines(scratch);
}

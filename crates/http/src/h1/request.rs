//! A request head: from the client's bytes to what it asks, where it goes and how long its body is, or a refusal.

use std::ops::Range;

use propylon_config::PathRules;
use propylon_config::canonical::{Rewritten, rewrite_query};

use super::fields::{Lines, Options, parse_field, window};
use super::grammar::{TOKEN, class, decimal, elements, list, target_prefix};
use super::host::{Authority, HOST_BYTES_MAX, normal_name};
use super::{Field, Fields, Limits, Name, Parsed, Reject, Span, path};
use crate::fault::Fault;

/// The methods of RFC 9110 §9.3 and PATCH; the text of any is `RequestHead::method_text`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Delete,
    Options,
    Trace,
    Connect,
    Patch,
    Other,
}

impl Method {
    /// Case matters (RFC 9110 §9.1): `get` is some other method.
    pub fn of(text: &[u8]) -> Method {
        match text {
            b"GET" => Method::Get,
            b"HEAD" => Method::Head,
            b"POST" => Method::Post,
            b"PUT" => Method::Put,
            b"DELETE" => Method::Delete,
            b"OPTIONS" => Method::Options,
            b"TRACE" => Method::Trace,
            b"CONNECT" => Method::Connect,
            b"PATCH" => Method::Patch,
            _ => Method::Other,
        }
    }

    /// For labels: a closed set, whatever clients come up with.
    pub fn label(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Head => "HEAD",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
            Method::Options => "OPTIONS",
            Method::Trace => "TRACE",
            Method::Connect => "CONNECT",
            Method::Patch => "PATCH",
            Method::Other => "OTHER",
        }
    }

    pub fn is_safe(self) -> bool {
        matches!(self, Method::Get | Method::Head | Method::Options | Method::Trace)
    }

    /// May be sent again when it is not known whether the first one had its effect.
    pub fn is_idempotent(self) -> bool {
        self.is_safe() || matches!(self, Method::Put | Method::Delete)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    Http10,
    #[default]
    Http11,
    /// HTTP/2, for a message that was written as one of HTTP/1.1 (see `http2::translate`); never read from bytes.
    Http2,
}

/// Facts about the request that are needed to read its response.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub method: Method,
    /// The Upgrade that the request was sent with: the server may switch to a protocol that is named there, and to no other.
    pub upgrade: Option<&'a [u8]>,
}

/// The scheme of a target in absolute-form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestBody {
    #[default]
    None,
    Length(u64),
    Chunked,
}

/// Head of one request. Offsets are into the buffer it was parsed from, which begins with the request.
///
/// Make one with `default()` and reuse it: nothing is allocated for a head of ordinary size. A head that was
/// `Partial` carries what is known so far; it must meet the same bytes again, or be `clear`ed.
#[derive(Clone, Debug, Default)]
pub struct RequestHead {
    /// Bytes of the head, with its blank line: the body begins there.
    pub length: usize,
    pub method: Method,
    pub method_text: Span,
    pub version: Version,
    /// Given in absolute-form. It may differ from the scheme the client is connected with.
    pub scheme: Option<Scheme>,
    /// `name[:port]` as received; empty only in HTTP/1.0.
    pub host: Span,
    pub body: RequestBody,
    /// Whether the client will send another request on this connection.
    pub keep_alive: bool,
    /// The client holds its body back until it sees 100 (Continue).
    pub expect_continue: bool,
    /// The value of Upgrade, the last where it is given in several lines, where the request may be upgraded. Set to none to
    /// forward it as a plain request. What it asks for is `protocols`.
    pub upgrade: Option<Span>,
    /// The client takes trailers (`TE: trailers`).
    pub te_trailers: bool,
    /// Only for OPTIONS. Zero: the request is to be answered here (RFC 9110 §7.6.2).
    pub max_forwards: Option<u64>,
    pub fields: Fields,
    /// The protocols of all Upgrade lines, where there are several.
    upgrade_list: Vec<u8>,
    host_name: Span,
    /// Path and query as received; `target_prefix` comes before it.
    target: Span,
    target_prefix: Prefix,
    /// The path's end within `target`.
    path_end: u32,
    /// The path's other forms, where it has any.
    path: Rewritten,
    /// The query's canonical form, with its `?`, where it is another.
    canonical_query: Vec<u8>,
    parser: Parser,
}

/// Parts that an absolute-form target leaves out and origin-form has (RFC 9112 §3.2.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Prefix {
    #[default]
    None,
    Slash,
    Asterisk,
}

impl RequestHead {
    /// Brings the target into its canonical form, once the rules are known: those of the listener. Until then, and where it is
    /// refused, it is as it was received.
    ///
    /// # Errors
    /// 400 for a path that servers read differently.
    pub fn canonicalize_target(&mut self, buf: &[u8], rules: PathRules) -> Result<(), Reject> {
        let query = self.received_query(buf);
        if !query.is_empty() && memchr::memchr3(b'"', b'<', b'>', query).is_some() {
            self.canonical_query = rewrite_query(query).unwrap_or_default();
        }
        let path = self.received_path(buf);
        if path::is_plain(path) {
            return Ok(());
        }
        self.path = path::rewrite(path, rules)?;
        Ok(())
    }

    /// Writes `*` over the values of a parameter of the query, however its name is spelled, as the target was received
    /// and as it is forwarded.
    pub fn cover_parameter(&mut self, buf: &mut [u8], name: &[u8]) {
        // The path's end is not looked at: a target that was changed has none of what was received.
        let received = &mut buf[self.target.start as usize..self.target.end as usize];
        let query = received.iter().position(|byte| *byte == b'?').unwrap_or(received.len());
        for query in [&mut received[query..], &mut self.canonical_query[..]] {
            // The first has the `?` before its name.
            for pair in query.split_mut(|byte| matches!(byte, b'&' | b'?')) {
                let equals = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
                if is_spelling(&pair[..equals], name) {
                    pair.iter_mut().skip(equals + 1).for_each(|byte| *byte = b'*');
                }
            }
        }
    }

    /// Holds the head to its limit with what escaping has made of the target: servers have limits as well, and escapes
    /// are three bytes for one.
    ///
    /// # Errors
    /// 414 for a target that is too long by that.
    pub fn fits(&self, buf: &[u8], head_bytes: usize) -> Result<(), Reject> {
        if self.path.canonical.is_empty() && self.canonical_query.is_empty() {
            return Ok(());
        }
        let bytes = |parts: [&[u8]; 2]| parts[0].len() + parts[1].len();
        let growth = bytes(self.target(buf)).saturating_sub(bytes(self.received_target(buf)));
        match growth > 0 && self.length + growth > head_bytes {
            true => Err(Reject::of(Fault::RequestLineTooLong)),
            false => Ok(()),
        }
    }

    /// The target as it is forwarded, in two parts to be read as one: origin-form, or `*`.
    pub fn target<'a>(&'a self, buf: &'a [u8]) -> [&'a [u8]; 2] {
        [self.path(buf), self.query(buf)]
    }

    /// The request line and the line of Host as they were received, where these bytes are what goes on to a server of
    /// HTTP/1.1 as well: Host comes first, nothing is spelled otherwise, and the target is the one that was received.
    pub(crate) fn opening(&self, buf: &[u8]) -> Option<Range<usize>> {
        const VERSION: &[u8; 11] = b" HTTP/1.1\r\n";
        let (method, target, host) = (self.method_text, self.target, self.fields.first()?);
        let is_received = self.path.canonical.is_empty() && self.canonical_query.is_empty();
        let is_origin_form = target.start == method.end + 1 && self.target_prefix == Prefix::None;
        let is_host = host.is_plain_host(buf) && host.value == self.host;
        let follows = buf.get(target.end as usize..host.name.start as usize) == Some(VERSION);
        (is_received && is_origin_form && is_host && follows)
            .then(|| method.start as usize..host.value.end as usize + 2)
    }

    /// The target as it was received, but in origin-form, in two parts to be read as one.
    pub fn received_target<'a>(&self, buf: &'a [u8]) -> [&'a [u8]; 2] {
        let prefix: &[u8] = match self.target_prefix {
            Prefix::None => b"",
            Prefix::Slash => b"/",
            Prefix::Asterisk => b"*",
        };
        [prefix, self.target.bytes(buf)]
    }

    /// Without the query. `*` for an OPTIONS of the whole server.
    pub fn path<'a>(&'a self, buf: &'a [u8]) -> &'a [u8] {
        match &*self.path.canonical {
            [] => self.received_path(buf),
            canonical => canonical,
        }
    }

    /// Path that routes are compared with; see [`path`].
    pub fn path_key<'a>(&'a self, buf: &'a [u8]) -> &'a [u8] {
        match &*self.path.key {
            [] => self.path(buf),
            key => key,
        }
    }

    fn received_path<'a>(&self, buf: &'a [u8]) -> &'a [u8] {
        match self.target_prefix {
            Prefix::None => Span { end: self.path_end, ..self.target }.bytes(buf),
            Prefix::Slash => b"/",
            Prefix::Asterisk => b"*",
        }
    }

    /// Gives the request another target, whose path and query (with its `?`, or empty) are in canonical form. What was
    /// received is so from here on in `received_target` alone.
    pub fn retarget(&mut self, path: Vec<u8>, query: Vec<u8>) {
        debug_assert!(path.starts_with(b"/") && (query.is_empty() || query[0] == b'?'), "a target in origin-form");
        self.path = Rewritten { canonical: path, key: Vec::new() };
        // No received query is left to be shown in place of one that is empty.
        self.path_end = self.target.end;
        self.canonical_query = query;
    }

    /// Facts about the request that are needed to read its response; `buf` is what it was parsed from.
    pub fn asked<'a>(&'a self, buf: &'a [u8]) -> Asked<'a> {
        Asked { method: self.method, upgrade: self.protocols(buf) }
    }

    /// The list of protocols that the request may be upgraded to, if it may be.
    pub fn protocols<'a>(&'a self, buf: &'a [u8]) -> Option<&'a [u8]> {
        let last = self.upgrade?.bytes(buf);
        Some(if self.upgrade_list.is_empty() { last } else { &self.upgrade_list })
    }

    /// The query with its `?`; empty if there is none.
    pub fn query<'a>(&'a self, buf: &'a [u8]) -> &'a [u8] {
        match &*self.canonical_query {
            [] => self.received_query(buf),
            canonical => canonical,
        }
    }

    fn received_query<'a>(&self, buf: &'a [u8]) -> &'a [u8] {
        Span { start: self.path_end, ..self.target }.bytes(buf)
    }

    /// The host in lower case, without port and trailing dot; IPv6 in brackets. Empty only in HTTP/1.0.
    pub fn host_name<'a>(&self, buf: &'a [u8], scratch: &'a mut [u8; HOST_BYTES_MAX]) -> &'a str {
        normal_name(self.host_name.bytes(buf), scratch)
    }

    /// Forgets the request, keeping the memory.
    pub fn clear(&mut self) {
        // One by one, as in `ResponseHead::clear`.
        let RequestHead {
            length,
            method,
            method_text,
            version,
            scheme,
            host,
            body,
            keep_alive,
            expect_continue,
            upgrade,
            te_trailers,
            max_forwards,
            fields,
            upgrade_list,
            host_name,
            target,
            target_prefix,
            path_end,
            path,
            canonical_query,
            parser,
        } = self;
        fields.clear();
        (*length, *method, *method_text, *version) = Default::default();
        (*scheme, *host, *body, *keep_alive) = Default::default();
        (*expect_continue, *upgrade, *te_trailers, *max_forwards) = Default::default();
        (*host_name, *target, *target_prefix, *path_end) = Default::default();
        // Few requests need it, and a connection is not to hold it from then on.
        *path = Rewritten::default();
        (*upgrade_list, *canonical_query) = (Vec::new(), Vec::new());
        *parser = Parser::default();
    }
}

/// State of parsing between two calls.
#[derive(Clone, Copy, Debug, Default)]
struct Parser {
    phase: Phase,
    lines: Lines,
    options: Options,
    /// The authority of an absolute-form target, then of Host.
    target_authority: Option<Authority>,
    host: Option<Authority>,
    content_length: Option<u64>,
    chunked: bool,
    expect: Option<Expect>,
    upgrades: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Start,
    RequestLine,
    Fields,
    /// The last call came to an end, good or bad; the next one begins anew.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Continue,
    Unknown,
}

/// Parses the request at the beginning of `buf`. What was looked at in an earlier call is not looked at again, so
/// that a head may arrive byte by byte at no greater cost.
///
/// # Errors
/// 400, 405, 414, 417, 431, 501 or 505, as soon as the bytes can no longer become a request that we forward. What was
/// understood before (`method_text`, `version`) stays in `out` for the log, until the next call.
pub fn parse_request(buf: &[u8], limits: &Limits, out: &mut RequestHead) -> Result<Parsed, Reject> {
    if out.parser.phase == Phase::Done {
        out.clear();
    }
    let result = advance(window(buf, limits), limits, out);
    match result {
        Ok(Parsed::Partial) if buf.len() >= limits.head_bytes => {
            let in_line = out.parser.phase != Phase::Fields;
            out.parser.phase = Phase::Done;
            Err(match in_line {
                true => Reject::of(Fault::RequestLineTooLong),
                false => Reject::of(Fault::HeadTooLong),
            })
        }
        Ok(Parsed::Partial) => result,
        _ => {
            out.parser.phase = Phase::Done;
            result
        }
    }
}

fn advance(buf: &[u8], limits: &Limits, head: &mut RequestHead) -> Result<Parsed, Reject> {
    if head.parser.phase == Phase::Start && !begin(buf, head)? {
        return Ok(Parsed::Partial);
    }
    while let Some(line) = head.parser.lines.next(buf)? {
        if head.parser.phase == Phase::RequestLine {
            read_request_line(buf, line, head)?;
            head.parser.phase = Phase::Fields;
            continue;
        }
        if line.is_empty() {
            head.length = line.end as usize + 2;
            finish(buf, head)?;
            return Ok(Parsed::Complete);
        }
        let field = parse_field(buf, line, head.fields.is_empty())?;
        if head.fields.len() == limits.headers {
            return Err(Reject::of(Fault::TooManyFields));
        }
        note_field(buf, field, head)?;
    }
    if head.parser.phase == Phase::RequestLine {
        check_line_so_far(&buf[head.parser.lines.next..])?;
    }
    Ok(Parsed::Partial)
}

/// Skips one empty line, which old clients send after a body (RFC 9112 §2.2). False while that is undecided.
fn begin(buf: &[u8], head: &mut RequestHead) -> Result<bool, Reject> {
    let start = match buf {
        [] | [b'\r'] => return Ok(false),
        [b'\r', b'\n'] => return Ok(false),
        [b'\r', b'\n', b'\r' | b'\n', ..] => return Err(Reject::of(Fault::EmptyLinesBeforeRequest)),
        [b'\r', b'\n', ..] => 2,
        [0x16, ..] => return Err(Reject::of(Fault::TlsOnPlaintextPort)),
        _ => 0,
    };
    head.parser.lines = Lines::at(start);
    head.parser.phase = Phase::RequestLine;
    Ok(true)
}

/// Longer than any registered method.
const METHOD_BYTES_MAX: usize = 32;

/// Refuses early what can no longer become a request line. Returns the length of the method, once its end is there.
fn check_line_so_far(line: &[u8]) -> Result<Option<usize>, Reject> {
    let known = &line[..line.len().min(METHOD_BYTES_MAX + 1)];
    match known.iter().position(|&b| class(b) & TOKEN == 0) {
        Some(end) if end > 0 && known[end] == b' ' => Ok(Some(end)),
        Some(_) => Err(Reject::of(Fault::BadMethod)),
        None if known.len() > METHOD_BYTES_MAX => Err(Reject::of(Fault::MethodTooLong)),
        None => Ok(None),
    }
}

/// Whether a name in a query is this one, with or without escapes (WHATWG URL §5.1).
fn is_spelling(mut text: &[u8], name: &[u8]) -> bool {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    for byte in name {
        let (spelled, rest) = match text {
            [b'%', high, low, rest @ ..] => match digit(*high).zip(digit(*low)) {
                Some((high, low)) => (high << 4 | low, rest),
                None => (b'%', &text[1..]),
            },
            [b'+', rest @ ..] => (b' ', rest),
            [byte, rest @ ..] => (*byte, rest),
            [] => return false,
        };
        if spelled != *byte {
            return false;
        }
        text = rest;
    }
    text.is_empty()
}

fn read_request_line(buf: &[u8], line: Span, head: &mut RequestHead) -> Result<(), Reject> {
    let text = line.bytes(buf);
    let start = line.start as usize;
    let method_end = check_line_so_far(text)?.ok_or(Reject::of(Fault::BadRequestLine))?;
    let rest = &text[method_end + 1..];
    let target_length = rest.iter().position(|&b| b == b' ').ok_or(Reject::of(Fault::NoVersion))?;
    head.version = read_version(&rest[target_length + 1..])?;
    read_method(buf, Span::new(start, start + method_end), head)?;
    let target_start = start + method_end + 1;
    read_target(buf, Span::new(target_start, target_start + target_length), head)
}

/// Takes note of the method, a token.
pub(crate) fn read_method(buf: &[u8], method: Span, head: &mut RequestHead) -> Result<(), Reject> {
    let text = method.bytes(buf);
    head.method_text = method;
    head.method = Method::of(text);
    match head.method {
        Method::Connect => Err(Reject::of(Fault::ConnectNotSupported)),
        Method::Trace => Err(Reject::of(Fault::TraceNotAllowed)),
        _ if text.len() > METHOD_BYTES_MAX => Err(Reject::of(Fault::MethodTooLong)),
        _ => Ok(()),
    }
}

/// A later minor version is understood as the one we know (RFC 9110 §2.5).
pub(crate) fn read_version(text: &[u8]) -> Result<Version, Reject> {
    match text {
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor] if major.is_ascii_digit() && minor.is_ascii_digit() => {
            match (major, minor) {
                (b'1', b'0') => Ok(Version::Http10),
                (b'1', _) => Ok(Version::Http11),
                _ => Err(Reject::of(Fault::VersionNotSupported)),
            }
        }
        _ => Err(Reject::of(Fault::BadVersion)),
    }
}

/// Takes note of the target, in whatever form.
pub(crate) fn read_target(buf: &[u8], span: Span, head: &mut RequestHead) -> Result<(), Reject> {
    let target = span.bytes(buf);
    let (length, query) = target_prefix(target);
    if length < target.len() {
        return Err(Reject::of(Fault::BadTargetByte));
    }
    match target {
        [b'/', ..] => head.target = span,
        b"*" if head.method == Method::Options => head.target = span,
        _ => read_absolute(buf, span, head)?,
    }
    // No `?` is in what an absolute form has in front of its path.
    head.path_end = query.map_or(head.target.end, |at| span.start + at as u32);
    if head.path_end == head.target.start {
        let whole_server = head.target.is_empty() && head.method == Method::Options;
        head.target_prefix = if whole_server { Prefix::Asterisk } else { Prefix::Slash };
    }
    Ok(())
}

fn read_absolute(buf: &[u8], span: Span, head: &mut RequestHead) -> Result<(), Reject> {
    let target = span.bytes(buf);
    let starts = |with: &str| target.get(..with.len()).is_some_and(|t| t.eq_ignore_ascii_case(with.as_bytes()));
    let (scheme, skip) = if starts("http://") {
        (Scheme::Http, 7)
    } else if starts("https://") {
        (Scheme::Https, 8)
    } else {
        return Err(Reject::of(Fault::BadTarget));
    };
    let rest = &target[skip..];
    let length = rest.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(rest.len());
    if length == 0 {
        return Err(Reject::of(Fault::TargetWithoutHost));
    }
    let start = span.start as usize + skip;
    head.parser.target_authority = Some(Authority::read(buf, Span::new(start, start + length))?);
    head.scheme = Some(scheme);
    head.target = Span::new(start + length, span.end as usize);
    Ok(())
}

/// Takes note of a field that decides something, and whether it goes on.
pub(crate) fn note_field(buf: &[u8], mut field: Field, head: &mut RequestHead) -> Result<(), Reject> {
    let value = field.value.bytes(buf);
    let state = &mut head.parser;
    field.forward = false;
    match field.kind {
        Name::Other => {
            field.forward = !field.odd || !Name::is_lookalike(field.name.bytes(buf));
        }
        Name::EndToEnd
        | Name::Date
        | Name::Server
        | Name::Via
        | Name::Trailer
        | Name::Claim
        | Name::Traceparent
        | Name::Tracestate => {
            field.forward = true;
        }
        Name::Host => match state.host {
            Some(_) => return Err(Reject::of(Fault::SeveralHosts)),
            None => state.host = Some(Authority::read(buf, field.value)?),
        },
        Name::ContentLength => note_content_length(value, state)?,
        Name::TransferEncoding => note_transfer_encoding(value, head.version, state)?,
        Name::Connection => state.options.read(value)?,
        Name::Te => {
            head.te_trailers |= list(value).any(|coding| coding.eq_ignore_ascii_case(b"trailers"));
        }
        Name::Expect => {
            let known = value.eq_ignore_ascii_case(b"100-continue") && state.expect.is_none();
            state.expect = Some(if known { Expect::Continue } else { Expect::Unknown });
        }
        Name::Upgrade => {
            state.upgrades += 1;
            head.upgrade = Some(field.value);
        }
        Name::MaxForwards if head.method == Method::Options => {
            let hops = decimal(value).filter(|_| head.max_forwards.is_none());
            head.max_forwards = Some(hops.ok_or(Reject::of(Fault::BadMaxForwards))?);
        }
        Name::MaxForwards => field.forward = true,
        // Written anew by the rewriter as the listener's policy says.
        Name::Forwarded
        | Name::XForwardedFor
        | Name::XForwardedHost
        | Name::XForwardedProto
        | Name::XForwardedOther => {}
        Name::KeepAlive
        | Name::ProxyConnection
        | Name::ProxyAuthenticate
        | Name::ProxyAuthenticationInfo
        | Name::ProxyAuthorization
        | Name::Proxy
        | Name::ClientCert
        | Name::Http2Settings
        | Name::Pseudo(_) => {}
    }
    head.fields.push(field);
    Ok(())
}

fn note_content_length(value: &[u8], state: &mut Parser) -> Result<(), Reject> {
    if state.content_length.is_some() {
        return Err(Reject::of(Fault::SeveralContentLengths));
    }
    if state.chunked {
        return Err(Reject::of(Fault::ContentLengthWithTransferEncoding));
    }
    state.content_length = Some(decimal(value).ok_or(Reject::of(Fault::BadContentLength))?);
    Ok(())
}

fn note_transfer_encoding(value: &[u8], version: Version, state: &mut Parser) -> Result<(), Reject> {
    if version == Version::Http10 {
        return Err(Reject::of(Fault::TransferEncodingInHttp10));
    }
    if state.chunked {
        return Err(Reject::of(Fault::SeveralTransferEncodings));
    }
    if state.content_length.is_some() {
        return Err(Reject::of(Fault::ContentLengthWithTransferEncoding));
    }
    if !value.eq_ignore_ascii_case(b"chunked") {
        return Err(judge_coding(value));
    }
    state.chunked = true;
    Ok(())
}

/// Status for a Transfer-Encoding that is not the single word `chunked` (RFC 9112 §6.1, §6.3): 501 where the body
/// could be told from what follows if only the coding were known, 400 where it could not.
#[cold]
pub(crate) fn judge_coding(value: &[u8]) -> Reject {
    let codings = || list(value);
    let chunked = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked");
    let well_formed = codings().all(super::grammar::is_token);
    let final_chunked = codings().last().is_some_and(chunked);
    if well_formed && final_chunked && codings().filter(|c| chunked(c)).count() == 1 {
        Reject::of(Fault::UnknownTransferCoding)
    } else {
        Reject::of(Fault::BadTransferEncoding)
    }
}

/// Takes note of how the body is framed where that does not stand in a field: `is_body`: there is one, or may be.
pub(crate) fn frame(head: &mut RequestHead, is_body: bool, has_length: bool) {
    match (is_body, has_length) {
        (_, true) => {}
        (true, false) => head.parser.chunked = true,
        // RFC 9110 §8.6: these say so when they have no content.
        (false, false) if matches!(head.method, Method::Post | Method::Put | Method::Patch) => {
            head.parser.content_length = Some(0);
        }
        (false, false) => {}
    }
}

/// Takes note of an authority beside the target. `has_host`: there is a Host field as well; if both differ in
/// spelling, it is judged whether they mean the same.
///
/// # Errors
/// 400: it is none.
pub(crate) fn note_authority(
    buf: &[u8],
    authority: Span,
    has_host: bool,
    is_https: bool,
    head: &mut RequestHead,
) -> Result<(), Reject> {
    let read = Authority::read(buf, authority)?;
    let host = head.parser.host.filter(|_| has_host);
    match host {
        Some(host) if host.text.bytes(buf) == authority.bytes(buf) => {}
        Some(_) => {
            head.scheme = Some(if is_https { Scheme::Https } else { Scheme::Http });
            head.parser.target_authority = Some(read);
        }
        None => head.parser.host = Some(read),
    }
    Ok(())
}

/// Takes note of a protocol that the request is to be upgraded to.
pub(crate) fn note_upgrade(protocol: Span, head: &mut RequestHead) {
    head.upgrade = Some(protocol);
    head.parser.upgrades = 1;
    head.parser.options.upgrade = true;
}

/// Completes a head all of whose fields have been noted.
pub(crate) fn finish(buf: &[u8], head: &mut RequestHead) -> Result<(), Reject> {
    head.parser.phase = Phase::Done;
    let state = head.parser;
    let modern = head.version == Version::Http11;
    if state.options.framing {
        return Err(Reject::of(Fault::ConnectionNamesFraming));
    }
    finish_host(buf, head)?;
    head.body = match (state.chunked, state.content_length) {
        (true, _) => RequestBody::Chunked,
        (false, Some(length)) => RequestBody::Length(length),
        (false, None) => RequestBody::None,
    };
    let has_body = !matches!(head.body, RequestBody::None | RequestBody::Length(0));
    head.keep_alive = !state.options.close && (modern || state.options.keep_alive);
    head.expect_continue = state.expect == Some(Expect::Continue) && modern && has_body;
    if state.upgrades > 1 {
        head.upgrade_list = head.fields.joined(buf, Name::Upgrade);
    }
    let upgradable = modern && !has_body && head.method == Method::Get && state.options.upgrade;
    if !upgradable || !head.protocols(buf).is_some_and(may_upgrade_to) {
        head.upgrade = None;
    }
    head.te_trailers &= modern;
    head.fields.drop_nominated(buf, &state.options);
    // The last of all: the log may then tell of which request.
    match state.expect == Some(Expect::Unknown) && modern {
        true => Err(Reject::of(Fault::UnknownExpectation)),
        false => Ok(()),
    }
}

fn finish_host(buf: &[u8], head: &mut RequestHead) -> Result<(), Reject> {
    let state = &head.parser;
    let host = match (state.host, head.version) {
        (Some(host), _) if !host.text.is_empty() => Some(host),
        (_, Version::Http10) => None,
        (Some(_), _) => return Err(Reject::of(Fault::EmptyHost)),
        (None, _) => return Err(Reject::of(Fault::NoHost)),
    };
    let port = head.scheme.unwrap_or(Scheme::Http).default_port();
    let authority = match (state.target_authority, host) {
        (Some(target), Some(host)) if !target.is_same(&host, port, buf) => {
            return Err(Reject::of(Fault::HostDiffersFromTarget));
        }
        (target, host) => target.or(host).unwrap_or_default(),
    };
    head.host = authority.text;
    head.host_name = authority.name;
    Ok(())
}

/// Protocols that may be switched to through us. A change of the HTTP version or to TLS is between two neighbours;
/// handed on, it would open a channel whose requests nobody here sees (RFC 9110 §7.8).
pub(crate) fn may_upgrade_to(value: &[u8]) -> bool {
    elements(value).next().is_some()
        && elements(value).all(|protocol| {
            let mut parts = protocol.splitn(2, |&b| b == b'/');
            let name = parts.next().unwrap_or_default();
            let banned = ["http", "tls", "h2", "h2c", "h3"];
            super::grammar::is_token(name)
                && parts.next().is_none_or(super::grammar::is_token)
                && !banned.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
        })
}

//! A response head: from the server's bytes to how its body is delimited and how it goes on to the client.

use super::fields::{Lines, Options, parse_field, window};
use super::grammar::{decimal, elements};
use super::request::{judge_coding, may_upgrade_to, read_version};
use super::{Asked, Field, Fields, Limits, Method, Name, Parsed, Reject, Span, Version};
use crate::fault::Fault;

/// How the bytes after the head are delimited on the server's connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseBody {
    #[default]
    None,
    Length(u64),
    Chunked,
    UntilClose,
}

/// The framing fields to announce to the client. Where `ResponseHead::body` is `None` they describe what GET would
/// have brought, and no bytes follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// No framing field: 1xx, 204, 304, and HEAD where the server gave none.
    #[default]
    None,
    Length(u64),
    Chunked,
    /// The end of the connection ends the body; announced as `Connection: close`.
    UntilClose,
}

/// Head of one server's response. Offsets are into the buffer it was parsed from, which begins with the response.
/// Reused as a `RequestHead` is.
#[derive(Clone, Debug, Default)]
pub struct ResponseHead {
    /// Bytes of the head, with its blank line.
    pub length: usize,
    /// 100 to 599.
    pub status: u16,
    pub reason: Span,
    pub version: Version,
    pub body: ResponseBody,
    /// Whether the server's connection can carry another request once the body is read.
    pub keep_alive: bool,
    /// The value of Upgrade, the last where it is given in several lines, in a 101 (what is spoken from here on) or a 426 (what
    /// is asked for). What it names is `protocols`.
    pub upgrade: Option<Span>,
    pub has_date: bool,
    pub fields: Fields,
    /// Content-Length and chunked as stated, whether or not a body follows.
    pub(super) content_length: Option<u64>,
    pub(super) chunked: bool,
    /// The protocols of all Upgrade lines, where there are several.
    upgrade_list: Vec<u8>,
    parser: Parser,
}

#[derive(Clone, Copy, Debug, Default)]
struct Parser {
    phase: Phase,
    lines: Lines,
    options: Options,
    upgrades: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    StatusLine,
    Fields,
    Done,
}

impl ResponseHead {
    /// 1xx but 101: another head follows on the same request.
    pub fn is_informational(&self) -> bool {
        self.status < 200 && self.status != 101
    }

    /// How the body goes to a client of this version: a body without a known length is chunked for those who can
    /// read that, and ended by closing for the others.
    pub fn framing_for(&self, client: Version) -> Framing {
        let chunked = match client {
            Version::Http11 | Version::Http2 => Framing::Chunked,
            Version::Http10 => Framing::UntilClose,
        };
        match self.body {
            ResponseBody::Length(length) => Framing::Length(length),
            ResponseBody::Chunked | ResponseBody::UntilClose => chunked,
            ResponseBody::None if self.status < 200 || self.status == 204 => Framing::None,
            ResponseBody::None => match self.content_length {
                Some(length) => Framing::Length(length),
                None if self.chunked && self.status != 304 && client != Version::Http10 => chunked,
                None => Framing::None,
            },
        }
    }

    /// Forgets the response, keeping the memory.
    pub fn clear(&mut self) {
        // One by one: the fields take a kilobyte, which would be copied to and fro for every request.
        let ResponseHead {
            length,
            status,
            reason,
            version,
            body,
            keep_alive,
            upgrade,
            has_date,
            fields,
            content_length,
            chunked,
            upgrade_list,
            parser,
        } = self;
        fields.clear();
        (*length, *status, *reason, *version) = Default::default();
        (*body, *keep_alive, *upgrade, *has_date) = Default::default();
        (*content_length, *chunked, *parser) = Default::default();
        *upgrade_list = Vec::new();
    }

    /// The list of protocols that a 101 or a 426 names.
    pub fn protocols<'a>(&'a self, buf: &'a [u8]) -> Option<&'a [u8]> {
        let last = self.upgrade?.bytes(buf);
        Some(if self.upgrade_list.is_empty() { last } else { &self.upgrade_list })
    }
}

/// Parses the response at the beginning of `buf`; same manners as `parse_request`. Every reject has status 502.
pub fn parse_response(buf: &[u8], asked: Asked<'_>, limits: &Limits, out: &mut ResponseHead) -> Result<Parsed, Reject> {
    if out.parser.phase == Phase::Done {
        out.clear();
    }
    let mut result = advance(window(buf, limits), asked, limits, out);
    if result == Ok(Parsed::Partial) {
        if buf.len() < limits.head_bytes {
            return result;
        }
        result = Err(Reject::of(Fault::HeadTooLong));
    }
    out.parser.phase = Phase::Done;
    result.map_err(|reject| Reject { status: 502, ..reject })
}

fn advance(buf: &[u8], asked: Asked<'_>, limits: &Limits, head: &mut ResponseHead) -> Result<Parsed, Reject> {
    if head.parser.phase == Phase::StatusLine {
        check_status_line_so_far(buf)?;
    }
    while let Some(line) = head.parser.lines.next(buf)? {
        if head.parser.phase == Phase::StatusLine {
            read_status_line(buf, line, head)?;
            head.parser.phase = Phase::Fields;
            continue;
        }
        if line.is_empty() {
            head.length = line.end as usize + 2;
            finish(buf, asked, head)?;
            return Ok(Parsed::Complete);
        }
        let field = parse_field(buf, line, head.fields.is_empty())?;
        if head.fields.len() == limits.headers {
            return Err(Reject::of(Fault::TooManyFields));
        }
        note_field(buf, field, head)?;
    }
    Ok(Parsed::Partial)
}

/// A server that speaks something else is found out by its first bytes.
fn check_status_line_so_far(buf: &[u8]) -> Result<(), Reject> {
    let known = buf.len().min(5);
    match buf[..known] == b"HTTP/"[..known] {
        true => Ok(()),
        false => Err(Reject::of(Fault::BadStatusLine)),
    }
}

/// The space after the status may be missing along with the reason: many servers leave it out, and it is written anew.
fn read_status_line(buf: &[u8], line: Span, head: &mut ResponseHead) -> Result<(), Reject> {
    const BAD: Reject = Reject::of(Fault::BadStatusLine);
    let text = line.bytes(buf);
    let (version, rest) = text.split_first_chunk::<8>().ok_or(BAD)?;
    head.version = read_version(version)?;
    let (status, reason) = match rest {
        [b' ', status @ ..] if status.len() >= 3 => status.split_at(3),
        _ => return Err(BAD),
    };
    if !matches!(reason, [] | [b' ', ..]) {
        return Err(BAD);
    }
    head.status = match decimal(status) {
        Some(status @ 100..=599) => status as u16,
        _ => return Err(Reject::of(Fault::BadStatus)),
    };
    let end = line.end as usize;
    head.reason = Span::new(end - reason.len().saturating_sub(1), end);
    Ok(())
}

pub(crate) fn note_field(buf: &[u8], mut field: Field, head: &mut ResponseHead) -> Result<(), Reject> {
    let value = field.value.bytes(buf);
    field.forward = false;
    match field.kind {
        Name::ContentLength => {
            if head.content_length.is_some() {
                return Err(Reject::of(Fault::SeveralContentLengths));
            }
            head.content_length = Some(decimal(value).ok_or(Reject::of(Fault::BadContentLength))?);
        }
        Name::TransferEncoding => {
            if head.version == Version::Http10 {
                return Err(Reject::of(Fault::TransferEncodingInHttp10));
            }
            if head.chunked {
                return Err(Reject::of(Fault::SeveralTransferEncodings));
            }
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(judge_coding(value));
            }
            head.chunked = true;
        }
        Name::Connection => head.parser.options.read(value)?,
        Name::Upgrade => {
            head.parser.upgrades += 1;
            head.upgrade = Some(field.value);
        }
        Name::Date => {
            field.forward = !head.has_date;
            head.has_date = true;
        }
        Name::KeepAlive
        | Name::ProxyConnection
        | Name::ProxyAuthenticate
        | Name::ProxyAuthenticationInfo
        | Name::ProxyAuthorization
        | Name::Http2Settings
        | Name::Te => {}
        _ => field.forward = true,
    }
    if head.chunked && head.content_length.is_some() {
        return Err(Reject::of(Fault::ContentLengthWithTransferEncoding));
    }
    head.fields.push(field);
    Ok(())
}

/// Takes note of how the body is framed where no field says so; `whole`: all of it is here, in so many bytes.
pub(crate) fn frame(head: &mut ResponseHead, whole: Option<u64>) {
    match whole {
        Some(length) => head.content_length = Some(length),
        None => head.chunked = true,
    }
}

/// Takes note of the protocol that the server has switched to.
pub(crate) fn note_switch(protocol: Span, head: &mut ResponseHead) {
    head.upgrade = Some(protocol);
    head.parser.upgrades = 1;
    head.parser.options.upgrade = true;
}

/// Completes a head all of whose fields have been noted.
pub(crate) fn finish(buf: &[u8], asked: Asked<'_>, head: &mut ResponseHead) -> Result<(), Reject> {
    head.parser.phase = Phase::Done;
    let options = head.parser.options;
    let no_content = head.status < 200 || head.status == 204;
    head.body = if no_content || head.status == 304 || asked.method == Method::Head {
        ResponseBody::None
    } else if head.chunked {
        ResponseBody::Chunked
    } else {
        head.content_length.map_or(ResponseBody::UntilClose, ResponseBody::Length)
    };
    head.keep_alive = !options.close
        && (head.version == Version::Http11 || options.keep_alive)
        && head.body != ResponseBody::UntilClose
        // A server that announces a body where none can be may well send it: into the next response.
        && !(no_content && head.content_length.is_some_and(|n| n > 0))
        && !(head.chunked && (no_content || head.status == 304));
    finish_upgrade(buf, asked, head)?;
    head.fields.drop_nominated(buf, &options);
    Ok(())
}

fn finish_upgrade(buf: &[u8], asked: Asked<'_>, head: &mut ResponseHead) -> Result<(), Reject> {
    if head.parser.upgrades > 1 {
        head.upgrade_list = head.fields.joined(buf, Name::Upgrade);
    }
    let protocols = head.protocols(buf).filter(|list| head.parser.options.upgrade && may_upgrade_to(list));
    match (head.status, asked.upgrade, protocols) {
        (101, None, _) => return Err(Reject::of(Fault::SwitchedWithoutBeingAsked)),
        (101, _, None) => return Err(Reject::of(Fault::BadSwitch)),
        (101, Some(asked), Some(to)) if !is_among(to, asked) => return Err(Reject::of(Fault::BadSwitch)),
        (101 | 426, _, Some(_)) => {}
        _ => head.upgrade = None,
    }
    Ok(())
}

/// Whether a server switches to nothing but what it was asked for (RFC 9110 §7.8).
fn is_among(switched: &[u8], asked: &[u8]) -> bool {
    elements(switched).all(|to| elements(asked).any(|known| known.eq_ignore_ascii_case(to)))
}

//! Responses of HTTP/2 (RFC 9113 §8.3.2) and trailers (§8.1): read field by field by the rules that HTTP/1's are read
//! by, and written.

use crate::fault::Fault;
use crate::h1::{
    Asked, Field, Framing, Method, Name, Pseudo, Reject, ResponseHead, Span, Version, answer_build, may_trail,
    reason_phrase, write_line,
};

use super::fields::{FieldWriter, is_connection_specific, write_secret_line};

/// Reads a response's head field by field.
#[derive(Debug, Default)]
pub struct ResponseReader {
    status: Option<Span>,
    has_fields: bool,
    reject: Option<Reject>,
    has_length: bool,
    fields: usize,
}

impl ResponseReader {
    /// Takes the next field of the block. `text` holds it; it is a line there.
    #[inline]
    pub fn field(&mut self, text: &[u8], field: Field, asked: Asked<'_>, head: &mut ResponseHead) {
        let result = match field.kind {
            Name::Pseudo(Pseudo::Status) if self.status.is_none() && !self.has_fields => {
                self.status = Some(field.value);
                return;
            }
            Name::Pseudo(_) => Err(Reject { status: 502, fault: Fault::BadFieldName }),
            _ if is_connection_specific(text, &field) => {
                Err(Reject { status: 502, fault: Fault::ConnectionSpecificField })
            }
            // Not heeded in a tunnel (RFC 9110 §9.3.6).
            Name::ContentLength if self.opens_tunnel(text, asked) => Ok(()),
            kind => {
                self.has_length |= kind == Name::ContentLength;
                head.version = Version::Http11;
                answer_build::note_field(text, field, head)
            }
        };
        self.has_fields = true;
        self.fields += 1;
        if let Err(reject) = result {
            self.reject.get_or_insert(Reject { status: 502, ..reject });
        }
    }

    /// Whether the status is one that opens the tunnel that was asked for: any 2xx (RFC 9110 §9.3.6).
    fn opens_tunnel(&self, text: &[u8], asked: Asked<'_>) -> bool {
        let status = self.status.map(|status| status.bytes(text));
        asked.upgrade.is_some() && status.is_some_and(|status| status.len() == 3 && status[0] == b'2')
    }

    /// Completes the head. `whole`: all of the body is here, in so many bytes. Text that the head needs and the server
    /// has not written is written behind the other.
    ///
    /// # Errors
    /// 502: the response is malformed.
    pub fn finish(
        self,
        text: &mut Vec<u8>,
        asked: Asked<'_>,
        (whole, fields_max): (Option<u64>, usize),
        head: &mut ResponseHead,
    ) -> Result<(), Reject> {
        if let Some(reject) = self.reject {
            return Err(reject);
        }
        let status = self.status.unwrap_or_default().bytes(text);
        let status = match status {
            [a @ b'1'..=b'5', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
                u16::from(a - b'0') * 100 + u16::from(b - b'0') * 10 + u16::from(c - b'0')
            }
            _ => return Err(Reject { status: 502, fault: Fault::BadStatus }),
        };
        if self.fields > fields_max {
            return Err(Reject { status: 502, fault: Fault::TooManyFields });
        }
        let is_switch = self.opens_tunnel(text, asked);
        // No other status does, and HTTP/2 has no 101 (RFC 9113 §8.6).
        if status == 101 {
            let was_asked = asked.upgrade.is_some();
            let fault = if was_asked { Fault::BadSwitch } else { Fault::SwitchedWithoutBeingAsked };
            return Err(Reject { status: 502, fault });
        }
        head.version = Version::Http11;
        head.status = if is_switch { 101 } else { status };
        let bodiless = asked.method == Method::Head || status < 200 || matches!(status, 204 | 304);
        if is_switch {
            let start = text.len() as u32;
            text.extend_from_slice(b"websocket");
            answer_build::note_switch(Span { start, end: text.len() as u32 }, head);
        } else {
            let start = text.len() as u32;
            text.extend_from_slice(reason_phrase(status).as_bytes());
            head.reason = Span { start, end: text.len() as u32 };
            if !self.has_length && !bodiless {
                answer_build::frame(head, whole);
            }
        }
        head.length = text.len();
        answer_build::finish(text, asked, head).map_err(|reject| Reject { status: 502, ..reject })?;
        head.version = Version::Http2;
        Ok(())
    }
}

/// Writes a field of trailers behind the lines of the others, unless it may not trail (RFC 9110 §6.5.1). False for a
/// field that trailers cannot have, which makes them malformed (RFC 9113 §8.1).
pub fn read_trailer(text: &[u8], field: Field, lines: &mut Vec<u8>) -> bool {
    if matches!(field.kind, Name::Pseudo(_)) || is_connection_specific(text, &field) {
        return false;
    }
    let (name, value) = (field.name.bytes(text), field.value.bytes(text));
    match may_trail(&field, text) {
        true if field.secret => write_secret_line(name, value, lines),
        true => write_line(name, value, lines),
        false => {}
    }
    true
}

/// Writes a server's final response for a client of HTTP/2. `date` is for a response that has none. `scratch` is for
/// lines.
pub fn write_response(
    (head, text): (&ResponseHead, &[u8]),
    date: &[u8],
    scratch: &mut Vec<u8>,
    out: &mut impl FieldWriter,
) {
    write_response_fields((head, text), date, out);
    scratch.clear();
    answer_build::write_via(head.version, scratch);
    out.lines(scratch);
}

/// As [`write_response`], with further `lines`, as HTTP/1 writes them, and with Via where it `says_via`.
pub fn write_changed_response(
    (head, text): (&ResponseHead, &[u8]),
    date: &[u8],
    (lines, says_via): (&[u8], bool),
    scratch: &mut Vec<u8>,
    out: &mut impl FieldWriter,
) {
    write_response_fields((head, text), date, out);
    scratch.clear();
    if says_via {
        answer_build::write_via(head.version, scratch);
    }
    out.lines(scratch);
    out.lines(lines);
}

#[inline(always)]
fn write_response_fields((head, text): (&ResponseHead, &[u8]), date: &[u8], out: &mut impl FieldWriter) {
    let is_switch = head.status == 101;
    // RFC 8441 §5: a tunnel is open with 200, and what only the handshake of HTTP/1.1 needs is left out.
    write_status(if is_switch { 200 } else { head.status }, out);
    for field in head.fields.iter().filter(|field| field.forward) {
        let name = field.name.bytes(text);
        if is_switch && name.eq_ignore_ascii_case(b"sec-websocket-accept") {
            continue;
        }
        out.field(name, field.value.bytes(text), field.secret);
    }
    if let (Framing::Length(length), false) = (head.framing_for(Version::Http2), is_switch) {
        out.field(b"content-length", itoa::Buffer::new().format(length).as_bytes(), false);
    }
    if !head.has_date {
        out.field(b"date", date, false);
    }
}

/// Writes a 1xx response, behind which the final one is still to come; without Via, as over HTTP/1.
pub fn write_informational(head: &ResponseHead, text: &[u8], out: &mut impl FieldWriter) {
    write_status(head.status, out);
    for field in head.fields.iter().filter(|field| field.forward) {
        out.field(field.name.bytes(text), field.value.bytes(text), field.secret);
    }
}

fn write_status(status: u16, out: &mut impl FieldWriter) {
    let digits = [b'0' + (status / 100 % 10) as u8, b'0' + (status / 10 % 10) as u8, b'0' + (status % 10) as u8];
    out.pseudo(Pseudo::Status, [&digits, b""]);
}

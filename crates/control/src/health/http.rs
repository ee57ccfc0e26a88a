//! A probe by HTTP/1.1, or HTTP/1.0: one request, and an answer read as strictly as any other.

use propylon_config::HttpProbe;
use propylon_http::h1::{Asked, Decoder, Event, Limits, Method, Parsed, ResponseBody, ResponseHead, parse_response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::failure::Failure;
use super::stream::ProbeStream;

/// A head that is longer is no answer to a health check.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// So much of a body is looked at; what is expected has to be in there.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// Heads of 1xx before the answer.
const INFORMATIONAL_MAX: usize = 8;
const READ_BYTES: usize = 4096;
const LIMITS: Limits = Limits { head_bytes: HEAD_BYTES_MAX, headers: 100 };

/// Sends the request and judges the answer. `is_http10`: the server is asked in HTTP/1.0.
pub async fn ask(mut stream: ProbeStream, probe: &HttpProbe, host: &str, is_http10: bool) -> Result<(), Failure> {
    let HttpProbe { path, method, .. } = probe;
    let host = probe.host.as_deref().unwrap_or(host);
    let version = if is_http10 { "1.0" } else { "1.1" };
    let request = format!(
        "{method} {path} HTTP/{version}\r\nHost: {host}\r\nUser-Agent: propylon-health/{}\r\nAccept: */*\r\n\
         Connection: close\r\n\r\n",
        env!("CARGO_PKG_VERSION")
    );
    stream.write_all(request.as_bytes()).await?;
    let mut inbox = Vec::new();
    let head = read_head(&mut stream, &mut inbox, method).await?;
    if !probe.status.iter().any(|range| range.contains(&head.status)) {
        return Err(Failure::new("unexpected-status", head.status.to_string()));
    }
    let Some(expected) = &probe.body else { return Ok(()) };
    inbox.drain(..head.length);
    let mut body = Body { framing: head.body, decoder: Decoder::new(), text: Vec::new(), taken: 0 };
    if find_in_body(&mut stream, &mut inbox, &mut body, expected.as_bytes()).await? {
        return Ok(());
    }
    Err(Failure::new("body-mismatch", format!("status {}, {} bytes without the text", head.status, body.text.len())))
}

async fn read_head(stream: &mut ProbeStream, inbox: &mut Vec<u8>, method: &str) -> Result<ResponseHead, Failure> {
    let method = if method == "HEAD" { Method::Head } else { Method::Get };
    let asked = Asked { method, upgrade: None };
    let mut informational = 0;
    let mut head = ResponseHead::default();
    loop {
        match parse_response(inbox, asked, &LIMITS, &mut head) {
            Err(reject) => return Err(Failure::new("bad-response", reject.fault.label())),
            Ok(Parsed::Complete) if head.is_informational() => {
                informational += 1;
                if informational > INFORMATIONAL_MAX {
                    return Err(Failure::new("bad-response", "too many informational answers"));
                }
                inbox.drain(..head.length);
            }
            Ok(Parsed::Complete) => return Ok(head),
            Ok(Parsed::Partial) => {
                if read_more(stream, inbox).await? == 0 {
                    return Err(Failure::new("closed", "before the end of the answer's head"));
                }
            }
        }
    }
}

async fn read_more(stream: &mut ProbeStream, inbox: &mut Vec<u8>) -> Result<usize, Failure> {
    inbox.reserve(READ_BYTES);
    Ok(stream.read_buf(inbox).await?)
}

struct Body {
    framing: ResponseBody,
    decoder: Decoder,
    /// Without framing.
    text: Vec<u8>,
    /// Bytes taken of a body with a length.
    taken: u64,
}

/// Whether the text is in the first [`BODY_BYTES_MAX`] of the body.
async fn find_in_body(
    stream: &mut ProbeStream,
    inbox: &mut Vec<u8>,
    body: &mut Body,
    expected: &[u8],
) -> Result<bool, Failure> {
    loop {
        let over = body.take(inbox)?;
        if memchr::memmem::find(&body.text, expected).is_some() {
            return Ok(true);
        }
        if over || body.text.len() >= BODY_BYTES_MAX {
            return Ok(false);
        }
        if read_more(stream, inbox).await? == 0 {
            return match body.framing {
                ResponseBody::UntilClose => Ok(false),
                _ => Err(Failure::new("closed", "before the end of the answer's body")),
            };
        }
    }
}

impl Body {
    /// Takes what is there out of the inbox. True at the body's end.
    fn take(&mut self, inbox: &mut Vec<u8>) -> Result<bool, Failure> {
        match self.framing {
            ResponseBody::None => return Ok(true),
            ResponseBody::UntilClose => self.text.append(inbox),
            ResponseBody::Length(length) => {
                let count = (length - self.taken).min(inbox.len() as u64);
                self.text.extend(inbox.drain(..count as usize));
                self.taken += count;
                return Ok(self.taken == length);
            }
            ResponseBody::Chunked => return self.take_chunks(inbox),
        }
        Ok(false)
    }

    fn take_chunks(&mut self, inbox: &mut Vec<u8>) -> Result<bool, Failure> {
        let mut at = 0;
        loop {
            match self
                .decoder
                .next(&inbox[at..])
                .map_err(|reject| Failure::new("bad-response", reject.fault.label()))?
            {
                Event::NeedMore { consumed } => {
                    inbox.drain(..at + consumed);
                    return Ok(false);
                }
                Event::Data { start, end } => {
                    self.text.extend_from_slice(&inbox[at + start..at + end]);
                    at += end;
                }
                Event::End { .. } => return Ok(true),
            }
        }
    }
}

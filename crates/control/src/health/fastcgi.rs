//! A probe by FastCGI: one request for a script, or for what php-fpm answers by itself (`ping.path`).

use propylon_config::{FastCgi, HttpProbe};
use propylon_fastcgi::answer::Head;
use propylon_fastcgi::params::{Facts, Params};
use propylon_fastcgi::records::{self, Decoder, Event, Outcome};
use propylon_fastcgi::script;
use propylon_http::h1::{Asked, Limits, Method, Parsed, ResponseHead, parse_response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::failure::Failure;
use super::http::BODY_BYTES_MAX;
use super::stream::ProbeStream;

/// A head that is longer is no answer to a health check.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Bytes that a server may send in all.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
const READ_BYTES: usize = 4096;
const LIMITS: Limits = Limits { head_bytes: HEAD_BYTES_MAX, headers: 100 };

/// Sends the request and judges the answer.
pub async fn ask(
    mut stream: ProbeStream,
    (probe, settings): (&HttpProbe, &FastCgi),
    host: &str,
) -> Result<(), Failure> {
    let HttpProbe { path, method, .. } = probe;
    let settings = script::of_probe(settings, path);
    let host = probe.host.as_deref().unwrap_or(host);
    let version = env!("CARGO_PKG_VERSION");
    let head =
        format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: propylon-health/{version}\r\nAccept: */*\r\n");
    let client = (std::net::Ipv4Addr::LOCALHOST.into(), None);
    let facts = Facts { protocol: "HTTP/1.1", client, server: None, is_tls: false, extra: &[] };
    let params = Params::of(&settings, head.as_bytes(), &facts);
    let params = params.map_err(|_| Failure::new("bad-response", "the path of the probe is none of a script"))?;
    let request = [params.end(None), records::BODY_END.to_vec()].concat();
    stream.write_all(&request).await?;
    let (head, body) = read(&mut stream, *method == "HEAD").await?;
    if !probe.status.iter().any(|range| range.contains(&head.status)) {
        return Err(Failure::new("unexpected-status", head.status.to_string()));
    }
    let Some(expected) = &probe.body else { return Ok(()) };
    if memchr::memmem::find(&body, expected.as_bytes()).is_some() {
        return Ok(());
    }
    Err(Failure::new("body-mismatch", format!("status {}, {} bytes without the text", head.status, body.len())))
}

/// Head and beginning of the body of a whole answer.
async fn read(stream: &mut ProbeStream, is_head: bool) -> Result<(ResponseHead, Vec<u8>), Failure> {
    let bad = |why: &dyn std::fmt::Display| Failure::new("bad-response", why.to_string());
    let (mut decoder, mut head, mut has_head, mut body) = (Decoder::default(), Head::default(), false, Vec::new());
    let (mut inbox, mut left) = (Vec::with_capacity(READ_BYTES), ANSWER_BYTES_MAX);
    loop {
        let (taken, outcome) = match decoder.next(&inbox).map_err(|flaw| bad(&flaw))? {
            Event::Output { start, end } => {
                let mut here = &inbox[start..end];
                if !has_head {
                    let length = head.take(here, HEAD_BYTES_MAX).map_err(|flaw| bad(&flaw))?;
                    has_head = length.is_some();
                    here = &here[length.unwrap_or(here.len())..];
                }
                body.extend_from_slice(&here[..here.len().min(BODY_BYTES_MAX - body.len())]);
                (end, None)
            }
            Event::Complaint { end, .. } => (end, None),
            Event::NeedMore { consumed } | Event::OutputEnd { consumed } => (consumed, None),
            Event::End { consumed, outcome } => (consumed, Some(outcome)),
        };
        inbox.drain(..taken);
        match outcome {
            Some(Outcome::Complete) if has_head => break,
            Some(Outcome::Refused) => return Err(bad(&"the application is overloaded")),
            Some(_) => return Err(bad(&"the request ended without an answer")),
            None if !inbox.is_empty() => continue,
            None => {}
        }
        inbox.reserve(READ_BYTES);
        let count = stream.read_buf(&mut inbox).await?;
        if count == 0 {
            return Err(Failure::new("closed", "before the end of the answer"));
        }
        left = left.checked_sub(count).ok_or_else(|| bad(&"an answer without an end"))?;
    }
    let text = head.translate(None).map_err(|flaw| bad(&flaw))?;
    let asked = Asked { method: if is_head { Method::Head } else { Method::Get }, upgrade: None };
    let mut response = ResponseHead::default();
    match parse_response(&text, asked, &LIMITS, &mut response) {
        Ok(Parsed::Complete) => Ok((response, body)),
        Ok(Parsed::Partial) => Err(bad(&"half a head")),
        Err(reject) => Err(bad(&reject.fault)),
    }
}

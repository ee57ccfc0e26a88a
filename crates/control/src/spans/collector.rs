//! The collector as the exporter sees it: a connection that is made when it is needed and kept while it is good, and one
//! request on it at a time (OTLP/HTTP, binary).

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::health::stream::ProbeStream;
use crate::names::Names;
use propylon_proxy::trace::Target;

/// More than this nobody has to say to a batch.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Limit on the characters of a collector's answer that are logged.
const WORDS_MAX: usize = 200;

/// Outcome of sending a batch.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The batch was accepted, but for this count of rejected spans.
    Taken { rejected: u64 },
    /// The batch may be sent again, after this time if the collector has said one.
    Later { why: String, after: Option<Duration> },
    /// The batch would be refused again.
    Refused { why: String },
}

/// At most one connection.
#[derive(Default)]
pub struct Collector {
    sender: Option<SendRequest<Full<Bytes>>>,
}

/// Why there was no answer.
struct Lost(String);

impl<E: fmt::Display> From<E> for Lost {
    fn from(error: E) -> Lost {
        Lost(error.to_string())
    }
}

impl Collector {
    /// Sends a batch and waits for what is said to it, within the target's timeout.
    pub async fn send(&mut self, target: &Target, body: Bytes) -> Outcome {
        match timeout(target.timeout, self.ask(target, body)).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(Lost(why))) => self.lose(why),
            Err(_) => self.lose(format!("no answer within {} ms", target.timeout.as_millis())),
        }
    }

    /// The collector is another from here on.
    pub fn forget(&mut self) {
        self.sender = None;
    }

    fn lose(&mut self, why: String) -> Outcome {
        self.forget();
        Outcome::Later { why, after: None }
    }

    async fn ask(&mut self, target: &Target, body: Bytes) -> Result<Outcome, Lost> {
        // A kept connection may have been closed meanwhile: what is sent on it is then sent on a new one.
        if let Some(mut sender) = self.sender.take()
            && sender.ready().await.is_ok()
            && let Ok(answer) = sender.send_request(request(target, body.clone())?).await
        {
            self.sender = Some(sender);
            return self.read(answer).await;
        }
        let mut sender = connect(target).await?;
        let answer = sender.send_request(request(target, body)?).await?;
        self.sender = Some(sender);
        self.read(answer).await
    }

    async fn read(&mut self, answer: Response<hyper::body::Incoming>) -> Result<Outcome, Lost> {
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await;
        // An answer whose rest is not read leaves a connection that nothing can be sent on.
        let body = body.map(|body| body.to_bytes()).unwrap_or_else(|_| {
            self.forget();
            Bytes::new()
        });
        let after = head.headers.get(RETRY_AFTER).and_then(retry_after);
        Ok(judge(head.status, after, &body))
    }
}

async fn connect(target: &Target) -> Result<SendRequest<Full<Bytes>>, Lost> {
    let found = Names::new(&target.resolver).look_up(&target.endpoint.address).await?;
    let mut failed = Lost("there is no address".into());
    for address in found.targets.into_iter().map(|found| found.address) {
        let Some(address) = address.ip() else { continue };
        let stream = match TcpStream::connect(address).await {
            Ok(stream) => stream,
            Err(error) => {
                failed = Lost(format!("{address}: {error}"));
                continue;
            }
        };
        let line = match &target.tls {
            None => ProbeStream::Plain(stream),
            Some(profile) => ProbeStream::secure(stream, &profile.connector(), 0, None, &Cell::default()).await?,
        };
        let (sender, connection) = handshake(TokioIo::new(line)).await?;
        // The task ends with the sender, or when the collector closes the connection; the sender hears of that.
        spawn_local(async move {
            let _ = connection.await;
        });
        return Ok(sender);
    }
    Err(failed)
}

fn request(target: &Target, body: Bytes) -> Result<Request<Full<Bytes>>, Lost> {
    let mut request = Request::builder().method(Method::POST).uri(&target.endpoint.path).body(Full::new(body))?;
    let headers = request.headers_mut();
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("propylon/", env!("CARGO_PKG_VERSION"))));
    for (name, value) in &target.headers {
        headers.append(name, value.clone());
    }
    headers.insert(HOST, HeaderValue::from_str(&target.endpoint.authority)?);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    Ok(request)
}

/// Judges by OTLP 1.x, "OTLP/HTTP Response": only these four statuses may be tried again.
fn judge(status: StatusCode, after: Option<Duration>, body: &[u8]) -> Outcome {
    let why = || format!("status {}{}", status.as_u16(), words(body));
    match status.as_u16() {
        200..=299 => {
            let partial = ExportTraceServiceResponse::decode(body).ok().and_then(|answer| answer.partial_success);
            Outcome::Taken { rejected: partial.map_or(0, |partial| partial.rejected_spans.max(0) as u64) }
        }
        429 | 503 => Outcome::Later { why: why(), after },
        502 | 504 => Outcome::Later { why: why(), after: None },
        _ => Outcome::Refused { why: why() },
    }
}

/// The readable beginning of an answer, as far as that is text.
fn words(body: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(body)
        .chars()
        .filter(|character| !character.is_control() && *character != '\u{fffd}')
        .take(WORDS_MAX)
        .collect();
    if text.is_empty() { text } else { format!(": {text}") }
}

/// Seconds, or a date (RFC 9110 §10.2.3).
fn retry_after(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(std::time::SystemTime::now()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;

    use super::*;

    #[test]
    fn a_status_says_whether_a_batch_is_sent_again() {
        let second = Some(Duration::from_secs(1));
        for status in [429, 503] {
            let judged = judge(StatusCode::from_u16(status).unwrap(), second, b"");
            assert_eq!(judged, Outcome::Later { why: format!("status {status}"), after: second });
        }
        for status in [502, 504] {
            let judged = judge(StatusCode::from_u16(status).unwrap(), second, b"x\n\xff");
            assert_eq!(judged, Outcome::Later { why: format!("status {status}: x"), after: None });
        }
        for status in [301, 400, 401, 403, 404, 408, 413, 500, 501] {
            let judged = judge(StatusCode::from_u16(status).unwrap(), second, b"");
            assert_eq!(judged, Outcome::Refused { why: format!("status {status}") });
        }
    }

    #[test]
    fn a_batch_that_was_taken_in_part_is_not_sent_again() {
        let partial = ExportTracePartialSuccess { rejected_spans: 3, error_message: "too old".into() };
        let answer = ExportTraceServiceResponse { partial_success: Some(partial) }.encode_to_vec();
        assert_eq!(judge(StatusCode::OK, None, &answer), Outcome::Taken { rejected: 3 });
        assert_eq!(judge(StatusCode::OK, None, b""), Outcome::Taken { rejected: 0 });
        assert_eq!(judge(StatusCode::ACCEPTED, None, b"\xff\xff<html>"), Outcome::Taken { rejected: 0 });
    }

    #[test]
    fn when_to_come_back_is_in_seconds_or_a_date() {
        let read = |text: &str| retry_after(&HeaderValue::from_str(text).unwrap());
        assert_eq!(read("120"), Some(Duration::from_secs(120)));
        assert_eq!(read("Fri, 31 Dec 1999 23:59:59 GMT"), Some(Duration::ZERO));
        assert!(read("Fri, 31 Dec 2100 23:59:59 GMT").expect("a date") > Duration::from_secs(1 << 30));
        assert_eq!((read("soon"), read("-1"), read("")), (None, None, None));
    }
}

//! A collector of traces that reads OTLP by itself: protobuf as its wire format has it, field by field, and the numbers of
//! fields from the protocol's definition.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use crate::http::head_end;
use crate::origin::{Origin, Peer};
use crate::wait::{WAIT_MAX, eventually};

/// What a collector says that takes a batch.
pub const TAKEN: &str = "HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n";

pub const SERVER: u64 = 2;
pub const CLIENT: u64 = 3;
/// The status code of a span that has failed.
pub const ERROR: u64 = 2;

pub struct Collector {
    origin: Origin,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    /// Heads of requests, in the order they came.
    heads: Vec<String>,
    /// Of batches that were taken.
    spans: Vec<Span>,
}

#[derive(Clone, Debug, Default)]
pub struct Span {
    /// In hexadecimal digits, as all identifiers.
    pub trace: String,
    pub span: String,
    /// Empty where there is none.
    pub parent: String,
    pub state: String,
    pub name: String,
    pub kind: u64,
    pub flags: u64,
    pub started: u64,
    pub ended: u64,
    pub status: u64,
    /// Numbers and truths as text, too.
    pub attributes: BTreeMap<String, String>,
    pub resource: BTreeMap<String, String>,
    pub scope: String,
}

impl Span {
    /// An attribute; empty where there is none.
    pub fn of(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

impl Collector {
    /// Takes everything.
    pub fn start() -> Collector {
        Collector::answering(|_| TAKEN.into())
    }

    /// Answers its requests, which are counted from 0.
    pub fn answering(answer: impl Fn(usize) -> String + Send + Sync + 'static) -> Collector {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let kept = Arc::clone(&seen);
        let origin = Origin::scripted(move |peer| {
            while let Some(request) = peer.read_request() {
                let end = head_end(&request).expect("a head");
                let mut seen = kept.lock().expect("no story panics with it");
                let answer = answer(seen.heads.len());
                seen.heads.push(String::from_utf8_lossy(&request[..end]).into_owned());
                if answer.starts_with("HTTP/1.1 200 ") {
                    seen.spans.extend(batch(&request[end..]));
                }
                drop(seen);
                peer.send(answer);
            }
        });
        Collector { origin, seen }
    }

    /// Takes connections and requests, and says nothing.
    pub fn silent() -> Collector {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let kept = Arc::clone(&seen);
        let origin = Origin::scripted(move |peer: &mut Peer| {
            while let Some(request) = peer.read_request() {
                let end = head_end(&request).expect("a head");
                kept.lock().expect("no story panics with it").heads.push(text(&request[..end]));
            }
        });
        Collector { origin, seen }
    }

    pub fn address(&self) -> SocketAddr {
        self.origin.address()
    }

    pub fn connections(&self) -> usize {
        self.origin.connections()
    }

    /// Lines of `[tracing]` that record everything here; `more` is put below.
    pub fn config(&self, more: &str) -> String {
        let sample = if more.contains("sample =") { "" } else { "sample = 1\n" };
        format!("[tracing]\nendpoint = \"http://{}\"\n{sample}{more}\n", self.address())
    }

    pub fn heads(&self) -> Vec<String> {
        self.seen.lock().expect("no story panics with it").heads.clone()
    }

    pub fn spans(&self) -> Vec<Span> {
        self.seen.lock().expect("no story panics with it").spans.clone()
    }

    /// The span of a request for this path; it may still be on its way.
    #[track_caller]
    pub fn served(&self, path: &str) -> Span {
        self.found(&format!("the span of {path}"), |span| span.kind == SERVER && span.of("url.path") == path)
    }

    #[track_caller]
    pub fn found(&self, what: &str, fits: impl Fn(&Span) -> bool) -> Span {
        eventually(WAIT_MAX, what, || self.spans().into_iter().find(|span| fits(span)))
    }

    /// The spans below this one, by their beginning. They are sent before it.
    pub fn below(&self, span: &Span) -> Vec<Span> {
        let mut below: Vec<Span> = self.spans().into_iter().filter(|each| each.parent == span.span).collect();
        below.sort_by_key(|span| span.started);
        below
    }
}

/// One field of a message: its number, and what it holds.
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// A message's fields (protobuf's wire format).
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn varint(&mut self) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.0[0];
            self.0 = &self.0[1..];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return value;
            }
        }
        panic!("a number without an end");
    }
}

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u64, Value<'a>);

    fn next(&mut self) -> Option<(u64, Value<'a>)> {
        if self.0.is_empty() {
            return None;
        }
        let tag = self.varint();
        let value = match tag & 7 {
            0 => Value::Number(self.varint()),
            1 => Value::Number(u64::from_le_bytes(self.take(8).try_into().expect("eight bytes"))),
            2 => {
                let length = self.varint() as usize;
                Value::Bytes(self.take(length))
            }
            5 => Value::Number(u32::from_le_bytes(self.take(4).try_into().expect("four bytes")).into()),
            other => panic!("wire type {other}"),
        };
        Some((tag >> 3, value))
    }
}

/// ExportTraceServiceRequest: the spans in it.
fn batch(bytes: &[u8]) -> Vec<Span> {
    let mut spans = Vec::new();
    for resource_spans in messages(bytes, 1) {
        let resource =
            messages(resource_spans, 1).flat_map(|resource| attributes(resource, 1)).collect::<BTreeMap<_, _>>();
        for scope_spans in messages(resource_spans, 2) {
            let scope = messages(scope_spans, 1).flat_map(|scope| messages(scope, 1)).map(text).collect::<String>();
            for bytes in messages(scope_spans, 2) {
                spans.push(Span { resource: resource.clone(), scope: scope.clone(), ..span(bytes) });
            }
        }
    }
    spans
}

fn span(bytes: &[u8]) -> Span {
    let mut span = Span { attributes: attributes(bytes, 9).collect(), ..Span::default() };
    for field in Fields(bytes) {
        match field {
            (1, Value::Bytes(bytes)) => span.trace = hex(bytes),
            (2, Value::Bytes(bytes)) => span.span = hex(bytes),
            (3, Value::Bytes(bytes)) => span.state = text(bytes),
            (4, Value::Bytes(bytes)) => span.parent = hex(bytes),
            (5, Value::Bytes(bytes)) => span.name = text(bytes),
            (6, Value::Number(kind)) => span.kind = kind,
            (7, Value::Number(nanoseconds)) => span.started = nanoseconds,
            (8, Value::Number(nanoseconds)) => span.ended = nanoseconds,
            (15, Value::Bytes(status)) => span.status = number(status, 3).unwrap_or_default(),
            (16, Value::Number(flags)) => span.flags = flags,
            _ => {}
        }
    }
    span
}

/// The messages (or texts) of a repeated field.
fn messages(bytes: &[u8], number: u64) -> impl Iterator<Item = &[u8]> {
    Fields(bytes).filter_map(move |field| match field {
        (found, Value::Bytes(bytes)) if found == number => Some(bytes),
        _ => None,
    })
}

fn number(bytes: &[u8], number: u64) -> Option<u64> {
    Fields(bytes).find_map(|field| match field {
        (found, Value::Number(value)) if found == number => Some(value),
        _ => None,
    })
}

/// KeyValue: a text, and an AnyValue of text, truth or number.
fn attributes(bytes: &[u8], field: u64) -> impl Iterator<Item = (String, String)> {
    messages(bytes, field).map(|pair| {
        let key = messages(pair, 1).map(text).collect();
        let value = messages(pair, 2).next().expect("a value");
        let value = match (messages(value, 1).next(), number(value, 2), number(value, 3)) {
            (Some(bytes), ..) => text(bytes),
            // A list of texts.
            (None, None, None) if let Some(list) = messages(value, 5).next() => {
                messages(list, 1).flat_map(|one| messages(one, 1)).map(text).collect::<Vec<String>>().join(",")
            }
            (_, Some(truth), _) => (truth != 0).to_string(),
            (.., Some(number)) => (number as i64).to_string(),
            // Zero, which is not written, cannot be: it is one of several kinds here.
            _ => panic!("a value of no known kind"),
        };
        (key, value)
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

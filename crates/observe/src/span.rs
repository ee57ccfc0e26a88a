//! A span as a core writes it down, and a batch of them as OTLP has it.

use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyKind;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1 as proto;
use prost::Message;

use propylon_http::trace_context::{Context, SpanId};

/// Bytes of an attribute from a client, at most; the rest is cut off.
pub const ATTRIBUTE_BYTES_MAX: usize = 1024;
/// A longer `tracestate` goes on to servers, but is not written down.
pub const STATE_BYTES_MAX: usize = 512;
/// Schema that the attributes' names are of.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.37.0";

/// Facts of a request, or of an attempt at a server, when it has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub context: Context,
    /// Parent of the span; `None` where the trace begins.
    pub parent: Option<SpanId>,
    /// The parent is a client's.
    pub parent_is_remote: bool,
    pub kind: Kind,
    /// As the client sent it.
    pub state: Option<Box<str>>,
    pub name: String,
    pub started: SystemTime,
    pub lasted: Duration,
    pub attributes: Vec<Attribute>,
    pub failed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A client's request.
    Server,
    /// One attempt at a server.
    Client,
}

pub type Attribute = (&'static str, Value);

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(String),
    Word(&'static str),
    Number(i64),
    Is(bool),
    /// Value of a header field, whose name in lower case is the end of the attribute's.
    Field {
        name: String,
        value: String,
    },
}

impl Value {
    /// Value from a client's bytes, cut to a length.
    pub fn of(bytes: &[u8]) -> Value {
        let cut = &bytes[..bytes.len().min(ATTRIBUTE_BYTES_MAX)];
        // A character that was cut through is left out whole.
        let whole = match std::str::from_utf8(cut) {
            Err(error) if error.error_len().is_none() => &cut[..error.valid_up_to()],
            _ => cut,
        };
        let mut text = String::from_utf8_lossy(whole).into_owned();
        // Bytes that are no text take more room in their replacement.
        let mut end = text.len().min(ATTRIBUTE_BYTES_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        Value::Text(text)
    }
}

/// A batch, ready to be sent. `resource` is what the process says of itself.
pub fn encode(spans: Vec<Span>, resource: &[(String, String)]) -> Vec<u8> {
    let text = |(key, value): &(String, String)| attribute(key, AnyKind::StringValue(value.clone()));
    let scope = InstrumentationScope {
        name: "propylon".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        ..InstrumentationScope::default()
    };
    let scope_spans = proto::ScopeSpans {
        scope: Some(scope),
        spans: spans.into_iter().map(span).collect(),
        schema_url: SCHEMA_URL.into(),
    };
    let resource = Resource { attributes: resource.iter().map(text).collect(), ..Resource::default() };
    let resource_spans = proto::ResourceSpans {
        resource: Some(resource),
        scope_spans: vec![scope_spans],
        schema_url: SCHEMA_URL.into(),
    };
    ExportTraceServiceRequest { resource_spans: vec![resource_spans] }.encode_to_vec()
}

fn span(span: Span) -> proto::Span {
    let is_remote = if span.parent_is_remote { proto::SpanFlags::ContextIsRemoteMask as u32 } else { 0 };
    let flags = u32::from(span.context.flags()) | proto::SpanFlags::ContextHasIsRemoteMask as u32 | is_remote;
    let started = span.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    let kind = match span.kind {
        Kind::Server => proto::span::SpanKind::Server,
        Kind::Client => proto::span::SpanKind::Client,
    };
    let code = if span.failed { proto::status::StatusCode::Error } else { proto::status::StatusCode::Unset };
    let attributes = span.attributes.into_iter().map(|(key, value)| match value {
        Value::Field { name, value } => attribute(&format!("{key}.{name}"), texts([value])),
        value => attribute(key, any(value)),
    });
    proto::Span {
        trace_id: span.context.trace.bytes().to_vec(),
        span_id: span.context.span.bytes().to_vec(),
        trace_state: span.state.map(String::from).unwrap_or_default(),
        parent_span_id: span.parent.map(|parent| parent.bytes().to_vec()).unwrap_or_default(),
        flags,
        name: span.name,
        kind: kind.into(),
        start_time_unix_nano: started,
        end_time_unix_nano: started.saturating_add(span.lasted.as_nanos() as u64),
        attributes: attributes.collect(),
        status: Some(proto::Status { code: code.into(), ..proto::Status::default() }),
        ..proto::Span::default()
    }
}

fn any(value: Value) -> AnyKind {
    match value {
        Value::Text(text) => AnyKind::StringValue(text),
        Value::Word(word) => AnyKind::StringValue(word.into()),
        Value::Number(number) => AnyKind::IntValue(number),
        Value::Is(is) => AnyKind::BoolValue(is),
        Value::Field { value, .. } => texts([value]),
    }
}

/// Texts as a list, which values of fields are even if there is one.
fn texts(values: impl IntoIterator<Item = String>) -> AnyKind {
    let one = |text| AnyValue { value: Some(AnyKind::StringValue(text)) };
    AnyKind::ArrayValue(ArrayValue { values: values.into_iter().map(one).collect() })
}

fn attribute(key: &str, value: AnyKind) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use propylon_http::trace_context::parse_parent;

    #[test]
    fn a_batch_says_what_the_spans_say() {
        let parent = parse_parent(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").expect("a parent");
        let field = Value::Field { name: "x-request-id".into(), value: "7".into() };
        let written = Span {
            context: parent.context,
            parent: SpanId::new([7; 8]),
            parent_is_remote: true,
            kind: Kind::Server,
            state: Some("a=b".into()),
            name: "GET /x/*".into(),
            started: SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 5),
            lasted: Duration::from_nanos(20),
            attributes: vec![
                ("a", Value::Number(-1)),
                ("b", Value::Is(true)),
                ("c", Value::Word("w")),
                ("http.request.header", field),
            ],
            failed: true,
        };
        let bytes = encode(vec![written], &[("service.name".into(), "edge".into())]);
        let mut read = ExportTraceServiceRequest::decode(bytes.as_slice()).expect("what was encoded");
        let mut resource = read.resource_spans.remove(0);
        assert_eq!(resource.resource.expect("one").attributes[0].key, "service.name");
        let span = resource.scope_spans.remove(0).spans.remove(0);
        assert_eq!(span.trace_id, parent.context.trace.bytes());
        assert_eq!((span.parent_span_id, span.trace_state.as_str()), (vec![7; 8], "a=b"));
        assert_eq!((span.flags, span.kind, span.status.expect("one").code), (0x301, 2, 2));
        let from = 1_700_000_000_000_000_005;
        assert_eq!((span.start_time_unix_nano, span.end_time_unix_nano), (from, from + 20));
        assert_eq!(span.attributes.len(), 4);
        let AnyKind::ArrayValue(values) = span.attributes[3].value.clone().expect("one").value.expect("one") else {
            panic!("a list")
        };
        assert_eq!((span.attributes[3].key.as_str(), values.values.len()), ("http.request.header.x-request-id", 1));
    }

    #[test]
    fn what_a_client_sends_is_cut_between_characters() {
        let long = "é".repeat(ATTRIBUTE_BYTES_MAX);
        for from in 0..3 {
            let Value::Text(text) = Value::of(&long.as_bytes()[from..]) else { panic!("a text") };
            assert!(text.len() <= ATTRIBUTE_BYTES_MAX && text.ends_with('é'), "{} bytes", text.len());
        }
        let Value::Text(text) = Value::of(&[0xff; 4 * ATTRIBUTE_BYTES_MAX]) else { panic!("a text") };
        assert!((ATTRIBUTE_BYTES_MAX - 3..=ATTRIBUTE_BYTES_MAX).contains(&text.len()), "{} bytes", text.len());
        assert_eq!(Value::of(b"a\xffb"), Value::Text("a\u{fffd}b".into()));
    }
}

//! Lines of the access log whose fields were chosen, and the Combined Log Format.

use std::io::Write;

use propylon_config::{LogFact, LogField, LogFormat};

use super::{Record, RelayRecord, TlsFields, text};

/// Fields of logfmt where none were chosen.
const LOGFMT: &[LogFact] = &[
    LogFact::Time,
    LogFact::Client,
    LogFact::Listener,
    LogFact::Host,
    LogFact::Method,
    LogFact::Path,
    LogFact::Protocol,
    LogFact::Status,
    LogFact::BytesReceived,
    LogFact::BytesSent,
    LogFact::Total,
    LogFact::FirstByte,
    LogFact::Backend,
    LogFact::Server,
    LogFact::Attempts,
    LogFact::TlsVersion,
    LogFact::Fault,
    LogFact::RequestId,
    LogFact::TraceId,
];

/// Form of lines that are not the whole record in JSON.
#[derive(Clone, Debug)]
pub struct Format {
    kind: LogFormat,
    fields: Vec<LogField>,
}

/// Subject of a line.
pub(super) enum Subject<'a> {
    Request(&'a Record<'a>),
    Relay(&'a RelayRecord<'a>),
}

/// Value of a field; nothing where it is not known.
enum Value<'a> {
    Nothing,
    Text(&'a [u8]),
    Owned(String),
    Number(u64),
    Is(bool),
}

impl Format {
    /// The form that a configuration asks for; `None` for the whole record in JSON.
    pub fn of(kind: LogFormat, fields: &[LogField]) -> Option<Format> {
        let fields = match kind {
            LogFormat::Json if fields.is_empty() => return None,
            LogFormat::Logfmt if fields.is_empty() => LOGFMT.iter().map(|fact| LogField::Fact(*fact)).collect(),
            _ => fields.to_vec(),
        };
        Some(Format { kind, fields })
    }

    /// Writes a line without its end. `time` is in UTC, to the second and its milliseconds.
    pub(super) fn write(&self, subject: &Subject<'_>, time: &Time<'_>, out: &mut Vec<u8>) {
        if self.kind == LogFormat::Combined {
            return write_combined(subject, time, out);
        }
        let is_json = self.kind == LogFormat::Json;
        let mut separator: &[u8] = if is_json { b"{" } else { b"" };
        for field in &self.fields {
            let value = match field {
                LogField::Fact(LogFact::Time) => Value::Owned(format!("{}.{:03}Z", time.second, time.millis)),
                LogField::Fact(fact) => subject.value(*fact),
                LogField::Header(name) => subject.header(name),
            };
            out.extend_from_slice(separator);
            separator = if is_json { b"," } else { b" " };
            match field {
                LogField::Fact(fact) => write_pair(is_json, ("", fact.name()), &value, out),
                LogField::Header(name) => write_pair(is_json, ("header.", name), &value, out),
            }
        }
        if is_json {
            out.extend_from_slice(if self.fields.is_empty() { b"{}" } else { b"}" });
        }
    }
}

/// A moment in UTC.
pub(super) struct Time<'a> {
    /// As in `2026-11-20T22:20:00`.
    pub second: &'a str,
    /// As in `20/Nov/2026:22:20:00 +0000`.
    pub clf: &'a str,
    pub millis: u32,
}

fn write_pair(is_json: bool, (prefix, name): (&str, &str), value: &Value<'_>, out: &mut Vec<u8>) {
    if is_json {
        let _ = write!(out, "\"{prefix}{name}\":");
    } else {
        let _ = write!(out, "{prefix}{name}=");
    }
    match value {
        Value::Nothing if is_json => out.extend_from_slice(b"null"),
        Value::Nothing => {}
        Value::Text(bytes) => write_text(is_json, bytes, out),
        Value::Owned(bytes) => write_text(is_json, bytes.as_bytes(), out),
        Value::Number(number) => {
            let _ = write!(out, "{number}");
        }
        Value::Is(is) => {
            let _ = write!(out, "{is}");
        }
    }
}

/// A text, in logfmt without quotes where it needs none.
fn write_text(is_json: bool, bytes: &[u8], out: &mut Vec<u8>) {
    let is_bare = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'=' | b'\\');
    match is_json || bytes.is_empty() || !bytes.iter().all(is_bare) {
        true => text(out, bytes),
        false => out.extend_from_slice(bytes),
    }
}

/// `ADDRESS - USER [TIME] "METHOD TARGET PROTOCOL" STATUS BYTES "REFERER" "USER-AGENT"`, as Apache httpd's `combined`
/// and nginx's: BYTES are those of the body; what could end a quoted part or the line is written as `\xHH`.
fn write_combined(subject: &Subject<'_>, time: &Time<'_>, out: &mut Vec<u8>) {
    let (client, status, sent, user) = match subject {
        Subject::Request(record) => {
            (record.client, record.status, record.bytes_sent.saturating_sub(record.heads_sent), record.user())
        }
        Subject::Relay(record) => (record.client, 0, record.bytes_sent, None),
    };
    let _ = write!(out, "{} - ", client.ip());
    for (place, word) in user.unwrap_or(b"-").split(|byte| *byte == b' ').enumerate() {
        // Readers take a blank for the end of the name.
        out.extend_from_slice(if place > 0 { b"\\x20" } else { b"" });
        escaped(word, out);
    }
    let _ = write!(out, " [{}] \"", time.clf);
    match subject {
        // A head that could not be read has no request line with them either.
        Subject::Request(record) if record.method.is_empty() => out.push(b'-'),
        Subject::Request(record) => {
            escaped(record.method, out);
            out.push(b' ');
            escaped(record.target, out);
            let protocol = if record.protocol == "HTTP/2" { "HTTP/2.0" } else { record.protocol };
            let _ = write!(out, " {protocol}");
        }
        Subject::Relay(record) => {
            out.extend_from_slice(b"- ");
            escaped(record.server_name.unwrap_or("-").as_bytes(), out);
            let _ = write!(out, " {}", record.protocol);
        }
    }
    match status {
        0 => out.extend_from_slice(b"\" - "),
        status => {
            let _ = write!(out, "\" {status} ");
        }
    }
    let _ = write!(out, "{sent}");
    for name in ["referer", "user-agent"] {
        out.extend_from_slice(b" \"");
        match subject.header(name) {
            Value::Text(value) => escaped(value, out),
            _ => out.push(b'-'),
        }
        out.push(b'"');
    }
}

fn escaped(bytes: &[u8], out: &mut Vec<u8>) {
    for &byte in bytes {
        match byte {
            b'"' | b'\\' | 0..0x20 | 0x7f.. => {
                let _ = write!(out, "\\x{byte:02X}");
            }
            _ => out.push(byte),
        }
    }
}

impl Subject<'_> {
    fn header(&self, name: &str) -> Value<'_> {
        let Subject::Request(Record { head: Some((fields, head)), .. }) = self else { return Value::Nothing };
        fields.value(head, name).map_or(Value::Nothing, Value::Text)
    }

    fn value(&self, fact: LogFact) -> Value<'_> {
        let tls = match self {
            Subject::Request(record) => record.tls,
            Subject::Relay(record) => record.tls,
        };
        if let Some(value) = tls_value(fact, tls) {
            return value;
        }
        match self {
            Subject::Request(record) => request_value(record, fact),
            Subject::Relay(record) => relay_value(record, fact),
        }
    }
}

fn request_value<'a>(record: &'a Record<'_>, fact: LogFact) -> Value<'a> {
    let durations = &record.durations;
    match fact {
        LogFact::Client => Value::Owned(record.client.to_string()),
        LogFact::ClientIp => Value::Owned(record.client.ip().to_string()),
        LogFact::Listener => Value::Text(record.listener.as_bytes()),
        LogFact::Host => Value::Text(record.host),
        LogFact::Method => Value::Text(record.method),
        LogFact::Path => Value::Text(record.target),
        LogFact::Protocol => Value::Text(record.protocol.as_bytes()),
        LogFact::Status => Value::Number(record.status.into()),
        LogFact::BytesReceived => Value::Number(record.bytes_received),
        LogFact::BytesSent => Value::Number(record.bytes_sent),
        LogFact::Total => Value::Number(durations.total),
        LogFact::Handshake => number(durations.handshake),
        LogFact::Head => Value::Number(durations.head),
        LogFact::Queue => number(durations.queue),
        LogFact::Connect => number(durations.connect),
        LogFact::FirstByte => number(durations.first_byte),
        LogFact::Route => word(record.route),
        LogFact::Backend => word(record.backend),
        LogFact::Server => word(record.server),
        LogFact::Attempts => Value::Number(record.attempts.into()),
        LogFact::Reused => Value::Is(record.reused),
        LogFact::Fault => word(record.fault.map(|fault| fault.label())),
        LogFact::RequestId => word(record.request_id),
        LogFact::User => record.user().map_or(Value::Nothing, Value::Text),
        LogFact::TraceId => match &record.trace {
            Some(trace) => Value::Owned(String::from_utf8_lossy(&trace.hex()).into_owned()),
            None => Value::Nothing,
        },
        _ => Value::Nothing,
    }
}

fn relay_value<'a>(record: &'a RelayRecord<'_>, fact: LogFact) -> Value<'a> {
    match fact {
        LogFact::Client => Value::Owned(record.client.to_string()),
        LogFact::ClientIp => Value::Owned(record.client.ip().to_string()),
        LogFact::Listener => Value::Text(record.listener.as_bytes()),
        LogFact::Protocol => Value::Text(record.protocol.as_bytes()),
        LogFact::BytesReceived => Value::Number(record.bytes_received),
        LogFact::BytesSent => Value::Number(record.bytes_sent),
        LogFact::Total => Value::Number(record.total_us),
        LogFact::Handshake => number(record.handshake_us),
        LogFact::Queue => number(record.queue_us),
        LogFact::Connect => number(record.connect_us),
        LogFact::Backend => word(record.backend),
        LogFact::Server => word(record.server),
        LogFact::Attempts => Value::Number(record.attempts.into()),
        LogFact::Fault => word(record.fault.map(|fault| fault.label())),
        LogFact::TlsServerName => word(record.server_name),
        _ => Value::Nothing,
    }
}

/// Value of a fact of TLS, where it is one and is known.
fn tls_value<'a>(fact: LogFact, tls: Option<&'a TlsFields<'_>>) -> Option<Value<'a>> {
    let tls = tls?;
    Some(match fact {
        LogFact::TlsVersion => Value::Text(tls.version.as_bytes()),
        LogFact::TlsSuite => Value::Text(tls.suite.as_bytes()),
        LogFact::TlsGroup => word(tls.group),
        LogFact::TlsCertificate => word(tls.certificate),
        LogFact::TlsAlpn => word(tls.alpn),
        LogFact::TlsResumed => Value::Is(tls.resumed),
        LogFact::TlsServerName => Value::Text(tls.server_name?.as_bytes()),
        LogFact::TlsJa4 => word(tls.ja4),
        LogFact::ClientSubject => word(tls.client.map(|client| &*client.subject)),
        LogFact::ClientSha256 => word(tls.client.map(|client| &*client.sha256)),
        _ => return None,
    })
}

fn word(text: Option<&str>) -> Value<'_> {
    text.map_or(Value::Nothing, |text| Value::Text(text.as_bytes()))
}

fn number(number: Option<u64>) -> Value<'static> {
    number.map_or(Value::Nothing, Value::Number)
}

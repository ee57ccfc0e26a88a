//! The section `[log]`.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Serialize, Serializer};

use super::Level;
use crate::shown;

/// Section `[log]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Log {
    /// Destination of the access log, which has one line per request. Default off.
    pub access: AccessLog,
    /// Form of its lines. Default JSON.
    pub format: LogFormat,
    /// Fields of its lines, for JSON and logfmt. Default empty: all that are known, nested, in JSON; a selection in
    /// logfmt.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<LogField>,
    /// Least severe level that is written to stderr. Default info.
    pub level: Level,
}

/// Destination of the access log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessLog {
    /// No access log.
    Off,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// File that lines are appended to; the path is joined to the configuration's folder.
    #[serde(untagged)]
    File(#[serde(serialize_with = "shown::written")] PathBuf),
    /// Syslog, a message a line (RFC 5424).
    #[serde(untagged)]
    Syslog(Syslog),
}

/// A receiver of syslog messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Syslog {
    /// Destination of the messages.
    #[serde(rename = "syslog", serialize_with = "syslog_address")]
    pub address: SyslogAddress,
    /// Facility, 0 to 23 (RFC 5424 §6.2.1). Default local0, which is 16.
    #[serde(serialize_with = "facility")]
    pub facility: u8,
    /// APP-NAME of the messages. Default `propylon`.
    pub app_name: String,
}

/// Address of a receiver of syslog messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyslogAddress {
    /// UDP (RFC 5426), a message a datagram.
    Udp(SocketAddr),
    /// Unix socket of datagrams.
    Unix(PathBuf),
}

/// Facilities by their names, in the order of their numbers.
pub const FACILITIES: [&str; 24] = [
    "kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "ntp",
    "audit", "alert", "clock", "local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
];

fn syslog_address<S: Serializer>(address: &SyslogAddress, serializer: S) -> Result<S::Ok, S::Error> {
    match address {
        SyslogAddress::Udp(address) => serializer.collect_str(&format_args!("udp:{address}")),
        SyslogAddress::Unix(path) => serializer.collect_str(&format_args!("unix:{}", path.display())),
    }
}

fn facility<S: Serializer>(facility: &u8, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(FACILITIES.get(usize::from(*facility)).copied().unwrap_or_default())
}

/// Form of the access log's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// A JSON object a line.
    Json,
    /// `key=value` pairs.
    Logfmt,
    /// The Combined Log Format of Apache httpd and nginx.
    Combined,
}

/// A field of the access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogField {
    /// A fact of the request.
    Fact(LogFact),
    /// A header field of the request, by its name in lower case.
    Header(String),
}

impl Serialize for LogField {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            LogField::Fact(fact) => serializer.serialize_str(fact.name()),
            LogField::Header(name) => serializer.collect_str(&format_args!("header.{name}")),
        }
    }
}

macro_rules! facts {
    ($($(#[$doc:meta])* $fact:ident $name:literal,)*) => {
        /// Facts of a request that a line can have.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum LogFact {
            $($(#[$doc])* $fact,)*
        }

        impl LogFact {
            /// The facts by their names.
            pub const ALL: &[(&str, LogFact)] = &[$(($name, LogFact::$fact),)*];
        }
    };
}

facts! {
    /// Time of the request's end, in UTC by milliseconds.
    Time "time",
    /// The client's address and port.
    Client "client",
    /// The client's address.
    ClientIp "client.ip",
    /// Name of the listener.
    Listener "listener",
    /// Host, as it was sent.
    Host "host",
    /// Method.
    Method "method",
    /// Path and query, as they were sent.
    Path "path",
    /// `HTTP/1.0`, `HTTP/1.1` or `HTTP/2`; of a relay `tcp` or `passthrough`.
    Protocol "protocol",
    /// Status; 0 where none was sent.
    Status "status",
    /// Bytes of the request.
    BytesReceived "bytes_received",
    /// Bytes of the response.
    BytesSent "bytes_sent",
    /// Microseconds from the request's first byte to the response's last.
    Total "duration_us.total",
    /// Microseconds of the TLS handshake, at a connection's first request.
    Handshake "duration_us.handshake",
    /// Microseconds that the head took to arrive.
    Head "duration_us.head",
    /// Microseconds in the backend's queue.
    Queue "duration_us.queue",
    /// Microseconds of connecting to the server.
    Connect "duration_us.connect",
    /// Microseconds from the request to the response's head.
    FirstByte "duration_us.first_byte",
    /// Route, as metrics call it.
    Route "route",
    /// Name of the backend.
    Backend "backend",
    /// Server.
    Server "server",
    /// Attempts.
    Attempts "attempts",
    /// Whether the server's connection had served before.
    Reused "reused",
    /// Fault.
    Fault "fault",
    /// ID of the request.
    RequestId "request_id",
    /// User whom the request is from, by its route's `auth`.
    User "user",
    /// ID of the trace.
    TraceId "trace_id",
    /// Version of TLS.
    TlsVersion "tls.version",
    /// Cipher suite.
    TlsSuite "tls.suite",
    /// Group of the key agreement.
    TlsGroup "tls.group",
    /// Kind of the certificate that was shown.
    TlsCertificate "tls.certificate",
    /// ALPN protocol.
    TlsAlpn "tls.alpn",
    /// Whether the session was resumed.
    TlsResumed "tls.resumed",
    /// Server name that the client asked for.
    TlsServerName "tls.server_name",
    /// JA4 fingerprint.
    TlsJa4 "tls.ja4",
    /// Subject of the client's certificate.
    ClientSubject "tls.client.subject",
    /// SHA-256 of the client's certificate.
    ClientSha256 "tls.client.sha256",
}

impl LogFact {
    /// Name of the fact in configurations and lines: its place in the whole record.
    pub fn name(self) -> &'static str {
        LogFact::ALL.iter().find(|(_, fact)| *fact == self).map_or("", |(name, _)| name)
    }
}

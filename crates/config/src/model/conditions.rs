//! Conditions of a route on what a request is beside its listener, host and path.

use serde::{Serialize, Serializer};

use super::Network;
use crate::pattern;

/// Conditions of a route: all of them hold, or the route does not match. Empty lists are no conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Conditions {
    /// Methods, one of which is the request's. They are compared with case (RFC 9110 §9.1).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub method: Vec<String>,
    /// Header fields, by names in lower case. Lines of one name are joined by ", " (RFC 9110 §5.3).
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "texts")]
    pub header: Vec<TextCondition>,
    /// Parameters of the query, decoded as forms are; of several with one name the first.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "texts")]
    pub query: Vec<TextCondition>,
    /// Cookies as they are sent (RFC 6265 §5.4); of several with one name the first.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "texts")]
    pub cookie: Vec<TextCondition>,
    /// Networks, in one of which the client's address is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub source: Vec<Network>,
    /// Facts of the certificate that the client has shown and that was verified.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "facts")]
    pub client: Vec<FactCondition<ClientFact>>,
    /// Facts of the client's TLS.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "facts")]
    pub tls: Vec<FactCondition<TlsFact>>,
    /// Service and method of a gRPC request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc: Option<GrpcCondition>,
    /// Ports, one of which the client has connected to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub port: Vec<u16>,
    /// Host that the request names, in lower case, without port and trailing dot. Absent: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<TextTest>,
}

/// A condition on a fact of the client's connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FactCondition<F> {
    /// The fact.
    pub fact: F,
    /// Condition on its text.
    pub test: TextTest,
}

/// Facts of a client's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientFact {
    /// Distinguished name after RFC 4514.
    Subject,
    /// Distinguished name of the issuer, likewise.
    Issuer,
    /// Serial number in hexadecimal, upper case.
    Serial,
    /// SHA-256 of the certificate's DER: hexadecimal, lower case.
    Sha256,
    /// Any of the subject's alternative names: DNS names, mail addresses, URIs and addresses (RFC 5280 §4.2.1.6).
    San,
}

impl ClientFact {
    /// The facts by their names.
    pub const ALL: [(&str, ClientFact); 5] = [
        ("subject", ClientFact::Subject),
        ("issuer", ClientFact::Issuer),
        ("serial", ClientFact::Serial),
        ("sha256", ClientFact::Sha256),
        ("san", ClientFact::San),
    ];
}

/// Facts of a client's TLS. Absent, all of them, on plaintext.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsFact {
    /// Version: `TLSv1.2` or `TLSv1.3`.
    Version,
    /// Server name that the client has asked for, in lower case.
    ServerName,
    /// ALPN protocol that was agreed on: `h2` or `http/1.1`.
    Alpn,
    /// JA4 fingerprint.
    Ja4,
    /// Cipher suite, by IANA's name.
    Suite,
    /// Group in which keys were exchanged, by IANA's name. Absent from a resumed session of TLS 1.2.
    Group,
}

impl TlsFact {
    /// The facts by their names.
    pub const ALL: [(&str, TlsFact); 6] = [
        ("version", TlsFact::Version),
        ("server_name", TlsFact::ServerName),
        ("alpn", TlsFact::Alpn),
        ("ja4", TlsFact::Ja4),
        ("suite", TlsFact::Suite),
        ("group", TlsFact::Group),
    ];
}

/// A condition on a gRPC request: a POST of `application/grpc` to `/SERVICE/METHOD` (gRPC over HTTP/2, "Requests").
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct GrpcCondition {
    /// Service with its package. Absent: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<TextTest>,
    /// Method. Absent: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<TextTest>,
}

/// A condition on the text of a header field, a parameter or a cookie.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TextCondition {
    /// Name of what is looked at.
    pub name: String,
    /// Condition on its text.
    pub test: TextTest,
}

/// A condition on a text. All but `Absent` need it to be there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TextTest {
    /// Presence, with any text.
    Present,
    /// Absence.
    Absent,
    /// This text, byte for byte.
    Exact(String),
    /// A text that begins with this.
    Prefix(String),
    /// A text in which the pattern is found (syntax of the crate `regex`); `^` and `$` tie it to the whole.
    Regex(String),
}

impl TextTest {
    /// Whether a text that is there is as asked. For what is asked once: patterns are compiled for each text.
    pub(crate) fn fits(&self, text: &str) -> bool {
        match self {
            TextTest::Present => true,
            TextTest::Absent => false,
            TextTest::Exact(asked) => asked == text,
            TextTest::Prefix(start) => text.starts_with(start.as_str()),
            TextTest::Regex(asked) => pattern::compile(asked).is_ok_and(|regex| regex.is_match(text.as_bytes())),
        }
    }
}

impl Conditions {
    /// Whether there are no conditions.
    pub fn is_empty(&self) -> bool {
        *self == Conditions::default()
    }

    /// Numbers of conditions by kind, in the order in which they rank: on the method (0 or 1), on fields, on parameters
    /// of the query, and others, which the Gateway API has no rank for.
    pub fn counts(&self) -> [usize; 4] {
        let Conditions { method, header, query, cookie, source, client, tls, grpc, port, host } = self;
        // A condition on gRPC without either asks for a call.
        let of_grpc =
            |grpc: &GrpcCondition| 1 + usize::from(grpc.service.is_some()) + usize::from(grpc.method.is_some());
        let lists = usize::from(!source.is_empty()) + usize::from(!port.is_empty()) + usize::from(host.is_some());
        let others = cookie.len() + client.len() + tls.len() + lists + grpc.as_ref().map_or(0, of_grpc);
        [usize::from(!method.is_empty()), header.len(), query.len(), others]
    }
}

/// Conditions on texts as a table.
fn texts<S: Serializer>(conditions: &[TextCondition], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(conditions.iter().map(|condition| (&condition.name, &condition.test)))
}

/// Facts that can be named in a configuration.
trait Named {
    fn name(&self) -> &'static str;
}

impl Named for ClientFact {
    fn name(&self) -> &'static str {
        ClientFact::ALL.iter().find(|(_, fact)| fact == self).map_or("", |(name, _)| name)
    }
}

impl Named for TlsFact {
    fn name(&self) -> &'static str {
        TlsFact::ALL.iter().find(|(_, fact)| fact == self).map_or("", |(name, _)| name)
    }
}

/// Conditions on facts as a table.
fn facts<F: Named, S: Serializer>(conditions: &[FactCondition<F>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(conditions.iter().map(|condition| (condition.fact.name(), &condition.test)))
}

impl Serialize for TextTest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            TextTest::Exact(text) => serializer.serialize_str(text),
            TextTest::Present => serializer.collect_map([("present", true)]),
            TextTest::Absent => serializer.collect_map([("present", false)]),
            TextTest::Prefix(text) => serializer.collect_map([("prefix", text)]),
            TextTest::Regex(pattern) => serializer.collect_map([("regex", pattern)]),
        }
    }
}

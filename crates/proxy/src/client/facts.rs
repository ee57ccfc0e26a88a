//! Facts of a client's connection for servers: its certificate (RFC 9440), and the fields of `request_headers`.

use propylon_config::{Fact, Listener, Piece, RequestHeader};
use propylon_http::h1::{ClientAddress, write_line};
use propylon_tls::{ClientHelloInfo, Facts, Group, Scheme};

use crate::alpn::alpn_name;
use crate::request::Request;

#[derive(Clone, Copy)]
pub struct ClientFactHeaders<'a> {
    address: &'a ClientAddress,
    headers: &'a [RequestHeader],
    facts: Option<&'a Facts>,
    hello_info: Option<&'a ClientHelloInfo>,
    request: &'a Request,
}

impl<'a> ClientFactHeaders<'a> {
    /// Facts to be sent on; `None` if there are none, as for most.
    pub fn of(
        (address, request): (&'a ClientAddress, &'a Request),
        facts: Option<&'a Facts>,
        hello_info: Option<&'a ClientHelloInfo>,
        listener: &'a Listener,
    ) -> Option<ClientFactHeaders<'a>> {
        let is_known = hello_info.is_some_and(|hello_info| hello_info.identity.is_some());
        let headers = &listener.request_headers[..];
        (is_known || !headers.is_empty()).then_some(ClientFactHeaders { address, headers, facts, hello_info, request })
    }

    /// Appends whole lines.
    pub fn write(&self, out: &mut Vec<u8>) {
        if let Some(identity) = self.hello_info.and_then(|hello_info| hello_info.identity.as_deref()) {
            if let Some(certificate) = &identity.certificate {
                write_line(b"Client-Cert", certificate.as_bytes(), out);
            }
            if let Some(chain) = &identity.chain {
                write_line(b"Client-Cert-Chain", chain.as_bytes(), out);
            }
        }
        for header in self.headers {
            self.write_header(header, out);
        }
    }

    /// A field in which something is not known is left out whole.
    fn write_header(&self, header: &RequestHeader, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(header.name.as_bytes());
        out.extend_from_slice(b": ");
        for piece in &header.value {
            let text = match piece {
                Piece::Text(text) => Some(text.as_bytes()),
                Piece::Fact(Fact::ClientIp) => Some(self.address.as_bytes()),
                Piece::Fact(fact) => self.fact(*fact).map(str::as_bytes),
            };
            let Some(text) = text else {
                out.truncate(start);
                return;
            };
            out.extend_from_slice(text);
        }
        out.extend_from_slice(b"\r\n");
    }

    fn fact(&self, fact: Fact) -> Option<&'a str> {
        match fact {
            Fact::RequestId => self.request.id(),
            fact => tls_fact((self.facts, self.hello_info), fact),
        }
    }
}

/// A fact about a connection's TLS, in printable ASCII; none that is not known, or of something else.
pub fn tls_fact<'a>(
    (facts, hello_info): (Option<&'a Facts>, Option<&'a ClientHelloInfo>),
    fact: Fact,
) -> Option<&'a str> {
    let identity = hello_info.and_then(|hello_info| hello_info.identity.as_deref());
    match fact {
        Fact::TlsVersion => Some(facts?.version.name()),
        Fact::TlsSuite => Some(facts?.suite.name()),
        Fact::TlsGroup => facts?.group.map(Group::name),
        Fact::TlsSignature => facts?.signature.map(Scheme::name),
        Fact::TlsCertificate => facts?.certificate.map(propylon_config::KeyType::name),
        Fact::TlsServerName => hello_info?.server_name.as_deref(),
        Fact::TlsAlpn => facts?.alpn.map(alpn_name),
        Fact::TlsResumed => Some(if facts?.resumed { "true" } else { "false" }),
        Fact::TlsJa4 => hello_info?.ja4.as_deref().map(propylon_tls::Ja4::as_str),
        Fact::ClientSubject => identity.map(|identity| &*identity.subject),
        Fact::ClientIssuer => identity.map(|identity| &*identity.issuer),
        Fact::ClientSerial => identity.map(|identity| &*identity.serial),
        Fact::ClientSha256 => identity.map(|identity| &*identity.sha256),
        _ => None,
    }
}

/// Whether the connection's hello info is asked for at every request, and not only by the log's first line: by the rule
/// for its host, by what servers are told, or by conditions of routes (`asks_hello`).
pub fn is_told_again(hello_info: &ClientHelloInfo, listener: &Listener, asks_hello: bool) -> bool {
    let mut pieces = listener.request_headers.iter().flat_map(|header| &header.value);
    asks_hello
        || hello_info.identity.is_some()
        || hello_info.server_name.is_some() && (listener.strict_host == Some(true) || listener.tells_server_name)
        || hello_info.ja4.is_some()
        || pieces.any(|piece| *piece == Piece::Fact(Fact::TlsServerName))
}

//! Facts about a request in hand, as the values of fields and parameters tell them.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use propylon_config::{Fact, PathPattern};
use propylon_http::h1::{ClientAddress, HOST_BYTES_MAX, RequestHead};

use crate::grpc_web::Call;
use crate::side::SideChange;

/// Longest lines of a request whose memory is kept for the next one.
const LINES_KEPT_BYTES: usize = 1024;

/// A request of a route that changes it or its response.
pub struct Changed {
    /// Path that the client has asked for, in canonical form, and its query, with a `?` if there is one; none while
    /// they are those of the head.
    asked: Option<(Vec<u8>, Vec<u8>)>,
    /// Lines for its servers.
    pub lines: Vec<u8>,
    /// Changes of the side that it goes to, where that has some.
    pub side: Option<Rc<SideChange>>,
    /// The call of gRPC-Web that the request was.
    pub call: Option<Call>,
    /// Paths that the route matches, as they are written.
    route: Rc<str>,
    /// Address of the client's connection, and the one of the client as `match` takes it.
    peer: SocketAddr,
    source: IpAddr,
    is_tls: bool,
}

impl Changed {
    /// A request that nothing has been changed of, of a route with these paths ([`route_path`]); its client's address
    /// and the one that counts, and whether it comes by TLS.
    pub fn of((route, (peer, source), is_tls): (Rc<str>, (SocketAddr, IpAddr), bool)) -> Changed {
        Changed { asked: None, lines: Vec::new(), side: None, call: None, route, peer, source, is_tls }
    }

    /// As [`Changed::of`], in the memory of another request that has been cleared.
    pub fn renew(&mut self, (route, (peer, source), is_tls): (Rc<str>, (SocketAddr, IpAddr), bool)) {
        (self.route, self.peer, self.source, self.is_tls) = (route, peer, source, is_tls);
    }

    /// Forgets all of a request but what [`Changed::renew`] sets. False: its memory is not worth keeping.
    pub fn clear(&mut self) -> bool {
        (self.asked, self.side, self.call) = (None, None, None);
        self.lines.clear();
        self.lines.capacity() <= LINES_KEPT_BYTES
    }

    /// Path that the client has asked for, in canonical form. `head` is the request's, whatever has become of it.
    pub fn path<'a>(&'a self, (head, text): (&'a RequestHead, &'a [u8])) -> &'a [u8] {
        self.asked.as_ref().map_or_else(|| head.path(text), |(path, _)| path)
    }

    /// Query that the client has asked for, with a `?` if there is one.
    fn query<'a>(&'a self, (head, text): (&'a RequestHead, &'a [u8])) -> &'a [u8] {
        self.asked.as_ref().map_or_else(|| head.query(text), |(_, query)| query)
    }

    /// Keeps what the client has asked for, before the head gets another target.
    pub(crate) fn keep_target(&mut self, (head, text): (&RequestHead, &[u8])) {
        self.asked.get_or_insert_with(|| (head.path(text).to_vec(), head.query(text).to_vec()));
    }
}

/// Paths that a route matches, as they are written.
pub fn route_path(path: &PathPattern) -> Rc<str> {
    match path {
        PathPattern::Prefix(path) | PathPattern::Exact(path) | PathPattern::Regex(path) => path.as_str().into(),
    }
}

/// Facts about a request.
pub struct Facts<'a, 't> {
    pub changed: &'a Changed,
    /// The request's head, with its text.
    pub request: (&'a RequestHead, &'a [u8]),
    /// Address of the server, as its backend has it.
    pub server: Option<&'a str>,
    /// Facts about the TLS of the client's connection, in printable ASCII.
    pub tls: &'a dyn Fn(Fact) -> Option<&'t str>,
}

impl Facts<'_, '_> {
    /// Writes a fact; false where it is not known.
    pub fn write(&self, fact: Fact, out: &mut Vec<u8>) -> bool {
        let (changed, (head, text)) = (self.changed, self.request);
        let (address, port);
        let mut host;
        let known: Option<&[u8]> = match fact {
            Fact::ClientIp | Fact::RequestSource => {
                let is_source = fact == Fact::RequestSource;
                address = ClientAddress::new(if is_source { changed.source } else { changed.peer.ip() });
                Some(address.as_bytes())
            }
            Fact::ClientPort => {
                port = changed.peer.port().to_string();
                Some(port.as_bytes())
            }
            Fact::RequestMethod => Some(head.method_text.bytes(text)),
            Fact::RequestScheme => Some(if changed.is_tls { b"https" } else { b"http" }),
            Fact::RequestHost => {
                host = [0; HOST_BYTES_MAX];
                Some(head.host_name(text, &mut host).as_bytes()).filter(|host| !host.is_empty())
            }
            Fact::RequestPath => Some(changed.path(self.request)),
            Fact::RequestQuery => Some(changed.query(self.request)),
            Fact::RoutePath => Some(changed.route.as_bytes()).filter(|path| path.iter().all(u8::is_ascii_graphic)),
            Fact::UpstreamServer => self.server.map(str::as_bytes),
            fact => (self.tls)(fact).map(str::as_bytes),
        };
        known.inspect(|known| out.extend_from_slice(known)).is_some()
    }
}

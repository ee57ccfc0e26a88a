//! Conditions of a route on the rest of a request, compiled: what `match` and a path's pattern say.
//!
//! A route is found by its listener, host and path; only where rules with conditions are for these are they looked at.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use propylon_config::{
    ClientFact, Forwarded, GrpcCondition, Listener, Network, PathPattern, Route, TextCondition, TextTest, TlsFact,
    TlsGroup, TlsSuite, pattern,
};
use propylon_http::h1::{Fields, HOST_BYTES_MAX, Method, Name, RequestHead, cookies, is_same_or_lookalike};
use propylon_policy::route::Rank;
use propylon_tls::Identity;
use regex::bytes::Regex;

/// A request, as far as conditions look at it.
pub struct Request<'a> {
    pub head: &'a RequestHead,
    /// Bytes of the head.
    pub text: &'a [u8],
    /// Address of the client: see [`source`].
    pub source: IpAddr,
    pub connection: Connection<'a>,
}

/// The connection of a request, as far as conditions look at it.
#[derive(Clone, Copy, Default)]
pub struct Connection<'a> {
    /// Address that the client has connected to, as the PROXY protocol says where that is believed.
    pub destination: Option<SocketAddr>,
    /// Version of TLS, as configurations name it; none on plaintext, as what follows.
    pub version: Option<&'a str>,
    pub alpn: Option<&'a str>,
    pub server_name: Option<&'a str>,
    pub ja4: Option<&'a str>,
    /// Cipher suite and group, as configurations name them; no group of a resumed session of TLS 1.2.
    pub suite: Option<TlsSuite>,
    pub group: Option<TlsGroup>,
    pub identity: Option<&'a Identity>,
}

impl Connection<'_> {
    fn tls_fact(&self, fact: TlsFact) -> Option<&str> {
        match fact {
            TlsFact::Version => self.version,
            TlsFact::Alpn => self.alpn,
            TlsFact::ServerName => self.server_name,
            TlsFact::Ja4 => self.ja4,
            TlsFact::Suite => self.suite.map(TlsSuite::name),
            TlsFact::Group => self.group.map(TlsGroup::name),
        }
    }
}

/// Conditions of one route. All hold, or the route does not match.
///
/// Patterns keep scratch space that threads would wait for: each core has a clone of its own.
#[derive(Clone)]
pub struct Conditions {
    path: Option<Regex>,
    methods: Vec<String>,
    headers: Vec<Condition>,
    query: Vec<Condition>,
    cookies: Vec<Condition>,
    sources: Vec<Network>,
    client: Vec<(ClientFact, Test)>,
    tls: Vec<(TlsFact, Test)>,
    grpc: Option<Grpc>,
    ports: Vec<u16>,
    host: Option<Test>,
}

/// Condition on a gRPC request.
#[derive(Clone)]
struct Grpc {
    service: Option<Test>,
    method: Option<Test>,
}

/// A condition that does not hold, by the name that the configuration has for what it looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmet<'c> {
    Method,
    /// The client's address is in none of the networks.
    Source(IpAddr),
    Header(&'c str),
    Query(&'c str),
    Cookie(&'c str),
    Path,
    Client(&'static str),
    Tls(&'static str),
    Grpc,
    /// The port that the client has connected to is none of those.
    Port(u16),
    Host,
}

impl fmt::Display for Unmet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unmet::Method => f.write_str("another method"),
            Unmet::Source(address) => write!(f, "the client is {address}"),
            Unmet::Header(name) => write!(f, "the field {name} is not as it asks"),
            Unmet::Query(name) => write!(f, "the parameter {name} is not as it asks"),
            Unmet::Cookie(name) => write!(f, "the cookie {name} is not as it asks"),
            Unmet::Path => f.write_str("its pattern is not in the path"),
            Unmet::Client(fact) => write!(f, "the client's certificate: {fact} is not as it asks"),
            Unmet::Tls(fact) => write!(f, "TLS: {fact} is not as it asks"),
            Unmet::Grpc => f.write_str("no gRPC request to this service and method"),
            Unmet::Port(port) => write!(f, "the client connects to port {port}"),
            Unmet::Host => f.write_str("the host is not as it asks"),
        }
    }
}

#[derive(Clone)]
struct Condition {
    name: String,
    test: Test,
}

#[derive(Clone)]
enum Test {
    Present,
    Absent,
    Exact(String),
    Prefix(String),
    Regex(Regex),
}

/// How a route's conditions rank among those of others; none: it has no conditions.
pub fn rank(route: &Route) -> Option<Rank> {
    let conditions = &route.conditions;
    let is_pattern = matches!(route.path, PathPattern::Regex(_));
    (is_pattern || !conditions.is_empty()).then(|| {
        let [method, header_fields, query_parameters, others] =
            conditions.counts().map(|count| u16::try_from(count).unwrap_or(u16::MAX));
        Rank { has_method: method > 0, header_fields, query_parameters, others }
    })
}

/// Whether routes ask for what a client's hello has said, so that connections keep it for later requests.
pub fn ask_hello(routes: &[Route]) -> bool {
    let is_of_hello = |fact: TlsFact| matches!(fact, TlsFact::ServerName | TlsFact::Ja4);
    routes.iter().flat_map(|route| &route.conditions.tls).any(|condition| is_of_hello(condition.fact))
}

/// The address that a request is from: its peer's (told by the PROXY protocol, where that is believed), or, where
/// trusted proxies append to X-Forwarded-For, the last address in it that is no trusted proxy's. What is no address
/// ends the search: what stands before it was said by nobody who is trusted.
pub fn source(listener: &Listener, peer: IpAddr, head: &RequestHead, text: &[u8]) -> IpAddr {
    let mut source = peer.to_canonical();
    let Some(proxies) = listener.trusted_proxies.as_ref().filter(|_| listener.forwarded == Forwarded::Append) else {
        return source;
    };
    let is_proxy = |address: IpAddr| proxies.iter().any(|network| network.contains(address));
    // Names that some servers take for this one are clients' own, and proxies that let them through may put them last.
    let lines = head.fields.iter().filter(|field| field.kind == Name::XForwardedFor);
    let lines: Vec<&[u8]> = lines.map(|field| field.value.bytes(text)).collect();
    let mut hops = lines.iter().rev().flat_map(|line| line.rsplit(|byte| *byte == b','));
    while is_proxy(source) {
        let hop = hops.next().and_then(|hop| address(hop.trim_ascii()));
        let Some(hop) = hop else { break };
        source = hop;
    }
    source
}

/// An address as proxies write them: with or without a port, IPv6 with or without brackets.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let with_port = || text.parse().ok().map(|address: std::net::SocketAddr| address.ip());
    text.parse().ok().or_else(bare).or_else(with_port).map(|address: IpAddr| address.to_canonical())
}

impl Conditions {
    /// The conditions of a route; none if it has none. Patterns have been checked with the configuration.
    pub fn of(route: &Route) -> Option<Conditions> {
        rank(route)?;
        let path = match &route.path {
            PathPattern::Regex(text) => Some(compile(text)),
            PathPattern::Exact(_) | PathPattern::Prefix(_) => None,
        };
        let all = |conditions: &[TextCondition]| conditions.iter().map(Condition::of).collect();
        let conditions = &route.conditions;
        Some(Conditions {
            path,
            methods: conditions.method.clone(),
            headers: all(&conditions.header),
            query: all(&conditions.query),
            cookies: all(&conditions.cookie),
            sources: conditions.source.clone(),
            client: conditions.client.iter().map(|asked| (asked.fact, Test::of(&asked.test))).collect(),
            tls: conditions.tls.iter().map(|asked| (asked.fact, Test::of(&asked.test))).collect(),
            grpc: conditions.grpc.as_ref().map(Grpc::of),
            ports: conditions.port.clone(),
            host: conditions.host.as_ref().map(Test::of),
        })
    }

    /// Whether all of them hold.
    pub fn hold(&self, request: &Request<'_>) -> bool {
        self.unmet(request).is_none()
    }

    /// The first that does not hold.
    pub fn unmet(&self, request: &Request<'_>) -> Option<Unmet<'_>> {
        let Request { head, text, source, ref connection } = *request;
        let method = head.method_text.bytes(text);
        if !self.methods.is_empty() && !self.methods.iter().any(|own| own.as_bytes() == method) {
            return Some(Unmet::Method);
        }
        if !self.sources.is_empty() && !self.sources.iter().any(|network| network.contains(source)) {
            return Some(Unmet::Source(source));
        }
        if let Some(unmet) = self.unmet_by_connection(connection) {
            return Some(unmet);
        }
        if let Some(host) = &self.host {
            let mut scratch = [0; HOST_BYTES_MAX];
            let name = head.host_name(text, &mut scratch);
            if !host.holds(Some(Cow::Borrowed(name.as_bytes()))) {
                return Some(Unmet::Host);
            }
        }
        if self.grpc.as_ref().is_some_and(|grpc| !grpc.holds(head, text)) {
            return Some(Unmet::Grpc);
        }
        let fields = &head.fields;
        let header = |condition: &&Condition| !condition.test.holds(joined(fields, text, &condition.name));
        let query = |condition: &&Condition| !condition.test.holds(parameter(query(head, text), &condition.name));
        let cookie = |condition: &&Condition| {
            let value = cookies(fields, text, &condition.name).next();
            !condition.test.holds(value.map(Cow::Borrowed))
        };
        let header = || self.headers.iter().find(header).map(|condition| Unmet::Header(&condition.name));
        let query = || self.query.iter().find(query).map(|condition| Unmet::Query(&condition.name));
        let cookie = || self.cookies.iter().find(cookie).map(|condition| Unmet::Cookie(&condition.name));
        let path = || self.path.as_ref().filter(|path| !path.is_match(head.path_key(text))).map(|_| Unmet::Path);
        header().or_else(query).or_else(cookie).or_else(path)
    }
}

impl Conditions {
    /// The first of the conditions on the connection that does not hold.
    fn unmet_by_connection(&self, connection: &Connection<'_>) -> Option<Unmet<'_>> {
        let port = connection.destination.map_or(0, |destination| destination.port());
        if !self.ports.is_empty() && !self.ports.contains(&port) {
            return Some(Unmet::Port(port));
        }
        let tls = self.tls.iter().find(|(fact, test)| {
            let value = connection.tls_fact(*fact).map(|text| Cow::Borrowed(text.as_bytes()));
            !test.holds(value)
        });
        let client = self.client.iter().find(|(fact, test)| !holds_of(test, *fact, connection.identity));
        let name = |all: &[(&'static str, ClientFact)], fact| {
            all.iter().find(|(_, known)| *known == fact).map(|(name, _)| *name)
        };
        let tls_name = |fact| TlsFact::ALL.iter().find(|(_, known)| *known == fact).map_or("", |(name, _)| *name);
        let tls = tls.map(|(fact, _)| Unmet::Tls(tls_name(*fact)));
        tls.or_else(|| client.map(|(fact, _)| Unmet::Client(name(&ClientFact::ALL, *fact).unwrap_or_default())))
    }
}

/// Whether a fact of a client's certificate is as asked; of alternative names, whether one of them is.
fn holds_of(test: &Test, fact: ClientFact, identity: Option<&Identity>) -> bool {
    let one = |text: &str| test.holds(Some(Cow::Borrowed(text.as_bytes())));
    let Some(identity) = identity else { return test.holds(None) };
    match fact {
        ClientFact::Subject => one(&identity.subject),
        ClientFact::Issuer => one(&identity.issuer),
        ClientFact::Serial => one(&identity.serial),
        ClientFact::Sha256 => one(&identity.sha256),
        ClientFact::San if identity.names.is_empty() => test.holds(None),
        ClientFact::San => identity.names.iter().any(|name| one(name)),
    }
}

impl Grpc {
    fn of(condition: &GrpcCondition) -> Grpc {
        let test = |test: &Option<TextTest>| test.as_ref().map(Test::of);
        Grpc { service: test(&condition.service), method: test(&condition.method) }
    }

    /// gRPC over HTTP/2, "Requests": `POST /SERVICE/METHOD` with a content type that begins with `application/grpc`.
    fn holds(&self, head: &RequestHead, text: &[u8]) -> bool {
        let content_type = head.fields.value(text, "content-type").unwrap_or_default();
        let is_grpc = content_type.get(..16).is_some_and(|start| start.eq_ignore_ascii_case(b"application/grpc"))
            && matches!(content_type.get(16), None | Some(b'+' | b';' | b' '));
        let path = head.path(text);
        let parts = path.strip_prefix(b"/").and_then(|path| {
            let at = path.iter().position(|byte| *byte == b'/')?;
            Some((&path[..at], &path[at + 1..]))
        });
        let Some((service, method)) = parts.filter(|_| is_grpc && head.method == Method::Post) else { return false };
        let holds = |test: &Option<Test>, text: &'_ [u8]| {
            test.as_ref().is_none_or(|test| test.holds(Some(Cow::Owned(text.to_vec()))))
        };
        !service.is_empty() && !method.is_empty() && holds(&self.service, service) && holds(&self.method, method)
    }
}

fn compile(text: &str) -> Regex {
    pattern::compile(text).expect("a configuration's patterns are checked")
}

impl Condition {
    fn of(condition: &TextCondition) -> Condition {
        Condition { name: condition.name.clone(), test: Test::of(&condition.test) }
    }
}

impl Test {
    fn of(test: &TextTest) -> Test {
        match test {
            TextTest::Present => Test::Present,
            TextTest::Absent => Test::Absent,
            TextTest::Exact(text) => Test::Exact(text.clone()),
            TextTest::Prefix(text) => Test::Prefix(text.clone()),
            TextTest::Regex(text) => Test::Regex(compile(text)),
        }
    }

    fn holds(&self, value: Option<Cow<'_, [u8]>>) -> bool {
        match (self, value) {
            (Test::Absent, value) => value.is_none(),
            (_, None) => false,
            (Test::Present, Some(_)) => true,
            (Test::Exact(text), Some(value)) => text.as_bytes() == &*value,
            (Test::Prefix(text), Some(value)) => value.starts_with(text.as_bytes()),
            (Test::Regex(pattern), Some(value)) => pattern.is_match(&value),
        }
    }
}

/// Values of all lines of a field, and of those that a server may take for it. `name` is in lower case.
pub(crate) fn values<'a>(fields: &'a Fields, text: &'a [u8], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    let lines = fields.iter().filter(move |field| is_same_or_lookalike(field.name.bytes(text), name));
    lines.map(move |field| field.value.bytes(text))
}

/// Whether a field is a claim about the client, its certificate or its URL, which anybody can send and no server gets
/// as it came: no condition holds for it.
fn is_claim(name: &str) -> bool {
    use Name::*;
    matches!(
        Name::of(name.as_bytes()),
        Claim | ClientCert | Forwarded | XForwardedFor | XForwardedHost | XForwardedProto | XForwardedOther
    )
}

/// Value of a field, its lines joined (RFC 9110 §5.3). `name` is in lower case.
pub(crate) fn joined<'a>(fields: &'a Fields, text: &'a [u8], name: &'a str) -> Option<Cow<'a, [u8]>> {
    if is_claim(name) {
        return None;
    }
    let mut values = values(fields, text, name);
    let first = values.next()?;
    let Some(second) = values.next() else { return Some(Cow::Borrowed(first)) };
    let rest: Vec<&[u8]> = [first, second].into_iter().chain(values).collect();
    Some(Cow::Owned(rest.join(&b", "[..])))
}

/// The query without its `?`.
fn query<'a>(head: &'a RequestHead, text: &'a [u8]) -> &'a [u8] {
    let query = head.query(text);
    query.strip_prefix(b"?").unwrap_or(query)
}

/// Value of a query's first parameter of this name, decoded as a form is (WHATWG URL §5.1): `+` is a space, `%XX` a
/// byte.
pub(crate) fn parameter<'a>(query: &'a [u8], name: &str) -> Option<Cow<'a, [u8]>> {
    query.split(|byte| *byte == b'&').filter(|pair| !pair.is_empty()).find_map(|pair| {
        let at = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
        let value = pair.get(at + 1..).unwrap_or_default();
        (*decoded(&pair[..at]) == *name.as_bytes()).then(|| decoded(value))
    })
}

pub(crate) fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(text);
    }
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        rest = tail;
        out.push(match (first, tail) {
            (b'+', _) => b' ',
            (b'%', [high, low, after @ ..]) if let (Some(high), Some(low)) = (digit(high), digit(low)) => {
                rest = after;
                (high << 4 | low) as u8
            }
            (other, _) => *other,
        });
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use propylon_config::{Config, Source};
    use propylon_http::h1::{Limits, Parsed, parse_request};

    use super::*;

    /// Conditions of a route with this text in it.
    fn conditions(text: &str) -> Conditions {
        let text = format!("[listener.web]\nbind = \"127.0.0.1:0\"\n[[route]]\n{text}\nrespond = {{ status = 204 }}\n");
        let config = configured(&text);
        Conditions::of(&config.routes[0]).expect("the route has conditions")
    }

    fn configured(text: &str) -> Config {
        let source = Source { name: "a.toml".into(), base: "".into(), text: text.into() };
        propylon_config::parse(&source).unwrap_or_else(|problems| panic!("{problems:?}")).0
    }

    fn head(text: &str) -> RequestHead {
        let mut head = RequestHead::default();
        let limits = Limits { head_bytes: 64 << 10, headers: 64 };
        assert_eq!(parse_request(text.as_bytes(), &limits, &mut head), Ok(Parsed::Complete), "{text}");
        head
    }

    /// The condition that a request with this line and these fields does not meet.
    fn unmet(conditions: &Conditions, line: &str, fields: &str) -> Option<String> {
        let text = format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let request = Request {
            head: &head(&text),
            text: text.as_bytes(),
            source: IpAddr::from([10, 1, 2, 3]),
            connection: Connection::default(),
        };
        conditions.unmet(&request).map(|unmet| unmet.to_string())
    }

    #[test]
    fn every_condition_holds_or_says_why_not() {
        let field = "the field x-a is not as it asks";
        for (text, line, fields, wanted) in [
            ("match = { method = \"POST\" }", "POST /", "", ""),
            ("match = { method = [\"GET\", \"PURGE\"] }", "PURGE /", "", ""),
            ("match = { method = \"POST\" }", "GET /", "", "another method"),
            ("match = { source = \"10.0.0.0/8\" }", "GET /", "", ""),
            ("match = { source = [\"11.0.0.0/8\", \"::/0\"] }", "GET /", "", "the client is 10.1.2.3"),
            ("match = { host = { regex = \"^a$\" } }", "GET /", "", ""),
            ("match = { host = { regex = \"^a$\" } }", "GET http://a/", "", ""),
            ("match = { host = { prefix = \"b\" } }", "GET /", "", "the host is not as it asks"),
            ("match = { header = { X-A = \"1\" } }", "GET /", "x-a: 1\r\n", ""),
            ("match = { header = { X-A = \"1\" } }", "GET /", "X-A: 11\r\n", field),
            ("match = { header = { X-A = \"1\" } }", "GET /", "", field),
            ("match = { header = { X-A = \"1, 2\" } }", "GET /", "X-A: 1\r\nx-a:2\r\n", ""),
            ("match = { header = { X-A = \"1\" } }", "GET /", "X-A: 1\r\nx-a:2\r\n", field),
            ("match = { header = { X-A = { prefix = \"v\" } } }", "GET /", "X-A: v2\r\n", ""),
            ("match = { header = { X-A = { regex = \"^v[0-9]$\" } } }", "GET /", "X-A: v22\r\n", field),
            ("match = { header = { X-A = { present = true } } }", "GET /", "X-A:\r\n", ""),
            ("match = { header = { X-A = { present = false } } }", "GET /", "X-A:\r\n", field),
            ("match = { header = { X-A = { present = false } } }", "GET /", "", ""),
            ("match = { header = { X-A = { present = false } } }", "GET /", "X_a: 1\r\n", field),
            (
                "match = { header = { X-Real-IP = \"::1\" } }",
                "GET /",
                "X-Real-IP: ::1\r\n",
                "the field x-real-ip is not as it asks",
            ),
            ("match = { query = { a = \"b c/d\" } }", "GET /?x&%61=b+c%2Fd&a=2", "", ""),
            ("match = { query = { a = \"2\" } }", "GET /?a=1&a=2", "", "the parameter a is not as it asks"),
            ("match = { query = { a = { present = true } } }", "GET /?&a", "", ""),
            ("match = { query = { a = { present = true } } }", "GET /a=1", "", "the parameter a is not as it asks"),
            ("match = { cookie = { beta = \"on\" } }", "GET /", "Cookie: x=1; beta=on\r\n", ""),
            (
                "match = { cookie = { beta = \"on\" } }",
                "GET /",
                "Cookie: xbeta=on\r\n",
                "the cookie beta is not as it asks",
            ),
            ("path = { regex = '[.]php$' }", "GET /x/y.php?a=1", "", ""),
            ("path = { regex = '[.]php$' }", "GET /x/y.php/", "", "its pattern is not in the path"),
        ] {
            let found = unmet(&conditions(text), line, fields);
            assert_eq!(found.as_deref().unwrap_or_default(), wanted, "{text}: {line} {fields}");
        }
    }

    #[test]
    fn conditions_on_the_connection_hold_or_say_why_not() {
        let identity = Identity {
            subject: "CN=app,O=Example".into(),
            issuer: "CN=ca".into(),
            serial: "0A".into(),
            sha256: "ab12".into(),
            names: ["app.example".into(), "spiffe://a/app".into()].into(),
            certificate: None,
            chain: None,
        };
        let known = Connection {
            destination: Some("192.0.2.1:8443".parse().unwrap()),
            version: Some("TLSv1.3"),
            alpn: Some("h2"),
            server_name: Some("app.example"),
            ja4: Some("t13d"),
            suite: TlsSuite::named("TLS_AES_128_GCM_SHA256"),
            group: TlsGroup::named("x25519"),
            identity: Some(&identity),
        };
        let tls = "bind = \"127.0.0.1:0\"\ntls = \"t\"\n[tls.t]\ncertificates = [\"c.pem\"]\nja4 = true\nclient_auth = { ca = \"ca.pem\", mode = \"optional\" }\n";
        let all = [
            ("client = { san = \"app.example\" }", ""),
            ("client = { san = { prefix = \"spiffe://a/\" } }", ""),
            ("client = { san = \"other\" }", "the client's certificate: san is not as it asks"),
            ("client = { subject = { regex = 'O=Example$' }, issuer = \"CN=ca\", serial = \"0A\" }", ""),
            ("client = { sha256 = { prefix = \"AB:12\" } }", ""),
            ("client = { sha256 = { prefix = \"AB:13\" } }", "the client's certificate: sha256 is not as it asks"),
            ("client = { subject = { present = false } }", "the client's certificate: subject is not as it asks"),
            ("tls = { version = \"TLSv1.3\", server_name = \"app.example\", alpn = \"h2\" }", ""),
            ("tls = { version = \"TLSv1.2\" }", "TLS: version is not as it asks"),
            ("tls = { ja4 = { prefix = \"t13d\" } }", ""),
            ("tls = { suite = \"tls_aes_128_gcm_sha256\", group = \"X25519\" }", ""),
            ("tls = { suite = { prefix = \"TLS_AES_\" }, group = { regex = '25519' } }", ""),
            ("tls = { suite = { regex = 'CHACHA20' } }", "TLS: suite is not as it asks"),
            ("tls = { group = \"P-256\" }", "TLS: group is not as it asks"),
            ("tls = { group = { present = false } }", "TLS: group is not as it asks"),
            ("port = [80, 8443]", ""),
            ("port = 80", "the client connects to port 8443"),
        ];
        for (condition, wanted) in all {
            let text =
                format!("[listener.web]\n{tls}[[route]]\nmatch = {{ {condition} }}\nrespond = {{ status = 204 }}\n");
            let conditions = Conditions::of(&configured(&text).routes[0]).expect("conditions");
            let text = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
            let (head, source) = (head(text), IpAddr::from([10, 1, 2, 3]));
            let request = Request { head: &head, text: text.as_bytes(), source, connection: known };
            let unmet = conditions.unmet(&request).map(|unmet| unmet.to_string());
            assert_eq!(unmet.as_deref().unwrap_or_default(), wanted, "{condition}");
            let nobody = Request { connection: Connection::default(), ..request };
            let is_met = condition.contains("present = false");
            assert_eq!(conditions.hold(&nobody), is_met, "{condition}, of a plaintext client");
        }
    }

    #[test]
    fn calls_of_grpc_are_known_by_their_method_type_and_path() {
        let call = "Content-Type: application/grpc\r\n";
        let none = "no gRPC request to this service and method";
        for (condition, line, fields, wanted) in [
            ("{ service = \"a.B\", method = \"Get\" }", "POST /a.B/Get", call, ""),
            ("{ service = \"a.B\" }", "POST /a.B/Put", "Content-Type: application/grpc+proto\r\n", ""),
            ("{ method = { prefix = \"G\" } }", "POST /x/Get", call, ""),
            ("{}", "POST /x/Get", call, ""),
            ("{}", "POST /x/", call, none),
            ("{}", "POST /x", call, none),
            ("{}", "GET /x/Get", call, none),
            ("{}", "POST /x/Get", "Content-Type: application/grpc-web\r\n", none),
            ("{}", "POST /x/Get", "", none),
            ("{ service = \"a.B\" }", "POST /a.C/Get", call, none),
            ("{ method = \"Get\" }", "POST /a.B/Get/x", call, none),
        ] {
            let conditions = conditions(&format!("match = {{ grpc = {condition} }}"));
            let found = unmet(&conditions, line, fields);
            assert_eq!(found.as_deref().unwrap_or_default(), wanted, "{condition}: {line} {fields}");
        }
    }

    #[test]
    fn the_source_is_the_last_address_that_no_trusted_proxy_has() {
        let listener = |more: &str| {
            let text =
                format!("[listener.web]\nbind = \"127.0.0.1:0\"\n{more}\n[[route]]\nrespond = {{ status = 204 }}\n");
            configured(&text).listeners.remove(0)
        };
        let trusting = listener("forwarded = \"append\"\ntrusted_proxies = [\"10.0.0.0/8\", \"fd00::/8\"]");
        let distrusting = listener("trusted_proxies = [\"10.0.0.0/8\"]\naccept_proxy_protocol = true");
        for (listener, peer, lines, wanted) in [
            (&trusting, "10.0.0.1", "X-Forwarded-For: 1.2.3.4, 9.9.9.9, 10.0.0.2\r\n", "9.9.9.9"),
            (&trusting, "10.0.0.1", "X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: [fd00::1]:80\r\n", "1.2.3.4"),
            (&trusting, "10.0.0.1", "X-Forwarded-For: 1.2.3.4, unknown, 10.0.0.2\r\n", "10.0.0.2"),
            (&trusting, "10.0.0.1", "X-Forwarded-For: 1.2.3.4:77\r\n", "1.2.3.4"),
            (&trusting, "::ffff:10.0.0.1", "X-Forwarded-For: 10.0.0.7\r\n", "10.0.0.7"),
            (&trusting, "10.0.0.1", "x-forwarded-for: 1.2.3.4\r\nX_Forwarded_For: 9.9.9.9\r\n", "1.2.3.4"),
            (&trusting, "10.0.0.1", "X-Forwarded.For: 9.9.9.9\r\n", "10.0.0.1"),
            (&trusting, "10.0.0.1", "", "10.0.0.1"),
            (&trusting, "9.9.9.9", "X-Forwarded-For: 1.2.3.4\r\n", "9.9.9.9"),
            (&distrusting, "10.0.0.1", "X-Forwarded-For: 1.2.3.4\r\n", "10.0.0.1"),
        ] {
            let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
            let found = source(listener, peer.parse().unwrap(), &head(&text), text.as_bytes());
            assert_eq!(found, wanted.parse::<IpAddr>().unwrap(), "{peer} {lines}");
        }
    }
}

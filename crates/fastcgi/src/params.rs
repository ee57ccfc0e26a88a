//! Parameters: what a script is told of its request (RFC 3875 §4.1), and what PHP looks for besides.
//!
//! A request's head comes as a server of HTTP/1.1 would get it, with all that routes and listeners have made of it, so
//! that scripts see neither more nor less than such a server. Fields become `HTTP_NAME`, where `-` is `_`. A client
//! could send `X_Forwarded_For` to have a script see another's word, so a field whose name has anything but letters,
//! digits and `-` is left out; so is `Proxy`, whose `HTTP_PROXY` libraries take for the address of their proxy.

use std::net::{IpAddr, SocketAddr};

use propylon_config::FastCgi;

use crate::records::{ParamRecord, TooLong, write_begin};
use crate::script::{BadPath, Place, place};

/// Fields that are for one hop, that have a parameter of their own, or that nobody may forge, in lower case.
const WITHHELD: &[&[u8]] = &[
    b"connection",
    b"content-length",
    b"content-type",
    b"expect",
    b"http2-settings",
    b"keep-alive",
    b"proxy",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
];

/// Facts of a request that its head does not tell.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Version of HTTP that the client speaks, as in `HTTP/2.0`.
    pub protocol: &'a str,
    /// The client, and its port where the address is the connection's own.
    pub client: (IpAddr, Option<u16>),
    /// Address that the client has connected to.
    pub server: Option<SocketAddr>,
    pub is_tls: bool,
    /// Values of the configuration's own parameters, in their order; none where a fact is not known.
    pub extra: &'a [Option<Vec<u8>>],
}

/// Why a request cannot be put into parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    Path,
    TooLong,
}

impl From<BadPath> for Unfit {
    fn from(_: BadPath) -> Unfit {
        Unfit::Path
    }
}

impl From<TooLong> for Unfit {
    fn from(_: TooLong) -> Unfit {
        Unfit::TooLong
    }
}

/// Beginning of a request, whose parameters wait for the length of its body.
#[derive(Debug)]
pub struct Params {
    text: Vec<u8>,
    record: ParamRecord,
}

impl Params {
    /// Begins a request with such a head, as HTTP/1.1 writes it.
    ///
    /// # Errors
    /// The path leads out of the document root, or a field does not fit a record.
    pub fn of(settings: &FastCgi, head: &[u8], facts: &Facts<'_>) -> Result<Params, Unfit> {
        let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let mut first = lines.next().unwrap_or_default().split(|byte| *byte == b' ');
        let (method, target) = (first.next().unwrap_or_default(), first.next().unwrap_or_default());
        let query_at = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
        let path = &target[..query_at];
        let query = target.get(query_at + 1..).unwrap_or_default();
        let place = place(settings, path)?;
        let fields: Vec<(&[u8], &[u8])> = lines.filter_map(field).collect();
        let mut writer =
            Writer { settings, text: Vec::with_capacity(head.len() + 768), record: ParamRecord::default() };
        write_begin(settings.keep, &mut writer.text);
        for (name, value) in [
            ("GATEWAY_INTERFACE", b"CGI/1.1".as_slice()),
            ("SERVER_SOFTWARE", b"Propylon"),
            ("SERVER_PROTOCOL", facts.protocol.as_bytes()),
            ("REQUEST_METHOD", method),
            ("REQUEST_URI", target),
            ("QUERY_STRING", query),
            ("REQUEST_SCHEME", if facts.is_tls { b"https" } else { b"http" }),
            // Asked for by `php-cgi` before it runs a script.
            ("REDIRECT_STATUS", b"200"),
        ] {
            writer.pair(name, value)?;
        }
        if facts.is_tls {
            writer.pair("HTTPS", b"on")?;
        }
        writer.place(&place)?;
        writer.ends(facts, value_of(&fields, b"host").unwrap_or_default())?;
        if let Some(content_type) = value_of(&fields, b"content-type") {
            writer.pair("CONTENT_TYPE", content_type)?;
        }
        writer.fields(&fields)?;
        for (param, value) in settings.params.iter().zip(facts.extra) {
            if let Some(value) = value {
                writer.record.write(param.name.as_bytes(), value, &mut writer.text)?;
            }
        }
        Ok(Params { text: writer.text, record: writer.record })
    }

    /// Ends the parameters of a request with a body of so many bytes, or without one. Returns the records.
    pub fn end(self, body: Option<u64>) -> Vec<u8> {
        let Params { mut text, mut record } = self;
        if let Some(length) = body {
            // Never too long.
            let _ = record.write(b"CONTENT_LENGTH", length.to_string().as_bytes(), &mut text);
        }
        record.end(&mut text);
        text
    }
}

struct Writer<'s> {
    settings: &'s FastCgi,
    text: Vec<u8>,
    record: ParamRecord,
}

impl Writer<'_> {
    /// Writes a parameter, unless the configuration has one of this name.
    fn pair(&mut self, name: &str, value: &[u8]) -> Result<(), TooLong> {
        match self.settings.params.iter().any(|param| param.name == name) {
            true => Ok(()),
            false => self.record.write(name.as_bytes(), value, &mut self.text),
        }
    }

    fn place(&mut self, place: &Place) -> Result<(), TooLong> {
        let root = self.settings.root.as_bytes();
        self.pair("DOCUMENT_ROOT", root)?;
        self.pair("SCRIPT_FILENAME", &[root, &place.script].concat())?;
        self.pair("SCRIPT_NAME", &place.script)?;
        self.pair("DOCUMENT_URI", &[&place.script[..], &place.path_info].concat())?;
        self.pair("PATH_INFO", &place.path_info)
    }

    fn ends(&mut self, facts: &Facts<'_>, host: &[u8]) -> Result<(), TooLong> {
        let (address, port) = facts.client;
        self.pair("REMOTE_ADDR", address.to_canonical().to_string().as_bytes())?;
        if let Some(port) = port {
            self.pair("REMOTE_PORT", port.to_string().as_bytes())?;
        }
        let own_port = facts.server.map_or(if facts.is_tls { 443 } else { 80 }, |server| server.port());
        if let Some(server) = facts.server {
            self.pair("SERVER_ADDR", server.ip().to_canonical().to_string().as_bytes())?;
        }
        self.pair("SERVER_PORT", own_port.to_string().as_bytes())?;
        self.pair("SERVER_NAME", host_name(host))
    }

    /// Writes the fields as `HTTP_NAME`, those that came several times as one (RFC 3875 §4.1.18).
    fn fields(&mut self, fields: &[(&[u8], &[u8])]) -> Result<(), TooLong> {
        for (at, (name, value)) in fields.iter().enumerate() {
            let is_same = |(other, _): &&(&[u8], &[u8])| other.eq_ignore_ascii_case(name);
            if !is_told(name) || fields[..at].iter().any(|field| is_same(&field)) {
                continue;
            }
            let mut more = fields[at + 1..].iter().filter(is_same).peekable();
            let joined;
            let value = match more.peek() {
                None => *value,
                Some(_) => {
                    let comma: &[u8] = if name.eq_ignore_ascii_case(b"cookie") { b"; " } else { b", " };
                    let parts: Vec<&[u8]> = [*value].into_iter().chain(more.map(|(_, value)| *value)).collect();
                    joined = parts.join(comma);
                    &joined
                }
            };
            let letter = |byte: &u8| if *byte == b'-' { '_' } else { byte.to_ascii_uppercase() as char };
            let param: String = "HTTP_".chars().chain(name.iter().map(letter)).collect();
            self.pair(&param, value)?;
        }
        Ok(())
    }
}

/// Whether scripts are told of a field of this name.
fn is_told(name: &[u8]) -> bool {
    let is_plain = name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-');
    is_plain && !name.is_empty() && !WITHHELD.iter().any(|withheld| withheld.eq_ignore_ascii_case(name))
}

/// Name and value of a line.
fn field(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    Some((&line[..colon], line[colon + 1..].trim_ascii()))
}

fn value_of<'a>(fields: &[(&[u8], &'a [u8])], name: &[u8]) -> Option<&'a [u8]> {
    fields.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| *value)
}

/// A host without its port.
fn host_name(host: &[u8]) -> &[u8] {
    let digits = host.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let end = host.len() - digits;
    if end > 0 && host[end - 1] == b':' && !host[..end - 1].ends_with(b":") { &host[..end - 1] } else { host }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use propylon_config::{Piece, RequestHeader, Scripts};

    use super::*;
    use crate::records::HEADER_BYTES;

    const FACTS: Facts<'static> = Facts {
        protocol: "HTTP/1.1",
        client: (IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 7)), Some(4711)),
        server: None,
        is_tls: false,
        extra: &[],
    };

    /// Parameters by name; each is there once.
    fn params(settings: &FastCgi, head: &str, facts: &Facts<'_>, body: Option<u64>) -> BTreeMap<String, String> {
        let records = Params::of(settings, head.as_bytes(), facts).unwrap().end(body);
        let (mut rest, mut found) = (&records[16..], BTreeMap::new());
        loop {
            let length = usize::from(u16::from_be_bytes([rest[4], rest[5]]));
            let mut content = &rest[HEADER_BYTES..HEADER_BYTES + length];
            rest = &rest[HEADER_BYTES + length..];
            if length == 0 {
                assert!(rest.is_empty());
                return found;
            }
            while !content.is_empty() {
                let mut take = || match content {
                    [short @ 0..128, after @ ..] => {
                        content = after;
                        usize::from(*short)
                    }
                    _ => {
                        let long = u32::from_be_bytes(content[..4].try_into().unwrap()) & 0x7fff_ffff;
                        content = &content[4..];
                        long as usize
                    }
                };
                let (name, value) = (take(), take());
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                let twin = found.insert(text(&content[..name]), text(&content[name..name + value]));
                assert_eq!(twin, None);
                content = &content[name + value..];
            }
        }
    }

    #[test]
    fn a_script_is_told_what_php_looks_for() {
        let settings = FastCgi { scripts: Scripts::Any, ..FastCgi::at_root("/srv/app") };
        let head = "POST /a%20b/form.php/x/y?q=1&r=%2f HTTP/1.1\r\nHost: www.example.com:8443\r\nContent-Type: text/x\r\n\
                    Content-Length: 5\r\nAuthorization: Basic eDp5\r\nCookie: a=1\r\nCookie: b=2\r\nAccept: a\r\n\
                    accept: b\r\n\r\n";
        let facts = Facts { is_tls: true, server: "[::ffff:10.0.0.1]:8443".parse().ok(), ..FACTS };
        let found = params(&settings, head, &facts, Some(5));
        let expected = [
            ("CONTENT_LENGTH", "5"),
            ("CONTENT_TYPE", "text/x"),
            ("DOCUMENT_ROOT", "/srv/app"),
            ("DOCUMENT_URI", "/a b/form.php/x/y"),
            ("GATEWAY_INTERFACE", "CGI/1.1"),
            ("HTTPS", "on"),
            ("HTTP_ACCEPT", "a, b"),
            ("HTTP_AUTHORIZATION", "Basic eDp5"),
            ("HTTP_COOKIE", "a=1; b=2"),
            ("HTTP_HOST", "www.example.com:8443"),
            ("PATH_INFO", "/x/y"),
            ("QUERY_STRING", "q=1&r=%2f"),
            ("REDIRECT_STATUS", "200"),
            ("REMOTE_ADDR", "192.0.2.7"),
            ("REMOTE_PORT", "4711"),
            ("REQUEST_METHOD", "POST"),
            ("REQUEST_SCHEME", "https"),
            ("REQUEST_URI", "/a%20b/form.php/x/y?q=1&r=%2f"),
            ("SCRIPT_FILENAME", "/srv/app/a b/form.php"),
            ("SCRIPT_NAME", "/a b/form.php"),
            ("SERVER_ADDR", "10.0.0.1"),
            ("SERVER_NAME", "www.example.com"),
            ("SERVER_PORT", "8443"),
            ("SERVER_PROTOCOL", "HTTP/1.1"),
            ("SERVER_SOFTWARE", "Propylon"),
        ];
        assert_eq!(found, expected.map(|(name, value)| (name.into(), value.into())).into());
    }

    #[test]
    fn clients_cannot_forge_what_they_do_not_send() {
        let settings = FastCgi::at_root("/srv/app");
        let head = "GET / HTTP/1.1\r\nHost: x\r\nProxy: http://evil/\r\nX_Forwarded_For: 1\r\nX-Forwarded-For: 2\r\n\
                    X.Real: 3\r\nConnection: close\r\nTE: trailers\r\nContent-Length: 0\r\nHTTPS: on\r\n\r\n";
        let found = params(&settings, head, &FACTS, None);
        let of_client: Vec<_> = found.iter().filter(|(name, _)| name.starts_with("HTTP_")).collect();
        let expected = [("HTTP_HOST", "x"), ("HTTP_HTTPS", "on"), ("HTTP_X_FORWARDED_FOR", "2")];
        assert_eq!(of_client.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect::<Vec<_>>(), expected);
        assert!(!found.contains_key("HTTPS") && !found.contains_key("CONTENT_LENGTH"));
    }

    #[test]
    fn the_configurations_own_parameters_take_the_place_of_others() {
        let param = |name: &str| RequestHeader { name: name.into(), value: vec![Piece::Text("x".into())] };
        let params_of = vec![param("SCRIPT_FILENAME"), param("APP_ENV"), param("REMOTE_USER"), param("HTTP_X_USER")];
        let settings = FastCgi { params: params_of, ..FastCgi::at_root("/srv/app") };
        let extra = [Some(b"/other.php".to_vec()), Some(b"prod".to_vec()), None, None];
        let head = "GET / HTTP/1.1\r\nHost: x\r\nX-User: forged\r\n\r\n";
        let found = params(&settings, head, &Facts { extra: &extra, ..FACTS }, None);
        assert_eq!(found["SCRIPT_FILENAME"], "/other.php");
        assert_eq!(found["APP_ENV"], "prod");
        assert!(!found.contains_key("REMOTE_USER") && !found.contains_key("HTTP_X_USER"));
    }

    #[test]
    fn what_cannot_be_told_is_refused_and_much_takes_several_records() {
        let settings = FastCgi::at_root("/srv/app");
        let unfit = |head: &str| Params::of(&settings, head.as_bytes(), &FACTS).unwrap_err();
        assert_eq!(unfit("GET /a/../b HTTP/1.1\r\nHost: x\r\n\r\n"), Unfit::Path);
        let long = "v".repeat(70_000);
        assert_eq!(unfit(&format!("GET / HTTP/1.1\r\nHost: x\r\nA: {long}\r\n\r\n")), Unfit::TooLong);
        let fields: String = (0..9).map(|n| format!("A{n}: {}\r\n", &long[..30_000])).collect();
        let found = params(&settings, &format!("GET / HTTP/1.1\r\nHost: x\r\n{fields}\r\n"), &FACTS, None);
        assert!((0..9).all(|n| found[&format!("HTTP_A{n}")].len() == 30_000));
    }

    #[test]
    fn hosts_lose_their_ports_and_nothing_else() {
        for (host, name) in
            [("a:80", "a"), ("a", "a"), ("[::1]:80", "[::1]"), ("[::1]", "[::1]"), ("", ""), ("a:", "a")]
        {
            assert_eq!(host_name(host.as_bytes()), name.as_bytes());
        }
    }
}

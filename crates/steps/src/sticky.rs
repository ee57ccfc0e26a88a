//! Sticky sessions: the cookie by which a client's requests return to the same server.
//!
//! The cookie's value is a tag of the server's address, the same on every engine that has the secret. So there is no
//! session table to share or to expire, and a request costs neither a computation nor memory, unless its cookie is not
//! one of those that the backend would set now.

use std::path::PathBuf;

use propylon_config::{At, Backend};
use propylon_crypto::{SecretFileError, Tag, TagKey};
use propylon_http::h1::{Fields, cookies};
use propylon_tls::{Finding, Severity};

use crate::split::CookieLines;

/// Limit on cookies of one name that are read per request: a browser sends those of all paths.
const COOKIES_MAX: usize = 8;

/// Cookies of one backend's servers.
pub struct Sticky {
    name: String,
    key: TagKey,
    servers: Vec<ServerCookie>,
}

/// Cookie of one server.
struct ServerCookie {
    tag: Tag,
    lines: CookieLines,
}

/// Target of a request's cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CookieTarget {
    /// The request has no cookie of this name.
    Absent,
    Server(usize),
    /// The cookie is genuine, and its server is no longer in the backend.
    Gone,
    /// The cookie was not made with this backend's secret.
    Forged,
}

impl Sticky {
    /// Loads a backend's secret and makes its servers' cookies; `labels` are the servers' addresses as the
    /// configuration has them. `None` for a backend without `sticky`.
    pub fn load<'a>(
        backend: &Backend,
        labels: impl Iterator<Item = &'a str>,
    ) -> Result<Option<Sticky>, (SecretFileError, At)> {
        let Some(config) = &backend.sticky else { return Ok(None) };
        let key = match &config.key_file {
            Some(path) => TagKey::from_file(path).map_err(|error| (error, config.at))?,
            None => TagKey::of_process(),
        };
        let cookie = |label: &str| {
            let tag = key.tag(label.as_bytes());
            ServerCookie { lines: CookieLines::new(config, &tag.to_text()), tag }
        };
        let servers = labels.map(cookie).collect();
        Ok(Some(Sticky { name: config.cookie.clone(), key, servers }))
    }

    /// Target of the request's cookies: the first server that one of them names.
    pub fn target(&self, fields: &Fields, buf: &[u8]) -> CookieTarget {
        let mut target = CookieTarget::Absent;
        for value in cookies(fields, buf, &self.name).take(COOKIES_MAX) {
            match self.read(value) {
                CookieTarget::Server(server) => return CookieTarget::Server(server),
                other if target == CookieTarget::Absent || other == CookieTarget::Gone => target = other,
                _ => {}
            }
        }
        target
    }

    /// As [`Sticky::set_cookie_line`], for either kind of client.
    pub fn lines(&self, server: usize) -> Option<&CookieLines> {
        self.servers.get(server).map(|cookie| &cookie.lines)
    }

    /// The `Set-Cookie` line by which the client's later requests return to this server.
    pub fn set_cookie_line(&self, server: usize, is_tls: bool) -> Option<&[u8]> {
        Some(self.lines(server)?.of(is_tls))
    }

    fn read(&self, value: &[u8]) -> CookieTarget {
        let Some(tag) = Tag::parse(value) else { return CookieTarget::Forged };
        match self.servers.iter().position(|cookie| cookie.tag.has_name_of(&tag)) {
            Some(server) if self.servers[server].tag.is_same(&tag) => CookieTarget::Server(server),
            None if self.key.is_genuine(&tag) => CookieTarget::Gone,
            _ => CookieTarget::Forged,
        }
    }
}

/// Checks the files of secrets: finds errors in them, and backends that have none.
pub fn check(backends: &[Backend]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for sticky in backends.iter().filter_map(|backend| backend.sticky.as_ref()) {
        match &sticky.key_file {
            Some(path) => findings.extend(TagKey::from_file(path).err().map(|error| finding(error, sticky.at))),
            None => findings.push(without_file(sticky.at)),
        }
    }
    findings
}

pub fn finding(error: SecretFileError, at: At) -> Finding {
    let what = format!("{}: {}", error.path.display(), error.what);
    Finding { severity: Severity::Error, at, path: error.path, what, fix: error.fix, error: error.error }
}

pub fn without_file(at: At) -> Finding {
    Finding {
        severity: Severity::Warning,
        at,
        path: PathBuf::new(),
        what: "`sticky` has no `key_file`: its cookies are good on this engine only, and until it is started again"
            .into(),
        fix: "add key_file = \"PATH\" of a file made with `openssl rand -hex 32`, the same on every engine".into(),
        error: None,
    }
}

#[cfg(test)]
mod tests {
    use propylon_config::Source;

    use super::*;
    use propylon_http::h1::{Limits, RequestHead, parse_request};

    const LABELS: [&str; 3] = ["10.0.0.1:80", "10.0.0.2:80", "app.internal:81"];

    fn sticky(options: &str) -> Sticky {
        let text = format!(
            "[listener.a]\nbind='0.0.0.0:80'\n[backend.b]\nservers={LABELS:?}\nsticky={{cookie='seat'{options}}}\n[[route]]\nbackend='b'\n"
        );
        let source = Source { name: "f".into(), base: PathBuf::from("/"), text };
        let (config, _) = propylon_config::parse(&source).unwrap();
        Sticky::load(&config.backends[0], LABELS.into_iter()).ok().flatten().unwrap()
    }

    fn target(sticky: &Sticky, fields: &str) -> CookieTarget {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let mut head = RequestHead::default();
        parse_request(text.as_bytes(), &Limits { head_bytes: 16_384, headers: 100 }, &mut head).unwrap();
        sticky.target(&head.fields, text.as_bytes())
    }

    fn value(sticky: &Sticky, server: usize) -> String {
        sticky.servers[server].tag.to_text()
    }

    #[test]
    fn a_cookie_leads_back_to_its_server() {
        let sticky = sticky("");
        for server in 0..3 {
            let value = value(&sticky, server);
            assert_eq!(target(&sticky, &format!("Cookie: seat={value}\r\n")), CookieTarget::Server(server));
            assert_eq!(target(&sticky, &format!("cookie: a=b; seat={value}; c=d\r\n")), CookieTarget::Server(server));
            assert_eq!(
                target(&sticky, &format!("Cookie: a=b\r\nCookie: seat=\"{value}\"\r\n")),
                CookieTarget::Server(server)
            );
            assert_eq!(target(&sticky, &format!("Cookie: seat=old; seat={value}\r\n")), CookieTarget::Server(server));
        }
    }

    #[test]
    fn other_cookies_have_no_target() {
        let sticky = sticky("");
        let (one, other) = (value(&sticky, 0), value(&sticky, 1));
        for none in ["", "Cookie: a=b\r\n", "Cookie: seats=1; aseat=2; seat\r\n", "Cookies: seat=1\r\n"] {
            assert_eq!(target(&sticky, none), CookieTarget::Absent, "{none}");
        }
        let stranger = TagKey::from_secret(&[1; 32]).tag(b"10.0.0.1:80").to_text();
        let mixed = format!("{}{}", &one[..16], &other[16..]);
        for forged in ["", "1", &one[..47], &format!("{one}0"), &one.to_uppercase(), &stranger, &mixed] {
            assert_eq!(target(&sticky, &format!("Cookie: seat={forged}\r\n")), CookieTarget::Forged, "{forged}");
        }
        let gone = TagKey::of_process().tag(b"10.0.0.9:80").to_text();
        assert_eq!(target(&sticky, &format!("Cookie: seat={gone}\r\n")), CookieTarget::Gone);
        assert_eq!(target(&sticky, &format!("Cookie: seat=x; seat={gone}\r\n")), CookieTarget::Gone);
    }

    #[test]
    fn a_cookie_does_not_reveal_the_servers_address() {
        let line = String::from_utf8(sticky("").set_cookie_line(2, true).unwrap().to_vec()).unwrap();
        assert!(!line.contains("app") && !line.contains("81;"), "{line}");
    }

    #[test]
    fn attributes_are_those_that_were_asked_for() {
        let tail = |options: &str, is_tls| {
            let sticky = sticky(options);
            let line = String::from_utf8(sticky.set_cookie_line(0, is_tls).unwrap().to_vec()).unwrap();
            let (name, rest) = line.split_once('=').unwrap();
            assert_eq!(name, "Set-Cookie: seat");
            rest.split_once(';').unwrap().1.to_string()
        };
        assert_eq!(tail("", false), " Path=/; HttpOnly; SameSite=Lax\r\n");
        assert_eq!(tail("", true), " Path=/; Secure; HttpOnly; SameSite=Lax\r\n");
        assert_eq!(
            tail(",secure=true,ttl='2h',same_site='none'", false),
            " Path=/; Max-Age=7200; Secure; HttpOnly; SameSite=None\r\n"
        );
        assert_eq!(tail(",secure=false,http_only=false,same_site='unsaid',path='/a'", true), " Path=/a\r\n");
        assert_eq!(tail(",same_site='strict'", false), " Path=/; HttpOnly; SameSite=Strict\r\n");
    }
}

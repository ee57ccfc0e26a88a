//! The choice among the backends of a route that divides its requests: by weight, or the one that a client has had.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use propylon_config::{self as config, BackendId, Config, CookieSecure, HashKey, Route, SameSite, SideSticky, SideTo};
use propylon_http::h1::{Fields, cookies};
use propylon_policy::balance::key_of;
use propylon_policy::split::Turns;

use crate::conditions::Request;
use crate::side::SideChange;
use crate::sticky;

/// Cookies of one name that are read per request: a browser sends those of all paths.
const COOKIES_MAX: usize = 8;

/// Division of one route's requests among backends. Each core has its own, and takes turns by itself.
pub struct Split {
    sides: Vec<Side>,
    /// `None` where no side has a weight.
    turns: Option<RefCell<Turns>>,
    sticky: Sticky,
}

/// One of the places that requests are divided among.
pub struct Side {
    pub to: SideTo,
    /// Changes of what goes there, and of what comes from there.
    pub change: Option<Rc<SideChange>>,
    weight: u32,
    /// Value of the cookie that names the side; without stickiness by cookie of no meaning, and none of an answer.
    value: Option<String>,
}

impl Side {
    /// Whether the value of a cookie names it.
    fn is_named(&self, value: &[u8]) -> bool {
        self.value.as_ref().is_some_and(|own| own.as_bytes() == value)
    }
}

enum Sticky {
    None,
    Cookie(config::Sticky),
    Hash(HashKey),
}

/// `Set-Cookie` as a whole line, for clients in plaintext and for those over TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CookieLines {
    pub plain: Vec<u8>,
    pub tls: Vec<u8>,
}

impl CookieLines {
    /// Lines of a cookie with this value, and the attributes of a configuration.
    pub fn new(cookie: &config::Sticky, value: &str) -> CookieLines {
        let line = |is_tls| {
            let secure = cookie.secure == CookieSecure::Always || cookie.secure == CookieSecure::Auto && is_tls;
            set_cookie(cookie, value, secure)
        };
        CookieLines { plain: line(false), tls: line(true) }
    }

    pub fn of(&self, is_tls: bool) -> &[u8] {
        if is_tls { &self.tls } else { &self.plain }
    }

    /// Both cookies' lines, where a response sets two.
    pub fn with(&self, other: &CookieLines) -> CookieLines {
        CookieLines { plain: [&self.plain[..], &other.plain].concat(), tls: [&self.tls[..], &other.tls].concat() }
    }
}

impl Split {
    /// `random` decides with which turn it begins.
    pub fn of((route, split): (&Route, &config::Split), config: &Config, random: u64) -> Split {
        let weights: Vec<u32> = split.sides.iter().map(|side| side.weight).collect();
        let value = |id: BackendId| format!("{:016x}", key_of(config.backends[id.0].name.as_bytes()));
        let side = |side: &config::Side| Side {
            to: side.to,
            change: SideChange::of(route, side),
            weight: side.weight,
            value: side.backend().map(value),
        };
        Split {
            sides: split.sides.iter().map(side).collect(),
            turns: Turns::new(&weights, random).map(RefCell::new),
            sticky: match &split.sticky {
                Some(SideSticky::Cookie(cookie)) => Sticky::Cookie(cookie.clone()),
                Some(SideSticky::Hash(key)) => Sticky::Hash(key.clone()),
                None => Sticky::None,
            },
        }
    }

    /// Side of a request for this path; none if no side has a weight.
    pub fn choose(&self, request: &Request<'_>, path: &[u8]) -> Option<&Side> {
        let turns = self.turns.as_ref()?;
        let (fields, text) = (&request.head.fields, request.text);
        let side = match &self.sticky {
            Sticky::None => None,
            Sticky::Cookie(cookie) => self.named(&cookie.cookie, fields, text),
            Sticky::Hash(key) => key_of_request(key, request, path).map(|key| turns.borrow().of_key(key)),
        };
        let side = side.unwrap_or_else(|| turns.borrow_mut().take_turn());
        Some(&self.sides[side])
    }

    /// Side of a connection that says nothing by which it could be kept to one; none if no side has a weight.
    pub fn take_turn(&self) -> Option<&Side> {
        let side = self.turns.as_ref()?.borrow_mut().take_turn();
        Some(&self.sides[side])
    }

    /// The first side that a cookie names, if it has a weight.
    fn named(&self, name: &str, fields: &Fields, text: &[u8]) -> Option<usize> {
        cookies(fields, text, name)
            .take(COOKIES_MAX)
            .find_map(|value| self.sides.iter().position(|side| side.is_named(value) && side.weight > 0))
    }

    /// Whether a request that has gone to this backend came with the cookie of it.
    pub fn has_cookie_of(&self, backend: BackendId, fields: &Fields, text: &[u8]) -> bool {
        let Sticky::Cookie(cookie) = &self.sticky else { return true };
        self.named(&cookie.cookie, fields, text).is_some_and(|side| self.sides[side].to == SideTo::Backend(backend))
    }

    /// Whether sides change fields of requests.
    pub fn changes_fields(&self) -> bool {
        self.sides.iter().filter_map(|side| side.change.as_ref()).any(|change| change.changes_fields())
    }

    /// Whether a side has changes of its own.
    pub fn has_changes(&self) -> bool {
        self.sides.iter().any(|side| side.change.is_some())
    }

    /// Whether clients keep to their sides by cookies.
    pub fn sets_cookies(&self) -> bool {
        matches!(self.sticky, Sticky::Cookie(_))
    }

    /// The cookies by which a client keeps to this backend, alone and with those of its `servers`, where it has any;
    /// none where there are no such cookies, or it is no side.
    pub fn cookies(&self, backend: BackendId, seats: Option<&sticky::Sticky>, servers: usize) -> Option<SideCookies> {
        let Sticky::Cookie(cookie) = &self.sticky else { return None };
        let side = self.sides.iter().find(|side| side.to == SideTo::Backend(backend))?;
        let alone = CookieLines::new(cookie, side.value.as_ref()?);
        let with_server = seats.into_iter().flat_map(|seats| (0..servers).filter_map(|server| seats.lines(server)));
        Some(SideCookies { with_server: with_server.map(|lines| alone.with(lines)).collect(), alone })
    }
}

/// `Set-Cookie` lines for a client that is to keep to a side.
pub struct SideCookies {
    pub alone: CookieLines,
    /// With the cookie of a server of it, by server; empty where the backend has no such cookies.
    pub with_server: Vec<CookieLines>,
}

/// Key of a request, the same everywhere, whatever a route makes of its `path`; `None` where it lacks the header or
/// cookie that the key is made of.
pub fn key_of_request(key: &HashKey, request: &Request<'_>, path: &[u8]) -> Option<u64> {
    let (head, text) = (request.head, request.text);
    match key {
        HashKey::ClientIp => Some(key_of_address(request.source)),
        HashKey::Path => Some(key_of(path)),
        HashKey::Header(name) => head.fields.value(text, name).map(key_of),
        HashKey::Cookie(name) => cookies(&head.fields, text, name).next().map(key_of),
    }
}

/// Key of a client's address, of which an IPv4 address and the same in IPv6 are one.
pub fn key_of_address(address: IpAddr) -> u64 {
    match address.to_canonical() {
        IpAddr::V4(address) => key_of(&address.octets()),
        IpAddr::V6(address) => key_of(&address.octets()),
    }
}

/// A whole line `Set-Cookie` (RFC 6265 §4.1.1).
fn set_cookie(cookie: &config::Sticky, value: &str, secure: bool) -> Vec<u8> {
    let mut line = format!("Set-Cookie: {}={value}; Path={}", cookie.cookie, cookie.path);
    if let Some(ttl) = cookie.ttl {
        line.push_str(&format!("; Max-Age={}", ttl.as_secs().max(1)));
    }
    if secure {
        line.push_str("; Secure");
    }
    if cookie.http_only {
        line.push_str("; HttpOnly");
    }
    line.push_str(match cookie.same_site {
        SameSite::Strict => "; SameSite=Strict",
        SameSite::Lax => "; SameSite=Lax",
        SameSite::None => "; SameSite=None",
        SameSite::Unsaid => "",
    });
    line.push_str("\r\n");
    line.into_bytes()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use propylon_config::Source;
    use propylon_http::h1::{Limits, RequestHead, parse_request};

    use super::*;

    fn split(weights: [u32; 2], sticky: &str) -> Split {
        let [a, b] = weights;
        let text = format!(
            "[listener.w]\nbind='127.0.0.1:0'\n[backend.a]\nservers=['10.0.0.1:80']\n[backend.b]\nservers=['10.0.0.2:80']\n\
             [[route]]\nbackend=[{{name='a',weight={a}}},{{name='b',weight={b}}}]\n{sticky}\n"
        );
        let source = Source { name: "f".into(), base: PathBuf::from("/"), text: text.clone() };
        let (config, _) = propylon_config::parse(&source).unwrap_or_else(|problems| panic!("{text}{problems:?}"));
        Split::of((&config.routes[0], config.routes[0].steps.split.as_ref().unwrap()), &config, 4)
    }

    /// Counts of the two sides, for so many requests with these lines, each from its own address.
    fn counts(split: &Split, number: u32, lines: impl Fn(u32) -> String) -> [u32; 2] {
        let mut counts = [0; 2];
        for place in 0..number {
            let text = format!("GET /{place} HTTP/1.1\r\nHost: a\r\n{}\r\n", lines(place));
            let mut head = RequestHead::default();
            parse_request(text.as_bytes(), &Limits { head_bytes: 16_384, headers: 100 }, &mut head).unwrap();
            let source = IpAddr::from(place.to_be_bytes());
            let request = Request {
                head: &head,
                text: text.as_bytes(),
                source,
                connection: crate::conditions::Connection::default(),
            };
            if let Some(side) = split.choose(&request, head.path(text.as_bytes())) {
                let SideTo::Backend(BackendId(side)) = side.to else { unreachable!("sides are backends") };
                counts[side] += 1;
            }
        }
        counts
    }

    #[test]
    fn weights_are_kept_to_the_request_and_nothing_goes_where_there_is_none() {
        let none = |_| String::new();
        assert_eq!(counts(&split([90, 10], ""), 1_000, none), [900, 100]);
        assert_eq!(counts(&split([0, 10], ""), 1_000, none), [0, 1_000]);
        assert_eq!(counts(&split([0, 0], ""), 10, none), [0, 0]);
    }

    #[test]
    fn a_cookie_keeps_a_client_at_its_side_until_that_has_no_weight() {
        let cookie = "sticky={cookie='side'}";
        let divided = split([99, 1], cookie);
        let value = |side: usize| divided.sides[side].value.clone().unwrap();
        let with = |value: String| move |_| format!("Cookie: x=1; side={value}\r\n");
        assert_eq!(counts(&divided, 100, with(value(1))), [0, 100]);
        assert_eq!(counts(&divided, 100, with("nobody".into())), [99, 1]);
        assert_eq!(counts(&split([99, 0], cookie), 100, with(value(1))), [100, 0]);
        let lines = divided.cookies(BackendId(1), None, 3).unwrap().alone;
        let line = |secure: &str| format!("Set-Cookie: side={}; Path=/{secure}; HttpOnly; SameSite=Lax\r\n", value(1));
        assert_eq!((lines.plain, lines.tls), (line("").into_bytes(), line("; Secure").into_bytes()));
    }

    #[test]
    fn a_client_has_the_cookie_of_the_backend_that_answered_or_is_given_it() {
        let cookie = "sticky={cookie='side'}";
        let divided = split([1, 1], cookie);
        let [a, b] = [0, 1].map(|side: usize| divided.sides[side].value.clone().unwrap());
        let has = |split: &Split, cookies: &str| {
            let text = format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: {cookies}\r\n\r\n");
            let mut head = RequestHead::default();
            parse_request(text.as_bytes(), &Limits { head_bytes: 16_384, headers: 100 }, &mut head).unwrap();
            [0, 1, 2].map(|backend| split.has_cookie_of(BackendId(backend), &head.fields, text.as_bytes()))
        };
        assert_eq!(has(&divided, &format!("side={a}")), [true, false, false]);
        assert_eq!(has(&divided, &format!("x=y; side={b}")), [false, true, false]);
        // The first that names a side decides, as it does for the choice.
        assert_eq!(has(&divided, &format!("side=x; side={b}; side={a}")), [false, true, false]);
        assert_eq!(has(&divided, &format!("other={a}")), [false; 3]);
        assert_eq!(has(&split([0, 1], cookie), &format!("side={a}")), [false; 3]);
        assert_eq!(has(&split([1, 1], ""), ""), [true; 3], "nobody is given any");
    }

    #[test]
    fn a_hash_keeps_a_client_at_its_side_and_those_without_the_field_take_turns() {
        let by_header = split([50, 50], "sticky={key={header='X-User'}}");
        let user = |user: u32| counts(&by_header, 100, |_| format!("X-User: {user}\r\n"));
        let sides: Vec<[u32; 2]> = (0..64).map(user).collect();
        assert!(sides.iter().all(|side| side == &[100, 0] || side == &[0, 100]));
        assert!(sides.contains(&[100, 0]) && sides.contains(&[0, 100]));
        assert_eq!(counts(&by_header, 100, |_| String::new()), [50, 50]);
        let by_address = split([50, 50], "sticky={key='client-ip'}");
        let [a, b] = counts(&by_address, 10_000, |_| String::new());
        assert!(a.abs_diff(b) < 500, "{a} and {b}");
    }
}

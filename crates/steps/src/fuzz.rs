//! Promises that must hold for any bytes whatever: shared by the fuzz target and by a seeded run among the tests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use propylon_config::{
    CookieChanges, Listener, PathChange, PathPattern, PathRules, Piece, QueryChanges, RequestHeader, SameSite, Source,
};
use propylon_http::h1::{Limits, Parsed, RequestHead, TARGET, all, cookies, parse_request, path as paths};

use crate::conditions::{parameter, source};
use crate::cookie::change_cookie;
use crate::grpc_web::{Decoder, ending};
use crate::target::{PathRewrite, change_query};

/// Changes of paths: whatever a client asks for, another path is canonical, of no other host, and fit to be sent. The
/// first byte says which rules and which change, the others are the path.
pub fn path(bytes: &[u8]) {
    let Some((&choice, path)) = bytes.split_first() else { return };
    let bit = |bit: u8| choice >> bit & 1 == 1;
    let (merge_slashes, escaped_slash, backslash, above_root) = (bit(0), bit(1), bit(2), bit(3));
    let rules = PathRules { merge_slashes, escaped_slash, backslash, escaped_nul: escaped_slash, above_root };
    if !path.starts_with(b"/") || !all(path, TARGET) || path.contains(&b'?') {
        return;
    }
    let Ok(rewritten) = paths::rewrite(path, rules) else { return };
    let path = if rewritten.canonical.is_empty() { path } else { &rewritten.canonical };
    let regex = |regex: &str, to: &str| PathChange::Regex { regex: regex.into(), to: to.into() };
    let change = match choice >> 4 {
        0..3 => PathChange::Strip { strip: "/a".into() },
        3..6 => PathChange::ReplacePrefix { replace_prefix: "/b/c".into() },
        6..8 => PathChange::ReplacePrefix { replace_prefix: "/".into() },
        8..10 => regex("^/(.)(.*)$", "$1/$2?q=$2"),
        10..12 => regex("%|[.]", ""),
        12..14 => regex("a(.?)", "/.$1./"),
        _ => regex("^(.*)/(.*)$", "$2$1"),
    };
    let Ok(Some(changed)) = PathRewrite::of(&change, &PathPattern::Prefix("/a".into())).apply(path, rules) else {
        return;
    };
    assert!(changed.path.starts_with(b"/") && !changed.path.starts_with(b"//"), "{changed:?}");
    assert!(all(&changed.path, TARGET) && !changed.path.contains(&b'?'), "{changed:?}");
    assert!(all(&changed.query, TARGET) && !changed.query.contains(&b'#'), "{changed:?}");
    let again = paths::rewrite(&changed.path, rules).expect("what was made is let in");
    assert!(again.canonical.is_empty(), "{changed:?} is canonical: {again:?}");
}

/// Changes of cookies: no line becomes two, and its name and value stay.
pub fn cookie(line: &[u8]) {
    let changes = CookieChanges {
        secure: Some(line.len().is_multiple_of(2)),
        http_only: Some(true),
        same_site: Some(SameSite::Lax),
        domain: Some("a.example".into()),
        path: Some("/x".into()),
    };
    let changed = change_cookie(&changes, line);
    let pair = |line: &[u8]| line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii().to_vec();
    assert_eq!(pair(&changed), pair(line));
    assert!(line.contains(&b'\n') || !changed.contains(&b'\n'));
}

/// Parameters of a query: one that is set is there with that value, and once; one that is removed is not there; all
/// others stay as they came. The bytes are a value, an end of line, and a query.
pub fn query(bytes: &[u8]) {
    const NAME: &str = "a b";
    let (value, query) = bytes.split_at(bytes.iter().position(|byte| *byte == b'\n').unwrap_or(0));
    let query = query.strip_prefix(b"\n").unwrap_or(query);
    let Ok(value) = std::str::from_utf8(value) else { return };
    if !all(query, TARGET) || query.contains(&b'?') {
        return;
    }
    let query = [b"?", query].concat();
    let line = RequestHeader { name: NAME.into(), value: vec![Piece::Text(value.into())] };
    let set = QueryChanges { set: vec![line.clone()], ..QueryChanges::default() };
    let changed = change_query(&set, b"", &query, &|_, _| false);
    assert!(all(&changed, TARGET), "{}", changed.escape_ascii());
    assert_eq!(parameter(&changed[1..], NAME).as_deref(), Some(value.as_bytes()), "{}", changed.escape_ascii());
    let removed = QueryChanges { remove: vec![NAME.into()], ..QueryChanges::default() };
    let without = change_query(&removed, b"", &changed, &|_, _| false);
    assert_eq!(parameter(without.strip_prefix(b"?").unwrap_or_default(), NAME), None);
    assert_eq!(change_query(&removed, b"", &query, &|_, _| false), without, "one is written, and taken away again");
    let added = QueryChanges { add: vec![line], ..QueryChanges::default() };
    let parts = |query: &[u8]| query[1..].split(|byte| *byte == b'&').filter(|part| !part.is_empty()).count();
    assert_eq!(parts(&change_query(&added, b"", &query, &|_, _| false)), parts(&query) + 1);
}

/// Values of a request's cookies: each is a part of its line, and what is found is what another reading finds.
pub fn cookies_of(line: &[u8]) {
    let text = [b"GET / HTTP/1.1\r\nHost: a\r\nCookie: ", line, b"\r\n\r\n"].concat();
    let Some(head) = parsed(&text) else { return };
    let Some(line) = head.fields.value(&text, "cookie") else { return };
    let bare = |value: &[u8]| match value {
        [b'"', inner @ .., b'"'] => inner.to_vec(),
        _ => value.to_vec(),
    };
    for name in ["a", "place"] {
        let found: Vec<Vec<u8>> = cookies(&head.fields, &text, name).map(<[u8]>::to_vec).collect();
        let pairs = line.split(|byte| *byte == b';').map(|pair| pair.trim_ascii().splitn(2, |byte| *byte == b'='));
        let named = pairs.filter_map(|mut pair| Some((pair.next()?, pair.next()?)));
        let wanted: Vec<Vec<u8>> =
            named.filter(|(own, _)| *own == name.as_bytes()).map(|(_, value)| bare(value)).collect();
        assert_eq!(found, wanted, "{}", line.escape_ascii());
    }
}

/// The address that a request is from: its peer's, or the last in X-Forwarded-For whose right neighbours are all
/// trusted proxies. The bytes are the lines of that field.
pub fn forwarded(lines: &[u8]) {
    thread_local!(static LISTENER: Listener = trusting());
    let text = [b"GET / HTTP/1.1\r\nHost: a\r\n", lines, b"\r\n\r\n"].concat();
    let Some(head) = parsed(&text) else { return };
    LISTENER.with(|listener| {
        let is_proxy = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets()[0] == 10,
            IpAddr::V6(address) => address.segments()[0] == 0xfd00,
        };
        let stranger = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
        assert_eq!(source(listener, stranger, &head, &text), stranger, "nobody has to believe a stranger");
        let lines = head.fields.iter().filter(|field| field.name.bytes(&text).eq_ignore_ascii_case(b"x-forwarded-for"));
        let said: Vec<String> = lines
            .flat_map(|field| field.value.bytes(&text).split(|byte| *byte == b','))
            .map(|hop| String::from_utf8_lossy(hop.trim_ascii()).into_owned())
            .collect();
        let mut wanted = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
        for hop in said.iter().rev() {
            if !is_proxy(wanted) {
                break;
            }
            let bare = hop.trim_start_matches('[').split(']').next().unwrap_or_default();
            let port = hop.rsplit_once(':').filter(|(host, _)| !host.contains(':')).map(|(host, _)| host);
            let address = hop.parse::<IpAddr>().ok();
            let address = address.or_else(|| port?.parse::<Ipv4Addr>().ok().map(IpAddr::V4));
            let address = address.or_else(|| bare.parse::<Ipv6Addr>().ok().map(IpAddr::V6));
            let Some(address) = address else { break };
            wanted = address.to_canonical();
        }
        let found = source(listener, IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), &head, &text);
        // The simple reading takes some for addresses that are none; the strict one stops earlier, never elsewhere.
        assert!(found == wanted || is_proxy(found), "{found} {wanted}: {said:?}");
        // An address of IPv6 has many ways of writing, and one of IPv4 may be written as such.
        let is_said = said.iter().any(|hop| hop.contains(&found.to_string()) || hop.matches(':').count() > 1);
        assert!(is_proxy(found) || is_said, "{found}: {said:?}");
    });
}

/// A listener that trusts 10/8 and fd00::/16.
fn trusting() -> Listener {
    let text = "[listener.a]\nbind = \"0.0.0.0:80\"\nforwarded = \"append\"\n\
                trusted_proxies = [\"10.0.0.0/8\", \"fd00::/16\"]\n[[route]]\nrespond = { status = 204 }\n";
    let source = Source { name: "a.toml".into(), base: "".into(), text: text.into() };
    let (mut config, _) = propylon_config::parse(&source).expect("a good text");
    config.listeners.remove(0)
}

fn parsed(text: &[u8]) -> Option<RequestHead> {
    let mut head = RequestHead::default();
    let limits = Limits { head_bytes: 64 << 10, headers: 64 };
    (parse_request(text, &limits, &mut head) == Ok(Parsed::Complete) && head.length == text.len()).then_some(head)
}

/// Bodies of gRPC-Web: base64 reads the same in any pieces, and what is written for a client reads as what it was. The
/// first byte says how long pieces are.
pub fn grpc_web(bytes: &[u8]) {
    let Some((&piece, body)) = bytes.split_first() else { return };
    let piece = usize::from(piece % 16) + 1;
    let decoded = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut decoder = Decoder::default();
        for piece in pieces {
            decoder.take(piece).ok()?;
        }
        decoder.end()
    };
    let whole = decoded(&mut [body].into_iter());
    assert_eq!(decoded(&mut body.chunks(piece)), whole, "{}", body.escape_ascii());
    assert!(whole.is_none_or(|whole| whole.len() <= body.len() / 4 * 3));
    let (plain, text) = (ending(body, false), ending(body, true));
    assert_eq!(decoded(&mut text.chunks(piece)).as_deref(), Some(&plain[..]));
    let length: [u8; 4] = plain[1..5].try_into().expect("the head of a frame");
    assert!(plain[0] == 0x80 && u32::from_be_bytes(length) as usize == plain.len() - 5);
    assert!(plain[5..].len() >= body.len() && plain[5..5 + body.len()].eq_ignore_ascii_case(body));
}

#[cfg(test)]
mod tests {
    /// Paths of the bytes that matter, by a seeded generator (xorshift).
    #[test]
    fn promises_hold_for_many_paths_and_cookies() {
        const PIECES: &[&str] = &[
            "/", "//", "a", "/a", "/a/", ".", "..", "/..", "%", "%2F", "%5C", "%2E", "%61", "%41", "%C3%A9", ";",
            ";x=1", "\\", "b", "%3B", "&", "=", "+", "x", "%00", "~", "2F", "5C",
        ];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        for _ in 0..60_000 {
            let mut bytes = vec![next(256) as u8, b'/'];
            for _ in 0..next(9) {
                bytes.extend_from_slice(PIECES[next(PIECES.len())].as_bytes());
            }
            super::path(&bytes);
            super::cookie(&bytes[1..]);
        }
    }

    /// Inputs that the fuzzer has found, or would have.
    #[test]
    fn promises_hold_for_inputs_that_broke_them() {
        super::forwarded(b"X-Forwarded-For: 0:0:0:0:0:ffff:c000:0207");
    }

    #[test]
    fn promises_hold_for_many_queries_cookies_proxies_and_bodies() {
        const PIECES: &[&str] = &[
            "a",
            " b",
            "a+b",
            "a%20b",
            "%61+b",
            "=",
            "&",
            "+",
            "%",
            "%4",
            "%zz",
            "\n",
            "é",
            "x",
            "place",
            ";",
            "; ",
            "\"",
            "a=",
            "place=\"1\"",
            "10.0.0.1",
            "10.0.0.9:80",
            "1.2.3.4",
            "192.0.2.7:",
            "fd00::1",
            "[fd00::1]",
            "[fd00::2]:8",
            "::ffff:10.1.1.1",
            "2001:db8::1",
            ",",
            ", ",
            ":",
            "[",
            "]",
            "unknown",
            "\r\nX-Forwarded-For: ",
            "\r\nX_Forwarded_For: ",
            "YQ==",
            "YWJj",
            "Y",
            "Q",
            "\r\ngrpc-status: 0",
            "\r\nGrpc-Message: A",
        ];
        let mut random = fastrand::Rng::with_seed(17);
        for _ in 0..20_000 {
            let mut bytes = vec![random.u8(..)];
            for _ in 0..random.usize(..9) {
                bytes.extend_from_slice(PIECES[random.usize(..PIECES.len())].as_bytes());
            }
            super::query(&bytes[1..]);
            super::cookies_of(&bytes[1..]);
            super::forwarded(&[b"X-Forwarded-For: ", &bytes[1..]].concat());
            super::grpc_web(&bytes);
        }
    }
}

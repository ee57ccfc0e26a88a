//! Paths in canonical form.

use propylon_config::PathRules;
use propylon_config::canonical::route_key;

use super::super::path::{is_plain, rewrite};
use super::*;

const STRICT: PathRules =
    PathRules { merge_slashes: true, escaped_slash: false, backslash: false, escaped_nul: false, above_root: false };
const LENIENT: PathRules =
    PathRules { merge_slashes: false, escaped_slash: true, backslash: true, escaped_nul: true, above_root: true };

/// Path as it is forwarded, and as it is matched.
fn forms(path: &str, rules: PathRules) -> Result<(String, String), &'static str> {
    let request = format!("GET {path}?q=/../%2e HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut head = request_head(&request);
    head.canonicalize_target(request.as_bytes(), rules).map_err(|reject| {
        assert_eq!(reject.status, 400);
        reject.fault.label()
    })?;
    let target = String::from_utf8(head.target(request.as_bytes()).concat()).unwrap();
    let canonical = target.strip_suffix("?q=/../%2e").expect("the query as it came").to_owned();
    assert_eq!(head.received_target(request.as_bytes()).concat(), format!("{path}?q=/../%2e").as_bytes());
    Ok((canonical, String::from_utf8(head.path_key(request.as_bytes()).to_vec()).unwrap()))
}

fn request_head(text: &str) -> RequestHead {
    request(text).expect("a request")
}

#[test]
#[rustfmt::skip] // one line per case
fn spellings_of_one_path_become_one() {
    for (path, canonical, key) in [
        ("/", "/", "/"),
        ("/secret", "/secret", "/secret"),
        ("/SECRET", "/SECRET", "/SECRET"),
        ("//secret", "/secret", "/secret"),
        ("///secret//x//", "/secret/x/", "/secret/x/"),
        ("/./secret", "/secret", "/secret"),
        ("/a/../secret", "/secret", "/secret"),
        ("/a/b/.././../secret/.", "/secret/", "/secret/"),
        ("/a//../secret", "/a/secret", "/a/secret"),
        ("/%73ecret", "/secret", "/secret"),
        ("/%53ecret", "/Secret", "/Secret"),
        ("/%2e%2E/secret/..", "", "path-above-root"),
        ("/a/%2e%2E/secret", "/secret", "/secret"),
        ("/secret/..", "/", "/"),
        ("/.well-known/x", "/.well-known/x", "/.well-known/x"),
        ("/...", "/...", "/..."),
        // Reserved: forwarded as they came, and compared as what they stand for (RFC 3986 §2.2).
        ("/%40a%3ab", "/%40a%3Ab", "/@a:b"),
        ("/@a:b", "/@a:b", "/@a:b"),
        ("/%24metadata", "/%24metadata", "/$metadata"),
        ("/a%20b%c3%a9", "/a%20b%C3%A9", "/a%20b%C3%A9"),
        ("/{id}", "/{id}", "/{id}"),
        ("/a|b^[c]", "/a|b^[c]", "/a|b^[c]"),
        // Bytes outside RFC 3986, and sent all the same.
        ("/\"a\"", "/%22a%22", "/\"a\""),
        ("/<a>`", "/%3Ca%3E%60", "/<a>`"),
        ("/%22%3c", "/%22%3C", "/\"<"),
        ("/%7bid%7D", "/%7Bid%7D", "/{id}"),
        // Once, and not twice (RFC 3986 §2.4).
        ("/%2573ecret", "/%2573ecret", "/%2573ecret"),
        ("/%252e%252e/secret", "/%252e%252e/secret", "/%252e%252e/secret"),
        ("/a%2520b", "/a%2520b", "/a%2520b"),
        // Parameters of segments (RFC 3986 §3.3).
        ("/secret;x", "/secret;x", "/secret"),
        ("/;/secret;jsessionid=1/a;b", "/;/secret;jsessionid=1/a;b", "/secret/a"),
        ("/secret%3Bx", "/secret%3Bx", "/secret;x"),
        // Paths that servers read differently.
        ("/a%2fsecret", "", "escaped-slash"),
        ("/a%5Csecret", "", "backslash-in-path"),
        ("/a\\secret", "", "backslash-in-path"),
        ("/secret%00.png", "", "escaped-nul"),
        ("/../secret", "", "path-above-root"),
        ("/a/../../secret", "", "path-above-root"),
        ("/a/..;/secret", "", "hidden-segment"),
        ("/.;x/secret", "", "hidden-segment"),
        ("/%2e%2e;/secret", "", "hidden-segment"),
        ("/%", "", "bad-escape"),
        ("/%u0073ecret", "", "bad-escape"),
        ("/%7", "", "bad-escape"),
        ("/%%37%33ecret", "", "bad-escape"),
    ] {
        let expected = if canonical.is_empty() { Err(key) } else { Ok((canonical.to_owned(), key.to_owned())) };
        assert_eq!(forms(path, STRICT), expected, "{path}");
    }
}

#[test]
#[rustfmt::skip] // one line per case
fn what_is_allowed_goes_on_and_is_matched_as_the_loosest_server_reads_it() {
    for (path, canonical, key) in [
        ("//a//b", "//a//b", "/a/b"),
        ("/a//../b", "/a/b", "/a/b"),
        ("/group%2fproject", "/group%2Fproject", "/group/project"),
        ("/%2fsecret", "/%2Fsecret", "/secret"),
        ("/a\\b%5cc", "/a\\b%5Cc", "/a/b/c"),
        ("/;x%2Fsecret", "", "hidden-segment"),
        ("/a;\\secret", "", "hidden-segment"),
        ("/a%2Fsecret;x", "/a%2Fsecret;x", "/a/secret"),
        ("/a%00", "/a%00", "/a%00"),
        ("/../../secret", "/secret", "/secret"),
        ("/a/..%2Fsecret", "", "hidden-segment"),
        ("/a/..%5csecret", "", "hidden-segment"),
        ("/a/x\\..\\secret", "", "hidden-segment"),
        ("/a%2f..;x", "", "hidden-segment"),
        ("/a%2fb..", "/a%2Fb..", "/a/b.."),
    ] {
        let expected = if canonical.is_empty() { Err(key) } else { Ok((canonical.to_owned(), key.to_owned())) };
        assert_eq!(forms(path, LENIENT), expected, "{path}");
    }
}

#[test]
fn a_query_goes_on_as_it_came_but_for_what_no_url_has() {
    for (target, forwarded) in [
        ("/?q=\"a\"&<b>", "/?q=%22a%22&%3Cb%3E"),
        ("/?q=`{a|b}^[c]\\'%zz%2e//..", "/?q=`{a|b}^[c]\\'%zz%2e//.."),
        ("/\"?\"", "/%22?%22"),
        ("/?", "/?"),
        ("http://a?<", "/?%3C"),
    ] {
        let text = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut head = request_head(&text);
        head.canonicalize_target(text.as_bytes(), STRICT).expect("a good target");
        assert_eq!(head.target(text.as_bytes()).concat(), forwarded.as_bytes(), "{target}");
        let received = head.received_target(text.as_bytes()).concat();
        assert_eq!(received, target.replace("http://a?", "/?").as_bytes(), "the log has what came");
        let other = "GET /other HTTP/1.1\r\nHost: a\r\n\r\n";
        parse_request(other.as_bytes(), &LIMITS, &mut head).expect("a head that is used again");
        assert_eq!(head.target(other.as_bytes()).concat(), b"/other");
    }
}

#[test]
fn absolute_and_asterisk_form_are_no_way_round() {
    for (line, target, key) in [
        ("GET http://a/./secret?x", "/secret?x", "/secret"),
        ("GET https://a//%73ecret", "/secret", "/secret"),
        ("GET http://a", "/", "/"),
        ("GET http://a?/../x", "/?/../x", "/"),
        ("OPTIONS *", "*", "*"),
        ("OPTIONS http://a", "*", "*"),
    ] {
        let text = format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut head = request_head(&text);
        head.canonicalize_target(text.as_bytes(), STRICT).expect("a good path");
        assert_eq!(head.target(text.as_bytes()).concat(), target.as_bytes(), "{line}");
        assert_eq!(head.path_key(text.as_bytes()), key.as_bytes(), "{line}");
    }
}

#[test]
fn a_head_that_is_read_again_has_forgotten_the_last_ones_path() {
    let (first, second) = ("GET //secret HTTP/1.1\r\nHost: a\r\n\r\n", "GET /other HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut head = request_head(first);
    head.canonicalize_target(first.as_bytes(), STRICT).expect("a good path");
    assert_eq!(parse_request(second.as_bytes(), &LIMITS, &mut head), Ok(Parsed::Complete));
    assert_eq!(head.path(second.as_bytes()), b"/other");
    assert_eq!(head.path_key(second.as_bytes()), b"/other");
}

#[test]
fn routes_are_brought_into_the_same_form() {
    for (written, key) in [
        ("/api", "/api"),
        ("/api/", "/api/"),
        ("/%61pi", "/api"),
        ("/a/../api", "/api"),
        ("//api", "/api"),
        ("/%7Bid%7D", "/{id}"),
        ("/caf%c3%a9", "/caf%C3%A9"),
        ("/group%2Fproject", "/group/project"),
        ("/a;x", "/a;x"),
        ("/\"<a>`", "/\"<a>`"),
        ("/%22%3Ca%3E%60", "/\"<a>`"),
        ("/%zz", "/%zz"),
    ] {
        assert_eq!(route_key(written), key, "{written}");
    }
}

/// File that some server would open for a target's path. Each step is one that a server in use takes.
fn read_by_a_server(path: &str, random: &mut fastrand::Rng) -> String {
    let mut path = path.to_owned();
    if random.bool() {
        let bare: Vec<&str> = path.split('/').map(|segment| segment.split(';').next().unwrap_or_default()).collect();
        path = bare.join("/");
    }
    if random.bool() {
        path = path.replace('\\', "/");
    }
    let mut decoded = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((&byte, more)) = rest.split_first() {
        rest = more;
        let escape = more.get(..2).and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        match escape.filter(|_| byte == b'%') {
            Some(escaped) => {
                decoded.push(escaped);
                rest = &more[2..];
            }
            None => decoded.push(byte),
        }
    }
    let mut path = String::from_utf8_lossy(&decoded).into_owned();
    if random.bool() {
        path = path.replace('\\', "/");
    }
    let merges = random.bool();
    let mut open: Vec<&str> = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            "." => {}
            ".." => _ = open.pop(),
            "" if merges => {}
            name => open.push(name),
        }
    }
    let joined: String = open.iter().flat_map(|segment| ["/", segment]).collect();
    // A file's name has no empty segments.
    let mut found = joined.clone();
    while found.contains("//") {
        found = found.replace("//", "/");
    }
    found
}

#[test]
fn no_server_opens_behind_a_guard_what_the_guard_has_not_seen() {
    const PIECES: &[&str] = &[
        "/", "/", "/", "s", "S", ".", "..", "%73", "%2e", "%2E", "%2F", "%2f", "%5C", "\\", ";", ";x", "%3b", "%25",
        "73", "%00", "a", "%", "2f", "%41", "\"", "%22", "<",
    ];
    let is_guarded = |path: &str| path == "/s" || path.starts_with("/s/");
    let (mut guarded, mut refused) = (0, 0);
    for seed in 0..60_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let path: String = std::iter::once("/")
            .chain((0..random.usize(0..9)).map(|_| *random.choice(PIECES).expect("pieces")))
            .collect();
        let rules = PathRules {
            merge_slashes: random.bool(),
            escaped_slash: random.bool(),
            backslash: random.bool(),
            escaped_nul: random.bool(),
            above_root: random.bool(),
        };
        let Ok(rewritten) = rewrite(path.as_bytes(), rules) else {
            refused += 1;
            continue;
        };
        let of = |form: Vec<u8>, otherwise: &str| match form.is_empty() {
            true => otherwise.to_owned(),
            false => String::from_utf8(form).expect("ASCII"),
        };
        let canonical = of(rewritten.canonical, &path);
        let key = of(rewritten.key, &canonical);
        for _ in 0..4 {
            let opened = read_by_a_server(&canonical, &mut random);
            guarded += usize::from(is_guarded(&opened));
            assert!(
                !is_guarded(&opened) || is_guarded(&key),
                "seed {seed}: {path} is {canonical} and {key}, opens {opened}"
            );
        }
        let again = rewrite(canonical.as_bytes(), rules).expect("what was taken once");
        assert!(again.canonical.is_empty(), "seed {seed}: {path} is {canonical} and then {again:?}");
        assert_eq!(of(again.key, &canonical), key, "seed {seed}");
        if is_plain(path.as_bytes()) {
            assert_eq!((canonical.as_str(), key.as_str()), (path.as_str(), path.as_str()), "seed {seed}");
        }
    }
    assert!(guarded > 1_000 && refused > 1_000, "{guarded} {refused}");
}

/// Nearly all paths are so: they are to cost one look at each byte, and no memory.
#[test]
fn a_path_that_is_as_it_should_be_is_seen_to_be_so() {
    for (path, plain) in [
        ("/", true),
        ("/a/b.c/d_e~f-g", true),
        ("/a..b/.../c.", false),
        ("/.a", false),
        ("//a", false),
        ("/a/", true),
        ("/a;b", false),
        ("/%41", false),
        ("/a\\b", false),
    ] {
        assert_eq!(is_plain(path.as_bytes()), plain, "{path}");
    }
    let own = rewrite(b"/.a/b;c", STRICT).unwrap();
    assert_eq!((own.canonical, own.key), (Vec::new(), b"/.a/b".to_vec()), "only what is another form takes memory");
    let dotted = rewrite(b"/.a/b", STRICT).unwrap();
    assert_eq!((dotted.canonical, dotted.key), (Vec::new(), Vec::new()));
}

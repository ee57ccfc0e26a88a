//! Promises that must hold for any bytes whatever: shared by the fuzz target and by a seeded run among the tests.

use propylon_config::{CookieChanges, PathChange, PathPattern, PathRules, SameSite};
use propylon_http::h1::{TARGET, all, path as paths};

use crate::cookie::change_cookie;
use crate::target::PathRewrite;

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
}

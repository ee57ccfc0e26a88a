//! Paths of requests in canonical form, and the keys by which routes and requests are compared.
//!
//! Canonical forms are here, and not where requests are read, so that a check of the configuration finds two routes to
//! be one exactly where the engine does. See `docs/decisions/0036-canonical-paths.md`.
//!
//! Two forms, both of the path without its query:
//!
//! - **canonical**: `"`, `<`, `>` and `` ` `` escaped, escapes of unreserved characters decoded, hexadecimal digits in upper case, dot segments removed
//!   (RFC 3986 §6.2.2), repeated slashes merged unless the listener keeps them. It means what the client's spelling
//!   meant, and is what the server gets.
//! - **the key**: the canonical form as the loosest server would read it. Repeated slashes are merged in any case, the
//!   parameters of segments (`;x`, §3.3, which servers of Java's kind take off) are left out, all escapes of visible
//!   characters are decoded, once, and what is allowed of `%2F`, `%5C` and `\` is a slash. It is compared with routes, and
//!   written nowhere.

use crate::model::PathRules;

/// A path that is not as it stands what routes are matched on, or what servers are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewritten {
    /// The canonical form; empty where the path is in it already.
    pub canonical: Vec<u8>,
    /// The key; empty where it is the canonical form.
    pub key: Vec<u8>,
}

/// Why a path is refused: servers read it differently, or it is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathFault {
    /// A `\` or `%5C` that is not allowed.
    Backslash,
    /// A `%2F` that is not allowed.
    EscapedSlash,
    /// A `%00` that is not allowed.
    EscapedNul,
    /// A `%` without two hexadecimal digits.
    BadEscape,
    /// `..` that leads above the root, and is not allowed.
    AboveRoot,
    /// `.` or `..` that only some servers see: `..;x`, `..%2Fx`.
    HiddenSegment,
}

/// Brings a path of an http(s) target, which begins with a slash, into its two forms.
///
/// # Errors
/// For spellings that servers read differently, unless `rules` allow them, and for escapes that are none.
pub fn rewrite(path: &[u8], rules: PathRules) -> Result<Rewritten, PathFault> {
    let mut canonical = remove_dot_segments(&decode_unreserved(path, rules)?, rules)?;
    if rules.merge_slashes {
        merge_slashes(&mut canonical);
    }
    let mut key = key(&canonical, Parameters::Dropped);
    if key == canonical {
        key.clear();
    }
    if canonical == path {
        canonical.clear();
    }
    Ok(Rewritten { canonical, key })
}

/// The key of a path that a route is written with. Whatever requests may have is allowed; a `;` stands for itself, and
/// so for nothing but its escape, since the parameters of requests are not looked at.
pub fn route_key(path: &str) -> String {
    let everything =
        PathRules { merge_slashes: true, escaped_slash: true, backslash: true, escaped_nul: true, above_root: true };
    let canonical =
        decode_unreserved(path.as_bytes(), everything).and_then(|path| remove_dot_segments(&path, everything));
    match canonical {
        Ok(canonical) => String::from_utf8(key(&canonical, Parameters::Kept)).unwrap_or_else(|_| path.to_owned()),
        // `check` says that no request will have it.
        Err(_) => path.to_owned(),
    }
}

/// RFC 3986 §6.2.2.1 and §6.2.2.2. Refuses what must not be told apart here.
fn decode_unreserved(path: &[u8], rules: PathRules) -> Result<Vec<u8>, PathFault> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, more)) = rest.split_first() {
        rest = more;
        if byte != b'%' {
            match byte {
                b'\\' if !rules.backslash => return Err(PathFault::Backslash),
                b'"' | b'<' | b'>' | b'`' => write_escape(byte, &mut out),
                _ => out.push(byte),
            }
            continue;
        }
        // Text that is no escape must not become one when its neighbours are decoded, as `%%37%33` would.
        let decoded = escaped(rest).ok_or(PathFault::BadEscape)?;
        let (digits, after) = rest.split_at(2);
        rest = after;
        match decoded {
            b'/' if !rules.escaped_slash => return Err(PathFault::EscapedSlash),
            b'\\' if !rules.backslash => return Err(PathFault::Backslash),
            0 if !rules.escaped_nul => return Err(PathFault::EscapedNul),
            _ if is_unreserved(decoded) => out.push(decoded),
            _ => out.extend([b'%', digits[0].to_ascii_uppercase(), digits[1].to_ascii_uppercase()]),
        }
    }
    Ok(out)
}

/// The query, with its `?`, in its canonical form; none where it has that already. Nothing is decided by it, so that all that is
/// done is to escape what no browser sends as it is, some programs do, and RFC 3986 §3.4 has no room for.
pub fn rewrite_query(query: &[u8]) -> Option<Vec<u8>> {
    let is_unfit = |byte: &u8| matches!(byte, b'"' | b'<' | b'>');
    if !query.iter().any(is_unfit) {
        return None;
    }
    let mut out = Vec::with_capacity(query.len() + 8);
    for byte in query {
        match is_unfit(byte) {
            true => write_escape(*byte, &mut out),
            false => out.push(*byte),
        }
    }
    Some(out)
}

fn write_escape(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
}

/// The byte that two hexadecimal digits at the beginning stand for.
fn escaped(text: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let &[high, low] = text.first_chunk::<2>()?;
    Some((digit(high)? << 4 | digit(low)?) as u8)
}

/// RFC 3986 §2.3.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// RFC 3986 §5.2.4, of a path that begins with a slash.
fn remove_dot_segments(path: &[u8], rules: PathRules) -> Result<Vec<u8>, PathFault> {
    let mut out: Vec<u8> = Vec::with_capacity(path.len());
    let mut segments = path.split(|byte| *byte == b'/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        match segment {
            b"." => {}
            b".." => match out.iter().rposition(|byte| *byte == b'/') {
                Some(slash) => out.truncate(slash),
                None if rules.above_root => {}
                None => return Err(PathFault::AboveRoot),
            },
            name if hides_a_segment(name) => return Err(PathFault::HiddenSegment),
            name => {
                out.push(b'/');
                out.extend_from_slice(name);
                continue;
            }
        }
        // A dot segment at the end leaves a folder behind.
        if segments.peek().is_none() {
            out.push(b'/');
        }
    }
    Ok(out)
}

/// Whether some server would see what others do not: `.` or `..` in a segment that is neither, since it takes parameters off
/// (`..;x`) or takes for a slash what is allowed as part of a segment (`..%2Fx`); or such a slash in a parameter, which ends it
/// for some.
fn hides_a_segment(segment: &[u8]) -> bool {
    let mut rest = segment;
    loop {
        let (piece, after) = split_at_lookalike(rest);
        let name = piece.split(|byte| *byte == b';').next().unwrap_or_default();
        if matches!(name, b"." | b"..") {
            return true;
        }
        let Some(after) = after else { return false };
        if name.len() < piece.len() {
            return true;
        }
        rest = after;
    }
}

/// Parts before and behind the first thing that is taken for a slash somewhere.
fn split_at_lookalike(text: &[u8]) -> (&[u8], Option<&[u8]>) {
    let found =
        (0..text.len()).find_map(|at| slash_lookalike(&text[at..]).map(|length| (&text[..at], &text[at + length..])));
    found.map_or((text, None), |(before, after)| (before, Some(after)))
}

/// Bytes of the `\`, `%5C` or `%2F` at the beginning.
fn slash_lookalike(text: &[u8]) -> Option<usize> {
    match text {
        [b'\\', ..] => Some(1),
        [b'%', b'5', b'C', ..] | [b'%', b'2', b'F', ..] => Some(3),
        _ => None,
    }
}

/// Offset in a canonical path at which the segments end whose key is that of a prefix of whole segments; none if it
/// begins otherwise. `prefix` is a [`route_key`].
pub fn prefix_end(canonical: &[u8], prefix: &str) -> Option<usize> {
    let mut wanted = prefix.trim_end_matches('/').as_bytes();
    let (mut at, mut after_slash) = (0, false);
    let parameters = |at: usize| canonical[at..].iter().position(|byte| *byte == b'/').unwrap_or(canonical.len() - at);
    while let Some((&first, others)) = wanted.split_first() {
        let rest = &canonical[at..];
        let (byte, length) = match (rest.first()?, slash_lookalike(rest)) {
            (_, Some(length)) => (b'/', length),
            (b';', _) => {
                at += parameters(at);
                continue;
            }
            (b'%', _) => match escaped(&rest[1..]).filter(|byte| byte.is_ascii_graphic() && *byte != b'%') {
                Some(byte) => (byte, 3),
                None => (b'%', 1),
            },
            (byte, _) => (*byte, 1),
        };
        at += length;
        if byte == b'/' && std::mem::replace(&mut after_slash, byte == b'/') {
            continue;
        }
        after_slash = byte == b'/';
        if byte != first {
            return None;
        }
        wanted = others;
    }
    if canonical.get(at) == Some(&b';') {
        at += parameters(at);
    }
    let rest = &canonical[at..];
    (rest.is_empty() || rest[0] == b'/' || slash_lookalike(rest).is_some()).then_some(at)
}

/// A path with one slash at its beginning, whatever some servers or browsers take for slashes: two are the beginning of
/// another host's URL (RFC 3986 §4.2).
pub fn rooted(path: &[u8]) -> Vec<u8> {
    let mut rest = path;
    loop {
        rest = match (rest.first(), slash_lookalike(rest)) {
            (_, Some(length)) => &rest[length..],
            (Some(b'/'), _) => &rest[1..],
            _ => return [b"/", rest].concat(),
        };
    }
}

fn merge_slashes(path: &mut Vec<u8>) {
    path.dedup_by(|later, earlier| *later == b'/' && *earlier == b'/');
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Parameters {
    Dropped,
    Kept,
}

fn key(canonical: &[u8], parameters: Parameters) -> Vec<u8> {
    let mut out = Vec::with_capacity(canonical.len());
    let mut rest = canonical;
    while let Some((&byte, more)) = rest.split_first() {
        if let Some(length) = slash_lookalike(rest) {
            out.push(b'/');
            rest = &rest[length..];
            continue;
        }
        rest = more;
        match (byte, escaped(more)) {
            (b';', _) if parameters == Parameters::Dropped => {
                rest = &rest[rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len())..];
            }
            // Bytes that a path cannot have have one spelling, their escape. A bare `%` is one of them: decoded, it would make an
            // escape of what follows.
            (b'%', Some(decoded)) if decoded.is_ascii_graphic() && decoded != b'%' => {
                out.push(decoded);
                rest = &rest[2..];
            }
            _ => out.push(byte),
        }
    }
    merge_slashes(&mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_the_key_of_its_segments_does() {
        for (path, prefix, wanted) in [
            ("/api/x", "/api", Some(4)),
            ("/api", "/api", Some(4)),
            ("/api/", "/api/", Some(4)),
            ("/apix", "/api", None),
            ("/ap", "/api", None),
            ("/api;v=1/x", "/api", Some(8)),
            ("/a;x/b;y/c", "/a/b", Some(8)),
            ("//api/x", "/api", Some(5)),
            ("/a%40b/c", "/a@b", Some(6)),
            ("/a%25b/c", "/a%25b", Some(6)),
            ("/a%2Fb/c", "/a/b", Some(6)),
            ("/api%2Fx", "/api", Some(4)),
            ("/api\\x", "/api", Some(4)),
            ("/x", "/", Some(0)),
            ("*", "/api", None),
        ] {
            assert_eq!(prefix_end(path.as_bytes(), prefix), wanted, "{path} {prefix}");
            if let Some(end) = wanted.filter(|end| *end > 0) {
                assert_eq!(key(&path.as_bytes()[..end], Parameters::Dropped), prefix.trim_end_matches('/').as_bytes());
            }
        }
    }

    #[test]
    fn a_rooted_path_is_of_no_other_host() {
        for (path, wanted) in [
            ("", "/"),
            ("x", "/x"),
            ("//evil", "/evil"),
            ("/%2F/\\%5Cevil/", "/evil/"),
            ("/a//b", "/a//b"),
            ("%41", "/%41"),
        ] {
            assert_eq!(rooted(path.as_bytes()), wanted.as_bytes(), "{path}");
        }
    }
}

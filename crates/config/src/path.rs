//! Paths of URLs as the router sees them: compared byte by byte with what the client sent.

use crate::address::Complaint;
use crate::report::shown;

const PATH_BYTES_MAX: usize = 4096;

/// A path without a query.
pub(crate) fn check(path: &str) -> Result<(), Complaint> {
    if let Some(index) = path.find(['?', '#']) {
        let what = format!("the path \"{}\" has a `{}` in it", shown(path), &path[index..=index]);
        return Err((what, "remove it and what follows; routes look at the path only".into()));
    }
    if path.ends_with("/*") {
        let what = format!("the path \"{}\" ends in `/*`", shown(path));
        return Err((what, "leave the `*` out: a path is a prefix already".into()));
    }
    check_target(path)
}

/// A path that may have a query, as a redirect's.
pub(crate) fn check_target(path: &str) -> Result<(), Complaint> {
    let what = |wrong: &str| format!("the path \"{}\" {wrong}", shown(path));
    if !path.starts_with('/') {
        return Err((what("does not begin with `/`"), format!("write \"/{}\"", shown(path))));
    }
    if path.len() > PATH_BYTES_MAX {
        return Err((what("is too long"), format!("write at most {PATH_BYTES_MAX} bytes")));
    }
    if path.chars().any(|character| character.is_control()) {
        return Err((what("has control characters in it"), "remove them".into()));
    }
    if path.chars().any(|character| character == ' ' || !character.is_ascii()) {
        let fix = format!("write it as it is sent: \"{}\"", shown(&encoded(path)));
        return Err((what("has spaces or letters beyond ASCII in it"), fix));
    }
    Ok(())
}

/// Why hardly any request will ever have this path, and what to do. The path has passed `check`.
pub(crate) fn never_sent(path: &str) -> Option<Complaint> {
    let what = |wrong: &str| format!("the path \"{}\" {wrong}", shown(path));
    if path.split('/').any(|segment| segment == "." || segment == "..") {
        return Some((
            what("has `.` or `..` in it, which clients resolve before they send"),
            "write it resolved".into(),
        ));
    }
    let bytes = path.as_bytes();
    for (index, _) in path.match_indices('%') {
        let digits = bytes.get(index + 1..index + 3).unwrap_or_default();
        let decoded = std::str::from_utf8(digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let Some(decoded) = decoded.filter(|_| digits.len() == 2 && digits.iter().all(u8::is_ascii_hexdigit)) else {
            return Some((what("has a `%` without two hexadecimal digits"), "write \"%25\" for a `%`".into()));
        };
        if decoded.is_ascii_alphanumeric() || b"-._~".contains(&decoded) {
            let fix = format!("write `{}`; paths are compared as they are sent", decoded as char);
            return Some((what("has an escape for a character that clients send as it is"), fix));
        }
        if digits.iter().any(u8::is_ascii_lowercase) {
            let fix = format!("write `%{decoded:02X}`; paths are compared as they are sent");
            return Some((what("has an escape in lower case, and clients write them in upper case"), fix));
        }
    }
    if let Some(character) = path.chars().find(|character| "\"<>\\^`{}".contains(*character)) {
        let wrong = format!("has a `{character}` in it, which clients send as an escape");
        return Some((what(&wrong), format!("write `%{:02X}`", u32::from(character))));
    }
    None
}

fn encoded(path: &str) -> String {
    let mut out = String::new();
    for byte in path.bytes() {
        if byte == b' ' || !byte.is_ascii() {
            out.push_str(&format!("%{byte:02X}"));
        } else {
            out.push(byte as char);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_begins_with_a_slash_and_has_no_query() {
        assert_eq!(check("/"), Ok(()));
        assert_eq!(check("/a//b/%C3%A9;x=1"), Ok(()));
        assert_eq!(check_target("/a?b=1#c"), Ok(()));
        for (path, part) in [
            ("api", "write \"/api\""),
            ("", "write \"/\""),
            ("/a?b", "routes look at the path only"),
            ("/a#b", "routes look at the path only"),
            ("/é x", "\"/%C3%A9%20x\""),
            ("/a\n", "remove them"),
            ("/api/*", "leave the `*` out"),
        ] {
            let (_, fix) = check(path).expect_err(path);
            assert!(fix.contains(part), "{path}: {fix}");
        }
        assert!(check(&format!("/{}", "a".repeat(PATH_BYTES_MAX))).is_err());
    }

    #[test]
    fn a_path_that_no_client_sends_is_recognised() {
        for path in ["/", "/a/b", "/a...b", "/%C3%A9", "/a//b", "/%2F"] {
            assert_eq!(never_sent(path), None, "{path}");
        }
        for (path, part) in [
            ("/a/../b", "resolved"),
            ("/.", "resolved"),
            ("/%zz", "%25"),
            ("/%", "%25"),
            ("/%+1", "%25"),
            ("/%61", "write `a`"),
            ("/%c3%a9", "write `%C3`"),
            ("/{id}", "write `%7B`"),
        ] {
            let (_, fix) = never_sent(path).expect(path);
            assert!(fix.contains(part), "{path}: {fix}");
        }
    }
}

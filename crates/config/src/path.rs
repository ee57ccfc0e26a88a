//! Paths of URLs as they are written in a configuration. Requests are compared with them in canonical form.

use crate::address::TextProblem;
use crate::wording::shown;

const PATH_BYTES_MAX: usize = 4096;

/// A path without a query.
pub(crate) fn check(path: &str) -> Result<(), TextProblem> {
    if path.starts_with(['^', '~']) {
        let what = format!("the path \"{}\" looks like a pattern", shown(path));
        return Err((what, "write the path alone, or its beginning: \"/api\"".into()));
    }
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
pub(crate) fn check_target(path: &str) -> Result<(), TextProblem> {
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

/// Why a path that routes are matched on is better written otherwise, and how. The path has passed `check`.
pub(crate) fn oddity(path: &str) -> Option<TextProblem> {
    let what = |wrong: &str| format!("the path \"{}\" {wrong}", shown(path));
    if path.split('/').any(|segment| segment == "." || segment == "..") {
        return Some((
            what("has `.` or `..` in it, which are resolved before paths are compared"),
            "write it resolved".into(),
        ));
    }
    if path.contains("//") {
        return Some((what("has `//` in it, which is one slash where paths are compared"), "write one `/`".into()));
    }
    if path.contains(';') {
        let parts = |segment: &str| segment.split(';').next().unwrap_or_default().to_owned();
        let without = path.split('/').map(parts).collect::<Vec<String>>().join("/");
        let fix = format!(
            "write \"{}\", which such requests take as well, or \"{}\" if it is the escape that is meant",
            shown(&without),
            shown(&path.replace(';', "%3B"))
        );
        let wrong = "has a `;` in it: of a request's path routes do not see parameters (from `;` to the next `/`), so that only \
                     one with the escape `%3B` takes this route";
        return Some((what(wrong), fix));
    }
    if path.contains('\\') {
        return Some((what("has a `\\` in it, which is a slash where paths are compared"), "write `/`".into()));
    }
    path.match_indices('%').find_map(|(index, _)| {
        let (wrong, fix) = odd_escape(path.as_bytes().get(index + 1..index + 3).unwrap_or_default())?;
        Some((what(wrong), fix))
    })
}

fn odd_escape(digits: &[u8]) -> Option<(&'static str, String)> {
    let decoded = std::str::from_utf8(digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok());
    let Some(decoded) = decoded.filter(|_| digits.len() == 2 && digits.iter().all(u8::is_ascii_hexdigit)) else {
        let wrong = "has a `%` without two hexadecimal digits, as no request may have";
        return Some((wrong, "write \"%25\" for a `%`".into()));
    };
    if matches!(decoded, b'/' | b'\\') {
        let wrong = "has an escaped slash in it, which is a slash where paths are compared";
        return Some((wrong, "write `/`".into()));
    }
    if decoded.is_ascii_alphanumeric() || b"-._~".contains(&decoded) {
        let fix = format!("write `{}`; both are the same to routes", decoded as char);
        return Some(("has an escape for a character that needs none", fix));
    }
    if digits.iter().any(u8::is_ascii_lowercase) {
        return Some(("has an escape in lower case", format!("write `%{decoded:02X}`; both are the same to routes")));
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
    fn a_path_that_is_better_written_otherwise_is_recognised() {
        for path in ["/", "/a/b", "/a...b", "/%C3%A9", "/{id}", "/%7Bid%7D", "/%3Bx", "/.well-known"] {
            assert_eq!(oddity(path), None, "{path}");
        }
        for (path, part) in [
            ("/a/../b", "resolved"),
            ("/.", "resolved"),
            ("/a//b", "one `/`"),
            ("/%2F", "write `/`"),
            ("/%5c", "write `/`"),
            ("/a\\b", "write `/`"),
            ("/a;x=1/b", "write \"/a/b\", which such requests take as well, or \"/a%3Bx=1/b\""),
            ("/%zz", "%25"),
            ("/%", "%25"),
            ("/%+1", "%25"),
            ("/%61", "write `a`"),
            ("/%c3%a9", "write `%C3`"),
        ] {
            let (_, fix) = oddity(path).expect(path);
            assert!(fix.contains(part), "{path}: {fix}");
        }
    }
}

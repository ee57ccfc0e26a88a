//! Hostnames of listeners and routes: which are within which, and what two have in common.

/// Whether a hostname, which may be a wildcard itself, is within a pattern: `a.b.example` and `*.b.example` are within
/// `*.example`.
pub fn is_within(name: &str, pattern: &str) -> bool {
    match pattern.strip_prefix('*') {
        None => name == pattern,
        Some(suffix) => match name.strip_prefix('*') {
            Some(inner) => inner.ends_with(suffix),
            None => name.len() > suffix.len() && name.ends_with(suffix),
        },
    }
}

/// The more specific of two hostnames that have names in common, of which absent ones stand for all.
pub fn common(one: Option<&str>, other: Option<&str>) -> Option<Option<String>> {
    match (one, other) {
        (None, each) | (each, None) => Some(each.map(str::to_owned)),
        (Some(one), Some(other)) if is_within(one, other) => Some(Some(one.to_owned())),
        (Some(one), Some(other)) if is_within(other, one) => Some(Some(other.to_owned())),
        _ => None,
    }
}

/// Whether engines take a name, without `*.`: a label has 63 characters at most, and the last is no number.
pub fn is_known(name: &str) -> bool {
    propylon_config::server_address(&format!("{name}.:1")).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_hostnames_have_in_common_is_the_more_specific_one() {
        for (one, other, expected) in [
            ("a.example", "a.example", Some("a.example")),
            ("a.example", "*.example", Some("a.example")),
            ("*.example", "a.b.example", Some("a.b.example")),
            ("*.b.example", "*.example", Some("*.b.example")),
            ("example", "*.example", None),
            ("a.example", "b.example", None),
            ("*.a.example", "*.b.example", None),
        ] {
            let found = common(Some(one), Some(other)).map(|host| host.unwrap());
            assert_eq!(found.as_deref(), expected, "{one} and {other}");
        }
        assert_eq!(common(None, Some("a.example")), Some(Some("a.example".to_owned())));
        assert_eq!(common(None, None), Some(None));
    }
}

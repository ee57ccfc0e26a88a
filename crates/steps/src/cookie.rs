//! Attributes of the cookies that servers set (RFC 6265 §4.1.1), changed.

use propylon_config::{CookieChanges, SameSite};

/// The value of a Set-Cookie line with other attributes. Names with a prefix keep what the prefix asks for (RFC 6265bis
/// §4.1.3).
pub(crate) fn change_cookie(changes: &CookieChanges, line: &[u8]) -> Vec<u8> {
    let mut parts = line.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let pair = parts.next().unwrap_or_default();
    let begins = |prefix: &[u8]| pair.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix));
    let is_host = begins(b"__host-");
    let secure = changes.secure.filter(|secure| *secure || !is_host && !begins(b"__secure-"));
    let (domain, path) = match is_host {
        true => (None, None),
        false => (changes.domain.as_deref(), changes.path.as_deref()),
    };
    let mut out = pair.to_vec();
    let mut has_domain = false;
    for part in parts.filter(|part| !part.is_empty()) {
        let name = part.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii();
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        has_domain |= is("domain");
        let is_ours = is("secure") && secure.is_some()
            || is("httponly") && changes.http_only.is_some()
            || is("samesite") && changes.same_site.is_some()
            || is("domain") && domain.is_some()
            || is("path") && path.is_some();
        if !is_ours {
            write(part, b"", &mut out);
        }
    }
    if let Some(domain) = domain.filter(|domain| has_domain && !domain.is_empty()) {
        write(b"Domain=", domain.as_bytes(), &mut out);
    }
    if let Some(path) = path {
        write(b"Path=", path.as_bytes(), &mut out);
    }
    if secure == Some(true) {
        write(b"Secure", b"", &mut out);
    }
    if changes.http_only == Some(true) {
        write(b"HttpOnly", b"", &mut out);
    }
    match changes.same_site {
        Some(SameSite::Strict) => write(b"SameSite=Strict", b"", &mut out),
        Some(SameSite::Lax) => write(b"SameSite=Lax", b"", &mut out),
        Some(SameSite::None) => write(b"SameSite=None", b"", &mut out),
        Some(SameSite::Unsaid) | None => {}
    }
    out
}

fn write(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    for part in [b"; ", name, value] {
        out.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_replaced_and_others_stay() {
        let all = CookieChanges {
            secure: Some(true),
            http_only: Some(true),
            same_site: Some(SameSite::Lax),
            domain: Some("shop.example".into()),
            path: Some("/api".into()),
        };
        let none = CookieChanges {
            secure: Some(false),
            http_only: Some(false),
            same_site: Some(SameSite::Unsaid),
            domain: Some(String::new()),
            path: None,
        };
        for (changes, line, wanted) in [
            (&all, "a=b", "a=b; Path=/api; Secure; HttpOnly; SameSite=Lax"),
            (
                &all,
                "a=\"b c\";PATH=/;secure ; samesite=none; Max-Age=5; domain=app.internal",
                "a=\"b c\"; Max-Age=5; Domain=shop.example; Path=/api; Secure; HttpOnly; SameSite=Lax",
            ),
            (&all, "__Host-a=b; Path=/", "__Host-a=b; Path=/; Secure; HttpOnly; SameSite=Lax"),
            (
                &none,
                "a=; Secure; HttpOnly; SameSite=Strict; Domain=x; Path=/y; Priority=High",
                "a=; Path=/y; Priority=High",
            ),
            (&none, "__Secure-a=b; Secure", "__Secure-a=b; Secure"),
            (&none, "__Host-a=b; Secure", "__Host-a=b; Secure"),
            (
                &CookieChanges::default(),
                "a=b; HttpOnly; SameSite=Lax; Domain=x; Path=/",
                "a=b; HttpOnly; SameSite=Lax; Domain=x; Path=/",
            ),
            (&CookieChanges::default(), "a=b;Secure;;x", "a=b; Secure; x"),
        ] {
            assert_eq!(String::from_utf8(change_cookie(changes, line.as_bytes())).unwrap(), wanted, "{line}");
        }
    }
}

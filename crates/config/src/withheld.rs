//! Values that others are not shown.

/// A text without the query, and without the user, of a URL; `withheld` stands for them.
///
/// Keys, tokens and passwords are in files that configurations only name; but people also write some into addresses.
pub fn without_secrets(text: &str, withheld: &str) -> String {
    // A user's password may have any byte in it.
    let user =
        text.find("://").zip(text.rfind('@')).and_then(|(scheme, at)| Some((scheme, at, text.get(scheme + 3..at)?)));
    let is_password = |user: &str| user.contains(':') && user.contains(['?', '/']) && !is_server_with_path(user);
    if let Some((scheme, at, _)) = user.filter(|(.., user)| is_password(user)) {
        return without_secrets(&format!("{}{withheld}{}", &text[..scheme + 3], &text[at..]), withheld);
    }
    let text = match text.split_once('?') {
        Some((before, _)) if !before.is_empty() => format!("{before}?{withheld}"),
        _ => text.to_owned(),
    };
    match text.split_once("://").map(|(scheme, rest)| (scheme, rest.split_at(rest.find('/').unwrap_or(rest.len())))) {
        Some((scheme, (authority, path))) => match authority.rsplit_once('@') {
            Some((_, host)) => format!("{scheme}://{withheld}@{host}{path}"),
            None => text,
        },
        None => text,
    }
}

/// Whether the text between a scheme and an @ is a server with its port, and that @ begins a part of its path.
fn is_server_with_path(user: &str) -> bool {
    let Some((server, path)) = user.split_once('/') else { return false };
    let port = server.rsplit_once(':').map(|(_, port)| port);
    let is_server = port.is_some_and(|port| port.parse::<u16>().is_ok()) && !server.contains('@');
    is_server && (path.is_empty() || path.starts_with('@') && path.ends_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_and_a_user_are_withheld_and_the_rest_is_not() {
        for (whole, shown) in [
            ("/new", "/new"),
            ("/new?k=v?w", "/new?-"),
            ("https://a:b@c.test:1/d?e", "https://-@c.test:1/d?-"),
            ("https://a@b@c.test?d/e", "https://-@c.test?-"),
            ("https://c.test/@d", "https://c.test/@d"),
            ("https://c.test:1/@d", "https://c.test:1/@d"),
            ("https://c.test:1/@d/@e?f", "https://c.test:1/@d/@e?-"),
            ("https://u:1/2@c.test/d", "https://-@c.test/d"),
            ("https://u:1/@2@c.test/d", "https://-@c.test/d"),
            ("https://u:p/@c.test/d", "https://-@c.test/d"),
            ("https://u:p@c.test:1/@d", "https://-@d"),
            ("https://u:pa?ss@c.test/d", "https://-@c.test/d"),
            ("https://u:pa/ss@c.test/d?e", "https://-@c.test/d?-"),
            ("a@b://c", "a@b://c"),
            ("?", "?"),
        ] {
            assert_eq!(without_secrets(whole, "-"), shown);
        }
    }
}

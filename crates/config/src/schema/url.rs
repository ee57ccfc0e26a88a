//! URLs of services that Propylon itself talks to.

use crate::address;
use crate::model::{ServerAddress, WebAddress};
use crate::report::Report;
use crate::walk::Found;
use crate::wording::shown;

const URL_BYTES_MAX: usize = 2048;

/// A key that has a URL, with words for messages.
#[derive(Clone, Copy)]
pub(super) struct UrlKey {
    pub key: &'static str,
    /// Remedy for what is no such URL, with an example.
    pub fix: &'static str,
    /// Place of what does not belong into the URL.
    pub elsewhere: &'static str,
}

/// A URL of http or https, with host, port and path and nothing else.
pub(super) fn web_address(report: &Report<'_>, of: UrlKey, found: Found<&str>) -> Option<WebAddress> {
    let (url, key) = (found.value, of.key);
    let fail = |what: String, fix: &str| {
        report.error(found.span, what, fix);
        None
    };
    let (is_https, rest) = match url.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
        _ => return fail(format!("`{key}`: \"{}\" is not a URL of http or https", shown(url)), of.fix),
    };
    if url.len() > URL_BYTES_MAX || !url.bytes().all(|byte| byte.is_ascii_graphic()) || url.contains(['?', '#', '@']) {
        // Credentials are not repeated.
        let what = match url.contains('@') {
            true => format!("`{key}` has more in it than host, port and path"),
            false => format!("`{key}`: \"{}\" has more in it than host, port and path", shown(url)),
        };
        return fail(what, &format!("remove it; {}", of.elsewhere));
    }
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let path = if path.is_empty() { "/" } else { path };
    let port = if is_https { 443 } else { 80 };
    let full = if has_port(authority) { authority.to_string() } else { format!("{authority}:{port}") };
    match address::server(&full) {
        Ok(address) => {
            let (url, authority, path) = (url.to_string(), authority.to_string(), path.to_string());
            Some(WebAddress { url, is_https, address, authority, path, at: report.at(found.span) })
        }
        Err((what, fix)) => fail(what, &fix),
    }
}

pub(super) fn has_port(authority: &str) -> bool {
    authority.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'))
}

/// Warns of plaintext that leaves this machine.
pub(super) fn warn_of_plaintext(report: &Report<'_>, key: &str, address: &WebAddress) {
    let is_near = match &address.address {
        ServerAddress::Ip(address) => address.ip().is_loopback(),
        ServerAddress::Name { host, .. } => host == "localhost" || host.ends_with(".localhost"),
        ServerAddress::Srv { .. } | ServerAddress::Unix { .. } => false,
    };
    if !address.is_https && !is_near {
        let what =
            format!("`{key}`: \"{}\" is plaintext: whoever is on the way reads and changes it", shown(&address.url));
        report.warning_at(address.at, what, "write https");
    }
}

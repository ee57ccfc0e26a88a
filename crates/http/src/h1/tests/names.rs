//! Names of fields: which are known, however they are written.

use std::collections::BTreeSet;

use crate::h1::fields::{Name, claims};

/// Every name that has a kind of its own, or goes on as it is.
const KNOWN: [&str; 38] = [
    "te",
    "via",
    "host",
    "date",
    "vary",
    "proxy",
    "expect",
    "server",
    "cookie",
    "origin",
    "trailer",
    "upgrade",
    "location",
    "forwarded",
    "connection",
    "keep-alive",
    "set-cookie",
    "tracestate",
    "client-cert",
    "traceparent",
    "content-type",
    "max-forwards",
    "authorization",
    "cache-control",
    "content-range",
    "content-length",
    "http2-settings",
    "x-forwarded-for",
    "x-forwarded-host",
    "proxy-connection",
    "content-encoding",
    "www-authenticate",
    "client-cert-chain",
    "transfer-encoding",
    "x-forwarded-proto",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-authentication-info",
];

/// Characters of a token (RFC 9110 §5.6.2).
fn token_bytes() -> impl Iterator<Item = u8> {
    (0x21..0x7f).filter(|byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

#[test]
fn a_known_name_is_known_in_any_case_and_with_no_other_character() {
    for known in KNOWN {
        let kind = Name::of(known.as_bytes());
        assert!(!matches!(kind, Name::Other | Name::Claim | Name::XForwardedOther), "{known}");
        assert_eq!(Name::of(known.to_ascii_uppercase().as_bytes()), kind, "{known}");
        for at in 0..known.len() {
            for byte in token_bytes() {
                let mut name = known.as_bytes().to_vec();
                name[at] = byte;
                let same = KNOWN.iter().any(|known| known.as_bytes().eq_ignore_ascii_case(&name));
                let found = Name::of(&name);
                let is_known = !matches!(found, Name::Other | Name::Claim | Name::XForwardedOther);
                assert_eq!(is_known, same, "{}", String::from_utf8_lossy(&name));
                assert!(!byte.eq_ignore_ascii_case(&known.as_bytes()[at]) || found == kind, "{known}");
            }
        }
        for shorter in 0..known.len() {
            let name = &known.as_bytes()[..shorter];
            let same = KNOWN.iter().any(|known| known.as_bytes() == name);
            assert!(same || matches!(Name::of(name), Name::Other | Name::Claim | Name::XForwardedOther), "{known}");
        }
    }
}

/// Names by which somebody may claim to be a proxy or a server; `*` stands for the rest of a name.
pub fn every_claim() -> BTreeSet<&'static str> {
    let begins = (0..=u8::MAX).flat_map(|first| (0..=u8::MAX).map(move |third| [first, b'-', third]));
    begins.flat_map(|name| claims(&name)).copied().collect()
}

#[test]
fn a_claim_is_one_in_any_case_and_whatever_follows_where_anything_may() {
    for claim in every_claim() {
        let name = claim.replace('*', "anything");
        assert_eq!(Name::of(name.as_bytes()), Name::Claim, "{name}");
        assert_eq!(Name::of(name.to_uppercase().as_bytes()), Name::Claim, "{name}");
    }
    for other in ["x", "x-", "x-origin", "x-request-id", "x-frame-options", "x-requested-with", "x-auth-token"] {
        assert_eq!(Name::of(other.as_bytes()), Name::Other, "{other}");
    }
}

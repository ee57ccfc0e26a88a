//! What is offered to clients: versions, cipher suites, groups.

use propylon_config::TlsPolicy;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{SupportedProtocolVersion, version};

use crate::{exchange, suites};

pub(crate) fn versions(policy: TlsPolicy) -> &'static [&'static SupportedProtocolVersion] {
    const MODERN: &[&SupportedProtocolVersion] = &[&version::TLS13];
    const INTERMEDIATE: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];
    match policy {
        TlsPolicy::Modern => MODERN,
        TlsPolicy::Intermediate => INTERMEDIATE,
    }
}

/// What is offered. Of the suites our order decides, of the groups the client's: one that sends a share only of what it
/// lists first is never sent round again for another.
pub(crate) fn provider() -> CryptoProvider {
    CryptoProvider { cipher_suites: suites::all(), kx_groups: exchange::groups(), ..aws_lc_rs::default_provider() }
}

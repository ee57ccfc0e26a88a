//! What is offered to clients: versions, cipher suites, groups.

use propylon_config::TlsPolicy;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{SupportedProtocolVersion, version};

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
    use aws_lc_rs::cipher_suite::*;
    use aws_lc_rs::kx_group::*;
    CryptoProvider {
        cipher_suites: vec![
            TLS13_AES_128_GCM_SHA256,
            TLS13_AES_256_GCM_SHA384,
            TLS13_CHACHA20_POLY1305_SHA256,
            TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
            TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![X25519MLKEM768, X25519, SECP256R1, SECP384R1],
        ..aws_lc_rs::default_provider()
    }
}

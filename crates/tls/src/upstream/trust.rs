//! The library's configuration for connections to servers: what is offered, and how certificates are verified.

use std::sync::Arc;

use propylon_config::BackendTls;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{ClientConfig, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use crate::certificates::load::Upstream;
use crate::certificates::server_auth::{AcceptAnyCertificate, NamesVerifier, ParentStackVerifier};
use crate::provider::captured::SecretsLog;
use crate::provider::exchange;
use crate::provider::suites;
use crate::provider::versions;

/// Makes the configuration, but for what differs by core and server.
pub(super) fn config(tls: &BackendTls, loaded: Upstream) -> Result<ClientConfig, String> {
    // The library's own suites are never used: ours record the keys.
    let provider = CryptoProvider {
        cipher_suites: suites::all(),
        kx_groups: exchange::groups_to_servers(),
        ..aws_lc_rs::default_provider()
    };
    let provider = Arc::new(provider);
    let verifier: Arc<dyn ServerCertVerifier> = match tls.verify {
        true if !tls.names.is_empty() => Arc::new(NamesVerifier::new(&tls.names, loaded.roots, &provider)),
        true => WebPkiServerVerifier::builder_with_provider(Arc::new(loaded.roots), provider.clone())
            .build()
            .map_err(|error| error.to_string())?,
        false => Arc::new(AcceptAnyCertificate(provider.signature_verification_algorithms)),
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions(&tls.policy))
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ParentStackVerifier(verifier)));
    let mut config = match loaded.key {
        None => builder.with_no_client_auth(),
        Some(key) => {
            let certified = CertifiedKey::new(loaded.chain, key);
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
        }
    };
    config.enable_sni = tls.sni;
    // Established sessions leave the library for `records`, but for its processing of tickets.
    config.key_log = Arc::new(SecretsLog);
    config.enable_secret_extraction = true;
    Ok(config)
}

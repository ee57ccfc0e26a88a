//! What is offered to servers, and which of their certificates are good enough.

use std::sync::Arc;

use propylon_config::BackendTls;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, WebPkiServerVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls12_signature, verify_tls13_signature,
};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{DigitallySignedStruct, Error, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::certificates::load::Upstream;
use crate::parking::fiber::deep;
use crate::provider::captured::SecretsListener;
use crate::provider::exchange;
use crate::provider::suites;
use crate::provider::versions;

/// The library's configuration, but for what differs by core and server.
pub(super) fn config(tls: &BackendTls, loaded: Upstream) -> Result<ClientConfig, String> {
    // Never the library's own suites: what sessions live on is heard of through ours.
    let provider = CryptoProvider {
        cipher_suites: suites::all(),
        kx_groups: exchange::groups_to_servers(),
        ..aws_lc_rs::default_provider()
    };
    let provider = Arc::new(provider);
    let verifier: Arc<dyn ServerCertVerifier> = match tls.verify {
        true => WebPkiServerVerifier::builder_with_provider(Arc::new(loaded.roots), provider.clone())
            .build()
            .map_err(|error| error.to_string())?,
        false => Arc::new(Unverified(provider.signature_verification_algorithms)),
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions(&tls.policy))
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Roomy(verifier)));
    let mut config = match loaded.key {
        None => builder.with_no_client_auth(),
        Some(key) => {
            let certified = CertifiedKey::new(loaded.chain, key);
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
        }
    };
    config.enable_sni = tls.sni;
    // Established sessions are kept by `records`, and only what takes tickets stays with the library.
    config.key_log = Arc::new(SecretsListener);
    config.enable_secret_extraction = true;
    Ok(config)
}

/// Verifies where there is room, should the handshake run on a small stack of its own: chains and curves take more
/// than that has.
#[derive(Debug)]
pub(crate) struct Roomy(pub Arc<dyn ServerCertVerifier>);

impl ServerCertVerifier for Roomy {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        issuers: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        deep(|| self.0.verify_server_cert(leaf, issuers, name, ocsp, now))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        deep(|| self.0.verify_tls12_signature(message, certificate, signature))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        deep(|| self.0.verify_tls13_signature(message, certificate, signature))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Takes every certificate, and still asks for proof that the server has its key: a mistake shows that way.
#[derive(Debug)]
struct Unverified(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

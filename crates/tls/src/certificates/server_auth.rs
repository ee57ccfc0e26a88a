//! Verification of servers' certificates, with room on the stack for it.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::parking::fiber::on_parent_stack;

/// Verifier that runs on the parent's stack, should the handshake run on a fiber: chains and curves need more than a
/// fiber's stack.
#[derive(Debug)]
pub(crate) struct ParentStackVerifier(pub Arc<dyn ServerCertVerifier>);

impl ServerCertVerifier for ParentStackVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        issuers: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        on_parent_stack(|| self.0.verify_server_cert(leaf, issuers, name, ocsp, now))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        on_parent_stack(|| self.0.verify_tls12_signature(message, certificate, signature))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        on_parent_stack(|| self.0.verify_tls13_signature(message, certificate, signature))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Verifier that wants one of several names of a certificate, in the place of the server's.
#[derive(Debug)]
pub(crate) struct NamesVerifier {
    roots: RootCertStore,
    hosts: Vec<ServerName<'static>>,
    uris: Vec<String>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl NamesVerifier {
    /// A name with a colon is a URI, the others are hosts.
    pub fn new(names: &[String], roots: RootCertStore, provider: &CryptoProvider) -> NamesVerifier {
        let host = |name: &String| ServerName::try_from(name.trim_matches(['[', ']']).to_owned());
        let (hosts, others): (Vec<_>, Vec<_>) =
            names.iter().map(|name| host(name).map_err(|_| name.clone())).partition(Result::is_ok);
        NamesVerifier {
            roots,
            hosts: hosts.into_iter().filter_map(Result::ok).collect(),
            uris: others.into_iter().filter_map(Result::err).collect(),
            algorithms: provider.signature_verification_algorithms,
        }
    }

    fn has_uri(&self, leaf: &CertificateDer<'_>) -> bool {
        let Ok((_, parsed)) = X509Certificate::from_der(leaf) else { return false };
        let Ok(Some(extension)) = parsed.subject_alternative_name() else { return false };
        let is_own =
            |name: &GeneralName<'_>| matches!(name, GeneralName::URI(text) if self.uris.iter().any(|own| own == text));
        extension.value.general_names.iter().any(is_own)
    }
}

impl ServerCertVerifier for NamesVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        issuers: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(leaf)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, issuers, now, self.algorithms.all)?;
        let is_for = |name: &ServerName<'static>| verify_server_name(&parsed, name).is_ok();
        match self.hosts.iter().any(is_for) || self.has_uri(leaf) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::NotValidForName.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// Verifier that accepts every certificate, and still demands proof that the server has its key, so that mistakes show.
#[derive(Debug)]
pub(crate) struct AcceptAnyCertificate(pub WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AcceptAnyCertificate {
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

//! Signatures with a certificate's key, as jobs.

use propylon_config::KeyType;
use propylon_crypto::{Hash, Key, KeyKind as JobKeyKind, Scheme};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

use super::jobs::run_job;

/// Kind of a key, which decides its signature schemes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KeyKind {
    P256,
    P384,
    P521,
    Ed25519,
    Rsa,
}

impl KeyKind {
    pub fn key_type(self) -> KeyType {
        match self {
            KeyKind::Rsa => KeyType::Rsa,
            KeyKind::Ed25519 => KeyType::Ed25519,
            KeyKind::P256 | KeyKind::P384 | KeyKind::P521 => KeyType::Ecdsa,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            KeyKind::P256 => "P-256",
            KeyKind::P384 => "P-384",
            KeyKind::P521 => "P-521",
            KeyKind::Ed25519 => "Ed25519",
            KeyKind::Rsa => "RSA",
        }
    }
}

/// A certificate's key, wherever it is.
#[derive(Debug)]
pub(crate) struct CertificateKey(Key);

impl CertificateKey {
    pub fn new(key: Key) -> CertificateKey {
        CertificateKey(key)
    }

    fn kind(&self) -> KeyKind {
        match self.0.kind() {
            JobKeyKind::P256 => KeyKind::P256,
            JobKeyKind::P384 => KeyKind::P384,
            JobKeyKind::P521 => KeyKind::P521,
            JobKeyKind::Ed25519 => KeyKind::Ed25519,
            JobKeyKind::Rsa { .. } => KeyKind::Rsa,
        }
    }
}

/// Signature schemes of a kind of key, the most preferred first.
pub(crate) fn schemes(kind: KeyKind) -> &'static [SignatureScheme] {
    match kind {
        KeyKind::P256 => &[SignatureScheme::ECDSA_NISTP256_SHA256],
        KeyKind::P384 => &[SignatureScheme::ECDSA_NISTP384_SHA384],
        KeyKind::P521 => &[SignatureScheme::ECDSA_NISTP521_SHA512],
        KeyKind::Ed25519 => &[SignatureScheme::ED25519],
        // PSS goes before PKCS #1, since TLS 1.3 demands it; the strongest hash that the client supports goes first.
        KeyKind::Rsa => &[
            SignatureScheme::RSA_PSS_SHA512,
            SignatureScheme::RSA_PSS_SHA384,
            SignatureScheme::RSA_PSS_SHA256,
            SignatureScheme::RSA_PKCS1_SHA512,
            SignatureScheme::RSA_PKCS1_SHA384,
            SignatureScheme::RSA_PKCS1_SHA256,
        ],
    }
}

impl SigningKey for CertificateKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let scheme = *schemes(self.kind()).iter().find(|scheme| offered.contains(scheme))?;
        Some(Box::new(Signing { key: self.0.clone(), scheme }))
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        match &self.0 {
            Key::Local(key) => Some(key.public_info().into()),
            Key::Remote(_) => None,
        }
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        match self.kind() {
            KeyKind::P256 | KeyKind::P384 | KeyKind::P521 => SignatureAlgorithm::ECDSA,
            KeyKind::Ed25519 => SignatureAlgorithm::ED25519,
            KeyKind::Rsa => SignatureAlgorithm::RSA,
        }
    }
}

#[derive(Debug)]
struct Signing {
    key: Key,
    scheme: SignatureScheme,
}

impl Signer for Signing {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let scheme = job_scheme(self.scheme).ok_or_else(|| failed("not a scheme of this key"))?;
        let job = match scheme {
            Scheme::Ed25519 => self.key.job(scheme, message),
            Scheme::RsaPkcs1(hash) | Scheme::RsaPss(hash) | Scheme::Ecdsa(hash) => {
                let digest = hash.digest(message).ok_or_else(|| failed("no such hash"))?;
                self.key.job(scheme, digest.as_ref())
            }
            Scheme::RsaRaw => return Err(failed("not a signature")),
        };
        let job = job.map_err(failed)?;
        run_job(job).map(|signature| signature.to_vec()).map_err(failed)
    }

    fn scheme(&self) -> SignatureScheme {
        self.scheme
    }
}

fn failed(why: impl std::fmt::Display) -> Error {
    Error::General(format!("signing failed: {why}"))
}

/// RFC 8446 §4.2.3. Those of TLS 1.2 that are not listed have never been offered.
fn job_scheme(scheme: SignatureScheme) -> Option<Scheme> {
    Some(match scheme {
        SignatureScheme::RSA_PKCS1_SHA256 => Scheme::RsaPkcs1(Hash::Sha256),
        SignatureScheme::RSA_PKCS1_SHA384 => Scheme::RsaPkcs1(Hash::Sha384),
        SignatureScheme::RSA_PKCS1_SHA512 => Scheme::RsaPkcs1(Hash::Sha512),
        SignatureScheme::RSA_PSS_SHA256 => Scheme::RsaPss(Hash::Sha256),
        SignatureScheme::RSA_PSS_SHA384 => Scheme::RsaPss(Hash::Sha384),
        SignatureScheme::RSA_PSS_SHA512 => Scheme::RsaPss(Hash::Sha512),
        SignatureScheme::ECDSA_NISTP256_SHA256 => Scheme::Ecdsa(Hash::Sha256),
        SignatureScheme::ECDSA_NISTP384_SHA384 => Scheme::Ecdsa(Hash::Sha384),
        SignatureScheme::ECDSA_NISTP521_SHA512 => Scheme::Ecdsa(Hash::Sha512),
        SignatureScheme::ED25519 => Scheme::Ed25519,
        _ => return None,
    })
}

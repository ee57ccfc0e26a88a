//! What a finished handshake agreed on, for logs and metrics.

use propylon_config::KeyType;
use rustls::SignatureScheme;

use crate::tickets::Unopened;
use crate::tickets::sessions::IdUse;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub version: Version,
    pub suite: Suite,
    /// Absent when a TLS 1.2 session was resumed: no keys were exchanged.
    pub group: Option<Group>,
    /// Type of the certificate that was served; absent when the session was resumed and none was.
    pub certificate: Option<KeyType>,
    /// What the server's key signed with; absent when the session was resumed.
    pub signature: Option<Scheme>,
    pub resumed: bool,
    /// Position of the agreed protocol in the list that was given to `Profile::load`.
    pub alpn: Option<u8>,
    pub resumption: Resumption,
}

/// What tickets and session IDs had to do with a handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resumption {
    /// Tickets given to the client.
    pub issued: u8,
    /// Why the last ticket that was of no use was not.
    pub refused: Option<Unopened>,
    pub session_id: Option<IdUse>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    Tls12,
    Tls13,
}

impl Version {
    pub fn name(self) -> &'static str {
        match self {
            Version::Tls12 => "TLSv1.2",
            Version::Tls13 => "TLSv1.3",
        }
    }
}

/// The record cipher; the rest of a suite's name follows from the version and the certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    Aes128Gcm,
    Aes256Gcm,
    Chacha20Poly1305,
}

impl Suite {
    pub fn name(self) -> &'static str {
        match self {
            Suite::Aes128Gcm => "AES128-GCM",
            Suite::Aes256Gcm => "AES256-GCM",
            Suite::Chacha20Poly1305 => "CHACHA20-POLY1305",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    X25519MlKem768,
    X25519,
    P256,
    P384,
}

impl Group {
    pub fn name(self) -> &'static str {
        match self {
            Group::X25519MlKem768 => "X25519MLKEM768",
            Group::X25519 => "X25519",
            Group::P256 => "P-256",
            Group::P384 => "P-384",
        }
    }
}

/// How a signature was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    EcdsaP256Sha256,
    EcdsaP384Sha384,
    EcdsaP521Sha512,
    Ed25519,
    RsaPssSha256,
    RsaPssSha384,
    RsaPssSha512,
    RsaPkcs1Sha256,
    RsaPkcs1Sha384,
    RsaPkcs1Sha512,
}

impl Scheme {
    /// As RFC 8446 §4.2.3 calls it.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::EcdsaP256Sha256 => "ecdsa_secp256r1_sha256",
            Scheme::EcdsaP384Sha384 => "ecdsa_secp384r1_sha384",
            Scheme::EcdsaP521Sha512 => "ecdsa_secp521r1_sha512",
            Scheme::Ed25519 => "ed25519",
            Scheme::RsaPssSha256 => "rsa_pss_rsae_sha256",
            Scheme::RsaPssSha384 => "rsa_pss_rsae_sha384",
            Scheme::RsaPssSha512 => "rsa_pss_rsae_sha512",
            Scheme::RsaPkcs1Sha256 => "rsa_pkcs1_sha256",
            Scheme::RsaPkcs1Sha384 => "rsa_pkcs1_sha384",
            Scheme::RsaPkcs1Sha512 => "rsa_pkcs1_sha512",
        }
    }

    pub(crate) fn of(scheme: SignatureScheme) -> Option<Scheme> {
        Some(match scheme {
            SignatureScheme::ECDSA_NISTP256_SHA256 => Scheme::EcdsaP256Sha256,
            SignatureScheme::ECDSA_NISTP384_SHA384 => Scheme::EcdsaP384Sha384,
            SignatureScheme::ECDSA_NISTP521_SHA512 => Scheme::EcdsaP521Sha512,
            SignatureScheme::ED25519 => Scheme::Ed25519,
            SignatureScheme::RSA_PSS_SHA256 => Scheme::RsaPssSha256,
            SignatureScheme::RSA_PSS_SHA384 => Scheme::RsaPssSha384,
            SignatureScheme::RSA_PSS_SHA512 => Scheme::RsaPssSha512,
            SignatureScheme::RSA_PKCS1_SHA256 => Scheme::RsaPkcs1Sha256,
            SignatureScheme::RSA_PKCS1_SHA384 => Scheme::RsaPkcs1Sha384,
            SignatureScheme::RSA_PKCS1_SHA512 => Scheme::RsaPkcs1Sha512,
            _ => return None,
        })
    }
}

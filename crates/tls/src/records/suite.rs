//! Protocol version and record cipher of a session.

use rustls::{CipherSuite, ProtocolVersion};

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

    /// The negotiated version; the library speaks no others.
    pub(crate) fn of(version: Option<ProtocolVersion>) -> Version {
        match version {
            Some(ProtocolVersion::TLSv1_2) => Version::Tls12,
            _ => Version::Tls13,
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

    pub(crate) fn of(suite: CipherSuite) -> Suite {
        match suite {
            CipherSuite::TLS13_AES_256_GCM_SHA384
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
            | CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => Suite::Aes256Gcm,
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => Suite::Chacha20Poly1305,
            _ => Suite::Aes128Gcm,
        }
    }
}

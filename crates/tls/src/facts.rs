//! What a finished handshake agreed on, for logs and metrics.

use propylon_config::KeyType;

use crate::sessions::IdUse;
use crate::tickets::Unopened;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub version: Version,
    pub suite: Suite,
    /// Absent when a TLS 1.2 session was resumed: no keys were exchanged.
    pub group: Option<Group>,
    /// Type of the certificate that was served; absent when the session was resumed and none was.
    /// Ed25519 counts as `Ecdsa`.
    pub certificate: Option<KeyType>,
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

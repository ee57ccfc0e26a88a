//! Parameters that a finished handshake agreed on, for logs and metrics.

use propylon_config::{KeyType, TlsGroup, TlsSuite};
use rustls::SignatureScheme;

use crate::records::suite::{Suite, Version};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    pub version: Version,
    pub suite: Suite,
    /// The whole suite, which a resumed session of TLS 1.2 has as well.
    pub agreed: TlsSuite,
    /// Absent when a TLS 1.2 session was resumed: no keys were exchanged.
    pub group: Option<Group>,
    /// Type of the certificate that was served; absent when the session was resumed and none was.
    pub certificate: Option<KeyType>,
    /// Signature scheme of the server's key; absent when the session was resumed.
    pub signature: Option<Scheme>,
    pub resumed: bool,
    /// Position of the agreed protocol in the list that was given to `Profile::load`.
    pub alpn: Option<u8>,
    pub resumption: Resumption,
}

/// Use of tickets and session IDs in a handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resumption {
    /// Tickets given to the client.
    pub issued: u8,
    /// Reason why the last ticket that was rejected could not be used.
    pub refused: Option<TicketRefusal>,
    pub session_id: Option<SessionIdUse>,
}

/// Reason why a ticket was not used: a full handshake follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketRefusal {
    /// The ticket's key is not known: it has been retired, or is another server's.
    UnknownKey,
    /// The ticket does not authenticate: it was modified, or made for a profile with another name or other client
    /// rules.
    Damaged,
    /// The session began too long ago.
    Expired,
}

impl TicketRefusal {
    pub const ALL: [TicketRefusal; 3] = [TicketRefusal::UnknownKey, TicketRefusal::Damaged, TicketRefusal::Expired];

    pub fn name(self) -> &'static str {
        match self {
            TicketRefusal::UnknownKey => "unknown-key",
            TicketRefusal::Damaged => "damaged",
            TicketRefusal::Expired => "expired",
        }
    }
}

/// Use of a session ID in a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionIdUse {
    /// The session was stored for the client to resume.
    Kept,
    /// The client has resumed a stored session.
    Found,
    /// The client asked for a session that is not, or no longer, stored.
    Missed,
}

impl SessionIdUse {
    pub const ALL: [SessionIdUse; 3] = [SessionIdUse::Kept, SessionIdUse::Found, SessionIdUse::Missed];

    pub fn name(self) -> &'static str {
        match self {
            SessionIdUse::Kept => "kept",
            SessionIdUse::Found => "found",
            SessionIdUse::Missed => "missed",
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

    /// The group as configurations have it.
    pub fn configured(self) -> TlsGroup {
        match self {
            Group::X25519MlKem768 => TlsGroup::X25519MlKem768,
            Group::X25519 => TlsGroup::X25519,
            Group::P256 => TlsGroup::P256,
            Group::P384 => TlsGroup::P384,
        }
    }
}

/// Signature scheme.
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
    /// Name as in RFC 8446 §4.2.3.
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

//! The resolved model of `[tls.NAME]` and `[signer.NAME]`.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::{At, Ordered, ServerAddress, SignerId};
use crate::shown;

/// A TLS profile for clients, shared by any number of listeners.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TlsProfile {
    /// Name of the profile: the NAME of `[tls.NAME]`.
    #[serde(skip)]
    pub name: String,
    /// Certificates with their keys, at least one.
    #[serde(skip)]
    pub certificates: Vec<Certificate>,
    /// TLS policy: versions, cipher suites and groups. Default intermediate.
    pub policy: TlsPolicy,
    /// Preference of key types for clients that support several. Default ecdsa, rsa.
    pub prefer: Vec<KeyType>,
    /// Whether clients without SNI, or with a name that no certificate is for, are refused. Default no.
    pub strict_sni: bool,
    /// Interval at which the files are checked for changes. Absent: never; SIGHUP reads them again in any case.
    #[serde(serialize_with = "shown::written")]
    pub watch: Option<Duration>,
    /// Whether certificates are sent compressed to clients that support it (RFC 8879). Default yes.
    pub certificate_compression: bool,
    /// Session resumption.
    #[serde(flatten)]
    pub resumption: Resumption,
    /// Client authentication by certificate. Absent: clients are not asked for one.
    pub client_auth: Option<ClientAuth>,
    /// Whether the JA4 fingerprint of every client is computed. Default no.
    pub ja4: bool,
    /// Key servers that sign for the certificates whose keys are not here. Absent: no such certificate.
    #[serde(skip)]
    pub signer: Option<SignerId>,
    /// Copy of `allow_world_readable_keys` of `[process]`: see [`Process`](super::Process).
    #[serde(skip)]
    pub allow_world_readable_keys: bool,
    /// Position of the profile's name in the file.
    pub at: At,
}

/// Key servers that hold the same private keys, and how this engine speaks to them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Signer {
    /// Number of the signer, which remote keys know it by. Two configurations have the same number for the same signer,
    /// and no other has it.
    #[serde(skip)]
    pub id: SignerId,
    /// Name of the signer: the NAME of `[signer.NAME]`.
    #[serde(skip)]
    pub name: String,
    /// Key servers, at least one, at most 64.
    #[serde(skip)]
    pub servers: Vec<SignerServer>,
    /// PEM file of the certificate chain and key that this engine authenticates itself with to the key servers.
    pub identity: Trust,
    /// PEM file of the authorities that sign the key servers' certificates.
    pub ca: Trust,
    /// Time that a handshake waits for its signature at most. Default 1 s.
    #[serde(serialize_with = "shown::written")]
    pub timeout: Duration,
    /// Connections that each core keeps to each server. Default 2.
    pub connections: u16,
    /// Hedging delay, after which a second server is asked as well. Absent: never. Default half of `timeout`.
    #[serde(serialize_with = "shown::written_or_off")]
    pub hedge: Option<Duration>,
    /// Signatures that are verified before they are used. Default those of RSA keys.
    pub verify: Verify,
    /// Interval at which the servers' host names are looked up. Default 30 s.
    #[serde(serialize_with = "shown::written")]
    pub resolve_interval: Duration,
    /// Interval at which `identity` and `ca` are checked, and read again when they have changed. Absent: at SIGHUP
    /// only.
    #[serde(serialize_with = "shown::written")]
    pub watch: Option<Duration>,
    /// Copy of `allow_world_readable_keys` of `[process]`: see [`Process`](super::Process).
    #[serde(skip)]
    pub allow_world_readable_keys: bool,
    /// Position of the signer's name in the file.
    pub at: At,
}

/// A key server.
#[derive(Clone, Debug, PartialEq)]
pub struct SignerServer {
    /// Address that the key server listens on.
    pub address: ServerAddress,
    /// Name that the key server's certificate must be for. Absent: the host of the address.
    pub server_name: Option<String>,
    /// Position of the server in the file.
    pub at: At,
}

/// Signatures of key servers that are verified before they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// Signatures by RSA keys: the check costs little, and a faulty RSA signature can give away the key.
    Rsa,
    /// All signatures.
    All,
    /// No signatures.
    #[serde(rename = "off")]
    Nothing,
}

/// Session resumption: how clients avoid a full handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resumption {
    /// Tickets sent to a TLS 1.3 client after a full handshake; after a resumed one it gets one at most. 0: no tickets
    /// at all, with TLS 1.2 neither. Default 2, at most 8.
    pub tickets: u8,
    /// Source of the ticket keys. Default memory.
    #[serde(skip)]
    pub ticket_keys: TicketKeys,
    /// Sessions kept in memory for TLS 1.2 clients without ticket support; 0: none. Default 16384.
    pub session_ids: usize,
}

impl Default for Resumption {
    fn default() -> Resumption {
        Resumption { tickets: 2, ticket_keys: TicketKeys::Memory, session_ids: 16_384 }
    }
}

/// Source of the keys that session tickets are sealed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TicketKeys {
    /// Keys made at start, replaced every six hours, known to this process alone.
    Memory,
    /// Keys shared with other engines through a file.
    File {
        /// Path of the file, joined to the configuration's folder.
        path: PathBuf,
        /// Interval at which this engine adds a new key to the file, which it makes if there is none. Absent: the file
        /// is only read, another program writes it.
        rotate: Option<Duration>,
        /// Position of the path in the file.
        at: At,
    },
}

/// A certificate chain with its key.
#[derive(Clone, Debug, PartialEq)]
pub struct Certificate {
    /// Source of chain and key; whether the files exist is found out when they are read.
    pub source: CertificateSource,
    /// File of the OCSP response. Absent: the chain's file name and `.ocsp`, if there is such a file.
    pub ocsp: Option<PathBuf>,
    /// Whether this is the default certificate, served where no other fits. With no certificate marked so, the first is
    /// the default.
    pub default: bool,
    /// Whether the certificate came by the admin API and is kept in `process.state`: the configuration file does not
    /// name it.
    pub uploaded: bool,
    /// Position of the certificate in the file.
    pub at: At,
}

/// Source of a certificate. Paths are absolute or relative to the working directory (the parser has joined the
/// configuration's folder).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// One PEM file with chain and key, or a folder of such files.
    Path(PathBuf),
    /// Two PEM files, one with the chain and one with the key.
    Pair {
        /// File of the chain, leaf first.
        chain: PathBuf,
        /// File of the leaf's private key.
        key: PathBuf,
    },
    /// Certificate ordered by ACME; its files may not be there yet.
    Ordered(Ordered),
}

/// TLS versions, cipher suites and groups that are offered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsPolicy {
    /// TLS 1.3 only.
    Modern,
    /// TLS 1.2 and 1.3.
    Intermediate,
    /// The user's own choice.
    #[serde(untagged)]
    Custom(CustomPolicy),
}

/// A TLS policy of the user's own. Each list is without repeats and not empty, and each version has a suite and a
/// group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CustomPolicy {
    /// TLS versions. Default both.
    pub versions: Vec<TlsVersion>,
    /// Cipher suites, the most preferred first: this order decides, not the client's. Default all.
    pub suites: Vec<TlsSuite>,
    /// Key exchange groups, as a set: the client's order decides among them. Default all.
    pub groups: Vec<TlsGroup>,
    /// Position of the policy in the file.
    pub at: At,
}

/// A version of TLS that is still allowed by some policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsVersion {
    /// TLS 1.2 (RFC 5246).
    Tls12,
    /// TLS 1.3 (RFC 8446).
    Tls13,
}

/// A cipher suite: the AEAD of its records, and for TLS 1.2 the type of certificate it goes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsSuite {
    /// Suites of TLS 1.3, such as TLS_AES_128_GCM_SHA256.
    Tls13(TlsCipher),
    /// Suites such as TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256; Ed25519 certificates use them too (RFC 8422 §5.1.3).
    Ecdsa(TlsCipher),
    /// Suites such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256.
    Rsa(TlsCipher),
}

/// AEAD that encrypts records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsCipher {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    Chacha20Poly1305,
}

shown::serialize_by_name!(TlsVersion, TlsSuite, TlsGroup, KeyType);

impl TlsPolicy {
    /// Whether sessions with this suite can come about.
    pub fn allows_suite(&self, suite: TlsSuite) -> bool {
        match self {
            TlsPolicy::Modern => suite.version() == TlsVersion::Tls13,
            TlsPolicy::Intermediate => true,
            TlsPolicy::Custom(own) => own.suites.contains(&suite) && own.versions.contains(&suite.version()),
        }
    }

    /// Whether sessions of this version can come about.
    pub fn allows_version(&self, version: TlsVersion) -> bool {
        match self {
            TlsPolicy::Modern => version == TlsVersion::Tls13,
            TlsPolicy::Intermediate => true,
            TlsPolicy::Custom(own) => own.versions.contains(&version),
        }
    }

    /// Whether keys can be exchanged in this group.
    pub fn allows_group(&self, group: TlsGroup) -> bool {
        match self {
            TlsPolicy::Modern | TlsPolicy::Intermediate => true,
            TlsPolicy::Custom(own) => own.groups.contains(&group),
        }
    }
}

impl TlsVersion {
    pub(crate) const ALL: [TlsVersion; 2] = [TlsVersion::Tls12, TlsVersion::Tls13];

    /// Name of the version as a fact of a connection.
    pub(crate) fn fact(self) -> &'static str {
        match self {
            TlsVersion::Tls12 => "TLSv1.2",
            TlsVersion::Tls13 => "TLSv1.3",
        }
    }

    /// Name of the version in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            TlsVersion::Tls12 => "1.2",
            TlsVersion::Tls13 => "1.3",
        }
    }
}

impl TlsSuite {
    /// Every suite there is, in the order of its cost, with OpenSSL's name where that differs from IANA's.
    pub const ALL: &'static [(&'static str, TlsSuite)] = &[
        ("", TlsSuite::Tls13(TlsCipher::Aes128Gcm)),
        ("", TlsSuite::Tls13(TlsCipher::Aes256Gcm)),
        ("", TlsSuite::Tls13(TlsCipher::Chacha20Poly1305)),
        ("ECDHE-ECDSA-AES128-GCM-SHA256", TlsSuite::Ecdsa(TlsCipher::Aes128Gcm)),
        ("ECDHE-ECDSA-AES256-GCM-SHA384", TlsSuite::Ecdsa(TlsCipher::Aes256Gcm)),
        ("ECDHE-ECDSA-CHACHA20-POLY1305", TlsSuite::Ecdsa(TlsCipher::Chacha20Poly1305)),
        ("ECDHE-RSA-AES128-GCM-SHA256", TlsSuite::Rsa(TlsCipher::Aes128Gcm)),
        ("ECDHE-RSA-AES256-GCM-SHA384", TlsSuite::Rsa(TlsCipher::Aes256Gcm)),
        ("ECDHE-RSA-CHACHA20-POLY1305", TlsSuite::Rsa(TlsCipher::Chacha20Poly1305)),
    ];

    /// The suite that IANA or OpenSSL calls so, in any case.
    pub fn named(name: &str) -> Option<TlsSuite> {
        let is = |ours: &str| !ours.is_empty() && ours.eq_ignore_ascii_case(name);
        TlsSuite::ALL.iter().find(|(openssl, suite)| is(suite.name()) || is(openssl)).map(|(_, suite)| *suite)
    }

    /// Version of TLS that the suite is of.
    pub fn version(self) -> TlsVersion {
        match self {
            TlsSuite::Tls13(_) => TlsVersion::Tls13,
            TlsSuite::Ecdsa(_) | TlsSuite::Rsa(_) => TlsVersion::Tls12,
        }
    }

    /// IANA's name of the suite.
    pub fn name(self) -> &'static str {
        use TlsCipher::*;
        match self {
            TlsSuite::Tls13(Aes128Gcm) => "TLS_AES_128_GCM_SHA256",
            TlsSuite::Tls13(Aes256Gcm) => "TLS_AES_256_GCM_SHA384",
            TlsSuite::Tls13(Chacha20Poly1305) => "TLS_CHACHA20_POLY1305_SHA256",
            TlsSuite::Ecdsa(Aes128Gcm) => "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
            TlsSuite::Ecdsa(Aes256Gcm) => "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
            TlsSuite::Ecdsa(Chacha20Poly1305) => "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            TlsSuite::Rsa(Aes128Gcm) => "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            TlsSuite::Rsa(Aes256Gcm) => "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
            TlsSuite::Rsa(Chacha20Poly1305) => "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        }
    }
}

/// A key exchange group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsGroup {
    /// X25519 and ML-KEM-768 together; TLS 1.3 only.
    X25519MlKem768,
    /// Curve25519.
    X25519,
    /// P-256.
    P256,
    /// P-384.
    P384,
}

impl TlsGroup {
    /// Groups by the names of IANA, OpenSSL and NIST; the first of each is the one shown.
    pub(crate) const NAMES: &'static [(&'static str, TlsGroup)] = &[
        ("X25519MLKEM768", TlsGroup::X25519MlKem768),
        ("x25519", TlsGroup::X25519),
        ("X25519", TlsGroup::X25519),
        ("secp256r1", TlsGroup::P256),
        ("prime256v1", TlsGroup::P256),
        ("P-256", TlsGroup::P256),
        ("secp384r1", TlsGroup::P384),
        ("P-384", TlsGroup::P384),
    ];
    pub(crate) const ALL: [TlsGroup; 4] = [TlsGroup::X25519MlKem768, TlsGroup::X25519, TlsGroup::P256, TlsGroup::P384];

    /// The group that IANA, OpenSSL or NIST calls so, in any case.
    pub fn named(name: &str) -> Option<TlsGroup> {
        TlsGroup::NAMES.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, group)| *group)
    }

    /// IANA's name of the group.
    pub fn name(self) -> &'static str {
        match self {
            TlsGroup::X25519MlKem768 => "X25519MLKEM768",
            TlsGroup::X25519 => "x25519",
            TlsGroup::P256 => "secp256r1",
            TlsGroup::P384 => "secp384r1",
        }
    }
}

/// Client authentication: the certificates that clients must show, and what servers get to know of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClientAuth {
    /// Whether clients need a certificate. Default required.
    pub mode: ClientAuthMode,
    /// PEM files, or folders of such files, with the authorities that sign clients' certificates; at least one.
    pub ca: Vec<Trust>,
    /// Files of certificate revocation lists, PEM or DER. Empty: revocation is not checked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub crl: Vec<Trust>,
    /// Certificates of the chain that are checked against the revocation lists. Default chain.
    pub crl_scope: CrlScope,
    /// Treatment of a certificate whose issuer has no revocation list. Default refuse.
    pub crl_missing: Leniency,
    /// Treatment of a revocation list whose next update is overdue. Default refuse.
    pub crl_expired: Leniency,
    /// Certificates that a client may send in addition to its own. Default 6, at most 8.
    pub depth: usize,
    /// Whether clients are sent the names of the authorities. Default yes.
    pub send_ca_names: bool,
    /// Certificates that are forwarded to servers. Default leaf.
    pub forward: ForwardIdentity,
    /// Position of the key in the file.
    pub at: At,
}

/// A file or folder that the configuration names, with the position of its path: trust anchors, revocation lists, keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Trust {
    /// Path, absolute or relative to the working directory, as with [`CertificateSource`].
    #[serde(serialize_with = "shown::written")]
    pub path: PathBuf,
    /// Position of the path in the file.
    #[serde(skip)]
    pub at: At,
}

/// Whether clients need a certificate. A client with an invalid one is always refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuthMode {
    /// A client without a certificate is refused.
    Required,
    /// A client without a certificate is let in; routes can refuse it.
    Optional,
}

/// Certificates of a chain that are checked against revocation lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CrlScope {
    /// The client's own certificate.
    Leaf,
    /// The client's own certificate and all intermediates.
    Chain,
}

/// Treatment of a client whose revocation status is in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Leniency {
    /// The client is refused.
    Refuse,
    /// The client is let in.
    Allow,
}

/// Certificates of a client that are forwarded to servers (RFC 9440).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ForwardIdentity {
    /// No certificate.
    Nothing,
    /// The client's own certificate, as Client-Cert.
    Leaf,
    /// The rest of the chain as well, as Client-Cert-Chain.
    Chain,
}

/// Type of a certificate's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyType {
    /// An elliptic curve key on P-256, P-384 or P-521.
    Ecdsa,
    /// An Ed25519 key. An order of preference that does not name it ranks it with `Ecdsa`.
    Ed25519,
    /// An RSA key.
    Rsa,
}

impl KeyType {
    /// Name of the key type in the configuration, the metrics and the access log.
    pub fn name(self) -> &'static str {
        match self {
            KeyType::Ecdsa => "ecdsa",
            KeyType::Ed25519 => "ed25519",
            KeyType::Rsa => "rsa",
        }
    }
}

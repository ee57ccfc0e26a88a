//! `[tls.NAME]` and `[signer.NAME]`, as meant.

use std::path::PathBuf;
use std::time::Duration;

use super::{At, Ordered, ServerAddress, SignerId};

/// How TLS is terminated, shared by any number of listeners.
#[derive(Clone, Debug)]
pub struct TlsProfile {
    /// The NAME of `[tls.NAME]`.
    pub name: String,
    /// At least one.
    pub certificates: Vec<Certificate>,
    /// Versions, cipher suites and groups. Default intermediate.
    pub policy: TlsPolicy,
    /// Key types in the order in which they are offered to a client that can do several. Default ecdsa, rsa.
    pub prefer: Vec<KeyType>,
    /// A client that asks for a name that no certificate stands for, or for none, is refused. Default no.
    pub strict_sni: bool,
    /// How often the files are looked at for changes. Absent: never; SIGHUP reads them again in any case.
    pub watch: Option<Duration>,
    /// Certificates are sent compressed to clients that can take it (RFC 8879). Default yes.
    pub certificate_compression: bool,
    /// How clients come back to a session.
    pub resumption: Resumption,
    /// Clients are asked for a certificate. Default: they are not.
    pub client_auth: Option<ClientAuth>,
    /// Every client's JA4 fingerprint is computed. Default no.
    pub ja4: bool,
    /// Who signs for the certificates whose keys are not here. Default: nobody.
    pub signer: Option<SignerId>,
    /// Of `[process]`: see [`Process`](super::Process).
    pub allow_world_readable_keys: bool,
    /// Where the name is written.
    pub at: At,
}

/// Key servers that hold the same private keys, and how they are spoken to.
#[derive(Clone, Debug)]
pub struct Signer {
    /// The NAME of `[signer.NAME]`.
    pub name: String,
    /// At least one, at most 64.
    pub servers: Vec<SignerServer>,
    /// PEM file of the chain and key that this engine shows to them.
    pub identity: Trust,
    /// PEM file of the authorities that sign their certificates.
    pub ca: Trust,
    /// How long a handshake waits for its signature. Default 1 s.
    pub timeout: Duration,
    /// Connections to each server that each core keeps. Default 2.
    pub connections: u16,
    /// After how long another server is asked as well; absent: never. Default half of `timeout`.
    pub hedge: Option<Duration>,
    /// Which signatures are verified before they are used. Default those of RSA keys.
    pub verify: Verify,
    /// Generation of the first configuration without it: it only holds its place, for those who have used it before.
    pub retired: Option<u64>,
    /// How often names of servers are looked up. Default 30 s.
    pub resolve_interval: Duration,
    /// How often `identity` and `ca` are looked at, and read again when they have changed; absent: at SIGHUP only.
    pub watch: Option<Duration>,
    /// Of `[process]`: see [`Process`](super::Process).
    pub allow_world_readable_keys: bool,
    /// Where the name is written.
    pub at: At,
}

/// A key server.
#[derive(Clone, Debug)]
pub struct SignerServer {
    /// Where it listens.
    pub address: ServerAddress,
    /// The name that its certificate must be for; absent: the host of the address.
    pub server_name: Option<String>,
    /// Where it is written.
    pub at: At,
}

/// Which signatures of key servers are verified before they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Those of RSA keys: it costs little, and a faulty one can give away the key.
    Rsa,
    /// All of them.
    All,
    /// None.
    Nothing,
}

/// How clients come back to a session without a full handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumption {
    /// Tickets that a TLS 1.3 client gets after a full handshake; after a resumed one it gets one at most. 0: no tickets
    /// at all, with TLS 1.2 neither. Default 2, at most 8.
    pub tickets: u8,
    /// Where the keys of tickets come from. Default memory.
    pub ticket_keys: TicketKeys,
    /// Sessions kept in memory for TLS 1.2 clients that take no tickets; 0: none. Default 16384.
    pub session_ids: usize,
}

impl Default for Resumption {
    fn default() -> Resumption {
        Resumption { tickets: 2, ticket_keys: TicketKeys::Memory, session_ids: 16_384 }
    }
}

/// Where the keys come from that session tickets are sealed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TicketKeys {
    /// Made at start, replaced every six hours, known to this process alone.
    Memory,
    /// Shared with other engines through a file.
    File {
        /// Joined to the configuration's folder.
        path: PathBuf,
        /// How often this engine sees to a new key, and that it makes the file if there is none. Absent: somebody else
        /// writes the file, and it is only read.
        rotate: Option<Duration>,
        /// Where the path is written.
        at: At,
    },
}

/// A certificate chain with its key.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// Where to find it; whether it is there is the reader's to find out.
    pub source: CertificateSource,
    /// The file of its OCSP response. Absent: the chain's file name and `.ocsp`, if there is such a file.
    pub ocsp: Option<PathBuf>,
    /// Served where no other certificate fits. With none marked so it is the first.
    pub default: bool,
    /// Came by the admin API, and is remembered by `process.state`: no text names it.
    pub uploaded: bool,
    /// Where it is written.
    pub at: At,
}

/// Paths are absolute or relative to the working directory (the parser has joined the file's own folder on).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateSource {
    /// One PEM with chain and key, or a directory of such files.
    Path(PathBuf),
    /// Chain and key in a PEM file each.
    Pair {
        /// The chain, leaf first.
        chain: PathBuf,
        /// The leaf's private key.
        key: PathBuf,
    },
    /// Ordered from an authority; its files may not be there yet.
    Ordered(Ordered),
}

/// What is offered to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsPolicy {
    /// TLS 1.3 only.
    Modern,
    /// TLS 1.2 and 1.3.
    Intermediate,
    /// As written.
    Custom(CustomPolicy),
}

/// A policy of the user's own. Each list is without repeats and not empty, and each version can be spoken with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomPolicy {
    /// Default both.
    pub versions: Vec<TlsVersion>,
    /// The most preferred first: this order decides, not the client's. Default all.
    pub suites: Vec<TlsSuite>,
    /// A set: of these the client's order decides. Default all.
    pub groups: Vec<TlsGroup>,
    /// Where it is written.
    pub at: At,
}

/// A version of TLS that is not refused everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsVersion {
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}

/// A cipher suite: the record cipher, and for TLS 1.2 the kind of certificate it goes with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsSuite {
    /// TLS_AES_128_GCM_SHA256 and the like.
    Tls13(TlsCipher),
    /// TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 and the like; Ed25519 certificates go with these too (RFC 8422 §5.1.3).
    Ecdsa(TlsCipher),
    /// TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 and the like.
    Rsa(TlsCipher),
}

/// What records are encrypted with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TlsCipher {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    Chacha20Poly1305,
}

impl TlsVersion {
    /// As the configuration has it.
    pub fn name(self) -> &'static str {
        match self {
            TlsVersion::Tls12 => "1.2",
            TlsVersion::Tls13 => "1.3",
        }
    }
}

impl TlsSuite {
    /// IANA's.
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

/// A group for the exchange of keys.
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
    /// IANA's.
    pub fn name(self) -> &'static str {
        match self {
            TlsGroup::X25519MlKem768 => "X25519MLKEM768",
            TlsGroup::X25519 => "x25519",
            TlsGroup::P256 => "secp256r1",
            TlsGroup::P384 => "secp384r1",
        }
    }
}

/// Who clients have to be, and what servers are told of it.
#[derive(Clone, Debug)]
pub struct ClientAuth {
    /// Whether a client may come without a certificate. Default required.
    pub mode: ClientAuthMode,
    /// PEM files, or folders of such files, with the authorities that clients' certificates must lead to; at least one.
    pub ca: Vec<Trust>,
    /// Files with revocation lists, PEM or DER. None: revocation is not looked at.
    pub crl: Vec<Trust>,
    /// Which certificates the lists are asked about. Default chain.
    pub crl_scope: CrlScope,
    /// A certificate that no list speaks of. Default refuse.
    pub crl_missing: Leniency,
    /// A list whose next update is overdue. Default refuse.
    pub crl_expired: Leniency,
    /// Certificates that a client may send beside its own. Default 6, at most 8.
    pub depth: usize,
    /// Clients are told the names of the authorities. Default yes.
    pub send_ca_names: bool,
    /// What servers are told. Default leaf.
    pub forward: ForwardIdentity,
    /// Where the key is written.
    pub at: At,
}

/// A file or folder that trust or distrust comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    /// As certificates' paths are.
    pub path: PathBuf,
    /// Where it is written.
    pub at: At,
}

/// Whether a client may come without a certificate. One that comes with a wrong one is always refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAuthMode {
    /// It may not.
    Required,
    /// It may, and routes can refuse it.
    Optional,
}

/// Which certificates revocation lists are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrlScope {
    /// The client's own.
    Leaf,
    /// The client's own and all intermediates.
    Chain,
}

/// What becomes of a doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leniency {
    /// The client is refused.
    Refuse,
    /// The client is let in.
    Allow,
}

/// Which of a client's certificates go to servers (RFC 9440).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardIdentity {
    /// None.
    Nothing,
    /// Its own, as Client-Cert.
    Leaf,
    /// The others as well, as Client-Cert-Chain.
    Chain,
}

/// Kind of a certificate's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyType {
    /// An elliptic curve key on P-256, P-384 or P-521.
    Ecdsa,
    /// An Ed25519 key. Where an order of preference does not name it, it stands with `Ecdsa`.
    Ed25519,
    /// An RSA key.
    Rsa,
}

impl KeyType {
    /// As it is called in the configuration, the metrics and the access log.
    pub fn name(self) -> &'static str {
        match self {
            KeyType::Ecdsa => "ecdsa",
            KeyType::Ed25519 => "ed25519",
            KeyType::Rsa => "rsa",
        }
    }
}

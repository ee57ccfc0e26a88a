//! The configuration of a key server: its own file, with the same two languages and the same care for problems.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use crate::model::{At, Bind, Level, Workers};

/// A whole configuration of a key server, without errors.
#[derive(Clone, Debug)]
pub struct KeyServer {
    /// `[server]`
    pub server: Server,
    /// `[keys]`
    pub keys: Keys,
    /// `[[pkcs11]]`, in file order.
    pub tokens: Vec<Pkcs11>,
    /// `[[client]]`, in file order. Empty: every client of the authority may use every key.
    pub clients: Vec<Client>,
    /// `[admin]`; absent: none.
    pub admin: Option<Bind>,
    /// `[log]` `level`. Default info.
    pub level: Level,
    /// `[ecdsa]` `batch`: several signatures on P-256 at once where the processor can. Default true.
    pub ecdsa_batch: bool,
    /// `[rsa]` `batch`: several operations at once likewise. Default true.
    pub rsa_batch: bool,
    /// `[sandbox]`
    pub sandbox: Sandbox,
}

/// A file or folder, and where it is named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedPath {
    /// Joined to the folder of the configuration.
    pub path: PathBuf,
    /// Position of its name in the configuration.
    pub at: At,
}

/// Address and identity of the server, and how much it takes on.
#[derive(Clone, Debug)]
pub struct Server {
    /// At least one address, each with the place where it is written.
    pub bind: Vec<(SocketAddr, At)>,
    /// PEM file of the server's own certificate chain and key.
    pub identity: NamedPath,
    /// PEM file of the authorities that sign clients' certificates.
    pub ca: NamedPath,
    /// How long a connection may say nothing. At least, and by default, 60 s are waited.
    pub idle_timeout: Duration,
    /// How long an operation may wait for its turn before it is refused. Default 5 s.
    pub timeout: Duration,
    /// How long SIGTERM waits for operations in progress. Default 5 s.
    pub drain_timeout: Duration,
    /// Connections held at once by the process. Default 1024.
    pub connections_max: usize,
    /// Cores to use. Default auto.
    pub workers: Workers,
    /// Account to run as once the sockets are bound and the keys read.
    pub user: Option<String>,
    /// Files of private keys that every account of the machine may read or change are used, with a warning. Default no: they
    /// are refused.
    pub allow_world_readable_keys: bool,
}

/// Keys that a hardware module holds, behind its maker's PKCS#11 library.
#[derive(Clone, Debug)]
pub struct Pkcs11 {
    /// The library.
    pub module: NamedPath,
    /// Which of the library's tokens.
    pub token: Token,
    /// A file that holds the user's PIN. Absent: the token wants none, or has a way of its own to ask for it.
    pub pin_file: Option<NamedPath>,
    /// Which keys; absent: all private keys of the token.
    pub keys: Option<Vec<KeyName>>,
    /// Operations at once, each with a thread and a session. Default 4.
    pub sessions: u16,
    /// How long an operation may take, waiting included; absent: `timeout` of `[server]`.
    pub timeout: Option<Duration>,
    /// Folders and devices that the library reads and writes while it works.
    pub module_paths: Vec<NamedPath>,
    /// Whether the library makes connections. Default false.
    pub network: bool,
    /// Position of the section.
    pub at: At,
}

/// One of a library's tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// Label that it was initialised with.
    Label(String),
    /// Number of the slot it is in.
    Slot(u64),
}

/// A key of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyName {
    /// CKA_LABEL
    Label(String),
    /// CKA_ID, written `id:` and hexadecimal digits.
    Id(Vec<u8>),
}

impl Token {
    /// Name of the token in messages, metrics and `pkcs11:` references.
    pub fn name(&self) -> String {
        match self {
            Token::Label(label) => label.clone(),
            Token::Slot(slot) => format!("slot {slot}"),
        }
    }
}

/// The private keys that are served.
#[derive(Clone, Debug)]
pub struct Keys {
    /// Files and folders of PEM or DER.
    pub paths: Vec<NamedPath>,
    /// Whether files are looked at again and again, and read when they have changed. Default true.
    pub watch: bool,
}

/// Rights of certificates with certain properties. All properties that are given must be there.
#[derive(Clone, Debug)]
pub struct Client {
    /// The subject's common name.
    pub common_name: Option<String>,
    /// A DNS name, IP address or URI among the subject alternative names.
    pub san: Option<String>,
    /// SHA-256 over the certificate.
    pub fingerprint: Option<[u8; 32]>,
    /// Which keys; absent: all.
    pub keys: Option<Vec<KeyReference>>,
    /// Operations that these keys may be used for. Default [`Operations::DEFAULT`].
    pub operations: Operations,
    /// Operations a second, of all links that show the same certificate; absent: any number.
    pub rate: Option<NonZeroU32>,
    /// Position of the section.
    pub at: At,
}

/// Operation that a private key is asked for, by the names that configurations have for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The bare private operation, which decrypts whatever was encrypted for the key, and signs anything.
    RsaDecrypt,
    /// RSASSA-PKCS1-v1_5 over MD5 and SHA-1, as TLS 1.0 has it.
    RsaPkcs1Md5Sha1,
    /// RSASSA-PKCS1-v1_5 with SHA-1.
    RsaPkcs1Sha1,
    /// The same with SHA-224.
    RsaPkcs1Sha224,
    /// The same with SHA-256.
    RsaPkcs1Sha256,
    /// The same with SHA-384.
    RsaPkcs1Sha384,
    /// The same with SHA-512.
    RsaPkcs1Sha512,
    /// RSASSA-PSS with SHA-256.
    RsaPssSha256,
    /// The same with SHA-384.
    RsaPssSha384,
    /// The same with SHA-512.
    RsaPssSha512,
    /// ECDSA over MD5 and SHA-1.
    EcdsaMd5Sha1,
    /// ECDSA over SHA-1.
    EcdsaSha1,
    /// The same over SHA-224.
    EcdsaSha224,
    /// The same over SHA-256.
    EcdsaSha256,
    /// The same over SHA-384.
    EcdsaSha384,
    /// The same over SHA-512.
    EcdsaSha512,
    /// Ed25519, over the message.
    Ed25519,
}

impl Operation {
    /// Every operation with its name.
    pub const ALL: [(Operation, &str); 17] = [
        (Operation::RsaDecrypt, "rsa-decrypt"),
        (Operation::RsaPkcs1Md5Sha1, "rsa-pkcs1-md5sha1"),
        (Operation::RsaPkcs1Sha1, "rsa-pkcs1-sha1"),
        (Operation::RsaPkcs1Sha224, "rsa-pkcs1-sha224"),
        (Operation::RsaPkcs1Sha256, "rsa-pkcs1-sha256"),
        (Operation::RsaPkcs1Sha384, "rsa-pkcs1-sha384"),
        (Operation::RsaPkcs1Sha512, "rsa-pkcs1-sha512"),
        (Operation::RsaPssSha256, "rsa-pss-sha256"),
        (Operation::RsaPssSha384, "rsa-pss-sha384"),
        (Operation::RsaPssSha512, "rsa-pss-sha512"),
        (Operation::EcdsaMd5Sha1, "ecdsa-md5sha1"),
        (Operation::EcdsaSha1, "ecdsa-sha1"),
        (Operation::EcdsaSha224, "ecdsa-sha224"),
        (Operation::EcdsaSha256, "ecdsa-sha256"),
        (Operation::EcdsaSha384, "ecdsa-sha384"),
        (Operation::EcdsaSha512, "ecdsa-sha512"),
        (Operation::Ed25519, "ed25519"),
    ];
}

/// A set of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operations(u32);

impl Operations {
    /// Nothing.
    pub const NONE: Operations = Operations(0);
    /// Operations that engines ask for: signatures of TLS 1.2 and 1.3 that are not known to be weak.
    pub const DEFAULT: Operations = Operations::NONE
        .and(Operation::RsaPkcs1Sha256)
        .and(Operation::RsaPkcs1Sha384)
        .and(Operation::RsaPkcs1Sha512)
        .and(Operation::RsaPssSha256)
        .and(Operation::RsaPssSha384)
        .and(Operation::RsaPssSha512)
        .and(Operation::EcdsaSha256)
        .and(Operation::EcdsaSha384)
        .and(Operation::EcdsaSha512)
        .and(Operation::Ed25519);

    /// With one more.
    #[must_use]
    pub const fn and(self, operation: Operation) -> Operations {
        Operations(self.0 | 1 << operation as u32)
    }

    /// Operations that are in either.
    #[must_use]
    pub const fn union(self, other: Operations) -> Operations {
        Operations(self.0 | other.0)
    }

    /// Whether an operation is in it.
    #[must_use]
    pub const fn contains(self, operation: Operation) -> bool {
        self.0 >> operation as u32 & 1 == 1
    }
}

/// A key, or the keys of a file or a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyReference {
    /// SHA-1 over the public key.
    Ski([u8; 20]),
    /// Whatever this file, or the files below this folder, hold.
    Path(NamedPath),
    /// `pkcs11:TOKEN` for all keys of a token, `pkcs11:TOKEN/LABEL` for those of that label; here without `pkcs11:`.
    Token(String),
}

/// Restrictions that the process puts on itself. All are on by default, where the kernel has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// System calls that serving does not need end the process.
    pub seccomp: bool,
    /// Files other than keys cannot be opened, and no connections made.
    pub landlock: bool,
    /// Memory is kept out of swap.
    pub lock_memory: bool,
}

//! The resolved model of `[acme.NAME]`: certificate authorities that issue certificates by ACME (RFC 8555).

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use super::{At, KeyType, Trust};
use crate::shown;

/// Index into [`Config::acmes`](super::Config::acmes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AcmeId(pub usize);

/// An ACME account with a certificate authority, and the certificates ordered there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Acme {
    /// Name of the account: the NAME of `[acme.NAME]`.
    #[serde(skip)]
    pub name: String,
    /// URL of the authority's directory, https. Default Let's Encrypt.
    pub directory: String,
    /// Whether the user has agreed to the authority's terms of service.
    pub terms_agreed: bool,
    /// Contact URLs for the authority: `mailto:`.
    pub contact: Vec<String>,
    /// Folder of this account: the configured `state` joined with the account's name.
    #[serde(skip)]
    pub state: PathBuf,
    /// Challenge that is used where the authority offers it. Default tls-alpn-01.
    pub challenge: AcmeChallenge,
    /// PEM file of the authorities that may sign the directory's own certificate. Absent: the system's.
    pub ca: Option<Trust>,
    /// External account binding, which ties the new account to one that the user has with the authority (RFC 8555
    /// §7.3.4).
    pub external_account: Option<ExternalAccount>,
    /// Remaining lifetime at which a certificate is renewed. Absent: when the authority suggests (RFC 9773), or else
    /// with a third of the lifetime left.
    #[serde(serialize_with = "shown::written")]
    pub renew_before: Option<Duration>,
    /// Certificate profile, by the authority's name for it. Absent: the authority's default.
    pub profile: Option<String>,
    /// Orders per hour at most. Default 20.
    pub orders_per_hour: u32,
    /// Delay after a first failure, doubled by each further one. Default 5 min.
    #[serde(serialize_with = "shown::written")]
    pub retry: Duration,
    /// Position of the account's name in the file.
    pub at: At,
}

/// Challenge by which the authority verifies control of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// tls-alpn-01: a handshake on port 443 (RFC 8737).
    TlsAlpn,
    /// http-01: a request on port 80 (RFC 8555 §8.3).
    Http,
}

shown::serialize_by_name!(AcmeChallenge);

impl AcmeChallenge {
    /// Name of the challenge in the configuration and in ACME.
    pub fn name(self) -> &'static str {
        match self {
            AcmeChallenge::TlsAlpn => "tls-alpn-01",
            AcmeChallenge::Http => "http-01",
        }
    }
}

/// External account binding: an account that the user has with the authority apart from ACME.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExternalAccount {
    /// Key identifier that the authority has given.
    pub id: String,
    /// File of the MAC key, in base64url.
    pub key: Trust,
}

/// A certificate that is ordered by ACME.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// Account that orders the certificate.
    pub acme: AcmeId,
    /// Host names of the certificate: lower case, sorted, without repeats.
    pub names: Vec<String>,
    /// File of chain and key for each key type.
    pub files: Vec<(KeyType, PathBuf)>,
}

impl Acme {
    /// Path of the certificate's file: its first host name, for people, and a fingerprint of all host names.
    pub fn file(&self, names: &[String], key_type: KeyType) -> PathBuf {
        let first = names.first().map_or("none", String::as_str);
        // The limit leaves room for the rest of the name within the 255 bytes of a file name.
        let short = first.get(..first.len().min(120)).unwrap_or("none");
        // A certificate by another authority, or of another profile, is another certificate, with a file of its own.
        let kind = [self.directory.as_str(), self.profile.as_deref().unwrap_or_default()];
        let sum = fingerprint(kind.into_iter().chain(names.iter().map(String::as_str)));
        self.state.join("certificates").join(format!("{short}-{sum:016x}.{}.pem", key_type.name()))
    }
}

impl Ordered {
    /// Name of the account that a path made by [`Acme::file`] belongs to.
    pub fn account_of(file: &Path) -> Option<&str> {
        file.parent()?.parent()?.file_name()?.to_str()
    }
}

impl Acme {
    /// Path of the file with the account's data, one for each directory URL.
    pub fn account_file(&self) -> PathBuf {
        self.state.join(format!("account-{:016x}.json", fingerprint([self.directory.as_str()].into_iter())))
    }
}

/// FNV-1a hash. A collision between two lists of the same user would have to be searched for on purpose, and the names
/// in the certificate of a file are compared all the same.
fn fingerprint<'a>(texts: impl Iterator<Item = &'a str>) -> u64 {
    let bytes = texts.flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

//! `[acme.NAME]`: authorities that certificates are ordered from (RFC 8555).

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{At, KeyType, Trust};

/// Index into [`Config::acmes`](super::Config::acmes).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AcmeId(pub usize);

/// An account with an authority, and what is kept of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acme {
    /// The NAME of `[acme.NAME]`.
    pub name: String,
    /// URL of the authority's directory, which is https. Default Let's Encrypt.
    pub directory: String,
    /// The user has agreed to the authority's terms of service.
    pub terms_agreed: bool,
    /// URLs by which the authority may reach somebody: `mailto:`.
    pub contact: Vec<String>,
    /// The folder of this account alone: `state` of the configuration and the name.
    pub state: PathBuf,
    /// The challenge that is taken where the authority offers it. Default tls-alpn-01.
    pub challenge: AcmeChallenge,
    /// PEM file with the authorities that the directory's own certificate may be of. Absent: the system's.
    pub ca: Option<Trust>,
    /// Ties the new account to one that the authority has otherwise (RFC 8555 §7.3.4).
    pub external_account: Option<ExternalAccount>,
    /// How long before its end a certificate is replaced. Absent: when the authority suggests (RFC 9773), or else with a
    /// third of its time left.
    pub renew_before: Option<Duration>,
    /// The kind of certificate that is ordered, by the authority's word for it. Absent: its default.
    pub profile: Option<String>,
    /// Default 20.
    pub orders_per_hour: u32,
    /// How long to wait after a first failure; each further one doubles it. Default 5 min.
    pub retry: Duration,
    /// Where the name is written.
    pub at: At,
}

/// How the authority is shown that a name leads here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcmeChallenge {
    /// A handshake on port 443 (RFC 8737).
    TlsAlpn,
    /// A request on port 80 (RFC 8555 §8.3).
    Http,
}

impl AcmeChallenge {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            AcmeChallenge::TlsAlpn => "tls-alpn-01",
            AcmeChallenge::Http => "http-01",
        }
    }
}

/// An account that the authority has of another kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalAccount {
    /// By what the authority knows the key.
    pub id: String,
    /// The file with the key, in base64url.
    pub key: Trust,
}

/// A certificate that is ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// From whom.
    pub acme: AcmeId,
    /// What it is for: lower case, in the order of the alphabet, each once.
    pub names: Vec<String>,
    /// One for each type of key, and the file in which chain and key will be.
    pub files: Vec<(KeyType, PathBuf)>,
}

impl Acme {
    /// Where a certificate for these names is kept: by its first name, which is for people, and by all of them.
    pub fn file(&self, names: &[String], key_type: KeyType) -> PathBuf {
        let first = names.first().map_or("none", String::as_str);
        // Room for the rest of the name within the 255 bytes of a file's.
        let short = first.get(..first.len().min(120)).unwrap_or("none");
        // What another authority has issued, or of another kind, is another certificate.
        let kind = [self.directory.as_str(), self.profile.as_deref().unwrap_or_default()];
        let sum = fingerprint(kind.into_iter().chain(names.iter().map(String::as_str)));
        self.state.join("certificates").join(format!("{short}-{sum:016x}.{}.pem", key_type.name()))
    }
}

impl Ordered {
    /// The NAME of the account that has a file of [`Acme::file`].
    pub fn account_of(file: &Path) -> Option<&str> {
        file.parent()?.parent()?.file_name()?.to_str()
    }
}

impl Acme {
    /// Where the account with this very authority is kept.
    pub fn account_file(&self) -> PathBuf {
        self.state.join(format!("account-{:016x}.json", fingerprint([self.directory.as_str()].into_iter())))
    }
}

/// FNV-1a. Two lists of one user's with the same sum would have to be looked for, and the names of what is in a file are
/// compared all the same.
fn fingerprint<'a>(texts: impl Iterator<Item = &'a str>) -> u64 {
    let bytes = texts.flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

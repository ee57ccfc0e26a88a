//! Credentials: chains with their keys, as they are kept until a client asks for them. 50,000 of them take little more
//! memory than their files take on disk.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use propylon_config::At;
use propylon_crypto::{Key, PrivateKey, RemoteKey, Ski};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use super::file_stamp::FileStamp;
use crate::provider::compression::Compressed;
use crate::provider::signing::KeyKind;

/// A certificate of one profile, with its chain, key and OCSP response.
pub(crate) struct Credential {
    /// Contents of the files, shared with other credentials made from the same files.
    pub material: Arc<Material>,
    /// Names of the certificate for which an earlier certificate is served.
    pub hidden: Vec<Box<str>>,
    /// The certificate is marked as default, for clients that send no name that any certificate is for.
    pub default: bool,
    pub staple: Option<Staple>,
    /// Position in the configuration.
    pub at: At,
    /// Compressed Certificate messages, without and with the staple; empty where the certificate is sent uncompressed.
    pub compressed: OnceLock<[Option<Arc<Compressed>>; 2]>,
}

/// Contents of the files of a chain and its key.
pub(crate) struct Material {
    pub chain: Chain,
    pub key: CredentialKey,
    pub kind: KeyKind,
    /// DNS names of the certificate: lower case, no trailing dot, maybe `*.` in front.
    pub names: Box<[Box<str>]>,
    /// IP addresses of the certificate.
    pub addresses: Box<[IpAddr]>,
    pub validity: Validity,
    /// Clients must refuse the certificate without a stapled response (RFC 7633).
    pub must_staple: bool,
    /// File of the chain.
    pub path: PathBuf,
    /// File of the key, where it is another.
    pub key_path: Option<PathBuf>,
    /// Metadata of the files when they were read; absent where they must be read again to be sure.
    pub stamps: Option<FileStamps>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStamps {
    pub chain: FileStamp,
    pub key: Option<FileStamp>,
}

/// Validity period, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub not_before: i64,
    pub not_after: i64,
}

impl Validity {
    /// Whether a moment is in the period; both ends belong to it (RFC 5280 §4.1.2.5).
    pub fn holds(self, now: i64) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }
}

/// A leaf certificate and its issuers, which many leaves share.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Chain {
    pub leaf: CertificateDer<'static>,
    pub issuers: Issuers,
}

pub(crate) type Issuers = Arc<[CertificateDer<'static>]>;

/// Keeps one copy of the issuers that many chains have in common.
#[derive(Default)]
pub(crate) struct Interner(Mutex<HashSet<Issuers>>);

/// An OCSP response to staple, and until when.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Staple {
    pub response: Vec<u8>,
    /// Time of the next update, in seconds since 1970; absent where the response does not say.
    pub until: Option<i64>,
}

/// Location of a certificate's key.
#[derive(PartialEq, Eq)]
pub(crate) enum CredentialKey {
    Local(Zeroizing<PrivateKeyDer<'static>>),
    /// The profile's signer holds the key.
    Remote(RemoteKey),
    /// The key process of this engine holds the key (`keys.isolate`).
    KeyProcess(RemoteKey),
}

/// Reason why a certificate is chosen for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameMatch {
    /// The certificate has the name that the client asked for.
    Exact,
    /// The certificate has a wildcard that matches the name.
    Wildcard,
    /// No certificate matches the name, or the client asked for none.
    Default,
}

impl Credential {
    /// Names for which this certificate is served.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.material.names.iter().filter(|name| !self.hidden.contains(name)).map(|name| &**name)
    }

    /// Compresses the Certificate messages, once for all cores and all credentials of the same parts: brotli is slow.
    pub fn compress(&self) {
        self.compressed.get_or_init(|| {
            let chain = &self.material.chain;
            let with_staple = self.staple.as_ref().map(|staple| Compressed::new(chain.iter(), Some(&staple.response)));
            [Some(Compressed::new(chain.iter(), None)), with_staple].map(|each| each.map(Arc::new))
        });
    }

    pub fn matches(&self, name: Option<&str>) -> NameMatch {
        let name = name.map(|name| name.strip_suffix('.').unwrap_or(name));
        let Some(name) = name else { return NameMatch::Default };
        let parent = name.split_once('.').map(|(_, parent)| parent);
        if self.names().any(|own| *own == *name) {
            NameMatch::Exact
        } else if self.names().any(|own| own.strip_prefix("*.").is_some_and(|own| Some(own) == parent)) {
            NameMatch::Wildcard
        } else {
            NameMatch::Default
        }
    }

    /// Whether both are the same to clients. Files may have been rewritten with the same content.
    pub fn same_as(&self, other: &Credential) -> bool {
        let same_material = || {
            let (one, other) = (&self.material, &other.material);
            Arc::ptr_eq(one, other) || (one.chain == other.chain && one.key == other.key)
        };
        self.hidden == other.hidden && self.default == other.default && self.staple == other.staple && same_material()
    }
}

impl Material {
    /// Whether one of the files is `path`, or is in the folder `path`.
    pub fn is_of(&self, path: &Path) -> bool {
        self.path.starts_with(path) || self.key_path.as_ref().is_some_and(|own| own.starts_with(path))
    }

    /// Sort key among the certificates of one folder: those in one file first, by name; then by the key's file; then
    /// those with remote keys.
    pub fn place(&self) -> (u8, &Path) {
        match &self.key_path {
            Some(key_path) => (1, key_path),
            None if self.is_remote() => (2, &self.path),
            None => (0, &self.path),
        }
    }

    /// The key, parsed anew for the caller. Only its DER is kept: an expanded key takes kilobytes.
    pub fn key(&self) -> Key {
        match &self.key {
            CredentialKey::Local(key) => {
                Key::Local(PrivateKey::from_der(key.secret_der()).expect("parsed once when it was loaded"))
            }
            CredentialKey::Remote(key) | CredentialKey::KeyProcess(key) => Key::Remote(key.clone()),
        }
    }

    /// Whether the key is at the profile's signer.
    pub fn is_remote(&self) -> bool {
        matches!(self.key, CredentialKey::Remote(_))
    }

    /// Whether the key is in another process, whose signatures have to be waited for.
    pub fn is_elsewhere(&self) -> bool {
        !matches!(self.key, CredentialKey::Local(_))
    }

    /// Name of the key at this engine's key process, if it is there.
    pub fn key_process_ski(&self) -> Option<Ski> {
        match &self.key {
            CredentialKey::KeyProcess(key) => Some(key.ski),
            CredentialKey::Local(_) | CredentialKey::Remote(_) => None,
        }
    }
}

impl Chain {
    /// Splits a chain, which is not empty, into the leaf and its issuers.
    pub fn new(mut chain: Vec<CertificateDer<'static>>, interner: &Interner) -> Chain {
        let issuers = interner.intern(chain.split_off(1));
        // The buffer of a PEM reader has spare capacity.
        let leaf = chain.pop().map_or_else(|| Vec::new().into(), |leaf| leaf.as_ref().to_vec().into());
        Chain { leaf, issuers }
    }

    pub fn iter(&self) -> impl Iterator<Item = &CertificateDer<'static>> + Clone {
        std::iter::once(&self.leaf).chain(self.issuers.iter())
    }
}

impl Interner {
    /// An interner that knows the issuers of these credentials.
    pub fn of<'a>(credentials: impl Iterator<Item = &'a Arc<Credential>>) -> Interner {
        let known = credentials.map(|credential| credential.material.chain.issuers.clone());
        Interner(Mutex::new(known.collect()))
    }

    fn intern(&self, issuers: Vec<CertificateDer<'static>>) -> Issuers {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(issuers.as_slice()) {
            return known.clone();
        }
        let issuers: Issuers = issuers.iter().map(|issuer| issuer.as_ref().to_vec().into()).collect();
        known.insert(issuers.clone());
        issuers
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A new one, for `shop.example`.
    pub fn credential() -> Arc<Credential> {
        let key = rcgen::KeyPair::generate().unwrap();
        let leaf = rcgen::CertificateParams::new(vec!["shop.example".into()]).unwrap().self_signed(&key).unwrap();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let material = Material {
            chain: Chain::new(vec![leaf.der().clone()], &Interner::default()),
            key: CredentialKey::Local(Zeroizing::new(key)),
            kind: KeyKind::P256,
            names: ["shop.example".into()].into(),
            addresses: Box::default(),
            validity: Validity { not_before: 0, not_after: i64::MAX },
            must_staple: false,
            path: PathBuf::new(),
            key_path: None,
            stamps: None,
        };
        Arc::new(Credential {
            material: Arc::new(material),
            hidden: Vec::new(),
            default: false,
            staple: None,
            at: At::default(),
            compressed: OnceLock::new(),
        })
    }

    fn der(bytes: &[u8]) -> CertificateDer<'static> {
        bytes.to_vec().into()
    }

    /// One that differs in what is changed.
    fn changed(from: &Credential, change: impl FnOnce(&mut Credential)) -> Credential {
        let mut other = Credential {
            material: Arc::clone(&from.material),
            hidden: from.hidden.clone(),
            default: from.default,
            staple: from.staple.clone(),
            at: from.at,
            compressed: OnceLock::new(),
        };
        change(&mut other);
        other
    }

    /// As if from files that were written anew.
    fn material(chain_of: &Material, key_of: &Material) -> Arc<Material> {
        let CredentialKey::Local(key) = &key_of.key else { panic!("a key of ours") };
        Arc::new(Material {
            chain: chain_of.chain.clone(),
            key: CredentialKey::Local(Zeroizing::new(key.clone_key())),
            names: chain_of.names.clone(),
            addresses: Box::default(),
            path: PathBuf::new(),
            key_path: None,
            ..*chain_of
        })
    }

    /// A certificate that was renewed with the same key is another one.
    #[test]
    fn clients_see_a_difference_in_chain_key_names_and_staple() {
        let (one, other) = (credential(), credential());
        let (ours, theirs) = (&one.material, &other.material);
        let same = |change: &dyn Fn(&mut Credential)| one.same_as(&changed(&one, change));
        assert!(same(&|_| {}));
        assert!(same(&|it| it.material = material(ours, ours)), "files that hold what they held");
        assert!(!same(&|it| it.material = material(theirs, ours)));
        assert!(!same(&|it| it.material = material(ours, theirs)));
        assert!(!same(&|it| it.default = true));
        assert!(!same(&|it| it.hidden = vec!["shop.example".into()]));
        assert!(!same(&|it| it.staple = Some(Staple { response: vec![1], until: None })));
    }

    #[test]
    fn a_certificate_is_in_date_from_its_first_second_to_its_last() {
        let validity = Validity { not_before: 10, not_after: 20 };
        let holds: Vec<i64> = (0..30).filter(|now| validity.holds(*now)).collect();
        assert_eq!(holds, (10..=20).collect::<Vec<_>>());
    }

    #[test]
    fn a_wildcard_stands_for_one_label() {
        let mut it = Arc::into_inner(credential()).unwrap();
        let names: Box<[Box<str>]> = ["*.one.example".into(), "two.example".into()].into();
        it.material = Arc::new(Material { names, ..Arc::into_inner(it.material).unwrap() });
        for (name, expected) in [
            (Some("a.one.example"), NameMatch::Wildcard),
            (Some("a.one.example."), NameMatch::Wildcard),
            (Some("two.example"), NameMatch::Exact),
            (Some("two.example."), NameMatch::Exact),
            (Some("one.example"), NameMatch::Default),
            (Some("a.b.one.example"), NameMatch::Default),
            (Some("a.bone.example"), NameMatch::Default),
            (Some("a.two.example"), NameMatch::Default),
            (None, NameMatch::Default),
        ] {
            assert_eq!(it.matches(name), expected, "{name:?}");
        }
    }

    #[test]
    fn chains_share_what_is_behind_their_leaves_and_keep_a_leaf_of_their_own() {
        let interner = Interner::default();
        let chain = |leaf: &[u8], issuer: &[u8]| Chain::new(vec![der(leaf), der(issuer)], &interner);
        let (one, other, third) = (chain(b"a", b"issuer"), chain(b"b", b"issuer"), chain(b"c", b"another"));
        assert!(Arc::ptr_eq(&one.issuers, &other.issuers));
        assert!(!Arc::ptr_eq(&one.issuers, &third.issuers));
        assert_eq!(one.iter().map(AsRef::as_ref).collect::<Vec<_>>(), [&b"a"[..], b"issuer"]);
        let alone = |leaf: &[u8]| Chain::new(vec![der(leaf)], &interner);
        assert!(Arc::ptr_eq(&alone(b"d").issuers, &alone(b"e").issuers));
    }
}

//! A chain and its key, found to belong together, in the form in which they wait until a client asks for them: 50,000
//! of them are to take little more memory than their files take on disk.

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

/// What is served to clients of one profile.
pub(crate) struct Credential {
    /// Shared with whatever took this one's place and was made of the same files.
    pub material: Arc<Material>,
    /// Of the material's names, those that an earlier certificate stands for.
    pub hidden: Vec<Box<str>>,
    /// Meant for clients that name nothing that any certificate stands for.
    pub default: bool,
    pub staple: Option<Staple>,
    /// Where the configuration names it.
    pub at: At,
    /// The message that it is sent in, without and with the staple; empty where it goes as it is.
    pub compressed: OnceLock<[Option<Arc<Compressed>>; 2]>,
}

/// What the files of a chain and its key hold.
pub(crate) struct Material {
    pub chain: Chain,
    pub key: CredentialKey,
    pub kind: KeyKind,
    /// DNS names it is for: lower case, no trailing dot, maybe `*.` in front.
    pub names: Box<[Box<str>]>,
    /// IP addresses it is for.
    pub addresses: Box<[IpAddr]>,
    pub validity: Validity,
    /// Clients are to refuse it without a stapled response (RFC 7633).
    pub must_staple: bool,
    /// The chain's file.
    pub path: PathBuf,
    /// The key's, where it is another.
    pub key_path: Option<PathBuf>,
    /// What the files looked like when they were read; absent where they must be read again to be sure.
    pub stamps: Option<FileStamps>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStamps {
    pub chain: FileStamp,
    pub key: Option<FileStamp>,
}

/// Seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    pub not_before: i64,
    pub not_after: i64,
}

impl Validity {
    /// Both ends belong to it (RFC 5280 §4.1.2.5).
    pub fn holds(self, now: i64) -> bool {
        (self.not_before..=self.not_after).contains(&now)
    }
}

/// A leaf, and those that have issued it, which many leaves share.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Chain {
    pub leaf: CertificateDer<'static>,
    pub issuers: Issuers,
}

pub(crate) type Issuers = Arc<[CertificateDer<'static>]>;

/// Keeps one copy of what many chains have behind their leaves.
#[derive(Default)]
pub(crate) struct Interner(Mutex<HashSet<Issuers>>);

/// An OCSP response that clients are shown, for as long as it may be.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Staple {
    pub response: Vec<u8>,
    /// Seconds since 1970; absent: newer information is always to be had, and this will do.
    pub until: Option<i64>,
}

/// Where a certificate's key is.
#[derive(PartialEq, Eq)]
pub(crate) enum CredentialKey {
    Local(Zeroizing<PrivateKeyDer<'static>>),
    /// At the profile's signer.
    Remote(RemoteKey),
    /// In the process that holds this process's keys.
    Beside(RemoteKey),
}

/// Why a certificate is shown to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameMatch {
    /// It is for the name that the client asked for.
    Exact,
    /// It is for all names beside that one.
    Wildcard,
    /// No other is for that name, or the client asked for none.
    Default,
}

impl Credential {
    /// Those that it stands for.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.material.names.iter().filter(|name| !self.hidden.contains(name)).map(|name| &**name)
    }

    /// Brotli takes its time: once for all cores, and for whatever is made of the same parts.
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

    /// Files may have been written anew with what they held.
    pub fn same_as(&self, other: &Credential) -> bool {
        let same_material = || {
            let (one, other) = (&self.material, &other.material);
            Arc::ptr_eq(one, other) || (one.chain == other.chain && one.key == other.key)
        };
        self.hidden == other.hidden && self.default == other.default && self.staple == other.staple && same_material()
    }
}

impl Material {
    /// Whether one of its files is this one, or in this folder.
    pub fn is_of(&self, path: &Path) -> bool {
        self.path.starts_with(path) || self.key_path.as_ref().is_some_and(|own| own.starts_with(path))
    }

    /// Its place among those of one folder: what is in one file first, by name; then by the key's file; then those
    /// whose keys are elsewhere.
    pub fn place(&self) -> (u8, &Path) {
        match &self.key_path {
            Some(key_path) => (1, key_path),
            None if self.is_remote() => (2, &self.path),
            None => (0, &self.path),
        }
    }

    /// A handle on its key of the caller's own. What is kept is DER: a key that is ready for use takes kilobytes.
    pub fn key(&self) -> Key {
        match &self.key {
            CredentialKey::Local(key) => {
                Key::Local(PrivateKey::from_der(key.secret_der()).expect("parsed once when it was loaded"))
            }
            CredentialKey::Remote(key) | CredentialKey::Beside(key) => Key::Remote(key.clone()),
        }
    }

    /// At the profile's signer.
    pub fn is_remote(&self) -> bool {
        matches!(self.key, CredentialKey::Remote(_))
    }

    /// Its signatures are somebody else's to make, and are waited for.
    pub fn is_elsewhere(&self) -> bool {
        !matches!(self.key, CredentialKey::Local(_))
    }

    /// Of a key in the process beside this one: its name there.
    pub fn ski_beside(&self) -> Option<Ski> {
        match &self.key {
            CredentialKey::Beside(key) => Some(key.ski),
            CredentialKey::Local(_) | CredentialKey::Remote(_) => None,
        }
    }
}

impl Chain {
    /// The leaf first. Of a chain that was found to have one.
    pub fn new(mut chain: Vec<CertificateDer<'static>>, interner: &Interner) -> Chain {
        let issuers = interner.intern(chain.split_off(1));
        // What a PEM file is read into has room to spare.
        let leaf = chain.pop().map_or_else(|| Vec::new().into(), |leaf| leaf.as_ref().to_vec().into());
        Chain { leaf, issuers }
    }

    pub fn iter(&self) -> impl Iterator<Item = &CertificateDer<'static>> + Clone {
        std::iter::once(&self.leaf).chain(self.issuers.iter())
    }
}

impl Interner {
    /// Knows what these have.
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

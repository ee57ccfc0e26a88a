//! Which certificate a client gets.

use std::sync::Arc;

use propylon_config::KeyType;
use propylon_crypto::{Key, PrivateKey};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{NamedGroup, SignatureScheme};
use rustls_pki_types::UnixTime;

use crate::compression::PerCore;
use crate::facts::Scheme;
use crate::overheard;
use crate::profile::{Credential, CredentialKey, Names, Profile};
use crate::signing::CertificateKey;

/// One core's certificates and signing keys, and for which names they stand.
#[derive(Debug)]
pub(crate) struct Resolver {
    names: Arc<Names>,
    /// Indexed as `names` says.
    keys: Vec<Entry>,
    /// Whether some key signs elsewhere.
    pub remote: bool,
}

#[derive(Debug)]
struct Entry {
    key_type: KeyType,
    key: Arc<CertifiedKey>,
    /// The same with an OCSP response, and until when that may be shown, in seconds since 1970.
    stapled: Option<(Arc<CertifiedKey>, Option<i64>)>,
    compressed: [Option<PerCore>; 2],
}

impl Entry {
    fn new(credential: &Credential, key: Key) -> Entry {
        let key = CertifiedKey::new(credential.chain.clone(), Arc::new(CertificateKey::new(key)));
        let stapled = credential.staple.as_ref().map(|staple| {
            let stapled = CertifiedKey { ocsp: Some(staple.response.clone()), ..key.clone() };
            (Arc::new(stapled), staple.until)
        });
        let compressed = credential.compressed.clone().map(|each| each.map(Arc::new));
        Entry { key_type: credential.kind.key_type(), key: Arc::new(key), stapled, compressed }
    }

    fn current(&self) -> &Arc<CertifiedKey> {
        match &self.stapled {
            Some((stapled, until)) if until.is_none_or(|until| now() < until) => stapled,
            _ => &self.key,
        }
    }
}

fn now() -> i64 {
    UnixTime::now().as_secs() as i64
}

impl Resolver {
    pub fn new(profile: &Profile, names: Arc<Names>) -> Resolver {
        let keys: Vec<Key> = profile.credentials.iter().map(key_of).collect();
        let remote = keys.iter().any(|key| matches!(key, Key::Remote(_)));
        let keys = profile.credentials.iter().zip(keys).map(|(credential, key)| Entry::new(credential, key)).collect();
        Resolver { names, keys, remote }
    }
}

/// This core's own handle on a credential's key.
pub(crate) fn key_of(credential: &Credential) -> Key {
    match &credential.key {
        CredentialKey::Local(key) => {
            Key::Local(PrivateKey::from_der(key.secret_der()).expect("parsed once when it was loaded"))
        }
        CredentialKey::Remote(key) => Key::Remote(key.clone()),
    }
}

impl ResolvesServerCert for Resolver {
    /// The first certificate for the name that the client can verify. When it can verify none, the first of all: the
    /// library then refuses with the alert that says so.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name();
        let verifiable = |index: &&usize| can_verify(&hello, &self.keys[**index].key);
        let mut candidates = self.names.candidates(name);
        let Some(chosen) = candidates.clone().find(verifiable).or_else(|| candidates.next()) else {
            overheard::note(|heard| {
                heard.server_name = name.map(Box::from);
                heard.no_certificate = true;
            });
            return None;
        };
        let entry = &self.keys[*chosen];
        let signer = entry.key.key.choose_scheme(hello.signature_schemes());
        overheard::note(|heard| {
            heard.server_name = name.map(Box::from);
            heard.certificate = Some(entry.key_type);
            heard.signature = signer.and_then(|signer| Scheme::of(signer.scheme()));
            heard.compressed = entry.compressed.clone();
        });
        Some(entry.current().clone())
    }
}

/// Whether the client has offered a signature scheme for this key, and, up to TLS 1.2, the key's curve: there the list of
/// groups speaks of certificates as well (RFC 8422 §5.1), in TLS 1.3 the scheme says it all (RFC 8446 §4.2.3).
fn can_verify(hello: &ClientHello<'_>, key: &CertifiedKey) -> bool {
    let Some(signer) = key.key.choose_scheme(hello.signature_schemes()) else { return false };
    let curve = match signer.scheme() {
        SignatureScheme::ECDSA_NISTP256_SHA256 => NamedGroup::secp256r1,
        SignatureScheme::ECDSA_NISTP384_SHA384 => NamedGroup::secp384r1,
        SignatureScheme::ECDSA_NISTP521_SHA512 => NamedGroup::secp521r1,
        _ => return true,
    };
    let offers_tls13 = hello.cipher_suites().iter().any(|suite| u16::from(*suite) >> 8 == TLS13_SUITES);
    offers_tls13 || hello.named_groups().is_none_or(|groups| groups.contains(&curve))
}

/// First byte of the suites of TLS 1.3 (RFC 8446 §B.4), which no earlier version has.
const TLS13_SUITES: u16 = 0x13;

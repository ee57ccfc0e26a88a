//! Which certificate a client gets.

use std::sync::Arc;

use propylon_config::KeyType;
use propylon_crypto::{Key, PrivateKey};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{NamedGroup, SignatureScheme};

use crate::facts::Scheme;
use crate::overheard;
use crate::profile::{Credential, CredentialKey, Names, Profile};
use crate::signing::CertificateKey;

/// One core's certificates and signing keys, and for which names they stand.
#[derive(Debug)]
pub(crate) struct Resolver {
    names: Arc<Names>,
    /// Indexed as `names` says.
    keys: Vec<(KeyType, Arc<CertifiedKey>)>,
    /// Whether some key signs elsewhere.
    pub remote: bool,
}

impl Resolver {
    pub fn new(profile: &Profile) -> Resolver {
        let keys: Vec<Key> = profile.credentials.iter().map(key_of).collect();
        let remote = keys.iter().any(|key| matches!(key, Key::Remote(_)));
        let certified = |(credential, key): (&Credential, Key)| {
            let key = CertifiedKey::new(credential.chain.clone(), Arc::new(CertificateKey::new(key)));
            (credential.kind.key_type(), Arc::new(key))
        };
        let keys = profile.credentials.iter().zip(keys).map(certified).collect();
        Resolver { names: profile.names.clone(), keys, remote }
    }
}

/// This core's own handle on a credential's key.
fn key_of(credential: &Credential) -> Key {
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
        let verifiable = |index: &&usize| can_verify(&hello, &self.keys[**index].1);
        let mut candidates = self.names.candidates(name);
        let chosen = candidates.clone().find(verifiable).or_else(|| candidates.next())?;
        let (key_type, key) = &self.keys[*chosen];
        let signer = key.key.choose_scheme(hello.signature_schemes());
        overheard::note(|heard| {
            heard.server_name = name.map(Box::from);
            heard.certificate = Some(*key_type);
            heard.signature = signer.and_then(|signer| Scheme::of(signer.scheme()));
        });
        Some(key.clone())
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

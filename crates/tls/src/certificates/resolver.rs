//! Choice of the certificate for a client.

use std::fmt;
use std::sync::Arc;

use propylon_config::KeyType;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{NamedGroup, SignatureScheme};

use crate::certificates::credential::Credential;
use crate::certificates::keys;
use crate::certificates::names::Names;
use crate::provider::captured;
use crate::provider::facts::Scheme;
use crate::provider::signing::KeyKind;
use crate::provider::signing::schemes;

/// Certificate resolver of the library. It is read-only; reference counts that handshakes change are in each core's
/// cache, see `keys`.
pub(crate) struct Resolver {
    names: Arc<Names>,
    /// Credentials that `names` has the indices of.
    credentials: Arc<[Arc<Credential>]>,
}

impl Resolver {
    /// Resolver of these credentials, for which `names` was made.
    pub fn new(names: Arc<Names>, credentials: &Arc<[Arc<Credential>]>) -> Resolver {
        Resolver { names, credentials: Arc::clone(credentials) }
    }
}

impl Resolver {
    /// The first certificate, or where it is not valid now the first of the others that is. Where none is valid the
    /// first is used all the same: clients that check refuse it by themselves.
    fn in_date(&self, first: u32, mut others: impl Iterator<Item = u32> + Clone) -> u32 {
        let holds = |index: u32, now| self.credentials[index as usize].material.validity.holds(now);
        // Fast path: most names have one certificate.
        if others.clone().next().is_none() {
            return first;
        }
        let now = keys::now();
        if holds(first, now) {
            return first;
        }
        others.find(|&index| holds(index, now)).unwrap_or(first)
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Resolver {
    /// The first certificate for the name that the client can verify and that is valid now; an expired one where there
    /// is no other. A certificate of the type that the client's session began with is preferred. Where the client can
    /// verify none, the first is returned: the library then refuses with the right alert.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name();
        let kind = |index: u32| self.credentials[index as usize].material.kind;
        let mut candidates = self.names.candidates(name);
        let verifiable = candidates.clone().filter(|&index| verifying_scheme(&hello, kind(index)).is_some());
        // A session is resumed only with its suite, which is for the key type that it began with.
        let began_with_rsa = captured::resumption().began_with_rsa;
        let begun_with = |index: &u32| began_with_rsa == Some(kind(*index).key_type() == KeyType::Rsa);
        let known = verifiable.clone().find(begun_with);
        let mut verifiable = verifiable;
        let verifiable = known.or_else(|| verifiable.next().map(|first| self.in_date(first, verifiable)));
        let Some(chosen) = verifiable.or_else(|| candidates.next()) else {
            captured::record(|captured| {
                captured.server_name = name.map(Box::from);
                captured.no_certificate = true;
            });
            return None;
        };
        let entry = keys::ready(&self.credentials[chosen as usize]);
        let kind = kind(chosen);
        let current = entry.current().clone();
        captured::record(|captured| {
            captured.server_name = name.map(Box::from);
            captured.certificate = Some(kind.key_type());
            captured.signature = offered_scheme(&hello, kind).and_then(Scheme::of);
            captured.compressed = entry.compressed;
        });
        Some(current)
    }
}

/// Signature scheme of a key of this kind for this client.
fn offered_scheme(hello: &ClientHello<'_>, kind: KeyKind) -> Option<SignatureScheme> {
    schemes(kind).iter().copied().find(|scheme| hello.signature_schemes().contains(scheme))
}

/// Same as [`offered_scheme`], where the client also knows the key's curve. Up to TLS 1.2 the list of groups applies to
/// certificates as well (RFC 8422 §5.1); in TLS 1.3 the scheme implies the curve (RFC 8446 §4.2.3).
fn verifying_scheme(hello: &ClientHello<'_>, kind: KeyKind) -> Option<SignatureScheme> {
    let scheme = offered_scheme(hello, kind)?;
    let curve = match kind {
        KeyKind::P256 => NamedGroup::secp256r1,
        KeyKind::P384 => NamedGroup::secp384r1,
        KeyKind::P521 => NamedGroup::secp521r1,
        KeyKind::Ed25519 | KeyKind::Rsa => return Some(scheme),
    };
    let offers_tls13 = hello.cipher_suites().iter().any(|suite| u16::from(*suite) >> 8 == TLS13_SUITES);
    let knows_curve = offers_tls13 || hello.named_groups().is_none_or(|groups| groups.contains(&curve));
    knows_curve.then_some(scheme)
}

/// First byte of the suites of TLS 1.3 (RFC 8446 §B.4), which no earlier version has.
const TLS13_SUITES: u16 = 0x13;

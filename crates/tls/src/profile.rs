//! One `[tls.NAME]`, loaded: which certificates there are, and for which names.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use propylon_config::{KeyType, TlsPolicy, TlsProfile};
use propylon_crypto::RemoteKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use crate::acceptor::Acceptor;
use crate::client_auth::ClientTrust;
use crate::finding::{Finding, Severity};
use crate::load;
use crate::sessions::Sessions;
use crate::tickets::Tickets;

/// Shared by all cores, which only make their acceptors of it.
pub struct Profile {
    pub(crate) name: Box<str>,
    pub(crate) policy: TlsPolicy,
    /// Most preferred first.
    pub(crate) alpn: Vec<Vec<u8>>,
    /// In the order in which they were configured; at least one.
    pub(crate) credentials: Vec<Credential>,
    pub(crate) names: Arc<Names>,
    /// Given after a full handshake; 0: none at all.
    pub(crate) tickets: u8,
    pub(crate) sessions: Arc<Sessions>,
    /// Absent: clients are not asked who they are.
    pub(crate) client_trust: Option<ClientTrust>,
    /// Clients' fingerprints are computed.
    pub(crate) ja4: bool,
}

impl Profile {
    /// Reads and checks the certificates. The findings beside a profile are warnings; those instead of one hold at
    /// least one error. Either way they are all there are, in the order of the configuration.
    ///
    /// `alpn` lists protocols, most preferred first; a client that offers some but none of these is refused.
    pub fn load(profile: &TlsProfile, alpn: &[&[u8]]) -> Result<(Profile, Vec<Finding>), Vec<Finding>> {
        let (credentials, mut findings) = load::credentials(profile);
        let client_trust = profile.client_auth.as_ref().and_then(|auth| {
            let (trust, more) = load::client_trust(auth);
            findings.extend(more);
            trust
        });
        if findings.iter().any(|finding| finding.severity == Severity::Error) {
            return Err(findings);
        }
        let names = Arc::new(Names::new(&credentials, &profile.prefer));
        let profile = Profile {
            name: profile.name.as_str().into(),
            policy: profile.policy,
            alpn: alpn.iter().map(|protocol| protocol.to_vec()).collect(),
            credentials,
            names,
            tickets: profile.resumption.tickets,
            sessions: Arc::new(Sessions::new(profile.resumption.session_ids)),
            client_trust,
            ja4: profile.ja4,
        };
        Ok((profile, findings))
    }

    /// For one core: builds its own configuration, resolver and signing keys, so that cores share nothing but
    /// `tickets`, which they only read.
    pub fn acceptor(&self, tickets: &Arc<Tickets>) -> Acceptor {
        Acceptor::new(self, tickets)
    }

    /// Certificates whose keys are elsewhere.
    pub fn remote_keys(&self) -> usize {
        self.credentials.iter().filter(|credential| matches!(credential.key, CredentialKey::Remote(_))).count()
    }

    /// Forgets the sessions that are too old. For the main thread, now and then.
    pub fn purge_sessions(&self, now: SystemTime) {
        self.sessions.purge(now);
    }

    /// What every ticket is bound to.
    pub(crate) fn ticket_context(&self) -> Box<[u8]> {
        ticket_context(&self.name)
    }
}

/// What is asked of clients beyond a handshake is in the ticket itself; see `client_auth`.
fn ticket_context(name: &str) -> Box<[u8]> {
    [b"propylon ticket 1", name.as_bytes()].concat().into()
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A chain and its key, found to belong together.
pub(crate) struct Credential {
    /// The leaf first.
    pub chain: Vec<CertificateDer<'static>>,
    pub key: CredentialKey,
    pub kind: KeyKind,
    /// DNS names it is for: lower case, no trailing dot, maybe `*.` in front.
    pub names: Vec<Box<str>>,
}

/// Where a certificate's key is.
#[derive(PartialEq, Eq)]
pub(crate) enum CredentialKey {
    Local(Zeroizing<PrivateKeyDer<'static>>),
    /// At the profile's signer.
    Remote(RemoteKey),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyKind {
    P256,
    P384,
    P521,
    Ed25519,
    Rsa,
}

impl KeyKind {
    /// Ed25519 stands where ECDSA stands in `prefer`.
    pub fn key_type(self) -> KeyType {
        match self {
            KeyKind::Rsa => KeyType::Rsa,
            KeyKind::P256 | KeyKind::P384 | KeyKind::P521 | KeyKind::Ed25519 => KeyType::Ecdsa,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            KeyKind::P256 => "P-256",
            KeyKind::P384 => "P-384",
            KeyKind::P521 => "P-521",
            KeyKind::Ed25519 => "Ed25519",
            KeyKind::Rsa => "RSA",
        }
    }
}

/// Which certificates stand for a name, by their index, the preferred ones first.
#[derive(Debug)]
pub(crate) struct Names {
    exact: HashMap<Box<str>, Vec<usize>>,
    /// By what follows `*.`; stands for one label (RFC 9525 §6.3).
    wildcard: HashMap<Box<str>, Vec<usize>>,
    /// For clients that name nothing, or nothing we have: the first certificate, and others for the same names.
    default: Vec<usize>,
}

impl Names {
    fn new(credentials: &[Credential], prefer: &[KeyType]) -> Names {
        let mut names = Names { exact: HashMap::new(), wildcard: HashMap::new(), default: Vec::new() };
        for (index, credential) in credentials.iter().enumerate() {
            for name in &credential.names {
                let set = match name.strip_prefix("*.") {
                    Some(parent) => names.wildcard.entry(parent.into()),
                    None => names.exact.entry(name.clone()),
                };
                set.or_default().push(index);
            }
        }
        let first = &credentials[0];
        names.default =
            (0..credentials.len()).filter(|&index| index == 0 || shares_a_name(&credentials[index], first)).collect();
        let rank = |index: &usize| {
            let key_type = credentials[*index].kind.key_type();
            prefer.iter().position(|preferred| *preferred == key_type).unwrap_or(prefer.len())
        };
        let sets = names.exact.values_mut().chain(names.wildcard.values_mut());
        for set in sets.chain([&mut names.default]) {
            // Stable: of two with the same rank, the one configured first.
            set.sort_by_key(rank);
        }
        names
    }

    /// In order of choice. An exact name goes before a wildcard, and the default serves only where neither is.
    pub fn candidates(&self, name: Option<&str>) -> impl Iterator<Item = &usize> + Clone {
        let name = name.map(|name| name.strip_suffix('.').unwrap_or(name));
        let exact = name.and_then(|name| self.exact.get(name)).map_or(&[][..], Vec::as_slice);
        let wildcard = name
            .and_then(|name| name.split_once('.'))
            .and_then(|(_, parent)| self.wildcard.get(parent))
            .map_or(&[][..], Vec::as_slice);
        let default = match exact.is_empty() && wildcard.is_empty() {
            true => self.default.as_slice(),
            false => &[],
        };
        exact.iter().chain(wildcard).chain(default)
    }
}

fn shares_a_name(one: &Credential, other: &Credential) -> bool {
    one.names.iter().any(|name| other.names.contains(name))
}

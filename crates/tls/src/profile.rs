//! One `[tls.NAME]`, loaded: which certificates there are, and for which names.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use propylon_config::{KeyType, TlsPolicy, TlsProfile};
use propylon_crypto::RemoteKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use crate::acceptor::{Acceptor, AcceptorParts};
use crate::client_auth::ClientTrust;
use crate::compression::Compressed;
use crate::finding::{Finding, Severity};
use crate::load;
use crate::offer::{Use, use_of};
use crate::sessions::Sessions;
use crate::tickets::Tickets;

/// Shared by all cores, which only make their acceptors of it.
pub struct Profile {
    pub(crate) name: Box<str>,
    pub(crate) policy: TlsPolicy,
    strict_sni: bool,
    pub(crate) compresses: bool,
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
        let (mut credentials, mut findings) = load::credentials(profile);
        findings.extend(unusable(profile, &credentials));
        let client_trust = profile.client_auth.as_ref().and_then(|auth| {
            let (trust, more) = load::client_trust(auth);
            findings.extend(more);
            trust
        });
        if findings.iter().any(|finding| finding.severity == Severity::Error) {
            return Err(findings);
        }
        if profile.certificate_compression {
            credentials.iter_mut().for_each(Credential::compress);
        }
        let names = Arc::new(Names::new(&credentials, &profile.prefer, profile.strict_sni));
        let profile = Profile {
            name: profile.name.as_str().into(),
            policy: profile.policy.clone(),
            strict_sni: profile.strict_sni,
            compresses: profile.certificate_compression,
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

    /// The NAME of `[tls.NAME]`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// In the order of the configuration.
    pub fn served(&self) -> impl Iterator<Item = Served> {
        self.credentials.iter().map(|credential| Served {
            name: credential.names.first().map_or_else(String::new, |name| name.to_string()),
            key_type: credential.kind.key_type(),
            not_after: credential.not_after,
            path: credential.path.clone(),
            stapled: credential.staple.is_some(),
        })
    }

    /// What a client that asks for this name may be shown, by a listener with this order of key types (none: the
    /// profile's own), the preferred certificate first; it gets the first that it can verify. Empty: it is refused.
    pub fn shown_for(&self, name: Option<&str>, prefer: Option<&[KeyType]>) -> Vec<(Served, NameMatch)> {
        let own = prefer.map(|prefer| Names::new(&self.credentials, prefer, self.strict_sni));
        let names = own.as_ref().unwrap_or(&self.names);
        let served: Vec<Served> = self.served().collect();
        let matched = |index: usize| self.credentials[index].matches(name);
        names.candidates(name).map(|&index| (served[index].clone(), matched(index))).collect()
    }

    /// Whether clients would see no difference; both are of the same `[tls.NAME]`.
    pub fn same_as(&self, other: &Profile) -> bool {
        let pairs = self.credentials.iter().zip(&other.credentials);
        let trusts = match (&self.client_trust, &other.client_trust) {
            (Some(one), Some(two)) => one.same_as(two),
            (one, two) => one.is_none() && two.is_none(),
        };
        trusts
            && self.credentials.len() == other.credentials.len()
            && pairs.into_iter().all(|(one, two)| one.same_as(two))
    }

    /// With the sessions kept by ID of the one that it takes the place of; both are of the same `[tls.NAME]`.
    #[must_use]
    pub fn succeeding(self, earlier: &Profile) -> Profile {
        Profile { sessions: Arc::clone(&earlier.sessions), ..self }
    }

    /// For one core, which the caller of this is.
    pub fn acceptor(&self, tickets: &Arc<Tickets>) -> Acceptor {
        self.acceptor_parts(None, &[], tickets).assemble()
    }

    /// For one core: builds its own configuration, resolver and signing keys, so that cores share nothing but
    /// `tickets`, which they only read. `prefer` is an order of key types in place of the profile's.
    ///
    /// `withheld` protocols of the profile's list are not offered here.
    pub fn acceptor_parts(
        &self,
        prefer: Option<&[KeyType]>,
        withheld: &[&[u8]],
        tickets: &Arc<Tickets>,
    ) -> AcceptorParts {
        let own = |prefer| Arc::new(Names::new(&self.credentials, prefer, self.strict_sni));
        AcceptorParts::new(self, prefer.map_or_else(|| self.names.clone(), own), withheld, tickets)
    }

    /// Whether a connection whose client asked for `server_name` may carry requests for `host` (a name in lower case, or an
    /// address): whoever answers it has shown a certificate for that name, or the client has named it itself
    /// (RFC 9110 §7.4). Where the client named nothing only another certificate's name is out of bounds.
    pub fn covers(&self, server_name: Option<&str>, host: &str) -> bool {
        let Some(server_name) = server_name else {
            let named = self.names.named(host);
            return named.is_empty() || named.iter().any(|index| self.names.default.contains(index));
        };
        if server_name == host {
            return true;
        }
        let named = self.names.named(host);
        self.names.candidates(Some(server_name)).any(|index| named.contains(index))
    }

    /// Certificates whose keys are elsewhere.
    pub fn remote_keys(&self) -> usize {
        self.credentials.iter().filter(|credential| matches!(credential.key, CredentialKey::Remote(_))).count()
    }

    /// Forgets the sessions that are too old. For the main thread, now and then.
    pub fn purge_sessions(&self, now: SystemTime) {
        self.sessions.purge(now);
    }

    /// The sessions kept by ID, for a process that succeeds this one: messages of at most so many bytes.
    pub fn hand_over_sessions(&self, message_bytes: usize, now: SystemTime) -> Vec<Zeroizing<Vec<u8>>> {
        self.sessions.hand_over(message_bytes, now)
    }

    /// Keeps the sessions of such a message; returns how many.
    pub fn take_over_sessions(&self, message: &[u8]) -> usize {
        self.sessions.take_over(message)
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
    /// Meant for clients that name nothing that any certificate stands for.
    pub default: bool,
    /// Seconds since 1970.
    pub not_after: i64,
    /// The chain's file.
    pub path: PathBuf,
    pub staple: Option<Staple>,
    /// The message that it is sent in, without and with the staple; none where it goes as it is.
    pub compressed: [Option<Arc<Compressed>>; 2],
}

/// An OCSP response that clients are shown, for as long as it may be.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Staple {
    pub response: Vec<u8>,
    /// Seconds since 1970; absent: newer information is always to be had, and this will do.
    pub until: Option<i64>,
}

impl Credential {
    fn compress(&mut self) {
        let with_staple = self.staple.as_ref().map(|staple| Compressed::new(&self.chain, Some(&staple.response)));
        self.compressed = [Some(Compressed::new(&self.chain, None)), with_staple].map(|each| each.map(Arc::new));
    }

    fn matches(&self, name: Option<&str>) -> NameMatch {
        let name = name.map(|name| name.strip_suffix('.').unwrap_or(name));
        let Some(name) = name else { return NameMatch::Default };
        let parent = name.split_once('.').map(|(_, parent)| parent);
        if self.names.iter().any(|own| **own == *name) {
            NameMatch::Exact
        } else if self.names.iter().any(|own| own.strip_prefix("*.").is_some_and(|own| Some(own) == parent)) {
            NameMatch::Wildcard
        } else {
            NameMatch::Default
        }
    }

    /// Files may have been written anew with what they held.
    fn same_as(&self, other: &Credential) -> bool {
        self.chain == other.chain && self.key == other.key && self.names == other.names && self.staple == other.staple
    }
}

/// What can be told of a certificate that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The first of the names that it is served for; empty: it is served where no other fits.
    pub name: String,
    pub key_type: KeyType,
    /// Seconds since 1970.
    pub not_after: i64,
    /// The chain's file.
    pub path: PathBuf,
    /// It comes with an OCSP response.
    pub stapled: bool,
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
    pub fn key_type(self) -> KeyType {
        match self {
            KeyKind::Rsa => KeyType::Rsa,
            KeyKind::Ed25519 => KeyType::Ed25519,
            KeyKind::P256 | KeyKind::P384 | KeyKind::P521 => KeyType::Ecdsa,
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
    /// For clients that name nothing, or nothing we have: the certificates marked for it, or else the first, and others
    /// for the same names. Empty where such clients are refused.
    default: Vec<usize>,
}

impl Names {
    fn new(credentials: &[Credential], prefer: &[KeyType], strict: bool) -> Names {
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
        if !strict {
            names.default = defaults(credentials);
        }
        let rank = |index: &usize| rank(credentials[*index].kind.key_type(), prefer);
        let sets = names.exact.values_mut().chain(names.wildcard.values_mut());
        for set in sets.chain([&mut names.default]) {
            // Stable: of two with the same rank, the one configured first.
            set.sort_by_key(rank);
        }
        names
    }

    /// Those that stand for the name itself.
    fn named(&self, name: &str) -> Vec<usize> {
        let exact = self.exact.get(name);
        let wildcard = name.split_once('.').and_then(|(_, parent)| self.wildcard.get(parent));
        exact.into_iter().chain(wildcard).flatten().copied().collect()
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

/// Where a type stands in an order of preference; a type that it does not name comes last, but for Ed25519, which then
/// stands with ECDSA.
fn rank(key_type: KeyType, prefer: &[KeyType]) -> usize {
    let position = |wanted| prefer.iter().position(|preferred| *preferred == wanted);
    let with_ecdsa = || if key_type == KeyType::Ed25519 { position(KeyType::Ecdsa) } else { None };
    position(key_type).or_else(with_ecdsa).unwrap_or(prefer.len())
}

fn defaults(credentials: &[Credential]) -> Vec<usize> {
    let marked = credentials.iter().any(|credential| credential.default);
    let is_default = |index: usize| if marked { credentials[index].default } else { index == 0 };
    let chosen: Vec<usize> = (0..credentials.len()).filter(|&index| is_default(index)).collect();
    let beside = |index: &usize| {
        chosen.contains(index) || chosen.iter().any(|&one| shares_a_name(&credentials[*index], &credentials[one]))
    };
    (0..credentials.len()).filter(beside).collect()
}

/// Types of certificates that a policy of the user's own leaves without a version in which they can be served.
fn unusable(profile: &TlsProfile, credentials: &[Credential]) -> Vec<Finding> {
    let TlsPolicy::Custom(policy) = &profile.policy else { return Vec::new() };
    let mut findings = Vec::new();
    for key_type in [KeyType::Ecdsa, KeyType::Ed25519, KeyType::Rsa] {
        if !credentials.iter().any(|credential| credential.kind.key_type() == key_type) {
            continue;
        }
        let usable = use_of(&profile.policy, key_type);
        let (severity, what) = match usable {
            Use { tls12: false, tls13: false, .. } => (Severity::Error, "none of the `suites` goes with"),
            Use { tls12: false, tls12_is_spoken: true, .. } => (Severity::Warning, "no TLS 1.2 suite goes with"),
            _ => continue,
        };
        let suite = if key_type == KeyType::Rsa { "TLS_ECDHE_RSA_WITH_..." } else { "TLS_ECDHE_ECDSA_WITH_..." };
        findings.push(Finding {
            severity,
            at: policy.at,
            path: PathBuf::new(),
            what: format!("{what} the {} certificate of [tls.{}]", key_type.name(), profile.name),
            fix: format!("add a suite named {suite}, or remove the certificate"),
        });
    }
    findings
}

fn shares_a_name(one: &Credential, other: &Credential) -> bool {
    one.names.iter().any(|name| other.names.contains(name))
}

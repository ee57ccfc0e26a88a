//! One `[tls.NAME]`, loaded: its certificates and its rules.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use propylon_config::{KeyType, TlsPolicy, TlsProfile};
use propylon_crypto::Ski;
use zeroize::Zeroizing;

use super::names::Names;
use crate::certificates::client_auth::ClientTrust;
use crate::certificates::credential::{Credential, NameMatch, Validity};
use crate::certificates::dated::{Dated, DatedKind, ExpiryStep, seconds, step_between};
use crate::certificates::finding::{Finding, Severity};
use crate::certificates::load;
use crate::provider::{Use, use_of};
use crate::tickets::sessions::Sessions;

/// Loaded `[tls.NAME]`. Cores share it and make their acceptors from it.
pub struct Profile {
    pub(crate) name: Box<str>,
    pub(crate) policy: TlsPolicy,
    strict_sni: bool,
    /// Order of key types that `names` is made for.
    prefer: Vec<KeyType>,
    pub(crate) compresses: bool,
    /// Protocols, the most preferred first.
    pub(crate) alpn: Vec<Vec<u8>>,
    /// Credentials in the order of the configuration; none where all are ordered from an authority and not there yet.
    pub(crate) credentials: Arc<[Arc<Credential>]>,
    pub(crate) names: Arc<Names>,
    /// Names for the orders of key types of listeners that have their own.
    other_names: Mutex<Vec<(Vec<KeyType>, Arc<Names>)>>,
    /// Some listeners have an order of key types of their own.
    pub(crate) orders_differ: Arc<AtomicBool>,
    /// Some keys are in another process.
    pub(crate) remote: bool,
    /// Indices of the certificates that expire first, at most [`SHOWN_MAX`].
    soonest: Vec<u32>,
    /// Expiry of all certificates in seconds since 1970, the earliest first.
    ends: Box<[i64]>,
    /// Tickets issued after a full handshake; 0 disables them.
    pub(crate) tickets: u8,
    pub(crate) sessions: Arc<Sessions>,
    /// Rules for client certificates; absent where clients are not asked for one.
    pub(crate) client_trust: Option<ClientTrust>,
    /// Clients' JA4 fingerprints are computed.
    pub(crate) ja4: bool,
}

impl Profile {
    /// Reads and checks the certificates. The findings beside a profile are warnings; those instead of one hold at
    /// least one error. Either way they are all there are, in the order of the configuration; of very many with the
    /// same weight, as many as people read.
    ///
    /// `alpn` lists protocols, most preferred first; a client that offers some but none of these is refused.
    pub fn load(profile: &TlsProfile, alpn: &[&[u8]]) -> Result<(Profile, Vec<Finding>), Vec<Finding>> {
        Profile::load_without(profile, alpn, &|_| false)
    }

    /// Same as [`Profile::load`], but skips unusable files for which `may_be_lost` holds; these are still errors among
    /// the findings.
    pub fn load_without(
        profile: &TlsProfile,
        alpn: &[&[u8]],
        may_be_lost: &dyn Fn(&Path) -> bool,
    ) -> Result<(Profile, Vec<Finding>), Vec<Finding>> {
        let (credentials, findings) = load::credentials(profile, &[]);
        let stands_in_the_way = |finding: &Finding| finding.severity == Severity::Error && !may_be_lost(&finding.path);
        match findings.iter().any(stands_in_the_way) {
            // Further findings are reported at once.
            true => {
                let assembled = Profile::assemble(profile, alpn, credentials, findings, None);
                Err(assembled.map_or_else(|all| all, |(_, all)| all))
            }
            false => Profile::assemble(profile, alpn, credentials, findings, None),
        }
    }

    /// Reloads the `[tls.NAME]` from its files, and keeps the sessions. Files with unchanged metadata are not read.
    /// Files that cannot be used are errors among the findings, and their previous content stays in use.
    pub fn load_again(&self, profile: &TlsProfile, alpn: &[&[u8]]) -> Result<(Profile, Vec<Finding>), Vec<Finding>> {
        let (credentials, findings) = load::credentials(profile, &self.credentials);
        if credentials.is_empty() && findings.iter().any(|finding| finding.severity == Severity::Error) {
            return Err(findings);
        }
        let (next, findings) = Profile::assemble(profile, alpn, credentials, findings, Some(self))?;
        Ok((next.succeeding(self), findings))
    }

    /// Makes the profile of what has been loaded. Errors that are in `findings` already do not make it fail.
    fn assemble(
        profile: &TlsProfile,
        alpn: &[&[u8]],
        credentials: Vec<Arc<Credential>>,
        mut findings: Vec<Finding>,
        earlier: Option<&Profile>,
    ) -> Result<(Profile, Vec<Finding>), Vec<Finding>> {
        let mut more = unusable(profile, &credentials);
        let client_trust = profile.client_auth.as_ref().and_then(|auth| {
            let (trust, found) = load::client_trust(auth);
            more.extend(found);
            trust
        });
        let failed = more.iter().any(|finding| finding.severity == Severity::Error);
        findings.extend(more);
        if failed {
            return Err(findings);
        }
        if profile.certificate_compression {
            load::compress(&credentials[..credentials.len().min(COMPRESSED_MAX)]);
        }
        // Names of unchanged credentials are shared: 50,000 names are not to be kept twice.
        let same = earlier.filter(|earlier| {
            let (one, other) = (credentials.iter(), earlier.credentials.iter());
            one.map(Arc::as_ptr).eq(other.map(Arc::as_ptr))
                && (earlier.strict_sni, &earlier.prefer) == (profile.strict_sni, &profile.prefer)
        });
        let names = match same {
            Some(earlier) => Arc::clone(&earlier.names),
            None => Arc::new(Names::new(&credentials, &profile.prefer, profile.strict_sni)),
        };
        let credentials: Arc<[_]> = match same {
            Some(earlier) => Arc::clone(&earlier.credentials),
            None => credentials.into(),
        };
        let profile = Profile {
            name: profile.name.as_str().into(),
            policy: profile.policy.clone(),
            strict_sni: profile.strict_sni,
            compresses: profile.certificate_compression,
            alpn: alpn.iter().map(|protocol| protocol.to_vec()).collect(),
            remote: credentials.iter().any(|credential| credential.material.is_elsewhere()),
            soonest: soonest(&credentials),
            ends: ends(&credentials),
            credentials,
            prefer: profile.prefer.clone(),
            names,
            other_names: Mutex::new(Vec::new()),
            orders_differ: Arc::default(),
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

    /// Number of certificates.
    pub fn count(&self) -> usize {
        self.credentials.len()
    }

    /// Certificates in the order of the configuration: all, where there are no more than [`SHOWN_MAX`]; else those that
    /// expire first.
    pub fn served(&self) -> impl Iterator<Item = Served> {
        self.served_at_most(SHOWN_MAX)
    }

    /// Same as [`Profile::served`], with another limit.
    pub fn served_at_most(&self, max: usize) -> impl Iterator<Item = Served> {
        let mut shown: Vec<u32> = self.soonest.iter().take(max).copied().collect();
        shown.sort_unstable();
        shown.into_iter().map(|index| served(&self.credentials[index as usize]))
    }

    /// Certificates by expiry, the earliest first.
    pub fn soonest(&self, max: usize) -> impl Iterator<Item = Served> {
        self.soonest.iter().take(max).map(|&index| served(&self.credentials[index as usize]))
    }

    /// Expiry of the first certificate to expire, in seconds since 1970.
    pub fn soonest_expiry(&self) -> i64 {
        self.ends.first().copied().unwrap_or(0)
    }

    /// Number of certificates that expire before this moment, in seconds since 1970.
    pub fn expiring_before(&self, moment: i64) -> usize {
        self.ends.partition_point(|end| *end < moment)
    }

    /// Objects of the profile that have come a step nearer to their end between `last` and `now`, in seconds since
    /// 1970; at most `max`, those that expire first.
    pub fn steps_between(&self, last: i64, now: i64, max: usize) -> Vec<(Dated, ExpiryStep)> {
        let certificates = self.credentials.iter().filter_map(|credential| {
            let Validity { not_before, not_after } = credential.material.validity;
            Some((credential, step_between(Some(not_before), not_after, last, now)?))
        });
        let mut near: Vec<_> = certificates.collect();
        near.sort_by_key(|(credential, _)| credential.material.validity.not_after);
        let certificates = near.into_iter().map(|(credential, step)| (certificate(credential), step));
        let others = self.other_dated().filter_map(|dated| {
            let step = step_between(dated.from, dated.until, last, now)?;
            Some((dated, step))
        });
        certificates.chain(others).take(max).collect()
    }

    /// Revocation lists and OCSP responses.
    pub fn other_dated(&self) -> impl Iterator<Item = Dated> {
        let lists = self.client_trust.iter().flat_map(|trust| trust.dated.iter().cloned());
        lists.chain(self.credentials.iter().filter_map(response))
    }

    /// Warnings of certificates that have expired or soon will, the earliest first; bounded where there are very many.
    pub fn expiring(&self, now: SystemTime) -> Vec<Finding> {
        load::expiring(self.soonest.iter().map(|&index| &self.credentials[index as usize]), now)
    }

    /// Certificates that a client which asks for this name may be served, by a listener with this order of key types
    /// (none: the profile's own). The preferred one comes first, expired ones last; the client gets the first that it
    /// can verify. Empty where the client is refused.
    pub fn shown_for(&self, name: Option<&str>, prefer: Option<&[KeyType]>) -> Vec<(Served, NameMatch)> {
        let names = self.names_by(prefer);
        let now = seconds(SystemTime::now());
        let mut candidates: Vec<&Arc<Credential>> =
            names.candidates(name).map(|index| &self.credentials[index as usize]).collect();
        candidates.sort_by_key(|credential| !credential.material.validity.holds(now));
        candidates.into_iter().map(|credential| (served(credential), credential.matches(name))).collect()
    }

    /// Whether both are the same to clients; both are of the same `[tls.NAME]`.
    pub fn same_as(&self, other: &Profile) -> bool {
        let pairs = self.credentials.iter().zip(other.credentials.iter());
        let trusts = match (&self.client_trust, &other.client_trust) {
            (Some(one), Some(two)) => one.same_as(two),
            (one, two) => one.is_none() && two.is_none(),
        };
        trusts
            && self.credentials.len() == other.credentials.len()
            && pairs.into_iter().all(|(one, two)| Arc::ptr_eq(one, two) || one.same_as(two))
    }

    /// Takes over the stored sessions of the profile that it replaces; both are of the same `[tls.NAME]`.
    #[must_use]
    pub fn succeeding(self, earlier: &Profile) -> Profile {
        Profile { sessions: Arc::clone(&earlier.sessions), ..self }
    }

    /// Names for an order of key types, made once for each.
    pub(crate) fn names_by(&self, prefer: Option<&[KeyType]>) -> Arc<Names> {
        let Some(prefer) = prefer else { return Arc::clone(&self.names) };
        let mut others = self.other_names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, names)) = others.iter().find(|(order, _)| order == prefer) {
            return Arc::clone(names);
        }
        let names = Arc::new(Names::new(&self.credentials, prefer, self.strict_sni));
        others.push((prefer.to_vec(), Arc::clone(&names)));
        self.orders_differ.store(true, Ordering::Relaxed);
        names
    }

    /// Whether a connection whose client asked for `server_name` may carry requests for `host` (a name in lower case,
    /// or an address): whoever answers it has shown a certificate for that name, or the client has named it itself (RFC
    /// 9110 §7.4). Where the client named nothing only another certificate's name is out of bounds.
    ///
    /// A client that connects to an address cannot name it: whatever certificate it was shown, it has taken it.
    pub fn covers(&self, server_name: Option<&str>, host: &str) -> bool {
        // Fast path: this is asked for every request, and is nearly always so.
        if server_name == Some(host) {
            return true;
        }
        if let Some(address) = address_of(host) {
            let shown = |name| self.names.candidates(Some(name)).any(|index| self.is_for(index, address));
            return server_name.is_none_or(shown);
        }
        let mut named = self.names.named(host);
        let Some(server_name) = server_name else {
            return named.clone().next().is_none() || named.any(|index| self.names.default.contains(&index));
        };
        self.names.candidates(Some(server_name)).any(|index| named.clone().any(|named| named == index))
    }

    fn is_for(&self, index: u32, address: IpAddr) -> bool {
        self.credentials[index as usize].material.addresses.contains(&address)
    }

    /// Number of certificates whose keys are at the signer.
    pub fn remote_keys(&self) -> usize {
        self.credentials.iter().filter(|credential| credential.material.is_remote()).count()
    }

    /// Names of the keys that are in this engine's key process.
    pub fn keys_beside(&self) -> impl Iterator<Item = Ski> {
        self.credentials.iter().filter_map(|credential| credential.material.key_process_ski())
    }

    /// Drops sessions that are too old. For the main thread, from time to time.
    pub fn purge_sessions(&self, now: SystemTime) {
        self.sessions.purge(now);
    }

    /// The stored sessions, for the process that takes over: messages of at most `message_bytes`.
    pub fn hand_over_sessions(&self, message_bytes: usize, now: SystemTime) -> Vec<Zeroizing<Vec<u8>>> {
        self.sessions.hand_over(message_bytes, now)
    }

    /// Stores the sessions of such a message, and returns their number.
    pub fn take_over_sessions(&self, message: &[u8]) -> usize {
        self.sessions.take_over(message)
    }

    /// Context that every ticket is bound to.
    pub(crate) fn ticket_context(&self) -> Box<[u8]> {
        ticket_context(&self.name)
    }
}

/// Limit of certificates of a profile that are reported one by one: those that expire first.
pub const SHOWN_MAX: usize = 1000;

/// Limit of chains that are compressed beforehand, the first of the configuration: each takes milliseconds, and some 5
/// KB of memory. Others are sent uncompressed.
const COMPRESSED_MAX: usize = 256;

/// Address in a request's host: IPv6 in brackets (RFC 3986 §3.2.2).
fn address_of(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']')?.parse().ok().map(IpAddr::V6),
        None => host.parse().ok().map(IpAddr::V4),
    }
}

fn served(credential: &Credential) -> Served {
    Served {
        name: credential.names().next().unwrap_or_default().to_owned(),
        key_type: credential.material.kind.key_type(),
        not_after: credential.material.validity.not_after,
        path: credential.material.path.clone(),
        stapled: credential.staple.is_some(),
    }
}

fn certificate(credential: &Credential) -> Dated {
    let Validity { not_before, not_after } = credential.material.validity;
    Dated {
        kind: DatedKind::ServerCertificate,
        name: credential.names().next().unwrap_or_default().to_owned(),
        path: credential.material.path.clone(),
        from: Some(not_before),
        until: not_after,
        at: credential.at,
    }
}

fn response(credential: &Arc<Credential>) -> Option<Dated> {
    let until = credential.staple.as_ref()?.until?;
    Some(Dated { kind: DatedKind::OcspResponse, from: None, until, ..certificate(credential) })
}

fn ends(credentials: &[Arc<Credential>]) -> Box<[i64]> {
    let mut ends: Box<[i64]> = credentials.iter().map(|credential| credential.material.validity.not_after).collect();
    ends.sort_unstable();
    ends
}

/// Indices of the certificates that expire first, the earliest first.
fn soonest(credentials: &[Arc<Credential>]) -> Vec<u32> {
    let mut all: Vec<u32> = (0..credentials.len() as u32).collect();
    all.sort_by_key(|&index| credentials[index as usize].material.validity.not_after);
    all.truncate(SHOWN_MAX);
    all.shrink_to_fit();
    all
}

/// Context of tickets, made of the profile's name. Rules for clients are in the ticket itself; see `client_auth`.
fn ticket_context(name: &str) -> Box<[u8]> {
    [b"propylon ticket 1", name.as_bytes()].concat().into()
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Description of a certificate that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// First of the names that the certificate is served for; empty where it is served only as a last resort.
    pub name: String,
    pub key_type: KeyType,
    /// Expiry in seconds since 1970.
    pub not_after: i64,
    /// File of the chain.
    pub path: PathBuf,
    /// An OCSP response is stapled.
    pub stapled: bool,
}

/// Findings about key types that a custom policy leaves without a suite.
fn unusable(profile: &TlsProfile, credentials: &[Arc<Credential>]) -> Vec<Finding> {
    let TlsPolicy::Custom(policy) = &profile.policy else { return Vec::new() };
    let mut findings = Vec::new();
    for key_type in [KeyType::Ecdsa, KeyType::Ed25519, KeyType::Rsa] {
        if !credentials.iter().any(|credential| credential.material.kind.key_type() == key_type) {
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
            error: None,
        });
    }
    findings
}

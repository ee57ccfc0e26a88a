//! Verification of clients' certificates, and of sessions that were begun with them.
//!
//! The library verifies chain, times, purpose, signatures and revocation. This module bounds what a client may send,
//! and rechecks every ticket: a session is resumed only under the rules by which its client was verified, and only
//! while its certificates and revocation lists are in date.

use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use propylon_config::{ClientAuth, ClientAuthMode, CrlScope, ForwardIdentity, Leniency};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ProducesTickets, StoresServerSessions, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::certificates::dated::Dated;
use crate::parking::fiber::on_parent_stack;

/// Authorities and revocation lists of a profile, shared read-only by all cores.
#[derive(Debug)]
pub(crate) struct ClientTrust {
    verifier: Arc<dyn ClientCertVerifier>,
    pub forward: ForwardIdentity,
    /// Digest of everything that decides whether a client is accepted, but for the time.
    rules: [u8; 32],
    /// Time at which the first of the revocation lists expires; none where expired lists are accepted.
    fresh_until: Option<UnixTime>,
    /// Revocation lists with the times of their next updates.
    pub dated: Vec<Dated>,
}

/// Limit of a client's own certificate. In Client-Cert it is a third longer, which servers' limits of a field still
/// allow.
pub(crate) const LEAF_BYTES_MAX: usize = 8 * 1024;
/// Limit of all certificates that a client sends.
pub(crate) const CHAIN_BYTES_MAX: usize = 32 * 1024;
/// Limit of the encoded name of subject or issuer; as text it is at most three times as long.
pub(crate) const NAME_BYTES_MAX: usize = 1024;

impl ClientTrust {
    pub fn new(
        auth: &ClientAuth,
        roots: RootCertStore,
        crls: Vec<CertificateRevocationListDer<'static>>,
        dated: Vec<Dated>,
        fresh_until: Option<UnixTime>,
    ) -> Result<ClientTrust, VerifierBuilderError> {
        let rules = rules(auth, &roots, &crls);
        // The verifier uses only the provider's verification algorithms.
        let algorithms = rustls::crypto::aws_lc_rs::default_provider();
        let mut builder = WebPkiClientVerifier::builder_with_provider(roots.into(), algorithms.into()).with_crls(crls);
        if auth.mode == ClientAuthMode::Optional {
            builder = builder.allow_unauthenticated();
        }
        if auth.crl_scope == CrlScope::Leaf {
            builder = builder.only_check_end_entity_revocation();
        }
        if auth.crl_missing == Leniency::Allow {
            builder = builder.allow_unknown_revocation_status();
        }
        if auth.crl_expired == Leniency::Refuse {
            builder = builder.enforce_revocation_expiration();
        }
        if !auth.send_ca_names {
            builder = builder.clear_root_hint_subjects();
        }
        let verifier = Arc::new(BoundedVerifier { inner: builder.build()?, depth: auth.depth });
        let fresh_until = fresh_until.filter(|_| auth.crl_expired == Leniency::Refuse);
        Ok(ClientTrust { verifier, forward: auth.forward, rules, dated, fresh_until })
    }

    /// Whether both accept the same clients; both are of the same `client_auth`.
    pub fn same_as(&self, other: &ClientTrust) -> bool {
        self.rules == other.rules
    }

    pub fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        self.verifier.clone()
    }

    /// Wraps a ticketer so that resumed sessions are rechecked.
    pub fn ticketer(&self, inner: Arc<dyn ProducesTickets>) -> Arc<dyn ProducesTickets> {
        Arc::new(RecheckedSessions { inner, rules: self.rules, fresh_until: self.fresh_until })
    }

    /// Wraps a session store so that resumed sessions are rechecked.
    pub fn store(&self, inner: Arc<dyn StoresServerSessions>) -> Arc<dyn StoresServerSessions> {
        Arc::new(RecheckedSessions { inner, rules: self.rules, fresh_until: self.fresh_until })
    }
}

fn rules(auth: &ClientAuth, roots: &RootCertStore, crls: &[CertificateRevocationListDer<'_>]) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    let ClientAuth { mode, crl_scope, crl_missing, crl_expired, depth, .. } = auth;
    context.update(format!("{mode:?} {crl_scope:?} {crl_missing:?} {crl_expired:?} {depth}").as_bytes());
    let mut update = |bytes: &[u8]| {
        context.update(&(bytes.len() as u64).to_be_bytes());
        context.update(bytes);
    };
    update(&(roots.len() as u64).to_be_bytes());
    for root in &roots.roots {
        update(&root.subject);
        update(&root.subject_public_key_info);
        update(root.name_constraints.as_deref().unwrap_or_default());
    }
    for crl in crls {
        update(crl);
    }
    let mut rules = [0; 32];
    rules.copy_from_slice(context.finish().as_ref());
    rules
}

/// The library's verifier behind limits on what a client may send, which bound the work of everything that follows.
#[derive(Debug)]
struct BoundedVerifier {
    inner: Arc<dyn ClientCertVerifier>,
    /// Limit of certificates beside the client's own.
    depth: usize,
}

/// Error: more, or longer, certificates than a client may send.
#[derive(Debug)]
pub(crate) struct TooLarge(String);

impl std::fmt::Display for TooLarge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TooLarge {}

impl BoundedVerifier {
    fn check(&self, leaf: &CertificateDer<'_>, others: &[CertificateDer<'_>]) -> Result<(), Error> {
        let too_large = |what: String| Err(CertificateError::Other(OtherError(Arc::new(TooLarge(what)))).into());
        if others.len() > self.depth {
            return too_large(format!("{} certificates beside its own, {} allowed", others.len(), self.depth));
        }
        let total = leaf.len() + others.iter().map(|der| der.len()).sum::<usize>();
        if leaf.len() > LEAF_BYTES_MAX || total > CHAIN_BYTES_MAX {
            return too_large(format!("a certificate of {} bytes, {total} with its chain", leaf.len()));
        }
        let (_, parsed) = X509Certificate::from_der(leaf).map_err(|_| CertificateError::BadEncoding)?;
        let names = [parsed.subject(), parsed.issuer()].map(|name| name.as_raw().len());
        if names.iter().any(|length| *length > NAME_BYTES_MAX) {
            return too_large(format!("names of {} and {} bytes", names[0], names[1]));
        }
        Ok(())
    }
}

impl ClientCertVerifier for BoundedVerifier {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        // TLS 1.2 handshakes verify on a fiber, whose stack is small: a signature of P-521 alone would use most of it.
        on_parent_stack(|| {
            self.check(leaf, others)?;
            self.inner.verify_client_cert(leaf, others, now)
        })
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        on_parent_stack(|| self.inner.verify_tls12_signature(message, cert, dss))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        on_parent_stack(|| self.inner.verify_tls13_signature(message, cert, dss))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

/// Ticketer or session store that lets a session be resumed only under the rules that it began under, and only while
/// its certificates and the revocation lists are in date. Otherwise the client is asked for its certificate again, and
/// the verifier reports what is wrong.
#[derive(Debug)]
struct RecheckedSessions<T: ?Sized> {
    inner: Arc<T>,
    rules: [u8; 32],
    fresh_until: Option<UnixTime>,
}

impl<T: ?Sized> RecheckedSessions<T> {
    /// The session state behind the digest of the rules; none for a state that could not be rechecked later.
    fn wrap(&self, state: &[u8]) -> Option<Vec<u8>> {
        client_chain(state)?;
        Some([&self.rules, state].concat())
    }

    fn unwrap(&self, wrapped: &[u8], now: UnixTime) -> Option<Vec<u8>> {
        let state = wrapped.strip_prefix(&self.rules)?;
        self.is_current(state, now).then(|| state.to_vec())
    }

    fn is_current(&self, state: &[u8], now: UnixTime) -> bool {
        let in_date = |der: &[u8]| {
            X509Certificate::from_der(der).is_ok_and(|(_, certificate)| {
                let validity = certificate.validity();
                let now = now.as_secs() as i64;
                (validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&now)
            })
        };
        match client_chain(state) {
            None => false,
            Some(chain) if chain.is_empty() => true,
            Some(chain) => self.fresh_until.is_none_or(|until| now <= until) && chain.into_iter().all(in_date),
        }
    }
}

impl ProducesTickets for RecheckedSessions<dyn ProducesTickets> {
    fn enabled(&self) -> bool {
        self.inner.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.inner.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.inner.encrypt(&self.wrap(plain)?)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.unwrap(&self.inner.decrypt(cipher)?, UnixTime::now())
    }
}

impl StoresServerSessions for RecheckedSessions<dyn StoresServerSessions> {
    fn put(&self, id: Vec<u8>, state: Vec<u8>) -> bool {
        self.wrap(&state).is_some_and(|wrapped| self.inner.put(id, wrapped))
    }

    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.unwrap(&self.inner.get(id)?, UnixTime::now())
    }

    fn take(&self, id: &[u8]) -> Option<Vec<u8>> {
        self.unwrap(&self.inner.take(id)?, UnixTime::now())
    }

    fn can_cache(&self) -> bool {
        self.inner.can_cache()
    }
}

/// The client's certificates in the library's session state, whose format is not documented. None if the format has
/// changed; then no session is resumed, and a test fails.
fn client_chain(state: &[u8]) -> Option<Vec<&[u8]>> {
    let mut state = Reader(state);
    if state.take(1)? == [1] {
        state.prefixed(1)?; // server name
    }
    state.take(4)?; // version, suite
    let secret = state.prefixed(1)?;
    let [extended @ (0 | 1)] = *state.take(1)? else { return None };
    if secret.is_empty() || extended > 1 {
        return None;
    }
    match state.take(1)? {
        [0] => Some(Vec::new()),
        [1] => {
            let mut list = Reader(state.prefixed(3)?);
            let mut chain = Vec::new();
            while !list.0.is_empty() {
                chain.push(list.prefixed(3)?);
            }
            (!chain.is_empty()).then_some(chain)
        }
        _ => None,
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// Bytes behind their length, which is encoded in `width` bytes.
    fn prefixed(&mut self, width: usize) -> Option<&'a [u8]> {
        let count = self.take(width)?.iter().fold(0, |count, byte| count << 8 | usize::from(*byte));
        self.take(count)
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};
    use rustls::server::ServerSessionMemoryCache;

    use super::*;

    const NOW: u64 = 1_700_000_000; // in 2023

    /// Session state as the library writes it.
    fn state(chain: &[&[u8]]) -> Vec<u8> {
        let prefixed = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes()[1..], bytes].concat();
        let mut state = vec![1, 4, b'a', b'.', b'e', b'u', 3, 4, 0x13, 1, 2, 9, 9, 1];
        let list: Vec<u8> = chain.iter().flat_map(|der| prefixed(der)).collect();
        state.push(u8::from(!chain.is_empty()));
        if !chain.is_empty() {
            state.extend(prefixed(&list));
        }
        state.extend([0; 15]);
        state
    }

    fn certificate(from: i32, to: i32) -> Vec<u8> {
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn rechecked(rules: u8, fresh_until: Option<u64>) -> RecheckedSessions<dyn StoresServerSessions> {
        let fresh_until =
            fresh_until.map(|seconds| UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds)));
        RecheckedSessions { inner: ServerSessionMemoryCache::new(10), rules: [rules; 32], fresh_until }
    }

    fn comes_back(rechecked: &RecheckedSessions<dyn StoresServerSessions>, state: &[u8]) -> bool {
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(NOW));
        rechecked.unwrap(&rechecked.wrap(state).unwrap(), now).as_deref() == Some(state)
    }

    /// A certificate with an extension of `padding` bytes and a locality of `name` bytes. Its length is the same each
    /// time.
    fn padded(padding: usize, name: usize) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.serial_number = Some(vec![1].into());
        params.distinguished_name.push(rcgen::DnType::LocalityName, "x".repeat(name));
        params.custom_extensions.push(rcgen::CustomExtension::from_oid_content(&[1, 2, 3], vec![0; padding]));
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn what_a_client_may_send_has_bounds_each_of_which_may_be_reached() {
        let inner = WebPkiClientVerifier::no_client_auth();
        let bounded = BoundedVerifier { inner, depth: 2 };
        let refused = |leaf: &CertificateDer<'_>, others: &[usize]| {
            let others: Vec<CertificateDer<'_>> = others.iter().map(|length| vec![0; *length].into()).collect();
            bounded.check(leaf, &others).err().map(|error| error.to_string())
        };
        let said = |error: Option<String>, part: &str| {
            assert!(error.as_ref().is_some_and(|error| error.contains(part)), "{error:?} {part}");
        };
        let of_length = |length: usize| {
            let leaf = padded(4000 + length - padded(4000, 10).len(), 10);
            assert_eq!(leaf.len(), length);
            leaf
        };
        let longest = of_length(LEAF_BYTES_MAX);
        assert_eq!(refused(&longest, &[1, 1]), None);
        said(refused(&longest, &[1, 1, 1]), "3 certificates beside its own, 2 allowed");
        said(refused(&of_length(LEAF_BYTES_MAX + 1), &[]), "a certificate of 8193 bytes");
        let rest = CHAIN_BYTES_MAX - LEAF_BYTES_MAX;
        assert_eq!(refused(&longest, &[rest - 1, 1]), None);
        said(refused(&longest, &[rest, 1]), "32769 with its chain");

        let name_length =
            |leaf: &CertificateDer<'_>| X509Certificate::from_der(leaf).unwrap().1.subject().as_raw().len();
        let named = |length: usize| {
            let leaf = padded(0, 900 + length - name_length(&padded(0, 900)));
            assert_eq!(name_length(&leaf), length);
            leaf
        };
        assert_eq!(refused(&named(NAME_BYTES_MAX), &[]), None);
        said(refused(&named(NAME_BYTES_MAX + 1), &[]), "names of 1025 and 1025 bytes");
    }

    #[test]
    fn a_session_comes_back_while_every_certificate_in_it_is_in_date() {
        let (good, old, early) = (certificate(2020, 2030), certificate(2020, 2021), certificate(2025, 2030));
        let store = rechecked(1, None);
        assert!(comes_back(&store, &state(&[])));
        assert!(comes_back(&store, &state(&[&good])));
        assert!(comes_back(&store, &state(&[&good, &good])));
        assert!(!comes_back(&store, &state(&[&old])));
        assert!(!comes_back(&store, &state(&[&early])));
        assert!(!comes_back(&store, &state(&[&good, &old])));
        assert!(!comes_back(&store, &state(&[b"no certificate"])));
        // The first and the last second belong to it (RFC 5280 §4.1.2.5).
        let comes_back_at = |der: &[u8], now: i64| {
            let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now as u64));
            store.is_current(&state(&[der]), now)
        };
        let (from, to) = (date_time_ymd(2020, 1, 1).unix_timestamp(), date_time_ymd(2030, 1, 1).unix_timestamp());
        let seconds = [from - 1, from, to, to + 1].map(|now| comes_back_at(&good, now));
        assert_eq!(seconds, [false, true, true, false]);
    }

    #[test]
    fn a_session_comes_back_while_the_revocation_lists_are_in_date() {
        let good = certificate(2020, 2030);
        assert!(comes_back(&rechecked(1, Some(NOW)), &state(&[&good])));
        assert!(!comes_back(&rechecked(1, Some(NOW - 1)), &state(&[&good])));
        // Clients without a certificate are on no revocation list.
        assert!(comes_back(&rechecked(1, Some(NOW - 1)), &state(&[])));
    }

    #[test]
    fn a_session_kept_under_other_rules_does_not_come_back_by_its_id() {
        let before = rechecked(1, None);
        assert!(before.put(vec![7], state(&[])));
        assert_eq!(before.get(&[7]), Some(state(&[])));
        let after = RecheckedSessions { inner: before.inner.clone(), rules: [2; 32], fresh_until: None };
        assert_eq!(after.get(&[7]), None);
        assert_eq!(after.take(&[7]), None);
    }

    #[test]
    fn a_state_of_an_unknown_form_is_not_kept() {
        let store = rechecked(1, None);
        for end in 0..15 {
            assert_eq!(store.wrap(&state(&[])[..end]), None, "{end}");
        }
        assert_eq!(store.wrap(&[0, 3, 4, 0x13, 1, 0]), None);
    }
}

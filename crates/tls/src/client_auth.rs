//! Which clients' certificates are good enough, and for how long a ticket may stand in for one.
//!
//! The library verifies: chain, times, purpose, signatures, revocation. Around it stand bounds on what a client may
//! send, and a look at every ticket: a session is resumed only under the very rules that its client was verified by,
//! and only as long as nothing it was verified with is out of date.

use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use propylon_config::{ClientAuth, ClientAuthMode, CrlScope, ForwardIdentity, Leniency};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ProducesTickets, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

use crate::offer::provider;
use crate::tickets::Ticketer;

/// Authorities and revocation lists, loaded. Shared by all cores, which only read it.
#[derive(Debug)]
pub(crate) struct ClientTrust {
    verifier: Arc<dyn ClientCertVerifier>,
    pub forward: ForwardIdentity,
    /// Of everything that decides whether a client is let in, but for the time.
    rules: [u8; 32],
    /// When the first of the revocation lists must have been replaced; none if that does not matter.
    fresh_until: Option<UnixTime>,
}

/// A client's own certificate. In Client-Cert it is a third longer, which servers' limits on a field still allow.
pub(crate) const LEAF_BYTES_MAX: usize = 8 * 1024;
/// All that a client sends, its own included.
pub(crate) const CHAIN_BYTES_MAX: usize = 32 * 1024;
/// The name of subject or issuer, encoded; as text it is at most three times that.
pub(crate) const NAME_BYTES_MAX: usize = 1024;

impl ClientTrust {
    pub fn new(
        auth: &ClientAuth,
        roots: RootCertStore,
        crls: Vec<CertificateRevocationListDer<'static>>,
        fresh_until: Option<UnixTime>,
    ) -> Result<ClientTrust, VerifierBuilderError> {
        let rules = rules(auth, &roots, &crls);
        let mut builder = WebPkiClientVerifier::builder_with_provider(roots.into(), provider().into()).with_crls(crls);
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
        let verifier = Arc::new(Bounded { within: builder.build()?, depth: auth.depth });
        let fresh_until = fresh_until.filter(|_| auth.crl_expired == Leniency::Refuse);
        Ok(ClientTrust { verifier, forward: auth.forward, rules, fresh_until })
    }

    pub fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        self.verifier.clone()
    }

    /// What a ticket is bound to beside its profile: with other rules it does not open.
    pub fn ticket_context(&self, profile: &str) -> String {
        let digits: String = self.rules.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{profile} {digits}")
    }

    pub fn ticketer(&self, within: Ticketer) -> CarefulTicketer {
        CarefulTicketer { within, fresh_until: self.fresh_until }
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

/// The library's verifier, with bounds before it: nothing of what comes after can be made long by a client.
#[derive(Debug)]
struct Bounded {
    within: Arc<dyn ClientCertVerifier>,
    /// Certificates beside the client's own.
    depth: usize,
}

/// More, or longer, certificates than a client may send.
#[derive(Debug)]
pub(crate) struct TooLarge(String);

impl std::fmt::Display for TooLarge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TooLarge {}

impl Bounded {
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

impl ClientCertVerifier for Bounded {
    fn offer_client_auth(&self) -> bool {
        self.within.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.within.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.within.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(leaf, others)?;
        self.within.verify_client_cert(leaf, others, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.within.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.within.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.within.supported_verify_schemes()
    }
}

/// Opens a ticket only while the certificates in it, and the revocation lists they were held against, are in date. When
/// they are not, the client is asked for its certificate again, and the verifier finds the words for what is wrong.
#[derive(Debug)]
pub(crate) struct CarefulTicketer {
    within: Ticketer,
    fresh_until: Option<UnixTime>,
}

impl CarefulTicketer {
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

impl ProducesTickets for CarefulTicketer {
    fn enabled(&self) -> bool {
        self.within.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.within.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        // A state that could not be looked into later is not worth a ticket.
        client_chain(plain)?;
        self.within.encrypt(plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.within.decrypt(cipher).filter(|state| self.is_current(state, UnixTime::now()))
    }
}

/// The client's certificates in the library's session state, whose form is its own business. None if it has changed;
/// then no session is resumed, and a test fails.
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

    /// Bytes behind their count, which has that many bytes itself.
    fn prefixed(&mut self, width: usize) -> Option<&'a [u8]> {
        let count = self.take(width)?.iter().fold(0, |count, byte| count << 8 | usize::from(*byte));
        self.take(count)
    }
}

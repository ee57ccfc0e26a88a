//! tls-alpn-01 (RFC 8737): handshakes by which an authority checks that a name leads here.
//!
//! Such a handshake offers the protocol `acme-tls/1` alone, and names a server with an outstanding challenge. It is
//! served the challenge's certificate, is not asked for one, and nothing follows it. No other handshake is served that
//! certificate, and one for a name without a challenge is refused like any other without a protocol of ours.
//!
//! Challenges are the process's: any listener that an authority connects to answers.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use arc_swap::ArcSwap;
use propylon_config::TlsPolicy;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::hello::client_hello::Peeker;
use crate::provider::captured::SecretsLog;
use crate::provider::{provider, versions};

/// The certificate that answers one challenge, and its key, both in DER.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChallengeCertificate {
    /// Server name, in lower case.
    pub name: String,
    pub certificate: Vec<u8>,
    /// Private key, as PKCS #8.
    pub key: Vec<u8>,
}

const ACME_TLS: &[u8] = b"acme-tls/1";

static OUTSTANDING: LazyLock<ArcSwap<HashMap<String, Arc<ServerConfig>>>> = LazyLock::new(ArcSwap::default);
/// Whether any challenge is outstanding, for the fast path of all handshakes.
static ANY: AtomicBool = AtomicBool::new(false);

/// Answers these challenges from now on, and no others. Challenges that cannot be used are skipped.
pub fn publish_challenges(challenges: Vec<ChallengeCertificate>) {
    let config = |challenge: ChallengeCertificate| Some((challenge.name.clone(), config(challenge)?));
    let outstanding: HashMap<_, _> = challenges.into_iter().filter_map(config).collect();
    let any = !outstanding.is_empty();
    OUTSTANDING.store(Arc::new(outstanding));
    ANY.store(any, Ordering::Release);
}

/// Configuration for the client whose hello is at the front, if it asks for a challenge.
pub(crate) fn answer(buffer: &[u8]) -> Option<Arc<ServerConfig>> {
    if !ANY.load(Ordering::Acquire) {
        return None;
    }
    let mut scratch = Vec::new();
    let hello = Peeker::default().peek(buffer, &mut scratch).ok()??;
    let mut protocols = hello.alpn();
    if protocols.next() != Some(ACME_TLS) || protocols.next().is_some() {
        return None;
    }
    let name = hello.server_name()?.to_ascii_lowercase();
    OUTSTANDING.load().get(&name).cloned()
}

fn config(challenge: ChallengeCertificate) -> Option<Arc<ServerConfig>> {
    let key = PrivateKeyDer::Pkcs8(challenge.key.into());
    let key = any_supported_type(&key).ok()?;
    let chain = vec![CertificateDer::from(challenge.certificate)];
    let resolver = ChallengeResolver(Arc::new(CertifiedKey::new(chain, key)));
    // The authority chooses the version, TLS 1.2 or later (RFC 8737 §3), whatever other clients are offered.
    let policy = TlsPolicy::Intermediate;
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider(&policy)))
        .with_protocol_versions(&versions(&policy))
        .ok()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = vec![ACME_TLS.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.key_log = Arc::new(SecretsLog);
    Some(Arc::new(config))
}

struct ChallengeResolver(Arc<CertifiedKey>);

impl fmt::Debug for ChallengeResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Only").finish_non_exhaustive()
    }
}

impl ResolvesServerCert for ChallengeResolver {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

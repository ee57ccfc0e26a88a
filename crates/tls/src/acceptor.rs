//! One core's way to make sessions: its own library configuration, signing keys and resolver.

use std::sync::Arc;

use propylon_config::{KeyType, TlsPolicy};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{NamedGroup, ServerConfig, SignatureScheme, SupportedProtocolVersion, version};

use crate::handshake::Handshake;
use crate::overheard::{self, SecretsListener};
use crate::profile::{Credential, Names, Profile};
use crate::session::Session;
use crate::tickets::{Ticketer, Tickets};

pub struct Acceptor {
    config: Arc<ServerConfig>,
}

impl Acceptor {
    pub(crate) fn new(profile: &Profile, tickets: &Arc<Tickets>) -> Acceptor {
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider()))
            .with_protocol_versions(versions(profile.policy))
            .expect("the provider has suites for both versions")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Resolver::new(profile)));
        config.alpn_protocols = profile.alpn.clone();
        config.ticketer = Arc::new(Ticketer::new(tickets, &profile.name));
        // Tickets carry the state; a store would be a lock, and memory per client.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 2;
        config.max_early_data_size = 0;
        // Graders ask for it; every suite here is strong, so the order is one of cost: AES-128 first.
        config.ignore_client_order = true;
        config.cert_compression_cache = Arc::new(rustls::compress::CompressionCache::Disabled);
        // Established sessions are kept by `records`, not by the library.
        config.enable_secret_extraction = true;
        config.key_log = Arc::new(SecretsListener);
        Acceptor { config: Arc::new(config) }
    }

    pub fn accept(&self) -> Session {
        Session::new(Handshake::new(&self.config))
    }
}

fn versions(policy: TlsPolicy) -> &'static [&'static SupportedProtocolVersion] {
    const MODERN: &[&SupportedProtocolVersion] = &[&version::TLS13];
    const INTERMEDIATE: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];
    match policy {
        TlsPolicy::Modern => MODERN,
        TlsPolicy::Intermediate => INTERMEDIATE,
    }
}

/// What is offered. Of the suites our order decides, of the groups the client's: one that sends a share only of what it
/// lists first is never sent round again for another.
fn provider() -> CryptoProvider {
    use aws_lc_rs::cipher_suite::*;
    use aws_lc_rs::kx_group::*;
    CryptoProvider {
        cipher_suites: vec![
            TLS13_AES_128_GCM_SHA256,
            TLS13_AES_256_GCM_SHA384,
            TLS13_CHACHA20_POLY1305_SHA256,
            TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
            TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ],
        kx_groups: vec![X25519MLKEM768, X25519, SECP256R1, SECP384R1],
        ..aws_lc_rs::default_provider()
    }
}

/// Picks a certificate for a client.
#[derive(Debug)]
struct Resolver {
    names: Arc<Names>,
    /// Indexed as `names` says.
    keys: Vec<(KeyType, Arc<CertifiedKey>)>,
}

impl Resolver {
    fn new(profile: &Profile) -> Resolver {
        Resolver {
            names: profile.names.clone(),
            keys: profile
                .credentials
                .iter()
                .map(|credential| (credential.kind.key_type(), Arc::new(certified(credential))))
                .collect(),
        }
    }
}

fn certified(credential: &Credential) -> CertifiedKey {
    let key = aws_lc_rs::sign::any_supported_type(&credential.key).expect("parsed once when it was loaded");
    CertifiedKey::new(credential.chain.clone(), key)
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
        overheard::note(|heard| {
            heard.server_name = name.map(Box::from);
            heard.certificate = Some(*key_type);
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

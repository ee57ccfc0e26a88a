//! Files of `[signer.NAME]`: the engine's identity, and the authorities of key servers.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use propylon_config::{At, Signer};
use propylon_crypto::{Key, Ski};
use rustls::client::{VerifierBuilderError, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::{CertifiedKey, SigningKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer};

use super::bundle::{bundle, only_key};
use super::pem::FoundKey;
use super::problem::{Problem, SUPPORTED_KEYS};
use super::trust::authorities;
use super::{chain, key_process};
use crate::certificates::credential::Validity;
use crate::certificates::dated::{Dated, DatedKind};
use crate::certificates::finding::{Finding, Severity};
use crate::certificates::server_auth::ParentStackVerifier;
use crate::provider::exchange::groups_to_key_servers;
use crate::provider::signing::CertificateKey;

/// Loads the configuration of a signer's links, unless something is wrong, and all findings.
pub(crate) fn link_identity(signer: &Signer) -> (Option<LoadedLink>, Vec<Finding>) {
    let now = SystemTime::now();
    let mut roots = RootCertStore::empty();
    let problems = authorities(&signer.ca.path, now, &mut roots);
    let mut findings: Vec<Finding> = problems.into_iter().map(|problem| problem.at(signer.ca.at)).collect();
    let mut problems = Vec::new();
    let identity = identity(&signer.identity.path, signer.allow_world_readable_keys, now, &mut problems);
    findings.extend(problems.into_iter().map(|problem| problem.at(signer.identity.at)));
    if findings.iter().any(|finding| finding.severity == Severity::Error) {
        return (None, findings);
    }
    let Some(identity) = identity else { return (None, findings) };
    let dated = identity.dated(DatedKind::SignerIdentity, &signer.identity.path, signer.identity.at);
    let key_process_ski = identity.key_process_ski;
    match config(roots, identity.chain, identity.key) {
        Ok(config) => (Some(LoadedLink { config, dated, key_process_ski }), findings),
        Err(error) => {
            let problem = Problem::error(&signer.ca.path, error.to_string(), "export the authorities again");
            findings.push(problem.at(signer.ca.at));
            (None, findings)
        }
    }
}

/// The library's configuration for links to key servers.
pub(crate) fn config(
    roots: RootCertStore,
    chain: Vec<CertificateDer<'static>>,
    key: Arc<dyn SigningKey>,
) -> Result<ClientConfig, VerifierBuilderError> {
    // The library's provider, but for its groups: capture of keys and batches are for clients by the thousands.
    let provider = Arc::new(CryptoProvider { kx_groups: groups_to_key_servers(), ..default_provider() });
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build()?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .expect("the provider has suites for both versions")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ParentStackVerifier(verifier)));
    // The method that takes the key's encoding would leave a copy of the key behind.
    let shown = SingleCertAndKey::from(CertifiedKey::new(chain, key));
    Ok(config.with_client_cert_resolver(Arc::new(shown)))
}

/// Loaded files of one `[signer.NAME]`.
pub(crate) struct LoadedLink {
    pub config: ClientConfig,
    /// Expiry of the identity's certificate.
    pub dated: Option<Dated>,
    /// Name of the identity's key at the key process, if it is there.
    pub key_process_ski: Option<Ski>,
}

pub(super) struct Identity {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: Arc<dyn SigningKey>,
    /// Name of the identity's key at the key process, if it is there.
    pub key_process_ski: Option<Ski>,
    validity: Option<Validity>,
}

impl Identity {
    /// Expiry of the certificate.
    pub fn dated(&self, kind: DatedKind, path: &Path, at: At) -> Option<Dated> {
        let Validity { not_before, not_after } = self.validity?;
        Some(Dated { kind, name: String::new(), path: path.into(), from: Some(not_before), until: not_after, at })
    }
}

/// Loads a client certificate with its key; none, with problems, if it cannot be used. Its names do not matter: servers
/// check who has signed it.
pub(super) fn identity(
    path: &Path,
    allow_world_readable: bool,
    now: SystemTime,
    problems: &mut Vec<Problem>,
) -> Option<Identity> {
    let bundle = bundle(path, path, allow_world_readable, problems)?;
    let load = || {
        if bundle.chain.is_empty() {
            let fix = "put the engine's certificate, with its chain, before the key";
            return Err(Problem::error(path, "there is no certificate in this file", fix));
        }
        let unusable = || {
            let what = "the private key cannot be used: it is damaged, or of a type that is not supported";
            Problem::error(path, what, SUPPORTED_KEYS)
        };
        let (key, public_key, key_process_ski) = signing_key(only_key(bundle.keys, path)?).ok_or_else(unusable)?;
        let order = chain::Parsed::new(&bundle.chain, path)?.order(&public_key, path, path)?;
        let (chain, repaired) = chain::put_in_order(bundle.chain, order, path);
        problems.extend(repaired);
        let validity = chain::validity_of(&chain[0]);
        problems.extend(validity.and_then(|validity| chain::aging(validity, now, path)));
        Ok(Identity { chain, key, key_process_ski, validity })
    };
    let published = |identity: &Identity| identity.key_process_ski.and_then(|_| key_process::publish());
    match load().and_then(|identity| published(&identity).map_or(Ok(identity), Err)) {
        Ok(identity) => Some(identity),
        Err(problem) => {
            problems.push(problem);
            None
        }
    }
}

/// A signing key, its SubjectPublicKeyInfo in DER, and its name at the key process if it is there; none for a key that
/// cannot be used.
fn signing_key(key: FoundKey) -> Option<(Arc<dyn SigningKey>, SubjectPublicKeyInfoDer<'static>, Option<Ski>)> {
    match key {
        FoundKey::Local(key) => {
            let key = any_supported_type(&key).ok()?;
            let public = key.public_key()?.into_owned();
            Some((key, public, None))
        }
        FoundKey::KeyProcess(key) => {
            let (public, ski) = (SubjectPublicKeyInfoDer::from(key.public.to_vec()), key.ski);
            Some((Arc::new(CertificateKey::new(Key::Remote(key))), public, Some(ski)))
        }
        FoundKey::Unusable => None,
    }
}

//! What an engine shows to key servers, and whom it takes for one: files of `[signer.NAME]`.

use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use propylon_config::{At, Signer};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use super::trust::authorities;
use super::{FoundKey, SUPPORTED_KEYS, Trouble, bundle, chain, only_key};
use crate::credential::Validity;
use crate::dated::{Dated, DatedKind};
use crate::finding::{Finding, Severity};

/// The library's configuration, unless something is wrong; and every finding.
pub(crate) fn link_identity(signer: &Signer) -> (Option<(ClientConfig, Option<Dated>)>, Vec<Finding>) {
    let now = SystemTime::now();
    let mut roots = RootCertStore::empty();
    let troubles = authorities(&signer.ca.path, now, &mut roots);
    let mut findings: Vec<Finding> = troubles.into_iter().map(|trouble| trouble.at(signer.ca.at)).collect();
    let mut troubles = Vec::new();
    let identity = identity(&signer.identity.path, signer.allow_world_readable_keys, now, &mut troubles);
    findings.extend(troubles.into_iter().map(|trouble| trouble.at(signer.identity.at)));
    if findings.iter().any(|finding| finding.severity == Severity::Error) {
        return (None, findings);
    }
    let Some(identity) = identity else { return (None, findings) };
    let dated = identity.dated(DatedKind::SignerIdentity, &signer.identity.path, signer.identity.at);
    // The ordinary provider: what this crate makes of it, for clients by the thousand, is of no use here.
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .expect("the provider has suites for both versions")
        .with_root_certificates(roots);
    // Not by the door that takes the key's encoding: it would leave a copy of it behind.
    match any_supported_type(&identity.key) {
        Ok(key) => {
            let shown = SingleCertAndKey::from(CertifiedKey::new(identity.chain, key));
            (Some((config.with_client_cert_resolver(Arc::new(shown)), dated)), findings)
        }
        Err(error) => {
            let what = format!("the identity cannot be used: {error}");
            let trouble = Trouble::error(&signer.identity.path, what, "export certificate and key again");
            findings.push(trouble.at(signer.identity.at));
            (None, findings)
        }
    }
}

pub(super) struct Identity {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: Zeroizing<PrivateKeyDer<'static>>,
    validity: Option<Validity>,
}

impl Identity {
    /// When it ends.
    pub fn dated(&self, kind: DatedKind, path: &Path, at: At) -> Option<Dated> {
        let Validity { not_before, not_after } = self.validity?;
        Some(Dated { kind, name: String::new(), path: path.into(), from: Some(not_before), until: not_after, at })
    }
}

/// None, and what is wrong, if it cannot be used. Names in it are nobody's concern: key servers look at who signed it.
pub(super) fn identity(path: &Path, lax: bool, now: SystemTime, troubles: &mut Vec<Trouble>) -> Option<Identity> {
    let bundle = bundle(path, path, lax, troubles)?;
    let load = || {
        if bundle.chain.is_empty() {
            let fix = "put the engine's certificate, with its chain, before the key";
            return Err(Trouble::error(path, "there is no certificate in this file", fix));
        }
        let FoundKey::Here(key) = only_key(bundle.keys, path)? else {
            let what = "the private key cannot be used: it is damaged, or of a type that is not supported";
            return Err(Trouble::error(path, what, SUPPORTED_KEYS));
        };
        let signing_key = any_supported_type(&key).ok();
        let public_key = signing_key.as_ref().and_then(|key| key.public_key()).ok_or_else(|| {
            let what = "the private key cannot be used: it is damaged, or of a type that is not supported";
            Trouble::error(path, what, SUPPORTED_KEYS)
        })?;
        let order = chain::Parsed::new(&bundle.chain, path)?.order(&public_key, path, path)?;
        let (chain, repaired) = chain::put_in_order(bundle.chain, order, path);
        troubles.extend(repaired);
        let validity = chain::validity_of(&chain[0]);
        troubles.extend(validity.and_then(|validity| chain::aging(validity, now, path)));
        Ok(Identity { chain, key, validity })
    };
    match load() {
        Ok(identity) => Some(identity),
        Err(trouble) => {
            troubles.push(trouble);
            None
        }
    }
}

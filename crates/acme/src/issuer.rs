//! Accounts with authorities and the certificates to order by them, from a configuration.

use std::collections::BTreeSet;
use std::path::PathBuf;

use propylon_config::{Acme, CertificateSource, Config, KeyType};

/// One `[acme.NAME]` section, and the certificates that are ordered by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issuer {
    /// The account.
    pub acme: Acme,
    /// Certificates to order, each file once, in the order of the configuration.
    pub wanted: Vec<Wanted>,
    /// Whether other engines of a cluster answer its challenges as well.
    pub is_shared: bool,
}

/// A certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Names that the certificate is for.
    pub names: Vec<String>,
    /// Type of the certificate's key.
    pub key_type: KeyType,
    /// File that the certificate is kept in, with its key.
    pub file: PathBuf,
}

/// The certificates that a configuration orders, by account; accounts that order nothing are left out.
pub fn issuers(config: &Config) -> Vec<Issuer> {
    let is_shared = config.cluster.is_some();
    let mut issuers: Vec<Issuer> =
        config.acmes.iter().map(|acme| Issuer { acme: acme.clone(), wanted: Vec::new(), is_shared }).collect();
    let mut known = BTreeSet::new();
    for certificate in config.tls.iter().flat_map(|tls| &tls.certificates) {
        let CertificateSource::Ordered(ordered) = &certificate.source else { continue };
        let Some(issuer) = issuers.get_mut(ordered.acme.0) else { continue };
        for (key_type, file) in &ordered.files {
            if known.insert(file.clone()) {
                let names = ordered.names.clone();
                issuer.wanted.push(Wanted { names, key_type: *key_type, file: file.clone() });
            }
        }
    }
    issuers.retain(|issuer| !issuer.wanted.is_empty());
    issuers
}

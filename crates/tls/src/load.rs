//! Certificates and keys from files, with everything that is wrong with them.

mod chain;
pub(crate) mod folder;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod link;
mod ocsp;
mod pem;
mod trust;
mod upstream;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use propylon_config::{At, Certificate, CertificateSource, SignerId, TlsProfile};
use propylon_crypto::{PrivateKey, RemoteKey};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use crate::finding::{Finding, Severity};
use crate::profile::{Credential, CredentialKey};
use chain::Leaf;
pub(crate) use link::link_identity;
pub(crate) use trust::client_trust;
pub(crate) use upstream::{Upstream, upstream};

/// What is wrong with a file, before it is said where the configuration names it.
pub(crate) struct Trouble {
    severity: Severity,
    path: PathBuf,
    what: String,
    fix: String,
}

impl Trouble {
    fn error(path: &Path, what: impl Into<String>, fix: impl Into<String>) -> Trouble {
        Trouble { severity: Severity::Error, path: path.into(), what: what.into(), fix: fix.into() }
    }

    fn warning(path: &Path, what: impl Into<String>, fix: impl Into<String>) -> Trouble {
        Trouble { severity: Severity::Warning, ..Trouble::error(path, what, fix) }
    }

    fn at(self, at: At) -> Finding {
        Finding { severity: self.severity, at, path: self.path, what: self.what, fix: self.fix }
    }
}

/// Every credential that can be used, and every finding, in the order of the configuration.
pub(crate) fn credentials(profile: &TlsProfile) -> (Vec<Credential>, Vec<Finding>) {
    let now = SystemTime::now();
    let mut credentials = Vec::new();
    let mut findings = Vec::new();
    for certificate in &profile.certificates {
        let mut troubles = Vec::new();
        for bundle in bundles(&certificate.source, profile.signer.is_some(), &mut troubles) {
            let path = bundle.chain_path.clone();
            if let Some(mut credential) = assemble(bundle, profile.signer, now, &mut troubles) {
                credential.default = certificate.default;
                let response = ocsp_path(certificate, &path);
                credential.staple =
                    ocsp::staple(&response, certificate.ocsp.is_some(), &credential, now, &mut troubles);
                if credential.staple.is_none() && chain::must_staple(&credential.chain[0]) {
                    let what = "the certificate demands a stapled OCSP response (RFC 7633), and there is none";
                    troubles.push(Trouble::warning(&response, what, "put one there: some clients refuse it without"));
                }
                admit(credential, &path, &mut credentials, &mut troubles);
            }
        }
        findings.extend(troubles.into_iter().map(|trouble| trouble.at(certificate.at)));
    }
    if profile.certificates.is_empty() {
        let what = "the profile has no certificates";
        let fix = "list at least one file under `certificates`";
        findings.push(Trouble::error(Path::new(""), what, fix).at(profile.at));
    }
    findings.extend(idle_signer(profile, &credentials));
    (credentials, findings)
}

fn idle_signer(profile: &TlsProfile, credentials: &[Credential]) -> Option<Finding> {
    let local = |credential: &Credential| matches!(credential.key, CredentialKey::Local(_));
    if profile.signer.is_none() || credentials.is_empty() || !credentials.iter().all(local) {
        return None;
    }
    let what = format!("[tls.{}] has a signer, but every certificate has its key beside it", profile.name);
    let fix = "remove the keys that the signer holds, or remove `signer`";
    Some(Trouble::warning(Path::new(""), what, fix).at(profile.at))
}

/// Where the response for a chain is: as configured, or beside the chain, as HAProxy has it.
pub(crate) fn ocsp_path(certificate: &Certificate, chain: &Path) -> PathBuf {
    certificate.ocsp.clone().unwrap_or_else(|| {
        let mut beside = chain.as_os_str().to_owned();
        beside.push(".ocsp");
        beside.into()
    })
}

/// What should be one chain and its key.
struct Bundle {
    chain_path: PathBuf,
    key_path: PathBuf,
    chain: Vec<CertificateDer<'static>>,
    keys: Vec<Zeroizing<PrivateKeyDer<'static>>>,
}

/// With a signer a chain may come without its key.
fn bundles(source: &CertificateSource, signer: bool, troubles: &mut Vec<Trouble>) -> Vec<Bundle> {
    match source {
        CertificateSource::Path(path) if path.is_dir() => folder::bundles(path, signer, troubles),
        CertificateSource::Path(path) => bundle(path, path, troubles).into_iter().collect(),
        CertificateSource::Pair { chain, key } => bundle(chain, key, troubles).into_iter().collect(),
    }
}

fn bundle(chain_path: &Path, key_path: &Path, troubles: &mut Vec<Trouble>) -> Option<Bundle> {
    let together = chain_path == key_path;
    let chain_file = pem::read(chain_path).map_err(|trouble| troubles.push(trouble));
    let key_file = match together {
        true => None,
        false => Some(pem::read(key_path).map_err(|trouble| troubles.push(trouble))),
    };
    let chain_file = chain_file.ok();
    let (chain, key_file) = match (chain_file, key_file) {
        (Some(mut file), None) => (std::mem::take(&mut file.certificates), file),
        (Some(file), Some(Ok(key_file))) => (file.certificates, key_file),
        _ => return None,
    };
    worry_about_readers(&key_file, key_path, troubles);
    Some(Bundle { chain_path: chain_path.into(), key_path: key_path.into(), chain, keys: key_file.keys })
}

fn worry_about_readers(file: &pem::Contents, path: &Path, troubles: &mut Vec<Trouble>) {
    if file.world_readable && !file.keys.is_empty() {
        let fix = format!("chmod o-r {}", path.display());
        troubles.push(Trouble::warning(path, "every account can read this private key", fix));
    }
}

fn assemble(
    bundle: Bundle,
    signer: Option<SignerId>,
    now: SystemTime,
    troubles: &mut Vec<Trouble>,
) -> Option<Credential> {
    let checked = match signer {
        Some(signer) if bundle.keys.is_empty() => check_remote(bundle, signer, now, troubles),
        _ => check(bundle, now, troubles),
    };
    match checked {
        Ok(credential) => Some(credential),
        Err(trouble) => {
            troubles.push(trouble);
            None
        }
    }
}

fn check(bundle: Bundle, now: SystemTime, troubles: &mut Vec<Trouble>) -> Result<Credential, Trouble> {
    let Bundle { chain_path, key_path, chain, keys } = bundle;
    if chain.is_empty() {
        let fix = "add the certificate and its intermediates as PEM";
        return Err(Trouble::error(&chain_path, "there is no certificate in this file", fix));
    }
    let key = only_key(keys, &key_path)?;
    let leaf = Leaf::inspect(&chain, &chain_path)?;
    let Ok(parsed) = PrivateKey::from_der(key.secret_der()) else {
        // The usual reason shows in the certificate that is meant for it.
        leaf.kind.map_err(|why| unsupported(&chain_path, &why))?;
        let what = "the private key cannot be used: it is damaged, or of a type that is not supported";
        return Err(Trouble::error(&key_path, what, SUPPORTED_KEYS));
    };
    let (chain, repaired) = chain::order(chain, &parsed.public_info().into(), &chain_path, &key_path)?;
    troubles.extend(repaired);
    credential(chain, CredentialKey::Local(key), chain_path, now, troubles)
}

/// A chain whose key is at a signer: the first certificate is taken for the server's own.
fn check_remote(
    bundle: Bundle,
    signer: SignerId,
    now: SystemTime,
    troubles: &mut Vec<Trouble>,
) -> Result<Credential, Trouble> {
    let Bundle { chain_path, chain, .. } = bundle;
    if chain.is_empty() {
        let fix = "add the certificate and its intermediates as PEM";
        return Err(Trouble::error(&chain_path, "there is no certificate in this file", fix));
    }
    // The usual reason why a key cannot be used shows in the certificate.
    Leaf::inspect(&chain, &chain_path)?.kind.map_err(|why| unsupported(&chain_path, &why))?;
    let public_key = chain::public_key(&chain[0], &chain_path)?;
    let signer = u16::try_from(signer.0).unwrap_or(u16::MAX);
    let key = RemoteKey::new(signer, &public_key).map_err(|why| unsupported(&chain_path, &why.to_string()))?;
    let (chain, repaired) = chain::order(chain, &public_key, &chain_path, &chain_path)?;
    troubles.extend(repaired);
    credential(chain, CredentialKey::Remote(key), chain_path, now, troubles)
}

fn credential(
    chain: Vec<CertificateDer<'static>>,
    key: CredentialKey,
    chain_path: PathBuf,
    now: SystemTime,
    troubles: &mut Vec<Trouble>,
) -> Result<Credential, Trouble> {
    let leaf = Leaf::inspect(&chain, &chain_path)?;
    let kind = leaf.kind.map_err(|why| unsupported(&chain_path, &why))?;
    troubles.extend(chain::worries(&chain[0], now, &chain_path));
    let not_after = chain::not_after(&chain[0]);
    Ok(Credential {
        chain,
        key,
        kind,
        names: leaf.names,
        default: false,
        not_after,
        path: chain_path,
        staple: None,
        compressed: [None, None],
    })
}

const SUPPORTED_KEYS: &str =
    "use an ECDSA key on P-256, P-384 or P-521, an Ed25519 key, or an RSA key of 2048 to 8192 bits";

fn unsupported(path: &Path, why: &str) -> Trouble {
    Trouble::error(path, format!("the certificate's key is not supported: {why}"), SUPPORTED_KEYS)
}

fn only_key(
    mut keys: Vec<Zeroizing<PrivateKeyDer<'static>>>,
    path: &Path,
) -> Result<Zeroizing<PrivateKeyDer<'static>>, Trouble> {
    match (keys.pop(), keys.len()) {
        (Some(key), 0) => Ok(key),
        (Some(_), others) => {
            let what = format!("there are {} private keys in this file", others + 1);
            Err(Trouble::error(path, what, "keep the one that belongs to the first certificate"))
        }
        (None, _) => {
            let fix = "append the key as PEM, name its file: { chain = \"...\", key = \"...\" }, or name a `signer` that has it";
            Err(Trouble::error(path, "there is no private key in this file", fix))
        }
    }
}

/// Adds a credential, without the names that an earlier one of the same key type already stands for.
fn admit(mut credential: Credential, path: &Path, credentials: &mut Vec<Credential>, troubles: &mut Vec<Trouble>) {
    let taken = |name: &str| {
        let same = |other: &&Credential| other.kind == credential.kind && other.names.iter().any(|n| &**n == name);
        credentials.iter().find(same).is_some()
    };
    let (ignored, kept): (Vec<_>, Vec<_>) =
        std::mem::take(&mut credential.names).into_iter().partition(|name| taken(name));
    if !ignored.is_empty() {
        let kind = credential.kind.name();
        let what = format!("an earlier {kind} certificate already stands for {}", ignored.join(", "));
        let fix = "the later one is ignored for these names; remove one of the two";
        troubles.push(Trouble::warning(path, what, fix));
    }
    let useless = kept.is_empty() && !ignored.is_empty();
    credential.names = kept;
    if !useless {
        credentials.push(credential);
    }
}

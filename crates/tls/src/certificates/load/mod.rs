//! Certificates and keys from files, with everything that is wrong with them.

mod beside;
mod chain;
pub(crate) mod folder;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod link;
mod ocsp;
mod pem;
mod profile;
mod side_by_side;
mod trust;
mod upstream;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use propylon_config::{At, Certificate, SignerId, TlsProfile};
use propylon_crypto::{OPEN_TO_ALL, RemoteKey};
use rustls_pki_types::CertificateDer;

use crate::certificates::credential::{Chain, Credential, CredentialKey, Interner, Material, Seen};
use crate::certificates::finding::{Finding, Severity};
pub use beside::{find_ordered_keys_in, hold_keys_beside, key_files};
use chain::{Leaf, Parsed};
#[cfg(test)]
pub(crate) use link::config as link_config;
pub(crate) use link::{LoadedLink, link_identity};
use pem::FoundKey;
use profile::{Entry, Item, Loading};
pub use trust::KEY_BESIDE_AUTHORITIES;
pub(crate) use trust::client_trust;
pub(crate) use upstream::{Upstream, upstream};

/// What is wrong with a file, before it is said where the configuration names it.
pub(crate) struct Trouble {
    severity: Severity,
    path: PathBuf,
    what: String,
    fix: String,
    error: Option<ErrorKind>,
}

impl Trouble {
    fn error(path: &Path, what: impl Into<String>, fix: impl Into<String>) -> Trouble {
        Trouble { severity: Severity::Error, path: path.into(), what: what.into(), fix: fix.into(), error: None }
    }

    fn warning(path: &Path, what: impl Into<String>, fix: impl Into<String>) -> Trouble {
        Trouble { severity: Severity::Warning, ..Trouble::error(path, what, fix) }
    }

    fn at(self, at: At) -> Finding {
        let Trouble { severity, path, what, fix, error } = self;
        Finding { severity, at, path, what, fix, error }
    }
}

/// Every credential that can be used, and every finding, in the order of the configuration. What looks as it did when
/// `earlier` was made of it is not read again, and what cannot be used any more stays as it was there.
pub(crate) fn credentials(profile: &TlsProfile, earlier: &[Arc<Credential>]) -> (Vec<Arc<Credential>>, Vec<Finding>) {
    let loading = Loading::new(profile, earlier);
    let mut findings = Vec::new();
    let (entries, items): (Vec<_>, Vec<_>) = profile.certificates.iter().map(Entry::list).unzip();
    let lens: Vec<usize> = items.iter().map(Vec::len).collect();
    let items: Vec<Item<'_>> = items.into_iter().flatten().collect();
    // Of what is read again the rest of the cores have work of their own.
    let cores = if earlier.is_empty() { usize::MAX } else { side_by_side::QUARTER };
    let mut read = side_by_side::map(items, cores, |item| loading.read(item)).into_iter();
    let mut candidates = Vec::new();
    for (entry, len) in entries.into_iter().zip(lens) {
        let at = entry.certificate.at;
        let (found, troubles) = loading.conclude(entry, read.by_ref().take(len), cores);
        candidates.extend(found);
        findings.extend(troubles.into_iter().map(|trouble| trouble.at(at)));
    }
    if profile.certificates.is_empty() {
        let what = "the profile has no certificates";
        let fix = "list at least one file under `certificates`";
        findings.push(Trouble::error(Path::new(""), what, fix).at(profile.at));
    }
    findings.extend(beside::publish().map(|trouble| trouble.at(profile.at)));
    let credentials = loading.admit(&candidates, &mut findings);
    findings.extend(idle_signer(profile, &credentials));
    let new = credentials.iter().filter(|credential| !loading.knows(credential));
    let mut findings = bounded(findings);
    findings.extend(expiring(new, loading.now));
    // Stable: what is said of one entry stays in its order.
    findings.sort_by_key(|finding| (finding.at.line, finding.at.column));
    (credentials, findings)
}

/// Brotli takes milliseconds for a chain.
pub(crate) fn compress(credentials: &[Arc<Credential>]) {
    side_by_side::map(credentials.iter().collect(), usize::MAX, |credential| credential.compress());
}

/// Warnings of those that have expired or soon will, as many as people read, in the order in which they come.
pub(crate) fn expiring<'a>(credentials: impl Iterator<Item = &'a Arc<Credential>>, now: SystemTime) -> Vec<Finding> {
    let aging = |credential: &Arc<Credential>| {
        let material = &credential.material;
        Some(chain::aging(material.validity, now, &material.path)?.at(credential.at))
    };
    bounded(credentials.filter_map(aging).collect())
}

/// Findings of one weight that are told one by one.
const TOLD_MAX: usize = 100;

/// What is wrong with every one of 50,000 files is the same with most of them.
fn bounded(findings: Vec<Finding>) -> Vec<Finding> {
    let (mut told, mut more) = (Vec::new(), Vec::new());
    for severity in [Severity::Error, Severity::Warning] {
        let fitting = || findings.iter().filter(|finding| finding.severity == severity);
        if let Some(first_untold) = fitting().nth(TOLD_MAX) {
            let what = format!("the same, or the like, is to be said of {} more files", fitting().count() - TOLD_MAX);
            let fix = "see to those that are named, and look again".to_string();
            more.push(Finding { what, fix, ..first_untold.clone() });
        }
    }
    let mut left = [TOLD_MAX; 2];
    for finding in findings {
        let left = &mut left[usize::from(finding.severity == Severity::Error)];
        if *left > 0 {
            *left -= 1;
            told.push(finding);
        }
    }
    told.extend(more);
    told
}

fn idle_signer(profile: &TlsProfile, credentials: &[Arc<Credential>]) -> Option<Finding> {
    let remote = |credential: &Arc<Credential>| credential.material.is_remote();
    if profile.signer.is_none() || credentials.is_empty() || credentials.iter().any(remote) {
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
    keys: Vec<FoundKey>,
    /// Absent where reading the two files again could give another bundle, however they look.
    seen: Option<Seen>,
}

fn bundle(chain_path: &Path, key_path: &Path, lax: bool, troubles: &mut Vec<Trouble>) -> Option<Bundle> {
    bundle_of(pem::read_with_keys(chain_path), chain_path, key_path, lax, troubles)
}

/// One that was ordered: its key may be with the process that has made it.
fn ordered_bundle(path: &Path, lax: bool, troubles: &mut Vec<Trouble>) -> Option<Bundle> {
    bundle_of(pem::read_ordered(path), path, path, lax, troubles)
}

fn bundle_of(
    chain_file: Result<pem::Contents, Trouble>,
    chain_path: &Path,
    key_path: &Path,
    lax: bool,
    troubles: &mut Vec<Trouble>,
) -> Option<Bundle> {
    let together = chain_path == key_path;
    let chain_file = chain_file.map_err(|trouble| troubles.push(trouble));
    let key_file = match together {
        true => None,
        false => Some(pem::read_with_keys(key_path).map_err(|trouble| troubles.push(trouble))),
    };
    let chain_file = chain_file.ok();
    let chain_look = chain_file.as_ref().and_then(|file| file.look);
    let (chain, key_file) = match (chain_file, key_file) {
        (Some(mut file), None) => (std::mem::take(&mut file.certificates), file),
        (Some(file), Some(Ok(key_file))) => (file.certificates, key_file),
        _ => return None,
    };
    if !may_be_used(&key_file, key_path, lax, troubles) {
        return None;
    }
    let seen = match together {
        true => key_file.look.map(|look| Seen { chain: look, key: None }),
        false => chain_look.zip(key_file.look).map(|(chain, key)| Seen { chain, key: Some(key) }),
    };
    Some(Bundle { chain_path: chain_path.into(), key_path: key_path.into(), chain, keys: key_file.keys, seen })
}

/// Whether a key that every account can get at is to be used all the same: where that is allowed (`lax`).
fn may_be_used(file: &pem::Contents, path: &Path, lax: bool, troubles: &mut Vec<Trouble>) -> bool {
    if !file.open_to_all || file.keys.is_empty() {
        return true;
    }
    let close = format!("chmod o= {}", path.display());
    if lax {
        troubles.push(Trouble::warning(path, OPEN_TO_ALL, close));
        return true;
    }
    let fix = format!("{close}, or set `allow_world_readable_keys` in [process] if that is meant");
    troubles.push(Trouble::error(path, OPEN_TO_ALL, fix));
    false
}

/// What a bundle is worth. Its age is another matter: that it changes takes no reading.
fn assemble(
    bundle: Bundle,
    signer: Option<SignerId>,
    interner: &Interner,
    troubles: &mut Vec<Trouble>,
) -> Option<Material> {
    let checked = match signer {
        Some(signer) if bundle.keys.is_empty() => check_remote(bundle, signer, interner, troubles),
        _ => check(bundle, interner, troubles),
    };
    checked.map_err(|trouble| troubles.push(trouble)).ok()
}

fn check(bundle: Bundle, interner: &Interner, troubles: &mut Vec<Trouble>) -> Result<Material, Trouble> {
    let Bundle { chain_path, key_path, chain, keys, seen } = bundle;
    if chain.is_empty() {
        return Err(no_certificate(&chain_path));
    }
    let key = only_key(keys, &key_path)?;
    let certificates = Parsed::new(&chain, &chain_path)?;
    let Some(public) = key.public_info() else {
        // The usual reason shows in the certificate that is meant for it.
        certificates.leaf(&None).kind.map_err(|why| unsupported(&chain_path, &why))?;
        let what = "the private key cannot be used: it is damaged, or of a type that is not supported";
        return Err(Trouble::error(&key_path, what, SUPPORTED_KEYS));
    };
    let order = certificates.order(&public.into(), &chain_path, &key_path)?;
    let leaf = certificates.leaf(&order);
    let (chain, repaired) = chain::put_in_order(chain, order, &chain_path);
    troubles.extend(repaired);
    let key_path = (key_path != chain_path).then_some(key_path);
    material(
        leaf,
        Chain::new(chain, interner),
        credential_key(key)
            .ok_or_else(|| Trouble::error(&chain_path, "the private key cannot be used", SUPPORTED_KEYS))?,
        Origin { chain_path, key_path, seen },
        troubles,
    )
}

fn credential_key(key: FoundKey) -> Option<CredentialKey> {
    match key {
        FoundKey::Here(key) => Some(CredentialKey::Local(key)),
        FoundKey::Beside(key) => Some(CredentialKey::Beside(key)),
        FoundKey::Unusable => None,
    }
}

/// A chain whose key is at a signer: the first certificate is taken for the server's own.
fn check_remote(
    bundle: Bundle,
    signer: SignerId,
    interner: &Interner,
    troubles: &mut Vec<Trouble>,
) -> Result<Material, Trouble> {
    let Bundle { chain_path, chain, seen, .. } = bundle;
    let certificates = Parsed::new(&chain, &chain_path)?;
    // The usual reason why a key cannot be used shows in the certificate.
    certificates.leaf(&None).kind.map_err(|why| unsupported(&chain_path, &why))?;
    let public_key = certificates.public_key();
    let signer = u16::try_from(signer.0).unwrap_or(u16::MAX);
    let key = RemoteKey::new(signer, &public_key).map_err(|why| unsupported(&chain_path, &why.to_string()))?;
    let order = certificates.order(&public_key, &chain_path, &chain_path)?;
    let leaf = certificates.leaf(&order);
    let (chain, repaired) = chain::put_in_order(chain, order, &chain_path);
    troubles.extend(repaired);
    let origin = Origin { chain_path, key_path: None, seen };
    material(leaf, Chain::new(chain, interner), CredentialKey::Remote(key), origin, troubles)
}

struct Origin {
    chain_path: PathBuf,
    key_path: Option<PathBuf>,
    seen: Option<Seen>,
}

fn material(
    leaf: Leaf,
    chain: Chain,
    key: CredentialKey,
    origin: Origin,
    troubles: &mut Vec<Trouble>,
) -> Result<Material, Trouble> {
    let Origin { chain_path: path, key_path, seen } = origin;
    troubles.extend(leaf.worries(&path));
    let Leaf { kind, names, addresses, validity, must_staple, .. } = leaf;
    let kind = kind.map_err(|why| unsupported(&path, &why))?;
    let (names, addresses) = (names.into(), addresses.into());
    Ok(Material { chain, key, kind, names, addresses, validity, must_staple, path, key_path, seen })
}

fn no_certificate(path: &Path) -> Trouble {
    Trouble::error(path, "there is no certificate in this file", "add the certificate and its intermediates as PEM")
}

const SUPPORTED_KEYS: &str =
    "use an ECDSA key on P-256, P-384 or P-521, an Ed25519 key, or an RSA key of 2048 to 8192 bits";

fn unsupported(path: &Path, why: &str) -> Trouble {
    Trouble::error(path, format!("the certificate's key is not supported: {why}"), SUPPORTED_KEYS)
}

fn only_key(mut keys: Vec<FoundKey>, path: &Path) -> Result<FoundKey, Trouble> {
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

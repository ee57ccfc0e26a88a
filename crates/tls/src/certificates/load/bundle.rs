//! A chain and its key as files hold them, and whether they belong together.

use std::path::{Path, PathBuf};

use propylon_config::SignerId;
use propylon_crypto::{OPEN_TO_ALL, RemoteKey};
use rustls_pki_types::CertificateDer;

use super::chain::{self, Leaf, Parsed};
use super::pem::{self, FoundKey};
use super::problem::{Problem, SUPPORTED_KEYS, no_certificate, unsupported};
use crate::certificates::credential::{Chain, CredentialKey, FileStamps, Interner, Material};

/// Contents of the files that should be one chain and its key.
pub(super) struct Bundle {
    pub chain_path: PathBuf,
    pub key_path: PathBuf,
    pub chain: Vec<CertificateDer<'static>>,
    pub keys: Vec<FoundKey>,
    /// Metadata of the files; absent where reading the two again could give another bundle even with the same metadata.
    pub stamps: Option<FileStamps>,
}

pub(super) fn bundle(
    chain_path: &Path,
    key_path: &Path,
    allow_world_readable: bool,
    problems: &mut Vec<Problem>,
) -> Option<Bundle> {
    bundle_of(pem::read_with_keys(chain_path), chain_path, key_path, allow_world_readable, problems)
}

/// Bundle of an ordered certificate, whose key may be in the key process.
pub(super) fn ordered_bundle(path: &Path, allow_world_readable: bool, problems: &mut Vec<Problem>) -> Option<Bundle> {
    bundle_of(pem::read_ordered(path), path, path, allow_world_readable, problems)
}

fn bundle_of(
    chain_file: Result<pem::Contents, Problem>,
    chain_path: &Path,
    key_path: &Path,
    allow_world_readable: bool,
    problems: &mut Vec<Problem>,
) -> Option<Bundle> {
    let together = chain_path == key_path;
    let chain_file = chain_file.map_err(|problem| problems.push(problem));
    let key_file = match together {
        true => None,
        false => Some(pem::read_with_keys(key_path).map_err(|problem| problems.push(problem))),
    };
    let chain_file = chain_file.ok();
    let chain_stamp = chain_file.as_ref().and_then(|file| file.file_stamp);
    let (chain, key_file) = match (chain_file, key_file) {
        (Some(mut file), None) => (std::mem::take(&mut file.certificates), file),
        (Some(file), Some(Ok(key_file))) => (file.certificates, key_file),
        _ => return None,
    };
    if !may_be_used(&key_file, key_path, allow_world_readable, problems) {
        return None;
    }
    let stamps = match together {
        true => key_file.file_stamp.map(|file_stamp| FileStamps { chain: file_stamp, key: None }),
        false => chain_stamp.zip(key_file.file_stamp).map(|(chain, key)| FileStamps { chain, key: Some(key) }),
    };
    Some(Bundle { chain_path: chain_path.into(), key_path: key_path.into(), chain, keys: key_file.keys, stamps })
}

/// Whether a key from a world-readable file may be used: only with `allow_world_readable`, with a warning.
pub(super) fn may_be_used(
    file: &pem::Contents,
    path: &Path,
    allow_world_readable: bool,
    problems: &mut Vec<Problem>,
) -> bool {
    if !file.open_to_all || file.keys.is_empty() {
        return true;
    }
    let close = format!("chmod o= {}", path.display());
    if allow_world_readable {
        problems.push(Problem::warning(path, OPEN_TO_ALL, close));
        return true;
    }
    let fix = format!("{close}, or set `allow_world_readable_keys` in [process] if that is meant");
    problems.push(Problem::error(path, OPEN_TO_ALL, fix));
    false
}

/// Checks that chain and key belong together. Validity is not checked here: it changes without the files being read.
pub(super) fn assemble(
    bundle: Bundle,
    signer: Option<SignerId>,
    interner: &Interner,
    problems: &mut Vec<Problem>,
) -> Option<Material> {
    let checked = match signer {
        Some(signer) if bundle.keys.is_empty() => check_remote(bundle, signer, interner, problems),
        _ => check(bundle, interner, problems),
    };
    checked.map_err(|problem| problems.push(problem)).ok()
}

fn check(bundle: Bundle, interner: &Interner, problems: &mut Vec<Problem>) -> Result<Material, Problem> {
    let Bundle { chain_path, key_path, chain, keys, stamps } = bundle;
    if chain.is_empty() {
        return Err(no_certificate(&chain_path));
    }
    let key = only_key(keys, &key_path)?;
    let certificates = Parsed::new(&chain, &chain_path)?;
    let Some(public) = key.public_info() else {
        // The certificate usually shows the reason.
        certificates.leaf(&None).kind.map_err(|why| unsupported(&chain_path, &why))?;
        let what = "the private key cannot be used: it is damaged, or of a type that is not supported";
        return Err(Problem::error(&key_path, what, SUPPORTED_KEYS));
    };
    let order = certificates.order(&public.into(), &chain_path, &key_path)?;
    let leaf = certificates.leaf(&order);
    let (chain, repaired) = chain::put_in_order(chain, order, &chain_path);
    problems.extend(repaired);
    let key_path = (key_path != chain_path).then_some(key_path);
    material(
        leaf,
        Chain::new(chain, interner),
        credential_key(key)
            .ok_or_else(|| Problem::error(&chain_path, "the private key cannot be used", SUPPORTED_KEYS))?,
        Origin { chain_path, key_path, stamps },
        problems,
    )
}

fn credential_key(key: FoundKey) -> Option<CredentialKey> {
    match key {
        FoundKey::Local(key) => Some(CredentialKey::Local(key)),
        FoundKey::KeyProcess(key) => Some(CredentialKey::KeyProcess(key)),
        FoundKey::Unusable => None,
    }
}

/// Checks a chain whose key is at a signer: its first certificate is taken for the leaf.
fn check_remote(
    bundle: Bundle,
    signer: SignerId,
    interner: &Interner,
    problems: &mut Vec<Problem>,
) -> Result<Material, Problem> {
    let Bundle { chain_path, chain, stamps, .. } = bundle;
    let certificates = Parsed::new(&chain, &chain_path)?;
    // The certificate usually shows why a key cannot be used.
    certificates.leaf(&None).kind.map_err(|why| unsupported(&chain_path, &why))?;
    let public_key = certificates.public_key();
    // As many signers as have no number of their own are never made.
    let signer = u32::try_from(signer.0).unwrap_or(u32::MAX - 1);
    let key = RemoteKey::new(signer, &public_key).map_err(|why| unsupported(&chain_path, &why.to_string()))?;
    let order = certificates.order(&public_key, &chain_path, &chain_path)?;
    let leaf = certificates.leaf(&order);
    let (chain, repaired) = chain::put_in_order(chain, order, &chain_path);
    problems.extend(repaired);
    let origin = Origin { chain_path, key_path: None, stamps };
    material(leaf, Chain::new(chain, interner), CredentialKey::Remote(key), origin, problems)
}

struct Origin {
    chain_path: PathBuf,
    key_path: Option<PathBuf>,
    stamps: Option<FileStamps>,
}

fn material(
    leaf: Leaf,
    chain: Chain,
    key: CredentialKey,
    origin: Origin,
    problems: &mut Vec<Problem>,
) -> Result<Material, Problem> {
    let Origin { chain_path: path, key_path, stamps } = origin;
    problems.extend(leaf.worries(&path));
    let Leaf { kind, names, addresses, validity, must_staple, .. } = leaf;
    let kind = kind.map_err(|why| unsupported(&path, &why))?;
    let (names, addresses) = (names.into(), addresses.into());
    Ok(Material { chain, key, kind, names, addresses, validity, must_staple, path, key_path, stamps })
}

pub(super) fn only_key(mut keys: Vec<FoundKey>, path: &Path) -> Result<FoundKey, Problem> {
    match (keys.pop(), keys.len()) {
        (Some(key), 0) => Ok(key),
        (Some(_), others) => {
            let what = format!("there are {} private keys in this file", others + 1);
            Err(Problem::error(path, what, "keep the one that belongs to the first certificate"))
        }
        (None, _) => {
            let fix = "append the key as PEM, name its file: { chain = \"...\", key = \"...\" }, or name a `signer` that has it";
            Err(Problem::error(path, "there is no private key in this file", fix))
        }
    }
}

//! A folder of certificates: files with chain and key together, or keys and the chains that belong to them apart, as
//! certbot (`fullchain.pem`, `privkey.pem`) and Kubernetes (`tls.crt`, `tls.key`) leave them.

use std::fs;
use std::path::{Path, PathBuf};

use propylon_crypto::PrivateKey;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use super::{Bundle, Trouble, chain, pem, worry_about_readers};

/// What is looked at; a folder may hold a README and OCSP responses as well.
const EXTENSIONS: [&str; 4] = ["pem", "crt", "cer", "key"];

/// A file with certificates and no key.
struct Chain {
    path: PathBuf,
    certificates: Vec<CertificateDer<'static>>,
    /// A key for it was found.
    claimed: bool,
}

/// A file with keys and no certificate.
struct Keys {
    path: PathBuf,
    keys: Vec<Zeroizing<PrivateKeyDer<'static>>>,
}

/// With a signer chains without keys are as good as those with them.
pub(super) fn bundles(directory: &Path, signer: bool, troubles: &mut Vec<Trouble>) -> Vec<Bundle> {
    let (mut bundles, mut chains, mut keys) = (Vec::new(), Vec::new(), Vec::new());
    let before = troubles.len();
    for path in files(directory, troubles) {
        let file = match pem::read(&path) {
            Ok(file) => file,
            Err(trouble) => {
                troubles.push(trouble);
                continue;
            }
        };
        worry_about_readers(&file, &path, troubles);
        match (file.certificates.is_empty(), file.keys.is_empty()) {
            (false, true) => chains.push(Chain { path, certificates: file.certificates, claimed: false }),
            (true, false) => keys.push(Keys { path, keys: file.keys }),
            (_, _) => bundles.push(Bundle {
                chain_path: path.clone(),
                key_path: path,
                chain: file.certificates,
                keys: file.keys,
            }),
        }
    }
    for file in keys {
        bundles.extend(with_chain(file, &mut chains, troubles));
    }
    chains.retain(|chain| !chain.claimed && !chain::is_authority(&chain.certificates[0]));
    if signer {
        bundles.extend(without_keys(std::mem::take(&mut chains)));
    }
    for chain in &chains {
        let fix = "add its key to the folder, or take the certificate out of it";
        troubles.push(Trouble::error(&chain.path, "there is no private key for this certificate in the folder", fix));
    }
    if bundles.is_empty() && troubles.len() == before {
        let fix = "add one, as .pem, or as .crt and .key";
        troubles.push(Trouble::error(directory, "the directory has no certificate with its private key", fix));
    }
    bundles
}

/// All that may be part of a certificate.
pub(crate) fn files(directory: &Path, troubles: &mut Vec<Trouble>) -> Vec<PathBuf> {
    named(directory, &EXTENSIONS, troubles)
}

/// The `*.pem` alone: where no keys belong, of authorities and revocation lists.
pub(crate) fn pem_files(directory: &Path, troubles: &mut Vec<Trouble>) -> Vec<PathBuf> {
    let before = troubles.len();
    let files = named(directory, &["pem"], troubles);
    if files.is_empty() && troubles.len() == before {
        let fix = "put files in it, their names ending in .pem";
        troubles.push(Trouble::error(directory, "the directory has no .pem file", fix));
    }
    files
}

/// By name; hidden files (`..data` of a mounted secret) are not looked at.
fn named(directory: &Path, extensions: &[&str], troubles: &mut Vec<Trouble>) -> Vec<PathBuf> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => {
            troubles.push(pem::unreadable(directory, &error));
            return Vec::new();
        }
    };
    let is_meant = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        extensions.iter().any(|known| known.eq_ignore_ascii_case(extension)) && !hidden && !path.is_dir()
    };
    let mut files: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| is_meant(path)).collect();
    files.sort();
    files
}

/// The longest chain of each certificate.
fn without_keys(mut chains: Vec<Chain>) -> Vec<Bundle> {
    chains.sort_by_key(|chain| std::cmp::Reverse(chain.certificates.len()));
    let mut bundles: Vec<Bundle> = Vec::new();
    for Chain { path, certificates, .. } in chains {
        if bundles.iter().all(|longer| longer.chain[0] != certificates[0]) {
            let key_path = path.clone();
            bundles.push(Bundle { chain_path: path, key_path, chain: certificates, keys: Vec::new() });
        }
    }
    bundles.sort_by(|one, other| one.chain_path.cmp(&other.chain_path));
    bundles
}

/// A key with the longest chain that is for it: certbot's folder has the leaf alone beside the whole chain.
fn with_chain(file: Keys, chains: &mut [Chain], troubles: &mut Vec<Trouble>) -> Option<Bundle> {
    let Keys { path, keys } = file;
    let mut chain = None;
    if let [key] = keys.as_slice() {
        let Ok(key) = PrivateKey::from_der(key.secret_der()) else {
            let what = "the private key cannot be used: it is damaged, or of a type that is not supported";
            troubles.push(Trouble::error(&path, what, super::SUPPORTED_KEYS));
            return None;
        };
        for candidate in chains.iter_mut() {
            if candidate.certificates.iter().any(|certificate| chain::is_for(certificate, &key.public_info().into())) {
                candidate.claimed = true;
                let longest: &mut Option<&Chain> = &mut chain;
                if longest.is_none_or(|longest| candidate.certificates.len() > longest.certificates.len()) {
                    *longest = Some(candidate);
                }
            }
        }
    }
    let Some(chain) = chain else {
        let what = match keys.len() {
            1 => "no certificate in the folder belongs to this private key".to_string(),
            many => format!("there are {many} private keys in this file and no certificate"),
        };
        troubles.push(Trouble::error(&path, what, "put one key beside its chain"));
        return None;
    };
    Some(Bundle { chain_path: chain.path.clone(), key_path: path, chain: chain.certificates.clone(), keys })
}

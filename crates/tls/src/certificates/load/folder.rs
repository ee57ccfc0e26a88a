//! Folders of certificates: files with chain and key together, or with keys and chains apart, as certbot
//! (`fullchain.pem`, `privkey.pem`) and Kubernetes (`tls.crt`, `tls.key`) leave them.

use std::collections::{HashMap, HashSet};
use std::fs::{self, DirEntry, FileType};
use std::path::{Path, PathBuf};

use rustls_pki_types::CertificateDer;

use super::bundle::Bundle;
use super::chain;
use super::pem::{Contents, FoundKey};
use super::problem::{Problem, SUPPORTED_KEYS, unreadable};

/// Extensions of files that are read; a folder may hold a README and OCSP responses as well.
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
    keys: Vec<FoundKey>,
}

/// Pairs chains with keys from files that hold one of them alone. With a signer, chains without keys are good as well.
pub(super) fn pair(parts: Vec<(PathBuf, Contents)>, signer: bool, problems: &mut Vec<Problem>) -> Vec<Bundle> {
    let (mut bundles, mut chains, mut keys) = (Vec::new(), Vec::new(), Vec::new());
    for (path, file) in parts {
        match file.keys.is_empty() {
            true => chains.push(Chain { path, certificates: file.certificates, claimed: false }),
            false => keys.push(Keys { path, keys: file.keys }),
        }
    }
    // Certificates are parsed once, not for every key: a folder may hold tens of thousands.
    let mut by_key: HashMap<Vec<u8>, Vec<usize>> = HashMap::new();
    for (index, chain) in chains.iter().enumerate().filter(|_| !keys.is_empty()) {
        for key in chain::public_keys(&chain.certificates) {
            by_key.entry(key).or_default().push(index);
        }
    }
    for file in keys {
        bundles.extend(with_chain(file, &mut chains, &by_key, problems));
    }
    chains.retain(|chain| !chain.claimed && !chain::is_authority(&chain.certificates[0]));
    if signer {
        bundles.extend(without_keys(std::mem::take(&mut chains)));
    }
    for chain in &chains {
        let fix = "add its key to the folder, or take the certificate out of it";
        problems.push(Problem::error(&chain.path, "there is no private key for this certificate in the folder", fix));
    }
    bundles
}

/// Files that may hold parts of certificates, by name, and the OCSP responses beside them.
pub(crate) struct Listing {
    pub files: Vec<PathBuf>,
    pub responses: HashSet<PathBuf>,
}

pub(crate) fn list(directory: &Path, problems: &mut Vec<Problem>) -> Listing {
    let all = named(directory, &[&EXTENSIONS[..], &["ocsp"]].concat(), problems);
    let is_response = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "ocsp");
    let (responses, files) = all.into_iter().partition::<Vec<_>, _>(is_response);
    Listing { files, responses: responses.into_iter().collect() }
}

/// The `*.pem` files of a folder of authorities or revocation lists.
pub(crate) fn pem_files(directory: &Path, problems: &mut Vec<Problem>) -> Vec<PathBuf> {
    let before = problems.len();
    let files = named(directory, &["pem"], problems);
    if files.is_empty() && problems.len() == before {
        let fix = "put files in it, their names ending in .pem";
        problems.push(Problem::error(directory, "the directory has no .pem file", fix));
    }
    files
}

/// Files with these extensions, sorted by name. Hidden files (`..data` of a mounted secret) are skipped.
fn named(directory: &Path, extensions: &[&str], problems: &mut Vec<Problem>) -> Vec<PathBuf> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => {
            problems.push(unreadable(directory, &error));
            return Vec::new();
        }
    };
    let is_meant = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        extensions.iter().any(|known| known.eq_ignore_ascii_case(extension)) && !hidden
    };
    // The listing has the types of all entries but links.
    let is_folder =
        |entry: &DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir() || leads_to_folder(kind, entry));
    let entries = entries.flatten().filter(|entry| is_meant(&entry.path()) && !is_folder(entry));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn leads_to_folder(kind: FileType, entry: &DirEntry) -> bool {
    kind.is_symlink() && entry.path().is_dir()
}

/// The longest chain of each leaf.
fn without_keys(mut chains: Vec<Chain>) -> Vec<Bundle> {
    chains.sort_by_key(|chain| std::cmp::Reverse(chain.certificates.len()));
    let mut bundles: Vec<Bundle> = Vec::new();
    let mut known = HashSet::new();
    for Chain { path, certificates, .. } in chains {
        if known.insert(certificates[0].clone()) {
            let key_path = path.clone();
            bundles.push(Bundle { chain_path: path, key_path, chain: certificates, keys: Vec::new(), stamps: None });
        }
    }
    bundles.sort_by(|one, other| one.chain_path.cmp(&other.chain_path));
    bundles
}

/// Pairs a key with the longest chain that is for it: certbot's folder has the leaf alone as well.
fn with_chain(
    file: Keys,
    chains: &mut [Chain],
    by_key: &HashMap<Vec<u8>, Vec<usize>>,
    problems: &mut Vec<Problem>,
) -> Option<Bundle> {
    let Keys { path, keys } = file;
    let mut chain = None;
    if let [key] = keys.as_slice() {
        let Some(public) = key.public_info() else {
            let what = "the private key cannot be used: it is damaged, or of a type that is not supported";
            problems.push(Problem::error(&path, what, SUPPORTED_KEYS));
            return None;
        };
        for &index in by_key.get(&public).into_iter().flatten() {
            let len = chains[index].certificates.len();
            chains[index].claimed = true;
            if chain.is_none_or(|longest: usize| len > chains[longest].certificates.len()) {
                chain = Some(index);
            }
        }
    }
    let Some(chain) = chain.map(|index| &chains[index]) else {
        let what = match keys.len() {
            1 => "no certificate in the folder belongs to this private key".to_string(),
            many => format!("there are {many} private keys in this file and no certificate"),
        };
        problems.push(Problem::error(&path, what, "put one key beside its chain"));
        return None;
    };
    Some(Bundle {
        chain_path: chain.path.clone(),
        key_path: path,
        chain: chain.certificates.clone(),
        keys,
        stamps: None,
    })
}

//! PEM files with certificates and keys, in any order.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;
use std::time::SystemTime;

use propylon_config::Ordered;
use propylon_crypto::key_process::{Failure, KeptKey, Purpose, Unread};
use propylon_crypto::pem::{self, PemLabel, PemSection};
use propylon_crypto::{PrivateKey, RemoteKey, is_open_to_all};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use super::problem::{ONE_CHAIN, Problem, TOO_LONG, encrypted, malformed, unreadable, unsupported};
use super::{chain, key_process};
use crate::certificates::file_stamp::FileStamp;

pub(super) struct Contents {
    pub certificates: Vec<CertificateDer<'static>>,
    pub keys: Vec<FoundKey>,
    pub open_to_all: bool,
    /// Metadata of the file; absent where it is too new to tell changes by it.
    pub file_stamp: Option<FileStamp>,
}

/// A private key of a file.
pub(super) enum FoundKey {
    Local(Zeroizing<PrivateKeyDer<'static>>),
    /// The key process holds the key.
    KeyProcess(RemoteKey),
    /// The section cannot be parsed as a key.
    Unusable,
}

impl FoundKey {
    /// SubjectPublicKeyInfo in DER; none where the key cannot be used.
    pub fn public_info(&self) -> Option<Vec<u8>> {
        match self {
            FoundKey::Local(key) => Some(PrivateKey::from_der(key.secret_der()).ok()?.public_info().to_vec()),
            FoundKey::KeyProcess(key) => Some(key.public.to_vec()),
            FoundKey::Unusable => None,
        }
    }
}

/// Limit of a file with chain and key, which take some 10 KB: a longer one is another kind of file, or an endless
/// device.
const FILE_BYTES_MAX: u64 = 1 << 20;
pub(super) fn read(path: &Path) -> Result<Contents, Problem> {
    let (text, metadata) = text(path).map_err(|error| unreadable(path, &error))?;
    let open_to_all = is_open_to_all(&metadata);
    let file_stamp = FileStamp::settled(&metadata, SystemTime::now());
    Ok(Contents { file_stamp, ..parse(&text, open_to_all, path)? })
}

/// Reads a file that may hold keys, by the key process where there is one.
pub(super) fn read_with_keys(path: &Path) -> Result<Contents, Problem> {
    let Some(files) = key_process::key_files() else { return read(path) };
    let file = files.read(path).map_err(|failure| key_process::problem(path, failure))?;
    if file.keys.is_empty() && file.has_dsa {
        return Err(unsupported(path, "DSA"));
    }
    Ok(Contents {
        certificates: file.certificates.into_iter().map(CertificateDer::from).collect(),
        keys: file.keys.into_iter().map(found_in_key_process).collect(),
        open_to_all: file.open_to_all,
        file_stamp: FileStamp::of_numbers(file.file_stamp, SystemTime::now()),
    })
}

/// Reads a file of an ordered certificate ([`Ordered`]): chain and key or, where a key process makes the keys, the
/// chain alone.
pub(super) fn read_ordered(path: &Path) -> Result<Contents, Problem> {
    const ANEW: &str = "it is set aside, and another ordered in its place";
    let (files, folder) = (key_process::key_files(), key_process::ordered_keys());
    let contents = read(path)?;
    if files.is_none() && folder.is_none() {
        return Ok(contents);
    }
    if !contents.keys.is_empty() {
        return Err(Problem::error(path, "it has a private key, which with keys.isolate is not to be here", ANEW));
    }
    let Some(kept) = kept_key(path, &contents) else { return Ok(contents) };
    let lost = || Problem {
        error: Some(io::ErrorKind::NotFound),
        ..Problem::error(path, "the key process does not have its key", ANEW)
    };
    let (keys, open_to_all) = match (files, folder) {
        (Some(files), _) => match files.read_kept(&kept) {
            Ok(file) => (file.keys.into_iter().map(found_in_key_process).collect(), file.open_to_all),
            Err(Failure::Unread(Unread::Missing)) => return Err(lost()),
            Err(failure) => return Err(key_process::problem(path, failure)),
        },
        (None, folder) => {
            let file = folder.map(|folder| folder.join(kept.to_string())).unwrap_or_default();
            if std::fs::metadata(&file).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                return Err(lost());
            }
            let file = read(&file)?;
            (file.keys, file.open_to_all)
        }
    };
    Ok(Contents { keys, open_to_all, ..contents })
}

/// Name under which the key of a chain's first certificate is stored.
fn kept_key(path: &Path, contents: &Contents) -> Option<KeptKey> {
    let public = chain::public_keys(&contents.certificates).into_iter().next()?;
    let ski = RemoteKey::new(RemoteKey::KEY_PROCESS, &public).ok()?.ski;
    KeptKey::new(Ordered::account_of(path)?, ski, Purpose::Certificate)
}

fn found_in_key_process(public: Option<Vec<u8>>) -> FoundKey {
    let key = public.and_then(|public| RemoteKey::new(RemoteKey::KEY_PROCESS, &public).ok());
    key.map_or(FoundKey::Unusable, FoundKey::KeyProcess)
}

pub(super) fn parse(text: &[u8], open_to_all: bool, path: &Path) -> Result<Contents, Problem> {
    if text.len() as u64 > FILE_BYTES_MAX {
        let fix = ONE_CHAIN;
        return Err(Problem::error(path, TOO_LONG, fix));
    }
    if has_encrypted_key(text) {
        return Err(encrypted(path));
    }
    let mut contents = Contents { certificates: Vec::new(), keys: Vec::new(), open_to_all, file_stamp: None };
    for section in pem::sections(text) {
        match section {
            Ok(PemSection { label: PemLabel::Certificate, der }) => contents.certificates.push(der.to_vec().into()),
            Ok(section) => contents.keys.extend(private_key(section)),
            Err(error) => return Err(malformed(path, &error)),
        }
    }
    if contents.keys.is_empty() && mentions(text, b"BEGIN DSA PRIVATE KEY") {
        return Err(unsupported(path, "DSA"));
    }
    Ok(contents)
}

/// The private key of a section; none for other sections (curve parameters, a CSR).
fn private_key(mut section: PemSection) -> Option<FoundKey> {
    // The DER is moved, not copied: the key's owner wipes it.
    let der = std::mem::take(&mut *section.der);
    Some(FoundKey::Local(Zeroizing::new(match section.label {
        PemLabel::PrivateKey => PrivateKeyDer::Pkcs8(der.into()),
        PemLabel::RsaPrivateKey => PrivateKeyDer::Pkcs1(der.into()),
        PemLabel::EcPrivateKey => PrivateKeyDer::Sec1(der.into()),
        // Other sections are not decoded, and are empty.
        PemLabel::Certificate | PemLabel::EncryptedPrivateKey | PemLabel::Other => return None,
    })))
}

/// Reads a file without secrets.
pub(super) fn bytes(path: &Path, max: u64) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(max + 1).read_to_end(&mut bytes));
    read.map_err(|error| unreadable(path, &error))?;
    if bytes.len() as u64 > max {
        let what = format!("this file is longer than {} MiB", max >> 20);
        return Err(Problem::error(path, what, "name a file with one revocation list"));
    }
    Ok(bytes)
}

fn text(path: &Path) -> io::Result<(Zeroizing<Vec<u8>>, Metadata)> {
    // Metadata of the opened file: one renamed over it meanwhile has other metadata.
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    // The buffer is allocated once: one that grows would leave copies of the key behind.
    let room = metadata.len().min(FILE_BYTES_MAX) as usize + 2;
    let mut text = Zeroizing::new(Vec::with_capacity(room));
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
    Ok((text, metadata))
}

fn has_encrypted_key(text: &[u8]) -> bool {
    mentions(text, b"BEGIN ENCRYPTED PRIVATE KEY") || mentions(text, b"Proc-Type: 4,ENCRYPTED")
}

fn mentions(text: &[u8], phrase: &[u8]) -> bool {
    text.windows(phrase.len()).any(|window| window == phrase)
}

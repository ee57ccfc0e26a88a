//! One PEM file: its certificates and keys, in whatever order.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::Path;
use std::time::SystemTime;

use propylon_crypto::is_open_to_all;
use propylon_crypto::pem::{self, PemLabel, PemSection};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use zeroize::Zeroizing;

use super::Trouble;
use crate::watch::Look;

pub(super) struct Contents {
    pub certificates: Vec<CertificateDer<'static>>,
    pub keys: Vec<Zeroizing<PrivateKeyDer<'static>>>,
    pub open_to_all: bool,
    /// Absent where the file must be read again to be sure of what it holds.
    pub look: Option<Look>,
}

/// A chain and a key take some 10 KB; what is longer is another kind of file, or a device without end.
const FILE_BYTES_MAX: u64 = 1 << 20;

pub(super) fn read(path: &Path) -> Result<Contents, Trouble> {
    let (text, metadata) = text(path).map_err(|error| unreadable(path, &error))?;
    let open_to_all = is_open_to_all(&metadata);
    let look = Look::settled(&metadata, SystemTime::now());
    Ok(Contents { look, ..parse(&text, open_to_all, path)? })
}

pub(super) fn parse(text: &[u8], open_to_all: bool, path: &Path) -> Result<Contents, Trouble> {
    if text.len() as u64 > FILE_BYTES_MAX {
        let fix = "name a PEM file with one chain and its key";
        return Err(Trouble::error(path, "this file is longer than 1 MiB", fix));
    }
    if has_encrypted_key(text) {
        return Err(encrypted(path));
    }
    let mut contents = Contents { certificates: Vec::new(), keys: Vec::new(), open_to_all, look: None };
    for section in pem::sections(text) {
        match section {
            Ok(PemSection { label: PemLabel::Certificate, der }) => contents.certificates.push(der.to_vec().into()),
            Ok(section) => contents.keys.extend(private_key(section)),
            Err(error) => {
                let what = format!("this is not well-formed PEM: {error}");
                return Err(Trouble::error(path, what, "export the file again"));
            }
        }
    }
    if contents.keys.is_empty() && mentions(text, b"BEGIN DSA PRIVATE KEY") {
        return Err(super::unsupported(path, "DSA"));
    }
    Ok(contents)
}

/// Sections that are neither certificate nor key (curve parameters, a CSR) are no business of ours.
fn private_key(mut section: PemSection) -> Option<Zeroizing<PrivateKeyDer<'static>>> {
    // Moved, not copied: who holds the key now wipes it.
    let der = std::mem::take(&mut *section.der);
    Some(Zeroizing::new(match section.label {
        PemLabel::PrivateKey => PrivateKeyDer::Pkcs8(der.into()),
        PemLabel::RsaPrivateKey => PrivateKeyDer::Pkcs1(der.into()),
        PemLabel::EcPrivateKey => PrivateKeyDer::Sec1(der.into()),
        // Not decoded: empty.
        PemLabel::Certificate | PemLabel::EncryptedPrivateKey | PemLabel::Other => return None,
    }))
}

/// A file that holds nothing secret.
pub(super) fn bytes(path: &Path, max: u64) -> Result<Vec<u8>, Trouble> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(max + 1).read_to_end(&mut bytes));
    read.map_err(|error| unreadable(path, &error))?;
    if bytes.len() as u64 > max {
        let what = format!("this file is longer than {} MiB", max >> 20);
        return Err(Trouble::error(path, what, "name a file with one revocation list"));
    }
    Ok(bytes)
}

fn text(path: &Path) -> io::Result<(Zeroizing<Vec<u8>>, Metadata)> {
    // Of the very file that is read: one renamed over it meanwhile looks different.
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    // Room for all of it at once: a buffer that grows leaves copies of the key behind.
    let room = metadata.len().min(FILE_BYTES_MAX) as usize + 2;
    let mut text = Zeroizing::new(Vec::with_capacity(room));
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
    Ok((text, metadata))
}

pub(super) fn unreadable(path: &Path, error: &io::Error) -> Trouble {
    let (what, fix) = match error.kind() {
        io::ErrorKind::NotFound => {
            let fix = "relative paths begin at the configuration file's own folder";
            ("there is no such file".to_string(), fix)
        }
        io::ErrorKind::PermissionDenied => {
            let fix = "let the account that starts Propylon read it";
            ("this file cannot be read: permission denied".to_string(), fix)
        }
        _ => (format!("this file cannot be read: {error}"), "make it readable"),
    };
    Trouble::error(path, what, fix)
}

fn has_encrypted_key(text: &[u8]) -> bool {
    mentions(text, b"BEGIN ENCRYPTED PRIVATE KEY") || mentions(text, b"Proc-Type: 4,ENCRYPTED")
}

fn encrypted(path: &Path) -> Trouble {
    let file = path.display();
    let fix = format!("decrypt it: openssl pkey -in {file} -out key.pem && chmod 600 key.pem");
    Trouble::error(path, "the private key is encrypted", fix)
}

fn mentions(text: &[u8], phrase: &[u8]) -> bool {
    text.windows(phrase.len()).any(|window| window == phrase)
}

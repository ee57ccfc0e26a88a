//! Certificates and keys in PEM files. `doing` begins the errors: an option, or what the file is read for.

use crate::failure::{Failure, Outcome, While};
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;

/// Chain and key in one file, as `certificates` writes them.
pub fn read_identity(doing: &str, path: &Path) -> Outcome<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let doing = format!("{doing} {}", path.display());
    Ok((read_chain(&doing, path)?, PrivateKeyDer::from_pem_file(path).when(&doing)?))
}

/// Certificates to trust.
pub fn read_roots(doing: &str, path: &Path) -> Outcome<RootCertStore> {
    let doing = format!("{doing} {}", path.display());
    let mut roots = RootCertStore::empty();
    for certificate in read_chain(&doing, path)? {
        roots.add(certificate).when(&doing)?;
    }
    Ok(roots)
}

fn read_chain(doing: &str, path: &Path) -> Outcome<Vec<CertificateDer<'static>>> {
    let chain = CertificateDer::pem_file_iter(path).when(doing)?.collect::<Result<Vec<_>, _>>().when(doing)?;
    if chain.is_empty() { Err(Failure::new(format!("{doing}: no certificate is in it"))) } else { Ok(chain) }
}

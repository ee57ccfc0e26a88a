//! `[keys]`, as meant.

use std::collections::HashSet;
use std::path::Path;

use super::{At, CertificateSource, Config, NamedFile, StateFolder};

/// Where private keys are.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    /// Where it is written that a process of its own holds them, beside the one that serves. Absent: that one does.
    pub isolate: Option<At>,
    /// The folder in which that process keeps certificates that came by the admin API, with their keys, and the keys of
    /// ordered ones and of accounts with authorities. Absent: it takes none, and none can be ordered.
    pub store: Option<StateFolder>,
}

impl Config {
    /// Files and folders in which this configuration has private keys, with the chains beside them: where a process of its own
    /// holds keys, it alone reads these. Each with where it is named.
    pub fn key_files(&self) -> Vec<(&Path, At)> {
        let mut files: Vec<(&Path, At)> = Vec::new();
        for certificate in self.tls.iter().flat_map(|tls| &tls.certificates) {
            match &certificate.source {
                CertificateSource::Path(path) => files.push((path, certificate.at)),
                CertificateSource::Pair { chain, key } => {
                    files.extend([(&**chain, certificate.at), (key, certificate.at)])
                }
                // The key is in `keys.store`, and the file has the chain alone.
                CertificateSource::Ordered(_) => {}
            }
            files.extend(certificate.ocsp.iter().map(|path| (&**path, certificate.at)));
        }
        let towards = self.backends.iter().filter_map(|backend| backend.tls.as_ref());
        files.extend(towards.filter_map(|tls| tls.certificate.as_ref()).map(|file| (&*file.path, file.at)));
        files.extend(self.signers.iter().map(|signer| (&*signer.identity.path, signer.identity.at)));
        files
    }

    /// What else it names and this process uses: all, where it holds its keys itself.
    pub fn other_files(&self) -> Vec<NamedFile<'_>> {
        let mut files = self.named_files();
        if self.keys.isolate.is_some() {
            let keys: HashSet<&Path> = self.key_files().into_iter().map(|(path, _)| path).collect();
            files.retain(|file| !keys.contains(file.path));
        }
        files
    }
}

//! The resolved model of `[keys]`.

use std::collections::HashSet;
use std::path::Path;

use serde::Serialize;

use super::{At, CertificateSource, Config, NamedFile, StateFolder};
use crate::shown;

/// Storage of private keys: `[keys]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Keys {
    /// Position of `isolate = true`: private keys are held by a process of their own. Absent: by the process that
    /// serves connections.
    #[serde(serialize_with = "shown::is_there")]
    pub isolate: Option<At>,
    /// Folder in which the key process keeps certificates that came by the admin API, with their keys, and the keys of
    /// ordered certificates and of ACME accounts. Absent: the key process accepts no certificates, and none can be
    /// ordered.
    pub store: Option<StateFolder>,
}

impl Config {
    /// Files and folders with private keys, and the chains beside them, each with its position in the configuration. An
    /// isolated key process is the only one that reads these.
    pub fn key_files(&self) -> Vec<(&Path, At)> {
        let mut files: Vec<(&Path, At)> = Vec::new();
        for certificate in self.tls.iter().flat_map(|tls| &tls.certificates) {
            match &certificate.source {
                CertificateSource::Path(path) => files.push((path, certificate.at)),
                CertificateSource::Pair { chain, key } => {
                    files.extend([(&**chain, certificate.at), (key, certificate.at)])
                }
                // The key is in `keys.store`, and the file has only the chain.
                CertificateSource::Ordered(_) => {}
            }
            files.extend(certificate.ocsp.iter().map(|path| (&**path, certificate.at)));
        }
        let towards = self.backends.iter().filter_map(|backend| backend.tls.as_ref());
        files.extend(towards.filter_map(|tls| tls.certificate.as_ref()).map(|file| (&*file.path, file.at)));
        files.extend(self.signers.iter().map(|signer| (&*signer.identity.path, signer.identity.at)));
        files
    }

    /// All other named files, which this process uses: every named file where it holds its keys itself.
    pub fn other_files(&self) -> Vec<NamedFile<'_>> {
        let mut files = self.named_files();
        if self.keys.isolate.is_some() {
            let keys: HashSet<&Path> = self.key_files().into_iter().map(|(path, _)| path).collect();
            files.retain(|file| !keys.contains(file.path));
        }
        files
    }
}

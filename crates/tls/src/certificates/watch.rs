//! Detection of changed files behind a profile.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use aws_lc_rs::digest::{Context, SHA256};
use propylon_config::{BackendTls, CertificateSource, Signer, TlsProfile};

use super::file_stamp::FileStamp;
use super::load::{folder, ocsp_path};

/// Metadata of a profile's files at a moment. Symbolic links are followed: a link that leads elsewhere is a change
/// (that is how Kubernetes swaps a secret), and so is a file renamed over another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Digest of paths and metadata, so that 50,000 files take no more room than one; absent before the first look.
    files: Option<[u8; 32]>,
    /// Some file was so new that it may change again with the same metadata.
    unsettled: bool,
}

impl Stamp {
    /// Stamp of files that were read at an unknown time: the next look finds them changed.
    pub fn unread() -> Stamp {
        Stamp { files: None, unsettled: true }
    }

    /// Takes the stamp of a profile's files. It has to be taken before they are read: a change meanwhile is then
    /// detected.
    pub fn take(profile: &TlsProfile, now: SystemTime) -> Stamp {
        Stamp::of(paths(profile), now)
    }

    /// Takes the stamp of the identity and the authorities of a signer; otherwise as [`Stamp::take`].
    pub fn of_signer(signer: &Signer, now: SystemTime) -> Stamp {
        let mut paths = vec![signer.identity.path.clone()];
        with_files_of(&signer.ca.path, &mut paths);
        Stamp::of(paths, now)
    }

    /// Takes the stamp of the client certificate and the authorities of a backend; otherwise as [`Stamp::take`].
    pub fn of_backend(tls: &BackendTls, now: SystemTime) -> Stamp {
        let mut paths: Vec<PathBuf> = tls.certificate.iter().map(|certificate| certificate.path.clone()).collect();
        tls.ca.iter().for_each(|trust| with_files_of(&trust.path, &mut paths));
        Stamp::of(paths, now)
    }

    /// Takes the stamp of one file; otherwise as [`Stamp::take`].
    pub fn of_file(path: &Path, now: SystemTime) -> Stamp {
        Stamp::of(vec![path.to_path_buf()], now)
    }

    fn of(paths: Vec<PathBuf>, now: SystemTime) -> Stamp {
        let mut files = Context::new(&SHA256);
        let mut unsettled = false;
        for path in paths {
            let metadata = fs::metadata(&path).ok();
            unsettled |= metadata.as_ref().is_some_and(|metadata| !FileStamp::is_settled(metadata, now));
            // No path holds a zero byte, and metadata is of one length: two different lists have different digests.
            files.update(path.as_os_str().as_encoded_bytes());
            files.update(&[0]);
            files.update(&metadata.map_or([0; 40], |metadata| FileStamp::of(&metadata).bytes()));
        }
        Stamp { files: files.finish().as_ref().try_into().ok(), unsettled }
    }

    /// Whether the files have to be read again, by the stamp `later`.
    pub fn is_changed(&self, later: &Stamp) -> bool {
        self.unsettled || self.files != later.files
    }
}

/// All files that loading the profile reads. Whoever makes it read more adds them here.
fn paths(profile: &TlsProfile) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for certificate in &profile.certificates {
        let mut with_response = |chain: &Path| {
            paths.push(chain.to_path_buf());
            paths.push(ocsp_path(certificate, chain));
        };
        match &certificate.source {
            CertificateSource::Path(path) if path.is_dir() => {
                let folder::Listing { files, responses } = folder::list(path, &mut Vec::new());
                paths.extend(files);
                // Sorted, since a set has no order.
                let before = paths.len();
                paths.extend(responses);
                paths[before..].sort();
                paths.extend(certificate.ocsp.clone());
            }
            CertificateSource::Path(path) => with_response(path),
            CertificateSource::Pair { chain, key } => {
                with_response(chain);
                paths.push(key.clone());
            }
            CertificateSource::Ordered(ordered) => ordered.files.iter().for_each(|(_, file)| with_response(file)),
        }
    }
    let trusts = profile.client_auth.iter().flat_map(|auth| auth.ca.iter().chain(&auth.crl));
    for trust in trusts {
        with_files_of(&trust.path, &mut paths);
    }
    paths
}

/// Adds the file, or the files of the folder.
fn with_files_of(path: &Path, paths: &mut Vec<PathBuf>) {
    match path.is_dir() {
        true => paths.extend(folder::pem_files(path, &mut Vec::new())),
        false => paths.push(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use propylon_config::{At, Certificate, KeyType, TlsPolicy};

    fn profile(path: PathBuf) -> TlsProfile {
        let source = CertificateSource::Path(path);
        TlsProfile {
            name: "public".into(),
            certificates: vec![Certificate { source, ocsp: None, default: false, uploaded: false, at: At::default() }],
            policy: TlsPolicy::Modern,
            prefer: vec![KeyType::Rsa],
            strict_sni: false,
            watch: None,
            certificate_compression: false,
            resumption: Default::default(),
            client_auth: None,
            ja4: false,
            signer: None,
            allow_world_readable_keys: false,
            at: At::default(),
        }
    }

    /// Long after any file here was written.
    fn later() -> SystemTime {
        SystemTime::now() + Duration::from_secs(3600)
    }

    #[test]
    fn renames_links_and_responses_are_changes_and_time_alone_is_none() {
        let folder = std::env::temp_dir().join(format!("propylon-watch-{}", std::process::id()));
        fs::create_dir_all(folder.join("one")).unwrap();
        fs::create_dir_all(folder.join("two")).unwrap();
        for (path, text) in [("one/a.pem", "same"), ("two/a.pem", "same")] {
            fs::write(folder.join(path), text).unwrap();
        }
        std::os::unix::fs::symlink("one", folder.join("..data")).unwrap();
        std::os::unix::fs::symlink("..data/a.pem", folder.join("a.pem")).unwrap();
        for profile in [profile(folder.join("a.pem")), profile(folder.clone())] {
            let first = Stamp::take(&profile, later());
            assert!(!first.is_changed(&Stamp::take(&profile, later())));
            std::os::unix::fs::symlink("two", folder.join("..new")).unwrap();
            fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
            let second = Stamp::take(&profile, later());
            assert!(first.is_changed(&second));
            fs::write(folder.join("new"), "same").unwrap();
            fs::rename(folder.join("new"), folder.join("two/a.pem")).unwrap();
            let third = Stamp::take(&profile, later());
            assert!(second.is_changed(&third));
            fs::write(folder.join("a.pem.ocsp"), "").unwrap();
            assert!(third.is_changed(&Stamp::take(&profile, later())));
            fs::remove_file(folder.join("a.pem.ocsp")).unwrap();
            std::os::unix::fs::symlink("one", folder.join("..new")).unwrap();
            fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
        }
        let young = Stamp::take(&profile(folder.clone()), SystemTime::now());
        assert!(young.is_changed(&young.clone()), "a file of this moment is looked at once more");
        fs::remove_dir_all(folder).unwrap();
    }
}

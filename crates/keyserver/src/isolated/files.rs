//! What a key process reads: files with certificates and keys, of which it says all but the keys; and what it holds of them.
//!
//! An engine that somebody has got into asks as well. It is told certificates, OCSP responses and its own configuration, and
//! nothing of any other file but that it is none of these.

use std::collections::{HashMap, HashSet};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use propylon_config::SOURCE_BYTES_MAX;
use propylon_crypto::key_process::{Answer, KeyFile, Order, Question, SECTIONS_MAX, Setup, Unread};
use propylon_crypto::pem::{self, PemLabel};
use propylon_crypto::{Key, PrivateKey, Ski, is_open_to_all};
use zeroize::Zeroizing;

use crate::keys::{Keys, Origin};

/// A chain and a key take some 10 KB; what is longer is another kind of file, or a device without end.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Responses are 0.5 to 3 KB.
const RESPONSE_BYTES_MAX: u64 = 64 * 1024;
/// As many as are held at once.
const KEYS_MAX: usize = 200_000;

pub struct Files {
    /// Keys that every account can get at are held.
    lax: bool,
    config: PathBuf,
    /// Each with the highest stamp that it was read with.
    held: HashMap<Ski, (PrivateKey, u64)>,
    /// Those that were said to be in use.
    kept: HashSet<Ski>,
    /// Where is to be known which files keys are in.
    supervisor: Option<OwnedFd>,
    /// Those that it knows of.
    told: HashSet<PathBuf>,
    /// Others are to be found by who asks for signatures.
    changed: bool,
}

impl Files {
    pub fn new(setup: &Setup, supervisor: Option<OwnedFd>) -> Files {
        Files {
            lax: setup.lax,
            config: setup.config.clone(),
            held: HashMap::new(),
            kept: HashSet::new(),
            supervisor,
            told: HashSet::new(),
            changed: false,
        }
    }

    pub fn count(&self) -> usize {
        self.held.len()
    }

    /// For those who sign.
    pub fn keys(&self) -> Keys {
        let found = self.held.values().map(|(key, _)| (Key::Local(key.clone()), Origin::File(Path::new(""))));
        Keys::new(found, &[])
    }

    /// Whether [`Files::keys`] is another since this was last asked.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub fn answer(&mut self, question: Question) -> Answer {
        match question {
            Question::Read { path, stamp } => self.read(&path, stamp),
            Question::Response(path) => bytes(&path, RESPONSE_BYTES_MAX, is_response),
            Question::Config => bytes(&self.config, SOURCE_BYTES_MAX as u64, |_| true),
            Question::Publish => {
                self.changed = true;
                Answer::Done
            }
            Question::Keep(skis) => {
                let room = KEYS_MAX.saturating_sub(self.kept.len());
                self.kept.extend(skis.into_iter().take(room));
                Answer::Done
            }
            Question::Forget(stamp) => {
                let kept = std::mem::take(&mut self.kept);
                let before = self.held.len();
                self.held.retain(|ski, (_, read)| *read > stamp || kept.contains(ski));
                self.changed |= self.held.len() < before;
                Answer::Done
            }
        }
    }

    /// Says what is in a file, and holds its keys.
    pub fn read(&mut self, path: &Path, stamp: u64) -> Answer {
        let (text, metadata) = match text(path, FILE_BYTES_MAX) {
            Ok(read) => read,
            Err(why) => return Answer::Unread(why),
        };
        let open_to_all = is_open_to_all(&metadata);
        let may_be_held = self.lax || !open_to_all;
        let mut file = KeyFile { look: look(&metadata), open_to_all, ..KeyFile::default() };
        let mut keys = Vec::new();
        for section in pem::sections(&text) {
            let section = match section {
                Ok(section) => section,
                Err(error) => return Answer::Unread(Unread::Malformed(error.to_string())),
            };
            match section.label {
                PemLabel::EncryptedPrivateKey => return Answer::Unread(Unread::Encrypted),
                PemLabel::Certificate => file.certificates.push(section.der.to_vec()),
                label if label.is_private_key() => {
                    let key = PrivateKey::from_der(&section.der).ok();
                    file.keys.push(key.as_ref().map(|key| key.public_info().to_vec()));
                    keys.extend(key);
                }
                _ => {}
            }
            if file.certificates.len() + file.keys.len() > SECTIONS_MAX {
                return Answer::Unread(Unread::TooLong);
            }
        }
        file.has_dsa = text.windows(DSA.len()).any(|part| part == DSA);
        let has_keys = !keys.is_empty();
        if may_be_held {
            for key in keys {
                if self.held.len() >= KEYS_MAX && !self.held.contains_key(&key.ski()) {
                    return Answer::Unread(Unread::Failed(format!("there are more than {KEYS_MAX} keys")));
                }
                let held = self.held.entry(key.ski()).or_insert((key, stamp));
                held.1 = held.1.max(stamp);
            }
        }
        if has_keys && may_be_held {
            self.tell(path);
        }
        Answer::File(file)
    }

    /// So that another process reads it again, should this one end.
    fn tell(&mut self, path: &Path) {
        let Some(supervisor) = &self.supervisor else { return };
        if self.told.len() < KEYS_MAX && self.told.insert(path.into()) {
            let _ = propylon_sys::send_message(supervisor, &Order::File(path.into()).to_bytes(), &[]);
        }
    }
}

const DSA: &[u8] = b"BEGIN DSA PRIVATE KEY";

fn look(metadata: &Metadata) -> [u64; 5] {
    let ns = |seconds: i64, ns: i64| seconds.wrapping_mul(1_000_000_000).wrapping_add(ns) as u64;
    let (modified, changed) =
        (ns(metadata.mtime(), metadata.mtime_nsec()), ns(metadata.ctime(), metadata.ctime_nsec()));
    [metadata.dev(), metadata.ino(), metadata.size(), modified, changed]
}

/// A file's content, in memory that is wiped, and what the very file that was read looked like.
fn text(path: &Path, max: u64) -> Result<(Zeroizing<Vec<u8>>, Metadata), Unread> {
    let failed = |error: io::Error| Unread::of(&error);
    // Of a pipe nobody waits for the other end.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(Unread::Failed("it is not a file".into()));
    }
    if metadata.len() > max {
        return Err(Unread::TooLong);
    }
    let text = whole(file, metadata.len(), max).map_err(failed)?;
    if text.len() as u64 > max { Err(Unread::TooLong) } else { Ok((text, metadata)) }
}

fn whole(file: File, length: u64, max: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    // Room for all of it at once: a buffer that grows leaves copies of the key behind.
    let mut text = Zeroizing::new(Vec::with_capacity(length as usize + 2));
    file.take((length + 1).min(max + 1)).read_to_end(&mut text)?;
    Ok(text)
}

fn bytes(path: &Path, max: u64, may_be_told: fn(&[u8]) -> bool) -> Answer {
    match text(path, max) {
        Ok((text, _)) if may_be_told(&text) => Answer::Bytes(text.to_vec()),
        Ok(_) => Answer::Unread(Unread::Other),
        Err(why) => Answer::Unread(why),
    }
}

/// Whether it has the form of an OCSP response (RFC 6960 §4.2.1), which no other file has: what is in it is not looked at.
fn is_response(der: &[u8]) -> bool {
    const BASIC: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 0x30, 1, 1];
    let is = || -> Option<bool> {
        let body = only(0x30, der)?;
        let (status, rest) = element(0x0a, body)?;
        if rest.is_empty() {
            return Some(status.len() == 1 && status[0] != 0);
        }
        let (kind, rest) = element(6, only(0x30, only(0xa0, rest)?)?)?;
        only(0x30, only(4, rest)?)?;
        Some(kind == BASIC)
    };
    is().unwrap_or(false)
}

/// The contents of an element with this tag that is all there is.
fn only(tag: u8, der: &[u8]) -> Option<&[u8]> {
    element(tag, der).and_then(|(body, rest)| rest.is_empty().then_some(body))
}

/// The contents of an element with this tag, and what follows it.
fn element(tag: u8, der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&[found, first], rest) = der.split_first_chunk::<2>()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    if found == tag { rest.split_at_checked(length) } else { None }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("propylon-isolated-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("a folder");
            Folder(path)
        }

        fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, text).expect("a file");
            fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("a mode");
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn files(config: &Path) -> Files {
        let (user, config) = (None, config.into());
        let setup = Setup { user, level: 0, links: 1, lax: false, batch: false, sandbox: false, config };
        Files::new(&setup, None)
    }

    fn pem() -> (String, rcgen::KeyPair) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(vec!["shop.example".into()]).expect("a name");
        (params.self_signed(&key).expect("a certificate").pem() + &key.serialize_pem(), key)
    }

    fn ski(key: &rcgen::KeyPair) -> Ski {
        PrivateKey::from_der(key.serialized_der()).expect("a key").ski()
    }

    #[test]
    fn all_of_a_file_is_told_but_its_key_which_is_held() {
        let folder = Folder::new("told");
        let (text, key) = pem();
        let path = folder.write("a.pem", &text);
        let mut files = files(&path);
        let Answer::File(file) = files.read(&path, 1) else { panic!("no file") };
        assert_eq!((file.certificates.len(), file.keys.len(), file.open_to_all), (1, 1, false));
        let told = Answer::File(file).to_bytes();
        let secret = PrivateKey::from_der(key.serialized_der()).expect("a key");
        let scalar = &key.serialized_der()[36..68];
        assert!(!told.windows(16).any(|part| scalar.windows(16).any(|own| own == part)));
        assert!(files.held.contains_key(&secret.ski()));
    }

    #[test]
    fn nothing_is_told_of_other_files() {
        let folder = Folder::new("other");
        let secret = folder.write("secret", "user:password\n");
        let encrypted =
            folder.write("e.pem", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n");
        let (pem, _) = pem();
        let key = folder.write("key.pem", &pem);
        let der = folder.write("key.der", rcgen::KeyPair::generate().expect("a key").serialized_der());
        let mut files = files(&folder.0.join("propylon.toml"));
        let Answer::File(nothing) = files.read(&secret, 1) else { panic!("no file") };
        assert_eq!((nothing.certificates.len(), nothing.keys.len()), (0, 0));
        for (path, why) in [
            (&encrypted, Unread::Encrypted),
            (&folder.0, Unread::Failed("it is not a file".into())),
            (&folder.0.join("none"), Unread::Missing),
        ] {
            assert_eq!(files.read(path, 1), Answer::Unread(why));
        }
        for path in [&secret, &encrypted, &key, &der] {
            assert_eq!(files.answer(Question::Response(path.clone())), Answer::Unread(Unread::Other), "{path:?}");
        }
        assert_eq!(files.answer(Question::Config), Answer::Unread(Unread::Missing));
    }

    #[test]
    fn keys_that_every_account_can_get_at_are_not_held() {
        let folder = Folder::new("open");
        let path = folder.write("a.pem", pem().0);
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("a mode");
        let mut files = files(&path);
        assert!(matches!(files.read(&path, 1), Answer::File(KeyFile { open_to_all: true, .. })));
        assert_eq!(files.count(), 0);
    }

    #[test]
    fn what_is_not_in_use_any_more_is_forgotten_and_what_was_read_meanwhile_is_not() {
        let folder = Folder::new("forgotten");
        let mut files = files(Path::new("none"));
        let keys: Vec<_> = (1..=4)
            .map(|stamp| {
                let (text, key) = pem();
                files.read(&folder.write("a.pem", text), stamp);
                ski(&key)
            })
            .collect();
        files.answer(Question::Keep(vec![keys[1]]));
        files.answer(Question::Forget(3));
        assert!(files.take_changed());
        let left: HashSet<Ski> = files.held.keys().copied().collect();
        assert_eq!(left, HashSet::from([keys[1], keys[3]]));
        files.answer(Question::Keep(vec![keys[1]]));
        files.answer(Question::Forget(3));
        assert!(!files.take_changed(), "nothing is another");
    }

    #[test]
    fn an_ocsp_response_is_known_by_its_form() {
        let basic = [&[0x30, 17, 6, 9, 0x2b, 6, 1, 5, 5, 7, 0x30, 1, 1, 4, 4][..], &[0x30, 2, 5, 0]].concat();
        let good = [&[0x30, 24, 0x0a, 1, 0, 0xa0, 19][..], &basic].concat();
        assert!(is_response(&good) && is_response(&[0x30, 3, 0x0a, 1, 3]));
        for cut in 0..good.len() {
            assert!(!is_response(&good[..cut]));
        }
        assert!(!is_response(&[&good[..], &[0]].concat()));
        assert!(!is_response(rcgen::KeyPair::generate().expect("a key").serialized_der()));
    }
}

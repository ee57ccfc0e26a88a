//! Files and folders with keys, read again when they have changed.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use propylon_config::keyserver::NamedPath;
use propylon_crypto::pem::{self, PemError, PemLabel};
use propylon_crypto::{Key, KeyError, OPEN_TO_ALL, PrivateKey, Ski};
use zeroize::Zeroizing;

use crate::keys::Origin;

/// A file with a key and its chain takes a few KiB.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Files in all paths together.
const FILES_MAX: usize = 100_000;
/// File name extensions of keys; other files in folders are passed over.
const ENDINGS: [&str; 3] = ["pem", "key", "der"];

/// Key files, and the keys that were last found in each.
pub struct KeyFiles {
    paths: Vec<NamedPath>,
    /// Keys that every account can get at are served.
    lax: bool,
    files: BTreeMap<PathBuf, KnownFile>,
}

struct KnownFile {
    /// Index of the path that led here.
    source: usize,
    stamp: Stamp,
    keys: Vec<PrivateKey>,
}

/// A file that has the same is taken for unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
    /// A change of it alone leaves the time as it is.
    mode: u32,
}

/// A file that could not be read as what it should be.
#[derive(Debug)]
pub struct Fault {
    /// Index of the path that led here.
    pub source: usize,
    pub path: PathBuf,
    pub what: Wrong,
    /// Whether keys that were read from it earlier are still served.
    pub kept: bool,
}

#[derive(Debug)]
pub enum Wrong {
    Unreadable(io::Error),
    TooLarge,
    TooMany,
    NoKey,
    Encrypted,
    Pem(PemError),
    /// The file can be read or changed by every account.
    OpenToAll,
    Key(KeyError),
}

/// The outcome of a scan.
#[derive(Debug, Default)]
pub struct Change {
    /// Whether the set of keys has changed.
    pub any: bool,
    pub faults: Vec<Fault>,
    /// Files that are gone, each with the number of keys that were in it and are nowhere else.
    pub gone: Vec<(PathBuf, usize)>,
}

impl KeyFiles {
    /// Makes a set that has read nothing yet. With `lax`, keys that every account of the machine can get at are
    /// served as others are.
    pub fn new(paths: Vec<NamedPath>, lax: bool) -> KeyFiles {
        KeyFiles { paths, lax, files: BTreeMap::new() }
    }

    /// Compares all files with what is known, and reads those that are new or have changed. Keys of a file that cannot
    /// be read any more stay in service; those of one that is gone do not.
    pub fn rescan(&mut self) -> Change {
        let mut change = Change::default();
        let mut seen = Vec::new();
        for (source, named) in self.paths.clone().iter().enumerate() {
            match files_at(&named.path) {
                Ok(files) => seen.extend(files.into_iter().map(|file| (source, file))),
                Err(error) => {
                    // A folder that is out of reach says nothing about the files in it.
                    let kept = self.files.values().any(|known| known.source == source && !known.keys.is_empty());
                    let still = self.files.iter().filter(|(_, known)| known.source == source);
                    seen.extend(still.map(|(file, _)| (source, file.clone())).collect::<Vec<_>>());
                    change.faults.push(Fault {
                        source,
                        path: named.path.clone(),
                        what: Wrong::Unreadable(error),
                        kept,
                    });
                }
            }
        }
        if seen.len() > FILES_MAX {
            let (source, path) = seen.swap_remove(FILES_MAX);
            change.faults.push(Fault { source, path, what: Wrong::TooMany, kept: false });
            seen.truncate(FILES_MAX);
        }
        let gone: Vec<PathBuf> =
            self.files.keys().filter(|path| !seen.iter().any(|(_, file)| file == *path)).cloned().collect();
        let mut without = Vec::new();
        for path in gone {
            let keys = self.files.remove(&path).map_or(Vec::new(), |known| known.keys);
            if !keys.is_empty() {
                change.any = true;
                without.push((path, keys));
            }
        }
        for (source, path) in seen {
            self.rescan_file(source, path, &mut change);
        }
        if !without.is_empty() {
            // A key in a file of another name by now is served as before.
            let served: HashSet<Ski> = self.keys().map(|(key, _)| key.ski()).collect();
            let lost = |keys: &[PrivateKey]| keys.iter().filter(|key| !served.contains(&key.ski())).count();
            change
                .gone
                .extend(without.into_iter().map(|(path, keys)| (path, lost(&keys))).filter(|(_, lost)| *lost > 0));
        }
        change
    }

    fn rescan_file(&mut self, source: usize, path: PathBuf, change: &mut Change) {
        let known = self.files.get(&path);
        let stamp = fs::metadata(&path).map(|metadata| Stamp::of(&metadata));
        if let (Some(known), Ok(stamp)) = (known, &stamp)
            && known.stamp == *stamp
        {
            return;
        }
        let kept = known.is_some_and(|known| !known.keys.is_empty());
        let read = stamp.map_err(Wrong::Unreadable).and_then(|stamp| Ok((stamp, self.read(source, &path)?)));
        match read {
            Ok((stamp, keys)) => {
                change.any = true;
                self.files.insert(path, KnownFile { source, stamp, keys });
            }
            Err(what) => {
                // Remembered as it is now, so that it is complained about once.
                if let Ok(metadata) = fs::metadata(&path) {
                    let stamp = Stamp::of(&metadata);
                    let known = self.files.entry(path.clone());
                    known.or_insert(KnownFile { source, stamp, keys: Vec::new() }).stamp = stamp;
                }
                change.faults.push(Fault { source, path, what, kept });
            }
        }
    }

    fn read(&self, source: usize, path: &Path) -> Result<Vec<PrivateKey>, Wrong> {
        let keys = read(path);
        let in_folder = self.paths[source].path != path;
        let known = self.files.get(path).is_some_and(|known| !known.keys.is_empty());
        match keys {
            // A folder may hold certificates as well; a file that had a key and has none now is being written.
            Err(Wrong::NoKey) if in_folder && !known => Ok(Vec::new()),
            Ok(_) if !self.lax && is_open_to_all(path) => Err(Wrong::OpenToAll),
            keys => keys,
        }
    }

    /// Files with keys that every account of the machine may read, each with the index of the path that led to it.
    pub fn open_to_all(&self) -> impl Iterator<Item = (&PathBuf, usize)> {
        let with_keys = self.files.iter().filter(|(_, known)| !known.keys.is_empty());
        with_keys.filter(|(path, _)| is_open_to_all(path)).map(|(path, known)| (path, known.source))
    }

    /// The same, as they are served.
    pub fn found(&self) -> impl Iterator<Item = (Key, Origin<'_>)> {
        self.keys().map(|(key, path)| (Key::Local(key.clone()), Origin::File(path)))
    }

    /// All keys, each with its file, in the order of the files' names.
    pub fn keys(&self) -> impl Iterator<Item = (&PrivateKey, &PathBuf)> {
        self.files.iter().flat_map(|(path, known)| known.keys.iter().map(move |key| (key, path)))
    }
}

impl Stamp {
    /// The stamp of a file; absent if its metadata cannot be read.
    #[cfg(feature = "pkcs11")]
    pub fn at(path: &Path) -> Option<Stamp> {
        fs::metadata(path).ok().map(|metadata| Stamp::of(&metadata))
    }

    fn of(metadata: &fs::Metadata) -> Stamp {
        let changed = (metadata.mtime(), metadata.mtime_nsec());
        Stamp { inode: metadata.ino(), bytes: metadata.len(), changed, mode: metadata.mode() }
    }
}

/// See `propylon_crypto::is_open_to_all`.
pub fn is_open_to_all(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| propylon_crypto::is_open_to_all(&metadata))
}

/// Files of which it matters only whether any has changed.
pub struct Watched {
    files: Vec<(PathBuf, Option<Stamp>)>,
}

impl Watched {
    pub fn new(files: impl IntoIterator<Item = PathBuf>) -> Watched {
        let mut watched = Watched { files: files.into_iter().map(|file| (file, None)).collect() };
        watched.have_changed();
        watched
    }

    /// Whether any file has changed since this was last asked.
    pub fn have_changed(&mut self) -> bool {
        let mut any = false;
        for (file, stamp) in &mut self.files {
            let now = fs::metadata(file).ok().map(|metadata| Stamp::of(&metadata));
            any |= now.is_some() && now != *stamp;
            *stamp = now.or(*stamp);
        }
        any
    }
}

/// The file itself, or the key files of a folder; not of the folders in it.
fn files_at(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)?.take(FILES_MAX + 1) {
        let file = entry?.path();
        let ending = file.extension().and_then(|ending| ending.to_str());
        if ending.is_some_and(|ending| ENDINGS.contains(&ending)) && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<PrivateKey>, Wrong> {
    parse(&secret_text(path)?)
}

/// The contents of a file that may hold a private key, in memory that is wiped.
pub fn secret_text(path: &Path) -> Result<Zeroizing<Vec<u8>>, Wrong> {
    let file = File::open(path).map_err(Wrong::Unreadable)?;
    let bytes = file.metadata().map_err(Wrong::Unreadable)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(Wrong::TooLarge);
    }
    // Room for all of it at once: a buffer that grows leaves its earlier selves behind.
    let mut text = Zeroizing::new(Vec::with_capacity(bytes as usize + 1));
    file.take(bytes + 1).read_to_end(&mut text).map_err(Wrong::Unreadable)?;
    Ok(text)
}

fn parse(text: &[u8]) -> Result<Vec<PrivateKey>, Wrong> {
    const PEM: &[u8] = b"-----BEGIN ";
    let has = |part: &[u8]| text.windows(part.len()).any(|window| window == part);
    if !has(PEM) {
        return match PrivateKey::from_der(text) {
            Ok(key) => Ok(vec![key]),
            Err(KeyError::Malformed) => Err(Wrong::NoKey),
            Err(error) => Err(Wrong::Key(error)),
        };
    }
    let mut keys = Vec::new();
    for section in pem::sections(text) {
        let section = section.map_err(Wrong::Pem)?;
        if section.label == PemLabel::EncryptedPrivateKey {
            return Err(Wrong::Encrypted);
        }
        if section.label.is_private_key() {
            keys.push(PrivateKey::from_der(&section.der).map_err(Wrong::Key)?);
        }
    }
    if keys.is_empty() { Err(Wrong::NoKey) } else { Ok(keys) }
}

impl Wrong {
    pub fn fix(&self) -> &'static str {
        match self {
            Wrong::Unreadable(_) => "check the path, its owner and its mode",
            Wrong::TooLarge => "check that it is a key file",
            Wrong::TooMany => "leave some to another key server",
            Wrong::NoKey => "write a private key to it, in PEM or DER",
            Wrong::Encrypted => "decrypt it, for example by `openssl pkey`, and protect the file instead",
            Wrong::Pem(_) => "export the key again: PEM has lines of its own for its first and last words",
            Wrong::OpenToAll => "chmod o= it, or set `allow_world_readable_keys` in [server] if that is meant",
            Wrong::Key(_) => "use RSA of 2048 to 8192 bits, P-256, P-384, P-521 or Ed25519, in PKCS#8, PKCS#1 or SEC 1",
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Unreadable(error) => write!(f, "it cannot be read: {error}"),
            Wrong::TooLarge => write!(f, "it is larger than {} KiB", FILE_BYTES_MAX / 1024),
            Wrong::TooMany => write!(f, "there are more than {FILES_MAX} files"),
            Wrong::NoKey => f.write_str("no private key is in it"),
            Wrong::Encrypted => f.write_str("the private key is encrypted"),
            Wrong::Pem(error) => write!(f, "it is not well-formed PEM: {error}"),
            Wrong::OpenToAll => f.write_str(OPEN_TO_ALL),
            Wrong::Key(error) => write!(f, "{error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn pem() -> String {
        rcgen::KeyPair::generate().expect("a key").serialize_pem()
    }

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("propylon-key-files-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).expect("a folder");
            Folder(path)
        }

        fn key_files(&self) -> KeyFiles {
            KeyFiles::new(vec![NamedPath { path: self.0.clone(), ..NamedPath::default() }], false)
        }

        fn write(&self, name: &str, text: impl AsRef<[u8]>) {
            // Replaces by renaming, so that the inode is another one however coarse the clock.
            let whole = self.0.join("new.tmp");
            fs::write(&whole, text).expect("a file");
            fs::set_permissions(&whole, fs::Permissions::from_mode(0o600)).expect("a mode");
            fs::rename(whole, self.0.join(name)).expect("its name");
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn skis(key_files: &KeyFiles) -> Vec<propylon_crypto::Ski> {
        key_files.keys().map(|(key, _)| key.ski()).collect()
    }

    #[test]
    fn a_key_that_every_account_can_get_at_is_refused_until_it_is_closed() {
        let folder = Folder::new("open");
        folder.write("a.pem", pem());
        let mode =
            |mode| fs::set_permissions(folder.0.join("a.pem"), fs::Permissions::from_mode(mode)).expect("a mode");
        for open in [0o604, 0o602, 0o644] {
            mode(open);
            let mut key_files = folder.key_files();
            let faults = key_files.rescan().faults;
            assert!(matches!(faults[..], [Fault { what: Wrong::OpenToAll, kept: false, .. }]), "{faults:?}");
            assert!(skis(&key_files).is_empty() && key_files.rescan().faults.is_empty(), "it is told once");
            mode(0o640);
            assert!(key_files.rescan().faults.is_empty() && skis(&key_files).len() == 1);
            // A file that is in service stays in service, and is complained of.
            mode(open);
            assert!(matches!(key_files.rescan().faults[..], [Fault { what: Wrong::OpenToAll, kept: true, .. }]));
            assert_eq!(skis(&key_files).len(), 1);
            let paths = vec![NamedPath { path: folder.0.clone(), ..NamedPath::default() }];
            let mut lax = KeyFiles::new(paths, true);
            assert!(lax.rescan().faults.is_empty());
            assert_eq!((skis(&lax).len(), lax.open_to_all().count()), (1, 1));
        }
    }

    #[test]
    fn a_folder_is_read_once_and_again_when_it_has_changed() {
        let folder = Folder::new("changes");
        folder.write("a.pem", pem());
        folder.write("readme.txt", "no key");
        folder.write("chain.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        let mut key_files = folder.key_files();
        let change = key_files.rescan();
        assert!(change.any && change.faults.is_empty(), "{change:?}");
        let before = skis(&key_files);
        assert_eq!(before.len(), 1);
        assert!(!key_files.rescan().any);
        folder.write("a.pem", pem() + &pem());
        assert!(key_files.rescan().any);
        assert_eq!(skis(&key_files).len(), 2);
        assert!(!skis(&key_files).contains(&before[0]));
        fs::rename(folder.0.join("a.pem"), folder.0.join("b.pem")).expect("it is there");
        let change = key_files.rescan();
        assert!(change.any && change.gone.is_empty(), "it has another name: {change:?}");
        fs::rename(folder.0.join("b.pem"), folder.0.join("a.pem")).expect("it is there");
        assert!(key_files.rescan().gone.is_empty());
        fs::remove_file(folder.0.join("a.pem")).expect("it is there");
        let change = key_files.rescan();
        assert!(change.any);
        assert_eq!(change.gone, [(folder.0.join("a.pem"), 2)]);
        assert_eq!(skis(&key_files).len(), 0);
    }

    #[test]
    fn a_bad_file_never_displaces_a_good_key_and_is_complained_about_once() {
        let folder = Folder::new("bad");
        folder.write("a.pem", pem());
        let mut key_files = folder.key_files();
        key_files.rescan();
        let before = skis(&key_files);
        for bad in ["", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "-----BEGIN PRIVATE KEY-----"]
        {
            folder.write("a.pem", bad);
            let change = key_files.rescan();
            assert!(!change.any && change.faults.len() == 1 && change.faults[0].kept, "{bad:?}: {change:?}");
            assert!(key_files.rescan().faults.is_empty());
            assert_eq!(skis(&key_files), before);
        }
        folder.write("a.pem", pem());
        assert!(key_files.rescan().any);
        assert_ne!(skis(&key_files), before);
    }

    #[test]
    fn a_folder_out_of_reach_keeps_its_keys() {
        let folder = Folder::new("gone");
        folder.write("a.pem", pem());
        let mut key_files = folder.key_files();
        key_files.rescan();
        fs::rename(&folder.0, folder.0.with_extension("away")).expect("a name");
        let change = key_files.rescan();
        fs::rename(folder.0.with_extension("away"), &folder.0).expect("its name back");
        assert!(!change.any && change.faults[0].kept, "{change:?}");
        assert_eq!(skis(&key_files).len(), 1);
    }

    #[test]
    fn keys_are_read_in_der_as_well_and_encrypted_ones_are_told() {
        let pair = rcgen::KeyPair::generate().expect("a key");
        assert_eq!(parse(pair.serialized_der()).expect("a key").len(), 1);
        let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        assert!(matches!(parse(encrypted.as_bytes()), Err(Wrong::Encrypted)));
        assert!(matches!(parse(b"nothing"), Err(Wrong::NoKey)));
    }
}

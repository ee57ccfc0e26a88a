//! Values that only engines can read: sealed with AES-256-GCM under keys that are in files on engines alone.
//!
//! A sealed value is `PPLS`, the version 1, the key's id (8 bytes), a random nonce (12 bytes), the ciphertext, and the
//! tag (16 bytes). The additional data is the value's name, so that a value cannot be moved to another name. The
//! AES key and the id are derived from what is in the file (HMAC-SHA-256 of a purpose under it), so that the id tells
//! nothing of the key.
//!
//! Nonces are random: with one key, the chance that two of 2^32 values share one is 2^-33 (NIST SP 800-38D §8.3), and
//! that is the number of values after which a key has to be replaced. A cluster that seals one value each second gets
//! there in 136 years.

use std::fmt;
use std::fs::{File, Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{hmac, rand};
use zeroize::Zeroizing;

/// Keys in use: the one that seals, and those that values were sealed with before.
pub const SEALING_KEYS_MAX: usize = 16;

const MAGIC: &[u8; 5] = b"PPLS\x01";
const ID_BYTES: usize = 8;
const TAG_BYTES: usize = 16;
const HEAD_BYTES: usize = MAGIC.len() + ID_BYTES + NONCE_LEN;
const SECRET_BYTES: usize = 32;
/// Bytes that a sealed value has more than what is in it.
pub const SEAL_BYTES: usize = HEAD_BYTES + TAG_BYTES;

/// Name of a sealing key, which says nothing of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SealingKeyId([u8; ID_BYTES]);

pub struct SealingKey {
    id: SealingKeyId,
    key: LessSafeKey,
}

/// Seals under the first key, opens under all. Cheap to clone.
#[derive(Clone)]
pub struct Sealer {
    keys: Arc<Vec<SealingKey>>,
}

/// The reason why a sealed value cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealError {
    /// Sealed under a key that this engine does not have.
    UnknownKey { id: SealingKeyId },
    /// Changed since it was sealed, or sealed under another name.
    Damaged,
    /// No sealed value, or one of a later version.
    NotSealed,
}

/// The fault of sealing keys, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealingKeyError {
    pub path: PathBuf,
    pub what: String,
    pub fix: String,
}

impl SealingKey {
    /// Reads a file of 64 hexadecimal digits, or of 32 bytes, that other accounts have no access to.
    pub fn read(path: &Path) -> Result<SealingKey, SealingKeyError> {
        let bytes = read(path)?;
        let secret = secret(&bytes).map_err(|what| wrong(path, what, make(path)))?;
        Ok(SealingKey::new(&secret))
    }

    /// From the 32 bytes that the file has.
    pub fn new(secret: &[u8; SECRET_BYTES]) -> SealingKey {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let id = hmac::sign(&secret, b"propylon cluster sealing id 1");
        let key = Zeroizing::new(hmac::sign(&secret, b"propylon cluster sealing key 1").as_ref().to_vec());
        let mut short = [0; ID_BYTES];
        short.copy_from_slice(&id.as_ref()[..ID_BYTES]);
        let key = UnboundKey::new(&AES_256_GCM, &key).expect("SHA-256 gives as many bytes as the cipher takes");
        SealingKey { id: SealingKeyId(short), key: LessSafeKey::new(key) }
    }

    pub fn id(&self) -> SealingKeyId {
        self.id
    }
}

impl Sealer {
    /// Keys from files: the first one seals, all of them open.
    pub fn read(paths: &[PathBuf]) -> Result<Sealer, SealingKeyError> {
        let mut keys: Vec<SealingKey> = Vec::new();
        for path in paths {
            let key = SealingKey::read(path)?;
            if keys.iter().any(|other| other.id == key.id) {
                return Err(wrong(path, "it has the same key as a file before it", "name each key once".to_owned()));
            }
            keys.push(key);
        }
        let first = paths.first().map_or(Path::new("cluster.key"), PathBuf::as_path);
        Sealer::new(keys)
            .ok_or_else(|| wrong(first, &format!("there have to be 1 to {SEALING_KEYS_MAX} sealing keys"), make(first)))
    }

    /// Absent if there is no key, or more than [`SEALING_KEYS_MAX`].
    pub fn new(keys: Vec<SealingKey>) -> Option<Sealer> {
        (1..=SEALING_KEYS_MAX).contains(&keys.len()).then(|| Sealer { keys: Arc::new(keys) })
    }

    /// # Panics
    /// When the system has no random numbers.
    #[must_use]
    pub fn seal(&self, name: &str, plain: &[u8]) -> Vec<u8> {
        let SealingKey { id, key } = &self.keys[0];
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).expect("the system's random numbers");
        let mut sealed = Vec::with_capacity(plain.len() + SEAL_BYTES);
        sealed.extend_from_slice(MAGIC);
        sealed.extend_from_slice(&id.0);
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(plain);
        let (nonce, name) = (Nonce::assume_unique_for_key(nonce), Aad::from(name.as_bytes()));
        let tag = key.seal_in_place_separate_tag(nonce, name, &mut sealed[HEAD_BYTES..]);
        sealed.extend_from_slice(tag.expect("the plain text is shorter than 64 GiB").as_ref());
        sealed
    }

    pub fn open(&self, name: &str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let (id, rest) = parse(sealed).ok_or(SealError::NotSealed)?;
        let key = self.keys.iter().find(|key| key.id == id).ok_or(SealError::UnknownKey { id })?;
        let (nonce, text) = rest.split_at(NONCE_LEN);
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| SealError::Damaged)?;
        let mut plain = Zeroizing::new(text.to_vec());
        let opened = key.key.open_in_place(nonce, Aad::from(name.as_bytes()), &mut plain);
        let length = opened.map_err(|_| SealError::Damaged)?.len();
        plain.truncate(length);
        Ok(plain)
    }

    /// Whether a value is sealed under the key that seals now. Values that are not are sealed anew, so that the keys
    /// before can be taken away.
    #[must_use]
    pub fn is_sealed_with_first(&self, sealed: &[u8]) -> bool {
        parse(sealed).is_some_and(|(id, _)| id == self.keys[0].id)
    }

    /// Names of the keys, the one that seals first.
    pub fn ids(&self) -> impl Iterator<Item = SealingKeyId> {
        self.keys.iter().map(|key| key.id)
    }
}

/// The key's id, and what follows it: at least a nonce and a tag.
fn parse(sealed: &[u8]) -> Option<(SealingKeyId, &[u8])> {
    let (id, rest) = sealed.strip_prefix(MAGIC)?.split_first_chunk()?;
    (rest.len() >= NONCE_LEN + TAG_BYTES).then_some((SealingKeyId(*id), rest))
}

fn secret(bytes: &[u8]) -> Result<Zeroizing<[u8; SECRET_BYTES]>, &'static str> {
    const NEEDS: &str = "it is neither 64 hexadecimal digits nor 32 bytes";
    let mut secret = Zeroizing::new([0; SECRET_BYTES]);
    let text = bytes.trim_ascii();
    if text.len() == 2 * SECRET_BYTES && text.iter().all(u8::is_ascii_hexdigit) {
        for (byte, pair) in secret.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digit(pair[0]) << 4 | digit(pair[1]);
        }
    } else if bytes.len() == SECRET_BYTES {
        secret.copy_from_slice(bytes);
    } else {
        return Err(NEEDS);
    }
    // A word, or half as many digits, is no key of 256 bits.
    if secret.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ') {
        return Err("it is a text, not a key");
    }
    match secret.iter().all(|byte| *byte == secret[0]) {
        true => Err("it is one byte over and over, not a key"),
        false => Ok(secret),
    }
}

/// Value of a byte that is a hexadecimal digit.
fn digit(byte: u8) -> u8 {
    match byte {
        b'0'..=b'9' => byte - b'0',
        _ => (byte | 0x20) - b'a' + 10,
    }
}

/// Longer than any key's file, with white space around it.
const FILE_BYTES_MAX: usize = 128;
/// A path that is a pipe must not stop the process.
const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits() as i32;

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, SealingKeyError> {
    let failed = |error: std::io::Error| wrong(path, &format!("it cannot be read: {error}"), make(path));
    let file: File = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path).map_err(failed)?;
    check(path, &file.metadata().map_err(failed)?)?;
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX + 1));
    file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn check(path: &Path, metadata: &Metadata) -> Result<(), SealingKeyError> {
    const OTHERS: u32 = 0o007;
    const GROUP_WRITES: u32 = 0o020;
    if !metadata.is_file() {
        return Err(wrong(path, "it is not a file", "give the path of a file".to_owned()));
    }
    if metadata.mode() & OTHERS != 0 {
        let fix = format!("chmod 600 {}, and replace the key: others may have it", path.display());
        return Err(wrong(path, "every account can get at this key", fix));
    }
    if metadata.mode() & GROUP_WRITES != 0 {
        return Err(wrong(path, "its group can change this key", format!("chmod g-w {}", path.display())));
    }
    Ok(())
}

fn wrong(path: &Path, what: &str, fix: String) -> SealingKeyError {
    SealingKeyError { path: path.into(), what: what.to_owned(), fix }
}

fn make(path: &Path) -> String {
    let path = path.display();
    format!(
        "make it once with `openssl rand -hex 32 > {path} && chmod 600 {path}`, for the account that Propylon is \
         started by, and copy it to all engines of the cluster"
    )
}

impl fmt::Display for SealingKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the sealing key {} cannot be used: {}; {}", self.path.display(), self.what, self.fix)
    }
}

impl std::error::Error for SealingKeyError {}

impl fmt::Display for SealError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SealError::UnknownKey { id } => write!(
                f,
                "it is sealed under the key {id}, which this engine does not have; add that key's file to the \
                 cluster's sealing keys"
            ),
            SealError::Damaged => f.write_str(
                "it was changed since it was sealed, or moved from another name; if it is a file of this engine, it \
                     is read again from etcd, else put it anew",
            ),
            SealError::NotSealed => f.write_str(
                "it is not sealed, or by a later version; if it is a file of this engine, it is read again from \
                     etcd, else put it anew by Propylon's API",
            ),
        }
    }
}

impl std::error::Error for SealError {}

impl fmt::Display for SealingKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SealingKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealingKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn secret_of(start: u8) -> [u8; SECRET_BYTES] {
        std::array::from_fn(|place| start.wrapping_add(place as u8 * 7))
    }

    fn sealer(starts: &[u8]) -> Sealer {
        Sealer::new(starts.iter().map(|&start| SealingKey::new(&secret_of(start))).collect()).unwrap()
    }

    #[test]
    fn what_one_engine_seals_another_one_with_the_key_opens_under_the_same_name_only() {
        let (one, other) = (sealer(&[1]), sealer(&[2, 1]));
        for plain in [&b""[..], b"x", &[7; 100_000]] {
            let sealed = one.seal("propylon/a/secrets/ticket-keys", plain);
            assert_eq!(sealed.len(), plain.len() + SEAL_BYTES);
            assert_eq!(&*other.open("propylon/a/secrets/ticket-keys", &sealed).unwrap(), plain);
            assert_eq!(other.open("propylon/b/secrets/ticket-keys", &sealed), Err(SealError::Damaged));
        }
        assert_ne!(one.seal("a", b"x"), one.seal("a", b"x"), "no nonce is used twice");
    }

    #[test]
    fn no_bit_of_a_sealed_value_can_be_changed_and_none_left_out() {
        let sealer = sealer(&[1]);
        let sealed = sealer.seal("a", b"secret");
        for place in 0..sealed.len() {
            for bit in 0..8 {
                let mut changed = sealed.clone();
                changed[place] ^= 1 << bit;
                assert!(sealer.open("a", &changed).is_err(), "{place}, {bit}");
            }
            assert!(sealer.open("a", &sealed[..place]).is_err(), "{place}");
        }
        assert!(sealer.open("a", &[&sealed[..], &[0]].concat()).is_err());
    }

    #[test]
    fn after_a_rotation_old_values_open_and_show_that_they_are_to_be_sealed_anew() {
        let (before, after) = (sealer(&[1]), sealer(&[2, 1]));
        let old = before.seal("a", b"secret");
        assert!(before.is_sealed_with_first(&old) && !after.is_sealed_with_first(&old));
        let new = after.seal("a", &after.open("a", &old).unwrap());
        assert!(after.is_sealed_with_first(&new));
        let id = after.ids().next().unwrap();
        assert_eq!(before.open("a", &new), Err(SealError::UnknownKey { id }));
        assert_eq!(before.open("a", b"-----BEGIN PRIVATE KEY-----"), Err(SealError::NotSealed));
        assert!(!before.is_sealed_with_first(b""));
    }

    /// Computed by Python's cryptography and hmac modules, with the nonce 0 to 11.
    const GOLDEN: &str =
        "50504c53017d39e3d7dde2e6b6000102030405060708090a0b260d05e75f0af8910473e6ac5e696c04c21cc8e730b331067da4";

    #[test]
    fn sealed_values_stay_what_they_are_from_one_version_to_the_next() {
        let golden: Vec<u8> = (0..GOLDEN.len() / 2)
            .map(|place| u8::from_str_radix(&GOLDEN[2 * place..2 * place + 2], 16).unwrap())
            .collect();
        assert_eq!(&*sealer(&[1]).open("propylon/a/secrets/sticky-key", &golden).unwrap(), b"plain text");
    }

    #[test]
    fn nothing_of_a_key_is_shown() {
        let (key, sealer) = (SealingKey::new(&secret_of(1)), sealer(&[1]));
        let shown = format!("{key:?} {sealer:?} {}", key.id());
        let id = key.id().to_string();
        assert_eq!(shown.replace(&id, "ID"), "SealingKey { id: ID, .. } [ID] ID");
    }

    struct KeyFile(PathBuf);

    impl KeyFile {
        fn new(name: &str, bytes: &[u8], mode: u32) -> KeyFile {
            let path = std::env::temp_dir().join(format!("propylon-cluster-key-{name}-{}", std::process::id()));
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            KeyFile(path)
        }
    }

    impl Drop for KeyFile {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_key_is_read_as_digits_or_as_bytes() {
        let hex: String = secret_of(1).iter().map(|byte| format!("{byte:02x}")).collect();
        let text = KeyFile::new("hex", format!("{hex}\n").as_bytes(), 0o600);
        let upper = KeyFile::new("upper", hex.to_uppercase().as_bytes(), 0o640);
        let raw = KeyFile::new("raw", &secret_of(1), 0o400);
        let ids = [&text, &upper, &raw].map(|file| SealingKey::read(&file.0).unwrap().id());
        assert_eq!(ids, [SealingKey::new(&secret_of(1)).id(); 3]);
        let twice = Sealer::read(&[text.0.clone(), raw.0.clone()]).unwrap_err();
        assert!(twice.to_string().contains("same key"), "{twice}");
        assert!(Sealer::read(&[]).unwrap_err().to_string().contains("openssl rand -hex 32"));
    }

    #[test]
    fn files_that_are_no_keys_or_are_everybodys_are_refused_without_showing_them() {
        for (name, bytes, part) in [
            ("word", &b"correct horse battery staple pqr"[..], "it is a text"),
            ("half", b"0123456789abcdef0123456789abcdef", "it is a text"),
            ("zeros", &[0; 32], "one byte over and over"),
            ("zero-digits", &[b'0'; 64], "one byte over and over"),
            ("short", &[1, 2, 3], "64 hexadecimal digits"),
            ("long", &[200; 5000], "64 hexadecimal digits"),
            ("empty", b"", "64 hexadecimal digits"),
        ] {
            let file = KeyFile::new(name, bytes, 0o600);
            let error = SealingKey::read(&file.0).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("openssl rand -hex 32"), "{error}");
            assert!(!error.contains("horse") && !error.contains("0123"), "{error}");
        }
        let open = KeyFile::new("open", &secret_of(1), 0o644);
        assert!(SealingKey::read(&open.0).unwrap_err().to_string().contains("chmod 600"));
        let shared = KeyFile::new("shared", &secret_of(1), 0o660);
        assert!(SealingKey::read(&shared.0).unwrap_err().to_string().contains("chmod g-w"));
        assert!(SealingKey::read(Path::new("/dev/null")).unwrap_err().to_string().contains("not a file"));
        let missing = SealingKey::read(Path::new("/nonexistent/cluster.key")).unwrap_err().to_string();
        assert!(missing.contains("openssl rand -hex 32 > /nonexistent/cluster.key"), "{missing}");
    }
}

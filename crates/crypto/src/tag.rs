//! Tags that stand for names: without the key nobody can tell which name a tag stands for, or make one.
//!
//! A tag is the name's HMAC-SHA-256, cut to 64 bits, and the HMAC of that under another key, cut to 128 bits (RFC
//! 2104 §5): by the first part it is found among known ones, by the second it proves to be genuine even where its
//! name is not known any more.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::{hmac, rand};
use zeroize::Zeroizing;

const NAME_BYTES: usize = 8;
const PROOF_BYTES: usize = 16;
/// Length of a tag written out: two digits for each byte.
pub const TAG_TEXT_BYTES: usize = 2 * (NAME_BYTES + PROOF_BYTES);
/// Bounds on the bytes of a file of secrets, without white space at its end.
const SECRET_BYTES_MIN: usize = 32;
const SECRET_BYTES_MAX: usize = 4096;

/// The keys that tags are made with.
pub struct TagKey {
    name: hmac::Key,
    proof: hmac::Key,
}

#[derive(Clone, Copy, Debug)]
pub struct Tag {
    name: [u8; NAME_BYTES],
    proof: [u8; PROOF_BYTES],
}

/// Secret of the process, made when it is first needed.
static SECRET: OnceLock<[u8; 32]> = OnceLock::new();

fn secret_of_process() -> &'static [u8; 32] {
    SECRET.get_or_init(|| {
        let mut secret = [0; 32];
        rand::fill(&mut secret).expect("the system's random numbers");
        secret
    })
}

/// The fault of a file of secrets, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretFileError {
    pub path: PathBuf,
    pub what: String,
    pub fix: String,
    /// Error of the system that it comes from, if it comes from one.
    pub error: Option<ErrorKind>,
}

impl TagKey {
    /// The same secret, whoever has it, gives the same tags.
    pub fn from_secret(secret: &[u8]) -> TagKey {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let derived = |purpose: &[u8]| hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&secret, purpose).as_ref());
        TagKey { name: derived(b"propylon tag name 1"), proof: derived(b"propylon tag proof 1") }
    }

    /// Derives the key from a file that others have no access to, such as `openssl rand -hex 32` makes.
    pub fn from_file(path: &Path) -> Result<TagKey, SecretFileError> {
        read(path).map(|secret| TagKey::from_secret(&secret))
    }

    /// Derives the key from a secret that the process makes when it is first asked, and keeps.
    pub fn of_process() -> TagKey {
        TagKey::from_secret(secret_of_process())
    }

    /// The process's secret, for a process that succeeds this one, and for nobody else.
    pub fn secret_of_process() -> Zeroizing<Vec<u8>> {
        Zeroizing::new(secret_of_process().to_vec())
    }

    /// Takes over the secret of the process that this one succeeds. Returns whether it did: not if the bytes are no
    /// such secret, and not if another one is in use already.
    pub fn succeed_process(secret: &[u8]) -> bool {
        secret.try_into().is_ok_and(|secret| SECRET.set(secret).is_ok())
    }

    pub fn tag(&self, name: &[u8]) -> Tag {
        let name = cut(&hmac::sign(&self.name, name));
        Tag { name, proof: self.proof(&name) }
    }

    /// Whether a tag was made with this key, for whatever name.
    pub fn is_genuine(&self, tag: &Tag) -> bool {
        verify_slices_are_equal(&self.proof(&tag.name), &tag.proof).is_ok()
    }

    fn proof(&self, name: &[u8]) -> [u8; PROOF_BYTES] {
        cut(&hmac::sign(&self.proof, name))
    }
}

impl Tag {
    /// Whether both tags stand for the same name, if both are genuine; that a client may learn.
    pub fn has_name_of(&self, other: &Tag) -> bool {
        self.name == other.name
    }

    /// Compared in a time that does not depend on where they differ.
    pub fn is_same(&self, other: &Tag) -> bool {
        self.has_name_of(other) && verify_slices_are_equal(&self.proof, &other.proof).is_ok()
    }

    /// The tag in hexadecimal.
    pub fn to_text(&self) -> String {
        self.name.iter().chain(&self.proof).map(|byte| format!("{byte:02x}")).collect()
    }

    /// Takes what [`Tag::to_text`] makes, and nothing else.
    pub fn parse(text: &[u8]) -> Option<Tag> {
        if text.len() != TAG_TEXT_BYTES {
            return None;
        }
        let mut bytes = [0; NAME_BYTES + PROOF_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        let (name, proof) = bytes.split_at(NAME_BYTES);
        Some(Tag { name: name.try_into().ok()?, proof: proof.try_into().ok()? })
    }
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

fn cut<const N: usize>(whole: &hmac::Tag) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&whole.as_ref()[..N]);
    bytes
}

/// A path that is a pipe must not stop the process.
const NONBLOCK: i32 = libc::O_NONBLOCK;

fn wrong(path: &Path, what: impl Into<String>, fix: impl Into<String>) -> SecretFileError {
    SecretFileError { path: path.into(), what: what.into(), fix: fix.into(), error: None }
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, SecretFileError> {
    let failed = |error: Error| SecretFileError {
        error: Some(error.kind()),
        ..wrong(path, format!("it cannot be read: {error}"), MAKE)
    };
    let mut file: File = OpenOptions::new().read(true).custom_flags(NONBLOCK).open(path).map_err(failed)?;
    check(path, &file.metadata().map_err(failed)?)?;
    let mut secret = Zeroizing::new(Vec::with_capacity(SECRET_BYTES_MAX + 1));
    Read::by_ref(&mut file).take(SECRET_BYTES_MAX as u64 + 1).read_to_end(&mut secret).map_err(failed)?;
    if secret.len() > SECRET_BYTES_MAX {
        return Err(wrong(path, format!("it has more than {SECRET_BYTES_MAX} bytes"), MAKE));
    }
    // An editor's or a shell's line end is no part of it.
    let length = secret.trim_ascii_end().len();
    secret.truncate(length);
    if length < SECRET_BYTES_MIN {
        return Err(wrong(path, format!("it has {length} bytes, and needs {SECRET_BYTES_MIN}"), MAKE));
    }
    Ok(secret)
}

const MAKE: &str = "make it with `openssl rand -hex 32`, for the account that Propylon is started by";

fn check(path: &Path, metadata: &Metadata) -> Result<(), SecretFileError> {
    const OTHERS: u32 = 0o007;
    const GROUP_WRITES: u32 = 0o020;
    if !metadata.is_file() {
        return Err(wrong(path, "it is not a file", "give the path of a file"));
    }
    if metadata.mode() & OTHERS != 0 {
        let fix = format!("chmod 600 {}, and replace the secret: others may have it", path.display());
        return Err(wrong(path, "every account can get at this secret", fix));
    }
    if metadata.mode() & GROUP_WRITES != 0 {
        return Err(wrong(path, "its group can change this secret", format!("chmod g-w {}", path.display())));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_tag_is_known_again_by_whoever_has_the_secret() {
        let (one, other) = (TagKey::from_secret(&[7; 32]), TagKey::from_secret(&[7; 32]));
        let tag = Tag::parse(one.tag(b"10.0.0.1:80").to_text().as_bytes()).unwrap();
        assert!(other.tag(b"10.0.0.1:80").is_same(&tag) && other.is_genuine(&tag));
        assert!(!other.tag(b"10.0.0.2:80").is_same(&tag));
        let stranger = TagKey::from_secret(&[8; 32]);
        assert!(!stranger.is_genuine(&tag) && !stranger.tag(b"10.0.0.1:80").is_same(&tag));
    }

    #[test]
    fn tags_stay_what_they_are_from_one_version_to_the_next() {
        let tag = TagKey::from_secret(&[7; 32]).tag(b"10.0.0.1:80");
        assert_eq!(tag.to_text(), GOLDEN);
    }

    /// Computed by Python's hmac module.
    const GOLDEN: &str = "f4eedc210ce35c3e786da9117efe1ce0d114ba20e4075a68";

    #[test]
    fn no_bit_of_a_tag_can_be_changed() {
        let key = TagKey::from_secret(&[7; 32]);
        let tag = key.tag(b"a").to_text().into_bytes();
        for place in 0..tag.len() {
            for bit in 0..8 {
                let mut changed = tag.clone();
                changed[place] ^= 1 << bit;
                assert!(Tag::parse(&changed).is_none_or(|changed| !key.is_genuine(&changed)), "{place}, {bit}");
            }
        }
        assert!(Tag::parse(&tag[1..]).is_none() && Tag::parse(b"").is_none());
        assert!(Tag::parse(&tag.to_ascii_uppercase()).is_none());
    }

    #[test]
    fn the_secret_of_the_process_stays_the_same() {
        assert!(TagKey::of_process().is_genuine(&TagKey::of_process().tag(b"a")));
        assert!(!TagKey::succeed_process(&[7; 32]), "the secret is in use");
        let same = TagKey::from_secret(&TagKey::secret_of_process());
        assert!(same.is_genuine(&TagKey::of_process().tag(b"a")));
    }

    #[test]
    fn a_file_of_secrets_is_long_enough_and_nobody_elses() {
        let path = std::env::temp_dir().join(format!("propylon-tag-{}", std::process::id()));
        let result = |content: &[u8], mode: u32| {
            write(&path, content).unwrap();
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            TagKey::from_file(&path).map_err(|error| error.what)
        };
        let same = TagKey::from_secret(&[b'x'; 32]).tag(b"a");
        assert!(result(&[&[b'x'; 32][..], b"\n"].concat(), 0o600).is_ok_and(|key| key.is_genuine(&same)));
        assert!(result(&[b'x'; 32], 0o440).is_ok());
        assert_eq!(result(&[b'x'; 31], 0o600).err().unwrap(), "it has 31 bytes, and needs 32");
        assert_eq!(result(&[b'x'; 4097], 0o600).err().unwrap(), "it has more than 4096 bytes");
        assert_eq!(result(&[b'x'; 32], 0o604).err().unwrap(), "every account can get at this secret");
        assert_eq!(result(&[b'x'; 32], 0o620).err().unwrap(), "its group can change this secret");
        std::fs::remove_file(&path).unwrap();
        assert!(TagKey::from_file(&path).is_err_and(|error| error.error == Some(ErrorKind::NotFound)));
        assert_eq!(TagKey::from_file(&std::env::temp_dir()).err().unwrap().what, "it is not a file");
    }
}

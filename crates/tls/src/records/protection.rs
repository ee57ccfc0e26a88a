//! One direction's record protection: keys, nonces and associated data, for TLS 1.2 and 1.3.

use std::ops::Range;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey,
};
use aws_lc_rs::hkdf::{HKDF_SHA256, HKDF_SHA384, KeyType, Prk};
use zeroize::{Zeroize, Zeroizing};

use super::secrets::{RecordKey, Secret};
use super::suite::{Suite, Version};
use super::wire::{APPLICATION_DATA, HEADER_LEN, PLAIN_MAX};

const TAG_LEN: usize = 16;
/// Length of the explicit nonce, which TLS 1.2 with AES-GCM sends in every record (RFC 5288 §3).
const EXPLICIT_NONCE_LEN: usize = 8;

/// Keys and counters of one direction. An idle session keeps all of this but `cipher`.
pub(crate) struct Protection {
    version: Version,
    suite: Suite,
    /// Traffic secret; zero with TLS 1.2, which derives no further keys.
    secret: Secret,
    /// Record key, of which AES-128 uses the first 16 bytes.
    key: Zeroizing<[u8; 32]>,
    iv: [u8; NONCE_LEN],
    pub sequence: u64,
    /// Expanded key (600 bytes), made again when needed.
    cipher: Option<LessSafeKey>,
}

/// Reason why a record cannot be opened.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OpenError {
    /// Authentication failed.
    Forged,
    /// The plaintext is longer than a record may hold.
    TooLong,
    /// The plaintext of TLS 1.3 is nothing but padding.
    NoType,
    /// The peer has used all sequence numbers.
    OutOfNumbers,
}

impl Protection {
    /// Protection with a key of the negotiated suite; none where the library has shown no key.
    pub fn new(version: Version, suite: Suite, secret: Option<Secret>, mut key: RecordKey) -> Option<Protection> {
        Some(Protection {
            version,
            suite,
            secret: secret.unwrap_or_else(|| Secret::new([0; 48])),
            key: key.key.take()?,
            iv: key.iv,
            sequence: key.sequence.unwrap_or(0),
            cipher: None,
        })
    }

    /// Drops the expanded key, which can be made again.
    pub fn rest(&mut self) {
        self.cipher = None;
    }

    /// Bytes that a record adds to its plaintext, header included.
    pub fn overhead(&self) -> usize {
        HEADER_LEN + self.nonce_len() + self.inner_type_len() + TAG_LEN
    }

    fn nonce_len(&self) -> usize {
        match (self.version, self.suite) {
            (Version::Tls12, Suite::Aes128Gcm | Suite::Aes256Gcm) => EXPLICIT_NONCE_LEN,
            _ => 0,
        }
    }

    /// TLS 1.3 hides the content type behind the plaintext (RFC 8446 §5.2).
    fn inner_type_len(&self) -> usize {
        usize::from(self.version == Version::Tls13)
    }

    /// Writes one record of at most `PLAIN_MAX` bytes to the front of `out`. Returns its length.
    pub fn seal(&mut self, content: u8, plain: &[u8], out: &mut [u8]) -> usize {
        let len = self.overhead() + plain.len();
        let nonce = self.next_nonce();
        let (explicit, inner) = (self.nonce_len(), self.inner_type_len());
        let outer = if inner == 1 { APPLICATION_DATA } else { content };
        let header = header(outer, len - HEADER_LEN);
        let aad = match self.version {
            Version::Tls12 => AssociatedData::tls12(self.sequence, &header, plain.len()),
            Version::Tls13 => AssociatedData::tls13(&header),
        };
        let (head, rest) = out[..len].split_at_mut(HEADER_LEN + explicit);
        head[..HEADER_LEN].copy_from_slice(&header);
        head[HEADER_LEN..].copy_from_slice(&nonce[NONCE_LEN - explicit..]);
        let (sealed, tail) = rest.split_at_mut(plain.len());
        self.sequence += 1;
        self.cipher()
            .seal_out_of_place_scatter(
                Nonce::assume_unique_for_key(nonce),
                aad.aad(),
                plain,
                sealed,
                &[content][..inner],
                tail,
            )
            .expect("lengths fit each other, and a record is far below the cipher's limit");
        len
    }

    /// Opens a whole record in place. Returns its content type, and where in it the plaintext is.
    pub fn open(&mut self, record: &mut [u8]) -> Result<(u8, Range<usize>), OpenError> {
        let (header, payload) = record.split_first_chunk_mut::<HEADER_LEN>().ok_or(OpenError::Forged)?;
        let explicit = self.nonce_len();
        let sealed_len = payload.len().checked_sub(explicit + TAG_LEN).ok_or(OpenError::Forged)?;
        // The sequence number must not wrap (RFC 5246 §6.1, RFC 8446 §5.3).
        let next = self.sequence.checked_add(1).ok_or(OpenError::OutOfNumbers)?;
        let mut nonce = self.next_nonce();
        nonce[NONCE_LEN - explicit..].copy_from_slice(&payload[..explicit]);
        let aad = match self.version {
            Version::Tls12 => AssociatedData::tls12(self.sequence, header, sealed_len),
            Version::Tls13 => AssociatedData::tls13(header),
        };
        let plain = self
            .cipher()
            .open_in_place(Nonce::assume_unique_for_key(nonce), aad.aad(), &mut payload[explicit..])
            .map_err(|_| OpenError::Forged)?;
        self.sequence = next;
        let (content, len) = match self.inner_type_len() {
            0 => (header[0], plain.len()),
            // Zeros behind the content type are padding. The limit applies to the padded plaintext (RFC 8446 §5.4).
            _ if plain.len() > PLAIN_MAX + 1 => return Err(OpenError::TooLong),
            _ => {
                let at = plain.iter().rposition(|&byte| byte != 0).ok_or(OpenError::NoType)?;
                (plain[at], at)
            }
        };
        if len > PLAIN_MAX {
            return Err(OpenError::TooLong);
        }
        let start = HEADER_LEN + explicit;
        Ok((content, start..start + len))
    }

    fn next_nonce(&self) -> [u8; NONCE_LEN] {
        let mut nonce = self.iv;
        let counter = nonce[4..].iter_mut().zip(self.sequence.to_be_bytes());
        counter.for_each(|(byte, sequence)| *byte ^= sequence);
        nonce
    }

    fn cipher(&mut self) -> &LessSafeKey {
        let (suite, key) = (self.suite, &self.key);
        self.cipher.get_or_insert_with(|| {
            let algorithm = algorithm(suite);
            let key = UnboundKey::new(algorithm, &key[..algorithm.key_len()]);
            LessSafeKey::new(key.expect("the key has the length of its algorithm"))
        })
    }

    /// Switches to the next generation of keys (RFC 8446 §7.2). TLS 1.3 only.
    pub fn update(&mut self) {
        let mut next = Secret::new([0; 48]);
        self.expand(b"traffic upd", &mut next[..secret_len(self.suite)]);
        self.secret = next;
        (self.key, self.iv) = self.derived();
        self.sequence = 0;
        self.cipher = None;
    }

    /// Key and IV derived from the secret.
    pub fn derived(&self) -> (Zeroizing<[u8; 32]>, [u8; NONCE_LEN]) {
        let mut key = Zeroizing::default();
        let mut iv = [0; NONCE_LEN];
        self.expand(
            b"key",
            &mut <Zeroizing<[u8; 32]> as AsMut<[u8]>>::as_mut(&mut key)[..algorithm(self.suite).key_len()],
        );
        self.expand(b"iv", &mut iv);
        (key, iv)
    }

    /// Whether key and IV are derived from the secret.
    pub fn is_consistent(&self) -> bool {
        self.version == Version::Tls12 || self.derived() == (self.key.clone(), self.iv)
    }

    /// HKDF-Expand-Label with an empty context (RFC 8446 §7.1).
    fn expand(&self, label: &[u8], out: &mut [u8]) {
        struct Len(usize);
        impl KeyType for Len {
            fn len(&self) -> usize {
                self.0
            }
        }
        let hash = match self.suite {
            Suite::Aes256Gcm => HKDF_SHA384,
            Suite::Aes128Gcm | Suite::Chacha20Poly1305 => HKDF_SHA256,
        };
        let secret = Prk::new_less_safe(hash, &self.secret[..secret_len(self.suite)]);
        let [_, len] = (out.len() as u16).to_be_bytes();
        let prefix = [0, len, 6 + label.len() as u8];
        let info = [&prefix[..], b"tls13 ", label, &[0]];
        let filled = secret.expand(&info, Len(out.len())).and_then(|expanded| expanded.fill(out));
        filled.expect("a key is shorter than what a hash can be expanded to");
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        self.iv.zeroize();
    }
}

fn algorithm(suite: Suite) -> &'static Algorithm {
    match suite {
        Suite::Aes128Gcm => &AES_128_GCM,
        Suite::Aes256Gcm => &AES_256_GCM,
        Suite::Chacha20Poly1305 => &CHACHA20_POLY1305,
    }
}

fn secret_len(suite: Suite) -> usize {
    match suite {
        Suite::Aes256Gcm => 48,
        Suite::Aes128Gcm | Suite::Chacha20Poly1305 => 32,
    }
}

fn header(content: u8, len: usize) -> [u8; HEADER_LEN] {
    let [high, low] = (len as u16).to_be_bytes();
    [content, 3, 3, high, low]
}

/// Additional authenticated data: 13 bytes in TLS 1.2 (RFC 5246 §6.2.3.3), the header in TLS 1.3.
struct AssociatedData {
    bytes: [u8; 13],
    len: usize,
}

impl AssociatedData {
    fn tls12(sequence: u64, header: &[u8; HEADER_LEN], plain_len: usize) -> AssociatedData {
        let mut bytes = [0; 13];
        bytes[..8].copy_from_slice(&sequence.to_be_bytes());
        bytes[8..11].copy_from_slice(&header[..3]);
        bytes[11..].copy_from_slice(&(plain_len as u16).to_be_bytes());
        AssociatedData { bytes, len: 13 }
    }

    fn tls13(header: &[u8; HEADER_LEN]) -> AssociatedData {
        let mut bytes = [0; 13];
        bytes[..HEADER_LEN].copy_from_slice(header);
        AssociatedData { bytes, len: HEADER_LEN }
    }

    fn aad(&self) -> Aad<&[u8]> {
        Aad::from(&self.bytes[..self.len])
    }
}

//! The TLS 1.3 key schedule's HKDF with SHA-256, with each key's HMAC begun once.
//!
//! A handshake derives some thirty keys from a dozen secrets. HMAC hashes its key first, twice; keeping that state (RFC
//! 2104 §4) halves the work for the second and later keys of a secret. The library starts anew for each key. What is
//! derived before a handshake has any secret is the same for all of them, and kept.

use std::sync::LazyLock;

use propylon_crypto::sha256_blocks;
use rustls::crypto::hmac::Tag;
use rustls::crypto::tls13::{Hkdf, HkdfExpander, OkmBlock, OutputLengthError};
use zeroize::Zeroize;

const BLOCK_LEN: usize = 64;
const HASH_LEN: usize = 32;
/// FIPS 180-4 §5.3.3.
const INITIAL: [u32; 8] =
    [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];

pub(crate) struct HkdfSha256;

impl Hkdf for HkdfSha256 {
    fn extract_from_zero_ikm(&self, salt: Option<&[u8]>) -> Box<dyn HkdfExpander> {
        match salt {
            None => Box::new(EarlySecret),
            Some(_) => self.extract_from_secret(salt, &[0; HASH_LEN]),
        }
    }

    fn extract_from_secret(&self, salt: Option<&[u8]>, secret: &[u8]) -> Box<dyn HkdfExpander> {
        let mut pseudorandom_key = match salt {
            Some(salt) if *salt == WITHOUT_PSK.derived => WITHOUT_PSK.salted.sign(&[secret]),
            salt => Mac::new(salt.unwrap_or(&[0; HASH_LEN])).sign(&[secret]),
        };
        let expander = Mac::new(&pseudorandom_key);
        pseudorandom_key.zeroize();
        Box::new(expander)
    }

    fn expander_for_okm(&self, okm: &OkmBlock) -> Box<dyn HkdfExpander> {
        Box::new(Mac::new(okm.as_ref()))
    }

    fn hmac_sign(&self, key: &OkmBlock, message: &[u8]) -> Tag {
        Tag::new(&Mac::new(key.as_ref()).sign(&[message]))
    }
}

/// Values of the key schedule (RFC 8446 §7.1) that every handshake without a pre-shared key begins with. No secret is
/// in them.
static WITHOUT_PSK: LazyLock<WithoutPsk> = LazyLock::new(|| {
    let early = Mac::new(&Mac::new(&[0; HASH_LEN]).sign(&[&[0; HASH_LEN]]));
    let derived_info = [b"\x00\x20\x0dtls13 derived\x20", &Hasher::new(INITIAL, 0).finish()[..]].concat();
    let mut derived = [0; HASH_LEN];
    early.expand(&[&derived_info], &mut derived);
    WithoutPsk { early, derived_info, derived, salted: Mac::new(&derived) }
});

struct WithoutPsk {
    early: Mac,
    /// HkdfLabel of "derived" over an empty transcript.
    derived_info: Vec<u8>,
    /// Salt of the handshake secret, derived from the early secret by that.
    derived: [u8; HASH_LEN],
    salted: Mac,
}

impl WithoutPsk {
    fn is_derived(&self, info: &[&[u8]]) -> bool {
        let rest = info.iter().try_fold(&self.derived_info[..], |rest, part| rest.strip_prefix(*part));
        rest.is_some_and(<[u8]>::is_empty)
    }
}

/// The early secret of a handshake without a pre-shared key.
struct EarlySecret;

impl HkdfExpander for EarlySecret {
    fn expand_slice(&self, info: &[&[u8]], output: &mut [u8]) -> Result<(), OutputLengthError> {
        WITHOUT_PSK.early.expand_slice(info, output)
    }

    fn expand_block(&self, info: &[&[u8]]) -> OkmBlock {
        let without_psk = &*WITHOUT_PSK;
        match without_psk.is_derived(info) {
            true => OkmBlock::new(&without_psk.derived),
            false => without_psk.early.expand_block(info),
        }
    }

    fn hash_len(&self) -> usize {
        HASH_LEN
    }
}

/// HMAC-SHA-256 (RFC 2104) with the key hashed already.
struct Mac {
    inner: [u32; 8],
    outer: [u32; 8],
}

impl Mac {
    fn new(key: &[u8]) -> Mac {
        let mut block = [0; BLOCK_LEN];
        if key.len() > BLOCK_LEN {
            let mut hasher = Hasher::new(INITIAL, 0);
            hasher.update(key);
            block[..HASH_LEN].copy_from_slice(&hasher.finish());
        } else {
            block[..key.len()].copy_from_slice(key);
        }
        let begun = |block: &mut [u8; BLOCK_LEN], pad: u8| {
            block.iter_mut().for_each(|byte| *byte ^= pad);
            let mut state = INITIAL;
            sha256_blocks(&mut state, std::slice::from_ref(block));
            state
        };
        let inner = begun(&mut block, 0x36);
        let outer = begun(&mut block, 0x36 ^ 0x5c);
        block.zeroize();
        Mac { inner, outer }
    }

    fn sign(&self, parts: &[&[u8]]) -> [u8; HASH_LEN] {
        let mut hasher = Hasher::new(self.inner, BLOCK_LEN);
        parts.iter().for_each(|part| hasher.update(part));
        let mut inner = hasher.finish();
        let mut hasher = Hasher::new(self.outer, BLOCK_LEN);
        hasher.update(&inner);
        inner.zeroize();
        hasher.finish()
    }

    /// HKDF-Expand (RFC 5869 §2.3), for at most 255 hashes.
    fn expand(&self, info: &[&[u8]], out: &mut [u8]) {
        let mut parts: [&[u8]; INFO_PARTS_MAX + 2] = [&[]; INFO_PARTS_MAX + 2];
        parts[1..=info.len()].copy_from_slice(info);
        let mut previous = [0; HASH_LEN];
        for (chunk, counter) in out.chunks_mut(HASH_LEN).zip(1..=u8::MAX) {
            let (counter, first) = ([counter], counter == 1);
            let mut parts = parts;
            parts[0] = if first { &[] } else { &previous };
            parts[info.len() + 1] = &counter;
            let next = self.sign(&parts[..info.len() + 2]);
            previous = next;
            chunk.copy_from_slice(&previous[..chunk.len()]);
        }
        previous.zeroize();
    }
}

/// Pieces in which the library passes HKDF's info: lengths, prefix, label, length, context.
const INFO_PARTS_MAX: usize = 8;

impl HkdfExpander for Mac {
    fn expand_slice(&self, info: &[&[u8]], output: &mut [u8]) -> Result<(), OutputLengthError> {
        if output.len() > 255 * HASH_LEN {
            return Err(OutputLengthError);
        }
        if info.len() > INFO_PARTS_MAX {
            self.expand(&[&info.concat()], output);
        } else {
            self.expand(info, output);
        }
        Ok(())
    }

    fn expand_block(&self, info: &[&[u8]]) -> OkmBlock {
        let mut block = [0; HASH_LEN];
        // One hash is within the limit.
        let _ = self.expand_slice(info, &mut block);
        let okm = OkmBlock::new(&block);
        block.zeroize();
        okm
    }

    fn hash_len(&self) -> usize {
        HASH_LEN
    }
}

impl Drop for Mac {
    fn drop(&mut self) {
        self.inner.zeroize();
        self.outer.zeroize();
    }
}

/// SHA-256 from a given state on.
struct Hasher {
    state: [u32; 8],
    block: [u8; BLOCK_LEN],
    /// Bytes waiting in `block`.
    waiting: usize,
    /// Bytes hashed, those waiting included.
    len: usize,
}

impl Hasher {
    fn new(state: [u32; 8], len: usize) -> Hasher {
        Hasher { state, block: [0; BLOCK_LEN], waiting: 0, len }
    }

    fn update(&mut self, mut bytes: &[u8]) {
        self.len += bytes.len();
        while self.waiting + bytes.len() >= BLOCK_LEN {
            let (fits, rest) = bytes.split_at(BLOCK_LEN - self.waiting);
            self.block[self.waiting..].copy_from_slice(fits);
            sha256_blocks(&mut self.state, std::slice::from_ref(&self.block));
            self.waiting = 0;
            bytes = rest;
        }
        self.block[self.waiting..self.waiting + bytes.len()].copy_from_slice(bytes);
        self.waiting += bytes.len();
    }

    /// FIPS 180-4 §5.1.1: a one bit, zeros, the length in bits.
    fn finish(mut self) -> [u8; HASH_LEN] {
        const LENGTH_AT: usize = BLOCK_LEN - 8;
        self.block[self.waiting..].fill(0);
        self.block[self.waiting] = 0x80;
        if self.waiting >= LENGTH_AT {
            sha256_blocks(&mut self.state, std::slice::from_ref(&self.block));
            self.block.fill(0);
        }
        self.block[LENGTH_AT..].copy_from_slice(&(8 * self.len as u64).to_be_bytes());
        sha256_blocks(&mut self.state, std::slice::from_ref(&self.block));
        let mut hash = [0; HASH_LEN];
        for (bytes, word) in hash.chunks_exact_mut(4).zip(self.state) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        hash
    }
}

impl Drop for Hasher {
    fn drop(&mut self) {
        self.state.zeroize();
        self.block.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::{digest, hmac};
    use rustls::SupportedCipherSuite;
    use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;

    use super::*;

    fn bytes(random: &mut fastrand::Rng, max: usize) -> Vec<u8> {
        (0..random.usize(..=max)).map(|_| random.u8(..)).collect()
    }

    #[test]
    fn hashes_and_macs_are_those_of_aws_lc() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..5_000 {
            let (key, one, other) = (bytes(&mut random, 200), bytes(&mut random, 200), bytes(&mut random, 200));
            let mut hasher = Hasher::new(INITIAL, 0);
            hasher.update(&one);
            hasher.update(&other);
            let both = [one.as_slice(), &other].concat();
            assert_eq!(hasher.finish(), digest::digest(&digest::SHA256, &both).as_ref());
            let theirs = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), &both);
            assert_eq!(Mac::new(&key).sign(&[&one, &other]), theirs.as_ref());
        }
    }

    #[test]
    fn keys_are_those_of_the_librarys_own_key_schedule() {
        let SupportedCipherSuite::Tls13(suite) = TLS13_AES_128_GCM_SHA256 else { panic!("a TLS 1.3 suite") };
        let library = suite.hkdf_provider;
        let mut random = fastrand::Rng::with_seed(2);
        for _ in 0..1_000 {
            let (salt, secret, label) = (bytes(&mut random, 32), bytes(&mut random, 64), bytes(&mut random, 40));
            let salt = random.bool().then_some(salt.as_slice());
            let info: [&[u8]; 3] = [b"tls13 ", &label, &secret];
            let (ours, theirs) =
                (HkdfSha256.extract_from_secret(salt, &secret), library.extract_from_secret(salt, &secret));
            let (mut our_key, mut their_key) = (vec![0; random.usize(1..100)], Vec::new());
            their_key.resize(our_key.len(), 0);
            assert!(
                ours.expand_slice(&info, &mut our_key).is_ok() && theirs.expand_slice(&info, &mut their_key).is_ok()
            );
            assert_eq!(our_key, their_key);
            let (ours, theirs) = (ours.expand_block(&info), theirs.expand_block(&info));
            assert_eq!(ours.as_ref(), theirs.as_ref());
            assert_eq!(HkdfSha256.hmac_sign(&ours, &label).as_ref(), library.hmac_sign(&theirs, &label).as_ref());
            let (ours, theirs) = (HkdfSha256.expander_for_okm(&ours), library.expander_for_okm(&theirs));
            assert_eq!(ours.expand_block(&info).as_ref(), theirs.expand_block(&info).as_ref());
            let (ours, theirs) = (HkdfSha256.extract_from_zero_ikm(salt), library.extract_from_zero_ikm(salt));
            assert_eq!(ours.expand_block(&info).as_ref(), theirs.expand_block(&info).as_ref());
        }
    }

    #[test]
    fn a_handshake_without_a_psk_begins_with_the_librarys_own_keys() {
        let SupportedCipherSuite::Tls13(suite) = TLS13_AES_128_GCM_SHA256 else { panic!("a TLS 1.3 suite") };
        let (ours, theirs) = (HkdfSha256.extract_from_zero_ikm(None), suite.hkdf_provider.extract_from_zero_ikm(None));
        let empty = digest::digest(&digest::SHA256, b"");
        let labels: [&[u8]; 4] = [b"derived", b"derive", b"ext binder", b"e exp master"];
        for (label, context) in labels.into_iter().flat_map(|label| [(label, empty.as_ref()), (label, b"no hash")]) {
            let (label_len, context_len) = ([6 + label.len() as u8], [context.len() as u8]);
            let info: [&[u8]; 6] = [&[0, 32], &label_len, b"tls13 ", label, &context_len, context];
            let (our_key, their_key) = (ours.expand_block(&info), theirs.expand_block(&info));
            assert_eq!(our_key.as_ref(), their_key.as_ref());
            let begun = |hkdf: &dyn Hkdf, salt: &OkmBlock| hkdf.extract_from_secret(Some(salt.as_ref()), b"secret");
            let (ours, theirs) = (begun(&HkdfSha256, &our_key), begun(suite.hkdf_provider, &their_key));
            assert_eq!(ours.expand_block(&info).as_ref(), theirs.expand_block(&info).as_ref());
        }
        assert!(WITHOUT_PSK.is_derived(&[&WITHOUT_PSK.derived_info]));
        assert!(!WITHOUT_PSK.is_derived(&[&WITHOUT_PSK.derived_info, b"more"]));
        assert!(!WITHOUT_PSK.is_derived(&[]));
    }

    #[test]
    fn more_than_255_hashes_are_refused() {
        let expander = HkdfSha256.extract_from_zero_ikm(None);
        assert!(expander.expand_slice(&[], &mut [0; 255 * HASH_LEN]).is_ok());
        assert!(expander.expand_slice(&[], &mut [0; 255 * HASH_LEN + 1]).is_err());
    }
}

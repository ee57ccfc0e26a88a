//! Hashes of secrets: to find one again without keeping it, and to compare two without telling where they differ.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::{digest, hmac, rand};

/// Hashes by a key that nobody knows, made with it: what they are hashes of cannot be found by trying (RFC 2104).
pub struct KeyedHash(hmac::Key);

impl KeyedHash {
    /// A hash by a key of its own.
    pub fn random() -> KeyedHash {
        let mut key = [0; 32];
        rand::fill(&mut key).expect("the system's random numbers");
        KeyedHash(hmac::Key::new(hmac::HMAC_SHA256, &key))
    }

    /// HMAC-SHA-256 of the parts. Where one ends and the next begins is part of what is hashed.
    pub fn of(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.0);
        for part in parts {
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        let mut hash = [0; 32];
        hash.copy_from_slice(context.sign().as_ref());
        hash
    }
}

/// SHA-256 of a text.
pub fn sha256(text: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, text).as_ref());
    hash
}

/// Whether both are the same, compared in a time that does not depend on where they differ.
pub fn is_same_hash(one: &[u8; 32], other: &[u8; 32]) -> bool {
    verify_slices_are_equal(one, other).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keyed_hash_tells_parts_apart_and_is_another_by_another_key() {
        let hash = KeyedHash::random();
        assert_eq!(hash.of(&[b"ab", b"c"]), hash.of(&[b"ab", b"c"]));
        assert_ne!(hash.of(&[b"ab", b"c"]), hash.of(&[b"a", b"bc"]));
        assert_ne!(hash.of(&[b"ab"]), KeyedHash::random().of(&[b"ab"]));
    }

    #[test]
    fn sha256_is_that_of_fips_180_4() {
        assert_eq!(sha256(b"abc")[..4], [0xba, 0x78, 0x16, 0xbf]);
        assert!(is_same_hash(&sha256(b"abc"), &sha256(b"abc")) && !is_same_hash(&sha256(b"abc"), &sha256(b"abd")));
    }
}

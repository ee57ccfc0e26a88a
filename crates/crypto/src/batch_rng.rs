//! Random bytes for X25519 pairs and blindings: a generator for each batch, seeded anew.
//!
//! Seeds come from AWS-LC's generator, which the system seeds, and from a secret that all private keys of the
//! process have gone into. So an attacker who could predict the system's random numbers and knows none of the keys
//! does not know what is made here either. The secret is no protection against a copy of the machine, which has it
//! as well: the nonces of signatures are not made here ([`signatures`](crate::batch::signatures)).

use std::sync::Mutex;

use aws_lc_rs::cipher::{AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::digest::{Context, SHA256};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::rand;
use zeroize::Zeroizing;

/// Secret that all keys so far are mixed into, in their order of arrival.
static KEYS: Mutex<[u8; 32]> = Mutex::new([0; 32]);

/// Mixes a private key's encoding into the secret.
pub(crate) fn add_key(key: &[u8]) {
    let mut keys = KEYS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut context = Context::new(&SHA256);
    context.update(&*keys);
    context.update(key);
    keys.copy_from_slice(context.finish().as_ref());
}

/// One thread's source of batches of random bytes.
pub(crate) struct BatchRng {
    secret: Zeroizing<[u8; 32]>,
    batches: u64,
}

impl BatchRng {
    pub fn new() -> BatchRng {
        BatchRng { secret: Zeroizing::new([0; 32]), batches: 0 }
    }

    /// Fills `bytes`. A failure is one of the system: then nothing may be made of them.
    pub fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Unspecified> {
        // The lock is held for a moment when a key is loaded; then the secret that was good until now still is.
        if let Ok(keys) = KEYS.try_lock() {
            self.secret.copy_from_slice(&*keys);
        }
        let mut fresh = Zeroizing::new([0; 40]);
        rand::fill(&mut fresh[..32])?;
        self.batches += 1;
        fresh[32..].copy_from_slice(&self.batches.to_be_bytes());
        let seed = Salt::new(HKDF_SHA256, &*self.secret).extract(&*fresh);
        let mut key = Zeroizing::new([0; 32]);
        seed.expand(&[b"propylon batch"], Key)?.fill(&mut *key)?;
        // The stream of a key that is used this once: its blocks from 0 on.
        bytes.fill(0);
        let stream = EncryptingKey::ctr(UnboundCipherKey::new(&AES_256, &*key)?)?;
        let start = EncryptionContext::Iv128(FixedLength::from([0; 16]));
        stream.less_safe_encrypt(bytes, start)?;
        Ok(())
    }
}

struct Key;

impl KeyType for Key {
    fn len(&self) -> usize {
        32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_batch_is_like_another_and_no_block_repeats() {
        let (mut one, mut other) = (BatchRng::new(), BatchRng::new());
        let mut blocks = std::collections::HashSet::new();
        for rng in [&mut one, &mut other] {
            for _ in 0..50 {
                let mut bytes = [0; 2048];
                rng.fill(&mut bytes).expect("random bytes");
                for block in bytes.chunks(16) {
                    assert!(blocks.insert(block.to_vec()), "a block has come twice");
                }
            }
        }
    }

    #[test]
    fn bits_are_about_as_often_set_as_not() {
        let mut bytes = vec![0; 1 << 16];
        BatchRng::new().fill(&mut bytes).expect("random bytes");
        let ones: u32 = bytes.iter().map(|byte| byte.count_ones()).sum();
        // Eight standard deviations either way.
        assert!((1 << 18) - 2900 < ones && ones < (1 << 18) + 2900, "{ones}");
    }

    #[test]
    fn a_key_changes_the_secret() {
        let before = *KEYS.lock().expect("nobody panics with it");
        add_key(b"a key");
        assert_ne!(*KEYS.lock().expect("nobody panics with it"), before);
    }
}

//! ECDSA on P-256 in the lanes: several signatures at once, each with a nonce that is bound to what it signs.
//!
//! The nonce k is the SHA-512 of the private key, fresh random bytes and the digest, mod n. So nothing that could
//! sign exists before the digests do: copies of this process's memory that go on as machines of their own, from a
//! snapshot or a clone, draw the same random bytes and come to different nonces, unless they sign the same digest,
//! and then to the same signature. And an attacker who could predict the random bytes does not know the key. AWS-LC
//! binds its nonces likewise.

use aws_lc_rs::rand;
use propylon_lanes::{Ifma, p256};
use zeroize::{Zeroize, Zeroizing};

use super::plan::P256_MAX;
use crate::awslc;
use crate::locked::blank_struct;

/// Longer digests are cut before they are jobs.
const DIGEST_BYTES_MAX: usize = 66;
const CONTEXT: &[u8; 13] = b"propylon p256";
const SECRET_BYTES: usize = 32;
const FRESH_BYTES: usize = 32;
/// Length of what is hashed: with a digest of 32 bytes it is one block of SHA-512.
const HASHED_BYTES_MAX: usize = SECRET_BYTES + FRESH_BYTES + CONTEXT.len() + 1 + DIGEST_BYTES_MAX;

/// A key and a digest.
pub(crate) type Operation<'a> = (&'a p256::SecretScalar, &'a [u8]);

/// r and s.
pub(crate) type Signature = [u8; 64];

/// The reason why there are no signatures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignError {
    /// No random bytes could be had.
    Random,
    /// The kernel refuses what it should take.
    Kernel,
}

blank_struct! {
    /// The working memory of a batch; empty, which is all zero, between batches.
    pub(crate) struct SignatureWorkspace {
        points: p256::Scratch,
        fresh: [[u8; FRESH_BYTES]; P256_MAX],
        hashed: [u8; HASHED_BYTES_MAX],
        wide: [u8; 64],
        nonces: [[u8; 32]; P256_MAX],
        pairs: [p256::PairSlot; P256_MAX],
    }
}

impl SignatureWorkspace {
    /// Signs the operations, at most [`P256_MAX`]. One result for each; absent where AWS-LC has to sign.
    pub fn sign(&mut self, ifma: Ifma, operations: &[Operation<'_>]) -> Result<Vec<Option<Signature>>, SignError> {
        self.sign_with(ifma, operations, |bytes| rand::fill(bytes).is_ok())
    }

    /// `draw` fills its argument with random bytes, or says that it cannot.
    pub fn sign_with(
        &mut self,
        ifma: Ifma,
        operations: &[Operation<'_>],
        mut draw: impl FnMut(&mut [u8]) -> bool,
    ) -> Result<Vec<Option<Signature>>, SignError> {
        let batch = Batch(self);
        // A scalar that the formulas cannot do spoils its batch: once in 2^248. Twice is a defect.
        for _ in 0..2 {
            if !draw(batch.0.fresh[..operations.len()].as_flattened_mut()) {
                return Err(SignError::Random);
            }
            if batch.0.make_pairs(ifma, operations) {
                let pairs = batch.0.pairs.iter_mut().map(p256::PairSlot::take);
                let sign = |((key, digest), pair): (&Operation<'_>, Option<p256::Pair>)| p256::sign(key, digest, pair?);
                return Ok(operations.iter().zip(pairs).map(sign).collect());
            }
        }
        Err(SignError::Kernel)
    }

    fn make_pairs(&mut self, ifma: Ifma, operations: &[Operation<'_>]) -> bool {
        for (place, (key, digest)) in operations.iter().enumerate() {
            if !self.bind_nonce(place, key, digest) {
                return false;
            }
        }
        // Lanes without work repeat the first one's; what comes of it is dropped.
        let (count, whole) = (operations.len(), operations.len().next_multiple_of(p256::LANES));
        let first = Zeroizing::new(self.nonces[0]);
        self.nonces[count..whole].fill(*first);
        p256::nonce_pairs(ifma, &mut self.nonces[..whole], &mut self.points, &mut self.pairs[..whole]).is_ok()
    }

    /// False, with a probability of 2^-256, where the nonce would be 0; and where the digest is too long.
    fn bind_nonce(&mut self, place: usize, key: &p256::SecretScalar, digest: &[u8]) -> bool {
        let Some(length) = u8::try_from(digest.len()).ok().filter(|length| usize::from(*length) <= DIGEST_BYTES_MAX)
        else {
            return false;
        };
        let (secret, rest) = self.hashed.split_first_chunk_mut::<SECRET_BYTES>().expect("there is room");
        key.write_secret(secret);
        let mut at = 0;
        for part in [&self.fresh[place][..], CONTEXT, &[length], digest] {
            rest[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        awslc::sha512(&self.hashed[..SECRET_BYTES + at], &mut self.wide);
        let Some(nonce) = p256::scalar_of(&self.wide).map(Zeroizing::new) else { return false };
        self.nonces[place].copy_from_slice(&*nonce);
        true
    }

    fn clear(&mut self) {
        self.fresh.as_flattened_mut().zeroize();
        self.hashed.zeroize();
        self.wide.zeroize();
        self.nonces.as_flattened_mut().zeroize();
        self.pairs.iter_mut().for_each(p256::PairSlot::clear);
    }

    #[cfg(test)]
    pub fn is_wiped(&self) -> bool {
        let bytes = [self.fresh.as_flattened(), &self.hashed, &self.wide, self.nonces.as_flattened()].concat();
        bytes.iter().all(|byte| *byte == 0) && self.pairs.iter().all(|slot| !slot.is_full())
    }
}

/// The memory while it is used: wiped at the end, also when a panic is it.
struct Batch<'a>(&'a mut SignatureWorkspace);

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::locked::Locked;

    fn lanes() -> Option<Ifma> {
        let ifma = super::super::health::ifma();
        if ifma.is_none() {
            println!("this processor has no AVX-512: nothing to test");
        }
        ifma
    }

    fn key(random: &mut fastrand::Rng) -> p256::SecretScalar {
        let mut bytes: [u8; 32] = std::array::from_fn(|_| random.u8(..));
        bytes[0] = 0x7f;
        p256::SecretScalar::new(&bytes).expect("below n")
    }

    /// One machine as it was when its memory was copied: the same keys, and a generator that goes on alike.
    fn restored(ifma: Ifma, keys: &[p256::SecretScalar], digests: &[Vec<u8>], seed: u64) -> Vec<Signature> {
        let mut memory: Box<Locked<SignatureWorkspace>> = Box::new(Locked::new().expect("memory"));
        let mut random = fastrand::Rng::with_seed(seed);
        let draw = |bytes: &mut [u8]| {
            random.fill(bytes);
            true
        };
        let operations: Vec<Operation<'_>> =
            digests.iter().enumerate().map(|(place, digest)| (&keys[place % keys.len()], &digest[..])).collect();
        let signatures = memory.sign_with(ifma, &operations, draw).expect("signatures");
        assert!(memory.is_wiped());
        signatures.into_iter().map(|signature| signature.expect("s is not 0")).collect()
    }

    #[test]
    fn two_copies_of_a_machine_never_sign_two_digests_with_one_nonce() {
        let Some(ifma) = lanes() else { return };
        let mut random = fastrand::Rng::with_seed(5);
        let keys = [key(&mut random), key(&mut random)];
        for round in 0..40 {
            let count = random.usize(1..=P256_MAX);
            let length = [32, 20, 48, 64, 0, 66][round % 6];
            let digests: Vec<Vec<u8>> = (0..count).map(|_| (0..length).map(|_| random.u8(..)).collect()).collect();
            let seed = random.u64(..);
            let one = restored(ifma, &keys, &digests, seed);
            assert_eq!(one, restored(ifma, &keys, &digests, seed), "the same randomness, keys and digests");
            // The other copy has other clients: one bit of each digest, its length, or its place is another.
            let others: Vec<Vec<u8>> = match round % 3 {
                _ if length == 0 => digests.iter().map(|_| vec![1]).collect(),
                0 => digests.iter().map(|digest| [&[digest[0] ^ 1], &digest[1..]].concat()).collect(),
                1 => digests.iter().map(|digest| digest[..length - 1].to_vec()).collect(),
                _ => digests
                    .iter()
                    .map(|digest| [&digest[..length - 1], &[digest[length - 1] ^ 0x80]].concat())
                    .collect(),
            };
            let other = restored(ifma, &keys, &others, seed);
            for (one, other) in one.iter().zip(&other) {
                assert_ne!(one[..32], other[..32], "one r for two digests discloses the key");
            }
        }
    }

    #[test]
    fn neither_another_key_nor_other_randomness_comes_to_the_same_nonce() {
        let Some(ifma) = lanes() else { return };
        let mut random = fastrand::Rng::with_seed(6);
        let keys = [key(&mut random), key(&mut random)];
        let digest = vec![vec![7; 32]];
        let rs: Vec<[u8; 64]> = [(&keys[..1], 1), (&keys[1..], 1), (&keys[..1], 2)]
            .into_iter()
            .map(|(key, seed)| restored(ifma, key, &digest, seed)[0])
            .collect();
        assert!(rs[0][..32] != rs[1][..32] && rs[0][..32] != rs[2][..32] && rs[1][..32] != rs[2][..32]);
        // One batch, with a generator that is stuck: digests alone tell the nonces apart.
        let mut memory: Box<Locked<SignatureWorkspace>> = Box::new(Locked::new().expect("memory"));
        let digests: Vec<[u8; 32]> = (0..P256_MAX as u8).map(|byte| [byte; 32]).collect();
        let operations: Vec<Operation<'_>> = digests.iter().map(|digest| (&keys[0], &digest[..])).collect();
        let signatures = memory.sign_with(ifma, &operations, |bytes| {
            bytes.fill(9);
            true
        });
        let rs: std::collections::HashSet<_> = signatures
            .expect("signatures")
            .into_iter()
            .map(|signature| signature.expect("s is not 0")[..32].to_vec())
            .collect();
        assert_eq!(rs.len(), P256_MAX);
    }

    #[test]
    fn without_random_bytes_nothing_is_signed() {
        let Some(ifma) = lanes() else { return };
        let key = key(&mut fastrand::Rng::with_seed(7));
        let mut memory: Box<Locked<SignatureWorkspace>> = Box::new(Locked::new().expect("memory"));
        let result = memory.sign_with(ifma, &[(&key, &[7; 32])], |_| false);
        assert_eq!(result.err(), Some(SignError::Random));
        assert!(memory.is_wiped());
    }
}

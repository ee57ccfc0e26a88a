//! Encodings of a digest into the block that the RSA private operation takes (RFC 8017 §9).

use aws_lc_rs::rand;

use crate::scheme::Hash;

/// EMSA-PKCS1-v1_5 (RFC 8017 §9.2): `00 01 FF… 00 DigestInfo`. None if the modulus is too short for it.
pub(crate) fn pkcs1(hash: Hash, digest: &[u8], modulus_len: usize) -> Option<Box<[u8]>> {
    let info = hash.digest_info();
    let tail = info.len() + digest.len();
    // Two bytes in front, eight of padding at least, one between.
    if modulus_len < tail + 11 {
        return None;
    }
    let mut block = vec![0xff; modulus_len].into_boxed_slice();
    block[..2].copy_from_slice(&[0, 1]);
    let (head, rest) = block.split_at_mut(modulus_len - tail);
    head[head.len() - 1] = 0;
    rest[..info.len()].copy_from_slice(info);
    rest[info.len()..].copy_from_slice(digest);
    Some(block)
}

/// EMSA-PSS (RFC 8017 §9.1.1) for a modulus whose top bit is the top bit of its first byte, which is so for every
/// length that is a multiple of eight bits. None if the modulus is too short, or the hash is none for PSS.
pub(crate) fn pss(hash: Hash, digest: &[u8], modulus_len: usize) -> Option<Box<[u8]>> {
    const TRAILER: u8 = 0xbc;
    let hash_len = hash.digest_len();
    if hash == Hash::Md5Sha1 || modulus_len < 2 * hash_len + 2 {
        return None;
    }
    let mut salt = [0; 64];
    let salt = &mut salt[..hash_len];
    rand::fill(salt).ok()?;
    let mut message = Vec::with_capacity(8 + 2 * hash_len);
    message.extend_from_slice(&[0; 8]);
    message.extend_from_slice(digest);
    message.extend_from_slice(salt);
    let seed = hash.digest(&message)?;
    let mut block = vec![0; modulus_len].into_boxed_slice();
    let masked_len = modulus_len - hash_len - 1;
    let (masked, end) = block.split_at_mut(masked_len);
    masked[masked_len - hash_len - 1] = 1;
    masked[masked_len - hash_len..].copy_from_slice(salt);
    mask(hash, seed.as_ref(), masked)?;
    // emBits is one less than the modulus has (§8.1.1).
    masked[0] &= 0x7f;
    end[..hash_len].copy_from_slice(seed.as_ref());
    end[hash_len] = TRAILER;
    Some(block)
}

/// MGF1 (RFC 8017 §B.2.1), xored on.
fn mask(hash: Hash, seed: &[u8], out: &mut [u8]) -> Option<()> {
    let mut input = seed.to_vec();
    input.extend_from_slice(&[0; 4]);
    for (counter, chunk) in (0_u32..).zip(out.chunks_mut(hash.digest_len())) {
        input[seed.len()..].copy_from_slice(&counter.to_be_bytes());
        let block = hash.digest(&input)?;
        chunk.iter_mut().zip(block.as_ref()).for_each(|(byte, mask)| *byte ^= mask);
    }
    Some(())
}

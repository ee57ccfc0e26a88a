//! Hashes of keys, and numbers drawn from random bits.

/// The same bytes have the same key on every engine. Not a secret: whoever may choose keys may choose servers by them,
/// which is what the bound on load is for.
pub fn key_of(bytes: &[u8]) -> u64 {
    let mut hash = bytes.len() as u64;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        hash = mix(hash ^ u64::from_le_bytes(word.try_into().unwrap_or_default()));
    }
    let mut last = [0; 8];
    last[..words.remainder().len()].copy_from_slice(words.remainder());
    mix(hash ^ u64::from_le_bytes(last))
}

/// A number below `limit` (0 if that is 0), as even as 64 bits allow.
pub(super) fn below(random: u64, limit: u64) -> u64 {
    ((u128::from(random) * u128::from(limit)) >> 64) as u64
}

/// From 0 to 1.
pub(super) fn fraction(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// Other bits of the same quality, from the same draw (the finaliser of splitmix64).
pub(super) fn mix(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

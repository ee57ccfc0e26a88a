//! The DER form of an ECDSA signature: `SEQUENCE { r INTEGER, s INTEGER }` (RFC 3279 §2.2.3). Signatures are public.

/// Two integers of 33 bytes at most, each with two bytes of tag and length, and the sequence's own two.
pub const DER_SIGNATURE_BYTES_MAX: usize = 72;

/// A signature in DER.
#[derive(Clone, Copy, Debug)]
pub struct DerSignature {
    bytes: [u8; DER_SIGNATURE_BYTES_MAX],
    length: usize,
}

impl DerSignature {
    /// Encodes r || s, 32 big-endian bytes each.
    #[must_use]
    pub fn new(signature: &[u8; 64]) -> DerSignature {
        let mut der = DerSignature { bytes: [0; DER_SIGNATURE_BYTES_MAX], length: 2 };
        der.push_integer(&signature[..32]);
        der.push_integer(&signature[32..]);
        der.bytes[0] = 0x30;
        der.bytes[1] = (der.length - 2) as u8;
        der
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    /// Minimal (X.690 §8.3.2): no leading zero bytes, but one before a set top bit; zero is one byte.
    fn push_integer(&mut self, number: &[u8]) {
        let zeroes = number.iter().take(number.len() - 1).take_while(|byte| **byte == 0).count();
        let digits = &number[zeroes..];
        let sign = usize::from(digits[0] >> 7);
        let start = self.length + 2 + sign;
        self.bytes[self.length] = 0x02;
        self.bytes[self.length + 1] = (digits.len() + sign) as u8;
        self.bytes[start..start + digits.len()].copy_from_slice(digits);
        self.length = start + digits.len();
    }
}

//! Schemes: the operation that is done with a private key.

/// An operation and, where there is one, the hash of what is signed. The input is the digest, but for `Ed25519` (the
/// message) and `RsaRaw` (a block as long as the modulus).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// RSASSA-PKCS1-v1_5 (RFC 8017 §8.2).
    RsaPkcs1(Hash),
    /// RSASSA-PSS, MGF1 with the same hash, a salt as long as the digest (RFC 8017 §8.1, RFC 8446 §4.2.3).
    RsaPss(Hash),
    /// The private operation and nothing else: c^d mod n. Padding, if any, is left on.
    RsaRaw,
    /// FIPS 186-5 §6; a digest longer than the curve's order loses its last bits, a shorter one is used as it is. The
    /// signature is DER, `SEQUENCE { r, s }`.
    Ecdsa(Hash),
    /// RFC 8032 §5.1, over the message itself.
    Ed25519,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hash {
    /// Both digests one after the other, without a DigestInfo (RFC 4346 §7.4.3).
    Md5Sha1,
    Sha1,
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

impl Hash {
    /// Bytes of a digest.
    #[must_use]
    pub fn digest_len(self) -> usize {
        match self {
            Hash::Md5Sha1 => 36,
            Hash::Sha1 => 20,
            Hash::Sha224 => 28,
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    /// The DER that stands before the digest in an RSASSA-PKCS1-v1_5 signature (RFC 8017 §9.2, note 1); nothing for
    /// `Md5Sha1`.
    #[must_use]
    pub fn digest_info(self) -> &'static [u8] {
        match self {
            Hash::Md5Sha1 => &[],
            Hash::Sha1 => b"\x30\x21\x30\x09\x06\x05\x2b\x0e\x03\x02\x1a\x05\x00\x04\x14",
            Hash::Sha224 => b"\x30\x2d\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x04\x05\x00\x04\x1c",
            Hash::Sha256 => b"\x30\x31\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x01\x05\x00\x04\x20",
            Hash::Sha384 => b"\x30\x41\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x02\x05\x00\x04\x30",
            Hash::Sha512 => b"\x30\x51\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x03\x05\x00\x04\x40",
        }
    }

    /// The digest of a message; none of `Md5Sha1`, which nothing here computes.
    #[must_use]
    pub fn digest(self, message: &[u8]) -> Option<aws_lc_rs::digest::Digest> {
        use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA224, SHA256, SHA384, SHA512, digest};
        let algorithm = match self {
            Hash::Md5Sha1 => return None,
            Hash::Sha1 => &SHA1_FOR_LEGACY_USE_ONLY,
            Hash::Sha224 => &SHA224,
            Hash::Sha256 => &SHA256,
            Hash::Sha384 => &SHA384,
            Hash::Sha512 => &SHA512,
        };
        Some(digest(algorithm, message))
    }
}

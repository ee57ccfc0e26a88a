//! Kinds of keys, and what each can do.

use std::fmt;

use crate::scheme::Scheme;

/// Kind of a key, with its size where that varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyKind {
    P256,
    P384,
    P521,
    Ed25519,
    /// `bytes` of the modulus; its length in bits is eight times that.
    Rsa {
        bytes: u16,
    },
}

/// The reason why there is no key, or no job for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// Not PKCS#8, PKCS#1 or SEC 1 in DER, or the numbers in it do not belong together.
    Malformed,
    /// A type, curve or size that is not supported.
    Unsupported,
    /// The scheme is none for this type of key.
    WrongScheme,
    /// The digest, or block, has another length than the scheme's.
    WrongLength,
}

impl KeyKind {
    pub const RSA_BYTES_MIN: u16 = 256;
    pub const RSA_BYTES_MAX: u16 = 1024;

    /// Checks that a key of this kind can do what the scheme asks of an input of this length.
    pub(crate) fn check(self, scheme: Scheme, input_len: usize) -> Result<(), KeyError> {
        match (self, scheme) {
            (KeyKind::Rsa { .. }, Scheme::RsaPkcs1(hash) | Scheme::RsaPss(hash)) if input_len != hash.digest_len() => {
                Err(KeyError::WrongLength)
            }
            (KeyKind::Rsa { bytes }, Scheme::RsaRaw) if input_len > usize::from(bytes) => Err(KeyError::WrongLength),
            (KeyKind::Rsa { .. }, Scheme::RsaPkcs1(_) | Scheme::RsaPss(_) | Scheme::RsaRaw)
            | (KeyKind::P256 | KeyKind::P384 | KeyKind::P521, Scheme::Ecdsa(_))
            | (KeyKind::Ed25519, Scheme::Ed25519) => Ok(()),
            _ => Err(KeyError::WrongScheme),
        }
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeyError::Malformed => "the private key is damaged, or none",
            KeyError::Unsupported => "the private key's type or size is not supported",
            KeyError::WrongScheme => "this type of key does not do that",
            KeyError::WrongLength => "the input has the wrong length",
        })
    }
}

impl std::error::Error for KeyError {}

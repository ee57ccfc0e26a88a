//! Signatures of tokens (JWS, RFC 7515): public keys as a set of keys has them, each for the algorithms of its kind.

use aws_lc_rs::rsa::PublicKeyComponents;
use aws_lc_rs::signature::{self, ParsedPublicKey, RsaParameters, VerificationAlgorithm};

/// Algorithm of a token's signature (RFC 7518 §3.1, RFC 8037 §3.1). Those with secrets that both sides have, and
/// `none`, are not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenAlgorithm {
    Es256,
    Es384,
    Es512,
    EdDsa,
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
}

impl TokenAlgorithm {
    pub const ALL: [(&'static str, TokenAlgorithm); 10] = [
        ("ES256", TokenAlgorithm::Es256),
        ("ES384", TokenAlgorithm::Es384),
        ("ES512", TokenAlgorithm::Es512),
        ("EdDSA", TokenAlgorithm::EdDsa),
        ("RS256", TokenAlgorithm::Rs256),
        ("RS384", TokenAlgorithm::Rs384),
        ("RS512", TokenAlgorithm::Rs512),
        ("PS256", TokenAlgorithm::Ps256),
        ("PS384", TokenAlgorithm::Ps384),
        ("PS512", TokenAlgorithm::Ps512),
    ];

    /// The algorithm of this name, case and all.
    pub fn of(name: &str) -> Option<TokenAlgorithm> {
        TokenAlgorithm::ALL.iter().find(|(known, _)| *known == name).map(|(_, algorithm)| *algorithm)
    }

    fn rsa(self) -> Option<&'static RsaParameters> {
        Some(match self {
            TokenAlgorithm::Rs256 => &signature::RSA_PKCS1_2048_8192_SHA256,
            TokenAlgorithm::Rs384 => &signature::RSA_PKCS1_2048_8192_SHA384,
            TokenAlgorithm::Rs512 => &signature::RSA_PKCS1_2048_8192_SHA512,
            TokenAlgorithm::Ps256 => &signature::RSA_PSS_2048_8192_SHA256,
            TokenAlgorithm::Ps384 => &signature::RSA_PSS_2048_8192_SHA384,
            TokenAlgorithm::Ps512 => &signature::RSA_PSS_2048_8192_SHA512,
            _ => return None,
        })
    }
}

/// Public half of a key, in the parts that a set of keys gives.
pub enum TokenKeyParts<'a> {
    /// A point of a curve by its name, `P-256`, `P-384` or `P-521` (RFC 7518 §6.2.1).
    Point { curve: &'a str, x: &'a [u8], y: &'a [u8] },
    /// A key of Ed25519 (RFC 8037 §2).
    Ed25519 { x: &'a [u8] },
    /// Modulus and exponent, without leading zeros (RFC 7518 §6.3.1).
    Rsa { n: &'a [u8], e: &'a [u8] },
}

/// A public key that tokens are verified by, read once for each algorithm that it is for.
pub struct TokenKey {
    algorithms: Vec<(TokenAlgorithm, ParsedPublicKey)>,
}

impl TokenKey {
    /// The key, for all algorithms of its kind. `None` for what is no such key, a curve that is not known, or RSA of
    /// fewer than 2048 bits or more than 8192.
    pub fn new(parts: &TokenKeyParts<'_>) -> Option<TokenKey> {
        let algorithms = match *parts {
            TokenKeyParts::Point { curve, x, y } => {
                let (algorithm, by, bytes): (_, &'static dyn VerificationAlgorithm, usize) = match curve {
                    "P-256" => (TokenAlgorithm::Es256, &signature::ECDSA_P256_SHA256_FIXED, 32),
                    "P-384" => (TokenAlgorithm::Es384, &signature::ECDSA_P384_SHA384_FIXED, 48),
                    "P-521" => (TokenAlgorithm::Es512, &signature::ECDSA_P521_SHA512_FIXED, 66),
                    _ => return None,
                };
                if x.len() != bytes || y.len() != bytes {
                    return None;
                }
                // A point that is written out (SEC 1 §2.3.3).
                vec![(algorithm, ParsedPublicKey::new(by, [&[4], x, y].concat()).ok()?)]
            }
            TokenKeyParts::Ed25519 { x } if x.len() == 32 => {
                vec![(TokenAlgorithm::EdDsa, ParsedPublicKey::new(&signature::ED25519, x).ok()?)]
            }
            TokenKeyParts::Ed25519 { .. } => return None,
            TokenKeyParts::Rsa { n, e } => rsa(n, e)?,
        };
        Some(TokenKey { algorithms })
    }

    /// Whether the key is of the algorithm's kind.
    pub fn is_for(&self, algorithm: TokenAlgorithm) -> bool {
        self.algorithms.iter().any(|(known, _)| *known == algorithm)
    }

    /// Forgets all algorithms but one, which a set of keys has the key for (RFC 7517 §4.4).
    pub fn only(mut self, algorithm: TokenAlgorithm) -> TokenKey {
        self.algorithms.retain(|(known, _)| *known == algorithm);
        self
    }

    /// Whether the signature is this key's, by this algorithm. Never for an algorithm of another kind of key.
    pub fn verifies(&self, algorithm: TokenAlgorithm, input: &[u8], signature: &[u8]) -> bool {
        let key = self.algorithms.iter().find(|(known, _)| *known == algorithm);
        key.is_some_and(|(_, key)| key.verify_sig(input, signature).is_ok())
    }
}

fn rsa(n: &[u8], e: &[u8]) -> Option<Vec<(TokenAlgorithm, ParsedPublicKey)>> {
    // Bounds of the algorithms, which only say so once a signature is verified.
    if !(256..=1024).contains(&n.len()) {
        return None;
    }
    let components = PublicKeyComponents { n, e };
    let mut algorithms = Vec::new();
    for (_, algorithm) in TokenAlgorithm::ALL {
        if let Some(parameters) = algorithm.rsa() {
            algorithms.push((algorithm, components.to_parsed_public_key(parameters).ok()?));
        }
    }
    Some(algorithms)
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};

    use super::*;

    #[test]
    fn a_key_verifies_by_algorithms_of_its_kind_alone() {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
        let key = TokenKey::new(&TokenKeyParts::Point { curve: "P-256", x, y }).unwrap();
        let signature = pair.sign(&SystemRandom::new(), b"said").unwrap();
        assert!(key.verifies(TokenAlgorithm::Es256, b"said", signature.as_ref()));
        assert!(!key.verifies(TokenAlgorithm::Es256, b"other", signature.as_ref()));
        assert!(!key.verifies(TokenAlgorithm::Es256, b"said", &[0; 64]));
        for (_, algorithm) in TokenAlgorithm::ALL.iter().filter(|(name, _)| *name != "ES256") {
            assert!(!key.is_for(*algorithm) && !key.verifies(*algorithm, b"said", signature.as_ref()));
        }
    }

    #[test]
    fn what_is_no_key_is_none() {
        let point = |curve, x, y| TokenKey::new(&TokenKeyParts::Point { curve, x, y }).is_none();
        // Off the curve, of other lengths, and of a curve that is not taken.
        assert!(point("P-256", &[1; 32], &[1; 32]) && point("P-256", &[1; 31], &[1; 33]));
        assert!(point("secp256k1", &[1; 32], &[1; 32]));
        assert!(TokenKey::new(&TokenKeyParts::Ed25519 { x: &[1; 31] }).is_none());
        // RSA of 1024 bits.
        assert!(TokenKey::new(&TokenKeyParts::Rsa { n: &[0xff; 128], e: &[1, 0, 1] }).is_none());
    }
}

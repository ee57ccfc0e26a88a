//! Operations that the key server is asked for, with inputs that nobody can have prepared, and whether it did them.

use super::key::{KeyType, PublicKey};
use super::wire::Answer;
use crate::failure::{Failure, Outcome, While};
use aws_lc_rs::digest::{self, Digest};
use aws_lc_rs::rsa::{Pkcs1PublicEncryptingKey, PublicEncryptingKey};
use aws_lc_rs::signature::{self, ParsedPublicKey, VerificationAlgorithm};
use clap::ValueEnum;

/// Length of the input that a TLS 1.3 server signs with Ed25519: 64 spaces, a label with its zero, a hash (RFC 8446
/// §4.4.3).
const MESSAGE_BYTES: usize = 130;
const PING_BYTES: usize = 32;
/// A TLS premaster secret (RFC 5246 §7.4.7.1), which is what raw decryption is for.
const SECRET_BYTES: usize = 48;
/// Ciphertexts are made before the load starts and used in turn.
const CIPHERTEXTS: usize = 256;

/// An opcode whose result can be verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Operation {
    /// No key: the echo of 32 bytes
    Ping,
    EcdsaSha256,
    EcdsaSha384,
    EcdsaSha512,
    RsaPkcs1Sha256,
    RsaPkcs1Sha384,
    RsaPkcs1Sha512,
    RsaPssSha256,
    RsaPssSha384,
    RsaPssSha512,
    /// Raw: the padded block comes back
    RsaDecrypt,
    Ed25519,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

/// Makes inputs and judges results. Input number n is always the same within a run and differs between runs.
pub struct Examiner {
    operation: Operation,
    seed: u64,
    key: Option<ParsedPublicKey>,
    ciphertexts: Vec<Vec<u8>>,
}

/// The judgement of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Assessment {
    Right,
    Wrong,
    /// A signature: costs as much to verify as it cost to make, so that is left for later.
    ToBeVerified,
}

impl Operation {
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    pub fn opcode(self) -> u8 {
        match self {
            Self::Ping => 0xF1,
            Self::RsaDecrypt => 0x01,
            Self::RsaPkcs1Sha256 => 0x05,
            Self::RsaPkcs1Sha384 => 0x06,
            Self::RsaPkcs1Sha512 => 0x07,
            Self::EcdsaSha256 => 0x15,
            Self::EcdsaSha384 => 0x16,
            Self::EcdsaSha512 => 0x17,
            Self::Ed25519 => 0x18,
            Self::RsaPssSha256 => 0x35,
            Self::RsaPssSha384 => 0x36,
            Self::RsaPssSha512 => 0x37,
        }
    }

    fn hash(self) -> Option<Hash> {
        match self {
            Self::EcdsaSha256 | Self::RsaPkcs1Sha256 | Self::RsaPssSha256 => Some(Hash::Sha256),
            Self::EcdsaSha384 | Self::RsaPkcs1Sha384 | Self::RsaPssSha384 => Some(Hash::Sha384),
            Self::EcdsaSha512 | Self::RsaPkcs1Sha512 | Self::RsaPssSha512 => Some(Hash::Sha512),
            Self::Ping | Self::RsaDecrypt | Self::Ed25519 => None,
        }
    }

    /// How this operation's results are verified with a key of this type; `None` if the two do not go together.
    fn verification(self, key_type: KeyType) -> Option<&'static dyn VerificationAlgorithm> {
        use KeyType as K;
        use Operation as O;
        Some(match (self, key_type) {
            (O::EcdsaSha256, K::P256) => &signature::ECDSA_P256_SHA256_ASN1,
            (O::EcdsaSha384, K::P256) => &signature::ECDSA_P256_SHA384_ASN1,
            (O::EcdsaSha512, K::P256) => &signature::ECDSA_P256_SHA512_ASN1,
            (O::EcdsaSha256, K::P384) => &signature::ECDSA_P384_SHA256_ASN1,
            (O::EcdsaSha384, K::P384) => &signature::ECDSA_P384_SHA384_ASN1,
            (O::EcdsaSha512, K::P384) => &signature::ECDSA_P384_SHA512_ASN1,
            (O::EcdsaSha256, K::P521) => &signature::ECDSA_P521_SHA256_ASN1,
            (O::EcdsaSha384, K::P521) => &signature::ECDSA_P521_SHA384_ASN1,
            (O::EcdsaSha512, K::P521) => &signature::ECDSA_P521_SHA512_ASN1,
            (O::RsaPkcs1Sha256 | O::RsaDecrypt, K::Rsa) => &signature::RSA_PKCS1_2048_8192_SHA256,
            (O::RsaPkcs1Sha384, K::Rsa) => &signature::RSA_PKCS1_2048_8192_SHA384,
            (O::RsaPkcs1Sha512, K::Rsa) => &signature::RSA_PKCS1_2048_8192_SHA512,
            (O::RsaPssSha256, K::Rsa) => &signature::RSA_PSS_2048_8192_SHA256,
            (O::RsaPssSha384, K::Rsa) => &signature::RSA_PSS_2048_8192_SHA384,
            (O::RsaPssSha512, K::Rsa) => &signature::RSA_PSS_2048_8192_SHA512,
            (O::Ed25519, K::Ed25519) => &signature::ED25519,
            _ => return None,
        })
    }
}

impl Hash {
    fn bytes(self) -> usize {
        self.algorithm().output_len()
    }

    fn algorithm(self) -> &'static digest::Algorithm {
        match self {
            Self::Sha256 => &digest::SHA256,
            Self::Sha384 => &digest::SHA384,
            Self::Sha512 => &digest::SHA512,
        }
    }
}

impl Examiner {
    /// Without a key, signatures cannot be verified, and decryption cannot be asked for.
    pub fn new(operation: Operation, key: Option<&PublicKey>, seed: u64) -> Outcome<Self> {
        let mut examiner = Self { operation, seed, key: None, ciphertexts: Vec::new() };
        let Some(key) = key.filter(|_| operation != Operation::Ping) else {
            return match operation {
                Operation::RsaDecrypt => Err(Failure::new("rsa-decrypt needs --certificate to make ciphertexts")),
                _ => Ok(examiner),
            };
        };
        let name = operation.name();
        let algorithm = operation
            .verification(key.key_type)
            .ok_or_else(|| Failure::new(format!("{name} does not go with a {:?} key", key.key_type)))?;
        let parsed = ParsedPublicKey::new(algorithm, &key.bytes);
        examiner.key = Some(parsed.when(format_args!("--certificate: a key that {name} cannot use"))?);
        if operation == Operation::RsaDecrypt {
            examiner.ciphertexts =
                (0..CIPHERTEXTS).map(|n| encrypt(key, &examiner.secret(n))).collect::<Outcome<_>>()?;
        }
        Ok(examiner)
    }

    /// Writes input number `serial`.
    pub fn input(&self, serial: u64, out: &mut Vec<u8>) {
        out.clear();
        if self.operation == Operation::RsaDecrypt {
            return out.extend_from_slice(&self.ciphertexts[serial as usize % CIPHERTEXTS]);
        }
        let bytes = match (self.operation, self.operation.hash()) {
            (_, Some(hash)) => hash.bytes(),
            (Operation::Ed25519, _) => MESSAGE_BYTES,
            _ => PING_BYTES,
        };
        out.resize(bytes, 0);
        fastrand::Rng::with_seed(self.seed.wrapping_add(serial.wrapping_mul(0x9E37_79B9_7F4A_7C15))).fill(out);
    }

    /// Judges an answer as far as that is possible at once.
    pub fn assess(&self, serial: u64, answer: &Answer<'_>, scratch: &mut Vec<u8>) -> Assessment {
        let right = match (self.operation, answer) {
            (Operation::Ping, Answer::Pong(echo)) => {
                self.input(serial, scratch);
                scratch == echo
            }
            (Operation::RsaDecrypt, Answer::Success(block)) => self.is_padded_secret(serial, block),
            (Operation::Ping | Operation::RsaDecrypt, _) | (_, Answer::Pong(_) | Answer::Error(_)) => false,
            (_, Answer::Success(_)) => return Assessment::ToBeVerified,
        };
        if right { Assessment::Right } else { Assessment::Wrong }
    }

    /// Whether this is the signature over input number `serial`. Without a key nothing is.
    pub fn verifies(&self, serial: u64, signature: &[u8], scratch: &mut Vec<u8>) -> bool {
        let Some(key) = &self.key else { return false };
        self.input(serial, scratch);
        match self.operation.hash() {
            Some(hash) => Digest::import_less_safe(scratch, hash.algorithm())
                .and_then(|digest| key.verify_digest_sig(&digest, signature))
                .is_ok(),
            None => key.verify_sig(scratch, signature).is_ok(),
        }
    }

    fn secret(&self, number: usize) -> [u8; SECRET_BYTES] {
        let mut secret = [0; SECRET_BYTES];
        fastrand::Rng::with_seed(self.seed.wrapping_add(number as u64)).fill(&mut secret);
        secret
    }

    /// RFC 8017 §7.2.1: 00 02, at least eight bytes that are not zero, 00, the message; as long as the modulus.
    fn is_padded_secret(&self, serial: u64, block: &[u8]) -> bool {
        let number = serial as usize % CIPHERTEXTS;
        let Some((head, secret)) = block.split_last_chunk::<SECRET_BYTES>() else {
            return false;
        };
        let [0, 2, filler @ .., 0] = head else { return false };
        *secret == self.secret(number)
            && filler.len() >= 8
            && !filler.contains(&0)
            && block.len() == self.ciphertexts[number].len()
    }
}

fn encrypt(key: &PublicKey, secret: &[u8]) -> Outcome<Vec<u8>> {
    let refused = || Failure::new("--certificate: an RSA key that cannot encrypt");
    let key = PublicEncryptingKey::from_der(&key.info).map_err(|_| refused())?;
    let key = Pkcs1PublicEncryptingKey::new(key).map_err(|_| refused())?;
    let mut ciphertext = vec![0; key.ciphertext_size()];
    let bytes = key.encrypt(secret, &mut ciphertext).map_err(|_| refused())?.len();
    ciphertext.truncate(bytes);
    Ok(ciphertext)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_and_a_key_of_another_kind_are_refused_before_the_load() {
        let key = PublicKey { key_type: KeyType::P256, bytes: vec![4; 65], info: Vec::new() };
        let failure = Examiner::new(Operation::RsaPssSha256, Some(&key), 1).err().unwrap().to_string();
        assert_eq!(failure, "rsa-pss-sha256 does not go with a P256 key");
        let failure = Examiner::new(Operation::EcdsaSha256, Some(&key), 1).err().unwrap().to_string();
        assert!(failure.contains("cannot use"), "a point off the curve: {failure}");
    }

    #[test]
    fn inputs_repeat_within_a_run_and_differ_from_each_other() {
        let examiner = Examiner::new(Operation::EcdsaSha384, None, 99).unwrap();
        let input = |serial| {
            let mut out = Vec::new();
            examiner.input(serial, &mut out);
            out
        };
        assert_eq!(input(5), input(5));
        let different: std::collections::BTreeSet<_> = (0..1000).map(input).collect();
        assert_eq!((different.len(), input(0).len()), (1000, 48));
    }

    #[test]
    fn a_pong_must_be_the_ping() {
        let examiner = Examiner::new(Operation::Ping, None, 3).unwrap();
        let mut echo = Vec::new();
        examiner.input(1, &mut echo);
        assert_eq!(examiner.assess(1, &Answer::Pong(&echo), &mut Vec::new()), Assessment::Right);
        assert_eq!(examiner.assess(2, &Answer::Pong(&echo), &mut Vec::new()), Assessment::Wrong);
        assert_eq!(examiner.assess(1, &Answer::Success(&echo), &mut Vec::new()), Assessment::Wrong);
    }
}

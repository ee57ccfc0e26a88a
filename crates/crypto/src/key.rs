//! Keys: those that are here, and those that are elsewhere.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use propylon_lanes::{p256, rsa};
use zeroize::Zeroizing;

use crate::awslc;
use crate::batch_rng;
use crate::der::Der;
use crate::kind::{KeyError, KeyKind};
use crate::scheme::Scheme;
use crate::verify;

/// SHA-1 over the contents of the subjectPublicKey BIT STRING (RFC 5280 §4.2.1.2, method 1): how key servers name keys.
pub type Ski = [u8; 20];

/// A key to sign with, wherever it is.
#[derive(Clone, Debug)]
pub enum Key {
    Local(PrivateKey),
    Remote(RemoteKey),
}

/// A private key in this process. Clones are the same key; it is wiped with the last of them.
#[derive(Clone)]
pub struct PrivateKey(Arc<Inner>);

struct Inner {
    key: awslc::Key,
    kind: KeyKind,
    /// SubjectPublicKeyInfo, DER.
    public: Box<[u8]>,
    ski: Ski,
    /// Different from every other key's of this process.
    id: u64,
    /// Made when it is first needed: 8 KiB and 0.3 to 1.3 ms for RSA.
    lanes: OnceLock<Option<LanesKey>>,
}

/// A key as the kernels take it.
pub(crate) enum LanesKey {
    Rsa(Box<rsa::Key>),
    P256(p256::SecretScalar),
}

static KEYS: AtomicU64 = AtomicU64::new(0);

/// A private key that somebody else holds. Clones are the same key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteKey {
    /// Number of the signer, or [`RemoteKey::KEY_PROCESS`].
    pub signer: u32,
    pub ski: Ski,
    pub kind: KeyKind,
    /// SubjectPublicKeyInfo, DER.
    pub public: Arc<[u8]>,
}

impl Key {
    #[must_use]
    pub fn kind(&self) -> KeyKind {
        match self {
            Key::Local(key) => key.kind(),
            Key::Remote(key) => key.kind,
        }
    }

    #[must_use]
    pub fn ski(&self) -> Ski {
        match self {
            Key::Local(key) => key.ski(),
            Key::Remote(key) => key.ski,
        }
    }
}

impl RemoteKey {
    /// Signer position that stands for the engine's key process ([`crate::key_process`]).
    pub const KEY_PROCESS: u32 = u32::MAX;

    /// The key of a certificate with this SubjectPublicKeyInfo (RFC 5280 §4.1), in DER.
    pub fn new(signer: u32, public: &[u8]) -> Result<RemoteKey, KeyError> {
        let kind = public_kind(public).ok_or(KeyError::Malformed)??;
        let ski = ski_of(public).ok_or(KeyError::Malformed)?;
        Ok(RemoteKey { signer, ski, kind, public: public.into() })
    }

    /// Whether this may be a signature by this key as far as its form goes: costs nothing.
    #[must_use]
    pub fn has_form(&self, signature: &[u8]) -> bool {
        /// Two numbers of 66 bytes, each with a sign octet and two octets of header, and three of the sequence.
        const ECDSA_BYTES_MAX: usize = 2 * (66 + 3) + 3;
        match self.kind {
            KeyKind::Rsa { bytes } => signature.len() == usize::from(bytes),
            KeyKind::Ed25519 => signature.len() == 64,
            KeyKind::P256 | KeyKind::P384 | KeyKind::P521 => {
                (8..=ECDSA_BYTES_MAX).contains(&signature.len()) && signature[0] == 0x30
            }
        }
    }

    /// Whether this is a signature of `input` by this key. False for `RsaRaw`, which makes none, and for schemes
    /// that are not computed here, since nobody can say.
    #[must_use]
    pub fn verifies(&self, scheme: Scheme, input: &[u8], signature: &[u8]) -> bool {
        verify::verifies((self.kind, &self.public), scheme, input, signature)
    }
}

impl PrivateKey {
    /// Reads PKCS#8, PKCS#1 or SEC 1 in DER. The numbers of an RSA key are checked against each other.
    pub fn from_der(der: &[u8]) -> Result<PrivateKey, KeyError> {
        let key = awslc::Key::from_der(der).ok_or(KeyError::Malformed)?;
        let kind = key.kind().ok_or(KeyError::Unsupported)?;
        if let KeyKind::Rsa { bytes } = kind {
            if !(KeyKind::RSA_BYTES_MIN..=KeyKind::RSA_BYTES_MAX).contains(&bytes) {
                return Err(KeyError::Unsupported);
            }
            if !key.rsa_is_consistent() {
                return Err(KeyError::Malformed);
            }
        }
        let public = key.public_info().ok_or(KeyError::Malformed)?;
        let ski = ski_of(&public).ok_or(KeyError::Malformed)?;
        batch_rng::add_key(der);
        let id = KEYS.fetch_add(1, Ordering::Relaxed);
        Ok(PrivateKey(Arc::new(Inner { key, kind, public, ski, id, lanes: OnceLock::new() })))
    }

    /// A new key of this kind, ECDSA on P-256 or RSA, and its PKCS#8.
    #[must_use]
    pub fn generate(kind: KeyKind) -> Option<(PrivateKey, Zeroizing<Vec<u8>>)> {
        let pkcs8 = match kind {
            KeyKind::P256 => {
                let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).ok()?;
                Zeroizing::new(key.to_pkcs8v1().ok()?.as_ref().to_vec())
            }
            KeyKind::Rsa { bytes: 256 } => {
                let der = AsDer::<Pkcs8V1Der>::as_der(&RsaKeyPair::generate(KeySize::Rsa2048).ok()?).ok()?;
                Zeroizing::new(der.as_ref().to_vec())
            }
            _ => return None,
        };
        Some((PrivateKey::from_der(&pkcs8).ok()?, pkcs8))
    }

    #[must_use]
    pub fn kind(&self) -> KeyKind {
        self.0.kind
    }

    #[must_use]
    pub fn ski(&self) -> Ski {
        self.0.ski
    }

    /// SubjectPublicKeyInfo, DER.
    #[must_use]
    pub fn public_info(&self) -> &[u8] {
        &self.0.public
    }

    /// The RSA private operation. Absent if AWS-LC refuses it; likewise below.
    pub(crate) fn rsa_raw(&self, block: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        // AWS-LC refuses zero, whose power is zero.
        if block.iter().all(|byte| *byte == 0) {
            return Some(Zeroizing::new(block.to_vec()));
        }
        self.0.key.rsa_raw(block)
    }

    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    #[cfg(test)]
    pub(crate) fn modulus_bytes(&self) -> usize {
        match self.0.kind {
            KeyKind::Rsa { bytes } => bytes.into(),
            _ => 0,
        }
    }

    /// The key in the kernels' form; absent if it is one that they do not take.
    pub(crate) fn lanes_key(&self) -> Option<&LanesKey> {
        let make = || match self.0.kind {
            KeyKind::Rsa { .. } => {
                let numbers = self.0.key.rsa_numbers()?;
                let key = rsa::Key::new(&rsa::Parts::from_pkcs1_der(&numbers)?).ok()?;
                Some(LanesKey::Rsa(Box::new(key)))
            }
            KeyKind::P256 => {
                let mut number = Zeroizing::new([0; 32]);
                let key = self.0.key.write_p256_scalar(&mut number).then(|| p256::SecretScalar::new(&number))?;
                Some(LanesKey::P256(key?))
            }
            KeyKind::P384 | KeyKind::P521 | KeyKind::Ed25519 => None,
        };
        self.0.lanes.get_or_init(make).as_ref()
    }

    /// Whether `signature`, in DER, is one by this key, which is one on a curve of NIST's.
    pub(crate) fn verifies(&self, digest: &[u8], signature: &[u8]) -> bool {
        self.0.key.ecdsa_verifies(digest, signature)
    }

    pub(crate) fn ecdsa(&self, digest: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        self.0.key.ecdsa(digest)
    }

    pub(crate) fn ed25519(&self, message: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        self.0.key.ed25519(message)
    }
}

/// Skips to the contents of the BIT STRING in `SEQUENCE { AlgorithmIdentifier, BIT STRING }`.
fn ski_of(info: &[u8]) -> Option<Ski> {
    let mut body = Der(Der(info).any()?.1);
    body.any()?;
    let (_, bits) = body.any()?;
    digest(&SHA1_FOR_LEGACY_USE_ONLY, bits.get(1..)?).as_ref().try_into().ok()
}

/// The kind of a SubjectPublicKeyInfo. Absent if it cannot be read, an error if the kind is not supported (RFC 3279
/// §2.3, RFC 8410 §3).
fn public_kind(info: &[u8]) -> Option<Result<KeyKind, KeyError>> {
    const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
    const EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
    const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
    const P384: &[u8] = &[0x2b, 0x81, 4, 0, 0x22];
    const P521: &[u8] = &[0x2b, 0x81, 4, 0, 0x23];
    const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
    let mut body = Der(Der(info).any()?.1);
    let mut algorithm = Der(body.any()?.1);
    let (_, name) = algorithm.any()?;
    let kind = match name {
        RSA => {
            let (_, bits) = body.any()?;
            let (_, numbers) = Der(bits.get(1..)?).any()?;
            let (_, modulus) = Der(numbers).any()?;
            let zeros = modulus.iter().take_while(|byte| **byte == 0).count();
            let bytes = u16::try_from(modulus.len() - zeros).ok()?;
            let supported = (KeyKind::RSA_BYTES_MIN..=KeyKind::RSA_BYTES_MAX).contains(&bytes);
            supported.then_some(KeyKind::Rsa { bytes })
        }
        EC => match algorithm.any()?.1 {
            P256 => Some(KeyKind::P256),
            P384 => Some(KeyKind::P384),
            P521 => Some(KeyKind::P521),
            _ => None,
        },
        ED25519 => Some(KeyKind::Ed25519),
        _ => None,
    };
    Some(kind.ok_or(KeyError::Unsupported))
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivateKey").field("kind", &self.0.kind).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::signature::{self, UnparsedPublicKey, VerificationAlgorithm};

    use super::*;
    use crate::encoding;
    use crate::job::JobError;
    use crate::scheme::Hash;

    const MESSAGE: &[u8] = b"what is signed";

    fn signed(key: &PrivateKey, scheme: Scheme, input: &[u8]) -> Vec<u8> {
        key.job(scheme, input).expect("a job").run().expect("a signature").to_vec()
    }

    fn verify(algorithm: &'static dyn VerificationAlgorithm, key: &PrivateKey, signature: &[u8]) {
        let parsed = signature::ParsedPublicKey::new(algorithm, key.public_info()).expect("a public key");
        parsed.verify_sig(MESSAGE, signature).expect("the signature verifies");
    }

    fn generated(algorithm: &'static rcgen::SignatureAlgorithm) -> PrivateKey {
        let pair = rcgen::KeyPair::generate_for(algorithm).expect("a key");
        PrivateKey::from_der(pair.serialized_der()).expect("a key that can be read")
    }

    fn rsa() -> PrivateKey {
        use aws_lc_rs::encoding::AsDer;
        let pair = aws_lc_rs::rsa::KeyPair::generate(aws_lc_rs::rsa::KeySize::Rsa2048).expect("a key");
        let der: aws_lc_rs::encoding::Pkcs8V1Der = pair.as_der().expect("PKCS#8");
        PrivateKey::from_der(der.as_ref()).expect("a key that can be read")
    }

    fn digest(hash: Hash) -> aws_lc_rs::digest::Digest {
        hash.digest(MESSAGE).expect("a hash that is computed here")
    }

    #[test]
    fn signatures_of_every_kind_verify() {
        let key = rsa();
        assert_eq!(key.kind(), KeyKind::Rsa { bytes: 256 });
        let pkcs1: [(_, &'static dyn VerificationAlgorithm); 3] = [
            (Hash::Sha256, &signature::RSA_PKCS1_2048_8192_SHA256),
            (Hash::Sha384, &signature::RSA_PKCS1_2048_8192_SHA384),
            (Hash::Sha512, &signature::RSA_PKCS1_2048_8192_SHA512),
        ];
        for (hash, algorithm) in pkcs1 {
            verify(algorithm, &key, &signed(&key, Scheme::RsaPkcs1(hash), digest(hash).as_ref()));
        }
        let pss: [(_, &'static dyn VerificationAlgorithm); 3] = [
            (Hash::Sha256, &signature::RSA_PSS_2048_8192_SHA256),
            (Hash::Sha384, &signature::RSA_PSS_2048_8192_SHA384),
            (Hash::Sha512, &signature::RSA_PSS_2048_8192_SHA512),
        ];
        for (hash, algorithm) in pss {
            verify(algorithm, &key, &signed(&key, Scheme::RsaPss(hash), digest(hash).as_ref()));
        }
        let curves: [(_, _, &'static dyn VerificationAlgorithm); 3] = [
            (&rcgen::PKCS_ECDSA_P256_SHA256, Hash::Sha256, &signature::ECDSA_P256_SHA256_ASN1),
            (&rcgen::PKCS_ECDSA_P384_SHA384, Hash::Sha384, &signature::ECDSA_P384_SHA384_ASN1),
            (&rcgen::PKCS_ECDSA_P521_SHA512, Hash::Sha512, &signature::ECDSA_P521_SHA512_ASN1),
        ];
        for (algorithm, hash, verifier) in curves {
            let key = generated(algorithm);
            verify(verifier, &key, &signed(&key, Scheme::Ecdsa(hash), digest(hash).as_ref()));
        }
        let key = generated(&rcgen::PKCS_ED25519);
        verify(&signature::ED25519, &key, &signed(&key, Scheme::Ed25519, MESSAGE));
    }

    #[test]
    fn the_raw_operation_undoes_the_public_one() {
        let key = rsa();
        let signature = signed(&key, Scheme::RsaPkcs1(Hash::Sha256), digest(Hash::Sha256).as_ref());
        let public = UnparsedPublicKey::new(&signature::RSA_PKCS1_2048_8192_SHA256, key.public_info());
        public.verify(MESSAGE, &signature).expect("it verifies");
        let block = encoding::pkcs1(Hash::Sha256, digest(Hash::Sha256).as_ref(), 256).expect("it fits");
        assert_eq!(signed(&key, Scheme::RsaRaw, &block), signature);
        let zero = key.job(Scheme::RsaRaw, &[]).expect("a job").run().expect("zero is a number");
        assert_eq!(zero.as_slice(), [0; 256]);
        let too_large = key.job(Scheme::RsaRaw, &[0xff; 256]).expect("a job");
        assert_eq!(too_large.run().err(), Some(JobError::Refused));
    }

    #[test]
    fn a_digest_of_any_length_is_signed_by_ecdsa_and_of_its_own_length_only_by_rsa() {
        let key = generated(&rcgen::PKCS_ECDSA_P256_SHA256);
        for len in [0, 1, 20, 32, 64, 100] {
            assert!(!signed(&key, Scheme::Ecdsa(Hash::Sha256), &vec![7; len]).is_empty(), "{len} bytes");
        }
        assert_eq!(rsa().job(Scheme::RsaPkcs1(Hash::Sha256), &[7; 31]).err(), Some(KeyError::WrongLength));
    }

    #[test]
    fn a_key_does_only_what_its_type_does() {
        let key = generated(&rcgen::PKCS_ECDSA_P256_SHA256);
        for scheme in [Scheme::RsaRaw, Scheme::Ed25519, Scheme::RsaPss(Hash::Sha256)] {
            assert_eq!(key.job(scheme, &[7; 32]).err(), Some(KeyError::WrongScheme));
        }
    }

    #[test]
    fn a_remote_key_is_known_by_its_public_half_and_verifies_what_the_private_half_signs() {
        let remote = |key: &PrivateKey| RemoteKey::new(3, key.public_info()).expect("a public key");
        let curves = [
            (&rcgen::PKCS_ECDSA_P256_SHA256, Scheme::Ecdsa(Hash::Sha256)),
            (&rcgen::PKCS_ECDSA_P384_SHA384, Scheme::Ecdsa(Hash::Sha384)),
            (&rcgen::PKCS_ECDSA_P521_SHA512, Scheme::Ecdsa(Hash::Sha512)),
            (&rcgen::PKCS_ED25519, Scheme::Ed25519),
        ];
        let mut cases: Vec<(PrivateKey, Scheme)> =
            curves.into_iter().map(|(algorithm, scheme)| (generated(algorithm), scheme)).collect();
        let rsa = rsa();
        for hash in [Hash::Sha256, Hash::Sha384, Hash::Sha512] {
            cases.push((rsa.clone(), Scheme::RsaPkcs1(hash)));
            cases.push((rsa.clone(), Scheme::RsaPss(hash)));
        }
        for (key, scheme) in cases {
            let remote = remote(&key);
            assert_eq!((remote.ski, remote.kind), (key.ski(), key.kind()));
            let input = match scheme {
                Scheme::RsaPkcs1(hash) | Scheme::RsaPss(hash) | Scheme::Ecdsa(hash) => digest(hash).as_ref().to_vec(),
                _ => MESSAGE.to_vec(),
            };
            let mut signature = signed(&key, scheme, &input);
            assert!(remote.has_form(&signature) && remote.verifies(scheme, &input, &signature), "{scheme:?}");
            *signature.last_mut().expect("some bytes") ^= 1;
            assert!(!remote.verifies(scheme, &input, &signature), "{scheme:?}");
            signature.pop();
            assert!(!remote.verifies(scheme, &input, &signature), "{scheme:?}");
            assert!(!remote.has_form(&[0; 2000]) && !remote.has_form(&[]));
        }
        assert_eq!(RemoteKey::new(0, b"").err(), Some(KeyError::Malformed));
        assert_eq!(RemoteKey::new(0, &[0x30; 90]).err(), Some(KeyError::Malformed));
    }

    #[test]
    fn what_is_no_key_is_refused_and_what_follows_a_key_as_well() {
        assert_eq!(PrivateKey::from_der(b"").err(), Some(KeyError::Malformed));
        assert_eq!(PrivateKey::from_der(&[0x30; 70]).err(), Some(KeyError::Malformed));
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key");
        let mut der = pair.serialized_der().to_vec();
        der.push(0);
        assert_eq!(PrivateKey::from_der(&der).err(), Some(KeyError::Malformed));
    }
}

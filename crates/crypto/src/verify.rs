//! Verification of signatures that came from elsewhere.

use aws_lc_rs::digest::{self, Digest};
use aws_lc_rs::signature::{self, UnparsedPublicKey, VerificationAlgorithm};

use crate::kind::KeyKind;
use crate::scheme::{Hash, Scheme};

/// Verifies by a key of this kind with this public half: see [`RemoteKey::verifies`](crate::RemoteKey::verifies).
pub(crate) fn verifies((kind, public): (KeyKind, &[u8]), scheme: Scheme, input: &[u8], signature: &[u8]) -> bool {
    let Some(algorithm) = algorithm(kind, scheme) else { return false };
    let public = UnparsedPublicKey::new(algorithm, public);
    let hash = match scheme {
        Scheme::Ed25519 => return public.verify(input, signature).is_ok(),
        Scheme::RsaPkcs1(hash) | Scheme::RsaPss(hash) | Scheme::Ecdsa(hash) => hash,
        Scheme::RsaRaw => return false,
    };
    let digest = match hash {
        Hash::Sha256 => Digest::import_less_safe(input, &digest::SHA256),
        Hash::Sha384 => Digest::import_less_safe(input, &digest::SHA384),
        Hash::Sha512 => Digest::import_less_safe(input, &digest::SHA512),
        _ => return false,
    };
    digest.is_ok_and(|digest| public.verify_digest(&digest, signature).is_ok())
}

/// The algorithm for a curve and a hash, for the pairs that TLS has (RFC 8446 §4.2.3).
fn algorithm(kind: KeyKind, scheme: Scheme) -> Option<&'static dyn VerificationAlgorithm> {
    Some(match (kind, scheme) {
        (KeyKind::P256, Scheme::Ecdsa(Hash::Sha256)) => &signature::ECDSA_P256_SHA256_ASN1,
        (KeyKind::P384, Scheme::Ecdsa(Hash::Sha384)) => &signature::ECDSA_P384_SHA384_ASN1,
        (KeyKind::P521, Scheme::Ecdsa(Hash::Sha512)) => &signature::ECDSA_P521_SHA512_ASN1,
        (KeyKind::Ed25519, Scheme::Ed25519) => &signature::ED25519,
        (KeyKind::Rsa { .. }, Scheme::RsaPkcs1(Hash::Sha256)) => &signature::RSA_PKCS1_2048_8192_SHA256,
        (KeyKind::Rsa { .. }, Scheme::RsaPkcs1(Hash::Sha384)) => &signature::RSA_PKCS1_2048_8192_SHA384,
        (KeyKind::Rsa { .. }, Scheme::RsaPkcs1(Hash::Sha512)) => &signature::RSA_PKCS1_2048_8192_SHA512,
        (KeyKind::Rsa { .. }, Scheme::RsaPss(Hash::Sha256)) => &signature::RSA_PSS_2048_8192_SHA256,
        (KeyKind::Rsa { .. }, Scheme::RsaPss(Hash::Sha384)) => &signature::RSA_PSS_2048_8192_SHA384,
        (KeyKind::Rsa { .. }, Scheme::RsaPss(Hash::Sha512)) => &signature::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

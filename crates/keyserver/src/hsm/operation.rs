//! One operation: a scheme and its input become a request to the module, and the module's reply becomes a signature.

use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::eddsa::{EddsaParams, EddsaSignatureScheme};
use cryptoki::mechanism::rsa::{PkcsMgfType, PkcsPssParams};
use cryptoki::mechanism::{Mechanism, MechanismType};
use cryptoki::object::ObjectHandle;
use cryptoki::session::Session;
use propylon_crypto::{Hash, KeyKind, RemoteKey, Scheme};
use zeroize::Zeroizing;

use super::public::{integer, sequence};
use crate::task::Signature;

/// The reason why there is no signature.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// The request is not valid for this key, or not with this input: asking again does not help.
    Request,
    /// The key is not where it was.
    Key,
    /// The session, or the token, is not what it was: worth another try with a new one.
    Session(String),
    /// The module's reply is not a signature by this key.
    Wrong,
}

/// Performs the operation. The result is checked as far as that costs little next to asking a module: signatures
/// with RSA are verified, because a faulty one gives the key away (Boneh, DeMillo, Lipton 1997).
pub fn perform(
    session: &Session,
    handle: ObjectHandle,
    key: &RemoteKey,
    scheme: Scheme,
    input: &[u8],
) -> Result<Signature, Failure> {
    let asked = |result: cryptoki::error::Result<Vec<u8>>| result.map(Zeroizing::new).map_err(|error| judge(&error));
    let signature = match (key.kind, scheme) {
        (KeyKind::Rsa { .. }, Scheme::RsaPkcs1(hash)) => {
            asked(session.sign(&Mechanism::RsaPkcs, handle, &[hash.digest_info(), input].concat()))?
        }
        (KeyKind::Rsa { .. }, Scheme::RsaPss(hash)) => {
            let mechanism = Mechanism::RsaPkcsPss(pss(hash).ok_or(Failure::Request)?);
            asked(session.sign(&mechanism, handle, input))?
        }
        (KeyKind::Rsa { bytes }, Scheme::RsaRaw) => {
            let whole = left_padded(input, bytes.into()).ok_or(Failure::Request)?;
            // A module may leave leading zeros off.
            let result = asked(session.decrypt(&Mechanism::RsaX509, handle, &whole))?;
            return left_padded(&result, bytes.into()).ok_or(Failure::Wrong);
        }
        (kind, Scheme::Ecdsa(_)) => {
            let field = field_bytes(kind).ok_or(Failure::Request)?;
            let digest = &input[..input.len().min(field)];
            // No octets are the number zero; a module may refuse to sign nothing.
            let digest = if digest.is_empty() { &[0] } else { digest };
            let raw = asked(session.sign(&Mechanism::Ecdsa, handle, digest))?;
            ecdsa_der(&raw, field).ok_or(Failure::Wrong)?
        }
        (KeyKind::Ed25519, Scheme::Ed25519) => {
            let mechanism = Mechanism::Eddsa(EddsaParams::new(EddsaSignatureScheme::Ed25519));
            asked(session.sign(&mechanism, handle, input))?
        }
        _ => return Err(Failure::Request),
    };
    if is_good(key, scheme, input, &signature) { Ok(signature) } else { Err(Failure::Wrong) }
}

fn is_good(key: &RemoteKey, scheme: Scheme, input: &[u8], signature: &[u8]) -> bool {
    // Schemes with hashes that TLS does not use any more are not verified here.
    let is_verified = matches!(
        scheme,
        Scheme::RsaPkcs1(Hash::Sha256 | Hash::Sha384 | Hash::Sha512)
            | Scheme::RsaPss(Hash::Sha256 | Hash::Sha384 | Hash::Sha512)
    );
    key.has_form(signature) && (!is_verified || key.verifies(scheme, input, signature))
}

fn pss(hash: Hash) -> Option<PkcsPssParams> {
    let (hash_alg, mgf) = match hash {
        Hash::Sha256 => (MechanismType::SHA256, PkcsMgfType::MGF1_SHA256),
        Hash::Sha384 => (MechanismType::SHA384, PkcsMgfType::MGF1_SHA384),
        Hash::Sha512 => (MechanismType::SHA512, PkcsMgfType::MGF1_SHA512),
        _ => return None,
    };
    Some(PkcsPssParams { hash_alg, mgf, s_len: (hash.digest_len() as u64).into() })
}

/// Octets of a coordinate, and of the curve's order.
fn field_bytes(kind: KeyKind) -> Option<usize> {
    match kind {
        KeyKind::P256 => Some(32),
        KeyKind::P384 => Some(48),
        KeyKind::P521 => Some(66),
        KeyKind::Ed25519 | KeyKind::Rsa { .. } => None,
    }
}

/// `SEQUENCE { r, s }` of the two numbers as modules return them, one behind the other and equally long (PKCS#11 3.1
/// §6.3.1). None if they are not, or one of them is zero.
fn ecdsa_der(raw: &[u8], field: usize) -> Option<Signature> {
    if raw.is_empty() || !raw.len().is_multiple_of(2) || raw.len() > 2 * field {
        return None;
    }
    let (r, s) = raw.split_at(raw.len() / 2);
    let is_zero = |number: &[u8]| number.iter().all(|byte| *byte == 0);
    (!is_zero(r) && !is_zero(s)).then(|| sequence(&[integer(r), integer(s)]).into())
}

fn left_padded(number: &[u8], bytes: usize) -> Option<Signature> {
    let mut whole = Zeroizing::new(vec![0; bytes]);
    whole[bytes.checked_sub(number.len())?..].copy_from_slice(number);
    Some(whole)
}

fn judge(error: &Error) -> Failure {
    let Error::Pkcs11(code, _) = error else { return Failure::Session(error.to_string()) };
    match code {
        RvError::DataInvalid
        | RvError::DataLenRange
        | RvError::EncryptedDataInvalid
        | RvError::EncryptedDataLenRange
        | RvError::FunctionNotSupported
        | RvError::KeyFunctionNotPermitted
        | RvError::KeySizeRange
        | RvError::KeyTypeInconsistent
        | RvError::MechanismInvalid
        | RvError::MechanismParamInvalid => Failure::Request,
        RvError::KeyHandleInvalid | RvError::ObjectHandleInvalid => Failure::Key,
        _ => Failure::Session(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_numbers_become_a_sequence_and_what_is_no_pair_of_them_nothing() {
        let der = |raw: &[u8]| ecdsa_der(raw, 32).map(|der| der.to_vec());
        assert_eq!(der(&[0, 0x7f, 0, 0x80]), Some(vec![0x30, 7, 2, 1, 0x7f, 2, 2, 0, 0x80]));
        let whole = der(&[0xff; 64]).expect("a signature");
        assert_eq!((whole.len(), &whole[..5]), (72, &[0x30, 70, 2, 33, 0][..]));
        assert_eq!(der(&[]), None);
        assert_eq!(der(&[1, 2, 3]), None);
        assert_eq!(der(&[1; 66]), None);
        assert_eq!(der(&[0, 0, 0, 1]), None);
        assert_eq!(der(&[0, 1, 0, 0]), None);
    }

    #[test]
    fn a_number_is_padded_to_its_length_and_none_is_cut() {
        assert_eq!(left_padded(&[1, 2], 4).as_deref(), Some(&vec![0, 0, 1, 2]));
        assert_eq!(left_padded(&[], 2).as_deref(), Some(&vec![0, 0]));
        assert_eq!(left_padded(&[1, 2, 3], 2), None);
    }
}

//! The public half of a token's private key, as a SubjectPublicKeyInfo (RFC 5280 §4.1).

use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::Session;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Derives it from the private key itself, or from the public key or the certificate with the same ID. Absent if
/// nothing there tells.
pub fn public_info(session: &Session, key: ObjectHandle, kind: KeyType, id: &[u8]) -> Option<Vec<u8>> {
    if let Some(info) = of_object(session, key, kind) {
        return Some(info);
    }
    if id.is_empty() {
        return None;
    }
    let with_id = |class| {
        let found = session.find_objects(&[Attribute::Class(class), Attribute::Id(id.to_vec())]);
        found.unwrap_or_default().into_iter().next()
    };
    let of_public_key = with_id(ObjectClass::PUBLIC_KEY).and_then(|object| of_object(session, object, kind));
    of_public_key.or_else(|| {
        let certificate = with_id(ObjectClass::CERTIFICATE)?;
        let attributes = session.get_attributes(certificate, &[AttributeType::Value]).ok()?;
        let [Attribute::Value(der)] = &attributes[..] else { return None };
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        Some(certificate.public_key().raw.to_vec())
    })
}

fn of_object(session: &Session, object: ObjectHandle, kind: KeyType) -> Option<Vec<u8>> {
    let wanted = match kind {
        KeyType::RSA => [AttributeType::Modulus, AttributeType::PublicExponent],
        _ => [AttributeType::EcParams, AttributeType::EcPoint],
    };
    // Attributes are fetched one by one: a token may refuse the lot for one that it does not have.
    let value = |wanted| match session.get_attributes(object, &[wanted]).ok()?.pop()? {
        Attribute::Modulus(value)
        | Attribute::PublicExponent(value)
        | Attribute::EcParams(value)
        | Attribute::EcPoint(value) => Some(value).filter(|value| !value.is_empty()),
        _ => None,
    };
    let [first, second] = wanted.map(value);
    let (first, second) = (first?, second?);
    match kind {
        KeyType::RSA => Some(rsa(&first, &second)),
        KeyType::EC => Some(ec(&first, &second)),
        KeyType::EC_EDWARDS => Some(ed25519(&second)),
        _ => None,
    }
}

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;

/// RFC 3279 §2.3.1.
fn rsa(modulus: &[u8], exponent: &[u8]) -> Vec<u8> {
    const ALGORITHM: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00";
    let numbers = [integer(modulus), integer(exponent)].concat();
    info(ALGORITHM, &element(SEQUENCE, &numbers))
}

/// RFC 5480 §2; `parameters` are the curve's OID.
fn ec(parameters: &[u8], point: &[u8]) -> Vec<u8> {
    const ALGORITHM: &[u8] = b"\x06\x07\x2a\x86\x48\xce\x3d\x02\x01";
    info(&[ALGORITHM, parameters].concat(), unwrapped(point))
}

/// RFC 8410 §4.
fn ed25519(point: &[u8]) -> Vec<u8> {
    info(b"\x06\x03\x2b\x65\x70", unwrapped(point))
}

/// Octets of a point: of Ed25519, and uncompressed of P-256, P-384 and P-521.
const POINT_LENGTHS: [usize; 4] = [32, 65, 97, 133];

/// The point inside CKA_EC_POINT, which is an OCTET STRING (PKCS#11 3.1 §6.3.3); some tokens leave that wrapping
/// off. The length of all of it tells, and not how it begins: an uncompressed point has the first octet of an OCTET
/// STRING, and its next may well be a length.
fn unwrapped(point: &[u8]) -> &[u8] {
    match point {
        point if POINT_LENGTHS.contains(&point.len()) => point,
        [OCTET_STRING, len, rest @ ..] if usize::from(*len) == rest.len() => rest,
        [OCTET_STRING, 0x81, len, rest @ ..] if usize::from(*len) == rest.len() => rest,
        point => point,
    }
}

fn info(algorithm: &[u8], key: &[u8]) -> Vec<u8> {
    let bits = [&[0], key].concat();
    element(SEQUENCE, &[element(SEQUENCE, algorithm), element(BIT_STRING, &bits)].concat())
}

/// An unsigned number in DER: no leading zeros but the one that keeps it from being negative (X.690 §8.3).
pub(super) fn integer(number: &[u8]) -> Vec<u8> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    let digits = &number[zeros.min(number.len().saturating_sub(1))..];
    match digits.first() {
        Some(0..=0x7f) => element(INTEGER, digits),
        _ => element(INTEGER, &[&[0], digits].concat()),
    }
}

pub(super) fn element(tag: u8, body: &[u8]) -> Vec<u8> {
    let len = body.len();
    // Keys here are far shorter than 64 KiB.
    let head = match len {
        0..=0x7f => vec![tag, len as u8],
        0x80..=0xff => vec![tag, 0x81, len as u8],
        _ => vec![tag, 0x82, (len >> 8) as u8, len as u8],
    };
    [head.as_slice(), body].concat()
}

pub(super) fn sequence(parts: &[Vec<u8>]) -> Vec<u8> {
    element(SEQUENCE, &parts.concat())
}

#[cfg(test)]
mod tests {
    use propylon_crypto::{PrivateKey, RemoteKey};

    use super::*;

    #[test]
    fn what_is_put_together_is_what_the_key_itself_says() {
        let curves: [(_, &[u8]); 3] = [
            (&rcgen::PKCS_ECDSA_P256_SHA256, b"\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07"),
            (&rcgen::PKCS_ECDSA_P384_SHA384, b"\x06\x05\x2b\x81\x04\x00\x22"),
            (&rcgen::PKCS_ECDSA_P521_SHA512, b"\x06\x05\x2b\x81\x04\x00\x23"),
        ];
        for (algorithm, parameters) in curves {
            let pair = rcgen::KeyPair::generate_for(algorithm).expect("a key");
            let key = PrivateKey::from_der(pair.serialized_der()).expect("a key that can be read");
            let point = pair.public_key_raw();
            for point in [point.to_vec(), element(OCTET_STRING, point)] {
                assert_eq!(ec(parameters, &point), key.public_info());
            }
        }
        let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
        let key = PrivateKey::from_der(pair.serialized_der()).expect("a key that can be read");
        assert_eq!(ed25519(&element(OCTET_STRING, pair.public_key_raw())), key.public_info());
        let der = include_bytes!("../../../lanes/src/rsa/keys/2048.a.der");
        let key = PrivateKey::from_der(der).expect("a key that can be read");
        let info = key.public_info();
        // The modulus: 256 octets before the exponent's five, which end it.
        let (modulus, exponent) = (&info[info.len() - 261..info.len() - 5], &info[info.len() - 3..]);
        assert_eq!(rsa(modulus, exponent), info);
        assert_eq!(rsa(&[&[0, 0], modulus].concat(), exponent), info);
        assert_eq!(RemoteKey::new(0, &rsa(modulus, exponent)).map(|key| key.ski), Ok(key.ski()));
    }

    #[test]
    fn a_point_that_looks_like_a_wrapped_one_stays_whole() {
        for len in POINT_LENGTHS {
            // What follows its first octet is as long as its second one says.
            let mut point = vec![0x5a; len];
            point[0] = OCTET_STRING;
            match u8::try_from(len - 2).ok().filter(|rest| *rest < 0x80) {
                Some(rest) => point[1] = rest,
                None => point[1..3].copy_from_slice(&[0x81, (len - 3) as u8]),
            }
            assert_eq!(unwrapped(&point), point);
            assert_eq!(unwrapped(&element(OCTET_STRING, &point)), point);
        }
    }

    #[test]
    fn numbers_are_as_short_as_can_be_and_never_negative() {
        assert_eq!(integer(&[]), [2, 1, 0]);
        assert_eq!(integer(&[0, 0]), [2, 1, 0]);
        assert_eq!(integer(&[0, 1]), [2, 1, 1]);
        assert_eq!(integer(&[0x80]), [2, 2, 0, 0x80]);
    }
}

//! Reads a private key as PKCS #1 encodes it (RFC 8017 §A.1.2).

use super::key::Parts;

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;

impl<'a> Parts<'a> {
    /// The numbers of an `RSAPrivateKey` with two primes, in DER. `None` if it is something else, a PKCS #8 wrapping
    /// for instance, or followed by anything.
    #[must_use]
    pub fn from_pkcs1_der(der: &'a [u8]) -> Option<Parts<'a>> {
        let (mut body, after) = element(der, SEQUENCE)?;
        let mut integer = || {
            let (number, rest) = element(body, INTEGER)?;
            body = rest;
            Some(number)
        };
        let version = integer()?;
        let (n, e, _d) = (integer()?, integer()?, integer()?);
        let parts = Parts { n, e, p: integer()?, q: integer()?, dp: integer()?, dq: integer()?, qinv: integer()? };
        (version == [0] && after.is_empty() && body.is_empty()).then_some(parts)
    }
}

/// The content of the first element, and what follows it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, length], rest) = der.split_first_chunk()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        0x81 => (usize::from(*rest.first()?), &rest[1..]),
        0x82 => (usize::from(u16::from_be_bytes(*rest.first_chunk()?)), &rest[2..]),
        _ => return None,
    };
    (found == tag).then_some(())?;
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DER: &[u8] = include_bytes!("keys/2048.a.der");

    #[test]
    fn a_key_is_read_only_whole() {
        assert!(Parts::from_pkcs1_der(DER).is_some());
        for end in 0..DER.len() {
            assert!(Parts::from_pkcs1_der(&DER[..end]).is_none(), "{end}");
        }
        assert!(Parts::from_pkcs1_der(&[DER, &[0]].concat()).is_none(), "with something behind it");
    }

    #[test]
    fn damaged_bytes_are_refused_or_read_but_never_a_panic() {
        let mut rng = fastrand::Rng::with_seed(0xde12);
        for _ in 0..20_000 {
            let mut der = DER[..rng.usize(..DER.len())].to_vec();
            for _ in 0..rng.usize(..8) {
                let at = rng.usize(..der.len().max(1));
                der.get_mut(at).into_iter().for_each(|byte| *byte = rng.u8(..));
            }
            let _ = Parts::from_pkcs1_der(&der).is_some();
        }
    }
}

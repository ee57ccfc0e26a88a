//! The public half of the key that is asked for: read from a certificate, named by its SKI.

use super::wire::SKI_BYTES;
use crate::failure::{Failure, Outcome, While};
use aws_lc_rs::digest;
use rustls_pki_types::pem::{PemObject, SectionKind};
use std::path::Path;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

/// How a key server is told which key: SHA-1 over the contents of the subjectPublicKey bit string (RFC 5280 §4.2.1.2,
/// method 1), whatever the certificate's own extension says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ski(pub [u8; SKI_BYTES]);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyType {
    P256,
    P384,
    P521,
    Rsa,
    Ed25519,
}

pub struct PublicKey {
    pub key_type: KeyType,
    /// Contents of the subjectPublicKey bit string: an uncompressed point, an RSAPublicKey, 32 bytes.
    pub bytes: Vec<u8>,
    /// The whole SubjectPublicKeyInfo, DER.
    pub info: Vec<u8>,
}

impl PublicKey {
    /// From the first certificate or public key of a PEM file.
    pub fn read(path: &Path) -> Outcome<Self> {
        let doing = format!("--certificate {}", path.display());
        for section in <(SectionKind, Vec<u8>)>::pem_file_iter(path).when(&doing)? {
            match section.when(&doing)? {
                (SectionKind::Certificate, der) => {
                    let (_, certificate) = X509Certificate::from_der(&der).when(&doing)?;
                    return Self::of(certificate.tbs_certificate.subject_pki.raw).when(&doing);
                }
                (SectionKind::PublicKey, der) => return Self::of(&der).when(&doing),
                _ => {}
            }
        }
        Err(Failure::new(format!("{doing}: neither a certificate nor a public key is in it")))
    }

    fn of(info: &[u8]) -> Result<Self, String> {
        let (_, parsed) = SubjectPublicKeyInfo::from_der(info).map_err(|error| error.to_string())?;
        let curve = || parsed.algorithm.parameters.as_ref().and_then(|any| any.as_oid().ok());
        // RFC 5480 §2.1.1, RFC 3279 §2.3.1, RFC 8410 §3.
        let key_type = match parsed.algorithm.algorithm.to_id_string().as_str() {
            "1.2.840.113549.1.1.1" => KeyType::Rsa,
            "1.3.101.112" => KeyType::Ed25519,
            "1.2.840.10045.2.1" => match curve().map(|oid| oid.to_id_string()).as_deref() {
                Some("1.2.840.10045.3.1.7") => KeyType::P256,
                Some("1.3.132.0.34") => KeyType::P384,
                Some("1.3.132.0.35") => KeyType::P521,
                _ => return Err("a curve other than P-256, P-384 and P-521".to_owned()),
            },
            other => return Err(format!("a key of an unknown type ({other})")),
        };
        Ok(Self { key_type, bytes: parsed.subject_public_key.data.to_vec(), info: info.to_vec() })
    }

    pub fn ski(&self) -> Ski {
        let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &self.bytes);
        Ski(hash.as_ref().try_into().expect("SHA-1 gives 20 bytes"))
    }
}

impl std::str::FromStr for Ski {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("an SKI is {} hexadecimal digits", 2 * SKI_BYTES);
        if text.len() != 2 * SKI_BYTES || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut ski = [0; SKI_BYTES];
        for (place, byte) in ski.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(ski))
    }
}

impl std::fmt::Display for Ski {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ski_of_the_captured_key_is_the_one_that_was_sent() {
        // SubjectPublicKeyInfo of a P-256 key, up to its bit string.
        const HEAD: &str = "3059301306072a8648ce3d020106082a8648ce3d030107034200";
        const POINT: &str = "04806f2daf2a6148540f0e3efc3f89c5a5040e6fe874e37d8abaa77d26cc6ada69\
                             3a5502104f12a12e64786b7b7ffa9d19f19cac252392e7efb65cfbfed14e93fc";
        let info: Vec<u8> = (0..182)
            .step_by(2)
            .map(|at| u8::from_str_radix(&format!("{HEAD}{POINT}")[at..at + 2], 16).unwrap())
            .collect();
        let key = PublicKey::of(&info).unwrap();
        assert_eq!(key.key_type, KeyType::P256);
        assert_eq!(key.ski().to_string(), "e0a390c68021cb41aaf45af5530870c3cad93056");
        assert_eq!("E0A390C68021CB41AAF45AF5530870C3CAD93056".parse(), Ok(key.ski()));
        assert!("e0a3".parse::<Ski>().is_err());
        assert!("é0a390c68021cb41aaf45af5530870c3cad9305".parse::<Ski>().is_err());
    }
}

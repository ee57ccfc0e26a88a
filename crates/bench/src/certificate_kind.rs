//! Which kind of key a certificate is for.

use crate::failure::{Failure, Outcome, While};
use crate::target::Key;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use std::path::Path;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;

/// The type and size of a key, which decide how a handshake is signed and how long that takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyKind {
    pub family: Key,
    pub bits: usize,
}

impl KeyKind {
    /// The key kind of the first certificate in a PEM file.
    pub fn of_file(path: &Path) -> Outcome<Self> {
        let doing = format!("reading {}", path.display());
        let certificate = CertificateDer::from_pem_file(path).when(&doing)?;
        Self::of(&certificate).map_err(|failure| Failure::new(format!("{doing}: {failure}")))
    }

    pub fn of(certificate: &CertificateDer<'_>) -> Outcome<Self> {
        let (_, certificate) = X509Certificate::from_der(certificate).when("the certificate")?;
        match certificate.public_key().parsed().when("the certificate's key")? {
            PublicKey::RSA(key) => Ok(Self { family: Key::Rsa, bits: key.key_size() }),
            // Two coordinates and a byte in front; whole bytes, so P-521 counts 528.
            PublicKey::EC(point) => Ok(Self { family: Key::Ec, bits: point.key_size() }),
            _ => Err(Failure::new("its key is neither RSA nor on a NIST curve")),
        }
    }

    pub fn name(self) -> String {
        match self.family {
            Key::Ec => format!("P-{}", if self.bits == 528 { 521 } else { self.bits }),
            Key::Rsa => format!("RSA-{}", self.bits),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::site::{SITE_NAME, write_certificates};
    use crate::scratch::ScratchDir;

    #[test]
    fn the_kind_is_read_from_the_certificate() {
        let scratch = ScratchDir::new().unwrap();
        write_certificates(&scratch).unwrap();
        let name = |key| KeyKind::of_file(&scratch.path().join(format!("{SITE_NAME}.{key}.pem"))).unwrap().name();
        assert_eq!((name("ec"), name("rsa")), ("P-256".to_owned(), "RSA-2048".to_owned()));
    }
}

//! Certificates that are sent, and not in a file of this machine's.

use std::path::Path;

use super::bundle::{Bundle, assemble};
use super::pem;
use super::problem::Problem;
use crate::certificates::credential::Interner;

/// How a text that was sent is named in messages.
const NAME: &str = "FILE";

/// A PEM text that cannot be served.
#[derive(Debug, PartialEq, Eq)]
pub struct UnfitPem {
    pub what: String,
    /// Remedy; none where it is no PEM at all.
    pub fix: Option<String>,
}

/// Checks that a PEM text has a chain, and the one private key that belongs to it.
pub fn check_pem(text: &[u8]) -> Result<(), UnfitPem> {
    let path = Path::new(NAME);
    let unfit = |problem: Problem| UnfitPem { what: problem.what, fix: Some(problem.fix) };
    let file = pem::parse(text, false, path).map_err(unfit)?;
    match (file.certificates.is_empty(), file.keys.is_empty()) {
        (true, true) => return Err(UnfitPem { what: "there is no certificate and no key in it".into(), fix: None }),
        (false, true) => {
            let fix = "append the key as PEM: cat chain.pem key.pem > both.pem, and send that";
            return Err(unfit(Problem::error(path, "there is no private key behind the certificates", fix)));
        }
        _ => {}
    }
    let mut problems = Vec::new();
    match assemble(bundle(file, path), None, &Interner::default(), &mut problems) {
        Some(_) => Ok(()),
        None => Err(problems.pop().map_or_else(|| UnfitPem { what: "it cannot be used".into(), fix: None }, unfit)),
    }
}

/// Chain and key of one text, which no file of this machine is watched for.
pub(super) fn bundle(file: pem::Contents, path: &Path) -> Bundle {
    Bundle { chain_path: path.into(), key_path: path.into(), chain: file.certificates, keys: file.keys, stamps: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_with_its_key_is_taken_and_anything_else_is_refused_with_a_reason() {
        let key = rcgen::KeyPair::generate().unwrap();
        let other = rcgen::KeyPair::generate().unwrap();
        let chain =
            rcgen::CertificateParams::new(vec!["shop.example".into()]).unwrap().self_signed(&key).unwrap().pem();
        assert_eq!(check_pem((chain.clone() + &key.serialize_pem()).as_bytes()), Ok(()));
        let unfit = |text: &str| check_pem(text.as_bytes()).unwrap_err();
        for none in ["", "text"] {
            assert_eq!(unfit(none).fix, None);
        }
        let fix = |text: &str| unfit(text).fix.unwrap();
        assert!(fix(&chain).contains("cat chain.pem key.pem"));
        assert!(fix(&key.serialize_pem()).contains("add the certificate"));
        // The certificate that the key does not belong to is named.
        let other = unfit(&(chain.clone() + &other.serialize_pem()));
        assert!(other.what.contains("does not belong") && other.fix.is_some_and(|fix| fix.contains("put the key of")));
        let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        assert!(fix(&(chain + encrypted)).contains("openssl pkey -in FILE -out key.pem"));
    }
}

//! Certificates that are sent, and not in a file of this machine's.

use std::path::Path;

use super::bundle::{Bundle, assemble};
use super::pem;
use crate::certificates::credential::Interner;

/// How a text that was sent is named in messages.
const NAME: &str = "the certificate";

/// Checks that a PEM text has a chain, and the one private key that belongs to it. The error says what is wrong with
/// it.
pub fn check_pem(text: &[u8]) -> Result<(), String> {
    let path = Path::new(NAME);
    let file = pem::parse(text, false, path).map_err(|problem| problem.what)?;
    let mut problems = Vec::new();
    match assemble(bundle(file, path), None, &Interner::default(), &mut problems) {
        Some(_) => Ok(()),
        None => Err(problems.pop().map_or_else(|| "it cannot be used".to_owned(), |problem| problem.what)),
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
        for wrong in ["", "text", &chain, &key.serialize_pem(), &(chain.clone() + &other.serialize_pem())] {
            assert!(!check_pem(wrong.as_bytes()).unwrap_err().is_empty());
        }
    }
}

//! Properties that hold for any file named as a certificate: shared by the fuzz target and a test.

use std::path::Path;
use std::time::{Duration, SystemTime};

use super::bundle::assemble;
use super::sent::bundle;
use super::{ocsp, pem};
use crate::certificates::credential::{Interner, Material};
use crate::provider::compression::Compressed;

/// A file with chain and key, and the OCSP response beside it: a credential that can be used, or reasons.
pub fn certificates(text: &[u8], response: &[u8]) {
    let path = Path::new("fuzz.pem");
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let file = match pem::parse(text, false, path) {
        Ok(file) => file,
        Err(problem) => return assert!(!problem.what.is_empty() && !problem.fix.is_empty()),
    };
    let mut problems = Vec::new();
    match assemble(bundle(file, path), None, &Interner::default(), &mut problems) {
        Some(material) => used(&material, response, now),
        None => assert!(!problems.is_empty(), "refused without a reason"),
    }
    assert!(problems.iter().all(|problem| !problem.what.is_empty() && !problem.fix.is_empty()));
}

fn used(material: &Material, response: &[u8], now: SystemTime) {
    assert!(material.names.iter().all(|name| !name.is_empty() && !name.bytes().any(|byte| byte.is_ascii_uppercase())));
    let staple = ocsp::read_response(response, &material.chain.leaf, now).ok();
    Compressed::new(material.chain.iter(), staple.as_ref().map(|staple| staple.response.as_slice()));
    material.key();
    super::chain::aging(material.validity, now, &material.path);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A seeded walk from a good file into bad ones; the fuzzer goes further.
    #[test]
    fn a_damaged_file_is_refused_with_a_reason_and_never_a_panic() {
        let key = rcgen::KeyPair::generate().unwrap();
        let chain = rcgen::CertificateParams::new(vec!["shop.example".into()]).unwrap().self_signed(&key).unwrap();
        let good = (chain.pem() + &key.serialize_pem()).into_bytes();
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        certificates(&good, b"");
        for _ in 0..500 {
            let mut bad = good.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..bad.len());
                bad[at] = *random.choice(b"ABCDabcd0189+/=-\n").unwrap();
            }
            bad.truncate(random.usize(bad.len() / 2..=bad.len()));
            certificates(&bad, &bad);
        }
    }
}

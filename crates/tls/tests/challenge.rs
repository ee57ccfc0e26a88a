//! An authority that asks by tls-alpn-01 (RFC 8737), among clients that do not.

mod common;

use std::sync::Arc;

use common::*;
use propylon_config::{AcmeId, Certificate, CertificateSource, KeyType, Ordered};
use propylon_tls::{Acceptor, ChallengeCertificate, Profile, Tickets, publish_challenges};

/// Challenges are the process's: one story in one test.
#[test]
fn an_authority_gets_its_certificate_and_nobody_else_does() {
    let directory = Directory::new();
    let path = directory.write("ec.pem", ec(&[NAME]));
    let mut profile = tls_profile(&[&path]);
    profile.strict_sni = true;
    profile.ja4 = true;
    let acceptor = load(&profile).acceptor(&Arc::new(Tickets::new()));
    let key = key(&rcgen::PKCS_ECDSA_P256_SHA256);
    let certificate = rcgen::CertificateParams::new(vec!["asked.test".into()]).unwrap().self_signed(&key).unwrap();
    let answer = ChallengeCertificate {
        name: "asked.test".into(),
        certificate: certificate.der().to_vec(),
        key: key.serialize_der(),
    };
    let ask = |name: &'static str, alpn: &[&[u8]], acceptor: &Acceptor| shown(acceptor, name, alpn);
    assert_eq!(ask("asked.test", &[b"acme-tls/1"], &acceptor), None, "nothing is outstanding");
    publish_challenges(vec![answer]);
    assert_eq!(ask("asked.test", &[b"acme-tls/1"], &acceptor), Some((certificate.der().to_vec(), true)));
    assert_eq!(ask("other.test", &[b"acme-tls/1"], &acceptor), None);
    assert_eq!(ask(NAME, &[b"acme-tls/1"], &acceptor), None);
    for alpn in [&[&b"acme-tls/1"[..], b"h2"][..], &[b"h2", b"acme-tls/1"], &[b"h2"], &[b"acme-tls/11"], &[]] {
        assert_eq!(ask("asked.test", alpn, &acceptor), None, "{alpn:?}");
    }
    let (leaf, challenge) = ask(NAME, &[b"h2"], &acceptor).expect("others are served as ever");
    assert!(leaf != certificate.der().to_vec() && !challenge);
    publish_challenges(Vec::new());
    assert_eq!(ask("asked.test", &[b"acme-tls/1"], &acceptor), None, "it is withdrawn");
}

/// The leaf that a client is shown, and whether the server takes it for an authority; none where it is refused.
fn shown(acceptor: &Acceptor, name: &'static str, alpn: &[&[u8]]) -> Option<(Vec<u8>, bool)> {
    let mut client = Client::new();
    client.alpn = alpn.iter().map(|each| each.to_vec()).collect();
    let mut dialogue = Dialogue::new(acceptor, &client.config(), name);
    dialogue.shake().ok()?;
    let facts = dialogue.session.facts();
    let challenge = dialogue.session.was_challenge();
    assert_eq!(challenge, dialogue.client.alpn_protocol() == Some(b"acme-tls/1"));
    assert!(!challenge || facts.alpn.is_none());
    Some((dialogue.client.peer_certificates()?[0].to_vec(), challenge))
}

fn ordered(directory: &Directory, file: &str, names: &[&str]) -> Certificate {
    let names = names.iter().map(|name| name.to_string()).collect();
    let files = vec![(KeyType::Ecdsa, directory.0.join(file))];
    let source = CertificateSource::Ordered(Ordered { acme: AcmeId(0), names, files });
    Certificate { source, ocsp: None, default: false, uploaded: false, at: Default::default() }
}

fn served(profile: &Profile) -> Vec<String> {
    profile.served().map(|served| served.name).collect()
}

#[test]
fn what_is_ordered_may_not_be_there_yet_and_what_was_ordered_for_some_of_its_names_stands_in() {
    let directory = Directory::new();
    let mut config = tls_profile(&[]);
    config.certificates = vec![ordered(&directory, "a.test-2.ecdsa.pem", &["a.test", "b.test"])];
    let (first, findings) = Profile::load(&config, ALPN).expect("it is no error");
    assert_eq!((first.count(), findings.len()), (0, 1));
    assert!(findings[0].what.contains("not there yet"), "{findings:?}");

    // Files of other names, of another key type, or broken do not stand in.
    directory.write("c.test-1.ecdsa.pem", ec(&["c.test"]));
    directory.write("a.test-1.rsa.pem", rsa(&["a.test"]));
    directory.write("a.test-0.ecdsa.pem", "broken");
    let (none, _) = first.load_again(&config, ALPN).expect("still no error");
    assert_eq!(none.count(), 0);
    directory.write("a.test-1.ecdsa.pem", ec(&["a.test"]));
    let (stands_in, findings) = none.load_again(&config, ALPN).expect("still no error");
    assert_eq!(served(&stands_in), ["a.test"]);
    assert!(findings[0].fix.contains("a.test-1.ecdsa.pem stands in"), "{findings:?}");
    let (again, _) = stands_in.load_again(&config, ALPN).expect("still no error");
    assert_eq!(served(&again), ["a.test"]);

    let wanted = directory.write("a.test-2.ecdsa.pem", ec(&["a.test", "b.test"]));
    let (there, findings) = again.load_again(&config, ALPN).expect("a certificate");
    assert_eq!(there.served().next().expect("one").path, wanted);
    assert_eq!(findings, []);
    // Broken or gone, it stays as it was, and that is a warning.
    directory.write("a.test-2.ecdsa.pem", "broken");
    let (kept, findings) = there.load_again(&config, ALPN).expect("what was there");
    assert!(kept.same_as(&there) && findings.iter().all(|finding| finding.severity == propylon_tls::Severity::Warning));
    assert!(!findings.is_empty());
    std::fs::remove_file(&wanted).unwrap();
    let (kept, _) = kept.load_again(&config, ALPN).expect("what was there");
    assert!(kept.same_as(&there));
}

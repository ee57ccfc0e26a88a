//! Handshakes: versions, suites, groups and certificates, by what clients support.

mod common;

use std::sync::Arc;

use common::*;
use propylon_config::{KeyType, TlsPolicy};
use propylon_tls::{Group, Step, Suite, Tickets, Version};
use rustls::crypto::SupportedKxGroup;
use rustls::crypto::aws_lc_rs::{cipher_suite, kx_group};
use rustls::{NamedGroup, SupportedCipherSuite};

const GROUPS: [(&dyn SupportedKxGroup, Group); 4] = [
    (kx_group::X25519MLKEM768, Group::X25519MlKem768),
    (kx_group::X25519, Group::X25519),
    (kx_group::SECP256R1, Group::P256),
    (kx_group::SECP384R1, Group::P384),
];

fn suites(version: Version, certificate: KeyType) -> [(SupportedCipherSuite, Suite); 3] {
    use cipher_suite::*;
    let [aes128, aes256, chacha] = match (version, certificate) {
        (Version::Tls13, _) => [TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256],
        (Version::Tls12, KeyType::Ecdsa | KeyType::Ed25519) => [
            TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        ],
        (Version::Tls12, KeyType::Rsa) => [
            TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ],
    };
    [(aes128, Suite::Aes128Gcm), (aes256, Suite::Aes256Gcm), (chacha, Suite::Chacha20Poly1305)]
}

#[test]
fn every_version_suite_group_and_certificate_type_works() {
    let acceptor = acceptor();
    for version in [Version::Tls12, Version::Tls13] {
        for certificate in [KeyType::Ecdsa, KeyType::Rsa] {
            for (suite, expected_suite) in suites(version, certificate) {
                for (group, expected_group) in GROUPS {
                    if version == Version::Tls12 && expected_group == Group::X25519MlKem768 {
                        continue;
                    }
                    let mut client = match version {
                        Version::Tls12 => Client::tls12(),
                        Version::Tls13 => Client::tls13(),
                    };
                    client.provider.cipher_suites = vec![suite];
                    client.provider.kx_groups = vec![group];
                    client.schemes = match certificate {
                        KeyType::Ecdsa | KeyType::Ed25519 => EC_SCHEMES.to_vec(),
                        KeyType::Rsa => RSA_SCHEMES.to_vec(),
                    };
                    let mut dialogue = Dialogue::established(&acceptor, &client.config());
                    let facts = dialogue.session.facts();
                    assert_eq!(facts.version, version);
                    assert_eq!(facts.suite, expected_suite);
                    assert_eq!(facts.group, Some(expected_group));
                    assert_eq!(facts.certificate, Some(certificate));
                    assert!(!facts.resumed);
                    assert_eq!(dialogue.asked_for(), Some(NAME));
                    dialogue.session.forget_hello_info();
                    assert_eq!(dialogue.asked_for(), None);
                    assert_eq!(dialogue.upload(b"GET /", 3), b"GET /");
                    assert_eq!(dialogue.download(b"200"), b"200");
                }
            }
        }
    }
}

#[test]
fn modern_takes_tls_1_3_only() {
    let directory = Directory::new();
    let path = directory.write("ec.pem", ec(&[NAME]));
    let mut profile = tls_profile(&[&path]);
    profile.policy = TlsPolicy::Modern;
    let acceptor = load(&profile).acceptor(&Arc::new(Tickets::new()));
    Dialogue::established(&acceptor, &Client::new().config());
    let failure = Dialogue::new(&acceptor, &Client::tls12().config(), NAME).shake().unwrap_err();
    assert_eq!(failure.reason.label(), "version");
}

fn served(acceptor: &propylon_tls::Acceptor, client: Client, name: &str) -> (Option<KeyType>, Vec<u8>) {
    let mut dialogue = Dialogue::new(acceptor, &client.config(), name);
    dialogue.shake().unwrap();
    let leaf = dialogue.client.peer_certificates().unwrap()[0].to_vec();
    (dialogue.session.facts().certificate, leaf)
}

#[test]
fn prefer_decides_for_a_client_that_can_verify_both_and_no_other() {
    for prefer in [[KeyType::Ecdsa, KeyType::Rsa], [KeyType::Rsa, KeyType::Ecdsa]] {
        let directory = Directory::new();
        let ec = directory.write("ec.pem", ec(&[NAME]));
        let rsa = directory.write("rsa.pem", rsa(&[NAME]));
        let mut profile = tls_profile(&[&rsa, &ec]);
        profile.prefer = prefer.to_vec();
        let acceptor = load(&profile).acceptor(&Arc::new(Tickets::new()));
        for client in [Client::tls12, Client::tls13] {
            assert_eq!(served(&acceptor, client(), NAME).0, Some(prefer[0]));
            let only = |schemes: &[_]| Client { schemes: schemes.to_vec(), ..client() };
            assert_eq!(served(&acceptor, only(RSA_SCHEMES), NAME).0, Some(KeyType::Rsa));
            assert_eq!(served(&acceptor, only(EC_SCHEMES), NAME).0, Some(KeyType::Ecdsa));
        }
    }
}

/// A certificate for `NAME` that is good from one year to another, with its key.
fn dated(key: &rcgen::KeyPair, (from, to): (i32, i32)) -> String {
    let mut params = rcgen::CertificateParams::new(vec![NAME.into()]).unwrap();
    (params.not_before, params.not_after) = (rcgen::date_time_ymd(from, 1, 1), rcgen::date_time_ymd(to, 1, 1));
    params.self_signed(key).unwrap().pem() + &key.serialize_pem()
}

#[test]
fn a_certificate_out_of_date_gives_way_to_one_of_another_type_and_to_nothing_else() {
    let (past, now, future) = ((2001, 2002), (2001, 2099), (2098, 2099));
    let ec_key = key(&rcgen::PKCS_ECDSA_P256_SHA256);
    let rsa_key = rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048).unwrap();
    for (ec, rsa, expected) in [
        (now, now, KeyType::Ecdsa),
        (past, now, KeyType::Rsa),
        (future, now, KeyType::Rsa),
        (now, past, KeyType::Ecdsa),
        (past, past, KeyType::Ecdsa),
        (past, future, KeyType::Ecdsa),
    ] {
        let directory = Directory::new();
        let ec = directory.write("ec.pem", dated(&ec_key, ec));
        let rsa = directory.write("rsa.pem", dated(&rsa_key, rsa));
        let (profile, _) = propylon_tls::Profile::load(&tls_profile(&[&ec, &rsa]), ALPN).unwrap();
        let shown = profile.shown_for(Some(NAME), None);
        assert_eq!(shown[0].0.key_type, expected, "what is told");
        let acceptor = profile.acceptor(&Arc::new(Tickets::new()));
        for client in [Client::tls12, Client::tls13] {
            assert_eq!(served(&acceptor, client(), NAME).0, Some(expected));
            // A client that can verify one type alone gets it, whatever its dates are.
            let only = |schemes: &[_]| Client { schemes: schemes.to_vec(), ..client() };
            assert_eq!(served(&acceptor, only(EC_SCHEMES), NAME).0, Some(KeyType::Ecdsa));
            assert_eq!(served(&acceptor, only(RSA_SCHEMES), NAME).0, Some(KeyType::Rsa));
        }
    }
}

#[test]
fn a_tls_1_2_client_with_rsa_suites_only_gets_rsa_though_it_could_verify_ecdsa() {
    let mut client = Client::tls12();
    client.provider.cipher_suites = vec![cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256];
    assert_eq!(served(&acceptor(), client, NAME).0, Some(KeyType::Rsa));
}

#[test]
fn the_name_picks_the_certificate_exact_before_wildcard_before_default() {
    let directory = Directory::new();
    let names: [&[&str]; 4] =
        [&["default.example"], &["*.Shop.example"], &["www.shop.example"], &["a.b.example", "c.example"]];
    let paths: Vec<_> =
        names.iter().enumerate().map(|(index, names)| directory.write(&format!("{index}.pem"), ec(names))).collect();
    let paths: Vec<_> = paths.iter().map(|path| path.as_path()).collect();
    let acceptor = load(&tls_profile(&paths)).acceptor(&Arc::new(Tickets::new()));
    let leaf = |name| served(&acceptor, Client::new(), name).1;
    let leaves = ["default.example", "img.shop.example", "www.shop.example", "c.example"].map(leaf);
    for (name, expected) in [
        ("default.example", 0),
        ("unknown.example", 0),
        ("192.0.2.1", 0),
        ("shop.example", 0),
        ("x.img.shop.example", 0),
        ("IMG2.shop.EXAMPLE", 1),
        ("WWW.shop.example", 2),
        ("a.b.example", 3),
    ] {
        let index = leaves.iter().position(|known| *known == leaf(name));
        assert_eq!(index, Some(expected), "{name}");
    }
}

#[test]
fn other_key_types_are_served_in_the_place_of_ecdsa() {
    for algorithm in [&rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ECDSA_P521_SHA512, &rcgen::PKCS_ED25519] {
        let directory = Directory::new();
        let other = directory.write("other.pem", pem(&[NAME], &key(algorithm)));
        let rsa = directory.write("rsa.pem", rsa(&[NAME]));
        let acceptor = load(&tls_profile(&[&rsa, &other])).acceptor(&Arc::new(Tickets::new()));
        for client in [Client::tls12, Client::tls13] {
            let own = if algorithm == &rcgen::PKCS_ED25519 { KeyType::Ed25519 } else { KeyType::Ecdsa };
            assert_eq!(served(&acceptor, client(), NAME).0, Some(own));
            let only_rsa = Client { schemes: RSA_SCHEMES.to_vec(), ..client() };
            assert_eq!(served(&acceptor, only_rsa, NAME).0, Some(KeyType::Rsa));
        }
    }
}

#[test]
fn alpn_is_agreed_on_or_absent_or_refused() {
    let acceptor = acceptor();
    let agreed = |alpn: &[&[u8]]| {
        let alpn = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        let mut dialogue = Dialogue::new(&acceptor, &Client { alpn, ..Client::new() }.config(), NAME);
        dialogue.shake().map(|()| dialogue.session.facts().alpn)
    };
    assert_eq!(agreed(&[b"http/1.1", b"h2"]).unwrap(), Some(0));
    assert_eq!(agreed(&[b"http/1.1"]).unwrap(), Some(1));
    assert_eq!(agreed(&[]).unwrap(), None);
    assert_eq!(agreed(&[b"spdy/3"]).unwrap_err().reason.label(), "no-application-protocol");
}

#[test]
fn of_the_suites_our_order_decides() {
    use cipher_suite::*;
    let mut client = Client::tls13();
    client.provider.cipher_suites = vec![TLS13_CHACHA20_POLY1305_SHA256, TLS13_AES_128_GCM_SHA256];
    let dialogue = Dialogue::established(&acceptor(), &client.config());
    assert_eq!(dialogue.session.facts().suite, Suite::Aes128Gcm);
}

#[test]
fn a_tls_1_2_client_without_the_certificates_curve_gets_rsa() {
    let mut client = Client::tls12();
    client.provider.kx_groups = vec![kx_group::X25519];
    client.provider.cipher_suites.retain(|suite| suite.tls13().is_none());
    let dialogue = Dialogue::established(&acceptor(), &client.config());
    assert_eq!(dialogue.session.facts().certificate, Some(KeyType::Rsa));
}

#[test]
fn a_client_with_an_x25519_share_and_ml_kem_further_down_takes_one_round_trip() {
    let mut client = Client::tls13();
    client.provider.kx_groups = vec![kx_group::X25519, kx_group::X25519MLKEM768];
    let dialogue = Dialogue::established(&acceptor(), &client.config());
    assert_eq!(dialogue.session.facts().group, Some(Group::X25519));
    assert_eq!(dialogue.steps, [Step::Write, Step::Done]);
}

/// A group that only the client knows.
#[derive(Debug)]
struct Unknown;

impl SupportedKxGroup for Unknown {
    fn start(&self) -> Result<Box<dyn rustls::crypto::ActiveKeyExchange>, rustls::Error> {
        kx_group::SECP256R1.start()
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::Unknown(0x6a6a)
    }
}

#[test]
fn a_client_without_a_usable_share_is_asked_again() {
    // A share that the server cannot use, and a group that it can.
    let mut client = Client::tls13();
    client.provider.kx_groups = vec![&Unknown, kx_group::SECP384R1];
    let config = client.config();
    let dialogue = Dialogue::established(&acceptor(), &config);
    assert_eq!(dialogue.session.facts().group, Some(Group::P384));
    assert_eq!(dialogue.steps, [Step::Write, Step::Write, Step::Done]);
}

#[test]
fn nothing_in_common_has_a_reason_and_an_alert() {
    const HANDSHAKE_FAILURE: u8 = 40;
    let acceptor = acceptor();
    let mut no_group = Client::tls13();
    no_group.provider.kx_groups = vec![&Unknown];
    let no_signature = Client { schemes: vec![rustls::SignatureScheme::ED448], ..Client::tls13() };
    for (client, reason) in [(no_group, "no-shared-group"), (no_signature, "no-shared-signature")] {
        let mut dialogue = Dialogue::new(&acceptor, &client.config(), NAME);
        let hello = dialogue.client_bytes();
        let mut out = Vec::new();
        let mut hello_copy = hello.clone();
        let failure = dialogue.session.handshake(&mut hello_copy, &mut out).unwrap_err();
        assert_eq!(failure.reason.label(), reason);
        let refused = dialogue.deliver(&out).unwrap_err();
        assert_eq!(refused, rustls::Error::AlertReceived(HANDSHAKE_FAILURE.into()));
        assert_eq!(dialogue.session.handshake(&mut hello_copy, &mut out).unwrap_err().reason.label(), "over");
    }
}

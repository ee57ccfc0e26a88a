//! Which certificate is served: by preference, by name, by policy, or none.

mod common;

use std::fs;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use common::*;
use propylon_config::{At, CustomPolicy, KeyType, TlsCipher, TlsGroup, TlsPolicy, TlsSuite, TlsVersion};
use propylon_tls::{Acceptor, Failure, Profile, Severity, Tickets, Version};

fn acceptor_of(profile: &propylon_config::TlsProfile) -> Acceptor {
    load(profile).acceptor(&Arc::new(Tickets::new()))
}

fn served(acceptor: &Acceptor, client: Client, name: &str) -> (Option<KeyType>, Vec<u8>) {
    let mut dialogue = Dialogue::new(acceptor, &client.config(), name);
    dialogue.shake().unwrap();
    let leaf = dialogue.client.peer_certificates().unwrap()[0].to_vec();
    (dialogue.session.facts().certificate, leaf)
}

fn refused(acceptor: &Acceptor, client: Client, name: &str) -> (Failure, Vec<u8>) {
    let mut dialogue = Dialogue::new(acceptor, &client.config(), name);
    let hello = dialogue.client_bytes();
    let mut received = hello.clone();
    let mut out = Vec::new();
    let failure = dialogue.session.handshake(&mut received, &mut out).unwrap_err();
    (failure, out)
}

#[test]
fn ed25519_has_a_place_of_its_own_where_prefer_names_it_and_ecdsas_where_not() {
    use KeyType::*;
    let directory = Directory::new();
    let ec = directory.write("ec.pem", ec(&[NAME]));
    let ed = directory.write("ed.pem", pem(&[NAME], &key(&rcgen::PKCS_ED25519)));
    let rsa = directory.write("rsa.pem", rsa(&[NAME]));
    for (prefer, expected) in [
        (&[Ecdsa, Rsa][..], Ecdsa),
        (&[Ed25519, Ecdsa, Rsa], Ed25519),
        (&[Rsa, Ed25519], Rsa),
        (&[Ecdsa, Rsa, Ed25519], Ecdsa),
        (&[Ed25519], Ed25519),
    ] {
        let mut profile = tls_profile(&[&ec, &ed, &rsa]);
        profile.prefer = prefer.to_vec();
        let loaded = load(&profile);
        let tickets = Arc::new(Tickets::new());
        let own = loaded.acceptor(&tickets);
        // A listener's own order replaces the profile's.
        profile.prefer = vec![Rsa, Ecdsa];
        let listeners = load(&profile).acceptor_parts(Some(prefer), &[], &tickets).assemble();
        for acceptor in [own, listeners] {
            for client in [Client::tls12, Client::tls13] {
                assert_eq!(served(&acceptor, client(), NAME).0, Some(expected), "{prefer:?}");
            }
        }
    }
    let profile = tls_profile(&[&ed, &ec, &rsa]);
    assert_eq!(served(&acceptor_of(&profile), Client::new(), NAME).0, Some(Ed25519), "the first of equals");
}

#[test]
fn strict_sni_refuses_a_name_that_no_certificate_stands_for_and_a_client_that_sends_none() {
    const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];
    const MISSING_EXTENSION: [u8; 7] = [21, 3, 3, 0, 2, 2, 109];
    let directory = Directory::new();
    let one = directory.write("one.pem", ec(&[NAME]));
    let two = directory.write("two.pem", ec(&["*.wild.example"]));
    let mut profile = tls_profile(&[&one, &two]);
    profile.strict_sni = true;
    let acceptor = acceptor_of(&profile);
    // RFC 8446 §9.2; TLS 1.2 has no such alert.
    for (client, without_name) in
        [(Client::tls12 as fn() -> Client, UNRECOGNIZED_NAME), (Client::tls13, MISSING_EXTENSION)]
    {
        assert!(served(&acceptor, client(), NAME).0.is_some());
        assert!(served(&acceptor, client(), "a.wild.example").0.is_some());
        for name in ["other.example", "wild.example", "a.b.wild.example"] {
            let (failure, out) = refused(&acceptor, client(), name);
            assert_eq!((failure.reason.label(), out.as_slice()), ("no-certificate", &UNRECOGNIZED_NAME[..]), "{name}");
        }
        // An address is no name: the client sends none.
        let (failure, out) = refused(&acceptor, client(), "192.0.2.1");
        assert_eq!((failure.reason.label(), out.as_slice()), ("no-certificate", &without_name[..]));
    }
    let (failure, _) = refused(&acceptor, Client::new(), "other.example");
    assert!(failure.detail.contains("other.example"), "{failure}");
}

#[test]
fn the_default_is_the_one_that_is_marked_and_what_stands_for_its_names() {
    let directory = Directory::new();
    let first = directory.write("first.pem", ec(&["first.example"]));
    let marked = directory.write("marked.pem", ec(&["marked.example"]));
    let beside = directory.write("beside.pem", rsa(&["marked.example"]));
    let mut profile = tls_profile(&[&first, &marked, &beside]);
    profile.certificates[1].default = true;
    let acceptor = acceptor_of(&profile);
    let leaf = |name| served(&acceptor, Client::new(), name).1;
    assert_eq!(leaf("unknown.example"), leaf("marked.example"));
    assert_ne!(leaf("unknown.example"), leaf("first.example"));
    let only_rsa = Client { schemes: RSA_SCHEMES.to_vec(), ..Client::new() };
    assert_eq!(served(&acceptor, only_rsa, "unknown.example").0, Some(KeyType::Rsa));
}

fn custom(versions: &[TlsVersion], suites: &[TlsSuite], groups: &[TlsGroup]) -> TlsPolicy {
    TlsPolicy::Custom(CustomPolicy {
        versions: versions.to_vec(),
        suites: suites.to_vec(),
        groups: groups.to_vec(),
        at: At { line: 50, column: 1, length: 6 },
    })
}

#[test]
fn a_policy_of_ones_own_is_offered_as_it_is_written() {
    use TlsCipher::*;
    let directory = Directory::new();
    let path = directory.write("ec.pem", ec(&[NAME]));
    let mut profile = tls_profile(&[&path]);
    let suites = [TlsSuite::Tls13(Chacha20Poly1305), TlsSuite::Tls13(Aes128Gcm), TlsSuite::Ecdsa(Aes256Gcm)];
    profile.policy = custom(&[TlsVersion::Tls12, TlsVersion::Tls13], &suites, &[TlsGroup::P256]);
    let acceptor = acceptor_of(&profile);
    let dialogue = Dialogue::established(&acceptor, &Client::tls13().config());
    let facts = dialogue.session.facts();
    assert_eq!(facts.suite.name(), "CHACHA20-POLY1305", "our order, and not the client's");
    assert_eq!(facts.group.map(|group| group.name()), Some("P-256"));
    let dialogue = Dialogue::established(&acceptor, &Client::tls12().config());
    assert_eq!(dialogue.session.facts().suite.name(), "AES256-GCM");
    profile.policy = custom(&[TlsVersion::Tls12], &suites, &[TlsGroup::P256]);
    let acceptor = acceptor_of(&profile);
    let dialogue = Dialogue::established(&acceptor, &Client::new().config());
    assert_eq!(dialogue.session.facts().version, Version::Tls12);
    assert_eq!(refused(&acceptor, Client::tls13(), NAME).0.reason.label(), "version");
}

#[test]
fn a_policy_that_leaves_a_certificate_unusable_is_an_error_or_a_warning() {
    let directory = Directory::new();
    let ec = directory.write("ec.pem", ec(&[NAME]));
    let rsa = directory.write("rsa.pem", rsa(&[NAME]));
    let mut profile = tls_profile(&[&ec, &rsa]);
    let suites = [TlsSuite::Tls13(TlsCipher::Aes128Gcm), TlsSuite::Ecdsa(TlsCipher::Aes128Gcm)];
    profile.policy = custom(&[TlsVersion::Tls12], &suites, &[TlsGroup::X25519]);
    let findings = Profile::load(&profile, ALPN).unwrap_err();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert!(findings[0].what.contains("rsa certificate of [tls.public]"), "{}", findings[0].what);
    assert_eq!(findings[0].at.line, 50);
    profile.policy = custom(&[TlsVersion::Tls12, TlsVersion::Tls13], &suites, &[TlsGroup::X25519]);
    let (_, findings) = Profile::load(&profile, ALPN).unwrap();
    assert_eq!((findings.len(), findings[0].severity), (1, Severity::Warning));
}

#[test]
fn a_client_that_can_take_it_gets_the_certificate_compressed() {
    let directory = Directory::new();
    let path = directory.write("long.pem", long_chain());
    let mut profile = tls_profile(&[&path]);
    let flight = |acceptor: &Acceptor, decompressors: &[&'static dyn rustls::compress::CertDecompressor]| {
        let mut config = (*Client::tls13().config()).clone();
        config.cert_decompressors = decompressors.to_vec();
        let mut dialogue = Dialogue::new(acceptor, &Arc::new(config), NAME);
        let hello = dialogue.client_bytes();
        let (_, out) = dialogue.feed(&hello).unwrap();
        dialogue.deliver(&out).unwrap();
        dialogue.shake().unwrap();
        assert_eq!(dialogue.client.peer_certificates().unwrap().len(), 3);
        out.len()
    };
    let acceptor = acceptor_of(&profile);
    let (plain, zlib, brotli) =
        (flight(&acceptor, &[]), flight(&acceptor, &[ZLIB]), flight(&acceptor, &[ZLIB, BROTLI]));
    assert!(plain > zlib + 300 && zlib > brotli, "{plain} {zlib} {brotli}");
    profile.certificate_compression = false;
    let off = flight(&acceptor_of(&profile), &[ZLIB, BROTLI]);
    // Signatures differ by a byte or two.
    assert!(off.abs_diff(plain) < 8, "{off}");
}

/// RFC 9110 §7.4: by the certificate that clients of the asked-for name are shown.
#[test]
fn a_connection_is_for_the_names_and_addresses_of_its_certificate() {
    let directory = Directory::new();
    let one = directory.write("one.pem", ec(&["one.example", "*.one.example", "10.0.0.1", "2001:db8::1"]));
    let two = directory.write("two.pem", ec(&["two.example", "*.two.example", "10.0.0.2"]));
    let profile = load(&tls_profile(&[&one, &two]));
    for (server_name, host, is_covered) in [
        (Some("one.example"), "one.example", true),
        (Some("one.example"), "www.one.example", true),
        (Some("one.example."), "www.one.example", true),
        (Some("two.example."), "one.example", false),
        (Some("one.example"), "a.b.one.example", false),
        (Some("one.example"), "two.example", false),
        (Some("one.example"), "10.0.0.1", true),
        (Some("one.example"), "[2001:db8::1]", true),
        (Some("one.example"), "[2001:db8:0::1]", true),
        (Some("one.example"), "[2001:db8::2]", false),
        (Some("one.example"), "2001:db8::1", false),
        (Some("one.example"), "10.0.0.2", false),
        (Some("two.example"), "10.0.0.1", false),
        (Some("www.two.example"), "two.example", true),
        // The first certificate is for those whom no other is for.
        (Some("www.two.example"), "one.example", false),
        // No certificate stands for it; the client asked for it all the same.
        (Some("other.example"), "other.example", true),
        (Some("other.example"), "10.0.0.1", true),
        (Some("other.example"), "10.0.0.2", false),
        (None, "10.0.0.1", true),
        (None, "10.0.0.9", true),
        (None, "one.example", true),
        (None, "other.example", true),
        (None, "two.example", false),
    ] {
        assert_eq!(profile.covers(server_name, host), is_covered, "{server_name:?} {host}");
    }
}

#[test]
fn a_certificate_more_is_a_difference() {
    let directory = Directory::new();
    let one = directory.write("one.pem", ec(&["one.example"]));
    let two = directory.write("two.pem", ec(&["two.example"]));
    let (few, more) = (load(&tls_profile(&[&one])), load(&tls_profile(&[&one, &two])));
    assert!(few.same_as(&load(&tls_profile(&[&one]))));
    assert!(!few.same_as(&more) && !more.same_as(&few));
}

#[test]
fn the_same_files_are_served_by_other_rules_where_these_have_changed() {
    use KeyType::{Ecdsa, Rsa};
    let directory = Directory::new();
    let files = [directory.write("ec.pem", ec(&["shop.example"])), directory.write("rsa.pem", rsa(&["shop.example"]))];
    // Old enough to have settled: they are not read again.
    let hour_ago = SystemTime::now() - Duration::from_secs(3600);
    for file in &files {
        fs::File::options().write(true).open(file).unwrap().set_modified(hour_ago).unwrap();
    }
    let before = tls_profile(&[&files[0], &files[1]]);
    let (profile, _) = Profile::load(&before, ALPN).unwrap();
    let shown = |profile: &Profile, name: &str| -> Vec<KeyType> {
        profile.shown_for(Some(name), None).into_iter().map(|(served, _)| served.key_type).collect()
    };
    assert_eq!(shown(&profile, "shop.example"), [Ecdsa, Rsa]);
    let other_order = propylon_config::TlsProfile { prefer: vec![Rsa, Ecdsa], ..before.clone() };
    let (later, _) = profile.load_again(&other_order, ALPN).unwrap();
    assert_eq!(shown(&later, "shop.example"), [Rsa, Ecdsa]);
    assert!(!shown(&profile, "other.example").is_empty());
    let strict = propylon_config::TlsProfile { strict_sni: true, ..before.clone() };
    let (later, _) = profile.load_again(&strict, ALPN).unwrap();
    assert!(shown(&later, "other.example").is_empty());
}

#[test]
fn a_certificate_has_expired_behind_its_last_second() {
    let directory = Directory::new();
    let profile = load(&tls_profile(&[&directory.write("one.pem", ec(&["one.example"]))]));
    let end = profile.soonest_expiry();
    assert_eq!([end - 1, end, end + 1].map(|moment| profile.expiring_before(moment)), [0, 0, 1]);
}

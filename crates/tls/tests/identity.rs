//! Client certificates: requested, verified, refused with the right alert, remembered by tickets only as long as they
//! may be.

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use common::*;
use propylon_config::*;
use propylon_tls::{
    Acceptor, Deferral, Failure, Identity, PARKING_STACK_BYTES, Parking, ParkingLimits, Profile, Stamp, Step, Tickets,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType, IsCa, Issuer,
    KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P521_SHA512, RevokedCertParams,
    SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{AlertDescription, ClientConfig, Error};
use time::{Duration, OffsetDateTime};

/// An authority, and how to get certificates from it.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    der: CertificateDer<'static>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let key = key(&PKCS_ECDSA_P256_SHA256);
        let mut params = authority_params(name);
        params.key_usages.push(KeyUsagePurpose::CrlSign);
        let certificate = params.self_signed(&key).unwrap();
        Authority { der: certificate.der().clone(), pem: certificate.pem(), issuer: Issuer::new(params, key) }
    }

    /// An authority below this one.
    fn intermediate(&self, name: &str) -> Authority {
        let key = key(&PKCS_ECDSA_P256_SHA256);
        let params = authority_params(name);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Authority { der: certificate.der().clone(), pem: certificate.pem(), issuer: Issuer::new(params, key) }
    }

    fn client(&self, change: impl FnOnce(&mut CertificateParams)) -> Credentials {
        let key = key(&PKCS_ECDSA_P256_SHA256);
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "Acme, Inc.");
        params.distinguished_name.push(DnType::CommonName, "client");
        params.serial_number = Some(SerialNumber::from(SERIAL.to_vec()));
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Credentials { chain: vec![certificate.der().clone()], key: key.serialize_der() }
    }

    fn crl(&self, revoked: &[&[u8]], next_update: OffsetDateTime) -> String {
        let now = OffsetDateTime::now_utc();
        let entry = |serial: &&[u8]| RevokedCertParams {
            serial_number: SerialNumber::from(serial.to_vec()),
            revocation_time: now - Duration::days(1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: next_update.min(now) - Duration::days(2),
            next_update,
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.issuer).unwrap().pem().unwrap()
    }
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

const SERIAL: &[u8] = &[0x0a, 0xbc, 0x01];

struct Credentials {
    chain: Vec<CertificateDer<'static>>,
    key: Vec<u8>,
}

/// Certificate of a client, or none.
fn showing(client: Client, credentials: Option<&Credentials>) -> Arc<ClientConfig> {
    let mut config = Arc::into_inner(client.config()).unwrap();
    if let Some(Credentials { chain, key }) = credentials {
        let key = PrivateKeyDer::Pkcs8(key.clone().into());
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
        let certified = rustls::sign::CertifiedKey::new(chain.clone(), key);
        config.client_auth_cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(certified));
    }
    Arc::new(config)
}

fn auth(ca: PathBuf, mode: ClientAuthMode) -> ClientAuth {
    let at = At { line: 7, column: 1, length: 1 };
    ClientAuth {
        mode,
        ca: vec![Trust { path: ca, at }],
        crl: Vec::new(),
        crl_scope: CrlScope::Chain,
        crl_missing: Leniency::Refuse,
        crl_expired: Leniency::Refuse,
        depth: 6,
        send_ca_names: true,
        forward: ForwardIdentity::Leaf,
        at,
    }
}

/// All of a chain's keys on the curve whose signatures are the dearest to verify, in time and in stack.
fn p521_chain() -> (String, Credentials) {
    let key = || key(&PKCS_ECDSA_P521_SHA512);
    let root_key = key();
    let root_params = authority_params("Root");
    let root = root_params.self_signed(&root_key).unwrap();
    let mut issuer = Issuer::new(root_params, root_key);
    let mut chain = Vec::new();
    for depth in 0..4 {
        let (key, params) = (key(), authority_params(&format!("Intermediate {depth}")));
        chain.insert(0, params.signed_by(&key, &issuer).unwrap().der().clone());
        issuer = Issuer::new(params, key);
    }
    let key = key();
    let leaf = CertificateParams::default().signed_by(&key, &issuer).unwrap();
    chain.insert(0, leaf.der().clone());
    (root.pem(), Credentials { chain, key: key.serialize_der() })
}

/// The most that a handshake has used of its stack.
fn stack_used(profile: &Profile, config: &Arc<ClientConfig>, is_known: bool) -> usize {
    let parking = Parking::new(ParkingLimits::default());
    let acceptor = profile.acceptor(&tickets()).deferring(Deferral::ALL, &parking);
    let mut dialogue = Dialogue::new(&acceptor, config, NAME);
    assert_eq!(shake_parked(&mut dialogue).is_ok(), is_known);
    parking.counts().stack_high_water_bytes
}

/// Client certificates are verified on the parent's stack: a chain that is expensive to verify is no danger to the
/// fiber's.
#[test]
fn a_parked_handshake_uses_little_of_its_stack_whatever_the_client_shows() {
    const MORE_MAX: usize = 1024;
    let (root, p521) = p521_chain();
    let mut stage = Stage::new(ClientAuthMode::Required);
    let (known, stranger) = (stage.authority.client(|_| ()), Authority::new("Others").client(|_| ()));
    let path = stage.directory.write("p521.pem", root);
    let at = stage.profile.at;
    stage.auth().ca.push(Trust { path, at });
    let profile = stage.load();
    let anonymous = {
        let mut profile = stage.profile.clone();
        profile.client_auth = None;
        Profile::load(&profile, ALPN).unwrap().0
    };
    for client in [Client::tls12, Client::tls13] {
        let without = stack_used(&anonymous, &showing(client(), None), true);
        assert!(without > 0 && without < PARKING_STACK_BYTES * 3 / 4, "{without} bytes");
        for (credentials, is_known) in [(&p521, true), (&known, true), (&stranger, false)] {
            let used = stack_used(&profile, &showing(client(), Some(credentials)), is_known);
            println!("{used} bytes, {without} without a certificate");
            assert!(used <= without + MORE_MAX, "{used} bytes, {without} without a certificate");
        }
    }
}

/// To the handshake's end, with all of its work done elsewhere.
fn shake_parked(dialogue: &mut Dialogue) -> Result<(), Failure> {
    loop {
        let sent = dialogue.client_bytes();
        let (mut step, mut out) = dialogue.feed(&sent)?;
        while step == Step::Work {
            let outcome = dialogue.session.take_job().unwrap().run();
            let (consumed, next) = dialogue.session.resume(outcome, &mut dialogue.received, &mut out)?;
            dialogue.received.drain(..consumed);
            step = next;
        }
        let refused = dialogue.deliver(&out).is_err();
        match step {
            Step::Done if !refused => return Ok(()),
            _ => assert!(!sent.is_empty() || !out.is_empty(), "nobody has anything to say"),
        }
    }
}

/// A profile's files, which stay as long as it does.
struct Stage {
    directory: Directory,
    authority: Authority,
    profile: TlsProfile,
}

impl Stage {
    fn new(mode: ClientAuthMode) -> Stage {
        let directory = Directory::new();
        let server = directory.write("ec.pem", ec(&[NAME]));
        let authority = Authority::new("Clients");
        let ca = directory.write("ca.pem", &authority.pem);
        let mut profile = tls_profile(&[&server]);
        profile.client_auth = Some(auth(ca, mode));
        Stage { directory, authority, profile }
    }

    fn auth(&mut self) -> &mut ClientAuth {
        self.profile.client_auth.as_mut().unwrap()
    }

    fn crl(&mut self, name: &str, pem: impl AsRef<[u8]>) {
        let path = self.directory.write(name, pem);
        let at = self.profile.at;
        self.auth().crl.push(Trust { path, at });
    }

    fn load(&self) -> Profile {
        Profile::load(&self.profile, ALPN).unwrap_or_else(|findings| panic!("{findings:#?}")).0
    }

    fn acceptor(&self, tickets: &Arc<Tickets>) -> Acceptor {
        self.load().acceptor(tickets)
    }
}

fn tickets() -> Arc<Tickets> {
    Arc::new(Tickets::new())
}

/// A handshake and one exchange: whether it was resumed, and who the client is.
fn visit(acceptor: &Acceptor, config: &Arc<ClientConfig>) -> (bool, Option<Identity>) {
    let mut dialogue = Dialogue::established(acceptor, config);
    assert_eq!(dialogue.upload(b"ping", 100), b"ping");
    assert_eq!(dialogue.download(b"pong"), b"pong");
    let identity = dialogue.session.hello_info().and_then(|hello_info| hello_info.identity.as_deref().cloned());
    (dialogue.session.facts().resumed, identity)
}

/// How a handshake fails, and what the client is told.
fn refused(acceptor: &Acceptor, config: &Arc<ClientConfig>) -> (Failure, AlertDescription) {
    let mut dialogue = Dialogue::new(acceptor, config, NAME);
    for _ in 0..10 {
        let bytes = dialogue.client_bytes();
        dialogue.received.extend_from_slice(&bytes);
        let mut out = Vec::new();
        match dialogue.session.handshake(&mut dialogue.received, &mut out) {
            Ok((consumed, _)) => {
                dialogue.received.drain(..consumed);
                dialogue.deliver(&out).unwrap();
            }
            Err(failure) => {
                assert!(dialogue.session.hello_info().is_some_and(|known| known.identity.is_none()));
                match dialogue.deliver(&out) {
                    Err(Error::AlertReceived(alert)) => return (failure, alert),
                    other => panic!("{failure}, and the client heard {other:?}"),
                }
            }
        }
    }
    panic!("the handshake neither ends nor fails");
}

const CLIENTS: [fn() -> Client; 2] = [Client::tls12, Client::tls13];

#[test]
fn a_verified_client_is_known_by_its_certificate_and_again_when_it_resumes() {
    for client in CLIENTS {
        let mut stage = Stage::new(ClientAuthMode::Required);
        stage.auth().forward = ForwardIdentity::Chain;
        let middle = stage.authority.intermediate("Middle");
        let mut credentials = middle.client(|_| {});
        credentials.chain.push(middle.der.clone());
        let config = showing(client(), Some(&credentials));
        let (profile, tickets) = (stage.load(), tickets());
        let (resumed, identity) = visit(&profile.acceptor(&tickets), &config);
        let identity = identity.expect("the client has shown a certificate");
        assert!(!resumed);
        assert_eq!(&*identity.subject, "CN=client,O=Acme\\, Inc.");
        assert_eq!((&*identity.issuer, &*identity.serial), ("CN=Middle", "0ABC01"));
        let encoded = |der: &CertificateDer<'_>| {
            use base64ct::Encoding;
            format!(":{}:", base64ct::Base64::encode_string(der))
        };
        assert_eq!(identity.certificate.as_deref(), Some(&*encoded(&credentials.chain[0])));
        assert_eq!(identity.chain.as_deref(), Some(&*encoded(&middle.der)));
        let (resumed, again) = visit(&profile.acceptor(&tickets), &config);
        assert!(resumed);
        assert_eq!(again, Some(identity));
    }
}

#[test]
fn who_shows_nothing_is_refused_where_it_is_required_and_unknown_where_it_is_not() {
    for (client, alert) in
        CLIENTS.into_iter().zip([AlertDescription::HandshakeFailure, AlertDescription::CertificateRequired])
    {
        let stage = Stage::new(ClientAuthMode::Required);
        let (failure, told) = refused(&stage.acceptor(&tickets()), &showing(client(), None));
        assert_eq!((failure.reason.label(), told), ("client-certificate-missing", alert));
        let stage = Stage::new(ClientAuthMode::Optional);
        let (acceptor, config) = (stage.acceptor(&tickets()), showing(client(), None));
        assert_eq!(visit(&acceptor, &config), (false, None));
        assert_eq!(visit(&acceptor, &config), (true, None));
    }
}

#[test]
fn each_kind_of_wrong_certificate_has_its_alert_and_its_word() {
    let now = OffsetDateTime::now_utc();
    for client in CLIENTS {
        for mode in [ClientAuthMode::Required, ClientAuthMode::Optional] {
            let mut stage = Stage::new(mode);
            let next = now + Duration::days(1);
            let list = stage.authority.crl(&[&[9]], next);
            stage.crl("crl.pem", list);
            let acceptor = stage.acceptor(&tickets());
            let ours = &stage.authority;
            let (stranger, impostor) = (Authority::new("Others"), Authority::new("Clients"));
            let cases = [
                (stranger.client(|_| {}), "client-certificate-unknown-ca", AlertDescription::UnknownCA),
                (impostor.client(|_| {}), "client-certificate-bad", AlertDescription::DecryptError),
                (
                    ours.client(|params| params.not_after = now - Duration::days(1)),
                    "client-certificate-expired",
                    AlertDescription::CertificateExpired,
                ),
                (
                    ours.client(|params| params.not_before = now + Duration::days(1)),
                    "client-certificate-not-yet-valid",
                    AlertDescription::CertificateExpired,
                ),
                (
                    ours.client(|params| params.serial_number = Some(SerialNumber::from(vec![9_u8]))),
                    "client-certificate-revoked",
                    AlertDescription::CertificateRevoked,
                ),
                (
                    ours.client(|params| params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth]),
                    "client-certificate-purpose",
                    AlertDescription::UnsupportedCertificate,
                ),
                (
                    ours.client(|params| params.distinguished_name.push(DnType::LocalityName, "x".repeat(2000))),
                    "client-certificate-too-large",
                    AlertDescription::CertificateUnknown,
                ),
            ];
            for (credentials, reason, alert) in cases {
                let (failure, told) = refused(&acceptor, &showing(client(), Some(&credentials)));
                assert_eq!((failure.reason.label(), told), (reason, alert), "{}", failure.detail);
            }
            let good = showing(client(), Some(&ours.client(|_| {})));
            assert!(visit(&acceptor, &good).1.is_some());
        }
    }
}

#[test]
fn more_certificates_than_depth_allows_are_refused() {
    let mut stage = Stage::new(ClientAuthMode::Required);
    stage.auth().depth = 0;
    let middle = stage.authority.intermediate("Middle");
    let mut credentials = middle.client(|_| {});
    credentials.chain.push(middle.der.clone());
    let (failure, _) = refused(&stage.acceptor(&tickets()), &showing(Client::tls13(), Some(&credentials)));
    assert_eq!(failure.reason.label(), "client-certificate-too-large");
    let direct = stage.authority.client(|_| {});
    assert!(visit(&stage.acceptor(&tickets()), &showing(Client::tls13(), Some(&direct))).1.is_some());
}

#[test]
fn what_a_missing_or_overdue_list_means_is_the_configurations_to_say() {
    let now = OffsetDateTime::now_utc();
    let mut stage = Stage::new(ClientAuthMode::Required);
    let list = stage.authority.crl(&[], now - Duration::hours(1));
    stage.crl("crl.pem", list);
    let credentials = stage.authority.client(|_| {});
    let config = showing(Client::tls13(), Some(&credentials));
    let (failure, alert) = refused(&stage.acceptor(&tickets()), &config);
    assert_eq!((failure.reason.label(), alert), ("client-certificate-crl-expired", AlertDescription::UnknownCA));
    stage.auth().crl_expired = Leniency::Allow;
    let acceptor = stage.acceptor(&tickets());
    assert!(visit(&acceptor, &config).1.is_some());
    assert!(visit(&acceptor, &config).0, "and a session that began so goes on");

    let mut stage = Stage::new(ClientAuthMode::Required);
    let other = Authority::new("Others").crl(&[], now + Duration::hours(1));
    stage.crl("crl.pem", other);
    let credentials = stage.authority.client(|_| {});
    let config = showing(Client::tls13(), Some(&credentials));
    let (failure, alert) = refused(&stage.acceptor(&tickets()), &config);
    assert_eq!((failure.reason.label(), alert), ("client-certificate-revocation-unknown", AlertDescription::UnknownCA));
    stage.auth().crl_missing = Leniency::Allow;
    assert!(visit(&stage.acceptor(&tickets()), &config).1.is_some());
}

#[test]
fn a_list_may_be_about_the_clients_own_certificate_alone() {
    let mut stage = Stage::new(ClientAuthMode::Required);
    let mut params = authority_params("Middle");
    params.key_usages.push(KeyUsagePurpose::CrlSign);
    let key = key(&PKCS_ECDSA_P256_SHA256);
    let certificate = params.signed_by(&key, &stage.authority.issuer).unwrap();
    let (der, pem) = (certificate.der().clone(), certificate.pem());
    let middle = Authority { der, pem, issuer: Issuer::new(params, key) };
    let list = middle.crl(&[], OffsetDateTime::now_utc() + Duration::days(1));
    stage.crl("crl.pem", list);
    let mut credentials = middle.client(|_| {});
    credentials.chain.push(middle.der.clone());
    let config = showing(Client::tls13(), Some(&credentials));
    assert_eq!(refused(&stage.acceptor(&tickets()), &config).0.reason.label(), "client-certificate-revocation-unknown");
    stage.auth().crl_scope = CrlScope::Leaf;
    assert!(visit(&stage.acceptor(&tickets()), &config).1.is_some());
}

#[test]
fn a_ticket_does_not_outlive_the_rules_it_was_given_under() {
    for client in CLIENTS {
        let tickets = tickets();
        let mut stage = Stage::new(ClientAuthMode::Optional);
        let nobody = showing(client(), None);
        let credentials = stage.authority.client(|_| {});
        let somebody = showing(client(), Some(&credentials));
        let acceptor = stage.acceptor(&tickets);
        assert_eq!(visit(&acceptor, &nobody), (false, None));
        assert!(!visit(&acceptor, &somebody).0);

        // The client that has shown nothing must not come in by its ticket once a certificate is required.
        stage.auth().mode = ClientAuthMode::Required;
        let strict = stage.acceptor(&tickets);
        assert_eq!(refused(&strict, &nobody).0.reason.label(), "client-certificate-missing");
        assert!(!visit(&strict, &somebody).0);
        assert!(visit(&strict, &somebody).0);

        let list = stage.authority.crl(&[SERIAL], OffsetDateTime::now_utc() + Duration::days(1));
        stage.crl("crl.pem", list);
        assert_eq!(refused(&stage.acceptor(&tickets), &somebody).0.reason.label(), "client-certificate-revoked");
    }
}

#[test]
fn a_ticket_does_not_outlive_an_authority_whose_successor_has_its_name() {
    for client in CLIENTS {
        let (tickets, stage) = (tickets(), Stage::new(ClientAuthMode::Required));
        let credentials = stage.authority.client(|_| {});
        let config = showing(client(), Some(&credentials));
        let comes_back = [0; 2].map(|_| visit(&stage.acceptor(&tickets), &config).0);
        assert_eq!(comes_back, [false, true]);
        stage.directory.write("ca.pem", &Authority::new("Clients").pem);
        let (failure, _) = refused(&stage.acceptor(&tickets), &config);
        assert!(failure.reason.label().starts_with("client-certificate-"), "{}", failure.reason.label());
    }
}

#[test]
fn a_ticket_of_a_profile_that_asked_for_nothing_opens_no_door_when_it_asks() {
    for client in CLIENTS {
        let tickets = tickets();
        let mut stage = Stage::new(ClientAuthMode::Required);
        let auth = stage.profile.client_auth.take();
        let nobody = showing(client(), None);
        assert_eq!(visit(&stage.acceptor(&tickets), &nobody), (false, None));
        assert_eq!(visit(&stage.acceptor(&tickets), &nobody), (true, None));
        stage.profile.client_auth = auth;
        assert_eq!(refused(&stage.acceptor(&tickets), &nobody).0.reason.label(), "client-certificate-missing");
    }
}

#[test]
fn a_chain_too_long_for_a_ticket_means_a_whole_handshake_every_time() {
    for client in CLIENTS {
        let stage = Stage::new(ClientAuthMode::Required);
        let credentials = stage.authority.client(|params| {
            params.subject_alt_names =
                (0..200).map(|n| rcgen::SanType::DnsName(format!("{n}.client.example").try_into().unwrap())).collect();
        });
        let config = showing(client(), Some(&credentials));
        let acceptor = stage.acceptor(&tickets());
        for _ in 0..2 {
            let (resumed, identity) = visit(&acceptor, &config);
            assert!(!resumed && identity.is_some());
        }
    }
}

#[test]
fn findings_name_the_file_and_what_to_do() {
    let mut stage = Stage::new(ClientAuthMode::Required);
    let findings = |stage: &Stage| -> Vec<String> {
        let findings = match Profile::load(&stage.profile, ALPN) {
            Ok((_, warnings)) => warnings,
            Err(errors) => errors,
        };
        findings.iter().map(|finding| format!("{}: {}", finding.what, finding.fix)).collect()
    };
    let good = stage.auth().ca[0].path.clone();
    let cases = [
        (stage.directory.0.join("absent.pem"), "there is no such file: "),
        (stage.directory.write("empty.pem", "nothing"), "there is no certificate in this file: "),
        (stage.directory.0.join("ec.pem"), "there is a private key beside the authorities: "),
    ];
    for (path, what) in cases {
        stage.auth().ca[0].path = path;
        assert!(findings(&stage)[0].starts_with(what), "{:?}", findings(&stage));
    }
    stage.auth().ca[0].path = good;
    let overdue = stage.authority.crl(&[], OffsetDateTime::now_utc() - Duration::days(3));
    stage.crl("crl.pem", overdue);
    assert!(findings(&stage)[0].starts_with("the next revocation list was due 3 days ago; every client"));
    stage.auth().crl.clear();
    stage.crl("crl.der", [0x30, 0x03, 1, 2, 3]);
    let found = findings(&stage);
    assert!(found[0].starts_with("this revocation list cannot be used: it is damaged: "), "{found:?}");
}

/// A revocation list as `openssl ca -gencrl` makes it with this configuration of an authority.
fn openssl_crl(stage: &Stage, name: &str, section: &str) -> PathBuf {
    let folder = &stage.directory.0;
    let issuer = &stage.authority.issuer;
    let key = stage.directory.write("ca.key", issuer.key().serialize_pem());
    let serial: String = SERIAL.iter().map(|byte| format!("{byte:02X}")).collect();
    let index =
        stage.directory.write("index.txt", format!("R\t400101000000Z\t250101000000Z\t{serial}\tunknown\t/CN=x\n"));
    stage.directory.write("crlnumber", "01\n");
    let config = format!(
        "[ca]\ndefault_ca = authority\n[authority]\ndatabase = {}\nprivate_key = {}\ncertificate = {}\n\
         default_md = sha256\ndefault_crl_days = 30\n{section}\n[extensions]\nauthorityKeyIdentifier = keyid\n",
        index.display(),
        key.display(),
        folder.join("ca.pem").display()
    );
    let config = stage.directory.write("ca.cnf", config.replace("FOLDER", &folder.display().to_string()));
    let list = folder.join(name);
    let made = std::process::Command::new("openssl")
        .args(["ca", "-gencrl", "-config"])
        .arg(config)
        .arg("-out")
        .arg(&list)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    list
}

#[test]
fn a_list_that_openssl_makes_without_being_told_of_extensions_is_refused_with_the_way_to_a_better_one() {
    let mut stage = Stage::new(ClientAuthMode::Required);
    let list = openssl_crl(&stage, "old.crl", "");
    let at = At { line: 8, column: 7, length: 5 };
    stage.auth().crl.push(Trust { path: list.clone(), at });
    let findings = Profile::load(&stage.profile, ALPN).err().unwrap();
    assert_eq!(findings.len(), 1, "{findings:#?}");
    let found = &findings[0];
    assert_eq!((found.path.as_path(), found.at), (list.as_path(), at));
    assert!(found.what.contains("version 1") && found.fix.contains("`crlnumber`"), "{found:?}");
    // The ways that it names lead there.
    let revoked = stage.authority.client(|_| ());
    for (name, section) in
        [("number.crl", "crlnumber = FOLDER/crlnumber"), ("extensions.crl", "crl_extensions = extensions")]
    {
        let path = openssl_crl(&stage, name, section);
        stage.auth().crl = vec![Trust { path, at }];
        let (failure, alert) = refused(&stage.acceptor(&tickets()), &showing(Client::tls13(), Some(&revoked)));
        assert_eq!(
            (failure.reason.label(), alert),
            ("client-certificate-revoked", AlertDescription::CertificateRevoked),
            "{name}"
        );
    }
}

/// A chain with so many certificates between the client's own and the authority that is known.
fn chain_below(root: &Authority, intermediates: usize) -> Credentials {
    let mut authorities = Vec::new();
    for depth in 0..intermediates {
        let above = authorities.last().unwrap_or(root);
        authorities.push(above.intermediate(&format!("Intermediate {depth}")));
    }
    let mut credentials = authorities.last().unwrap_or(root).client(|_| ());
    credentials.chain.extend(authorities.iter().rev().map(|authority| authority.der.clone()));
    credentials
}

/// Why `depth` ends at 6: a longer chain is not verified, whatever may be sent.
#[test]
fn a_chain_of_six_intermediates_is_verified_and_a_longer_one_is_not() {
    let mut stage = Stage::new(ClientAuthMode::Required);
    stage.auth().depth = 7;
    for client in [Client::tls12, Client::tls13] {
        let acceptor = stage.acceptor(&tickets());
        let (_, identity) = visit(&acceptor, &showing(client(), Some(&chain_below(&stage.authority, 6))));
        assert!(identity.is_some());
        let config = showing(client(), Some(&chain_below(&stage.authority, 7)));
        let mut dialogue = Dialogue::new(&acceptor, &config, NAME);
        let failure = shake_parked(&mut dialogue).unwrap_err();
        assert!(failure.reason.label().starts_with("client-certificate-"), "{failure}");
    }
}

/// In the log a failure is told as a person would say it.
#[test]
fn what_is_wrong_with_a_clients_certificate_is_told_in_words() {
    let stage = Stage::new(ClientAuthMode::Required);
    let acceptor = stage.acceptor(&tickets());
    let as_authority = stage.authority.client(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
    let expired = stage.authority.client(|params| {
        params.not_before = rcgen::date_time_ymd(2019, 1, 1);
        params.not_after = rcgen::date_time_ymd(2020, 2, 29);
    });
    let stranger = Authority::new("Others").client(|_| ());
    for (credentials, reason, detail) in [
        (
            &as_authority,
            "client-certificate-bad",
            "an authority's certificate was shown where somebody's own is wanted",
        ),
        (&expired, "client-certificate-expired", "a certificate expired on 2020-02-29 00:00:00 UTC"),
        (&stranger, "client-certificate-unknown-ca", "the certificate's chain leads to no authority that is trusted"),
    ] {
        let (failure, _) = refused(&acceptor, &showing(Client::tls13(), Some(credentials)));
        assert_eq!((failure.reason.label(), failure.detail.as_str()), (reason, detail));
    }
}

#[test]
fn authorities_and_lists_may_be_folders_and_der() {
    let mut stage = Stage::new(ClientAuthMode::Required);
    let folder = stage.directory.0.join("cas");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("one.pem"), Authority::new("One").pem).unwrap();
    std::fs::write(folder.join("two.pem"), &stage.authority.pem).unwrap();
    stage.auth().ca[0].path = folder;
    let pem = stage.authority.crl(&[SERIAL], OffsetDateTime::now_utc() + Duration::days(1));
    let der = rustls::pki_types::CertificateRevocationListDer::from_pem_slice(pem.as_bytes()).unwrap();
    stage.crl("crl.der", &der[..]);
    let config = showing(Client::tls13(), Some(&stage.authority.client(|_| {})));
    assert_eq!(refused(&stage.acceptor(&tickets()), &config).0.reason.label(), "client-certificate-revoked");
}

#[test]
fn new_authorities_and_lists_are_seen_and_are_a_difference_and_the_same_ones_are_none() {
    let mut stage = Stage::new(ClientAuthMode::Required);
    let next_update = OffsetDateTime::now_utc() + Duration::days(1);
    let list = stage.authority.crl(&[], next_update);
    stage.crl("crl.pem", &list);
    let folder = stage.directory.0.join("cas");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("one.pem"), &stage.authority.pem).unwrap();
    stage.auth().ca[0].path = folder.clone();
    // No file here is so new, seen from then, that it may yet change without looking any different.
    let look = |stage: &Stage| Stamp::take(&stage.profile, SystemTime::now() + std::time::Duration::from_secs(3600));
    let (seen, loaded) = (look(&stage), stage.load());
    assert!(!seen.is_changed(&look(&stage)));

    std::fs::remove_file(stage.directory.0.join("crl.pem")).unwrap();
    stage.directory.write("crl.pem", &list);
    let seen_again = look(&stage);
    assert!(seen.is_changed(&seen_again) && loaded.same_as(&stage.load()));
    stage.directory.write("crl.pem", stage.authority.crl(&[SERIAL], next_update));
    assert!(seen_again.is_changed(&look(&stage)) && !loaded.same_as(&stage.load()));

    let (seen, loaded) = (look(&stage), stage.load());
    std::fs::write(folder.join("two.pem"), Authority::new("Two").pem).unwrap();
    assert!(seen.is_changed(&look(&stage)) && !loaded.same_as(&stage.load()));
}

#[test]
fn names_of_authorities_are_sent_unless_they_are_not_to_be() {
    for send in [true, false] {
        let mut stage = Stage::new(ClientAuthMode::Optional);
        stage.auth().send_ca_names = send;
        #[derive(Debug, Default)]
        struct Hints(std::sync::Mutex<Vec<usize>>);
        impl rustls::client::ResolvesClientCert for Hints {
            fn resolve(
                &self,
                hints: &[&[u8]],
                _: &[rustls::SignatureScheme],
            ) -> Option<Arc<rustls::sign::CertifiedKey>> {
                self.0.lock().unwrap().push(hints.len());
                None
            }
            fn has_certs(&self) -> bool {
                true
            }
        }
        let hints = Arc::new(Hints::default());
        let mut config = Arc::into_inner(Client::tls13().config()).unwrap();
        config.client_auth_cert_resolver = hints.clone();
        assert_eq!(visit(&stage.acceptor(&tickets()), &Arc::new(config)), (false, None));
        assert_eq!(*hints.0.lock().unwrap(), [usize::from(send)]);
    }
}

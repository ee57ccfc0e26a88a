//! TLS to servers, with the library's server at the other end of two byte vectors.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

use common::Directory;
use propylon_config::{At, Backend, BackendTls, Source, TlsPolicy, Trust, parse};
use propylon_tls::{Connector, Step, UpstreamFailure, UpstreamHandshake, UpstreamProfile, UpstreamSession, Version};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion};
use rustls_pki_types::PrivateKeyDer;

type Authority = CertifiedIssuer<'static, KeyPair>;

const AT: At = At { line: 7, column: 1, length: 1 };
const NAME: &str = "app.internal";

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn server_config(
    authority: &Authority,
    params: CertificateParams,
    versions: &[&'static SupportedProtocolVersion],
) -> ServerConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    let mut config = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(versions)
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
        .unwrap();
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new().unwrap();
    config
}

fn named(name: &str) -> CertificateParams {
    CertificateParams::new([name.to_owned()]).unwrap()
}

fn tls(ca: Option<PathBuf>) -> BackendTls {
    BackendTls {
        names: Vec::new(),
        ca: ca.into_iter().map(|path| Trust { path, at: AT }).collect(),
        server_name: Some(NAME.into()),
        sni: true,
        verify: true,
        certificate: None,
        policy: TlsPolicy::Intermediate,
        resume: true,
        at: AT,
        watch: None,
        allow_world_readable_keys: false,
    }
}

fn backend(address: &str) -> Backend {
    let address = if address.contains(':') { address.to_string() } else { format!("{address}:443") };
    let text = format!(
        "[listener.web]\nbind = \"127.0.0.1:80\"\n[backend.app]\nservers = [\"{address}\"]\n[[route]]\nbackend = \"app\"\n"
    );
    let (mut config, _) = parse(&Source { name: "test".into(), base: "".into(), text }).unwrap();
    let mut backend = config.backends.remove(0);
    backend.at = AT;
    backend.servers.iter_mut().for_each(|server| server.at = AT);
    backend
}

fn connector(tls: &BackendTls) -> Connector {
    let (profile, findings) = UpstreamProfile::load(&backend("10.0.0.1:443"), tls, &[b"h2", b"http/1.1"]).unwrap();
    assert_eq!(findings, []);
    profile.connector()
}

/// A session and a server, and what is on its way from the server.
struct Dialogue {
    handshake: UpstreamHandshake,
    /// Once that is over.
    session: Option<UpstreamSession>,
    server: ServerConnection,
    inbox: Vec<u8>,
    /// Bytes that arrive at once.
    pieces: usize,
    ended: bool,
}

impl Dialogue {
    fn new(connector: &Connector, config: &Arc<ServerConfig>, pieces: usize) -> Dialogue {
        let handshake = connector.connect(0).unwrap();
        let server = ServerConnection::new(config.clone()).unwrap();
        Dialogue { handshake, session: None, server, inbox: Vec::new(), pieces, ended: false }
    }

    fn session(&mut self) -> &mut UpstreamSession {
        self.session.as_mut().expect("the handshake is over")
    }

    fn deliver(&mut self, mut bytes: &[u8]) -> Result<(), rustls::Error> {
        while !bytes.is_empty() {
            self.server.read_tls(&mut bytes).unwrap();
            self.server.process_new_packets()?;
        }
        Ok(())
    }

    fn shake(&mut self) -> Result<(), UpstreamFailure> {
        let mut out = Vec::new();
        let (consumed, step) = self.handshake.advance(&mut [], &mut out)?;
        assert_eq!((consumed, step), (0, Step::Write));
        loop {
            let heard = self.deliver(&out);
            out.clear();
            let mut sent = Vec::new();
            while self.server.wants_write() {
                self.server.write_tls(&mut sent).unwrap();
            }
            if sent.is_empty() {
                // A side that still waits then waits for ever.
                panic!("the handshake has stopped: {heard:?}");
            }
            let mut pieces = sent.chunks(self.pieces);
            while let Some(piece) = pieces.next() {
                self.inbox.extend_from_slice(piece);
                let stepped = self.handshake.advance(&mut self.inbox, &mut out);
                let (consumed, step) = stepped.inspect_err(|_| drop(self.deliver(&out)))?;
                self.inbox.drain(..consumed);
                if step == Step::Done {
                    self.session = self.handshake.finish();
                    pieces.for_each(|rest| self.inbox.extend_from_slice(rest));
                    self.deliver(&out).unwrap();
                    return Ok(());
                }
            }
        }
    }

    fn established(connector: &Connector, config: &Arc<ServerConfig>, pieces: usize) -> Dialogue {
        let mut dialogue = Dialogue::new(connector, config, pieces);
        dialogue.shake().unwrap();
        dialogue
    }

    /// Passes all that the server has sent to the session; its answers are delivered.
    fn hear(&mut self) -> Result<Vec<u8>, UpstreamFailure> {
        let mut sent = Vec::new();
        while self.server.wants_write() {
            self.server.write_tls(&mut sent).unwrap();
        }
        let mut plain = Vec::new();
        for piece in [&[][..]].into_iter().chain(sent.chunks(self.pieces)) {
            self.inbox.extend_from_slice(piece);
            let (len, mut out) = (self.inbox.len(), Vec::new());
            let session = self.session.as_mut().expect("the handshake is over");
            let opened = session.open(&mut self.inbox, 0..len, &mut out);
            let _ = self.deliver(&out);
            let opened = opened?;
            plain.extend_from_slice(&self.inbox[..opened.plain]);
            self.inbox.drain(..opened.consumed);
            self.ended |= opened.end;
        }
        Ok(plain)
    }

    fn say(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut out = vec![0; self.session().sealed_len(plain.len())];
        let len = self.session().seal(plain, &mut out);
        self.deliver(&out[..len]).unwrap();
        let mut heard = Vec::new();
        match self.server.reader().read_to_end(&mut heard) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => heard,
            other => panic!("{other:?}"),
        }
    }

    fn works(&mut self) {
        let bytes: Vec<u8> = (0..40_000_u32).map(|n| (n >> 3) as u8).collect();
        assert!(self.say(&bytes[..16_000]) == bytes[..16_000]);
        self.server.writer().write_all(&bytes).unwrap();
        assert!(self.hear().unwrap() == bytes);
    }
}

#[test]
fn data_goes_both_ways_in_both_versions_and_sessions_are_resumed() {
    let (files, authority) = (Directory::new(), authority("CA"));
    let ca = files.write("ca.pem", authority.pem());
    for (version, ours) in [(&TLS12, Version::Tls12), (&TLS13, Version::Tls13)] {
        let config = Arc::new(server_config(&authority, named(NAME), &[version]));
        for pieces in [1, 7, 1000, usize::MAX] {
            let connector = connector(&tls(Some(ca.clone())));
            for count in 0..4 {
                let mut dialogue = Dialogue::established(&connector, &config, pieces);
                assert_eq!(dialogue.server.server_name(), Some(NAME));
                let facts = dialogue.session().facts().unwrap();
                assert_eq!((facts.version, facts.resumed, facts.alpn), (ours, count > 0, None));
                for _ in 0..2 {
                    dialogue.works();
                    dialogue.session().rest();
                }
            }
        }
    }
}

#[test]
fn sessions_are_not_resumed_where_that_is_off_and_tickets_are_used_once() {
    let (files, authority) = (Directory::new(), authority("CA"));
    let mut tls = tls(Some(files.write("ca.pem", authority.pem())));
    let mut config = server_config(&authority, named(NAME), &[&TLS13]);
    config.send_tls13_tickets = 1;
    let config = Arc::new(config);
    let known = connector(&tls);
    Dialogue::established(&known, &config, 9).works();
    // One ticket, two connections at once.
    let resumed = [(); 2].map(|()| Dialogue::established(&known, &config, 9));
    assert_eq!(resumed.map(|mut dialogue| dialogue.session().facts().unwrap().resumed), [true, false]);
    tls.resume = false;
    let forgetful = connector(&tls);
    for _ in 0..2 {
        let mut dialogue = Dialogue::established(&forgetful, &config, 9);
        dialogue.works();
        assert!(!dialogue.session().facts().unwrap().resumed);
    }
}

#[test]
fn a_protocol_is_agreed_on_where_the_server_has_one() {
    let (files, authority) = (Directory::new(), authority("CA"));
    let connector = connector(&tls(Some(files.write("ca.pem", authority.pem()))));
    for (protocols, agreed) in [(&[&b"http/1.1"[..]][..], Some(1)), (&[&b"h2"[..], b"http/1.1"], Some(0)), (&[], None)]
    {
        let mut config = server_config(&authority, named(NAME), &[&TLS13]);
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let mut dialogue = Dialogue::established(&connector, &Arc::new(config), usize::MAX);
        assert_eq!(dialogue.session().facts().unwrap().alpn, agreed);
    }
}

#[test]
fn names_are_sent_as_told() {
    let (files, authority) = (Directory::new(), authority("CA"));
    let ca = files.write("ca.pem", authority.pem());
    let by_address = BackendTls { server_name: None, ..tls(Some(ca.clone())) };
    let unsaid = BackendTls { sni: false, ..tls(Some(ca)) };
    for (tls, name, sent) in [(by_address, "10.0.0.1", None), (unsaid, NAME, None)] {
        let config = Arc::new(server_config(&authority, named(name), &[&TLS13]));
        let dialogue = Dialogue::established(&connector(&tls), &config, usize::MAX);
        assert_eq!(dialogue.server.server_name(), sent);
    }
}

#[test]
fn a_certificate_that_will_not_do_ends_the_handshake_and_the_server_is_told_why() {
    let (files, authority) = (Directory::new(), authority("CA"));
    let stranger = self::authority("stranger");
    let ca = files.write("ca.pem", authority.pem());
    let connector = connector(&tls(Some(ca)));
    let dated = |from, to| {
        let mut params = named(NAME);
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(to, 1, 1));
        params
    };
    for version in [&TLS12, &TLS13] {
        for (issuer, params, reason) in [
            (&stranger, named(NAME), "certificate-untrusted"),
            (&authority, named("other.internal"), "certificate-name-mismatch"),
            (&authority, dated(2001, 2002), "certificate-expired"),
            (&authority, dated(2091, 2092), "certificate-not-yet-valid"),
        ] {
            let config = Arc::new(server_config(issuer, params, &[version]));
            let mut dialogue = Dialogue::new(&connector, &config, 100);
            let failure = dialogue.shake().unwrap_err();
            assert_eq!(failure.reason.label(), reason, "{failure}");
            let told = dialogue.server.process_new_packets();
            assert!(matches!(told, Err(rustls::Error::AlertReceived(_))), "{reason}: {told:?}");
            assert!(dialogue.session.is_none() && dialogue.handshake.advance(&mut [], &mut Vec::new()).is_err());
        }
    }
}

#[test]
fn without_verification_every_certificate_will_do() {
    let stranger = authority("stranger");
    let connector = connector(&BackendTls { verify: false, ..tls(None) });
    for version in [&TLS12, &TLS13] {
        let config = Arc::new(server_config(&stranger, named("other.internal"), &[version]));
        Dialogue::established(&connector, &config, 1000).works();
    }
}

#[test]
fn a_server_that_asks_is_shown_our_certificate() {
    let (files, authority) = (Directory::new(), authority("CA"));
    let ca = files.write("ca.pem", authority.pem());
    for algorithm in [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ED25519, &rcgen::PKCS_RSA_SHA256] {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let certificate = named("engine").signed_by(&key, &authority).unwrap();
        let path = files.write("engine.pem", certificate.pem() + &key.serialize_pem());
        let tls = BackendTls { certificate: Some(Trust { path, at: AT }), ..tls(Some(ca.clone())) };
        let connector = connector(&tls);
        for version in [&TLS12, &TLS13] {
            let config = Arc::new(server_config(&authority, named(NAME), &[version]));
            for pieces in [3, usize::MAX] {
                let mut dialogue = Dialogue::established(&connector, &config, pieces);
                assert_eq!(dialogue.server.peer_certificates().unwrap(), [certificate.der().clone()]);
                dialogue.works();
            }
        }
    }
}

#[test]
fn key_updates_are_followed_and_answered() {
    let (files, authority) = (Directory::new(), authority("CA"));
    let connector = connector(&tls(Some(files.write("ca.pem", authority.pem()))));
    let config = Arc::new(server_config(&authority, named(NAME), &[&TLS13]));
    let mut dialogue = Dialogue::established(&connector, &config, 11);
    for _ in 0..5 {
        dialogue.server.refresh_traffic_keys().unwrap();
        dialogue.works();
    }
}

#[test]
fn tickets_in_many_records_are_tickets() {
    let (files, authority) = (Directory::new(), authority("CA"));
    let connector = connector(&tls(Some(files.write("ca.pem", authority.pem()))));
    let mut config = server_config(&authority, named(NAME), &[&TLS13]);
    config.max_fragment_size = Some(64);
    config.send_tls13_tickets = 3;
    let config = Arc::new(config);
    for resumed in [false, true, true] {
        let mut dialogue = Dialogue::established(&connector, &config, 50);
        assert_eq!(dialogue.session().facts().unwrap().resumed, resumed);
        assert_eq!(dialogue.hear().unwrap(), b"");
        dialogue.server.writer().write_all(b"short").unwrap();
        assert_eq!(dialogue.hear().unwrap(), b"short");
    }
}

#[test]
fn ends_are_announced_both_ways() {
    let (files, authority) = (Directory::new(), authority("CA"));
    let connector = connector(&tls(Some(files.write("ca.pem", authority.pem()))));
    for version in [&TLS12, &TLS13] {
        let config = Arc::new(server_config(&authority, named(NAME), &[version]));
        let mut dialogue = Dialogue::established(&connector, &config, usize::MAX);
        let mut out = Vec::new();
        dialogue.session().close(&mut out);
        dialogue.deliver(&out).unwrap();
        assert!(dialogue.server.process_new_packets().unwrap().peer_has_closed());
        assert_eq!(dialogue.session().seal(b"more", &mut [0; 100]), 0);
        dialogue.server.writer().write_all(b"the last").unwrap();
        dialogue.server.send_close_notify();
        assert_eq!(dialogue.hear().unwrap(), b"the last");
        assert!(dialogue.ended);
    }
}

#[test]
fn what_is_no_tls_or_an_alert_has_its_own_reason() {
    let (files, authority) = (Directory::new(), authority("CA"));
    let connector = connector(&tls(Some(files.write("ca.pem", authority.pem()))));
    for (bytes, reason) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "tls-not-spoken"),
        (b"SSH-2.0-x\r\n", "tls-not-spoken"),
        (&[21, 3, 3, 0, 2, 2, 40], "tls-alert"),
        (&[21, 3, 3, 0, 2, 1, 0], "tls-handshake-failed"),
        (&[22, 3, 3, 0, 4, 1, 0, 0, 0], "tls-handshake-failed"),
        (&[22, 3, 3, 255, 255], "tls-handshake-failed"),
    ] {
        let mut session = connector.connect(0).unwrap();
        session.advance(&mut [], &mut Vec::new()).unwrap();
        let failure = session.advance(&mut bytes.to_vec(), &mut Vec::new()).unwrap_err();
        assert_eq!(failure.reason.label(), reason, "{failure}");
        assert!(!failure.advice().is_empty());
    }
}

#[test]
fn damaged_flights_never_panic_and_never_pass() {
    let (files, authority) = (Directory::new(), authority("CA"));
    let connector = connector(&tls(Some(files.write("ca.pem", authority.pem()))));
    let mut random = fastrand::Rng::with_seed(22);
    for round in 0..400 {
        let version = if round % 2 == 0 { &TLS12 } else { &TLS13 };
        let config = Arc::new(server_config(&authority, named(NAME), &[version]));
        let mut dialogue = Dialogue::new(&connector, &config, usize::MAX);
        let mut out = Vec::new();
        dialogue.handshake.advance(&mut [], &mut out).unwrap();
        dialogue.deliver(&out).unwrap();
        let mut flight = Vec::new();
        while dialogue.server.wants_write() {
            dialogue.server.write_tls(&mut flight).unwrap();
        }
        // The header of the first record and the change of ciphers behind it are not authenticated in TLS 1.3.
        let first = 5 + usize::from(u16::from_be_bytes([flight[3], flight[4]]));
        let covered: Vec<usize> = (5..first).chain(first + 6..flight.len()).collect();
        let at = covered[random.usize(..covered.len())];
        match random.bool() {
            true => flight[at] ^= 1 << random.u8(..8),
            false => flight.truncate(at),
        }
        out.clear();
        let stepped = dialogue.handshake.advance(&mut flight, &mut out);
        // The first flight of TLS 1.2 ends nothing by itself; the server notices a change at the next.
        assert!(!matches!(stepped, Ok((_, Step::Done))), "round {round}");
    }
}

#[test]
fn what_is_wrong_with_files_and_names_is_told_where_it_is_written() {
    let (files, authority) = (Directory::new(), authority("CA"));
    let ca = files.write("ca.pem", authority.pem());
    let key = KeyPair::generate().unwrap();
    let certificate = named("engine").signed_by(&key, &authority).unwrap();
    let trust = |path| Some(Trust { path, at: AT });
    let lone = files.write("lone.pem", certificate.pem());
    let other = files.write("other.pem", certificate.pem() + &KeyPair::generate().unwrap().serialize_pem());
    let good = tls(Some(ca));
    for (tls, part) in [
        (tls(Some(files.0.join("absent.pem"))), "absent.pem"),
        (tls(Some(files.write("empty.pem", ""))), "no certificate in this file"),
        (BackendTls { certificate: trust(lone), ..good.clone() }, "no private key"),
        (BackendTls { certificate: trust(other), ..good.clone() }, "key"),
        (BackendTls { server_name: Some("a_b..c".into()), ..good }, "no certificate can be for the name"),
    ] {
        let findings = UpstreamProfile::load(&backend("10.0.0.1:443"), &tls, &[]).unwrap_err();
        let text = format!("{findings:?}");
        assert!(findings.iter().all(|finding| finding.at == AT) && text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_profile_is_told_from_another_by_what_its_files_hold() {
    let (files, one) = (Directory::new(), authority("CA"));
    let other = authority("CA");
    let load = |text: String| {
        let tls = tls(Some(files.write("ca.pem", text)));
        UpstreamProfile::load(&backend("10.0.0.1:443"), &tls, &[]).unwrap().0
    };
    let first = load(one.pem());
    assert!(load(one.pem()).same_as(&first));
    assert!(!load(other.pem()).same_as(&first));
}

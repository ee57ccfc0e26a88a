//! Links to key servers, and certificates whose keys are there.

mod common;

use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use common::{ALPN, Directory, ec, load, rsa, tls_profile};
use propylon_config::{At, ServerAddress, Signer, SignerId, SignerServer, Trust, Verify};
use propylon_tls::{Link, LinkProfile, Profile, Severity};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion};
use rustls_pki_types::PrivateKeyDer;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    authority_named("engines")
}

fn authority_named(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

fn identity(authority: &Authority, name: &str) -> (rcgen::Certificate, KeyPair) {
    let key = KeyPair::generate().unwrap();
    (CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, authority).unwrap(), key)
}

fn signer(files: &Directory, authority: &Authority, server_name: Option<&str>) -> Signer {
    let (certificate, key) = identity(authority, "engine");
    let at = At { line: 1, column: 1, length: 1 };
    let trust = |name: &str, text: &str| Trust { path: files.write(name, text), at };
    Signer {
        id: propylon_config::SignerId(0),
        name: "vault".into(),
        servers: vec![SignerServer {
            address: ServerAddress::Ip("127.0.0.1:2407".parse().unwrap()),
            server_name: server_name.map(str::to_owned),
            at,
        }],
        identity: trust("engine.pem", &(certificate.pem() + &key.serialize_pem())),
        ca: trust("ca.pem", &authority.pem()),
        timeout: std::time::Duration::from_secs(1),
        connections: 2,
        hedge: None,
        resolve_interval: std::time::Duration::from_secs(30),
        watch: None,
        allow_world_readable_keys: false,
        verify: Verify::Rsa,
        at,
    }
}

fn server(authority: &Authority, name: &str, version: &'static SupportedProtocolVersion) -> ServerConnection {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
    let (certificate, key) = identity(authority, name);
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
        .unwrap();
    ServerConnection::new(Arc::new(config)).unwrap()
}

/// Lets both talk, a few bytes at a time, until neither has anything to say; what the link has heard, or why it ended.
fn talk(link: &mut Link, server: &mut ServerConnection, pieces: usize) -> Result<(Vec<u8>, bool), String> {
    let (mut plain, mut ended) = (Vec::new(), false);
    loop {
        let mut out = Vec::new();
        link.send(&mut out).map_err(|error| error.to_string())?;
        let mut rest = out.as_slice();
        while !rest.is_empty() {
            server.read_tls(&mut rest).unwrap();
            server.process_new_packets().map_err(|error| error.to_string())?;
        }
        let mut back = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut back).unwrap();
        }
        if out.is_empty() && back.is_empty() {
            return Ok((plain, ended));
        }
        for piece in back.chunks(pieces) {
            ended |= link.receive(piece, &mut plain).map_err(|error| error.to_string())?;
        }
    }
}

#[test]
fn a_link_speaks_both_versions_with_a_verified_server_that_verifies_it() {
    let files = Directory::new();
    let authority = authority();
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        for pieces in [1, 100, usize::MAX] {
            let (profile, findings) = LinkProfile::load(&signer(&files, &authority, Some("keys.test"))).unwrap();
            assert_eq!(findings, []);
            let mut link = profile.link(0, None).unwrap();
            let mut server = server(&authority, "keys.test", version);
            talk(&mut link, &mut server, pieces).unwrap();
            assert!(link.is_established() && !server.is_handshaking());
            assert_eq!(server.peer_certificates().map(<[_]>::len), Some(1));

            let question = vec![7; 100_000];
            let mut sealed = Vec::new();
            link.seal(&question, &mut sealed).unwrap();
            assert!(sealed.len() < question.len() + 7 * 40, "seven records");
            let mut heard = Vec::new();
            let mut rest = sealed.as_slice();
            while !rest.is_empty() {
                server.read_tls(&mut rest).unwrap();
                server.process_new_packets().unwrap();
                let _ = server.reader().read_to_end(&mut heard);
            }
            assert_eq!(heard, question);

            server.writer().write_all(b"an answer").unwrap();
            server.send_close_notify();
            assert_eq!(talk(&mut link, &mut server, pieces), Ok((b"an answer".to_vec(), true)));
        }
    }
}

#[test]
fn a_server_of_another_name_or_authority_is_refused() {
    let files = Directory::new();
    let (ours, theirs) = (authority(), authority_named("strangers"));
    // Without a name it is the address that has to be in the certificate.
    for (issuer, name, expected) in [
        (&ours, Some("other.test"), "not for other.test, only for keys.test"),
        (&ours, None, "not for "),
        (&theirs, Some("keys.test"), "leads to no authority that is trusted"),
    ] {
        let (profile, _) = LinkProfile::load(&signer(&files, &ours, name)).unwrap();
        let mut link = profile.link(0, None).unwrap();
        let mut server = server(issuer, "keys.test", &rustls::version::TLS13);
        let error = talk(&mut link, &mut server, usize::MAX).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn what_is_no_record_ends_the_link() {
    let files = Directory::new();
    let (profile, _) = LinkProfile::load(&signer(&files, &authority(), Some("keys.test"))).unwrap();
    let mut link = profile.link(0, None).unwrap();
    assert!(link.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n", &mut Vec::new()).is_err());
}

#[test]
fn an_identity_without_its_key_and_an_authority_that_is_none_are_found() {
    let files = Directory::new();
    let authority = authority();
    let mut signer = signer(&files, &authority, Some("keys.test"));
    signer.identity.path = files.write("chain.pem", authority.pem());
    signer.ca.path = files.write("empty.pem", "");
    let whats: Vec<String> = LinkProfile::load(&signer).unwrap_err().into_iter().map(|finding| finding.what).collect();
    assert_eq!(whats, ["there is no certificate in this file", "there is no private key in this file"]);
}

fn without_key(pem: &str) -> String {
    pem[..pem.find("-----BEGIN PRIVATE KEY").unwrap()].to_owned()
}

#[test]
fn with_a_signer_a_chain_may_come_without_its_key() {
    let files = Directory::new();
    let remote = files.write("remote.pem", without_key(&ec(&["shop.example"])));
    let local = files.write("local.pem", rsa(&["shop.example"]));
    let paths: [&Path; 2] = [&remote, &local];
    let mut profile = tls_profile(&paths);
    let findings = Profile::load(&profile, ALPN).unwrap_err();
    assert_eq!(findings.len(), 1);
    assert!(findings[0].fix.contains("signer"), "{findings:?}");
    profile.signer = Some(SignerId(0));
    assert_eq!(load(&profile).remote_keys(), 1);
}

#[test]
fn a_signer_that_no_certificate_needs_is_a_warning() {
    let files = Directory::new();
    let local = files.write("local.pem", ec(&["shop.example"]));
    let mut profile = tls_profile(&[&local]);
    profile.signer = Some(SignerId(0));
    let (_, findings) = Profile::load(&profile, ALPN).unwrap();
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].severity, Severity::Warning);
    assert!(findings[0].what.contains("has a signer"), "{findings:?}");
}

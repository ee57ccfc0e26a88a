//! Parked handshakes with remote keys and with client certificates, set up with the library's own types.

use propylon_config::{ForwardIdentity, TlsPolicy};
use std::io::Read;
use std::rc::Rc;
use std::sync::Arc;

use propylon_crypto::{Job, JobError, Key, KeyKind, Outcome, PrivateKey, RemoteKey};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, SignatureAlgorithm};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
    SupportedProtocolVersion, version,
};

use crate::handshake::Handshake;
use crate::handshake::step::Step;
use crate::parking::{Deferral, JobRouting, Parking, ParkingLimits};
use crate::provider;
use crate::provider::captured::SecretsLog;
use crate::provider::signing::CertificateKey;
use crate::session::Session;

/// Checks signatures, and trusts every certificate.
#[derive(Debug)]
struct TrustAll;

fn verify(
    tls13: bool,
    message: &[u8],
    cert: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let algorithms = aws_lc_rs::default_provider().signature_verification_algorithms;
    match tls13 {
        true => rustls::crypto::verify_tls13_signature(message, cert, dss, &algorithms),
        false => rustls::crypto::verify_tls12_signature(message, cert, dss, &algorithms),
    }
}

fn schemes() -> Vec<SignatureScheme> {
    aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
}

impl ServerCertVerifier for TrustAll {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(false, message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(true, message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}

impl ClientCertVerifier for TrustAll {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(false, message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify(true, message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}

/// A key, as it is here and as it is when somebody else holds it, and its certificate.
struct Identity {
    local: PrivateKey,
    remote: RemoteKey,
    certificate: CertificateDer<'static>,
}

impl Identity {
    fn new(algorithm: &'static SignatureAlgorithm) -> Identity {
        let pair = KeyPair::generate_for(algorithm).unwrap();
        let certificate = CertificateParams::new(vec!["shop.example".into()]).unwrap().self_signed(&pair).unwrap();
        let local = PrivateKey::from_der(pair.serialized_der()).unwrap();
        let remote = RemoteKey::new(3, local.public_info()).expect("a public key");
        Identity { local, remote, certificate: certificate.der().clone() }
    }

    /// Signs as a key server does.
    fn answer(&self, job: Job) -> Outcome {
        match job {
            Job::Remote { key, scheme, input } => {
                assert_eq!((key.signer, key.ski), (3, self.local.ski()));
                self.local.job(scheme, &input).unwrap().run()
            }
            here => here.run(),
        }
    }
}

fn server(key: Key, certificate: &CertificateDer<'static>, client_certificates: bool) -> Arc<ServerConfig> {
    let key = CertifiedKey::new(vec![certificate.clone()], Arc::new(CertificateKey::new(key)));
    let builder = ServerConfig::builder_with_provider(Arc::new(provider::provider(&TlsPolicy::Intermediate)))
        .with_protocol_versions(&[&version::TLS13, &version::TLS12])
        .unwrap();
    let builder = match client_certificates {
        true => builder.with_client_cert_verifier(Arc::new(TrustAll)),
        false => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(SecretsLog);
    Arc::new(config)
}

fn client(versions: &[&'static SupportedProtocolVersion], identity: bool) -> ClientConnection {
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(TrustAll));
    let config = match identity {
        false => builder.with_no_client_auth(),
        true => {
            let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
            let certificate = CertificateParams::new(vec!["client".into()]).unwrap().self_signed(&pair).unwrap();
            let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(pair.serialized_der().to_vec()));
            builder.with_client_auth_cert(vec![certificate.der().clone()], key).unwrap()
        }
    };
    ClientConnection::new(Arc::new(config), ServerName::try_from("shop.example").unwrap()).unwrap()
}

/// A handshake, its jobs done by `answer`; how many there were, and how it ended.
struct Talk {
    session: Session,
    client: ClientConnection,
    received: Vec<u8>,
    job: Option<Job>,
    done: bool,
}

impl Talk {
    fn new(config: &Arc<ServerConfig>, routing: &JobRouting, client: ClientConnection) -> Talk {
        let session =
            Session::new(Handshake::new(config, Some(routing.clone()), ForwardIdentity::Nothing, false, false));
        Talk { session, client, received: Vec::new(), job: None, done: false }
    }

    fn step(&mut self, answer: impl FnOnce(Job) -> Outcome) -> Result<(), crate::Failure> {
        let mut out = Vec::new();
        let progress = match self.job.take() {
            Some(job) => self.session.resume(answer(job), &mut self.received, &mut out),
            None => {
                while self.client.wants_write() {
                    self.client.write_tls(&mut self.received).unwrap();
                }
                self.session.handshake(&mut self.received, &mut out)
            }
        };
        if let Ok((consumed, step)) = &progress {
            self.received.drain(..*consumed);
            self.job = self.session.take_job();
            self.done = *step == Step::Done;
        }
        let mut bytes = out.as_slice();
        while !bytes.is_empty() {
            self.client.read_tls(&mut bytes).unwrap();
            let _ = self.client.process_new_packets();
            let _ = self.client.reader().read_to_end(&mut Vec::new()); // ends with WouldBlock
        }
        progress.map(|_| ())
    }

    fn finish(&mut self, identity: &Identity) {
        while !self.done {
            self.step(|job| identity.answer(job)).unwrap();
        }
        assert!(!self.client.is_handshaking());
    }
}

fn routing(deferral: Deferral, limits: ParkingLimits) -> (JobRouting, Rc<Parking>) {
    let parking = Parking::new(limits);
    (JobRouting { deferral, parking: parking.clone(), remote: false }, parking)
}

const VERSIONS: [&[&SupportedProtocolVersion]; 2] = [&[&version::TLS12], &[&version::TLS13]];

#[test]
fn a_key_that_is_elsewhere_signs_for_both_versions() {
    let algorithms =
        [&PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ECDSA_P521_SHA512, &rcgen::PKCS_ED25519];
    for algorithm in algorithms {
        let identity = Identity::new(algorithm);
        let config = server(Key::Remote(identity.remote.clone()), &identity.certificate, false);
        let (routing, parking) = routing(Deferral::default(), ParkingLimits::default());
        for versions in VERSIONS {
            Talk::new(&config, &routing, client(versions, false)).finish(&identity);
        }
        let counts = parking.counts();
        assert_eq!(counts.parked, [0, 0, 0, 0, 2], "{algorithm:?}");
        assert_eq!((counts.remote, counts.stacks, counts.stacks_idle), (0, 1, 1));
    }
    assert!(matches!(Identity::new(&PKCS_ECDSA_P256_SHA256).remote.kind, KeyKind::P256));
}

#[test]
fn clients_with_certificates_are_parked_and_known() {
    let identity = Identity::new(&PKCS_ECDSA_P256_SHA256);
    let config = server(Key::Local(identity.local.clone()), &identity.certificate, true);
    let (routing, parking) = routing(Deferral::ALL, ParkingLimits::default());
    for versions in VERSIONS {
        let mut talk = Talk::new(&config, &routing, client(versions, true));
        talk.finish(&identity);
        let mut stranger = Talk::new(&config, &routing, client(versions, false));
        let failure = loop {
            if let Err(failure) = stranger.step(Job::run) {
                break failure;
            }
        };
        assert!(!stranger.done, "{failure}");
    }
    let counts = parking.counts();
    assert_eq!((counts.local, counts.stacks), (0, counts.stacks_idle));
}

#[test]
fn at_its_bound_remote_work_fails_at_once_and_local_work_of_others_goes_on() {
    let identity = Identity::new(&PKCS_ECDSA_P256_SHA256);
    let remote = server(Key::Remote(identity.remote.clone()), &identity.certificate, false);
    let (routing, parking) = routing(Deferral::default(), ParkingLimits { local: 0, remote: 2 });
    let park = |talk: &mut Talk| {
        while talk.job.is_none() {
            talk.step(Job::run)?;
        }
        Ok::<(), crate::Failure>(())
    };
    let mut parked: Vec<Talk> = (0..2).map(|_| Talk::new(&remote, &routing, client(VERSIONS[1], false))).collect();
    parked.iter_mut().for_each(|talk| park(talk).unwrap());
    let mut third = Talk::new(&remote, &routing, client(VERSIONS[1], false));
    assert_eq!(park(&mut third).unwrap_err().reason.label(), "busy");
    assert_eq!(third.client.process_new_packets().unwrap_err(), Error::AlertReceived(80.into()));
    assert_eq!((parking.counts().remote, parking.counts().refused), (2, 1));
    let local = server(Key::Local(identity.local.clone()), &identity.certificate, false);
    Talk::new(&local, &routing, client(VERSIONS[1], false)).finish(&identity);
    parked[0].finish(&identity);
    let mut fourth = Talk::new(&remote, &routing, client(VERSIONS[0], false));
    park(&mut fourth).unwrap();
    drop((parked, third, fourth));
    let counts = parking.counts();
    assert_eq!((counts.remote, counts.stacks, counts.cancelled), (0, counts.stacks_idle, 2));
}

#[test]
fn without_room_for_parking_a_remote_key_signs_nothing() {
    let identity = Identity::new(&PKCS_ECDSA_P256_SHA256);
    let config = server(Key::Remote(identity.remote.clone()), &identity.certificate, false);
    let mut session = Session::new(Handshake::new(&config, None, ForwardIdentity::Nothing, false, false));
    let mut hello = Vec::new();
    client(VERSIONS[1], false).write_tls(&mut hello).unwrap();
    let mut out = Vec::new();
    assert_eq!(session.handshake(&mut hello, &mut out).unwrap_err().reason.label(), "signer-unavailable");
    assert_eq!(out, [21, 3, 3, 0, 2, 2, 80]);
    assert_eq!(session.resume(Err(JobError::Refused), &mut hello, &mut out).unwrap_err().reason.label(), "over");
}

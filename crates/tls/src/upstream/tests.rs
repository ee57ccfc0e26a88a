//! Handshakes with servers that want a certificate whose key somebody else holds.

use std::rc::Rc;
use std::sync::Arc;

use propylon_config::{At, BackendTls, TlsPolicy};
use propylon_crypto::{Job, JobError, Key, Outcome, PrivateKey, RemoteKey, Ski};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256,
    PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256, SignatureAlgorithm,
};
use rustls::crypto::SupportedKxGroup;
use rustls::crypto::aws_lc_rs::{default_provider, kx_group};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::SigningKey;
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, ServerConnection, SupportedProtocolVersion};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::{Connector, UpstreamFailure, UpstreamHandshake, UpstreamProfile, trust};
use crate::certificates::load::Upstream;
use crate::handshake::step::Step;
use crate::parking::{Parking, ParkingLimits};
use crate::provider::signing::CertificateKey;

pub(crate) const NAME: &str = "keys.test";

pub(crate) const KINDS: [&SignatureAlgorithm; 4] =
    [&PKCS_RSA_SHA256, &PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ED25519];

/// Has a key that an engine shows a certificate of.
pub(crate) struct Holder {
    authority: CertifiedIssuer<'static, KeyPair>,
    key: PrivateKey,
    remote: RemoteKey,
    chain: Vec<CertificateDer<'static>>,
}

impl Holder {
    pub fn new(kind: &'static SignatureAlgorithm) -> Holder {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let own = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).expect("a key");
        let authority = CertifiedIssuer::self_signed(params, own).expect("an authority");
        let pair = KeyPair::generate_for(kind).expect("a key");
        let certificate = CertificateParams::new(["engine".to_owned()]).expect("a name").signed_by(&pair, &authority);
        let key = PrivateKey::from_der(&pair.serialize_der()).expect("a key");
        let remote = RemoteKey::new(RemoteKey::KEY_PROCESS, key.public_info()).expect("a key");
        let chain = vec![certificate.expect("a certificate").der().clone()];
        Holder { authority, key, remote, chain }
    }

    pub fn authority(&self) -> CertificateDer<'static> {
        self.authority.der().clone()
    }

    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        self.chain.clone()
    }

    pub fn ski(&self) -> Ski {
        self.remote.ski
    }

    pub fn signing_key(&self) -> Arc<dyn SigningKey> {
        Arc::new(CertificateKey::new(Key::Remote(self.remote.clone())))
    }

    pub fn sign(&self, job: Job) -> Outcome {
        let Job::Remote { key, scheme, input } = job else { panic!("work of another kind is done on the spot") };
        assert_eq!(key, self.remote);
        self.key.job(scheme, &input).expect("a scheme of its").run()
    }

    fn connector(&self) -> Connector {
        let at = At { line: 1, column: 1, length: 1 };
        let tls = BackendTls {
            ca: Vec::new(),
            server_name: None,
            names: Vec::new(),
            sni: true,
            verify: true,
            certificate: None,
            policy: TlsPolicy::Intermediate,
            resume: false,
            at,
            watch: None,
            allow_world_readable_keys: false,
        };
        let mut roots = RootCertStore::empty();
        roots.add(self.authority()).expect("an authority");
        let (chain, key_process_ski) = (self.chain(), Some(self.ski()));
        let loaded =
            Upstream { roots, chain: chain.clone(), key: Some(self.signing_key()), key_process_ski, dated: None };
        let config = trust::config(&tls, loaded).expect("a configuration");
        let names = vec![NAME.try_into().expect("a name")];
        UpstreamProfile {
            config,
            names,
            accepted: Vec::new(),
            resume: false,
            roots: Vec::new(),
            chain,
            origin: Arc::default(),
            identity: None,
            key_process_ski,
        }
        .connector()
    }
}

/// A server that wants a certificate of the holder's authority.
pub(crate) fn demanding(holder: &Holder, version: &'static SupportedProtocolVersion) -> Arc<ServerConfig> {
    demanding_by(holder, version, default_provider().kx_groups)
}

fn demanding_by(
    holder: &Holder,
    version: &'static SupportedProtocolVersion,
    kx_groups: Vec<&'static dyn SupportedKxGroup>,
) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::CryptoProvider { kx_groups, ..default_provider() });
    let mut roots = RootCertStore::empty();
    roots.add(holder.authority()).expect("an authority");
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    let key = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).expect("a key");
    let certificate = CertificateParams::new([NAME.to_owned()]).expect("a name").signed_by(&key, &holder.authority);
    let chain = vec![certificate.expect("a certificate").der().clone()];
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .expect("a version")
        .with_client_cert_verifier(clients.expect("a verifier"))
        .with_single_cert(chain, PrivateKeyDer::Pkcs8(key.serialize_der().into()));
    Arc::new(config.expect("a certificate"))
}

pub(crate) fn server(config: &Arc<ServerConfig>) -> ServerConnection {
    ServerConnection::new(config.clone()).expect("a connection")
}

fn room(remote: usize) -> Rc<Parking> {
    Parking::new(ParkingLimits { local: 0, remote })
}

/// A handshake and its server, in steps.
struct Dialogue {
    handshake: UpstreamHandshake,
    server: ServerConnection,
    inbox: Vec<u8>,
    /// Bytes that arrive at once.
    pieces: usize,
    jobs: usize,
}

impl Dialogue {
    fn new(connector: &Connector, config: &Arc<ServerConfig>, pieces: usize) -> Dialogue {
        let handshake = connector.connect(0).expect("a handshake");
        Dialogue { handshake, server: server(config), inbox: Vec::new(), pieces, jobs: 0 }
    }

    /// To its end; `answer` does the jobs, and whatever comes meanwhile waits in the buffer.
    fn run(&mut self, mut answer: impl FnMut(Job) -> Outcome) -> Result<(), UpstreamFailure> {
        let mut out = Vec::new();
        let mut step = self.handshake.advance(&mut [], &mut out)?.1;
        let mut sent: Vec<u8> = Vec::new();
        loop {
            let mut rest = out.as_slice();
            while !rest.is_empty() {
                self.server.read_tls(&mut rest).expect("bytes");
                self.server.process_new_packets().expect("a good client");
            }
            out.clear();
            while self.server.wants_write() {
                self.server.write_tls(&mut sent).expect("bytes");
            }
            if step == Step::Done {
                return Ok(());
            }
            assert!(!sent.is_empty() || step == Step::Work, "nobody has anything to say");
            let now = self.pieces.min(sent.len());
            self.inbox.extend(sent.drain(..now));
            let consumed;
            (consumed, step) = match self.handshake.take_job() {
                Some(job) => {
                    self.jobs += 1;
                    let outcome = answer(job);
                    self.handshake.resume(outcome, &mut self.inbox, &mut out)?
                }
                None => self.handshake.advance(&mut self.inbox, &mut out)?,
            };
            self.inbox.drain(..consumed);
        }
    }
}

#[test]
fn a_handshake_waits_for_the_signature_of_what_is_shown_and_leaves_nothing_behind() {
    let groups: [&'static dyn SupportedKxGroup; 4] =
        [kx_group::X25519, kx_group::X25519MLKEM768, kx_group::SECP256R1, kx_group::SECP384R1];
    for kind in KINDS {
        let (holder, room) = (Holder::new(kind), room(1));
        let connector = holder.connector().deferring(&room);
        for version in [&TLS12, &TLS13] {
            // Another group than the first takes another round.
            let usable = groups.into_iter().filter(|group| group.usable_for_version(version.version));
            for group in usable {
                let config = demanding_by(&holder, version, vec![group]);
                for pieces in [1, 100, usize::MAX] {
                    let mut dialogue = Dialogue::new(&connector, &config, pieces);
                    let signed = |job| {
                        assert_eq!(room.counts().remote, 1);
                        holder.sign(job)
                    };
                    dialogue.run(signed).expect("a handshake");
                    assert_eq!((dialogue.jobs, room.counts().remote), (1, 0));
                    assert!(!dialogue.server.is_handshaking() && dialogue.server.peer_certificates().is_some());
                    let session = dialogue.handshake.finish().expect("a session");
                    assert!(session.facts().is_some() && dialogue.handshake.finish().is_none());
                }
            }
        }
        let counts = room.counts();
        assert_eq!((counts.stacks, counts.stacks_idle, counts.cancelled), (1, 1, 0));
        assert!(counts.stack_high_water_bytes < crate::PARKING_STACK_BYTES * 3 / 4, "{counts:?}");
    }
}

#[test]
fn without_a_signature_a_handshake_fails_and_the_server_is_not_blamed() {
    let holder = Holder::new(KINDS[1]);
    for version in [&TLS12, &TLS13] {
        let config = demanding(&holder, version);
        for (room, jobs, detail) in [
            (Some(room(1)), 1, "took too long"),
            (Some(room(0)), 0, "as many handshakes wait for signatures as may"),
            (None, 0, "nobody is there"),
        ] {
            let connector = holder.connector();
            let connector = match &room {
                Some(room) => connector.deferring(room),
                None => connector,
            };
            let mut dialogue = Dialogue::new(&connector, &config, usize::MAX);
            let failure = dialogue.run(|_| Err(JobError::TimedOut)).expect_err("no signature");
            assert_eq!((failure.reason.label(), failure.is_own()), ("client-certificate-unsigned", true));
            assert!(failure.detail.contains(detail), "{failure}");
            assert_eq!(dialogue.jobs, jobs);
            assert!(dialogue.handshake.advance(&mut [], &mut Vec::new()).is_err());
        }
    }
}

#[test]
fn a_handshake_that_is_given_up_while_it_waits_gives_its_place_back() {
    let (holder, room) = (Holder::new(KINDS[0]), room(1));
    let config = demanding(&holder, &TLS13);
    let connector = holder.connector().deferring(&room);
    for round in 1..=3 {
        let mut dialogue = Dialogue::new(&connector, &config, usize::MAX);
        let mut out = Vec::new();
        dialogue.handshake.advance(&mut [], &mut out).expect("a hello");
        dialogue.server.read_tls(&mut out.as_slice()).expect("bytes");
        dialogue.server.process_new_packets().expect("a hello");
        while dialogue.server.wants_write() {
            dialogue.server.write_tls(&mut dialogue.inbox).expect("bytes");
        }
        let mut step = Step::Read;
        while step != Step::Work {
            let (consumed, next) = dialogue.handshake.advance(&mut dialogue.inbox, &mut out).expect("a flight");
            dialogue.inbox.drain(..consumed);
            step = next;
        }
        assert!(dialogue.handshake.take_job().is_some());
        drop(dialogue);
        assert_eq!((room.counts().remote, room.counts().cancelled), (0, round));
    }
}

#[test]
fn a_server_that_stays_keeps_its_sessions_wherever_it_is_listed() {
    let holder = Holder::new(&PKCS_ECDSA_P256_SHA256);
    let connector = || Connector {
        servers: (0..3).flat_map(|_| holder.connector().servers).collect(),
        remote: false,
        routing: None,
    };
    let before = connector();
    let now = connector().succeeding(&before, |server| [Some(2), None, Some(0)][server]);
    let found =
        |server: usize| before.servers.iter().position(|known| Arc::ptr_eq(&known.config, &now.servers[server].config));
    assert_eq!([0, 1, 2].map(found), [Some(2), None, Some(0)]);
}

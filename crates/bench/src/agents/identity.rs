//! Authentication of coordinator and agents: mutual TLS 1.3 with certificates of one CA, then one message each way that
//! says which version of the protocol they speak.

use super::channel::Channel;
use super::message::{Message, PROTOCOL, VERSION};
use crate::failure::{Failure, Outcome, While};
use crate::pem::{read_identity, read_roots};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use rustls_pki_types::ServerName;
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For the TLS handshake and the versions together.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The certificate that a coordinator shows to agents, and the CA that it knows them by.
#[derive(Clone)]
pub struct CoordinatorIdentity(Arc<ClientConfig>);

/// The certificate that an agent shows to coordinators, and the CA that it knows them by.
#[derive(Clone)]
pub struct AgentIdentity(Arc<ServerConfig>);

impl CoordinatorIdentity {
    pub fn read(identity: &Path, ca: &Path) -> Outcome<Self> {
        let (chain, key) = read_identity("reading", identity)?;
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13])
            .when("TLS")?
            .with_root_certificates(read_roots("reading", ca)?)
            .with_client_auth_cert(chain, key)
            .when(format_args!("using {}", identity.display()))?;
        Ok(Self(Arc::new(config)))
    }

    /// Returns once both sides know each other. `host` is the name in the agent's certificate.
    pub fn connect(&self, socket: TcpStream, host: &str) -> Outcome<Channel> {
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        let mut channel = self.handshake(socket, host, deadline)?;
        channel.send(&Message::Hello { protocol: PROTOCOL.to_owned(), version: VERSION })?;
        // A client of TLS 1.3 is done before the server has looked at its certificate: a refusal comes only now.
        match channel.receive(left(deadline))? {
            Message::Welcome { version } => same_version(version).map(|()| channel),
            other => Err(unexpected(&other)),
        }
    }

    fn handshake(&self, socket: TcpStream, host: &str, deadline: Instant) -> Outcome<Channel> {
        let name = ServerName::try_from(host.to_owned()).when(format_args!("the name {host}"))?;
        let session = ClientConnection::new(self.0.clone(), name).when("TLS")?;
        Channel::handshake(session.into(), socket, deadline)
    }
}

impl AgentIdentity {
    pub fn read(identity: &Path, ca: &Path) -> Outcome<Self> {
        let (chain, key) = read_identity("reading", identity)?;
        let provider = Arc::new(default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(read_roots("reading", ca)?), provider.clone())
                .build()
                .when(format_args!("using {}", ca.display()))?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .when("TLS")?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .when(format_args!("using {}", identity.display()))?;
        Ok(Self(Arc::new(config)))
    }

    /// Returns once the coordinator has shown who it is. Until then nothing is done for it, and little is kept.
    pub fn accept(&self, socket: TcpStream, deadline: Instant) -> Outcome<Channel> {
        let session = ServerConnection::new(self.0.clone()).when("TLS")?;
        let mut channel = Channel::handshake(session.into(), socket, deadline)?;
        let version = match channel.receive(left(deadline))? {
            Message::Hello { protocol, .. } if protocol != PROTOCOL => {
                return Err(Failure::new(format!("it speaks \"{protocol}\", not \"{PROTOCOL}\"")));
            }
            Message::Hello { version, .. } => version,
            other => return Err(unexpected(&other)),
        };
        if let Err(failure) = same_version(version) {
            let _ = channel.send(&Message::Refused { why: failure.to_string() });
            return Err(failure);
        }
        channel.send(&Message::Welcome { version: VERSION })?;
        Ok(channel)
    }
}

fn same_version(theirs: u32) -> Outcome<()> {
    if theirs == VERSION {
        return Ok(());
    }
    Err(Failure::new(format!("it speaks version {theirs} of the protocol, this side {VERSION}; use the same build")))
}

/// Out of turn, or a refusal.
pub fn unexpected(message: &Message) -> Failure {
    match message {
        Message::Refused { why } => Failure::new(format!("it refused: {why}")),
        Message::Failed { why } => Failure::new(why.clone()),
        _ => Failure::new("it said something out of turn"),
    }
}

/// `--secret-file`, which older releases had: an error that says what to do.
pub fn refuse_secret_file(_: &str) -> Result<String, String> {
    Err("agents know coordinators by certificates alone now: make them with `propylon-bench certificates --out agents \
         --name HOST`, give the agent --identity and --ca, and the load command --agents-identity and --agents-ca"
        .to_owned())
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::scratch::ScratchDir;
    use rustls::SignatureScheme;
    use rustls::client::ResolvesClientCert;
    use rustls::sign::CertifiedKey;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// A new CA, and what coordinators and agents of it are.
    pub fn identities() -> (CoordinatorIdentity, AgentIdentity) {
        let scratch = ScratchDir::new().unwrap();
        let arguments = crate::certificates::Arguments {
            out: scratch.path().to_owned(),
            names: vec!["agents.test".to_owned()],
            count: None,
            days: 1,
            keys: vec![crate::certificates::KeyType::Ec],
            split: false,
            keep_ca_key: false,
            force: false,
            json: None,
        };
        crate::certificates::write(&arguments).unwrap();
        let (identity, ca) = (scratch.path().join("agents.test.ec.pem"), scratch.path().join("ca.pem"));
        (CoordinatorIdentity::read(&identity, &ca).unwrap(), AgentIdentity::read(&identity, &ca).unwrap())
    }

    fn sockets() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    fn soon() -> Instant {
        Instant::now() + HANDSHAKE_TIMEOUT
    }

    fn meet(coordinator: &CoordinatorIdentity, agent: &AgentIdentity) -> (Outcome<Channel>, Outcome<Channel>) {
        let ((near, far), agent) = (sockets(), agent.clone());
        let thread = std::thread::spawn(move || agent.accept(far, soon()));
        (coordinator.connect(near, "localhost"), thread.join().unwrap())
    }

    #[derive(Debug)]
    struct NoCertificate;

    impl ResolvesClientCert for NoCertificate {
        fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
            None
        }

        fn has_certs(&self) -> bool {
            false
        }
    }

    fn error(outcome: Outcome<Channel>) -> String {
        outcome.err().unwrap().to_string()
    }

    #[test]
    fn certificates_of_one_ca_know_each_other_and_no_others() {
        let [(coordinator, agent), (strange_coordinator, strange_agent)] = [identities(), identities()];
        let (near, far) = meet(&coordinator, &agent);
        let (mut near, mut far) = (near.unwrap(), far.unwrap());
        for _ in 0..3 {
            near.send(&Message::Clock).unwrap();
            assert_eq!(far.receive(HANDSHAKE_TIMEOUT).unwrap(), Message::Clock);
            far.send(&Message::Ready).unwrap();
            assert_eq!(near.receive(HANDSHAKE_TIMEOUT).unwrap(), Message::Ready);
        }

        let (near, far) = meet(&coordinator, &strange_agent);
        // Both CAs have the same name, and so what is wrong is the signature.
        assert!(error(near).contains("invalid peer certificate") && error(far).contains("received fatal alert"));
        let strange = CoordinatorIdentity(Arc::new({
            // The roots are the agent's CA, the certificate is of another.
            let mut config = (*coordinator.0).clone();
            config.client_auth_cert_resolver = strange_coordinator.0.client_auth_cert_resolver.clone();
            config.resumption = rustls::client::Resumption::disabled();
            config
        }));
        let (near, far) = meet(&strange, &agent);
        assert!(error(near).contains("received fatal alert") && error(far).contains("invalid peer certificate"));
    }

    #[test]
    fn a_coordinator_without_a_certificate_or_without_tls_gets_nothing() {
        let (coordinator, agent) = identities();
        let mut nameless = (*coordinator.0).clone();
        nameless.client_auth_cert_resolver = Arc::new(NoCertificate);
        let (near, far) = meet(&CoordinatorIdentity(Arc::new(nameless)), &agent);
        assert!(near.is_err() && error(far).contains("no certificates"));

        let (mut near, far) = sockets();
        let thread = std::thread::spawn(move || agent.accept(far, soon()));
        near.write_all(&super::super::frames::encode(&Message::Clock).unwrap()).unwrap();
        assert!(error(thread.join().unwrap()).starts_with("TLS handshake: "));
        let mut answer = Vec::new();
        let _ = near.read_to_end(&mut answer);
        // A TLS alert at the most (RFC 8446 §6): its record has type 21.
        assert!(answer.is_empty() || answer[0] == 21, "{answer:?}");
    }

    #[test]
    fn a_handshake_that_drips_ends_at_the_deadline() {
        let (_, agent) = identities();
        let (mut near, far) = sockets();
        let began = Instant::now();
        let thread = std::thread::spawn(move || agent.accept(far, Instant::now() + Duration::from_millis(300)));
        // A record of 512 bytes, one byte at a time, until the agent has had enough.
        for byte in [22, 3, 1, 2, 0, 1, 0, 1, 252].into_iter().chain(std::iter::repeat(3)) {
            if thread.is_finished() || near.write_all(&[byte]).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(error(thread.join().unwrap()), "TLS handshake: it was not done in time");
        assert!(began.elapsed() < HANDSHAKE_TIMEOUT);
    }

    #[test]
    fn another_version_is_named() {
        let (coordinator, agent) = identities();
        let (near, far) = sockets();
        let thread = std::thread::spawn(move || agent.accept(far, soon()));
        let mut channel = coordinator.handshake(near, "localhost", soon()).unwrap();
        channel.send(&Message::Hello { protocol: PROTOCOL.to_owned(), version: VERSION + 1 }).unwrap();
        let Message::Refused { why } = channel.receive(HANDSHAKE_TIMEOUT).unwrap() else { panic!("not refused") };
        assert!(why.contains(&format!("version {} ", VERSION + 1)), "{why}");
        assert!(thread.join().unwrap().is_err());
    }
}

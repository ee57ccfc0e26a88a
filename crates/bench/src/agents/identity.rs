//! Authentication of coordinator and agents: a shared secret, or certificates both ways. One of them is always needed.
//!
//! With a secret each side sends a nonce and proves with HMAC-SHA256 over both that it knows the secret; the
//! coordinator goes first, so that a stranger who connects to an agent gets nothing to guess the secret with. The
//! proofs name the role, so that one cannot be sent back as the other. Keys for the frames come from the same
//! secret and nonces. Frames are then authenticated, in order and never replayed, but **not encrypted**.

use super::channel::{Channel, SessionKeys, Wire, is_pause};
use super::message::{Message, PROTOCOL, VERSION};
use crate::failure::{Failure, Outcome, While};
use aws_lc_rs::{hmac, rand};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For TCP, TLS and proofs together.
pub const GREETING_MAX: Duration = Duration::from_secs(5);
const SECRET_BYTES_MIN: usize = 16;
const SECRET_BYTES_MAX: u64 = 4096;
const NONCE_BYTES: usize = 32;

type Nonce = [u8; NONCE_BYTES];

/// The identity that a coordinator shows to agents.
pub enum CoordinatorIdentity {
    Secret(Secret),
    Tls(Arc<ClientConfig>),
}

/// The identity that an agent shows to coordinators.
pub enum AgentIdentity {
    Secret(Secret),
    Tls(Arc<ServerConfig>),
}

/// Bytes that both sides know.
pub struct Secret(Box<hmac::Key>);

#[derive(Clone, Copy)]
enum Role {
    Coordinator,
    Agent,
}

impl Secret {
    /// A file that others on this machine can read is no secret, and a short one is soon guessed.
    pub fn read(path: &Path) -> Outcome<Self> {
        let doing = format!("--secret-file {}", path.display());
        let mut file = std::fs::File::open(path).when(&doing)?;
        let mode = file.metadata().when(&doing)?.permissions().mode();
        if mode & 0o007 != 0 {
            return Err(Failure::new(format!("{doing}: everybody on this machine may use it; chmod 600 it")));
        }
        let mut text = Vec::new();
        file.by_ref().take(SECRET_BYTES_MAX + 1).read_to_end(&mut text).when(&doing)?;
        // The line end that an editor adds is not part of it.
        let secret = text.trim_ascii_end();
        if secret.len() < SECRET_BYTES_MIN || text.len() as u64 > SECRET_BYTES_MAX {
            return Err(Failure::new(format!(
                "{doing}: {} bytes; a secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}, such as `openssl rand -hex 32` makes",
                secret.len()
            )));
        }
        Ok(Self::new(secret))
    }

    pub fn new(bytes: &[u8]) -> Self {
        Self(Box::new(hmac::Key::new(hmac::HMAC_SHA256, bytes)))
    }

    fn said(purpose: &str, role: Role, nonces: &(Nonce, Nonce)) -> Vec<u8> {
        let role = match role {
            Role::Coordinator => "coordinator",
            Role::Agent => "agent",
        };
        let mut said = format!("{PROTOCOL} {VERSION} {purpose} {role}\0").into_bytes();
        said.extend_from_slice(&nonces.0);
        said.extend_from_slice(&nonces.1);
        said
    }

    fn proof(&self, role: Role, nonces: &(Nonce, Nonce)) -> String {
        encode(hmac::sign(&self.0, &Self::said("proof", role, nonces)).as_ref())
    }

    fn is_proof(&self, mac: &str, role: Role, nonces: &(Nonce, Nonce)) -> bool {
        decode::<32>(mac).is_some_and(|mac| hmac::verify(&self.0, &Self::said("proof", role, nonces), &mac).is_ok())
    }

    fn session_keys(&self, role: Role, nonces: &(Nonce, Nonce)) -> SessionKeys {
        let key = |sender| {
            hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&self.0, &Self::said("frames", sender, nonces)).as_ref())
        };
        match role {
            Role::Coordinator => SessionKeys::new(key(Role::Coordinator), key(Role::Agent)),
            Role::Agent => SessionKeys::new(key(Role::Agent), key(Role::Coordinator)),
        }
    }
}

impl CoordinatorIdentity {
    pub fn tls(identity: &Path, ca: &Path) -> Outcome<Self> {
        let (chain, key) = read_identity(identity)?;
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13])
            .when("TLS")?
            .with_root_certificates(read_roots(ca)?)
            .with_client_auth_cert(chain, key)
            .when(format_args!("using {}", identity.display()))?;
        Ok(Self::Tls(Arc::new(config)))
    }

    /// Speaks first, and returns once both sides know each other. `host` is the name in an agent's certificate.
    pub fn greet(&self, socket: TcpStream, host: &str) -> Outcome<Channel> {
        let until = Instant::now() + GREETING_MAX;
        let (secret, wire) = match self {
            Self::Secret(secret) => (Some(secret), Wire::Plain(socket)),
            Self::Tls(config) => {
                let name = ServerName::try_from(host.to_owned()).when(format_args!("the name {host}"))?;
                let session = ClientConnection::new(config.clone(), name).when("TLS")?;
                (None, shake_hands(session.into(), socket, until)?)
            }
        };
        let mut channel = Channel::new(wire)?;
        let ours = nonce()?;
        channel.send(&Message::Hello { protocol: PROTOCOL.to_owned(), version: VERSION, nonce: encode(&ours) })?;
        let Some(secret) = secret else {
            let answer = channel.receive(left(until))?;
            same_version(&answer)?;
            return match answer {
                Message::Welcome { .. } => {
                    channel.trust(None);
                    Ok(channel)
                }
                other => Err(unexpected(&other)),
            };
        };
        let answer = channel.receive(left(until))?;
        same_version(&answer)?;
        let Message::Challenge { nonce: theirs, .. } = answer else {
            return Err(unexpected(&answer));
        };
        let theirs = decode(&theirs).ok_or_else(|| Failure::new("a nonce that is none"))?;
        let nonces = (ours, theirs);
        channel.send(&Message::Proof { mac: secret.proof(Role::Coordinator, &nonces) })?;
        match channel.receive(left(until))? {
            Message::Welcome { mac, .. } if secret.is_proof(&mac, Role::Agent, &nonces) => {}
            Message::Welcome { .. } => return Err(Failure::new("it does not know the secret")),
            other => return Err(unexpected(&other)),
        }
        channel.trust(Some(secret.session_keys(Role::Coordinator, &nonces)));
        Ok(channel)
    }
}

impl AgentIdentity {
    pub fn tls(identity: &Path, ca: &Path) -> Outcome<Self> {
        let (chain, key) = read_identity(identity)?;
        let provider = Arc::new(default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(read_roots(ca)?), provider.clone())
            .build()
            .when(format_args!("using {}", ca.display()))?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .when("TLS")?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .when(format_args!("using {}", identity.display()))?;
        Ok(Self::Tls(Arc::new(config)))
    }

    pub fn describe(&self) -> &'static str {
        match self {
            Self::Secret(_) => "shared secret: authenticated, not encrypted",
            Self::Tls(_) => "mutual TLS: authenticated and encrypted",
        }
    }

    /// Returns once the coordinator has shown who it is. Until then nothing is done for it, and little is kept.
    pub fn meet(&self, socket: TcpStream) -> Outcome<Channel> {
        let until = Instant::now() + GREETING_MAX;
        let (secret, wire) = match self {
            Self::Secret(secret) => (Some(secret), Wire::Plain(socket)),
            Self::Tls(config) => {
                let session = ServerConnection::new(config.clone()).when("TLS")?;
                (None, shake_hands(session.into(), socket, until)?)
            }
        };
        let mut channel = Channel::new(wire)?;
        let hello = channel.receive(left(until))?;
        if let Err(failure) = same_version(&hello) {
            let _ = channel.send(&Message::Refused { why: failure.to_string() });
            return Err(failure);
        }
        let Message::Hello { nonce: theirs, .. } = hello else {
            return Err(unexpected(&hello));
        };
        let Some(secret) = secret else {
            channel.send(&Message::Welcome { version: VERSION, mac: String::new() })?;
            channel.trust(None);
            return Ok(channel);
        };
        let theirs = decode(&theirs).ok_or_else(|| Failure::new("a nonce that is none"))?;
        let nonces = (theirs, nonce()?);
        channel.send(&Message::Challenge { version: VERSION, nonce: encode(&nonces.1) })?;
        let proof = channel.receive(left(until))?;
        let Message::Proof { mac } = proof else {
            return Err(unexpected(&proof));
        };
        if !secret.is_proof(&mac, Role::Coordinator, &nonces) {
            let why = "the secret is not the same here";
            let _ = channel.send(&Message::Refused { why: why.to_owned() });
            return Err(Failure::new("it does not know the secret"));
        }
        channel.send(&Message::Welcome { version: VERSION, mac: secret.proof(Role::Agent, &nonces) })?;
        channel.trust(Some(secret.session_keys(Role::Agent, &nonces)));
        Ok(channel)
    }
}

/// The TLS handshake, to its end or to `until`, however slowly the peer drips.
fn shake_hands(mut session: Connection, mut socket: TcpStream, until: Instant) -> Outcome<Wire> {
    socket.set_write_timeout(Some(GREETING_MAX)).when("the socket")?;
    while session.is_handshaking() {
        while session.wants_write() {
            session.write_tls(&mut socket).when("TLS")?;
        }
        if !session.is_handshaking() {
            break;
        }
        let left = left(until);
        if left.is_zero() {
            return Err(Failure::new(format!("no TLS handshake within {} s", GREETING_MAX.as_secs())));
        }
        socket.set_read_timeout(Some(left.max(Duration::from_millis(1)))).when("the socket")?;
        match session.read_tls(&mut socket) {
            Ok(0) => return Err(Failure::new("the connection was closed in the TLS handshake")),
            Ok(_) => {}
            Err(error) if is_pause(&error) => continue,
            Err(error) => return Err(error).when("TLS"),
        }
        if let Err(error) = session.process_new_packets() {
            // The alert tells the peer why.
            let _ = session.write_tls(&mut socket);
            return Err(error).when("TLS");
        }
    }
    while session.wants_write() {
        session.write_tls(&mut socket).when("TLS")?;
    }
    Ok(Wire::Tls(Box::new(session), socket))
}

fn same_version(message: &Message) -> Outcome<()> {
    let theirs = match message {
        Message::Hello { protocol, .. } if protocol != PROTOCOL => {
            return Err(Failure::new(format!("it speaks \"{protocol}\", not \"{PROTOCOL}\"")));
        }
        Message::Hello { version, .. } | Message::Challenge { version, .. } | Message::Welcome { version, .. } => {
            *version
        }
        _ => return Ok(()),
    };
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
        Message::Challenge { .. } => Failure::new("it wants a secret, not TLS"),
        Message::Welcome { .. } => Failure::new("it wants TLS, not a secret"),
        _ => Failure::new("it said something out of turn"),
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

fn nonce() -> Outcome<Nonce> {
    let mut nonce = [0; NONCE_BYTES];
    rand::fill(&mut nonce).map_err(|_| Failure::new("the system gives no randomness"))?;
    Ok(nonce)
}

fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

fn read_identity(path: &Path) -> Outcome<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let doing = format!("reading {}", path.display());
    let chain = CertificateDer::pem_file_iter(path).when(&doing)?.collect::<Result<Vec<_>, _>>().when(&doing)?;
    Ok((chain, PrivateKeyDer::from_pem_file(path).when(&doing)?))
}

fn read_roots(path: &Path) -> Outcome<RootCertStore> {
    let doing = format!("reading {}", path.display());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).when(&doing)? {
        roots.add(certificate.when(&doing)?).when(&doing)?;
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::ScratchDir;
    use std::fs;
    use std::io::Write;
    use std::net::TcpListener;

    const SECRET: &[u8] = b"sixteen bytes or more";

    fn sockets() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    fn greet(coordinator: CoordinatorIdentity, agent: AgentIdentity) -> (Outcome<Channel>, Outcome<Channel>) {
        let (near, far) = sockets();
        let thread = std::thread::spawn(move || agent.meet(far));
        let met = coordinator.greet(near, "localhost");
        (met, thread.join().unwrap())
    }

    #[test]
    fn with_the_same_secret_frames_flow_both_ways() {
        let (near, far) =
            greet(CoordinatorIdentity::Secret(Secret::new(SECRET)), AgentIdentity::Secret(Secret::new(SECRET)));
        let (mut near, mut far) = (near.unwrap(), far.unwrap());
        for _ in 0..3 {
            near.send(&Message::Clock).unwrap();
            assert_eq!(far.receive(GREETING_MAX).unwrap(), Message::Clock);
            far.send(&Message::Ready).unwrap();
            assert_eq!(near.receive(GREETING_MAX).unwrap(), Message::Ready);
        }
    }

    #[test]
    fn with_another_secret_neither_side_goes_on() {
        let (near, far) = greet(
            CoordinatorIdentity::Secret(Secret::new(b"some other sixteen bytes")),
            AgentIdentity::Secret(Secret::new(SECRET)),
        );
        assert_eq!(near.err().unwrap().to_string(), "it refused: the secret is not the same here");
        assert_eq!(far.err().unwrap().to_string(), "it does not know the secret");
    }

    #[test]
    fn an_agent_that_cannot_prove_the_secret_is_not_believed() {
        let (near, far) = sockets();
        let impostor = std::thread::spawn(move || {
            let mut channel = Channel::new(Wire::Plain(far)).unwrap();
            channel.receive(GREETING_MAX).unwrap();
            channel.send(&Message::Challenge { version: VERSION, nonce: encode(&[7; NONCE_BYTES]) }).unwrap();
            let Message::Proof { mac } = channel.receive(GREETING_MAX).unwrap() else { panic!("no proof") };
            // The coordinator's own proof, sent back.
            channel.send(&Message::Welcome { version: VERSION, mac }).unwrap();
        });
        let met = CoordinatorIdentity::Secret(Secret::new(SECRET)).greet(near, "localhost");
        impostor.join().unwrap();
        assert_eq!(met.err().unwrap().to_string(), "it does not know the secret");
    }

    /// A coordinator's recorded words, sent again by someone who listened, fail: the agent's nonce is new each time.
    #[test]
    fn a_recorded_greeting_opens_nothing() {
        let secret = Secret::new(SECRET);
        let said = |nonces: &(Nonce, Nonce)| {
            let hello = Message::Hello { protocol: PROTOCOL.to_owned(), version: VERSION, nonce: encode(&nonces.0) };
            [hello, Message::Proof { mac: secret.proof(Role::Coordinator, nonces) }].map(|message| {
                let json = serde_json::to_vec(&message).unwrap();
                [&(json.len() as u32).to_be_bytes()[..], &json].concat()
            })
        };
        let recorded = said(&([1; NONCE_BYTES], [2; NONCE_BYTES]));
        let (mut near, far) = sockets();
        let agent = std::thread::spawn(move || AgentIdentity::Secret(Secret::new(SECRET)).meet(far));
        near.write_all(&recorded.concat()).unwrap();
        assert_eq!(agent.join().unwrap().err().unwrap().to_string(), "it does not know the secret");
    }

    #[test]
    fn another_version_is_named() {
        let (near, far) = sockets();
        let agent = std::thread::spawn(move || AgentIdentity::Secret(Secret::new(SECRET)).meet(far));
        let mut channel = Channel::new(Wire::Plain(near)).unwrap();
        let hello = Message::Hello { protocol: PROTOCOL.to_owned(), version: VERSION + 1, nonce: String::new() };
        channel.send(&hello).unwrap();
        let Message::Refused { why } = channel.receive(GREETING_MAX).unwrap() else { panic!("not refused") };
        assert!(why.contains("version 2"), "{why}");
        assert!(agent.join().unwrap().is_err());
    }

    #[test]
    fn a_secret_is_private_and_long_enough() {
        let scratch = ScratchDir::new().unwrap();
        let path = scratch.path().join("secret");
        let read = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Secret::read(&path).map(|_| ()).map_err(|failure| failure.to_string())
        };
        assert!(read("0123456789abcdef\n", 0o600).is_ok());
        assert!(read("0123456789abcde\n\n", 0o600).unwrap_err().contains("15 bytes"));
        assert!(read("0123456789abcdef", 0o604).unwrap_err().contains("chmod 600"));
        assert!(read(&"x".repeat(5000), 0o600).unwrap_err().contains("to 4096"));
    }

    #[test]
    fn certificates_of_one_ca_know_each_other_and_no_others() {
        let made = |_| {
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
            scratch
        };
        let [ours, strangers] = [0, 1].map(made);
        let files = |scratch: &ScratchDir| (scratch.path().join("agents.test.ec.pem"), scratch.path().join("ca.pem"));
        let (identity, ca) = files(&ours);
        let (strange_identity, _) = files(&strangers);
        let agent = || AgentIdentity::tls(&identity, &ca).unwrap();

        let (near, far) = greet(CoordinatorIdentity::tls(&identity, &ca).unwrap(), agent());
        let (mut near, mut far) = (near.unwrap(), far.unwrap());
        far.send(&Message::Ready).unwrap();
        assert_eq!(near.receive(GREETING_MAX).unwrap(), Message::Ready);

        let (near, far) = greet(CoordinatorIdentity::tls(&strange_identity, &ca).unwrap(), agent());
        assert!(near.is_err() && far.is_err());
        // An agent of another CA, and a coordinator with a secret at an agent with TLS.
        let (near, _) = greet(
            CoordinatorIdentity::tls(&identity, &ca).unwrap(),
            AgentIdentity::tls(&strange_identity, &ca).unwrap(),
        );
        assert!(near.is_err());
        let (near, far) = greet(CoordinatorIdentity::Secret(Secret::new(SECRET)), agent());
        assert!(near.is_err() && far.is_err());
    }
}

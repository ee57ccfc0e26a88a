//! The server that is asked, and how: address, protocol, TLS offers. Made once per run; connections only borrow it.

use crate::failure::{Failure, Outcome, While};
use clap::ValueEnum;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{
    ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls12Resumption, Tls13ClientSessionValue,
    WebPkiServerVerifier,
};
use rustls::crypto::aws_lc_rs::{default_provider, kx_group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, DigitallySignedStruct, NamedGroup, SignatureScheme,
    SupportedCipherSuite,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

/// TLS 1.3 tickets kept for later connections.
const TICKETS_MAX: usize = 4096;

/// The flags that every load command has in common.
#[derive(clap::Args, Clone)]
pub struct TargetArguments {
    /// Server to ask
    #[arg(long, value_name = "HOST:PORT")]
    pub target: String,
    /// Plain HTTP instead of TLS
    #[arg(long, conflicts_with = "tls")]
    pub plain: bool,
    /// TLS (the default), and which version to offer
    #[arg(long, value_name = "VERSION", num_args = 0..=1, default_missing_value = "any", default_value = "any")]
    pub tls: Version,
    /// Accept only this type of certificate key; a server with both then shows this one
    #[arg(long, value_name = "TYPE")]
    pub key: Option<Key>,
    /// Offer only this key exchange group
    #[arg(long)]
    pub group: Option<Group>,
    /// Offer only this cipher (with the key exchange that --tls and --key ask for)
    #[arg(long = "suite", value_name = "CIPHER")]
    pub cipher: Option<Cipher>,
    /// Server name to send, to ask for in Host, and to verify
    #[arg(long, default_value = "localhost")]
    pub name: String,
    /// Verify the server's certificate (needs --ca); without it any certificate will do, and costs the load nothing
    #[arg(long, requires = "ca")]
    pub verify: bool,
    /// CA to verify with
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Source address; repeat to spread connections over several
    #[arg(long = "source", value_name = "ADDRESS")]
    pub sources: Vec<IpAddr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Version {
    Any,
    #[value(name = "1.3")]
    V13,
    #[value(name = "1.2")]
    V12,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Key {
    Ec,
    Rsa,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Group {
    X25519,
    P256,
    P384,
    #[value(name = "x25519mlkem768")]
    X25519Mlkem768,
    #[value(name = "p256mlkem768")]
    P256Mlkem768,
    #[value(name = "mlkem768")]
    Mlkem768,
    #[value(name = "mlkem1024")]
    Mlkem1024,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Cipher {
    #[value(name = "aes128gcm")]
    Aes128Gcm,
    #[value(name = "aes256gcm")]
    Aes256Gcm,
    #[value(name = "chacha20")]
    Chacha20,
}

/// The means to resume a TLS session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resumed {
    Ticket,
    SessionId,
}

/// The offer of a client to the server; `None` is no restriction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TlsOffer {
    pub version: Version,
    pub key: Option<Key>,
    pub group: Option<Group>,
    pub cipher: Option<Cipher>,
    /// Resume the sessions of earlier connections.
    pub resume: bool,
    /// PEM to verify the server with. Absent: any certificate will do.
    pub ca: Option<PathBuf>,
}

/// A server, ready to be connected to as often as wanted.
#[derive(Clone)]
pub struct Target {
    pub address: SocketAddr,
    /// For `Host` and the server name extension.
    pub name: String,
    tls: Option<TlsClient>,
    sources: Vec<IpAddr>,
    next_source: std::cell::Cell<usize>,
}

#[derive(Clone)]
struct TlsClient {
    config: Arc<ClientConfig>,
    server_name: ServerName<'static>,
    resume: bool,
}

impl TargetArguments {
    pub fn target(&self, resume: bool) -> Outcome<Target> {
        let address = resolve(&self.target)?;
        Ok(Target::new(address, &self.name, self.offer(resume).as_ref())?.with_sources(&self.sources))
    }

    /// `None` for plain HTTP.
    pub fn offer(&self, resume: bool) -> Option<TlsOffer> {
        let offer = TlsOffer {
            version: self.tls,
            key: self.key,
            group: self.group,
            cipher: self.cipher,
            resume,
            ca: if self.verify { self.ca.clone() } else { None },
        };
        (!self.plain).then_some(offer)
    }

    /// A target whose sessions are resumed in this way, if in any.
    pub fn resuming(&self, resumed: Option<Resumed>) -> Outcome<Target> {
        let mut target = self.target(resumed.is_some())?;
        if resumed == Some(Resumed::SessionId) {
            if self.tls != Version::V12 {
                return Err(Failure::new("--resumed session-id needs --tls 1.2: TLS 1.3 resumes with tickets only"));
            }
            target.resume_by_session_id();
        }
        Ok(target)
    }
}

impl Target {
    pub fn new(address: SocketAddr, name: &str, offer: Option<&TlsOffer>) -> Outcome<Self> {
        let tls = offer.map(|offer| TlsClient::new(name, offer)).transpose()?;
        Ok(Self { address, name: name.to_owned(), tls, sources: Vec::new(), next_source: 0.into() })
    }

    /// Offers HTTP/2 and nothing else by ALPN. Without TLS it is taken for known (RFC 9113 §3.3).
    pub fn offer_http2(&mut self) {
        if let Some(tls) = &mut self.tls {
            Arc::make_mut(&mut tls.config).alpn_protocols = vec![b"h2".to_vec()];
        }
    }

    /// Resumes by session ID (RFC 5246 §7.3): no ticket is asked for, so none is given. TLS 1.2 only.
    fn resume_by_session_id(&mut self) {
        if let Some(tls) = &mut self.tls {
            let config = Arc::make_mut(&mut tls.config);
            config.resumption = config.resumption.clone().tls12_resumption(Tls12Resumption::SessionIdOnly);
        }
    }

    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Connects from these addresses in turn; from the kernel's choice if there are none.
    pub fn with_sources(mut self, sources: &[IpAddr]) -> Self {
        self.sources = sources.to_vec();
        self
    }

    /// With TLS as the caller made it, for servers that want more than a web server does.
    pub fn with_config(address: SocketAddr, name: &str, config: ClientConfig) -> Outcome<Self> {
        let server_name = ServerName::try_from(name.to_owned()).when(format_args!("--name {name}"))?;
        let tls = TlsClient { config: Arc::new(config), server_name, resume: false };
        Ok(Self { address, name: name.to_owned(), tls: Some(tls), sources: Vec::new(), next_source: 0.into() })
    }

    /// A full handshake is an error.
    pub fn wants_resumed(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.resume)
    }

    /// A socket on its way to being connected; never waits.
    pub fn connect(&self) -> io::Result<TcpStream> {
        let socket = Socket::new(Domain::for_address(self.address), Type::STREAM.nonblocking(), None)?;
        socket.set_tcp_nodelay(true)?;
        if !self.sources.is_empty() {
            let source = self.sources[self.next_source.get() % self.sources.len()];
            self.next_source.set(self.next_source.get() + 1);
            socket.bind(&SocketAddr::new(source, 0).into())?;
        }
        match socket.connect(&self.address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        Ok(socket.into())
    }

    /// The TLS half of a new connection; `None` for a plain target.
    pub fn tls_session(&self) -> Result<Option<Box<ClientConnection>>, rustls::Error> {
        let Some(tls) = &self.tls else {
            return Ok(None);
        };
        let mut session = ClientConnection::new(tls.config.clone(), tls.server_name.clone())?;
        // Request bodies may be large, and wait in the session until the handshake is done.
        session.set_buffer_limit(None);
        Ok(Some(Box::new(session)))
    }
}

/// The first address that a name has.
pub fn resolve(text: &str) -> Outcome<SocketAddr> {
    let mut addresses = text.to_socket_addrs().when(format_args!("--target {text}"))?;
    addresses.next().ok_or_else(|| Failure::new(format!("--target {text}: no address")))
}

/// Addresses to connect from, so that `count` processes on one machine do not share 28,000 local ports.
/// Only for a loopback target: elsewhere the machine's own addresses are not ours to guess.
pub fn loopback_source(target: SocketAddr, process: usize) -> Option<IpAddr> {
    let IpAddr::V4(address) = target.ip() else {
        return None;
    };
    let last = u8::try_from(process + 2).ok()?;
    address.is_loopback().then_some(IpAddr::V4(Ipv4Addr::new(127, 0, 1, last)))
}

impl TlsClient {
    fn new(name: &str, offer: &TlsOffer) -> Outcome<Self> {
        let provider = Arc::new(offer.provider()?);
        let versions: &[&rustls::SupportedProtocolVersion] = match offer.version {
            Version::Any => &[&rustls::version::TLS13, &rustls::version::TLS12],
            Version::V13 => &[&rustls::version::TLS13],
            Version::V12 => &[&rustls::version::TLS12],
        };
        let verifier = Verifier::new(offer, &provider)?;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .when("the TLS offer")?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.resumption =
            if offer.resume { Resumption::store(Arc::new(Tickets::default())) } else { Resumption::disabled() };
        let server_name = ServerName::try_from(name.to_owned()).when(format_args!("--name {name}"))?;
        Ok(Self { config: Arc::new(config), server_name, resume: offer.resume })
    }
}

impl TlsOffer {
    fn provider(&self) -> Outcome<CryptoProvider> {
        let mut provider = default_provider();
        provider.cipher_suites.retain(|suite| self.takes(suite));
        if let Some(group) = self.group {
            provider.kx_groups = vec![group.implementation()];
            if group.is_post_quantum() && self.version == Version::V12 {
                return Err(Failure::new(format!("--group {group:?} is of TLS 1.3; --tls 1.2 has no such group")));
            }
            // In TLS 1.2 the list also says which curves a certificate may use (RFC 8422 §5.1.1): without P-256 (or
            // P-384, for such a key) there is no ECDSA. The wanted group stays first, and first is what servers of
            // the last decade take; the report tells what was taken.
            let may_be_tls12 = self.version != Version::V13 && self.key != Some(Key::Rsa);
            let for_certificates =
                [Group::P256, Group::P384].into_iter().filter(|other| may_be_tls12 && *other != group);
            provider.kx_groups.extend(for_certificates.map(Group::implementation));
        }
        if provider.cipher_suites.is_empty() {
            return Err(Failure::new("no cipher suite fits --tls, --key and --suite together"));
        }
        Ok(provider)
    }

    fn takes(&self, suite: &SupportedCipherSuite) -> bool {
        use CipherSuite as C;
        let (key, cipher) = match suite.suite() {
            C::TLS13_AES_128_GCM_SHA256 => (None, Cipher::Aes128Gcm),
            C::TLS13_AES_256_GCM_SHA384 => (None, Cipher::Aes256Gcm),
            C::TLS13_CHACHA20_POLY1305_SHA256 => (None, Cipher::Chacha20),
            C::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 => (Some(Key::Ec), Cipher::Aes128Gcm),
            C::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 => (Some(Key::Ec), Cipher::Aes256Gcm),
            C::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 => (Some(Key::Ec), Cipher::Chacha20),
            C::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => (Some(Key::Rsa), Cipher::Aes128Gcm),
            C::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => (Some(Key::Rsa), Cipher::Aes256Gcm),
            C::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => (Some(Key::Rsa), Cipher::Chacha20),
            _ => return false,
        };
        let key_fits = self.key.is_none() || key.is_none() || self.key == key;
        key_fits && self.cipher.is_none_or(|wanted| wanted == cipher)
    }
}

impl Group {
    fn implementation(self) -> &'static dyn SupportedKxGroup {
        match self {
            Self::X25519 => kx_group::X25519,
            Self::P256 => kx_group::SECP256R1,
            Self::P384 => kx_group::SECP384R1,
            Self::X25519Mlkem768 => kx_group::X25519MLKEM768,
            Self::P256Mlkem768 => kx_group::SECP256R1MLKEM768,
            Self::Mlkem768 => kx_group::MLKEM768,
            Self::Mlkem1024 => kx_group::MLKEM1024,
        }
    }

    /// The groups with ML-KEM are of TLS 1.3 only.
    fn is_post_quantum(self) -> bool {
        matches!(self, Self::X25519Mlkem768 | Self::P256Mlkem768 | Self::Mlkem768 | Self::Mlkem1024)
    }
}

impl Key {
    fn signs(self, scheme: SignatureScheme) -> bool {
        use SignatureScheme as S;
        match self {
            Self::Ec => {
                matches!(scheme, S::ECDSA_NISTP256_SHA256 | S::ECDSA_NISTP384_SHA384 | S::ECDSA_NISTP521_SHA512)
            }
            Self::Rsa => matches!(
                scheme,
                S::RSA_PSS_SHA256
                    | S::RSA_PSS_SHA384
                    | S::RSA_PSS_SHA512
                    | S::RSA_PKCS1_SHA256
                    | S::RSA_PKCS1_SHA384
                    | S::RSA_PKCS1_SHA512
            ),
        }
    }
}

/// Restricts the signature schemes, and so the server's choice of certificate; verifies only if asked.
#[derive(Debug)]
struct Verifier {
    schemes: Vec<SignatureScheme>,
    strict: Option<Arc<WebPkiServerVerifier>>,
}

impl Verifier {
    fn new(offer: &TlsOffer, provider: &Arc<CryptoProvider>) -> Outcome<Self> {
        let mut schemes = provider.signature_verification_algorithms.supported_schemes();
        if let Some(key) = offer.key {
            schemes.retain(|scheme| key.signs(*scheme));
        }
        let Some(ca) = &offer.ca else {
            return Ok(Self { schemes, strict: None });
        };
        let doing = format!("reading {}", ca.display());
        let roots = Arc::new(crate::pem::read_roots("reading", ca)?);
        let strict = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build().when(&doing)?;
        Ok(Self { schemes, strict: Some(strict) })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match &self.strict {
            Some(strict) => strict.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now),
            None => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        match &self.strict {
            Some(strict) => strict.verify_tls12_signature(message, certificate, signature),
            None => Ok(HandshakeSignatureValid::assertion()),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        match &self.strict {
            Some(strict) => strict.verify_tls13_signature(message, certificate, signature),
            None => Ok(HandshakeSignatureValid::assertion()),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes.clone()
    }
}

/// Tickets of one server. The library's own store keeps eight, which a few dozen connections in flight drain.
#[derive(Default)]
struct Tickets(Mutex<TicketsHeld>);

#[derive(Default)]
struct TicketsHeld {
    group: Option<NamedGroup>,
    tls12: Option<Tls12ClientSessionValue>,
    tls13: VecDeque<Tls13ClientSessionValue>,
}

impl Tickets {
    fn held(&self) -> std::sync::MutexGuard<'_, TicketsHeld> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Tickets {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Tickets")
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _: ServerName<'static>, group: NamedGroup) {
        self.held().group = Some(group);
    }

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        self.held().group
    }

    fn set_tls12_session(&self, _: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.held().tls12 = Some(value);
    }

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.held().tls12.clone()
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {
        self.held().tls12 = None;
    }

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        let mut held = self.held();
        if held.tls13.len() == TICKETS_MAX {
            held.tls13.pop_front();
        }
        held.tls13.push_back(value);
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.held().tls13.pop_back()
    }
}

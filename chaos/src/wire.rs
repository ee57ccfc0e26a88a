//! One connection, with TLS or without: a client's side to the engine, and a server's side from it.

use crate::model::Stage;
use propylon_bench::failure::{Failure, Outcome, While};
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{Ticketer, default_provider};
use rustls::{ClientConfig, HandshakeKind, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// Names whose sessions a client keeps; it asks for one.
const SESSIONS: usize = 8;

/// An address of the engine, and how a client speaks to it.
pub struct Target {
    address: SocketAddr,
    tls: Option<(TlsConnector, ServerName<'static>)>,
}

pub enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// The protocols that a client offers by ALPN.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Offer {
    None,
    Http2,
}

impl Target {
    pub fn plain(address: SocketAddr) -> Self {
        Self { address, tls: None }
    }

    /// `name` is verified with `ca`; tickets are kept and shown again if the client is `resuming`.
    pub fn secure(address: SocketAddr, name: &str, ca: &Path, resuming: bool, offer: Offer) -> Outcome<Self> {
        let doing = format!("reading {}", ca.display());
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(ca).when(&doing)? {
            roots.add(certificate.when(&doing)?).when(&doing)?;
        }
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .when("the TLS offer")?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.resumption = if resuming { Resumption::in_memory_sessions(SESSIONS) } else { Resumption::disabled() };
        if offer == Offer::Http2 {
            config.alpn_protocols = vec![b"h2".to_vec()];
        }
        let name = ServerName::try_from(name.to_owned()).when("the server's name")?;
        Ok(Self { address, tls: Some((TlsConnector::from(Arc::new(config)), name)) })
    }
}

impl Wire {
    /// Connects as `target` says; the error is the stage that failed.
    pub async fn connect(target: &Target) -> Result<Self, Stage> {
        let connected = TcpStream::connect(target.address).await.and_then(|socket| {
            socket.set_nodelay(true)?;
            Ok(socket)
        });
        let socket = connected.map_err(|_| Stage::Connect)?;
        let Some((connector, name)) = &target.tls else { return Ok(Self::Plain(socket)) };
        let stream = connector.connect(name.clone(), socket).await.map_err(|_| Stage::Handshake)?;
        Ok(Self::Tls(Box::new(stream.into())))
    }

    /// The same, and TLS has agreed on HTTP/2.
    pub async fn connect_http2(target: &Target) -> Result<Self, Stage> {
        let wire = Self::connect(target).await?;
        if wire.is_http2() { Ok(wire) } else { Err(Stage::Handshake) }
    }

    /// The server's side of TLS on a connection that was accepted.
    pub async fn accept(socket: TcpStream, config: &Arc<ServerConfig>) -> io::Result<Self> {
        let stream = TlsAcceptor::from(Arc::clone(config)).accept(socket).await?;
        Ok(Self::Tls(Box::new(stream.into())))
    }

    /// Whether TLS has agreed on HTTP/2.
    pub fn is_http2(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.get_ref().1.alpn_protocol() == Some(b"h2"))
    }

    /// The certificate that a full handshake has shown.
    pub fn shown_certificate(&self) -> Option<&[u8]> {
        let Self::Tls(stream) = self else { return None };
        let (_, session) = stream.get_ref();
        let is_shown = session.handshake_kind() != Some(HandshakeKind::Resumed);
        Some(session.peer_certificates().filter(|_| is_shown)?.first()?.as_ref())
    }

    /// Has the connection end with a reset, and not in order, when it is dropped.
    pub fn abort_on_drop(&self) {
        let socket = match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.get_ref().0,
        };
        let _ = socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO));
    }
}

/// A server's TLS 1.2 and 1.3 with the chain and key of one file; `protocols` by ALPN, the preferred one first.
pub fn server_config(identity: &Path, protocols: &[&[u8]]) -> Outcome<Arc<ServerConfig>> {
    let doing = format!("reading {}", identity.display());
    let chain: Vec<_> = CertificateDer::pem_file_iter(identity).when(&doing)?.collect::<Result<_, _>>().when(&doing)?;
    if chain.is_empty() {
        return Err(Failure::new(format!("{doing}: no certificate in it")));
    }
    let key = PrivateKeyDer::from_pem_file(identity).when(&doing)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .when(&doing)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .when(&doing)?;
    config.ticketer = Ticketer::new().when(&doing)?;
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(Arc::new(config))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_read(cx, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

//! The origin's end of a connection: a socket, perhaps TLS over it. Never waits.

use crate::failure::{Failure, Outcome, While};
use crate::tls_stream::TlsStream;
use rustls::{ServerConfig, ServerConnection};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

pub enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    pub fn new(socket: TcpStream, tls: Option<&Arc<ServerConfig>>) -> Result<Self, rustls::Error> {
        let Some(tls) = tls else {
            return Ok(Self::Plain(socket));
        };
        let session = ServerConnection::new(tls.clone())?;
        Ok(Self::Tls(Box::new(TlsStream::new(socket, session.into()))))
    }

    /// A read of less than the buffer emptied the socket. With TLS it says nothing: a record is what is read.
    pub fn short_read_is_last(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Bytes taken by the socket; none if it has no room.
    pub fn write_some(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        match self.write(bytes) {
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }

    /// True once nothing taken by `write_some` waits any more.
    pub fn flush_some(&mut self) -> io::Result<bool> {
        match self.flush() {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(stream) => stream.flush_ciphertext(),
        }
    }
}

/// TLS 1.2 and 1.3 with one certificate, tickets on. `path` holds chain and key, as `certificates` writes them.
pub fn server_config(path: &Path) -> Outcome<Arc<ServerConfig>> {
    let doing = format!("--tls {}", path.display());
    let chain: Vec<_> = CertificateDer::pem_file_iter(path).when(&doing)?.collect::<Result<_, _>>().when(&doing)?;
    if chain.is_empty() {
        return Err(Failure::new(format!("{doing}: no certificate in it")));
    }
    let key = PrivateKeyDer::from_pem_file(path).when(&doing)?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .when(&doing)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .when(&doing)?;
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new().when(&doing)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

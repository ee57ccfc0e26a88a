//! Origins that speak TLS: one that does what a story tells it, and `openssl s_server`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion};

use crate::http::{Body, framing, head_end};
use crate::program::finish;
use crate::wait::{WAIT_MAX, holds};

/// One connection to such an origin, its handshake still to come.
pub type Secure = StreamOwned<ServerConnection, TcpStream>;

/// Runs a script for every connection, on a thread of its own, for as long as the process lives.
pub struct SecureOrigin {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl SecureOrigin {
    /// With the certificate and key of this PEM; the script gets the connection's number.
    pub fn scripted(
        pem: &str,
        versions: &[&'static SupportedProtocolVersion],
        script: impl Fn(usize, &mut Secure) + Send + Sync + 'static,
    ) -> SecureOrigin {
        let chain: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(pem.as_bytes()).map(|each| each.expect("a certificate")).collect();
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).expect("a key");
        let mut config = ServerConfig::builder_with_provider(rustls::crypto::aws_lc_rs::default_provider().into())
            .with_protocol_versions(versions)
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("a certificate and its key");
        // What a script writes before the handshake goes out with it.
        config.send_half_rtt_data = true;
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound listener");
        let (script, connections) = (Arc::new(script), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&connections);
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let number = count.fetch_add(1, Ordering::SeqCst);
                let (script, config) = (Arc::clone(&script), Arc::clone(&config));
                std::thread::spawn(move || {
                    let _ = socket.set_read_timeout(Some(WAIT_MAX));
                    let connection = ServerConnection::new(config).expect("a connection");
                    script(number, &mut StreamOwned::new(connection, socket));
                });
            }
        });
        SecureOrigin { address, connections }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// A request with its body; none when there will be none.
pub fn read_request(stream: &mut impl Read) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    let mut byte = [0];
    while head_end(&request).is_none() {
        (stream.read(&mut byte).ok()? == 1).then_some(())?;
        request.push(byte[0]);
    }
    if let Body::Length(length) = framing(&String::from_utf8_lossy(&request), Body::None) {
        let mut body = vec![0; length];
        stream.read_exact(&mut body).ok()?;
        request.extend_from_slice(&body);
    }
    Some(request)
}

/// Whoever reads may be gone, which is not the origin's concern.
pub fn send(stream: &mut impl Write, bytes: impl AsRef<[u8]>) {
    let _ = stream.write_all(bytes.as_ref());
    let _ = stream.flush();
}

/// `openssl s_server -www`: tells of each connection what was agreed on.
pub struct SServer {
    child: Child,
    address: SocketAddr,
}

impl SServer {
    pub fn start(pem: &std::path::Path, arguments: &[&str]) -> SServer {
        // Free now; nothing else takes ports of this range on purpose in the meantime.
        let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
        let mut command = Command::new("openssl");
        command.args(["s_server", "-quiet", "-www", "-accept"]).arg(address.to_string());
        command.arg("-cert").arg(pem).arg("-key").arg(pem).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("openssl starts");
        holds("s_server accepts", || TcpStream::connect(address).is_ok());
        SServer { child, address }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for SServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        finish(&mut self.child, Duration::from_secs(5), "s_server ends");
    }
}

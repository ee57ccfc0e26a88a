//! Clients that come again and again, on threads of their own, and take note of whatever goes wrong.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::certificates::Certificates;
use crate::client::connect;
use crate::frames::{
    ACK, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, block, frame, request,
};
use crate::http::{Body, framing, head_end};

const WAIT_MAX: Duration = Duration::from_secs(30);
/// Between two requests, so that a client is idle now and then.
const THINKING: Duration = Duration::from_millis(2);

/// How a client comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// A connection for each request.
    Plain,
    /// The same over TLS.
    Tls,
    /// A connection for as long as it lasts.
    KeepAlive,
    /// The same over TLS.
    KeepAliveTls,
    /// HTTP/2 by prior knowledge, a connection for as long as it lasts.
    Http2,
    /// HTTP/2 by ALPN, a connection for each request.
    Http2Tls,
}

/// What one client, or several, have counted.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    pub connections: usize,
    pub requests: usize,
    pub failures: Vec<String>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    connections: AtomicUsize,
    requests: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

/// Clients of one manner.
pub struct Load {
    manner: Manner,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    pub fn start(manner: Manner, address: SocketAddr, clients: usize) -> Load {
        let shared = Arc::new(Shared::default());
        let client = |_| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || come(manner, address, &shared))
        };
        let threads = (0..clients).map(client).collect();
        Load { manner, shared, threads }
    }

    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// Ends it, and says what came of it.
    pub fn finish(self) -> (Manner, Counted) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for thread in self.threads {
            thread.join().expect("a client does not panic");
        }
        let counted = Counted {
            connections: self.shared.connections.load(Ordering::SeqCst),
            requests: self.shared.requests.load(Ordering::SeqCst),
            failures: self.shared.failures.lock().expect("clients do not panic").clone(),
        };
        (self.manner, counted)
    }
}

fn come(manner: Manner, address: SocketAddr, shared: &Shared) {
    while !shared.stop.load(Ordering::SeqCst) {
        if let Err(error) = visit(manner, address, shared) {
            shared.failures.lock().expect("clients do not panic").push(format!("{manner:?}: {error}"));
        }
    }
}

/// One connection, from its first byte to its orderly end.
fn visit(manner: Manner, address: SocketAddr, shared: &Shared) -> io::Result<()> {
    let named = |what: &'static str| move |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"));
    let socket = connect(address, None).map_err(named("connect"))?;
    socket.set_read_timeout(Some(WAIT_MAX))?;
    socket.set_nodelay(true)?;
    shared.connections.fetch_add(1, Ordering::SeqCst);
    match manner {
        Manner::Plain => converse(socket, true, shared),
        Manner::KeepAlive => converse(socket, false, shared),
        Manner::Tls => converse(secure(socket, b"http/1.1").map_err(named("handshake"))?, true, shared),
        Manner::KeepAliveTls => converse(secure(socket, b"http/1.1").map_err(named("handshake"))?, false, shared),
        Manner::Http2 => converse2(socket, false, shared),
        Manner::Http2Tls => converse2(secure(socket, b"h2").map_err(named("handshake"))?, true, shared),
    }
}

fn secure(mut socket: TcpStream, alpn: &[u8]) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let mut config: ClientConfig = (*Certificates::shared().client()).clone();
    config.alpn_protocols = vec![alpn.to_vec()];
    let name = ServerName::try_from("localhost").expect("a name");
    let mut connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    while connection.is_handshaking() {
        connection.complete_io(&mut socket)?;
    }
    Ok(StreamOwned::new(connection, socket))
}

fn converse(mut stream: impl Read + Write, once: bool, shared: &Shared) -> io::Result<()> {
    loop {
        let more = if once { "Connection: close\r\n" } else { "" };
        stream.write_all(format!("GET / HTTP/1.1\r\nHost: shop.test\r\n{more}\r\n").as_bytes())?;
        stream.flush()?;
        let head = answer(&mut stream)?;
        shared.requests.fetch_add(1, Ordering::SeqCst);
        if once || head.to_ascii_lowercase().contains("connection: close") || shared.stop.load(Ordering::SeqCst) {
            return Ok(());
        }
        std::thread::sleep(THINKING);
    }
}

/// Reads a whole answer, and returns its head.
fn answer(stream: &mut impl Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            let what = format!("the connection ended after {} bytes of an answer", bytes.len());
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        bytes.extend_from_slice(&buffer[..read]);
        let Some(end) = head_end(&bytes) else { continue };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let Body::Length(length) = framing(&head, Body::UntilClose) else {
            return Err(io::Error::other(format!("an answer without a length: {head}")));
        };
        if bytes.len() >= end + length {
            return if head.starts_with("HTTP/1.1 200 ") { Ok(head) } else { Err(io::Error::other(head)) };
        }
    }
}

fn converse2(mut stream: impl Read + Write, once: bool, shared: &Shared) -> io::Result<()> {
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat())?;
    let mut leaving = false;
    for number in (1..).step_by(2) {
        stream.write_all(&frame(HEADERS, END_HEADERS | END_STREAM, number, &block(&request("GET", "/"))))?;
        stream.flush()?;
        await_stream(&mut stream, number, &mut leaving)?;
        shared.requests.fetch_add(1, Ordering::SeqCst);
        if once || leaving || shared.stop.load(Ordering::SeqCst) {
            // A client that leaves says so, with the last stream of the server's: there is none.
            stream.write_all(&frame(GOAWAY, 0, 0, &[0; 8]))?;
            return stream.flush();
        }
        std::thread::sleep(THINKING);
    }
    Ok(())
}

/// Reads up to the end of a stream. A GOAWAY on the way that does not refuse it means that there are to be no more.
fn await_stream(stream: &mut (impl Read + Write), number: u32, leaving: &mut bool) -> io::Result<()> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let (kind, flags) = (head[3], head[4]);
        let of = u32::from_be_bytes(head[5..9].try_into().expect("four bytes"));
        let mut payload = vec![0; length];
        stream.read_exact(&mut payload)?;
        match kind {
            SETTINGS if flags & ACK == 0 => {
                stream.write_all(&frame(SETTINGS, ACK, 0, &[]))?;
                stream.flush()?;
            }
            PING if flags & ACK == 0 => {
                stream.write_all(&frame(PING, ACK, 0, &payload))?;
                stream.flush()?;
            }
            GOAWAY => {
                let last = u32::from_be_bytes(payload[..4].try_into().expect("four bytes"));
                let code = u32::from_be_bytes(payload[4..8].try_into().expect("four bytes"));
                if code != 0 || last < number {
                    return Err(io::Error::other(format!("GOAWAY {code} after stream {last}, at {number}")));
                }
                *leaving = true;
            }
            RST_STREAM if of == number => return Err(io::Error::other("the stream was reset")),
            _ if of == number && flags & END_STREAM != 0 => return Ok(()),
            _ => {}
        }
    }
}

//! Servers of HTTP/1.1 and of HTTP/2 that answer as the case says which is before them: wrongly, for the most part.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use propylon_e2e::certificates::{Certificates, NAMES};
use propylon_e2e::frames::{
    ACK, CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, INTERNAL_ERROR, NO_ERROR, PING, PREFACE,
    RST_STREAM, SETTINGS, WINDOW_UPDATE, block, frame,
};
use propylon_e2e::http::{head_end, values};
use rcgen::PKCS_ECDSA_P256_SHA256;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::cases::{Body, Break, Case, Place, Protocol, RequestBody, body};

/// What is to be answered next, and with what for a name.
pub struct Turn {
    pub case: Case,
    pub tag: String,
    /// Requests that were seen, each sent anew among them.
    pub seen: AtomicU32,
}

impl Turn {
    pub fn new(case: Case, tag: String) -> Arc<Turn> {
        Arc::new(Turn { case, tag, seen: AtomicU32::new(0) })
    }
}

/// One server, which one client at a time has to itself.
#[derive(Clone)]
pub struct Server {
    pub address: SocketAddr,
    turn: Arc<Mutex<Arc<Turn>>>,
    /// Accepted so far.
    connections: Arc<AtomicU32>,
}

impl Server {
    pub async fn start(protocol: Protocol) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound listener");
        let turn = Arc::new(Mutex::new(Turn::new(Case::plain(protocol, protocol), String::new())));
        let server = Server { address, turn, connections: Arc::default() };
        let shared = server.clone();
        let acceptor = acceptor();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let _ = socket.set_nodelay(true);
                let (server, acceptor) = (shared.clone(), acceptor.clone());
                tokio::spawn(async move {
                    let socket = match protocol {
                        Protocol::Http2Tls => match acceptor.accept(socket).await {
                            Ok(stream) => Wire::Tls(Box::new(stream)),
                            Err(_) => return,
                        },
                        _ => Wire::Plain(socket),
                    };
                    let peer = Peer { socket, inbox: Vec::new(), server };
                    // An end is an end, whoever's it was.
                    let _ = match protocol {
                        Protocol::Http1 => peer.speak_http1().await,
                        Protocol::Http2 | Protocol::Http2Tls => peer.speak_http2().await,
                    };
                });
            }
        });
        server
    }

    pub fn set(&self, turn: &Arc<Turn>) {
        *self.turn.lock().expect("nobody panics with it") = Arc::clone(turn);
    }

    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::SeqCst)
    }

    /// A request has come: what to do with it.
    fn begin(&self) -> Arc<Turn> {
        let turn = Arc::clone(&self.turn.lock().expect("nobody panics with it"));
        turn.seen.fetch_add(1, Ordering::SeqCst);
        turn
    }
}

/// Whether the connection goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Stays,
    Closes,
    Resets,
}

fn acceptor() -> TlsAcceptor {
    let pem = Certificates::shared().issue(NAMES, &PKCS_ECDSA_P256_SHA256);
    let chain = CertificateDer::pem_slice_iter(pem.as_bytes()).map(|each| each.expect("a certificate")).collect();
    let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).expect("a key");
    let mut config = ServerConfig::builder_with_provider(rustls::crypto::aws_lc_rs::default_provider().into())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a certificate and its key");
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// A connection's bytes.
enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Wire {
    async fn read(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Wire::Plain(socket) => socket.read_buf(into).await,
            Wire::Tls(stream) => stream.read_buf(into).await,
        }
    }

    async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Wire::Plain(socket) => socket.write_all(bytes).await,
            Wire::Tls(stream) => {
                stream.write_all(bytes).await?;
                stream.flush().await
            }
        }
    }

    async fn shutdown(&mut self) {
        let _ = match self {
            Wire::Plain(socket) => socket.shutdown().await,
            Wire::Tls(stream) => stream.shutdown().await,
        };
    }

    /// Its end will be a reset.
    fn reset_on_close(&self) {
        let socket = match self {
            Wire::Plain(socket) => socket,
            Wire::Tls(stream) => stream.get_ref().0,
        };
        let _ = SockRef::from(socket).set_linger(Some(std::time::Duration::ZERO));
    }
}

struct Peer {
    socket: Wire,
    inbox: Vec<u8>,
    server: Server,
}

impl Peer {
    async fn fill(&mut self) -> io::Result<()> {
        match self.socket.read(&mut self.inbox).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    async fn take(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.inbox.len() < count {
            self.fill().await?;
        }
        Ok(self.inbox.drain(..count).collect())
    }

    async fn end(&mut self, next: Next) {
        match next {
            Next::Stays => {}
            Next::Closes => self.socket.shutdown().await,
            Next::Resets => self.socket.reset_on_close(),
        }
    }

    async fn speak_http1(mut self) -> io::Result<()> {
        loop {
            while head_end(&self.inbox).is_none() {
                self.fill().await?;
            }
            let end = head_end(&self.inbox).expect("it is there");
            let head = String::from_utf8_lossy(&self.inbox[..end]).into_owned();
            self.inbox.drain(..end);
            let turn = self.server.begin();
            if !turn.case.early {
                self.read_body(&head).await?;
            }
            let (bytes, next) = http1_answer(&turn);
            self.socket.write_all(&bytes).await?;
            self.end(next).await;
            match next {
                Next::Stays if turn.case.early => self.read_body(&head).await?,
                Next::Stays => {}
                // What the engine has still to say is read, lest the end be a reset.
                Next::Closes => loop {
                    self.inbox.clear();
                    self.fill().await?;
                },
                Next::Resets => return Ok(()),
            }
        }
    }

    async fn read_body(&mut self, head: &str) -> io::Result<()> {
        if let Some(length) = values(head, "Content-Length").first() {
            self.take(length.parse().expect("a number")).await?;
            return Ok(());
        }
        if values(head, "Transfer-Encoding").is_empty() {
            return Ok(());
        }
        loop {
            if let Some(whole) = propylon_e2e::http::chunked(&self.inbox) {
                self.inbox.drain(..whole.length);
                return Ok(());
            }
            self.fill().await?;
        }
    }

    async fn speak_http2(mut self) -> io::Result<()> {
        self.take(PREFACE.len()).await?;
        self.socket.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
        let mut streams: HashMap<u32, Arc<Turn>> = HashMap::new();
        loop {
            let head = self.take(9).await?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes(head[5..9].try_into().expect("four bytes"));
            let payload = self.take(length as usize).await?;
            let mut said = Vec::new();
            match kind {
                SETTINGS if flags & ACK == 0 => said = frame(SETTINGS, ACK, 0, &[]),
                PING if flags & ACK == 0 => said = frame(PING, ACK, 0, &payload),
                DATA if length > 0 => said = frame(WINDOW_UPDATE, 0, 0, &length.to_be_bytes()),
                CONTINUATION => panic!("a head that needs two frames"),
                _ => {}
            }
            let turn = match kind {
                HEADERS => Some(Arc::clone(streams.entry(stream).or_insert_with(|| self.server.begin()))),
                DATA => streams.get(&stream).cloned(),
                RST_STREAM => {
                    streams.remove(&stream);
                    None
                }
                _ => None,
            };
            let mut next = Next::Stays;
            if let Some(turn) = turn.filter(|turn| turn.case.early || flags & END_STREAM != 0) {
                // Early ones are answered once.
                streams.remove(&stream);
                if turn.case.early && flags & END_STREAM == 0 {
                    self.socket.write_all(&said).await?;
                    said.clear();
                }
                let bytes;
                (bytes, next) = http2_answer(stream, &turn);
                said.extend(bytes);
            }
            self.socket.write_all(&said).await?;
            self.end(next).await;
            match next {
                Next::Stays => {}
                Next::Closes => loop {
                    self.inbox.clear();
                    self.fill().await?;
                },
                Next::Resets => return Ok(()),
            }
        }
    }
}

/// How much of it is sent where it is broken off here; none where it is not.
fn broken_at(case: &Case, place: Place) -> Option<Break> {
    case.broken.filter(|(_, at)| *at == place).map(|(how, _)| how)
}

fn http1_answer(turn: &Turn) -> (Vec<u8>, Next) {
    let case = &turn.case;
    let ends = |how: Break| if how == Break::Reset { Next::Resets } else { Next::Closes };
    let mut out = Vec::new();
    if let Some(how) = broken_at(case, Place::Request) {
        return (out, ends(how));
    }
    for _ in 0..case.interim {
        out.extend(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n");
    }
    out.extend(format!("HTTP/1.1 {} Said\r\nX-Tag: {}\r\n", case.status, turn.tag).into_bytes());
    let body = body(&turn.tag, case.sent());
    match case.body {
        Body::Empty if case.has_no_body() || case.status == 101 || case.broken.is_some() && case.late_end => {}
        Body::Empty => out.extend(b"Content-Length: 0\r\n"),
        Body::UntilClose => {}
        Body::Open => out.extend(b"Transfer-Encoding: chunked\r\n"),
        _ => out.extend(format!("Content-Length: {}\r\n", case.bytes).into_bytes()),
    }
    out.extend(b"\r\n");
    if let Some(how) = broken_at(case, Place::Head) {
        return (out, ends(how));
    }
    let half = case.broken.map_or(body.len(), |_| body.len() / 2);
    match case.body {
        Body::Open => {
            for piece in body[..half].chunks(7_000) {
                out.extend(format!("{:x}\r\n", piece.len()).into_bytes());
                out.extend(piece);
                out.extend(b"\r\n");
            }
            if case.broken.is_none() {
                out.extend(if case.trailers { &b"0\r\nX-Sum: 1\r\n\r\n"[..] } else { b"0\r\n\r\n" });
            }
        }
        _ => out.extend(&body[..half]),
    }
    if let Some(how) = broken_at(case, Place::Body) {
        return (out, ends(how));
    }
    let closes = match case.body {
        Body::UntilClose | Body::TooShort => true,
        Body::Promised => !case.has_no_body(),
        _ => false,
    };
    (out, if closes { Next::Closes } else { Next::Stays })
}

fn http2_answer(stream: u32, turn: &Turn) -> (Vec<u8>, Next) {
    let case = &turn.case;
    let mut out = Vec::new();
    let broken = |mut out: Vec<u8>, how: Break| {
        let code = match how {
            Break::Close => return (out, Next::Closes),
            Break::Reset => return (out, Next::Resets),
            Break::NoError => NO_ERROR,
            Break::Cancel => CANCEL,
            Break::InternalError => INTERNAL_ERROR,
        };
        out.extend(frame(RST_STREAM, 0, stream, &code.to_be_bytes()));
        (out, Next::Stays)
    };
    if let Some(how) = broken_at(case, Place::Request) {
        return broken(out, how);
    }
    for _ in 0..case.interim {
        out.extend(frame(HEADERS, END_HEADERS, stream, &block(&[(":status", "103"), ("link", "</a.css>")])));
    }
    let (status, length) = (case.status.to_string(), case.bytes.to_string());
    let mut fields = vec![(":status", status.as_str()), ("x-tag", turn.tag.as_str())];
    if matches!(case.body, Body::Length | Body::TooLong | Body::TooShort | Body::Promised) {
        fields.push(("content-length", &length));
    }
    let body = body(&turn.tag, case.sent());
    let trailers = case.trailers && case.body == Body::Open;
    let ends_here = body.is_empty() && !trailers && case.broken.is_none() && !case.late_end;
    let end = if ends_here { END_STREAM } else { 0 };
    out.extend(frame(HEADERS, END_HEADERS | end, stream, &block(&fields)));
    if let Some(how) = broken_at(case, Place::Head) {
        return broken(out, how);
    }
    let half = case.broken.map_or(body.len(), |_| body.len() / 2);
    if !ends_here {
        let pieces: Vec<&[u8]> = body[..half].chunks(7_000).collect();
        let last = pieces.len().saturating_sub(1);
        for (at, piece) in pieces.iter().enumerate() {
            let end = if at == last && !trailers && case.broken.is_none() { END_STREAM } else { 0 };
            out.extend(frame(DATA, end, stream, piece));
        }
        if pieces.is_empty() && case.broken.is_none() && !trailers {
            out.extend(frame(DATA, END_STREAM, stream, &[]));
        }
        if trailers && case.broken.is_none() {
            out.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&[("x-sum", "1")])));
        }
    }
    match broken_at(case, Place::Body) {
        Some(how) => broken(out, how),
        None => (out, Next::Stays),
    }
}

/// The body of a request, and its first half.
pub fn request_body(case: &Case) -> (Vec<u8>, usize) {
    match case.request_body {
        RequestBody::None => (Vec::new(), 0),
        _ => (b"GET /stolen HTTP/1.1\r\nHost: stolen\r\n\r\n".repeat(1 + case.bytes / 100), 20),
    }
}

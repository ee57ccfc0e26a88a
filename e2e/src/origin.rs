//! Origins that do exactly what a story tells them, and remember every byte they were sent.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

use crate::http::{self, Body, framing, head_end};
use crate::wait::WAIT_MAX;

pub struct Origin {
    address: SocketAddr,
    /// Connects to it, so that its acceptor looks up.
    wake: Box<dyn Fn() + Send + Sync>,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stopped: AtomicBool,
    /// What each connection has brought, in the order of their accepts.
    received: Mutex<Vec<Vec<u8>>>,
    sockets: Mutex<HashMap<usize, Weak<TcpStream>>>,
}

/// An address that refuses connections for as long as the test runs. Its port stays bound: the kernel would give a free
/// one to the next listener that asks for any, which may be the engine's own.
pub fn dead() -> SocketAddr {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a free port");
    let address = socket.local_addr().expect("bound").as_socket().expect("an address of IPv4");
    std::mem::forget(socket);
    address
}

impl Origin {
    /// Runs `script` for every connection, on a thread of its own. When the script is over, the rest of what the
    /// connection brings is read and remembered, and then it is closed.
    pub fn scripted(script: impl Fn(&mut Peer) + Send + Sync + 'static) -> Origin {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        Origin::on(listener, script)
    }

    /// The same on a listener made before: a port can be known, and refuse, before its origin serves it.
    pub fn on(listener: TcpListener, script: impl Fn(&mut Peer) + Send + Sync + 'static) -> Origin {
        let address = listener.local_addr().expect("a bound listener");
        let wake = move || drop(TcpStream::connect(address));
        Origin::accepting(address, Box::new(wake), move || listener.accept().map(|(socket, _)| socket), script)
    }

    /// The same at a Unix socket with this path, or behind `@` with this name. It has no address of the network.
    pub fn at_socket(name: &str, script: impl Fn(&mut Peer) + Send + Sync + 'static) -> Origin {
        let address = match name.strip_prefix('@') {
            Some(name) => UnixAddress::from_abstract_name(name),
            None => UnixAddress::from_pathname(name),
        };
        let address = address.expect("a name of a socket");
        let listener = UnixListener::bind_addr(&address).expect("a free name");
        let wake = move || drop(UnixStream::connect_addr(&address));
        // Streams of TCP read and write any socket.
        let accept = move || listener.accept().map(|(socket, _)| TcpStream::from(OwnedFd::from(socket)));
        Origin::accepting(SocketAddr::from(([0, 0, 0, 0], 0)), Box::new(wake), accept, script)
    }

    fn accepting(
        address: SocketAddr,
        wake: Box<dyn Fn() + Send + Sync>,
        accept: impl Fn() -> io::Result<TcpStream> + Send + 'static,
        script: impl Fn(&mut Peer) + Send + Sync + 'static,
    ) -> Origin {
        let shared = Arc::new(Shared::default());
        let script = Arc::new(script);
        let for_acceptor = Arc::clone(&shared);
        let acceptor = std::thread::spawn(move || {
            loop {
                let socket = accept();
                if for_acceptor.stopped.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(socket) = socket {
                    let (script, shared) = (Arc::clone(&script), Arc::clone(&for_acceptor));
                    let peer = Peer::new(socket, shared);
                    std::thread::spawn(move || peer.live(&*script));
                }
            }
        });
        Origin { address, wake, shared, acceptor: Some(acceptor) }
    }

    /// Answers every request, body included, with the bytes that `answer` makes of it.
    pub fn answering(answer: impl Fn(&[u8]) -> Vec<u8> + Send + Sync + 'static) -> Origin {
        Origin::scripted(move |peer| {
            while let Some(request) = peer.read_request() {
                peer.send(answer(&request));
            }
        })
    }

    /// Gives each request back, head and all.
    pub fn mirror() -> Origin {
        Origin::answering(|request| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.len());
            [head.as_bytes(), request].concat()
        })
    }

    /// Answers every request with the same bytes.
    pub fn always(answer: impl Into<Vec<u8>>) -> Origin {
        let answer = answer.into();
        Origin::answering(move |_| answer.clone())
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes received, by connection.
    pub fn received(&self) -> Vec<Vec<u8>> {
        self.shared.received.lock().expect("no script panics with it").clone()
    }

    /// All of it as text.
    pub fn received_text(&self) -> String {
        String::from_utf8_lossy(&self.received().concat()).into_owned()
    }

    pub fn connections(&self) -> usize {
        self.shared.received.lock().expect("no script panics with it").len()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        (self.wake)();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        let sockets = self.shared.sockets.lock().expect("no script panics with it");
        for socket in sockets.values().filter_map(Weak::upgrade) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// An origin's end of a connection.
pub struct Peer {
    /// None when closed.
    socket: Option<Arc<TcpStream>>,
    inbox: Vec<u8>,
    /// Counts connections from 0.
    pub number: usize,
    shared: Arc<Shared>,
}

impl Peer {
    fn new(socket: TcpStream, shared: Arc<Shared>) -> Peer {
        let socket = Arc::new(socket);
        let _ = socket.set_nodelay(true);
        let _ = socket.set_read_timeout(Some(WAIT_MAX));
        let mut received = shared.received.lock().expect("no script panics with it");
        let number = received.len();
        received.push(Vec::new());
        drop(received);
        shared.sockets.lock().expect("no script panics with it").insert(number, Arc::downgrade(&socket));
        Peer { socket: Some(socket), inbox: Vec::new(), number, shared }
    }

    fn live(mut self, script: &dyn Fn(&mut Peer)) {
        script(&mut self);
        // The engine keeps idle connections for a minute; the origin's drop ends this.
        if let Some(socket) = &self.socket {
            let _ = socket.set_read_timeout(None);
        }
        while self.fill() {}
        self.shared.sockets.lock().expect("no script panics with it").remove(&self.number);
    }

    /// Reads once; false at the end.
    fn fill(&mut self) -> bool {
        let Some(socket) = &self.socket else { return false };
        let mut piece = vec![0; 64 * 1024];
        match socket.as_ref().read(&mut piece) {
            Ok(count) if count > 0 => {
                self.inbox.extend_from_slice(&piece[..count]);
                let mut received = self.shared.received.lock().expect("no script panics with it");
                received[self.number].extend_from_slice(&piece[..count]);
                true
            }
            _ => false,
        }
    }

    /// A head, blank line included; none when the engine has closed.
    pub fn read_head(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(end) = head_end(&self.inbox) {
                return Some(self.inbox.drain(..end).collect());
            }
            if !self.fill() {
                return None;
            }
        }
    }

    /// A request with its body, as it came over the wire.
    pub fn read_request(&mut self) -> Option<Vec<u8>> {
        let mut request = self.read_head()?;
        let body = match framing(&String::from_utf8_lossy(&request), Body::None) {
            Body::Length(length) => self.read_exact(length)?,
            Body::Chunked => loop {
                if let Some(whole) = http::chunked(&self.inbox) {
                    break self.inbox.drain(..whole.length).collect();
                }
                if !self.fill() {
                    return None;
                }
            },
            Body::None | Body::UntilClose => Vec::new(),
        };
        request.extend_from_slice(&body);
        Some(request)
    }

    pub fn read_exact(&mut self, count: usize) -> Option<Vec<u8>> {
        while self.inbox.len() < count {
            if !self.fill() {
                return None;
            }
        }
        Some(self.inbox.drain(..count).collect())
    }

    /// What comes next; none at the end.
    pub fn read_some(&mut self) -> Option<Vec<u8>> {
        if self.inbox.is_empty() && !self.fill() {
            return None;
        }
        Some(std::mem::take(&mut self.inbox))
    }

    /// The engine may be gone: what cannot be sent is not this origin's concern.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.try_send(bytes.as_ref());
    }

    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let socket = self.socket.as_ref().ok_or(ErrorClosed)?;
        socket.as_ref().write_all(bytes)
    }

    /// FIN: nothing more is sent, what comes is still read.
    pub fn finish(&mut self) {
        if let Some(socket) = &self.socket {
            let _ = socket.shutdown(Shutdown::Write);
        }
    }

    /// Closes both ways.
    pub fn close(&mut self) {
        self.finish();
        self.socket = None;
    }

    /// Closes with a reset.
    pub fn reset(&mut self) {
        if let Some(socket) = &self.socket {
            let _ = SockRef::from(&**socket).set_linger(Some(Duration::ZERO));
        }
        self.socket = None;
    }

    /// Reads nothing until the engine has reset the connection, at most so long, and then closes it with a reset.
    pub fn stall(&mut self, limit: Duration) {
        let began = Instant::now();
        while began.elapsed() < limit && self.error().is_none() && !self.shared.stopped.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.reset();
    }

    fn error(&self) -> Option<io::Error> {
        self.socket.as_ref()?.take_error().ok().flatten()
    }

    /// Waits until the engine has closed, at most so long; false if it has not.
    pub fn await_close(&mut self, limit: Duration) -> bool {
        let Some(socket) = &self.socket else { return true };
        let _ = socket.set_read_timeout(Some(limit));
        let mut piece = [0; 4096];
        loop {
            match socket.as_ref().read(&mut piece) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
            }
        }
    }
}

struct ErrorClosed;

impl From<ErrorClosed> for io::Error {
    fn from(_: ErrorClosed) -> io::Error {
        io::ErrorKind::NotConnected.into()
    }
}

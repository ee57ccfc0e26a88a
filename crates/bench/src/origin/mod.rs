//! `origin`: a server that costs next to nothing, to stand behind a load balancer that is being measured.
//!
//! One thread, one epoll. `request` is what a client wants, `connection` is a client's connection, `raw` is one that
//! speaks no HTTP, `http2` is the same server for clients of HTTP/2,
//! and `cork` what its connections write to.

mod connection;
mod cork;
mod http2;
mod raw;
pub mod request;
mod settings;
pub mod tls;

use crate::failure::{Outcome, While};
use crate::interrupt::{Interrupt, LOOK_INTERVAL};
use crate::poll::Poll;
use crate::report;
use crate::stream::Stream;
use crate::units::parse_duration;
use connection::{Connection, Next};
use raw::Raw;
use rustls::ServerConnection;
use serde::Serialize;
pub use settings::{RawMode, Settings};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Waiting connections per listener; the kernel lowers it to its own limit.
const BACKLOG: i32 = 4096;
/// Taken from a socket at once.
const SCRATCH_BYTES: usize = 64 * 1024;
/// Tokens from here on are listeners.
const LISTENER_TOKEN: u64 = 1 << 62;

/// Serve as a cheap HTTP/1.1 origin, or an HTTP/2 one
#[derive(clap::Args)]
#[command(after_help = "\
Paths:
  /bytes/N      N bytes               /chunked/N   N bytes in chunks
  /status/NNN   that status           /slow[/MS]   answers after MS (1000) milliseconds
  /text/N       N bytes of words      /echo        the request's body
  any other     the fixed body; to POST, PUT and PATCH the length of their body

The first line on stdout is \"listening ADDRESS\" (one line per address). Ends on SIGTERM and SIGINT.

Examples:
  propylon-bench origin --bind 127.0.0.1:8000 --body-bytes 1024 --name blue
  propylon-bench origin --bind 127.0.0.1:8443 --tls certs/localhost.ec.pem   (for proxies that encrypt again)
  propylon-bench origin --bind 127.0.0.1:8000 --http2                        (for proxies that speak HTTP/2 to servers)
  propylon-bench origin --bind 127.0.0.1:9000 --raw echo                     (for TCP relays)")]
pub struct Arguments {
    /// Addresses to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR", value_delimiter = ',', default_value = "127.0.0.1:0")]
    pub bind: Vec<SocketAddr>,
    /// Bytes of the fixed body
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(..=64 * 1024 * 1024))]
    pub body_bytes: usize,
    /// Value of the X-Origin header field
    #[arg(long, default_value = "origin")]
    pub name: String,
    /// Wait this long before each answer
    #[arg(long, default_value = "0", value_parser = parse_duration)]
    pub delay: Duration,
    /// Answer each Nth request with 500
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub fail_every: Option<u64>,
    /// Speak TLS with this certificate: chain and key in one PEM, as `certificates` writes them
    #[arg(long, value_name = "CERT.pem")]
    pub tls: Option<PathBuf>,
    /// Speak HTTP/2: with --tls by ALPN, without it from the first byte on (prior knowledge)
    #[arg(long, conflicts_with = "raw")]
    pub http2: bool,
    /// Speak no HTTP: behind a TCP relay, for `throughput --tcp`
    #[arg(long, value_name = "MODE")]
    pub raw: Option<RawMode>,
    /// Core to stay on
    #[arg(long)]
    pub core: Option<usize>,
    /// Write the bound addresses as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// A bound origin.
pub struct Origin {
    listeners: Vec<TcpListener>,
    poll: Poll,
    settings: Settings,
    clients: Vec<Option<Client>>,
    vacant: Vec<usize>,
    /// Connections whose turn was long.
    again: Vec<usize>,
    /// Answers that wait: when, which connection, and its serial number (the place may have been given away since).
    timers: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    serial: u64,
    scratch: Box<[u8]>,
}

/// A connection in its place.
struct Client {
    protocol: Protocol,
    /// Tells this client from an earlier one in the same place.
    serial: u64,
}

enum Protocol {
    Http(Box<Connection>),
    Raw(Raw),
}

#[derive(Serialize)]
struct Bound {
    listening: Vec<SocketAddr>,
}

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    crate::machine::raise_open_files();
    if let Some(core) = arguments.core {
        crate::machine::pin_to_core(core)?;
    }
    let mut settings = Settings::new(&arguments.name, arguments.body_bytes, arguments.delay, arguments.fail_every);
    let protocol: &[u8] = if arguments.http2 { b"h2" } else { b"http/1.1" };
    settings.tls = arguments.tls.as_deref().map(|path| tls::server_config(path, protocol)).transpose()?;
    settings.raw = arguments.raw;
    let listeners = bind(&arguments.bind)?;
    let bound = Bound { listening: addresses(&listeners)? };
    for address in &bound.listening {
        println!("listening {address}");
    }
    io::stdout().flush().when("telling the address")?;
    report::save_json(arguments.json.as_deref(), &bound)?;
    match arguments.http2 {
        true => http2::serve(listeners, settings, &interrupt),
        false => Origin::new(listeners, settings)?.serve(&interrupt),
    }
}

impl Origin {
    fn new(listeners: Vec<TcpListener>, settings: Settings) -> Outcome<Self> {
        let poll = Poll::new().when("epoll")?;
        for (index, listener) in listeners.iter().enumerate() {
            poll.add(listener, LISTENER_TOKEN + index as u64).when("epoll")?;
        }
        Ok(Self {
            listeners,
            poll,
            settings,
            clients: Vec::new(),
            vacant: Vec::new(),
            again: Vec::new(),
            timers: BinaryHeap::new(),
            serial: 0,
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
        })
    }

    /// Serves until interrupted.
    pub fn serve(&mut self, interrupt: &Interrupt) -> Outcome<()> {
        let mut look_due = Instant::now() + LOOK_INTERVAL;
        while !interrupt.is_raised() {
            let mut wait = LOOK_INTERVAL;
            if let Some(Reverse((due, _, _))) = self.timers.peek() {
                wait = wait.min(due.saturating_duration_since(Instant::now()));
            }
            if !self.again.is_empty() {
                wait = Duration::ZERO;
            }
            let count = self.poll.wait(wait).when("epoll")?;
            for index in 0..count {
                let ready = self.poll.event(index);
                if ready.token >= LISTENER_TOKEN {
                    self.accept((ready.token - LISTENER_TOKEN) as usize);
                } else {
                    self.drive(ready.token as usize, ready.closing);
                }
            }
            for index in std::mem::take(&mut self.again) {
                self.drive(index, false);
            }
            if !self.timers.is_empty() {
                self.fire_timers();
            }
            if count == 0 || !self.timers.is_empty() {
                let now = Instant::now();
                if now >= look_due {
                    look_due = now + LOOK_INTERVAL;
                    // An accept that failed for want of files brings no new edge; this looks again.
                    (0..self.listeners.len()).for_each(|listener| self.accept(listener));
                }
            }
        }
        Ok(())
    }

    fn accept(&mut self, listener: usize) {
        while let Ok((socket, _)) = self.listeners[listener].accept() {
            let _ = socket.set_nodelay(true);
            if socket.set_nonblocking(true).is_err() {
                continue;
            }
            let index = self.vacant.pop().unwrap_or_else(|| {
                self.clients.push(None);
                self.clients.len() - 1
            });
            if self.poll.add(&socket, index as u64).is_err() {
                self.vacant.push(index);
                continue;
            }
            let session = self.settings.tls.clone().map(ServerConnection::new).transpose();
            let Ok(session) = session else {
                self.vacant.push(index);
                continue;
            };
            let stream = Stream::new(socket, session.map(Into::into));
            let protocol = match self.settings.raw {
                Some(mode) => Protocol::Raw(Raw::new(stream, mode)),
                None => Protocol::Http(Box::new(Connection::new(stream))),
            };
            self.serial += 1;
            self.clients[index] = Some(Client { protocol, serial: self.serial });
        }
    }

    fn drive(&mut self, index: usize, closing: bool) {
        let Some(client) = self.clients[index].as_mut() else {
            return;
        };
        let next = match &mut client.protocol {
            Protocol::Http(connection) => connection.drive(&self.settings, &mut self.scratch, closing),
            Protocol::Raw(raw) => raw.drive(&mut self.scratch),
        };
        match next {
            Next::Event => {}
            Next::Timer(due) => self.timers.push(Reverse((due, index, client.serial))),
            Next::Again => self.again.push(index),
            Next::Close => {
                self.clients[index] = None;
                self.vacant.push(index);
            }
        }
    }

    fn fire_timers(&mut self) {
        let now = Instant::now();
        while let Some(&Reverse((due, index, serial))) = self.timers.peek() {
            if due > now {
                return;
            }
            self.timers.pop();
            let client = self.clients[index].as_mut().filter(|client| client.serial == serial);
            if let Some(Protocol::Http(connection)) = client.map(|client| &mut client.protocol) {
                connection.release();
                self.drive(index, false);
            }
        }
    }
}

fn bind(addresses: &[SocketAddr]) -> Outcome<Vec<TcpListener>> {
    addresses.iter().map(|address| listen(*address).when(format_args!("listening on {address}"))).collect()
}

fn addresses(listeners: &[TcpListener]) -> Outcome<Vec<SocketAddr>> {
    listeners.iter().map(|listener| listener.local_addr().when("asking for the bound address")).collect()
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket =
        socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM.nonblocking(), None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use clap::Parser;
    use std::io::Read;
    use std::net::TcpStream;

    /// An origin on its own thread, for as long as this lives.
    pub struct Running {
        pub address: SocketAddr,
        interrupt: Interrupt,
        thread: Option<std::thread::JoinHandle<()>>,
    }

    impl Running {
        pub fn start(delay: Duration, fail_every: Option<u64>) -> Self {
            Self::with(move || Settings::new("test", 1024, delay, fail_every))
        }

        pub fn raw(mode: RawMode) -> Self {
            Self::with(move || Settings { raw: Some(mode), ..Settings::new("test", 1024, Duration::ZERO, None) })
        }

        /// With a certificate made for it.
        pub fn tls() -> Self {
            let scratch = crate::scratch::ScratchDir::new().unwrap();
            let out = scratch.path().to_string_lossy().into_owned();
            let arguments = crate::certificates::tests::Command::parse_from(["x", "--out", &out, "--keys", "ec"]);
            crate::certificates::write(&arguments.arguments).unwrap();
            let tls = tls::server_config(&scratch.path().join("localhost.ec.pem"), b"http/1.1").unwrap();
            Self::with(move || Settings { tls: Some(tls), ..Settings::new("test", 1024, Duration::ZERO, None) })
        }

        pub fn http2() -> Self {
            Self::serving(|| Settings::new("test", 1024, Duration::ZERO, None), http2::serve)
        }

        pub fn http2_failing(every: u64) -> Self {
            Self::serving(move || Settings::new("test", 1024, Duration::ZERO, Some(every)), http2::serve)
        }

        fn with(settings: impl FnOnce() -> Settings + Send + 'static) -> Self {
            Self::serving(settings, |listeners, settings, flag| Origin::new(listeners, settings)?.serve(flag))
        }

        fn serving(
            settings: impl FnOnce() -> Settings + Send + 'static,
            serve: fn(Vec<TcpListener>, Settings, &Interrupt) -> Outcome<()>,
        ) -> Self {
            let interrupt = Interrupt::default();
            let (sender, address) = std::sync::mpsc::channel();
            let flag = interrupt.clone();
            let thread = std::thread::spawn(move || {
                let listeners = bind(&["127.0.0.1:0".parse().unwrap()]).unwrap();
                sender.send(addresses(&listeners).unwrap()[0]).unwrap();
                serve(listeners, settings(), &flag).unwrap();
            });
            Self { address: address.recv().unwrap(), interrupt, thread: Some(thread) }
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            self.interrupt.raise();
            let _ = self.thread.take().unwrap().join();
        }
    }

    /// Sends `bytes`, which must make the origin close in the end, and returns all that it says.
    fn say(address: SocketAddr, bytes: &[u8]) -> String {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn pipelined_requests_are_answered_in_order() {
        let origin = Running::start(Duration::ZERO, None);
        let answer = say(
            origin.address,
            b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n\
              POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12345\
              GET /chunked/20 HTTP/1.1\r\nHost: x\r\n\r\n\
              GET /status/404 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        );
        let places: Vec<usize> = ["\r\n\r\nabc", "\r\n\r\n5", "\r\n\r\n14\r\nxxx", "HTTP/1.1 404 Not Found"]
            .iter()
            .map(|part| answer.find(part).unwrap_or_else(|| panic!("{part} in {answer}")))
            .collect();
        assert!(places.is_sorted(), "{answer}");
    }

    #[test]
    fn a_large_answer_arrives_whole() {
        let origin = Running::start(Duration::ZERO, None);
        let answer = say(origin.address, b"GET /bytes/3000000 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("Content-Length: 3000000") && head.contains("X-Origin: test"), "{head}");
        assert_eq!(body.len(), 3_000_000);
    }

    #[test]
    fn nonsense_is_refused_and_the_connection_closed() {
        let origin = Running::start(Duration::ZERO, None);
        assert!(say(origin.address, b"\x16\x03\x01 nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
    }

    #[test]
    fn an_echo_returns_all_and_ends_with_its_client() {
        let origin = Running::raw(RawMode::Echo);
        let mut socket = TcpStream::connect(origin.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let sent: Vec<u8> = (0..3_000_000u32).map(|index| (index % 251) as u8).collect();
        let mut writer = socket.try_clone().unwrap();
        let bytes = sent.clone();
        let writing = std::thread::spawn(move || {
            writer.write_all(&bytes).unwrap();
            writer.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let mut returned = Vec::new();
        socket.read_to_end(&mut returned).unwrap();
        writing.join().unwrap();
        assert!(returned == sent);
    }
}

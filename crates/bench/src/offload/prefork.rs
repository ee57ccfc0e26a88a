//! `prefork`: an origin that costs what a prefork server costs: a worker and its memory for each connection.
//!
//! All workers wait in `accept` on one listener. There are as many as were ever needed at once and one to spare, up
//! to a hard maximum; past that, connections wait in the kernel's queue, as with any such server.

use crate::body::Body;
use crate::cpu;
use crate::failure::{Failure, Outcome, While};
use crate::interrupt::{Interrupt, LOOK_INTERVAL};
use crate::machine;
use crate::origin::request::Request;
use crate::units::parse_duration;
use memchr::memmem;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Stack of a worker's thread; the memory that a worker is to cost is `--per-connection`.
const STACK_BYTES: usize = 256 * 1024;
/// Memory is taken by the page; a byte in each makes it real.
const PAGE_BYTES: usize = 4096;
const READ_BYTES: usize = 8 * 1024;
/// Longest request head taken.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Between two attempts to accept when the process is out of files.
const ACCEPT_REST: Duration = Duration::from_millis(50);
const WORKERS_MAX: usize = 16_384;

/// Serve like a prefork server: a worker and a fixed memory for each connection, up to a maximum
#[derive(clap::Args)]
#[command(after_help = "The first line on stdout is \"listening ADDRESS\". Ends on SIGTERM and SIGINT.\n\n\
    Example:\n  \
    propylon-bench prefork --bind 127.0.0.1:8000 --max 256 --per-connection 512KiB --cpu 200us")]
pub struct Arguments {
    /// Address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub bind: SocketAddr,
    #[command(flatten)]
    pub cost: Cost,
    /// Speak TLS with this certificate: chain and key in one PEM
    #[arg(long, value_name = "FILE")]
    pub certificate: Option<PathBuf>,
    /// Core to stay on
    #[arg(long)]
    pub core: Option<usize>,
}

/// Cost of serving.
#[derive(clap::Args, Clone, Copy)]
pub struct Cost {
    /// Connections that it serves at once; further ones wait in the kernel's queue
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=WORKERS_MAX as u64))]
    pub max: usize,
    /// Length of that queue; the kernel lowers it to its own limit
    #[arg(long, value_name = "N", default_value_t = 511, value_parser = clap::value_parser!(u16).range(1..))]
    pub backlog: u16,
    /// Memory that a worker takes and touches, as bytes, KiB or MiB
    #[arg(long, value_name = "BYTES", default_value = "512KiB", value_parser = parse_bytes)]
    pub per_connection: usize,
    /// CPU time that a request takes
    #[arg(long, value_name = "TIME", default_value = "200us", value_parser = parse_duration)]
    pub cpu: Duration,
    /// Bytes of the answer's body
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(..=16 * 1024 * 1024))]
    pub body_bytes: usize,
    /// Longest wait for a connection that has nothing to ask
    #[arg(long, value_name = "TIME", default_value = "75s", value_parser = parse_duration)]
    pub keep_alive: Duration,
}

impl Cost {
    /// The flags that say the same.
    pub fn flags(&self) -> Vec<String> {
        let micros = format!("{}us", self.cpu.as_micros());
        let keep_alive = format!("{}ms", self.keep_alive.as_millis());
        [
            ("--max", self.max.to_string()),
            ("--backlog", self.backlog.to_string()),
            ("--per-connection", self.per_connection.to_string()),
            ("--cpu", micros),
            ("--body-bytes", self.body_bytes.to_string()),
            ("--keep-alive", keep_alive),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect()
    }
}

/// State that all workers share.
struct Shared {
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    cost: Cost,
    answer: Vec<u8>,
    workers: AtomicUsize,
    idle: AtomicUsize,
}

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    machine::raise_open_files();
    // Else a touched byte would take 2 MiB where the allocator asks for huge pages, and a worker more than it should.
    rustix::thread::disable_transparent_huge_pages(true).when("turning huge pages off")?;
    if let Some(core) = arguments.core {
        machine::pin_to_core(core)?;
    }
    let address = start(arguments)?;
    println!("listening {address}");
    io::stdout().flush().when("telling the address")?;
    while !interrupt.is_raised() {
        std::thread::sleep(LOOK_INTERVAL);
    }
    // Workers that wait in a system call end with the process.
    Ok(())
}

/// Binds and starts the first worker.
fn start(arguments: &Arguments) -> Outcome<SocketAddr> {
    let listener =
        listen(arguments.bind, arguments.cost.backlog.into()).when(format_args!("listening on {}", arguments.bind))?;
    let address = listener.local_addr().when("asking for the bound address")?;
    let body = "x".repeat(arguments.cost.body_bytes);
    let shared = Arc::new(Shared {
        listener,
        tls: arguments.certificate.as_deref().map(tls_config).transpose()?,
        cost: arguments.cost,
        answer: format!(
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{body}",
            arguments.cost.body_bytes
        )
        .into_bytes(),
        workers: AtomicUsize::new(0),
        idle: AtomicUsize::new(0),
    });
    add_worker(&shared).when("starting a worker")?;
    Ok(address)
}

fn listen(address: SocketAddr, backlog: i32) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(backlog)?;
    Ok(socket.into())
}

fn tls_config(pem: &Path) -> Outcome<Arc<ServerConfig>> {
    let doing = format!("reading {}", pem.display());
    let (chain, key) = crate::pem::read_identity("reading", pem)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().when(&doing)?;
    Ok(Arc::new(builder.with_no_client_auth().with_single_cert(chain, key).when(&doing)?))
}

fn add_worker(shared: &Arc<Shared>) -> io::Result<()> {
    shared.workers.fetch_add(1, Ordering::SeqCst);
    shared.idle.fetch_add(1, Ordering::SeqCst);
    let own = shared.clone();
    let builder = std::thread::Builder::new().name("worker".to_owned()).stack_size(STACK_BYTES);
    let spawned = builder.spawn(move || work(&own));
    if spawned.is_err() {
        shared.workers.fetch_sub(1, Ordering::SeqCst);
        shared.idle.fetch_sub(1, Ordering::SeqCst);
    }
    spawned.map(|_| ())
}

/// A worker's life: its memory is its own from its first connection on, as a process's would be.
fn work(shared: &Arc<Shared>) {
    let mut memory = Vec::new();
    loop {
        let Ok((socket, _)) = shared.listener.accept() else {
            std::thread::sleep(ACCEPT_REST);
            continue;
        };
        let was_last_idle = shared.idle.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last_idle && shared.workers.load(Ordering::SeqCst) < shared.cost.max {
            // Without another worker those who come wait for one; as they do past the maximum.
            let _ = add_worker(shared);
        }
        if memory.is_empty() {
            memory = touched(shared.cost.per_connection);
        }
        // How a connection ended is the client's to tell.
        let _ = serve(shared, socket);
        std::hint::black_box(&mut memory);
        shared.idle.fetch_add(1, Ordering::SeqCst);
    }
}

fn touched(bytes: usize) -> Vec<u8> {
    let mut memory = vec![0; bytes];
    memory.iter_mut().step_by(PAGE_BYTES).for_each(|byte| *byte = 1);
    memory
}

fn serve(shared: &Shared, socket: TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(shared.cost.keep_alive.max(Duration::from_millis(1))))?;
    match &shared.tls {
        None => converse(shared, socket),
        Some(config) => {
            let session = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
            converse(shared, StreamOwned::new(session, socket))
        }
    }
}

/// Requests one after the other, until the client has no more, or says something that is not HTTP.
fn converse(shared: &Shared, mut stream: impl Read + Write) -> io::Result<()> {
    let mut input = Vec::new();
    let mut piece = [0; READ_BYTES];
    loop {
        let request = loop {
            if let Some(end) = memmem::find(&input, b"\r\n\r\n") {
                let request = Request::parse(&input[..end + 4]);
                input.drain(..end + 4);
                break request.map_err(|error| io::Error::other(error.0))?;
            }
            if !more(&mut stream, &mut piece, &mut input)? {
                return Ok(());
            }
        };
        skip_body(&request, &mut stream, &mut piece, &mut input)?;
        spend(shared.cost.cpu);
        stream.write_all(&shared.answer)?;
        stream.flush()?;
        if request.framing.close {
            return Ok(());
        }
    }
}

/// False at the end.
fn more(stream: &mut impl Read, piece: &mut [u8], input: &mut Vec<u8>) -> io::Result<bool> {
    let count = stream.read(piece)?;
    input.extend_from_slice(&piece[..count]);
    if input.len() > HEAD_BYTES_MAX {
        return Err(io::Error::other("the head is too long"));
    }
    Ok(count > 0)
}

fn skip_body(request: &Request, stream: &mut impl Read, piece: &mut [u8], input: &mut Vec<u8>) -> io::Result<()> {
    let mut body = Body::default();
    if request.framing.chunked {
        body.begin_chunked();
    } else {
        body.begin_length(request.framing.length.unwrap_or(0));
    }
    while !body.is_complete() {
        if input.is_empty() && !more(stream, piece, input)? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let rest = body.feed(input, |_| {}).map_err(|error| io::Error::other(error.0))?;
        *input = rest.to_vec();
    }
    Ok(())
}

/// Keeps this thread busy for so much CPU time, as an application would.
fn spend(time: Duration) {
    if time.is_zero() {
        return;
    }
    let until = cpu::this_thread() + time;
    while cpu::this_thread() < until {
        (0..64).for_each(|_| std::hint::spin_loop());
    }
}

/// `4096`, `512KiB`, `2MiB`.
fn parse_bytes(text: &str) -> Result<usize, String> {
    const BYTES_MAX: usize = 1 << 30;
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let scale = match &text[digits.len()..] {
        "" | "B" => 1,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        other => return Err(format!("unknown unit \"{other}\"; use KiB or MiB")),
    };
    let bytes = digits.parse::<usize>().map_err(|error| error.to_string())?.checked_mul(scale);
    bytes.filter(|bytes| *bytes <= BYTES_MAX).ok_or_else(|| "at most 1024MiB".to_owned())
}

/// One more reason than clap can give: all of it must fit.
pub fn check_memory(cost: &Cost) -> Outcome<()> {
    let text = std::fs::read_to_string("/proc/meminfo").when("reading /proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap_or_default();
    let available =
        line.split_ascii_whitespace().next().and_then(|kib| kib.parse::<usize>().ok()).unwrap_or(usize::MAX);
    let wanted = cost.max.saturating_mul(cost.per_connection) / 1024;
    if wanted > available / 2 {
        return Err(Failure::new(format!(
            "--max times --per-connection is {} MiB, more than half of the {} MiB that are free",
            wanted / 1024,
            available / 1024
        )));
    }
    Ok(())
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// In this process, for as long as it lives: its workers wait in `accept`.
    pub fn started(max: usize) -> SocketAddr {
        let cost = Cost {
            max,
            backlog: 64,
            per_connection: 4096,
            cpu: Duration::ZERO,
            body_bytes: 5,
            keep_alive: Duration::from_secs(20),
        };
        let bind = "127.0.0.1:0".parse().unwrap();
        start(&Arguments { bind, cost, certificate: None, core: None }).unwrap()
    }

    fn connect(address: SocketAddr) -> TcpStream {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        socket
    }

    fn ask(socket: &mut TcpStream, request: &[u8]) -> io::Result<String> {
        socket.write_all(request)?;
        let mut answer = [0; 512];
        let count = socket.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..count]).into_owned())
    }

    #[test]
    fn a_connection_past_the_maximum_waits_until_another_ends() {
        let address = started(2);
        let get = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        let mut served = [connect(address), connect(address)];
        for socket in &mut served {
            assert!(ask(socket, get).unwrap().ends_with("xxxxx"));
        }
        let mut waiting = connect(address);
        assert!(ask(&mut waiting, get).is_err());
        drop(served);
        waiting.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut answer = [0; 15];
        waiting.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
    }

    #[test]
    fn bodies_of_requests_are_skipped_and_bytes_have_units() {
        let mut socket = connect(started(1));
        let requests = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nabcd";
        assert!(ask(&mut socket, requests).unwrap().starts_with("HTTP/1.1 200"));
        assert!(ask(&mut socket, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap().starts_with("HTTP/1.1 200"));
        assert_eq!((parse_bytes("512KiB"), parse_bytes("7")), (Ok(524_288), Ok(7)));
        assert!(parse_bytes("1 fortnight").is_err());
    }
}

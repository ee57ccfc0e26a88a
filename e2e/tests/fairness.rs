//! One worker, and a client that takes as much of it as it can get: others have their turn all the same.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use propylon_e2e::frames::{END_HEADERS, END_STREAM, HEADERS, Http2, RST_STREAM, WINDOW_UPDATE, block, frame, request};
use propylon_e2e::{Client, Engine, holds};
use rustix::process::Signal;

/// What is on its way at once, as far as the kernel takes it.
const REQUESTS: usize = 6_000;
/// Requests that a client may have answered in one turn, and a few that are on their way when others come.
const TURN_ANSWERS_MAX: usize = 4 * 32;

/// Answers of the engine's own, an origin, tunnels and a relay to it.
fn config() -> String {
    let address = origin();
    format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n\
         [listener.relay]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n\
         [backend.app]\nservers = [\"{address}\"]\n\
         [[route]]\nlistener = \"plain\"\npath = \"/here\"\nrespond = {{ status = 200, body = \"here\\n\" }}\n\
         [[route]]\nlistener = \"web\"\npath = \"/here\"\nrespond = {{ status = 200, body = \"here\\n\" }}\n\
         [[route]]\nlistener = \"relay\"\nbackend = \"app\"\n\
         [[route]]\nlistener = \"plain\"\nbackend = \"app\"\n[[route]]\nlistener = \"web\"\nbackend = \"app\"\n"
    )
}

/// An origin that sends without end, or takes without end, and keeps nothing of it. It lives as long as the story's process.
fn origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            std::thread::spawn(move || serve(socket));
        }
    });
    address
}

fn serve(mut socket: TcpStream) {
    let mut piece = vec![b'x'; 64 * 1024];
    let Ok(count @ 1..) = socket.read(&mut piece) else { return };
    let head = String::from_utf8_lossy(&piece[..count]).into_owned();
    let answer = match head.split(' ').nth(1) {
        Some("/endless") => "HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n",
        Some("/tunnel") => "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: any\r\n\r\n",
        _ => {
            while let Ok(1..) = socket.read(&mut piece) {}
            return;
        }
    };
    let _ = socket.write_all(answer.as_bytes());
    while socket.write_all(&piece).is_ok() {}
}

fn stop(engine: &Engine) {
    engine.signal(Signal::STOP);
    let tasks = format!("/proc/{}/task", engine.pid());
    let is_stopped = |task: &fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // proc_pid_stat(5): the state follows the name in parentheses.
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
    };
    holds("the engine is stopped", || {
        fs::read_dir(&tasks).expect("its threads").flatten().all(|task| is_stopped(&task))
    });
}

/// A client with more requests on their way than one turn is for, and their answers.
struct Pipeline {
    socket: TcpStream,
    path: String,
    asked: usize,
    answered: usize,
    /// Bytes of one answer; all are the same.
    length: usize,
    rest: usize,
}

impl Pipeline {
    /// As many requests as the kernel takes, while the engine is stopped.
    fn fill(engine: &Engine, length: usize, attempt: usize) -> Pipeline {
        let path = format!("/here?{attempt:04}");
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut socket = TcpStream::connect(engine.address("plain")).expect("a connection");
        socket.set_nonblocking(true).expect("a flag");
        let bytes = request.repeat(REQUESTS).into_bytes();
        let mut sent = 0;
        while let Ok(count @ 1..) = socket.write(&bytes[sent..]) {
            sent += count;
        }
        // No half of a request is to come: the engine would wait for the rest.
        let asked = sent / request.len();
        Pipeline { socket, path, asked, answered: 0, length, rest: 0 }
    }

    /// Reads what has come; once at least, if `wait`.
    fn read(&mut self, wait: bool) {
        self.socket.set_nonblocking(!wait).expect("a flag");
        self.socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        let mut piece = [0; 64 * 1024];
        loop {
            match self.socket.read(&mut piece) {
                Ok(count) if count > 0 => {
                    self.rest += count;
                    self.answered += self.rest / self.length;
                    self.rest %= self.length;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock && !wait => return,
                ended => panic!("{ended:?} after {} of {} answers", self.answered, self.asked),
            }
            if wait {
                return;
            }
        }
    }
}

/// While the engine is stopped a request of another client arrives behind thousands that are on their way. What is answered first
/// is read from the log, whose lines are in the order of the answers.
#[test]
fn a_client_that_pipelines_without_end_waits_for_its_turn() {
    let engine = Engine::start(&config());
    let mut probe = engine.client("plain");
    let answer = probe.get("/here?0000");
    let length = answer.head.len() + 4 + answer.body.len();
    for attempt in 1..200 {
        stop(&engine);
        let mut greedy = Pipeline::fill(&engine, length, attempt);
        engine.signal(Signal::CONT);
        greedy.read(true);
        stop(&engine);
        greedy.read(false);
        let pending = greedy.asked - greedy.answered;
        if pending < 1_000 {
            // The engine was faster than we were.
            engine.signal(Signal::CONT);
            continue;
        }
        probe.send(format!("GET /here?probe{attempt} HTTP/1.1\r\nHost: a\r\n\r\n"));
        engine.signal(Signal::CONT);
        while greedy.answered < greedy.asked {
            greedy.read(true);
        }
        assert_eq!(probe.read_response().status, 200);
        let of_greed = |line: &serde_json::Value| line["path"] == greedy.path.as_str();
        holds("the log has all", || engine.log().iter().filter(|line| of_greed(line)).count() == greedy.asked);
        let log = engine.log();
        let place = log.iter().position(|line| line["path"] == format!("/here?probe{attempt}").as_str());
        let later = log[place.expect("a line of the probe")..].iter().filter(|line| of_greed(line)).count();
        println!(
            "{pending} requests were on their way, {} of them were answered before the other client's",
            pending - later.min(pending)
        );
        assert!(pending - later.min(pending) <= TURN_ANSWERS_MAX, "{later} of {pending} came after the probe's");
        assert!(engine.metric("propylon_budgets_spent_total", &[("budget", "requests")]) > 0.0);
        return;
    }
    panic!("the engine was always faster than the story");
}

/// What a greedy client does until it is told to stop, and what it has got: answers, or pieces of some KiB.
type Greed = fn(&Engine, &AtomicBool, &AtomicU64);

fn pump(mut socket: TcpStream, opening: &[u8], more: &[u8], stop: &AtomicBool, got: &AtomicU64) {
    socket.write_all(opening).expect("room");
    let mut taker = socket.try_clone().expect("a handle");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut piece = vec![0; 64 * 1024];
            while let Ok(1..) = taker.read(&mut piece) {
                got.fetch_add(1, Ordering::Relaxed);
            }
        });
        socket.set_write_timeout(Some(Duration::from_millis(20))).expect("a limit");
        while !stop.load(Ordering::Relaxed) {
            if more.is_empty() {
                std::thread::sleep(Duration::from_millis(5));
            } else if let Ok(1..) = socket.write(more) {
                got.fetch_add(1, Ordering::Relaxed);
            }
        }
        let _ = socket.shutdown(Shutdown::Both);
    });
}

fn plain(engine: &Engine) -> TcpStream {
    TcpStream::connect(engine.address("plain")).expect("a connection")
}

fn pipeline(engine: &Engine, stop: &AtomicBool, got: &AtomicU64) {
    pump(plain(engine), b"", &b"GET /here HTTP/1.1\r\nHost: a\r\n\r\n".repeat(2_000), stop, got);
}

fn download(engine: &Engine, stop: &AtomicBool, got: &AtomicU64) {
    pump(plain(engine), b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n", b"", stop, got);
}

fn download_over_tls(engine: &Engine, stop: &AtomicBool, got: &AtomicU64) {
    let mut client = engine.client("web");
    client.send("GET /endless HTTP/1.1\r\nHost: a\r\n\r\n");
    while !stop.load(Ordering::Relaxed) {
        client.read_through(64 * 1024, |_| {});
        got.fetch_add(1, Ordering::Relaxed);
    }
}

fn upload(engine: &Engine, stop: &AtomicBool, got: &AtomicU64) {
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000000\r\n\r\n";
    pump(plain(engine), head, &vec![b'x'; 256 * 1024], stop, got);
}

fn upload_in_chunks_of_a_byte(engine: &Engine, stop: &AtomicBool, got: &AtomicU64) {
    let head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    pump(plain(engine), head, &b"1\r\nx\r\n".repeat(40_000), stop, got);
}

fn tunnel(engine: &Engine, stop: &AtomicBool, got: &AtomicU64) {
    let head = b"GET /tunnel HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: any\r\n\r\n";
    pump(plain(engine), head, b"", stop, got);
}

fn relay(engine: &Engine, stop: &AtomicBool, got: &AtomicU64) {
    let socket = TcpStream::connect(engine.address("relay")).expect("a connection");
    pump(socket, b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n", b"", stop, got);
}

fn handshakes(engine: &Engine, stop: &AtomicBool, got: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        drop(engine.client("web"));
        got.fetch_add(1, Ordering::Relaxed);
    }
}

fn streams(engine: &Engine, stop: &AtomicBool, got: &AtomicU64) {
    let mut client = Http2::start(engine);
    client.send(WINDOW_UPDATE, 0, 0, &0x7000_0000_u32.to_be_bytes());
    let mut stream = 1;
    while !stop.load(Ordering::Relaxed) {
        let batch: Vec<u8> = (0..100).flat_map(|index| get(stream + index * 2)).collect();
        client.client.send(batch);
        let mut ended = 0;
        while ended < 100 {
            let frame = client.next_frame();
            assert_ne!(frame.kind, RST_STREAM);
            ended += u32::from(frame.stream > 0 && frame.ends());
        }
        got.fetch_add(100, Ordering::Relaxed);
        stream += 200;
    }
}

fn get(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(&request("GET", "/here")))
}

fn admin(engine: &Engine, stop: &AtomicBool, got: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        engine.metrics();
        got.fetch_add(1, Ordering::Relaxed);
    }
}

/// Asks a hundred times beside each greedy client. The times are printed; what is asserted is that all are answered, and that the
/// greedy one goes on meanwhile.
#[test]
fn a_client_is_served_beside_each_kind_of_greedy_one() {
    const KINDS: &[(&str, Greed)] = &[
        ("pipelined requests", pipeline),
        ("streams", streams),
        ("a download", download),
        ("a download over TLS", download_over_tls),
        ("an upload", upload),
        ("an upload in chunks of a byte", upload_in_chunks_of_a_byte),
        ("a tunnel", tunnel),
        ("a relay", relay),
        ("handshakes", handshakes),
        ("the admin address", admin),
    ];
    let engine = Engine::start(&config().replace("[listener.plain]", "[log]\naccess = \"off\"\n[listener.plain]"));
    for (what, greed) in KINDS {
        let (over, got) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let greedy = scope.spawn(|| greed(&engine, &over, &got));
            // The greedy one must hear of a probe that fails, or the scope waits for it for ever.
            let times = catch_unwind(AssertUnwindSafe(|| {
                holds("greed has begun", || got.load(Ordering::Relaxed) > 10);
                probe(&engine, &greedy)
            }));
            over.store(true, Ordering::Relaxed);
            let mut times = times.unwrap_or_else(|panic| resume_unwind(panic));
            times.sort_unstable();
            let before = got.load(Ordering::Relaxed);
            println!("beside {what}: p50 {:?}, p99 {:?}, most {:?}; {before} got", times[50], times[98], times[99]);
        });
    }
    assert!(engine.metric("propylon_budgets_spent_total", &[("budget", "sockets")]) > 0.0);
}

fn probe<T>(engine: &Engine, greedy: &std::thread::ScopedJoinHandle<'_, T>) -> Vec<Duration> {
    let mut client: Client = engine.client("plain");
    let ask = |_| {
        let began = Instant::now();
        assert_eq!(client.get("/here").status, 200);
        assert!(!greedy.is_finished(), "it has lost its connection");
        began.elapsed()
    };
    (0..100).map(ask).collect()
}

//! A gigabyte each way through TLS, in memory that does not grow with it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use propylon_e2e::engine::simple;
use propylon_e2e::program::{curl, curl_within};
use propylon_e2e::served::BenchOrigin;
use propylon_e2e::{Engine, Origin, Scratch, binaries, holds};
use socket2::{Domain, Socket, Type};

const MIB: u64 = 1 << 20;
/// A body in memory would be far more than this, a few buffers of each connection far less.
const GROWTH_MAX: u64 = 8 * MIB;
const LIMIT: Duration = Duration::from_secs(120);

/// How much goes each way: a gigabyte, unless PROPYLON_E2E_BYTES says otherwise on a machine where that takes minutes.
fn amount() -> u64 {
    match std::env::var("PROPYLON_E2E_BYTES") {
        Ok(text) => text.parse().expect("PROPYLON_E2E_BYTES is a number of bytes"),
        Err(_) => 1 << 30,
    }
}

fn start(origin: SocketAddr) -> Engine {
    let engine = Engine::start(&simple(&[origin]));
    // What is allocated once is not what is measured.
    let mut client = engine.client("web");
    client.send("GET /bytes/3000000 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_response().body.len(), 3_000_000);
    engine
}

/// Runs `transfer` and returns by how much the engine's memory grew meanwhile.
fn growth_during(engine: &Engine, transfer: impl FnOnce()) -> u64 {
    let before = engine.rss();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut most = before;
            while !over.load(Ordering::SeqCst) {
                most = most.max(engine.rss());
                std::thread::sleep(Duration::from_millis(20));
            }
            most - before
        });
        transfer();
        over.store(true, Ordering::SeqCst);
        sampler.join().expect("a sampler")
    })
}

fn report(what: &str, amount: u64, began: Instant, growth: u64) {
    let seconds = began.elapsed().as_secs_f64();
    let rate = amount as f64 / MIB as f64 / seconds;
    let built = if binaries::are_unoptimised() { " (unoptimised)" } else { "" };
    println!(
        "{what}: {} MiB in {seconds:.1} s, {rate:.0} MiB/s{built}, memory grew by {} KiB",
        amount / MIB,
        growth / 1024
    );
}

#[test]
#[ignore = "long: make test-long"]
fn a_gigabyte_down_through_tls_takes_no_memory() {
    let origin = BenchOrigin::start(&[]);
    let engine = start(origin.address());
    let amount = amount();
    let began = Instant::now();
    let url = format!("{}/bytes/{amount}", engine.url("web"));
    let growth = growth_during(&engine, || {
        let said = curl_within(LIMIT, &["--output", "/dev/null", "--write-out", "%{http_code} %{size_download}", &url]);
        assert_eq!(said.ok().text(), format!("200 {amount}"));
    });
    report("down", amount, began, growth);
    assert!(growth < GROWTH_MAX, "{growth} bytes");
    let line = engine.logged_path(&format!("/bytes/{amount}"));
    assert!(line["bytes_sent"].as_u64() > Some(amount), "{line}");
}

#[test]
#[ignore = "long: make test-long"]
fn a_gigabyte_up_through_tls_takes_no_memory() {
    let origin = BenchOrigin::start(&[]);
    let engine = start(origin.address());
    let amount = amount();
    let scratch = Scratch::new();
    // Without blocks on any disk.
    let file = std::fs::File::create(scratch.join("zeros")).expect("a file");
    file.set_len(amount).expect("a sparse file");
    let path = scratch.join("zeros").display().to_string();
    let began = Instant::now();
    let url = format!("{}/up", engine.url("web"));
    let growth = growth_during(&engine, || {
        let said = curl_within(LIMIT, &["--request", "POST", "--header", "Expect:", "--upload-file", &path, &url]).ok();
        assert_eq!(said.text().trim(), amount.to_string(), "the origin's count");
    });
    report("up", amount, began, growth);
    assert!(growth < GROWTH_MAX, "{growth} bytes");
    let line = engine.logged_path("/up");
    assert!(line["bytes_received"].as_u64() > Some(amount), "{line}");
}

#[test]
fn every_byte_arrives_in_its_place() {
    let origin = BenchOrigin::start(&[]);
    let engine = start(origin.address());
    let scratch = Scratch::new();
    // The most that the origin echoes is a little more.
    let bytes: Vec<u8> = (0..16_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 7) as u8).collect();
    let data = format!("@{}", scratch.write("data", &bytes).display());
    for (listener, version) in [("plain", "--http1.1"), ("web", "--http1.1"), ("web", "--http2")] {
        let url = format!("{}/echo", engine.url(listener));
        let body = [version, "--data-binary", &data, "--header", "Expect:"];
        let said = curl(&[&body[..], &[&url]].concat()).ok();
        assert!(said.stdout == bytes, "{listener}, {version}: {} bytes came back", said.stdout.len());
        let said = curl(&[&body[..], &["--header", "Transfer-Encoding: chunked", &url]].concat());
        assert!(said.ok().stdout == bytes, "{listener}, {version}, in chunks");
    }
}

/// More uploads than have wide buffers at once, each of them fast until its server takes nothing for a while.
#[test]
fn uploads_to_servers_that_stand_still_hold_little_memory_and_arrive_whole() {
    const UPLOADS: usize = 40;
    const BYTES: usize = 4_000_000;
    let bytes: Vec<u8> = (0..BYTES as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
    let (bytes, standing, goes_on) = (Arc::new(bytes), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    // Bytes that the engine does not hold lie at the client, and not in the kernel.
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.set_recv_buffer_size(64 * 1024).expect("a small buffer");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    socket.listen(128).expect("a listener");
    let origin = {
        let (bytes, standing, goes_on) = (Arc::clone(&bytes), Arc::clone(&standing), Arc::clone(&goes_on));
        Origin::on(socket.into(), move |peer| {
            while let Some(head) = peer.read_head() {
                if head.starts_with(b"POST") {
                    let first = peer.read_exact(BYTES / 4).expect("a part");
                    standing.fetch_add(1, Ordering::SeqCst);
                    holds("the test goes on", || goes_on.load(Ordering::SeqCst));
                    let rest = peer.read_exact(BYTES - BYTES / 4).expect("the rest");
                    assert!([first, rest].concat() == **bytes, "other bytes");
                }
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole");
            }
        })
    };
    let engine = Engine::start(&simple(&[origin.address()]));
    assert_eq!(engine.client("web").get("/").text(), "whole");
    let growth = growth_during(&engine, || {
        std::thread::scope(|scope| {
            for _ in 0..UPLOADS {
                let mut client = engine.client("web");
                let bytes = &bytes;
                scope.spawn(move || {
                    client.send(format!("POST /up HTTP/1.1\r\nHost: a\r\nContent-Length: {BYTES}\r\n\r\n"));
                    client.send(&**bytes);
                    assert_eq!(client.read_response().text(), "whole");
                });
            }
            holds("all of them stand still", || standing.load(Ordering::SeqCst) == UPLOADS);
            goes_on.store(true, Ordering::SeqCst);
        });
    });
    println!("{UPLOADS} uploads: memory grew by {} KiB", growth / 1024);
    // A few buffers of each, and all wide ones that there are.
    assert!(growth < GROWTH_MAX + UPLOADS as u64 * 160 * 1024 + 17 * MIB, "{growth} bytes");
}

/// A server's end of a connection is kept busy by many clients that read at different speeds.
#[test]
fn slow_readers_of_large_bodies_hold_little_memory() {
    const READERS: usize = 30;
    let origin = BenchOrigin::start(&[]);
    let engine = start(origin.address());
    let mut readers: Vec<_> = (0..READERS).map(|_| engine.client("web")).collect();
    let growth = growth_during(&engine, || {
        for reader in &mut readers {
            reader.send("GET /bytes/100000000 HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        for round in 1..20 {
            for reader in &mut readers {
                reader.read_through(50_000 * round, |_| {});
            }
        }
    });
    println!("{READERS} slow readers: memory grew by {} KiB", growth / 1024);
    assert!(growth < GROWTH_MAX + READERS as u64 * 512 * 1024, "{growth} bytes");
}

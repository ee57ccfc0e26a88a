//! A gigabyte each way through TLS, in memory that does not grow with it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use propylon_e2e::engine::simple;
use propylon_e2e::program::{curl, curl_within};
use propylon_e2e::served::BenchOrigin;
use propylon_e2e::{Engine, Scratch, binaries};

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
    for listener in ["plain", "web"] {
        let url = format!("{}/echo", engine.url(listener));
        let said = curl(&["--data-binary", &data, "--header", "Expect:", &url]).ok();
        assert!(said.stdout == bytes, "{listener}: {} bytes came back", said.stdout.len());
        let said =
            curl(&["--data-binary", &data, "--header", "Expect:", "--header", "Transfer-Encoding: chunked", &url]);
        assert!(said.ok().stdout == bytes, "{listener}, in chunks");
    }
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

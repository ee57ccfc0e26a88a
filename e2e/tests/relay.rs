//! Listeners that hand bytes on: `protocol = "tcp"`, with and without TLS, and `protocol = "passthrough"`.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use propylon_e2e::origin::dead;
use propylon_e2e::program::{curl, s_client};
use propylon_e2e::{Client, Ending, Engine, Origin, holds};
use rustix::process::Signal;

fn relay(servers: &[SocketAddr], listener: &str, backend: &str) -> String {
    let servers: Vec<String> = servers.iter().map(|address| format!("\"{address}\"")).collect();
    let servers = servers.join(", ");
    format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n{listener}\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\ntls = \"public\"\n{listener}\n\
         [backend.app]\nservers = [{servers}]\n{backend}\n\
         [[route]]\nlistener = \"plain\"\nbackend = \"app\"\n[[route]]\nlistener = \"web\"\nbackend = \"app\"\n"
    )
}

fn client(engine: &Engine, listener: &str) -> Client {
    match listener {
        "web" => Client::tls(engine.address(listener)),
        _ => Client::plain(engine.address(listener)),
    }
}

/// Gives back what it gets until the client has ended, then ends too.
fn echo() -> Origin {
    Origin::scripted(|peer| {
        while let Some(bytes) = peer.read_some() {
            if peer.try_send(&bytes).is_err() {
                return;
            }
        }
        peer.close();
    })
}

fn noise(count: usize) -> Vec<u8> {
    (0..count as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

#[test]
fn bytes_go_both_ways_and_are_accounted_for() {
    let origin = echo();
    let engine = Engine::start(&relay(&[origin.address()], "", ""));
    for listener in ["plain", "web"] {
        let mut client = client(&engine, listener);
        client.send(b"anything at all\0\xff\n");
        assert_eq!(client.read_exact(18), b"anything at all\0\xff\n");
        client.finish();
        client.ending();
        let line = engine.logged("the connection", |line| line["listener"] == listener);
        assert_eq!((&line["protocol"], &line["backend"]), (&"tcp".into(), &"app".into()), "{line}");
        assert_eq!((&line["fault"], &line["attempts"]), (&serde_json::Value::Null, &1.into()), "{line}");
        assert_eq!((&line["bytes_received"], &line["bytes_sent"]), (&18.into(), &18.into()), "{line}");
        assert_eq!(line["tls"].is_null(), listener == "plain", "{line}");
    }
    engine.metric_reaches("propylon_relays_total", &[("reason", "closed")], 2.0);
    engine.metric_reaches("propylon_connections", &[], 0.0);
    engine.metric_reaches("propylon_server_connections", &[], 0.0);
    engine.metric_reaches("propylon_received_bytes_total", &[("listener", "plain")], 18.0);
}

#[test]
fn a_server_may_speak_first() {
    let origin = Origin::scripted(|peer| {
        peer.send("220 ready\r\n");
        peer.await_close(Duration::from_secs(10));
    });
    let engine = Engine::start(&relay(&[origin.address()], "", ""));
    for listener in ["plain", "web"] {
        let mut client = client(&engine, listener);
        client.read_timeout(Duration::from_millis(1500));
        assert_eq!(client.read_exact(11), b"220 ready\r\n", "{listener}");
    }
}

#[test]
fn a_side_that_has_ended_still_hears_the_other() {
    let late = Origin::scripted(|peer| {
        // Answers only when the client has ended.
        while peer.read_some().is_some() {}
        peer.send("heard it all");
        peer.close();
    });
    let engine = Engine::start(&relay(&[late.address()], "", ""));
    for listener in ["plain", "web"] {
        let mut client = client(&engine, listener);
        client.send("all of it");
        client.finish();
        assert_eq!(client.read_exact(12), b"heard it all", "{listener}");
        assert_eq!(client.ending(), Ending::Clean, "{listener}");
    }
    let early = Origin::scripted(|peer| {
        peer.send("bye");
        peer.finish();
        while peer.read_some().is_some() {}
    });
    let engine = Engine::start(&relay(&[early.address()], "", ""));
    for listener in ["plain", "web"] {
        let mut client = client(&engine, listener);
        assert_eq!(client.read_exact(3), b"bye", "{listener}");
        assert_eq!(client.ending(), Ending::Clean, "{listener}");
        client.send(format!("last words of {listener}"));
        client.finish();
        holds("the last words arrive", || early.received_text().contains(&format!("last words of {listener}")));
    }
    engine.metric_reaches("propylon_connections", &[], 0.0);
}

#[test]
fn an_end_by_close_notify_alone_is_an_end_for_the_server_and_the_servers_is_one_for_the_client() {
    let origin = Origin::scripted(|peer| {
        while peer.read_some().is_some() {}
        // More than one record, and more than one write.
        peer.send(noise(300_000));
        peer.close();
    });
    let engine = Engine::start(&relay(&[origin.address()], "", ""));
    let mut client = Client::tls(engine.address("web"));
    client.send("all of it");
    client.close_notify();
    assert!(client.read_exact(300_000) == noise(300_000));
    assert_eq!(client.ending(), Ending::Clean);
    assert_eq!(origin.received_text(), "all of it");
    engine.metric_reaches("propylon_relays_total", &[("reason", "closed")], 1.0);
}

/// A relay and a listener for requests in front of one server with a limit.
fn limited(server: SocketAddr, max_connections: usize, backend: &str) -> String {
    relay(&[server], "", backend).replace(
        &format!("\"{server}\""),
        &format!("{{ address = \"{server}\", max_connections = {max_connections} }}"),
    ) + "[listener.http]\nbind = \"127.0.0.1:0\"\n[[route]]\nbackend = \"app\"\n[process]\nworkers = 2\n"
}

#[test]
fn relays_beyond_a_servers_limit_wait_in_line_and_get_their_turn() {
    let origin = echo();
    let engine = Engine::start(&limited(origin.address(), 2, ""));
    let mut first: Vec<Client> = ["plain", "web"].map(|listener| client(&engine, listener)).into();
    for client in &mut first {
        client.send("first");
        assert_eq!(client.read_exact(5), b"first");
    }
    let mut later: Vec<Client> = ["plain", "web"].map(|listener| client(&engine, listener)).into();
    later.iter_mut().for_each(|client| client.send("later"));
    engine.metric_reaches("propylon_queue_depth", &[], 2.0);
    assert_eq!(origin.connections(), 2);
    // A client's end ends its relay, and a reset one as well.
    first.remove(0).reset();
    first[0].finish();
    for client in &mut later {
        assert_eq!(client.read_exact(5), b"later");
        client.finish();
        assert_eq!(client.ending(), Ending::Clean);
    }
    assert_eq!(engine.metric("propylon_queue_refused_total", &[]), 0.0);
    engine.metric_reaches("propylon_server_connections", &[], 0.0);
    let line = engine.logged("one that has waited", |line| !line["duration_us"]["queue"].is_null());
    assert_eq!((&line["fault"], &line["attempts"]), (&serde_json::Value::Null, &1.into()), "{line}");
    // Every permit is back: two at once again.
    for client in &mut [client(&engine, "plain"), client(&engine, "web")] {
        client.send("again");
        assert_eq!(client.read_exact(5), b"again");
    }
}

#[test]
fn a_relay_for_which_the_line_is_too_long_or_too_slow_is_closed() {
    let origin = echo();
    let engine = Engine::start(&limited(origin.address(), 1, "queue = { limit = 1, timeout = \"1s\" }"));
    let mut holder = client(&engine, "plain");
    holder.send("x");
    holder.read_exact(1);
    let mut slow = client(&engine, "web");
    engine.metric_reaches("propylon_queue_depth", &[], 1.0);
    let mut crowded = client(&engine, "plain");
    assert_ne!(crowded.ending(), Ending::Open);
    assert_ne!(slow.read_timeout(Duration::from_secs(5)).ending(), Ending::Open);
    for reason in ["queue-full", "queue-timeout"] {
        engine.metric_reaches("propylon_queue_refused_total", &[("reason", reason)], 1.0);
        engine.metric_reaches("propylon_relays_total", &[("reason", reason)], 1.0);
    }
    assert_eq!(origin.connections(), 1);
    holder.send("y");
    assert_eq!(holder.read_exact(1), b"y");
    engine.metric_reaches("propylon_queue_depth", &[], 0.0);
}

#[test]
fn relays_and_requests_share_a_servers_limit_but_no_connection() {
    let origin = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let engine = Engine::start(&limited(origin.address(), 1, "queue = { timeout = \"20s\" }"));
    let request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut http = Client::plain(engine.address("http"));
    assert_eq!(http.get("/").text(), "ok");
    engine.metric_reaches("propylon_server_connections_idle", &[], 1.0);
    // The idle connection is in the way of the relay, which cannot use it.
    let mut relayed = client(&engine, "plain");
    relayed.send(request);
    assert_eq!(relayed.read_response().text(), "ok");
    assert_eq!(origin.connections(), 2);
    http.send(request);
    engine.metric_reaches("propylon_queue_depth", &[], 1.0);
    relayed.finish();
    assert_eq!(http.read_response().text(), "ok");
    assert_eq!(origin.connections(), 3, "the relay's connection has gone into no pool");
    assert_eq!(engine.metric("propylon_server_reused_total", &[]), 0.0);
}

#[test]
fn a_reset_is_passed_on() {
    let rude = Origin::scripted(|peer| {
        peer.read_some();
        peer.reset();
    });
    let engine = Engine::start(&relay(&[rude.address()], "", ""));
    for listener in ["plain", "web"] {
        let mut client = client(&engine, listener);
        client.send("x");
        assert_eq!(client.ending(), Ending::Reset, "{listener}");
    }
    engine.metric_reaches("propylon_relays_total", &[("reason", "server-reset")], 2.0);
    let server = TcpListener::bind("127.0.0.1:0").expect("a server");
    let engine = Engine::start(&relay(&[server.local_addr().expect("an address")], "", ""));
    for listener in ["plain", "web"] {
        let mut client = client(&engine, listener);
        client.send("x");
        let (mut theirs, _) = server.accept().expect("a connection");
        theirs.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        let mut bytes = [0; 8];
        assert_eq!(theirs.read(&mut bytes).expect("a byte"), 1);
        client.reset();
        let error = theirs.read(&mut bytes).expect_err("a reset and no end");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{listener}");
    }
    engine.metric_reaches("propylon_relays_total", &[("reason", "client-reset")], 2.0);
    engine.metric_reaches("propylon_server_connections", &[], 0.0);
}

/// The kernel tells of a reset once: here to the write that meets it, and not to the read behind.
#[test]
fn a_reset_that_meets_bytes_on_their_way_is_no_end() {
    let full = Arc::new(AtomicBool::new(false));
    let is_full = Arc::clone(&full);
    let rude = Origin::scripted(move |peer| {
        holds("nothing more can be sent", || is_full.load(Ordering::SeqCst));
        peer.send("a part of");
        peer.reset();
    });
    let engine = Engine::start(&relay(&[rude.address()], "", ""));
    for listener in ["plain", "web"] {
        full.store(false, Ordering::SeqCst);
        let mut client = client(&engine, listener);
        let wait_max = Duration::from_millis(500);
        client.read_timeout(wait_max);
        let piece = noise(32 * 1024);
        let stuck = (0..4000).any(|_| {
            let began = Instant::now();
            assert!(client.offer(&piece));
            began.elapsed() >= wait_max
        });
        assert!(stuck, "{listener}: the server reads nothing");
        full.store(true, Ordering::SeqCst);
        client.read_timeout(Duration::from_secs(10));
        let (bytes, ending) = client.read_to_end();
        assert!(b"a part of".starts_with(&bytes), "{listener}");
        assert!(matches!(ending, Ending::Reset | Ending::Truncated), "{listener}: {ending:?}");
    }
    engine.metric_reaches("propylon_relays_total", &[("reason", "server-reset")], 2.0);
}

#[test]
fn a_server_that_cannot_be_reached_is_passed_over() {
    let origin = echo();
    let engine = Engine::start(&relay(&[dead(), origin.address()], "", ""));
    for _ in 0..4 {
        let mut client = client(&engine, "plain");
        client.send("to whom it may concern");
        assert_eq!(client.read_exact(22), b"to whom it may concern");
    }
    assert!(engine.metric("propylon_server_connect_failures_total", &[]) >= 1.0);
    assert!(engine.metric("propylon_retries_total", &[]) >= 1.0);
    assert_eq!(engine.metric("propylon_relays_total", &[("reason", "connect-refused")]), 0.0);
    let engine = Engine::start(&relay(&[dead()], "", "retries = 0"));
    for listener in ["plain", "web"] {
        let mut client = client(&engine, listener);
        client.send("nobody");
        assert_ne!(client.ending(), Ending::Open, "{listener}");
    }
    engine.metric_reaches("propylon_relays_total", &[("reason", "connect-refused")], 2.0);
}

#[test]
fn a_relay_in_which_nothing_moves_is_ended() {
    let origin = echo();
    let engine = Engine::start(&relay(&[origin.address()], "timeouts = { tunnel_idle = \"1s\" }", ""));
    for listener in ["plain", "web"] {
        let mut client = client(&engine, listener);
        client.send("x");
        client.read_exact(1);
        client.read_timeout(Duration::from_secs(5));
        assert_ne!(client.ending(), Ending::Open, "{listener}");
    }
    engine.metric_reaches("propylon_relays_total", &[("reason", "idle")], 2.0);
    engine.metric_reaches("propylon_timeouts_total", &[("wait", "tunnel-idle"), ("listener", "web")], 1.0);
}

#[test]
fn a_relay_whose_reader_is_slow_goes_on_as_long_as_it_takes_anything() {
    const BYTES: usize = 400_000;
    let origin = Origin::scripted(|peer| {
        peer.read_some();
        peer.send(noise(BYTES));
        while peer.read_some().is_some() {}
    });
    let engine = Engine::start(&relay(&[origin.address()], "timeouts = { tunnel_idle = \"1s\" }", ""));
    let read = |socket: &mut socket2::Socket, into: &mut [u8]| socket.read(into).expect("no reset");
    let connected = || {
        let mut socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        socket.set_recv_buffer_size(8192).expect("a size");
        socket.connect(&engine.address("plain").into()).expect("a connection");
        socket.write_all(b"x").expect("room");
        socket
    };
    let (mut slow, stuck, mut got) = (connected(), connected(), 0);
    let mut piece = [0; 8192];
    while got < BYTES {
        got += read(&mut slow, &mut piece);
        // The reader's pace, and nothing that is waited for.
        std::thread::sleep(Duration::from_millis(if got < BYTES / 2 { 60 } else { 0 }));
    }
    assert_eq!(got, BYTES);
    // One that takes nothing at all is idle.
    engine.metric_reaches("propylon_relays_total", &[("reason", "idle")], 2.0);
    drop((slow, stuck));
    let line = engine.logged("the slow one", |line| line["bytes_sent"] == BYTES);
    assert_eq!(line["fault"], "idle");
}

/// How much goes each way; on a machine where a gigabyte takes minutes PROPYLON_E2E_BYTES says less.
fn amount() -> u64 {
    std::env::var("PROPYLON_E2E_BYTES").map_or(1 << 30, |text| text.parse().expect("a number of bytes"))
}

/// Sends a known pattern of `amount` bytes, and the end.
fn send_pattern(socket: &mut TcpStream, amount: u64) {
    let block = noise(1 << 20);
    let mut left = amount;
    while left > 0 {
        let count = left.min(block.len() as u64) as usize;
        socket.write_all(&block[..count]).expect("the other side reads");
        left -= count as u64;
    }
    socket.shutdown(Shutdown::Write).expect("an end");
}

/// Reads until the end, and returns how many bytes of the pattern came, all in their places.
fn read_pattern(socket: &mut TcpStream, mut pause: impl FnMut(u64)) -> u64 {
    let block = noise(1 << 20);
    let mut bytes = vec![0; 1 << 18];
    let mut at = 0_u64;
    loop {
        let count = socket.read(&mut bytes).expect("bytes or an end");
        if count == 0 {
            return at;
        }
        let mut seen = 0;
        while seen < count {
            let place = ((at + seen as u64) % block.len() as u64) as usize;
            let run = (count - seen).min(block.len() - place);
            assert!(bytes[seen..seen + run] == block[place..place + run], "a byte out of place near {at}");
            seen += run;
        }
        at += count as u64;
        pause(at);
    }
}

#[test]
fn a_gigabyte_goes_both_ways_at_once_in_little_memory() {
    const GROWTH_MAX: u64 = 8 << 20;
    let server = TcpListener::bind("127.0.0.1:0").expect("a server");
    let engine = Engine::start(&relay(&[server.local_addr().expect("an address")], "", ""));
    let (amount, before) = (amount(), engine.rss());
    let client = TcpStream::connect(engine.address("plain")).expect("a connection");
    let (theirs, _) = server.accept().expect("a connection");
    std::thread::scope(|scope| {
        for socket in [&client, &theirs] {
            let (mut reads, mut writes) =
                (socket.try_clone().expect("a handle"), socket.try_clone().expect("a handle"));
            scope.spawn(move || send_pattern(&mut writes, amount));
            // Reads in fits and starts, so that bytes pile up in between.
            let pause = |at: u64| {
                if at % (64 << 20) < 1 << 18 {
                    std::thread::sleep(Duration::from_millis(20));
                }
            };
            scope.spawn(move || assert_eq!(read_pattern(&mut reads, pause), amount));
        }
    });
    let growth = engine.rss().saturating_sub(before);
    assert!(growth < GROWTH_MAX, "{growth} bytes");
    let line = engine.logged("the connection", |line| line["listener"] == "plain");
    assert_eq!((line["bytes_received"].as_u64(), line["bytes_sent"].as_u64()), (Some(amount), Some(amount)), "{line}");
    assert!(engine.metric("propylon_splice_pipes", &[]) >= 0.0);
    assert_eq!(engine.metric("propylon_splice_pipes_refused_total", &[]), 0.0);
}

#[test]
fn a_reader_that_stops_holds_no_memory_here() {
    let server = TcpListener::bind("127.0.0.1:0").expect("a server");
    let engine = Engine::start(&relay(&[server.local_addr().expect("an address")], "", ""));
    let before = engine.rss();
    let mut held = Vec::new();
    for _ in 0..20 {
        let mut client = TcpStream::connect(engine.address("plain")).expect("a connection");
        let (theirs, _) = server.accept().expect("a connection");
        client.set_write_timeout(Some(Duration::from_millis(200))).expect("a timeout");
        let block = vec![7; 1 << 20];
        while client.write_all(&block).is_ok() {}
        held.push((client, theirs));
    }
    let growth = engine.rss().saturating_sub(before);
    assert!(growth < 6 << 20, "{growth} bytes for 20 connections that stand still");
}

#[test]
fn tls_ends_in_front_of_a_plaintext_server() {
    let origin = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
    let engine = Engine::start(&relay(&[origin.address()], "", ""));
    let url = format!("https://localhost:{}/", engine.address("web").port());
    let said = curl(&["--http1.1", &url]).ok();
    assert_eq!(said.text(), "ok");
    assert!(origin.received_text().starts_with("GET / HTTP/1.1\r\n"), "{}", origin.received_text());
    let line = engine.logged("the connection", |line| line["listener"] == "web");
    assert_eq!(line["server_name"], "localhost", "{line}");
}

#[test]
fn alpn_is_the_listeners_own() {
    let origin = echo();
    let engine = Engine::start(&relay(&[origin.address()], "", "").replace(
        "[backend.app]",
        "[listener.mail]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\ntls = \"public\"\nalpn = [\"imap\"]\n\
         [[route]]\nlistener = \"mail\"\nbackend = \"app\"\n[backend.app]",
    ));
    for (listener, offered, agreed) in
        [("mail", "imap,x", "ALPN protocol: imap"), ("web", "imap,x", "No ALPN negotiated")]
    {
        let said = s_client(engine.address(listener).port(), &["-alpn", offered, "-no_ign_eof"], "");
        assert!(said.text().contains(agreed), "{listener}: {}", said.text());
    }
    let line = engine.logged("the connection", |line| line["listener"] == "mail");
    assert_eq!(line["tls"]["alpn"], "imap", "{line}");
}

#[test]
fn a_drain_waits_for_relays_and_cuts_them_when_its_time_is_up() {
    let origin = echo();
    let mut engine = Engine::start(&format!(
        "[process]\nworkers = 1\ndrain_timeout = \"20s\"\n{}",
        relay(&[origin.address()], "", "")
    ));
    let mut client = client(&engine, "plain");
    client.send("before");
    client.read_exact(6);
    engine.signal(Signal::TERM);
    holds("the port is closed", || TcpStream::connect(engine.address("plain")).is_err());
    client.send("during");
    assert_eq!(client.read_exact(6), b"during");
    client.finish();
    assert_eq!(client.ending(), Ending::Clean);
    engine.expect_exit(0);
    assert_eq!(engine.wait(Duration::from_secs(10)).status.code(), Some(0));

    let mut engine = Engine::start(&relay(&[origin.address()], "", ""));
    let mut clients = ["plain", "web"].map(|listener| self::client(&engine, listener));
    for client in &mut clients {
        client.send("x");
        client.read_exact(1);
    }
    engine.signal(Signal::TERM);
    // An end in order would pass for the server's own.
    assert_eq!(clients.map(|mut client| client.ending()), [Ending::Reset, Ending::Reset]);
    for listener in ["plain", "web"] {
        let line = engine.logged("its end", |line| line["listener"] == listener);
        assert_eq!((&line["fault"], &line["bytes_sent"]), (&"cut-off".into(), &1.into()), "{line}");
    }
    assert_eq!(engine.wait(Duration::from_secs(10)).status.code(), Some(3));
}

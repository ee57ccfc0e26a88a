//! `protocol = "auto"` in plaintext: servers show by their answer to HTTP/2's preface what they speak.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use propylon_e2e::engine::with;
use propylon_e2e::http::head_end;
use propylon_e2e::nginx::Nginx;
use propylon_e2e::program::curl;
use propylon_e2e::{Engine, Origin, eventually};

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
const WAIT_MAX: Duration = Duration::from_secs(30);

fn front(servers: &[SocketAddr], more: &str) -> Engine {
    Engine::start(&with(servers, "", &format!("protocol = \"auto\"\n{more}")))
}

/// Gets a page by each kind of client so often.
#[track_caller]
fn get(engine: &Engine, times: usize) {
    for _ in 0..times {
        for (listener, version) in [("web", "--http2"), ("plain", "--http1.1"), ("plain", "--http2-prior-knowledge")] {
            assert_eq!(curl(&[version, &engine.url(listener)]).ok().text(), "hello\n", "{listener} {version}");
        }
    }
}

/// A server of HTTP/1.1 that meets the preface in its own way, counts it, and says hello to everything else.
fn server(meets: fn(&mut TcpStream)) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (address, prefaces) = (listener.local_addr().expect("an address"), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&prefaces);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let counted = Arc::clone(&counted);
            std::thread::spawn(move || {
                let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
                while let Some(count) = stream.read(&mut piece).ok().filter(|count| *count > 0) {
                    bytes.extend_from_slice(&piece[..count]);
                    let Some(end) = head_end(&bytes) else { continue };
                    if bytes.starts_with(b"PRI ") {
                        counted.fetch_add(1, Ordering::Relaxed);
                        return meets(&mut stream);
                    }
                    bytes.drain(..end);
                    if stream.write_all(HELLO.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, prefaces)
}

#[test]
fn a_server_that_speaks_both_is_spoken_to_in_http2() {
    let origin = Origin::always(HELLO);
    // An engine is such a server.
    let back = Engine::start(&with(&[origin.address()], "", ""));
    let front = front(&[back.address("plain")], "");
    get(&front, 3);
    assert_eq!(back.metric("propylon_http2_streams_total", &[]), 9.0);
    assert_eq!(front.metric("propylon_server_connections_total", &[]), 1.0);
}

#[test]
fn a_server_of_http1_is_asked_once_however_it_meets_the_question() {
    let answers: fn(&mut TcpStream) = |stream| {
        let _ = stream
            .write_all(b"HTTP/1.1 505 HTTP Version Not Supported\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    };
    let hangs_up: fn(&mut TcpStream) = |_| {};
    let says_nothing: fn(&mut TcpStream) = |stream| {
        let _ = stream.read(&mut [0; 64]).and_then(|_| stream.read(&mut [0; 64]));
    };
    for meets in [answers, hangs_up, says_nothing] {
        let (address, prefaces) = server(meets);
        let front = front(&[address], "timeouts = { connect = \"1s\" }\n");
        get(&front, 4);
        assert_eq!(prefaces.load(Ordering::Relaxed), 1);
        assert_eq!(front.metric("propylon_server_faults_total", &[]), 0.0);
        // Of connections that are no longer there none is counted as open.
        let open = || front.metric("propylon_server_connections", &[]);
        eventually(WAIT_MAX, "each worker has one at most", || (1.0..=2.0).contains(&open()).then_some(()));
    }
}

#[test]
fn nginx_of_http1_is_asked_once() {
    let nginx = Nginx::start("one");
    std::fs::write(nginx.root().join("index.html"), "hello\n").expect("a page");
    let front = front(&[nginx.address()], "");
    get(&front, 4);
    assert!(front.metric("propylon_server_connections_total", &[]) <= 3.0);
}

#[test]
fn servers_of_either_kind_stand_side_by_side() {
    let origin = Origin::always(HELLO);
    let back = Engine::start(&with(&[origin.address()], "", ""));
    let (address, prefaces) = server(|_| {});
    let front = front(&[back.address("plain"), address], "");
    get(&front, 6);
    assert_eq!(prefaces.load(Ordering::Relaxed), 1);
    assert!(back.metric("propylon_http2_streams_total", &[]) >= 1.0);
}

/// A server that speaks HTTP/2 alone: bytes of another protocol end their connection. While `is_up` is false that is
/// the end of every connection.
fn http2_alone(behind: SocketAddr, is_up: &Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let (address, is_up) = (listener.local_addr().expect("an address"), Arc::clone(is_up));
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let is_up = Arc::clone(&is_up);
            std::thread::spawn(move || {
                let mut first = [0; 4];
                let mut from = client.try_clone().expect("a handle");
                if from.read_exact(&mut first).is_err() || first != *b"PRI " || !is_up.load(Ordering::Relaxed) {
                    return;
                }
                let mut server = TcpStream::connect(behind).expect("the one behind is there");
                server.write_all(&first).expect("it listens");
                let (mut back, mut to) = (server.try_clone().expect("a handle"), client);
                std::thread::spawn(move || std::io::copy(&mut back, &mut to));
                // A server that stops ends the connections that it has.
                from.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
                let mut piece = [0; 4096];
                while is_up.load(Ordering::Relaxed) {
                    match from.read(&mut piece) {
                        Ok(0) => break,
                        Ok(count) => server.write_all(&piece[..count]).expect("it listens"),
                        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                        Err(_) => break,
                    }
                }
                let _ = (server.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
            });
        }
    });
    address
}

#[test]
fn a_server_of_http2_alone_that_was_silent_for_a_while_is_asked_again() {
    let origin = Origin::always(HELLO);
    let back = Engine::start(&with(&[origin.address()], "", ""));
    let is_up = Arc::new(AtomicBool::new(false));
    let server = http2_alone(back.address("plain"), &is_up);
    let front = front(&[server], "retries = 0\n");
    let ask = || front.client("plain").get("/").status;
    // The server's protocol is not known yet.
    for _ in 0..3 {
        assert_eq!(ask(), 502);
    }
    is_up.store(true, Ordering::Relaxed);
    for _ in 0..3 {
        // One request may still be on its way to a server of HTTP/1.1 that there is not.
        eventually(WAIT_MAX, "it is asked again", || (ask() == 200).then_some(()));
        (0..5).for_each(|_| assert_eq!(ask(), 200));
        is_up.store(false, Ordering::Relaxed);
        eventually(WAIT_MAX, "its connections have ended", || (ask() == 502).then_some(()));
        (0..4).for_each(|_| assert_eq!(ask(), 502));
        is_up.store(true, Ordering::Relaxed);
    }
    let failed = front.metric("propylon_server_faults_total", &[]);
    eventually(WAIT_MAX, "it is asked again", || (ask() == 200).then_some(()));
    assert!(front.metric("propylon_server_faults_total", &[]) <= failed + 2.0, "one failure is enough to learn from");
}

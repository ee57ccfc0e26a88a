//! Messages that a connection's TLS sends by itself, with real clients: that its TLS 1.2 key wears out, with a limit of
//! some records instead of 2^24, and answers to messages that come while it is idle.

use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use propylon_http::fault::Fault;
use propylon_tls::{Deferral, lowered_limit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;
use tokio::time::sleep;

use super::STANDING_BY_MAX;
use super::parked_tests::{House, run, until};

/// A server that answers whatever comes with this head and so many bytes behind it; returns its address.
async fn server(head: &'static str, body_bytes: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    spawn_local(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            spawn_local(async move {
                let mut request = vec![0; 64 * 1024];
                let _ = stream.read(&mut request).await;
                if head.is_empty() {
                    // To take all that comes, and to say nothing.
                    while stream.read(&mut request).await.is_ok_and(|count| count > 0) {}
                }
                let _ = stream.write_all(head.as_bytes()).await;
                let _ = stream.write_all(&vec![b'x'; body_bytes]).await;
                if head.contains("101 ") {
                    // The other way stays open: that it ends is for the engine to say.
                    while stream.read(&mut request).await.is_ok_and(|count| count > 0) {}
                }
            });
        }
    });
    address
}

fn text(listener: &str, server: &str) -> String {
    format!(
        "[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n{listener}\n\
         [tls.public]\ncertificates = [\"shop.pem\"]\n\
         [backend.app]\nservers = [\"{server}\"]\n[[route]]\nlistener = \"web\"\nbackend = \"app\"\n"
    )
}

fn house(listener: &str, server: &str) -> Rc<House> {
    serving(House::of(text(listener, server), Deferral::default()))
}

/// Lets in everybody who comes.
fn serving(house: House) -> Rc<House> {
    let house = Rc::new(house);
    let host = Rc::clone(&house);
    spawn_local(async move {
        loop {
            host.admit().await;
        }
    });
    let core = Rc::clone(&house.core);
    spawn_local(async move {
        loop {
            sleep(Duration::from_millis(20)).await;
            core.tick(false);
        }
    });
    house
}

const HEALTH: &str = "monitor_path = \"/health\"";
const TLS12: &str = "-sk --tls-max 1.2 --max-time 20 -o /dev/null";

fn curl(house: &House, arguments: &str, write_out: &str, path: &str, times: usize) -> Child {
    let url = format!("https://{}{path}", house.listener.local_addr().unwrap());
    let urls = (0..times).flat_map(|_| ["-o", "/dev/null", &url]);
    let mut curl = Command::new("curl");
    curl.args(arguments.split_whitespace()).args(["-w", write_out]).args(urls);
    curl.stdout(Stdio::piped()).spawn().unwrap()
}

/// Exit status and output.
async fn ended(mut client: Child) -> (Option<i32>, String) {
    until("the client has ended", || client.try_wait().unwrap().is_some()).await;
    let output = client.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

fn cut_off(house: &House) -> u64 {
    house.store.count(house.core.snapshot().listeners[0].metrics.faults.of(Fault::KeysExhausted))
}

fn connections(house: &House) -> u64 {
    house.store.count(house.core.snapshot().listeners[0].metrics.accepted)
}

#[test]
fn a_client_of_http_1_is_told_that_the_connection_ends_before_its_key_does() {
    run(async {
        lowered_limit::towards_clients(24);
        let house = house(HEALTH, "127.0.0.1:1");
        let client = curl(&house, &format!("{TLS12} --http1.1"), "%{http_code} %header{connection},", "/health", 40);
        let (code, said) = ended(client).await;
        assert_eq!(code, Some(0));
        let answers: Vec<&str> = said.trim_end_matches(',').split(',').collect();
        assert_eq!(answers.len(), 40);
        assert!(answers.iter().all(|answer| answer.starts_with("200 ")), "{answers:?}");
        // The handshake has a record, and each answer one: the one that meets half of the limit is the last.
        let last: Vec<usize> = (0..40).filter(|at| answers[*at] == "200 close").collect();
        assert_eq!(last, [11, 23, 35]);
        assert_eq!((connections(&house), cut_off(&house)), (4, 0));
    });
}

#[test]
fn a_client_of_http_2_is_sent_away_before_its_key_ends() {
    run(async {
        lowered_limit::towards_clients(60);
        let house = house(HEALTH, "127.0.0.1:1");
        let client = curl(&house, &format!("{TLS12} --http2"), "%{http_code},", "/health", 150);
        let (code, said) = ended(client).await;
        assert_eq!((code, said), (Some(0), "200,".repeat(150)));
        assert!(connections(&house) >= 3, "{}", connections(&house));
        assert_eq!(cut_off(&house), 0);
    });
}

#[test]
fn tls_1_3_goes_on_with_other_keys() {
    run(async {
        lowered_limit::towards_clients(24);
        let body = 4 << 20;
        let server = server("HTTP/1.1 200 OK\r\nContent-Length: 4194304\r\n\r\n", body).await;
        let house = house("", &server);
        for version in ["--http1.1", "--http2"] {
            let client = curl(&house, &format!("-sk --max-time 20 {version}"), "%{size_download}", "/", 1);
            assert_eq!(ended(client).await, (Some(0), body.to_string()), "{version}");
        }
        assert_eq!(cut_off(&house), 0);
    });
}

/// Bytes that do not fit are known to be missing, however the end of a body shows.
#[test]
fn a_response_that_is_too_long_for_the_key_is_cut_off_where_the_client_sees_it() {
    run(async {
        lowered_limit::towards_clients(40);
        const BODY: usize = 4 << 20;
        let length = "HTTP/1.1 200 OK\r\nContent-Length: 4194304\r\n\r\n";
        let until_close = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
        let cases = [
            // As bytes that are missing: the session ends in order.
            (length, "--http1.1", &[18][..]),
            (until_close, "--http1.1", &[18]),
            // A body that would end with the session is broken off.
            (until_close, "--http1.0", &[56]),
            (length, "--http2", &[18, 56, 92]),
        ];
        for (at, (head, version, codes)) in cases.into_iter().enumerate() {
            let server = server(head, BODY).await;
            let house = house("", &server);
            let client = curl(&house, &format!("{TLS12} {version}"), "%{http_code} %{size_download}", "/", 1);
            let (code, said) = ended(client).await;
            let came: usize = said.strip_prefix("200 ").unwrap().parse().unwrap();
            assert!(codes.contains(&code.unwrap()), "{at}: {code:?}");
            // How many records' worth depends on how the server's bytes come.
            assert!((1..BODY).contains(&came), "{at}: {came} bytes came");
            until("it is counted", || cut_off(&house) == 1).await;
            until("the connection is gone", || house.core.connections.get() == 0).await;
        }
    });
}

/// openssl ends without an error only at a close_notify; returns what it got.
async fn openssl(house: &House, request: &str) -> (Option<i32>, Vec<u8>) {
    let address = house.listener.local_addr().unwrap().to_string();
    let mut client = Command::new("openssl")
        .args(["s_client", "-quiet", "-tls1_2", "-ign_eof", "-connect", &address])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::io::Write::write_all(client.stdin.as_mut().unwrap(), request.as_bytes()).unwrap();
    let mut out = client.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        std::io::Read::read_to_end(&mut out, &mut all).map(|_| all)
    });
    until("the client has ended", || client.try_wait().unwrap().is_some()).await;
    (client.wait().unwrap().code(), reader.join().unwrap().unwrap())
}

const BULK: usize = 4 << 20;

#[test]
fn a_relay_whose_key_is_worn_out_ends_with_a_close_notify() {
    run(async {
        lowered_limit::towards_clients(40);
        let server = server("HTTP/1.1 101 Bytes\r\n\r\n", BULK).await;
        let house = house("protocol = \"tcp\"", &server);
        let (code, came) = openssl(&house, "hello").await;
        assert_eq!(code, Some(0));
        assert!((16 * 1024..BULK).contains(&came.len()), "{} bytes came", came.len());
        let relay = house.core.snapshot().listeners[0].relay().unwrap();
        until("it is counted", || house.store.count(relay.failed.of(Fault::KeysExhausted)) == 1).await;
        until("the connection is gone", || house.core.connections.get() == 0).await;
    });
}

#[test]
fn a_web_socket_whose_key_is_worn_out_ends_with_a_close_notify() {
    run(async {
        lowered_limit::towards_clients(40);
        let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        let server = server(head, BULK).await;
        let house = house("", &server);
        let request = "GET /chat HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        let (code, came) = openssl(&house, request).await;
        assert_eq!(code, Some(0));
        assert!(came.starts_with(b"HTTP/1.1 101 "));
        assert!((16 * 1024..BULK).contains(&came.len()), "{} bytes came", came.len());
        until("the connection is gone", || house.core.connections.get() == 0).await;
        assert_eq!(cut_off(&house), 0, "it is a tunnel's fault, and in the log alone");
    });
}

/// A server that speaks TLS 1.2 alone.
fn origin(listener: &str, server: &str) -> Rc<House> {
    let text = text(listener, server).replace("[tls.public]\n", "[tls.public]\npolicy = { versions = [\"1.2\"] }\n");
    serving(House::of(text, Deferral::default()))
}

fn behind(origin: &House, protocol: &str) -> Rc<House> {
    let address = origin.listener.local_addr().unwrap();
    let text = format!(
        "[listener.web]\nbind = \"127.0.0.1:0\"\nmonitor_path = \"/own\"\n\
         [backend.app]\nservers = [\"{address}\"]\n{protocol}\n\
         tls = {{ verify = false }}\n[[route]]\nlistener = \"web\"\nbackend = \"app\"\n"
    );
    serving(House::of(text, Deferral::default()))
}

#[test]
fn a_connection_to_a_server_whose_key_wears_gets_no_further_requests() {
    run(async {
        lowered_limit::towards_servers(24);
        for (protocol, requests, expected) in [("", 40, 4), ("protocol = \"h2\"", 60, 2)] {
            let origin = origin(HEALTH, "127.0.0.1:1");
            let front = behind(&origin, protocol);
            let url = format!("http://{}/health", front.listener.local_addr().unwrap());
            let client = Command::new("curl")
                .args(["-s", "--max-time", "20", "-w", "%{http_code},"])
                .args((0..requests).flat_map(|_| ["-o", "/dev/null", &url]))
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            assert_eq!(ended(client).await, (Some(0), "200,".repeat(requests)), "{protocol}");
            let made = connections(&origin);
            assert!(made >= expected, "{protocol}: {made} connections");
        }
    });
}

#[test]
fn an_upload_that_is_too_long_for_the_key_ends_and_the_server_hears_of_it() {
    run(async {
        lowered_limit::towards_servers(24);
        let sink = server("", 0).await;
        let origin = origin("", &sink);
        let front = behind(&origin, "");
        let url = format!("http://{}/upload", front.listener.local_addr().unwrap());
        let mut client = Command::new("curl")
            .args(["-s", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code}", "--data-binary", "@-", &url])
            .args(["-H", "Expect:"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = client.stdin.take().unwrap();
        let writer = std::thread::spawn(move || std::io::Write::write_all(&mut input, &vec![b'x'; BULK]));
        let (_, status) = ended(client).await;
        let _ = writer.join();
        assert_eq!(status, "502");
        until("the connections are gone", || origin.core.connections.get() == 0).await;
        let faults = &origin.core.snapshot().listeners[0].metrics.faults;
        assert_eq!(origin.store.count(faults.of(Fault::ClientClosed)), 1, "the server has heard an end, not a reset");
    });
}

/// A client that wants to negotiate again waits for the answer, and sends nothing meanwhile.
#[test]
fn an_idle_client_of_tls_1_2_is_declined_a_renegotiation_at_once() {
    run(async {
        let house = house(HEALTH, "127.0.0.1:1");
        let address = house.listener.local_addr().unwrap().to_string();
        let mut client = Command::new("openssl")
            .args(["s_client", "-tls1_2", "-connect", &address])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = client.stdin.take().unwrap();
        let mut said = client.stdout.take().unwrap();
        std::io::Write::write_all(&mut input, b"GET /health HTTP/1.1\r\nHost: shop.example\r\n\r\n").unwrap();
        let reader = std::thread::spawn(move || {
            let mut all = Vec::new();
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = std::io::Read::read(&mut said, &mut piece) {
                let answered = |all: &[u8]| all.windows(15).any(|part| part == b"HTTP/1.1 200 OK");
                let before = answered(&all);
                all.extend_from_slice(&piece[..count]);
                if !before && answered(&all) {
                    // To s_client a line with this letter alone is the wish to negotiate again.
                    std::io::Write::write_all(&mut input, b"R\n").unwrap();
                }
            }
        });
        until("the client has heard the answer, and ends", || client.try_wait().unwrap().is_some()).await;
        reader.join().unwrap();
        let said = String::from_utf8_lossy(&client.wait_with_output().unwrap().stderr).into_owned();
        assert!(said.contains("no renegotiation"), "{said}");
    });
}

async fn ask(client: &mut TcpStream) {
    client.write_all(b"GET /health HTTP/1.1\r\nHost: shop.example\r\n\r\n").await.unwrap();
    let mut answer = [0; 1024];
    let count = client.read(&mut answer).await.unwrap();
    assert!(answer[..count].starts_with(b"HTTP/1.1 200 "), "{:?}", String::from_utf8_lossy(&answer[..count]));
}

#[test]
fn a_quiet_connection_stands_by_then_rests_and_is_served_all_the_same() {
    run(async {
        let text = "[listener.web]\nbind = \"127.0.0.1:0\"\nmonitor_path = \"/health\"\n\
                    [backend.app]\nservers = [\"127.0.0.1:1\"]\n[[route]]\nbackend = \"app\"\n";
        let house = serving(House::of(text.into(), Deferral::default()));
        let standing_by = || house.core.standing_by.get();
        let mut client = TcpStream::connect(house.listener.local_addr().unwrap()).await.unwrap();
        for _ in 0..2 {
            for _ in 0..3 {
                ask(&mut client).await;
                until("the connection stands by", || standing_by() == 1).await;
            }
            until("the connection rests", || standing_by() == 0).await;
        }
        ask(&mut client).await;
        until("the connection stands by", || standing_by() == 1).await;
        drop(client);
        until("the connection has ended", || standing_by() == 0).await;
        // With as many as may stand by one more gives its state up at once.
        house.core.standing_by.set(STANDING_BY_MAX);
        let mut client = TcpStream::connect(house.listener.local_addr().unwrap()).await.unwrap();
        for _ in 0..3 {
            ask(&mut client).await;
            assert_eq!(standing_by(), STANDING_BY_MAX);
        }
        assert_eq!(connections(&house), 2);
    });
}

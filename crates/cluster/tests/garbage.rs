//! The client against servers that are not etcd, or mean it harm: every answer is an error in a bounded time, and with
//! a bounded amount of what it reads.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{WAIT_MAX, eventually, story};
use propylon_cluster::etcd::{Client, Error, Settings, Txn};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Bytes that a client may take of one endless answer: its limit, and what is on the way.
const TAKEN_BYTES_MAX: usize = 48 << 20;

/// A server's way with each connection, after it has read the first bytes of a request.
#[derive(Clone)]
enum Manner {
    Close,
    Silence,
    Say(Vec<u8>),
    /// A start, then the same over and over.
    Endless(&'static [u8], Vec<u8>),
}

struct Server {
    endpoint: String,
    requests: Arc<AtomicUsize>,
    sent: Arc<AtomicUsize>,
}

async fn serve(manner: Manner) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (requests, sent) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let server = Server { endpoint, requests: requests.clone(), sent: sent.clone() };
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, manner.clone(), requests.clone(), sent.clone()));
        }
    });
    server
}

async fn answer(mut stream: TcpStream, manner: Manner, requests: Arc<AtomicUsize>, sent: Arc<AtomicUsize>) {
    let mut request = [0; 4096];
    if stream.read(&mut request).await.unwrap_or(0) == 0 {
        return;
    }
    requests.fetch_add(1, Ordering::Relaxed);
    match manner {
        Manner::Close => {}
        Manner::Silence => drop(stream.read_to_end(&mut Vec::new()).await),
        Manner::Say(bytes) => drop(stream.write_all(&bytes).await),
        Manner::Endless(start, piece) => {
            let mut bytes = start.to_vec();
            while stream.write_all(&bytes).await.is_ok() {
                sent.fetch_add(bytes.len(), Ordering::Relaxed);
                bytes.clone_from(&piece);
            }
        }
    }
}

fn client(endpoints: &[&Server]) -> Client {
    let settings = Settings::new(endpoints.iter().map(|server| server.endpoint.clone()));
    Client::new(Settings { request_timeout: Duration::from_millis(500), ..settings }).unwrap()
}

fn body(text: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{text}", text.len()).into()
}

fn nonsense() -> Vec<(&'static str, Manner)> {
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n";
    let deep = "[".repeat(1 << 20);
    vec![
        ("closes", Manner::Close),
        ("is silent", Manner::Silence),
        ("no HTTP", Manner::Say(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec())),
        ("zeros", Manner::Say(vec![0; 10_000])),
        ("half a head", Manner::Say(b"HTTP/1.1 200 OK\r\nContent-".to_vec())),
        ("half JSON", Manner::Say([&head[..], br#"{"header":{"revision":"#].concat())),
        ("less than it says", Manner::Say(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{}".to_vec())),
        ("a page", Manner::Say(body("<html><h1>It works!</h1></html>"))),
        ("a list", Manner::Say(body("[1,2,3]"))),
        ("deep", Manner::Say(body(&deep))),
        ("deep in a field", Manner::Say(body(&format!(r#"{{"x":{deep}"#)))),
        ("numbers", Manner::Say(body(r#"{"header":{"revision":"many"},"kvs":[{"mod_revision":-1e99}]}"#))),
        ("no base64", Manner::Say(body(r#"{"kvs":[{"key":"%%%"}]}"#))),
        ("not found", Manner::Say(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nNot Found".to_vec())),
        ("fault", Manner::Say(b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops".to_vec())),
        (
            "elsewhere",
            Manner::Say(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n".to_vec()),
        ),
        ("endless head", Manner::Endless(b"HTTP/1.1 200 OK\r\n", b"X-Field: 0123456789\r\n".repeat(50))),
        ("endless body", Manner::Endless(head, vec![b' '; 64 << 10])),
        ("endless list", Manner::Endless(&b"HTTP/1.1 200 OK\r\n\r\n{\"kvs\":[{}"[..], b",{}".repeat(10_000))),
        ("endless line", Manner::Endless(&b"HTTP/1.1 200 OK\r\n\r\n{\"result\":\""[..], vec![b'x'; 64 << 10])),
    ]
}

#[test]
fn nonsense_is_an_error_for_requests_and_is_not_read_without_end() {
    story(async {
        for (name, manner) in nonsense() {
            let server = serve(manner).await;
            let client = client(&[&server]);
            let get = client.get("key").await;
            assert!(get.is_err(), "{name}: {get:?}");
            let put = client.put("key", b"value", None).await;
            assert!(put.is_err(), "{name}: {put:?}");
            let grant = client.grant(Duration::from_secs(5)).await;
            assert!(grant.is_err(), "{name}: {grant:?}");
            let text = format!("{}\n{}", get.unwrap_err(), put.unwrap_err());
            assert!(text.len() < 2000 && !text.contains("\r"), "{name}: {text}");
            // Each request may take its limit.
            let sent = server.sent.load(Ordering::Relaxed);
            assert!(sent < 3 * TAKEN_BYTES_MAX, "{name}: {sent} bytes");
        }
    });
}

#[test]
fn nonsense_is_an_error_for_a_watch_which_tells_it_and_goes_on_trying() {
    story(async {
        for (name, manner) in nonsense() {
            let server = serve(manner).await;
            let mut watch = client(&[&server]).watch("key", 1);
            for _ in 0..2 {
                let next = tokio::time::timeout(WAIT_MAX, watch.next()).await;
                let next = next.unwrap_or_else(|_| panic!("{name}: it says nothing"));
                assert!(next.is_err(), "{name}: {next:?}");
            }
            let (requests, sent) = (server.requests.load(Ordering::Relaxed), server.sent.load(Ordering::Relaxed));
            assert!(sent < (requests + 1) * TAKEN_BYTES_MAX, "{name}: {sent} bytes in {requests} requests");
        }
    });
}

#[test]
fn answers_that_fit_no_question_are_errors() {
    story(async {
        let other_key = r#"{"header":{"revision":"9"},"kvs":[{"key":"eA==","mod_revision":"3"}],"count":"1"}"#;
        let server = serve(Manner::Say(body(other_key))).await;
        let error = client(&[&server]).get("key").await.unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{error}");
        let error = client(&[&server]).range("key", 10).await.unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{error}");
        let no_end = serve(Manner::Say(body(r#"{"header":{"revision":"9"},"more":true}"#))).await;
        let error = client(&[&no_end]).range("key", 10).await.unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }), "{error}");
        let empty = serve(Manner::Say(body("{}"))).await;
        assert!(client(&[&empty]).grant(Duration::from_secs(5)).await.is_err());
        let too_many = serve(Manner::Say(body(r#"{"succeeded":true,"responses":[{},{}]}"#))).await;
        let error = client(&[&too_many]).txn(&Txn::new().when_absent("key")).await.unwrap_err();
        assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    });
}

#[test]
fn a_change_that_may_have_arrived_is_not_sent_to_another_endpoint() {
    story(async {
        let (first, second) = (serve(Manner::Close).await, serve(Manner::Close).await);
        let client = client(&[&first, &second]);
        let error = client.put("key", b"value", None).await.unwrap_err();
        assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
        let requests = || first.requests.load(Ordering::Relaxed) + second.requests.load(Ordering::Relaxed);
        assert_eq!(requests(), 1);
        let error = client.get("key").await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        assert_eq!(requests(), 3, "reading is tried everywhere");
    });
}

#[test]
fn a_change_goes_elsewhere_when_the_first_endpoint_cannot_be_reached() {
    story(async {
        let right = serve(Manner::Say(body(r#"{"header":{"revision":"7"}}"#))).await;
        let closed = Server {
            endpoint: format!("http://127.0.0.1:{}", common::free_ports(1)[0]),
            requests: Arc::default(),
            sent: Arc::default(),
        };
        for _ in 0..10 {
            // Whichever it begins with.
            assert_eq!(client(&[&closed, &right]).put("key", b"value", None).await, Ok(7));
        }
        let error = client(&[&closed]).put("key", b"value", None).await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    });
}

#[test]
fn a_connection_that_ended_while_nobody_used_it_costs_no_request() {
    story(async {
        // Each connection is closed behind its first answer, without a word in it.
        let server = serve(Manner::Say(body(r#"{"header":{"revision":"7"}}"#))).await;
        let client = client(&[&server]);
        for _ in 0..20 {
            eventually("a put", || async { client.put("key", b"value", None).await.ok() }).await;
        }
        assert!(server.requests.load(Ordering::Relaxed) >= 20);
    });
}

//! nginx behind the engine: its pages come through unchanged, and its deaths go unnoticed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use propylon_e2e::engine::{simple, with};
use propylon_e2e::nginx::Nginx;
use propylon_e2e::program::curl;
use propylon_e2e::{Client, Engine, eventually, holds};

const SMALL: &str = "a small page\n";

fn page(nginx: &Nginx) {
    std::fs::write(nginx.root().join("index.html"), SMALL).expect("a page");
}

#[test]
fn pages_come_through_as_nginx_serves_them() {
    let nginx = Nginx::start("one");
    page(&nginx);
    let engine = Engine::start(&simple(&[nginx.address()]));
    for listener in ["plain", "web"] {
        let mut client = engine.client(listener);
        let response = client.get("/");
        assert_eq!((response.status, response.text().as_str()), (200, SMALL));
        assert_eq!(response.field("X-Origin"), Some("one"));
        let tag = response.field("ETag").expect("nginx gives one").to_owned();
        let response = client.ask(format!("GET / HTTP/1.1\r\nHost: a\r\nIf-None-Match: {tag}\r\n\r\n"));
        assert_eq!((response.status, response.field("ETag")), (304, Some(tag.as_str())));
        let response = client.ask("GET / HTTP/1.1\r\nHost: a\r\nRange: bytes=2-6\r\n\r\n");
        assert_eq!((response.status, response.text().as_str()), (206, "small"));
        assert_eq!(response.field("Content-Range"), Some("bytes 2-6/13"));
        let response = client.ask("GET / HTTP/1.1\r\nHost: a\r\nRange: bytes=0-0,2-2\r\n\r\n");
        assert!(response.status == 206 && response.text().contains("Content-Range: bytes 2-2/13"), "{response:?}");
        let response = client.ask("GET / HTTP/1.1\r\nHost: a\r\nRange: bytes=99-\r\n\r\n");
        assert_eq!(response.status, 416);
        client.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
        let head = client.read_head();
        assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("\r\nContent-Length: 13\r\n"), "{head}");
        let response = client.get("/missing");
        assert!(response.status == 404 && response.text().contains("nginx"), "{}", response.text());
        let response = client.ask("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nhello nginx");
        assert_eq!(response.text(), "POST 11");
        let response = client.get("/moved");
        assert_eq!(response.field("Location"), Some("http://shop.test/elsewhere"), "nginx saw the client's Host");
        let response = client.ask("GET /gzip/index.html HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
        let coding = (response.field("Content-Encoding"), response.field("Transfer-Encoding"));
        assert_eq!(coding, (Some("gzip"), Some("chunked")));
    }
    assert_eq!(engine.metric("propylon_server_connections_total", &[]), 1.0, "all over one connection");
}

/// As the manual says: nginx takes a request with `Via` for a proxy's.
#[test]
fn nginx_compresses_what_has_no_via_and_with_it_where_it_is_told_to() {
    let nginx = Nginx::start("one");
    page(&nginx);
    let asked = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n");
    for (backend, wanted) in [("", [true, true]), ("via = true", [false, true])] {
        let engine = Engine::start(&with(&[nginx.address()], "", backend));
        let mut client = engine.client("plain");
        let is_coded = ["/gzip-own/index.html", "/gzip/index.html"].map(|path| {
            let response = client.ask(asked(path));
            assert_eq!(response.status, 200, "{path}");
            assert_eq!(response.field("Via"), Some("1.1 propylon"), "responses say so in any case");
            response.field("Content-Encoding") == Some("gzip")
        });
        assert_eq!(is_coded, wanted, "{backend}");
    }
}

#[test]
fn a_large_file_arrives_byte_for_byte() {
    let nginx = Nginx::start("one");
    let bytes: Vec<u8> = (0..30_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
    std::fs::write(nginx.root().join("large"), &bytes).expect("a file");
    let engine = Engine::start(&simple(&[nginx.address()]));
    for listener in ["plain", "web"] {
        let url = engine.url(listener) + "/large";
        assert!(curl(&[&url]).ok().stdout == bytes, "{listener}");
        let tail = curl(&["--range", "29999990-", &url]).ok().stdout;
        assert_eq!(tail, bytes[29_999_990..], "{listener}");
    }
}

/// Clients that ask without a pause on connections that are kept, and count what they get.
struct Load {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    fn start(engine: &Engine, clients: usize) -> Load {
        let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = (0..clients).map(|n| {
            let (stop, answers) = (Arc::clone(&stop), Arc::clone(&answers));
            let mut client = engine.client(if n % 2 == 0 { "web" } else { "plain" });
            std::thread::spawn(move || {
                let mut wrong = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    let response = client.get("/");
                    if (response.status, response.text().as_str()) != (200, SMALL) {
                        wrong.push(format!("{} {}", response.head.lines().next().unwrap_or_default(), response.text()));
                    }
                    answers.fetch_add(1, Ordering::SeqCst);
                }
                wrong
            })
        });
        let threads = threads.collect();
        Load { stop, answers, threads }
    }

    /// Lets so many more answers come.
    #[track_caller]
    fn go_on(&self, answers: u64) {
        let enough = self.answers.load(Ordering::SeqCst) + answers;
        holds("answers keep coming", || self.answers.load(Ordering::SeqCst) >= enough);
    }

    /// The number of answers; every one of them was right.
    #[track_caller]
    fn finish(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        let wrong = self.threads.into_iter().flat_map(|thread| thread.join().expect("a client was let down"));
        let wrong: Vec<String> = wrong.collect();
        assert!(wrong.is_empty(), "{} wrong answers, such as {:?}", wrong.len(), &wrong[..wrong.len().min(5)]);
        self.answers.load(Ordering::SeqCst)
    }
}

/// Waits until a server gets requests again.
#[track_caller]
fn comes_back(engine: &Engine, nginx: &Nginx) {
    let server = nginx.address().to_string();
    let labels = [("server", server.as_str())];
    let answered = || engine.metric("propylon_server_reused_total", &labels);
    let before = answered();
    // The wait doubles with each failed trial, so that it is at most as long again as the server was away, and not
    // less than a second.
    eventually(Duration::from_secs(12), "the server gets its share again", || {
        (answered() > before + 50.0).then_some(())
    });
}

#[test]
fn servers_that_die_one_at_a_time_cost_no_client_an_answer() {
    let (mut one, mut two) = (Nginx::start("one"), Nginx::start("two"));
    page(&one);
    page(&two);
    let engine = Engine::start(&format!(
        "[process]\nworkers = 1\ndrain_timeout = \"1s\"\n[log]\naccess = \"off\"\n{}",
        simple(&[one.address(), two.address()])
    ));
    let load = Load::start(&engine, 16);
    load.go_on(2_000);
    one.kill();
    load.go_on(2_000);
    one.restart();
    comes_back(&engine, &one);
    two.stop();
    load.go_on(2_000);
    two.restart();
    comes_back(&engine, &two);
    one.quit();
    load.go_on(2_000);
    one.restart();
    comes_back(&engine, &one);
    for _ in 0..3 {
        one.reload();
        two.reload();
        load.go_on(1_000);
    }
    let answers = load.finish();
    println!("{answers} answers, {} retries", engine.metric("propylon_retries_total", &[]));
    assert!(answers > 10_000, "{answers}");
    assert!(engine.metric("propylon_retries_total", &[]) > 0.0, "nothing went wrong, so nothing was shown");
    assert_eq!(engine.metric("propylon_responses_total", &[("class", "5xx")]), 0.0);
    assert_eq!(engine.metric("propylon_retries_refused_total", &[]), 0.0);
}

#[test]
fn a_server_that_is_dead_from_the_start_is_not_felt() {
    let (mut dead, alive) = (Nginx::start("dead"), Nginx::start("alive"));
    page(&alive);
    dead.kill();
    let engine = Engine::start(&simple(&[dead.address(), alive.address()]));
    let mut took = Vec::new();
    for _ in 0..20 {
        let mut client = engine.client("web");
        for _ in 0..50 {
            let asked = Instant::now();
            assert_eq!(client.get("/").text(), SMALL);
            took.push(asked.elapsed());
        }
    }
    took.sort();
    // Not the slowest one: the machine may have had other work.
    let slow = took[took.len() * 99 / 100];
    assert!(slow < Duration::from_millis(250), "an answer in a hundred took {slow:?}");
    let server = dead.address().to_string();
    let tries = engine.metric("propylon_server_connect_failures_total", &[("server", &server)]);
    assert!((1.0..20.0).contains(&tries), "the dead server was tried {tries} times");
}

#[test]
fn when_all_servers_are_dead_the_client_is_told_and_recovery_is_immediate() {
    let (mut one, mut two) = (Nginx::start("one"), Nginx::start("two"));
    page(&one);
    page(&two);
    let engine = Engine::start(&with(&[one.address(), two.address()], "", ""));
    let mut client = engine.client("web");
    assert_eq!(client.get("/").text(), SMALL);
    one.kill();
    two.kill();
    for _ in 0..50 {
        let response = client.get("/all-dead");
        assert_eq!((response.status, response.text().as_str()), (502, "502 Bad Gateway: connect-refused\n"));
    }
    assert_eq!(engine.logged_path("/all-dead")["fault"], "connect-refused");
    // All are under suspicion, so none is passed over: the first request after the return finds the one that is back.
    two.restart();
    for _ in 0..50 {
        assert_eq!(client.get("/").text(), SMALL);
    }
    one.restart();
    let named = |client: &mut Client, name: &str| client.get("/").field("X-Origin") == Some(name);
    eventually(Duration::from_secs(40), "the other one serves again", || named(&mut client, "one").then_some(()));
}

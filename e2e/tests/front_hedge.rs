//! Second attempts beside a first that is late: the first head wins, and the other server is told that nobody waits.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use propylon_e2e::admin::ask_admin;
use propylon_e2e::frames::{CANCEL, END_HEADERS, END_STREAM, HEADERS, Http2, Http2Server, RST_STREAM, request};
use propylon_e2e::origin::dead;
use propylon_e2e::otlp::Collector;
use propylon_e2e::program::curl;
use propylon_e2e::wait::WAIT_MAX;
use propylon_e2e::{Client, Engine, Origin, holds};
use rustix::process::Signal;

/// A server that answers when it is told to, and takes note of connections that end before. Paths that it is eager for
/// it answers by itself, and goes on; what is no HTTP/1 it hangs up on.
struct Held {
    origin: Origin,
    asked: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
    answers: Sender<String>,
}

impl Held {
    fn new() -> Held {
        Held::eager_for(&[], Duration::ZERO)
    }

    /// Eager for these paths, for which it takes that long.
    fn eager_for(eager: &'static [&'static str], takes: Duration) -> Held {
        let (asked, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (answers, told) = channel::<String>();
        let (told, seen, over) = (Mutex::new(told), Arc::clone(&asked), Arc::clone(&ended));
        let origin = Origin::scripted(move |peer| {
            loop {
                let Some(request) = peer.read_request().filter(|request| !request.starts_with(b"PRI ")) else { return };
                let is_for = |path: &&&str| request.starts_with(format!("GET {path} ").as_bytes());
                match eager.iter().find(is_for) {
                    Some(&"/last") => return peer.send(SAYS_HELD),
                    Some(_) => thread::sleep(takes),
                    None => break,
                }
                peer.send(SAYS_EAGER);
            }
            seen.fetch_add(1, Ordering::SeqCst);
            loop {
                if let Ok(answer) = told.lock().expect("no script panics with it").try_recv() {
                    peer.send(answer);
                    return peer.close();
                }
                if peer.await_close(Duration::from_millis(2)) {
                    over.fetch_add(1, Ordering::SeqCst);
                    return;
                }
            }
        });
        Held { origin, asked, ended, answers }
    }

    fn label(&self) -> String {
        self.origin.address().to_string()
    }

    /// Answers one request; with nothing, the connection is closed.
    fn answer(&self, response: &str) {
        self.answers.send(response.into()).expect("the server runs");
    }

    #[track_caller]
    fn is_asked(&self, times: usize) {
        holds("the server is asked", || self.asked.load(Ordering::SeqCst) >= times);
    }

    #[track_caller]
    fn is_left(&self, times: usize) {
        holds("the server's connection ends", || self.ended.load(Ordering::SeqCst) >= times);
    }
}

const SAYS_HELD: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nheld";
const SAYS_EAGER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\neager";
const BUSY: &str = "HTTP/1.1 503 Busy\r\nConnection: close\r\nContent-Length: 4\r\n\r\nbusy";

fn quick() -> Origin {
    Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nquick")
}

/// The first server is asked first, and so is any other where that is asked already.
fn config(servers: [SocketAddr; 2], backend: &str, route: &str) -> String {
    let [first, second] = servers;
    format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n\
         [backend.a]\nservers = [\"{first}\", \"{second}\"]\nbalance = \"first\"\n{backend}\n\
         [[route]]\nbackend = \"a\"\n{route}\n"
    )
}

const HEDGE: &str = "hedge = { after = \"30ms\" }";

#[track_caller]
fn hedges(engine: &Engine, wanted: [f64; 3]) {
    for (result, wanted) in ["first", "second", "neither"].into_iter().zip(wanted) {
        engine.metric_reaches("propylon_hedges_total", &[("result", result)], wanted);
    }
}

/// Nothing is under way, nobody was blamed, and nothing is held against a server.
#[track_caller]
fn is_settled(engine: &Engine, failures: f64) {
    engine.metric_reaches("propylon_server_requests_in_flight", &[], 0.0);
    engine.metric_reaches("propylon_server_connections_closing", &[], 0.0);
    assert_eq!(engine.metric("propylon_server_outcomes_total", &[("outcome", "failure")]), failures);
}

#[track_caller]
fn fails(engine: &Engine, server: &Held, times: f64) {
    let labels = [("server", &*server.label()), ("outcome", "failure")];
    engine.metric_reaches("propylon_server_outcomes_total", &labels, times);
}

#[test]
fn a_second_server_is_asked_where_the_first_is_late_and_the_first_head_wins() {
    let (slow, quick) = (Held::new(), quick());
    let limited = "circuit = { requests = 50 }";
    let engine = Engine::start(&config([slow.origin.address(), quick.address()], limited, HEDGE));
    let began = Instant::now();
    assert_eq!(engine.client("plain").get("/one").text(), "quick");
    assert!(began.elapsed() >= Duration::from_millis(30), "before it was late");
    slow.is_left(1);
    let mut http2 = Http2::start(&engine);
    http2.get(1, "/two");
    assert_eq!(http2.response(1).1, b"quick");
    slow.is_left(2);
    let url = engine.url("web");
    for version in ["--http1.1", "--http2"] {
        assert_eq!(curl(&["-sk", version, &url]).ok().text(), "quick");
    }
    slow.is_left(4);
    hedges(&engine, [0.0, 4.0, 0.0]);
    is_settled(&engine, 0.0);
    for path in ["/one", "/two"] {
        let line = engine.logged_path(path);
        assert_eq!((&line["attempts"], &line["status"]), (&2.into(), &200.into()), "{line}");
        assert_eq!(line["server"], quick.address().to_string(), "{line}");
        assert_eq!(line["fault"], serde_json::Value::Null, "{line}");
    }
    // The second is the slower one: the first has it all the same.
    let line = |server: &str| engine.metric("propylon_server_requests_total", &[("server", server)]);
    assert_eq!((line(&slow.label()), line(&quick.address().to_string())), (4.0, 4.0));
    assert_eq!(engine.metric("propylon_retries_total", &[]), 0.0);
}

#[test]
fn a_first_that_answers_while_the_second_works_has_the_second_cancelled() {
    let (first, second) = (Held::new(), Held::new());
    let engine = Engine::start(&config([first.origin.address(), second.origin.address()], "", HEDGE));
    for (number, is_http2) in [(1, false), (2, true)] {
        let path = format!("/{number}");
        let mut client = engine.client("plain");
        let mut http2 = Http2::start(&engine);
        match is_http2 {
            false => client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")),
            true => http2.get(1, &path),
        }
        second.is_asked(number);
        first.answer(SAYS_HELD);
        let text = match is_http2 {
            false => client.read_response().text(),
            true => String::from_utf8(http2.response(1).1).expect("text"),
        };
        assert_eq!(text, "held");
        second.is_left(number);
        let line = engine.logged_path(&path);
        assert_eq!((&line["attempts"], &line["server"]), (&2.into(), &first.label().into()), "{line}");
    }
    hedges(&engine, [2.0, 0.0, 0.0]);
    is_settled(&engine, 0.0);
}

#[test]
fn a_stream_of_the_slower_server_is_reset_and_its_connection_goes_on() {
    let (told, resets) = channel();
    let told = Mutex::new(told);
    let slow = Origin::scripted(move |peer| {
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        while let Some(frame) = server.next_frame() {
            if frame.kind == RST_STREAM {
                let _ = told.lock().expect("no script panics with it").send(frame.code());
            }
        }
    });
    let quick = Origin::scripted(|peer| {
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        while let Some(frame) = server.next_frame() {
            if frame.kind == HEADERS {
                server.answer(frame.stream, b"quick");
            }
        }
    });
    let engine = Engine::start(&config([slow.address(), quick.address()], "protocol = \"h2\"", HEDGE));
    let mut http2 = Http2::start(&engine);
    for number in 0..3 {
        assert_eq!(engine.client("plain").get("/").text(), "quick");
        assert_eq!(resets.recv_timeout(WAIT_MAX), Ok(CANCEL));
        let stream = 2 * number + 1;
        http2.get(stream, "/");
        assert_eq!(http2.response(stream).1, b"quick");
        assert_eq!(resets.recv_timeout(WAIT_MAX), Ok(CANCEL));
    }
    hedges(&engine, [0.0, 6.0, 0.0]);
    is_settled(&engine, 0.0);
    assert_eq!((slow.connections(), quick.connections()), (1, 1));
}

#[test]
fn requests_that_must_not_be_asked_twice_are_asked_once_however_late_they_are() {
    let (slow, quick) = (Held::new(), quick());
    let sticky = "sticky = { cookie = \"seat\" }";
    let engine = Engine::start(&config([slow.origin.address(), quick.address()], sticky, HEDGE));
    // A cookie names the slow server.
    slow.answer(SAYS_HELD);
    let cookie = engine.client("plain").get("/").field("Set-Cookie").expect("a cookie").to_owned();
    let cookie = cookie.split(';').next().expect("its value");
    let requests = [
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n".to_owned(),
        "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx".to_owned(),
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n".to_owned(),
        format!("GET / HTTP/1.1\r\nHost: a\r\nCookie: {cookie}\r\n\r\n"),
    ];
    let (mut number, asked) = (1, slow.asked.load(Ordering::SeqCst));
    for request in &requests {
        let mut client = engine.client("plain");
        client.send(request);
        slow.is_asked(asked + number);
        number += 1;
        // Ten times as long as it would take for a second to be asked.
        thread::sleep(Duration::from_millis(300));
        slow.answer(SAYS_HELD);
        assert_eq!(client.read_response().text(), "held", "{request}");
    }
    let mut http2 = Http2::start(&engine);
    http2.headers(1, END_HEADERS | END_STREAM, &request("POST", "/"));
    slow.is_asked(asked + number);
    thread::sleep(Duration::from_millis(300));
    slow.answer(SAYS_HELD);
    assert_eq!(http2.response(1).1, b"held");
    assert_eq!(quick.connections(), 0);
    hedges(&engine, [0.0; 3]);
}

#[test]
fn a_second_attempt_needs_leave_of_the_budget_and_room_at_another_server() {
    let (slow, quick) = (Held::new(), quick());
    let servers = [slow.origin.address(), quick.address()];
    let late = |engine: &Engine, asked: usize| {
        let mut client = engine.client("plain");
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        slow.is_asked(asked);
        client
    };
    // One repeat in a second and none beside: the second of two in a row has none left, or the clock has ticked.
    let retries = "retries = { attempts = 1, budget = \"0%\", min_per_second = 1 }";
    let engine = Engine::start(&config(servers, retries, HEDGE));
    let mut clients: Vec<_> = (1..=4).map(|asked| late(&engine, asked)).collect();
    let refused = || engine.metric("propylon_hedges_refused_total", &[]);
    let made = || engine.metric("propylon_hedges_total", &[("result", "second")]);
    holds("all are late", || refused() + made() == 4.0);
    assert!(refused() >= 1.0, "{} were made", made());
    let status = || ask_admin(&engine, "GET", "/status.json", "", "").text();
    holds("it is told", || status().contains("\"hedges-refused\""));
    assert_eq!(engine.metric("propylon_retries_refused_total", &[]), 0.0, "no repeat was asked for");
    (0..refused() as usize).for_each(|_| slow.answer(SAYS_HELD));
    let texts: Vec<String> = clients.iter_mut().map(|client| client.read_response().text()).collect();
    assert_eq!(texts.iter().filter(|text| *text == "held").count() as f64, refused());
    // The other server has no room: its only connection is in use.
    let busy = Held::new();
    let [first, second] = [slow.origin.address(), busy.origin.address()];
    let text = format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n\
         [backend.a]\nservers = [\"{first}\", {{ address = \"{second}\", max_connections = 1 }}]\nbalance = \"first\"\n\
         [backend.b]\nservers = [\"{first}\"]\n[[route]]\nbackend = \"a\"\n{HEDGE}\n"
    );
    let asked = slow.asked.load(Ordering::SeqCst);
    let engine = Engine::start(&text);
    let mut one = late(&engine, asked + 1);
    busy.is_asked(1);
    let mut other = late(&engine, asked + 2);
    thread::sleep(Duration::from_millis(300));
    assert_eq!(engine.metric("propylon_queue_depth", &[]), 0.0);
    assert_eq!(busy.asked.load(Ordering::SeqCst), 1);
    slow.answer(SAYS_HELD);
    slow.answer(SAYS_HELD);
    assert_eq!((one.read_response().text(), other.read_response().text()), ("held".into(), "held".into()));
    busy.is_left(1);
    hedges(&engine, [1.0, 0.0, 0.0]);
    is_settled(&engine, 0.0);
}

/// A repeat is an attempt as a second one is: where it was the last, its server may be as late as it likes.
#[test]
fn a_repeat_that_was_the_last_attempt_has_no_second_beside_it() {
    let (slow, quick) = (Held::new(), quick());
    let text = config([dead(), slow.origin.address()], "retries = 1", HEDGE);
    let text =
        text.replacen(&format!("\"{}\"]", slow.label()), &format!("\"{}\", \"{}\"]", slow.label(), quick.address()), 1);
    let engine = Engine::start(&text);
    let mut client = engine.client("plain");
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    slow.is_asked(1);
    // Ten times as long as it would take for another to be asked.
    thread::sleep(Duration::from_millis(300));
    slow.answer(SAYS_HELD);
    assert_eq!(client.read_response().text(), "held");
    assert_eq!((&engine.logged_path("/")["attempts"], quick.connections()), (&2.into(), 0));
    hedges(&engine, [0.0; 3]);
}

#[test]
fn an_attempt_that_fails_leaves_the_other_and_where_both_fail_the_client_is_told() {
    let (first, second) = (Held::new(), Held::new());
    let route = "retries = { attempts = 1, on = [\"connect\", \"reset\", 503] }\nhedge = { after = \"30ms\" }";
    let engine = Engine::start(&config([first.origin.address(), second.origin.address()], "", route));
    let mut asked = 0;
    let mut ask = |path: &str| {
        let mut client = engine.client("plain");
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        asked += 1;
        second.is_asked(asked);
        client
    };
    // The first closes, or says what is asked again: the second is under way, and no repeat is bought.
    for (number, failing) in ["", BUSY].into_iter().enumerate() {
        let mut client = ask(&format!("/first/{number}"));
        first.answer(failing);
        fails(&engine, &first, (number + 1) as f64);
        second.answer(SAYS_HELD);
        assert_eq!(client.read_response().text(), "held");
        let line = engine.logged_path(&format!("/first/{number}"));
        assert_eq!((&line["attempts"], &line["server"]), (&2.into(), &second.label().into()), "{line}");
    }
    hedges(&engine, [0.0, 2.0, 0.0]);
    // The second does.
    for (number, failing) in ["", BUSY].into_iter().enumerate() {
        let mut client = ask(&format!("/second/{number}"));
        second.answer(failing);
        fails(&engine, &second, (number + 1) as f64);
        first.answer(SAYS_HELD);
        assert_eq!(client.read_response().text(), "held");
        let line = engine.logged_path(&format!("/second/{number}"));
        assert_eq!((&line["attempts"], &line["server"]), (&2.into(), &first.label().into()), "{line}");
    }
    hedges(&engine, [2.0, 2.0, 0.0]);
    let mut client = ask("/both");
    second.answer("");
    fails(&engine, &second, 3.0);
    first.answer("");
    let response = client.read_response();
    assert_eq!((response.status, response.text().as_str()), (502, "502 Bad Gateway: closed-before-response\n"));
    assert_eq!(engine.logged_path("/both")["attempts"], 2);
    hedges(&engine, [2.0, 2.0, 1.0]);
    fails(&engine, &first, 3.0);
    fails(&engine, &second, 3.0);
    assert_eq!(engine.metric("propylon_retries_total", &[]), 0.0);
    is_settled(&engine, 6.0);
}

#[test]
fn each_server_is_told_of_itself_and_the_time_of_the_second_begins_with_it() {
    let slow = Held::new();
    let echo = Origin::answering(|request| {
        let head = String::from_utf8_lossy(request).into_owned();
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}", head.len()).into()
    });
    let servers = [slow.origin.address(), echo.address()];
    let names = "request = { host = \"{upstream.server}\", set = { X-Server = \"{upstream.server}\" } }";
    let engine = Engine::start(&config(servers, "", &format!("{names}\n{HEDGE}")));
    let said = engine.client("plain").get("/named").text().to_ascii_lowercase();
    let own = echo.address();
    assert!(said.contains(&format!("\nhost: {own}\r\n")) && said.contains(&format!("\nx-server: {own}\r\n")), "{said}");
    slow.is_left(1);
    // If both hang, the second is not waited for once more when the first is given up.
    let (first, second) = (Held::new(), Held::new());
    let route = "timeouts = { first_byte = \"2s\" }\nhedge = { after = \"1900ms\" }";
    let servers = [first.origin.address(), second.origin.address()];
    let engine = Engine::start(&config(servers, "", route));
    let began = Instant::now();
    let response = engine.client("plain").get("/late");
    assert_eq!((response.status, response.text().as_str()), (504, "504 Gateway Timeout: first-byte-timeout\n"));
    assert!(began.elapsed() >= Duration::from_millis(3_900), "the second has its own two seconds");
    first.is_left(1);
    second.is_left(1);
}

#[test]
fn both_servers_are_left_when_the_client_leaves_or_the_time_is_over() {
    let (first, second) = (Held::new(), Held::new());
    let servers = [first.origin.address(), second.origin.address()];
    let engine = Engine::start(&config(servers, "", HEDGE));
    let mut client = engine.client("plain");
    client.send("GET /gone HTTP/1.1\r\nHost: a\r\n\r\n");
    second.is_asked(1);
    drop(client);
    first.is_left(1);
    second.is_left(1);
    let mut http2 = Http2::start(&engine);
    http2.get(1, "/reset");
    second.is_asked(2);
    http2.send(RST_STREAM, 0, 1, &8_u32.to_be_bytes());
    first.is_left(2);
    second.is_left(2);
    hedges(&engine, [0.0, 0.0, 2.0]);
    is_settled(&engine, 0.0);
    // The first is given up at its limit, and the second has a limit of its own.
    let route = "timeouts = { first_byte = \"400ms\" }\nhedge = { after = \"30ms\" }";
    engine.rewrite(&config(servers, "", route));
    engine.reload();
    let response = engine.client("plain").get("/late");
    assert_eq!((response.status, response.text().as_str()), (504, "504 Gateway Timeout: first-byte-timeout\n"));
    first.is_left(3);
    second.is_left(3);
    engine.rewrite(&config(servers, "", "timeouts = { request = \"400ms\" }\nhedge = { after = \"30ms\" }"));
    engine.reload();
    let response = engine.client("plain").get("/whole");
    assert_eq!((response.status, response.text().as_str()), (504, "504 Gateway Timeout: request-timeout\n"));
    first.is_left(4);
    second.is_left(4);
    hedges(&engine, [0.0, 0.0, 4.0]);
    engine.metric_reaches("propylon_server_requests_in_flight", &[], 0.0);
}

#[test]
fn each_attempt_of_a_race_has_a_span_of_its_own_and_its_server_is_told_of_that() {
    let (slow, echo, collector) = (Held::new(), Origin::mirror(), Collector::start());
    let engine = Engine::start(&(collector.config("") + &config([slow.origin.address(), echo.address()], "", HEDGE)));
    let told = engine.client("plain").get("/raced").text();
    let span = collector.served("/raced");
    let below = collector.below(&span);
    let of = |port: u16| {
        let port = port.to_string();
        below.iter().find(|attempt| attempt.of("network.peer.port") == port).expect("the attempt at this server")
    };
    let (lost, won) = (of(slow.origin.address().port()), of(echo.address().port()));
    assert_eq!(
        (below.len(), lost.of("http.response.status_code"), won.of("http.response.status_code")),
        (2, "", "200")
    );
    assert!(told.contains(&won.span) && slow.origin.received_text().contains(&lost.span), "{told}");
    // The first answers, and the second is cancelled.
    let second = Held::new();
    let engine =
        Engine::start(&(collector.config("") + &config([slow.origin.address(), second.origin.address()], "", HEDGE)));
    let mut client = engine.client("plain");
    client.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    second.is_asked(1);
    slow.answer(SAYS_HELD);
    assert_eq!(client.read_response().text(), "held");
    let below = collector.below(&collector.served("/first"));
    let statuses: Vec<&str> = below.iter().map(|attempt| attempt.of("http.response.status_code")).collect();
    assert!(matches!(statuses[..], ["", "200"] | ["200", ""]), "{below:#?}");
}

#[test]
fn a_race_outlasts_a_reload_and_a_drain() {
    let (first, second) = (Held::new(), Held::new());
    let servers = [first.origin.address(), second.origin.address()];
    let mut engine = Engine::start(&config(servers, "", HEDGE));
    let ask = |engine: &Engine| {
        let mut client = engine.client("plain");
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        client
    };
    let mut client = ask(&engine);
    second.is_asked(1);
    // The server that is ahead is one of the configuration no more.
    let quick = quick();
    engine.rewrite(&config([first.origin.address(), quick.address()], "", ""));
    engine.reload();
    second.answer(SAYS_HELD);
    assert_eq!(client.read_response().text(), "held");
    first.is_left(1);
    hedges(&engine, [0.0, 1.0, 0.0]);
    engine.rewrite(&config(servers, "", HEDGE));
    engine.reload();
    let mut client = ask(&engine);
    second.is_asked(2);
    engine.signal(Signal::TERM);
    holds("the engine drains", || engine.stderr().iter().any(|line| line.contains("drain")));
    second.answer(SAYS_HELD);
    assert_eq!(client.read_response().text(), "held");
    first.is_left(2);
    engine.expect_exit(0);
}

#[test]
fn connections_that_were_idle_and_closed_blame_neither_attempt_of_a_race() {
    let first = Held::eager_for(&["/warm"], Duration::ZERO);
    let second = Held::eager_for(&["/both"], Duration::ZERO);
    let servers = [first.origin.address(), second.origin.address()];
    let engine = Engine::start(&format!("[process]\nworkers = 1\n{}", config(servers, "", HEDGE)));
    let stale = |server: &Held, times: f64| {
        engine.metric_reaches("propylon_server_stale_total", &[("server", &server.label())], times);
    };
    let mut client = engine.client("plain");
    let (mut asked, mut left) = (0, 0);
    for (number, is_second_quicker) in [(1, true), (2, false)] {
        // Both have a connection that has served before.
        assert_eq!(client.get("/both").text(), "eager");
        (asked, left) = (asked + 1, left + 1);
        first.is_left(left);
        assert_eq!(client.get("/warm").text(), "eager");
        client.send("GET /race HTTP/1.1\r\nHost: a\r\n\r\n");
        asked += 1;
        first.is_asked(asked);
        second.is_asked(number);
        let [one, other] = if is_second_quicker { [&second, &first] } else { [&first, &second] };
        one.answer("");
        stale(one, number as f64);
        other.answer("");
        stale(other, number as f64);
        // The repeat has a new connection, and a third attempt is the last.
        asked += 1;
        first.is_asked(asked);
        first.answer(SAYS_HELD);
        assert_eq!(client.read_response().text(), "held");
    }
    hedges(&engine, [0.0, 2.0, 2.0]);
    assert_eq!(engine.metric("propylon_stale_retries_total", &[]), 2.0);
    is_settled(&engine, 0.0);
}

#[test]
fn an_attempt_that_takes_the_place_of_another_is_judged_by_its_own_connection() {
    let eager = || Held::eager_for(&["/warm", "/last"], Duration::ZERO);
    let both = [eager(), eager()];
    let servers = [&both[0], &both[1]].map(|server| server.origin.address());
    let text = config(servers, "protocol = \"auto\"", HEDGE).replace("balance = \"first\"\n", "");
    let engine = Engine::start(&format!("[process]\nworkers = 1\n{text}"));
    let mut client = engine.client("plain");
    // In turns: both are found to speak HTTP/1.1, and the one whose turn is next has no connection left.
    for (path, says) in [("/warm", "eager"), ("/warm", "eager"), ("/last", "held"), ("/warm", "eager")] {
        assert_eq!(client.get(path).text(), says);
    }
    client.send("GET /race HTTP/1.1\r\nHost: a\r\n\r\n");
    let asked = |server: &Held| server.asked.load(Ordering::SeqCst);
    holds("both are asked", || both.iter().all(|server| asked(server) == 1));
    let received = |server: &Held, what: &str| server.origin.received_text().matches(what).count();
    let [first, second] =
        if received(&both[0], "GET /last") == 1 { [&both[0], &both[1]] } else { [&both[1], &both[0]] };
    first.answer("");
    fails(&engine, first, 1.0);
    second.answer("");
    // To have closed an idle connection is no reason to ask it once more what it speaks.
    second.is_asked(2);
    second.answer(SAYS_HELD);
    assert_eq!(client.read_response().text(), "held");
    assert_eq!(received(second, "PRI * HTTP/2.0"), 1);
    is_settled(&engine, 1.0);
}

#[test]
fn by_a_percentile_a_server_is_late_that_takes_longer_than_others_took_lately() {
    let first = Held::eager_for(&["/paced"], Duration::from_millis(20));
    let quick = quick();
    let servers = [first.origin.address(), quick.address()];
    let engine = Engine::start(&config(servers, "", "hedge = { after = \"p50\" }"));
    let after = |percentile: &str| engine.metric("propylon_hedge_after_seconds", &[("percentile", percentile)]);
    let mut client = engine.client("plain");
    let paced = |client: &mut Client, times: usize| {
        (0..times).for_each(|_| assert_eq!(client.get("/paced").status, 200));
    };
    // Too little is known.
    client.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
    first.is_asked(1);
    thread::sleep(Duration::from_millis(300));
    assert_eq!((quick.connections(), after("p50")), (0, 0.0));
    first.answer(SAYS_HELD);
    assert_eq!(client.read_response().text(), "held");
    paced(&mut client, 25);
    holds("the median is known", || after("p50") > 0.0);
    assert!((0.02..2.0).contains(&after("p50")), "{}", after("p50"));
    let made = || engine.metric("propylon_hedges_total", &[("result", "second")]);
    let before = made();
    client.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_response().text(), "quick");
    let mut http2 = Http2::start(&engine);
    http2.get(1, "/held");
    assert_eq!(http2.response(1).1, b"quick");
    holds("both were late", || made() == before + 2.0);
    // Knowledge outlasts a reload: it takes 40 responses to know the 75th percentile.
    engine.rewrite(&config(servers, "", "hedge = { after = \"p75\" }"));
    engine.reload();
    paced(&mut client, 25);
    holds("another percentile is known", || after("p75") > 0.0);
    // A percentile that comes back begins without the times of then. A backend beside it shows that it was looked at.
    let [slow, swift] = servers;
    let beside = |after: &str| {
        format!(
            "[backend.b]\nservers = [\"{swift}\", \"{slow}\"]\nbalance = \"first\"\n\
             [[route]]\npath = \"/b\"\nbackend = \"b\"\nhedge = {{ after = \"{after}\" }}\n"
        )
    };
    let known = |backend, percentile| {
        engine.metric("propylon_hedge_after_seconds", &[("backend", backend), ("percentile", percentile)])
    };
    engine.rewrite(&(config(servers, "", HEDGE) + &beside("p75")));
    engine.reload();
    let told = || engine.metrics().contains("propylon_hedge_after_seconds{backend=\"a\"");
    holds("nothing is told of percentiles", || !told());
    (0..50).for_each(|_| assert_eq!(client.get("/b").text(), "quick"));
    holds("it is looked at without", || known("b", "p75") > 0.0);
    engine.rewrite(&(config(servers, "", "hedge = { after = \"p50\" }") + &beside("p50")));
    engine.reload();
    holds("it is looked at again", || known("b", "p50") > 0.0);
    assert_eq!(known("a", "p50"), 0.0);
    let (before, asked) = (made(), first.asked.load(Ordering::SeqCst));
    client.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
    first.is_asked(asked + 1);
    thread::sleep(Duration::from_millis(300));
    first.answer(SAYS_HELD);
    assert_eq!((client.read_response().text(), made()), ("held".into(), before));
    paced(&mut client, 25);
    holds("the median is known anew", || known("a", "p50") > 0.0);
    client.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_response().text(), "quick");
    is_settled(&engine, 0.0);
}

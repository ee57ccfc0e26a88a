//! Bodies that are held, in memory and in files, so that slow clients hold no server.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use propylon_e2e::admin::ask_admin;
use propylon_e2e::frames::{DATA, END_HEADERS, END_STREAM, Http2, request};
use propylon_e2e::origin::dead;
use propylon_e2e::program::{curl, curl_within};
use propylon_e2e::{Engine, Origin, Scratch, eventually, holds};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
/// Nothing, little, a piece and around it, what fits into memory and what does not, and much.
const LENGTHS: [usize; 8] = [0, 1, 16 * 1024, 16 * 1024 + 1, 64 * 1024, 64 * 1024 + 1, 300_001, 3_000_000];

/// Listeners `plain` and `web`, and one route to these servers with this `buffer`.
fn config(scratch: &Scratch, process: &str, servers: &[SocketAddr], buffer: &str) -> String {
    let servers: Vec<String> = servers.iter().map(|server| format!("\"{server}\"")).collect();
    format!(
        "[process]\nworkers = 2\ndrain_timeout = \"1s\"\ntemp_dir = \"{}\"\n{process}\n\
         [listener.plain]\nbind = \"127.0.0.1:0\"\n[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n\
         [backend.a]\nservers = [{}]\n[[route]]\nbackend = \"a\"\nbuffer = {buffer}\n",
        scratch.path().display(),
        servers.join(", ")
    )
}

fn body(length: usize) -> Vec<u8> {
    (0..length).map(|at| b'a' + ((at * 7 + at / 1_021) % 26) as u8).collect()
}

/// An origin that says how a request's body was framed, and whether it is the one of its length.
fn judge() -> Origin {
    Origin::answering(|request| {
        let end = request.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
        let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
        let framing = head.lines().filter(|line| line.starts_with("content-length") || line.starts_with("transfer-"));
        let framing: Vec<&str> = framing.collect();
        let is_right = request[end..] == body(request.len() - end);
        let said = format!("{} {is_right} {}", framing.join(", "), head.contains("expect"));
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{said}", said.len()).into()
    })
}

/// A body in chunks of so many bytes.
fn chunked(body: &[u8], by: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for chunk in body.chunks(by) {
        out.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
        out.extend(chunk);
        out.extend(b"\r\n");
    }
    out.extend(b"0\r\n\r\n");
    out
}

fn head(method: &str, more: &str) -> String {
    format!("{method} / HTTP/1.1\r\nHost: a\r\n{more}\r\n")
}

#[test]
fn bodies_are_held_whole_whatever_their_length_and_framing_and_however_they_come() {
    let (scratch, origin) = (Scratch::new(), judge());
    let engine = Engine::start(&config(&scratch, "", &[origin.address()], "{ request = true }"));
    let mut client = engine.client("plain");
    for length in LENGTHS {
        let body = body(length);
        let said = format!("content-length: {length} true false");
        let of_chunks =
            client.ask([head("POST", "Transfer-Encoding: chunked\r\n").into_bytes(), chunked(&body, 5_000)].concat());
        assert_eq!(of_chunks.text(), said);
        // The next request is behind it already.
        let more = format!("Content-Length: {length}\r\n");
        client.send(
            [head("POST", &more).as_bytes(), &body, head("POST", "Content-Length: 1\r\n").as_bytes(), b"a"].concat(),
        );
        assert_eq!(
            (client.read_response().text(), client.read_response().text()),
            (said.clone(), "content-length: 1 true false".into())
        );
        let file = scratch.write("upload", &body);
        for version in ["--http1.1", "--http2"] {
            let data = format!("@{}", file.display());
            for framing in ["X-Nothing: 1", "Transfer-Encoding: chunked"] {
                let (url, arguments) = (engine.url("web"), [version, "--data-binary", &data, "--header", framing]);
                let answer = curl_within(LIMIT, &[&arguments[..], &[&url]].concat()).ok().stdout;
                assert_eq!(String::from_utf8_lossy(&answer), said, "{version} {framing}");
            }
        }
        fs::remove_file(file).expect("it is there");
    }
    assert!(engine.metric("propylon_held_bodies_total", &[("of", "request-on-disk")]) > 0.0);
    assert_eq!(engine.metric("propylon_held_bodies_exhausted_total", &[]), 0.0);
    assert_eq!(fs::read_dir(scratch.path()).expect("a folder").count(), 0, "files have no names");
}

/// Requests end with the configuration that they have begun with.
#[test]
fn a_body_goes_into_its_file_though_a_reload_has_left_no_route_that_holds_any() {
    let (scratch, origin) = (Scratch::new(), judge());
    let text = config(&scratch, "", &[origin.address()], "{ request = { memory = 1000 } }");
    let engine = Engine::start(&text);
    let body = body(100_000);
    let mut client = engine.client("plain");
    client.send(head("POST", &format!("Expect: 100-continue\r\nContent-Length: {}\r\n", body.len())));
    assert_eq!(client.read_response().status, 100);
    client.send(&body[..500]);
    engine.rewrite(&text.replace("buffer = { request = { memory = 1000 } }\n", ""));
    assert!(engine.reload().contains("is in effect"));
    client.send(&body[500..]);
    let said = client.read_response().text();
    assert!(said.starts_with("content-length: 100000 true"), "{said}");
    assert_eq!(engine.metric("propylon_held_bodies_total", &[("of", "request-on-disk")]), 1.0);
}

#[test]
fn a_server_is_asked_once_all_of_the_body_is_here_and_the_client_is_told_to_go_on() {
    let (scratch, origin) = (Scratch::new(), judge());
    let engine = Engine::start(&config(&scratch, "", &[origin.address()], "{ request = true }"));
    let body = body(400_000);
    let mut client = engine.client("plain");
    client.send(head("PUT", "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n"));
    assert_eq!(client.read_response().status, 100);
    let all = chunked(&body, 10_000);
    let (first, last) = all.split_at(all.len() - 3);
    client.send(first);
    // Other requests go on meanwhile, and some of it is in a file by now.
    assert_eq!(engine.client("plain").get("/").status, 200);
    assert_eq!(origin.connections(), 1);
    assert!(!client.has_something_now());
    client.send(last);
    assert_eq!(client.read_response().text(), "content-length: 400000 true false");
    let mut http2 = Http2::start(&engine);
    http2.headers(1, END_HEADERS, &[&request("POST", "/")[..], &[("expect", "100-continue")]].concat());
    assert_eq!(http2.next_of(1).spelled_status(), Some(100));
    http2.send(DATA, 0, 1, &body[..9_000]);
    http2.send(DATA, END_STREAM, 1, &body[9_000..12_000]);
    assert_eq!(http2.response(1).1, b"content-length: 12000 true false");
}

/// Whether a request asks for another protocol or not, its body is held: none is switched to in front of a body.
#[test]
fn a_request_that_asks_for_an_upgrade_has_its_body_held_all_the_same() {
    let (scratch, origin) = (Scratch::new(), judge());
    let engine = Engine::start(&config(&scratch, "", &[origin.address()], "{ request = true }"));
    let body = body(100_000);
    for (number, framing) in ["Content-Length: 100000\r\n", "Transfer-Encoding: chunked\r\n"].into_iter().enumerate() {
        let mut client = engine.client("plain");
        let all = if number == 0 { body.clone() } else { chunked(&body, 10_000) };
        let (first, last) = all.split_at(all.len() - 3);
        client.send(head("POST", &format!("Connection: Upgrade\r\nUpgrade: foo\r\n{framing}")));
        client.send(first);
        // Another exchange is over, and no server has heard of this one.
        assert_eq!(engine.client("plain").get("/").status, 200);
        let before = origin.received_text();
        assert_eq!((before.matches("GET ").count(), before.matches("POST ").count()), (number + 1, number));
        client.send(last);
        assert_eq!(client.read_response().text(), "content-length: 100000 true false", "{framing}");
    }
}

#[test]
fn a_body_that_is_held_is_sent_again_and_to_the_fallback() {
    let scratch = Scratch::new();
    let count = Arc::new(AtomicUsize::new(0));
    let rude = {
        let count = Arc::clone(&count);
        Origin::scripted(move |peer| {
            if peer.read_exact(100_000).is_some() {
                count.fetch_add(1, Ordering::SeqCst);
                peer.reset();
            }
        })
    };
    let origin = judge();
    let text = config(&scratch, "", &[rude.address(), origin.address()], "{ request = true }");
    let fallback = format!(
        "fallback = \"b\"\npath = \"/\"\n[backend.b]\nservers = [\"{}\"]\n[[route]]\npath = \"/b\"\nbackend = \"dead\"\nfallback = \"b\"\n\
         buffer = {{ request = true }}\n[backend.dead]\nservers = [\"{}\"]\n",
        origin.address(),
        dead()
    );
    let engine = Engine::start(&format!("{text}{fallback}"));
    let body = body(500_000);
    for path in ["/", "/", "/b"] {
        let ask = format!("PUT {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        let response = engine.client("plain").ask([ask.as_bytes(), &chunked(&body, 20_000)].concat());
        assert_eq!(response.text(), "content-length: 500000 true false", "{path}");
        let file = scratch.write("upload", &body);
        let url = format!("{}{path}", engine.url("web").trim_end_matches('/'));
        let data = format!("@{}", file.display());
        let arguments = ["--http2", "--request", "PUT", "--data-binary", &data, &url];
        assert_eq!(curl_within(LIMIT, &arguments).ok().stdout, response.body, "{path}");
    }
    assert!(count.load(Ordering::SeqCst) > 0);
    assert!(engine.metric("propylon_retries_total", &[("backend", "a")]) > 0.0);
    assert!(engine.metric("propylon_fallbacks_total", &[("backend", "dead")]) > 0.0);
}

#[test]
fn errors_behind_a_body_that_has_been_read_leave_the_connection_open() {
    let (scratch, origin) = (Scratch::new(), judge());
    let rude = Origin::scripted(|peer| {
        peer.read_request();
        peer.close();
    });
    let failing =
        Origin::answering(|_| b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\nsick".to_vec());
    let mut text = config(&scratch, "", &[origin.address()], "{ request = true }");
    let backends = [("dead", dead()), ("rude", rude.address()), ("failing", failing.address())];
    for (name, server) in backends {
        let route = format!(
            "backend = \"{name}\"\nerror_pages = {{ 5xx = {{ text = \"5xx.txt\" }} }}\nintercept_errors = true\n"
        );
        text.push_str(&format!(
            "[backend.{name}]\nservers = [\"{server}\"]\nretries = 0\n[[route]]\npath = \"/held/{name}\"\n{route}\
             buffer = {{ request = true }}\n[[route]]\npath = \"/{name}\"\n{route}"
        ));
    }
    let engine = Engine::start_beside(&[("5xx.txt", "our page")], &text);
    let (body, mut client) = (body(300_000), engine.client("plain"));
    for path in ["/held/dead", "/held/rude", "/held/failing", "/rude", "/failing"] {
        for framing in ["Transfer-Encoding: chunked", "Content-Length: 300000"] {
            let ask = format!("POST {path} HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n");
            let body = if framing.starts_with('C') { body.clone() } else { chunked(&body, 20_000) };
            let answer = client.ask([ask.as_bytes(), &body].concat());
            assert_eq!((answer.status >= 500, answer.text()), (true, "our page".into()), "{path} {framing}");
            assert_eq!(answer.field("Connection"), None, "{path} {framing}");
            assert_eq!(client.get("/").text(), " true false", "{path} {framing}");
        }
    }
    // One that is still coming is not read for nothing.
    client.send("POST /held/dead HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000000\r\n\r\n");
    let answer = client.read_response();
    assert_eq!((answer.status, answer.field("Connection")), (413, Some("close")));
}

#[test]
fn longer_bodies_than_a_route_holds_are_refused_and_no_server_hears_of_them() {
    let (scratch, origin) = (Scratch::new(), judge());
    let buffer = "{ request = { memory = \"16KiB\", disk = \"64KiB\" } }";
    let engine = Engine::start(&config(&scratch, "", &[origin.address()], buffer));
    let body = body(80 * 1024 + 1);
    let refused = "413 Content Too Large: body-too-long\n";
    let mut client = engine.client("plain");
    assert_eq!(client.ask(head("POST", "Content-Length: 81921\r\n")).text(), refused);
    let all = [head("POST", "Transfer-Encoding: chunked\r\n").into_bytes(), chunked(&body, 4_096)].concat();
    assert_eq!(engine.client("plain").ask(all).text(), refused);
    assert_eq!(origin.connections(), 0);
    let all =
        [head("POST", "Transfer-Encoding: chunked\r\n").into_bytes(), chunked(&body[..80 * 1024], 4_096)].concat();
    assert_eq!(engine.client("plain").ask(all).text(), "content-length: 81920 true false");
}

#[test]
fn where_the_engine_has_no_room_left_bodies_go_on_as_they_come() {
    let (scratch, origin) = (Scratch::new(), judge());
    let buffer = "{ request = { memory = \"1MiB\", disk = 0 } }";
    let engine = Engine::start(&config(&scratch, "buffer_memory = \"48KiB\"", &[origin.address()], buffer));
    let body = body(200_000);
    let mut client = engine.client("plain");
    let all = [head("POST", "Transfer-Encoding: chunked\r\n").into_bytes(), chunked(&body, 7_000)].concat();
    assert_eq!(client.ask(all).text(), "transfer-encoding: chunked false false", "in chunks, as it came");
    let all = [head("POST", "Content-Length: 200000\r\n").as_bytes(), &body].concat();
    assert_eq!(client.ask(all).text(), "content-length: 200000 true false");
    let file = scratch.write("upload", &body);
    let (url, data) = (engine.url("web"), format!("@{}", file.display()));
    let answer = curl_within(LIMIT, &["--http2", "--data-binary", &data, &url]).ok().stdout;
    assert_eq!(String::from_utf8_lossy(&answer), "content-length: 200000 true false");
    assert_eq!(engine.metric("propylon_held_bodies_exhausted_total", &[]), 3.0);
    // All of it has come back.
    let all =
        [head("POST", "Transfer-Encoding: chunked\r\n").into_bytes(), chunked(&body[..48 * 1024], 4_096)].concat();
    assert_eq!(client.ask(all).text(), "content-length: 49152 true false");
    assert_eq!(engine.metric("propylon_held_bodies_exhausted_total", &[]), 3.0);
}

#[test]
fn calls_that_go_both_ways_are_not_held_and_a_client_that_goes_away_costs_no_server() {
    let (scratch, origin) = (Scratch::new(), judge());
    let engine = Engine::start(&config(&scratch, "", &[origin.address()], "{ request = true }"));
    let mut client = engine.client("plain");
    client.send(head("POST", "Transfer-Encoding: chunked\r\n"));
    client.send("4\r\nabcd\r\n");
    client.finish();
    drop(client);
    holds("it is noticed", || engine.log().iter().any(|line| line["fault"] == "client-closed"));
    assert_eq!(origin.connections(), 0);
    let mut call = engine.client("plain");
    call.send(head("POST", "Content-Type: application/grpc+proto\r\nTransfer-Encoding: chunked\r\n"));
    call.send("4\r\nabcd\r\n");
    holds("it goes on as it comes", || origin.received_text().contains("abcd"));
}

#[test]
fn a_body_that_cannot_be_written_is_no_fault_of_the_client_and_the_folder_is_named() {
    let (scratch, files, origin) = (Scratch::new(), Scratch::new(), judge());
    let (folder, body) = (scratch.path().display().to_string(), body(300_001));
    let engine = Engine::start(&config(&scratch, "", &[origin.address()], "{ request = true }"));
    // Gone while the engine runs, as its room may be.
    drop(scratch);
    let mut client = engine.client("plain");
    client.send(head("POST", "Content-Length: 300001\r\n"));
    client.offer(&body);
    assert_eq!(client.read_response().status, 503);
    let data = format!("@{}", files.write("body", &body).display());
    let said = curl(&["--http2", "-o", "/dev/null", "-w", "%{http_code}", "--data-binary", &data, &engine.url("web")]);
    assert_eq!(said.text(), "503");
    let failed = [("backend", "a"), ("reason", "buffer-failed")];
    engine.metric_reaches("propylon_server_faults_total", &failed, 2.0);
    assert_eq!(engine.metric("propylon_client_faults_total", &[]), 0.0, "nobody blames the clients");
    let status =
        || -> Value { serde_json::from_str(&ask_admin(&engine, "GET", "/status.json", "", "").text()).expect("JSON") };
    let condition = eventually(LIMIT, "bodies-not-held", || {
        status()["conditions"]["list"].as_array()?.iter().find(|each| each["name"] == "bodies-not-held").cloned()
    });
    assert_eq!((&condition["grade"], &condition["labels"]["backend"]), (&"problem".into(), &"a".into()));
    let status = status();
    let row = status["faults"]["list"].as_array().and_then(|list| list.iter().find(|row| row[2] == "buffer-failed"));
    let row = row.unwrap_or_else(|| panic!("{status:#}"));
    assert_eq!((&row[0], &row[1]), (&"body cannot be held".into(), &"a".into()));
    assert!(row[4]["cure"].as_str().is_some_and(|cure| cure.contains("temp_dir")), "{row}");
    let told = format!("a body cannot be written to its file in {folder} (process.temp_dir): ");
    let lines = || engine.stderr().into_iter().filter(|line| line.contains(&told)).count();
    holds("the log names the folder", || lines() > 0);
    assert_eq!(lines(), 1, "once in ten seconds");
}

#[test]
fn a_folder_that_cannot_be_written_to_keeps_an_engine_from_starting() {
    let scratch = Scratch::new();
    let text = config(&scratch, "", &[dead()], "{ request = true }");
    let mut engine = Engine::spawn(&text.replace(&scratch.path().display().to_string(), "/nonexistent/bodies"));
    engine.expect_exit(1);
    let end = engine.wait(LIMIT);
    assert!(
        end.stderr.join("\n").contains("`temp_dir`: no file can be made in /nonexistent/bodies"),
        "{:?}",
        end.stderr
    );
}

/// Writes a response of this length as fast as it is taken, and says how many were taken whole.
fn quick(more: &'static str, length: usize) -> (Origin, Arc<AtomicUsize>) {
    let (count, body) = (Arc::new(AtomicUsize::new(0)), body(length));
    let counted = Arc::clone(&count);
    let origin = Origin::scripted(move |peer| {
        while peer.read_request().is_some() {
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n{more}\r\n"));
            if peer.try_send(&body).is_err() {
                return;
            }
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    (origin, count)
}

/// So much that no buffer of a socket holds it.
const LARGE: usize = 24 << 20;

#[test]
fn a_client_that_reads_slowly_does_not_hold_the_connection_to_the_server() {
    let (scratch, (origin, sent)) = (Scratch::new(), quick("", LARGE));
    let text = config(&scratch, "", &[origin.address()], "{ response = true }");
    let text = text.replace(
        &format!("servers = [\"{}\"]", origin.address()),
        &format!("servers = [{{ address = \"{}\", max_connections = 1 }}]\nreuse = \"always\"", origin.address()),
    );
    let engine = Engine::start(&text);
    let mut slow: Vec<_> = (0..3).map(|_| engine.client("plain")).collect();
    for (client, count) in slow.iter_mut().zip(1..) {
        client.send(head("GET", ""));
        holds("the server has sent all of it", || sent.load(Ordering::SeqCst) == count);
    }
    let mut http2 = Http2::start_tls(&engine);
    http2.get(1, "/");
    holds("the server has sent all of it", || sent.load(Ordering::SeqCst) == 4);
    assert_eq!(origin.connections(), 1, "one connection, which all have used in turn");
    engine.metric_reaches("propylon_server_requests_in_flight", &[], 0.0);
    for client in &mut slow {
        assert!(client.read_response().body == body(LARGE));
        assert_eq!(client.ask(head("HEAD", "Connection: close\r\n").replace("HEAD", "GET")).body.len(), LARGE);
    }
    assert!(engine.metric("propylon_held_bodies_total", &[("of", "response")]) >= 4.0);
    assert_eq!(fs::read_dir(scratch.path()).expect("a folder").count(), 0, "files have no names");
}

#[test]
fn responses_that_are_held_are_what_servers_have_sent_to_clients_of_any_speed_and_version() {
    for (more, compress) in
        [("", ""), ("Content-Type: text/plain\r\n", "compress = { busy_max = 100, credentials = \"always\" }")]
    {
        for length in [0, 1, 70_000, 5_000_000] {
            let (scratch, (origin, _)) = (Scratch::new(), quick(more, length));
            let buffer = "{ response = { memory = \"32KiB\", disk = \"2MiB\" } }";
            let engine = Engine::start(&config(&scratch, "", &[origin.address()], &format!("{buffer}\n{compress}")));
            for version in ["--http1.1", "--http2", "--http1.0"] {
                for rate in ["1G", "8M"] {
                    let url = engine.url("web");
                    let answer = curl_within(LIMIT, &[version, "--compressed", "--limit-rate", rate, &url]).ok().stdout;
                    assert!(answer == body(length), "{version} {rate} {length} {compress}");
                }
                let head = curl_within(LIMIT, &[version, "--head", &engine.url("web")]).ok().stdout;
                assert!(String::from_utf8_lossy(&head).contains(" 200"), "{version}");
            }
        }
    }
}

#[test]
fn what_comes_bit_by_bit_is_passed_on_as_it_comes_and_beyond_the_bounds_the_server_waits() {
    for more in
        ["Content-Type: text/event-stream\r\n", "X-Accel-Buffering: no\r\n", "Content-Type: application/grpc\r\n"]
    {
        let (scratch, (origin, sent)) = (Scratch::new(), quick(more, LARGE));
        let engine = Engine::start(&config(&scratch, "", &[origin.address()], "{ response = true }"));
        let mut client = engine.client("plain");
        client.send(head("GET", ""));
        client.read_head();
        assert_eq!((sent.load(Ordering::SeqCst), client.read_exact(LARGE) == body(LARGE)), (0, true), "{more}");
        assert_eq!(engine.metric("propylon_held_bodies_total", &[("of", "response")]), 0.0);
    }
    let (scratch, (origin, sent)) = (Scratch::new(), quick("", LARGE));
    let buffer = "{ response = { memory = \"64KiB\", disk = \"1MiB\" } }";
    let engine = Engine::start(&config(&scratch, "", &[origin.address()], buffer));
    let mut client = engine.client("plain");
    client.send(head("GET", ""));
    engine.metric_reaches("propylon_held_bodies_total", &[("of", "response")], 1.0);
    assert_eq!(sent.load(Ordering::SeqCst), 0);
    assert!(client.read_response().body == body(LARGE));
}

/// Listeners whose clients have no time to stand still.
fn hurried(text: &str) -> String {
    let limits = "timeouts = { body = \"300ms\" }\nlimits = { body_rate_min = 1000000 }\n";
    text.replace("bind = \"127.0.0.1:0\"\n", &format!("bind = \"127.0.0.1:0\"\n{limits}"))
}

#[test]
fn a_pace_is_that_of_clients_and_no_server_waits_for_it() {
    const BYTES: usize = 160 << 10;
    // A fifth of a second is free, and the last piece is not waited for.
    let least = Duration::from_millis(1_400);
    for more in ["", "compress = { busy_max = 100, credentials = \"always\" }\nresponse = { remove = [\"X-Inner\"] }"] {
        let (scratch, (origin, sent)) = (Scratch::new(), quick("Content-Type: text/x\r\n", BYTES));
        let both = format!("{{ response = true, request = true }}\nthrottle = {{ download = \"64KiB\" }}\n{more}");
        let engine = Engine::start(&hurried(&config(&scratch, "", &[origin.address()], &both)));
        for (version, listener) in
            [("--http1.1", "plain"), ("--http1.0", "plain"), ("--http1.1", "web"), ("--http2", "web")]
        {
            let (began, before) = (Instant::now(), sent.load(Ordering::SeqCst));
            let url = engine.url(listener);
            std::thread::scope(|scope| {
                let asking = scope.spawn(|| curl_within(LIMIT, &[version, &url]).ok().stdout);
                holds("the server has sent all of it", || sent.load(Ordering::SeqCst) > before);
                engine.metric_reaches("propylon_server_requests_in_flight", &[], 0.0);
                assert!(!asking.is_finished(), "{version}");
                assert!(asking.join().expect("an answer") == body(BYTES), "{version}");
            });
            assert!(began.elapsed() >= least, "{version}: {:?}", began.elapsed());
        }
        let answer = curl_within(LIMIT, &["--http2", "--compressed", &engine.url("web")]).ok().stdout;
        assert!(answer == body(BYTES), "{more}");
        for line in engine.log() {
            assert!(line["fault"].is_null(), "{line}");
        }
    }
}

#[test]
fn a_request_that_is_held_is_slowed_down_on_its_way_here_and_goes_on_at_once() {
    const BYTES: usize = 160 << 10;
    let least = Duration::from_millis(1_400);
    let (scratch, origin) = (Scratch::new(), judge());
    let file = format!("@{}", scratch.write("upload", body(BYTES)).display());
    let slow = "throttle = { upload = \"64KiB\" }";
    let whole = format!("{{ request = {{ disk = 0, memory = \"1MiB\" }} }}\n{slow}");
    // The rest, for which an engine may have no room, goes on as it comes, no faster.
    for (process, is_whole) in [("", true), ("buffer_memory = \"48KiB\"", false)] {
        let engine = Engine::start(&hurried(&config(&scratch, process, &[origin.address()], &whole)));
        for (version, listener) in [("--http1.1", "plain"), ("--http1.1", "web"), ("--http2", "web")] {
            for framing in ["Expect:", "Transfer-Encoding: chunked"] {
                let began = Instant::now();
                let arguments = [version, "--data-binary", &file, "--header", framing, &engine.url(listener)];
                let answer = String::from_utf8(curl_within(LIMIT, &arguments).ok().stdout).expect("UTF-8");
                assert!(began.elapsed() >= least, "{version} {framing}: {:?}", began.elapsed());
                let is_chunked = framing.starts_with("Transfer") && !is_whole;
                let said = if is_chunked {
                    "transfer-encoding: chunked false false".into()
                } else {
                    format!("content-length: {BYTES} true false")
                };
                assert_eq!(answer, said, "{version} {framing} {process}");
            }
        }
        for line in engine.log() {
            assert!(line["fault"].is_null(), "{line}");
        }
    }
}

#[test]
fn servers_of_http10_are_told_the_length_of_what_is_held() {
    let (scratch, origin) = (Scratch::new(), judge());
    let old = |process: &str| {
        let text = config(&scratch, process, &[origin.address()], "{ request = { memory = \"1MiB\", disk = 0 } }");
        Engine::start(&text.replace("[backend.a]\n", "[backend.a]\nprotocol = \"http1.0\"\n"))
    };
    let body = body(300_000);
    let mut all =
        [head("POST", "Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n").into_bytes(), chunked(&body, 9_000)].concat();
    all.truncate(all.len() - 2);
    all.extend(b"X-Sum: 1\r\n\r\n");
    let engine = old("");
    let mut client = engine.client("plain");
    for _ in 0..2 {
        assert_eq!(client.ask(&all[..]).text(), "content-length: 300000 true false");
    }
    // A body that the engine has no room for has no length.
    assert_eq!(old("buffer_memory = \"48KiB\"").client("plain").ask(&all[..]).status, 411);
}

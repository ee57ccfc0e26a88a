//! The process itself: how it checks, starts, logs, spreads its work, and ends.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use propylon_e2e::engine::{complete, simple};
use propylon_e2e::http::in_chunks;
use propylon_e2e::keyserver::KeyServer;
use propylon_e2e::program::{Said, finish, run, signal};
use propylon_e2e::{Certificates, Client, Ending, Engine, Origin, Scratch, binaries, eventually, holds};
use rustix::process::Signal;
use serde_json::Value;

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";

fn propylon(arguments: &[&str]) -> Said {
    let mut command = Command::new(binaries::propylon());
    command.args(arguments);
    run(command, b"", Duration::from_secs(10))
}

fn check(scratch: &Scratch, text: &str, arguments: &[&str]) -> Said {
    let path = scratch.write("propylon.toml", text).display().to_string();
    propylon(&[&["check", "-c", &path], arguments].concat())
}

/// A whole configuration, certificates and all.
fn whole() -> String {
    let address = "127.0.0.1:1".parse().expect("an address");
    format!("{}{}", simple(&[address]), Certificates::shared().profile())
}

#[test]
fn check_is_content_with_a_good_configuration() {
    let scratch = Scratch::new();
    let said = check(&scratch, &whole(), &[]);
    assert_eq!((said.status.code(), said.stderr.as_str()), (Some(0), ""), "{}", said.stderr);
    assert!(said.text().trim_end().ends_with("propylon.toml: ok"), "{}", said.text());
    let said = check(&scratch, &whole(), &["--json"]);
    assert_eq!((said.status.code(), said.text().trim()), (Some(0), "[]"));
}

#[test]
fn check_warns_of_an_account_that_this_machine_does_not_have() {
    let scratch = Scratch::new();
    let text = |user: &str| format!("[process]\nuser = \"{user}\"\n{}", whole());
    let said = check(&scratch, &text("nobody-of-the-kind"), &[]);
    assert!(said.stderr.contains(":2:1: warning: `user`: no user named \"nobody-of-the-kind\""), "{}", said.stderr);
    let said = check(&scratch, &text("nobody"), &[]);
    assert!(!said.stderr.contains("`user`"), "{}", said.stderr);
}

#[test]
fn check_tells_every_problem_with_its_place_and_its_remedy() {
    let scratch = Scratch::new();
    let text = whole().replace("backend = \"app\"", "backend = \"apq\"").replace("127.0.0.1:1\"", "127.0.0.1\"")
        + "[listener.third]\nbind = \"127.0.0.1:0\"\ntls = \"nowhere\"\ncolour = \"blue\"\n";
    let said = check(&scratch, &text, &[]);
    assert_eq!(said.status.code(), Some(1));
    let line = text.lines().position(|line| line == "backend = \"apq\"").expect("the line") + 1;
    let expected = format!("propylon.toml:{line}:11: no backend named \"apq\"; did you mean \"app\"?");
    assert!(said.stderr.contains(&expected), "no {expected} in:\n{}", said.stderr);
    let said = check(&scratch, &text, &["--json"]);
    assert_eq!(said.status.code(), Some(1));
    let problems: Vec<Value> = serde_json::from_str(&said.text()).expect("a JSON array");
    assert!(problems.len() >= 4, "{problems:?}");
    for problem in &problems {
        assert!(problem["line"].is_u64() && problem["column"].is_u64(), "{problem}");
        assert!(problem["what"].is_string() && problem["severity"].is_string(), "{problem}");
    }
    let words = said.text();
    for word in ["apq", "nowhere", "colour", "127.0.0.1"] {
        assert!(words.contains(word), "{word}: {words}");
    }
}

#[test]
fn check_reads_the_certificates_too() {
    let scratch = Scratch::new();
    let said = check(&scratch, &whole().replace("/rsa.pem", "/gone.pem"), &[]);
    assert_eq!(said.status.code(), Some(1));
    assert!(said.stderr.contains("gone.pem"), "{}", said.stderr);
}

#[test]
fn check_fails_where_there_is_no_file() {
    let said = propylon(&["check", "-c", "/nonexistent/propylon.toml"]);
    assert_eq!(said.status.code(), Some(1));
    assert!(said.stderr.contains("/nonexistent/propylon.toml"), "{}", said.stderr);
    let said = propylon(&["check", "--json", "-c", "/nonexistent/propylon.toml"]);
    assert_eq!(said.status.code(), Some(1));
    let problems: Vec<Value> = serde_json::from_str(&said.text()).expect("a JSON array");
    assert_eq!(problems.len(), 1);
}

#[test]
fn wrong_usage_is_exit_code_2() {
    for arguments in [&["check"][..], &["run"], &["fly"], &["check", "-c", "x", "--loud"], &[]] {
        let said = propylon(arguments);
        assert_eq!(said.status.code(), Some(2), "{arguments:?}: {}", said.stderr);
        assert!(said.stderr.contains("Usage:"), "{arguments:?}: {}", said.stderr);
    }
}

#[test]
fn every_help_has_an_example() {
    for arguments in [&["--help"][..], &["run", "--help"], &["check", "--help"]] {
        let said = propylon(arguments).ok().text();
        assert!(said.contains("Example") && said.contains("Exit codes: 0 "), "{arguments:?}:\n{said}");
    }
    let number = env!("CARGO_PKG_VERSION");
    assert_eq!(propylon(&["-V"]).ok().text(), format!("propylon {number} (plain build)\n"));
    let said = propylon(&["--version"]).ok().text();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], [format!("propylon {number}").as_str(), "plain build"], "{said}");
}

#[test]
fn a_start_that_fails_says_why_and_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("an address");
    let conflict = format!("cannot bind {address}: Address already in use");
    let config = whole().replacen("127.0.0.1:0", &address.to_string(), 1);
    let end = Engine::spawn(&config).wait(Duration::from_secs(10));
    assert_eq!(end.status.code(), Some(1));
    let words = end.stderr.join("\n");
    assert!(words.contains(&format!("error: listener \"plain\" {conflict}")), "{words}");
    assert!(words.contains("ss -ltnp shows it"), "{words}");
    let config = format!("[admin]\nbind = \"{address}\"\n{}", whole());
    let end = Engine::spawn(&config).wait(Duration::from_secs(10));
    assert_eq!(end.status.code(), Some(1));
    assert!(end.stderr.join("\n").contains(&format!("error: admin {conflict}")), "{:?}", end.stderr);
    let end = Engine::spawn("[listener.x]\nbind = \"nowhere\"\n").wait(Duration::from_secs(10));
    assert_eq!(end.status.code(), Some(1));
}

#[test]
fn a_second_engine_on_the_same_port_does_not_start() {
    let first = Engine::start(&whole());
    let address = first.address("plain");
    let config = whole().replacen("127.0.0.1:0", &address.to_string(), 1);
    let end = Engine::spawn(&config).wait(Duration::from_secs(10));
    assert_eq!(end.status.code(), Some(1), "{:?}", end.stderr);
}

/// Answers when the story says so.
fn patient() -> (Origin, Sender<()>) {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Origin::scripted(move |peer| {
        while peer.read_request().is_some() {
            let _ = wait.lock().expect("one request at a time").recv_timeout(Duration::from_secs(20));
            peer.send(HELLO);
        }
    });
    (origin, go)
}

fn draining_for(origin: &Origin, limit: &str) -> Engine {
    let process = format!("[process]\nworkers = 1\ndrain_timeout = \"{limit}\"\n");
    Engine::start(&(process + &simple(&[origin.address()])))
}

/// A client whose request the origin is thinking about.
fn in_progress(engine: &Engine, origin: &Origin) -> Client {
    let mut client = engine.client("web");
    client.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    holds("the request is out", || origin.received_text().contains("/slow"));
    client
}

fn drains_on(signal: Signal) {
    let (origin, go) = patient();
    let mut engine = draining_for(&origin, "20s");
    let (plain, web) = (engine.address("plain"), engine.address("web"));
    let mut idle = engine.client("web");
    idle.send("GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    go.send(()).expect("the origin waits");
    idle.read_response();
    let mut busy = in_progress(&engine, &origin);
    engine.signal(signal);
    assert_eq!(idle.ending(), Ending::Clean, "who is idle is sent away at once");
    holds("no new connections", || TcpStream::connect(plain).is_err() && TcpStream::connect(web).is_err());
    holds("the count is told", || {
        engine.stderr().iter().any(|line| line.contains("still draining: 1 connection") && line.contains("1 request"))
    });
    assert_eq!(engine.metric("propylon_draining", &[]), 1.0, "the admin address stays");
    assert!(engine.is_running());
    go.send(()).expect("the origin waits");
    let response = busy.read_response();
    assert_eq!((response.text().as_str(), response.field("Connection")), ("hello\n", Some("close")));
    assert_eq!(busy.ending(), Ending::Clean);
    let end = engine.wait(Duration::from_secs(5));
    assert_eq!(end.status.code(), Some(0), "{:?}", end.stderr);
    assert!(end.stderr.last().is_some_and(|line| line.contains("drained in ")), "{:?}", end.stderr);
    assert_eq!(engine.logged_path("/slow")["status"], 200, "the log is complete");
}

#[test]
fn sigterm_lets_requests_finish() {
    drains_on(Signal::TERM);
}

#[test]
fn sigint_lets_requests_finish() {
    drains_on(Signal::INT);
}

#[test]
fn a_drain_has_its_limit() {
    let (origin, _go) = patient();
    let mut engine = draining_for(&origin, "1s");
    let mut busy = in_progress(&engine, &origin);
    let began = Instant::now();
    engine.signal(Signal::TERM);
    let end = engine.wait(Duration::from_secs(10));
    let took = began.elapsed().as_secs_f64();
    assert_eq!(end.status.code(), Some(3), "{:?}", end.stderr);
    assert!(took >= 0.9, "{took:.2} s");
    assert!(end.stderr.iter().any(|line| line.contains("stopped with 1 request")), "{:?}", end.stderr);
    assert_ne!(busy.ending(), Ending::Open);
}

#[test]
fn what_was_asked_before_the_signal_is_answered() {
    let origin = Origin::always(HELLO);
    let mut engine = draining_for(&origin, "20s");
    let mut clients: Vec<Client> = (0..40).map(|n| engine.client(if n % 2 == 0 { "web" } else { "plain" })).collect();
    for client in &mut clients {
        assert_eq!(client.get("/first").text(), "hello\n");
    }
    // And clients that the engine has not even accepted.
    clients.extend((0..20).map(|_| engine.client("plain")));
    for client in &mut clients {
        client.send("GET /last HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    engine.signal(Signal::TERM);
    for client in &mut clients {
        assert_eq!(client.read_response().text(), "hello\n");
        assert_eq!(client.ending(), Ending::Clean);
    }
    assert_eq!(engine.wait(Duration::from_secs(10)).status.code(), Some(0));
}

/// A drain without a successor ends idle connections; whoever has just been answered hears of it from the next answer.
#[test]
fn a_client_that_is_asking_one_request_after_another_loses_none_to_the_signal() {
    let origin = Origin::always(HELLO);
    let mut engine = draining_for(&origin, "20s");
    let mut clients = [engine.client("plain"), engine.client("web")];
    for client in &mut clients {
        assert_eq!(client.get("/first").text(), "hello\n");
    }
    engine.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(200));
    for client in &mut clients {
        let answer = client.ask("POST /next HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
        assert_eq!((answer.text().as_str(), answer.field("Connection")), ("hello\n", Some("close")));
        assert_eq!(client.ending(), Ending::Clean);
    }
    assert_eq!(engine.wait(Duration::from_secs(10)).status.code(), Some(0));
}

#[test]
fn an_engine_that_is_full_stops_listening_when_it_drains() {
    let (origin, go) = patient();
    let process = "[process]\nworkers = 1\ndrain_timeout = \"20s\"\nmax_connections = 1\n";
    let mut engine = Engine::start(&format!("{process}{}", simple(&[origin.address()])));
    let (plain, web) = (engine.address("plain"), engine.address("web"));
    let mut busy = in_progress(&engine, &origin);
    let _waiting = TcpStream::connect(plain).expect("the kernel takes it");
    holds("accepting pauses", || engine.metric("propylon_accept_pauses_total", &[]) > 0.0);
    engine.signal(Signal::TERM);
    holds("no new connections", || TcpStream::connect(plain).is_err() && TcpStream::connect(web).is_err());
    go.send(()).expect("the origin waits");
    assert_eq!(busy.read_response().text(), "hello\n");
    assert_eq!(engine.wait(Duration::from_secs(10)).status.code(), Some(0));
}

#[test]
fn a_second_signal_ends_the_drain() {
    for second in [Signal::TERM, Signal::INT] {
        let (origin, _go) = patient();
        let mut engine = draining_for(&origin, "60s");
        let _busy = in_progress(&engine, &origin);
        engine.signal(Signal::TERM);
        holds("the drain", || engine.metric("propylon_draining", &[]) == 1.0);
        engine.signal(second);
        // Long before the drain's limit.
        let end = engine.wait(Duration::from_secs(10));
        assert_eq!(end.status.code(), Some(3), "{:?}", end.stderr);
    }
}

#[test]
fn an_idle_engine_ends_at_once() {
    let mut engine = draining_for(&Origin::always(HELLO), "60s");
    let _quiet: Vec<Client> = (0..20).map(|n| engine.client(if n % 2 == 0 { "web" } else { "plain" })).collect();
    let began = Instant::now();
    engine.signal(Signal::TERM);
    // Connections that have sent nothing yet may still be with the kernel, which hands them out after a while.
    let end = engine.wait(Duration::from_secs(10));
    assert_eq!(end.status.code(), Some(0), "{:?}", end.stderr);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[test]
fn every_request_has_a_line_with_all_its_fields() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = engine.client("web");
    client.ask("POST /first?a=\"b\" HTTP/1.1\r\nHost: shop.test:8443\r\nContent-Length: 4\r\n\r\nbody");
    client.get("/second");
    engine.client("plain").get("/third");
    let first = engine.logged("the first line", |line| line["method"] == "POST");
    let second = engine.logged_path("/second");
    let third = engine.logged_path("/third");
    let text = |line: &Value, key: &str| line[key].as_str().unwrap_or_else(|| panic!("{key} in {line}")).to_owned();
    for line in [&first, &second, &third] {
        let keys: Vec<&String> = line.as_object().expect("an object").keys().collect();
        for key in [
            "time",
            "client",
            "listener",
            "host",
            "method",
            "path",
            "protocol",
            "status",
            "bytes_received",
            "bytes_sent",
            "duration_us",
            "backend",
            "server",
            "attempts",
            "reused",
            "tls",
            "fault",
        ] {
            assert!(keys.iter().any(|known| *known == key), "no {key} in {line}");
        }
        assert!(text(line, "client").starts_with("127.0.0.1:"));
        let time = text(line, "time");
        assert!(time.len() == 24 && time.ends_with('Z') && time.contains('T'), "{time}");
        assert_eq!((text(line, "protocol"), &line["status"]), ("HTTP/1.1".into(), &200.into()));
        assert_eq!((text(line, "backend"), text(line, "server")), ("app".into(), origin.address().to_string()));
        assert_eq!((&line["attempts"], &line["fault"]), (&1.into(), &Value::Null));
        let durations = &line["duration_us"];
        for phase in ["head", "first_byte", "total"] {
            assert!(durations[phase].is_u64(), "{phase} in {line}");
        }
        assert!(durations["total"].as_u64() >= durations["first_byte"].as_u64(), "{line}");
    }
    assert_eq!(text(&first, "host"), "shop.test:8443");
    assert_eq!(text(&first, "path"), "/first?a=\"b\"");
    assert!(first["bytes_received"].as_u64() > Some(50) && first["bytes_sent"].as_u64() > Some(50), "{first}");
    assert_eq!((text(&first, "listener"), text(&third, "listener")), ("web".into(), "plain".into()));
    assert_eq!((&first["reused"], &second["reused"], &third["reused"]), (&false.into(), &true.into(), &true.into()));
    assert!(first["duration_us"]["handshake"].is_u64() && first["duration_us"]["connect"].is_u64(), "{first}");
    assert!(second["duration_us"]["handshake"].is_null() && second["duration_us"]["connect"].is_null(), "{second}");
    let tls = &first["tls"];
    assert_eq!((tls["version"].as_str(), tls["certificate"].as_str()), (Some("TLSv1.3"), Some("ecdsa")));
    assert!(tls["suite"].is_string() && tls["group"].is_string() && tls["resumed"] == false, "{tls}");
    assert_eq!(third["tls"], Value::Null);
}

#[test]
fn the_log_counts_each_byte_of_a_request_once() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&simple(&[origin.address()]));
    let head = |path: &str, framing: &str| format!("POST {path} HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n").into_bytes();
    for listener in ["plain", "web"] {
        let length = [head("/length", "Content-Length: 200000"), vec![b'x'; 200_000]].concat();
        let chunks =
            [head("/chunks", "Transfer-Encoding: chunked"), in_chunks(&[&[b'x'; 100_000][..]; 2], "")].concat();
        let little = [head("/little", "Content-Length: 3"), b"abc".to_vec()].concat();
        let requests = [length, chunks, little];
        let mut client = engine.client(listener);
        // In one go: what lies behind a body belongs to the next request.
        client.send(requests.concat());
        for _ in 0..requests.len() {
            assert_eq!(client.read_response().text(), "hello\n");
        }
        for (path, bytes) in ["/length", "/chunks", "/little"].iter().zip(&requests) {
            let line = engine.logged(path, |line| line["path"] == *path && line["listener"] == listener);
            assert_eq!(line["bytes_received"], bytes.len(), "{line}");
        }
    }
}

#[test]
fn a_log_file_that_was_moved_is_opened_anew() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&format!("[log]\naccess = \"access.log\"\n{}", simple(&[origin.address()])));
    let (path, moved) = (engine.folder().join("access.log"), engine.folder().join("access.log.1"));
    let mut client = engine.client("web");
    client.get("/before");
    holds("the first line", || fs::read_to_string(&path).is_ok_and(|text| text.contains("/before")));
    fs::rename(&path, &moved).expect("a move");
    let mut asked = 0_u32;
    eventually(Duration::from_secs(10), "a new file with new lines", || {
        client.get(&format!("/after/{asked}"));
        asked += 1;
        fs::read_to_string(&path).is_ok_and(|text| text.contains("/after/")).then_some(())
    });
    let count = || {
        let texts = [&moved, &path].map(|path| fs::read_to_string(path).expect("a log"));
        texts.iter().map(|text| text.matches("/after/").count()).sum::<usize>()
    };
    holds("every line is in one of the two", || count() == asked as usize);
    fs::remove_file(&path).expect("a removal");
    eventually(Duration::from_secs(10), "a file after the removal", || {
        client.get("/removed");
        path.exists().then_some(())
    });
}

#[test]
fn a_log_that_cannot_be_opened_anew_is_told_and_loses_no_line_that_has_a_file() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&format!("[log]\naccess = \"access.log\"\n{}", simple(&[origin.address()])));
    let (path, moved) = (engine.folder().join("access.log"), engine.folder().join("access.log.1"));
    let mut client = engine.client("web");
    client.get("/before");
    holds("the first line", || fs::read_to_string(&path).is_ok_and(|text| text.contains("/before")));
    // In its place there is what no line can be written to.
    fs::rename(&path, &moved).expect("a move");
    fs::create_dir(&path).expect("a folder");
    engine.metric_reaches("propylon_access_log_reopen_errors_total", &[], 1.0);
    client.get("/meanwhile");
    holds("lines go on in the file that was moved", || {
        fs::read_to_string(&moved).is_ok_and(|text| text.contains("/meanwhile"))
    });
    let says = |what: &str| holds(what, || engine.stderr().iter().any(|line| line.contains(what)));
    says(": error: the access log cannot be opened anew at ");
    says("lines go on in the file that was moved away");
    says("access-log-moved");
    assert_eq!(engine.metric("propylon_access_log_lost_total", &[]), 0.0);
    // Where the file has no name any more, nobody will read what is written to it.
    fs::remove_file(&moved).expect("a removal");
    eventually(Duration::from_secs(20), "lines to a file that was removed are counted as lost", || {
        client.get("/lost");
        (engine.metric("propylon_access_log_lost_total", &[]) >= 1.0).then_some(())
    });
    fs::remove_dir(&path).expect("a removal");
    says("the access log is written to ");
    client.get("/after");
    holds("a line after", || fs::read_to_string(&path).is_ok_and(|text| text.contains("/after")));
    let told = engine.stderr().iter().filter(|line| line.contains("cannot be opened anew at")).count();
    assert_eq!(told, 1, "once, however often it was tried");
}

#[test]
fn nobody_is_told_to_give_a_folder_of_the_system_away() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can become another account");
    }
    let scratch = Scratch::new();
    let (state, config) = (scratch.join("state"), scratch.join("propylon.toml"));
    fs::create_dir(&state).expect("a folder");
    scratch.write("state/state.json", "{}");
    let rest = "[listener.plain]\nbind = \"127.0.0.1:0\"\n[[route]]\nrespond = { status = 204 }\n";
    for (tables, cure) in [
        ("[log]\naccess = \"/etc/access.log\"".to_owned(), "choose a folder of its own, below /etc"),
        (format!("[process]\nstate = {state:?}"), "give it and its folder to the account that runs this"),
    ] {
        fs::write(&config, format!("{tables}\n{rest}")).expect("a file");
        fs::set_permissions(&config, fs::Permissions::from_mode(0o644)).expect("a mode");
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(binaries::propylon());
        command.args(["run", "-c"]).arg(&config);
        let said = run(command, b"", Duration::from_secs(20));
        assert!(!said.status.success() && said.stderr.contains(cure), "{}", said.stderr);
    }
}

/// What somebody reads who starts an engine with this before its other tables.
fn start_fails(tables: &str) -> String {
    let mut engine = Engine::spawn(&format!("{tables}\n{}", simple(&["127.0.0.1:1".parse().expect("an address")])));
    let end = engine.wait(Duration::from_secs(20));
    assert_eq!(end.status.code(), Some(1), "{:?}", end.stderr);
    let errors: Vec<String> = end.stderr.into_iter().filter(|line| line.contains(": error: ")).collect();
    assert_eq!(errors.len(), 1, "one thing is wrong: {errors:#?}");
    errors.concat()
}

#[test]
fn what_a_start_cannot_have_is_one_error_that_names_it_and_what_to_do() {
    let scratch = Scratch::new();
    let file = scratch.write("file", "").display().to_string();
    let missing = scratch.join("nowhere/x").display().to_string();
    let make = format!("make its folder: install -d {}", scratch.join("nowhere").display());
    for (tables, path, cure) in [
        (format!("[log]\naccess = \"{missing}\""), &missing, &*make),
        (format!("[admin]\nbind = \"unix:{missing}\""), &missing, &make),
        (format!("[process]\nupgrade_socket = \"{missing}\""), &missing, &make),
        (format!("[admin]\nbind = \"unix:{file}\""), &file, "it is no socket"),
        (format!("[process]\nupgrade_socket = \"{file}\""), &file, "it is no socket"),
        (
            format!("[log]\naccess = \"{}\"", scratch.path().display()),
            &scratch.path().display().to_string(),
            "name a file in it",
        ),
        (format!("[process]\nstate = \"{file}\""), &file, "put the file back"),
    ] {
        let told = start_fails(&tables);
        assert!(told.contains(path) && told.contains(cure), "{tables}: {told}");
    }
}

#[test]
fn a_state_that_cannot_be_written_is_told_at_the_start_and_the_engine_serves() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&format!("[process]\nstate = \"/proc/nowhere/state\"\n{}", simple(&[origin.address()])));
    let told =
        engine.stderr().into_iter().find(|line| line.contains("process.state /proc/nowhere/state cannot be made"));
    assert!(told.is_some_and(|line| line.contains("changes by the admin API are refused")), "{:#?}", engine.stderr());
    assert_eq!(engine.client("plain").get("/").text(), "hello\n");
}

#[test]
fn a_log_has_its_levels_once() {
    let origin = Origin::always(HELLO);
    let text = format!("[process]\nimmutable = true\nstate = \"state\"\n{}", simple(&[origin.address()]));
    let engine = Engine::start(&text);
    let warned = engine.stderr().into_iter().find(|line| line.contains("no use with immutable")).expect("a warning");
    assert_eq!(warned.matches("warning:").count(), 1, "{warned}");
    engine.reload();
    let warnings = engine.stderr().into_iter().filter(|line| line.contains("no use with immutable"));
    assert!(warnings.inspect(|line| assert_eq!(line.matches("warning:").count(), 1, "{line}")).count() > 1);
}

/// CPU time of each of the engine's threads, in hundredths of a second, by name.
/// `fs.suid_dumpable = 1` for as long as it lives: the kernel then lets a process that has changed its account be dumped.
struct DumpsByAccount {
    before: String,
    /// The setting is the whole machine's.
    _lock: fs::File,
}

impl DumpsByAccount {
    const SETTING: &str = "/proc/sys/fs/suid_dumpable";

    fn set() -> std::io::Result<DumpsByAccount> {
        let lock = fs::File::open(Self::SETTING)?;
        lock.lock()?;
        let before = fs::read_to_string(Self::SETTING)?;
        fs::write(Self::SETTING, "1")?;
        Ok(DumpsByAccount { before, _lock: lock })
    }
}

impl Drop for DumpsByAccount {
    fn drop(&mut self) {
        fs::write(Self::SETTING, &self.before).expect("what was set can be restored");
    }
}

#[test]
fn no_core_dump_can_be_had_of_a_process_that_has_changed_its_account() {
    let _setting = match DumpsByAccount::set() {
        Ok(setting) => setting,
        Err(error) => return eprintln!("skipped: {}: {error}", DumpsByAccount::SETTING),
    };
    let process = "[process]\nworkers = 1\ndrain_timeout = \"1s\"\nuser = \"nobody\"\n";
    let engine = Engine::start(&format!("{process}{}", simple(&["127.0.0.1:1".parse().expect("an address")])));
    let server = KeyServer::start(
        "[server]\nbind = \"127.0.0.1:0\"\nidentity = \"server.pem\"\nca = \"ca.pem\"\nworkers = 2\nuser = \"nobody\"\n",
    );
    for (name, pid) in [("propylon", engine.pid()), ("propylon-keyserver", server.pid())] {
        let account = fs::metadata(format!("/proc/{pid}/comm")).map(|of| of.uid());
        let memory = fs::metadata(format!("/proc/{pid}/mem")).expect("it runs").uid();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
        assert!(!status.contains("\nUid:\t0\t"), "{name} is still root ({account:?})");
        assert_eq!(memory, 0, "{name}: its memory is its account's to read, and to dump");
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a limit");
        // At 0 a program that cores are piped to would be started all the same.
        assert_eq!(core.split_whitespace().nth(4), Some("1"), "{name}: {core}");
    }
}

#[test]
fn a_log_file_is_for_the_account_and_its_group() {
    let scratch = Scratch::new();
    let path = scratch.join("access.log");
    let log = format!("[log]\naccess = {path:?}\n");
    let engine = Engine::start(&format!("{log}{}", simple(&["127.0.0.1:1".parse().expect("an address")])));
    let mode = |path| fs::metadata(path).expect("the log is there").permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o640);
    // A log that is made anew is no different, and one that its owner has opened to others is left so.
    fs::rename(&path, scratch.join("access.log.1")).expect("a rename");
    holds("the log is opened anew", || path.exists());
    assert_eq!(mode(&path), 0o640);
    drop(engine);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("a mode");
    drop(Engine::start(&format!("{log}{}", simple(&["127.0.0.1:1".parse().expect("an address")]))));
    assert_eq!(mode(&path), 0o644);
}

fn cpu_by_thread(engine: &Engine) -> BTreeMap<String, u64> {
    let tasks = fs::read_dir(format!("/proc/{}/task", engine.pid())).expect("threads");
    let of = |stat: &str| {
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // utime and stime, counted from the state that follows the name (proc_pid_stat(5)).
        Some((name.to_owned(), fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?))
    };
    let stats = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    stats.filter_map(|stat| of(&stat)).collect()
}

/// Handshakes and requests until the engine's workers have used a second of CPU since it was up. To come up costs the
/// main thread some: kernels are tested before they are trusted.
fn busy(workers: usize) -> BTreeMap<String, u64> {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&format!(
        "[process]\nworkers = {workers}\ndrain_timeout = \"1s\"\n[log]\naccess = \"off\"\n{}",
        simple(&[origin.address()])
    ));
    let before = cpu_by_thread(&engine);
    eventually(Duration::from_secs(60), "a second of CPU", || {
        for _ in 0..50 {
            assert_eq!(engine.client("web").get("/").text(), "hello\n");
        }
        let mut used = cpu_by_thread(&engine);
        used.iter_mut().for_each(|(name, used)| *used -= before.get(name).unwrap_or(&0));
        let workers = used.iter().filter(|(name, _)| name.starts_with("worker-"));
        (workers.map(|(_, used)| used).sum::<u64>() >= 100).then_some(used)
    })
}

#[test]
fn one_worker_is_one_busy_thread() {
    let used = busy(1);
    println!("{used:?}");
    let workers: Vec<&String> = used.keys().filter(|name| name.starts_with("worker-")).collect();
    assert_eq!(workers, ["worker-0"]);
    // Others have ticks of their own, as many a second however long the worker's second takes: what is asked is
    // that requests are none of their work.
    let others = used.iter().filter(|(name, _)| *name != "worker-0").map(|(_, used)| used).max();
    assert!(others.is_none_or(|most| *most < used["worker-0"] / 2), "{used:?}");
}

#[test]
fn two_workers_share_the_connections() {
    let used = busy(2);
    let total: u64 = used.values().sum();
    println!("{used:?}");
    for worker in ["worker-0", "worker-1"] {
        assert!(used[worker] * 100 >= total * 25, "{used:?}");
    }
}

#[test]
fn the_engine_does_not_hold_more_clients_than_it_is_told_to() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&format!(
        "[process]\nworkers = 1\ndrain_timeout = \"1s\"\nmax_connections = 10\n{}",
        simple(&[origin.address()])
    ));
    let mut held: Vec<Client> = (0..10).map(|_| engine.client("web")).collect();
    for client in &mut held {
        client.get("/");
    }
    // One more waits in the kernel's queue until there is room.
    let address = engine.address("plain");
    let waiting = std::thread::spawn(move || Client::plain(address).get("/waited").text());
    holds("accepting pauses", || engine.metric("propylon_accept_pauses_total", &[]) > 0.0);
    assert_eq!(engine.metric("propylon_connections", &[]), 10.0);
    assert!(!origin.received_text().contains("/waited"));
    held.pop();
    assert_eq!(waiting.join().expect("an answer"), "hello\n");
}

/// A handler's frame would go on whatever stack a worker happens to run on, and a parked handshake's is small.
#[test]
fn signals_are_delivered_to_no_worker() {
    let engine = Engine::start(&simple(&["127.0.0.1:1".parse().expect("an address")]));
    let tasks = || fs::read_dir(format!("/proc/{}/task", engine.pid())).expect("its threads").flatten();
    let is_worker =
        |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("worker-"));
    // A thread names itself once it runs.
    holds("a worker has its name", || tasks().any(is_worker));
    let mut workers = 0;
    // It blocks them once it has its name.
    let blocks = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
        !field("Name:").starts_with("worker-") || field("SigBlk:").chars().any(|digit| digit != '0')
    };
    holds("workers block signals", || tasks().all(blocks));
    for task in tasks() {
        let status = fs::read_to_string(task.path().join("status")).expect("its state");
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).expect(name).trim().to_owned();
        if field("Name:").starts_with("worker-") {
            workers += 1;
            let blocked = u64::from_str_radix(&field("SigBlk:"), 16).expect("a mask");
            let missing: Vec<i32> = [Signal::TERM, Signal::HUP, Signal::USR1, Signal::USR2, Signal::INT, Signal::CHILD]
                .map(Signal::as_raw)
                .into_iter()
                .filter(|signal| blocked & (1 << (signal - 1)) == 0)
                .collect();
            assert!(missing.is_empty(), "{missing:?} of SigBlk {blocked:016x}");
        }
    }
    assert!(workers > 0);
}

/// An engine whose standard error is read up to its start and no further, until the story wants it to.
struct Unread {
    engine: Child,
    said: Option<Lines<BufReader<ChildStderr>>>,
    scratch: Scratch,
    text: String,
    addresses: HashMap<&'static str, SocketAddr>,
}

impl Unread {
    fn start(origin: &Origin) -> Unread {
        let text = complete(&format!("[log]\naccess = \"off\"\nlevel = \"debug\"\n{}", simple(&[origin.address()])));
        let scratch = Scratch::new();
        let path = scratch.write("propylon.toml", &text);
        let mut command = Command::new(binaries::propylon());
        command.arg("run").arg("-c").arg(path).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut engine = command.spawn().expect("the engine starts");
        let mut said = BufReader::new(engine.stderr.take().expect("piped")).lines();
        let mut addresses = HashMap::new();
        let marks = [("admin", "admin at http://"), ("plain", "at http://"), ("web", "at https://")];
        for line in said.by_ref().map(|line| line.expect("a line")) {
            let found = marks.iter().find_map(|(name, mark)| Some((*name, line.split_once(mark)?.1.parse().ok()?)));
            addresses.extend(found);
            if line.contains(" runs with ") {
                break;
            }
        }
        Unread { engine, said: Some(said), scratch, text, addresses }
    }

    fn client(&self, name: &str) -> Client {
        Client::plain(self.addresses[name])
    }

    fn ask_admin(&self, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.addresses["admin"]);
        let response = self.client("admin").ask(request);
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        response.text()
    }

    fn lost(&self) -> u64 {
        let metrics = self.ask_admin("/metrics");
        let value = metrics.lines().find_map(|line| line.strip_prefix("propylon_log_lost_total "));
        value.expect("the metric").parse().expect("a count")
    }

    /// Has the engine say more than the pipe and the engine have room for.
    fn fill(&self) {
        let wrong: String = (0..400).map(|n| format!("{}{n} = 1\n", "wrong".repeat(40))).collect();
        self.scratch.write("propylon.toml", format!("{wrong}{}", self.text));
        eventually(Duration::from_secs(60), "lines without room", || {
            signal(self.engine.id(), Signal::HUP);
            assert_eq!(self.ask_admin("/health").trim(), "ok");
            (self.lost() > 0).then_some(())
        });
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        if let Ok(None) = self.engine.try_wait() {
            let _ = self.engine.kill();
            let _ = self.engine.wait();
        }
    }
}

#[test]
fn a_standard_error_that_nobody_reads_stops_nothing() {
    let origin = Origin::always(HELLO);
    let mut unread = Unread::start(&origin);
    unread.fill();
    // Each is a line of the worker's.
    for _ in 0..20 {
        let mut client = unread.client("web");
        client.send("no handshake\r\n\r\n");
        assert_ne!(client.ending(), Ending::Open);
    }
    assert_eq!(unread.client("plain").get("/").text(), "hello\n");
    holds("it is seen", || unread.ask_admin("/status.json").contains("\"log-lost\""));
    signal(unread.engine.id(), Signal::TERM);
    let status = finish(&mut unread.engine, Duration::from_secs(20), "the engine drains and ends");
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_standard_error_that_is_read_again_says_how_many_lines_were_lost() {
    let origin = Origin::always(HELLO);
    let mut unread = Unread::start(&origin);
    unread.fill();
    let whole = format!("Z propylon[{}]: ", unread.engine.id());
    let lines = Arc::new(Mutex::new(Vec::new()));
    let (said, read) = (unread.said.take().expect("not read yet"), Arc::clone(&lines));
    let reader = std::thread::spawn(move || {
        said.map_while(Result::ok).for_each(|line| read.lock().expect("nobody panics with it").push(line));
    });
    let lines = || lines.lock().expect("nobody panics with it").clone();
    let told = || -> u64 {
        let counts =
            lines().into_iter().filter_map(|line| Some(line.split_once(" of this log were lost")?.0.to_owned()));
        counts.map(|before| before.rsplit(' ').nth(1).expect("a count").parse::<u64>().expect("a number")).sum()
    };
    holds("as many as are counted", || told() > 0 && told() == unread.lost());
    eventually(Duration::from_secs(20), "a line after them", || {
        signal(unread.engine.id(), Signal::USR1);
        lines().iter().any(|line| line.contains("SIGUSR1")).then_some(())
    });
    signal(unread.engine.id(), Signal::TERM);
    assert_eq!(finish(&mut unread.engine, Duration::from_secs(20), "the engine ends").code(), Some(0));
    reader.join().expect("a reader");
    let lines = lines();
    for line in &lines {
        assert_eq!((line.find(&whole), line.matches(&whole).count()), (Some(23), 1), "{line}");
    }
    assert!(lines.last().is_some_and(|line| line.contains("drained in ")), "{:?}", lines.last());
}

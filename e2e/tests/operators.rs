//! What operators are told: who changed what, what overrides their file, what is wrong, where, what to do, and when it is over.

use std::io::{BufRead, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use propylon_e2e::admin::{TOKEN, admin, applied, ask_admin, push, with_state};
use propylon_e2e::engine::{complete, simple};
use propylon_e2e::{Certificates, Client, Engine, Origin, Scratch, binaries, eventually, holds, wait::WAIT_MAX};
use rustix::process::Signal;
use serde_json::Value;

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";

fn hello() -> Origin {
    Origin::always(HELLO)
}

fn config(process: &str, admin: &str, servers: &[SocketAddr], rest: &str) -> String {
    let servers: Vec<String> = servers.iter().map(|address| format!("\"{address}\"")).collect();
    format!(
        "[process]\nworkers = 1\ndrain_timeout = \"1s\"\n{process}\n[admin]\nbind = \"127.0.0.1:0\"\n{admin}\n\
         [listener.plain]\nbind = \"127.0.0.1:0\"\n[backend.app]\nservers = [{}]\n{rest}\n[[route]]\nbackend = \"app\"\n",
        servers.join(", ")
    )
}

fn status(engine: &Engine) -> Value {
    serde_json::from_str(&ask_admin(engine, "GET", "/status.json", "", "").text()).expect("JSON")
}

/// What is wrong now, by name.
fn condition(engine: &Engine, name: &str) -> Option<Value> {
    status(engine)["conditions"]["list"].as_array()?.iter().find(|each| each["name"] == name).cloned()
}

/// A line of the log with all of these; it may still be on its way.
#[track_caller]
fn logged(engine: &Engine, words: &[&str]) -> String {
    let fits = |line: &String| words.iter().all(|word| line.contains(word));
    eventually(WAIT_MAX, &format!("a line with {words:?}"), || engine.stderr().into_iter().find(fits))
}

/// A condition's begin: in the log with its cure, and at the admin address.
#[track_caller]
fn begins(engine: &Engine, name: &str, level: &str, words: &str) -> Value {
    let found = eventually(WAIT_MAX, name, || condition(engine, name));
    let tag = format!("[{name}]");
    logged(engine, &[level, words, &tag]);
    assert!(found["cure"].as_str().is_some_and(|cure| !cure.is_empty()), "{found:#}");
    found
}

/// A condition's end, likewise.
#[track_caller]
fn is_over(engine: &Engine, name: &str) {
    let tag = format!("[{name}]");
    holds("it is over", || condition(engine, name).is_none());
    logged(engine, &["]: info: ", "over after ", &tag]);
}

#[test]
fn a_line_of_the_log_has_time_process_and_level() {
    let origin = hello();
    let engine = Engine::start(&simple(&[origin.address()]));
    let process = format!("Z propylon[{}]: ", engine.pid());
    for line in engine.stderr() {
        let (time, rest) = line.split_once(&process).unwrap_or_else(|| panic!("no {process} in {line}"));
        // 2026-11-22T10:48:50.123
        assert!(time.len() == 23 && time.as_bytes()[10] == b'T' && time.starts_with("20"), "{line}");
        assert!(["info: ", "warning: ", "error: "].iter().any(|level| rest.starts_with(level)), "{line}");
    }
}

#[test]
fn whoever_changes_something_is_in_the_log_with_what_and_from_where() {
    let origin = hello();
    let scratch = Scratch::new();
    let (state, token) = with_state(&scratch);
    let engine = Engine::start(&config(&state, &token, &[origin.address()], ""));
    let place = format!("/v1/backends/app/servers/{}", origin.address());
    applied(&engine, "PATCH", &place, "{\"weight\":5}");
    let audit = |words: &str| logged(&engine, &["audit: ", words]);
    let line =
        audit(&format!("[backend.app]: server {} changed: weight 5, by a client at 127.0.0.1:", origin.address()));
    assert!(line.contains("]: info: ") && line.ends_with(" with the token: in effect as generation 2"), "{line}");
    // What is refused for what it asks changes nothing, and is told with its reason.
    let fields = format!("Authorization: Bearer {TOKEN}\r\nContent-Type: application/toml\r\nUser-Agent: deploy/7\r\n");
    assert_eq!(ask_admin(&engine, "PUT", "/v1/config", &fields, "[listener.x]\nbnd = 1\n").status, 422);
    let line = audit("a whole configuration of 21 bytes in place of the file, by a client at 127.0.0.1:");
    assert!(line.contains("]: warning: ") && line.contains("(deploy/7): refused, nothing has changed: "), "{line}");
    assert!(
        line.contains(": refused, nothing has changed: the pushed configuration, line 2, column 1: "),
        "the first reason is there: {line}"
    );
    // The pusher has been told, and the file is as good as ever: nothing is left to be mended.
    let count = || engine.metric("propylon_config_reloads_total", &[("result", "failed")]);
    assert_eq!((count(), engine.metric("propylon_config_last_reload_failed", &[])), (1.0, 0.0));
    assert!(condition(&engine, "change-refused").is_none());
    applied(&engine, "PATCH", &place, "{\"weight\":6}");
    // Nobody is told what was only tried, and no secret is in the log.
    assert_eq!(admin(&engine, "PATCH", &format!("{place}?dry_run=1"), "{\"weight\":9}").0, 200);
    let said = engine.stderr().join("\n");
    assert!(!said.contains("weight 9") && !said.contains(TOKEN), "{said}");
}

#[test]
fn what_the_state_overrides_is_told_at_the_start_by_check_by_explain_and_by_status() {
    let (a, b) = (hello(), hello());
    let scratch = Scratch::new();
    let (state, token) = with_state(&scratch);
    let text = config(&state, &token, &[a.address(), b.address()], "");
    {
        let engine = Engine::start(&text);
        applied(&engine, "PATCH", &format!("/v1/backends/app/servers/{}", b.address()), "{\"drain\":true}");
        assert!(!engine.stderr().iter().any(|line| line.contains("overrides")), "nothing was overridden at the start");
    }
    let words = format!(
        "process.state overrides this file: [backend.app]: server {} was drained by the admin API",
        b.address()
    );
    let engine = Engine::start(&text);
    logged(&engine, &["]: warning: ", &words]);
    let overrides = status(&engine)["configuration"]["overrides"].clone();
    assert_eq!(overrides["total"], 1, "{overrides:#}");
    let path = scratch.write("checked.toml", complete(&text));
    let run = |arguments: &[&str]| {
        let output = std::process::Command::new(binaries::propylon()).args(arguments).arg("-c").arg(&path).output();
        let output = output.expect("it runs");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    assert!(run(&["check"]).contains(&words));
    let explained = run(&["explain", "http://shop.test:0/", "--listener", "plain"]);
    assert!(explained.contains(&words), "{explained}");
}

#[test]
fn a_server_that_workers_pass_over_is_no_secret_though_nobody_probes_it() {
    let good = hello();
    let dead = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let engine = Engine::start(&config("", "", &[dead, good.address()], ""));
    let mut client = engine.client("plain");
    assert_eq!(client.get("/").text(), "hello\n");
    assert_eq!(client.get("/").text(), "hello\n");
    let place = format!("backend \"app\": server {dead}: passed over by 1 of the workers");
    let found = begins(&engine, "server-passed-over", "]: error: ", &place);
    assert_eq!(found["labels"]["server"], dead.to_string());
    let top = std::process::Command::new(binaries::propylon())
        .args(["top", "--once", "--admin"])
        .arg(engine.admin().to_string())
        .output()
        .expect("it runs");
    let top = String::from_utf8_lossy(&top.stdout).into_owned();
    assert!(top.contains("Needs attention") && top.contains("passed over by 1"), "{top}");
    // Back at its address, it is tried by a request, and all is well.
    let _back = Origin::on(TcpListener::bind(dead).expect("its port"), |peer| {
        while peer.read_request().is_some() {
            peer.send(HELLO);
        }
    });
    holds("it is tried again", || {
        assert_eq!(engine.client("plain").get("/").text(), "hello\n");
        engine.metric("propylon_server_passed_over", &[]) == 0.0
    });
    is_over(&engine, "server-passed-over");
}

#[test]
fn what_is_wrong_with_a_watched_file_is_told_once_however_often_it_is_read() {
    let origin = hello();
    let scratch = Scratch::new();
    let shop = scratch.write("shop.pem", Certificates::shared().issue(&["localhost"], &rcgen::PKCS_ECDSA_P256_SHA256));
    let tls = format!("[tls.public]\ncertificates = [\"{}\"]\nwatch = \"1s\"\n", shop.display());
    let listener = "[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n";
    let engine = Engine::start(&config("", "", &[origin.address()], &(tls + listener)));
    scratch.write("shop.pem", "garbage\n");
    let line = logged(&engine, &["]: error: tls \"public\"", "shop.pem"]);
    // A file is read again when it has settled, which is two seconds after its change.
    let ticks = || engine.metric("propylon_worker_ticks_total", &[]);
    let later = ticks() + 60.0;
    holds("it has been read again", || ticks() > later);
    let (_, words) = line.split_once("]: ").expect("time and process");
    let said = engine.stderr();
    assert_eq!(said.iter().filter(|line| line.ends_with(words)).count(), 1, "{said:#?}");
    assert_eq!(engine.metric("propylon_certificate_reload_errors_total", &[]), 1.0);
    assert_eq!(engine.metric("propylon_certificate_unusable_files", &[]), 1.0, "it is no better");
    // Another defect is news.
    std::fs::remove_file(&shop).expect("it is there");
    engine.metric_reaches("propylon_certificate_reload_errors_total", &[], 2.0);
    scratch.write("shop.pem", Certificates::shared().issue(&["localhost"], &rcgen::PKCS_ECDSA_P256_SHA256));
    is_over(&engine, "certificate-files");
}

#[test]
fn clients_that_find_no_place_are_told_of_with_the_listeners_name_and_when_there_is_room_again() {
    let origin = hello();
    let engine = Engine::start(&config("max_connections = 2", "", &[origin.address()], ""));
    let mut clients: Vec<Client> = (0..2).map(|_| engine.client("plain")).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.get("/").text(), "hello\n"));
    let waiting = TcpStream::connect(engine.address("plain")).expect("the kernel takes it");
    begins(&engine, "max-connections", "]: error: ", "listener \"plain\": no more clients are accepted");
    drop((clients, waiting));
    is_over(&engine, "max-connections");
}

#[test]
fn lines_of_the_access_log_that_cannot_be_written_are_counted_and_told() {
    let origin = hello();
    let text = format!("[log]\naccess = \"/dev/full\"\n{}", config("", "", &[origin.address()], ""));
    let engine = Engine::start(&text);
    let mut client = engine.client("plain");
    (0..3).for_each(|_| assert_eq!(client.get("/").text(), "hello\n"));
    engine.metric_reaches("propylon_access_log_lost_total", &[], 3.0);
    let found = begins(&engine, "access-log-lost", "]: error: ", "lines of the access log are lost");
    let why = "/dev/full: No space left on device (os error 28)";
    assert_eq!(found["why"], why);
    let (code, said) = told(&engine, &["status"]);
    assert!(code == Some(3) && said.contains(why), "{said}");
    let why = format!("error: the access log cannot be written: {why}");
    holds("it is told why", || engine.stderr().iter().any(|line| line.contains(&why)));
}

#[test]
fn few_files_and_files_that_have_run_out_are_told() {
    let origin = hello();
    let engine = Engine::start(&config("", "", &[origin.address()], ""));
    let pid = rustix::process::Pid::from_raw(engine.pid() as i32).expect("a process");
    let limit = rustix::process::Rlimit { current: Some(200), maximum: Some(20_000) };
    rustix::process::prlimit(Some(pid), rustix::process::Resource::Nofile, limit).expect("it may be lowered");
    let found =
        begins(&engine, "files-few", "]: warning: ", "the limit on open files is too low: clients with a request");
    // Room for 400 clients with a request each, and what the process has itself.
    let needed: u64 = found["cure"]
        .as_str()
        .and_then(|cure| cure.split("LimitNOFILE=").nth(1)?.split(' ').next()?.parse().ok())
        .expect("the figure that is needed");
    assert!((830..1024).contains(&needed), "{needed}");
    // Half a head each: none of them can be closed to make room.
    let mut busy = Vec::new();
    holds("files run out", || {
        let mut client = Client::plain(engine.address("plain"));
        let _ = client.try_send(b"GET / HTTP/1.1\r\n");
        busy.push(client);
        engine.metric("propylon_connections_refused_total", &[("reason", "files")]) > 0.0
    });
    begins(&engine, "files-short", "]: error: ", "client connections are refused: open files have run out");
}

#[test]
fn with_few_files_as_many_clients_are_served_as_there_are_files_for_and_the_limit_is_named() {
    let origin = hello();
    let text = config("", "", &[origin.address()], "");
    let engine = Engine::start_with_files(64, &text);
    begins(&engine, "files-few", "]: warning: ", "LimitNOFILE=");
    let mut clients: Vec<Client> = (0..18).map(|_| engine.client("plain")).collect();
    clients.iter_mut().for_each(|client| assert_eq!(client.get("/").text(), "hello\n"));
    let waiting = TcpStream::connect(engine.address("plain")).expect("the kernel takes it");
    let found = begins(&engine, "files-full", "]: error: ", "as many connections are open as the limit on open files");
    assert!(found["cure"].as_str().is_some_and(|cure| cure.contains("LimitNOFILE=")), "{found:#}");
    assert!(condition(&engine, "max-connections").is_none(), "nobody has set it");
    drop((clients, waiting));
    is_over(&engine, "files-full");
    // Whoever checks before is told the same, with the figure.
    let scratch = Scratch::new();
    let stated = complete(&text.replace("workers = 1", "workers = 1\nmax_connections = 500"));
    let path = scratch.write("stated.toml", stated);
    let propylon = |arguments: &[&str]| {
        let mut command = std::process::Command::new("prlimit");
        command.arg("--nofile=64:64").arg(binaries::propylon()).args(arguments).arg("-c").arg(&path);
        let output = command.output().expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    let said = propylon(&["check"]);
    let words = "warning: the limit on open files is 64 here, and 500 clients with a request in progress each take ";
    let (_, rest) = said.split_once(words).unwrap_or_else(|| panic!("{said}"));
    let needed: String = rest.chars().take_while(char::is_ascii_digit).collect();
    assert!(said.contains("ok, 1 warning") && rest.contains(&format!("LimitNOFILE={needed} or more")), "{said}");
    let said = propylon(&["doctor"]);
    let line = said.lines().find(|line| line.contains("open files (hard limit)")).expect("it is looked at");
    assert!(line.starts_with("bad ") && line.contains(&format!("at least {needed}")), "{line}");
}

#[test]
fn a_server_that_is_ejected_is_told_of_with_what_to_do_and_one_that_is_down_counts_as_such_alone() {
    let sick = Origin::always("HTTP/1.1 500 Sick\r\nContent-Length: 0\r\n\r\n");
    let good = hello();
    let more = "outlier = { consecutive_failures = 2, ejection = \"5m\" }\n\
                [backend.gone]\nservers = [\"127.0.0.1:1\"]\nhealth = { interval = \"1s\", fall = 1, rise = 1, start = \"down\" }\n\
                [[route]]\npath = \"/gone\"\nbackend = \"gone\"\n";
    let engine = Engine::start(&config("", "", &[sick.address(), good.address()], more));
    let mut client = engine.client("plain");
    holds("it is ejected", || {
        client.get("/");
        engine.metric("propylon_server_ejections_total", &[]) > 0.0
    });
    let told = eventually(WAIT_MAX, "it is shown", || condition(&engine, "server-ejected"));
    let place = format!("backend \"app\": server {}", sick.address());
    assert_eq!((&told["place"], &told["what"]), (&Value::from(&*place), &"ejected for its answers".into()));
    assert!(told["count"].is_null(), "it is for as long as it lasts, and nothing that is counted: {told:#}");
    logged(&engine, &["]: warning: ", &format!("{place} is ejected for "), "look at the server's own log"]);
    assert_eq!(client.get("/gone").text(), "503 Service Unavailable: no-healthy-server\n");
    begins(&engine, "no-server", "]: error: ", "backend \"gone\": requests find no server");
    // Counted as what it is, by one look at both.
    let list = status(&engine)["conditions"]["list"].clone();
    let gone = list.as_array().expect("a list").iter().filter(|each| each["labels"]["backend"] == "gone");
    let names: Vec<&str> = gone.filter_map(|each| each["name"].as_str()).collect();
    assert_eq!(names, ["no-server"], "{list:#}");
    let top = std::process::Command::new(binaries::propylon())
        .args(["top", "--once", "--admin"])
        .arg(engine.admin().to_string())
        .output()
        .expect("it runs");
    let top = String::from_utf8_lossy(&top.stdout).into_owned();
    assert!(top.contains("! backend \"gone\": none of its servers is usable, of 1"), "{top}");
    assert!(top.contains("! 1 of 3 servers down: 127.0.0.1:1 of gone"), "{top}");
}

#[test]
fn each_ejection_is_a_warning_and_a_condition_until_its_end() {
    let sick = Origin::always("HTTP/1.1 500 Sick\r\nContent-Length: 0\r\n\r\n");
    let good = hello();
    let more = "outlier = { consecutive_failures = 2, ejection = \"1s\", ejection_max = \"1s\" }\n";
    let engine = Engine::start(&config("", "", &[sick.address(), good.address()], more));
    let mut client = engine.client("plain");
    let [begins, ends] = ["]: warning: ", "]: info: "].map(|level| {
        let engine = &engine;
        let words = [format!("server {} is ejected for 1 s: ", sick.address()), "its ejection is over".to_owned()];
        move || {
            let lines = engine.stderr();
            lines.iter().filter(|line| line.contains(level) && words.iter().any(|word| line.contains(word))).count()
        }
    });
    for time in 1..=3 {
        holds("it is ejected", || {
            client.get("/");
            begins() == time
        });
        holds("it comes back", || ends() == time);
        holds("the condition is over", || condition(&engine, "server-ejected").is_none());
        let by_server = [("server", &*sick.address().to_string())];
        assert_eq!(engine.metric("propylon_server_ejected", &by_server), 0.0);
    }
    assert!(engine.stderr().iter().all(|line| !line.contains("[server-ejected]")), "it is told once");
}

#[test]
fn whoever_changes_something_by_the_unix_socket_is_named_by_account_and_process() {
    let origin = hello();
    let scratch = Scratch::new();
    let (state, _) = with_state(&scratch);
    let socket = scratch.join("admin.sock");
    let text = config(&state, "", &[origin.address()], "")
        .replace("bind = \"127.0.0.1:0\"\n\n[listener", &format!("bind = \"unix:{}\"\n[listener", socket.display()));
    let engine = Engine::start(&text);
    let mut stream = UnixStream::connect(&socket).expect("the admin socket");
    let request = "POST /v1/reload HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("a request");
    let words = format!("process {}, at the Unix socket", std::process::id());
    holds("an audit line", || engine.stderr().iter().any(|line| line.contains("audit: ") && line.contains(&words)));
}

#[test]
fn servers_are_drained_weighed_and_listed_from_the_command_line() {
    let (a, b) = (hello(), hello());
    let scratch = Scratch::new();
    let (state, token) = with_state(&scratch);
    let engine = Engine::start(&config(&state, &token, &[a.address(), b.address()], ""));
    let (admin, server) = (engine.admin().to_string(), a.address().to_string());
    let token = scratch.join("token").display().to_string();
    let run = |arguments: &[&str]| {
        let output =
            std::process::Command::new(binaries::propylon()).args(arguments).args(["--admin", &admin]).output();
        let output = output.expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code(), said)
    };
    let (code, said) = run(&["drain", &server]);
    assert_eq!(code, Some(1));
    assert!(said.contains("a token is needed"), "{said}");
    // A drain is told as a drain.
    let told = format!("in effect as generation 2:\n  backend.app.servers[{server}].drain: added true\n");
    assert_eq!(run(&["drain", &server, "--token-file", &token]), (Some(0), told));
    let (_, listed) = run(&["servers"]);
    let line = listed.lines().find(|line| line.contains(&server)).expect("it is listed");
    assert!(line.starts_with("app ") && line.contains(" draining "), "{listed}");
    let (code, said) = run(&["weight", &server, "7", "--token-file", &token]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("backend.app.servers[{server}].weight: 1 -> 7")), "{said}");
    assert_eq!(run(&["undrain", &server, "--token-file", &token]).0, Some(0));
    let (_, said) = run(&["reload", "--token-file", &token]);
    assert!(said.starts_with("nothing is different: generation 4"), "{said}");
    let (code, said) = run(&["drain", "10.9.9.9:1", "--token-file", &token]);
    assert_eq!((code, said.contains("no backend has a server 10.9.9.9:1")), (Some(1), true), "{said}");
    let audit = format!("server {server} changed: drained, by a client at 127.0.0.1:");
    logged(&engine, &[&audit, "with the token (propylon/"]);
}

#[test]
fn a_night_is_understood_from_the_command_line() {
    let (good, gone) = (hello(), propylon_e2e::origin::dead());
    let health = "health = { interval = \"200ms\", fall = 1, rise = 1 }";
    let engine = Engine::start(&config("", "", &[good.address(), gone], health));
    let ask = |arguments: &[&str]| {
        let mut command = std::process::Command::new(binaries::propylon());
        command.args(arguments).args(["--admin", &engine.admin().to_string()]);
        let said = propylon_e2e::program::run(command, b"", WAIT_MAX);
        (said.status.code(), said.text())
    };
    let words = format!("1 of 2 servers down: {gone} of app");
    let said = eventually(WAIT_MAX, "the server is known to be down", || {
        let (code, said) = ask(&["status"]);
        said.contains(&words).then_some((code, said))
    });
    assert_eq!(said.0, Some(3), "{said:?}");
    assert!(said.1.starts_with("serving: version ") && said.1.contains("1 of 2 servers usable"), "{said:?}");
    let (code, json) = ask(&["status", "--json"]);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (code, &json["attention"][0]["grade"], &json["servers"]["down"]),
        (Some(3), &"problem".into(), &1.into())
    );
    // A request that is none is an error of its listener.
    Client::plain(engine.address("plain")).ask("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n");
    let (code, said) = ask(&["errors"]);
    assert_eq!(code, Some(0), "{said}");
    let line = said.lines().find(|line| line.contains("request refused")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains(" plain ") && line.split_whitespace().nth(1) == Some("1"), "{said}");
    assert_eq!(ask(&["errors", "no such thing"]).1, "no error has \"no such thing\" in it\n");
    let (code, said) = ask(&["tail", "--level", "warning"]);
    assert!(code == Some(0) && said.contains(&gone.to_string()) && !said.contains(" info: "), "{said}");
    let (_, said) = ask(&["tail", "-n", "2"]);
    assert_eq!(said.lines().count(), 2, "{said}");
    // Lines that come while somebody follows.
    let mut follower = std::process::Command::new(binaries::propylon());
    follower.args(["tail", "-n", "0", "--follow", "--admin", &engine.admin().to_string()]);
    let mut follower = follower.stdout(std::process::Stdio::piped()).spawn().expect("it runs");
    let (tell, told) = std::sync::mpsc::channel();
    let lines = std::io::BufReader::new(follower.stdout.take().expect("a pipe"));
    std::thread::spawn(move || lines.lines().map_while(Result::ok).for_each(|line| drop(tell.send(line))));
    holds("a reload is among them", || {
        engine.signal(Signal::HUP);
        told.recv_timeout(std::time::Duration::from_secs(3)).is_ok_and(|line| line.contains(" info: "))
    });
    follower.kill().and_then(|()| follower.wait()).expect("it is ours");
}

/// A command's exit code and words about an engine.
fn told(engine: &Engine, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = std::process::Command::new(binaries::propylon());
    command.args(arguments).args(["--admin", &engine.admin().to_string()]);
    let said = propylon_e2e::program::run(command, b"", WAIT_MAX);
    (said.status.code(), said.text())
}

#[test]
fn a_route_that_fails_requests_is_a_problem_until_its_last_minute_is_good() {
    let origin = Origin::scripted(|peer| {
        while let Some(request) = peer.read_request() {
            match String::from_utf8_lossy(&request).split(' ').nth(1) {
                Some("/bad") => peer.send("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"),
                Some("/gone") => return peer.close(),
                _ => peer.send(HELLO),
            }
        }
    });
    let text = config("", "", &[origin.address()], "");
    let engine = Engine::start(&text);
    let mut client = engine.client("plain");
    let mut ask = |path: &str, times: usize| (0..times).for_each(|_| drop(client.get(path)));
    ask("/bad", 5);
    ask("/", 5);
    // Too few to say so of a route; the answers are told all the same.
    let seen = |failed: u64| status(&engine)["last_minute"]["failed"] == failed;
    holds("the last minute is known", || seen(5));
    let (code, said) = told(&engine, &["status"]);
    assert!(code == Some(0) && said.contains("5 of them 5xx (in the last minute 5 of 10)"), "{said}");
    ask("/", 5);
    let found = begins(&engine, "route-failing", "]: error: ", "route \"*/\": 33 % of its requests of the last minute");
    let why = format!("5 of 15; {} of app failed 5 of 15", origin.address());
    assert_eq!((&found["why"], &found["labels"]), (&why.into(), &serde_json::json!({ "route": "*/" })));
    let (code, said) = told(&engine, &["status"]);
    let line = said.lines().find(|line| line.starts_with("problem") && line.contains("route \"*/\": 33 % of its"));
    assert!(code == Some(3) && line.is_some_and(|line| line.contains(&origin.address().to_string())), "{said}");
    let (code, said) = told(&engine, &["status", "--json"]);
    let json: Value = serde_json::from_str(&said).expect("JSON");
    let first = &json["attention"][0];
    assert_eq!((code, &first["name"], &first["labels"]["route"]), (Some(3), &"route-failing".into(), &"*/".into()));
    // A reload forgets nothing: what was counted belongs to the route, not to a configuration.
    engine.rewrite(&text.replace("backend = \"app\"\n", "backend = \"app\"\nresponse = { set = { X-A = \"b\" } }\n"));
    engine.reload();
    assert!(condition(&engine, "route-failing").is_some() && seen(5), "{:#}", status(&engine));
    ask("/", 90);
    is_over(&engine, "route-failing");
    // Requests that the server leaves without an answer, which may not be made again, count as well.
    for _ in 0..7 {
        let mut client = engine.client("plain");
        client.get("/");
        client.send("POST /gone HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx");
        client.read_to_end();
    }
    let silent = engine.metric("propylon_route_unanswered_total", &[("route", "*/")]);
    let failed = engine.metric("propylon_route_requests_total", &[("route", "*/"), ("class", "5xx")]);
    assert!(silent + failed == 12.0 && silent > 0.0, "{silent} {failed}");
    eventually(WAIT_MAX, "it fails again", || condition(&engine, "route-failing"));
}

#[test]
fn a_server_that_is_far_slower_than_the_others_is_marked_and_told() {
    let slow = Origin::scripted(|peer| {
        while peer.read_request().is_some() {
            std::thread::sleep(std::time::Duration::from_millis(400));
            peer.send(HELLO);
        }
    });
    let fast = hello();
    let servers = [slow.address(), fast.address()];
    let engine = Engine::start(&config("", "", &servers, "balance = \"round-robin\""));
    std::thread::scope(|scope| {
        for _ in 0..22 {
            scope.spawn(|| {
                let mut client = engine.client("plain");
                (0..2).for_each(|_| drop(client.get("/")));
            });
        }
    });
    let found = begins(&engine, "server-slow", "]: warning: ", "answers take ");
    assert_eq!(found["labels"]["server"], slow.address().to_string());
    let why = found["why"].as_str().unwrap_or_default();
    assert!(why.contains(" ms on average of ") && why.contains(" heads, the others "), "{why}");
    let (code, said) = told(&engine, &["servers"]);
    let line = |server: &Origin| {
        let address = server.address().to_string();
        said.lines().find(|line| line.contains(&address)).unwrap_or_else(|| panic!("{said}"))
    };
    assert!(code == Some(0) && line(&slow).contains("slow: ") && !line(&fast).contains("slow: "), "{said}");
    assert!(line(&fast).contains(" ms"), "{said}");
    let of = |server: &Origin| [("backend", "app"), ("server", &*server.address().to_string().leak())];
    let heads = engine.metric("propylon_server_response_wait_seconds_count", &of(&slow));
    assert!(heads >= 20.0 && engine.metric("propylon_server_slow_factor", &of(&fast)) == 0.0, "{heads}");
}

#[test]
fn a_mistake_in_the_file_keeps_nobody_from_asking_the_engine_that_runs() {
    let origin = hello();
    let engine = Engine::start(&config("", "", &[origin.address()], ""));
    let scratch = Scratch::new();
    let run = |command: &str, text: String| {
        let path = scratch.write("saved.toml", text);
        let mut asked = std::process::Command::new(binaries::propylon());
        asked.arg(command).arg("-c").arg(&path);
        let output = asked.output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let own = format!("[admin]\nbind = \"{}\"\n", engine.admin());
    // keepalived asks so: the address stays with an engine that serves, whatever somebody saves.
    for broken in ["[backend.app]\nservrs = []\n", "[backend.app]\nservers = [\"10.0.0.1:80\n", "[[rou"] {
        for text in [format!("{own}{broken}"), format!("{broken}\n{own}")] {
            let (code, said, told) = run("health", text.clone());
            assert_eq!((code, said.as_str()), (Some(0), "ok\n"), "{text}: {told}");
            assert!(told.lines().count() == 1 && told.contains("has errors, which `propylon check -c "), "{told}");
        }
    }
    let (code, said, _) = run("status", format!("{own}[backend.app]\nservrs = []\n"));
    assert!(code == Some(0) && said.starts_with("serving: "), "{said}");
    let (code, _, told) = run("health", "[backend.app]\nservrs = []\n".into());
    assert!(code == Some(1) && told.contains("give it with --admin"), "{told}");
    let (code, ..) = run("health", format!("[admin]\nbind = \"{}\"\n[[rou", propylon_e2e::origin::dead()));
    assert_eq!(code, Some(1), "nobody is there");
}

#[test]
fn the_doctor_finds_a_certificate_that_a_start_would_refuse() {
    let scratch = Scratch::new();
    let whole = std::fs::read_to_string(Certificates::shared().rsa()).expect("a file");
    let doctor = |pem: &str| {
        let pem = scratch.write("site.pem", pem);
        let text = format!(
            "[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n[tls.public]\ncertificates = [\"{}\"]\n\
             [[route]]\nrespond = {{}}\n",
            pem.display()
        );
        let path = scratch.write("doctored.toml", text);
        let mut asked = std::process::Command::new(binaries::propylon());
        asked.args(["doctor", "--json", "-c"]).arg(path);
        let said: Value = serde_json::from_slice(&asked.output().expect("it runs").stdout).expect("JSON");
        let all = said.as_array().expect("findings").iter();
        all.filter(|one| one["what"] == "certificates").map(|one| one["state"].clone()).collect::<Vec<Value>>()
    };
    assert_ne!(doctor(&whole), ["bad"]);
    assert_eq!(doctor(&whole[..whole.len() / 2]), ["bad"], "cut off");
    assert_eq!(doctor(""), ["bad"]);
}

#[test]
fn a_file_that_a_reload_cannot_use_is_told_to_whoever_asks_and_stays_wrong_until_it_is_mended() {
    let origin = hello();
    let scratch = Scratch::new();
    let (state, token) = with_state(&scratch);
    let issue = || Certificates::shared().issue(&["localhost"], &rcgen::PKCS_ECDSA_P256_SHA256);
    let shop = scratch.write("shop.pem", issue());
    let other = scratch.write("other.pem", issue());
    let tls = format!("[tls.public]\ncertificates = [\"{}\", \"{}\"]\n", shop.display(), other.display());
    let listener = "[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n";
    let engine = Engine::start(&config(&state, &token, &[origin.address()], &(tls + listener)));
    let reload = |more: &[&str]| {
        let output = std::process::Command::new(binaries::propylon())
            .args(["reload", "--admin", &engine.admin().to_string(), "--token-file"])
            .arg(scratch.join("token"))
            .args(more)
            .output()
            .expect("it runs");
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), said(&output.stdout), said(&output.stderr))
    };
    let counted = |result| engine.metric("propylon_certificate_reloads_total", &[("result", result)]);
    scratch.write("shop.pem", "garbage\n");
    let (code, told, wrong) = reload(&["--dry-run"]);
    assert_eq!(code, Some(1), "{told}{wrong}");
    assert_eq!((counted("failure"), counted("success")), (0.0, 0.0), "it was only tried");
    let (code, told, wrong) = reload(&[]);
    assert_eq!(code, Some(1), "{told}{wrong}");
    assert!(told.starts_with("nothing is different: generation 1\nwarning: ") && told.contains("shop.pem"), "{told}");
    assert!(wrong.contains("stays in use in place of what cannot be used: ") && wrong.contains("shop.pem"), "{wrong}");
    assert_eq!((counted("failure"), counted("success")), (1.0, 0.0));
    assert_eq!(engine.metric("propylon_certificate_reload_errors_total", &[]), 1.0);
    logged(&engine, &["]: warning: ", "shop.pem", "what was there before stays in use"]);
    logged(&engine, &["]: error: ", "certificates could not all be read again"]);
    let words = "1 of the files of certificates, keys or authorities cannot be used";
    begins(&engine, "certificate-files", "]: error: ", words);
    let top = std::process::Command::new(binaries::propylon())
        .args(["top", "--once", "--admin", &engine.admin().to_string()])
        .output()
        .expect("it runs");
    assert!(String::from_utf8_lossy(&top.stdout).contains(words), "{top:?}");
    // It is no better for being read again, nor for another change, and one more is one more.
    applied(&engine, "PATCH", &format!("/v1/backends/app/servers/{}", origin.address()), "{\"weight\":5}");
    scratch.write("other.pem", "");
    assert_eq!(reload(&[]).0, Some(1));
    engine.metric_reaches("propylon_certificate_unusable_files", &[], 2.0);
    let listed = status(&engine)["certificates"]["unusable_files"].clone();
    assert_eq!(listed.as_array().map(Vec::len), Some(2), "{listed:#}");
    scratch.write("shop.pem", issue());
    assert_eq!(reload(&[]).0, Some(1), "the other one is still no good");
    engine.metric_reaches("propylon_certificate_unusable_files", &[], 1.0);
    scratch.write("other.pem", issue());
    let (code, told, wrong) = reload(&[]);
    assert_eq!(code, Some(0), "{told}{wrong}");
    assert_eq!((counted("failure"), counted("success")), (3.0, 1.0));
    is_over(&engine, "certificate-files");
    // What is served from other files needs the ones that are wrong no more.
    scratch.write("other.pem", "");
    let (status, answer) = admin(&engine, "POST", "/v1/reload", "");
    assert_eq!(status, 200, "{answer:#}");
    assert_eq!(answer["unusable_files"], serde_json::json!([other.display().to_string()]), "{answer:#}");
    engine.metric_reaches("propylon_certificate_unusable_files", &[], 1.0);
    let alone = format!("[tls.public]\ncertificates = [\"{}\"]\n{listener}", shop.display());
    let (status, answer) = push(&engine, &config(&state, &token, &[origin.address()], &alone));
    assert_eq!(status, 200, "{answer:#}");
    engine.metric_reaches("propylon_certificate_unusable_files", &[], 0.0);
}

#[test]
fn a_token_file_that_anybody_may_read_is_found_before_it_is_needed() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let token = scratch.write("token", TOKEN);
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o644)).expect("our own file");
    let admin = format!("token_file = \"{}\"", token.display());
    let path =
        scratch.write("checked.toml", complete(&config("", &admin, &["127.0.0.1:1".parse().expect("an address")], "")));
    let output = std::process::Command::new(binaries::propylon()).arg("check").arg("-c").arg(&path).output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("`token_file`: ") && said.contains("chmod o-rwx"), "{said}");
}

#[test]
fn each_line_of_an_http2_connection_has_the_name_that_it_was_made_for() {
    let origin = hello();
    let engine = Engine::start(&simple(&[origin.address()]));
    let url = engine.url("web");
    let ca = propylon_e2e::Certificates::shared().ca();
    let mut curl = std::process::Command::new("curl");
    curl.args(["--silent", "--http2", "--cacert"]).arg(ca).args([format!("{url}/one"), format!("{url}/two")]);
    let output = curl.output().expect("curl runs");
    assert!(output.status.success(), "{output:?}");
    for path in ["/one", "/two"] {
        let line = engine.logged_path(path);
        assert_eq!((&line["protocol"], &line["tls"]["server_name"]), (&"HTTP/2".into(), &"localhost".into()), "{line}");
    }
}

#[test]
fn series_are_bounded_by_what_lives_however_often_backends_come_and_go() {
    let origin = hello();
    let server = format!("\"{}\"", origin.address());
    let setup = |generation: usize| {
        let rest = format!(
            "[backend.b{generation}]\nservers = [{server}]\n[[route]]\npath = \"/b\"\nbackend = \"b{generation}\"\n"
        );
        format!("{}\n{rest}", config("", "", &[origin.address()], ""))
    };
    let engine = Engine::start(&setup(0));
    // One holds the first configuration with a request that does not end; the other uses each new backend.
    let mut long = engine.client("plain");
    long.send("POST /b HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 5\r\n\r\n");
    let mut client = engine.client("plain");
    let series = |engine: &Engine| engine.metrics().lines().filter(|line| !line.starts_with('#')).count();
    let mut counts = Vec::new();
    for generation in 1..=30 {
        engine.rewrite(&setup(generation));
        assert!(engine.reload().contains("the configuration is in effect"));
        assert_eq!(client.get("/b").text(), "hello\n");
        counts.push(series(&engine));
    }
    let (early, late) = (counts[9], counts[29]);
    assert!(late <= early + early / 20, "series after each change: {counts:?}");
    long.send("hello");
    assert_eq!(long.read_response().text(), "hello\n");
}

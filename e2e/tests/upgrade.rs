//! Processes that take over from each other: nothing is refused, reset or forgotten, and what fails changes nothing.

use std::fs;
use std::net::SocketAddr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{SocketAddr as UnixAddress, UnixDatagram};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use propylon_e2e::engine::{simple, with};
use propylon_e2e::http::values;
use propylon_e2e::lineage::{How, Lineage, is_alive};
use propylon_e2e::load::{Load, Manner};
use propylon_e2e::program::{run, s_client, signal};
use propylon_e2e::{Certificates, Client, Ending, Origin, Scratch, binaries, engine, eventually, holds};
use rustix::process::Signal;

const WAIT_MAX: Duration = Duration::from_secs(30);

fn hello() -> Origin {
    Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
}

/// The rates of requests that the engine has kept, second by second.
fn past(lineage: &Lineage) -> Vec<(u64, f64)> {
    let json = lineage.json("/history.json?span=5m");
    let values = json["series"]["requests"]["values"].as_array().expect("values").clone();
    let times = json["times"].as_array().expect("times").iter().filter_map(serde_json::Value::as_u64);
    times.zip(values).map(|(time, value)| (time, value.as_f64().unwrap_or(-1.0))).collect()
}

#[test]
fn what_was_before_an_upgrade_is_told_by_the_successor() {
    let origin = hello();
    let mut lineage = Lineage::start("workers = 1\ndrain_timeout = \"1s\"", &simple(&[origin.address()]));
    let plain = lineage.address("plain");
    holds("requests are in the past", || {
        assert_eq!(Client::plain(plain).get("/").status, 200);
        past(&lineage).iter().any(|(_, rate)| *rate > 0.0)
    });
    let first = lineage.pid();
    let before = past(&lineage);
    for how in [How::Signal, How::Run] {
        lineage.upgrade(how);
        let after = past(&lineage);
        let kept = before.iter().filter(|frame| after.contains(frame)).count();
        assert_eq!(kept, before.len(), "{before:?}, {after:?}");
        assert!(after.is_sorted_by(|(one, _), (two, _)| one < two), "{after:?}");
    }
    let newest = past(&lineage).last().map(|(time, _)| *time);
    holds("the past goes on", || past(&lineage).last().map(|(time, _)| *time) > newest);
    let events = lineage.json("/events.json")["events"].as_array().expect("events").clone();
    let texts: Vec<&str> = events.iter().filter_map(|event| event["text"].as_str()).collect();
    let serves = texts.iter().filter(|text| text.contains("upgrade: this process serves")).count();
    assert_eq!(serves, 2, "{texts:#?}");
    assert!(texts.iter().any(|text| text.contains(&format!("process {first} drains"))), "{texts:#?}");
    let times: Vec<f64> = events.iter().filter_map(|event| event["time"].as_f64()).collect();
    assert!(times.is_sorted(), "{events:#?}");
}

/// Waits until each of these loads has got so many answers more.
#[track_caller]
fn goes_on(loads: &[Load], more: usize) {
    let before: Vec<usize> = loads.iter().map(Load::requests).collect();
    eventually(Duration::from_secs(60), "every client gets answers", || {
        loads.iter().zip(&before).all(|(load, before)| load.requests() >= before + more).then_some(())
    });
}

#[test]
fn ten_upgrades_under_load_lose_nothing_and_leak_nothing() {
    let origin = hello();
    // Without idle connections to the server, which would be among the files that are counted.
    let config = with(&[origin.address()], "", "max_requests = 1");
    let mut lineage = Lineage::start("workers = 2\ndrain_timeout = \"2s\"", &config);
    let (plain, web) = (lineage.address("plain"), lineage.address("web"));
    let is_idle =
        |lineage: &Lineage| lineage.snapshot()["workers"].to_string().matches("\"connections\":0").count() == 2;
    assert_eq!(Client::plain(plain).get("/").status, 200);
    holds("the connection ends", || is_idle(&lineage));
    // Whoever looks at the admin address has a file there as well, for a while.
    let looks = (0..40).map(|_| {
        std::thread::sleep(Duration::from_millis(5));
        lineage.files(lineage.pid())
    });
    let files_at_first = looks.min().expect("some");
    let loads = [
        Load::start(Manner::Plain, plain, 3),
        Load::start(Manner::Tls, web, 2),
        Load::start(Manner::KeepAlive, plain, 2),
        Load::start(Manner::KeepAliveTls, web, 1),
        Load::start(Manner::Http2, plain, 1),
        Load::start(Manner::Http2Tls, web, 2),
    ];
    goes_on(&loads, 5);
    for number in 1..=10 {
        lineage.upgrade([How::Signal, How::Run, How::Command][number % 3]);
        goes_on(&loads, 5);
        assert_eq!(lineage.snapshot()["upgrade"]["upgrades"], number);
    }
    let mut total = 0;
    for load in loads {
        let (manner, counted) = load.finish();
        eprintln!(
            "{manner:?}: {} requests on {} connections, {} failed",
            counted.requests,
            counted.connections,
            counted.failures.len()
        );
        assert!(counted.requests > 0);
        assert_eq!(counted.failures, [""; 0], "{manner:?}");
        total += counted.requests;
    }
    eprintln!("{total} requests over 10 upgrades");
    let earlier = lineage.earlier().to_vec();
    earlier.into_iter().for_each(|pid| lineage.gone(pid));
    holds("nobody drains any more", || {
        lineage.snapshot()["upgrade"]["predecessors"].as_array().is_some_and(Vec::is_empty)
    });
    assert_eq!(Client::plain(plain).get("/").status, 200);
    holds("the connection ends", || is_idle(&lineage));
    let files = || lineage.files(lineage.pid());
    holds("the last one has no more files than the first", || files() <= files_at_first);
    assert_eq!(lineage.metric("propylon_upgrades_total"), 10.0);
}

#[test]
fn a_process_that_drains_leaves_probes_to_its_successor() {
    const EVERY: Duration = Duration::from_millis(100);
    // Whoever asks for /slow waits until he is told otherwise.
    let (release, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Origin::scripted(move |peer| {
        while let Some(head) = peer.read_head() {
            if head.starts_with(b"GET /slow") {
                let _ = wait.lock().expect("nobody panics with it").recv_timeout(WAIT_MAX);
            }
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        }
    });
    let probes = || origin.received_text().matches("GET /alive").count();
    let config = |health: &str| with(&[origin.address()], "", health);
    let process = "workers = 1\ndrain_timeout = \"60s\"";
    let mut lineage =
        Lineage::start(process, &config("health = { path = \"/alive\", interval = \"100ms\", timeout = \"100ms\" }"));
    let plain = lineage.address("plain");
    let mut slow = Client::plain(plain);
    slow.send("GET /slow HTTP/1.1\r\nHost: shop.test\r\n\r\n");
    holds("it is in progress", || lineage.snapshot()["workers"][0]["requests_in_progress"] == 1);
    holds("servers are probed", || probes() > 1);
    // By the new configuration nobody is to probe, so that whoever does is the one before.
    lineage.write(process, &config(""));
    lineage.upgrade(How::Signal);
    lineage.says("draining: ");
    let before = probes();
    std::thread::sleep(EVERY * 15);
    let after = probes();
    assert!(after <= before + 1, "{} probes by a process that drains", after - before);
    drop(release);
    assert_eq!(slow.read_response().text(), "ok");
}

#[test]
fn what_is_in_progress_finishes_where_it_began() {
    // Uploads are answered with their length; a WebSocket gives back what it gets.
    let origin = Origin::scripted(|peer| {
        while let Some(head) = peer.read_head() {
            let head = String::from_utf8_lossy(&head).into_owned();
            if !values(&head, "Upgrade").is_empty() {
                peer.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
                while let Some(bytes) = peer.read_some() {
                    peer.send(bytes);
                }
                return peer.close();
            }
            let length: usize = values(&head, "Content-Length").first().map_or(0, |length| length.parse().unwrap());
            if peer.read_exact(length).is_none() {
                return;
            }
            let body = length.to_string();
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
        }
    });
    let config = simple(&[origin.address()]);
    let mut lineage = Lineage::start("workers = 1\ndrain_timeout = \"60s\"", &config);
    let (plain, web) = (lineage.address("plain"), lineage.address("web"));
    let ask = "GET /chat HTTP/1.1\r\nHost: shop.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    let mut socket = Client::tls(web);
    assert_eq!(socket.ask(ask).status, 101);
    let mut upload = Client::plain(plain);
    upload.send("POST /up HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 10\r\n\r\n12345");
    // One that is idle, and one that has not asked for anything yet.
    let mut idle = Client::plain(plain);
    assert_eq!(idle.get("/").text(), "0");
    let mut silent = Client::tls(web);
    holds("all of them are there", || lineage.snapshot()["workers"][0]["connections"] == 4);
    let old = lineage.pid();
    lineage.upgrade(How::Signal);
    lineage.says("draining: ");

    assert_eq!(Client::plain(plain).get("/").text(), "0");
    let told = eventually(WAIT_MAX, "the drain is told of", || {
        let told = lineage.snapshot()["upgrade"]["predecessors"][0].clone();
        (told["connections"] == 4).then_some(told)
    });
    assert_eq!(told["pid"], old);
    assert!(told["draining_since"].as_u64().is_some_and(|since| since > 1_700_000_000));
    holds("metrics too", || lineage.metric("propylon_upgrade_predecessor_connections") == 4.0);
    assert_eq!(lineage.metric("propylon_upgrade_predecessors"), 1.0);
    // The old process answers both, and ends their connections in order.
    for client in [&mut idle, &mut silent] {
        let answer = client.get("/");
        assert_eq!((answer.status, answer.field("Connection")), (200, Some("close")));
        assert_eq!(client.ending(), Ending::Clean);
    }
    socket.send([7; 1000]);
    assert_eq!(socket.read_exact(1000), [7; 1000]);
    upload.send("67890");
    assert_eq!(upload.read_response().text(), "10");
    assert_eq!(upload.ending(), Ending::Clean);
    assert!(is_alive(old));
    socket.send([8; 10]);
    assert_eq!(socket.read_exact(10), [8; 10]);
    drop(socket);
    assert_eq!(lineage.end(old).code(), Some(0));
    holds("nobody drains any more", || lineage.metric("propylon_upgrade_predecessors") == 0.0);
}

#[test]
fn a_connection_that_was_promised_another_request_gets_it_though_a_drain_began_in_the_body() {
    const BIG: usize = 6 << 20;
    // The rest of a body comes when it is told to.
    let (release, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Origin::scripted(move |peer| {
        while let Some(head) = peer.read_head() {
            if head.starts_with(b"GET /slow") {
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nbody");
                let _ = wait.lock().expect("nobody panics with it").recv_timeout(WAIT_MAX);
                peer.send("body");
            } else if head.starts_with(b"GET /big") {
                peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {BIG}\r\n\r\n"));
                peer.send(vec![b'x'; BIG]);
            } else {
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
            }
        }
    });
    let config = simple(&[origin.address()]);
    let mut lineage = Lineage::start("workers = 1\ndrain_timeout = \"60s\"", &config);
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n");
    let mut clients = [Client::plain(lineage.address("plain")), Client::tls(lineage.address("web"))];
    for client in &mut clients {
        client.send(get("/slow"));
        assert!(!client.read_head().to_ascii_lowercase().contains("connection: close"));
    }
    let old = lineage.pid();
    lineage.upgrade(How::Signal);
    lineage.says("draining: ");
    for client in &mut clients {
        // The second has been sent before the first is through, the third after the answer that says close.
        client.send(get("/big"));
        release.send(()).expect("the server is there");
        assert_eq!(client.read_exact(8), b"bodybody");
        assert!(client.read_head().to_ascii_lowercase().contains("connection: close"));
        client.send(get("/never"));
        // Bytes that the kernel still has for a client that reads late outlive the close.
        std::thread::sleep(Duration::from_millis(300));
        let mut received = 0;
        client.read_through(BIG as u64, |bytes| received += bytes.len());
        assert_eq!((received, client.ending()), (BIG, Ending::Clean));
    }
    drop(clients);
    assert_eq!(lineage.end(old).code(), Some(0));
}

#[test]
fn sessions_go_on_after_an_upgrade() {
    let origin = hello();
    let profile = Certificates::shared().profile() + "session_ids = 1000\n";
    let mut lineage = Lineage::start("workers = 2\ndrain_timeout = \"1s\"", &(profile + &simple(&[origin.address()])));
    let (port, scratch) = (lineage.address("web").port(), Scratch::new());
    let get = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    // TLS 1.3 and 1.2 with tickets, and 1.2 without.
    let manners: [&[&str]; 3] = [&["-tls1_3"], &["-tls1_2"], &["-tls1_2", "-no_ticket"]];
    let visit = |arguments: &[&str]| {
        let session = scratch.join(&arguments.concat()).display().to_string();
        let known = Path::new(&session).exists();
        let mut arguments = [arguments, &["-sess_out", &session]].concat();
        if known {
            arguments.extend(["-sess_in", &session]);
        }
        let said = s_client(port, &arguments, get).text();
        assert!(said.contains("HTTP/1.1 200 OK"), "{said}");
        said.contains("\nReused, TLSv")
    };
    assert!(manners.iter().all(|manner| !visit(manner)));
    for how in [How::Signal, How::Run] {
        lineage.upgrade(how);
        for manner in manners {
            assert!(visit(manner), "{manner:?} after {how:?}");
        }
    }
}

/// A process that says hello to the one that serves, hears it out, and does nothing more.
struct Dawdler(Child);

impl Dawdler {
    fn start(lineage: &Lineage) -> Dawdler {
        let script = "import socket, sys, time\n\
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
            s.connect(sys.argv[1])\n\
            s.send(b'W{\"word\": \"hello\", \"protocol\": 1, \"version\": \"0\"}')\n\
            while b'offered' not in s.recvmsg(65536, 65536)[0]: pass\n\
            time.sleep(120)\n";
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", script]).arg(lineage.socket()).stdin(Stdio::null());
        let child = command.spawn().expect("Debian's Python");
        let dawdler = Dawdler(child);
        lineage.says(&format!("process {}, version 0, is getting ready", dawdler.0.id()));
        dawdler
    }

    fn kill(mut self) {
        signal(self.0.id(), Signal::KILL);
        self.0.wait().expect("a child can be waited for");
    }
}

#[test]
fn a_successor_that_is_killed_leaves_the_old_one_serving_and_a_second_one_is_refused() {
    let origin = hello();
    let config = simple(&[origin.address()]);
    let mut lineage = Lineage::start("workers = 2\ndrain_timeout = \"1s\"", &config);
    let (old, plain) = (lineage.pid(), lineage.address("plain"));
    let load = [Load::start(Manner::Plain, plain, 2)];
    let dawdler = Dawdler::start(&lineage);
    goes_on(&load, 20);

    let busy = format!("process {} is taking over at this moment", dawdler.0.id());
    for arguments in [&["run", "--upgrade"][..], &["upgrade"]] {
        let said = lineage.command(arguments);
        assert_eq!(said.status.code(), Some(1));
        assert!(said.stderr.contains(&busy), "{}", said.stderr);
    }
    lineage.signal(Signal::USR2);
    lineage.says(&format!("SIGUSR2: {busy}"));
    // Nobody changes now what the successor may have read already.
    let said = lineage.command(&["run"]);
    assert_eq!(said.status.code(), Some(1));
    assert!(said.stderr.contains("another process serves") && said.stderr.contains("run --upgrade"), "{}", said.stderr);
    lineage.signal(Signal::HUP);
    goes_on(&load, 20);
    assert_eq!(lineage.count("the configuration is"), 0);

    dawdler.kill();
    lineage.says("the upgrade has failed: the successor ended before it was ready; this process serves on");
    lineage.says("the configuration is what it was");
    goes_on(&load, 20);
    assert_eq!(lineage.metric("propylon_upgrade_failures_total{reason=\"ended\"}"), 1.0);
    assert_eq!(lineage.metric("propylon_upgrade_failures_total{reason=\"refused\"}"), 3.0);
    assert_eq!(lineage.snapshot()["pid"], old);

    lineage.upgrade(How::Run);
    goes_on(&load, 20);
    let [load] = load;
    let (_, counted) = load.finish();
    eprintln!("{} requests, {} failed", counted.requests, counted.failures.len());
    assert_eq!(counted.failures, [""; 0]);
}

#[test]
fn a_successor_that_cannot_start_leaves_the_old_one_serving_and_says_why_in_both_logs() {
    let origin = hello();
    let config = simple(&[origin.address()]);
    let process = "workers = 1\ndrain_timeout = \"5s\"";
    let mut lineage = Lineage::start(process, &config);
    let (old, plain) = (lineage.pid(), lineage.address("plain"));
    let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = holder.local_addr().expect("an address");
    let missing = config.clone() + "[tls.public]\ncertificates = [\"/nonexistent/shop.pem\"]\n";
    let bind = format!("{config}[listener.third]\nbind = \"{taken}\"\n");
    let wrong = [
        (config.clone() + "[[route]]\npath = \"/x\"\nbackend = \"ap\"\n", "no backend named \"ap\"", "configuration"),
        ("!".to_owned(), "propylon.toml", ""),
        (missing, "/nonexistent/shop.pem", "configuration"),
        (bind, "listener \"third\" cannot bind", "start"),
    ];
    for (text, why, reason) in &wrong {
        lineage.write(process, text);
        for how in ["run", "upgrade"] {
            let arguments: &[&str] = if how == "run" { &["run", "--upgrade"] } else { &["upgrade"] };
            let failed = lineage.count("the upgrade has failed");
            let said = lineage.command(arguments);
            assert_eq!(said.status.code(), Some(1), "{arguments:?} {}", said.stderr);
            assert!(said.stderr.contains(why), "{arguments:?}: {}", said.stderr);
            if !reason.is_empty() {
                let line = eventually(WAIT_MAX, "the old one's word", || {
                    let said = lineage.said().into_iter();
                    said.filter(|line| line.contains("the upgrade has failed")).nth(failed)
                });
                assert!(line.contains(why), "{line}");
            }
        }
        if !reason.is_empty() {
            let series = format!("propylon_upgrade_failures_total{{reason=\"{reason}\"}}");
            assert!(lineage.metric(&series) >= 2.0);
        }
        assert_eq!((lineage.snapshot()["pid"].as_u64(), Client::plain(plain).get("/").status), (Some(old.into()), 200));
    }
    lineage.write(process, &config);
    lineage.upgrade(How::Command);
    assert_eq!(Client::plain(plain).get("/").status, 200);
}

#[test]
fn every_queue_keeps_an_owner_when_workers_and_listeners_change() {
    let origin = hello();
    let config = simple(&[origin.address()]);
    let with_third = config.clone() + "[listener.third]\nbind = \"127.0.0.1:0\"\n";
    let process = |workers: usize| format!("workers = {workers}\ndrain_timeout = \"1s\"");
    let mut lineage = Lineage::start(&process(3), &with_third);
    let (plain, web, third) = (lineage.address("plain"), lineage.address("web"), lineage.address("third"));
    let loads = [Load::start(Manner::Plain, plain, 3), Load::start(Manner::Tls, web, 2)];
    goes_on(&loads, 20);
    for (workers, how) in [(1, How::Signal), (2, How::Run), (4, How::Command), (1, How::Run)] {
        lineage.write(&process(workers), &with_third);
        lineage.upgrade(how);
        goes_on(&loads, 60);
        assert_eq!(lineage.snapshot()["workers"].as_array().map(Vec::len), Some(workers));
        // One that is asked for seldom: whichever of its queues a connection lands in.
        (0..30).for_each(|_| assert_eq!(Client::plain(third).get("/").status, 200));
    }
    lineage.write(&process(2), &config);
    lineage.upgrade(How::Signal);
    goes_on(&loads, 20);
    let earlier = lineage.earlier().to_vec();
    earlier.into_iter().for_each(|pid| lineage.gone(pid));
    assert!(std::net::TcpStream::connect(third).is_err(), "nobody listens there any more");
    for load in loads {
        let (manner, counted) = load.finish();
        eprintln!("{manner:?}: {} requests, {} failed", counted.requests, counted.failures.len());
        assert_eq!(counted.failures, [""; 0], "{manner:?}");
    }
}

#[test]
fn what_the_admin_api_has_changed_is_there_after_an_upgrade_and_the_generation_goes_on() {
    let (one, two) = (hello(), Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntwo\n"));
    let process = "workers = 1\ndrain_timeout = \"1s\"\nstate = \"state\"";
    let backend = "sticky = { cookie = \"s\" }";
    let config =
        "[admin]\nbind = \"unix:admin.sock\"\n".to_owned() + &with(&[one.address(), two.address()], "", backend);
    let mut lineage = Lineage::start(process, &config);
    let plain = lineage.address("plain");
    let socket = lineage.folder().join("admin.sock").display().to_string();
    let admin = |arguments: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["-sS", "--unix-socket", &socket]).args(arguments);
        run(command, b"", WAIT_MAX).ok().text()
    };
    let answer = Client::plain(plain).get("/");
    let cookie = answer.field("Set-Cookie").and_then(|line| line.split(';').next()).expect("a cookie").to_owned();
    let path = format!("http://localhost/v1/backends/app/servers/{}", one.address());
    admin(&[&["-X", "PATCH", "-H", "Content-Type: application/json", "-d", "{\"weight\": 7}"][..], &[&path]].concat());
    let before: serde_json::Value = serde_json::from_str(&admin(&["http://localhost/v1/snapshot"])).expect("JSON");
    assert_eq!(before["configuration"]["generation"], 2, "{before:#}");
    for (how, generation) in [(How::Signal, 3), (How::Run, 4)] {
        lineage.upgrade(how);
        let after: serde_json::Value = serde_json::from_str(&admin(&["http://localhost/v1/snapshot"])).expect("JSON");
        assert_eq!(after["pid"], lineage.pid());
        assert_eq!(after["configuration"]["generation"], generation);
        assert_eq!(after["backends"][0]["servers"][0]["weight"], 7);
        let mut client = Client::plain(plain);
        for _ in 0..4 {
            let again = client.ask(format!("GET / HTTP/1.1\r\nHost: shop.test\r\nCookie: {cookie}\r\n\r\n"));
            assert_eq!((again.status, again.text()), (200, answer.text()), "the cookie leads where it did");
            assert_eq!(again.field("Set-Cookie"), None);
        }
    }
    let earlier = lineage.earlier().to_vec();
    earlier.into_iter().for_each(|pid| lineage.gone(pid));
    assert!(lineage.socket().exists() && lineage.folder().join("admin.sock").exists());
    lineage.signal(Signal::TERM);
    let last = lineage.pid();
    lineage.gone(last);
    assert!(!lineage.socket().exists() && !lineage.folder().join("admin.sock").exists());
}

#[test]
fn a_successor_takes_over_however_the_configurations_path_is_written() {
    let origin = hello();
    let config = "[admin]\nbind = \"unix:admin.sock\"\n".to_owned() + &simple(&[origin.address()]);
    let mut lineage = Lineage::start("workers = 1\ndrain_timeout = \"1s\"", &config);
    let (plain, folder) = (lineage.address("plain"), lineage.folder());
    let elsewhere = Scratch::new();
    let link = elsewhere.join("link");
    std::os::unix::fs::symlink(&folder, &link).expect("a link");
    // Relative to the folder, through a link, and as it was.
    let ways = [(folder.as_path(), Path::new("propylon.toml")), (Path::new("/"), &link.join("propylon.toml"))];
    for (from, path) in ways {
        let mut command = Command::new(binaries::propylon());
        command.args(["run", "--upgrade", "-c"]).arg(path).current_dir(from);
        lineage.upgrade_by(command);
        assert_eq!(Client::plain(plain).get("/").text(), "hello\n", "{path:?}");
    }
    // Its launcher, which was told a relative path, starts another.
    let mut command = Command::new(binaries::propylon());
    command.args(["run", "--upgrade", "-c", "propylon.toml"]).current_dir(&folder);
    lineage.upgrade_by(command);
    lineage.upgrade(How::Signal);
    lineage.upgrade(How::Run);
    assert!(lineage.socket().exists() && folder.join("admin.sock").exists());
}

#[test]
fn the_program_that_is_started_is_the_one_that_was_found_whatever_is_found_by_its_name_since() {
    let origin = hello();
    let mut lineage = Lineage::start("workers = 1\ndrain_timeout = \"1s\"", &simple(&[origin.address()]));
    let (first, second) = (Scratch::new(), Scratch::new());
    let own = second.join("propylon");
    std::os::unix::fs::symlink(binaries::propylon(), &own).expect("a link");
    let folders = std::env::join_paths([first.path(), second.path()]).expect("folders");
    let config = lineage.config();
    let mut command = Command::new("propylon");
    command.args(["run", "--upgrade", "-c"]).arg(config).env("PATH", folders);
    lineage.upgrade_by(command);
    let other = first.write("propylon", "#!/bin/sh\nexit 7\n");
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).expect("a mode");
    lineage.upgrade(How::Signal);
    lineage.says(&format!("upgrade: {} was started as process", own.display()));
    // Without it, the log says which one it is and what to do.
    fs::remove_file(&own).expect("the link");
    lineage.signal(Signal::USR2);
    lineage.says(&format!("{} cannot be started: ", own.display()));
    lineage.says("see that the new version is at this path");
}

/// Uid and mode of what is there.
fn owner(path: &Path) -> (u32, u32) {
    let metadata = std::fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (metadata.uid(), metadata.mode() & 0o777)
}

#[test]
fn what_an_account_serves_with_is_its_own_through_rotations_and_upgrades() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root can give files to another account");
    }
    let (origin, scratch) = (hello(), Scratch::new());
    let folder = |name: &str, mode| {
        let path = scratch.join(name);
        std::fs::create_dir(&path).expect("a folder");
        chown(&path, Some(0), Some(NOBODY)).expect("root may");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("root may");
        path
    };
    // As packages make them: the folder of the logs is root's, and the group may write in it.
    let (logs, run) = (folder("logs", 0o770), folder("run", 0o770));
    let (log, admin) = (logs.join("access.log"), run.join("admin.sock"));
    let config = format!(
        "[admin]\nbind = \"unix:{}\"\n[log]\naccess = {log:?}\n[listener.plain]\nbind = \"127.0.0.1:0\"\n\
         [backend.app]\nservers = [\"{}\"]\n[[route]]\nbackend = \"app\"\n",
        admin.display(),
        origin.address()
    );
    let mut lineage = Lineage::start("workers = 1\ndrain_timeout = \"1s\"\nuser = \"nobody\"", &config);
    std::fs::set_permissions(lineage.config(), std::fs::Permissions::from_mode(0o644)).expect("our own file");
    let plain = lineage.address("plain");
    let logged = |what: &str| {
        eventually(WAIT_MAX, what, || {
            Client::plain(plain).get(&format!("/{what}"));
            std::fs::read_to_string(&log).is_ok_and(|text| text.contains(what)).then_some(())
        });
    };
    let asked = |pid: u32| {
        let mut command = Command::new("curl");
        command.args(["-sS", "--unix-socket"]).arg(&admin).arg("http://localhost/v1/snapshot");
        let told: serde_json::Value = serde_json::from_str(&run_to_end(command)).expect("JSON");
        assert_eq!(told["pid"], pid);
    };
    logged("first");
    assert_eq!(owner(&log), (NOBODY, 0o640));
    assert_eq!((owner(&admin), owner(&lineage.socket())), ((NOBODY, 0o600), (NOBODY, 0o600)));
    asked(lineage.pid());
    // As logrotate does by `create 0660 root nogroup`: the new file is root's, and the account's group may write it.
    let rotate = |number: u32| {
        std::fs::rename(&log, logs.join(format!("access.log.{number}"))).expect("a rename");
        let new = logs.join("new");
        std::fs::write(&new, "").expect("a file");
        chown(&new, Some(0), Some(NOBODY)).expect("root may");
        std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o660)).expect("root may");
        std::fs::rename(new, &log).expect("a rename");
    };
    rotate(1);
    logged("rotated");
    assert_eq!(owner(&log), (0, 0o660), "it is logrotate's to say whose the log is");
    lineage.upgrade(How::Signal);
    logged("upgraded");
    assert_eq!((owner(&log), owner(&admin), owner(&lineage.socket())), ((0, 0o660), (NOBODY, 0o600), (NOBODY, 0o600)));
    asked(lineage.pid());
    rotate(2);
    logged("rotated-again");
    // One that is started as root takes over, and becomes the account.
    lineage.upgrade(How::Run);
    logged("by-root");
    assert_eq!((owner(&admin), owner(&lineage.socket())), ((NOBODY, 0o600), (NOBODY, 0o600)));
    asked(lineage.pid());
    lineage.upgrade(How::Command);
    logged("by-command");
    let status = std::fs::read_to_string(format!("/proc/{}/status", lineage.pid())).expect("it runs");
    assert!(status.contains(&format!("\nUid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t")), "{status}");
}

fn run_to_end(command: Command) -> String {
    run(command, b"", WAIT_MAX).ok().text()
}

/// A process that serves nothing and hands over a listening socket: up to the successor's "ready", and then it ends, or just
/// says nothing more.
fn false_predecessor(upgrade_socket: &Path, plain: SocketAddr, then: &str) -> Child {
    let script = "import array, json, os, socket, sys, time\n\
        path, address, then = sys.argv[1:4]\n\
        host, port = address.rsplit(':', 1)\n\
        web = socket.socket()\n\
        web.bind((host, int(port)))\n\
        web.listen(128)\n\
        door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
        door.bind(path + '.new')\n\
        door.listen(8)\n\
        os.rename(path + '.new', path)\n\
        s, _ = door.accept()\n\
        def say(**word): s.send(b'W' + json.dumps(word).encode())\n\
        assert b'hello' in s.recv(65536)\n\
        say(word='offer', pid=os.getpid(), version='0', generation=7, upgrades=2)\n\
        say(word='sockets', kind='listener', listener='plain', wanted=address, address=address, count=1)\n\
        s.sendmsg([b'F'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [web.fileno()]))])\n\
        say(word='offered')\n\
        while b'ready' not in s.recv(65536): pass\n\
        if then == 'end': os._exit(1)\n\
        s.close()\n\
        time.sleep(120)\n";
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", script]).arg(upgrade_socket).args([plain.to_string(), then.to_owned()]).stdin(Stdio::null());
    let child = command.spawn().expect("Debian's Python");
    holds("it listens", || upgrade_socket.exists());
    child
}

#[test]
fn a_predecessor_that_dies_meanwhile_is_succeeded_and_one_that_takes_back_its_word_is_not() {
    let origin = hello();
    let (plain, web, scratch) = (free(), free(), Scratch::new());
    let socket = scratch.join("old.sock");
    let upgrade = || {
        let mut command = Command::new(binaries::propylon());
        command.arg("run").arg(format!("--upgrade={}", socket.display()));
        command
    };
    let mut alive = false_predecessor(&socket, plain, "stay");
    let config = scratch.write("propylon.toml", engine::complete(&placed(&origin, plain, web)));
    let mut command = upgrade();
    command.arg("-c").arg(config);
    let said = run(command, b"", WAIT_MAX);
    assert_eq!(said.status.code(), Some(1), "{}", said.stderr);
    assert!(said.stderr.contains("nothing was taken over: the conversation"), "{}", said.stderr);
    signal(alive.id(), Signal::KILL);
    alive.wait().expect("a child can be waited for");

    std::fs::remove_file(&socket).expect("what it has left");
    let mut dying = false_predecessor(&socket, plain, "end");
    // In the queue before there is anybody to serve it.
    let mut early = Client::plain(plain);
    early.send("GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n");
    let mut lineage = Lineage::start_by(upgrade(), "workers = 2\ndrain_timeout = \"1s\"", &placed(&origin, plain, web));
    lineage.says("has ended before it could hand over in order");
    assert_eq!(early.read_response().status, 200);
    assert_eq!(Client::plain(plain).get("/").status, 200);
    assert_eq!(lineage.snapshot()["configuration"]["generation"], 8);
    assert_eq!(lineage.metric("propylon_upgrades_total"), 3.0);
    dying.wait().expect("a child can be waited for");
    lineage.upgrade(How::Signal);
    assert_eq!(Client::plain(plain).get("/").status, 200);
}

/// A command that is `propylon run` with sockets at these addresses, given to it as a service manager does; each is an address
/// and a name.
fn activated(sockets: &[(SocketAddr, &str)]) -> Command {
    // Made far from where they have to be, so that none is in another's place.
    let script = "import os, socket, sys\n\
        binary, names, addresses = sys.argv[1:4]\n\
        held = []\n\
        for address in addresses.split(','):\n\
        \x20   host, port = address.rsplit(':', 1)\n\
        \x20   s = socket.socket()\n\
        \x20   s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n\
        \x20   s.bind((host, int(port)))\n\
        \x20   s.listen(128)\n\
        \x20   held.append(os.dup2(s.fileno(), 100 + len(held)))\n\
        for number, made in enumerate(held):\n\
        \x20   os.dup2(made, 3 + number, inheritable=True)\n\
        \x20   os.close(made)\n\
        os.environ.update(LISTEN_FDS=str(len(held)), LISTEN_PID=str(os.getpid()), LISTEN_FDNAMES=names)\n\
        os.execv(binary, [binary, 'run'] + sys.argv[4:])\n";
    let names: Vec<&str> = sockets.iter().map(|(_, name)| *name).collect();
    let addresses: Vec<String> = sockets.iter().map(|(address, _)| address.to_string()).collect();
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", script]).arg(binaries::propylon()).args([names.join(":"), addresses.join(",")]);
    command
}

/// An address that nobody has, and that nobody else will be given: at a loopback address of its own.
fn free() -> SocketAddr {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let own = [127, 0, (std::process::id() % 250 + 1) as u8, COUNT.fetch_add(1, Ordering::SeqCst)];
    std::net::TcpListener::bind((std::net::Ipv4Addr::from(own), 0))
        .and_then(|free| free.local_addr())
        .expect("a free port")
}

/// [`simple`], at these addresses.
fn placed(origin: &Origin, plain: SocketAddr, web: SocketAddr) -> String {
    let config = simple(&[origin.address()]);
    config.replacen("127.0.0.1:0", &plain.to_string(), 1).replacen("127.0.0.1:0", &web.to_string(), 1)
}

#[test]
fn sockets_of_a_service_manager_are_served_and_outlive_upgrades() {
    let origin = hello();
    let (plain, web) = (free(), free());
    let command = activated(&[(web, "secure"), (plain, "web")]);
    let process = "workers = 2\ndrain_timeout = \"1s\"";
    // Nobody else could listen there: these sockets do not share their ports.
    let mut lineage = Lineage::start_by(command, process, &placed(&origin, plain, web));
    let loads = [Load::start(Manner::Plain, plain, 2), Load::start(Manner::Tls, web, 2)];
    goes_on(&loads, 20);
    for how in [How::Signal, How::Run] {
        lineage.upgrade(how);
        goes_on(&loads, 20);
    }
    for load in loads {
        let (manner, counted) = load.finish();
        eprintln!("{manner:?}: {} requests, {} failed", counted.requests, counted.failures.len());
        assert_eq!(counted.failures, [""; 0], "{manner:?}");
    }
}

#[test]
fn a_socket_of_a_service_manager_that_no_listener_is_for_is_an_error_that_names_it() {
    let origin = hello();
    let (plain, web, third) = (free(), free(), free());
    let scratch = Scratch::new();
    let config = scratch.write("propylon.toml", engine::complete(&placed(&origin, plain, web)));
    let mut command = activated(&[(plain, "web"), (third, "stray")]);
    command.arg("-c").arg(config);
    let said = run(command, b"", WAIT_MAX);
    assert_eq!(said.status.code(), Some(1), "{}", said.stderr);
    let expected = format!("no listener has the address of socket \"stray\" of the service manager at {third}");
    assert!(said.stderr.contains(&expected), "{}", said.stderr);
}

#[test]
fn systemds_own_tool_starts_it_with_the_first_connection_which_is_served() {
    let tool = "/usr/bin/systemd-socket-activate";
    if !Path::new(tool).exists() {
        eprintln!("{tool} is not there: nothing to be seen here");
        return;
    }
    let origin = hello();
    let (plain, web) = (free(), free());
    let mut command = Command::new(tool);
    command.args(["--fdname=plain", "-l"]).arg(plain.to_string());
    command.arg(binaries::propylon()).arg("run");
    let first = std::thread::spawn(move || {
        holds("the tool listens", || std::net::TcpStream::connect(plain).is_ok());
        Client::plain(plain).get("/").status
    });
    let lineage = Lineage::start_by(command, "workers = 2\ndrain_timeout = \"1s\"", &placed(&origin, plain, web));
    assert_eq!(first.join().expect("a client"), 200);
    assert_eq!(Client::tls(web).get("/").status, 200);
    drop(lineage);
}

#[test]
fn a_service_manager_hears_of_readiness_reloads_successors_and_the_end() {
    let scratch = Scratch::new();
    let path = scratch.join("notify.sock");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    a_service_manager_hears(&path.display().to_string(), &socket);
}

#[test]
fn a_service_manager_with_an_abstract_socket_hears_the_same_from_inside_the_sandbox() {
    let name = format!("propylon-e2e-notify-{}", std::process::id());
    let socket = UnixAddress::from_abstract_name(&name).and_then(|address| UnixDatagram::bind_addr(&address));
    a_service_manager_hears(&format!("@{name}"), &socket.expect("a socket"));
}

fn a_service_manager_hears(name: &str, socket: &UnixDatagram) {
    let origin = hello();
    socket.set_read_timeout(Some(WAIT_MAX)).expect("a limit");
    let mut heard = Vec::new();
    let mut await_word = |part: &str| {
        let mut buffer = [0; 4096];
        loop {
            let length = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{part}: {error} after {heard:#?}"));
            let message = String::from_utf8_lossy(&buffer[..length]).into_owned();
            heard.push(message.clone());
            if message.lines().any(|line| line.starts_with(part)) {
                return message;
            }
        }
    };
    let mut command = Command::new(binaries::propylon());
    command.arg("run").env("NOTIFY_SOCKET", name).env("WATCHDOG_USEC", "3000000");
    let config = simple(&[origin.address()]);
    let mut lineage = Lineage::start_by(command, "workers = 1\ndrain_timeout = \"1s\"", &config);
    assert!(await_word("READY=1").contains("STATUS=serving with 1 workers, configuration 1"));
    await_word("WATCHDOG=1");
    lineage.signal(Signal::HUP);
    assert!(await_word("RELOADING=1").contains("MONOTONIC_USEC="));
    await_word("READY=1");
    lineage.upgrade(How::Signal);
    await_word(&format!("MAINPID={}", lineage.pid()));
    assert!(await_word("READY=1").contains("configuration 2"));
    await_word("WATCHDOG=1");
    lineage.signal(Signal::TERM);
    await_word("STOPPING=1");
    let stops = heard.iter().filter(|message| message.contains("STOPPING=1")).count();
    assert_eq!(stops, 1, "the process that was succeeded says nothing of its end");
}

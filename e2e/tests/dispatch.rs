//! Clients that several workers share: how they are spread, and how many there may be.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use propylon_e2e::admin::ask_admin;
use propylon_e2e::engine::simple;
use propylon_e2e::{Certificates, Client, Engine, Origin, holds};
use rustix::process::Signal;
use rustls::version::TLS12;
use serde_json::Value;

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";

fn config(process: &str, server: SocketAddr) -> String {
    format!("[process]\nworkers = 2\ndrain_timeout = \"10s\"\n{process}\n{}", simple(&[server]))
}

/// Connections by worker.
fn spread(engine: &Engine) -> Vec<u64> {
    let status: Value = serde_json::from_str(&ask_admin(engine, "GET", "/status.json", "", "").text()).expect("JSON");
    let workers = status["workers"].as_array().expect("workers");
    workers.iter().map(|worker| worker["connections"].as_u64().expect("a number")).collect()
}

/// Clients of both listeners by turns, each of which has had an answer before the next one comes.
fn come(engine: &Engine, count: usize) -> Vec<Client> {
    let one = |number: usize| {
        let mut client = engine.client(if number.is_multiple_of(2) { "plain" } else { "web" });
        assert_eq!(client.get("/").text(), "hello\n");
        client
    };
    (0..count).map(one).collect()
}

/// Chance alone gives two workers two of four clients each in three of eight rounds, and then four of eight in as many of
/// these: a round in seven is even. A worker whose processor others have gets less meanwhile, so that on a busy machine
/// some rounds may be uneven.
#[test]
fn clients_that_come_one_after_another_are_spread_evenly() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&config("", origin.address()));
    let mut rounds = Vec::new();
    let is_even = |round: &&[Vec<u64>; 2]| **round == [[2, 2], [4, 4]];
    while rounds.len() < 20 && rounds.iter().filter(is_even).count() < 10 {
        let four = come(&engine, 4);
        let first = spread(&engine);
        let four_more = come(&engine, 4);
        rounds.push([first, spread(&engine)]);
        drop((four, four_more));
        holds("they have gone", || spread(&engine) == [0, 0]);
    }
    assert!(rounds.iter().filter(is_even).count() >= 10, "{rounds:?}");
    let dispatched = |reason| engine.metric("propylon_dispatched_total", &[("reason", reason)]);
    assert!(dispatched("load") > 0.0 && dispatched("room") == 0.0);
    assert_eq!(engine.metric("propylon_connections_total", &[]), 8.0 * rounds.len() as f64);
}

#[test]
fn without_dispatch_each_worker_keeps_what_comes_to_its_socket() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&config("dispatch = false", origin.address()));
    let clients = come(&engine, 40);
    assert_eq!(spread(&engine).iter().sum::<u64>(), clients.len() as u64);
    for reason in ["load", "room", "stall", "rest"] {
        assert_eq!(engine.metric("propylon_dispatched_total", &[("reason", reason)]), 0.0);
    }
}

#[test]
fn as_many_clients_are_served_as_there_may_be_and_one_more_when_one_has_gone() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&config("max_connections = 64", origin.address()));
    for round in 0..3 {
        let mut clients = come(&engine, 64);
        assert_eq!(spread(&engine).iter().sum::<u64>(), 64);
        let address = engine.address("plain");
        let path = format!("/waited/{round}");
        let asked = path.clone();
        let waiting = std::thread::spawn(move || {
            let mut client = Client::plain(address);
            assert_eq!(client.get(&asked).text(), "hello\n");
            client
        });
        holds("one is held up", || engine.metric("propylon_listener_paused", &[("reason", "max_connections")]) > 0.0);
        assert_eq!(engine.metric("propylon_connections", &[]), 64.0);
        assert!(!origin.received_text().contains(&path));
        // Whichever worker it was with: the one that waits may be with the other.
        clients.remove(round * 21);
        let last = waiting.join().expect("an answer");
        drop((clients, last));
        holds("they have gone", || spread(&engine) == [0, 0]);
    }
}

#[test]
fn clients_that_come_while_listeners_and_configurations_change_are_all_served() {
    let origin = Origin::always(HELLO);
    let text = config("", origin.address());
    let engine = Engine::start(&text);
    let (plain, stop) = (engine.address("plain"), std::sync::atomic::AtomicBool::new(false));
    let more = "[listener.another]\nbind = \"127.0.0.1:0\"\n";
    std::thread::scope(|scope| {
        let asking: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut kept = Vec::new();
                    let mut served = 0_usize;
                    while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                        let mut client = Client::plain(plain);
                        assert_eq!(client.get("/").text(), "hello\n");
                        served += 1;
                        kept.push(client);
                        if kept.len() > 10 {
                            // The older ones go first: now one worker has more, now the other.
                            kept.drain(..7);
                        }
                    }
                    served
                })
            })
            .collect();
        for round in 0..12 {
            // Listeners change their places in the configuration.
            engine.rewrite(&if round % 2 == 0 { format!("{more}{text}") } else { text.clone() });
            engine.reload();
        }
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        let served: usize = asking.into_iter().map(|asking| asking.join().expect("all were served")).sum();
        assert!(served > 100, "{served}");
    });
    assert!(engine.metric("propylon_dispatched_total", &[("reason", "load")]) > 0.0);
}

#[test]
fn clients_that_were_handed_over_are_answered_when_a_drain_begins() {
    for _ in 0..5 {
        let origin = Origin::always(HELLO);
        let mut engine = Engine::start(&config("", origin.address()));
        let mut clients: Vec<Client> = (0..60).map(|_| engine.client("plain")).collect();
        for client in &mut clients {
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        engine.signal(Signal::TERM);
        for client in &mut clients {
            assert_eq!(client.read_response().text(), "hello\n");
        }
        engine.expect_exit(0);
    }
}

/// Source that a proxy in front tells.
const ANNOUNCED: &str = "192.0.2.7";

/// The next of several kinds of clients that stay.
fn kept(engine: &Engine, number: usize) -> Client {
    match number % 4 {
        0 => engine.client("plain"),
        1 => engine.client("web"),
        2 => Client::tls_with(engine.address("web"), Arc::new(Certificates::shared().client_for(&[&TLS12]))),
        _ => {
            let mut client = engine.client("announced");
            client.send(format!("PROXY TCP4 {ANNOUNCED} 127.0.0.1 4711 80\r\n"));
            client
        }
    }
}

/// Clients that stay, all of them with one worker: those of the other have left.
fn kept_by_one(engine: &Engine, count: usize) -> Vec<Client> {
    let (mut stay, mut leave) = (Vec::new(), Vec::new());
    while stay.len() < count {
        let before = spread(engine);
        let mut client = kept(engine, stay.len());
        // The first request's line says more than later ones do.
        for path in ["/", &format!("/before/{}", client.local_port())] {
            assert_eq!(client.get(path).text(), "hello\n");
        }
        if spread(engine)[0] > before[0] { stay.push(client) } else { leave.push(client) }
    }
    drop(leave);
    holds("they have left", || spread(engine) == [count as u64, 0]);
    stay
}

/// Has clients ask one request after another, each answered, while `act` runs.
fn asking<'c>(clients: Vec<Client>, act: impl FnOnce() + 'c) -> Vec<Client> {
    let stop = AtomicBool::new(false);
    let ask = |mut client: Client| {
        while !stop.load(Ordering::SeqCst) {
            assert_eq!(client.get("/").text(), "hello\n");
        }
        client
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients.into_iter().map(|client| scope.spawn(|| ask(client))).collect();
        act();
        stop.store(true, Ordering::SeqCst);
        threads.into_iter().map(|thread| thread.join().expect("each of its requests is answered")).collect()
    })
}

/// Facts of a connection, as the log's line about this path has them.
fn connection_facts(engine: &Engine, path: &str) -> Vec<Value> {
    let line = engine.logged_path(path);
    ["client", "listener", "tls"].map(|name| line[name].clone()).into()
}

#[test]
fn clients_that_stay_with_one_worker_are_shared_by_both_once_they_keep_it_busy() {
    let origin = Origin::answering(|request| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.len());
        if request.starts_with(b"GET /last/") { [head.as_bytes(), request].concat() } else { HELLO.into() }
    });
    let process = "max_connections = 64\nconnections_per_source = 64";
    let announced = "[listener.announced]\nbind = \"127.0.0.1:0\"\naccept_proxy_protocol = true\n";
    let engine = Engine::start(&format!("{}{announced}", config(process, origin.address())));
    let clients = kept_by_one(&engine, 8);
    let came = engine.metric("propylon_connections_total", &[]);
    let moved = || engine.metric("propylon_dispatched_total", &[("reason", "rest")]);
    assert_eq!(moved(), 0.0);
    let mut clients = asking(clients, || holds("they are shared", || spread(&engine).into_iter().min() >= Some(3)));
    assert!(moved() >= 3.0, "{}", moved());
    for (number, client) in clients.iter_mut().enumerate() {
        let [before, last] = ["before", "last"].map(|at| format!("/{at}/{}", client.local_port()));
        let source = if number % 4 == 3 { ANNOUNCED } else { "127.0.0.1" };
        let told = client.get(&last).text();
        assert!(told.contains(&format!("X-Forwarded-For: {source}\r\n")), "{told}");
        assert_eq!(connection_facts(&engine, &before), connection_facts(&engine, &last));
    }
    assert_eq!(engine.metric("propylon_connections_total", &[]), came);
    assert_eq!(engine.metric("propylon_connections", &[]), 8.0);
    drop(clients);
    holds("they have gone", || spread(&engine) == [0, 0]);
    // Neither a place nor a source's count has been lost on the way, or given back twice.
    let full = come(&engine, 64);
    let _waiting = engine.client("plain");
    holds("one is held up", || engine.metric("propylon_listener_paused", &[("reason", "max_connections")]) > 0.0);
    assert_eq!((full.len(), engine.metric("propylon_connections", &[])), (64, 64.0));
    assert_eq!(engine.metric("propylon_connections_refused_total", &[]), 0.0);
}

/// A mailbox is open for one configuration at a time: some of those who are to move stay, and move later.
#[test]
fn clients_that_move_while_listeners_and_configurations_change_are_all_served() {
    let origin = Origin::always(HELLO);
    let announced = "[listener.announced]\nbind = \"127.0.0.1:0\"\naccept_proxy_protocol = true\n";
    let text = format!("{}{announced}", config("", origin.address()));
    let engine = Engine::start(&text);
    let more = "[listener.another]\nbind = \"127.0.0.1:0\"\n";
    let clients = asking(kept_by_one(&engine, 8), || {
        holds("they are shared", || {
            for text in [&format!("{more}{text}"), &text] {
                engine.rewrite(text);
                engine.reload();
            }
            spread(&engine).into_iter().min() >= Some(3)
        });
    });
    assert!(engine.metric("propylon_dispatched_total", &[("reason", "rest")]) >= 3.0);
    drop(clients);
    holds("they have gone", || spread(&engine) == [0, 0]);
}

/// Processes that keep a core busy, ended with the story.
struct Busy(Vec<Child>);

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Processes that leave a thread of the lowest class as little of their core as four do that are not nice. They are as
/// nice as this one, and each level makes a process lighter by a fifth (sched(7)).
fn spinners() -> usize {
    const SPINNERS_MAX: usize = 64;
    let nice = rustix::process::getpriority_process(None).unwrap_or(0).max(0);
    ((4.0 * 1.25_f64.powi(nice)).ceil() as usize).min(SPINNERS_MAX)
}

/// A thread of the lowest class gets next to nothing of a processor that another process wants.
#[test]
fn clients_of_a_worker_that_stands_still_are_served_by_the_other() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&config("", origin.address()));
    let tasks = std::fs::read_dir(format!("/proc/{}/task", engine.pid())).expect("threads").flatten();
    let name = |task: &std::path::Path| std::fs::read_to_string(task.join("comm")).unwrap_or_default();
    let worker = tasks.map(|task| task.path()).find(|task| name(task).trim() == "worker-1").expect("a worker");
    let status = std::fs::read_to_string(worker.join("status")).expect("its status");
    let core = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("its cores").trim();
    let thread = worker.file_name().expect("a number").to_str().expect("a number");
    if core.contains(['-', ',']) {
        eprintln!("skipped: the worker has no core of its own");
        return;
    }
    let run = |program: &str, arguments: &[&str]| {
        Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    };
    let lowest = run("chrt", &["-i", "-p", "0", thread]).and_then(|mut child| child.wait());
    if !lowest.is_ok_and(|status| status.success()) {
        eprintln!("skipped: chrt cannot be run");
        return;
    }
    let spin = "while :; do :; done";
    let busy = (0..spinners()).map(|_| run("taskset", &["-c", core, "sh", "-c", spin]).expect("taskset runs"));
    let _busy = Busy(busy.collect());
    let stalled = || engine.metric("propylon_dispatched_total", &[("reason", "stall")]);
    holds("clients of the stalled worker are served", || {
        let mut clients: Vec<Client> = (0..8).map(|_| engine.client("plain")).collect();
        clients.iter_mut().for_each(|client| assert_eq!(client.get("/").text(), "hello\n"));
        stalled() > 0.0
    });
}

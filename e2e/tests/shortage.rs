//! Memory and files run short: newcomers are refused, the oldest idle connections go, the admin address answers, and
//! everything comes back by itself.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use propylon_e2e::engine::simple;
use propylon_e2e::frames::{Http2, NO_ERROR};
use propylon_e2e::{Certificates, Client, Ending, Engine, Origin, holds};
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
const MIB: u64 = 1 << 20;

/// A configuration with lines of its own for the process, and patience with slow heads.
fn config(process: &str, origin: SocketAddr) -> String {
    let listeners =
        simple(&[origin]).replace("bind = ", "timeouts = { request_head = \"5m\", idle = \"5m\" }\nbind = ");
    format!("[process]\ndrain_timeout = \"1s\"\n{process}\n[log]\naccess = \"off\"\n{listeners}")
}

fn limit_files(engine: &Engine, files: u64) {
    let pid = Pid::from_raw(engine.pid() as i32).expect("a process");
    let limit = Rlimit { current: Some(files), maximum: Some(20_000) };
    prlimit(Some(pid), Resource::Nofile, limit).expect("the engine's own limit may be lowered");
}

/// CPU time that the engine has used.
fn cpu(engine: &Engine) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", engine.pid())).expect("a running engine");
    // proc_pid_stat(5): utime and stime are the 14th and 15th fields; the 2nd may have spaces and ends with a parenthesis.
    let fields = stat.rsplit_once(')').expect("a name in parentheses").1;
    let ticks: u64 = fields.split_ascii_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().expect("ticks")).sum();
    Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second() as f64)
}

#[test]
fn when_files_run_out_the_oldest_idle_connections_make_room() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&config("workers = 1", origin.address()));
    limit_files(&engine, 200);
    let mut clients = Vec::new();
    for n in 0..600 {
        let mut client = if n % 8 == 0 { engine.client("web") } else { engine.client("plain") };
        assert_eq!(client.get("/").text(), "hello\n", "client {n}");
        clients.push(client);
    }
    assert!(engine.metric("propylon_idle_closed_total", &[("reason", "files")]) >= 400.0);
    assert_eq!(engine.metric("propylon_connections_refused_total", &[]), 0.0);
    // In order, the first of all, which speaks TLS, with a close_notify.
    assert_eq!(clients[0].ending(), Ending::Clean);
    assert_eq!(clients[1].ending(), Ending::Clean);
    let last = clients.last_mut().expect("clients");
    assert_eq!(last.get("/").text(), "hello\n", "the youngest stay");
    assert_eq!(engine.metric("propylon_server_faults_total", &[]), 0.0, "files were left for the servers");
}

#[test]
fn idle_connections_of_http2_make_room_as_well() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&config("workers = 1", origin.address()));
    limit_files(&engine, 200);
    let mut clients = Vec::new();
    for n in 0..400 {
        let mut client = if n % 8 == 0 { Http2::start_tls(&engine) } else { Http2::start(&engine) };
        client.get(1, "/");
        assert_eq!(client.response(1).1, b"hello\n", "client {n}");
        clients.push(client);
    }
    assert!(engine.metric("propylon_idle_closed_total", &[("reason", "files")]) >= 200.0);
    assert_eq!(engine.metric("propylon_connections_refused_total", &[]), 0.0);
    for oldest in &mut clients[..2] {
        assert_eq!(oldest.goaway().code(), NO_ERROR);
        assert_eq!(oldest.client.ending(), Ending::Clean);
    }
    let youngest = clients.last_mut().expect("clients");
    youngest.get(3, "/");
    assert_eq!(youngest.response(3).1, b"hello\n");
}

#[test]
fn a_head_that_has_begun_holds_little_and_may_not_grow_beyond_the_limit() {
    const CLIENTS: usize = 6_000;
    let origin = Origin::always(HELLO);
    let limit = 64 * MIB;
    let engine = Engine::start(&config("workers = 1\nmemory_limit = \"64MiB\"", origin.address()));
    assert_eq!(engine.client("plain").get("/").text(), "hello\n");
    let before = engine.rss();
    let mut slow: Vec<Client> = (0..CLIENTS).map(|_| engine.client("plain")).collect();
    slow.iter_mut().for_each(|client| client.send("G"));
    engine.metric_reaches("propylon_connections", &[], CLIENTS as f64);
    // Whoever is answered now comes behind all of them.
    assert_eq!(engine.client("plain").get("/").text(), "hello\n");
    let each = engine.rss().saturating_sub(before) as usize / CLIENTS;
    println!("{each} bytes for a head of a byte");
    assert!(each < 6_000, "{each} bytes for a head of a byte");
    let head = format!("ET / HTTP/1.1\r\nX-Slow: {}", "x".repeat(15_000));
    let mut most = 0;
    for client in &mut slow {
        let _ = client.try_send(head.as_bytes());
        most = most.max(engine.rss());
    }
    let refused = || engine.metric("propylon_connections_refused_total", &[("reason", "memory")]);
    holds("some are refused", || {
        most = most.max(engine.rss());
        refused() > 0.0
    });
    println!("{} MiB at the most, {} refused", most / MIB, refused());
    assert!(most <= limit, "{most} bytes");
    drop(slow);
    let source = IpAddr::V4(Ipv4Addr::LOCALHOST);
    holds("clients are taken again", || {
        let client = Client::tls_from(source, engine.address("web"));
        client.is_ok_and(|mut client| client.get("/").text() == "hello\n")
    });
}

#[test]
fn a_head_and_a_handshake_that_come_byte_by_byte_are_read() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&config("workers = 1", origin.address()));
    let mut client = engine.client("plain");
    let mut tls = engine.client("web");
    for round in 0..2 {
        for byte in format!("GET /{round} HTTP/1.1\r\nHost: a\r\n\r\n").bytes() {
            client.send([byte]);
            tls.send([byte]);
        }
        assert_eq!(client.read_response().text(), "hello\n");
        assert_eq!(tls.read_response().text(), "hello\n");
    }
    let config = Certificates::shared().client();
    let name = rustls_pki_types::ServerName::try_from("localhost").expect("a name");
    let mut hello = Vec::new();
    let mut session = rustls::ClientConnection::new(config, name).expect("a session");
    session.write_tls(&mut hello).expect("a hello");
    let mut socket = TcpStream::connect(engine.address("web")).expect("a connection");
    socket.set_nodelay(true).expect("a flag");
    hello.iter().for_each(|byte| std::io::Write::write_all(&mut socket, &[*byte]).expect("room"));
    while session.is_handshaking() {
        session.complete_io(&mut socket).expect("a handshake");
    }
}

#[test]
fn when_nobody_is_idle_a_flood_costs_little_and_the_admin_address_answers() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&config("workers = 2", origin.address()));
    limit_files(&engine, 200);
    let address = engine.address("plain");
    let refused = || engine.metric("propylon_connections_refused_total", &[("reason", "files")]);
    // Half a head each: none of them rests.
    let mut busy = Vec::new();
    holds("files run out", || {
        let mut client = Client::plain(address);
        let _ = client.try_send(b"GET / HTTP/1.1\r\n");
        busy.push(client);
        busy.len() > 150 && refused() > 0.0
    });
    assert!(busy.len() < 400, "{} files", busy.len());

    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // More than there is room for at all times.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut wave: Vec<TcpStream> = Vec::new();
                for _ in 0..100 {
                    let timeout = Duration::from_secs(1);
                    wave.extend(TcpStream::connect_timeout(&address, timeout));
                }
                for socket in &mut wave {
                    let _ = std::io::Write::write_all(socket, b"GET / HTTP/1.1\r\n");
                }
            }
        });
        let (began, used, before) = (Instant::now(), cpu(&engine), refused());
        let mut answers = 0;
        // Eight rests of an accept loop.
        while began.elapsed() < Duration::from_millis(800) || refused() < before + 4.0 {
            assert!(began.elapsed() < Duration::from_secs(20), "nobody is refused");
            answers += 1;
        }
        let share = (cpu(&engine) - used).as_secs_f64() / began.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        println!("{answers} answers of the admin address, {share:.2} of a core, refused {}", refused() - before);
    });
    let spun = spin_share(&engine);
    assert!(spun < 0.5, "{spun:.2} of a core while nothing can be accepted");

    drop(busy);
    holds("it serves again", || {
        let mut client = Client::plain(address);
        let served = client.try_send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").is_ok();
        client.read_timeout(Duration::from_millis(500));
        served && client.has_something()
    });
    assert_eq!(engine.client("web").get("/").text(), "hello\n");
}

/// Share of a core that the engine uses while connections wait in the queue and it cannot take them: nobody asks it anything
/// meanwhile.
fn spin_share(engine: &Engine) -> f64 {
    let _waiting: Vec<TcpStream> = (0..50).filter_map(|_| TcpStream::connect(engine.address("plain")).ok()).collect();
    let (began, used) = (Instant::now(), cpu(engine));
    // What is measured is time: there is nothing else to wait for.
    std::thread::sleep(Duration::from_millis(1500));
    (cpu(engine) - used).as_secs_f64() / began.elapsed().as_secs_f64()
}

#[test]
fn a_source_has_its_share_of_connections_over_all_workers_and_no_more() {
    let origin = Origin::always(HELLO);
    let engine = Engine::start(&config("workers = 3\nconnections_per_source = 5", origin.address()));
    let from = |last: u8, listener: &str| {
        let source = IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
        match listener {
            "web" => Client::tls_from(source, engine.address("web")),
            _ => Client::plain_from(source, engine.address("plain")),
        }
    };
    let mut clients: Vec<Client> = Vec::new();
    for n in 0..5 {
        let mut client = from(9, if n % 2 == 0 { "web" } else { "plain" }).expect("its share");
        assert_eq!(client.get("/").text(), "hello\n");
        clients.push(client);
    }
    assert!(from(9, "web").is_err(), "a sixth, refused before TLS");
    let mut sixth = from(9, "plain").expect("the kernel's accept");
    let _ = sixth.try_send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(sixth.ending(), Ending::Reset);
    assert_eq!(engine.metric("propylon_connections_refused_total", &[("reason", "source")]), 2.0);
    assert_eq!(from(10, "web").expect("another source").get("/").text(), "hello\n");
    drop(clients.pop());
    engine.metric_reaches("propylon_connections", &[], 4.0);
    assert_eq!(from(9, "plain").expect("a place that is free").get("/").text(), "hello\n");
}

#[test]
fn a_source_gets_its_share_back_whatever_its_listener_has_become_meanwhile() {
    let origin = Origin::always(HELLO);
    let bare = config("workers = 1\nconnections_per_source = 3", origin.address());
    let proxied = bare.replace("[listener.plain]\n", "[listener.plain]\naccept_proxy_protocol = true\n");
    assert_ne!(bare, proxied);
    let engine = Engine::start(&bare);
    let source = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));
    let open = || Client::plain_from(source, engine.address("plain")).expect("the kernel's accept");
    let all_served = || -> Vec<Client> {
        let mut clients: Vec<Client> = (0..3).map(|_| open()).collect();
        clients.iter_mut().for_each(|client| assert_eq!(client.get("/").text(), "hello\n"));
        clients
    };
    let turn = |config: &str| {
        engine.rewrite(config);
        assert!(engine.reload().contains("the configuration is in effect"), "{:?}", engine.stderr());
    };
    for _ in 0..2 {
        let counted = all_served();
        turn(&proxied);
        drop(counted);
        engine.metric_reaches("propylon_connections", &[], 0.0);
        // Some that were announced, and some that never said a word.
        let mut announced: Vec<Client> = (0..4).map(|_| open()).collect();
        for client in &mut announced[..2] {
            client.send("PROXY TCP4 127.0.0.9 127.0.0.1 7 8\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(client.read_response().text(), "hello\n");
        }
        engine.metric_reaches("propylon_connections", &[], 4.0);
        turn(&bare);
        drop(announced);
        engine.metric_reaches("propylon_connections", &[], 0.0);
    }
    let _mine = all_served();
    let mut fourth = open();
    let _ = fourth.try_send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(fourth.ending(), Ending::Reset);
}

#[test]
fn near_the_limit_of_memory_newcomers_are_refused_and_the_oldest_idle_clients_go() {
    let origin = Origin::always(HELLO);
    let limit = 64 * MIB;
    let engine = Engine::start(&config("workers = 1\nmemory_limit = \"64MiB\"", origin.address()));
    assert_eq!(engine.metric("propylon_memory_limit_bytes", &[]), limit as f64);
    let own = engine.rss();
    let closed = || engine.metric("propylon_idle_closed_total", &[("reason", "memory")]);
    let refused = || engine.metric("propylon_connections_refused_total", &[("reason", "memory")]);
    let mut idle: Vec<Client> = Vec::new();
    for _ in 0..100 {
        let mut client = engine.client("web");
        assert_eq!(client.get("/").text(), "hello\n");
        idle.push(client);
    }
    // Each keeps a buffer of 20 KiB busy with a head that does not end.
    let head = format!("GET / HTTP/1.1\r\nX-Slow: {}", "x".repeat(12_000));
    let mut slow: Vec<Client> = Vec::new();
    let mut most = 0;
    while closed() == 0.0 && slow.len() < 10_000 {
        let near = engine.rss() > limit * 8 / 10;
        for _ in 0..if near { 20 } else { 100 } {
            let mut client = engine.client("plain");
            let _ = client.try_send(head.as_bytes());
            slow.push(client);
        }
        let seen = || engine.metric("propylon_memory_used_bytes", &[]) + 2e6 > engine.rss() as f64;
        holds("the engine knows what it uses", seen);
        most = most.max(engine.rss());
    }
    println!("{} slow clients, {} refused, {} closed, {} MiB at the most", slow.len(), refused(), closed(), most / MIB);
    assert!(closed() > 0.0 && refused() > 0.0, "newcomers are refused before anybody is closed");
    assert!(most <= limit, "{most} bytes");
    // At the limit all of them go; before it the oldest.
    assert_eq!(idle[0].ending(), Ending::Clean, "with a close_notify");
    assert!(engine.rss() <= limit);

    drop(slow);
    let source = IpAddr::V4(Ipv4Addr::LOCALHOST);
    holds("clients are taken again", || {
        let client = Client::tls_from(source, engine.address("web"));
        client.is_ok_and(|mut client| client.get("/").text() == "hello\n")
    });
    holds("nobody is refused", || engine.metric("propylon_memory_refused_percent", &[]) == 0.0);
    // The program alone has half of the limit here, unoptimised as it is.
    assert!(engine.rss() < own + (limit - own) / 4, "{} bytes after the crowd, {own} before", engine.rss());
}

#[test]
fn two_engines_share_an_address_only_if_both_say_so() {
    let origin = Origin::always(HELLO);
    let first = Engine::start(&config("workers = 1\nshare_address = true", origin.address()));
    let (plain, web) = (first.address("plain").port(), first.address("web").port());
    let same = |process: &str| {
        let text = config(process, origin.address());
        text.replacen("127.0.0.1:0", &format!("127.0.0.1:{plain}"), 1).replacen(
            "bind = \"127.0.0.1:0\"\ntls",
            &format!("bind = \"127.0.0.1:{web}\"\ntls"),
            1,
        )
    };
    let mut refused = Engine::spawn(&same("workers = 1"));
    refused.expect_exit(1);
    let end = refused.wait(Duration::from_secs(20));
    assert!(end.stderr.iter().any(|line| line.contains("cannot bind")), "{:?}", end.stderr);
    let second = Engine::start(&same("workers = 1\nshare_address = true"));
    // The kernel spreads clients by their ports: that forty go to one is as good as impossible.
    for _ in 0..40 {
        assert_eq!(first.client("plain").get("/").text(), "hello\n");
        assert_eq!(first.client("web").get("/").text(), "hello\n");
    }
    let accepted = |engine: &Engine| engine.metric("propylon_connections_total", &[]);
    assert_eq!(accepted(&first) + accepted(&second), 80.0);
    assert!(accepted(&first) > 0.0 && accepted(&second) > 0.0);
}

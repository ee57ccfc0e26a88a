//! Kinds of servers: Unix sockets, servers of HTTP/1.0, and the addresses that connections to servers come from.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use propylon_e2e::admin::{applied, server, with_state};
use propylon_e2e::certificates::Certificates;
use propylon_e2e::external::External;
use propylon_e2e::frames::{DATA, END_HEADERS, END_STREAM, Http2, request};
use propylon_e2e::program::{curl, finish, run, signal};
use propylon_e2e::{Client, Engine, Origin, Scratch, binaries, holds};
use rustix::process::{Signal, geteuid};

/// A configuration as [`propylon_e2e::engine::with`] makes it, of servers as they are written.
fn with(servers: &[&str], listener: &str, backend: &str) -> String {
    let servers: Vec<String> = servers.iter().map(|server| format!("\"{server}\"")).collect();
    let servers = servers.join(", ");
    format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n{listener}\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n{listener}\n\
         [backend.app]\nservers = [{servers}]\n{backend}\n\
         [[route]]\nbackend = \"app\"\n"
    )
}

/// Somebody else's server as a child process.
struct Program(Child);

impl Program {
    /// gunicorn at a Unix socket, with an application that tells what it was asked.
    fn gunicorn(scratch: &Scratch, socket: &str) -> Program {
        let application = "def app(environ, start):\n\
            \x20   length = int(environ.get('CONTENT_LENGTH') or 0)\n\
            \x20   body = environ['wsgi.input'].read(length) if length else environ['wsgi.input'].read()\n\
            \x20   asked = (environ['REQUEST_METHOD'], environ['PATH_INFO'], environ['HTTP_HOST'], len(body))\n\
            \x20   said = '%s %s %s %d' % asked\n\
            \x20   start('200 OK', [('Content-Type', 'text/plain'), ('Content-Length', str(len(said)))])\n\
            \x20   return [said.encode()]\n";
        scratch.write("told.py", application);
        let mut command = Command::new("gunicorn");
        command.args(["--bind", &format!("unix:{socket}"), "--workers", "1", "--threads", "2", "--keep-alive", "30"]);
        command.args(["--log-level", "warning", "--chdir"]).arg(scratch.path()).arg("told:app");
        let server = Program(command.stdin(Stdio::null()).spawn().expect("gunicorn"));
        holds("gunicorn listens", || UnixStream::connect(socket).is_ok());
        server
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            signal(self.0.id(), Signal::TERM);
        }
        finish(&mut self.0, Duration::from_secs(20), "the server ends");
    }
}

fn socket(scratch: &Scratch, name: &str) -> String {
    scratch.join(name).display().to_string()
}

/// Answers `name` to every request.
fn named(name: &'static str) -> impl Fn(&mut propylon_e2e::origin::Peer) + Send + Sync + 'static {
    move |peer| {
        while peer.read_request().is_some() {
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len()));
        }
    }
}

fn labels(path: &str) -> [(&'static str, String); 2] {
    [("backend", "app".to_owned()), ("server", format!("unix:{path}"))]
}

fn check(text: &str) -> String {
    let scratch = Scratch::new();
    let path = scratch.write("a.toml", text);
    let mut command = Command::new(binaries::propylon());
    command.args(["check", "-c"]).arg(path);
    let said = run(command, b"", Duration::from_secs(20));
    said.text() + &said.stderr
}

#[test]
fn gunicorn_at_a_unix_socket_serves_clients_of_both_protocols_on_connections_that_are_used_again() {
    let scratch = Scratch::new();
    let path = socket(&scratch, "app.sock");
    let _gunicorn = Program::gunicorn(&scratch, &path);
    let sticky = "sticky = { cookie = \"seat\" }\nhealth = { path = \"/up\", interval = \"100ms\" }";
    let engine = Engine::start(&with(&[&format!("unix:{path}")], "", sticky));
    let mut client = engine.client("plain");
    let said = client.ask("POST /one HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(said.text(), "POST /one shop.example 5");
    let chunked = "PUT /two HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    assert_eq!(client.ask(chunked).text(), "PUT /two a 3");
    let url = format!("{}/three", engine.url("plain"));
    let said = curl(&["--http2-prior-knowledge", "-H", "Host: b", "-d", "12345678", &url]).ok().text();
    assert_eq!(said, "POST /three b 8");
    // A cookie names the server by a tag, and no client learns where it listens.
    let cookie = said_cookie(&engine);
    assert!(!cookie.contains("app.sock") && !cookie.contains("tmp"), "{cookie}");
    let line = engine.logged_path("/one");
    assert_eq!((&line["server"], &line["backend"]), (&format!("unix:{path}").into(), &"app".into()));
    let labels = [("backend", "app"), ("server", &*format!("unix:{path}"))];
    engine.metric_reaches("propylon_server_up", &labels, 1.0);
    assert!(engine.metric("propylon_server_requests_total", &labels) >= 4.0);
    assert!(engine.metric("propylon_server_reused_total", &labels) >= 1.0);
    let state = server(&engine, &format!("unix:{path}"));
    assert_eq!(state["resolved"][0], format!("unix:{path}"));
    holds("its health is known", || server(&engine, &format!("unix:{path}"))["health"]["state"] == "up");
}

fn said_cookie(engine: &Engine) -> String {
    let response = engine.client("plain").get("/cookie");
    response.field("Set-Cookie").expect("a cookie").to_owned()
}

#[test]
fn nginx_at_a_unix_socket_speaks_http2_and_is_down_while_its_socket_is_gone() {
    let scratch = Scratch::new();
    let path = socket(&scratch, "nginx.sock");
    let server = format!(
        "listen {{address}}; listen unix:{path} http2;\n\
         location / {{ return 200 \"$server_protocol $host\"; }}\n\
         location /up {{ if ($host != localhost) {{ return 500; }} return 200; }}"
    );
    let nginx = External::nginx(&server);
    let health = "protocol = \"h2\"\nhealth = { path = \"/up\", interval = \"50ms\", rise = 1, fall = 1 }";
    let engine = Engine::start(&with(&[&format!("unix:{path}")], "", health));
    let labels = [("backend", "app"), ("server", &*format!("unix:{path}"))];
    engine.metric_reaches("propylon_server_up", &labels, 1.0);
    for listener in ["plain", "web"] {
        let url = format!("{}/", engine.url(listener));
        assert_eq!(curl(&["-k", "--http1.1", "-H", "Host: shop", &url]).ok().text(), "HTTP/2.0 shop");
    }
    drop(nginx);
    let _ = std::fs::remove_file(&path);
    holds("it is down", || engine.metric("propylon_server_up", &labels) == 0.0);
    assert_eq!(engine.client("plain").get("/").status, 503);
    let _nginx = External::nginx(&server);
    holds("it is up again", || engine.metric("propylon_server_up", &labels) == 1.0);
    assert_eq!(engine.client("plain").get("/").status, 200);
}

#[test]
fn sockets_share_requests_with_addresses_by_weight_and_one_that_refuses_is_passed_over() {
    let scratch = Scratch::new();
    let (one, left) = (socket(&scratch, "one.sock"), socket(&scratch, "left.sock"));
    // A socket that its server has left behind: the file is there, and nobody listens.
    drop(UnixListener::bind(&left).expect("a free path"));
    let two = format!("@propylon-e2e-{}", std::process::id());
    let (_one, _two) = (Origin::at_socket(&one, named("one")), Origin::at_socket(&two, named("two")));
    let three = Origin::scripted(named("three"));
    let config = format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n[backend.app]\n\
         servers = [{{ address = \"{one}\", weight = 2 }}, \"abns@{}\", \"unix@{left}\", \"{}\", \"unix:{}\"]\n\
         [[route]]\nbackend = \"app\"\n",
        &two[1..],
        three.address(),
        socket(&scratch, "none.sock"),
    );
    let engine = Engine::start(&config);
    let mut client = engine.client("plain");
    let said: Vec<String> = (0..12).map(|_| client.get("/").text()).collect();
    let count = |name: &str| said.iter().filter(|said| *said == name).count();
    assert_eq!(count("one") + count("two") + count("three"), 12, "{said:?}");
    assert!(count("one") > count("two") && count("two") > 0 && count("three") > 0, "{said:?}");
    let failures = |server: &str| {
        engine.metric("propylon_server_connect_failures_total", &[("backend", "app"), ("server", server)])
    };
    assert!(failures(&format!("unix:{left}")) > 0.0 && failures(&format!("unix:{two}")) == 0.0);
    let told = |what: &str| engine.stderr().join("\n").contains(what);
    holds("the log says why", || told(&format!("server unix:{left}: ")) && told("nobody listens"));
    // A server that left its socket behind is at fault, not the engine.
    let alone = Engine::start(&with(&[&left], "", "retries = 0"));
    let refused = alone.client("plain").get("/");
    assert_eq!((refused.status, refused.text().trim_end()), (502, "502 Bad Gateway: connect-refused"));
}

/// The kernel refuses a connection at once where as many wait for their accept as may, and never says when fewer do.
#[test]
fn a_socket_whose_line_is_full_is_asked_again_until_there_is_room() {
    let scratch = Scratch::new();
    let path = socket(&scratch, "full.sock");
    let kernel = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).expect("a socket");
    kernel.bind(&socket2::SockAddr::unix(&path).expect("a path")).expect("a free path");
    kernel.listen(0).expect("it listens");
    let engine = Engine::start(&with(&[&path], "", "retries = 0\ntimeouts = { connect = \"30s\" }"));
    let line = || UnixStream::connect(&path).expect("a place in the line");
    let first = line();
    let mut client = engine.client("plain");
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    // The one place is taken; nobody else's connection gets in before this is accepted.
    let listener = UnixListener::from(std::os::fd::OwnedFd::from(kernel));
    engine.metric_reaches(
        "propylon_server_requests_in_flight",
        &labels(&path).each_ref().map(|(name, value)| (*name, value.as_str())),
        1.0,
    );
    let accepted = listener.accept().expect("the first one").0;
    let (mut server, _) = listener.accept().expect("the engine's");
    let mut head = [0; 16];
    std::io::Read::read_exact(&mut server, &mut head).expect("a request");
    server.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").expect("an answer");
    assert_eq!(client.read_head().lines().next(), Some("HTTP/1.1 204 No Content"));
    drop((first, accepted));
    // Without room until the time is up, it is a timeout.
    let engine = Engine::start(&with(&[&path], "", "retries = 0\ntimeouts = { connect = \"100ms\" }"));
    let _one = line();
    assert_eq!(engine.client("plain").get("/").status, 504);
}

#[test]
fn relays_reach_sockets_and_tell_them_of_their_clients() {
    let scratch = Scratch::new();
    let path = socket(&scratch, "relay.sock");
    let origin = Origin::at_socket(&path, |peer| {
        while let Some(bytes) = peer.read_some() {
            if peer.try_send(&bytes).is_err() {
                return;
            }
        }
        peer.close();
    });
    let engine = Engine::start(&format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\ntls = \"public\"\n\
         [backend.app]\nservers = [\"unix:{path}\"]\nsend_proxy_protocol = \"v1\"\n\
         [[route]]\nlistener = \"plain\"\nbackend = \"app\"\n[[route]]\nlistener = \"web\"\nbackend = \"app\"\n"
    ));
    let noise: Vec<u8> = (0..300_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    for listener in ["plain", "web"] {
        let (mut client, is_tls) = match listener {
            "web" => (Client::tls(engine.address(listener)), true),
            _ => (Client::plain(engine.address(listener)), false),
        };
        let header =
            format!("PROXY TCP4 127.0.0.1 127.0.0.1 {} {}\r\n", client.local_port(), engine.address(listener).port());
        client.send(b"ping");
        assert_eq!(client.read_exact(header.len() + 4), [header.as_bytes(), b"ping"].concat(), "TLS: {is_tls}");
        let back = std::thread::scope(|scope| {
            let mut socket = client.socket().try_clone().expect("a second handle");
            if is_tls {
                client.send(&noise);
            } else {
                let noise = &noise;
                scope.spawn(move || socket.write_all(noise).expect("the relay reads"));
            }
            client.read_exact(noise.len())
        });
        assert!(back == noise, "TLS: {is_tls}");
        client.finish();
        client.ending();
    }
    assert_eq!(origin.connections(), 2);
    // Behind an HTTP listener as well.
    let engine = Engine::start(&with(&[&path], "", "send_proxy_protocol = \"v2\""));
    let mut client = engine.client("plain");
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    holds("the header is there", || {
        origin.received().last().is_some_and(|bytes| bytes.starts_with(b"\r\n\r\n\0\r\nQUIT\n"))
    });
}

#[test]
fn a_reload_keeps_connections_to_a_socket_however_it_is_spelled_and_the_admin_address_drains_it() {
    let scratch = Scratch::new();
    let (one, two) = (socket(&scratch, "one.sock"), socket(&scratch, "two.sock"));
    let (first, _second) = (Origin::at_socket(&one, named("one")), Origin::at_socket(&two, named("two")));
    let (process, admin) = with_state(&scratch);
    let text = |server: &str, more: &str| {
        format!(
            "[process]\nworkers = 1\ndrain_timeout = \"1s\"\n{process}\n[admin]\nbind = \"127.0.0.1:0\"\n{admin}\n\
             {}",
            with(&[server], "", more)
        )
    };
    let engine = Engine::start(&text(&format!("unix:{one}"), ""));
    let mut client = engine.client("plain");
    assert_eq!(client.get("/").text(), "one");
    engine.rewrite(&text(&format!("unix@{one}"), "retries = 1"));
    engine.reload();
    assert_eq!((client.get("/").text(), first.connections()), ("one".to_owned(), 1));
    let added = format!("{{\"address\": \"unix:{two}\", \"weight\": 3}}");
    applied(&engine, "POST", "/v1/backends/app/servers", &added);
    let escaped = format!("unix:{one}").replace('/', "%2F");
    applied(&engine, "PATCH", &format!("/v1/backends/app/servers/{escaped}"), "{\"drain\": true}");
    // The slashes may stand as they are.
    applied(&engine, "PATCH", &format!("/v1/backends/app/servers/unix:{two}"), "{\"weight\": 5}");
    assert_eq!(client.get("/").text(), "two");
    let mut command = Command::new(binaries::propylonctl());
    command.args(["explain", "-c"]).arg(engine.folder().join("propylon.toml")).args([
        "http://a/",
        "--listener",
        "plain",
    ]);
    let said = run(command, b"", Duration::from_secs(20));
    assert!(said.text().contains(&format!("unix@{one}")) || said.text().contains(&format!("unix:{one}")), "{said:?}");
}

#[test]
fn what_a_socket_does_not_have_is_refused_with_a_cure() {
    for (servers, more, told) in [
        ("unix:/run/a.sock", "tls = {}", "add `server_name` to the backend's `tls`"),
        ("unix:/run/a.sock", "health = { port = 80 }", "has no ports, and `health` asks at 80"),
        ("unix:run/a.sock", "", "the path of a Unix socket is not absolute; write \"unix:PATH\""),
        ("http://unix:/run/a.sock:/", "", "write \"unix:/run/a.sock\""),
    ] {
        let said = check(&with(&[servers], "", more).replace("tls = \"public\"\n", ""));
        assert!(said.contains(told), "{servers} {more}: {said}");
    }
}

/// Rights are for the socket's file to say, and for the sandbox whether sockets are connected to at all.
#[test]
fn a_socket_is_reached_with_few_rights_and_where_it_is_not_the_log_says_whose_leave_is_missing() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let path = socket(&scratch, "app.sock");
    let _origin = Origin::at_socket(&path, named("one"));
    let engine = Engine::start(&with(&["127.0.0.1:9"], "", ""));
    // This process may connect to no Unix socket: it was told of none at its start.
    engine.rewrite(&with(&[&path], "", ""));
    engine.signal(Signal::HUP);
    holds("the reload is refused", || engine.stderr().join("\n").contains("connect to no Unix socket"));
    drop(engine);
    if !geteuid().is_root() {
        eprintln!("skipped: another account takes root");
        return;
    }
    std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o755)).expect("our own folder");
    let process = "[process]\nworkers = 1\ndrain_timeout = \"1s\"\nuser = \"nobody\"\n";
    let config = format!("{process}{}", with(&[&path], "", "retries = 0\nreuse = \"never\""));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).expect("our own socket");
    let engine = Engine::start(&config);
    assert_eq!(engine.client("plain").get("/").text(), "one");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("our own socket");
    assert_eq!(engine.client("plain").get("/").status, 502);
    let told = |what: &str| engine.stderr().join("\n").contains(what);
    holds("the log says why", || told("Permission denied") && told("(process.user) leave to write to the socket"));
}

/// A server's answer to everything, after which it closes; what it was asked is remembered.
fn closing(answer: &'static str) -> Origin {
    Origin::scripted(move |peer| {
        if peer.read_request().is_some() {
            peer.send(answer);
        }
        peer.close();
    })
}

/// Bodies that end with their connection, from a backend of either version, to clients of all.
#[test]
fn a_body_without_a_length_reaches_clients_of_every_version_and_ends_where_its_connection_does() {
    for protocol in ["http1", "http1.0"] {
        let origin = closing("HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil the end");
        let engine = Engine::start(&with(&[&origin.address().to_string()], "", &format!("protocol = \"{protocol}\"")));
        let mut client = engine.client("plain");
        let chunked = client.get("/");
        assert_eq!((chunked.text().as_str(), chunked.field("Transfer-Encoding")), ("until the end", Some("chunked")));
        assert_eq!(client.get("/again").text(), "until the end");
        let mut old = engine.client("plain");
        old.send("GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n");
        let (said, _) = old.read_to_end();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(said.ends_with("\r\n\r\nuntil the end") && !said.contains("chunked"), "{said}");
        let mut heading = engine.client("plain");
        heading.send("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(heading.read_head().starts_with("HTTP/1.1 200 OK\r\n"));
        for listener in ["plain", "web"] {
            let prior = if listener == "plain" { "--http2-prior-knowledge" } else { "--http2" };
            let url = format!("{}/", engine.url(listener));
            assert_eq!(curl(&["-k", prior, &url]).ok().text(), "until the end");
        }
        assert_eq!(origin.connections(), 6, "none is used again");
    }
}

/// Over TLS an end without a goodbye may be anybody's (RFC 8446 §6.1): what came before it is not the whole.
#[test]
fn a_body_that_a_reset_or_a_cut_session_ends_is_never_taken_for_whole() {
    let reset = Origin::scripted(|peer| {
        if peer.read_request().is_some() {
            peer.send("HTTP/1.0 200 OK\r\n\r\nhalf");
            peer.reset();
        }
    });
    let pem = Certificates::shared().ec().display().to_string();
    let script = "import socket, ssl, sys, os\n\
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain(sys.argv[1])\n\
        listener = socket.create_server(('127.0.0.1', int(sys.argv[2])))\n\
        while True:\n\
        \x20   try:\n\
        \x20       stream = context.wrap_socket(listener.accept()[0], server_side=True)\n\
        \x20       asked = stream.recv(65536)\n\
        \x20       stream.sendall(b'HTTP/1.0 200 OK\\r\\n\\r\\nhalf')\n\
        \x20       if b'/whole' in asked: stream.unwrap()\n\
        \x20       os.close(stream.detach())\n\
        \x20   except OSError: pass\n";
    let port = free_port();
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", script, &pem, &port.to_string()]).stdin(Stdio::null());
    let _cut = Program(command.spawn().expect("Debian's Python"));
    holds("Python listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    let cut = format!("127.0.0.1:{port}");
    for (server, tls) in [(reset.address().to_string(), ""), (cut, "tls = { verify = false }")] {
        for protocol in ["http1", "http1.0"] {
            let keys = format!("protocol = \"{protocol}\"\nretries = 0\n{tls}");
            let engine = Engine::start(&with(&[&server], "", &keys));
            for version in ["--http1.0", "--http1.1", "--http2-prior-knowledge"] {
                let said = curl(&["-f", version, &format!("{}/", engine.url("plain"))]);
                // To a client of HTTP/1.0 the end of its connection is all that can be said, and it is a reset.
                assert!(!said.status.success(), "{server} {protocol} {version}: {said:?}");
                if !tls.is_empty() {
                    let whole = curl(&["-f", version, &format!("{}/whole", engine.url("plain"))]).ok().text();
                    assert_eq!(whole, "half", "{protocol} {version}");
                }
            }
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port()
}

#[test]
fn a_server_of_http_1_0_is_asked_in_its_own_words_over_all_protocols() {
    let origin = Origin::scripted(|peer| {
        while let Some(request) = peer.read_request() {
            let length = request.len();
            peer.send(format!("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: {length}\r\n\r\n"));
            peer.send(request);
        }
    });
    let keys = "protocol = \"http1.0\"\nreuse = \"always\"";
    let engine = Engine::start(&with(&[&origin.address().to_string()], "forwarded = \"remove\"", keys));
    let mut client = engine.client("plain");
    let said = client.get("/one").text();
    assert_eq!(said, "GET /one HTTP/1.0\r\nHost: shop.test\r\nConnection: keep-alive\r\n\r\n");
    // Chunks become a length, whether they come at once or in pieces; trailers are left out.
    let head = "POST /two HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: TE\r\n\
                Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n";
    let wanted = "POST /two HTTP/1.0\r\nHost: a\r\nContent-Length: 7\r\nConnection: keep-alive\r\n\r\nabcdefg";
    let body = "3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\nX-Sum: 1\r\n\r\n";
    assert_eq!(client.ask(format!("{head}{body}")).text(), wanted);
    client.send(head);
    for piece in body.as_bytes().chunks(5) {
        client.send(piece);
        engine.metrics();
    }
    // The next request is not eaten with it.
    client.send("GET /three HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n");
    assert_eq!(client.read_response().text(), wanted);
    assert_eq!(client.read_response().text(), "GET /three HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n");
    // A client that waits to be told is told here: the server knows no expectations.
    client.send("PUT /four HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    assert_eq!(client.read_head(), "HTTP/1.1 100 Continue");
    client.send("hi");
    let wanted = "PUT /four HTTP/1.0\r\nHost: a\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nhi";
    assert_eq!(client.read_response().text(), wanted);
    assert_eq!(origin.connections(), 1, "keep-alive is agreed on");
    // Over HTTP/2 without a length.
    let url = format!("{}/five", engine.url("plain"));
    let mut command = Command::new("curl");
    command
        .args(["-sS", "--http2-prior-knowledge", "-T", "-", "-H", "Expect: 100-continue", "-A", "", "-H", "Accept:"])
        .arg(url);
    let said = run(command, b"streamed", Duration::from_secs(20)).ok().text();
    assert!(said.starts_with("PUT /five HTTP/1.0\r\nHost: localhost:"), "{said}");
    assert!(said.ends_with("Content-Length: 8\r\nConnection: keep-alive\r\n\r\nstreamed"), "{said}");
    // Trailers are left out there as well, whether they are here with the body or come later.
    let mut http2 = Http2::start(&engine);
    for (stream, is_later) in [(1, false), (3, true)] {
        http2.headers(stream, 0, &request("POST", "/six"));
        http2.send(DATA, 0, stream, b"framed");
        if is_later {
            engine.metrics();
        }
        http2.headers(stream, END_STREAM, &[("x-sum", "1")]);
        let (head, body) = http2.response(stream);
        let said = String::from_utf8_lossy(&body).into_owned();
        assert_eq!(head.status(), Some(200), "{said}");
        assert!(said.ends_with("Content-Length: 6\r\nConnection: keep-alive\r\n\r\nframed"), "{said}");
    }
}

#[test]
fn no_step_of_a_route_brings_chunks_to_a_server_of_http_1_0() {
    let origin = Origin::scripted(|peer| {
        while let Some(request) = peer.read_request() {
            let length = request.len();
            peer.send(format!("HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: {length}\r\n\r\n"));
            peer.send(request);
        }
    });
    let other = Origin::scripted(|peer| {
        while peer.read_request().is_some() {
            peer.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    let dead = free_port();
    let address = origin.address();
    let config = format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\nforwarded = \"remove\"\n\
         [backend.old]\nservers = [\"{address}\"]\nprotocol = \"http1.0\"\n\
         [backend.other]\nservers = [\"{}\"]\n[backend.dead]\nservers = [\"127.0.0.1:{dead}\"]\n\
         [[route]]\npath = \"/pace\"\nbackend = \"old\"\nthrottle = {{ upload = \"4MiB\" }}\n\
         [[route]]\npath = \"/both\"\nbackend = \"old\"\nthrottle = {{ upload = \"4MiB\" }}\n\
         mirror = {{ backend = \"other\" }}\n\
         [[route]]\npath = \"/held\"\nbackend = \"dead\"\nfallback = \"old\"\nbuffer = {{ request = {{ disk = 0 }} }}\n\
         mirror = {{ backend = \"other\" }}\n",
        other.address()
    );
    let engine = Engine::start(&config);
    for path in ["/pace", "/both", "/held"] {
        for version in ["--http1.1", "--http2-prior-knowledge"] {
            let url = format!("{}{path}", engine.url("plain"));
            let mut command = Command::new("curl");
            command.args(["-sS", version, "-T", "-", "-A", "", "-H", "Accept:", &url]);
            let said = run(command, b"streamed", Duration::from_secs(20)).ok().text();
            assert!(said.starts_with(&format!("PUT {path} HTTP/1.0\r\n")), "{version} {path}: {said}");
            assert!(said.ends_with("\r\n\r\nstreamed"), "{version} {path}: {said}");
            assert!(said.contains("Content-Length: 8\r\n") && !said.contains("chunked"), "{version} {path}: {said}");
        }
    }
}

#[test]
fn a_body_that_is_too_long_to_be_kept_needs_a_length_and_a_bad_one_is_refused() {
    let origin = Origin::always("HTTP/1.0 200 OK\r\n\r\n");
    let engine = Engine::start(&with(
        &[&origin.address().to_string()],
        "timeouts = { body = \"300ms\" }",
        "protocol = \"http1.0\"",
    ));
    let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (body, status) in
        [(format!("10000\r\n{}", "x".repeat(40_000)), 411), ("zz\r\n".to_owned(), 400), ("5\r\nab".to_owned(), 408)]
    {
        let mut client = engine.client("plain");
        client.send(format!("{head}{body}"));
        assert_eq!(client.read_response().status, status);
    }
    // Over HTTP/2 as much is waited for as the client may send ahead.
    let mut http2 = Http2::start(&engine);
    http2.headers(1, END_HEADERS, &request("POST", "/long"));
    for length in [16_384, 16_384, 16_384, 16_383] {
        http2.send(DATA, 0, 1, &vec![b'x'; length]);
    }
    let (head, _) = http2.response(1);
    assert_eq!(head.status().or(head.spelled_status()), Some(411));
    assert_eq!(engine.logged_path("/long")["fault"], "length-required");
    assert_eq!(origin.connections(), 0);
}

/// `python3 -m http.server` answers in HTTP/1.0 and closes.
#[test]
fn the_http_server_of_python_serves_files_to_clients_of_both_protocols() {
    let scratch = Scratch::new();
    let content: String = (0..40_000).map(|n| format!("line {n}\n")).collect();
    scratch.write("file.txt", &content);
    let port = free_port();
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-m", "http.server", "--bind", "127.0.0.1", &port.to_string(), "--directory"]).arg(scratch.path());
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let _python = Program(command.spawn().expect("Debian's Python"));
    holds("Python listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    for protocol in ["http1", "http1.0"] {
        let keys = format!("protocol = \"{protocol}\"\nhealth = {{ path = \"/file.txt\" }}");
        let engine = Engine::start(&with(&[&format!("127.0.0.1:{port}")], "", &keys));
        for arguments in [["-k", "--http1.0"], ["-k", "--http1.1"], ["-k", "--http2"]] {
            let url = format!("{}/file.txt", engine.url("web"));
            let said = curl(&[&arguments[..], &[&url]].concat()).ok().text();
            assert!(said == content, "{protocol} {arguments:?}");
        }
        assert_eq!(engine.client("plain").get("/none").status, 404);
    }
}

/// A server that answers every request with the address that its connection came from.
fn telling() -> (SocketAddr, Arc<Mutex<Vec<IpAddr>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let seen: Arc<Mutex<Vec<IpAddr>>> = Arc::default();
    let kept = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let Ok(peer) = stream.peer_addr() else { continue };
            kept.lock().expect("nobody panics with it").push(peer.ip());
            std::thread::spawn(move || {
                let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
                while lines.by_ref().find(String::is_empty).is_some() {
                    let said = peer.ip().to_string();
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{said}", said.len());
                    if (&stream).write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, seen)
}

#[test]
fn connections_to_servers_come_from_the_addresses_that_were_chosen_each_in_its_turn() {
    let (server, seen) = telling();
    let server = server.to_string();
    let text = |source: &str, more: &str| with(&[&server], "", &format!("source = {source}\n{more}"));
    let engine = Engine::start(&text("[\"127.0.0.2\", \"127.0.0.3\", \"::1\"]", "reuse = \"never\""));
    let said: Vec<String> = (0..6).map(|_| engine.client("plain").get("/").text()).collect();
    let [one, other] = ["127.0.0.2", "127.0.0.3"];
    let (one, other) = if said[0] == one { (one, other) } else { (other, one) };
    assert_eq!(said, [one, other, one, other, one, other]);
    // Health checks come from there as well, and idle connections from elsewhere are not used after a reload.
    engine.rewrite(&text("\"127.0.0.4\"", "health = { path = \"/\", interval = \"50ms\" }"));
    engine.reload();
    let mut client = engine.client("plain");
    assert_eq!(client.get("/").text(), "127.0.0.4");
    let from = || seen.lock().expect("nobody panics with it").clone();
    let before = from().len();
    holds("probes come", || from().len() > before + 2);
    assert!(from()[before..].iter().all(|from| from.to_string() == "127.0.0.4"), "{:?}", from());
    engine.rewrite(&text("\"127.0.0.5\"", "health = { path = \"/\", interval = \"50ms\" }"));
    engine.reload();
    assert_eq!(client.get("/").text(), "127.0.0.5");
    engine.rewrite(&text("\"lo\"", ""));
    engine.reload();
    assert_eq!(client.get("/").text(), "127.0.0.1");
    // A source that this machine does not have is refused, and what was in use stays.
    engine.rewrite(&text("\"192.0.2.77\"", ""));
    engine.signal(Signal::HUP);
    holds("the reload is refused", || engine.stderr().join("\n").contains("no connection can come from 192.0.2.77"));
    assert_eq!(client.get("/").text(), "127.0.0.1");
    let mut none = Engine::spawn(&text("\"propylon-none\"", ""));
    let end = none.wait(Duration::from_secs(20));
    assert!(!end.status.success() && end.stderr.join("\n").contains("ip link shows them"), "{end:?}");
}

#[test]
fn relays_come_from_the_source_as_well() {
    let (server, _) = telling();
    let engine = Engine::start(&format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\nprotocol = \"tcp\"\n\
         [backend.app]\nservers = [\"{server}\"]\nsource = \"127.0.0.6\"\n\
         [[route]]\nlistener = \"plain\"\nbackend = \"app\"\n"
    ));
    assert_eq!(engine.client("plain").get("/").text(), "127.0.0.6");
}

#[test]
fn a_source_that_cannot_be_is_refused_with_a_cure() {
    for (server, source, told) in [
        ("127.0.0.1:80", "\"::1\"", "`source` has addresses of IPv6 alone; add an address of the server's family"),
        ("[::1]:80", "[\"127.0.0.1\"]", "`source` has addresses of IPv4 alone"),
        ("unix:/run/a.sock", "\"127.0.0.1\"", "remove `source`, or put the server into a backend of its own"),
        ("127.0.0.1:80", "\"0.0.0.0\"", "the system chooses without it"),
        ("127.0.0.1:80", "\"127.0.0.1:80\"", "write \"127.0.0.1\": the system chooses the port"),
        ("127.0.0.1:80", "[\"127.0.0.1\", \"eth1\"]", "an interface stands alone, not in a list"),
        ("127.0.0.1:80", "[]", "use 1 to 64"),
        ("127.0.0.1:80", "\"a-name-that-is-too-long\"", "is no address and no interface"),
        ("127.0.0.1:80", "\"::ffff:127.0.0.1\"", "write it as IPv4, \"127.0.0.1\""),
    ] {
        let said = check(&with(&[server], "", &format!("source = {source}")).replace("tls = \"public\"\n", ""));
        assert!(said.contains(told), "{server} {source}: {said}");
    }
}

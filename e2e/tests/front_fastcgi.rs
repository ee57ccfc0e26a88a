//! Servers that speak FastCGI: php-fpm, and one that says exactly what a story has it say.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use propylon_e2e::engine::with;
use propylon_e2e::frames::{DATA, END_HEADERS, END_STREAM, Http2, request};
use propylon_e2e::http::in_chunks;
use propylon_e2e::origin::dead;
use propylon_e2e::php::Php;
use propylon_e2e::program::{curl, run};
use propylon_e2e::{Ending, Engine, Origin, Peer, Scratch, holds};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
/// Tells what it is told.
const TELLS: &str = "<?php header('Content-Type: application/json'); header('X-Script: ' . basename(__FILE__));
    echo json_encode($_SERVER);";

fn config(servers: &[SocketAddr], root: &str, fastcgi: &str, more: &str) -> String {
    let backend = format!("protocol = \"fastcgi\"\nfastcgi = {{ root = \"{root}\"{fastcgi} }}\n{more}");
    with(servers, "", &backend)
}

fn engine(php: &Php, fastcgi: &str, more: &str) -> Engine {
    Engine::start(&config(&[php.address()], &php.root().display().to_string(), fastcgi, more))
}

/// Ways of clients to ask: arguments of curl, and a listener.
const WAYS: [(&str, &str); 3] = [("--http1.1", "plain"), ("--http1.1", "web"), ("--http2", "web")];

fn url(engine: &Engine, listener: &str, path: &str) -> String {
    format!("{}{path}", engine.url(listener))
}

// php-fpm.

#[test]
fn a_script_is_told_of_its_request_as_others_tell_it() {
    let php = Php::start(2);
    php.write("index.php", TELLS);
    let engine = engine(&php, ", params = { APP_ENV = \"test\", WHO = \"{client.ip}:{request.path}\" }", "");
    for (version, listener) in WAYS {
        let path = url(&engine, listener, "/blog/a%20b/?q=1&r=%2f");
        let said = curl(&[version, "--user", "ann:secret", "--header", "X-A: 1", "--header", "X_A: 2", &path]).ok();
        let told: Value = serde_json::from_str(&said.text()).unwrap_or_else(|_| panic!("{}", said.text()));
        let root = php.root().display().to_string();
        let is_tls = listener == "web";
        let expected = [
            ("REQUEST_METHOD", "GET"),
            ("REQUEST_URI", "/blog/a%20b/?q=1&r=%2f"),
            ("QUERY_STRING", "q=1&r=%2f"),
            ("SCRIPT_NAME", "/index.php"),
            ("SCRIPT_FILENAME", &format!("{root}/index.php")),
            ("DOCUMENT_ROOT", &root),
            ("DOCUMENT_URI", "/index.php"),
            ("PHP_SELF", "/index.php"),
            ("SERVER_PROTOCOL", if version == "--http2" { "HTTP/2.0" } else { "HTTP/1.1" }),
            ("GATEWAY_INTERFACE", "CGI/1.1"),
            ("REMOTE_ADDR", "127.0.0.1"),
            ("SERVER_ADDR", "127.0.0.1"),
            ("SERVER_PORT", &engine.address(listener).port().to_string()),
            ("SERVER_NAME", "localhost"),
            ("REQUEST_SCHEME", if is_tls { "https" } else { "http" }),
            ("PHP_AUTH_USER", "ann"),
            ("PHP_AUTH_PW", "secret"),
            ("HTTP_X_A", "1"),
            ("HTTP_X_FORWARDED_FOR", "127.0.0.1"),
            ("HTTP_X_FORWARDED_PROTO", if is_tls { "https" } else { "http" }),
            ("APP_ENV", "test"),
            ("WHO", "127.0.0.1:/blog/a%20b/"),
        ];
        for (name, value) in expected {
            assert_eq!(told[name], value, "{name} of {version} at {listener}");
        }
        assert_eq!(told.get("HTTPS").is_some(), is_tls);
        assert!(told.get("CONTENT_LENGTH").is_none_or(|length| length == ""), "{told}");
    }
}

#[test]
fn uploads_arrive_whole_and_those_of_unknown_length_within_a_bound() {
    let php = Php::start(2);
    let script =
        "<?php if (isset($_FILES['f'])) { echo $_FILES['f']['size'], ' ', md5_file($_FILES['f']['tmp_name']); }
        else { $in = file_get_contents('php://input'); 
          echo $_SERVER['CONTENT_LENGTH'], ' ', strlen($in), ' ', md5($in); }";
    php.write("index.php", script);
    let engine = engine(&php, ", body_buffer = \"300kB\"", "");
    let scratch = Scratch::new();
    let content: Vec<u8> = (0..3_000_001_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (large, small) = (scratch.write("large", &content), scratch.write("small", &content[..200_000]));
    let md5 = |path: &std::path::Path| {
        let mut command = Command::new("md5sum");
        command.arg(path);
        run(command, b"", LIMIT).ok().text().split(' ').next().expect("a digest").to_string()
    };
    let (large_md5, small_md5) = (md5(&large), md5(&small));
    let (large, small) = (format!("@{}", large.display()), format!("@{}", small.display()));
    for (version, listener) in WAYS {
        let path = url(&engine, listener, "/upload");
        let said = curl(&[version, "--form", &format!("f={large}"), &path]).ok();
        assert_eq!(said.text(), format!("3000001 {large_md5}"), "{version} at {listener}");
        let said = curl(&[version, "--data-binary", &large, "--header", "Expect: 100-continue", &path]).ok();
        assert_eq!(said.text(), format!("3000001 3000001 {large_md5}"), "{version} at {listener}");
        let said = curl(&[version, "--data-binary", &small, "--header", "Content-Length:", &path]);
        assert!(said.status.success() || version == "--http1.1", "{}", said.stderr);
        let length = if version == "--http2" { "Content-Length:" } else { "Transfer-Encoding: chunked" };
        let said = curl(&[version, "--data-binary", &small, "--header", length, &path]).ok();
        assert_eq!(said.text(), format!("200000 200000 {small_md5}"), "{version} at {listener}");
        curl(&[version, "--data-binary", &large, "--header", length, &path]);
    }
    // Not every curl has an answer for its user that comes before all is sent over HTTP/2.
    for (protocol, count) in [("HTTP/1.1", 2), ("HTTP/2", 1)] {
        let is_refused = |line: &&Value| line["protocol"] == protocol && line["status"] == 411;
        holds("requests are refused", || engine.log().iter().filter(is_refused).count() == count);
    }
    assert_eq!(engine.metric("propylon_client_faults_total", &[("reason", "length-required")]), 3.0);
    // A route that holds them knows their length.
    let text = config(&[php.address()], &php.root().display().to_string(), ", body_buffer = \"300kB\"", "");
    let holding = Engine::start(&format!("{text}buffer = {{ request = {{ memory = \"4MiB\", disk = 0 }} }}\n"));
    for (version, listener) in WAYS {
        let length = if version == "--http2" { "Content-Length:" } else { "Transfer-Encoding: chunked" };
        let path = url(&holding, listener, "/upload");
        let said = curl(&[version, "--data-binary", &large, "--header", length, &path]).ok();
        assert_eq!(said.text(), format!("3000001 3000001 {large_md5}"), "{version} at {listener}");
    }
}

#[test]
fn slow_uploads_of_unknown_length_take_no_process_before_they_are_whole() {
    let php = Php::start(1);
    php.write("index.php", "<?php echo $_SERVER['CONTENT_LENGTH'] ?? '', ' ', file_get_contents('php://input');");
    let engine = engine(&php, "", "circuit = { requests = 1 }");
    let chunked = "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n";
    let mut slow = [engine.client("plain"), engine.client("web")];
    for client in &mut slow {
        client.send(format!("{chunked}Expect: 100-continue\r\n\r\n"));
        assert!(client.read_head().starts_with("HTTP/1.1 100 Continue"));
        client.send("4\r\nhalf\r\n");
    }
    let mut http2 = Http2::start_tls(&engine);
    http2.headers(1, END_HEADERS, &request("POST", "/"));
    http2.send(DATA, 0, 1, b"half");
    // The one process, and the one request that the backend may have, are free meanwhile.
    for listener in ["plain", "web"] {
        let mut quick = engine.client(listener);
        let answer = quick.ask(format!("{chunked}\r\n5\r\nquick\r\n0\r\n\r\n"));
        assert_eq!((answer.status, answer.text()), (200, "5 quick".into()));
        assert_eq!(quick.get("/").status, 200);
    }
    assert_eq!(engine.metric("propylon_server_connections_total", &[]), 4.0);
    assert!(slow.iter_mut().all(|client| !client.has_something_now()));
    // A configuration that comes meanwhile changes nothing for them.
    engine.reload();
    for client in &mut slow {
        client.send("4\r\n way\r\n0\r\n\r\n");
        assert_eq!(client.read_response().text(), "8 half way");
        // Nothing is left on the client's connection.
        assert_eq!(client.get("/").status, 200);
    }
    http2.send(DATA, END_STREAM, 1, b" way");
    assert_eq!(http2.response(1).1, b"8 half way");
    // A client that goes has cost nobody anything.
    let mut client = engine.client("plain");
    client.send(format!("{chunked}\r\n4\r\nhalf\r\n"));
    client.finish();
    holds("it is noticed", || engine.log().iter().any(|line| line["fault"] == "client-closed"));
    assert_eq!(engine.metric("propylon_server_connections_total", &[]), 9.0);
}

#[test]
fn long_responses_stream_and_a_client_that_leaves_ends_its_script() {
    let php = Php::start(2);
    let script = "<?php if ($_GET['n'] ?? 0) { for ($i = 0; $i < $_GET['n']; $i++) echo str_repeat(chr(65 + $i % 26), 65536); exit; }
        ignore_user_abort(false); while (ob_get_level()) ob_end_flush();
        register_shutdown_function(function () { touch(__DIR__ . '/gone'); });
        for (;;) { echo str_repeat('x', 10000); flush(); }";
    php.write("index.php", script);
    let engine = engine(&php, "", "");
    for (version, listener) in WAYS {
        let scratch = Scratch::new();
        let file = scratch.join("body").display().to_string();
        curl(&[version, "--output", &file, &url(&engine, listener, "/?n=600")]).ok();
        let body = std::fs::read(&file).expect("a file");
        assert_eq!(body.len(), 600 * 65_536);
        let whole =
            body.chunks(65_536).enumerate().all(|(i, part)| part.iter().all(|byte| *byte == 65 + (i % 26) as u8));
        assert!(whole, "{version} at {listener}");
    }
    let mut client = engine.client("plain");
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    client.read_head();
    client.read_exact(100_000);
    drop(client);
    holds("the script ends", || php.root().join("gone").exists());
}

#[test]
fn scripts_that_are_slow_fail_or_say_nothing_are_answered_for() {
    let php = Php::start(3);
    let script = "<?php switch ($_GET['w']) {
        case 'slow': sleep(20); break;
        case 'fatal': error_log(str_repeat('oh', 5000) . \"\\n\"); nothing_of_this_name(); break;
        case 'none': http_response_code(204); break;
        case 'not': http_response_code(304); break;
        case 'away': header('Location: /there'); break;
        case 'early': http_response_code(403); header('Connection: close'); header('Transfer-Encoding: x'); echo 'no'; break;
        case 'head': header('X-Method: ' . $_SERVER['REQUEST_METHOD']); echo 'a body'; break; }";
    php.write("index.php", script);
    let pages = "error_pages = { 5xx = { html = \"5xx.html\" } }\nerror_format = \"html\"\nintercept_errors = true\n";
    let mut text =
        config(&[php.address()], &php.root().display().to_string(), "", "timeouts = { first_byte = \"300ms\" }");
    text.push_str(pages);
    let engine = Engine::start_beside(&[("5xx.html", "<p>our page</p>")], &text);
    let mut client = engine.client("plain");
    let answer = client.get("/?w=none");
    assert_eq!((answer.status, answer.body.len()), (204, 0));
    let answer = client.get("/?w=not");
    assert_eq!((answer.status, answer.body.len()), (304, 0));
    let answer = client.get("/?w=away");
    assert_eq!((answer.status, answer.field("Location")), (302, Some("/there")));
    client.send("HEAD /?w=head HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let head = client.read_head();
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("X-Method: HEAD"), "{head}");
    let answer = client.get("/?w=head");
    assert_eq!((answer.text(), answer.field("Content-Length")), ("a body".into(), Some("6")));
    let answer = client.get("/?w=fatal");
    assert_eq!((answer.status, answer.text()), (500, "<p>our page</p>".into()));
    let answer = client.get("/?w=slow");
    assert_eq!((answer.status, answer.text()), (504, "<p>our page</p>".into()));
    let mut client = engine.client("plain");
    let answer = client.ask("POST /?w=early HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!((answer.status, answer.text(), answer.field("Connection")), (403, "no".into(), None));
    // Complaints of PHP go to the log, shortened.
    let complaint = || engine.stderr().into_iter().find(|line| line.contains("complains"));
    holds("a line of the log", || complaint().is_some());
    let line = complaint().expect("a line");
    assert!(line.contains("ohoh") && line.len() < 1_400, "{line}");
}

#[test]
fn what_somebody_has_uploaded_is_not_run() {
    // PHP by itself would: it goes up from a path that is no file to one that is.
    let php = Php::with(2, "security.limit_extensions =\nphp_admin_value[cgi.fix_pathinfo] = 1");
    php.write("index.php", TELLS);
    php.write("upload/x.jpg", "<?php echo 'RUN: ', getcwd();");
    php.write("upload/y.php", "<?php echo 'RUN';");
    php.write("admin/tool.php", TELLS);
    let script = |engine: &Engine, path: &str| {
        let answer = engine.client("plain").get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        let told: Value = serde_json::from_slice(&answer.body).unwrap_or_else(|_| panic!("{path}: {}", answer.text()));
        (told["SCRIPT_NAME"].to_string(), told["PATH_INFO"].as_str().unwrap_or_default().to_string())
    };
    let index = || ("\"/index.php\"".to_string(), String::new());
    let holes = ["/upload/x.jpg/y.php", "/upload/x.jpg%2fy.php", "/upload/x.jpg", "/upload/x.jpg/index.php"];
    for scripts in ["", ", scripts = [\"/admin/*.php\"]", ", scripts = \"any\""] {
        let engine = Engine::start(
            &config(&[php.address()], &php.root().display().to_string(), scripts, "")
                .replace("bind = \"127.0.0.1:0\"", "bind = \"127.0.0.1:0\"\npaths = { allow = [\"%2f\"] }"),
        );
        for path in holes {
            assert_eq!(script(&engine, path), index(), "{path} {scripts}");
        }
        if scripts != ", scripts = \"any\"" {
            assert_eq!(script(&engine, "/upload/y.php"), index());
        }
        let tool = ("\"/admin/tool.php\"".to_string(), "/a/b".to_string());
        assert_eq!(script(&engine, "/admin/tool.php/a/b"), if scripts.is_empty() { index() } else { tool });
    }
}

#[test]
fn kept_connections_are_used_again_and_others_end_with_their_request() {
    let mut php = Php::start(2);
    php.write("index.php", "<?php echo getmypid(), ' ', $_SERVER['REMOTE_PORT'];");
    let once = engine(&php, "", "");
    let mut client = once.client("plain");
    (0..5).for_each(|_| assert_eq!(client.get("/").status, 200));
    assert_eq!(once.metric("propylon_server_connections_total", &[]), 5.0);
    drop(client);
    let kept = engine(&php, ", keep = true", "max_idle = 1");
    let mut client = kept.client("plain");
    (0..5).for_each(|_| assert_eq!(client.get("/").status, 200));
    let post = "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 2\r\n\r\nhi";
    (0..3).for_each(|_| assert_eq!(client.ask(post).status, 200));
    assert_eq!(kept.metric("propylon_server_connections_total", &[]), 1.0);
    // A server that has ended since is found out, and the request is repeated on a new connection.
    php.kill();
    php.restart();
    assert_eq!(client.get("/").status, 200);
    assert_eq!(kept.metric("propylon_server_connections_total", &[]), 2.0);
}

#[test]
fn a_pool_that_may_have_one_connection_serves_all_and_a_reload_changes_scripts() {
    let php = Php::start(1);
    php.write("index.php", "<?php usleep(20000); echo 'index';");
    php.write("app.php", "<?php echo 'app';");
    let root = php.root().display().to_string();
    let limited = |fastcgi: &str| {
        config(&[php.address()], &root, fastcgi, "").replace(
            &format!("servers = [\"{}\"]", php.address()),
            &format!("servers = [{{ address = \"{}\", max_connections = 1 }}]", php.address()),
        )
    };
    let engine = Engine::start(&limited(""));
    let clients: Vec<_> = (0..12)
        .map(|_| {
            let mut client = engine.client("plain");
            std::thread::spawn(move || client.get("/").text())
        })
        .collect();
    clients.into_iter().for_each(|client| assert_eq!(client.join().expect("a client"), "index"));
    engine.rewrite(&limited(", index = \"app.php\", keep = true"));
    engine.reload();
    assert_eq!(engine.client("plain").get("/").text(), "app");
    assert_eq!(engine.client("web").get("/").text(), "app");
}

#[test]
fn the_ping_of_php_fpm_tells_whether_it_is_up() {
    let mut php = Php::start(1);
    php.write("index.php", "<?php echo 'here';");
    let health =
        "health = { path = \"/ping\", body = \"pong\", interval = \"100ms\", timeout = \"2s\", fall = 1, rise = 1 }";
    let engine = engine(&php, "", health);
    let up = |value: f64| engine.metric_reaches("propylon_server_up", &[], value);
    up(1.0);
    assert_eq!(engine.client("plain").get("/").text(), "here");
    php.kill();
    up(0.0);
    php.restart();
    up(1.0);
    // A script that the root does not have is no healthy one.
    let text = config(&[php.address()], &php.root().display().to_string(), "", &health.replace("/ping", "/no.php"));
    engine.rewrite(&text);
    engine.reload();
    up(0.0);
}

#[test]
fn responses_are_compressed_on_their_way_for_those_who_like_it() {
    let php = Php::start(1);
    php.write("index.php", "<?php header('Content-Type: text/html'); echo str_repeat('<p>again</p>', 20000);");
    let mut text = config(&[php.address()], &php.root().display().to_string(), "", "");
    text.push_str("compress = { busy_max = 100 }\n");
    let engine = Engine::start(&text);
    for (version, listener) in WAYS {
        let said = curl(&[version, "--compressed", "--include", &url(&engine, listener, "/")]).ok();
        let text = said.text();
        assert!(text.to_lowercase().contains("content-encoding: "), "{}", &text[..300]);
        assert_eq!(text.matches("<p>again</p>").count(), 20_000);
    }
}

// A server that says exactly what it is told to.

/// Reads records up to the end of the request's body. Returns all of them; `None`: nobody asks any more.
fn read_request(peer: &mut Peer) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let header = peer.read_exact(8)?;
        let length = usize::from(u16::from_be_bytes([header[4], header[5]])) + usize::from(header[6]);
        all.extend_from_slice(&header);
        if length > 0 {
            all.extend_from_slice(&peer.read_exact(length)?);
        }
        if header[1] == 5 && length == 0 {
            return Some(all);
        }
    }
}

fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = (content.len() as u16).to_be_bytes();
    [&[1, kind, 0, 1, high, low, 3, 0][..], content, b"pad"].concat()
}

fn out(content: &str) -> Vec<u8> {
    record(6, content.as_bytes())
}

fn end(status: u8) -> Vec<u8> {
    [1, 3, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, status, 0, 0, 0].to_vec()
}

/// A server that answers every request of every connection with the same bytes.
fn server(answer: Vec<u8>) -> Origin {
    Origin::scripted(move |peer| {
        while read_request(peer).is_some() {
            peer.send(&answer);
        }
    })
}

fn engine_of(servers: &[&Origin], fastcgi: &str, more: &str) -> Engine {
    let servers: Vec<SocketAddr> = servers.iter().map(|server| server.address()).collect();
    Engine::start(&config(&servers, "/srv", fastcgi, more))
}

#[test]
fn a_request_is_these_records() {
    let server = Origin::scripted(|peer| {
        let request = read_request(peer).expect("a request");
        let mut told = out("Content-Type: x/y\n\n");
        request.chunks(60_000).for_each(|part| told.extend(record(6, part)));
        peer.send([told, end(0)].concat());
    });
    let engine = engine_of(&[&server], ", keep = true", "via = true");
    let mut client = engine.client("plain");
    let body = "b".repeat(70_000);
    let answer = client
        .ask(format!("PUT /a?b HTTP/1.1\r\nHost: a.example:80\r\nProxy: x\r\nContent-Length: 70000\r\n\r\n{body}"));
    let said = answer.body;
    // FCGI_BEGIN_REQUEST as a responder that keeps its connection, and then parameters.
    assert_eq!(said[..16], [1, 1, 0, 1, 0, 8, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]);
    assert_eq!(said[16..20], [1, 4, 0, 1]);
    let length = usize::from(u16::from_be_bytes([said[20], said[21]]));
    let params = String::from_utf8_lossy(&said[24..24 + length]).into_owned();
    for pair in
        ["\u{e}\u{3}REQUEST_METHODPUT", "\u{e}\u{5}CONTENT_LENGTH70000", "\u{b}\u{a}SCRIPT_NAME/index.php", "HTTP_VIA"]
    {
        assert!(params.contains(pair), "{pair:?} in {params:?}");
    }
    assert!(!params.contains("HTTP_PROXY") && !params.contains("HTTP_CONNECTION"), "{params:?}");
    let mut rest = &said[24 + length..];
    assert_eq!(rest[..8], [1, 4, 0, 1, 0, 0, 0, 0]);
    rest = &rest[8..];
    let mut sent = 0;
    while rest[..8] != [1, 5, 0, 1, 0, 0, 0, 0] {
        assert_eq!(rest[..4], [1, 5, 0, 1]);
        let length = usize::from(u16::from_be_bytes([rest[4], rest[5]]));
        assert!(rest[8..8 + length].iter().all(|byte| *byte == b'b'));
        sent += length;
        rest = &rest[8 + length..];
    }
    assert_eq!((sent, rest.len()), (70_000, 8));
}

#[test]
fn a_response_is_whole_in_whatever_pieces_it_comes() {
    let server = Origin::scripted(|peer| {
        while read_request(peer).is_some() {
            let all =
                [out("Status: 201 Made\nX-A: b\n"), record(7, b"oh"), out("\n"), out("hello"), record(6, b""), end(0)];
            for byte in all.concat() {
                peer.send([byte]);
            }
        }
    });
    let engine = engine_of(&[&server], ", keep = true", "");
    for listener in ["plain", "web"] {
        let mut client = engine.client(listener);
        for _ in 0..3 {
            let answer = client.get("/");
            assert_eq!((answer.status, answer.text(), answer.field("X-A")), (201, "hello".into(), Some("b")));
            // The end of the request comes behind that of its response, which the client has.
            engine.metric_reaches("propylon_server_connections_idle", &[], 1.0);
        }
    }
    let said = curl(&["--http2", "--include", &url(&engine, "web", "/")]).ok().text();
    assert!(said.starts_with("HTTP/2 201") && said.ends_with("hello"), "{said}");
    assert_eq!(server.connections(), 1);
}

#[test]
fn an_application_that_is_overloaded_has_not_seen_the_request() {
    for status in [1, 2] {
        let (busy, idle) = (server(end(status)), server([out("\nhere"), end(0)].concat()));
        let engine = engine_of(&[&busy, &idle], "", "balance = \"first\"");
        let post = "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 2\r\n\r\nhi";
        let answer = engine.client("plain").ask(post);
        assert_eq!((answer.status, answer.text()), (200, "here".into()));
        assert_eq!(engine.metric("propylon_server_faults_total", &[("reason", "application-overloaded")]), 1.0);
        // With nowhere else to go it is said, and when to come again.
        let alone = engine_of(&[&busy], "", "");
        let answer = alone.client("plain").ask(post);
        assert_eq!((answer.status, answer.field("Retry-After")), (503, Some("1")));
        let said = curl(&["--http2", "--output", "/dev/null", "--write-out", "%{http_code}", &url(&alone, "web", "/")]);
        assert_eq!(said.text(), "503");
    }
}

/// A server that says how long the body of a request was.
fn counting() -> Origin {
    Origin::scripted(|peer| {
        while let Some(request) = read_request(peer) {
            let (mut at, mut count) = (0, 0);
            while at < request.len() {
                let length = usize::from(u16::from_be_bytes([request[at + 4], request[at + 5]]));
                count += if request[at + 1] == 5 { length } else { 0 };
                at += 8 + length + usize::from(request[at + 6]);
            }
            peer.send([out(&format!("\n{count}")), end(0)].concat());
        }
    })
}

/// A server that closes where it should answer.
fn rude() -> Origin {
    Origin::scripted(|peer| {
        read_request(peer);
        peer.close();
    })
}

#[test]
fn a_body_of_unknown_length_is_sent_again_and_to_the_fallback_as_often_as_it_takes() {
    let (rude, good) = (rude(), counting());
    let http = Origin::answering(|_| b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhttp".to_vec());
    let mut text = config(&[rude.address(), good.address()], "/srv", "", "balance = \"first\"");
    for (path, first, second) in [("/kinds", "gone", "http"), ("/same", "gone", "app"), ("/turned", "none", "app")] {
        text.push_str(&format!("[[route]]\npath = \"{path}\"\nbackend = \"{first}\"\nfallback = \"{second}\"\n"));
    }
    text.push_str(&format!(
        "[backend.gone]\nservers = [\"{}\"]\nprotocol = \"fastcgi\"\nfastcgi = {{ root = \"/srv\" }}\n\
         [backend.none]\nservers = [\"{}\"]\n[backend.http]\nservers = [\"{}\"]\n",
        dead(),
        dead(),
        http.address()
    ));
    let engine = Engine::start(&text);
    let body = vec![b'b'; 100_000];
    let pieces: Vec<&[u8]> = body.chunks(9_999).collect();
    let scratch = Scratch::new();
    let data = format!("@{}", scratch.write("body", &body).display());
    for path in ["/", "/same", "/turned", "/kinds"] {
        let ask = format!("PUT {path} HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n");
        let expected = if path == "/kinds" { "http" } else { "100000" };
        let mut client = engine.client("plain");
        for _ in 0..2 {
            let answer = client.ask([ask.as_bytes(), &in_chunks(&pieces, "X-Trailer: 1\r\n")].concat());
            assert_eq!((answer.status, answer.text()), (200, expected.into()), "{path}");
        }
        let put = ["--http2", "--request", "PUT", "--data-binary", &data, "--header", "Content-Length:"];
        let said = curl(&[&put[..], &[&url(&engine, "web", path)]].concat()).ok().text();
        assert_eq!(said, expected, "{path}");
    }
    assert!(rude.connections() > 0 && http.received_text().contains("Content-Length: 100000"));
}

#[test]
fn a_body_that_there_is_no_room_for_asks_no_server() {
    let server = counting();
    let mut text = config(&[server.address()], "/srv", "", "");
    text.push_str("[[route]]\npath = \"/held\"\nbackend = \"app\"\nbuffer = { request = { disk = 0 } }\n");
    let engine = Engine::start(&format!("[process]\nbuffer_memory = \"48KiB\"\n{text}"));
    let body = vec![b'b'; 200_000];
    let pieces: Vec<&[u8]> = body.chunks(9_999).collect();
    for path in ["/", "/held"] {
        let ask = format!("POST {path} HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n");
        let answer = engine.client("plain").ask([ask.as_bytes(), &in_chunks(&pieces, "")].concat());
        assert_eq!((answer.status, answer.field("Retry-After")), (503, Some("1")), "{path}: {}", answer.text());
        assert!(answer.text().contains("buffer-failed"), "{}", answer.text());
    }
    assert_eq!(engine.metric("propylon_held_bodies_exhausted_total", &[]), 2.0);
    assert_eq!(server.connections(), 0);
    // Memory is given back, and known lengths need no room.
    let ask = "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n";
    let answer = engine.client("plain").ask([ask.as_bytes(), &in_chunks(&pieces[..3], "")].concat());
    assert_eq!(answer.text(), "29997");
    let ask = "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 200000\r\n\r\n";
    assert_eq!(engine.client("plain").ask([ask.as_bytes(), &body].concat()).text(), "200000");
}

#[test]
fn bytes_behind_a_whole_response_cost_its_client_nothing_and_the_server_its_connection() {
    let heads = ["\n", "Content-Length: 5\n\n"];
    let junk = [b"junk".to_vec(), out("more"), b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), end(0)];
    for (head, junk) in heads.into_iter().flat_map(|head| junk.iter().map(move |junk| (head, junk.clone()))) {
        let said = format!("{head} and {:?}", String::from_utf8_lossy(&junk));
        let server = server([out(head), out("hello"), record(6, b""), end(0), junk].concat());
        let engine = engine_of(&[&server], ", keep = true", "");
        let mut client = engine.client("plain");
        (0..3).for_each(|_| assert_eq!(client.get("/").text(), "hello", "{said}"));
        let http2 = ["--http2", &url(&engine, "web", "/")];
        assert_eq!(curl(&http2).ok().text(), "hello", "{said}");
        assert_eq!(server.connections(), 4, "{said}");
        assert_eq!(engine.metric("propylon_server_faults_total", &[("reason", "excess-data")]), 4.0, "{said}");
    }
    // The same behind a response that has ended, and before its request has.
    let server = server([out("\nhello"), record(6, b""), out("more"), end(0)].concat());
    let engine = engine_of(&[&server], ", keep = true", "");
    let mut client = engine.client("plain");
    (0..3).for_each(|_| assert_eq!(client.get("/").text(), "hello"));
    assert_eq!(server.connections(), 3);
}

#[test]
fn servers_that_break_the_protocol_are_not_believed() {
    let bad: [(&str, Vec<u8>); 12] = [
        ("HTTP", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec()),
        ("nothing but an end", end(0)),
        ("a role that is not known", end(3)),
        ("half a head", [out("Status: 200\n"), end(0)].concat()),
        ("no head", [out("hello\n\n"), end(0)].concat()),
        ("a switch", [out("Status: 101\nUpgrade: x\n\n"), end(0)].concat()),
        ("an interim response", [out("Status: 103\n\n"), end(0)].concat()),
        ("a status that is none", [out("Status: abc\n\n"), end(0)].concat()),
        ("two lengths", [out("Content-Length: 1\nContent-Length: 2\n\nab"), end(0)].concat()),
        ("another's record", [1, 6, 0, 2, 0, 1, 0, 0, b'x'].to_vec()),
        ("a record of a web server's", [1, 5, 0, 1, 0, 0, 0, 0].to_vec()),
        ("an endless head", (0..9).flat_map(|_| out(&format!("X: {}\n", "x".repeat(8_000)))).collect()),
    ];
    for (what, answer) in bad {
        let server = server(answer);
        let engine = engine_of(&[&server], "", "");
        let mut client = engine.client("plain");
        assert_eq!(client.get("/").status, 502, "{what}");
        let said =
            curl(&["--http2", "--output", "/dev/null", "--write-out", "%{http_code}", &url(&engine, "web", "/")]);
        assert_eq!(said.text(), "502", "{what}");
        // The engine is none the worse for it, and neither is the client's connection.
        assert_eq!(client.get("/").status, 502, "{what}");
    }
}

#[test]
fn a_body_that_is_cut_short_is_not_taken_for_whole_and_one_that_is_too_long_is_cut() {
    for cut in [out("Content-Length: 10\n\nhello"), out("\nhello")] {
        let server = Origin::scripted(move |peer| {
            read_request(peer).expect("a request");
            peer.send(&cut);
            peer.close();
        });
        let engine = engine_of(&[&server], "", "");
        let mut client = engine.client("plain");
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        let (bytes, ending) = client.read_to_end();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(text.contains("hello") && !text.ends_with("0\r\n\r\n"), "{ending:?} {text}");
        assert_eq!(engine.metric("propylon_server_faults_total", &[("reason", "body-cut-short")]), 1.0);
        let said = curl(&["--http2", &url(&engine, "web", "/")]);
        assert!(!said.status.success(), "{}", said.text());
    }
    let server = server([out("Content-Length: 5\n\nhello and more"), end(0)].concat());
    let engine = engine_of(&[&server], ", keep = true", "");
    let mut client = engine.client("plain");
    (0..3).for_each(|_| assert_eq!(client.get("/").text(), "hello"));
    // Records tell where it ends: the connection is as good as before.
    assert_eq!(server.connections(), 1);
    engine.metric_reaches("propylon_server_faults_total", &[("reason", "excess-data")], 3.0);
}

#[test]
fn a_script_that_works_on_does_not_keep_its_client() {
    let go = Arc::new(AtomicBool::new(false));
    let may_go = Arc::clone(&go);
    let server = Origin::scripted(move |peer| {
        while read_request(peer).is_some() {
            peer.send(out("Content-Length: 5\n\nhello"));
            holds("the client has its answer", || may_go.load(Ordering::Acquire));
            peer.send(end(0));
        }
    });
    let engine = engine_of(&[&server], ", keep = true", "");
    let mut client = engine.client("plain");
    assert_eq!(client.get("/").text(), "hello");
    go.store(true, Ordering::Release);
    holds("the connection is idle", || engine.metric("propylon_server_connections_idle", &[]) == 1.0);
    assert_eq!(client.get("/").text(), "hello");
    assert_eq!(server.connections(), 1);
}

#[test]
fn an_early_answer_reaches_a_client_that_still_sends() {
    let server = Origin::scripted(|peer| {
        peer.read_exact(16);
        peer.send([out("Status: 403\nContent-Length: 2\n\nno"), end(0)].concat());
        peer.await_close(LIMIT);
    });
    let engine = engine_of(&[&server], ", keep = true", "");
    let mut client = engine.client("plain");
    client.send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1000000\r\n\r\nonly this");
    let answer = client.read_response();
    assert_eq!((answer.status, answer.text()), (403, "no".into()));
    assert_eq!(client.ending(), Ending::Clean);
}

#[test]
fn a_server_is_told_that_its_client_has_gone() {
    let (asked, told) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (is_asked, is_told) = (Arc::clone(&asked), Arc::clone(&told));
    let server = Origin::scripted(move |peer| {
        read_request(peer).expect("a request");
        is_asked.store(true, Ordering::Release);
        // FCGI_ABORT_REQUEST
        let word = peer.read_exact(8);
        is_told.store(word.as_deref() == Some(&[1, 2, 0, 1, 0, 0, 0, 0]), Ordering::Release);
    });
    let engine = engine_of(&[&server], ", keep = true", "");
    let mut client = engine.client("plain");
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    holds("the server has the request", || asked.load(Ordering::Acquire));
    drop(client);
    holds("the server has been told", || told.load(Ordering::Acquire));
    holds("nothing is left", || engine.metric("propylon_server_connections", &[]) == 0.0);
}

#[test]
fn clients_that_wait_are_told_to_send_and_paths_that_lead_nowhere_good_are_refused() {
    let server = server([out("\nhere"), end(0)].concat());
    let allowing = "paths = { allow = [\"%2f\", \"%00\"] }";
    let text = config(&[server.address()], "/srv", ", scripts = \"any\"", "")
        .replace("bind = \"127.0.0.1:0\"", &format!("bind = \"127.0.0.1:0\"\n{allowing}"));
    let engine = Engine::start(&text);
    let mut client = engine.client("plain");
    client.send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert!(client.read_head().starts_with("HTTP/1.1 100 Continue"));
    client.send("hello");
    assert_eq!(client.read_response().text(), "here");
    // Also where the first server that was tried is not there.
    let nobody = "127.0.0.1:1".parse().expect("an address");
    let text = config(&[nobody, server.address()], "/srv", "", "");
    let text = text.replace("protocol = \"fastcgi\"", "protocol = \"fastcgi\"\nbalance = \"first\"");
    let second = Engine::start(&text);
    let mut client = second.client("plain");
    client.send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert!(client.read_head().starts_with("HTTP/1.1 100 Continue"));
    for (path, fault) in [("/a%00.php", "bad-script-path"), ("/a/..%2fx.php", "hidden-segment")] {
        let answer = engine.client("plain").get(path);
        assert_eq!((answer.status, answer.text().contains(fault)), (400, true), "{path}: {}", answer.text());
    }
}

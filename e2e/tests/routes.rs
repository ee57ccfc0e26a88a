//! Where requests go: the most specific route wins, and some are answered by the engine itself.

use propylon_e2e::engine::simple;
use propylon_e2e::external::External;
use propylon_e2e::frames::{END_STREAM, Http2, request};
use propylon_e2e::program::curl;
use propylon_e2e::{Ending, Engine, Origin, holds};
use rustix::process::Signal;

fn named(name: &'static str) -> Origin {
    Origin::answering(move |_| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len()).into_bytes())
}

#[test]
fn the_most_specific_route_wins_whatever_the_order() {
    let origins: Vec<Origin> = ["any", "api", "exact", "suffix", "deep", "other"].map(named).into();
    let mut config = "[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n\
        [listener.side]\nbind = \"127.0.0.1:0\"\n"
        .to_owned();
    for (name, origin) in ["any", "api", "exact", "suffix", "deep", "other"].iter().zip(&origins) {
        config += &format!("[backend.{name}]\nservers = [\"{}\"]\n", origin.address());
    }
    let routes = [
        "listener = \"web\"\nbackend = \"any\"",
        "listener = \"web\"\nhost = \"shop.test\"\npath = \"/api/\"\nbackend = \"api\"",
        "listener = \"web\"\nhost = \"shop.test\"\npath = { exact = \"/api/one\" }\nbackend = \"exact\"",
        "listener = \"web\"\nhost = \"*.shop.test\"\nbackend = \"suffix\"",
        "listener = \"web\"\nhost = \"deep.er.shop.test\"\nbackend = \"deep\"",
        "listener = \"side\"\nhost = \"shop.test\"\nbackend = \"other\"",
    ];
    let asked = [
        ("web", "shop.test", "/", "any"),
        ("web", "SHOP.test:1234", "/api/x?y", "api"),
        ("web", "shop.test.", "/api/x", "api"),
        ("web", "shop.test", "/api", "any"),
        ("web", "shop.test", "/api/one", "exact"),
        ("web", "shop.test", "/api/one?query", "exact"),
        ("web", "shop.test", "/api/one/more", "api"),
        ("web", "a.shop.test", "/api/one", "suffix"),
        ("web", "a.b.shop.test", "/", "suffix"),
        ("web", "deep.er.shop.test", "/", "deep"),
        ("web", "ashop.test", "/", "any"),
        ("web", "elsewhere.test", "/", "any"),
        ("side", "shop.test", "/", "other"),
    ];
    for reversed in [false, true] {
        let mut ordered = routes.to_vec();
        if reversed {
            ordered.reverse();
        }
        let text: String = ordered.iter().map(|route| format!("[[route]]\n{route}\n")).collect();
        let engine = Engine::start(&format!("{config}{text}"));
        for (listener, host, path, expected) in asked {
            let response = engine.client(listener).ask(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_eq!(response.text(), expected, "{listener} {host} {path}");
        }
        let response = engine.client("side").get("/");
        assert_eq!(response.text(), "other");
        let mut client = engine.client("side");
        let response = client.ask("GET /lost HTTP/1.1\r\nHost: elsewhere.test\r\n\r\n");
        assert_eq!((response.status, response.text().as_str()), (404, "404 Not Found: no-route\n"));
        assert_eq!(client.get("/").text(), "other", "a request that fits no route does not end the connection");
        assert_eq!(engine.logged_path("/lost")["fault"], "no-route");
    }
}

const CONDITIONS: &str = r#"
[listener.web]
bind = "127.0.0.1:0"
tls = "public"
[listener.told]
bind = "127.0.0.1:0"
accept_proxy_protocol = true
trusted_proxies = ["127.0.0.1"]
[listener.behind]
bind = "127.0.0.1:0"
forwarded = "append"
trusted_proxies = ["127.0.0.0/8"]
[[route]]
path = "/api"
respond = { body = "plain" }
[[route]]
path = "/api"
match = { method = ["POST", "PUT"] }
respond = { body = "write" }
[[route]]
path = "/api"
match = { header = { X-Canary = "yes" } }
respond = { body = "canary" }
[[route]]
path = "/api"
match = { header = { X-Canary = "yes", X-User = { regex = "^[a-c]" } } }
respond = { body = "canary of a to c" }
[[route]]
path = "/api"
match = { query = { version = { prefix = "2" } } }
respond = { body = "two" }
[[route]]
path = "/api"
match = { cookie = { beta = { present = true } } }
respond = { body = "beta" }
[[route]]
path = { regex = '^/api/[0-9]+[.]php$' }
respond = { body = "php" }
[[route]]
path = "/admin"
match = { source = ["192.0.2.0/24", "2001:db8::/32"] }
respond = { body = "admin" }
[[route]]
path = "/admin"
respond = { status = 403, body = "outside" }
[[route]]
path = "/hosts"
match = { host = { regex = '^(app[0-9]+[.]test|localhost)$' } }
respond = { body = "of that kind" }
[[route]]
path = "/hosts"
respond = { body = "other" }
"#;

#[test]
fn conditions_decide_between_routes_of_one_path() {
    let engine = Engine::start(CONDITIONS);
    let asked = [
        ("GET", "/api", "", "plain"),
        ("POST", "/api", "", "write"),
        ("POST", "/api", "X-Canary: yes", "write"),
        ("post", "/api", "", "plain"),
        ("GET", "/api/x", "x-canary: yes", "canary"),
        ("GET", "/api/x", "x-canary: yes, no", "plain"),
        ("GET", "/api/x", "x-canary: yes\r\nx-user: beth", "canary of a to c"),
        ("GET", "/api/x", "x-canary: yes\r\nx-user: dora", "canary"),
        ("GET", "/api/x?a=1&versio%6e=2%2E1", "", "two"),
        ("GET", "/api/x?version=1&version=2", "", "plain"),
        ("GET", "/api/x?version=2", "Cookie: a=b; beta=", "two"),
        ("GET", "/api/x", "Cookie: a=b; beta=", "beta"),
        ("GET", "/api/%31%32.php", "X-Canary: yes", "php"),
        ("GET", "/api/12.php/", "", "plain"),
        ("GET", "//admin/./x", "", "outside"),
    ];
    let mut plain = engine.client("behind");
    for (method, path, fields, wanted) in asked {
        let lines = if fields.is_empty() { String::new() } else { format!("{fields}\r\n") };
        let request = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n{lines}\r\n");
        assert_eq!(plain.ask(&request).text(), wanted, "{request}");
    }
    // The same over HTTP/2, by a client of others.
    let url = |path: &str| format!("https://localhost:{}{path}", engine.address("web").port());
    for (method, path, fields, wanted) in asked.into_iter().filter(|(method, ..)| *method != "post") {
        let url = url(path);
        let mut arguments = vec!["--http2", "--path-as-is", "-X", method, &url];
        arguments.extend(fields.split("\r\n").filter(|field| !field.is_empty()).flat_map(|field| ["-H", field]));
        assert_eq!(curl(&arguments).text(), wanted, "{method} {path}");
    }
    assert_eq!(curl(&["--http2", &url("/hosts")]).text(), "of that kind");
    for (host, wanted) in [("app7.test", "of that kind"), ("APP12.test.:81", "of that kind"), ("xapp7.test", "other")] {
        assert_eq!(plain.ask(format!("GET /hosts HTTP/1.1\r\nHost: {host}\r\n\r\n")).text(), wanted, "{host}");
    }
    for (client, wanted) in [("192.0.2.77", "admin"), ("198.51.100.1", "outside")] {
        let header = format!("PROXY TCP4 {client} 127.0.0.1 4000 80\r\n");
        let text = format!("{header}GET /admin HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(engine.client("told").ask(&text).text(), wanted);
    }
    for (chain, wanted) in [
        ("192.0.2.1", "admin"),
        ("192.0.2.1, 198.51.100.1", "outside"),
        ("198.51.100.1, 2001:db8::1, 127.0.0.9", "admin"),
        ("192.0.2.1, unknown", "outside"),
    ] {
        let request = format!("GET /admin HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {chain}\r\n\r\n");
        assert_eq!(plain.ask(&request).text(), wanted, "{chain}");
    }
    // Proxies may let a client's field through that some servers take for theirs.
    let claim = "X-Forwarded-For: 198.51.100.1\r\nX_Forwarded_For: 192.0.2.1";
    assert_eq!(plain.ask(format!("GET /admin HTTP/1.1\r\nHost: a\r\n{claim}\r\n\r\n")).text(), "outside");
}

const ACTIONS: &str = r#"
[listener.web]
bind = "127.0.0.1:0"
tls = "public"
monitor_path = "/up"
[listener.plain]
bind = "127.0.0.1:0"
monitor_path = "/up"
[[route]]
listener = "plain"
redirect = { scheme = "https" }
[[route]]
listener = "web"
path = { exact = "/robots.txt" }
respond = { status = 200, body = "User-agent: *\n" }
[[route]]
listener = "web"
path = "/gone/"
respond = { status = 410, body = "<p>gone</p>", content_type = "text/html" }
[[route]]
listener = "web"
path = { exact = "/empty" }
respond = { status = 204 }
[[route]]
listener = "web"
path = { exact = "/old" }
redirect = { status = 301, host = "new.test", port = 8443, path = "/new?x=1" }
[[route]]
listener = "web"
path = "/moved/"
redirect = { host = "new.test" }
"#;

#[test]
fn redirects_send_the_client_elsewhere() {
    let engine = Engine::start(ACTIONS);
    let location = |listener: &str, request: &str, status: u16| {
        let response = engine.client(listener).ask(request);
        assert_eq!(response.status, status);
        response.field("Location").expect("a Location").to_owned()
    };
    let get = |path: &str, host: &str| format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    assert_eq!(location("plain", &get("/a/b?c=d", "shop.test"), 308), "https://shop.test/a/b?c=d");
    assert_eq!(location("plain", &get("/", "shop.test:8080"), 308), "https://shop.test/");
    assert_eq!(location("plain", &get("/", "[::1]:80"), 308), "https://[::1]/");
    assert_eq!(location("web", &get("/old?y", "shop.test"), 301), "https://new.test:8443/new?x=1");
    assert_eq!(location("web", &get("/moved/x?y", "shop.test"), 308), "https://new.test/moved/x?y");
    assert_eq!(location("web", &get("/moved/x?y", "shop.test:443"), 308), "https://new.test/moved/x?y");
    assert_eq!(location("web", &get("/moved/x?y", "shop.test:8443"), 308), "https://new.test:8443/moved/x?y");
    let response = engine.client("plain").ask("GET / HTTP/1.0\r\n\r\n");
    assert_eq!((response.status, response.text().as_str()), (400, "400 Bad Request: no-host\n"));
}

#[test]
fn nothing_is_served_in_plaintext_where_all_are_sent_to_https() {
    let origin = named("secret");
    let config = format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\nmonitor_path = \"/up\"\nredirect_to_https = true\n\
         [listener.other]\nbind = \"127.0.0.1:0\"\nredirect_to_https = {{ port = 8443, status = 301 }}\n\
         [listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n[backend.app]\nservers = [\"{}\"]\n\
         [[route]]\nhost = \"shop.test\"\nbackend = \"app\"\n[[route]]\npath = {{ exact = \"/x\" }}\nbackend = \"app\"\n",
        origin.address()
    );
    let engine = Engine::start(&config);
    for (target, host, location) in [
        ("/", "shop.test", "shop.test/"),
        ("/x?y", "shop.test:8080", "shop.test/x?y"),
        ("/a/..//x", "any.test", "any.test/x"),
        ("http://shop.test/x", "shop.test", "shop.test/x"),
    ] {
        let ask =
            |listener: &str| engine.client(listener).ask(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let response = ask("plain");
        assert_eq!((response.status, response.field("Location")), (308, Some(format!("https://{location}").as_str())));
        let response = ask("other");
        let location = format!("https://{}", location.replacen(".test/", ".test:8443/", 1));
        assert_eq!((response.status, response.field("Location")), (301, Some(location.as_str())));
    }
    // A URI without a path (RFC 9112 §3.3).
    let response = engine.client("plain").ask("OPTIONS * HTTP/1.1\r\nHost: shop.test\r\n\r\n");
    assert_eq!((response.status, response.field("Location")), (308, Some("https://shop.test")));
    let url = engine.url("plain");
    let said = curl(&["--http2-prior-knowledge", "-H", "Host: shop.test", "--write-out", "%{http_code}", &url]).ok();
    assert_eq!(said.text(), "308");
    assert_eq!(engine.client("plain").get("/up").text(), "ok\n", "whoever watches us is answered");
    let response = engine.client("web").ask("GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n");
    assert_eq!(response.text(), "secret");
    assert_eq!(origin.connections(), 1);
}

#[test]
fn curl_follows_from_http_to_https() {
    let engine = Engine::start(ACTIONS);
    let (plain, web) = (engine.address("plain").port(), engine.address("web").port());
    let maps = [format!("localhost:80:127.0.0.1:{plain}"), format!("localhost:443:127.0.0.1:{web}")];
    let url = "http://localhost/robots.txt";
    let said = curl(&["--location", "--connect-to", &maps[0], "--connect-to", &maps[1], url]).ok();
    assert_eq!(said.text(), "User-agent: *\n");
}

#[test]
fn the_engine_answers_by_itself_where_it_is_told_to() {
    let engine = Engine::start(ACTIONS);
    let mut client = engine.client("web");
    let response = client.get("/robots.txt");
    assert_eq!((response.status, response.text().as_str()), (200, "User-agent: *\n"));
    assert_eq!(response.field("Content-Type"), Some("text/plain; charset=utf-8"));
    let response = client.get("/gone/x");
    assert_eq!((response.status, response.field("Content-Type")), (410, Some("text/html")));
    assert_eq!(client.get("/empty").status, 204);
    client.send("HEAD /robots.txt HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.read_head().contains("\r\nContent-Length: 14"));
    let response = client.ask("POST /gone/ HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
    assert_eq!(response.status, 410);
    let response =
        client.ask("POST /gone/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n");
    assert_eq!(response.status, 410);
    assert_eq!(client.get("/robots.txt").status, 200, "bodies that are here are skipped, and the connection lives on");
    // One that is still to come is not waited for.
    let response = client.ask("POST /gone/ HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nbody");
    assert_eq!((response.status, response.field("Connection")), (410, Some("close")));
    assert_eq!(client.ending(), Ending::Clean);
}

#[test]
fn the_monitor_path_is_200_and_503_while_draining() {
    let mut engine = Engine::start(&format!("[process]\nworkers = 1\ndrain_timeout = \"10s\"\n{ACTIONS}"));
    for listener in ["plain", "web"] {
        let response = engine.client(listener).get("/up");
        assert_eq!((response.status, response.text().as_str()), (200, "ok\n"));
    }
    // A request whose head has begun to arrive is still answered.
    let mut client = engine.client("web");
    client.get("/up");
    client.send("GET /up HT");
    engine.signal(Signal::TERM);
    holds("the drain", || engine.metric("propylon_draining", &[]) == 1.0);
    client.send("TP/1.1\r\nHost: a\r\n\r\n");
    let response = client.read_response();
    assert_eq!((response.status, response.text().as_str()), (503, "draining\n"));
    assert_eq!(response.field("Connection"), Some("close"));
    assert_eq!(engine.wait(std::time::Duration::from_secs(10)).status.code(), Some(0));
}

/// nginx, which decodes, merges slashes and resolves dots like most servers, and has a secret.
fn secretive() -> External {
    External::nginx(
        "listen {address};\nlocation /secret { return 200 \"the secret\"; }\nlocation / { return 200 $request_uri; }",
    )
}

#[test]
fn no_spelling_of_a_path_gets_round_a_route_that_guards_it() {
    let server = secretive();
    let guard = "[[route]]\npath = \"/secret\"\nrespond = { status = 403 }\n";
    let engine = Engine::start(&format!("{}{guard}", simple(&[server.address()])));
    let guarded = |path: &str| match path {
        _ if path.contains("/..;") => (400, "hidden-segment"),
        _ if path.to_ascii_lowercase().contains("%2f") => (400, "escaped-slash"),
        _ if path.contains('\\') || path.to_ascii_lowercase().contains("%5c") => (400, "backslash-in-path"),
        _ if path.starts_with("/..") || path.starts_with("/%2e%2e") => (400, "path-above-root"),
        _ if path.contains("%00") => (400, "escaped-nul"),
        _ if path.contains("%u") => (400, "bad-escape"),
        _ => (403, ""),
    };
    let spellings = [
        "/secret",
        "//secret",
        "/./secret",
        "/a/../secret",
        "/%73ecret",
        "/a/%2e%2E//secret",
        "/secret;x",
        "/;x/secret",
        "/secret/./",
        "/%2e/secret?x",
        "/a%2f..%2fsecret",
        "/x/..%5csecret",
        "/x\\..\\secret",
        "/../secret",
        "/%2e%2e/secret",
        "/secret%00.png",
        "/a/..;/secret",
        "/%u0073ecret",
    ];
    for listener in ["plain", "web"] {
        for path in spellings {
            let (status, reason) = guarded(path);
            let mut client = engine.client(listener);
            for target in [path.to_owned(), format!("http://a{path}")] {
                let response = client.ask(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
                assert_eq!(response.status, status, "{listener} {target}: {}", response.text());
                assert!(response.text().contains(reason), "{listener} {target}: {}", response.text());
            }
            assert_eq!(client.get("/else").text(), "/else", "the connection is none the worse for it");
            if !reason.is_empty() {
                assert_eq!(engine.logged_path(path)["fault"], reason, "the log has what was asked for");
                assert!(engine.metric("propylon_requests_rejected_total", &[("reason", reason)]) >= 2.0, "{reason}");
            }
        }
    }
    let url = engine.url("web");
    for path in spellings {
        let (status, _) = guarded(path);
        let target = format!("{url}{path}");
        let said = curl(&[
            "--http2",
            "--path-as-is",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_version} %{http_code}",
            &target,
        ]);
        assert_eq!(said.ok().text(), format!("2 {status}"), "{path}");
    }
}

/// Browsers escape what RFC 3986 has no room for, curl and many libraries do not. Whatever versions the two sides speak, it is the same.
#[test]
fn what_no_url_has_is_escaped_between_all_versions_and_guarded() {
    const SENT: &str = "/a\"<b>`{c}|d?q=\"<x>\"&y=`{z}|";
    const ESCAPED: &str = "/a%22%3Cb%3E%60{c}|d?q=%22%3Cx%3E%22&y=`{z}|";
    let server = secretive();
    let back = Engine::start(&simple(&[server.address()]));
    let config = format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n\
         [backend.old]\nservers = [\"{}\"]\n[backend.new]\nservers = [\"{}\"]\nprotocol = \"h2\"\n\
         [[route]]\nhost = \"new.test\"\nbackend = \"new\"\n[[route]]\nbackend = \"old\"\n\
         [[route]]\npath = \"/%22secret\"\nrespond = {{ status = 403 }}\n",
        server.address(),
        back.address("plain"),
    );
    let engine = Engine::start(&config);
    let mut http2 = Http2::start(&engine);
    for (index, host) in ["old.test", "new.test"].into_iter().enumerate() {
        let mut client = engine.client("plain");
        let mut ask = |path: &str| client.ask(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        assert_eq!(ask(SENT).text(), ESCAPED, "{host}");
        assert_eq!(engine.logged_path(SENT)["status"], 200, "the log has what came");
        // Through the table of header compression as well.
        for again in [0, 2] {
            let stream = index as u32 * 10 + again + 1;
            let fields = [(":method", "GET"), (":scheme", "http"), (":authority", host), (":path", SENT)];
            http2.headers(stream, END_STREAM, &fields);
            assert_eq!(String::from_utf8_lossy(&http2.response(stream).1), ESCAPED, "{host}");
        }
        let (of, url) = (format!("Host: {host}"), format!("{}{SENT}", engine.url("plain")));
        let said = curl(&["--http2-prior-knowledge", "-g", "-H", &of, &url]);
        assert_eq!(said.ok().text(), ESCAPED, "{host}");
        if host == "old.test" {
            assert_eq!(ask("/\"secret").status, 403);
            assert_eq!(ask("/\"secret/x").status, 403);
        }
        for (path, reason) in [("/a\u{e9}", "bad-target-byte"), ("/a#b", "bad-target-byte"), ("/a b", "bad-version")] {
            let response = engine.client("plain").ask(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_eq!((response.status, response.text().contains(reason)), (400, true), "{}", response.text());
        }
    }
}

#[test]
fn servers_and_redirects_get_the_path_that_was_matched() {
    let server = secretive();
    let listener = |name: &str, paths: &str| format!("[listener.{name}]\nbind = \"127.0.0.1:0\"\n{paths}\n");
    let config = format!(
        "{}{}[backend.app]\nservers = [\"{}\"]\n[[route]]\nbackend = \"app\"\n\
         [[route]]\npath = \"/mo%76ed\"\nredirect = {{ host = \"new.test\" }}\n",
        listener("strict", ""),
        listener("lenient", "paths = { merge_slashes = false, allow = [\"%2F\", \"..\"] }"),
        server.address(),
    );
    let engine = Engine::start(&config);
    for (listener, path, forwarded) in [
        ("strict", "/a//b/./c/../d%7e%c3?q=%7e/../x", "/a/b/d~%C3?q=%7e/../x"),
        ("strict", "/a;p=1/%40b%3a", "/a;p=1/%40b%3A"),
        ("lenient", "/a//b/./c", "/a//b/c"),
        ("lenient", "/../group%2fproject", "/group%2Fproject"),
    ] {
        assert_eq!(engine.client(listener).get(path).text(), forwarded, "{listener} {path}");
    }
    for path in ["/moved//x%2d?%2d", "/./%6doved/x-?%2d"] {
        let response = engine.client("strict").get(path);
        assert_eq!(response.field("Location"), Some("http://new.test/moved/x-?%2d"), "{path}");
    }
    assert_eq!(engine.client("strict").get("/%2f").status, 400);
}

/// Escapes are three bytes for one: what servers get is held to the limit as well.
#[test]
fn a_target_that_escaping_makes_longer_than_a_head_may_be_is_refused() {
    let origin = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n");
    let engine = Engine::start(&simple(&[origin.address()]));
    for quotes in ["/".to_string() + &"\"".repeat(6_000), "/?".to_string() + &"<".repeat(6_000)] {
        let mut client = engine.client("plain");
        client.send(format!("GET {quotes} HTTP/1.1\r\nHost: a\r\n\r\n"));
        let response = client.read_response();
        assert_eq!((response.status, response.text().trim_end()), (414, "414 URI Too Long: request-line-too-long"));
        let mut client = Http2::start(&engine);
        client.headers(1, END_STREAM, &request("GET", &quotes));
        assert_eq!(client.next_of(1).spelled_status(), Some(414));
        // What has room.
        let mut client = engine.client("plain");
        client.send(format!("GET {} HTTP/1.1\r\nHost: a\r\n\r\n", &quotes[..5_000]));
        assert_eq!(client.read_response().status, 200);
    }
    assert_eq!(engine.metric("propylon_requests_rejected_total", &[("reason", "request-line-too-long")]), 4.0);
    assert_eq!(origin.received_text().matches("GET /").count(), 2);
}

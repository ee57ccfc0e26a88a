//! Traces: what servers are told, what a collector gets, and that neither costs a request anything when things go wrong.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use propylon_e2e::engine::{simple, with};
use propylon_e2e::frames::{DATA, END_STREAM, HEADERS, Http2};
use propylon_e2e::http::values;
use propylon_e2e::origin::dead;
use propylon_e2e::otlp::{CLIENT, Collector, ERROR, SERVER, Span, TAKEN};
use propylon_e2e::program::curl;
use propylon_e2e::python::{PythonServer, python};
use propylon_e2e::secure::{SecureOrigin, read_request, send};
use propylon_e2e::{Certificates, Client, Engine, Origin, Peer, Scratch, holds};
use rcgen::PKCS_ECDSA_P256_SHA256;
use rustix::process::Signal;

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

fn parent(flags: &str) -> String {
    format!("00-{TRACE}-{CALLER}-{flags}")
}

/// An engine that records everything, and where its spans go.
struct Traced {
    engine: Engine,
    collector: Collector,
}

impl Traced {
    fn new(origin: &Origin) -> Traced {
        Traced::with(origin, "", "")
    }

    fn with(origin: &Origin, tracing: &str, backend: &str) -> Traced {
        let collector = Collector::start();
        let engine = Engine::start(&(collector.config(tracing) + &with(&[origin.address()], "", backend)));
        Traced { engine, collector }
    }

    /// Asks by HTTP/1.1 with these lines, and gives what the mirror behind it was sent.
    fn ask(&self, path: &str, lines: &str) -> String {
        ask(&self.engine, path, lines)
    }
}

fn ask(engine: &Engine, path: &str, lines: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\n{lines}Connection: close\r\n\r\n");
    engine.client("plain").ask(request).text()
}

/// The identifiers and the flags of the one `traceparent` in a head.
#[track_caller]
fn told(head: &str) -> (String, String, String) {
    let [value] = values(head, "traceparent")[..] else { panic!("not one traceparent in:\n{head}") };
    let parts: Vec<&str> = value.split('-').collect();
    let ["00", trace, span, flags] = parts[..] else { panic!("{value}") };
    assert_eq!((trace.len(), span.len(), flags.len()), (32, 16, 2), "{value}");
    (trace.into(), span.into(), flags.into())
}

/// The one attempt of a request, and that it fits into it.
#[track_caller]
fn only_attempt(collector: &Collector, span: &Span) -> Span {
    let below = collector.below(span);
    let [attempt] = &below[..] else { panic!("not one attempt but {below:#?}") };
    assert_eq!((attempt.kind, &attempt.trace), (CLIENT, &span.trace));
    assert!(span.started <= attempt.started && attempt.ended <= span.ended + 1_000_000, "{span:#?} {attempt:#?}");
    attempt.clone()
}

#[test]
fn a_span_has_the_name_of_its_route_and_the_id_of_its_request() {
    let (origin, collector) = (Origin::mirror(), Collector::start());
    let engine = Engine::start(
        &(collector.config("")
            + &format!(
                "[listener.plain]\nbind = \"127.0.0.1:0\"\nrequest_id = {{ header = \"X-Correlation-ID\", accept = \"always\" }}\n\
                 [backend.app]\nservers = [\"{}\"]\n[[route]]\nname = \"shop\"\npath = \"/a\"\nbackend = \"app\"\n",
                origin.address()
            )),
    );
    ask(&engine, "/a/named", "X-Correlation-ID: story-1\r\n");
    let span = collector.served("/a/named");
    let told = ["http.route", "propylon.route", "http.request.header.x-correlation-id"].map(|name| span.of(name));
    assert_eq!(told, ["/a/*", "shop", "story-1"]);
    ask(&engine, "/none", "X-Correlation-ID: story-2\r\n");
    let span = collector.served("/none");
    let told = ["http.route", "propylon.route", "http.request.header.x-correlation-id"].map(|name| span.of(name));
    assert_eq!(told, ["", "", "story-2"], "an error has an ID as well");
}

#[test]
fn a_trace_goes_from_the_client_through_an_attempt_to_the_server() {
    let origin = Origin::mirror();
    let traced = Traced::with(&origin, "attributes = { \"deployment.environment.name\" = \"test\" }", "");
    let seen = traced.ask(
        "/a/b?secret=1",
        &format!(
            "traceparent: {}\r\ntracestate: a=1,b@v=2\r\ntracestate: c=3\r\nUser-Agent: story/1\r\n",
            parent("01")
        ),
    );
    let (trace, attempt_id, flags) = told(&seen);
    assert_eq!((trace.as_str(), flags.as_str()), (TRACE, "01"));
    assert_eq!(values(&seen, "tracestate"), ["a=1,b@v=2", "c=3"]);

    let span = traced.collector.served("/a/b");
    assert_eq!((span.trace.as_str(), span.parent.as_str(), span.state.as_str()), (TRACE, CALLER, "a=1,b@v=2,c=3"));
    assert_eq!((span.name.as_str(), span.flags, span.status), ("GET /*", 0x301, 0));
    assert!(span.started < span.ended);
    let port = traced.engine.address("plain").port();
    for (name, value) in [
        ("http.request.method", "GET"),
        ("http.route", "/*"),
        ("propylon.route", "*/"),
        ("http.response.status_code", "200"),
        ("url.scheme", "http"),
        ("url.path", "/a/b"),
        ("server.address", "shop.example"),
        ("server.port", "80"),
        ("client.address", "127.0.0.1"),
        ("network.protocol.version", "1.1"),
        ("user_agent.original", "story/1"),
        ("propylon.listener", "plain"),
        ("error.type", ""),
        ("url.query", ""),
    ] {
        assert_eq!(span.of(name), value, "{name}");
    }
    assert_ne!(span.of("client.port"), port.to_string());
    assert_eq!(span.resource["service.name"], "propylon");
    assert_eq!(span.resource["deployment.environment.name"], "test");
    assert_eq!(span.scope, "propylon");

    let attempt = only_attempt(&traced.collector, &span);
    assert_eq!((attempt.span.as_str(), attempt.name.as_str()), (attempt_id.as_str(), "GET"));
    let (host, port) = (origin.address().ip().to_string(), origin.address().port().to_string());
    for (name, value) in [
        ("http.request.method", "GET"),
        ("http.response.status_code", "200"),
        ("url.full", "http://shop.example/a/b"),
        ("server.address", host.as_str()),
        ("server.port", port.as_str()),
        ("network.peer.address", host.as_str()),
        ("network.peer.port", port.as_str()),
        ("network.protocol.version", "1.1"),
        ("propylon.backend", "app"),
        ("propylon.connection.reused", "false"),
        ("http.request.resend_count", ""),
    ] {
        assert_eq!(attempt.of(name), value, "{name}");
    }
    let line = traced.engine.logged_path("/a/b?secret=1");
    assert_eq!(line["trace_id"], TRACE);
    let everything = format!("{:?}", traced.collector.spans());
    assert!(!everything.contains("secret"), "{everything}");
}

#[test]
fn a_request_of_no_trace_begins_one() {
    let origin = Origin::mirror();
    let traced = Traced::new(&origin);
    let (trace, attempt, flags) = told(&traced.ask("/new", "tracestate: a=1\r\n"));
    let span = traced.collector.served("/new");
    assert_eq!((&span.trace, span.parent.as_str(), span.state.as_str()), (&trace, "", ""));
    // Recorded, and the identifier is chance.
    assert_eq!((flags.as_str(), span.flags), ("03", 0x103));
    assert_eq!(only_attempt(&traced.collector, &span).span, attempt);
    let (other, ..) = told(&traced.ask("/new", ""));
    assert_ne!(trace, other);
    assert!(!origin.received_text().contains("tracestate"), "it belongs to a traceparent");
}

#[test]
fn what_breaks_the_standards_rules_begins_a_new_trace() {
    let origin = Origin::mirror();
    let traced = Traced::new(&origin);
    let good = parent("01");
    for lines in [
        format!("traceparent: {good}\r\ntraceparent: {good}\r\ntracestate: a=1\r\n"),
        format!("traceparent: {good}-x\r\ntracestate: a=1\r\n"),
        format!("traceparent: ff{}\r\ntracestate: a=1\r\n", &good[2..]),
        format!("traceparent: {}\r\n", good.to_uppercase()),
        format!("traceparent: 00-{}-{CALLER}-01\r\n", "0".repeat(32)),
        "traceparent: \r\n".to_string(),
    ] {
        let seen = traced.ask("/", &lines);
        let (trace, _, flags) = told(&seen);
        assert!(trace != TRACE && flags == "03", "{lines}{seen}");
        assert!(values(&seen, "tracestate").is_empty(), "{seen}");
    }
    // A state that breaks them goes alone, whatever the parent.
    let seen = traced.ask("/", &format!("traceparent: {good}\r\ntracestate: A=1\r\n"));
    assert_eq!((told(&seen).0.as_str(), values(&seen, "tracestate").len()), (TRACE, 0));
    // What a later version adds is none of ours, and we go on in our own.
    let seen = traced.ask("/", &format!("TraceParent: cc{}-more\r\n", &good[2..]));
    assert_eq!((told(&seen).0.as_str(), told(&seen).2.as_str()), (TRACE, "01"));
}

#[test]
fn a_caller_that_does_not_record_is_passed_on_as_it_came() {
    let origin = Origin::mirror();
    let traced = Traced::new(&origin);
    let lines = format!("traceparent: {}\r\ntracestate: a=1\r\n", parent("00"));
    let seen = traced.ask("/quiet", &lines);
    assert_eq!((values(&seen, "traceparent"), values(&seen, "tracestate")), (vec![&parent("00")[..]], vec!["a=1"]));
    let seen = traced.ask("/quiet", &format!("traceparent: cc-{TRACE}-{CALLER}-00-more\r\n"));
    assert_eq!(values(&seen, "traceparent"), [&parent("00")[..]]);
    assert_eq!(traced.engine.logged_path("/quiet")["trace_id"], TRACE);
    traced.ask("/loud", &format!("traceparent: {}\r\n", parent("01")));
    traced.collector.served("/loud");
    assert!(!traced.collector.spans().iter().any(|span| span.of("url.path") == "/quiet"));
    assert_eq!(traced.engine.metric("propylon_traces_total", &[("decision", "unrecorded")]), 2.0);
    assert_eq!(traced.engine.metric("propylon_traces_total", &[("decision", "recorded")]), 1.0);
}

#[test]
fn callers_that_are_not_trusted_begin_traces_of_their_own() {
    let origin = Origin::mirror();
    let traced = Traced::with(&origin, "trust = \"never\"\nsample = 0", "");
    for flags in ["00", "01"] {
        let seen = traced.ask("/", &format!("traceparent: {}\r\ntracestate: a=1\r\n", parent(flags)));
        let (trace, _, flags) = told(&seen);
        assert!(trace != TRACE && flags == "02", "{seen}");
        assert!(values(&seen, "tracestate").is_empty());
    }
    assert_eq!(traced.engine.metric("propylon_traces_total", &[("decision", "unrecorded")]), 2.0);
    assert_eq!(traced.collector.connections(), 0);
}

#[test]
fn no_caller_has_more_recorded_than_the_bound() {
    let origin = Origin::mirror();
    let traced = Traced::with(&origin, "spans_per_second = 1", "");
    let started = Instant::now();
    let mut client = traced.engine.client("plain");
    let request = format!("GET / HTTP/1.1\r\nHost: a\r\ntraceparent: {}\r\n\r\n", parent("01"));
    let mut passed = 0;
    for _ in 0..50 {
        passed += usize::from(client.ask(&request).text().contains(&parent("01")));
    }
    let most = 2.0 + started.elapsed().as_secs_f64();
    let recorded = traced.engine.metric("propylon_traces_total", &[("decision", "recorded")]);
    let limited = traced.engine.metric("propylon_traces_total", &[("decision", "limited")]);
    assert!((1.0..=most).contains(&recorded) && recorded + limited == 50.0, "{recorded} and {limited}");
    assert_eq!(passed as f64, limited, "those that are not recorded are passed on as they came");
}

#[test]
fn every_pair_of_versions_of_http_hands_the_trace_on() {
    let origin = Origin::mirror();
    let collector = Collector::start();
    let config = |name: &str| collector.config(&format!("service_name = \"{name}\""));
    let back = Engine::start(&(config("back") + &simple(&[origin.address()])));
    let front = Engine::start(&(config("front") + &with(&[back.address("plain")], "", "protocol = \"h2\"")));
    // To the second engine by HTTP/2, and from there by HTTP/1.1.
    let cases = [
        ("plain", "--http2-prior-knowledge", "2", "http"),
        ("web", "--http2", "2", "https"),
        ("web", "--http1.1", "1.1", "https"),
    ];
    for (index, (listener, flag, version, scheme)) in cases.into_iter().enumerate() {
        let path = format!("/pair{index}");
        let given = format!("traceparent: {}", parent("01"));
        let url = format!("{}{path}", front.url(listener));
        let seen = curl(&[flag, "-H", &given, "-H", "tracestate: a=1", &url]).ok().text();
        let (trace, last, flags) = told(&seen);
        assert_eq!((trace.as_str(), flags.as_str()), (TRACE, "01"));
        assert_eq!(values(&seen, "tracestate"), ["a=1"]);
        let of = |service: &str, kind: u64, parent: &str| {
            collector.found(&format!("a span of the {service} below {parent}"), |span| {
                span.resource["service.name"] == service
                    && span.kind == kind
                    && span.parent == parent
                    && (span.of("url.path") == path || span.of("url.full").ends_with(&path))
            })
        };
        let first = of("front", SERVER, CALLER);
        assert_eq!((first.of("network.protocol.version"), first.of("url.scheme")), (version, scheme));
        let attempt = of("front", CLIENT, &first.span);
        assert_eq!(attempt.of("network.protocol.version"), "2");
        let second = of("back", SERVER, &attempt.span);
        assert_eq!((second.of("network.protocol.version"), second.flags), ("2", 0x301));
        let end = of("back", CLIENT, &second.span);
        assert_eq!((end.of("network.protocol.version"), &end.span), ("1.1", &last));
        assert_eq!((first.of("tls.protocol.version").is_empty(), scheme), (scheme == "http", scheme));
    }
}

#[test]
fn attempts_of_one_request_are_siblings_that_are_counted() {
    // Nobody listens at the first.
    let dead = dead();
    let origin = Origin::mirror();
    let collector = Collector::start();
    let backend = with(&[dead, origin.address()], "", "balance = \"first\"");
    let engine = Engine::start(&(collector.config("") + &backend));
    let (_, last, _) = told(&ask(&engine, "/again", ""));
    let span = collector.served("/again");
    assert_eq!((span.status, span.of("http.response.status_code")), (0, "200"));
    let attempts = collector.below(&span);
    let [failed, good] = &attempts[..] else { panic!("{attempts:#?}") };
    assert_eq!((failed.of("error.type"), failed.status), ("connect-refused", ERROR));
    assert_eq!(
        (failed.of("server.port"), failed.of("http.request.resend_count")),
        (dead.port().to_string().as_str(), "")
    );
    assert_eq!((failed.of("network.peer.address"), failed.of("http.response.status_code")), ("", ""));
    assert_eq!((good.of("http.request.resend_count"), good.status, &good.span), ("1", 0, &last));
    assert!(failed.ended <= good.started + 1_000_000);
}

#[test]
fn errors_are_told_by_their_kind() {
    let origin = Origin::answering(|request| {
        let status = match request {
            [b'G', b'E', b'T', b' ', b'/', b'5', ..] => "500 No",
            [b'G', b'E', b'T', b' ', b'/', b'4', ..] => "404 No",
            _ => return Vec::new(),
        };
        format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").into_bytes()
    });
    let traced = Traced::with(&origin, "", "timeouts = { first_byte = \"100ms\" }\nretries = 0");
    let statuses =
        [("/500", "500", "500", ERROR), ("/404", "404", "", 0), ("/never", "504", "first-byte-timeout", ERROR)];
    for (path, status, error, code) in statuses {
        traced.ask(path, "");
        let span = traced.collector.served(path);
        assert_eq!((span.of("http.response.status_code"), span.of("error.type"), span.status), (status, error, code));
        let attempt = only_attempt(&traced.collector, &span);
        let kind = if error.is_empty() { status } else { error };
        assert_eq!((attempt.of("error.type"), attempt.status), (kind, ERROR), "{path}");
    }
    // What nobody knows is no name of a span.
    let mut client = traced.engine.client("plain");
    client.send("BREW /4?x HTTP/1.1\r\nHost: a\r\n\r\n");
    let span = traced.collector.found("the span of a method of its own", |span| span.of("url.path") == "/4");
    assert_eq!((span.name.as_str(), span.of("http.request.method")), ("HTTP /*", "_OTHER"));
    assert_eq!(span.of("http.request.method_original"), "BREW");
}

#[test]
fn a_websocket_is_one_attempt_that_lasts_as_long_as_it() {
    let server = PythonServer::start("ws_server.py", &[]);
    let collector = Collector::start();
    let engine = Engine::start(&(collector.config("") + &simple(&[server.address()])));
    let ca = Certificates::shared().ca().display().to_string();
    let url = format!("wss://localhost:{}", engine.address("web").port());
    python("ws_client.py", &["echo", &url, &ca]).ok();
    let span = collector
        .found("the span of a WebSocket", |span| (span.kind, span.of("http.response.status_code")) == (SERVER, "101"));
    let attempt = only_attempt(&collector, &span);
    assert_eq!((attempt.of("http.response.status_code"), span.status, attempt.status), ("101", 0, 0));

    // The same by HTTP/2's extended CONNECT.
    let mut client = Http2::start(&engine);
    client.headers(
        1,
        0,
        &[
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "http"),
            (":path", "/h2"),
            (":authority", "localhost"),
            ("sec-websocket-version", "13"),
            ("traceparent", &parent("01")),
        ],
    );
    let head = client.next_of(1);
    assert_eq!((head.kind, head.status()), (HEADERS, Some(200)));
    client.send(DATA, END_STREAM, 1, b"");
    let span = collector.served("/h2");
    assert_eq!((span.parent.as_str(), span.of("network.protocol.version")), (CALLER, "2"));
    only_attempt(&collector, &span);
}

#[test]
fn without_tracing_fields_pass_untouched_and_nobody_is_called() {
    let origin = Origin::mirror();
    let collector = Collector::start();
    let engine = Engine::start(&simple(&[origin.address()]));
    let lines = "traceparent: nonsense\r\nTraceParent: 00-more\r\ntracestate: A=1,,\r\n";
    let seen = ask(&engine, "/off", lines);
    assert!(seen.contains(lines), "{seen}");
    assert!(!ask(&engine, "/off", "").contains("trace"), "nothing is added");
    assert!(engine.logged_path("/off").get("trace_id").is_none());
    assert_eq!(engine.metric("propylon_traces_total", &[]), 0.0);
    assert_eq!(collector.connections(), 0);
    let threads = std::fs::read_dir(format!("/proc/{}/task", engine.pid())).expect("a running engine");
    let names =
        threads.map(|task| std::fs::read_to_string(task.expect("a thread").path().join("comm")).unwrap_or_default());
    assert!(!names.map(|name| name.trim().to_string()).any(|name| name == "traces"), "there is no exporter");
}

#[test]
fn a_collector_that_asks_for_wait_max_gets_each_batch_once() {
    let origin = Origin::mirror();
    let collector = Collector::answering(|number| match number {
        0 => "HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nbusy".into(),
        1 => "HTTP/1.1 429 Slowly\r\nContent-Length: 0\r\n\r\n".into(),
        2 => "HTTP/1.1 502 Elsewhere\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".into(),
        _ => TAKEN.into(),
    });
    let scratch = Scratch::new();
    let secret = scratch.write("headers", "# for the collector\nAuthorization: Bearer s3cret\n");
    let tracing = collector.config(&format!("headers = \"{}\"", secret.display()));
    let engine = Engine::start(&(tracing + &simple(&[origin.address()])));
    ask(&engine, "/once", "");
    let span = collector.served("/once");
    assert_eq!(collector.spans().iter().filter(|each| each.span == span.span).count(), 1);
    let heads = collector.heads();
    assert_eq!(heads.len(), 4);
    for head in heads {
        assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
        assert_eq!(values(&head, "content-type"), ["application/x-protobuf"]);
        assert_eq!(values(&head, "host"), [collector.address().to_string()]);
        assert_eq!(values(&head, "authorization"), ["Bearer s3cret"]);
    }
    engine.metric_reaches("propylon_spans_exported_total", &[], 2.0);
    assert_eq!(engine.metric("propylon_span_exports_total", &[("result", "retry")]), 3.0);
    assert_eq!(engine.metric("propylon_spans_dropped_total", &[]), 0.0);
    let said = engine.stderr().join("\n");
    assert!(said.contains("does not take spans: status 503: busy") && said.contains("delivered again"), "{said}");
    let shown = Client::plain(engine.admin())
        .ask(format!("GET /config HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", engine.admin()));
    assert!(!said.contains("s3cret") && !shown.text().contains("s3cret"), "secrets are not told");
}

#[test]
fn a_collector_that_refuses_or_takes_a_part_is_not_asked_again() {
    let origin = Origin::mirror();
    // ExportTraceServiceResponse { partial_success: { rejected_spans: 1 } }
    let partial = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\n\u{2}\u{8}\u{1}";
    let collector = Collector::answering(move |number| match number {
        0 => "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".into(),
        _ => partial.into(),
    });
    let engine = Engine::start(&(collector.config("") + &simple(&[origin.address()])));
    ask(&engine, "/refused", "");
    engine.metric_reaches("propylon_spans_dropped_total", &[("reason", "refused")], 2.0);
    ask(&engine, "/part", "");
    engine.metric_reaches("propylon_spans_dropped_total", &[("reason", "rejected")], 1.0);
    assert_eq!(engine.metric("propylon_spans_exported_total", &[]), 1.0);
    assert_eq!(collector.heads().len(), 2);
}

/// Nobody is there, somebody says nothing, somebody breaks off.
#[test]
fn a_collector_in_trouble_costs_spans_and_no_request() {
    let dead = dead();
    let silent = Collector::silent();
    let rude = Origin::scripted(|peer: &mut Peer| {
        peer.read_request();
        peer.reset();
    });
    for address in [dead, silent.address(), rude.address()] {
        let origin = Origin::always(HELLO);
        let tracing = format!(
            "[tracing]\nendpoint = \"http://{address}\"\nsample = 1\nspans_per_second = 1000000\ntimeout = \"300ms\"\n"
        );
        let mut engine = Engine::start(&(tracing + &simple(&[origin.address()])));
        let mut client = engine.client("plain");
        let mut slowest = Duration::ZERO;
        let before = engine.rss();
        for index in 0..2500 {
            let started = Instant::now();
            assert_eq!(client.get(&format!("/{index}")).status, 200);
            slowest = slowest.max(started.elapsed());
        }
        // Far below the time of one attempt to deliver, and of one pause.
        assert!(slowest < Duration::from_secs(2), "{slowest:?}");
        holds("spans are dropped", || {
            engine.metric("propylon_spans_dropped_total", &[("reason", "queue-full")]) > 2000.0
        });
        assert!(engine.metric("propylon_spans_waiting", &[]) <= 1024.0);
        let grown = engine.rss().saturating_sub(before);
        assert!(grown < 24 << 20, "{grown} bytes more");
        let started = Instant::now();
        engine.signal(Signal::TERM);
        let end = engine.wait(Duration::from_secs(10));
        assert!(end.status.success(), "{:?}", end.stderr);
        assert!(started.elapsed() < Duration::from_secs(8), "the end waited {:?}", started.elapsed());
        assert!(end.stderr.iter().any(|line| line.contains("could not be delivered")), "{:?}", end.stderr);
    }
}

#[test]
fn a_collector_is_spoken_to_by_tls_if_its_certificate_is_good() {
    let certificates = Certificates::shared();
    let origin = Origin::always(HELLO);
    let taken = |pem: &str| {
        let heads = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&heads);
        let collector = SecureOrigin::scripted(pem, rustls::DEFAULT_VERSIONS, move |_, stream| {
            while let Some(request) = read_request(stream) {
                kept.lock().expect("no story panics with it").push(request);
                send(stream, TAKEN);
            }
        });
        (collector, heads)
    };
    let engine = |collector: &SecureOrigin| {
        let (port, ca) = (collector.address().port(), certificates.ca());
        let tracing =
            format!("[tracing]\nendpoint = \"https://localhost:{port}\"\nca = \"{}\"\nsample = 1\n", ca.display());
        let engine = Engine::start(&(tracing + &simple(&[origin.address()])));
        assert!(ask(&engine, "/", "").contains("hello"));
        engine
    };
    let (good, heads) = taken(&certificates.issue(&["localhost"], &PKCS_ECDSA_P256_SHA256));
    engine(&good).metric_reaches("propylon_spans_exported_total", &[], 2.0);
    let head = String::from_utf8_lossy(&heads.lock().expect("no story panics with it")[0]).into_owned();
    assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");

    let (other, heads) = taken(&certificates.issue(&["elsewhere"], &PKCS_ECDSA_P256_SHA256));
    let engine = engine(&other);
    holds("its name is not good enough", || {
        engine.stderr().iter().any(|line| line.contains("does not take spans: ") && line.contains("certificate"))
    });
    assert!(heads.lock().expect("no story panics with it").is_empty(), "not a byte of a span was sent");
}

#[test]
fn what_is_traced_and_where_it_goes_changes_in_place() {
    let origin = Origin::mirror();
    let (first, second) = (Collector::start(), Collector::start());
    let rest = simple(&[origin.address()]);
    let engine = Engine::start(&rest);
    let mut client = engine.client("plain");
    let mut asked = |path: &str| {
        let seen = client.get(path).text();
        values(&seen, "traceparent").first().map(|value| value[53..].to_string())
    };
    let go_by = |tracing: &str| {
        engine.rewrite(&format!("{tracing}{rest}"));
        engine.reload();
    };
    assert_eq!(asked("/off"), None);
    go_by(&first.config("sample = 0"));
    assert_eq!(asked("/none").as_deref(), Some("02"));
    go_by(&first.config("sample = 1"));
    assert_eq!(asked("/all").as_deref(), Some("03"));
    first.served("/all");
    go_by(&second.config("sample = 1\nservice_name = \"other\""));
    asked("/moved");
    assert_eq!(second.served("/moved").resource["service.name"], "other");
    go_by("");
    assert_eq!(asked("/over"), None);
    go_by(&second.config("trust = \"never\""));
    asked("/again");
    second.served("/again");
    let paths = |collector: &Collector| -> Vec<String> {
        let served = collector.spans().into_iter().filter(|span| span.kind == SERVER);
        served.map(|span| span.of("url.path").to_string()).collect()
    };
    assert_eq!((paths(&first), paths(&second)), (vec!["/all".into()], vec!["/moved".into(), "/again".into()]));
}

#[test]
fn credentials_for_the_collector_are_read_again() {
    let origin = Origin::mirror();
    let collector = Collector::start();
    let scratch = Scratch::new();
    let secret = scratch.write("headers", "Authorization: Bearer one\n");
    let tracing = collector.config(&format!("headers = \"{}\"", secret.display()));
    let engine = Engine::start(&(tracing + &simple(&[origin.address()])));
    for (number, token) in ["one", "two"].into_iter().enumerate() {
        scratch.write("headers", format!("Authorization: Bearer {token}\n"));
        engine.reload();
        ask(&engine, &format!("/{number}"), "");
        collector.served(&format!("/{number}"));
        let heads = collector.heads();
        let last = heads.last().expect("a request");
        assert_eq!(values(last, "authorization"), [format!("Bearer {token}").as_str()]);
    }
}

#[test]
fn the_last_spans_are_delivered_before_the_end() {
    let origin = Origin::mirror();
    let mut traced = Traced::new(&origin);
    traced.ask("/last", "");
    traced.engine.signal(Signal::TERM);
    assert!(traced.engine.wait(Duration::from_secs(10)).status.success());
    assert_eq!(traced.collector.spans().iter().filter(|span| span.of("url.path") == "/last").count(), 1);
}

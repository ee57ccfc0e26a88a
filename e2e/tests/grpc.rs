//! gRPC by other people's client and server, with the engine between them: over TLS and in plaintext.

use std::process::Command;

use propylon_e2e::engine::with;
use propylon_e2e::frames::Http2Server;
use propylon_e2e::program::curl;
use propylon_e2e::python::{PythonServer, python};
use propylon_e2e::{Certificates, Engine, Origin, holds};

/// A server of gRPC behind an engine.
struct Service {
    server: PythonServer,
    engine: Engine,
}

impl Service {
    fn new() -> Service {
        let server = PythonServer::start("grpc_server.py", &[]);
        let engine = Engine::start(&with(&[server.address()], "", "protocol = \"h2\""));
        Service { server, engine }
    }

    /// One of the client's stories, over TLS and in plaintext.
    #[track_caller]
    fn tells(&self, story: &str) {
        for listener in ["plain", "web"] {
            self.tells_at(listener, story);
        }
    }

    #[track_caller]
    fn tells_at(&self, listener: &str, story: &str) {
        let target = format!("localhost:{}", self.engine.address(listener).port());
        let ca = Certificates::shared().ca().display().to_string();
        let arguments = [story, &target, &ca];
        python("grpc_client.py", if listener == "web" { &arguments } else { &arguments[..2] }).ok();
    }

    #[track_caller]
    fn nothing_is_left(&self) {
        holds("no stream is left", || self.engine.metric("propylon_http2_streams", &[]) == 0.0);
    }
}

#[test]
fn single_calls_are_answered() {
    let service = Service::new();
    service.tells("unary");
    // Each client has one connection, and the server one of the engine's.
    assert_eq!(service.engine.metric("propylon_http2_connections_total", &[]), 2.0);
    assert_eq!(service.engine.metric("propylon_server_connections_total", &[]), 1.0);
    let line = service.engine.logged_path("/e2e.Peer/Unary");
    assert_eq!((&line["protocol"], &line["status"]), (&"HTTP/2".into(), &200.into()));
}

#[test]
fn hundreds_of_calls_at_once_are_answered() {
    let service = Service::new();
    service.tells("at_once");
    service.nothing_is_left();
}

#[test]
fn messages_of_megabytes_arrive_whole() {
    Service::new().tells("large");
}

#[test]
fn streams_of_either_side_arrive_in_order() {
    let service = Service::new();
    service.tells("give");
    service.tells("collect");
    service.nothing_is_left();
}

#[test]
fn a_conversation_goes_to_and_fro_message_by_message() {
    Service::new().tells("converse");
}

#[test]
fn errors_keep_their_status_and_their_words() {
    let service = Service::new();
    service.tells("fail");
    service.tells("fail_late");
    // An error of gRPC is none of HTTP: nobody is blamed.
    assert_eq!(service.engine.metric("propylon_server_faults_total", &[]), 0.0);
}

#[test]
fn metadata_arrive_before_and_after_the_answer() {
    Service::new().tells("metadata");
}

#[test]
fn a_deadline_is_heard_by_the_server_and_its_passing_ends_the_work() {
    let service = Service::new();
    for (times, listener) in ["plain", "web"].into_iter().enumerate() {
        service.tells_at(listener, "deadline");
        service.server.says("hanging deadline deadline");
        holds("the server hears of it", || heard(&service, "ended deadline") == times + 1);
    }
    service.nothing_is_left();
}

#[test]
fn a_cancelled_call_is_cancelled_at_the_server() {
    let service = Service::new();
    for (times, listener) in ["plain", "web"].into_iter().enumerate() {
        service.tells_at(listener, "cancel");
        holds("the server hears of it", || heard(&service, "ended cancel") == times + 1);
    }
    service.nothing_is_left();
    // The connection to the server outlived the calls.
    assert_eq!(service.engine.metric("propylon_server_connections_total", &[]), 1.0);
}

fn heard(service: &Service, line: &str) -> usize {
    service.server.said().iter().filter(|said| *said == line).count()
}

#[test]
fn a_stream_that_nobody_reads_holds_back_no_other() {
    let service = Service::new();
    service.tells("beside");
    service.nothing_is_left();
}

#[test]
fn a_server_behind_tls_of_its_own_is_spoken_to_like_any_other() {
    let certificates = Certificates::shared();
    // Chain and key are in one file here.
    let pem = certificates.ec().display().to_string();
    let server = PythonServer::start("grpc_server.py", &[&pem, &pem]);
    let tls = format!("tls = {{ ca = \"{}\", server_name = \"localhost\" }}", certificates.ca().display());
    let engine = Engine::start(&with(&[server.address()], "", &format!("protocol = \"h2\"\n{tls}")));
    let service = Service { server, engine };
    for story in ["unary", "converse", "fail", "metadata"] {
        service.tells_at("web", story);
    }
}

/// gRPC reads a 502 or a 503 as "unavailable", which is what its clients may repeat.
#[test]
fn a_server_that_is_gone_is_unavailable() {
    let origin = Origin::always("");
    let address = origin.address();
    drop(origin);
    let engine = Engine::start(&with(&[address], "", "protocol = \"h2\""));
    let target = format!("localhost:{}", engine.address("plain").port());
    python("grpc_client.py", &["nobody", &target]).ok();
}

/// gRPC over HTTP/2, "Trailers-Only": what clients would make of a bare status of HTTP they cannot tell from a server's.
#[test]
fn what_the_engine_refuses_itself_is_told_as_grpc_tells_it() {
    let server = PythonServer::start("grpc_server.py", &[]);
    let dead = propylon_e2e::origin::dead();
    let silent = Origin::scripted(|peer| {
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        while server.next_frame().is_some() {}
    });
    let backend = |name: &str, address, more: &str| {
        format!("[backend.{name}]\nservers = [\"{address}\"]\nprotocol = \"h2\"\n{more}\n")
    };
    let route = |path: &str, action: &str| format!("[[route]]\npath = \"/e2e.Peer/{path}\"\n{action}\n");
    let config = [
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n".into(),
        backend("app", server.address(), ""),
        backend("down", dead, "retries = 0"),
        backend("silent", silent.address(), "timeouts = { first_byte = \"200ms\" }"),
        route("Down", "backend = \"down\""),
        route("Forbidden", "respond = { status = 403, body = \"<p>Not for you: 100%\" }"),
        route("Limited", "backend = \"app\"\nlimit = [{ rate = \"1/h\", burst = 1, key = \"all\" }]"),
        route("Long", "backend = \"app\"\nbody_limit = 10"),
        route("Silent", "backend = \"silent\""),
    ];
    let engine = Engine::start(&config.concat());
    engine.client("plain").get("/e2e.Peer/Limited");
    let target = |listener| format!("localhost:{}", engine.address(listener).port());
    python("grpc_client.py", &["refused", &target("plain")]).ok();
    let ca = Certificates::shared().ca().display().to_string();
    python("grpc_client.py", &["refused", &target("web"), &ca]).ok();
    // Log and metrics have what HTTP would have said.
    let line = engine.logged("a refusal", |line| line["path"] == "/e2e.Peer/Limited" && line["method"] == "POST");
    assert_eq!((&line["status"], &line["fault"]), (&429.into(), &"rate-limited".into()));
    let line = engine.logged_path("/e2e.Peer/Down");
    assert_eq!((&line["status"], &line["fault"]), (&502.into(), &"connect-refused".into()));
    // A client that asks for the same without gRPC is answered as ever.
    let arguments = ["--http2", "-d", "x", "-w", "%{http_code}", &format!("{}/e2e.Peer/Nowhere", engine.url("web"))];
    assert_eq!(curl(&arguments).ok().text(), "404 Not Found: no-route\n404");
}

#[test]
fn the_interpreter_has_what_the_stories_need() {
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", "import grpc, websockets"]);
    let said = propylon_e2e::program::run(command, b"", std::time::Duration::from_secs(60));
    assert!(said.status.success(), "scripts/setup.sh test installs them: {}", said.stderr);
}

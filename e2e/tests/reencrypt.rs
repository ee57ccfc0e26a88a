//! TLS to servers: whom the engine takes for one, what it shows to them, and that all else is as it is in plaintext.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use propylon_e2e::certificates::Certificates;
use propylon_e2e::engine::with;
use propylon_e2e::nginx::Nginx;
use propylon_e2e::program::curl_within;
use propylon_e2e::scratch::Scratch;
use propylon_e2e::secure::{SServer, SecureOrigin, read_request, send};
use propylon_e2e::{Client, Ending, Engine, Origin, holds};
use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256};
use rustls::version::{TLS12, TLS13};

const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody";

/// `tls` of a backend that trusts the stories' CA, with more in it.
fn tls(more: &str) -> String {
    let ca = Certificates::shared().ca();
    format!("tls = {{ ca = \"{}\"{more} }}", ca.display())
}

fn certificate() -> String {
    Certificates::shared().issue(&["localhost", "127.0.0.1", "app.internal"], &PKCS_ECDSA_P256_SHA256)
}

fn nginx(server: &str) -> Nginx {
    let nginx = Nginx::secure("tls", &Certificates::shared().ec(), server);
    std::fs::write(nginx.root().join("index.html"), "a small page\n").expect("a page");
    nginx
}

fn refused(engine: &Engine, reason: &str) {
    let response = engine.client("plain").get("/");
    assert_eq!((response.status, response.text()), (502, format!("502 Bad Gateway: {reason}\n")));
    let failures = "propylon_server_tls_handshake_failures_total";
    assert!(engine.metric(failures, &[("reason", reason)]) > 0.0);
    assert!(engine.metric("propylon_server_faults_total", &[("reason", reason)]) > 0.0);
    // The line may still be on its way.
    holds("the log says which server and why", || {
        let line = |line: &String| line.contains("backend \"app\", server 127.0.0.1:") && line.contains(reason);
        engine.stderr().iter().any(line)
    });
}

#[test]
fn pages_of_an_nginx_that_speaks_tls_come_through_on_connections_that_are_kept() {
    for (protocols, version) in [("TLSv1.2", "TLSv1.2"), ("TLSv1.3", "TLSv1.3"), ("TLSv1.2 TLSv1.3", "TLSv1.3")] {
        let nginx = nginx(&format!("ssl_protocols {protocols};"));
        let engine = Engine::start(&with(&[nginx.address()], "", &tls("")));
        let mut client = engine.client("web");
        for count in 1..=20 {
            let response = client.get("/tls");
            let expected = format!("reused=. name= {version} client=NONE requests={count}");
            assert_eq!((response.status, response.text()), (200, expected), "a name is not sent for an address");
        }
        assert_eq!(client.get("/").text(), "a small page\n");
        let response = client.ask("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nhello nginx");
        assert_eq!(response.text(), "POST 11");
        assert_eq!(engine.metric("propylon_server_connections_total", &[]), 1.0);
        assert_eq!(engine.metric("propylon_server_reused_total", &[]), 21.0);
        assert_eq!(engine.metric("propylon_server_tls_handshakes_total", &[("resumed", "false")]), 1.0);
    }
}

#[test]
fn a_server_of_a_stranger_is_refused_and_the_reason_is_told() {
    let other = Scratch::new();
    let key = rcgen::KeyPair::generate().expect("a key");
    let own = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name").self_signed(&key);
    let own = own.expect("a certificate");
    let pem = other.write("own.pem", own.pem() + &key.serialize_pem());
    let nginx = Nginx::secure("stranger", &pem, "");
    let address = nginx.address();
    refused(&Engine::start(&with(&[address], "", &tls(""))), "certificate-untrusted");
    // The system's authorities know it as little, where there are any.
    let engine = Engine::start(&with(&[address], "", "tls = { verify = false }"));
    let response = engine.client("plain").get("/tls");
    assert_eq!(response.status, 200);
    assert!(engine.stderr().join("\n").contains("`verify = false`: whoever gets between"), "it is said");
    // Trusted as it is, it is good for its own name only.
    let ca = pem.display();
    let engine = Engine::start(&with(&[address], "", &format!("tls = {{ ca = \"{ca}\" }}")));
    assert_eq!(engine.client("plain").get("/tls").status, 200);
    let engine = Engine::start(&with(&[address], "", &format!("tls = {{ ca = \"{ca}\", server_name = \"b.test\" }}")));
    refused(&engine, "certificate-name-mismatch");
}

#[test]
fn a_server_is_known_by_one_of_several_names_also_by_a_uri() {
    let scratch = Scratch::new();
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(["app.internal".to_owned()]).expect("a name");
    let uri = "spiffe://cluster.example/app".try_into().expect("a URI");
    params.subject_alt_names.push(rcgen::SanType::URI(uri));
    let own = params.self_signed(&key).expect("a certificate");
    let pem = scratch.write("own.pem", own.pem() + &key.serialize_pem());
    let nginx = Nginx::secure("names", &pem, "");
    let backend =
        |names: &str| format!("tls = {{ ca = \"{}\", server_name = \"b.test\", names = [{names}] }}", pem.display());
    let with_names = |names: &str| with(&[nginx.address()], "", &backend(names));
    let mut engine = None;
    for names in ["\"app.internal\"", "\"other.test\", \"spiffe://cluster.example/app\""] {
        let started = Engine::start(&with_names(names));
        let text = started.client("plain").get("/tls").text();
        assert!(text.contains(" name=b.test "), "the name that is asked for is another: {text}");
        engine = Some(started);
    }
    for names in ["\"b.test\"", "\"spiffe://cluster.example/other\", \"spiffe://cluster.example/\""] {
        refused(&Engine::start(&with_names(names)), "certificate-name-mismatch");
    }
    // A reload with other names counts for connections from then on, and keeps none that was made by the old ones.
    let engine = engine.expect("one is running");
    engine.rewrite(&with_names("\"other.test\""));
    engine.reload();
    refused(&engine, "certificate-name-mismatch");
}

#[test]
fn a_certificate_that_is_over_and_a_server_without_tls_are_refused() {
    let scratch = Scratch::new();
    let authority = Certificates::shared();
    let pem = authority.issue_dated(&["127.0.0.1"], (2001, 2002));
    let nginx = Nginx::secure("old", &scratch.write("old.pem", pem), "");
    refused(&Engine::start(&with(&[nginx.address()], "", &tls(""))), "certificate-expired");
    let pem = authority.issue_dated(&["127.0.0.1"], (2091, 2092));
    let nginx = Nginx::secure("new", &scratch.write("new.pem", pem), "");
    refused(&Engine::start(&with(&[nginx.address()], "", &tls(""))), "certificate-not-yet-valid");
    let plain = Origin::scripted(|peer| {
        peer.read_some();
        peer.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
    });
    refused(&Engine::start(&with(&[plain.address()], "", &tls(""))), "tls-not-spoken");
    let mute = Origin::scripted(|peer| {
        peer.read_some();
        peer.close();
    });
    refused(&Engine::start(&with(&[mute.address()], "", &tls(""))), "tls-handshake-failed");
    let old = nginx_with("ssl_protocols TLSv1.2;");
    refused(&Engine::start(&with(&[old.address()], "", &tls(", policy = \"modern\""))), "tls-alert");
}

fn nginx_with(server: &str) -> Nginx {
    Nginx::secure("tls", &Certificates::shared().ec(), server)
}

#[test]
fn a_server_that_says_nothing_is_given_up_in_the_time_for_connects() {
    let silent = Origin::scripted(|peer| {
        peer.await_close(std::time::Duration::from_secs(20));
    });
    let good = nginx("");
    let backend = format!("{}\nretries = 0\ntimeouts = {{ connect = \"300ms\" }}", tls(""));
    let engine = Engine::start(&with(&[silent.address()], "", &backend));
    let response = engine.client("plain").get("/");
    assert_eq!((response.status, response.text().as_str()), (504, "504 Gateway Timeout: tls-timeout\n"));
    assert_eq!(engine.metric("propylon_server_tls_handshake_failures_total", &[("reason", "tls-timeout")]), 1.0);
    // With another server and a second attempt nobody notices.
    let backend = format!("{}\ntimeouts = {{ connect = \"300ms\" }}", tls(""));
    let engine = Engine::start(&with(&[silent.address(), good.address()], "", &backend));
    for _ in 0..4 {
        assert_eq!(engine.client("plain").get("/").text(), "a small page\n");
    }
}

#[test]
fn the_configured_name_is_asked_for_and_verified() {
    let scratch = Scratch::new();
    let nginx = Nginx::secure("sni", &scratch.write("app.pem", certificate()), "");
    let name = |more: &str| {
        let engine = Engine::start(&with(&[nginx.address()], "", &tls(more)));
        engine.client("plain").get("/tls").text()
    };
    assert!(name(", server_name = \"app.internal\"").contains(" name=app.internal "));
    assert!(name(", server_name = \"app.internal\", sni = false").contains(" name= "));
    // A server that is configured by its name is asked for by that name.
    let backend = format!(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n[backend.app]\nservers = [\"localhost:{}\"]\n{}\n\
         [[route]]\nbackend = \"app\"\n",
        nginx.address().port(),
        tls("")
    );
    let engine = Engine::start(&backend);
    assert!(engine.client("plain").get("/tls").text().contains(" name=localhost "));
}

#[test]
fn a_server_that_wants_a_certificate_gets_ours() {
    let certificates = Certificates::shared();
    let scratch = Scratch::new();
    let ca = certificates.ca();
    let nginx = nginx(&format!("ssl_client_certificate {};\nssl_verify_client on;", ca.display()));
    for (algorithm, name) in [(&PKCS_ECDSA_P256_SHA256, "ec"), (&PKCS_RSA_SHA256, "rsa"), (&PKCS_ED25519, "ed25519")] {
        let pem = scratch.write(name, certificates.issue(&["engine"], algorithm));
        let backend = tls(&format!(", certificate = \"{}\"", pem.display()));
        let engine = Engine::start(&with(&[nginx.address()], "", &backend));
        let text = engine.client("plain").get("/tls").text();
        assert!(text.contains("client=SUCCESS"), "{name}: {text}");
    }
    let engine = Engine::start(&with(&[nginx.address()], "", &tls("")));
    let response = engine.client("plain").get("/tls");
    assert!(response.status == 400 && response.text().contains("No required SSL certificate"), "nginx says so itself");
    // One that refuses by an alert comes after the handshake, in TLS 1.3.
    let strict = SServer::start(
        &certificates.ec(),
        &["-Verify", "1", "-verify_return_error", "-CAfile", &ca.display().to_string()],
    );
    let engine = Engine::start(&with(&[strict.address()], "", &tls("")));
    let response = engine.client("plain").get("/");
    assert_eq!((response.status, response.text().as_str()), (502, "502 Bad Gateway: tls-alert\n"));
    holds("it is said", || engine.stderr().join("\n").contains("it may want a client certificate"));
}

#[test]
fn sessions_are_resumed() {
    for protocols in ["TLSv1.2", "TLSv1.3"] {
        let nginx = nginx(&format!("ssl_protocols {protocols};\nssl_session_cache shared:s:1m;"));
        let connections = 40;
        let engine = Engine::start(&with(&[nginx.address()], "", &format!("{}\nmax_requests = 1", tls(""))));
        let mut client = engine.client("plain");
        let reused = (0..connections).filter(|_| client.get("/tls").text().starts_with("reused=r ")).count();
        assert_eq!(reused, connections - 1, "{protocols}");
        let handshakes = |resumed| engine.metric("propylon_server_tls_handshakes_total", &[("resumed", resumed)]);
        assert_eq!((handshakes("false"), handshakes("true")), (1.0, 39.0));
        let backend = format!("{}\nmax_requests = 1", tls(", resume = false"));
        let engine = Engine::start(&with(&[nginx.address()], "", &backend));
        let mut client = engine.client("plain");
        assert!((0..5).all(|_| client.get("/tls").text().starts_with("reused=. ")), "{protocols}");
    }
}

/// They have different names to be verified, so that an index of the one list is another's in the next.
#[test]
fn sessions_are_those_of_their_servers_when_the_list_changes() {
    let servers = [(); 3].map(|()| nginx("ssl_session_cache shared:s:1m;"));
    let [one, two, three] = [0, 1, 2].map(|at| servers[at].address());
    let (one, two, three) = (format!("\"localhost:{}\"", one.port()), format!("\"{two}\""), format!("\"{three}\""));
    let text = |list: &[&String]| {
        let list: Vec<&str> = list.iter().map(|server| server.as_str()).collect();
        let lines = format!("{}\nmax_requests = 1", tls(""));
        with(&[], "", &lines).replace("servers = []", &format!("servers = [{}]", list.join(", ")))
    };
    let engine = Engine::start(&text(&[&one, &two]));
    let mut client = engine.client("plain");
    let mut ask = |count: usize| {
        (0..count).for_each(|_| assert_eq!(client.get("/tls").status, 200));
        ["false", "true"].map(|resumed| engine.metric("propylon_server_tls_handshakes_total", &[("resumed", resumed)]))
    };
    assert_eq!(ask(4), [2.0, 2.0]);
    for (list, count, expected) in [
        (vec![&two, &one], 4, [2.0, 6.0]),
        // One is new, and has no session yet.
        (vec![&three, &one, &two], 6, [3.0, 11.0]),
        (vec![&two], 2, [3.0, 13.0]),
    ] {
        engine.rewrite(&text(&list));
        engine.reload();
        assert_eq!(ask(count), expected, "{list:?}");
    }
}

#[test]
fn openssl_s_server_is_understood_with_each_version_and_cipher() {
    let ec = Certificates::shared().ec();
    for arguments in [
        &["-tls1_2"][..],
        &["-tls1_3"],
        &["-tls1_3", "-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"],
        &["-tls1_3", "-ciphersuites", "TLS_AES_256_GCM_SHA384"],
        &["-tls1_2", "-cipher", "ECDHE-ECDSA-CHACHA20-POLY1305"],
        &["-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384"],
        &["-tls1_3", "-num_tickets", "5"],
        &["-tls1_3", "-groups", "P-384"],
    ] {
        let server = SServer::start(&ec, arguments);
        let engine = Engine::start(&with(&[server.address()], "", &tls("")));
        for _ in 0..3 {
            let response = engine.client("plain").get("/");
            assert!(response.status == 200 && response.text().contains("Cipher"), "{arguments:?} {}", response.head);
        }
        // It ends each connection behind its answer, so there is nothing to reuse but sessions.
        assert_eq!(engine.metric("propylon_server_tls_handshakes_total", &[("resumed", "true")]), 2.0, "{arguments:?}");
    }
}

#[test]
fn a_hundred_megabytes_arrive_byte_for_byte_both_ways() {
    let bytes: Vec<u8> = (0..100_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
    for (protocols, listener) in [("TLSv1.3", "web"), ("TLSv1.2", "plain")] {
        let nginx = nginx(&format!("ssl_protocols {protocols};"));
        let engine = Engine::start(&with(&[nginx.address()], "", &tls("")));
        let folder = Scratch::new();
        let upload = folder.write("upload", &bytes);
        let url = engine.url(listener) + "/upload/file";
        let limit = std::time::Duration::from_secs(120);
        let path = upload.display().to_string();
        let said =
            curl_within(limit, &["--upload-file", &path, "--write-out", "%{http_code}", "-o", "/dev/null", &url]);
        assert_eq!(said.ok().text(), "201", "{protocols}");
        assert!(std::fs::read(nginx.root().join("upload/file")).expect("what nginx got") == bytes, "{protocols}");
        assert!(curl_within(limit, &[&url]).ok().stdout == bytes, "{protocols}");
    }
}

/// Answers the first request of a connection, reads the second and closes.
fn forgetful(in_order: bool) -> SecureOrigin {
    SecureOrigin::scripted(&certificate(), &[&TLS13, &TLS12], move |_, stream| {
        if read_request(stream).is_some() {
            send(stream, HELLO);
            read_request(stream);
            if in_order {
                stream.conn.send_close_notify();
                send(stream, "");
            }
        }
    })
}

#[test]
fn a_connection_that_turns_out_to_be_stale_is_not_felt() {
    for in_order in [true, false] {
        let origin = forgetful(in_order);
        let engine = Engine::start(&with(&[origin.address()], "", &tls("")));
        let mut client = engine.client("web");
        for count in 1..=4 {
            assert_eq!(client.get("/").text(), "hello\n", "{count}");
            holds("it is idle", || engine.metric("propylon_server_connections_idle", &[]) == 1.0);
        }
        assert_eq!(engine.metric("propylon_stale_retries_total", &[]), 3.0);
        assert_eq!(origin.connections(), 4);
        // What may not be sent twice ends without an answer.
        client.send(POST);
        assert_eq!(client.read_to_end(), (Vec::new(), Ending::Clean));
    }
}

/// A server that has no time says so with the last words of its handshake, before it has read a request, and stays.
#[test]
fn what_a_server_says_with_its_handshake_is_its_answer() {
    const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\nbusy\n";
    for version in [&TLS12, &TLS13] {
        let origin = SecureOrigin::scripted(&certificate(), &[version], |_, stream| {
            stream.conn.writer().write_all(BUSY).expect("room for it");
            let _ = stream.flush();
            while read_request(stream).is_some() {}
        });
        let engine = Engine::start(&with(&[origin.address()], "", &tls("")));
        // The whole request goes out first, or a part of it, with the rest on its way for ever.
        for request in
            ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nbody"]
        {
            let mut client = engine.client("plain");
            client.send(request);
            let response = client.read_response();
            assert_eq!((response.status, response.text().as_str()), (503, "busy\n"), "{version:?} {request}");
        }
    }
}

/// A server that passes over ALPN speaks HTTP/1.1, to those who let it.
#[test]
fn a_server_that_agrees_on_no_protocol_is_spoken_to_in_http1_or_not_at_all() {
    let origin = SecureOrigin::scripted(&certificate(), &[&TLS13], |_, stream| {
        while read_request(stream).is_some() {
            send(stream, HELLO);
        }
    });
    let status = |protocol: &str| {
        let backend = format!("protocol = \"{protocol}\"\nretries = 0\n{}", tls(""));
        let response = Engine::start(&with(&[origin.address()], "", &backend)).client("plain").get("/");
        (response.status, response.text())
    };
    assert_eq!(status("auto"), (200, "hello\n".to_owned()));
    assert_eq!(status("h2"), (502, "502 Bad Gateway: no-http2\n".to_owned()));
}

#[test]
fn an_end_that_was_not_announced_is_told_from_one_that_was() {
    let whole = |number: usize| number.is_multiple_of(2);
    let origin = SecureOrigin::scripted(&certificate(), &[&TLS13], move |number, stream| {
        if read_request(stream).is_some() {
            send(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall there is");
            if whole(number) {
                stream.conn.send_close_notify();
                send(stream, "");
            }
        }
    });
    let engine = Engine::start(&with(&[origin.address()], "", &tls("")));
    for _ in 0..3 {
        let mut client = engine.client("plain");
        client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        assert_eq!(client.read_response().text(), "all there is");
        let mut client = engine.client("plain");
        client.send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let (bytes, ending) = client.read_to_end();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert!(!text.ends_with("0\r\n\r\n") && ending != Ending::Clean, "{ending:?} {text}");
    }
    assert_eq!(engine.metric("propylon_server_faults_total", &[("reason", "body-cut-short")]), 3.0);
}

#[test]
fn a_websocket_goes_through_to_a_server_that_speaks_tls() {
    const ASK: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
    const SWITCHED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nhi";
    let ended = Arc::new(AtomicUsize::new(0));
    let clean = Arc::clone(&ended);
    let origin = SecureOrigin::scripted(&certificate(), &[&TLS13, &TLS12], move |_, stream| {
        use std::io::Read;
        if read_request(stream).is_none() {
            return;
        }
        send(stream, SWITCHED);
        let mut piece = vec![0; 30_000];
        loop {
            match stream.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => send(stream, &piece[..count]),
                // Without close_notify it is an error.
                Err(_) => return,
            }
        }
        clean.fetch_add(1, Ordering::SeqCst);
        send(stream, "bye");
        stream.conn.send_close_notify();
        send(stream, "");
    });
    let engine = Engine::start(&with(&[origin.address()], "", &tls("")));
    for listener in ["plain", "web"] {
        let mut client: Client = engine.client(listener);
        client.send(ASK);
        let head = client.read_head();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert_eq!(client.read_exact(2), b"hi");
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        for _ in 0..10 {
            client.send(&bytes);
            assert!(client.read_exact(bytes.len()) == bytes, "{listener}");
        }
        client.finish();
        assert_eq!(client.read_to_end(), (b"bye".to_vec(), Ending::Clean), "{listener}");
    }
    assert_eq!(ended.load(Ordering::SeqCst), 2, "the end is announced");
    holds("all connections end", || engine.metric("propylon_server_connections", &[]) == 0.0);
}

#[test]
fn connections_made_ahead_take_their_tickets_and_stay() {
    // Holds what it is asked for together until it has been asked for it three times.
    let together = Barrier::new(3);
    let origin = SecureOrigin::scripted(&certificate(), &[&TLS13], move |_, stream| {
        while let Some(request) = read_request(stream) {
            if request.starts_with(b"POST /together") {
                together.wait();
            }
            send(stream, HELLO);
        }
    });
    let engine =
        Engine::start(&with(&[origin.address()], "", &format!("{}\nmin_idle = 3\nreuse = \"always\"", tls(""))));
    engine.client("plain").get("/");
    holds("connections are made ahead", || engine.metric("propylon_server_connections_idle", &[]) == 3.0);
    let reused = engine.metric("propylon_server_reused_total", &[]);
    let mut clients = [(); 3].map(|()| engine.client("plain"));
    // Requests that cannot be repeated are particular about what has come to a connection.
    clients
        .iter_mut()
        .for_each(|client| client.send("POST /together HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"));
    clients.iter_mut().for_each(|client| assert_eq!(client.read_response().text(), "hello\n"));
    assert_eq!(engine.metric("propylon_server_stale_total", &[]), 0.0);
    assert_eq!(engine.metric("propylon_server_reused_total", &[]), reused + 3.0);
}

#[test]
fn new_authorities_and_certificates_are_taken_up_by_a_signal() {
    let certificates = Certificates::shared();
    let scratch = Scratch::new();
    let ca = certificates.ca();
    let nginx = nginx(&format!("ssl_client_certificate {};\nssl_verify_client optional;", ca.display()));
    let stranger = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let stranger = params.self_signed(&stranger).expect("another CA").pem();
    let trusted = scratch.write("trusted.pem", &stranger);
    let engine = Engine::start(&with(
        &[nginx.address()],
        "",
        &format!("max_requests = 1\ntls = {{ ca = \"{}\" }}", trusted.display()),
    ));
    refused(&engine, "certificate-untrusted");
    copy(&ca, &trusted);
    engine.signal(rustix::process::Signal::HUP);
    holds("the new authority is trusted", || engine.client("plain").get("/tls").status == 200);
    std::fs::write(&trusted, "nothing").expect("a file");
    engine.signal(rustix::process::Signal::HUP);
    holds("it is said", || engine.stderr().join("\n").contains("those from before stay in use"));
    assert_eq!(engine.client("plain").get("/tls").status, 200);
}

#[test]
fn new_authorities_are_taken_up_by_themselves_where_that_is_wanted() {
    let certificates = Certificates::shared();
    let scratch = Scratch::new();
    let nginx = nginx("");
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let stranger = params.self_signed(&rcgen::KeyPair::generate().expect("a key")).expect("another CA").pem();
    let trusted = scratch.write("trusted.pem", &stranger);
    let text = |retries: u8| {
        let tls = format!("tls = {{ ca = \"{}\", watch = \"1s\" }}", trusted.display());
        with(&[nginx.address()], "", &format!("max_requests = 1\nretries = {retries}\n{tls}"))
    };
    let engine = Engine::start(&text(0));
    refused(&engine, "certificate-untrusted");
    copy(&certificates.ca(), &trusted);
    holds("the new authority is trusted", || engine.client("plain").get("/tls").status == 200);
    engine.rewrite(&text(1));
    engine.reload();
    std::fs::write(&trusted, "nothing").expect("a file");
    holds("it is said", || engine.stderr().join("\n").contains("those from before stay in use"));
    assert_eq!(engine.client("plain").get("/tls").status, 200);
    std::fs::write(&trusted, &stranger).expect("a file");
    holds("the authority is trusted no more", || engine.client("plain").get("/tls").status == 502);
}

fn copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).expect("a file");
}

//! The clients that people use: curl and openssl speak to the engine as they do to any server.

use std::path::Path;

use propylon_e2e::engine::{simple, with};
use propylon_e2e::http::{Body, framing, head_end};
use propylon_e2e::program::{Said, curl, s_client};
use propylon_e2e::{Engine, Origin, Scratch};

/// An origin that tells the method and gives the body back.
fn echo() -> Origin {
    Origin::answering(|request| {
        let end = head_end(request).expect("a whole request");
        let head = String::from_utf8_lossy(&request[..end]).into_owned();
        let method = head.split(' ').next().unwrap_or_default();
        let body = match framing(&head, Body::None) {
            Body::Chunked => propylon_e2e::http::chunked(&request[end..]).expect("a whole body").data,
            _ => request[end..].to_vec(),
        };
        let mut answer = format!("HTTP/1.1 200 OK\r\nX-Method: {method}\r\nContent-Length: {}\r\n\r\n", body.len());
        if method == "HEAD" {
            answer = "HTTP/1.1 200 OK\r\nX-Method: HEAD\r\nContent-Length: 4711\r\n\r\n".into();
        }
        [answer.as_bytes(), &body].concat()
    })
}

fn hello() -> Origin {
    Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n")
}

/// 3 MB that do not repeat in any length a buffer has.
fn large_body() -> Vec<u8> {
    (0..3_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn upload(arguments: &[&str]) {
    let origin = echo();
    let engine = Engine::start(&simple(&[origin.address()]));
    let scratch = Scratch::new();
    let body = large_body();
    let file = scratch.write("body", &body);
    let data = format!("@{}", file.display());
    for listener in ["plain", "web"] {
        let url = engine.url(listener);
        let said = curl(&[&["--data-binary", &data, &url], arguments].concat()).ok();
        assert_eq!(said.stdout.len(), body.len(), "{listener}");
        assert!(said.stdout == body, "{listener}: the body changed on its way");
    }
}

#[test]
fn curl_gets_a_page_over_http_and_over_https() {
    let origin = hello();
    let engine = Engine::start(&simple(&[origin.address()]));
    for listener in ["plain", "web"] {
        assert_eq!(curl(&[&engine.url(listener)]).ok().text(), "hello\n");
    }
}

#[test]
fn curl_speaks_http_1_0_and_gets_the_connection_closed() {
    let origin = hello();
    let engine = Engine::start(&with(&[origin.address()], "", "via = true"));
    for listener in ["plain", "web"] {
        let said = curl(&["--http1.0", "--include", &engine.url(listener)]).ok().text();
        assert!(said.starts_with("HTTP/1.1 200 OK\r\n"), "{said}");
        assert!(said.contains("\r\nConnection: close\r\n"), "{said}");
        assert!(said.ends_with("\r\n\r\nhello\n"), "{said}");
    }
    assert!(origin.received_text().contains("Via: 1.0 propylon\r\n"));
}

#[test]
fn curl_posts_a_file() {
    upload(&["--header", "Expect:"]);
}

#[test]
fn curl_posts_in_chunks() {
    upload(&["--header", "Transfer-Encoding: chunked", "--header", "Expect:"]);
}

#[test]
fn curl_waits_for_100_continue_before_a_large_body() {
    let origin = Origin::scripted(|peer| {
        while let Some(head) = peer.read_head() {
            assert!(String::from_utf8_lossy(&head).contains("\r\nExpect: 100-continue\r\n"));
            peer.send("HTTP/1.1 100 Continue\r\n\r\n");
            let Body::Length(length) = framing(&String::from_utf8_lossy(&head), Body::None) else { return };
            let body = peer.read_exact(length).unwrap_or_default();
            peer.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()));
            peer.send(body);
        }
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    let scratch = Scratch::new();
    let body = large_body();
    let data = format!("@{}", scratch.write("body", &body).display());
    for listener in ["plain", "web"] {
        let url = engine.url(listener);
        let verbose = ["--verbose", "--header", "Expect: 100-continue", "--expect100-timeout", "20"];
        let said = curl(&[&["--data-binary", &data, &url], &verbose[..]].concat()).ok();
        assert!(said.stdout == body, "{listener}: the body changed on its way");
        assert!(
            ["< HTTP/1.1 100", "< HTTP/2 100"].iter().any(|interim| said.stderr.contains(interim)),
            "{}",
            said.stderr
        );
    }
}

#[test]
fn curl_asks_for_a_head_alone() {
    let origin = echo();
    let engine = Engine::start(&simple(&[origin.address()]));
    for listener in ["plain", "web"] {
        let said = curl(&["--head", &engine.url(listener)]).ok().text().to_lowercase();
        assert!(said.contains("x-method: head\r\n") && said.contains("content-length: 4711\r\n"), "{said}");
    }
}

#[test]
fn curl_reuses_its_connection() {
    let origin = hello();
    let engine = Engine::start(&simple(&[origin.address()]));
    let url = engine.url("web");
    let said = curl(&["--write-out", "%{num_connects}\n", &url, &url, &url]).ok().text();
    assert_eq!(said, "hello\n1\nhello\n0\nhello\n0\n");
    assert_eq!(origin.connections(), 1, "one connection of the client, one to the server");
}

#[test]
fn curl_speaks_tls_1_2_and_tls_1_3() {
    let origin = hello();
    let engine = Engine::start(&simple(&[origin.address()]));
    for (arguments, version) in
        [(["--tlsv1.2", "--tls-max", "1.2"], "TLSv1.2"), (["--tlsv1.3", "--tls-max", "1.3"], "TLSv1.3")]
    {
        let url = format!("{}/{version}", engine.url("web"));
        let said = curl(&[&["--verbose", &url], &arguments[..]].concat()).ok();
        assert_eq!(said.text(), "hello\n");
        assert!(said.stderr.contains(&format!("SSL connection using {version}")), "{}", said.stderr);
        let line = engine.logged_path(&format!("/{version}"));
        assert_eq!(line["tls"]["version"], version);
        assert_eq!(line["tls"]["certificate"], "ecdsa");
        let labels = [("version", version), ("certificate", "ecdsa"), ("resumed", "false")];
        engine.metric_reaches("propylon_tls_handshakes_total", &labels, 1.0);
    }
}

#[test]
fn curl_is_refused_without_the_right_name() {
    let origin = hello();
    let engine = Engine::start(&simple(&[origin.address()]));
    let port = engine.address("web").port();
    let resolve = format!("other.test:{port}:127.0.0.1");
    let said = curl(&["--resolve", &resolve, &format!("https://other.test:{port}/")]);
    assert_eq!(said.status.code(), Some(60), "certificates are verified in these tests: {}", said.stderr);
}

#[test]
fn plain_http_on_the_tls_port_gets_a_readable_answer() {
    let origin = hello();
    let engine = Engine::start(&simple(&[origin.address()]));
    let url = format!("http://localhost:{}/", engine.address("web").port());
    let said = curl(&["--include", &url]).ok().text();
    assert!(said.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{said}");
    assert!(said.ends_with("This port speaks TLS: use https:// instead of http://.\n"), "{said}");
    engine.metric_reaches("propylon_tls_handshake_failures_total", &[("reason", "not-tls")], 1.0);
    assert_eq!(origin.connections(), 0);
}

const GET: &str = "GET /s_client HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

#[track_caller]
fn answered(said: Said) -> Said {
    assert!(said.text().contains("HTTP/1.1 200 OK"), "stdout:\n{}\nstderr:\n{}", said.text(), said.stderr);
    said
}

#[test]
fn openssl_forces_the_certificate_it_wants() {
    let origin = hello();
    let engine = Engine::start(&simple(&[origin.address()]));
    let port = engine.address("web").port();
    let cases: &[(&[&str], &str, &str)] = &[
        (&["-tls1_3", "-sigalgs", "rsa_pss_rsae_sha256"], "rsa", "Peer signature type: RSA-PSS"),
        (&["-tls1_3", "-sigalgs", "ECDSA+SHA256"], "ecdsa", "Peer signature type: ECDSA"),
        (&["-tls1_2", "-cipher", "ECDHE-RSA-AES128-GCM-SHA256"], "rsa", "Cipher is ECDHE-RSA-AES128-GCM-SHA256"),
        (&["-tls1_2", "-cipher", "ECDHE-ECDSA-AES256-GCM-SHA384"], "ecdsa", "Cipher is ECDHE-ECDSA-AES256-GCM-SHA384"),
        (&["-tls1_2", "-sigalgs", "RSA+SHA256"], "rsa", "Peer signature type: RSA"),
        (&["-tls1_2", "-cipher", "ECDHE-RSA-CHACHA20-POLY1305"], "rsa", "Cipher is ECDHE-RSA-CHACHA20-POLY1305"),
    ];
    for (index, (arguments, certificate, says)) in cases.iter().enumerate() {
        let said = answered(s_client(port, arguments, &GET.replace("s_client", &index.to_string())));
        assert!(said.text().contains(says), "{arguments:?}:\n{}", said.text());
        assert!(said.text().contains("Verify return code: 0 (ok)"), "{arguments:?}:\n{}", said.text());
        assert_eq!(engine.logged_path(&format!("/{index}"))["tls"]["certificate"], *certificate, "{arguments:?}");
    }
}

#[test]
fn openssl_chooses_the_group() {
    let origin = hello();
    let engine = Engine::start(&simple(&[origin.address()]));
    let port = engine.address("web").port();
    // In TLS 1.2 the groups bind the certificate's curve as well (RFC 8422 §5.1): without P-256 it is the RSA one.
    for version in ["-tls1_2", "-tls1_3"] {
        for (group, says) in [("X25519", "X25519"), ("P-256", "ECDH, prime256v1"), ("P-384", "ECDH, secp384r1")] {
            let said = answered(s_client(port, &[version, "-groups", group], GET));
            assert!(said.text().contains(&format!("Server Temp Key: {says}")), "{version:?} {group}:\n{}", said.text());
        }
    }
    let said = s_client(port, &["-tls1_3", "-groups", "P-521"], GET);
    assert!(!said.status.success() && said.stderr.contains("alert handshake failure"), "{}", said.stderr);
    engine.metric_reaches("propylon_tls_handshake_failures_total", &[("reason", "no-shared-group")], 1.0);
}

#[test]
fn openssl_agrees_on_http_1_1_and_nothing_else() {
    let origin = hello();
    let engine = Engine::start(&simple(&[origin.address()]));
    let port = engine.address("web").port();
    let said = answered(s_client(port, &["-alpn", "spdy/3,http/1.1", "-servername", "shop.test"], GET));
    assert!(said.text().contains("ALPN protocol: http/1.1"), "{}", said.text());
    answered(s_client(port, &["-noservername"], GET));
    let said = s_client(port, &["-alpn", "spdy/3"], GET);
    assert!(said.stderr.contains("alert no application protocol"), "{}", said.stderr);
    engine.metric_reaches("propylon_tls_handshake_failures_total", &[("reason", "no-application-protocol")], 1.0);
}

fn resumes(version: &str, name: &str) {
    let origin = hello();
    let engine = Engine::start(&simple(&[origin.address()]));
    let port = engine.address("web").port();
    let scratch = Scratch::new();
    let session = scratch.join("session.pem").display().to_string();
    let said = answered(s_client(port, &[version, "-sess_out", &session], GET));
    assert!(said.text().contains("\nNew, TLSv"), "{}", said.text());
    assert!(Path::new(&session).exists(), "a session was saved");
    let said = answered(s_client(port, &[version, "-sess_in", &session], &GET.replace("s_client", "again")));
    assert!(said.text().contains("\nReused, TLSv"), "{}", said.text());
    let line = engine.logged_path("/again");
    assert_eq!((&line["tls"]["resumed"], &line["tls"]["version"]), (&true.into(), &name.into()));
    engine.metric_reaches("propylon_tls_handshakes_total", &[("version", name), ("resumed", "true")], 1.0);
}

#[test]
fn openssl_resumes_a_tls_1_2_session() {
    resumes("-tls1_2", "TLSv1.2");
}

#[test]
fn openssl_resumes_a_tls_1_3_session() {
    resumes("-tls1_3", "TLSv1.3");
}

#[test]
fn old_versions_are_refused_with_an_alert() {
    let origin = hello();
    let modern = "[tls.modern]\npolicy = \"modern\"\n".to_owned()
        + &propylon_e2e::Certificates::shared().profile().replace("[tls.public]\n", "")
        + "[listener.strict]\nbind = \"127.0.0.1:0\"\ntls = \"modern\"\n";
    let engine = Engine::start(&(with(&[origin.address()], "", "") + &modern));
    // The security level must be lowered for openssl to even offer TLS 1.1.
    let said = s_client(engine.address("web").port(), &["-tls1_1", "-cipher", "DEFAULT:@SECLEVEL=0"], GET);
    assert!(said.stderr.contains("alert protocol version"), "{}", said.stderr);
    let said = s_client(engine.address("strict").port(), &["-tls1_2"], GET);
    assert!(said.stderr.contains("alert protocol version"), "{}", said.stderr);
    for listener in ["web", "strict"] {
        let labels = [("listener", listener), ("reason", "version")];
        engine.metric_reaches("propylon_tls_handshake_failures_total", &labels, 1.0);
    }
    answered(s_client(engine.address("strict").port(), &["-tls1_3"], GET));
}

//! HTTP as its readers expect it: order, persistence, interim responses, trailers, framing, early answers, half-closes.

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use propylon_e2e::engine::{simple, with};
use propylon_e2e::frames::{HEADERS, Http2Server, NO_ERROR, RST_STREAM};
use propylon_e2e::http::{Body, framing, in_chunks};
use propylon_e2e::{Client, Ending, Engine, Origin, Peer, holds};

const LISTENERS: [&str; 2] = ["plain", "web"];
const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello\n";

/// Answers with the request's path.
fn paths() -> Origin {
    Origin::answering(|request| {
        let path = String::from_utf8_lossy(request).split(' ').nth(1).unwrap_or_default().to_owned();
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{path}", path.len()).into_bytes()
    })
}

/// A fresh engine before an origin, and a client on each of its listeners in turn.
fn on_both(origin: &Origin, story: impl Fn(&Engine, &mut Client)) {
    let engine = Engine::start(&simple(&[origin.address()]));
    for listener in LISTENERS {
        story(&engine, &mut engine.client(listener));
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let origin = paths();
    on_both(&origin, |_, client| {
        let mut requests = String::new();
        for n in 0..50 {
            requests += &format!("GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n");
        }
        requests +=
            "POST /post HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbodyGET /after HTTP/1.1\r\nHost: a\r\n\r\n";
        requests += "POST /chunks HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n";
        requests += "GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /never HTTP/1.1\r\nHost: a\r\n\r\n";
        client.send(requests);
        for n in 0..50 {
            assert_eq!(client.read_response().text(), format!("/{n}"));
        }
        for path in ["/post", "/after", "/chunks", "/last"] {
            assert_eq!(client.read_response().text(), path);
        }
        assert_ne!(client.ending(), Ending::Open);
    });
    assert_eq!(origin.connections(), 1, "one after the other needs one connection");
    assert!(!origin.received_text().contains("/never"), "nothing follows a request that ends the connection");
}

#[test]
fn connections_are_kept_on_both_sides() {
    let origin = paths();
    let engine = Engine::start(&simple(&[origin.address()]));
    for listener in LISTENERS {
        let mut client = engine.client(listener);
        for n in 0..20 {
            assert_eq!(client.get(&format!("/{n}")).text(), format!("/{n}"));
        }
    }
    assert_eq!(origin.connections(), 1);
    assert_eq!(engine.metric("propylon_connections_total", &[]), 2.0);
    assert_eq!(engine.metric("propylon_server_reused_total", &[]), 39.0);
    holds("the clients' connections are gone", || engine.metric("propylon_connections", &[]) == 0.0);
}

#[test]
fn a_server_that_closes_is_not_asked_on_the_same_connection_again() {
    let origin = Origin::scripted(|peer| {
        if peer.read_request().is_some() {
            peer.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 6\r\n\r\nhello\n");
        }
        peer.close();
    });
    on_both(&origin, |_, client| {
        for _ in 0..3 {
            let response = client.get("/");
            assert_eq!((response.status, response.field("Connection")), (200, None));
        }
    });
    assert_eq!(origin.connections(), 6);
}

#[test]
fn responses_without_a_body_end_with_their_head() {
    let origin = Origin::answering(|request| {
        let text = String::from_utf8_lossy(request);
        let answer = match text.split(' ').nth(1) {
            Some("/head") => "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
            Some("/chunked") => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            Some("/204") => "HTTP/1.1 204 No Content\r\n\r\n",
            Some("/304") => "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 1000\r\n\r\n",
            Some("/0") => "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            _ => HELLO,
        };
        answer.into()
    });
    on_both(&origin, |_, client| {
        client.send("HEAD /head HTTP/1.1\r\nHost: a\r\n\r\n");
        let head = client.read_head();
        assert!(head.contains("\r\nContent-Length: 1000"), "{head}");
        client.send("HEAD /chunked HTTP/1.1\r\nHost: a\r\n\r\n");
        let head = client.read_head();
        assert!(head.contains("\r\nTransfer-Encoding: chunked"), "{head}");
        let response = client.get("/204");
        assert_eq!((response.status, response.field("Content-Length")), (204, None));
        let response = client.get("/304");
        assert_eq!((response.status, response.field("ETag")), (304, Some("\"x\"")));
        assert_eq!(client.get("/0").text(), "");
        assert_eq!(client.get("/").text(), "hello\n", "every response ended where the next began");
    });
    assert_eq!(origin.connections(), 1);
}

#[test]
fn interim_responses_are_handed_on_to_clients_that_can_read_them() {
    let origin = Origin::answering(|_| {
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n";
        format!("{hints}HTTP/1.1 102 Processing\r\n\r\n{HELLO}").into_bytes()
    });
    on_both(&origin, |_, client| {
        let hints = client.get("/");
        assert_eq!((hints.status, hints.field("Link")), (103, Some("</style.css>; rel=preload")));
        assert_eq!(client.read_response().status, 102);
        assert_eq!(client.read_response().text(), "hello\n");
        let response = client.ask("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
        assert_eq!(response.text(), "hello\n", "HTTP/1.0 knows no interim responses");
    });
}

#[test]
fn hints_reach_the_client_before_the_answer_is_there() {
    let (go, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = Origin::scripted(move |peer| {
        while peer.read_request().is_some() {
            peer.send("HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n");
            let _ = wait.lock().expect("one request at a time").recv_timeout(Duration::from_secs(10));
            peer.send(HELLO);
        }
    });
    on_both(&origin, |_, client| {
        assert_eq!(client.get("/").status, 103);
        go.send(()).expect("the origin waits");
        assert_eq!(client.read_response().text(), "hello\n");
    });
}

#[test]
fn a_body_held_back_comes_after_100_continue() {
    let origin = Origin::scripted(|peer| {
        while let Some(head) = peer.read_head() {
            peer.send("HTTP/1.1 100 Continue\r\n\r\n");
            let Body::Length(length) = framing(&String::from_utf8_lossy(&head), Body::None) else { return };
            assert_eq!(peer.read_exact(length).as_deref(), Some(&b"body"[..]));
            peer.send(HELLO);
        }
    });
    on_both(&origin, |_, client| {
        for _ in 0..2 {
            let interim = client.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
            assert_eq!(interim.status, 100);
            client.send("body");
            assert_eq!(client.read_response().text(), "hello\n");
        }
    });
}

#[test]
fn a_final_answer_to_an_expectation_reaches_the_client() {
    for answer in [
        "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 2\r\n\r\nno",
        "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno",
    ] {
        let origin = Origin::scripted(move |peer| {
            peer.read_head();
            peer.send(answer);
        });
        on_both(&origin, |engine, client| {
            let response =
                client.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
            assert_eq!(response.text(), "no");
            // Whether the body still comes is unknown, so the connection cannot carry another request.
            assert_ne!(client.ending(), Ending::Open);
            assert_eq!(engine.metric("propylon_server_connections_idle", &[]), 0.0);
        });
        assert!(!origin.received_text().contains("body"));
    }
}

#[test]
fn chunks_and_trailers_pass_both_ways() {
    let origin = Origin::answering(|request| {
        let text = String::from_utf8_lossy(request);
        assert!(text.contains("\r\nTransfer-Encoding: chunked\r\n"), "{text}");
        let end = propylon_e2e::http::head_end(request).expect("a head");
        let body = propylon_e2e::http::chunked(&request[end..]).expect("a whole body");
        assert_eq!(body.data, b"one,two,three");
        assert_eq!(body.trailers, ["X-Sum: 13"]);
        let mut answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Count\r\n\r\n".to_vec();
        answer.extend(in_chunks(&[b"a", b"bc", &[b'd'; 20_000]], "X-Count: 20003\r\n"));
        answer
    });
    on_both(&origin, |_, client| {
        for _ in 0..2 {
            client.send(
                "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\nConnection: TE\r\n\r\n",
            );
            client.send(in_chunks(&[b"one,", b"two,three"], "X-Sum: 13\r\n"));
            let response = client.read_response();
            assert_eq!(response.body.len(), 20_003);
            assert_eq!(response.trailers, ["X-Count: 20003"]);
        }
    });
}

#[test]
fn a_chunked_upload_in_pieces_arrives_whole() {
    let origin = Origin::answering(|request| {
        let end = propylon_e2e::http::head_end(request).expect("a head");
        let body = propylon_e2e::http::chunked(&request[end..]).expect("a whole body").data;
        format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len())
            .into_bytes()
            .into_iter()
            .chain(body)
            .collect()
    });
    on_both(&origin, |_, client| {
        client.send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        let mut expected = Vec::new();
        for n in 0..200_usize {
            let piece = vec![b'a' + (n % 26) as u8; n * 7 + 1];
            client.send(format!("{:X}\r\n", piece.len()));
            client.send(&piece);
            client.send("\r\n");
            expected.extend(piece);
        }
        client.send("0\r\n\r\n");
        assert!(client.read_response().body == expected);
    });
}

#[test]
fn a_response_that_ends_by_closing_is_framed_for_the_client() {
    let origin = Origin::scripted(|peer| {
        if peer.read_request().is_some() {
            peer.send("HTTP/1.1 200 OK\r\n\r\nuntil the end");
        }
        peer.close();
    });
    on_both(&origin, |_, client| {
        for _ in 0..2 {
            let response = client.get("/");
            assert_eq!(response.field("Transfer-Encoding"), Some("chunked"));
            assert_eq!(response.text(), "until the end");
        }
        let response = client.ask("GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n");
        assert_eq!((response.field("Transfer-Encoding"), response.field("Connection")), (None, Some("close")));
        assert_eq!(response.text(), "until the end", "and the end was a clean one");
    });
}

#[test]
fn a_chunked_response_is_unchunked_for_http_1_0() {
    let origin = Origin::answering(|_| {
        let mut answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        answer.extend(in_chunks(&[b"one,", b"two,", &[b'x'; 100_000]], "X-Trailer: gone\r\n"));
        answer
    });
    on_both(&origin, |_, client| {
        let response = client.ask("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
        assert_eq!(response.field("Transfer-Encoding"), None);
        assert!(response.body == [&b"one,two,"[..], &[b'x'; 100_000]].concat());
    });
    assert_eq!(origin.connections(), 1, "the server's connection was kept");
}

/// Reads a request's head, answers at once, and then reads no more for as long as the client goes on.
fn answers_early(peer: &mut Peer) {
    peer.read_head();
    peer.send("HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 8\r\n\r\ntoo big\n");
    peer.await_close(Duration::from_secs(10));
}

#[test]
fn an_early_answer_reaches_a_client_that_is_still_sending() {
    let origin = Origin::scripted(answers_early);
    on_both(&origin, |engine, client| {
        client.send("POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n");
        client.send([b'x'; 10_000]);
        let response = client.read_response();
        assert_eq!((response.status, response.text().as_str()), (413, "too big\n"));
        // What is still to come is not waited for (RFC 9112 §9.6).
        assert_eq!(response.field("Connection"), Some("close"));
        // The client goes on for a while, as many do before they look at the answer.
        for _ in 0..10 {
            if client.try_send(&[b'x'; 10_000]).is_err() {
                break;
            }
        }
        client.finish_if_possible();
        assert_ne!(client.read_to_end().1, Ending::Open);
        holds("the server's connection is closed", || engine.metric("propylon_server_connections", &[]) == 0.0);
    });
}

#[test]
fn a_server_that_closes_after_an_early_answer_has_still_answered() {
    let origin = Origin::scripted(|peer| {
        peer.read_head();
        peer.send("HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 3\r\n\r\nno\n");
        peer.close();
    });
    on_both(&origin, |_, client| {
        client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n");
        for _ in 0..50 {
            if client.try_send(&[b'x'; 20_000]).is_err() {
                break;
            }
        }
        let response = client.read_response();
        assert_eq!((response.status, response.text().as_str()), (403, "no\n"));
    });
}

/// A server that has answered takes no more of the request, and what is left of that is no request of its own.
#[test]
fn the_rest_of_an_upload_that_is_given_up_is_never_read_as_a_request() {
    const BODY: &str = "GET /stolen HTTP/1.1\r\nHost: a\r\n\r\n";
    let origin = Origin::scripted(|peer| {
        peer.read_head();
        peer.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno\n");
        peer.close();
    });
    let length = BODY.len() * 1_000_000;
    on_both(&origin, |_, client| {
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"));
        let piece = BODY.repeat(500);
        while client.try_send(piece.as_bytes()).is_ok() && !client.has_something_now() {}
        let response = client.read_response();
        assert_eq!((response.status, response.field("Connection")), (403, Some("close")), "{}", response.head);
        for _ in 0..20 {
            let _ = client.try_send(piece.as_bytes());
        }
        client.finish_if_possible();
        let (rest, _) = client.read_to_end();
        assert!(rest.is_empty(), "{}", String::from_utf8_lossy(&rest));
    });
    let heads: Vec<Vec<u8>> = origin.received();
    assert!(heads.iter().all(|bytes| bytes.is_empty() || bytes.starts_with(b"POST / ")));
}

/// Answers when the story says so.
fn patient() -> (Origin, Sender<()>) {
    let (go, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = Origin::scripted(move |peer| {
        while peer.read_request().is_some() {
            let _ = wait.lock().expect("one request at a time").recv_timeout(Duration::from_secs(10));
            peer.send(HELLO);
        }
    });
    (origin, go)
}

#[test]
fn a_client_that_has_said_its_last_word_still_gets_its_answer_where_that_is_wanted() {
    let (origin, go) = patient();
    let engine = Engine::start(&with(&[origin.address()], "half_close = true", ""));
    for (index, listener) in LISTENERS.iter().enumerate() {
        let mut client = engine.client(listener);
        client.send(format!("GET /half/{index} HTTP/1.1\r\nHost: a\r\n\r\n"));
        client.finish();
        holds("the request is out", || origin.received_text().contains(&format!("/half/{index} ")));
        go.send(()).expect("the origin waits");
        assert_eq!(client.read_response().text(), "hello\n");
        assert_eq!(client.ending(), Ending::Clean);
    }
    // This is no end of the connection, and is heard everywhere.
    let engine = Engine::start(&simple(&[origin.address()]));
    let mut client = engine.client("web");
    client.send("GET /notified HTTP/1.1\r\nHost: a\r\n\r\n");
    client.close_notify();
    holds("the request is out", || origin.received_text().contains("/notified"));
    go.send(()).expect("the origin waits");
    assert_eq!(client.read_response().text(), "hello\n", "after a close_notify alone");
    assert_eq!(client.ending(), Ending::Clean);
}

/// A client that asks for two things at once and closes before the second is there gets the first all the same: it may be in
/// the kernel's hands when the client reads it.
#[test]
fn a_response_outlives_the_request_behind_it_that_its_client_gives_up() {
    // More than the client's kernel takes for it.
    const WHOLE_BYTES: usize = 400_000;
    let whole =
        [format!("HTTP/1.1 200 OK\r\nContent-Length: {WHOLE_BYTES}\r\n\r\n").as_bytes(), &[b'x'; WHOLE_BYTES]].concat();
    let origin = Origin::scripted(move |peer| {
        while let Some(request) = peer.read_request() {
            if request.starts_with(b"GET /slow") {
                peer.await_close(Duration::from_secs(20));
                return;
            }
            peer.send(&whole);
        }
    });
    let engine = Engine::start(&simple(&[origin.address()]));
    for (n, listener) in LISTENERS.iter().enumerate() {
        let mut client = engine.client(listener);
        client.send("GET /whole HTTP/1.1\r\nHost: a\r\n\r\nGET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
        holds("the first is answered", || origin.received_text().matches("/slow").count() == n + 1);
        // Bytes that nobody reads make no difference.
        client.send("GET /never HTTP/1.1\r\n");
        client.finish();
        engine.metric_reaches("propylon_client_faults_total", &[("reason", "client-closed")], (n + 1) as f64);
        engine.metric_reaches("propylon_connections", &[], 0.0);
        assert_eq!(client.read_response().body.len(), WHOLE_BYTES, "{listener}");
        assert_eq!(client.ending(), Ending::Clean, "{listener}");
    }
}

#[test]
fn a_response_cut_short_never_looks_whole() {
    let cases = [
        ("length", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nten bytes."),
        ("chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nten bytes."),
        ("last-chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nten bytes.\r\n"),
        ("trailers", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nten bytes.\r\n0\r\n"),
    ];
    for (name, answer) in cases {
        for reset in [false, true] {
            let origin = Origin::scripted(move |peer| {
                peer.read_request();
                peer.send(answer);
                if reset {
                    // Let the answer through before the reset destroys it.
                    peer.await_close(Duration::from_millis(50));
                    peer.reset();
                }
                peer.close();
            });
            let engine = Engine::start(&simple(&[origin.address()]));
            for listener in LISTENERS {
                let mut client = engine.client(listener);
                let path = format!("/{listener}-{name}");
                client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
                let (bytes, ending) = client.read_to_end();
                let text = String::from_utf8_lossy(&bytes);
                assert!(matches!(ending, Ending::Reset | Ending::Truncated), "{path}: {ending:?} after {text}");
                assert!(!text.contains("\r\n0\r\n\r\n"), "{path}: {text}");
                let line = engine.logged_path(&path);
                assert_eq!(line["fault"], "body-cut-short", "{line}");
            }
            assert_eq!(engine.metric("propylon_server_faults_total", &[("reason", "body-cut-short")]), 2.0);
        }
    }
}

#[test]
fn a_bad_chunk_in_a_response_never_looks_whole() {
    let origin = Origin::scripted(|peer| {
        peer.read_request();
        peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nten bytes.\r\nnonsense\r\n0\r\n\r\n");
    });
    on_both(&origin, |engine, client| {
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let (bytes, ending) = client.read_to_end();
        assert!(matches!(ending, Ending::Reset | Ending::Truncated), "{ending:?}");
        assert!(!String::from_utf8_lossy(&bytes).contains("\r\n0\r\n\r\n"));
        holds("it is counted", || engine.metric("propylon_server_faults_total", &[("reason", "bad-response")]) >= 1.0);
    });
}

#[test]
fn responses_that_are_none_become_502_with_the_reason() {
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(40_000));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(300));
    let interim = format!("{}{HELLO}", "HTTP/1.1 102 Processing\r\n\r\n".repeat(20));
    let cases = [
        ("SSH-2.0-OpenSSH_9.2\r\n", "bad-response"),
        ("HTTP/1.1 OK\r\n\r\n", "bad-response"),
        ("HTTP/1.1 999 Odd\r\n\r\n", "bad-response"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbody", "bad-response"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "bad-response"),
        ("HTTP/1.1 200 OK\r\nContent-Length: -4\r\n\r\n", "bad-response"),
        ("HTTP/1.1 200 OK\r\nX : y\r\n\r\n", "bad-response"),
        ("HTTP/1.1 200 OK\nX: y\n\n", "bad-response"),
        ("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", "bad-switch"),
        (&long, "response-head-too-large"),
        (&many, "response-head-too-large"),
        (&interim, "bad-response"),
        ("HTTP/1.1 200 O", "closed-before-response"),
        ("", "closed-before-response"),
    ];
    for (answer, reason) in cases {
        let told = &answer[..answer.len().min(80)];
        let text = answer.to_owned();
        let origin = Origin::scripted(move |peer| {
            peer.read_request();
            peer.send(&text);
            peer.close();
        });
        on_both(&origin, |engine, client| {
            client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
            let mut response = client.read_response();
            while response.status < 200 {
                response = client.read_response();
            }
            assert_eq!((response.status, response.text()), (502, format!("502 Bad Gateway: {reason}\n")), "{told:?}");
            let line = engine.logged("a line", |line| line["fault"] == reason);
            assert_eq!(line["status"], 502, "{told:?}");
            // The client did nothing wrong: it may go on.
            assert_eq!(response.field("Connection"), None, "{told:?}");
        });
    }
}

#[test]
fn a_request_that_is_not_idempotent_is_sent_once() {
    let origin = Origin::scripted(|peer| {
        peer.read_request();
        peer.close();
    });
    on_both(&origin, |_, client| {
        let response = client.ask("POST /once HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody");
        assert_eq!(response.status, 502);
    });
    assert_eq!(origin.received_text().matches("POST /once").count(), 2, "one for each listener");
}

#[test]
fn a_stale_pooled_connection_costs_the_client_nothing() {
    // Serves one request for each connection and then closes as if its patience had run out, seen only on reuse.
    let origin = Origin::scripted(|peer| {
        if peer.read_request().is_some() {
            peer.send(HELLO);
        }
        peer.read_head();
        peer.reset();
    });
    on_both(&origin, |engine, client| {
        for _ in 0..10 {
            assert_eq!(client.get("/").text(), "hello\n");
        }
        assert!(engine.metric("propylon_retries_total", &[]) > 0.0);
    });
}

/// Many clients send all of a body before they read: a close with bytes unread would be a reset, which destroys the answer.
#[test]
fn an_answer_that_overtakes_a_large_upload_is_read_by_a_client_that_sends_all_of_it_first() {
    const BYTES: usize = 20_000_000;
    let origin = Origin::scripted(|peer| {
        let _ = peer.read_head();
        peer.send("HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 9\r\n\r\ntoo much\n");
        peer.close();
    });
    let upload = |framing: &str, body: &[u8]| {
        [format!("POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n").as_bytes(), body].concat()
    };
    let plain = upload(&format!("Content-Length: {BYTES}"), &vec![b'x'; BYTES]);
    let chunked = upload("Transfer-Encoding: chunked", &in_chunks(&[&[b'x'; 50_000][..]; BYTES / 50_000], ""));
    for bytes in [&plain, &chunked] {
        on_both(&origin, |engine, client| {
            client.try_send(bytes).expect("all of it is taken");
            let response = client.read_response();
            assert_eq!((response.status, response.text().as_str()), (413, "too much\n"));
            assert_eq!(client.ending(), Ending::Clean);
            engine.metric_reaches("propylon_connections", &[], 1.0);
        });
    }
}

/// A server that closes without having taken a body has it as good as sent; what is left of it is no request.
#[test]
fn what_is_left_of_an_upload_is_never_read_as_a_request() {
    const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let http1 = Origin::scripted(|peer| {
        let _ = peer.read_head();
        peer.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno\n");
        peer.reset();
    });
    let http2 = Origin::scripted(|peer| {
        let Some(mut server) = Http2Server::start(peer, &[]) else { return };
        while let Some(frame) = server.next_frame() {
            if frame.kind == HEADERS {
                server.answer(frame.stream, b"no\n");
                server.send(RST_STREAM, 0, frame.stream, &NO_ERROR.to_be_bytes());
            }
        }
    });
    for (origin, backend) in [(&http1, ""), (&http2, "protocol = \"h2\"")] {
        let engine = Engine::start(&with(&[origin.address()], "", backend));
        for framing in ["Content-Length: 4000000", "Transfer-Encoding: chunked"] {
            for listener in LISTENERS {
                let mut client = engine.client(listener);
                let body = SMUGGLED.repeat(4_000_000 / SMUGGLED.len());
                let mut bytes = format!("POST /upload HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n");
                if framing.ends_with("chunked") {
                    bytes += &format!("{:x}\r\n", body.len() + 1_000);
                }
                bytes += &body;
                client.try_send(bytes.as_bytes()).expect("all of it is taken");
                assert_eq!(client.read_response().text(), "no\n");
                client.finish_if_possible();
                assert_eq!(client.ending(), Ending::Clean, "{backend} {framing}");
            }
        }
        let lines = engine.log();
        assert!(lines.iter().all(|line| line["path"] == "/upload"), "{lines:?}");
    }
}

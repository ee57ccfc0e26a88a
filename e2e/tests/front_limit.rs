//! Limits of routes: how much each key may ask for, what those get who ask for more, and what outlives a reload.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use propylon_e2e::admin::ask_admin;
use propylon_e2e::frames::{CANCEL, Http2, RST_STREAM};
use propylon_e2e::program::curl;
use propylon_e2e::python::PythonServer;
use propylon_e2e::{Client, Engine, Origin, Scratch, binaries, holds};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const GET: &str = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
/// For a listener that goes by what its client says of others.
const TRUSTING: &str = "forwarded = \"append\"\ntrusted_proxies = [\"127.0.0.0/8\"]";

/// One plaintext listener, and a route to `server` with these limits.
fn limited(server: SocketAddr, listener: &str, limit: &str) -> String {
    format!(
        "[process]\nworkers = 2\ndrain_timeout = \"1s\"\n[listener.plain]\nbind = \"127.0.0.1:0\"\n{listener}\n\
         [backend.app]\nservers = [\"{server}\"]\n[[route]]\nbackend = \"app\"\nlimit = {limit}\n"
    )
}

/// As [`limited`], answered by the engine itself.
fn answered(listener: &str, limit: &str) -> String {
    format!(
        "[process]\nworkers = 2\ndrain_timeout = \"1s\"\n[listener.plain]\nbind = \"127.0.0.1:0\"\n{listener}\n\
         [[route]]\nrespond = {{ status = 204 }}\nlimit = {limit}\n"
    )
}

/// The status of one more request, on a connection of its own.
#[track_caller]
fn status(engine: &Engine, fields: &str) -> u16 {
    Client::plain(engine.address("plain")).ask(format!("GET / HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n")).status
}

fn from(source: &str) -> String {
    format!("X-Forwarded-For: {source}\r\n")
}

/// Requests that have come to an origin.
fn requests(origin: &Origin) -> usize {
    origin.received_text().matches("GET /").count()
}

/// The value of a field in a head, which has to be a number between the two.
#[track_caller]
fn number(head: &str, name: &str, (least, most): (u64, u64)) -> u64 {
    let line = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).expect(name);
    let number = line.trim().parse().unwrap_or_else(|_| panic!("{head}"));
    assert!((least..=most).contains(&number), "{head}");
    number
}

fn date(head: &str) -> &str {
    head.lines().find(|line| line.to_ascii_lowercase().starts_with("date: ")).expect("a date").trim()
}

#[test]
fn whoever_asks_for_more_gets_429_with_when_to_come_back_in_both_versions_of_http() {
    let origin = Origin::always(OK);
    let engine = Engine::start(&limited(origin.address(), "", "[{ rate = \"10/h\", burst = 2, name = \"api\" }]"));
    let mut client = Client::plain(engine.address("plain"));
    assert_eq!([client.get("/a").status, client.get("/b").status], [200, 200]);
    let refused = client.get("/c");
    let seconds = number(&refused.head, "Retry-After", (300, 360));
    let date = date(&refused.head);
    let head = format!(
        "HTTP/1.1 429 Too Many Requests\r\nRetry-After: {seconds}\r\nRateLimit-Policy: \"api\";q=10;w=3600\r\n\
         RateLimit: \"api\";r=0;t={seconds}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 36\r\n{date}"
    );
    assert_eq!(refused.head, head);
    assert_eq!(refused.text(), "429 Too Many Requests: rate-limited\n");
    assert_eq!(client.get("/d").status, 429, "the connection goes on");
    let url = format!("http://{}/e", engine.address("plain"));
    let said = curl(&["--http2-prior-knowledge", "-i", &url]).ok().text();
    let seconds = number(&said, "retry-after", (300, 360));
    let whole = format!(
        "HTTP/2 429 \r\nretry-after: {seconds}\r\nratelimit-policy: \"api\";q=10;w=3600\r\n\
         ratelimit: \"api\";r=0;t={seconds}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 36\r\n{}\r\n\r\n\
         429 Too Many Requests: rate-limited\n",
        self::date(&said)
    );
    assert_eq!(said, whole);
    assert_eq!(requests(&origin), 2, "nothing that was refused has come to the server");
    let line = engine.logged_path("/e");
    assert_eq!((&line["status"], &line["fault"]), (&429.into(), &"rate-limited".into()), "{line}");
    for (outcome, count) in [("allowed", 2.0), ("refused", 3.0), ("exempt", 0.0), ("denied", 0.0)] {
        let labels = [("limit", "api"), ("outcome", outcome)];
        engine.metric_reaches("propylon_limit_requests_total", &labels, count);
    }
    holds("the condition", || conditions(&engine).contains(&"limit-refuses".into()));
    let mut asked = std::process::Command::new(binaries::propylon());
    asked.args(["errors", "limit api", "--admin", &engine.admin().to_string()]);
    let errors = propylon_e2e::program::run(asked, b"", Duration::from_secs(20)).ok().text();
    let row =
        errors.lines().find(|line| line.contains("request refused by a limit")).unwrap_or_else(|| panic!("{errors}"));
    assert!(row.contains("route */: limit api") && row.ends_with("refused"), "{errors}");
}

/// Names of what is wrong with an engine.
fn conditions(engine: &Engine) -> Vec<String> {
    let status = ask_admin(engine, "GET", "/status.json", "", "");
    let status: serde_json::Value = serde_json::from_str(&status.text()).expect("JSON");
    let list = status["conditions"]["list"].as_array().into_iter().flatten();
    list.map(|one| one["name"].as_str().expect("a name").to_owned()).collect()
}

/// Clients that ask side by side until told to stop; returns how many requests were let through.
fn press(engine: &Engine, clients: usize, stop: impl Fn(u64) -> bool + Sync) -> u64 {
    let (allowed, asked, over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                let mut client = Client::plain(engine.address("plain"));
                while !over.load(Ordering::SeqCst) {
                    let status = client.ask(GET).status;
                    assert!(matches!(status, 204 | 429), "{status}");
                    allowed.fetch_add(u64::from(status == 204), Ordering::SeqCst);
                    if stop(asked.fetch_add(1, Ordering::SeqCst) + 1) {
                        over.store(true, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    allowed.load(Ordering::SeqCst)
}

#[test]
fn workers_share_a_burst_to_the_request() {
    let engine = Engine::start(&answered("", "{ rate = \"1/d\", burst = 300 }"));
    let allowed = press(&engine, 16, |asked| asked >= 2_000);
    // Two workers that see a source first at the same moment may count a request each before they agree.
    assert!((300..=301).contains(&allowed), "{allowed}");
}

#[test]
fn workers_together_keep_a_rate() {
    let engine = Engine::start(&answered("", "{ rate = \"200/s\", burst = 400, key = \"all\" }"));
    let began = Instant::now();
    let allowed = press(&engine, 8, |_| began.elapsed() >= Duration::from_secs(4)) as f64;
    let most = 400.0 + 200.0 * began.elapsed().as_secs_f64();
    // A machine that stands still for less than two seconds loses nothing: the burst is that long.
    assert!(allowed <= most * 1.05 && allowed >= (400.0 + 200.0 * 4.0) * 0.95, "{allowed} of {most}");
}

#[test]
fn a_flood_of_sources_takes_no_memory_and_does_not_help_those_who_were_over_their_limit() {
    let limit = "{ rate = \"5/d\", keys = 4096, name = \"api\" }";
    let engine = Engine::start(&answered(TRUSTING, limit));
    for heavy in 1..=20 {
        let statuses: Vec<u16> = (0..7).map(|_| status(&engine, &from(&format!("192.0.2.{heavy}")))).collect();
        assert_eq!(statuses, [204, 204, 204, 204, 204, 429, 429]);
    }
    let mut clients: Vec<Client> = (0..4).map(|_| Client::plain(engine.address("plain"))).collect();
    let mut flood = |sources: std::ops::Range<u32>| {
        for first in sources.step_by(250) {
            let client = &mut clients[first as usize / 250 % 4];
            let requests = (first..first + 250).map(|n| {
                let source = std::net::Ipv4Addr::from(0x0A00_0000 + n);
                format!("GET / HTTP/1.1\r\nHost: a.test\r\nX-Forwarded-For: {source}\r\n\r\n")
            });
            client.send(requests.collect::<String>());
            for _ in 0..250 {
                assert_eq!(client.read_response().status, 204, "who comes once is let through");
            }
        }
    };
    flood(0..20_000);
    let before = engine.rss();
    flood(20_000..120_000);
    let after = engine.rss();
    assert!(after < before + (2 << 20), "100,000 sources: from {before} to {after} bytes resident");
    for heavy in 1..=20 {
        assert_eq!(status(&engine, &from(&format!("192.0.2.{heavy}"))), 429, "{heavy} is not forgotten");
    }
    assert!(engine.metric("propylon_limit_table_full_total", &[("limit", "api")]) > 90_000.0);
    holds("the condition", || conditions(&engine).contains(&"limit-table-full".into()));
    holds("its end", || !conditions(&engine).contains(&"limit-table-full".into()));
}

#[test]
fn sources_are_those_that_the_proxy_protocol_tells_and_ipv6_counts_by_its_network() {
    let engine = Engine::start(&answered("accept_proxy_protocol = true", "{ rate = \"2/d\" }"));
    let ask = |source: &str| {
        let (kind, to) = if source.contains(':') { ("TCP6", "::1") } else { ("TCP4", "10.0.0.1") };
        let mut client = Client::plain(engine.address("plain"));
        client.ask(format!("PROXY {kind} {source} {to} 7 8\r\n{GET}")).status
    };
    for (source, wanted) in [
        ("192.0.2.1", 204),
        ("192.0.2.1", 204),
        ("192.0.2.1", 429),
        ("192.0.2.2", 204),
        ("2001:db8::1", 204),
        ("2001:db8::2", 204),
        ("2001:db8::3", 429),
        ("2001:db8:0:1::3", 204),
    ] {
        assert_eq!(ask(source), wanted, "{source}");
    }
}

#[test]
fn certificates_and_fingerprints_and_fields_are_keys() {
    let config = "[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n\
        [[route]]\npath = \"/ja4\"\nrespond = { status = 204 }\nlimit = { rate = \"1/d\", key = \"ja4\" }\n\
        [[route]]\npath = \"/key\"\nrespond = { status = 204 }\n\
        limit = { rate = \"1/d\", key = [{ header = \"X-Key\" }, { cookie = \"user\" }] }\n";
    let profile = propylon_e2e::certificates::Certificates::shared().profile();
    let engine = Engine::start(&format!("{profile}ja4 = true\n{config}"));
    let ask = |path: &str, more: &[&str]| {
        let url = format!("https://localhost:{}{path}", engine.address("web").port());
        curl(&[&["-k", "-o", "/dev/null", "-w", "%{http_code}", &url], more].concat()).ok().text()
    };
    assert_eq!([ask("/ja4", &[]), ask("/ja4", &[])], ["204", "429"]);
    assert_eq!(ask("/ja4", &["--tls-max", "1.2"]), "204", "another hello");
    for (fields, wanted) in [
        (&["-H", "X-Key: 1"][..], "204"),
        (&["-H", "x-key: 1"], "429"),
        (&["-H", "X-Key: 1", "-b", "user=a"], "204"),
        (&["-H", "X-Key: 1", "-b", "other=b; user=a"], "429"),
        (&["-H", "X-Key: 2", "-b", "user=a"], "204"),
        (&[], "204"),
        (&["-b", "other=b"], "429"),
    ] {
        assert_eq!(ask("/key", fields), wanted, "{fields:?}");
    }
}

#[test]
fn requests_at_once_are_given_back_when_they_end_and_when_they_are_given_up() {
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let origin = Origin::scripted(move |peer| {
        while peer.read_request().is_some() {
            let _ = wait.lock().expect("no script panics with it").recv_timeout(Duration::from_secs(20));
            let _ = peer.try_send(OK.as_bytes());
        }
    });
    let engine = Engine::start(&limited(origin.address(), "", "{ requests = 1, name = \"slots\" }"));
    let begun = |count: usize| holds("a request at the server", || requests(&origin) == count);
    let mut first = Client::plain(engine.address("plain"));
    first.send(GET);
    begun(1);
    let mut second = Client::plain(engine.address("plain"));
    let refused = second.ask(GET);
    let head = format!(
        "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nRateLimit-Policy: \"slots\";q=1;qu=\"concurrent-requests\"\r\n\
         RateLimit: \"slots\";r=0\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 36\r\n{}",
        date(&refused.head)
    );
    assert_eq!(refused.head, head);
    go.send(()).expect("the origin waits");
    assert_eq!(first.read_response().text(), "ok");
    // One that is given up half-way, over each version of HTTP.
    first.send(GET);
    begun(2);
    assert_eq!(second.ask(GET).status, 429);
    drop(first);
    let mut streams = Http2::start_at(&engine, "plain");
    let mut stream = 1;
    holds("room for a stream", || {
        streams.get(stream, "/h2");
        stream += 2;
        // A request that is refused is answered; one that is let through waits at the origin.
        let refused = engine.log().iter().filter(|line| line["path"] == "/h2").count();
        holds("an answer or a request", || {
            requests(&origin) == 3 || engine.log().iter().filter(|line| line["path"] == "/h2").count() > refused
        });
        requests(&origin) == 3
    });
    assert_eq!(second.ask(GET).status, 429);
    streams.send(RST_STREAM, 0, stream - 2, &CANCEL.to_be_bytes());
    engine.logged("the stream's end", |line| line["path"] == "/h2" && line["fault"] == "client-reset");
    // The origin answers at once from here on.
    drop(go);
    holds("room again", || second.ask(GET).status == 200);
}

#[test]
fn bytes_of_responses_keep_their_key_waiting_for_as_long_as_they_take_to_come_back() {
    let body = "x".repeat(10_000);
    let origin = Origin::always(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    let engine = Engine::start(&limited(origin.address(), TRUSTING, "{ bytes = \"10kB/h\", burst = \"15kB\" }"));
    assert_eq!([status(&engine, &from("192.0.2.1")), status(&engine, &from("192.0.2.1"))], [200, 200]);
    let refused =
        Client::plain(engine.address("plain")).ask(format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", from("192.0.2.1")));
    assert_eq!(refused.status, 429);
    // Some 20,200 bytes with the heads, of which 15,000 were there: half an hour's worth is missing.
    let seconds = number(&refused.head, "Retry-After", (1_700, 2_100));
    assert_eq!(refused.field("RateLimit-Policy"), Some("\"limit-1\";q=10000;qu=\"content-bytes\";w=3600"));
    assert_eq!(refused.field("RateLimit"), Some(&*format!("\"limit-1\";r=0;t={seconds}")));
    assert_eq!(status(&engine, &from("192.0.2.2")), 200);
}

#[test]
fn what_was_counted_outlives_a_reload_and_lists_are_read_again() {
    let limit = "{ rate = \"2/d\", name = \"api\", exempt = \"198.51.100.0/24\", exempt_files = \"friends\", deny_files = \"foes\" }";
    let files = [("friends", "# ours\n203.0.113.0/24\n"), ("foes", "192.0.2.66\n")];
    let engine = Engine::start_beside(&files, &answered(TRUSTING, limit));
    let ask = |source: &str, count: usize| (0..count).map(|_| status(&engine, &from(source))).collect::<Vec<u16>>();
    assert_eq!(ask("192.0.2.1", 3), [204, 204, 429]);
    assert_eq!(ask("203.0.113.9", 4), [204; 4]);
    assert_eq!(ask("198.51.100.9", 4), [204; 4]);
    let mut client = Client::plain(engine.address("plain"));
    let denied = client.ask(format!("GET /foe HTTP/1.1\r\nHost: a\r\n{}\r\n", from("192.0.2.66")));
    assert_eq!((denied.status, denied.text().as_str()), (403, "403 Forbidden: denied\n"));
    assert_eq!(engine.logged_path("/foe")["fault"], "denied");
    let count =
        |outcome: &str| engine.metric("propylon_limit_requests_total", &[("limit", "api"), ("outcome", outcome)]);
    assert_eq!([count("exempt"), count("denied"), count("refused")], [8.0, 1.0, 1.0]);
    // Another configuration, with the same limit.
    engine.rewrite(&answered(&format!("{TRUSTING}\nhalf_close = true"), limit));
    assert!(engine.reload().contains("is in effect"));
    assert_eq!(ask("192.0.2.1", 1), [429]);
    // Other lists, with the same configuration.
    std::fs::write(engine.folder().join("friends"), "192.0.2.1\n").expect("a list");
    assert!(engine.reload().contains("with 1 change"));
    assert_eq!(ask("192.0.2.1", 3), [204; 3]);
    assert_eq!(ask("203.0.113.9", 3), [204, 204, 429]);
    // A list that cannot be used.
    std::fs::write(engine.folder().join("friends"), "192.0.2.2\n192.0.2.1/24\n").expect("a list");
    assert!(engine.reload().contains("was refused"));
    assert!(engine.stderr().iter().any(|line| line.contains("friends: line 2: \"192.0.2.1/24\" has bits set")));
    // One that was cut off within a line: its key is the source, and there are no other values.
    std::fs::write(engine.folder().join("friends"), "192.0.2.2\n127.0.0").expect("a list");
    assert!(engine.reload().contains("was refused"));
    assert!(engine.stderr().iter().any(|line| line.contains("friends: line 2: it is no network and no address")));
    assert_eq!(ask("192.0.2.1", 1), [204]);
    // Another limit begins anew.
    std::fs::write(engine.folder().join("friends"), "\n").expect("a list");
    engine.rewrite(&answered(TRUSTING, &limit.replace("2/d", "1/d")));
    assert!(engine.reload().contains("is in effect"));
    assert_eq!(ask("192.0.2.1", 2), [204, 429]);
}

#[test]
fn routes_share_a_limit_of_one_name() {
    let route = |path: &str| {
        format!(
            "[[route]]\npath = \"{path}\"\nrespond = {{ status = 204 }}\nlimit = {{ rate = \"3/d\", name = \"both\" }}\n"
        )
    };
    let listener = "[listener.plain]\nbind = \"127.0.0.1:0\"\n";
    let engine = Engine::start(&format!("{listener}{}{}", route("/a"), route("/b")));
    let mut client = Client::plain(engine.address("plain"));
    let statuses: Vec<u16> = ["/a", "/b", "/a", "/b", "/a"].iter().map(|path| client.get(path).status).collect();
    assert_eq!(statuses, [204, 204, 204, 429, 429]);
}

#[test]
fn check_looks_into_the_lists() {
    let scratch = Scratch::new();
    let text = format!(
        "[listener.plain]\nbind = \"127.0.0.1:1\"\n[[route]]\nrespond = {{ status = 204 }}\nlimit = {}\n",
        "[{ rate = \"1/s\", exempt_files = [\"gone\", \"wrong\"] }]"
    );
    scratch.write("wrong", "10.0.0.0/8\n10.0.0.0/40\n");
    let path = scratch.write("propylon.toml", text);
    let said =
        std::process::Command::new(binaries::propylon()).arg("check").arg("-c").arg(path).output().expect("check");
    let told = String::from_utf8_lossy(&said.stderr);
    assert!(!said.status.success() && told.contains("gone: No such file or directory"), "{told}");
    assert!(told.contains("wrong: line 2: \"10.0.0.0/40\" is not a network; use 0 to 32 behind the `/`"), "{told}");
}

/// A connection for each of many keys at once, all of them held: counts are right for each.
#[test]
fn every_key_has_its_own_requests_at_once() {
    let origin = Arc::new(Origin::scripted(|peer| {
        let _ = peer.read_request();
        let _ = peer.await_close(Duration::from_secs(20));
    }));
    let engine = Engine::start(&limited(origin.address(), TRUSTING, "{ requests = 2 }"));
    let mut held = Vec::new();
    for key in 0..100 {
        for _ in 0..2 {
            let mut client = Client::plain(engine.address("plain"));
            client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", from(&format!("10.0.{key}.1"))));
            held.push(client);
        }
    }
    holds("all at the server", || origin.received().len() == 200);
    for key in 0..100 {
        assert_eq!(status(&engine, &from(&format!("10.0.{key}.1"))), 429);
    }
}

/// Clients that ask side by side until this holds. Returns the statuses.
fn work(engine: &Engine, (clients, path): (usize, &str), is_over: impl Fn() -> bool) -> Vec<u16> {
    let (statuses, is_done, began) = (Mutex::new(Vec::new()), AtomicBool::new(false), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| {
                let mut client = Client::plain(engine.address("plain"));
                while !is_done.load(Ordering::Relaxed) {
                    let status = client.get(path).status;
                    statuses.lock().expect("no client panics").push(status);
                    if status == 503 {
                        // Clients that come back at once would take the time that the server needs.
                        std::thread::sleep(Duration::from_millis(50));
                    }
                }
            });
        }
        // Clients end before their story fails.
        let holds = loop {
            if is_over() || began.elapsed() > Duration::from_secs(240) {
                break is_over();
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        is_done.store(true, Ordering::Relaxed);
        assert!(holds, "the limit is {}", circuit_limit(engine));
    });
    statuses.into_inner().expect("no client panics")
}

/// The limit in force of the backend.
fn circuit_limit(engine: &Engine) -> f64 {
    engine.metric("propylon_circuit_limit", &[("backend", "app")])
}

#[test]
fn a_limit_that_is_adaptive_finds_how_many_threads_its_server_has_and_comes_back_after_it_failed() {
    const CLIENTS: usize = 100;
    let server = PythonServer::start("few_threads.py", &["4"]);
    let config = |circuit: &str| {
        format!(
            "[process]\nworkers = 2\ndrain_timeout = \"1s\"\n[listener.plain]\nbind = \"127.0.0.1:0\"\n\
             [backend.app]\nservers = [\"{}\"]\ncircuit = {circuit}\n[[route]]\nbackend = \"app\"\n",
            server.address()
        )
    };
    let engine = Engine::start(&config("{ adaptive = true, requests_min = 2 }"));
    holds("the limit to begin with", || circuit_limit(&engine) == 32.0);
    let found = || (4.0..=12.0).contains(&circuit_limit(&engine));
    // Clients are more than any limit that one wrong measurement could lead to: so there is another.
    let statuses = work(&engine, (CLIENTS, "/20"), found);
    assert!(statuses.iter().all(|status| matches!(status, 200 | 503)), "{statuses:?}");
    assert!(statuses.contains(&503) && statuses.contains(&200));
    assert!(engine.metric("propylon_queue_refused_total", &[("backend", "app"), ("reason", "circuit-open")]) > 0.0);
    // Failing, until the limit is as low as it may be and that is told. Slower servers are for the simulation.
    let failing = work(&engine, (CLIENTS, "/fail/20"), || conditions(&engine).contains(&"circuit-floored".into()));
    assert!(failing.iter().all(|status| matches!(status, 500 | 503)), "{failing:?}");
    assert_eq!(circuit_limit(&engine), 2.0);
    work(&engine, (CLIENTS, "/20"), || circuit_limit(&engine) >= 4.0);
    holds("the condition's end", || !conditions(&engine).contains(&"circuit-floored".into()));
    let status = ask_admin(&engine, "GET", "/status.json", "", "");
    let status: serde_json::Value = serde_json::from_str(&status.text()).expect("JSON");
    let backend = &status["backends"]["list"][0];
    assert_eq!(backend["circuit_adaptive"], true, "{backend}");
    assert!(backend["circuit_limit"].as_f64().is_some_and(|limit| limit >= 4.0), "{backend}");
    // Other bounds hold at once; a fixed limit and none are what they say.
    for (circuit, limit) in [
        ("{ adaptive = true, requests = 3, requests_min = 3 }", 3.0),
        ("{ requests = 7 }", 7.0),
        ("{ adaptive = true }", 7.0),
        ("{}", 0.0),
        ("{ adaptive = true, requests_min = 40 }", 40.0),
    ] {
        engine.rewrite(&config(circuit));
        engine.reload();
        holds(circuit, || circuit_limit(&engine) == limit);
    }
    assert_eq!(engine.client("plain").get("/1").status, 200);
}

/// A server that answers GET with so many bytes, and says how many have come as the body of any other request.
fn echo_or_send(bytes: usize) -> Origin {
    let body: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    Origin::answering(move |request| {
        let at = request.windows(4).position(|four| four == b"\r\n\r\n").map_or(0, |at| at + 4);
        let said = format!("{}", request.len() - at);
        let is_sent = request.starts_with(b"GET") || request.starts_with(b"HEAD");
        let (body, kind) = if is_sent { (&body[..], "a") } else { (said.as_bytes(), "b") };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: x/{kind}\r\nContent-Length: {}\r\n\r\n", body.len());
        [head.as_bytes(), if request.starts_with(b"HEAD") { b"" } else { body }].concat()
    })
}

#[test]
fn a_throttle_slows_bodies_down_and_neither_changes_them_nor_takes_them_for_stalled() {
    const BYTES: usize = 160 << 10;
    let scratch = Scratch::new();
    let upload = scratch.write("upload", vec![b'u'; BYTES]);
    let first = echo_or_send(BYTES);
    let inner = Engine::start(&propylon_e2e::engine::simple(&[first.address()]));
    let limit = "throttle = { download = \"64KiB\", upload = \"64KiB\" }";
    let config = format!(
        "[process]\nworkers = 2\ndrain_timeout = \"1s\"\n[listener.plain]\nbind = \"127.0.0.1:0\"\n\
         timeouts = {{ body = \"200ms\" }}\nlimits = {{ body_rate_min = 1000000 }}\n\
         [backend.app]\nservers = [\"{}\"]\ntimeouts = {{ body = \"200ms\" }}\n\
         [[route]]\npath = \"/free\"\nbackend = \"app\"\nthrottle = {{ download = \"64KiB\", after = \"10MiB\" }}\n\
         [[route]]\npath = \"/small\"\nbackend = \"app\"\nthrottle = {{ download = \"1KiB\" }}\n\
         [backend.second]\nprotocol = \"h2\"\nservers = [\"{}\"]\ntimeouts = {{ body = \"200ms\" }}\n\
         [[route]]\npath = \"/second\"\nbackend = \"second\"\n{limit}\n[[route]]\nbackend = \"app\"\n{limit}\n",
        first.address(),
        inner.address("plain")
    );
    let engine = Engine::start(&config);
    let body: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
    // A fifth of a second is free, and the last piece is not waited for, which may be a few frames of 16 KiB.
    let least = Duration::from_millis(1_400);
    std::thread::scope(|scope| {
        let versions = ["--http1.1", "--http2-prior-knowledge"];
        for (version, path) in versions.into_iter().flat_map(|version| [(version, "/first"), (version, "/second")]) {
            let (engine, body, upload, scratch) = (&engine, &body, &upload, &scratch);
            let url = |path: &str| format!("http://{}{path}", engine.address("plain"));
            scope.spawn(move || {
                let (began, out) = (Instant::now(), scratch.join(&format!("{}{}", &version[2..], &path[1..])));
                curl(&[version, "-o", out.to_str().expect("UTF-8"), &url(path)]).ok();
                assert!(began.elapsed() >= least, "{version} {path}: {:?}", began.elapsed());
                assert!(std::fs::read(&out).is_ok_and(|read| read == *body), "{version}");
                assert!(curl(&[version, "-o", out.to_str().expect("UTF-8"), &url("/free")]).ok().text().is_empty());
                assert!(std::fs::read(&out).is_ok_and(|read| read == *body), "{version}");
            });
            for framing in ["Content-Length: 163840", "Transfer-Encoding: chunked"] {
                if framing.starts_with("Transfer") && version == "--http2-prior-knowledge" {
                    continue;
                }
                scope.spawn(move || {
                    let (began, data) = (Instant::now(), format!("@{}", upload.display()));
                    let said =
                        curl(&[version, "-H", framing, "-H", "Expect:", "--data-binary", &data, &url(path)]).ok();
                    assert!(began.elapsed() >= least, "{version}, {framing}: {:?}", began.elapsed());
                    let counted: usize = said.text().parse().expect("a number");
                    // Chunks have lines of their own.
                    assert!((BYTES..BYTES + 2_000).contains(&counted), "{version}, {framing}: {counted}");
                });
            }
        }
    });
    let mut client = engine.client("plain");
    for path in ["/first", "/second"] {
        client.send(format!("HEAD {path} HTTP/1.1\r\nHost: a.test\r\n\r\n"));
        let head = client.read_head();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("\r\nContent-Length: 163840\r\n"), "{head}");
    }
    for line in engine.log() {
        assert!(line["fault"].is_null(), "{line}");
    }
}

#[test]
fn a_server_feels_that_its_client_is_throttled() {
    let sent = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&sent);
    let origin = Origin::scripted(move |peer| {
        if peer.read_head().is_none() {
            return;
        }
        peer.send("HTTP/1.1 200 OK\r\nContent-Length: 268435456\r\n\r\n");
        while peer.try_send(&[b'x'; 64 << 10]).is_ok() {
            count.fetch_add(64 << 10, Ordering::SeqCst);
        }
    });
    let config = format!(
        "[process]\nworkers = 1\n[listener.plain]\nbind = \"127.0.0.1:0\"\n[backend.app]\nservers = [\"{}\"]\n\
         [[route]]\nbackend = \"app\"\nthrottle = {{ download = \"256KiB\" }}\n",
        origin.address()
    );
    let engine = Engine::start(&config);
    let mut client = Client::plain(engine.address("plain"));
    client.send(GET);
    client.read_head();
    let before = engine.anonymous_memory();
    client.read_exact(512 << 10);
    // Buffers of the kernel take so much at most.
    assert!(sent.load(Ordering::SeqCst) < 32 << 20, "{}", sent.load(Ordering::SeqCst));
    assert!(engine.anonymous_memory() < before + (4 << 20));
    // A client that goes away is noticed, and its server's connection ends.
    drop(client);
    engine.metric_reaches("propylon_requests_in_progress", &[("listener", "plain")], 0.0);
}

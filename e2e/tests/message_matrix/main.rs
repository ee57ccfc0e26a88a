//! Messages by machine: versions of HTTP on both sides, methods, statuses, bodies as they should be and as they should not,
//! trailers, and ends that come early. Whatever a server sends, the next request on the client's connection gets its own answer,
//! nothing that is short is taken for whole, nothing is sent twice that may not be, and the server's fault is told.

mod cases;
mod client;
mod server;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use propylon_e2e::certificates::Certificates;
use propylon_e2e::{Client as Plain, Engine, eventually};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::timeout;

use cases::{Case, Protocol, Verdict, body, cases};
use client::{Client, Outcome, Response};
use server::{Server, Turn};

/// Clients side by side, each with servers of its own.
const CLIENTS: usize = 16;
/// Cases that are broken off, beside those that are not.
const BROKEN: usize = 2_500;
/// How long one case may take on a machine with other work.
const CASE_WAIT_MAX: Duration = Duration::from_secs(60);
const RETRIES: u32 = 2;

/// Servers, or clients, of each protocol.
const PROTOCOLS: usize = Protocol::ALL.len();

/// One client's place: a server of each protocol.
struct Stand {
    place: usize,
    servers: [Server; PROTOCOLS],
    clients: [Client; PROTOCOLS],
    wrong: Arc<Mutex<Vec<String>>>,
}

impl Stand {
    fn server(&self, case: &Case) -> &Server {
        &self.servers[case.server as usize]
    }

    async fn ask(&mut self, turn: &Arc<Turn>) -> Outcome {
        let case = turn.case;
        self.server(&case).set(turn);
        let path = format!("/{}/{:?}/{}", self.place, case.server, turn.tag);
        let client = &mut self.clients[case.client as usize];
        match timeout(CASE_WAIT_MAX, client.ask(&case, &path)).await {
            Ok(outcome) => outcome,
            Err(_) => Outcome::Wrong("nothing happens".into()),
        }
    }

    /// One case, and a plain request on the same connection.
    async fn judge(&mut self, case: Case, number: usize) {
        let turn = Turn::new(case, format!("{number:05}"));
        let outcome = self.ask(&turn).await;
        let mut wrong = wrong(&turn, &outcome);
        let is_broken = !matches!(outcome, Outcome::Response(_));
        if is_broken && case.client == Protocol::Http1 {
            self.clients[0].close();
        }
        if wrong.is_none() && (self.clients[case.client as usize].is_open()) {
            let next = Turn::new(Case::plain(case.client, case.server), format!("{number:05}-next"));
            let after = self.ask(&next).await;
            // What was malformed as a whole may end the connection behind what was well.
            let excused = case.verdict() == Verdict::Either && matches!(after, Outcome::Failed(_));
            if !excused && let Some(what) = self::wrong(&next, &after) {
                wrong = Some(format!("the next request: {what}"));
            }
            if !matches!(after, Outcome::Response(_)) {
                self.clients[case.client as usize].close();
            }
        }
        if let Some(what) = wrong {
            self.clients.iter_mut().for_each(Client::close);
            let line = format!("{what}\n    {case:?}: {:?}\n    got {}", case.verdict(), shown(&outcome));
            self.wrong.lock().expect("nobody panics with it").push(line);
        }
    }
}

fn shown(outcome: &Outcome) -> String {
    let text = format!("{outcome:?}");
    text.chars().take(400).collect()
}

/// What is wrong with what a client has seen of a case, if anything is.
fn wrong(turn: &Turn, outcome: &Outcome) -> Option<String> {
    let (case, seen) = (&turn.case, turn.seen.load(Ordering::SeqCst));
    // A connection that turns out to be closed is one more.
    let seen_max = if case.is_idempotent() { 2 + RETRIES } else { 1 };
    if seen > seen_max {
        return Some(format!("the server saw it {seen} times"));
    }
    match (outcome, case.verdict()) {
        (Outcome::Wrong(what), _) => Some(what.clone()),
        (Outcome::Failed(_), Verdict::Broken | Verdict::Either) => None,
        (Outcome::Failed(what), _) => Some(format!("no whole response: {what}")),
        (Outcome::Response(response), verdict) => match &response.tag {
            None if verdict == Verdict::Broken || verdict == Verdict::Either => {
                let ours = matches!(response.status, 502..=504);
                (!ours).then(|| format!("{} is nobody's answer", response.status))
            }
            Some(tag) if *tag == turn.tag && verdict != Verdict::Broken => wrong_response(case, response, tag),
            tag => Some(format!("an answer of {tag:?}")),
        },
    }
}

fn wrong_response(case: &Case, response: &Response, tag: &str) -> Option<String> {
    let wanted = body(tag, case.wanted());
    if response.status != case.status {
        return Some(format!("the status is {}", response.status));
    }
    if response.body != wanted {
        return Some(format!("{} bytes of a body and not {}", response.body.len(), wanted.len()));
    }
    if response.interim != case.interim {
        return Some(format!("{} interim responses", response.interim));
    }
    let trailers = case.trailers && case.body == cases::Body::Open && !case.has_no_body();
    (response.trailers.len() != usize::from(trailers)).then(|| format!("trailers: {:?}", response.trailers))
}

fn config(servers: &[[Server; PROTOCOLS]]) -> String {
    let mut config = String::from(
        "[listener.plain]\nbind = \"127.0.0.1:0\"\n[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n\
             [process]\nworkers = 2\ndrain_timeout = \"1s\"\n",
    );
    let tls = format!("tls = {{ ca = \"{}\" }}\n", Certificates::shared().ca().display());
    for (place, pair) in servers.iter().enumerate() {
        for (server, protocol) in pair.iter().zip(Protocol::ALL) {
            let spoken = if protocol.is_http2() { "h2" } else { "http1" };
            let tls = if protocol == Protocol::Http2Tls { &tls[..] } else { "" };
            let name = format!("{place}-{protocol:?}").to_lowercase();
            config.push_str(&format!(
                "[backend.b{name}]\nservers = [\"{}\"]\nprotocol = \"{spoken}\"\nretries = {RETRIES}\n{tls}\
                 [[route]]\npath = \"/{place}/{protocol:?}/\"\nbackend = \"b{name}\"\n",
                server.address
            ));
        }
    }
    config
}

#[test]
fn any_server_gets_each_client_the_answer_to_its_own_request_or_an_error() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let all = cases(&mut random, BROKEN);
    let faults: usize = all.iter().filter(|case| matches!(case.verdict(), Verdict::Excess | Verdict::Broken)).count();
    println!("{} cases, of which {faults} are a server's fault", all.len());
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let servers: Vec<[Server; PROTOCOLS]> = runtime.block_on(async {
        let mut servers = Vec::new();
        for _ in 0..CLIENTS {
            let [one, other, third] = Protocol::ALL;
            servers.push([Server::start(one).await, Server::start(other).await, Server::start(third).await]);
        }
        servers
    });
    let engine = Engine::start(&config(&servers));
    let wrong = Arc::new(Mutex::new(Vec::new()));
    runtime.block_on(async {
        let mut stands = JoinSet::new();
        for (place, pair) in servers.iter().enumerate() {
            let clients = Protocol::ALL.map(|protocol| {
                let listener = if protocol == Protocol::Http2Tls { "web" } else { "plain" };
                Client::new(protocol, engine.address(listener))
            });
            let mut stand = Stand { place, servers: pair.clone(), clients, wrong: Arc::clone(&wrong) };
            let cases: Vec<(usize, Case)> = all.iter().copied().enumerate().skip(place).step_by(CLIENTS).collect();
            stands.spawn(async move {
                for (number, case) in cases {
                    stand.judge(case, number).await;
                }
            });
        }
        while let Some(ended) = stands.join_next().await {
            ended.expect("no client panics");
        }
    });
    let wrong = wrong.lock().expect("nobody panics with it");
    assert!(
        wrong.is_empty(),
        "seed {seed}: {} of {}:\n{}",
        wrong.len(),
        all.len(),
        wrong[..wrong.len().min(40)].join("\n")
    );
    told(&engine, &[], faults);
    // Repeats would make up for these: they are told once each.
    let excess = all.iter().filter(|case| case.verdict() == Verdict::Excess).count();
    told(&engine, &[("reason", "excess-data")], excess);
    bounded(&engine, &all, &servers);
}

/// Each fault of a server is counted, once or for each attempt.
fn told(engine: &Engine, labels: &[(&str, &str)], faults: usize) {
    let mut counted = 0;
    eventually(Duration::from_secs(10), "faults are told", || {
        counted = engine.metric("propylon_server_faults_total", labels) as usize;
        (counted >= faults).then_some(())
    });
}

/// A server of HTTP/2 loses its connection where it closes it, and not for what it does to a stream.
fn bounded(engine: &Engine, all: &[Case], servers: &[[Server; PROTOCOLS]]) {
    use cases::Break;
    let closing =
        |case: &&Case| case.server.is_http2() && matches!(case.broken, Some((Break::Close | Break::Reset, _)));
    // Each may meet its request again on another, and a core has connections of its own.
    let closed = all.iter().filter(closing).count() * (1 + RETRIES as usize);
    let made: u32 = servers.iter().flat_map(|each| &each[1..]).map(Server::connections).sum();
    assert!(
        made as usize <= closed + 2 * CLIENTS * (PROTOCOLS - 1),
        "{made} connections to servers of HTTP/2, of which {closed} may have ended"
    );
    let open = engine.metric("propylon_server_connections", &[]);
    assert!(open <= (CLIENTS * PROTOCOLS * 4) as f64, "{open} connections to servers are open");
}

/// There is no CONNECT of either version, and its connection or stream alone ends with that.
#[test]
fn connect_is_refused_by_either_version() {
    let origin = propylon_e2e::Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let engine = Engine::start(&propylon_e2e::engine::simple(&[origin.address()]));
    for target in ["a.test:443", "/"] {
        let mut client = Plain::plain(engine.address("plain"));
        let response = client.ask(format!("CONNECT {target} HTTP/1.1\r\nHost: a.test:443\r\n\r\n"));
        assert_eq!((response.status, response.field("Connection")), (501, Some("close")), "{}", response.head);
        client.ending();
    }
    let mut client = propylon_e2e::frames::Http2::start(&engine);
    client.headers(1, propylon_e2e::frames::END_STREAM, &[(":method", "CONNECT"), (":authority", "a.test:443")]);
    assert_eq!(client.next_of(1).spelled_status(), Some(501));
    client.get(3, "/");
    assert_eq!(client.next_of(3).status(), Some(200));
    assert!(!origin.received_text().contains("CONNECT"));
}

//! Signals that a cluster gives: how many engines it wants, that one of them leaves, and what is wrong, each told where
//! the manual says, and over when its cause is.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};

use propylon_e2e::binaries;
use propylon_e2e::devtools::{Page, Screen};
use propylon_e2e::http::head_end;
use propylon_e2e::program::run;
use propylon_e2e::rig::cluster::{BUCKETS, Cluster, Member, await_cluster, await_engines, cluster, rig, secret};
use propylon_e2e::rig::network::{SERVERS_NETWORK, engine_address, router_address};
use propylon_e2e::rig::{Cut, Flows, Manner, Node, Options, Rig, Skip, VIP};
use propylon_e2e::wait::{WAIT_MAX, eventually, holds};
use rustix::process::Signal;
use serde_json::Value;

/// Port of the second hop's tunnel.
const TUNNEL: u16 = 6655;
const SCALER_PORT: u16 = 8080;
/// Names of what is told of clusters begin so.
const KINDS: [&str; 3] = ["cluster-", "announce-", "flows-"];
/// Connections that ask for more engines than the processor of two can.
const HELD: usize = 45;

#[test]
fn what_is_wrong_is_told_as_the_manual_says_and_over_when_its_cause_is() {
    let Some(mut cluster) = sharing(Options { engines: 5, ..Options::default() }) else { return };
    for engine in 0..3 {
        cluster.start(engine);
    }
    // Two of another cluster have one name.
    twin(&mut cluster.rig, 3);
    twin(&mut cluster.rig, 4);
    cluster.await_status("three go by a table", |status| {
        let all = status["engines"].as_array();
        all.is_some_and(|all| all.iter().filter(|engine| engine["flows_generation"].as_u64() > Some(0)).count() == 3)
    });
    let rig = &mut cluster.rig;
    for engine in 0..4 {
        await_none(rig.engine(engine));
    }

    // Each in trouble of its own.
    cluster.kill_hop(0);
    let rig = &mut cluster.rig;
    stranger_at_the_tunnel(rig, 1);
    rig.engine(1).bird_mut().kill();
    fs::remove_file(rig.bird(1).socket()).expect("a socket");
    rig.bird(2).signal(Signal::STOP);
    rig.isolate(2, Cut::Etcd);
    for (engine, name) in [
        (4, "cluster-name-taken"),
        (4, "cluster-problems"),
        (1, "flows-dropping"),
        (1, "announce-failing"),
        (2, "announce-failing"),
        (2, "cluster-away"),
        (2, "cluster-problems"),
        (0, "flows-stopped"),
    ] {
        told(rig.engine(engine), name);
    }
    // Of another one's trouble nobody is told as of its own.
    let own = BTreeSet::from(["flows-stopped".to_owned()]);
    holds("it tells of its own trouble alone", || names(rig.engine(0)) == own);
    holds("it tells of no trouble", || names(rig.engine(3)).is_empty());
    look_at_dashboard(rig);

    cluster.restart_hop(0);
    let rig = &mut cluster.rig;
    rig.engine(1).bird_mut().restart();
    rig.bird(2).signal(Signal::CONT);
    rig.rejoin(2);
    rig.engine(3).terminate();
    for (engine, gone) in [
        (0, vec!["flows-stopped"]),
        (1, vec!["flows-dropping", "announce-failing"]),
        (2, vec!["announce-failing", "cluster-away", "cluster-problems"]),
        (4, vec!["cluster-name-taken", "cluster-problems"]),
    ] {
        await_none(rig.engine(engine));
        for name in gone {
            let over = format!(" [{name}]");
            let is_over = |line: &String| line.contains(&over) && line.contains("over after ");
            holds(&format!("{name} is over"), || rig.engine(engine).said().iter().any(is_over));
        }
    }
}

/// One of a cluster of two in which both have the same name.
#[track_caller]
fn twin(rig: &mut Rig, engine: usize) {
    let member = Member { name: "twin".to_owned(), ..Member::of(rig, engine) };
    let section = member.section(rig, "").replace("name = \"edge\"", "name = \"pair\"");
    let config = rig.config();
    rig.engine(engine).start("", &format!("{section}{config}"));
    await_cluster(rig, engine, "etcd answers", |status| status["connected"] == true);
}

/// Packets to the tunnel's port of an engine, from an address that is no engine's.
#[track_caller]
fn stranger_at_the_tunnel(rig: &Rig, engine: usize) {
    let mut command = rig.client_command("bash");
    let script = format!("for i in 1 2 3; do echo hello > /dev/udp/{}/{TUNNEL}; done", engine_address(engine));
    command.arg("-c").arg(script);
    run(command, b"", WAIT_MAX).ok();
}

/// Conditions of clusters, of announced addresses and of flows that an engine tells of.
fn conditions(node: &Node) -> Vec<Value> {
    let (status, body) = node.ask("GET", "/status.json", "");
    assert_eq!(status, 200, "{body}");
    let all = body["conditions"]["list"].as_array().expect("a list").clone();
    let is_ours =
        |each: &Value| each["name"].as_str().is_some_and(|name| KINDS.iter().any(|kind| name.starts_with(kind)));
    all.into_iter().filter(is_ours).collect()
}

fn names(node: &Node) -> BTreeSet<String> {
    conditions(node).iter().map(|each| each["name"].as_str().expect("a name").to_owned()).collect()
}

#[track_caller]
fn await_none(node: &Node) {
    holds(&format!("{} tells of nothing", node.name()), || conditions(node).is_empty());
}

/// Waits until an engine tells of a condition, and compares its words with the manual's, in its answer and its log.
#[track_caller]
fn told(node: &Node, name: &str) {
    let row = documented(name);
    let found = eventually(WAIT_MAX, &format!("{} tells of {name}", node.name()), || {
        conditions(node).into_iter().find(|each| each["name"] == name)
    });
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    let what = text("what");
    assert_eq!((text("grade"), without_number(&what), text("cure")), (row.grade.clone(), row.what, row.cure.clone()));
    let level = if row.grade == "problem" { "error" } else { row.grade.as_str() };
    let (begin, end) = (format!("{level}: {what}"), format!(" [{name}]; {}", row.cure));
    holds("it is in the log", || node.said().iter().any(|line| line.contains(&begin) && line.ends_with(&end)));
}

/// A row of the manual's table of conditions.
struct Row {
    grade: String,
    what: String,
    cure: String,
}

#[track_caller]
fn documented(name: &str) -> Row {
    let start = format!("| `{name}` | ");
    let line = include_str!("../../docs/manual.md").lines().find_map(|line| line.strip_prefix(&start));
    let cells: Vec<&str> = line.expect("a row of the manual").trim_end_matches(" |").split(" | ").collect();
    assert_eq!(cells.len(), 4, "{cells:?}");
    Row { grade: cells[0].to_owned(), what: cells[1].to_owned(), cure: cells[3].to_owned() }
}

/// The manual has an N where an engine has a number at the end.
fn without_number(text: &str) -> String {
    let words = text.trim_end_matches(|c: char| c.is_ascii_digit());
    if words.len() == text.len() { text.to_owned() } else { format!("{words}N") }
}

/// The dashboard of engine 1, which has lost its BIRD, while engine 0 has lost its second hop and engine 2 is away.
#[track_caller]
fn look_at_dashboard(rig: &mut Rig) {
    let url = format!("http://{}/", bridge(rig.engine(1).admin_socket()));
    let mut page = Page::open(&url, Screen { width: 1280, height: 900, is_dark: false });
    page.eventually("one disagrees", "!document.querySelector('#disagreements-table').hidden");
    // Who leads may change while somebody looks.
    let (leader, rows) = eventually(WAIT_MAX, "the page has engines and leader as the engine says them", || {
        let leader = cluster(rig, 1)["leader"].as_str()?.to_owned();
        let mut rows = page.rows("#engines-table");
        rows.sort();
        let names = ["engine0", "engine1"].map(|name| {
            let leads = if name == leader { ", leads" } else { "" };
            let own = if name == "engine1" { " (this one)" } else { "" };
            format!("{name}{leads}{own}")
        });
        rows.iter().map(|row| &row[0]).eq(&names).then_some((leader, rows))
    });
    let owned: u64 = rows.iter().map(|row| row[10].replace(',', "").parse::<u64>().expect("buckets")).sum();
    assert_eq!(owned, BUCKETS, "{rows:?}");
    let disagreements = page.rows("#disagreements-table");
    let of_first = disagreements.iter().find(|row| row[0] == "engine0").expect("engine 0 disagrees");
    assert!(of_first[1].contains("propylon-flows does not run"), "{disagreements:?}");
    let facts = page.rows("#cluster-table");
    let fact = |what: &str| facts.iter().find(|row| row[0] == what).unwrap_or_else(|| panic!("no {what}: {facts:?}"));
    assert!(fact("Leader")[1].starts_with(&format!("{leader}; etcd answers")), "{facts:?}");
    assert!(fact("Flow table")[1].contains("1,024 buckets"), "{facts:?}");
    assert!(fact("Announcement")[1].starts_with("✗ "), "{facts:?}");
    let attention = page.text("#problem-list");
    assert!(attention.contains(&documented("announce-failing").what), "{attention}");
    page.photograph("cluster-wide");
    page.look(Screen { width: 400, height: 800, is_dark: false });
    let wide = page.evaluate("document.documentElement.scrollWidth");
    assert!(wide.as_u64() <= Some(400), "the page is {wide} wide");
    page.photograph("cluster-narrow");
    assert_eq!(page.console(), Vec::<String>::new());
}

/// An address of this machine that leads to a Unix socket, for a browser.
fn bridge(socket: PathBuf) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(engine) = UnixStream::connect(&socket) else { continue };
            let (Ok(mut answers), Ok(mut to)) = (engine.try_clone(), client.try_clone()) else { continue };
            std::thread::spawn(move || {
                let _ = io::copy(&mut answers, &mut to);
                to.shutdown(Shutdown::Both)
            });
            std::thread::spawn(move || {
                let _ = io::copy(&mut &client, &mut &engine);
                engine.shutdown(Shutdown::Both)
            });
        }
    });
    address
}

#[test]
fn whoever_starts_engines_is_told_how_many_are_wanted_by_a_program_or_by_a_post() {
    let Some(mut rig) = rig(Options { engines: 2, bird: false, ..Options::default() }) else { return };
    let hook = Hook::make(&rig);
    let scaler = Scaler::start(&rig);
    // A plan that only connections can exceed.
    let plan = "min = 4, max = 20, spare = 1, cpu = 100, connections = 3, handshake_wait = \"60s\", every = \"1s\"";
    // A busy machine makes nobody lose the lead.
    let lease = "lease = \"10s\"\n";
    let by_hook = format!("{lease}capacity = {{ {plan}, hook = [\"{}\", \"edge 7\"] }}\n", hook.program.display());
    let by_webhook = format!("{lease}capacity = {{ {plan}, webhook = \"{}\" }}\n", scaler.url);
    Member::of(&mut rig, 0).start(&mut rig, &by_hook);
    await_cluster(&mut rig, 0, "it leads", |status| status["leader"] == "engine0");
    Member::of(&mut rig, 1).start(&mut rig, &by_webhook);
    (0..2).for_each(|engine| await_engines(&mut rig, engine, 2));

    // The minimum and a spare one; the program does not end yet.
    let minimum = "fewer than the minimum with its spare engines is never wanted";
    await_wanted(&mut rig, 5);
    let first = hook.runs(1).remove(0);
    assert_eq!((first.arguments.as_str(), first.wanted), ("edge 7", 5));
    assert_eq!(first.reason, minimum);

    // Twice as many at once are the most, and for a minute there are no more.
    let flows = held(&rig, 1);
    await_wanted(&mut rig, 10);
    await_cluster(&mut rig, 0, "it waits", |status| status["capacity"]["reason"] == "engines were added a moment ago");
    assert_eq!(hook.runs(1).len(), 1, "one at a time");
    hook.go_on();
    let second = hook.runs(2).remove(1);
    assert_eq!((second.wanted, second.engines), (10, 2));
    assert_eq!(second.reason, "connections would be over what engines are planned for");
    assert_eq!(scaler.posts(0).len(), 0, "only the leader tells");

    // The successor has its own way to tell.
    rig.engine(0).kill();
    await_cluster(&mut rig, 1, "the other one leads", |status| status["leader"] == "engine1");
    let post = scaler.posts(1).remove(0);
    assert_eq!((post.line.as_str(), post.kind.as_str()), ("POST /engines HTTP/1.1", "application/json"));
    let keys: BTreeSet<&str> = post.body.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(keys, BTreeSet::from(["cluster", "wanted", "engines", "reason", "at"]));
    assert_eq!((&post.body["cluster"], &post.body["engines"]), (&Value::from("edge"), &Value::from(1)));
    let wanted = post.body["wanted"].as_u64().expect("a number");
    assert!((10..=20).contains(&wanted), "it goes on from the number before: {}", post.body);
    await_cluster(&mut rig, 1, "it says so too", |status| status["capacity"]["wanted"] == wanted);
    let node = rig.engine(1);
    holds("so does the metric", || node.metric("propylon_cluster_engines_wanted", &[]) == Some(wanted as f64));
    let again = scaler.posts(2).remove(1);
    assert_eq!(again.body["wanted"], wanted, "it is told again, since it did not take the first");
    let enough = "as many as there are do";
    await_cluster(&mut rig, 1, "that is enough", |status| status["capacity"]["reason"] == enough);
    assert_eq!((hook.runs(2).len(), scaler.posts(2).len()), (2, 2), "what was taken is not told again");
    drop(flows);
}

/// Waits until both engines say that so many are wanted, in the answer and in the metric.
#[track_caller]
fn await_wanted(rig: &mut Rig, wanted: u64) {
    for engine in 0..2 {
        await_cluster(rig, engine, &format!("{wanted} are wanted"), |status| status["capacity"]["wanted"] == wanted);
        let node = rig.engine(engine);
        holds("so says the metric", || node.metric("propylon_cluster_engines_wanted", &[]) == Some(wanted as f64));
    }
}

/// Clients who hold connections to one engine.
#[track_caller]
fn held(rig: &Rig, engine: usize) -> Flows {
    rig.route_to(engine);
    let flows = rig.flows(&Manner { held: HELD, replaces: true, ..Manner::default() });
    flows.await_held(HELD as u64);
    flows
}

/// A program that writes down how it is run, and the first time waits for a word.
struct Hook {
    program: PathBuf,
    runs: PathBuf,
    word: PathBuf,
}

#[derive(Debug)]
struct Run {
    arguments: String,
    wanted: u64,
    engines: u64,
    reason: String,
}

impl Hook {
    fn make(rig: &Rig) -> Hook {
        use std::os::unix::fs::PermissionsExt;
        let [program, runs, word] = ["hook", "hook.runs", "hook.word"].map(|name| rig.folder().join(name));
        let script = format!(
            "#!/bin/sh\nprintf '%s|%s|%s|%s\\n' \"$*\" \"$PROPYLON_ENGINES_WANTED\" \"$PROPYLON_ENGINES\" \
             \"$PROPYLON_REASON\" >> {}\nwhile [ ! -e {} ]; do sleep 0.05; done\n",
            runs.display(),
            word.display()
        );
        secret(program.clone(), &script);
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).expect("its mode");
        Hook { program, runs, word }
    }

    /// All runs, once there are so many.
    #[track_caller]
    fn runs(&self, count: usize) -> Vec<Run> {
        eventually(WAIT_MAX, "the hook is run", || {
            let text = fs::read_to_string(&self.runs).unwrap_or_default();
            let runs: Vec<Run> = text.lines().map(Run::parse).collect();
            (runs.len() >= count).then_some(runs)
        })
    }

    fn go_on(&self) {
        fs::write(&self.word, "").expect("a file");
    }
}

impl Run {
    fn parse(line: &str) -> Run {
        let parts: Vec<&str> = line.split('|').collect();
        let number = |at: usize| parts[at].parse().unwrap_or_else(|error| panic!("{error}: {line}"));
        Run { arguments: parts[0].to_owned(), wanted: number(1), engines: number(2), reason: parts[3].to_owned() }
    }
}

/// A server that notes what it is posted.
struct Scaler {
    url: String,
    posts: Arc<Mutex<Vec<Post>>>,
}

#[derive(Clone, Debug)]
struct Post {
    line: String,
    kind: String,
    body: Value,
}

impl Scaler {
    fn start(rig: &Rig) -> Scaler {
        let listener = rig.listen_beside_router(SCALER_PORT);
        let posts: Arc<Mutex<Vec<Post>>> = Arc::default();
        let kept = Arc::clone(&posts);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut answer = "HTTP/1.1 204 No Content\r\n\r\n";
                if let Some(post) = Post::read(&mut stream) {
                    let mut kept = kept.lock().expect("no panic");
                    kept.push(post);
                    if kept.len() == 1 {
                        answer = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
                    }
                }
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        Scaler { url: format!("http://{}:{SCALER_PORT}/engines", router_address(SERVERS_NETWORK)), posts }
    }

    /// All posts, once there are so many. The first is answered 503.
    #[track_caller]
    fn posts(&self, count: usize) -> Vec<Post> {
        eventually(WAIT_MAX, "the scaler is told", || {
            let posts = self.posts.lock().expect("no panic").clone();
            (posts.len() >= count).then_some(posts)
        })
    }
}

impl Post {
    fn read(stream: &mut TcpStream) -> Option<Post> {
        stream.set_read_timeout(Some(WAIT_MAX)).ok()?;
        let (mut bytes, mut piece) = (Vec::new(), [0; 4096]);
        loop {
            let count = stream.read(&mut piece).ok().filter(|count| *count > 0)?;
            bytes.extend_from_slice(&piece[..count]);
            let Some(end) = head_end(&bytes) else { continue };
            let Ok(body) = serde_json::from_slice(&bytes[end..]) else { continue };
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let kind = propylon_e2e::http::values(&head, "content-type").concat();
            return Some(Post { line: head.lines().next()?.to_owned(), kind, body });
        }
    }
}

#[test]
fn an_engine_that_leaves_gives_all_away_serves_on_and_a_restart_joins_again() {
    let Some(mut cluster) = sharing(Options { engines: 3, ..Options::default() }) else { return };
    (0..3).for_each(|engine| cluster.start(engine));
    await_owners(&mut cluster);
    let flows = cluster.rig.flows(&Manner { new_per_second: 10, ..Manner::default() });
    flows.sample_with("connections", |sample| sample.new_ok >= 10);

    let mut command = Command::new(binaries::propylon());
    command.args(["cluster", "leave", "-c"]).arg(cluster.rig.engine(0).lineage().config());
    let said = run(command, b"", WAIT_MAX).ok();
    assert!((said.text() + &said.stderr).contains("no new flows come to it, and its addresses are withdrawn"));
    cluster.rig.engine(0).says("this engine has left; a restart joins again");
    for engine in [1, 2] {
        await_cluster(&mut cluster.rig, engine, "two have all", |status| {
            let all: Vec<&Value> = status["engines"].as_array().into_iter().flatten().collect();
            let owned: u64 = all.iter().filter_map(|engine| engine["buckets"].as_u64()).sum();
            all.len() == 2 && owned == BUCKETS && all.iter().all(|engine| engine["name"] != "engine0")
        });
    }
    for key in ["engines/engine0", "drains/engine0"] {
        assert_eq!(cluster.rig.etcd().value(&format!("propylon/edge/{key}")), None, "{key}");
    }
    cluster.await_routes(2);
    let left = flows.sample();
    // It stays away, and alive, for longer than it would take to announce again.
    flows.sample_with("new connections", |sample| sample.new_ok >= left.new_ok + 40);
    assert!(cluster.rig.engine(0).is_running());
    assert_eq!(self::cluster(&mut cluster.rig, 0)["connected"], true);
    let paths: BTreeSet<usize> = cluster.rig.router_routes(VIP.into()).iter().map(|hop| hop.engine).collect();
    assert_eq!(paths, BTreeSet::from([1, 2]));

    cluster.rig.engine(0).terminate();
    cluster.start(0);
    await_owners(&mut cluster);
    let back = flows.sample();
    flows.sample_with("new connections", |sample| sample.new_ok >= back.new_ok + 10);
    let failed = flows.failed();
    let after = flows.stop();
    assert_eq!((after.new_failed, after.refused), (0, 0), "{after:?} {failed:?}");
}

/// Waits until all three engines own buckets and are announced.
#[track_caller]
fn await_owners(cluster: &mut Cluster) {
    cluster.await_status("three own buckets", |status| {
        let all = status["engines"].as_array();
        all.is_some_and(|all| all.iter().filter(|engine| engine["buckets"].as_u64() > Some(0)).count() == 3)
    });
    cluster.await_routes(3);
}

fn sharing(options: Options) -> Option<Cluster> {
    match Cluster::new(options) {
        Ok(cluster) => Some(cluster),
        Err(Skip(reason)) => {
            eprintln!("skipped: {reason}");
            None
        }
    }
}

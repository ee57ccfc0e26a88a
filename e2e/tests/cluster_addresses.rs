//! Addresses that engines share, in the other ways: of IPv6, moved by keepalived on one Ethernet, and asked by the HTTP
//! clients of Go, Java and curl. Flows stay with their engines in each.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use propylon_e2e::peers::{self, Running};
use propylon_e2e::program::{finish, run};
use propylon_e2e::rig::cluster::secret;
use propylon_e2e::rig::network::client_addresses;
use propylon_e2e::rig::shared::Shared;
use propylon_e2e::rig::{Flows, Manner, Options, Skip, VIP, VIP6};
use propylon_e2e::wait::{WAIT_MAX, eventually};
use propylon_e2e::{Certificates, Scratch};
use serde_json::Value;

/// Transfers, and Java's start, on a busy machine.
const TRANSFERS_MAX: Duration = Duration::from_secs(60);
/// Bytes of a large body.
const LARGE: usize = 1_000_000;
/// Large bodies each way that a client's address moves at once.
const TRANSFERS: usize = 2;
/// Rounds of transfers until every kernel has learnt how wide the ways are.
const ROUNDS_MAX: usize = 5;

/// The way of a large body, as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Large {
    Got,
    Sent,
}

/// Engines that share addresses, each with a server in Go on its own machine for what is large.
struct Story {
    // Servers end before their namespaces.
    servers: Vec<Server>,
    shared: Shared,
}

impl Story {
    /// So many engines of which the first `running` run and share the table, or the reason why not.
    fn new(options: Options, running: usize) -> Option<Story> {
        let shared = match Shared::new(options) {
            Ok(shared) => shared,
            Err(Skip(reason)) => {
                eprintln!("skipped: {reason}");
                return None;
            }
        };
        let mut story = Story { servers: Vec::new(), shared };
        let names = ["shop.test", &VIP.to_string(), &VIP6.to_string()];
        let pem = Certificates::shared().issue(&names, &rcgen::PKCS_ECDSA_P256_SHA256);
        secret(story.certificate(), &pem);
        let engines = story.shared.rig.engines().iter();
        story.servers = engines.map(|node| Server::start(node.command(peers::go("go_server")))).collect();
        (0..running).for_each(|engine| story.start(engine));
        story.shared.await_sharing(running);
        Some(story)
    }

    fn certificate(&self) -> PathBuf {
        self.shared.rig.folder().join("vip.pem")
    }

    #[track_caller]
    fn start(&mut self, engine: usize) {
        let (certificate, port) = (self.certificate(), self.servers[engine].port);
        let routes = ["/bytes", "/sum"].map(|path| format!("[[route]]\npath = \"{path}\"\nbackend = \"large\"\n"));
        let more = format!(
            "[tls.public]\ncertificates = [\"{}\"]\n[backend.large]\nservers = [\"127.0.0.1:{port}\"]\n{}",
            certificate.display(),
            routes.concat()
        );
        self.shared.start(engine, &more);
    }

    fn flows(&self, held: usize) -> Flows {
        let ipv6 = self.shared.rig.options().ipv6;
        let (interval, timeout) = (Duration::from_millis(500), Duration::from_secs(20));
        self.shared.rig.flows(&Manner { held, interval, timeout, new_per_second: 10, ipv6, ..Manner::default() })
    }

    /// Large bodies of all of the clients' addresses at once, each on a connection of its own.
    #[track_caller]
    fn transfers(&self, vip: IpAddr, ways: &[Large]) {
        let rig = &self.shared.rig;
        let folder = Scratch::new();
        let body: Vec<u8> = (0..LARGE as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let sent = folder.write("body", &body);
        let mut digest = Command::new("sha256sum");
        digest.arg(&sent);
        let digest = run(digest, b"", WAIT_MAX).ok().text();
        let told = format!("POST {LARGE} {LARGE} {}\n", digest.split(' ').next().expect("a digest"));
        let sources = client_addresses(rig.options().client_addresses, vip.is_ipv6());
        let start = |source: &IpAddr, way: Large| {
            let name = folder.join(&format!("{source}-{way:?}"));
            let mut command = curl(rig.client_command("curl"), vip);
            command.args(["--http1.1", "--parallel", "--parallel-immediate"]);
            command.args(["--interface", &source.to_string()]);
            for number in 0..TRANSFERS {
                command.arg("--output").arg(format!("{}-{number}", name.display()));
                command.arg(if way == Large::Sent {
                    format!("{URL}/sum?{number}")
                } else {
                    format!("{URL}/bytes?{LARGE}")
                });
            }
            if way == Large::Sent {
                command.arg("--data-binary").arg(format!("@{}", sent.display()));
            }
            (command.stderr(Stdio::piped()).spawn().expect("curl starts"), name, way)
        };
        let all: Vec<_> = sources.iter().flat_map(|from| ways.iter().map(|way| start(from, *way))).collect();
        for (mut child, name, way) in all {
            let status = finish(&mut child, TRANSFERS_MAX, "curl");
            let said = std::io::read_to_string(child.stderr.take().expect("piped")).unwrap_or_default();
            assert!(status.success(), "{}: {said}", name.display());
            for number in 0..TRANSFERS {
                let got = fs::read(format!("{}-{number}", name.display())).expect("what curl got");
                let wanted = if way == Large::Sent { told.as_bytes() } else { &body };
                assert!(got == wanted, "{}: {} bytes that changed on their way", name.display(), got.len());
            }
        }
    }

    /// Engines, and families of addresses, whose kernel has learnt nothing of the kind of any way, with what it has.
    fn untold(&mut self, learnt: &str) -> Vec<(usize, &'static str, String)> {
        let all = [(0, "-4"), (0, "-6"), (1, "-4"), (1, "-6")].into_iter().map(|(engine, family)| {
            let mut command = self.shared.rig.engine(engine).command("ip");
            command.args([family, "route", "show", "cache"]);
            (engine, family, run(command, b"", WAIT_MAX).ok().text())
        });
        all.filter(|(_, _, known)| !known.contains(learnt)).collect()
    }

    /// Packets of a kind at all second hops.
    fn packets(&mut self, names: &[&str]) -> u64 {
        let engines = 0..self.servers.len();
        let shared = &mut self.shared;
        engines.flat_map(|engine| names.iter().map(move |name| (engine, *name))).fold(0, |sum, (engine, name)| {
            sum + if shared.rig.engine(engine).is_running() { shared.packets(engine, name) } else { 0 }
        })
    }
}

const URL: &str = "https://shop.test";

fn curl(mut command: Command, vip: IpAddr) -> Command {
    command.args(["--silent", "--show-error", "--fail", "--noproxy", "*", "--cacert"]);
    command.arg(Certificates::shared().ca());
    let literal = if vip.is_ipv6() { format!("[{vip}]") } else { vip.to_string() };
    command.arg("--resolve").arg(format!("shop.test:443:{literal}"));
    command
}

/// Waits until so many more new connections are answered.
#[track_caller]
fn goes_on(flows: &Flows, more: u64) {
    let before = flows.sample();
    flows.sample_with("new connections are answered", |sample| sample.new_ok >= before.new_ok + more);
}

#[track_caller]
fn unharmed(flows: &Flows, story: &mut Story) {
    let sample = flows.sample();
    let harm = (sample.broken, sample.new_failed, sample.refused);
    assert_eq!(harm, (0, 0, 0), "{:?} {:?}\n{}", flows.broken(), flows.failed(), story.shared.logs());
}

/// Held connections that broke were all of one engine, and it had so many of them.
#[track_caller]
fn only_those_of(flows: &Flows, dead: usize, earlier: usize) {
    let others: Vec<_> =
        flows.broken().into_iter().skip(earlier).filter(|broken| broken.engine != Some(dead)).collect();
    assert!(others.is_empty(), "engine {dead} was killed, and others' flows broke: {others:?}");
}

#[test]
fn flows_to_an_ipv6_address_stay_while_engines_come_and_drain_and_die() {
    let Some(mut story) = Story::new(Options { ipv6: true, ..Options::default() }, 3) else { return };
    let flows = story.flows(150);
    let held = flows.await_held(150);
    assert_eq!(held.engines.keys().copied().collect::<Vec<_>>(), [0, 1, 2], "{held:?}");
    story.start(3);
    story.shared.await_sharing(4);
    unharmed(&flows, &mut story);
    story.shared.drain(0, true);
    story.shared.await_paths(3);
    goes_on(&flows, 30);
    unharmed(&flows, &mut story);
    story.shared.drain(0, false);
    story.shared.await_sharing(4);
    goes_on(&flows, 15);
    unharmed(&flows, &mut story);
    assert!(story.packets(&["forwarded_owner", "forwarded_former"]) > 1000, "{}", story.shared.logs());

    let own = flows.sample().engines[&2];
    story.shared.rig.engine(2).kill();
    story.shared.await_rescued(2);
    story.shared.await_paths(3);
    goes_on(&flows, 60);
    flows.sample_with("flows of the dead engine are broken", |sample| sample.broken >= own);
    only_those_of(&flows, 2, 0);
    eprintln!(
        "{own} flows were the dead engine's; {} new ones failed: {:?}",
        flows.sample().new_failed,
        flows.failed()
    );
}

/// A client's packets are too long to be wrapped on the way between engines, which it has to be told by the second hop;
/// and what the router says of answers that are too long reaches the engine that sent them, whichever it is told.
#[test]
fn large_bodies_are_whole_where_links_are_narrow() {
    let Some(mut story) = Story::new(Options { engines: 2, ipv6: true, ..Options::default() }, 2) else { return };
    for vip in [VIP.into(), VIP6.into()] {
        story.transfers(vip, &[Large::Got, Large::Sent]);
    }
    assert_eq!(story.packets(&["answered_too_big", "dropped_too_big", "dropped_failed"]), 0, "{}", story.shared.logs());
    story.shared.rig.narrow_engines(1500);
    story.shared.rig.narrow_clients(1280);
    // A kernel forgets what it has learnt whenever its routes change, as BIRD has them do at leisure when a link has
    // become narrower: the transfer that comes next is told again.
    let mut left = ROUNDS_MAX;
    loop {
        for vip in [VIP.into(), VIP6.into()] {
            story.transfers(vip, &[Large::Got, Large::Sent]);
        }
        let untold = story.untold("mtu 1280");
        if untold.is_empty() {
            break;
        }
        left -= 1;
        assert!(left > 0, "engines that were not told of the way's width: {untold:?}");
    }
    let tells = |story: &mut Story| story.packets(&["answered_too_big"]);
    eventually(WAIT_MAX, "the second hop has told clients of what fits", || (tells(&mut story) > 0).then_some(()));
    assert_eq!(story.packets(&["dropped_too_big", "dropped_failed"]), 0, "{}", story.shared.logs());
}

#[test]
fn keepalived_moves_the_address_and_flows_stay_with_their_engines() {
    let Some(mut story) = Story::new(Options { engines: 3, segment: true, ..Options::default() }, 3) else { return };
    story.shared.start_keepalived(0);
    story.shared.await_holder("the first one has the address", |engine| engine == 0);
    (1..3).for_each(|engine| story.shared.start_keepalived(engine));
    let flows = story.flows(120);
    let held = flows.await_held(120);
    assert!((0..3).all(|engine| held.engines.get(&engine).is_some_and(|own| *own > 0)), "each has some: {held:?}");
    assert_eq!(story.shared.holders(), [0]);
    answers_go_back_directly(&mut story, 0);
    unharmed(&flows, &mut story);

    // The holder dies: the address moves, and flows of the others are found from there.
    let own = flows.sample().engines[&0];
    story.shared.rig.engine(0).kill();
    let second = story.shared.await_holder("another one has the address", |engine| engine != 0);
    flows.sample_with("flows of the dead engine are broken", |sample| sample.broken >= own);
    goes_on(&flows, 60);
    only_those_of(&flows, 0, 0);
    eprintln!("{own} flows were the holder's; {} new ones failed: {:?}", flows.sample().new_failed, flows.failed());
    story.start(0);
    story.shared.await_sharing(3);
    goes_on(&flows, 30);

    // The holder drains: the address moves, and nothing breaks.
    let before = flows.sample();
    story.shared.drain(second, true);
    let third = story.shared.await_holder("the address has moved", |engine| engine != second);
    goes_on(&flows, 60);
    story.shared.drain(second, false);
    story.shared.await_sharing(3);
    let after = flows.sample();
    let harm = (after.broken - before.broken, after.new_failed - before.new_failed);
    assert_eq!(harm, (0, 0), "{:?} {:?}\n{}", flows.broken(), flows.failed(), story.shared.logs());

    // One dies that does not have the address.
    let other = (1..3).find(|engine| *engine != third).expect("one of two");
    let (own, earlier) = (after.engines.get(&other).copied().unwrap_or(0), flows.broken().len());
    story.shared.rig.engine(other).kill();
    story.shared.await_rescued(other);
    goes_on(&flows, 60);
    flows.sample_with("flows of the dead engine are broken", |sample| sample.broken >= earlier as u64 + own);
    only_those_of(&flows, other, earlier);
    assert_eq!(story.shared.holders(), [third], "nobody else has the address");
}

/// What clients get does not pass the holder's link, but for what the holder itself has answered.
#[track_caller]
fn answers_go_back_directly(story: &mut Story, holder: usize) {
    let served = |story: &mut Story| {
        let server = format!("127.0.0.1:{}", story.servers[holder].port);
        let node = story.shared.rig.engine(holder);
        node.metric("propylon_server_requests_total", &[("server", &server)]).unwrap_or(0.0) as usize
    };
    let sent = |story: &Story| {
        let mut command = story.shared.rig.router_command("ip");
        command.args(["-s", "-j", "link", "show", "dev", &format!("engine{holder}")]);
        let links: Value = serde_json::from_str(&run(command, b"", WAIT_MAX).ok().text()).expect("JSON");
        links[0]["stats64"]["rx"]["bytes"].as_u64().expect("a count") as usize
    };
    let before = (served(story), sent(story));
    story.transfers(VIP.into(), &[Large::Got]);
    let (served, sent) = (served(story) - before.0, sent(story) - before.1);
    let all = TRANSFERS * story.shared.rig.options().client_addresses;
    eprintln!("engine {holder} has answered {served} of {all} and sent {sent} bytes");
    assert!(served < all, "others answer, too");
    assert!(sent < (served + 3) * LARGE, "{sent} bytes for {served} of {all} answers");
}

#[test]
fn clients_in_go_and_java_and_curl_lose_no_request_while_engines_drain_and_are_upgraded() {
    let Some(mut story) = Story::new(Options { engines: 2, ..Options::default() }, 2) else { return };
    let start = |program: Command, version: &str| {
        let mut command = program;
        command.arg(format!("https://{VIP}")).arg(Certificates::shared().ca()).arg(version);
        Running::start(command)
    };
    let rig = &story.shared.rig;
    let mut clients = vec![start(rig.client_command(peers::go("steady_client")), "1")];
    clients.push(start(rig.client_command(peers::go("steady_client")), "2"));
    for version in ["1", "2"] {
        let mut java = rig.client_command("java");
        java.args(peers::java("SteadyClient"));
        clients.push(start(java, version));
    }
    let curl = Curl::start(|| rig.client_command("curl"));
    let goes_on = || {
        clients.iter().for_each(|client| answers(client, 2));
        curl.goes_on();
    };
    goes_on();
    story.shared.drain(0, true);
    story.shared.await_paths(1);
    goes_on();
    story.shared.drain(0, false);
    story.shared.rig.engine(1).upgrade();
    story.shared.await_sharing(2);
    goes_on();
    story.shared.rig.engine(1).terminate();
    goes_on();
    story.start(1);
    story.shared.await_sharing(2);
    goes_on();
    let failed = curl.end();
    assert!(failed.is_empty(), "{failed:?}");
    let java2 = clients.pop().expect("it was started last").end();
    for client in clients {
        let said = client.end();
        assert!(!said.contains("failed"), "{said}");
    }
    // Java gives up what is in progress on GOAWAY, if it is an old one, and nothing else.
    let is_old = java2.lines().any(|line| line == "0 finishes after GOAWAY");
    let is_known = |line: &&str| is_old && line.contains("GOAWAY received");
    let others: Vec<_> = java2.lines().filter(|line| line.contains("failed")).filter(|line| !is_known(line)).collect();
    assert!(others.is_empty(), "{java2}");
}

/// Waits until a client has said so many more lines, each for fifty answers.
#[track_caller]
fn answers(client: &Running, lines: usize) {
    let before = client.said().len();
    eventually(TRANSFERS_MAX, "a client is answered", || (client.said().len() >= before + lines).then_some(()));
}

/// `curl --http2` one after the other, each with several requests on one connection.
struct Curl {
    rounds: Arc<Mutex<Vec<Result<(), String>>>>,
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl Curl {
    fn start(command: impl Fn() -> Command) -> Curl {
        // A command is no more than a program and its arguments, which are taken along.
        let command = command();
        let (program, arguments) = (command.get_program().to_owned(), command.get_args().map(ToOwned::to_owned));
        let arguments: Vec<_> = arguments.collect();
        let (rounds, stop): (Arc<Mutex<Vec<_>>>, Arc<AtomicBool>) = Default::default();
        let (kept, stops) = (Arc::clone(&rounds), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            while !stops.load(Ordering::Relaxed) {
                let mut plain = Command::new(&program);
                plain.args(&arguments);
                let mut command = curl(plain, VIP.into());
                command.arg("--http2").args(["--write-out", "%{http_code} %{http_version} %{size_download}\\n"]);
                command.args(["--output", "/dev/null", &format!("{URL}/bytes?2000[0-4]")]);
                let said = run(command, b"", TRANSFERS_MAX);
                let wanted: String = (0..5).map(|last| format!("200 2 2000{last}\n")).collect();
                let is_good = said.status.success() && said.text() == wanted;
                let round = if is_good { Ok(()) } else { Err(format!("{said:?}")) };
                kept.lock().expect("no panic").push(round);
            }
        });
        Curl { rounds, stop, thread }
    }

    #[track_caller]
    fn goes_on(&self) {
        let count = || self.rounds.lock().expect("no panic").len();
        let before = count();
        eventually(TRANSFERS_MAX, "curl is answered", || (count() >= before + 2).then_some(()));
    }

    #[track_caller]
    fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic");
        let rounds = self.rounds.lock().expect("no panic");
        rounds.iter().filter_map(|round| round.clone().err()).collect()
    }
}

/// A server in Go.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    #[track_caller]
    fn start(mut command: Command) -> Server {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("go_server starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok);
        let port = lines.map(|line| line.strip_prefix("listening ")?.parse().ok()).find_map(|port| port);
        Server { child, port: port.expect("go_server tells its port") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

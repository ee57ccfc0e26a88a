//! A rig's engines as members of one cluster: their own files, changes of what they share, and what they say of it.

mod sharing;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

pub use sharing::{BUCKETS, CANARY_TIME, Cluster};

use super::namespaces::Namespace;
use super::network::{VIP, engine_address};
use super::{Flows, Manner, Options, Rig, Skip};
use crate::certificates::Certificates;
use crate::program::run;
use crate::wait::{WAIT_MAX, eventually};

/// A roll-out on a busy machine, its canary's second included.
pub const ROLLOUT: Duration = Duration::from_secs(60);

/// As `openssl rand -hex 32` prints it.
const SEALING_KEY: &str = "8f1c0b5e6a2d49f7b3c81e0d7a5f9264c1b8e3f0a7d6954218ce3b7f0a9d5e61\n";

/// What makes an engine one of the cluster.
#[derive(Clone, Debug)]
pub struct Member {
    /// The engine of the rig; its number is that of its address.
    pub number: usize,
    /// Its name in the cluster.
    pub name: String,
    /// Folder of its last good state.
    pub state: PathBuf,
    /// Folder of opened files.
    pub runtime: PathBuf,
    /// Files of sealing keys, the one that seals first.
    pub sealing_keys: Vec<PathBuf>,
}

impl Member {
    #[track_caller]
    pub fn of(rig: &mut Rig, engine: usize) -> Member {
        let sealing_keys = vec![secret(rig.folder().join("cluster.key"), SEALING_KEY)];
        let own = rig.engine(engine);
        let (state, runtime) = (own.folder().join("cluster"), own.folder().join("runtime"));
        Member { number: engine, name: own.name(), state, runtime, sealing_keys }
    }

    /// Its section of the engine's own file, and `more` lines below it.
    #[track_caller]
    pub fn section(&self, rig: &mut Rig, more: &str) -> String {
        let (folder, etcd) = (rig.folder().to_owned(), rig.etcd());
        let endpoints: Vec<String> = etcd.endpoints().iter().map(|endpoint| format!("\"{endpoint}\"")).collect();
        let identity = fs::read_to_string(etcd.client_certificate()).expect("a certificate")
            + &fs::read_to_string(etcd.client_key()).expect("a key");
        let ca = etcd.ca();
        let identity = secret(folder.join("etcd-identity.pem"), &identity);
        let sealing: Vec<String> = self.sealing_keys.iter().map(|path| format!("\"{}\"", path.display())).collect();
        let usual = |key: &str, line: &'static str| if more.contains(key) { "" } else { line };
        let (canary, lease) = (usual("canary", "canary = { time = \"1s\" }\n"), usual("lease", "lease = \"2s\"\n"));
        format!(
            "[cluster]\nname = \"edge\"\nengine = \"{}\"\nendpoints = [{}]\nca = \"{}\"\nidentity = \"{}\"\n\
             sealing_keys = [{}]\nstate = \"{}\"\nruntime = \"{}\"\naddress = \"{}\"\n{lease}{canary}{more}",
            self.name,
            endpoints.join(", "),
            ca.display(),
            identity.display(),
            sealing.join(", "),
            self.state.display(),
            self.runtime.display(),
            engine_address(self.number),
        )
    }

    /// Starts it, with the rig's configuration in its own file.
    #[track_caller]
    pub fn start(&self, rig: &mut Rig, more: &str) {
        let (section, config) = (self.section(rig, more), rig.config());
        rig.engine(self.number).start("", &format!("{section}{config}"));
    }
}

/// A rig with three members of etcd, or the reason why there is none on standard error.
pub fn rig(options: Options) -> Option<Rig> {
    match Rig::new(Options { etcd_members: 3, ..options }) {
        Ok(rig) => Some(rig),
        Err(Skip(reason)) => {
            eprintln!("skipped: {reason}");
            None
        }
    }
}

/// A file for the engines' account alone.
pub fn secret(path: PathBuf, text: &str) -> PathBuf {
    fs::write(&path, text).expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
    path
}

/// The sections of an engine's own file that make it one of the cluster.
#[track_caller]
pub fn section(rig: &mut Rig, engine: usize, more: &str) -> String {
    Member::of(rig, engine).section(rig, more)
}

/// Starts all engines as members of one cluster, and waits until each of them knows all.
#[track_caller]
pub fn start(rig: &mut Rig, more: &str) {
    let engines = rig.engines().len();
    for engine in 0..engines {
        Member::of(rig, engine).start(rig, more);
    }
    for engine in 0..engines {
        await_engines(rig, engine, engines);
    }
}

/// Waits until an engine knows so many engines, itself among them, and who leads them.
#[track_caller]
pub fn await_engines(rig: &mut Rig, engine: usize, count: usize) {
    await_cluster(rig, engine, &format!("{count} engines are there"), |status| {
        status["engines"].as_array().is_some_and(|all| all.len() == count) && status["leader"].is_string()
    });
}

/// The cluster as an engine sees it.
#[track_caller]
pub fn cluster(rig: &mut Rig, engine: usize) -> Value {
    let (status, body) = rig.engine(engine).ask("GET", "/cluster", "");
    assert_eq!(status, 200, "{body}");
    body
}

/// Waits until an engine sees the cluster so.
#[track_caller]
pub fn await_cluster(rig: &mut Rig, engine: usize, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let node = rig.engine(engine);
    let what = format!("{} sees that {what}", node.name());
    let (began, mut last) = (Instant::now(), Value::Null);
    let found = eventually(2 * ROLLOUT, &what, || {
        let answer = node.try_ask("GET", "/cluster", "application/json", "");
        if let Some(status) = answer.and_then(|(_, text)| serde_json::from_str(&text).ok()) {
            last = status;
            if is_so(&last) {
                return Some(Ok(last.clone()));
            }
        }
        (began.elapsed() > ROLLOUT).then(|| Err(last.clone()))
    });
    let said = || node.said().into_iter().rev().take(30).collect::<Vec<_>>().join("\n");
    found.unwrap_or_else(|last| {
        panic!("{what}: not within {ROLLOUT:?}: {last:#}\nits last lines, the last one first:\n{}", said())
    })
}

/// Waits until an engine tells of a problem in whose words all of these are.
#[track_caller]
pub fn await_problem(rig: &mut Rig, engine: usize, parts: &[&str]) {
    await_cluster(rig, engine, &format!("there is a problem: {parts:?}"), |status| {
        let mut problems = status["problems"].as_array().into_iter().flatten().filter_map(Value::as_str);
        problems.any(|problem| parts.iter().all(|part| problem.contains(part)))
    });
}

/// Waits until an engine has no problem.
#[track_caller]
pub fn await_no_problem(rig: &mut Rig, engine: usize) {
    await_cluster(rig, engine, "nothing is wrong", |status| status["problems"].as_array().is_some_and(Vec::is_empty));
}

/// A change for the whole cluster: status, and answer.
#[track_caller]
pub fn try_apply(rig: &mut Rig, engine: usize, text: &str) -> (u16, Value) {
    let answer = rig.engine(engine).try_ask("POST", "/cluster/apply?why=story", "application/toml", text);
    let (status, body) = answer.expect("an engine that answers");
    (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
}

/// A change for the whole cluster, which is under way then.
#[track_caller]
pub fn apply(rig: &mut Rig, engine: usize, text: &str) -> String {
    let (status, body) = try_apply(rig, engine, text);
    assert_eq!(status, 202, "{body}");
    body["id"].as_str().expect("an id").to_owned()
}

/// Waits for the end of a change.
#[track_caller]
pub fn outcome(rig: &mut Rig, engine: usize, id: &str) -> Value {
    let status = await_cluster(rig, engine, "the change has ended", |status| status["outcome"]["id"] == id);
    status["outcome"].clone()
}

/// A change that comes to a good end.
#[track_caller]
pub fn applied(rig: &mut Rig, engine: usize, text: &str) {
    let id = apply(rig, engine, text);
    let ended = outcome(rig, engine, &id);
    assert_eq!(ended["result"], "applied", "{ended}");
}

/// The cluster's configuration: the rig's, with the certificates that the cluster has.
pub fn text(rig: &Rig) -> String {
    format!("{}[tls.public]\ncertificates = [\"certificates/\"]\n", rig.config())
}

/// The same with something that tells one change from the next.
pub fn changed(rig: &Rig, number: usize) -> String {
    let server = rig.servers()[0];
    let (backend, route) = (format!("[backend.c{number}]"), format!("[[route]]\npath = \"/c{number}\""));
    format!("{}{backend}\nservers = [\"{server}\"]\n{route}\nbackend = \"c{number}\"\n", text(rig))
}

/// A certificate that all engines get, the first one.
#[track_caller]
pub fn put_certificate(rig: &mut Rig) {
    put_named(rig, 0, "vip");
    for engine in 0..rig.engines().len() {
        await_cluster(rig, engine, "the certificate is there", |status| status["certificates"] == 1);
    }
}

/// A certificate for the cluster by one of its engines.
#[track_caller]
pub fn put_named(rig: &mut Rig, engine: usize, name: &str) {
    let pem = Certificates::shared().issue(&["shop.test"], &rcgen::PKCS_ECDSA_P256_SHA256);
    let path = format!("/cluster/certificates/{name}");
    let answer = rig.engine(engine).try_ask("PUT", &path, "application/x-pem-file", &pem);
    let (status, body) = answer.expect("an engine that answers");
    assert_eq!(status, 200, "{body}");
}

/// Waits until every engine that one knows serves this configuration of the cluster.
#[track_caller]
pub fn all_serve_as_seen_by(rig: &mut Rig, engine: usize, serial: u64) {
    await_cluster(rig, engine, &format!("all serve configuration {serial}"), |status| {
        status["engines"].as_array().is_some_and(|engines| {
            engines.iter().all(|engine| engine["serial"] == serial && engine["candidate"].is_null())
        })
    });
}

/// The same as seen by the first engine.
#[track_caller]
pub fn all_serve(rig: &mut Rig, serial: u64) {
    all_serve_as_seen_by(rig, 0, serial);
}

/// Number of the engine that leads, as another one sees it.
#[track_caller]
pub fn leader(rig: &mut Rig, engine: usize) -> usize {
    let status = await_cluster(rig, engine, "somebody leads", |status| status["leader"].is_string());
    number_of(&status["leader"]).expect("an engine of the rig")
}

/// The number in an engine's name.
pub fn number_of(name: &Value) -> Option<usize> {
    name.as_str()?.strip_prefix("engine")?.parse().ok()
}

impl Rig {
    /// The router's namespace, for programs that go on when this is borrowed no more.
    pub fn router(&self) -> Namespace {
        self.network.router().clone()
    }

    /// A listener of this process beside the router, which engines reach.
    #[track_caller]
    pub fn listen_beside_router(&self, port: u16) -> TcpListener {
        let router = Path::new("/run/netns").join(self.network.router().name());
        let bound = std::thread::spawn(move || {
            let namespace = fs::File::open(router).expect("a namespace");
            // The thread alone is there, and ends; its socket stays there.
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("root may");
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).expect("a free port")
        });
        bound.join().expect("a listener")
    }

    /// Has the router send all to one engine, in a rig without BIRD.
    #[track_caller]
    pub fn route_to(&self, engine: usize) {
        assert!(!self.options().bird, "BIRD knows better");
        let mut command = self.router_command("ip");
        command.args(["route", "replace", &format!("{VIP}/32"), "via", &engine_address(engine).to_string()]);
        run(command, b"", WAIT_MAX).ok();
        eventually(WAIT_MAX, "the route is there", || (!self.router_routes(IpAddr::V4(VIP)).is_empty()).then_some(()));
    }

    /// Clients of one engine, who hold connections and open new ones, in a rig without BIRD.
    #[track_caller]
    pub fn clients_of(&self, engine: usize) -> Flows {
        self.route_to(engine);
        let manner = Manner {
            held: 40,
            interval: Duration::from_millis(100),
            new_per_second: 20,
            timeout: Duration::from_secs(30),
            ..Manner::default()
        };
        let flows = self.flows(&manner);
        flows.await_held(40);
        flows
    }
}

/// Ends clients who must not have noticed anything, and who were served until now.
#[track_caller]
pub fn unharmed(flows: Flows) {
    let before = flows.sample();
    flows.sample_with("clients are still served", |sample| {
        sample.new_ok >= before.new_ok + 5 && sample.requests >= before.requests + 100
    });
    let (broken, failed) = (flows.broken(), flows.failed());
    let summary = flows.stop();
    let harm = (summary.broken, summary.ended, summary.new_failed, summary.refused);
    assert_eq!(harm, (0, 0, 0, 0), "{summary:?}\n{broken:?}\n{failed:?}");
}

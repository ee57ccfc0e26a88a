//! `propylon-bench requests --agents`, with every part a process of its own, over loopback.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A busy machine may need this long for what takes a second elsewhere.
const WAIT_MAX: Duration = Duration::from_secs(60);

fn bench() -> Command {
    Command::new(env!("CARGO_BIN_EXE_propylon-bench"))
}

/// A process that told its address; killed with its owner.
struct Listening {
    child: Child,
    address: String,
}

impl Listening {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening ").expect("an address").to_owned();
        Self { child, address }
    }

    fn origin() -> Self {
        Self::start(bench().args(["origin", "--bind", "127.0.0.1:0"]))
    }

    fn agent(identity: &str, ca: &str) -> Self {
        let fixed = ["agent", "--listen", "127.0.0.1:0", "--allow", "127.0.0.1"];
        Self::start(bench().args(fixed).args(["--identity", identity, "--ca", ca]))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder of this test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("propylon-bench-agents-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A certificate with its key, and the CA that it is of, as `certificates` makes them.
    fn identity(&self) -> (String, String) {
        let out = text(&self.0);
        let made = bench().args(["certificates", "--out", &out, "--name", "agents", "--keys", "ec"]).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        (format!("{out}/agents.ec.pem"), format!("{out}/ca.pem"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// The end of a process, or of the wait for it.
fn wait(mut child: Child) -> Output {
    let until = Instant::now() + WAIT_MAX;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            let _ = child.kill();
            panic!("the command did not end: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn an_agent_killed_in_the_middle_is_named_and_the_others_finish() {
    let folder = Folder::new("killed");
    let (identity, ca) = folder.identity();
    let origin = Listening::origin();
    let mut agents: Vec<Listening> = (0..3).map(|_| Listening::agent(&identity, &ca)).collect();
    let addresses = agents.iter().map(|agent| agent.address.clone()).collect::<Vec<_>>();
    let json = folder.0.join("report.json");
    let mut coordinator = bench()
        .args(["requests", "--plain", "--target", &origin.address, "--connections", "6", "--rate", "300"])
        .args(["--duration", "3", "--warmup", "200ms", "--agents", &addresses.join(",")])
        .args(["--agents-identity", &identity, "--agents-ca", &ca])
        .args(["--json", &text(&json), "--server-pid", &origin.child.id().to_string()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The first line of progress is of the measured part.
    let mut lines = BufReader::new(coordinator.stderr.take().unwrap());
    let mut told = String::new();
    while !told.contains(" done, ") {
        assert!(lines.read_line(&mut told).unwrap() > 0, "{told}");
    }
    let victim = agents.remove(1);
    let address = victim.address.clone();
    drop(victim);
    lines.read_to_string(&mut told).unwrap();
    let output = wait(coordinator);

    assert_eq!(output.status.code(), Some(1), "{told}");
    let died = format!("agent {address} died after ");
    assert!(told.contains(&died) && told.contains("33 % of the load is missing"), "{told}");
    let report: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let agents = report["fleet"]["agents"].as_array().unwrap();
    let sum: u64 =
        agents.iter().filter(|agent| agent["lost"].is_null()).map(|agent| agent["done"].as_u64().unwrap()).sum();
    // Two thirds of 900, and the sums are those of the two that finished.
    assert_eq!(report["done"].as_u64().unwrap(), sum);
    let arrived = sum + report["unanswered"].as_u64().unwrap();
    // Requests that the warm-up left in progress may end in the measured part: one per connection.
    assert!((600..=604).contains(&arrived), "{report}");
    assert!(agents[1]["lost"].as_str().unwrap().starts_with(&died));
    assert!(report["server_cpu"]["nanoseconds_per_request"].as_f64().unwrap() > 0.0);
    assert!(String::from_utf8_lossy(&output.stdout).contains("what a lost agent had done"));
}

#[test]
fn two_agents_do_exactly_the_count() {
    let folder = Folder::new("count");
    let (identity, ca) = folder.identity();
    let origin = Listening::origin();
    let agents: Vec<Listening> = (0..2).map(|_| Listening::agent(&identity, &ca)).collect();
    let addresses = format!("{},{}", agents[0].address, agents[1].address);
    let coordinator = bench()
        .args(["handshakes", "--plain", "--target", &origin.address, "--count", "101", "--warmup", "0"])
        .args(["--agents", &addresses, "--agents-identity", &identity, "--agents-ca", &ca, "--json", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = wait(coordinator);
    let (told, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && told.contains("\"done\": 101,"), "{told}{errors}");
}

#[test]
fn an_agent_never_listens_without_an_identity_or_to_loads_on_anything_unasked() {
    let folder = Folder::new("open");
    let (identity, ca) = folder.identity();
    let known = ["--identity", &identity, "--ca", &ca];
    let refused = |flags: &[&str], why: &str| {
        let output = bench().args(["agent", "--listen", "127.0.0.1:0"]).args(flags).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && output.stdout.is_empty() && told.contains(why), "{told}");
    };
    refused(&["--allow-any"], "--identity");
    refused(&["--allow-any", "--identity", &identity], "--ca");
    refused(&known, "--allow");
    refused(&[&known[..], &["--allow-any", "--allow", "a"]].concat(), "cannot be used with");
    // An option of older builds says which there are now.
    refused(&["--secret-file", "secret", "--allow-any"], "give the agent --identity and --ca");
    let load = |flags: &[&str]| {
        let output = bench().args(["requests", "--target", "127.0.0.1:1"]).args(flags).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(load(&["--agents", "127.0.0.1:1"]).contains("--agents needs --agents-identity and --agents-ca"));
    assert!(load(&["--agents", "127.0.0.1:1", "--secret-file", "secret"]).contains("`propylon-bench certificates"));
}

//! Half a minute in which servers die, hang, fail and flap, configurations change and clients leave: no request fails but
//! those that the model allows. The long run, and what is done in it: docs/bench.md. And what is left when it is ended.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use propylon_e2e::program::{finish, run, signal};
use propylon_e2e::{Scratch, binaries, eventually};
use rustix::process::Signal;
use serde_json::Value;

/// Fixed, so that it is the same half minute each time; longer runs draw their own.
const SEED: &str = "11";
/// Whatever it meets, it ends: half a minute of load, the wait for the last connections, and a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(180);

#[test]
#[ignore = "long: make test-long"]
fn half_a_minute_of_trouble_fails_no_request_that_need_not() {
    let (scratch, result) = (Scratch::new(), Scratch::new());
    let mut command = Command::new(binaries::chaos());
    command.arg("--propylon").arg(binaries::propylon());
    command.args(["--seed", SEED, "--duration", "28s", "--json"]).arg(result.join("chaos.json"));
    // Times are no test here: other tests run beside, unoptimised.
    command.args(["--calm-latency", "20s", "--growth", "128"]).env("TMPDIR", scratch.join("."));
    run(command, b"", WAIT_MAX).ok();
    let text = std::fs::read_to_string(result.join("chaos.json")).expect("a result");
    let summary: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(summary["violations"], serde_json::json!([]));
    // It was not a quiet half minute.
    let count = |value: &Value| value.as_object().map_or(0, |all| all.values().filter_map(Value::as_u64).sum::<u64>());
    assert!(count(&summary["disturbances"]) >= 10, "{:#}", summary["disturbances"]);
    let kinds = summary["kinds"].as_array().expect("a list");
    assert_eq!(kinds.len(), 13, "{kinds:#?}");
    for kind in kinds {
        let name = kind["kind"].as_str().expect("a name");
        let some = if name.starts_with("misbehaving") { &kind["requests"] } else { &kind["served"] };
        assert!(some.as_u64() > Some(0), "{kind}");
    }
    // Servers were spoken to in all that they speak.
    let protocols = summary["protocols"].as_object().expect("counts");
    assert_eq!(protocols.len(), 4, "{protocols:#?}");
    assert!(summary["engine"]["generation"].as_u64() > Some(1), "{:#}", summary["engine"]);
    let left: Vec<_> = std::fs::read_dir(scratch.join(".")).expect("the folder").collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

/// Names of everything in a folder and below.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    entries.flat_map(|entry| [vec![name(&entry.path())], names(&entry.path())].concat()).collect()
}

#[test]
fn a_run_that_is_ended_leaves_no_keys_behind() {
    let scratch = Scratch::new();
    let mut command = Command::new(binaries::chaos());
    command.arg("--propylon").arg(binaries::propylon());
    command.args(["--seed", SEED, "--duration", "100s"]).env("TMPDIR", scratch.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("a run");
    let key = || names(scratch.path()).iter().any(|name| name == "site.pem").then_some(());
    eventually(WAIT_MAX, "there are keys", key);
    signal(child.id(), Signal::TERM);
    let status = finish(&mut child, WAIT_MAX, "it ends");
    assert!(!status.success());
    assert_eq!(names(scratch.path()), [""; 0]);
}

#[test]
fn a_comparison_that_is_interrupted_tells_what_it_has() {
    let (scratch, result) = (Scratch::new(), Scratch::new());
    let json = result.join("compare.json");
    let mut command = Command::new(binaries::bench());
    command.arg("compare").arg("--propylon").arg(binaries::propylon()).args(["--against", "nginx"]);
    command.args(["--rows", "requests-plain", "--rounds", "100", "--duration", "500ms", "--json"]).arg(&json);
    command.env("TMPDIR", scratch.path()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("a comparison");
    let mut said = BufReader::new(child.stderr.take().expect("piped")).lines().map_while(Result::ok);
    // Its first samples are there.
    let words: Vec<String> = said.by_ref().take_while(|line| !line.contains(" round 2 ")).collect();
    signal(child.id(), Signal::INT);
    let status = finish(&mut child, WAIT_MAX, "it ends");
    assert!(!status.success(), "{words:?}");
    let text = std::fs::read_to_string(&json).unwrap_or_else(|error| panic!("{error}: {words:?}"));
    let verdict: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(verdict["interrupted"], true);
    assert!(verdict["rows"][0]["cells"][0]["median"].as_f64() > Some(0.0), "{verdict:#}");
}

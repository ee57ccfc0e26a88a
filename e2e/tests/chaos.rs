//! Half a minute in which servers die, hang, fail and flap, configurations change and clients leave: no request fails but
//! those that the model allows. The long run, and what is done in it: docs/bench.md.

use std::process::Command;
use std::time::Duration;

use propylon_e2e::program::run;
use propylon_e2e::{Scratch, binaries};
use serde_json::Value;

/// Fixed, so that it is the same half minute each time; longer runs draw their own.
const SEED: &str = "11";
/// Whatever it meets, it ends: half a minute of load, the wait for the last connections, and a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

#[test]
fn half_a_minute_of_trouble_fails_no_request_that_need_not() {
    let (scratch, result) = (Scratch::new(), Scratch::new());
    let mut command = Command::new(binaries::bench());
    command.arg("chaos").arg("--propylon").arg(binaries::propylon());
    command.args(["--seed", SEED, "--duration", "28s", "--json"]).arg(result.join("chaos.json"));
    // Times are no test here: other tests run beside, unoptimised.
    command.args(["--calm-latency", "20s", "--growth", "128"]).env("TMPDIR", scratch.join("."));
    run(command, b"", PATIENCE).ok();
    let text = std::fs::read_to_string(result.join("chaos.json")).expect("a result");
    let summary: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(summary["violations"], serde_json::json!([]));
    // It was not a quiet half minute.
    let count = |value: &Value| value.as_object().map_or(0, |all| all.values().filter_map(Value::as_u64).sum::<u64>());
    assert!(count(&summary["disturbances"]) >= 10, "{:#}", summary["disturbances"]);
    let kinds = summary["kinds"].as_array().expect("a list");
    assert_eq!(kinds.len(), 12, "{kinds:#?}");
    for kind in kinds {
        let name = kind["kind"].as_str().expect("a name");
        let some = if name.starts_with("rude") { &kind["requests"] } else { &kind["served"] };
        assert!(some.as_u64() > Some(0), "{kind}");
    }
    assert!(summary["engine"]["generation"].as_u64() > Some(1), "{:#}", summary["engine"]);
    let left: Vec<_> = std::fs::read_dir(scratch.join(".")).expect("the folder").collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

//! The demo, start to end: every figure of its table is one that was measured, and nothing is left behind.

use std::process::Command;
use std::time::Duration;

use propylon_e2e::program::run;
use propylon_e2e::{Scratch, binaries};
use serde_json::Value;

#[test]
fn the_demo_measures_every_figure_it_prints_and_leaves_nothing_behind() {
    // The demo starts its sibling.
    let _ = binaries::bench();
    let scratch = Scratch::new();
    let mut command = Command::new(binaries::propylon());
    command.args(["demo", "--once", "--seconds", "1", "--json"]).env("TMPDIR", scratch.join("."));
    let said = run(command, b"", Duration::from_secs(120)).ok();
    let figures: Value = serde_json::from_str(&said.text()).expect("JSON on standard output");
    let rows = figures["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 3, "{figures}");
    for row in rows {
        for name in ["per_second", "cpu_us", "p50_us", "p99_us", "done"] {
            assert!(row[name].as_f64().is_some_and(|value| value > 0.0), "{name} in {row}");
        }
        assert_eq!(row["errors"], 0, "{row}");
    }
    assert!(figures["idle"]["bytes_per_connection"].as_f64().is_some_and(|bytes| bytes > 0.0), "{figures}");
    assert!(figures["idle"]["connections"].as_f64().is_some_and(|count| count > 0.0), "{figures}");
    assert!(figures["connections_in"].as_u64() > figures["connections_out"].as_u64(), "{figures}");
    let left: Vec<_> = std::fs::read_dir(scratch.join(".")).expect("the folder").collect();
    assert!(left.is_empty(), "left behind: {left:?}");
}

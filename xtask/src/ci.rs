//! Everything a change must pass, in the order in which it fails soonest.

use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::{lanes, tidy};

enum Step {
    Cargo(&'static [&'static str]),
    Tidy,
    Lanes,
}

/// What is not built by default: the key server with hardware modules.
const KEYSERVER: &str = "--package=propylon-keyserver";
const MODULES: &str = "--features=pkcs11";

/// The tests start the binaries of the dev profile, so those are what is built; optimised ones belong to the demo and
/// the bench, and would double the time this takes. The kernels alone are built optimised, which takes seconds.
const STEPS: [(&str, Step); 8] = [
    ("format", Step::Cargo(&["fmt", "--all", "--check"])),
    ("clippy", Step::Cargo(&["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"])),
    (
        "clippy with modules",
        Step::Cargo(&["clippy", "--locked", KEYSERVER, MODULES, "--all-targets", "--", "-D", "warnings"]),
    ),
    ("tidy", Step::Tidy),
    ("lanes", Step::Lanes),
    ("build", Step::Cargo(&["build", "--locked", "--workspace", "--bins"])),
    ("test", Step::Cargo(&["test", "--locked", "--workspace"])),
    ("test with modules", Step::Cargo(&["test", "--locked", KEYSERVER, MODULES])),
];

/// Whether all steps passed; the first that does not is the last that runs.
pub fn run(root: &Path) -> bool {
    let start = Instant::now();
    for (name, step) in &STEPS {
        println!("\n== {name}");
        let step_start = Instant::now();
        let passed = match step {
            Step::Cargo(arguments) => cargo(root, arguments),
            Step::Tidy => tidy::run(root),
            Step::Lanes => lanes::run(root, None),
        };
        let seconds = step_start.elapsed().as_secs_f64();
        println!("== {name}: {} after {seconds:.1} s", if passed { "passed" } else { "FAILED" });
        if !passed {
            return false;
        }
    }
    println!("\n== all passed after {:.0} s", start.elapsed().as_secs_f64());
    true
}

fn cargo(root: &Path, arguments: &[&str]) -> bool {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    println!("$ cargo {}", arguments.join(" "));
    match Command::new(cargo).args(arguments).current_dir(root).status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("cargo cannot be started: {error}");
            false
        }
    }
}

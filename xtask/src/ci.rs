//! Everything a change must pass, in the order in which it fails soonest.

use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::suite::{Length, Suite};
use crate::{lanes, suite, tidy};

enum Step {
    Cargo(&'static [&'static str]),
    /// Goes on after a failure, so that one run tells of every test that fails.
    Test(Suite),
    Tidy,
    /// The second hop's program in the tree is what its source gives.
    FlowsObject,
    Lanes,
}

/// What is not built by default: the key server with hardware modules.
const KEYSERVER: &str = "propylon-keyserver";
const MODULES: &str = "propylon-keyserver/pkcs11";

const FLOWS_OBJECT: &str = "scripts/flows-object.sh";
/// The exit code of its check where it has no compiler to compare with.
const FLOWS_OBJECT_NO_COMPILER: i32 = 3;

/// The tests start the binaries of the dev profile, so those are what is built; optimised ones belong to the demo and
/// the bench, and would double the time this takes. The kernels alone are built optimised, which takes seconds.
const STEPS: [(&str, Step); 10] = [
    ("format", Step::Cargo(&["fmt", "--all", "--check"])),
    ("clippy", Step::Cargo(&["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"])),
    (
        "clippy with modules",
        // Of the whole workspace, since dependencies have other features for a package alone, and would be built once more.
        Step::Cargo(&[
            "clippy",
            "--locked",
            "--workspace",
            "--features",
            MODULES,
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ]),
    ),
    ("tidy", Step::Tidy),
    ("flows object", Step::FlowsObject),
    ("lanes", Step::Lanes),
    ("build", Step::Cargo(&["build", "--locked", "--workspace", "--bins"])),
    ("test", Step::Test(Suite { features: &[], package: None, is_of_units: false })),
    ("doc-tests", Step::Cargo(&["test", "--locked", "--workspace", "--doc"])),
    ("test with modules", Step::Test(Suite { features: &[MODULES], package: Some(KEYSERVER), is_of_units: true })),
];

/// Whether all steps passed. The first that does not is the last that runs, but for tests: all of them run.
pub fn run(root: &Path, length: Length) -> bool {
    let start = Instant::now();
    let mut failed = Vec::new();
    for (name, step) in &STEPS {
        println!("\n== {name}");
        let step_start = Instant::now();
        let passed = match step {
            Step::Cargo(arguments) => cargo(root, arguments),
            Step::Test(tests) => suite::run(root, tests, length),
            Step::Tidy => tidy::run(root),
            Step::FlowsObject => flows_object(root),
            Step::Lanes => lanes::run(root, None),
        };
        let seconds = step_start.elapsed().as_secs_f64();
        println!("== {name}: {} after {seconds:.1} s", if passed { "passed" } else { "FAILED" });
        if !passed {
            failed.push(*name);
            if !matches!(step, Step::Test(_)) {
                break;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    if failed.is_empty() {
        println!("\n== all passed after {seconds:.0} s");
    } else {
        println!("\n== FAILED after {seconds:.0} s: {}", failed.join(", "));
    }
    failed.is_empty()
}

/// Whether the object is as its source, or the compiler that could tell is not here.
fn flows_object(root: &Path) -> bool {
    println!("$ {FLOWS_OBJECT} --check");
    match Command::new(root.join(FLOWS_OBJECT)).arg("--check").current_dir(root).status() {
        Ok(status) if status.code() == Some(FLOWS_OBJECT_NO_COMPILER) => {
            println!("skipped: the object is compared only where its compiler is");
            true
        }
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("{FLOWS_OBJECT} cannot be run: {error}");
            false
        }
    }
}

fn cargo(root: &Path, arguments: &[&str]) -> bool {
    println!("$ cargo {}", arguments.join(" "));
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    match Command::new(cargo).args(arguments).current_dir(root).status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("cargo cannot be run: {error}");
            false
        }
    }
}

//! Everything a change must pass, in the order in which it fails soonest.

use std::env;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::failures::Failures;
use crate::{lanes, tidy};

enum Step {
    Cargo(&'static [&'static str]),
    /// Goes on after a failure, so that one run tells of every test that fails.
    Test(&'static [&'static str]),
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
    ("test", Step::Test(&["test", "--locked", "--no-fail-fast", "--workspace"])),
    ("test with modules", Step::Test(&["test", "--locked", "--no-fail-fast", KEYSERVER, MODULES])),
];

/// Whether all steps passed. The first that does not is the last that runs, but for tests: all of them run.
pub fn run(root: &Path) -> bool {
    let start = Instant::now();
    let mut failed = Vec::new();
    for (name, step) in &STEPS {
        println!("\n== {name}");
        let step_start = Instant::now();
        let passed = match step {
            Step::Cargo(arguments) => cargo(root, arguments),
            Step::Test(arguments) => test(root, arguments),
            Step::Tidy => tidy::run(root),
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

fn cargo(root: &Path, arguments: &[&str]) -> bool {
    said(command(root, arguments).status().map(|status| status.success()))
}

/// Passes on what cargo and the tests print, and prints once more at the end which tests failed.
fn test(root: &Path, arguments: &[&str]) -> bool {
    let mut failures = Failures::default();
    let passed = watched(command(root, arguments), |line| {
        println!("{line}");
        failures.read(line);
    });
    print!("{}", failures.summary(arguments));
    said(passed)
}

/// Runs a command and hands over each line of both its outputs, in the order in which they were printed.
fn watched(mut command: Command, mut line_read: impl FnMut(&str)) -> io::Result<bool> {
    let (reader, writer) = io::pipe()?;
    let mut child = command.stdout(writer.try_clone()?).stderr(writer).spawn()?;
    // The command holds the writing ends of the pipe: with them open here too, reading would never end.
    drop(command);
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        line_read(String::from_utf8_lossy(&line).trim_end_matches('\n'));
        line.clear();
    }
    Ok(child.wait()?.success())
}

fn command(root: &Path, arguments: &[&str]) -> Command {
    println!("$ cargo {}", arguments.join(" "));
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(root);
    command
}

fn said(passed: io::Result<bool>) -> bool {
    passed.unwrap_or_else(|error| {
        eprintln!("cargo cannot be run: {error}");
        false
    })
}

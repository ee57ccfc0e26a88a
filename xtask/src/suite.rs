//! Runs every test binary of the workspace, two at a time: most of a story's time is spent waiting for processes it has started,
//! and cargo runs one binary after the other.
//!
//! A binary's output is shown when one of its tests failed. The summary names each failed test with the command that runs it alone.
//! A few stories that failed are run once more, each alone: whether a machine was too busy for them or something is broken shows
//! then. Those that pass are named as unsteady and do not fail the run.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::env;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Test binaries in progress at once. Each runs as many of its tests at once as there are cores.
const BINARIES_AT_ONCE: usize = 2;
/// Failed stories that are run once more at most: more of them are no matter of a busy machine.
const UNSTEADY_MAX: usize = 10;
/// What names of test binaries begin with of which no two run at once: each of their stories has engines, routers and
/// etcd of its own, and is about who has time.
const HEAVY: &str = "cluster_";
/// Beginnings of the names of binaries that take longest, for a first run, which has no times yet: one of them that
/// starts last runs on alone.
const SLOW: [&str; 10] = [
    "shared_writes",
    "isolate",
    "front_",
    "http2_",
    "packages",
    "propylon_policy",
    "dashboard",
    "keepalived",
    "acme",
    "health",
];
/// Where the times of the last run are kept, below the folder that cargo builds into: a line for each binary.
const TIMES: &str = "suite-times";

/// One build of the tests and the binaries of it that run.
pub struct Suite {
    /// Features that are not on by default, as cargo names them for the whole workspace: `propylon-keyserver/pkcs11`.
    pub features: &'static [&'static str],
    /// The package whose tests run; `None`: those of all.
    pub package: Option<&'static str>,
    /// Libraries' tests alone: programs are not linked anew for their sake.
    pub is_of_units: bool,
}

/// Which tests of a binary run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// All but those marked `#[ignore = "long: ..."]`.
    Short,
    /// Every one.
    Long,
}

/// A test binary that cargo has built.
#[derive(Debug, PartialEq, Eq)]
struct Binary {
    package: String,
    /// The folder of the package, in which cargo runs its tests.
    folder: PathBuf,
    /// What cargo calls the kind of target: `lib`, `bin` or `test`.
    kind: String,
    name: String,
    executable: PathBuf,
}

impl Binary {
    fn label(&self) -> String {
        format!("{} {} {}", self.package, self.kind, self.name)
    }

    fn is_heavy(&self) -> bool {
        self.name.starts_with(HEAVY)
    }

    fn is_slow(&self) -> bool {
        SLOW.iter().any(|slow| self.name.starts_with(slow))
    }
}

/// What became of a binary's run.
struct Outcome {
    binary: Binary,
    passed: bool,
    output: String,
    time: Duration,
}

/// Builds a suite and runs it to its end, also after a failure. Returns whether all passed.
pub fn run(root: &Path, suite: &Suite, length: Length) -> bool {
    let Some(mut binaries) = build(root, suite) else { return false };
    binaries.retain(|binary| suite.package.is_none_or(|package| binary.package == package));
    if binaries.is_empty() {
        eprintln!("cargo named no test binary");
        return false;
    }
    // Those that took longest start first, so that none of them runs on alone at the end.
    let path = root.join("target").join(TIMES);
    let mut times = read_times(&fs::read_to_string(&path).unwrap_or_default());
    let took = |binary: &Binary| times.get(&binary.label()).copied().unwrap_or_default();
    binaries
        .sort_by_key(|binary| (!binary.is_heavy(), Reverse(took(binary)), !binary.is_slow(), binary.kind != "test"));
    let (failed, taken) = run_all(binaries, length);
    times.extend(taken);
    let (failed, unsteady) = repeat_alone(failed);
    if let Err(error) = fs::write(&path, written_times(&times)) {
        eprintln!("{} cannot be written: {error}", path.display());
    }
    unsteady.iter().for_each(|test| println!("UNSTEADY: {test} failed beside others and passed alone"));
    print!("{}", summary(&failed, suite.features));
    failed.is_empty()
}

/// Runs failed stories once more, each alone. Returns what has failed for good, and the tests that passed this time.
fn repeat_alone(failed: Vec<Outcome>) -> (Vec<Outcome>, Vec<String>) {
    let failed_tests = |outcome: &Outcome| outcome.output.lines().filter_map(failed_test).count();
    if failed.iter().map(failed_tests).sum::<usize>() > UNSTEADY_MAX {
        return (failed, Vec::new());
    }
    let mut unsteady = Vec::new();
    let failed_again = |outcome: &Outcome| {
        let tests: Vec<&str> = outcome.output.lines().filter_map(failed_test).collect();
        // Units need nobody's patience, and a binary that died names no test.
        if outcome.binary.kind != "test" || tests.is_empty() {
            return true;
        }
        let passes = |test: &&str| {
            println!("once more, alone: {test}");
            let (passed, output) = output(&outcome.binary, &["--include-ignored", "--exact", test]).unwrap_or_default();
            if !passed {
                print!("{output}");
            }
            passed
        };
        let all_pass = tests.iter().all(passes);
        if all_pass {
            unsteady.extend(tests.into_iter().map(str::to_owned));
        }
        !all_pass
    };
    let failed = failed.into_iter().filter(failed_again).collect();
    (failed, unsteady)
}

/// Milliseconds by binary.
type Times = BTreeMap<String, u64>;

fn read_times(text: &str) -> Times {
    let line = |line: &str| {
        let (millis, label) = line.split_once(' ')?;
        Some((label.to_owned(), millis.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

fn written_times(times: &Times) -> String {
    times.iter().map(|(label, millis)| format!("{millis} {label}\n")).collect()
}

/// Builds all tests of the workspace. `None` where that failed; cargo has said why.
fn build(root: &Path, suite: &Suite) -> Option<Vec<Binary>> {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(["test", "--locked", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    suite.features.iter().for_each(|feature| {
        command.args(["--features", feature]);
    });
    if suite.is_of_units {
        command.arg("--lib");
    }
    let output = match command.current_dir(root).stderr(Stdio::inherit()).output() {
        Ok(output) => output,
        Err(error) => {
            eprintln!("cargo cannot be run: {error}");
            return None;
        }
    };
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).lines().filter_map(built).collect())
}

/// The test binary that a line of cargo's JSON tells of, if it tells of one.
fn built(line: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(line).ok()?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    // "path+file:///home/me/propylon/e2e#propylon-e2e@0.1.0"
    let id = message["package_id"].as_str()?;
    // Without a name where that is the folder's: "path+file:///home/me/propylon/crates/propylon#0.1.0".
    let named = id.rsplit('#').next()?.split_once('@').map(|(name, _)| name);
    let package = named.or_else(|| folder.file_name()?.to_str())?.to_owned();
    Some(Binary {
        package,
        folder,
        kind: text(&message["target"]["kind"][0])?,
        name: text(&message["target"]["name"])?,
        executable: message["executable"].as_str()?.into(),
    })
}

/// What waits to be run, in order.
struct Waiting {
    binaries: VecDeque<Binary>,
    is_heavy_running: bool,
}

impl Waiting {
    /// The next one that may run now. A heavy one waits for the one that runs, unless there is nothing else left.
    fn next(&mut self) -> Option<Binary> {
        let may_run = |binary: &Binary| !(self.is_heavy_running && binary.is_heavy());
        let index = self.binaries.iter().position(may_run).unwrap_or(0);
        let binary = self.binaries.remove(index)?;
        self.is_heavy_running |= binary.is_heavy();
        Some(binary)
    }
}

/// Runs them all and returns those that failed, in the order in which they ended, and what each took.
fn run_all(binaries: Vec<Binary>, length: Length) -> (Vec<Outcome>, Times) {
    let waiting = Mutex::new(Waiting { binaries: binaries.into(), is_heavy_running: false });
    let waiting = || waiting.lock().unwrap_or_else(PoisonError::into_inner);
    let ended = Mutex::new((Vec::new(), Times::new()));
    // The lock is not held while one runs.
    let next = || waiting().next();
    thread::scope(|scope| {
        for _ in 0..BINARIES_AT_ONCE {
            scope.spawn(|| {
                while let Some(binary) = next() {
                    let is_heavy = binary.is_heavy();
                    let outcome = run_one(binary, length);
                    waiting().is_heavy_running &= !is_heavy;
                    // Held while it is shown, so that no two outputs mix.
                    let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
                    let (failed, times) = &mut *ended;
                    show(&outcome);
                    times.insert(outcome.binary.label(), outcome.time.as_millis() as u64);
                    if !outcome.passed {
                        failed.push(outcome);
                    }
                }
            });
        }
    });
    ended.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn run_one(binary: Binary, length: Length) -> Outcome {
    let start = Instant::now();
    let arguments: &[&str] = if length == Length::Long { &["--include-ignored"] } else { &[] };
    let (passed, output) = match output(&binary, arguments) {
        Ok(result) => result,
        Err(error) => (false, format!("{} cannot be run: {error}\n", binary.executable.display())),
    };
    Outcome { binary, passed, output, time: start.elapsed() }
}

/// Whether all of its tests passed, and what they printed on both outputs in the order in which it was printed.
fn output(binary: &Binary, arguments: &[&str]) -> io::Result<(bool, String)> {
    // A file and not a pipe: a process that outlives its test must not be waited for.
    let path = binary.executable.with_extension("output");
    let file = File::create(&path)?;
    let mut command = Command::new(&binary.executable);
    command.args(arguments).current_dir(&binary.folder).env("CARGO_MANIFEST_DIR", &binary.folder);
    let status = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).status();
    let output = fs::read(&path);
    let _ = fs::remove_file(&path);
    let (status, output) = (status?, output?);
    let mut output = String::from_utf8_lossy(&output).into_owned();
    if status.code().is_none() {
        let _ = writeln!(output, "it ended by {status}");
    }
    Ok((status.success(), output))
}

fn show(outcome: &Outcome) {
    let Outcome { binary, passed, output, time } = outcome;
    if !passed {
        print!("{output}");
    }
    let result = output.lines().rev().find_map(|line| line.strip_prefix("test result: "));
    // "ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 3.01s"
    let counts = result.map_or("no result", |result| result.split(" measured").next().unwrap_or(result));
    let counts = counts.rsplit_once("; ").map_or(counts, |(counts, _)| counts);
    println!("{:>7.1} s  {}: {counts}", time.as_secs_f64(), binary.label());
}

/// A line for each failed test with the command that runs it alone. Empty if nothing failed.
fn summary(failed: &[Outcome], features: &[&str]) -> String {
    let mut text = String::new();
    let features: String = features.iter().fold(String::new(), |all, feature| all + " --features " + feature);
    for outcome in failed {
        let Binary { package, kind, name, .. } = &outcome.binary;
        let selector = match kind.as_str() {
            "lib" => format!("-p {package} --lib"),
            // As part of the workspace nothing is built anew: for one package its dependencies would have other features.
            "test" => format!("--workspace --test {name}"),
            kind => format!("-p {package} --{kind} {name}"),
        };
        let tests = outcome.output.lines().filter_map(failed_test).collect::<Vec<_>>();
        if tests.is_empty() {
            let _ = writeln!(text, "FAILED: {name} of {package}; alone: cargo test{features} {selector}");
        }
        for test in tests {
            let _ = writeln!(
                text,
                "FAILED: {test}; alone: cargo test{features} {selector} -- --include-ignored --exact {test}"
            );
        }
    }
    text
}

/// The failed test that a line of a test binary names, if it names one.
fn failed_test(line: &str) -> Option<&str> {
    let test = line.strip_prefix("test ")?.strip_suffix(" ... FAILED")?;
    // A test that should have panicked says so behind its name.
    Some(test.strip_suffix(" - should panic").unwrap_or(test))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(kind: &str, output: &str) -> Outcome {
        let binary = Binary {
            package: "propylon-e2e".to_owned(),
            folder: PathBuf::from("/p/e2e"),
            kind: kind.to_owned(),
            name: "limits".to_owned(),
            executable: PathBuf::from("/p/target/debug/deps/limits-1"),
        };
        Outcome { binary, passed: false, output: output.to_owned(), time: Duration::ZERO }
    }

    #[test]
    fn heavy_binaries_run_one_after_the_other_beside_others() {
        let named = |name: &str| Binary { name: name.to_owned(), ..outcome("test", "").binary };
        let binaries = ["cluster_a", "cluster_b", "limits", "cluster_c"].map(named).into();
        let mut waiting = Waiting { binaries, is_heavy_running: false };
        let mut next = |has_ended: bool| {
            waiting.is_heavy_running &= !has_ended;
            waiting.next().map(|binary| binary.name)
        };
        assert_eq!(next(false).as_deref(), Some("cluster_a"));
        assert_eq!(next(false).as_deref(), Some("limits"));
        assert_eq!(next(true).as_deref(), Some("cluster_b"));
        // Nothing else is left, and nobody waits for nothing.
        assert_eq!(next(false).as_deref(), Some("cluster_c"));
        assert_eq!(next(true), None);
    }

    #[test]
    fn binaries_with_tests_are_read_from_what_cargo_says() {
        let line = r#"{"reason":"compiler-artifact","package_id":"path+file:///p/e2e#propylon-e2e@0.1.0","manifest_path":"/p/e2e/Cargo.toml",
            "target":{"kind":["test"],"name":"limits"},"profile":{"test":true},"executable":"/p/target/debug/deps/limits-1"}"#;
        assert_eq!(built(&line.replace('\n', " ")), Some(outcome("test", "").binary));
        assert_eq!(built(&line.replace('\n', " ").replace("\"test\":true", "\"test\":false")), None);
        assert_eq!(built(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(built("no JSON"), None);
    }

    #[test]
    fn times_are_found_again() {
        let times =
            Times::from([("propylon-e2e test limits".to_owned(), 1200), ("propylon-proxy lib propylon".to_owned(), 7)]);
        assert_eq!(read_times(&written_times(&times)), times);
        assert_eq!(read_times("no number\n12\n"), Times::new());
    }

    #[test]
    fn each_failed_test_is_named_with_the_command_that_runs_it_alone() {
        let output = "test first ... ok\ntest second ... FAILED\ntest third - should panic ... FAILED\n";
        assert_eq!(
            summary(
                &[outcome("test", output), outcome("lib", "test a::b ... FAILED\n")],
                &["propylon-keyserver/pkcs11"]
            ),
            "FAILED: second; alone: cargo test --features propylon-keyserver/pkcs11 --workspace --test limits -- --include-ignored --exact second\n\
             FAILED: third; alone: cargo test --features propylon-keyserver/pkcs11 --workspace --test limits -- --include-ignored --exact third\n\
             FAILED: a::b; alone: cargo test --features propylon-keyserver/pkcs11 -p propylon-e2e --lib -- --include-ignored --exact a::b\n"
        );
    }

    #[test]
    fn a_binary_that_died_is_named_although_no_test_of_it_is() {
        let text = summary(&[outcome("test", "test first ... ok\nit ended by signal: 9 (SIGKILL)\n")], &[]);
        assert_eq!(text, "FAILED: limits of propylon-e2e; alone: cargo test --workspace --test limits\n");
        assert_eq!(summary(&[], &[]), "");
    }

    /// A program in a binary's stead, which passes when it is asked for this one test.
    fn story(kind: &str, test: &str, failed: &[&str]) -> Outcome {
        let path = std::env::temp_dir().join(format!("propylon-suite-{}-{kind}-{test}", std::process::id()));
        fs::write(&path, format!("#!/bin/sh\ntest \"$*\" = '--include-ignored --exact {test}'\n")).expect("a file");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        fs::set_permissions(&path, mode).expect("the file is ours");
        let output = failed.iter().map(|test| format!("test {test} ... FAILED\n")).collect::<String>();
        let mut outcome = outcome(kind, &output);
        (outcome.binary.executable, outcome.binary.folder) = (path, std::env::temp_dir());
        outcome
    }

    #[test]
    fn a_story_that_passes_alone_is_unsteady_and_one_that_fails_again_has_failed() {
        let all =
            vec![story("test", "one", &["one"]), story("test", "two", &["other"]), story("lib", "unit", &["unit"])];
        let paths: Vec<PathBuf> = all.iter().map(|outcome| outcome.binary.executable.clone()).collect();
        let (failed, unsteady) = repeat_alone(all);
        assert_eq!(unsteady, ["one"]);
        assert_eq!(failed.iter().map(|outcome| &outcome.binary.executable).collect::<Vec<_>>(), [&paths[1], &paths[2]]);
        let many = story("test", "one", &["one"; UNSTEADY_MAX + 1]);
        assert_eq!(repeat_alone(vec![many]).1, [""; 0], "too many to be the machine's fault");
        let died = story("test", "one", &[]);
        assert_eq!(repeat_alone(vec![died]).0.len(), 1);
        paths.iter().for_each(|path| fs::remove_file(path).expect("the file is ours"));
    }

    #[test]
    fn a_binary_that_cannot_be_run_has_failed() {
        let outcome = run_one(outcome("test", "").binary, Length::Short);
        assert!(!outcome.passed && outcome.output.contains("/p/target/debug/deps/limits-1 cannot be run"));
    }
}

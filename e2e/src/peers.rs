//! Programs by other people's standard libraries, in Go and Java, whose sources are below e2e/peers: they are built
//! once, and some go on until their standard input ends.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::Scratch;
use crate::binaries;
use crate::program::{finish, run};
use crate::wait::holds;

/// Building what Go's standard library has for HTTP takes its time, once for each checkout.
const BUILD_MAX: Duration = Duration::from_secs(300);
/// A program whose input has ended ends within.
const END_MAX: Duration = Duration::from_secs(60);

/// A program in Go, built once. Go's cache is beside cargo's, so that its standard library is built once as well.
pub fn go(name: &str) -> PathBuf {
    static BUILT: OnceLock<(Scratch, Mutex<BTreeMap<String, PathBuf>>)> = OnceLock::new();
    let (scratch, built) = BUILT.get_or_init(|| (Scratch::new(), Mutex::default()));
    let mut built = built.lock().expect("a build that did not fail");
    let make = || {
        let (program, home) = (scratch.join(name), binaries::kept().join("go"));
        let mut command = Command::new("go");
        command.arg("build").arg("-o").arg(&program).arg(source(&format!("{name}.go")));
        command.env("HOME", &home).env("GOCACHE", home.join("cache")).env("GOFLAGS", "").env("CGO_ENABLED", "0");
        command.env("GO111MODULE", "off").env("GOTOOLCHAIN", "local").env("GOENV", "off");
        run(command, b"", BUILD_MAX).ok();
        program
    };
    built.entry(name.to_owned()).or_insert_with(make).clone()
}

/// Arguments of `java` for a program, compiled once with whatever it uses of the others.
pub fn java(class: &str) -> Vec<String> {
    static BUILT: OnceLock<Mutex<BTreeMap<String, Scratch>>> = OnceLock::new();
    let mut built = BUILT.get_or_init(Mutex::default).lock().expect("a build that did not fail");
    let folder = built.entry(class.to_owned()).or_insert_with(|| {
        let scratch = Scratch::new();
        let mut command = Command::new("javac");
        command.arg("-d").arg(scratch.path()).arg("-sourcepath").arg(source("")).arg(source(&format!("{class}.java")));
        run(command, b"", BUILD_MAX).ok();
        scratch
    });
    let folder = folder.path().display().to_string();
    // A machine that ends in seconds is best off without what makes it fast in minutes.
    ["-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-cp", &folder, class].map(str::to_owned).to_vec()
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}

/// A program that goes on until its standard input ends.
pub struct Running {
    child: Child,
    input: Option<ChildStdin>,
    said: Arc<Mutex<Vec<String>>>,
}

impl Running {
    #[track_caller]
    pub fn start(mut command: Command) -> Running {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a program that is there");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("piped"));
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                kept.lock().expect("readers do not panic").push(line);
            }
        });
        Running { child, input, said }
    }

    pub fn said(&self) -> Vec<String> {
        self.said.lock().expect("readers do not panic").clone()
    }

    #[track_caller]
    pub fn says(&self, line: &str) {
        holds(&format!("it says {line:?}"), || self.said().iter().any(|said| said == line));
    }

    #[track_caller]
    pub fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("an input that is open");
        writeln!(input, "{line}").expect("a program that reads");
    }

    /// Ends it in order, and gives what it has said.
    #[track_caller]
    pub fn end(mut self) -> String {
        drop(self.input.take());
        let status = finish(&mut self.child, END_MAX, "it ends");
        assert!(status.success(), "{status}");
        holds("its last words", || Arc::strong_count(&self.said) == 1);
        self.said().join("\n")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.input.take());
        if std::thread::panicking() {
            let _ = self.child.kill();
        }
        finish(&mut self.child, Duration::from_secs(10), "it ends");
    }
}

//! Peers in Python, of libraries that Debian packages: gRPC and WebSocket are other people's on at least one side.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::program::{Said, finish, run};
use crate::wait::{eventually, holds};

/// The interpreter that has Debian's packages; another may come first in the path.
const INTERPRETER: &str = "/usr/bin/python3";
/// A client's story may take so long.
const LIMIT: Duration = Duration::from_secs(60);
/// Starting an interpreter with a large library takes its time on a busy machine.
const START: Duration = Duration::from_secs(30);

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}

fn command(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(INTERPRETER);
    command.arg(script(name)).args(arguments);
    command
}

/// Runs a script of e2e/peers to its end.
#[track_caller]
pub fn python(name: &str, arguments: &[&str]) -> Said {
    run(command(name, arguments), b"", LIMIT)
}

/// A script of e2e/peers that listens, until it is dropped.
pub struct PythonServer {
    child: Child,
    /// Its end tells the script to end.
    input: Option<ChildStdin>,
    said: Arc<Mutex<Vec<String>>>,
    address: SocketAddr,
}

impl PythonServer {
    /// Starts it, and waits for its "listening PORT".
    #[track_caller]
    pub fn start(name: &str, arguments: &[&str]) -> PythonServer {
        let mut command = command(name, arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Debian's Python");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("piped"));
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = Arc::clone(&said);
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                kept.lock().expect("readers do not panic").push(line);
            }
        });
        let mut server = PythonServer { child, input, said, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let port = eventually(START, name, || {
            assert!(server.child.try_wait().expect("a child can be waited for").is_none(), "{name} has ended");
            server.said().iter().find_map(|line| line.strip_prefix("listening ")?.parse().ok())
        });
        server.address.set_port(port);
        server
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Every line so far.
    pub fn said(&self) -> Vec<String> {
        self.said.lock().expect("readers do not panic").clone()
    }

    /// Waits until it has said exactly this.
    #[track_caller]
    pub fn says(&self, line: &str) {
        holds(&format!("the server says {line:?}"), || self.said().iter().any(|said| said == line));
    }
}

impl Drop for PythonServer {
    fn drop(&mut self) {
        drop(self.input.take());
        if std::thread::panicking() {
            eprintln!("--- the server's words ---\n{}", self.said().join("\n"));
            let _ = self.child.kill();
            let _ = self.child.wait();
            return;
        }
        finish(&mut self.child, Duration::from_secs(10), "the server ends");
    }
}

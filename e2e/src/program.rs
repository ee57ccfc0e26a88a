//! Other people's programs, with a limit on how long they may take.

use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::certificates::Certificates;
use crate::wait::{WAIT_MAX, eventually};

/// How a program ended, and what it said.
#[derive(Debug)]
pub struct Said {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Said {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Itself, if the program was content.
    #[track_caller]
    pub fn ok(self) -> Said {
        assert!(self.status.success(), "{}\nstdout:\n{}\nstderr:\n{}", self.status, self.text(), self.stderr);
        self
    }
}

/// Runs a program to its end, `stdin` given to it.
#[track_caller]
pub fn run(mut command: Command, stdin: &[u8], limit: Duration) -> Said {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut input = child.stdin.take().expect("piped");
    // A program that ends before it has read everything is its own business.
    let _ = input.write_all(stdin);
    drop(input);
    let stdout = collect(child.stdout.take().expect("piped"));
    let stderr = collect(child.stderr.take().expect("piped"));
    let status = finish(&mut child, limit, &format!("{command:?}"));
    let stdout = stdout.join().expect("a reader");
    let stderr = String::from_utf8_lossy(&stderr.join().expect("a reader")).into_owned();
    Said { status, stdout, stderr }
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        let _ = from.read_to_end(&mut all);
        all
    })
}

/// Waits for a child, and kills it when the limit is met.
#[track_caller]
pub fn finish(child: &mut Child, limit: Duration, what: &str) -> ExitStatus {
    let started = std::time::Instant::now();
    eventually(limit + Duration::from_secs(5), what, || {
        if started.elapsed() > limit {
            let _ = child.kill();
        }
        child.try_wait().expect("a child can be waited for")
    })
}

pub fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid as i32).expect("a pid is not 0");
    kill_process(pid, signal).expect("a child takes signals");
}

/// `curl` with the test CA; certificates are verified.
#[track_caller]
pub fn curl(arguments: &[&str]) -> Said {
    curl_within(Duration::from_secs(30), arguments)
}

#[track_caller]
pub fn curl_within(limit: Duration, arguments: &[&str]) -> Said {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--ipv4", "--noproxy", "*", "--cacert"]);
    command.arg(Certificates::shared().ca()).args(arguments);
    run(command, b"", limit)
}

/// `openssl s_client` to this port, with a request for `/` on its standard input. Certificates are verified.
#[track_caller]
pub fn s_client(port: u16, arguments: &[&str], request: &str) -> Said {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect"]).arg(format!("127.0.0.1:{port}"));
    command.args(["-verify_return_error", "-ign_eof", "-CAfile"]).arg(Certificates::shared().ca());
    if !arguments.contains(&"-servername") && !arguments.contains(&"-noservername") {
        command.args(["-servername", "localhost"]);
    }
    command.args(arguments);
    run(command, request.as_bytes(), Duration::from_secs(20))
}

/// What proves that a WebSocket's server has read this key (RFC 6455 §4.2.2), by openssl.
#[track_caller]
pub fn websocket_accept(key: &str) -> String {
    let mut command = Command::new("sh");
    let pipe = "printf %s \"$1\" | openssl dgst -sha1 -binary | openssl base64 -A";
    command.args(["-c", pipe, "sh", &format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11")]);
    run(command, b"", WAIT_MAX).ok().text()
}

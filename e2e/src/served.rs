//! `propylon-bench origin` as a child: an origin for many requests and large bodies.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::binaries;
use crate::program::{finish, signal};

pub struct BenchOrigin {
    child: Child,
    address: SocketAddr,
}

impl BenchOrigin {
    pub fn start(arguments: &[&str]) -> BenchOrigin {
        let mut command = Command::new(binaries::bench());
        command.args(["origin", "--bind", "127.0.0.1:0"]).args(arguments);
        let mut child = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().expect("the bench's origin");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening ").and_then(|text| text.parse().ok());
        let address = address.unwrap_or_else(|| panic!("not an address: {line:?}"));
        BenchOrigin { child, address }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for BenchOrigin {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            signal(self.child.id(), Signal::TERM);
        }
        finish(&mut self.child, Duration::from_secs(5), "the bench's origin ends");
    }
}

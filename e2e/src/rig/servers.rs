//! Servers behind the engines, in a namespace of their own: `propylon-e2e-servers`, who says which engine asked.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};

use super::namespaces::Namespace;
use super::network::SERVERS_ADDRESS;
use crate::binaries;
use crate::program::finish;
use crate::wait::WAIT_MAX;

const PORT_FIRST: u16 = 8000;

pub struct Servers {
    child: Child,
    addresses: Vec<SocketAddr>,
}

impl Servers {
    #[track_caller]
    pub fn start(namespace: &Namespace, count: usize) -> Servers {
        let addresses: Vec<SocketAddr> =
            (0..count).map(|number| (SERVERS_ADDRESS, PORT_FIRST + number as u16).into()).collect();
        let mut command = namespace.command(binaries::bench().with_file_name("propylon-e2e-servers"));
        command.args(addresses.iter().map(SocketAddr::to_string));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("servers start");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
        assert_eq!(line, "listening\n", "servers did not start");
        Servers { child, addresses }
    }

    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        finish(&mut self.child, WAIT_MAX, "servers end");
    }
}

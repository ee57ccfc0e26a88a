//! Connections that a port of this machine has, by the kernel's own list: what a server has taken, what waits for it.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Established connections of one local port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Established {
    pub accepted: usize,
    /// Shaken hands with by the kernel, not yet accepted by the server: they have no inode.
    pub queued: usize,
}

impl Established {
    /// Nothing where /proc/net/tcp cannot be read.
    pub fn at(port: u16) -> Self {
        let read = |name: &str| std::fs::read_to_string(name).unwrap_or_default();
        let (four, six) = (Self::parse(&read("/proc/net/tcp"), port), Self::parse(&read("/proc/net/tcp6"), port));
        Self { accepted: four.accepted + six.accepted, queued: four.queued + six.queued }
    }

    pub fn most(self, other: Self) -> Self {
        Self { accepted: self.accepted.max(other.accepted), queued: self.queued.max(other.queued) }
    }

    /// proc_net(5): `sl local remote st tx:rx tr:when retransmits uid timeout inode ...`
    fn parse(text: &str, port: u16) -> Self {
        const ESTABLISHED: &str = "01";
        let ending = format!(":{port:04X}");
        // The list is not read at one moment: while others come and go, a line may come twice.
        let mut has_inode = HashMap::new();
        for line in text.lines().skip(1) {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let is_ours = fields.next().is_some_and(|local| local.ends_with(&ending));
            let remote = fields.next();
            if is_ours && fields.next() == Some(ESTABLISHED) {
                has_inode.insert(remote, fields.nth(5) != Some("0"));
            }
        }
        let accepted = has_inode.values().filter(|accepted| **accepted).count();
        Self { accepted, queued: has_inode.len() - accepted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn what_was_not_accepted_is_queued() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let _clients: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
        let _accepted = listener.accept().unwrap();
        assert_eq!(Established::at(address.port()), Established { accepted: 1, queued: 2 });
    }
}

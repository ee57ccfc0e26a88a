//! Connections that a port of this machine has, by the kernel's own list: what a server has taken, what waits for it.

use serde::Serialize;

/// Established connections of one local port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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

    /// proc_net(5): `sl local remote st tx:rx tr:when retransmits uid timeout inode ...`
    fn parse(text: &str, port: u16) -> Self {
        const ESTABLISHED: &str = "01";
        let ending = format!(":{port:04X}");
        let mut found = Self::default();
        for line in text.lines().skip(1) {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let is_ours = fields.next().is_some_and(|local| local.ends_with(&ending));
            if is_ours && fields.nth(1) == Some(ESTABLISHED) {
                match fields.nth(5) {
                    Some("0") => found.queued += 1,
                    _ => found.accepted += 1,
                }
            }
        }
        found
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

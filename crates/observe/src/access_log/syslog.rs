//! Lines of the access log as messages of syslog (RFC 5424), each in a datagram of its own: over UDP (RFC 5426), or to
//! a Unix socket.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::SystemTime;

use propylon_config::{Syslog, SyslogAddress};

use super::second_text;

/// Informational (RFC 5424 §6.2.1).
const SEVERITY: u8 = 6;
/// Longest message: receivers have to take 480 bytes and are to take 2,048 (RFC 5424 §6.1); common ones take 8 KiB and
/// cut off the rest.
const MESSAGE_BYTES_MAX: usize = 8192;

/// A receiver of messages.
pub(super) struct Outlet {
    socket: Socket,
    /// Parts of the header before and behind the time.
    before: String,
    behind: String,
    message: Vec<u8>,
}

enum Socket {
    Udp(UdpSocket, SocketAddr),
    Unix(UnixDatagram, PathBuf),
}

impl Outlet {
    pub(super) fn open(syslog: &Syslog) -> io::Result<Outlet> {
        let socket = match &syslog.address {
            SyslogAddress::Udp(address) => {
                let any = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
                Socket::Udp(UdpSocket::bind(SocketAddr::new(any, 0))?, *address)
            }
            SyslogAddress::Unix(path) => Socket::Unix(UnixDatagram::unbound()?, path.clone()),
        };
        let name = rustix::system::uname();
        let name = name.nodename().to_string_lossy();
        let is_name =
            |text: &str| !text.is_empty() && text.len() <= 255 && text.bytes().all(|byte| byte.is_ascii_graphic());
        let host = if is_name(&name) { &*name } else { "-" };
        let before = format!("<{}>1 ", syslog.facility * 8 + SEVERITY);
        let behind = format!(" {host} {} {} access - ", syslog.app_name, std::process::id());
        Ok(Outlet { socket, before, behind, message: Vec::new() })
    }

    /// Sends lines, each with its end. An error comes with the number of those that are lost: the rest went out.
    pub(super) fn write(&mut self, lines: &[u8]) -> Result<(), (u64, io::Error)> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let time = format!("{}.{:03}Z", second_text(now.as_secs()), now.subsec_millis());
        let (mut lost, mut why) = (0, None);
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            self.message.clear();
            for part in [self.before.as_bytes(), time.as_bytes(), self.behind.as_bytes(), line] {
                self.message.extend_from_slice(part);
            }
            self.message.truncate(MESSAGE_BYTES_MAX);
            let sent = match &self.socket {
                Socket::Udp(socket, address) => socket.send_to(&self.message, address),
                Socket::Unix(socket, path) => socket.send_to(&self.message, path),
            };
            if let Err(error) = sent {
                (lost, why) = (lost + 1, Some(error));
            }
        }
        why.map_or(Ok(()), |error| Err((lost, error)))
    }
}

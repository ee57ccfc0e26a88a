//! Address of a server: of the network, or of a Unix socket on this machine.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{LazyLock, Mutex, PoisonError};

use socket2::SockAddr;

/// Address that a connection is made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// TCP.
    Ip(SocketAddr),
    /// A stream socket of this machine.
    Unix(UnixName),
}

impl Address {
    /// Address of the network; `None` for a Unix socket.
    #[must_use]
    pub fn ip(self) -> Option<SocketAddr> {
        match self {
            Address::Ip(address) => Some(address),
            Address::Unix(_) => None,
        }
    }
}

/// Source of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectSource<'a> {
    /// An address of this machine; the port is the system's to choose.
    Address(IpAddr),
    /// A network interface.
    Interface(&'a str),
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Ip(address)
    }
}

impl From<UnixName> for Address {
    fn from(name: UnixName) -> Address {
        Address::Unix(name)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Ip(address) => address.fmt(f),
            Address::Unix(name) => name.fmt(f),
        }
    }
}

/// Names of Unix sockets that this process has been told, each kept once and for good: a name is then as cheap to copy
/// as an address of the network. They come from configurations alone.
static NAMES: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);

/// Name of a Unix socket: an absolute path, or behind `@` a name of the abstract namespace (unix(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixName(&'static str);

impl UnixName {
    /// Name of the socket as the configuration has it.
    #[must_use]
    pub fn new(name: &str) -> UnixName {
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.get(name) {
            return UnixName(known);
        }
        let kept: &'static str = Box::leak(name.into());
        names.insert(kept);
        UnixName(kept)
    }

    /// Text of the name, without `unix:`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.0
    }

    /// Whether the socket has no file.
    #[must_use]
    pub fn is_abstract(self) -> bool {
        self.0.starts_with('@')
    }

    /// Address for the kernel; an error where the name is too long for it.
    pub(crate) fn to_sock_addr(self) -> io::Result<SockAddr> {
        match self.0.strip_prefix('@') {
            // The kernel knows an abstract name by its first byte, which is 0.
            Some(name) => SockAddr::unix(format!("\0{name}")),
            None => SockAddr::unix(self.0),
        }
    }
}

impl fmt::Display for UnixName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix:{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_kept_once_and_an_address_is_as_small_as_one_of_the_network() {
        let (one, two) = (UnixName::new("/run/app.sock"), UnixName::new("/run/app.sock"));
        assert!(std::ptr::eq(one.as_str(), two.as_str()));
        assert_eq!(Address::from(one).to_string(), "unix:/run/app.sock");
        assert!(UnixName::new("@app").is_abstract() && !one.is_abstract());
        assert_eq!(size_of::<Address>(), size_of::<SocketAddr>());
    }
}

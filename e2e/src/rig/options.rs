//! How large a rig is, and why there may be none.

use std::time::Duration;

/// Engines that one rig has place for: their links are numbered in one byte.
pub const ENGINES_MAX: usize = 200;
/// Members of an etcd cluster; more than that are of no use to anybody.
pub const ETCD_MEMBERS_MAX: usize = 7;

/// How large a rig is, and what is in it.
#[derive(Clone, Debug)]
pub struct Options {
    pub engines: usize,
    /// 0 for no etcd.
    pub etcd_members: usize,
    /// Bytes that each member of etcd takes, in place of its own 2 GiB.
    pub etcd_quota_bytes: Option<u64>,
    /// Whether routers and engines speak BGP; the VIP has no route without it.
    pub bird: bool,
    /// Whether everything has IPv6 beside IPv4, the VIP too.
    pub ipv6: bool,
    /// Whether all engines are on one Ethernet, a bridge of the router's, in place of a link each. The router finds
    /// the VIP there by ARP then, and cuts are not possible.
    pub segment: bool,
    /// Servers behind the engines, each on a port of its own.
    pub servers: usize,
    /// Addresses that clients come from.
    pub client_addresses: usize,
    /// How often BFD says hello; five of them missed are the end. A busy machine makes a process late.
    pub bfd_interval: Duration,
    /// BGP's own patience. Longer than a story waits, so that a withdrawal is BFD's doing.
    pub hold_time: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            engines: 4,
            etcd_members: 0,
            etcd_quota_bytes: None,
            bird: true,
            ipv6: false,
            segment: false,
            servers: 2,
            client_addresses: 8,
            bfd_interval: Duration::from_millis(100),
            hold_time: Duration::from_secs(90),
        }
    }
}

/// Why there can be no rig on this machine: a story prints it and ends.
#[derive(Debug)]
pub struct Skip(pub String);

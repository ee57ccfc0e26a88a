//! Links and addresses of a rig: who is where, and how they reach each other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::namespaces::{Namespace, Namespaces, ip};
use super::options::Options;

/// The address that clients know, on the loopback of every engine.
pub const VIP: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 10);
pub const VIP6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0x113, 0, 0, 0, 0, 0x10);
/// The address of all servers.
pub const SERVERS_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 80, 0, 2);
pub const SERVERS_NETWORK: [u8; 3] = [10, 80, 0];

pub const ROUTER: &str = "router";
pub const CLIENT: &str = "client";
pub const SERVERS: &str = "servers";
/// The other end of the router's link, in every namespace but its own.
pub const UPLINK: &str = "uplink";
/// The router's bridge, where engines are on one Ethernet.
pub const SEGMENT: &str = "segment";
/// The third byte of the router's address there, which is no engine's number.
const SEGMENT_NETWORK: [u8; 3] = [10, 77, 255];
/// Links inside carry packets of clients in a wrapping of the second hop.
const INSIDE_MTU: u32 = 1600;
const OUTSIDE_MTU: u32 = 1500;
/// First of the clients' addresses.
const CLIENT_FIRST: usize = 10;

pub struct Network {
    router: Namespace,
    client: Namespace,
}

/// A link between the router and another namespace: its name there, and the networks on it.
#[derive(Clone, Debug)]
pub struct Link {
    pub name: String,
    /// The first three bytes of its IPv4 network.
    pub network: [u8; 3],
    /// The last byte of each address at the far end.
    hosts: Vec<usize>,
    mtu: u32,
    /// Whether the VIP is at its far end.
    has_vip: bool,
    /// Whether its near end is in the bridge.
    segment: bool,
}

impl Network {
    /// Makes all links, addresses and routes; the VIP has no route yet.
    #[track_caller]
    pub fn lay(namespaces: &Namespaces, options: &Options) -> Network {
        let router = namespaces.of(ROUTER);
        let links = links(options);
        let pair = |link: &Link| {
            let (mtu, far) = (link.mtu, namespaces.of(&link.name).name());
            format!(
                "link add {} netns {} mtu {mtu} type veth peer name {UPLINK} netns {far} mtu {mtu}",
                link.name,
                router.name()
            )
        };
        ip(None, &links.iter().map(pair).collect::<Vec<_>>());
        // Before addresses: which of them are tentative is decided when they are set.
        router.set(&ROUTER_VALUES);
        ip(Some(router), &router_lines(&links, options.ipv6));
        for link in &links {
            let far = namespaces.of(&link.name);
            far.set(&FAR_VALUES);
            if link.segment {
                far.set(&SEGMENT_VALUES);
            }
            ip(Some(far), &far_lines(link, options.ipv6));
        }
        Network { router: router.clone(), client: namespaces.of(CLIENT).clone() }
    }

    pub fn router(&self) -> &Namespace {
        &self.router
    }

    pub fn client(&self) -> &Namespace {
        &self.client
    }
}

/// Layer 4 decides which path a packet takes, as in routers.
const ROUTER_VALUES: [(&str, u32); 6] = [
    ("ipv4/ip_forward", 1),
    ("ipv6/conf/all/forwarding", 1),
    ("ipv4/fib_multipath_hash_policy", 1),
    ("ipv6/fib_multipath_hash_policy", 1),
    ("ipv4/conf/all/rp_filter", 0),
    ("ipv4/conf/default/rp_filter", 0),
];
const FAR_VALUES: [(&str, u32); 2] = [("ipv4/conf/all/rp_filter", 0), ("ipv4/conf/default/rp_filter", 0)];
/// All engines have the VIP on their loopback, and only the one that has it on this Ethernet too may answer for it.
const SEGMENT_VALUES: [(&str, u32); 2] = [("ipv4/conf/all/arp_ignore", 1), ("ipv4/conf/all/arp_announce", 2)];

/// The short names of all namespaces.
pub fn names(options: &Options) -> Vec<String> {
    let mut names: Vec<String> = links(options).into_iter().map(|link| link.name).collect();
    names.push(ROUTER.to_owned());
    names
}

pub fn engine(number: usize) -> String {
    format!("engine{number}")
}

pub fn etcd(number: usize) -> String {
    format!("etcd{number}")
}

pub fn engine_network(number: usize) -> [u8; 3] {
    [10, 77, number as u8]
}

pub fn engine_address(number: usize) -> Ipv4Addr {
    address(engine_network(number), 2)
}

pub fn engine_address6(number: usize) -> Ipv6Addr {
    address6(engine_network(number), 2)
}

pub fn etcd_network(number: usize) -> [u8; 3] {
    [10, 79, number as u8]
}

pub fn etcd_address(number: usize) -> Ipv4Addr {
    address(etcd_network(number), 2)
}

pub fn prefix(network: [u8; 3]) -> String {
    format!("{}/24", address(network, 0))
}

pub fn prefix6(network: [u8; 3]) -> String {
    format!("{}/64", address6(network, 0))
}

/// The router's address on a link.
pub fn router_address(network: [u8; 3]) -> Ipv4Addr {
    address(network, 1)
}

pub fn router_address6(network: [u8; 3]) -> Ipv6Addr {
    address6(network, 1)
}

/// Which engine has an address of its own link.
pub fn engine_at(address: IpAddr) -> Option<usize> {
    match address {
        IpAddr::V4(address) => match address.octets() {
            [10, 77, number, 2] => Some(usize::from(number)),
            _ => None,
        },
        IpAddr::V6(address) => match address.segments() {
            [0xfd00, 77, number, 0, 0, 0, 0, 2] => Some(usize::from(number)),
            _ => None,
        },
    }
}

/// Addresses that clients come from.
pub fn client_addresses(count: usize, ipv6: bool) -> Vec<IpAddr> {
    let hosts = client_hosts(count).into_iter();
    match ipv6 {
        true => hosts.map(|host| address6(CLIENT_NETWORK, host).into()).collect(),
        false => hosts.map(|host| address(CLIENT_NETWORK, host).into()).collect(),
    }
}

pub(super) const CLIENT_NETWORK: [u8; 3] = [10, 78, 0];

fn client_hosts(count: usize) -> Vec<usize> {
    (CLIENT_FIRST..CLIENT_FIRST + count.clamp(1, 240)).collect()
}

fn links(options: &Options) -> Vec<Link> {
    let link = |name: String, network, hosts, mtu| {
        let (has_vip, segment) = (false, false);
        Link { name, network, hosts, mtu, has_vip, segment }
    };
    let mut links = vec![
        link(CLIENT.to_owned(), CLIENT_NETWORK, client_hosts(options.client_addresses), OUTSIDE_MTU),
        link(SERVERS.to_owned(), SERVERS_NETWORK, vec![2], INSIDE_MTU),
    ];
    for number in 0..options.engines {
        let link = link(engine(number), engine_network(number), vec![2], INSIDE_MTU);
        links.push(Link { has_vip: true, segment: options.segment, ..link });
    }
    links.extend((0..options.etcd_members).map(|number| link(etcd(number), etcd_network(number), vec![2], INSIDE_MTU)));
    links
}

fn address([a, b, c]: [u8; 3], host: usize) -> Ipv4Addr {
    Ipv4Addr::new(a, b, c, host as u8)
}

/// The IPv6 network of a link has the same numbers.
fn address6([_, b, c]: [u8; 3], host: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, b.into(), c.into(), 0, 0, 0, 0, host as u16)
}

fn router_lines(links: &[Link], ipv6: bool) -> Vec<String> {
    let mut lines = vec!["link set lo up".to_owned()];
    if links.iter().any(|link| link.segment) {
        lines.extend(segment_lines(ipv6));
    }
    for Link { name, network, segment, .. } in links {
        if *segment {
            lines.push(format!("link set {name} up master {SEGMENT}"));
            continue;
        }
        lines.push(format!("address add {}/24 dev {name}", router_address(*network)));
        if ipv6 {
            lines.push(format!("address add {}/64 dev {name} nodad", router_address6(*network)));
        }
        lines.push(format!("link set {name} up"));
    }
    // Local addresses are looked up after rules that drop, so that an engine can be cut off from the router itself.
    lines.extend(["rule add pref 1000 lookup local".to_owned(), "rule del pref 0".to_owned()]);
    if ipv6 {
        lines.extend(["-6 rule add pref 1000 lookup local".to_owned(), "-6 rule del pref 0".to_owned()]);
    }
    lines
}

/// The bridge, in which the VIP is to be found.
fn segment_lines(ipv6: bool) -> Vec<String> {
    let mut lines = vec![
        format!("link add {SEGMENT} mtu {INSIDE_MTU} type bridge"),
        format!("address add {}/16 dev {SEGMENT}", router_address(SEGMENT_NETWORK)),
        format!("link set {SEGMENT} up"),
        format!("route add {VIP}/32 dev {SEGMENT}"),
    ];
    if ipv6 {
        lines.push(format!("address add {}/32 dev {SEGMENT} nodad", router_address6(SEGMENT_NETWORK)));
        lines.push(format!("-6 route add {VIP6}/128 dev {SEGMENT}"));
    }
    lines
}

/// Addresses and routes of a link's far end. May be said again where a link comes back.
pub fn far_lines(link: &Link, ipv6: bool) -> Vec<String> {
    let mut lines = vec!["link set lo up".to_owned()];
    let (bits, bits6, router) = if link.segment { (16, 32, SEGMENT_NETWORK) } else { (24, 64, link.network) };
    for host in &link.hosts {
        lines.push(format!("address replace {}/{bits} dev {UPLINK}", address(link.network, *host)));
        if ipv6 {
            lines.push(format!("address replace {}/{bits6} dev {UPLINK} nodad", address6(link.network, *host)));
        }
    }
    if link.has_vip {
        lines.push(format!("address replace {VIP}/32 dev lo"));
        if ipv6 {
            lines.push(format!("address replace {VIP6}/128 dev lo nodad"));
        }
    }
    lines.push(format!("link set {UPLINK} up"));
    lines.push(format!("route replace default via {}", router_address(router)));
    if ipv6 {
        lines.push(format!("-6 route replace default via {}", router_address6(router)));
    }
    lines
}

/// The link of an engine.
pub fn engine_link(number: usize) -> Link {
    let (name, network) = (engine(number), engine_network(number));
    Link { name, network, hosts: vec![2], mtu: INSIDE_MTU, has_vip: true, segment: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_known_by_either_of_its_addresses_and_nobody_else_is() {
        for number in [0, 3, 199] {
            assert_eq!(engine_at(engine_address(number).into()), Some(number));
            assert_eq!(engine_at(engine_address6(number).into()), Some(number));
            assert_eq!(engine_at(router_address(engine_network(number)).into()), None);
            assert_eq!(engine_at(etcd_address(number).into()), None);
        }
        assert_eq!(engine_at(VIP.into()), None);
    }
}

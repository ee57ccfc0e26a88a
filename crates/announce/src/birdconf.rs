//! BIRD's configuration for an engine, and its router's counterpart, as text to begin with.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

/// Name of the static protocol with the virtual addresses of IPv4.
pub const PROTOCOL_V4: &str = "propylon4";
/// Name of the static protocol with the virtual addresses of IPv6.
pub const PROTOCOL_V6: &str = "propylon6";
/// Paths that a router spreads one address over, which is what BIRD's configuration allows for.
pub const PATHS_MAX: usize = 32;

/// The other end of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbor {
    pub address: IpAddr,
    pub autonomous_system: u32,
}

/// Facts for an engine's BIRD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSide {
    pub router_id: Ipv4Addr,
    pub virtual_addresses: Vec<IpAddr>,
    pub autonomous_system: u32,
    /// Routers. A session carries addresses of its own family: a router of both families is here twice.
    pub routers: Vec<Neighbor>,
}

/// Facts for a router that runs BIRD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterSide {
    pub router_id: Ipv4Addr,
    pub virtual_addresses: Vec<IpAddr>,
    pub autonomous_system: u32,
    /// One address of each engine and family.
    pub engines: Vec<Neighbor>,
}

/// Lines that let BFD find a sudden death: silence of 150 ms.
pub const BFD_LINES: &str = "protocol bfd propylon_bfd {\n    interface \"*\" { interval 50 ms; multiplier 3; };\n}\n";

/// An engine's whole configuration; an error says what is missing.
pub fn engine(side: &EngineSide) -> Result<String, String> {
    check(&side.virtual_addresses, &side.routers, "router")?;
    let mut text = head(side.router_id);
    for is_v6 in families(&side.virtual_addresses) {
        text.push_str(&static_protocol(&side.virtual_addresses, is_v6));
    }
    text.push('\n');
    for (index, router) in side.routers.iter().enumerate() {
        let is_v6 = router.address.is_ipv6();
        let name = if is_v6 { PROTOCOL_V6 } else { PROTOCOL_V4 };
        let channel = format!(
            "    {} {{\n        import none;\n        export where proto = \"{name}\";\n        next hop self;\n    }};\n",
            family(is_v6)
        );
        // The engine begins: a router that waits passively needs no change of its timers.
        let lines = "    connect delay time 1;\n    connect retry time 5;\n    error wait time 1, 10;\n";
        text.push_str(&session(
            &format!("router{}", index + 1),
            side.autonomous_system,
            router,
            &format!("{lines}{channel}"),
        ));
    }
    Ok(text)
}

/// A router's whole configuration, with the kernel's table.
pub fn router(side: &RouterSide) -> Result<String, String> {
    check(&side.virtual_addresses, &side.engines, "engine")?;
    let mut text = head(side.router_id);
    for is_v6 in families(&side.virtual_addresses) {
        let family = family(is_v6);
        let _ = writeln!(
            text,
            "protocol kernel kernel{} {{\n    {family} {{ import none; export where source = RTS_BGP; }};\n    merge paths on \
             limit {PATHS_MAX};\n}}",
            if is_v6 { 6 } else { 4 }
        );
        let list: Vec<String> = of_family(&side.virtual_addresses, is_v6).map(host_route).collect();
        let _ = writeln!(text, "define VIRTUAL{} = [ {} ];", if is_v6 { 6 } else { 4 }, list.join(", "));
    }
    text.push('\n');
    for (index, engine) in side.engines.iter().enumerate() {
        let is_v6 = engine.address.is_ipv6();
        let channel = format!(
            "    {} {{\n        import where net ~ VIRTUAL{};\n        export none;\n    }};\n",
            family(is_v6),
            if is_v6 { 6 } else { 4 }
        );
        text.push_str(&session(
            &format!("engine{}", index + 1),
            side.autonomous_system,
            engine,
            &format!("    passive on;\n{channel}"),
        ));
    }
    text.push_str(
        "# In the kernel, so that a flow's packets take one path: sysctl -w net.ipv4.fib_multipath_hash_policy=1\n",
    );
    text.push_str("# and net.ipv6.fib_multipath_hash_policy=1\n");
    Ok(text)
}

/// The static protocol of one family. BIRD's restart leaves it disabled, until the engine says that it can serve.
pub fn static_protocol(addresses: &[IpAddr], is_v6: bool) -> String {
    let name = if is_v6 { PROTOCOL_V6 } else { PROTOCOL_V4 };
    let mut text = format!("protocol static {name} {{\n    disabled;\n    {};\n", family(is_v6));
    for address in of_family(addresses, is_v6) {
        // Never exported to the kernel: the engine has the address on its loopback.
        let _ = writeln!(text, "    route {} blackhole;", host_route(address));
    }
    text.push_str("}\n");
    text
}

fn head(router_id: Ipv4Addr) -> String {
    format!("log syslog all;\nrouter id {router_id};\n\nprotocol device {{}}\n{BFD_LINES}\n")
}

fn session(name: &str, own: u32, neighbor: &Neighbor, lines: &str) -> String {
    let Neighbor { address, autonomous_system } = neighbor;
    format!(
        "protocol bgp {name} {{\n    local as {own};\n    neighbor {address} as {autonomous_system};\n    bfd on;\n    hold \
         time 3;\n    keepalive time 1;\n    graceful restart off;\n    long lived graceful restart off;\n{lines}}}\n"
    )
}

fn check(addresses: &[IpAddr], neighbors: &[Neighbor], other: &str) -> Result<(), String> {
    if addresses.is_empty() {
        return Err("no virtual address is given".to_owned());
    }
    for is_v6 in families(addresses) {
        if !neighbors.iter().any(|neighbor| neighbor.address.is_ipv6() == is_v6) {
            let family = if is_v6 { "IPv6" } else { "IPv4" };
            return Err(format!(
                "there are virtual addresses of {family} and no {other} with one; add its {family} address"
            ));
        }
    }
    match neighbors.iter().find(|neighbor| !families(addresses).contains(&neighbor.address.is_ipv6())) {
        Some(idle) => Err(format!("no virtual address is of the family of {other} {}; leave it out", idle.address)),
        None => Ok(()),
    }
}

/// Families that occur: `false` is IPv4, `true` is IPv6.
fn families(addresses: &[IpAddr]) -> Vec<bool> {
    [false, true].into_iter().filter(|is_v6| of_family(addresses, *is_v6).next().is_some()).collect()
}

fn of_family(addresses: &[IpAddr], is_v6: bool) -> impl Iterator<Item = &IpAddr> {
    addresses.iter().filter(move |address| address.is_ipv6() == is_v6)
}

fn host_route(address: &IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv6() { 128 } else { 32 })
}

fn family(is_v6: bool) -> &'static str {
    if is_v6 { "ipv6" } else { "ipv4" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side() -> EngineSide {
        EngineSide {
            router_id: Ipv4Addr::new(10, 0, 0, 2),
            virtual_addresses: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
            autonomous_system: 65001,
            routers: ["10.0.0.1", "fd00::1"]
                .map(|address| Neighbor { address: address.parse().unwrap(), autonomous_system: 65000 })
                .to_vec(),
        }
    }

    #[test]
    fn an_engine_begins_with_its_addresses_disabled_and_exports_nothing_else() {
        let text = engine(&side()).unwrap();
        assert!(
            text.contains(
                "protocol static propylon4 {\n    disabled;\n    ipv4;\n    route 192.0.2.1/32 blackhole;\n}"
            )
        );
        assert!(text.contains("route 2001:db8::1/128 blackhole;"));
        assert!(text.contains("export where proto = \"propylon6\";"));
        assert!(!text.contains("protocol kernel"), "{text}");
    }

    #[test]
    fn a_family_without_a_session_is_refused() {
        let mut side = side();
        side.routers.pop();
        assert_eq!(
            engine(&side).unwrap_err(),
            "there are virtual addresses of IPv6 and no router with one; add its IPv6 address"
        );
        side.virtual_addresses.truncate(1);
        engine(&side).unwrap();
        side.routers[0].address = "fd00::1".parse().unwrap();
        assert!(engine(&side).unwrap_err().contains("add its IPv4 address"));
        side.virtual_addresses.clear();
        assert!(engine(&side).is_err());
    }
}

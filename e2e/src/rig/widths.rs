//! Links of a rig that carry less than they did: those of engines, and the router's way to clients.

use super::Rig;
use super::namespaces::ip;
use super::network::{self, CLIENT, CLIENT_NETWORK, UPLINK};

impl Rig {
    /// Links between the router and all engines carry packets of so many bytes from now on. Clients send no trains of
    /// segments then, which the second hop would cut to fit; single ones it can only refuse.
    #[track_caller]
    pub fn narrow_engines(&self, mtu: u32) {
        let names: Vec<String> = (0..self.options.engines).map(network::engine).collect();
        for name in &names {
            ip(Some(self.namespaces.of(name)), &[format!("link set {UPLINK} mtu {mtu}")]);
        }
        ip(Some(self.network.client()), &[format!("link set {UPLINK} gso_max_segs 1")]);
        let lines: Vec<String> = names.iter().map(|name| format!("link set {name} mtu {mtu}")).collect();
        ip(Some(self.network.router()), &lines);
    }

    /// The router hands no longer packets on to clients from now on, and says so to whoever sends them, as if there
    /// were a narrower link behind it. Clients do not know, and offer segments as long as ever.
    #[track_caller]
    pub fn narrow_clients(&self, mtu: u32) {
        let (prefix, prefix6) = (network::prefix(CLIENT_NETWORK), network::prefix6(CLIENT_NETWORK));
        let mut lines = vec![format!("route replace {prefix} dev {CLIENT} mtu lock {mtu}")];
        if self.options.ipv6 {
            lines.push(format!("-6 route replace {prefix6} dev {CLIENT} metric 1 mtu lock {mtu}"));
        }
        ip(Some(self.network.router()), &lines);
    }
}

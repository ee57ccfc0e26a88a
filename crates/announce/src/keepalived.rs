//! keepalived's configuration for engines where no router speaks BGP: one of them holds the virtual address.
//!
//! Engines tell each other by VRRP, by unicast, who holds it. The holder's priority falls while its engine says that
//! it should not serve; another then takes the address. Where all say so, priorities have fallen alike and the holder
//! stays: the last one is never withdrawn. That is why the script has a weight, and why there is no `nopreempt`: with
//! it the others leave the address where it is, however low the holder's priority falls; `preempt_delay` would hold
//! that up, too.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::time::Duration;

/// Priority of the first in rank.
const PRIORITY_MAX: u8 = 200;
/// Ranks, and with them engines, that priorities can tell apart.
pub const RANKS_MAX: u8 = 100;
/// A failed check takes this off: more than all ranks together.
const WEIGHT: u8 = 100;
/// Checks in a row that end a failure: at least, and at most.
const RISE_MIN: u64 = 3;
const RISE_MAX: u64 = 3600;
/// Most virtual addresses of a family in an advert; keepalived sends those beyond it as excluded ones.
const ADVERTISED_MAX: usize = 20;

/// Fate of the address when an engine that lost it is well again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failback {
    /// The holder keeps it: all have the same priority, and whoever was well first begins.
    Stays,
    /// The first in rank takes it back, once its checks have been well for so long.
    Returns(Duration),
}

/// Facts for a keepalived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keepalived {
    pub virtual_addresses: Vec<IpAddr>,
    /// For instance `eth0`.
    pub interface: String,
    /// This engine's own addresses, one of each family that the virtual addresses have.
    pub own: Vec<IpAddr>,
    /// The others' addresses, of the same families.
    pub peers: Vec<IpAddr>,
    /// This engine's place among all, from 0; of no meaning with [`Failback::Stays`].
    pub rank: u8,
    /// Number of the virtual router, from 1; one that nobody else on the network has.
    pub router_id: u8,
    /// Ends with 0 while this engine should serve, for instance `/usr/bin/propylon health -c
    /// /etc/propylon/propylon.toml`.
    pub health: String,
    /// Account that runs it.
    pub user: String,
    pub failback: Failback,
}

/// The configuration as text; an error says what is wrong with what was asked for.
pub fn configuration(wanted: &Keepalived) -> Result<String, String> {
    wanted.check()?;
    let mut text = format!(
        "global_defs {{\n    enable_script_security\n    script_user {user}\n    vrrp_garp_master_refresh 60\n    \
         vrrp_garp_master_repeat 5\n}}\n\nvrrp_script propylon {{\n    script \"{health}\"\n    interval 1\n    timeout 2\n    \
         fall 2\n    rise {rise}\n    weight -{WEIGHT}\n    user {user}\n    init_fail\n}}\n",
        user = wanted.user,
        health = wanted.health,
        rise = wanted.checks_until_well(),
    );
    for is_v6 in [false, true] {
        let addresses: Vec<&IpAddr> =
            wanted.virtual_addresses.iter().filter(|address| address.is_ipv6() == is_v6).collect();
        if !addresses.is_empty() {
            text.push_str(&wanted.instance(is_v6, &addresses));
        }
    }
    Ok(text)
}

impl Keepalived {
    fn check(&self) -> Result<(), String> {
        if self.virtual_addresses.is_empty() {
            return Err("no virtual address is given".to_owned());
        }
        if self.router_id == 0 {
            return Err("the virtual router's number is from 1 to 255".to_owned());
        }
        if self.rank >= RANKS_MAX {
            return Err(format!("ranks are from 0 to {}", RANKS_MAX - 1));
        }
        let is_word = |text: &str| {
            !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.:-@".contains(&byte))
        };
        if !is_word(&self.interface) || self.interface.len() > 15 {
            return Err(format!("{:?} is no interface's name", self.interface));
        }
        if !is_word(&self.user) {
            return Err(format!("{:?} is no account's name", self.user));
        }
        if !self.health.starts_with('/') || self.health.contains(['"', '\n', '\r', '\\']) {
            return Err(
                "the health command begins with its program's whole path, and has neither quotes nor line ends"
                    .to_owned(),
            );
        }
        for address in &self.virtual_addresses {
            let family = if address.is_ipv6() { "IPv6" } else { "IPv4" };
            if !self.own.iter().any(|own| own.is_ipv6() == address.is_ipv6()) {
                return Err(format!("{address} needs an address of this engine of {family}; add one"));
            }
            if !self.peers.iter().any(|peer| peer.is_ipv6() == address.is_ipv6()) {
                return Err(format!("{address} needs other engines' addresses of {family}; add them"));
            }
        }
        Ok(())
    }

    /// Checks in a row, one each second, that end a failure.
    fn checks_until_well(&self) -> u64 {
        match self.failback {
            Failback::Stays => RISE_MIN,
            Failback::Returns(delay) => delay.as_secs().clamp(RISE_MIN, RISE_MAX),
        }
    }

    fn instance(&self, is_v6: bool, addresses: &[&IpAddr]) -> String {
        let own = self.own.iter().find(|own| own.is_ipv6() == is_v6);
        let peers = self.peers.iter().filter(|peer| peer.is_ipv6() == is_v6 && !self.own.contains(peer));
        let priority = match self.failback {
            Failback::Stays => PRIORITY_MAX,
            Failback::Returns(_) => PRIORITY_MAX - self.rank,
        };
        let mut text = format!(
            "\nvrrp_instance propylon{family} {{\n    state BACKUP\n    interface {interface}\n    virtual_router_id {id}\n    \
             priority {priority}\n    advert_int 1\n    version 3\n    garp_master_delay 1\n    garp_master_repeat 3\n",
            family = if is_v6 { 6 } else { 4 },
            interface = self.interface,
            id = self.router_id,
        );
        if let Some(own) = own {
            let _ = writeln!(text, "    unicast_src_ip {own}");
        }
        let _ = writeln!(text, "    unicast_peer {{\n{}    }}", listed(peers.map(ToString::to_string)));
        let of = |addresses: &[&IpAddr]| {
            listed(addresses.iter().map(|address| {
                let bits = if address.is_ipv6() { 128 } else { 32 };
                format!("{address}/{bits} dev {}", self.interface)
            }))
        };
        let (advertised, rest) = addresses.split_at(addresses.len().min(ADVERTISED_MAX));
        let _ = writeln!(text, "    virtual_ipaddress {{\n{}    }}", of(advertised));
        if !rest.is_empty() {
            let _ = writeln!(text, "    virtual_ipaddress_excluded {{\n{}    }}", of(rest));
        }
        text.push_str("    track_script {\n        propylon\n    }\n}\n");
        text
    }
}

fn listed(lines: impl Iterator<Item = String>) -> String {
    lines.fold(String::new(), |text, line| format!("{text}        {line}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Keepalived {
        let addresses = |list: &[&str]| list.iter().map(|address| address.parse().unwrap()).collect();
        Keepalived {
            virtual_addresses: addresses(&["192.0.2.1", "2001:db8::1"]),
            interface: "eth0".to_owned(),
            own: addresses(&["10.0.0.1", "fd00::1"]),
            peers: addresses(&["10.0.0.2", "fd00::2"]),
            rank: 3,
            router_id: 51,
            health: "/usr/bin/propylon health -c /etc/propylon/propylon.toml".to_owned(),
            user: "propylon".to_owned(),
            failback: Failback::Returns(Duration::from_secs(60)),
        }
    }

    #[test]
    fn each_family_has_an_instance_with_its_own_peers() {
        let text = configuration(&wanted()).unwrap();
        let (_, v4) = text.split_once("vrrp_instance propylon4").unwrap();
        let (v4, v6) = v4.split_once("vrrp_instance propylon6").unwrap();
        assert!(v4.contains("unicast_src_ip 10.0.0.1") && v4.contains("10.0.0.2") && !v4.contains("fd00"), "{v4}");
        assert!(v6.contains("2001:db8::1/128 dev eth0") && v6.contains("fd00::2") && !v6.contains("10.0"), "{v6}");
        assert!(v4.contains("priority 197") && text.contains("rise 60"));
    }

    #[test]
    fn any_failed_check_outweighs_all_ranks() {
        const { assert!(WEIGHT > RANKS_MAX - 1 && PRIORITY_MAX - (RANKS_MAX - 1) > WEIGHT) };
        let text = configuration(&Keepalived { failback: Failback::Stays, ..wanted() }).unwrap();
        assert!(text.contains("priority 200") && text.contains("rise 3\n"));
    }

    #[test]
    fn what_cannot_work_is_refused() {
        type Change = fn(&mut Keepalived);
        let changes: [Change; 9] = [
            |wanted| wanted.virtual_addresses.clear(),
            |wanted| wanted.own.truncate(1),
            |wanted| wanted.peers.truncate(1),
            |wanted| wanted.router_id = 0,
            |wanted| wanted.rank = RANKS_MAX,
            |wanted| wanted.interface = "eth0 }".to_owned(),
            |wanted| wanted.user = "a b".to_owned(),
            |wanted| wanted.health = "propylon health".to_owned(),
            |wanted| wanted.health = "/bin/a\"\nnotify x".to_owned(),
        ];
        for change in changes {
            let mut wanted = wanted();
            change(&mut wanted);
            assert!(configuration(&wanted).is_err(), "{wanted:?}");
        }
    }
}

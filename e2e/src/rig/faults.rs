//! Faults of the network: links that swallow everything, links without a carrier, and engines that reach some and not
//! others.

use std::collections::BTreeSet;

use super::Rig;
use super::namespaces::ip;
use super::network::{self, UPLINK};
use super::programs::system;
use crate::program::run;
use crate::wait::WAIT_MAX;

/// Rules that drop come before all others.
const CUTS_PREF: u32 = 10;

/// Peers that an engine is cut off from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// All members of etcd.
    Etcd,
    /// One member of etcd.
    Member(usize),
    /// The servers behind it.
    Servers,
    /// Everything, the router too, as by [`Rig::link_down`].
    All,
}

/// Whom an engine does not reach behind a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peers {
    Member(usize),
    Servers,
}

impl Rig {
    /// Cuts an engine off, in both directions, without a word to either side. Cuts add up until [`Rig::rejoin`].
    #[track_caller]
    pub fn isolate(&mut self, number: usize, from: Cut) {
        let members = 0..self.options.etcd_members;
        let others: Vec<Peers> = match from {
            Cut::All => return self.link_down(number),
            Cut::Servers => vec![Peers::Servers],
            Cut::Etcd => members.map(Peers::Member).collect(),
            Cut::Member(member) => vec![Peers::Member(member)],
        };
        let new: Vec<Peers> = others.into_iter().filter(|other| self.cuts.insert((number, *other))).collect();
        let lines: Vec<String> = new.into_iter().flat_map(|other| self.rules("add", number, other)).collect();
        ip(Some(self.network.router()), &lines);
    }

    /// Ends all that [`Rig::isolate`] and [`Rig::link_down`] have done to an engine.
    #[track_caller]
    pub fn rejoin(&mut self, number: usize) {
        let (ended, kept) = std::mem::take(&mut self.cuts).into_iter().partition(|(engine, _)| *engine == number);
        self.cuts = kept;
        let ended: BTreeSet<(usize, Peers)> = ended;
        let lines: Vec<String> = ended.into_iter().flat_map(|(_, other)| self.rules("del", number, other)).collect();
        ip(Some(self.network.router()), &lines);
        self.link_up(number);
    }

    /// Rules of the router that drop what goes from one to the other, either way.
    fn rules(&self, order: &str, number: usize, other: Peers) -> Vec<String> {
        let engine = (network::engine(number), network::engine_network(number));
        let other = match other {
            Peers::Servers => (network::SERVERS.to_owned(), network::SERVERS_NETWORK),
            Peers::Member(member) => (network::etcd(member), network::etcd_network(member)),
        };
        let mut rules = Vec::new();
        for ((from, _), (_, to)) in [(&engine, &other), (&other, &engine)] {
            let (to, to6) = (network::prefix(*to), network::prefix6(*to));
            rules.push(format!("rule {order} pref {CUTS_PREF} iif {from} to {to} blackhole"));
            if self.options.ipv6 {
                rules.push(format!("-6 rule {order} pref {CUTS_PREF} iif {from} to {to6} blackhole"));
            }
        }
        rules
    }

    /// From here on nothing passes an engine's link, and both ends still have a carrier: what a router sees when an
    /// engine behind a switch loses its power.
    #[track_caller]
    pub fn link_down(&self, number: usize) {
        self.swallow(&network::engine(number), true);
    }

    #[track_caller]
    pub fn link_up(&self, number: usize) {
        self.swallow(&network::engine(number), false);
    }

    /// The same for a member of etcd, whom nobody reaches then.
    #[track_caller]
    pub fn etcd_link_down(&self, member: usize) {
        self.swallow(&network::etcd(member), true);
    }

    #[track_caller]
    pub fn etcd_link_up(&self, member: usize) {
        self.swallow(&network::etcd(member), false);
    }

    /// Pulls an engine's cable: the router loses the carrier, and knows at once.
    #[track_caller]
    pub fn unplug(&self, number: usize) {
        let far = self.namespaces.of(&network::engine(number));
        ip(Some(far), &[format!("link set {UPLINK} down")]);
    }

    #[track_caller]
    pub fn plug(&self, number: usize) {
        let far = self.namespaces.of(&network::engine(number));
        ip(Some(far), &network::far_lines(&network::engine_link(number), self.options.ipv6));
    }

    /// A queue that holds nothing drops all that is sent, quietly, and at both ends.
    #[track_caller]
    fn swallow(&self, name: &str, swallows: bool) {
        for (namespace, device) in [(self.network.router(), name), (self.namespaces.of(name), UPLINK)] {
            let mut command = system("tc");
            command.args(["-n", namespace.name(), "qdisc"]);
            match swallows {
                true => command.args(["replace", "dev", device, "root", "pfifo", "limit", "0"]),
                false => command.args(["del", "dev", device, "root"]),
            };
            let said = run(command, b"", WAIT_MAX);
            assert!(said.status.success() || !swallows, "tc: {}", said.stderr);
        }
    }
}

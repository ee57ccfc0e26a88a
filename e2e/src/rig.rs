//! A cluster in a box: router, engines, etcd, servers and clients, each in a network namespace of its own, and faults
//! between them.
//!
//! ```text
//!   client ---+                +--- engine 0  (BIRD, propylon; the VIP on lo)
//!             |                +--- engine 1
//!             +---- router ----+--- ...
//!             |   BIRD, ECMP   +--- etcd 0, 1, 2
//!             +                +--- servers
//! ```
//!
//! Each line is a veth pair. The router forwards by layer 4 hash over up to 32 paths, and has its routes to the VIP
//! from the engines by BGP with BFD. All addresses are the same in every rig: no rig sees another. A test process
//! reaches what is inside by unix sockets, by [`Flows`], and by commands that it runs in there.

pub mod bird;
pub mod cluster;
pub mod etcd;
pub mod faults;
pub mod flows;
mod hops;
pub mod namespaces;
pub mod network;
pub mod node;
pub mod options;
pub mod programs;
pub mod remains;
pub mod servers;
pub mod shared;
pub mod widths;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::geteuid;

pub use bird::{Bird, NextHop, VIP_PROTOCOL, VIP6_PROTOCOL};
pub use etcd::Etcd;
pub use faults::Cut;
pub use flows::{Flows, Manner};
pub use network::{VIP, VIP6};
pub use node::Node;
pub use options::{Options, Skip};

use bird::Liveness;
use faults::Peers;
use namespaces::Namespaces;
use network::Network;
use options::{ENGINES_MAX, ETCD_MEMBERS_MAX};
use programs::path;
use servers::Servers;

use crate::binaries;
use crate::scratch::Scratch;

/// Ends all of its processes and removes its namespaces when it is dropped, and also when this process is killed.
pub struct Rig {
    options: Options,
    // Fields are dropped in this order: engines first, namespaces last.
    nodes: Vec<Node>,
    router_bird: Option<Bird>,
    etcd: Option<Etcd>,
    servers: Servers,
    network: Network,
    /// Engines, and whom they are cut off from.
    cuts: BTreeSet<(usize, Peers)>,
    namespaces: Namespaces,
    scratch: Scratch,
}

impl Rig {
    /// Makes the network and starts everything but engines: routers' and engines' BIRD with the VIP not announced,
    /// etcd, servers.
    ///
    /// # Errors
    /// When this is no place for network namespaces, or a program is missing.
    #[track_caller]
    pub fn new(options: Options) -> Result<Rig, Skip> {
        assert!((1..=ENGINES_MAX).contains(&options.engines), "a rig has 1 to {ENGINES_MAX} engines");
        assert!(options.etcd_members <= ETCD_MEMBERS_MAX, "etcd has at most {ETCD_MEMBERS_MAX} members");
        need_programs(&options)?;
        // The first story builds them, which may take minutes and may fail.
        binaries::propylon();
        let scratch = Scratch::in_memory();
        let namespaces = Namespaces::make(&network::names(&options), scratch.path())?;
        let network = Network::lay(&namespaces, &options);
        let servers = Servers::start(namespaces.of(network::SERVERS), options.servers);
        let liveness = Liveness { bfd_interval: options.bfd_interval, hold_time: options.hold_time };
        let router_bird = options.bird.then(|| {
            let config = bird::router_config(options.engines, options.ipv6, liveness);
            Bird::start(namespaces.of(network::ROUTER), &folder(&scratch, network::ROUTER), &config)
        });
        let nodes = (0..options.engines).map(|number| {
            let namespace = namespaces.of(&network::engine(number)).clone();
            let folder = folder(&scratch, &network::engine(number));
            let config = options.bird.then(|| bird::engine_config(number, options.ipv6, liveness));
            Node::new(number, namespace, folder, config.as_deref())
        });
        let nodes = nodes.collect();
        let etcd = (options.etcd_members > 0).then(|| {
            let members = (0..options.etcd_members).map(|number| namespaces.of(&network::etcd(number)).clone());
            Etcd::start(members.collect(), &folder(&scratch, "etcd"), options.etcd_quota_bytes)
        });
        Ok(Rig { options, nodes, router_bird, etcd, servers, network, cuts: BTreeSet::new(), namespaces, scratch })
    }

    pub fn options(&self) -> &Options {
        &self.options
    }

    /// A folder of the rig's own.
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }

    pub fn engine(&mut self, number: usize) -> &mut Node {
        &mut self.nodes[number]
    }

    pub fn engines(&mut self) -> &mut [Node] {
        &mut self.nodes
    }

    /// An engine's BIRD.
    #[track_caller]
    pub fn bird(&self, number: usize) -> &Bird {
        self.nodes[number].bird()
    }

    #[track_caller]
    pub fn router_bird(&self) -> &Bird {
        self.router_bird.as_ref().expect("a rig with BIRD")
    }

    #[track_caller]
    pub fn etcd(&mut self) -> &mut Etcd {
        self.etcd.as_mut().expect("a rig with etcd")
    }

    /// Next hops that the router's kernel has for an address, by engine.
    #[track_caller]
    pub fn router_routes(&self, vip: IpAddr) -> Vec<NextHop> {
        bird::next_hops(self.network.router(), vip)
    }

    /// Has an engine's BIRD announce the VIP, or no longer, as the engine itself will do by the same socket.
    #[track_caller]
    pub fn announce(&self, number: usize, is_announced: bool) {
        let order = if is_announced { "enable" } else { "disable" };
        let protocols: &[&str] = if self.options.ipv6 { &[VIP_PROTOCOL, VIP6_PROTOCOL] } else { &[VIP_PROTOCOL] };
        for protocol in protocols {
            self.bird(number).ask(&format!("{order} {protocol}"));
        }
    }

    /// Servers' addresses, as engines reach them.
    pub fn servers(&self) -> Vec<SocketAddr> {
        self.servers.addresses()
    }

    /// Clients that hold connections to the VIP, and open new ones.
    #[track_caller]
    pub fn flows(&self, manner: &Manner) -> Flows {
        Flows::start(self.network.client(), self.options.client_addresses, manner)
    }

    /// The cluster's part of a configuration: a TLS listener `web` at the VIP, and a backend of all servers.
    pub fn config(&self) -> String {
        let servers: Vec<String> = self.servers().iter().map(|address| format!("\"{address}\"")).collect();
        let bind = match self.options.ipv6 {
            true => format!("[\"{VIP}:443\", \"[{VIP6}]:443\"]"),
            false => format!("\"{VIP}:443\""),
        };
        format!(
            "[listener.web]\nbind = {bind}\ntls = \"public\"\ntimeouts.handshake = \"60s\"\n\
             [backend.app]\nservers = [{}]\n\
             [[route]]\nbackend = \"app\"\n",
            servers.join(", ")
        )
    }

    /// A program that runs where clients are.
    pub fn client_command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.network.client().command(program)
    }

    /// A program that runs where the router is.
    pub fn router_command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.network.router().command(program)
    }
}

fn folder(scratch: &Scratch, name: &str) -> PathBuf {
    let folder = scratch.join(name);
    std::fs::create_dir_all(&folder).expect("a folder in a temporary folder");
    folder
}

fn need_programs(options: &Options) -> Result<(), Skip> {
    if !geteuid().is_root() {
        return Err(Skip("network namespaces take root".to_owned()));
    }
    let mut programs = vec!["ip", "tc", "nsenter"];
    programs.extend(options.bird.then_some("bird"));
    programs.extend((options.etcd_members > 0).then_some(["etcd", "etcdctl"]).into_iter().flatten());
    match programs.iter().find(|program| path(program).is_none()) {
        Some(missing) => Err(Skip(format!("{missing} is not installed: scripts/setup.sh test"))),
        None => Ok(()),
    }
}

//! A router and an engine's machine with real BIRD, by the configurations that this crate prints.
#![allow(dead_code, reason = "each file of stories uses a part")]

use std::net::Ipv4Addr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use propylon_announce::birdconf::{self, EngineSide, Neighbor, RouterSide};
use propylon_announce::{Announcer, Bird, ProtocolName, Settings};

use super::{Namespace, Running, Scratch, bird, can_run, holds};

pub const V4: &str = "192.0.2.1";
pub const V6: &str = "2001:db8::1";
pub const REPLY_WAIT: Duration = Duration::from_secs(5);

/// A router and an engine's machine, each with its BIRD, and their session up.
pub struct Pair {
    pub router: Namespace,
    pub engine: Namespace,
    pub scratch: Scratch,
    pub settings: Settings,
    _router_bird: Running,
    pub engine_bird: Running,
    _alone: MutexGuard<'static, ()>,
}

/// One story at a time: with many on few cores BFD finds everybody dead within its 150 ms.
static ALONE: Mutex<()> = Mutex::new(());

impl Pair {
    pub fn start() -> Option<Pair> {
        if !can_run(&["ip", "bird"]) {
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (router, engine) = Namespace::pair();
        let scratch = Scratch::new();
        let virtual_addresses = vec![V4.parse().unwrap(), V6.parse().unwrap()];
        let neighbors = |number: u32| {
            let addresses = [format!("10.77.0.{number}"), format!("fd77::{number}")];
            addresses.map(|it| Neighbor { address: it.parse().unwrap(), autonomous_system: 65000 + number }).to_vec()
        };
        let router_side = RouterSide {
            router_id: Ipv4Addr::new(10, 77, 0, 1),
            virtual_addresses: virtual_addresses.clone(),
            autonomous_system: 65001,
            engines: neighbors(2),
        };
        let engine_side = EngineSide {
            router_id: Ipv4Addr::new(10, 77, 0, 2),
            virtual_addresses,
            autonomous_system: 65002,
            routers: neighbors(1),
        };
        scratch.write("router.conf", &birdconf::router(&router_side).unwrap());
        scratch.write("engine.conf", &birdconf::engine(&engine_side).unwrap());
        let router_bird = bird(&router, &scratch, "router");
        let engine_bird = bird(&engine, &scratch, "engine");
        let protocols = [birdconf::PROTOCOL_V4, birdconf::PROTOCOL_V6].map(name).to_vec();
        let settings = Settings { socket: scratch.path("engine.ctl"), protocols };
        let pair = Pair { router, engine, scratch, settings, _router_bird: router_bird, engine_bird, _alone: alone };
        pair.established();
        Some(pair)
    }

    pub fn established(&self) {
        holds("both sessions are up, and BFD with them", || {
            let Ok(mut bird) = Bird::connect(&self.settings.socket, REPLY_WAIT) else { return false };
            let protocols = bird.protocols().unwrap_or_default();
            let sessions = bird.bfd_sessions().unwrap_or_default();
            protocols.iter().filter(|protocol| protocol.is_established()).count() == 2
                && sessions.iter().filter(|session| session.is_up()).count() == 2
        });
    }

    pub fn bird(&self) -> Bird {
        Bird::connect(&self.settings.socket, REPLY_WAIT).unwrap()
    }

    pub fn announcer(&self) -> Announcer {
        Announcer::start(self.settings.clone()).unwrap()
    }

    #[track_caller]
    pub fn announced(&self) -> Duration {
        holds("the router's kernel has both routes", || self.router.has_route(V4) && self.router.has_route(V6))
    }

    #[track_caller]
    pub fn gone(&self) -> Duration {
        holds("the router's kernel has neither route", || !self.router.has_route(V4) && !self.router.has_route(V6))
    }
}

pub fn name(name: &str) -> ProtocolName {
    ProtocolName::parse(name).unwrap()
}

//! Virtual addresses of this engine: announced by BIRD while it can serve, withdrawn first when it drains, and when it
//! dies. This file decides; the guardian, outside of the sandbox, speaks to BIRD.

pub mod guardian;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use propylon_announce::{BackendFacts, Decider, Facts, Holds};
use propylon_cluster::Standing;
use propylon_config::Announce;
use propylon_proxy::snapshot::Snapshot;
use serde_json::Value;
use tokio::time::sleep;

use crate::cluster::readiness;
use crate::health::Health;
use guardian::Guardian;

/// An engine that has not heard of etcd after this announces all the same.
const ETCD_WAIT: Duration = Duration::from_secs(5);
/// Longest time for which a drain waits until BIRD has withdrawn, and the interval at which it looks.
const WITHDRAW_WAIT: Duration = Duration::from_secs(2);
const WITHDRAW_LOOK: Duration = Duration::from_millis(2);

/// Announces and withdraws for this engine.
pub struct Announcing {
    guardian: Rc<Guardian>,
    decider: RefCell<Decider>,
    min_servers_percent: u8,
    began: Instant,
    /// The last decision.
    is_announced: Cell<bool>,
    reason: RefCell<String>,
}

impl Announcing {
    /// Nothing is announced yet; in an upgrade the addresses are announced already.
    pub fn new(announce: &Announce, guardian: Rc<Guardian>, is_upgrade: bool) -> Announcing {
        let holds = Holds { withdraw: announce.hold, announce: announce.hold_up };
        Announcing {
            guardian,
            decider: RefCell::new(Decider::new(holds, is_upgrade)),
            min_servers_percent: announce.min_servers_percent,
            began: Instant::now(),
            is_announced: Cell::new(is_upgrade),
            reason: RefCell::default(),
        }
    }

    /// Decides anew. Returns whether others may rely on this engine.
    pub fn look(&self, snapshot: &Snapshot, health: &Health, standing: Option<&Standing>) -> bool {
        // Packets for an engine that others' tables do not have would be lost. Without etcd nobody's table changes, and
        // the kernel goes by the one it had.
        let may_be_listed = self.began.elapsed() < ETCD_WAIT;
        let is_unlisted = |standing: &Standing| {
            (standing.is_listed == Some(false) || standing.is_behind) && (standing.is_connected || may_be_listed)
        };
        if !self.is_announced.get() && standing.is_some_and(is_unlisted) {
            let why = "the flow table does not have this engine yet, or it has not caught up with the cluster";
            self.reason.replace(why.to_owned());
            return false;
        }
        let backends = readiness::backends(snapshot, health).into_iter().map(|backend| BackendFacts {
            needed: needed(backend.total, self.min_servers_percent),
            name: backend.name,
            up: backend.up,
            total: backend.total,
        });
        let facts = Facts {
            is_draining: standing.is_some_and(|standing| standing.is_draining),
            listeners_open: snapshot.sockets.len(),
            listeners_wanted: snapshot.sockets.len().max(1),
            profiles: snapshot.profiles.len(),
            profiles_without: readiness::without_certificates(snapshot),
            backends: backends.collect(),
            others_ready: standing.and_then(|standing| standing.others_ready),
        };
        let decision = self.decider.borrow_mut().decide(&facts, self.began.elapsed());
        let was = self.is_announced.replace(decision.is_announced);
        if was != decision.is_announced {
            let what = if decision.is_announced { "announces" } else { "withdraws" };
            log::info!("announce: this engine {what} its addresses: {}", decision.reason);
        }
        self.guardian.order(decision.is_announced, &decision.reason);
        self.reason.replace(decision.reason);
        decision.is_ready
    }

    /// Waits until nothing is announced any more, for a limited time.
    pub async fn withdraw(&self) {
        self.is_announced.set(false);
        self.guardian.order(false, "this engine drains");
        let until = Instant::now() + WITHDRAW_WAIT;
        while Instant::now() < until {
            if self.guardian.is_withdrawn() {
                return log::info!("announce: withdrawn; the drain begins");
            }
            sleep(WITHDRAW_LOOK).await;
        }
        log::warn!("announce: the drain begins, though BIRD has not confirmed that routers send nobody any more");
    }

    /// Whether routers have this engine's addresses, by what BIRD says.
    pub fn is_announced(&self) -> bool {
        self.guardian.status()["announced"] == true
    }

    /// For the admin address.
    pub fn to_json(&self) -> Value {
        let mut status = self.guardian.status();
        status["wanted"] = self.is_announced.get().into();
        status["reason"] = self.reason.borrow().clone().into();
        status
    }
}

/// Servers that a backend needs.
fn needed(total: usize, percent: u8) -> usize {
    match percent {
        0 => 0,
        percent => (total * usize::from(percent)).div_ceil(100).max(1).min(total),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_server_at_least_is_needed_unless_servers_are_not_looked_at() {
        assert_eq!((needed(10, 0), needed(10, 1), needed(10, 50), needed(3, 34), needed(0, 50)), (0, 1, 5, 2, 0));
    }
}

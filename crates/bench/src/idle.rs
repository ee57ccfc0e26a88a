//! Connections that are opened, carry one request each, and lie idle.

use std::time::Duration;

use crate::client_group::phase::LoadPhase;
use crate::client_group::{ClientBehaviour, ClientGroup, RequestPattern};
use crate::failure::Outcome;
use crate::interrupt::Interrupt;
use crate::link::Request;
use crate::target::Target;

/// Clients that connect at once; below every common accept backlog.
pub const OPENING_MAX: usize = 128;
/// A connection that takes longer than this to be opened is not waited for.
pub const OPENING_TIMEOUT: Duration = Duration::from_secs(300);

/// Idle connections of this process.
pub struct IdleConnections<'t> {
    group: ClientGroup<'t>,
    pub opening: LoadPhase,
}

impl<'t> IdleConnections<'t> {
    /// Opens them, one request on each.
    pub fn open(
        target: &'t Target,
        count: usize,
        path: &str,
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> Outcome<Self> {
        let request = Request::new("GET", path, &target.name, "", 0);
        let behaviour = ClientBehaviour {
            pattern: RequestPattern::Once,
            request,
            timeout,
            opening_max: OPENING_MAX,
            arrivals_max: None,
        };
        let mut group = ClientGroup::new(target, behaviour, 1, interrupt)?;
        let opening = group.grow(count, OPENING_TIMEOUT, |_| {})?;
        Ok(Self { group, opening })
    }

    /// Keeps them for a while, and notices those that the server closes. Returns how many are open after it.
    pub fn hold(&mut self, duration: Duration) -> Outcome<usize> {
        Ok(self.group.hold(duration)?.clients.served)
    }
}

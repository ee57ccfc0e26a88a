//! Connections that are opened, carry one request each, and lie idle.

use std::time::Duration;

use crate::crowd::stretch::Stretch;
use crate::crowd::{Conduct, Crowd, Rhythm};
use crate::failure::Outcome;
use crate::interrupt::Interrupt;
use crate::link::Request;
use crate::target::Target;

/// Clients at the door at once; below every common accept backlog.
pub const OPENING_MAX: usize = 128;
/// A connection that takes longer than this to be opened is not waited for.
pub const OPENING_PATIENCE: Duration = Duration::from_secs(300);

/// Idle connections of this process.
pub struct IdleConnections<'t> {
    crowd: Crowd<'t>,
    pub opening: Stretch,
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
        let conduct = Conduct { rhythm: Rhythm::Once, request, timeout, opening_max: OPENING_MAX, arrivals_max: None };
        let mut crowd = Crowd::new(target, conduct, 1, interrupt)?;
        let opening = crowd.grow(count, OPENING_PATIENCE, |_| {})?;
        Ok(Self { crowd, opening })
    }

    /// Keeps them for a while, and notices those that the server closes. Returns how many are open after it.
    pub fn hold(&mut self, duration: Duration) -> Outcome<usize> {
        Ok(self.crowd.hold(duration)?.census.served)
    }
}

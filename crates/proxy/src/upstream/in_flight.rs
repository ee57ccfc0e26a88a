//! Requests in flight at a server, as the balancer and the metrics count them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use propylon_policy::balance::{Balancer, Verdict};

use super::backend::Backend;
use super::balance::is_failure;

/// A request's time at a server, until it is dropped.
pub struct InFlight {
    backend: Rc<Backend>,
    server: usize,
    /// Milliseconds on the core's clock.
    began: u64,
    /// Since when an answer is owed, if it is.
    sent: Cell<Option<u64>>,
}

impl InFlight {
    pub fn begin(backend: &Rc<Backend>, server: usize) -> InFlight {
        backend.state.balancer.borrow_mut().began(server);
        let services = &backend.services;
        services.metrics.raise(backend.server_metrics(server).in_flight);
        InFlight { began: services.timers.now(), backend: Rc::clone(backend), server, sent: Cell::new(None) }
    }

    /// The request has been sent whole.
    pub fn sent(&self) {
        let now = self.now();
        if self.sent.replace(Some(now)).is_none() {
            self.balancer().borrow_mut().sent(self.server, now);
        }
    }

    /// The head of the answer is there, `micros` after the request was sent.
    pub fn answered(&self, status: u16, micros: u64) {
        let waits = self.backend.server_metrics(self.server).response_wait;
        self.backend.services.metrics.observe(waits, micros);
        self.note(if is_failure(status) { Verdict::Failure } else { Verdict::Success }, micros);
    }

    /// A connection is there, for bytes that are not understood: all that is known of the server's speed.
    pub fn connected(&self, micros: u64) {
        self.note(Verdict::Success, micros);
    }

    /// The server has not answered, and is to blame for it.
    pub fn failed(&self) {
        let millis = self.now().saturating_sub(self.sent.get().unwrap_or(self.began));
        self.note(Verdict::Failure, millis * 1_000);
    }

    /// The connection was closed while nobody looked: nobody is to blame, and the answer is not waited for.
    pub fn stale(&self) {
        if self.sent.take().is_some() {
            self.balancer().borrow_mut().settled(self.server, self.now());
        }
    }

    fn note(&self, verdict: Verdict, micros: u64) {
        let now = self.now();
        let mut balancer = self.balancer().borrow_mut();
        if self.sent.take().is_some() {
            balancer.settled(self.server, now);
        }
        balancer.answered(self.server, micros, verdict, now);
    }

    fn balancer(&self) -> &RefCell<Balancer> {
        &self.backend.state.balancer
    }

    fn now(&self) -> u64 {
        self.backend.services.timers.now()
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut balancer = self.balancer().borrow_mut();
        if let Some(sent) = self.sent.take() {
            let now = self.now();
            balancer.abandoned(self.server, now.saturating_sub(sent) * 1_000, now);
        }
        balancer.ended(self.server);
        self.backend.services.metrics.lower(self.backend.server_metrics(self.server).in_flight);
    }
}

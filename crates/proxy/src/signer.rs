//! Keys that are elsewhere: one core's connections to the key servers of one `[signer.NAME]`, and the handshakes that
//! wait for their signatures.
//!
//! `dispatch.rs` decides (who is asked, how long, who next) without clock and sockets, `channel.rs` speaks the protocol of
//! one connection, `link.rs` moves its bytes, `report.rs` tells of it. Nothing is shared with another core.

mod channel;
mod dispatch;
mod link;
mod places;
mod report;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use propylon_crypto::{Job, JobError, Outcome, Pending};
use propylon_metrics::Column;
use propylon_tls::{Link, LinkError};
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::sleep_until;

use crate::snapshot::SignerProfile;
use dispatch::{Dispatch, JobId, Settings};
pub use places::{Found, Places, start as start_resolver};
use report::Report;
pub use report::SignerMetrics;

/// One core's, for one `[signer.NAME]`.
pub struct Signer {
    dispatch: RefCell<Dispatch>,
    started: Instant,
    /// When the clock's task will look again, in microseconds; and how it is told that something falls due before.
    next_look: Cell<u64>,
    sooner: Notify,
    /// How soon anything can fall due that begins now, in microseconds.
    shortest_wait: u64,
    profile: Arc<SignerProfile>,
    /// It is out of the configuration, and nobody waits for it any more.
    is_ended: Cell<bool>,
    end: Notify,
    /// Where this core begins with a name's addresses.
    first_turn: usize,
    /// By server: which of its addresses have been looked at.
    generations: RefCell<Vec<u64>>,
}

/// Private-key work that was handed in: a future of what comes of it. Dropped, it takes its job back.
pub enum Work {
    Here(Pending),
    Elsewhere(Awaited),
}

/// A job at a signer.
pub struct Awaited {
    signer: Rc<Signer>,
    id: JobId,
}

impl Signer {
    pub fn new(
        profile: &Arc<SignerProfile>,
        column: Column,
        metrics: &Arc<SignerMetrics>,
        jobs_max: usize,
        seed: u64,
    ) -> Rc<Signer> {
        let SignerProfile { config, labels, .. } = &**profile;
        let settings = Settings {
            servers: labels.len(),
            connections: config.connections.into(),
            jobs_max,
            timeout: config.timeout.as_micros() as u64,
            hedge: config.hedge.map(|hedge| hedge.as_micros() as u64),
            verify: config.verify,
        };
        let report = Report::new(column, Arc::clone(metrics), &config.name, labels.to_vec());
        Rc::new(Signer {
            shortest_wait: settings.hedge.unwrap_or(settings.timeout),
            dispatch: RefCell::new(Dispatch::new(settings, report, seed)),
            started: Instant::now(),
            next_look: Cell::new(0),
            sooner: Notify::new(),
            profile: Arc::clone(profile),
            is_ended: Cell::new(false),
            end: Notify::new(),
            first_turn: seed as usize % 1024,
            generations: RefCell::new(vec![0; labels.len()]),
        })
    }

    fn profile(&self) -> &SignerProfile {
        &self.profile
    }

    /// Ends its tasks, and with them its connections.
    pub fn end(&self) {
        self.is_ended.set(true);
        self.end.notify_waiters();
    }

    async fn ended(&self) {
        while !self.is_ended.get() {
            self.end.notified().await;
        }
    }

    /// Starts its tasks, on the core's own thread.
    pub fn start(self: &Rc<Signer>) {
        let SignerProfile { config, labels, .. } = self.profile();
        for at in 0..usize::from(config.connections) * labels.len() {
            spawn_local(link::keep(Rc::clone(self), at));
        }
        spawn_local(Rc::clone(self).keep_time());
    }

    /// Hands a job in that is for a remote key; others are refused.
    pub fn submit(self: &Rc<Signer>, job: Job) -> Work {
        let Job::Remote { key, scheme, input } = job else {
            return Work::Here(Pending::answered(Err(JobError::Refused)));
        };
        match self.with(|dispatch, now| dispatch.submit(key, scheme, input, now)) {
            Ok(id) => {
                if self.now() + self.shortest_wait < self.next_look.get() {
                    self.sooner.notify_one();
                }
                Work::Elsewhere(Awaited { signer: Rc::clone(self), id })
            }
            Err(error) => Work::Here(Pending::answered(Err(error))),
        }
    }

    /// Where time passes for the jobs.
    async fn keep_time(self: Rc<Signer>) {
        loop {
            self.leave_old_addresses();
            let next = self.with(|dispatch, now| dispatch.advance(now));
            self.next_look.set(next);
            tokio::select! {
                () = sleep_until((self.started + Duration::from_micros(next)).into()) => {}
                () = self.sooner.notified() => {}
                () = self.ended() => return,
            }
        }
    }

    /// Connections to where a server's name does not lead any more are to end.
    fn leave_old_addresses(&self) {
        let places = &self.profile().places;
        for (server, seen) in self.generations.borrow_mut().iter_mut().enumerate() {
            let generation = places.generation(server);
            if *seen != generation {
                *seen = generation;
                self.with(|dispatch, _| dispatch.leave(server, |address| !places.is_current(server, address)));
            }
        }
    }

    /// Microseconds since the core started.
    fn now(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Wakers are woken when nothing is borrowed: whoever they wake may come back here.
    fn with<T>(&self, call: impl FnOnce(&mut Dispatch, u64) -> T) -> T {
        let now = self.now();
        let mut dispatch = self.dispatch.borrow_mut();
        dispatch.report.at(now / 1000);
        let result = call(&mut dispatch, now);
        let wakers = dispatch.take_wakers();
        drop(dispatch);
        wakers.into_iter().for_each(std::task::Waker::wake);
        result
    }

    /// The server that a connection leads to.
    fn server_of(&self, at: usize) -> usize {
        at / usize::from(self.profile().config.connections)
    }

    /// For a connection that has failed so often: each starts at another of the server's addresses, and goes on to the next.
    fn address(&self, at: usize, failures: usize) -> Option<SocketAddr> {
        self.profile().places.address(self.server_of(at), self.first_turn.wrapping_add(at).wrapping_add(failures))
    }

    /// The server may be elsewhere by now.
    fn doubt(&self, at: usize) {
        self.profile().places.doubt(self.server_of(at));
    }

    fn link(&self, server: usize) -> Result<Link, LinkError> {
        self.profile().link.load().link(server)
    }

    /// Uniform in 0..1.
    fn chance(&self) -> f64 {
        self.with(|dispatch, _| dispatch.chance())
    }
}

impl Future for Work {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        match &mut *self {
            Work::Here(pending) => Pin::new(pending).poll(context),
            Work::Elsewhere(awaited) => awaited.poll(context),
        }
    }
}

impl Awaited {
    fn poll(&self, context: &mut Context<'_>) -> Poll<Outcome> {
        match self.signer.with(|dispatch, _| dispatch.poll(self.id, context.waker())) {
            Ok(outcome) => Poll::Ready(outcome),
            // The waker that was there before is dropped here, where nothing is borrowed: it may be a task's last hold.
            Err(_replaced) => Poll::Pending,
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let released = self.signer.with(|dispatch, _| dispatch.release(self.id));
        drop(released);
    }
}

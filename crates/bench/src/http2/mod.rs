//! The load loop over HTTP/2: many streams on few connections, with the clock, the stats and the errors of `load`.
//!
//! One thread. Each stream is a task that asks, reads to the end, and asks again; `shared` is what all of them
//! know, `connection` what some of them share, `wire` what that is made of.

pub mod connection;
mod shared;
#[cfg(test)]
mod tests;
pub mod wire;

use crate::cpu;
use crate::failure::{Outcome, While};
use crate::interrupt::Interrupt;
use crate::link::Broken;
use crate::load::{Arrivals, CONNECT_RETRY_WAIT, Measured, Until};
use crate::stats::{ErrorKind, LoadStats};
use crate::target::Target;
use connection::H2Connection;
pub use shared::Request;
use shared::Shared;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::LocalSet;

/// The plan of a load loop over HTTP/2.
pub struct Plan {
    pub connections: usize,
    /// Requests in progress at once on each connection; a server's lower limit makes some of them wait.
    pub streams: usize,
    pub request: Request,
    /// For one request, its wait for a stream included.
    pub timeout: Duration,
    /// Arrivals per second whether or not earlier ones were answered; absent: each answer brings the next request.
    pub rate: Option<f64>,
}

/// Connections and their state outlive a run: the first run may be a warm-up of the second.
pub struct Load {
    // The tasks go before the runtime that their sockets belong to.
    tasks: LocalSet,
    runtime: Runtime,
    shared: Rc<Shared>,
}

impl Load {
    /// `target` offers HTTP/2 already.
    pub fn new(target: Target, plan: Plan) -> Outcome<Self> {
        crate::machine::require_open_files(plan.connections)?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().when("starting the runtime")?;
        let shared = Rc::new(Shared {
            target,
            request: plan.request,
            timeout: plan.timeout,
            stats: RefCell::new(LoadStats::new()),
            allowed: Cell::new(0),
            goal: Cell::new(0),
            arrivals: RefCell::new(plan.rate.map(Arrivals::new)),
            asked: vec![Cell::new(None); plan.connections * plan.streams],
            more: Notify::new(),
            over: Notify::new(),
        });
        let tasks = LocalSet::new();
        let connections: Vec<Rc<H2Connection>> =
            (0..plan.connections).map(|_| Rc::new(H2Connection::new(shared.clone()))).collect();
        // Neighbours in the queue for work are on different connections.
        for index in 0..shared.asked.len() {
            tasks.spawn_local(keep_asking(shared.clone(), connections[index % connections.len()].clone(), index));
        }
        Ok(Self { tasks, runtime, shared })
    }

    /// Loads the server until then and returns what came of it. `label` is shown once a second on stderr.
    pub fn run(&mut self, until: Until, label: &str, interrupt: &Interrupt) -> Outcome<Measured> {
        let begin = Instant::now();
        let cpu_before = cpu::this_thread();
        self.shared.begin(until, begin);
        self.tasks.block_on(&self.runtime, self.shared.watch(until, begin, label, interrupt))?;
        let mut stats = self.shared.stats.replace(LoadStats::new());
        stats.elapsed = begin.elapsed();
        if let Some(arrivals) = &mut *self.shared.arrivals.borrow_mut() {
            arrivals.charge_missed(until, begin, &mut stats);
        }
        self.shared.charge_unanswered(&mut stats);
        let load_busy = (cpu::this_thread() - cpu_before).as_secs_f64() / stats.elapsed.as_secs_f64().max(1e-9);
        Ok(Measured { stats, load_busy })
    }
}

/// One stream after another on a connection.
async fn keep_asking(shared: Rc<Shared>, connection: Rc<H2Connection>, index: usize) {
    loop {
        let due = shared.due().await;
        shared.asked[index].set(Some(due));
        let result = match tokio::time::timeout_at((due + shared.timeout).into(), connection.ask()).await {
            Ok(result) => result,
            Err(_) => {
                let detail = format!("no complete response within {:?}", shared.timeout);
                Err(Broken::new(ErrorKind::Timeout, detail))
            }
        };
        shared.asked[index].set(None);
        let rests = matches!(&result, Err(broken) if broken.kind == ErrorKind::Connect);
        shared.record(due, result);
        if rests {
            tokio::time::sleep(CONNECT_RETRY_WAIT).await;
        }
    }
}

//! The load loop over HTTP/2: many streams on few connections, with the clock, the tally and the errors of `load`.
//!
//! One thread. Each stream is a task that asks, reads to the end, and asks again; `lane` is the connection it shares
//! with others, `wire` what that is made of.

mod lane;
#[cfg(test)]
mod tests;
pub mod wire;

use crate::cpu;
use crate::failure::{Failure, Outcome, While};
use crate::interrupt::{Interrupt, LOOK_INTERVAL};
use crate::link::Broken;
use crate::load::{Arrivals, CONNECT_RETRY_WAIT, Measured, Until};
use crate::report::{Pace, progress};
use crate::tally::{ErrorKind, Tally};
use crate::target::Target;
use bytes::Bytes;
use lane::{Answer, Lane};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::LocalSet;

/// A timer of the runtime may be late by this much; an arrival that is nearer is awaited by looking again and again.
const TIMER_GRAIN: Duration = Duration::from_micros(1500);

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

#[derive(Clone)]
pub struct Request {
    head: http::Request<()>,
    body: Bytes,
}

/// Connections and their state outlive a run: the first run may be a warm-up of the second.
pub struct Load {
    // The tasks go before the runtime that their sockets belong to.
    tasks: LocalSet,
    runtime: Runtime,
    shared: Rc<Shared>,
}

/// State that the tasks share.
struct Shared {
    target: Target,
    request: Request,
    timeout: Duration,
    tally: RefCell<Tally>,
    /// Requests that may still be started in this run.
    allowed: Cell<u64>,
    /// So many requests end the run.
    goal: Cell<u64>,
    arrivals: RefCell<Option<Arrivals>>,
    /// Time at which each task's request was due, if one is in progress.
    asked: Vec<Cell<Option<Instant>>>,
    /// A request may be started.
    more: Notify,
    over: Notify,
}

impl Request {
    /// `headers` are lines, "Name: value".
    pub fn new(method: &str, path: &str, target: &Target, headers: &[String], body_bytes: usize) -> Outcome<Self> {
        let uri = format!("{}://{}{path}", target.scheme(), target.name);
        let mut head = http::Request::builder().method(method).uri(uri);
        for line in headers {
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| Failure::new(format!("--header \"{line}\": it takes the form \"Name: value\"")))?;
            // HTTP/2 wants lower case (RFC 9113 §8.2).
            head = head.header(name.trim().to_ascii_lowercase(), value.trim());
        }
        if body_bytes > 0 {
            head = head.header(http::header::CONTENT_LENGTH, body_bytes);
        }
        let head = head.body(()).when(format_args!("{method} {path}"))?;
        Ok(Self { head, body: vec![b'x'; body_bytes].into() })
    }
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
            tally: RefCell::new(Tally::new()),
            allowed: Cell::new(0),
            goal: Cell::new(0),
            arrivals: RefCell::new(plan.rate.map(Arrivals::new)),
            asked: vec![Cell::new(None); plan.connections * plan.streams],
            more: Notify::new(),
            over: Notify::new(),
        });
        let tasks = LocalSet::new();
        let lanes: Vec<Rc<Lane>> = (0..plan.connections).map(|_| Rc::new(Lane::new(shared.clone()))).collect();
        // Neighbours in the queue for work are on different connections.
        for index in 0..shared.asked.len() {
            tasks.spawn_local(keep_asking(shared.clone(), lanes[index % lanes.len()].clone(), index));
        }
        Ok(Self { tasks, runtime, shared })
    }

    /// Loads the server until then and returns what came of it. `label` is told once a second on stderr.
    pub fn run(&mut self, until: Until, label: &str, interrupt: &Interrupt) -> Outcome<Measured> {
        let begin = Instant::now();
        let cpu_before = cpu::this_thread();
        self.shared.begin(until, begin);
        self.tasks.block_on(&self.runtime, self.shared.watch(until, begin, label, interrupt))?;
        let mut tally = self.shared.tally.replace(Tally::new());
        tally.elapsed = begin.elapsed();
        if let Some(arrivals) = &mut *self.shared.arrivals.borrow_mut() {
            arrivals.charge_missed(until, begin, &mut tally);
        }
        self.shared.charge_unanswered(&mut tally);
        let load_busy = (cpu::this_thread() - cpu_before).as_secs_f64() / tally.elapsed.as_secs_f64().max(1e-9);
        Ok(Measured { tally, load_busy })
    }
}

impl Shared {
    fn begin(&self, until: Until, now: Instant) {
        self.tally.replace(Tally::new());
        let count = match until {
            Until::Finished(count) => count,
            Until::Elapsed(_) => u64::MAX,
        };
        self.allowed.set(count);
        self.goal.set(count);
        if let Some(arrivals) = &mut *self.arrivals.borrow_mut() {
            arrivals.begin(now);
        }
        self.more.notify_waiters();
    }

    /// Lets requests arrive, and comes back when the run is over.
    async fn watch(&self, until: Until, begin: Instant, label: &str, interrupt: &Interrupt) -> Outcome<()> {
        let mut pace = Pace::started();
        let mut look_due = begin + LOOK_INTERVAL;
        loop {
            let now = Instant::now();
            let mut wait = look_due.saturating_duration_since(now);
            if let Until::Elapsed(duration) = until {
                if now >= begin + duration {
                    return Ok(());
                }
                wait = wait.min(begin + duration - now);
            }
            if self.tally.borrow().finished() >= self.goal.get() {
                return Ok(());
            }
            if let Some(next) = self.let_arrive(now) {
                wait = wait.min(next.saturating_duration_since(now));
            }
            if wait < TIMER_GRAIN {
                tokio::task::yield_now().await;
            } else {
                let _ = tokio::time::timeout(wait - Duration::from_millis(1), self.over.notified()).await;
            }
            if now >= look_due {
                look_due = now + LOOK_INTERVAL;
                interrupt.check()?;
                if !label.is_empty() && pace.is_due(now) {
                    let tally = self.tally.borrow();
                    let (done, errors) = (tally.done, tally.errors_total());
                    let seconds = (now - begin).as_secs_f64();
                    progress(format_args!("{label}: {seconds:.0} s, {done} done, {errors} errors"));
                }
            }
        }
    }

    /// Hands arrivals that are due to tasks that are free; returns when the next is due.
    fn let_arrive(&self, now: Instant) -> Option<Instant> {
        let mut arrivals = self.arrivals.borrow_mut();
        let arrivals = arrivals.as_mut()?;
        let mut allowed = self.allowed.get();
        let arrived = arrivals.let_arrive(now, &mut allowed, &mut self.tally.borrow_mut());
        self.allowed.set(allowed);
        (0..arrived).for_each(|_| self.more.notify_one());
        (allowed > 0).then_some(arrivals.next)
    }

    /// Waits until a request may be started, and returns when it was due.
    async fn due(&self) -> Instant {
        loop {
            let due = match &mut *self.arrivals.borrow_mut() {
                Some(arrivals) => arrivals.backlog.pop_front(),
                None if self.allowed.get() > 0 => {
                    self.allowed.set(self.allowed.get() - 1);
                    Some(Instant::now())
                }
                None => None,
            };
            match due {
                Some(due) => return due,
                None => self.more.notified().await,
            }
        }
    }

    fn record(&self, due: Instant, result: Result<Answer, Broken>) {
        let mut tally = self.tally.borrow_mut();
        match result {
            Ok(answer) if !(200..400).contains(&answer.status) => {
                tally.record_error(ErrorKind::BadStatus, || format!("status {}", answer.status));
            }
            Ok(answer) => {
                tally.done += 1;
                tally.body_bytes += answer.body_bytes;
                tally.record_latency(due.elapsed());
            }
            Err(broken) => tally.record_error(broken.kind, || broken.detail),
        }
        if tally.finished() >= self.goal.get() {
            self.over.notify_one();
        }
    }

    /// An open-loop run ends with some arrivals unanswered; a stalled server must not look fast for it.
    fn charge_unanswered(&self, tally: &mut Tally) {
        if let Some(arrivals) = &*self.arrivals.borrow() {
            let now = Instant::now();
            for due in self.asked.iter().filter_map(Cell::get).chain(arrivals.backlog.iter().copied()) {
                tally.unanswered += 1;
                tally.record_latency(now.saturating_duration_since(due));
            }
        }
    }
}

/// One stream after another on a lane.
async fn keep_asking(shared: Rc<Shared>, lane: Rc<Lane>, index: usize) {
    loop {
        let due = shared.due().await;
        shared.asked[index].set(Some(due));
        let result = match tokio::time::timeout_at((due + shared.timeout).into(), lane.ask()).await {
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

//! State that the streams of a load share: the request, the arrivals, and the counts of what came of them.

use crate::failure::{Failure, Outcome, While};
use crate::interrupt::{Interrupt, LOOK_INTERVAL};
use crate::link::Broken;
use crate::load::{Arrivals, Until};
use crate::report::{Pace, progress};
use crate::stats::{ErrorKind, LoadStats};
use crate::target::Target;
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// A timer of the runtime may be late by this much; an arrival that is nearer is awaited by looking again and again.
const TIMER_GRAIN: Duration = Duration::from_micros(1500);

#[derive(Clone)]
pub struct Request {
    pub head: http::Request<()>,
    pub body: Bytes,
}

/// A complete response.
pub struct Answer {
    pub status: u16,
    pub body_bytes: u64,
}

/// State that the tasks share.
pub struct Shared {
    pub target: Target,
    pub request: Request,
    pub timeout: Duration,
    pub stats: RefCell<LoadStats>,
    /// Requests that may still be started in this run.
    pub allowed: Cell<u64>,
    /// So many requests end the run.
    pub goal: Cell<u64>,
    pub arrivals: RefCell<Option<Arrivals>>,
    /// Time at which each task's request was due, if one is in progress.
    pub asked: Vec<Cell<Option<Instant>>>,
    /// A request may be started.
    pub more: Notify,
    pub over: Notify,
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

impl Shared {
    pub fn begin(&self, until: Until, now: Instant) {
        self.stats.replace(LoadStats::new());
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
    pub async fn watch(&self, until: Until, begin: Instant, label: &str, interrupt: &Interrupt) -> Outcome<()> {
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
            if self.stats.borrow().finished() >= self.goal.get() {
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
                    let stats = self.stats.borrow();
                    let (done, errors) = (stats.done, stats.errors_total());
                    let seconds = (now - begin).as_secs_f64();
                    progress(format_args!("{label}: {seconds:.0} s, {done} done, {errors} errors"));
                }
            }
        }
    }

    /// Hands arrivals that are due to tasks that are free; returns when the next is due.
    pub fn let_arrive(&self, now: Instant) -> Option<Instant> {
        let mut arrivals = self.arrivals.borrow_mut();
        let arrivals = arrivals.as_mut()?;
        let mut allowed = self.allowed.get();
        let arrived = arrivals.let_arrive(now, &mut allowed, &mut self.stats.borrow_mut());
        self.allowed.set(allowed);
        (0..arrived).for_each(|_| self.more.notify_one());
        (allowed > 0).then_some(arrivals.next)
    }

    /// Waits until a request may be started, and returns when it was due.
    pub async fn due(&self) -> Instant {
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

    pub fn record(&self, due: Instant, result: Result<Answer, Broken>) {
        let mut stats = self.stats.borrow_mut();
        match result {
            Ok(answer) if !(200..400).contains(&answer.status) => {
                stats.record_error(ErrorKind::BadStatus, || format!("status {}", answer.status));
            }
            Ok(answer) => {
                stats.done += 1;
                stats.body_bytes += answer.body_bytes;
                stats.record_latency(due.elapsed());
            }
            Err(broken) => stats.record_error(broken.kind, || broken.detail),
        }
        if stats.finished() >= self.goal.get() {
            self.over.notify_one();
        }
    }

    /// An open-loop run ends with some arrivals unanswered; a stalled server must not look fast for it.
    pub fn charge_unanswered(&self, stats: &mut LoadStats) {
        if let Some(arrivals) = &*self.arrivals.borrow() {
            let now = Instant::now();
            for due in self.asked.iter().filter_map(Cell::get).chain(arrivals.backlog.iter().copied()) {
                stats.unanswered += 1;
                stats.record_latency(now.saturating_duration_since(due));
            }
        }
    }
}

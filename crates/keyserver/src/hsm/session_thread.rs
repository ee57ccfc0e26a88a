//! A thread with a session at a token: it does one operation after the other, and logs in again when the session is
//! lost.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use propylon_crypto::Job;
use propylon_crypto::keyless::ErrorCode;
use propylon_metrics::Column;

use super::operation::{self, Failure};
use super::queue::Next;
use super::token::{Open, Token, TokenError};
use crate::task::{Signature, Task};
use crate::telemetry::{TokenMetrics, TokenOutcome, micros};

/// The pause before another session is tried, then twice as long each time, up to a limit.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

pub struct SessionThread {
    token: Arc<Token>,
    index: usize,
    metrics: &'static TokenMetrics,
    column: Column,
    open: Option<Open>,
    /// Another session is not tried before.
    retry_at: Instant,
    pause: Duration,
}

impl SessionThread {
    pub fn new(token: Arc<Token>, index: usize, metrics: &'static TokenMetrics, column: Column) -> SessionThread {
        SessionThread { token, index, metrics, column, open: None, retry_at: Instant::now(), pause: PAUSE_MIN }
    }

    /// Runs until the process ends. A panic ends the process: without its thread, a queue would keep its tasks until
    /// they time out.
    pub fn work_or_die(self, ready: &Barrier) {
        let name = self.token.name.clone();
        if catch_unwind(AssertUnwindSafe(|| self.work(ready))).is_err() {
            log::error!(
                "a thread for token \"{name}\" has failed by a bug in Propylon: please report it; the process ends"
            );
            log::logger().flush();
            std::process::abort();
        }
    }

    fn work(mut self, ready: &Barrier) {
        self.open = self.token.take_first();
        match self.open {
            Some(_) => self.opened(),
            None => self.mend(),
        }
        ready.wait();
        loop {
            let wait_max = self.open.is_none().then(|| self.retry_at.saturating_duration_since(Instant::now()));
            match self.token.queue.next(self.index, wait_max) {
                Next::Task(task) => self.serve(*task),
                Next::Scan => self.scan(false),
                Next::Nothing => self.mend(),
            }
        }
    }

    fn serve(&mut self, task: Task) {
        self.column.lower(self.metrics.queue.waiting);
        let started = Instant::now();
        self.column.observe(self.metrics.queue.wait, micros(started.saturating_duration_since(task.since)));
        let result = if task.reply_to.is_closed() { Err(ErrorCode::Internal) } else { self.sign(&task.job) };
        self.column.observe(self.metrics.duration, micros(started.elapsed()));
        let outcome = match &result {
            Ok(_) => TokenOutcome::Signed,
            Err(ErrorCode::KeyNotFound) => TokenOutcome::NoKey,
            Err(ErrorCode::Cryptography) => TokenOutcome::Refused,
            Err(_) => TokenOutcome::Failed,
        };
        let in_time = self.token.queue.done(self.index, result);
        let outcome = if in_time { outcome } else { TokenOutcome::Late };
        self.column.increment(self.metrics.operations[outcome as usize]);
    }

    /// Signs; tries once more on a new session if the session was at fault, or after another scan if the key was.
    fn sign(&mut self, job: &Job) -> Result<Signature, ErrorCode> {
        let Job::Remote { key, scheme, input } = job else { return Err(ErrorCode::Internal) };
        let token = Arc::clone(&self.token);
        let _inside = token.module.calls();
        for is_last in [false, true] {
            let open = self.connected().ok_or(ErrorCode::Internal)?;
            let Some(handle) = open.handles.get(&key.ski).copied() else {
                // The list of keys that are served was made before this one was gone.
                if is_last {
                    return Err(ErrorCode::KeyNotFound);
                }
                self.scan_again(true);
                continue;
            };
            match operation::perform(&open.session, handle, key, *scheme, input) {
                Ok(signature) => return Ok(signature),
                Err(Failure::Request) => return Err(ErrorCode::Cryptography),
                Err(Failure::Wrong) => {
                    log::error!("token \"{}\" has returned what is not a signature by the key", self.token.name);
                    return Err(ErrorCode::Cryptography);
                }
                Err(Failure::Key) => self.scan_again(true),
                Err(Failure::Session(why)) => self.lost(&why),
            }
        }
        let open = self.open.as_ref().ok_or(ErrorCode::Internal)?;
        Err(if open.handles.contains_key(&key.ski) { ErrorCode::Internal } else { ErrorCode::KeyNotFound })
    }

    fn scan(&mut self, thorough: bool) {
        let token = Arc::clone(&self.token);
        let _inside = token.module.calls();
        self.scan_again(thorough);
    }

    /// Looks at the keys; the caller holds the module's calls already.
    fn scan_again(&mut self, thorough: bool) {
        let token = Arc::clone(&self.token);
        let Some(open) = self.connected() else { return };
        match token.scan(open, thorough) {
            Err(error) => self.lost(&error.to_string()),
            // A token that was taken away may look like an empty one.
            Ok(()) if open.handles.is_empty() => self.lost("the token has no keys any more"),
            Ok(()) => {}
        }
    }

    fn lost(&mut self, why: &str) {
        if let Some(open) = self.open.take() {
            log::warn!("token \"{}\": a session is lost: {why}", self.token.name);
            self.column.lower(self.metrics.sessions);
            open.close();
        }
        self.retry_at = Instant::now();
    }

    /// Tries to get a session; where that fails again, the module is started anew before it is next tried.
    fn mend(&mut self) {
        let has_failed_before = self.pause > PAUSE_MIN;
        let token = Arc::clone(&self.token);
        let inside = token.module.calls();
        if self.connected().is_some() {
            return;
        }
        drop(inside);
        // A refused PIN is not the module's fault.
        if has_failed_before
            && !token.is_pin_refused()
            && let Err(error) = token.module.start_anew()
        {
            log::debug!("token \"{}\": the module cannot be started anew: {error}", token.name);
        }
    }

    fn opened(&mut self) {
        self.pause = PAUSE_MIN;
        self.column.raise(self.metrics.sessions);
    }

    /// The session, or a new one if it is time to try.
    fn connected(&mut self) -> Option<&mut Open> {
        if self.open.as_ref().is_some_and(|open| open.life != self.token.module.life()) {
            // The session has ended with the module, and its number may be another's by now.
            self.open = None;
            self.column.lower(self.metrics.sessions);
        }
        if self.open.is_none() && Instant::now() >= self.retry_at {
            match self.token.connect() {
                Ok(open) => {
                    self.open = Some(open);
                    self.opened();
                }
                Err(error) => self.failed(&error),
            }
        }
        self.open.as_mut()
    }

    fn failed(&mut self, error: &TokenError) {
        self.column.increment(self.metrics.failures);
        // The first of a row is told; those that follow are only counted.
        if self.pause == PAUSE_MIN {
            log::error!("token \"{}\": no session: {error}; {}", self.token.name, error.fix());
        }
        self.retry_at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

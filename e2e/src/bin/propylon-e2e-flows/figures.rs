//! Figures of the generator, and the lines that tell them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Lines about single connections; more of them are counted only.
const EVENTS_MAX: u64 = 100_000;
/// Latencies are counted up to this many microseconds, in steps of one in a hundred.
const LATENCY_US_MAX: u64 = 120_000_000;
const DIGITS: u8 = 2;

pub struct Figures {
    started: Instant,
    inner: RefCell<Inner>,
}

struct Inner {
    counts: Counts,
    /// Since the last sample.
    recent: Histogram<u64>,
    since_mark: Histogram<u64>,
    all: Histogram<u64>,
    events: u64,
}

#[derive(Default)]
struct Counts {
    held: i64,
    /// Held connections by who answered last.
    engines: BTreeMap<String, u64>,
    broken: u64,
    ended: u64,
    requests: u64,
    refused: u64,
    new_ok: u64,
    new_failed: u64,
    full: u64,
    resumed: u64,
    offered: u64,
}

impl Figures {
    pub fn new() -> Figures {
        let histogram = || Histogram::new_with_max(LATENCY_US_MAX, DIGITS).expect("bounds that a histogram can have");
        let inner = Inner {
            counts: Counts::default(),
            recent: histogram(),
            since_mark: histogram(),
            all: histogram(),
            events: 0,
        };
        Figures { started: Instant::now(), inner: RefCell::new(inner) }
    }

    pub fn held(&self, by: i64) {
        self.inner.borrow_mut().counts.held += by;
    }

    /// A held connection's last answer is another engine's than the one before: its first, or it ends.
    pub fn moved(&self, from: Option<&str>, to: Option<&str>) {
        if from == to {
            return;
        }
        let engines = &mut self.inner.borrow_mut().counts.engines;
        if let Some(count) = from.and_then(|from| engines.get_mut(from)) {
            *count -= 1;
        }
        if let Some(to) = to {
            *engines.entry(to.to_owned()).or_default() += 1;
        }
    }

    pub fn answered(&self, latency: Duration, status: u16) {
        let inner = &mut *self.inner.borrow_mut();
        inner.counts.requests += 1;
        inner.counts.refused += u64::from(status != 200);
        let microseconds = latency.as_micros() as u64;
        inner.recent.saturating_record(microseconds);
        inner.since_mark.saturating_record(microseconds);
        inner.all.saturating_record(microseconds);
    }

    pub fn ended(&self) {
        self.inner.borrow_mut().counts.ended += 1;
    }

    pub fn broken(&self, engine: Option<&str>, how: &str, in_flight: bool) {
        self.inner.borrow_mut().counts.broken += 1;
        let at_us = self.at_us();
        self.say_event(&json!({"broken": {"at_us": at_us, "engine": engine, "how": how, "in_flight": in_flight}}));
    }

    /// A connection that could not be opened, or not be used even once.
    pub fn failed(&self, how: &str, is_held: bool) {
        self.inner.borrow_mut().counts.new_failed += u64::from(!is_held);
        self.say_event(&json!({"failed": {"at_us": self.at_us(), "how": how, "is_held": is_held}}));
    }

    pub fn new_ok(&self) {
        self.inner.borrow_mut().counts.new_ok += 1;
    }

    /// A handshake that was resumed or not, and had offered a ticket or not.
    pub fn shaken_hands(&self, is_resumed: bool, has_offered: bool) {
        let counts = &mut self.inner.borrow_mut().counts;
        counts.offered += u64::from(has_offered);
        match is_resumed {
            true => counts.resumed += 1,
            false => counts.full += 1,
        }
    }

    pub fn say_sample(&self) {
        let inner = &mut *self.inner.borrow_mut();
        say(&json!({"sample": inner.counts.tell(self.at_us(), &inner.recent)}));
        inner.recent.reset();
    }

    pub fn say_summary(&self) {
        let inner = &*self.inner.borrow();
        say(&json!({"summary": inner.counts.tell(self.at_us(), &inner.all)}));
    }

    pub fn say_mark(&self, name: &str) {
        let inner = &mut *self.inner.borrow_mut();
        say(&json!({"mark": {"name": name, "until_now": inner.counts.tell(self.at_us(), &inner.since_mark)}}));
        inner.since_mark.reset();
    }

    fn at_us(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    fn say_event(&self, event: &Value) {
        let inner = &mut *self.inner.borrow_mut();
        inner.events += 1;
        if inner.events <= EVENTS_MAX {
            say(event);
        }
    }
}

impl Counts {
    fn tell(&self, at_us: u64, latencies: &Histogram<u64>) -> Value {
        json!({
            "at_us": at_us,
            "held": self.held,
            "engines": self.engines,
            "broken": self.broken,
            "ended": self.ended,
            "requests": self.requests,
            "refused": self.refused,
            "new_ok": self.new_ok,
            "new_failed": self.new_failed,
            "full": self.full,
            "resumed": self.resumed,
            "offered": self.offered,
            "p50_us": latencies.value_at_quantile(0.5),
            "p99_us": latencies.value_at_quantile(0.99),
            "max_us": latencies.max(),
        })
    }
}

/// One line. Whoever no longer reads it has seen enough.
fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

//! The results of a stretch of load: answers, errors by kind, latencies.

mod portable;

pub use portable::PortableTally;

use crate::units::show_nanoseconds;
use hdrhistogram::Histogram;
use rustls::{CipherSuite, NamedGroup, ProtocolVersion};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Latencies above this are recorded as this.
const LATENCY_MAX: Duration = Duration::from_secs(3600);

/// The error that kept a request from its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// No TCP connection: refused, unreachable, no local port left.
    Connect,
    /// The handshake failed or a record was bad.
    Tls,
    /// The connection broke with an error.
    Reset,
    /// HTTP/2: the server gave up one stream (RST_STREAM), the connection lives on.
    StreamReset,
    /// HTTP/2: the server said GOAWAY and why, and this request was not answered.
    Goaway,
    /// The server closed the connection before the end of the response.
    Closed,
    /// No complete response within the time allowed.
    Timeout,
    /// A complete response with a status outside 200 to 399.
    BadStatus,
    /// Bytes that are no HTTP/1.1 response, no HTTP/2 frames, not what an echo should return, or too many of them.
    BadFraming,
    /// A full handshake where a resumed one was wanted.
    NotResumed,
}

impl ErrorKind {
    pub const ALL: [Self; 10] = [
        Self::Connect,
        Self::Tls,
        Self::Reset,
        Self::StreamReset,
        Self::Goaway,
        Self::Closed,
        Self::Timeout,
        Self::BadStatus,
        Self::BadFraming,
        Self::NotResumed,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Reset => "reset",
            Self::StreamReset => "stream-reset",
            Self::Goaway => "goaway",
            Self::Closed => "closed",
            Self::Timeout => "timeout",
            Self::BadStatus => "bad-status",
            Self::BadFraming => "bad-framing",
            Self::NotResumed => "not-resumed",
        }
    }
}

/// Body bytes by direction, seen from the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moved {
    pub down: u64,
    pub up: u64,
}

/// The parameters that a handshake agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    pub version: ProtocolVersion,
    pub suite: CipherSuite,
    /// Absent in a resumed handshake of TLS 1.2, which exchanges no key.
    pub group: Option<NamedGroup>,
}

impl Negotiated {
    pub fn of(session: &rustls::CommonState) -> Option<Self> {
        let version = session.protocol_version()?;
        let suite = session.negotiated_cipher_suite()?.suite();
        Some(Self { version, suite, group: session.negotiated_key_exchange_group().map(|group| group.name()) })
    }

    fn show(&self) -> String {
        let suite = self.suite.as_str().unwrap_or("unknown suite");
        let group = self.group.map_or("no key exchange", |group| group.as_str().unwrap_or("unknown group"));
        let version = if self.version == ProtocolVersion::TLSv1_3 { "TLS 1.3" } else { "TLS 1.2" };
        format!("{version} {suite} {group}")
    }
}

/// Grows while load runs. `done` counts good answers only; a bad one counts in `errors` and nowhere else.
pub struct Tally {
    pub done: u64,
    /// Body bytes of good answers.
    pub body_bytes: u64,
    /// Body bytes that moved while this tally ran, whole or not: of a body under way at either end, its part.
    pub moved: Moved,
    /// Good answers on a resumed TLS session.
    pub resumed: u64,
    /// New connections made, whatever became of them.
    pub connections: u64,
    /// Arrivals of an open-loop run that had no answer at its end; their age then is in `latency`.
    pub unanswered: u64,
    /// HTTP/2: requests sent once more on a new connection, since the server said that it would not look at them.
    pub asked_again: u64,
    /// Handshakes by what they agreed on.
    negotiated: Vec<(Negotiated, u64)>,
    errors: [u64; ErrorKind::ALL.len()],
    /// Errors that only one command's protocol knows, by their name there.
    named_errors: BTreeMap<&'static str, u64>,
    first_error: Option<String>,
    latency: Histogram<u64>,
    pub elapsed: Duration,
}

impl Tally {
    pub fn new() -> Self {
        Self {
            done: 0,
            body_bytes: 0,
            moved: Moved::default(),
            resumed: 0,
            connections: 0,
            unanswered: 0,
            asked_again: 0,
            negotiated: Vec::new(),
            errors: [0; ErrorKind::ALL.len()],
            named_errors: BTreeMap::new(),
            first_error: None,
            latency: Histogram::new_with_bounds(1, LATENCY_MAX.as_nanos() as u64, 3)
                .expect("1 ns to an hour with three digits are bounds that the histogram takes"),
            elapsed: Duration::ZERO,
        }
    }

    pub fn record_latency(&mut self, latency: Duration) {
        self.latency.saturating_record(latency.as_nanos().max(1) as u64);
    }

    pub fn record_error(&mut self, kind: ErrorKind, detail: impl FnOnce() -> String) {
        self.errors[kind as usize] += 1;
        if self.first_error.is_none() {
            self.first_error = Some(format!("{}: {}", kind.name(), detail()));
        }
    }

    pub fn record_handshake(&mut self, negotiated: Negotiated) {
        self.record_handshakes(negotiated, 1);
    }

    fn record_handshakes(&mut self, negotiated: Negotiated, more: u64) {
        match self.negotiated.iter_mut().find(|(known, _)| *known == negotiated) {
            Some((_, count)) => *count = count.saturating_add(more),
            None => self.negotiated.push((negotiated, more)),
        }
    }

    pub fn record_named_error(&mut self, name: &'static str, detail: impl FnOnce() -> String) {
        *self.named_errors.entry(name).or_default() += 1;
        if self.first_error.is_none() {
            self.first_error = Some(format!("{name}: {}", detail()));
        }
    }

    /// Adds what another thread or process counted over the same stretch of time: the sums, the samples, the longer
    /// time. All tallies have the same buckets, so a sample falls where it would have fallen had it been recorded
    /// here. Every field is named, so that a new one cannot be forgotten here.
    pub fn merge(&mut self, other: Self) {
        let Self {
            done,
            body_bytes,
            moved,
            resumed,
            connections,
            unanswered,
            asked_again,
            negotiated,
            errors,
            named_errors,
            first_error,
            latency,
            elapsed,
        } = other;
        let sums = [
            (&mut self.done, done),
            (&mut self.body_bytes, body_bytes),
            (&mut self.moved.down, moved.down),
            (&mut self.moved.up, moved.up),
            (&mut self.resumed, resumed),
            (&mut self.connections, connections),
            (&mut self.unanswered, unanswered),
            (&mut self.asked_again, asked_again),
        ];
        for (own, others) in sums.into_iter().chain(self.errors.iter_mut().zip(errors)) {
            *own = own.saturating_add(others);
        }
        for (name, count) in named_errors {
            *self.named_errors.entry(name).or_default() += count;
        }
        for (kind, count) in negotiated {
            self.record_handshakes(kind, count);
        }
        self.first_error = self.first_error.take().or(first_error);
        self.latency.add(&latency).expect("every tally's histogram has the same bounds");
        self.elapsed = self.elapsed.max(elapsed);
    }

    pub fn errors(&self, kind: ErrorKind) -> u64 {
        self.errors[kind as usize]
    }

    pub fn errors_total(&self) -> u64 {
        self.errors.iter().chain(self.named_errors.values()).sum()
    }

    pub fn first_error(&self) -> Option<&str> {
        self.first_error.as_deref()
    }

    /// In nanoseconds.
    pub fn latency(&self) -> &Histogram<u64> {
        &self.latency
    }

    /// Requests that came to an end, well or not.
    pub fn finished(&self) -> u64 {
        self.done + self.errors_total()
    }

    pub fn per_second(&self) -> f64 {
        self.done as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    pub fn summary(&self) -> Summary {
        let errors = ErrorKind::ALL.iter().filter(|kind| self.errors(**kind) > 0);
        Summary {
            done: self.done,
            per_second: self.per_second(),
            elapsed_seconds: self.elapsed.as_secs_f64(),
            connections: self.connections,
            resumed: self.resumed,
            unanswered: self.unanswered,
            body_bytes: self.body_bytes,
            moved: self.moved,
            asked_again: self.asked_again,
            negotiated: self.negotiated.iter().map(|(negotiated, count)| (negotiated.show(), *count)).collect(),
            errors: errors.map(|kind| (kind.name(), self.errors(*kind))).chain(self.named_errors.clone()).collect(),
            first_error: self.first_error.clone(),
            latency: LatencySummary::of(&self.latency),
        }
    }
}

/// A tally as it is told.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    pub done: u64,
    pub per_second: f64,
    pub elapsed_seconds: f64,
    pub connections: u64,
    pub resumed: u64,
    pub unanswered: u64,
    pub body_bytes: u64,
    pub moved: Moved,
    pub asked_again: u64,
    /// Handshakes by version, suite and group.
    pub negotiated: BTreeMap<String, u64>,
    pub errors: BTreeMap<&'static str, u64>,
    pub first_error: Option<String>,
    pub latency: LatencySummary,
}

/// Nanoseconds.
#[derive(Clone, Debug, Serialize)]
pub struct LatencySummary {
    pub mean: f64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p99_9: u64,
    pub max: u64,
}

impl LatencySummary {
    pub fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            mean: histogram.mean(),
            p50: histogram.value_at_quantile(0.5),
            p90: histogram.value_at_quantile(0.9),
            p99: histogram.value_at_quantile(0.99),
            p99_9: histogram.value_at_quantile(0.999),
            max: histogram.max(),
        }
    }

    pub fn show(&self) -> String {
        if self.max == 0 {
            return "none measured".to_owned();
        }
        let shown = |value: u64| show_nanoseconds(value as f64);
        format!(
            "p50 {}, p90 {}, p99 {}, p99.9 {}, max {}",
            shown(self.p50),
            shown(self.p90),
            shown(self.p99),
            shown(self.p99_9),
            shown(self.max)
        )
    }
}

impl Summary {
    pub fn errors_total(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Each kind of handshake with its count.
    pub fn show_negotiated(&self) -> String {
        let kinds: Vec<String> = self.negotiated.iter().map(|(kind, count)| format!("{kind} ({count})")).collect();
        kinds.join(", ")
    }

    /// `none`, or each kind with its count.
    pub fn show_errors(&self) -> String {
        if self.errors.is_empty() {
            return "none".to_owned();
        }
        let kinds: Vec<String> = self.errors.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        let first = self.first_error.as_deref().unwrap_or_default();
        format!("{} (first: {first})", kinds.join(", "))
    }
}

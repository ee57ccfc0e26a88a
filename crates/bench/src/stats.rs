//! Results of a load phase: answers, errors by kind, latencies.

mod wire;

use crate::quantity::{Label, PerSecond};
use crate::report::Table;
use crate::units::show_nanoseconds;
use hdrhistogram::Histogram;
use rustls::{CipherSuite, NamedGroup, ProtocolVersion};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

/// Latencies above this are recorded as this.
const LATENCY_MAX: Duration = Duration::from_secs(3600);

/// The error that kept a request from its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
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

/// The parameters that a handshake agreed on; in JSON their numbers (IANA's).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "(u16, u16, Option<u16>)", from = "(u16, u16, Option<u16>)")]
pub struct Negotiated {
    pub version: ProtocolVersion,
    pub suite: CipherSuite,
    /// Absent in a resumed handshake of TLS 1.2, which exchanges no key.
    pub group: Option<NamedGroup>,
}

impl From<Negotiated> for (u16, u16, Option<u16>) {
    fn from(negotiated: Negotiated) -> Self {
        let Negotiated { version, suite, group } = negotiated;
        (version.into(), suite.into(), group.map(u16::from))
    }
}

impl From<(u16, u16, Option<u16>)> for Negotiated {
    fn from((version, suite, group): (u16, u16, Option<u16>)) -> Self {
        Self { version: version.into(), suite: suite.into(), group: group.map(Into::into) }
    }
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadStats {
    pub done: u64,
    /// Body bytes of good answers.
    pub body_bytes: u64,
    /// Body bytes that moved in this phase, whole or not: of a body under way at either end, its part.
    pub moved: Moved,
    /// Good answers on a resumed TLS session.
    pub resumed: u64,
    /// New connections made, whatever became of them.
    pub connections: u64,
    /// Arrivals of an open-loop run that had no answer at its end; their age then is in `latency`.
    pub unanswered: u64,
    /// HTTP/2: requests sent once more on a new connection, since the server said that it had not processed them.
    pub retried: u64,
    /// Handshakes by what they agreed on.
    #[serde(deserialize_with = "wire::negotiated")]
    negotiated: Vec<(Negotiated, u64)>,
    /// Errors by kind, those that only one command's protocol knows by their name there.
    #[serde(deserialize_with = "wire::errors")]
    errors: BTreeMap<Label, u64>,
    first_error: Option<String>,
    #[serde(with = "wire::latency")]
    latency: Histogram<u64>,
    pub elapsed: Duration,
}

fn latency_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX.as_nanos() as u64, 3)
        .expect("1 ns to an hour with three digits are bounds that the histogram takes")
}

impl LoadStats {
    pub fn new() -> Self {
        Self {
            done: 0,
            body_bytes: 0,
            moved: Moved::default(),
            resumed: 0,
            connections: 0,
            unanswered: 0,
            retried: 0,
            negotiated: Vec::new(),
            errors: BTreeMap::new(),
            first_error: None,
            latency: latency_histogram(),
            elapsed: Duration::ZERO,
        }
    }

    pub fn record_latency(&mut self, latency: Duration) {
        self.latency.saturating_record(latency.as_nanos().max(1) as u64);
    }

    pub fn record_error(&mut self, kind: ErrorKind, detail: impl FnOnce() -> String) {
        self.record_named_error(kind.name(), detail);
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
        *self.errors.entry(name.into()).or_default() += 1;
        if self.first_error.is_none() {
            self.first_error = Some(format!("{name}: {}", detail()));
        }
    }

    /// Adds what another thread or process counted in the same load phase: the sums, the samples, the longer
    /// time. All stats have the same buckets, so a sample falls where it would have fallen had it been recorded
    /// here. Every field is named, so that a new one cannot be forgotten here.
    pub fn merge(&mut self, other: Self) {
        let Self {
            done,
            body_bytes,
            moved,
            resumed,
            connections,
            unanswered,
            retried,
            negotiated,
            errors,
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
            (&mut self.retried, retried),
        ];
        for (own, more) in sums {
            *own = own.saturating_add(more);
        }
        for (name, count) in errors {
            let own = self.errors.entry(name).or_default();
            *own = own.saturating_add(count);
        }
        for (kind, count) in negotiated {
            self.record_handshakes(kind, count);
        }
        self.first_error = self.first_error.take().or(first_error);
        self.latency.add(&latency).expect("every histogram has the same bounds");
        self.elapsed = self.elapsed.max(elapsed);
    }

    #[cfg(test)]
    pub fn errors(&self, kind: ErrorKind) -> u64 {
        self.errors.get(kind.name()).copied().unwrap_or(0)
    }

    pub fn errors_total(&self) -> u64 {
        self.errors.values().fold(0, |total: u64, count| total.saturating_add(*count))
    }

    /// Says where the first error happened.
    pub fn prefix_first_error(&mut self, origin: &str) {
        self.first_error = self.first_error.take().map(|first| format!("{origin}: {first}"));
    }

    pub fn errors_by_kind(&self) -> &BTreeMap<Label, u64> {
        &self.errors
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
        Summary {
            done: self.done,
            per_second: PerSecond(self.per_second()),
            elapsed_seconds: self.elapsed.as_secs_f64(),
            connections: self.connections,
            resumed: self.resumed,
            unanswered: self.unanswered,
            body_bytes: self.body_bytes,
            moved: self.moved,
            retried: self.retried,
            negotiated: self.negotiated.iter().map(|(negotiated, count)| (negotiated.show(), *count)).collect(),
            errors: self.errors.clone(),
            first_error: self.first_error.clone(),
            latency: LatencySummary::of(&self.latency),
        }
    }
}

/// Summary of a load phase, as reports have it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    pub done: u64,
    pub per_second: PerSecond,
    pub elapsed_seconds: f64,
    pub connections: u64,
    pub resumed: u64,
    pub unanswered: u64,
    pub body_bytes: u64,
    pub moved: Moved,
    pub retried: u64,
    /// Handshakes by version, suite and group.
    pub negotiated: BTreeMap<String, u64>,
    pub errors: BTreeMap<Label, u64>,
    pub first_error: Option<String>,
    pub latency: LatencySummary,
}

/// Nanoseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
    /// Errors of all kinds, and the first of them.
    pub fn errors(&self) -> (u64, Option<&str>) {
        (self.errors_total(), self.first_error.as_deref())
    }

    pub fn errors_total(&self) -> u64 {
        self.errors.values().fold(0, |total: u64, count| total.saturating_add(*count))
    }

    /// A row for the handshakes, if there were any: each kind with its count.
    pub fn add_handshakes(&self, table: &mut Table) {
        if !self.negotiated.is_empty() {
            let kinds: Vec<String> = self.negotiated.iter().map(|(kind, count)| format!("{kind} ({count})")).collect();
            table.row(["handshakes", &kinds.join(", ")]);
        }
    }

    /// Rows for errors, for what was unanswered, and for the latency.
    pub fn add_outcome(&self, table: &mut Table) {
        table.row(["errors", &self.show_errors()]);
        if self.unanswered > 0 {
            table.row(["unanswered", &format!("{} at the end; their age is in the latency", self.unanswered)]);
        }
        table.row(["latency", &self.latency.show()]);
    }

    /// `none`, or each kind with its count.
    pub fn show_errors(&self) -> String {
        show_errors(&self.errors, self.first_error.as_deref())
    }
}

/// `none`, or each kind with its count, and the first error.
pub fn show_errors(errors: &BTreeMap<impl Display, u64>, first: Option<&str>) -> String {
    if errors.is_empty() {
        return "none".to_owned();
    }
    let kinds: Vec<String> = errors.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    format!("{} (first: {})", kinds.join(", "), first.unwrap_or_default())
}

use std::time::Duration;

use super::{At, BackendTls, ServerAddress, Trust};

/// Requests are traced, and what is known of them is sent to a collector: `[tracing]`.
#[derive(Clone, Debug)]
pub struct Tracing {
    /// Where spans go.
    pub endpoint: CollectorEndpoint,
    /// How the collector's certificate is verified. Absent: it is spoken to in plaintext.
    pub tls: Option<BackendTls>,
    /// A file of header fields that the collector gets with every request, such as credentials.
    pub headers: Option<Trust>,
    /// Which traces that begin here are recorded. Default one in a hundred.
    pub sample: SampleRate,
    /// Whose word counts. Default the parent's.
    pub trust: TraceTrust,
    /// Spans recorded in a second, by all workers together. Default 1000.
    pub spans_per_second: u32,
    /// The resource attribute `service.name`. Default "propylon".
    pub service_name: String,
    /// More attributes of the resource, by name.
    pub attributes: Vec<(String, String)>,
    /// How long one request to the collector may take, its connection included. Default 10 s.
    pub timeout: Duration,
    /// Where it is written.
    pub at: At,
}

/// The URL of a collector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorEndpoint {
    /// As it was written.
    pub url: String,
    /// Its host and port.
    pub address: ServerAddress,
    /// Host and port as the Host field has them.
    pub authority: String,
    /// With its leading slash.
    pub path: String,
}

/// A share of traces, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRate(pub u32);

impl SampleRate {
    /// Every trace.
    pub const ALL: u32 = 1_000_000;
}

/// Whether the trace that a client names is gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceTrust {
    /// Yes, and whether it is recorded is as the client says.
    Parent,
    /// No: every request begins a trace of its own.
    Never,
}

//! Limits on waiting, and the bounds of histograms of durations.

use propylon_metrics::ACCOUNT_BOUNDS;

/// Upper bounds of the duration histograms, in microseconds: 100 µs to 60 s.
pub const DURATION_BOUNDS: &[u64; ACCOUNT_BOUNDS] = &[
    100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000, 30_000_000, 60_000_000,
];

/// A limit on waiting that was met. The order is that of the label values in `WAITS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    Handshake,
    RequestHead,
    RequestBody,
    ResponseBody,
    Idle,
    TunnelIdle,
    Connect,
    FirstByte,
    ServerBody,
    Request,
}

pub const WAITS: &[(Wait, &str)] = &[
    (Wait::Handshake, "handshake"),
    (Wait::RequestHead, "request-head"),
    (Wait::RequestBody, "request-body"),
    (Wait::ResponseBody, "response-body"),
    (Wait::Idle, "idle"),
    (Wait::TunnelIdle, "tunnel-idle"),
    (Wait::Connect, "connect"),
    (Wait::FirstByte, "first-byte"),
    (Wait::ServerBody, "server-body"),
    (Wait::Request, "request"),
];

impl Wait {
    pub fn name(self) -> &'static str {
        WAITS[self as usize].1
    }
}

//! Steps of a route about where its requests go, and how long and how often that is tried.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::{Action, BackendId, FieldChanges, HashKey, Route, Sticky};
use crate::shown;

/// Division of a route's requests among backends.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// Sides in the order of the file, a backend at least.
    pub sides: Vec<Side>,
    /// Stickiness of clients to sides. Absent: each request by itself.
    pub sticky: Option<SideSticky>,
}

/// One of the places that a route's requests are divided among.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Side {
    /// Place of the side's requests.
    pub to: SideTo,
    /// Share of the requests, beside the other sides' weights. Default 1; 0 gets none.
    pub weight: u32,
    /// Changes of fields of its requests, after those of the route. Default none.
    pub request: FieldChanges,
    /// Changes of fields of what its servers answer, after those of the route. Default none.
    pub response: FieldChanges,
}

impl Side {
    /// Backend of the side; none where it is an answer.
    pub fn backend(&self) -> Option<BackendId> {
        match self.to {
            SideTo::Backend(backend) => Some(backend),
            SideTo::Respond(_) => None,
        }
    }
}

/// Place that a side's requests go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SideTo {
    /// A backend.
    Backend(BackendId),
    /// Nowhere: they are answered with this status, 200 to 599.
    Respond(u16),
}

/// Stickiness of clients to the side of a split that they got.
#[derive(Clone, Debug, PartialEq)]
pub enum SideSticky {
    /// A cookie names the side. There is no key: which side a client has is no secret.
    Cookie(Sticky),
    /// A hash of this part of the request decides.
    Hash(HashKey),
}

/// Timeouts of a route's requests. Absent ones are those of the backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RouteTimeouts {
    /// Limit on the whole request, from its first byte to the last of its response, over all attempts. Absent: none.
    #[serde(serialize_with = "shown::written")]
    pub request: Option<Duration>,
    /// Limit on one attempt as a whole, from when it has its connection to the last byte of the response. Absent: none.
    #[serde(serialize_with = "shown::written")]
    pub attempt: Option<Duration>,
    /// Limit on a connection to a server.
    #[serde(serialize_with = "shown::written")]
    pub connect: Option<Duration>,
    /// Limit on the wait for a response's first byte, for each attempt.
    #[serde(serialize_with = "shown::written")]
    pub first_byte: Option<Duration>,
    /// Limit on how long a body may stand still for its server.
    #[serde(serialize_with = "shown::written")]
    pub body: Option<Duration>,
}

/// Priority of a route's requests among those that wait for a connection or a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Requests that count as having come a quarter of the queue's time earlier.
    High,
    /// Requests that are served in the order in which they come.
    #[default]
    Normal,
    /// Requests that count as having come a quarter of the queue's time later, and make way first.
    Low,
}

/// Bodies of a route that are held, so that slow clients hold no server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Buffer {
    /// Requests' bodies, whole, before a server is asked. Absent: they go on as they come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<BodyBounds>,
    /// Responses' bodies. Absent: servers send as fast as clients take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response: Option<BodyBounds>,
}

impl Buffer {
    /// Whether no bodies are held.
    pub fn is_off(&self) -> bool {
        *self == Buffer::default()
    }
}

/// Bytes that are held of one body, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BodyBounds {
    /// Bytes in memory. Default 64 KiB.
    pub memory: u64,
    /// Bytes in a file. Default 1 GiB.
    pub disk: u64,
}

impl Default for BodyBounds {
    fn default() -> BodyBounds {
        BodyBounds { memory: 64 << 10, disk: 1 << 30 }
    }
}

/// Repeats of a route's requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Retries {
    /// Attempts after the first, 0 to 10. Absent: as many as the backend's `retries`.
    pub attempts: Option<u32>,
    /// Faults and statuses that are met with another attempt. Default connect and reset.
    pub on: RetryOn,
    /// Pause before the first repeat, which grows with each. Absent: none.
    #[serde(serialize_with = "shown::written")]
    pub backoff: Option<Duration>,
}

/// Faults and statuses of attempts that are met with another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryOn {
    /// No connection came about.
    pub connect: bool,
    /// The server closed or reset before any byte of a response.
    pub reset: bool,
    /// The response's first byte did not come in time.
    pub timeout: bool,
    /// Statuses from 400 to 599, in ascending order.
    pub statuses: Vec<u16>,
}

impl Default for RetryOn {
    fn default() -> RetryOn {
        RetryOn { connect: true, reset: true, timeout: false, statuses: Vec::new() }
    }
}

impl Serialize for RetryOn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let words = [("connect", self.connect), ("reset", self.reset), ("timeout", self.timeout)];
        let words = words.into_iter().filter(|(_, is_on)| *is_on).map(|(word, _)| serde_json::json!(word));
        serializer.collect_seq(words.chain(self.statuses.iter().map(|status| serde_json::json!(status))))
    }
}

/// Second attempts beside a first that is late: `hedge` of `[[route]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Hedge {
    /// When a server that has not answered is late.
    pub after: HedgeAfter,
}

/// When a server that has not answered is late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HedgeAfter {
    /// After this time.
    Time(Duration),
    /// After the time that this percentile of the backend's responses took lately.
    Percentile(Percentile),
}

impl Serialize for HedgeAfter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            HedgeAfter::Time(time) => shown::written(time, serializer),
            HedgeAfter::Percentile(percentile) => serializer.serialize_str(percentile.name()),
        }
    }
}

/// A percentile, by its place among [`Percentile::NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percentile(u8);

impl Percentile {
    /// Percentiles as they are written.
    pub const NAMES: [&str; 7] = ["p50", "p75", "p90", "p95", "p98", "p99", "p99.9"];
    const TENTHS: [u16; 7] = [500, 750, 900, 950, 980, 990, 999];

    /// The percentile that is written so.
    pub fn parse(name: &str) -> Option<Percentile> {
        Percentile::NAMES.iter().position(|known| *known == name).map(|place| Percentile(place as u8))
    }

    /// The percentile as it is written.
    pub fn name(self) -> &'static str {
        Percentile::NAMES[self.place()]
    }

    /// Place among [`Percentile::NAMES`].
    pub fn place(self) -> usize {
        self.0.into()
    }

    /// Tenths of a percent: 950 for the 95th.
    pub fn tenths(self) -> u16 {
        Percentile::TENTHS[self.place()]
    }
}

impl super::Config {
    /// Backends with percentiles by which routes have second attempts made at them, each once.
    pub fn hedged_by_percentile(&self) -> BTreeSet<(BackendId, Percentile)> {
        let of = |route: &Route| {
            let (Some(Hedge { after: HedgeAfter::Percentile(percentile) }), Action::Backend(first)) =
                (route.steps.hedge, &route.action)
            else {
                return Vec::new();
            };
            std::iter::once(*first).chain(route.steps.other_backends()).map(|id| (id, percentile)).collect()
        };
        self.routes.iter().flat_map(of).collect()
    }
}

/// Copies of a route's requests for another backend, whose responses are thrown away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// Backend that gets the copies.
    pub backend: BackendId,
    /// Share of the requests, in millionths. Default all.
    pub millionths: u32,
    /// Longest body that is copied, in bytes. Default 64 KiB.
    pub body_bytes_max: u64,
    /// Copies that may be under way at once on each worker. Default 64.
    pub in_flight_max: u32,
}

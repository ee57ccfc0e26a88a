//! Terms on which requests go to a backend: its own, or those of a route that has others.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use propylon_config as config;
use propylon_policy::first_bytes::FirstBytes;
use propylon_policy::queue::{Arrival, Priority};
use propylon_steps::split::SideCookies;

/// Terms of the requests that go to a backend by one route, or by any that has none of its own.
#[derive(Clone)]
pub struct RequestTerms {
    /// Limits in milliseconds.
    pub connect: u64,
    pub first_byte: u64,
    pub body: u64,
    /// Limit on an attempt as a whole; that of a backend itself is never met.
    pub attempt: u64,
    pub retries: u32,
    /// How much it matters in the backend's queue.
    pub priority: Priority,
    /// Limits beside those of the server's and the client's steps.
    pub special: Special,
    /// When a request that is [`Special::Hedged`] has a second attempt made beside its first.
    pub hedge: Hedge,
    pub checkout: Checkout,
    /// Whether a response may set a cookie for the client to come back by.
    pub sets_cookie: bool,
    /// Cookies of the route's side, where it keeps clients to sides.
    pub side: Option<Rc<SideCookies>>,
}

/// When a second attempt is made beside a first.
#[derive(Clone, Debug)]
pub enum Hedge {
    Never,
    /// After this time without a head.
    After(Duration),
    /// As what servers took lately says.
    Percentile(Late),
}

/// When a server is late, by a percentile of what servers took.
#[derive(Clone, Debug)]
pub struct Late {
    pub first_bytes: Arc<FirstBytes>,
    /// Place of the percentile.
    pub place: usize,
}

/// Limits of a transfer beside those of its two sides' steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    None,
    /// The whole request has one, perhaps, or it is a tunnel.
    Timed,
    /// As [`Special::Timed`], and a second attempt is made where the first is late.
    Hedged,
    /// The first attempt is late.
    Late,
}

/// Ways to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checkout {
    Connection,
    /// A stream of a connection that carries many requests, perhaps.
    Stream,
    /// Either of them, within the limit of the whole request, or for one whose body is slowed down or kept for a copy.
    Timed,
    /// A connection to a server of HTTP/1.0, for which the request is made ready; within such a limit, if it has one.
    Http10,
    /// A connection to a server of FastCGI.
    FastCgi,
}

impl RequestTerms {
    /// Coming to a queue at this time, in milliseconds on the clock that all cores share.
    pub fn arrival(&self, since: u64) -> Arrival {
        Arrival { since, priority: self.priority }
    }

    /// The terms of a backend itself.
    pub fn of(backend: &config::Backend, has_streams: bool, sets_cookie: bool) -> RequestTerms {
        let millis = |limit: Duration| limit.as_millis() as u64;
        let timeouts = &backend.timeouts;
        RequestTerms {
            connect: millis(timeouts.connect),
            first_byte: millis(timeouts.first_byte),
            body: millis(timeouts.body),
            attempt: u64::MAX,
            retries: backend.retries,
            priority: Priority::Normal,
            special: Special::None,
            hedge: Hedge::Never,
            checkout: match (backend.protocol, has_streams) {
                (config::ServerProtocol::FastCgi, _) => Checkout::FastCgi,
                (config::ServerProtocol::Http10, _) => Checkout::Http10,
                (_, true) => Checkout::Stream,
                (_, false) => Checkout::Connection,
            },
            sets_cookie,
            side: None,
        }
    }
}

//! A connection to a server that carries one request at a time, and the permit that it counts by.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use propylon_net::server_stream::ServerStream;
use propylon_net::timers::coarse_millis;
use propylon_policy::connection_limiter::{ConnectionLimiter, ServerPermits};
use propylon_policy::reuse::Fit;

use crate::endpoint::EndpointAddress;

/// Limits of connections that all cores share for one backend's servers, and the queue of requests that wait for one.
pub type ServerLimiter = ConnectionLimiter<Box<ServerConnection>>;

/// Everything that makes two connections differ: a request goes out on a connection of its own key only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolKey {
    /// Index of the server in the configuration of the request.
    pub server: usize,
    /// The client connection that it belongs to, on this core; none where connections are shared.
    pub owner: Option<NonZeroU64>,
}

/// The right to have a connection to a server; it goes back when it is dropped.
pub struct Permit(Arc<ServerPermits<Box<ServerConnection>>>);

impl Permit {
    /// For a permit that the limiter has given.
    pub fn taken(limiter: &Arc<ServerLimiter>, server: usize) -> Permit {
        Permit(Arc::clone(limiter.permits(server)))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.release(coarse_millis());
    }
}

/// A connection to a server, between two requests or in one. The value is boxed: it is passed on at every step of a
/// request.
pub struct ServerConnection {
    // Dropped first: a permit stands for a connection until that is closed.
    pub stream: ServerStream,
    /// Key of the request that has the connection, or had it last: for the next one the server's index may be another.
    pub key: PoolKey,
    /// Address that the connection was made to.
    pub remote: EndpointAddress,
    /// The core whose event loop knows the stream.
    pub home: u32,
    /// Number of requests begun on the connection.
    pub requests: u32,
    /// End of `max_lifetime`: from then on the connection gets no further request.
    pub expires: Option<Instant>,
    /// Permit that counts the connection at its server; `None` where the server has no limit.
    pub permit: Option<Permit>,
}

impl ServerConnection {
    /// Whether a request of this `fit` may use the connection.
    pub fn suits(&self, fit: Fit) -> bool {
        match fit {
            Fit::Any => true,
            Fit::Proven => self.requests > 1,
            Fit::New => false,
        }
    }

    /// Whether the connection's time is up, so that it gets no further request.
    pub fn is_expired(&self) -> bool {
        self.expires.is_some_and(|expires| Instant::now() >= expires)
    }
}

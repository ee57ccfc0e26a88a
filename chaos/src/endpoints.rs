//! Addresses of a run: what the engine listens on, and the key servers.

use crate::plan::KEY_SERVERS;
use std::net::SocketAddr;

/// Addresses that the engine listens on.
#[derive(Clone, Copy, Debug)]
pub struct Endpoints {
    pub secure: SocketAddr,
    pub plain: SocketAddr,
    pub relay: SocketAddr,
    /// The listener whose certificate's key is elsewhere.
    pub keyed: SocketAddr,
    pub admin: SocketAddr,
    pub key_servers: [SocketAddr; KEY_SERVERS],
}

//! Server-side TLS without sockets: certificates in, bytes in, bytes out.
//!
//! [`Profile`] is one `[tls.NAME]`, loaded once and shared by every core. Each core makes its own [`Acceptor`] of it,
//! which shares no reference count, cache or lock with another core's, and the acceptor makes a [`Session`] for each
//! connection. A session owns neither a socket nor a buffer: the driver lends it both directions' bytes.
//!
//! The library underneath does not show in this interface, so that it can be replaced.

mod acceptor;
mod facts;
mod failure;
mod finding;
mod handshake;
mod load;
mod offer;
mod overheard;
mod profile;
mod protection;
mod records;
mod resolver;
mod session;
mod tickets;

pub use acceptor::Acceptor;
pub use facts::{Facts, Group, Suite, Version};
pub use failure::Failure;
pub use finding::{Finding, Severity};
pub use profile::Profile;
pub use session::{Opened, Session, Step};
pub use tickets::Tickets;

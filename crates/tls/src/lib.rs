//! TLS without sockets, towards clients and towards servers: certificates in, bytes in, bytes out.
//!
//! [`Profile`] is one `[tls.NAME]`, loaded once and shared by every core. Each core has an [`Acceptor`] of its own made of
//! it (of [`AcceptorParts`], which any thread can make), which shares no reference count, cache or lock with another
//! core's, and the acceptor makes a [`Session`] for each connection. A session owns neither a socket nor a buffer: the driver lends it both directions' bytes.
//!
//! Private-key operations and key agreement are jobs of `propylon-crypto`. An acceptor that is told to defer some has its
//! handshakes parked until whoever drives them brings the outcome; otherwise they are done on the spot.
//!
//! The library underneath does not show in this interface, so that it can be replaced.

// `fuzzing` is set by cargo-fuzz.
#![allow(unexpected_cfgs)]

mod acceptor;
mod challenge;
mod client_auth;
mod comeback;
mod compression;
mod credential;
mod dated;
mod deferral;
mod exchange;
mod facts;
mod failure;
mod finding;
mod greeting;
mod handshake;
pub mod hello;
mod identity;
mod introduction;
mod ja4;
mod key_schedule;
mod keys;
mod link;
mod load;
mod offer;
mod overheard;
#[allow(unsafe_code, reason = "stacks and switching between them")]
mod park;
mod parked;
mod profile;
mod protection;
mod records;
mod resolver;
mod session;
mod sessions;
mod signing;
mod suites;
mod tickets;
mod upstream;
mod watch;
mod wording;

pub use acceptor::{Acceptor, AcceptorParts};
pub use challenge::{ChallengeCertificate, publish_challenges};
pub use dated::{Dated, DatedKind, Nearness, step_between};
pub use deferral::{Deferral, Parking, ParkingCounts, ParkingLimits};
pub use exchange::KeyPairs;
pub use facts::{Facts, Group, Resumption, Scheme, Suite, Version};
pub use failure::Failure;
pub use finding::{Finding, Severity};
pub use greeting::Greeting;
pub use identity::Identity;
pub use introduction::Introduction;
pub use ja4::Ja4;
pub use keys::{READY_PER_CORE_MAX, ReadyCounts, tend_ready};
pub use link::{Link, LinkError, LinkProfile};
#[cfg(any(test, fuzzing))]
pub use load::fuzz;
pub use load::{KEY_BESIDE_AUTHORITIES, find_ordered_keys_in, hold_keys_beside, key_files};
pub use park::{PARKING_STACK_BYTES, parking_stack_high_water_bytes};
pub use profile::{NameMatch, Profile, SHOWN_MAX, Served};
#[doc(hidden)]
pub use records::lowered_limit;
pub use session::{Opened, Session, Step};
pub use sessions::IdUse;
pub use tickets::{KeyFileError, Tickets, Unopened};
pub use upstream::{Connector, UpstreamFacts, UpstreamFailure, UpstreamHandshake, UpstreamProfile, UpstreamSession};
pub use watch::Stamp;

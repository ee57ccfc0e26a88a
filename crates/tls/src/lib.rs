//! TLS without sockets, towards clients and towards servers: certificates in, bytes in, bytes out.
//!
//! [`Profile`] is one `[tls.NAME]`, loaded once and shared by every core. Each core makes an [`Acceptor`] of its own
//! from it (from [`AcceptorParts`], which any thread can make); the acceptors of two cores share no reference count,
//! cache or lock. An acceptor makes a [`Session`] for each connection. A session owns neither a socket nor a buffer:
//! the driver lends it the bytes of both directions.
//!
//! Private-key operations and key agreement are jobs of `propylon-crypto`. The handshakes of an acceptor that defers
//! jobs are parked until the driver brings the outcome; otherwise jobs are done on the spot.
//!
//! The TLS library underneath does not show in this interface, so that it can be replaced.

// `fuzzing` is set by cargo-fuzz.
#![allow(unexpected_cfgs)]

mod certificates;
mod handshake;
pub mod hello;
mod parking;
mod provider;
mod reasons;
mod records;
mod session;
mod tickets;
mod upstream;

pub use certificates::credential::NameMatch;
pub use certificates::dated::{Dated, DatedKind, ExpiryStep, step_between};
pub use certificates::finding::{Finding, Severity};
pub use certificates::identity::Identity;
pub use certificates::keys::{READY_PER_CORE_MAX, ReadyCounts, sweep_ready};
#[cfg(any(test, fuzzing))]
pub use certificates::load::fuzz;
pub use certificates::load::{
    KEY_AMONG_AUTHORITIES, NOT_THERE_YET, UnfitPem, check_pem, find_ordered_keys_in, key_files, use_key_process,
};
pub use certificates::profile::{Profile, SHOWN_MAX, Served};
pub use certificates::watch::Stamp;
pub use handshake::challenge::{ChallengeCertificate, publish_challenges};
pub use handshake::step::Step;
pub use hello::class::HelloClass;
pub use hello::info::ClientHelloInfo;
pub use hello::ja4::Ja4;
pub use parking::fiber::{PARKING_STACK_BYTES, parking_stack_high_water_bytes};
pub use parking::{Deferral, Parking, ParkingCounts, ParkingLimits};
pub use provider::exchange::KeyPairs;
pub use provider::facts::{Facts, Group, Resumption, Scheme, SessionIdUse, TicketRefusal};
pub use records::Opened;
pub use records::failure::{Failure, FailureReason};
#[doc(hidden)]
pub use records::lowered_limit;
pub use records::suite::{Suite, Version};
pub use session::acceptor::{Acceptor, AcceptorParts};
pub use session::{EstablishedSession, Session};
pub use tickets::{KeyFileError, Tickets};
pub use upstream::link::{Link, LinkError, LinkProfile};
pub use upstream::{
    Connector, UpstreamFacts, UpstreamFailure, UpstreamFailureReason, UpstreamHandshake, UpstreamProfile,
    UpstreamSession,
};

//! Decisions without side effects: where a request goes, which server gets it, how long to wait for whom,
//! which handshakes are begun, and when, which core serves a client, which traces are recorded, what is given up when
//! memory runs short, and which engine of a cluster has a connection.
//!
//! Nothing in here reads a clock, draws a random number or does I/O: time and chance are arguments, so a seed
//! reproduces any run. Everything belongs to one core and is neither shared nor locked, but for the limiter, credits,
//! budgets of repeats, tables of limits and the counts of connections by source and requests in flight, which are there
//! to be shared.

pub mod admission;
pub mod balance;
pub mod budget;
pub mod capacity;
pub mod connection_limiter;
pub mod credits;
pub mod dispatch;
pub mod first_bytes;
pub mod flows;
pub mod gradient;
pub mod handshake_limiter;
pub mod health;
pub mod limits;
pub mod memory;
pub mod min_rate_timeout;
pub mod predecessors;
pub mod queue;
pub mod reuse;
pub mod route;
pub mod sampling;
pub mod shared_budget;
pub mod signers;
pub mod sources;
pub mod split;
pub mod suspect;
pub mod throttle;

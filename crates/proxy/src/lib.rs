//! Bytes in motion: what stands between clients and servers.
//!
//! Read `connection.rs` first (the life of a connection, in the order in which it happens), then `exchange.rs` (the
//! life of a request) and `snapshot.rs` (the life of a configuration).

pub mod alpn;
mod answer;
pub mod attempt;
pub mod batches;
mod bridge;
pub mod challenges;
pub mod client_side;
pub mod connection;
pub mod core;
pub mod cores;
pub mod exchange;
pub mod fault;
mod gate;
pub mod http2;
pub mod notice;
mod pipes;
pub mod proxied;
pub mod relay;
pub mod request;
pub mod services;
pub mod shortage;
pub mod signer;
pub mod snapshot;
pub mod sticky;
pub mod ticket_keys;
pub mod told;
pub mod trace;
pub mod transfer;
pub mod tunnel;
pub mod upstream;
pub mod worker;

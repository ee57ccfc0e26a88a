//! Bytes in motion: what stands between clients and servers.
//!
//! Read `downstream/connection.rs` first (the life of a connection, in the order in which it happens), then
//! `exchange.rs` (the life of a request) and `snapshot.rs` (the life of a configuration).

pub mod alpn;
mod answer;
pub mod batches;
pub mod bodies;
pub mod challenges;
pub mod client;
mod copies;
pub mod core;
pub mod cores;
pub mod dispatch;
pub mod downstream;
mod duplex;
pub mod endpoint;
pub mod exchange;
pub mod fault;
mod handshake_limiter;
pub mod http2;
pub mod limits;
pub mod overload;
mod pipes;
pub mod relay;
pub mod request;
pub mod services;
pub mod snapshot;
pub mod ticket_keys;
pub mod trace;
pub mod upstream;
mod websocket;
pub mod worker;

pub use propylon_steps::sticky;

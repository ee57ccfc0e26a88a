//! Bytes in motion: what stands between clients and servers.
//!
//! Read `connection.rs` first (the life of a connection, in the order in which it happens), then `exchange.rs` (the
//! life of a request) and `snapshot.rs` (the life of a configuration).

pub mod acme;
pub mod admin;
pub mod attempt;
pub mod audit;
pub mod balance;
pub mod batches;
mod bridge;
pub mod certificates;
mod challenges;
pub mod client_side;
pub mod command;
pub mod connection;
pub mod core;
pub mod diff;
pub mod engine;
pub mod exchange;
mod expiry;
mod gate;
pub mod health;
pub mod http2;
mod isolation;
pub mod logger;
pub mod names;
pub mod notice;
pub mod opening;
pub mod origin;
pub mod pool;
pub mod problems;
pub mod proxied;
pub mod relay;
pub mod reload;
mod sandbox;
pub mod seat;
pub mod service;
pub mod shortage;
pub mod signer;
pub mod snapshot;
pub mod state;
pub mod sticky;
pub mod ticket_keys;
pub mod told;
pub mod trace;
pub mod transfer;
pub mod tunnel;
pub mod upgrade;
pub mod warm;
pub mod worker;

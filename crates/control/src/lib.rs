//! The main thread: what is decided once for all cores, and told to them whole.
//!
//! Read `engine.rs` first (the main thread's loop), then `reload.rs` (how a configuration follows another) and
//! `health.rs` (which servers are fit). `admin.rs` is what people and scripts ask, `upgrade.rs` how a process takes over
//! from another.

pub mod acme;
mod adaptive;
pub mod admin;
pub mod announce;
pub mod audit;
pub mod certificates;
pub mod cluster;
pub mod diff;
pub mod engine;
pub mod expiry;
pub mod folders;
pub mod health;
mod hedge_times;
pub mod isolation;
pub mod key_folders;
mod last_minute;
pub mod logger;
pub mod names;
pub mod opening;
pub mod origin;
pub mod problems;
mod proofs;
pub mod reload;
pub mod requests;
pub mod sandbox;
pub mod service;
mod shared_keys;
pub mod spans;
pub mod state;
pub mod status;
pub mod upgrade;
pub mod withheld;

//! A server for private keys: engines send what is to be signed, and get signatures. The keys never leave.
//!
//! Read first: `connection` (the life of a connection), `request` (what is answered), `signing` (the place and the
//! order of private-key work). Which threads there are and why: docs/decisions/0020-keyserver-threads.md.

mod access;
mod admin;
pub mod command;
mod conditions;
mod connection;
mod core;
mod fair;
#[cfg_attr(not(feature = "pkcs11"), path = "hsm/absent.rs")]
mod hsm;
mod identity;
pub mod isolated;
mod kernels;
mod key_files;
mod keys;
pub mod logger;
mod message_socket;
mod pending_handshakes;
mod rate;
mod request;
mod sandbox;
mod server;
mod signing;
mod task;
mod task_queue;
mod telemetry;
mod transport;
mod worker;

//! Bytes between the kernel and whoever reads them: buffers, sockets, timers, and streams with and without TLS.
//!
//! Everything here belongs to one core. Read `socket.rs` first, then `client_stream.rs` and `server_stream.rs`: what a
//! connection's two ends are to the requests on it. `budget.rs` says how much of it a connection may do in one turn.

pub mod alarms;
pub mod budget;
pub mod buffer;
pub mod client_stream;
pub mod listen;
pub mod pace;
pub mod resting;
pub mod server_stream;
pub mod socket;
pub mod ticks;
pub mod timers;

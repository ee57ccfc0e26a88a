//! HTTP/2 (RFC 9113) and HPACK (RFC 7541): bytes in, decisions out, no socket and no clock.
//!
//! | file | what it is for |
//! |---|---|
//! | `connection.rs` | a connection for either side, and what its application asks of it |
//! | `receive.rs`, `send.rs` | its two directions; `inbound.rs`: a frame that is not whole |
//! | `stream.rs` | a stream's state, with the chart of it |
//! | `window.rs`, `priority.rs`, `flood.rs` | flow control; whose turn it is to send; what there may be too much of |
//! | `frame.rs`, `settings.rs`, `reason.rs` | what stands on the wire |
//! | `hpack/`, `huffman.rs` | header blocks |
//! | `fields.rs` | fields of messages that HTTP/1 has no lines for |
//! | `follower.rs` | header blocks looked at beside another decoder |

pub mod connection;
mod fields;
pub mod flood;
pub mod follower;
pub mod frame;
pub mod hpack;
mod huffman;
mod inbound;
pub mod priority;
mod reason;
pub mod receive;
mod role;
mod send;
pub mod settings;
pub mod stream;
mod window;

pub use crate::h1::Pseudo;
pub use connection::{Connection, ConnectionFault, GoAway, Terms};
pub use fields::FieldWriter;
pub use flood::Flood;
pub use inbound::Block;
pub use reason::Reason;
pub use receive::Event;
pub use role::Role;
pub use send::Sent;
pub use stream::{Ending, Reset, Stream};

#[cfg(test)]
mod tests;

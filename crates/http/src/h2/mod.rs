//! HTTP/2 (RFC 9113) and HPACK (RFC 7541): bytes in, decisions out, no socket and no clock.
//!
//! | file | what it is for |
//! |---|---|
//! | `connection.rs` | a connection for either side, and what its application asks of it |
//! | `receive.rs`, `send.rs` | its two directions; `inbound.rs`: a frame that is not whole |
//! | `stream.rs` | a stream's state, with the chart of it |
//! | `window.rs`, `priority.rs`, `flood.rs` | flow control; whose turn it is to send; what there may be too much of |
//! | `request.rs`, `response.rs` | messages, by the rules that HTTP/1's are read by |
//! | `discard.rs` | bodies of requests that were answered before |
//! | `fields.rs` | what takes the fields of a message |
//! | `frame.rs`, `settings.rs`, `reason.rs` | what stands on the wire |
//! | `hpack/`, `huffman.rs` | header blocks |

pub mod connection;
mod discard;
mod fields;
pub mod flood;
pub mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod hpack;
mod huffman;
mod inbound;
pub mod priority;
mod reason;
pub mod receive;
mod request;
mod response;
mod role;
mod send;
pub mod settings;
pub mod stream;
#[cfg(any(test, fuzzing))]
mod testing;
mod window;

pub use crate::h1::Pseudo;
pub use connection::{Connection, ConnectionFault, GoAway, Terms};
pub use fields::FieldWriter;
pub use flood::Flood;
pub use inbound::Block;
pub use reason::Reason;
pub use receive::Event;
pub use request::{Refusal, RequestReader, write_request};
pub use response::{ResponseReader, read_trailer, write_changed_response, write_informational, write_response};
pub use role::Role;
pub use send::Sent;
pub use stream::{Ending, Reset, Stream};

#[cfg(test)]
mod tests;

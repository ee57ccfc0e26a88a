//! HTTP/2 (RFC 9113) with clients and servers, as far as both have it in common. Frames, HPACK and the states of
//! streams are `propylon_http::h2`; what is here joins them with tasks and with memory of the core's.
//!
//! | file | what it does |
//! |---|---|
//! | `link.rs` | a connection as its streams' tasks and its driver share it |
//! | `queue.rs` | bytes of a body between a socket and a task |
//! | `messages.rs` | header blocks read into requests, heads of responses and trailers |
//!
//! A request over HTTP/2 becomes the same `Request` as one over HTTP/1.1 and goes the same way (`exchange.rs`); its
//! body and its response pass through `exchange/transfer.rs`. Why it is so: `docs/decisions/0023-http2.md`.

mod link;
pub mod messages;
mod queue;

pub use link::{Link, StreamState, Streams};
pub use propylon_http::h2::frame::PREFACE;

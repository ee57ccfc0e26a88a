//! HTTP/2 (RFC 9113) with clients and servers. The frames, HPACK and the states of streams are the `h2` crate's; what
//! is here is everything around it.
//!
//! | file | what it does |
//! |---|---|
//! | `body.rs` | pieces of bodies on their way to a peer, and how much of them the library holds |
//! | `staging.rs` | what is read and written beside the socket: our own frames, and bytes that wait to be sealed |
//! | `ahead.rs` | a body's bytes that wait for somebody to take them: small frames put together |
//! | `responses.rs` | where the responses of a server's streams stand, for the intake |
//! | `intake.rs` | what comes, before `h2` reads it: rules that it does not keep, or for which it ends whole connections |
//! | `flood.rs` | frames counted by type, since `h2` does not tell of those it deals with itself |
//! | `translate.rs` | messages as HTTP/1.1 writes them, and back: every request passes the strict parser of `http1` |
//!
//! A request over HTTP/2 becomes the same `Request` as one over HTTP/1.1 and goes the same way (`exchange.rs`); its
//! body and its response pass through `exchange/transfer.rs`. Why it is so: `docs/decisions/0023-http2.md`.

// `fuzzing` is set by cargo-fuzz.
#![allow(unexpected_cfgs)]

mod ahead;
mod body;
mod flood;
pub mod intake;
mod responses;
mod staging;
pub mod translate;

pub use ahead::Ahead;
pub use body::{Chunk, Meter, Piece};
pub use flood::Moment;
pub use intake::{ConnectionFault, Intake};
pub use responses::{ResponseState, Responses};
pub use staging::{give_ready, stage, stage_frames};

/// Bytes that a client that speaks HTTP/2 begins with (RFC 9113 §3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

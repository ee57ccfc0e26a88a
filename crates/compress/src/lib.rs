//! Compression of responses: which of them are compressed, by which coding, what their heads say then, and the encoders
//! that do it. Without sockets and clocks: whoever has the connections calls it.

// `fuzzing` is set by cargo-fuzz.
#![allow(unexpected_cfgs)]

pub mod accept;
pub mod encoder;
pub mod encoders;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod judge;
pub mod own;
pub mod plan;
pub mod rewrite;
pub mod trailers;

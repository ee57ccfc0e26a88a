//! HTTP's wire, and what stands before it and inside of it, without a socket, a clock or a runtime: bytes in, decisions out.
//!
//! Read `h1/mod.rs` first: what is let through, and why no two parsers can read it differently.

// `fuzzing` is set by cargo-fuzz.
#![allow(unexpected_cfgs)]

pub mod discarded;
pub mod fault;
pub mod h1;
pub mod h2;
pub mod proxy_protocol;
pub mod trace_context;

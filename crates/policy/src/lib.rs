//! Decisions without side effects: where a request goes, which server gets it, how long to wait for whom, and
//! which handshakes are begun, and when.
//!
//! Nothing in here reads a clock, draws a random number or does I/O: time and chance are arguments, so a seed
//! reproduces any run. Everything belongs to one core and is neither shared nor locked, but for the turnstile, which is there
//! to be shared.

pub mod admission;
pub mod balance;
pub mod budget;
pub mod gate;
pub mod health;
pub mod patience;
pub mod reuse;
pub mod route;
pub mod signers;
pub mod suspect;
pub mod turnstile;

//! FastCGI (version 1 of its specification) without a socket: requests as records, and what servers answer.

#![forbid(unsafe_code)]

pub mod answer;
#[doc(hidden)]
pub mod fuzz;
pub mod params;
pub mod records;
pub mod script;

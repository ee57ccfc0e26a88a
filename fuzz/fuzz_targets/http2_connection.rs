//! Frames of HTTP/2: a connection ends, or goes on within its bounds.

#![no_main]

use propylon_http::h2::fuzz;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::connection(bytes));

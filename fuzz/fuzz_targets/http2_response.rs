//! Fields of a response: refused, or what was sent.

#![no_main]

use propylon_http::h2::fuzz;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::response(bytes));

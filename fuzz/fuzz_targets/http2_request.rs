//! Pseudo-header fields and fields of a request: refused, or what was asked, for servers of HTTP/1 as well.

#![no_main]

use propylon_http::h2::fuzz;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::request(bytes));

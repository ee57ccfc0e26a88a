//! Header blocks of HTTP/2: refused, or fields that read the same when they are written again.

#![no_main]

use propylon_http::h2::hpack::fuzz;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::blocks(bytes));

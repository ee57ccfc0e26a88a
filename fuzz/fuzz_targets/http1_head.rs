#![no_main]

use propylon_http::h1::fuzz;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::head(bytes));

#![no_main]

//! Bodies in pieces, through each encoder and back.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| propylon_compress::fuzz::body(bytes));

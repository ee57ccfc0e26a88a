#![no_main]

//! Configurations of haproxy, nginx and Caddy.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| propylon_import::fuzz::text(bytes));

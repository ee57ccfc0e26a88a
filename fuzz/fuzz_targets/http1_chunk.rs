#![no_main]

use propylon_proxy::http1::fuzz;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::chunk(bytes));

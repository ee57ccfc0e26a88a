#![no_main]

use propylon_steps::fuzz;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::path(bytes);
    fuzz::cookie(bytes);
});

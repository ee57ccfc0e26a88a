#![no_main]

//! What routes ask of a request, and change of it: parameters, cookies, and the address that it is from.

use propylon_steps::fuzz;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    fuzz::query(bytes);
    fuzz::cookies_of(bytes);
    fuzz::forwarded(bytes);
    fuzz::forwarded(&[b"X-Forwarded-For: ", bytes].concat());
});

//! Records that servers of FastCGI send, and heads of requests as parameters.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| propylon_fastcgi::fuzz::fuzz(data));

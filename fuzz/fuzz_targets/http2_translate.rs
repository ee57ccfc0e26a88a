//! Pseudo-header fields and fields of HTTP/2: refused, or HTTP/1.1 that reads as the same request.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| propylon_proxy::http2::translate::fuzz::translate(data));

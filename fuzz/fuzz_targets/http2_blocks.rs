//! Header blocks of HTTP/2: the library keeps its connection, whatever is in them, unless we end it.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| propylon_proxy::http2::intake::fuzz::blocks(data));

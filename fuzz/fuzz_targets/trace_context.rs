#![no_main]

//! Whatever comes as `traceparent`, or in lines as `tracestate`: a context that is written as it was read, or none.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| propylon_http::trace_context::fuzz::read(bytes));

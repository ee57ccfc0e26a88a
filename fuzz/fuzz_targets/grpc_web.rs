#![no_main]

//! Bodies of gRPC-Web, in base64 and as frames.

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| propylon_steps::fuzz::grpc_web(bytes));

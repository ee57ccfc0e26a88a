#![no_main]

//! Whatever is in the file of a certificate and, behind a NUL, in the one of its OCSP response: a certificate, or a reason.

use propylon_tls::fuzz;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    fuzz::certificates(&bytes[..end], bytes.get(end + 1..).unwrap_or_default());
});

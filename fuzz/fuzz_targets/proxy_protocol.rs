#![no_main]

//! Whatever the bytes: a header reads the same when it comes in pieces, and what is read can be written and read again.

use propylon_http::proxy_protocol::{Header, V2_BYTES_MAX, parse, write_v1, write_v2};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let whole = parse(bytes);
    for end in 0..bytes.len().min(300) {
        match parse(&bytes[..end]) {
            Ok(None) => {}
            // The verdict stands, whatever follows.
            early => assert_eq!(early, whole),
        }
    }
    if bytes.len() > V2_BYTES_MAX {
        assert_ne!(whole, Ok(None));
    }
    let Ok(Some(Header { length, ends })) = whole else { return };
    assert!(length <= bytes.len());
    let Some(ends) = ends else { return };
    for version in [1, 2] {
        let mut again = Vec::new();
        match version {
            1 => write_v1(ends, &mut again),
            _ => write_v2(ends, Some("name"), None, &mut again),
        }
        assert_eq!(parse(&again), Ok(Some(Header { length: again.len(), ends: Some(ends) })));
    }
});

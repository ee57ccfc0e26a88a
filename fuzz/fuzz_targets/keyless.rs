#![no_main]

use propylon_crypto::keyless::{Decoder, Message};

/// What the decoder makes of any bytes survives being encoded and decoded again, and how the bytes were split makes no
/// difference.
fn check(bytes: &[u8]) {
    let Some((first, wire)) = bytes.split_first() else { return };
    let mut whole = Decoder::new();
    whole.extend(wire);
    let mut parts = Decoder::new();
    let mut rest = wire.chunks(usize::from(*first) + 1);
    loop {
        let message = whole.next_message();
        while !parts.has_message()
            && let Some(part) = rest.next()
        {
            parts.extend(part);
        }
        assert_eq!(message, parts.next_message());
        match message {
            Ok(Some(message)) => survives(&message),
            Ok(None) | Err(_) => return,
        }
    }
}

fn survives(message: &Message<'_>) {
    let mut wire = Vec::new();
    // Items that were not padded, in a frame that was full, may not leave room for anything more; they always fit.
    message.encode(&mut wire).expect("what came in one frame goes into one");
    assert!(wire.len() >= 1024);
    let mut decoder = Decoder::new();
    decoder.extend(&wire);
    assert_eq!(decoder.next_message(), Ok(Some(message.clone())));
    assert_eq!(decoder.buffered(), 0);
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| check(bytes));

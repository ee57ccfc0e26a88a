#![no_main]

//! Whatever the bytes: a hello reads the same in any division into records, and has a fingerprint of the right form.

use propylon_tls::Ja4;
use propylon_tls::hello::{ClientHello, HELLO_BYTES_MAX, Peeker};

libfuzzer_sys::fuzz_target!(|input: (u16, &[u8])| {
    let (size, bytes) = input;
    let mut scratch = Vec::new();
    // As records.
    let _ = Peeker::default().peek(bytes, &mut scratch);
    // In pieces: the same verdict, and at the same byte or earlier where it is bad.
    let (mut peeker, mut scratch) = (Peeker::default(), Vec::new());
    let step = usize::from(size) % 64 + 1;
    let mut early = false;
    for end in (0..bytes.len()).step_by(step) {
        match peeker.peek(&bytes[..end], &mut scratch) {
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => {
                early = true;
                break;
            }
        }
    }
    if !early {
        let mut other = Vec::new();
        let late = peeker.peek(bytes, &mut scratch).map(|hello| hello.map(|hello| Ja4::of(&hello)));
        let whole = Peeker::default().peek(bytes, &mut other).map(|hello| hello.map(|hello| Ja4::of(&hello)));
        assert_eq!(late, whole);
    }
    // As a message, in records of any size.
    let Ok(hello) = ClientHello::parse(bytes) else { return };
    if bytes.len() > HELLO_BYTES_MAX {
        return;
    }
    let mut message = vec![1];
    message.extend_from_slice(&(bytes.len() as u32).to_be_bytes()[1..]);
    message.extend_from_slice(bytes);
    let record = |piece: &[u8]| [&[22, 3, 1][..], &(piece.len() as u16).to_be_bytes(), piece].concat();
    let records: Vec<u8> = message.chunks(usize::from(size).clamp(1, 1 << 14)).flat_map(record).collect();
    let mut scratch = Vec::new();
    let again = Peeker::default().peek(&records, &mut scratch).unwrap().expect("a whole hello");
    assert_eq!(format!("{hello:?}"), format!("{again:?}"));
    let ja4 = Ja4::of(&hello);
    assert_eq!(ja4, Ja4::of(&again));
    assert_eq!(ja4.as_str().len(), 36);
    assert!(ja4.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'));
    assert!(hello.server_name().is_none_or(|name| name.is_ascii() && !name.bytes().any(|byte| byte <= b' ')));
    let _ = (hello.alpn().count(), hello.key_shares().count(), hello.extensions().count());
});

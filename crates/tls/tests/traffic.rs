//! Bytes in motion after the handshake, and hostile or unlucky bytes before it.

mod common;

use std::io::Read;

use common::*;
use propylon_tls::{Session, Step};

const CLIENTS: [fn() -> Client; 2] = [Client::tls12, Client::tls13];
const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD_MAC: u8 = 20;

#[test]
fn a_hello_in_single_bytes_or_in_many_records_is_understood() {
    for client in CLIENTS {
        for fragment in [None, Some(40)] {
            let mut config = (*client().config()).clone();
            config.max_fragment_size = fragment;
            let mut dialogue = Dialogue::new(&acceptor(), &config.into(), NAME);
            loop {
                let mut last = Step::Read;
                for byte in dialogue.client_bytes() {
                    let (step, out) = dialogue.feed(&[byte]).unwrap();
                    assert_eq!(step == Step::Read, out.is_empty() && step != Step::Done);
                    dialogue.deliver(&out).unwrap();
                    last = step;
                }
                if last == Step::Done {
                    break;
                }
            }
            assert!(dialogue.received.is_empty());
            assert_eq!(dialogue.upload(b"hello", 1), b"hello");
            assert_eq!(dialogue.download(b"hello"), b"hello");
        }
    }
}

#[test]
fn the_longest_hello_fits_the_buffer_that_is_asked_for() {
    let mut client = Client::tls13();
    client.alpn = (0..250u8).map(|index| vec![index.max(1); 250]).collect();
    client.alpn.push(b"h2".to_vec());
    let mut config = (*client.config()).clone();
    config.max_fragment_size = Some(512);
    let mut dialogue = Dialogue::new(&acceptor(), &config.into(), NAME);
    let hello = dialogue.client_bytes();
    assert!((60_000..Session::WANT_MAX).contains(&hello.len()), "{}", hello.len());
    for piece in hello.chunks(1400) {
        let (_, out) = dialogue.feed(piece).unwrap();
        dialogue.deliver(&out).unwrap();
    }
    dialogue.shake().unwrap();
}

#[test]
fn data_that_comes_with_the_end_of_the_handshake_waits_for_open() {
    use std::io::Write;
    for client in CLIENTS {
        let config = client().config();
        let acceptor = acceptor();
        for resumed in [false, true] {
            let mut dialogue = Dialogue::new(&acceptor, &config, NAME);
            let mut early = false;
            loop {
                let mut bytes = dialogue.client_bytes();
                if !dialogue.client.is_handshaking() {
                    dialogue.client.writer().write_all(b"GET /").unwrap();
                    bytes.extend(dialogue.client_bytes());
                    early = true;
                }
                let (step, out) = dialogue.feed(&bytes).unwrap();
                dialogue.deliver(&out).unwrap();
                if step == Step::Done {
                    break;
                }
            }
            assert_eq!(dialogue.session.facts().resumed, resumed);
            let (plain, ..) = dialogue.open(&[]).unwrap();
            assert_eq!(plain, if early { &b"GET /"[..] } else { b"" });
            assert_eq!(dialogue.upload(b"more", 9), b"more");
            assert_eq!(dialogue.download(b"200"), b"200");
        }
    }
}

#[test]
fn much_data_goes_both_ways_in_odd_chunks() {
    let mut random = fastrand::Rng::with_seed(7);
    for client in CLIENTS {
        let mut dialogue = Dialogue::established(&acceptor(), &client().config());
        for chunk in [1, 4999, 16_384, 40_001] {
            let len = if chunk == 1 { 20_000 } else { 300_001 };
            let plain: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
            assert!(dialogue.upload(&plain, chunk) == plain);
            assert!(dialogue.download(&plain) == plain);
        }
        assert_eq!(dialogue.seal(b""), b"");
        for len in [1, 16_383, 16_384, 16_385, 32_768] {
            let plain = vec![7; len];
            let sealed = dialogue.seal(&plain);
            assert!(sealed.len() <= dialogue.session.sealed_len(len));
            dialogue.deliver(&sealed).unwrap();
        }
    }
}

#[test]
fn either_side_may_end_first() {
    for client in CLIENTS {
        // The client ends; the server still sends, then ends too.
        let mut dialogue = Dialogue::established(&acceptor(), &client().config());
        dialogue.client.send_close_notify();
        let bytes = dialogue.client_bytes();
        let (plain, end, _) = dialogue.open(&bytes).unwrap();
        assert!(plain.is_empty() && end);
        assert_eq!(dialogue.download(b"still here"), b"still here");
        let (plain, end, _) = dialogue.open(b"bytes after the end").unwrap();
        assert!(plain.is_empty() && end);
        let mut out = Vec::new();
        dialogue.session.close(&mut out);
        dialogue.deliver(&out).unwrap();
        assert_eq!(dialogue.client.reader().read(&mut [0; 1]).unwrap(), 0);

        // The server ends; the client still sends.
        let mut dialogue = Dialogue::established(&acceptor(), &client().config());
        let mut out = Vec::new();
        dialogue.session.close(&mut out);
        dialogue.deliver(&out).unwrap();
        assert_eq!(dialogue.client.reader().read(&mut [0; 1]).unwrap(), 0);
        assert_eq!(dialogue.upload(b"not yet", 4), b"not yet");
        dialogue.session.close(&mut out);
        assert_eq!(dialogue.seal(b"no more"), b"");
    }
}

#[test]
fn both_sides_follow_a_client_to_new_keys_as_often_as_it_likes() {
    let mut dialogue = Dialogue::established(&acceptor(), &Client::tls13().config());
    for round in 0..100 {
        dialogue.client.refresh_traffic_keys().unwrap();
        assert_eq!(dialogue.upload(b"ping", 5), b"ping");
        assert_eq!(dialogue.download(b"pong"), b"pong");
        if round % 3 == 0 {
            dialogue.session.rest();
        }
    }
}

#[test]
fn a_session_that_rests_goes_on_where_it_was() {
    for client in CLIENTS {
        let mut dialogue = Dialogue::established(&acceptor(), &client().config());
        for _ in 0..3 {
            dialogue.session.rest();
            assert_eq!(dialogue.upload(b"ping", 5), b"ping");
            assert_eq!(dialogue.download(b"pong"), b"pong");
        }
    }
}

#[test]
fn a_forged_record_ends_the_session_with_an_alert() {
    for client in CLIENTS {
        let mut dialogue = Dialogue::established(&acceptor(), &client().config());
        let forged = [&[23, 3, 3, 0, 64][..], &[0; 64]].concat();
        let (failure, alert) = dialogue.open(&forged).unwrap_err();
        assert_eq!(failure.reason.label(), "decrypt-error");
        let refused = dialogue.deliver(&alert).unwrap_err();
        assert_eq!(refused, rustls::Error::AlertReceived(BAD_RECORD_MAC.into()));
        assert_eq!(dialogue.open(&[]).unwrap_err().0.reason.label(), "over");
        assert_eq!(dialogue.seal(b"x"), b"");
        let mut out = Vec::new();
        dialogue.session.close(&mut out);
        assert_eq!(out, b"");
    }
}

#[test]
fn what_is_not_tls_is_told_apart_at_its_first_byte() {
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"P", b"\x80\x2e\x01\x03\x01", b"SSH-2.0", b"\0"] {
        let mut out = Vec::new();
        let failure = acceptor().accept().handshake(&mut bytes.to_vec(), &mut out).unwrap_err();
        assert_eq!(failure.reason.label(), "not-tls");
        assert_eq!(out, b"");
    }
}

#[test]
fn a_client_of_an_older_version_is_told_so() {
    let mut hello = Dialogue::new(&acceptor(), &Client::tls12().config(), NAME).client_bytes();
    hello[10] = 2;
    // The list of versions decides: TLS 1.2 alone, and now 1.1 alone.
    let listed = hello.windows(7).position(|part| part == [0, 43, 0, 3, 2, 3, 3]).expect("supported_versions");
    hello[listed + 6] = 2;
    let mut out = Vec::new();
    let failure = acceptor().accept().handshake(&mut hello, &mut out).unwrap_err();
    assert_eq!(failure.reason.label(), "version");
    assert_eq!(out, [21, 3, 1, 0, 2, 2, 70]);
}

#[test]
fn garbage_in_a_handshake_gets_the_alert_for_it() {
    const DECODE_ERROR: u8 = 50;
    const RECORD_OVERFLOW: u8 = 22;
    for (bytes, reason, alert) in [
        (&b"\x16\x07\x01\x00\x05hello"[..], "bad-record", DECODE_ERROR),
        (b"\x16\x03\x01\x00\x05hello", "unexpected-message", UNEXPECTED_MESSAGE),
        (b"\x16\x03\x01\xff\xff", "record-overflow", RECORD_OVERFLOW),
        (b"\x16\x03\x01\x00\x00", "unexpected-message", UNEXPECTED_MESSAGE),
        (b"\x17\x03\x03\x00\x05hello", "unexpected-message", UNEXPECTED_MESSAGE),
        (b"\x16\x03\x03\x00\x04\x14\0\0\0", "unexpected-message", UNEXPECTED_MESSAGE),
    ] {
        let mut out = Vec::new();
        let failure = acceptor().accept().handshake(&mut bytes.to_vec(), &mut out).unwrap_err();
        assert_eq!(failure.reason.label(), reason, "{bytes:?}: {failure}");
        assert_eq!(out, [21, 3, 3, 0, 2, 2, alert], "{bytes:?}");
    }
}

#[test]
fn an_alert_from_the_client_is_not_answered() {
    const CERTIFICATE_UNKNOWN: u8 = 46;
    let mut dialogue = Dialogue::new(&acceptor(), &Client::tls13().config(), NAME);
    let hello = dialogue.client_bytes();
    dialogue.feed(&hello).unwrap();
    let mut out = Vec::new();
    let mut alert = [21, 3, 3, 0, 2, 2, CERTIFICATE_UNKNOWN];
    let failure = dialogue.session.handshake(&mut alert, &mut out).unwrap_err();
    assert_eq!((failure.reason.label(), out), ("certificate-unknown", Vec::new()));
}

#[test]
fn flipped_bits_in_a_handshake_never_panic() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let acceptor = acceptor();
    let configs = CLIENTS.map(|client| client().config());
    for round in 0..3000 {
        let mut dialogue = Dialogue::new(&acceptor, &configs[round % 2], NAME);
        for _ in 0..3 {
            let mut bytes = dialogue.client_bytes();
            if random.u8(..4) > 0 && !bytes.is_empty() {
                for _ in 0..random.usize(1..4) {
                    let within = if random.bool() { 80 } else { 3000 };
                    let at = random.usize(..bytes.len().min(within));
                    bytes[at] ^= 1 << random.u8(..8);
                }
            }
            let split = random.usize(..=bytes.len());
            let both = [&bytes[..split], &bytes[split..]];
            let mut over = false;
            for half in both {
                match dialogue.feed(half) {
                    Ok((_, out)) => over |= dialogue.deliver(&out).is_err(),
                    Err(_) => over = true,
                }
            }
            if over {
                break;
            }
        }
    }
}

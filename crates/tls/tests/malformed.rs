//! Input that no well-behaved client sends, at every stage of a session: each gets the alert that the RFC asks for, and
//! the session is over. The tables are to be read with RFC 8446 and RFC 5246 beside them.

mod common;

use std::sync::Arc;

use common::{Client, Dialogue, NAME, acceptor};
use propylon_tls::{Acceptor, Session, Step};
use rustls::{AlertDescription, ClientConfig, Error};

const CLOSE_NOTIFY: u8 = 0;
const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD_MAC: u8 = 20;
const RECORD_OVERFLOW: u8 = 22;
const HANDSHAKE_FAILURE: u8 = 40;
const ILLEGAL_PARAMETER: u8 = 47;
const DECODE_ERROR: u8 = 50;
const PROTOCOL_VERSION: u8 = 70;
const MISSING_EXTENSION: u8 = 109;

const CHANGE: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

const PLAIN_MAX: usize = 1 << 14;

fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
    [&[kind, 3, 3][..], &(payload.len() as u16).to_be_bytes(), payload].concat()
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as u32).to_be_bytes()[1..], body].concat()
}

/// Bytes behind their two-byte length.
fn list(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes(), bytes].concat()
}

/// A ClientHello that would be answered, until a test spoils it.
#[derive(Clone)]
struct Hello {
    session_id: Vec<u8>,
    suites: Vec<u8>,
    compressions: Vec<u8>,
    extensions: Vec<(u16, Vec<u8>)>,
    /// After everything else.
    trailer: Vec<u8>,
}

const GROUPS: u16 = 10;
const SIGNATURES: u16 = 13;
const PRE_SHARED_KEY: u16 = 41;
const VERSIONS: u16 = 43;
const PSK_MODES: u16 = 45;
const KEY_SHARE: u16 = 51;

impl Hello {
    fn tls13() -> Hello {
        let share = [&[0, 29, 0, 32][..], &[9; 32]].concat();
        Hello {
            session_id: vec![7; 32],
            suites: vec![0x13, 0x01],
            compressions: vec![0],
            extensions: vec![
                (GROUPS, list(&[0, 29])),
                (SIGNATURES, list(&[4, 3])),
                (VERSIONS, vec![2, 3, 4]),
                (KEY_SHARE, list(&share)),
            ],
            trailer: Vec::new(),
        }
    }

    fn tls12() -> Hello {
        let mut hello = Hello { suites: vec![0xc0, 0x2b], ..Hello::tls13() };
        hello.extensions.retain(|(kind, _)| ![VERSIONS, KEY_SHARE].contains(kind));
        hello
    }

    fn without(mut self, kind: u16) -> Hello {
        self.extensions.retain(|(other, _)| *other != kind);
        self
    }

    fn with(self, kind: u16, content: impl Into<Vec<u8>>) -> Hello {
        let mut hello = self.without(kind);
        hello.extensions.push((kind, content.into()));
        hello
    }

    fn again(mut self, kind: u16, content: impl Into<Vec<u8>>) -> Hello {
        self.extensions.push((kind, content.into()));
        self
    }

    fn message(&self) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([5; 32]);
        body.push(self.session_id.len() as u8);
        body.extend(&self.session_id);
        body.extend(list(&self.suites));
        body.push(self.compressions.len() as u8);
        body.extend(&self.compressions);
        let extension = |(kind, content): &(u16, Vec<u8>)| [&kind.to_be_bytes()[..], &list(content)].concat();
        body.extend(list(&self.extensions.iter().flat_map(extension).collect::<Vec<u8>>()));
        body.extend(&self.trailer);
        message(1, &body)
    }

    fn record(&self) -> Vec<u8> {
        record(HANDSHAKE, &self.message())
    }
}

/// Passes bytes from the client to a session, as its driver does. The step is none when the session has ended.
fn feed(session: &mut Session, pieces: &[&[u8]]) -> (Option<Step>, Vec<u8>) {
    let (mut buffer, mut out, mut last) = (Vec::new(), Vec::new(), Step::Read);
    for piece in pieces {
        buffer.extend_from_slice(piece);
        match session.handshake(&mut buffer, &mut out) {
            Ok((consumed, step)) => {
                buffer.drain(..consumed);
                last = step;
            }
            Err(_) => return (None, out),
        }
    }
    (Some(last), out)
}

/// One line for each case in which the session did not end with its alert, in the clear.
fn not_refused(cases: &[(&str, Vec<u8>, u8)]) -> Vec<String> {
    let server = acceptor();
    let wrong = |(what, bytes, alert): &(&str, Vec<u8>, u8)| {
        let mut session = server.accept();
        let (step, out) = feed(&mut session, &[bytes]);
        let over = session.handshake(&mut Hello::tls13().record(), &mut Vec::new()).is_err();
        let told = matches!(out[..], [ALERT, 3, 1..=3, 0, 2, 2, told] if told == *alert);
        (step.is_some() || !over || !told).then(|| format!("{what}: {step:?}, {out:?} for {alert}"))
    };
    cases.iter().filter_map(wrong).collect()
}

/// The same for a session that waits for its client's answer. The alert is encrypted where there are keys.
fn not_refused_halfway(config: &Arc<ClientConfig>, cases: &[(&str, Vec<u8>, u8)]) -> Vec<String> {
    let server = acceptor();
    let wrong = |(what, bytes, alert): &(&str, Vec<u8>, u8)| {
        let (mut dialogue, _) = halfway(&server, config);
        let (step, out) = feed(&mut dialogue.session, &[bytes]);
        let told = heard(&mut dialogue, &out);
        (step.is_some() || told != Some((*alert).into())).then(|| format!("{what}: {step:?}, {told:?} for {alert}"))
    };
    cases.iter().filter_map(wrong).collect()
}

#[test]
fn the_hello_that_the_others_are_made_from_is_answered() {
    for hello in [Hello::tls13(), Hello::tls12()] {
        let (step, out) = feed(&mut acceptor().accept(), &[&hello.record()]);
        assert_eq!((step, out[0]), (Some(Step::Write), HANDSHAKE));
    }
}

/// "If this extension is present in the ClientHello, servers MUST NOT use the ClientHello.legacy_version value for
/// version negotiation" (RFC 8446 §4.2.1).
#[test]
fn the_versions_that_a_hello_lists_count_and_not_the_one_in_front() {
    let acceptor = acceptor();
    for (minor, listed, is_spoken) in [
        (2, Some(&[2, 3, 3][..]), true),
        (0, Some(&[2, 3, 3]), true),
        (1, Some(&[4, 3, 2, 3, 3]), true),
        (2, Some(&[2, 3, 2]), false),
        (2, Some(&[4, 3, 1, 3, 2]), false),
        (2, None, false),
    ] {
        let hello = Hello::tls12();
        let mut bytes = match listed {
            Some(listed) => hello.again(VERSIONS, listed),
            None => hello,
        }
        .record();
        // Behind the headers of record and message.
        assert_eq!(bytes[9..11], [3, 3]);
        bytes[10] = minor;
        for cut in [11, 40, bytes.len()] {
            let mut session = acceptor.accept();
            let pieces = [&bytes[..cut], &bytes[cut..]];
            let (step, out) = feed(&mut session, &pieces[..1 + usize::from(cut < bytes.len())]);
            let case = format!("{minor} {listed:?} {cut}: {step:?} {out:?}");
            match is_spoken {
                true => assert_eq!(step, Some(Step::Write), "{case}"),
                false => assert!(step.is_none() && out.ends_with(&[2, PROTOCOL_VERSION]), "{case}"),
            }
        }
    }
}

#[test]
#[rustfmt::skip] // a table
fn a_record_that_cannot_come_first_is_refused() {
    let cases: [(&str, Vec<u8>, u8); 17] = [
        ("unknown type 24 (RFC 8446 §5)", record(24, b"heartbeat"), UNEXPECTED_MESSAGE),
        ("unknown type 0 (RFC 8446 §5)", record(0, &[1]), UNEXPECTED_MESSAGE),
        ("unknown type 255 (RFC 8446 §5)", record(255, &[1]), UNEXPECTED_MESSAGE),
        ("data first (RFC 8446 §5)", record(DATA, b"GET /"), UNEXPECTED_MESSAGE),
        ("change of cipher before a hello (RFC 8446 §5)", record(CHANGE, &[1]), UNEXPECTED_MESSAGE),
        ("plaintext above 2^14 (RFC 8446 §5.1)", vec![HANDSHAKE, 3, 1, 0x40, 0x01, 1], RECORD_OVERFLOW),
        ("the longest length there is (RFC 8446 §5.1)", vec![HANDSHAKE, 3, 1, 0xff, 0xff], RECORD_OVERFLOW),
        ("an empty handshake fragment (RFC 8446 §5.1, §5.4)", record(HANDSHAKE, &[]), UNEXPECTED_MESSAGE),
        ("an empty alert (RFC 8446 §5.4)", record(ALERT, &[]), UNEXPECTED_MESSAGE),
        ("half an alert (RFC 8446 §5.1)", record(ALERT, &[2]), DECODE_ERROR),
        ("an alert and a half (RFC 8446 §5.1)", record(ALERT, &[1, 0, 2]), DECODE_ERROR),
        ("another protocol's version (RFC 8446 §5.1)", vec![HANDSHAKE, 7, 1, 0, 5, 1, 0, 0, 1, 0], DECODE_ERROR),
        ("Finished first (RFC 8446 §4)", record(HANDSHAKE, &message(20, &[0; 12])), UNEXPECTED_MESSAGE),
        ("ServerHello first (RFC 8446 §4)", record(HANDSHAKE, &message(2, &[0; 40])), UNEXPECTED_MESSAGE),
        ("HelloRequest first (RFC 5246 §7.4.1.1)", record(HANDSHAKE, &message(0, &[])), UNEXPECTED_MESSAGE),
        ("unknown message (RFC 8446 §4)", record(HANDSHAKE, &message(99, &[0; 40])), UNEXPECTED_MESSAGE),
        ("unknown message, absurd length (RFC 8446 §4)", record(HANDSHAKE, b"hello"), UNEXPECTED_MESSAGE),
    ];
    assert_eq!(not_refused(&cases), Vec::<String>::new());
}

#[test]
#[rustfmt::skip] // a table
fn a_hello_that_is_malformed_or_makes_no_sense_is_refused() {
    let cut = |hello: Vec<u8>, by: usize| {
        let body = &hello[4..hello.len() - by];
        record(HANDSHAKE, &message(1, body))
    };
    let (tls13, tls12) = (Hello::tls13, Hello::tls12);
    let share = |group: u8, key: &[u8]| list(&[&[0, group][..], &list(key)].concat());
    let psk = || [list(&[&list(&[1; 8])[..], &[0; 4]].concat()), list(&[&[32][..], &[0; 32]].concat())].concat();
    let cases: [(&str, Vec<u8>, u8); 23] = [
        ("cut short (RFC 8446 §6.2)", cut(tls13().message(), 3), DECODE_ERROR),
        ("cut within the random (RFC 8446 §6.2)", record(HANDSHAKE, &message(1, &[3; 20])), DECODE_ERROR),
        ("more after the extensions (RFC 8446 §4.1.2)", Hello { trailer: vec![0], ..tls13() }.record(), DECODE_ERROR),
        ("session id of 33 bytes (RFC 8446 §4.1.2)", Hello { session_id: vec![1; 33], ..tls13() }.record(), DECODE_ERROR),
        ("odd list of suites (RFC 8446 §4.1.2)", Hello { suites: vec![0x13, 1, 0x13], ..tls13() }.record(), DECODE_ERROR),
        ("no suites (RFC 8446 §4.1.2)", Hello { suites: vec![], ..tls13() }.record(), DECODE_ERROR),
        ("no compression methods (RFC 8446 §4.1.2)", Hello { compressions: vec![], ..tls13() }.record(), DECODE_ERROR),
        ("compression in TLS 1.3 (RFC 8446 §4.1.2)", Hello { compressions: vec![1, 0], ..tls13() }.record(), ILLEGAL_PARAMETER),
        ("no null compression (RFC 5246 §7.4.1.2)", Hello { compressions: vec![1], ..tls12() }.record(), ILLEGAL_PARAMETER),
        ("no common suite (RFC 8446 §4.1.1)", Hello { suites: vec![0x13, 0x77], ..tls13() }.record(), HANDSHAKE_FAILURE),
        ("no common suite (RFC 5246 §7.4.1.3)", Hello { suites: vec![0, 0x2f], ..tls12() }.record(), HANDSHAKE_FAILURE),
        ("unknown version only (RFC 8446 §4.2.1)", tls13().with(VERSIONS, [2, 3, 9]).record(), PROTOCOL_VERSION),
        ("versions cut (RFC 8446 §4.2.1)", tls13().with(VERSIONS, [3, 3, 4, 3]).record(), DECODE_ERROR),
        ("no versions listed (RFC 8446 §4.2.1)", tls13().with(VERSIONS, [0]).record(), DECODE_ERROR),
        ("an extension twice (RFC 8446 §4.2)", tls13().again(VERSIONS, [2, 3, 4]).record(), ILLEGAL_PARAMETER),
        ("no signature algorithms (RFC 8446 §9.2)", tls13().without(SIGNATURES).record(), MISSING_EXTENSION),
        ("no groups (RFC 8446 §9.2)", tls13().without(GROUPS).record(), MISSING_EXTENSION),
        ("no shares (RFC 8446 §9.2)", tls13().without(KEY_SHARE).record(), MISSING_EXTENSION),
        ("no group in common (RFC 8446 §4.1.1)", tls13().with(GROUPS, list(&[9, 9])).with(KEY_SHARE, list(&[])).record(), HANDSHAKE_FAILURE),
        ("a share too short (RFC 8446 §4.2.8.2)", tls13().with(KEY_SHARE, share(29, &[9; 31])).record(), ILLEGAL_PARAMETER),
        ("a share of zeros (RFC 8446 §7.4.2)", tls13().with(KEY_SHARE, share(29, &[0; 32])).record(), ILLEGAL_PARAMETER),
        ("a share cut (RFC 8446 §4.2.8)", tls13().with(KEY_SHARE, list(&[0, 29, 0, 32, 1])).record(), DECODE_ERROR),
        ("pre-shared key not last (RFC 8446 §4.2.11)", tls13().with(PSK_MODES, [1, 1]).with(PRE_SHARED_KEY, psk()).again(21, [0]).record(), ILLEGAL_PARAMETER),
    ];
    assert_eq!(not_refused(&cases), Vec::<String>::new());
}

/// The alert that a client with keys reads from the session's last words.
fn heard(dialogue: &mut Dialogue, out: &[u8]) -> Option<AlertDescription> {
    match dialogue.deliver(out) {
        Err(Error::AlertReceived(alert)) => Some(alert),
        _ => None,
    }
}

/// A client that has the server's flight, and its answer, which has not been sent.
fn halfway(acceptor: &Acceptor, config: &Arc<ClientConfig>) -> (Dialogue, Vec<u8>) {
    let mut dialogue = Dialogue::new(acceptor, config, NAME);
    let hello = dialogue.client_bytes();
    let (_, flight) = dialogue.feed(&hello).unwrap();
    dialogue.deliver(&flight).unwrap();
    let answer = dialogue.client_bytes();
    (dialogue, answer)
}

#[test]
#[rustfmt::skip] // a table
fn in_the_middle_of_a_tls_1_3_handshake_the_alert_is_encrypted() {
    let config = Client::tls13().config();
    let overlong = |len: usize| [&[DATA, 3, 3][..], &(len as u16).to_be_bytes()].concat();
    let cases: [(&str, Vec<u8>, u8); 12] = [
        ("change of cipher to 2 (RFC 8446 §5)", record(CHANGE, &[2]), UNEXPECTED_MESSAGE),
        ("change of cipher, two bytes (RFC 8446 §5)", record(CHANGE, &[1, 1]), UNEXPECTED_MESSAGE),
        ("empty change of cipher (RFC 8446 §5)", record(CHANGE, &[]), UNEXPECTED_MESSAGE),
        ("a flood of changes of cipher (RFC 8446 §5)", record(CHANGE, &[1]).repeat(40), UNEXPECTED_MESSAGE),
        ("a handshake message in the clear (RFC 8446 §4.4.4)", record(HANDSHAKE, &message(20, &[0; 32])), UNEXPECTED_MESSAGE),
        ("unknown type (RFC 8446 §5)", record(24, &[0; 32]), UNEXPECTED_MESSAGE),
        ("forged (RFC 8446 §5.2)", record(DATA, &[0; 64]), BAD_RECORD_MAC),
        ("shorter than a tag (RFC 8446 §5.2)", record(DATA, &[0; 5]), BAD_RECORD_MAC),
        ("empty (RFC 8446 §5.2)", record(DATA, &[]), BAD_RECORD_MAC),
        ("a ciphertext above 2^14 + 256 (RFC 8446 §5.2)", overlong(PLAIN_MAX + 257), RECORD_OVERFLOW),
        ("the longest length there is (RFC 8446 §5.2)", overlong(65535), RECORD_OVERFLOW),
        ("an empty handshake fragment (RFC 8446 §5.4)", record(HANDSHAKE, &[]), UNEXPECTED_MESSAGE),
    ];
    assert_eq!(not_refused_halfway(&config, &cases), Vec::<String>::new());
}

#[test]
fn one_or_two_changes_of_cipher_in_a_tls_1_3_handshake_are_ignored() {
    let (mut dialogue, answer) = halfway(&acceptor(), &Client::tls13().config());
    // The client has sent one of its own accord (RFC 8446 appendix D.4).
    assert_eq!(answer[..6], [CHANGE, 3, 3, 0, 1, 1]);
    let bytes = [&answer[..6], &answer].concat();
    assert_eq!(feed(&mut dialogue.session, &[&bytes]).0, Some(Step::Done));
}

#[test]
#[rustfmt::skip] // a table
fn in_the_middle_of_a_tls_1_2_handshake_order_and_form_are_held_to() {
    let config = Client::tls12().config();
    let exchange = |point: &[u8]| record(HANDSHAKE, &message(16, &[&[point.len() as u8][..], point].concat()));
    let finished = || record(HANDSHAKE, &[0; 40]);
    let cases: [(&str, Vec<u8>, u8); 12] = [
        ("change of cipher too early (RFC 5246 §7.1)", record(CHANGE, &[1]), UNEXPECTED_MESSAGE),
        ("data (RFC 5246 §6.2.1)", record(DATA, b"GET /"), UNEXPECTED_MESSAGE),
        ("another hello (RFC 5246 §7.4.1.2)", Hello::tls12().record(), UNEXPECTED_MESSAGE),
        ("unknown type (RFC 5246 §6)", record(24, &[0; 32]), UNEXPECTED_MESSAGE),
        ("a record above 2^14 + 2048 (RFC 5246 §6.2.3)", vec![HANDSHAKE, 3, 3, 0x48, 0x01], RECORD_OVERFLOW),
        ("an empty handshake fragment (RFC 5246 §6.2.1)", record(HANDSHAKE, &[]), UNEXPECTED_MESSAGE),
        ("an exchange without a point (RFC 5246 §7.2.2)", record(HANDSHAKE, &message(16, &[])), DECODE_ERROR),
        ("an exchange with more behind it (RFC 5246 §7.2.2)", record(HANDSHAKE, &message(16, &[1, 2, 3])), DECODE_ERROR),
        ("a point of zeros (RFC 8422 §5.11)", exchange(&[0; 32]), ILLEGAL_PARAMETER),
        ("a point too short (RFC 8422 §5.11)", exchange(&[9; 31]), ILLEGAL_PARAMETER),
        ("change of cipher to 2 (RFC 5246 §7.2.2)", [exchange(&[9; 32]), record(CHANGE, &[2])].concat(), DECODE_ERROR),
        ("forged Finished (RFC 5246 §7.2.2)", [exchange(&[9; 32]), record(CHANGE, &[1]), finished()].concat(), BAD_RECORD_MAC),
    ];
    assert_eq!(not_refused_halfway(&config, &cases), Vec::<String>::new());
}

#[test]
fn a_client_that_ends_a_handshake_is_not_answered() {
    let server = acceptor();
    for bytes in [[1, CLOSE_NOTIFY], [2, CLOSE_NOTIFY], [2, HANDSHAKE_FAILURE], [2, 200]] {
        let (step, out) = feed(&mut server.accept(), &[&record(ALERT, &bytes)]);
        assert_eq!((step, out), (None, vec![]), "alert {bytes:?}");
    }
}

#[test]
fn warnings_before_a_hello_are_few_or_the_session_ends() {
    let mut session = acceptor().accept();
    let warning = record(ALERT, &[1, 112]);
    let mut sent = 0;
    while feed(&mut session, &[&warning]).0.is_some() {
        sent += 1;
        assert!(sent < 32, "as many warnings as it likes");
    }
}

/// Result of a hello of so many bytes in records of so many, in pieces of so many; and the bytes kept of it.
fn shown_in_pieces(hello_bytes: usize, payload_max: usize, segment: usize) -> (Step, usize) {
    let padding = hello_bytes - Hello::tls13().again(21, []).message().len();
    let hello = Hello::tls13().again(21, vec![0; padding]).message();
    let bytes: Vec<u8> = hello.chunks(payload_max).flat_map(|part| record(HANDSHAKE, part)).collect();
    let mut session = acceptor().accept();
    let (mut buffer, mut out, mut last) = (Vec::new(), Vec::new(), Step::Read);
    for piece in bytes.chunks(segment) {
        buffer.extend_from_slice(piece);
        let (consumed, step) = session.handshake(&mut buffer, &mut out).unwrap();
        buffer.drain(..consumed);
        last = step;
        if buffer.len() >= Session::WANT_MAX {
            break;
        }
    }
    (last, buffer.len())
}

#[test]
fn a_hello_of_the_legal_size_is_understood_however_it_is_cut() {
    // The longest list of extensions there is, nearly (RFC 8446 §4.1.2).
    for (hello_bytes, payload_max, segment) in [
        (65_000, PLAIN_MAX, 1 << 20),
        (65_000, PLAIN_MAX, 1460),
        (65_000, PLAIN_MAX, 1),
        (65_000, 120, 1460),
        (11_000, 1, 1 << 20),
        (11_000, 1, 1460),
        (2_000, 1, 1),
    ] {
        let shown = shown_in_pieces(hello_bytes, payload_max, segment);
        assert_eq!(shown, (Step::Write, 0), "{hello_bytes} bytes in records of {payload_max}, by {segment}");
    }
}

#[test]
fn a_hello_that_is_mostly_record_headers_comes_to_a_bound() {
    let (step, kept) = shown_in_pieces(65_000, 1, 1460);
    assert_eq!(step, Step::Read);
    assert!((Session::WANT_MAX..Session::WANT_MAX + 1460).contains(&kept), "{kept} bytes kept");
}

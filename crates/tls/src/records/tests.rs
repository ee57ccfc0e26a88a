//! Records as no library would send them. The client here is the other pair of keys.

use super::secrets::RecordKey;
use super::*;

const ALL: [(Version, Suite); 6] = [
    (Version::Tls12, Suite::Aes128Gcm),
    (Version::Tls12, Suite::Aes256Gcm),
    (Version::Tls12, Suite::Chacha20Poly1305),
    (Version::Tls13, Suite::Aes128Gcm),
    (Version::Tls13, Suite::Aes256Gcm),
    (Version::Tls13, Suite::Chacha20Poly1305),
];
const TLS13: (Version, Suite) = (Version::Tls13, Suite::Aes128Gcm);
const TLS12: (Version, Suite) = (Version::Tls12, Suite::Aes128Gcm);

struct Pair {
    server: Records,
    /// The client's keys.
    sealing: Protection,
    opening: Protection,
}

fn protection((version, suite): (Version, Suite), seed: u8) -> Protection {
    let secret = Some(Secret::new([seed; 48]));
    let mut protection = Protection::new(version, suite, secret, RecordKey::new(&[seed; 32], &[seed; 12])).unwrap();
    if version == Version::Tls13 {
        protection.update();
    }
    protection
}

impl Pair {
    fn new(kind: (Version, Suite)) -> Pair {
        let server = Records {
            sealing: protection(kind, 1),
            opening: protection(kind, 2),
            version: kind.0,
            sealed_max: 1 << 24,
            partial: Partial::default(),
            records_without_data: 0,
            end: false,
            closed: false,
            worn_out: false,
        };
        Pair { server, sealing: protection(kind, 2), opening: protection(kind, 1) }
    }

    fn record(&mut self, content: u8, plain: &[u8]) -> Vec<u8> {
        let mut record = vec![0; self.sealing.overhead() + plain.len()];
        self.sealing.seal(content, plain, &mut record);
        record
    }

    fn open(&mut self, bytes: &[u8]) -> (Result<Vec<u8>, &'static str>, Vec<u8>) {
        let (mut buffer, mut out) = (bytes.to_vec(), Vec::new());
        let opened = self.server.open(&mut buffer, 0..bytes.len(), &mut out);
        let plain = opened.map(|opened| {
            assert_eq!(opened.consumed, bytes.len());
            buffer[..opened.plain].to_vec()
        });
        (plain.map_err(|failure| failure.reason.label()), out)
    }

    /// Sends the server one record.
    fn send(&mut self, content: u8, plain: &[u8]) -> Answer {
        let record = self.record(content, plain);
        let (plain, out) = self.open(&record);
        (plain, self.read(out))
    }

    /// Records that the client opens in bytes from the server; key updates are applied.
    fn read(&mut self, mut bytes: Vec<u8>) -> Vec<(u8, Vec<u8>)> {
        let mut messages = Vec::new();
        let mut bytes = bytes.as_mut_slice();
        while !bytes.is_empty() {
            let len = HEADER_LEN + usize::from(u16::from_be_bytes([bytes[3], bytes[4]]));
            let (record, rest) = bytes.split_at_mut(len);
            let (content, place) = self.opening.open(record).unwrap();
            messages.push((content, record[place].to_vec()));
            if content == HANDSHAKE {
                self.opening.update();
            }
            bytes = rest;
        }
        messages
    }

    /// Answer to a record that was not sealed by this client.
    fn open_unread(&mut self, record: &[u8]) -> Answer {
        let (plain, out) = self.open(record);
        (plain, self.read(out))
    }

    fn works(&mut self) {
        assert_eq!(self.send(APPLICATION_DATA, b"ping"), (Ok(b"ping".to_vec()), vec![]));
        let mut out = vec![0; self.server.sealed_len(4)];
        let len = self.server.seal(b"pong", &mut out);
        out.truncate(len);
        assert_eq!(self.read(out).last(), Some(&(APPLICATION_DATA, b"pong".to_vec())));
    }
}

/// Answer to a record: plaintext or a reason, and what the client receives.
type Answer = (Result<Vec<u8>, &'static str>, Vec<(u8, Vec<u8>)>);

fn refused((plain, answer): Answer, reason: &'static str, alert: Alert) {
    assert_eq!(plain, Err(reason));
    assert_eq!(answer.last(), Some(&(ALERT, vec![2, alert as u8])));
}

#[test]
fn data_goes_both_ways_with_every_suite_and_after_a_rest() {
    for kind in ALL {
        let mut pair = Pair::new(kind);
        for _ in 0..3 {
            pair.works();
            pair.server.rest();
        }
    }
}

#[test]
fn several_records_open_at_once_and_a_cut_one_waits() {
    for kind in ALL {
        let mut pair = Pair::new(kind);
        let mut bytes =
            [b"one ".as_slice(), b"two ", b"three"].map(|data| pair.record(APPLICATION_DATA, data)).concat();
        let end = bytes.len();
        let mut out = Vec::new();
        let opened = pair.server.open(&mut bytes, 0..end - 1, &mut out).unwrap();
        assert_eq!(&bytes[..opened.plain], b"one two ");
        let opened = pair.server.open(&mut bytes, opened.consumed..end, &mut out).unwrap();
        assert_eq!(&bytes[..opened.plain], b"three");
    }
}

#[test]
fn a_key_update_is_followed_and_answered_when_asked_for() {
    for suite in [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::Chacha20Poly1305] {
        let mut pair = Pair::new((Version::Tls13, suite));
        for (request, answer) in [(0, vec![]), (1, vec![(HANDSHAKE, vec![KEY_UPDATE, 0, 0, 1, 0])])] {
            assert_eq!(pair.send(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, request]), (Ok(vec![]), answer));
            pair.sealing.update();
            pair.works();
        }
    }
}

#[test]
fn a_key_update_in_pieces_is_one() {
    let mut pair = Pair::new(TLS13);
    for byte in [KEY_UPDATE, 0, 0, 1, 0] {
        assert_eq!(pair.send(HANDSHAKE, &[byte]), (Ok(vec![]), vec![]));
    }
    pair.sealing.update();
    pair.works();
}

#[test]
fn messages_that_cannot_come_are_refused() {
    use Alert::*;
    for (content, message, reason, alert) in [
        (HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 2][..], "protocol-violation", IllegalParameter),
        (HANDSHAKE, &[KEY_UPDATE, 0, 0, 2, 0, 0], "bad-record", DecodeError),
        (HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0, KEY_UPDATE], "unexpected-message", UnexpectedMessage),
        (HANDSHAKE, &[1, 0, 0, 0], "unexpected-message", UnexpectedMessage),
        (HANDSHAKE, &[4], "unexpected-message", UnexpectedMessage),
        (HANDSHAKE, &[], "unexpected-message", UnexpectedMessage),
        (CHANGE_CIPHER_SPEC, &[1], "unexpected-message", UnexpectedMessage),
        (24, b"heartbeat", "unexpected-message", UnexpectedMessage),
        (ALERT, &[], "unexpected-message", UnexpectedMessage),
        (ALERT, &[1], "bad-record", DecodeError),
        (ALERT, &[1, 0, 1, 0], "bad-record", DecodeError),
    ] {
        refused(Pair::new(TLS13).send(content, message), reason, alert);
    }
    for (content, message, reason, alert) in [
        (HANDSHAKE, &[0, 0, 0, 0][..], "unexpected-message", UnexpectedMessage),
        (HANDSHAKE, &[20, 0, 0, 12], "unexpected-message", UnexpectedMessage),
        (HANDSHAKE, &[], "unexpected-message", UnexpectedMessage),
        (CHANGE_CIPHER_SPEC, &[1], "unexpected-message", UnexpectedMessage),
        (ALERT, &[], "bad-record", DecodeError),
    ] {
        refused(Pair::new(TLS12).send(content, message), reason, alert);
    }
}

#[test]
fn a_message_in_part_lets_no_data_through() {
    for (content, message) in [(APPLICATION_DATA, &[1, 0][..]), (APPLICATION_DATA, &[]), (ALERT, &[1, 0])] {
        let mut pair = Pair::new(TLS13);
        assert_eq!(pair.send(HANDSHAKE, &[KEY_UPDATE, 0]), (Ok(vec![]), vec![]));
        refused(pair.send(content, message), "unexpected-message", Alert::UnexpectedMessage);
        let mut pair = Pair::new(TLS12);
        assert!(pair.send(HANDSHAKE, &[1, 0, 0, 9, 0]).0.is_ok());
        refused(pair.send(content, message), "unexpected-message", Alert::UnexpectedMessage);
    }
}

#[test]
fn renegotiation_is_declined_and_data_goes_on() {
    let declined = vec![(ALERT, vec![1, Alert::NoRenegotiation as u8])];
    let hello = [&[1, 0, 0, 200][..], &[7; 200]].concat();
    for kind in &ALL[..3] {
        for cut in [0, 1, 3, 4, 5, 100, 204] {
            let mut pair = Pair::new(*kind);
            let parts = [&hello[..cut], &hello[cut..]];
            let answers = parts.iter().filter(|part| !part.is_empty()).flat_map(|part| pair.send(HANDSHAKE, part).1);
            assert_eq!(answers.collect::<Vec<_>>(), declined);
            pair.works();
        }
    }
    // Two in one record are two; a record full of empty ones is a flood.
    let mut pair = Pair::new(TLS12);
    assert_eq!(pair.send(HANDSHAKE, &[&hello[..], &hello].concat()).1.len(), 2);
    refused(pair.send(HANDSHAKE, &[1, 0, 0, 0].repeat(100)), "flood", Alert::UnexpectedMessage);
}

#[test]
fn records_without_data_are_allowed_a_few_times_between_data() {
    let empty = (APPLICATION_DATA, &[][..]);
    let cancelled = (ALERT, &[1, Alert::UserCanceled as u8][..]);
    let update = (HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 1][..]);
    for (kind, (content, message)) in
        [(TLS12, empty), (TLS12, cancelled), (TLS13, empty), (TLS13, cancelled), (TLS13, update)]
    {
        let mut pair = Pair::new(kind);
        for _ in 0..3 {
            for _ in 0..RECORDS_WITHOUT_DATA_MAX {
                assert_eq!(pair.send(content, message).0, Ok(vec![]));
                if content == HANDSHAKE {
                    pair.sealing.update();
                }
            }
            pair.works();
        }
        for _ in 0..RECORDS_WITHOUT_DATA_MAX {
            assert!(pair.send(content, message).0.is_ok());
            if content == HANDSHAKE {
                pair.sealing.update();
            }
        }
        refused(pair.send(content, message), "flood", Alert::UnexpectedMessage);
    }
}

#[test]
fn a_clients_alert_ends_the_session_without_an_answer() {
    const HANDSHAKE_FAILURE: u8 = 40;
    for kind in ALL {
        let mut pair = Pair::new(kind);
        assert_eq!(pair.send(ALERT, &[2, HANDSHAKE_FAILURE]), (Err("peer-alert"), vec![]));
        let mut pair = Pair::new(kind);
        let level = if kind.0 == Version::Tls12 { 1 } else { 2 };
        pair.send(ALERT, &[level, 0]).0.unwrap();
        assert!(pair.server.end);
    }
    // Levels mean nothing in TLS 1.3.
    assert_eq!(Pair::new(TLS13).send(ALERT, &[1, HANDSHAKE_FAILURE]).0, Err("peer-alert"));
    assert_eq!(Pair::new(TLS12).send(ALERT, &[1, HANDSHAKE_FAILURE]).0, Ok(vec![]));
}

/// RFC 8446 §6.1.
#[test]
fn what_follows_a_clients_close_notify_is_thrown_away_unread() {
    for kind in ALL {
        let mut pair = Pair::new(kind);
        let closing = [pair.record(ALERT, &[1, 0]), b"anything but a record".to_vec()].concat();
        let (mut bytes, mut out) = (closing.clone(), Vec::new());
        let opened = pair.server.open(&mut bytes, 0..closing.len(), &mut out).unwrap();
        assert_eq!((opened.plain, opened.consumed, opened.end), (0, closing.len(), true));
        let opened = pair.server.open(&mut [0; 9], 0..9, &mut out).unwrap();
        assert_eq!((opened.plain, opened.consumed, opened.end), (0, 9, true));
        assert!(out.is_empty());
    }
}

#[test]
fn nothing_is_said_behind_our_own_close_notify() {
    for kind in ALL {
        let mut pair = Pair::new(kind);
        let (mut out, mut sealed) = (Vec::new(), [0; 100]);
        pair.server.close(&mut out);
        assert_eq!(pair.read(out), [(ALERT, vec![1, 0])]);
        let mut out = Vec::new();
        pair.server.close(&mut out);
        assert!(out.is_empty(), "once");
        assert_eq!(pair.server.seal(b"late", &mut sealed), 0);
        // Data that the client still sends is accepted, but no longer answered.
        assert_eq!(pair.send(APPLICATION_DATA, b"ping"), (Ok(b"ping".to_vec()), vec![]));
        let asking: &[u8] = if kind.0 == Version::Tls13 { &[KEY_UPDATE, 0, 0, 1, 1] } else { &[1, 0, 0, 0] };
        assert_eq!(pair.send(HANDSHAKE, asking), (Ok(vec![]), vec![]));
        if kind.0 == Version::Tls13 {
            pair.sealing.update();
        }
        assert_eq!(pair.send(APPLICATION_DATA, b"ping"), (Ok(b"ping".to_vec()), vec![]));
        assert_eq!(pair.send(ALERT, &[1]), (Err("bad-record"), vec![]));
    }
}

#[test]
fn a_session_that_was_refused_says_nothing_more() {
    for kind in ALL {
        let mut pair = Pair::new(kind);
        refused(pair.send(ALERT, &[1]), "bad-record", Alert::DecodeError);
        let (mut out, mut sealed) = (Vec::new(), [0; 100]);
        pair.server.close(&mut out);
        assert_eq!((out.len(), pair.server.seal(b"late", &mut sealed)), (0, 0));
    }
}

/// A TLS 1.3 record with any inner plaintext: what it holds, its type and its padding.
fn padded(pair: &mut Pair, inner: &[u8]) -> Vec<u8> {
    // The last byte of the inner plaintext stands where the type does.
    let (last, plain) = inner.split_last().unwrap();
    pair.record(*last, plain)
}

#[test]
fn padding_is_taken_off() {
    let mut pair = Pair::new(TLS13);
    let record = padded(&mut pair, &[b"data\0", &[APPLICATION_DATA][..], &[0; 300]].concat());
    assert_eq!(pair.open(&record).0, Ok(b"data\0".to_vec()));
    let nothing = padded(&mut pair, &[0; 9]);
    let (plain, out) = pair.open(&nothing);
    refused((plain, pair.read(out)), "unexpected-message", Alert::UnexpectedMessage);
}

#[test]
fn padding_counts_and_any_other_byte_behind_the_data_is_a_type() {
    let full = |len: usize| {
        let mut inner = b"data".to_vec();
        inner.push(APPLICATION_DATA);
        inner.resize(len, 0);
        inner
    };
    let mut pair = Pair::new(TLS13);
    let longest = padded(&mut pair, &full(PLAIN_MAX + 1));
    assert_eq!(pair.open(&longest).0, Ok(b"data".to_vec()));
    let longer = padded(&mut pair, &full(PLAIN_MAX + 2));
    refused(pair.open_unread(&longer), "record-overflow", Alert::RecordOverflow);
    let mut pair = Pair::new(TLS13);
    let odd = padded(&mut pair, &[b"data", &[APPLICATION_DATA, 1, 0][..]].concat());
    refused(pair.open_unread(&odd), "unexpected-message", Alert::UnexpectedMessage);
}

#[test]
fn records_that_are_too_long_or_too_short_or_in_the_clear_are_refused() {
    for kind in ALL {
        let mut pair = Pair::new(kind);
        let plain = vec![7; PLAIN_MAX];
        assert!(pair.send(APPLICATION_DATA, &plain).0 == Ok(plain.clone()));
        let longer = vec![7; PLAIN_MAX + 1];
        refused(pair.send(APPLICATION_DATA, &longer), "record-overflow", Alert::RecordOverflow);

        let raw = |header: [u8; 5], len: usize| {
            let mut pair = Pair::new(kind);
            let (plain, out) = pair.open(&[&header[..], &vec![0; len]].concat());
            (plain, pair.read(out))
        };
        refused(raw([23, 3, 3, 0, 3], 3), "decrypt-error", Alert::BadRecordMac);
        refused(raw([23, 3, 3, 0, 0], 0), "decrypt-error", Alert::BadRecordMac);
        refused(raw([23, 3, 3, 0x48, 1], 0), "record-overflow", Alert::RecordOverflow);
        refused(raw([23, 2, 3, 0, 1], 0), "bad-record", Alert::DecodeError);
        refused(raw([20, 3, 3, 0, 1], 1), "unexpected-message", Alert::UnexpectedMessage);
        let (reason, alert) = match kind.0 {
            Version::Tls13 => ("unexpected-message", Alert::UnexpectedMessage),
            Version::Tls12 => ("decrypt-error", Alert::BadRecordMac),
        };
        refused(raw([21, 3, 3, 0, 2], 2), reason, alert);
    }
}

/// RFC 8446 §5.2: 2^14 + 256; RFC 5246 §6.2.3: 2^14 + 2048.
#[test]
fn a_record_is_refused_by_its_header_if_it_is_longer_than_may_be() {
    for kind in ALL {
        let longest: u16 = if kind.0 == Version::Tls13 { 16_640 } else { 18_432 };
        let open = |len: u16| {
            let [high, low] = len.to_be_bytes();
            let opened = Pair::new(kind).server.open(&mut [23, 3, 3, high, low], 0..5, &mut Vec::new());
            opened.map(|opened| opened.consumed).map_err(|failure| failure.reason.label())
        };
        assert_eq!(open(longest), Ok(0), "{kind:?}: the rest may come");
        assert_eq!(open(longest + 1), Err("record-overflow"), "{kind:?}");
    }
}

#[test]
fn a_record_cannot_be_repeated_or_left_out() {
    for kind in ALL {
        let mut pair = Pair::new(kind);
        let first = pair.record(APPLICATION_DATA, b"1");
        let second = pair.record(APPLICATION_DATA, b"2");
        assert!(pair.open(&first).0.is_ok());
        assert_eq!(pair.open(&first).0, Err("decrypt-error"));
        assert_eq!(Pair::new(kind).open(&second).0, Err("decrypt-error"));
    }
}

#[test]
fn worn_keys_are_replaced_in_tls_1_3_and_end_a_tls_1_2_session() {
    for kind in ALL {
        let mut pair = Pair::new(kind);
        pair.server.sealed_max = 5;
        pair.works();
        let plain = vec![7; 3 * PLAIN_MAX];
        let mut records = Vec::new();
        for _ in 0..4 {
            let mut out = vec![0; pair.server.sealed_len(plain.len())];
            let len = pair.server.seal(&plain, &mut out);
            out.truncate(len);
            records.extend(pair.read(out).into_iter().map(|(content, _)| content));
            assert!(pair.server.sealing.sequence <= 5);
        }
        const DATA: u8 = APPLICATION_DATA;
        match kind.0 {
            Version::Tls13 => assert_eq!(
                records,
                [
                    DATA, DATA, DATA, HANDSHAKE, DATA, DATA, DATA, HANDSHAKE, DATA, DATA, DATA, HANDSHAKE, DATA, DATA,
                    DATA
                ]
            ),
            Version::Tls12 => {
                assert_eq!(records, [DATA, DATA, DATA]);
                assert!(pair.server.is_worn_out());
                let mut out = Vec::new();
                pair.server.close(&mut out);
                assert_eq!(pair.read(out), [(ALERT, vec![1, 0])]);
            }
        }
    }
}

/// The figure of RFC 8446 §5.5 and RFC 9325 §4.4: 2^24.5 full-size records.
#[test]
fn a_key_is_given_up_within_what_the_rfc_allows_and_not_long_before() {
    const ALLOWED: u64 = 23_726_566;
    assert!(u128::from(ALLOWED).pow(2) <= 1 << 49 && u128::from(ALLOWED + 1).pow(2) > 1 << 49);
    for suite in [Suite::Aes128Gcm, Suite::Aes256Gcm] {
        assert_eq!(sealed_max(suite), 1 << 24);
        // With the alert that ends the session.
        assert!(sealed_max(suite) < ALLOWED);
    }
    assert!(sealed_max(Suite::Chacha20Poly1305) > 1 << 63);
    for kind in ALL {
        let mut pair = Pair::new(kind);
        pair.server.sealed_max = sealed_max(kind.1);
        let limit = pair.server.sealed_max;
        // The records before have been sealed: what there is to try are the last ones.
        (pair.server.sealing.sequence, pair.opening.sequence) = (limit - 2, limit - 2);
        pair.works();
        match kind.0 {
            Version::Tls12 => {
                let mut out = [0; 100];
                assert_eq!((pair.server.seal(b"more", &mut out), pair.server.is_worn_out()), (0, true));
                let mut out = Vec::new();
                pair.server.close(&mut out);
                assert_eq!(pair.read(out), [(ALERT, vec![1, 0])]);
            }
            // One more is the key update's, and then it goes on.
            Version::Tls13 => {
                pair.works();
                assert!(pair.server.sealing.sequence < 3 && !pair.server.is_worn_out());
            }
        }
    }
}

#[test]
fn a_tls_1_2_session_says_that_its_key_wears_when_half_of_it_is_left() {
    for kind in ALL {
        let mut pair = Pair::new(kind);
        pair.server.sealed_max = 8;
        for _ in 0..4 {
            assert!(!pair.server.is_wearing(), "{kind:?}");
            pair.works();
        }
        assert_eq!(pair.server.is_wearing(), kind.0 == Version::Tls12, "{kind:?}");
        assert!(!pair.server.is_worn_out());
    }
}

/// Later data must not be sealed after data was refused: the peer would read it in the wrong place.
#[test]
fn a_worn_out_session_seals_nothing_more_however_little_it_is() {
    let mut pair = Pair::new(TLS12);
    pair.server.sealed_max = 5;
    pair.works();
    let mut out = vec![0; 5 * PLAIN_MAX];
    assert_eq!(pair.server.seal(&vec![7; 4 * PLAIN_MAX], &mut out), 0);
    assert_eq!(pair.server.seal(b"x", &mut out), 0);
}

#[test]
fn the_limit_of_a_key_can_be_lowered_and_not_raised() {
    let limit = |lowered: u64| {
        lowered_limit::towards_clients(lowered);
        let records = lowered_limit::lower(Pair::new(TLS13).server, false);
        lowered_limit::towards_clients(u64::MAX);
        records.sealed_max
    };
    assert_eq!((limit(7), limit(u64::MAX)), (7, SEALED_MAX_GCM));
}

#[test]
fn keys_that_do_not_follow_from_their_secret_are_found_out() {
    assert!(ALL.iter().all(|kind| protection(*kind, 1).is_consistent()));
    let secret = Some(Secret::new([1; 48]));
    let stray = Protection::new(TLS13.0, TLS13.1, secret, RecordKey::new(&[1; 32], &[1; 12])).unwrap();
    assert!(!stray.is_consistent());
}

#[test]
fn a_client_that_wishes_to_renegotiate_for_ever_does_not_wear_a_key_beyond_its_limit() {
    let mut pair = Pair::new(TLS12);
    pair.server.sealed_max = 5;
    for _ in 0..20 {
        assert_eq!(pair.send(APPLICATION_DATA, b"ping").0, Ok(b"ping".to_vec()));
        assert!(pair.send(HANDSHAKE, &[1, 0, 0, 0]).0.is_ok());
        assert!(pair.server.sealing.sequence <= 5);
    }
}

/// RFC 8446 §5.3, RFC 5246 §6.1.
#[test]
fn a_record_number_never_wraps() {
    for kind in ALL {
        let mut pair = Pair::new(kind);
        (pair.server.opening.sequence, pair.sealing.sequence) = (u64::MAX - 1, u64::MAX - 1);
        let last = pair.record(APPLICATION_DATA, b"last");
        assert_eq!(pair.open(&last).0, Ok(b"last".to_vec()));
        refused(pair.open_unread(&last), "keys-exhausted", Alert::UnexpectedMessage);
    }
}

#[test]
fn flipped_and_cut_records_never_panic() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..20_000 {
        let mut pair = Pair::new(ALL[round % 6]);
        let len = random.usize(..64);
        let plain: Vec<u8> = (0..len).map(|_| random.u8(..)).collect();
        let mut bytes = pair.record(random.u8(20..25), &plain);
        if random.bool() {
            let at = random.usize(..bytes.len());
            bytes[at] ^= 1 << random.u8(..8);
        }
        bytes.truncate(random.usize(..=bytes.len()));
        let end = bytes.len();
        let mut out = Vec::new();
        let _ = pair.server.open(&mut bytes, 0..end, &mut out);
    }
}

/// Answer to a record from a server.
fn from_server(pair: &mut Pair, messages: &mut Messages, content: u8, plain: &[u8]) -> Answer {
    let mut record = pair.record(content, plain);
    let (len, mut out) = (record.len(), Vec::new());
    let opened = pair.server.open_from(&mut Peer::Server(messages), &mut record, 0..len, &mut out);
    let plain = opened.map(|opened| record[..opened.plain].to_vec()).map_err(|failure| failure.reason.label());
    (plain, pair.read(out))
}

#[test]
fn a_server_may_send_tickets_and_key_updates_and_nothing_else() {
    let ticket = [&[4, 0, 0, 9][..], &[7; 9]].concat();
    let mut pair = Pair::new(TLS13);
    let mut messages = Messages::default();
    for piece in [&ticket[..], &ticket[..5], &ticket[5..], &[&ticket[..], &ticket].concat()] {
        assert_eq!(from_server(&mut pair, &mut messages, HANDSHAKE, piece), (Ok(vec![]), vec![]));
    }
    let answer = vec![(HANDSHAKE, vec![KEY_UPDATE, 0, 0, 1, 0])];
    let update = [&ticket[..], &[KEY_UPDATE, 0, 0, 1, 1]].concat();
    assert_eq!(from_server(&mut pair, &mut messages, HANDSHAKE, &update), (Ok(vec![]), answer));
    pair.sealing.update();
    assert_eq!(from_server(&mut pair, &mut messages, APPLICATION_DATA, b"data").0, Ok(b"data".to_vec()));
    for (content, bytes, reason, alert) in [
        (HANDSHAKE, &[13, 0, 0, 0][..], "unexpected-message", Alert::UnexpectedMessage),
        (HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 2], "protocol-violation", Alert::IllegalParameter),
        (HANDSHAKE, &[KEY_UPDATE, 0, 0, 2, 0, 0], "bad-record", Alert::DecodeError),
        (HANDSHAKE, &[], "unexpected-message", Alert::UnexpectedMessage),
    ] {
        refused(from_server(&mut Pair::new(TLS13), &mut Messages::default(), content, bytes), reason, alert);
    }
    // Half a ticket lets no data through.
    let mut pair = Pair::new(TLS13);
    assert_eq!(from_server(&mut pair, &mut messages, HANDSHAKE, &ticket[..5]).0, Ok(vec![]));
    let answer = from_server(&mut pair, &mut messages, APPLICATION_DATA, b"data");
    refused(answer, "unexpected-message", Alert::UnexpectedMessage);
}

#[test]
fn a_server_that_wants_to_renegotiate_hears_that_this_is_not_done() {
    let declined = vec![(ALERT, vec![1, Alert::NoRenegotiation as u8])];
    let mut pair = Pair::new(TLS12);
    let mut messages = Messages::default();
    assert_eq!(from_server(&mut pair, &mut messages, HANDSHAKE, &[0, 0, 0, 0]), (Ok(vec![]), declined));
    assert_eq!(from_server(&mut pair, &mut messages, APPLICATION_DATA, b"data").0, Ok(b"data".to_vec()));
    let hello = from_server(&mut pair, &mut messages, HANDSHAKE, &[1, 0, 0, 0]);
    refused(hello, "unexpected-message", Alert::UnexpectedMessage);
}

#[test]
fn a_server_that_sends_tickets_without_end_is_a_flood() {
    let mut pair = Pair::new(TLS13);
    let mut messages = Messages::default();
    for _ in 0..RECORDS_WITHOUT_DATA_MAX {
        assert!(from_server(&mut pair, &mut messages, HANDSHAKE, &[4, 0, 0, 0]).0.is_ok());
    }
    let answer = from_server(&mut pair, &mut messages, HANDSHAKE, &[4, 0, 0, 0]);
    refused(answer, "flood", Alert::UnexpectedMessage);
}

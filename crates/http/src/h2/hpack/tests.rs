//! Blocks of RFC 7541, blocks that are none, and lists that go there and back.

use super::*;
use crate::fault::Fault;
use crate::h2::{FieldWriter, Pseudo};

const LIMITS: ListLimits = ListLimits { list_bytes: 16 * 1024, fields: 100 };

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<(Vec<String>, Decoded), Corrupt> {
    let (mut text, mut lines) = (Vec::new(), Vec::new());
    let decoded = decoder.decode(block, &mut text, &LIMITS, &mut |text: &[u8], field| {
        let line = [field.name.bytes(text), b"=", field.value.bytes(text), if field.secret { b" secret" } else { b"" }];
        lines.push(String::from_utf8_lossy(&line.concat()).into_owned());
    })?;
    Ok((lines, decoded))
}

/// Blocks, the fields that they mean, and the size of the table behind each.
fn reads(table_bytes_max: usize, dialogue: &[(&str, &[&str], usize)]) {
    let mut decoder = Decoder::new(table_bytes_max);
    for (hex, expected, table_bytes) in dialogue {
        let (lines, decoded) = decode(&mut decoder, &bytes(hex)).unwrap();
        assert_eq!(lines, *expected);
        assert_eq!((decoder.table_bytes(), decoded.flaw, decoded.is_cut), (*table_bytes, None, false));
    }
}

#[test]
fn single_fields_of_the_rfc_are_read() {
    // RFC 7541 §C.2.
    reads(
        4096,
        &[
            ("400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572", &["custom-key=custom-header"], 55),
            ("040c 2f73 616d 706c 652f 7061 7468", &[":path=/sample/path"], 55),
            ("1008 7061 7373 776f 7264 0673 6563 7265 74", &["password=secret secret"], 55),
            ("82", &[":method=GET"], 55),
        ],
    );
}

const REQUESTS: [&[&str]; 3] = [
    &[":method=GET", ":scheme=http", ":path=/", ":authority=www.example.com"],
    &[":method=GET", ":scheme=http", ":path=/", ":authority=www.example.com", "cache-control=no-cache"],
    &[":method=GET", ":scheme=https", ":path=/index.html", ":authority=www.example.com", "custom-key=custom-value"],
];

#[test]
fn requests_of_the_rfc_are_read() {
    // RFC 7541 §C.3, §C.4.
    reads(
        4096,
        &[
            ("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", REQUESTS[0], 57),
            ("8286 84be 5808 6e6f 2d63 6163 6865", REQUESTS[1], 110),
            ("8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65", REQUESTS[2], 164),
        ],
    );
    reads(
        4096,
        &[
            ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", REQUESTS[0], 57),
            ("8286 84be 5886 a8eb 1064 9cbf", REQUESTS[1], 110),
            ("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", REQUESTS[2], 164),
        ],
    );
}

#[test]
fn responses_of_the_rfc_are_read_with_evictions() {
    // RFC 7541 §C.6.
    let date = "date=Mon, 21 Oct 2013 20:13:21 GMT";
    let cookie = "set-cookie=foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1";
    reads(256, &[
        (
            "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718
             63c7 8f0b 97c8 e9ae 82ae 43d3",
            &[":status=302", "cache-control=private", date, "location=https://www.example.com"],
            222,
        ),
        (
            "4883 640e ffc1 c0bf",
            &[":status=307", "cache-control=private", date, "location=https://www.example.com"],
            222,
        ),
        (
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7
             b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
            &[
                ":status=200",
                "cache-control=private",
                "date=Mon, 21 Oct 2013 20:13:22 GMT",
                "location=https://www.example.com",
                "content-encoding=gzip",
                cookie,
            ],
            215,
        ),
    ]);
}

#[test]
fn what_is_no_block_is_corrupt() {
    for wrong in [
        // No such index; none at all; cut short; a string that is longer than the block; a length without an end.
        "be",
        "80",
        "40",
        "4003 6162",
        "00ff ffff ffff",
        "7f ff ff ff ff 0f",
        // A size beyond what was announced, behind a field, and three of them.
        "3fe2 1f",
        "8220",
        "2020 20",
    ] {
        assert!(decode(&mut Decoder::new(4096), &bytes(wrong)).is_err(), "{wrong}");
    }
    for fine in ["", "20", "20 3fe1 1f", "3fe1 1f 82"] {
        assert!(decode(&mut Decoder::new(4096), &bytes(fine)).is_ok(), "{fine}");
    }
}

#[test]
fn flawed_fields_are_told_and_the_table_goes_on() {
    for (name, value, flaw) in [
        (&b""[..], &b"x"[..], Fault::EmptyFieldName),
        (b"Name", b"x", Fault::BadFieldName),
        (b"na me", b"x", Fault::BadFieldName),
        (b"name:", b"x", Fault::BadFieldName),
        (b":unknown", b"x", Fault::BadFieldName),
        (b"name", b"a\nb", Fault::ControlByte),
        (b"name", b"a\0", Fault::ControlByte),
        (b"name", b" x", Fault::SpaceAroundValue),
        (b"name", b"x\t", Fault::SpaceAroundValue),
    ] {
        let mut decoder = Decoder::new(4096);
        let mut block = vec![0x40];
        for part in [name, value] {
            block.push(part.len() as u8);
            block.extend_from_slice(part);
        }
        block.push(0x82);
        let (lines, decoded) = decode(&mut decoder, &block).unwrap();
        assert_eq!((lines, decoded.flaw), (vec![":method=GET".to_owned()], Some(flaw)));
        // The field is flawed from the table as well, and a field with a name like it only if that is why.
        assert_eq!(decode(&mut decoder, &[0xbe]).unwrap().1.flaw, Some(flaw));
        let named = decode(&mut decoder, &[0x0f, 0x2f, 0x01, b'y']).unwrap().1.flaw;
        assert_eq!(named.is_some(), !name.eq(b"name"));
    }
}

#[test]
fn lists_that_are_too_long_are_cut_and_cost_no_more_for_it() {
    let mut decoder = Decoder::new(4096);
    let mut block = vec![0x40, 1, b'x', 0x7f, 0xd1, 0x1e];
    block.resize(block.len() + 4_000 - 48, b'y');
    let length = 4_000 - 48;
    let mut head = vec![0x40, 1, b'x'];
    integer::write(length, 7, 0, &mut head);
    head.resize(head.len() + length, b'y');
    assert!(decode(&mut decoder, &head).is_ok());
    let bomb = vec![0xbe; 16_000];
    let mut text = Vec::new();
    let mut count = 0;
    let decoded = decoder.decode(&bomb, &mut text, &LIMITS, &mut |_: &[u8], _| count += 1).unwrap();
    assert!(decoded.is_cut && decoded.fields == 16_000);
    assert!(count == 4 && text.len() < 17_000 && text.capacity() < 40_000, "{count} {}", text.capacity());
    let many = vec![0x82; 101];
    assert!(decode(&mut decoder, &many).unwrap().1.is_cut);
    assert!(!decode(&mut decoder, &many[1..]).unwrap().1.is_cut);
}

/// Both sides of one direction.
struct Pair {
    encoder: Encoder,
    recurring: Recurring,
    decoder: Decoder,
}

impl Pair {
    fn new() -> Pair {
        Pair { encoder: Encoder::new(), recurring: Recurring::default(), decoder: Decoder::new(4096) }
    }

    fn carry(&mut self, fields: &[(&str, &str)]) -> (Vec<String>, usize) {
        let mut block = Vec::new();
        let mut writer = self.encoder.begin(&mut self.recurring, &mut block);
        for (name, value) in fields {
            match Pseudo::of(name.as_bytes()) {
                Some(pseudo) => {
                    let (first, rest) = value.as_bytes().split_at(value.len() / 2);
                    writer.pseudo(pseudo, [first, rest]);
                }
                None => writer.field(name.as_bytes(), value.as_bytes(), false),
            }
        }
        let (lines, _) = decode(&mut self.decoder, &block).unwrap();
        assert_eq!(self.encoder.table_bytes(), self.decoder.table_bytes());
        (lines, block.len())
    }
}

#[test]
fn a_field_that_comes_again_is_a_byte_from_the_third_time_on() {
    let mut pair = Pair::new();
    let fields = [(":status", "200"), ("Server", "something/1.0"), ("x-frame-options", "DENY"), ("Vary", "accept")];
    let sizes: Vec<usize> = (0..4).map(|_| pair.carry(&fields).1).collect();
    assert_eq!(sizes[2..], [4, 4], "{sizes:?}");
    assert_eq!(pair.carry(&fields).0, [":status=200", "server=something/1.0", "x-frame-options=DENY", "vary=accept"]);
}

#[test]
fn what_differs_each_time_pushes_nothing_out() {
    let mut pair = Pair::new();
    (0..3).for_each(|_| drop(pair.carry(&[("server", "something/1.0")])));
    let before = pair.encoder.table_bytes();
    for number in 0..5_000 {
        pair.carry(&[("x-request-id", &format!("{number:016x}")), ("etag", "\"same\""), ("content-length", "5")]);
    }
    assert_eq!((pair.encoder.table_bytes(), pair.carry(&[("server", "something/1.0")]).1), (before, 1));
}

#[test]
fn secrets_are_in_no_table_and_stay_secrets() {
    let mut pair = Pair::new();
    for name in ["authorization", "Cookie", "Set-Cookie", "Proxy-Authorization"] {
        for _ in 0..4 {
            let (lines, _) = pair.carry(&[(name, "hunter2hunter2")]);
            assert_eq!(lines, [format!("{}=hunter2hunter2 secret", name.to_ascii_lowercase())]);
        }
    }
    assert_eq!(pair.encoder.table_bytes(), 0);
    let mut block = Vec::new();
    for _ in 0..3 {
        block.clear();
        pair.encoder.begin(&mut pair.recurring, &mut block).field(b"x-key", b"of the house", true);
        assert_eq!(decode(&mut pair.decoder, &block).unwrap().0, ["x-key=of the house secret"]);
    }
}

/// RFC 7541 §7.1.3: a secret is not told from its table either, though another field has had its value.
#[test]
fn a_secret_that_a_table_has_is_spelled_out_all_the_same() {
    let mut pair = Pair::new();
    (0..3).for_each(|_| assert_eq!(pair.carry(&[("x-key", "value")]).0.len(), 1));
    let mut block = Vec::new();
    pair.encoder.begin(&mut pair.recurring, &mut block).field(b"x-key", b"value", true);
    assert_eq!(block[0], 0x10, "never indexed (RFC 7541 §6.2.3)");
}

/// A query may be a secret of which nobody says so, and a large field pushes out all others.
#[test]
fn queries_and_large_fields_are_in_no_table_however_often_they_come() {
    let mut pair = Pair::new();
    let large = "v".repeat(1_100);
    for _ in 0..4 {
        pair.carry(&[(":path", "/search?q=private"), ("x-large", &large)]);
        assert_eq!(pair.encoder.table_bytes(), 0);
    }
    (0..3).for_each(|_| _ = pair.carry(&[(":path", "/search")]));
    assert!(pair.encoder.table_bytes() > 0);
}

#[test]
fn random_lists_come_back_whatever_the_peer_does_to_the_table() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pair = Pair::new();
        let names =
            ["server", "X-Thing", "date", "content-type", "etag", "x-y", "cookie", "a-rather-long-name-of-a-field"];
        for _ in 0..400 {
            if random.u8(..) < 20 {
                // The table that was announced is the peer's to change.
                (0..random.usize(1..3)).for_each(|_| pair.encoder.set_table_bytes_max(random.u32(..6_000)));
            }
            let list: Vec<(&str, String)> = (0..random.usize(..20))
                .map(|_| {
                    let length = if random.u8(..) == 0 { random.usize(..3_000) } else { random.usize(..12) };
                    let value: String =
                        (0..length).map(|_| char::from(random.choice(*b"abAB019-/\"{").unwrap())).collect();
                    (names[random.usize(..names.len())], value)
                })
                .collect();
            let fields: Vec<(&str, &str)> = list.iter().map(|(name, value)| (*name, &**value)).collect();
            let (lines, _) = pair.carry(&fields);
            let lines: Vec<&str> = lines.iter().map(|line| line.strip_suffix(" secret").unwrap_or(line)).collect();
            let expected: Vec<String> =
                fields.iter().map(|(name, value)| format!("{}={value}", name.to_ascii_lowercase())).collect();
            assert_eq!(lines, expected, "{seed}");
        }
    }
}

#[test]
fn a_peer_without_a_table_gets_literals() {
    let mut pair = Pair::new();
    pair.encoder.set_table_bytes_max(0);
    for _ in 0..4 {
        pair.carry(&[("server", "something/1.0")]);
        assert_eq!(pair.encoder.table_bytes(), 0);
    }
    pair.encoder.set_table_bytes_max(4096);
    (0..3).for_each(|_| drop(pair.carry(&[("server", "something/1.0")])));
    assert_eq!(pair.carry(&[("server", "something/1.0")]).1, 1);
}

#[test]
fn any_bytes_keep_the_promises() {
    let mut random = fastrand::Rng::with_seed(11);
    for _ in 0..20_000 {
        let length = random.usize(..300);
        let input: Vec<u8> = (0..length)
            .map(|_| match random.u8(..4) {
                0 => random.u8(..),
                1 => random.u8(0x80..),
                _ => random.choice([0x40, 0x01, b'a', 0x00, 0x10, 0x82, 0xbe, 0xbf, 0x03, 0x20]).unwrap(),
            })
            .collect();
        fuzz::blocks(&input);
    }
}

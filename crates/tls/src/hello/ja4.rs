//! JA4: a fingerprint of the software that a client is, by what its hello offers (FoxIO's published method for TLS
//! clients, which is under a BSD licence; its siblings for other protocols are not and are not here).

use std::fmt::{self, Write};

use aws_lc_rs::digest::{Context, SHA256};

use crate::hello::client_hello::{ClientHello, is_grease};

/// Fingerprint such as `t13d1516h2_8daaf6152771_e5627efa2ab1`: ASCII letters, digits and `_`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ja4([u8; 36]);

impl Ja4 {
    /// Fingerprint of a client over TCP.
    pub fn of(hello: &ClientHello<'_>) -> Ja4 {
        let mut suites: Vec<u16> = hello.cipher_suites.iter().filter(|suite| !is_grease(*suite)).collect();
        let mut extensions: Vec<u16> =
            hello.extensions().map(|(kind, _)| kind).filter(|kind| !is_grease(*kind)).collect();
        let mut text = Text { bytes: [b'_'; 36], length: 0 };
        let name = if hello.has_server_name() { 'd' } else { 'i' };
        let [first, last] = protocol(hello);
        // Each part has a fixed width, and they add up to the length of the text.
        let _ = write!(text, "t{}{name}{:02}{:02}", version(hello), suites.len().min(99), extensions.len().min(99));
        let _ = write!(text, "{}{}_", char::from(first), char::from(last));
        suites.sort_unstable();
        text.hash(&suites, &[]);
        let _ = text.write_str("_");
        extensions.retain(|kind| !matches!(*kind, SERVER_NAME | ALPN));
        extensions.sort_unstable();
        let schemes = hello.signature_algorithms.unwrap_or_default();
        let schemes: Vec<u16> = schemes.iter().filter(|scheme| !is_grease(*scheme)).collect();
        text.hash(&extensions, &schemes);
        debug_assert_eq!(text.length, text.bytes.len());
        Ja4(text.bytes)
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for Ja4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;

/// The highest version on offer.
fn version(hello: &ClientHello<'_>) -> &'static str {
    let offered = match hello.supported_versions {
        Some(versions) => versions.iter().filter(|version| !is_grease(*version)).max().unwrap_or(0),
        None => hello.legacy_version,
    };
    match offered {
        0x0304 => "13",
        0x0303 => "12",
        0x0302 => "11",
        0x0301 => "10",
        0x0300 => "s3",
        0x0002 => "s2",
        _ => "00",
    }
}

/// First and last character of the protocol liked best; of its hexadecimal form, where they are not both letters or
/// digits.
fn protocol(hello: &ClientHello<'_>) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let grease = |name: &&[u8]| matches!(**name, [high, low] if is_grease(u16::from_be_bytes([high, low])));
    match hello.alpn().find(|name| !grease(name)) {
        Some([first, .., last]) if first.is_ascii_alphanumeric() && last.is_ascii_alphanumeric() => [*first, *last],
        Some([only]) if only.is_ascii_alphanumeric() => [*only; 2],
        Some(name @ [first, ..]) => {
            let last = name[name.len() - 1];
            [DIGITS[usize::from(first >> 4)], DIGITS[usize::from(last & 15)]]
        }
        _ => *b"00",
    }
}

/// The fingerprint as it grows.
struct Text {
    bytes: [u8; 36],
    length: usize,
}

impl Write for Text {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = self.bytes.get_mut(self.length..self.length + part.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(part.as_bytes());
        self.length += part.len();
        Ok(())
    }
}

impl Text {
    /// Twelve digits of the hash of the lists, or zeros where the first one is empty.
    fn hash(&mut self, list: &[u16], second: &[u16]) {
        const DIGEST_BYTES: usize = 6;
        if list.is_empty() {
            let _ = self.write_str("000000000000");
            return;
        }
        let mut context = Context::new(&SHA256);
        update(&mut context, list);
        if !second.is_empty() {
            context.update(b"_");
            update(&mut context, second);
        }
        for byte in &context.finish().as_ref()[..DIGEST_BYTES] {
            let _ = write!(self, "{byte:02x}");
        }
    }
}

/// Four digits each, with commas between.
fn update(context: &mut Context, list: &[u16]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (index, value) in list.iter().enumerate() {
        let digit = |shift: u16| DIGITS[usize::from(value >> shift & 15)];
        let text = [b',', digit(12), digit(8), digit(4), digit(0)];
        context.update(&text[usize::from(index == 0)..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(width: usize, values: &[u16]) -> Vec<u8> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_be_bytes()).collect();
        [&(bytes.len() as u32).to_be_bytes()[4 - width..], &bytes].concat()
    }

    fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &(body.len() as u16).to_be_bytes(), body].concat()
    }

    fn hello(legacy: u16, suites: &[u16], extensions: &[Vec<u8>]) -> Vec<u8> {
        let mut message = legacy.to_be_bytes().to_vec();
        message.extend([0; 33]);
        message.extend(list(2, suites));
        message.extend([1, 0]);
        let extensions = extensions.concat();
        message.extend((extensions.len() as u16).to_be_bytes());
        message.extend(extensions);
        message
    }

    fn ja4(message: &[u8]) -> String {
        Ja4::of(&ClientHello::parse(message).unwrap()).as_str().to_string()
    }

    const SUITES: &[u16] = &[
        0x5a5a, 0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc013, 0xc014, 0x009c, 0x009d,
        0x002f, 0x0035,
    ];
    const KINDS: &[u16] = &[
        0x001b, 0x0000, 0x0033, 0x0010, 0x4469, 0x0017, 0x002d, 0x000d, 0x0005, 0x0023, 0x0012, 0x002b, 0xff01, 0x000b,
        0x000a, 0x0015, 0x2a2a,
    ];
    const SCHEMES: &[u16] = &[0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601];

    fn chrome(schemes: &[u16], alpn: &[u8]) -> Vec<u8> {
        let extensions: Vec<Vec<u8>> = KINDS
            .iter()
            .filter(|kind| **kind != 0x000d || !schemes.is_empty())
            .map(|kind| match *kind {
                0x0000 => extension(0, &[0, 7, 0, 0, 4, b'a', b'.', b'e', b'u']),
                0x0010 => extension(16, &[&[0, alpn.len() as u8 + 1, alpn.len() as u8], alpn].concat()),
                0x000d => extension(13, &list(2, schemes)),
                0x000a => extension(10, &list(2, &[0x3a3a, 29, 23])),
                0x002b => extension(43, &list(1, &[0xfafa, 0x0303, 0x0304])),
                0x0033 => extension(51, &[0, 5, 0, 29, 0, 1, 9]),
                other => extension(other, &[]),
            })
            .collect();
        hello(0x0303, SUITES, &extensions)
    }

    #[test]
    fn the_published_example_has_the_published_fingerprint() {
        assert_eq!(ja4(&chrome(SCHEMES, b"h2")), "t13d1516h2_8daaf6152771_e5627efa2ab1");
    }

    #[test]
    fn without_signature_algorithms_the_list_ends_without_an_underscore() {
        // The published hash is of the list with 000d in it, which stands for an extension without algorithms.
        let mut message = chrome(SCHEMES, b"h2");
        let body = list(2, SCHEMES);
        let at = message.windows(body.len()).position(|window| window == body).unwrap();
        let parsed = ClientHello::parse(&message).unwrap();
        assert!(parsed.signature_algorithms.is_some());
        message.drain(at + 2..at + body.len());
        message[at..at + 2].copy_from_slice(&[0, 0]);
        message[at - 2..at].copy_from_slice(&[0, 2]);
        let shorter = (body.len() - 2) as u16;
        let length_at = 2 + 33 + 2 + 2 * SUITES.len() + 2;
        let length = u16::from_be_bytes([message[length_at], message[length_at + 1]]) - shorter;
        message[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
        assert!(ja4(&message).ends_with("_6d807ffa2a79"), "{}", ja4(&message));
    }

    #[test]
    fn a_protocol_is_told_by_its_ends_or_by_the_ends_of_its_hexadecimal_form() {
        let cases: &[(&[u8], &str)] = &[
            (b"http/1.1", "h1"),
            (b"x", "xx"),
            (&[0xab], "ab"),
            (&[0xab, 0xcd], "ad"),
            (&[0x30, 0xab], "3b"),
            (&[0x30, 0x31, 0xab, 0xcd], "3d"),
            (&[0x30, 0xab, 0xcd, 0x31], "01"),
        ];
        for (alpn, ends) in cases {
            assert_eq!(&ja4(&chrome(SCHEMES, alpn))[8..10], *ends, "{alpn:?}");
        }
    }

    #[test]
    fn a_hello_of_nothing_has_zeros_for_hashes_and_many_of_a_kind_count_as_99() {
        assert_eq!(ja4(&hello(0x0301, &[], &[])), "t10i000000_000000000000_000000000000");
        let many: Vec<u16> = (0..200).collect();
        assert_eq!(&ja4(&hello(0x0300, &many, &[]))[..8], "ts3i9900");
    }
}

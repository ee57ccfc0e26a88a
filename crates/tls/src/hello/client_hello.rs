//! Parser of a ClientHello from raw bytes, without a handshake: for fingerprints, for logs of failed handshakes, and
//! for callers that need a client's name, groups or key shares before the library has seen it.
//!
//! Only a message that is split over several records is copied. Reading is bounded by the longest message there can be,
//! and each byte of a hello that arrives in pieces is looked at once.

use rustls_pki_types::DnsName;

/// The longest hello that is read; the TLS library takes no longer one either.
pub const HELLO_BYTES_MAX: usize = 0xffff;
/// RFC 8446 §5.1.
const FRAGMENT_BYTES_MAX: usize = 1 << 14;
const RECORD_HEADER: usize = 5;
const MESSAGE_HEADER: usize = 4;

/// Error: not a well-formed ClientHello; the word says where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// Finds a complete ClientHello in a client's first bytes. Must be given the same bytes again, with more behind them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peeker {
    /// Bytes of complete records that have been looked at.
    records: usize,
    /// Bytes of the message in these records.
    payload: usize,
    header: [u8; MESSAGE_HEADER],
}

impl Peeker {
    /// The ClientHello, once it is complete. `scratch` is overwritten with the message if it is split over several
    /// records.
    pub fn peek<'a>(
        &mut self,
        bytes: &'a [u8],
        scratch: &'a mut Vec<u8>,
    ) -> Result<Option<ClientHello<'a>>, Malformed> {
        while self.missing() {
            let Some(fragment) = fragment(bytes.get(self.records..).unwrap_or_default())? else {
                return Ok(None);
            };
            self.note(fragment)?;
        }
        let length = self.length();
        let whole = RECORD_HEADER + MESSAGE_HEADER..RECORD_HEADER + MESSAGE_HEADER + length;
        if let Some(Fragment { bytes: first }) = fragment(bytes)?
            && first.len() >= MESSAGE_HEADER + length
        {
            return ClientHello::parse(&bytes[whole]).map(Some);
        }
        scratch.clear();
        let mut at = 0;
        while let Some(Fragment { bytes: piece }) = fragment(&bytes[at..])?
            && scratch.len() < MESSAGE_HEADER + length
        {
            scratch.extend_from_slice(piece);
            at += RECORD_HEADER + piece.len();
        }
        let message =
            scratch.get(MESSAGE_HEADER..MESSAGE_HEADER + length).ok_or(Malformed("other bytes than before"))?;
        ClientHello::parse(message).map(Some)
    }

    fn missing(&self) -> bool {
        self.payload < MESSAGE_HEADER || self.payload < MESSAGE_HEADER + self.length()
    }

    /// Length of the message without its header.
    fn length(&self) -> usize {
        let [_, a, b, c] = self.header;
        u32::from_be_bytes([0, a, b, c]) as usize
    }

    fn note(&mut self, fragment: Fragment<'_>) -> Result<(), Malformed> {
        const CLIENT_HELLO: u8 = 1;
        let have = self.payload.min(MESSAGE_HEADER);
        for (to, from) in self.header[have..].iter_mut().zip(fragment.bytes) {
            *to = *from;
        }
        self.records += RECORD_HEADER + fragment.bytes.len();
        self.payload += fragment.bytes.len();
        if self.header[0] != CLIENT_HELLO {
            return Err(Malformed("another message than a ClientHello"));
        }
        if self.payload >= MESSAGE_HEADER && self.length() > HELLO_BYTES_MAX {
            return Err(Malformed("the message is too long"));
        }
        Ok(())
    }
}

/// Part of a message in one record.
struct Fragment<'a> {
    bytes: &'a [u8],
}

/// The record at the front, once it is complete.
fn fragment(bytes: &[u8]) -> Result<Option<Fragment<'_>>, Malformed> {
    const HANDSHAKE: u8 = 22;
    let Some((&[kind, major, _, high, low], rest)) = bytes.split_first_chunk::<RECORD_HEADER>() else {
        return Ok(None);
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    // RFC 8446 §5.1: fragments of a handshake are not empty.
    if kind != HANDSHAKE || major != 3 || length == 0 || length > FRAGMENT_BYTES_MAX {
        return Err(Malformed("not a handshake record"));
    }
    Ok(rest.get(..length).map(|bytes| Fragment { bytes }))
}

/// A ClientHello (RFC 8446 §4.1.2), well-formed in itself; whether it makes sense is for a handshake to say.
#[derive(Clone, Copy, Debug)]
pub struct ClientHello<'a> {
    pub legacy_version: u16,
    pub random: &'a [u8; 32],
    pub session_id: &'a [u8],
    pub cipher_suites: Numbers<'a>,
    pub compression_methods: &'a [u8],
    extensions: &'a [u8],
    server_name: Option<&'a [u8]>,
    alpn: Option<&'a [u8]>,
    pub supported_versions: Option<Numbers<'a>>,
    pub supported_groups: Option<Numbers<'a>>,
    pub signature_algorithms: Option<Numbers<'a>>,
    key_shares: Option<&'a [u8]>,
}

mod extension {
    pub const SERVER_NAME: u16 = 0;
    pub const SUPPORTED_GROUPS: u16 = 10;
    pub const SIGNATURE_ALGORITHMS: u16 = 13;
    pub const ALPN: u16 = 16;
    pub const SUPPORTED_VERSIONS: u16 = 43;
    pub const KEY_SHARE: u16 = 51;
}

impl<'a> ClientHello<'a> {
    /// Parses a message without its header.
    pub fn parse(message: &'a [u8]) -> Result<ClientHello<'a>, Malformed> {
        let mut reader = Reader(message);
        let mut hello = ClientHello {
            legacy_version: reader.number()?,
            random: reader.array()?,
            session_id: reader.prefixed(1)?,
            cipher_suites: Numbers::new(reader.prefixed(2)?)?,
            compression_methods: reader.prefixed(1)?,
            extensions: &[],
            server_name: None,
            alpn: None,
            supported_versions: None,
            supported_groups: None,
            signature_algorithms: None,
            key_shares: None,
        };
        if hello.session_id.len() > 32 {
            return Err(Malformed("session id"));
        }
        // Up to TLS 1.2 a hello may end here (RFC 5246 §7.4.1.2).
        if !reader.0.is_empty() {
            hello.extensions = reader.prefixed(2)?;
            reader.end()?;
        }
        let mut reader = Reader(hello.extensions);
        while !reader.0.is_empty() {
            let kind = reader.number()?;
            hello.note(kind, reader.prefixed(2)?)?;
        }
        Ok(hello)
    }

    /// Takes an extension that is known here; each may come once (RFC 8446 §4.2).
    fn note(&mut self, kind: u16, body: &'a [u8]) -> Result<(), Malformed> {
        let mut reader = Reader(body);
        let twice = match kind {
            extension::SERVER_NAME => self.server_name.replace(server_name(body)?).is_some(),
            extension::SUPPORTED_GROUPS => self.supported_groups.replace(reader.numbers(2)?).is_some(),
            extension::SIGNATURE_ALGORITHMS => self.signature_algorithms.replace(reader.numbers(2)?).is_some(),
            extension::SUPPORTED_VERSIONS => self.supported_versions.replace(reader.numbers(1)?).is_some(),
            extension::ALPN => {
                let list = reader.prefixed(2)?;
                reader.end()?;
                check(list, |item| item.prefixed(1).map(|name| !name.is_empty()))?;
                self.alpn.replace(list).is_some()
            }
            extension::KEY_SHARE => {
                let list = reader.prefixed(2)?;
                reader.end()?;
                check(list, |item| {
                    item.number()?;
                    item.prefixed(2).map(|share| !share.is_empty())
                })?;
                self.key_shares.replace(list).is_some()
            }
            _ => false,
        };
        if twice { Err(Malformed("an extension comes twice")) } else { Ok(()) }
    }

    /// The name that the client asks for, if it is one, in the case in which it was written.
    pub fn server_name(&self) -> Option<&'a str> {
        let name = self.server_name.filter(|name| DnsName::try_from(*name).is_ok())?;
        std::str::from_utf8(name).ok()
    }

    /// Whether the extension is there, whatever is in it.
    pub fn has_server_name(&self) -> bool {
        self.server_name.is_some()
    }

    /// Application protocols, most preferred first.
    pub fn alpn(&self) -> impl Iterator<Item = &'a [u8]> {
        let mut list = Reader(self.alpn.unwrap_or_default());
        std::iter::from_fn(move || list.prefixed(1).ok())
    }

    /// Groups, and the client's public value for each.
    pub fn key_shares(&self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let mut list = Reader(self.key_shares.unwrap_or_default());
        std::iter::from_fn(move || Some((list.number().ok()?, list.prefixed(2).ok()?)))
    }

    /// Every extension, in the order received.
    pub fn extensions(&self) -> impl Iterator<Item = (u16, &'a [u8])> {
        let mut list = Reader(self.extensions);
        std::iter::from_fn(move || Some((list.number().ok()?, list.prefixed(2).ok()?)))
    }
}

/// A value that clients make up so that servers go on ignoring what they do not know (RFC 8701).
pub fn is_grease(value: u16) -> bool {
    let [high, low] = value.to_be_bytes();
    high == low && low & 0x0f == 0x0a
}

/// The host name of the list (RFC 6066 §3). Nobody has defined another kind of name, nor, therefore, its form: what
/// follows one is not looked at.
fn server_name(body: &[u8]) -> Result<&[u8], Malformed> {
    const HOST_NAME: u8 = 0;
    let mut reader = Reader(body);
    let mut list = Reader(reader.prefixed(2)?);
    reader.end()?;
    let mut found = None;
    while let Some((&HOST_NAME, rest)) = list.0.split_first() {
        list = Reader(rest);
        if found.replace(list.prefixed(2)?).is_some() {
            return Err(Malformed("several server names"));
        }
    }
    Ok(found.unwrap_or_default())
}

/// Whether a list is made of such items, and is not empty.
fn check(list: &[u8], item: impl Fn(&mut Reader<'_>) -> Result<bool, Malformed>) -> Result<(), Malformed> {
    let mut list = Reader(list);
    while !list.0.is_empty() {
        if !item(&mut list)? {
            return Err(Malformed("an empty item"));
        }
    }
    Ok(())
}

/// A list of two-byte numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers<'a>(&'a [u8]);

impl<'a> Numbers<'a> {
    fn new(bytes: &'a [u8]) -> Result<Numbers<'a>, Malformed> {
        if bytes.len().is_multiple_of(2) { Ok(Numbers(bytes)) } else { Err(Malformed("half a number")) }
    }

    pub fn iter(self) -> impl Iterator<Item = u16> + 'a {
        self.0.as_chunks::<2>().0.iter().map(|pair| u16::from_be_bytes(*pair))
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed("cut short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed("cut short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u16, Malformed> {
        self.array().map(|bytes| u16::from_be_bytes(*bytes))
    }

    /// Bytes behind their count, which has `width` bytes itself.
    fn prefixed(&mut self, width: usize) -> Result<&'a [u8], Malformed> {
        let count = self.take(width)?.iter().fold(0, |count, byte| count << 8 | usize::from(*byte));
        self.take(count)
    }

    /// A list of numbers, and nothing after it.
    fn numbers(&mut self, width: usize) -> Result<Numbers<'a>, Malformed> {
        let list = Numbers::new(self.prefixed(width)?)?;
        self.end()?;
        Ok(list)
    }

    fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("bytes left over")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minimal(extensions: &[u8]) -> Vec<u8> {
        let mut message = vec![3, 3];
        message.extend([7; 32]);
        message.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
        message.extend((extensions.len() as u16).to_be_bytes());
        message.extend(extensions);
        message
    }

    fn records(message: &[u8], fragment: usize) -> Vec<u8> {
        let mut whole = vec![1, 0];
        whole.extend((message.len() as u16).to_be_bytes());
        whole.extend(message);
        let record = |piece: &[u8]| [&[22, 3, 1][..], &(piece.len() as u16).to_be_bytes(), piece].concat();
        whole.chunks(fragment).flat_map(record).collect()
    }

    #[test]
    fn a_hello_in_records_of_any_size_is_seen_when_its_last_byte_is_there_and_not_before() {
        let message = minimal(&[0, 0, 0, 9, 0, 7, 0, 0, 4, b'a', b'.', b'e', b'u']);
        for size in [1, 2, 3, 5, 16, 1000] {
            let bytes = records(&message, size);
            let (mut peeker, mut scratch) = (Peeker::default(), Vec::new());
            for end in 0..bytes.len() {
                assert!(peeker.peek(&bytes[..end], &mut scratch).unwrap().is_none(), "{size} {end}");
            }
            let hello = peeker.peek(&bytes, &mut scratch).unwrap().unwrap();
            assert_eq!(hello.server_name(), Some("a.eu"), "{size}");
            assert_eq!(hello.cipher_suites.iter().collect::<Vec<_>>(), [0x1301]);
        }
    }

    #[test]
    fn a_hello_may_have_any_legal_length_and_no_longer_one() {
        let padding = |length: u16| [&[0, 21][..], &length.to_be_bytes(), &vec![0; usize::from(length)]].concat();
        let message = minimal(&padding(65_000));
        let bytes = records(&message, FRAGMENT_BYTES_MAX);
        let mut scratch = Vec::new();
        let hello = Peeker::default().peek(&bytes, &mut scratch).unwrap().unwrap();
        assert_eq!(hello.extensions().map(|(kind, body)| (kind, body.len())).collect::<Vec<_>>(), [(21, 65_000)]);
        let endless = [22, 3, 1, 0, 4, 1, 1, 0, 0];
        assert_eq!(Peeker::default().peek(&endless, &mut scratch).unwrap_err(), Malformed("the message is too long"));
    }

    #[test]
    fn what_is_no_hello_is_told_at_once() {
        let mut scratch = Vec::new();
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], &[22, 3, 1, 0, 0], &[22, 3, 1, 0, 1, 2], &[22, 3, 1, 0x40, 1]] {
            assert!(Peeker::default().peek(bytes, &mut scratch).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn lists_that_do_not_fit_their_lengths_are_malformed() {
        let wrong: &[&[u8]] = &[
            &[0, 0, 0, 5, 0, 9, 0, 0, 1],             // name list longer than the extension
            &[0, 10, 0, 3, 0, 1, 0],                  // half a group
            &[0, 10, 0, 4, 0, 2, 0, 29, 0, 10, 0, 0], // groups twice, the second without a list
            &[0, 16, 0, 3, 0, 1, 0],                  // empty protocol
            &[0, 51, 0, 6, 0, 4, 0, 29, 0, 0],        // empty share
            &[0, 43, 0, 4, 2, 3, 4, 0],               // a byte left over
            &[0, 43, 0],
        ];
        for extensions in wrong {
            assert!(ClientHello::parse(&minimal(extensions)).is_err(), "{extensions:?}");
        }
        let twice = [0, 43, 0, 3, 2, 3, 4, 0, 43, 0, 3, 2, 3, 4];
        assert_eq!(ClientHello::parse(&minimal(&twice)).unwrap_err(), Malformed("an extension comes twice"));
    }

    #[test]
    fn an_address_or_an_empty_name_is_no_server_name_but_is_there() {
        let address = minimal(&[0, 0, 0, 12, 0, 10, 0, 0, 7, b'1', b'.', b'2', b'.', b'3', b'.', b'4']);
        let hello = ClientHello::parse(&address).unwrap();
        assert_eq!((hello.server_name(), hello.has_server_name()), (None, true));
    }
}

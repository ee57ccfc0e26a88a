//! The PROXY protocol, versions 1 and 2, without a socket: what a proxy says of its client ahead of the client's bytes.
//!
//! After HAProxy's `doc/proxy-protocol.txt`; the sections named below are its. Strict on the way in, since what is
//! believed here is logged, counted and told on as the client's address.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// §2.1: the longest line with its CRLF ("UNKNOWN" and two IPv6 addresses).
pub const V1_BYTES_MAX: usize = 107;
/// Our own limit on a whole header of version 2, which could be 64 KiB long; fits a small buffer.
pub const V2_BYTES_MAX: usize = 16 * 1024;
/// §2.2.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family, length.
const V2_PREFIX: usize = 16;

/// Ends of the client's connection, as the proxy in front tells them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    pub source: SocketAddr,
    pub destination: SocketAddr,
}

/// A header, whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of it; what follows is the client's.
    pub length: usize,
    /// Ends; absent where the proxy speaks for itself (a health check), or cannot tell: the connection's own addresses
    /// count.
    pub ends: Option<Ends>,
}

/// Not a header, or not a well-formed one; the word says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl Malformed {
    /// Every word there is.
    pub const REASONS: &'static [&'static str] = &[
        "no-proxy-header",
        "bad-proxy-line",
        "proxy-line-too-long",
        "bad-proxy-command",
        "bad-proxy-family",
        "bad-proxy-length",
        "proxy-header-too-long",
        "bad-proxy-tlv",
        "bad-proxy-checksum",
    ];
}

/// Reads the header that `bytes` begin with; none while its end is not there yet. Bytes that no header begins with are
/// refused as soon as they differ.
pub fn parse(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
    if begins(bytes, b"PROXY ") {
        return if bytes.len() < 6 { Ok(None) } else { parse_line(bytes) };
    }
    if begins(bytes, &SIGNATURE) {
        return if bytes.len() < V2_PREFIX { Ok(None) } else { parse_binary(bytes) };
    }
    Err(Malformed("no-proxy-header"))
}

/// As far as there are bytes of it, they are these.
fn begins(bytes: &[u8], with: &[u8]) -> bool {
    bytes.iter().zip(with).all(|(a, b)| a == b)
}

/// §2.1.
fn parse_line(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
    const BAD: Malformed = Malformed("bad-proxy-line");
    let window = &bytes[..bytes.len().min(V1_BYTES_MAX)];
    let Some(end) = memchr::memchr(b'\n', window) else {
        return if window.len() == V1_BYTES_MAX { Err(Malformed("proxy-line-too-long")) } else { Ok(None) };
    };
    let line = window[..end].strip_suffix(b"\r").ok_or(BAD)?;
    let line = std::str::from_utf8(line).map_err(|_| BAD)?;
    let length = end + 1;
    let mut words = line.split(' ').skip(1);
    let family = words.next().ok_or(BAD)?;
    if family == "UNKNOWN" {
        // The rest is to be ignored.
        return Ok(Some(Header { length, ends: None }));
    }
    let mut next = || words.next().ok_or(BAD);
    let (source, destination) = (next()?, next()?);
    let (source_port, destination_port) = (port(next()?)?, port(next()?)?);
    if words.next().is_some() {
        return Err(BAD);
    }
    let address = |text: &str| -> Result<IpAddr, Malformed> {
        match family {
            "TCP4" => text.parse::<Ipv4Addr>().map(IpAddr::V4).map_err(|_| BAD),
            "TCP6" => text.parse::<Ipv6Addr>().map(IpAddr::V6).map_err(|_| BAD),
            _ => Err(BAD),
        }
    };
    let ends = Ends {
        source: SocketAddr::new(address(source)?, source_port),
        destination: SocketAddr::new(address(destination)?, destination_port),
    };
    Ok(Some(Header { length, ends: Some(ends.canonical()) }))
}

/// Decimal, without leading zeros.
fn port(text: &str) -> Result<u16, Malformed> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| digits).ok_or(Malformed("bad-proxy-line"))
}

/// §2.2.
fn parse_binary(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
    let (command, family) = (bytes[12], bytes[13]);
    let body = usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
    let length = V2_PREFIX + body;
    let is_local = match command {
        0x20 => true,
        0x21 => false,
        _ => return Err(Malformed("bad-proxy-command")),
    };
    // The family of a local header is to be ignored. Datagrams and UNIX sockets have no address that is of use here.
    let addresses = match family {
        _ if is_local => 0,
        0x00 => 0,
        0x11 | 0x12 => 12,
        0x21 | 0x22 => 36,
        0x31 | 0x32 => 216,
        _ => return Err(Malformed("bad-proxy-family")),
    };
    if body < addresses {
        return Err(Malformed("bad-proxy-length"));
    }
    if length > V2_BYTES_MAX {
        return Err(Malformed("proxy-header-too-long"));
    }
    let Some(header) = bytes.get(..length) else { return Ok(None) };
    let (addresses, vectors) = header[V2_PREFIX..].split_at(addresses);
    if !is_local {
        check_vectors(header, vectors)?;
    }
    let ends = match family {
        0x11 if !is_local => Some(ends(addresses, |bytes: [u8; 4]| Ipv4Addr::from(bytes).into())),
        0x21 if !is_local => Some(ends(addresses, |bytes: [u8; 16]| Ipv6Addr::from(bytes).into())),
        _ => None,
    };
    Ok(Some(Header { length, ends: ends.flatten().map(Ends::canonical) }))
}

fn ends<const N: usize>(bytes: &[u8], address: impl Fn([u8; N]) -> IpAddr) -> Option<Ends> {
    let (source, rest) = bytes.split_first_chunk::<N>()?;
    let (destination, rest) = rest.split_first_chunk::<N>()?;
    let &[a, b, c, d] = rest.first_chunk::<4>()?;
    Some(Ends {
        source: SocketAddr::new(address(*source), u16::from_be_bytes([a, b])),
        destination: SocketAddr::new(address(*destination), u16::from_be_bytes([c, d])),
    })
}

mod kind {
    //! §2.2.1 to §2.2.6.
    pub const ALPN: u8 = 0x01;
    pub const AUTHORITY: u8 = 0x02;
    pub const CRC32C: u8 = 0x03;
    pub const SSL: u8 = 0x20;
    pub const SSL_VERSION: u8 = 0x21;
    pub const SSL_CN: u8 = 0x22;
    pub const SSL_CIPHER: u8 = 0x23;
}

/// The vectors fill their room exactly, and a checksum, where there is one, is right (§2.2.3).
fn check_vectors(header: &[u8], mut vectors: &[u8]) -> Result<(), Malformed> {
    const BAD: Malformed = Malformed("bad-proxy-tlv");
    let mut is_checked = false;
    while let Some((&[kind, high, low], rest)) = vectors.split_first_chunk::<3>() {
        let length = usize::from(u16::from_be_bytes([high, low]));
        let (value, rest) = rest.split_at_checked(length).ok_or(BAD)?;
        if kind == kind::CRC32C {
            // Each would be a walk over the whole header.
            if std::mem::replace(&mut is_checked, true) {
                return Err(BAD);
            }
            let sum: [u8; 4] = value.try_into().map_err(|_| BAD)?;
            let start = header.len() - rest.len() - length;
            let zeroed = [&header[..start], &[0; 4][..], rest].concat();
            if crc32c(&zeroed) != u32::from_be_bytes(sum) {
                return Err(Malformed("bad-proxy-checksum"));
            }
        }
        vectors = rest;
    }
    if vectors.is_empty() { Ok(()) } else { Err(BAD) }
}

/// RFC 3720 §12.1: reflected, polynomial 0x1EDC6F41. A bit at a time: headers are short, and few have a checksum.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |sum: u32| if sum & 1 == 1 { sum >> 1 ^ 0x82f6_3b78 } else { sum >> 1 };
    !bytes.iter().fold(!0, |sum, byte| (0..8).fold(sum ^ u32::from(*byte), |sum, _| step(sum)))
}

impl Ends {
    /// IPv4 in IPv6's clothes is IPv4, as everywhere else.
    fn canonical(self) -> Ends {
        let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        Ends { source: plain(self.source), destination: plain(self.destination) }
    }

    /// Both IPv4, or both IPv6: headers have no mixture.
    fn families(self) -> Family {
        match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Family::Four(source, destination),
            (source, destination) => Family::Six(six(source), six(destination)),
        }
    }
}

enum Family {
    Four(Ipv4Addr, Ipv4Addr),
    Six(Ipv6Addr, Ipv6Addr),
}

fn six(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(four) => four.to_ipv6_mapped(),
        IpAddr::V6(six) => six,
    }
}

/// Facts about the TLS that ended here (§2.2.5, §2.2.6).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls<'a> {
    /// "TLSv1.3".
    pub version: &'a str,
    /// OpenSSL's name of the suite.
    pub cipher: Option<&'a str>,
    /// The client has shown a certificate that was verified, in this session or the one it resumed.
    pub is_identified: bool,
    pub is_resumed: bool,
    /// Common name of the client's certificate.
    pub common_name: Option<&'a str>,
    pub alpn: Option<&'a [u8]>,
}

/// Appends a line of version 1.
pub fn write_v1(ends: Ends, out: &mut Vec<u8>) {
    let ports = (ends.source.port(), ends.destination.port());
    // Writing into a Vec does not fail.
    let _ = match ends.families() {
        Family::Four(from, to) => write!(out, "PROXY TCP4 {from} {to} {} {}\r\n", ports.0, ports.1),
        Family::Six(from, to) => write!(out, "PROXY TCP6 {from} {to} {} {}\r\n", ports.0, ports.1),
    };
}

/// Appends a header of version 2. `authority` is the name that the client asked for.
pub fn write_v2(ends: Ends, authority: Option<&str>, tls: Option<&Tls<'_>>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&SIGNATURE);
    out.extend_from_slice(&[0x21, 0, 0, 0]);
    match ends.families() {
        Family::Four(from, to) => {
            out[start + 13] = 0x11;
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
        }
        Family::Six(from, to) => {
            out[start + 13] = 0x21;
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
        }
    }
    out.extend_from_slice(&ends.source.port().to_be_bytes());
    out.extend_from_slice(&ends.destination.port().to_be_bytes());
    if let Some(alpn) = tls.and_then(|tls| tls.alpn) {
        vector(kind::ALPN, alpn, out);
    }
    if let Some(name) = authority {
        vector(kind::AUTHORITY, name.as_bytes(), out);
    }
    if let Some(tls) = tls {
        vector(kind::SSL, &ssl(tls), out);
    }
    let length = (out.len() - start - V2_PREFIX) as u16;
    out[start + 14..start + V2_PREFIX].copy_from_slice(&length.to_be_bytes());
}

fn ssl(tls: &Tls<'_>) -> Vec<u8> {
    const CLIENT_SSL: u8 = 1;
    const CLIENT_CERT_CONN: u8 = 2;
    const CLIENT_CERT_SESS: u8 = 4;
    let shown = match (tls.is_identified, tls.is_resumed) {
        (true, false) => CLIENT_CERT_CONN | CLIENT_CERT_SESS,
        (true, true) => CLIENT_CERT_SESS,
        (false, _) => 0,
    };
    let mut value = vec![CLIENT_SSL | shown];
    // Zero says that a certificate was shown and is good.
    value.extend_from_slice(&u32::from(!tls.is_identified).to_be_bytes());
    vector(kind::SSL_VERSION, tls.version.as_bytes(), &mut value);
    if let Some(name) = tls.common_name {
        vector(kind::SSL_CN, name.as_bytes(), &mut value);
    }
    if let Some(cipher) = tls.cipher {
        vector(kind::SSL_CIPHER, cipher.as_bytes(), &mut value);
    }
    value
}

/// Values are names that were bounded where they came from; what is longer than a length can say is left out.
fn vector(kind: u8, value: &[u8], out: &mut Vec<u8>) {
    const VALUE_BYTES_MAX: usize = 4096;
    if value.len() <= VALUE_BYTES_MAX {
        out.push(kind);
        out.extend_from_slice(&(value.len() as u16).to_be_bytes());
        out.extend_from_slice(value);
    }
}

/// The common name in a distinguished name as RFC 4514 writes it, without its escapes.
pub fn common_name(subject: &str) -> Option<String> {
    let mut parts = split_unescaped(subject);
    let value = parts.find_map(|part| part.strip_prefix("CN="))?;
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((&first, more)) = rest.split_first() {
        rest = more;
        if first != b'\\' {
            bytes.push(first);
            continue;
        }
        let pair = rest.first_chunk::<2>().and_then(|pair| std::str::from_utf8(pair).ok());
        if let Some(byte) = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()) {
            bytes.push(byte);
            rest = &rest[2..];
        } else if let Some((&literal, more)) = rest.split_first() {
            bytes.push(literal);
            rest = more;
        }
    }
    String::from_utf8(bytes).ok()
}

fn split_unescaped(text: &str) -> impl Iterator<Item = &str> {
    let mut escaped = false;
    text.split(move |letter: char| {
        let splits = matches!(letter, ',' | '+') && !escaped;
        escaped = letter == '\\' && !escaped;
        splits
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(source: &str, destination: &str) -> Ends {
        Ends { source: source.parse().unwrap(), destination: destination.parse().unwrap() }
    }

    fn binary(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        [&SIGNATURE[..], &[command, family], &(body.len() as u16).to_be_bytes(), body].concat()
    }

    const FOUR: [u8; 12] = [192, 0, 2, 7, 198, 51, 100, 9, 0x30, 0x39, 0x01, 0xbb];

    #[test]
    fn a_line_reads_as_it_is_written_in_the_specification() {
        let line = b"PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\nGET / HTTP/1.1\r\n";
        let header = parse(line).unwrap().unwrap();
        assert_eq!(&line[header.length..], b"GET / HTTP/1.1\r\n");
        assert_eq!(header.ends, Some(ends("255.255.255.255:65535", "255.255.255.255:65535")));
        let six = b"PROXY TCP6 2001:db8::1 ::1 1 65535\r\n";
        assert_eq!(parse(six).unwrap().unwrap().ends, Some(ends("[2001:db8::1]:1", "[::1]:65535")));
        let unknown = b"PROXY UNKNOWN ffff:f...f:ffff ffff 65535 65535\r\nx";
        assert_eq!(parse(unknown), Ok(Some(Header { length: unknown.len() - 1, ends: None })));
        assert_eq!(parse(b"PROXY UNKNOWN\r\n"), Ok(Some(Header { length: 15, ends: None })));
    }

    #[test]
    fn lines_that_are_not_quite_right_are_refused() {
        for line in [
            "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n",
            "PROXY TCP4 1.2.3.4  5.6.7.8 1 2\r\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 01 2\r\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 +1 2\r\n",
            "PROXY TCP4 1.2.3.4 5.6.7.8 65536 2\r\n",
            "PROXY TCP4 01.2.3.4 5.6.7.8 1 2\r\n",
            "PROXY TCP4 ::1 ::1 1 2\r\n",
            "PROXY TCP6 1.2.3.4 5.6.7.8 1 2\r\n",
            "PROXY TCP6 fe80::1%1 ::1 1 2\r\n",
            "PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n",
            "PROXY tcp4 1.2.3.4 5.6.7.8 1 2\r\n",
            "PROXY \r\n",
        ] {
            assert_eq!(parse(line.as_bytes()), Err(Malformed("bad-proxy-line")), "{line:?}");
        }
        let long = [b"PROXY UNKNOWN ".as_slice(), &[b'x'; 93]].concat();
        assert_eq!(parse(&long[..106]), Ok(None));
        assert_eq!(parse(&long), Err(Malformed("proxy-line-too-long")));
        for other in [&b"GET / HTTP/1.1\r\n"[..], b"\x16\x03\x01", b"PROXX", b"\r\n\r\nQ"] {
            assert_eq!(parse(other), Err(Malformed("no-proxy-header")));
        }
    }

    #[test]
    fn a_binary_header_is_read_byte_for_byte() {
        let mut bytes = binary(0x21, 0x11, &FOUR);
        bytes.extend_from_slice(b"rest");
        let header = Header { length: 28, ends: Some(ends("192.0.2.7:12345", "198.51.100.9:443")) };
        assert_eq!(parse(&bytes), Ok(Some(header)));
        for end in 0..28 {
            assert_eq!(parse(&bytes[..end]), Ok(None), "{end}");
        }
        let mut six = vec![0; 36];
        (six[15], six[31], six[33], six[35]) = (1, 2, 3, 4);
        assert_eq!(parse(&binary(0x21, 0x21, &six)).unwrap().unwrap().ends, Some(ends("[::1]:3", "[::2]:4")));
        let mapped = [&[0; 10][..], &[0xff, 0xff, 10, 0, 0, 1], &[0; 10], &[0xff, 0xff, 10, 0, 0, 2], &[0, 1, 0, 2]];
        let found = parse(&binary(0x21, 0x21, &mapped.concat())).unwrap().unwrap().ends;
        assert_eq!(found, Some(ends("10.0.0.1:1", "10.0.0.2:2")));
    }

    #[test]
    fn headers_without_an_address_leave_the_connections_own() {
        for header in [
            binary(0x20, 0x00, &[]),
            binary(0x20, 0x99, b"anything at all"),
            binary(0x21, 0x00, &[]),
            binary(0x21, 0x12, &FOUR),
            binary(0x21, 0x31, &[0; 216]),
        ] {
            assert_eq!(parse(&header), Ok(Some(Header { length: header.len(), ends: None })), "{header:?}");
        }
    }

    #[test]
    fn binary_headers_that_are_not_quite_right_are_refused() {
        let with = |vectors: &[u8]| binary(0x21, 0x11, &[&FOUR[..], vectors].concat());
        for (header, reason) in [
            (binary(0x22, 0x11, &FOUR), "bad-proxy-command"),
            (binary(0x11, 0x11, &FOUR), "bad-proxy-command"),
            (binary(0x21, 0x13, &FOUR), "bad-proxy-family"),
            (binary(0x21, 0x41, &FOUR), "bad-proxy-family"),
            (binary(0x21, 0x11, &FOUR[..11]), "bad-proxy-length"),
            (with(&[4, 0]), "bad-proxy-tlv"),
            (with(&[4, 0, 2, 1]), "bad-proxy-tlv"),
            (with(&[3, 0, 2, 1, 1]), "bad-proxy-tlv"),
            (with(&[3, 0, 4, 1, 2, 3, 4]), "bad-proxy-checksum"),
            (with(&[0; V2_BYTES_MAX]), "proxy-header-too-long"),
        ] {
            assert_eq!(parse(&header), Err(Malformed(reason)));
            assert!(Malformed::REASONS.contains(&reason));
        }
    }

    #[test]
    fn a_checksum_is_checked() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283, "RFC 3720's polynomial");
        let mut header = binary(0x21, 0x11, &[&FOUR[..], &[3, 0, 4, 0, 0, 0, 0, 4, 0, 1, 9]].concat());
        let sum = crc32c(&header).to_be_bytes();
        header[31..35].copy_from_slice(&sum);
        assert!(parse(&header).unwrap().unwrap().ends.is_some());
        header[38] ^= 1;
        assert_eq!(parse(&header), Err(Malformed("bad-proxy-checksum")));
        // A header's worth of them would cost a walk over all of it each.
        let mut header = binary(0x21, 0x11, &[&FOUR[..], &[3, 0, 4, 0, 0, 0, 0], &[3, 0, 4, 0, 0, 0, 0]].concat());
        let sum = crc32c(&header).to_be_bytes();
        header[31..35].copy_from_slice(&sum);
        assert_eq!(parse(&header), Err(Malformed("bad-proxy-tlv")));
    }

    #[test]
    fn what_is_written_is_what_the_specification_shows() {
        let mut line = Vec::new();
        write_v1(ends("192.0.2.7:12345", "198.51.100.9:443"), &mut line);
        assert_eq!(line, b"PROXY TCP4 192.0.2.7 198.51.100.9 12345 443\r\n");
        line.clear();
        write_v1(ends("[2001:db8::1]:1", "10.0.0.1:2"), &mut line);
        assert_eq!(line, b"PROXY TCP6 2001:db8::1 ::ffff:10.0.0.1 1 2\r\n");
        let mut bytes = Vec::new();
        write_v2(ends("192.0.2.7:12345", "198.51.100.9:443"), None, None, &mut bytes);
        assert_eq!(bytes, binary(0x21, 0x11, &FOUR));
        let tls = Tls {
            version: "TLSv1.3",
            cipher: Some("TLS_AES_128_GCM_SHA256"),
            is_identified: true,
            common_name: Some("Ann"),
            alpn: Some(b"h2"),
            ..Tls::default()
        };
        bytes.clear();
        write_v2(ends("192.0.2.7:12345", "198.51.100.9:443"), Some("a.eu"), Some(&tls), &mut bytes);
        let mut expected = FOUR.to_vec();
        expected.extend_from_slice(b"\x01\0\x02h2\x02\0\x04a.eu\x20\0\x2e\x07\0\0\0\0\x21\0\x07TLSv1.3\x22\0\x03Ann");
        expected.extend_from_slice(b"\x23\0\x16TLS_AES_128_GCM_SHA256");
        assert_eq!(bytes, binary(0x21, 0x11, &expected));
    }

    #[test]
    fn what_is_written_reads_back() {
        let mut random = fastrand::Rng::with_seed(20);
        for _ in 0..2000 {
            let mut address = || match random.bool() {
                true => SocketAddr::new(IpAddr::V4(random.u32(..).into()), random.u16(..)),
                false => SocketAddr::new(IpAddr::V6(random.u128(..).into()), random.u16(..)),
            };
            let told = Ends { source: address(), destination: address() };
            let tls = random.bool().then(|| Tls { version: "TLSv1.2", is_resumed: true, ..Tls::default() });
            let mut bytes = Vec::new();
            match random.bool() {
                true => write_v1(told, &mut bytes),
                false => write_v2(told, Some("name"), tls.as_ref(), &mut bytes),
            }
            let length = bytes.len();
            bytes.push(b'x');
            assert_eq!(parse(&bytes), Ok(Some(Header { length, ends: Some(told.canonical()) })));
        }
    }

    #[test]
    fn the_common_name_is_found_in_a_subject_and_nowhere_else() {
        for (subject, name) in [
            ("CN=Ann,O=Example", Some("Ann")),
            ("OU=x+CN=Ann,O=Example", Some("Ann")),
            (r"CN=Ann\, B\2B\C3\A4,O=x", Some("Ann, B+ä")),
            (r"O=a\,CN=Eve,CN=Ann", Some("Ann")),
            ("O=Example", None),
        ] {
            assert_eq!(common_name(subject).as_deref(), name, "{subject}");
        }
    }
}

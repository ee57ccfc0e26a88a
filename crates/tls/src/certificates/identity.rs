//! Identity of a client from its verified certificate, in forms that headers and logs can hold.

use std::net::IpAddr;

use aws_lc_rs::digest::{SHA256, digest};
use base64ct::{Base64, Encoding};
use propylon_config::ForwardIdentity;
use rustls_pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::der_parser::asn1_rs::{Any, Tag};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// A verified client's identity. Every text is printable ASCII, whatever the certificate holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Distinguished name after RFC 4514, the most specific part first.
    pub subject: Box<str>,
    /// Distinguished name of the issuer, likewise.
    pub issuer: Box<str>,
    /// Serial number in hexadecimal, upper case, as `openssl x509 -serial` prints it.
    pub serial: Box<str>,
    /// Digest of the certificate's DER: hexadecimal, lower case.
    pub sha256: Box<str>,
    /// The subject's alternative names that are DNS names, mail addresses, URIs or addresses (RFC 5280 §4.2.1.6).
    pub names: Box<[Box<str>]>,
    /// The value of Client-Cert (RFC 9440 §2.2), where servers are told.
    pub certificate: Option<Box<str>>,
    /// The value of Client-Cert-Chain (RFC 9440 §2.3), where servers are told and the client sent more than its own.
    pub chain: Option<Box<str>>,
}

impl Identity {
    /// Identity from a verified chain, the client's own certificate first. None if the certificate cannot be parsed,
    /// which verification would have found.
    pub(crate) fn new(chain: &[CertificateDer<'_>], forward: ForwardIdentity) -> Option<Identity> {
        let (leaf, others) = chain.split_first()?;
        let (_, parsed) = X509Certificate::from_der(leaf).ok()?;
        let tells_chain = forward == ForwardIdentity::Chain && !others.is_empty();
        Some(Identity {
            subject: distinguished_name(parsed.subject()).into(),
            issuer: distinguished_name(parsed.issuer()).into(),
            serial: serial(parsed.raw_serial()).into(),
            sha256: hex(digest(&SHA256, leaf).as_ref(), b"0123456789abcdef").into(),
            names: alternative_names(&parsed),
            certificate: (forward != ForwardIdentity::Nothing).then(|| byte_sequences(&chain[..1])),
            chain: tells_chain.then(|| byte_sequences(others)),
        })
    }
}

/// Alternative names; an extension that cannot be read has none.
fn alternative_names(certificate: &X509Certificate<'_>) -> Box<[Box<str>]> {
    let Ok(Some(extension)) = certificate.subject_alternative_name() else { return Box::default() };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(text) | GeneralName::RFC822Name(text) | GeneralName::URI(text) => {
            Some(Box::<str>::from(*text))
        }
        GeneralName::IPAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
            let address = v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from)).ok()?;
            Some(address.to_string().into())
        }
        _ => None,
    };
    let is_printable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    let names = extension.value.general_names.iter().filter_map(name);
    names.filter(|text| is_printable(text)).collect()
}

/// A structured field's list of byte sequences (RFC 9651 §3.3.5).
fn byte_sequences(chain: &[CertificateDer<'_>]) -> Box<str> {
    let mut text = String::new();
    for der in chain {
        text.push_str(if text.is_empty() { ":" } else { ", :" });
        text.push_str(&Base64::encode_string(der));
        text.push(':');
    }
    text.into()
}

/// Serial number without the leading zero that keeps the number positive.
fn serial(bytes: &[u8]) -> String {
    let digits = match bytes {
        [0, rest @ ..] if !rest.is_empty() => rest,
        all => all,
    };
    hex(digits, b"0123456789ABCDEF")
}

fn hex(bytes: &[u8], digits: &[u8; 16]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(digits[usize::from(byte >> 4)]));
        text.push(char::from(digits[usize::from(byte & 15)]));
    }
    text
}

/// RFC 4514 §2.1: the last part first, and nothing in a value can be taken for the beginning of another.
fn distinguished_name(name: &X509Name<'_>) -> String {
    let mut text = String::new();
    let parts: Vec<_> = name.iter_rdn().collect();
    for (index, part) in parts.iter().rev().enumerate() {
        if index > 0 {
            text.push(',');
        }
        for (index, attribute) in part.iter().enumerate() {
            if index > 0 {
                text.push('+');
            }
            write_attribute(attribute, &mut text);
        }
    }
    text
}

fn write_attribute(attribute: &AttributeTypeAndValue<'_>, text: &mut String) {
    let oid = attribute.attr_type().to_id_string();
    let known = ATTRIBUTES.iter().find(|(dotted, _)| *dotted == oid);
    text.push_str(known.map_or(oid.as_str(), |(_, name)| name));
    text.push('=');
    let value = attribute.attr_value();
    match (known, utf8(value)) {
        (Some(_), Some(value)) => write_escaped(&value, text),
        // RFC 4514 §2.4: a value that is no text, or of a type without a name, is written as its encoding.
        _ => {
            text.push('#');
            text.push_str(&hex(&encoded(value), b"0123456789abcdef"));
        }
    }
}

/// RFC 4514 §3, and two that certificates have besides.
const ATTRIBUTES: [(&str, &str); 12] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.4", "SN"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];

fn utf8(value: &Any<'_>) -> Option<String> {
    match value.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::NumericString => {
            std::str::from_utf8(value.data).ok().map(str::to_string)
        }
        Tag::BmpString => {
            let (units, []) = value.data.as_chunks::<2>() else { return None };
            char::decode_utf16(units.iter().map(|unit| u16::from_be_bytes(*unit))).collect::<Result<_, _>>().ok()
        }
        _ => None,
    }
}

/// DER of a value whose length is below 2^16, which that of a whole certificate is.
fn encoded(value: &Any<'_>) -> Vec<u8> {
    let (length, tag) = (value.data.len(), value.tag().0 as u8);
    let mut der = vec![tag];
    match length {
        0..128 => der.push(length as u8),
        _ => der.extend([0x82, (length >> 8) as u8, length as u8]),
    }
    der.extend_from_slice(value.data);
    der
}

/// RFC 4514 §2.4. What is not printable ASCII is written as the hexadecimal of its UTF-8, which that section allows.
fn write_escaped(value: &str, text: &mut String) {
    let last = value.len().saturating_sub(1);
    for (index, byte) in value.bytes().enumerate() {
        let at_edge = (byte == b' ' && (index == 0 || index == last)) || (byte == b'#' && index == 0);
        match byte {
            b'"' | b'+' | b',' | b';' | b'<' | b'>' | b'\\' => text.extend(['\\', char::from(byte)]),
            b' '..=b'~' if !at_edge => text.push(char::from(byte)),
            b' ' | b'#' => text.extend(['\\', char::from(byte)]),
            _ => {
                text.push('\\');
                text.push_str(&hex(&[byte], b"0123456789ABCDEF"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(value: &str) -> String {
        let mut text = String::new();
        write_escaped(value, &mut text);
        text
    }

    #[test]
    fn no_value_can_pass_for_more_than_one_or_end_a_header() {
        assert_eq!(escaped("Lučić, CN=root"), "Lu\\C4\\8Di\\C4\\87\\, CN=root");
        assert_eq!(escaped("x\r\nHost: y"), "x\\0D\\0AHost: y");
        assert_eq!(escaped(" #a "), "\\ #a\\ ");
        assert_eq!(escaped("#a+b\"<>;\\"), "\\#a\\+b\\\"\\<\\>\\;\\\\");
        assert_eq!(escaped(" "), "\\ ");
        assert_eq!(escaped(""), "");
    }

    #[test]
    fn a_serial_reads_as_openssl_prints_it() {
        assert_eq!(serial(&[0, 0xab, 1]), "AB01");
        assert_eq!(serial(&[0]), "00");
        assert_eq!(serial(&[0x0f]), "0F");
    }
}

//! The protocol between an engine without private keys and a key server that has them (Keyless SSL, as gokeyless
//! speaks it): frames, items, opcodes and error bytes, for both ends and without a socket.
//!
//! A frame is a header of eight bytes (version 1.0, body length, ID; integers big-endian) and a body of items, each
//! `tag (1) | length (2) | data`. Requests and replies have the same shape: [`Message`]. Replies come in any order and
//! are told apart by their ID.
//!
//! ```
//! use propylon_crypto::keyless::{Decoder, Message, opcode};
//!
//! let mut wire = Vec::new();
//! Message { id: 7, opcode: Some(opcode::PING), payload: b"are you there?", ..Message::default() }.encode(&mut wire)?;
//! let mut decoder = Decoder::new();
//! decoder.extend(&wire[..500]);
//! assert!(matches!(decoder.next_message(), Ok(None)));
//! decoder.extend(&wire[500..]);
//! let message = decoder.next_message().unwrap().expect("a whole frame");
//! assert_eq!((message.id, message.payload), (7, b"are you there?".as_slice()));
//! # Ok::<(), propylon_crypto::keyless::TooLong>(())
//! ```

mod decode;
mod encode;

use std::fmt;
use std::net::IpAddr;

use crate::key::Ski;
use crate::scheme::{Hash, Scheme};

pub use decode::{Decoder, Malformed, whole_frames};
pub use encode::TooLong;

/// Version, length and ID.
pub const HEADER_BYTES: usize = 8;
/// Largest body: what its length field can say.
pub const BODY_BYTES_MAX: usize = 65_535;
/// Largest data of an item, so that it fits into a body with its tag and length.
pub const ITEM_BYTES_MAX: usize = BODY_BYTES_MAX - ITEM_HEADER_BYTES;
/// Frames are padded to this size, so that they all look alike inside TLS.
pub const PADDED_FRAME_BYTES: usize = 1024;
const ITEM_HEADER_BYTES: usize = 3;

/// A request or a reply. Empty slices, an absent SKI and a region of zero are items that are not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message<'a> {
    /// Chosen by the client, and copied into the reply.
    pub id: u32,
    pub opcode: Option<u8>,
    /// The operation's input; in a reply the result, or the error byte.
    pub payload: &'a [u8],
    /// A second payload, of a meaning private to the two ends.
    pub extra: &'a [u8],
    /// SKI of the key. Never all zero: that is how some clients write "none".
    pub ski: Option<Ski>,
    /// Digest of the RSA key, as clients named it before there were SKIs.
    pub digest: Option<[u8; 32]>,
    /// Address of the client whose handshake at the web site needs the operation.
    pub client_ip: Option<IpAddr>,
    /// The web site's address.
    pub server_ip: Option<IpAddr>,
    /// The web site's name.
    pub server_name: &'a [u8],
    pub certificate_id: &'a [u8],
    pub function: &'a [u8],
    /// Tracing context.
    pub span: &'a [u8],
    /// JSON.
    pub context: &'a [u8],
    pub region: u8,
}

/// Tags of the items on the wire.
mod tag {
    pub const DIGEST: u8 = 0x01;
    pub const SERVER_NAME: u8 = 0x02;
    pub const CLIENT_IP: u8 = 0x03;
    pub const SKI: u8 = 0x04;
    pub const SERVER_IP: u8 = 0x05;
    pub const CERTIFICATE_ID: u8 = 0x06;
    pub const OPCODE: u8 = 0x11;
    pub const PAYLOAD: u8 = 0x12;
    pub const FUNCTION: u8 = 0x13;
    pub const EXTRA: u8 = 0x14;
    pub const SPAN: u8 = 0x15;
    pub const CONTEXT: u8 = 0x16;
    pub const REGION: u8 = 0x17;
    pub const PADDING: u8 = 0x20;
}

/// Opcodes that are not an operation with a private key; those are [`scheme_of`] and [`opcode_of`].
pub mod opcode {
    pub const SEAL: u8 = 0x21;
    pub const UNSEAL: u8 = 0x22;
    pub const RPC: u8 = 0x23;
    pub const CUSTOM: u8 = 0x24;
    /// Reply: here is the result.
    pub const SUCCESS: u8 = 0xf0;
    pub const PING: u8 = 0xf1;
    /// Reply: the ping's payload.
    pub const PONG: u8 = 0xf2;
    /// Reply: one byte, an [`ErrorCode`](super::ErrorCode).
    pub const ERROR: u8 = 0xff;
}

/// The private-key operation that an opcode stands for.
#[must_use]
pub fn scheme_of(opcode: u8) -> Option<Scheme> {
    SCHEMES.iter().find(|(known, _)| *known == opcode).map(|(_, scheme)| *scheme)
}

/// The opcode of a private-key operation; PSS has one with SHA-256, SHA-384 and SHA-512 only.
#[must_use]
pub fn opcode_of(scheme: Scheme) -> Option<u8> {
    SCHEMES.iter().find(|(_, known)| *known == scheme).map(|(opcode, _)| *opcode)
}

const SCHEMES: &[(u8, Scheme)] = &[
    (0x01, Scheme::RsaRaw),
    (0x02, Scheme::RsaPkcs1(Hash::Md5Sha1)),
    (0x03, Scheme::RsaPkcs1(Hash::Sha1)),
    (0x04, Scheme::RsaPkcs1(Hash::Sha224)),
    (0x05, Scheme::RsaPkcs1(Hash::Sha256)),
    (0x06, Scheme::RsaPkcs1(Hash::Sha384)),
    (0x07, Scheme::RsaPkcs1(Hash::Sha512)),
    (0x12, Scheme::Ecdsa(Hash::Md5Sha1)),
    (0x13, Scheme::Ecdsa(Hash::Sha1)),
    (0x14, Scheme::Ecdsa(Hash::Sha224)),
    (0x15, Scheme::Ecdsa(Hash::Sha256)),
    (0x16, Scheme::Ecdsa(Hash::Sha384)),
    (0x17, Scheme::Ecdsa(Hash::Sha512)),
    (0x18, Scheme::Ed25519),
    (0x35, Scheme::RsaPss(Hash::Sha256)),
    (0x36, Scheme::RsaPss(Hash::Sha384)),
    (0x37, Scheme::RsaPss(Hash::Sha512)),
];

/// The reason why an operation was not done: the byte of an error reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ErrorCode {
    /// The input is none for this operation, the operation none for this key, or the key's holder could not do it.
    Cryptography = 0x01,
    KeyNotFound = 0x02,
    Read = 0x03,
    VersionMismatch = 0x04,
    BadOpcode = 0x05,
    /// A reply where a request was expected.
    UnexpectedOpcode = 0x06,
    Malformed = 0x07,
    /// The request names no key, or the server is not able to answer now.
    Internal = 0x08,
    CertificateNotFound = 0x09,
    Expired = 0x0a,
    /// The key is behind another key server, which cannot be reached.
    Remote = 0x0b,
}

impl ErrorCode {
    /// The error that a byte stands for; absent if no error has it.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<ErrorCode> {
        ErrorCode::ALL.into_iter().find(|code| *code as u8 == byte)
    }

    pub const ALL: [ErrorCode; 11] = [
        ErrorCode::Cryptography,
        ErrorCode::KeyNotFound,
        ErrorCode::Read,
        ErrorCode::VersionMismatch,
        ErrorCode::BadOpcode,
        ErrorCode::UnexpectedOpcode,
        ErrorCode::Malformed,
        ErrorCode::Internal,
        ErrorCode::CertificateNotFound,
        ErrorCode::Expired,
        ErrorCode::Remote,
    ];
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorCode::Cryptography => "cryptographic failure",
            ErrorCode::KeyNotFound => "key not found",
            ErrorCode::Read => "read failure",
            ErrorCode::VersionMismatch => "version mismatch",
            ErrorCode::BadOpcode => "bad opcode",
            ErrorCode::UnexpectedOpcode => "unexpected opcode",
            ErrorCode::Malformed => "malformed message",
            ErrorCode::Internal => "internal error",
            ErrorCode::CertificateNotFound => "certificate not found",
            ErrorCode::Expired => "expired",
            ErrorCode::Remote => "another key server cannot be reached",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_one_opcode_and_every_opcode_one_operation() {
        for (opcode, scheme) in SCHEMES {
            assert_eq!((scheme_of(*opcode), opcode_of(*scheme)), (Some(*scheme), Some(*opcode)));
        }
        assert_eq!(SCHEMES.len(), 17);
        for opcode in [0x00, 0x08, 0x11, 0x19, 0x21, 0x34, 0x38, 0xf0, 0xf1, 0xf2, 0xff] {
            assert_eq!(scheme_of(opcode), None);
        }
        assert_eq!(opcode_of(Scheme::RsaPss(Hash::Sha1)), None);
    }

    #[test]
    fn the_error_bytes_are_those_of_the_protocol() {
        for (byte, code) in (1_u8..).zip(ErrorCode::ALL) {
            assert_eq!((code as u8, ErrorCode::from_byte(byte)), (byte, Some(code)));
        }
        assert_eq!((ErrorCode::from_byte(0), ErrorCode::from_byte(0x0c)), (None, None));
    }
}

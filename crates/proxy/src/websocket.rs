//! WebSockets' handshake, as far as one side of it is made here.

use base64ct::{Base64, Encoding};

/// Proof that a server has understood a WebSocket's handshake (RFC 6455 §4.2.2).
pub fn accept(key: &[u8]) -> String {
    const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    Base64::encode_string(&propylon_crypto::sha1(&[key, GUID]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_websockets_key_is_answered_as_the_rfc_has_it() {
        assert_eq!(accept(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}

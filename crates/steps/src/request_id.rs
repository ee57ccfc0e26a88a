//! IDs of requests: those that clients bring, and new ones.

use std::net::IpAddr;

use propylon_config::{AcceptIds, Listener};
use propylon_http::h1::{Fields, is_same_or_lookalike};

/// Bytes of an ID that a client may bring.
pub const ID_BYTES_MAX: usize = 128;
const HEX: &[u8; 16] = b"0123456789abcdef";

/// Writes the ID of a request: the one that its client at `peer` has brought, where that is believed, or a new one.
/// Returns its length, 0 where the listener wants none.
pub fn write(
    listener: &Listener,
    peer: impl FnOnce() -> IpAddr,
    (fields, text): (&Fields, &[u8]),
    new: impl FnOnce() -> [u8; 36],
    out: &mut [u8; ID_BYTES_MAX],
) -> u8 {
    let Some(ids) = &listener.request_id else { return 0 };
    let accepts = match ids.accept {
        AcceptIds::Never => false,
        AcceptIds::Trusted => listener.trusts(peer()),
        AcceptIds::Always => true,
    };
    let brought = accepts.then(|| received(fields, text, &ids.header)).flatten();
    let id = brought.map_or_else(|| new().to_vec(), <[u8]>::to_vec);
    out[..id.len()].copy_from_slice(&id);
    id.len() as u8
}

/// The ID that a client has brought in the field of this name; none if that is not there, there twice, or not of the
/// form of an ID: letters, digits and signs that need no escape in logs, in HTML and in JSON.
fn received<'a>(fields: &'a Fields, text: &'a [u8], header: &str) -> Option<&'a [u8]> {
    let mut lines = fields.iter().filter(|field| is_same_or_lookalike(field.name.bytes(text), header));
    let (first, second) = (lines.next()?, lines.next());
    let is_lookalike = !first.name.bytes(text).eq_ignore_ascii_case(header.as_bytes());
    let id = first.value.bytes(text);
    let is_sign = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~:+/=@".contains(byte);
    let is_id = (1..=ID_BYTES_MAX).contains(&id.len()) && id.iter().all(is_sign);
    (second.is_none() && !is_lookalike && is_id).then_some(id)
}

/// A UUID of version 7 (RFC 9562 §5.7): IDs sort by the time they were made at, in milliseconds since 1970; the rest of
/// them is `chance`.
pub fn uuid(milliseconds: u64, chance: u128) -> [u8; 36] {
    const VERSION: u128 = 0x7 << 76;
    const VARIANT: u128 = 0b10 << 62;
    let chance = chance & !(0xf << 76) & !(0b11 << 62) & (u128::MAX >> 48);
    let bits = (u128::from(milliseconds) << 80) | VERSION | VARIANT | chance;
    let mut text = [b'-'; 36];
    let places = (0..text.len()).filter(|place| !matches!(place, 8 | 13 | 18 | 23));
    for (place, digit) in places.zip(0..32) {
        text[place] = HEX[(bits >> (124 - 4 * digit) & 0xf) as usize];
    }
    text
}

#[cfg(test)]
mod tests {
    use propylon_http::h1::{Limits, Parsed, RequestHead, parse_request};

    use super::*;

    #[test]
    fn an_id_that_needs_no_escape_is_taken_and_no_other() {
        let long = format!("X-Request-ID: {}\r\n", "a".repeat(ID_BYTES_MAX));
        for (lines, wanted) in [
            ("x-request-id: 7f.A_~:+/=@-\r\n", Some("7f.A_~:+/=@-")),
            (&*long, Some(&long[14..14 + ID_BYTES_MAX])),
            (&*long.replace("aa", "aaa"), None),
            ("", None),
            ("X-Request-ID:\r\n", None),
            ("X-Request-ID: a b\r\n", None),
            ("X-Request-ID: <b>\r\n", None),
            ("X-Request-ID: a\"b\r\n", None),
            ("X-Request-ID: a\r\nX-Request-ID: a\r\n", None),
            ("X-Request-ID: a\r\nX_Request_ID: b\r\n", None),
            ("X_Request_ID: b\r\n", None),
        ] {
            let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n");
            let mut head = RequestHead::default();
            let limits = Limits { head_bytes: 64 << 10, headers: 64 };
            assert_eq!(parse_request(text.as_bytes(), &limits, &mut head), Ok(Parsed::Complete), "{lines}");
            let found = received(&head.fields, text.as_bytes(), "X-Request-ID");
            assert_eq!(found, wanted.map(str::as_bytes), "{lines}");
        }
    }

    #[test]
    fn an_id_is_believed_of_whom_the_listener_says() {
        let id = |keys: &str, peer: &str| {
            let text = format!("[listener.a]\nbind = '0.0.0.0:80'\n{keys}\n[[route]]\nrespond = {{ status = 204 }}\n");
            let source = propylon_config::Source { name: "a.toml".into(), base: "".into(), text };
            let (config, _) = propylon_config::parse(&source).unwrap_or_else(|problems| panic!("{problems:?}"));
            let text = b"GET / HTTP/1.1\r\nHost: a\r\nX-Request-ID: brought\r\n\r\n";
            let mut head = RequestHead::default();
            let limits = Limits { head_bytes: 64 << 10, headers: 64 };
            assert_eq!(parse_request(text, &limits, &mut head), Ok(Parsed::Complete));
            let mut out = [0; ID_BYTES_MAX];
            let peer = || peer.parse().unwrap();
            let length = write(&config.listeners[0], peer, (&head.fields, text), || uuid(1, 2), &mut out);
            String::from_utf8(out[..usize::from(length)].to_vec()).unwrap()
        };
        let new = "00000000-0001-7000-8000-000000000002";
        assert_eq!(id("", "10.0.0.1"), "");
        let trusting = "forwarded = 'append'\ntrusted_proxies = ['10.0.0.0/8']\n";
        assert_eq!(id(&format!("{trusting}request_id = true"), "10.0.0.1"), "brought");
        assert_eq!(id(&format!("{trusting}request_id = true"), "11.0.0.1"), new);
        let always = format!("{trusting}request_id = {{ accept = 'always' }}");
        assert_eq!(id(&always, "11.0.0.1"), "brought");
        let never = format!("{trusting}request_id = {{ accept = 'never' }}");
        assert_eq!(id(&never, "10.0.0.1"), new);
    }

    #[test]
    fn a_new_id_is_the_example_of_the_standard() {
        // RFC 9562 Appendix A.6.
        let chance = 0x0cc3_18c4_dc0c_0c07_398f;
        let id = uuid(0x017f_22e2_79b0, chance | u128::MAX << 80);
        assert_eq!(std::str::from_utf8(&id), Ok("017f22e2-79b0-7cc3-98c4-dc0c0c07398f"));
    }
}

//! What a record looks like on the wire: its header, its content types and limits, and the alerts that one may hold.

/// Length of a record's header: content type, version, length of the payload.
pub(crate) const HEADER_LEN: usize = 5;
/// The longest plaintext of a record (RFC 8446 §5.1).
pub(crate) const PLAIN_MAX: usize = 1 << 14;
/// The longest payload of a record: RFC 5246 §6.2.3; TLS 1.3 allows less.
pub(crate) const PAYLOAD_MAX: usize = PLAIN_MAX + 2048;

pub(crate) const CHANGE_CIPHER_SPEC: u8 = 20;
pub(crate) const ALERT: u8 = 21;
pub(crate) const HANDSHAKE: u8 = 22;
pub(crate) const APPLICATION_DATA: u8 = 23;

#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum Alert {
    CloseNotify = 0,
    UnexpectedMessage = 10,
    BadRecordMac = 20,
    RecordOverflow = 22,
    IllegalParameter = 47,
    DecodeError = 50,
    InternalError = 80,
    UserCanceled = 90,
    NoRenegotiation = 100,
    MissingExtension = 109,
}

/// Bytes of the record at the front, header included, once all of it is there. Whether it is a record that may come
/// now, or a record at all, is the library's to say.
pub(crate) fn record_len(bytes: &[u8]) -> Option<usize> {
    let (header, _) = bytes.split_first_chunk::<HEADER_LEN>()?;
    let [kind, major, _, high, low] = *header;
    let payload = usize::from(u16::from_be_bytes([high, low]));
    let malformed = !(CHANGE_CIPHER_SPEC..=APPLICATION_DATA).contains(&kind) || major != 3 || payload > PAYLOAD_MAX;
    if malformed {
        // Show the header: it is refused at once, rather than after the wait for a payload that never comes.
        return Some(HEADER_LEN);
    }
    let len = HEADER_LEN + payload;
    (bytes.len() >= len).then_some(len)
}

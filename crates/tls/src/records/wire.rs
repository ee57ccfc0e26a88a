//! The record layer on the wire: header, content types, limits, alerts.

/// Length of a record's header: content type, version, payload length.
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

/// Length of the record at the front, header included, once all of it has been received. Whether this type of record is
/// allowed now is not checked here.
pub(crate) fn record_len(bytes: &[u8]) -> Option<usize> {
    let (header, _) = bytes.split_first_chunk::<HEADER_LEN>()?;
    let [kind, major, _, high, low] = *header;
    let payload = usize::from(u16::from_be_bytes([high, low]));
    let malformed = !(CHANGE_CIPHER_SPEC..=APPLICATION_DATA).contains(&kind) || major != 3 || payload > PAYLOAD_MAX;
    if malformed {
        // A malformed header is passed on by itself: it is refused at once, rather than after waiting for a payload.
        return Some(HEADER_LEN);
    }
    let len = HEADER_LEN + payload;
    (bytes.len() >= len).then_some(len)
}

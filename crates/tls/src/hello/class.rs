//! Classification of a ClientHello before the handshake's expensive part: complete or not, full or resuming.

use crate::records::wire::{CHANGE_CIPHER_SPEC, HANDSHAKE, HEADER_LEN, record_len};

/// Kind of handshake that a ClientHello asks for, by its own word: whether the session can be resumed is not checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelloClass {
    /// The client has no session to resume.
    Full,
    /// The client offers to resume a session.
    Resuming,
}

const CLIENT_HELLO: u8 = 1;
const MESSAGE_HEADER_LEN: usize = 4;

/// Walks over the records at the buffer's front, each once, until they hold a complete ClientHello.
#[derive(Default)]
pub(crate) struct HelloClassifier {
    /// Bytes of records that have been walked over.
    walked: usize,
    /// Bytes of the message in these records.
    gathered: usize,
    /// The message's header, as far as it has been received.
    header: [u8; MESSAGE_HEADER_LEN],
    /// The result, once the hello is complete or is found to be none.
    answer: Option<Option<HelloClass>>,
}

impl HelloClassifier {
    /// Class of the ClientHello at the front, once it is complete; none for anything else, which costs little to
    /// process. `buffer` must be the same as before, with more behind it.
    pub fn classify(&mut self, buffer: &[u8]) -> Option<HelloClass> {
        while self.answer.is_none() {
            let record = buffer.get(self.walked..)?;
            let len = record_len(record)?;
            self.answer = self.walk(&record[..len]);
            self.walked += len;
        }
        self.answer.flatten()
    }

    fn walk(&mut self, record: &[u8]) -> Option<Option<HelloClass>> {
        let payload = &record[HEADER_LEN..];
        match record[0] {
            // A ChangeCipherSpec may be sent between two ClientHellos (RFC 8446 appendix D.4).
            CHANGE_CIPHER_SPEC if self.gathered == 0 && !payload.is_empty() => return None,
            HANDSHAKE if !payload.is_empty() => {}
            _ => return Some(None),
        }
        let room = self.header.get_mut(self.gathered..).unwrap_or_default();
        let taken = room.len().min(payload.len());
        room[..taken].copy_from_slice(&payload[..taken]);
        let whole = self.gathered == 0;
        self.gathered += payload.len();
        if self.header[0] != CLIENT_HELLO {
            return Some(None);
        }
        let [_, a, b, c] = self.header;
        let message_len = MESSAGE_HEADER_LEN + u32::from_be_bytes([0, a, b, c]) as usize;
        if self.gathered < MESSAGE_HEADER_LEN || self.gathered < message_len {
            return None;
        }
        // A hello split over records is so rare that it is not put together for its class.
        let resuming = whole && offers_to_resume(&payload[MESSAGE_HEADER_LEN..]).unwrap_or(false);
        Some(Some(if resuming { HelloClass::Resuming } else { HelloClass::Full }))
    }
}

/// Whether a hello has a pre-shared key or a session ticket; none where it is malformed, which the library reports. A
/// session ID alone is no offer: TLS 1.3 clients make one up.
fn offers_to_resume(hello: &[u8]) -> Option<bool> {
    const SESSION_TICKET: u16 = 35;
    const PRE_SHARED_KEY: u16 = 41;
    let mut rest = extensions(hello)?;
    while let Some((kind, content, more)) = extension(rest)? {
        if kind == PRE_SHARED_KEY || kind == SESSION_TICKET && !content.is_empty() {
            return Some(true);
        }
        rest = more;
    }
    Some(false)
}

pub(crate) const SUPPORTED_GROUPS: u16 = 10;
pub(crate) const SUPPORTED_VERSIONS: u16 = 43;

/// Whether this record holds a complete hello of a client that supports TLS 1.3.
pub(crate) fn offers_tls13(record: &[u8]) -> bool {
    let lists = |versions: &[u8]| versions.get(1..).unwrap_or_default().chunks(2).any(|version| version == [3, 4]);
    content_of(record, SUPPORTED_VERSIONS).is_some_and(lists)
}

/// Content of an extension of a hello that is complete in its record.
pub(crate) fn content_of(record: &[u8], wanted: u16) -> Option<&[u8]> {
    const HELLO_AT: usize = HEADER_LEN + MESSAGE_HEADER_LEN;
    if *record.first()? != HANDSHAKE {
        return None;
    }
    let mut rest = extensions(record.get(HELLO_AT..)?)?;
    while let Some((kind, content, more)) = extension(rest)? {
        if kind == wanted {
            return Some(content);
        }
        rest = more;
    }
    None
}

/// Session ID of a hello that is complete in its record; none if empty.
pub(crate) fn session_id_of(record: &[u8]) -> Option<&[u8]> {
    const SESSION_ID_AT: usize = HEADER_LEN + MESSAGE_HEADER_LEN + 2 + 32;
    if *record.first()? != HANDSHAKE {
        return None;
    }
    let (len, rest) = record.get(SESSION_ID_AT..)?.split_first()?;
    rest.get(..usize::from(*len)).filter(|id| !id.is_empty())
}

/// The extensions of a hello (RFC 8446 §4.1.2, RFC 5246 §7.4.1.2).
fn extensions(hello: &[u8]) -> Option<&[u8]> {
    const VERSION_AND_RANDOM_LEN: usize = 2 + 32;
    let rest = hello.get(VERSION_AND_RANDOM_LEN..)?;
    let (_session_id, rest) = rest.split_at_checked(1 + usize::from(*rest.first()?))?;
    let (_suites, rest) = split_list(rest)?;
    let rest = rest.get(1 + usize::from(*rest.first()?)..)?;
    split_list(rest).map(|(extensions, _)| extensions)
}

/// Type and content of the first extension, and the rest; `Some(None)` at the end, none where they are malformed.
#[expect(clippy::type_complexity, reason = "three slices of one")]
fn extension(extensions: &[u8]) -> Option<Option<(u16, &[u8], &[u8])>> {
    let Some((kind, more)) = extensions.split_first_chunk() else { return Some(None) };
    let (content, more) = split_list(more)?;
    Some(Some((u16::from_be_bytes(*kind), content, more)))
}

/// Bytes behind their two-byte length, and what follows them.
fn split_list(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u16::from_be_bytes(*len).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(extensions: &[(u16, &[u8])]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.push(32);
        body.extend([9; 32]);
        body.extend([0, 2, 0x13, 0x01, 1, 0]);
        let listed: Vec<u8> = extensions.iter().flat_map(|(kind, content)| written(*kind, content)).collect();
        body.extend((listed.len() as u16).to_be_bytes());
        body.extend(listed);
        let mut message = vec![CLIENT_HELLO];
        message.extend(&(body.len() as u32).to_be_bytes()[1..]);
        message.extend(body);
        message
    }

    fn written(kind: u16, content: &[u8]) -> Vec<u8> {
        [&kind.to_be_bytes()[..], &(content.len() as u16).to_be_bytes(), content].concat()
    }

    fn records(message: &[u8], payload_max: usize) -> Vec<u8> {
        let record = |payload: &[u8]| [&[22, 3, 1][..], &(payload.len() as u16).to_be_bytes(), payload].concat();
        message.chunks(payload_max).flat_map(record).collect()
    }

    #[test]
    fn a_key_or_a_ticket_is_an_offer_and_a_session_id_or_an_empty_ticket_is_none() {
        let classify =
            |extensions: &[(u16, &[u8])]| HelloClassifier::default().classify(&records(&hello(extensions), 1 << 14));
        assert_eq!(classify(&[]), Some(HelloClass::Full));
        assert_eq!(classify(&[(0, b"name"), (35, b"")]), Some(HelloClass::Full));
        assert_eq!(classify(&[(0, b"name"), (35, b"ticket")]), Some(HelloClass::Resuming));
        assert_eq!(classify(&[(51, b"share"), (41, b"")]), Some(HelloClass::Resuming));
        assert_eq!(classify(&[(51, b"share"), (43, b"")]), Some(HelloClass::Full));
    }

    #[test]
    fn a_hello_is_there_with_its_last_byte_however_it_is_cut() {
        for payload_max in [1, 2, 3, 5, 40, 1 << 14] {
            let bytes = records(&hello(&[(35, b"ticket")]), payload_max);
            let mut classifier = HelloClassifier::default();
            for end in 0..bytes.len() {
                assert_eq!(classifier.classify(&bytes[..end]), None, "{end} bytes of records of {payload_max}");
            }
            assert!(classifier.classify(&bytes).is_some(), "records of {payload_max}");
        }
    }

    #[test]
    fn nothing_else_is_a_greeting() {
        let finished = [22, 3, 3, 0, 8, 20, 0, 0, 4, 1, 2, 3, 4];
        let cases: [&[u8]; 6] = [
            b"GET / HTTP/1.1\r\n\r\n",
            &[20, 3, 3, 0, 1, 1],
            &[22, 3, 3, 0, 0],
            &[22, 3, 3, 0xff, 0xff, 1],
            &[21, 3, 3, 0, 2, 2, 40],
            &finished,
        ];
        for bytes in cases {
            assert_eq!(HelloClassifier::default().classify(bytes), None, "{bytes:?}");
        }
        let cut = records(&hello(&[(35, b"ticket")])[..60], 100);
        assert_eq!(HelloClassifier::default().classify(&cut), None);
        let after_change = [&[20, 3, 3, 0, 1, 1][..], &records(&hello(&[]), 100)].concat();
        assert_eq!(HelloClassifier::default().classify(&after_change), Some(HelloClass::Full));
    }
}

//! Post-handshake messages of a TLS 1.3 server, in pieces of any size: tickets and key updates.

use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;

/// Limit of a ticket's length; the protocol allows four times as much. Longer ones are skipped.
const MESSAGE_BYTES_MAX: usize = 16 * 1024;
/// Limit of tickets kept per connection; more are read and dropped.
const TICKETS_MAX: u8 = 4;

const HEADER_LEN: usize = 4;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// State for post-handshake messages. It owns no memory once the tickets have been received.
#[derive(Default)]
pub(crate) struct Messages {
    /// Remainder of the library's connection, which processes tickets.
    tickets: Option<Box<KernelConnection<ClientConnectionData>>>,
    taken: u8,
    /// Part of a message, header included.
    partial: Vec<u8>,
    /// Bytes to skip of a message that is too long.
    skip: u32,
}

/// A complete message that the session has to act on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// KeyUpdate with its `request_update` byte: the server's next record has new keys.
    KeyUpdate(u8),
}

/// Reason why a message is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum BadMessage {
    Unexpected,
    Malformed,
}

impl Messages {
    pub fn new(connection: KernelConnection<ClientConnectionData>) -> Messages {
        Messages { tickets: Some(Box::new(connection)), ..Messages::default() }
    }

    /// Whether no message is incomplete.
    pub fn is_whole(&self) -> bool {
        self.partial.is_empty() && self.skip == 0
    }

    /// Processes the content of a record. A KeyUpdate must end its record (RFC 8446 §5.1), so there is at most one.
    pub fn take(&mut self, mut bytes: &[u8]) -> Result<Option<Message>, BadMessage> {
        loop {
            let skipped = bytes.len().min(self.skip as usize);
            self.skip -= skipped as u32;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return Ok(None);
            }
            self.fill(&mut bytes, HEADER_LEN);
            let kind = self.partial[0];
            if kind != NEW_SESSION_TICKET && kind != KEY_UPDATE {
                return Err(BadMessage::Unexpected);
            }
            let Some(&[_, a, b, c]) = self.partial.first_chunk::<HEADER_LEN>() else { return Ok(None) };
            let len = u32::from_be_bytes([0, a, b, c]);
            if kind == KEY_UPDATE && len != 1 {
                return Err(BadMessage::Malformed);
            }
            if len as usize > MESSAGE_BYTES_MAX {
                self.partial = Vec::new();
                self.skip = len;
                continue;
            }
            let whole = HEADER_LEN + len as usize;
            self.fill(&mut bytes, whole);
            if self.partial.len() < whole {
                return Ok(None);
            }
            let message = std::mem::take(&mut self.partial);
            match kind {
                KEY_UPDATE if !bytes.is_empty() => return Err(BadMessage::Unexpected),
                KEY_UPDATE => return Ok(Some(Message::KeyUpdate(message[HEADER_LEN]))),
                _ => self.ticket(&message[HEADER_LEN..])?,
            }
        }
    }

    fn fill(&mut self, bytes: &mut &[u8], want: usize) {
        let take = bytes.len().min(want.saturating_sub(self.partial.len()));
        self.partial.extend_from_slice(&bytes[..take]);
        *bytes = &bytes[take..];
    }

    fn ticket(&mut self, payload: &[u8]) -> Result<(), BadMessage> {
        let Some(tickets) = &mut self.tickets else { return Ok(()) };
        tickets.handle_new_session_ticket(payload).map_err(|_| BadMessage::Malformed)?;
        self.taken += 1;
        if self.taken == TICKETS_MAX {
            self.tickets = None;
        }
        Ok(())
    }

    /// Stops waiting for tickets: once the session has been used, those that belong to its start have been received.
    pub fn rest(&mut self) {
        self.tickets = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let [_, a, b, c] = (body.len() as u32).to_be_bytes();
        [&[kind, a, b, c], body].concat()
    }

    #[test]
    fn messages_are_found_however_they_are_cut() {
        let ticket = message(NEW_SESSION_TICKET, &[7; 300]);
        let update = message(KEY_UPDATE, &[1]);
        let long = message(NEW_SESSION_TICKET, &[7; MESSAGE_BYTES_MAX + 1]);
        let all = [&ticket[..], &long, &ticket, &update].concat();
        for piece in [1, 3, 4, 5, 250, all.len()] {
            let mut messages = Messages::default();
            let taken: Vec<_> = all.chunks(piece).map(|bytes| messages.take(bytes)).collect();
            let (last, before) = taken.split_last().unwrap();
            assert!(before.iter().all(|taken| *taken == Ok(None)), "{piece}");
            assert_eq!(*last, Ok(Some(Message::KeyUpdate(1))));
            assert!(messages.is_whole() && messages.partial.capacity() == 0, "nothing is kept");
        }
    }

    #[test]
    fn what_may_not_come_or_is_malformed_is_refused() {
        for (bytes, why) in [
            (message(1, b"hello"), BadMessage::Unexpected),
            (vec![13], BadMessage::Unexpected),
            (message(KEY_UPDATE, &[0, 0]), BadMessage::Malformed),
            (message(KEY_UPDATE, &[]), BadMessage::Malformed),
            ([message(KEY_UPDATE, &[0]), message(NEW_SESSION_TICKET, &[])].concat(), BadMessage::Unexpected),
        ] {
            assert_eq!(Messages::default().take(&bytes), Err(why), "{bytes:?}");
        }
    }
}

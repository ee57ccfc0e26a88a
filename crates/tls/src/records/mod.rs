//! An established session: records in both directions, and the few messages that may still come between data.
//!
//! The library keeps some 3.5 KB per established connection. Two keys, two counters and the secrets from which the next
//! keys are derived are enough, so the connection is taken out of the library once its handshake is over.

pub(crate) mod failure;
pub(crate) mod messages;
pub(crate) mod protection;
pub(crate) mod secrets;
pub(crate) mod suite;
pub(crate) mod wire;

use std::ops::Range;

use failure::{Failure, FailureReason};
use messages::{BadMessage, Message, Messages};
use protection::{OpenError, Protection};
use secrets::{RecordKeys, Secret, TrafficSecrets};
use suite::{Suite, Version};
use wire::{ALERT, APPLICATION_DATA, Alert, CHANGE_CIPHER_SPEC, HANDSHAKE, HEADER_LEN, PAYLOAD_MAX, PLAIN_MAX};

/// Records and messages in a row that carry no data. A peer that sends more wastes CPU time on purpose.
const RECORDS_WITHOUT_DATA_MAX: u8 = 32;

/// Records under one AES-GCM key: RFC 8446 §5.5 and RFC 9325 §4.4 allow 2^24.5, which is 23,726,566.
const SEALED_MAX_GCM: u64 = 1 << 24;
/// Records under one ChaCha20-Poly1305 key: there is no limit but the record's number, which "MUST NOT wrap" (RFC 5246
/// §6.1, RFC 8446 §5.3). Far enough from that for the alerts that may follow.
const SEALED_MAX_CHACHA: u64 = u64::MAX - (1 << 16);

pub(crate) struct Records {
    sealing: Protection,
    opening: Protection,
    version: Version,
    /// Limit of records sealed with one key.
    sealed_max: u64,
    /// Handshake message of which a part has been received.
    partial: Partial,
    records_without_data: u8,
    /// The peer has sent close_notify.
    end: bool,
    /// A close_notify has been sent, or an alert.
    closed: bool,
    /// The key has reached its record limit while data was to be sealed: TLS 1.2, which has no key update.
    worn_out: bool,
}

/// A post-handshake message that is not complete: messages are short, but a peer may split them anywhere.
#[derive(Default)]
struct Partial {
    head: [u8; 5],
    len: u8,
    /// Bytes of a refused renegotiation's ClientHello that are still to be skipped.
    skip: u32,
}

/// Result of [`Session::open`](crate::Session::open).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Plaintext bytes at the buffer's front.
    pub plain: usize,
    /// Bytes consumed at the front of the cipher range; the rest is an incomplete record, to be passed in again.
    pub consumed: usize,
    /// The peer has sent close_notify: no plaintext follows. Writing is still possible.
    pub end: bool,
}

/// The peer, which decides which post-handshake messages are allowed.
pub(crate) enum Peer<'a> {
    Client,
    Server(&'a mut Messages),
}

/// Fatal error of an established session.
struct SessionError {
    /// Alert for the peer; none where the peer has ended the session by an alert itself.
    alert: Option<Alert>,
    reason: FailureReason,
    detail: String,
}

impl SessionError {
    fn new(alert: Alert, reason: FailureReason, detail: impl Into<String>) -> SessionError {
        SessionError { alert: Some(alert), reason, detail: detail.into() }
    }

    fn unexpected(detail: &str) -> SessionError {
        SessionError::new(Alert::UnexpectedMessage, FailureReason::UnexpectedMessage, detail)
    }
}

impl From<OpenError> for SessionError {
    fn from(error: OpenError) -> SessionError {
        match error {
            OpenError::Forged => {
                SessionError::new(Alert::BadRecordMac, FailureReason::DecryptError, "a record does not decrypt")
            }
            OpenError::TooLong => SessionError::new(
                Alert::RecordOverflow,
                FailureReason::RecordOverflow,
                "a record's plaintext is too long",
            ),
            OpenError::NoType => SessionError::unexpected("a record is nothing but padding"),
            OpenError::OutOfNumbers => {
                let detail = "the peer has used up the numbers of its records";
                SessionError::new(Alert::UnexpectedMessage, FailureReason::KeysExhausted, detail)
            }
        }
    }
}

impl Records {
    /// Takes over from the library: the handshake is over and all its output has been taken.
    pub fn towards_client(
        secrets: TrafficSecrets,
        keys: RecordKeys,
        version: Version,
        suite: Suite,
    ) -> Result<Records, Failure> {
        let records = Records::between(secrets.server, secrets.client, keys, version, suite);
        records.map(|records| lowered_limit::lower(records, false))
    }

    /// Same as [`Records::towards_client`], with a server as the peer.
    pub fn towards_server(
        secrets: TrafficSecrets,
        keys: RecordKeys,
        version: Version,
        suite: Suite,
    ) -> Result<Records, Failure> {
        let records = Records::between(secrets.client, secrets.server, keys, version, suite);
        records.map(|records| lowered_limit::lower(records, true))
    }

    fn between(
        ours: Option<Secret>,
        theirs: Option<Secret>,
        keys: RecordKeys,
        version: Version,
        suite: Suite,
    ) -> Result<Records, Failure> {
        let sealing = Protection::new(version, suite, ours, keys.sealing);
        let opening = Protection::new(version, suite, theirs, keys.opening);
        let (Some(sealing), Some(opening)) = (sealing, opening) else {
            return Err(Failure::new(FailureReason::Internal, "keys of an unknown suite"));
        };
        debug_assert!(sealing.is_consistent() && opening.is_consistent());
        Ok(Records {
            sealing,
            opening,
            version,
            sealed_max: sealed_max(suite),
            partial: Partial::default(),
            records_without_data: 0,
            end: false,
            closed: false,
            worn_out: false,
        })
    }

    /// See `Session::open`.
    pub fn open(&mut self, buffer: &mut [u8], cipher: Range<usize>, out: &mut Vec<u8>) -> Result<Opened, Failure> {
        self.open_from(&mut Peer::Client, buffer, cipher, out)
    }

    /// Same as [`Records::open`], with either kind of peer.
    pub fn open_from(
        &mut self,
        peer: &mut Peer<'_>,
        buffer: &mut [u8],
        cipher: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<Opened, Failure> {
        let (mut plain, mut at) = (0, cipher.start);
        while !self.end {
            match self.open_record(peer, &mut buffer[at..cipher.end], out) {
                Ok(None) => break,
                Ok(Some((record, data))) => {
                    let len = data.len();
                    buffer.copy_within(at + data.start..at + data.end, plain);
                    plain += len;
                    at += record;
                }
                Err(error) => return Err(self.refuse(error, out)),
            }
        }
        if self.end {
            // "Any data received after a closure alert has been received MUST be ignored." (RFC 8446 §6.1)
            at = cipher.end;
        }
        Ok(Opened { plain, consumed: at - cipher.start, end: self.end })
    }

    /// Length of the first record and the range of its data, which is empty for a message; none while the record is
    /// incomplete.
    fn open_record(
        &mut self,
        peer: &mut Peer<'_>,
        bytes: &mut [u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<(usize, Range<usize>)>, SessionError> {
        let Some(len) = self.record_len(bytes)? else {
            return Ok(None);
        };
        let record = &mut bytes[..len];
        let (content, place) = self.opening.open(record)?;
        if content == APPLICATION_DATA && !place.is_empty() {
            self.check_no_partial(peer)?;
            self.records_without_data = 0;
            return Ok(Some((len, place)));
        }
        self.count_record_without_data()?;
        let message = &record[place];
        match content {
            HANDSHAKE => self.handshake(peer, message, out)?,
            ALERT => {
                self.check_no_partial(peer)?;
                self.alert(message)?;
            }
            APPLICATION_DATA => self.check_no_partial(peer)?,
            _ => return Err(SessionError::unexpected("a record of no known type")),
        }
        Ok(Some((len, 0..0)))
    }

    fn count_record_without_data(&mut self) -> Result<(), SessionError> {
        self.records_without_data += 1;
        match self.records_without_data > RECORDS_WITHOUT_DATA_MAX {
            false => Ok(()),
            true => {
                Err(SessionError::new(Alert::UnexpectedMessage, FailureReason::Flood, "too many records without data"))
            }
        }
    }

    /// Length of the record at the front, once all of it has been received.
    fn record_len(&self, bytes: &[u8]) -> Result<Option<usize>, SessionError> {
        let Some((&[content, major, _, high, low], _)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let allowed = match self.version {
            // Alerts and ChangeCipherSpec have to be inside of encrypted records (RFC 8446 §5).
            Version::Tls13 => content == APPLICATION_DATA,
            Version::Tls12 => (CHANGE_CIPHER_SPEC + 1..=APPLICATION_DATA).contains(&content),
        };
        if !allowed {
            return Err(SessionError::unexpected("a record type that cannot come after the handshake"));
        }
        if major != 3 {
            return Err(SessionError::new(
                Alert::DecodeError,
                FailureReason::BadRecord,
                "a record of another protocol",
            ));
        }
        let payload = usize::from(u16::from_be_bytes([high, low]));
        let max = match self.version {
            Version::Tls13 => PLAIN_MAX + 256,
            Version::Tls12 => PAYLOAD_MAX,
        };
        if payload > max {
            return Err(SessionError::new(
                Alert::RecordOverflow,
                FailureReason::RecordOverflow,
                "a record is too long",
            ));
        }
        let len = HEADER_LEN + payload;
        Ok((bytes.len() >= len).then_some(len))
    }

    /// "Handshake messages MUST NOT be interleaved with other record types." (RFC 8446 §5.1)
    fn check_no_partial(&self, peer: &Peer<'_>) -> Result<(), SessionError> {
        let whole = match peer {
            Peer::Client => true,
            Peer::Server(messages) => messages.is_whole(),
        };
        match whole && self.partial.len == 0 && self.partial.skip == 0 {
            true => Ok(()),
            false => Err(SessionError::unexpected("a handshake message is interleaved with other records")),
        }
    }

    fn alert(&mut self, message: &[u8]) -> Result<(), SessionError> {
        const WARNING: u8 = 1;
        // "Implementations MUST NOT send Handshake and Alert records that have a zero-length TLSInnerPlaintext.content;
        // if such a message is received, the receiving implementation MUST terminate the connection with an
        // "unexpected_message" alert." (RFC 8446 §5.4)
        if message.is_empty() && self.version == Version::Tls13 {
            return Err(SessionError::unexpected("an empty alert"));
        }
        let &[level, description] = message else {
            return Err(SessionError::new(
                Alert::DecodeError,
                FailureReason::BadRecord,
                "an alert is not two bytes long",
            ));
        };
        if description == Alert::CloseNotify as u8 {
            self.end = true;
            return Ok(());
        }
        // TLS 1.3 ignores the level: only user_canceled is not fatal (RFC 8446 §6).
        let harmless = match self.version {
            Version::Tls13 => description == Alert::UserCanceled as u8,
            Version::Tls12 => level == WARNING,
        };
        if harmless {
            return Ok(());
        }
        Err(SessionError {
            alert: None,
            reason: FailureReason::PeerAlert,
            detail: format!("the peer sent alert {description}"),
        })
    }

    fn handshake(&mut self, peer: &mut Peer<'_>, message: &[u8], out: &mut Vec<u8>) -> Result<(), SessionError> {
        if message.is_empty() {
            return Err(SessionError::unexpected("an empty handshake record"));
        }
        match (self.version, peer) {
            (Version::Tls13, Peer::Client) => self.key_update(message, out),
            (Version::Tls12, Peer::Client) => self.renegotiation(CLIENT_HELLO, message, out),
            (Version::Tls13, Peer::Server(messages)) => self.message(messages, message, out),
            (Version::Tls12, Peer::Server(_)) => self.renegotiation(HELLO_REQUEST, message, out),
        }
    }

    /// Post-handshake messages of a TLS 1.3 server: tickets and key updates. A certificate request is not allowed,
    /// since post_handshake_auth was not offered (RFC 8446 §4.6.2).
    fn message(&mut self, messages: &mut Messages, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), SessionError> {
        match messages.take(bytes) {
            Ok(None) => Ok(()),
            Ok(Some(Message::KeyUpdate(request))) => self.apply_key_update(request, out),
            Err(BadMessage::Unexpected) => {
                Err(SessionError::unexpected("a handshake message that cannot come after the handshake"))
            }
            Err(BadMessage::Malformed) => Err(SessionError::new(
                Alert::DecodeError,
                FailureReason::BadRecord,
                "a message after the handshake is malformed",
            )),
        }
    }

    /// KeyUpdate, the only message that a TLS 1.3 client may send after its handshake: no certificate was requested.
    fn key_update(&mut self, message: &[u8], out: &mut Vec<u8>) -> Result<(), SessionError> {
        let rest = self.partial.fill(message, 5);
        match self.partial.taken() {
            [KEY_UPDATE, 0, 0, 1, request] => {
                if !rest.is_empty() {
                    return Err(SessionError::unexpected("a key update is followed by more in its record"));
                }
                let request = *request;
                self.partial = Partial::default();
                self.apply_key_update(request, out)
            }
            [KEY_UPDATE, 0, 0, 1] | [KEY_UPDATE, 0, 0] | [KEY_UPDATE, 0] | [KEY_UPDATE] => Ok(()),
            [KEY_UPDATE, ..] => Err(SessionError::new(
                Alert::DecodeError,
                FailureReason::BadRecord,
                "a key update is not one byte long",
            )),
            _ => Err(SessionError::unexpected("a handshake message that cannot come after the handshake")),
        }
    }

    fn apply_key_update(&mut self, request: u8, out: &mut Vec<u8>) -> Result<(), SessionError> {
        const NOT_REQUESTED: u8 = 0;
        const REQUESTED: u8 = 1;
        match request {
            NOT_REQUESTED => {}
            REQUESTED if self.closed => {}
            REQUESTED => self.send_key_update(out),
            _ => {
                let detail = "a key update asks for what there is not";
                return Err(SessionError::new(Alert::IllegalParameter, FailureReason::ProtocolViolation, detail));
            }
        }
        self.opening.update();
        Ok(())
    }

    fn send_key_update(&mut self, out: &mut Vec<u8>) {
        self.append(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0], out);
        self.sealing.update();
    }

    /// Refuses renegotiation by a TLS 1.2 peer with a warning; the session goes on. `expected` is the only message type
    /// allowed.
    fn renegotiation(&mut self, expected: u8, mut message: &[u8], out: &mut Vec<u8>) -> Result<(), SessionError> {
        const WARNING: u8 = 1;
        while !message.is_empty() {
            let skipped = message.len().min(self.partial.skip as usize);
            self.partial.skip -= skipped as u32;
            message = self.partial.fill(&message[skipped..], if self.partial.skip > 0 { 0 } else { 4 });
            match *self.partial.taken() {
                [kind, a, b, c] if kind == expected => {
                    self.partial = Partial { skip: u32::from_be_bytes([0, a, b, c]), ..Partial::default() };
                    self.count_record_without_data()?;
                    // The record limit has to be checked here as well: otherwise a client could have a worn key used
                    // without end.
                    if !self.closed && !self.is_worn(0) {
                        self.append(ALERT, &[WARNING, Alert::NoRenegotiation as u8], out);
                    }
                }
                [] => {}
                [kind, ..] if kind == expected => {}
                _ => {
                    return Err(SessionError::unexpected("a handshake message after the handshake"));
                }
            }
        }
        Ok(())
    }

    fn refuse(&mut self, error: SessionError, out: &mut Vec<u8>) -> Failure {
        const FATAL: u8 = 2;
        if let Some(alert) = error.alert
            && !self.closed
        {
            self.append(ALERT, &[FATAL, alert as u8], out);
        }
        self.closed = true;
        Failure::new(error.reason, error.detail)
    }

    fn append(&mut self, content: u8, message: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + self.sealing.overhead() + message.len(), 0);
        self.sealing.seal(content, message, &mut out[start..]);
    }

    /// See `Session::seal`.
    pub fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> usize {
        let bound = self.sealed_len(plain.len());
        assert!(out.len() >= bound, "{} bytes to seal into, {bound} needed", out.len());
        // Later data must not be sealed after data was refused: the peer would read it in the wrong place.
        if self.closed || self.worn_out {
            return 0;
        }
        let mut written = 0;
        if self.is_worn(plain.len()) {
            match self.version {
                Version::Tls12 => {
                    self.worn_out = true;
                    return 0;
                }
                Version::Tls13 => {
                    written = self.sealing.seal(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0], out);
                    self.sealing.update();
                }
            }
        }
        for piece in plain.chunks(PLAIN_MAX) {
            written += self.sealing.seal(APPLICATION_DATA, piece, &mut out[written..]);
        }
        written
    }

    /// Whether sealing that much more would exceed the key's record limit, counting the record of a KeyUpdate.
    fn is_worn(&self, plain_len: usize) -> bool {
        let records = plain_len.div_ceil(PLAIN_MAX) as u64;
        self.sealing.sequence.saturating_add(records) >= self.sealed_max
    }

    /// See `Session::is_wearing`.
    pub fn is_wearing(&self) -> bool {
        self.version == Version::Tls12 && self.sealing.sequence >= self.sealed_max / 2
    }

    /// See `Session::is_worn_out`.
    pub fn is_worn_out(&self) -> bool {
        self.worn_out
    }

    /// See `Session::sealed_len`.
    pub fn sealed_len(&self, plain_len: usize) -> usize {
        let overhead = self.sealing.overhead();
        let update = if self.is_worn(plain_len) { overhead + 5 } else { 0 };
        plain_len + plain_len.div_ceil(PLAIN_MAX) * overhead + update
    }

    /// See `Session::close`.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        const WARNING: u8 = 1;
        if !self.closed {
            self.append(ALERT, &[WARNING, Alert::CloseNotify as u8], out);
            self.closed = true;
        }
    }

    /// See `Session::rest`.
    pub fn rest(&mut self) {
        self.sealing.rest();
        self.opening.rest();
    }
}

/// Limit of records sealed with one key of a suite.
fn sealed_max(suite: Suite) -> u64 {
    match suite {
        Suite::Aes128Gcm | Suite::Aes256Gcm => SEALED_MAX_GCM,
        Suite::Chacha20Poly1305 => SEALED_MAX_CHACHA,
    }
}

/// Lowered record limits, for tests of drivers of sessions: the real limits take hours to reach. They can only be
/// lowered.
pub mod lowered_limit {
    use std::cell::Cell;

    thread_local! {
        static TO_CLIENTS: Cell<u64> = const { Cell::new(u64::MAX) };
        static TO_SERVERS: Cell<u64> = const { Cell::new(u64::MAX) };
    }

    /// Sets the record limit of one key towards clients, for sessions established on this thread from here on.
    pub fn towards_clients(records: u64) {
        TO_CLIENTS.set(records);
    }

    /// Sets the record limit of one key towards servers, for sessions established on this thread from here on.
    pub fn towards_servers(records: u64) {
        TO_SERVERS.set(records);
    }

    pub(super) fn lower(records: super::Records, to_server: bool) -> super::Records {
        let limit = if to_server { &TO_SERVERS } else { &TO_CLIENTS };
        let sealed_max = limit.with(|limit| records.sealed_max.min(limit.get()));
        super::Records { sealed_max, ..records }
    }
}

const HELLO_REQUEST: u8 = 0;
const CLIENT_HELLO: u8 = 1;
const KEY_UPDATE: u8 = 24;

impl Partial {
    /// Takes bytes until there are `want`, and returns the rest.
    fn fill<'a>(&mut self, bytes: &'a [u8], want: usize) -> &'a [u8] {
        let have = usize::from(self.len);
        let take = bytes.len().min(want.saturating_sub(have));
        self.head[have..have + take].copy_from_slice(&bytes[..take]);
        self.len += take as u8;
        &bytes[take..]
    }

    fn taken(&self) -> &[u8] {
        &self.head[..usize::from(self.len)]
    }
}

#[cfg(test)]
mod tests;

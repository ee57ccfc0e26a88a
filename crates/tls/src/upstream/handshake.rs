//! Handshakes with servers: the library is passed one record at a time.

use std::sync::Arc;

use rustls::client::{ClientConfig, UnbufferedClientConnection};
use rustls::unbuffered::ConnectionState;
use rustls::{Error, HandshakeKind};
use rustls_pki_types::ServerName;

use super::facts::UpstreamFacts;
use super::failure::{UpstreamFailure, UpstreamFailureReason};
use crate::handshake::append;
use crate::handshake::step::Step;
use crate::parking::JobRouting;
use crate::provider::captured::{self, CapturedSecrets, Resumption};
use crate::records::Records;
use crate::records::messages::Messages;
use crate::records::suite::{Suite, Version};
use crate::records::wire::{ALERT, APPLICATION_DATA, Alert, CHANGE_CIPHER_SPEC, record_len};

const CLOSE_NOTIFY: u8 = Alert::CloseNotify as u8;

pub(super) struct Handshake {
    connection: UnbufferedClientConnection,
    config: Arc<ClientConfig>,
    captured: CapturedSecrets,
    /// Routing of deferred signatures; absent where none is deferred.
    pub routing: Option<JobRouting>,
    /// Bytes at the buffer's front that the library has seen and still needs; see [`crate::handshake`].
    retained: usize,
    /// The ClientHello has been written.
    has_begun: bool,
    /// The server's first byte has been checked.
    has_answered: bool,
}

impl Handshake {
    pub fn new(
        config: &Arc<ClientConfig>,
        name: &ServerName<'static>,
        routing: Option<JobRouting>,
    ) -> Result<Handshake, UpstreamFailure> {
        Ok(Handshake {
            connection: UnbufferedClientConnection::new(config.clone(), name.clone())?,
            config: config.clone(),
            captured: CapturedSecrets::default(),
            routing,
            retained: 0,
            has_begun: false,
            has_answered: false,
        })
    }

    /// See `UpstreamSession::handshake`.
    pub fn advance(&mut self, buffer: &mut [u8], out: &mut Vec<u8>) -> Result<(usize, Step), UpstreamFailure> {
        let before = out.len();
        if !std::mem::replace(&mut self.has_begun, true) {
            self.pump(&mut [], out)?;
        }
        self.check_start(buffer)?;
        let mut consumed = 0;
        // One more record at a time: what follows the handshake is not for this state.
        while let Some(record) = record_len(&buffer[consumed + self.retained..]) {
            // The library would wait for more after a close_notify (RFC 8446 §6.1).
            if let [ALERT, _, _, 0, 2, _, CLOSE_NOTIFY, ..] = buffer[consumed + self.retained..] {
                return Err(UpstreamFailure::closed());
            }
            self.retained += record;
            let end = consumed + self.retained;
            let let_go = self.pump(&mut buffer[consumed..end], out)?;
            consumed += let_go;
            self.retained -= let_go;
            if !self.connection.is_handshaking() {
                return Ok((consumed, Step::Done));
            }
        }
        let step = if out.len() > before { Step::Write } else { Step::Read };
        Ok((consumed, step))
    }

    /// Bytes at the buffer's front to pass to a fiber; see [`crate::handshake`].
    pub fn bytes_to_park(&self, buffer: &[u8]) -> Option<usize> {
        self.routing.as_ref()?;
        let mut end = self.retained;
        while let Some(record) = record_len(buffer.get(end..)?) {
            end += record;
        }
        (end > self.retained).then_some(end)
    }

    /// Rejects servers that do not speak TLS, at their first byte.
    fn check_start(&mut self, buffer: &[u8]) -> Result<(), UpstreamFailure> {
        let Some(&first) = buffer.first().filter(|_| !self.has_answered) else { return Ok(()) };
        self.has_answered = true;
        if (CHANGE_CIPHER_SPEC..=APPLICATION_DATA).contains(&first) {
            return Ok(());
        }
        let what = match first {
            b'H' => "it looks like plain HTTP",
            _ => "that is no TLS record",
        };
        Err(UpstreamFailure::new(
            UpstreamFailureReason::NotSpoken,
            format!("the server's first byte is {first:#04x}: {what}"),
        ))
    }

    /// Passes records to the library. Returns the bytes that it has consumed.
    fn pump(&mut self, records: &mut [u8], out: &mut Vec<u8>) -> Result<usize, UpstreamFailure> {
        let mut discarded = 0;
        loop {
            let connection = &mut self.connection;
            let turn = || turn(connection, &mut records[discarded..], out);
            let (progress, captured) = captured::capture(Resumption::default(), turn);
            self.captured.merge(captured);
            match progress {
                Ok((discard, more)) => {
                    discarded += discard;
                    if !more {
                        return Ok(discarded);
                    }
                }
                Err(error) => {
                    if let Some(failure) = self.captured.fault.and_then(UpstreamFailure::of_fault) {
                        return Err(failure);
                    }
                    let failure = UpstreamFailure::from(error);
                    if failure.owes_alert() {
                        self.flush_alerts(&mut records[discarded..], out);
                    }
                    return Err(failure);
                }
            }
        }
    }

    fn flush_alerts(&mut self, records: &mut [u8], out: &mut Vec<u8>) {
        while self.connection.wants_write() {
            match self.connection.process_tls_records(records).state {
                Ok(ConnectionState::EncodeTlsData(mut chunk)) => append(&mut chunk, out),
                _ => return,
            }
        }
    }

    /// Takes the connection out of the library, but for its processing of tickets, once `advance` has answered `Done`.
    pub fn finish(mut self) -> Result<(Records, Messages, UpstreamFacts), UpstreamFailure> {
        let connection = &self.connection;
        let suite = connection.negotiated_cipher_suite().map(|suite| suite.suite());
        let facts = UpstreamFacts {
            version: Version::of(connection.protocol_version()),
            suite: suite.map_or(Suite::Aes128Gcm, Suite::of),
            resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
            alpn: connection.alpn_protocol().and_then(|agreed| {
                let position = self.config.alpn_protocols.iter().position(|ours| ours == agreed)?;
                u8::try_from(position).ok()
            }),
        };
        let secrets = std::mem::take(&mut self.captured.secrets);
        let keys = std::mem::take(&mut self.captured.keys);
        let records = Records::towards_server(secrets, keys, facts.version, facts.suite)?;
        let messages = match facts.version {
            Version::Tls12 => Messages::default(),
            Version::Tls13 => Messages::new(self.connection.dangerous_into_kernel_connection()?.1),
        };
        Ok((records, messages, facts))
    }
}

/// One call of the library. Returns the bytes that it has consumed, and whether it may have more to do.
fn turn(
    connection: &mut UnbufferedClientConnection,
    records: &mut [u8],
    out: &mut Vec<u8>,
) -> Result<(usize, bool), Error> {
    let status = connection.process_tls_records(records);
    let discard = status.discard;
    let more = match status.state? {
        ConnectionState::EncodeTlsData(mut chunk) => {
            append(&mut chunk, out);
            connection.wants_write() || connection.is_handshaking()
        }
        ConnectionState::TransmitTlsData(transmit) => {
            transmit.done();
            connection.is_handshaking()
        }
        ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_) => false,
        ConnectionState::PeerClosed | ConnectionState::Closed => {
            return Err(Error::AlertReceived(rustls::AlertDescription::CloseNotify));
        }
        _ => return Err(Error::General("unexpected state in a handshake".into())),
    };
    Ok((discard, more))
}

//! Handshakes with clients: the library is passed one record at a time, and its output is collected.

pub(crate) mod challenge;
mod failure;
pub(crate) mod parked;
mod resumed_key;
pub(crate) mod step;

use std::sync::Arc;

use propylon_config::{ForwardIdentity, TlsCipher, TlsSuite};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::ConnectionState;
use rustls::{Error, HandshakeKind, NamedGroup, PeerIncompatible, ProtocolVersion, ServerConfig};

use crate::certificates::identity::Identity;
use crate::hello::class::{self, HelloClass, HelloClassifier};
use crate::hello::client_hello::{Numbers, Peeker};
use crate::hello::info::{ClientHelloInfo, Ja4Scanner};
use crate::parking::{JobRouting, PendingKeyExchange};
use crate::provider::captured::{self, CapturedSecrets};
use crate::provider::facts::{Facts, Group, Resumption};
use crate::provider::suite_of;
use crate::records::failure::{Failure, FailureReason};
use crate::records::protection::Protection;
use crate::records::suite::{Suite, Version};
use crate::records::wire::{
    ALERT, APPLICATION_DATA, Alert, CHANGE_CIPHER_SPEC, HANDSHAKE, PAYLOAD_MAX, PLAIN_MAX, record_len,
};
use failure::{alert_of, failure_of, use_tls12_alert};
use step::Step;

pub(crate) struct Handshake {
    pub connection: UnbufferedServerConnection,
    config: Arc<ServerConfig>,
    pub captured: CapturedSecrets,
    /// Routing of deferred jobs; absent where no job is deferred.
    pub routing: Option<JobRouting>,
    /// Present until the key exchange is complete.
    pending_key_exchange: Option<PendingKeyExchange>,
    /// Parts of the client's certificate that are forwarded to servers.
    forward: ForwardIdentity,
    /// Scanner for the JA4 fingerprint, where the profile has `ja4`.
    ja4_scanner: Option<Box<Ja4Scanner>>,
    /// Bytes at the buffer's front that the library has seen and still needs: records that hold part of a message. The
    /// library keeps positions within them, so they must stay as they are until they are consumed.
    retained: usize,
    classifier: HelloClassifier,
    /// The start of a hello has been received, and is fit for the library.
    is_hello: bool,
    /// Something has been sent, after which alerts may have to be encrypted.
    has_sent: bool,
    /// The first record has been received.
    has_begun: bool,
    /// Listeners of the profile differ in their order of key types, so which session can be resumed may depend on the
    /// certificate.
    orders_differ: bool,
    /// The handshake is an authority's challenge; see [`challenge`].
    pub challenge: bool,
}

/// Alert unrecognized_name, where the library would send access_denied (RFC 6066 §3), or none.
const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];
/// Alert for a TLS 1.3 client without a server name where one is required (RFC 8446 §9.2).
const MISSING_EXTENSION: [u8; 7] = [21, 3, 3, 0, 2, 2, 109];
const PROTOCOL_VERSION: [u8; 7] = [21, 3, 1, 0, 2, 2, 70];
pub(crate) const INTERNAL_ERROR: [u8; 7] = [21, 3, 3, 0, 2, 2, 80];

impl Handshake {
    pub fn new(
        config: &Arc<ServerConfig>,
        routing: Option<JobRouting>,
        forward: ForwardIdentity,
        ja4: bool,
        orders_differ: bool,
    ) -> Handshake {
        let connection =
            UnbufferedServerConnection::new(config.clone()).expect("fails only on a fragment size that is never set");
        Handshake {
            connection,
            config: config.clone(),
            captured: CapturedSecrets::default(),
            pending_key_exchange: routing.as_ref().map(|routing| PendingKeyExchange::new(&routing.parking)),
            routing,
            forward,
            ja4_scanner: ja4.then(Box::default),
            retained: 0,
            classifier: HelloClassifier::default(),
            is_hello: false,
            has_sent: false,
            has_begun: false,
            orders_differ,
            challenge: false,
        }
    }

    /// Detects an authority's challenge before the library sees any of it. Only a hello in one record is taken for one.
    pub fn begin_challenge(&mut self, buffer: &[u8]) {
        if self.has_begun || record_len(buffer).is_none() {
            return;
        }
        self.has_begun = true;
        let Some(config) = challenge::answer(buffer) else { return };
        let Ok(connection) = UnbufferedServerConnection::new(Arc::clone(&config)) else { return };
        (self.connection, self.config, self.challenge) = (connection, config, true);
        // The challenge's key signs on the spot.
        (self.routing, self.pending_key_exchange) = (None, None);
        self.forward = ForwardIdentity::Nothing;
    }

    /// See `Session::handshake`.
    pub fn advance(&mut self, buffer: &mut [u8], out: &mut Vec<u8>) -> Result<(usize, Step), Failure> {
        self.check_start(buffer, out)?;
        if let Some(ja4_scanner) = &mut self.ja4_scanner {
            ja4_scanner.scan(buffer);
        }
        let before = out.len();
        let mut consumed = 0;
        // One more record at a time: if the library saw all of them, it would go on to decrypt application data that
        // follows the client's Finished, which is not for this state.
        loop {
            let next = &buffer[consumed + self.retained..];
            self.check_record(next, out)?;
            let Some(record) = record_len(next) else { break };
            if std::mem::take(&mut self.orders_differ) {
                self.captured.resumption.began_with_rsa = resumed_key::is_rsa(&self.config, &next[..record]);
            }
            self.retained += record;
            let end = consumed + self.retained;
            let let_go = self.pump(&mut buffer[consumed..end], out)?;
            if let_go > 0 {
                // The classifier's bytes have been consumed; a second hello starts from the front.
                self.classifier = HelloClassifier::default();
            }
            consumed += let_go;
            self.retained -= let_go;
            self.has_sent |= out.len() > before;
            if self.pending_key_exchange.is_some() && self.has_its_keys() {
                self.pending_key_exchange = None;
            }
            // Messages after the hello do not look like one.
            self.is_hello |= consumed > 0;
            if !self.connection.is_handshaking() {
                return Ok((consumed, Step::Done));
            }
        }
        let step = if out.len() > before { Step::Write } else { Step::Read };
        Ok((consumed, step))
    }

    /// Bytes at the buffer's front to pass to a fiber, if that may lead to deferred jobs: all complete records, at most
    /// as many as a buffer must hold.
    pub fn bytes_to_park(&self, buffer: &[u8]) -> Option<usize> {
        if !self.routing.as_ref().is_some_and(JobRouting::may_defer) || self.has_its_keys() {
            return None;
        }
        let mut end = self.retained;
        while let Some(record) = record_len(buffer.get(end..)?) {
            end += record;
        }
        (end > self.retained).then_some(end)
    }

    /// See `Session::hello_class`.
    pub fn hello_class(&mut self, buffer: &[u8]) -> Option<HelloClass> {
        if self.has_its_keys() { None } else { self.classifier.classify(buffer) }
    }

    /// Whether key exchange and signature are done.
    fn has_its_keys(&self) -> bool {
        let connection = &self.connection;
        connection.negotiated_key_exchange_group().is_some()
            || connection.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Rejects clients that do not speak TLS, at their first byte and without an alert: they could not read one, and
    /// the driver may have an answer that they can. Clients of older versions are told so here, since the library would
    /// complain of a missing extension first.
    pub fn check_start(&mut self, buffer: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        const CONTENT_TYPES: std::ops::RangeInclusive<u8> = 20..=23;
        const CLIENT_HELLO: u8 = 1;
        const TLS12: u8 = 3;
        // The library may have moved retained bytes about.
        if self.is_hello || buffer.is_empty() || self.retained > 0 {
            return Ok(());
        }
        let first = buffer[0];
        let is_record = matches!(buffer, [_, 3, 0..=4, ..]);
        if !CONTENT_TYPES.contains(&first) && !is_record {
            let what = match first {
                b'A'..=b'Z' => "looks like plain HTTP on a TLS port",
                _ => "not a TLS record",
            };
            return Err(Failure::new(FailureReason::NotTls, format!("first byte {first:#04x}: {what}")));
        }
        // The library parses a message before it checks whether that message is expected.
        if let [HANDSHAKE, 3, _, _, _, message, ..] = *buffer
            && message != CLIENT_HELLO
            && buffer[3..5] != [0, 0]
        {
            return Err(self.refuse(
                Alert::UnexpectedMessage,
                FailureReason::UnexpectedMessage,
                "a handshake begins with a hello",
                out,
            ));
        }
        // Record header, message header, version.
        let Some(&[HANDSHAKE, 3, _, high, low, CLIENT_HELLO, _, _, _, 3, minor]) = buffer.first_chunk::<11>() else {
            return Ok(());
        };
        if u16::from_be_bytes([high, low]) < 6 {
            return Ok(());
        }
        if minor < TLS12 {
            // supported_versions overrides the legacy version (RFC 8446 §4.2.1).
            match lists_versions(buffer) {
                Listed::Spoken => self.is_hello = true,
                Listed::NotYet => {}
                Listed::None => return Err(self.refuse_version(minor, out)),
            }
            return Ok(());
        }
        self.is_hello = true;
        Ok(())
    }

    fn refuse_version(&self, minor: u8, out: &mut Vec<u8>) -> Failure {
        out.extend_from_slice(&PROTOCOL_VERSION);
        Failure::new(FailureReason::Version, format!("the client speaks no later version than {}", old_version(minor)))
    }

    /// Checks a record's header, for which the library has a single error, decode_error.
    fn check_record(&mut self, record: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        let &[kind, 3, _, high, low, ..] = record else { return Ok(()) };
        let payload = usize::from(u16::from_be_bytes([high, low]));
        let payload_max = match (self.has_sent, kind) {
            // Nothing is encrypted yet (RFC 8446 §5.1).
            (false, _) => PLAIN_MAX,
            (true, APPLICATION_DATA) => PLAIN_MAX + 256,
            // TLS 1.2 encrypts in place (RFC 5246 §6.2.3).
            (true, _) => PAYLOAD_MAX,
        };
        if !(CHANGE_CIPHER_SPEC..=APPLICATION_DATA).contains(&kind) {
            return Err(self.refuse(
                Alert::UnexpectedMessage,
                FailureReason::UnexpectedMessage,
                "a record of no known type",
                out,
            ));
        }
        if payload > payload_max {
            return Err(self.refuse(Alert::RecordOverflow, FailureReason::RecordOverflow, "a record is too long", out));
        }
        // Once there are keys only alerts may be in the clear, of a client that has not derived them (RFC 8446 §5).
        if kind == HANDSHAKE && self.is_tls13() && self.has_its_keys() {
            return Err(self.refuse(
                Alert::UnexpectedMessage,
                FailureReason::UnexpectedMessage,
                "a message in the clear",
                out,
            ));
        }
        // The library would wait for more after a close_notify (RFC 8446 §6.1).
        if let &[ALERT, _, _, 0, 2, _, CLOSE_NOTIFY, ..] = record {
            return Err(Failure::new(FailureReason::PeerAlert, "the client has closed the session before it began"));
        }
        // RFC 8446 §5.1, §5.4; an encrypted one would have its tag.
        if payload == 0 && kind != APPLICATION_DATA {
            return Err(self.refuse(
                Alert::UnexpectedMessage,
                FailureReason::UnexpectedMessage,
                "a record with nothing in it",
                out,
            ));
        }
        Ok(())
    }

    /// Ends the handshake with an alert of ours, encrypted if the client expects that.
    fn refuse(&mut self, alert: Alert, reason: FailureReason, detail: &str, out: &mut Vec<u8>) -> Failure {
        const FATAL: u8 = 2;
        let message = [FATAL, alert as u8];
        match self.sealing() {
            Some(mut sealing) => {
                let start = out.len();
                out.resize(start + sealing.overhead() + message.len(), 0);
                sealing.seal(ALERT, &message, &mut out[start..]);
            }
            None => out.extend_from_slice(&[ALERT, 3, 3, 0, 2, FATAL, alert as u8]),
        }
        Failure::new(reason, detail)
    }

    fn is_tls13(&self) -> bool {
        self.connection.protocol_version() == Some(ProtocolVersion::TLSv1_3)
    }

    /// Keys of the records that we send, once they are in use: in TLS 1.3 with our flight, in TLS 1.2 with our
    /// Finished, after which no alert is sent here. They are taken, for the last alert.
    fn sealing(&mut self) -> Option<Protection> {
        if !self.is_tls13() {
            return None;
        }
        let suite = Suite::of(self.connection.negotiated_cipher_suite()?.suite());
        let key = std::mem::take(&mut self.captured.keys.sealing);
        key.key.as_ref()?;
        Protection::new(Version::Tls13, suite, self.captured.secrets.server.take(), key)
    }

    /// Passes records to the library. Returns the bytes that it has consumed.
    fn pump(&mut self, records: &mut [u8], out: &mut Vec<u8>) -> Result<usize, Failure> {
        let mut discarded = 0;
        loop {
            let resumption = self.resumption();
            let connection = &mut self.connection;
            let (progress, captured) =
                captured::capture(resumption, || turn(connection, &mut records[discarded..], out));
            self.captured.merge(captured);
            match progress {
                Ok((discard, more)) => {
                    discarded += discard;
                    if !more {
                        return Ok(discarded);
                    }
                }
                Err(error) => {
                    let lacks_extension = lacks_extension(&error, &records[discarded..]);
                    let failure = Failure::from(error);
                    if let Some(failure) = self.captured.fault.and_then(failure_of) {
                        // A failed job ends the handshake. The library's error would blame the client. Jobs are done
                        // before anything is encrypted, so the alert is in the clear.
                        out.extend_from_slice(&INTERNAL_ERROR);
                        return Err(failure);
                    }
                    if lacks_extension {
                        return Err(self.refuse(Alert::MissingExtension, failure.reason, &failure.detail, out));
                    }
                    let before = out.len();
                    flush_alerts(&mut self.connection, &mut records[discarded..], out);
                    if self.captured.no_certificate {
                        out.truncate(before);
                        let (alert, failure) = self.no_certificate();
                        out.extend_from_slice(&alert);
                        return Err(failure);
                    }
                    use_tls12_alert(&failure, out);
                    if out.len() == before && failure.owes_alert() {
                        return Err(self.refuse(alert_of(&failure), failure.reason, &failure.detail, out));
                    }
                    return Err(failure);
                }
            }
        }
    }

    /// Alert and failure for `strict_sni`, in place of the library's.
    fn no_certificate(&self) -> ([u8; 7], Failure) {
        let tls13 = self.connection.protocol_version() == Some(ProtocolVersion::TLSv1_3);
        let (alert, detail) = match &self.captured.server_name {
            Some(name) => (UNRECOGNIZED_NAME, format!("no certificate stands for the name {name:?}")),
            None => {
                let alert = if tls13 { MISSING_EXTENSION } else { UNRECOGNIZED_NAME };
                (alert, "the client names no server, and strict_sni wants it to".into())
            }
        };
        (alert, Failure::new(FailureReason::NoCertificate, detail))
    }

    /// Use of tickets and session IDs so far, for the callbacks of the next call.
    fn resumption(&self) -> captured::Resumption {
        let captured = self.captured.resumption;
        let resumed = self.connection.handshake_kind() == Some(HandshakeKind::Resumed);
        // A ticket that decrypts may still not be used (if it is for another name): then a new session begins.
        let born = captured.born.filter(|_| resumed);
        captured::Resumption { resumed, born, kept: None, ..captured }
    }

    /// Facts about the client, once `advance` has answered `Done`.
    pub fn hello_info(&mut self) -> ClientHelloInfo {
        let chain = self.connection.peer_certificates().unwrap_or_default();
        ClientHelloInfo {
            server_name: self.captured.server_name.take(),
            ja4: self.ja4_scanner.as_ref().and_then(|ja4_scanner| ja4_scanner.ja4).map(Box::new),
            identity: Identity::new(chain, self.forward).map(Box::new),
        }
    }

    /// Facts about the client, once `advance` has failed with this `buffer`.
    pub fn hello_info_of_failed(&mut self, buffer: &[u8]) -> ClientHelloInfo {
        match self.captured.server_name {
            // A certificate that was shown in a handshake that failed proves nothing.
            Some(_) => ClientHelloInfo { identity: None, ..self.hello_info() },
            None => ClientHelloInfo::of_failed(buffer, self.ja4_scanner.is_some()),
        }
    }

    /// Negotiated parameters, once `advance` has answered `Done`.
    pub fn facts(&self) -> Facts {
        let connection = &self.connection;
        let resumed = connection.handshake_kind() == Some(HandshakeKind::Resumed);
        let suite = connection.negotiated_cipher_suite().map(|suite| suite.suite());
        let alpn = connection.alpn_protocol().filter(|_| !self.challenge).and_then(|agreed| {
            let position = self.config.alpn_protocols.iter().position(|ours| ours == agreed)?;
            u8::try_from(position).ok()
        });
        Facts {
            version: Version::of(connection.protocol_version()),
            suite: suite.map_or(Suite::Aes128Gcm, Suite::of),
            agreed: suite.map_or(TlsSuite::Tls13(TlsCipher::Aes128Gcm), suite_of),
            group: connection.negotiated_key_exchange_group().and_then(|group| group_of(group.name())),
            certificate: if resumed { None } else { self.captured.certificate },
            resumption: Resumption {
                issued: self.captured.resumption.issued,
                refused: self.captured.resumption.refused,
                session_id: self.captured.resumption.session_id,
            },
            signature: if resumed { None } else { self.captured.signature },
            resumed,
            alpn,
        }
    }
}

/// One call of the library. Returns the bytes that it has consumed, and whether it may have more to do.
fn turn(
    connection: &mut UnbufferedServerConnection,
    records: &mut [u8],
    out: &mut Vec<u8>,
) -> Result<(usize, bool), Error> {
    let status = connection.process_tls_records(records);
    let discard = status.discard;
    let more = match status.state? {
        ConnectionState::EncodeTlsData(mut chunk) => {
            append(&mut chunk, out);
            // After the handshake's end, another call would start on what follows it.
            connection.wants_write() || connection.is_handshaking()
        }
        ConnectionState::TransmitTlsData(transmit) => {
            transmit.done();
            connection.is_handshaking()
        }
        ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_) => false,
        // Early data is not accepted, and a connection cannot be closed before it is made.
        _ => return Err(Error::General("unexpected state in a handshake".into())),
    };
    Ok((discard, more))
}

/// Whether a TLS 1.3 hello lacks a mandatory extension (RFC 8446 §9.2), for which the library sends handshake_failure.
fn lacks_extension(error: &Error, hello: &[u8]) -> bool {
    let Error::PeerIncompatible(why) = error else { return false };
    let lacks = match why {
        PeerIncompatible::SignatureAlgorithmsExtensionRequired
        | PeerIncompatible::NamedGroupsExtensionRequired
        | PeerIncompatible::KeyShareExtensionRequired => true,
        PeerIncompatible::NoKxGroupsInCommon => class::content_of(hello, class::SUPPORTED_GROUPS).is_none(),
        _ => false,
    };
    lacks && class::offers_tls13(hello)
}

/// Appends the alert that a failed call has left behind, if any. Without the check another call would parse on.
pub(crate) fn flush_alerts(connection: &mut UnbufferedServerConnection, records: &mut [u8], out: &mut Vec<u8>) {
    while connection.wants_write() {
        match connection.process_tls_records(records).state {
            Ok(ConnectionState::EncodeTlsData(mut chunk)) => append(&mut chunk, out),
            _ => return,
        }
    }
}

pub(crate) fn append<Data>(chunk: &mut rustls::unbuffered::EncodeTlsData<'_, Data>, out: &mut Vec<u8>) {
    use rustls::unbuffered::EncodeError;
    let start = out.len();
    if let Err(EncodeError::InsufficientSize(need)) = chunk.encode(&mut []) {
        out.resize(start + need.required_size, 0);
        let written = chunk.encode(&mut out[start..]);
        debug_assert_eq!(written.ok(), Some(need.required_size));
    }
}

const CLOSE_NOTIFY: u8 = Alert::CloseNotify as u8;
/// Whether a hello lists a supported version.
enum Listed {
    Spoken,
    /// The hello is not complete.
    NotYet,
    None,
}

fn lists_versions(buffer: &[u8]) -> Listed {
    const TLS12: u16 = 0x0303;
    const TLS13: u16 = 0x0304;
    match Peeker::default().peek(buffer, &mut Vec::new()) {
        Ok(None) => Listed::NotYet,
        Ok(Some(hello)) => {
            let is_spoken = |listed: Numbers<'_>| listed.iter().any(|version| version == TLS12 || version == TLS13);
            if hello.supported_versions.is_some_and(is_spoken) { Listed::Spoken } else { Listed::None }
        }
        // The hello is malformed: the legacy version decides.
        Err(_) => Listed::None,
    }
}

fn old_version(minor: u8) -> &'static str {
    match minor {
        0 => "SSL 3.0",
        1 => "TLS 1.0",
        _ => "TLS 1.1",
    }
}

fn group_of(name: NamedGroup) -> Option<Group> {
    Some(match name {
        NamedGroup::X25519MLKEM768 => Group::X25519MlKem768,
        NamedGroup::X25519 => Group::X25519,
        NamedGroup::secp256r1 => Group::P256,
        NamedGroup::secp384r1 => Group::P384,
        _ => return None,
    })
}

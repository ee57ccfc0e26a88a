//! The life of a handshake: the library is shown one record at a time, and its answers are gathered.

use std::sync::Arc;

use propylon_config::ForwardIdentity;
use propylon_crypto::JobError;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::ConnectionState;
use rustls::{CipherSuite, HandshakeKind, NamedGroup, ProtocolVersion, ServerConfig};

use crate::deferral::{Coming, Way};
use crate::facts::{Facts, Group, Resumption, Suite, Version};
use crate::failure::Failure;
use crate::identity::Identity;
use crate::introduction::{Introduction, Watch};
use crate::overheard::{self, Fault, Overheard};
use crate::session::Step;

pub(crate) struct Handshake {
    pub connection: UnbufferedServerConnection,
    config: Arc<ServerConfig>,
    pub heard: Overheard,
    /// Absent where no work is set aside.
    pub way: Option<Way>,
    /// Until its keys are agreed on.
    coming: Option<Coming>,
    /// What of the client's certificate is for servers.
    forward: ForwardIdentity,
    /// Absent where nobody asks for a fingerprint.
    watch: Option<Box<Watch>>,
    /// Bytes at the buffer's front that the library has seen and not let go of: records that hold part of a message.
    /// It keeps positions within them, so the front must stay as it is until they are consumed.
    shown: usize,
    /// The start of a hello has come, and it is one that can be gone into.
    plausible: bool,
    /// Something has been sent, after which an alert may have to be encrypted.
    spoken: bool,
}

/// The library ends some handshakes without a word; before any keys are in use the word can be ours.
const DECODE_ERROR: [u8; 7] = [21, 3, 3, 0, 2, 2, 50];
const PROTOCOL_VERSION: [u8; 7] = [21, 3, 1, 0, 2, 2, 70];
pub(crate) const INTERNAL_ERROR: [u8; 7] = [21, 3, 3, 0, 2, 2, 80];

impl Handshake {
    pub fn new(config: &Arc<ServerConfig>, way: Option<Way>, forward: ForwardIdentity, ja4: bool) -> Handshake {
        let connection =
            UnbufferedServerConnection::new(config.clone()).expect("fails only on a fragment size that is never set");
        Handshake {
            connection,
            config: config.clone(),
            heard: Overheard::default(),
            coming: way.as_ref().map(|way| Coming::new(&way.parking)),
            way,
            forward,
            watch: ja4.then(Box::default),
            shown: 0,
            plausible: false,
            spoken: false,
        }
    }

    /// See `Session::handshake`.
    pub fn advance(&mut self, buffer: &mut [u8], out: &mut Vec<u8>) -> Result<(usize, Step), Failure> {
        self.check_start(buffer, out)?;
        if let Some(watch) = &mut self.watch {
            watch.look(buffer);
        }
        let before = out.len();
        let mut consumed = 0;
        // One more record at a time: were the library shown all of them, it would go on to decrypt application data
        // that came with the client's Finished, and what follows a finished handshake is not for this state.
        while let Some(record) = record_len(&buffer[consumed + self.shown..]) {
            self.shown += record;
            let end = consumed + self.shown;
            let let_go = self.pump(&mut buffer[consumed..end], out)?;
            consumed += let_go;
            self.shown -= let_go;
            self.spoken |= out.len() > before;
            if self.coming.is_some() && self.has_its_keys() {
                self.coming = None;
            }
            // What follows a hello does not look like one.
            self.plausible |= consumed > 0;
            if !self.connection.is_handshaking() {
                return Ok((consumed, Step::Done));
            }
        }
        let step = if out.len() > before { Step::Write } else { Step::Read };
        Ok((consumed, step))
    }

    /// How many bytes at the buffer's front to show, if showing them may lead to work that is set aside: those of all whole
    /// records, at most as many as a buffer has to hold.
    pub fn may_park(&self, buffer: &[u8]) -> Option<usize> {
        if !self.way.as_ref().is_some_and(Way::is_open) || self.has_its_keys() {
            return None;
        }
        let mut end = self.shown;
        while let Some(record) = record_len(buffer.get(end..)?) {
            end += record;
        }
        (end > self.shown).then_some(end)
    }

    /// Nothing more is agreed on or signed.
    fn has_its_keys(&self) -> bool {
        let connection = &self.connection;
        connection.negotiated_key_exchange_group().is_some()
            || connection.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// A client that speaks something else is told apart at its first byte, not after five, and gets no alert: it could
    /// not read one, and the driver may know an answer that it can. One that speaks an older TLS is told so; the library
    /// would miss an extension in its hello first, and say that.
    pub fn check_start(&mut self, buffer: &[u8], out: &mut Vec<u8>) -> Result<(), Failure> {
        const CONTENT_TYPES: std::ops::RangeInclusive<u8> = 20..=23;
        const HANDSHAKE: u8 = 22;
        const CLIENT_HELLO: u8 = 1;
        const TLS12: u8 = 3;
        if self.plausible || buffer.is_empty() {
            return Ok(());
        }
        let first = buffer[0];
        if !CONTENT_TYPES.contains(&first) {
            let what = match first {
                b'A'..=b'Z' => "looks like plain HTTP on a TLS port",
                _ => "not a TLS record",
            };
            return Err(Failure::new("not-tls", format!("first byte {first:#04x}: {what}")));
        }
        // Record header, message header, version.
        let Some(&[HANDSHAKE, 3, _, _, _, CLIENT_HELLO, _, _, _, 3, minor]) = buffer.first_chunk::<11>() else {
            return Ok(());
        };
        self.plausible = true;
        if minor < TLS12 {
            out.extend_from_slice(&PROTOCOL_VERSION);
            return Err(Failure::new(
                "version",
                format!("the client speaks no later version than {}", old_version(minor)),
            ));
        }
        Ok(())
    }

    /// Runs the library over the records shown to it. Returns how many bytes it let go of.
    fn pump(&mut self, records: &mut [u8], out: &mut Vec<u8>) -> Result<usize, Failure> {
        let mut discarded = 0;
        loop {
            let resumption = self.resumption();
            let connection = &mut self.connection;
            let (progress, heard) = overheard::listen(resumption, || turn(connection, &mut records[discarded..], out));
            self.heard.merge(heard);
            match progress {
                Ok((discard, more)) => {
                    discarded += discard;
                    if !more {
                        return Ok(discarded);
                    }
                }
                Err(failure) => {
                    if let Some(failure) = self.heard.fault.and_then(failure_of) {
                        // What the library wanted to send cannot be followed up, and what it says of this is the
                        // client's fault. Keys are agreed on, and signatures made, before anything is encrypted.
                        out.extend_from_slice(&INTERNAL_ERROR);
                        return Err(failure);
                    }
                    let before = out.len();
                    flush_alerts(&mut self.connection, &mut records[discarded..], out);
                    say_it_in_tls12(&failure, out);
                    if out.len() == before && !self.spoken && failure.owes_alert() {
                        out.extend_from_slice(&DECODE_ERROR);
                    }
                    return Err(failure);
                }
            }
        }
    }

    /// What the callbacks of the next call go by.
    fn resumption(&self) -> overheard::Resumption {
        let heard = self.heard.resumption;
        let resumed = self.connection.handshake_kind() == Some(HandshakeKind::Resumed);
        // A ticket that opens may still not be used (it is for another name): what begins then is a session of its own.
        let born = heard.born.filter(|_| resumed);
        overheard::Resumption { resumed, born, kept: None, ..heard }
    }

    /// Once `advance` has answered `Done`.
    pub fn introduction(&mut self) -> Introduction {
        let chain = self.connection.peer_certificates().unwrap_or_default();
        Introduction {
            server_name: self.heard.server_name.take(),
            ja4: self.watch.as_ref().and_then(|watch| watch.ja4),
            identity: Identity::new(chain, self.forward),
        }
    }

    /// Once `advance` has failed; `buffer` is what it was shown then.
    pub fn introduction_of_failed(&mut self, buffer: &[u8]) -> Introduction {
        match self.heard.server_name {
            // A certificate that was shown in a handshake that failed proves nothing.
            Some(_) => Introduction { identity: None, ..self.introduction() },
            None => Introduction::of_failed(buffer, self.watch.is_some()),
        }
    }

    /// Once `advance` has answered `Done`.
    pub fn facts(&self) -> Facts {
        let connection = &self.connection;
        let resumed = connection.handshake_kind() == Some(HandshakeKind::Resumed);
        let suite = connection.negotiated_cipher_suite().map(|suite| suite.suite());
        let alpn = connection.alpn_protocol().and_then(|agreed| {
            let position = self.config.alpn_protocols.iter().position(|ours| ours == agreed)?;
            u8::try_from(position).ok()
        });
        Facts {
            version: match connection.protocol_version() {
                Some(ProtocolVersion::TLSv1_2) => Version::Tls12,
                _ => Version::Tls13,
            },
            suite: suite.map_or(Suite::Aes128Gcm, record_cipher),
            group: connection.negotiated_key_exchange_group().and_then(|group| group_of(group.name())),
            certificate: if resumed { None } else { self.heard.certificate },
            resumption: Resumption {
                issued: self.heard.resumption.issued,
                refused: self.heard.resumption.refused,
                session_id: self.heard.resumption.session_id,
            },
            signature: if resumed { None } else { self.heard.signature },
            resumed,
            alpn,
        }
    }
}

/// The library asks for a certificate in TLS 1.2 with an alert that only TLS 1.3 has; there it is handshake_failure
/// (RFC 5246 §7.4.6). In TLS 1.3 the alert is encrypted by then and has another form.
fn say_it_in_tls12(failure: &Failure, out: &mut [u8]) {
    const CERTIFICATE_REQUIRED: [u8; 7] = [21, 3, 3, 0, 2, 2, 116];
    const HANDSHAKE_FAILURE: u8 = 40;
    if failure.reason == "client-certificate-missing"
        && out.ends_with(&CERTIFICATE_REQUIRED)
        && let Some(description) = out.last_mut()
    {
        *description = HANDSHAKE_FAILURE;
    }
}

/// One turn of the library. Returns the bytes it let go of, and whether it may have more to do.
fn turn(
    connection: &mut UnbufferedServerConnection,
    records: &mut [u8],
    out: &mut Vec<u8>,
) -> Result<(usize, bool), Failure> {
    let status = connection.process_tls_records(records);
    let discard = status.discard;
    let more = match status.state? {
        ConnectionState::EncodeTlsData(mut chunk) => {
            append(&mut chunk, out);
            // With everything written and the handshake over, another turn would start on what follows it.
            connection.wants_write() || connection.is_handshaking()
        }
        ConnectionState::TransmitTlsData(transmit) => {
            transmit.done();
            connection.is_handshaking()
        }
        ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_) => false,
        // Early data is not accepted, and a connection cannot be closed before it is made.
        _ => return Err(Failure::new("internal", "unexpected state in a handshake")),
    };
    Ok((discard, more))
}

/// Appends the alert that a failed turn has left behind, if it did. Another turn without this check would parse on.
pub(crate) fn flush_alerts(connection: &mut UnbufferedServerConnection, records: &mut [u8], out: &mut Vec<u8>) {
    while connection.wants_write() {
        match connection.process_tls_records(records).state {
            Ok(ConnectionState::EncodeTlsData(mut chunk)) => append(&mut chunk, out),
            _ => return,
        }
    }
}

pub(crate) fn append(
    chunk: &mut rustls::unbuffered::EncodeTlsData<'_, rustls::server::ServerConnectionData>,
    out: &mut Vec<u8>,
) {
    use rustls::unbuffered::EncodeError;
    let start = out.len();
    if let Err(EncodeError::InsufficientSize(need)) = chunk.encode(&mut []) {
        out.resize(start + need.required_size, 0);
        let written = chunk.encode(&mut out[start..]);
        debug_assert_eq!(written.ok(), Some(need.required_size));
    }
}

/// Bytes of the record at the front, header included, once all of it is there. Whether it is a record that may come
/// now, or a record at all, is the library's to say.
pub(crate) fn record_len(bytes: &[u8]) -> Option<usize> {
    let (header, _) = bytes.split_first_chunk::<HEADER_LEN>()?;
    let [kind, major, _, high, low] = *header;
    let payload = usize::from(u16::from_be_bytes([high, low]));
    let malformed = !(20..=23).contains(&kind) || major != 3 || payload > PAYLOAD_MAX;
    if malformed {
        // Show the header: it is refused at once, rather than after the wait for a payload that never comes.
        return Some(HEADER_LEN);
    }
    let len = HEADER_LEN + payload;
    (bytes.len() >= len).then_some(len)
}

pub(crate) const HEADER_LEN: usize = 5;
/// RFC 5246 §6.2.3; TLS 1.3 allows less.
pub(crate) const PAYLOAD_MAX: usize = (1 << 14) + 2048;

/// None where the library has the right word itself.
fn failure_of(fault: Fault) -> Option<Failure> {
    let (reason, detail) = match fault {
        Fault::Busy => ("busy", "as many handshakes wait for the signer as may".into()),
        Fault::Job(JobError::BadShare) => return None,
        Fault::Job(error @ JobError::Refused) => ("internal", error.to_string()),
        Fault::Job(error @ JobError::TimedOut) => ("signer-timeout", error.to_string()),
        Fault::Job(error @ JobError::Unavailable) => ("signer-unavailable", error.to_string()),
        Fault::Job(error @ JobError::Cancelled) => ("over", error.to_string()),
    };
    Some(Failure::new(reason, detail))
}

fn old_version(minor: u8) -> &'static str {
    match minor {
        0 => "SSL 3.0",
        1 => "TLS 1.0",
        _ => "TLS 1.1",
    }
}

fn record_cipher(suite: CipherSuite) -> Suite {
    match suite {
        CipherSuite::TLS13_AES_256_GCM_SHA384
        | CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
        | CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => Suite::Aes256Gcm,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
        | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
        | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => Suite::Chacha20Poly1305,
        _ => Suite::Aes128Gcm,
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

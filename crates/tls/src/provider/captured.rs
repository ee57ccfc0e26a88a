//! Secrets and choices that the TLS library shows to callbacks during a call, and not to the caller of that call.
//!
//! The certificate resolver sees the server name and chooses a key type; the key log sees the traffic secrets of TLS
//! 1.3; the cipher suites see the record keys. The connection does not give them out afterwards, or only at a price. A
//! call into the library runs to its end on one thread, so a thread-local carries them from the callbacks to the
//! session that made the call. It is empty whenever no call is in progress; while a call is suspended its content is
//! suspended with it.

use std::cell::RefCell;

use propylon_config::KeyType;
use propylon_crypto::JobError;
use rustls::KeyLog;
use zeroize::Zeroizing;

use super::compression::PerCore;
use super::facts::{Scheme, SessionIdUse, TicketRefusal};
use crate::records::secrets::{RecordKeys, Secret, TrafficSecrets};

#[derive(Default)]
pub(crate) struct CapturedSecrets {
    /// Server name that the client asked for, in lower case.
    pub server_name: Option<Box<str>>,
    /// Key type of the certificate that was chosen; a handshake may fail before it is served.
    pub certificate: Option<KeyType>,
    /// Signature scheme of the chosen certificate's key.
    pub signature: Option<Scheme>,
    /// `strict_sni` is on and no certificate matches the server name.
    pub no_certificate: bool,
    pub secrets: TrafficSecrets,
    /// Compressed Certificate messages of the chosen certificate, without and with an OCSP response.
    pub compressed: [Option<PerCore>; 2],
    /// Failure of the first job that failed, for which the library has no error.
    pub fault: Option<Fault>,
    pub keys: RecordKeys,
    pub resumption: Resumption,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The limit of handshakes parked for remote signers was reached.
    Busy,
    Job(JobError),
}

/// Session ID of TLS 1.2, in the length that the library makes.
pub(crate) type SessionId = [u8; 32];

/// Use of tickets and session IDs in a handshake. Unlike the rest this is passed on to the callbacks of later calls:
/// which tickets a client is given depends on what it presented.
#[derive(Clone, Copy, Default)]
pub(crate) struct Resumption {
    /// Start of the resumed session, in Unix seconds.
    pub born: Option<u64>,
    /// The session was resumed.
    pub resumed: bool,
    /// Whether the session that a TLS 1.2 client wants to resume began with an RSA certificate; absent where all
    /// listeners prefer the same key types.
    pub began_with_rsa: Option<bool>,
    /// Tickets that were decrypted, or tried.
    pub tried: u8,
    /// Tickets issued.
    pub issued: u8,
    pub refused: Option<TicketRefusal>,
    pub session_id: Option<SessionIdUse>,
    /// ID under which the session was stored during this call.
    pub kept: Option<SessionId>,
}

thread_local! {
    static CAPTURED: RefCell<CapturedSecrets> = RefCell::new(CapturedSecrets::default());
}

/// Runs a call into the library and returns what its callbacks recorded. Callbacks can read `resumption`.
pub(crate) fn capture<T>(resumption: Resumption, call: impl FnOnce() -> T) -> (T, CapturedSecrets) {
    CAPTURED.set(CapturedSecrets { resumption, ..CapturedSecrets::default() });
    let answer = call();
    (answer, CAPTURED.take())
}

/// Takes what the call in progress has recorded so far, when it is suspended.
pub(crate) fn take() -> CapturedSecrets {
    CAPTURED.take()
}

/// Puts back what a call had recorded, when it is resumed.
pub(crate) fn restore(captured: CapturedSecrets) {
    CAPTURED.set(captured);
}

/// Records something, in a callback.
pub(crate) fn record(write: impl FnOnce(&mut CapturedSecrets)) {
    CAPTURED.with_borrow_mut(write);
}

/// Reads the compressed messages that the resolver has recorded in the same handshake, for the compressor.
pub(crate) fn compressed<T>(read: impl FnOnce(&[Option<PerCore>; 2]) -> Option<T>) -> Option<T> {
    CAPTURED.with_borrow(|captured| read(&captured.compressed))
}

/// Reads the handshake's use of tickets and session IDs, in a callback.
pub(crate) fn resumption() -> Resumption {
    CAPTURED.with_borrow(|captured| captured.resumption)
}

impl CapturedSecrets {
    /// Adds what a later call has recorded, which overrides earlier values.
    pub fn merge(&mut self, later: CapturedSecrets) {
        if later.server_name.is_some() {
            self.server_name = later.server_name;
        }
        if later.certificate.is_some() {
            self.certificate = later.certificate;
            self.signature = later.signature;
        }
        self.no_certificate |= later.no_certificate;
        if later.secrets.client.is_some() {
            self.secrets = later.secrets;
        }
        self.fault = self.fault.or(later.fault);
        self.keys.sealing.merge(later.keys.sealing);
        self.keys.opening.merge(later.keys.opening);
        self.resumption = later.resumption;
    }
}

/// Key log that records the two application traffic secrets, and writes nothing anywhere.
#[derive(Debug)]
pub(crate) struct SecretsLog;

const CLIENT: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER: &str = "SERVER_TRAFFIC_SECRET_0";

impl KeyLog for SecretsLog {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        let mut copy: Secret = Zeroizing::new([0; 48]);
        let Some(room) = copy.get_mut(..secret.len()) else {
            return;
        };
        room.copy_from_slice(secret);
        record(|captured| match label {
            CLIENT => captured.secrets.client = Some(copy),
            SERVER => captured.secrets.server = Some(copy),
            _ => {}
        });
    }

    fn will_log(&self, label: &str) -> bool {
        matches!(label, CLIENT | SERVER)
    }
}

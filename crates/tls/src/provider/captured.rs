//! What the TLS library tells its callbacks during one call, and does not tell the caller of that call.
//!
//! The certificate resolver sees the server name and picks a key type; the key log sees the secrets from which a TLS
//! 1.3 session's later keys follow; the cipher suites see the keys of the records. None of them can be asked of the
//! connection afterwards, or only at a price. A call into the library runs to its end on one thread, so a thread-local
//! carries them from the callback to the session that made the call. It is empty whenever no call is in progress; when
//! a call is set aside half-way, what was heard so far is set aside with it.

use std::cell::RefCell;

use propylon_config::KeyType;
use propylon_crypto::JobError;
use rustls::KeyLog;
use zeroize::Zeroizing;

use super::compression::PerCore;
use super::facts::{IdUse, Scheme, Unopened};
use crate::records::secrets::{RecordKeys, Secret, TrafficSecrets};

#[derive(Default)]
pub(crate) struct CapturedSecrets {
    /// In lower case.
    pub server_name: Option<Box<str>>,
    /// Type of the certificate that was picked; it is not always served.
    pub certificate: Option<KeyType>,
    /// What its key would sign with.
    pub signature: Option<Scheme>,
    /// No certificate stands for the name, and the profile wants one that does.
    pub no_certificate: bool,
    pub secrets: TrafficSecrets,
    /// Of the certificate that was picked: its message compressed, without and with an OCSP response.
    pub compressed: [Option<PerCore>; 2],
    /// Why a job of ours came to nothing, which the library has no words for. The first of several.
    pub fault: Option<Fault>,
    pub keys: RecordKeys,
    pub resumption: Resumption,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// As many handshakes as may be are parked for a remote signer.
    Busy,
    Job(JobError),
}

/// A session ID, as the library makes them.
pub(crate) type SessionId = [u8; 32];

/// What tickets and session IDs had to do with a handshake. Unlike the rest it is known to the callbacks of later
/// calls: what a client gets depends on what it came with.
#[derive(Clone, Copy, Default)]
pub(crate) struct Resumption {
    /// When the session that the client came back to began, in Unix seconds.
    pub born: Option<u64>,
    /// It was resumed.
    pub resumed: bool,
    /// Whether the session that a TLS 1.2 client asks for began with an RSA certificate, where that is not the same
    /// everywhere.
    pub began_with_rsa: Option<bool>,
    /// Tickets looked at.
    pub tried: u8,
    /// Tickets given.
    pub issued: u8,
    pub refused: Option<Unopened>,
    pub session_id: Option<IdUse>,
    /// Kept under this ID during this call.
    pub kept: Option<SessionId>,
}

thread_local! {
    static CAPTURED: RefCell<CapturedSecrets> = RefCell::new(CapturedSecrets::default());
}

/// Runs a call into the library and returns what its callbacks heard meanwhile. They know of `resumption`.
pub(crate) fn capture<T>(resumption: Resumption, call: impl FnOnce() -> T) -> (T, CapturedSecrets) {
    CAPTURED.set(CapturedSecrets { resumption, ..CapturedSecrets::default() });
    let answer = call();
    (answer, CAPTURED.take())
}

/// What the call in progress has heard so far, when it is suspended.
pub(crate) fn take() -> CapturedSecrets {
    CAPTURED.take()
}

/// When it goes on.
pub(crate) fn restore(captured: CapturedSecrets) {
    CAPTURED.set(captured);
}

/// For the callbacks.
pub(crate) fn record(write: impl FnOnce(&mut CapturedSecrets)) {
    CAPTURED.with_borrow_mut(write);
}

/// For the compressor: what the resolver has left for it in the same handshake.
pub(crate) fn compressed<T>(read: impl FnOnce(&[Option<PerCore>; 2]) -> Option<T>) -> Option<T> {
    CAPTURED.with_borrow(|captured| read(&captured.compressed))
}

/// For the callbacks.
pub(crate) fn resumption() -> Resumption {
    CAPTURED.with_borrow(|captured| captured.resumption)
}

impl CapturedSecrets {
    /// What was heard later stands.
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

/// Takes the two secrets that a session's later keys follow from, and writes nothing anywhere.
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

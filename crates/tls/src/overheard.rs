//! What the TLS library tells its callbacks during one call, and does not tell the caller of that call.
//!
//! The certificate resolver sees the server name and picks a key type; the key log sees the secrets from which a TLS
//! 1.3 session's later keys follow. None of them can be asked of the connection afterwards. A call into the library runs to its end on one thread, so a thread-local carries both from the callback
//! to the session that made the call. It is empty whenever no call is in progress. Should a call ever be set aside
//! half-way, what was heard so far must be set aside with it.

use std::cell::RefCell;

use propylon_config::KeyType;
use rustls::KeyLog;
use zeroize::Zeroizing;

use crate::facts::Scheme;
use crate::protection::Secret;

#[derive(Default)]
pub(crate) struct Overheard {
    /// In lower case.
    pub server_name: Option<Box<str>>,
    /// Type of the certificate that was picked; it is not always served.
    pub certificate: Option<KeyType>,
    /// What its key would sign with.
    pub signature: Option<Scheme>,
    pub secrets: TrafficSecrets,
}

/// The first generation of application traffic secrets; absent with TLS 1.2.
#[derive(Default)]
pub(crate) struct TrafficSecrets {
    pub client: Option<Secret>,
    pub server: Option<Secret>,
}

thread_local! {
    static OVERHEARD: RefCell<Overheard> = RefCell::new(Overheard::default());
}

/// Runs a call into the library and returns what its callbacks heard meanwhile.
pub(crate) fn listen<T>(call: impl FnOnce() -> T) -> (T, Overheard) {
    OVERHEARD.take();
    let answer = call();
    (answer, OVERHEARD.take())
}

/// For the callbacks.
pub(crate) fn note(write: impl FnOnce(&mut Overheard)) {
    OVERHEARD.with_borrow_mut(write);
}

impl Overheard {
    /// What was heard later stands.
    pub fn merge(&mut self, later: Overheard) {
        if later.server_name.is_some() {
            self.server_name = later.server_name;
        }
        if later.certificate.is_some() {
            self.certificate = later.certificate;
            self.signature = later.signature;
        }
        if later.secrets.client.is_some() {
            self.secrets = later.secrets;
        }
    }
}

/// Takes the two secrets that a session's later keys follow from, and writes nothing anywhere.
#[derive(Debug)]
pub(crate) struct SecretsListener;

const CLIENT: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER: &str = "SERVER_TRAFFIC_SECRET_0";

impl KeyLog for SecretsListener {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        let mut copy: Secret = Zeroizing::new([0; 48]);
        let Some(room) = copy.get_mut(..secret.len()) else {
            return;
        };
        room.copy_from_slice(secret);
        note(|heard| match label {
            CLIENT => heard.secrets.client = Some(copy),
            SERVER => heard.secrets.server = Some(copy),
            _ => {}
        });
    }

    fn will_log(&self, label: &str) -> bool {
        matches!(label, CLIENT | SERVER)
    }
}

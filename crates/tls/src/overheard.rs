//! What the TLS library tells its callbacks during one call, and does not tell the caller of that call.
//!
//! The certificate resolver sees the server name and picks a key type; neither can be asked of the connection
//! afterwards. A call into the library runs to its end on one thread, so a thread-local carries both from the callback
//! to the session that made the call. It is empty whenever no call is in progress.

use std::cell::RefCell;

use propylon_config::KeyType;

#[derive(Default)]
pub(crate) struct Overheard {
    /// In lower case.
    pub server_name: Option<Box<str>>,
    /// Type of the certificate that was picked; it is not always served.
    pub certificate: Option<KeyType>,
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
        }
    }
}

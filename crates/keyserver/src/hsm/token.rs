//! A token: its module, the way in, and which keys are there.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use arc_swap::ArcSwap;
use cryptoki::context::{CInitializeArgs, CInitializeFlags};
use cryptoki::error::{Error, RvError};
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::{Session, UserType};
use cryptoki::slot::Slot;
use cryptoki::types::RawAuthPin;
use propylon_config::At;
use propylon_config::keyserver::{KeyName, NamedPath, Pkcs11, Token as Which};
use propylon_crypto::{RemoteKey, Ski};

use super::public::public_info;
use super::queue::TokenQueue;
use crate::key_files::Stamp;
use crate::keys::TokenFault;

/// PINs are short; a file that is longer is another one.
const PIN_BYTES_MAX: u64 = 1024;
/// Private keys that are looked at.
const KEYS_MAX: usize = 10_000;
const NO_KEYS: &str = "private keys that can be served";

pub struct Token {
    config: Pkcs11,
    pub name: String,
    /// Position in the configuration.
    number: u16,
    pub module: Arc<Module>,
    pub queue: TokenQueue,
    /// The keys that are to be served, as they were last found.
    pub found: ArcSwap<Vec<Found>>,
    /// Set when `found` differs from what was fetched last.
    pub has_news: AtomicBool,
    /// Stamp of the PIN file when the token refused its PIN, which is not tried again: a few wrong ones lock a token.
    refused: Mutex<Option<Stamp>>,
    /// Opened at the start, for the thread that comes first.
    first: Mutex<Option<Open>>,
}

/// A key that is to be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub key: RemoteKey,
    /// `TOKEN/LABEL`
    pub name: String,
}

/// A session that is logged in, and where it finds the keys.
pub struct Open {
    pub session: Session,
    /// The life of the module that the session belongs to: in another, its number may be another thread's.
    pub life: u64,
    pub handles: HashMap<Ski, ObjectHandle>,
    /// Handles of all private keys at the last scan, in order.
    seen: Vec<u64>,
}

/// The reason why there is no session.
#[derive(Debug)]
pub enum TokenError {
    Module(Error),
    NoToken(String),
    PinFile(String),
    PinRefused,
    /// Keys that the configuration names and the token does not have.
    NoKey(String),
}

/// A library, initialised.
pub struct Module {
    client: cryptoki::context::Pkcs11,
    /// Held for reading by whoever calls it: to be started anew it must be left alone (PKCS#11 3.1 §5.4.2).
    calls: RwLock<()>,
    life: AtomicU64,
}

/// Modules that were loaded: each once in a process.
#[derive(Default)]
pub struct Modules(HashMap<PathBuf, Arc<Module>>);

/// The module's file and the PIN's, which can be looked at without logging in.
pub fn check(config: &Pkcs11) -> Result<(), TokenFault> {
    let module = &config.module;
    if let Err(error) = File::open(&module.path) {
        let what = format!("{}: the module cannot be read: {error}", module.path.display());
        return Err(fault(module.at, what, "correct `module`, or install the maker's library"));
    }
    let Some(file) = &config.pin_file else { return Ok(()) };
    pin(file).map(drop).map_err(|error| fault(file.at, error.to_string(), error.fix()))
}

impl Modules {
    fn load(&mut self, module: &NamedPath) -> Result<Arc<Module>, TokenFault> {
        if let Some(module) = self.0.get(&module.path) {
            return Ok(Arc::clone(module));
        }
        let wrong = |error: Error| {
            let what = format!("{}: the module cannot be used: {error}", module.path.display());
            fault(module.at, what, "correct `module`, and see that the library's own configuration is found")
        };
        let client = cryptoki::context::Pkcs11::new(&module.path).map_err(wrong)?;
        initialize(&client).map_err(wrong)?;
        let loaded = Arc::new(Module { client, calls: RwLock::new(()), life: AtomicU64::new(0) });
        self.0.insert(module.path.clone(), Arc::clone(&loaded));
        Ok(loaded)
    }
}

impl Module {
    /// The lock that is held, shared, during every call into the module.
    pub fn calls(&self) -> RwLockReadGuard<'_, ()> {
        self.calls.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn life(&self) -> u64 {
        self.life.load(Ordering::Relaxed)
    }

    /// Ends the library and begins again, as a token may need that went away and has come back. All sessions end with
    /// it. Not while anybody is inside.
    pub fn start_anew(&self) -> Result<(), Error> {
        let Ok(_alone) = self.calls.try_write() else { return Ok(()) };
        self.life.fetch_add(1, Ordering::Relaxed);
        match self.client.clone().finalize() {
            Ok(()) | Err(Error::Pkcs11(RvError::CryptokiNotInitialized, _)) => initialize(&self.client),
            Err(error) => Err(error),
        }
    }
}

fn initialize(client: &cryptoki::context::Pkcs11) -> Result<(), Error> {
    match client.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)) {
        Err(Error::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => Ok(()),
        result => result,
    }
}

fn fault(at: At, what: String, fix: &'static str) -> TokenFault {
    TokenFault { at, what, fix }
}

impl Token {
    /// Logs in and finds the keys: at the start all must be good.
    pub fn open(config: &Pkcs11, number: u16, modules: &mut Modules) -> Result<Token, TokenFault> {
        check(config)?;
        let module = modules.load(&config.module)?;
        let token = Token {
            name: config.token.name(),
            number,
            module,
            queue: TokenQueue::new(config.sessions.into()),
            found: ArcSwap::default(),
            has_news: AtomicBool::new(false),
            refused: Mutex::new(None),
            first: Mutex::new(None),
            config: config.clone(),
        };
        let described = |error: TokenError| {
            let at =
                if matches!(error, TokenError::PinRefused) { config.pin_file.as_ref().map(|pin| pin.at) } else { None };
            fault(at.unwrap_or(config.at), format!("token \"{}\": {error}", token.name), error.fix())
        };
        let open = token.connect();
        if matches!(open, Ok(_) | Err(TokenError::NoKey(_))) {
            token.named_are_there().map_err(described)?;
        }
        let open = open.map_err(described)?;
        token.has_news.store(false, Ordering::Relaxed);
        *token.first.lock().unwrap_or_else(PoisonError::into_inner) = Some(open);
        Ok(token)
    }

    pub fn sessions(&self) -> usize {
        self.config.sessions.into()
    }

    pub fn timeout(&self) -> Option<Duration> {
        self.config.timeout
    }

    /// Whether the PIN in the file is known to be wrong.
    pub fn is_pin_refused(&self) -> bool {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// The session that was opened at the start, once.
    pub fn take_first(&self) -> Option<Open> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// A new session, logged in.
    pub fn connect(&self) -> Result<Open, TokenError> {
        let slot = self.slot()?;
        // Closed by whoever knows that it is still the same: see `Open::close`.
        let session = self.module.client.open_ro_session_no_drop(slot).map_err(TokenError::Module)?;
        let mut open = Open { session, life: self.module.life(), handles: HashMap::new(), seen: Vec::new() };
        let ready =
            self.log_in(&open.session, slot).and_then(|()| self.scan(&mut open, true).map_err(TokenError::Module));
        let ready =
            ready.and_then(|()| if open.handles.is_empty() { Err(TokenError::NoKey(NO_KEYS.into())) } else { Ok(()) });
        match ready {
            Ok(()) => Ok(open),
            Err(error) => {
                open.close();
                Err(error)
            }
        }
    }

    fn slot(&self) -> Result<Slot, TokenError> {
        let slots = self.module.client.get_slots_with_token().map_err(TokenError::Module)?;
        let wanted = |slot: &Slot| match &self.config.token {
            Which::Slot(number) => slot.id() == *number,
            Which::Label(label) => {
                self.module.client.get_token_info(*slot).is_ok_and(|info| info.label().trim_end() == label)
            }
        };
        if let Some(slot) = slots.iter().copied().find(wanted) {
            return Ok(slot);
        }
        let there = slots.iter().filter_map(|slot| {
            let info = self.module.client.get_token_info(*slot).ok()?;
            Some(format!("\"{}\" in slot {}", info.label().trim_end(), slot.id()))
        });
        let there = there.collect::<Vec<_>>().join(", ");
        Err(TokenError::NoToken(if there.is_empty() { "no token".into() } else { there }))
    }

    /// A session of the process that is logged in has logged in all of them. One thread at a time tries.
    fn log_in(&self, session: &Session, slot: Slot) -> Result<(), TokenError> {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = &self.config.pin_file else {
            let info = self.module.client.get_token_info(slot).map_err(TokenError::Module)?;
            if !info.login_required() {
                return Ok(());
            }
            // The token asks for it in its own way, or says that it wants one.
            return accepted(session.login(UserType::User, None));
        };
        let stamp = Stamp::at(&file.path);
        if refused.is_some() && *refused == stamp {
            return Err(TokenError::PinRefused);
        }
        let result = accepted(session.login_with_raw(UserType::User, &pin(file)?));
        *refused = if matches!(result, Err(TokenError::PinRefused)) { stamp } else { None };
        result
    }

    /// Finds the keys, and publishes them if they are not those that were known. Unless the scan has to be
    /// `thorough`, keys with the same handles are taken for the same: a handle is not given to another object while
    /// the session lasts.
    pub fn scan(&self, open: &mut Open, thorough: bool) -> Result<(), Error> {
        let session = &open.session;
        let keys = session.find_objects(&[Attribute::Class(ObjectClass::PRIVATE_KEY)])?;
        let mut seen: Vec<u64> = keys.iter().map(|handle| handle.handle()).collect();
        seen.sort_unstable();
        if !thorough && seen == open.seen {
            return Ok(());
        }
        let mut handles = HashMap::new();
        let mut found = Vec::new();
        for handle in keys.into_iter().take(KEYS_MAX) {
            let Some((found_key, is_wanted)) = self.inspect(session, handle) else { continue };
            if is_wanted && handles.insert(found_key.key.ski, handle).is_none() {
                found.push(found_key);
            }
        }
        found.sort_unstable_by(|a: &Found, b| (&a.name, a.key.ski).cmp(&(&b.name, b.key.ski)));
        if **self.found.load() != found {
            self.found.store(found.into());
            self.has_news.store(true, Ordering::Relaxed);
        }
        (open.handles, open.seen) = (handles, seen);
        Ok(())
    }

    /// Reads a key's public half and name. Absent, with a message in the log, for a key that cannot be served.
    fn inspect(&self, session: &Session, handle: ObjectHandle) -> Option<(Found, bool)> {
        let kind = match session.get_attributes(handle, &[AttributeType::KeyType]).ok()?.pop()? {
            Attribute::KeyType(kind) => kind,
            _ => return None,
        };
        let text = |wanted| match session.get_attributes(handle, &[wanted]).ok()?.pop()? {
            Attribute::Id(value) | Attribute::Label(value) => Some(value),
            _ => None,
        };
        let id = text(AttributeType::Id).unwrap_or_default();
        let label = text(AttributeType::Label).unwrap_or_default();
        let shown = match String::from_utf8_lossy(&label).into_owned() {
            label if label.is_empty() => format!("id:{}", crate::keys::hexadecimal(&id)),
            label => label,
        };
        let is_meant = |name: &KeyName| match name {
            KeyName::Label(wanted) => wanted.as_bytes() == label,
            KeyName::Id(wanted) => *wanted == id,
        };
        let is_wanted = self.config.keys.as_ref().is_none_or(|names| names.iter().any(is_meant));
        let key = match kind {
            KeyType::RSA | KeyType::EC | KeyType::EC_EDWARDS => public_info(session, handle, kind, &id),
            _ => return None,
        };
        match key.map(|info| RemoteKey::new(self.number.into(), &info)) {
            Some(Ok(key)) => Some((Found { key, name: format!("{}/{shown}", self.name) }, is_wanted)),
            Some(Err(error)) => {
                log::warn!("token \"{}\": key \"{shown}\" is passed over: {error}", self.name);
                None
            }
            None => {
                log::warn!(
                    "token \"{}\": key \"{shown}\" is passed over: neither a public key nor a certificate has its ID",
                    self.name
                );
                None
            }
        }
    }

    fn named_are_there(&self) -> Result<(), TokenError> {
        let found = self.found.load();
        for name in self.config.keys.iter().flatten() {
            let KeyName::Label(label) = name else { continue };
            if !found.iter().any(|found| found.name == format!("{}/{label}", self.name)) {
                return Err(TokenError::NoKey(label.clone()));
            }
        }
        Ok(())
    }
}

impl Open {
    /// Closes the session. An error is ignored: a session that ended by itself, or that the module does not let go,
    /// cannot be mended.
    pub fn close(self) {
        let _ = self.session.close();
    }
}

fn accepted(result: Result<(), Error>) -> Result<(), TokenError> {
    match result {
        Ok(()) | Err(Error::Pkcs11(RvError::UserAlreadyLoggedIn, _)) => Ok(()),
        Err(Error::Pkcs11(
            RvError::PinIncorrect
            | RvError::PinInvalid
            | RvError::PinLenRange
            | RvError::PinExpired
            | RvError::PinLocked,
            _,
        )) => Err(TokenError::PinRefused),
        Err(error) => Err(TokenError::Module(error)),
    }
}

/// Wiped when it is dropped, with all the room that it had.
fn pin(file: &NamedPath) -> Result<RawAuthPin, TokenError> {
    const OTHERS: u32 = 0o007;
    let wrong = |what: String| TokenError::PinFile(format!("{}: {what}", file.path.display()));
    let opened = File::open(&file.path).map_err(|error| wrong(format!("it cannot be read: {error}")))?;
    let metadata = opened.metadata().map_err(|error| wrong(format!("it cannot be read: {error}")))?;
    if metadata.mode() & OTHERS != 0 {
        return Err(wrong("every account of this machine may read or change it".into()));
    }
    if metadata.len() > PIN_BYTES_MAX {
        return Err(wrong(format!("it is longer than {PIN_BYTES_MAX} bytes")));
    }
    // Room for all of it at once: a buffer that grows leaves its earlier selves behind.
    let mut pin = Box::new(Vec::with_capacity(PIN_BYTES_MAX as usize + 1));
    let read = opened.take(PIN_BYTES_MAX).read_to_end(&mut pin);
    while pin.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        pin.pop();
    }
    let is_empty = pin.is_empty();
    let pin = RawAuthPin::new(pin);
    read.map_err(|error| wrong(format!("it cannot be read: {error}")))?;
    if is_empty { Err(wrong("it is empty".into())) } else { Ok(pin) }
}

impl TokenError {
    pub fn fix(&self) -> &'static str {
        match self {
            TokenError::Module(_) => "see that the token is there and that its maker's tools can use it",
            TokenError::NoToken(_) => "correct `token` or `slot`",
            TokenError::PinFile(_) => {
                "write the user's PIN to a file of the account that runs the server, and chmod 400 it"
            }
            TokenError::PinRefused => {
                "write the right PIN to `pin_file`; this one is not tried again, because a few wrong ones lock a token"
            }
            TokenError::NoKey(_) => {
                "correct `keys`, or make the key; its public key or certificate must be there with the same ID"
            }
        }
    }
}

impl std::fmt::Display for TokenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TokenError::Module(error) => write!(f, "{error}"),
            TokenError::NoToken(there) => write!(f, "the module does not have it; there is {there}"),
            TokenError::PinFile(what) => f.write_str(what),
            TokenError::PinRefused => f.write_str("the token refuses the PIN"),
            TokenError::NoKey(what) => write!(f, "it has no {what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_pin_is_read_from_a_file_that_is_nobody_elses_business() {
        let path = std::env::temp_dir().join(format!("propylon-pin-{}", std::process::id()));
        let file = NamedPath { path: path.clone(), at: At::default() };
        let said = |mode, text: &str| {
            fs::write(&path, text).expect("a file");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
            pin(&file).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(said(0o600, "1234\n"), Ok(()));
        assert!(
            said(0o604, "1234")
                .is_err_and(|what| what.ends_with("every account of this machine may read or change it"))
        );
        assert!(said(0o600, "\n").is_err_and(|what| what.ends_with("it is empty")));
        assert!(said(0o600, &"1".repeat(2000)).is_err_and(|what| what.ends_with("it is longer than 1024 bytes")));
        fs::remove_file(&path).expect("it is there");
        assert!(pin(&file).is_err());
    }
}

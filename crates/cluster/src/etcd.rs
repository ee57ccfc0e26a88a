//! A client of etcd (3.4 and later) by its JSON gateway over HTTP/1: keys, leases, transactions and watches.
//!
//! Nothing that etcd, or whoever answers in its place, sends is trusted to be well-formed, short or in time. A request
//! goes to the endpoint that worked last, and to the others in turn when that one fails; a change is only sent again if
//! not a byte of it can have arrived before, otherwise [`Error::OutcomeUnknown`] says so.

mod endpoints;
mod error;
mod lines;
mod settings;
mod transport;
mod txn;
mod watch;
mod wire;

use std::fmt;
use std::num::NonZeroI64;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use zeroize::Zeroizing;

use endpoints::Endpoints;
use error::{Refusal, shown};
use transport::{ANSWER_BYTES_MAX, Fault, Outgoing, Transport, lock};
use wire::{
    Base64Bytes, DeleteAnswer, DeleteRequest, LeaseAnswer, PutAnswer, PutRequest, RangeAnswer, RangeRequest,
    RefusalAnswer, StatusAnswer, Streamed, TokenAnswer, TxnAnswer, WireKeyValue, end_of_prefix, start_of_prefix,
};

pub use error::Error;
pub use settings::{ENDPOINTS_MAX, REQUEST_TIMEOUT, Settings, SettingsError, User};
pub use txn::{Compare, Operation, OperationResult, TXN_OPERATIONS_MAX, Txn, TxnOutcome};
pub use watch::{Batch, Event, Watch};

/// Keys that one range may have.
pub const RANGE_KEYS_MAX: usize = 200_000;
/// Bytes of keys and values that one range may have.
pub const RANGE_BYTES_MAX: usize = 256 << 20;
/// Keys of one page at most.
pub const PAGE_KEYS_MAX: usize = 5000;
/// A range starts again when its revision was compacted between two pages, this many times.
const RANGE_STARTS_MAX: usize = 3;
/// Bytes of a token. etcd's own are some 30, those signed by it (JWT) some hundreds.
const TOKEN_BYTES_MAX: usize = 8 << 10;

/// Cheap to clone; clones share their connections, token and opinion of the endpoints.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    transport: Transport,
    endpoints: Mutex<Endpoints>,
    login: Option<Login>,
}

struct Login {
    user: User,
    password: Mutex<Zeroizing<Vec<u8>>>,
    token: Mutex<Option<Token>>,
}

type Token = Arc<Zeroizing<String>>;

/// A lease: keys that are put under it are removed when it is not kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease(NonZeroI64);

/// A key and its value, with what etcd knows of them. Shown without the value.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyValue {
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub create_revision: u64,
    pub mod_revision: u64,
    /// Number of puts since the key was made.
    pub version: u64,
    pub lease: Option<Lease>,
}

/// All keys below a prefix, ascending, as they were at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// A watch from the next revision on misses nothing.
    pub revision: u64,
    pub entries: Vec<KeyValue>,
}

/// A member's own account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub version: String,
    pub db_bytes: u64,
    pub has_leader: bool,
    pub is_leader: bool,
    pub revision: u64,
}

/// The end of a request at one endpoint.
enum Attempt {
    /// Nothing was done there; another endpoint may do it.
    Elsewhere(Error),
    /// Perhaps it was done there.
    Unknown(Error),
    Final(Error),
}

/// Whether a request that may have been carried out may be sent once more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    Safe,
    /// A second time would do harm, or the end of the first is worth knowing.
    Unsafe,
}

impl Client {
    /// Reads the files of the settings; connects when it is first used.
    pub fn new(settings: Settings) -> Result<Client, SettingsError> {
        let login = match &settings.user {
            Some(user) => {
                let password = Mutex::new(settings::password(user)?);
                Some(Login { user: user.clone(), password, token: Mutex::default() })
            }
            None => None,
        };
        let transport = Transport::new(settings)?;
        let endpoints = Mutex::new(Endpoints::new(transport.count(), fastrand::f64()));
        Ok(Client { shared: Arc::new(Shared { transport, endpoints, login }) })
    }

    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<KeyValue>, Error> {
        let key = key.as_ref();
        let request =
            RangeRequest { key: Base64Bytes(key.to_vec()), range_end: None, limit: 1, revision: 0, keys_only: false };
        let (answer, index) = self.call::<RangeAnswer>("/v3/kv/range", &request, Repeat::Safe).await?;
        let found = answer.kvs.into_iter().next().map(KeyValue::from);
        match found.as_ref().is_some_and(|found| found.key != key) {
            true => Err(self.malformed(index, "it has another key than was asked for")),
            false => Ok(found),
        }
    }

    /// All keys below a prefix with their values, `page_keys` at a time: few where values are large.
    pub async fn range(&self, prefix: impl AsRef<[u8]>, page_keys: usize) -> Result<Range, Error> {
        self.all(prefix.as_ref(), page_keys, false).await
    }

    /// All keys below a prefix, their values left empty.
    pub async fn keys(&self, prefix: impl AsRef<[u8]>) -> Result<Range, Error> {
        self.all(prefix.as_ref(), PAGE_KEYS_MAX, true).await
    }

    /// Returns the revision of the change.
    pub async fn put(&self, key: impl AsRef<[u8]>, value: &[u8], lease: Option<Lease>) -> Result<u64, Error> {
        let (key, value) = (Base64Bytes(key.as_ref().to_vec()), Base64Bytes(value.to_vec()));
        let request = PutRequest { key, value, lease: lease.map(|lease| lease.to_string()) };
        let (answer, index) = self.call::<PutAnswer>("/v3/kv/put", &request, Repeat::Unsafe).await?;
        match answer.header.revision {
            0 => Err(self.unknown(index, "its answer to a put has no revision")),
            revision => Ok(revision),
        }
    }

    /// Returns whether the key was there.
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        let request = DeleteRequest { key: Base64Bytes(key.as_ref().to_vec()), range_end: None };
        Ok(self.delete_range(&request).await? > 0)
    }

    /// Returns the number of keys that were there.
    pub async fn delete_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<u64, Error> {
        let prefix = prefix.as_ref();
        let range_end = Some(Base64Bytes(end_of_prefix(prefix)));
        self.delete_range(&DeleteRequest { key: Base64Bytes(start_of_prefix(prefix)), range_end }).await
    }

    async fn delete_range(&self, request: &DeleteRequest) -> Result<u64, Error> {
        let (answer, _) = self.call::<DeleteAnswer>("/v3/kv/deleterange", request, Repeat::Unsafe).await?;
        Ok(answer.deleted)
    }

    pub async fn txn(&self, txn: &Txn) -> Result<TxnOutcome, Error> {
        if txn.is_too_large() {
            return Err(Error::TooLarge { what: "operations of a transaction", limit: TXN_OPERATIONS_MAX });
        }
        let (answer, index) = self.call::<TxnAnswer>("/v3/kv/txn", &txn.written(), Repeat::Unsafe).await?;
        let fits = txn.fits(answer.succeeded, answer.responses.len());
        let results: Option<Vec<_>> = answer.responses.into_iter().map(OperationResult::of).collect();
        match results.filter(|_| fits) {
            Some(results) => Ok(TxnOutcome { succeeded: answer.succeeded, revision: answer.header.revision, results }),
            None => Err(self.unknown(index, "its answer to a transaction cannot be understood")),
        }
    }

    /// A new lease, and the time it has, which may be longer than was asked for: etcd has a minimum.
    pub async fn grant(&self, ttl: Duration) -> Result<(Lease, Duration), Error> {
        let seconds = ttl.as_secs().max(1).to_string();
        // An answer that is lost leaves a lease that ends by itself.
        let (answer, index) =
            self.call::<LeaseAnswer>("/v3/lease/grant", &json!({ "TTL": seconds }), Repeat::Safe).await?;
        match (Lease::new(answer.id), u64::try_from(answer.ttl)) {
            (Some(lease), Ok(seconds @ 1..)) => Ok((lease, Duration::from_secs(seconds))),
            _ => Err(self.malformed(index, "it grants no lease")),
        }
    }

    /// Returns the time that the lease has from now on.
    pub async fn keep_alive(&self, lease: Lease) -> Result<Duration, Error> {
        let request = json!({ "ID": lease.to_string() });
        let (answer, _) = self.call::<Streamed<LeaseAnswer>>("/v3/lease/keepalive", &request, Repeat::Safe).await?;
        match answer {
            Streamed::Result(LeaseAnswer { ttl: seconds @ 1.., .. }) => Ok(Duration::from_secs(seconds.unsigned_abs())),
            _ => Err(Error::LeaseGone),
        }
    }

    /// Time that the lease has; nothing is changed.
    pub async fn time_to_live(&self, lease: Lease) -> Result<Duration, Error> {
        let request = json!({ "ID": lease.to_string() });
        let (answer, _) = self.call::<LeaseAnswer>("/v3/lease/timetolive", &request, Repeat::Safe).await?;
        u64::try_from(answer.ttl).map(Duration::from_secs).map_err(|_| Error::LeaseGone)
    }

    /// Ends the lease and removes its keys. A lease that is gone already is no error.
    pub async fn revoke(&self, lease: Lease) -> Result<(), Error> {
        let request = json!({ "ID": lease.to_string() });
        match self.call::<PutAnswer>("/v3/lease/revoke", &request, Repeat::Safe).await {
            Ok(_) | Err(Error::LeaseGone) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Forgets what was before a revision. One that is forgotten already is no error.
    pub async fn compact(&self, revision: u64) -> Result<(), Error> {
        let request = json!({ "revision": revision.to_string() });
        match self.call::<PutAnswer>("/v3/kv/compaction", &request, Repeat::Safe).await {
            Ok(_) | Err(Error::Compacted { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Each endpoint, as the settings name it, and what it says of itself.
    pub async fn statuses(&self) -> Vec<(String, Result<Status, Error>)> {
        let mut statuses = Vec::new();
        for index in 0..self.shared.transport.count() {
            let asked = self.ask::<StatusAnswer>(index, "/v3/maintenance/status", Bytes::from_static(b"{}")).await;
            let status = match asked {
                Ok(answer) => Ok(Status {
                    version: shown(&answer.version),
                    db_bytes: answer.db_bytes,
                    has_leader: !matches!(answer.leader.as_str(), "" | "0"),
                    is_leader: !answer.leader.is_empty() && answer.leader == answer.header.member_id,
                    revision: answer.header.revision,
                }),
                Err(Attempt::Elsewhere(error) | Attempt::Unknown(error) | Attempt::Final(error)) => Err(error),
            };
            statuses.push((self.name(index), status));
        }
        statuses
    }

    /// Changes of the keys below a prefix from a revision on; 0 for those from now on. Connects by itself, and again
    /// whenever it has to. Must be called within the runtime.
    pub fn watch(&self, prefix: impl AsRef<[u8]>, from_revision: u64) -> Watch {
        Watch::start(self.clone(), prefix.as_ref().to_vec(), from_revision)
    }

    async fn all(&self, prefix: &[u8], page_keys: usize, keys_only: bool) -> Result<Range, Error> {
        let mut compacted = 0;
        for _ in 0..RANGE_STARTS_MAX {
            match self.pages(prefix, page_keys, keys_only).await {
                Err(Error::Compacted { revision }) => compacted = revision,
                range => return range,
            }
        }
        Err(Error::Compacted { revision: compacted })
    }

    async fn pages(&self, prefix: &[u8], page_keys: usize, keys_only: bool) -> Result<Range, Error> {
        let mut limit = page_keys.clamp(1, PAGE_KEYS_MAX);
        let mut range = Range { revision: 0, entries: Vec::new() };
        let mut bytes = 0;
        let mut from = start_of_prefix(prefix);
        loop {
            let request = RangeRequest {
                key: Base64Bytes(from.clone()),
                range_end: Some(Base64Bytes(end_of_prefix(prefix))),
                limit: limit as u64,
                revision: range.revision,
                keys_only,
            };
            let (page, index) = match self.call::<RangeAnswer>("/v3/kv/range", &request, Repeat::Safe).await {
                Err(Error::TooLarge { .. }) if limit > 1 => {
                    limit /= 2;
                    continue;
                }
                Err(Error::Compacted { .. }) => return Err(Error::Compacted { revision: range.revision }),
                page => page?,
            };
            match (range.revision, page.header.revision) {
                (_, 0) => return Err(self.malformed(index, "it has no revision")),
                (0, revision) => range.revision = revision,
                _ => {}
            }
            let more = page.more;
            for entry in page.kvs.into_iter().map(KeyValue::from) {
                if entry.key < from || !entry.key.starts_with(prefix) {
                    return Err(self.malformed(index, "its keys are not in order, or not those that were asked for"));
                }
                bytes += entry.key.len() + entry.value.len();
                from = [&entry.key[..], &[0]].concat();
                range.entries.push(entry);
                limits(range.entries.len(), bytes)?;
            }
            match (more, request.key.0 == from) {
                (false, _) => return Ok(range),
                (true, false) => {}
                (true, true) => return Err(self.malformed(index, "a page of it is empty, and not the last one")),
            }
        }
    }

    /// Sends a request to one endpoint after the other until one answers. Returns which did.
    async fn call<A: DeserializeOwned>(
        &self,
        path: &'static str,
        request: &impl Serialize,
        repeat: Repeat,
    ) -> Result<(A, usize), Error> {
        let body = serde_json::to_vec(request).expect("keys of maps are texts, and nothing else can fail");
        let body = Bytes::from(body);
        let pause = lock(&self.shared.endpoints).pause(Instant::now());
        tokio::time::sleep(pause).await;
        let order = lock(&self.shared.endpoints).order(Instant::now());
        let mut last = None;
        for index in order {
            let error = match self.ask(index, path, body.clone()).await {
                Ok(answer) => {
                    lock(&self.shared.endpoints).worked(index);
                    return Ok((answer, index));
                }
                Err(Attempt::Final(error)) if !matches!(error, Error::TooLarge { .. }) || repeat == Repeat::Safe => {
                    lock(&self.shared.endpoints).worked(index);
                    return Err(error);
                }
                Err(Attempt::Final(error) | Attempt::Unknown(error)) if repeat == Repeat::Unsafe => {
                    self.failed(index);
                    return Err(self.unknown(index, &error.to_string()));
                }
                Err(Attempt::Final(error) | Attempt::Unknown(error) | Attempt::Elsewhere(error)) => error,
            };
            self.failed(index);
            last = Some(error);
        }
        Err(last.expect("there is at least one endpoint"))
    }

    /// Sends a request to one endpoint, with a token if there is a user; a token that is refused is renewed once.
    async fn ask<A: DeserializeOwned>(&self, index: usize, path: &'static str, body: Bytes) -> Result<A, Attempt> {
        for _ in 0..2 {
            let token = self.token(index).await?;
            let body = body.clone();
            match self.ask_with(index, Outgoing { path, body, token: token.as_ref().map(|token| token.as_str()) }).await
            {
                Err(Refused::Token(why)) if self.shared.login.is_none() => {
                    let why = format!("{why}, and there is no `user` in the settings");
                    return Err(Attempt::Final(Error::Unauthorized { why }));
                }
                Err(Refused::Token(_)) => self.forget(token.as_ref()),
                Err(Refused::Attempt(attempt)) => return Err(attempt),
                Ok(answer) => return Ok(answer),
            }
        }
        let why = "it takes no token, not even a new one".to_string();
        Err(Attempt::Final(Error::Unauthorized { why }))
    }

    async fn ask_with<A: DeserializeOwned>(&self, index: usize, outgoing: Outgoing<'_>) -> Result<A, Refused> {
        let exchanged = self.shared.transport.exchange(index, &outgoing).await;
        let (status, body) = exchanged.map_err(|fault| self.attempt(index, fault))?;
        if status != StatusCode::OK {
            return Err(self.refusal(index, status, &body));
        }
        // A stream's error comes with the status of success.
        if let Ok(Streamed::Error(error)) = serde_json::from_slice::<Streamed<serde::de::IgnoredAny>>(&body) {
            return Err(self.refused(index, error.refusal()));
        }
        serde_json::from_slice(&body)
            .map_err(|error| Refused::Attempt(Attempt::Unknown(self.malformed(index, &error.to_string()))))
    }

    /// The token, a new one if there is none. Absent without a user, or if etcd knows no users.
    async fn token(&self, index: usize) -> Result<Option<Token>, Attempt> {
        let Some(login) = &self.shared.login else { return Ok(None) };
        if let Some(token) = &*lock(&login.token) {
            return Ok(Some(token.clone()).filter(|token| !token.is_empty()));
        }
        let body = login.request();
        let outgoing = Outgoing { path: "/v3/auth/authenticate", body, token: None };
        let token = match self.ask_with::<TokenAnswer>(index, outgoing).await {
            Ok(answer) if (1..=TOKEN_BYTES_MAX).contains(&answer.token.len()) => answer.token,
            Ok(_) => return Err(Attempt::Elsewhere(self.malformed(index, "it has no token"))),
            Err(Refused::Attempt(Attempt::Final(Error::Refused { message, .. })))
                if message.contains("not enabled") =>
            {
                log::warn!("etcd at {} knows no users: everybody who reaches it may change its keys", self.name(index));
                String::new()
            }
            // To ask for a token changes nothing.
            Err(Refused::Attempt(Attempt::Unknown(error))) => return Err(Attempt::Elsewhere(error)),
            Err(Refused::Attempt(attempt)) => return Err(attempt),
            Err(Refused::Token(why)) => return Err(Attempt::Final(Error::Unauthorized { why })),
        };
        let token = Arc::new(Zeroizing::new(token));
        *lock(&login.token) = Some(token.clone());
        Ok(Some(token).filter(|token| !token.is_empty()))
    }

    /// Drops a token that was refused, unless another one took its place meanwhile.
    fn forget(&self, refused: Option<&Token>) {
        let Some(login) = &self.shared.login else { return };
        let mut token = lock(&login.token);
        let is_other = matches!((&*token, refused), (Some(now), Some(refused)) if !Arc::ptr_eq(now, refused));
        if !is_other {
            *token = None;
        }
    }

    /// Drops the token, whichever it is.
    fn forget_any(&self) {
        if let Some(login) = &self.shared.login {
            *lock(&login.token) = None;
        }
    }

    fn refusal(&self, index: usize, status: StatusCode, body: &[u8]) -> Refused {
        match serde_json::from_slice::<RefusalAnswer>(body) {
            Ok(RefusalAnswer { code: Some(code), message }) => self.refused(index, Refusal::of(code, &message)),
            _ if status == StatusCode::NOT_FOUND || status == StatusCode::METHOD_NOT_ALLOWED => {
                let (endpoint, what) = (self.name(index), format!("it answers {status}"));
                Refused::Attempt(Attempt::Elsewhere(Error::NotSupported { endpoint, what }))
            }
            _ => {
                let what = format!("it answers {status} without a reason");
                Refused::Attempt(Attempt::Unknown(self.malformed(index, &what)))
            }
        }
    }

    fn refused(&self, index: usize, refusal: Refusal) -> Refused {
        let endpoint = self.name(index);
        Refused::Attempt(match refusal {
            Refusal::Token(why) => return Refused::Token(why),
            Refusal::Elsewhere(why) => Attempt::Elsewhere(Error::Unreachable { endpoint, why }),
            Refusal::Unknown(why) => Attempt::Unknown(Error::Unreachable { endpoint, why }),
            Refusal::Compacted => Attempt::Final(Error::Compacted { revision: 0 }),
            Refusal::Final(error) => Attempt::Final(error),
        })
    }

    fn attempt(&self, index: usize, fault: Fault) -> Attempt {
        let endpoint = self.name(index);
        match fault {
            Fault::NotSent(why) => Attempt::Elsewhere(Error::Unreachable { endpoint, why }),
            Fault::NotSentInTime => Attempt::Elsewhere(Error::Timeout { endpoint }),
            Fault::Lost(why) => Attempt::Unknown(Error::Unreachable { endpoint, why }),
            Fault::LostInTime => Attempt::Unknown(Error::Timeout { endpoint }),
            Fault::TooLarge => {
                Attempt::Final(Error::TooLarge { what: "the bytes of an answer", limit: ANSWER_BYTES_MAX })
            }
        }
    }

    fn name(&self, index: usize) -> String {
        self.shared.transport.name(index).to_owned()
    }

    fn malformed(&self, index: usize, what: &str) -> Error {
        Error::Malformed { endpoint: self.name(index), what: what.to_owned() }
    }

    fn unknown(&self, index: usize, why: &str) -> Error {
        Error::OutcomeUnknown { endpoint: self.name(index), why: why.to_owned() }
    }

    fn failed(&self, index: usize) {
        lock(&self.shared.endpoints).failed(index, Instant::now(), fastrand::f64());
    }
}

/// The end of a request that was not granted.
enum Refused {
    Token(String),
    Attempt(Attempt),
}

impl From<Attempt> for Refused {
    fn from(attempt: Attempt) -> Refused {
        Refused::Attempt(attempt)
    }
}

impl Login {
    /// With the password as it is in its file now, or as it was when the file could be read.
    fn request(&self) -> Bytes {
        #[derive(Serialize)]
        struct Request<'a> {
            name: &'a str,
            password: &'a str,
        }
        let mut password = lock(&self.password);
        match settings::password(&self.user) {
            Ok(now) => *password = now,
            Err(error) => log::warn!("the password of etcd's user {} is the one from before: {error}", self.user.name),
        }
        let text = std::str::from_utf8(&password).unwrap_or_default();
        // As large as it can become, so that no copy stays behind: a character takes six at most.
        let mut body = Zeroizing::new(Vec::with_capacity(64 + 6 * (self.user.name.len() + text.len())));
        let request = Request { name: &self.user.name, password: text };
        serde_json::to_writer(&mut *body, &request).expect("a Vec takes all that is written");
        Bytes::from_owner(body)
    }
}

impl Lease {
    fn new(id: i64) -> Option<Lease> {
        NonZeroI64::new(id).map(Lease)
    }

    /// As it is displayed.
    pub fn parse(text: &str) -> Option<Lease> {
        text.parse().ok().and_then(Lease::new)
    }
}

/// As etcd's messages have it, in decimal.
impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = String::from_utf8_lossy(&self.key);
        f.debug_struct("KeyValue")
            .field("key", &key)
            .field("value_bytes", &self.value.len())
            .field("mod_revision", &self.mod_revision)
            .finish_non_exhaustive()
    }
}

impl From<WireKeyValue> for KeyValue {
    fn from(wire: WireKeyValue) -> KeyValue {
        KeyValue {
            key: wire.key.0,
            value: wire.value.0,
            create_revision: wire.create_revision,
            mod_revision: wire.mod_revision,
            version: wire.version,
            lease: Lease::new(wire.lease),
        }
    }
}

fn limits(keys: usize, bytes: usize) -> Result<(), Error> {
    if keys > RANGE_KEYS_MAX {
        return Err(Error::TooLarge { what: "keys below one prefix", limit: RANGE_KEYS_MAX });
    }
    if bytes > RANGE_BYTES_MAX {
        return Err(Error::TooLarge { what: "the bytes below one prefix", limit: RANGE_BYTES_MAX });
    }
    Ok(())
}

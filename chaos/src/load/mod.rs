//! Steady load of many kinds at once, by clients that know to the byte what they should get and write down what
//! they got.
//!
//! One thread. Each client is a task that asks, thinks, and asks again until it is told to stop; none of them ever
//! hides a failure behind a repeat of its own.

mod http1;
mod http2;
mod misbehaving;
mod tunnel;

use crate::clock::{Micros, now};
use crate::engine::Endpoints;
use crate::model::{How, Kind, Outcome, RequestRecord, Stage};
use crate::timeline::{Run, ServerId};
use crate::wire::{Offer, Target, Wire};
use propylon_bench::failure::{self, Failure, While};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::{LocalSet, spawn_local};

/// Time limit for one request, everything included. Far beyond all limits of the engine: a client that waits for so
/// long has found a defect.
pub const CLIENT_TIMEOUT: Duration = Duration::from_secs(40);
/// Between two requests of a client, in milliseconds.
const THINK: std::ops::Range<u64> = 15..70;

/// How many clients there are of each kind.
const MIX: [(Kind, usize); 13] = [
    (Kind::Fresh, 3),
    (Kind::Keyed, 3),
    (Kind::Kept, 6),
    (Kind::Stream, 8),
    (Kind::Post, 3),
    (Kind::StreamPost, 2),
    (Kind::Download, 2),
    (Kind::Upload, 2),
    (Kind::WebSocket, 3),
    (Kind::Relay, 3),
    (Kind::Route, 2),
    (Kind::Misbehaving, 1),
    (Kind::MisbehavingPost, 1),
];
/// Connections of HTTP/2 that streams share.
const H2_CONNECTIONS: usize = 2;

/// The clients' results at the end.
#[derive(Default)]
pub struct LoadResults {
    pub records: Vec<RequestRecord>,
    pub handshakes: Vec<Handshake>,
    /// Connections that were made, by endpoint.
    pub connections: BTreeMap<Endpoint, u64>,
}

/// One full handshake, and which certificate it has shown.
pub struct Handshake {
    pub from: Micros,
    pub to: Micros,
    pub leaf: u64,
}

/// A certificate in short.
pub fn mark(certificate: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    certificate.hash(&mut hasher);
    hasher.finish()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Endpoint {
    Secure,
    Plain,
    Relay,
    /// The listener whose certificate is none of those that are exchanged.
    Keyed,
}

pub struct Load {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<failure::Outcome<LoadResults>>,
}

impl Load {
    /// `scale`: so many times the usual number of clients.
    pub fn start(endpoints: Endpoints, ca: &Path, scale: usize, seed: u64) -> failure::Outcome<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, ca) = (Arc::clone(&stop), ca.to_owned());
        let work = move || run(endpoints, ca, scale, seed, told);
        let thread = std::thread::Builder::new().name("load".to_owned()).spawn(work).when("starting the load")?;
        Ok(Self { stop, thread })
    }

    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Lets every client finish what it has begun.
    pub fn end(self) -> failure::Outcome<LoadResults> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| Failure::new("the load's thread panicked"))?
    }
}

fn run(
    endpoints: Endpoints,
    ca: PathBuf,
    scale: usize,
    seed: u64,
    stop: Arc<AtomicBool>,
) -> failure::Outcome<LoadResults> {
    let context = Rc::new(LoadContext::new(endpoints, &ca, seed, stop)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().when("starting a runtime")?;
    let tasks = LocalSet::new();
    tasks.block_on(&runtime, async {
        let connections: Vec<_> = (0..H2_CONNECTIONS).map(|_| Rc::new(http2::H2Connection::default())).collect();
        let mut clients = Vec::new();
        for (kind, count) in MIX {
            for index in 0..count * scale {
                let (context, connection) = (Rc::clone(&context), Rc::clone(&connections[index % H2_CONNECTIONS]));
                clients.push(spawn_local(async move { context.go_on(kind, index, &connection).await }));
            }
        }
        for client in clients {
            client.await.when("waiting for a client")?;
        }
        Ok::<_, Failure>(())
    })?;
    // Connections close when what drives them is dropped.
    drop(tasks);
    drop(runtime);
    Ok(context.load_results.take())
}

/// State that all clients share.
struct LoadContext {
    secure: Target,
    /// The same, coming back with tickets.
    resuming: Target,
    multiplexed: Target,
    plain: Target,
    relay: Target,
    keyed: Target,
    stop: Arc<AtomicBool>,
    random: RefCell<fastrand::Rng>,
    next_id: Cell<u64>,
    next_connection: Cell<u32>,
    load_results: RefCell<LoadResults>,
}

/// A request whose record is being made.
struct PendingRequest {
    id: u64,
    kind: Kind,
    connection: u32,
    ordinal: u32,
    begun: Micros,
}

/// The end of a request.
#[derive(Debug)]
struct RequestEnd {
    outcome: Outcome,
    status: Option<u16>,
    server: Option<(ServerId, Run)>,
}

impl RequestEnd {
    fn of(outcome: Outcome) -> Self {
        Self { outcome, status: None, server: None }
    }

    /// The end by an error before there was any of an answer.
    fn unopened(stage: Stage) -> Self {
        Self::of(Outcome::Broken(stage, How::Reset))
    }
}

impl LoadContext {
    fn new(endpoints: Endpoints, ca: &Path, seed: u64, stop: Arc<AtomicBool>) -> failure::Outcome<Self> {
        let at = |address, resuming, offer| Target::secure(address, crate::certificates::NAME, ca, resuming, offer);
        Ok(Self {
            secure: at(endpoints.secure, false, Offer::None)?,
            resuming: at(endpoints.secure, true, Offer::None)?,
            multiplexed: at(endpoints.secure, true, Offer::Http2)?,
            plain: Target::plain(endpoints.plain),
            relay: Target::plain(endpoints.relay),
            keyed: at(endpoints.keyed, false, Offer::None)?,
            stop,
            random: RefCell::new(fastrand::Rng::with_seed(seed)),
            next_id: Cell::new(1),
            next_connection: Cell::new(1),
            load_results: RefCell::default(),
        })
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn draw(&self, range: std::ops::Range<u64>) -> u64 {
        self.random.borrow_mut().u64(range)
    }

    async fn think(&self) {
        let pause = self.draw(THINK);
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }

    async fn go_on(&self, kind: Kind, index: usize, connection: &Rc<http2::H2Connection>) {
        match kind {
            Kind::Fresh | Kind::Keyed | Kind::Kept | Kind::Post | Kind::Route | Kind::Download | Kind::Upload => {
                http1::go_on(self, kind, index).await;
            }
            Kind::Stream | Kind::StreamPost => http2::go_on(self, kind, connection).await,
            Kind::WebSocket | Kind::Relay => tunnel::go_on(self, kind, index).await,
            Kind::Misbehaving | Kind::MisbehavingPost => misbehaving::go_on(self, kind).await,
        }
    }

    fn target(&self, endpoint: Endpoint, index: usize) -> &Target {
        match endpoint {
            Endpoint::Secure if index.is_multiple_of(2) => &self.resuming,
            Endpoint::Secure => &self.secure,
            Endpoint::Plain => &self.plain,
            Endpoint::Relay => &self.relay,
            Endpoint::Keyed => &self.keyed,
        }
    }

    /// A new connection, and what its handshake has shown.
    async fn connect(&self, endpoint: Endpoint, index: usize) -> Result<(Wire, u32), Stage> {
        let from = now();
        let wire = Wire::connect(self.target(endpoint, index)).await?;
        Ok((self.note_connection(endpoint, from, wire), self.number_connection()))
    }

    fn note_connection(&self, endpoint: Endpoint, from: Micros, wire: Wire) -> Wire {
        let mut load_results = self.load_results.borrow_mut();
        *load_results.connections.entry(endpoint).or_default() += 1;
        if endpoint != Endpoint::Keyed
            && let Some(leaf) = wire.shown_certificate()
        {
            load_results.handshakes.push(Handshake { from, to: now(), leaf: mark(leaf) });
        }
        wire
    }

    fn number_connection(&self) -> u32 {
        let number = self.next_connection.get();
        self.next_connection.set(number + 1);
        number
    }

    fn pending(&self, kind: Kind) -> PendingRequest {
        let id = self.next_id.get();
        self.next_id.set(id + 1);
        PendingRequest { id, kind, connection: 0, ordinal: 0, begun: now() }
    }

    fn note(&self, pending: PendingRequest, ending: RequestEnd) {
        let PendingRequest { id, kind, connection, ordinal, begun } = pending;
        let RequestEnd { outcome, status, server } = ending;
        let record = RequestRecord { id, kind, connection, ordinal, begun, ended: now(), server, status, outcome };
        self.load_results.borrow_mut().records.push(record);
    }
}

/// The word in an answer of the engine's own: `502 Bad Gateway: connect-refused`.
fn reason_of(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    text.trim().rsplit(": ").next().unwrap_or_default().to_owned()
}

/// An answer as its head and its body tell it: whose it is, and whether it is the right one.
fn ending_of(id: u64, head: &AnswerHead, body: &BodyCheck, wanted: u64) -> RequestEnd {
    let status = head.status;
    let told = |outcome| RequestEnd { outcome, status: Some(status), server: head.server };
    if head.server.is_none() {
        return told(Outcome::Refused(status, reason_of(&body.start)));
    }
    if head.id != Some(id) {
        return told(Outcome::Wrong(format!("the answer is to request {:?}", head.id)));
    }
    if status != 200 {
        return told(Outcome::Failed(status));
    }
    if let Some(at) = body.wrong_at {
        return told(Outcome::Wrong(format!("byte {at} of the body is wrong")));
    }
    if body.bytes != wanted {
        return told(Outcome::Wrong(format!("a proper end after {} of {wanted} bytes", body.bytes)));
    }
    told(Outcome::Served)
}

/// The facts that are read of an answer's head.
#[derive(Debug, Default)]
struct AnswerHead {
    status: u16,
    id: Option<u64>,
    server: Option<(ServerId, Run)>,
}

/// Bodies are compared as they come; of the engine's own the start is kept.
struct BodyCheck {
    content: crate::content::Content,
    bytes: u64,
    wrong_at: Option<u64>,
    start: Vec<u8>,
}

/// Bytes that are kept from the start of a body that may be the engine's own.
const START_BYTES_MAX: usize = 256;

impl BodyCheck {
    fn new(id: u64) -> Self {
        let content = crate::content::Content::of(id, crate::content::Side::Response);
        Self { content, bytes: 0, wrong_at: None, start: Vec::new() }
    }

    fn take(&mut self, piece: &[u8]) {
        self.wrong_at = self.wrong_at.or_else(|| self.content.first_wrong(self.bytes, piece));
        self.bytes += piece.len() as u64;
        let room = START_BYTES_MAX.saturating_sub(self.start.len());
        self.start.extend_from_slice(&piece[..piece.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::{Content, Side};

    fn checked(bytes: &[u8]) -> BodyCheck {
        let mut check = BodyCheck::new(7);
        bytes.chunks(13).for_each(|piece| check.take(piece));
        check
    }

    fn head(status: u16, id: u64) -> AnswerHead {
        AnswerHead { status, id: Some(id), server: Some((ServerId(0), 1)) }
    }

    #[test]
    fn an_answer_is_right_only_if_it_is_whole_and_ones_own() {
        let body = Content::of(7, Side::Response).bytes(0, 100);
        assert_eq!(ending_of(7, &head(200, 7), &checked(&body), 100).outcome, Outcome::Served);
        let mut other = body.clone();
        other[50] ^= 1;
        for wrong in [
            ending_of(7, &head(200, 8), &checked(&body), 100),
            ending_of(7, &head(200, 7), &checked(&body[..99]), 100),
            ending_of(7, &head(200, 7), &checked(&other), 100),
        ] {
            assert!(matches!(wrong.outcome, Outcome::Wrong(_)), "{wrong:?}");
        }
        assert_eq!(ending_of(7, &head(500, 7), &checked(b""), 100).outcome, Outcome::Failed(500));
    }

    #[test]
    fn an_answer_of_the_engines_own_tells_its_reason() {
        let own = AnswerHead { status: 502, id: None, server: None };
        let ending = ending_of(7, &own, &checked(b"502 Bad Gateway: connect-refused\n"), 100);
        assert_eq!(ending.outcome, Outcome::Refused(502, "connect-refused".to_owned()));
    }
}

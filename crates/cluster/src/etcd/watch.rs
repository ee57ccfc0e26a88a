//! Watches: a task of its own keeps each one at a member that is with the majority, and goes on at another one where
//! the last one left off.

use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::error::Refusal;
use super::lines::Lines;
use super::transport::{Outgoing, lock};
use super::wire::{
    Base64Bytes, RangeAnswer, RangeRequest, Streamed, WatchAnswer, WireEvent, end_of_prefix, start_of_prefix,
};
use super::{Attempt, Client, Error, KeyValue, Refused};

/// A member is asked whether it is still with the others when nothing was heard of it for this time.
pub const WATCH_PING_AFTER: Duration = Duration::from_secs(3);
/// A watch that brings nothing for this time is replaced, in case something on the way has lost it.
const QUIET_MAX: Duration = Duration::from_secs(300);
/// etcd cuts what is longer than its limit on requests (1.5 MiB, unless raised) into fragments; base64 adds a third.
const LINE_BYTES_MAX: usize = 16 << 20;
/// Bytes of the changes of one revision that are held until all its fragments are there.
const HELD_BYTES_MAX: usize = 64 << 20;
/// Batches that wait for their reader; then etcd has to wait.
const BATCHES_WAITING_MAX: usize = 4;

/// Changes below a prefix, in the order in which they happened. Ends when it is dropped.
pub struct Watch {
    batches: mpsc::Receiver<Result<Batch, Error>>,
    task: JoinHandle<()>,
    /// The error that it ended with.
    end: Option<Error>,
}

/// All changes up to a revision that were not in an earlier batch. It is empty when the watch has (again) begun at a
/// member, and when etcd says that nothing has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// A watch that begins after it misses nothing.
    pub revision: u64,
    pub events: Vec<Event>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Put(KeyValue),
    /// Deleted, or removed with its lease.
    Delete {
        key: Vec<u8>,
        mod_revision: u64,
    },
}

impl Event {
    pub fn key(&self) -> &[u8] {
        match self {
            Event::Put(entry) => &entry.key,
            Event::Delete { key, .. } => key,
        }
    }

    pub fn mod_revision(&self) -> u64 {
        match self {
            Event::Put(entry) => entry.mod_revision,
            Event::Delete { mod_revision, .. } => *mod_revision,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Event::Put(entry) => entry.key.len() + entry.value.len(),
            Event::Delete { key, .. } => key.len(),
        }
    }
}

impl Watch {
    pub(super) fn start(client: Client, prefix: Vec<u8>, from_revision: u64) -> Watch {
        let (sender, batches) = mpsc::channel(BATCHES_WAITING_MAX);
        let mut task = Task { client, progress: Progress::new(prefix, from_revision), cluster: None, sender };
        Watch { batches, task: tokio::spawn(async move { task.run().await }), end: None }
    }

    /// The next changes, or the reason why there is no news; nothing is lost if it is dropped while it waits. After
    /// [`Error::Compacted`] and [`Error::Rewound`] the watch is over; after any other error it goes on trying.
    pub async fn next(&mut self) -> Result<Batch, Error> {
        if let Some(end) = &self.end {
            return Err(end.clone());
        }
        // Without a last word the task was aborted with its runtime.
        let endless = || Error::Unreachable { endpoint: "etcd".to_string(), why: "the watch was ended".to_string() };
        let next = self.batches.recv().await.unwrap_or_else(|| Err(endless()));
        if let Err(error @ (Error::Compacted { .. } | Error::Rewound { .. })) = &next {
            self.end = Some(error.clone());
        }
        next
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Task {
    client: Client,
    progress: Progress,
    /// Named by the first answer.
    cluster: Option<String>,
    sender: mpsc::Sender<Result<Batch, Error>>,
}

/// The reason why a stream is over.
enum Ended {
    /// The watch goes on elsewhere. `Some` is worth telling.
    Lost(Option<Error>),
    /// The token was refused.
    Token,
    Over(Error),
}

type Ping = Pin<Box<dyn Future<Output = Result<u64, Attempt>> + Send>>;

#[derive(Serialize)]
struct CreateRequest {
    key: Base64Bytes,
    range_end: Base64Bytes,
    start_revision: u64,
    progress_notify: bool,
    fragment: bool,
}

impl Task {
    async fn run(&mut self) {
        let mut renewed = false;
        while !self.sender.is_closed() {
            let (index, body) = match self.connect().await {
                Ok(connected) => connected,
                Err(error) => {
                    self.tell(error);
                    continue;
                }
            };
            let (ended, was_heard) = Stream::new(self, index).run(body).await;
            renewed &= !was_heard;
            match ended {
                Ended::Over(error) => {
                    // Until there is room, or nobody waits for it any more.
                    let _ = self.sender.send(Err(error)).await;
                    return;
                }
                // Below 3.5, a token that is not known is a permission that is missing.
                Ended::Token if !renewed => {
                    self.client.forget_any();
                    renewed = true;
                }
                Ended::Token => {
                    self.client.failed(index);
                    let why = "the user may not read these keys".to_string();
                    self.tell(Error::Unauthorized { why });
                    sleep(super::endpoints::PAUSE_MAX).await;
                }
                Ended::Lost(error) => {
                    self.client.failed(index);
                    error.into_iter().for_each(|error| self.tell(error));
                }
            }
        }
    }

    /// An error nobody has room for is one of several that say the same.
    fn tell(&self, error: Error) {
        let _ = self.sender.try_send(Err(error));
    }

    /// A new stream, at the first endpoint that opens one. One round over all of them.
    async fn connect(&self) -> Result<(usize, Incoming), Error> {
        let shared = &self.client.shared;
        let pause = lock(&shared.endpoints).pause(std::time::Instant::now());
        sleep(pause).await;
        let order = lock(&shared.endpoints).order(std::time::Instant::now());
        let mut last = None;
        for index in order {
            match self.open(index).await {
                Ok(body) => return Ok((index, body)),
                Err(error) => last = Some(error),
            }
            self.client.failed(index);
        }
        Err(last.expect("there is at least one endpoint"))
    }

    async fn open(&self, index: usize) -> Result<Incoming, Error> {
        let create = CreateRequest {
            key: Base64Bytes(start_of_prefix(&self.progress.prefix)),
            range_end: Base64Bytes(end_of_prefix(&self.progress.prefix)),
            start_revision: self.progress.next,
            progress_notify: true,
            fragment: true,
        };
        let body = serde_json::to_vec(&serde_json::json!({ "create_request": create }));
        let body = Bytes::from(body.expect("texts and numbers can be written"));
        let client = &self.client;
        let plain = |attempt| match attempt {
            Attempt::Elsewhere(error) | Attempt::Unknown(error) | Attempt::Final(error) => error,
        };
        let token = client.token(index).await.map_err(plain)?;
        let outgoing = Outgoing { path: "/v3/watch", body, token: token.as_ref().map(|token| token.as_str()) };
        let fault = |fault| plain(client.attempt(index, fault));
        let response = client.shared.transport.open(index, &outgoing).await.map_err(fault)?;
        let status = response.status();
        if status == StatusCode::OK {
            return Ok(response.into_body());
        }
        let body = client.shared.transport.rest(response).await.map_err(fault)?;
        match client.refusal(index, status, &body) {
            Refused::Attempt(attempt) => Err(plain(attempt)),
            Refused::Token(why) => {
                client.forget(token.as_ref());
                Err(Error::Unauthorized { why })
            }
        }
    }
}

/// A stream of one member.
struct Stream<'a> {
    task: &'a mut Task,
    index: usize,
    lines: Lines,
    created: bool,
    /// Time of the last message, or of a ping's answer.
    heard: Instant,
    /// Time of the last message.
    message: Instant,
    ping: Option<Ping>,
    /// Whether the member has said more than that the watch has begun.
    was_heard: bool,
}

/// The next thing that happens to a stream.
enum Step {
    Bytes(Bytes),
    Ended(String),
    Silence,
    Ping(Result<u64, Attempt>),
}

impl<'a> Stream<'a> {
    fn new(task: &'a mut Task, index: usize) -> Stream<'a> {
        task.progress.drop_held();
        let now = Instant::now();
        Stream {
            task,
            index,
            lines: Lines::default(),
            created: false,
            heard: now,
            message: now,
            ping: None,
            was_heard: false,
        }
    }

    async fn run(mut self, mut body: Incoming) -> (Ended, bool) {
        loop {
            let step = self.step(&mut body).await;
            if let Err(ended) = self.take(step).await {
                return (ended, self.was_heard);
            }
        }
    }

    async fn step(&mut self, body: &mut Incoming) -> Step {
        let silence = self.heard + WATCH_PING_AFTER;
        let ping = &mut self.ping;
        let is_asked = ping.is_some();
        let answer = async {
            match ping {
                Some(ping) => ping.as_mut().await,
                None => pending().await,
            }
        };
        tokio::select! {
            frame = body.frame() => match frame {
                Some(Ok(frame)) => Step::Bytes(frame.into_data().unwrap_or_default()),
                Some(Err(error)) => Step::Ended(super::error::shown(&error.to_string())),
                None => Step::Ended("it has ended the watch".to_string()),
            },
            answer = answer => Step::Ping(answer),
            () = sleep_until(silence), if !is_asked => Step::Silence,
        }
    }

    async fn take(&mut self, step: Step) -> Result<(), Ended> {
        match step {
            Step::Bytes(bytes) => self.bytes(&bytes).await,
            Step::Ended(why) => Err(self.lost(why)),
            Step::Silence if self.message.elapsed() > QUIET_MAX => Err(Ended::Lost(None)),
            Step::Silence => {
                self.ask();
                Ok(())
            }
            Step::Ping(answer) => {
                self.ping = None;
                match answer {
                    Ok(revision) if self.task.progress.is_ahead_of(revision) => Err(self.rewound()),
                    Ok(_) if !self.created => Err(self.lost("it answers, but does not begin the watch".to_string())),
                    Ok(_) | Err(Attempt::Final(_)) => {
                        self.heard = Instant::now();
                        self.is_alive();
                        Ok(())
                    }
                    Err(Attempt::Elsewhere(error) | Attempt::Unknown(error)) => Err(Ended::Lost(Some(error))),
                }
            }
        }
    }

    /// Asks the member for the revision that the majority has.
    fn ask(&mut self) {
        let (client, index) = (self.task.client.clone(), self.index);
        let request = RangeRequest {
            key: Base64Bytes(start_of_prefix(&self.task.progress.prefix)),
            range_end: None,
            limit: 1,
            revision: 0,
            keys_only: true,
        };
        let body = Bytes::from(serde_json::to_vec(&request).expect("texts and numbers can be written"));
        self.ping = Some(Box::pin(async move {
            let answer = client.ask::<RangeAnswer>(index, "/v3/kv/range", body).await?;
            Ok(answer.header.revision)
        }));
    }

    async fn bytes(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        if self.lines.push(bytes, LINE_BYTES_MAX).is_err() {
            return Err(self.malformed("a message of a watch is too long"));
        }
        while let Some(line) = self.lines.next() {
            self.heard = Instant::now();
            self.message = self.heard;
            let answer = serde_json::from_slice::<Streamed<WatchAnswer>>(&line);
            drop(line);
            let batch = match answer {
                Ok(Streamed::Result(answer)) => self.answer(answer)?,
                Ok(Streamed::Error(error)) => return Err(self.refused(error.refusal())),
                Err(error) => return Err(self.malformed(&error.to_string())),
            };
            if let Some(batch) = batch
                && self.task.sender.send(Ok(batch)).await.is_err()
            {
                return Err(Ended::Lost(None));
            }
            // The reader may have taken its time.
            self.heard = Instant::now();
        }
        Ok(())
    }

    fn answer(&mut self, answer: WatchAnswer) -> Result<Option<Batch>, Ended> {
        let revision = answer.header.revision;
        let cluster = self.task.cluster.get_or_insert_with(|| answer.header.cluster_id.clone());
        if *cluster != answer.header.cluster_id {
            return Err(self.rewound());
        }
        if answer.compact_revision > 0 {
            return Err(Ended::Over(Error::Compacted { revision: answer.compact_revision }));
        }
        if answer.canceled {
            return Err(match answer.cancel_reason.as_str() {
                "" => self.lost("it has cancelled the watch".to_string()),
                reason => self.refused(Refusal::of(0, reason)),
            });
        }
        if self.task.progress.is_ahead_of(revision) && answer.events.is_empty() && self.ping.is_none() {
            // A member that lags behind, or one that was restored: the majority knows.
            self.ask();
        }
        if answer.created {
            self.created = true;
            return Ok(Some(self.task.progress.begin(revision)));
        }
        if !self.created {
            return Err(self.malformed("events come before the watch has begun"));
        }
        let batch = self.task.progress.take(revision, answer.events, answer.fragment);
        let batch = batch.map_err(|what| self.malformed(what))?;
        self.is_alive();
        Ok(batch)
    }

    fn is_alive(&mut self) {
        if !self.was_heard {
            self.was_heard = true;
            lock(&self.task.client.shared.endpoints).is_alive(self.index);
        }
    }

    fn lost(&self, why: String) -> Ended {
        Ended::Lost(Some(Error::Unreachable { endpoint: self.task.client.name(self.index), why }))
    }

    fn malformed(&self, what: &str) -> Ended {
        Ended::Lost(Some(self.task.client.malformed(self.index, what)))
    }

    fn rewound(&self) -> Ended {
        Ended::Over(Error::Rewound { endpoint: self.task.client.name(self.index) })
    }

    fn refused(&self, refusal: Refusal) -> Ended {
        match refusal {
            Refusal::Token(_) | Refusal::Final(Error::Unauthorized { .. }) => Ended::Token,
            Refusal::Elsewhere(why) | Refusal::Unknown(why) => self.lost(why),
            Refusal::Compacted => Ended::Over(Error::Compacted { revision: self.task.progress.next }),
            Refusal::Final(Error::Refused { message, .. }) if message.contains("permission denied") => Ended::Token,
            Refusal::Final(error) => Ended::Lost(Some(error)),
        }
    }
}

/// The place in the order of changes up to which a watch has come.
struct Progress {
    prefix: Vec<u8>,
    /// First revision that was not delivered; 0 until the watch has begun, if it begins anywhere.
    next: u64,
    /// Changes of the newest revision, while fragments of it may be missing.
    held: Vec<Event>,
    held_bytes: usize,
}

impl Progress {
    fn new(prefix: Vec<u8>, from_revision: u64) -> Progress {
        Progress { prefix, next: from_revision, held: Vec::new(), held_bytes: 0 }
    }

    /// Whether the store must have been at a later revision than this one.
    fn is_ahead_of(&self, revision: u64) -> bool {
        self.next > revision.saturating_add(1)
    }

    fn begin(&mut self, revision: u64) -> Batch {
        if self.next == 0 {
            self.next = revision.saturating_add(1);
        }
        Batch { revision: self.next - 1, events: Vec::new() }
    }

    /// Another stream brings the revision again from its start.
    fn drop_held(&mut self) {
        self.held.clear();
        self.held_bytes = 0;
    }

    /// Takes one message. Returns the changes whose revisions are complete, if there are any or nothing has happened.
    ///
    /// The revision in the header of a message with changes says nothing: etcd sends older ones in several messages
    /// with the newest revision in each.
    fn take(&mut self, revision: u64, events: Vec<WireEvent>, fragment: bool) -> Result<Option<Batch>, &'static str> {
        let is_progress = events.is_empty() && self.held.is_empty() && !fragment;
        for event in events {
            let event = Event::from(event);
            let last = self.held.last().map_or(0, Event::mod_revision);
            if !event.key().starts_with(&self.prefix) {
                return Err("a change is of a key that is not watched");
            }
            if event.mod_revision() < last {
                return Err("changes are not in order");
            }
            // Delivered by another member already, or never asked for.
            if event.mod_revision() >= self.next {
                self.held_bytes += event.bytes();
                self.held.push(event);
            }
        }
        if self.held_bytes > HELD_BYTES_MAX {
            return Err("the changes of one revision are too long");
        }
        if is_progress {
            self.next = self.next.max(revision.saturating_add(1));
            return Ok(Some(Batch { revision: self.next - 1, events: Vec::new() }));
        }
        Ok(self.complete(fragment))
    }

    fn complete(&mut self, fragment: bool) -> Option<Batch> {
        let newest = self.held.last()?.mod_revision();
        let incomplete = match fragment {
            true => self.held.iter().position(|event| event.mod_revision() == newest)?,
            false => self.held.len(),
        };
        let rest = self.held.split_off(incomplete);
        let events = std::mem::replace(&mut self.held, rest);
        self.held_bytes = self.held.iter().map(Event::bytes).sum();
        let revision = events.last()?.mod_revision();
        self.next = revision.saturating_add(1);
        Some(Batch { revision, events })
    }
}

impl From<WireEvent> for Event {
    fn from(wire: WireEvent) -> Event {
        match wire.delete {
            true => Event::Delete { key: wire.kv.key.0, mod_revision: wire.kv.mod_revision },
            false => Event::Put(wire.kv.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::wire::WireKeyValue;

    fn event(key: &str, mod_revision: u64) -> WireEvent {
        let kv = WireKeyValue { key: Base64Bytes(key.into()), mod_revision, ..WireKeyValue::default() };
        WireEvent { delete: false, kv }
    }

    fn revisions(batch: Option<Batch>) -> Option<(u64, Vec<u64>)> {
        batch.map(|batch| (batch.revision, batch.events.iter().map(Event::mod_revision).collect()))
    }

    #[test]
    fn a_revision_is_delivered_when_all_its_fragments_are_there() {
        let mut progress = Progress::new(b"a/".to_vec(), 3);
        let first = progress.take(9, vec![event("a/1", 3), event("a/2", 4)], true).unwrap();
        assert_eq!(revisions(first), Some((3, vec![3])));
        let second = progress.take(9, vec![event("a/3", 4)], true).unwrap();
        assert_eq!(revisions(second), None);
        assert_eq!(progress.next, 4, "a watch that is lost now begins with the whole revision");
        let third = progress.take(9, vec![event("a/4", 4)], false).unwrap();
        assert_eq!(revisions(third), Some((4, vec![4, 4, 4])));
        assert_eq!(progress.next, 5, "the newest revision of the store is not what was delivered");
    }

    #[test]
    fn a_new_stream_after_half_a_revision_delivers_it_once() {
        let mut progress = Progress::new(b"a/".to_vec(), 3);
        assert_eq!(revisions(progress.take(3, vec![event("a/1", 3)], true).unwrap()), None);
        progress.drop_held();
        let whole = progress.take(3, vec![event("a/1", 3), event("a/2", 3)], false).unwrap();
        assert_eq!(revisions(whole), Some((3, vec![3, 3])));
        let again = progress.take(3, vec![event("a/1", 3), event("a/2", 3)], false).unwrap();
        assert_eq!(revisions(again), None, "a member that sends it again is not believed");
    }

    #[test]
    fn progress_moves_the_start_of_the_next_stream_on_and_never_back() {
        let mut progress = Progress::new(b"a/".to_vec(), 3);
        assert_eq!(revisions(progress.take(10, vec![], false).unwrap()), Some((10, vec![])));
        assert_eq!(revisions(progress.take(5, vec![], false).unwrap()), Some((10, vec![])));
        assert!(progress.is_ahead_of(9) && !progress.is_ahead_of(10));
        let mut anywhere = Progress::new(Vec::new(), 0);
        assert_eq!(anywhere.begin(7).revision, 7);
        assert_eq!(anywhere.next, 8);
        assert_eq!(revisions(anywhere.take(u64::MAX, vec![], false).unwrap()), Some((u64::MAX - 1, vec![])));
    }

    #[test]
    fn changes_that_were_not_asked_for_or_are_out_of_order_are_refused() {
        let mut progress = Progress::new(b"a/".to_vec(), 3);
        assert!(progress.take(9, vec![event("b", 4)], false).is_err());
        assert!(progress.take(9, vec![event("a/1", 5), event("a/2", 4)], false).is_err());
    }
}

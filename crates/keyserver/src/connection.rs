//! The life of a connection: handshake, then turns of read, answer and write, until an end. A connection to the
//! engine whose key process this is has no handshake: nobody else can have the other end.
//!
//! A turn takes all that has come, does the cheap work on the spot, hands the rest on, and sends every reply that
//! is ready in as few records and system calls as possible. Nothing in a turn waits for other connections' work.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use propylon_config::keyserver::Operations;
use propylon_crypto::keyless::{Decoder, ErrorCode, Message, opcode};
use propylon_crypto::{Job, JobKind};
use rustls::ServerConfig;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::access::{Access, ClientId, Grant};
use crate::core::{Core, Scratch};
use crate::kernels;
use crate::rate::Rate;
use crate::request::{self, Answer};
use crate::signing::{self, Overflow, Place};
use crate::task::{ConnectionEvent, Reply, Task, ThreadKind};
use crate::telemetry::{Denied, End, QueueMetrics};
use crate::transport::{Received, Transport};

/// Time limit from accept to the end of the handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the client to take what was sealed for it at once.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Requests handed to other threads and not answered yet, as many as the stock server allows.
const REQUESTS_IN_WORK_MAX: usize = 1024;
/// Bytes of unsent replies at which no more requests are taken. Requests in work may still add 1 KiB each, and the
/// last request one reply of 64 KiB.
const UNSENT_BYTES_MAX: usize = 256 * 1024;
/// Operations done on the spot between two writes, so that the first reply does not wait for the last signature.
const OPERATIONS_PER_TURN_MAX: usize = 32;
/// Long operations among them: as many as share a pass of the kernel for RSA.
const LONG_OPERATIONS_PER_TURN_MAX: usize = 4;
/// Messages of an engine's core that are read in one turn.
const MESSAGES_PER_TURN_MAX: usize = 8;
/// Turns before other connections have theirs.
const TURNS_MAX: usize = 4;
/// Longer than any wait.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// Events that wait for a connection: its results, a drain and an eviction.
const EVENTS_MAX: usize = REQUESTS_IN_WORK_MAX + 2;

pub struct Connection {
    core: Rc<Core>,
    serial: u64,
    transport: Transport,
    /// Absent until the handshake is done.
    access: Option<Access>,
    client: ClientId,
    /// Absent where the client may ask as often as it likes.
    rate: Option<Arc<Rate>>,
    decoder: Decoder,
    /// Frames that are not sealed yet.
    replies: Vec<u8>,
    /// Time at which the bytes that the client has not taken yet were sealed.
    sealed_at: Option<Instant>,
    in_work: usize,
    events: mpsc::Receiver<ConnectionEvent>,
    reply_to: mpsc::Sender<ConnectionEvent>,
    /// Time of the accept, then of the last whole frame.
    received_at: Instant,
    /// The client has closed its side.
    is_at_end: bool,
    is_draining: bool,
    is_displaced: bool,
    is_read_stopped: bool,
}

impl Connection {
    pub fn new(
        core: Rc<Core>,
        serial: u64,
        stream: TcpStream,
        config: Arc<ServerConfig>,
    ) -> Result<Connection, rustls::Error> {
        Ok(Connection::of(core, serial, Transport::tls(stream, config)?, None))
    }

    /// Makes the connection to the engine whose key process this is: it may use all keys that are here.
    pub fn to_engine(core: Rc<Core>, serial: u64, socket: OwnedFd) -> io::Result<Connection> {
        let all = Access::new([Grant { keys: None, operations: Operations::DEFAULT }]);
        Ok(Connection::of(core, serial, Transport::engine(socket)?, Some(all)))
    }

    fn of(core: Rc<Core>, serial: u64, transport: Transport, access: Option<Access>) -> Connection {
        let (reply_to, events) = mpsc::channel(EVENTS_MAX);
        Connection {
            core,
            serial,
            transport,
            access,
            client: ClientId(0),
            rate: None,
            decoder: Decoder::new(),
            replies: Vec::new(),
            sealed_at: None,
            in_work: 0,
            events,
            reply_to,
            received_at: Instant::now(),
            is_at_end: false,
            is_draining: false,
            is_displaced: false,
            is_read_stopped: false,
        }
    }

    /// Sender of events to this connection.
    pub fn events(&self) -> mpsc::Sender<ConnectionEvent> {
        self.reply_to.clone()
    }

    pub fn peer(&self) -> Option<SocketAddr> {
        self.transport.peer()
    }

    pub async fn run(mut self) -> End {
        let mut timer = pin!(sleep_until(self.received_at + HANDSHAKE_TIMEOUT));
        let end = poll_fn(|cx| self.poll(cx, timer.as_mut())).await;
        self.close();
        end
    }

    fn poll(&mut self, cx: &mut Context<'_>, timer: Pin<&mut Sleep>) -> Poll<End> {
        for _ in 0..TURNS_MAX {
            match self.turn(cx) {
                Ok(true) => {}
                Ok(false) => return self.wait(cx, timer),
                Err(end) => return Poll::Ready(end),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Takes one turn; returns whether anything was done, in which case another turn may find more to do.
    fn turn(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let has_events = self.take_events(cx);
        if self.is_displaced {
            return Err(End::HandshakeDisplaced);
        }
        let has_read = self.may_read() && self.read(cx)?;
        // A read is one message there. What has come goes together, and wakes the engine's core once.
        let mut reads = usize::from(has_read && self.transport.is_engine());
        while (1..MESSAGES_PER_TURN_MAX).contains(&reads) && !self.is_at_end && self.read(cx)? {
            reads += 1;
        }
        let has_answered = self.answer();
        // Replies are written even if the next frame is malformed: requests before it are answered.
        let has_written = self.write(cx)?;
        let has_answered = has_answered?;
        if let Some(end) = self.is_done() {
            return Err(end);
        }
        Ok(has_events || has_read || has_answered || has_written)
    }

    /// Results of other threads become replies.
    fn take_events(&mut self, cx: &mut Context<'_>) -> bool {
        let mut has_events = false;
        while let Poll::Ready(Some(event)) = self.events.poll_recv(cx) {
            has_events = true;
            match event {
                ConnectionEvent::Done(replies) => {
                    self.in_work -= replies.len();
                    for Reply { id, result } in &replies {
                        self.reply(*id, result.as_ref().map(|signature| signature.as_slice()).map_err(|code| *code));
                    }
                }
                ConnectionEvent::Drain => self.is_draining = true,
                // A certificate may have been shown meanwhile; then the connection stays.
                ConnectionEvent::Evict => self.is_displaced |= self.access.is_none(),
            }
        }
        has_events
    }

    fn may_read(&mut self) -> bool {
        if self.is_at_end || self.is_draining {
            return false;
        }
        let stop = !self.has_room() || self.decoder.has_message();
        if stop && !self.is_read_stopped {
            self.core.column.increment(self.core.telemetry.stopped_reading);
        }
        self.is_read_stopped = stop;
        !stop
    }

    /// Whether there is room for another request.
    fn has_room(&self) -> bool {
        self.in_work < REQUESTS_IN_WORK_MAX && self.replies.len() < UNSENT_BYTES_MAX
    }

    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let core = Rc::clone(&self.core);
        let mut scratch = core.scratch.borrow_mut();
        let count = match self.transport.poll_read(cx, &mut scratch.bytes) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Err(_)) => return Err(self.broken()),
            Poll::Ready(Ok(count)) => count,
        };
        if count == 0 {
            self.is_at_end = true;
            return if self.access.is_none() { Err(End::Handshake) } else { Ok(true) };
        }
        match self.transport.open(&scratch.bytes[..count], &mut self.decoder) {
            Ok(Received::More) => {}
            Ok(Received::End) => self.is_at_end = true,
            Err(error) => return Err(error.map_or_else(|| self.broken(), |error| self.refused(&error))),
        }
        if self.access.is_none() && !self.transport.is_handshaking() {
            self.welcome();
        }
        Ok(true)
    }

    fn broken(&self) -> End {
        if self.access.is_none() { End::Handshake } else { End::Broken }
    }

    fn refused(&self, error: &rustls::Error) -> End {
        if self.access.is_some() {
            return End::Tls;
        }
        let peer = self.peer().map_or_else(|| "a client".into(), |peer| peer.to_string());
        log::debug!("{peer}: the handshake failed: {error}");
        End::Handshake
    }

    fn welcome(&mut self) {
        let certificate = self.transport.peer_certificate();
        // A handshake without a certificate does not succeed; should one ever do, it grants nothing.
        let nothing = (Access::default(), None);
        let shared = &self.core.shared;
        self.client = certificate.map_or(ClientId(0), |certificate| ClientId::of(certificate));
        let (access, rate) = certificate.map_or(nothing, |certificate| shared.rules.access(certificate));
        self.received_at = Instant::now();
        self.rate = rate.map(|rate| shared.rates.of(self.client, rate, self.received_at.into_std()));
        self.access = Some(access);
        self.core.handshake_is_over(self.serial);
        self.core.column.increment(self.core.telemetry.handshakes);
    }

    /// Does what the requests that are there ask for, as far as there is room.
    fn answer(&mut self) -> Result<bool, End> {
        if self.access.is_none() || !self.decoder.has_message() {
            return Ok(false);
        }
        let core = Rc::clone(&self.core);
        let scratch = &mut *core.scratch.borrow_mut();
        let now = Instant::now();
        let mut result = Ok(false);
        let long = |jobs: &[Job]| jobs.iter().filter(|job| job.kind() == JobKind::Rsa).count();
        while scratch.jobs.len() < OPERATIONS_PER_TURN_MAX
            && long(&scratch.jobs) < LONG_OPERATIONS_PER_TURN_MAX
            && self.has_room()
        {
            match self.take(now, scratch) {
                Ok(true) => result = Ok(true),
                Ok(false) => break,
                Err(end) => {
                    result = Err(end);
                    break;
                }
            }
        }
        // Before what is done here: other threads begin meanwhile.
        self.hand_on(&mut scratch.tasks);
        if !scratch.jobs.is_empty() {
            let p256 = scratch.jobs.iter().filter(|job| job.kind() == JobKind::Ecdsa).count();
            let rsa = long(&scratch.jobs);
            scratch.outcomes = kernels::run_together(std::mem::take(&mut scratch.jobs));
            core.telemetry.kernels.report(&core.column, &mut scratch.seen, p256 as u64, rsa as u64);
        }
        for (id, outcome) in scratch.ids.drain(..).zip(scratch.outcomes.drain(..)) {
            let result = outcome.as_ref().map(|signature| signature.as_slice()).map_err(|error| *error);
            self.reply(id, result.map_err(signing::error_code));
        }
        self.received_at = now;
        result
    }

    /// The next request: answered, put among those to be done here, or handed on.
    fn take(&mut self, now: Instant, scratch: &mut Scratch) -> Result<bool, End> {
        let message = match self.decoder.next_message() {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(false),
            // Framing is lost after a malformed frame: there is no request id to answer to.
            Err(_) => return Err(End::Malformed),
        };
        let core = &self.core;
        let nothing = Access::default();
        let access = self.access.as_ref().unwrap_or(&nothing);
        let (asked, answer) = request::answer(&message, &core.shared.keys.load(), access);
        core.column.increment(core.telemetry.requests[asked as usize]);
        let id = message.id;
        match answer {
            Answer::Pong => {
                let pong = Message { id, opcode: Some(opcode::PONG), payload: message.payload, ..Message::default() };
                // The payload came in a frame, and so it fits into one.
                let _ = pong.encode(&mut self.replies);
            }
            Answer::Error(code) => self.reply(id, Err(code)),
            Answer::Denied => {
                core.column.increment(core.telemetry.denied[Denied::Operation as usize]);
                self.reply(id, Err(Answer::DENIED));
            }
            Answer::Job(_) if self.rate.as_ref().is_some_and(|rate| !rate.allows(now.into_std())) => {
                core.column.increment(core.telemetry.denied[Denied::Rate as usize]);
                // The same error as for a full queue: an engine then asks another key server.
                self.reply(id, Err(ErrorCode::Internal));
            }
            Answer::Job(job) => match self.place(&job) {
                Place::Here => {
                    scratch.ids.push(id);
                    scratch.jobs.push(job);
                }
                Place::Thread(kind) => {
                    // The gauge rises before the task can be taken: it must not fall below zero.
                    core.column.raise(core.telemetry.queues[kind as usize].waiting);
                    scratch.tasks[kind as usize].push(self.task(now, core.timeout, id, job));
                    self.in_work += 1;
                }
                Place::Token(token) => self.hand_to_token(now, token, id, job),
            },
        }
        Ok(true)
    }

    /// An engine's core waits for its own operations alone, so that its connection needs no queue.
    fn place(&self, job: &Job) -> Place {
        if self.transport.is_engine() { Place::Here } else { signing::place(job) }
    }

    fn task(&self, now: Instant, timeout: Duration, id: u32, job: Job) -> Task {
        let since = now.into_std();
        Task { id, client: self.client, job, since, deadline: since + timeout, reply_to: self.reply_to.clone() }
    }

    /// Hands the turn's tasks on to the threads that do them.
    fn hand_on(&self, tasks: &mut [Vec<Task>; ThreadKind::ALL.len()]) {
        let core = &self.core;
        for (kind, tasks) in ThreadKind::ALL.into_iter().zip(tasks).filter(|(_, tasks)| !tasks.is_empty()) {
            let overflow = core.queues.push(kind, tasks.drain(..));
            self.count(&core.telemetry.queues[kind as usize], overflow);
        }
    }

    /// Queues the operation for a hardware module's token.
    fn hand_to_token(&mut self, now: Instant, token: usize, id: u32, job: Job) {
        let core = &self.core;
        let task = self.task(now, core.tokens.timeout(token).unwrap_or(core.timeout), id, job);
        let numbers = &core.telemetry.tokens[token].queue;
        core.column.raise(numbers.waiting);
        self.in_work += 1;
        let result = core.tokens.push(token, task);
        self.count(numbers, result.err());
    }

    /// Counts refusals and displacements. The refused operation, of this connection or another, is answered by an event
    /// like any other result.
    fn count(&self, numbers: &QueueMetrics, overflow: impl IntoIterator<Item = Overflow>) {
        for turned in overflow {
            self.core.column.lower(numbers.waiting);
            self.core.column.increment(match turned {
                Overflow::Refused => numbers.refused,
                Overflow::Displaced => numbers.displaced,
            });
        }
    }

    fn reply(&mut self, id: u32, result: Result<&[u8], ErrorCode>) {
        let message = match &result {
            Ok(signature) => Message { id, opcode: Some(opcode::SUCCESS), payload: signature, ..Message::default() },
            Err(code) => {
                self.core.column.increment(self.core.telemetry.errors[*code as usize - 1]);
                Message { id, opcode: Some(opcode::ERROR), payload: &[*code as u8], ..Message::default() }
            }
        };
        // No signature is longer than a frame.
        let _ = message.encode(&mut self.replies);
    }

    /// Seals what is ready and sends as much as the client takes.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let mut has_written = false;
        loop {
            if !self.transport.has_unsent() {
                self.sealed_at = None;
                if self.replies.is_empty() {
                    return Ok(has_written);
                }
                self.transport.seal(&mut self.replies);
                if self.replies.is_empty() && self.replies.capacity() > UNSENT_BYTES_MAX {
                    self.replies = Vec::new();
                }
            }
            match self.transport.poll_send(cx) {
                Poll::Ready(Ok(())) => has_written = true,
                Poll::Ready(Err(_)) => return Err(self.broken()),
                Poll::Pending => {
                    self.sealed_at.get_or_insert_with(Instant::now);
                    return Ok(has_written);
                }
            }
        }
    }

    fn is_done(&self) -> Option<End> {
        let is_ending = self.is_at_end || self.is_draining;
        let is_open = self.access.is_some();
        let has_work = self.in_work > 0 || (is_open && self.decoder.has_message());
        if !is_ending || has_work || !self.replies.is_empty() || self.transport.has_unsent() {
            return None;
        }
        Some(if self.is_draining { End::Drained } else { End::Client })
    }

    /// Waits, since nothing else can be done; ends the connection when its deadline has passed.
    fn wait(&mut self, cx: &mut Context<'_>, mut timer: Pin<&mut Sleep>) -> Poll<End> {
        if self.in_work == 0 {
            self.decoder.release();
        }
        let now = Instant::now();
        loop {
            let (deadline, end) = self.deadline(now);
            if now >= deadline {
                return Poll::Ready(end);
            }
            // Set when it is too late, or has gone off: not for every request.
            if timer.is_elapsed() || timer.deadline() > deadline {
                timer.as_mut().reset(deadline);
            }
            if timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn deadline(&self, now: Instant) -> (Instant, End) {
        let idle = self.core.idle_timeout;
        if self.transport.is_engine() {
            // The socket to the engine lasts as long as the engine does, and the engine may be idle for as long as
            // it likes.
            return (now + FOREVER, End::Idle);
        }
        if self.access.is_none() {
            (self.received_at + HANDSHAKE_TIMEOUT, End::HandshakeTimeout)
        } else if let Some(sealed_at) = self.sealed_at {
            (sealed_at + WRITE_TIMEOUT, End::Slow)
        } else if self.in_work > 0 {
            (now + idle, End::Idle)
        } else {
            (self.received_at + idle, End::Idle)
        }
    }

    /// Sends close_notify, if the client takes it at once.
    fn close(&mut self) {
        self.transport.close();
    }
}

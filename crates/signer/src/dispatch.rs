//! Servers to ask for a signature, how long, and in which order: a core's jobs at one signer, without clock and
//! sockets.
//!
//! A job is asked for on one connection, and again on another one when that connection breaks, when the server says
//! that it cannot, or when the answer takes long (the hedge). Signing twice is harmless. A job that no server can be
//! asked for now waits for a connection to come up, all within the job's deadline.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::task::Waker;
use std::time::Duration;

use propylon_config::Verify;
use propylon_crypto::keyless::{ErrorCode, Malformed, opcode, opcode_of};
use propylon_crypto::{JobError, KeyKind, Outcome, RemoteKey, Scheme, Ski};
use propylon_policy::budget::Budget;
use propylon_policy::signers::{Change, Signers};

use super::channel::{Answer, Channel, JobId, Leave, Purpose, Sent, State};
use super::report::Report;

/// Times that a job is asked for, hedges among them.
const ATTEMPTS_MAX: u8 = 4;
/// A connection that is not up by then is given up.
const OPENING: Duration = Duration::from_secs(5);
/// Idle for so long a connection sends a ping; up to half as long again is added, so that they do not all at once. Key
/// servers close what is idle for 30 s.
const PING_AFTER: Duration = Duration::from_secs(10);
/// A question without an answer for so long, or for the timeout if that is longer, is forgotten, and a connection that
/// brought nothing meanwhile is closed.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// For so long a server is not asked again for a key that it does not have, where others may have it.
const REFUSAL_KEPT: Duration = Duration::from_secs(5);
const REFUSALS_MAX: usize = 4096;
/// How often connections are looked after.
const ROUND: Duration = Duration::from_millis(250);

/// Microseconds are those of the core's clock throughout.
pub struct Settings {
    pub servers: usize,
    /// Per server.
    pub connections: usize,
    /// Jobs at once: as many as handshakes may be parked for a signer.
    pub jobs_max: usize,
    pub timeout: u64,
    pub hedge: Option<u64>,
    pub verify: Verify,
}

struct Slot {
    generation: u32,
    content: Content,
}

enum Content {
    Free,
    Open(Box<Job>),
    Done(Outcome),
}

struct Job {
    key: RemoteKey,
    scheme: Scheme,
    opcode: u8,
    input: Box<[u8]>,
    waker: Option<Waker>,
    /// Questions that were sent, and those among them whose answers may still come.
    attempts: u8,
    flying: u8,
    /// Whether the job is in `unsent`.
    queued: bool,
    /// Servers asked, as bits; `refused` has the ones that cannot do it.
    tried: u64,
    refused: u64,
    /// Error from the last server that refused.
    refusal: Option<JobError>,
}

pub struct Dispatch {
    settings: Settings,
    servers: Signers,
    /// Connections, grouped by server.
    channels: Vec<Channel>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Jobs that nobody could be asked for.
    unsent: VecDeque<JobId>,
    /// In the order in which they fall due, since each kind of wait has one length. Jobs may be over before.
    deadlines: VecDeque<(u64, JobId)>,
    hedges: VecDeque<(u64, JobId)>,
    question_deadlines: VecDeque<(u64, Question)>,
    hedge_budget: Budget,
    refusals: HashMap<(Ski, usize), u64>,
    /// Count of a server's next signatures to be verified, whatever the key, since one was found wrong; by server.
    suspected: Vec<u16>,
    /// Servers, as bits, that the log has been told to be out of reach.
    unreachable: u64,
    next_round: u64,
    random: fastrand::Rng,
    /// Nobody will sign here any more.
    is_over: bool,
    /// To be woken by whoever holds this, when it is no longer borrowed.
    wake: Vec<Waker>,
    pub report: Report,
}

/// Signatures by keys whose signatures are not verified of which one is.
const SAMPLED_ONE_OF: u16 = 256;
/// Signatures of a server that are all verified after one of it was wrong.
const SUSPECTED_SIGNATURES: u16 = 256;

/// A question on a connection.
#[derive(Clone, Copy)]
struct Question {
    channel: usize,
    epoch: u32,
    id: u32,
}

impl Dispatch {
    pub fn new(settings: Settings, report: Report, seed: u64) -> Dispatch {
        let channels = (0..settings.servers * settings.connections).map(|at| Channel::new(at / settings.connections));
        Dispatch {
            servers: Signers::new(settings.servers),
            channels: channels.collect(),
            slots: Vec::new(),
            free: Vec::new(),
            unsent: VecDeque::new(),
            deadlines: VecDeque::new(),
            hedges: VecDeque::new(),
            question_deadlines: VecDeque::new(),
            hedge_budget: Budget::new(),
            refusals: HashMap::new(),
            suspected: vec![0; settings.servers],
            unreachable: 0,
            next_round: 0,
            random: fastrand::Rng::with_seed(seed),
            is_over: false,
            wake: Vec::new(),
            report,
            settings,
        }
    }

    // The life of a job.

    pub fn submit(&mut self, key: RemoteKey, scheme: Scheme, input: Box<[u8]>, now: u64) -> Result<JobId, JobError> {
        let opcode = opcode_of(scheme).ok_or(JobError::Refused)?;
        if self.is_over {
            self.report.concluded("unavailable");
            return Err(JobError::Unavailable);
        }
        if self.slots.len() - self.free.len() >= self.settings.jobs_max {
            self.report.full();
            return Err(JobError::Unavailable);
        }
        let job = Job {
            key,
            scheme,
            opcode,
            input,
            waker: None,
            attempts: 0,
            flying: 0,
            queued: false,
            tried: 0,
            refused: 0,
            refusal: None,
        };
        let id = self.open(Box::new(job));
        self.hedge_budget.earn();
        self.deadlines.push_back((now + self.settings.timeout, id));
        if let Some(hedge) = self.settings.hedge {
            self.hedges.push_back((now + hedge, id));
        }
        self.place(id, now);
        Ok(id)
    }

    /// Nobody will sign any more, for good: nobody is to wait for it.
    pub fn end(&mut self, why: &str) {
        self.is_over = true;
        self.report.over(why);
        for (_, id) in std::mem::take(&mut self.deadlines) {
            if self.job(id).is_some() {
                self.conclude(id, Err(JobError::Unavailable));
            }
        }
    }

    fn open(&mut self, job: Box<Job>) -> JobId {
        let content = Content::Open(job);
        match self.free.pop() {
            Some(slot) => {
                let place = &mut self.slots[slot as usize];
                place.content = content;
                JobId { slot, generation: place.generation }
            }
            None => {
                self.slots.push(Slot { generation: 0, content });
                JobId { slot: self.slots.len() as u32 - 1, generation: 0 }
            }
        }
    }

    fn job(&mut self, id: JobId) -> Option<&mut Job> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        match &mut slot.content {
            Content::Open(job) if slot.generation == id.generation => Some(job),
            _ => None,
        }
    }

    /// Asks for a job wherever that is possible, or has it wait, or gives up.
    fn place(&mut self, id: JobId, now: u64) {
        let all = u64::MAX >> (64 - self.settings.servers);
        let Some(job) = self.job(id) else { return };
        let (tried, refused, ski) = (job.tried, job.refused, job.key.ski);
        if refused == all || job.attempts >= ATTEMPTS_MAX {
            let error = job.refusal.unwrap_or(JobError::Unavailable);
            return self.conclude(id, Err(error));
        }
        let known = self.known_refusals(ski, now);
        // The best is a server that was not tried yet; next one that was; if need be one ejected, or without the key a
        // moment ago.
        let tiers =
            [(true, refused | tried | known), (true, refused | known), (false, refused | tried), (false, refused)];
        let server = tiers.into_iter().find_map(|(trusted, excluded)| self.choose(trusted, excluded));
        match server {
            Some(server) => self.ask(id, server, now),
            None => {
                if let Some(job) = self.job(id) {
                    job.queued = true;
                }
                self.unsent.push_back(id);
                self.report.unsent(self.unsent.len());
            }
        }
    }

    fn known_refusals(&self, ski: Ski, now: u64) -> u64 {
        if self.refusals.is_empty() {
            return 0;
        }
        let refuses = |server: &usize| self.refusals.get(&(ski, *server)).is_some_and(|until| now < *until);
        (0..self.settings.servers).filter(refuses).fold(0, |all, server| all | 1 << server)
    }

    fn choose(&mut self, trusted: bool, excluded: u64) -> Option<usize> {
        let random = self.random.u64(..);
        let allowed = |server: usize| excluded & 1 << server == 0 && self.channel_with_room(server).is_some();
        match trusted {
            true => self.servers.choose_trusted(allowed, random),
            false => self.servers.choose(allowed, random),
        }
    }

    /// The least busy of a server's connections.
    fn channel_with_room(&self, server: usize) -> Option<usize> {
        let first = server * self.settings.connections;
        let all = first..first + self.settings.connections;
        all.filter(|at| self.channels[*at].has_room()).min_by_key(|at| self.channels[*at].sent.len())
    }

    fn ask(&mut self, id: JobId, server: usize, now: u64) {
        let Some(at) = self.channel_with_room(server) else { return };
        let slot = &mut self.slots[id.slot as usize];
        let Content::Open(job) = &mut slot.content else { return };
        let channel = &mut self.channels[at];
        let question = match channel.ask(Purpose::Job(id), job.opcode, &job.input, Some(job.key.ski), now) {
            Ok(question) => Question { channel: at, epoch: channel.epoch, id: question },
            // The longest message that TLS has signed is far shorter than a frame.
            Err(_) => return self.conclude(id, Err(JobError::Refused)),
        };
        if job.attempts > 0 {
            self.report.retried();
        }
        job.attempts += 1;
        job.flying += 1;
        job.queued = false;
        job.tried |= 1 << server;
        self.asked(question, now);
    }

    /// Something is to be sent.
    fn asked(&mut self, question: Question, now: u64) {
        let channel = &self.channels[question.channel];
        self.wake.extend(channel.driver());
        self.servers.asked(channel.server);
        self.report.outstanding(channel.server, 1);
        self.question_deadlines.push_back((now + self.settings.timeout, question));
    }

    /// Outcome of a job; if it is still open, the waker that `waker` has replaced.
    pub fn poll(&mut self, id: JobId, waker: &Waker) -> Result<Outcome, Option<Waker>> {
        let slot = &mut self.slots[id.slot as usize];
        match &mut slot.content {
            Content::Done(outcome) => Ok(std::mem::replace(outcome, Err(JobError::Cancelled))),
            Content::Open(job) => {
                let known = job.waker.as_ref().is_some_and(|known| known.will_wake(waker));
                Err(if known { None } else { job.waker.replace(waker.clone()) })
            }
            Content::Free => unreachable!("a slot belongs to one holder at a time"),
        }
    }

    /// Releases a job whose holder is gone. The waker returned is to be dropped where nothing is borrowed.
    #[must_use]
    pub fn release(&mut self, id: JobId) -> Option<Waker> {
        let slot = &mut self.slots[id.slot as usize];
        slot.generation = slot.generation.wrapping_add(1);
        let content = std::mem::replace(&mut slot.content, Content::Free);
        self.free.push(id.slot);
        match content {
            Content::Open(job) => {
                self.report.concluded("cancelled");
                self.tidy();
                job.waker
            }
            _ => None,
        }
    }

    fn conclude(&mut self, id: JobId, outcome: Outcome) {
        let slot = &mut self.slots[id.slot as usize];
        if slot.generation != id.generation {
            return;
        }
        if let Content::Open(job) = &mut slot.content {
            self.wake.extend(job.waker.take());
            self.report.concluded(match &outcome {
                Ok(_) => "signed",
                Err(JobError::TimedOut) => "timeout",
                Err(JobError::Refused | JobError::NotSigned | JobError::BadShare) => "refused",
                Err(JobError::Unavailable | JobError::Cancelled) => "unavailable",
            });
            slot.content = Content::Done(outcome);
        }
    }

    // The life of a connection.

    /// A connection is being made.
    pub fn begin(&mut self, at: usize, now: u64) {
        let ping_after = micros(PING_AFTER) + self.random.u64(..micros(PING_AFTER) / 2);
        self.channels[at].begin(now, now + micros(OPENING), ping_after);
    }

    /// Greets the server, once the connection's TLS handshake is over.
    pub fn greet(&mut self, at: usize, now: u64) {
        self.ping(at, Purpose::Greeting, now);
    }

    fn ping(&mut self, at: usize, purpose: Purpose, now: u64) {
        let channel = &mut self.channels[at];
        let Ok(id) = channel.ask(purpose, opcode::PING, &[], None, now) else { return };
        let question = Question { channel: at, epoch: channel.epoch, id };
        self.asked(question, now);
    }

    fn opened(&mut self, at: usize, now: u64) {
        self.channels[at].state = State::Up;
        let server = self.channels[at].server;
        if self.servers.connected(server) {
            self.report.server_up(server);
            self.unreachable &= !(1 << server);
        }
        self.report.links(server, 1);
        self.send_unsent(now);
    }

    /// Whatever waits for room on a connection.
    fn send_unsent(&mut self, now: u64) {
        // Each once: those for which there is still no place come back behind the others.
        for _ in 0..self.unsent.len() {
            if !(0..self.settings.servers).any(|server| self.channel_with_room(server).is_some()) {
                break;
            }
            let Some(id) = self.unsent.pop_front() else { break };
            if self.job(id).is_some_and(|job| job.queued) {
                self.place(id, now);
            }
        }
        self.report.unsent(self.unsent.len());
    }

    /// The connection is gone, or did not come up.
    pub fn closed(&mut self, at: usize, why: &str, now: u64) {
        let was_up = self.channels[at].state == State::Up;
        let lost = self.channels[at].end();
        let server = self.channels[at].server;
        if was_up {
            self.report.links(server, -1);
            if self.servers.disconnected(server) {
                self.report.server_down(server, why);
                self.unreachable |= 1 << server;
            }
        } else {
            match self.channels[at].unsigned {
                true => self.report.unsigned(server, why),
                false => self.report.connect_failed(server, why),
            }
            if self.servers.links(server) == 0 && self.unreachable & 1 << server == 0 {
                self.report.unreachable(server, why);
                self.unreachable |= 1 << server;
            }
        }
        let mut again = Vec::new();
        for sent in lost {
            self.count_done(server);
            if let Purpose::Job(id) = sent.purpose {
                if !sent.overdue {
                    self.report.answered(server, "lost");
                }
                again.push(id);
            }
        }
        for id in again {
            self.attempt_over(id, now);
        }
    }

    fn count_done(&mut self, server: usize) {
        self.servers.settled(server);
        self.report.outstanding(server, -1);
    }

    /// An attempt at a job has come to nothing: once more, unless another one is under way.
    fn attempt_over(&mut self, id: JobId, now: u64) {
        let Some(job) = self.job(id) else { return };
        job.flying = job.flying.saturating_sub(1);
        if job.flying == 0 && !job.queued {
            self.place(id, now);
        }
    }

    pub fn received(&mut self, at: usize, bytes: &[u8], now: u64) -> Result<(), Malformed> {
        let mut answers = Vec::new();
        let mut keep = |sent: Sent, answer: Answer<'_>| {
            let kept = match answer {
                Answer::Result(result) => Reply::Result(result.to_vec()),
                Answer::Pong => Reply::Pong,
                Answer::Error(code) => Reply::Error(code),
                Answer::Nonsense => Reply::Nonsense,
            };
            answers.push((sent, kept));
        };
        let strays = self.channels[at].receive(bytes, now, &mut keep);
        for (sent, reply) in answers {
            self.answered(at, sent, reply, now);
        }
        let strays = strays?;
        self.report.strays(self.channels[at].server, strays);
        if !self.unsent.is_empty() {
            self.send_unsent(now);
        }
        Ok(())
    }

    fn answered(&mut self, at: usize, sent: Sent, reply: Reply, now: u64) {
        let server = self.channels[at].server;
        self.count_done(server);
        match sent.purpose {
            // Whatever it answers: it is there, and takes us for one of its clients.
            Purpose::Greeting => {
                self.latency(server, &sent, now);
                self.opened(at, now);
            }
            Purpose::Ping | Purpose::Trial => self.latency(server, &sent, now),
            Purpose::Job(id) => {
                self.report.duration(server, now - sent.at);
                self.job_answered(server, id, &sent, reply, now);
            }
        }
    }

    fn latency(&mut self, server: usize, sent: &Sent, now: u64) {
        let in_time = !sent.overdue && now - sent.at <= self.settings.timeout;
        let to_trial = sent.purpose == Purpose::Trial;
        let change = self.servers.answered(server, now - sent.at, in_time, to_trial, now);
        self.changed(server, change);
    }

    fn changed(&mut self, server: usize, change: Change) {
        match change {
            Change::None => {}
            Change::Ejected => self.report.ejected(server),
            Change::Readmitted => self.report.readmitted(server),
        }
    }

    /// Whether the next signature of a server is one to be verified whatever its key: one of [`SAMPLED_ONE_OF`] by
    /// chance, which nobody can foresee, and every one for a while after one was wrong, so that a server is soon found
    /// out that has gone wrong altogether.
    fn samples(&mut self, server: usize) -> bool {
        if self.suspected[server] > 0 {
            self.suspected[server] -= 1;
            return true;
        }
        self.random.u16(..SAMPLED_ONE_OF) == 0
    }

    fn job_answered(&mut self, server: usize, id: JobId, sent: &Sent, reply: Reply, now: u64) {
        let sampled = self.samples(server);
        let verify = self.settings.verify;
        // The job may be over: cancelled, or answered by another server, or out of time.
        let verdict = self.job(id).map(|job| job.judge(reply, verify, sampled));
        let outcome = match &verdict {
            None => "superfluous",
            Some(Verdict::Signed(_)) => "signed",
            Some(Verdict::Refused(_)) => "refused",
            Some(Verdict::Wrong) => "wrong",
        };
        if !sent.overdue {
            self.report.answered(server, outcome);
        }
        match verdict {
            Some(Verdict::Wrong) => {
                self.suspected[server] = SUSPECTED_SIGNATURES;
                let change = self.servers.failed(server, now - sent.at, now);
                self.changed(server, change);
                self.report.wrong(server);
                self.refuse(id, server, JobError::NotSigned);
                self.attempt_over(id, now);
            }
            Some(Verdict::Refused(code)) => {
                self.latency(server, sent, now);
                self.refused(id, server, code, now);
            }
            Some(Verdict::Signed(signature)) => {
                self.latency(server, sent, now);
                self.conclude(id, Ok(signature.into()));
            }
            None => self.latency(server, sent, now),
        }
    }

    /// The server says that it cannot do this.
    fn refused(&mut self, id: JobId, server: usize, code: Option<ErrorCode>, now: u64) {
        let Some(ski) = self.job(id).map(|job| job.key.ski) else { return };
        let error = match code {
            Some(ErrorCode::KeyNotFound | ErrorCode::Internal | ErrorCode::Remote) => {
                if self.refusals.len() >= REFUSALS_MAX {
                    self.refusals.clear();
                }
                if self.refusals.insert((ski, server), now + micros(REFUSAL_KEPT)).is_none() {
                    self.report.refused(server, &ski, code);
                }
                JobError::NotSigned
            }
            _ => {
                self.report.refused(server, &ski, code);
                JobError::Refused
            }
        };
        self.refuse(id, server, error);
        self.attempt_over(id, now);
    }

    fn refuse(&mut self, id: JobId, server: usize, error: JobError) {
        if let Some(job) = self.job(id) {
            job.refused |= 1 << server;
            job.refusal = Some(error);
        }
    }

    // Steps that the clock brings.

    /// Does what is due, and says when to come again.
    pub fn advance(&mut self, now: u64) -> u64 {
        while let Some(id) = due(&mut self.deadlines, now) {
            let Some(job) = self.job(id) else { continue };
            // With nobody left to ask but who cannot be reached, what the others have said is what is known.
            let unasked = job.refusal.unwrap_or(JobError::Unavailable);
            let error = if job.flying == 0 { unasked } else { JobError::TimedOut };
            self.conclude(id, Err(error));
        }
        while let Some(question) = due(&mut self.question_deadlines, now) {
            self.overdue(question, now);
        }
        while let Some(id) = due(&mut self.hedges, now) {
            self.hedge(id, now);
        }
        if now >= self.next_round {
            self.next_round = now + micros(ROUND);
            self.round(now);
        }
        let fronts = [
            self.deadlines.front().map(|(due, _)| *due),
            self.question_deadlines.front().map(|(due, _)| *due),
            self.hedges.front().map(|(due, _)| *due),
        ];
        fronts.into_iter().flatten().fold(self.next_round, u64::min)
    }

    fn overdue(&mut self, question: Question, now: u64) {
        let channel = &mut self.channels[question.channel];
        if channel.epoch != question.epoch {
            return;
        }
        let Some(sent) = channel.sent.get_mut(&question.id) else { return };
        sent.overdue = true;
        let (server, waited) = (channel.server, now - sent.at);
        if let Purpose::Job(_) = sent.purpose {
            self.report.answered(server, "unanswered");
        }
        if sent.purpose == Purpose::Greeting {
            return;
        }
        let change = self.servers.failed(server, waited, now);
        self.changed(server, change);
        // Handshakes avoid it from here on. Whether it is there at all is asked without one.
        let asks = |sent: &Sent| sent.purpose == Purpose::Ping && !sent.overdue;
        let is_asked = self.channels[question.channel].sent.values().any(asks);
        if !is_asked && !self.servers.is_ejected(server) && self.channels[question.channel].has_room() {
            self.ping(question.channel, Purpose::Ping, now);
        }
    }

    /// Asks another server as well.
    fn hedge(&mut self, id: JobId, now: u64) {
        let Some(job) = self.job(id) else { return };
        if job.flying != 1 || job.attempts >= ATTEMPTS_MAX {
            return;
        }
        let (excluded, ski) = (job.tried | job.refused, job.key.ski);
        let excluded = excluded | self.known_refusals(ski, now);
        let Some(server) = self.choose(true, excluded) else { return };
        if self.hedge_budget.spend() {
            self.report.hedged();
            self.ask(id, server, now);
        }
    }

    /// Looks after connections, and after what is left of jobs that are over.
    fn round(&mut self, now: u64) {
        for at in 0..self.channels.len() {
            let channel = &mut self.channels[at];
            match channel.state {
                State::Down => {}
                State::Opening { due } if now >= due => self.condemn(at, "it did not come up in time"),
                State::Opening { .. } => {}
                State::Up if now - channel.last_sent >= channel.ping_after => self.ping(at, Purpose::Ping, now),
                State::Up => self.forget_unanswered(at, now),
            }
        }
        for server in 0..self.settings.servers {
            self.leave_next(server);
            let timeout = self.settings.timeout;
            if self.servers.trial_due(server, now, timeout)
                && let Some(at) = self.channel_with_room(server)
            {
                self.ping(at, Purpose::Trial, now);
            }
        }
        self.refusals.retain(|_, until| now < *until);
        self.tidy();
        // A job whose only connection went while others had no room. Those that are over are in nobody's way meanwhile.
        self.send_unsent(now);
        if !self.unsent.is_empty() {
            let slots = &self.slots;
            self.unsent.retain(|id| lives(slots, *id));
            self.report.unsent(self.unsent.len());
        }
    }

    fn forget_unanswered(&mut self, at: usize, now: u64) {
        let channel = &mut self.channels[at];
        let server = channel.server;
        let silence = micros(SILENCE_MAX).max(self.settings.timeout);
        let is_old = |sent: &Sent| now - sent.at >= silence;
        let Some(oldest) = channel.sent.values().filter(|sent| is_old(sent)).map(|sent| sent.at).min() else { return };
        if channel.last_heard < oldest {
            return self.condemn(at, "it has gone silent");
        }
        let before = channel.sent.len();
        let mut over = Vec::new();
        channel.sent.retain(|_, sent| {
            if let (true, Purpose::Job(id)) = (is_old(sent), sent.purpose) {
                over.push(id);
            }
            !is_old(sent)
        });
        for _ in channel.sent.len()..before {
            self.count_done(server);
        }
        for id in over {
            self.attempt_over(id, now);
        }
    }

    /// Connections of a server that lead to such addresses are to end, one after the other.
    pub fn leave(&mut self, server: usize, is_old: impl Fn(SocketAddr) -> bool) {
        for channel in self.channels.iter_mut().filter(|channel| channel.server == server) {
            let is_old = channel.address.is_some_and(&is_old);
            channel.leave = if is_old { Leave::InTurn } else { Leave::No };
        }
    }

    /// One at a time, and only while all others are up: should nobody be at the new address, those that are left go on.
    fn leave_next(&mut self, server: usize) {
        let first = server * self.settings.connections;
        let mut all = first..first + self.settings.connections;
        if let Some(at) = all.clone().find(|at| self.channels[*at].leave == Leave::Now) {
            if self.channels[at].sent.is_empty() {
                self.condemn(at, "the server's name leads elsewhere now");
            }
        } else if all.clone().all(|at| self.channels[at].state == State::Up)
            && let Some(at) = all.find(|at| self.channels[*at].leave == Leave::InTurn)
        {
            self.channels[at].leave = Leave::Now;
        }
    }

    fn condemn(&mut self, at: usize, why: &'static str) {
        self.channels[at].condemned = Some(why);
        self.wake.extend(self.channels[at].driver());
    }

    /// Removes ids of jobs that are over, which stay at the latest until they are due. Clients that come and go faster
    /// than that are not to fill the memory with them.
    fn tidy(&mut self) {
        let live = self.slots.len() - self.free.len();
        let limit = 2 * live + 1024;
        let slots = &self.slots;
        let lives = |id: &JobId| lives(slots, *id);
        if self.deadlines.len() > limit {
            self.deadlines.retain(|(_, id)| lives(id));
        }
        if self.hedges.len() > limit {
            self.hedges.retain(|(_, id)| lives(id));
        }
        if self.unsent.len() > limit {
            self.unsent.retain(lives);
        }
        // The limit of `question_deadlines` adds what may be outstanding: questions answered within one timeout.
        let channels = &self.channels;
        if self.question_deadlines.len() > limit + channels.len() * Channel::OUTSTANDING_MAX {
            self.question_deadlines.retain(|(_, question)| {
                let channel = &channels[question.channel];
                channel.epoch == question.epoch && channel.sent.contains_key(&question.id)
            });
        }
    }

    // Functions for the drivers.

    pub fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wake)
    }

    pub fn channel(&mut self, at: usize) -> &mut Channel {
        &mut self.channels[at]
    }

    pub fn chance(&mut self) -> f64 {
        self.random.f64()
    }

    pub fn is_up(&self, at: usize) -> bool {
        self.channels[at].state == State::Up
    }
}

enum Reply {
    Result(Vec<u8>),
    Pong,
    Error(Option<ErrorCode>),
    Nonsense,
}

enum Verdict {
    Signed(Vec<u8>),
    Refused(Option<ErrorCode>),
    /// Not a signature by this key.
    Wrong,
}

impl Job {
    /// `sampled`: it is verified whatever its key, unless nothing is.
    fn judge(&self, reply: Reply, verify: Verify, sampled: bool) -> Verdict {
        let signature = match reply {
            Reply::Error(code) => return Verdict::Refused(code),
            Reply::Pong | Reply::Nonsense => return Verdict::Wrong,
            Reply::Result(signature) => signature,
        };
        let verified = match verify {
            Verify::All => true,
            Verify::Rsa => sampled || matches!(self.key.kind, KeyKind::Rsa { .. }),
            Verify::Nothing => false,
        };
        let good =
            self.key.has_form(&signature) && (!verified || self.key.verifies(self.scheme, &self.input, &signature));
        if good { Verdict::Signed(signature) } else { Verdict::Wrong }
    }
}

fn lives(slots: &[Slot], id: JobId) -> bool {
    let slot = &slots[id.slot as usize];
    slot.generation == id.generation && matches!(slot.content, Content::Open(_))
}

fn due<T>(waits: &mut VecDeque<(u64, T)>, now: u64) -> Option<T> {
    let is_due = waits.front().is_some_and(|(due, _)| *due <= now);
    if is_due { waits.pop_front().map(|(_, what)| what) } else { None }
}

const fn micros(duration: Duration) -> u64 {
    duration.as_micros() as u64
}

#[cfg(test)]
mod tests;

//! The coordinator's side of one agent: a thread that speaks with it from the handshake to its figures.

use super::channel::Channel;
use super::clock::{Clock, Offset, RoundTrip};
use super::identity::{CoordinatorIdentity, unexpected};
use super::message::{Job, Message, Results};
use super::rules::bare_host;
use crate::failure::{Failure, Outcome, While};
use crate::interrupt::Interrupt;
use crate::load::Until;
use crate::report::Pace;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

const CONNECT_MAX: Duration = Duration::from_secs(5);
/// An agent resolves the target and makes its connections' state in this time.
const READY_MAX: Duration = Duration::from_secs(15);
/// Exchanges to find an agent's clock with; the quickest counts.
const CLOCK_EXCHANGES: usize = 16;
/// From the end of a load to its figures.
const RESULTS_MAX: Duration = Duration::from_secs(15);
const CLOCK_ANSWER_MAX: Duration = Duration::from_secs(2);
const TURN: Duration = Duration::from_millis(20);

/// Event of an agent, from its thread.
pub enum AgentEvent {
    /// Ready to start, with its clock known.
    Prepared(Offset),
    Progress {
        done: u64,
        errors: u64,
    },
    /// The load has ended.
    Finished,
    Results(Box<Results>),
    Lost(LossKind, String),
}

/// Kind of the loss of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossKind {
    /// No connection, or no trust.
    Unusable,
    /// The agent refused the job.
    Refused,
    /// The connection ended.
    Died,
    /// The connection is open, and nothing is heard on it.
    Stalled,
    /// The agent said that it could not do the job.
    Failed,
}

/// When to start, on the coordinator's clock.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    pub warmup_at: u64,
    pub measure_at: u64,
}

/// All that the thread of one agent has.
pub struct AgentLink {
    pub index: usize,
    pub address: String,
    pub job: Job,
    pub identity: CoordinatorIdentity,
    pub clock: Clock,
    pub events: Sender<(usize, AgentEvent)>,
    pub start: Receiver<Start>,
    /// The end of everything, raised by the owner.
    pub stop: Interrupt,
    /// Silence that is taken for a stall.
    pub silence_max: Duration,
}

/// Why there are no figures.
type Lost = (LossKind, String);

impl AgentLink {
    pub fn run(self) {
        let events = match self.converse() {
            Ok(results) => AgentEvent::Results(results),
            Err((how, why)) => AgentEvent::Lost(how, why),
        };
        self.send_event(events);
    }

    fn send_event(&self, events: AgentEvent) {
        // The receiver is gone only when everything ends.
        let _ = self.events.send((self.index, events));
    }

    fn converse(&self) -> Result<Box<Results>, Lost> {
        let unusable = |failure: Failure| (LossKind::Unusable, failure.to_string());
        let mut channel = self.connect().map_err(unusable)?;
        channel.send(&Message::Job(Box::new(self.job.clone()))).map_err(unusable)?;
        self.wait_until_ready(&mut channel)?;
        let offset = self.find_clock(&mut channel).map_err(unusable)?;
        self.send_event(AgentEvent::Prepared(offset));
        self.watch_load(&mut channel, offset)
    }

    fn connect(&self) -> Outcome<Channel> {
        let address = self.address.to_socket_addrs().when("looking it up")?.next();
        let address = address.ok_or_else(|| Failure::new("no address"))?;
        let socket = TcpStream::connect_timeout(&address, CONNECT_MAX).when("connecting")?;
        let host = self.address.rsplit_once(':').map_or(self.address.as_str(), |(host, _)| host);
        self.identity.connect(socket, bare_host(host))
    }

    fn wait_until_ready(&self, channel: &mut Channel) -> Result<(), Lost> {
        let until = Instant::now() + READY_MAX;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match channel.receive(left).map_err(|failure| (LossKind::Unusable, failure.to_string()))? {
                Message::Ready => return Ok(()),
                Message::Alive => {}
                Message::Refused { why } => return Err((LossKind::Refused, why)),
                Message::Failed { why } => return Err((LossKind::Failed, why)),
                other => return Err((LossKind::Failed, unexpected(&other).to_string())),
            }
        }
    }

    fn find_clock(&self, channel: &mut Channel) -> Outcome<Offset> {
        let mut exchanges = Vec::new();
        for _ in 0..CLOCK_EXCHANGES {
            let sent = self.clock.now();
            channel.send(&Message::Clock)?;
            let answer = loop {
                match channel.receive(CLOCK_ANSWER_MAX)? {
                    Message::Alive => {}
                    answer => break answer,
                }
            };
            let received = self.clock.now();
            let Message::ClockIs { received: agent_received, sent: agent_sent } = answer else {
                return Err(unexpected(&answer));
            };
            exchanges.push(RoundTrip { sent, agent_received, agent_sent, received });
        }
        Offset::of(&exchanges).ok_or_else(|| Failure::new("no clock"))
    }

    /// From here to the figures. Both sides say once a second that they are there.
    fn watch_load(&self, channel: &mut Channel, offset: Offset) -> Result<Box<Results>, Lost> {
        let died = |failure: Failure| (LossKind::Died, failure.to_string());
        let mut pace = Pace::started();
        let mut heard = Instant::now();
        let mut deadline = None;
        loop {
            if self.stop.is_raised() {
                return Err((LossKind::Failed, "stopped".to_owned()));
            }
            if let Ok(start) = self.start.try_recv() {
                let (warmup_at, measure_at) = (offset.to_agent(start.warmup_at), offset.to_agent(start.measure_at));
                channel.send(&Message::Start { warmup_at, measure_at }).map_err(died)?;
                deadline = self.deadline(start);
            }
            if deadline.is_some_and(|deadline| Instant::now() > deadline) {
                return Err((LossKind::Stalled, "it should have ended long ago".to_owned()));
            }
            if pace.is_due(Instant::now()) {
                channel.send(&Message::Alive).map_err(died)?;
            }
            match channel.poll(TURN).map_err(died)? {
                None if heard.elapsed() > self.silence_max => {
                    let seconds = self.silence_max.as_secs_f64();
                    return Err((LossKind::Stalled, format!("nothing was heard for {seconds} s")));
                }
                None => continue,
                Some(Message::Alive) => {}
                Some(Message::Progress { done, errors }) => self.send_event(AgentEvent::Progress { done, errors }),
                Some(Message::Finished) => self.send_event(AgentEvent::Finished),
                Some(Message::Results(results)) => return Ok(results),
                Some(Message::Failed { why }) => return Err((LossKind::Failed, why)),
                Some(other) => return Err((LossKind::Failed, unexpected(&other).to_string())),
            }
            heard = Instant::now();
        }
    }

    /// When the figures are overdue; how long a count takes nobody knows, and the agent has a limit for it.
    fn deadline(&self, start: Start) -> Option<Instant> {
        match self.job.until {
            Until::Elapsed(duration) => Some(self.clock.instant(start.measure_at)? + duration + RESULTS_MAX),
            Until::Finished(_) => None,
        }
    }
}

//! One connection to a key server as far as the protocol goes: frames out, replies in, told apart by their IDs.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::task::Waker;

use propylon_crypto::Ski;
use propylon_crypto::keyless::{Decoder, ErrorCode, Malformed, Message, TooLong, opcode};

/// A job's place, and how often that place had been taken before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobId {
    pub slot: u32,
    pub generation: u32,
}

/// Purpose of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Job(JobId),
    /// The first question on a connection: in TLS 1.3 its verdict on our certificate comes after the handshake.
    Greeting,
    /// So that the server does not close an idle connection, and to know its latency.
    Ping,
    /// Whether an ejected server answers again.
    Trial,
}

/// A question on its way. Times are microseconds of the core's clock.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub purpose: Purpose,
    pub at: u64,
    /// Whether its answer was due before now, and has been counted as missing.
    pub overdue: bool,
}

/// Content of a reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    Result(&'a [u8]),
    Pong,
    /// An error of the server; `None` for a byte that no error has.
    Error(Option<ErrorCode>),
    /// A reply that is none.
    Nonsense,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is no connection.
    Down,
    /// The connection is being made, and has to be up at `due`.
    Opening { due: u64 },
    /// The server has answered the greeting.
    Up,
}

/// Whether the connection is to end because its server's name leads elsewhere by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    No,
    /// When others of its server are up.
    InTurn,
    /// When what is on its way has been answered; it is given nothing more.
    Now,
}

pub struct Channel {
    pub server: usize,
    pub state: State,
    /// Rises with every connection, so that what is remembered of one is not taken for another's.
    pub epoch: u32,
    /// Address that the connection leads to.
    pub address: Option<SocketAddr>,
    pub leave: Leave,
    /// Why the connection has to end, if it has to.
    pub condemned: Option<&'static str>,
    /// Nobody has signed for the identity that its server is shown.
    pub unsigned: bool,
    pub sent: HashMap<u32, Sent>,
    next_id: u32,
    outgoing: Vec<u8>,
    decoder: Decoder,
    pub last_sent: u64,
    pub last_heard: u64,
    /// Idle for so long it sends a ping.
    pub ping_after: u64,
    /// Task that moves the connection's bytes.
    driver: Option<Waker>,
}

impl Channel {
    /// The stock server takes so many at once, and then stops reading.
    pub const OUTSTANDING_MAX: usize = 1024;

    pub fn new(server: usize) -> Channel {
        Channel {
            server,
            state: State::Down,
            epoch: 0,
            address: None,
            leave: Leave::No,
            condemned: None,
            unsigned: false,
            sent: HashMap::new(),
            next_id: 0,
            outgoing: Vec::new(),
            decoder: Decoder::new(),
            last_sent: 0,
            last_heard: 0,
            ping_after: 0,
            driver: None,
        }
    }

    /// Begins a new connection. Its questions have other numbers than those of the one before: a socket that stays
    /// brings late answers.
    pub fn begin(&mut self, now: u64, due: u64, ping_after: u64) {
        let (driver, next_id) = (self.driver.take(), self.next_id);
        *self = Channel {
            state: State::Opening { due },
            epoch: self.epoch.wrapping_add(1),
            last_sent: now,
            last_heard: now,
            ping_after,
            driver,
            next_id,
            ..Channel::new(self.server)
        };
    }

    /// The connection is gone; returns what was on its way.
    pub fn end(&mut self) -> Vec<Sent> {
        self.state = State::Down;
        self.outgoing = Vec::new();
        self.decoder = Decoder::new();
        self.sent.drain().map(|(_, sent)| sent).collect()
    }

    pub fn has_room(&self) -> bool {
        self.state == State::Up
            && self.condemned.is_none()
            && self.leave != Leave::Now
            && self.sent.len() < Self::OUTSTANDING_MAX
    }

    /// Puts a question among what is to be sent, under an ID of its own.
    pub fn ask(
        &mut self,
        purpose: Purpose,
        opcode: u8,
        payload: &[u8],
        ski: Option<Ski>,
        now: u64,
    ) -> Result<u32, TooLong> {
        while self.sent.contains_key(&self.next_id) {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = self.next_id;
        let message = Message { id, opcode: Some(opcode), payload, ski, ..Message::default() };
        message.encode(&mut self.outgoing)?;
        self.next_id = id.wrapping_add(1);
        self.sent.insert(id, Sent { purpose, at: now, overdue: false });
        self.last_sent = now;
        Ok(id)
    }

    /// Takes in bytes from the server, and shows each reply to a question that waits for one. Other replies, late and
    /// twofold ones, are dropped: their number is returned.
    pub fn receive(&mut self, bytes: &[u8], now: u64, mut see: impl FnMut(Sent, Answer<'_>)) -> Result<u64, Malformed> {
        self.last_heard = now;
        self.decoder.extend(bytes);
        let mut strays = 0;
        while let Some(message) = self.decoder.next_message()? {
            match self.sent.remove(&message.id) {
                Some(sent) => see(sent, answer(&message)),
                None => strays += 1,
            }
        }
        self.decoder.release();
        Ok(strays)
    }

    /// Moves what is to be sent behind `into`, or has the driver woken when there is something.
    pub fn take_outgoing(&mut self, into: &mut Vec<u8>) {
        into.append(&mut self.outgoing);
    }

    /// Returns the driver's last waker, to be dropped where nothing is borrowed.
    pub fn drive_with(&mut self, waker: &Waker) -> Option<Waker> {
        let known = self.driver.as_ref().is_some_and(|known| known.will_wake(waker));
        if known { None } else { self.driver.replace(waker.clone()) }
    }

    pub fn driver(&self) -> Option<Waker> {
        self.driver.clone()
    }
}

fn answer<'a>(message: &Message<'a>) -> Answer<'a> {
    match (message.opcode, message.payload) {
        (Some(opcode::PONG), _) => Answer::Pong,
        (Some(opcode::ERROR), [code]) => Answer::Error(ErrorCode::from_byte(*code)),
        (Some(opcode::SUCCESS), result) if !result.is_empty() => Answer::Result(result),
        _ => Answer::Nonsense,
    }
}

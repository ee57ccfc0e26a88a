//! Limits on how long either direction of a transfer may stand still.

use std::time::Duration;

use propylon_http::fault::Fault;
use propylon_observe::telemetry::Wait;
use propylon_policy::min_rate_timeout::MinRateTimeout;

use super::stop::{Stop, server_fault};
use crate::core::Core;
use crate::upstream::terms::Special;

/// The side that is being waited for, and since when.
#[derive(Clone, Copy)]
struct Waiting {
    side: Side,
    /// Milliseconds on the core's clock.
    since: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
    /// Neither: a body that is slowed down waits for its time, which no limit is for.
    Pace,
}

impl Waiting {
    /// The moment at which a limit is met; an error if that has been.
    fn met(self, now: u64, (limit, wait, stop): (u64, Wait, Stop)) -> Result<u64, (Wait, Stop)> {
        let met = self.since.saturating_add(limit);
        if now >= met { Err((wait, stop)) } else { Ok(met) }
    }
}

/// The wait of one direction, and the client's time for it.
pub struct DirectionLimit {
    waiting: Option<Waiting>,
    min_rate: MinRateTimeout,
}

/// Limits of both directions, in milliseconds those of the server.
pub struct Limits {
    pub upload: DirectionLimit,
    pub download: DirectionLimit,
    pub first_byte: u64,
    pub body: u64,
    /// Moment at which the attempt's time as a whole is over.
    pub attempt_due: u64,
    pub tunnel_idle: u64,
    /// Other limits than these: of a tunnel, of the whole request, or of the wait before a second attempt.
    pub special: Special,
}

/// How far a transfer has come, as far as limits depend on it.
#[derive(Clone, Copy)]
pub struct Phase {
    /// The response's head has come.
    pub has_head: bool,
    /// The request has been sent whole.
    pub sent: bool,
}

impl DirectionLimit {
    pub fn new(min_rate: MinRateTimeout) -> DirectionLimit {
        DirectionLimit { waiting: None, min_rate }
    }

    /// The same client's, with no wait begun.
    pub fn anew(&self) -> DirectionLimit {
        DirectionLimit::new(self.min_rate)
    }

    pub fn wait_for(&mut self, side: Side, core: &Core) {
        match self.waiting {
            Some(known) if known.side == side => {}
            _ => self.waiting = Some(Waiting { side, since: core.timers.now() }),
        }
    }

    pub fn waits_for(&self, side: Side) -> bool {
        self.waiting.is_some_and(|waiting| waiting.side == side)
    }

    /// Begins a wait for the server as of then, in milliseconds.
    pub fn wait_for_server_since(&mut self, since: u64) {
        self.waiting = Some(Waiting { side: Side::Server, since });
    }

    /// Ends the wait.
    pub fn clear(&mut self) {
        self.waiting = None;
    }

    /// Begins the wait anew if it is for the server, who has got something to answer.
    pub fn restart_server_wait(&mut self, core: &Core) {
        if let Some(waiting) = self.waiting.as_mut().filter(|waiting| waiting.side == Side::Server) {
            waiting.since = core.timers.now();
        }
    }

    /// Ends the wait, for which a client pays with the bytes that it has moved.
    pub fn progressed(&mut self, bytes: usize, core: &Core) {
        if let Some(known) = self.waiting.take()
            && known.side == Side::Client
        {
            self.min_rate.waited(Duration::from_millis(core.timers.now() - known.since));
            self.min_rate.moved(bytes);
        }
    }

    /// The moment at which the client's time is over, in milliseconds; `None` if it is.
    pub fn next_of_client(&self, now: u64) -> Option<u64> {
        let waiting = self.waiting.filter(|waiting| waiting.side == Side::Client);
        let due = waiting.map_or(u64::MAX, |waiting| waiting.since.saturating_add(self.remaining()));
        (now < due).then_some(due)
    }

    fn remaining(&self) -> u64 {
        self.min_rate.remaining().as_millis() as u64
    }

    /// Begins the wait anew if it is for the client.
    pub fn excuse_client(&mut self, now: u64) {
        if let Some(waiting) = self.waiting.as_mut().filter(|waiting| waiting.side == Side::Client) {
            waiting.since = now;
        }
    }

    fn since(&self) -> u64 {
        self.waiting.map_or(0, |waiting| waiting.since)
    }
}

impl Limits {
    /// Gives the client the time of a tunnel for either direction.
    pub fn begin_tunnel(&mut self) {
        let idle = MinRateTimeout::new(Duration::from_millis(self.tunnel_idle), 0);
        (self.upload.min_rate, self.download.min_rate) = (idle, idle);
        self.special = Special::Timed;
    }

    /// Begins waits for the client anew: it is not heard for now.
    pub fn excuse_client(&mut self, now: u64) {
        self.upload.excuse_client(now);
        self.download.excuse_client(now);
    }

    /// As [`Limits::next`], of a tunnel.
    pub fn next_of_tunnel(&self, now: u64) -> Result<u64, (Wait, Stop)> {
        // Either direction may be quiet for as long as the other moves.
        let since = self.upload.since().max(self.download.since());
        let due = if since == 0 { now } else { since } + self.tunnel_idle;
        if now >= due { Err((Wait::TunnelIdle, Stop::Client(Fault::TunnelIdle))) } else { Ok(due) }
    }

    /// The moment at which the nearest limit is met, in milliseconds; or the one that is met.
    pub fn next(&self, now: u64, phase: Phase) -> Result<u64, (Wait, Stop)> {
        let mut due = self.attempt_due;
        if now >= due {
            return Err(match phase.has_head {
                false => (Wait::FirstByte, server_fault(Fault::FirstByteTimeout)),
                true => (Wait::ServerBody, server_fault(Fault::BodyTimeout)),
            });
        }
        if let Some(waiting) = self.upload.waiting {
            due = due.min(waiting.met(now, self.of_upload(waiting.side))?);
        }
        if let Some(waiting) = self.download.waiting {
            due = due.min(waiting.met(now, self.of_download(waiting.side, phase))?);
        }
        Ok(due)
    }

    fn of_upload(&self, side: Side) -> (u64, Wait, Stop) {
        match side {
            Side::Client => (self.upload.remaining(), Wait::RequestBody, Stop::Client(Fault::ClientBodyTimeout)),
            Side::Server => (self.body, Wait::ServerBody, server_fault(Fault::BodyTimeout)),
            Side::Pace => self.of_pace(),
        }
    }

    fn of_download(&self, side: Side, phase: Phase) -> (u64, Wait, Stop) {
        match side {
            Side::Client => (self.download.remaining(), Wait::ResponseBody, Stop::Client(Fault::ClientReadTimeout)),
            // While the request is still on its way its own limits apply.
            Side::Server if !phase.has_head => {
                let limit = if phase.sent { self.first_byte } else { u64::MAX };
                (limit, Wait::FirstByte, server_fault(Fault::FirstByteTimeout))
            }
            // The server may be waiting for the rest of the request, when the client is known to be waited for.
            Side::Server if self.upload.waits_for(Side::Client) => {
                (self.body, Wait::ServerBody, server_fault(Fault::IdleBothWays))
            }
            Side::Server => (self.body, Wait::ServerBody, server_fault(Fault::BodyTimeout)),
            Side::Pace => self.of_pace(),
        }
    }

    /// A limit that is never met.
    fn of_pace(&self) -> (u64, Wait, Stop) {
        (u64::MAX, Wait::ServerBody, server_fault(Fault::BodyTimeout))
    }
}

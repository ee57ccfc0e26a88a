//! A client group: many clients, each with a connection of its own, all with the same slow pattern of requests.
//!
//! The module `load` asks how much work a server can do, a client group how many clients it can hold. One thread, one
//! epoll, one heap of timers. `http2` is the like over HTTP/2, `clients` either of them, `phase` has the results of a
//! load phase, `processes` spreads a group over several processes.

pub mod clients;
pub mod http2;
pub mod phase;
pub mod processes;

use crate::cpu;
use crate::failure::{Outcome, While};
use crate::interrupt::{Interrupt, LOOK_INTERVAL};
use crate::link::{Broken, Link, Request};
use crate::poll::{Poll, Ready};
use crate::stats::{ErrorKind, LoadStats};
use crate::target::Target;
use phase::{ClientCounts, LoadPhase};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

/// Taken from a socket at once: answers to a group are small.
const SCRATCH_BYTES: usize = 64 * 1024;
/// Between two pieces of a dribbled request. A second keeps thousands of dribbling clients cheap for the load.
const DRIBBLE_INTERVAL: Duration = Duration::from_secs(1);

/// The use that a client makes of its connection.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum RequestPattern {
    /// Connects (over TLS: shakes hands), and says nothing.
    Silent,
    /// The first byte of a request, and no more.
    OneByte,
    /// One request, then nothing.
    Once,
    /// A request, and the next so long after it. A client that failed comes back as late.
    Every(Duration),
    /// A request in pieces of so many bytes, one a second; after its answer the next. A client that was cut off comes
    /// back a second later.
    Dribble { bytes_per_second: usize },
}

/// The behaviour that all clients of a group have in common.
#[derive(Clone, Serialize, Deserialize)]
pub struct ClientBehaviour {
    pub pattern: RequestPattern,
    pub request: Request,
    /// For one request, its connection and handshake included. A dribbled request is as slow as it is.
    pub timeout: Duration,
    /// Clients that connect at once: those that have had no first answer yet.
    pub opening_max: usize,
    /// New clients per second at most.
    pub arrivals_max: Option<f64>,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// Without a connection; a turn may bring it back.
    Disconnected,
    Connecting(Instant),
    /// Connected; the handshake is all that it wants for now.
    Handshaking(Instant),
    /// A request is in progress since then.
    Requesting(Instant),
    /// Connected, nothing in progress.
    Idle,
}

struct Client {
    link: Option<Link>,
    state: State,
    /// When it acts next. A turn in the heap that differs from this is stale.
    timer: Option<Instant>,
    /// The connection has had what the pattern begins with: an answer, a handshake, a first piece.
    served: bool,
    /// Whether the client has been served, or has failed, once.
    tried: bool,
}

/// Clients, whose connections live from one phase to the next.
pub struct ClientGroup<'t> {
    target: &'t Target,
    behaviour: ClientBehaviour,
    interrupt: Interrupt,
    poll: Poll,
    clients: Vec<Client>,
    /// Clients from here on have not come yet.
    next_client: usize,
    next_arrival: Instant,
    timers: BinaryHeap<Reverse<(Instant, usize)>>,
    opening: usize,
    tried: usize,
    answers: LoadStats,
    connects: LoadStats,
    closed_idle: u64,
    chance: fastrand::Rng,
    scratch: Box<[u8]>,
}

impl<'t> ClientGroup<'t> {
    /// `chance` staggers the timers; one seed, one group.
    pub fn new(target: &'t Target, behaviour: ClientBehaviour, seed: u64, interrupt: &Interrupt) -> Outcome<Self> {
        Ok(Self {
            target,
            behaviour,
            interrupt: interrupt.clone(),
            poll: Poll::new().when("epoll")?,
            clients: Vec::new(),
            next_client: 0,
            next_arrival: Instant::now(),
            timers: BinaryHeap::new(),
            opening: 0,
            tried: 0,
            answers: LoadStats::new(),
            connects: LoadStats::new(),
            closed_idle: 0,
            chance: fastrand::Rng::with_seed(seed),
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
        })
    }

    /// Lets clients come until there are `total`, and waits until each was served or has failed, or the timeout has
    /// passed.
    pub fn grow(&mut self, total: usize, timeout: Duration, report: impl FnMut(ClientCounts)) -> Outcome<LoadPhase> {
        crate::machine::require_open_files(total)?;
        let come = || Client { link: None, state: State::Disconnected, timer: None, served: false, tried: false };
        self.clients.resize_with(total.max(self.clients.len()), come);
        self.run(Instant::now() + timeout, true, report)
    }

    /// Lets time pass.
    pub fn hold(&mut self, duration: Duration) -> Outcome<LoadPhase> {
        self.run(Instant::now() + duration, false, |_| {})
    }

    pub fn counts(&self) -> ClientCounts {
        let is_open = |client: &&Client| client.link.is_some() && !matches!(client.state, State::Connecting(_));
        let open = self.clients.iter().filter(is_open);
        ClientCounts {
            wanted: self.clients.len(),
            open: open.clone().count(),
            served: open.filter(|client| client.served).count(),
        }
    }

    fn run(&mut self, until: Instant, only_growth: bool, mut report: impl FnMut(ClientCounts)) -> Outcome<LoadPhase> {
        let begin = Instant::now();
        let cpu_before = cpu::this_thread();
        (self.answers, self.connects, self.closed_idle) = (LoadStats::new(), LoadStats::new(), 0);
        self.next_arrival = begin;
        let mut look_due = begin + LOOK_INTERVAL;
        loop {
            let now = Instant::now();
            if now >= until || (only_growth && self.tried == self.clients.len()) {
                break;
            }
            self.admit(now);
            self.run_timers(now);
            let mut next_timer = self.timers.peek().map_or(until, |Reverse((due, _))| *due);
            if self.next_client < self.clients.len() && self.next_arrival > now {
                next_timer = next_timer.min(self.next_arrival);
            }
            // Rounded up, as the poll counts whole milliseconds and would spin over the last one.
            let wait = next_timer.min(until).saturating_duration_since(now) + Duration::from_millis(1);
            let count = self.poll.wait(wait.min(LOOK_INTERVAL)).when("epoll")?;
            for index in 0..count {
                let ready = self.poll.event(index);
                self.handle_event(ready);
            }
            if now >= look_due {
                look_due = now + LOOK_INTERVAL;
                self.interrupt.check()?;
                self.drop_overdue(now);
                report(self.counts());
            }
        }
        let (elapsed, cpu) = (begin.elapsed(), cpu::this_thread() - cpu_before);
        let closed_idle = self.closed_idle;
        Ok(LoadPhase { closed_idle, ..LoadPhase::new(&self.answers, &self.connects, self.counts(), elapsed, cpu) })
    }

    fn admit(&mut self, now: Instant) {
        while self.next_client < self.clients.len() && self.opening < self.behaviour.opening_max {
            if let Some(rate) = self.behaviour.arrivals_max {
                if self.next_arrival > now {
                    return;
                }
                self.next_arrival += Duration::from_secs_f64(1.0 / rate);
            }
            self.next_client += 1;
            self.arrive(self.next_client - 1, now);
        }
    }

    fn run_timers(&mut self, now: Instant) {
        while let Some(&Reverse((due, index))) = self.timers.peek() {
            if due > now {
                return;
            }
            self.timers.pop();
            if self.clients[index].timer != Some(due) {
                continue;
            }
            self.clients[index].timer = None;
            match (self.clients[index].state, self.behaviour.pattern) {
                (State::Disconnected, _) => self.arrive(index, now),
                (State::Idle, _) => self.ask(index, due),
                (State::Requesting(_), RequestPattern::Dribble { bytes_per_second }) => {
                    self.dribble(index, bytes_per_second, now)
                }
                _ => {}
            }
        }
    }

    fn arrive(&mut self, index: usize, now: Instant) {
        self.opening += 1;
        let client = &mut self.clients[index];
        client.state = State::Connecting(now);
        let opened = Link::open(self.target).and_then(|link| {
            let link = client.link.insert(link);
            self.poll.add(&link.socket, index as u64).map_err(|error| Broken::new(ErrorKind::Connect, error))
        });
        if let Err(broken) = opened {
            self.fail(index, broken);
        }
    }

    /// News of one socket.
    fn handle_event(&mut self, ready: Ready) {
        let index = ready.token as usize;
        if let Err(broken) = self.try_attend(index, ready.closing) {
            self.fail(index, broken);
        }
    }

    fn try_attend(&mut self, index: usize, closing: bool) -> Result<(), Broken> {
        let client = &mut self.clients[index];
        // An event of a connection that was dropped earlier in this turn.
        let Some(link) = &mut client.link else { return Ok(()) };
        if let State::Connecting(since) = client.state {
            if !link.check_connected()? {
                return Ok(());
            }
            self.connects.done += 1;
            self.connects.record_latency(since.elapsed());
            self.begin(index, since)?;
        }
        let client = &mut self.clients[index];
        let Some(link) = &mut client.link else { return Ok(()) };
        if link.advance(&self.behaviour.request, &mut self.scratch, closing)? {
            return self.take_leave(index);
        }
        match client.state {
            State::Handshaking(since) if link.is_established() => self.note_answer(index, since),
            State::Requesting(since) if link.response.is_complete() => {
                // An answer before all of the request was sent leaves a connection that is of no more use.
                let closes = link.response.closes() || !link.is_request_sent(&self.behaviour.request);
                self.take_answer(index, since);
                if closes {
                    self.part(index);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The first thing on a new connection.
    fn begin(&mut self, index: usize, since: Instant) -> Result<(), Broken> {
        let client = &mut self.clients[index];
        let Some(link) = &mut client.link else { return Ok(()) };
        let request = &self.behaviour.request;
        match self.behaviour.pattern {
            RequestPattern::Silent | RequestPattern::OneByte => {
                client.state = State::Handshaking(since);
                link.begin(request);
                link.allow(request, usize::from(self.behaviour.pattern == RequestPattern::OneByte))?;
            }
            RequestPattern::Once | RequestPattern::Every(_) => {
                client.state = State::Requesting(since);
                link.ask(request)?;
            }
            RequestPattern::Dribble { bytes_per_second } => {
                client.state = State::Requesting(since);
                link.begin(request);
                link.allow(request, bytes_per_second)?;
                self.note_served(index);
                self.set_timer(index, Instant::now() + DRIBBLE_INTERVAL);
            }
        }
        Ok(())
    }

    /// The next request on a connection that had one.
    fn ask(&mut self, index: usize, due: Instant) {
        let client = &mut self.clients[index];
        let Some(link) = &mut client.link else { return };
        client.state = State::Requesting(due);
        if let RequestPattern::Dribble { bytes_per_second } = self.behaviour.pattern {
            link.begin(&self.behaviour.request);
            return self.dribble(index, bytes_per_second, due);
        }
        if let Err(broken) = link.ask(&self.behaviour.request) {
            self.fail(index, broken);
        }
    }

    fn dribble(&mut self, index: usize, count: usize, now: Instant) {
        let Some(link) = &mut self.clients[index].link else { return };
        match link.allow(&self.behaviour.request, count) {
            Ok(()) => self.set_timer(index, now + DRIBBLE_INTERVAL),
            Err(broken) => self.fail(index, broken),
        }
    }

    /// The server closed: as announced, between requests as it may, or too early.
    fn take_leave(&mut self, index: usize) -> Result<(), Broken> {
        let client = &mut self.clients[index];
        let Some(link) = &mut client.link else { return Ok(()) };
        match client.state {
            State::Idle => {
                self.closed_idle += 1;
                self.part(index);
            }
            State::Requesting(since) if link.response.end() => {
                self.take_answer(index, since);
                self.part(index);
            }
            _ => return Err(Broken::new(link.kind_of_end(), "closed by the server")),
        }
        Ok(())
    }

    fn take_answer(&mut self, index: usize, since: Instant) {
        let status = self.clients[index].link.as_ref().map_or(0, |link| link.response.status());
        if (200..400).contains(&status) {
            return self.note_answer(index, since);
        }
        self.answers.record_error(ErrorKind::BadStatus, || format!("status {status}"));
        self.clients[index].state = State::Idle;
        self.note_tried(index);
        self.plan_next(index, since, false);
    }

    fn note_answer(&mut self, index: usize, since: Instant) {
        self.answers.done += 1;
        self.answers.record_latency(since.elapsed());
        let is_first = !self.clients[index].served;
        self.clients[index].state = State::Idle;
        self.note_served(index);
        self.plan_next(index, since, is_first);
    }

    fn plan_next(&mut self, index: usize, since: Instant, is_first: bool) {
        match self.behaviour.pattern {
            // Clients that came together would ask together ever after; the first pause spreads them out.
            RequestPattern::Every(every) if is_first => {
                let pause = every.mul_f64(self.chance.f64());
                self.set_timer(index, Instant::now() + pause);
            }
            RequestPattern::Every(every) => self.set_timer(index, (since + every).max(Instant::now())),
            RequestPattern::Dribble { .. } => self.set_timer(index, Instant::now() + DRIBBLE_INTERVAL),
            RequestPattern::Silent | RequestPattern::OneByte | RequestPattern::Once => {}
        }
    }

    fn fail(&mut self, index: usize, broken: Broken) {
        self.answers.record_error(broken.kind, || broken.detail);
        self.note_tried(index);
        self.part(index);
        let pause = match self.behaviour.pattern {
            RequestPattern::Every(every) => every,
            RequestPattern::Dribble { .. } => DRIBBLE_INTERVAL,
            RequestPattern::Silent | RequestPattern::OneByte | RequestPattern::Once => {
                return self.clients[index].timer = None;
            }
        };
        let pause = pause.mul_f64(0.5 + self.chance.f64());
        self.set_timer(index, Instant::now() + pause);
    }

    fn note_served(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if !client.served {
            client.served = true;
            self.opening = self.opening.saturating_sub(1);
        }
        self.note_tried(index);
    }

    fn note_tried(&mut self, index: usize) {
        let client = &mut self.clients[index];
        self.tried += usize::from(!client.tried);
        client.tried = true;
    }

    /// Gives the connection up.
    fn part(&mut self, index: usize) {
        let client = &mut self.clients[index];
        if !client.served {
            self.opening = self.opening.saturating_sub(1);
        }
        client.served = false;
        client.state = State::Disconnected;
        if let Some(link) = client.link.take() {
            link.close();
        }
    }

    fn set_timer(&mut self, index: usize, due: Instant) {
        self.clients[index].timer = Some(due);
        self.timers.push(Reverse((due, index)));
    }

    fn drop_overdue(&mut self, now: Instant) {
        let is_dribble = matches!(self.behaviour.pattern, RequestPattern::Dribble { .. });
        for index in 0..self.clients.len() {
            let since = match self.clients[index].state {
                State::Connecting(since) | State::Handshaking(since) => since,
                State::Requesting(since) if !is_dribble => since,
                _ => continue,
            };
            if now.saturating_duration_since(since) > self.behaviour.timeout {
                let detail = format!("nothing complete within {:?}", self.behaviour.timeout);
                self.fail(index, Broken::new(ErrorKind::Timeout, detail));
            }
        }
    }
}

impl Drop for ClientGroup<'_> {
    fn drop(&mut self) {
        for client in &mut self.clients {
            if let Some(link) = client.link.take() {
                link.close();
            }
        }
    }
}

#[cfg(test)]
mod tests;

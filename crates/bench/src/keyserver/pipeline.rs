//! The load on a key server: connections that each have many operations outstanding, answered in any order.

use super::channel::{Channel, Fault, Slots, Waiting};
use super::key::Ski;
use super::operation::Examiner;
use super::verifier::Verifier;
use super::wire::{self, Request};
use crate::cpu;
use crate::failure::{Outcome, While};
use crate::interrupt::{Interrupt, LOOK_INTERVAL};
use crate::link::Broken;
use crate::load::{Arrivals, CONNECT_RETRY_WAIT, Until};
use crate::poll::{Poll, Ready};
use crate::report::{Pace, progress};
use crate::stats::{ErrorKind, LoadStats};
use crate::target::Target;
use std::time::{Duration, Instant};

/// Taken from a socket at once: 64 replies.
const SCRATCH_BYTES: usize = 64 * 1024;

pub struct Plan {
    pub connections: usize,
    /// Operations in progress on each connection.
    pub outstanding: usize,
    /// For one operation, its place in the queue included.
    pub timeout: Duration,
    /// Arrivals per second whether or not earlier ones were answered; absent: each reply brings the next operation.
    pub rate: Option<f64>,
    pub opcode: u8,
    pub ski: Option<Ski>,
    /// Share of the signatures that are verified, 0 to 1.
    pub verify_share: f64,
}

/// Connections outlive a run: the first run may be a warm-up of the second.
pub struct Pipeline<'t> {
    target: &'t Target,
    plan: Plan,
    interrupt: Interrupt,
    poll: Poll,
    connections: Vec<PipelinedConnection>,
    /// The connection that is offered the next operation first.
    next_lane: usize,
    arrivals: Option<Arrivals>,
    /// Operations that may still be started in this run.
    allowed: u64,
    serial: u64,
    verifier: Verifier,
    /// TLS version and cipher suite of the first connection.
    pub agreed: Option<String>,
    scratch: Box<[u8]>,
    input: Vec<u8>,
    frame: Vec<u8>,
}

/// The place of one connection, which may come and go.
struct PipelinedConnection {
    channel: Option<Channel>,
    slots: Slots,
    /// After a connection failed: not before this, so that a closed port does not turn into a spin.
    rests_until: Option<Instant>,
}

impl<'t> Pipeline<'t> {
    pub fn new(target: &'t Target, plan: Plan, examiner: Examiner, interrupt: &Interrupt) -> Outcome<Self> {
        crate::machine::require_open_files(plan.connections)?;
        let connection =
            |_| PipelinedConnection { channel: None, slots: Slots::new(plan.outstanding), rests_until: None };
        Ok(Self {
            target,
            interrupt: interrupt.clone(),
            poll: Poll::new().when("epoll")?,
            connections: (0..plan.connections).map(connection).collect(),
            next_lane: 0,
            arrivals: plan.rate.map(Arrivals::new),
            allowed: 0,
            serial: 0,
            verifier: Verifier::new(examiner, plan.verify_share),
            agreed: None,
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            input: Vec::new(),
            frame: Vec::new(),
            plan,
        })
    }

    /// Loads the key server until then and returns the share of its thread that the load used. What came of it is
    /// known once it is verified: see `finish`.
    pub fn run(&mut self, until: Until, label: &str) -> Outcome<f64> {
        let begin = Instant::now();
        let cpu_before = cpu::this_thread();
        self.verifier.counting = true;
        self.allowed = match until {
            Until::Finished(count) => count,
            Until::Elapsed(_) => u64::MAX,
        };
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.begin(begin);
        }
        let mut pace = Pace::started();
        let mut sweep_due = begin + LOOK_INTERVAL;
        loop {
            let now = Instant::now();
            let wait = match until {
                Until::Elapsed(duration) => (begin + duration).saturating_duration_since(now),
                Until::Finished(count) if self.verifier.stats.finished() >= count => Duration::ZERO,
                Until::Finished(_) => LOOK_INTERVAL,
            };
            if wait.is_zero() {
                break;
            }
            self.start_what_is_due(now);
            self.turn(wait, now)?;
            if now >= sweep_due {
                sweep_due = now + LOOK_INTERVAL;
                self.sweep(now)?;
                if !label.is_empty() && pace.is_due(now) {
                    let (done, errors) = (self.verifier.stats.done, self.verifier.stats.errors_total());
                    progress(format_args!(
                        "{label}: {:.0} s, {done} done, {errors} errors",
                        (now - begin).as_secs_f64()
                    ));
                }
            }
        }
        self.verifier.stats.elapsed = begin.elapsed();
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.charge_missed(until, begin, &mut self.verifier.stats);
        }
        self.charge_unanswered();
        Ok((cpu::this_thread() - cpu_before).as_secs_f64() / begin.elapsed().as_secs_f64().max(1e-9))
    }

    /// Waits for what is outstanding, verifies, and gives the stats of the last run. Answers that come now are not in
    /// it, so that none is counted whose time was not; their errors are.
    pub fn finish(&mut self) -> Outcome<LoadStats> {
        self.verifier.counting = false;
        self.allowed = 0;
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.backlog.clear();
        }
        // Ends with the timeout of the last operation.
        while self.connections.iter().any(|connection| !connection.slots.is_idle()) {
            let now = Instant::now();
            self.turn(LOOK_INTERVAL, now)?;
            self.sweep(now)?;
        }
        self.verifier.verify_kept(&self.interrupt)
    }

    /// Signatures verified so far.
    pub fn verified(&self) -> u64 {
        self.verifier.verified
    }

    /// One wait and the work it brings.
    fn turn(&mut self, wait: Duration, now: Instant) -> Outcome<()> {
        let mut wait = wait.min(LOOK_INTERVAL);
        if let Some(due) = self.connections.iter().filter_map(|connection| connection.rests_until).min() {
            wait = wait.min(due.saturating_duration_since(now).max(Duration::from_millis(1)));
        }
        if let Some(arrivals) = self.arrivals.as_ref().filter(|_| self.allowed > 0) {
            // Less than a millisecond becomes a look without a wait: an arrival must not be late on our account.
            wait = wait.min(arrivals.next.saturating_duration_since(now));
        }
        let count = self.poll.wait(wait).when("epoll")?;
        for index in 0..count {
            let ready = self.poll.event(index);
            if let Err(fault) = self.progress_lane(ready) {
                self.fail(ready.token as usize, &fault);
            }
        }
        Ok(())
    }

    /// Hands operations to the connections in turn, then lets each send what it got in one go.
    fn start_what_is_due(&mut self, now: Instant) {
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.let_arrive(now, &mut self.allowed, &mut self.verifier.stats);
        }
        let mut passed_over = 0;
        while passed_over < self.connections.len() {
            let index = self.next_lane % self.connections.len();
            self.next_lane = index + 1;
            if !self.connections[index].is_ready(now) {
                passed_over += 1;
                continue;
            }
            passed_over = 0;
            let Some(due) = self.next_due(now) else { break };
            if let Err(broken) = self.start(index, due) {
                self.fail(index, &broken.into());
            }
        }
        for index in 0..self.connections.len() {
            if let Some(Err(broken)) = self.connections[index].channel.as_mut().map(Channel::flush) {
                self.fail(index, &broken.into());
            }
        }
    }

    fn next_due(&mut self, now: Instant) -> Option<Instant> {
        if let Some(arrivals) = &mut self.arrivals {
            return arrivals.backlog.pop_front();
        }
        self.allowed = self.allowed.checked_sub(1)?;
        Some(now)
    }

    fn start(&mut self, index: usize, due: Instant) -> Result<(), Broken> {
        let operation = Waiting { due, serial: self.serial };
        self.serial += 1;
        let connection = &mut self.connections[index];
        // Before anything can fail: what fails is then counted with the rest of the connection.
        let id = connection.slots.put(operation);
        let channel = match &mut connection.channel {
            Some(channel) => channel,
            None => {
                let channel = connection.channel.insert(Channel::open(self.target, Instant::now())?);
                self.verifier.stats.connections += 1;
                let added = self.poll.add(&channel.socket, index as u64);
                added.map_err(|error| Broken::new(ErrorKind::Connect, error))?;
                channel
            }
        };
        self.verifier.input(operation.serial, &mut self.input);
        self.frame.clear();
        Request {
            id,
            opcode: self.plan.opcode,
            payload: &self.input,
            ski: self.plan.ski.map(|ski| ski.0),
            server_ip: Some(self.target.address.ip()),
            server_name: &self.target.name,
        }
        .encode(&mut self.frame);
        channel.queue(&self.frame)
    }

    fn progress_lane(&mut self, ready: Ready) -> Result<(), Fault> {
        let connection = &mut self.connections[ready.token as usize];
        // An event of a connection that was dropped earlier in this turn.
        let Some(channel) = &mut connection.channel else { return Ok(()) };
        channel.flush()?;
        while let Some(open) = channel.read(&mut self.scratch)? {
            hear_replies(&mut channel.received, &mut connection.slots, &mut self.verifier)?;
            if !open {
                return Err(channel.ended().into());
            }
        }
        if self.agreed.is_none() {
            self.agreed = channel.agreed();
        }
        // Flushes the bytes of the handshake or of a key update.
        Ok(channel.flush()?)
    }

    /// Ends a connection, and with it what waits on it. Between operations a key server may close as it likes.
    fn fail(&mut self, index: usize, fault: &Fault) {
        let connection = &mut self.connections[index];
        let lost = connection.slots.take_all();
        lost.iter().for_each(|_| fault.record(&mut self.verifier.stats));
        if lost.is_empty() && matches!(fault, Fault::Malformed(_)) {
            fault.record(&mut self.verifier.stats);
        }
        connection.rests_until = (!lost.is_empty()).then(|| Instant::now() + CONNECT_RETRY_WAIT);
        if let Some(channel) = connection.channel.take() {
            channel.close();
        }
    }

    /// Gives up on what is overdue, and on connections from which nothing is heard while it is.
    fn sweep(&mut self, now: Instant) -> Outcome<()> {
        self.interrupt.check()?;
        let Some(limit) = now.checked_sub(self.plan.timeout) else { return Ok(()) };
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            if connection.rests_until.is_some_and(|until| until <= now) {
                connection.rests_until = None;
            }
            let overdue = connection.slots.take_overdue(limit);
            for _ in &overdue {
                let detail = || format!("no reply within {:?}", self.plan.timeout);
                self.verifier.stats.record_error(ErrorKind::Timeout, detail);
            }
            let silent = connection.channel.as_ref().is_some_and(|channel| channel.heard < limit);
            if silent && !overdue.is_empty() {
                let detail = format!("nothing heard for {:?}", self.plan.timeout);
                self.fail(index, &Broken::new(ErrorKind::Timeout, detail).into());
            }
        }
        Ok(())
    }

    /// An open-loop run ends with some arrivals unanswered; a stalled server must not look fast for it.
    fn charge_unanswered(&mut self) {
        let Some(arrivals) = &self.arrivals else { return };
        let now = Instant::now();
        let outstanding =
            self.connections.iter().flat_map(|connection| connection.slots.all()).map(|operation| operation.due);
        for due in outstanding.chain(arrivals.backlog.iter().copied()) {
            self.verifier.stats.unanswered += 1;
            self.verifier.stats.record_latency(now.saturating_duration_since(due));
        }
    }
}

impl PipelinedConnection {
    fn is_ready(&mut self, now: Instant) -> bool {
        if self.rests_until.is_some_and(|until| until <= now) {
            self.rests_until = None;
        }
        self.rests_until.is_none() && self.slots.has_room()
    }
}

impl Drop for Pipeline<'_> {
    fn drop(&mut self) {
        self.connections.iter_mut().filter_map(|connection| connection.channel.take()).for_each(Channel::close);
    }
}

fn hear_replies(received: &mut Vec<u8>, slots: &mut Slots, verifier: &mut Verifier) -> Result<(), Fault> {
    let mut used = 0;
    while let Some((reply, bytes)) = wire::decode(&received[used..]).map_err(|error| Fault::Malformed(error.0))? {
        match slots.take(reply.id) {
            Some(operation) => verifier.hear(operation, &reply.answer),
            None => {
                let id = reply.id;
                verifier.stats.record_named_error("stray-reply", || format!("nothing waits for ID {id:#010x}"));
            }
        }
        used += bytes;
    }
    received.drain(..used);
    Ok(())
}

//! The load loop of a TCP relay: no requests, only bytes, or connections that carry a few of them.

use super::direction::Direction;
use crate::cpu;
use crate::failure::{Outcome, While};
use crate::interrupt::{Interrupt, LOOK_INTERVAL};
use crate::link::Broken;
use crate::load::{CONNECT_RETRY_WAIT, Measured, Until};
use crate::poll::Poll;
use crate::report::{Pace, progress};
use crate::stats::{ErrorKind, LoadStats, Negotiated};
use crate::stream::Stream;
use crate::target::Target;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::time::{Duration, Instant};

/// Taken from a socket, or given to it, at once.
const PIECE_BYTES: usize = 256 * 1024;
/// Reads and writes in one go before other connections get their turn.
const PIECES_PER_TURN: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// Connections that stay; done is counted in units of `body` bytes.
    Bulk(Direction),
    /// Connect, send `body` bytes, get them back, close, and see the relay close.
    NewConnections,
}

pub struct Plan {
    pub work: Work,
    pub connections: usize,
    pub body: u64,
    /// Without a byte moving; for a new connection, with all that it does.
    pub timeout: Duration,
}

/// Connections and their state outlive a run: the first run may be a warm-up of the second.
pub struct Relay<'t> {
    target: &'t Target,
    plan: Plan,
    interrupt: Interrupt,
    poll: Poll,
    pipes: Vec<Option<Pipe>>,
    /// Places without a connection, with the time at which they may have one.
    vacant: VecDeque<(Instant, usize)>,
    /// Pipes whose turn was long.
    again: Vec<usize>,
    /// New connections that may still be begun in this run.
    allowed: u64,
    stats: LoadStats,
    read: Box<[u8]>,
    written: Box<[u8]>,
}

/// One connection through the relay.
struct Pipe {
    stream: Stream,
    opened: Instant,
    /// When a byte last moved.
    alive: Instant,
    sent: u64,
    received: u64,
    /// Our end is closed.
    ended: bool,
    /// The relay closed its end.
    closed: bool,
    handshaken: bool,
}

impl<'t> Relay<'t> {
    pub fn new(target: &'t Target, plan: Plan, interrupt: &Interrupt) -> Outcome<Self> {
        crate::machine::require_open_files(plan.connections)?;
        let now = Instant::now();
        Ok(Self {
            target,
            interrupt: interrupt.clone(),
            poll: Poll::new().when("epoll")?,
            pipes: (0..plan.connections).map(|_| None).collect(),
            vacant: (0..plan.connections).map(|index| (now, index)).collect(),
            again: Vec::new(),
            allowed: 0,
            stats: LoadStats::new(),
            read: vec![0; PIECE_BYTES].into(),
            written: vec![b'x'; PIECE_BYTES].into(),
            plan,
        })
    }

    /// Loads the relay until then and returns what came of it. `label` is shown once a second on stderr.
    pub fn run(&mut self, until: Until, label: &str) -> Outcome<Measured> {
        let begin = Instant::now();
        let cpu_before = cpu::this_thread();
        self.stats = LoadStats::new();
        self.allowed = match until {
            Until::Finished(count) if self.plan.work == Work::NewConnections => count,
            _ => u64::MAX,
        };
        let mut pace = Pace::started();
        let mut sweep_due = begin + LOOK_INTERVAL;
        loop {
            let now = Instant::now();
            if self.is_over(until, begin, now) {
                break;
            }
            self.open_what_is_due(now);
            self.turn(until, begin, now)?;
            if now >= sweep_due {
                sweep_due = now + LOOK_INTERVAL;
                self.interrupt.check()?;
                self.drop_silent(now);
                if !label.is_empty() && pace.is_due(now) {
                    self.show_progress(label, now - begin);
                }
            }
        }
        self.stats.elapsed = begin.elapsed();
        let load_busy = (cpu::this_thread() - cpu_before).as_secs_f64() / self.stats.elapsed.as_secs_f64().max(1e-9);
        Ok(Measured { stats: std::mem::replace(&mut self.stats, LoadStats::new()), load_busy })
    }

    fn show_progress(&self, label: &str, elapsed: Duration) {
        let (done, errors) = (self.stats.done, self.stats.errors_total());
        progress(format_args!("{label}: {:.0} s, {done} done, {errors} errors", elapsed.as_secs_f64()));
    }

    fn is_over(&self, until: Until, begin: Instant, now: Instant) -> bool {
        match until {
            Until::Elapsed(duration) => now - begin >= duration,
            Until::Finished(count) => self.stats.finished() >= count,
        }
    }

    fn turn(&mut self, until: Until, begin: Instant, now: Instant) -> Outcome<()> {
        let mut wait = if self.again.is_empty() { LOOK_INTERVAL } else { Duration::ZERO };
        if let Until::Elapsed(duration) = until {
            wait = wait.min((begin + duration).saturating_duration_since(now));
        }
        if let Some((due, _)) = self.vacant.front().filter(|_| self.allowed > 0) {
            wait = wait.min(due.saturating_duration_since(now).max(Duration::from_millis(1)));
        }
        let count = self.poll.wait(wait).when("epoll")?;
        for index in 0..count {
            let ready = self.poll.event(index);
            self.drive(ready.token as usize);
        }
        for index in std::mem::take(&mut self.again) {
            self.drive(index);
        }
        Ok(())
    }

    fn open_what_is_due(&mut self, now: Instant) {
        while self.allowed > 0 {
            let Some(&(_, index)) = self.vacant.front().filter(|(due, _)| *due <= now) else {
                return;
            };
            self.vacant.pop_front();
            self.allowed -= 1;
            self.stats.connections += 1;
            match self.open(index, now) {
                Ok(()) => self.drive(index),
                Err(broken) => self.fail(index, broken),
            }
        }
    }

    fn open(&mut self, index: usize, now: Instant) -> Result<(), Broken> {
        let connect = |error: io::Error| Broken::new(ErrorKind::Connect, error);
        let socket = self.target.connect().map_err(connect)?;
        let session = self.target.tls_session().map_err(|error| Broken::new(ErrorKind::Tls, error))?;
        self.poll.add(&socket, index as u64).map_err(connect)?;
        self.pipes[index] = Some(Pipe {
            stream: Stream::new(socket, session.map(|session| (*session).into())),
            opened: now,
            alive: now,
            sent: 0,
            received: 0,
            ended: false,
            closed: false,
            handshaken: false,
        });
        Ok(())
    }

    fn drive(&mut self, index: usize) {
        // An event of a connection that was dropped earlier in this turn.
        let Some(pipe) = self.pipes[index].as_mut() else { return };
        let (sent, received) = (pipe.sent, pipe.received);
        let result = pipe.advance(&self.plan, &mut self.read, &self.written);
        let moved = &mut self.stats.moved;
        moved.up += pipe.sent - sent;
        moved.down += pipe.received - received;
        if let Some(negotiated) = pipe.take_negotiated() {
            self.stats.record_handshake(negotiated);
        }
        if let Work::Bulk(direction) = self.plan.work {
            let counted = if direction == Direction::Up { self.stats.moved.up } else { self.stats.moved.down };
            self.stats.done = counted / self.plan.body;
            self.stats.body_bytes = self.stats.moved.down;
        }
        match result {
            Ok(true) => self.again.push(index),
            Ok(false) if !pipe.closed => {}
            Ok(false) => self.finish(index),
            Err(error) => {
                let broken = pipe.broken(&error);
                self.fail(index, broken);
            }
        }
    }

    /// The relay closed: as it should after all of an echo, else too early.
    fn finish(&mut self, index: usize) {
        let Some(pipe) = &self.pipes[index] else { return };
        if self.plan.work != Work::NewConnections || !pipe.ended {
            let detail = format!("closed by the relay after {} bytes", pipe.received);
            return self.fail(index, Broken::new(ErrorKind::Closed, detail));
        }
        self.stats.done += 1;
        self.stats.body_bytes += pipe.received;
        self.stats.record_latency(pipe.opened.elapsed());
        self.pipes[index] = None;
        self.vacant.push_front((Instant::now(), index));
    }

    fn fail(&mut self, index: usize, broken: Broken) {
        self.stats.record_error(broken.kind, || broken.detail);
        self.pipes[index] = None;
        // Whatever went wrong, at once again would be a spin.
        self.vacant.push_back((Instant::now() + CONNECT_RETRY_WAIT, index));
    }

    fn drop_silent(&mut self, now: Instant) {
        for index in 0..self.pipes.len() {
            let Some(pipe) = &self.pipes[index] else { continue };
            let since = if self.plan.work == Work::NewConnections { pipe.opened } else { pipe.alive };
            if now.saturating_duration_since(since) > self.plan.timeout {
                let detail = format!("no byte moved for {:?}", self.plan.timeout);
                self.fail(index, Broken::new(ErrorKind::Timeout, detail));
            }
        }
    }
}

impl Pipe {
    /// Reads and writes what can be read and written; true if its turn was long and there may be more.
    fn advance(&mut self, plan: &Plan, read: &mut [u8], written: &[u8]) -> io::Result<bool> {
        let before = self.sent + self.received;
        let mut long = true;
        for _ in 0..PIECES_PER_TURN {
            let wrote = self.write(plan, written)?;
            let received = self.read(plan, read)?;
            if self.closed || !(wrote || received) {
                long = false;
                break;
            }
        }
        if self.sent + self.received > before {
            self.alive = Instant::now();
        }
        Ok(long)
    }

    /// True if it is worth trying again.
    fn write(&mut self, plan: &Plan, bytes: &[u8]) -> io::Result<bool> {
        if self.ended {
            return Ok(false);
        }
        let left = match plan.work {
            Work::Bulk(Direction::Down) => 0,
            Work::Bulk(_) => u64::MAX,
            Work::NewConnections => plan.body - self.sent,
        };
        if left == 0 {
            self.ended = self.is_echoed(plan) && self.stream.end()?;
            return if self.ended { Ok(false) } else { self.stream.flush_some().map(|_| false) };
        }
        let piece = &bytes[..left.min(bytes.len() as u64) as usize];
        let count = self.stream.write_some(piece)?;
        self.sent += count.unwrap_or(0) as u64;
        Ok(count.is_some())
    }

    fn is_echoed(&self, plan: &Plan) -> bool {
        plan.work == Work::NewConnections && self.received == plan.body
    }

    /// True if it is worth trying again.
    fn read(&mut self, plan: &Plan, buffer: &mut [u8]) -> io::Result<bool> {
        match self.stream.read(buffer) {
            Ok(0) => self.closed = true,
            Ok(count) => self.received += count as u64,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        let source = plan.work == Work::Bulk(Direction::Down);
        if !source && self.received > self.sent {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more bytes came back than were sent"));
        }
        Ok(true)
    }

    fn take_negotiated(&mut self) -> Option<Negotiated> {
        let Stream::Tls(tls) = &self.stream else { return None };
        if self.handshaken || tls.session.is_handshaking() {
            return None;
        }
        self.handshaken = true;
        Negotiated::of(&tls.session)
    }

    fn broken(&self, error: &io::Error) -> Broken {
        let kind = match error.kind() {
            io::ErrorKind::InvalidData => ErrorKind::Tls,
            io::ErrorKind::InvalidInput => ErrorKind::BadFraming,
            _ if self.sent + self.received == 0 => ErrorKind::Connect,
            _ => ErrorKind::Reset,
        };
        Broken::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::RawMode;
    use crate::origin::tests::Running;

    fn run(origin: &Running, work: Work, body: u64, until: Until) -> LoadStats {
        let target = Target::new(origin.address, "localhost", None).unwrap();
        let plan = Plan { work, connections: 4, body, timeout: Duration::from_secs(10) };
        Relay::new(&target, plan, &Interrupt::default()).unwrap().run(until, "").unwrap().stats
    }

    #[test]
    fn bytes_are_counted_in_the_direction_they_go() {
        let units = Until::Finished(64);
        let body = 1 << 20;
        let down = run(&Running::raw(RawMode::Source), Work::Bulk(Direction::Down), body, units);
        assert_eq!((down.moved.up, down.errors_total()), (0, 0));
        assert!(down.moved.down >= 64 << 20, "{:?}", down.moved);
        let up = run(&Running::raw(RawMode::Sink), Work::Bulk(Direction::Up), body, units);
        assert_eq!((up.moved.down, up.errors_total()), (0, 0));
        assert!(up.moved.up >= 64 << 20, "{:?}", up.moved);
        let both = run(&Running::raw(RawMode::Echo), Work::Bulk(Direction::Both), body, units);
        assert!(both.moved.down >= 64 << 20 && both.moved.up >= both.moved.down, "{:?}", both.moved);
        assert_eq!(both.errors_total(), 0);
    }

    #[test]
    fn a_new_connection_ends_when_all_came_back_and_the_relay_closed() {
        let stats = run(&Running::raw(RawMode::Echo), Work::NewConnections, 100, Until::Finished(50));
        let moved = (stats.moved.up, stats.moved.down);
        assert_eq!((stats.done, stats.connections, stats.errors_total(), moved), (50, 50, 0, (5000, 5000)));
        // A sink returns nothing.
        let target = Target::new(Running::raw(RawMode::Sink).address, "localhost", None).unwrap();
        let plan = Plan { work: Work::NewConnections, connections: 1, body: 9, timeout: Duration::from_millis(100) };
        let stats =
            Relay::new(&target, plan, &Interrupt::default()).unwrap().run(Until::Finished(2), "").unwrap().stats;
        assert_eq!((stats.done, stats.errors_total()), (0, 2), "{:?}", stats.first_error());
    }
}

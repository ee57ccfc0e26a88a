//! The load loop: one thread that keeps many connections busy and counts what comes of it.

use crate::cpu;
use crate::failure::{Outcome, While};
use crate::interrupt::{Interrupt, LOOK_INTERVAL};
use crate::link::{Broken, Link, Request};
use crate::poll::{Poll, Ready};
use crate::report::{Pace, progress};
use crate::stats::{ErrorKind, LoadStats, Moved};
use crate::target::Target;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Taken from a socket at once. Large, so that a bulk download is read in few system calls.
const SCRATCH_BYTES: usize = 256 * 1024;
/// A slot that could not connect waits this long, so that a closed port does not turn into a spin.
pub const CONNECT_RETRY_WAIT: Duration = Duration::from_millis(10);
/// Time for a server to close the socket after its close_notify; most close at once, some wait for the client.
const CLOSE_WAIT: Duration = Duration::from_millis(1);
/// Arrivals waiting for a free connection; more than that are dropped and counted as unanswered.
const BACKLOG_MAX: usize = 1_000_000;

/// The use of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Connect, ask, read to the end, close; and again.
    NewConnections,
    /// Ask again on the same connection as soon as it is answered.
    KeepAlive,
}

/// The plan of a load loop.
#[derive(Clone)]
pub struct Plan {
    pub kind: Kind,
    /// Connections held at once.
    pub connections: usize,
    pub request: Request,
    /// For one request, its connection and handshake included.
    pub timeout: Duration,
    /// Arrivals per second whether or not earlier ones were answered; absent: each answer brings the next request.
    pub rate: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Until {
    Elapsed(Duration),
    /// So many requests came to an end, well or not.
    Finished(u64),
}

/// Hears once a second of a run what came of it so far.
pub type Watcher = Box<dyn Fn(&LoadStats)>;

/// The load's own use of its thread during a run, 0 to 1.
pub struct Measured {
    pub stats: LoadStats,
    pub load_busy: f64,
}

/// Connections and their state outlive a run: the first run may be a warm-up of the second.
pub struct Load<'t> {
    target: &'t Target,
    plan: Plan,
    interrupt: Interrupt,
    poll: Poll,
    slots: Vec<Slot>,
    /// Slots that may take a request now.
    free: VecDeque<usize>,
    /// Slots that failed to connect, with the time at which they may try again; in that order.
    resting: VecDeque<(Instant, usize)>,
    /// Slots whose server said close_notify, when to wait for its close no longer, and the request that they had then.
    ending: VecDeque<(Instant, usize, Instant)>,
    arrivals: Option<Arrivals>,
    watcher: Option<Watcher>,
    /// Requests that may still be started in this run.
    allowed: u64,
    stats: LoadStats,
    scratch: Box<[u8]>,
}

struct Slot {
    link: Option<Link>,
    /// When the request was due, if one is in progress.
    asked: Option<Instant>,
}

/// The clock of an open-loop run. A request that finds no free connection waits here, and its wait counts.
pub struct Arrivals {
    interval: Duration,
    /// From the begin of a run to its first arrival.
    pub phase: Duration,
    pub next: Instant,
    pub backlog: VecDeque<Instant>,
}

impl Arrivals {
    pub fn new(rate: f64) -> Self {
        Self {
            interval: Duration::from_secs_f64(1.0 / rate),
            phase: Duration::ZERO,
            next: Instant::now(),
            backlog: VecDeque::new(),
        }
    }

    /// A run begins; nobody waits from an earlier one.
    pub fn begin(&mut self, now: Instant) {
        self.next = now + self.phase;
        self.backlog.clear();
    }

    /// Moves what is due by `now` to the backlog, `allowed` at most, and returns how many that are. Those that find no
    /// room there are unanswered.
    pub fn let_arrive(&mut self, now: Instant, allowed: &mut u64, stats: &mut LoadStats) -> usize {
        let before = self.backlog.len();
        while self.next <= now && *allowed > 0 {
            *allowed -= 1;
            if self.backlog.len() < BACKLOG_MAX {
                self.backlog.push_back(self.next);
            } else {
                stats.unanswered += 1;
            }
            self.next += self.interval;
        }
        self.backlog.len() - before
    }

    /// Counts the arrivals that were due before the end and never started, because the loop was held up.
    pub fn charge_missed(&mut self, until: Until, begin: Instant, stats: &mut LoadStats) {
        let Until::Elapsed(duration) = until else {
            return;
        };
        let (now, end) = (Instant::now(), begin + duration);
        while self.next < end {
            stats.unanswered += 1;
            stats.record_latency(now.saturating_duration_since(self.next));
            self.next += self.interval;
        }
    }
}

impl<'t> Load<'t> {
    pub fn new(target: &'t Target, plan: Plan, interrupt: &Interrupt) -> Outcome<Self> {
        crate::machine::require_open_files(plan.connections)?;
        let arrivals = plan.rate.map(Arrivals::new);
        Ok(Self {
            target,
            interrupt: interrupt.clone(),
            poll: Poll::new().when("epoll")?,
            slots: (0..plan.connections).map(|_| Slot { link: None, asked: None }).collect(),
            free: (0..plan.connections).collect(),
            resting: VecDeque::new(),
            ending: VecDeque::new(),
            arrivals,
            watcher: None,
            allowed: 0,
            stats: LoadStats::new(),
            scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(),
            plan,
        })
    }

    pub fn watch(&mut self, watcher: Watcher) {
        self.watcher = Some(watcher);
    }

    /// Several loads at one rate each take turns if each begins a little later than the one before.
    pub fn shift_arrivals(&mut self, phase: Duration) {
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.phase = phase;
        }
    }

    /// Sleeps between the arrivals of an open loop instead of spinning towards the next: an arrival may then be some
    /// 60 µs late (and its latency that much longer), but the load's CPU is what its work costs.
    pub fn rest_between_arrivals(&mut self) {
        self.poll.sleeps_below_millisecond = true;
    }

    /// Loads the server until then and returns what came of it. `label` is told once a second on stderr.
    pub fn run(&mut self, until: Until, label: &str) -> Outcome<Measured> {
        let begin = Instant::now();
        let cpu_before = cpu::this_thread();
        self.stats = LoadStats::new();
        let under_way = self.moved_under_way();
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
            if self.is_over(until, begin, now) {
                break;
            }
            self.start_what_is_due(now);
            self.turn(until, begin, now)?;
            if now >= sweep_due {
                sweep_due = now + LOOK_INTERVAL;
                self.interrupt.check()?;
                self.drop_overdue(now);
                if pace.is_due(now) {
                    self.show_progress(label, now - begin);
                }
            }
        }
        self.stats.elapsed = begin.elapsed();
        if let Some(arrivals) = &mut self.arrivals {
            arrivals.charge_missed(until, begin, &mut self.stats);
        }
        // Bodies begun before this run count with what came during it; unfinished ones, with what came so far.
        let left_over = self.moved_under_way();
        let moved = &mut self.stats.moved;
        moved.down = (moved.down + left_over.down).saturating_sub(under_way.down);
        moved.up = (moved.up + left_over.up).saturating_sub(under_way.up);
        self.charge_unanswered();
        let load_busy = (cpu::this_thread() - cpu_before).as_secs_f64() / self.stats.elapsed.as_secs_f64().max(1e-9);
        Ok(Measured { stats: std::mem::replace(&mut self.stats, LoadStats::new()), load_busy })
    }

    fn show_progress(&self, label: &str, elapsed: Duration) {
        if let Some(watcher) = &self.watcher {
            watcher(&self.stats);
        }
        if !label.is_empty() {
            let (done, errors) = (self.stats.done, self.stats.errors_total());
            progress(format_args!("{label}: {:.0} s, {done} done, {errors} errors", elapsed.as_secs_f64()));
        }
    }

    /// Body bytes of requests in progress.
    fn moved_under_way(&self) -> Moved {
        let mut moved = Moved::default();
        for link in self.slots.iter().filter(|slot| slot.asked.is_some()).filter_map(|slot| slot.link.as_ref()) {
            moved.down += link.response.body_bytes();
            moved.up += link.body_bytes_sent(&self.plan.request);
        }
        moved
    }

    fn is_over(&self, until: Until, begin: Instant, now: Instant) -> bool {
        match until {
            Until::Elapsed(duration) => now - begin >= duration,
            Until::Finished(count) => self.stats.finished() >= count,
        }
    }

    /// One wait and the work it brings.
    fn turn(&mut self, until: Until, begin: Instant, now: Instant) -> Outcome<()> {
        let mut wait = LOOK_INTERVAL;
        if let Until::Elapsed(duration) = until {
            wait = wait.min((begin + duration).saturating_duration_since(now));
        }
        let ending = self.ending.front().map(|(due, _, _)| due);
        for due in self.resting.front().map(|(due, _)| due).into_iter().chain(ending) {
            wait = wait.min(due.saturating_duration_since(now).max(Duration::from_millis(1)));
        }
        if let Some(arrivals) = self.arrivals.as_ref().filter(|_| self.allowed > 0) {
            // Less than a millisecond becomes a look without a wait, unless the load may rest: an arrival must not be
            // late on our account.
            wait = wait.min(arrivals.next.saturating_duration_since(now));
        }
        let count = self.poll.wait(wait).when("epoll")?;
        for index in 0..count {
            let ready = self.poll.event(index);
            self.progress_slot(ready);
        }
        Ok(())
    }

    fn start_what_is_due(&mut self, now: Instant) {
        while let Some(&(due, slot, asked)) = self.ending.front() {
            if due > now {
                break;
            }
            self.ending.pop_front();
            if self.slots[slot].asked == Some(asked) {
                self.finish_ended(slot);
            }
        }
        while let Some(&(due, slot)) = self.resting.front() {
            if due > now {
                break;
            }
            self.resting.pop_front();
            self.free.push_back(slot);
        }
        let Some(arrivals) = &mut self.arrivals else {
            return self.start_free_slots(now);
        };
        arrivals.let_arrive(now, &mut self.allowed, &mut self.stats);
        while let (Some(&slot), Some(&due)) =
            (self.free.front(), self.arrivals.as_ref().and_then(|arrivals| arrivals.backlog.front()))
        {
            self.free.pop_front();
            self.arrivals.as_mut().expect("looked at above").backlog.pop_front();
            self.start(slot, due);
        }
    }

    fn start_free_slots(&mut self, now: Instant) {
        while self.allowed > 0 {
            let Some(slot) = self.free.pop_front() else {
                return;
            };
            self.allowed -= 1;
            self.start(slot, now);
        }
    }

    /// Asks on the slot's connection, or on a new one. `due` is when the request should have gone out.
    fn start(&mut self, index: usize, due: Instant) {
        let slot = &mut self.slots[index];
        slot.asked = Some(due);
        let asked = match &mut slot.link {
            Some(link) => link.ask(&self.plan.request),
            None => Link::open(self.target).and_then(|link| {
                self.stats.connections += 1;
                let link = slot.link.insert(link);
                self.poll.add(&link.socket, index as u64).map_err(|error| Broken::new(ErrorKind::Connect, error))?;
                link.ask(&self.plan.request)
            }),
        };
        if let Err(broken) = asked {
            self.fail(index, broken);
        }
    }

    fn progress_slot(&mut self, ready: Ready) {
        let index = ready.token as usize;
        let slot = &mut self.slots[index];
        // An event of a connection that was dropped earlier in this turn.
        let Some(link) = &mut slot.link else { return };
        let ended = match link.advance(&self.plan.request, &mut self.scratch, ready.closing) {
            Ok(ended) => ended,
            Err(broken) => return self.fail(index, broken),
        };
        if let Some(negotiated) = link.take_negotiated() {
            self.stats.record_handshake(negotiated);
        }
        if ended {
            return self.finish_ended(index);
        }
        if let Some(asked) = slot.asked.filter(|_| link.notified && self.plan.kind == Kind::NewConnections) {
            self.ending.push_back((Instant::now() + CLOSE_WAIT, index, asked));
            return;
        }
        // A new connection per request is over when the server has closed it, not before.
        if slot.asked.is_some() && link.response.is_complete() && self.plan.kind != Kind::NewConnections {
            let closes = link.response.closes();
            self.finish(index);
            if closes {
                self.drop_link(index);
            }
        }
    }

    /// The server closed: after a complete response as it should, between requests as it may, or too early.
    fn finish_ended(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let Some(link) = &mut slot.link else { return };
        if slot.asked.is_none() {
            return self.drop_link(index);
        }
        if !link.response.end() {
            let broken = Broken::new(link.kind_of_end(), "closed by the server");
            return self.fail(index, broken);
        }
        self.finish(index);
        self.drop_link(index);
    }

    fn finish(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let (Some(link), Some(due)) = (&slot.link, slot.asked.take()) else {
            return;
        };
        self.free.push_back(index);
        let latency = due.elapsed();
        self.stats.moved.down += link.response.body_bytes();
        self.stats.moved.up += link.body_bytes_sent(&self.plan.request);
        let status = link.response.status();
        if !(200..400).contains(&status) {
            return self.stats.record_error(ErrorKind::BadStatus, || format!("status {status}"));
        }
        if link.is_resumed() {
            self.stats.resumed += 1;
        } else if self.target.wants_resumed() {
            return self.stats.record_error(ErrorKind::NotResumed, || "a full handshake".to_owned());
        }
        self.stats.done += 1;
        self.stats.body_bytes += link.response.body_bytes();
        self.stats.record_latency(latency);
    }

    fn fail(&mut self, index: usize, broken: Broken) {
        let slot = &mut self.slots[index];
        if slot.asked.take().is_some() {
            if let Some(link) = &slot.link {
                self.stats.moved.down += link.response.body_bytes();
                self.stats.moved.up += link.body_bytes_sent(&self.plan.request);
            }
            self.stats.record_error(broken.kind, || broken.detail);
            if broken.kind == ErrorKind::Connect {
                self.resting.push_back((Instant::now() + CONNECT_RETRY_WAIT, index));
            } else {
                self.free.push_back(index);
            }
        }
        self.drop_link(index);
    }

    fn drop_link(&mut self, index: usize) {
        if let Some(link) = self.slots[index].link.take() {
            link.close();
        }
    }

    fn drop_overdue(&mut self, now: Instant) {
        for index in 0..self.slots.len() {
            let slot = &self.slots[index];
            let overdue = slot.asked.is_some_and(|due| now.saturating_duration_since(due) > self.plan.timeout);
            if overdue {
                // Time spent waiting for a free connection counts too: that is what an open loop is for.
                let detail = format!("no complete response within {:?}", self.plan.timeout);
                self.fail(index, Broken::new(ErrorKind::Timeout, detail));
            }
        }
    }

    /// An open-loop run ends with some arrivals unanswered; a stalled server must not look fast for it.
    fn charge_unanswered(&mut self) {
        let Some(arrivals) = &self.arrivals else {
            return;
        };
        let now = Instant::now();
        let outstanding = self.slots.iter().filter_map(|slot| slot.asked);
        for due in outstanding.chain(arrivals.backlog.iter().copied()) {
            self.stats.unanswered += 1;
            self.stats.record_latency(now.saturating_duration_since(due));
        }
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        for index in 0..self.slots.len() {
            self.drop_link(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::tests::Running;

    fn plan(kind: Kind, connections: usize, path: &str) -> Plan {
        let headers = if kind == Kind::NewConnections { "Connection: close\r\n" } else { "" };
        let request = Request::new("GET", path, "localhost", headers, 0);
        Plan { kind, connections, request, timeout: Duration::from_secs(10), rate: None }
    }

    fn run(origin: &Running, plan: Plan, until: Until) -> LoadStats {
        let target = Target::new(origin.address, "localhost", None).unwrap();
        Load::new(&target, plan, &Interrupt::default()).unwrap().run(until, "").unwrap().stats
    }

    #[test]
    fn a_fixed_delay_is_the_latency_measured() {
        let delay = Duration::from_millis(20);
        let origin = Running::start(delay, None);
        let summary = run(&origin, plan(Kind::KeepAlive, 4, "/"), Until::Finished(40)).summary();
        assert_eq!((summary.done, summary.errors_total()), (40, 0));
        let p50 = Duration::from_nanos(summary.latency.p50);
        // Three digits of precision below, a busy machine above.
        assert!(p50 >= Duration::from_micros(19_900) && p50 < Duration::from_millis(60), "{p50:?}");
    }

    #[test]
    fn every_failed_answer_is_counted_and_no_other() {
        let origin = Running::start(Duration::ZERO, Some(5));
        for kind in [Kind::KeepAlive, Kind::NewConnections] {
            let stats = run(&origin, plan(kind, 1, "/"), Until::Finished(100));
            assert_eq!((stats.done, stats.errors(ErrorKind::BadStatus), stats.errors_total()), (80, 20, 20));
        }
    }

    #[test]
    fn a_new_connection_is_made_for_each_request_or_once() {
        let origin = Running::start(Duration::ZERO, None);
        assert_eq!(run(&origin, plan(Kind::NewConnections, 4, "/bytes/9"), Until::Finished(50)).body_bytes, 450);
        let kept = run(&origin, plan(Kind::KeepAlive, 4, "/chunked/9"), Until::Finished(50));
        assert_eq!((kept.connections, kept.done, kept.body_bytes), (4, 50, 450));
    }

    #[test]
    fn a_closed_port_is_a_connect_error() {
        let port = crate::machine::free_ports(1).unwrap()[0];
        let target = Target::new(([127, 0, 0, 1], port).into(), "localhost", None).unwrap();
        let mut load = Load::new(&target, plan(Kind::NewConnections, 2, "/"), &Interrupt::default()).unwrap();
        let stats = load.run(Until::Finished(10), "").unwrap().stats;
        assert_eq!((stats.done, stats.errors(ErrorKind::Connect), stats.errors_total()), (0, 10, 10));
    }

    #[test]
    fn a_silent_server_is_a_timeout() {
        let origin = Running::start(Duration::ZERO, None);
        let plan = Plan { timeout: Duration::from_millis(150), ..plan(Kind::KeepAlive, 1, "/slow/60000") };
        let stats = run(&origin, plan, Until::Finished(1));
        assert_eq!((stats.errors(ErrorKind::Timeout), stats.errors_total()), (1, 1));
    }

    #[test]
    fn in_an_open_loop_a_slow_server_is_charged_for_the_queue() {
        // 100 arrivals a second, one connection, 50 ms each: four in five arrivals wait longer and longer.
        let origin = Running::start(Duration::from_millis(50), None);
        let plan = Plan { rate: Some(100.0), ..plan(Kind::KeepAlive, 1, "/") };
        let stats = run(&origin, plan, Until::Elapsed(Duration::from_millis(600)));
        let summary = stats.summary();
        assert!(summary.unanswered >= 30, "{summary:?}");
        assert!(summary.latency.max >= 300_000_000, "{summary:?}");
        assert!(summary.done + summary.unanswered >= 55, "{summary:?}");
    }

    #[test]
    fn arrivals_that_a_stall_at_the_end_hid_are_charged() {
        // A second of arrivals, the last 300 ms of them not looked at when the second is over.
        let (mut arrivals, mut stats, begin) = (Arrivals::new(100.0), LoadStats::new(), Instant::now());
        arrivals.next = begin + Duration::from_millis(700);
        arrivals.charge_missed(Until::Elapsed(Duration::from_secs(1)), begin, &mut stats);
        assert_eq!(stats.unanswered, 30);
    }

    #[test]
    fn bodies_go_both_ways_over_tls() {
        let origin = Running::tls();
        let offer = crate::target::TlsOffer {
            version: crate::target::Version::Any,
            key: None,
            group: None,
            cipher: None,
            resume: false,
            ca: None,
        };
        let target = Target::new(origin.address, "localhost", Some(&offer)).unwrap();
        let request = Request::new("POST", "/echo", "localhost", "", 1_000_000);
        let plan = Plan { request, ..plan(Kind::KeepAlive, 2, "/") };
        let stats = Load::new(&target, plan, &Interrupt::default()).unwrap().run(Until::Finished(6), "").unwrap().stats;
        assert_eq!(
            (stats.done, stats.errors_total(), stats.body_bytes),
            (6, 0, 6_000_000),
            "{:?}",
            stats.first_error()
        );
        // A seventh may be under way.
        assert!(stats.moved.up >= 6_000_000 && stats.moved.down >= 6_000_000, "{:?}", stats.moved);
        let negotiated = stats.summary().negotiated;
        assert_eq!(negotiated.into_values().sum::<u64>(), 2);
    }
}

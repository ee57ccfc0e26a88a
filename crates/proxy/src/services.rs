//! Services for everything on a core, which use nothing above them: buffers, timers, metrics, the access log,
//! private-key work, and the accounts of memory, files and handshakes.

mod date;
mod heads;
mod listener;
mod uploads;
mod windows;

use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::future::poll_fn;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use propylon_compress::encoders::Encoders;
use propylon_config::HandshakeLimits;
use propylon_crypto::batch::BatchCounts;
use propylon_crypto::{Job, JobError, JobQueue, Pending, RemoteKey};
use propylon_http::h2::hpack::Recurring;
use propylon_metrics::Column;
use propylon_net::buffer::BufferPool;
use propylon_net::resting::RestingList;
use propylon_net::timers::Timers;
use propylon_observe::access_log::LogBuffer;
use propylon_observe::telemetry::{Reason, Telemetry};
use propylon_observe::throttle::Throttle;
use propylon_policy::admission::{Admission, Limits, PerSource, Refusal};
use propylon_policy::handshake_limiter::Budget;
use propylon_tls::{Parking, ParkingCounts, ReadyCounts};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;

use crate::copies::Space;
use crate::dispatch::CoreDispatch;
use crate::handshake_limiter::HandshakeLimiter;
use crate::overload::{Overload, Room, Shared};
use crate::pipes::Pipes;
use crate::trace::{Outbox, Tracer};
use date::Date;
pub use heads::{HeadPool, ReceivedHead};
pub use listener::ListenerHandle;
use propylon_signer::{KeyProcessClient, Signer, Work};
pub use uploads::Uploads;
pub use windows::{Driver, STREAM_WINDOW_BYTES_MAX, WIDE_WINDOW_BYTES, Windows};

/// Services of one core, shared by all its connections and requests.
pub struct Services {
    pub buffers: BufferPool,
    pub pipes: Pipes,
    pub timers: Rc<Timers>,
    /// Sockets that have been quiet for a while, and client connections without a task.
    pub resting: Rc<RestingList>,
    pub metrics: Column,
    pub telemetry: Arc<Telemetry>,
    pub log: RefCell<LogBuffer>,
    /// Records spans; `None` while nothing is traced.
    pub tracer: RefCell<Option<Tracer>>,
    /// The outbox for spans, kept here until requests are traced: the tracer holds it while they are.
    pub(crate) spans: RefCell<Option<Outbox>>,
    pub random: RefCell<fastrand::Rng>,
    /// Passwords that were right a while ago.
    pub passwords: RefCell<propylon_identity::Remembered>,
    /// Private-key jobs of parked handshakes, gathered for a batch; see `leave_desk`.
    pub job_queue: JobQueue,
    /// Queue of handshakes that wait to be let in.
    pub handshake_limiter: Rc<HandshakeLimiter>,
    pub(crate) admission: RefCell<Admission>,
    /// Signers by their place in the configuration; `None` in the place of one that has ended.
    pub(crate) signers: RefCell<Vec<Rc<Signer>>>,
    /// Signer in the process that holds this process's keys; unset where the keys are in this process.
    pub(crate) key_process: OnceCell<Rc<KeyProcessClient>>,
    pub(crate) seed: u64,
    pub overload: Overload,
    /// The core's part in spreading clients over all cores; unset where each core keeps its own.
    pub dispatch: OnceCell<Rc<CoreDispatch>>,
    pub(crate) parking: Rc<Parking>,
    pub(crate) parking_seen: Cell<ParkingCounts>,
    pub(crate) ready_seen: Cell<ReadyCounts>,
    pub(crate) batches_seen: Cell<BatchCounts>,
    /// Scratch buffer in which a head or a chunk is put together before it is sealed; never borrowed across a wait.
    pub scratch: RefCell<Vec<u8>>,
    /// Scratch buffer for lines of a head that goes to a peer of HTTP/2; never borrowed across a wait.
    pub lines: RefCell<Vec<u8>>,
    /// For handshakes that fail.
    pub failures_logged: RefCell<Throttle>,
    /// For servers that TLS comes to nothing with.
    pub server_failures_logged: RefCell<Throttle>,
    /// Finish what is in progress and take no more.
    pub draining: Cell<bool>,
    /// End relays and tunnels: the process does.
    pub cuts_off: Cell<bool>,
    /// Set in a drain that a successor lets last: when it began, and for how many milliseconds idle clients leave.
    pub(crate) leaving: Cell<Option<(u64, u64)>>,
    /// Client connections open on this core.
    pub connections: Cell<usize>,
    /// Client connections that keep their working state while they are quiet.
    pub standing_by: Cell<usize>,
    /// Requests in progress on this core.
    pub requests: Cell<usize>,
    /// Bytes of memory that bodies take which wait for peers of HTTP/2 to read them.
    pub unread: Cell<usize>,
    /// Bytes by which clients of HTTP/2 have wider windows than at first.
    pub widened: Cell<u64>,
    /// Budget of the windows in which servers of HTTP/2 may send ahead.
    pub windows: Windows,
    /// Bodies that clients of HTTP/2 have uploaded and servers have not taken.
    pub uploads: Uploads,
    /// Memory that bodies of copies of requests take.
    pub copies: Rc<Space>,
    /// A connection has ended.
    pub ended: Notify,
    /// The next of `next_owner`.
    pub(crate) owners: Cell<NonZeroU64>,
    pub(crate) date: RefCell<Date>,
    /// Fields that go to peers of HTTP/2 again and again.
    pub recurring: RefCell<Recurring>,
    /// Heads of responses of HTTP/2.
    pub heads: HeadPool,
    /// Encoders of responses.
    pub encoders: Rc<Encoders>,
}

/// The core's number comes first: a connection that another core hands over must not pass for one of a client here.
fn first_owner(core: usize) -> NonZeroU64 {
    NonZeroU64::MIN.saturating_add((core as u64) << 48)
}

fn limits(config: HandshakeLimits) -> Limits {
    let per_source = match config.per_source {
        Some(count) => PerSource::Always(count),
        None => PerSource::WhenCrowded(HandshakeLimits::PER_SOURCE_CROWDED),
    };
    Limits { handshakes: config.in_progress, per_source, wait_max: config.queue_wait }
}

impl Services {
    /// `sets_aside_rsa`: RSA operations wait for each other's company.
    pub fn new(
        (limits, sets_aside_rsa): (HandshakeLimits, bool),
        parking: Rc<Parking>,
        metrics: Column,
        telemetry: Arc<Telemetry>,
        log: LogBuffer,
        (shared, seed): (Arc<Shared>, u64),
    ) -> Rc<Services> {
        // RSA done in batches makes it worth while to let in as many handshakes as go together.
        let budget = if sets_aside_rsa { Budget::of_fours() } else { Budget::default() };
        let admission = Admission::new(self::limits(limits));
        let core = metrics.index();
        let timers = Rc::new(Timers::new());
        Rc::new(Services {
            buffers: BufferPool::default(),
            pipes: Pipes::default(),
            resting: RestingList::new(&timers),
            timers,
            metrics,
            telemetry,
            log: RefCell::new(log),
            tracer: RefCell::new(None),
            spans: RefCell::new(None),
            random: RefCell::new(fastrand::Rng::with_seed(seed)),
            passwords: RefCell::default(),
            job_queue: JobQueue::new(),
            handshake_limiter: HandshakeLimiter::new(budget),
            admission: RefCell::new(admission),
            signers: RefCell::default(),
            key_process: OnceCell::new(),
            seed,
            overload: Overload::new(shared),
            dispatch: OnceCell::new(),
            parking,
            parking_seen: Cell::default(),
            ready_seen: Cell::default(),
            batches_seen: Cell::default(),
            lines: RefCell::default(),
            scratch: RefCell::new(Vec::with_capacity(4096)),
            failures_logged: RefCell::default(),
            server_failures_logged: RefCell::default(),
            draining: Cell::new(false),
            cuts_off: Cell::new(false),
            leaving: Cell::default(),
            connections: Cell::new(0),
            standing_by: Cell::new(0),
            requests: Cell::new(0),
            unread: Cell::new(0),
            widened: Cell::new(0),
            windows: Windows::default(),
            uploads: Uploads::default(),
            copies: Rc::default(),
            ended: Notify::new(),
            owners: Cell::new(first_owner(core)),
            date: RefCell::new(Date::new(0)),
            recurring: RefCell::default(),
            heads: HeadPool::default(),
            encoders: Rc::default(),
        })
    }

    /// Nobody else serves while this core drains: what waits for nothing in particular ends at once.
    pub fn hurries(&self) -> bool {
        self.draining.get() && self.leaving.get().is_none()
    }

    /// Time at which an idle connection of a drain is to end, in ms on this core's clock, drawn anew for each
    /// connection. The first quarter of the span has no ends: busy clients learn of the drain from an answer until
    /// then.
    pub fn leaves_at(&self) -> u64 {
        match self.leaving.get() {
            Some((began, span)) => began + self.random.borrow_mut().u64(span / 4..=span),
            None => self.timers.now(),
        }
    }

    /// Whether a client that has just come may begin a handshake.
    pub fn check_handshake(&self, peer: IpAddr) -> Result<(), Refusal> {
        self.admission.borrow().check(peer, self.handshake_limiter.expected_wait())
    }

    pub fn begin_handshake(&self, peer: IpAddr) {
        self.admission.borrow_mut().begin(peer);
    }

    pub fn end_handshake(&self, peer: IpAddr) {
        self.admission.borrow_mut().end(peer);
    }

    /// Hands in the work that a handshake is parked for. The work of keys that are elsewhere goes to their signer.
    pub fn submit(&self, job: Job) -> Work {
        match &job {
            Job::Remote { key, .. } => {
                if key.signer == RemoteKey::KEY_PROCESS {
                    return KeyProcessClient::submit_to(self.key_process.get().map(|key_process| &**key_process), job);
                }
                let signer = self.signers.borrow().iter().find(|signer| signer.is_for(key)).cloned();
                match signer {
                    Some(signer) => signer.submit(job),
                    None => Work::Here(Pending::answered(Err(JobError::Unavailable))),
                }
            }
            // Jobs that fill the lanes are done in there.
            _ => Work::Here(self.charged(|| self.job_queue.submit(job))),
        }
    }

    /// The queue's departures: a task that is woken by the first job of a turn, and so has its own turn behind all that
    /// were ready with that one. Whoever waits for what leaves is woken, and the next turn begins.
    pub async fn leave_desk(self: Rc<Services>) {
        loop {
            poll_fn(|context| self.job_queue.poll_gathered(context)).await;
            self.charged(|| self.job_queue.run_gathered());
        }
    }

    /// Work of handshakes that is done beside their own steps, out of the same budget.
    fn charged<T>(&self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = work();
        self.handshake_limiter.charge(began.elapsed());
        result
    }

    /// The core's part in spreading clients, if there is one.
    pub fn dispatch(&self) -> Option<&CoreDispatch> {
        self.dispatch.get().map(|dispatch| &**dispatch)
    }

    /// A client's connection begins.
    pub fn connection_begins(&self) {
        self.set_connections(self.connections.get() + 1);
    }

    /// A client's connection has ended, and has given back its place.
    pub fn connection_ends(&self) {
        self.set_connections(self.connections.get() - 1);
        self.dispatch.get().into_iter().for_each(|dispatch| dispatch.give_back());
        // All of them: each listener's accept loop may wait, and the one woken alone may be one that has no client.
        self.ended.notify_waiters();
    }

    /// A client's connection has gone to another core, with its place.
    pub fn connection_leaves(&self) {
        self.set_connections(self.connections.get() - 1);
        self.ended.notify_waiters();
    }

    fn set_connections(&self, connections: usize) {
        self.connections.set(connections);
        self.dispatch.get().into_iter().for_each(|dispatch| dispatch.set_connections(connections));
    }

    /// Calls `use_it` with the current value of the `Date` field.
    pub fn with_date<T>(&self, use_it: impl FnOnce(&str) -> T) -> T {
        use_it(&self.date().text)
    }

    fn date(&self) -> RefMut<'_, Date> {
        // The kernel's coarse clock, as in `Timers::now`: seconds are all that is told.
        let second = clock_gettime(ClockId::RealtimeCoarse).tv_sec;
        let mut date = self.date.borrow_mut();
        if date.second != second {
            *date = Date::new(second);
        }
        date
    }

    pub fn hand_spans_over(&self) {
        let (mut tracer, mut spans) = (self.tracer.borrow_mut(), self.spans.borrow_mut());
        // After the end of tracing what is left goes out as before.
        let outbox = tracer.as_mut().map(|tracer| &mut tracer.outbox).or(spans.as_mut());
        let Some(outbox) = outbox else { return };
        outbox.hand_over();
        let metrics = &self.telemetry.traces;
        self.metrics.add(metrics.dropped.queue_full, outbox.take_dropped());
        self.metrics.set(metrics.waiting, outbox.waiting() as i64);
    }

    /// Closes idle client connections, the oldest first; returns how many. To save memory (`Reason::Memory`), also
    /// closes connections with a head that is not whole.
    pub fn close_idle(&self, count: usize, reason: Reason) -> usize {
        let closed = self.timers.call_oldest(count, reason == Reason::Memory);
        self.resting.resume_called();
        self.metrics.add(self.telemetry.overload.closed(reason), closed as u64);
        closed
    }

    /// Files have run out: closes a few idle client connections, if there are any.
    pub fn make_room(&self) -> Room {
        if self.timers.resting() == 0 {
            self.overload.call_others();
            return Room::None;
        }
        match self.close_idle(self.overload.take_room(), Reason::Files) {
            0 => Room::Later,
            _ => Room::Made,
        }
    }

    pub fn report_parking(&self) {
        // The stack's high-water mark is that of the whole process, and so one core reports it.
        if self.metrics.index() == 0 {
            let high_water = propylon_tls::parking_stack_high_water_bytes();
            self.metrics.set(self.telemetry.parking.stack_high_water, high_water as i64);
        }
        let now = self.parking.counts();
        let seen = self.parking_seen.replace(now);
        if now == seen {
            return;
        }
        let metrics = &self.telemetry.parking;
        self.metrics.set(metrics.parked, (now.local + now.remote) as i64);
        self.metrics.set(metrics.stacks, now.stacks as i64);
        for ((counter, now), seen) in metrics.parked_total.iter().zip(now.parked).zip(seen.parked) {
            self.metrics.add(*counter, now - seen);
        }
        self.metrics.add(metrics.done_on_the_spot, now.done_on_the_spot - seen.done_on_the_spot);
        self.metrics.add(metrics.refused, now.refused - seen.refused);
        self.metrics.add(metrics.cancelled, now.cancelled - seen.cancelled);
    }

    /// Forgets keys that no configuration has any more, as well.
    pub fn report_ready_certificates(&self) {
        let now = propylon_tls::sweep_ready();
        let seen = self.ready_seen.replace(now);
        let metrics = &self.telemetry.process.ready_certificates;
        self.metrics.set(metrics.kept, now.kept as i64);
        self.metrics.add(metrics.made, now.made - seen.made);
        self.metrics.add(metrics.evicted, now.evicted - seen.evicted);
    }

    /// A number that no other client connection has, of this core or another.
    pub fn next_owner(&self) -> NonZeroU64 {
        let owner = self.owners.get();
        self.owners.set(owner.saturating_add(1));
        owner
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_cores_have_the_same_owners() {
        let cores = [0, 1, 2, 1023].map(first_owner);
        // A million client connections a second would take nine years.
        assert!(cores.windows(2).all(|pair| pair[1].get() - pair[0].get() >= 1 << 48), "{cores:?}");
    }
}

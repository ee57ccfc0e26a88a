//! One core's world: everything its connections use, none of it shared with another core.

use std::cell::{Cell, OnceCell, RefCell, RefMut};
use std::future::poll_fn;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::HeaderValue;
use propylon_config::{HandshakeLimits, Listener};
use propylon_crypto::batch::BatchCounts;
use propylon_crypto::{Desk, Job, JobError, Pending, RemoteKey};
use propylon_metrics::Column;
use propylon_net::buffer::Stock;
use propylon_net::timers::Timers;
use propylon_observe::access_log::Sheet;
use propylon_observe::telemetry::{Reason, Telemetry};
use propylon_observe::throttle::Throttle;
use propylon_policy::admission::{Admission, Limits, PerSource, Refusal};
use propylon_policy::balance::Tier;
use propylon_policy::gate::Budget;
use propylon_policy::memory::part_of;
use propylon_tls::{Parking, ParkingCounts, ReadyCounts};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::seat;
use crate::cores::worker_count;
use crate::gate::Gate;
use crate::http2::{Familiar, Uploads, Windows};
use crate::pipes::Pipes;
use crate::pool::Pool;
use crate::request::Request;
use crate::shortage::{Room, Shared, Shortage};
use crate::signer::{Beside, Signer, Work};
use crate::snapshot::{CoreSnapshot, Publication};
use crate::trace::{Ids, Outbox, Tracer};

/// Milliseconds that a server connection is idle before what can be remade of its TLS is freed.
const REST_AFTER: u64 = 1000;
/// Requests' memory that a core keeps for the next ones, and the longest head that is kept with it.
const REQUESTS_KEPT_MAX: usize = 512;
const REQUEST_TEXT_KEPT_MAX: usize = 16 * 1024;

pub struct Core {
    pub stock: Stock,
    pub pipes: Pipes,
    pub timers: Rc<Timers>,
    pub metrics: Column,
    pub telemetry: Arc<Telemetry>,
    pub log: RefCell<Sheet>,
    /// Records spans; `None` while nothing is traced.
    pub tracer: RefCell<Option<Tracer>>,
    /// The outbox for spans, kept here until requests are traced: the tracer holds it while they are.
    spans: RefCell<Option<Outbox>>,
    pub random: RefCell<fastrand::Rng>,
    /// Private-key jobs of parked handshakes, gathered for a batch; see `leave_desk`.
    pub desk: Desk,
    /// Queue of handshakes that wait to be let in.
    pub gate: Rc<Gate>,
    admission: RefCell<Admission>,
    /// Signers by their place in the configuration; `None` in the place of one that has ended.
    signers: RefCell<Vec<Option<Rc<Signer>>>>,
    /// Signer in the process that holds this process's keys; unset where the keys are in this process.
    beside: OnceCell<Rc<Beside>>,
    seed: u64,
    pub shortage: Shortage,
    parking: Rc<Parking>,
    parking_seen: Cell<ParkingCounts>,
    ready_seen: Cell<ReadyCounts>,
    batches_seen: Cell<BatchCounts>,
    /// Scratch buffer in which a head or a chunk is put together before it is sealed; never borrowed across a wait.
    pub scratch: RefCell<Vec<u8>>,
    /// For handshakes that fail.
    pub failures_logged: RefCell<Throttle>,
    /// For servers that TLS comes to nothing with.
    pub server_failures_logged: RefCell<Throttle>,
    /// Finish what is in progress and take no more.
    pub draining: Cell<bool>,
    /// Set in a drain that a successor lets last: when it began, and for how many milliseconds idle clients leave.
    leaving: Cell<Option<(u64, u64)>>,
    /// Client connections open on this core.
    pub connections: Cell<usize>,
    /// Requests in progress on this core.
    pub requests: Cell<usize>,
    /// Bytes of memory that bodies take which are with the HTTP/2 library, for peers that have not read them.
    pub unread: Cell<usize>,
    /// Bytes by which clients of HTTP/2 have wider windows than at first.
    pub widened: Cell<u64>,
    /// Budget of the windows in which servers of HTTP/2 may send ahead.
    pub windows: Windows,
    /// Bodies that clients of HTTP/2 have uploaded and servers have not taken.
    pub uploads: Uploads,
    /// A connection has ended.
    pub ended: Notify,
    #[expect(clippy::vec_box, reason = "a request is 3 KB and is lent out: its box moves, not it")]
    requests_kept: RefCell<Vec<Box<Request>>>,
    /// The next of `next_owner`.
    owners: Cell<NonZeroU64>,
    snapshot: RefCell<Rc<CoreSnapshot>>,
    date: RefCell<Date>,
    /// Fields of responses to clients of HTTP/2.
    pub familiar: RefCell<Familiar>,
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

/// The `Date` field's value (RFC 9110 §6.6.1), made once a second.
struct Date {
    second: i64,
    text: String,
    /// The same for HTTP/2, where every response has a share in it.
    value: HeaderValue,
}

impl Date {
    fn new(second: i64) -> Date {
        let since = Duration::from_secs(u64::try_from(second).unwrap_or_default());
        let text = httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + since);
        let value = HeaderValue::from_str(&text).expect("digits, letters, colons and spaces");
        Date { second, text, value }
    }
}

impl Core {
    pub fn new(
        snapshot: Rc<CoreSnapshot>,
        parking: Rc<Parking>,
        metrics: Column,
        telemetry: Arc<Telemetry>,
        log: Sheet,
        shared: Arc<Shared>,
        seed: u64,
    ) -> Rc<Core> {
        // RSA done in batches makes it worth while to let in as many handshakes as go together.
        let budget = if snapshot.sets_aside_rsa() { Budget::of_fours() } else { Budget::default() };
        let admission = Admission::new(limits(snapshot.shared.config.process.handshakes));
        let core = metrics.index();
        Rc::new(Core {
            stock: Stock::default(),
            pipes: Pipes::default(),
            timers: Rc::new(Timers::new()),
            metrics,
            telemetry,
            log: RefCell::new(log),
            tracer: RefCell::new(None),
            spans: RefCell::new(None),
            random: RefCell::new(fastrand::Rng::with_seed(seed)),
            desk: Desk::new(),
            gate: Gate::new(budget),
            admission: RefCell::new(admission),
            signers: RefCell::default(),
            beside: OnceCell::new(),
            seed,
            shortage: Shortage::new(shared),
            parking,
            parking_seen: Cell::default(),
            ready_seen: Cell::default(),
            batches_seen: Cell::default(),
            scratch: RefCell::new(Vec::with_capacity(4096)),
            failures_logged: RefCell::default(),
            server_failures_logged: RefCell::default(),
            draining: Cell::new(false),
            leaving: Cell::default(),
            connections: Cell::new(0),
            requests: Cell::new(0),
            unread: Cell::new(0),
            widened: Cell::new(0),
            windows: Windows::default(),
            uploads: Uploads::default(),
            ended: Notify::new(),
            requests_kept: RefCell::default(),
            owners: Cell::new(first_owner(core)),
            snapshot: RefCell::new(snapshot),
            date: RefCell::new(Date::new(0)),
            familiar: RefCell::default(),
        })
    }

    /// The configuration that a request beginning now is served by.
    pub fn snapshot(&self) -> Rc<CoreSnapshot> {
        Rc::clone(&self.snapshot.borrow())
    }

    /// Whether connections of a listener end with the answer they are at: nothing more is served, or not there.
    pub fn is_leaving(&self, listener: usize) -> bool {
        self.draining.get() || self.snapshot.borrow().listener(listener).retired.is_some()
    }

    /// Lets open connections end bit by bit, since a successor serves. All clients closed at once would come to the
    /// successor at once, and an idle client may be sending a request at the moment in which its connection is closed.
    pub fn let_go_slowly(&self) {
        let time = self.snapshot().shared.config.process.drain_timeout / 2;
        self.leaving.set(Some((self.timers.now(), time.as_millis() as u64)));
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
        self.admission.borrow().check(peer, self.gate.expected_wait())
    }

    pub fn begin_handshake(&self, peer: IpAddr) {
        self.admission.borrow_mut().begin(peer);
    }

    pub fn end_handshake(&self, peer: IpAddr) {
        self.admission.borrow_mut().end(peer);
    }

    /// Connections accepted and requests begun from here on go by this one; those in progress finish on theirs.
    pub fn adopt(self: &Rc<Core>, publication: &Publication, worker: usize) {
        let earlier = self.snapshot();
        let next = earlier.succeeded_by(publication, worker, self.timers.now());
        *self.snapshot.borrow_mut() = Rc::clone(&next);
        self.tend_tracer();
        self.tend_signers(&earlier);
        self.tend_lines(Some(&earlier));
        for (place, backend) in next.backends.iter().enumerate() {
            if earlier.backends.get(place).is_some_and(|known| Rc::ptr_eq(known, backend)) {
                continue;
            }
            if let Some(known) = earlier.backends.get(place) {
                known.pool.abandon_for(Some(&backend.pool), |server, closed| self.pool_closed(place, server, closed));
            }
            backend.pool.settle(|server, closed| self.pool_closed(place, server, closed));
            self.report_all_idle(place, &backend.pool);
        }
        // Connections that have been quiet do not look by themselves, and these have something to say to their clients.
        let is_other = |(place, known): (usize, &Listener)| {
            let listener = next.listener(place);
            listener.retired.is_some() || listener.http2 != known.http2
        };
        if earlier.shared.config.live_listeners().any(is_other) {
            self.timers.wake_all();
        }
    }

    /// Starts what works beside connections and requests.
    pub fn start(self: &Rc<Core>) {
        self.tend_signers(&self.snapshot());
        self.tend_lines(None);
    }

    /// Signatures by keys of the process beside this one are asked for by this socket. To be called once, before
    /// [`Core::start`].
    pub fn take_key_process(&self, socket: OwnedFd) {
        let Some(metrics) = &self.telemetry.key_process else { return };
        let jobs_max = self.snapshot().shared.config.process.handshakes.in_progress;
        let signer = Signer::beside(socket, self.metrics.clone(), metrics, jobs_max, self.seed);
        signer.start();
        let _ = self.beside.set(Beside::new(signer, Rc::clone(&self.parking)));
    }

    /// Sends the spans recorded from here on to `outbox`.
    pub fn take_outbox(&self, outbox: Outbox) {
        *self.spans.borrow_mut() = Some(outbox);
        self.tend_tracer();
    }

    /// The core ends: what is not handed over by now is lost.
    pub fn end_traces(&self) {
        self.tracer.take();
        self.spans.take();
    }

    /// Traces requests by the configuration, or not at all.
    fn tend_tracer(&self) {
        let snapshot = self.snapshot();
        let config = &snapshot.shared.config;
        let (mut tracer, mut spans) = (self.tracer.borrow_mut(), self.spans.borrow_mut());
        let now = self.timers.now();
        match (&mut *tracer, &config.tracing) {
            (Some(tracer), Some(tracing)) => tracer.follow(tracing, now),
            (None, Some(tracing)) => {
                let ids = || Ids::new(propylon_crypto::seed(), propylon_crypto::seed());
                let new = |outbox| Tracer::new(tracing, worker_count(config), ids(), outbox, now);
                *tracer = spans.take().map(new);
            }
            // Requests in progress go on without.
            (_, None) => {
                if let Some(tracer) = tracer.take() {
                    *spans = Some(tracer.outbox);
                }
            }
        }
    }

    /// Starts the signers that are new, and ends those that are gone once no handshake can want them any more.
    fn tend_signers(self: &Rc<Core>, earlier: &CoreSnapshot) {
        let snapshot = self.snapshot();
        let config = &snapshot.shared.config;
        let mut signers = self.signers.borrow_mut();
        signers.resize(config.signers.len(), None);
        for (place, profile) in snapshot.shared.signers.iter().enumerate() {
            let is_same = signers[place].as_ref().is_some_and(|known| known.is_of(profile));
            if is_same || config.signers[place].retired.is_some() {
                continue;
            }
            let metrics = self.telemetry.signer(place);
            let jobs_max = config.process.handshakes.in_progress;
            let new =
                Signer::new(profile, self.beside.get().cloned(), self.metrics.clone(), &metrics, jobs_max, self.seed);
            new.start();
            signers[place] = Some(new);
        }
        for (place, known) in earlier.shared.config.live_signers() {
            if config.signers[place].retired.is_none() {
                continue;
            }
            let handshakes = earlier.shared.config.listeners.iter().map(|listener| listener.timeouts.handshake);
            let wait = handshakes.max().unwrap_or_default() + known.timeout;
            let (core, Some(signer)) = (Rc::clone(self), signers[place].clone()) else { continue };
            spawn_local(async move {
                sleep(wait).await;
                signer.end();
                // The signer's place may be another's by then.
                let mut signers = core.signers.borrow_mut();
                signers[place].take_if(|known| Rc::ptr_eq(known, &signer));
            });
        }
    }

    /// Has whoever drives a connection to a server of HTTP/2 look at it.
    pub fn call_drivers(&self) {
        let snapshot = self.snapshot();
        let pools = snapshot.backends.iter().map(|backend| &backend.pool).filter(|pool| pool.streams_max > 0);
        pools.flat_map(|pool| &pool.lanes).for_each(|lane| lane.call());
    }

    /// Sees to it that somebody hands idle connections to those who wait for them on other cores.
    fn tend_lines(self: &Rc<Core>, earlier: Option<&CoreSnapshot>) {
        for (place, backend) in self.snapshot().backends.iter().enumerate() {
            let known = earlier.and_then(|earlier| earlier.backends.get(place)?.pool.turnstile.as_ref());
            let current = backend.pool.turnstile.as_ref();
            let goes_on = known.zip(current).is_some_and(|(known, current)| known.is_kin(current));
            if goes_on {
                continue;
            }
            // The task that tends the earlier line looks again, and finds that it has ended.
            known.iter().for_each(|known| known.call(self.metrics.index()));
            if let Some(line) = current {
                spawn_local(seat::steward(Rc::clone(self), place, Arc::clone(line)));
            }
        }
    }

    /// Hands in the work that a handshake is parked for. The work of keys that are elsewhere goes to their signer.
    pub fn submit(&self, job: Job) -> Work {
        match &job {
            Job::Remote { key, .. } => {
                if key.signer == RemoteKey::BESIDE {
                    return Beside::submit_to(self.beside.get().map(|beside| &**beside), job);
                }
                let signer = self.signers.borrow().get(usize::from(key.signer)).cloned().flatten();
                match signer {
                    Some(signer) => signer.submit(job),
                    None => Work::Here(Pending::answered(Err(JobError::Unavailable))),
                }
            }
            // Jobs that fill the lanes are done in there.
            _ => Work::Here(self.charged(|| self.desk.submit(job))),
        }
    }

    /// The desk's departures: a task that is woken by the first job of a turn, and so has its own turn behind all that
    /// were ready with that one. Whoever waits for what leaves is woken, and the next turn begins.
    pub async fn leave_desk(self: Rc<Core>) {
        loop {
            poll_fn(|context| self.desk.poll_gathered(context)).await;
            self.charged(|| self.desk.leave());
        }
    }

    /// Work of handshakes that is done beside their own steps, out of the same budget.
    fn charged<T>(&self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = work();
        self.gate.charge(began.elapsed());
        result
    }

    /// Memory for a request, used before or new.
    pub fn request(&self) -> Box<Request> {
        self.requests_kept.borrow_mut().pop().unwrap_or_default()
    }

    pub fn give_request_back(&self, request: Box<Request>) {
        let mut kept = self.requests_kept.borrow_mut();
        if kept.len() < REQUESTS_KEPT_MAX && request.text.capacity() <= REQUEST_TEXT_KEPT_MAX {
            kept.push(request);
        }
    }

    /// Calls `use_it` with the current value of the `Date` field.
    pub fn with_date<T>(&self, use_it: impl FnOnce(&str) -> T) -> T {
        use_it(&self.date().text)
    }

    /// The same as HTTP/2 has it.
    pub fn date_value(&self) -> HeaderValue {
        self.date().value.clone()
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

    /// Once a tick: deadlines, the access log, pooled connections that were closed or idle for too long.
    pub fn tick(&self, sweep: bool) {
        self.timers.advance();
        self.metrics.increment(self.telemetry.process.ticks);
        self.telemetry.process.budgets.report(&self.metrics);
        let mut log = self.log.borrow_mut();
        log.hand_over();
        let dropped = log.take_dropped();
        if dropped > 0 {
            self.metrics.add(self.telemetry.process.access_log_dropped, dropped);
        }
        drop(log);
        self.hand_spans_over();
        self.report_parking();
        self.report_balance();
        self.pipes.report(&self.metrics, &self.telemetry.relay);
        self.metrics.set(self.telemetry.process.unread, self.unread.get() as i64);
        self.metrics.set(self.telemetry.process.widened, self.widened.get() as i64);
        self.metrics.set(self.telemetry.process.granted, self.windows.granted() as i64);
        self.metrics.set(self.telemetry.process.untaken, self.uploads.untaken() as i64);
        self.telemetry.batches.report(&self.metrics, &self.batches_seen);
        let metrics = &self.telemetry.gate;
        self.metrics.set(metrics.in_progress, self.admission.borrow().in_progress() as i64);
        self.metrics.set(metrics.queued, self.gate.waiting() as i64);
        if sweep {
            self.stock.trim();
            self.pipes.trim();
            self.sweep_pools();
            self.report_ready_certificates();
            self.report_passed_over();
        }
        self.relieve();
    }

    /// Which servers this core passes over, for as long as the configuration in effect has them.
    fn report_passed_over(&self) {
        let snapshot = self.snapshot();
        for (place, state) in snapshot.backends.iter().enumerate() {
            let suspects = state.suspects.borrow();
            if !state.told_suspects.replace(suspects.any()) && !suspects.any() {
                continue;
            }
            let servers = &snapshot.shared.config.backends[place].servers;
            for (server, configured) in servers.iter().enumerate() {
                let passed_over = configured.retired.is_none() && suspects.is_passed_over(server, self.timers.now());
                let gauge = self.telemetry.backends[place].servers[server].passed_over;
                self.metrics.set(gauge, i64::from(passed_over));
            }
        }
    }

    fn hand_spans_over(&self) {
        let (mut tracer, mut spans) = (self.tracer.borrow_mut(), self.spans.borrow_mut());
        // After the end of tracing what is left goes out as before.
        let outbox = tracer.as_mut().map(|tracer| &mut tracer.outbox).or(spans.as_mut());
        let Some(outbox) = outbox else { return };
        outbox.hand_over();
        let metrics = &self.telemetry.traces;
        self.metrics.add(metrics.dropped.queue_full, outbox.take_dropped());
        self.metrics.set(metrics.waiting, outbox.waiting() as i64);
    }

    /// Gives up what is asked of this core while memory or files run short, and what a crowd has left behind.
    fn relieve(&self) {
        let duty = self.shortage.duty(self.connections.get());
        if duty.close > 0 {
            self.close_idle(part_of(self.timers.resting_or_begun(), duty.close), Reason::Memory);
        }
        if duty.make_room > 0 {
            self.close_idle(duty.make_room, Reason::Files);
        }
        if duty.close_pools {
            self.clear_pools();
        }
        if duty.give_back {
            // Buffers that nobody has needed since the last trim go first, then those that were needed then and are
            // not now.
            self.stock.trim();
            self.stock.trim();
            self.requests_kept.take();
            self.timers.shrink();
            propylon_sys::give_memory_back();
        }
    }

    /// Closes idle client connections, the oldest first; returns how many. To save memory (`Reason::Memory`), also
    /// closes connections with a head that is not whole.
    fn close_idle(&self, count: usize, reason: Reason) -> usize {
        let closed = self.timers.call_oldest(count, reason == Reason::Memory);
        self.metrics.add(self.telemetry.shortage.closed(reason), closed as u64);
        closed
    }

    /// Files have run out: closes a few idle client connections, if there are any.
    pub fn make_room(&self) -> Room {
        if self.timers.resting() == 0 {
            self.shortage.call_others();
            return Room::None;
        }
        match self.close_idle(self.shortage.take_room(), Reason::Files) {
            0 => Room::Later,
            _ => Room::Made,
        }
    }

    /// Counts a pick that is not an ordinary one.
    pub fn note_tier(&self, backend: usize, tier: Tier) {
        let reason = match tier {
            Tier::Ordinary => return,
            Tier::Backup => "backup",
            Tier::Panic => "panic",
            Tier::All => "none-up",
        };
        self.metrics.increment(self.telemetry.backends[backend].unusual_picks.of(reason));
    }

    fn report_balance(&self) {
        let now = self.timers.now();
        let snapshot = self.snapshot();
        snapshot.backends.iter().for_each(|backend| backend.balancer.borrow().report(now));
    }

    /// Forgets keys that no configuration has any more, as well.
    fn report_ready_certificates(&self) {
        let now = propylon_tls::tend_ready();
        let seen = self.ready_seen.replace(now);
        let metrics = &self.telemetry.process.ready_certificates;
        self.metrics.set(metrics.kept, now.kept as i64);
        self.metrics.add(metrics.made, now.made - seen.made);
        self.metrics.add(metrics.evicted, now.evicted - seen.evicted);
    }

    fn report_parking(&self) {
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

    fn sweep_pools(&self) {
        let snapshot = self.snapshot();
        let now = self.timers.now();
        for (index, backend) in snapshot.backends.iter().enumerate() {
            backend.heed_notices(now);
            let idle_limit = snapshot.shared.config.backends[index].timeouts.idle.as_millis() as u64;
            backend.pool.sweep(now.saturating_sub(idle_limit), now.saturating_sub(REST_AFTER), |server, closed| {
                self.pool_closed(index, server, closed)
            });
            backend.pool.trim(|server, closed| self.pool_closed(index, server, closed));
            self.report_all_idle(index, &backend.pool);
        }
    }

    /// Says how many connections are idle.
    pub fn report_idle(&self, backend: usize, pool: &Pool, server: usize) {
        let metrics = &self.telemetry.backends[backend].servers[server];
        self.metrics.set(metrics.idle, pool.idle(server) as i64);
    }

    /// A number that no other client connection has, of this core or another.
    pub fn next_owner(&self) -> NonZeroU64 {
        let owner = self.owners.get();
        self.owners.set(owner.saturating_add(1));
        owner
    }

    /// Closes the server connections that belong to a client connection.
    pub fn forget_owner(&self, owner: NonZeroU64) {
        for (index, backend) in self.snapshot().backends.iter().enumerate() {
            backend.pool.forget(owner, |server, closed| self.pool_closed(index, server, closed));
            self.report_all_idle(index, &backend.pool);
        }
    }

    fn report_all_idle(&self, backend: usize, pool: &Pool) {
        (0..pool.servers()).for_each(|server| self.report_idle(backend, pool, server));
    }

    /// Closes every pooled connection.
    pub fn clear_pools(&self) {
        for (index, backend) in self.snapshot().backends.iter().enumerate() {
            backend.pool.clear(|server, closed| self.pool_closed(index, server, closed));
            self.report_all_idle(index, &backend.pool);
        }
    }

    fn pool_closed(&self, backend: usize, server: usize, closed: usize) {
        let metrics = &self.telemetry.backends[backend].servers[server];
        for _ in 0..closed {
            self.metrics.lower(metrics.open);
        }
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

//! One core's world: everything its connections use, none of it shared with another core.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use propylon_net::alarms::sleep;
use propylon_observe::telemetry::{BackendMetrics, Reason};
use propylon_policy::memory::part_of;
use tokio::runtime::Handle;
use tokio::task::spawn_local;

use crate::cores::worker_count;
use crate::request::Request;
use crate::services::{ListenerHandle, Services};
use crate::snapshot::{CoreSnapshot, Publication};
use crate::trace::{Ids, Outbox, Tracer};
use crate::upstream::backend::{Backend, Upstreams};
use crate::upstream::connection::ServerLimiter;
use crate::upstream::hand_over::hand_over_idle;
use propylon_signer::{KeyProcessClient, Signer};

/// Requests' memory that a core keeps for the next ones, and the longest head that is kept with it.
const REQUESTS_KEPT_MAX: usize = 512;
pub const REQUEST_TEXT_KEPT_MAX: usize = 16 * 1024;

/// One core: its services, and the configuration that it goes by.
pub struct Core {
    pub services: Rc<Services>,
    pub upstreams: Rc<Upstreams>,
    #[expect(clippy::vec_box, reason = "a request is 3 KB and is lent out: its box moves, not it")]
    requests_kept: RefCell<Vec<Box<Request>>>,
    snapshot: RefCell<Rc<CoreSnapshot>>,
}

impl Deref for Core {
    type Target = Services;

    fn deref(&self) -> &Services {
        &self.services
    }
}

impl Core {
    pub fn new(snapshot: Rc<CoreSnapshot>, upstreams: Rc<Upstreams>) -> Rc<Core> {
        let services = Rc::clone(&upstreams.services);
        upstreams.set(&snapshot.backends);
        Rc::new(Core { services, upstreams, requests_kept: RefCell::default(), snapshot: RefCell::new(snapshot) })
    }

    /// The configuration that a request beginning now is served by.
    pub fn snapshot(&self) -> Rc<CoreSnapshot> {
        Rc::clone(&self.snapshot.borrow())
    }

    /// Whether connections of a listener end with the answer they are at: nothing more is served, or not there.
    pub fn is_leaving(&self, listener: &ListenerHandle) -> bool {
        self.draining.get() || listener.is_removed()
    }

    /// Lets open connections end bit by bit, since a successor serves. All clients closed at once would come to the
    /// successor at once, and an idle client may be sending a request at the moment in which its connection is closed.
    pub fn let_go_slowly(&self) {
        let time = self.snapshot().shared.config.process.drain_timeout / 2;
        self.leaving.set(Some((self.timers.now(), time.as_millis() as u64)));
    }

    /// Connections accepted and requests begun from here on go by this one; those in progress finish on theirs.
    pub fn adopt(self: &Rc<Core>, publication: &Publication, worker: usize) {
        let earlier = self.snapshot();
        let next = earlier.succeeded_by(publication, worker, self.timers.now());
        self.upstreams.set(&next.backends);
        *self.snapshot.borrow_mut() = Rc::clone(&next);
        self.reload_tracer();
        self.reload_signers(&earlier);
        self.watch_queues(Some(&earlier));
        for known in &earlier.backends {
            let current = self.upstreams.get(known.metrics());
            if current.as_ref().is_some_and(|current| Rc::ptr_eq(&known.state, &current.state)) {
                continue;
            }
            let later = current.as_ref().map(|current| &current.state.pool);
            known.state.pool.abandon_for(later, |server, closed| known.count_closed(server, closed));
            known.report_all_idle();
            known.report_nothing_passed_over();
        }
        let is_known =
            |backend: &&Rc<Backend>| earlier.backends.iter().any(|known| Rc::ptr_eq(&known.state, &backend.state));
        for backend in next.backends.iter().filter(|backend| !is_known(backend)) {
            backend.state.pool.commit();
            backend.report_all_idle();
        }
        // Connections that have been quiet do not look by themselves, and these have something to say to their clients.
        let mut is_any_other = false;
        for (handle, known) in earlier.listeners.iter().zip(&earlier.shared.config.listeners) {
            let current = handle.index_in(next.shared.generation).map(|index| &next.shared.config.listeners[index]);
            if current.is_none() {
                handle.remove(known, known.tls.map(|id| &earlier.shared.profiles[id.0]));
            }
            is_any_other |= current.is_none_or(|current| current.http2 != known.http2);
        }
        if is_any_other {
            self.timers.wake_all();
        }
    }

    /// Starts what works beside connections and requests.
    pub fn start(self: &Rc<Core>) {
        self.reload_signers(&self.snapshot());
        self.watch_queues(None);
    }

    /// Signatures by keys of the process beside this one are asked for by this socket. To be called once, before
    /// [`Core::start`].
    pub fn take_key_process(&self, socket: OwnedFd) {
        let Some(metrics) = &self.telemetry.key_process else { return };
        let jobs_max = self.snapshot().shared.config.process.handshakes.in_progress;
        let signer = Signer::of_key_process(socket, self.metrics.clone(), metrics, jobs_max, self.seed);
        propylon_signer::start(&signer);
        let _ = self.key_process.set(KeyProcessClient::new(signer, Rc::clone(&self.parking)));
    }

    /// Sends the spans recorded from here on to `outbox`.
    pub fn take_outbox(&self, outbox: Outbox) {
        *self.spans.borrow_mut() = Some(outbox);
        self.reload_tracer();
    }

    /// The core ends: what is not handed over by now is lost.
    pub fn end_traces(&self) {
        self.tracer.take();
        self.spans.take();
    }

    /// Traces requests by the configuration, or not at all.
    fn reload_tracer(&self) {
        let snapshot = self.snapshot();
        let config = &snapshot.shared.config;
        let (mut tracer, mut spans) = (self.tracer.borrow_mut(), self.spans.borrow_mut());
        let now = self.timers.now();
        match (&mut *tracer, &config.tracing) {
            (Some(tracer), Some(tracing)) => tracer.reload(tracing, now),
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
    fn reload_signers(self: &Rc<Core>, earlier: &CoreSnapshot) {
        let snapshot = self.snapshot();
        let config = &snapshot.shared.config;
        let mut signers = self.signers.borrow_mut();
        for (profile, metrics) in snapshot.shared.signers.iter().zip(&snapshot.signer_metrics) {
            if signers.iter().any(|known| known.is_of(profile)) {
                continue;
            }
            let jobs_max = config.process.handshakes.in_progress;
            let key_process = self.key_process.get().cloned();
            let new = Signer::new(profile, key_process, self.metrics.clone(), metrics, jobs_max, self.seed);
            propylon_signer::start(&new);
            signers.push(new);
        }
        for gone in &earlier.shared.signers {
            if snapshot.shared.signers.iter().any(|current| Arc::ptr_eq(current, gone)) {
                continue;
            }
            let handshakes = earlier.shared.config.listeners.iter().map(|listener| listener.timeouts.handshake);
            let wait = handshakes.max().unwrap_or_default() + gone.config.timeout;
            let Some(signer) = signers.iter().find(|known| known.is_of(gone)).cloned() else { continue };
            let core = Rc::clone(self);
            spawn_local(async move {
                sleep(wait).await;
                signer.end();
                core.signers.borrow_mut().retain(|known| !Rc::ptr_eq(known, &signer));
            });
        }
    }

    /// Sees to it that somebody hands idle connections to those who wait for them on other cores.
    fn watch_queues(self: &Rc<Core>, earlier: Option<&CoreSnapshot>) {
        fn limiter(backend: &Backend) -> Option<&Arc<ServerLimiter>> {
            backend.state.pool.limiter.as_ref()
        }
        let snapshot = self.snapshot();
        let mut served: HashSet<*const BackendMetrics> = HashSet::new();
        for known in earlier.iter().flat_map(|earlier| &earlier.backends) {
            let Some(before) = limiter(known) else { continue };
            let current = self.upstreams.get(known.metrics());
            if current.as_ref().and_then(|current| limiter(current)).is_some_and(|current| before.is_kin(current)) {
                served.insert(Arc::as_ptr(known.metrics()));
            } else {
                // The task that serves the earlier limiter looks again, and finds that it has ended.
                before.call(self.metrics.index());
            }
        }
        for backend in &snapshot.backends {
            if let Some(limiter) = limiter(backend)
                && !served.contains(&Arc::as_ptr(backend.metrics()))
            {
                spawn_local(hand_over_idle(Rc::clone(backend), Arc::clone(limiter)));
            }
        }
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
        self.upstreams.report_balance();
        self.pipes.report(&self.metrics, &self.telemetry.relay);
        self.metrics.set(self.telemetry.process.unread, self.unread.get() as i64);
        self.metrics.set(self.telemetry.process.widened, self.widened.get() as i64);
        self.metrics.set(self.telemetry.process.granted, self.windows.granted() as i64);
        self.metrics.set(self.telemetry.process.untaken, self.uploads.untaken() as i64);
        self.telemetry.batches.report(&self.metrics, &self.batches_seen);
        let metrics = &self.telemetry.handshake_queue;
        self.metrics.set(metrics.in_progress, self.admission.borrow().in_progress() as i64);
        self.metrics.set(metrics.queued, self.handshake_limiter.queued() as i64);
        self.encoders.look(Instant::now(), Handle::current().metrics().worker_total_busy_duration(0));
        self.metrics.set(self.telemetry.compression.memory, self.encoders.bytes() as i64);
        if sweep {
            self.buffers.trim();
            self.encoders.trim();
            self.pipes.trim();
            self.upstreams.sweep();
            self.report_ready_certificates();
            self.upstreams.report_passed_over();
        }
        if let Some(dispatch) = self.dispatch.get() {
            dispatch.tick(self.connections.get(), self.handshake_limiter.queued());
        }
        self.relieve();
    }

    /// Gives up what is asked of this core while memory or files run short, and what a crowd has left behind.
    fn relieve(&self) {
        // A crowd that has gone to rest leaves its tasks' memory behind.
        let duty = self.overload.duty(self.connections.get() - self.resting.count());
        if duty.close > 0 {
            self.close_idle(part_of(self.timers.resting_or_begun(), duty.close), Reason::Memory);
        }
        if duty.make_room > 0 {
            self.close_idle(duty.make_room, Reason::Files);
        }
        if duty.close_pools {
            self.upstreams.clear();
        }
        if duty.give_back {
            // Buffers that nobody has needed since the last trim go first, then those that were needed then and are
            // not now.
            self.buffers.trim();
            self.buffers.trim();
            self.requests_kept.take();
            self.timers.shrink();
            self.resting.shrink();
            propylon_sys::release_memory();
        }
    }
}

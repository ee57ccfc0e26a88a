//! A signer of one core: its jobs, and who they are for.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use propylon_config::Verify;
use propylon_crypto::{Job, JobError, Outcome, Pending, RemoteKey};
use propylon_metrics::Column;
use propylon_net::alarms::sleep_until;
use propylon_tls::{Link, LinkError, Parking};
use tokio::sync::Notify;

use crate::channel::JobId;
use crate::dispatch::{Dispatch, Settings};
use crate::profile::SignerProfile;
use crate::report::Report;
use propylon_observe::telemetry::{BESIDE_NAME, BESIDE_SERVER, SignerMetrics};

/// One core's, for one `[signer.NAME]`.
pub struct Signer {
    dispatch: RefCell<Dispatch>,
    started: Instant,
    /// When the clock's task will look again, in microseconds; and how it is told that something falls due before.
    next_look: Cell<u64>,
    sooner: Notify,
    /// How soon anything can fall due that begins now, in microseconds.
    shortest_wait: u64,
    pub(crate) location: KeyLocation,
    /// Whether the signer is out of the configuration, and nobody waits for it any more.
    is_ended: Cell<bool>,
    end: Notify,
    /// Index at which this core begins with a name's addresses.
    first_turn: usize,
    /// Generation of each server's addresses that has been looked at, by server.
    generations: RefCell<Vec<u64>>,
}

/// Location of the private keys.
pub(crate) enum KeyLocation {
    /// Key servers, with the process that signs for what they are shown, if there is one: never one of them.
    Servers(Arc<SignerProfile>, Option<Rc<KeyProcessClient>>),
    /// In the process beside this one. Its socket, until somebody moves its bytes.
    KeyProcess(Cell<Option<OwnedFd>>),
}

/// Time that a handshake waits for a signature of the process beside this one, restarted in between or not.
const BESIDE_TIMEOUT: Duration = Duration::from_secs(5);
/// Private-key work that was handed in: a future of what comes of it. Dropped, it takes its job back.
pub enum Work {
    Here(Pending),
    Elsewhere(Awaited),
}

/// A job at a signer.
pub struct Awaited {
    signer: Rc<Signer>,
    id: JobId,
}

impl Signer {
    pub fn new(
        profile: &Arc<SignerProfile>,
        key_process: Option<Rc<KeyProcessClient>>,
        column: Column,
        metrics: &SignerMetrics,
        jobs_max: usize,
        seed: u64,
    ) -> Rc<Signer> {
        let SignerProfile { config, labels, .. } = &**profile;
        let settings = Settings {
            servers: labels.len(),
            connections: config.connections.into(),
            jobs_max,
            timeout: config.timeout.as_micros() as u64,
            hedge: config.hedge.map(|hedge| hedge.as_micros() as u64),
            verify: config.verify,
        };
        let report = Report::new(column, metrics.clone(), &config.name, labels.to_vec());
        Signer::of(KeyLocation::Servers(Arc::clone(profile), key_process), settings, report, seed)
    }

    /// Makes the signer of the process beside this one, by this core's socket to it.
    pub fn of_key_process(
        socket: OwnedFd,
        column: Column,
        metrics: &SignerMetrics,
        jobs_max: usize,
        seed: u64,
    ) -> Rc<Signer> {
        let settings = Settings {
            servers: 1,
            connections: 1,
            jobs_max,
            timeout: BESIDE_TIMEOUT.as_micros() as u64,
            hedge: None,
            // The process is this program, and looks at its signatures as this process would.
            verify: Verify::Nothing,
        };
        let report = Report::new(column, metrics.clone(), BESIDE_NAME, vec![BESIDE_SERVER.to_owned()]);
        Signer::of(KeyLocation::KeyProcess(Cell::new(Some(socket))), settings, report, seed)
    }

    fn of(location: KeyLocation, settings: Settings, report: Report, seed: u64) -> Rc<Signer> {
        let servers = settings.servers;
        Rc::new(Signer {
            shortest_wait: settings.hedge.unwrap_or(settings.timeout),
            dispatch: RefCell::new(Dispatch::new(settings, report, seed)),
            started: Instant::now(),
            next_look: Cell::new(0),
            sooner: Notify::new(),
            location,
            is_ended: Cell::new(false),
            end: Notify::new(),
            first_turn: seed as usize % 1024,
            generations: RefCell::new(vec![0; servers]),
        })
    }

    pub fn is_of(&self, profile: &Arc<SignerProfile>) -> bool {
        matches!(&self.location, KeyLocation::Servers(known, _) if Arc::ptr_eq(known, profile))
    }

    /// Whether this is the signer that has the key.
    pub fn is_for(&self, key: &RemoteKey) -> bool {
        self.profile().is_some_and(|profile| profile.config.id.0 == key.signer as usize)
    }

    /// Absent of the process beside this one.
    fn profile(&self) -> Option<&SignerProfile> {
        match &self.location {
            KeyLocation::Servers(profile, _) => Some(profile),
            KeyLocation::KeyProcess(_) => None,
        }
    }

    /// Ends its tasks, and with them its connections.
    pub fn end(&self) {
        self.is_ended.set(true);
        self.end.notify_waiters();
    }

    pub(crate) async fn ended(&self) {
        while !self.is_ended.get() {
            self.end.notified().await;
        }
    }

    /// Hands a job in that is for a remote key; others are refused.
    pub fn submit(self: &Rc<Signer>, job: Job) -> Work {
        let Job::Remote { key, scheme, input } = job else {
            return Work::Here(Pending::answered(Err(JobError::Refused)));
        };
        match self.with(|dispatch, now| dispatch.submit(key, scheme, input, now)) {
            Ok(id) => {
                if self.now() + self.shortest_wait < self.next_look.get() {
                    self.sooner.notify_one();
                }
                Work::Elsewhere(Awaited { signer: Rc::clone(self), id })
            }
            Err(error) => Work::Here(Pending::answered(Err(error))),
        }
    }

    /// Runs the jobs' clock.
    pub(crate) async fn keep_time(self: Rc<Signer>) {
        loop {
            self.leave_old_addresses();
            let next = self.with(|dispatch, now| dispatch.advance(now));
            self.next_look.set(next);
            tokio::select! {
                () = sleep_until(self.started + Duration::from_micros(next)) => {}
                () = self.sooner.notified() => {}
                () = self.ended() => return,
            }
        }
    }

    /// Connections to where a server's name does not lead any more are to end.
    fn leave_old_addresses(&self) {
        let Some(SignerProfile { addresses, .. }) = self.profile() else { return };
        for (server, seen) in self.generations.borrow_mut().iter_mut().enumerate() {
            let generation = addresses.generation(server);
            if *seen != generation {
                *seen = generation;
                self.with(|dispatch, _| dispatch.leave(server, |address| !addresses.is_current(server, address)));
            }
        }
    }

    /// Microseconds since the core started.
    fn now(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Wakers are woken when nothing is borrowed: whoever they wake may come back here.
    pub(crate) fn with<T>(&self, call: impl FnOnce(&mut Dispatch, u64) -> T) -> T {
        let now = self.now();
        let mut dispatch = self.dispatch.borrow_mut();
        dispatch.report.at(now / 1000);
        let result = call(&mut dispatch, now);
        let wakers = dispatch.take_wakers();
        drop(dispatch);
        wakers.into_iter().for_each(std::task::Waker::wake);
        result
    }

    /// The server that a connection leads to.
    pub(crate) fn server_of(&self, at: usize) -> usize {
        self.profile().map_or(0, |profile| at / usize::from(profile.config.connections))
    }

    /// Address for a connection that has failed so often: each starts at another address, then takes the next.
    pub(crate) fn address(&self, at: usize, failures: usize) -> Option<SocketAddr> {
        let turn = self.first_turn.wrapping_add(at).wrapping_add(failures);
        self.profile()?.addresses.address(self.server_of(at), turn)
    }

    /// The server may be elsewhere by now.
    pub(crate) fn doubt(&self, at: usize) {
        if let Some(profile) = self.profile() {
            profile.addresses.doubt(self.server_of(at));
        }
    }

    /// Makes the TLS link to a server; `None` for the process beside this one.
    pub(crate) fn link(&self, server: usize) -> Option<Result<Link, LinkError>> {
        let KeyLocation::Servers(profile, key_process) = &self.location else { return None };
        Some(profile.link.load().link(server, key_process.as_ref().map(|key_process| key_process.parking())))
    }

    /// Has what is shown to key servers signed for.
    pub(crate) fn submit_identity(&self, job: Job) -> Work {
        match &self.location {
            KeyLocation::Servers(_, key_process) => KeyProcessClient::submit_to(key_process.as_deref(), job),
            KeyLocation::KeyProcess(_) => Work::Here(Pending::answered(Err(JobError::Refused))),
        }
    }

    /// Uniform in 0..1.
    pub(crate) fn chance(&self) -> f64 {
        self.with(|dispatch, _| dispatch.chance())
    }
}

/// A thread's client of the key process: submits signatures, and has room for the handshakes that wait for them.
pub struct KeyProcessClient {
    signer: Rc<Signer>,
    parking: Rc<Parking>,
}

impl KeyProcessClient {
    /// Makes the client of a core, with the core's signer and parking.
    pub fn new(signer: Rc<Signer>, parking: Rc<Parking>) -> Rc<KeyProcessClient> {
        Rc::new(KeyProcessClient { signer, parking })
    }

    pub fn parking(&self) -> &Rc<Parking> {
        &self.parking
    }

    /// Submits a job for a key of the key process. Jobs for other keys are refused: a link to a key server gets its own
    /// signatures here, and must not wait for itself.
    pub fn submit(&self, job: Job) -> Work {
        match &job {
            Job::Remote { key, .. } if key.signer == RemoteKey::KEY_PROCESS => self.signer.submit(job),
            _ => Work::Here(Pending::answered(Err(JobError::Refused))),
        }
    }

    /// The same where there may be no key process.
    pub fn submit_to(key_process: Option<&KeyProcessClient>, job: Job) -> Work {
        match key_process {
            Some(key_process) => key_process.submit(job),
            None => Work::Here(Pending::answered(Err(JobError::Unavailable))),
        }
    }
}

impl Future for Work {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        match &mut *self {
            Work::Here(pending) => Pin::new(pending).poll(context),
            Work::Elsewhere(awaited) => awaited.poll(context),
        }
    }
}

impl Awaited {
    fn poll(&self, context: &mut Context<'_>) -> Poll<Outcome> {
        match self.signer.with(|dispatch, _| dispatch.poll(self.id, context.waker())) {
            Ok(outcome) => Poll::Ready(outcome),
            // The waker that was there before is dropped here, where nothing is borrowed: it may be a task's last hold.
            Err(_replaced) => Poll::Pending,
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let released = self.signer.with(|dispatch, _| dispatch.release(self.id));
        drop(released);
    }
}

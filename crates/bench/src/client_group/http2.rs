//! A client group over HTTP/2: each client has a connection of its own, asks on it a few times, and lies idle.
//!
//! One thread; each client is a task that drives its own connection, by the `h2` library.

use super::phase::{ClientCounts, LoadPhase};
use crate::cpu;
use crate::failure::{Outcome, While};
use crate::http2::Request;
use crate::http2::connection::{broken, handshake, read};
use crate::http2::wire::Wire;
use crate::interrupt::{Interrupt, LOOK_INTERVAL};
use crate::link::Broken;
use crate::stats::{ErrorKind, LoadStats};
use crate::target::Target;
use bytes::Bytes;
use h2::client::{Connection, SendRequest};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, Semaphore};
use tokio::task::LocalSet;

/// The behaviour that all clients of a group over HTTP/2 have in common.
#[derive(Clone, Serialize, Deserialize)]
pub struct Http2Behaviour {
    pub path: String,
    /// Requests on each connection, one after the other.
    pub requests: u32,
    /// For one request, and for the connection and its handshake.
    pub timeout: Duration,
    /// Clients that connect at once: those that have not had all their answers yet.
    pub opening_max: usize,
}

/// Clients, whose connections live from one phase to the next.
pub struct Http2ClientGroup {
    // The tasks go before the runtime that their sockets belong to.
    tasks: LocalSet,
    runtime: Runtime,
    shared: Rc<Shared>,
    interrupt: Interrupt,
}

/// State that the clients share.
struct Shared {
    target: Target,
    behaviour: Http2Behaviour,
    request: Request,
    opening: Semaphore,
    counts: Cell<ClientCounts>,
    /// Clients that have been served, or have failed.
    tried: Cell<usize>,
    answers: RefCell<LoadStats>,
    connects: RefCell<LoadStats>,
    closed_idle: Cell<u64>,
    /// The last client was tried.
    over: Notify,
}

impl Http2ClientGroup {
    pub fn new(mut target: Target, behaviour: Http2Behaviour, interrupt: &Interrupt) -> Outcome<Self> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().when("starting the runtime")?;
        target.offer_http2();
        let shared = Shared {
            request: Request::new("GET", &behaviour.path, &target, &[], 0)?,
            opening: Semaphore::new(behaviour.opening_max),
            target,
            behaviour,
            counts: Cell::default(),
            tried: Cell::new(0),
            answers: RefCell::new(LoadStats::new()),
            connects: RefCell::new(LoadStats::new()),
            closed_idle: Cell::new(0),
            over: Notify::new(),
        };
        Ok(Self { tasks: LocalSet::new(), runtime, shared: Rc::new(shared), interrupt: interrupt.clone() })
    }

    /// Lets clients come until there are `total`, and waits until each was served or has failed, or the timeout has
    /// passed.
    pub fn grow(&mut self, total: usize, timeout: Duration, report: impl FnMut(ClientCounts)) -> Outcome<LoadPhase> {
        crate::machine::require_open_files(total)?;
        for _ in self.shared.counts.get().wanted..total {
            self.tasks.spawn_local(self.shared.clone().live());
        }
        self.shared.count(|counts| counts.wanted = counts.wanted.max(total));
        self.run(Instant::now() + timeout, true, report)
    }

    /// Lets time pass.
    pub fn hold(&mut self, duration: Duration) -> Outcome<LoadPhase> {
        self.run(Instant::now() + duration, false, |_| {})
    }

    fn run(&mut self, until: Instant, only_growth: bool, mut report: impl FnMut(ClientCounts)) -> Outcome<LoadPhase> {
        let (begin, cpu_before) = (Instant::now(), cpu::this_thread());
        let Self { shared, interrupt, .. } = self;
        shared.answers.replace(LoadStats::new());
        shared.connects.replace(LoadStats::new());
        shared.closed_idle.set(0);
        self.tasks.block_on(&self.runtime, async {
            let mut look_due = begin + LOOK_INTERVAL;
            loop {
                let now = Instant::now();
                if now >= until || (only_growth && shared.tried.get() == shared.counts.get().wanted) {
                    return Ok(());
                }
                let wait = (until - now).min(LOOK_INTERVAL);
                let _ = tokio::time::timeout(wait, shared.over.notified()).await;
                if now >= look_due {
                    look_due = now + LOOK_INTERVAL;
                    interrupt.check()?;
                    report(shared.counts.get());
                }
            }
        })?;
        let (elapsed, cpu) = (begin.elapsed(), cpu::this_thread() - cpu_before);
        let (answers, connects) = (shared.answers.borrow(), shared.connects.borrow());
        let phase = LoadPhase::new(&answers, &connects, shared.counts.get(), elapsed, cpu);
        Ok(LoadPhase { closed_idle: shared.closed_idle.get(), ..phase })
    }
}

impl Shared {
    /// The life of one client.
    async fn live(self: Rc<Self>) {
        let Ok(turn) = self.opening.acquire().await else { return };
        let due = Instant::now();
        let connected = self.in_time(Wire::connect(&self.target)).await;
        let lived = match connected {
            Ok(socket) => {
                self.connects.borrow_mut().done += 1;
                self.connects.borrow_mut().record_latency(due.elapsed());
                self.count(|counts| counts.open += 1);
                let lived = self.use_connection(socket, due, || drop(turn)).await;
                self.count(|counts| counts.open -= 1);
                lived
            }
            Err(broken) => Err(broken),
        };
        if let Err(broken) = lived {
            self.answers.borrow_mut().record_error(broken.kind, || broken.detail);
            self.note_tried();
        }
    }

    /// Asks, and holds the connection until the server ends it. `served` is done when all was answered.
    async fn use_connection(&self, socket: TcpStream, due: Instant, served: impl FnOnce()) -> Result<(), Broken> {
        // Closed with a reset, so that no TIME_WAIT holds the local port.
        let _ = socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO));
        let opened = async { handshake(Wire::begin(socket, &self.target).await?).await };
        let (mut sender, connection): (SendRequest<Bytes>, Connection<Wire, Bytes>) = self.in_time(opened).await?;
        let mut connection = pin!(connection);
        tokio::select! {
            biased;
            asked = self.ask(&mut sender, due) => asked?,
            _ = &mut connection => return Err(Broken::new(ErrorKind::Closed, "closed by the server")),
        }
        self.count(|counts| counts.served += 1);
        self.note_tried();
        served();
        // While `sender` lives the client does not end it.
        let _ = connection.await;
        self.count(|counts| counts.served -= 1);
        self.closed_idle.set(self.closed_idle.get() + 1);
        Ok(())
    }

    /// As often as it is to be, one request after the other.
    async fn ask(&self, sender: &mut SendRequest<Bytes>, mut due: Instant) -> Result<(), Broken> {
        for _ in 0..self.behaviour.requests {
            let status = self.in_time(async { self.exchange(sender).await.map_err(|error| broken(&error)) }).await?;
            if !(200..400).contains(&status) {
                return Err(Broken::new(ErrorKind::BadStatus, format!("status {status}")));
            }
            self.answers.borrow_mut().done += 1;
            self.answers.borrow_mut().record_latency(due.elapsed());
            due = Instant::now();
        }
        Ok(())
    }

    async fn exchange(&self, sender: &mut SendRequest<Bytes>) -> Result<u16, h2::Error> {
        std::future::poll_fn(|cx| sender.poll_ready(cx)).await?;
        let (response, _) = sender.send_request(self.request.head.clone(), true)?;
        Ok(read(response.await?, |_| {}).await?.status)
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, Broken>>) -> Result<T, Broken> {
        let timeout = self.behaviour.timeout;
        match tokio::time::timeout(timeout, work).await {
            Ok(result) => result,
            Err(_) => Err(Broken::new(ErrorKind::Timeout, format!("nothing complete within {timeout:?}"))),
        }
    }

    fn count(&self, change: impl FnOnce(&mut ClientCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    fn note_tried(&self) {
        self.tried.set(self.tried.get() + 1);
        if self.tried.get() == self.counts.get().wanted {
            self.over.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::tests::Running;

    const WAIT_MAX: Duration = Duration::from_secs(10);

    fn group(address: std::net::SocketAddr, requests: u32) -> Http2ClientGroup {
        let target = Target::new(address, "localhost", None).unwrap();
        let behaviour = Http2Behaviour { path: "/".to_owned(), requests, timeout: WAIT_MAX, opening_max: 16 };
        Http2ClientGroup::new(target, behaviour, &Interrupt::default()).unwrap()
    }

    #[test]
    fn clients_ask_in_turn_and_stay_connected() {
        let origin = Running::http2();
        let mut group = group(origin.address, 20);
        let grown = group.grow(50, WAIT_MAX, |_| {}).unwrap();
        assert_eq!((grown.done, grown.connects, grown.errors_total()), (1000, 50, 0), "{:?}", grown.first_error);
        let grown = group.grow(80, WAIT_MAX, |_| {}).unwrap();
        assert_eq!((grown.done, grown.connects), (600, 30));
        let held = group.hold(Duration::from_millis(50)).unwrap();
        assert_eq!((held.done, held.closed_idle), (0, 0));
        assert_eq!(held.clients, ClientCounts { wanted: 80, open: 80, served: 80 });
        drop(origin);
        let held = group.hold(Duration::from_millis(500)).unwrap();
        assert_eq!((held.closed_idle, held.clients), (80, ClientCounts { wanted: 80, open: 0, served: 0 }));
    }

    #[test]
    fn a_client_that_is_failed_is_an_error_and_not_waited_for() {
        let origin = Running::http2_failing(3);
        let grown = group(origin.address, 20).grow(4, WAIT_MAX, |_| {}).unwrap();
        assert_eq!((grown.errors["bad-status"], grown.clients.open, grown.clients.served), (4, 0, 0));

        // Accepts, and speaks HTTP/1.1.
        let origin = Running::start(Duration::ZERO, None);
        let grown = group(origin.address, 20).grow(4, WAIT_MAX, |_| {}).unwrap();
        assert_eq!((grown.errors_total(), grown.done, grown.clients.served), (4, 0, 0), "{:?}", grown.first_error);
    }
}

//! One core's links: its own listening sockets and its connections. Requests share nothing with other cores but the
//! queues of expensive work.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use propylon_crypto::key_process::HERE;
use propylon_metrics::Column;
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::sleep;

use crate::connection::Connection;
use crate::core::{Command, Core, Scratch, Shared};
use crate::hsm::Tokens;
use crate::kernels::{Kernels, Role, Seen};
use crate::pending_handshakes::{PendingHandshakes, Source};
use crate::signing::TaskQueues;
use crate::task::ConnectionEvent;
use crate::telemetry::{End, Telemetry};

/// Pause before accepting again after an accept failed.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// Pause before an engine that takes nothing is tried again.
const HERE_REST: Duration = Duration::from_millis(10);
/// Connections on their way from the core that accepted them to the one that serves them.
const HANDED_OVER_MAX: usize = 128;

pub struct Worker {
    pub index: usize,
    pub shared: Arc<Shared>,
    pub listeners: Vec<TcpListener>,
    /// Socket to one core of the engine whose key process this is; absent in a server of its own.
    pub engine: Option<OwnedFd>,
    pub commands: mpsc::Receiver<Command>,
    /// Command channels of all workers, this one included.
    pub command_senders: Vec<mpsc::Sender<Command>>,
    pub queues: TaskQueues,
    pub tokens: Tokens,
    pub kernels: Kernels,
    pub column: Column,
    pub telemetry: &'static Telemetry,
    pub idle_timeout: Duration,
    pub timeout: Duration,
}

/// Channel of commands to a worker.
pub fn command_channel() -> (mpsc::Sender<Command>, mpsc::Receiver<Command>) {
    mpsc::channel(HANDED_OVER_MAX)
}

impl Worker {
    /// Serves until the command to drain has come and the last connection has ended; all threads wait for `ready`.
    pub fn run(self, ready: &Barrier) -> io::Result<()> {
        self.kernels.install(if self.engine.is_some() { Role::Engine } else { Role::Links });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else {
            ready.wait();
            return runtime.map(drop);
        };
        LocalSet::new().block_on(&runtime, self.serve(ready))
    }

    async fn serve(mut self, ready: &Barrier) -> io::Result<()> {
        let mut seen = Seen::default();
        self.telemetry.kernels.report(&self.column, &mut seen, 0, 0);
        let pending = PendingHandshakes::new(self.shared.connections_max, self.command_senders.len());
        let core = Rc::new(Core {
            shared: self.shared,
            queues: self.queues,
            tokens: self.tokens,
            column: self.column,
            telemetry: self.telemetry,
            idle_timeout: self.idle_timeout,
            timeout: self.timeout,
            scratch: RefCell::new(Scratch::new(seen)),
            index: self.index,
            command_senders: self.command_senders,
            open: RefCell::default(),
            pending: RefCell::new(pending),
            last: Notify::new(),
        });
        let accepting = self.listeners.into_iter().map(|listener| core.listen(listener));
        let accepting: io::Result<Vec<JoinHandle<()>>> = accepting.collect();
        // Blocks this thread, which has nothing else to do before all others are as far.
        ready.wait();
        let accepting = accepting?;
        self.engine.map(|socket| core.serve_engine(socket)).transpose()?;
        let mut serial = 0;
        while let Some(order) = self.commands.recv().await {
            match order {
                Command::Serve(stream) => {
                    serial += 1;
                    core.serve(stream, serial);
                }
                Command::Beat(beat) => drop(beat),
                Command::Drain => break,
            }
        }
        accepting.iter().for_each(JoinHandle::abort);
        // Connections that were on their way here are not begun any more.
        while let Ok(order) = self.commands.try_recv() {
            if matches!(order, Command::Serve(_)) {
                core.shared.leave(core.index);
            }
        }
        core.drain().await;
        Ok(())
    }
}

impl Core {
    fn listen(self: &Rc<Self>, listener: TcpListener) -> io::Result<JoinHandle<()>> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let core = Rc::clone(self);
        Ok(spawn_local(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => core.accepted(stream).await,
                    Err(_) => {
                        core.column.increment(core.telemetry.accept_errors);
                        sleep(ACCEPT_REST).await;
                    }
                }
            }
        }))
    }

    /// Finds the core that serves a connection.
    async fn accepted(&self, stream: TcpStream) {
        self.column.increment(self.telemetry.accepted);
        let Some(index) = self.shared.admit(self.index).or_else(|| self.make_room()) else {
            self.column.increment(self.telemetry.turned_away);
            return;
        };
        let _ = stream.set_nodelay(true);
        let is_sent = match stream.into_std() {
            // Waits if that core is behind with its new connections: then this one accepts no more for a while.
            Ok(stream) => self.command_senders[index].send(Command::Serve(stream)).await.is_ok(),
            Err(_) => false,
        };
        if !is_sent {
            self.shared.leave(index);
        }
    }

    fn serve(self: &Rc<Self>, stream: std::net::TcpStream, serial: u64) {
        let place = Taken { core: Rc::clone(self), serial, end: End::Broken };
        self.column.raise(self.telemetry.connections);
        let Ok(stream) = TcpStream::from_std(stream) else { return };
        // Gone already.
        let Ok(peer) = stream.peer_addr() else { return };
        let Some(tls) = self.shared.tls.load_full() else { return };
        let Ok(connection) = Connection::new(Rc::clone(self), serial, stream, tls) else { return };
        self.open.borrow_mut().insert(serial, connection.events());
        let evicted = self.pending.borrow_mut().enter(serial, Source::of(peer.ip()));
        evicted.into_iter().for_each(|serial| self.displace(serial));
        self.column.set(self.telemetry.handshaking, self.pending.borrow().len() as i64);
        spawn_local(async move {
            let mut place = place;
            let peer = log::log_enabled!(log::Level::Debug).then(|| connection.peer()).flatten();
            place.end = connection.run().await;
            if let Some(peer) = peer {
                log::debug!("{peer}: ended: {:?}", place.end);
            }
        });
    }

    /// Serves the engine for as long as this process lives, which exits when the engine's socket ends: the
    /// supervisor starts another.
    fn serve_engine(self: &Rc<Self>, socket: OwnedFd) -> io::Result<()> {
        propylon_sys::set_nonblocking(&socket, true)?;
        let connection = Connection::to_engine(Rc::clone(self), 0, socket.try_clone()?)?;
        spawn_local(async move {
            // The word that this process is here follows what the process before has left unanswered, which is
            // asked again.
            while propylon_sys::try_send_message(&socket, HERE)
                .is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
            {
                sleep(HERE_REST).await;
            }
            let end = connection.run().await;
            // An end with unread words on their way counts as the engine's end too: it did not wait for them.
            let is_over = matches!(end, End::Client | End::Broken);
            if !is_over {
                log::error!("key process: an engine's socket cannot be served any more: {end:?}");
            }
            log::logger().flush();
            std::process::exit(i32::from(!is_over));
        });
        Ok(())
    }

    async fn drain(&self) {
        for events in self.open.borrow().values() {
            // The channel has room for this event.
            let _ = events.try_send(ConnectionEvent::Drain);
        }
        while !self.open.borrow().is_empty() {
            self.last.notified().await;
        }
    }
}

/// A connection's place, given back however the connection ends.
struct Taken {
    core: Rc<Core>,
    serial: u64,
    end: End,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let core = &self.core;
        core.open.borrow_mut().remove(&self.serial);
        core.handshake_is_over(self.serial);
        core.shared.leave(core.index);
        core.column.lower(core.telemetry.connections);
        core.column.increment(core.telemetry.ended[self.end as usize]);
        if std::thread::panicking() {
            core.column.increment(core.telemetry.panics);
        }
        core.last.notify_one();
    }
}

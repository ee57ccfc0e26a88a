//! Connections to servers: made, agreed on, and given back.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::task::Poll;
use std::time::{Duration, Instant};

use propylon_config::BackendSource;
use propylon_http::fault::{Blame, Fault};
use propylon_net::server_stream::{ServerHandshake, ServerStream};
use propylon_net::socket::Socket;
use propylon_net::timers::Deadline;
use propylon_sys::{Address, ConnectSource, UnixName};
use propylon_tls::{Connector, UpstreamFailure};
use rustix::io::Errno;

use super::backend::Backend;
use super::connection::{Permit, PoolKey, ServerConnection};
use super::pool::Returned;
use crate::endpoint::EndpointAddress;
use crate::fault::{self, Attempt, Repeatable};
use crate::services::Services;

/// Connections end up to so much earlier than `max_lifetime` says, by chance: those made together do not end together.
const LIFETIME_SPREAD_PERCENT: u64 = 10;

/// Pauses between two attempts at a Unix socket that has no room for another connection: short at first, then twice as
/// long each time.
const UNIX_PAUSE_MILLIS_MIN: u64 = 1;
const UNIX_PAUSE_MILLIS_MAX: u64 = 64;

pub const CONNECT_TIMEOUT: Attempt = Attempt::new(Fault::ConnectTimeout, Repeatable::Unsent);

/// Makes a connection within the backend's `connect` timeout, and counts how it went. The connection begins with
/// `preamble`.
pub async fn connect(
    backend: &Backend,
    key: PoolKey,
    permit: Option<Permit>,
    preamble: &[u8],
    deadline: &Deadline,
) -> Result<Box<ServerConnection>, Attempt> {
    let services = &backend.services;
    // One timeout covers the connect and the TLS handshake: only then the server can take a request.
    let due = services.timers.now() + backend.terms.connect;
    let started = Instant::now();
    let reached = Reach { backend, server: key.server, preamble, deadline }.any(due).await;
    services.metrics.observe(backend.metrics().connect_duration, started.elapsed().as_micros() as u64);
    let made = match (reached, &backend.connector) {
        (Ok((socket, remote)), None) => Ok((ServerStream::plain(socket), remote)),
        (Ok((socket, remote)), Some(connector)) => {
            let greeted = greet(services, socket, connector, key.server, due, deadline).await;
            account_greeting(backend, key.server, &greeted);
            greeted.map(|(stream, _)| (stream, remote)).map_err(|failure| failure.attempt())
        }
        (Err(failed), _) => Err(failed),
    };
    commit(backend, key, permit, made)
}

/// Counts the result of an attempt to connect; returns the connection if there is one.
pub fn commit(
    backend: &Backend,
    key: PoolKey,
    permit: Option<Permit>,
    made: Result<(ServerStream, EndpointAddress), Attempt>,
) -> Result<Box<ServerConnection>, Attempt> {
    let metrics = backend.server_metrics(key.server);
    let (config, state, services) = (backend.config(), &backend.state, &backend.services);
    match made {
        Ok((stream, remote)) => {
            state.succeeded(key.server, services.timers.now());
            services.metrics.increment(metrics.connections);
            services.metrics.raise(metrics.open);
            let expires = config
                .max_lifetime
                .map(|lifetime| Instant::now() + spread(lifetime, &mut services.random.borrow_mut()));
            let home = services.metrics.index() as u32;
            Ok(Box::new(ServerConnection { stream, key, remote, home, requests: 0, expires, permit }))
        }
        Err(failed) => {
            // The server is not to blame for a shortage on this machine.
            if failed.fault.status() != 503 {
                state.suspects.borrow_mut().failed(key.server, services.timers.now());
            }
            if failed.fault != Fault::ClientCertificateUnsigned {
                services.metrics.increment(metrics.connect_failures);
            }
            Err(failed)
        }
    }
}

/// Checks a connection in after a request: into its pool if it can serve again; else it is closed, and its permit
/// returned.
pub fn check_in(backend: &Backend, mut connection: Box<ServerConnection>, clean: bool) -> Option<Permit> {
    let (server, services) = (connection.key.server, &backend.services);
    let metrics = backend.server_metrics(server);
    if !clean || services.draining.get() {
        services.metrics.lower(metrics.open);
        return connection.permit.take();
    }
    let pool = &backend.state.pool;
    let returned = pool.check_in(connection, services.timers.now());
    backend.report_idle(server);
    if returned == Returned::Closed {
        services.metrics.lower(metrics.open);
    }
    None
}

fn spread(lifetime: Duration, random: &mut fastrand::Rng) -> Duration {
    let most = lifetime.as_millis() as u64 * LIFETIME_SPREAD_PERCENT / 100;
    lifetime - Duration::from_millis(random.u64(..=most))
}

/// A connect to a server. The connection begins with `preamble`.
struct Reach<'a> {
    backend: &'a Backend,
    server: usize,
    preamble: &'a [u8],
    deadline: &'a Deadline,
}

impl Reach<'_> {
    /// Connects to the server, at the address that the round robin picks; at another one where that fails.
    async fn any(&self, due: u64) -> Result<(Socket, EndpointAddress), Attempt> {
        let (timers, endpoint) = (&self.backend.services.timers, &self.backend.servers[self.server].endpoint);
        let mut remotes = endpoint.connect_order();
        let share = due.saturating_sub(timers.now()) / remotes.len().max(1) as u64;
        let mut failed = Attempt::new(Fault::ConnectFailed, Repeatable::Unsent);
        let mut lost: Option<EndpointAddress> = None;
        while let Some(remote) = remotes.next() {
            // An address that does not answer leaves time for the others.
            let due = if remotes.len() == 0 { due } else { (timers.now() + share).min(due) };
            match self.address(remote.address, due).await {
                Ok(socket) => {
                    lost.into_iter().for_each(|lost| endpoint.note_failed(lost));
                    return Ok((socket, remote));
                }
                Err(other) => (failed, lost) = (other, Some(remote)),
            }
            if failed.repeatable == Repeatable::No {
                break;
            }
        }
        Err(failed)
    }

    async fn address(&self, address: Address, due: u64) -> Result<Socket, Attempt> {
        let services = &self.backend.services;
        let stream = match address {
            Address::Ip(address) => connect_ip(self.backend, address, (true, false)),
            Address::Unix(name) => connect_unix(self.backend, self.server, name, (due, self.deadline)).await,
        };
        let stream = stream.map_err(|error| connect_failure(&error));
        let stream = stream.and_then(|stream| match services.overload.is_kept_from_servers(&stream) {
            true => Err(OUT_OF_FILES),
            false => Ok(stream),
        });
        if stream.as_ref().is_err_and(|failure| failure.fault == Fault::OutOfFiles) {
            // For the next one.
            services.make_room();
        }
        let mut socket = Socket::new(stream?);
        if let Address::Ip(_) = address {
            await_connected(services, &mut socket, due, self.deadline).await?;
        }
        // The request follows at once. The kernel takes a first few hundred bytes whole, or the connection has failed.
        if !self.preamble.is_empty() && socket.send_more(self.preamble).ok() != Some(self.preamble.len()) {
            return Err(Attempt::new(Fault::WriteFailed, Repeatable::Unsent));
        }
        Ok(socket)
    }
}

/// Starts to connect, from the backend's sources in turn. One that has no port left for this server is passed over.
/// `how`: without Nagle's delay; else, whether the first write follows at once.
pub fn connect_ip(
    backend: &Backend,
    address: SocketAddr,
    how @ (nodelay, has_bytes): (bool, bool),
) -> std::io::Result<TcpStream> {
    let sources = match &backend.config().source {
        None if nodelay => return propylon_sys::connect(address),
        None => return propylon_sys::connect_to_write_once(address, has_bytes),
        Some(BackendSource::Interface(name)) => {
            return propylon_sys::connect_from(address, ConnectSource::Interface(name), how);
        }
        Some(sources) => sources.of_family(address.is_ipv4()),
    };
    let turn = &backend.state.source_turn;
    let first = turn.replace(turn.get().wrapping_add(1));
    let mut made = Err(ErrorKind::AddrNotAvailable.into());
    for step in 0..sources.len() {
        let source = sources[first.wrapping_add(step) % sources.len()];
        made = propylon_sys::connect_from(address, ConnectSource::Address(source), how);
        if !matches!(&made, Err(error) if error.kind() == ErrorKind::AddrNotAvailable) {
            break;
        }
    }
    made
}

async fn await_connected(
    services: &Services,
    socket: &mut Socket,
    due: u64,
    deadline: &Deadline,
) -> Result<(), Attempt> {
    poll_fn(|context| {
        if let Poll::Ready(connected) = socket.poll_connected(context) {
            return Poll::Ready(connected.map_err(|error| connect_failure(&error)));
        }
        if services.timers.now() >= due {
            return Poll::Ready(Err(CONNECT_TIMEOUT));
        }
        deadline.set(due, context.waker());
        Poll::Pending
    })
    .await
}

/// Connects to a Unix socket, which is done at once, unless as many connections wait there for their accept as may. The
/// kernel does not tell when fewer do: it is asked again until it is `due`, in milliseconds on the core's clock.
pub async fn connect_unix(
    backend: &Backend,
    server: usize,
    name: UnixName,
    (due, deadline): (u64, &Deadline),
) -> std::io::Result<TcpStream> {
    let services = &backend.services;
    let mut pause = UNIX_PAUSE_MILLIS_MIN;
    loop {
        match propylon_sys::connect(name) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                log_unix_failure(backend, server, &error);
                return Err(error);
            }
            Ok(stream) => return Ok(stream),
        }
        let now = services.timers.now();
        if now >= due {
            return Err(ErrorKind::TimedOut.into());
        }
        let again = (now + pause).min(due);
        pause = (pause * 2).min(UNIX_PAUSE_MILLIS_MAX);
        poll_fn(|context| {
            if services.timers.now() >= again {
                return Poll::Ready(());
            }
            deadline.set(again, context.waker());
            Poll::Pending
        })
        .await;
    }
}

/// Logs why a Unix socket cannot be connected to, where that is for the user to mend.
fn log_unix_failure(backend: &Backend, server: usize, error: &std::io::Error) {
    let advice = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::ACCESS) => {
            "give the account of this process (process.user) leave to write to the socket and to pass its folders"
        }
        Some(Errno::PERM) => "the sandbox denies it, or another security module: see process.sandbox",
        Some(Errno::NOENT | Errno::NOTDIR) => "start the server, or mend the path",
        Some(Errno::CONNREFUSED) => "start the server: its socket is there, and nobody listens",
        Some(Errno::PROTOTYPE | Errno::NOTSOCK) => "nothing there takes streams: mend the path, or the server",
        _ => return,
    };
    log_server_failure(backend, server, error, advice);
}

/// A stream, and how long it took to agree on it, in microseconds.
type Greeted = Result<(ServerStream, u64), Ungreeted>;

/// Why TLS with a server came to nothing.
enum Ungreeted {
    Timeout,
    Failed(UpstreamFailure),
}

impl Ungreeted {
    fn attempt(&self) -> Attempt {
        let fault = self.fault();
        // Another server would fare no better with what is wrong here.
        Attempt::new(fault, if fault.blame() == Blame::Engine { Repeatable::No } else { Repeatable::Unsent })
    }

    fn fault(&self) -> Fault {
        match self {
            Ungreeted::Timeout => Fault::TlsTimeout,
            Ungreeted::Failed(failure) => fault::of_server_tls(failure.reason),
        }
    }
}

async fn greet(
    services: &Services,
    socket: Socket,
    connector: &Connector,
    server: usize,
    due: u64,
    deadline: &Deadline,
) -> Greeted {
    let began = Instant::now();
    let handshake = connector.connect(server).map_err(Ungreeted::Failed)?;
    let mut greeting = ServerHandshake::new(socket, handshake);
    let stream = poll_fn(|context| {
        if let Poll::Ready(greeted) = greeting.poll(context, &services.buffers, |job| services.submit(job)) {
            return Poll::Ready(greeted.map_err(Ungreeted::Failed));
        }
        if services.timers.now() >= due {
            return Poll::Ready(Err(match greeting.awaits_signature() {
                true => Ungreeted::Failed(UpstreamFailure::unsigned_in_time()),
                false => Ungreeted::Timeout,
            }));
        }
        deadline.set(due, context.waker());
        Poll::Pending
    })
    .await?;
    Ok((stream, began.elapsed().as_micros() as u64))
}

fn account_greeting(backend: &Backend, server: usize, greeted: &Greeted) {
    let Some(metrics) = &backend.metrics.tls else { return };
    let column = &backend.services.metrics;
    match greeted {
        Ok((stream, micros)) => {
            let resumed = stream.facts().is_some_and(|facts| facts.resumed);
            column.increment(if resumed { metrics.resumed } else { metrics.full });
            column.observe(metrics.duration, *micros);
        }
        Err(why) => {
            column.increment(metrics.failures.of(why.fault()));
            if let Ungreeted::Failed(failure) = why {
                log_tls_failure(backend, server, failure);
            }
        }
    }
}

/// Logs which server TLS came to nothing with, and what to do.
pub fn log_tls_failure(backend: &Backend, server: usize, failure: &UpstreamFailure) {
    log_server_failure(backend, server, failure, failure.advice());
}

fn log_server_failure(backend: &Backend, server: usize, failure: &dyn std::fmt::Display, advice: &str) {
    let services = &backend.services;
    let Some(withheld) = services.server_failures_logged.borrow_mut().admit(services.timers.now()) else { return };
    let (name, label) = (&backend.config().name, &backend.servers[server].label);
    let more = if withheld > 0 { format!(" ({withheld} like this were not logged)") } else { String::new() };
    log::warn!("backend \"{name}\", server {label}: {failure}; {advice}{more}");
}

/// Logs what an application of FastCGI complains about, in one line.
pub fn log_complaint(backend: &Backend, server: usize, complaint: &[u8]) {
    if complaint.is_empty() {
        return;
    }
    let services = &backend.services;
    let Some(withheld) = services.server_failures_logged.borrow_mut().admit(services.timers.now()) else { return };
    let (name, label) = (&backend.config().name, &backend.servers[server].label);
    let more = if withheld > 0 { format!(" ({withheld} like this were not logged)") } else { String::new() };
    let text = String::from_utf8_lossy(complaint.trim_ascii());
    log::warn!("backend \"{name}\", server {label} complains: {}{more}", text.escape_debug());
}

/// Another server would fare no better.
const OUT_OF_FILES: Attempt = Attempt::new(Fault::OutOfFiles, Repeatable::No);

pub fn connect_failure(error: &std::io::Error) -> Attempt {
    match (error.raw_os_error(), error.kind()) {
        (None, ErrorKind::TimedOut) => return CONNECT_TIMEOUT,
        // A name's address of a family that no source has.
        (None, ErrorKind::AddrNotAvailable) => return Attempt::new(Fault::ConnectFailed, Repeatable::Unsent),
        _ => {}
    }
    let fault = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => return OUT_OF_FILES,
        // Towards this address: another has ports of its own.
        Some(Errno::ADDRNOTAVAIL) => Fault::OutOfPorts,
        Some(Errno::CONNREFUSED) => Fault::ConnectRefused,
        _ => Fault::ConnectFailed,
    };
    Attempt::new(fault, Repeatable::Unsent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_are_made_together_do_not_end_together() {
        let (hour, mut random) = (Duration::from_secs(3_600), fastrand::Rng::with_seed(7));
        let ends: Vec<Duration> = (0..1_000).map(|_| spread(hour, &mut random)).collect();
        let (first, last) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
        assert!(*first >= hour * 9 / 10 && *last <= hour, "{first:?} to {last:?}");
        assert!(*last - *first > hour * 9 / 100, "{first:?} to {last:?}");
    }

    #[test]
    fn what_this_machine_is_short_of_blames_no_server_and_ports_are_short_towards_one_address_only() {
        let failure = |errno: Errno| connect_failure(&std::io::Error::from(errno));
        let ports = failure(Errno::ADDRNOTAVAIL);
        assert_eq!((ports.fault, ports.repeatable), (Fault::OutOfPorts, Repeatable::Unsent));
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            let files = failure(errno);
            assert_eq!((files.fault, files.repeatable), (Fault::OutOfFiles, Repeatable::No));
        }
        assert_eq!(failure(Errno::CONNREFUSED).fault, Fault::ConnectRefused);
    }
}

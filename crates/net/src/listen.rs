//! The listening sockets: bound on the main thread, one per address and worker, and kept for as long as their address is in
//! the configuration.
//!
//! Some may have been opened by others: the process that this one succeeds, or a service manager. Connections that the kernel
//! has accepted for such a socket are lost if nobody takes them, so each is some worker's, however many there are.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use propylon_config::{At, Config, Listener, Protocol};
use propylon_sys::ListenOptions;

/// A connection is handed out when its first bytes are there, or after this: it saves a wake-up per connection.
const DEFER_ACCEPT: Duration = Duration::from_secs(2);

/// One address of a listener, bound for all workers.
#[derive(Clone)]
pub struct Bound {
    /// Index of the listener in the configuration.
    pub listener: usize,
    name: Arc<str>,
    /// As it is in the configuration; port 0 lets the kernel choose.
    wanted: SocketAddr,
    /// As it is.
    pub address: SocketAddr,
    defer_accept: Option<Duration>,
    shares: Arc<Shares>,
}

/// State that the snapshots with an address share of it.
struct Shares {
    /// Sockets by worker; empty where they have been taken. Others are closed with the last snapshot that has the
    /// address.
    sockets: Box<[Mutex<Vec<Arc<TcpListener>>>]>,
    /// All that are still open, by worker.
    known: Box<[Vec<Weak<TcpListener>>]>,
    /// A successor has them too, and takes what is in their queues.
    handed_over: AtomicBool,
}

/// Sockets of one address that others have opened.
#[derive(Debug)]
pub struct Inherited {
    /// The number by which whoever gave them knows them.
    pub place: usize,
    /// Listener that they are for, where that is known.
    pub binding: Option<ListenerBinding>,
    /// As it is.
    pub address: SocketAddr,
    pub sockets: Vec<TcpListener>,
    /// Name for messages about them.
    pub name: String,
}

/// Listener for which a process that has handed a socket over had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerBinding {
    pub listener: String,
    /// As it was in the configuration.
    pub wanted: SocketAddr,
}

impl Inherited {
    /// Whether these are sockets for an address of the configuration.
    fn fits(&self, listener: &str, wanted: SocketAddr) -> bool {
        if wanted.port() != 0 {
            return self.address == wanted;
        }
        // A port that the kernel chose was chosen for that listener.
        self.binding.as_ref().is_some_and(|binding| binding.wanted == wanted && binding.listener == listener)
    }
}

/// An address that could not be bound.
#[derive(Debug)]
pub struct BindError {
    pub address: SocketAddr,
    pub listener: String,
    pub at: At,
    pub error: io::Error,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BindError { address, listener, error, .. } = self;
        write!(f, "listener \"{listener}\" cannot bind {address}: {error}")
    }
}

impl Bound {
    fn new(
        (listener, name): (usize, Arc<str>),
        wanted: SocketAddr,
        address: SocketAddr,
        by_worker: Vec<Vec<TcpListener>>,
    ) -> Bound {
        let share = |sockets: Vec<TcpListener>| sockets.into_iter().map(Arc::new).collect::<Vec<_>>();
        let sockets: Vec<Vec<Arc<TcpListener>>> = by_worker.into_iter().map(share).collect();
        let shares = Shares {
            known: sockets.iter().map(|sockets| sockets.iter().map(Arc::downgrade).collect()).collect(),
            sockets: sockets.into_iter().map(Mutex::new).collect(),
            handed_over: AtomicBool::new(false),
        };
        Bound { listener, name, wanted, address, defer_accept: None, shares: Arc::new(shares) }
    }

    /// A worker's own sockets: one, or several where the process that this one succeeds had more workers. None if it has them
    /// already.
    pub fn take(&self, worker: usize) -> Vec<Arc<TcpListener>> {
        std::mem::take(&mut *self.shares.sockets[worker].lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether both are the same sockets, whichever listener they are for.
    pub fn is_same(&self, other: &Bound) -> bool {
        Arc::ptr_eq(&self.shares, &other.shares)
    }

    /// As it was in the configuration.
    pub fn wanted(&self) -> SocketAddr {
        self.wanted
    }

    /// All that are open.
    pub fn sockets(&self) -> Vec<Arc<TcpListener>> {
        self.shares.known.iter().flatten().filter_map(Weak::upgrade).collect()
    }

    /// A worker's own that are open, whoever has taken them.
    pub fn sockets_of(&self, worker: usize) -> impl Iterator<Item = Arc<TcpListener>> {
        self.shares.known[worker].iter().filter_map(Weak::upgrade)
    }

    /// From here on their queues are a successor's as well.
    pub fn hand_over(&self) {
        self.shares.handed_over.store(true, Ordering::SeqCst);
    }

    /// Whether somebody else takes what is in their queues.
    pub fn is_handed_over(&self) -> bool {
        self.shares.handed_over.load(Ordering::SeqCst)
    }

    /// Sockets of others may defer otherwise than this configuration does. To be done when nobody else serves them.
    pub fn commit(&self) -> io::Result<()> {
        self.sockets().iter().try_for_each(|socket| propylon_sys::set_defer_accept(socket, self.defer_accept))
    }
}

/// Sockets for all addresses of all listeners: those of `earlier` where they will do, and new ones. Says everything that
/// stands in the way; nothing is bound then.
pub fn bind(config: &Config, workers: usize, earlier: &[Bound]) -> Result<Vec<Bound>, Vec<BindError>> {
    bind_beside(config, workers, earlier, &mut Vec::new())
}

/// The same for a process that begins: those of `inherited` that fit are taken out of it and used.
pub fn bind_first(
    config: &Config,
    workers: usize,
    inherited: &mut Vec<Inherited>,
) -> Result<Vec<Bound>, Vec<BindError>> {
    bind_beside(config, workers, &[], inherited)
}

fn bind_beside(
    config: &Config,
    workers: usize,
    earlier: &[Bound],
    inherited: &mut Vec<Inherited>,
) -> Result<Vec<Bound>, Vec<BindError>> {
    let (mut bound, mut errors): (Vec<Bound>, Vec<BindError>) = (Vec::new(), Vec::new());
    let earliers = earlier.iter().map(|bound| bound.address);
    let ours: Vec<SocketAddr> = earliers.chain(inherited.iter().map(|each| each.address)).collect();
    let mut refused = refused(config, &ours);
    for (index, listener) in config.listeners.iter().enumerate() {
        let name: Arc<str> = listener.name.as_str().into();
        for wanted in &listener.bind {
            let is_taken = |candidate: &Bound| bound.iter().any(|taken: &Bound| taken.is_same(candidate));
            let fits = |candidate: &&Bound| {
                candidate.wanted == wanted.address
                    && candidate.defer_accept == defer_accept(listener)
                    // A port that the kernel chose was chosen for that listener.
                    && (wanted.address.port() != 0 || candidate.name == name)
                    && !is_taken(candidate)
            };
            if let Some(known) = earlier.iter().find(fits) {
                bound.push(Bound { listener: index, name: Arc::clone(&name), ..known.clone() });
                continue;
            }
            let heirloom = inherited.iter().position(|each| each.fits(&listener.name, wanted.address));
            let made = match (heirloom, refused.remove(&wanted.address)) {
                (Some(position), _) => adopt(listener, inherited.remove(position), workers),
                (None, Some(error)) => Err(error),
                (None, None) => bind_one(listener, wanted.address, workers),
            };
            match made {
                Ok((address, sockets)) => {
                    let new = Bound::new((index, Arc::clone(&name)), wanted.address, address, sockets);
                    bound.push(Bound { defer_accept: defer_accept(listener), ..new });
                }
                Err(error) => {
                    let listener = listener.name.clone();
                    errors.push(BindError { address: wanted.address, listener, at: wanted.at, error });
                }
            }
        }
    }
    if errors.is_empty() { Ok(bound) } else { Err(errors) }
}

/// Address and sockets by worker.
type Made = (SocketAddr, Vec<Vec<TcpListener>>);

/// Addresses of the configuration that somebody else listens at. Asked before any is bound: of one beside a wildcard
/// of that port the second would find the first in its way.
fn refused(config: &Config, ours: &[SocketAddr]) -> BTreeMap<SocketAddr, io::Error> {
    let all = config.listeners.iter().flat_map(|listener| &listener.bind).map(|bind| bind.address);
    // Our own sockets would be in the way of the question; the bind itself still finds other users' processes.
    let is_ours = |address: SocketAddr| {
        ours.iter().any(|known| (known.port(), known.is_ipv6()) == (address.port(), address.is_ipv6()))
    };
    all.filter(|address| address.port() != 0 && !config.process.share_address && !is_ours(*address))
        .filter_map(|address| Some((address, propylon_sys::check_free(address).err()?)))
        .collect()
}

fn bind_one(listener: &Listener, wanted: SocketAddr, workers: usize) -> io::Result<Made> {
    let mut address = wanted;
    let mut sockets = Vec::new();
    for _ in 0..workers {
        let socket = listen(listener, address)?;
        address = socket.local_addr()?;
        sockets.push(vec![socket]);
    }
    Ok((address, sockets))
}

fn listen(listener: &Listener, address: SocketAddr) -> io::Result<TcpListener> {
    let defer_accept = defer_accept(listener);
    let options = ListenOptions { reuse_port: true, defer_accept, ..ListenOptions::default() };
    let socket = propylon_sys::listen(address, options)?;
    // Accepted sockets inherit it: a call saved per connection.
    propylon_sys::set_nodelay(&socket)?;
    Ok(socket)
}

/// Every socket gets a worker, and every worker a socket: what is missing is bound beside them, or, where the kernel lets
/// nobody else have the address (a service manager's account is another), shared.
fn adopt(listener: &Listener, inherited: Inherited, workers: usize) -> io::Result<Made> {
    let Inherited { address, sockets, .. } = inherited;
    let mut by_worker: Vec<Vec<TcpListener>> = (0..workers).map(|_| Vec::new()).collect();
    let shares_port = sockets.iter().all(|socket| propylon_sys::shares_port(socket).unwrap_or(false));
    for (index, socket) in sockets.into_iter().enumerate() {
        propylon_sys::set_nodelay(&socket)?;
        by_worker[index % workers].push(socket);
    }
    for worker in 0..workers {
        if !by_worker[worker].is_empty() {
            continue;
        }
        let beside = if shares_port { listen(listener, address).ok() } else { None };
        let socket = match beside {
            Some(socket) => socket,
            // The sockets come first: there is one at worker 0 at least.
            None => by_worker[0].first().ok_or(io::ErrorKind::NotFound)?.try_clone()?,
        };
        by_worker[worker].push(socket);
    }
    Ok((address, by_worker))
}

/// Relayed protocols are not known: servers of SMTP, SSH or MySQL begin themselves.
fn defer_accept(listener: &Listener) -> Option<Duration> {
    let clients_speak_first =
        listener.protocol != Protocol::Tcp || listener.tls.is_some() || listener.accept_proxy_protocol;
    clients_speak_first.then_some(DEFER_ACCEPT)
}

/// Tells the log of the sockets that `earlier` had not.
pub fn announce(config: &Config, bound: &[Bound], earlier: &[Bound]) {
    for new in bound.iter().filter(|new| !earlier.iter().any(|known| known.is_same(new))) {
        let listener = &config.listeners[new.listener];
        let scheme = match (listener.protocol, listener.tls) {
            (Protocol::Http, None) => "http",
            (Protocol::Http, Some(_)) => "https",
            (Protocol::Tcp, None) => "tcp",
            (Protocol::Tcp, Some(_)) | (Protocol::Passthrough, _) => "tls",
        };
        log::info!("listener \"{}\" at {scheme}://{}", listener.name, new.address);
    }
    for gone in earlier.iter().filter(|gone| !bound.iter().any(|still| still.is_same(gone))) {
        log::info!("{} is no longer listened at", gone.address);
    }
}

#[cfg(test)]
mod tests {
    use propylon_config::{Source, parse};

    use super::*;

    fn config(listeners: &[(&str, &str)]) -> Config {
        let mut text = "[[route]]\nrespond = {}\n".to_owned();
        for (name, bind) in listeners {
            text += &format!("[listener.{name}]\nbind = {bind}\n");
        }
        parse(&Source { name: "a.toml".into(), base: "".into(), text }).expect("a good configuration").0
    }

    #[test]
    fn sockets_stay_while_their_address_does_and_follow_it_to_another_listener() {
        let first = config(&[("a", "['127.0.0.1:0', '127.0.0.1:0']")]);
        let one = bind(&first, 2, &[]).unwrap();
        assert_eq!(one.len(), 2);
        let port = one[0].address.port();
        assert_eq!([1, 1, 0].map(|worker| one[0].take(worker).len()), [1, 0, 1]);
        // The same again, and one address less.
        let two = bind(&first, 2, &one).unwrap();
        assert!(two[0].is_same(&one[0]) && two[1].is_same(&one[1]) && !two[0].is_same(&two[1]));
        let fewer = bind(&config(&[("a", "'127.0.0.1:0'")]), 2, &two).unwrap();
        assert!(fewer.len() == 1 && fewer[0].is_same(&one[0]));
        // An address that is written out goes along when its listener is called otherwise.
        let named = config(&[("b", &format!("'127.0.0.1:{port}'"))]);
        let three = bind(&named, 2, &fewer).unwrap();
        assert!(!three[0].is_same(&one[0]), "port 0 and its port are not the same wish");
        let renamed = config(&[("a", "'127.0.0.1:0'"), ("c", &format!("'127.0.0.1:{port}'"))]);
        let four = bind(&renamed, 2, &three).unwrap();
        assert!(four[1].is_same(&three[0]) && four[1].listener == 1);
    }

    fn inherited(listener: &str, sockets: usize, reuse_port: bool) -> Inherited {
        let options = ListenOptions { reuse_port, ..ListenOptions::default() };
        let first = propylon_sys::listen("127.0.0.1:0".parse().unwrap(), options).unwrap();
        let address = first.local_addr().unwrap();
        let more = (1..sockets).map(|_| propylon_sys::listen(address, options).unwrap());
        let sockets = std::iter::once(first).chain(more.collect::<Vec<_>>()).collect();
        let binding = Some(ListenerBinding { listener: listener.into(), wanted: "127.0.0.1:0".parse().unwrap() });
        Inherited { place: 0, binding, address, sockets, name: String::new() }
    }

    /// How many sockets each worker gets.
    fn spread(bound: &Bound, workers: usize) -> Vec<usize> {
        (0..workers).map(|worker| bound.take(worker).len()).collect()
    }

    #[test]
    fn every_inherited_socket_gets_a_worker_and_every_worker_a_socket() {
        let wanted = config(&[("a", "'127.0.0.1:0'")]);
        for (sockets, workers, expected) in [(3, 2, vec![2, 1]), (2, 2, vec![1, 1]), (1, 3, vec![1, 1, 1])] {
            let mut all = vec![inherited("a", sockets, true)];
            let address = all[0].address;
            let bound = bind_first(&wanted, workers, &mut all).unwrap();
            assert!(all.is_empty() && bound[0].address == address);
            assert_eq!(bound[0].sockets().len(), sockets.max(workers));
            assert_eq!(spread(&bound[0], workers), expected);
            assert!(bound[0].sockets().is_empty(), "what nobody holds is closed");
        }
        // One that keeps its address for itself is shared.
        let bound = bind_first(&wanted, 2, &mut vec![inherited("a", 1, false)]).unwrap();
        assert_eq!(spread(&bound[0], 2), [1, 1]);
    }

    #[test]
    fn inherited_sockets_are_found_by_their_address_or_by_their_wish() {
        let mut all = vec![inherited("b", 1, true), inherited("a", 1, true), inherited("c", 1, true)];
        let (a, c) = (all[1].address, all[2].address);
        all[2].binding = None;
        let wanted = config(&[("a", "['127.0.0.1:0', '127.0.0.1:0']"), ("d", &format!("'{c}'"))]);
        let bound = bind_first(&wanted, 1, &mut all).unwrap();
        assert!(all.len() == 1 && all[0].binding.as_ref().is_some_and(|binding| binding.listener == "b"));
        assert_eq!((bound[0].address, bound[2].address), (a, c));
        assert!(bound[1].address != a && bound[1].address.port() != 0);
    }

    #[test]
    fn an_address_beside_a_wildcard_of_its_port_is_bound_in_either_order_and_nobody_elses_is() {
        // Ports that the kernel gives to nobody by itself.
        let is_free = |port: &u16| TcpListener::bind(("0.0.0.0", *port)).is_ok();
        let port = (20_000..32_000).find(is_free).expect("a free port");
        for (one, other) in [("127.0.0.1", "0.0.0.0"), ("0.0.0.0", "127.0.0.1")] {
            let both = config(&[("a", &format!("'{one}:{port}'")), ("b", &format!("'{other}:{port}'"))]);
            let bound = bind(&both, 2, &[]).unwrap_or_else(|errors| panic!("{}", errors[0]));
            assert_eq!(bound.iter().map(|bound| bound.sockets().len()).collect::<Vec<usize>>(), [2, 2]);
            assert!(bind(&both, 2, &[]).is_err_and(|errors| errors.len() == 2), "they are taken");
        }
    }

    #[test]
    fn every_address_that_cannot_be_bound_is_told_of() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        let wrong = config(&[("a", &format!("['127.0.0.1:{port}', '192.0.2.1:1', '127.0.0.1:0']"))]);
        let Err(errors) = bind(&wrong, 1, &[]) else { panic!("bound what is taken") };
        assert_eq!(errors.len(), 2);
        assert_eq!(errors[0].error.kind(), io::ErrorKind::AddrInUse);
        assert!(errors[0].to_string().contains("listener \"a\" cannot bind 127.0.0.1:"));
        assert_eq!(errors[1].at.line, 4);
    }
}

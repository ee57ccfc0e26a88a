//! The listening sockets: bound on the main thread, one per address and worker, and kept for as long as their address is in
//! the configuration.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use propylon_config::{At, Config, Listener, Protocol};
use propylon_sys::ListenOptions;

/// A connection is handed out when its first bytes are there, or after this: it saves a wake-up per connection.
const DEFER_ACCEPT: Duration = Duration::from_secs(2);

/// One address of a listener, bound for all workers.
#[derive(Clone)]
pub struct Bound {
    /// The listener's place.
    pub listener: usize,
    /// As it is in the configuration; port 0 lets the kernel choose.
    wanted: SocketAddr,
    /// As it is.
    pub address: SocketAddr,
    defer_accept: Option<Duration>,
    shares: Arc<Shares>,
}

/// By worker; none where it has been taken. What nobody has taken is closed with the last snapshot that has it.
struct Shares(Box<[Mutex<Option<TcpListener>>]>);

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

/// What to do about a bind that failed.
pub fn bind_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "stop what listens there (ss -ltnp shows it) or choose another port",
        io::ErrorKind::PermissionDenied => "ports below 1024 need root or CAP_NET_BIND_SERVICE",
        io::ErrorKind::AddrNotAvailable => "use an address of this machine (ip address shows them)",
        _ => "check the address",
    }
}

impl Bound {
    /// A worker's own socket; none if it has it already.
    pub fn take(&self, worker: usize) -> Option<TcpListener> {
        self.shares.0[worker].lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether both are the same sockets, whichever listener they are for.
    pub fn is_same(&self, other: &Bound) -> bool {
        Arc::ptr_eq(&self.shares, &other.shares)
    }
}

/// Sockets for all addresses of all listeners: those of `earlier` where they will do, and new ones. Says everything that
/// stands in the way; nothing is bound then.
pub fn bind(config: &Config, workers: usize, earlier: &[Bound]) -> Result<Vec<Bound>, Vec<BindError>> {
    let (mut bound, mut errors): (Vec<Bound>, Vec<BindError>) = (Vec::new(), Vec::new());
    for (place, listener) in config.live_listeners() {
        for wanted in &listener.bind {
            let is_taken = |candidate: &Bound| bound.iter().any(|taken: &Bound| taken.is_same(candidate));
            let fits = |candidate: &&Bound| {
                candidate.wanted == wanted.address
                    && candidate.defer_accept == defer_accept(listener)
                    // A port that the kernel chose was chosen for that listener.
                    && (wanted.address.port() != 0 || candidate.listener == place)
                    && !is_taken(candidate)
            };
            if let Some(known) = earlier.iter().find(fits) {
                bound.push(Bound { listener: place, ..known.clone() });
                continue;
            }
            match bind_one(listener, wanted.address, config.process.share_address, workers, earlier) {
                Ok((address, sockets)) => {
                    let shares = sockets.into_iter().map(|socket| Mutex::new(Some(socket))).collect();
                    bound.push(Bound {
                        listener: place,
                        wanted: wanted.address,
                        address,
                        defer_accept: defer_accept(listener),
                        shares: Arc::new(Shares(shares)),
                    });
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

fn bind_one(
    listener: &Listener,
    wanted: SocketAddr,
    shares: bool,
    workers: usize,
    earlier: &[Bound],
) -> io::Result<(SocketAddr, Vec<TcpListener>)> {
    let mut address = wanted;
    // Our own sockets would be in the way of the question; the bind itself still finds other users' processes.
    let is_ours =
        |bound: &Bound| bound.address.port() == address.port() && bound.address.is_ipv6() == address.is_ipv6();
    if address.port() != 0 && !shares && !earlier.iter().any(is_ours) {
        propylon_sys::check_free(address)?;
    }
    let mut sockets = Vec::new();
    for _ in 0..workers {
        let options =
            ListenOptions { reuse_port: true, defer_accept: defer_accept(listener), ..ListenOptions::default() };
        let socket = propylon_sys::listen(address, options)?;
        // Accepted sockets inherit it: a call saved per connection.
        propylon_sys::set_nodelay(&socket)?;
        address = socket.local_addr()?;
        sockets.push(socket);
    }
    Ok((address, sockets))
}

/// Of what is relayed as it is nothing is known: servers of SMTP, SSH or MySQL begin themselves.
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
    use propylon_config::{FreePlaces, Source, parse};

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
        assert!(one[0].take(1).is_some() && one[0].take(1).is_none() && one[0].take(0).is_some());
        // The same again, and one address less.
        let two = bind(&first, 2, &one).unwrap();
        assert!(two[0].is_same(&one[0]) && two[1].is_same(&one[1]) && !two[0].is_same(&two[1]));
        let fewer = bind(&config(&[("a", "'127.0.0.1:0'")]), 2, &two).unwrap();
        assert!(fewer.len() == 1 && fewer[0].is_same(&one[0]));
        // An address that is written out goes along when its listener is called otherwise.
        let named = config(&[("b", &format!("'127.0.0.1:{port}'"))]).succeeding(&first, 2, &FreePlaces::default());
        let three = bind(&named, 2, &fewer).unwrap();
        assert!(!three[0].is_same(&one[0]), "port 0 and its port are not the same wish");
        let renamed = config(&[("c", &format!("'127.0.0.1:{port}'"))]).succeeding(&named, 3, &FreePlaces::default());
        let four = bind(&renamed, 2, &three).unwrap();
        assert!(four[0].is_same(&three[0]) && four[0].listener == 2);
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

//! Connections whose server has another index in the configuration that follows.

use std::net::{TcpListener, TcpStream};
use std::task::{Context, Poll, Waker};

use propylon_config::{Config, Source};
use propylon_net::server_stream::ServerStream;
use propylon_net::socket::Socket;
use propylon_policy::connection_limiter::Grant;
use propylon_sys::Address;

use super::super::connection::Permit;
use super::*;

/// A server that accepts as the kernel does, and says nothing.
struct Server {
    listener: TcpListener,
    endpoint: Arc<Endpoint>,
    accepted: RefCell<Vec<TcpStream>>,
}

impl Server {
    fn new() -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = Arc::new(Endpoint::new(vec![Address::from(listener.local_addr().unwrap()).into()]));
        Server { listener, endpoint, accepted: RefCell::default() }
    }

    /// A connection as a request has it that knows the server by this index.
    fn connect(&self, server: usize, permit: Option<Permit>) -> Box<ServerConnection> {
        let socket = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        self.accepted.borrow_mut().push(self.listener.accept().unwrap().0);
        let (stream, remote) =
            (ServerStream::plain(Socket::new(socket)), self.endpoint.connect_order().next().unwrap());
        let key = PoolKey { server, owner: None };
        Box::new(ServerConnection { stream, key, remote, home: 0, requests: 1, expires: None, permit })
    }
}

/// Three servers that are written so, and what else their backend says.
fn config(server: &str, lines: &str) -> Config {
    let addresses = [1, 2, 3].map(|port| format!("{{ address = \"127.0.0.1:{port}\"{server} }}"));
    let text = format!(
        "[listener.web]\nbind = \"127.0.0.1:0\"\n[backend.app]\nservers = [{}]\n{lines}\n[[route]]\nbackend = \"app\"\n",
        addresses.join(", ")
    );
    let source = Source { name: "a.toml".into(), base: "".into(), text };
    propylon_config::parse(&source).unwrap_or_else(|problems| panic!("{problems:?}")).0
}

/// The pools of two configurations: the servers a, b and c, and then c, d and a.
struct Pools {
    servers: [Server; 4],
    earlier: Pool,
    later: Pool,
}

impl Pools {
    fn new(server: &str, lines: &str) -> Pools {
        let config = config(server, lines);
        let (backend, servers) = (&config.backends[0], [(); 4].map(|()| Server::new()));
        let endpoints = |list: [usize; 3]| list.map(|server| Arc::clone(&servers[server].endpoint)).into();
        let predecessors = || Predecessors::by_identity(b"cda", b"abc");
        let before = limiter(backend, 1, None);
        let after = before.as_ref().and_then(|before| limiter(backend, 1, Some((before, predecessors()))));
        let earlier = Pool::new(backend, 0, before, endpoints([0, 1, 2]), Rc::default());
        let later = Pool::succeeding(&earlier, backend, after, endpoints([2, 3, 0]), &predecessors());
        Pools { servers, earlier, later }
    }
}

fn checkout(pool: &Pool, server: usize) -> Option<Box<ServerConnection>> {
    pool.checkout(PoolKey { server, owner: None }, Fit::Any, Some(u64::MAX)).0
}

fn idle(pool: &Pool) -> [usize; 3] {
    [0, 1, 2].map(|server| pool.idle(server))
}

#[test]
fn an_idle_connection_is_found_by_the_index_that_its_server_has_by_now() {
    let Pools { servers: [a, b, c, _], earlier, later } = Pools::new("", "");
    for (index, server) in [&a, &b, &c].into_iter().enumerate() {
        assert_eq!(earlier.check_in(server.connect(index, None), 0), Returned::Idle);
    }
    assert_eq!((idle(&earlier), idle(&later)), ([1, 1, 1], [1, 0, 1]));
    let found = checkout(&later, 0).expect("one of c's");
    assert_eq!((found.key.server, found.remote.address), (0, c.listener.local_addr().unwrap().into()));
    assert_eq!(later.check_in(found, 0), Returned::Idle);
    // A request of the earlier configuration has its own index for it again.
    let found = checkout(&earlier, 2).expect("the same one");
    assert_eq!((found.key.server, idle(&later)), (2, [0, 0, 1]));
    // The shared list is where it goes back to.
    assert_eq!(earlier.check_in(found, 0), Returned::Idle);
    assert_eq!((idle(&earlier), idle(&later)), ([1, 1, 1], [1, 0, 1]));
}

#[test]
fn what_the_later_pool_has_not_is_closed_and_told_by_the_index_that_it_had() {
    let Pools { servers: [a, b, _, _], earlier, later } = Pools::new("", "");
    let mut closed = Vec::new();
    assert_eq!(earlier.check_in(a.connect(0, None), 0), Returned::Idle);
    assert_eq!(earlier.check_in(b.connect(1, None), 0), Returned::Idle);
    earlier.abandon_for(Some(&later), |server, count| closed.push((server, count)));
    assert_eq!((closed, idle(&earlier), idle(&later)), (vec![(1, 1)], [1, 0, 0], [0, 0, 1]));
    assert_eq!(earlier.check_in(b.connect(1, None), 0), Returned::Closed);
    assert_eq!(earlier.check_in(a.connect(0, None), 0), Returned::Idle);
    // A connection that was made for somebody is found all the same, and not kept.
    earlier.lend(b.connect(1, None), 0);
    assert_eq!((earlier.take_back(1), earlier.take_back(0), idle(&later)), (1, 0, [0, 0, 2]));
}

#[test]
fn a_connection_of_an_earlier_configuration_goes_to_who_waits_by_the_later_one_and_back() {
    let Pools { servers: [a, _, c, _], earlier, later } = Pools::new(", max_connections = 1", "");
    let (before, now) = (earlier.limiter.as_ref().unwrap(), later.limiter.as_ref().unwrap());
    now.commit(0);
    let permit = |limiter: &Arc<ServerLimiter>, server| {
        assert!(limiter.try_take(server));
        Some(Permit::taken(limiter, server))
    };
    let (to_a, to_c) = (a.connect(0, permit(before, 0)), c.connect(0, permit(now, 0)));
    assert!(!earlier.has_room(2) && !later.has_room(2));
    let waits = now.join([2], 0).unwrap();
    assert_eq!(earlier.check_in(to_a, 0), Returned::HandedOver);
    let heard = now.poll(waits, &Context::from_waker(Waker::noop()));
    let Poll::Ready(Ok(Grant::Connection(2, to_a))) = heard else { panic!("a's connection by its index") };
    let waits = before.join([2], 0).unwrap();
    assert_eq!(later.check_in(to_c, 0), Returned::HandedOver);
    let Some(Grant::Connection(2, to_c)) = before.leave(waits) else { panic!("c's connection by its index") };
    // A permit is its server's, whatever the index of the connection.
    drop(to_a);
    assert_eq!([0, 1, 2].map(|server| (before.open(server), now.open(server))), [(0, 1), (0, 0), (1, 0)]);
    drop(to_c);
    assert!(earlier.has_room(2) && later.has_room(0));
}

#[test]
fn an_idle_connection_is_given_to_who_waits_for_its_server_by_another_index() {
    let Pools { servers: [a, ..], earlier, later } = Pools::new(", max_connections = 1", "");
    let (before, now) = (earlier.limiter.as_ref().unwrap(), later.limiter.as_ref().unwrap());
    assert!(before.try_take(0));
    assert_eq!(earlier.check_in(a.connect(0, Some(Permit::taken(before, 0))), 0), Returned::Idle);
    let waits = now.join([2], 0).unwrap();
    assert_eq!([0, 1, 2].map(|server| later.give_away(server)), [0, 0, 1]);
    assert!(matches!(now.leave(waits), Some(Grant::Connection(2, _))));
    assert_eq!(before.open(0), 0);
}

#[test]
fn the_pool_of_streams_follows_its_server_and_says_which_one_that_is() {
    let Pools { earlier, later, .. } = Pools::new("", "protocol = \"h2\"");
    let [a, b, c] = [0, 1, 2].map(|server| &earlier.h2_pools[server]);
    assert!(Rc::ptr_eq(c, &later.h2_pools[0]) && Rc::ptr_eq(a, &later.h2_pools[2]));
    assert_eq!([a, b, c].map(|h2_pool| h2_pool.index_in(&later.h2_pools)), [Some(2), None, Some(0)]);
    earlier.abandon_for(Some(&later), |_, _| {});
    assert_eq!([a, b, c].map(|h2_pool| h2_pool.is_abandoned()), [false, true, false]);
}

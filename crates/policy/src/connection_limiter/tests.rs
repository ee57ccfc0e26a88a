//! Virtual cores by seeds, and real threads, against the promises of the limiter.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::task::Wake;

use super::*;
use crate::queue::Priority;

/// A connection, known by its server: in the simulation by the name that this has in every list.
type Connection = usize;

/// A limiter, and the servers that it is for, by their names.
struct List {
    limiter: ConnectionLimiter<Connection>,
    names: Vec<usize>,
}

impl List {
    fn index(&self, name: usize) -> Option<usize> {
        self.names.iter().position(|known| *known == name)
    }
}

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A request in the simulation.
struct Request {
    ticket: QueueTicket,
    /// The list that it has joined by.
    list: usize,
    wants: Vec<usize>,
    woken: Arc<Count>,
    asked: bool,
}

/// Virtual cores in turns that chance decides, as the proxy drives the limiter: reuse what is idle here, else take a
/// permit, else wait; lay down or close when done; go away at any time. Servers are known by their names.
struct World {
    /// Oldest first. A core that holds one that is not the last still goes by it.
    lists: Vec<List>,
    max: Vec<u32>,
    /// Permits, by server, that were out when the limit was lowered, and count until they come back.
    over: Vec<u32>,
    /// Idle connections by core, then by server.
    idle: Vec<Vec<usize>>,
    /// Connections in use, by their servers.
    busy: Vec<usize>,
    waiting: Vec<Request>,
    bounds: Bounds,
    /// Milliseconds.
    now: u64,
    served: usize,
}

/// A bound of the queue that is served in its order.
fn fifo(limit: usize) -> Bounds {
    Bounds { limit, order: Order::default() }
}

fn known(later: &[u8], earlier: &[u8]) -> Predecessors {
    Predecessors::by_identity(later, earlier)
}

impl World {
    fn new(random: &mut fastrand::Rng) -> World {
        let max: Vec<u32> = (0..random.usize(1..4)).map(|_| random.u32(1..5)).collect();
        let (cores, limit) = (random.usize(1..5), random.usize(0..12));
        let head_start = random.u64(0..20);
        let order = Order { target: random.bool().then(|| random.u64(0..40)), head_start };
        let bounds = Bounds { limit, order };
        World {
            lists: vec![List { limiter: ConnectionLimiter::new(&max, cores, bounds), names: (0..max.len()).collect() }],
            over: vec![0; max.len()],
            idle: vec![vec![0; max.len()]; cores],
            busy: Vec::new(),
            waiting: Vec::new(),
            max,
            bounds,
            now: 0,
            served: 0,
        }
    }

    fn step(&mut self, random: &mut fastrand::Rng) {
        let core = random.usize(..self.idle.len());
        self.now += random.u64(0..4);
        match random.u8(..11) {
            0..=3 => self.arrive(core, random),
            4..=6 if !self.busy.is_empty() => {
                let server = self.busy.swap_remove(random.usize(..self.busy.len()));
                if random.bool() { self.lay_down(core, server) } else { self.release(server) }
            }
            7 if !self.waiting.is_empty() => self.give_up(core, random),
            8 => self.close_idle(core, random),
            9 if random.u8(..8) == 0 => self.change(random),
            10 => self.join(self.lists.len() - 1, Vec::new(), random),
            _ => {}
        }
        self.stewards();
        self.collect(random);
        self.check();
    }

    /// The limits change, and the order of the servers; perhaps some go, and one comes.
    fn change(&mut self, random: &mut fastrand::Rng) {
        let last = &self.lists[self.lists.len() - 1];
        let mut names = last.names.clone();
        random.shuffle(&mut names);
        names.truncate(random.usize(1..=names.len()).max(2));
        if names.len() < 6 && random.bool() {
            let name = self.max.len();
            names.insert(random.usize(..=names.len()), name);
            self.max.push(0);
            self.over.push(0);
            self.idle.iter_mut().for_each(|core| core.push(0));
        }
        names.iter().for_each(|name| self.max[*name] = random.u32(1..5));
        let waiting = self.waiting.len();
        self.bounds.limit = random.usize(waiting..waiting + 12);
        let max: Vec<u32> = names.iter().map(|name| self.max[*name]).collect();
        let predecessors = Predecessors::by_identity(&names, &last.names);
        let limiter = last.limiter.succeeded_by(&max, self.bounds, &predecessors);
        let gone: Vec<usize> = last.names.iter().copied().filter(|name| !names.contains(name)).collect();
        self.lists.push(List { limiter, names });
        self.over = (0..self.max.len()).map(|server| self.open(server)).collect();
        self.lists[self.lists.len() - 1].limiter.commit(self.now);
        // Cores keep no connections to servers that are gone.
        for server in gone {
            for core in 0..self.idle.len() {
                for _ in 0..std::mem::take(&mut self.idle[core][server]) {
                    self.release(server);
                }
                self.set_idle(core, server, 0);
            }
        }
    }

    /// One of the limiters that have this server, and the index that it has there.
    fn view(&self, server: usize) -> (&ConnectionLimiter<Connection>, usize) {
        let all = self.lists.iter().filter_map(|list| Some((&list.limiter, list.index(server)?)));
        let all: Vec<_> = all.collect();
        all[self.served % all.len()]
    }

    fn release(&self, server: usize) {
        let (limiter, index) = self.view(server);
        limiter.permits(index).release(self.now);
    }

    fn open(&self, server: usize) -> u32 {
        let (limiter, index) = self.view(server);
        limiter.open(index)
    }

    fn is_gone(&self, server: usize) -> bool {
        self.lists[self.lists.len() - 1].index(server).is_none()
    }

    fn arrive(&mut self, core: usize, random: &mut fastrand::Rng) {
        let last = self.lists.len() - 1;
        let list = if random.u8(..4) == 0 { random.usize(..=last) } else { last };
        let List { limiter, names } = &self.lists[list];
        let mut wants: Vec<usize> = names.iter().copied().filter(|_| random.bool()).collect();
        if wants.is_empty() {
            wants.push(names[random.usize(..names.len())]);
        }
        for server in &wants {
            let index = self.lists[list].index(*server).unwrap();
            if !limiter.is_wanted(index) && self.idle[core][*server] > 0 {
                self.set_idle(core, *server, self.idle[core][*server] - 1);
                self.busy.push(*server);
                return;
            }
            if limiter.try_take(index) {
                self.busy.push(*server);
                return;
            }
        }
        self.join(list, wants, random);
    }

    /// Somebody joins the queue, with no servers in mind or with some, for the first time or again.
    fn join(&mut self, list: usize, wants: Vec<usize>, random: &mut fastrand::Rng) {
        let List { limiter, names } = &self.lists[list];
        let indexes: Vec<usize> =
            wants.iter().map(|name| names.iter().position(|known| known == name).unwrap()).collect();
        let since = if random.u8(..4) == 0 { self.now - random.u64(..=self.now.min(30)) } else { self.now };
        let waiting = limiter.depth();
        let is_overload = |since: u64| self.bounds.order.is_overload(since, self.now);
        let overload = is_overload(since) || self.waiting.iter().any(|other| is_overload(other.ticket.since));
        let priority = [Priority::High, Priority::Normal, Priority::Low][random.usize(..3)];
        match limiter.join_again(indexes, Arrival { since, priority }, self.now) {
            Err(Full) => {
                let is_lower = self.waiting.iter().any(|other| other.ticket.priority > priority);
                assert!(!is_lower, "refused before one who matters less");
                assert!(waiting >= self.bounds.limit, "refused with {waiting} of {} in the queue", self.bounds.limit);
                let came_later =
                    self.waiting.iter().any(|other| other.ticket.priority == priority && other.ticket.since > since);
                assert!(overload || !came_later, "refused before one who came later");
            }
            Ok(ticket) => {
                let woken = Arc::new(Count(AtomicUsize::new(0)));
                self.waiting.push(Request { ticket, list, wants, woken, asked: false });
                self.waiting.sort_by_key(|request| request.ticket);
            }
        }
    }

    fn set_idle(&mut self, core: usize, server: usize, count: usize) {
        self.idle[core][server] = count;
        let (limiter, index) = self.view(server);
        limiter.note_idle(core, index, count);
    }

    fn lay_down(&mut self, core: usize, server: usize) {
        let (limiter, index) = self.view(server);
        if limiter.is_over(index) || self.is_gone(server) {
            self.release(server);
        } else if limiter.offer(index, server, self.now).is_err() {
            self.set_idle(core, server, self.idle[core][server] + 1);
        }
    }

    fn give_up(&mut self, core: usize, random: &mut fastrand::Rng) {
        let request = self.waiting.remove(random.usize(..self.waiting.len()));
        let List { limiter, names } = &self.lists[request.list];
        match limiter.leave(request.ticket) {
            None => {}
            Some(Grant::Permit(index)) => limiter.release(index, self.now),
            Some(Grant::Connection(index, server)) => {
                assert_eq!(names[index], server);
                self.lay_down(core, server);
            }
        }
    }

    fn close_idle(&mut self, core: usize, random: &mut fastrand::Rng) {
        let server = random.usize(..self.max.len());
        if self.idle[core][server] > 0 {
            self.set_idle(core, server, self.idle[core][server] - 1);
            self.release(server);
        }
    }

    /// Runs on each core what it does when it is called.
    fn stewards(&mut self) {
        for core in 0..self.idle.len() {
            if self.lists[0].limiter.poll_called(core, &Context::from_waker(Waker::noop())).is_pending() {
                continue;
            }
            for server in 0..self.max.len() {
                while self.idle[core][server] > 0 && self.offer(server) {
                    self.set_idle(core, server, self.idle[core][server] - 1);
                }
            }
        }
    }

    /// Requests look after their grants: some of them unasked, those that were woken always.
    fn collect(&mut self, random: &mut fastrand::Rng) {
        let mut refused: Vec<usize> = Vec::new();
        let (mut still, mut displaced) = (Vec::new(), Vec::new());
        for mut request in std::mem::take(&mut self.waiting) {
            let woken = request.woken.0.swap(0, Ordering::SeqCst) > 0;
            if request.asked && !woken && random.u8(..4) > 0 {
                refused.extend(&request.wants);
                still.push(request);
                continue;
            }
            let waker = Waker::from(Arc::clone(&request.woken));
            let List { limiter, names } = &self.lists[request.list];
            match limiter.poll(request.ticket, &Context::from_waker(&waker)) {
                Poll::Pending => {
                    assert!(!woken, "woken for nothing");
                    request.asked = true;
                    refused.extend(&request.wants);
                    still.push(request);
                }
                Poll::Ready(Err(Full)) => {
                    assert!(woken || !request.asked, "made way without a wake-up");
                    displaced.push(request.ticket);
                }
                Poll::Ready(Ok(grant)) => {
                    let server = match grant {
                        Grant::Permit(index) => names[index],
                        Grant::Connection(index, server) => {
                            assert_eq!(names[index], server);
                            server
                        }
                    };
                    assert!(woken || !request.asked, "a grant without a wake-up");
                    let in_order = self.bounds.order.target.is_none();
                    assert!(!in_order || !refused.contains(&server), "server {server}: one who came before wants it");
                    assert!(request.wants.contains(&server));
                    self.busy.push(server);
                    self.served += 1;
                }
            }
        }
        // One of the lowest makes way, and in a queue that goes by its order the last of these.
        let is_lowest = |ticket: &QueueTicket| still.iter().all(|other| other.ticket.priority <= ticket.priority);
        assert!(displaced.iter().all(is_lowest));
        let is_last = |ticket: &QueueTicket, other: &QueueTicket| other.priority < ticket.priority || other < ticket;
        let in_order = |ticket: &QueueTicket| still.iter().all(|other| is_last(ticket, &other.ticket));
        assert!(self.bounds.order.target.is_some() || displaced.iter().all(in_order));
        self.waiting = still;
    }

    fn check(&mut self) {
        for (server, max) in self.max.iter().enumerate() {
            let idle: usize = self.idle.iter().map(|core| core[server]).sum();
            let busy = self.busy.iter().filter(|busy| **busy == server).count();
            let open = self.open(server);
            assert!(open <= (*max).max(self.over[server]), "server {server}: {open} of {max}");
            self.over[server] = self.over[server].min(open);
            assert_eq!(open as usize, idle + busy, "permits are connections");
            let wanted = self.waiting.iter().any(|request| request.wants.contains(&server));
            assert!(!wanted || (open >= *max && idle == 0), "somebody waits for nothing");
            let (limiter, index) = self.view(server);
            assert_eq!(limiter.is_wanted(index), wanted);
        }
        let waiting = self.waiting.len();
        assert!(waiting <= self.bounds.limit);
        let rooms = self.lists.iter().map(|list| list.limiter.depth());
        assert!(rooms.into_iter().all(|depth| depth == waiting));
    }

    /// Hands an idle connection to who waits for it.
    fn offer(&self, server: usize) -> bool {
        let (limiter, index) = self.view(server);
        limiter.offer(index, server, self.now).is_ok()
    }
}

#[test]
fn no_two_cores_write_their_idle_connections_on_one_pair_of_lines() {
    let limiter = ConnectionLimiter::<Connection>::new(&[3], 4, fifo(9));
    let server = &limiter.servers[0];
    let pair = |address: usize| address / 128;
    let mut pairs: Vec<usize> = server.idle.iter().map(|idle| pair(std::ptr::from_ref(idle) as usize)).collect();
    pairs.push(pair(std::ptr::from_ref(&server.open) as usize));
    pairs.extend(limiter.shared.cores.iter().map(|core| pair(std::ptr::from_ref(core) as usize)));
    let count = pairs.len();
    pairs.sort_unstable();
    pairs.dedup();
    assert_eq!(pairs.len(), count);
}

#[test]
fn permits_are_exact_the_line_is_first_come_first_served_and_nobody_waits_for_what_is_free() {
    let mut served = 0;
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = World::new(&mut random);
        println!("seed {seed}");
        (0..400).for_each(|_| world.step(&mut random));
        // Everybody goes home, and nobody is left behind.
        while let Some(server) = world.busy.pop() {
            world.release(server);
            world.collect(&mut random);
            world.check();
        }
        assert!(world.waiting.iter().all(|request| request.wants.is_empty()));
        served += world.served;
    }
    assert!(served > 5_000, "only {served} had to wait");
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// One request of a thread; false when it gave up.
fn take(limiter: &ConnectionLimiter<Connection>, wait_max: usize, waker: &Waker) -> bool {
    if limiter.try_take(0) {
        return true;
    }
    let Ok(ticket) = limiter.join([0], 0) else { return false };
    for _ in 0..wait_max {
        if limiter.poll(ticket, &Context::from_waker(waker)).is_ready() {
            return true;
        }
        std::thread::park();
    }
    limiter.leave(ticket).is_some()
}

#[test]
fn threads_never_exceed_the_maximum_and_every_one_that_waits_is_woken() {
    const MAX: u32 = 3;
    let limiter: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[MAX], 4, fifo(64));
    let (inside, served) = (AtomicU32::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (limiter, inside, served) = (&limiter, &inside, &served);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
                for _ in 0..4_000 {
                    // Without an end to its wait a thread that is not woken hangs, and the test with it.
                    let wait_max = if random.u8(..8) == 0 { 1 } else { usize::MAX };
                    if !take(limiter, wait_max, &waker) {
                        continue;
                    }
                    assert!(inside.fetch_add(1, Ordering::SeqCst) < MAX);
                    served.fetch_add(1, Ordering::SeqCst);
                    if random.u8(..4) == 0 {
                        std::thread::yield_now();
                    }
                    inside.fetch_sub(1, Ordering::SeqCst);
                    if limiter.offer(0, 0, 0).is_err() {
                        limiter.release(0, 0);
                    }
                }
            });
        }
    });
    assert_eq!((limiter.open(0), limiter.depth()), (0, 0), "no permit was lost");
    assert!(served.into_inner() > 16_000);
}

#[test]
fn a_full_line_refuses_and_a_place_given_up_can_be_had() {
    let limiter: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[1], 1, fifo(1));
    assert!(limiter.try_take(0));
    let first = limiter.join([0], 0).unwrap();
    assert_eq!(limiter.join([0], 0), Err(Full));
    assert_eq!(limiter.leave(first), None);
    let second = limiter.join([0], 0).unwrap();
    limiter.release(0, 0);
    let grant = limiter.poll(second, &Context::from_waker(Waker::noop()));
    assert_eq!(grant, Poll::Ready(Ok(Grant::Permit(0))));
    assert!(!limiter.has_room(0), "the permit is the waiter's");
}

#[test]
fn a_newcomer_does_not_overtake_the_line_but_may_go_where_nobody_waits() {
    let limiter: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[1, 1], 1, fifo(8));
    assert!(limiter.try_take(0));
    let waits = limiter.join([0], 0).unwrap();
    assert!(limiter.try_take(1), "the queue is for the other server");
    limiter.release(0, 0);
    assert!(!limiter.try_take(0));
    assert_eq!(limiter.leave(waits), Some(Grant::Permit(0)));
}

#[test]
fn permits_of_an_earlier_turnstile_count_against_the_limit_of_a_later_one() {
    let first: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[2], 1, fifo(8));
    assert!(first.try_take(0) && first.try_take(0));
    let second = first.succeeded_by(&[1, 1], fifo(8), &known(b"ab", b"a"));
    assert!(second.is_kin(&first));
    assert!(!first.is_over(0), "nothing is in force yet");
    second.commit(0);
    assert!(second.is_over(0));
    first.release(0, 0);
    assert!(!second.try_take(0) && !first.try_take(0), "one is still out, and one there may be");
    let waits = first.join([0], 0).unwrap();
    let third = second.succeeded_by(&[2, 1], fifo(8), &known(b"ab", b"ab"));
    third.commit(0);
    let grant = third.poll(waits, &Context::from_waker(Waker::noop()));
    assert_eq!(grant, Poll::Ready(Ok(Grant::Permit(0))), "who waits by the first hears of the third's queue");
    third.release(0, 0);
    third.release(0, 0);
    assert_eq!(first.open(0), 0);
}

#[test]
fn a_server_that_is_new_has_its_limit_from_the_first_permit_on() {
    let first: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[UNLIMITED], 1, fifo(8));
    let second = first.succeeded_by(&[1, 1], fifo(8), &known(b"ab", b"a"));
    assert!(second.try_take(1) && !second.try_take(1), "before it is settled");
    assert!(second.try_take(0) && second.try_take(0), "one that is known has the limit in force");
    second.commit(0);
    assert!(second.is_over(0) && !second.is_over(1) && !second.try_take(1));
}

#[test]
fn a_server_without_a_limit_never_makes_anybody_wait() {
    let limiter: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[UNLIMITED], 1, fifo(0));
    assert!((0..10_000).all(|_| limiter.try_take(0)));
}

/// Grants of the tickets, in the order in which they are asked.
fn heard(
    limiter: &ConnectionLimiter<Connection>,
    tickets: &[QueueTicket],
) -> Vec<Poll<Result<Grant<Connection>, Full>>> {
    let context = Context::from_waker(Waker::noop());
    tickets.iter().map(|ticket| limiter.poll(*ticket, &context)).collect()
}

const GRANTED: Poll<Result<Grant<Connection>, Full>> = Poll::Ready(Ok(Grant::Permit(0)));

#[test]
fn in_overload_the_newest_is_served_first_and_the_oldest_makes_way_in_a_full_line() {
    let bounds = Bounds { limit: 3, order: Order { target: Some(100), head_start: 0 } };
    let limiter: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[1, 1], 1, bounds);
    assert!(limiter.try_take(0) && limiter.try_take(1));
    let mut tickets: Vec<QueueTicket> = [0, 10, 20].map(|now| limiter.join([0, 1], now).unwrap()).into();
    assert_eq!(limiter.join([0, 1], 100), Err(Full), "nobody has waited for too long");
    tickets.push(limiter.join([0], 101).unwrap());
    assert_eq!(heard(&limiter, &tickets), [Poll::Ready(Err(Full)), Poll::Pending, Poll::Pending, Poll::Pending]);
    limiter.release(0, 105);
    assert_eq!(heard(&limiter, &tickets[1..2]), [GRANTED], "none has waited for too long: by their order");
    limiter.release(0, 121);
    assert_eq!(heard(&limiter, &tickets[2..]), [Poll::Pending, GRANTED], "the newest of all kinds");
    limiter.release(0, 122);
    assert_eq!(heard(&limiter, &tickets[2..3]), [GRANTED]);
    assert_eq!((limiter.depth(), limiter.shared.lock().wakers.len()), (0, 0), "who was answered is forgotten");
}

#[test]
fn who_waits_for_something_else_counts_gets_nothing_here_and_makes_way_as_the_others_do() {
    let bounds = Bounds { limit: 2, order: Order { target: Some(100), head_start: 0 } };
    let limiter: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[1], 1, bounds);
    assert!(limiter.try_take(0));
    let first = limiter.join([], 0).unwrap();
    let second = limiter.join([], 10).unwrap();
    assert_eq!((limiter.join([], 20), limiter.join([0], 20)), (Err(Full), Err(Full)));
    limiter.release(0, 20);
    assert!(limiter.try_take(0), "nobody waits for the permit");
    assert_eq!(limiter.ends(0), None);
    let third = limiter.join([0], 101).unwrap();
    let full = Poll::Ready(Err(Full));
    assert_eq!(heard(&limiter, &[first, second, third]), [full, Poll::Pending, Poll::Pending], "the oldest of all");
    let fourth = limiter.join([], 120).unwrap();
    assert_eq!(limiter.leave(second), None, "it had to make way, and need not have heard of it");
    assert_eq!((limiter.leave(third), limiter.leave(fourth), limiter.depth()), (None, None, 0));
    assert!(limiter.shared.lock().granted.is_empty());
}

#[test]
fn who_comes_back_is_before_those_who_came_since_and_as_overdue_as_it_was() {
    let limiter: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[1, 1], 1, fifo(2));
    assert!(limiter.try_take(0));
    let [later, last] = [10, 20].map(|now| limiter.join([0], now).unwrap());
    let back = limiter.join_again([0], Arrival::at(5), 30).unwrap();
    assert_eq!(limiter.ends(0), Some((back, later)));
    assert_eq!(heard(&limiter, &[later, back, last]), [Poll::Pending, Poll::Pending, Poll::Ready(Err(Full))]);
    assert_eq!(limiter.join_again([0], Arrival::at(11), 30), Err(Full), "there is nobody who came later");
    limiter.release(0, 40);
    assert_eq!(heard(&limiter, &[later, back]), [Poll::Pending, GRANTED]);

    let bounds = Bounds { limit: 2, order: Order { target: Some(100), head_start: 0 } };
    let limiter: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[1], 1, bounds);
    assert!(limiter.try_take(0));
    let [first, second] = [100, 101].map(|now| limiter.join([0], now).unwrap());
    assert_eq!(limiter.join_again([0], Arrival::at(10), 150), Err(Full), "it is the one who has waited for too long");
    assert_eq!(limiter.leave(first), None);
    let back = limiter.join_again([0], Arrival::at(10), 150).unwrap();
    limiter.release(0, 150);
    assert_eq!(heard(&limiter, &[second, back]), [GRANTED, Poll::Pending], "the newest first");
}

#[test]
fn kinds_of_waiters_are_forgotten_when_their_last_one_leaves() {
    let limiter: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[1; 64], 1, fifo(10_000));
    assert!((0..64).all(|server| limiter.try_take(server)));
    for round in 0..3 {
        let tickets: Vec<QueueTicket> = (0..64)
            .flat_map(|server| [vec![server], (0..64).filter(|other| *other != server).collect()])
            .map(|wants: Vec<usize>| limiter.join(wants, 0).unwrap())
            .collect();
        assert_eq!(limiter.depth(), 128);
        assert!(heard(&limiter, &tickets).iter().all(Poll::is_pending));
        assert!(tickets.into_iter().all(|ticket| limiter.leave(ticket).is_none()));
        let queue = limiter.shared.lock();
        assert_eq!((queue.kinds.len(), queue.unused.len(), queue.by_wants.len()), (128, 128, 0), "round {round}");
        assert!(queue.by_server.is_empty());
        assert_eq!((queue.waiters.len(), queue.wakers.len(), queue.granted.len()), (0, 0, 0), "round {round}");
        assert!(queue.kinds.iter().all(|kind| kind.wants.is_empty()), "an unused kind holds no servers");
    }
}

#[test]
fn who_is_served_at_once_is_not_refused_for_a_line_that_is_longer_than_it_may_be_by_now() {
    let first: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[1, 1], 1, fifo(8));
    assert!(first.try_take(0));
    let waits = [0, 1].map(|now| first.join([0], now).unwrap());
    let second = first.succeeded_by(&[1, 1], fifo(1), &known(b"ab", b"ab"));
    second.commit(2);
    assert_eq!(second.join([0], 3), Err(Full));
    let served = second.join([1, 0], 4).unwrap();
    assert_eq!(heard(&second, &[served]), [Poll::Ready(Ok(Grant::Permit(1)))]);
    assert_eq!(second.depth(), 2, "who waits already goes on");
    assert!(waits.into_iter().all(|ticket| second.leave(ticket).is_none()));
}

#[test]
fn who_joins_the_line_calls_each_core_that_has_what_they_want_and_no_other_and_a_call_is_heard_once() {
    let limiter: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[1, 1], 3, fifo(8));
    assert!(limiter.try_take(0) && limiter.try_take(1));
    let called = || [0, 1, 2].map(|core| limiter.poll_called(core, &Context::from_waker(Waker::noop())).is_ready());
    limiter.note_idle(0, 0, 1);
    limiter.note_idle(1, 1, 1);
    limiter.note_idle(2, 0, 1);
    limiter.note_idle(2, 0, 0);
    assert_eq!(called(), [false; 3]);
    let waits = limiter.join([0], 0).unwrap();
    assert_eq!(called(), [true, false, false]);
    assert_eq!(called(), [false; 3]);
    assert_eq!(limiter.offer(0, 7, 0), Ok(()));
    assert_eq!(limiter.leave(waits), Some(Grant::Connection(0, 7)));
}

#[test]
fn a_server_that_has_another_index_has_its_permits_its_limit_and_those_who_wait_for_it() {
    let first: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[1, 1, 2], 1, fifo(8));
    assert!(first.try_take(0) && first.try_take(2) && first.try_take(2) && first.try_take(1));
    let waits_for_c = first.join([2], 0).unwrap();
    let waits_for_b = first.join([1], 1).unwrap();
    // c with a lower limit, d which is new, and a.
    let second = first.succeeded_by(&[1, 1, 1], fifo(8), &known(b"cda", b"abc"));
    second.commit(2);
    assert_eq!([0, 1, 2].map(|server| second.open(server)), [2, 0, 1]);
    assert!(second.is_over(0) && first.is_over(2) && !second.is_over(2));
    assert!(second.is_wanted(0) && !second.is_wanted(1) && !second.is_wanted(2));
    let waits_too = second.join([0, 2], 3).unwrap();
    assert_eq!(second.ends(0), Some((waits_for_c, waits_too)));
    // A permit of the first list goes back; one is still out, and one there may be.
    first.permits(2).release(4);
    assert_eq!(heard(&first, &[waits_for_c]), [Poll::Pending]);
    second.permits(0).release(5);
    assert_eq!(heard(&first, &[waits_for_c]), [Poll::Ready(Ok(Grant::Permit(2)))]);
    // Either list's connections go to who waits by the other, who knows them by the index of its own.
    assert_eq!(first.offer(0, 7, 6), Ok(()));
    assert_eq!(heard(&second, &[waits_too]), [Poll::Ready(Ok(Grant::Connection(2, 7)))]);
    let waits_by_first = first.join([2], 7).unwrap();
    assert_eq!(second.offer(0, 8, 7), Ok(()));
    assert_eq!(first.leave(waits_by_first), Some(Grant::Connection(2, 8)));
    // A server that is gone serves those who know it.
    first.release(1, 8);
    assert_eq!(heard(&first, &[waits_for_b]), [Poll::Ready(Ok(Grant::Permit(1)))]);
}

#[test]
fn an_idle_connection_is_called_for_by_whatever_index_its_server_has() {
    let first: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[1, 1, 1], 2, fifo(8));
    let second = first.succeeded_by(&[1, 1, 1], fifo(8), &known(b"cda", b"abc"));
    assert!(first.try_take(2) && second.try_take(1));
    let called = |core: usize| second.poll_called(core, &Context::from_waker(Waker::noop())).is_ready();
    first.note_idle(1, 2, 1);
    let other = second.join([1], 0).unwrap();
    assert_eq!([called(0), called(1)], [false, false]);
    let waits = second.join([0], 0).unwrap();
    assert_eq!([called(0), called(1)], [false, true]);
    assert_eq!((second.leave(waits), second.leave(other)), (None, None));
}

#[test]
fn permits_of_a_server_that_is_gone_end_with_the_last_who_refers_to_them() {
    let first: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[1, 1], 1, fifo(8));
    let permits = Arc::downgrade(first.permits(1));
    assert!(first.try_take(1));
    let (held, waits) = (Arc::clone(first.permits(1)), first.join([1], 0).unwrap());
    let second = first.succeeded_by(&[1], fifo(8), &known(b"a", b"ab"));
    second.commit(0);
    held.release(1);
    assert_eq!(first.leave(waits), Some(Grant::Permit(1)));
    drop(first);
    assert_eq!(permits.strong_count(), 1, "a permit may still be given back");
    drop(held);
    assert!(permits.upgrade().is_none());
    // One that comes back is another.
    let third = second.succeeded_by(&[1, 1], fifo(8), &known(b"ab", b"a"));
    assert!(third.try_take(1));
}

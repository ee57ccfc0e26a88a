//! Virtual cores by seeds, and real threads, against the promises of the limiter.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::task::Wake;

use super::*;

/// A connection, known by its server.
type Connection = usize;

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A request in the simulation.
struct Request {
    ticket: QueueTicket,
    wants: Vec<usize>,
    woken: Arc<Count>,
    asked: bool,
}

/// Virtual cores in turns that chance decides, as the proxy drives the limiter: reuse what is idle here, else take a
/// permit, else wait; lay down or close when done; go away at any time.
struct World {
    limiter: ConnectionLimiter<Connection>,
    /// Earlier limiters, oldest first. A core that holds one of them still goes by it.
    earlier: Vec<ConnectionLimiter<Connection>>,
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

impl World {
    fn new(random: &mut fastrand::Rng) -> World {
        let max: Vec<u32> = (0..random.usize(1..4)).map(|_| random.u32(1..5)).collect();
        let (cores, limit) = (random.usize(1..5), random.usize(0..12));
        let order = Order { target: random.bool().then(|| random.u64(0..40)) };
        let bounds = Bounds { limit, order };
        World {
            limiter: ConnectionLimiter::new(&max, cores, bounds),
            earlier: Vec::new(),
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
                if random.bool() { self.lay_down(core, server) } else { self.view(server).release(server, self.now) }
            }
            7 if !self.waiting.is_empty() => self.give_up(core, random),
            8 => self.close_idle(core, random),
            9 if random.u8(..8) == 0 => self.change(random),
            10 => self.join(Vec::new(), random),
            _ => {}
        }
        self.stewards();
        self.collect(random);
        self.check();
    }

    /// The limits change, and perhaps there is one server more.
    fn change(&mut self, random: &mut fastrand::Rng) {
        for max in &mut self.max {
            *max = random.u32(1..5);
        }
        if self.max.len() < 6 && random.bool() {
            self.max.push(random.u32(1..5));
            self.over.push(0);
            self.idle.iter_mut().for_each(|core| core.push(0));
        }
        let waiting = self.waiting.len();
        self.bounds.limit = random.usize(waiting..waiting + 12);
        let next = self.limiter.succeeded_by(&self.max, self.bounds);
        self.earlier.push(std::mem::replace(&mut self.limiter, next));
        self.over = (0..self.max.len()).map(|server| self.limiter.open(server)).collect();
        self.limiter.commit(self.now);
    }

    /// One of the limiters that know this server.
    fn view(&self, server: usize) -> &ConnectionLimiter<Connection> {
        let old = self.earlier.get(self.served % (self.earlier.len() + 1));
        old.filter(|old| server < old.max.len()).unwrap_or(&self.limiter)
    }

    fn arrive(&mut self, core: usize, random: &mut fastrand::Rng) {
        let mut wants: Vec<usize> = (0..self.max.len()).filter(|_| random.bool()).collect();
        if wants.is_empty() {
            wants.push(random.usize(..self.max.len()));
        }
        for server in &wants {
            if !self.limiter.is_wanted(*server) && self.idle[core][*server] > 0 {
                self.set_idle(core, *server, self.idle[core][*server] - 1);
                self.busy.push(*server);
                return;
            }
            if self.view(*server).try_take(*server) {
                self.busy.push(*server);
                return;
            }
        }
        self.join(wants, random);
    }

    /// Somebody joins the queue, with no servers in mind or with some, for the first time or again.
    fn join(&mut self, wants: Vec<usize>, random: &mut fastrand::Rng) {
        let most = wants.iter().max().copied().unwrap_or(0);
        let since = if random.u8(..4) == 0 { self.now - random.u64(..=self.now.min(30)) } else { self.now };
        let waiting = self.limiter.depth();
        let is_overload = |since: u64| self.bounds.order.is_overload(since, self.now);
        let overload = is_overload(since) || self.waiting.iter().any(|other| is_overload(other.ticket.since));
        match self.view(most).join_again(wants.clone(), since, self.now) {
            Err(Full) => {
                assert!(waiting >= self.bounds.limit, "refused with {waiting} of {} in the queue", self.bounds.limit);
                let came_later = self.waiting.iter().any(|other| other.ticket.since > since);
                assert!(overload || !came_later, "refused before one who came later");
            }
            Ok(ticket) => {
                let woken = Arc::new(Count(AtomicUsize::new(0)));
                self.waiting.push(Request { ticket, wants, woken, asked: false });
                self.waiting.sort_by_key(|request| request.ticket);
            }
        }
    }

    fn set_idle(&mut self, core: usize, server: usize, count: usize) {
        self.idle[core][server] = count;
        self.view(server).note_idle(core, server, count);
    }

    fn lay_down(&mut self, core: usize, server: usize) {
        if self.view(server).is_over(server) {
            self.view(server).release(server, self.now);
        } else if self.view(server).offer(server, server, self.now).is_err() {
            self.set_idle(core, server, self.idle[core][server] + 1);
        }
    }

    fn give_up(&mut self, core: usize, random: &mut fastrand::Rng) {
        let request = self.waiting.remove(random.usize(..self.waiting.len()));
        match self.limiter.leave(request.ticket) {
            None => {}
            Some(Grant::Permit(server)) => self.limiter.release(server, self.now),
            Some(Grant::Connection(server, _)) => self.lay_down(core, server),
        }
    }

    fn close_idle(&mut self, core: usize, random: &mut fastrand::Rng) {
        let server = random.usize(..self.max.len());
        if self.idle[core][server] > 0 {
            self.set_idle(core, server, self.idle[core][server] - 1);
            self.limiter.release(server, self.now);
        }
    }

    /// Runs on each core what it does when it is called.
    fn stewards(&mut self) {
        for core in 0..self.idle.len() {
            if self.limiter.poll_called(core, &Context::from_waker(Waker::noop())).is_pending() {
                continue;
            }
            for server in 0..self.max.len() {
                while self.idle[core][server] > 0 && self.limiter.offer(server, server, self.now).is_ok() {
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
            match self.limiter.poll(request.ticket, &Context::from_waker(&waker)) {
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
                Poll::Ready(Ok(Grant::Permit(server) | Grant::Connection(server, _))) => {
                    assert!(woken || !request.asked, "a grant without a wake-up");
                    let in_order = self.bounds.order.target.is_none();
                    assert!(!in_order || !refused.contains(&server), "server {server}: one who came before wants it");
                    assert!(request.wants.contains(&server));
                    self.busy.push(server);
                    self.served += 1;
                }
            }
        }
        // In a queue that goes by its order it is the last one who makes way, for one who came back.
        let in_order = |ticket: &QueueTicket| still.last().is_none_or(|last| last.ticket < *ticket);
        assert!(self.bounds.order.target.is_some() || displaced.iter().all(in_order));
        self.waiting = still;
    }

    fn check(&mut self) {
        for (server, max) in self.max.iter().enumerate() {
            let idle: usize = self.idle.iter().map(|core| core[server]).sum();
            let busy = self.busy.iter().filter(|busy| **busy == server).count();
            let open = self.limiter.open(server);
            assert!(open <= (*max).max(self.over[server]), "server {server}: {open} of {max}");
            self.over[server] = self.over[server].min(open);
            assert_eq!(self.limiter.open(server) as usize, idle + busy, "permits are connections");
            let wanted = self.waiting.iter().any(|request| request.wants.contains(&server));
            assert!(!wanted || (self.limiter.open(server) >= *max && idle == 0), "somebody waits for nothing");
            assert_eq!(self.limiter.is_wanted(server), wanted);
        }
        let waiting = self.waiting.len();
        assert!(waiting <= self.bounds.limit);
        assert_eq!(self.limiter.depth(), waiting);
    }
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
            world.limiter.release(server, world.now);
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
fn take(limiter: &ConnectionLimiter<Connection>, patience: usize, waker: &Waker) -> bool {
    if limiter.try_take(0) {
        return true;
    }
    let Ok(ticket) = limiter.join([0], 0) else { return false };
    for _ in 0..patience {
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
                    // Without an end to its patience a thread that is not woken hangs, and the test with it.
                    let patience = if random.u8(..8) == 0 { 1 } else { usize::MAX };
                    if !take(limiter, patience, &waker) {
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
    let second = first.succeeded_by(&[1, 1], fifo(8));
    assert!(second.is_kin(&first));
    assert!(!first.is_over(0), "nothing is in force yet");
    second.commit(0);
    assert!(second.is_over(0));
    first.release(0, 0);
    assert!(!second.try_take(0) && !first.try_take(0), "one is still out, and one there may be");
    let waits = first.join([0], 0).unwrap();
    let third = second.succeeded_by(&[2, 1], fifo(8));
    third.commit(0);
    let grant = third.poll(waits, &Context::from_waker(Waker::noop()));
    assert_eq!(grant, Poll::Ready(Ok(Grant::Permit(0))), "who waits by the first hears of the third's room");
    third.release(0, 0);
    third.release(0, 0);
    assert_eq!(first.open(0), 0);
}

#[test]
fn a_server_that_is_new_has_its_limit_from_the_first_permit_on() {
    let first: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[UNLIMITED], 1, fifo(8));
    let second = first.succeeded_by(&[1, 1], fifo(8));
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
    let bounds = Bounds { limit: 3, order: Order { target: Some(100) } };
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
    assert_eq!((limiter.depth(), limiter.lock().wakers.len()), (0, 0), "who was answered is forgotten");
}

#[test]
fn who_waits_for_something_else_counts_gets_nothing_here_and_makes_way_as_the_others_do() {
    let bounds = Bounds { limit: 2, order: Order { target: Some(100) } };
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
    assert!(limiter.lock().granted.is_empty());
}

#[test]
fn who_comes_back_is_before_those_who_came_since_and_as_overdue_as_it_was() {
    let limiter: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[1, 1], 1, fifo(2));
    assert!(limiter.try_take(0));
    let [later, last] = [10, 20].map(|now| limiter.join([0], now).unwrap());
    let back = limiter.join_again([0], 5, 30).unwrap();
    assert_eq!(limiter.ends(0), Some((back, later)));
    assert_eq!(heard(&limiter, &[later, back, last]), [Poll::Pending, Poll::Pending, Poll::Ready(Err(Full))]);
    assert_eq!(limiter.join_again([0], 11, 30), Err(Full), "there is nobody who came later");
    limiter.release(0, 40);
    assert_eq!(heard(&limiter, &[later, back]), [Poll::Pending, GRANTED]);

    let bounds = Bounds { limit: 2, order: Order { target: Some(100) } };
    let limiter: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[1], 1, bounds);
    assert!(limiter.try_take(0));
    let [first, second] = [100, 101].map(|now| limiter.join([0], now).unwrap());
    assert_eq!(limiter.join_again([0], 10, 150), Err(Full), "it is the one who has waited for too long");
    assert_eq!(limiter.leave(first), None);
    let back = limiter.join_again([0], 10, 150).unwrap();
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
        let room = limiter.lock();
        assert_eq!((room.kinds.len(), room.unused.len(), room.by_wants.len()), (128, 128, 0), "round {round}");
        assert!(room.by_server.values().all(Vec::is_empty));
        assert_eq!((room.waiters.len(), room.wakers.len(), room.granted.len()), (0, 0, 0), "round {round}");
        assert!(room.kinds.iter().all(|kind| kind.servers.is_empty()), "an unused kind holds no servers");
    }
}

#[test]
fn who_is_served_at_once_is_not_refused_for_a_line_that_is_longer_than_it_may_be_by_now() {
    let first: ConnectionLimiter<Connection> = ConnectionLimiter::new(&[1, 1], 1, fifo(8));
    assert!(first.try_take(0));
    let waits = [0, 1].map(|now| first.join([0], now).unwrap());
    let second = first.succeeded_by(&[1, 1], fifo(1));
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

//! A server and its clients on a clock of milliseconds, one event after the other, against the promises of
//! `queue.target`.

use std::collections::VecDeque;

use super::*;

/// Milliseconds for which the server works on a request.
const SERVICE: u64 = 10;
/// Requests that it works on at a time: one a millisecond comes out of it.
const PERMITS: u32 = 10;
const TARGET: u64 = 20;

/// A client, from its question to its answer.
#[derive(Clone, Copy)]
struct Client {
    came: u64,
    /// Milliseconds after which it goes away.
    wait_max: u64,
    /// Asks again once it is answered, or has gone away.
    stays: bool,
}

struct World {
    limiter: ConnectionLimiter<usize>,
    now: u64,
    /// Clients at the server, and when each will be answered.
    working: VecDeque<(u64, Client)>,
    waiting: Vec<(QueueTicket, Client)>,
    refused: usize,
}

impl World {
    fn new(limit: usize) -> World {
        let bounds = Bounds { limit, order: Order { target: Some(TARGET), head_start: 0 } };
        let limiter = ConnectionLimiter::new(&[PERMITS], 1, bounds);
        World { limiter, now: 0, working: VecDeque::new(), waiting: Vec::new(), refused: 0 }
    }

    fn ask(&mut self, wait_max: u64, stays: bool) {
        let client = Client { came: self.now, wait_max, stays };
        if self.limiter.try_take(0) {
            self.working.push_back((self.now + SERVICE, client));
            return;
        }
        match self.limiter.join([0], self.now) {
            Ok(ticket) => self.waiting.push((ticket, client)),
            Err(Full) => self.refused += 1,
        }
    }

    /// A millisecond: some go away, some are answered, and those whose turn it is go to the server. How long each of
    /// those answered has waited, and whether that was in time.
    fn pass(&mut self) -> Vec<(u64, bool)> {
        self.now += 1;
        let (now, limiter) = (self.now, &self.limiter);
        let mut again = Vec::new();
        self.waiting.retain(|(ticket, client)| {
            let is_patient = now - client.came < client.wait_max;
            if !is_patient {
                assert!(limiter.leave(*ticket).is_none());
                again.push(*client);
            }
            is_patient
        });
        let mut answered = Vec::new();
        while self.working.front().is_some_and(|(end, _)| *end <= now)
            && let Some((_, client)) = self.working.pop_front()
        {
            answered.push((now - client.came, now - client.came <= client.wait_max));
            again.push(client);
            self.limiter.release(0, now);
        }
        for (ticket, client) in std::mem::take(&mut self.waiting) {
            match self.limiter.poll(ticket, &Context::from_waker(Waker::noop())) {
                Poll::Pending => self.waiting.push((ticket, client)),
                Poll::Ready(Ok(_)) => self.working.push_back((now + SERVICE, client)),
                Poll::Ready(Err(Full)) => self.refused += 1,
            }
        }
        again.iter().filter(|client| client.stays).for_each(|client| self.ask(client.wait_max, true));
        answered
    }
}

/// The longest that any of so many clients has waited, in the last of ten seconds. They ask again as soon as they are
/// answered, or have gone away after `wait_max`; for two seconds others come as well, twice as many as can be
/// answered, and go away soon.
fn closed_loop(clients: usize, wait_max: u64) -> u64 {
    let mut world = World::new(1_024);
    let mut longest = 0;
    for step in 0..10_000 {
        let answered = world.pass();
        if step < clients {
            world.ask(wait_max, true);
        }
        if (1_000..3_000).contains(&step) {
            (0..2).for_each(|_| world.ask(150, false));
        }
        if step >= 9_000 {
            let waits = world.waiting.iter().map(|(_, client)| world.now - client.came);
            longest = waits.chain(answered.iter().map(|(wait, _)| *wait)).fold(longest, u64::max);
        }
    }
    assert_eq!((world.working.len() + world.waiting.len(), world.refused), (clients, 0));
    println!("{clients} clients of {wait_max} ms: {longest} ms at most");
    longest
}

/// With a wait for each of half of the target, and of five times as much; with clients who wait for ever, or for
/// little more than twice as long as that takes.
#[test]
fn clients_who_ask_again_when_they_are_answered_are_served_in_turn_once_the_overload_is_over() {
    for clients in [20, 110] {
        for wait_max in [u64::MAX, 4_000, 1_000, 250] {
            let turn = (clients as u64).div_ceil(u64::from(PERMITS)) * SERVICE;
            let longest = closed_loop(clients, wait_max);
            assert!(longest <= turn + SERVICE, "{clients} clients of {wait_max} ms: {longest} ms");
        }
    }
}

/// Requests, out of 1,000 answered ones, whose clients were still there, where `load` times as many ask as the server
/// can answer, in tenths, and go away after `wait_max`.
fn open_loop(load: u64, wait_max: u64, limit: usize) -> usize {
    let mut world = World::new(limit);
    let (mut asked, mut answered) = (0, Vec::new());
    for step in 0..3_000 {
        let some = world.pass();
        if step >= 2_000 {
            answered.extend(some);
        }
        while asked * 10 < (step + 1) * load {
            asked += 1;
            world.ask(wait_max, false);
        }
    }
    assert_eq!(answered.len(), 1_000, "the server has always something to do");
    let in_time = answered.iter().filter(|(_, in_time)| *in_time).count();
    println!("{load} tenths, {wait_max} ms, {limit} in the queue: {in_time} in time, {} refused", world.refused);
    in_time
}

#[test]
fn in_overload_nearly_all_that_the_server_can_do_is_answered_before_its_clients_go_away() {
    for (load, wait_max) in [(12, 200), (15, 40), (15, 200), (30, 40), (30, 200), (100, 40)] {
        for limit in [100, 100_000] {
            let in_time = open_loop(load, wait_max, limit);
            assert!(in_time >= 900, "{load} tenths, {wait_max} ms, {limit} in the queue: {in_time} of 1,000");
        }
    }
}

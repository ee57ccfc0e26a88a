//! Which probe is next: as many as may be under way at once, shared among the backends, so that one whose servers are
//! all silent keeps none of the others waiting. Within a backend likewise: servers that are known to be silent hold a
//! permit for as long as a probe may take, and have a share of the backend's, so that those that answer need not stand
//! behind them.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use tokio::sync::oneshot;

/// Share of the probes under way that one backend has at most: the rest begins at once, whoever is silent.
const SHARE_PERCENT: usize = 75;
/// Share of a backend's share that its silent servers have at most.
const SILENT_PERCENT: usize = 75;

/// Limiter of the probes under way.
#[derive(Clone)]
pub struct ProbeLimiter(Rc<RefCell<State>>);

struct State {
    free: usize,
    share: usize,
    silent_share: usize,
    /// Queues by backend, for backends with probes waiting or in progress.
    backends: BTreeMap<usize, BackendQueues>,
    /// The backend that had a permit last: of two that have as few, the one after it is next.
    last: usize,
}

/// A backend's probes by [`Kind`].
#[derive(Default)]
struct BackendQueues {
    under_way: [usize; 2],
    waiting: [VecDeque<oneshot::Sender<ProbePermit>>; 2],
}

/// How long a probe is likely to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The server has answered, or nobody knows.
    Prompt,
    /// The server is down, and said nothing the last time: all that it may be is over.
    Silent,
}

/// A probe's permit, until it is dropped.
pub struct ProbePermit {
    /// Limiter to return the permit to; `None` if it was never taken.
    limiter: Option<ProbeLimiter>,
    backend: usize,
    kind: Kind,
}

impl ProbeLimiter {
    pub fn new(at_once_max: usize) -> ProbeLimiter {
        let share = (at_once_max * SHARE_PERCENT / 100).max(1);
        let silent_share = (share * SILENT_PERCENT / 100).max(1);
        let state = State { free: at_once_max, share, silent_share, backends: BTreeMap::new(), last: usize::MAX };
        ProbeLimiter(Rc::new(RefCell::new(state)))
    }

    /// Waits for a permit of this backend's. A caller that has gone away is passed over.
    pub async fn take(&self, backend: usize, kind: Kind) -> ProbePermit {
        let (sender, receiver) = oneshot::channel();
        self.0.borrow_mut().backends.entry(backend).or_default().waiting[kind as usize].push_back(sender);
        self.grant();
        receiver.await.unwrap_or(ProbePermit { limiter: None, backend, kind })
    }

    /// Gives permits to those who wait, as long as there are any.
    fn grant(&self) {
        loop {
            let Some((backend, kind, sender)) = self.0.borrow_mut().next() else { return };
            let permit = ProbePermit { limiter: Some(self.clone()), backend, kind };
            if let Err(mut permit) = sender.send(permit) {
                // Not by its drop, which would come back here for each of very many.
                permit.limiter = None;
                self.0.borrow_mut().give_back(backend, kind);
            }
        }
    }
}

impl State {
    /// The backend that has the fewest under way is next, and of its two kinds the one that has fewer.
    fn next(&mut self) -> Option<(usize, Kind, oneshot::Sender<ProbePermit>)> {
        if self.free == 0 {
            return None;
        }
        let may = self.backends.iter().filter_map(|(backend, queues)| {
            let kind = queues.next(self.share, self.silent_share)?;
            Some((
                queues.under_way.iter().sum::<usize>(),
                backend.wrapping_sub(self.last.wrapping_add(1)),
                *backend,
                kind,
            ))
        });
        let (_, _, backend, kind) = may.min_by_key(|(under_way, distance, ..)| (*under_way, *distance))?;
        let queues = self.backends.get_mut(&backend)?;
        let sender = queues.waiting[kind as usize].pop_front()?;
        queues.under_way[kind as usize] += 1;
        self.free -= 1;
        self.last = backend;
        Some((backend, kind, sender))
    }

    fn give_back(&mut self, backend: usize, kind: Kind) {
        self.free += 1;
        if let Some(queues) = self.backends.get_mut(&backend) {
            queues.under_way[kind as usize] -= 1;
            if queues.under_way == [0, 0] && queues.waiting.iter().all(VecDeque::is_empty) {
                self.backends.remove(&backend);
            }
        }
    }
}

impl BackendQueues {
    /// Which kind is next, if one may have a permit.
    fn next(&self, share: usize, silent_share: usize) -> Option<Kind> {
        let [prompt, silent] = self.under_way;
        let waits = |kind: Kind| !self.waiting[kind as usize].is_empty();
        let may = prompt + silent < share;
        let prompt_may = may && waits(Kind::Prompt);
        let silent_may = may && waits(Kind::Silent) && silent < silent_share;
        match (prompt_may, silent_may) {
            (true, true) if silent < prompt => Some(Kind::Silent),
            (true, _) => Some(Kind::Prompt),
            (false, true) => Some(Kind::Silent),
            (false, false) => None,
        }
    }
}

impl Drop for ProbePermit {
    fn drop(&mut self) {
        if let Some(limiter) = self.limiter.take() {
            limiter.0.borrow_mut().give_back(self.backend, self.kind);
            limiter.grant();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    type Waiter = Pin<Box<dyn Future<Output = ProbePermit>>>;

    fn waiter(limiter: &ProbeLimiter, backend: usize) -> Waiter {
        waiter_of(limiter, backend, Kind::Prompt)
    }

    fn waiter_of(limiter: &ProbeLimiter, backend: usize, kind: Kind) -> Waiter {
        let limiter = limiter.clone();
        let mut waiter: Waiter = Box::pin(async move { limiter.take(backend, kind).await });
        // The waiter has to be polled once to stand in the queue.
        match waiter.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Box::pin(std::future::ready(permit)),
            Poll::Pending => waiter,
        }
    }

    /// Waiters that have their permit now; the others wait on.
    fn granted(waiters: &mut Vec<Waiter>) -> Vec<ProbePermit> {
        let mut permits = Vec::new();
        waiters.retain_mut(|waiter| match waiter.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => {
                permits.push(permit);
                false
            }
            Poll::Pending => true,
        });
        permits
    }

    #[test]
    fn a_backend_whose_servers_are_all_silent_keeps_nobody_else_waiting() {
        let limiter = ProbeLimiter::new(128);
        let mut silent: Vec<Waiter> = (0..900).map(|_| waiter(&limiter, 0)).collect();
        let held = granted(&mut silent);
        assert_eq!(held.len(), 96, "no more than its share");
        let mut others: Vec<Waiter> = (1..=32).map(|backend| waiter(&limiter, backend)).collect();
        assert_eq!(granted(&mut others).len(), 32, "nobody of them has ended, and all others have their permit");
        let mut more = vec![waiter(&limiter, 1)];
        assert_eq!(granted(&mut more).len(), 1, "those that have ended have given their permits back");
    }

    /// A server that is probed in simulated time: when the next probe is due, or its permit was asked for, or the probe ends.
    enum Probed {
        Due(u64),
        Waits(u64, Waiter),
        UnderWay(u64, ProbePermit),
    }

    /// The longest waits in milliseconds of servers that answer in 5 ms and of silent ones, all of one backend, over a minute. Each is
    /// probed every second, which takes a second where nobody answers.
    fn longest_waits(silent: usize, live: usize, kind_of_silent: Kind) -> (u64, u64) {
        const EVERY: u64 = 1_000;
        let limiter = ProbeLimiter::new(128);
        let mut servers: Vec<(bool, Probed)> =
            (0..silent + live).map(|at| (at < silent, Probed::Due((at as u64 * 7) % EVERY))).collect();
        let mut longest = [0, 0];
        for now in (0..60_000).step_by(5) {
            for (is_silent, server) in &mut servers {
                let kind = if *is_silent { kind_of_silent } else { Kind::Prompt };
                let next = match std::mem::replace(server, Probed::Due(0)) {
                    Probed::Due(due) if now >= due => Probed::Waits(now, waiter_of(&limiter, 0, kind)),
                    Probed::Waits(since, mut waiter) => {
                        longest[usize::from(*is_silent)] = longest[usize::from(*is_silent)].max(now - since);
                        match waiter.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                            Poll::Ready(permit) => Probed::UnderWay(now + if *is_silent { EVERY } else { 5 }, permit),
                            Poll::Pending => Probed::Waits(since, waiter),
                        }
                    }
                    Probed::UnderWay(end, permit) if now >= end => {
                        drop(permit);
                        Probed::Due(now + EVERY)
                    }
                    other => other,
                };
                *server = next;
            }
        }
        (longest[0], longest[1])
    }

    #[test]
    fn servers_that_answer_do_not_stand_behind_those_of_their_backend_that_are_silent() {
        let (live, silent) = longest_waits(900, 100, Kind::Silent);
        assert!(live <= 50, "a server that answers waited for {live} ms");
        assert!(silent <= 14_000, "the silent ones have their permits as well, after {silent} ms");
        let (live, _) = longest_waits(900, 100, Kind::Prompt);
        assert!(live > 5_000, "where nobody knows which are silent all wait, here for {live} ms");
    }

    #[test]
    fn silent_servers_have_their_permits_however_many_others_wait() {
        let limiter = ProbeLimiter::new(16);
        let mut prompt: Vec<Waiter> = (0..100).map(|_| waiter(&limiter, 0)).collect();
        let mut silent: Vec<Waiter> = (0..100).map(|_| waiter_of(&limiter, 0, Kind::Silent)).collect();
        let mut held = granted(&mut prompt);
        assert_eq!(held.len(), 12);
        for _ in 0..6 {
            held.remove(0);
            held.extend(granted(&mut prompt));
            held.extend(granted(&mut silent));
        }
        let silent = held.iter().filter(|permit| permit.kind == Kind::Silent).count();
        assert_eq!(silent, 6, "each permit that is given back is theirs until they have as many");
    }

    #[test]
    fn whoever_has_the_fewest_under_way_is_next() {
        let limiter = ProbeLimiter::new(4);
        let mut one: Vec<Waiter> = (0..9).map(|_| waiter(&limiter, 1)).collect();
        let mut held = granted(&mut one);
        assert_eq!(held.len(), 3);
        let mut others = vec![waiter(&limiter, 2), waiter(&limiter, 3)];
        let first = granted(&mut others);
        assert_eq!(first.len(), 1, "one place is left");
        held.pop();
        assert!(granted(&mut one).is_empty(), "its permit goes to the one that has none");
        assert_eq!(granted(&mut others).len(), 1);
    }

    #[test]
    fn whoever_does_not_wait_any_more_costs_no_permit() {
        let limiter = ProbeLimiter::new(1);
        let mut first = vec![waiter(&limiter, 0)];
        let held = granted(&mut first);
        let gone: Vec<Waiter> = (0..10_000).map(|_| waiter(&limiter, 1)).collect();
        let mut last = vec![waiter(&limiter, 2)];
        drop(gone);
        drop(held);
        let held = granted(&mut last);
        assert_eq!(held.len(), 1);
        drop(held);
        // A permit that was given and never looked at comes back as well.
        let mut unseen = vec![waiter(&limiter, 3)];
        let held = granted(&mut unseen);
        let waiting = waiter(&limiter, 4);
        drop(held);
        drop(waiting);
        assert_eq!(granted(&mut vec![waiter(&limiter, 5)]).len(), 1);
    }
}

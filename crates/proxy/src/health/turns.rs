//! Whose probe is next: as many as may be under way at once, shared among the backends, so that one whose servers are all
//! silent keeps none of the others waiting.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use tokio::sync::oneshot;

/// Of the probes under way at once one backend has no more than this share: the rest begins at once, whoever is silent.
const SHARE_PERCENT: usize = 75;

/// Turns of probes.
#[derive(Clone)]
pub struct Turns(Rc<RefCell<State>>);

struct State {
    free: usize,
    share: usize,
    /// By backend, those that have any.
    under_way: BTreeMap<usize, usize>,
    waiting: BTreeMap<usize, VecDeque<oneshot::Sender<Turn>>>,
    /// The backend that had a turn last: of two that have as few, the one after it is next.
    last: usize,
}

/// A probe's turn, until it is dropped.
pub struct Turn {
    /// None when it was never taken.
    turns: Option<Turns>,
    backend: usize,
}

impl Turns {
    pub fn new(at_once_max: usize) -> Turns {
        let share = (at_once_max * SHARE_PERCENT / 100).max(1);
        let state =
            State { free: at_once_max, share, under_way: BTreeMap::new(), waiting: BTreeMap::new(), last: usize::MAX };
        Turns(Rc::new(RefCell::new(state)))
    }

    /// Waits for a turn of this backend's. Whoever does not wait any more is passed over.
    pub async fn take(&self, backend: usize) -> Turn {
        let (sender, receiver) = oneshot::channel();
        self.0.borrow_mut().waiting.entry(backend).or_default().push_back(sender);
        self.grant();
        receiver.await.unwrap_or(Turn { turns: None, backend })
    }

    /// Gives turns to those who wait, as long as there are any.
    fn grant(&self) {
        loop {
            let Some((backend, sender)) = self.0.borrow_mut().next() else { return };
            let turn = Turn { turns: Some(self.clone()), backend };
            if let Err(mut turn) = sender.send(turn) {
                // Not by its drop, which would come back here for each of very many.
                turn.turns = None;
                self.0.borrow_mut().give_back(backend);
            }
        }
    }
}

impl State {
    /// Whoever has the fewest under way is next.
    fn next(&mut self) -> Option<(usize, oneshot::Sender<Turn>)> {
        if self.free == 0 {
            return None;
        }
        let under_way = |backend: usize| self.under_way.get(&backend).copied().unwrap_or(0);
        let may = self.waiting.keys().copied().filter(|backend| under_way(*backend) < self.share);
        let backend =
            may.min_by_key(|backend| (under_way(*backend), backend.wrapping_sub(self.last.wrapping_add(1))))?;
        let line = self.waiting.get_mut(&backend)?;
        let sender = line.pop_front();
        if line.is_empty() {
            self.waiting.remove(&backend);
        }
        self.free -= 1;
        self.last = backend;
        *self.under_way.entry(backend).or_default() += 1;
        sender.map(|sender| (backend, sender))
    }

    fn give_back(&mut self, backend: usize) {
        self.free += 1;
        if let Some(count) = self.under_way.get_mut(&backend) {
            *count -= 1;
            if *count == 0 {
                self.under_way.remove(&backend);
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turns) = self.turns.take() {
            turns.0.borrow_mut().give_back(self.backend);
            turns.grant();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    type Waiter = Pin<Box<dyn Future<Output = Turn>>>;

    fn waiter(turns: &Turns, backend: usize) -> Waiter {
        let turns = turns.clone();
        let mut waiter: Waiter = Box::pin(async move { turns.take(backend).await });
        // It has to be polled once to stand in the line.
        match waiter.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Box::pin(std::future::ready(turn)),
            Poll::Pending => waiter,
        }
    }

    /// Those that have their turn now; the others wait on.
    fn granted(waiters: &mut Vec<Waiter>) -> Vec<Turn> {
        let mut turns = Vec::new();
        waiters.retain_mut(|waiter| match waiter.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => {
                turns.push(turn);
                false
            }
            Poll::Pending => true,
        });
        turns
    }

    #[test]
    fn a_backend_whose_servers_are_all_silent_keeps_nobody_else_waiting() {
        let turns = Turns::new(128);
        let mut silent: Vec<Waiter> = (0..900).map(|_| waiter(&turns, 0)).collect();
        let held = granted(&mut silent);
        assert_eq!(held.len(), 96, "no more than its share");
        let mut others: Vec<Waiter> = (1..=32).map(|backend| waiter(&turns, backend)).collect();
        assert_eq!(granted(&mut others).len(), 32, "nobody of them has ended, and all others have their turn");
        let mut more = vec![waiter(&turns, 1)];
        assert_eq!(granted(&mut more).len(), 1, "those that have ended have given their turns back");
    }

    #[test]
    fn whoever_has_the_fewest_under_way_is_next() {
        let turns = Turns::new(4);
        let mut one: Vec<Waiter> = (0..9).map(|_| waiter(&turns, 1)).collect();
        let mut held = granted(&mut one);
        assert_eq!(held.len(), 3);
        let mut others = vec![waiter(&turns, 2), waiter(&turns, 3)];
        let first = granted(&mut others);
        assert_eq!(first.len(), 1, "one place is left");
        held.pop();
        assert!(granted(&mut one).is_empty(), "its turn goes to the one that has none");
        assert_eq!(granted(&mut others).len(), 1);
    }

    #[test]
    fn whoever_does_not_wait_any_more_costs_no_turn() {
        let turns = Turns::new(1);
        let mut first = vec![waiter(&turns, 0)];
        let held = granted(&mut first);
        let gone: Vec<Waiter> = (0..10_000).map(|_| waiter(&turns, 1)).collect();
        let mut last = vec![waiter(&turns, 2)];
        drop(gone);
        drop(held);
        let held = granted(&mut last);
        assert_eq!(held.len(), 1);
        drop(held);
        // A turn that was given and never looked at comes back as well.
        let mut unseen = vec![waiter(&turns, 3)];
        let held = granted(&mut unseen);
        let waiting = waiter(&turns, 4);
        drop(held);
        drop(waiting);
        assert_eq!(granted(&mut vec![waiter(&turns, 5)]).len(), 1);
    }
}

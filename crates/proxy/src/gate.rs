//! One core's gate in front of the dear part of handshakes, and the keeper who opens it once in every turn of the event
//! loop, after those who asked for something else.
//!
//! While there is budget and nobody waits the gate is a look at two counters; see `propylon_policy::gate` for who may
//! enter when.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use propylon_policy::gate::{Answer, Budget, Class, Place};
use propylon_tls::Greeting;
use tokio::task::yield_now;

pub struct Gate {
    started: Instant,
    line: RefCell<Line>,
}

struct Line {
    policy: propylon_policy::gate::Gate,
    /// By place.
    wakers: Vec<Option<Waker>>,
    /// Sleeps while there is nothing to open for.
    keeper: Option<Waker>,
}

/// A place in the line. Dropped, it is given up.
pub struct Queued {
    gate: Rc<Gate>,
    /// Absent once its holder has gone on.
    place: Option<Place>,
    since: Instant,
}

impl Gate {
    pub fn new() -> Rc<Gate> {
        let policy = propylon_policy::gate::Gate::new(Budget::default());
        let line = RefCell::new(Line { policy, wakers: Vec::new(), keeper: None });
        Rc::new(Gate { started: Instant::now(), line })
    }

    /// For a handshake whose hello is there. None: it may go on. What it costs is to be told by [`Gate::charge`].
    pub fn ask(self: &Rc<Self>, greeting: Greeting) -> Option<Queued> {
        let class = match greeting {
            Greeting::Full => Class::Full,
            Greeting::Resuming => Class::Resuming,
        };
        let mut line = self.line.borrow_mut();
        let answer = line.policy.ask(class);
        let keeper = line.keeper_if_wanted();
        drop(line);
        wake(keeper);
        match answer {
            Answer::Enter => None,
            Answer::Wait(place) => Some(Queued { gate: Rc::clone(self), place: Some(place), since: Instant::now() }),
        }
    }

    /// What a step of a handshake has cost this core.
    pub fn charge(&self, cost: Duration) {
        let mut line = self.line.borrow_mut();
        line.policy.charge(cost);
        let keeper = line.keeper_if_wanted();
        drop(line);
        wake(keeper);
    }

    /// How long who comes now would have to wait.
    pub fn expected_wait(&self) -> Duration {
        self.line.borrow().policy.expected_wait()
    }

    pub fn waiting(&self) -> usize {
        self.line.borrow().policy.waiting()
    }

    /// The keeper's life. A task that yields is woken when the runtime has asked for input and output, behind all who
    /// became ready by that.
    pub async fn keep(self: Rc<Self>) {
        loop {
            poll_fn(|context| self.poll_wanted(context)).await;
            yield_now().await;
            self.turn();
        }
    }

    fn poll_wanted(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut line = self.line.borrow_mut();
        if line.policy.wants_turn() {
            return Poll::Ready(());
        }
        line.keeper = Some(context.waker().clone());
        Poll::Pending
    }

    fn turn(&self) {
        let now = self.started.elapsed();
        let mut called = Vec::new();
        let mut line = self.line.borrow_mut();
        let Line { policy, wakers, .. } = &mut *line;
        policy.turn(now, |place| called.extend(wakers.get_mut(place.index()).and_then(Option::take)));
        drop(line);
        called.into_iter().for_each(Waker::wake);
    }
}

impl Line {
    fn keeper_if_wanted(&mut self) -> Option<Waker> {
        if self.policy.wants_turn() { self.keeper.take() } else { None }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Queued {
    /// Ready, with how long it took, when the handshake may go on.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Duration> {
        let Some(place) = self.place else { return Poll::Ready(Duration::ZERO) };
        let mut line = self.gate.line.borrow_mut();
        if line.policy.enter(place) {
            self.place = None;
            return Poll::Ready(self.since.elapsed());
        }
        let index = place.index();
        if line.wakers.len() <= index {
            line.wakers.resize(index + 1, None);
        }
        let known = line.wakers[index].as_ref().is_some_and(|known| known.will_wake(context.waker()));
        // Dropped when the line is no longer borrowed: a waker may be the last hold on a task.
        let replaced = if known { None } else { line.wakers[index].replace(context.waker().clone()) };
        drop(line);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let Some(place) = self.place.take() else { return };
        let mut line = self.gate.line.borrow_mut();
        let waker = line.wakers.get_mut(place.index()).and_then(Option::take);
        line.policy.leave(place);
        drop(line);
        drop(waker);
    }
}

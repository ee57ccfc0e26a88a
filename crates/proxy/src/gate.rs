//! One core's gate in front of the dear part of handshakes, and the keeper who opens it once in every turn of the event
//! loop, after those who asked for something else.
//!
//! While there is budget and nobody waits the gate is a look at two counters; see
//! `propylon_policy::handshake_limiter` for who may enter when.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use propylon_policy::handshake_limiter::{Budget, Class, Permission, Place};
use propylon_tls::HelloClass;
use tokio::task::yield_now;

/// So many turns after a request a core counts as serving some: tens of milliseconds of a storm.
const COMPANY_TURNS: u32 = 128;

pub struct Gate {
    started: Instant,
    /// Turns for which there is company yet.
    company: Cell<u32>,
    queue: RefCell<Queue>,
}

struct Queue {
    policy: propylon_policy::handshake_limiter::HandshakeLimiter,
    /// Wakers by place.
    wakers: Vec<Option<Waker>>,
    /// Sleeps while there is nothing to open for.
    keeper: Option<Waker>,
}

/// A place in the queue. Dropped, it is given up.
pub struct Queued {
    gate: Rc<Gate>,
    /// Absent once its holder has gone on.
    place: Option<Place>,
    since: Instant,
}

impl Gate {
    pub fn new(budget: Budget) -> Rc<Gate> {
        let policy = propylon_policy::handshake_limiter::HandshakeLimiter::new(budget);
        let queue = RefCell::new(Queue { policy, wakers: Vec::new(), keeper: None });
        Rc::new(Gate { started: Instant::now(), company: Cell::new(0), queue })
    }

    /// For a handshake whose hello is there. None: it may go on. What it costs is to be told by [`Gate::charge`].
    pub fn ask(self: &Rc<Self>, hello: HelloClass) -> Option<Queued> {
        let class = match hello {
            HelloClass::Full => Class::Full,
            HelloClass::Resuming => Class::Resuming,
        };
        let mut queue = self.queue.borrow_mut();
        let answer = queue.policy.ask(class);
        let keeper = queue.keeper_if_wanted();
        drop(queue);
        wake(keeper);
        match answer {
            Permission::Granted => None,
            Permission::Queued(place) => {
                Some(Queued { gate: Rc::clone(self), place: Some(place), since: Instant::now() })
            }
        }
    }

    /// Charges the time that a step of a handshake has cost this core.
    pub fn charge(&self, cost: Duration) {
        let mut queue = self.queue.borrow_mut();
        queue.policy.charge(cost);
        let keeper = queue.keeper_if_wanted();
        drop(queue);
        wake(keeper);
    }

    /// A request has come: handshakes are to leave it more room.
    pub fn note_request(&self) {
        self.company.set(COMPANY_TURNS);
    }

    /// How long who comes now would have to wait.
    pub fn expected_wait(&self) -> Duration {
        self.queue.borrow().policy.expected_wait()
    }

    pub fn waiting(&self) -> usize {
        self.queue.borrow().policy.waiting()
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
        let mut queue = self.queue.borrow_mut();
        if queue.policy.wants_turn() {
            return Poll::Ready(());
        }
        queue.keeper = Some(context.waker().clone());
        Poll::Pending
    }

    fn turn(&self) {
        let now = self.started.elapsed();
        let mut called = Vec::new();
        let mut queue = self.queue.borrow_mut();
        let Queue { policy, wakers, .. } = &mut *queue;
        let company = self.company.replace(self.company.get().saturating_sub(1));
        policy.turn(now, company > 0, |place| called.extend(wakers.get_mut(place.index()).and_then(Option::take)));
        drop(queue);
        called.into_iter().for_each(Waker::wake);
    }
}

impl Queue {
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
        let mut queue = self.gate.queue.borrow_mut();
        if queue.policy.enter(place) {
            self.place = None;
            return Poll::Ready(self.since.elapsed());
        }
        let index = place.index();
        if queue.wakers.len() <= index {
            queue.wakers.resize(index + 1, None);
        }
        let known = queue.wakers[index].as_ref().is_some_and(|known| known.will_wake(context.waker()));
        // Dropped when the queue is no longer borrowed: a waker may be the last hold on a task.
        let replaced = if known { None } else { queue.wakers[index].replace(context.waker().clone()) };
        drop(queue);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let Some(place) = self.place.take() else { return };
        let mut queue = self.gate.queue.borrow_mut();
        let waker = queue.wakers.get_mut(place.index()).and_then(Option::take);
        queue.policy.leave(place);
        drop(queue);
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, LocalOptions};
    use tokio::task::spawn_local;

    use super::*;

    /// More than a turn has for all.
    const DEAR: Duration = Duration::from_millis(5);

    fn run(story: impl Future<Output = ()>) {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
        runtime.block_on(story);
    }

    async fn pass(gate: &Rc<Gate>, hello: HelloClass) {
        if let Some(mut queued) = gate.ask(hello) {
            poll_fn(|context| queued.poll(context)).await;
        }
    }

    #[test]
    fn dear_handshakes_go_one_by_one_and_others_have_their_turn_between_them() {
        run(async {
            let gate = Gate::new(Budget::default());
            spawn_local(Rc::clone(&gate).keep());
            let order = Rc::new(RefCell::new(Vec::new()));
            let handshakes: Vec<_> = (0..20)
                .map(|number| {
                    let (gate, order) = (Rc::clone(&gate), Rc::clone(&order));
                    spawn_local(async move {
                        pass(&gate, HelloClass::Full).await;
                        gate.charge(DEAR);
                        order.borrow_mut().push(Some(number));
                    })
                })
                .collect();
            let (steady, done) = (Rc::clone(&order), Rc::new(RefCell::new(false)));
            let until = Rc::clone(&done);
            let other = spawn_local(async move {
                while !*until.borrow() {
                    steady.borrow_mut().push(None);
                    yield_now().await;
                }
            });
            for handshake in handshakes {
                handshake.await.unwrap();
            }
            *done.borrow_mut() = true;
            other.await.unwrap();
            let order = order.take();
            let handshakes: Vec<usize> = order.iter().copied().flatten().collect();
            assert_eq!(handshakes, (0..20).collect::<Vec<_>>());
            assert!(!order.windows(2).any(|pair| pair[0].is_some() && pair[1].is_some()), "{order:?}");
            assert_eq!(gate.waiting(), 0);
        });
    }

    #[test]
    fn who_goes_away_lets_the_others_move_up() {
        run(async {
            let gate = Gate::new(Budget::default());
            assert!(gate.ask(HelloClass::Full).is_none());
            gate.charge(DEAR);
            let mut queued: Vec<Queued> = (0..300).filter_map(|_| gate.ask(HelloClass::Full)).collect();
            assert_eq!(gate.waiting(), 300);
            assert!(gate.expected_wait() > Duration::from_millis(10));
            let mut last = queued.pop().unwrap();
            drop(queued);
            assert_eq!(gate.waiting(), 1);
            spawn_local(Rc::clone(&gate).keep());
            poll_fn(|context| last.poll(context)).await;
            assert_eq!((gate.waiting(), gate.expected_wait()), (0, Duration::ZERO));
        });
    }

    #[test]
    fn a_core_with_time_makes_nobody_wait() {
        run(async {
            let gate = Gate::new(Budget::default());
            spawn_local(Rc::clone(&gate).keep());
            for _ in 0..100 {
                assert!(gate.ask(HelloClass::Resuming).is_none());
                gate.charge(Duration::from_micros(100));
                // The event loop has had nothing else to do since.
                yield_now().await;
                yield_now().await;
            }
        });
    }
}

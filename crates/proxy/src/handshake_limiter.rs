//! One core's limiter of the expensive part of TLS handshakes, and the task that admits queued handshakes once per
//! iteration of the event loop, after all other tasks that are ready.
//!
//! While there is budget and the queue is empty, admission is a look at two counters. The order and the number of
//! admissions are decided in `propylon_policy::handshake_limiter`.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use propylon_policy::handshake_limiter as policy;
use propylon_policy::handshake_limiter::{Budget, Class, Permission, Place};
use propylon_tls::HelloClass;
use tokio::task::yield_now;

/// Rounds of admission after a request during which a core counts as serving requests: tens of milliseconds of a storm.
const SERVING_ROUNDS: u32 = 128;

pub struct HandshakeLimiter {
    started: Instant,
    /// Rounds of admission for which the core still counts as serving requests.
    serving_rounds: Cell<u32>,
    queue: RefCell<Queue>,
}

struct Queue {
    policy: policy::HandshakeLimiter,
    /// Wakers of the queued handshakes, by the index of their place.
    wakers: Vec<Option<Waker>>,
    /// Waker of the task that admits, while no handshake is queued and no cost is charged.
    driver: Option<Waker>,
}

/// A handshake in the queue. Dropping it leaves the queue.
pub struct QueuedHandshake {
    limiter: Rc<HandshakeLimiter>,
    /// `None` once the handshake has been admitted.
    place: Option<Place>,
    since: Instant,
}

impl HandshakeLimiter {
    pub fn new(budget: Budget) -> Rc<HandshakeLimiter> {
        let policy = policy::HandshakeLimiter::new(budget);
        let queue = RefCell::new(Queue { policy, wakers: Vec::new(), driver: None });
        Rc::new(HandshakeLimiter { started: Instant::now(), serving_rounds: Cell::new(0), queue })
    }

    /// Admits a handshake whose ClientHello is complete, or queues it; `None` when it is admitted at once. The caller
    /// reports the handshake's cost to [`HandshakeLimiter::charge`].
    pub fn admit(self: &Rc<Self>, hello: HelloClass) -> Option<QueuedHandshake> {
        let class = match hello {
            HelloClass::Full => Class::Full,
            HelloClass::Resuming => Class::Resuming,
        };
        let mut queue = self.queue.borrow_mut();
        let permission = queue.policy.ask(class);
        let driver = queue.take_driver_if_wanted();
        drop(queue);
        wake(driver);
        match permission {
            Permission::Granted => None,
            Permission::Queued(place) => {
                Some(QueuedHandshake { limiter: Rc::clone(self), place: Some(place), since: Instant::now() })
            }
        }
    }

    /// Charges the time that a step of a handshake has cost this core.
    pub fn charge(&self, cost: Duration) {
        let mut queue = self.queue.borrow_mut();
        queue.policy.charge(cost);
        let driver = queue.take_driver_if_wanted();
        drop(queue);
        wake(driver);
    }

    /// Notes a request of this core, so that handshakes leave requests more of the core's time.
    pub fn note_request(&self) {
        self.serving_rounds.set(SERVING_ROUNDS);
    }

    /// Time that a handshake which arrived now would wait in the queue.
    pub fn expected_wait(&self) -> Duration {
        self.queue.borrow().policy.expected_wait()
    }

    /// Number of queued handshakes.
    pub fn queued(&self) -> usize {
        self.queue.borrow().policy.waiting()
    }

    /// Runs the task that admits queued handshakes. A task that yields is polled again after the runtime has polled for
    /// I/O, behind all tasks which that made ready.
    pub async fn drive(self: Rc<Self>) {
        loop {
            poll_fn(|context| self.poll_wanted(context)).await;
            yield_now().await;
            self.run_round();
        }
    }

    fn poll_wanted(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut queue = self.queue.borrow_mut();
        if queue.policy.wants_turn() {
            return Poll::Ready(());
        }
        queue.driver = Some(context.waker().clone());
        Poll::Pending
    }

    /// Admits as many queued handshakes as the budget of one iteration of the event loop allows, and wakes them.
    fn run_round(&self) {
        let now = self.started.elapsed();
        let mut admitted = Vec::new();
        let mut queue = self.queue.borrow_mut();
        let Queue { policy, wakers, .. } = &mut *queue;
        let serving_rounds = self.serving_rounds.replace(self.serving_rounds.get().saturating_sub(1));
        policy.turn(now, serving_rounds > 0, |place| {
            admitted.extend(wakers.get_mut(place.index()).and_then(Option::take))
        });
        drop(queue);
        admitted.into_iter().for_each(Waker::wake);
    }
}

impl Queue {
    /// Takes the waker of the task that admits, if there is a handshake to admit or a cost to work off.
    fn take_driver_if_wanted(&mut self) -> Option<Waker> {
        if self.policy.wants_turn() { self.driver.take() } else { None }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl QueuedHandshake {
    /// Waits until the handshake is admitted; ready with the time that it was queued.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Duration> {
        let Some(place) = self.place else { return Poll::Ready(Duration::ZERO) };
        let mut queue = self.limiter.queue.borrow_mut();
        if queue.policy.enter(place) {
            self.place = None;
            return Poll::Ready(self.since.elapsed());
        }
        let index = place.index();
        if queue.wakers.len() <= index {
            queue.wakers.resize(index + 1, None);
        }
        let is_current = queue.wakers[index].as_ref().is_some_and(|waker| waker.will_wake(context.waker()));
        // The replaced waker is dropped when the queue is no longer borrowed: it may hold the last reference to a task.
        let replaced = if is_current { None } else { queue.wakers[index].replace(context.waker().clone()) };
        drop(queue);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for QueuedHandshake {
    fn drop(&mut self) {
        let Some(place) = self.place.take() else { return };
        let mut queue = self.limiter.queue.borrow_mut();
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

    /// A cost above the budget of one round.
    const EXPENSIVE: Duration = Duration::from_millis(5);

    fn run(story: impl Future<Output = ()>) {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).unwrap();
        runtime.block_on(story);
    }

    async fn admitted(limiter: &Rc<HandshakeLimiter>, hello: HelloClass) {
        if let Some(mut queued) = limiter.admit(hello) {
            poll_fn(|context| queued.poll(context)).await;
        }
    }

    #[test]
    fn expensive_handshakes_are_admitted_one_by_one_and_other_tasks_run_between_them() {
        run(async {
            let limiter = HandshakeLimiter::new(Budget::default());
            spawn_local(Rc::clone(&limiter).drive());
            let order = Rc::new(RefCell::new(Vec::new()));
            let handshakes: Vec<_> = (0..20)
                .map(|number| {
                    let (limiter, order) = (Rc::clone(&limiter), Rc::clone(&order));
                    spawn_local(async move {
                        admitted(&limiter, HelloClass::Full).await;
                        limiter.charge(EXPENSIVE);
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
            assert_eq!(limiter.queued(), 0);
        });
    }

    #[test]
    fn a_handshake_that_leaves_the_queue_lets_the_others_move_up() {
        run(async {
            let limiter = HandshakeLimiter::new(Budget::default());
            assert!(limiter.admit(HelloClass::Full).is_none());
            limiter.charge(EXPENSIVE);
            let mut queued: Vec<QueuedHandshake> = (0..300).filter_map(|_| limiter.admit(HelloClass::Full)).collect();
            assert_eq!(limiter.queued(), 300);
            assert!(limiter.expected_wait() > Duration::from_millis(10));
            let mut last = queued.pop().unwrap();
            drop(queued);
            assert_eq!(limiter.queued(), 1);
            spawn_local(Rc::clone(&limiter).drive());
            poll_fn(|context| last.poll(context)).await;
            assert_eq!((limiter.queued(), limiter.expected_wait()), (0, Duration::ZERO));
        });
    }

    #[test]
    fn a_core_with_budget_queues_no_handshake() {
        run(async {
            let limiter = HandshakeLimiter::new(Budget::default());
            spawn_local(Rc::clone(&limiter).drive());
            for _ in 0..100 {
                assert!(limiter.admit(HelloClass::Resuming).is_none());
                limiter.charge(Duration::from_micros(100));
                // The event loop has had nothing else to do since.
                yield_now().await;
                yield_now().await;
            }
        });
    }
}

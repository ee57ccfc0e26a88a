//! Sleeps of a core that are exact and rare, by one timer of the kernel's that the event loop watches.
//!
//! A runtime with timers of its own asks for the time and for the next of them before and after each wait for events,
//! whether one is set or not: some 300 instructions a turn. Deadlines of connections are in `timers.rs`; what is left
//! are pauses before another try, of which there are few.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use rustix::time::{timerfd_create, timerfd_settime};
use tokio::io::unix::AsyncFd;
use tokio::task::spawn_local;

thread_local! {
    static ALARMS: RefCell<Option<Rc<Alarms>>> = const { RefCell::new(None) };
}

/// Sleepers of one thread, in the order in which they are due.
struct Alarms {
    timer: AsyncFd<OwnedFd>,
    sleepers: RefCell<BTreeMap<(Instant, u64), Waker>>,
    /// Number of the next sleeper: two may be due at the same time.
    next: Cell<u64>,
}

/// Has the sleeps of this thread be those of this module, for as long as its runtime lasts. To be called within it.
///
/// # Errors
/// Errors of timerfd_create(2): the process has no files left, mostly.
#[expect(
    deprecated,
    reason = "deprecated for types that may close their file behind its back; an owned descriptor does not"
)]
pub fn start() -> io::Result<()> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    let alarms = Rc::new(Alarms { timer: AsyncFd::new(timer)?, sleepers: RefCell::default(), next: Cell::new(0) });
    let attended = Attended;
    ALARMS.set(Some(Rc::clone(&alarms)));
    spawn_local(async move {
        let _attended = attended;
        while alarms.ring().await.is_ok() {}
    });
    Ok(())
}

/// Keeps sleepers from waiting for a runtime that has ended.
struct Attended;

impl Drop for Attended {
    fn drop(&mut self) {
        ALARMS.take();
    }
}

/// Sleeps for so long. On a thread without alarms the runtime's own timer is slept by.
pub async fn sleep(duration: Duration) {
    sleep_until(Instant::now() + duration).await;
}

/// Sleeps until then.
pub async fn sleep_until(due: Instant) {
    let alarms = ALARMS.with_borrow(Clone::clone);
    match alarms {
        Some(alarms) => {
            let sleeper = Sleeper::new(alarms, due);
            poll_fn(|context| sleeper.poll(context)).await;
        }
        None => tokio::time::sleep_until(due.into()).await,
    }
}

impl Alarms {
    /// Waits for the timer, and wakes those who are due.
    async fn ring(&self) -> io::Result<()> {
        let mut ready = self.timer.readable().await?;
        // The clock says whose time has come.
        let _ = rustix::io::read(self.timer.get_ref(), &mut [0; size_of::<u64>()]);
        ready.clear_ready();
        let now = Instant::now();
        loop {
            let mut sleepers = self.sleepers.borrow_mut();
            let Some(first) = sleepers.first_entry().filter(|first| first.key().0 <= now) else { break };
            let waker = first.remove();
            drop(sleepers);
            waker.wake();
        }
        self.set()
    }

    /// Sets the timer to the first sleeper, if there is one.
    fn set(&self) -> io::Result<()> {
        let first = self.sleepers.borrow().first_key_value().map(|((due, _), _)| *due);
        let Some(due) = first else { return Ok(()) };
        // 0 would be never.
        let left = due.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let it_value = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        timerfd_settime(self.timer.get_ref(), TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}

/// Place of one who sleeps. Dropping it gives it up.
struct Sleeper {
    alarms: Rc<Alarms>,
    key: (Instant, u64),
}

impl Sleeper {
    fn new(alarms: Rc<Alarms>, due: Instant) -> Sleeper {
        let number = alarms.next.get();
        alarms.next.set(number + 1);
        Sleeper { alarms, key: (due, number) }
    }

    fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let (alarms, key) = (&self.alarms, self.key);
        if Instant::now() >= key.0 {
            return Poll::Ready(());
        }
        let earlier = alarms.sleepers.borrow_mut().insert(key, context.waker().clone());
        drop(earlier);
        let is_first = alarms.sleepers.borrow().first_key_value().is_some_and(|(first, _)| *first == key);
        if is_first && alarms.set().is_err() {
            // A timer that cannot be set is no timer; who would sleep looks again.
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let waker = self.alarms.sleepers.borrow_mut().remove(&self.key);
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::{Builder, LocalOptions};

    /// Runs a task on a runtime that has no timers.
    fn without_timers<T: 'static>(task: impl Future<Output = T> + 'static) -> T {
        let runtime =
            Builder::new_current_thread().enable_io().build_local(LocalOptions::default()).expect("a runtime");
        runtime.block_on(async { spawn_local(task).await.expect("no panic") })
    }

    #[test]
    fn sleepers_wake_in_the_order_in_which_they_are_due_and_not_early() {
        // One runtime after the other: no sleeper waits for the timer of one that has ended.
        for _ in 0..2 {
            let woken = without_timers(async {
                start().expect("a timer");
                let woken = Rc::new(RefCell::new(Vec::new()));
                let began = Instant::now();
                let sleepers = [60, 20, 40, 20, 0].map(|millis| {
                    let woken = Rc::clone(&woken);
                    spawn_local(async move {
                        sleep(Duration::from_millis(millis)).await;
                        assert!(began.elapsed() >= Duration::from_millis(millis), "woken early");
                        woken.borrow_mut().push(millis);
                    })
                });
                // A sleeper that gives up leaves nothing behind.
                let given_up = spawn_local(sleep(Duration::from_millis(10)));
                tokio::task::yield_now().await;
                given_up.abort();
                for sleeper in sleepers {
                    sleeper.await.expect("no panic");
                }
                assert!(ALARMS.with_borrow(|alarms| alarms.as_ref().unwrap().sleepers.borrow().is_empty()));
                woken.take()
            });
            assert_eq!(woken, [0, 20, 20, 40, 60]);
            assert!(ALARMS.with_borrow(Option::is_none));
        }
    }
}

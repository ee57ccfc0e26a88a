//! Threads that check passwords, beside those that serve: a check takes some 100 ms on purpose, in which a core would
//! serve thousands of requests.
//!
//! The threads are few, and so are the checks that wait for them: whoever comes when all places are taken is told to
//! come later.
//! A password that another request has just been found right by is not checked again.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::remembered::Remembered;
use crate::users::PasswordCheck;

/// Threads at most, and checks that may wait for each of them.
const THREADS_MAX: usize = 4;
const WAITING_PER_THREAD_MAX: usize = 32;

static POOL: OnceLock<Pool> = OnceLock::new();

struct Pool {
    line: Sender<Job>,
}

struct Job {
    check: PasswordCheck,
    /// Time for which a password that is right need not be checked again.
    remember: Duration,
    reply: Arc<Reply>,
}

/// The answer to a check, once it is there.
pub struct Verdict(Arc<Reply>);

#[derive(Default)]
struct Reply(Mutex<State>);

#[derive(Default)]
struct State {
    is_right: Option<bool>,
    waker: Option<Waker>,
}

/// Knowledge of all threads.
struct Known {
    begun: Instant,
    right: Mutex<Remembered>,
}

/// Starts the threads, where they are not there yet: one for each two of as many `cores`. To be called by a thread
/// that is on no core in particular, as they inherit that.
pub fn start(cores: usize) {
    POOL.get_or_init(|| Pool::new((cores / 2).clamp(1, THREADS_MAX)));
}

/// Has a password checked; `None` if as many wait as may. Whoever lets the verdict go has no interest in it any more.
pub fn check(check: PasswordCheck, remember: Duration) -> Option<Verdict> {
    POOL.get()?.take(check, remember)
}

impl Pool {
    fn new(threads: usize) -> Pool {
        let (line, jobs) = bounded(threads * WAITING_PER_THREAD_MAX);
        let known = Arc::new(Known { begun: Instant::now(), right: Mutex::default() });
        for _ in 0..threads {
            let (jobs, known): (Receiver<Job>, _) = (jobs.clone(), Arc::clone(&known));
            let work = move || jobs.iter().for_each(|job| job.run(&known));
            if let Err(error) = thread::Builder::new().name("passwords".into()).spawn(work) {
                log::error!("no thread for checks of passwords: {error}");
            }
        }
        Pool { line }
    }

    fn take(&self, check: PasswordCheck, remember: Duration) -> Option<Verdict> {
        let reply = Arc::new(Reply::default());
        let job = Job { check, remember, reply: Arc::clone(&reply) };
        self.line.try_send(job).ok().map(|()| Verdict(reply))
    }
}

impl Job {
    fn run(self, known: &Known) {
        // The other half is the verdict, which nobody may wait for any more.
        if Arc::strong_count(&self.reply) < 2 {
            return;
        }
        let now = || known.begun.elapsed().as_millis() as u64;
        let is_remembered = !self.remember.is_zero() && locked(&known.right).knows(self.check.digest(), now());
        let is_right = is_remembered || catch_unwind(AssertUnwindSafe(|| self.check.run())).unwrap_or(false);
        if is_right && !is_remembered && !self.remember.is_zero() {
            let until = now() + self.remember.as_millis() as u64;
            locked(&known.right).note(*self.check.digest(), until);
        }
        self.reply.answer(is_right);
    }
}

/// A check that does not come to its end is no proof.
impl Drop for Job {
    fn drop(&mut self) {
        self.reply.answer(false);
    }
}

impl Reply {
    /// The first answer counts.
    fn answer(&self, is_right: bool) {
        let mut state = locked(&self.0);
        state.is_right.get_or_insert(is_right);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Future for Verdict {
    type Output = bool;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<bool> {
        let mut state = locked(&self.0.0);
        if let Some(is_right) = state.is_right {
            return Poll::Ready(is_right);
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::Wake;

    use zeroize::Zeroizing;

    use super::*;
    use crate::users::Users;

    struct Bell(mpsc::Sender<()>);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            let _ = self.0.send(());
        }
    }

    fn wait(mut verdict: Verdict) -> bool {
        let (bell, rung) = mpsc::channel();
        let waker = Arc::new(Bell(bell)).into();
        loop {
            match Pin::new(&mut verdict).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(is_right) => return is_right,
                Poll::Pending => rung.recv().unwrap(),
            }
        }
    }

    #[test]
    fn a_verdict_comes_from_another_thread_and_places_are_counted() {
        let users = Users::parse(format!("ann:{}", bcrypt::hash("right", 4).unwrap()).as_bytes()).unwrap();
        let check = |password: &str| users.check(b"ann", Zeroizing::new(password.as_bytes().to_vec()));
        let pool = Pool::new(1);
        assert!(wait(pool.take(check("right"), Duration::ZERO).unwrap()));
        assert!(!wait(pool.take(check("wrong"), Duration::from_secs(9)).unwrap()));
        // Nobody takes from this line.
        let (line, jobs) = bounded(2);
        let idle = Pool { line };
        let verdicts: Vec<_> = (0..3).map(|_| idle.take(check("right"), Duration::ZERO)).collect();
        assert_eq!(verdicts.iter().filter(|verdict| verdict.is_some()).count(), 2);
        // The end of the line is no proof.
        drop((idle, jobs));
        assert!(verdicts.into_iter().flatten().all(|verdict| !wait(verdict)));
    }
}

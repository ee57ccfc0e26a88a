//! The queue in which a core's jobs gather during a turn of its event loop, to be done in batches at the turn's end.
//!
//! No job waits for others to come: the queue's driver calls [`JobQueue::run_gathered`] when everything that was ready
//! has had its turn, and jobs of a kind that fill the lanes are done at once. Jobs are done by `crate::batch`, in
//! batches where these are cheaper.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::batch;
use crate::job::{Job, JobError, JobKind, Outcome};

/// Cheap to clone; clones are the same queue. Belongs to one thread.
#[derive(Clone)]
pub struct JobQueue(Rc<RefCell<Inner>>);

/// A submitted job: the future of its outcome. Dropping it cancels the job.
pub struct Pending(State);

enum State {
    Queued(JobQueue, usize),
    /// The outcome is known; absent once it has been taken.
    Answered(Option<Outcome>),
}

/// Counts since the queue was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobQueueCounts {
    pub submitted: u64,
    /// Done, well or not.
    pub done: u64,
    /// Cancelled before they were done.
    pub cancelled: u64,
    /// Jobs that were not taken: [`JobQueue::JOBS_MAX`] were there.
    pub refused: u64,
    /// Runs of the gathered jobs of one kind; `done` divided by these is the mean number of jobs in a run.
    pub runs: u64,
    /// Runs that did not wait for the turn's end, since the lanes were full.
    pub full: u64,
}

#[derive(Default)]
struct Inner {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Slots whose jobs are not being done yet, by kind, in their order of arrival. Some may have been cancelled.
    gathered: [Vec<usize>; JobKind::ALL.len()],
    waiting: usize,
    /// Waker of the task that calls `run_gathered`.
    runner: Option<Waker>,
    counts: JobQueueCounts,
}

enum Slot {
    Free,
    Gathered(Job, Option<Waker>),
    /// Cancelled, but still named in `gathered`.
    Cancelled,
    /// The job is being done.
    Running(Option<Waker>),
    /// The job is being done, and its outcome is not awaited any more.
    Abandoned,
    Done(Outcome),
}

impl JobQueue {
    /// Jobs in a queue at once, with those whose outcome was not taken yet: as many as handshakes may be parked.
    pub const JOBS_MAX: usize = 4096 + 256;

    #[must_use]
    pub fn new() -> JobQueue {
        JobQueue(Rc::default())
    }

    /// Submits a job. When there is no room its outcome is `Unavailable` at once.
    #[must_use]
    pub fn submit(&self, job: Job) -> Pending {
        let mut inner = self.0.borrow_mut();
        if inner.slots.len() - inner.free.len() >= Self::JOBS_MAX {
            inner.counts.refused += 1;
            return Pending::answered(Err(JobError::Unavailable));
        }
        let job_kind = job.kind();
        let kind = job_kind as usize;
        let slot = inner.place(Slot::Gathered(job, None));
        inner.gathered[kind].push(slot);
        inner.waiting += 1;
        inner.counts.submitted += 1;
        let full = inner.gathered[kind].len() >= batch::full_at(job_kind);
        let runner = if full { None } else { inner.runner.take() };
        drop(inner);
        if let Some(runner) = runner {
            runner.wake();
        }
        if full {
            self.run_kind(job_kind);
            self.0.borrow_mut().counts.full += 1;
        }
        Pending(State::Queued(self.clone(), slot))
    }

    /// Jobs that are not being done yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.borrow().waiting
    }

    #[must_use]
    pub fn counts(&self) -> JobQueueCounts {
        self.0.borrow().counts
    }

    /// Polls for work, for the task that calls [`JobQueue::run_gathered`]: ready when jobs have gathered, and woken by
    /// the first job to come.
    pub fn poll_gathered(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.0.borrow_mut();
        if inner.waiting > 0 {
            return Poll::Ready(());
        }
        inner.runner = Some(context.waker().clone());
        Poll::Pending
    }

    /// Does all gathered jobs, and wakes the tasks that wait for them. Returns the number of jobs.
    pub fn run_gathered(&self) -> usize {
        JobKind::ALL.iter().map(|kind| self.run_kind(*kind)).sum()
    }

    /// Does the jobs of one kind. The queue is not borrowed while they are done or anybody is woken: either may come
    /// back to it.
    fn run_kind(&self, kind: JobKind) -> usize {
        let mut inner = self.0.borrow_mut();
        let slots = std::mem::take(&mut inner.gathered[kind as usize]);
        let jobs: Vec<(usize, Job)> = slots.into_iter().filter_map(|slot| Some((slot, inner.take(slot)?))).collect();
        inner.waiting -= jobs.len();
        inner.counts.runs += u64::from(!jobs.is_empty());
        drop(inner);
        let count = jobs.len();
        if count == 0 {
            return 0;
        }
        for part in batch::partition(kind, jobs) {
            // A task that was woken by the parts before may have cancelled other jobs.
            let awaited = |(slot, _): &(usize, Job)| self.0.borrow_mut().is_awaited(*slot);
            let (part, given_up): (Vec<_>, Vec<_>) = part.into_iter().partition(awaited);
            drop(given_up);
            let (slots, jobs): (Vec<usize>, Vec<Job>) = part.into_iter().unzip();
            for (slot, outcome) in slots.into_iter().zip(batch::run(kind, jobs)) {
                let waker = self.0.borrow_mut().finish(slot, outcome);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
        count
    }

    fn poll(&self, slot: usize, context: &Context<'_>) -> Poll<Outcome> {
        let mut inner = self.0.borrow_mut();
        match &mut inner.slots[slot] {
            Slot::Gathered(_, waker) | Slot::Running(waker) => {
                let known = waker.as_ref().is_some_and(|known| known.will_wake(context.waker()));
                // Dropped when the queue is no longer borrowed: a waker may be the last hold on a task.
                let replaced = if known { None } else { waker.replace(context.waker().clone()) };
                drop(inner);
                drop(replaced);
                Poll::Pending
            }
            Slot::Done(outcome) => {
                // The slot is cleared when its holder lets go.
                Poll::Ready(std::mem::replace(outcome, Err(JobError::Cancelled)))
            }
            Slot::Free | Slot::Cancelled | Slot::Abandoned => unreachable!("a slot belongs to one holder at a time"),
        }
    }

    fn cancel(&self, slot: usize) {
        let mut inner = self.0.borrow_mut();
        let next = match &inner.slots[slot] {
            Slot::Gathered(..) => Slot::Cancelled,
            Slot::Running(_) => Slot::Abandoned,
            _ => return inner.clear(slot),
        };
        // The job and the waker are dropped when the queue is no longer borrowed.
        let before = std::mem::replace(&mut inner.slots[slot], next);
        inner.waiting -= usize::from(matches!(before, Slot::Gathered(..)));
        inner.counts.cancelled += 1;
        drop(inner);
        drop(before);
    }
}

impl Default for JobQueue {
    fn default() -> JobQueue {
        JobQueue::new()
    }
}

impl Inner {
    fn place(&mut self, content: Slot) -> usize {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot] = content;
                slot
            }
            None => {
                self.slots.push(content);
                self.slots.len() - 1
            }
        }
    }

    fn clear(&mut self, slot: usize) {
        self.slots[slot] = Slot::Free;
        self.free.push(slot);
    }

    fn take(&mut self, slot: usize) -> Option<Job> {
        match std::mem::replace(&mut self.slots[slot], Slot::Free) {
            Slot::Gathered(job, waker) => {
                self.slots[slot] = Slot::Running(waker);
                Some(job)
            }
            _ => {
                self.free.push(slot);
                None
            }
        }
    }

    /// Whether a running job's outcome is awaited. If it is not any more, its slot becomes free.
    fn is_awaited(&mut self, slot: usize) -> bool {
        let awaited = matches!(self.slots[slot], Slot::Running(_));
        if !awaited {
            self.clear(slot);
        }
        awaited
    }

    fn finish(&mut self, slot: usize, outcome: Outcome) -> Option<Waker> {
        self.counts.done += 1;
        match std::mem::replace(&mut self.slots[slot], Slot::Done(outcome)) {
            Slot::Running(waker) => waker,
            _ => {
                self.clear(slot);
                None
            }
        }
    }
}

impl Pending {
    /// A pending job whose outcome is known already.
    #[must_use]
    pub fn answered(outcome: Outcome) -> Pending {
        Pending(State::Answered(Some(outcome)))
    }
}

impl Future for Pending {
    type Output = Outcome;

    /// # Panics
    /// If it is polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        match &mut self.0 {
            State::Queued(job_queue, slot) => match job_queue.poll(*slot, context) {
                Poll::Ready(outcome) => {
                    self.0 = State::Answered(None);
                    Poll::Ready(outcome)
                }
                Poll::Pending => Poll::Pending,
            },
            State::Answered(outcome) => Poll::Ready(outcome.take().expect("polled again after it was ready")),
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let State::Queued(job_queue, slot) = self {
            job_queue.cancel(*slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::pair::X25519Pair;

    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counter() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count(AtomicUsize::new(0)));
        (Arc::clone(&count), Waker::from(count))
    }

    /// A job and what it comes to.
    fn agreement() -> (Job, Vec<u8>) {
        let (ours, theirs) = (X25519Pair::generate(), X25519Pair::generate());
        let (our_share, their_share) = (*ours.share(), *theirs.share());
        let expected = theirs.agree(our_share).run().expect("an agreement").to_vec();
        (ours.agree(their_share), expected)
    }

    fn poll(pending: &mut Pending, waker: &Waker) -> Poll<Outcome> {
        Pin::new(pending).poll(&mut Context::from_waker(waker))
    }

    fn answer(pending: &mut Pending) -> Outcome {
        match poll(pending, Waker::noop()) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => panic!("no answer yet"),
        }
    }

    #[test]
    fn jobs_wait_for_the_run_and_each_has_its_own_outcome() {
        let job_queue = JobQueue::new();
        let (woken, waker) = counter();
        let (jobs, expected): (Vec<_>, Vec<_>) = (0..5).map(|_| agreement()).unzip();
        let mut pending: Vec<Pending> = jobs.into_iter().map(|job| job_queue.submit(job)).collect();
        assert!(pending.iter_mut().all(|pending| poll(pending, &waker).is_pending()));
        assert_eq!(job_queue.run_gathered(), 5);
        assert_eq!(woken.0.load(Ordering::Relaxed), 5);
        for (pending, expected) in pending.iter_mut().zip(expected).rev() {
            assert_eq!(*answer(pending).expect("an agreement"), expected);
        }
        drop(pending);
        let counts = job_queue.counts();
        assert_eq!(counts, JobQueueCounts { submitted: 5, done: 5, runs: 1, ..JobQueueCounts::default() });
        assert_eq!(job_queue.run_gathered(), 0);
    }

    #[test]
    fn the_first_job_wakes_the_leaver_and_the_next_does_not() {
        let job_queue = JobQueue::new();
        let (woken, waker) = counter();
        let mut context = Context::from_waker(&waker);
        assert!(job_queue.poll_gathered(&mut context).is_pending());
        let _first = job_queue.submit(agreement().0);
        let _second = job_queue.submit(agreement().0);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(job_queue.poll_gathered(&mut context).is_ready());
        job_queue.run_gathered();
        assert!(job_queue.poll_gathered(&mut context).is_pending());
    }

    #[test]
    fn full_lanes_leave_at_once() {
        let job_queue = JobQueue::new();
        let mut pending: Vec<Pending> =
            (0..batch::full_at(JobKind::X25519)).map(|_| job_queue.submit(agreement().0)).collect();
        assert_eq!((job_queue.waiting(), job_queue.counts().full), (0, 1));
        assert!(pending.iter_mut().all(|pending| answer(pending).is_ok()));
    }

    #[test]
    fn a_job_that_nobody_waits_for_any_more_is_not_done() {
        let job_queue = JobQueue::new();
        let kept = job_queue.submit(agreement().0);
        drop(job_queue.submit(agreement().0));
        assert_eq!(job_queue.waiting(), 1);
        assert_eq!(job_queue.run_gathered(), 1);
        drop(kept);
        assert_eq!(job_queue.counts().cancelled, 1);
        // The dropped job's slot is free again, and so is that of the one whose answer was not looked at.
        let inner = job_queue.0.borrow();
        assert_eq!(inner.free.len(), inner.slots.len());
    }

    #[test]
    fn a_full_desk_says_so_at_once() {
        let job_queue = JobQueue::new();
        let answered: Vec<Pending> = (0..JobQueue::JOBS_MAX).map(|_| job_queue.submit(bad_agreement())).collect();
        assert_eq!(answer(&mut job_queue.submit(bad_agreement())).err(), Some(JobError::Unavailable));
        assert_eq!(job_queue.counts().refused, 1);
        drop(answered);
        job_queue.run_gathered();
        let mut again = job_queue.submit(bad_agreement());
        job_queue.run_gathered();
        assert_eq!(answer(&mut again).err(), Some(JobError::BadShare));
    }

    /// Costs nothing to make.
    fn bad_agreement() -> Job {
        Job::X25519 { secret: zeroize::Zeroizing::new([7; 32]), peer: [0; 32] }
    }

    /// Comes back to the queue as it is woken.
    struct Busybody(std::sync::Mutex<Option<usize>>);

    thread_local! {
        static DESK: JobQueue = JobQueue::new();
    }

    impl Wake for Busybody {
        fn wake(self: Arc<Self>) {
            let waiting = DESK.with(|job_queue| {
                drop(job_queue.submit(bad_agreement()));
                job_queue.waiting()
            });
            *self.0.lock().expect("nobody panics with it") = Some(waiting);
        }
    }

    #[test]
    fn a_task_that_is_woken_may_submit_another_job() {
        let busybody = Arc::new(Busybody(std::sync::Mutex::new(None)));
        let waker = Waker::from(Arc::clone(&busybody));
        DESK.with(|job_queue| {
            let mut pending = job_queue.submit(bad_agreement());
            assert!(poll(&mut pending, &waker).is_pending());
            job_queue.run_gathered();
            assert!(busybody.0.lock().expect("nobody panics with it").is_some());
        });
    }

    #[test]
    fn any_order_of_submitting_leaving_and_going_away_answers_everybody_who_stays() {
        let seed = 3;
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let job_queue = JobQueue::new();
        let mut pending: Vec<(Pending, Vec<u8>)> = Vec::new();
        for _ in 0..5000 {
            match random.u8(..10) {
                0..4 => {
                    let (job, expected) = agreement();
                    pending.push((job_queue.submit(job), expected));
                }
                4..6 if !pending.is_empty() => drop(pending.swap_remove(random.usize(..pending.len()))),
                6..9 if !pending.is_empty() => {
                    let index = random.usize(..pending.len());
                    if let Poll::Ready(outcome) = poll(&mut pending[index].0, Waker::noop()) {
                        assert_eq!(*outcome.expect("an agreement"), pending.swap_remove(index).1);
                    }
                }
                _ => drop(job_queue.run_gathered()),
            }
        }
        job_queue.run_gathered();
        for (mut pending, expected) in pending.drain(..) {
            assert_eq!(*answer(&mut pending).expect("an agreement"), expected);
        }
        let (counts, inner) = (job_queue.counts(), job_queue.0.borrow());
        assert_eq!(inner.free.len(), inner.slots.len());
        assert_eq!(inner.waiting, 0);
        assert!(counts.cancelled > 100 && counts.done + counts.cancelled >= counts.submitted, "{counts:?}");
    }
}

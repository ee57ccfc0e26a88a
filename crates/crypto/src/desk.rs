//! One core's place where jobs gather during a turn of its event loop, to leave together at the turn's end.
//!
//! Nothing waits for company: who drives the desk calls [`Desk::leave`] when everything that was ready has had its turn,
//! and a kind of work that fills its lanes leaves at once. For now what leaves is done one after the other, by
//! [`Job::run`]; whoever does better does it in [`Desk::leave`], and nobody outside will notice.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::job::{Job, JobError, JobKind, Outcome};

/// Cheap to clone; clones are the same desk. Belongs to one thread.
#[derive(Clone)]
pub struct Desk(Rc<RefCell<Inner>>);

/// A job that was handed in. It is a future of what comes of it; dropped, it takes its job back.
pub struct Pending(Hold);

enum Hold {
    At(Desk, usize),
    /// Answered without waiting.
    Answered(Option<Outcome>),
}

/// Since the desk was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeskCounts {
    pub submitted: u64,
    /// Done, well or not.
    pub done: u64,
    /// Taken back before they were done.
    pub cancelled: u64,
    /// Not taken: [`Desk::JOBS_MAX`] were there.
    pub refused: u64,
    /// Departures; `done` over these is how much company a job had.
    pub departures: u64,
    /// Those among them that did not wait for the turn's end.
    pub full: u64,
}

#[derive(Default)]
struct Inner {
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// By kind: slots whose jobs have not left, in the order in which they came. Some may have been taken back.
    gathered: [Vec<usize>; JobKind::ALL.len()],
    waiting: usize,
    /// Who is to call `leave`.
    leaver: Option<Waker>,
    counts: DeskCounts,
}

enum Slot {
    Free,
    Gathered(Job, Option<Waker>),
    /// Taken back, but still named in `gathered`.
    TakenBack,
    /// Somebody is at it.
    Leaving(Option<Waker>),
    /// As above, and nobody waits any more.
    Abandoned,
    Done(Outcome),
}

impl Desk {
    /// Jobs at a desk at once, those that are done and not looked at among them: as many as handshakes may be parked.
    pub const JOBS_MAX: usize = 4096 + 256;
    /// Jobs of a kind that fill the lanes.
    const LANES: usize = 8;

    #[must_use]
    pub fn new() -> Desk {
        Desk(Rc::default())
    }

    /// Hands a job in. When there is no room the answer, `Unavailable`, is there at once.
    #[must_use]
    pub fn submit(&self, job: Job) -> Pending {
        let mut inner = self.0.borrow_mut();
        if inner.slots.len() - inner.free.len() >= Self::JOBS_MAX {
            inner.counts.refused += 1;
            return Pending::answered(Err(JobError::Unavailable));
        }
        let kind = job.kind() as usize;
        let slot = inner.place(Slot::Gathered(job, None));
        inner.gathered[kind].push(slot);
        inner.waiting += 1;
        inner.counts.submitted += 1;
        let full = inner.gathered[kind].len() >= Self::LANES;
        let leaver = if full { None } else { inner.leaver.take() };
        drop(inner);
        if let Some(leaver) = leaver {
            leaver.wake();
        }
        if full {
            self.depart(kind);
            self.0.borrow_mut().counts.full += 1;
        }
        Pending(Hold::At(self.clone(), slot))
    }

    /// Jobs that have not left.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.borrow().waiting
    }

    #[must_use]
    pub fn counts(&self) -> DeskCounts {
        self.0.borrow().counts
    }

    /// For whoever calls [`Desk::leave`]: ready when there is something to leave, and woken by the first to come.
    pub fn poll_gathered(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.0.borrow_mut();
        if inner.waiting > 0 {
            return Poll::Ready(());
        }
        inner.leaver = Some(context.waker().clone());
        Poll::Pending
    }

    /// Does all that has gathered, and wakes those who wait for it. Returns how many jobs there were.
    pub fn leave(&self) -> usize {
        (0..JobKind::ALL.len()).map(|kind| self.depart(kind)).sum()
    }

    /// The jobs of one kind. The desk is not borrowed while they are done or anybody is woken: either may come back to it.
    fn depart(&self, kind: usize) -> usize {
        let mut inner = self.0.borrow_mut();
        let slots = std::mem::take(&mut inner.gathered[kind]);
        let jobs: Vec<(usize, Job)> = slots.into_iter().filter_map(|slot| Some((slot, inner.take(slot)?))).collect();
        inner.waiting -= jobs.len();
        inner.counts.departures += u64::from(!jobs.is_empty());
        drop(inner);
        let count = jobs.len();
        for (slot, job) in jobs {
            let outcome = job.run();
            let waker = self.0.borrow_mut().finish(slot, outcome);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        count
    }

    fn poll(&self, slot: usize, context: &Context<'_>) -> Poll<Outcome> {
        let mut inner = self.0.borrow_mut();
        match &mut inner.slots[slot] {
            Slot::Gathered(_, waker) | Slot::Leaving(waker) => {
                let known = waker.as_ref().is_some_and(|known| known.will_wake(context.waker()));
                // Dropped when the desk is no longer borrowed: a waker may be the last hold on a task.
                let replaced = if known { None } else { waker.replace(context.waker().clone()) };
                drop(inner);
                drop(replaced);
                Poll::Pending
            }
            Slot::Done(outcome) => {
                // The slot is cleared when its holder lets go.
                Poll::Ready(std::mem::replace(outcome, Err(JobError::Cancelled)))
            }
            Slot::Free | Slot::TakenBack | Slot::Abandoned => unreachable!("a slot belongs to one holder at a time"),
        }
    }

    fn take_back(&self, slot: usize) {
        let mut inner = self.0.borrow_mut();
        let next = match &inner.slots[slot] {
            Slot::Gathered(..) => Slot::TakenBack,
            Slot::Leaving(_) => Slot::Abandoned,
            _ => return inner.clear(slot),
        };
        // The job and the waker are dropped when the desk is no longer borrowed.
        let before = std::mem::replace(&mut inner.slots[slot], next);
        inner.waiting -= usize::from(matches!(before, Slot::Gathered(..)));
        inner.counts.cancelled += 1;
        drop(inner);
        drop(before);
    }
}

impl Default for Desk {
    fn default() -> Desk {
        Desk::new()
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
                self.slots[slot] = Slot::Leaving(waker);
                Some(job)
            }
            _ => {
                self.free.push(slot);
                None
            }
        }
    }

    fn finish(&mut self, slot: usize, outcome: Outcome) -> Option<Waker> {
        self.counts.done += 1;
        match std::mem::replace(&mut self.slots[slot], Slot::Done(outcome)) {
            Slot::Leaving(waker) => waker,
            _ => {
                self.clear(slot);
                None
            }
        }
    }
}

impl Pending {
    /// For those who know the answer already.
    #[must_use]
    pub fn answered(outcome: Outcome) -> Pending {
        Pending(Hold::Answered(Some(outcome)))
    }
}

impl Future for Pending {
    type Output = Outcome;

    /// # Panics
    /// When it has answered before.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        match &mut self.0 {
            Hold::At(desk, slot) => match desk.poll(*slot, context) {
                Poll::Ready(outcome) => {
                    self.0 = Hold::Answered(None);
                    Poll::Ready(outcome)
                }
                Poll::Pending => Poll::Pending,
            },
            Hold::Answered(outcome) => Poll::Ready(outcome.take().expect("asked again after it had answered")),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Hold::At(desk, slot) = self {
            desk.take_back(*slot);
        }
    }
}

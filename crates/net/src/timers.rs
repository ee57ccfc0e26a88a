//! Deadlines of connections: one wheel per core, so that moving a deadline is a store and not a timer.
//!
//! Every wait of a connection has a limit, and nearly all limits are moved before they are met. An entry therefore
//! stays in the bucket where it was first put; when that bucket comes up and the deadline has moved on, the entry is put
//! where it belongs now. Only a deadline that moved *closer* is put in a second bucket (Varghese & Lauck 1987, scheme 6,
//! with lazy deletion).

use std::cell::RefCell;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// How late a deadline may be noticed.
pub const TICK: Duration = Duration::from_millis(100);
/// The wheel's horizon is this many ticks (102 s); what lies beyond goes round again.
const BUCKETS: usize = 1024;
const NEVER: u64 = u64::MAX;
/// Mark of no tick: ticks are kept in 32 bits, which last for 13 years.
const NO_TICK: u32 = u32::MAX;
/// In place of the tick since which a connection rests: it works, and it is asked to end its rest.
const WORKING: u32 = 0;
const CALLED: u32 = u32::MAX;
/// Bit of an entry's rest: its owner has begun something, and may be called for its memory alone.
const BEGUN: u32 = 1 << 31;

/// The wheel of one core and its clock.
pub struct Timers {
    started: Instant,
    /// The same on the kernel's coarse clock, in milliseconds.
    started_millis: u64,
    wheel: RefCell<Wheel>,
}

struct Wheel {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Entries whose owners rest, and have begun something or not.
    resting: usize,
    begun: usize,
    buckets: Vec<Vec<u32>>,
    /// The last tick whose bucket was emptied.
    tick: u64,
    /// Entries whose owners are to look again and have no waker, and the waker of who looks after them.
    unattended: Vec<u32>,
    attendant: Option<Waker>,
}

struct Entry {
    /// Milliseconds on the core's clock, or `NEVER`.
    due: u64,
    /// The tick of the bucket that will look at this entry next, or `NO_TICK` when none will.
    queued: u32,
    /// The tick since which its owner rests, counted from 1, and whether it has `BEGUN`; or `WORKING`, or `CALLED`.
    resting: u32,
    waker: Option<Waker>,
}

impl Default for Timers {
    fn default() -> Timers {
        Timers::new()
    }
}

impl Timers {
    pub fn new() -> Timers {
        let wheel = Wheel {
            entries: Vec::new(),
            free: Vec::new(),
            resting: 0,
            begun: 0,
            buckets: vec![Vec::new(); BUCKETS],
            tick: 0,
            unattended: Vec::new(),
            attendant: None,
        };
        Timers { started: Instant::now(), started_millis: coarse_millis(), wheel: RefCell::new(wheel) }
    }

    /// Milliseconds since this core started, as they were at the kernel's last tick: up to 10 ms ago. A request asks a dozen
    /// times, mostly for limits that are met to the next `TICK`, and the exact clock costs five times as much.
    pub fn now(&self) -> u64 {
        coarse_millis() - self.started_millis
    }

    pub fn at(&self, instant: Instant) -> u64 {
        instant.saturating_duration_since(self.started).as_millis() as u64
    }

    /// A time of this core's on the clock that all cores share.
    pub fn to_shared(&self, millis: u64) -> u64 {
        millis + self.started_millis
    }

    /// A time of the clock that all cores share, as this core counts.
    pub fn of_shared(&self, millis: u64) -> u64 {
        millis.saturating_sub(self.started_millis)
    }

    /// A deadline that is not set yet.
    pub fn deadline(self: &Rc<Self>) -> Deadline {
        let mut wheel = self.wheel.borrow_mut();
        let entry = Entry { due: NEVER, queued: NO_TICK, resting: WORKING, waker: None };
        let id = match wheel.free.pop() {
            Some(id) => {
                // A bucket may still name this id from its last life; `queued` is kept so that it is seen only there.
                let queued = wheel.entries[id as usize].queued;
                wheel.entries[id as usize] = Entry { queued, ..entry };
                id
            }
            None => {
                wheel.entries.push(entry);
                wheel.entries.len() as u32 - 1
            }
        };
        Deadline { id, timers: Rc::clone(self) }
    }

    /// Wakes everybody whose deadline has passed. To be called once a tick.
    pub fn advance(&self) {
        self.advance_to(self.now());
    }

    /// Wakes everybody, whatever their deadline: something that concerns all has changed.
    pub fn wake_all(&self) {
        let mut wheel = self.wheel.borrow_mut();
        let ids = 0..wheel.entries.len() as u32;
        let wakers: Vec<Waker> = ids.filter_map(|id| wheel.call(id)).collect();
        drop(wheel);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes the owner of a deadline, if there is one with this id.
    pub fn wake(&self, id: u32) {
        let mut wheel = self.wheel.borrow_mut();
        let waker = if (id as usize) < wheel.entries.len() { wheel.call(id) } else { None };
        drop(wheel);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Waits for owners who are to look again and have left no waker. Some of the ids may be of others by now.
    pub fn poll_unattended(&self, context: &mut Context<'_>) -> Poll<Vec<u32>> {
        let mut wheel = self.wheel.borrow_mut();
        if wheel.unattended.is_empty() {
            wheel.attendant = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(std::mem::take(&mut wheel.unattended))
    }

    /// Ids of such owners that there are now.
    pub fn take_unattended(&self) -> Vec<u32> {
        std::mem::take(&mut self.wheel.borrow_mut().unattended)
    }

    /// Owners that rest and have begun nothing.
    pub fn resting(&self) -> usize {
        self.wheel.borrow().resting
    }

    /// Owners that rest.
    pub fn resting_or_begun(&self) -> usize {
        let wheel = self.wheel.borrow();
        wheel.resting + wheel.begun
    }

    /// Calls those who have rested for the longest, `count` of them or as many as there are; returns how many. Those who have
    /// begun something only if `begun`. Looks at every entry: not for every turn.
    pub fn call_oldest(&self, count: usize, begun: bool) -> usize {
        let mut wheel = self.wheel.borrow_mut();
        let oldest = wheel.oldest_resting(count, begun);
        let mut wakers = Vec::with_capacity(oldest.len());
        for (_, id) in &oldest {
            wheel.end_rest(*id);
            let entry = &mut wheel.entries[*id as usize];
            entry.resting = CALLED;
            wakers.extend(wheel.call(*id));
        }
        drop(wheel);
        wakers.into_iter().for_each(Waker::wake);
        oldest.len()
    }

    /// Gives back memory that a crowd has left behind.
    pub fn shrink(&self) {
        self.wheel.borrow_mut().shrink();
    }

    fn advance_to(&self, now: u64) {
        let mut wheel = self.wheel.borrow_mut();
        let last = now / TICK.as_millis() as u64;
        // After a long pause every bucket is looked at once; more often would change nothing.
        wheel.tick = wheel.tick.max(last.saturating_sub(BUCKETS as u64));
        while wheel.tick < last {
            wheel.tick += 1;
            wheel.empty_bucket(now);
        }
    }
}

/// Milliseconds on a clock that all cores share, as they were at the kernel's last tick. Never goes back.
pub fn coarse_millis() -> u64 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

impl Wheel {
    fn empty_bucket(&mut self, now: u64) {
        let tick = self.tick;
        let mut ids = std::mem::take(&mut self.buckets[tick as usize % BUCKETS]);
        for id in ids.drain(..) {
            let entry = &mut self.entries[id as usize];
            if u64::from(entry.queued) > tick {
                continue;
            }
            entry.queued = NO_TICK;
            if entry.due <= now {
                if let Some(waker) = self.call(id) {
                    waker.wake();
                }
            } else if entry.due != NEVER {
                self.queue(id);
            }
        }
        let bucket = &mut self.buckets[tick as usize % BUCKETS];
        if bucket.is_empty() && ids.capacity() <= 4096 {
            *bucket = ids;
        }
    }

    /// Waker of an entry's owner, who is to look again: the attendant's, if it has none but a deadline.
    fn call(&mut self, id: u32) -> Option<Waker> {
        let entry = &mut self.entries[id as usize];
        if entry.waker.is_none() && entry.due != NEVER {
            self.unattended.push(id);
            return self.attendant.take();
        }
        entry.waker.take()
    }

    /// Value of an entry whose owner rests from now on: six years fit.
    fn since(&self) -> u32 {
        (self.tick as u32).saturating_add(1).min(BEGUN - 2)
    }

    fn end_rest(&mut self, id: u32) {
        match std::mem::replace(&mut self.entries[id as usize].resting, WORKING) {
            WORKING | CALLED => {}
            since if since & BEGUN == 0 => self.resting -= 1,
            _ => self.begun -= 1,
        }
    }

    /// Ticks and ids. Holds no more of them than are wanted, since it is asked when memory is short.
    fn oldest_resting(&self, count: usize, begun: bool) -> BinaryHeap<(u32, u32)> {
        let count = count.min(self.resting + if begun { self.begun } else { 0 });
        let mut oldest = BinaryHeap::with_capacity(count);
        if count == 0 {
            return oldest;
        }
        let resting = |(id, entry): (usize, &Entry)| match entry.resting {
            WORKING | CALLED => None,
            since if since & BEGUN != 0 && !begun => None,
            since => Some((since & !BEGUN, id as u32)),
        };
        for candidate in self.entries.iter().enumerate().filter_map(resting) {
            if oldest.len() < count {
                oldest.push(candidate);
            } else if let Some(mut youngest) = oldest.peek_mut()
                && candidate < *youngest
            {
                *youngest = candidate;
            }
        }
        oldest
    }

    fn shrink(&mut self) {
        let mut is_free = vec![false; self.entries.len()];
        for id in &self.free {
            is_free[*id as usize] = true;
            // No bucket will name it any more.
            self.entries[*id as usize].queued = NO_TICK;
        }
        for bucket in &mut self.buckets {
            bucket.retain(|id| !is_free[*id as usize]);
            bucket.shrink_to_fit();
        }
        let used = is_free.iter().rposition(|free| !free).map_or(0, |last| last + 1);
        self.entries.truncate(used);
        self.entries.shrink_to_fit();
        self.free.retain(|id| (*id as usize) < used);
        self.free.shrink_to_fit();
        self.unattended.shrink_to_fit();
        // The lowest are taken first, so that the end gets free.
        self.free.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// Puts an entry in the bucket of its deadline, or in the last one of this round.
    fn queue(&mut self, id: u32) {
        let entry = &mut self.entries[id as usize];
        let wanted = (entry.due / TICK.as_millis() as u64 + 1).clamp(self.tick + 1, self.tick + BUCKETS as u64 - 1);
        if u64::from(entry.queued) > wanted {
            entry.queued = wanted as u32;
            self.buckets[wanted as usize % BUCKETS].push(id);
        }
    }
}

/// One connection's deadline; it can be moved at will and costs nothing while it is not met.
pub struct Deadline {
    id: u32,
    timers: Rc<Timers>,
}

impl Deadline {
    /// Sets the deadline to `due` milliseconds on the core's clock and remembers whom to wake.
    pub fn set(&self, due: u64, waker: &Waker) {
        let mut wheel = self.timers.wheel.borrow_mut();
        let entry = &mut wheel.entries[self.id as usize];
        entry.due = due;
        let known = entry.waker.as_ref().is_some_and(|known| known.will_wake(waker));
        // Dropped at the end, when the wheel is no longer borrowed: a waker may be the last hold on a task.
        let _replaced = if known { None } else { entry.waker.replace(waker.clone()) };
        if due != NEVER && u64::from(entry.queued) > due / TICK.as_millis() as u64 + 1 {
            wheel.queue(self.id);
        }
        drop(wheel);
    }

    /// Sets the deadline and leaves no waker: the core's attendant is called in place of the owner.
    pub fn leave(&self, due: u64) {
        let mut wheel = self.timers.wheel.borrow_mut();
        let entry = &mut wheel.entries[self.id as usize];
        entry.due = due;
        let _left = entry.waker.take();
        if u64::from(entry.queued) > due / TICK.as_millis() as u64 + 1 {
            wheel.queue(self.id);
        }
        drop(wheel);
    }

    /// The deadline that was set last, in milliseconds on the core's clock.
    pub fn due(&self) -> u64 {
        self.timers.wheel.borrow().entries[self.id as usize].due
    }

    /// Number of the deadline, which no other has while this one lives.
    pub fn id(&self) -> u32 {
        self.id
    }
}

impl Deadline {
    /// Marks the owner as resting from now on: if need be it can be called, the oldest first.
    pub fn rest(&self) {
        let mut wheel = self.timers.wheel.borrow_mut();
        wheel.end_rest(self.id);
        wheel.entries[self.id as usize].resting = wheel.since();
        wheel.resting += 1;
    }

    /// The same in the middle of something, such as a head that is not whole: it is called where memory is short, and for nothing
    /// else.
    pub fn rest_begun(&self) {
        let mut wheel = self.timers.wheel.borrow_mut();
        wheel.end_rest(self.id);
        wheel.entries[self.id as usize].resting = wheel.since() | BEGUN;
        wheel.begun += 1;
    }

    /// Marks the owner as working.
    pub fn work(&self) {
        self.timers.wheel.borrow_mut().end_rest(self.id);
    }

    /// Whether the owner is asked to end, since what it holds is needed.
    pub fn is_called(&self) -> bool {
        self.timers.wheel.borrow().entries[self.id as usize].resting == CALLED
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        let mut wheel = self.timers.wheel.borrow_mut();
        wheel.end_rest(self.id);
        let entry = &mut wheel.entries[self.id as usize];
        entry.due = NEVER;
        let _waker = entry.waker.take();
        wheel.free.push(self.id);
        drop(wheel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

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

    #[test]
    fn every_deadline_is_noticed_within_two_ticks_and_never_early() {
        let mut random = fastrand::Rng::with_seed(11);
        let timers = Rc::new(Timers::new());
        let mut live: Vec<(Deadline, Arc<Count>, u64)> = Vec::new();
        let mut now = 0u64;
        for _ in 0..20_000 {
            now += random.u64(..150);
            timers.advance_to(now);
            live.retain(|(_, count, due)| {
                let woken = count.0.load(Ordering::Relaxed) > 0;
                assert!(!woken || *due <= now, "woken early: due {due}, now {now}");
                assert!(woken || *due + 200 >= now, "missed: due {due}, now {now}");
                !woken
            });
            if live.len() < 64 {
                let (count, waker) = counter();
                let due = now + random.u64(1..300_000);
                let deadline = timers.deadline();
                deadline.set(due, &waker);
                live.push((deadline, count, due));
            }
            if random.bool() && !live.is_empty() {
                let index = random.usize(..live.len());
                if random.u8(..) < 64 {
                    live.swap_remove(index);
                } else {
                    let due = now + random.u64(1..300_000);
                    let waker = Waker::from(Arc::clone(&live[index].1));
                    live[index].0.set(due, &waker);
                    live[index].2 = due;
                }
            }
        }
    }

    #[test]
    fn those_who_rest_the_longest_are_called_and_who_works_never_is() {
        for seed in 0..50 {
            let mut random = fastrand::Rng::with_seed(seed);
            let timers = Rc::new(Timers::new());
            // In the order in which they began to rest.
            let mut resting: Vec<(Deadline, Arc<Count>)> = Vec::new();
            let mut working: Vec<Deadline> = Vec::new();
            for second in 1..200 {
                timers.advance_to(second * 1000);
                let deadline = if random.bool() { working.pop() } else { None };
                let deadline = deadline.unwrap_or_else(|| timers.deadline());
                let (count, waker) = counter();
                deadline.set(u64::from(u32::MAX), &waker);
                deadline.rest();
                resting.push((deadline, count));
                if random.u8(..) < 64 {
                    let (deadline, _) = resting.remove(random.usize(..resting.len()));
                    deadline.work();
                    working.push(deadline);
                }
                if random.u8(..) < 32 {
                    let wanted = random.usize(..20);
                    let called = timers.call_oldest(wanted, false);
                    assert_eq!(called, wanted.min(resting.len()), "seed {seed}");
                    for (deadline, count) in resting.drain(..called) {
                        assert!(deadline.is_called() && count.0.load(Ordering::Relaxed) == 1, "seed {seed}");
                        deadline.work();
                        assert!(!deadline.is_called());
                    }
                }
                assert_eq!(timers.resting(), resting.len(), "seed {seed}");
                assert!(resting.iter().all(|(deadline, _)| !deadline.is_called()));
            }
        }
    }

    #[test]
    fn who_has_begun_something_is_called_for_memory_alone() {
        let timers = Rc::new(Timers::new());
        let (begun, idle) = (timers.deadline(), timers.deadline());
        begun.rest_begun();
        timers.advance_to(10_000);
        idle.rest();
        assert_eq!((timers.resting(), timers.resting_or_begun()), (1, 2));
        assert_eq!(timers.call_oldest(2, false), 1);
        assert!(idle.is_called() && !begun.is_called());
        idle.rest();
        assert_eq!(timers.call_oldest(1, true), 1);
        assert!(begun.is_called() && !idle.is_called(), "the oldest first");
        begun.work();
        assert_eq!(timers.resting_or_begun(), 1);
    }

    #[test]
    fn a_crowd_that_has_gone_leaves_no_memory_behind_and_deadlines_still_hold() {
        let timers = Rc::new(Timers::new());
        let (_, waker) = counter();
        let crowd: Vec<Deadline> = (0..10_000).map(|_| timers.deadline()).collect();
        crowd.iter().for_each(|deadline| deadline.set(5_000, &waker));
        let mut crowd = crowd.into_iter();
        let stays = crowd.next().unwrap();
        drop(crowd);
        timers.shrink();
        assert_eq!(timers.wheel.borrow().entries.len(), 1);
        assert!(timers.wheel.borrow().entries.capacity() < 100);
        let named: Vec<u32> = timers.wheel.borrow().buckets.iter().flatten().copied().collect();
        assert_eq!(named, [stays.id], "those who are gone are in no bucket");
        assert!(timers.wheel.borrow().buckets.iter().all(|bucket| bucket.capacity() < 16));
        let (count, waker) = counter();
        stays.set(5_000, &waker);
        let (other, other_waker) = counter();
        let next = timers.deadline();
        next.set(9_000, &other_waker);
        timers.advance_to(5_200);
        assert_eq!((count.0.load(Ordering::Relaxed), other.0.load(Ordering::Relaxed)), (1, 0));
        timers.advance_to(9_200);
        assert_eq!(other.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn whoever_left_no_waker_is_called_by_the_attendant_and_by_whatever_calls_others() {
        let timers = Rc::new(Timers::new());
        let (calls, attendant) = counter();
        let unattended = |timers: &Timers| match timers.poll_unattended(&mut Context::from_waker(&attendant)) {
            Poll::Ready(mut ids) => {
                ids.sort_unstable();
                ids
            }
            Poll::Pending => Vec::new(),
        };
        assert!(unattended(&timers).is_empty());
        let left: Vec<Deadline> = (0..3).map(|_| timers.deadline()).collect();
        let (working, waker) = counter();
        let other = timers.deadline();
        other.set(1_000_000, &waker);
        let unset = timers.deadline();
        for (deadline, due) in left.iter().zip([5_000, 9_000, 9_000_000]) {
            deadline.set(due / 2, &waker);
            deadline.rest();
            deadline.leave(due);
            assert_eq!(deadline.due(), due);
        }
        timers.advance_to(5_200);
        assert_eq!((unattended(&timers), calls.0.load(Ordering::Relaxed)), (vec![left[0].id()], 1));
        assert!(unattended(&timers).is_empty());
        timers.wake(left[2].id());
        timers.wake(1_000);
        assert_eq!((unattended(&timers), calls.0.load(Ordering::Relaxed)), (vec![left[2].id()], 2));
        assert_eq!(timers.call_oldest(1, false), 1);
        let called = unattended(&timers);
        assert!(called.len() == 1 && left.iter().any(|one| one.id() == called[0] && one.is_called()));
        assert_eq!(working.0.load(Ordering::Relaxed), 0);
        timers.wake_all();
        assert_eq!(unattended(&timers), left.iter().map(Deadline::id).collect::<Vec<u32>>());
        assert_eq!(working.0.load(Ordering::Relaxed), 1);
        drop(unset);
    }

    #[test]
    fn an_entry_is_small() {
        assert_eq!(size_of::<Entry>(), 32);
    }

    #[test]
    fn moving_a_deadline_away_again_and_again_queues_it_once() {
        let timers = Rc::new(Timers::new());
        let (_, waker) = counter();
        let deadline = timers.deadline();
        for due in (1_000..1_000_000).step_by(1_000) {
            deadline.set(due, &waker);
        }
        let queued: usize = timers.wheel.borrow().buckets.iter().map(Vec::len).sum();
        assert_eq!(queued, 1);
    }
}

//! A queue of tasks between the threads of the links and those that do the work: a fair queue behind a lock that is
//! held for less than a microsecond.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::fair::{FairQueue, Pushed};
use crate::task::Task;

/// Tasks that are examined for those that can share a batch with the next one.
const EXAMINED_MAX: usize = 32;

/// Clones are the same queue.
#[derive(Clone)]
pub struct TaskQueue(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    more: Condvar,
}

struct State {
    queue: FairQueue<Task>,
    /// Threads that wait for a task. Without any, a push wakes none.
    idle: usize,
    /// A thread was woken and has not looked yet. Until then no other is woken: it takes what it can in one pass, and
    /// wakes another for the rest.
    is_waking: bool,
    #[cfg(test)]
    wakes: usize,
    has_ended: bool,
}

impl TaskQueue {
    pub fn new(tasks_max: usize) -> TaskQueue {
        let state = State {
            queue: FairQueue::new(tasks_max),
            idle: 0,
            is_waking: false,
            #[cfg(test)]
            wakes: 0,
            has_ended: false,
        };
        TaskQueue(Arc::new(Shared { state: Mutex::new(state), more: Condvar::new() }))
    }

    /// Queues tasks that have come together, each with its cost: the time that it takes of a thread, in the unit of all
    /// tasks of the queue. One thread at most is woken for all of them. Returns what has found no place, or lost it.
    pub fn push(&self, tasks: impl IntoIterator<Item = (u64, Task)>) -> Vec<Pushed<Task>> {
        let mut state = self.state();
        let pushed = tasks.into_iter().map(|(cost, task)| state.queue.push(task.client, cost, task));
        let overflow = pushed.filter(|pushed| !matches!(pushed, Pushed::Taken)).collect();
        self.wake_one(state);
        overflow
    }

    /// Wakes a thread if there is something for it to do, one that waits, and none on its way.
    fn wake_one(&self, mut state: MutexGuard<'_, State>) {
        let wakes = state.idle > 0 && !state.is_waking && !state.queue.is_empty();
        state.is_waking |= wakes;
        #[cfg(test)]
        {
            state.wakes += usize::from(wakes);
        }
        // The thread would run into the lock.
        drop(state);
        if wakes {
            self.0.more.notify_one();
        }
    }

    /// Waits for a task, and takes with it others that are queued now and can share its batch, at most `wanted` in all:
    /// no task waits for others to come. Absent when the queue has ended.
    pub fn take(&self, wanted: impl Fn(&Task) -> usize, together: impl Fn(&Task, &Task) -> bool) -> Option<Vec<Task>> {
        let mut state = self.state();
        let first = loop {
            if let Some(task) = state.queue.pop() {
                break task;
            }
            if state.has_ended {
                return None;
            }
            state.idle += 1;
            state = self.0.more.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            // A thread that wakes by itself says so for the one that was meant: another may come then, in vain.
            state.is_waking = false;
        };
        let wanted = wanted(&first);
        let mut batch = vec![first];
        while batch.len() < wanted
            && let Some(task) = state.queue.pop_matching(EXAMINED_MAX, |task| together(&batch[0], task))
        {
            batch.push(task);
        }
        self.wake_one(state);
        Some(batch)
    }

    /// Ends the queue; tasks that are in it are still done.
    pub fn end(&self) {
        self.state().has_ended = true;
        self.0.more.notify_all();
    }

    /// The state, even if a thread panicked: nothing in here panics while holding the lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    use propylon_crypto::{Hash, PrivateKey, Scheme};

    use super::*;
    use crate::access::ClientId;
    use crate::task::{ConnectionEvent, Replies, Reply};

    /// Long enough for a busy machine; a test that gets what it waits for never takes it.
    const WAIT_MAX: Duration = Duration::from_secs(60);
    const TASKS_MAX: usize = 1024;
    const PASS_MAX: usize = 4;

    /// Connection that asks for operations, and is sent their results.
    struct Asker {
        client: ClientId,
        key: PrivateKey,
        reply_to: tokio::sync::mpsc::Sender<ConnectionEvent>,
        events: tokio::sync::mpsc::Receiver<ConnectionEvent>,
    }

    impl Asker {
        fn new(client: u64) -> Asker {
            let pair = rcgen::KeyPair::generate().expect("a key");
            let key = PrivateKey::from_der(pair.serialized_der()).expect("a key that can be read");
            let (reply_to, events) = tokio::sync::mpsc::channel(TASKS_MAX);
            Asker { client: ClientId(client), key, reply_to, events }
        }

        fn tasks(&self, ids: impl IntoIterator<Item = u32>) -> Vec<(u64, Task)> {
            let (since, deadline) = (Instant::now(), Instant::now() + WAIT_MAX);
            let task = |id| {
                let job = self.key.job(Scheme::Ecdsa(Hash::Sha256), &[7; 32]).expect("a job");
                let reply_to = self.reply_to.clone();
                (1, Task { id, client: self.client, job, since, deadline, reply_to })
            };
            ids.into_iter().map(task).collect()
        }

        /// The numbers of the next results, which are one event.
        fn answered(&mut self) -> Vec<u32> {
            match self.events.blocking_recv() {
                Some(ConnectionEvent::Done(replies)) => replies.iter().map(|reply| reply.id).collect(),
                _ => panic!("the queue has ended"),
            }
        }
    }

    fn take(queue: &TaskQueue) -> Option<Vec<Task>> {
        queue.take(|_| PASS_MAX, |_, _| true)
    }

    fn answer(batch: Vec<Task>) {
        let mut replies = Replies::default();
        for task in batch {
            replies.add(task.reply_to, Reply { id: task.id, result: Ok(Vec::new().into()) });
        }
        replies.send();
    }

    /// A thread that waits, as the queue sees it, and one that has come back.
    fn begin_to_wait(queue: &TaskQueue) {
        queue.state().idle += 1;
    }

    fn come_back(queue: &TaskQueue) {
        let mut state = queue.state();
        (state.idle, state.is_waking) = (state.idle - 1, false);
    }

    #[test]
    fn what_comes_together_wakes_one_thread_which_wakes_another_for_what_it_leaves() {
        let queue = TaskQueue::new(TASKS_MAX);
        let asker = Asker::new(1);
        let wakes = || queue.state().wakes;
        queue.push(asker.tasks(0..2));
        assert_eq!(wakes(), 0, "nobody waits");
        (0..3).for_each(|_| begin_to_wait(&queue));
        queue.push(asker.tasks(2..8));
        queue.push(asker.tasks(8..9));
        assert_eq!(wakes(), 1, "one is on its way");
        come_back(&queue);
        assert_eq!((take(&queue).map(|batch| batch.len()), wakes()), (Some(4), 2));
        come_back(&queue);
        assert_eq!((take(&queue).map(|batch| batch.len()), wakes()), (Some(4), 3));
        come_back(&queue);
        assert_eq!((take(&queue).map(|batch| batch.len()), wakes()), (Some(1), 3));
    }

    #[test]
    fn results_of_a_pass_are_one_event_for_each_connection() {
        let queue = TaskQueue::new(TASKS_MAX);
        let (mut one, mut other) = (Asker::new(1), Asker::new(1));
        queue.push([one.tasks(0..2), other.tasks(2..3), one.tasks(3..4)].into_iter().flatten());
        answer(take(&queue).expect("tasks"));
        assert_eq!((one.answered(), other.answered()), (vec![0, 1, 3], vec![2]));
        assert!(one.events.try_recv().is_err() && other.events.try_recv().is_err());
    }

    #[test]
    fn whoever_asks_for_one_thing_is_not_behind_all_that_another_asked_for_at_once() {
        let queue = TaskQueue::new(TASKS_MAX);
        let (many, few) = (Asker::new(1), Asker::new(2));
        queue.push(many.tasks(0..64));
        queue.push(few.tasks(64..65));
        let passes: Vec<_> = (0..2).flat_map(|_| take(&queue).expect("tasks")).collect();
        assert!(passes.iter().any(|task| task.client == few.client));
    }

    /// Threads and askers in any number, who push in any portions and wait for all of their results before they go on:
    /// one lost wake, and somebody waits for ever.
    #[test]
    fn nobody_waits_for_a_thread_that_sleeps() {
        for seed in 0..30 {
            let mut random = fastrand::Rng::with_seed(seed);
            let queue = TaskQueue::new(TASKS_MAX);
            let threads: Vec<_> = (0..random.usize(1..=4)).map(|_| work(queue.clone(), random.fork())).collect();
            let (done, all_done) = mpsc::channel();
            let askers = random.u64(1..=4);
            for client in 0..askers {
                ask(Asker::new(client), queue.clone(), random.fork(), done.clone());
            }
            for _ in 0..askers {
                all_done
                    .recv_timeout(WAIT_MAX)
                    .unwrap_or_else(|_| panic!("seed {seed}: a task waits, and nobody comes"));
            }
            queue.end();
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        }
    }

    fn work(queue: TaskQueue, mut random: fastrand::Rng) -> thread::JoinHandle<()> {
        thread::spawn(move || {
            while let Some(batch) = take(&queue) {
                (0..random.u32(0..3)).for_each(|_| thread::yield_now());
                answer(batch);
            }
        })
    }

    fn ask(mut asker: Asker, queue: TaskQueue, mut random: fastrand::Rng, done: mpsc::Sender<()>) {
        thread::spawn(move || {
            for _ in 0..200 {
                let count = random.u32(1..=9);
                let cut = random.u32(0..=count);
                assert!(queue.push(asker.tasks(0..cut)).is_empty());
                assert!(queue.push(asker.tasks(cut..count)).is_empty());
                let mut answered = Vec::new();
                while answered.len() < count as usize {
                    answered.extend(asker.answered());
                }
                answered.sort_unstable();
                assert_eq!(answered, (0..count).collect::<Vec<_>>());
            }
            let _ = done.send(());
        });
    }

    #[test]
    fn what_is_in_the_queue_at_its_end_is_done_and_all_threads_come_home() {
        for seed in 0..30 {
            let mut random = fastrand::Rng::with_seed(seed);
            let queue = TaskQueue::new(TASKS_MAX);
            let mut asker = Asker::new(1);
            let threads: Vec<_> = (0..random.usize(1..=4)).map(|_| work(queue.clone(), random.fork())).collect();
            let count = random.u32(0..100);
            queue.push(asker.tasks(0..count));
            queue.end();
            threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
            let mut answered = Vec::new();
            while let Ok(ConnectionEvent::Done(replies)) = asker.events.try_recv() {
                answered.extend(replies.iter().map(|reply| reply.id));
            }
            answered.sort_unstable();
            assert_eq!(answered, (0..count).collect::<Vec<_>>(), "seed {seed}");
        }
    }
}

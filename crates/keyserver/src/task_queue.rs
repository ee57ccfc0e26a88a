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
    has_ended: bool,
}

impl TaskQueue {
    pub fn new(tasks_max: usize) -> TaskQueue {
        let state = State { queue: FairQueue::new(tasks_max), idle: 0, has_ended: false };
        TaskQueue(Arc::new(Shared { state: Mutex::new(state), more: Condvar::new() }))
    }

    /// Queues a task. `cost` is the time that it takes of a thread, in the unit of all tasks of the queue.
    pub fn push(&self, cost: u64, task: Task) -> Pushed<Task> {
        let mut state = self.state();
        let pushed = state.queue.push(task.client, cost, task);
        let is_waited_for = state.idle > 0;
        drop(state);
        if is_waited_for {
            self.0.more.notify_one();
        }
        pushed
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
        };
        let wanted = wanted(&first);
        let mut batch = vec![first];
        while batch.len() < wanted
            && let Some(task) = state.queue.pop_matching(EXAMINED_MAX, |task| together(&batch[0], task))
        {
            batch.push(task);
        }
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

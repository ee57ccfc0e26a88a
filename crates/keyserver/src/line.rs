//! A line of tasks between the threads of the links and those that do the work: a fair queue behind a lock that is held
//! for less than a microsecond.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use propylon_crypto::Job;
use propylon_crypto::keyless::ErrorCode;
use tokio::sync::mpsc;

use crate::access::ClientId;
use crate::fair::{FairQueue, Pushed};
use crate::signing::Note;

/// Tasks that are looked at for company of the one that is next.
const LOOKS_MAX: usize = 32;

/// A job on its way to another thread, and where its result is to go.
pub struct Task {
    pub id: u32,
    pub client: ClientId,
    pub job: Job,
    pub since: Instant,
    pub deadline: Instant,
    pub reply_to: mpsc::Sender<Note>,
}

/// Clones are the same line.
#[derive(Clone)]
pub struct Line(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    more: Condvar,
}

struct State {
    queue: FairQueue<Task>,
    /// Threads that wait: nobody else needs to be told.
    idle: usize,
    has_ended: bool,
}

impl Task {
    /// Replies with a refusal. A connection that is gone needs no answer; for others the channel has room: no
    /// connection has more in work than it holds.
    pub fn refuse(self) {
        let _ = self.reply_to.try_send(Note::Done { id: self.id, result: Err(ErrorCode::Internal) });
    }
}

impl Line {
    pub fn new(tasks_max: usize) -> Line {
        let state = State { queue: FairQueue::new(tasks_max), idle: 0, has_ended: false };
        Line(Arc::new(Shared { state: Mutex::new(state), more: Condvar::new() }))
    }

    /// `cost` is what the task takes of a thread, in the unit of all others' in this line.
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

    /// Waits for a task, and takes along at most `wanted` in all of those that are there now and go well together
    /// with it: nothing waits for company. Absent when the line has ended.
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
            && let Some(task) = state.queue.pop_company(LOOKS_MAX, |task| together(&batch[0], task))
        {
            batch.push(task);
        }
        Some(batch)
    }

    /// Ends the line; tasks that are in it are still done.
    pub fn end(&self) {
        self.state().has_ended = true;
        self.0.more.notify_all();
    }

    /// The state, even if a thread panicked: nothing in here panics while holding the lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

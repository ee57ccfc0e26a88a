//! The queue in front of a token. Operations are answered in time whatever the module does: when time is up, a
//! thread that is inside the module is left there, and its operation refused by a clock that never calls the
//! module.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use propylon_crypto::keyless::ErrorCode;
use propylon_metrics::Column;
use tokio::sync::mpsc;

use crate::fair::{FairQueue, Pushed};
use crate::signing::Overflow;
use crate::task::{ConnectionEvent, Reply, Signature, Task};
use crate::telemetry::TokenMetrics;

/// Operations that may wait for one token. Slow ones do a hundred in a second.
const QUEUE_TASKS_MAX: usize = 1024;
/// Interval at which the clock looks while anything is pending, and how long before its deadline an operation is
/// refused.
const TICK: Duration = Duration::from_millis(20);
/// Interval at which a thread is asked whether the keys are still the same.
const SCAN_INTERVAL: Duration = Duration::from_secs(5);

pub struct TokenQueue {
    state: Mutex<State>,
    /// Signalled to the threads: there is a task, or a scan was requested.
    more: Condvar,
    /// Signalled to the clock: there is something to watch.
    something: Condvar,
}

struct State {
    queue: FairQueue<Task>,
    /// The operation of each thread, by the thread's index.
    in_flight: Vec<InFlight>,
    /// Seats whose module has not come back in time.
    stuck: usize,
    idle: usize,
    clock_sleeps: bool,
    /// Set when somebody wants to know which keys there are.
    scan_requested: bool,
}

/// The state of a thread's operation.
enum InFlight {
    None,
    Running {
        id: u32,
        deadline: Instant,
        reply_to: mpsc::Sender<ConnectionEvent>,
    },
    /// The operation has been refused; the module has not returned yet.
    Late,
}

/// The next thing for a thread to do.
pub enum Next {
    Task(Box<Task>),
    /// Find out which keys there are.
    Scan,
    /// Nothing came within the time that the thread wanted to wait.
    Nothing,
}

impl TokenQueue {
    pub fn new(threads: usize) -> TokenQueue {
        TokenQueue {
            state: Mutex::new(State {
                queue: FairQueue::new(QUEUE_TASKS_MAX),
                in_flight: (0..threads).map(|_| InFlight::None).collect(),
                stuck: 0,
                idle: 0,
                clock_sleeps: false,
                scan_requested: false,
            }),
            more: Condvar::new(),
            something: Condvar::new(),
        }
    }

    /// Queues a task. A task that finds no place is refused; all are while every thread waits for a module that
    /// does not return.
    pub fn push(&self, task: Task) -> Result<(), Overflow> {
        let mut state = self.state();
        if state.stuck == state.in_flight.len() {
            drop(state);
            task.refuse();
            return Err(Overflow::Refused);
        }
        let client = task.client;
        let pushed = state.queue.push(client, 1, task);
        let (is_waited_for, wakes_clock) = (state.idle > 0, std::mem::take(&mut state.clock_sleeps));
        drop(state);
        if is_waited_for {
            self.more.notify_one();
        }
        if wakes_clock {
            self.something.notify_one();
        }
        match pushed {
            Pushed::Taken => Ok(()),
            Pushed::InsteadOf(other) => {
                other.refuse();
                Err(Overflow::Displaced)
            }
            Pushed::Refused(task) => {
                task.refuse();
                Err(Overflow::Refused)
            }
        }
    }

    pub fn request_scan(&self) {
        self.state().scan_requested = true;
        self.more.notify_one();
    }

    /// Waits for what this thread is to do next. From here to [`TokenQueue::done`] a task is the thread's.
    pub fn next(&self, thread: usize, wait_max: Option<Duration>) -> Next {
        let mut state = self.state();
        loop {
            if std::mem::take(&mut state.scan_requested) {
                return Next::Scan;
            }
            if let Some(task) = state.queue.pop() {
                let (id, deadline, reply_to) = (task.id, task.deadline, task.reply_to.clone());
                state.in_flight[thread] = InFlight::Running { id, deadline, reply_to };
                return Next::Task(Box::new(task));
            }
            state.idle += 1;
            state = match wait_max {
                None => self.more.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(wait_max) => {
                    let (state, waited) =
                        self.more.wait_timeout(state, wait_max).unwrap_or_else(PoisonError::into_inner);
                    if waited.timed_out() {
                        let mut state = state;
                        state.idle -= 1;
                        return Next::Nothing;
                    }
                    state
                }
            };
            state.idle -= 1;
        }
    }

    /// The thread's operation is over. False if that was too late, and it has been refused meanwhile.
    pub fn done(&self, thread: usize, result: Result<Signature, ErrorCode>) -> bool {
        let mut state = self.state();
        match std::mem::replace(&mut state.in_flight[thread], InFlight::None) {
            InFlight::Running { id, reply_to, .. } => {
                drop(state);
                // A connection that is gone needs no answer.
                let _ = reply_to.try_send(ConnectionEvent::Done(vec![Reply { id, result }]));
                true
            }
            InFlight::Late => {
                state.stuck -= 1;
                false
            }
            InFlight::None => false,
        }
    }

    /// The clock's thread.
    pub fn run_clock(&self, metrics: &TokenMetrics, column: &Column) {
        let mut next_scan = Instant::now() + SCAN_INTERVAL;
        loop {
            let now = Instant::now();
            let refused = self.refuse_late(now + TICK, metrics, column);
            column.add(metrics.queue.expired, refused);
            if now >= next_scan {
                next_scan = now + SCAN_INTERVAL;
                self.request_scan();
            }
            let mut state = self.state();
            column.set(metrics.stuck, state.stuck as i64);
            let is_running = |operation: &InFlight| matches!(operation, InFlight::Running { .. });
            let has_work = !state.queue.is_empty() || state.stuck > 0 || state.in_flight.iter().any(is_running);
            state.clock_sleeps = !has_work;
            let wait_max = if has_work { TICK } else { next_scan - now };
            drop(self.something.wait_timeout(state, wait_max));
        }
    }

    /// Whose time is up by then, wherever it is; returns how many those were.
    fn refuse_late(&self, by: Instant, metrics: &TokenMetrics, column: &Column) -> u64 {
        let mut state = self.state();
        let waiting = state.queue.take_late(|task| task.deadline <= by);
        let mut late = Vec::new();
        for operation in &mut state.in_flight {
            if matches!(operation, InFlight::Running { deadline, .. } if *deadline <= by)
                && let InFlight::Running { id, reply_to, .. } = std::mem::replace(operation, InFlight::Late)
            {
                late.push((id, reply_to));
            }
        }
        state.stuck += late.len();
        drop(state);
        let count = waiting.len() + late.len();
        for task in waiting {
            column.lower(metrics.queue.waiting);
            task.refuse();
        }
        for (id, reply_to) in late {
            let refusal = Reply { id, result: Err(ErrorCode::Internal) };
            let _ = reply_to.try_send(ConnectionEvent::Done(vec![refusal]));
        }
        count as u64
    }

    /// The state, even if a thread panicked: nothing in here panics while holding the lock.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use propylon_crypto::{Hash, PrivateKey, Scheme};
    use propylon_metrics::Store;

    use super::*;
    use crate::access::ClientId;
    use crate::telemetry::Telemetry;

    fn task(id: u32, deadline: Instant, reply_to: &mpsc::Sender<ConnectionEvent>) -> Task {
        let pair = rcgen::KeyPair::generate().expect("a key");
        let key = PrivateKey::from_der(pair.serialized_der()).expect("a key that can be read");
        let job = key.job(Scheme::Ecdsa(Hash::Sha256), &[7; 32]).expect("a job");
        Task { id, client: ClientId(1), job, since: Instant::now(), deadline, reply_to: reply_to.clone() }
    }

    fn results(events: &mut mpsc::Receiver<ConnectionEvent>) -> Vec<(u32, bool)> {
        let mut results = Vec::new();
        while let Ok(ConnectionEvent::Done(replies)) = events.try_recv() {
            results.extend(replies.iter().map(|reply| (reply.id, reply.result.is_ok())));
        }
        results
    }

    #[test]
    fn whoever_is_in_a_module_that_hangs_is_refused_in_time_and_so_are_those_behind() {
        let (telemetry, store) = Telemetry::new(1, &["hsm".into()]);
        let (metrics, column) = (&telemetry.tokens[0], Store::column(&store, 0));
        let queue = TokenQueue::new(1);
        let (reply_to, mut events) = mpsc::channel(16);
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(600));
        for (id, deadline) in [(1, now), (2, now), (3, later)] {
            column.raise(metrics.queue.waiting);
            assert_eq!(queue.push(task(id, deadline, &reply_to)), Ok(()));
        }
        assert!(matches!(queue.next(0, None), Next::Task(task) if task.id == 1));
        column.lower(metrics.queue.waiting);
        assert_eq!(queue.refuse_late(now, metrics, &column), 2);
        assert_eq!(results(&mut events), [(2, false), (1, false)]);
        assert_eq!(store.level(metrics.queue.waiting), 1);
        // The only thread is stuck: others need not wait to be told.
        assert_eq!(queue.push(task(4, later, &reply_to)), Err(Overflow::Refused));
        assert_eq!(results(&mut events), [(4, false)]);
        // The module comes back, and its result is of no use any more.
        assert!(!queue.done(0, Ok(vec![1].into())));
        assert!(matches!(queue.next(0, None), Next::Task(task) if task.id == 3));
        assert!(queue.done(0, Ok(vec![1].into())));
        assert_eq!(results(&mut events), [(3, true)]);
    }

    #[test]
    fn a_thread_that_waits_for_better_times_is_let_go_and_a_look_comes_before_tasks() {
        let queue = TokenQueue::new(1);
        assert!(matches!(queue.next(0, Some(Duration::ZERO)), Next::Nothing));
        let (reply_to, _notes) = mpsc::channel(16);
        queue.push(task(1, Instant::now(), &reply_to)).expect("there is room");
        queue.request_scan();
        assert!(matches!(queue.next(0, None), Next::Scan));
        assert!(matches!(queue.next(0, None), Next::Task(_)));
    }
}

//! Private-key work and the threads that do it. Jobs that cost less than handing them over are done on the spot, in
//! batches as they come from one turn of a connection; the rest goes to threads of its own, and RSA to others than
//! the curves, which it would make wait. RSA jobs that wait are done several at a time.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Instant;

use propylon_crypto::keyless::ErrorCode;
use propylon_crypto::{Job, JobError, KeyKind, batch};
use propylon_metrics::Column;

use crate::fair::Pushed;
use crate::kernels::{self, Kernels, Role, Seen};
use crate::task::{Replies, Reply, Task, ThreadKind};
use crate::task_queue::TaskQueue;
use crate::telemetry::{Telemetry, micros};

/// Tasks that may wait for one kind of thread, in the process: at 0.6 ms each, an RSA thread's work for 2.5 s. A client
/// has all of these places while others do not want them, and never less than its part.
const QUEUE_TASKS_MAX: usize = 4096;
/// Niceness of the curves' threads relative to the links', and below of the RSA threads: so high that the kernel
/// takes the core from an operation that lasts, and low enough that it still gets a tenth of a busy core.
const CURVES_NICENESS: u8 = 5;
const RSA_NICENESS: u8 = 10;
/// Longer messages to be signed by Ed25519, which hashes them twice, are not done on the spot.
const SHORT_MESSAGE_BYTES: usize = 4096;

/// The thread, or the module, that does a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The thread that has read the request.
    Here,
    Thread(ThreadKind),
    /// A hardware module, by its position in the configuration.
    Token(usize),
}

/// The queues of the threads that do expensive work. They end with the last clone.
#[derive(Clone)]
pub struct TaskQueues(Arc<Queues>);

struct Queues {
    curves: TaskQueue,
    rsa: TaskQueue,
}

/// The task that a full queue has no place for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// The task was turned away: all places are taken.
    Refused,
    /// Another task was displaced, because this client has fewer places.
    Displaced,
}

/// The place for a job, by what it costs: P-256 and Ed25519 take some 20 µs, which is what waking a thread up costs.
pub fn place(job: &Job) -> Place {
    match job {
        Job::Ecdsa { key, .. } if key.kind() == KeyKind::P256 => Place::Here,
        Job::Ed25519 { message, .. } if message.len() <= SHORT_MESSAGE_BYTES => Place::Here,
        Job::Rsa { .. } => Place::Thread(ThreadKind::Rsa),
        Job::Remote { key, .. } => Place::Token(key.signer as usize),
        _ => Place::Thread(ThreadKind::Curves),
    }
}

pub fn error_code(error: JobError) -> ErrorCode {
    match error {
        JobError::Refused | JobError::BadShare => ErrorCode::Cryptography,
        JobError::TimedOut | JobError::Unavailable | JobError::NotSigned | JobError::Cancelled => ErrorCode::Internal,
    }
}

/// The cost of a job on a thread, roughly, in microseconds: for the shares of clients that ask for different things.
fn cost(job: &Job) -> u64 {
    match job {
        Job::Rsa { block, .. } => {
            let times = (block.len() as u64).div_ceil(256);
            240 * times * times * times
        }
        Job::Ecdsa { key, .. } if key.kind() == KeyKind::P384 => 75,
        Job::Ed25519 { message, .. } => 20 + message.len() as u64 / 200,
        _ => 140,
    }
}

impl TaskQueues {
    /// Starts as many threads of each kind as there are columns for them; each waits for `ready` when it has what it
    /// needs. They end when the last `TaskQueues` is dropped.
    pub fn start(
        kernels: &Kernels,
        telemetry: &'static Telemetry,
        curves_columns: Vec<Column>,
        rsa_columns: Vec<Column>,
        ready: &Arc<Barrier>,
    ) -> io::Result<TaskQueues> {
        let queues = Queues { curves: TaskQueue::new(QUEUE_TASKS_MAX), rsa: TaskQueue::new(QUEUE_TASKS_MAX) };
        let of = |kind, queue: &TaskQueue, column| {
            let (kernels, queue) = (kernels.clone(), queue.clone());
            SigningThread { kind, kernels, queue, column, telemetry }
        };
        let curves_hands = curves_columns.into_iter().map(|column| of(ThreadKind::Curves, &queues.curves, column));
        let rsa_hands = rsa_columns.into_iter().map(|column| of(ThreadKind::Rsa, &queues.rsa, column));
        for (index, hand) in curves_hands.chain(rsa_hands).enumerate() {
            let name = format!("{}-{index}", hand.kind.name());
            let ready = Arc::clone(ready);
            thread::Builder::new().name(name).spawn(move || hand.work_or_die(&ready))?;
        }
        Ok(TaskQueues(Arc::new(queues)))
    }

    /// Puts tasks that have come together into their queue. Whichever does not wait is answered with a refusal, and
    /// returned as what became of it.
    pub fn push(&self, kind: ThreadKind, tasks: impl IntoIterator<Item = Task>) -> Vec<Overflow> {
        let queue = match kind {
            ThreadKind::Curves => &self.0.curves,
            ThreadKind::Rsa => &self.0.rsa,
        };
        let overflow = queue.push(tasks.into_iter().map(|task| (cost(&task.job), task)));
        overflow.into_iter().filter_map(Overflow::refuse).collect()
    }
}

impl Overflow {
    /// Answers the task that has no place, if there is one.
    pub fn refuse(pushed: Pushed<Task>) -> Option<Overflow> {
        let (task, overflow) = match pushed {
            Pushed::Taken => return None,
            Pushed::InsteadOf(other) => (other, Overflow::Displaced),
            Pushed::Refused(task) => (task, Overflow::Refused),
        };
        task.refuse();
        Some(overflow)
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        self.curves.end();
        self.rsa.end();
    }
}

/// A thread that does the tasks of a queue.
struct SigningThread {
    kind: ThreadKind,
    kernels: Kernels,
    queue: TaskQueue,
    column: Column,
    telemetry: &'static Telemetry,
}

impl SigningThread {
    /// Runs until the queue ends. A panic ends the process: without its thread, a queue would keep its tasks until they
    /// time out.
    fn work_or_die(self, ready: &Barrier) {
        let name = self.kind.name();
        if catch_unwind(AssertUnwindSafe(|| self.work(ready))).is_err() {
            log::error!("a thread for {name} has failed by a bug in Propylon: please report it; the process ends");
            log::logger().flush();
            std::process::abort();
        }
    }

    fn work(self, ready: &Barrier) {
        if let Err(error) = propylon_sys::lower_priority(self.kind.niceness()) {
            log::warn!("the priority of a thread for {} cannot be lowered: {error}", self.kind.name());
        }
        self.kernels.install(self.kind.role());
        ready.wait();
        let mut seen = Seen::default();
        self.telemetry.kernels.report(&self.column, &mut seen, 0, 0);
        while let Some(batch) = self.gather() {
            self.finish(batch, &mut seen);
        }
    }

    fn gather(&self) -> Option<Vec<Task>> {
        let wanted = |task: &Task| batch::batch_size(&task.job);
        self.queue.take(wanted, |first, task| batch::can_share_batch(&first.job, &task.job))
    }

    fn finish(&self, batch: Vec<Task>, seen: &mut Seen) {
        let numbers = &self.telemetry.queues[self.kind as usize];
        let now = Instant::now();
        let mut places = Vec::with_capacity(batch.len());
        let mut jobs = Vec::with_capacity(batch.len());
        let mut replies = Replies::default();
        for task in batch {
            self.column.lower(numbers.waiting);
            self.column.observe(numbers.wait, micros(now.saturating_duration_since(task.since)));
            if now >= task.deadline {
                self.column.increment(numbers.expired);
                replies.add(task.reply_to, Reply { id: task.id, result: Err(ErrorCode::Internal) });
            } else if !task.reply_to.is_closed() {
                places.push((task.id, task.reply_to));
                jobs.push(task.job);
            }
        }
        let rsa = if self.kind == ThreadKind::Rsa { jobs.len() as u64 } else { 0 };
        let outcomes = kernels::run_together(jobs);
        self.telemetry.kernels.report(&self.column, seen, 0, rsa);
        for ((id, reply_to), outcome) in places.into_iter().zip(outcomes) {
            replies.add(reply_to, Reply { id, result: outcome.map_err(error_code) });
        }
        replies.send();
    }
}

impl ThreadKind {
    fn role(self) -> Role {
        match self {
            ThreadKind::Curves => Role::Curves,
            ThreadKind::Rsa => Role::Rsa,
        }
    }

    fn niceness(self) -> u8 {
        match self {
            ThreadKind::Curves => CURVES_NICENESS,
            ThreadKind::Rsa => RSA_NICENESS,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use propylon_crypto::{Hash, PrivateKey, Scheme};
    use propylon_metrics::Store;
    use tokio::sync::mpsc;

    use super::*;
    use crate::access::ClientId;
    use crate::task::ConnectionEvent;

    fn key(algorithm: &'static rcgen::SignatureAlgorithm) -> PrivateKey {
        let pair = rcgen::KeyPair::generate_for(algorithm).expect("a key");
        PrivateKey::from_der(pair.serialized_der()).expect("a key that can be read")
    }

    fn task(id: u32, deadline: Instant, reply_to: &mpsc::Sender<ConnectionEvent>) -> Task {
        let job = key(&rcgen::PKCS_ECDSA_P384_SHA384).job(Scheme::Ecdsa(Hash::Sha256), &[7; 32]).expect("a job");
        Task { id, client: ClientId(1), job, since: Instant::now(), deadline, reply_to: reply_to.clone() }
    }

    fn results(events: &mut mpsc::Receiver<ConnectionEvent>) -> Vec<(u32, Option<ErrorCode>)> {
        let mut results = Vec::new();
        while let Ok(ConnectionEvent::Done(replies)) = events.try_recv() {
            results.extend(replies.into_iter().map(|reply| (reply.id, reply.result.err())));
        }
        results
    }

    #[test]
    fn what_is_done_on_the_spot_is_cheap() {
        let place_of = |algorithm, scheme, input: &[u8]| place(&key(algorithm).job(scheme, input).expect("a job"));
        let digest = Scheme::Ecdsa(Hash::Sha256);
        assert_eq!(place_of(&rcgen::PKCS_ECDSA_P256_SHA256, digest, &[7; 32]), Place::Here);
        assert_eq!(place_of(&rcgen::PKCS_ED25519, Scheme::Ed25519, &[7; 100]), Place::Here);
        assert_eq!(place_of(&rcgen::PKCS_ED25519, Scheme::Ed25519, &[7; 60_000]), Place::Thread(ThreadKind::Curves));
        assert_eq!(place_of(&rcgen::PKCS_ECDSA_P384_SHA384, digest, &[7; 32]), Place::Thread(ThreadKind::Curves));
        assert_eq!(place_of(&rcgen::PKCS_RSA_SHA256, Scheme::RsaRaw, &[7; 32]), Place::Thread(ThreadKind::Rsa));
    }

    #[test]
    fn an_operation_whose_time_is_up_is_refused_and_one_whose_client_is_gone_is_not_done() {
        let (telemetry, store) = Telemetry::new(1, &[]);
        let column = Store::column(&store, 0);
        let hand = SigningThread {
            kind: ThreadKind::Curves,
            kernels: Kernels::start(false, false),
            queue: TaskQueue::new(1),
            column,
            telemetry,
        };
        let (reply_to, mut events) = mpsc::channel(8);
        let (gone, _) = mpsc::channel(8);
        let (past, future) = (Instant::now(), Instant::now() + Duration::from_secs(600));
        let batch = vec![task(1, past, &reply_to), task(2, future, &reply_to), task(3, future, &gone)];
        hand.finish(batch, &mut Seen::default());
        assert_eq!(results(&mut events), [(1, Some(ErrorCode::Internal)), (2, None)]);
        let numbers = &telemetry.queues[ThreadKind::Curves as usize];
        assert_eq!((store.count(numbers.expired), store.distribution(numbers.wait).count), (1, 3));
    }

    const RSA: [&[u8]; 2] =
        [include_bytes!("../../lanes/src/rsa/keys/2048.a.der"), include_bytes!("../../lanes/src/rsa/keys/3072.a.der")];

    #[test]
    fn what_waits_for_rsa_is_done_by_size_and_the_oldest_goes_first() {
        let (telemetry, store) = Telemetry::new(1, &[]);
        let kernels = Kernels::start(false, true);
        kernels.install(Role::Rsa);
        let is_used = kernels.state(batch::Kernel::Rsa) == batch::KernelState::Used;
        let queue = TaskQueue::new(32);
        let column = Store::column(&store, 0);
        let hand = SigningThread { kind: ThreadKind::Rsa, kernels, queue: queue.clone(), column, telemetry };
        let (reply_to, mut events) = mpsc::channel(32);
        let keys = RSA.map(|der| PrivateKey::from_der(der).expect("a key that can be read"));
        let sizes = [0, 1, 0, 0, 1, 0, 0, 1, 1, 1, 1, 0, 1, 1];
        let (since, deadline) = (Instant::now(), Instant::now() + Duration::from_secs(600));
        for (id, size) in (0..).zip(sizes) {
            let job = keys[size].job(Scheme::RsaPss(Hash::Sha256), &[7; 32]).expect("a job");
            let task = Task { id, client: ClientId(1), job, since, deadline, reply_to: reply_to.clone() };
            assert!(queue.push([(1, task)]).is_empty());
        }
        queue.end();
        let (mut seen, mut batches) = (Seen::default(), Vec::new());
        while let Some(batch) = hand.gather() {
            batches.push(batch.iter().map(|task| task.id).collect::<Vec<_>>());
            hand.finish(batch, &mut seen);
        }
        if is_used {
            assert_eq!(batches, [vec![0, 2, 3, 5], vec![1, 4, 7, 8], vec![6, 11], vec![9, 10, 12, 13]]);
        } else {
            assert_eq!(batches, (0..14).map(|id| vec![id]).collect::<Vec<_>>());
        }
        let mut done = results(&mut events);
        done.sort_unstable_by_key(|(id, _)| *id);
        assert_eq!(done, (0..14).map(|id| (id, None)).collect::<Vec<_>>());
    }

    #[test]
    fn a_line_that_is_full_refuses_and_makes_room_for_those_who_have_less() {
        let queues = TaskQueues(Arc::new(Queues { curves: TaskQueue::new(2), rsa: TaskQueue::new(2) }));
        let (reply_to, mut events) = mpsc::channel(8);
        let push = |kind, id, client| {
            queues.push(kind, [Task { client: ClientId(client), ..task(id, Instant::now(), &reply_to) }])
        };
        let taken = (0..3).map(|id| push(ThreadKind::Rsa, id, 1));
        assert_eq!(taken.collect::<Vec<_>>(), [vec![], vec![], vec![Overflow::Refused]]);
        assert_eq!(push(ThreadKind::Rsa, 3, 2), [Overflow::Displaced]);
        assert_eq!(push(ThreadKind::Curves, 4, 1), []);
        assert_eq!(results(&mut events), [(2, Some(ErrorCode::Internal)), (1, Some(ErrorCode::Internal))]);
    }
}

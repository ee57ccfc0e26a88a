//! The exporter: a thread of its own that gathers the cores' spans, sends them in batches, and tries again where that is
//! allowed. What it cannot get rid of fills bounded queues, and what does not fit there is dropped and counted: no core ever
//! waits for it.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::body::Bytes;
use propylon_observe::telemetry::ExportCounts;
use propylon_proxy::snapshot::{Publication, Snapshot};
use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::collector::{Collector, Outcome};
use propylon_proxy::trace::{Inlet, Outbox, Span, Target, encode};

/// Spans that are sent together.
const BATCH_SPANS: usize = 512;
/// How long the first span of a batch waits for others.
const GATHER: Duration = Duration::from_secs(1);
/// How long a batch is tried, from its first attempt to the beginning of its last.
const BATCH_WAIT_MAX: Duration = Duration::from_secs(60);
/// The pause after a failure: twice as long each time, up to a limit; half of it is left to chance, so that engines do not
/// all come at once.
const BACKOFF_MIN: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(15);
/// A collector that asks for more than this is asked again after it.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);
/// How often failures are told in the log.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Counts of the exporter's work, kept by its thread.
#[derive(Default)]
struct Counts {
    exported: AtomicU64,
    succeeded: AtomicU64,
    retried: AtomicU64,
    failed: AtomicU64,
    /// Spans: a collector took a batch, but not these.
    rejected: AtomicU64,
    /// Spans of batches that a collector would not have.
    refused: AtomicU64,
    /// Spans of batches that were tried for too long, or whose time was over at the engine's end.
    undeliverable: AtomicU64,
}

/// The exporter as the main thread sees it.
pub struct Exporter {
    /// The exporter's thread; `None` before it is needed.
    thread: Option<JoinHandle<()>>,
    /// Until then.
    start: Option<Start>,
    /// The end of its time, once that is known.
    ending: watch::Sender<Option<Instant>>,
    counts: Arc<Counts>,
}

/// Data that the thread starts with.
struct Start {
    inlets: Vec<Inlet>,
    published: watch::Receiver<Arc<Publication>>,
    ending: watch::Receiver<Option<Instant>>,
    counts: Arc<Counts>,
    seed: u64,
}

impl Exporter {
    /// With an outbox for each of the cores. There is no thread yet.
    pub fn new(published: watch::Receiver<Arc<Publication>>, cores: usize) -> (Exporter, Vec<Outbox>) {
        let (outboxes, inlets) = (0..cores).map(|_| Outbox::new()).unzip();
        let (ending, ends) = watch::channel(None);
        let counts = Arc::new(Counts::default());
        let (counted, seed) = (Arc::clone(&counts), propylon_crypto::seed());
        let start = Some(Start { inlets, published, ending: ends, counts: counted, seed });
        (Exporter { thread: None, start, ending, counts }, outboxes)
    }

    /// Starts the thread once requests are traced. It goes by what is published from there on.
    pub fn start_if_needed(&mut self, snapshot: &Snapshot) {
        let Some(target) = &snapshot.collector else { return };
        let (Some(start), target) = (self.start.take(), Arc::clone(target)) else { return };
        match std::thread::Builder::new().name("traces".into()).spawn(move || run(start, target)) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => log::error!("tracing: no spans are sent: a thread cannot be started: {error}"),
        }
    }

    pub fn counts(&self) -> ExportCounts {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ExportCounts {
            exported: now(&self.counts.exported),
            succeeded: now(&self.counts.succeeded),
            retried: now(&self.counts.retried),
            failed: now(&self.counts.failed),
            rejected: now(&self.counts.rejected),
            refused: now(&self.counts.refused),
            undeliverable: now(&self.counts.undeliverable),
        }
    }

    /// Waits until everything handed over is sent, or `wait_max` is up. The outboxes must be gone by then.
    pub fn finish(self, wait_max: Duration) {
        let due = std::time::Instant::now() + wait_max;
        self.ending.send_replace(Some(Instant::from_std(due)));
        let Some(thread) = self.thread else { return };
        while !thread.is_finished() && std::time::Instant::now() < due + Duration::from_millis(250) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let left = self.counts.undeliverable.load(Ordering::Relaxed);
        if left > 0 {
            log::warn!("tracing: {left} spans could not be delivered");
        }
    }
}

fn run(start: Start, target: Arc<Target>) {
    let Start { inlets, published, ending, counts, seed } = start;
    let runtime = Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default());
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return log::error!("tracing: no spans are sent: {error}"),
    };
    let sender = SpanSender {
        collector: Collector::default(),
        target,
        published,
        ending,
        counts,
        random: fastrand::Rng::with_seed(seed),
        failures: 0,
        not_before: None,
        failure_logged: None,
    };
    runtime.block_on(sender.run(inlets));
    // A lookup that the system does not answer must not hold us up.
    runtime.shutdown_background();
}

struct SpanSender {
    collector: Collector,
    target: Arc<Target>,
    published: watch::Receiver<Arc<Publication>>,
    ending: watch::Receiver<Option<Instant>>,
    counts: Arc<Counts>,
    random: fastrand::Rng,
    /// In a row.
    failures: u32,
    /// A collector wants to be left alone until then.
    not_before: Option<Instant>,
    failure_logged: Option<Instant>,
}

impl SpanSender {
    async fn run(mut self, mut inlets: Vec<Inlet>) {
        let mut batch = Vec::new();
        loop {
            let is_over = self.gather(&mut inlets, &mut batch).await;
            while !batch.is_empty() {
                let rest = batch.split_off(batch.len().min(BATCH_SPANS));
                let full = std::mem::replace(&mut batch, rest);
                self.deliver(full).await;
                if batch.len() < BATCH_SPANS && !is_over {
                    break;
                }
            }
            if is_over {
                return;
            }
        }
    }

    /// Waits for a batch to be full, or its first span to have waited long enough. True when the cores have ended.
    async fn gather(&mut self, inlets: &mut Vec<Inlet>, batch: &mut Vec<Span>) -> bool {
        let mut due = (!batch.is_empty()).then(|| Instant::now() + GATHER);
        while batch.len() < BATCH_SPANS {
            let received = match due {
                None => poll_fn(|context| poll_inlets(inlets, context)).await,
                Some(due) => {
                    let wait = poll_fn(|context| poll_inlets(inlets, context));
                    match timeout_at(due, wait).await {
                        Ok(received) => received,
                        Err(_) => return false,
                    }
                }
            };
            let Some(spans) = received else { return true };
            batch.extend(spans);
            due.get_or_insert_with(|| Instant::now() + GATHER);
        }
        false
    }

    /// Sends a batch until it is taken, or given up.
    async fn deliver(&mut self, batch: Vec<Span>) {
        let count = batch.len() as u64;
        self.reload();
        let body = Bytes::from(encode(batch, &self.target.resource));
        let give_up = Instant::now() + BATCH_WAIT_MAX;
        self.pause(self.not_before).await;
        loop {
            self.reload();
            let target = Arc::clone(&self.target);
            let Some(outcome) = self.send(&target, body.clone()).await else { return self.lose(count) };
            match outcome {
                Outcome::Taken { rejected } => {
                    let rejected = rejected.min(count);
                    self.succeed(count - rejected, rejected);
                    return;
                }
                Outcome::Refused { why } => {
                    self.complain(&target, &why);
                    self.counts.failed.fetch_add(1, Ordering::Relaxed);
                    self.counts.refused.fetch_add(count, Ordering::Relaxed);
                    return;
                }
                Outcome::Later { why, after } => {
                    self.complain(&target, &why);
                    let next = self.next_attempt(after);
                    self.not_before = Some(next);
                    if next > give_up || self.is_ending() {
                        return self.lose(count);
                    }
                    self.counts.retried.fetch_add(1, Ordering::Relaxed);
                    self.pause(Some(next)).await;
                }
            }
        }
    }

    /// Goes by what was published last. Where nothing is traced any more, what is left goes where it was to go.
    fn reload(&mut self) {
        let publication = Arc::clone(&self.published.borrow_and_update());
        if let Some(target) = &publication.snapshot.collector
            && !Arc::ptr_eq(target, &self.target)
        {
            self.target = Arc::clone(target);
            self.collector.forget();
            self.not_before = None;
        }
    }

    /// Sends a batch; `None` if the engine's end comes first.
    async fn send(&mut self, target: &Target, body: Bytes) -> Option<Outcome> {
        let mut ending = self.ending.clone();
        tokio::select! {
            outcome = self.collector.send(target, body) => Some(outcome),
            () = ended(&mut ending) => None,
        }
    }

    /// Until then, or until the engine is to end: then there is one more attempt, and at once.
    async fn pause(&mut self, until: Option<Instant>) {
        let Some(until) = until else { return };
        tokio::select! {
            () = sleep_until(until) => {}
            _ = self.ending.wait_for(Option::is_some) => {}
        }
    }

    fn next_attempt(&mut self, after: Option<Duration>) -> Instant {
        let pause = backoff(self.failures, self.random.f64());
        self.failures = self.failures.saturating_add(1);
        Instant::now() + after.map_or(pause, |after| after.min(RETRY_AFTER_MAX).max(pause))
    }

    fn succeed(&mut self, taken: u64, rejected: u64) {
        self.failures = 0;
        self.not_before = None;
        if self.failure_logged.take().is_some() {
            log::info!("tracing: spans are delivered again");
        }
        self.counts.succeeded.fetch_add(1, Ordering::Relaxed);
        self.counts.exported.fetch_add(taken, Ordering::Relaxed);
        self.counts.rejected.fetch_add(rejected, Ordering::Relaxed);
    }

    fn lose(&mut self, count: u64) {
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
        self.counts.undeliverable.fetch_add(count, Ordering::Relaxed);
    }

    /// Also where the main thread is gone without a word.
    fn is_ending(&self) -> bool {
        self.ending.borrow().is_some() || self.ending.has_changed().is_err()
    }

    fn complain(&mut self, target: &Target, why: &str) {
        let now = Instant::now();
        if self.failure_logged.is_none_or(|last| now.duration_since(last) >= FAILURE_LOG_INTERVAL) {
            self.failure_logged = Some(now);
            log::warn!("tracing: {} does not take spans: {why}", target.endpoint.url);
        }
    }
}

/// When the time is up that there is for the engine's end.
async fn ended(ending: &mut watch::Receiver<Option<Instant>>) {
    let due = ending.wait_for(Option::is_some).await.ok().and_then(|due| *due);
    // Without a word the main thread is gone, and nobody waits for us.
    if let Some(due) = due {
        sleep_until(due).await;
    }
}

/// Spans of any core; none when all of them have ended.
fn poll_inlets(inlets: &mut Vec<Inlet>, context: &mut Context<'_>) -> Poll<Option<Vec<Span>>> {
    let mut received = None;
    inlets.retain_mut(|inlet| {
        if received.is_some() {
            return true;
        }
        match inlet.poll_recv(context) {
            Poll::Ready(Some(spans)) => {
                received = Some(spans);
                true
            }
            Poll::Ready(None) => false,
            Poll::Pending => true,
        }
    });
    match received {
        Some(spans) => Poll::Ready(Some(spans)),
        None if inlets.is_empty() => Poll::Ready(None),
        None => Poll::Pending,
    }
}

/// `chance` is uniform in 0..1.
fn backoff(failures: u32, chance: f64) -> Duration {
    let longest = BACKOFF_MIN * 2_u32.saturating_pow(failures.min(16));
    longest.min(BACKOFF_MAX).mul_f64(0.5 + chance / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use propylon_http::trace_context::parse_parent;
    use propylon_proxy::trace::Kind;
    use propylon_proxy::trace::{SHEET_SPANS, SPANS_WAITING_MAX};

    fn span() -> Span {
        let parent = parse_parent(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").expect("a parent");
        Span {
            context: parent.context,
            parent: None,
            parent_is_remote: false,
            kind: Kind::Server,
            state: None,
            name: "GET".into(),
            started: std::time::SystemTime::UNIX_EPOCH,
            lasted: Duration::ZERO,
            attributes: Vec::new(),
            failed: false,
        }
    }

    #[test]
    fn an_exporter_that_is_behind_costs_spans_and_never_memory_or_time() {
        let (mut outbox, mut inlet) = Outbox::new();
        let pushed = 10 * SPANS_WAITING_MAX;
        for _ in 0..pushed {
            outbox.push(span());
            assert!(outbox.waiting() <= SPANS_WAITING_MAX);
        }
        // One buffer is on its way, one place is kept for the end.
        let dropped = outbox.take_dropped();
        assert_eq!(dropped as usize, pushed - SPANS_WAITING_MAX - SHEET_SPANS);
        drop(outbox);
        let mut received = 0;
        while let Ok(spans) = inlet.try_recv() {
            received += spans.len();
        }
        assert_eq!(received as u64 + dropped, pushed as u64);
    }

    #[test]
    fn an_exporter_that_is_gone_costs_spans_alone() {
        let (mut outbox, inlet) = Outbox::new();
        drop(inlet);
        outbox.push(span());
        outbox.hand_over();
        assert_eq!((outbox.take_dropped(), outbox.waiting()), (1, 0));
    }

    #[test]
    fn pauses_grow_up_to_a_limit_and_half_of_each_is_left_to_chance() {
        assert_eq!(backoff(0, 0.0), BACKOFF_MIN / 2);
        assert_eq!(backoff(0, 1.0), BACKOFF_MIN);
        assert_eq!(backoff(2, 1.0), 4 * BACKOFF_MIN);
        assert_eq!((backoff(40, 1.0), backoff(u32::MAX, 0.0)), (BACKOFF_MAX, BACKOFF_MAX / 2));
    }
}

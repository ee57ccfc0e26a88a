//! Figures of what this engine has done, which other engines compare.

use std::sync::Arc;
use std::time::{Duration, Instant};

use propylon_cluster::{Figures, LoadRecord};
use propylon_metrics::{Histogram, Store};
use propylon_observe::telemetry::Telemetry;

/// Takes figures, each of them since the one before.
pub struct Sampler {
    pub store: Arc<Store>,
    pub telemetry: Arc<Telemetry>,
    cpu: Duration,
    at: Instant,
    /// Requests, faults and handshakes.
    counts: [u64; 3],
    waits: Buckets,
    durations: Buckets,
}

/// Upper bound and count of each bucket.
type Buckets = Vec<(Option<u64>, u64)>;

impl Sampler {
    pub fn new(store: Arc<Store>, telemetry: Arc<Telemetry>) -> Sampler {
        let (waits, durations) = (Buckets::new(), Buckets::new());
        let (cpu, at) = (propylon_sys::process_cpu(), Instant::now());
        Sampler { store, telemetry, cpu, at, counts: [0; 3], waits, durations }
    }

    /// Figures as of now.
    pub fn figures(&mut self, is_ready: bool, announced: Option<bool>, problems: Vec<String>) -> Figures {
        let generation = self.store.level(self.telemetry.process.reloads.generation).unsigned_abs();
        let cores = (self.store.columns() - 1) as u32;
        let accounts = Default::default();
        Figures { load: self.load(cores), cores, is_ready, generation, announced, accounts, problems }
    }

    fn buckets(&self, histogram: Histogram) -> Buckets {
        self.store.distribution(histogram).buckets
    }

    fn load(&mut self, cores: u32) -> LoadRecord {
        let (now, cpu) = (Instant::now(), propylon_sys::process_cpu());
        let elapsed = now.saturating_duration_since(self.at).as_secs_f64().max(1e-3);
        let share = cpu.saturating_sub(self.cpu).as_secs_f64() / elapsed / f64::from(cores.max(1));
        (self.cpu, self.at) = (cpu, now);
        let mut load = LoadRecord {
            cpu: (share * 1e3).round() / 1e3,
            memory: propylon_sys::resident_bytes().unwrap_or(0),
            memory_limit: self.store.level(self.telemetry.overload.limit).unsigned_abs(),
            connections: self.telemetry.open(&self.store).0,
            ..LoadRecord::default()
        };
        let mut durations = Buckets::new();
        for listener in self.telemetry.all_listeners() {
            let count = |counter| self.store.count(counter);
            let responses = listener.responses().map(count);
            load.requests += responses.iter().sum::<u64>();
            load.faults += responses[4];
            load.handshakes += listener.handshakes.each().map(|(_, _, counter)| count(counter)).sum::<u64>();
            let failures = listener.handshake_failures.each().map(|(_, counter)| count(counter)).sum::<u64>();
            load.handshake_failures += failures;
            load.handshakes += failures;
            let distribution = self.store.distribution(listener.account.duration);
            load.request_microseconds += distribution.sum;
            add(&mut durations, &distribution.buckets);
        }
        let counts = [load.requests, load.faults, load.handshakes];
        let rate = |at: usize| (counts[at].saturating_sub(self.counts[at]) as f64 / elapsed * 10.0).round() / 10.0;
        [load.requests_per_second, load.faults_per_second, load.handshakes_per_second] = [0, 1, 2].map(rate);
        self.counts = counts;
        let waits = self.buckets(self.telemetry.handshake_queue.wait);
        load.p99_microseconds = percentile(&durations, &self.durations);
        load.handshake_wait_microseconds = percentile(&waits, &self.waits);
        (self.durations, self.waits) = (durations, waits);
        load
    }
}

fn add(sums: &mut Buckets, counts: &Buckets) {
    if sums.is_empty() {
        counts.clone_into(sums);
        return;
    }
    sums.iter_mut().zip(counts).for_each(|(sum, count)| sum.1 += count.1);
}

/// The bound in microseconds below which 99 of 100 were that came since the counts before; 0 if none came.
fn percentile(counts: &Buckets, before: &Buckets) -> u64 {
    let fresh = |at: usize| counts[at].1.saturating_sub(before.get(at).map_or(0, |before| before.1));
    let all: u64 = (0..counts.len()).map(fresh).sum();
    let mut left = all - all / 100;
    let mut bound = 0;
    for (at, (upper, _)) in counts.iter().enumerate() {
        bound = upper.unwrap_or(bound);
        if left > 0 && fresh(at) >= left {
            return bound;
        }
        left -= fresh(at).min(left);
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_of_what_came_since() {
        let buckets = |counts: [u64; 3]| -> Buckets { [Some(10), Some(20), None].into_iter().zip(counts).collect() };
        assert_eq!(percentile(&buckets([0, 0, 0]), &Buckets::new()), 0);
        assert_eq!(percentile(&buckets([100, 0, 0]), &Buckets::new()), 10);
        assert_eq!(percentile(&buckets([98, 2, 0]), &Buckets::new()), 20);
        assert_eq!(percentile(&buckets([1_000_000, 2, 0]), &buckets([1_000_000, 0, 0])), 20);
        assert_eq!(percentile(&buckets([9, 0, 5]), &buckets([9, 0, 0])), 20, "above all bounds: the last of them");
    }
}

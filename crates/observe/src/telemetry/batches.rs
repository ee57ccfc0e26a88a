//! Batches of private-key work.

use std::cell::Cell;

use propylon_crypto::batch::{self, BatchCounts, Batching, Kernel, LANES, P256_MAX, Work};
use propylon_metrics::{Column, Counter, Gauge, Histogram, Registry};

pub struct BatchMetrics {
    /// RSA, X25519.
    sizes: [Histogram; 2],
    p256_sizes: Histogram,
    /// In the order of `Work::ALL`.
    in_lanes: Vec<Counter>,
    by_awslc: Vec<Counter>,
    /// X25519 pairs.
    pool_level: Gauge,
    pool_misses: Counter,
    bad_lanes: Counter,
    checks_passed: Counter,
    checks_failed: Counter,
    unlocked: Gauge,
    /// In the order of `Kernel::ALL`; the main thread's.
    kernels: Vec<Gauge>,
}

const POOL: [(&str, &str); 1] = [("pool", "x25519-pairs")];

impl BatchMetrics {
    pub fn new(r: &mut Registry) -> BatchMetrics {
        // A signature on P-256 shares what it costs with up to four groups of lanes.
        let bounds: Vec<u64> = (1..=LANES as u64).chain([16, 24, P256_MAX as u64]).collect();
        let mut sizes_of = |work| {
            let help = "Private-key operations that were done together, by work; those of one are done by AWS-LC.";
            r.histogram("propylon_crypto_batch_size", help, &[("work", work)], &bounds, 1.0)
        };
        let sizes = ["rsa", "x25519"].map(&mut sizes_of);
        let p256_sizes = sizes_of("p256-signature");
        let mut jobs = |by: &'static str| -> Vec<Counter> {
            let help = "Private-key operations, by work and by what did them.";
            let counter =
                |work: &Work| r.counter("propylon_crypto_jobs_total", help, &[("work", work.name()), ("by", by)]);
            Work::ALL.iter().map(counter).collect()
        };
        let (in_lanes, by_awslc) = (jobs("lanes"), jobs("aws-lc"));
        let mut check = |outcome: &'static str| {
            let help = "Results of the lanes that AWS-LC was asked about, too.";
            r.counter("propylon_crypto_checks_total", help, &[("outcome", outcome)])
        };
        let (checks_passed, checks_failed) = (check("right"), check("wrong"));
        BatchMetrics {
            sizes,
            p256_sizes,
            in_lanes,
            by_awslc,
            pool_level: r.gauge("propylon_crypto_pool_level", "Made ahead and ready.", &POOL),
            pool_misses: r.counter(
                "propylon_crypto_pool_misses_total",
                "Times that a pool was empty and had to be filled while somebody waited.",
                &POOL,
            ),
            bad_lanes: r.counter(
                "propylon_crypto_bad_lanes_total",
                "RSA results of the lanes that did not lead back to their input; AWS-LC did them again.",
                &[],
            ),
            checks_passed,
            checks_failed,
            unlocked: r.gauge(
                "propylon_crypto_swappable",
                "1 for each core whose keys made ahead and working memory could not be locked into memory.",
                &[],
            ),
            kernels: Kernel::ALL
                .iter()
                .map(|kernel| {
                    let help = "1 while a kernel is tested, trusted and in use.";
                    r.gauge("propylon_crypto_kernel", help, &[("kernel", kernel.name())])
                })
                .collect(),
        }
    }

    /// For the main thread.
    pub fn report_kernels(&self, column: &Column, batching: &Batching) {
        for (gauge, kernel) in self.kernels.iter().zip(Kernel::ALL) {
            column.set(*gauge, i64::from(batching.is_usable(kernel)));
        }
    }

    /// For a worker: what this thread's bench has counted since `seen`.
    pub fn report(&self, column: &Column, seen: &Cell<BatchCounts>) {
        let Some(now) = batch::counts() else { return };
        let seen = seen.replace(now);
        if now == seen {
            return;
        }
        let sizes = |histogram: Histogram, now: &[u64], seen: &[u64]| {
            for ((size, now), seen) in (1..).zip(now).zip(seen) {
                column.observe_many(histogram, size, now - seen);
            }
        };
        for (histogram, (now, seen)) in self.sizes.iter().zip(now.sizes.iter().zip(&seen.sizes)) {
            sizes(*histogram, now, seen);
        }
        sizes(self.p256_sizes, &now.p256_sizes, &seen.p256_sizes);
        let add = |counters: &[Counter], now: &[u64], seen: &[u64]| {
            for ((counter, now), seen) in counters.iter().zip(now).zip(seen) {
                column.add(*counter, now - seen);
            }
        };
        add(&self.in_lanes, &now.in_lanes, &seen.in_lanes);
        add(&self.by_awslc, &now.by_awslc, &seen.by_awslc);
        column.add(self.pool_misses, now.pool_misses - seen.pool_misses);
        column.set(self.pool_level, now.pool_level as i64);
        column.add(self.bad_lanes, now.bad_lanes - seen.bad_lanes);
        column.add(self.checks_passed, now.checks_passed - seen.checks_passed);
        column.add(self.checks_failed, now.checks_failed - seen.checks_failed);
        column.set(self.unlocked, i64::from(!now.is_locked));
    }
}

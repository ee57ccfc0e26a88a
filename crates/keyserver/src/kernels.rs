//! The kernels that do private-key work, several ECDSA signatures or RSA operations at once, where the
//! configuration and the processor have them, and AWS-LC elsewhere; and the metrics of both.

use std::sync::Arc;

use propylon_crypto::batch::{self, BatchCounts, Batching, Kernel, KernelState, LANES, P256_MAX, Work};
use propylon_crypto::{Job, Outcome};
use propylon_metrics::{Column, Counter, Gauge, Histogram, Registry};

/// The switches of the configuration, and what they come to on this machine. Every private-key operation of the process
/// goes through [`run_together`].
#[derive(Clone)]
pub struct Kernels {
    batching: Arc<Batching>,
    /// `[ecdsa]` `batch`: several signatures on P-256 at once.
    ecdsa: bool,
    /// `[rsa]` `batch`: several RSA operations in one pass.
    rsa: bool,
}

/// The work that a thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Links,
    Curves,
    Rsa,
    /// All operations that one core of an engine asks for.
    Engine,
}

/// The kernels that are used here, each with what it does.
const USED: [(Kernel, &str); 2] = [(Kernel::P256, "ECDSA P-256 in batches"), (Kernel::Rsa, "RSA in batches")];

impl Kernels {
    /// Has the kernels tested, if any is wanted.
    pub fn start(ecdsa: bool, rsa: bool) -> Kernels {
        let batching = if ecdsa || rsa { Batching::start() } else { Batching::off() };
        Kernels { batching, ecdsa, rsa }
    }

    /// Says what has come of it: once, in the log.
    pub fn log_state(&self) {
        for (kernel, what) in USED {
            match self.state(kernel) {
                KernelState::Used => log::info!("{what}: tested and in use"),
                KernelState::TurnedOff => log::info!("{what}: turned off"),
                KernelState::NoInstructions => {
                    log::info!("{what}: not on this processor, which has no AVX-512 IFMA; AWS-LC does it");
                }
                KernelState::Failed => log::error!(
                    "{what}: the kernel does not give the known answers and is not used; AWS-LC does its work. Have the \
                     processor and the memory of this machine checked"
                ),
            }
        }
    }

    /// The state of a kernel at this moment.
    pub fn state(&self, kernel: Kernel) -> KernelState {
        let wanted = match kernel {
            Kernel::P256 => self.ecdsa,
            Kernel::Rsa => self.rsa,
            Kernel::X25519 => false,
        };
        if wanted { self.batching.state(kernel) } else { KernelState::TurnedOff }
    }

    /// Gives this thread what its work needs. All memory is taken here, because later the process denies itself the
    /// system call that locks it.
    pub fn install(&self, role: Role) {
        // Wiping of freed memory is turned on at run time: in an engine's program it is off unless asked for.
        propylon_sys::wipe_freed_memory();
        let signs = self.ecdsa && matches!(role, Role::Links | Role::Engine);
        let raises = self.rsa && matches!(role, Role::Rsa | Role::Engine);
        if signs || raises {
            batch::install(&self.batching);
        }
        if signs {
            batch::prepare(Work::P256Signature);
        }
        if raises {
            batch::prepare(Work::Rsa);
        }
    }
}

/// Does jobs, together where that is cheaper. As many outcomes as jobs, in their order.
pub fn run_together(jobs: Vec<Job>) -> Vec<Outcome> {
    batch::run_all(jobs)
}

/// Metrics of a thread's bench; a thread without one reports the same metrics.
pub struct KernelMetrics {
    sizes: Histogram,
    p256_sizes: Histogram,
    /// ECDSA P-256, RSA; by the lanes, by AWS-LC.
    operations: [[Counter; 2]; 2],
    bad_lanes: Counter,
    checks: [Counter; 2],
    swappable: Gauge,
    /// The kernels' states, in the order of [`USED`]; set by the main thread.
    kernels: [Gauge; USED.len()],
}

/// The counts that were reported last.
#[derive(Default)]
pub struct Seen(BatchCounts);

impl KernelMetrics {
    pub fn register(r: &mut Registry) -> KernelMetrics {
        // A signature on P-256 shares what it costs with up to four groups of lanes.
        let bounds: Vec<u64> = (1..=LANES as u64).chain([16, 24, P256_MAX as u64]).collect();
        let mut operations = |work| {
            ["lanes", "aws-lc"].map(|by| {
                let help = "Private-key operations on P-256 and with RSA, by what did them.";
                r.counter("propylon_keyserver_operations_total", help, &[("work", work), ("by", by)])
            })
        };
        let operations = ["p256", "rsa"].map(&mut operations);
        let checks = ["right", "wrong"].map(|outcome| {
            let help = "Results of the lanes that AWS-LC was asked about, too.";
            r.counter("propylon_keyserver_checks_total", help, &[("outcome", outcome)])
        });
        let kernels = USED.map(|(kernel, _)| {
            let help = "1 while a kernel is wanted, tested, trusted and in use.";
            r.gauge("propylon_keyserver_kernel", help, &[("kernel", kernel.name())])
        });
        let help = "Operations that were done together, by work; those of one are done by AWS-LC.";
        let sizes = r.histogram("propylon_keyserver_batch_size", help, &[("work", "rsa")], &bounds, 1.0);
        let p256_sizes = r.histogram("propylon_keyserver_batch_size", help, &[("work", "p256")], &bounds, 1.0);
        let help = "RSA results of the lanes that did not lead back to their input; AWS-LC did them again.";
        let bad_lanes = r.counter("propylon_keyserver_bad_lanes_total", help, &[]);
        let help = "Threads whose working memory could not be locked into memory.";
        let swappable = r.gauge("propylon_keyserver_swappable", help, &[]);
        KernelMetrics { sizes, p256_sizes, operations, bad_lanes, checks, swappable, kernels }
    }

    /// Reports the kernels' states; called by the main thread.
    pub fn report_states(&self, column: &Column, kernels: &Kernels) {
        for (gauge, (kernel, _)) in self.kernels.iter().zip(USED) {
            column.set(*gauge, i64::from(kernels.state(kernel) == KernelState::Used));
        }
    }

    /// Reports a thread's counts since `seen`, with the number of its operations on P-256 and with RSA.
    pub fn report(&self, column: &Column, seen: &mut Seen, p256: u64, rsa: u64) {
        let Some(now) = batch::counts() else {
            for ([_, by_awslc], done) in self.operations.iter().zip([p256, rsa]) {
                column.add(*by_awslc, done);
            }
            return;
        };
        let before = std::mem::replace(&mut seen.0, now);
        for (([in_lanes, by_awslc], done), work) in
            self.operations.iter().zip([p256, rsa]).zip([Work::P256Signature, Work::Rsa])
        {
            let lanes = now.in_lanes[work as usize] - before.in_lanes[work as usize];
            column.add(*in_lanes, lanes);
            column.add(*by_awslc, done.saturating_sub(lanes));
        }
        let sizes = |histogram: Histogram, now: &[u64], before: &[u64]| {
            for ((size, now), before) in (1..).zip(now).zip(before).filter(|((_, now), before)| now > before) {
                column.observe_many(histogram, size, now - before);
            }
        };
        sizes(self.sizes, &now.sizes[0], &before.sizes[0]);
        sizes(self.p256_sizes, &now.p256_sizes, &before.p256_sizes);
        column.add(self.bad_lanes, now.bad_lanes - before.bad_lanes);
        column.add(self.checks[0], now.checks_passed - before.checks_passed);
        column.add(self.checks[1], now.checks_failed - before.checks_failed);
        column.set(self.swappable, i64::from(!now.is_locked));
    }
}

#[cfg(test)]
mod tests {
    use propylon_crypto::{Hash, PrivateKey, Scheme};
    use propylon_metrics::Store;

    use super::*;

    /// Signs turns of so many on a thread of its own, as one of the links does, and returns what was counted.
    fn signed(kernels: &Kernels, turns: &[usize]) -> (Arc<Store>, KernelMetrics) {
        let mut registry = Registry::new();
        let metrics = KernelMetrics::register(&mut registry);
        let store = registry.build(1);
        let column = Store::column(&store, 0);
        let pair = rcgen::KeyPair::generate().expect("a key");
        let key = PrivateKey::from_der(pair.serialized_der()).expect("a key that can be read");
        std::thread::scope(|scope| {
            let (metrics, column) = (&metrics, column);
            scope.spawn(move || {
                kernels.install(Role::Links);
                let mut seen = Seen::default();
                metrics.report(&column, &mut seen, 0, 0);
                for turn in turns {
                    let job = |_| key.job(Scheme::Ecdsa(Hash::Sha256), &[7; 32]).expect("a job");
                    let outcomes = run_together((0..*turn).map(job).collect());
                    metrics.report(&column, &mut seen, *turn as u64, 0);
                    assert!(outcomes.iter().all(Result::is_ok));
                }
            });
        });
        (store, metrics)
    }

    #[test]
    fn every_signature_is_counted_once_by_what_made_it() {
        for ecdsa in [true, false] {
            let kernels = Kernels::start(ecdsa, true);
            let is_used = kernels.state(Kernel::P256) == KernelState::Used;
            assert!(ecdsa || kernels.state(Kernel::P256) == KernelState::TurnedOff);
            let (store, metrics) = signed(&kernels, &[1, 32, 1, 5, 61]);
            let [p256, rsa] = metrics.operations.map(|counters| counters.map(|counter| store.count(counter)));
            // Operations that are alone are AWS-LC's.
            assert_eq!((p256, rsa), (if is_used { [98, 2] } else { [0, 100] }, [0, 0]));
            assert_eq!(store.distribution(metrics.p256_sizes).count, if is_used { 6 } else { 0 });
        }
    }
}

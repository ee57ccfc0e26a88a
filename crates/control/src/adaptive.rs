//! Limits of requests at backends that go by how long answers take: `circuit.adaptive`. Workers count as they do for
//! all backends; the main thread looks at their counts and moves the limit (`docs/decisions/0067-adaptive-limits.md`).

use std::collections::HashMap;
use std::time::Instant;

use propylon_config::Backend;
use propylon_http::fault::Fault;
use propylon_metrics::{Column, Store};
use propylon_observe::telemetry::{BackendHandles, Telemetry};
use propylon_policy::gradient::{Bounds, Gradient, Window};
use propylon_proxy::snapshot::Snapshot;

/// Limits by the names of their backends.
#[derive(Default)]
pub struct AdaptiveLimits {
    known: HashMap<String, Known>,
    looked: Option<Instant>,
}

struct Known {
    gradient: Gradient,
    /// Counts of the metrics at the last look.
    seen: Counts,
}

#[derive(Clone, Copy)]
struct Counts {
    answers: u64,
    waited_us: u64,
    failures: u64,
    refused: u64,
}

impl Counts {
    fn of(handles: &BackendHandles, store: &Store) -> Counts {
        let first_bytes = store.distribution(handles.backend.first_byte_duration);
        let failures = handles.servers.iter().map(|server| store.count(server.failures)).sum();
        let refused = store.count(handles.backend.queue_refused.of(Fault::CircuitOpen));
        Counts { answers: first_bytes.count, waited_us: first_bytes.sum, failures, refused }
    }

    /// Events since. Counts of servers that a reload has taken away are missing: then there is none.
    fn since(&self, earlier: &Counts, elapsed_us: u64, taken: u32) -> Window {
        Window {
            elapsed_us,
            answers: self.answers.saturating_sub(earlier.answers),
            waited_us: self.waited_us.saturating_sub(earlier.waited_us),
            failures: self.failures.saturating_sub(earlier.failures),
            refused: self.refused.saturating_sub(earlier.refused),
            taken,
        }
    }
}

impl AdaptiveLimits {
    /// Looks at all backends, and moves the limits of those that have one of this kind. To be called by the thread that
    /// puts configurations into effect.
    pub fn look(&mut self, snapshot: &Snapshot, telemetry: &Telemetry, (store, column): (&Store, &Column)) {
        let now = Instant::now();
        let elapsed_us = self.looked.replace(now).map_or(0, |looked| now.duration_since(looked).as_micros() as u64);
        let backends = &snapshot.config.backends;
        self.known.retain(|name, _| backends.iter().any(|backend| backend.name == *name && backend.circuit.adaptive));
        for (index, backend) in backends.iter().enumerate() {
            let Some(handles) = telemetry.backend(backend) else { continue };
            let credits = snapshot.circuit(index);
            let is_floored = match backend.circuit.adaptive_bounds() {
                None => false,
                Some((min, max)) => {
                    let counts = Counts::of(&handles, store);
                    let known = self.known(backend, Bounds { min, max }, (credits.limit(), counts));
                    let window = counts.since(&known.seen, elapsed_us, credits.taken());
                    known.seen = counts;
                    let limit = known.gradient.look(&window, fastrand::u64(..));
                    if limit != credits.limit() {
                        credits.set_limit(limit);
                    }
                    known.gradient.is_floored()
                }
            };
            let limit = if backend.circuit.has_limit() { credits.limit().into() } else { 0 };
            column.set(handles.backend.circuit_limit, limit);
            column.set(handles.backend.circuit_floored, is_floored.into());
        }
    }

    fn known(&mut self, backend: &Backend, bounds: Bounds, (limit, seen): (u32, Counts)) -> &mut Known {
        let known = self.known.entry(backend.name.clone());
        let known = known.or_insert_with(|| Known { gradient: Gradient::new(bounds, limit), seen });
        known.gradient.set_bounds(bounds);
        known
    }
}

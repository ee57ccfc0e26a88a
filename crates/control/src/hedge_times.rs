//! Second attempts by a percentile (`hedge.after` of routes): workers count what servers took, and the main thread says
//! once a second from when on one is late (`docs/decisions/0065-per-route.md`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use propylon_metrics::Column;
use propylon_observe::telemetry::Telemetry;
use propylon_policy::first_bytes::{FirstBytes, Recent};
use propylon_proxy::snapshot::Snapshot;

/// Times after which servers are late, by the names of their backends.
#[derive(Default)]
pub struct HedgeTimes {
    known: HashMap<String, Known>,
    looked: Option<Instant>,
}

struct Known {
    first_bytes: Arc<FirstBytes>,
    recent: Recent,
    /// A route goes by it.
    is_used: bool,
}

impl HedgeTimes {
    /// Looks at what was counted, has workers go by it, and shows it. To be called by one thread, once a second.
    pub fn look(&mut self, snapshot: &Snapshot, telemetry: &Telemetry, column: &Column) {
        let now = Instant::now();
        let elapsed = self.looked.replace(now).map_or(Duration::ZERO, |looked| now.duration_since(looked));
        let hedged: Vec<_> = snapshot.config.hedged_by_percentile().into_iter().collect();
        let backends = &snapshot.config.backends;
        self.known.retain(|name, _| backends.iter().any(|backend| backend.name == *name));
        // Times of then say nothing once another configuration goes by them again.
        for (name, known) in &mut self.known {
            if known.is_used && !hedged.iter().any(|(id, _)| backends[id.0].name == *name) {
                (known.is_used, known.recent) = (false, Recent::default());
                known.first_bytes.publish(&known.recent);
            }
        }
        for of_backend in hedged.chunk_by(|one, other| one.0 == other.0) {
            let id = of_backend[0].0;
            // No worker has begun to count before it has the configuration.
            let Some(first_bytes) = snapshot.first_bytes(id) else { continue };
            let places: Vec<usize> = of_backend.iter().map(|(_, percentile)| percentile.place()).collect();
            let name = &backends[id.0].name;
            let known = self.known.entry(name.clone()).or_insert_with(|| Known::new(first_bytes));
            if !Arc::ptr_eq(&known.first_bytes, first_bytes) {
                *known = Known::new(first_bytes);
            }
            if !std::mem::replace(&mut known.is_used, true) {
                known.recent = Recent::after(first_bytes.counts());
            }
            known.recent.look(&first_bytes.counts(), elapsed, &places);
            first_bytes.publish(&known.recent);
            for (_, percentile) in of_backend {
                let after = first_bytes.late_after(percentile.place()).unwrap_or_default();
                if let Some(gauge) = telemetry.hedge_after(name, *percentile) {
                    column.set(*gauge, after.as_micros() as i64);
                }
            }
        }
    }
}

impl Known {
    fn new(first_bytes: &Arc<FirstBytes>) -> Known {
        Known { first_bytes: Arc::clone(first_bytes), recent: Recent::default(), is_used: true }
    }
}

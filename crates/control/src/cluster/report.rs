//! Metrics of the cluster, of announced addresses and of flows, brought up to date once a second.

use std::collections::BTreeMap;
use std::time::Instant;

use propylon_cluster::{FlowsStatus, Standing};
use propylon_metrics::Column;
use propylon_observe::telemetry::{AnnounceMetrics, ClusterMetrics, FlowsMetrics};
use serde_json::Value;

/// Counts and times as of the last second.
#[derive(Default)]
pub struct Reports {
    away_since: Option<Instant>,
    stopped_since: Option<Instant>,
    /// Packets by outcome that `propylon-flows` has told of; `None` before the first time, since some may be from
    /// before this process began.
    packets: Option<BTreeMap<String, u64>>,
}

impl Reports {
    pub fn cluster(&mut self, column: &Column, metrics: &ClusterMetrics, standing: &Standing, now: Instant) {
        let whole = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        column.set(metrics.connected, standing.is_connected.into());
        column.set(metrics.away, since(&mut self.away_since, !standing.is_connected, now));
        column.set(metrics.leader, standing.is_leader.into());
        column.set(metrics.engines, whole(standing.engines));
        column.set(metrics.serial, i64::try_from(standing.serial).unwrap_or(i64::MAX));
        column.set(metrics.problems, whole(standing.problems));
        column.set(metrics.name_taken, standing.is_name_taken.into());
        column.set(metrics.draining, standing.is_draining.into());
        column.set(metrics.buckets, whole(standing.buckets.unwrap_or(0)));
        column.set(metrics.engines_wanted, standing.wanted.as_ref().map_or(0, |(wanted, ..)| i64::from(*wanted)));
    }

    pub fn flows(&mut self, column: &Column, metrics: &FlowsMetrics, status: Option<FlowsStatus>, now: Instant) {
        let generation = status.as_ref().map_or(0, |status| status.generation);
        column.set(metrics.generation, i64::try_from(generation).unwrap_or(i64::MAX));
        column.set(metrics.stopped, since(&mut self.stopped_since, generation == 0, now));
        let Some(status) = status else { return };
        for (outcome, count) in &status.counters {
            let Some(seen) = &self.packets else { break };
            let seen = seen.get(outcome).copied().unwrap_or(0);
            // A program that was loaded anew counts from zero.
            let fresh = if *count < seen { *count } else { count - seen };
            if let Some(counter) = metrics.packets(outcome).filter(|_| fresh > 0) {
                column.add(counter, fresh);
            }
        }
        self.packets = Some(status.counters);
    }
}

/// `status` is the guardian's, with the addresses' state and the last error; `None` if there is no guardian.
pub fn announce(column: &Column, metrics: &AnnounceMetrics, status: Option<&Value>) {
    let is_failing = status.is_none_or(|status| status["error"].is_string());
    column.set(metrics.announced, status.is_some_and(|status| status["announced"] == true).into());
    column.set(metrics.failing, is_failing.into());
}

/// Whole seconds for which something has been so without a break.
fn since(began: &mut Option<Instant>, is_so: bool, now: Instant) -> i64 {
    *began = is_so.then(|| began.unwrap_or(now));
    began.map_or(0, |began| now.saturating_duration_since(began).as_secs() as i64)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use propylon_config::Source;
    use propylon_metrics::Store;
    use propylon_observe::telemetry::Telemetry;
    use serde_json::json;

    use super::*;

    fn metrics() -> (Telemetry, Arc<Store>) {
        let text = "[cluster]\nname = \"edge\"\nengine = \"e1\"\nendpoints = [\"http://127.0.0.1:2379\"]\n\
                    sealing_keys = [\"key\"]\nvips = [\"10.0.0.9\"]\n[cluster.flows]\n\
                    [announce]\nprotocols = [\"vip\"]\n\
                    [listener.web]\nbind = \"127.0.0.1:0\"\n[[route]]\nrespond = { status = 204 }\n";
        let source = Source::of(Path::new("propylon.toml"), text.into()).expect("text");
        let parsed = propylon_config::parse(&source);
        let (config, _) = parsed.unwrap_or_else(|problems| panic!("{problems:?}"));
        Telemetry::new(&config, 1)
    }

    fn status(generation: u64, counters: &[(&str, u64)]) -> Option<FlowsStatus> {
        let counters = counters.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        Some(FlowsStatus { generation, counters, ..FlowsStatus::default() })
    }

    #[test]
    fn an_engine_without_etcd_counts_the_seconds_until_it_answers() {
        let (telemetry, store) = metrics();
        let (column, metrics) = (Store::column(&store, 0), telemetry.cluster.expect("metrics"));
        let (mut reports, began) = (Reports::default(), Instant::now());
        let mut report = |is_connected, seconds| {
            let standing = Standing { is_connected, serial: 7, engines: 3, ..Standing::default() };
            reports.cluster(&column, &metrics, &standing, began + Duration::from_secs(seconds));
            (store.level(metrics.connected), store.level(metrics.away))
        };
        assert_eq!([report(false, 0), report(false, 4), report(true, 5)], [(0, 0), (0, 4), (1, 0)]);
        assert_eq!(report(false, 9), (0, 0), "a new absence");
        assert_eq!((store.level(metrics.serial), store.level(metrics.engines)), (7, 3));
        assert_eq!(store.level(metrics.engines_wanted), 0);
    }

    #[test]
    fn packets_count_from_when_this_process_first_hears_of_them() {
        let (telemetry, store) = metrics();
        let (column, metrics) = (Store::column(&store, 0), telemetry.flows.expect("metrics"));
        let (mut reports, now) = (Reports::default(), Instant::now());
        let mut report = |status| {
            reports.flows(&column, &metrics, status, now);
            let of = |outcome| store.count(metrics.packets(outcome).expect("an outcome"));
            (store.level(metrics.generation), of("forwarded_owner"), of("dropped_failed"))
        };
        assert_eq!(report(None), (0, 0, 0));
        assert_eq!(report(status(4, &[("forwarded_owner", 100), ("dropped_failed", 9)])), (4, 0, 0));
        assert_eq!(report(status(4, &[("forwarded_owner", 130), ("dropped_failed", 10)])), (4, 30, 1));
        assert_eq!(report(None), (0, 30, 1), "the process is away");
        let unheard_of = ("dropped_by_a_later_version", 5);
        assert_eq!(report(status(5, &[("forwarded_owner", 131), ("dropped_failed", 10), unheard_of])), (5, 31, 1));
        assert_eq!(report(status(5, &[("forwarded_owner", 2), ("dropped_failed", 0)])), (5, 33, 1), "loaded anew");
    }

    #[test]
    fn an_announcement_fails_where_bird_refuses_and_where_nobody_speaks_to_it() {
        let (telemetry, store) = metrics();
        let (column, metrics) = (Store::column(&store, 0), telemetry.announce.expect("metrics"));
        let report = |status: Option<Value>| {
            announce(&column, &metrics, status.as_ref());
            (store.level(metrics.announced), store.level(metrics.failing))
        };
        assert_eq!(report(Some(json!({ "announced": true, "error": null }))), (1, 0));
        assert_eq!(report(Some(json!({ "announced": true, "error": "refused" }))), (1, 1));
        assert_eq!(report(Some(Value::Null)), (0, 0), "BIRD has not been asked yet");
        assert_eq!(report(None), (0, 1));
    }
}

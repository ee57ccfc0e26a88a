//! Stats on their way from one process to another, with nothing lost, and nothing taken that makes no sense.

use super::{ErrorKind, Negotiated, latency_histogram};
use crate::quantity::Label;
use hdrhistogram::Histogram;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};
use std::collections::BTreeMap;

/// More kinds of handshakes than one server has by far.
const HANDSHAKE_KINDS_MAX: usize = 1000;

pub fn negotiated<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(Negotiated, u64)>, D::Error> {
    let kinds = Vec::deserialize(deserializer)?;
    match kinds.len() {
        0..=HANDSHAKE_KINDS_MAX => Ok(kinds),
        many => Err(D::Error::custom(format!("{many} kinds of handshakes"))),
    }
}

/// Errors of loads; those that a command has beyond them stay in its process.
pub fn errors<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<Label, u64>, D::Error> {
    let errors = BTreeMap::<Label, u64>::deserialize(deserializer)?;
    match errors.keys().find(|name| ErrorKind::ALL.iter().all(|kind| kind.name() != **name)) {
        Some(name) => Err(D::Error::custom(format!("an unknown kind of error, {name:?}"))),
        None => Ok(errors),
    }
}

/// A histogram as nanoseconds (the highest of a bucket) and how many samples fell into that bucket.
pub mod latency {
    use super::*;

    pub fn serialize<S: Serializer>(histogram: &Histogram<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        let buckets = histogram.iter_recorded();
        serializer.collect_seq(buckets.map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value())))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Histogram<u64>, D::Error> {
        let mut histogram = latency_histogram();
        for (nanoseconds, count) in Vec::<(u64, u64)>::deserialize(deserializer)? {
            let recorded = histogram.record_n(nanoseconds, count);
            recorded.map_err(|error| D::Error::custom(format!("a latency of {nanoseconds} ns: {error}")))?;
        }
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ErrorKind, LoadStats, Negotiated};
    use serde_json::json;
    use std::time::Duration;

    /// Stats as they are after the wire.
    fn received(stats: &LoadStats) -> LoadStats {
        serde_json::from_str(&serde_json::to_string(stats).unwrap()).unwrap()
    }

    #[test]
    fn stats_merged_are_the_stats_of_all_samples() {
        let seed = 7;
        let mut random = fastrand::Rng::with_seed(seed);
        let mut whole = LoadStats::new();
        let mut parts = [LoadStats::new(), LoadStats::new(), LoadStats::new()];
        for sample in 0..60_000_u64 {
            // From a nanosecond to beyond the hour that the histogram ends with, all magnitudes alike.
            let nanoseconds = random.u64(..) >> random.u32(20..63);
            let part = &mut parts[(sample % 3) as usize];
            for stats in [&mut whole, part] {
                stats.record_latency(Duration::from_nanos(nanoseconds));
                stats.done += 1;
                stats.moved.down += sample;
                stats.moved.up += 1;
                stats.retried += sample % 7;
                stats.record_handshake(Negotiated {
                    version: rustls::ProtocolVersion::TLSv1_3,
                    suite: rustls::CipherSuite::TLS13_AES_128_GCM_SHA256,
                    group: (sample % 2 == 0).then_some(rustls::NamedGroup::X25519),
                });
                if sample % 100 == 0 {
                    stats.record_error(ErrorKind::ALL[(sample / 100) as usize % ErrorKind::ALL.len()], || {
                        "a test".to_owned()
                    });
                }
            }
        }
        let mut merged = LoadStats::new();
        for part in &parts {
            merged.merge(received(part));
        }
        assert!(merged == LoadStats { first_error: merged.first_error.clone(), ..whole.clone() }, "seed {seed}");
        for quantile in [0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0] {
            assert_eq!(merged.latency.value_at_quantile(quantile), whole.latency.value_at_quantile(quantile));
        }
        assert_eq!((merged.latency.mean(), merged.latency.max()), (whole.latency.mean(), whole.latency.max()));
    }

    /// The largest that can be: it has to fit into one frame of 16 MiB.
    #[test]
    fn stats_with_something_in_every_bucket_is_below_two_megabytes() {
        let mut stats = LoadStats::new();
        let mut nanoseconds = 1;
        while nanoseconds <= stats.latency.high() {
            stats.latency.record_n(nanoseconds, 1_000_000_000).unwrap();
            nanoseconds = stats.latency.next_non_equivalent(nanoseconds);
        }
        assert!(stats.latency.iter_recorded().count() > 30_000);
        assert!(serde_json::to_vec(&stats).unwrap().len() < 2_000_000);
        assert!(received(&stats) == stats);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let good = serde_json::to_value(LoadStats::new()).unwrap();
        let refused = |field: &str, value: serde_json::Value| {
            let mut stats = good.clone();
            stats[field] = value;
            serde_json::from_value::<LoadStats>(stats).is_err()
        };
        assert!(refused("errors", json!({"gremlins": 1})) && refused("latency", json!([[10, 1], [u64::MAX, 1]])));
        assert!(refused("negotiated", json!(vec![[json!([1, 2, 3]), json!(1)]; 1001])) && refused("more", json!(1)));
        assert!(!refused("errors", json!({"tls": 1})));
    }
}

//! A tally on its way from one process to another, with nothing lost: every bucket of its histogram travels.

use super::{ErrorKind, Moved, Negotiated, Tally};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// More kinds of handshakes than one server has by far.
const HANDSHAKE_KINDS_MAX: usize = 1000;

/// The contents of a `Tally`, in a form that goes over a wire.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortableTally {
    pub done: u64,
    pub body_bytes: u64,
    pub moved: Moved,
    pub resumed: u64,
    pub connections: u64,
    pub unanswered: u64,
    pub asked_again: u64,
    /// Handshakes by the numbers of their version, suite and group (IANA's), and how many there were of each.
    pub negotiated: Vec<(u16, u16, Option<u16>, u64)>,
    /// Errors by the kind's name.
    pub errors: BTreeMap<String, u64>,
    pub first_error: Option<String>,
    /// Nanoseconds (the highest of the bucket's) and how many samples fell into that bucket.
    pub latency: Vec<(u64, u64)>,
    pub elapsed: Duration,
}

impl Tally {
    /// Every field is named, so that a new one cannot be forgotten here.
    pub fn portable(&self) -> PortableTally {
        let Self {
            done,
            body_bytes,
            moved,
            resumed,
            connections,
            unanswered,
            asked_again,
            negotiated,
            errors: _,
            named_errors,
            first_error,
            latency,
            elapsed,
        } = self;
        let numbers = |(kind, count): &(Negotiated, u64)| {
            (kind.version.into(), kind.suite.into(), kind.group.map(u16::from), *count)
        };
        let errors = ErrorKind::ALL.iter().filter(|kind| self.errors(**kind) > 0);
        PortableTally {
            done: *done,
            body_bytes: *body_bytes,
            moved: *moved,
            resumed: *resumed,
            connections: *connections,
            unanswered: *unanswered,
            asked_again: *asked_again,
            negotiated: negotiated.iter().map(numbers).collect(),
            // Agents run no command that has errors of its own; if one did, the other side would refuse them aloud.
            errors: errors
                .map(|kind| (kind.name(), self.errors(*kind)))
                .chain(named_errors.clone())
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
            first_error: first_error.clone(),
            latency: latency
                .iter_recorded()
                .map(|bucket| (bucket.value_iterated_to(), bucket.count_at_value()))
                .collect(),
            elapsed: *elapsed,
        }
    }

    /// Adds another's. Nothing is added if the other makes no sense.
    pub fn absorb(&mut self, other: &PortableTally) -> Result<(), String> {
        self.merge(other.tally()?);
        Ok(())
    }
}

impl PortableTally {
    fn tally(&self) -> Result<Tally, String> {
        let Self {
            done,
            body_bytes,
            moved,
            resumed,
            connections,
            unanswered,
            asked_again,
            negotiated,
            errors: kinds,
            first_error,
            latency: buckets,
            elapsed,
        } = self;
        let Tally { mut errors, mut latency, .. } = Tally::new();
        for (name, count) in kinds {
            let kind = ErrorKind::ALL.iter().find(|kind| kind.name() == name);
            let kind = kind.ok_or_else(|| format!("an unknown kind of error, \"{name}\""))?;
            errors[*kind as usize] = *count;
        }
        for &(nanoseconds, count) in buckets {
            latency.record_n(nanoseconds, count).map_err(|error| format!("a latency of {nanoseconds} ns: {error}"))?;
        }
        if negotiated.len() > HANDSHAKE_KINDS_MAX {
            return Err(format!("{} kinds of handshakes", negotiated.len()));
        }
        let kinds = negotiated.iter().map(|&(version, suite, group, count)| {
            (Negotiated { version: version.into(), suite: suite.into(), group: group.map(Into::into) }, count)
        });
        Ok(Tally {
            done: *done,
            body_bytes: *body_bytes,
            moved: *moved,
            resumed: *resumed,
            connections: *connections,
            unanswered: *unanswered,
            asked_again: *asked_again,
            negotiated: kinds.collect(),
            errors,
            named_errors: BTreeMap::new(),
            first_error: first_error.clone(),
            latency,
            elapsed: *elapsed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_merged_are_the_tally_of_all_samples() {
        let seed = 7;
        let mut random = fastrand::Rng::with_seed(seed);
        let mut whole = Tally::new();
        let mut parts = [Tally::new(), Tally::new(), Tally::new()];
        for sample in 0..60_000_u64 {
            // From a nanosecond to beyond the hour that the histogram ends with, all magnitudes alike.
            let nanoseconds = random.u64(..) >> random.u32(20..63);
            let part = &mut parts[(sample % 3) as usize];
            for tally in [&mut whole, part] {
                tally.record_latency(Duration::from_nanos(nanoseconds));
                tally.done += 1;
                tally.moved.down += sample;
                tally.moved.up += 1;
                tally.asked_again += sample % 7;
                tally.record_handshake(Negotiated {
                    version: rustls::ProtocolVersion::TLSv1_3,
                    suite: rustls::CipherSuite::TLS13_AES_128_GCM_SHA256,
                    group: (sample % 2 == 0).then_some(rustls::NamedGroup::X25519),
                });
                if sample % 100 == 0 {
                    tally.record_error(ErrorKind::ALL[(sample / 100) as usize % ErrorKind::ALL.len()], || {
                        "a test".to_owned()
                    });
                }
            }
        }
        let mut merged = Tally::new();
        for part in &parts {
            // As it is after the wire.
            let json = serde_json::to_string(&part.portable()).unwrap();
            merged.absorb(&serde_json::from_str(&json).unwrap()).unwrap();
        }
        assert!(merged.latency == whole.latency, "seed {seed}");
        assert_eq!(merged.portable(), PortableTally { first_error: merged.first_error.clone(), ..whole.portable() });
        for quantile in [0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999, 1.0] {
            assert_eq!(merged.latency.value_at_quantile(quantile), whole.latency.value_at_quantile(quantile));
        }
        assert_eq!((merged.latency.mean(), merged.latency.max()), (whole.latency.mean(), whole.latency.max()));
    }

    /// The largest that can be: it has to fit into one frame of 16 MiB.
    #[test]
    fn a_tally_with_something_in_every_bucket_is_below_two_megabytes() {
        let mut tally = Tally::new();
        let mut nanoseconds = 1;
        while nanoseconds <= tally.latency.high() {
            tally.latency.record_n(nanoseconds, 1_000_000_000).unwrap();
            nanoseconds = tally.latency.next_non_equivalent(nanoseconds);
        }
        let portable = tally.portable();
        assert!(portable.latency.len() > 30_000, "{}", portable.latency.len());
        assert!(serde_json::to_vec(&portable).unwrap().len() < 2_000_000);
        let mut merged = Tally::new();
        merged.absorb(&portable).unwrap();
        assert!(merged.latency == tally.latency);
    }

    #[test]
    fn what_makes_no_sense_adds_nothing() {
        let errors = BTreeMap::from([("gremlins".to_owned(), 1)]);
        let mut tally = Tally::new();
        assert!(tally.absorb(&PortableTally { done: 1, errors, ..PortableTally::default() }).is_err());
        let latency = vec![(10, 1), (u64::MAX, 1)];
        assert!(tally.absorb(&PortableTally { done: 1, latency, ..PortableTally::default() }).is_err());
        assert_eq!((tally.done, tally.latency.len()), (0, 0));
    }
}

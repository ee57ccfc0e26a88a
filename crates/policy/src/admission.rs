//! Whether a core takes one more handshake: how many are in progress, by whom, and how long the next would wait.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

/// Limits of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Handshakes in progress at once, from the accept to the end of the handshake.
    pub handshakes: usize,
    /// Limit on requests of one source, out of these.
    pub per_source: PerSource,
    /// The longest that a new handshake may have to expect to wait for its turn.
    pub wait_max: Duration,
}

/// When a source is held to its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerSource {
    Always(usize),
    /// While the core has more than half of what it allows: until then nobody is kept from anything.
    WhenCrowded(usize),
}

/// Why a handshake is not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The expected wait is too long.
    Queue,
    /// The core has as many as it allows.
    Core,
    /// The source has as many as it is allowed.
    Source,
}

/// An IPv4 address, or the /64 of an IPv6 address, which is what one subscriber has at the least (RFC 6177).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    V4(u32),
    V6(u64),
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Source {
        match address.to_canonical() {
            IpAddr::V4(address) => Source::V4(address.to_bits()),
            IpAddr::V6(address) => Source::V6((address.to_bits() >> 64) as u64),
        }
    }
}

/// One core's handshakes in progress. Its table has as many entries as there are of them, at the most; a tree rather than
/// a hash table, since the keys are the peers' choice.
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    in_progress: usize,
    by_source: BTreeMap<Source, usize>,
}

impl Admission {
    #[must_use]
    pub fn new(limits: Limits) -> Admission {
        Admission { limits, in_progress: 0, by_source: BTreeMap::new() }
    }

    /// Whether one more may begin, when it would have to wait for so long. Changes nothing.
    pub fn check(&self, peer: IpAddr, expected_wait: Duration) -> Result<(), Refusal> {
        if self.in_progress >= self.limits.handshakes {
            return Err(Refusal::Core);
        }
        let allowed = match self.limits.per_source {
            PerSource::Always(count) => count,
            PerSource::WhenCrowded(count) if self.in_progress > self.limits.handshakes / 2 => count,
            PerSource::WhenCrowded(_) => usize::MAX,
        };
        // A source at its limit is among those in progress: most often there is nothing to look up.
        if allowed <= self.in_progress && self.by_source.get(&peer.into()).is_some_and(|count| *count >= allowed) {
            return Err(Refusal::Source);
        }
        if expected_wait > self.limits.wait_max {
            return Err(Refusal::Queue);
        }
        Ok(())
    }

    pub fn begin(&mut self, peer: IpAddr) {
        self.in_progress += 1;
        *self.by_source.entry(peer.into()).or_default() += 1;
    }

    /// Once for each [`Admission::begin`].
    pub fn end(&mut self, peer: IpAddr) {
        let source = Source::from(peer);
        let Some(count) = self.by_source.get_mut(&source) else {
            debug_assert!(false, "a handshake ends that has not begun");
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.by_source.remove(&source);
        }
        self.in_progress -= 1;
    }

    #[must_use]
    pub fn in_progress(&self) -> usize {
        self.in_progress
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_WAIT: Duration = Duration::ZERO;

    fn limits(per_source: PerSource) -> Limits {
        Limits { handshakes: 16, per_source, wait_max: Duration::from_secs(2) }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_source_alone_is_held_to_its_share_only_when_the_core_is_crowded() {
        let mut admission = Admission::new(limits(PerSource::WhenCrowded(4)));
        let (one, other) = (ip("192.0.2.1"), ip("192.0.2.2"));
        for _ in 0..9 {
            assert_eq!(admission.check(one, NO_WAIT), Ok(()));
            admission.begin(one);
        }
        assert_eq!(admission.check(one, NO_WAIT), Err(Refusal::Source));
        assert_eq!(admission.check(other, NO_WAIT), Ok(()));
        admission.end(one);
        assert_eq!(admission.check(one, NO_WAIT), Ok(()));
    }

    #[test]
    fn a_share_that_was_asked_for_always_holds() {
        let mut admission = Admission::new(limits(PerSource::Always(2)));
        admission.begin(ip("192.0.2.1"));
        assert_eq!(admission.check(ip("192.0.2.1"), NO_WAIT), Ok(()));
        admission.begin(ip("192.0.2.1"));
        assert_eq!(admission.check(ip("192.0.2.1"), NO_WAIT), Err(Refusal::Source));
        assert_eq!(admission.check(ip("::ffff:192.0.2.1"), NO_WAIT), Err(Refusal::Source));
        assert_eq!(admission.check(ip("192.0.2.3"), NO_WAIT), Ok(()));
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_source() {
        let mut admission = Admission::new(limits(PerSource::Always(1)));
        admission.begin(ip("2001:db8:0:1::1"));
        assert_eq!(admission.check(ip("2001:db8:0:1:ffff::2"), NO_WAIT), Err(Refusal::Source));
        assert_eq!(admission.check(ip("2001:db8:0:2::1"), NO_WAIT), Ok(()));
    }

    #[test]
    fn a_handshake_that_would_wait_for_too_long_is_not_begun() {
        let admission = Admission::new(limits(PerSource::Always(1)));
        assert_eq!(admission.check(ip("192.0.2.1"), Duration::from_millis(2001)), Err(Refusal::Queue));
        assert_eq!(admission.check(ip("192.0.2.1"), Duration::from_secs(2)), Ok(()));
    }

    #[test]
    fn no_bound_is_ever_exceeded_and_the_table_empties_for_any_seed() {
        for seed in 0..100 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut admission = Admission::new(limits(PerSource::Always(5)));
            let mut begun: Vec<IpAddr> = Vec::new();
            for _ in 0..2000 {
                let peer = ip(&format!("192.0.2.{}", random.u8(0..6)));
                if random.bool() && admission.check(peer, NO_WAIT).is_ok() {
                    admission.begin(peer);
                    begun.push(peer);
                } else if !begun.is_empty() && random.bool() {
                    admission.end(begun.swap_remove(random.usize(..begun.len())));
                }
                assert!(admission.in_progress() <= 16, "seed {seed}");
                assert_eq!(admission.in_progress(), begun.len());
                let of_peer = begun.iter().filter(|other| **other == peer).count();
                assert!(of_peer <= 5, "seed {seed}: {of_peer}");
            }
            begun.into_iter().for_each(|peer| admission.end(peer));
            assert!(admission.by_source.is_empty(), "seed {seed}");
        }
    }
}

//! A mirror of the cluster in this engine: the small values in etcd, as they were read and watched. Secrets are not in
//! it.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use serde::Deserialize;

use crate::keys::{Key, Keys};
use crate::known_table::KnownTable;
use crate::percent::WeightPercent;
use crate::records::{
    Candidate, CapacityRecord, ConfigRecord, DrainRecord, EngineRecord, LeaderRecord, LoadRecord, OutcomeRecord,
    Verdict, WeightRecord, read,
};

/// Problems of values that are remembered; more of them say nothing new.
const PROBLEMS_MAX: usize = 32;
/// Clocks that differ by more seconds are told of; figures that are older say nothing of a clock.
const SKEW_MAX: u64 = 5;

#[derive(Debug, Default)]
pub struct Mirror {
    pub engines: BTreeMap<String, EngineRecord>,
    pub loads: BTreeMap<String, LoadRecord>,
    /// When each engine's figures came, by this machine's clock.
    pub heard: BTreeMap<String, Instant>,
    pub drains: BTreeMap<String, DrainRecord>,
    pub weights: BTreeMap<String, WeightRecord>,
    /// Lineages whose processes have ended, by engine.
    pub deaths: BTreeMap<String, String>,
    /// With the revision at which it was made, which a leader's writes are bound to.
    pub leader: Option<(LeaderRecord, u64)>,
    pub current: Option<ConfigRecord>,
    /// With the revision of its last change.
    pub candidate: Option<(Candidate, u64)>,
    /// Verdicts by candidate, then by engine.
    verdicts: BTreeMap<String, BTreeMap<String, Verdict>>,
    pub outcome: Option<OutcomeRecord>,
    pub flows: Option<KnownTable>,
    pub capacity: Option<CapacityRecord>,
    /// Values that cannot be read, by key.
    problems: BTreeMap<String, String>,
    /// Revision at which each key was seen last.
    revisions: HashMap<String, u64>,
}

/// The subject of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    Nothing,
    Value,
    /// A secret, which is somebody else's to keep.
    Secret(String),
}

impl Mirror {
    /// Takes a value that was read or put. `created` and `modified` are revisions; older news than is known is ignored.
    pub fn put(
        &mut self,
        keys: &Keys,
        key: &str,
        value: &[u8],
        (created, modified): (u64, u64),
        now: Instant,
    ) -> Touched {
        if !self.is_news(key, modified) {
            return Touched::Nothing;
        }
        self.problems.remove(key);
        match keys.parse(key) {
            Key::Engine(name) => self.keep(key, value, |mirror| mirror.engines.entry(name.into()).or_default()),
            Key::Load(name) => {
                self.heard.insert(name.into(), now);
                self.keep(key, value, |mirror| mirror.loads.entry(name.into()).or_default());
            }
            Key::Drain(name) => self.keep(key, value, |mirror| mirror.drains.entry(name.into()).or_default()),
            Key::Weight(name) => self.keep(key, value, |mirror| mirror.weights.entry(name.into()).or_default()),
            Key::Death(name) => {
                self.deaths.insert(name.into(), String::from_utf8_lossy(value).into_owned());
            }
            Key::Leader => self.keep(key, value, |mirror| {
                let leader = mirror.leader.get_or_insert_default();
                leader.1 = created;
                &mut leader.0
            }),
            Key::Current => self.keep(key, value, |mirror| mirror.current.get_or_insert_default()),
            Key::Candidate => self.keep(key, value, |mirror| {
                let candidate = mirror.candidate.get_or_insert_default();
                candidate.1 = modified;
                &mut candidate.0
            }),
            Key::Verdict { id, engine } => self.keep(key, value, |mirror| {
                mirror.verdicts.entry(id.into()).or_default().entry(engine.into()).or_default()
            }),
            Key::Outcome => self.keep(key, value, |mirror| mirror.outcome.get_or_insert_default()),
            Key::Flows => self.keep(key, value, |mirror| mirror.flows.get_or_insert_default()),
            Key::Capacity => self.keep(key, value, |mirror| mirror.capacity.get_or_insert_default()),
            Key::Secret(name) => return Touched::Secret(name.into()),
            Key::Other => return Touched::Nothing,
        }
        Touched::Value
    }

    /// Takes note that a key was read as it was at a revision: older news of it is none.
    pub fn note(&mut self, key: &[u8], modified: u64) {
        if let Ok(key) = std::str::from_utf8(key) {
            self.is_news(key, modified);
        }
    }

    /// Takes note that a key is gone.
    pub fn delete(&mut self, keys: &Keys, key: &str, modified: u64) -> Touched {
        if !self.is_news(key, modified) {
            return Touched::Nothing;
        }
        self.problems.remove(key);
        self.revisions.remove(key);
        match keys.parse(key) {
            Key::Engine(name) => drop(self.engines.remove(name)),
            Key::Load(name) => {
                self.heard.remove(name);
                self.loads.remove(name);
            }
            Key::Drain(name) => drop(self.drains.remove(name)),
            Key::Weight(name) => drop(self.weights.remove(name)),
            Key::Death(name) => drop(self.deaths.remove(name)),
            Key::Leader => self.leader = None,
            Key::Current => self.current = None,
            Key::Candidate => self.candidate = None,
            Key::Verdict { id, engine } => {
                if let Some(verdicts) = self.verdicts.get_mut(id) {
                    verdicts.remove(engine);
                    if verdicts.is_empty() {
                        self.verdicts.remove(id);
                    }
                }
            }
            Key::Outcome => self.outcome = None,
            Key::Flows => self.flows = None,
            Key::Capacity => self.capacity = None,
            Key::Secret(name) => return Touched::Secret(name.into()),
            Key::Other => return Touched::Nothing,
        }
        Touched::Value
    }

    /// The operator's weight for an engine.
    pub fn weight(&self, engine: &str) -> WeightPercent {
        self.weights.get(engine).map(|weight| weight.percent).unwrap_or_default()
    }

    /// Verdicts on a candidate.
    pub fn verdicts(&self, id: &str) -> BTreeMap<String, Verdict> {
        self.verdicts.get(id).cloned().unwrap_or_default()
    }

    pub fn verdict(&self, id: &str, engine: &str) -> Option<&Verdict> {
        self.verdicts.get(id)?.get(engine)
    }

    /// Whether etcd has this key, in whatever state.
    pub fn is_there(&self, key: &str) -> bool {
        self.revisions.contains_key(key)
    }

    /// Revision of a value that cannot be read.
    pub fn unreadable(&self, key: &str) -> Option<u64> {
        self.revisions.get(key).copied().filter(|_| self.problems.contains_key(key))
    }

    /// Values that cannot be read, in words.
    pub fn problems(&self) -> impl Iterator<Item = &String> {
        self.problems.values()
    }

    /// Engines whose clocks differ from this one's (seconds since 1970), in words, by figures that came just now.
    pub fn skewed(&self, own: &str, clock: u64, now: Instant) -> Vec<String> {
        let mut told = Vec::new();
        for (name, load) in self.loads.iter().filter(|(_, load)| load.at > 0) {
            let Some(heard) = self.heard.get(name) else { continue };
            let age = now.saturating_duration_since(*heard).as_secs();
            let difference = clock.abs_diff(load.at.saturating_add(age));
            if age < SKEW_MAX && difference > SKEW_MAX {
                told.push(format!(
                    "the clocks of {name} and {own} differ by {difference} s: keys of tickets change by the clock; set                      both by NTP"
                ));
            }
        }
        told
    }

    fn is_news(&mut self, key: &str, modified: u64) -> bool {
        if self.revisions.get(key).is_some_and(|known| *known >= modified) {
            return false;
        }
        self.revisions.insert(key.into(), modified);
        true
    }

    /// Replaces a value. One that cannot be read leaves the one before, and is remembered.
    fn keep<T: for<'a> Deserialize<'a>>(&mut self, key: &str, value: &[u8], place: impl FnOnce(&mut Mirror) -> &mut T) {
        match read::<T>(key, value) {
            Ok(record) => *place(self) = record,
            Err(problem) if self.problems.len() < PROBLEMS_MAX => drop(self.problems.insert(key.into(), problem)),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::written;

    #[test]
    fn a_damaged_value_leaves_the_one_before_and_older_news_changes_nothing() {
        let (keys, mut mirror, now) = (Keys::of("edge"), Mirror::default(), Instant::now());
        let config = |serial| written(&ConfigRecord { serial, ..ConfigRecord::default() });
        let current = keys.current();
        assert_eq!(mirror.put(&keys, &current, &config(1), (5, 5), now), Touched::Value);
        assert_eq!(mirror.put(&keys, &current, b"{", (5, 6), now), Touched::Value);
        assert_eq!(mirror.current.as_ref().unwrap().serial, 1);
        assert_eq!(mirror.problems().count(), 1);
        assert_eq!(mirror.put(&keys, &current, &config(9), (5, 4), now), Touched::Nothing);
        assert_eq!(mirror.put(&keys, &current, &config(2), (5, 7), now), Touched::Value);
        assert_eq!((mirror.current.as_ref().unwrap().serial, mirror.problems().count()), (2, 0));
        assert_eq!(mirror.delete(&keys, &current, 8), Touched::Value);
        assert!(mirror.current.is_none());
    }

    #[test]
    fn of_a_secret_that_was_listed_only_what_came_later_is_news() {
        let (keys, mut mirror, now) = (Keys::of("edge"), Mirror::default(), Instant::now());
        let key = keys.secret("certificates/a");
        mirror.note(key.as_bytes(), 7);
        assert_eq!(mirror.put(&keys, &key, b"x", (5, 5), now), Touched::Nothing);
        assert_eq!(mirror.delete(&keys, &key, 6), Touched::Nothing);
        assert_eq!(mirror.put(&keys, &key, b"x", (7, 7), now), Touched::Nothing);
        assert_eq!(mirror.put(&keys, &key, b"x", (7, 8), now), Touched::Secret("certificates/a".into()));
    }

    #[test]
    fn a_damaged_weight_leaves_the_one_before_and_is_named() {
        let (keys, mut mirror, now) = (Keys::of("edge"), Mirror::default(), Instant::now());
        let key = keys.weight("e1");
        let percent = |percent| WeightPercent::new(percent).unwrap();
        assert_eq!(mirror.weight("e1"), percent(100));
        mirror.put(&keys, &key, br#"{"percent":25,"by":"ops","at":7}"#, (5, 5), now);
        for (revision, damaged) in [(6, r#"{"percent":1001}"#), (7, r#"{"percent":-1}"#), (8, "{}"), (9, "25")] {
            assert_eq!(mirror.put(&keys, &key, damaged.as_bytes(), (5, revision), now), Touched::Value);
            assert_eq!(mirror.weight("e1"), percent(25), "{damaged}");
            let told: Vec<&String> = mirror.problems().collect();
            assert!(told.len() == 1 && told[0].contains("weights/e1"), "{damaged}: {told:?}");
        }
        mirror.put(&keys, &key, &written(&WeightRecord { percent: percent(0), ..Default::default() }), (5, 10), now);
        assert_eq!((mirror.weight("e1"), mirror.problems().count()), (percent(0), 0));
        mirror.delete(&keys, &key, 11);
        assert_eq!(mirror.weight("e1"), percent(100));
    }

    #[test]
    fn clocks_that_differ_are_told_of_by_figures_that_are_fresh() {
        let (keys, mut mirror, began) = (Keys::of("edge"), Mirror::default(), Instant::now());
        let at = |seconds| began + std::time::Duration::from_secs(seconds);
        for (revision, name, clock) in [(1, "right", 1003), (2, "slow", 900), (3, "fast", 1100), (4, "old", 0)] {
            let load = written(&LoadRecord { at: clock, ..LoadRecord::default() });
            mirror.put(&keys, &keys.load(name), &load, (revision, revision), began);
        }
        let told = mirror.skewed("own", 1000, began);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("the clocks of fast and own differ by 100 s"), "{told:?}");
        // All clocks have gone on by now.
        assert!(mirror.skewed("own", 1004, at(4))[1].starts_with("the clocks of slow and own differ by 100 s"));
        assert!(mirror.skewed("own", 1006, at(6)).is_empty(), "an engine that is silent is not one with a wrong clock");
    }

    #[test]
    fn a_leader_is_known_with_the_revision_that_made_it_and_verdicts_by_their_candidate() {
        let (keys, mut mirror, now) = (Keys::of("edge"), Mirror::default(), Instant::now());
        let leader = LeaderRecord { engine: "e1".into(), process: "p".into() };
        mirror.put(&keys, &keys.leader(), &written(&leader), (3, 4), now);
        assert_eq!(mirror.leader, Some((leader, 3)));
        mirror.put(
            &keys,
            &keys.verdict("a", "e1"),
            &written(&Verdict { passed: true, ..Verdict::default() }),
            (6, 6),
            now,
        );
        assert!(mirror.verdict("a", "e1").unwrap().passed && mirror.verdict("b", "e1").is_none());
        mirror.delete(&keys, &keys.verdict("a", "e1"), 7);
        assert!(mirror.verdicts("a").is_empty());
        let touched = mirror.put(&keys, &keys.secret("ticket-keys"), b"x", (8, 8), now);
        assert_eq!(touched, Touched::Secret("ticket-keys".into()));
    }
}

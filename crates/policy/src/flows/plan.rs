//! The leader's part: the next generation of the flow table, from what is known of engines.
//!
//! A bucket is moved in two generations: it is *prepared* (the engine to come is named second), then *handed over*
//! (the two are swapped); later the former owner is *released*. Nothing of this is kept anywhere but in the table, so
//! another leader goes on where one has died; the planner itself remembers only since when a bucket has been as it is,
//! and begins anew.
//!
//! When a bucket that has a former owner must change hands once more:
//!
//! - its owner drains or is lost, and the former one serves: they are swapped, and both keep their flows;
//! - owner and former both drain: it stays, new connections included, until one is out of flows or dead or
//!   [`Limits::contested_wait`] is over; then the former one is released and the owner's move is prepared;
//! - its owner is dead: the former one gets it if it serves; else a serving engine does, and the former one stays
//!   second;
//! - its former owner is dead: that one is dropped, and a move of the owner's may begin.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use super::{Bucket, EngineId, FlowTable};

/// An engine whose buckets differ from its share by less than this part of the share keeps them.
const UNEVEN_SHARE: f64 = 1.0 / 32.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// The process has ended, or its machine is gone: nothing answers there, not even a reset. Whoever has just been
    /// started in the place of another process is dead as well, until a table that does not list it has been
    /// acknowledged by all.
    Dead,
    /// The lease is gone, and yet the engine answers when asked, or has not been asked: cut off from etcd. It gets no
    /// new flows; those it has are still found, until the caller calls it dead. It ought to withdraw its routes: its
    /// table grows old.
    Lost,
    /// The engine ends its connections and wants no new ones.
    Draining,
    Serving,
}

/// All that the leader knows about one engine. Engines that it is not told about are dead.
#[derive(Clone, Debug)]
pub struct Member {
    pub standing: Standing,
    /// Share of new connections, relative to others ([`super::weight`]). With 0 it serves what it has, and gets no
    /// bucket while any other engine may be given some.
    pub weight: u32,
    /// The last generation that the engine has acknowledged.
    pub applied: u64,
    pub counted: Option<Counted>,
}

/// An engine's count of its connections in the buckets where it is the former owner, half-open ones included.
#[derive(Clone, Debug)]
pub struct Counted {
    /// Time by the leader's clock, and no later than it was really counted: arrival less the period of reports and
    /// their way.
    pub at: Duration,
    /// The generation whose buckets were counted.
    pub generation: u64,
    /// Buckets in which there was any.
    pub busy: BTreeMap<u32, u32>,
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// So long after everybody has learnt who owns a bucket, the former owner's count is trusted: packets that were on
    /// their way, and handshakes that had begun, are over.
    pub settle_wait: Duration,
    /// How long a bucket is left to a draining owner because a draining former one has flows in it.
    pub contested_wait: Duration,
    /// The part of all buckets that is, at most, prepared in one generation to even shares out. What drains is not
    /// held up.
    pub step_share: f64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            settle_wait: Duration::from_secs(10),
            contested_wait: Duration::from_secs(300),
            step_share: 1.0 / 16.0,
        }
    }
}

/// Buckets that a generation changes, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub prepared: usize,
    /// New connections go to another engine from now on.
    pub handed_over: usize,
    pub released: usize,
    /// Released with flows in it, because the wait for them was over.
    pub given_up: usize,
    /// Taken from dead and lost engines.
    pub rescued: usize,
    /// Engines that are listed from now on, and those that are no more.
    pub listed: usize,
    pub unlisted: usize,
}

pub struct Planner {
    limits: Limits,
    /// Since when every living engine has had a bucket as it is.
    since: Vec<Option<Duration>>,
}

/// Whether another generation may follow this one: all living engines that it lists have acknowledged it.
pub fn may_publish(table: &FlowTable, members: &BTreeMap<EngineId, Member>) -> bool {
    waited_for(table, members).next().is_none()
}

/// The engines that hold up the next generation. One that does so for long cannot apply tables and should be told to
/// withdraw; the leader may call it lost.
pub fn waited_for(table: &FlowTable, members: &BTreeMap<EngineId, Member>) -> impl Iterator<Item = EngineId> {
    table.engines.iter().copied().filter(|engine| {
        members
            .get(engine)
            .is_some_and(|member| member.standing >= Standing::Draining && member.applied < table.generation)
    })
}

impl Planner {
    pub fn new(limits: Limits) -> Planner {
        Planner { limits, since: Vec::new() }
    }

    /// The generation after `table`, if there is anything to change. It is to be published at once: the planner counts
    /// on it.
    pub fn next(
        &mut self,
        table: &FlowTable,
        members: &BTreeMap<EngineId, Member>,
        now: Duration,
    ) -> Option<(FlowTable, Changes)> {
        self.since.resize(table.buckets.len(), None);
        let all_know = may_publish(table, members);
        let mut draft = Draft::new(table, members);
        draft.rescue();
        if all_know {
            for since in &mut self.since {
                since.get_or_insert(now);
            }
            draft.list();
            draft.drain(&self.since, now, &self.limits);
            draft.even_out(&self.limits);
            draft.release(&self.since, now, &self.limits);
        }
        let Draft { next, changes, .. } = draft;
        if next == *table {
            return None;
        }
        for ((since, old), new) in self.since.iter_mut().zip(&table.buckets).zip(&next.buckets) {
            if old != new {
                *since = None;
            }
        }
        let generation = table.generation + 1;
        Some((FlowTable { generation, ..next }, changes))
    }
}

/// The next table while it is made.
struct Draft<'a> {
    table: &'a FlowTable,
    members: &'a BTreeMap<EngineId, Member>,
    standings: Standings,
    next: FlowTable,
    shares: Shares,
    changes: Changes,
}

/// Listed by slot, for they are asked for with each bucket.
struct Standings(Vec<Standing>);

/// Buckets that engines own or are about to, against those they should.
struct Shares {
    /// Owned less wanted, of each engine that may be given any.
    surplus: BTreeMap<EngineId, i64>,
    /// Engines of these whose surplus is negative.
    short: BTreeSet<EngineId>,
    /// Engines of these that are to have nothing.
    closed: BTreeSet<EngineId>,
    /// The engine that got the last one.
    last: EngineId,
    /// Whether they serve; otherwise they all drain, and are better than nobody for buckets of the dead.
    serving: bool,
}

impl<'a> Draft<'a> {
    fn new(table: &'a FlowTable, members: &'a BTreeMap<EngineId, Member>) -> Draft<'a> {
        let standings = Standings::of(members);
        let shares = Shares::of(table, members, &standings);
        Draft { table, members, standings, next: table.clone(), shares, changes: Changes::default() }
    }

    fn standing(&self, engine: EngineId) -> Standing {
        self.standings.of_engine(engine)
    }

    fn changed(&self, index: usize) -> bool {
        self.next.buckets[index] != self.table.buckets[index]
    }

    /// Buckets of dead and lost engines go to others at once, whoever has not acknowledged anything.
    fn rescue(&mut self) {
        let listed = &self.table.engines;
        self.next.engines = listed.iter().copied().filter(|engine| self.standing(*engine) > Standing::Lost).collect();
        self.changes.unlisted = listed.len() - self.next.engines.len();
        for index in 0..self.next.buckets.len() {
            let bucket = self.next.buckets[index];
            let rescued = self.rescued(bucket);
            if rescued != bucket {
                self.next.buckets[index] = rescued;
                self.changes.rescued += 1;
            }
        }
    }

    fn rescued(&mut self, bucket: Bucket) -> Bucket {
        let (owner, former) = (self.standing(bucket.owner), self.standing(bucket.former));
        if owner >= Standing::Draining {
            return if former == Standing::Dead { Bucket::of(bucket.owner) } else { bucket };
        }
        // The owner is gone. Whoever may have flows in the bucket stays in it.
        match (owner, former) {
            (Standing::Lost, Standing::Draining | Standing::Serving) => return bucket.swapped(),
            (_, Standing::Serving) => return Bucket::of(bucket.former),
            _ => {}
        }
        let kept = if former > owner { bucket.former } else { bucket.owner };
        match self.shares.next_taker() {
            Some(taker) if self.standing(kept) == Standing::Dead => Bucket::of(taker),
            Some(taker) => Bucket { owner: taker, former: kept },
            None => bucket,
        }
    }

    /// An engine is listed first, and gets buckets when all have acknowledged that.
    fn list(&mut self) {
        for (engine, member) in self.members {
            if member.standing >= Standing::Draining && self.next.engines.insert(*engine) {
                self.changes.listed += 1;
            }
        }
    }

    fn drain(&mut self, since: &[Option<Duration>], now: Duration, limits: &Limits) {
        for index in 0..self.next.buckets.len() {
            let bucket = self.next.buckets[index];
            if self.changed(index) || self.standing(bucket.owner) != Standing::Draining {
                continue;
            }
            if !bucket.has_former() {
                if let Some(taker) = self.shares.next_taker().filter(|_| self.shares.serving) {
                    self.next.buckets[index].former = taker;
                    self.changes.prepared += 1;
                }
            } else if self.standing(bucket.former) == Standing::Serving {
                self.next.buckets[index] = bucket.swapped();
                self.changes.handed_over += 1;
            } else if since[index].is_some_and(|since| now.saturating_sub(since) >= limits.contested_wait) {
                self.next.buckets[index] = Bucket::of(bucket.owner);
                self.changes.given_up += 1;
            }
        }
    }

    /// Engines with more than their share give to those with less: buckets that name both are swapped, then others are
    /// prepared.
    fn even_out(&mut self, limits: &Limits) {
        if !self.shares.serving || !self.shares.uneven(self.table.buckets.len()) {
            return;
        }
        for index in 0..self.next.buckets.len() {
            let bucket = self.next.buckets[index];
            if bucket.has_former() && !self.changed(index) && self.shares.give(bucket.owner, Some(bucket.former)) {
                self.next.buckets[index] = bucket.swapped();
                self.changes.handed_over += 1;
            }
        }
        let steps_max = ((self.next.buckets.len() as f64 * limits.step_share) as usize).max(1);
        for index in 0..self.next.buckets.len() {
            let bucket = self.next.buckets[index];
            if self.changes.prepared >= steps_max {
                return;
            }
            if !bucket.has_former() && !self.changed(index) && self.shares.give(bucket.owner, None) {
                let Some(taker) = self.shares.next_taker() else { return };
                self.next.buckets[index].former = taker;
                self.changes.prepared += 1;
            }
        }
    }

    fn release(&mut self, since: &[Option<Duration>], now: Duration, limits: &Limits) {
        for (index, since) in since.iter().enumerate() {
            let bucket = self.next.buckets[index];
            if bucket.has_former() && !self.changed(index) && self.is_empty(index, *since, now, limits) {
                self.next.buckets[index] = Bucket::of(bucket.owner);
                self.changes.released += 1;
            }
        }
    }

    /// Whether the former owner of a bucket has said, late enough, that it has no connection there.
    fn is_empty(&self, index: usize, since: Option<Duration>, now: Duration, limits: &Limits) -> bool {
        let former = self.next.buckets[index].former;
        let Some(counted) = self.members.get(&former).and_then(|member| member.counted.as_ref()) else { return false };
        let late_enough = since.is_some_and(|since| counted.at.min(now) >= since + limits.settle_wait);
        late_enough && counted.generation == self.table.generation && !counted.busy.contains_key(&(index as u32))
    }
}

impl Standings {
    fn of(members: &BTreeMap<EngineId, Member>) -> Standings {
        let slots = members.last_key_value().map_or(0, |(engine, _)| usize::from(engine.0) + 1);
        let mut standings = vec![Standing::Dead; slots];
        for (engine, member) in members {
            standings[usize::from(engine.0)] = member.standing;
        }
        Standings(standings)
    }

    fn of_engine(&self, engine: EngineId) -> Standing {
        self.0.get(usize::from(engine.0)).copied().unwrap_or(Standing::Dead)
    }
}

impl Shares {
    fn of(table: &FlowTable, members: &BTreeMap<EngineId, Member>, standings: &Standings) -> Shares {
        let standing = |engine| standings.of_engine(engine);
        let able = |wanted| -> Vec<(EngineId, u64)> {
            let listed = members.iter().filter(|(engine, _)| table.engines.contains(engine));
            let able = listed.filter(|(_, member)| member.standing == wanted);
            able.map(|(engine, member)| (*engine, u64::from(member.weight))).collect()
        };
        let mut takers = able(Standing::Serving);
        let serving = !takers.is_empty();
        if !serving {
            takers = able(Standing::Draining);
        }
        // Somebody has to have new connections.
        if takers.iter().all(|(_, weight)| *weight == 0) {
            takers.iter_mut().for_each(|(_, weight)| *weight = 1);
        }
        let closed = takers.iter().filter(|(_, weight)| *weight == 0).map(|(engine, _)| *engine).collect();
        let mut surplus = debts(&takers, table.buckets.len() as u64);
        for bucket in &table.buckets {
            let leaves = standing(bucket.owner) <= Standing::Draining && standing(bucket.former) == Standing::Serving;
            let owner = if leaves { bucket.former } else { bucket.owner };
            surplus.entry(owner).and_modify(|surplus| *surplus += 1);
        }
        let short = surplus.iter().filter(|(_, surplus)| **surplus < 0).map(|(engine, _)| *engine).collect();
        Shares { surplus, short, closed, last: EngineId(0), serving }
    }

    /// One of the engines that are short of buckets, in turn; when all have enough, whoever may be given any, in turn.
    fn next_taker(&mut self) -> Option<EngineId> {
        if self.short.is_empty() {
            self.short = self.surplus.keys().copied().filter(|engine| !self.closed.contains(engine)).collect();
        }
        let after = (Bound::Excluded(self.last), Bound::Unbounded);
        let taker = self.short.range(after).next().or_else(|| self.short.first()).copied()?;
        self.last = taker;
        self.change(taker, 1);
        Some(taker)
    }

    /// Whether `owner` has too many, and `taker`, or anybody, too few; then `owner` gives one away, and `taker` gets
    /// it.
    fn give(&mut self, owner: EngineId, taker: Option<EngineId>) -> bool {
        let too_few = taker.map_or(!self.short.is_empty(), |taker| self.short.contains(&taker));
        if !too_few || self.surplus.get(&owner).is_none_or(|surplus| *surplus <= 0) {
            return false;
        }
        self.change(owner, -1);
        if let Some(taker) = taker {
            self.change(taker, 1);
        }
        true
    }

    fn change(&mut self, engine: EngineId, by: i64) {
        let Some(surplus) = self.surplus.get_mut(&engine) else { return };
        *surplus += by;
        if *surplus >= 0 {
            self.short.remove(&engine);
        }
    }

    /// Whether any engine has so much more or less than its share that it is worth moving flows about, or anything of
    /// which it is to have nothing.
    fn uneven(&self, buckets: usize) -> bool {
        let share = buckets as f64 / (self.surplus.len() - self.closed.len()).max(1) as f64;
        let tolerated = (share * UNEVEN_SHARE).max(1.0);
        let is_off = |(engine, surplus): (&EngineId, &i64)| {
            surplus.unsigned_abs() as f64 > tolerated || (*surplus > 0 && self.closed.contains(engine))
        };
        self.surplus.iter().any(is_off)
    }
}

/// Buckets that each engine should own by its weight, as a debt: no bucket is counted yet. Whole buckets go to the
/// largest remainders.
fn debts(able: &[(EngineId, u64)], buckets: u64) -> BTreeMap<EngineId, i64> {
    let total: u64 = able.iter().map(|(_, weight)| weight).sum::<u64>().max(1);
    let mut shares: Vec<(EngineId, u64, u64)> =
        able.iter().map(|(engine, weight)| (*engine, weight * buckets / total, weight * buckets % total)).collect();
    let whole: u64 = shares.iter().map(|(_, share, _)| share).sum();
    shares.sort_by_key(|(engine, _, rest)| (std::cmp::Reverse(*rest), *engine));
    let left = buckets.saturating_sub(whole) as usize;
    let with_rest = shares.iter().enumerate();
    with_rest.map(|(rank, (engine, share, _))| (*engine, -(*share as i64) - i64::from(rank < left))).collect()
}

#[cfg(test)]
mod tests;

//! The cost of changes of the flow table in clusters of any size: buckets moved, time until all agree, and bytes
//! through etcd.
//!
//! Buckets and generations come from the real [`Planner`]; times and bytes from a [`Model`] whose every parameter can
//! be argued about. Engines are taken to be alike, and to answer at the same speed.

mod report;

use std::collections::BTreeMap;
use std::time::Duration;

pub use report::Table;

use super::plan::{Counted, Limits, Member, Planner, Standing};
use super::simulation::Chance;
use super::{EngineId, FlowTable, buckets_for, wire};

/// A rolling upgrade takes this many batches, or as many as there are engines.
const UPGRADE_BATCHES: usize = 16;
/// One of so many racks is lost.
const RACKS: usize = 8;
/// One of so many engines gets half its weight when weights change.
const REWEIGHED: usize = 10;
/// No change takes more generations; the planner would be at fault.
const GENERATIONS_MAX: usize = 1000;

/// A difference has generation and counts, and then a bucket's number (4 bytes with some to spare), owner and former
/// owner.
const DIFFERENCE_HEAD_BYTES: u64 = 40;
const DIFFERENCE_BYTES: u64 = 8;

/// How etcd, the network and engines are taken to be. The defaults are a modest cluster: three members, SSDs, 1 Gbit/s.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    pub etcd_members: u32,
    /// A put until it is committed by most members.
    pub put_time: Duration,
    /// Small puts that etcd commits in a second. Its own benchmark has over 10,000 with many clients and SSDs.
    pub puts_per_second: f64,
    /// Bytes that one member sends to its watchers.
    pub member_bytes_per_second: f64,
    /// Small events that one member hands to watchers in a second, through the JSON gateway.
    pub member_events_per_second: f64,
    /// From a member to an engine, and up to its thread.
    pub watch_delay: Duration,
    /// An engine reads the table and has it in the kernel.
    pub apply_time: Duration,
    pub apply_time_per_bucket: Duration,
    /// Each engine writes a load record in this period.
    pub report_period: Duration,
    /// Size of an engine's load record with its key and what the gateway makes of it; of an acknowledgement likewise.
    pub record_bytes: u64,
    /// Name, number and address of an engine beside the table in the same value.
    pub slot_bytes: u64,
    pub value_max_bytes: u64,
    pub lease: Duration,
    /// How long an engine that is upgraded waits for its flows, and how long it takes to start and be ready.
    pub drain_wait: Duration,
    pub restart_time: Duration,
}

/// One change of a cluster at rest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    pub what: &'static str,
    /// Buckets whose owner is another one in the end, and the fewest that could be.
    pub moved: usize,
    pub moved_min: usize,
    pub generations: usize,
    /// From the cause until every engine sends new connections where they belong; a lease that runs out is in it.
    pub agreed: Duration,
    /// Bytes that etcd's members send to engines for it.
    pub sent_bytes: u64,
    /// Both, if a generation were written as its difference from the one before: eight bytes for each bucket that
    /// changes.
    pub agreed_by_differences: Duration,
    pub sent_bytes_by_differences: u64,
}

/// Traffic of etcd while nothing changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steady {
    pub puts_per_second: f64,
    /// Events to watchers, if each engine watches each other's load, and if only the leader does.
    pub events_per_second_all: f64,
    pub events_per_second_leader: f64,
    pub sent_bytes_per_second_all: f64,
    pub sent_bytes_per_second_leader: f64,
}

/// A rolling upgrade of all engines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Upgrade {
    pub batches: usize,
    pub generations: usize,
    /// Changes of buckets' owners over all.
    pub moved: usize,
    pub time: Duration,
    pub sent_bytes: u64,
}

/// A rack goes at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rack {
    pub engines: usize,
    /// Part of all connections that ends: those on the engines that are gone, and no others.
    pub flows_lost_share: f64,
    /// New connections of the same buckets wait until all have the next table.
    pub stall: Duration,
    /// Work of each of the others, as a multiple of before.
    pub load_factor: f64,
    pub moved: usize,
    pub generations: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Scale {
    pub engines: usize,
    pub buckets: usize,
    /// The largest share of buckets against an even one.
    pub unevenness: f64,
    /// The table as bytes, and as the value in etcd with its slots.
    pub table_bytes: u64,
    pub value_bytes: u64,
    pub value_fits: bool,
    /// One generation: written, with everybody, applied and acknowledged.
    pub round: Duration,
    pub steady: Steady,
    pub changes: Vec<Change>,
    pub upgrade: Upgrade,
    pub rack: Rack,
}

impl Default for Model {
    fn default() -> Model {
        Model {
            etcd_members: 3,
            put_time: Duration::from_millis(10),
            puts_per_second: 5000.0,
            member_bytes_per_second: 100e6,
            member_events_per_second: 20_000.0,
            watch_delay: Duration::from_millis(5),
            apply_time: Duration::from_millis(5),
            apply_time_per_bucket: Duration::from_nanos(500),
            report_period: Duration::from_secs(1),
            record_bytes: 700,
            slot_bytes: 100,
            value_max_bytes: 1_500_000,
            lease: Duration::from_secs(5),
            drain_wait: Duration::from_secs(60),
            restart_time: Duration::from_secs(10),
        }
    }
}

impl Model {
    /// The value of `flows` in etcd: base64 of the table, and slots.
    pub fn value_bytes(&self, engines: usize, buckets: usize) -> u64 {
        (wire::length(engines, buckets) as u64).div_ceil(3) * 4 + engines as u64 * self.slot_bytes
    }

    /// Bytes that members send for one generation: the value to each engine, in base64 once more, and each
    /// acknowledgement to the leader.
    pub fn generation_bytes(&self, engines: usize, buckets: usize) -> u64 {
        self.sent_bytes(engines, self.value_bytes(engines, buckets))
    }

    /// From the put of a generation until the leader has all acknowledgements.
    pub fn round(&self, engines: usize, buckets: usize) -> Duration {
        self.round_of(engines, buckets, self.generation_bytes(engines, buckets))
    }

    /// The value of a difference that changes so many buckets.
    fn difference_bytes(buckets: usize) -> u64 {
        (DIFFERENCE_HEAD_BYTES + DIFFERENCE_BYTES * buckets as u64).div_ceil(3) * 4
    }

    fn sent_bytes(&self, engines: usize, value_bytes: u64) -> u64 {
        engines as u64 * (value_bytes * 4 / 3 + self.record_bytes)
    }

    fn round_of(&self, engines: usize, buckets: usize, sent_bytes: u64) -> Duration {
        let members = f64::from(self.etcd_members.max(1));
        let by_bytes = sent_bytes as f64 / (members * self.member_bytes_per_second);
        let by_events = engines as f64 / (members * self.member_events_per_second);
        let acknowledged = self.put_time + Duration::from_secs_f64(engines as f64 / self.puts_per_second);
        let applied = self.apply_time + self.apply_time_per_bucket * buckets as u32;
        let sent = Duration::from_secs_f64(by_bytes.max(by_events)) + self.watch_delay;
        self.put_time + sent + applied + acknowledged + self.watch_delay
    }

    fn steady(&self, engines: usize) -> Steady {
        let puts = engines as f64 / self.report_period.as_secs_f64().max(0.001);
        let bytes = self.record_bytes as f64;
        Steady {
            puts_per_second: puts,
            events_per_second_all: puts * engines as f64,
            events_per_second_leader: puts,
            sent_bytes_per_second_all: puts * engines as f64 * bytes,
            sent_bytes_per_second_leader: puts * bytes,
        }
    }
}

/// A cluster of so many engines through every kind of change. `seed` picks who joins, drains and dies.
pub fn simulate(engines: u16, seed: u64, model: &Model) -> Scale {
    let engines = engines.max(2);
    let mut chance = Chance(seed);
    let rest = Lab::at_rest(engines, model);
    let buckets = rest.table.buckets.len();
    let count = usize::from(engines);
    let even = buckets as f64 / count as f64;
    let victim = EngineId(chance.below(u64::from(engines)) as u16);
    let value_bytes = model.value_bytes(count, buckets);
    Scale {
        engines: count,
        buckets,
        unevenness: rest.owned().into_values().max().unwrap_or(0) as f64 / even,
        table_bytes: wire::length(count, buckets) as u64,
        value_bytes,
        value_fits: value_bytes <= model.value_max_bytes,
        round: model.round(count, buckets),
        steady: model.steady(count),
        changes: vec![
            rest.clone().join(EngineId(engines)),
            rest.clone().drain(victim),
            rest.clone().death(victim),
            rest.clone().reweigh(),
        ],
        upgrade: rest.clone().upgrade(),
        rack: rest.rack(chance.below(RACKS as u64) as usize),
    }
}

/// A cluster whose engines do at once as they are told, and whose time goes by as the model has it.
#[derive(Clone)]
struct Lab<'a> {
    model: &'a Model,
    table: FlowTable,
    members: BTreeMap<EngineId, Member>,
    now: Duration,
    generations: usize,
    /// Bytes that would have been sent as differences, and how long generations would have taken.
    difference_bytes: u64,
    difference_time: Duration,
}

impl<'a> Lab<'a> {
    fn at_rest(engines: u16, model: &'a Model) -> Lab<'a> {
        let mut table = FlowTable::first([0; 16], buckets_for(u32::from(engines)), EngineId(0));
        table.engines = (0..engines).map(EngineId).collect();
        for (index, bucket) in table.buckets.iter_mut().enumerate() {
            *bucket = super::Bucket::of(EngineId((index % usize::from(engines)) as u16));
        }
        let mut lab = Lab {
            model,
            table,
            members: BTreeMap::new(),
            now: Duration::ZERO,
            generations: 0,
            difference_bytes: 0,
            difference_time: Duration::ZERO,
        };
        for engine in 0..engines {
            lab.set(EngineId(engine), Standing::Serving, 1000);
        }
        lab
    }

    fn set(&mut self, engine: EngineId, standing: Standing, weight: u32) {
        self.members.insert(engine, Member { standing, weight, applied: 0, counted: None });
    }

    fn owned(&self) -> BTreeMap<EngineId, usize> {
        let mut owned = BTreeMap::new();
        for bucket in &self.table.buckets {
            *owned.entry(bucket.owner).or_insert(0) += 1;
        }
        owned
    }

    /// Generations until there is nothing more to change, all acknowledged. Former owners are released if they count.
    fn publish(&mut self, former_owners_count: bool) -> usize {
        // A planner without a past is as good: every bucket has been as it is for long enough, or nobody counts.
        let mut planner = Planner::new(Limits { settle_wait: Duration::ZERO, ..Limits::default() });
        let mut moved = 0;
        for _ in 0..GENERATIONS_MAX {
            let counted = Counted { at: self.now, generation: self.table.generation, busy: BTreeMap::new() };
            for member in self.members.values_mut() {
                member.applied = self.table.generation;
                member.counted = former_owners_count.then(|| counted.clone());
            }
            let Some((next, _)) = planner.next(&self.table, &self.members, self.now) else { break };
            moved += differ(&self.table, &next);
            let changed = self.table.buckets.iter().zip(&next.buckets).filter(|(old, new)| old != new).count();
            self.table = next;
            self.pass(changed);
        }
        moved
    }

    /// A generation that changes so many buckets goes round.
    fn pass(&mut self, changed: usize) {
        let engines = self.members.len();
        self.generations += 1;
        self.now += self.model.round(engines, self.table.buckets.len());
        let bytes = self.model.sent_bytes(engines, Model::difference_bytes(changed));
        self.difference_bytes += bytes;
        self.difference_time += self.model.round_of(engines, changed, bytes);
    }

    /// The former owners' flows have ended.
    fn release(&mut self) {
        self.now += Limits::default().settle_wait;
        self.publish(true);
    }

    fn changed(&mut self, what: &'static str, moved_min: usize, delay: Duration) -> Change {
        let (before, began) = (self.table.clone(), self.now);
        self.publish(false);
        let agreed = delay + (self.now - began);
        let agreed_by_differences = delay + self.difference_time;
        let moved = differ(&before, &self.table);
        self.release();
        Change {
            what,
            moved,
            moved_min,
            generations: self.generations,
            agreed,
            sent_bytes: self.sent_bytes(),
            agreed_by_differences,
            sent_bytes_by_differences: self.difference_bytes,
        }
    }

    fn sent_bytes(&self) -> u64 {
        self.generations as u64 * self.model.generation_bytes(self.members.len(), self.table.buckets.len())
    }

    fn join(mut self, engine: EngineId) -> Change {
        self.set(engine, Standing::Serving, 1000);
        let fewest = self.table.buckets.len() / self.members.len();
        self.changed("one joins", fewest, Duration::ZERO)
    }

    fn drain(mut self, engine: EngineId) -> Change {
        let fewest = self.table.held_by(engine).0;
        self.set(engine, Standing::Draining, 1000);
        self.changed("one drains", fewest, Duration::ZERO)
    }

    fn death(mut self, engine: EngineId) -> Change {
        let fewest = self.table.held_by(engine).0;
        self.members.remove(&engine);
        self.changed("one dies", fewest, self.model.lease)
    }

    fn reweigh(mut self) -> Change {
        let (count, buckets) = (self.members.len(), self.table.buckets.len() as f64);
        let slow = count.div_ceil(REWEIGHED);
        for member in self.members.values_mut().take(slow) {
            member.weight /= 2;
        }
        let total = count as f64 - slow as f64 / 2.0;
        let fewest = slow as f64 * (buckets / count as f64 - buckets / 2.0 / total);
        self.changed("a tenth gets half its weight", fewest as usize, Duration::ZERO)
    }

    fn upgrade(mut self) -> Upgrade {
        let engines: Vec<EngineId> = self.members.keys().copied().collect();
        let (mut moved, mut batches) = (0, 0);
        for batch in engines.chunks(engines.len().div_ceil(UPGRADE_BATCHES)) {
            batches += 1;
            moved += self.put_batch(batch, Standing::Draining);
            self.now += self.model.drain_wait;
            self.release();
            for engine in batch {
                self.members.remove(engine);
            }
            self.publish(false);
            self.now += self.model.restart_time;
            moved += self.put_batch(batch, Standing::Serving);
            self.release();
        }
        Upgrade { batches, generations: self.generations, moved, time: self.now, sent_bytes: self.sent_bytes() }
    }

    fn put_batch(&mut self, batch: &[EngineId], standing: Standing) -> usize {
        for engine in batch {
            self.set(*engine, standing, 1000);
        }
        self.publish(false)
    }

    fn rack(mut self, rack: usize) -> Rack {
        let engines = self.members.len();
        let size = engines.div_ceil(RACKS);
        let first = (rack * size).min(engines - size);
        let gone: Vec<EngineId> = self.members.keys().copied().skip(first).take(size).collect();
        let lost: usize = gone.iter().map(|engine| self.table.held_by(*engine).0).sum();
        for engine in &gone {
            self.members.remove(engine);
        }
        let change = self.changed("a rack dies", lost, self.model.lease);
        Rack {
            engines: size,
            flows_lost_share: lost as f64 / self.table.buckets.len() as f64,
            stall: change.agreed,
            load_factor: engines as f64 / (engines - size) as f64,
            moved: change.moved,
            generations: change.generations,
        }
    }
}

fn differ(before: &FlowTable, after: &FlowTable) -> usize {
    before.buckets.iter().zip(&after.buckets).filter(|(before, after)| before.owner != after.owner).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_move_hardly_more_buckets_than_they_must() {
        for engines in [4, 32, 200] {
            let scale = simulate(engines, 1, &Model::default());
            for change in &scale.changes {
                // A reweighing stops within a thirty-second of each share.
                let spared = scale.buckets / 32 + scale.engines;
                assert!(change.moved <= change.moved_min + scale.engines, "{engines}: {change:?}");
                assert!(change.moved + spared >= change.moved_min, "{engines}: {change:?}");
                assert!(change.generations <= 12, "{engines}: {change:?}");
            }
        }
    }

    #[test]
    fn differences_cost_thousands_of_engines_a_hundredth_of_whole_tables() {
        let model = Model::default();
        for change in simulate(1000, 5, &model).changes.iter().take(3) {
            assert!(change.sent_bytes_by_differences * 100 < change.sent_bytes, "{change:?}");
            assert!(change.agreed_by_differences < change.agreed, "{change:?}");
        }
    }

    #[test]
    fn a_rack_that_dies_takes_its_own_flows_and_one_generation() {
        let scale = simulate(32, 3, &Model::default());
        assert_eq!(scale.rack.engines, 4);
        assert_eq!((scale.rack.flows_lost_share, scale.rack.generations), (0.125, 1));
        assert_eq!(scale.rack.moved, 128);
    }

    #[test]
    fn an_upgrade_ends_with_all_engines_serving_their_shares() {
        let model = Model::default();
        let mut lab = Lab::at_rest(32, &model);
        let engines: Vec<EngineId> = lab.members.keys().copied().collect();
        for batch in engines.chunks(2) {
            lab.put_batch(batch, Standing::Draining);
            lab.release();
            assert!(batch.iter().all(|engine| lab.table.held_by(*engine) == (0, 0)));
            lab.put_batch(batch, Standing::Serving);
            lab.release();
        }
        assert_eq!(lab.owned().len(), 32);
        assert!(lab.owned().values().all(|owned| (30..=34).contains(owned)), "{:?}", lab.owned());
    }

    #[test]
    fn the_same_seed_gives_the_same_figures_and_a_slower_etcd_slower_ones() {
        let model = Model::default();
        assert_eq!(simulate(32, 9, &model), simulate(32, 9, &model));
        let slow = Model { put_time: Duration::from_millis(100), ..model };
        let (fast, slow) = (simulate(32, 9, &model), simulate(32, 9, &slow));
        assert!(slow.changes[0].agreed > fast.changes[0].agreed + Duration::from_millis(300));
    }
}

//! The flow table between etcd, the policy that makes it, and the process that loads it into the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use base64ct::{Base64, Encoding};
use propylon_flows::table::{EngineEntry, TableFile, VERSION};
use propylon_policy::flows::plan::{Counted, Limits, Member, Planner, Standing};
use propylon_policy::flows::weight::{WEIGHT_PER_CORE, next_weight};
use propylon_policy::flows::{EngineId, FlowTable, wire};

use crate::agent::{Agent, Outcome};
use crate::chance::fill;
use crate::known_table::KnownTable;
use crate::mirror::Mirror;
use crate::records::{EngineRecord, FlowsTable, Slot, written};
use crate::runtime::{FLOWS_TABLE, Runtime};

/// Slots are below.
const SLOTS_MAX: u16 = 16_384;
/// Time between two changes of an engine's weight.
const WEIGHT_PAUSE: Duration = Duration::from_secs(10);
/// An engine whose lease has ended keeps its connections for so long: it may be cut off from etcd alone.
const LOST_WAIT: Duration = Duration::from_secs(300);
/// After etcd was away engines have so long to register again before the table counts any of them as lost: by the table
/// that they have they would forward what others have moved meanwhile.
const REJOIN_WAIT: Duration = Duration::from_secs(10);
/// An engine that lives and has not applied a table after this is left out of the next.
const APPLY_WAIT: Duration = Duration::from_secs(15);
/// Counts are as old as this when they come: they are made each second, and have a way to go.
const COUNT_AGE: Duration = Duration::from_secs(2);

/// Memory of the leader about the table.
#[derive(Default)]
pub(crate) struct TableWriter {
    began: Option<Instant>,
    planner: Option<Planner>,
    weights: BTreeMap<String, (u32, Instant)>,
    /// Since when engines have not applied the last table.
    behind: BTreeMap<String, Instant>,
    /// Since when engines are not registered any more, by lineage.
    lost: BTreeMap<String, Instant>,
}

/// An engine that gets no new connections, and whose own are still found.
fn lost() -> Member {
    Member { standing: Standing::Lost, weight: 0, applied: 0, counted: None }
}

/// An engine that is about to register again: nothing is moved before it has.
fn awaited(weight: u32) -> Member {
    Member { standing: Standing::Serving, weight, applied: 0, counted: None }
}

impl std::fmt::Debug for TableWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableWriter").field("weights", &self.weights).finish_non_exhaustive()
    }
}

/// The port, addresses and size that the settings have for a table.
pub(crate) struct Wanted<'a> {
    pub port: u16,
    pub buckets: u32,
    pub vips: &'a [std::net::IpAddr],
    pub drain_limit: Duration,
    /// Whether etcd was away a moment ago.
    pub is_rejoining: bool,
}

impl TableWriter {
    /// The next generation, if there is anything to change.
    pub fn next(&mut self, mirror: &Mirror, wanted: &Wanted, now: Instant) -> Option<FlowsTable> {
        let began = *self.began.get_or_insert(now);
        let (mut slots, table) = match mirror.flows.as_ref().and_then(|flows| Some((flows, flows.table.as_ref()?))) {
            Some((flows, table)) => (flows.record.slots.clone(), Some(table)),
            None => (Vec::new(), None),
        };
        assign(&mut slots, &mirror.engines, table);
        let members = self.members(mirror, &slots, wanted, now);
        let Some(table) = table else {
            return first(&slots, &members, wanted);
        };
        let limits = Limits { contested_wait: wanted.drain_limit, ..Limits::default() };
        let planner = self.planner.get_or_insert_with(|| Planner::new(limits));
        let next = planner.next(table, &members, now.saturating_duration_since(began));
        let flows = &mirror.flows.as_ref()?.record;
        let is_moved = flows.port != wanted.port || flows.vips != wanted.vips;
        let next = match next {
            Some((next, _)) => next,
            None if is_moved => FlowTable { generation: table.generation + 1, ..table.clone() },
            None => return None,
        };
        slots.retain(|slot| is_named(&next, EngineId(slot.slot)));
        Some(record(&next, slots, wanted))
    }

    fn members(
        &mut self,
        mirror: &Mirror,
        slots: &[Slot],
        wanted: &Wanted,
        now: Instant,
    ) -> BTreeMap<EngineId, Member> {
        let at = now.saturating_duration_since(self.began.unwrap_or(now));
        let mean = mean_load(mirror);
        let mut members = BTreeMap::new();
        for slot in slots {
            let Some(engine) = mirror.engines.get(&slot.name) else {
                if self.is_lost(slot, mirror, now) {
                    let weight = self.weights.get(&slot.name).map_or(WEIGHT_PER_CORE, |(weight, _)| *weight);
                    let member = if wanted.is_rejoining { awaited(weight) } else { lost() };
                    members.insert(EngineId(slot.slot), member);
                }
                continue;
            };
            self.lost.remove(&slot.lineage);
            let is_behind = self.is_behind(&slot.name, engine, mirror, now);
            let Some(flows) = engine.flows.as_ref().filter(|_| !is_behind) else {
                members.insert(EngineId(slot.slot), lost());
                continue;
            };
            if engine.lineage != slot.lineage {
                continue;
            }
            let standing =
                if engine.is_ready && engine.draining.is_none() { Standing::Serving } else { Standing::Draining };
            let percent = mirror.weight(&slot.name);
            let load = mirror.loads.get(&slot.name).filter(|_| percent.is_default()).map(|load| load.cpu);
            let weight = percent.of(self.weight(&slot.name, engine.cores, load, mean, now));
            let busy = flows.former.iter().map(|(bucket, count)| (*bucket, u32::try_from(*count).unwrap_or(u32::MAX)));
            let counted = Counted {
                at: at.saturating_sub(COUNT_AGE),
                generation: flows.generation,
                busy: busy.filter(|(_, count)| *count > 0).collect(),
            };
            let member = Member { standing, weight, applied: flows.generation, counted: Some(counted) };
            members.insert(EngineId(slot.slot), member);
        }
        members
    }

    /// Whether an engine that is not registered may still have its connections: cut off from etcd, and nobody has said
    /// that its process has ended.
    fn is_lost(&mut self, slot: &Slot, mirror: &Mirror, now: Instant) -> bool {
        let since = *self.lost.entry(slot.lineage.clone()).or_insert(now);
        let is_dead = mirror.deaths.get(&slot.name) == Some(&slot.lineage);
        !is_dead && now.saturating_duration_since(since) < LOST_WAIT
    }

    /// Whether an engine has not applied the table for so long that nobody waits for it any more.
    fn is_behind(&mut self, name: &str, engine: &EngineRecord, mirror: &Mirror, now: Instant) -> bool {
        let generation = mirror.flows.as_ref().map_or(0, |flows| flows.record.generation);
        if engine.flows.as_ref().is_some_and(|flows| flows.generation >= generation) {
            self.behind.remove(name);
            return false;
        }
        let since = *self.behind.entry(name.to_owned()).or_insert(now);
        now.saturating_duration_since(since) >= APPLY_WAIT
    }

    fn weight(&mut self, name: &str, cores: u32, load: Option<f64>, mean: f64, now: Instant) -> u32 {
        let first = (cores.max(1).saturating_mul(WEIGHT_PER_CORE), now);
        let (weight, since) = self.weights.entry(name.to_owned()).or_insert(first);
        if now.saturating_duration_since(*since) >= WEIGHT_PAUSE {
            *weight = next_weight(*weight, cores, load, mean);
            *since = now;
        }
        *weight
    }
}

/// Load of all cores together whose engines have their usual share. One that an operator has given less has less to do
/// and one that was given more has more, and others' weights must not follow that: they would undo it.
fn mean_load(mirror: &Mirror) -> f64 {
    let usual = mirror.loads.iter().filter(|(name, _)| mirror.weight(name).is_default());
    let loads: Vec<(f64, f64)> =
        usual.filter_map(|(name, load)| Some((load.cpu, f64::from(mirror.engines.get(name)?.cores)))).collect();
    let cores: f64 = loads.iter().map(|(_, cores)| cores).sum();
    loads.iter().map(|(load, cores)| load * cores).sum::<f64>() / cores.max(1.0)
}

/// Gives engines that have none a slot. One that was started anew gets another than before: its connections are gone.
fn assign(slots: &mut Vec<Slot>, engines: &BTreeMap<String, EngineRecord>, table: Option<&FlowTable>) {
    let is_named_by_table = |slot: u16| table.is_some_and(|table| is_named(table, EngineId(slot)));
    slots.retain(|slot| {
        is_named_by_table(slot.slot) || engines.get(&slot.name).is_some_and(|engine| engine.lineage == slot.lineage)
    });
    let mut used: BTreeSet<u16> = slots.iter().map(|slot| slot.slot).collect();
    for (name, engine) in engines {
        let is_known = |slot: &Slot| slot.name == *name && slot.lineage == engine.lineage;
        if slots.iter().any(is_known) || engine.flows.is_none() || engine.address.is_none() {
            continue;
        }
        let Some(slot) = (0..SLOTS_MAX).find(|slot| !used.contains(slot)) else { return };
        used.insert(slot);
        slots.push(Slot { slot, name: name.clone(), lineage: engine.lineage.clone(), address: engine.address });
    }
}

fn is_named(table: &FlowTable, engine: EngineId) -> bool {
    table.engines.contains(&engine) || table.buckets.iter().any(|bucket| bucket.names(engine))
}

/// The first table, in which one engine has everything: the others get their share a generation later.
fn first(slots: &[Slot], members: &BTreeMap<EngineId, Member>, wanted: &Wanted) -> Option<FlowsTable> {
    let serving = members.iter().filter(|(_, member)| member.standing == Standing::Serving);
    let (engine, _) = serving.min_by_key(|(_, member)| member.weight == 0)?;
    let mut seed = [0; 16];
    fill(&mut seed);
    let table = FlowTable::first(seed, wanted.buckets, *engine);
    let slots = slots.iter().filter(|slot| slot.slot == engine.0).cloned().collect();
    Some(record(&table, slots, wanted))
}

fn record(table: &FlowTable, slots: Vec<Slot>, wanted: &Wanted) -> FlowsTable {
    FlowsTable {
        generation: table.generation,
        port: wanted.port,
        vips: wanted.vips.to_vec(),
        slots,
        table: Base64::encode_string(&wire::bytes(table)),
    }
}

/// The table as the process that loads it takes it on the machine of the engine `own`.
fn table_file(flows: &FlowsTable, own: u16, table: &FlowTable) -> TableFile {
    let slots = table.buckets.iter().flat_map(|bucket| [bucket.owner.0, bucket.former.0]);
    let bytes: Vec<u8> = slots.flat_map(u16::to_le_bytes).collect();
    let entry = |slot: &Slot| Some(EngineEntry { slot: slot.slot, name: slot.name.clone(), address: slot.address? });
    TableFile {
        version: VERSION,
        generation: flows.generation,
        seed: table.seed.iter().map(|byte| format!("{byte:02x}")).collect(),
        own,
        port: flows.port,
        vips: flows.vips.clone(),
        engines: flows.slots.iter().filter_map(entry).collect(),
        buckets: Base64::encode_string(&bytes),
    }
}

impl Agent {
    /// As the leader: publishes the next table.
    pub(crate) async fn keep_flows(&mut self) -> Outcome<()> {
        let Some(settings) = self.settings.flows else { return Ok(()) };
        let wanted = Wanted {
            port: settings.port,
            buckets: settings.buckets,
            vips: &self.settings.vips,
            drain_limit: self.settings.drain_limit,
            is_rejoining: self.since_etcd.is_some_and(|since| since.elapsed() < REJOIN_WAIT),
        };
        let Some(leading) = &mut self.leading else { return Ok(()) };
        let Some(next) = leading.flows.next(&self.mirror, &wanted, Instant::now()) else { return Ok(()) };
        let (key, value) = (self.keys.flows(), written(&next));
        if self.put_as_leader(key, value).await? {
            self.mirror.flows = Some(next.into());
        }
        Ok(())
    }

    /// Finds out whether this engine is in a table by which its kernel and all others go: only then may it get packets.
    pub(crate) fn look_for_own_slot(&mut self) {
        let own = |slot: &&Slot| slot.name == self.settings.engine && slot.lineage == self.lineage;
        let listed = self.mirror.flows.as_ref().and_then(|flows| {
            let own = flows.record.slots.iter().find(own)?;
            flows.table.as_ref()?.engines.contains(&EngineId(own.slot)).then_some(flows.record.generation)
        });
        self.listed = match (listed, self.listed) {
            (None, _) => None,
            (Some(_), known @ Some(_)) => known,
            (now, None) => now,
        };
    }

    /// Whether packets for this engine are taken to it by all others.
    pub(crate) fn is_listed(&self) -> bool {
        let Some(listed) = self.listed else { return false };
        let own = self.published.as_ref().and_then(|own| own.flows.as_ref());
        let others = self.mirror.engines.values().filter_map(|engine| engine.flows.as_ref());
        own.is_some_and(|own| own.generation >= listed) && others.into_iter().all(|flows| flows.generation >= listed)
    }

    /// Gives the table to the process that loads it, where this engine is in it.
    pub(crate) fn hand_over_table(&mut self) {
        let Some(KnownTable { record: flows, table: Some(table), .. }) = &self.mirror.flows else { return };
        if self.settings.flows.is_none() || self.handed_over == Some(flows.generation) {
            return;
        }
        let own = flows.slots.iter().find(|slot| slot.name == self.settings.engine && slot.lineage == self.lineage);
        let Some(own) = own else { return };
        let file = table_file(flows, own.slot, table);
        let generation = flows.generation;
        let written = Runtime::open(&self.settings.runtime)
            .and_then(|runtime| runtime.write(&runtime.path(FLOWS_TABLE), file.text().as_bytes()));
        match written {
            Ok(_) => {
                self.handed_over = Some(generation);
                self.problems.remove("flows");
            }
            Err(error) => {
                self.problems.insert("flows", format!("the flow table cannot be written: {error}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::percent::WeightPercent;
    use crate::records::{DrainRecord, FlowsRecord, LoadRecord, WeightRecord};

    const BUCKETS: usize = 1024;
    /// Work of all engines together, in cores.
    const WORK: f64 = 8.0;
    const CORES: u32 = 4;

    /// Engines that apply each table at once, have no flows, and work as much as their shares are.
    struct Story {
        mirror: Mirror,
        writer: TableWriter,
        began: Instant,
        seconds: u64,
        is_rejoining: bool,
    }

    impl Story {
        fn of(engines: u8) -> Story {
            let mut mirror = Mirror::default();
            for engine in 0..engines {
                let record = EngineRecord {
                    lineage: format!("l{engine}"),
                    address: Some([10, 0, 0, engine].into()),
                    cores: CORES,
                    is_ready: true,
                    flows: Some(FlowsRecord::default()),
                    ..EngineRecord::default()
                };
                mirror.engines.insert(format!("e{engine}"), record);
            }
            let writer = TableWriter::default();
            let mut story = Story { mirror, writer, began: Instant::now(), seconds: 0, is_rejoining: false };
            story.rest();
            story
        }

        fn weigh(&mut self, engine: &str, percent: u16) {
            let percent = WeightPercent::new(percent).unwrap();
            self.mirror.weights.insert(engine.into(), WeightRecord { percent, ..WeightRecord::default() });
        }

        fn shares(&self) -> Vec<usize> {
            self.mirror.flows.iter().flat_map(|flows| flows.counts.values().copied()).collect()
        }

        /// Whether a second changes the table.
        fn second(&mut self) -> bool {
            self.seconds += 1;
            let (buckets, drain_limit) = (BUCKETS as u32, Duration::from_secs(60));
            let wanted = Wanted { port: 6655, buckets, vips: &[], drain_limit, is_rejoining: self.is_rejoining };
            let now = self.began + Duration::from_secs(self.seconds);
            let Some(next) = self.writer.next(&self.mirror, &wanted, now) else { return false };
            let next = KnownTable::from(next);
            for (name, engine) in &mut self.mirror.engines {
                engine.flows.as_mut().unwrap().generation = next.record.generation;
                let share = next.counts.get(name).copied().unwrap_or(0) as f64 / BUCKETS as f64;
                let load = LoadRecord { cpu: share * WORK / f64::from(CORES), ..LoadRecord::default() };
                self.mirror.loads.insert(name.clone(), load);
            }
            self.mirror.flows = Some(next);
            true
        }

        /// Lets the table come to rest, and returns the buckets of each engine.
        fn rest(&mut self) -> Vec<usize> {
            let (mut quiet, mut generations) = (0, 0);
            while quiet < 15 {
                let is_changed = self.second();
                (quiet, generations) = if is_changed { (0, generations + 1) } else { (quiet + 1, generations) };
                assert!(generations < 200, "no end of it");
            }
            self.shares()
        }
    }

    /// Within a thirty-second of an even share, as a table rests.
    #[track_caller]
    fn are_about(shares: &[usize], wanted: &[usize]) {
        let tolerated = BUCKETS / wanted.len() / 32;
        let is_about = |(share, wanted): (&usize, &usize)| share.abs_diff(*wanted) <= tolerated;
        assert!(shares.len() == wanted.len() && shares.iter().zip(wanted).all(is_about), "{shares:?} {wanted:?}");
    }

    #[test]
    fn engines_that_register_again_after_etcd_was_away_find_the_table_as_it_was_but_for_dead_ones() {
        let mut story = Story::of(3);
        let before = story.shares();
        let (late, mut dead) = (story.mirror.engines.remove("e2").unwrap(), Story::of(3));
        story.is_rejoining = true;
        assert!((0..9).all(|_| !story.second()));
        assert_eq!(story.shares(), before);
        story.mirror.engines.insert("e2".into(), late.clone());
        assert!(!story.second());
        // Without such a reason it has lost its lease, and others take over at once.
        story.is_rejoining = false;
        story.mirror.engines.remove("e2");
        assert!(story.second());
        // Nobody waits for one that is dead.
        dead.is_rejoining = true;
        dead.mirror.engines.remove("e2");
        dead.mirror.deaths.insert("e2".into(), late.lineage);
        assert!(dead.second());
        assert!(!dead.mirror.flows.as_ref().unwrap().record.slots.iter().any(|slot| slot.name == "e2"));
    }

    #[test]
    fn the_table_follows_the_weight_that_an_operator_gives_an_engine() {
        let mut story = Story::of(3);
        are_about(&story.shares(), &[341, 341, 341]);
        for (percent, wanted) in [(25, [114, 455, 455]), (300, [614, 205, 205]), (100, [341, 341, 341])] {
            story.weigh("e0", percent);
            are_about(&story.rest(), &wanted);
        }
        story.weigh("e0", 0);
        let shares = story.rest();
        assert_eq!(shares[0], 0);
        are_about(&shares, &[0, 512, 512]);
        assert!(story.mirror.flows.as_ref().unwrap().record.slots.iter().any(|slot| slot.name == "e0"), "it is listed");
        story.mirror.weights.clear();
        are_about(&story.rest(), &[341, 341, 341]);
    }

    #[test]
    fn a_table_can_be_read_by_the_process_that_loads_it() {
        let story = Story::of(3);
        let KnownTable { record: flows, table, .. } = story.mirror.flows.as_ref().unwrap();
        let table = table.as_ref().unwrap();
        let read = propylon_flows::table::Table::parse(&table_file(flows, 1, table).text()).unwrap();
        assert_eq!((read.generation, read.own, read.port), (flows.generation, 1, 6655));
        assert_eq!((read.seed, &read.buckets, read.engines.len()), (table.seed, &table.buckets, 3));
    }

    #[test]
    fn loads_do_not_undo_what_an_operator_has_set() {
        let mut story = Story::of(4);
        story.weigh("e0", 25);
        let wanted = [79, 315, 315, 315];
        are_about(&story.rest(), &wanted);
        // Longer than an engine's weight takes from all to its least.
        for _ in 0..300 {
            story.second();
        }
        are_about(&story.shares(), &wanted);
    }

    #[test]
    fn engines_without_weight_get_everything_if_no_other_serves() {
        let mut story = Story::of(3);
        story.weigh("e0", 0);
        story.rest();
        for other in ["e1", "e2"] {
            story.mirror.drains.insert(other.into(), DrainRecord::default());
            story.mirror.engines.get_mut(other).unwrap().draining = Some(1);
        }
        assert_eq!(story.rest(), [BUCKETS, 0, 0]);
        let mut story = Story::of(2);
        ["e0", "e1"].iter().for_each(|engine| story.weigh(engine, 0));
        are_about(&story.rest(), &[512, 512]);
    }
}

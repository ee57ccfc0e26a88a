//! A service's engines: how many carry it when some of them are gone, and what each has to do then and normally.

use super::quantity::parse_count;
use super::requirements::{Refusal, Requirements};
use super::size::show_bytes;
use crate::report::Table;
use crate::units::show_number;
use serde::{Deserialize, Serialize};

/// Racks that engines may be spread over.
pub const RACKS_MAX: u32 = 1000;
/// Engines of one service, at the most that can be asked for.
pub const ENGINES_MAX: u64 = 100_000;

/// The failure that a service is to outlive with all of its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Redundancy {
    /// No failure
    #[value(name = "n")]
    None,
    /// One engine is gone
    #[value(name = "n+1")]
    Engine,
    /// All engines of one rack are gone
    #[value(name = "n+rack")]
    Rack,
}

/// Engines that a service has, needs, and may lose at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engines {
    pub needed: u64,
    pub total: u64,
    /// Gone at once, while the rest carries everything.
    pub lost: u64,
}

impl Engines {
    /// The least number of engines that leaves enough when the worst has happened. Engines are spread over racks as
    /// evenly as they can be, so that the fullest rack has `total / racks` of them, rounded up.
    pub fn for_needed(requirements: &Requirements, needed: u64) -> Self {
        match requirements.racks.map(u64::from) {
            // total - ⌈total / racks⌉ ≥ needed, solved for the total.
            Some(racks) if racks > 1 => {
                let total = needed.saturating_add(needed.div_ceil(racks - 1));
                Self { needed, total, lost: total.div_ceil(racks) }
            }
            _ => {
                let lost = u64::from(requirements.spare_engines);
                Self { needed, total: needed.saturating_add(lost), lost }
            }
        }
    }

    /// Engines that carry the load when the worst has happened to so many.
    pub fn carrying(requirements: &Requirements, most: u64) -> u64 {
        let lost =
            requirements.racks.map_or(u64::from(requirements.spare_engines), |racks| most.div_ceil(racks.into()));
        most.saturating_sub(lost)
    }

    pub fn left(self) -> u64 {
        self.total - self.lost
    }

    /// As a line of arithmetic.
    pub fn formula(self, requirements: &Requirements) -> String {
        let Self { needed, total, lost } = self;
        match requirements.racks {
            Some(racks) => format!(
                "{needed} + {needed} ÷ {}, rounded up ({racks} racks with {lost} or fewer each, any rack may fail)",
                racks - 1
            ),
            None => format!("{needed} + {} (N+M: all carry traffic, any {lost} may fail)", total - needed),
        }
    }
}

/// The load of one engine, margin included. `None`: not required.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PerEngine {
    /// Engines that share the load.
    pub engines: u64,
    pub transactions_per_second: Option<f64>,
    pub throughput_gbps: Option<f64>,
    pub connections: Option<f64>,
    pub memory_bytes: Option<f64>,
    pub cores: Option<f64>,
    /// Share of the engine's cores, 0 to 1.
    pub cpu: Option<f64>,
}

/// Needs of the whole service, margin included.
#[derive(Clone, Copy)]
pub struct Whole {
    pub cores: f64,
    pub memory_bytes: f64,
    pub engine_cores: u32,
}

impl PerEngine {
    pub fn of(requirements: &Requirements, whole: Whole, engines: u64) -> Self {
        let scale = 1.0 + requirements.margin;
        let each = |sum: f64| sum / engines as f64;
        let positive = |sum: f64| (sum > 0.0).then(|| each(sum));
        let cores = positive(whole.cores);
        Self {
            engines,
            transactions_per_second: requirements.transactions_per_second.map(|sum| each(sum * scale)),
            throughput_gbps: requirements.throughput_gbps.map(|sum| each(sum * scale)),
            connections: requirements.connections.map(|sum| each(sum * scale)),
            memory_bytes: positive(whole.memory_bytes),
            cores,
            cpu: cores.map(|cores| cores / f64::from(whole.engine_cores)),
        }
    }
}

/// Each engine's figures side by side: normally, and when the worst has happened.
pub fn table(normally: &PerEngine, degraded: &PerEngine) -> Table {
    let both: Vec<&PerEngine> =
        if normally.engines == degraded.engines { vec![normally] } else { vec![normally, degraded] };
    let mut table = Table::of_facts();
    let mut row = |name: &str, shown: &dyn Fn(&PerEngine) -> Option<String>| {
        if let Some(cells) = both.iter().map(|one| shown(one)).collect::<Option<Vec<String>>>() {
            table.row(std::iter::once(name.to_owned()).chain(cells));
        }
    };
    row("engines", &|one| {
        let gone = normally.engines - one.engines;
        Some(if gone == 0 { format!("all {}", one.engines) } else { format!("{} left, {gone} gone", one.engines) })
    });
    row("transactions", &|one| Some(format!("{}/s", show_number(one.transactions_per_second?))));
    row("throughput", &|one| Some(format!("{} Gb/s", show_number(one.throughput_gbps?))));
    row("connections", &|one| Some(format!("{:.0}", one.connections?)));
    row("memory", &|one| Some(show_bytes(one.memory_bytes?)));
    row("cores", &|one| Some(format!("{} ({:.0} %)", show_number(one.cores?), one.cpu? * 100.0)));
    table
}

/// A number of engines: 64, 1k.
pub fn parse_engines(text: &str) -> Result<u64, String> {
    let count = parse_count(text)?;
    match count.fract() == 0.0 && count <= ENGINES_MAX as f64 {
        true => Ok(count as u64),
        false => Err(format!("write a whole number from 1 to {ENGINES_MAX}")),
    }
}

/// Racks that cannot be meant so.
pub fn check(requirements: &Requirements) -> Result<(), Refusal> {
    match requirements.racks {
        Some(0 | 1) => Err(Refusal::new(
            "with one rack gone nothing is left: all engines are in it",
            ["spread them over two racks or more (--racks)", "plan for the loss of one engine: --redundancy n+1"],
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::size::tests::requirements;
    use super::*;

    /// Engines of the fullest rack, when they are dealt out one by one.
    fn fullest(total: u64, racks: u64) -> u64 {
        let mut all = vec![0; racks as usize];
        (0..total).for_each(|engine| all[(engine % racks) as usize] += 1);
        all.into_iter().max().unwrap_or(0)
    }

    #[test]
    fn a_rack_that_fails_leaves_as_many_as_are_needed_and_no_engine_is_too_many() {
        for (needed, racks) in (1..60).flat_map(|needed| (2..12).map(move |racks| (needed, racks))) {
            let racks_given = Some(u32::try_from(racks).unwrap());
            let engines = Engines::for_needed(&Requirements { racks: racks_given, ..requirements() }, needed);
            let leaves_enough = |total: u64| total - fullest(total, racks) >= needed;
            let least = (needed..).find(|total| leaves_enough(*total)).unwrap();
            assert_eq!((engines.total, engines.lost), (least, fullest(least, racks)), "{needed} in {racks} racks");
            assert!(engines.left() >= needed);
        }
    }

    #[test]
    fn engines_that_carry_are_those_that_the_worst_failure_leaves() {
        let of = |racks, spare_engines| Requirements { racks, spare_engines, ..requirements() };
        assert_eq!(Engines::carrying(&of(Some(4), 0), 32), 24);
        assert_eq!(Engines::carrying(&of(Some(4), 0), 33), 24);
        assert_eq!(Engines::carrying(&of(None, 1), 32), 31);
        assert_eq!(Engines::carrying(&of(None, 40), 32), 0);
        assert_eq!(Engines::for_needed(&of(None, 2), 5), Engines { needed: 5, total: 7, lost: 2 });
        assert_eq!(Engines::for_needed(&of(None, 0), 5), Engines { needed: 5, total: 5, lost: 0 });
    }

    #[test]
    fn one_engine_does_more_when_others_are_gone_and_all_of_it_is_carried() {
        let requirements = Requirements {
            transactions_per_second: Some(20e3),
            throughput_gbps: Some(5.0),
            margin: 0.5,
            racks: Some(3),
            ..requirements()
        };
        let whole = Whole { cores: 22.5, memory_bytes: 0.0, engine_cores: 4 };
        let [normally, degraded] = [9, 6].map(|engines| PerEngine::of(&requirements, whole, engines));
        assert_eq!((normally.cores, normally.cpu), (Some(2.5), Some(0.625)));
        assert_eq!((degraded.cores, degraded.cpu), (Some(3.75), Some(0.9375)));
        assert_eq!((degraded.transactions_per_second, degraded.throughput_gbps), (Some(5e3), Some(1.25)));
        assert!(degraded.memory_bytes.is_none() && degraded.connections.is_none());
        let text = table(&normally, &degraded).render();
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
            .collect();
        assert_eq!(lines[0], ["engines", "all 9", "6 left, 3 gone"]);
        assert_eq!(lines[3], ["cores", "2.50 (62 %)", "3.75 (94 %)"]);
        assert_eq!(lines.len(), 4);
        assert_eq!(table(&normally, &normally).render().lines().next(), Some("engines       all 9"));
    }

    #[test]
    fn one_rack_is_refused_and_a_number_of_engines_is_whole() {
        let refused = |racks| check(&Requirements { racks: Some(racks), ..requirements() }).is_err();
        assert!(refused(1) && refused(0) && !refused(2));
        assert_eq!(parse_engines("1k"), Ok(1000));
        assert!(parse_engines("1.5").is_err() && parse_engines("0").is_err() && parse_engines("1M").is_err());
    }
}

//! From requirements and figures to cores, memory and engines, each step written down as it is taken.

use super::engines::{ENGINES_MAX, Engines, PerEngine, Whole};
use super::figures::{Figure, Figures, Kind, REENCRYPTION_FACTOR};
use super::requirements::{Refusal, Requirements, Traffic, key_title};
use crate::quantity::Label;
use crate::units::show_number;
use serde::{Deserialize, Serialize};

/// Engines that share one service when the first hands packets to the others, in the documents of Avi (NSX ALB), which
/// do so (native scale-out). Propylon's do not hand packets to each other: the number is Avi's idea of what is small.
pub const NATIVE_ENGINES_MAX: u64 = 4;
/// Engines that share one service behind a router, by the same documents (BGP with equal-cost paths).
pub const ECMP_ENGINES_MAX: u64 = 32;
/// Key servers carry twice the load, so that half of them may be gone (documents).
const KEY_SERVER_LOAD_FACTOR: f64 = 2.0;
/// Engine sizes to choose from when none is given, in cores.
const ENGINE_CORES_OFFERED: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// One line of arithmetic: `what: formula = value unit`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    pub what: String,
    pub formula: String,
    pub value: f64,
    pub unit: Label,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScaleOut {
    /// One engine takes all traffic.
    None,
    Native,
    Ecmp,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// With the margin, for all engines together.
    pub cores: f64,
    pub memory_bytes: f64,
    pub engine_cores: u32,
    /// Least memory for one engine, when it carries its share of a service that lost as many as it may.
    pub engine_memory_bytes: f64,
    /// Engines that must be alive to carry the requirements.
    pub engines_needed: u64,
    pub engines_spare: u64,
    /// Engines that may be gone at once: the spare ones, or those of the fullest rack.
    pub engines_lost_max: u64,
    /// The load of each engine while all are there.
    pub per_engine: PerEngine,
    /// The load of each that is left when so many are gone.
    pub per_engine_left: PerEngine,
    pub scale_out: ScaleOut,
    /// The resource that the number of engines follows from.
    pub limited_by: Label,
    pub key_servers: Option<KeyServers>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeyServers {
    pub servers: u64,
    pub cores_each: u32,
}

/// The steps so far; also of a plan that came to nothing.
#[derive(Default)]
pub struct Calculation {
    pub steps: Vec<Step>,
    pub figures_used: Vec<(Kind, Figure)>,
}

/// Cores and memory for the whole service, margin included.
struct Need {
    cores: f64,
    memory_bytes: f64,
    files: f64,
    ports: f64,
}

impl Calculation {
    /// The whole plan.
    pub fn size(&mut self, requirements: &Requirements, figures: &Figures) -> Result<Answer, Refusal> {
        requirements.check()?;
        let need = self.need(requirements, figures)?;
        let engine_cores = match requirements.engine.cores {
            Some(cores) => cores,
            None => self.choose_engine(requirements, &need)?,
        };
        let (needed, limited_by) = self.engines(requirements, &need, engine_cores);
        let engines = Engines::for_needed(requirements, needed);
        if engines.lost > 0 {
            let what =
                if requirements.racks.is_some() { "engines with a rack to spare" } else { "engines with spares" };
            self.step(what, engines.formula(requirements), engines.total as f64, "engines");
        }
        let scale_out = scale_out(engines.total, requirements.engines_max)
            .ok_or_else(|| too_many(requirements, &need, engine_cores, limited_by))?;
        let engine_memory_bytes = need.memory_bytes / engines.left() as f64;
        if need.memory_bytes > 0.0 {
            let formula = format!("{} ÷ {}", show_bytes(need.memory_bytes), engines.left());
            self.step("memory in each engine, at the least", formula, engine_memory_bytes / 1e9, "GB");
        }
        let whole = Whole { cores: need.cores, memory_bytes: need.memory_bytes, engine_cores };
        let key_servers = self.key_servers(requirements, figures, engine_cores)?;
        Ok(Answer {
            cores: need.cores,
            memory_bytes: need.memory_bytes,
            engine_cores,
            engine_memory_bytes,
            engines_needed: needed,
            engines_spare: engines.total - needed,
            engines_lost_max: engines.lost,
            per_engine: PerEngine::of(requirements, whole, engines.total),
            per_engine_left: PerEngine::of(requirements, whole, engines.left()),
            scale_out,
            limited_by: limited_by.into(),
            key_servers,
        })
    }

    fn step(&mut self, what: impl Into<String>, formula: String, value: f64, unit: &'static str) -> f64 {
        self.steps.push(Step { what: what.into(), formula, value, unit: unit.into() });
        value
    }

    fn figure(&mut self, figures: &Figures, kind: Kind) -> Option<f64> {
        let figure = figures.of(kind)?.clone();
        let value = figure.value;
        if !self.figures_used.iter().any(|(used, _)| *used == kind) {
            self.figures_used.push((kind, figure));
        }
        Some(value)
    }

    fn need(&mut self, requirements: &Requirements, figures: &Figures) -> Result<Need, Refusal> {
        let transactions = self.transaction_cores(requirements, figures);
        let bulk = self.bulk_cores(requirements, figures)?;
        let parts: Vec<f64> = [transactions, bulk].into_iter().flatten().collect();
        let scale = 1.0 + requirements.margin;
        let mut cores = 0.0;
        if !parts.is_empty() {
            let formula = parts.iter().map(|part| exact(*part)).collect::<Vec<_>>().join(" + ");
            let sum = self.step("cores for the requirements", formula, parts.iter().sum(), "cores");
            cores =
                self.step("cores with the margin", format!("{} × {}", exact(sum), exact(scale)), sum * scale, "cores");
        }
        let mut need = Need { cores, memory_bytes: 0.0, files: 0.0, ports: 0.0 };
        if let Some(connections) = requirements.connections {
            self.connection_needs(requirements, figures, connections, &mut need)?;
        }
        Ok(need)
    }

    fn transaction_cores(&mut self, requirements: &Requirements, figures: &Figures) -> Option<f64> {
        let per_second = requirements.transactions_per_second?;
        let rate = self.figure(figures, Kind::transactions(requirements.key))?;
        let what = format!("cores for handshakes, {}", key_title(requirements.key));
        let formula = format!("{}/s ÷ {}/s per core", exact(per_second), exact(rate));
        Some(self.step(what, formula, per_second / rate, "cores"))
    }

    fn bulk_cores(&mut self, requirements: &Requirements, figures: &Figures) -> Result<Option<f64>, Refusal> {
        let Some(gigabits) = requirements.throughput_gbps else { return Ok(None) };
        let reencrypted = if requirements.reencrypt { self.figure(figures, Kind::ReencryptedBulk) } else { None };
        let rate = match reencrypted {
            Some(rate) => rate,
            None => self.figure(figures, Kind::bulk(requirements.traffic)).ok_or_else(|| {
                Refusal::new(
                    format!("there is no rule for the throughput of {} per core", requirements.traffic.name()),
                    ["measure it: plan --measure (TLS and plain HTTP)", "or give a result that has it: --from FILE"],
                )
            })?,
        };
        self.check_one_core_connections(requirements, gigabits, rate)?;
        let what = format!("cores for throughput, {}", requirements.traffic.name());
        let formula = format!("{} Gb/s ÷ {} Gb/s per core", exact(gigabits), exact(rate));
        let cores = self.step(what, formula, gigabits / rate, "cores");
        if !requirements.reencrypt || reencrypted.is_some() {
            return Ok(Some(cores));
        }
        let formula = format!("{} × {} (bulk work is done twice)", exact(cores), exact(REENCRYPTION_FACTOR));
        Ok(Some(self.step("cores for throughput, re-encrypted", formula, cores * REENCRYPTION_FACTOR, "cores")))
    }

    /// A connection lives on one core, so it gets no more than that core can move.
    fn check_one_core_connections(&self, requirements: &Requirements, gigabits: f64, rate: f64) -> Result<(), Refusal> {
        let Some(connections) = requirements.connections else { return Ok(()) };
        let each = gigabits / connections;
        if each <= rate {
            return Ok(());
        }
        Err(Refusal::new(
            format!(
                "{} Gb/s over {} connections is {} Gb/s for each, and one connection is served by one core, \
                 which moves {} Gb/s",
                exact(gigabits),
                exact(connections),
                exact(each),
                exact(rate)
            ),
            [format!("require at least {} connections", whole(gigabits / rate)), "require less throughput".to_owned()],
        ))
    }

    fn connection_needs(
        &mut self,
        requirements: &Requirements,
        figures: &Figures,
        connections: f64,
        need: &mut Need,
    ) -> Result<(), Refusal> {
        let scale = 1.0 + requirements.margin;
        let kind = Kind::connection(requirements.traffic);
        let each = self.figure(figures, kind).expect("the documents have a rule for every kind of connection");
        let formula = format!("{} × {} kB", exact(connections), exact(each / 1e3));
        let memory = connections * each;
        let what = format!("memory for connections, {}", requirements.traffic.name());
        let memory_gb = self.step(what, formula, memory / 1e9, "GB");
        let formula = format!("{} × {}", exact(memory_gb), exact(scale));
        self.step("memory with the margin", formula, memory_gb * scale, "GB");
        need.memory_bytes = memory * scale;
        // A relayed connection holds its server's connection all its life; HTTP shares pooled ones between requests.
        let files_each = if requirements.traffic == Traffic::Tcp { 2.0 } else { 1.0 };
        let formula = format!("{} × {} × {}", exact(connections), exact(files_each), exact(scale));
        need.files = self.step("open files", formula, connections * files_each * scale, "files");
        if requirements.traffic == Traffic::Tcp {
            let formula = format!("{} × {}", exact(connections), exact(scale));
            need.ports = self.step("local ports towards servers", formula, connections * scale, "ports");
        }
        Ok(())
    }

    /// The least number of engines, and why that many.
    fn engines(&mut self, requirements: &Requirements, need: &Need, engine_cores: u32) -> (u64, &'static str) {
        let limits = limits(requirements, need, engine_cores);
        for (name, need, per_engine) in &limits {
            let unit = if *name == "memory" { " GB" } else { "" };
            let formula = format!("{}{unit} ÷ {}{unit} in one, rounded up", exact(*need), exact(*per_engine));
            self.step(format!("engines by {name}"), formula, ceil(need / per_engine) as f64, "engines");
        }
        let (needed, limited_by) = engines_for(requirements, need, engine_cores);
        let formula = "the largest of these".to_owned();
        self.step("engines needed", formula, needed as f64, "engines");
        (needed, limited_by)
    }

    /// The smallest engine of which few are enough; else the smallest of which a router can spread as many as it takes.
    fn choose_engine(&mut self, requirements: &Requirements, need: &Need) -> Result<u32, Refusal> {
        let total = |cores: u32| Engines::for_needed(requirements, engines_for(requirements, need, cores).0).total;
        let fits = |most: u64| Some((ENGINE_CORES_OFFERED.into_iter().find(|cores| total(*cores) <= most)?, most));
        let chosen = fits(NATIVE_ENGINES_MAX.min(requirements.engines_max)).or_else(|| fits(requirements.engines_max));
        let largest = ENGINE_CORES_OFFERED[ENGINE_CORES_OFFERED.len() - 1];
        let Some((cores, most)) = chosen else {
            let (_, limited_by) = engines_for(requirements, need, largest);
            return Err(too_many(requirements, need, largest, limited_by));
        };
        let formula = format!("not given: of 1, 2, 4 … 128 the fewest that make do with {most} engines");
        self.step("cores of one engine", formula, f64::from(cores), "cores");
        Ok(cores)
    }

    fn key_servers(
        &mut self,
        requirements: &Requirements,
        figures: &Figures,
        engine_cores: u32,
    ) -> Result<Option<KeyServers>, Refusal> {
        let (true, Some(per_second)) = (requirements.keyless, requirements.transactions_per_second) else {
            return Ok(None);
        };
        let rate = self.figure(figures, Kind::signatures(requirements.key)).unwrap_or(f64::NAN);
        let scale = 1.0 + requirements.margin;
        let formula = format!(
            "{}/s × {} × {} ÷ {}/s per core",
            exact(per_second),
            exact(KEY_SERVER_LOAD_FACTOR),
            exact(scale),
            exact(rate)
        );
        let cores = per_second * KEY_SERVER_LOAD_FACTOR * scale / rate;
        self.step("key servers' cores, at twice the load", formula, cores, "cores");
        // Two at least: twice the load in one machine would still be gone with that machine.
        let servers = ceil(cores / f64::from(engine_cores)).max(2);
        let cores_each = ceil(cores / servers as f64);
        let formula = format!("{} ÷ {engine_cores} in one, rounded up, and 2 at the least", exact(cores));
        self.step("key servers", formula, servers as f64, "servers");
        Ok(Some(KeyServers { servers, cores_each: cores_each as u32 }))
    }
}

/// Name, need and what one engine has, in the same unit.
fn limits(requirements: &Requirements, need: &Need, engine_cores: u32) -> Vec<(&'static str, f64, f64)> {
    let engine = &requirements.engine;
    let mut limits = Vec::new();
    if need.cores > 0.0 {
        limits.push(("cores", need.cores, f64::from(engine_cores)));
    }
    if let Some(memory) = engine.memory_bytes.filter(|_| need.memory_bytes > 0.0) {
        limits.push(("memory", need.memory_bytes / 1e9, memory / 1e9));
    }
    if need.files > 0.0 {
        limits.push(("files", need.files, engine.files as f64));
    }
    if need.ports > 0.0 {
        limits.push(("ports", need.ports, engine.ports as f64 * engine.servers as f64));
    }
    limits
}

fn engines_for(requirements: &Requirements, need: &Need, engine_cores: u32) -> (u64, &'static str) {
    let all = limits(requirements, need, engine_cores).into_iter().map(|(name, need, per)| (ceil(need / per), name));
    all.fold((1, "cores"), |best, next| if next.0 > best.0 { next } else { best })
}

/// The way to spread a service over so many engines, of which a router takes `most`.
pub fn scale_out(engines: u64, most: u64) -> Option<ScaleOut> {
    match engines {
        _ if engines > most => None,
        0..=1 => Some(ScaleOut::None),
        2..=NATIVE_ENGINES_MAX => Some(ScaleOut::Native),
        _ => Some(ScaleOut::Ecmp),
    }
}

fn too_many(requirements: &Requirements, need: &Need, engine_cores: u32, limited_by: &str) -> Refusal {
    let needed = engines_for(requirements, need, engine_cores).0;
    let Engines { total, .. } = Engines::for_needed(requirements, needed);
    let (spare, most) = (total - needed, requirements.engines_max);
    let of_whom = if most == ECMP_ENGINES_MAX { "the sizing guide has a router" } else { "--engines-max has a router" };
    let why = format!(
        "{total} engines of {engine_cores} cores for one service (limited by {limited_by}{}); \
         {of_whom} spread at most {most}",
        if spare > 0 { format!(", {spare} of them spare") } else { String::new() }
    );
    let carrying = Engines::carrying(requirements, most);
    if carrying == 0 {
        let remedy = match requirements.racks {
            Some(_) => "a router that takes two engines or more (--engines-max)".to_owned(),
            None => format!("keep fewer than {most} spare engines"),
        };
        return Refusal::new(why, [remedy]);
    }
    let mut remedies = Vec::new();
    for (name, need, per_engine) in limits(requirements, need, engine_cores) {
        let least = need / carrying as f64;
        if least <= per_engine {
            continue;
        }
        remedies.push(match name {
            "cores" => format!("engines of at least {} cores (--engine-cores)", whole(least)),
            "memory" => format!("engines with at least {} GB (--engine-memory)", whole(least)),
            "files" => format!("at least {} open files for each engine (--engine-files)", whole(least)),
            _ => format!(
                "more servers, each another set of {} local ports (--servers {}), or more ports (--engine-ports)",
                requirements.engine.ports,
                whole(least / requirements.engine.ports as f64)
            ),
        });
    }
    if total <= ENGINES_MAX {
        remedies.push(format!("a router that takes at least {total} paths (--engines-max {total})"));
    }
    let services = needed.div_ceil(carrying);
    remedies.push(format!("split it into at least {services} services, each with engines of its own"));
    Refusal::new(why, remedies)
}

/// Rounded up; an error in the last bits of a quotient is not another engine.
fn ceil(value: f64) -> u64 {
    (value * (1.0 - 1e-12)).ceil() as u64
}

fn whole(value: f64) -> String {
    ceil(value).to_string()
}

/// Up to four decimals, none of them a trailing zero, and no exponent: what a reader can check by hand.
pub fn exact(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "0" && value != 0.0 { format!("{value:.2e}") } else { text.to_owned() }
}

pub fn show_bytes(bytes: f64) -> String {
    match bytes {
        b if b >= 1e9 => format!("{} GB", show_number(b / 1e9)),
        b if b >= 1e6 => format!("{} MB", show_number(b / 1e6)),
        b => format!("{} kB", show_number(b / 1e3)),
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::requirements::Engine;
    use super::*;
    use crate::target::Key;

    /// Nothing but an engine of 8 cores.
    pub fn requirements() -> Requirements {
        Requirements {
            transactions_per_second: None,
            key: Key::Ec,
            throughput_gbps: None,
            connections: None,
            traffic: Traffic::Tls,
            reencrypt: false,
            keyless: false,
            spare_engines: 0,
            racks: None,
            engines_max: ECMP_ENGINES_MAX,
            margin: 0.0,
            engine: Engine { cores: Some(8), memory_bytes: None, files: 1 << 20, ports: 28232, servers: 1 },
        }
    }

    fn size(requirements: &Requirements) -> Result<Answer, Refusal> {
        Calculation::default().size(requirements, &Figures::of_the_documents())
    }

    /// The documents' worked example: 20,000 EC transactions/s and 5 Gb/s are 15 cores.
    fn example() -> Requirements {
        Requirements {
            transactions_per_second: Some(20e3),
            throughput_gbps: Some(5.0),
            connections: Some(1e6),
            ..requirements()
        }
    }

    #[test]
    fn the_worked_example_comes_out() {
        let answer = size(&example()).unwrap();
        assert_eq!((answer.cores, answer.memory_bytes, answer.engines_needed), (15.0, 40e9, 2));
        let with_margin = size(&Requirements { margin: 0.3, ..example() }).unwrap();
        assert_eq!((with_margin.cores, with_margin.engines_needed), (19.5, 3));
        let rsa = size(&Requirements { key: Key::Rsa, ..example() }).unwrap();
        assert_eq!(rsa.cores, 45.0);
        let reencrypted = size(&Requirements { reencrypt: true, ..example() }).unwrap();
        assert_eq!(reencrypted.cores, 20.0);
    }

    #[test]
    fn a_connection_costs_half_as_http_and_a_quarter_as_tcp() {
        let memory = |traffic, servers| {
            let engine = Engine { servers, ..requirements().engine };
            size(&Requirements { connections: Some(1e6), traffic, engine, ..requirements() }).unwrap().memory_bytes
        };
        assert_eq!((memory(Traffic::Http, 1), memory(Traffic::Tcp, 100)), (20e9, 10e9));
    }

    /// `engines` engines' worth of transactions, to the last core.
    fn filling(engines: f64) -> Requirements {
        Requirements { transactions_per_second: Some(engines * 8.0 * 2000.0), ..requirements() }
    }

    #[test]
    fn scale_out_changes_between_4_and_5_engines_and_ends_between_32_and_33() {
        let outcome = |requirements: Requirements| size(&requirements).map(|answer| answer.scale_out).map_err(|_| ());
        assert_eq!(outcome(filling(1.0)), Ok(ScaleOut::None));
        assert_eq!(outcome(filling(4.0)), Ok(ScaleOut::Native));
        assert_eq!(outcome(filling(4.0001)), Ok(ScaleOut::Ecmp));
        assert_eq!(outcome(filling(32.0)), Ok(ScaleOut::Ecmp));
        assert_eq!(outcome(filling(32.0001)), Err(()));
        // A spare engine is one of them.
        assert_eq!(outcome(Requirements { spare_engines: 1, ..filling(4.0) }), Ok(ScaleOut::Ecmp));
        assert_eq!(outcome(Requirements { spare_engines: 1, ..filling(32.0) }), Err(()));
    }

    #[test]
    fn what_does_not_fit_says_what_would() {
        let refusal = size(&filling(64.0)).unwrap_err();
        assert!(refusal.why.contains("64 engines") && refusal.why.contains("cores"), "{refusal:?}");
        assert!(refusal.remedies.iter().any(|remedy| remedy.contains("at least 16 cores")), "{refusal:?}");
        assert!(refusal.remedies.iter().any(|remedy| remedy.contains("at least 2 services")), "{refusal:?}");
        let large =
            size(&Requirements { engine: Engine { cores: Some(16), ..requirements().engine }, ..filling(64.0) });
        assert_eq!(large.unwrap().engines_needed, 32);

        let engine = Engine { memory_bytes: Some(1e9), ..requirements().engine };
        let refusal = size(&Requirements { connections: Some(1e6), engine, ..requirements() }).unwrap_err();
        assert!(refusal.remedies.iter().any(|remedy| remedy.contains("at least 2 GB")), "{refusal:?}");
        let refusal =
            size(&Requirements { connections: Some(1e6), traffic: Traffic::Tcp, ..requirements() }).unwrap_err();
        assert!(refusal.remedies.iter().any(|remedy| remedy.contains("--servers 2")), "{refusal:?}");
        let refusal = size(&Requirements { spare_engines: 32, ..example() }).unwrap_err();
        assert!(refusal.remedies[0].contains("fewer"), "{refusal:?}");
    }

    #[test]
    fn files_of_one_process_are_a_limit() {
        let engines = |connections| size(&Requirements { connections: Some(connections), ..requirements() }).unwrap();
        assert_eq!(engines(1_048_576.0).engines_needed, 1);
        let two = engines(1_048_577.0);
        assert_eq!((two.engines_needed, &*two.limited_by), (2, "files"));
    }

    #[test]
    fn key_servers_are_two_at_least_and_carry_twice_the_load() {
        let servers = |key, per_second| {
            let requirements =
                Requirements { transactions_per_second: Some(per_second), key, keyless: true, ..requirements() };
            let key_servers = size(&requirements).unwrap().key_servers.unwrap();
            (key_servers.servers, key_servers.cores_each)
        };
        assert_eq!(servers(Key::Ec, 100.0), (2, 1));
        // A core does 59,000 signatures a second, which no rule for transactions tells.
        assert_eq!(servers(Key::Ec, 20_000.0), (2, 1));
        assert_eq!(servers(Key::Rsa, 16_000.0), (2, 4));
    }

    #[test]
    fn contradictions_are_told() {
        let refused = |requirements: Requirements| size(&requirements).unwrap_err().why;
        assert!(refused(requirements()).contains("nothing"));
        assert!(refused(Requirements { traffic: Traffic::Http, ..example() }).contains("--tps"));
        let http = Requirements { traffic: Traffic::Http, transactions_per_second: None, ..example() };
        assert!(refused(Requirements { reencrypt: true, ..http.clone() }).contains("--reencrypt"));
        assert!(refused(http).contains("no rule"));
        assert!(
            refused(Requirements { keyless: true, connections: Some(5.0), ..requirements() }).contains("--keyless")
        );
        assert!(
            refused(Requirements { connections: Some(2.0), throughput_gbps: None, ..example() }).contains("handshake")
        );
        let thick = Requirements { connections: Some(2.0), throughput_gbps: Some(5.0), ..requirements() };
        assert!(refused(thick).contains("one core"));
    }

    #[test]
    fn without_an_engine_the_smallest_that_will_do_is_chosen() {
        let engine = Engine { cores: None, ..requirements().engine };
        let answer = size(&Requirements { engine, spare_engines: 1, margin: 0.3, ..example() }).unwrap();
        assert_eq!((answer.engine_cores, answer.engines_needed, answer.engines_spare), (8, 3, 1));
    }

    #[test]
    fn the_loss_of_a_rack_is_carried_by_those_that_are_left() {
        // 6 engines' worth: with 4 racks 8 engines, 2 in each, of which 6 are left.
        let answer = size(&Requirements { racks: Some(4), ..filling(6.0) }).unwrap();
        assert_eq!((answer.engines_needed, answer.engines_spare, answer.engines_lost_max), (6, 2, 2));
        assert_eq!((answer.per_engine.cpu, answer.per_engine_left.cpu), (Some(0.75), Some(1.0)));
        // More racks than engines: a rack is an engine.
        let answer = size(&Requirements { racks: Some(40), ..filling(6.0) }).unwrap();
        assert_eq!((answer.engines_spare, answer.engines_lost_max), (1, 1));
        // Memory is sized for the time when a rack is gone.
        let connections = Requirements { connections: Some(4e6), racks: Some(3), ..requirements() };
        let answer = size(&connections).unwrap();
        assert_eq!((answer.per_engine_left.engines, answer.engine_memory_bytes), (4, 40e9));
    }

    #[test]
    fn more_engines_than_a_router_takes_are_refused_with_the_number_that_would_do() {
        assert_eq!(size(&Requirements { engines_max: 64, ..filling(64.0) }).unwrap().scale_out, ScaleOut::Ecmp);
        let refusal = size(&Requirements { engines_max: 64, racks: Some(9), ..filling(64.0) }).unwrap_err();
        assert!(refusal.why.contains("72 engines") && refusal.why.contains("8 of them spare"), "{refusal:?}");
        assert!(refusal.remedies.iter().any(|remedy| remedy.contains("--engines-max 72")), "{refusal:?}");
        let small = size(&Requirements { engines_max: 1, racks: Some(2), ..filling(1.0) }).unwrap_err();
        assert!(small.remedies[0].contains("two engines"), "{small:?}");
        // The engine that is chosen is large enough for few to do.
        let engine = Engine { cores: None, ..requirements().engine };
        let chosen = size(&Requirements { engines_max: 3, engine, ..filling(4.0) }).unwrap();
        assert_eq!((chosen.engine_cores, chosen.engines_needed), (16, 2));
    }
}

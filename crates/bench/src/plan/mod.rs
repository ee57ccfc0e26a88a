//! `plan`: how many cores, how much memory and how many engines a service needs, with the arithmetic to follow.
//!
//! `quantity` reads requirements as people write them, `requirements` refuses those that contradict each other,
//! `figures` knows what things cost (the documents' rules, or measurements), `size` does the sums and writes each of
//! them down, `engines` knows how many there have to be so that some may fail.

mod engines;
mod figures;
mod quantity;
mod requirements;
mod size;

use crate::compare::{self, Peer, Row};
use crate::failure::{Failure, Outcome, While};
use crate::interrupt::Interrupt;
use crate::report::{self, Table, progress};
use crate::results::ResultFile;
use crate::target::Key;
use crate::units::parse_duration;
use engines::Redundancy;
use figures::{Figures, Kind};
use requirements::{Engine, Refusal, Requirements, Traffic, key_title};
use serde::{Deserialize, Serialize};
use size::{Answer, Calculation, ScaleOut, exact, show_bytes};
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Sizing: cores, memory and engines for transactions, throughput and connections
#[derive(clap::Args)]
#[command(
    allow_negative_numbers = true,
    after_help = "Examples:\n  \
    propylon-bench plan --tps 20000 --key ec --throughput 5Gbps --connections 1000000 --ha --engine-cores 8\n  \
    propylon-bench plan --tps 20000 --throughput 5Gbps --connections 1M --measure --json plan.json\n  \
    propylon-bench plan --tps 2000 --key rsa --keyless --from compare.json\n  \
    propylon-bench plan --tps 200k --redundancy n+rack --racks 4 --engines-max 64 --cores-per-engine 16\n\n\
    Figures are the documents' rules (500 RSA-2048 or 2,000 EC P-256 transactions/s and 1 Gb/s of TLS per core, 40 kB\n\
    per TLS connection), unless --measure or --from put measured ones in their place. Infeasible requirements get a reason,\n\
    what would make them feasible, and exit code 1."
)]
pub struct Arguments {
    /// Full TLS handshakes per second: 20000, 20k
    #[arg(long, value_name = "PER_SECOND", value_parser = quantity::parse_count)]
    pub tps: Option<f64>,
    /// Key type of the certificate
    #[arg(long, value_name = "TYPE", default_value = "ec")]
    pub key: Key,
    /// Traffic to and from clients: 5Gbps, 800Mbps
    #[arg(long, value_name = "RATE", value_parser = quantity::parse_bandwidth)]
    pub throughput: Option<f64>,
    /// Client connections open at once: 1000000, 1M
    #[arg(long, value_name = "N", value_parser = quantity::parse_count)]
    pub connections: Option<f64>,
    /// Clients speak TLS (the default)
    #[arg(long, conflicts_with_all = ["http", "tcp"])]
    pub tls: bool,
    /// Clients speak plain HTTP
    #[arg(long, conflicts_with = "tcp")]
    pub http: bool,
    /// Connections are relayed without a look inside
    #[arg(long)]
    pub tcp: bool,
    /// TLS towards the servers too
    #[arg(long)]
    pub reencrypt: bool,
    /// Private keys on key servers
    #[arg(long)]
    pub keyless: bool,
    /// The failure that is outlived with all of the load: none, one engine, or the fullest of --racks
    #[arg(long, value_enum, conflicts_with = "ha")]
    pub redundancy: Option<Redundancy>,
    /// With --redundancy n+rack: racks that engines are spread over evenly
    #[arg(long, value_name = "N", requires = "redundancy", required_if_eq("redundancy", "n+rack"),
        value_parser = clap::value_parser!(u32).range(1..=i64::from(engines::RACKS_MAX)))]
    pub racks: Option<u32>,
    /// Engines that a router spreads one service over (its paths of equal cost), spare ones included
    #[arg(long, value_name = "N", default_value_t = size::ECMP_ENGINES_MAX, value_parser = engines::parse_engines)]
    pub engines_max: u64,
    /// Spare engines, so that so many may fail: N+1, or N+M with a number
    #[arg(long, value_name = "M", num_args = 0..=1, default_missing_value = "1", default_value = "0", hide_default_value = true, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub ha: u32,
    /// Share added to every requirement for what requirements do not say: peaks, growth, health checks, the next
    /// release
    #[arg(long, value_name = "SHARE", default_value = "0.3", value_parser = quantity::parse_margin)]
    pub margin: f64,
    /// Cores of one engine; chosen if absent
    #[arg(long, visible_alias = "cores-per-engine", value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub engine_cores: Option<u32>,
    /// Memory of one engine that connections may use, in GB: 16, 16GB, 16GiB
    #[arg(long, value_name = "G", value_parser = quantity::parse_memory)]
    pub engine_memory: Option<f64>,
    /// Open files that one engine may have (Linux: fs.nr_open)
    #[arg(long, value_name = "N", default_value_t = 1_048_576, value_parser = clap::value_parser!(u64).range(1..))]
    pub engine_files: u64,
    /// Local ports of one engine towards one server (Linux: ip_local_port_range); counts with --tcp
    #[arg(long, value_name = "N", default_value_t = 28_232, value_parser = clap::value_parser!(u64).range(1..=65_535))]
    pub engine_ports: u64,
    /// Servers behind each engine; counts with --tcp
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub servers: u64,
    /// Measure a propylon that is started for it, and plan with its figures instead of the rules
    #[arg(long)]
    pub measure: bool,
    /// Plan with the figures of this result (compare, handshakes, throughput, connections); repeat for more
    #[arg(long, value_name = "RESULT.json")]
    pub from: Vec<PathBuf>,
    /// With --measure: the propylon to measure; by default the one beside this program
    #[arg(long, value_name = "PATH", requires = "measure")]
    pub propylon: Option<PathBuf>,
    /// With --measure: length of one measurement, of which each kind has three
    #[arg(long, default_value = "2", value_parser = parse_duration)]
    pub duration: Duration,
    /// With --measure: idle connections to weigh
    #[arg(long, value_name = "N", default_value_t = 4000, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(100..=9000))]
    pub idle_connections: usize,
    /// Write the plan as JSON ("-": to stdout), feasible or not
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// The report of a plan.
#[derive(Serialize, Deserialize)]
pub struct Plan {
    pub feasible: bool,
    pub requirements: Requirements,
    pub figures: Vec<(Kind, figures::Figure)>,
    pub steps: Vec<size::Step>,
    pub answer: Option<Answer>,
    pub refusal: Option<Refusal>,
    pub assumptions: Vec<String>,
}

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let requirements = arguments.requirements();
    // Before minutes of measuring, what no measurement can mend.
    let mut outcome = requirements.check().map(|()| None);
    let mut calculation = Calculation::default();
    if outcome.is_ok() {
        let figures = arguments.figures(&requirements)?;
        outcome = calculation.size(&requirements, &figures).map(Some);
    }
    let assumptions = assumptions(&requirements, arguments.measure || !arguments.from.is_empty());
    let plan = Plan {
        feasible: outcome.is_ok(),
        refusal: outcome.as_ref().err().cloned(),
        answer: outcome.ok().flatten(),
        requirements,
        figures: calculation.figures_used,
        steps: calculation.steps,
        assumptions,
    };
    plan.print();
    report::save_result(arguments.json.as_deref(), "plan", &plan)?;
    match &plan.refusal {
        None => Ok(()),
        Some(refusal) => Err(Failure::new(format!("infeasible: {}", refusal.why))),
    }
}

impl Arguments {
    fn requirements(&self) -> Requirements {
        let traffic = match (self.http, self.tcp) {
            (true, _) => Traffic::Http,
            (_, true) => Traffic::Tcp,
            _ => Traffic::Tls,
        };
        Requirements {
            transactions_per_second: self.tps,
            key: self.key,
            throughput_gbps: self.throughput,
            connections: self.connections,
            traffic,
            reencrypt: self.reencrypt,
            keyless: self.keyless,
            spare_engines: if self.redundancy == Some(Redundancy::Engine) { 1 } else { self.ha },
            racks: self.racks.filter(|_| self.redundancy == Some(Redundancy::Rack)),
            engines_max: self.engines_max,
            margin: self.margin,
            engine: Engine {
                cores: self.engine_cores,
                memory_bytes: self.engine_memory,
                files: self.engine_files,
                ports: self.engine_ports,
                servers: self.servers,
            },
        }
    }

    /// The rules, then what was measured before, then what is measured now: the latest counts.
    fn figures(&self, requirements: &Requirements) -> Outcome<Figures> {
        let mut figures = Figures::of_the_documents();
        for path in &self.from {
            let mut file = ResultFile::read(path).when("--from")?;
            file.name = path.file_name().map_or(file.name, |name| name.to_string_lossy().into_owned());
            figures.learn_from(&file, requirements.traffic, requirements.key)?;
        }
        if self.measure {
            let rows = rows_for(requirements);
            if rows.is_empty() {
                return Err(Failure::new("--measure has no measurement for these requirements; leave it out"));
            }
            figures.learn_from_comparison(&self.measure(rows)?, "measured here")?;
        }
        Ok(figures)
    }

    /// `compare` without anyone to compare with.
    fn measure(&self, rows: Vec<Row>) -> Outcome<compare::verdict::Verdict> {
        let interrupt = Interrupt::install()?;
        let names: Vec<String> = rows.iter().map(|row| row.name()).collect();
        progress(format_args!("measuring {}: three rounds of {:?} each", names.join(", "), self.duration));
        let no_peers: Vec<Peer> = Vec::new();
        let comparison = compare::Arguments {
            against: no_peers,
            propylon: self.propylon.clone(),
            rows: rows.into_iter().map(compare::Choice::One).collect(),
            rounds: 3,
            duration: self.duration,
            idle_connections: self.idle_connections,
            ..compare::Arguments::default()
        };
        let verdict = compare::measure(&comparison, &interrupt)?;
        // Half of it is nothing to plan by.
        interrupt.check()?;
        Ok(verdict)
    }
}

/// Only what the requirements need is measured.
fn rows_for(requirements: &Requirements) -> Vec<Row> {
    let mut rows = Vec::new();
    if requirements.transactions_per_second.is_some() {
        rows.push(if requirements.key == Key::Ec { Row::Ec13 } else { Row::Rsa13 });
    }
    match requirements.traffic {
        Traffic::Tls => {
            rows.extend(requirements.throughput_gbps.map(|_| Row::BulkTls));
            rows.extend(requirements.connections.map(|_| Row::IdleTls));
        }
        Traffic::Http => {
            rows.extend(requirements.throughput_gbps.map(|_| Row::BulkPlain));
            rows.extend(requirements.connections.map(|_| Row::IdlePlain));
        }
        Traffic::Tcp => {}
    }
    rows
}

/// Assumptions that the sums take for granted, for the reader to doubt.
fn assumptions(requirements: &Requirements, measured: bool) -> Vec<String> {
    let mut assumptions = vec![
        "cores add up: an engine of n cores does n times what one core does, and engines share evenly".to_owned(),
        "every transaction is a full handshake; resumed ones cost less".to_owned(),
        "memory is for connections alone: the program itself and the system need some tens of MB more".to_owned(),
    ];
    if requirements.traffic != Traffic::Tcp {
        assumptions.push("HTTP reuses connections to servers, so those need no files or ports to speak of".to_owned());
    }
    if !measured {
        assumptions.push(
            "figures by the \"Avi sizing rule\" are another product's for its own engines: --measure takes Propylon's own, here"
                .to_owned(),
        );
    }
    if measured {
        assumptions.push("measured on loopback: no network card, no loss, no interrupts of one".to_owned());
        assumptions.push("connections were measured idle; while one is active it holds buffers besides".to_owned());
    }
    assumptions
}

impl Plan {
    /// All at once, to a reader who may have gone away meanwhile.
    fn print(&self) {
        let _ = std::io::stdout().write_all(self.text().as_bytes());
    }

    fn text(&self) -> String {
        let mut requirements = Table::of_facts();
        self.requirement_rows().into_iter().for_each(|row| requirements.row(row));
        let mut text = format!("Requirements\n{}", requirements.render());
        if !self.figures.is_empty() {
            let mut table = Table::of_facts();
            for (kind, figure) in &self.figures {
                let [name, value] = kind.show(figure.value);
                table.row([name, value, figure.source.clone()]);
            }
            text.push_str(&format!("\nFigures\n{}", table.render()));
        }
        if !self.steps.is_empty() {
            let mut table = Table::of_facts();
            for (index, step) in self.steps.iter().enumerate() {
                let number = format!("{:>2}", index + 1);
                let unit = if step.value == 1.0 { step.unit.trim_end_matches('s') } else { &step.unit };
                let result = format!("= {} {unit}", exact(step.value));
                table.row([number, step.what.clone(), step.formula.clone(), result]);
            }
            text.push_str(&format!("\nArithmetic\n{}", table.render()));
        }
        text.push_str(&self.outcome_text());
        text
    }

    fn outcome_text(&self) -> String {
        let list = |lines: &[String]| lines.iter().map(|line| format!("- {line}\n")).collect::<String>();
        match (&self.answer, &self.refusal) {
            (Some(answer), _) => {
                let table = answer.table(&self.requirements).render();
                let each = answer.each_text();
                format!("\nAnswer\n{table}{each}\nTaken for granted\n{}", list(&self.assumptions))
            }
            (None, Some(refusal)) => {
                let remedies = list(&refusal.remedies);
                format!("\nInfeasible: {}\nWhat would make it feasible:\n{remedies}", refusal.why)
            }
            (None, None) => String::new(),
        }
    }

    fn requirement_rows(&self) -> Vec<[String; 2]> {
        let requirements = &self.requirements;
        let mut rows = Vec::new();
        if let Some(per_second) = requirements.transactions_per_second {
            rows.push(["transactions".to_owned(), format!("{}/s, {}", exact(per_second), key_title(requirements.key))]);
        }
        if let Some(gigabits) = requirements.throughput_gbps {
            let again = if requirements.reencrypt { ", re-encrypted towards servers" } else { "" };
            rows.push([
                "throughput".to_owned(),
                format!("{} Gb/s, {}{again}", exact(gigabits), requirements.traffic.name()),
            ]);
        }
        if let Some(connections) = requirements.connections {
            let shown = format!("{} at once, {}", exact(connections), requirements.traffic.name());
            rows.push(["connections".to_owned(), shown]);
        }
        rows.push(["margin".to_owned(), format!("{} % on top of each", exact(requirements.margin * 100.0))]);
        match (requirements.racks, requirements.spare_engines) {
            (Some(racks), _) => {
                rows.push(["availability".to_owned(), format!("N+rack: any of {racks} racks may be gone")]);
            }
            (None, 0) => {}
            (None, spare) => rows.push(["availability".to_owned(), format!("N+{spare}")]),
        }
        rows
    }
}

impl Answer {
    /// The load of one engine, where there are several to share it.
    fn each_text(&self) -> String {
        if self.per_engine.engines < 2 {
            return String::new();
        }
        let table = engines::table(&self.per_engine, &self.per_engine_left).render();
        format!("\nEach engine, margin included\n{table}")
    }

    fn table(&self, requirements: &Requirements) -> Table {
        let mut table = Table::of_facts();
        table.row(["cores", &show_cores(self.cores)]);
        if self.memory_bytes > 0.0 {
            table.row(["memory", &format!("{} in all, margin included", show_bytes(self.memory_bytes))]);
        }
        let memory = match requirements.engine.memory_bytes {
            Some(memory) => format!(" and {}", show_bytes(memory)),
            None if self.memory_bytes > 0.0 => format!(" and at least {}", show_bytes(self.engine_memory_bytes)),
            None => String::new(),
        };
        let spare = if self.engines_spare > 0 { format!(" + {} spare", self.engines_spare) } else { String::new() };
        let engines = format!(
            "{}{spare}, of {} cores{memory} each (their number follows from {})",
            self.engines_needed, self.engine_cores, self.limited_by
        );
        table.row(["engines", &engines]);
        let scale_out = match self.scale_out {
            ScaleOut::None => "none: one engine takes it all".to_owned(),
            ScaleOut::Native => format!(
                "{} engines or fewer, which something in front has to spread: DNS, a router, a layer-4 balancer",
                size::NATIVE_ENGINES_MAX
            ),
            ScaleOut::Ecmp => format!(
                "by a router in front (BGP with equal-cost paths, {} engines or fewer), with which BIRD beside each engine \
                 speaks ([announce])",
                requirements.engines_max
            ),
        };
        table.row(["scale-out", &scale_out]);
        if let Some(key_servers) = &self.key_servers {
            let shown = format!("{} of {} cores each", key_servers.servers, key_servers.cores_each);
            table.row(["key servers", &shown]);
        }
        table
    }
}

fn show_cores(cores: f64) -> String {
    if cores == 0.0 {
        return "no figure: require transactions or throughput for one".to_owned();
    }
    format!("{} in all, margin included", exact(cores))
}

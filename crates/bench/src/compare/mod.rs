//! `compare`: the same work through Propylon and its peers, turn by turn, on one core, in CPU time per unit of work.
//!
//! `peers` knows the programs and writes them equal configurations, `rows` the kinds of work, `running` how a program
//! is started and ended, `verdict` how the numbers are told.

mod peers;
mod rows;
mod running;
mod verdict;

use crate::failure::{Failure, Outcome, While};
use crate::interrupt::Interrupt;
use crate::report::progress;
use crate::scratch::ScratchDir;
use crate::units::parse_duration;
use crate::{certificates, machine, report};
pub use peers::Peer;
use peers::{Program, Site};
pub use rows::Row;
use rows::{Bench, Sample};
use running::Running;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Name in the certificates and in the clients' server name extension.
const SITE_NAME: &str = "bench.test";
/// The origin's fixed body.
const ORIGIN_BODY_BYTES: usize = 1024;

/// CPU and memory of Propylon and its peers for the same work
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    propylon-bench compare --against haproxy,nginx\n  \
    propylon-bench compare --against haproxy --rows ec13,requests-tls --rounds 5 --duration 4 --json result.json\n\n\
    Figures are CPU time (user and system) of all threads and processes of the proxy, which has one worker on one core,\n\
    per connection, request or gigabyte; medians of the rounds. Needs two cores: one for the proxy, one for the rest.")]
pub struct Arguments {
    /// Peers to compare with
    #[arg(long, value_name = "PEER", value_delimiter = ',', default_value = "haproxy,nginx")]
    pub against: Vec<Peer>,
    /// The propylon to measure; by default the one beside this program. "none" leaves it out
    #[arg(long, value_name = "PATH")]
    pub propylon: Option<PathBuf>,
    /// Kinds of work
    #[arg(long, value_name = "ROW", value_delimiter = ',', default_value = rows::DEFAULT)]
    pub rows: Vec<Row>,
    /// Times that each peer has its turn at each row
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Length of one measurement
    #[arg(long, default_value = "3", value_parser = parse_duration)]
    pub duration: Duration,
    /// Load before each measurement that is not counted
    #[arg(long, default_value = "700ms", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Idle connections in the memory rows
    #[arg(long, value_name = "N", default_value_t = 8000, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(100..=9000))]
    pub idle_connections: usize,
    /// Connections in flight in the rows of new connections
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096))]
    pub in_flight: usize,
    /// Keep-alive connections in the rows of requests
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096))]
    pub connections: usize,
    /// Core for the proxy
    #[arg(long, default_value_t = 0)]
    pub proxy_core: usize,
    /// Core for the load and the origin
    #[arg(long, default_value_t = 1)]
    pub load_core: usize,
    /// Write everything measured as JSON ("-": to stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Copy the generated configurations here, to read or to run by hand
    #[arg(long, value_name = "DIR")]
    pub keep_configs: Option<PathBuf>,
}

impl Default for Arguments {
    /// What the command line without a flag means.
    fn default() -> Self {
        use clap::{Args, FromArgMatches};
        let command = Self::augment_args(clap::Command::new("compare"));
        let matches = command.get_matches_from(["compare"]);
        Self::from_arg_matches(&matches).expect("every flag has a default")
    }
}

/// Samples by row and program, in the order in which they were taken.
pub type Samples = BTreeMap<(usize, usize), Vec<Sample>>;

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    let verdict = measure(arguments, &interrupt)?;
    verdict.print();
    report::save_json(arguments.json.as_deref(), &verdict)?;
    verdict.outcome()
}

/// All of the comparison but the telling.
pub fn measure(arguments: &Arguments, interrupt: &Interrupt) -> Outcome<verdict::Verdict> {
    check_cores(arguments)?;
    let programs = find_programs(arguments)?;
    for program in &programs {
        progress(format_args!("{}: {}", program.peer.name(), program.version));
    }

    let scratch = ScratchDir::new()?;
    write_certificates(&scratch)?;
    // Declared after the directory: ended before it goes.
    let origin = start_origin(arguments, &scratch, interrupt)?;
    let bench =
        Bench { arguments, interrupt, scratch: &scratch, origin_pid: origin.child.pid(), origin: origin.address };
    if let Some(directory) = &arguments.keep_configs {
        keep_configs(&bench, &programs, directory)?;
    }
    machine::pin_to_core(arguments.load_core)?;

    let samples = take_samples(&bench, &programs)?;
    drop(origin);
    Ok(verdict::Verdict::new(arguments, &programs, &samples))
}

/// Row by row, and within a row turn by turn, so that a slow minute of the machine falls on everyone.
fn take_samples(bench: &Bench, programs: &[Program]) -> Outcome<Samples> {
    let mut samples = Samples::new();
    for (row_index, row) in bench.arguments.rows.iter().enumerate() {
        for round in 1..=bench.arguments.rounds {
            for (program_index, program) in programs.iter().enumerate() {
                bench.interrupt.check()?;
                let sample = match bench.measure(program, *row) {
                    Ok(sample) => sample,
                    Err(failure) if bench.interrupt.is_raised() => return Err(failure),
                    Err(failure) => Sample::failed(&failure.to_string()),
                };
                let name = program.peer.name();
                progress(format_args!("{} round {round} {name}: {}", row.name(), sample.show(row.unit())));
                samples.entry((row_index, program_index)).or_default().push(sample);
            }
        }
    }
    Ok(samples)
}

fn check_cores(arguments: &Arguments) -> Outcome<()> {
    let cores = machine::cores_allowed();
    for core in [arguments.proxy_core, arguments.load_core] {
        if !cores.contains(&core) {
            return Err(Failure::new(format!("core {core} is not among {cores:?}; see --proxy-core and --load-core")));
        }
    }
    if arguments.proxy_core == arguments.load_core {
        progress("proxy and load share a core: rates mean nothing, CPU per unit is still fair");
    }
    Ok(())
}

fn find_programs(arguments: &Arguments) -> Outcome<Vec<Program>> {
    let mut programs = Vec::new();
    let mut missing = Vec::new();
    if arguments.propylon.as_ref().is_none_or(|path| path.as_os_str() != "none") {
        let path = match &arguments.propylon {
            Some(path) => path.clone(),
            None => std::env::current_exe().when("finding this program")?.with_file_name("propylon"),
        };
        match Program::find(Peer::Propylon, &path) {
            Ok(program) => programs.push(program),
            Err(failure) => {
                missing.push(format!("{failure}; build it, name it with --propylon PATH, or --propylon none"))
            }
        }
    }
    for peer in &arguments.against {
        match Program::find(*peer, peer.name().as_ref()) {
            Ok(program) => programs.push(program),
            Err(failure) => missing.push(format!("{failure}; install it: apt-get install {}", peer.name())),
        }
    }
    if missing.is_empty() && !programs.is_empty() {
        return Ok(programs);
    }
    Err(Failure::new(if missing.is_empty() { "nothing to compare".to_owned() } else { missing.join("\n") }))
}

fn write_certificates(scratch: &ScratchDir) -> Outcome<()> {
    certificates::write(&certificates::Arguments {
        out: scratch.path().to_owned(),
        names: vec![SITE_NAME.to_owned()],
        days: 7,
        split: true,
        keep_ca_key: false,
        force: false,
        json: None,
    })?;
    Ok(())
}

struct OriginProcess {
    child: Running,
    address: std::net::SocketAddr,
}

/// On the load's core: the origin's work is not the proxy's.
fn start_origin(arguments: &Arguments, scratch: &ScratchDir, interrupt: &Interrupt) -> Outcome<OriginProcess> {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], machine::free_ports(1)?[0]));
    let mut command = Command::new(std::env::current_exe().when("finding this program")?);
    command.args(["origin", "--bind", &address.to_string(), "--body-bytes", &ORIGIN_BODY_BYTES.to_string()]);
    let mut child = Running::start(command, arguments.load_core, &scratch.path().join("origin.log"))?;
    child.wait_until_answering(address, "/", interrupt)?;
    Ok(OriginProcess { child, address })
}

fn keep_configs(bench: &Bench, programs: &[Program], directory: &PathBuf) -> Outcome<()> {
    std::fs::create_dir_all(directory).when(format_args!("making {}", directory.display()))?;
    for program in programs {
        let site = Site::new(bench)?;
        let path = directory.join(program.peer.config_name());
        std::fs::write(&path, program.peer.config(&site)).when(format_args!("writing {}", path.display()))?;
    }
    Ok(())
}

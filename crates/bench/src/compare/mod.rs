//! `compare`: the same work through Propylon and its peers, turn by turn, on one core, in CPU time per unit of work.
//!
//! The programs are in `peers`; `configs` writes them equal configurations, `rows` has the kinds of work, `running` how
//! a program is started and ended, `verdict` the evaluation of the numbers, `markdown` their form in a document.

mod configs;
mod markdown;
pub mod peers;
mod rows;
pub mod running;
pub mod verdict;

use crate::failure::{Failure, Outcome, While};
use crate::interrupt::Interrupt;
use crate::report::progress;
use crate::scratch::ScratchDir;
use crate::units::parse_duration;
use crate::{certificates, machine, report};
pub use peers::Peer;
use peers::{Program, Site};
use rows::{Bench, Needs, Sample};
pub use rows::{Choice, Row};
use running::{Running, strangers};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Name in the certificates and in the clients' server name extension.
pub const SITE_NAME: &str = "bench.test";
/// The origin's fixed body.
const ORIGIN_BODY_BYTES: usize = 1024;

/// CPU and memory of Propylon and its peers for the same work
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    propylon-bench compare --against haproxy,nginx\n  \
    propylon-bench compare --against haproxy --rows ec13,requests-tls --rounds 5 --duration 4 --json result.json\n  \
    propylon-bench compare --rows all --rounds 5\n  \
    propylon-bench compare --envoy venv/bin/envoy --markdown peers.md\n\n\
    Figures are CPU time (user and system) of all threads and processes of the proxy, which has one worker on one core,\n\
    per connection, request or gigabyte; medians of the rounds. Needs two cores: one for the proxy, one for the rest.")]
pub struct Arguments {
    /// Peers to compare with; by default those that are installed
    #[arg(long, value_name = "PEER", value_delimiter = ',')]
    pub against: Vec<Peer>,
    /// The haproxy to measure, if not the one in $PATH
    #[arg(long, value_name = "PATH")]
    pub haproxy: Option<PathBuf>,
    /// The nginx to measure, if not the one in $PATH
    #[arg(long, value_name = "PATH")]
    pub nginx: Option<PathBuf>,
    /// The envoy to measure, if not the one in $PATH
    #[arg(long, value_name = "PATH")]
    pub envoy: Option<PathBuf>,
    /// The propylon to measure; by default the one beside this program. "none" leaves it out
    #[arg(long, value_name = "PATH")]
    pub propylon: Option<PathBuf>,
    /// Kinds of work; by default all that every program here knows, without HTTP/2, re-encryption and the TCP relay
    #[arg(long, value_name = "ROW", value_delimiter = ',')]
    pub rows: Vec<Choice>,
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
    /// Write the table of medians as Markdown ("-": to stdout)
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Copy the generated configurations here, to read or to run by hand
    #[arg(long, value_name = "DIR")]
    pub keep_configs: Option<PathBuf>,
}

impl Default for Arguments {
    /// The arguments that a command line without a flag has.
    fn default() -> Self {
        use clap::{Args, FromArgMatches};
        let command = Self::augment_args(clap::Command::new("compare"));
        let matches = command.get_matches_from(["compare"]);
        Self::from_arg_matches(&matches).expect("every flag has a default")
    }
}

/// Samples by row and program, in the order in which they were taken.
pub type Samples = BTreeMap<(usize, usize), Vec<Sample>>;

/// The course of measurements: rows, and which program cannot do which, and why.
pub struct Course {
    pub rows: Vec<Row>,
    /// Reason why a program cannot do a row, by row and program.
    pub unsupported: BTreeMap<(usize, usize), String>,
}

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    let verdict = measure(arguments, &interrupt)?;
    verdict.print();
    report::save_json(arguments.json.as_deref(), &verdict)?;
    markdown::save(arguments.markdown.as_deref(), &verdict)?;
    // Results up to an interrupt are told all the same.
    interrupt.check()?;
    verdict.outcome()
}

/// Makes the comparison without the report. After an interrupt the verdict is of what was measured, if anything was.
pub fn measure(arguments: &Arguments, interrupt: &Interrupt) -> Outcome<verdict::Verdict> {
    check_cores(arguments)?;
    let programs = find_programs(arguments)?;
    for program in &programs {
        progress(format_args!("{}: {}", program.peer.name(), program.title()));
    }

    let scratch = ScratchDir::new()?;
    write_certificates(&scratch)?;
    // Declared after the directory: ended before it goes.
    let plain_origin = start_origin(arguments, &scratch, interrupt, false)?;
    let wants_tls = arguments.candidates().iter().any(|row| row.needs() == Needs::TlsOrigin);
    let tls_origin = wants_tls.then(|| start_origin(arguments, &scratch, interrupt, true)).transpose()?;
    let bench =
        Bench { arguments, interrupt, scratch: &scratch, plain_origin: &plain_origin, tls_origin: tls_origin.as_ref() };
    if let Some(directory) = &arguments.keep_configs {
        keep_configs(&bench, &programs, directory)?;
    }
    machine::pin_to_core(arguments.load_core)?;

    let course = Course::survey(&bench, &programs)?;
    let samples = take_samples(&bench, &programs, &course)?;
    drop((plain_origin, tls_origin));
    let interrupted = interrupt.is_raised();
    Ok(verdict::Verdict { interrupted, ..verdict::Verdict::new(arguments, &programs, &course, &samples) })
}

impl Course {
    /// Asks each program about the rows that not everyone is expected to know. Such a row is left out, unless it was
    /// named: then it shows who cannot do it.
    fn survey(bench: &Bench, programs: &[Program]) -> Outcome<Self> {
        let named = &bench.arguments.rows;
        let mut course = Self { rows: Vec::new(), unsupported: BTreeMap::new() };
        for row in bench.arguments.candidates() {
            let mut objections = Vec::new();
            for (index, program) in programs.iter().enumerate() {
                bench.interrupt.check()?;
                let in_doubt = row.needs() != Needs::Nothing || (named.is_empty() && row.is_optional());
                let tried = if in_doubt { bench.try_out(program, row) } else { Ok(None) };
                bench.interrupt.check()?;
                let objection = tried.unwrap_or_else(|failure| Some(failure.to_string()));
                if let Some(why) = objection {
                    progress(format_args!("{}: {} does not do this: {why}", row.name(), program.peer.name()));
                    objections.push((index, why));
                }
            }
            if named.is_empty() && !objections.is_empty() {
                progress(format_args!("{}: left out; name it with --rows to see those who can", row.name()));
                continue;
            }
            let row_index = course.rows.len();
            course.rows.push(row);
            course.unsupported.extend(objections.into_iter().map(|(index, why)| ((row_index, index), why)));
        }
        Ok(course)
    }
}

/// Row by row, and within a row turn by turn (A B A B ...), so that a slow minute of the machine falls on everyone. One
/// proxy is alive at a time: an idle one has timers, takes cache, and would be charged to nobody.
fn turns(rows: usize, rounds: usize, programs: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..rows)
        .flat_map(move |row| (0..rounds).flat_map(move |round| (0..programs).map(move |program| (row, round, program))))
}

fn take_samples(bench: &Bench, programs: &[Program], course: &Course) -> Outcome<Samples> {
    let names: Vec<&str> = [Peer::Propylon].iter().chain(&Peer::PEERS).map(|peer| peer.name()).collect();
    let mut samples = Samples::new();
    let mut taken = 0;
    for (row_index, round, index) in turns(course.rows.len(), bench.arguments.rounds as usize, programs.len()) {
        if course.unsupported.contains_key(&(row_index, index)) {
            continue;
        }
        if bench.interrupt.is_raised() {
            break;
        }
        let (row, program) = (course.rows[row_index], &programs[index]);
        // Before our own is started, so whatever is found is not ours.
        let strangers = strangers(&names);
        let measured = match bench.measure(program, row) {
            Ok(sample) => sample,
            // The measurement has failed because it was interrupted.
            Err(_) if bench.interrupt.is_raised() => break,
            Err(failure) => Sample::failed(&failure.to_string()),
        };
        let sample = Sample { turn: taken, strangers, ..measured };
        taken += 1;
        let (row_name, name, shown) = (row.name(), program.peer.name(), sample.show(row.unit()));
        progress(format_args!("{row_name} round {} {name}: {shown}", round + 1));
        samples.entry((row_index, index)).or_default().push(sample);
    }
    if samples.is_empty() {
        bench.interrupt.check()?;
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
        match Program::find_installed(Peer::Propylon, arguments.propylon.as_deref()) {
            Ok(program) => programs.push(program),
            Err(failure) => missing.push(format!("{failure}; {}", Peer::Propylon.advice())),
        }
    }
    let wanted = if arguments.against.is_empty() { &Peer::PEERS[..] } else { &arguments.against };
    for &peer in wanted {
        let path = arguments.path_of(peer);
        let must_be_here = path.is_some() || !arguments.against.is_empty();
        match Program::find(peer, &peer.path(path)?) {
            Ok(program) => programs.push(program),
            Err(failure) if must_be_here => missing.push(format!("{failure}; {}", peer.advice())),
            Err(_) => progress(format_args!("{}: not here, so left out; {}", peer.name(), peer.advice())),
        }
    }
    if missing.is_empty() && !programs.is_empty() {
        return Ok(programs);
    }
    Err(Failure::new(if missing.is_empty() { "nothing to compare".to_owned() } else { missing.join("\n") }))
}

impl Arguments {
    /// The rows that were named, or those by default.
    fn candidates(&self) -> Vec<Row> {
        if self.rows.is_empty() { Row::DEFAULT.to_vec() } else { Choice::rows(&self.rows) }
    }

    fn path_of(&self, peer: Peer) -> Option<&Path> {
        match peer {
            Peer::Propylon | Peer::Unbatched => self.propylon.as_deref(),
            Peer::Haproxy => self.haproxy.as_deref(),
            Peer::Nginx => self.nginx.as_deref(),
            Peer::Envoy => self.envoy.as_deref(),
        }
    }
}

/// For `SITE_NAME`, EC and RSA.
pub fn write_certificates(scratch: &ScratchDir) -> Outcome<()> {
    certificates::write(&certificates::Arguments {
        out: scratch.path().to_owned(),
        names: vec![SITE_NAME.to_owned()],
        keys: vec![certificates::KeyType::Ec, certificates::KeyType::Rsa],
        count: None,
        days: 7,
        split: false,
        keep_ca_key: false,
        force: false,
        json: None,
    })?;
    Ok(())
}

/// The origin behind the proxies.
pub struct OriginProcess {
    child: Running,
    address: std::net::SocketAddr,
}

/// On the load's core: the origin's work is not the proxy's.
fn start_origin(
    arguments: &Arguments,
    scratch: &ScratchDir,
    interrupt: &Interrupt,
    with_tls: bool,
) -> Outcome<OriginProcess> {
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], machine::free_ports(1)?[0]));
    let mut command = Command::new(std::env::current_exe().when("finding this program")?);
    command.args(["origin", "--bind", &address.to_string(), "--body-bytes", &ORIGIN_BODY_BYTES.to_string()]);
    if with_tls {
        command.arg("--tls").arg(scratch.path().join(format!("{SITE_NAME}.ec.pem")));
    }
    let log = if with_tls { "tls-origin.log" } else { "origin.log" };
    let mut child = Running::start(command, arguments.load_core, &scratch.path().join(log))?;
    if with_tls {
        child.wait_until_accepting(address, interrupt)?;
    } else {
        child.wait_until_answering(address, "/", interrupt)?;
    }
    Ok(OriginProcess { child, address })
}

fn keep_configs(bench: &Bench, programs: &[Program], directory: &PathBuf) -> Outcome<()> {
    std::fs::create_dir_all(directory).when(format_args!("making {}", directory.display()))?;
    let mut kinds = vec![(Needs::Nothing, ""), (Needs::Relay, "relay-"), (Needs::Http2, "http2-")];
    kinds.extend(bench.tls_origin.map(|_| (Needs::TlsOrigin, "reencrypt-")));
    for program in programs {
        for (needs, prefix) in &kinds {
            let site = Site::new(bench, *needs)?;
            let path = directory.join(format!("{prefix}{}", program.peer.config_name()));
            std::fs::write(&path, program.config(&site)).when(format_args!("writing {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_take_turns_within_each_row() {
        let order: Vec<_> = turns(2, 3, 2).collect();
        let programs: Vec<usize> = order.iter().map(|turn| turn.2).collect();
        assert_eq!(programs, [0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
        assert!(order.is_sorted(), "one row after the other, one round after the other");
    }
}

//! `connections`: many connections that idle after one request each, and what they cost the server in memory.

use crate::failure::{Failure, Outcome, While};
use crate::interrupt::Interrupt;
use crate::link::Request;
use crate::load::{Kind, Load, Plan, Until};
use crate::memory::{Growth, Memory};
use crate::report::{self, Table};
use crate::tally::Summary;
use crate::target::{self, Target};
use crate::units::{parse_duration, show_number};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Processes that the load may be split over: the last byte of their source addresses tells them apart.
const PROCESSES_MAX: u64 = 200;

/// Idle keep-alive connections: memory per connection
#[derive(clap::Args)]
#[command(after_help = "Example:\n  \
    propylon-bench connections --target 127.0.0.1:8443 --count 8000 --server-pid 4711\n\n\
    Measure a server that was just started: one that held connections before serves new ones from memory it kept.")]
pub struct Arguments {
    #[command(flatten)]
    pub target: target::TargetArguments,
    /// Connections to open
    #[arg(long, value_name = "N", default_value_t = 8000, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=10_000_000))]
    pub count: usize,
    /// Path of each connection's one request
    #[arg(long, default_value = "/")]
    pub path: String,
    /// How long to hold them before memory is read
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    pub hold: Duration,
    /// Patience with one request
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Process whose memory is to be measured, with its children; repeat for more
    #[arg(long = "server-pid", value_name = "PID")]
    pub server_pids: Vec<u32>,
    /// Load processes to split the connections over (each is limited by its open files and local ports)
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=PROCESSES_MAX))]
    pub processes: u64,
    /// Core to keep the load on
    #[arg(long)]
    pub core: Option<usize>,
    /// Write the result as JSON ("-": to stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// One of several load processes: tell when the connections are open, hold them until stdin ends
    #[arg(long, hide = true)]
    pub part: bool,
}

/// What a load process tells once its connections are open.
#[derive(Serialize, Deserialize)]
struct Opened {
    open: usize,
    errors: u64,
    first_error: Option<String>,
}

#[derive(Serialize)]
struct Report {
    command: &'static str,
    target: String,
    connections: usize,
    still_open: Option<usize>,
    seconds: f64,
    per_second: f64,
    errors: u64,
    first_error: Option<String>,
    /// KiB per connection.
    growth: Growth,
    before: Memory,
    after: Memory,
}

/// Idle connections of this process.
pub struct Held<'t> {
    load: Load<'t>,
    pub opening: Summary,
}

impl<'t> Held<'t> {
    /// Opens them, one request on each. `label` is told once a second.
    pub fn open(
        target: &'t Target,
        count: usize,
        path: &str,
        timeout: Duration,
        interrupt: &Interrupt,
        label: &str,
    ) -> Outcome<Self> {
        let request = Request::new("GET", path, &target.name, "", 0);
        let plan = Plan { kind: Kind::Idle, connections: count, request, timeout, rate: None };
        let mut load = Load::new(target, plan, interrupt)?;
        let opening = load.run(Until::Finished(count as u64), label)?.tally.summary();
        Ok(Self { load, opening })
    }

    /// Keeps them for a while, and notices those that the server closes. Returns how many are open after it.
    pub fn hold(&mut self, duration: Duration) -> Outcome<usize> {
        self.load.run(Until::Elapsed(duration), "")?;
        Ok(self.load.idle_connections())
    }
}

pub fn run(arguments: &Arguments) -> Outcome<()> {
    let interrupt = Interrupt::install()?;
    if let Some(core) = arguments.core {
        crate::machine::pin_to_core(core)?;
    }
    if arguments.part {
        return run_part(arguments, &interrupt);
    }
    let report = if arguments.processes > 1 { split(arguments, &interrupt)? } else { alone(arguments, &interrupt)? };
    report.print(!arguments.server_pids.is_empty());
    report::save_json(arguments.json.as_deref(), &report)?;
    report.verdict(arguments.count)
}

fn alone(arguments: &Arguments, interrupt: &Interrupt) -> Outcome<Report> {
    let target = arguments.target.target(false)?;
    let before = Memory::of(&arguments.server_pids)?;
    let begin = Instant::now();
    let mut held = Held::open(&target, arguments.count, &arguments.path, arguments.timeout, interrupt, "opening")?;
    let seconds = begin.elapsed().as_secs_f64();
    let still_open = held.hold(arguments.hold)?;
    let after = Memory::of(&arguments.server_pids)?;
    let opened = Opened {
        open: held.opening.done as usize,
        errors: held.opening.errors_total(),
        first_error: held.opening.first_error.clone(),
    };
    Ok(Report::new(arguments, opened, Some(still_open), seconds, before, after))
}

/// Opens this process's share, says so, and waits for the parent to let go.
fn run_part(arguments: &Arguments, interrupt: &Interrupt) -> Outcome<()> {
    let target = arguments.target.target(false)?;
    let mut held = Held::open(&target, arguments.count, &arguments.path, arguments.timeout, interrupt, "opening")?;
    let opened = Opened {
        open: held.opening.done as usize,
        errors: held.opening.errors_total(),
        first_error: held.opening.first_error.clone(),
    };
    println!("{}", serde_json::to_string(&opened).when("telling the parent")?);
    let (tell, released) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = tell.send(());
    });
    while released.try_recv().is_err() {
        held.hold(crate::interrupt::LOOK_INTERVAL)?;
    }
    Ok(())
}

/// The load processes; ended with their owner.
struct Parts(Vec<Child>);

impl Drop for Parts {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // The end of stdin is their sign; a part that does not take it is ended by force.
            drop(child.stdin.take());
        }
        for child in &mut self.0 {
            let patience = Instant::now() + Duration::from_secs(2);
            while Instant::now() < patience && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn split(arguments: &Arguments, interrupt: &Interrupt) -> Outcome<Report> {
    let before = Memory::of(&arguments.server_pids)?;
    let begin = Instant::now();
    let processes = arguments.processes as usize;
    let mut parts = Parts(Vec::new());
    for index in 0..processes {
        let share = arguments.count / processes + usize::from(index < arguments.count % processes);
        if share > 0 {
            parts.0.push(start_part(arguments, index, share)?);
        }
    }
    let mut total = Opened { open: 0, errors: 0, first_error: None };
    for child in &mut parts.0 {
        interrupt.check()?;
        let mut line = String::new();
        let stdout = child.stdout.take().ok_or_else(|| Failure::new("a load process without stdout"))?;
        BufReader::new(stdout).read_line(&mut line).when("reading from a load process")?;
        let opened: Opened = serde_json::from_str(&line).when("a load process ended early")?;
        total.open += opened.open;
        total.errors += opened.errors;
        total.first_error = total.first_error.or(opened.first_error);
        report::progress(format_args!("opening: {} of {} open", total.open, arguments.count));
    }
    let seconds = begin.elapsed().as_secs_f64();
    interrupt.sleep(arguments.hold)?;
    let after = Memory::of(&arguments.server_pids)?;
    Ok(Report::new(arguments, total, None, seconds, before, after))
}

/// The same command line again, with a share of the count, a source address of its own, and `--part`.
fn start_part(arguments: &Arguments, index: usize, share: usize) -> Outcome<Child> {
    let mut own = std::env::args_os().skip(1).collect::<Vec<_>>();
    let source = if arguments.target.sources.is_empty() {
        target::loopback_source(target::resolve(&arguments.target.target)?, index)
    } else {
        None
    };
    if let Some(source) = source {
        own.extend(["--source".into(), source.to_string().into()]);
    }
    let program = std::env::current_exe().when("finding this program")?;
    let mut command = Command::new(program);
    command.args(strip_once_only_flags(own)).args(["--part", "--processes", "1", "--count"]).arg(share.to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().when("starting a load process")
}

/// Without the flags that are given anew, or that are the parent's own business.
fn strip_once_only_flags(arguments: Vec<std::ffi::OsString>) -> Vec<std::ffi::OsString> {
    const OWN: [&str; 4] = ["--processes", "--count", "--json", "--server-pid"];
    let mut kept = Vec::new();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        if OWN.contains(&text.as_ref()) {
            arguments.next();
        } else if !OWN.iter().any(|own| text.strip_prefix(own).is_some_and(|rest| rest.starts_with('='))) {
            kept.push(argument);
        }
    }
    kept
}

impl Report {
    fn new(
        arguments: &Arguments,
        opened: Opened,
        still_open: Option<usize>,
        seconds: f64,
        before: Memory,
        after: Memory,
    ) -> Self {
        Self {
            command: "connections",
            target: arguments.target.target.clone(),
            connections: opened.open,
            still_open,
            seconds,
            per_second: opened.open as f64 / seconds.max(1e-9),
            errors: opened.errors,
            first_error: opened.first_error,
            growth: after.growth_since(&before, opened.open),
            before,
            after,
        }
    }

    fn print(&self, has_server: bool) {
        let mut table = Table::of_facts();
        table.row(["target", &self.target]);
        table.row(["connections", &format!("{} open in {:.2} s", self.connections, self.seconds)]);
        table.row(["per second", &show_number(self.per_second)]);
        if let Some(still_open) = self.still_open {
            table.row(["after the hold", &format!("{still_open} open")]);
        }
        let first = self.first_error.as_deref().map(|first| format!(" (first: {first})")).unwrap_or_default();
        table.row(["errors", &format!("{}{first}", self.errors)]);
        if has_server {
            let growth = format!("{} KiB RSS, {} KiB PSS", show_number(self.growth.rss), show_number(self.growth.pss));
            table.row(["server, per connection", &growth]);
            let total = format!("{} KiB RSS before, {} KiB after", self.before.rss_kib, self.after.rss_kib);
            table.row(["server, in all", &total]);
        }
        let kernel = format!("{} KiB (sockets of every process on this machine)", show_number(self.growth.kernel));
        table.row(["kernel, per connection", &kernel]);
        table.print();
        let _ = std::io::stdout().flush();
    }

    fn verdict(&self, wanted: usize) -> Outcome<()> {
        if self.connections < wanted {
            return Err(Failure::new(format!("only {} of {wanted} connections were opened", self.connections)));
        }
        match self.still_open {
            Some(open) if open < wanted => {
                Err(Failure::new(format!("the server closed {} of {wanted} idle connections", wanted - open)))
            }
            _ => Ok(()),
        }
    }
}

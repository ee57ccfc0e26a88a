//! The command line of `propylon-flows`.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::check::{self, Grade};
use crate::counters::COUNTERS;
use crate::loader::{self, Hook};
use crate::run::{self, Settings};
use crate::{measure, netlink};

/// Packets of a shared address go to the engine that has their connection.
#[derive(Parser)]
#[command(name = "propylon-flows", version, after_help = EXAMPLE)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLE: &str = "Example:\n  propylon-flows check --interface eth0\n  propylon-flows run --interface eth0 \
    --table /run/propylon/cluster/flows.table --status /run/propylon/cluster/flows.status\n\n\
    Exit codes: 0 done; 1 it failed; 2 wrong usage.";

#[derive(Subcommand)]
enum Command {
    /// Attach the program, give it each new table, and write the status; the program stays when this ends
    Run(RunArguments),
    /// Say what this machine lacks
    Check {
        #[command(flatten)]
        pins: Pins,
        /// An interface at which packets of shared addresses come in; several are possible
        #[arg(long = "interface", value_name = "IF")]
        interfaces: Vec<String>,
    },
    /// Print what became of packets
    Status {
        #[command(flatten)]
        pins: Pins,
    },
    /// Take the program away from all interfaces, with its table and its counts
    Detach {
        #[command(flatten)]
        pins: Pins,
    },
    /// Print what a packet costs on this machine; touches no interface
    Measure,
}

#[derive(Args)]
struct RunArguments {
    /// An interface at which packets of shared addresses come in; several are possible
    #[arg(long = "interface", value_name = "IF", required = true)]
    interfaces: Vec<String>,
    /// The table, which the engine writes by rename
    #[arg(long, value_name = "FILE")]
    table: PathBuf,
    /// Written each second, by rename
    #[arg(long, value_name = "FILE")]
    status: PathBuf,
    #[command(flatten)]
    pins: Pins,
    /// UDP port of packets between engines, in the place of the table's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Attach by clsact also where the kernel has TCX
    #[arg(long)]
    clsact: bool,
}

#[derive(Args)]
struct Pins {
    /// A folder on a bpffs: what is in it outlives this process
    #[arg(long = "pin", value_name = "DIR", default_value = "/sys/fs/bpf/propylon-flows")]
    pins: PathBuf,
}

/// Does what the command line says.
#[must_use]
pub fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Run(arguments) => run::run(Settings {
            interfaces: arguments.interfaces,
            table: arguments.table,
            status: arguments.status,
            pins: arguments.pins.pins,
            port: arguments.port,
            hook: arguments.clsact.then_some(Hook::Clsact),
        }),
        Command::Check { pins, interfaces } => check(&pins, &interfaces),
        Command::Status { pins } => status(&pins),
        Command::Detach { pins } => detach(&pins),
        Command::Measure => measure::text().map(|text| say(&text)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("propylon-flows: {why}");
            ExitCode::FAILURE
        }
    }
}

fn check(pins: &Pins, interfaces: &[String]) -> Result<(), String> {
    let findings = check::findings(interfaces, &pins.pins);
    for finding in &findings {
        let grade = match finding.grade {
            Grade::Good => "good   ",
            Grade::Warning => "warning",
            Grade::Fault => "fault  ",
        };
        say(&format!("{grade} {}\n", finding.text));
    }
    let faults = findings.iter().filter(|finding| finding.grade == Grade::Fault).count();
    if faults > 0 { Err(format!("{faults} faults")) } else { Ok(()) }
}

fn status(pins: &Pins) -> Result<(), String> {
    let (generation, sums) = loader::pinned(&pins.pins).map_err(|error| error.to_string())?;
    match generation {
        Some(generation) => say(&format!("generation {generation}\n")),
        None => say("no table yet\n"),
    }
    for ((name, meaning), sum) in COUNTERS.iter().zip(sums) {
        say(&format!("{sum:>14}  {name:<20} {meaning}\n"));
    }
    Ok(())
}

fn detach(pins: &Pins) -> Result<(), String> {
    let all = netlink::interfaces().map_err(|error| format!("cannot ask for interfaces: {error}"))?;
    let names: Vec<String> = all.into_iter().map(|interface| interface.name).collect();
    let removed = loader::detach(&pins.pins, &names).map_err(|error| error.to_string())?;
    if removed.is_empty() {
        say("nothing was there\n");
    }
    for what in removed {
        say(&format!("removed {what}\n"));
    }
    Ok(())
}

/// A reader may have read enough, and closed its end.
fn say(text: &str) {
    let _ = io::stdout().write_all(text.as_bytes());
}

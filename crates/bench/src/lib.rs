//! `propylon-bench`: load, a cheap origin, certificates and fair comparisons, without a line of the engine in it.
//!
//! One file or folder per command (`certificates`, `origin`, `handshakes`, `requests`, `throughput`, `connections`,
//! `keyserver`, `offload`, `fleet`, `compare`, `search`, `sweep`, `plan`, and `page` for `report`;
//! `agents` spreads load commands over machines). Modules that they share: `target` (the server that is asked, and
//! how), `link` (one client connection), `stream` (a socket, perhaps with TLS, read and written like one), `load`
//! (the loop that keeps many connections busy), `http2` (the same for HTTP/2), `team` (several such loops as one)
//! and `client_group` (many clients that are slow), `testbed` (a server to be asked), `stats` (the results), `cpu` and
//! `memory` (the cost to the server), `pressure` (resources that ran short), `report` (how results are told),
//! `provenance` (the place and the programs of a measurement).
//!
//! Public items are those that any command needs, whatever it measures: `propylon-chaos` is a command too.

#![forbid(unsafe_code)]

mod agents;
mod body;
mod certificate_kind;
mod certificates;
mod client_group;
mod compare;
mod connections;
mod cpu;
pub mod failure;
mod fleet;
mod handshakes;
mod http2;
mod idle;
#[cfg(test)]
mod instrument;
pub mod interrupt;
mod keyserver;
mod link;
mod load;
mod load_threads;
pub mod machine;
mod memory;
mod offload;
mod origin;
mod page;
mod pem;
mod plan;
mod poll;
mod pressure;
mod provenance;
mod quantity;
pub mod report;
mod requests;
mod response;
mod results;
pub mod scratch;
mod search;
mod stats;
mod stream;
mod sweep;
mod target;
mod testbed;
mod throughput;
pub mod units;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use propylon_commands::Build;
use propylon_commands::pages::Folders;

use crate::failure::{Outcome, While};

/// Load, origin, certificates and comparisons for load balancers.
#[derive(Parser)]
#[command(name = "propylon-bench", version = propylon_commands::version(), max_term_width = 110)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Certificates(certificates::Arguments),
    Origin(origin::Arguments),
    Handshakes(handshakes::Arguments),
    Requests(requests::Arguments),
    Throughput(throughput::Arguments),
    Connections(connections::Arguments),
    Keyserver(keyserver::Arguments),
    Compare(compare::Arguments),
    Offload(offload::Arguments),
    Fleet(fleet::Arguments),
    Prefork(offload::prefork::Arguments),
    Search(search::Arguments),
    Sweep(sweep::Arguments),
    Plan(plan::Arguments),
    Report(page::Arguments),
    Agent(agents::agent::Arguments),
    #[command(hide = true)]
    ClientGroup(client_group::processes::Arguments),
    /// Write pages for `man` and completions for shells
    #[command(hide = true)]
    Pages {
        /// The folder, which is made
        folder: PathBuf,
    },
}

/// The program `propylon-bench`: does what its command line says; `commit` is what the binary was built of.
pub fn main(commit: Option<&'static str>) -> ExitCode {
    let version = propylon_commands::long_version(&Build { commit, features: None });
    let matches = Arguments::command().long_version(version).get_matches();
    let command = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command;
    let outcome = match command {
        Command::Certificates(arguments) => certificates::run(&arguments),
        Command::Origin(arguments) => origin::run(&arguments),
        Command::Handshakes(arguments) => handshakes::run(&arguments),
        Command::Requests(arguments) => requests::run(&arguments),
        Command::Throughput(arguments) => throughput::run(&arguments),
        Command::Connections(arguments) => connections::run(&arguments),
        Command::Keyserver(arguments) => keyserver::run(&arguments),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Offload(arguments) => offload::run(&arguments),
        Command::Fleet(arguments) => fleet::run(&arguments),
        Command::Prefork(arguments) => offload::prefork::run(&arguments),
        Command::Search(arguments) => search::run(&arguments),
        Command::Sweep(arguments) => sweep::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Report(arguments) => page::run(&arguments),
        Command::Agent(arguments) => agents::agent::run(&arguments),
        Command::ClientGroup(arguments) => client_group::processes::run(&arguments),
        Command::Pages { folder } => pages(&folder),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("propylon-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn pages(folder: &Path) -> Outcome<()> {
    let written = Folders::below(folder).and_then(|folders| folders.write(&Arguments::command()));
    written.when(folder.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_shows_an_example() {
        Arguments::command().debug_assert();
        for command in Arguments::command().get_subcommands_mut().filter(|command| !command.is_hide_set()) {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Example"), "{}", command.get_name());
        }
    }
}

//! `propylon-bench`: load, a cheap origin, certificates and fair comparisons, without a line of the engine in it.
//!
//! One file per command (`certificates`, `origin`, `handshakes`, `requests`, `connections`, `compare`, `plan`,
//! and `page` for `report`). What they
//! share: `target` (who is asked, and how), `link` (one client connection), `load` (the loop that keeps many of them
//! busy), `tally` (what came of it), `cpu` and `memory` (what it cost the server), `report` (how it is told).

#![forbid(unsafe_code)]

mod body;
mod certificates;
mod compare;
mod connections;
mod cpu;
mod failure;
mod handshakes;
mod interrupt;
mod link;
mod load;
mod machine;
mod memory;
mod origin;
mod page;
mod plan;
mod poll;
mod provenance;
mod report;
mod requests;
mod response;
mod scratch;
mod tally;
mod target;
mod units;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Load, origin, certificates and comparisons for load balancers.
#[derive(Parser)]
#[command(name = "propylon-bench", version, max_term_width = 110)]
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
    Connections(connections::Arguments),
    Compare(compare::Arguments),
    Plan(plan::Arguments),
    Report(page::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Certificates(arguments) => certificates::run(&arguments),
        Command::Origin(arguments) => origin::run(&arguments),
        Command::Handshakes(arguments) => handshakes::run(&arguments),
        Command::Requests(arguments) => requests::run(&arguments),
        Command::Connections(arguments) => connections::run(&arguments),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Plan(arguments) => plan::run(&arguments),
        Command::Report(arguments) => page::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("propylon-bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_command_shows_an_example() {
        Arguments::command().debug_assert();
        for command in Arguments::command().get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Example"), "{}", command.get_name());
        }
    }
}

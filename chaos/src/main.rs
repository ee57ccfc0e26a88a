//! `propylon-chaos`: servers that die, hang, fail and flap, configurations that change and are mistaken, clients that
//! leave, and steady load through all of it; a model says which requests may fail, and none others do.
//!
//! `run` is the story of a run: `plan` draws what will be done from a seed; `server_processes` and `origin` are the
//! servers it is done to, `operator` changes the configuration, `actions` carries it out; `load` asks all the time.
//! Everybody writes down what happened by one `clock`: `timeline` what was done, `journal` what servers saw, `load`
//! what clients saw. In the end `checker` holds every request against `model`, and the engine's metrics against its
//! clients.

#![forbid(unsafe_code)]

mod actions;
mod certificates;
mod checker;
mod clock;
mod content;
mod endpoints;
mod engine;
mod files;
mod journal;
mod key_servers;
mod load;
mod model;
mod operator;
mod origin;
mod plan;
mod run;
mod server_processes;
mod settings;
mod stalls;
mod summary;
mod timeline;
mod wire;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Kill, stop, slow and reload under steady load; no request fails but those that may
#[derive(Parser)]
#[command(name = "propylon-chaos", version, max_term_width = 110, args_conflicts_with_subcommands = true)]
struct CommandLine {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    run: run::Arguments,
}

/// Processes that a run starts of this program.
#[derive(Subcommand)]
enum Part {
    #[command(hide = true)]
    Origin(origin::Arguments),
}

fn main() -> ExitCode {
    let line = CommandLine::parse();
    let outcome = match &line.part {
        Some(Part::Origin(arguments)) => origin::run(arguments),
        None => run::run(&line.run),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("propylon-chaos: {failure}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_shows_an_example() {
        let mut command = CommandLine::command();
        command.clone().debug_assert();
        assert!(command.render_long_help().to_string().contains("propylon-chaos --seed 7"));
    }
}

//! The command line of `propylon`.

mod check;
mod propylonctl;
mod run;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use propylon_commands::{Arguments, Build, Command};
use propylon_control::announce::guardian;
use propylon_control::isolation;
use propylon_control::upgrade::launcher;
use propylon_keyserver::isolated;

/// Does what the command line says.
pub fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if propylonctl::answers(&words) {
        return propylonctl::execute(&words);
    }
    let build = Build { commit: option_env!("PROPYLON_COMMIT"), features: None };
    let line = Arguments::command()
        .version(propylon_commands::version())
        .long_version(propylon_commands::long_version(&build));
    let matches = line.subcommands(propylonctl::entries()).get_matches_from(words);
    let command = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command;
    // Checking reads private keys as well; `run` has a log to say it in where it cannot be.
    if matches!(command, Command::Check { .. }) {
        let _ = propylon_sys::no_core_dumps();
    }
    match command {
        Command::Run { config, upgrade } => run::main(&config.config, upgrade),
        Command::Upgrade(arguments) => run::upgrade(&arguments.config),
        Command::Check { config, json } => check::main(&config.config, json),
        Command::Launcher { successor } => launcher::main(&successor),
        Command::Guardian(arguments) => {
            let _ = propylon_sys::name_process(c"propylon-guard");
            guardian::main(&arguments.config)
        }
        Command::KeySupervisor => {
            let _ = propylon_sys::name_process(c"propylon-keysup");
            isolated::supervise(isolation::start_log)
        }
        Command::KeyProcess => {
            let _ = propylon_sys::name_process(c"propylon-keys");
            isolated::serve(isolation::start_log)
        }
    }
}

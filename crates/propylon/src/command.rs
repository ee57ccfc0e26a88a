//! The command line of `propylon`.

mod check;
mod propylonctl;
mod run;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use propylon_control::announce::guardian;
use propylon_control::isolation;
use propylon_control::upgrade::launcher;
use propylon_keyserver::isolated;

/// A TLS-offload load balancer.
#[derive(Parser)]
#[command(name = "propylon", version = propylon_sys::version(), after_help = EXAMPLE)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLE: &str = "Example:\n  propylon check -c propylon.toml && propylon run -c propylon.toml\n\n\
    Exit codes: 0 done; 1 it failed, or the configuration has errors; 2 wrong usage.";

#[derive(Subcommand)]
enum Command {
    /// Serve traffic until SIGTERM or SIGINT, then finish what is in progress and end
    #[command(after_help = "Examples:\n  propylon run -c propylon.toml\n  propylon run --upgrade -c \
        propylon.toml\n\nExit codes: 0 drained; 1 the configuration \
        has errors, or the start failed; 2 wrong usage; 3 requests were cut off when drain_timeout was up.")]
    Run {
        #[command(flatten)]
        config: ConfigArgument,
        /// Take over from the process that answers at the configuration's process.upgrade_socket, or at PATH: it serves until
        /// this one is ready, and drains then
        #[arg(long, value_name = "PATH", num_args = 0..=1, require_equals = true)]
        upgrade: Option<Option<PathBuf>>,
    },
    /// Have the running process start its program anew, take over from it, and wait for the outcome
    #[command(
        after_help = "Example:\n  propylon check -c propylon.toml && propylon upgrade -c propylon.toml\n\nIt asks by the \
        configuration's process.upgrade_socket, as SIGUSR2 to the process does.\n\nExit codes: 0 the new process serves; 1 \
        it does not, and the one before serves on; 2 wrong usage."
    )]
    Upgrade(ConfigArgument),
    /// Say everything that is wrong with a configuration, and serve nothing
    #[command(after_help = "Example:\n  propylon check -c propylon.toml\n\nExit codes: 0 no errors (warnings may be \
        printed); 1 errors; 2 wrong usage.")]
    Check {
        #[command(flatten)]
        config: ConfigArgument,
        /// Print the problems as a JSON array on standard output
        #[arg(long)]
        json: bool,
    },
    /// Start a successor when the process at the other end of standard input says so
    #[command(hide = true)]
    Launcher {
        /// Program and arguments
        #[arg(last = true, required = true)]
        successor: Vec<OsString>,
    },
    /// Speak to BIRD for the engine at the other end of standard input, and withdraw when it dies
    #[command(hide = true)]
    Guardian(ConfigArgument),
    /// Start a key process for the engine at the other end of standard input, again and again
    #[command(hide = true)]
    KeySupervisor,
    /// Hold the keys of an engine, for the supervisor at the other end of standard input
    #[command(hide = true)]
    KeyProcess,
}

#[derive(clap::Args)]
struct ConfigArgument {
    /// The configuration: TOML, or JSON if its name ends in .json
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: PathBuf,
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if propylonctl::answers(&words) {
        return propylonctl::execute(&words);
    }
    let matches = Arguments::command().subcommands(propylonctl::entries()).get_matches_from(words);
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

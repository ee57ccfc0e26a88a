//! The command line of `propylon`, as types: its commands, their options and their help. What command lines of all
//! programs have in common is in [`Build`] and [`pages`].

pub mod pages;
mod version;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

pub use version::{Build, long_version, version};

/// A TLS-offload load balancer.
#[derive(Parser)]
#[command(name = "propylon", after_help = EXAMPLE)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

/// Help that follows the list of commands.
const EXAMPLE: &str = "Example:\n  propylon check -c propylon.toml && propylon run -c propylon.toml\n\n\
    Exit codes: 0 done; 1 it failed, or the configuration has errors; 2 wrong usage.";

#[derive(Subcommand)]
pub enum Command {
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
pub struct ConfigArgument {
    /// The configuration: TOML, or JSON if its name ends in .json
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub config: PathBuf,
}

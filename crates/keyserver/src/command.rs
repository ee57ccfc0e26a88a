//! The command line of `propylon-keyserver`.

mod check;
mod keys;
mod run;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use propylon_commands::Build;

/// A server for private keys: engines send what is to be signed, and get signatures.
#[derive(Parser)]
#[command(name = "propylon-keyserver", version = propylon_commands::version(), after_help = EXAMPLE)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLE: &str = "Example:\n  propylon-keyserver check -c keyserver.toml && propylon-keyserver run -c \
    keyserver.toml\n\nExit codes: 0 done; 1 it failed, or the configuration has errors; 2 wrong usage.";

#[derive(Subcommand)]
enum Command {
    /// Serve until SIGTERM or SIGINT, then finish what is in progress and end; SIGHUP reads keys and certificates again
    #[command(after_help = "Example:\n  propylon-keyserver run -c keyserver.toml\n\nExit codes: 0 ended as asked; 1 \
        the configuration or a file it names has errors, or the start failed; 2 wrong usage.")]
    Run(ConfigArgument),
    /// Say everything that is wrong with a configuration and the files it names, and serve nothing
    #[command(after_help = "Example:\n  propylon-keyserver check -c keyserver.toml\n\nExit codes: 0 no errors \
        (warnings may be printed); 1 errors; 2 wrong usage.")]
    Check {
        #[command(flatten)]
        config: ConfigArgument,
        /// Print the problems as a JSON array on standard output
        #[arg(long)]
        json: bool,
    },
    /// List the keys that would be served: SKI, type, file
    #[command(after_help = "Example:\n  propylon-keyserver keys -c keyserver.toml\n\nExit codes: 0 every file could \
        be read; 1 some could not, or the configuration has errors; 2 wrong usage.")]
    Keys {
        #[command(flatten)]
        config: ConfigArgument,
        /// Print a JSON array on standard output
        #[arg(long)]
        json: bool,
    },
}

#[derive(clap::Args)]
struct ConfigArgument {
    /// The configuration: TOML, or JSON if its name ends in .json
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: PathBuf,
}

/// The command line, for whoever describes it.
#[must_use]
pub fn line() -> clap::Command {
    Arguments::command()
}

/// Does what the command line says; `commit` is what the binary was built of.
#[must_use]
pub fn main(commit: Option<&'static str>) -> ExitCode {
    let features: &[&str] = if cfg!(feature = "pkcs11") { &["pkcs11"] } else { &[] };
    let version = propylon_commands::long_version(&Build { commit, features: Some(features) });
    let matches = line().long_version(version).get_matches();
    let command = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command;
    // All commands read private keys, so core dumps are turned off; `run` logs it where that fails.
    let _ = propylon_sys::no_core_dumps();
    match command {
        Command::Run(arguments) => run::main(&arguments.config),
        Command::Check { config, json } => check::main(&config.config, json),
        Command::Keys { config, json } => keys::main(&config.config, json),
    }
}

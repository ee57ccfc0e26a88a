//! The command line of `propylon`.

mod admin_client;
mod attempt;
mod check;
mod control;
mod demo;
mod doctor;
mod explain;
mod run;
mod top;
mod with_parent;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use propylon_control::isolation;
use propylon_control::upgrade::launcher;
use propylon_keyserver::isolated;

/// A TLS-offload load balancer.
#[derive(Parser)]
#[command(name = "propylon", version, after_help = EXAMPLE)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLE: &str = "Example:\n  propylon check -c propylon.toml && propylon run -c propylon.toml\n\n\
    Exit codes: 0 done; 1 it failed, or the configuration has errors; 2 wrong usage.";

const CONTROL: &str = "Examples:\n  propylon servers -c propylon.toml\n  propylon drain 10.0.0.3:8080 -c propylon.toml\n  \
    propylon weight 10.0.0.3:8080 5 --admin 127.0.0.1:9900 --token-file token\n\nThey ask the admin address; changes need its \
    token, and process.state in the configuration.\n\nExit codes: 0 done; 1 it was refused, or nobody answers; 2 wrong usage.";

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
    /// Show it at work: servers, certificates, an engine and some load, all on this machine; needs propylon-bench
    #[command(after_help = "Examples:\n  propylon demo\n  propylon demo --once --seconds 1\n\nIt changes nothing on \
        this machine: everything lies in a folder under $TMPDIR (or /tmp) that is removed at the end, also after \
        Ctrl-C.\nPorts are 8443 and 9900 on 127.0.0.1, or free ones where these are taken.\n\nExit codes: 0 done; \
        1 it failed, or some of the load did; 2 wrong usage; 130 interrupted before the table.")]
    Demo(demo::Arguments),
    /// Say what would become of a request, and why: listener, certificate, route, backend, servers
    #[command(
        after_help = "Examples:\n  propylon explain -c propylon.toml https://shop.example/cart\n  propylon explain \
        -c propylon.toml https://shop.example:8443/ --sni other.example --json\n\nIt sends nothing and needs no engine; it \
        reads the configuration and the certificates as run would.\n\nExit codes: 0 told; 1 the configuration has errors, \
        or nothing listens there; 2 wrong usage."
    )]
    Explain(explain::Arguments),
    /// Look at this machine: files, ports, backlog, buffers, processor, memory, clock, each with the command that sets it
    #[command(after_help = "Examples:\n  propylon doctor\n  propylon doctor -c propylon.toml --json\n\nIt changes \
        nothing.\n\nExit codes: 0 nothing is bad (advice may be printed); 1 something is, or the configuration has errors; \
        2 wrong usage.")]
    Doctor(doctor::Arguments),
    /// Watch an engine in a terminal: clients, handshakes, latencies, servers, certificates
    #[command(after_help = "Examples:\n  propylon top\n  propylon top -c propylon.toml\n  propylon top --admin \
        127.0.0.1:9900 --json\n\nKeys: q quits.\n\nExit codes: 0 done; 1 the admin address does not answer; 2 wrong usage.")]
    Top(top::Arguments),
    /// Give a server of the running engine no new requests; those in progress end where they are
    #[command(after_help = CONTROL)]
    Drain(control::ServerArguments),
    /// Give a drained server requests again
    #[command(after_help = CONTROL)]
    Undrain(control::ServerArguments),
    /// Change the weight of a server of the running engine
    #[command(after_help = CONTROL)]
    Weight(control::WeightArguments),
    /// Have the running engine read its configuration and its certificates again, as SIGHUP does, and hear what came of it
    #[command(after_help = CONTROL)]
    Reload(control::ChangeArguments),
    /// List the servers of the running engine
    #[command(after_help = CONTROL)]
    Servers(control::LookArguments),
    /// List the certificates of the running engine, the first to expire first
    #[command(after_help = CONTROL)]
    Certificates(control::LookArguments),
    /// Start a successor when the process at the other end of standard input says so
    #[command(hide = true)]
    Launcher {
        /// Program and arguments
        #[arg(last = true, required = true)]
        successor: Vec<OsString>,
    },
    /// Start a key process for the engine at the other end of standard input, again and again
    #[command(hide = true)]
    KeySupervisor,
    /// Hold the keys of an engine, for the supervisor at the other end of standard input
    #[command(hide = true)]
    KeyProcess,
    /// Try something that the sandbox of a process that serves forbids
    #[command(hide = true)]
    Attempt(attempt::Arguments),
    /// Become another program, which ends when the process that started it does
    #[command(hide = true)]
    WithParent {
        /// The process that started this one
        parent: u32,
        /// Program and arguments
        #[arg(last = true, required = true)]
        program: Vec<OsString>,
    },
}

#[derive(clap::Args)]
struct ConfigArgument {
    /// The configuration: TOML, or JSON if its name ends in .json
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: PathBuf,
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    let command = Arguments::parse().command;
    // These read private keys as well; `run` has a log to say it in where it cannot be.
    if matches!(command, Command::Check { .. } | Command::Explain(_)) {
        let _ = propylon_sys::no_core_dumps();
    }
    match command {
        Command::Run { config, upgrade } => run::main(&config.config, upgrade),
        Command::Upgrade(arguments) => run::upgrade(&arguments.config),
        Command::Check { config, json } => check::main(&config.config, json),
        Command::Demo(arguments) => demo::main(&arguments),
        Command::Top(arguments) => top::main(&arguments),
        Command::Explain(arguments) => explain::main(&arguments),
        Command::Doctor(arguments) => doctor::main(&arguments),
        Command::Drain(arguments) => control::drain(&arguments),
        Command::Undrain(arguments) => control::undrain(&arguments),
        Command::Weight(arguments) => control::weight(&arguments),
        Command::Reload(arguments) => control::reload(&arguments),
        Command::Servers(arguments) => control::servers(&arguments),
        Command::Certificates(arguments) => control::certificates(&arguments),
        Command::Launcher { successor } => launcher::main(&successor),
        Command::KeySupervisor => {
            let _ = propylon_sys::name_process(c"propylon-keysup");
            isolated::supervise(isolation::start_log)
        }
        Command::KeyProcess => {
            let _ = propylon_sys::name_process(c"propylon-keys");
            isolated::serve(isolation::start_log)
        }
        Command::Attempt(arguments) => attempt::main(&arguments),
        Command::WithParent { parent, program } => with_parent::main(parent, &program),
    }
}

//! The command line of `propylonctl`.

mod admin_client;
mod admin_section;
mod attempt;
mod cluster;
mod control;
mod demo;
mod doctor;
mod explain;
mod fmt;
mod health;
mod import;
mod pages;
mod quickstart;
mod report;
mod routes;
mod schema;
mod status;
mod top;
mod with_parent;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use propylon_commands::Build;

/// Looks at a Propylon, explains it and changes it while it runs
#[derive(Parser)]
#[command(name = "propylonctl", version = propylon_commands::version(), after_help = EXAMPLE)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLE: &str = "Example:\n  propylon doctor -c propylon.toml && propylon top -c propylon.toml\n\n`propylon COMMAND` \
    executes `propylonctl COMMAND`.\n\nExit codes: 0 done; 1 it failed, or the configuration has errors; 2 wrong usage.";

const CONTROL: &str = "Examples:\n  propylon servers -c propylon.toml\n  propylon drain 10.0.0.3:8080 -c propylon.toml\n  \
    propylon weight 10.0.0.3:8080 5 --admin 127.0.0.1:9900 --token-file token\n\nThey ask the admin address; changes need its \
    token, and process.state in the configuration.\n\nExit codes: 0 done; 1 it was refused, or nobody answers; 2 wrong usage.";

#[derive(Subcommand)]
enum Command {
    /// Show it at work: servers, certificates, an engine and some load, all on this machine; needs propylon-bench
    #[command(after_help = "Examples:\n  propylon demo\n  propylon demo --once --seconds 1\n\nIt changes nothing on \
        this machine: everything lies in a folder under $TMPDIR (or /tmp) that is removed at the end, also after \
        Ctrl-C.\nPorts are 8443 and 9900 on 127.0.0.1, or free ones where these are taken.\n\nExit codes: 0 done; \
        1 it failed, or some of the load did; 2 wrong usage; 130 interrupted before the table.")]
    Demo(demo::Arguments),
    /// Write a configuration for a site in front of its servers, which explains itself, with a certificate for it
    #[command(
        after_help = "Examples:\n  propylon quickstart https://shop.example http://127.0.0.1:3000\n  propylon quickstart \
        https://localhost:8443 http://127.0.0.1:3000 --run\n  propylon quickstart https://shop.example 10.0.0.1:3000 \
        10.0.0.2:3000 -o - --health-path /health\n\nPublic names have certificates of Let's Encrypt; localhost, names that end \
        in .localhost, .test, .internal and .local, and addresses one of an authority of this machine. A second run keeps \
        what is there.\n\nExit codes: 0 written; 1 it could not be; 2 wrong usage; with --run those of `propylon run`."
    )]
    Quickstart(quickstart::Arguments),
    /// Say what would become of a request, and why: listener, certificate, route, backend, servers
    #[command(
        after_help = "Examples:\n  propylon explain -c propylon.toml https://shop.example/cart\n  propylon explain \
        -c propylon.toml https://shop.example:8443/ --sni other.example --json\n\nIt sends nothing and needs no engine; it \
        reads the configuration and the certificates as run would.\n\nExit codes: 0 told; 1 the configuration has errors, \
        or nothing listens there; 2 wrong usage."
    )]
    Explain(explain::Arguments),
    /// Lay out a configuration in one form, with its comments and its order as they are
    #[command(
        after_help = "Examples:\n  propylon fmt propylon.toml sites/*.toml\n  propylon fmt --check propylon.toml\n  \
        propylon fmt < propylon.toml\n\nOnly white space changes, and the comma behind the last item of an array. A file with an \
        error in its syntax is left as it is.\n\nExit codes: 0 done; 1 a file could not be formatted, or with --check is not; \
        2 wrong usage."
    )]
    Fmt(fmt::Arguments),
    /// Make a configuration of that of haproxy, nginx or Caddy, and say what is not carried over
    #[command(
        after_help = "Examples:\n  propylon import /etc/haproxy/haproxy.cfg -o propylon.toml\n  propylon import \
        /etc/nginx/sites-enabled/shop --from nginx > propylon.toml\n  propylon import Caddyfile -o propylon.toml\n\nThe \
        configuration goes to standard output, the rest to standard error.\n\nExit codes: 0 all of it is carried over; 1 it \
        could not be read, or what came of it needs a hand; 2 wrong usage; 3 lines are told that are not carried over as they \
        are."
    )]
    Import(import::Arguments),
    /// Print the JSON Schema of configuration files, by which editors complete and check keys
    #[command(after_help = "Examples:\n  propylon schema > propylon.schema.json\n  propylon schema --key-server > \
        propylon-keyserver.schema.json\n\nThe first line of a configuration names it for editors:\n  #:schema \
        ./propylon.schema.json\n\nExit codes: 0 done; 1 it could not be written; 2 wrong usage.")]
    Schema(schema::Arguments),
    /// Look at this machine: files, ports, backlog, buffers, processor, memory, clock, each with the command that sets
    /// it
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
    /// Have the running engine read its configuration and its certificates again, as SIGHUP does, and hear what came of
    /// it
    #[command(after_help = CONTROL)]
    Reload(control::ChangeArguments),
    /// List the servers of the running engine
    #[command(after_help = CONTROL)]
    Servers(control::ReadArguments),
    /// List the certificates of the running engine, the first to expire first
    #[command(after_help = CONTROL)]
    Certificates(control::ReadArguments),
    /// List the routes of the running engine in words: for which requests, which steps, what then, and what they do now
    #[command(
        after_help = "Examples:\n  propylon routes\n  propylon routes -c propylon.toml shop.example\n  propylon routes \
        --interval 10 --json\n\nExit codes: 0 done; 1 the admin address does not answer, or no route has the text; 2 wrong \
        usage."
    )]
    Routes(routes::Arguments),
    /// Say what the running engine is at, and what needs attention, with what to do
    #[command(after_help = "Examples:\n  propylon status -c propylon.toml\n  propylon status --json\n\nExit codes: 0 \
        nothing is wrong (warnings may be printed); 1 nobody answers; 2 wrong usage; 3 something is wrong.")]
    Status(status::StatusArguments),
    /// List what goes wrong in the running engine, by what, where and why, what happens now first
    #[command(
        after_help = "Examples:\n  propylon errors -c propylon.toml\n  propylon errors 10.0.0.3:8080 --interval \
        10\n\n`propylon tail --level warning` has the lines of the log, `propylon status` what to do.\n\nExit codes: 0 \
        done; 1 nobody answers; 2 wrong usage."
    )]
    Errors(status::ErrorsArguments),
    /// Print the last lines of the running engine's log, and with --follow those that come
    #[command(after_help = "Examples:\n  propylon tail -c propylon.toml --follow\n  propylon tail -n 100 --level \
        warning\n\nThe engine keeps 500 lines, also over an upgrade; the access log is another.\n\nExit codes: 0 done; 1 \
        nobody answers; 2 wrong usage.")]
    Tail(status::TailArguments),
    /// Put into one file what somebody else needs to understand what happens
    #[command(
        after_help = "Examples:\n  propylon report -c propylon.toml\n  propylon report --last 2h -o night.tar.gz \
        --json\n\nIn it are status, history, log, metrics, routes, configuration, the doctor's findings and the kernel's limits. No key, token, password or hash is in it, nor what clients have sent; names of hosts, routes, servers and \
        files are.\n\nExit codes: 0 all of it is there; 1 it could not be written; 2 wrong usage; 3 it is written, and parts \
        are missing, which are told."
    )]
    Report(report::Arguments),
    /// Look at, and change, engines that share a configuration, certificates and keys
    Cluster(cluster::Arguments),
    /// Say whether the running engine can serve, within 2 seconds, for programs that send clients to it
    #[command(after_help = "Examples:\n  propylon health -c propylon.toml\n  propylon health --admin \
        unix:/run/propylon/admin.sock\n\nAs keepalived's check: `propylon cluster keepalived` prints it.\n\nExit codes: 0 it \
        can; 1 it cannot, which is told with the reason, or nobody answers; 2 wrong usage.")]
    Health(health::Arguments),
    /// Write pages for `man` and completions for shells of all programs
    #[command(hide = true)]
    Pages(pages::Arguments),
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

fn line() -> clap::Command {
    let build = Build { commit: option_env!("PROPYLON_COMMIT"), features: None };
    Arguments::command().long_version(propylon_commands::long_version(&build))
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    let matches = line().get_matches();
    let command = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command;
    let reads_keys = match &command {
        Command::Explain(_) | Command::Quickstart(_) | Command::Doctor(_) => true,
        Command::Cluster(arguments) => arguments.reads_keys(),
        _ => false,
    };
    if reads_keys {
        let _ = propylon_sys::no_core_dumps();
    }
    match command {
        Command::Demo(arguments) => demo::main(&arguments),
        Command::Top(arguments) => top::main(&arguments),
        Command::Quickstart(arguments) => quickstart::main(&arguments),
        Command::Explain(arguments) => explain::main(&arguments),
        Command::Fmt(arguments) => fmt::main(&arguments),
        Command::Import(arguments) => import::main(&arguments),
        Command::Schema(arguments) => schema::main(&arguments),
        Command::Doctor(arguments) => doctor::main(&arguments),
        Command::Drain(arguments) => control::drain(&arguments),
        Command::Undrain(arguments) => control::undrain(&arguments),
        Command::Weight(arguments) => control::weight(&arguments),
        Command::Reload(arguments) => control::reload(&arguments),
        Command::Servers(arguments) => control::servers(&arguments),
        Command::Certificates(arguments) => control::certificates(&arguments),
        Command::Routes(arguments) => routes::main(&arguments),
        Command::Status(arguments) => status::status(&arguments),
        Command::Errors(arguments) => status::errors(&arguments),
        Command::Tail(arguments) => status::tail(&arguments),
        Command::Report(arguments) => report::main(&arguments),
        Command::Cluster(arguments) => cluster::main(&arguments),
        Command::Health(arguments) => health::main(&arguments),
        Command::Pages(arguments) => pages::main(&arguments, &line()),
        Command::Attempt(arguments) => attempt::main(&arguments),
        Command::WithParent { parent, program } => with_parent::main(parent, &program),
    }
}

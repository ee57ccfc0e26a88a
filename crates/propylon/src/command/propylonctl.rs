//! Commands that `propylonctl` has: `propylon top` becomes `propylonctl top`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

const PROGRAM: &str = "propylonctl";

/// Commands of propylonctl, as the list of `--help` tells of them here and there.
const COMMANDS: [(&str, &str); 21] = [
    (
        "demo",
        "Show it at work: servers, certificates, an engine and some load, all on this machine; needs propylon-bench",
    ),
    (
        "quickstart",
        "Write a configuration for a site in front of its servers, which explains itself, with a certificate for it",
    ),
    ("explain", "Say what would become of a request, and why: listener, certificate, route, backend, servers"),
    ("fmt", "Lay out a configuration in one form, with its comments and its order as they are"),
    ("import", "Make a configuration of that of haproxy, nginx or Caddy, and say what is not carried over"),
    ("schema", "Print the JSON Schema of configuration files, by which editors complete and check keys"),
    (
        "doctor",
        "Look at this machine: files, ports, backlog, buffers, processor, memory, clock, each with the command that sets it",
    ),
    ("top", "Watch an engine in a terminal: clients, handshakes, latencies, servers, certificates"),
    ("drain", "Give a server of the running engine no new requests; those in progress end where they are"),
    ("undrain", "Give a drained server requests again"),
    ("weight", "Change the weight of a server of the running engine"),
    (
        "reload",
        "Have the running engine read its configuration and its certificates again, as SIGHUP does, and hear what came of it",
    ),
    ("servers", "List the servers of the running engine"),
    ("certificates", "List the certificates of the running engine, the first to expire first"),
    (
        "routes",
        "List the routes of the running engine in words: for which requests, which steps, what then, and what they do now",
    ),
    ("status", "Say what the running engine is at, and what needs attention, with what to do"),
    ("errors", "List what goes wrong in the running engine, by what, where and why, what happens now first"),
    ("tail", "Print the last lines of the running engine's log, and with --follow those that come"),
    ("report", "Put into one file what somebody else needs to understand what happens"),
    ("cluster", "Look at, and change, engines that share a configuration, certificates and keys"),
    ("health", "Say whether the running engine can serve, within 2 seconds, for programs that send clients to it"),
];

/// Entries for the list of `--help`.
pub fn entries() -> impl Iterator<Item = clap::Command> {
    COMMANDS.iter().map(|(name, about)| clap::Command::new(*name).about(*about))
}

/// Whether `propylonctl` answers these arguments of the process: `top ...`, or `help top`.
pub fn answers(arguments: &[OsString]) -> bool {
    let word = match arguments.get(1) {
        Some(word) if word == "help" => arguments.get(2),
        word => word,
    };
    word.is_some_and(|word| COMMANDS.iter().any(|(name, _)| word == name))
}

/// Becomes `propylonctl` with the same arguments; returns only where that cannot be.
pub fn execute(arguments: &[OsString]) -> ExitCode {
    let folder = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.to_owned())).unwrap_or_default();
    let beside = Some(folder.join(PROGRAM)).filter(|program| program.is_file());
    let program = beside.clone().unwrap_or_else(|| PathBuf::from(PROGRAM));
    let mut command = Command::new(&program);
    // Usage and errors show the name that the user has typed.
    if let Some(own) = arguments.first() {
        command.arg0(own);
    }
    let error = command.args(arguments.iter().skip(1)).exec();
    match beside {
        Some(program) => eprintln!("propylon: {} cannot be executed: {error}", program.display()),
        None => eprintln!(
            "propylon: this command is {PROGRAM}'s, which is neither in {} nor found by PATH ({error}); install it beside \
             propylon, from the same build: cargo build --release -p {PROGRAM}",
            folder.display()
        ),
    }
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_commands_and_their_help_are_told_from_ours() {
        let answers = |line: &str| super::answers(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in ["propylon top", "propylon help top", "propylon drain --help", "x certificates -c help"] {
            assert!(answers(line), "{line}");
        }
        for line in ["propylon", "propylon run -c top", "propylon help", "propylon help check", "propylon --help top"] {
            assert!(!answers(line), "{line}");
        }
    }
}

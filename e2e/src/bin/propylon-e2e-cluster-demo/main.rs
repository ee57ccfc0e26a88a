//! `make cluster-demo`: a router, engines, etcd, servers and clients in network namespaces of this machine, and what
//! befalls a cluster in its life, one step after the other, under connections that are held and new ones. A table tells
//! at the end what each step cost. Whatever way it ends, it leaves nothing behind.

mod board;
mod figures;
mod steps;

use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use clap::Parser;
use propylon_e2e::rig::remains;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use board::Board;
use figures::Figures;
use steps::Demo;

/// Interrupted before there was a result: what a shell says of a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
/// Files of a generator that are none of its connections.
const OTHER_FILES: u64 = 256;

/// Engines that share an address, keys and a configuration, on this machine: what each change and each fault costs
/// clients
#[derive(Parser, Clone, Debug)]
#[command(
    name = "propylon-e2e-cluster-demo",
    after_help = "It takes root, BIRD, etcd and iproute2, and about a minute and a half.\n\n\
    Exit codes: 0 every promise was kept; 1 one was not, or this is no place for it; 2 wrong usage; 130 interrupted."
)]
struct Arguments {
    /// Engines; all but the last of them run from the start
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(3..=32))]
    engines: u32,
    /// TLS connections that are held, each with a request a second
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(32..=50_000))]
    held: u32,
    /// New TLS connections each second
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=5_000))]
    new: u32,
    /// How long all of etcd is away
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    etcd_away: Duration,
    /// Print the results as JSON on standard output
    #[arg(long)]
    json: bool,
    /// The process that has all of it, and can be killed at any time; the one that was started waits for it
    #[arg(long, hide = true)]
    inside: bool,
}

/// Seconds or minutes: `10s`, `2m`.
fn time(text: &str) -> Result<Duration, String> {
    let (number, seconds) = match text.strip_suffix('m') {
        Some(number) => (number, 60),
        None => (text.strip_suffix('s').unwrap_or(text), 1),
    };
    let number: u64 = number.parse().map_err(|_| "a time is a whole number with s or m behind it".to_owned())?;
    match number.saturating_mul(seconds) {
        seconds @ 1..=600 => Ok(Duration::from_secs(seconds)),
        _ => Err("it is 1s to 10m".to_owned()),
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.inside {
        true => inside(&arguments),
        false => outside(),
    };
    result.unwrap_or_else(|problem| {
        say(&format!("cluster-demo: {problem}\n"));
        ExitCode::FAILURE
    })
}

/// Has another process do it, out of reach of the terminal's Ctrl-C, which would end engines and etcd one by one; and
/// removes what that one leaves.
fn outside() -> Result<ExitCode, String> {
    let own = std::env::current_exe().map_err(|error| format!("this program's path: {error}"))?;
    let mut command = Command::new(own);
    command.args(std::env::args_os().skip(1)).arg("--inside").stdin(Stdio::piped()).process_group(0);
    let child = command.spawn().map_err(|error| format!("another process: {error}"))?;
    let pid = child.id();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("the event loop cannot be started: {error}"))?;
    let ended = runtime.block_on(until_interrupted(child))?;
    remains::remove(pid)?;
    Ok(match ended {
        Some(status) if status.success() => ExitCode::SUCCESS,
        Some(_) => ExitCode::FAILURE,
        None => ExitCode::from(INTERRUPTED),
    })
}

/// How the other process has ended by itself, or that it was ended by a signal to this one.
async fn until_interrupted(mut child: Child) -> Result<Option<ExitStatus>, String> {
    let install = |kind| signal(kind).map_err(|error| format!("signals cannot be had: {error}"));
    let mut interrupt = install(SignalKind::interrupt())?;
    let mut terminate = install(SignalKind::terminate())?;
    let mut hangup = install(SignalKind::hangup())?;
    let pid = Pid::from_child(&child);
    let (sender, mut receiver) = oneshot::channel();
    // Its input stays open, so that it ends when this process is killed.
    let life = child.stdin.take();
    std::thread::spawn(move || {
        let _ = sender.send(child.wait());
        drop(life);
    });
    let ended = tokio::select! {
        ended = &mut receiver => Some(ended),
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
        _ = hangup.recv() => None,
    };
    if let Some(ended) = ended {
        let status = ended.map_err(|_| "nobody waits for the other process".to_owned())?;
        return status.map(Some).map_err(|error| format!("the other process: {error}"));
    }
    say("\r\x1b[J");
    say("removing engines, etcd and namespaces\n");
    let _ = kill_process(pid, Signal::KILL);
    let _ = receiver.await;
    Ok(None)
}

fn inside(arguments: &Arguments) -> Result<ExitCode, String> {
    std::thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(i32::from(INTERRUPTED));
    });
    allow_files(u64::from(arguments.held) + OTHER_FILES)?;
    let is_shown = io::stderr().is_terminal() && (arguments.json || io::stdout().is_terminal());
    let board = Board::new(is_shown);
    let figures = Demo::run(arguments, &board)?;
    drop(board);
    print_report(arguments, &figures);
    Ok(if figures.broken_promises().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Clients are one process, and each connection is a file of it; children inherit the limit.
fn allow_files(count: u64) -> Result<(), String> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= count) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|maximum| maximum < count) {
        return Err(format!("so many connections take {count} open files; allow them: ulimit -n {count}"));
    }
    let wider = Rlimit { current: Some(count), ..limit };
    setrlimit(Resource::Nofile, wider).map_err(|error| format!("open files: {error}; ulimit -n {count}"))
}

fn print_report(arguments: &Arguments, figures: &Figures) {
    let text = match arguments.json {
        true => format!("{:#}\n", figures.json()),
        false => format!("\n{}", figures.table()),
    };
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

/// To standard error; nobody there is nobody's loss.
fn say(text: &str) {
    let mut stderr = io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_seconds_or_minutes_and_neither_nothing_nor_for_ever() {
        assert_eq!(time("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(time("2m"), Ok(Duration::from_secs(120)));
        for wrong in ["", "0s", "11m", "1h", "-1s", "99999999999999999999s"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}

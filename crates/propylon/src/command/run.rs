//! `propylon run`: from a file to an engine that serves it, maybe in the place of one that does already; and `propylon
//! upgrade`, which has that one see to it.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use propylon_config::{Problem, Severity, Source};
use propylon_control::cluster;
use propylon_control::engine::{self, Outcome, Start};
use propylon_control::folders;
use propylon_control::isolation::{self, KeyProcess};
use propylon_control::logger;
use propylon_control::names::Names;
use propylon_control::origin::{self, MergedConfig};
use propylon_control::problems::{problem, with_path};
use propylon_control::upgrade::Failure;
use propylon_control::upgrade::argv::Argv;
use propylon_control::upgrade::takeover::{Takeover, ask_for_upgrade};
use propylon_proxy::snapshot::Snapshot;
use propylon_tls::{Finding, Severity as TlsSeverity, Tickets};

use crate::command::check;

/// Requests were cut off when the drain's time was up.
const CUT_OFF: u8 = 3;
/// Problems that the process that serves is told of; the rest is in our own log.
const PROBLEMS_NAMED_MAX: usize = 5;

/// `upgrade`: take over from the process that answers there, or where the configuration says.
pub fn main(path: &Path, upgrade: Option<Option<PathBuf>>) -> ExitCode {
    let own = Argv::of_process();
    logger::start(propylon_config::Level::Info);
    let _flush = logger::Flush;
    // This is the main thread: it reads keys, and is sent them, in buffers that are libraries'.
    propylon_sys::wipe_freed_memory();
    if let Err(error) = propylon_sys::no_core_dumps() {
        log::warn!("core dumps cannot be turned off: {error}");
    }
    if let Err(error) = propylon_sys::no_huge_pages() {
        log::debug!("huge pages stay on: {error}");
    }
    let outcome = match upgrade {
        None => {
            start(path, own, None).and_then(|prepared| engine::run(prepared).map_err(|error| Some(error.to_string())))
        }
        Some(socket) => succeed(path, own, socket),
    };
    match outcome {
        Ok(Outcome::Drained) => ExitCode::SUCCESS,
        Ok(Outcome::CutOff(_)) => ExitCode::from(CUT_OFF),
        // The log has why.
        Ok(Outcome::Failed) => ExitCode::FAILURE,
        Err(error) => {
            error.into_iter().for_each(|error| log::error!("{error}"));
            ExitCode::FAILURE
        }
    }
}

/// An error is to be logged, unless what it says is on the screen already.
type Started<T> = Result<T, Option<String>>;

/// Takes over from the process that answers at a socket.
fn succeed(path: &Path, own: Argv, socket: Option<PathBuf>) -> Started<Outcome> {
    let socket = socket.map_or_else(|| upgrade_socket(path), Ok)?;
    let takeover = Takeover::begin(&socket).map_err(|failure| Some(format!("nothing was taken over: {failure}")))?;
    log::info!("upgrade: taking over from process {}, version {}", takeover.pid(), takeover.version());
    engine::run(start(path, own, Some(takeover))?).map_err(|error| Some(error.to_string()))
}

/// As the configuration has it, whatever else may be wrong with that.
fn upgrade_socket(path: &Path) -> Started<PathBuf> {
    let source = Source::read(path).map_err(|problem| Some(problem.to_string()))?;
    let (found, problems) = propylon_config::inspect(&source);
    if let Some(socket) = found.upgrade_socket {
        return Ok(socket.path);
    }
    let errors: Vec<Problem> = problems.into_iter().filter(|problem| problem.severity == Severity::Error).collect();
    if !errors.is_empty() {
        print(&errors, &source);
        return Err(None);
    }
    Err(Some(format!(
        "{}: without process.upgrade_socket nothing can be taken over; set it, and restart once",
        path.display()
    )))
}

/// Everything up to the sockets. Whoever serves hears what has gone wrong.
fn start(path: &Path, own: Argv, mut takeover: Option<Takeover>) -> Started<engine::Prepared> {
    let tickets = takeover.as_mut().and_then(|takeover| takeover.inherited_state.tickets.take());
    let generation = takeover.as_ref().map_or(0, |takeover| takeover.inherited_state.generation);
    // Without a process that serves, most of it is better than nothing. With one, all of it is in use there.
    let unfound = if takeover.is_some() { TlsSeverity::Error } else { TlsSeverity::Warning };
    let is_upgrade = takeover.is_some();
    let Loaded { merged, snapshot, unusable, key_process, cluster } =
        match load(path, tickets.unwrap_or_else(Tickets::new), unfound, is_upgrade) {
            Ok(loaded) => loaded,
            Err(what) => {
                let failure = Failure { reason: "configuration", what };
                takeover.iter().for_each(|takeover| takeover.give_up(&failure));
                return Err(None);
            }
        };
    let snapshot = snapshot.counted_after(generation);
    let start = Start { path: path.to_owned(), merged, snapshot, unusable, own, key_process, takeover, cluster };
    engine::prepare(start).map_err(|error| Some(error.to_string()))
}

/// Configuration and snapshot that an engine begins with.
struct Loaded {
    merged: MergedConfig,
    snapshot: Snapshot,
    /// Uploads that cannot be used.
    unusable: Vec<Finding>,
    key_process: Option<KeyProcess>,
    cluster: Option<cluster::Opened>,
}

/// Reads and compiles a configuration. What is wrong with it is printed; an error is the short of it.
fn load(path: &Path, tickets: Tickets, unfound: TlsSeverity, is_upgrade: bool) -> Result<Loaded, String> {
    let merged = match origin::read(path) {
        Ok(merged) => merged,
        Err(wrong) => {
            print(&wrong.problems, &wrong.source);
            return Err(summary(&wrong.problems));
        }
    };
    let own = merged.config.cluster.is_some().then(|| merged.clone());
    let (mut merged, mut cluster) = cluster::open(merged, is_upgrade).inspect_err(|what| log::error!("{what}"))?;
    print(&merged.warnings, &merged.source);
    print(&merged.overrides(), &merged.file);
    print(check::token_file(&merged.source, &merged.config).as_slice(), &merged.source);
    print(&folders::warnings(&merged.config, &merged.source, path), &merged.source);
    logger::start(merged.config.log.level);
    let problems = isolation::problems(&merged.config, &merged.source);
    print(&problems, &merged.source);
    if origin::has_error(&problems) {
        return Err(summary(&problems));
    }
    let key_process = KeyProcess::start_if_wanted(&merged.config, path).map_err(|error| {
        let what = format!("no key process can be started (keys.isolate): {error}");
        log::error!("{what}");
        what
    })?;
    let tickets = Arc::new(tickets);
    let compile = |merged: &MergedConfig| {
        Snapshot::compile(merged.config.clone(), Arc::clone(&tickets), &Names::answers(&merged.config), unfound)
    };
    let mut compiled = compile(&merged);
    // An upgrade leaves everything as it is where its new process cannot serve what the one before serves.
    if let (Err(findings), Some(opened), Some(own), false) = (&compiled, &mut cluster, own, is_upgrade)
        && opened.config.take().is_some()
    {
        let problems = findings.iter().map(|finding| with_path(problem(&merged.source, finding), finding));
        print(&problems.collect::<Vec<Problem>>(), &merged.source);
        log::error!("cluster: the last good state cannot be served; the file's configuration is, until etcd answers");
        merged = own;
        compiled = compile(&merged);
    }
    let findings = compiled.as_ref().map_or_else(|findings| findings, |(_, warnings)| warnings);
    // Without the line of the configuration beside it the file that is meant has to be named.
    let shows_lines = std::io::stderr().is_terminal();
    let as_problem = |finding: &Finding| match problem(&merged.source, finding) {
        problem if shows_lines => problem,
        problem => with_path(problem, finding),
    };
    let starts = compiled.is_ok();
    let as_problem = |finding: &Finding| match as_problem(finding) {
        problem if starts && problem.severity == Severity::Error => check::left_out(problem),
        problem => problem,
    };
    let problems: Vec<Problem> = findings.iter().map(as_problem).collect();
    print(&problems, &merged.source);
    match compiled {
        Ok((snapshot, mut findings)) => {
            findings.retain(|finding| finding.severity == TlsSeverity::Error);
            Ok(Loaded { merged, snapshot, unusable: findings, key_process, cluster })
        }
        Err(findings) => {
            let problems = findings.iter().map(|finding| with_path(problem(&merged.source, finding), finding));
            Err(summary(&problems.collect::<Vec<Problem>>()))
        }
    }
}

/// On a terminal with the lines that are meant; else each is a line of the log, with its time as any other.
fn print(problems: &[Problem], source: &Source) {
    if std::io::stderr().is_terminal() {
        eprint!("{}", source.render(problems));
        return;
    }
    for problem in problems {
        match problem.severity {
            Severity::Error => log::error!("{}", problem.unmarked()),
            Severity::Warning => log::warn!("{}", problem.unmarked()),
        }
    }
}

fn summary(problems: &[Problem]) -> String {
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
    let named: Vec<String> = errors.clone().take(PROBLEMS_NAMED_MAX).map(Problem::to_string).collect();
    let more = errors.count() - named.len();
    if more > 0 { format!("{}; and {more} more", named.join("; ")) } else { named.join("; ") }
}

/// `propylon upgrade`
pub fn upgrade(path: &Path) -> ExitCode {
    logger::start(propylon_config::Level::Info);
    let asked = upgrade_socket(path).map(|socket| ask_for_upgrade(&socket));
    match asked {
        Ok(Ok(pid)) => {
            println!("process {pid} serves; the one before drains");
            ExitCode::SUCCESS
        }
        Ok(Err(failure)) => {
            eprintln!("propylon: error: the upgrade has failed: {failure}");
            ExitCode::FAILURE
        }
        Err(error) => {
            error.into_iter().for_each(|error| eprintln!("propylon: error: {error}"));
            ExitCode::FAILURE
        }
    }
}

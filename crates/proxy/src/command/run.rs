//! `propylon run`: from a file to an engine that serves it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use propylon_config::Problem;
use propylon_tls::Tickets;

use crate::command::check;
use crate::engine::{self, Outcome};
use crate::logger;
use crate::origin::{self, Meant};
use crate::snapshot::Snapshot;

/// Requests were cut off when the drain's time was up.
const CUT_OFF: u8 = 3;

pub fn main(path: &Path) -> ExitCode {
    logger::start(propylon_config::Level::Info);
    if let Err(error) = propylon_sys::no_core_dumps() {
        log::warn!("core dumps cannot be turned off: {error}");
    }
    if let Err(error) = propylon_sys::no_huge_pages() {
        log::debug!("huge pages stay on: {error}");
    }
    let Some((meant, snapshot)) = load(path) else { return ExitCode::FAILURE };
    let outcome = engine::prepare(path, meant, snapshot).and_then(engine::run);
    match outcome {
        Ok(Outcome::Drained) => ExitCode::SUCCESS,
        Ok(Outcome::CutOff(_)) => ExitCode::from(CUT_OFF),
        Err(error) => {
            log::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Reads and compiles a configuration; what is wrong with it is printed.
fn load(path: &Path) -> Option<(Meant, Snapshot)> {
    let print = |problems: &[Problem], text: &str| eprint!("{}", propylon_config::render(problems, text));
    let meant = match origin::read(path) {
        Ok(meant) => meant,
        Err(wrong) => {
            print(&wrong.problems, &wrong.source.text);
            return None;
        }
    };
    print(&meant.warnings, &meant.source.text);
    logger::start(meant.config.log.level);
    let compiled = Snapshot::compile(meant.config.clone(), Arc::new(Tickets::new()));
    let findings = compiled.as_ref().map_or_else(|findings| findings, |(_, warnings)| warnings);
    let problems: Vec<Problem> = findings.iter().map(|finding| check::problem(&meant.source, finding)).collect();
    print(&problems, &meant.source.text);
    compiled.ok().map(|(snapshot, _)| (meant, snapshot))
}

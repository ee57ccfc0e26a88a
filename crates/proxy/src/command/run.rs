//! `propylon run`: from a file to an engine that serves it.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use propylon_config::{Problem, Severity, Source};
use propylon_tls::{Finding, Tickets};

use crate::command::check;
use crate::engine::{self, Outcome};
use crate::logger;
use crate::snapshot::{CompileError, Snapshot};

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
    let Some(snapshot) = load(path) else { return ExitCode::FAILURE };
    let outcome = engine::prepare(snapshot).and_then(engine::run);
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
fn load(path: &Path) -> Option<Snapshot> {
    let source = match Source::read(path) {
        Ok(source) => source,
        Err(problem) => {
            eprint!("{}", propylon_config::render(&[problem], ""));
            return None;
        }
    };
    let print = |problems: &[Problem]| eprint!("{}", propylon_config::render(problems, &source.text));
    let print_findings = |findings: &[Finding]| {
        let problems: Vec<Problem> = findings.iter().map(|finding| check::problem(&source, finding)).collect();
        print(&problems);
    };
    let config = match propylon_config::parse(&source) {
        Ok((config, warnings)) => {
            print(&warnings);
            config
        }
        Err(problems) => {
            print(&problems);
            return None;
        }
    };
    logger::start(config.log.level);
    match Snapshot::compile(config, Arc::new(Tickets::new())) {
        Ok((snapshot, warnings)) => {
            print_findings(&warnings);
            Some(snapshot)
        }
        Err(CompileError::Certificates(findings)) => {
            print_findings(&findings);
            None
        }
        Err(CompileError::Lookup { at, what }) => {
            print(&[Problem {
                severity: Severity::Error,
                file: source.name.clone(),
                at: Some(at),
                what,
                fix: "check the name, or write the server's IP address".into(),
            }]);
            None
        }
    }
}

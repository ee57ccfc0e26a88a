//! Proofs that routes ask for: compiled with the files that they go by.

use std::sync::Arc;

use propylon_config::Config;
use propylon_identity::{Loaded, Problem, pool};
use propylon_tls::{Finding, Severity};

use crate::cores::worker_count;

/// Compiles the gates of a configuration; files that are `known` are not read again.
pub fn reload(config: &Config, known: Option<&Arc<Loaded>>, findings: &mut Vec<Finding>) -> Arc<Loaded> {
    let known = known.map(|known| &**known);
    let (loaded, problems) = match Loaded::load(config, known) {
        Ok(loaded) => loaded,
        Err(problems) => (Loaded::default(), problems),
    };
    findings.extend(problems.into_iter().map(finding));
    if loaded.asks_for_passwords() {
        pool::start(worker_count(config));
    }
    Arc::new(loaded)
}

/// Checks the files of a configuration's gates.
pub fn check(config: &Config) -> Vec<Finding> {
    let problems = Loaded::load(config, None).map_or_else(|problems| problems, |(_, warnings)| warnings);
    problems.into_iter().map(finding).collect()
}

fn finding(problem: Problem) -> Finding {
    let Problem { is_warning, at, path, what, fix, error } = problem;
    let severity = if is_warning { Severity::Warning } else { Severity::Error };
    Finding { severity, at, path, what, fix, error }
}

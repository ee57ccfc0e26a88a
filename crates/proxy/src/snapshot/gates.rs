//! Proofs that routes ask for: compiled with the files that they go by.

use std::path::Path;
use std::sync::Arc;

use propylon_config::Config;
use propylon_identity::{Loaded, Problem, pool};
use propylon_tls::{Finding, Severity};

use crate::cores::worker_count;

/// Compiles the gates of a configuration. Files that are `known` are not read again, unless it `reads` all of them.
pub fn reload(
    config: &Config,
    (known, reads): (Option<&Arc<Loaded>>, bool),
    findings: &mut Vec<Finding>,
) -> Arc<Loaded> {
    let known = known.map(|known| &**known);
    let (loaded, problems) = match Loaded::load(config, known, |_| reads) {
        Ok(loaded) => loaded,
        Err(problems) => (Loaded::default(), problems),
    };
    findings.extend(problems.into_iter().map(finding));
    if loaded.asks_for_passwords() {
        pool::start(worker_count(config));
    }
    Arc::new(loaded)
}

/// Reads one file of a configuration's gates again. `None` where it says what it has said.
///
/// # Errors
/// Faults of a file that cannot be used.
pub fn read_again(config: &Config, known: &Loaded, file: &Path) -> Result<Option<Arc<Loaded>>, Vec<Finding>> {
    match Loaded::load(config, Some(known), |path| path == file) {
        Ok((loaded, _)) => {
            let is_new = known.changed_files(&loaded).next().is_some();
            Ok(is_new.then(|| Arc::new(loaded)))
        }
        Err(problems) => Err(problems.into_iter().map(finding).collect()),
    }
}

/// Checks the files of a configuration's gates.
pub fn check(config: &Config) -> Vec<Finding> {
    let problems = Loaded::load(config, None, |_| true).map_or_else(|problems| problems, |(_, warnings)| warnings);
    problems.into_iter().map(finding).collect()
}

fn finding(problem: Problem) -> Finding {
    let Problem { is_warning, at, path, what, fix, error } = problem;
    let severity = if is_warning { Severity::Warning } else { Severity::Error };
    Finding { severity, at, path, what, fix, error }
}

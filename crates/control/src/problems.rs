//! Findings about files, told as problems of the configuration that names them.

use propylon_config::{Problem, Severity, Source};
use propylon_tls::Finding;

use crate::sandbox;

/// A certificate's finding, told as a problem of the line that names the certificate.
pub fn problem(source: &Source, finding: &Finding) -> Problem {
    let finding = &sandbox::judged(finding);
    let severity = match finding.severity {
        propylon_tls::Severity::Error => Severity::Error,
        propylon_tls::Severity::Warning => Severity::Warning,
    };
    let path = finding.path.display().to_string();
    let line = source.text.lines().nth((finding.at.line as usize).saturating_sub(1)).unwrap_or_default();
    let name = finding.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // A line that names a folder does not say which of its files is meant.
    let what = match path.is_empty() || line.contains(&name) || finding.what.contains(&path) {
        true => finding.what.clone(),
        false => format!("{path}: {}", finding.what),
    };
    Problem { severity, ..Problem::error(&source.name, finding.at.known(), what, &finding.fix) }
}

/// The log shows no line of the configuration beside it, so the file that is meant is named.
pub fn with_path(problem: Problem, finding: &Finding) -> Problem {
    let path = finding.path.display().to_string();
    if path.is_empty() || problem.what.contains(&path) {
        return problem;
    }
    Problem { what: format!("{path}: {}", problem.what), ..problem }
}

//! Values that sections have in common: files, durations and their bounds.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::report::Report;
use crate::walk::{Found, Section};
use crate::wording::shown;

/// A path of a file, joined to the folder of the configuration.
pub(super) fn file(report: &Report<'_>, key: &str, found: Found<&str>, base: &Path) -> Option<PathBuf> {
    if found.value.is_empty() {
        report.error(found.span, format!("`{key}` is empty"), "write the path of a file");
        return None;
    }
    if found.value.chars().any(char::is_control) {
        let what = format!("`{key}`: the path \"{}\" has control characters in it", shown(found.value));
        report.error(found.span, what, "remove them");
        return None;
    }
    Some(base.join(found.value))
}

/// A path of a file that every such section has to name.
pub(super) fn required_file(
    section: &mut Section<'_, '_>,
    key: &'static str,
    base: &Path,
    fix: &str,
) -> Option<PathBuf> {
    section.require(key, fix);
    let found = section.string(key)?;
    file(section.report, key, found, base)
}

/// Characters of the name of something that metrics and lists show.
const LABEL_BYTES_MAX: usize = 64;

/// A name under which metrics and lists show `what`: none that one made of a host and a path could be.
pub(super) fn label(section: &mut Section<'_, '_>, key: &'static str, what: &str) -> Option<String> {
    let Found { value, span } = section.string(key)?;
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if value.is_empty() || value.len() > LABEL_BYTES_MAX || !value.bytes().all(is_fit) {
        let what = format!("\"{}\" cannot be the name of {what}", shown(value));
        let fix = format!("use up to {LABEL_BYTES_MAX} letters, digits, `-`, `_` and `.`");
        section.report.error(span, what, fix);
        return None;
    }
    Some(value.to_string())
}

pub(super) const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

pub(super) const MILLISECOND: Duration = Duration::from_millis(1);
pub(super) const HOUR: Duration = seconds(3600);
pub(super) const DAY: Duration = seconds(24 * 3600);

/// From the shortest that makes sense to a bound.
pub(super) fn up_to(bound: Duration) -> RangeInclusive<Duration> {
    MILLISECOND..=bound
}

/// A timeout of a section that may be absent, as may the key.
pub(super) fn timeout(
    section: &mut Option<Section<'_, '_>>,
    key: &'static str,
    bound: Duration,
    default: Duration,
) -> Duration {
    section.as_mut().map_or(default, |section| section.duration_or(key, up_to(bound), default))
}

pub(super) fn close(section: Option<Section<'_, '_>>) {
    if let Some(section) = section {
        section.close();
    }
}

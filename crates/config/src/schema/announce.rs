//! `[announce]`

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::values::{HOUR, file, seconds};
use crate::describe::Form;
use crate::model::Announce;
use crate::report::Report;
use crate::walk::{Found, Section, string};
use crate::wording::shown;

const BIRD: &str = "/run/bird/bird.ctl";
/// Limit of an address in Linux, without the zero at its end (unix(7)).
const SOCKET_PATH_BYTES_MAX: usize = 107;
const PROTOCOLS_MAX: usize = 8;
const PROTOCOL_BYTES_MAX: usize = 64;
const PROTOCOLS_FIX: &str = "name the protocols of BIRD that have the address, such as protocols = [\"vip\"]";

pub(crate) fn announce(section: Option<Section<'_, '_>>, base: &Path) -> Option<Announce> {
    let mut section = section?;
    let at = section.report.at(section.span);
    let bird = bird(&mut section, base);
    let protocols = protocols(&mut section);
    let min_servers_percent = section.integer_or("min_servers", 0..=100, 1);
    let hold = section.duration_or("hold", Duration::ZERO..=HOUR, seconds(3));
    let hold_up = section.duration_or("hold_up", Duration::ZERO..=HOUR, seconds(5));
    section.close();
    Some(Announce { bird, protocols, min_servers_percent, hold, hold_up, at })
}

fn bird(section: &mut Section<'_, '_>, base: &Path) -> PathBuf {
    let report = section.report;
    section.default_is("bird", || BIRD.into());
    let found = section.string("bird");
    let path = found.and_then(|found| file(report, "bird", found, base)).unwrap_or_else(|| BIRD.into());
    if let Some(found) = found
        && path.as_os_str().len() > SOCKET_PATH_BYTES_MAX
    {
        let what = format!("the path of a Unix socket has at most {SOCKET_PATH_BYTES_MAX} bytes");
        report.error(found.span, what, format!("choose a shorter one, such as \"{BIRD}\""));
    }
    path
}

fn protocols(section: &mut Section<'_, '_>) -> Vec<String> {
    let report = section.report;
    section.require("protocols", PROTOCOLS_FIX);
    let Some(list) = section.list("protocols", &[Form::String]) else { return Vec::new() };
    if list.value.is_empty() {
        report.error(list.span, "`protocols` is empty", PROTOCOLS_FIX);
    }
    if list.value.len() > PROTOCOLS_MAX {
        report.error(list.span, "`protocols` has too many entries", format!("use at most {PROTOCOLS_MAX}"));
        return Vec::new();
    }
    let mut seen = HashSet::new();
    let names = list.value.iter().filter_map(|node| string(report, "protocols", node));
    let names = names.filter(|found| is_protocol(report, *found));
    let names = names.filter(|found| {
        let is_new = seen.insert(found.value);
        if !is_new {
            report.error(found.span, format!("\"{}\" is named twice", found.value), "remove one of the two");
        }
        is_new
    });
    names.map(|found| found.value.to_string()).collect()
}

/// Names as BIRD has them, which are written into commands to it: anything else could be another command.
fn is_protocol(report: &Report<'_>, found: Found<&str>) -> bool {
    let name = found.value;
    let begins = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    let fits =
        name.len() <= PROTOCOL_BYTES_MAX && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if !(begins && fits) {
        let fix = format!("use at most {PROTOCOL_BYTES_MAX} letters, digits and `_`, with no digit in front");
        report.error(found.span, format!("\"{}\" cannot be the name of a protocol of BIRD", shown(name)), fix);
    }
    begins && fits
}

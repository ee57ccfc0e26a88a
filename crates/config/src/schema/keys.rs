//! `[keys]`

use std::path::Path;

use super::values::{close, file};
use crate::model::{At, Config, Keys, StateFolder};
use crate::report::Report;
use crate::walk::Section;

pub(crate) fn keys(mut section: Option<Section<'_, '_>>, base: &Path) -> Keys {
    let mut keys = Keys::default();
    if let Some(section) = &mut section {
        let at = section.entry("isolate").map(|entry| section.report.at(entry.key_span));
        section.default_is("isolate", || false.into());
        keys.isolate = section.boolean("isolate").filter(|found| found.value).and(at);
        let report = section.report;
        keys.store = section.string("store").and_then(|found| {
            let at = report.at(found.span);
            file(report, "store", found, base).map(|path| StateFolder { path, at })
        });
        if keys.isolate.is_none()
            && let Some(store) = &keys.store
        {
            let what = "`store` has no use without isolate = true: uploads go to process.state";
            report.warning_at(store.at, what, "remove it, or set isolate = true");
        }
    }
    close(section);
    keys
}

/// Keys that would be in the process that serves all the same, by where each is named, what it is and what to do: with
/// `keys.isolate` none may be, or the promise is none.
pub(crate) fn uncovered(config: &Config) -> Vec<(At, &'static str, &'static str)> {
    let mut found = Vec::new();
    // The key process makes keys of accounts, and of what they order, where it has a folder to keep them in.
    for acme in config.acmes.iter().filter(|_| config.keys.store.is_none()) {
        let fix =
            "name a folder for them, such as store = \"/var/lib/propylon/keys\" in [keys], or set isolate = false";
        found.push((acme.at, "keys of ordered certificates without keys.store", fix));
    }
    if let Some(cluster) = &config.cluster {
        let fix =
            "remove [cluster], or set isolate = false: keys that engines share are opened in the process that serves";
        found.push((cluster.at, "certificates and keys that the engines of a cluster share", fix));
    }
    found
}

/// Message about a key that is not covered.
pub(crate) fn not_covered(what: &str) -> String {
    format!("keys.isolate does not cover {what}")
}

pub(crate) fn check(report: &Report<'_>, config: &Config) {
    let Some(isolate) = config.keys.isolate else { return };
    for (at, what, fix) in uncovered(config) {
        report.error_at(at, not_covered(what), fix);
    }
    if config.keys.store.is_none() && config.process.state.is_some() && !config.process.immutable {
        let what = "with keys.isolate and without keys.store the admin API takes no certificates";
        let fix = "name a folder of its own, such as store = \"/var/lib/propylon/keys\" with process.state beside it";
        report.warning_at(isolate, what, fix);
    }
    if !config.process.sandbox.on {
        let what = "with sandbox = \"off\" the process that serves has no key, and may open the files that they are in";
        report.warning_at(isolate, what, "set process.sandbox = \"on\"");
    }
}

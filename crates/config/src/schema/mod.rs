//! The schema: one module for each kind of section, each from tree to model.

mod acme;
mod backend;
mod backend_tls;
mod balance;
mod client_auth;
mod headers;
mod health;
mod http2;
pub(crate) mod keys;
pub(crate) mod keyserver;
mod listener;
mod pkcs11;
mod process;
mod route;
mod signer;
mod sticky;
mod suites;
mod tls;
mod tracing;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::model::{Config, Route};
use crate::report::{Report, shown};
use crate::resolve;
use crate::text::Span;
use crate::tree::{Node, Value};
use crate::walk::{Found, Names, Section};

/// Knowledge that the sections of a file have of each other.
pub(crate) struct Context<'r, 't> {
    pub report: &'r Report<'t>,
    pub base: &'r Path,
    pub listeners: Names<'r>,
    pub tls: Names<'r>,
    pub signers: Names<'r>,
    pub acmes: Names<'r>,
    pub backends: Names<'r>,
    /// Setting of `[process]`.
    pub allow_world_readable_keys: bool,
}

/// A route, with what the checks across sections need beside it.
pub(crate) struct RouteDraft {
    /// Has stand-ins for what is wrong, unless it is complete.
    pub route: Route,
    pub span: Span,
    /// Whether listener, host and path are as they should be, so that it can be compared with other routes.
    pub complete: bool,
}

/// Walks the whole tree. The result is of use only if no error was reported.
pub(crate) fn config(report: &Report<'_>, root: &Node<'_>, base: &Path) -> Config {
    let entries = match &root.value {
        Value::Table(entries) => entries.as_slice(),
        _ => &[],
    };
    let mut top = Section::root(report, entries);
    let process = process::process(top.section("process"), base);
    let admin = process::admin(top.section("admin"), base);
    let log = process::log(top.section("log"), base);
    let keys = keys::keys(top.section("keys"), base);
    let tracing = tracing::tracing(top.section("tracing"), base);
    let listeners = top.named("listener");
    let tls = top.named("tls");
    let signers = top.named("signer");
    let acmes = top.named("acme");
    let backends = top.named("backend");
    let context = Context {
        report,
        base,
        listeners: Names::new("listener", &listeners),
        tls: Names::new("tls", &tls),
        signers: Names::new("signer", &signers),
        acmes: Names::new("acme", &acmes),
        backends: Names::new("backend", &backends),
        allow_world_readable_keys: process.allow_world_readable_keys,
    };
    let signers = signers.into_iter().map(|named| signer::signer(&context, named)).collect();
    let listeners = listeners.into_iter().map(|named| listener::listener(&context, named)).collect();
    let acmes: Vec<_> = acmes.into_iter().map(|named| acme::acme(&context, named)).collect();
    let mut tls: Vec<_> = tls.into_iter().map(|named| tls::profile(&context, named)).collect();
    let certificates = tls.iter_mut().flat_map(|profile| &mut profile.certificates);
    certificates.for_each(|certificate| acme::locate(&mut certificate.source, &acmes));
    let backends = backends.into_iter().map(|named| backend::backend(&context, named)).collect();
    let routes = route::routes(&context, &mut top);
    let listener_is_absent =
        top.node("listener").is_none_or(|node| matches!(&node.value, Value::Table(all) if all.is_empty()));
    let has_unknown = top.close();
    if listener_is_absent && !has_unknown && report.is_whole() {
        no_listener(report);
    }

    let (drafts, routes) = (&routes, routes.iter().map(|draft| draft.route.clone()).collect());
    let config = Config { process, admin, log, keys, tracing, listeners, tls, signers, acmes, backends, routes };
    keys::check(report, &config);
    resolve::check(&context, &config, drafts);
    config
}

fn no_listener(report: &Report<'_>) {
    let what = if report.is_blank() { "the file is empty" } else { "there is no listener" };
    report.error(Span::default(), what, "add a section [listener.NAME] with `bind`, such as bind = \"0.0.0.0:80\"");
}

/// A path of a file, joined to the folder of the configuration.
fn file(report: &Report<'_>, key: &str, found: Found<&str>, base: &Path) -> Option<PathBuf> {
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

/// A path of a file that must be given.
fn required_file(section: &mut Section<'_, '_>, key: &'static str, base: &Path, fix: &str) -> Option<PathBuf> {
    if section.node(key).is_none() {
        section.missing(key, fix);
        return None;
    }
    let found = section.string(key)?;
    file(section.report, key, found, base)
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

const MILLISECOND: Duration = Duration::from_millis(1);
const HOUR: Duration = seconds(3600);
const DAY: Duration = seconds(24 * 3600);

/// From the shortest that makes sense to a bound.
fn up_to(bound: Duration) -> RangeInclusive<Duration> {
    MILLISECOND..=bound
}

/// A timeout of a section that may be absent, as may the key.
fn timeout(section: &mut Option<Section<'_, '_>>, key: &'static str, bound: Duration, default: Duration) -> Duration {
    section.as_mut().and_then(|section| section.duration(key, up_to(bound))).map_or(default, |found| found.value)
}

fn close(section: Option<Section<'_, '_>>) {
    if let Some(section) = section {
        section.close();
    }
}

//! The schema: one module for each kind of section, each from tree to model.

mod acme;
mod announce;
mod answers;
mod auth;
mod backend;
mod backend_tls;
mod balance;
mod capacity;
mod change;
mod client_auth;
mod cluster;
mod compress;
mod conditions;
mod cors;
mod facts;
mod fastcgi;
mod forwarding;
mod headers;
mod health;
mod http2;
pub(crate) mod keys;
pub(crate) mod keyserver;
mod limits;
mod listener;
mod log;
mod pkcs11;
mod process;
mod request_id;
mod route;
mod signer;
mod source;
mod steps;
mod sticky;
mod suites;
mod tls;
mod tracing;
mod url;
mod values;

use std::path::Path;

use crate::context::Context;
use crate::describe::Form;
use crate::include;
use crate::model::{Config, Include, SignerId};
use crate::provenance::INCLUDE as KEY;
use crate::report::Report;
use crate::resolve;
use crate::text::Span;
use crate::tree::{Node, Value};
use crate::walk::{Found, Names, Section, string};
use crate::wording::shown;

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
    let cluster = cluster::cluster(top.section("cluster"), base);
    let announce = announce::announce(top.section("announce"), base);
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
    let signers =
        signers.into_iter().zip(0..).map(|(named, id)| signer::signer(&context, named, SignerId(id))).collect();
    let mut listeners: Vec<_> = listeners.into_iter().map(|named| listener::listener(&context, named)).collect();
    let acmes: Vec<_> = acmes.into_iter().map(|named| acme::acme(&context, named)).collect();
    let mut tls: Vec<_> = tls.into_iter().map(|named| tls::profile(&context, named)).collect();
    let certificates = tls.iter_mut().flat_map(|profile| &mut profile.certificates);
    certificates.for_each(|certificate| acme::locate(&mut certificate.source, &acmes));
    let backends = backends.into_iter().map(|named| backend::backend(&context, named)).collect();
    let mut routes = route::routes(&context, &mut top);
    limits::label(report, &mut routes);
    resolve::note_server_names(&mut listeners, &routes);
    let include = include(&mut top, base);
    let listener_is_absent =
        top.node("listener").is_none_or(|node| matches!(&node.value, Value::Table(all) if all.is_empty()));
    let has_unknown = top.close();
    if listener_is_absent && !has_unknown && report.is_whole() {
        no_listener(report);
    }

    let (drafts, routes) = (&routes, routes.iter().map(|draft| draft.route.clone()).collect());
    let mut config = Config {
        provenance: report.provenance().clone(),
        include,
        process,
        admin,
        log,
        keys,
        tracing,
        cluster,
        announce,
        listeners,
        tls,
        signers,
        acmes,
        backends,
        routes,
    };
    resolve::keep_trailers_away(&mut config);
    keys::check(report, &config);
    resolve::check(&context, &config, drafts);
    config
}

/// Patterns, whose files are in the tree already.
fn include(top: &mut Section<'_, '_>, base: &Path) -> Vec<Include> {
    let report = top.report;
    top.default_is(KEY, || serde_json::json!([]));
    let Some(list) = top.list(KEY, &[Form::String]) else { return Vec::new() };
    if !list.value.is_empty() && !report.provenance().has_includes() {
        let what = format!("`{KEY}` is only for a configuration in a file of this machine");
        report.error(list.span, what, "put the sections of those files into this text");
    }
    let mut patterns = Vec::new();
    for node in list.value {
        let Some(Found { value, span }) = string(report, KEY, node) else { continue };
        match include::names_files(value) {
            false => {
                report.error(span, format!("`{KEY}`: \"{}\" names no file", shown(value)), "write \"sites/*.toml\"")
            }
            true => {
                let folder = base.join(include::folder(value));
                let folder = if folder.as_os_str().is_empty() { ".".into() } else { folder };
                patterns.push(Include { folder, at: report.at(span) });
            }
        }
    }
    patterns
}

fn no_listener(report: &Report<'_>) {
    let what = if report.is_blank() { "the file is empty" } else { "there is no listener" };
    report.error(Span::default(), what, "add a section [listener.NAME] with `bind`, such as bind = \"0.0.0.0:80\"");
}

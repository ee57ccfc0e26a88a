//! `propylon-keyserver check`: every problem of a configuration and of the files it names, at once.

use std::path::Path;
use std::process::ExitCode;

use propylon_config::keyserver::{KeyReference, KeyServer, NamedPath};
use propylon_config::{Problem, Severity, Source, inspect_keyserver, render, to_json};
use propylon_crypto::OPEN_TO_ALL;

use crate::hsm::Tokens;
use crate::identity;
use crate::key_files::{self, KeyFiles};
use crate::server::describe;

pub fn main(path: &Path, json: bool) -> ExitCode {
    let (problems, text) = match Source::read(path) {
        Ok(source) => (problems(&source), source.text),
        Err(problem) => (vec![problem], String::new()),
    };
    let failed = problems.iter().any(|problem| problem.severity == Severity::Error);
    if json {
        println!("{}", to_json(&problems));
    } else {
        eprint!("{}", render(&problems, &text));
        println!("{}: {}", path.display(), summary(&problems));
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn summary(problems: &[Problem]) -> String {
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    let warnings = problems.len() - errors;
    let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    match (errors, warnings) {
        (0, 0) => "ok".into(),
        (0, _) => format!("ok, {}", count(warnings, "warning")),
        (_, 0) => count(errors, "error"),
        _ => format!("{}, {}", count(errors, "error"), count(warnings, "warning")),
    }
}

fn problems(source: &Source) -> Vec<Problem> {
    let (config, mut problems) = inspect_keyserver(source);
    if let Some(config) = config {
        problems.extend(in_files(&source.name, config));
    }
    problems.sort_by_key(|problem| problem.at);
    problems
}

/// Problems found in the files that the configuration names, each with its position in the configuration.
fn in_files(name: &str, config: KeyServer) -> Vec<Problem> {
    let mut problems = Vec::new();
    let is_named = |named: &NamedPath| !named.path.as_os_str().is_empty();
    if is_named(&config.server.identity)
        && is_named(&config.server.ca)
        && let Err(fault) = identity::load(&config.server)
    {
        let fix = match fault.named.at == config.server.ca.at {
            true => "write the certificates of those who sign the clients' to it in PEM",
            false => "write its certificates and its private key to it in PEM",
        };
        problems.push(Problem::error(name, Some(fault.named.at), fault.to_string(), fix));
    }
    let mut key_files = KeyFiles::new(config.keys.paths.clone(), config.server.allow_world_readable_keys);
    for fault in key_files.rescan().faults {
        let at = config.keys.paths[fault.source].at;
        problems.push(Problem::error(name, Some(at), describe(&fault), fault.what.fix()));
    }
    if key_files.keys().next().is_none()
        && problems.is_empty()
        && let Some(first) = config.keys.paths.first()
    {
        problems.push(Problem::warning(name, Some(first.at), "no private key is there", "add one, or check `paths`"));
    }
    for fault in Tokens::check(&config.tokens) {
        problems.push(Problem::error(name, Some(fault.at), fault.what, fault.fix));
    }
    // Files that are refused are among the faults already.
    for (path, source) in key_files.open_to_all() {
        let what = format!("{}: {OPEN_TO_ALL}", path.display());
        problems.push(Problem::warning(name, Some(config.keys.paths[source].at), what, "chmod o= it"));
    }
    let named = &config.server.identity;
    let has_no_key = problems.iter().any(|problem| problem.what.ends_with(identity::NO_KEY));
    if !has_no_key && key_files::is_open_to_all(&named.path) {
        let what = format!("{}: {OPEN_TO_ALL}", named.path.display());
        problems.push(match config.server.allow_world_readable_keys {
            true => Problem::warning(name, Some(named.at), what, "chmod o= it"),
            false => Problem::error(name, Some(named.at), what, key_files::Wrong::OpenToAll.fix()),
        });
    }
    for client in &config.clients {
        for reference in client.keys.iter().flatten() {
            // Keys in a hardware module cannot be listed without logging in.
            let is_there = key_files.found().any(|(key, origin)| match reference {
                KeyReference::Ski(ski) => key.ski() == *ski,
                reference => origin.is_named_by(reference),
            });
            let is_hidden = match reference {
                KeyReference::Token(name) => config.tokens.iter().any(|token| {
                    let rest = name.strip_prefix(token.token.name().as_str());
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                }),
                KeyReference::Ski(_) => !config.tokens.is_empty(),
                KeyReference::Path(_) => false,
            };
            if !is_there && !is_hidden {
                let at = match reference {
                    KeyReference::Ski(_) | KeyReference::Token(_) => client.at,
                    KeyReference::Path(named) => named.at,
                };
                let what = "this client names a key that is not among those of [keys]";
                problems.push(Problem::warning(name, Some(at), what, "correct it, or add the key's file to `paths`"));
            }
        }
    }
    problems
}

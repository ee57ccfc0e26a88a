//! How a snapshot is made ready from the sources of a configuration, beside the one in use.

use std::collections::HashMap;
use std::sync::Arc;

use propylon_config::{Config, Problem, Source, effective};
use propylon_proxy::limits::LimitState;
use propylon_proxy::snapshot::{Answers, Compiled, Files, Snapshot};
use propylon_tls::Finding;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::diff::diff;
use crate::origin::{self, Differing, FOR_LIFE, MergedConfig, Wrong, collect_differing, has_error};
use crate::problems::{problem, with_path};
use crate::requests::Refused;
use crate::sandbox::{self, Sandbox};
use crate::state::{ServerName, State};

/// A snapshot that is ready to be published, and the configuration it was made from.
pub(super) struct PreparedSnapshot {
    pub(super) merged: MergedConfig,
    pub(super) snapshot: Snapshot,
    pub(super) changes: Vec<Value>,
    pub(super) warnings: Vec<Problem>,
    /// Files that could not be used; their content from before stays in use.
    pub(super) kept: Vec<Finding>,
}

/// The sources of the configuration that is to be made.
pub(super) struct Sources {
    pub(super) file: Source,
    pub(super) state: State,
    /// The server that the change is about.
    pub(super) server: Option<ServerName>,
    /// Set if the change is a text in place of the file's.
    pub(super) is_pushed: bool,
}

/// A configuration that has been parsed and is to be compiled to a snapshot.
pub(super) struct ParsedConfig {
    pub(super) merged: MergedConfig,
    /// The same, with the numbers that signers have.
    pub(super) config: Config,
    pub(super) earlier: Arc<Snapshot>,
    /// Effective configurations.
    pub(super) before: Value,
    pub(super) after: Value,
    pub(super) problems: Vec<Problem>,
}

impl ParsedConfig {
    pub(super) fn new(
        Sources { file, state, server, is_pushed }: Sources,
        in_use: &Config,
        earlier: Arc<Snapshot>,
        sandbox: &Sandbox,
    ) -> Result<ParsedConfig, Refused> {
        let merged =
            origin::mean(file, state, server.as_ref()).map_err(|Wrong { problems, .. }| Refused::Problems(problems))?;
        let (before, after) = (effective::config(in_use), effective::config(&merged.config));
        let mut problems = merged.warnings.clone();
        problems.extend(for_life(&merged, &before, &after));
        if is_pushed {
            problems.extend(merged.said_otherwise(&before));
        }
        let mut refused = sandbox.refused(&merged.config, &merged.source);
        refused.extend(sandbox::untold_accounts(&merged.config, &merged.source, &merged.file));
        if !refused.is_empty() {
            // Compiling would report the same files once more, with less about the cause.
            problems.extend(refused);
            problems.sort_by_key(|problem| merged.source.order(problem));
            return Err(Refused::Problems(problems));
        }
        let config = merged.config.clone().with_signers_of(&earlier.config);
        Ok(ParsedConfig { merged, config, earlier, before, after, problems })
    }

    pub(super) fn compile(self, files: Files, found: &Answers) -> Result<PreparedSnapshot, Refused> {
        let ParsedConfig { merged, config, earlier, before, after, mut problems } = self;
        let built = earlier.succeeded_by(config, files, found);
        let findings = built.as_ref().map_or_else(|findings| findings, |built| &built.warnings);
        let problem_of = |finding: &Finding| with_path(problem(&merged.source, finding), finding);
        problems.extend(findings.iter().map(problem_of));
        if let Ok(Compiled { kept, .. }) = &built {
            problems.extend(kept.iter().map(problem_of).map(|problem| Problem {
                severity: propylon_config::Severity::Warning,
                what: format!("{}; what was there before stays in use", problem.what),
                ..problem
            }));
        }
        problems.sort_by_key(|problem| merged.source.order(problem));
        match built {
            Ok(Compiled { snapshot, kept, .. }) if !has_error(&problems) => {
                let mut changes = diff(&before, &after);
                changes.extend(unseen_changes(&earlier, &snapshot));
                Ok(PreparedSnapshot { merged, snapshot, changes, warnings: problems, kept })
            }
            _ => Err(Refused::Problems(problems)),
        }
    }
}

/// Runs `work` on a thread of its own, while the tasks of this thread go on.
pub(super) async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refused> {
    let failed = |what: String| {
        let fix = "try again; if it goes on, please report it";
        Refused::Problems(vec![Problem::error("request", None, what, fix)])
    };
    let (sender, receiver) = oneshot::channel();
    let thread = std::thread::Builder::new().name("compile".into()).spawn(move || {
        // A configuration that was sent may by mistake be a private key.
        propylon_sys::wipe_freed_memory();
        // The receiver is gone if the process is ending.
        let _ = sender.send(work());
    });
    thread.map_err(|error| failed(format!("a thread cannot be started: {error}")))?;
    receiver.await.map_err(|_| failed("compiling the configuration panicked: a defect in Propylon".into()))
}

/// Errors for changed keys that only another process can apply.
fn for_life(merged: &MergedConfig, before: &Value, after: &Value) -> Vec<Problem> {
    // References only: the configuration may have thousands of servers.
    fn of<'v>(root: &'v Value, path: &str) -> &'v Value {
        path.split('.').fold(root, |value, key| &value[key])
    }
    let mut problems = Vec::new();
    for (path, _) in FOR_LIFE {
        let mut changed = Vec::new();
        collect_differing((*path).to_owned(), of(before, path), of(after, path), &mut changed);
        problems.extend(changed.iter().map(|key| unchangeable(&merged.file, path, key)));
    }
    problems
}

/// The error for one such key, which is in the file whatever stands in the place of the rest of it.
fn unchangeable(file: &Source, path: &str, key: &Differing<'_>) -> Problem {
    let shown = |value: &Value, none: &str| match value {
        Value::Null => none.to_owned(),
        Value::Object(_) => "set".to_owned(),
        value => value.to_string(),
    };
    let whose = if key.path == path { "it".to_owned() } else { format!("`{}`", key.path) };
    let (was, is_to_be) = (shown(key.before, "not set"), shown(key.after, "left out"));
    let what = format!("`{path}` cannot change while the process runs: {whose} is {was}, and is to be {is_to_be}");
    let at = propylon_config::locate(file, &key.path);
    Problem::error(&file.name, at, what, "put it back, or restart the process")
}

/// Changes that the configuration's text does not show: certificates or files with new content.
fn unseen_changes(earlier: &Snapshot, later: &Snapshot) -> Vec<Value> {
    let mut changes = Vec::new();
    for (tls, profile) in later.config.tls.iter().zip(&later.profiles) {
        let known = earlier.profiles.iter().any(|known| Arc::ptr_eq(known, profile));
        if !known && earlier.config.tls.iter().any(|known| known.name == tls.name) {
            changes.push(json!({ "path": format!("tls.{}", tls.name), "certificates": "read again" }));
        }
    }
    let before = earlier.config.backend_indexes();
    for (backend, upstream) in later.config.backends.iter().zip(&later.upstreams) {
        let Some(index) = before.get(backend.name.as_str()) else { continue };
        let known = &earlier.config.backends[*index];
        let same = match (&earlier.upstreams[*index], upstream) {
            (Some(before), Some(after)) => Arc::ptr_eq(before, after) || before.same_files(after),
            (before, after) => before.is_none() == after.is_none(),
        };
        // A change that is written in the configuration is reported by `diff`.
        if !same && known.tls.is_some() && backend.tls.is_some() {
            changes.push(json!({ "path": format!("backend.{}.tls", backend.name), "certificates": "read again" }));
        }
    }
    let before: HashMap<&str, &LimitState> =
        earlier.config.limits().map(|limit| limit.label.as_str()).zip(&*earlier.limits).collect();
    for (limit, state) in later.config.limits().zip(&*later.limits) {
        if before.get(limit.label.as_str()).is_some_and(|before| !Arc::ptr_eq(&before.lists, &state.lists)) {
            changes.push(json!({ "path": format!("route.limit.{}", limit.label), "lists": "read again" }));
        }
    }
    if let (Some(before), Some(after)) = (&earlier.collector, &later.collector)
        && !Arc::ptr_eq(before, after)
    {
        changes.push(json!({ "path": "tracing", "files": "read again" }));
    }
    for file in earlier.gates.changed_files(&later.gates) {
        changes.push(json!({ "path": "route.auth", "file": file, "contents": "read again" }));
    }
    for (path, body) in later.bodies.iter() {
        if earlier.bodies.get(path).is_some_and(|known| known != body) {
            changes.push(json!({ "path": path.to_string_lossy(), "files": "read again" }));
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_needs_a_restart_is_told_with_its_file_its_line_and_both_values() {
        let text = |name: &str| {
            let cluster = format!("[cluster]\nname = '{name}'\nendpoints = ['https://e:1']\nsealing_keys = ['/k']\n");
            format!("{cluster}[listener.web]\nbind = '127.0.0.1:1'\n[[route]]\nrespond = {{}}\n")
        };
        let file = |name| Source { name: "own.toml".into(), base: "/etc".into(), text: text(name) };
        let shared = "[listener.web]\nbind = '127.0.0.1:2'\n[[route]]\nrespond = {}\n".to_owned();
        let state =
            State { cluster: Some(crate::state::ClusterText { text: shared, is_json: false }), ..State::default() };
        let mean = |name| origin::mean(file(name), state.clone(), None).ok().expect("a configuration");
        let (before, merged) = (effective::config(&mean("edge").config), mean("other"));
        let problems = for_life(&merged, &before, &effective::config(&merged.config));
        let told: Vec<String> = problems.iter().map(|problem| problem.unmarked().to_string()).collect();
        let expected = "own.toml:2:1: `cluster` cannot change while the process runs: `cluster.name` is \"edge\", and is \
                        to be \"other\"; put it back, or restart the process";
        assert_eq!(told, [expected]);
        let without = Source {
            text: text("x").split_once("[listener").map(|(_, rest)| format!("[listener{rest}")).unwrap(),
            ..file("x")
        };
        let key = Differing { path: "cluster".into(), before: &before["cluster"], after: &Value::Null };
        let problem = unchangeable(&without, "cluster", &key);
        assert!(problem.what.ends_with(": it is set, and is to be left out"), "{}", problem.what);
    }
}

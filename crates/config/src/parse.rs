//! Reading of configurations: from text, by way of the tree and the schema, to the model with all problems.

use std::path::{Path, PathBuf};

use crate::keyserver::KeyServer;
use crate::model::{
    Acme, At, Backend, Config, Keys, Limit, Network, ServerAddress, Signer, TlsProfile, Tracing, UpgradeSocket,
};
use crate::problem::{Problem, Severity};
use crate::provenance::SOURCE_BYTES_MAX;
use crate::report::Report;
use crate::source::{self, Source};
use crate::text::Lines;
use crate::tree::Node;
use crate::{address, problem, read, schema, tree};

/// Reads a configuration. What comes with a `Config` are warnings; without one, it is all errors and warnings.
/// Problems are in the order of their positions.
pub fn parse(source: &Source) -> Result<(Config, Vec<Problem>), Vec<Problem>> {
    finish(read(source, schema::config))
}

/// The sections that name files with certificates and keys.
#[derive(Clone, Debug, Default)]
pub struct Certified {
    /// `[tls.NAME]`
    pub tls: Vec<TlsProfile>,
    /// `[signer.NAME]`
    pub signers: Vec<Signer>,
    /// `[acme.NAME]`
    pub acmes: Vec<Acme>,
    /// `[backend.NAME]`, for its `tls`.
    pub backends: Vec<Backend>,
    /// `limit` of routes, for their lists.
    pub limits: Vec<Limit>,
    /// `[tracing]`, for its `ca` and `headers`.
    pub tracing: Option<Tracing>,
    /// `[keys]`
    pub keys: Keys,
    /// `process.upgrade_socket`: whoever is found there hears of the problems.
    pub upgrade_socket: Option<UpgradeSocket>,
    /// Files that answers are made of, with the positions of what names them.
    pub bodies: Vec<(PathBuf, At)>,
}

/// All problems, and the sections that name certificates as far as they could be read in spite of them, so that
/// whoever checks certificates can add what is wrong with those to the same report.
pub fn inspect(source: &Source) -> (Certified, Vec<Problem>) {
    let (config, problems) = read(source, schema::config);
    let certified = |config: Config| {
        let limits = config.limits().cloned().collect();
        let bodies = config.body_files().into_iter().map(|(path, at)| (path.to_owned(), at)).collect();
        let Config { process, keys, tls, signers, acmes, backends, tracing, .. } = config;
        Certified {
            tls,
            signers,
            acmes,
            backends,
            limits,
            tracing,
            keys,
            upgrade_socket: process.upgrade_socket,
            bodies,
        }
    };
    (config.map(certified).unwrap_or_default(), problems)
}

/// Keys of a configuration that its `keys.isolate` does not cover, as errors about `source`: for one whose
/// `keys.isolate` is not that of its own text.
pub fn uncovered_keys(source: &Source, config: &Config) -> Vec<Problem> {
    if config.keys.isolate.is_none() {
        return Vec::new();
    }
    let keys = schema::keys::uncovered(config).into_iter();
    keys.map(|(at, what, fix)| Problem::error(&source.name, Some(at), schema::keys::not_covered(what), fix)).collect()
}

/// Reads a key server's configuration. What comes with it are warnings; otherwise it is all errors and warnings.
pub fn parse_keyserver(source: &Source) -> Result<(KeyServer, Vec<Problem>), Vec<Problem>> {
    finish(read(source, schema::keyserver::key_server))
}

/// All problems, and the configuration as far as it could be read in spite of them (with empty paths where those are
/// missing), so that whoever checks the files that it names can add what is wrong with those.
pub fn inspect_keyserver(source: &Source) -> (Option<KeyServer>, Vec<Problem>) {
    read(source, schema::keyserver::key_server)
}

/// Reads one server's address; else what is wrong with it, and what to do.
pub fn server_address(text: &str) -> Result<ServerAddress, (String, String)> {
    address::backend_server(text)
}

/// Reads a network, or one address; else what is wrong with it, and what to do.
pub fn network(text: &str) -> Result<Network, (String, String)> {
    address::network(text)
}

/// Position of the key that the path leads to (`process.batch`), else the nearest of those that lead there, else the
/// beginning. None where nothing can be found in the text at all.
pub fn locate(source: &Source, path: &str) -> Option<At> {
    find(source, path).map(|(at, _)| at)
}

/// Position of the key that the path leads to; none where the text leaves it out.
pub fn written(source: &Source, path: &str) -> Option<At> {
    find(source, path).and_then(|(at, is_whole)| is_whole.then_some(at))
}

/// The place of the last key of the path that is there, and whether that is all of the path.
fn find(source: &Source, path: &str) -> Option<(At, bool)> {
    let lines = Lines::new(problem::without_mark(&source.text));
    let root = read::whole(&lines, &source.name, source.is_json()).root?;
    let (mut node, mut at) = (&root, At { line: 1, column: 1, length: 1 });
    for key in path.split('.') {
        let tree::Value::Table(entries) = &node.value else { return Some((at, false)) };
        let Some(entry) = entries.iter().find(|entry| entry.key == key) else { return Some((at, false)) };
        at = lines.at(entry.key_span);
        node = &entry.node;
    }
    Some((at, true))
}

/// With an error among the problems nothing is to be used.
fn finish<T>((config, problems): (Option<T>, Vec<Problem>)) -> Result<(T, Vec<Problem>), Vec<Problem>> {
    match config {
        Some(config) if problems.iter().all(|problem| problem.severity == Severity::Warning) => Ok((config, problems)),
        _ => Err(problems),
    }
}

/// Content that could be read, and all that is wrong; with an error among it the configuration is not to be used.
fn read<T>(source: &Source, schema: fn(&Report<'_>, &Node<'_>, &Path) -> T) -> (Option<T>, Vec<Problem>) {
    if source.text.len() > SOURCE_BYTES_MAX {
        let (what, fix) = source::too_large();
        return (None, vec![Problem::error(&source.name, None, what, fix)]);
    }
    let lines = Lines::new(problem::without_mark(&source.text));
    let reading = read::whole(&lines, &source.name, source.is_json());
    let report = Report::new(&source.name, &lines, &reading);
    let config = reading.root.as_ref().map(|root| schema(&report, root, &source.base));
    if report.errors() > 0
        && let Some(problem) = problem::of_pem(&source.name, &source.text)
    {
        return (None, vec![problem]);
    }
    (config, report.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_where_they_are_written_in_both_languages() {
        let toml = "[log]\nlevel = 'warn'\n[process]\nworkers = 2\nhandshakes = { per_source = 3 }\n";
        let json = "{\n  \"process\": { \"workers\": 2 }\n}";
        for (name, text, path, line, column) in [
            ("a.toml", toml, "process.workers", 4, 1),
            ("a.toml", toml, "process.handshakes.per_source", 5, 16),
            ("a.toml", toml, "process.batch", 3, 2),
            ("a.toml", toml, "admin", 1, 1),
            ("a.json", json, "process.workers", 2, 16),
        ] {
            let source = Source { name: name.into(), base: "".into(), text: text.into() };
            let at = locate(&source, path).expect("a place");
            assert_eq!((at.line, at.column), (line, column), "{path} in {name}");
            let is_left_out = ["process.batch", "admin"].contains(&path);
            assert_eq!(written(&source, path), (!is_left_out).then_some(at), "{path} in {name}");
        }
    }
}

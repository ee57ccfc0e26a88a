//! Origin of the configuration: a file, with the admin API's changes laid over it.

use std::mem::swap;
use std::path::{Path, PathBuf};

use propylon_config::{At, Config, PUSHED, PUSHED_JSON, Problem, Severity, Source};
use propylon_sys::folder_of;
use serde_json::Value;

use crate::isolation;
use crate::key_folders;
use crate::shared_keys;
use crate::state::{ClusterText, FILE, Pushed, ServerName, State, Uploads, uploads_within};
use propylon_config::effective;

/// A configuration, and what it was made of.
#[derive(Clone)]
pub struct MergedConfig {
    /// Text that the problems refer to: the file, or the text that was pushed in its place.
    pub source: Source,
    /// The file.
    pub file: Source,
    pub state: State,
    pub config: Config,
    pub warnings: Vec<Problem>,
    /// Warnings that the state causes, and not the text.
    pub warnings_of_state: Vec<Problem>,
    /// Settings of a pushed text in place of the file's, by path in the configuration; null without a pushed text.
    said: Value,
}

/// Overrides that are named one by one; of more their number.
const OVERRIDES_NAMED_MAX: usize = 20;

impl MergedConfig {
    /// The folder of uploads, if there is one.
    pub fn uploads(&self) -> Option<Uploads> {
        Some(Uploads::of(&self.config, &self.config.process.state.as_ref()?.path))
    }

    /// Everything that `process.state` has otherwise than the file, as warnings about the file. Of very many only some.
    pub fn overrides(&self) -> Vec<Problem> {
        let Some(folder) = &self.config.process.state else { return Vec::new() };
        let path = folder.path.join(FILE);
        let fix = format!("change it back by the admin API, or stop the engine and remove {}", path.display());
        let warning = |what: String| {
            let what = format!("process.state overrides this file: {what}");
            Problem::warning(&self.file.name, propylon_config::locate(&self.file, "process.state"), what, fix.clone())
        };
        let all = self.state.overrides();
        let more = all.len().saturating_sub(OVERRIDES_NAMED_MAX);
        let mut warnings: Vec<Problem> = all.into_iter().take(OVERRIDES_NAMED_MAX).map(warning).collect();
        if more > 0 {
            warnings.push(warning(format!("{more} more changes, which are in {}", path.display())));
        }
        warnings
    }

    /// Settings that the pushed text has otherwise than the configuration in effect, and that need another process.
    /// Settings that it leaves out is the file's.
    pub fn said_otherwise(&self, in_effect: &Value) -> Vec<Problem> {
        if self.said.is_null() {
            return Vec::new();
        }
        let mut differing = Vec::new();
        for (path, _) in FOR_LIFE {
            let of = |root| path.split('.').fold(root, |value: &Value, key| &value[key]);
            collect_differing((*path).to_owned(), of(in_effect), of(&self.said), &mut differing);
        }
        let is_shared = self.state.cluster.is_some() && self.config.cluster.is_some();
        let problem = |Differing { path, before, .. }: Differing<'_>| {
            let at = propylon_config::written(&self.source, &path)?;
            let before = if before.is_null() { "not set".to_owned() } else { before.to_string() };
            let (what, fix) = match is_shared {
                true => not_to_be_shared(&path),
                false => (
                    format!("`{path}` cannot change while the process runs: it is {before}"),
                    "leave it out or say the same; to change it, change the file and restart the process".to_owned(),
                ),
            };
            Some(Problem::error(&self.source.name, Some(at), what, fix))
        };
        differing.into_iter().filter_map(problem).collect()
    }
}

/// The fault, and its remedy, of a key of an engine's own file in the configuration that engines share.
fn not_to_be_shared(path: &str) -> (String, String) {
    let what = format!("`{path}` is not to be in a configuration that engines share");
    let section = path.split('.').next().unwrap_or(path);
    let fix = match ["cluster", "announce", "admin"].contains(&section) {
        true => format!("take [{section}] out of it: that is in each engine's own file"),
        false => "take it out: it is in each engine's own file, and another value there needs a restart".to_owned(),
    };
    (what, fix)
}

/// Problems, and the text that they refer to.
pub struct Wrong {
    pub source: Source,
    pub problems: Vec<Problem>,
    /// This account may not read the state.
    pub is_unreadable: bool,
}

impl Wrong {
    fn alone(path: &Path, problem: Problem) -> Wrong {
        let source = Source { name: path.display().to_string().into(), base: PathBuf::new(), text: String::new() };
        Wrong { source, problems: vec![problem], is_unreadable: false }
    }
}

/// Reads the file, and the state if the file names a folder for it.
pub fn read(path: &Path) -> Result<MergedConfig, Wrong> {
    let file = isolation::read_source(path).map_err(|problem| Wrong::alone(path, problem))?;
    with_state(&file)
}

/// A file that has been read, with the state if it names a folder for it.
pub fn with_state(file: &Source) -> Result<MergedConfig, Wrong> {
    let read = parse(file)?;
    let state = match &read.0.process.state {
        None => State::default(),
        Some(folder) => State::load(&folder.path).map_err(|problem| {
            let opened = std::fs::File::open(folder.path.join(FILE));
            let is_unreadable = opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied);
            Wrong { source: file.clone(), problems: vec![problem], is_unreadable }
        })?,
    };
    lay_over(file.clone(), read, state, None)
}

/// The configuration that a file and a state mean together. A file that has changed since something was pushed in its
/// place has the last word. What the state has of `changed`, and the text says as well, is forgotten.
pub fn mean(file: Source, state: State, changed: Option<&ServerName>) -> Result<MergedConfig, Wrong> {
    let read = parse(&file)?;
    lay_over(file, read, state, changed)
}

fn lay_over(
    file: Source,
    (mut of_the_file, more): (Config, Vec<Problem>),
    mut state: State,
    changed: Option<&ServerName>,
) -> Result<MergedConfig, Wrong> {
    let pushed = state.pushed.take_if(|pushed| pushed.over != file.text);
    let mut warnings = Vec::new();
    if pushed.is_some() {
        let what = "the file has changed since a configuration was pushed in its place, and takes its place back";
        warnings.push(Problem::warning(&file.name, None, what, "push again what is missing"));
    }
    let text = in_place_of(&file, &of_the_file, &state);
    let of_a_cluster = of_the_file.cluster.is_some() && state.cluster.is_some();
    let (source, mut config, more, said) = match text {
        None => (file.clone(), of_the_file, more, Value::Null),
        Some(source) => {
            let (mut config, more) = parse(&source)?;
            let process = (of_the_file.process.drain_timeout, of_the_file.process.watch_config);
            swap_for_life(&mut config, &mut of_the_file);
            // The file may take its place back, and is read with what it includes then.
            config.include.clone_from(&of_the_file.include);
            if of_a_cluster {
                // The file's section is this machine's, whatever engines share.
                (config.process.drain_timeout, config.process.watch_config) = process;
            }
            let problems = propylon_config::uncovered_keys(&source, &config);
            if !problems.is_empty() {
                return Err(Wrong { source, problems, is_unreadable: false });
            }
            (source, config, more, effective::of_the_process(&of_the_file))
        }
    };
    let problems = named_uploads(&config, &source);
    if !problems.is_empty() {
        return Err(Wrong { source, problems, is_unreadable: false });
    }
    shared_keys::share_keys(&mut config);
    if let Some(changed) = changed {
        state.forget_the_same(&config, changed);
    }
    if let Some(folder) = config.process.state.as_ref().map(|state| state.path.clone()) {
        state.lay_over(&mut config, &folder, &mut warnings);
    }
    let warnings_of_state = warnings.clone();
    warnings.extend(more);
    Ok(MergedConfig { source, file, state, config, warnings, warnings_of_state, said })
}

/// The text that stands in place of the file's: the cluster's, or one that was pushed.
fn in_place_of(file: &Source, of_the_file: &Config, state: &State) -> Option<Source> {
    if let (Some(section), Some(ClusterText { text, is_json })) = (&of_the_file.cluster, &state.cluster) {
        let name = if *is_json { "cluster.json" } else { "cluster.toml" }.into();
        // Relative paths in it are those of the files that the cluster shares.
        return Some(Source { name, base: section.runtime.path.clone(), text: text.clone() });
    }
    let Pushed { text, is_json, .. } = state.pushed.as_ref()?;
    let name = if *is_json { PUSHED_JSON } else { PUSHED }.into();
    Some(Source { name, base: file.base.clone(), text: text.clone() })
}

/// Files that a text names where uploads are kept. They go when these are replaced or deleted by the admin API, and
/// then no process could start with that text.
fn named_uploads(config: &Config, source: &Source) -> Vec<Problem> {
    let within = config.process.state.as_ref().map(|state| key_folders::without_links(&uploads_within(&state.path)));
    let store = key_folders::store(config);
    let problem = |(path, at): (&Path, At)| {
        let folders = [path.to_owned(), folder_of(path)].map(|folder| key_folders::without_links(&folder));
        let is_within =
            |folder: &PathBuf| within.as_ref().is_some_and(|within| folder.ancestors().any(|each| each == within));
        let name = match () {
            () if store.as_ref().is_some_and(|store| folders.contains(store)) => "keys.store",
            () if folders.iter().any(is_within) => "process.state",
            () => return None,
        };
        let what = format!("{} lies in {name}, where files come and go by the admin API", path.display());
        let fix = "leave it out if it was uploaded, since that is served without being named; else put it in a folder of its own";
        Some(Problem::error(&source.name, Some(at), what, fix))
    };
    config.key_files().into_iter().filter_map(problem).collect()
}

/// Takes a setting from the file's configuration into the one that is pushed, whose own goes there.
type Keep = fn(&mut Config, &mut Config);

/// Settings that hold for a process's whole life: the path in the configuration in effect, and how each is kept.
pub const FOR_LIFE: &[(&str, Keep)] = &[
    ("process.workers", |pushed, file| swap(&mut pushed.process.workers, &mut file.process.workers)),
    ("process.user", |pushed, file| swap(&mut pushed.process.user, &mut file.process.user)),
    ("process.dispatch", |pushed, file| swap(&mut pushed.process.dispatch, &mut file.process.dispatch)),
    ("process.max_connections", |pushed, file| {
        swap(&mut pushed.process.max_connections, &mut file.process.max_connections);
    }),
    ("process.connections_per_source", |pushed, file| {
        swap(&mut pushed.process.connections_per_source, &mut file.process.connections_per_source);
    }),
    ("process.memory_limit", |pushed, file| swap(&mut pushed.process.memory_limit, &mut file.process.memory_limit)),
    ("process.share_address", |pushed, file| swap(&mut pushed.process.share_address, &mut file.process.share_address)),
    ("process.batch", |pushed, file| swap(&mut pushed.process.batch, &mut file.process.batch)),
    ("process.handshakes", |pushed, file| swap(&mut pushed.process.handshakes, &mut file.process.handshakes)),
    ("process.state", |pushed, file| swap(&mut pushed.process.state, &mut file.process.state)),
    ("process.immutable", |pushed, file| swap(&mut pushed.process.immutable, &mut file.process.immutable)),
    ("process.upgrade_socket", |pushed, file| {
        swap(&mut pushed.process.upgrade_socket, &mut file.process.upgrade_socket)
    }),
    ("process.sandbox", |pushed, file| swap(&mut pushed.process.sandbox.on, &mut file.process.sandbox.on)),
    ("process.sandbox_paths", |pushed, file| swap(&mut pushed.process.sandbox.paths, &mut file.process.sandbox.paths)),
    ("process.sandbox_ports", |pushed, file| swap(&mut pushed.process.sandbox.ports, &mut file.process.sandbox.ports)),
    ("admin", |pushed, file| swap(&mut pushed.admin, &mut file.admin)),
    ("keys.isolate", |pushed, file| swap(&mut pushed.keys.isolate, &mut file.keys.isolate)),
    ("keys.store", |pushed, file| swap(&mut pushed.keys.store, &mut file.keys.store)),
    ("log.access", |pushed, file| swap(&mut pushed.log.access, &mut file.log.access)),
    ("log.format", |pushed, file| swap(&mut pushed.log.format, &mut file.log.format)),
    ("log.fields", |pushed, file| swap(&mut pushed.log.fields, &mut file.log.fields)),
    ("cluster", |pushed, file| swap(&mut pushed.cluster, &mut file.cluster)),
    ("announce", |pushed, file| swap(&mut pushed.announce, &mut file.announce)),
];

/// Takes what holds for a process's life from the file alone, which has the text's own afterwards. A text that is
/// pushed leaves it out or says the same, or it is refused by [`MergedConfig::said_otherwise`]; one of the state that does not
/// was written by somebody who has got into the sandbox, where the state can be written, and wants out of it with the
/// next process.
fn swap_for_life(config: &mut Config, file: &mut Config) {
    FOR_LIFE.iter().for_each(|(_, keep)| keep(config, file));
}

/// A key that is not what it was.
pub struct Differing<'v> {
    pub path: String,
    pub before: &'v Value,
    pub after: &'v Value,
}

/// Every path below this one to something that is not the same; tables are compared key by key.
pub fn collect_differing<'v>(path: String, before: &'v Value, after: &'v Value, found: &mut Vec<Differing<'v>>) {
    match (before, after) {
        (Value::Object(known), Value::Object(said)) => {
            let new = said.keys().filter(|key| !known.contains_key(*key));
            for key in known.keys().chain(new) {
                collect_differing(format!("{path}.{key}"), &before[key], &after[key], found);
            }
        }
        _ if before != after => found.push(Differing { path, before, after }),
        _ => {}
    }
}

fn parse(source: &Source) -> Result<(Config, Vec<Problem>), Wrong> {
    let wrong = |problems| Wrong { source: source.clone(), problems, is_unreadable: false };
    propylon_config::parse(source).map_err(wrong)
}

/// Whether any of these forbids that a configuration is used.
pub fn has_error(problems: &[Problem]) -> bool {
    problems.iter().any(|problem| problem.severity == Severity::Error)
}

#[cfg(test)]
mod tests {
    use super::*;
    fn source(port: u16) -> Source {
        let text =
            format!("[process]\nstate = 's'\n[listener.web]\nbind = '127.0.0.1:{port}'\n[[route]]\nrespond = {{}}\n");
        Source { name: "a.toml".into(), base: "/etc".into(), text }
    }

    #[test]
    fn a_pushed_text_does_not_widen_the_sandbox_of_the_next_process() {
        let text = source(2).text.replace("state = 's'", "state = 's'\nsandbox = 'off'")
            + "[log]\naccess = '/tmp/elsewhere'\n";
        let pushed = Pushed { text, is_json: false, over: source(1).text };
        let state = State { pushed: Some(pushed), ..State::default() };
        let config = mean(source(1), state, None).ok().unwrap().config;
        assert_eq!(config.listeners[0].bind[0].address.port(), 2, "the rest of it holds");
        assert!(config.process.sandbox.on);
        assert_eq!(config.log.access, propylon_config::AccessLog::Off);
    }

    #[test]
    fn what_was_pushed_has_no_keys_that_the_files_isolation_does_not_cover() {
        let file = source(1);
        let file = Source { text: format!("{}[keys]\nisolate = true\n", file.text), ..file };
        let merged = |rest: &str| {
            let text = source(2).text + rest;
            let state = Pushed { text, is_json: false, over: file.text.clone() };
            mean(file.clone(), State { pushed: Some(state), ..State::default() }, None)
        };
        assert!(merged("").is_ok_and(|merged| merged.config.keys.isolate.is_some()));
        let acme = "[acme.own]\ndirectory = 'https://localhost:9/dir'\nstate = 'acme'\nterms_agreed = true\n";
        for own in ["", "[keys]\nisolate = false\n"] {
            let wrong = merged(&format!("{acme}{own}")).err().expect(acme);
            let is_reported = |problem: &Problem| {
                problem.file == PUSHED && problem.at.is_some() && problem.what.contains("does not cover")
            };
            assert!(wrong.problems.iter().any(is_reported), "{:?}", wrong.problems);
        }
        let client = "[backend.a]\nservers = ['127.0.0.1:9']\ntls = { certificate = 'c.pem' }\n";
        let signer = "[signer.a]\nservers = ['127.0.0.1:9']\nidentity = 'c.pem'\nca = 'ca.pem'\n";
        let stored = format!("{acme}[keys]\nisolate = true\nstore = 'k'\n");
        let wrong = merged(&stored).err().expect("the file has no folder for its keys");
        assert!(
            wrong.problems.iter().any(|problem| problem.what.contains("without keys.store")),
            "{:?}",
            wrong.problems
        );
        for covered in [client, signer] {
            let problems = merged(covered).err().map(|wrong| wrong.problems).unwrap_or_default();
            assert!(!problems.iter().any(|problem| problem.what.contains("cover")), "{covered}: {problems:?}");
        }
    }

    #[test]
    fn what_is_for_life_is_the_files_whatever_was_pushed() {
        let with = |process: &str, rest: &str| {
            let text = source(1).text.replace("state = 's'", process) + rest;
            Source { text, ..source(1) }
        };
        let file = with("state = 's'", "");
        let other = with(
            "state = 't'\nworkers = 3\nuser = 'root'\ndispatch = false\nmax_connections = 7\nconnections_per_source = 8\n\
             memory_limit = '1GiB'\nshare_address = true\nbatch = 'off'\nhandshakes = { in_progress = 9 }\nimmutable = true\n\
             upgrade_socket = 'u'\nsandbox = 'off'\nsandbox_paths = ['/p']\nsandbox_ports = [1]",
            "[admin]\nbind = '127.0.0.1:9'\n[log]\naccess = 'stdout'\nformat = 'logfmt'\nfields = ['time']\n[keys]\nisolate = true\nstore = '/k'\n",
        );
        // A cluster excludes isolated keys.
        let shared = with(
            "state = 's'",
            "[cluster]\nname = 'c'\nendpoints = ['https://e:1']\nsealing_keys = ['k']\n[announce]\nprotocols = ['v']\n",
        );
        let of =
            |root: &serde_json::Value, path: &str| path.split('.').fold(root.clone(), |value, key| value[key].clone());
        let in_effect = |source: &Source| effective::config(&propylon_config::parse(source).expect("a good text").0);
        let mut tried = Vec::new();
        for text in [other, shared] {
            let (kept, pushed) = (in_effect(&file), in_effect(&text));
            let paths: Vec<&str> = FOR_LIFE.iter().map(|(path, _)| *path).collect();
            let paths = paths.into_iter().filter(|path| of(&kept, path) != of(&pushed, path)).collect::<Vec<_>>();
            let state = Pushed { text: text.text.clone(), is_json: false, over: file.text.clone() };
            let state = State { pushed: Some(state), ..State::default() };
            let merged = mean(file.clone(), state, None).ok().expect("a configuration");
            // The one who pushes it is told all of it, each with its place.
            let reported = merged.said_otherwise(&kept);
            let shown = effective::config(&merged.config);
            for path in &paths {
                let is_reported = |problem: &&Problem| problem.what.starts_with(&format!("`{path}"));
                let problem = reported.iter().find(is_reported).unwrap_or_else(|| panic!("{path} is not reported"));
                let line = problem.at.map_or("", |at| text.text.lines().nth(at.line as usize - 1).unwrap_or_default());
                assert!(line.contains(path.rsplit('.').next().unwrap_or_default()), "{path} at {line:?}");
                assert_eq!(of(&shown, path), of(&kept, path), "{path}");
            }
            assert_eq!(reported.len(), paths.len(), "{reported:?}");
            tried.extend(paths);
        }
        assert_eq!(tried, FOR_LIFE.iter().map(|(path, _)| *path).collect::<Vec<_>>(), "each is tried");
    }

    #[test]
    fn what_a_pushed_text_leaves_out_is_the_files_and_what_it_says_has_to_be_the_same() {
        let with = |process: &str, admin: &str| {
            let text = source(1).text.replace("state = 's'", &format!("state = 's'\n{process}"));
            Source { text: format!("{text}[admin]\nbind = '127.0.0.1:9'\n{admin}\n"), ..source(1) }
        };
        let file = with("workers = 3\nhandshakes = { in_progress = 9 }", "token_file = 't'");
        let in_effect = effective::config(&propylon_config::parse(&file).expect("a good text").0);
        let reported = |text: &Source| -> Vec<String> {
            let pushed = Pushed { text: text.text.clone(), is_json: false, over: file.text.clone() };
            let state = State { pushed: Some(pushed), ..State::default() };
            let merged = mean(file.clone(), state, None).ok().expect("a configuration");
            merged.said_otherwise(&in_effect).into_iter().map(|problem| problem.what).collect()
        };
        assert_eq!(reported(&source(2)), [""; 0]);
        assert_eq!(reported(&with("", "")), [""; 0]);
        assert_eq!(
            reported(&with("workers = 3\nhandshakes = { queue_wait = '2s' }", "token_file = '/etc/t'")),
            [""; 0]
        );
        let found = reported(&with("handshakes = { in_progress = 8 }", "token_file = 'u'"));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("`process.handshakes.in_progress` cannot change") && found[0].ends_with(" 9"));
        assert!(found[1].starts_with("`admin.token_file` cannot change") && found[1].ends_with("\"/etc/t\""));
        let found = reported(&with("user = 'root'", ""));
        assert!(found[0].ends_with("it is not set"), "{found:?}");
    }

    #[test]
    fn sections_of_an_engines_own_file_are_to_be_taken_out_of_a_shared_configuration() {
        const CLUSTER: &str = "[cluster]\nname = 'c'\nendpoints = ['https://e:1']\nsealing_keys = ['/k']\n";
        let file = Source { text: source(1).text + CLUSTER, ..source(1) };
        let in_effect = effective::config(&propylon_config::parse(&file).expect("a good text").0);
        let own = CLUSTER.replace("'c'", "'d'") + "[admin]\nbind = '127.0.0.1:9'\n";
        let text = source(2).text.replace("state = 's'", "workers = 3") + &own;
        let state = State { cluster: Some(crate::state::ClusterText { text, is_json: false }), ..State::default() };
        let reported = mean(file, state, None).ok().expect("a configuration").said_otherwise(&in_effect);
        let of = |path: &str| reported.iter().find(|one| one.what.starts_with(&format!("`{path}"))).expect("told");
        for (path, section) in [("cluster.name", "[cluster]"), ("admin", "[admin]"), ("process.workers", "take it out")]
        {
            assert!(of(path).fix.contains(section) && of(path).fix.contains("each engine's own file"), "{reported:?}");
        }
    }

    #[test]
    fn what_was_pushed_stands_until_the_file_changes() {
        let pushed = Pushed { text: source(2).text, is_json: false, over: source(1).text };
        let state = State { pushed: Some(pushed), ..State::default() };
        let merged = mean(source(1), state.clone(), None).ok().unwrap();
        assert_eq!(merged.config.listeners[0].bind[0].address.port(), 2);
        assert_eq!((merged.source.name.as_str(), merged.warnings.len()), (PUSHED, 0));
        let merged = mean(source(3), state, None).ok().unwrap();
        assert_eq!(merged.config.listeners[0].bind[0].address.port(), 3);
        assert!(merged.state.pushed.is_none());
        assert!(merged.warnings[0].what.contains("takes its place back"));
    }
}

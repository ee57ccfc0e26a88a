//! Where the configuration comes from: a file, with what the admin API has changed laid over it.

use std::path::{Path, PathBuf};

use propylon_config::{Config, Problem, Process, Severity, Source};

use crate::state::{FILE, State};

/// A configuration, and what it was made of.
#[derive(Clone)]
pub struct Meant {
    /// What its problems are about: the file, or what was pushed in its place.
    pub source: Source,
    /// The file.
    pub file: Source,
    pub state: State,
    pub config: Config,
    pub warnings: Vec<Problem>,
    /// Those of the warnings that the state gives rise to, and not the text.
    pub warnings_of_state: Vec<Problem>,
}

/// Overrides that are told one by one; of more their number.
const OVERRIDES_TOLD_MAX: usize = 20;

impl Meant {
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
        let more = all.len().saturating_sub(OVERRIDES_TOLD_MAX);
        let mut told: Vec<Problem> = all.into_iter().take(OVERRIDES_TOLD_MAX).map(warning).collect();
        if more > 0 {
            told.push(warning(format!("{more} more changes, which are in {}", path.display())));
        }
        told
    }
}

/// What is wrong, and the text that it is about.
pub struct Wrong {
    pub source: Source,
    pub problems: Vec<Problem>,
    /// This account may not read the state.
    pub is_unreadable: bool,
}

impl Wrong {
    fn alone(path: &Path, problem: Problem) -> Wrong {
        let source = Source { name: path.display().to_string(), base: PathBuf::new(), text: String::new() };
        Wrong { source, problems: vec![problem], is_unreadable: false }
    }
}

/// Reads the file, and the state if the file names a folder for it.
pub fn read(path: &Path) -> Result<Meant, Wrong> {
    let file = Source::read(path).map_err(|problem| Wrong::alone(path, problem))?;
    with_state(&file)
}

/// A file that has been read, with the state if it names a folder for it.
pub fn with_state(file: &Source) -> Result<Meant, Wrong> {
    let (config, _) = parse(file)?;
    let state = match &config.process.state {
        None => State::default(),
        Some(folder) => State::load(&folder.path).map_err(|problem| {
            let opened = std::fs::File::open(folder.path.join(FILE));
            let is_unreadable = opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied);
            Wrong { source: file.clone(), problems: vec![problem], is_unreadable }
        })?,
    };
    mean(file.clone(), state)
}

/// The configuration that a file and a state mean together. A file that has changed since something was pushed in its
/// place has the last word.
pub fn mean(file: Source, mut state: State) -> Result<Meant, Wrong> {
    let pushed = state.pushed.take_if(|pushed| pushed.over != file.text);
    let mut warnings = Vec::new();
    if pushed.is_some() {
        let what = "the file has changed since a configuration was pushed in its place, and takes its place back";
        warnings.push(Problem::warning(&file.name, None, what, "push again what is missing"));
    }
    let source = match &state.pushed {
        None => file.clone(),
        Some(pushed) => Source {
            name: if pushed.is_json { "pushed.json" } else { "pushed.toml" }.into(),
            base: file.base.clone(),
            text: pushed.text.clone(),
        },
    };
    let (mut config, more) = parse(&source)?;
    if state.pushed.is_some() {
        let (of_the_file, _) = parse(&file)?;
        keep_for_life(&mut config, of_the_file);
    }
    if let Some(folder) = config.process.state.as_ref().map(|state| state.path.clone()) {
        state.lay_over(&mut config, &folder, &mut warnings);
    }
    let warnings_of_state = warnings.clone();
    warnings.extend(more);
    Ok(Meant { source, file, state, config, warnings, warnings_of_state })
}

/// What holds for a process's life comes from the file alone. A text that was pushed agrees with it, or it would have been refused;
/// one that does not was written by somebody who has got into the sandbox, where the state can be written, and wants out of
/// it with the next process.
fn keep_for_life(config: &mut Config, file: Config) {
    let Process { workers, user, max_connections, share_address, batch, handshakes, state, immutable, .. } =
        file.process;
    let process = &mut config.process;
    (process.workers, process.user, process.max_connections) = (workers, user, max_connections);
    (process.share_address, process.batch, process.handshakes) = (share_address, batch, handshakes);
    (process.state, process.immutable) = (state, immutable);
    (process.upgrade_socket, process.sandbox) = (file.process.upgrade_socket, file.process.sandbox);
    config.admin = file.admin;
    config.log.access = file.log.access;
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
    use crate::state::Pushed;

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
        let config = mean(source(1), state).ok().unwrap().config;
        assert_eq!(config.listeners[0].bind[0].address.port(), 2, "the rest of it holds");
        assert!(config.process.sandbox.on);
        assert_eq!(config.log.access, propylon_config::AccessLog::Off);
    }

    #[test]
    fn what_was_pushed_stands_until_the_file_changes() {
        let pushed = Pushed { text: source(2).text, is_json: false, over: source(1).text };
        let state = State { pushed: Some(pushed), ..State::default() };
        let meant = mean(source(1), state.clone()).ok().unwrap();
        assert_eq!(meant.config.listeners[0].bind[0].address.port(), 2);
        assert_eq!((meant.source.name.as_str(), meant.warnings.len()), ("pushed.toml", 0));
        let meant = mean(source(3), state).ok().unwrap();
        assert_eq!(meant.config.listeners[0].bind[0].address.port(), 3);
        assert!(meant.state.pushed.is_none());
        assert!(meant.warnings[0].what.contains("takes its place back"));
    }
}

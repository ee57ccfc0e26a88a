//! Where the configuration comes from: a file, with what the admin API has changed laid over it.

use std::path::{Path, PathBuf};

use propylon_config::{Config, Problem, Severity, Source};

use crate::state::State;

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
}

/// What is wrong, and the text that it is about.
pub struct Wrong {
    pub source: Source,
    pub problems: Vec<Problem>,
}

impl Wrong {
    fn alone(path: &Path, problem: Problem) -> Wrong {
        let source = Source { name: path.display().to_string(), base: PathBuf::new(), text: String::new() };
        Wrong { source, problems: vec![problem] }
    }
}

/// Reads the file, and the state if the file names a folder for it.
pub fn read(path: &Path) -> Result<Meant, Wrong> {
    let file = Source::read(path).map_err(|problem| Wrong::alone(path, problem))?;
    let (config, _) = parse(&file)?;
    let state = match &config.process.state {
        None => State::default(),
        Some(folder) => {
            State::load(&folder.path).map_err(|problem| Wrong { source: file.clone(), problems: vec![problem] })?
        }
    };
    mean(file, state)
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
    warnings.extend(more);
    if let Some(folder) = config.process.state.as_ref().map(|state| state.path.clone()) {
        state.lay_over(&mut config, &folder, &mut warnings);
    }
    Ok(Meant { source, file, state, config, warnings })
}

fn parse(source: &Source) -> Result<(Config, Vec<Problem>), Wrong> {
    propylon_config::parse(source).map_err(|problems| Wrong { source: source.clone(), problems })
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

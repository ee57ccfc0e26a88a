//! `propylon import`: a configuration of haproxy, nginx or Caddy as one of Propylon.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use propylon_config::{Config, Source};
use propylon_identity::{Loaded, Problem};
use propylon_import::{Language, Note, TEXT_BYTES_MAX, import};

/// Exit code where something is not carried over.
const INCOMPLETE: u8 = 3;

#[derive(clap::Args)]
pub struct Arguments {
    /// haproxy.cfg, nginx.conf (or a file of its sites) or a Caddyfile
    file: PathBuf,
    /// The language, where the file's name does not say it
    #[arg(long, value_name = "LANGUAGE", value_parser = ["haproxy", "nginx", "caddy"])]
    from: Option<String>,
    /// Write the configuration to this file, which is not there yet, and not to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn main(arguments: &Arguments) -> ExitCode {
    match run(arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    let name = arguments.file.display().to_string();
    let text = read(&arguments.file).map_err(|error| format!("{name}: {error}"))?;
    let language = match arguments.from.as_deref() {
        Some("haproxy") => Some(Language::Haproxy),
        Some("nginx") => Some(Language::Nginx),
        Some(_) => Some(Language::Caddy),
        None => Language::of(&name, &text),
    };
    let language =
        language.ok_or_else(|| format!("{name}: nothing tells its language; add --from haproxy, nginx or caddy"))?;
    let told = |note: &Note| format!("{name}:{}: {}; {}", note.line, note.what, note.fix);
    let imported = import(language, &name, &text).map_err(|note| told(&note))?;
    for note in &imported.notes {
        eprintln!("{}", told(note));
    }
    let mut made = Vec::new();
    // A configuration never names users of another import: it is written when their files are there.
    let written = beside(arguments.output.as_deref(), &imported.files, &mut made)
        .and_then(|()| write(arguments.output.as_deref(), &imported.text, &mut made));
    if let Err(error) = written {
        made.iter().for_each(|path| drop(fs::remove_file(path)));
        return Err(error);
    }
    let shown = arguments.output.as_ref().map_or("standard output".to_owned(), |path| path.display().to_string());
    // Relative paths are judged where the file will be.
    let base = arguments.output.as_deref().and_then(Path::parent).map(Path::to_path_buf).unwrap_or_default();
    let source = Source { name: shown.as_str().into(), base, text: imported.text };
    let missing = missing(&source.text);
    if !missing.is_empty() {
        let names = missing.into_iter().collect::<Vec<String>>().join(", ");
        eprintln!(
            "{shown}: it is not judged, since these variables of the environment are not set here: {names}; run \
             `propylon check` where the engine will run"
        );
        return Ok(ExitCode::from(INCOMPLETE));
    }
    let source = source.completed();
    let (is_good, lost) = match propylon_config::parse(&source) {
        Ok((config, warnings)) => {
            eprint!("{}", source.render(&warnings));
            (true, users(&config))
        }
        Err(problems) => {
            eprint!("{}", source.render(&problems));
            (false, 0)
        }
    };
    match (is_good, imported.notes.len() + lost) {
        (false, _) => Ok(ExitCode::FAILURE),
        (true, 0) => Ok(ExitCode::SUCCESS),
        (true, count) => {
            let lines = if count == 1 { "line is" } else { "lines are" };
            eprintln!("{name}: {count} {lines} not carried over as they are; see each above");
            Ok(ExitCode::from(INCOMPLETE))
        }
    }
}

fn read(path: &Path) -> Result<String, String> {
    let unread = |error: std::io::Error| format!("it cannot be read: {error}");
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(unread)?;
    file.take(TEXT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(unread)?;
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
}

/// Names of the variables without a default that a configuration has and the environment has not.
fn missing(text: &str) -> BTreeSet<String> {
    const OPEN: &str = "${env:";
    let places = text.match_indices(OPEN).filter(|(at, _)| !text[..*at].ends_with('$'));
    let names = places.filter_map(|(at, _)| text[at + OPEN.len()..].split_once('}'));
    let bare = names.filter(|(name, _)| !name.contains(":-")).map(|(name, _)| name.to_owned());
    bare.filter(|name| std::env::var(name).is_err()).collect()
}

/// Tells of files of users on this machine whose lines an engine refuses; how many lines that are.
fn users(config: &Config) -> usize {
    let Err(problems) = Loaded::load(config, None, |_| true) else { return 0 };
    let is_read = |problem: &&Problem| !problem.is_warning && problem.error.is_none();
    let refused: Vec<&Problem> = problems.iter().filter(is_read).collect();
    for problem in &refused {
        let path = problem.path.display();
        eprintln!("{path}: {}; {}; until then no engine starts with this configuration", problem.what, problem.fix);
    }
    refused.len()
}

/// Writes the files that the configuration names beside it, for their owner to read. One that has the same text stays.
fn beside(output: Option<&Path>, files: &BTreeMap<String, String>, made: &mut Vec<PathBuf>) -> Result<(), String> {
    for (name, text) in files {
        let Some(output) = output else {
            eprintln!("{name}: this file of users is written beside the configuration that -o names");
            continue;
        };
        let path = output.with_file_name(name);
        match is_same(&path, text) {
            true => eprintln!("{}: it is there already, with the same users", path.display()),
            false => {
                create(&path, 0o600, text, made)?;
                eprintln!("{}: its users are of the file's own lists, with their hashes", path.display());
            }
        }
    }
    Ok(())
}

/// Whether a file is there already with this text.
fn is_same(path: &Path, text: &str) -> bool {
    let has_length = |found: fs::Metadata| found.is_file() && found.len() == text.len() as u64;
    fs::metadata(path).is_ok_and(has_length) && fs::read(path).is_ok_and(|found| found == text.as_bytes())
}

fn write(path: Option<&Path>, text: &str, made: &mut Vec<PathBuf>) -> Result<(), String> {
    match path {
        Some(path) => create(path, 0o666, text, made),
        None => std::io::stdout().write_all(text.as_bytes()).map_err(|error| format!("standard output: {error}")),
    }
}

/// Makes a file, which is not there yet.
fn create(path: &Path, mode: u32, text: &str, made: &mut Vec<PathBuf>) -> Result<(), String> {
    let told = |error: std::io::Error| {
        let cure = match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                "; nothing is written over: name another file by -o, or move this one away"
            }
            std::io::ErrorKind::NotFound => "; make its folder first",
            _ => "",
        };
        format!("{}: it cannot be written: {error}{cure}", path.display())
    };
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(told)?;
    made.push(path.to_owned());
    file.write_all(text.as_bytes()).map_err(told)
}

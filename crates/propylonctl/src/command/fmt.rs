//! `propylon fmt`: configurations in TOML, laid out in one form.

use std::fs::{self, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use propylon_config::{Problem, SOURCE_BYTES_MAX, Source};

#[derive(clap::Args)]
pub struct Arguments {
    /// Change nothing; say which files are not formatted, with exit code 1
    #[arg(long)]
    check: bool,
    /// The files; without any, standard input is formatted to standard output
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

pub fn main(arguments: &Arguments) -> ExitCode {
    if arguments.files.is_empty() {
        return of_input(arguments.check);
    }
    let mut is_well = true;
    for path in &arguments.files {
        match of_file(path, arguments.check) {
            Ok(Outcome::Formatted) => {}
            Ok(Outcome::Changed) => println!("{}: formatted", path.display()),
            Ok(Outcome::Differs) => {
                println!("{}: not formatted", path.display());
                is_well = false;
            }
            Err(error) => {
                eprintln!("{}", error.trim_end());
                is_well = false;
            }
        }
    }
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

enum Outcome {
    Formatted,
    Changed,
    Differs,
}

fn of_input(is_check: bool) -> ExitCode {
    let mut bytes = Vec::new();
    let read = io::stdin().take(SOURCE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes);
    let text = match read.map(|_| String::from_utf8(bytes)) {
        Ok(Ok(text)) if text.len() <= SOURCE_BYTES_MAX => text,
        Ok(Ok(_)) => return refused("standard input is larger than 4 MiB"),
        Ok(Err(_)) => return refused("standard input is not UTF-8"),
        Err(error) => return refused(&format!("standard input cannot be read: {error}")),
    };
    let source = Source { name: "standard input".into(), base: PathBuf::new(), text };
    match propylon_config::format(&source) {
        Ok(out) if is_check => match out == source.text {
            true => ExitCode::SUCCESS,
            false => refused("standard input: not formatted"),
        },
        Ok(out) => match io::stdout().write_all(out.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => refused(&format!("standard output cannot be written: {error}")),
        },
        Err(problems) => refused(source.render(&problems).trim_end()),
    }
}

fn refused(what: &str) -> ExitCode {
    eprintln!("{what}");
    ExitCode::FAILURE
}

/// The file by itself, whatever it includes.
fn of_file(path: &Path, is_check: bool) -> Result<Outcome, String> {
    let rendered = |problem: Problem| propylon_config::render(&[problem], "");
    let unread = |error: io::Error| format!("{}: it cannot be read: {error}", path.display());
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(unread)?;
    file.take(SOURCE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(unread)?;
    if bytes.len() > SOURCE_BYTES_MAX {
        return Err(format!("{}: the file is larger than 4 MiB", path.display()));
    }
    let source = Source::of(path, bytes).map_err(rendered)?;
    let out = propylon_config::format(&source).map_err(|problems| source.render(&problems))?;
    if out == source.text {
        return Ok(Outcome::Formatted);
    }
    if is_check {
        return Ok(Outcome::Differs);
    }
    replace(path, out.as_bytes()).map_err(|error| format!("{}: it cannot be written: {error}", path.display()))?;
    Ok(Outcome::Changed)
}

/// Puts a whole file in the place of another, which keeps its mode and its owner; a link stays one.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    let metadata = fs::metadata(&path)?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let new = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let write = || {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&new)?;
        file.set_permissions(Permissions::from_mode(metadata.mode() & 0o7777))?;
        let own = file.metadata()?;
        if (own.uid(), own.gid()) != (metadata.uid(), metadata.gid()) {
            std::os::unix::fs::fchown(&file, Some(metadata.uid()), Some(metadata.gid()))?;
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, &path)
    };
    write().inspect_err(|_| _ = fs::remove_file(&new))
}

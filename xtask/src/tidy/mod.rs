//! The house rules that no compiler knows. Each rule looks at one file and returns findings with their line.

mod arrows;
mod circles;
mod conditions;
mod documents;
mod lexer;
mod ratchets;
mod sources;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Something to put right, or only to think about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Relative to the top of the repository.
    pub file: PathBuf,
    pub line: usize,
    pub what: String,
    pub severity: Severity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Fails the run.
    Error,
    /// Is printed.
    Note,
}

const FOLDERS_PASSED_OVER: [&str; 5] = [".git", "target", "corpus", "artifacts", "node_modules"];

/// Prints the findings; whether there was no error among them.
pub fn run(root: &Path) -> bool {
    let mut findings = match check(root) {
        Ok(findings) => findings,
        Err(error) => {
            eprintln!("the repository cannot be read: {error}");
            return false;
        }
    };
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    println!("tidy: {errors} errors, {} notes", findings.len() - errors);
    errors == 0
}

fn check(root: &Path) -> io::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    let workspace = fs::read_to_string(root.join("Cargo.toml"))?;
    let workspace = arrows::Workspace::parse(&workspace);
    findings.extend(workspace.check());
    let mut conditions = conditions::Conditions::default();
    let mut ratchets = ratchets::Ratchets::default();
    for file in files(root)? {
        // What is not text has no rules.
        let Ok(text) = fs::read_to_string(root.join(&file)) else {
            continue;
        };
        conditions.read(&file, &text);
        ratchets.read_limits(&file, &text);
        let name = file.file_name().unwrap_or_default();
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => {
                let source = lexer::Source::of(&text);
                ratchets.read(&file, &source);
                findings.extend(sources::check(&file, &source));
            }
            Some("md") => findings.extend(documents::check(root, &file, &text)),
            Some("toml") if name == "Cargo.toml" && file != Path::new("Cargo.toml") => {
                findings.extend(workspace.check_member(&file, &text));
            }
            _ => {}
        }
    }
    findings.extend(conditions.check());
    findings.extend(ratchets.check());
    findings.extend(workspace.check_arrows());
    for needed in ["STYLE.md", "ARCHITECTURE.md"] {
        if !root.join(needed).is_file() {
            findings.push(Finding::error(Path::new(needed), 1, "the file is missing"));
        }
    }
    Ok(findings)
}

/// All files below the top, relative to it.
fn files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut files, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_file() {
                files.push(path);
            } else if kind.is_dir() && !FOLDERS_PASSED_OVER.iter().any(|name| entry.file_name() == *name) {
                folders.push(path);
            }
        }
    }
    Ok(files)
}

impl Finding {
    fn error(file: &Path, line: usize, what: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, what: what.into(), severity: Severity::Error }
    }

    fn note(file: &Path, line: usize, what: impl Into<String>) -> Self {
        Self { severity: Severity::Note, ..Self::error(file, line, what) }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Error => "",
            Severity::Note => "note: ",
        };
        write!(formatter, "{}:{}: {severity}{}", self.file.display(), self.line, self.what)
    }
}

/// The line, counted from 1, of a byte in a text.
fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset.min(text.len())].iter().filter(|byte| **byte == b'\n').count() + 1
}

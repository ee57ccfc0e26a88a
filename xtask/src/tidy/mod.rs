//! The house rules that no compiler knows. Each rule looks at one file and returns findings with their line.

mod arrows;
mod circles;
mod conditions;
mod dependencies;
mod documents;
mod features;
mod figures;
mod finding;
mod functions;
mod lexer;
mod manual;
mod modules;
pub mod packages;
mod picture;
mod profile;
mod ratchets;
mod sources;
mod tokens;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use finding::{Finding, Severity};

/// The package whose own packages are counted.
const ENGINE: &str = "propylon";
const FOLDERS_PASSED_OVER: [&str; 5] = [".git", "target", "corpus", "artifacts", "node_modules"];

/// Prints the findings; whether there was no error among them.
pub fn run(root: &Path) -> bool {
    let Some(repository) = read(root) else { return false };
    let mut findings = repository.check(root);
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    let errors = findings.iter().filter(|finding| finding.severity == Severity::Error).count();
    println!("tidy: {errors} errors, {} notes", findings.len() - errors);
    errors == 0
}

/// Prints the circles of modules, and which arrows close them; whether the repository could be read.
pub fn circles(root: &Path) -> bool {
    let repository = read(root);
    repository.iter().for_each(|repository| print!("{}", repository.ratchets.circles_told()));
    repository.is_some()
}

/// Prints the functions that are long or have many parameters; whether the repository could be read.
pub fn functions(root: &Path) -> bool {
    let repository = read(root);
    repository.iter().for_each(|repository| print!("{}", repository.ratchets.functions_told()));
    repository.is_some()
}

/// Prints the crates and their arrows; whether the repository could be read.
pub fn picture(root: &Path) -> bool {
    let repository = read(root);
    repository.iter().for_each(|repository| print!("{}", picture::picture(&repository.workspace.arrows())));
    repository.is_some()
}

/// Prints what is measured before and after a change of the whole; whether the repository could be read.
pub fn figures(root: &Path) -> bool {
    let repository = read(root);
    let packages = packages::built_into(root, ENGINE);
    repository.iter().for_each(|repository| print!("{}", figures::table(&repository.ratchets.rows(), &packages)));
    repository.is_some()
}

/// Writes the picture of the crates into the document that has it; whether that could be done.
pub fn write(root: &Path) -> bool {
    let Some(repository) = read(root) else { return false };
    let Some(text) = picture::written(&repository.architecture, &repository.workspace.arrows()) else {
        eprintln!("{} has no place for the picture", picture::FILE);
        return false;
    };
    fs::write(root.join(picture::FILE), text)
        .map_err(|error| eprintln!("{} cannot be written: {error}", picture::FILE))
        .is_ok()
}

fn read(root: &Path) -> Option<Repository> {
    Repository::read(root).map_err(|error| eprintln!("the repository cannot be read: {error}")).ok()
}

/// What was read of the repository: what is wrong with single files, and what can be judged once all are read.
struct Repository {
    findings: Vec<Finding>,
    workspace: arrows::Workspace,
    conditions: conditions::Conditions,
    ratchets: ratchets::Ratchets,
    dependencies: dependencies::Dependencies,
    manual: manual::Manual,
    features: features::Features,
    architecture: String,
}

impl Repository {
    fn read(root: &Path) -> io::Result<Self> {
        let workspace = arrows::Workspace::parse(&fs::read_to_string(root.join("Cargo.toml"))?);
        let mut repository = Self {
            findings: Vec::new(),
            workspace,
            conditions: conditions::Conditions::default(),
            ratchets: ratchets::Ratchets::default(),
            dependencies: dependencies::Dependencies::default(),
            manual: manual::Manual::default(),
            features: features::Features::default(),
            architecture: String::new(),
        };
        for file in files(root)? {
            // What is not text has no rules.
            if let Ok(text) = fs::read_to_string(root.join(&file)) {
                repository.read_file(root, &file, &text);
            }
        }
        Ok(repository)
    }

    fn read_file(&mut self, root: &Path, file: &Path, text: &str) {
        self.conditions.read(file, text);
        self.ratchets.read_limits(file, text);
        if file == Path::new(picture::FILE) {
            text.clone_into(&mut self.architecture);
        }
        let name = file.file_name().unwrap_or_default();
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => {
                let source = lexer::Source::of(text);
                self.ratchets.read(file, &source);
                self.dependencies.read(file, &source);
                self.manual.read(file, &source);
                self.features.read(&source);
                self.findings.extend(sources::check(file, &source));
            }
            Some("md") => {
                self.manual.read_document(file, text);
                self.features.read_document(file, text);
                self.findings.extend(documents::check(root, file, text));
            }
            Some("toml") if name == "Cargo.toml" && file != Path::new("Cargo.toml") => {
                self.findings.extend(self.workspace.check_member(file, text));
                self.dependencies.list(self.workspace.listed(file, text));
            }
            _ => {}
        }
    }

    fn check(&self, root: &Path) -> Vec<Finding> {
        let mut findings = self.findings.clone();
        findings.extend(self.workspace.check());
        findings.extend(profile::check(root));
        findings.extend(self.conditions.check());
        findings.extend(self.ratchets.check());
        findings.extend(self.workspace.check_arrows());
        findings.extend(self.dependencies.check());
        findings.extend(self.manual.check());
        findings.extend(self.features.check());
        findings.extend(packages::check(root));
        findings.extend(picture::check(&self.architecture, &self.workspace.arrows()));
        for needed in ["STYLE.md", "ARCHITECTURE.md"] {
            if !root.join(needed).is_file() {
                findings.push(Finding::error(Path::new(needed), 1, "the file is missing"));
            }
        }
        findings
    }
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

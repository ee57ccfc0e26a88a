//! Pages for `man` and completions for shells, of a program's command line.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

/// Section of the pages: administration of a system.
pub const SECTION: &str = "8";
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Zsh, Shell::Fish];

/// The folders of one output: pages in one, completions in the other.
#[derive(Debug)]
pub struct Folders {
    pub pages: PathBuf,
    pub completions: PathBuf,
}

impl Folders {
    /// Makes both below `folder`.
    ///
    /// # Errors
    ///
    /// Errors of making a folder.
    pub fn below(folder: &Path) -> io::Result<Self> {
        let (pages, completions) = (folder.join("man8"), folder.join("completions"));
        fs::create_dir_all(&pages)?;
        fs::create_dir_all(&completions)?;
        Ok(Self { pages, completions })
    }

    /// Writes all of a program: its page, those of its commands, and its completions.
    ///
    /// # Errors
    ///
    /// Errors of writing a file.
    pub fn write(&self, program: &Command) -> io::Result<()> {
        let program = shown(program);
        self.complete(&program)?;
        self.of_tree(&built(&program))
    }

    /// Writes completions of a program that has been through [`shown`].
    ///
    /// # Errors
    ///
    /// Errors of writing a file.
    pub fn complete(&self, program: &Command) -> io::Result<()> {
        SHELLS.into_iter().try_for_each(|shell| {
            let mut program = program.clone();
            let name = program.get_name().to_owned();
            clap_complete::generate_to(shell, &mut program, name, &self.completions).map(drop)
        })
    }

    /// Writes pages of a command and of those below it, once it has been through [`built`].
    ///
    /// # Errors
    ///
    /// Errors of writing a file.
    pub fn of_tree(&self, command: &Command) -> io::Result<()> {
        self.page(command)?;
        command.get_subcommands().try_for_each(|command| self.of_tree(command))
    }

    /// Writes the page of one command.
    ///
    /// # Errors
    ///
    /// Errors of writing a file.
    pub fn page(&self, command: &Command) -> io::Result<()> {
        let source = format!("Propylon {}", env!("CARGO_PKG_VERSION"));
        Man::new(command.clone()).section(SECTION).source(source).generate_to(&self.pages).map(drop)
    }
}

/// A program without its hidden commands, which completions would offer.
#[must_use]
pub fn shown(program: &Command) -> Command {
    // Names of commands live as long as the process, which ends with this.
    let name: &'static str = Box::leak(program.get_name().to_owned().into_boxed_str());
    let mut shown = Command::new(name).version(env!("CARGO_PKG_VERSION"));
    if let Some(about) = program.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(help) = program.get_after_help() {
        shown = shown.after_help(help.clone());
    }
    let arguments = program.get_arguments().filter(|argument| !argument.is_hide_set()).cloned();
    let commands = program.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    shown.args(arguments).subcommand_required(program.has_subcommands()).subcommands(commands)
}

/// With names such as `propylon-cluster-status` for its commands, of which `help` is none.
#[must_use]
pub fn built(program: &Command) -> Command {
    let mut program = without_help(program.clone());
    program.build();
    program
}

fn without_help(command: Command) -> Command {
    command.disable_help_subcommand(true).mut_subcommands(without_help)
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn a_program_has_its_pages_and_completions_without_what_is_hidden() {
        let folder = std::env::temp_dir().join(format!("propylon-commands-pages-{}", std::process::id()));
        let folders = Folders::below(&folder).expect("folders");
        let program = Command::new("p").arg(Arg::new("seen").long("seen").help("An option"));
        let program = program.arg(Arg::new("unseen").long("unseen").hide(true));
        folders.write(&program).expect("pages");
        let nested = Command::new("q").subcommand(Command::new("a").subcommand(Command::new("b")));
        folders.write(&nested.subcommand(Command::new("c").hide(true))).expect("pages");
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        for name in ["man8/p.8", "completions/p.bash", "completions/_p", "completions/p.fish"] {
            let text = read(name);
            assert!(text.contains("seen") && !text.contains("unseen"), "{name}: {text}");
        }
        let mut pages: Vec<_> =
            fs::read_dir(&folders.pages).expect("pages").map(|entry| entry.expect("one").file_name()).collect();
        pages.sort();
        assert_eq!(pages, ["p.8", "q-a-b.8", "q-a.8", "q.8"]);
        fs::remove_dir_all(&folder).expect("it goes");
    }
}

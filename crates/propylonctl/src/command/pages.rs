//! `propylonctl pages`: pages for `man` and completions for shells, for those who pack the programs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Command, CommandFactory};
use propylon_commands::pages::{Folders, SECTION, built, shown};

#[derive(clap::Args)]
pub struct Arguments {
    /// The folder, which is made
    folder: PathBuf,
}

/// `own` is the command line of this program.
pub fn main(arguments: &Arguments, own: &Command) -> ExitCode {
    match write(&arguments.folder, own) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("propylonctl: {}: {error}", arguments.folder.display());
            ExitCode::FAILURE
        }
    }
}

fn write(folder: &Path, own: &Command) -> io::Result<()> {
    let folders = Folders::below(folder)?;
    let own = shown(own);
    let engine = shown(&propylon_commands::Arguments::command()).subcommands(own.get_subcommands().cloned());
    folders.write(&engine)?;
    folders.write(&propylon_keyserver::command::line())?;
    folders.complete(&own)?;
    let own = built(&own);
    folders.page(&own)?;
    own.get_subcommands().try_for_each(|command| links(command, &folders.pages))
}

/// `propylonctl-top` is the page `propylon-top`.
fn links(command: &Command, folder: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let page = name.replacen("propylonctl", "propylon", 1);
    fs::write(folder.join(format!("{name}.{SECTION}")), format!(".so man{SECTION}/{page}.{SECTION}\n"))?;
    command.get_subcommands().try_for_each(|command| links(command, folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_and_none_that_is_hidden() {
        let folder = std::env::temp_dir().join(format!("propylon-pages-{}", std::process::id()));
        let own = crate::command::line();
        write(&folder, &own).expect("pages");
        let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        for program in ["propylon", "propylonctl", "propylon-keyserver"] {
            for name in [format!("{program}.bash"), format!("_{program}"), format!("{program}.fish")] {
                let text = read(&format!("completions/{name}"));
                assert!(!text.contains("with-parent") && !text.contains("key-process"), "{name}");
            }
        }
        assert!(read("completions/propylon.bash").contains("--health-path"));
        assert!(
            read("completions/propylon.fish").contains("--upgrade")
                || read("completions/_propylon").contains("upgrade")
        );
        for command in own.get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            let text = read(&format!("man8/propylon-{name}.8"));
            assert!(text.contains("SYNOPSIS") && text.contains(&format!("propylon {name}")), "{name}: {text}");
            assert_eq!(read(&format!("man8/propylonctl-{name}.8")), format!(".so man8/propylon-{name}.8\n"));
        }
        for name in
            ["propylon", "propylon-run", "propylon-check", "propylon-upgrade", "propylon-cluster-status", "propylonctl"]
        {
            assert!(read(&format!("man8/{name}.8")).contains("NAME"), "{name}");
        }
        assert!(read("man8/propylon-keyserver-keys.8").contains("SKI"));
        assert!(!folder.join("man8/propylon-launcher.8").exists() && !folder.join("man8/propylon-help.8").exists());
        fs::remove_dir_all(&folder).expect("it goes");
    }
}

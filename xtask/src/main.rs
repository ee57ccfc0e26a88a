//! Chores in the project's own language: `cargo xtask tidy`, `cargo xtask lanes` and `cargo xtask ci`.

mod ci;
mod lanes;
mod sbom;
mod site;
mod suite;
mod tidy;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::suite::Length;

const HELP: &str = "\
cargo xtask <command>

  tidy   hold the house rules that no compiler knows: arrows between crates, unsafe code,
         leftovers, paths and links in the documentation
           --circles    print the circles of modules, and which arrows close them
           --functions  print the functions that are long or have many parameters
           --picture    print the crates and their arrows
           --write      write them into ARCHITECTURE.md
  figures  print what is measured of the whole: lines, circles, functions, packages
  lanes  hold the kernels' machine code to the counts it was measured with; takes a binary,
         or builds the crate in release
  sbom FOLDER PROGRAM...  write what the programs are made of into files of the folder, as CycloneDX
  site FOLDER  write the documentation as HTML, by the list in docs/site/contents.md
  ci     everything a change must pass: format, clippy, tidy, flows object, lanes, build,
         tests; stops at the first failure, of tests when all have run
           --long       also the tests that take long, as before a release
";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let passed = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::run(&root()),
        ["tidy", "--circles"] => tidy::circles(&root()),
        ["tidy", "--functions"] => tidy::functions(&root()),
        ["tidy", "--picture"] => tidy::picture(&root()),
        ["tidy", "--write"] => tidy::write(&root()),
        ["figures"] => tidy::figures(&root()),
        ["lanes"] => lanes::run(&root(), None),
        ["lanes", binary] => lanes::run(&root(), Some(binary)),
        ["sbom", folder, _, ..] => sbom::run(&root(), Path::new(folder), &arguments[2..]),
        ["site", folder] => site::run(&root(), Path::new(folder)),
        ["ci"] => ci::run(&root(), Length::Short),
        ["ci", "--long"] => ci::run(&root(), Length::Long),
        ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            true
        }
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The top of the repository, whatever folder the command was given in.
fn root() -> PathBuf {
    let xtask =
        env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    xtask.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

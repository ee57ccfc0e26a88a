//! `propylonctl with-parent`: becomes another program, one that is told to end when the process that started it has.
//!
//! `propylon demo` starts everything through this, so that nothing of it outlives the demo, however that ends.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

pub fn main(parent: u32, program: &[OsString]) -> ExitCode {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::TERM)) {
        eprintln!("propylon: no signal can be had for the parent's end: {error}");
        return ExitCode::FAILURE;
    }
    // The parent may have gone before we asked.
    let is_there = getppid().is_some_and(|pid| u32::try_from(pid.as_raw_nonzero().get()) == Ok(parent));
    let Some((name, arguments)) = program.split_first().filter(|_| is_there) else { return ExitCode::FAILURE };
    let error = Command::new(name).args(arguments).exec();
    eprintln!("propylon: {} cannot be started: {error}", name.to_string_lossy());
    ExitCode::FAILURE
}

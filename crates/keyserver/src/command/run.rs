//! `propylon-keyserver run`: from a file to a server.

use std::path::Path;
use std::process::ExitCode;

use propylon_config::{Level, Source, parse_keyserver, render};

use crate::logger::{self, Flush};
use crate::server;

/// The name in the log.
const PROGRAM: &str = "propylon-keyserver";

pub fn main(path: &Path) -> ExitCode {
    logger::start(PROGRAM, Level::Info);
    let _flush = Flush;
    let source = match Source::read(path) {
        Ok(source) => source,
        Err(problem) => {
            eprint!("{}", render(&[problem], ""));
            return ExitCode::FAILURE;
        }
    };
    let config = match parse_keyserver(&source) {
        Ok((config, warnings)) => {
            eprint!("{}", render(&warnings, &source.text));
            config
        }
        Err(problems) => {
            eprint!("{}", render(&problems, &source.text));
            return ExitCode::FAILURE;
        }
    };
    logger::start(PROGRAM, config.level);
    match server::run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            log::error!("{failure}");
            ExitCode::FAILURE
        }
    }
}

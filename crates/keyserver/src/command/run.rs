//! `propylon-keyserver run`: from a file to a server.

use std::path::Path;
use std::process::ExitCode;

use propylon_config::{Level, Source, parse_keyserver, render};

use crate::logger;
use crate::server;

pub fn main(path: &Path) -> ExitCode {
    logger::start(Level::Info);
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
    logger::start(config.level);
    match server::run(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            log::error!("{failure}");
            ExitCode::FAILURE
        }
    }
}

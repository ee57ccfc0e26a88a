//! What the process says of itself: one line a message on standard error, for the `log` crate's macros.

use std::io::Write;

use log::{Level, LevelFilter, Log, Metadata, Record};

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("propylon")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let level = match record.level() {
            Level::Error => "error: ",
            Level::Warn => "warning: ",
            Level::Info => "",
            Level::Debug | Level::Trace => "debug: ",
        };
        // One write, so that lines of several threads do not mix; a closed standard error is nobody's business.
        let line = format!("propylon-keyserver: {level}{}\n", record.args());
        let _ = std::io::stderr().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}

/// Starts logging; called again, changes the level only.
pub fn start(level: propylon_config::Level) {
    let _ = log::set_logger(&Stderr);
    log::set_max_level(match level {
        propylon_config::Level::Error => LevelFilter::Error,
        propylon_config::Level::Warn => LevelFilter::Warn,
        propylon_config::Level::Info => LevelFilter::Info,
        propylon_config::Level::Debug => LevelFilter::Debug,
    });
}

//! What the process says of itself: one line a message on standard error, with its time, its level and the process, for the
//! `log` crate's macros.

use std::io::Write;
use std::time::SystemTime;

use log::{Level, LevelFilter, Log, Metadata, Record};
use propylon_config::log_line;

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
            Level::Error => "error",
            Level::Warn => "warning",
            Level::Info => "info",
            Level::Debug | Level::Trace => "debug",
        };
        // One write, so that lines of several threads do not mix; a closed standard error is nobody's business.
        let line = log_line("propylon-keyserver", level, SystemTime::now(), record.args());
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

//! The process's log: one line a message on standard error, with its time, its level and the process, for the `log`
//! crate's macros.
//!
//! Until [`start_writer`], the thread that logs a line writes it, and waits until it is written. From then on no
//! thread waits: threads that serve must not stop because nobody reads standard error.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::panic::{self, PanicHookInfo};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

use log::{Level, LevelFilter, Log, Metadata, Record};
use propylon_config::log_line;
use propylon_sys::LineQueue;

/// Time by which waiting lines may delay the end of the process.
const FLUSH_WAIT_MAX: Duration = Duration::from_secs(1);

static QUEUE: LineQueue = LineQueue::new(lost_line);
/// The program name that begins each line.
static PROGRAM: OnceLock<&str> = OnceLock::new();
/// Panics, whichever thread they are of and whoever contains them.
static PANICS: AtomicU64 = AtomicU64::new(0);

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
        write_line(&line(level, record.args()));
    }

    /// Writes lines that wait; called before the process ends.
    fn flush(&self) {
        QUEUE.flush(FLUSH_WAIT_MAX);
    }
}

fn line(level: &str, text: impl Display) -> String {
    log_line(PROGRAM.get().unwrap_or(&"propylon"), level, SystemTime::now(), text)
}

fn lost_line(count: u64) -> String {
    line(
        "warning",
        format_args!("{count} line{} of this log were lost: nobody took them", if count == 1 { "" } else { "s" }),
    )
}

fn write_line(text: &str) {
    if !QUEUE.push(text.as_bytes()) {
        // One write, so that lines of several threads do not mix; a closed standard error is nobody's business.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

/// Starts logging; called again, changes the level only.
pub fn start(program: &'static str, level: propylon_config::Level) {
    let _ = PROGRAM.set(program);
    let _ = log::set_logger(&Stderr);
    log::set_max_level(match level {
        propylon_config::Level::Error => LevelFilter::Error,
        propylon_config::Level::Warn => LevelFilter::Warn,
        propylon_config::Level::Info => LevelFilter::Info,
        propylon_config::Level::Debug => LevelFilter::Debug,
    });
}

/// Starts the thread that writes lines from here on, which is confined as the caller is; panics are logged as well.
pub fn start_writer() -> io::Result<()> {
    QUEUE.start(io::stderr().as_fd().try_clone_to_owned()?)?;
    panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// Panics of this process's threads since [`start_writer`], those included that are contained.
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// Lines that nobody took, so far.
pub fn lost() -> u64 {
    QUEUE.lost()
}

/// Writes what waits when it goes, however its function ends.
pub struct Flush;

impl Drop for Flush {
    fn drop(&mut self) {
        log::logger().flush();
    }
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    PANICS.fetch_add(1, Ordering::Relaxed);
    let name = thread::current().name().unwrap_or("without a name").to_owned();
    write_line(&line("error", format_args!("thread '{name}' {panic}")));
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        write_line(&format!("{backtrace}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_count_though_they_are_contained() {
        panic::set_hook(Box::new(log_panic));
        let before = panics();
        assert!(panic::catch_unwind(|| panic!("as a test")).is_err());
        assert!(thread::spawn(|| panic!("as a test")).join().is_err());
        assert!(panics() >= before + 2);
    }
}

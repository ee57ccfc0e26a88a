//! The process's log: one line a message on standard error, with its time, its level and the process, for the `log`
//! crate's macros.
//!
//! Until [`start_writer`], the thread that logs a line writes it, and waits until it is written. From then on no
//! thread waits: threads that serve must not stop because nobody reads standard error.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::panic::{self, PanicHookInfo};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
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

/// Lines of the log that are kept, and the bytes of each.
pub const RECENT_MAX: usize = 500;
pub const RECENT_LINE_BYTES: usize = 600;
/// Levels of lines that are kept, the gravest first.
const LEVELS: [&str; 3] = ["error", "warning", "info"];
/// The last lines, the oldest first. Few are written, and none where a request is served.
static RECENT: Mutex<VecDeque<Recent>> = Mutex::new(VecDeque::new());

/// A line of the log that is kept for whoever looks later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recent {
    pub time: SystemTime,
    /// `error`, `warning` or `info`.
    pub level: &'static str,
    pub text: String,
}

/// The last lines of this process's log, the oldest first: at most [`RECENT_MAX`].
pub fn recent() -> Vec<Recent> {
    recent_lines().iter().cloned().collect()
}

/// Puts lines that another process has written before in front of this one's.
pub fn take_recent(lines: Vec<Recent>) {
    let mut kept = recent_lines();
    for mut line in lines.into_iter().rev() {
        shorten(&mut line.text);
        if kept.len() < RECENT_MAX {
            kept.push_front(line);
        }
    }
}

/// A level by its name.
pub fn level_name(name: &str) -> Option<&'static str> {
    LEVELS.into_iter().find(|level| *level == name)
}

fn recent_lines() -> MutexGuard<'static, VecDeque<Recent>> {
    RECENT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep(line: Recent) {
    push(&mut recent_lines(), line);
}

fn push(kept: &mut VecDeque<Recent>, mut line: Recent) {
    shorten(&mut line.text);
    if kept.len() == RECENT_MAX {
        kept.pop_front();
    }
    kept.push_back(line);
}

fn shorten(text: &mut String) {
    let is_end = |at: &usize| text.is_char_boundary(*at);
    let end = (0..=RECENT_LINE_BYTES.min(text.len())).rev().find(is_end).unwrap_or(0);
    if end < text.len() {
        text.truncate(end);
        text.push('…');
    }
}

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
            Level::Error => LEVELS[0],
            Level::Warn => LEVELS[1],
            Level::Info => LEVELS[2],
            Level::Debug | Level::Trace => "debug",
        };
        let (time, text) = (SystemTime::now(), record.args().to_string());
        write_line(&log_line(PROGRAM.get().unwrap_or(&"propylon"), level, time, &text));
        if record.level() <= Level::Info {
            keep(Recent { time, level, text });
        }
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
    let (time, text) = (SystemTime::now(), format!("thread '{name}' {panic}"));
    write_line(&line("error", &text));
    // The thread that panics may hold the lines.
    if let Ok(mut kept) = RECENT.try_lock() {
        push(&mut kept, Recent { time, level: LEVELS[0], text });
    }
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        write_line(&format!("{backtrace}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_kept_short_and_those_of_a_process_before_come_first() {
        let of = |text: String| Recent { time: SystemTime::UNIX_EPOCH, level: "info", text };
        for number in 0..RECENT_MAX + 3 {
            keep(of(number.to_string()));
        }
        assert_eq!((recent().len(), &*recent()[0].text), (RECENT_MAX, "3"));
        recent_lines().truncate(2);
        take_recent(vec![of("é".repeat(RECENT_LINE_BYTES)), of("before".into())]);
        let texts: Vec<String> = recent().into_iter().map(|line| line.text).collect();
        assert_eq!(texts[1..], ["before", "3", "4"]);
        assert_eq!(texts[0].chars().count(), RECENT_LINE_BYTES / 2 + 1);
        assert_eq!((level_name("warning"), level_name("debug")), (Some("warning"), None));
    }

    #[test]
    fn panics_count_though_they_are_contained() {
        panic::set_hook(Box::new(log_panic));
        let before = panics();
        assert!(panic::catch_unwind(|| panic!("as a test")).is_err());
        assert!(thread::spawn(|| panic!("as a test")).join().is_err());
        assert!(panics() >= before + 2);
    }
}

//! Lines for a file whose reader may be slow or gone: threads that log never wait, the queue's own thread does.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Bytes that wait while the thread writes as many at most; a line that finds no room is lost.
pub const LINES_WAITING_BYTES_MAX: usize = 256 * 1024;
/// A pipe takes so much whole or not at all (pipe(7)): lines of several processes do not mix in it.
const WRITE_BYTES_MAX: usize = 4096;

/// Lines on their way to a file, in order. One that finds no room is lost whole, and a line in its place says how many
/// were.
pub struct LineQueue {
    state: Mutex<State>,
    /// The thread has something to do.
    filled: Condvar,
    /// Signalled when there is nothing to do any more.
    emptied: Condvar,
    /// Lines lost, ever.
    lost: AtomicU64,
    /// The line that says how many were lost.
    describe_loss: fn(u64) -> String,
}

struct State {
    has_writer: bool,
    is_writing: bool,
    waiting: Vec<u8>,
    /// Lines lost behind those that wait.
    missing: u64,
}

impl LineQueue {
    /// `describe_loss` makes the line that says how many were lost.
    pub const fn new(describe_loss: fn(u64) -> String) -> LineQueue {
        let state = State { has_writer: false, is_writing: false, waiting: Vec::new(), missing: 0 };
        LineQueue {
            state: Mutex::new(state),
            filled: Condvar::new(),
            emptied: Condvar::new(),
            lost: AtomicU64::new(0),
            describe_loss,
        }
    }

    /// Starts the thread that writes, once; it is confined as the caller is.
    pub fn start(&'static self, out: OwnedFd) -> io::Result<()> {
        if std::mem::replace(&mut self.state().has_writer, true) {
            return Ok(());
        }
        let started =
            thread::Builder::new().name("log".into()).spawn(move || self.write(Outlet { out, is_torn: false }));
        self.state().has_writer = started.is_ok();
        started.map(drop)
    }

    /// Takes a line, its end included, or counts it as lost. False before the thread is started: nobody would write it.
    pub fn push(&self, line: &[u8]) -> bool {
        let mut state = self.state();
        if !state.has_writer {
            return false;
        }
        // Nothing overtakes the line that says what is missing.
        if state.missing > 0 || state.waiting.len() + line.len() > LINES_WAITING_BYTES_MAX {
            state.missing += 1;
            self.lost.fetch_add(1, Ordering::Relaxed);
        } else {
            state.waiting.extend_from_slice(line);
        }
        drop(state);
        self.filled.notify_one();
        true
    }

    /// Lines lost since the start: without room, or by writes that failed.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Waits until everything is written, or `wait_max` is up: a reader that has stopped reading keeps nobody from
    /// ending.
    pub fn flush(&self, wait_max: Duration) {
        let until = Instant::now() + wait_max;
        let mut state = self.state();
        while state.has_writer && state.is_busy() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.emptied.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn write(&self, mut outlet: Outlet) {
        // Lines that a failed write has cost, of which no line says anything yet.
        let mut failed = 0;
        loop {
            let mut state = self.state();
            while !state.has_something() {
                state.is_writing = false;
                self.emptied.notify_all();
                state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.is_writing = true;
            let (lines, missing) = (std::mem::take(&mut state.waiting), std::mem::take(&mut state.missing));
            drop(state);
            if failed > 0 && outlet.write((self.describe_loss)(failed).as_bytes()).is_ok() {
                failed = 0;
            }
            for some in in_pieces(&lines) {
                if outlet.write(some).is_err() {
                    let count = some.iter().filter(|byte| **byte == b'\n').count() as u64;
                    failed += count;
                    self.lost.fetch_add(count, Ordering::Relaxed);
                }
            }
            if missing > 0 && outlet.write((self.describe_loss)(missing).as_bytes()).is_err() {
                // Counted as lost already.
                failed += missing;
            }
        }
    }

    /// Nothing that is done while it is held can panic.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has_something(&self) -> bool {
        !self.waiting.is_empty() || self.missing > 0
    }

    fn is_busy(&self) -> bool {
        self.is_writing || self.has_something()
    }
}

/// Whole lines, as many as fit in one write; a longer one is by itself.
fn in_pieces(lines: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = lines;
    std::iter::from_fn(move || {
        let end_of = |part: &[u8]| part.iter().rposition(|byte| *byte == b'\n');
        let fitting = end_of(&rest[..rest.len().min(WRITE_BYTES_MAX)]);
        let end = fitting.or_else(|| rest.iter().position(|byte| *byte == b'\n'))?;
        let (piece, others) = rest.split_at(end + 1);
        rest = others;
        Some(piece)
    })
}

struct Outlet {
    out: OwnedFd,
    /// A write failed in mid-line: the next line must not be glued to what is there.
    is_torn: bool,
}

impl Outlet {
    /// Waits for as long as it takes.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        if self.is_torn {
            self.write_all(b"\n")?;
            self.is_torn = false;
        }
        self.write_all(bytes)
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match rustix::io::write(&self.out, rest) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                // Somebody else who has this file wants it so.
                Err(Errno::AGAIN) => drop(poll(&mut [PollFd::new(&self.out, PollFlags::OUT)], None)),
                Err(error) => {
                    self.is_torn |= rest.len() < bytes.len();
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead, BufReader};

    use rustix::fs::{OFlags, fcntl_setfl};
    use rustix::pipe::{fcntl_setpipe_size, pipe};

    use super::*;

    const WAIT_MAX: Duration = Duration::from_secs(20);

    fn queue() -> &'static LineQueue {
        Box::leak(Box::new(LineQueue::new(|count| format!("lost {count}\n"))))
    }

    /// Pushes numbered lines until some are lost, and more; returns how many there were.
    fn overfill(queue: &LineQueue) -> u64 {
        let mut pushed = 0;
        while queue.lost() < 100 {
            assert!(queue.push(format!("{pushed}: {}\n", "x".repeat(pushed as usize % 300)).as_bytes()));
            pushed += 1;
        }
        pushed
    }

    fn next(lines: &mut impl Iterator<Item = io::Result<String>>) -> String {
        lines.next().expect("a line").expect("a pipe that can be read")
    }

    /// Reads all of them; those that are missing are missing where a line says so.
    fn read_whole(lines: &mut impl Iterator<Item = io::Result<String>>, pushed: u64) -> u64 {
        let (mut expected, mut lost) = (0, 0);
        while expected < pushed {
            let line = next(lines);
            if let Some(count) = line.strip_prefix("lost ") {
                let count: u64 = count.parse().expect("a count");
                (expected, lost) = (expected + count, lost + count);
                continue;
            }
            let (number, rest) = line.split_once(": ").expect("a whole line");
            assert_eq!((number.parse(), rest.len()), (Ok(expected), expected as usize % 300));
            expected += 1;
        }
        lost
    }

    #[test]
    fn nobody_waits_for_a_pipe_that_is_not_read_and_what_is_missing_is_told_in_its_place() {
        for mode in [OFlags::empty(), OFlags::NONBLOCK] {
            let (reader, writer) = pipe().expect("a pipe");
            fcntl_setfl(&writer, mode).expect("a mode");
            let _ = fcntl_setpipe_size(&writer, 4096);
            let queue = queue();
            assert!(!queue.push(b"early\n"), "there is nobody yet who would write it");
            queue.start(writer).expect("a thread");
            let pushed = overfill(queue);
            queue.flush(Duration::from_millis(20));
            let mut lines = BufReader::new(File::from(reader)).lines();
            assert_eq!(read_whole(&mut lines, pushed), queue.lost());
            assert!(queue.push(b"after\n"));
            assert_eq!(next(&mut lines), "after");
            queue.flush(WAIT_MAX);
            assert!(!queue.state().is_busy());
        }
    }

    #[test]
    fn what_waits_is_bounded() {
        let (_reader, writer) = pipe().expect("a pipe");
        let queue = queue();
        queue.start(writer).expect("a thread");
        overfill(queue);
        assert!(queue.state().waiting.len() <= LINES_WAITING_BYTES_MAX);
        // Longer than all the room there is.
        let (_reader, writer) = pipe().expect("a pipe");
        let queue = self::queue();
        queue.start(writer).expect("a thread");
        assert!(queue.push(&[b'x'; LINES_WAITING_BYTES_MAX + 1]));
        assert_eq!(queue.lost(), 1);
    }

    #[test]
    fn lines_that_a_reader_who_is_gone_has_not_had_are_counted() {
        let (reader, writer) = pipe().expect("a pipe");
        drop(reader);
        let queue = queue();
        queue.start(writer).expect("a thread");
        (0..3).for_each(|_| assert!(queue.push(b"into the void\n")));
        queue.flush(WAIT_MAX);
        assert_eq!(queue.lost(), 3);
    }

    #[test]
    fn pieces_are_whole_lines() {
        let long = format!("{}\n", "y".repeat(2 * WRITE_BYTES_MAX));
        let short = format!("{}\n", "x".repeat(99));
        let text = [short.repeat(50), long.clone(), short.repeat(3)].concat();
        let pieces: Vec<&[u8]> = in_pieces(text.as_bytes()).collect();
        assert_eq!(pieces.concat(), text.as_bytes());
        assert!(pieces.iter().all(|piece| piece.ends_with(b"\n")));
        assert!(pieces.iter().all(|piece| piece.len() <= WRITE_BYTES_MAX || *piece == long.as_bytes()));
        assert_eq!(pieces.len(), 4);
    }
}

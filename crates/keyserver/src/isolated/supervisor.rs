//! The process that starts the key process of an engine, and starts it again when it has ended: the engine itself
//! has denied itself to start any program by then. The supervisor has no keys. All settings reach it
//! before the engine serves anybody; after that it receives nothing from the engine but its end, and ends then.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use propylon_crypto::key_process::{GONE, MESSAGE_BYTES_MAX, Order};

use super::{Startup, prepare, startup};
use crate::logger::{self, Flush};

/// Life time after which a key process that ends is started again after the shortest pause.
const STEADY: Duration = Duration::from_secs(10);
/// Time that the end of the engine may come after that of the key process, which is then its consequence: the
/// longer for a key process that has ended in order, as it does when nobody asks it any more, the shorter for one
/// that has not.
const END_WAIT: Duration = Duration::from_secs(2);
const BROKEN_END_WAIT: Duration = Duration::from_millis(20);
/// The pause before another start, twice as long each time that it has not lived for that long.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Interval at which a key process is asked whether it goes on, and how many times in a row it may say nothing.
/// Machines that have far too much to do keep processes waiting for seconds, and would keep a successor waiting as
/// well. Both together are less than the time that questions about files wait.
const BEAT: Duration = Duration::from_secs(1);
const UNANSWERED_MAX: u32 = 7;
/// Time limit for a key process to receive its startup messages.
const STARTUP_WAIT: Duration = Duration::from_secs(10);

/// `propylon key-supervisor`: on standard input it has the engine. `log` sets the log's level.
pub fn supervise(log: fn(u8)) -> ExitCode {
    let _flush = Flush;
    let outcome = prepare(log).and_then(|(startup, engine)| {
        if let Some(user) = &startup.setup.user {
            let account = propylon_sys::Account::find(user).map_err(|error| error.to_string())?;
            propylon_sys::drop_privileges(&account).map_err(|error| error.to_string())?;
        }
        logger::start_writer().map_err(|error| format!("a thread cannot be started: {error}"))?;
        end_with(engine).map_err(|error| format!("a thread cannot be started: {error}"))?;
        Ok(startup)
    });
    match outcome {
        Ok(startup) => keep_up(startup),
        Err(what) => {
            log::error!("no key process can be started: {what}");
            ExitCode::FAILURE
        }
    }
}

/// Ends this process with the engine; the key process ends with this one.
fn end_with(engine: OwnedFd) -> io::Result<()> {
    let wait = move || {
        while !matches!(propylon_sys::receive_message(&engine, &mut [0; 16]), Ok((0, _)) | Err(_)) {}
        // Exits at once, whether or not anybody reads the log: another key process would be started for nobody.
        std::process::exit(0);
    };
    thread::Builder::new().name("end".into()).spawn(wait).map(drop)
}

fn keep_up(mut startup: Startup) -> ExitCode {
    let mut paths = BTreeSet::new();
    let mut pause = PAUSE_MIN;
    loop {
        let started = Instant::now();
        let (how, in_order) = match start(&startup) {
            Ok((child, socket)) => listen(child, &socket, &mut paths),
            Err(error) => (format!("it cannot be started: {error}"), false),
        };
        // The first socket is left out: it is for questions about files, and nobody waits at it unless there are some.
        for link in &startup.files[1..] {
            let _ = propylon_sys::try_send_message(link, GONE);
        }
        // The engine's end is awaited: if it has ended, this process does before the sleep is over, and there is
        // nothing to tell.
        thread::sleep(if in_order { END_WAIT } else { BROKEN_END_WAIT });
        if started.elapsed() >= STEADY {
            pause = PAUSE_MIN;
        }
        log::error!("the key process has ended: {how}; another is started in {} ms", pause.as_millis());
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
        startup.paths = paths.iter().cloned().collect();
    }
}

fn start(startup: &Startup) -> io::Result<(Child, UnixDatagram)> {
    let (own, other) = propylon_sys::message_pair()?;
    // The socket keeps messages apart, whatever its type is called here.
    let own = UnixDatagram::from(own);
    own.set_write_timeout(Some(STARTUP_WAIT))?;
    own.set_read_timeout(Some(BEAT))?;
    // The running program itself, whatever has its name by now.
    let mut command = Command::new("/proc/self/exe");
    let child = command.arg0("propylon").arg("key-process").stdin(Stdio::from(other)).spawn()?;
    // A key process that could not be told everything ends, and that is seen.
    let _ = startup.send(&own);
    Ok((child, own))
}

/// Takes note of the files whose keys it holds, until it ends, or is ended since it does not go on. Returns how,
/// and whether in order.
fn listen(mut child: Child, socket: &UnixDatagram, paths: &mut BTreeSet<PathBuf>) -> (String, bool) {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    let mut heartbeat = Heartbeat::new(Instant::now());
    let mut hangs = false;
    while !hangs {
        match propylon_sys::receive_message(socket, &mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok((0, _)) | Err(_) => break,
            Ok((length, _)) => match Order::parse(&buffer[..length]) {
                Ok(Order::File(path)) if paths.len() < startup::FILES_MAX => drop(paths.insert(path)),
                Ok(Order::Removed(path)) => drop(paths.remove(&path)),
                Ok(Order::Beat) => heartbeat.answered(),
                _ => {}
            },
        }
        if heartbeat.is_due(Instant::now()) {
            let _ = propylon_sys::try_send_message(socket, &Order::Beat.to_bytes());
        }
        hangs = heartbeat.unanswered > UNANSWERED_MAX;
    }
    // The process may have closed its end and live on.
    let _ = child.kill();
    let (how, in_order) = match child.wait() {
        Ok(status) => (status.to_string(), status.success()),
        Err(error) => (error.to_string(), false),
    };
    match hangs {
        true => (format!("it did not go on for {} s and was ended ({how})", (BEAT * UNANSWERED_MAX).as_secs()), false),
        false => (how, in_order),
    }
}

/// Heartbeat of a process: whether it still runs.
struct Heartbeat {
    /// Time at which it was last asked, or told that it is left alone for now.
    asked: Instant,
    /// Times that it was asked in a row, and said nothing.
    unanswered: u32,
}

impl Heartbeat {
    fn new(now: Instant) -> Heartbeat {
        Heartbeat { asked: now, unanswered: 0 }
    }

    fn answered(&mut self) {
        self.unanswered = 0;
    }

    /// Says whether it is to be asked now, which is counted. What comes far too late is not: then this process was
    /// stopped too, with its machine or by it, and knows nothing of the other.
    fn is_due(&mut self, now: Instant) -> bool {
        let since = now.duration_since(self.asked);
        if since < BEAT {
            return false;
        }
        self.unanswered = if since < 2 * BEAT { self.unanswered + 1 } else { 1 };
        self.asked = now;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_hangs_that_is_asked_in_time_again_and_again_and_says_nothing() {
        let start = Instant::now();
        let at = |tenths: u32| start + BEAT * tenths / 10;
        // The process is asked every second, whatever else is heard in between.
        let mut heartbeat = Heartbeat::new(start);
        let due: Vec<u32> = (1..=35).filter(|tenths| heartbeat.is_due(at(*tenths))).collect();
        assert_eq!((due, heartbeat.unanswered), (vec![10, 20, 30], 3));
        heartbeat.answered();
        assert_eq!(heartbeat.unanswered, 0);
        for seconds in 4..4 + UNANSWERED_MAX {
            assert!(heartbeat.is_due(at(10 * seconds)) && heartbeat.unanswered <= UNANSWERED_MAX);
        }
        assert!(heartbeat.is_due(at(10 * (4 + UNANSWERED_MAX))) && heartbeat.unanswered > UNANSWERED_MAX);
    }

    #[test]
    fn a_machine_that_was_stopped_or_has_no_time_is_not_the_fault_of_one_process() {
        let start = Instant::now();
        let mut heartbeat = Heartbeat::new(start);
        // An hour of sleep; a supervisor that itself comes late each time.
        for late in [3600, 3603, 3606, 3609, 3612, 3615, 3618, 3621] {
            assert!(heartbeat.is_due(start + BEAT * late));
            assert_eq!(heartbeat.unanswered, 1, "{late}");
        }
    }
}

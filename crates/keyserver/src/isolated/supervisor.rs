//! The process that starts the key process of an engine, and starts it again when it has ended: the engine itself has denied
//! itself to start any program by then. It has no keys. It is told all that it has to know before the engine serves anybody, hears
//! nothing from it after that but its end, and ends then.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use propylon_crypto::key_process::{GONE, MESSAGE_BYTES_MAX, Order};

use super::{Brief, brief, prepare};
use crate::logger::{self, Flush};

/// One that has lived for so long is started again at once.
const STEADY: Duration = Duration::from_secs(10);
/// How long the end of the engine may come after that of the key process, which is then its consequence: of one that has ended
/// in order, as it does when nobody asks it any more, and of one that has not.
const END_WAIT: Duration = Duration::from_secs(2);
const BROKEN_END_WAIT: Duration = Duration::from_millis(20);
/// The pause before another start, twice as long each time that it has not lived for that long.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// `propylon key-supervisor`: on standard input it has the engine. `log` sets the log's level.
pub fn supervise(log: fn(u8)) -> ExitCode {
    let _flush = Flush;
    let outcome = prepare(log).and_then(|(brief, engine)| {
        if let Some(user) = &brief.setup.user {
            let account = propylon_sys::Account::find(user).map_err(|error| error.to_string())?;
            propylon_sys::drop_privileges(&account).map_err(|error| error.to_string())?;
        }
        logger::write_aside().map_err(|error| format!("a thread cannot be started: {error}"))?;
        end_with(engine).map_err(|error| format!("a thread cannot be started: {error}"))?;
        Ok(brief)
    });
    match outcome {
        Ok(brief) => keep_up(brief),
        Err(what) => {
            log::error!("no key process can be started: {what}");
            ExitCode::FAILURE
        }
    }
}

/// With the engine this process ends, and with this one the key process.
fn end_with(engine: OwnedFd) -> io::Result<()> {
    let wait = move || {
        while !matches!(propylon_sys::receive_message(&engine, &mut [0; 16]), Ok((0, _)) | Err(_)) {}
        // At once, whoever reads the log or not: another key process would be started for nobody.
        std::process::exit(0);
    };
    thread::Builder::new().name("end".into()).spawn(wait).map(drop)
}

fn keep_up(mut brief: Brief) -> ExitCode {
    let mut paths = BTreeSet::new();
    let mut pause = PAUSE_MIN;
    loop {
        let started = Instant::now();
        let (how, in_order) = match start(&brief) {
            Ok((child, socket)) => listen(child, &socket, &mut paths),
            Err(error) => (format!("it cannot be started: {error}"), false),
        };
        // All but the first, which is for questions about files: nobody is at that unless there are some.
        for link in &brief.files[1..] {
            let _ = propylon_sys::try_send_message(link, GONE);
        }
        // Where the engine has ended, this process does before it has slept, and there is nothing to tell.
        thread::sleep(if in_order { END_WAIT } else { BROKEN_END_WAIT });
        if started.elapsed() >= STEADY {
            pause = PAUSE_MIN;
        }
        log::error!("the key process has ended: {how}; another is started in {} ms", pause.as_millis());
        thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
        brief.paths = paths.iter().cloned().collect();
    }
}

fn start(brief: &Brief) -> io::Result<(Child, OwnedFd)> {
    let (own, other) = propylon_sys::message_pair()?;
    // This very program, whatever has its name by now.
    let mut command = Command::new("/proc/self/exe");
    let child = command.arg0("propylon").arg("key-process").stdin(Stdio::from(other)).spawn()?;
    // What it could not be told shows in its end.
    let _ = brief.send(&own);
    Ok((child, own))
}

/// Takes note of the files whose keys it holds, until it ends. Returns how, and whether in order.
fn listen(mut child: Child, socket: &OwnedFd, paths: &mut BTreeSet<PathBuf>) -> (String, bool) {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    loop {
        match propylon_sys::receive_message(socket, &mut buffer) {
            Ok((0, _)) | Err(_) => break,
            Ok((length, _)) => match Order::parse(&buffer[..length]) {
                Ok(Order::File(path)) if paths.len() < brief::PATHS_MAX / 2 => drop(paths.insert(path)),
                Ok(Order::Removed(path)) => drop(paths.remove(&path)),
                _ => {}
            },
        }
    }
    // It may have closed its end and live on.
    let _ = child.kill();
    match child.wait() {
        Ok(status) => (status.to_string(), status.success()),
        Err(error) => (error.to_string(), false),
    }
}

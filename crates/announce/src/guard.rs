//! The process beside the engine that takes the route back when the engine dies.
//!
//! BIRD keeps a static route whoever has died: clients would be sent to a machine where nobody listens. An engine
//! that is killed can do nothing about it, so that another process holds the far end of a socket pair: the kernel
//! closes the engine's end whatever ends it. The guardian is started before the engine denies itself to start
//! programs, needs no right but that to BIRD's socket, and reads nothing of clients.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::Settings;
use crate::answers::ProtocolState;
use crate::bird::{Bird, BirdError, ProtocolName};

/// Longest time that the guardian tries to reach BIRD after the engine's death. A BIRD that hangs for longer has lost
/// its sessions by then, and one that starts later begins with the protocols disabled.
pub const WITHDRAW_WAIT_MAX: Duration = Duration::from_secs(10);
/// Longest time for one of BIRD's replies.
const REPLY_WAIT: Duration = Duration::from_secs(1);
/// Pause before another attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

const HANDED_OVER: u8 = b'h';
const TAKEN_BACK: u8 = b't';

/// The engine's end of the line to its guardian. As long as any process holds it, the guardian does nothing: a
/// successor that is passed a copy of it is guarded by the same guardian, without a moment between.
pub struct GuardLine(UnixStream);

impl GuardLine {
    /// The engine's end, and the end that becomes the guardian's standard input. Neither survives an exec by itself.
    pub fn pair() -> io::Result<(GuardLine, OwnedFd)> {
        let (own, other) = UnixStream::pair()?;
        // Two bytes in a process's life: the guardian that does not read them is stopped, and must not stop the
        // engine.
        own.set_nonblocking(true)?;
        Ok((GuardLine(own), other.into()))
    }

    /// Says that a successor announces from here on, and has a guardian of its own. To be said as soon as the
    /// successor has confirmed that it serves, before this process does anything else.
    pub fn hand_over(&self) -> io::Result<()> {
        (&self.0).write_all(&[HANDED_OVER])
    }

    /// Says that the successor is gone and this process serves on.
    pub fn take_back(&self) -> io::Result<()> {
        (&self.0).write_all(&[TAKEN_BACK])
    }

    /// Whether the guardian lives. Without it nobody withdraws the route when the engine is killed.
    pub fn is_guarded(&self) -> bool {
        !propylon_sys::peek_ended(&self.0)
    }
}

impl AsFd for GuardLine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for GuardLine {
    /// An end that a predecessor has passed on.
    fn from(end: OwnedFd) -> GuardLine {
        GuardLine(end.into())
    }
}

impl From<GuardLine> for OwnedFd {
    fn from(line: GuardLine) -> OwnedFd {
        line.0.into()
    }
}

/// How a guardian's work ended.
#[derive(Debug, PartialEq, Eq)]
pub enum GuardEnd {
    /// The engine ended after it had handed over; nothing was touched.
    HandedOver,
    /// The engine is dead and all protocols are down. The time is from its death on.
    Withdrawn(Duration),
    /// The engine is dead and BIRD could not be told.
    Failed(String),
}

impl fmt::Display for GuardEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GuardEnd::HandedOver => f.write_str("the engine has handed over and ended; its successor announces"),
            GuardEnd::Withdrawn(took) => {
                write!(f, "the engine died; its virtual addresses were withdrawn within {} ms", took.as_millis())
            }
            GuardEnd::Failed(why) => write!(
                f,
                "the engine died and its virtual addresses may still be announced: {why}; run `birdc disable` for them"
            ),
        }
    }
}

/// The guardian's loop: returns after the engine's end. `line` is what [`GuardLine::pair`] gave beside the engine's
/// end.
///
/// Service managers send signals to all processes of a service; only SIGKILL ends a guardian before its work is done.
pub fn watch(line: OwnedFd, settings: &Settings) -> io::Result<GuardEnd> {
    propylon_sys::block_signals()?;
    let is_handed_over = wait_for_end(UnixStream::from(line))?;
    if is_handed_over {
        return Ok(GuardEnd::HandedOver);
    }
    let died = Instant::now();
    Ok(match withdraw(settings, WITHDRAW_WAIT_MAX, "the engine died") {
        Ok(()) => GuardEnd::Withdrawn(died.elapsed()),
        Err(why) => GuardEnd::Failed(why),
    })
}

/// Whether the engine had handed over when it ended.
fn wait_for_end(mut line: UnixStream) -> io::Result<bool> {
    line.set_nonblocking(false)?;
    let mut is_handed_over = false;
    let mut order = [0];
    loop {
        match line.read(&mut order) {
            Ok(0) => return Ok(is_handed_over),
            Ok(_) if order == [HANDED_OVER] => is_handed_over = true,
            Ok(_) if order == [TAKEN_BACK] => is_handed_over = false,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // A reset is an end too.
            Err(_) => return Ok(is_handed_over),
        }
    }
}

/// Disables all protocols, and returns once BIRD says that each is down; for a guardian, and for a command that a
/// service manager runs behind the engine's end.
pub fn withdraw(settings: &Settings, limit: Duration, reason: &str) -> Result<(), String> {
    let until = Instant::now() + limit;
    let mut left: Vec<&ProtocolName> = settings.protocols.iter().collect();
    loop {
        let mut problem = None;
        let outcome = Bird::connect(&settings.socket, REPLY_WAIT.min(limit)).and_then(|mut bird| {
            for name in &left {
                // One that cannot be disabled must not keep the others from it.
                match bird.disable(name, reason) {
                    Err(error) if error.ends_connection() => return Err(error),
                    Err(error) => problem = Some(error),
                    Ok(_) => {}
                }
            }
            left.retain(|name| !is_down(&mut bird, name));
            Ok(())
        });
        if left.is_empty() {
            return Ok(());
        }
        let problem = outcome.err().or(problem);
        let is_final = problem.as_ref().is_some_and(BirdError::needs_somebody);
        if is_final || Instant::now() >= until {
            let names: Vec<&str> = left.iter().map(|name| name.as_str()).collect();
            let why = problem.map_or_else(|| "they do not go down".to_owned(), |problem| problem.to_string());
            return Err(format!("{}: {why}", names.join(", ")));
        }
        thread::sleep(if problem.is_some() { RETRY_PAUSE } else { RETRY_PAUSE / 10 });
    }
}

fn is_down(bird: &mut Bird, name: &ProtocolName) -> bool {
    bird.protocol(name).is_ok_and(|protocol| protocol.state == ProtocolState::Down)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_engine_that_has_handed_over_is_told_from_a_death() {
        let told = |orders: &[fn(&GuardLine) -> io::Result<()>]| {
            let (own, other) = GuardLine::pair().unwrap();
            orders.iter().for_each(|order| order(&own).unwrap());
            drop(own);
            wait_for_end(other.into()).unwrap()
        };
        assert!(!told(&[]));
        assert!(told(&[GuardLine::hand_over]));
        assert!(!told(&[GuardLine::hand_over, GuardLine::take_back]));
    }

    #[test]
    fn a_line_that_a_successor_holds_has_not_ended() {
        let (own, other) = GuardLine::pair().unwrap();
        let passed = GuardLine::from(own.as_fd().try_clone_to_owned().unwrap());
        drop(own);
        assert!(!propylon_sys::peek_ended(&other));
        drop(passed);
        assert!(propylon_sys::peek_ended(&other));
    }

    #[test]
    fn an_engine_knows_that_its_guardian_is_gone() {
        let (own, other) = GuardLine::pair().unwrap();
        assert!(own.is_guarded());
        drop(other);
        assert!(!own.is_guarded());
    }
}

//! Withdrawing the route of an engine that has died: BIRD keeps a static route whoever has died, and clients would be
//! sent to a machine where nobody listens. Another process does it, which the engine's end wakes.

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

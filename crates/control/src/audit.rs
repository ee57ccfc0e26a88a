//! Audit lines in the log, one for each change by the admin API: who, from where, what, and the outcome.

use std::cell::Cell;
use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Limit on the characters of a client's `User-Agent` that are logged.
const AGENT_CHARS_MAX: usize = 60;
/// Limit on the characters of a person's name that are logged.
const PERSON_CHARS_MAX: usize = 60;

/// Somebody who asks for a change, as the log names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// Account and process of whoever connected by the Unix socket, as the kernel tells them.
    pub local: Option<(u32, Option<i32>)>,
    /// Address of whoever connected by TCP.
    pub address: Option<SocketAddr>,
    /// The client's `User-Agent`, which proves nothing.
    pub agent: Option<String>,
    /// The change came with the token of `admin.token_file`.
    pub has_token: bool,
    /// A page in a browser has asked.
    pub in_browser: bool,
    /// The name that a person has given on the dashboard, which proves nothing.
    pub person: Option<String>,
}

impl Caller {
    /// Adds what the client calls itself.
    #[must_use]
    pub fn called(self, agent: Option<&str>) -> Caller {
        Caller { agent: agent.map(|agent| agent.chars().take(AGENT_CHARS_MAX).collect()), ..self }
    }

    /// Adds the name that a person has given.
    #[must_use]
    pub fn of(self, person: Option<&str>) -> Caller {
        let name = person.map(|name| name.trim().chars().take(PERSON_CHARS_MAX).collect::<String>());
        Caller { person: name.filter(|name| !name.is_empty()), ..self }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.local, self.address) {
            (Some((uid, pid)), _) => {
                write!(f, "uid {uid}")?;
                if let Some(pid) = pid {
                    write!(f, ", process {pid},")?;
                }
                write!(f, " at the Unix socket")?;
            }
            (None, Some(address)) => write!(f, "a client at {address}")?,
            (None, None) => write!(f, "a local process")?,
        }
        if self.has_token {
            write!(f, " with the token")?;
        }
        if let Some(person) = &self.person {
            write!(f, ", called {person:?}")?;
        }
        if self.in_browser {
            write!(f, ", in a browser")?;
        }
        match &self.agent {
            Some(agent) => write!(f, " ({agent})"),
            None => Ok(()),
        }
    }
}

/// Refusals are logged at most once in this time: who guesses must not fill the disk.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Changes that somebody had no right to, as the log tells them.
#[derive(Default)]
pub struct Refusals {
    logged: Cell<Option<Instant>>,
    untold: Cell<u64>,
}

impl Refusals {
    /// Logs a refusal, unless another was logged just now.
    pub fn record(&self, what: &str, by: &Caller, now: Instant) {
        let Some(untold) = self.due(now) else { return };
        let more = if untold > 0 { format!("; {untold} more since the last such line") } else { String::new() };
        log::warn!("audit: a change by {by} was refused: {what}{more}");
    }

    /// How many were not logged, if one is to be logged now.
    fn due(&self, now: Instant) -> Option<u64> {
        if self.logged.get().is_some_and(|logged| now.duration_since(logged) < REFUSAL_LOG_INTERVAL) {
            self.untold.set(self.untold.get() + 1);
            return None;
        }
        self.logged.set(Some(now));
        Some(self.untold.take())
    }
}

/// Tells a change that was made, or refused for what it asks: `outcome` says which.
pub fn record(caller: &Caller, change: &str, outcome: Result<(u64, usize), String>) {
    match outcome {
        Ok((generation, 0)) => {
            log::info!("audit: {change}, by {caller}: nothing is different; generation {generation}");
        }
        Ok((generation, _)) => log::info!("audit: {change}, by {caller}: in effect as generation {generation}"),
        Err(why) => log::warn!("audit: {change}, by {caller}: refused, nothing has changed: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_asks_is_named_by_what_is_known_of_them() {
        let local = Caller { local: Some((1000, Some(77))), ..Caller::default() };
        assert_eq!(local.to_string(), "uid 1000, process 77, at the Unix socket");
        let far = Caller { address: Some("10.0.0.9:4711".parse().unwrap()), has_token: true, ..Caller::default() };
        assert_eq!(far.clone().called(Some("curl/8")).to_string(), "a client at 10.0.0.9:4711 with the token (curl/8)");
        let page = Caller { in_browser: true, ..far.of(Some(" maria\n\u{202e}\" ")) };
        let told = "a client at 10.0.0.9:4711 with the token, called \"maria\\n\\u{202e}\\\"\", in a browser";
        assert_eq!(page.to_string(), told);
        assert_eq!(Caller::default().of(Some("  ")), Caller::default());
        let long = Caller::default().of(Some(&"x".repeat(1000)));
        assert!(long.to_string().len() < 100);
        let long = Caller::default().called(Some(&"x".repeat(1000)));
        assert!(long.to_string().len() < 100);
    }

    #[test]
    fn refusals_are_told_once_a_second_and_the_rest_by_their_number() {
        let (refusals, start) = (Refusals::default(), Instant::now());
        let at = |milliseconds| refusals.due(start + Duration::from_millis(milliseconds));
        assert_eq!(
            [at(0), at(1), at(999), at(1_000), at(1_001), at(5_000)],
            [Some(0), None, None, Some(2), None, Some(1)]
        );
    }
}

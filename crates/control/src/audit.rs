//! Audit lines in the log, one for each change by the admin API: who, from where, what, and the outcome.

use std::fmt;
use std::net::SocketAddr;

use crate::reload::{Change, Settings};

/// Limit on the characters of a client's `User-Agent` that are logged.
const AGENT_CHARS_MAX: usize = 60;

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
}

impl Caller {
    /// Adds what the client calls itself.
    #[must_use]
    pub fn called(self, agent: Option<&str>) -> Caller {
        Caller { agent: agent.map(|agent| agent.chars().take(AGENT_CHARS_MAX).collect()), ..self }
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
        match &self.agent {
            Some(agent) => write!(f, " ({agent})"),
            None => Ok(()),
        }
    }
}

/// Tells a change that was made, or refused for what it asks: `outcome` says which.
pub fn tell(caller: &Caller, change: &str, outcome: Result<(u64, usize), String>) {
    match outcome {
        Ok((generation, 0)) => {
            log::info!("audit: {change}, by {caller}: nothing is different; generation {generation}");
        }
        Ok((generation, _)) => log::info!("audit: {change}, by {caller}: in effect as generation {generation}"),
        Err(why) => log::warn!("audit: {change}, by {caller}: refused, nothing has changed: {why}"),
    }
}

impl Change {
    /// The change in words, without anything secret.
    pub fn told(&self) -> String {
        match self {
            Change::ReadAgain => "reload of the file and of all certificates".into(),
            Change::FileChanged(source) => format!("change of {}", source.name),
            Change::Push { text, .. } => format!("a whole configuration of {} bytes in place of the file", text.len()),
            Change::AddServer { backend, address, settings } => {
                format!("[backend.{backend}]: server {address} added{}", settings.told())
            }
            Change::ChangeServer { backend, address, settings } => {
                format!("[backend.{backend}]: server {address} changed{}", settings.told())
            }
            Change::RemoveServer { backend, address } => format!("[backend.{backend}]: server {address} removed"),
            Change::PutCertificate { profile, name, .. } => format!("[tls.{profile}]: certificate \"{name}\" put"),
            Change::RemoveCertificate { profile, name } => {
                format!("[tls.{profile}]: certificate \"{name}\" removed")
            }
        }
    }
}

impl Settings {
    fn told(&self) -> String {
        let mut parts = Vec::new();
        if let Some(weight) = self.weight {
            parts.push(format!("weight {weight}"));
        }
        if let Some(connections) = self.max_connections {
            parts.push(format!("max_connections {connections}"));
        }
        if let Some(drain) = self.drain {
            parts.push(if drain { "drained".into() } else { "drained no more".into() });
        }
        if let Some(backup) = self.backup {
            parts.push(if backup { "a backup".into() } else { "no backup".into() });
        }
        if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;

    #[test]
    fn whoever_asks_is_named_by_what_is_known_of_them() {
        let local = Caller { local: Some((1000, Some(77))), ..Caller::default() };
        assert_eq!(local.to_string(), "uid 1000, process 77, at the Unix socket");
        let far = Caller { address: Some("10.0.0.9:4711".parse().unwrap()), has_token: true, ..Caller::default() };
        assert_eq!(far.called(Some("curl/8")).to_string(), "a client at 10.0.0.9:4711 with the token (curl/8)");
        let long = Caller::default().called(Some(&"x".repeat(1000)));
        assert!(long.to_string().len() < 100);
    }

    #[test]
    fn what_is_asked_for_is_told_without_its_secrets() {
        let settings = Settings { weight: NonZeroU16::new(5), drain: Some(true), ..Settings::default() };
        let change = Change::ChangeServer { backend: "app".into(), address: "a:1".into(), settings };
        assert_eq!(change.told(), "[backend.app]: server a:1 changed: weight 5, drained");
        let put = Change::PutCertificate { profile: "p".into(), name: "n".into(), pem: "SECRET".into() };
        assert!(!put.told().contains("SECRET"));
    }
}

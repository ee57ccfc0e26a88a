//! Requests for changes of the configuration, and their answers: the admin address sends them, the main thread's reload
//! answers them, and neither knows the other.

use std::collections::BTreeSet;
use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;

use propylon_config::{Problem, Severity, Source};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::audit::Caller;

/// A request for a change, with where its answer goes.
pub struct ChangeRequest {
    pub change: Change,
    pub by: Caller,
    pub dry_run: bool,
    /// Only if this is the one in effect.
    pub generation: Option<u64>,
    pub reply: oneshot::Sender<Result<ChangeOutcome, ChangeError>>,
}

/// Why a change was not made.
pub enum ChangeError {
    /// This one is in effect.
    OtherGeneration(u64),
    Refused(Refused),
}

impl ChangeError {
    /// The reason in one line, for the log.
    pub fn reason(&self) -> String {
        match self {
            ChangeError::OtherGeneration(current) => {
                format!("generation {current} is in effect, and not the one it is for")
            }
            ChangeError::Refused(Refused::Problems(problems)) => {
                let mut errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
                let first = errors.next().map(Problem::to_string).unwrap_or_default();
                match errors.count() {
                    0 => first,
                    more => format!("{first}; and {more} more"),
                }
            }
            ChangeError::Refused(Refused::Forbidden(what, fix)) => format!("{what}; {fix}"),
            ChangeError::Refused(Refused::Unknown(what) | Refused::Taken(what)) => what.clone(),
            ChangeError::Refused(Refused::Unwritten(what)) => {
                format!("{what}; check that folder, its rights and the disk")
            }
        }
    }
}

/// A change of the configuration that was asked for.
#[derive(Clone, Debug)]
pub enum Change {
    /// SIGHUP or the admin API's reload: the file is read again, and so are all files that it names.
    ReadAgain,
    /// The watched file has changed; this is its new text.
    FileChanged(Source),
    /// A pushed configuration takes the place of the file's.
    Push {
        text: String,
        is_json: bool,
    },
    /// The cluster's configuration takes the place of the file's.
    Cluster {
        text: String,
        is_json: bool,
    },
    /// The file has its place again: the cluster has no configuration.
    NoCluster,
    /// Files of the cluster's certificates have changed.
    ReadCertificates,
    AddServer {
        backend: String,
        address: String,
        settings: Settings,
    },
    ChangeServer {
        backend: String,
        address: String,
        settings: Settings,
    },
    RemoveServer {
        backend: String,
        address: String,
    },
    PutCertificate {
        profile: String,
        name: String,
        pem: String,
    },
    RemoveCertificate {
        profile: String,
        name: String,
    },
}

/// Settings of a server in a request to the admin API; a setting that is `None` stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub weight: Option<NonZeroU16>,
    pub max_connections: Option<NonZeroU32>,
    pub drain: Option<bool>,
    pub backup: Option<bool>,
}

impl Change {
    /// Whether this came by the admin address, and not by a signal or the file.
    pub fn is_by_admin(&self) -> bool {
        !matches!(
            self,
            Change::ReadAgain
                | Change::FileChanged(_)
                | Change::Cluster { .. }
                | Change::NoCluster
                | Change::ReadCertificates
        )
    }

    /// The change in words, without anything secret.
    pub fn summary(&self) -> String {
        match self {
            Change::ReadAgain => "reload of the file and of all certificates".into(),
            Change::FileChanged(source) => format!("change of {}", source.name),
            Change::Push { text, .. } => format!("a whole configuration of {} bytes in place of the file", text.len()),
            Change::Cluster { text, .. } => format!("the cluster's configuration of {} bytes", text.len()),
            Change::NoCluster => "the file's configuration in place of the cluster's".into(),
            Change::ReadCertificates => "certificates of the cluster, read again".into(),
            Change::AddServer { backend, address, settings } => {
                format!("[backend.{backend}]: server {address} added{}", settings.summary())
            }
            Change::ChangeServer { backend, address, settings } => {
                format!("[backend.{backend}]: server {address} changed{}", settings.summary())
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
    fn summary(&self) -> String {
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

/// The outcome of a change that was accepted, or of a dry run.
pub struct ChangeOutcome {
    pub generation: u64,
    /// Differences as `diff` reports them; empty if nothing has changed.
    pub changes: Vec<Value>,
    pub warnings: Vec<Problem>,
    /// Count of files that could not be read again and are among the warnings; their old content stays in use.
    pub kept: usize,
    /// Paths of the files that `kept` counts.
    pub unusable: BTreeSet<PathBuf>,
}

/// The reason why nothing has changed.
pub enum Refused {
    /// This process does not allow the change: the reason, and how to get it allowed.
    Forbidden(String, &'static str),
    /// The backend, server, profile or certificate does not exist.
    Unknown(String),
    /// The server exists already.
    Taken(String),
    /// All errors of the new configuration.
    Problems(Vec<Problem>),
    /// The state file or the uploaded certificate could not be written.
    Unwritten(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_told_without_its_secrets() {
        let settings = Settings { weight: NonZeroU16::new(5), drain: Some(true), ..Settings::default() };
        let change = Change::ChangeServer { backend: "app".into(), address: "a:1".into(), settings };
        assert_eq!(change.summary(), "[backend.app]: server a:1 changed: weight 5, drained");
        let put = Change::PutCertificate { profile: "p".into(), name: "n".into(), pem: "SECRET".into() };
        assert!(!put.summary().contains("SECRET"));
    }
}

//! What is told of the orders: for metrics, the admin address and the log.

use std::path::PathBuf;

use propylon_config::KeyType;

/// How it stands with one account.
#[derive(Clone, Debug, Default)]
pub struct IssuerStatus {
    /// The NAME of `[acme.NAME]`.
    pub name: String,
    /// What stands in the way of the account as a whole.
    pub trouble: Option<String>,
    /// In the order of the configuration.
    pub certificates: Vec<CertificateStatus>,
    /// Since the start.
    pub counts: Counts,
}

/// How it stands with one certificate.
#[derive(Clone, Debug)]
pub struct CertificateStatus {
    /// What it is for.
    pub names: Vec<String>,
    /// Of which type its key is.
    pub key_type: KeyType,
    /// Where it is kept.
    pub file: PathBuf,
    /// What is being done about it.
    pub state: State,
    /// When the one that is kept ends, in seconds since 1970.
    pub not_after: Option<i64>,
    /// When something is ordered next, in seconds since 1970.
    pub next_attempt: Option<i64>,
    /// In a row, until now.
    pub failures: u32,
    /// Why the last attempt failed.
    pub problem: Option<String>,
}

/// What is being done about a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// There is one, and its time has not come.
    Good,
    /// An order is in progress.
    Ordering,
    /// One is to be ordered, as soon as that may be.
    Due,
    /// Another process has the lock of the folder, and sees to it.
    Elsewhere,
}

impl State {
    /// As it is shown.
    pub fn name(self) -> &'static str {
        match self {
            State::Good => "good",
            State::Ordering => "ordering",
            State::Due => "due",
            State::Elsewhere => "elsewhere",
        }
    }
}

/// Of orders, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// That brought a certificate.
    pub succeeded: u64,
    /// That came to nothing.
    pub failed: u64,
    /// Of those, because the authority had enough of us.
    pub rate_limited: u64,
}

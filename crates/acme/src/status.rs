//! The status of the orders: for metrics, the admin address and the log.

use std::path::PathBuf;

use propylon_config::KeyType;

/// The status of one account.
#[derive(Clone, Debug, Default)]
pub struct IssuerStatus {
    /// The NAME of `[acme.NAME]`.
    pub name: String,
    /// Trouble that stands in the way of the account as a whole.
    pub trouble: Option<String>,
    /// Status of the certificates, in the order of the configuration.
    pub certificates: Vec<CertificateStatus>,
    /// Counts since the start.
    pub counts: Counts,
}

/// The status of one certificate.
#[derive(Clone, Debug)]
pub struct CertificateStatus {
    /// Names that the certificate is for.
    pub names: Vec<String>,
    /// Type of the certificate's key.
    pub key_type: KeyType,
    /// File that the certificate is kept in.
    pub file: PathBuf,
    /// State of the certificate's order.
    pub state: State,
    /// End of the certificate that is kept, in seconds since 1970.
    pub not_after: Option<i64>,
    /// Time of the next order, in seconds since 1970.
    pub next_attempt: Option<i64>,
    /// Number of failures in a row, until now.
    pub failures: u32,
    /// Reason of the last failure.
    pub problem: Option<String>,
}

/// The state of a certificate's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The certificate is there, and its time has not come.
    Good,
    /// An order is in progress.
    Ordering,
    /// An order is due, and made as soon as that is allowed.
    Due,
    /// Another process has the lock of the folder, and sees to it.
    Elsewhere,
}

impl State {
    /// The name as it is shown.
    pub fn name(self) -> &'static str {
        match self {
            State::Good => "good",
            State::Ordering => "ordering",
            State::Due => "due",
            State::Elsewhere => "elsewhere",
        }
    }
}

/// Counts of orders since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Orders that brought a certificate.
    pub succeeded: u64,
    /// Orders that came to nothing.
    pub failed: u64,
    /// Failed orders that met the authority's rate limit.
    pub rate_limited: u64,
}

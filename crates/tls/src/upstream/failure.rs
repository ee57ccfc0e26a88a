//! Failures of TLS with servers: one word for metrics and clients, one sentence for the log, and a remedy.

use propylon_crypto::JobError;
use rustls::{AlertDescription, CertificateError, Error};

use crate::certificates::wording;
use crate::provider::captured::Fault;
use crate::records::failure::Failure;

/// Failure that ends a session with a server. An alert, where one is due, has been appended to `out`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamFailure {
    /// One of [`UpstreamFailure::REASONS`].
    pub reason: &'static str,
    /// Sentence for the log, without secrets.
    pub detail: String,
}

impl UpstreamFailure {
    /// Reason where the client certificate's key has not signed: no fault of the server's.
    pub const UNSIGNED: &'static str = "client-certificate-unsigned";

    /// Every `reason`, for metrics that want their label sets made at start.
    pub const REASONS: &'static [&'static str] = &[
        "certificate-bad",
        "certificate-expired",
        "certificate-name-mismatch",
        "certificate-not-yet-valid",
        "certificate-untrusted",
        Self::UNSIGNED,
        "tls-alert",
        "tls-failure",
        "tls-handshake-failed",
        "tls-not-spoken",
    ];

    pub(crate) fn new(reason: &'static str, detail: impl Into<String>) -> UpstreamFailure {
        debug_assert!(Self::REASONS.contains(&reason));
        UpstreamFailure { reason, detail: detail.into() }
    }

    /// The server closed the connection before the handshake was over.
    pub fn closed() -> UpstreamFailure {
        UpstreamFailure::new("tls-handshake-failed", "the server has closed the connection in the handshake")
    }

    /// Failure of a handshake for want of a signature.
    pub(crate) fn of_fault(fault: Fault) -> Option<UpstreamFailure> {
        match fault {
            Fault::Busy => Some(UpstreamFailure::new(Self::UNSIGNED, "as many handshakes wait for signatures as may")),
            Fault::Job(JobError::BadShare) => None,
            Fault::Job(error) => Some(UpstreamFailure::new(Self::UNSIGNED, error.to_string())),
        }
    }

    /// The handshake's time was over while it waited for a signature.
    pub fn unsigned_in_time() -> UpstreamFailure {
        UpstreamFailure::new(Self::UNSIGNED, JobError::TimedOut.to_string())
    }

    /// Whether the failure is ours, not the server's.
    pub fn is_own(&self) -> bool {
        self.reason == Self::UNSIGNED
    }

    /// Remedy for operators.
    pub fn advice(&self) -> &'static str {
        match self.reason {
            "certificate-untrusted" => "name the authority that signed its certificate in the backend's tls.ca",
            "certificate-name-mismatch" => "set the backend's tls.server_name to a name that its certificate is for",
            "certificate-expired" => "renew its certificate, or set this machine's clock",
            "certificate-not-yet-valid" => "set this machine's clock, or the one that issued its certificate",
            "certificate-bad" => "issue its certificate again as X.509 version 3, for server authentication",
            "tls-not-spoken" => "use its TLS port, or remove `tls` from the backend",
            Self::UNSIGNED => "see what became of the key process (keys.isolate)",
            "tls-alert" => "its own log says what it does not like; it may want a client certificate (tls.certificate)",
            _ => "see what versions and suites it speaks: openssl s_client -connect shows them",
        }
    }

    /// Whether the server is to be sent an alert: it is not where it has sent one.
    pub(crate) fn owes_alert(&self) -> bool {
        self.reason != "tls-alert"
    }
}

impl std::fmt::Display for UpstreamFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.reason, self.detail)
    }
}

impl std::error::Error for UpstreamFailure {}

/// Failure of a handshake.
impl From<Error> for UpstreamFailure {
    fn from(error: Error) -> UpstreamFailure {
        UpstreamFailure::new(reason(&error), wording::of(&error))
    }
}

/// Failure of an established session.
impl From<Failure> for UpstreamFailure {
    fn from(failure: Failure) -> UpstreamFailure {
        let reason = if failure.reason == "peer-alert" { "tls-alert" } else { "tls-failure" };
        UpstreamFailure::new(reason, failure.detail)
    }
}

fn reason(error: &Error) -> &'static str {
    match error {
        Error::AlertReceived(AlertDescription::CloseNotify) => "tls-handshake-failed",
        Error::AlertReceived(_) => "tls-alert",
        Error::InvalidCertificate(why) => certificate(why),
        _ => "tls-handshake-failed",
    }
}

fn certificate(why: &CertificateError) -> &'static str {
    match why {
        CertificateError::UnknownIssuer => "certificate-untrusted",
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "certificate-expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => "certificate-not-yet-valid",
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "certificate-name-mismatch"
        }
        _ => "certificate-bad",
    }
}

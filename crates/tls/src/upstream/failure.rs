//! Failures of TLS with servers: a reason for metrics and clients, a sentence for the log, and a remedy.

use propylon_crypto::JobError;
use rustls::{AlertDescription, CertificateError, Error};

use crate::certificates::wording;
use crate::provider::captured::Fault;
use crate::reasons::reasons;
use crate::records::failure::{Failure, FailureReason};
use UpstreamFailureReason as Reason;

reasons! {
    /// Reason why a handshake with a server, or the session that followed it, ended.
    UpstreamFailureReason {
        CertificateBad = "certificate-bad";
        CertificateExpired = "certificate-expired";
        CertificateNameMismatch = "certificate-name-mismatch";
        CertificateNotYetValid = "certificate-not-yet-valid";
        CertificateUntrusted = "certificate-untrusted";
        /// The key of the client certificate has not signed, which is no fault of the server's.
        ClientCertificateUnsigned = "client-certificate-unsigned";
        /// The server has ended the session by an alert.
        Alert = "tls-alert";
        /// The session failed after its handshake, or the engine broke its own rules.
        Failure = "tls-failure";
        HandshakeFailed = "tls-handshake-failed";
        NotSpoken = "tls-not-spoken";
    }
}

/// Failure that ends a session with a server. An alert, where one is due, has been appended to `out`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamFailure {
    pub reason: UpstreamFailureReason,
    /// Sentence for the log, without secrets.
    pub detail: String,
}

impl UpstreamFailure {
    pub fn new(reason: UpstreamFailureReason, detail: impl Into<String>) -> UpstreamFailure {
        UpstreamFailure { reason, detail: detail.into() }
    }

    /// The server closed the connection before the handshake was over.
    pub fn closed() -> UpstreamFailure {
        UpstreamFailure::new(Reason::HandshakeFailed, "the server has closed the connection in the handshake")
    }

    /// Failure of a handshake for want of a signature.
    pub(crate) fn of_fault(fault: Fault) -> Option<UpstreamFailure> {
        match fault {
            Fault::Busy => Some(UpstreamFailure::unsigned("as many handshakes wait for signatures as may")),
            Fault::Job(JobError::BadShare) => None,
            Fault::Job(error) => Some(UpstreamFailure::unsigned(error.to_string())),
        }
    }

    /// The handshake's time was over while it waited for a signature.
    pub fn unsigned_in_time() -> UpstreamFailure {
        UpstreamFailure::unsigned(JobError::TimedOut.to_string())
    }

    fn unsigned(detail: impl Into<String>) -> UpstreamFailure {
        UpstreamFailure::new(Reason::ClientCertificateUnsigned, detail)
    }

    /// Whether the failure is ours, not the server's.
    pub fn is_own(&self) -> bool {
        self.reason == Reason::ClientCertificateUnsigned
    }

    /// Remedy for operators.
    pub fn advice(&self) -> &'static str {
        match self.reason {
            Reason::CertificateUntrusted => "name the authority that signed its certificate in the backend's tls.ca",
            Reason::CertificateNameMismatch => {
                "set the backend's tls.server_name to a name that its certificate is for"
            }
            Reason::CertificateExpired => "renew its certificate, or set this machine's clock",
            Reason::CertificateNotYetValid => "set this machine's clock, or the one that issued its certificate",
            Reason::CertificateBad => "issue its certificate again as X.509 version 3, for server authentication",
            Reason::NotSpoken => "use its TLS port, or remove `tls` from the backend",
            Reason::ClientCertificateUnsigned => "see what became of the key process (keys.isolate)",
            Reason::Alert => {
                "its own log says what it does not like; it may want a client certificate (tls.certificate)"
            }
            Reason::HandshakeFailed | Reason::Failure => {
                "see what versions and suites it speaks: openssl s_client -connect shows them"
            }
        }
    }

    /// Whether the server is to be sent an alert: it is not where it has sent one.
    pub(crate) fn owes_alert(&self) -> bool {
        self.reason != Reason::Alert
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
        let reason = if failure.reason == FailureReason::PeerAlert { Reason::Alert } else { Reason::Failure };
        UpstreamFailure::new(reason, failure.detail)
    }
}

fn reason(error: &Error) -> UpstreamFailureReason {
    match error {
        Error::AlertReceived(AlertDescription::CloseNotify) => Reason::HandshakeFailed,
        Error::AlertReceived(_) => Reason::Alert,
        Error::InvalidCertificate(why) => certificate(why),
        _ => Reason::HandshakeFailed,
    }
}

fn certificate(why: &CertificateError) -> UpstreamFailureReason {
    match why {
        CertificateError::UnknownIssuer => Reason::CertificateUntrusted,
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => Reason::CertificateExpired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Reason::CertificateNotYetValid,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            Reason::CertificateNameMismatch
        }
        _ => Reason::CertificateBad,
    }
}

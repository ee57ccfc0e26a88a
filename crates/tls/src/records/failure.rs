//! Failures of sessions: one word for the metrics, one sentence for the log.

/// Failure that ends a session. An alert for the peer, where one is due, has been appended to `out`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// One of [`Failure::REASONS`].
    pub reason: &'static str,
    /// Sentence for the log, without secrets.
    pub detail: String,
}

impl Failure {
    /// Every `reason`, for metrics that want their label sets made at start.
    pub const REASONS: &'static [&'static str] = &[
        "bad-record",
        "busy",
        "certificate-unknown",
        "client-certificate-bad",
        "client-certificate-crl-expired",
        "client-certificate-expired",
        "client-certificate-missing",
        "client-certificate-not-yet-valid",
        "client-certificate-purpose",
        "client-certificate-revocation-unknown",
        "client-certificate-revoked",
        "client-certificate-too-large",
        "client-certificate-unknown-ca",
        "decrypt-error",
        "flood",
        "internal",
        "keys-exhausted",
        "no-application-protocol",
        "no-certificate",
        "no-shared-cipher",
        "no-shared-group",
        "no-shared-signature",
        "not-tls",
        "over",
        "peer-alert",
        "protocol-violation",
        "record-overflow",
        "signer-refused",
        "signer-timeout",
        "signer-unavailable",
        "unexpected-message",
        "version",
    ];

    pub(crate) fn new(reason: &'static str, detail: impl Into<String>) -> Failure {
        debug_assert!(Self::REASONS.contains(&reason));
        Failure { reason, detail: detail.into() }
    }

    /// Whether the peer is to be sent an alert: it is not where it has ended the session by an alert itself.
    pub(crate) fn owes_alert(&self) -> bool {
        !matches!(self.reason, "peer-alert" | "certificate-unknown")
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.reason, self.detail)
    }
}

impl std::error::Error for Failure {}

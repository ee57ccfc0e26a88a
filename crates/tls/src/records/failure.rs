//! Failures of sessions with clients: a reason for the metrics, a sentence for the log.

use crate::reasons::reasons;

reasons! {
    /// Reason why a handshake with a client, or the session that followed it, ended.
    FailureReason {
        BadRecord = "bad-record";
        /// As many handshakes wait for the signer as may.
        Busy = "busy";
        /// The client has said by an alert that it does not accept our certificate.
        CertificateUnknown = "certificate-unknown";
        ClientCertificateBad = "client-certificate-bad";
        ClientCertificateCrlExpired = "client-certificate-crl-expired";
        ClientCertificateExpired = "client-certificate-expired";
        ClientCertificateMissing = "client-certificate-missing";
        ClientCertificateNotYetValid = "client-certificate-not-yet-valid";
        ClientCertificatePurpose = "client-certificate-purpose";
        ClientCertificateRevocationUnknown = "client-certificate-revocation-unknown";
        ClientCertificateRevoked = "client-certificate-revoked";
        ClientCertificateTooLarge = "client-certificate-too-large";
        ClientCertificateUnknownCa = "client-certificate-unknown-ca";
        DecryptError = "decrypt-error";
        Flood = "flood";
        /// An error of the engine or of the TLS library, not of the client.
        Internal = "internal";
        /// The session's keys have protected as much as they may (RFC 8446 §5.5).
        KeysExhausted = "keys-exhausted";
        NoApplicationProtocol = "no-application-protocol";
        NoCertificate = "no-certificate";
        NoSharedCipher = "no-shared-cipher";
        NoSharedGroup = "no-shared-group";
        NoSharedSignature = "no-shared-signature";
        NotTls = "not-tls";
        /// The session had ended before, or its handshake was not in the state that the call needs.
        Over = "over";
        PeerAlert = "peer-alert";
        ProtocolViolation = "protocol-violation";
        RecordOverflow = "record-overflow";
        SignerRefused = "signer-refused";
        SignerTimeout = "signer-timeout";
        SignerUnavailable = "signer-unavailable";
        UnexpectedMessage = "unexpected-message";
        /// The client speaks no version that the profile has.
        Version = "version";
    }
}

/// Failure that ends a session. An alert for the peer, where one is due, has been appended to `out`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub reason: FailureReason,
    /// Sentence for the log, without secrets.
    pub detail: String,
}

impl Failure {
    pub fn new(reason: FailureReason, detail: impl Into<String>) -> Failure {
        Failure { reason, detail: detail.into() }
    }

    /// Whether the peer is to be sent an alert: it is not where it has ended the session by an alert itself.
    pub(crate) fn owes_alert(&self) -> bool {
        !matches!(self.reason, FailureReason::PeerAlert | FailureReason::CertificateUnknown)
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.reason, self.detail)
    }
}

impl std::error::Error for Failure {}

//! Why a session ended: one word for the metrics, one sentence for the log.

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

use crate::certificates::client_auth::TooLarge;
use crate::certificates::wording;

/// The session is over; an alert for the peer, where one is due, has been appended to `out`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// One of [`Failure::REASONS`].
    pub reason: &'static str,
    /// For the log; holds nothing secret.
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

    /// The peer did not end it itself, and so is owed an alert.
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

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(reason(&error), wording::of(&error))
    }
}

fn reason(error: &Error) -> &'static str {
    match error {
        Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => "unexpected-message",
        Error::InvalidMessage(why) => match why {
            InvalidMessage::MessageTooLarge | InvalidMessage::HandshakePayloadTooLarge => "record-overflow",
            InvalidMessage::UnexpectedMessage(_) => "unexpected-message",
            _ => "bad-record",
        },
        Error::PeerSentOversizedRecord => "record-overflow",
        Error::DecryptError => "decrypt-error",
        Error::PeerIncompatible(why) => match why {
            PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::ServerDoesNotSupportTls12Or13 => "version",
            PeerIncompatible::NoKxGroupsInCommon
            | PeerIncompatible::KeyShareExtensionRequired
            | PeerIncompatible::NamedGroupsExtensionRequired => "no-shared-group",
            PeerIncompatible::NoSignatureSchemesInCommon | PeerIncompatible::SignatureAlgorithmsExtensionRequired => {
                "no-shared-signature"
            }
            PeerIncompatible::NoCipherSuitesInCommon => "no-shared-cipher",
            _ => "protocol-violation",
        },
        Error::PeerMisbehaved(why) => match why {
            rustls::PeerMisbehaved::TooManyEmptyFragments
            | rustls::PeerMisbehaved::TooManyKeyUpdateRequests
            | rustls::PeerMisbehaved::TooManyRenegotiationRequests
            | rustls::PeerMisbehaved::TooManyWarningAlertsReceived => "flood",
            _ => "protocol-violation",
        },
        Error::AlertReceived(
            AlertDescription::CertificateUnknown
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::UnsupportedCertificate,
        ) => "certificate-unknown",
        Error::AlertReceived(_) => "peer-alert",
        Error::NoCertificatesPresented => "client-certificate-missing",
        Error::InvalidCertificate(why) => client_certificate(why),
        Error::InvalidCertRevocationList(_) => "client-certificate-revocation-unknown",
        Error::NoApplicationProtocol => "no-application-protocol",
        _ => "internal",
    }
}

/// A server is shown no certificates but clients'.
fn client_certificate(why: &CertificateError) -> &'static str {
    match why {
        CertificateError::UnknownIssuer => "client-certificate-unknown-ca",
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "client-certificate-expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "client-certificate-not-yet-valid"
        }
        CertificateError::Revoked => "client-certificate-revoked",
        CertificateError::UnknownRevocationStatus => "client-certificate-revocation-unknown",
        CertificateError::ExpiredRevocationList | CertificateError::ExpiredRevocationListContext { .. } => {
            "client-certificate-crl-expired"
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "client-certificate-purpose"
        }
        CertificateError::Other(other) if other.0.is::<TooLarge>() => "client-certificate-too-large",
        _ => "client-certificate-bad",
    }
}

//! Failures of handshakes, from errors of the library and of jobs, and the alerts for them.

use propylon_crypto::JobError;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

use crate::certificates::client_auth::TooLarge;
use crate::certificates::wording;
use crate::provider::captured::Fault;
use crate::records::failure::Failure;
use crate::records::wire::Alert;

/// Failure for a job that failed; none where the library's own error is right.
pub(super) fn failure_of(fault: Fault) -> Option<Failure> {
    let (reason, detail) = match fault {
        Fault::Busy => ("busy", "as many handshakes wait for the signer as may".into()),
        Fault::Job(JobError::BadShare) => return None,
        Fault::Job(error @ JobError::Refused) => ("internal", error.to_string()),
        Fault::Job(error @ JobError::TimedOut) => ("signer-timeout", error.to_string()),
        Fault::Job(error @ JobError::Unavailable) => ("signer-unavailable", error.to_string()),
        Fault::Job(error @ JobError::NotSigned) => ("signer-refused", error.to_string()),
        Fault::Job(error @ JobError::Cancelled) => ("over", error.to_string()),
    };
    Some(Failure::new(reason, detail))
}

/// Alert for failures for which the library sends none.
pub(super) fn alert_of(failure: &Failure) -> Alert {
    match failure.reason {
        "decrypt-error" => Alert::BadRecordMac,
        "flood" | "protocol-violation" | "unexpected-message" => Alert::UnexpectedMessage,
        "internal" => Alert::InternalError,
        _ => Alert::DecodeError,
    }
}

/// Replaces certificate_required, which the library sends in TLS 1.2 as well, by handshake_failure (RFC 5246 §7.4.6).
/// In TLS 1.3 the alert is encrypted by then and has another form.
pub(super) fn use_tls12_alert(failure: &Failure, out: &mut [u8]) {
    const CERTIFICATE_REQUIRED: [u8; 7] = [21, 3, 3, 0, 2, 2, 116];
    const HANDSHAKE_FAILURE: u8 = 40;
    if failure.reason == "client-certificate-missing"
        && out.ends_with(&CERTIFICATE_REQUIRED)
        && let Some(description) = out.last_mut()
    {
        *description = HANDSHAKE_FAILURE;
    }
}

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

/// Reason for a bad certificate, which towards a server is a client's.
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

//! Failures of handshakes, from errors of the library and of jobs, and the alerts for them.

use propylon_crypto::JobError;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

use crate::certificates::client_auth::TooLarge;
use crate::certificates::wording;
use crate::provider::captured::Fault;
use crate::records::failure::{Failure, FailureReason as Reason};
use crate::records::wire::Alert;

/// Failure for a job that failed; none where the library's own error is right.
pub(super) fn failure_of(fault: Fault) -> Option<Failure> {
    let (reason, detail) = match fault {
        Fault::Busy => (Reason::Busy, "as many handshakes wait for the signer as may".into()),
        Fault::Job(JobError::BadShare) => return None,
        Fault::Job(error @ JobError::Refused) => (Reason::Internal, error.to_string()),
        Fault::Job(error @ JobError::TimedOut) => (Reason::SignerTimeout, error.to_string()),
        Fault::Job(error @ JobError::Unavailable) => (Reason::SignerUnavailable, error.to_string()),
        Fault::Job(error @ JobError::NotSigned) => (Reason::SignerRefused, error.to_string()),
        Fault::Job(error @ JobError::Cancelled) => (Reason::Over, error.to_string()),
    };
    Some(Failure::new(reason, detail))
}

/// Alert for failures for which the library sends none.
pub(super) fn alert_of(failure: &Failure) -> Alert {
    match failure.reason {
        Reason::DecryptError => Alert::BadRecordMac,
        Reason::Flood | Reason::ProtocolViolation | Reason::UnexpectedMessage => Alert::UnexpectedMessage,
        Reason::Internal => Alert::InternalError,
        _ => Alert::DecodeError,
    }
}

/// Replaces certificate_required, which the library sends in TLS 1.2 as well, by handshake_failure (RFC 5246 §7.4.6).
/// In TLS 1.3 the alert is encrypted by then and has another form.
pub(super) fn use_tls12_alert(failure: &Failure, out: &mut [u8]) {
    const CERTIFICATE_REQUIRED: [u8; 7] = [21, 3, 3, 0, 2, 2, 116];
    const HANDSHAKE_FAILURE: u8 = 40;
    if failure.reason == Reason::ClientCertificateMissing
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

fn reason(error: &Error) -> Reason {
    match error {
        Error::InappropriateMessage { .. } | Error::InappropriateHandshakeMessage { .. } => Reason::UnexpectedMessage,
        Error::InvalidMessage(why) => match why {
            InvalidMessage::MessageTooLarge | InvalidMessage::HandshakePayloadTooLarge => Reason::RecordOverflow,
            InvalidMessage::UnexpectedMessage(_) => Reason::UnexpectedMessage,
            _ => Reason::BadRecord,
        },
        Error::PeerSentOversizedRecord => Reason::RecordOverflow,
        Error::DecryptError => Reason::DecryptError,
        Error::PeerIncompatible(why) => match why {
            PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::ServerDoesNotSupportTls12Or13 => Reason::Version,
            PeerIncompatible::NoKxGroupsInCommon
            | PeerIncompatible::KeyShareExtensionRequired
            | PeerIncompatible::NamedGroupsExtensionRequired => Reason::NoSharedGroup,
            PeerIncompatible::NoSignatureSchemesInCommon | PeerIncompatible::SignatureAlgorithmsExtensionRequired => {
                Reason::NoSharedSignature
            }
            PeerIncompatible::NoCipherSuitesInCommon => Reason::NoSharedCipher,
            _ => Reason::ProtocolViolation,
        },
        Error::PeerMisbehaved(why) => match why {
            rustls::PeerMisbehaved::TooManyEmptyFragments
            | rustls::PeerMisbehaved::TooManyKeyUpdateRequests
            | rustls::PeerMisbehaved::TooManyRenegotiationRequests
            | rustls::PeerMisbehaved::TooManyWarningAlertsReceived => Reason::Flood,
            _ => Reason::ProtocolViolation,
        },
        Error::AlertReceived(
            AlertDescription::CertificateUnknown
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::UnsupportedCertificate,
        ) => Reason::CertificateUnknown,
        Error::AlertReceived(_) => Reason::PeerAlert,
        Error::NoCertificatesPresented => Reason::ClientCertificateMissing,
        Error::InvalidCertificate(why) => client_certificate(why),
        Error::InvalidCertRevocationList(_) => Reason::ClientCertificateRevocationUnknown,
        Error::NoApplicationProtocol => Reason::NoApplicationProtocol,
        _ => Reason::Internal,
    }
}

/// Reason for a bad certificate, which towards a server is a client's.
fn client_certificate(why: &CertificateError) -> Reason {
    match why {
        CertificateError::UnknownIssuer => Reason::ClientCertificateUnknownCa,
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => Reason::ClientCertificateExpired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            Reason::ClientCertificateNotYetValid
        }
        CertificateError::Revoked => Reason::ClientCertificateRevoked,
        CertificateError::UnknownRevocationStatus => Reason::ClientCertificateRevocationUnknown,
        CertificateError::ExpiredRevocationList | CertificateError::ExpiredRevocationListContext { .. } => {
            Reason::ClientCertificateCrlExpired
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            Reason::ClientCertificatePurpose
        }
        CertificateError::Other(other) if other.0.is::<TooLarge>() => Reason::ClientCertificateTooLarge,
        _ => Reason::ClientCertificateBad,
    }
}

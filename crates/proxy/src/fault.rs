//! Failed attempts at servers: their faults, and whether they may be repeated.

use propylon_http::fault::Fault;
use propylon_http::h1;
use propylon_net::client_stream::ClientStream;
use propylon_tls::UpstreamFailureReason;

/// Failure of one attempt. The fault's status is the client's if this was the last attempt.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    pub fault: Fault,
    /// The request may be tried again as far as this failure goes.
    pub repeatable: Repeatable,
}

impl Attempt {
    pub const fn new(fault: Fault, repeatable: Repeatable) -> Attempt {
        Attempt { fault, repeatable }
    }

    /// A response's head that is refused.
    pub fn of_bad_head(reject: &h1::Reject) -> Attempt {
        log::debug!("a server's response was refused: {reject}");
        let fault = match reject.fault {
            // Often as long as what was asked: a target, a cookie.
            Fault::HeadTooLong | Fault::TooManyFields => Fault::ResponseHeadTooLarge,
            Fault::BadSwitch | Fault::SwitchedWithoutBeingAsked => Fault::BadSwitch,
            _ => Fault::BadResponse,
        };
        Attempt::new(fault, Repeatable::No)
    }

    /// Takes into account that the client still owed a part of the request, or the server did not take it: a server
    /// need not wait for that part, nor read one that it does not want, and is not blamed if it closes unanswered.
    pub fn with_body_owed(self, owed: bool) -> Attempt {
        match self.fault {
            Fault::ClosedBeforeResponse if owed => Attempt { fault: Fault::ClosedDuringRequest, ..self },
            _ => self,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeatable {
    /// Nothing was sent.
    Unsent,
    /// Sent, and the server closed before any byte of a response.
    Unanswered,
    No,
}

/// Why nothing can be written to a client any more.
pub fn of_write(stream: &ClientStream) -> Fault {
    if stream.is_worn_out() { Fault::KeysExhausted } else { Fault::ClientReset }
}

/// Fault of a request whose connection to a server failed in TLS.
pub const fn of_server_tls(reason: UpstreamFailureReason) -> Fault {
    match reason {
        UpstreamFailureReason::CertificateBad => Fault::CertificateBad,
        UpstreamFailureReason::CertificateExpired => Fault::CertificateExpired,
        UpstreamFailureReason::CertificateNameMismatch => Fault::CertificateNameMismatch,
        UpstreamFailureReason::CertificateNotYetValid => Fault::CertificateNotYetValid,
        UpstreamFailureReason::CertificateUntrusted => Fault::CertificateUntrusted,
        UpstreamFailureReason::ClientCertificateUnsigned => Fault::ClientCertificateUnsigned,
        UpstreamFailureReason::Alert => Fault::ServerTlsAlert,
        UpstreamFailureReason::Failure => Fault::ServerTlsFailure,
        UpstreamFailureReason::HandshakeFailed => Fault::ServerTlsHandshakeFailed,
        UpstreamFailureReason::NotSpoken => Fault::TlsNotSpoken,
    }
}

#[cfg(test)]
mod tests {
    use propylon_http::fault::Family;

    use super::*;

    #[test]
    fn reasons_of_tls_with_servers_are_faults_of_the_same_labels() {
        let labels = UpstreamFailureReason::ALL.iter().map(|reason| (reason.label(), Family::ServerTls));
        let of_faults =
            UpstreamFailureReason::ALL.iter().map(|reason| of_server_tls(*reason)).map(|f| (f.label(), f.family()));
        assert_eq!(of_faults.collect::<Vec<_>>(), labels.collect::<Vec<_>>());
        let faults = Fault::ALL.iter().filter(|fault| fault.family() == Family::ServerTls);
        assert_eq!(faults.count(), UpstreamFailureReason::ALL.len());
    }
}

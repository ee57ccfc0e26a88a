//! Labels of metrics that are no faults of requests (those are in `propylon_http::fault`), and faults that end relays.

use propylon_http::fault::Fault;
use propylon_http::h2::Flood;

/// Why a server was picked that is not an ordinary one which is up.
pub const UNUSUAL_PICKS: &[&str] = &["backup", "panic", "none-up"];

/// Outcomes of the copies of requests that a route mirrors.
pub const MIRROR_OUTCOMES: &[&str] = &["answered", "failed", "too-many", "not-copied"];

/// Outcomes of a `sticky` cookie.
pub const STICKY_OUTCOMES: &[&str] = &["hit", "none", "unusable", "gone", "forged"];

/// How a relayed connection ends that has not been closed by both sides in order.
pub const RELAY_FAULTS: &[Fault] = &[
    Fault::ClientClosed,
    Fault::ClientReset,
    Fault::ServerReset,
    Fault::Idle,
    Fault::ClientTlsFailure,
    Fault::KeysExhausted,
    Fault::CutOff,
    Fault::HelloTimeout,
    Fault::NotTls,
    Fault::BadHello,
    Fault::NoRoute,
    Fault::ClientCertificateRequired,
    Fault::NoServer,
    Fault::ConnectRefused,
    Fault::ConnectFailed,
    Fault::ConnectTimeout,
    Fault::QueueFull,
    Fault::QueueTimeout,
    Fault::OutOfFiles,
    Fault::OutOfPorts,
];

/// How a handshake with a client ends that neither succeeds nor fails for one of `propylon_tls::FailureReason`.
pub const UNFINISHED_HANDSHAKES: [&str; 2] = ["closed", "timeout"];

/// Everything that a probe can come to; the labels of its counters.
pub const PROBE_RESULTS: &[&str] = &[
    "success",
    "connect-refused",
    "connect-failed",
    "connect-timeout",
    "tls-failed",
    "timeout",
    "closed",
    "bad-response",
    "unexpected-status",
    "body-mismatch",
    "not-serving",
    "not-made",
];

pub const PROBE_SUCCEEDED: &str = "success";

/// Result of a probe that this machine could not make: it says nothing about the server.
pub const PROBE_NOT_MADE: &str = "not-made";

/// Floods that end a connection: `reason` of `propylon_http2_floods_total`.
pub const HTTP2_FLOODS: &[&str] = &Flood::NAMES;

/// Errors of clients for which a connection is ended: `reason` of `propylon_http2_errors_total`.
pub const HTTP2_ERRORS: &[&str] = &[
    "protocol-error",
    "flow-control-error",
    "frame-size-error",
    "compression-error",
    "stream-closed",
    "settings-timeout",
];

/// Why an upgrade came to nothing: the metric's label.
pub const UPGRADE_FAILURES: &[&str] =
    &["configuration", "start", "ended", "timeout", "protocol", "refused", "forbidden"];

#[cfg(test)]
mod tests {
    use propylon_tls::FailureReason;

    use super::*;

    #[test]
    fn no_list_has_a_reason_twice() {
        for list in [
            UNUSUAL_PICKS,
            MIRROR_OUTCOMES,
            STICKY_OUTCOMES,
            PROBE_RESULTS,
            HTTP2_FLOODS,
            HTTP2_ERRORS,
            UPGRADE_FAILURES,
        ] {
            for (place, reason) in list.iter().enumerate() {
                assert!(!list[..place].contains(reason), "{reason}");
            }
        }
        for (place, fault) in RELAY_FAULTS.iter().enumerate() {
            assert!(!RELAY_FAULTS[..place].contains(fault), "{fault}");
        }
        let failed = FailureReason::ALL.iter().map(|reason| reason.label());
        let labels: Vec<&str> = failed.chain(UNFINISHED_HANDSHAKES).collect();
        for (place, label) in labels.iter().enumerate() {
            assert!(!labels[..place].contains(label), "{label}");
        }
    }
}

//! Reasons for refusals, faults and ends: the words of the access log and the labels of the metrics, in one place.

use propylon_net::client_stream::KEYS_EXHAUSTED;

/// Why a request was refused: the words of `h1::Reject`, and our own for what never became a head.
pub const REJECTS: &[&str] = &[
    "backslash-in-path",
    "bad-chunk-end",
    "bad-chunk-extension",
    "bad-chunk-size",
    "bad-content-length",
    "bad-escape",
    "bad-field-name",
    "bad-host",
    "bad-max-forwards",
    "bad-method",
    "bad-request-line",
    "bad-scheme",
    "bad-target",
    "bad-target-byte",
    "bad-te",
    "bad-transfer-encoding",
    "bad-version",
    "bare-cr",
    "bare-lf",
    "chunk-extensions-too-long",
    "chunk-size-too-large",
    "connect-not-supported",
    "connection-names-framing",
    "connection-specific-field",
    "content-length-in-tunnel",
    "content-length-with-transfer-encoding",
    "control-byte",
    "empty-field-name",
    "empty-host",
    "empty-lines-before-request",
    "escaped-nul",
    "escaped-slash",
    "field-without-colon",
    "folded-field",
    "head-cut-short",
    "head-too-long",
    "hidden-segment",
    "host-differs-from-target",
    "method-too-long",
    "no-host",
    "no-version",
    "path-above-root",
    "request-head-timeout",
    "request-line-too-long",
    "several-content-lengths",
    "several-hosts",
    "several-transfer-encodings",
    "space-around-value",
    "space-before-first-field",
    "space-in-field-name",
    "target-without-host",
    "tls-on-plaintext-port",
    "too-many-connection-options",
    "too-many-fields",
    "too-many-trailers",
    "trace-not-allowed",
    "trailers-too-long",
    "transfer-encoding-in-http10",
    "unknown-expectation",
    "unknown-protocol",
    "unknown-transfer-coding",
    "version-not-supported",
];

/// Faults between the engine and a server: the `reason` of 502, 503 and 504.
pub const SERVER_FAULTS: &[&str] = &[
    "connect-refused",
    "connect-failed",
    "connect-timeout",
    "tls-timeout",
    "closed-before-response",
    "closed-during-request",
    "first-byte-timeout",
    "body-timeout",
    "idle-both-ways",
    "body-cut-short",
    "bad-response",
    "bad-switch",
    "excess-data",
    "response-head-too-large",
    "write-failed",
    "stream-refused",
    "stream-reset",
    "request-reset",
    "goaway",
    "no-http2",
    "no-extended-connect",
    "upgrade-ignored",
    "bad-request-for-http2",
    "no-server",
    "no-healthy-server",
    "out-of-files",
    "out-of-ports",
];

/// Server faults that lie in the request, or that a client can bring about with healthy servers: clients must not be
/// able to have a server ejected.
pub const REQUEST_FAULTS: &[&str] = &[
    "closed-during-request",
    "idle-both-ways",
    "bad-switch",
    "response-head-too-large",
    "request-reset",
    "goaway",
    "no-extended-connect",
    "upgrade-ignored",
    "bad-request-for-http2",
];

/// Why a request left a backend's line without a connection.
pub const QUEUE_REFUSALS: &[&str] = &["queue-full", "queue-timeout", "client-gone", "circuit-open"];

/// Why a server was picked that is not an ordinary one which is up.
pub const UNUSUAL_PICKS: &[&str] = &["backup", "panic", "none-up"];

/// Outcomes of a `sticky` cookie.
pub const STICKY_OUTCOMES: &[&str] = &["hit", "none", "unusable", "gone", "forged"];

/// Faults between the client and the engine once a request has begun.
pub const CLIENT_FAULTS: &[&str] = &[
    "client-closed",
    "client-reset",
    "client-body-timeout",
    "client-read-timeout",
    "bad-body",
    "tls-failure",
    "tunnel-idle",
    KEYS_EXHAUSTED,
];

/// How a relayed connection ended: both sides in order, or one of these.
pub const RELAY_ENDS: &[&str] = &[
    "closed",
    "client-closed",
    "client-reset",
    "server-reset",
    "idle",
    "tls-failure",
    KEYS_EXHAUSTED,
    "hello-timeout",
    "not-tls",
    "bad-hello",
    "no-route",
    "client-certificate-required",
    "no-server",
    "connect-refused",
    "connect-failed",
    "connect-timeout",
    "queue-full",
    "queue-timeout",
    "out-of-files",
    "out-of-ports",
];

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

/// Floods that end a connection: `reason` of `propylon_http2_floods_total`. The first ones are in the order of `Kind`.
pub const HTTP2_FLOODS: &[&str] = &[
    "settings",
    "ping",
    "priority",
    "reset",
    "continuation",
    "empty-data",
    "window-update",
    "unknown-frame",
    "stream-error",
    "library",
    "streams",
];

/// Errors for which the library ends a connection: `reason` of `propylon_http2_errors_total`.
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
    use std::path::{Path, PathBuf};

    use super::*;

    /// Text before a reason, the list that it has to be in, and files whose reasons are others'.
    const WRITTEN: &[(&str, &[&str], &[&str])] = &[
        ("Reject::bad(", REJECTS, &["h1/response.rs"]),
        ("Reject::new(", REJECTS, &["h1/response.rs"]),
        ("Reject { status: ", REJECTS, &["h1/response.rs"]),
        ("Stop::Client(", CLIENT_FAULTS, &[]),
        ("Attempt { status: ", SERVER_FAULTS, &[]),
    ];

    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }

    #[test]
    fn every_reason_that_is_written_anywhere_is_in_its_list_and_none_is_other() {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut files = Vec::new();
        ["http", "net", "observe", "proxy", "control"]
            .iter()
            .for_each(|member| sources(&top.join(member).join("src"), &mut files));
        let (mut seen, mut unknown) = (0, Vec::new());
        let is_test = |file: &Path| file.components().any(|part| part.as_os_str() == "tests");
        for file in files.iter().filter(|file| !file.ends_with("telemetry/reasons.rs") && !is_test(file)) {
            let text = std::fs::read_to_string(file).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            for (marker, list, others) in WRITTEN {
                if others.iter().any(|other| file.ends_with(other)) {
                    continue;
                }
                for (at, _) in code.match_indices(marker) {
                    let rest = &code[at + marker.len()..];
                    let end = rest.find([';', '}', ')']).unwrap_or(rest.len());
                    let reason = rest[..end].split('"').nth(1).filter(|reason| !reason.is_empty());
                    let Some(reason) = reason else { continue };
                    seen += 1;
                    if !list.contains(&reason) {
                        unknown.push(format!("{}: {reason}", file.strip_prefix(top).unwrap().display()));
                    }
                }
            }
        }
        assert!(seen > 60, "reasons are found: {seen}");
        assert!(unknown.is_empty(), "metrics would call these \"other\": {unknown:#?}");
    }

    #[test]
    fn no_list_has_a_reason_twice() {
        for list in [REJECTS, SERVER_FAULTS, QUEUE_REFUSALS, UNUSUAL_PICKS, STICKY_OUTCOMES, CLIENT_FAULTS, RELAY_ENDS]
        {
            for (place, reason) in list.iter().enumerate() {
                assert!(!list[..place].contains(reason), "{reason}");
            }
        }
    }
}

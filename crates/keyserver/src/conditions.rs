//! The table of everything that can be wrong with a key server, by the metric that shows it. The metrics are looked
//! at once a second, and what they show is logged (`propylon_metrics::conditions`). A metric of a limit, a refusal
//! or a failure has its row here; `cargo xtask tidy` compares the two, and looks for each row in the manual.

use std::time::Duration;

use propylon_metrics::conditions::Grade::{Note, Problem, Warning};
use propylon_metrics::conditions::{Condition, Conditions, above, rises};

/// Interval at which the metrics are looked at.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Labels that say where something is, in the order of the log.
const PLACES: &[&str] = &["queue", "token"];

/// The rows. If several rows name the same metric, the first one that fits a series applies to it.
pub const TABLE: &[Condition] = &[
    rises(
        "keyserver-panic",
        "propylon_keyserver_panics_total",
        Problem,
        "a link was ended by a panic: a defect in Propylon",
        "please report it with the lines of the log around this one",
    ),
    rises(
        "keyserver-log-lost",
        "propylon_keyserver_log_lost_total",
        Warning,
        "lines of the log are lost: whoever reads standard error does not keep up, or has gone",
        "have the reader of standard error keep up",
    ),
    rises(
        "keyserver-lanes-wrong",
        "propylon_keyserver_bad_lanes_total",
        Problem,
        "an RSA operation of the vector unit had a wrong result, and was done again",
        "please report it; [rsa] batch = false does without the vector unit",
    ),
    rises(
        "keyserver-checks-wrong",
        "propylon_keyserver_checks_total",
        Problem,
        "a result of the vector unit was another than AWS-LC's: the kernel is out of use until a restart",
        "please report it; [ecdsa] batch = false and [rsa] batch = false do without the vector unit",
    )
    .only("outcome", &["wrong"]),
    above(
        "keyserver-swappable",
        "propylon_keyserver_swappable",
        0,
        Warning,
        "working memory of {value} threads could not be locked: it may get into swap",
        "lift the limit on locked memory (LimitMEMLOCK=infinity)",
    ),
    rises(
        "keyserver-accept-failed",
        "propylon_keyserver_accept_errors_total",
        Warning,
        "accepts fail: files or memory of the system have run out, or engines are gone before they are accepted",
        "raise the limit on open files (LimitNOFILE=, ulimit -n)",
    ),
    rises(
        "keyserver-links-refused",
        "propylon_keyserver_connections_refused_total",
        Problem,
        "links are closed: as many are open as server.connections_max allows",
        "raise server.connections_max, or lower `connections` of the engines' signers",
    ),
    rises(
        "keyserver-handshakes-failed",
        "propylon_keyserver_connections_ended_total",
        Note,
        "links end before their client has shown a good certificate",
        "port checks do so; if an engine does, check its certificate against server.ca",
    )
    .only("reason", &["handshake", "handshake-timeout", "handshake-displaced"]),
    rises(
        "keyserver-links-broken",
        "propylon_keyserver_connections_ended_total",
        Warning,
        "links of clients with a certificate are closed: they say what is no frame, or take no replies",
        "see which client it is, and what speaks there",
    )
    .only("reason", &["malformed", "slow", "tls"]),
    rises(
        "keyserver-key-faults",
        "propylon_keyserver_key_faults_total",
        Warning,
        "key files or certificates cannot be read; what was in service stays",
        "the log names each file with what to do; `propylon-keyserver check` tells all of it",
    )
    .logged_elsewhere(),
    rises(
        "keyserver-queue-late",
        "propylon_keyserver_refused_total",
        Problem,
        "operations are refused: they have waited for as long as `timeout` allows",
        "add cores or key servers, or use ECDSA keys, which cost a tenth",
    )
    .only("reason", &["expired"]),
    rises(
        "keyserver-queue-full",
        "propylon_keyserver_refused_total",
        Problem,
        "operations are refused: the queue is full",
        "add cores or key servers; a [[client]] with `rate` bounds who asks for most",
    ),
    rises(
        "keyserver-denied",
        "propylon_keyserver_denied_total",
        Warning,
        "a client asks for operations that its [[client]] does not allow, or more often",
        "see `operations` and `rate` of the [[client]] that is meant",
    ),
    rises(
        "keyserver-unknown-key",
        "propylon_keyserver_errors_total",
        Warning,
        "clients ask for keys that are not here, or that they may not use",
        "compare `propylon-keyserver keys` and [[client]] with the engines' certificates",
    )
    .only("code", &["0x02"]),
    rises(
        "keyserver-operations-failed",
        "propylon_keyserver_errors_total",
        Warning,
        "operations cannot be done: the input is none for the key, or its holder has failed",
        "look at the engines' versions, and at the log for what a hardware module says",
    )
    .only("code", &["0x01"]),
    rises(
        "keyserver-requests-bad",
        "propylon_keyserver_errors_total",
        Note,
        "requests are answered with an error: what they say is no request",
        "see which client it is, and what speaks there",
    )
    .only("code", &["0x03", "0x04", "0x06", "0x07", "0x09", "0x0a"]),
    above(
        "keyserver-token-stuck",
        "propylon_keyserver_token_stuck",
        0,
        Problem,
        "{value} threads wait for a hardware module that does not come back",
        "look at the module, and at what is between; a restart of the key server starts it anew",
    ),
    rises(
        "keyserver-token-failed",
        "propylon_keyserver_token_failures_total",
        Problem,
        "no session with a hardware module is to be had",
        "the log says why; check `module`, `token` and `pin_file` of its [[pkcs11]]",
    )
    .logged_elsewhere(),
    rises(
        "keyserver-token-operations",
        "propylon_keyserver_token_operations_total",
        Warning,
        "a hardware module does not do what it is asked for",
        "look at the module: whether it has the keys, and allows what they are used for",
    )
    .only("outcome", &["refused", "no-key", "failed", "late"]),
];

pub fn watch() -> Conditions {
    Conditions::new(TABLE, PLACES)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use propylon_metrics::Store;

    use super::*;
    use crate::telemetry::Telemetry;

    #[test]
    fn names_are_told_apart_and_every_row_has_its_metric() {
        assert_eq!(propylon_metrics::conditions::flaw(TABLE), None);
        let (_, store) = Telemetry::new(1, &["t".to_owned()]);
        for row in TABLE {
            let mut fits = 0;
            store.each_series(row.metric, |_, labels, _| {
                let of = |label| labels.iter().find(|(name, _)| name == label).map(|(_, value)| value.as_str());
                fits +=
                    u32::from(row.only.is_none_or(|(label, values)| of(label).is_some_and(|is| values.contains(&is))));
            });
            let wanted = row.only.map_or(1, |(_, values)| values.len() as u32);
            assert!(fits >= wanted, "{}: {fits} series of {}, and {wanted} are named", row.name, row.metric);
        }
    }

    #[test]
    fn what_begins_is_held_until_it_has_been_quiet() {
        let (telemetry, store) = Telemetry::new(1, &["hsm".to_owned()]);
        let column = Store::column(&store, 0);
        let mut conditions = watch();
        let mut at = |second| {
            conditions.look(&store, Duration::from_secs(second), SystemTime::UNIX_EPOCH);
            let told = conditions.to_json();
            let list = told["list"].as_array().expect("a list").clone();
            list.iter().map(|each| format!("{} {}", each["name"], each["place"])).collect::<Vec<String>>()
        };
        assert!(at(0).is_empty());
        column.increment(telemetry.queues[0].refused);
        column.set(telemetry.tokens[0].stuck, 2);
        let told = at(1);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].starts_with("\"keyserver-queue-full\" \"queue "), "{told:?}");
        assert_eq!(told[1], "\"keyserver-token-stuck\" \"token \\\"hsm\\\"\"");
        column.set(telemetry.tokens[0].stuck, 0);
        assert_eq!(at(2).len(), 1);
        assert!(at(60).is_empty());
    }
}

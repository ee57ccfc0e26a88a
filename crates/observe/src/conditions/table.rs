//! Everything that can be wrong with what is running, by the metric that shows it. A metric of a limit, a drop, a
//! refusal or a failure has its row here, or is in `NO_CONDITION` with the reason; `cargo xtask tidy` compares.

use propylon_metrics::conditions::Grade::{Note, Problem, Warning};
use propylon_metrics::conditions::{Condition, above, rises};

/// Label of the key process, as `signer::BESIDE_NAME` has it.
const BESIDE_NAME: &str = "keys.isolate";

/// In the order in which conditions of one grade are listed. Of several rows for a metric the first that fits a series
/// has it.
pub const TABLE: &[Condition] = &[
    // The process.
    rises(
        "panic",
        "propylon_panics_total",
        Problem,
        "a connection was ended by a panic: a defect in Propylon",
        "please report it with the lines of the log around this one",
    ),
    rises(
        "lanes-wrong",
        "propylon_crypto_bad_lanes_total",
        Problem,
        "a private-key operation of the vector unit had a wrong result, and was done again",
        "please report it; process.batch = \"off\" does without the vector unit",
    ),
    rises(
        "log-lost",
        "propylon_log_lost_total",
        Warning,
        "lines of the log are lost: whoever reads standard error does not keep up, or has gone",
        "have the reader of standard error keep up, or ask for less by log.level",
    ),
    rises(
        "access-log-lost",
        "propylon_access_log_lost_total",
        Problem,
        "lines of the access log are lost: they cannot be written",
        "make room on the disk of log.access, or mend its rights; whole lines go on as soon as it can be written",
    ),
    rises(
        "access-log-moved",
        "propylon_access_log_reopen_errors_total",
        Problem,
        "the access log was moved away and cannot be opened anew: lines go on in the file that was moved, or are lost if it was removed",
        "mend the rights of log.access and its folder; if the log says that the sandbox keeps it away, `propylon upgrade` or a restart",
    ),
    rises(
        "access-log-slow",
        "propylon_access_log_dropped_total",
        Warning,
        "lines of the access log are dropped: whoever takes them is too slow",
        "write the log to a faster disk, or have its reader keep up",
    ),
    above(
        "names-files-replaced",
        "propylon_sandbox_replaced_files",
        0,
        Warning,
        "{value} of /etc/resolv.conf, /etc/hosts and their like were replaced, and the sandbox keeps the new ones away",
        "`propylon upgrade`, or a restart; with process.user such files are followed",
    ),
    above(
        "workers-outdated",
        "propylon_workers_outdated",
        0,
        Warning,
        "the process can use more or fewer cores than it has workers: its quota or its cores were changed",
        "`propylon upgrade`, or a restart; the log says how many",
    ),
    rises(
        "accept-failed",
        "propylon_accept_errors_total",
        Warning,
        "accepts fail: files or memory of the system have run out, or clients are gone before they are accepted",
        "raise the limit on open files (LimitNOFILE=, ulimit -n); `propylon doctor` looks at it",
    ),
    above(
        "files-few",
        "propylon_files_needed",
        0,
        Warning,
        "the limit on open files is too low: clients with a request in progress each take {value} in all",
        "raise it (LimitNOFILE={value} or more in the unit, ulimit -n {value}), or state fewer by process.max_connections",
    ),
    rises(
        "files-short",
        "propylon_connections_refused_total",
        Problem,
        "client connections are refused: open files have run out",
        "raise the limit on open files (LimitNOFILE=, ulimit -n), or lower process.max_connections",
    )
    .only("reason", &["files"]),
    rises(
        "files-short-idle",
        "propylon_idle_closed_total",
        Warning,
        "idle client connections are closed before their time: open files run short",
        "raise the limit on open files (LimitNOFILE=, ulimit -n)",
    )
    .only("reason", &["files"]),
    above(
        "memory-short",
        "propylon_memory_refused_percent",
        0,
        Problem,
        "memory runs short: {value} % of new connections are refused",
        "raise process.memory_limit, or add a machine",
    ),
    rises(
        "memory-short-idle",
        "propylon_idle_closed_total",
        Warning,
        "idle client connections are closed before their time: memory runs short",
        "raise process.memory_limit, or shorten timeouts.idle",
    )
    .only("reason", &["memory"]),
    rises(
        "memory-short-refused",
        "propylon_connections_refused_total",
        Problem,
        "client connections were refused for want of memory",
        "raise process.memory_limit, or add a machine",
    )
    .only("reason", &["memory"]),
    rises(
        "source-limit",
        "propylon_connections_refused_total",
        Warning,
        "client connections are refused: their source has as many as process.connections_per_source allows",
        "raise process.connections_per_source if they are many people behind one address",
    )
    .only("reason", &["source"]),
    above(
        "change-refused",
        "propylon_config_last_reload_failed",
        0,
        Problem,
        "the configuration's file was refused when it was read last; the one from before stays in effect",
        "the log says why; `propylon check` tells all of it; mend the file and read it again (SIGHUP)",
    )
    .logged_elsewhere(),
    above(
        "certificate-files",
        "propylon_certificate_unusable_files",
        0,
        Problem,
        "{value} of the files of certificates, keys or authorities cannot be used; what was there before stays in use",
        "the log names each with what is wrong; mend it, and reload where `watch` is not set",
    ),
    rises(
        "admin-refused",
        "propylon_admin_refused_total",
        Warning,
        "changes by the admin API are refused before they are looked at",
        "see who asks in the log's lines that begin with \"audit\"; send the token of admin.token_file",
    )
    .logged_elsewhere(),
    rises(
        "ticket-keys",
        "propylon_tls_ticket_key_errors_total",
        Problem,
        "keys of session tickets cannot be read or rotated; those in use stay in use",
        "check the files of ticket_keys and their rights",
    )
    .logged_elsewhere(),
    rises(
        "upgrade-failed",
        "propylon_upgrade_failures_total",
        Problem,
        "an upgrade has failed; this process serves on",
        "the log says why; mend it, and try again",
    )
    .logged_elsewhere(),
    rises(
        "spans-dropped",
        "propylon_spans_dropped_total",
        Warning,
        "spans are dropped",
        "check the collector of [tracing], or trace fewer requests",
    ),
    // Listeners and their clients.
    above(
        "files-full",
        "propylon_listener_paused",
        0,
        Problem,
        "no more clients are accepted: as many connections are open as the limit on open files has room for",
        "raise the limit on open files (LimitNOFILE= in the unit, or ulimit -n); `propylon doctor` tells how high",
    )
    .only("reason", &["files"]),
    above(
        "max-connections",
        "propylon_listener_paused",
        0,
        Problem,
        "no more clients are accepted: as many connections are open as process.max_connections allows",
        "raise process.max_connections (and the limit on open files), or add a machine",
    ),
    rises(
        "handshakes-refused",
        "propylon_handshakes_refused_total",
        Warning,
        "TLS connections are reset before their handshake: there are too many at once",
        "see process.handshakes; a core more, or an ECDSA certificate, makes room",
    ),
    rises(
        "parking-full",
        "propylon_tls_parking_full_total",
        Warning,
        "handshakes find no place to wait for their private-key work",
        "check the key servers' answers, or lower process.handshakes",
    ),
    rises(
        "http2-flood",
        "propylon_http2_floods_total",
        Warning,
        "HTTP/2 connections are ended, since their clients did too much of something",
        "an attack, or a client that is broken: the access log names it",
    ),
    above(
        "http2-uploads-held-up",
        "propylon_http2_connections_paused",
        0,
        Warning,
        "{value} HTTP/2 connections are not read: servers do not take what their clients upload",
        "look at the servers that are slow to read; an attack, where a few clients upload on very many streams",
    ),
    rises(
        "proxy-header",
        "propylon_proxy_protocol_refused_total",
        Warning,
        "connections are closed for want of a good header of the PROXY protocol",
        "have the proxy in front send one, or remove accept_proxy_protocol from the listener",
    ),
    rises(
        "pipes-refused",
        "propylon_splice_pipes_refused_total",
        Note,
        "relays, tunnels and bodies are copied through memory, because no pipe is to be had",
        "raise the limit on open files, and fs.pipe-user-pages-soft",
    ),
    rises(
        "requests-refused",
        "propylon_requests_rejected_total",
        Note,
        "requests are refused as malformed or over a limit",
        "the access log has each with its reason; a limit can be raised in [listener.NAME.limits]",
    ),
    rises(
        "passwords-busy",
        "propylon_identity_refused_total",
        Warning,
        "requests get 503, since more passwords are to be checked than the threads for it can",
        "an attack that tries passwords, or hashes that take too long: limit the requests of each source, or make hashes of a lower cost",
    )
    .only("reason", &["passwords-busy"]),
    above(
        "identity-files",
        "propylon_identity_unusable_files",
        0,
        Problem,
        "{value} of the files of users, keys and issuers cannot be used; what they said before stays in use",
        "the log names each with what is wrong; mend it",
    )
    .logged_elsewhere(),
    above(
        "identity-keys",
        "propylon_identity_failing_urls",
        0,
        Problem,
        "the keys of {value} issuers cannot be fetched; those from before stay in use, and where there are none tokens are answered with 503",
        "the log names each URL with the reason",
    )
    .logged_elsewhere(),
    rises(
        "auth-failed",
        "propylon_identity_refused_total",
        Warning,
        "requests get 503, since the service that says who may come in does not answer, or with an error",
        "see to the servers of the backend that `auth.forward` of the route names: their faults are in the backend's metrics",
    )
    .only("reason", &["auth-failed"]),
    rises(
        "identity-refused",
        "propylon_identity_refused_total",
        Note,
        "requests are refused for want of a proof of whom they are from",
        "usual in small numbers, as browsers ask before they send a password; the access log names the clients",
    ),
    rises(
        "client-faults",
        "propylon_client_faults_total",
        Note,
        "requests are cut short on the client's side",
        "usual in small numbers; the access log names the clients",
    ),
    rises(
        "http2-errors",
        "propylon_http2_errors_total",
        Note,
        "HTTP/2 connections are ended, since their clients broke the protocol",
        "the access log names the clients",
    ),
    rises(
        "handshakes-unsigned",
        "propylon_tls_handshake_failures_total",
        Problem,
        "TLS handshakes fail, since nobody signs for their certificates in time",
        "look at the key servers of the profile's signer, or with keys.isolate at the key process",
    )
    .only("reason", &["signer-timeout", "signer-unavailable", "signer-refused"]),
    rises(
        "handshakes-failed",
        "propylon_tls_handshake_failures_total",
        Note,
        "TLS handshakes fail",
        "usual in small numbers; of a name that no certificate has, add one",
    ),
    rises(
        "certificates-evicted",
        "propylon_tls_certificates_evicted_total",
        Note,
        "more certificates are in use than cores keep ready",
        "nothing has to be done; handshakes with rare names take a little longer",
    ),
    // Routes.
    above(
        "route-failing",
        "propylon_route_failing_percent",
        0,
        Problem,
        "{value} % of its requests of the last minute were answered with 5xx or not at all",
        "look at the servers that are named, and at their own logs; the access log has status, server and fault of each request",
    ),
    // Backends and their servers.
    above(
        "backend-panic",
        "propylon_backend_panic",
        0,
        Problem,
        "panic: too few servers are up, so those that are down get requests as well",
        "bring servers back, or lower min_healthy",
    )
    .logged_elsewhere(),
    above(
        "server-passed-over",
        "propylon_server_passed_over",
        0,
        Problem,
        "passed over by {value} of the workers: it does not answer",
        "look at the server; [backend.NAME.health] finds it out before requests do",
    )
    .unless_zero("propylon_server_up", "it is down, ejected or drained by now"),
    rises(
        "no-server",
        "propylon_backend_unavailable_total",
        Problem,
        "requests find no server",
        "bring servers back, or add some; `propylon top` lists them",
    ),
    rises(
        "server-files",
        "propylon_server_faults_total",
        Problem,
        "servers cannot be connected to: open files have run out",
        "raise the limit on open files (LimitNOFILE=, ulimit -n)",
    )
    .only("reason", &["out-of-files"]),
    rises(
        "server-ports",
        "propylon_server_faults_total",
        Problem,
        "servers cannot be connected to: local ports have run out",
        "set reuse = \"always\" at the backend, widen net.ipv4.ip_local_port_range, or give servers more addresses",
    )
    .only("reason", &["out-of-ports"]),
    rises(
        "server-unsigned",
        "propylon_server_tls_handshake_failures_total",
        Problem,
        "servers cannot be connected to: nobody signs in time for the certificate that they are shown",
        "look at the key process (keys.isolate)",
    )
    .only("reason", &["client-certificate-unsigned"]),
    rises(
        "bodies-not-held",
        "propylon_server_faults_total",
        Problem,
        "bodies cannot be held: their files cannot be written, or there is no room for more",
        "make room in `temp_dir` of [process] (the log names it), or lower process.buffer_disk; the servers are well",
    )
    .only("reason", &["buffer-failed"]),
    rises(
        "server-faults",
        "propylon_server_faults_total",
        Warning,
        "attempts fail at servers",
        "look at the servers' own logs; the access log names server and fault of each request",
    )
    .except(
        "reason",
        &[
            "no-healthy-server",
            "no-server",
            "client-certificate-unsigned",
            "out-of-files",
            "out-of-ports",
            "buffer-failed",
        ],
    ),
    rises(
        "server-tls-failed",
        "propylon_server_tls_handshake_failures_total",
        Warning,
        "TLS handshakes with servers fail",
        "check [backend.NAME.tls] against the servers' certificates",
    )
    .except("reason", &["client-certificate-unsigned"]),
    rises(
        "server-connects-failed",
        "propylon_server_connect_failures_total",
        Warning,
        "connects to it fail",
        "look at the server, and at what is between",
    ),
    rises(
        "server-closes-late",
        "propylon_server_close_timeouts_total",
        Note,
        "connections that it was to close are still open after timeouts.close: it may be at work on requests that are over",
        "have the server heed closed connections; max_connections may be exceeded by as many meanwhile",
    ),
    above(
        "server-ejected",
        "propylon_server_ejected",
        0,
        Warning,
        "ejected for its answers",
        "look at the server's own log; it comes back by itself when its time is over, which is longer each time",
    )
    .logged_elsewhere(),
    above(
        "server-slow",
        "propylon_server_slow_factor",
        0,
        Warning,
        "answers take {value} times as long as those of the backend's other servers",
        "look at the server: its load, its disks, what it waits for; `propylon drain` keeps requests from it meanwhile",
    ),
    above(
        "server-name",
        "propylon_server_lookup_failing",
        0,
        Warning,
        "its name cannot be looked up; it stays at the addresses it had",
        "check the name and process.resolver",
    )
    .logged_elsewhere(),
    rises(
        "probes-not-made",
        "propylon_health_checks_total",
        Problem,
        "health checks are not made: files or ports have run out, or nobody signs for what servers are shown",
        "raise the limit on open files (LimitNOFILE=, ulimit -n); with keys.isolate look at the key process",
    )
    .only("result", &["not-made"]),
    rises(
        "probes-late",
        "propylon_health_checks_late_total",
        Warning,
        "health checks come late: too many servers are asked at once, or too many do not answer",
        "take servers that are gone out of the configuration, or lengthen the interval of [backend.NAME.health]",
    ),
    rises(
        "queue-client-gone",
        "propylon_queue_refused_total",
        Note,
        "clients go away while their requests wait for a server connection",
        "raise max_connections of the servers, or add some",
    )
    .only("reason", &["client-gone"]),
    rises(
        "limit-table-full",
        "propylon_limit_table_full_total",
        Warning,
        "a limit has more keys at once than it has room for: those that asked for least are forgotten or not counted",
        "raise `keys` of the limit, or count wider keys (ipv4_prefix, ipv6_prefix)",
    ),
    rises(
        "throttle-table-full",
        "propylon_throttle_table_full_total",
        Warning,
        "a route's pace has more keys at once than it has room for: those whose bodies lack least begin anew",
        "raise `keys` of the throttle, or share it by wider keys (ipv4_prefix, ipv6_prefix)",
    ),
    rises(
        "limit-refuses",
        "propylon_limit_requests_total",
        Note,
        "requests are refused with 429: somebody asks for more than the limit allows",
        "nothing if that is meant; otherwise raise the limit, or put who asks on its list of those exempt",
    )
    .only("outcome", &["refused"]),
    rises(
        "circuit-open",
        "propylon_queue_refused_total",
        Problem,
        "requests are refused: as many are in progress at the backend as its circuit allows",
        "add servers, or raise circuit.requests",
    )
    .only("reason", &["circuit-open"]),
    above(
        "circuit-floored",
        "propylon_circuit_floored",
        0,
        Problem,
        "an adaptive limit is as low as it may be: servers answer far later than they did, or fail",
        "look at what the servers wait for; where they are meant to take longer, raise circuit.requests_min",
    ),
    rises(
        "queue-refused",
        "propylon_queue_refused_total",
        Problem,
        "requests are refused: all servers have as many connections as they may, and the queue is full or too slow",
        "add servers, or raise their max_connections, queue.limit or queue.timeout",
    ),
    rises(
        "retries-refused",
        "propylon_retries_refused_total",
        Warning,
        "failed requests are not tried again: the retry budget is used up",
        "look at the servers; \"Repeats, and passing over\" in the manual tells of the budget",
    ),
    rises(
        "hedges-refused",
        "propylon_hedges_refused_total",
        Note,
        "late servers are waited for, with no second attempt: the retry budget is used up",
        "look at the servers; else have fewer requests be late (`hedge.after`), or raise the budget of `retries`",
    ),
    rises(
        "buffers-exhausted",
        "propylon_held_bodies_exhausted_total",
        Warning,
        "bodies go on unbuffered: the engine has no more room for bodies",
        "raise process.buffer_memory or process.buffer_disk, or hold less with `buffer` of routes",
    ),
    rises(
        "server-timeouts",
        "propylon_timeouts_total",
        Warning,
        "servers take longer than the limits on waiting",
        "look at the servers, or raise [backend.NAME.timeouts]",
    )
    .only("wait", &["connect", "first-byte", "server-body"]),
    rises(
        "client-timeouts",
        "propylon_timeouts_total",
        Note,
        "clients take longer than the limits on waiting",
        "usual in small numbers; see [listener.NAME.timeouts]",
    )
    .only("wait", &["handshake", "request-head", "request-body", "response-body"]),
    // The cluster.
    above(
        "cluster-name-taken",
        "propylon_cluster_name_taken",
        0,
        Problem,
        "another process has this engine's name in the cluster, which does not count this one",
        "give each engine a name of its own (cluster.engine), or end the other process",
    ),
    above(
        "announce-failing",
        "propylon_announce_failing",
        0,
        Problem,
        "addresses can be neither announced nor withdrawn: BIRD refuses or does not answer, or nobody speaks to it",
        "`propylon doctor` asks BIRD; the dashboard and `/cluster` tell what it says",
    ),
    above(
        "cluster-away",
        "propylon_cluster_away_seconds",
        2,
        Warning,
        "etcd does not answer; this engine serves on with what it has, and hears of no change",
        "look at etcd, and at what is between; `propylon doctor` asks each of cluster.endpoints",
    ),
    above(
        "flows-stopped",
        "propylon_flows_stopped_seconds",
        5,
        Warning,
        "propylon-flows does not run, or has no table: the kernel goes by the last one, and not by a newer one",
        "start it, or see its log; `propylon doctor` tells how it has to be started",
    ),
    rises(
        "flows-dropping",
        "propylon_flows_packets_total",
        Warning,
        "packets of flows between engines are dropped",
        "look at routes and MTU between engines; of dropped_bad_source, somebody else sends to the tunnel's port",
    )
    .only(
        "outcome",
        &[
            "dropped_bad_source",
            "dropped_malformed",
            "dropped_no_route",
            "dropped_no_listener",
            "dropped_too_big",
            "dropped_failed",
        ],
    ),
    above(
        "cluster-problems",
        "propylon_cluster_problems",
        0,
        Warning,
        "problems of this engine in its cluster: {value}",
        "`propylon cluster status`, or the dashboard, tells each with what to do",
    ),
    // The key process.
    above(
        "key-process-lost",
        "propylon_key_process_lost",
        0,
        Problem,
        "handshakes cannot be signed any more: the process that starts the key process is gone, and nobody starts another",
        "restart, or upgrade, the engine; the log may say what has ended it",
    ),
    rises(
        "key-process-restarted",
        "propylon_key_process_restarts_total",
        Problem,
        "the key process has ended and was started again; handshakes have waited for it meanwhile",
        "the log says how it has ended; if nobody has ended it, please report it",
    ),
    above(
        "key-store-unusable",
        "propylon_key_store_unusable",
        0,
        Problem,
        "nothing can be kept in keys.store: certificates cannot be uploaded, nor ordered or renewed",
        "the log says why; give the folder to the account that serves (install -d -o USER -m 700); one that was made since takes a restart",
    )
    .logged_elsewhere(),
    above(
        "key-process-slow",
        "propylon_signer_ejected",
        0,
        Warning,
        "the key process does not answer {value} of the workers in time",
        "where it does not go on, it is replaced; where the machine has too little time for it, add cores",
    )
    .of("signer", BESIDE_NAME)
    .logged_elsewhere(),
    rises(
        "key-process-away",
        "propylon_signer_connect_failures_total",
        Warning,
        "the key process is not there, or does not answer",
        "the log says what has become of it",
    )
    .of("signer", BESIDE_NAME),
    rises(
        "key-process-failed",
        "propylon_signer_jobs_total",
        Problem,
        "handshakes fail, since the key process has not signed in time",
        "the log says what has become of it; where it goes on, the machine has too little time: add cores",
    )
    .only("outcome", &["timeout", "unavailable", "refused", "full"])
    .of("signer", BESIDE_NAME),
    // Key servers.
    above(
        "signer-ejected",
        "propylon_signer_ejected",
        0,
        Warning,
        "key server passed over by {value} of the workers",
        "look at the key server's log; it comes back by itself as soon as it answers in time",
    ),
    rises(
        "signer-connects-failed",
        "propylon_signer_connect_failures_total",
        Warning,
        "connects to the key server fail",
        "look at the key server, and at what is between",
    ),
    rises(
        "signer-unsigned",
        "propylon_signer_identity_unsigned_total",
        Warning,
        "the key server cannot be connected to: nobody signs in time for the identity that it is shown",
        "look at the key process (keys.isolate)",
    ),
    rises(
        "signer-refused",
        "propylon_signer_jobs_total",
        Problem,
        "handshakes fail, since no key server signs with their certificate's key",
        "the log names the key and who was asked; `propylon-keyserver keys` lists the keys that a key server has",
    )
    .only("outcome", &["refused"]),
    rises(
        "signer-failed",
        "propylon_signer_jobs_total",
        Problem,
        "handshakes fail, since no key server has signed in time",
        "look at the key servers of the signer",
    )
    .only("outcome", &["timeout", "unavailable", "full"]),
];

/// Metrics that are called like something is wrong, and need no row.
#[rustfmt::skip]
pub const NO_CONDITION: &[(&str, &str)] = &[
    ("propylon_accept_pauses_total", "propylon_listener_paused says for how long"),
    ("propylon_access_log_write_errors_total", "propylon_access_log_lost_total says how many lines"),
    ("propylon_acme_failures", "the ACME keeper writes each failure to the log, and the certificate's expiry is watched"),
    ("propylon_acme_trouble", "the ACME keeper writes it to the log"),
    ("propylon_backend_panics_total", "propylon_backend_panic says for how long"),
    ("propylon_certificate_reload_errors_total", "propylon_certificate_unusable_files says for how long"),
    ("propylon_http2_reads_paused_total", "propylon_http2_connections_paused says for how long"),
    ("propylon_route_unanswered_total", "propylon_route_failing_percent says when they are too many"),
    ("propylon_server_lookup_failures_total", "propylon_server_lookup_failing says for how long"),
    ("propylon_server_ejections_total", "propylon_server_ejected says for how long"),
    ("propylon_signer_ejections_total", "propylon_signer_ejected says for how long"),
    ("propylon_tls_parked_cancelled_total", "clients that go away, which is theirs to do"),
    ("propylon_tls_tickets_refused_total", "a client with an old ticket makes a full handshake"),
];

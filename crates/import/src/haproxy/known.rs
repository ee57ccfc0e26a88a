//! Lines of haproxy that are known, and words for those that are not carried over.

use super::lines::{Line, is_change, is_guard, is_tracking};
use crate::plan::Plan;

/// Directives for what Propylon does by itself, or has no need of: nothing is lost with these.
pub(super) const NEEDLESS: &[&str] = &[
    "log",
    "chroot",
    "user",
    "group",
    "daemon",
    "stats",
    "pidfile",
    "ca-base",
    "crt-base",
    "ssl-default-bind-options",
    "ssl-default-bind-ciphersuites",
    "ssl-default-server-options",
    "ssl-default-server-ciphers",
    "tune.ssl.default-dh-param",
    "ssl-default-server-ciphersuites",
    "ssl-dh-param-file",
    "log-format",
    "log-tag",
    "log-send-hostname",
    "unique-id-format",
    "unique-id-header",
    "master-worker",
    "insecure-fork-wanted",
    "hard-stop-after",
    "cpu-map",
    "nbproc",
    "maxconn",
    "description",
    "default-server",
    "load-server-state-from-file",
    "server-state-file",
    "nbthread",
    "mode",
    "timeout",
    "retries",
    "balance",
    "acl",
    "bind",
    "server",
    "default_backend",
    "use_backend",
    "cookie",
    "http-check",
    "id",
    "monitor-uri",
    "redirect",
    "option",
    "tcp-check",
    "hash-type",
    "capture",
    "fullconn",
    "retry-on",
    "no",
    "hash-balance-factor",
    "errorfile",
    "http-error",
    "source",
    "use-fcgi-app",
    "lua-load",
    "maxsslconn",
    "maxconnrate",
    "maxsslrate",
    "spread-checks",
    "localpeer",
    "node",
    "tcp-request",
    "http-request",
    "http-response",
    "compression",
];
const NEEDLESS_OPTIONS: &[&str] = &[
    "httplog",
    "tcplog",
    "dontlognull",
    "dontlog-normal",
    "http-server-close",
    "http-keep-alive",
    "httpclose",
    "redispatch",
    "forwardfor",
    "tcp-smart-accept",
    "tcp-smart-connect",
    "tcpka",
    "clitcpka",
    "srvtcpka",
    "splice-auto",
    "abortonclose",
    "http-ignore-probes",
    "logasap",
    "log-health-checks",
    "log-separate-errors",
    "prefer-last-server",
    "contstats",
    "nolinger",
    "allbackups",
    "httpchk",
    "tcp-check",
    "ssl-hello-chk",
    "http-use-htx",
    "socket-stats",
    "accept-invalid-http-request",
    "http-pretend-keepalive",
];

pub(super) const UNKNOWN: &str = "it is not known to this command: see whether it matters";
pub(super) const PAGES: &str = "its file has a head in front of the page: have the page alone in a file, and write `error_pages = { \"503\" = \"FILE.html\" }` in the listener or in its routes";
pub(super) const BUFFER: &str = "write `buffer = { request = true }` in its routes, and `temp_dir` in [process]";
pub(super) const RATES: &str = "rates are not carried over: write `limit = { rate = ... }` in its routes";

/// Rules about requests and responses that have no counterpart, and lines that need none.
pub(super) fn request_rule(plan: &mut Plan, line: &Line) {
    if is_guard(line) || line.word(1) == "allow" || line.text() == "filter compression" {
        return;
    }
    match (line.word(0), line.word(1)) {
        _ if is_change(line) || is_tracking(line) => {}
        ("http-response" | "http-after-response" | "rspadd" | "rspidel", _) => {
            plan.note(line.number, line.text(), "write what becomes of it as `response` of its routes");
        }
        ("tcp-request", "connection") => {
            plan.note(line.number, line.text(), RATES);
        }
        ("http-request" | "tcp-request", _) => {
            plan.note(line.number, line.text(), "this rule has no counterpart: see whether a route with `match` does")
        }
        ("option", "http-buffer-request") => plan.note(line.number, line.text(), BUFFER),
        ("option", "forwardfor") if line.has("header") => {
            let fix = "the client's address goes on as X-Forwarded-For: write `request = { set = { NAME = \"{client.ip}\" } }` \
                       in its routes for another field";
            plan.note(line.number, line.text(), fix);
        }
        ("option", option) if NEEDLESS_OPTIONS.contains(&option) => {}
        ("option", _) => {
            plan.note(line.number, line.text(), "this option is not known to this command: see whether it matters")
        }
        (word, _) if NEEDLESS.contains(&word) => {}
        _ => plan.note(line.number, line.text(), UNKNOWN),
    }
}

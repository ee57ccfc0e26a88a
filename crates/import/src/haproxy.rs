//! `haproxy.cfg`.

mod backend;
mod change;
mod frontend;
mod guard;
mod lines;
mod rates;

use backend::Backends;
use change::is_change;
use frontend::Frontend;
use guard::is_guard;
use lines::{Line, Section, sections};
use rates::{is_tracking, tables};

use crate::plan::{Note, Plan};

/// Directives for what Propylon does by itself, or has no need of: nothing is lost with these.
const NEEDLESS: &[&str] = &[
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
    "http-buffer-request",
    "http-use-htx",
    "socket-stats",
    "accept-invalid-http-request",
    "http-pretend-keepalive",
];

pub fn read(text: &str, plan: &mut Plan) -> Result<(), Note> {
    let sections = sections(text)?;
    let tables = tables(&sections);
    let mut defaults: Vec<Line> = Vec::new();
    // Backends first: frontends lead to them.
    let mut resolved = Vec::new();
    for section in &sections {
        match section.kind.as_str() {
            "defaults" => {
                for line in &section.lines {
                    match line.word(0) {
                        word if word.starts_with("errorfile") || word.starts_with("errorloc") => {
                            plan.note(line.number, line.text(), PAGES);
                        }
                        word if NEEDLESS.contains(&word) => {}
                        _ => plan.note(line.number, line.text(), UNKNOWN),
                    }
                }
                defaults.clone_from(&section.lines);
            }
            "global" => global(section, plan),
            "frontend" | "backend" | "listen" => resolved.push((section, defaults.clone())),
            "resolvers" | "peers" | "ring" | "crt-store" | "fcgi-app" => {}
            _ => plan.note(
                section.number,
                format!("{} {}", section.kind, section.name),
                match section.kind.as_str() {
                    "userlist" => "write its users into a file, and `auth = { basic = { file = ... } }` in the routes",
                    "http-errors" => PAGES,
                    _ => "this section has no counterpart",
                },
            ),
        }
    }
    for (section, defaults) in resolved.iter().filter(|(section, _)| section.kind != "frontend") {
        Backends { plan, defaults, sections: &sections }.read(section);
    }
    for (section, defaults) in resolved.iter().filter(|(section, _)| section.kind != "backend") {
        Frontend::new(plan, defaults, section, &tables).read();
    }
    for (section, defaults) in resolved.iter().filter(|(section, _)| section.kind == "backend") {
        Frontend::new(plan, defaults, section, &tables).guard_backend();
    }
    match plan.listeners.is_empty() {
        true => Err(Note::new(1, "the file", "no `bind` is in it; is it a configuration of haproxy?")),
        false => Ok(()),
    }
}

fn global(section: &Section, plan: &mut Plan) {
    for line in &section.lines {
        match line.word(0) {
            "maxconn" => plan.process.push(("max_connections".into(), line.word(1).to_owned())),
            "nbthread" => plan.process.push(("workers".into(), line.word(1).to_owned())),
            "ssl-default-bind-ciphers" => {
                plan.note(
                    line.number,
                    line.text(),
                    "the policy \"intermediate\" has its own; a table of your own is `policy` in [tls.NAME]",
                );
            }
            "stats" if line.word(1) == "socket" => {
                plan.note(
                    line.number,
                    line.text(),
                    "the running engine is asked and changed at its admin address: add [admin]",
                );
            }
            "lua-load" => plan.note(line.number, line.text(), "there are no scripts"),
            word if NEEDLESS.contains(&word) || word.starts_with("tune.") => {}
            _ => plan.note(line.number, line.text(), UNKNOWN),
        }
    }
    plan.process.retain(|(_, value)| value.parse::<u32>().is_ok_and(|number| number > 0));
}

const UNKNOWN: &str = "it is not known to this command: see whether it matters";
const PAGES: &str = "its file has a head in front of the page: have the page alone in a file, and write `error_pages = { \"503\" = \"FILE.html\" }` in the listener or in its routes";
const RATES: &str = "rates are not carried over: write `limit = { rate = ... }` in its routes";

/// Rules about requests and responses that have no counterpart, and lines that need none.
fn request_rule(plan: &mut Plan, line: &Line) {
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
        ("option", option) if NEEDLESS_OPTIONS.contains(&option) => {}
        ("option", _) => {
            plan.note(line.number, line.text(), "this option is not known to this command: see whether it matters")
        }
        (word, _) if NEEDLESS.contains(&word) => {}
        _ => plan.note(line.number, line.text(), UNKNOWN),
    }
}

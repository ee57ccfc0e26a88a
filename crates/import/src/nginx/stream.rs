//! Relays of TCP by nginx.

use std::collections::BTreeMap;

use super::reader::{bind, upstreams};
use crate::changes::Changes;
use crate::plan::{Action, Keys, Path, Plan, Route, Server, name_of, quoted};
use crate::words::Directive;

/// Relays of TCP.
pub(super) fn stream(stream: &Directive, plan: &mut Plan) {
    let all = upstreams(stream);
    for each in stream.inner() {
        if !["upstream", "server", "log_format", "access_log", "error_log", "resolver"].contains(&each.name()) {
            plan.note(each.line, each.text(), "write a route by host on a listener with protocol = \"passthrough\"");
        }
    }
    for server in stream.inner().iter().filter(|each| each.name() == "server") {
        let (Some(listen), Some(pass)) = (server.find("listen"), server.find("proxy_pass")) else { continue };
        if pass.word(1).contains(['$', '/']) || listen.arguments().iter().any(|word| word == "udp") {
            plan.note(
                pass.line,
                pass.text(),
                "relays go to a backend of TCP servers: write [backend.NAME] and a route",
            );
            continue;
        }
        let bind = bind(listen.word(1));
        let base = format!("tcp-{}", bind.rsplit(':').next().unwrap_or_default());
        let listener = plan.listener_named(&base, &bind, false);
        listener.keys.insert("protocol".into(), quoted("tcp"));
        let name = listener.name.clone();
        let backend_name = name_of(pass.word(1));
        let mut notes = Vec::new();
        let backend = plan.backend(&backend_name, pass.line);
        if backend.servers.is_empty() {
            match all.get(pass.word(1)) {
                Some(upstream) => {
                    let servers = upstream.inner().iter().filter(|each| each.name() == "server");
                    let servers: Vec<Server> =
                        servers.filter_map(|each| super::servers::server(each, false, &mut notes)).collect();
                    backend.servers = servers;
                }
                None => backend.servers.push(Server { address: pass.word(1).to_owned(), keys: Keys::new() }),
            }
        }
        plan.route(Route {
            line: server.line,
            listener: name,
            host: None,
            path: Path::Prefix("/".into()),
            conditions: BTreeMap::new(),
            requires_certificate: false,
            action: Action::Backend(backend_name),
            changes: Changes::default(),
        });
        notes.into_iter().for_each(|(line, text, fix)| plan.note(line, text, fix));
    }
}

//! Relays of TCP by nginx.

use std::collections::BTreeMap;

use super::includes::is_unread;
use super::reader::{bind, upstreams};
use super::tls::certificates;
use crate::changes::Changes;
use crate::plan::{Action, Keys, Path, Plan, Route, Server, name_of, quoted};
use crate::words::{Directive, duration};

/// Directives that are read, or whose part Propylon does by itself.
const KNOWN: &[&str] = &[
    "upstream",
    "server",
    "listen",
    "proxy_pass",
    "log_format",
    "access_log",
    "error_log",
    "resolver",
    "resolver_timeout",
    "allow",
    "deny",
    "ssl_certificate",
    "ssl_certificate_key",
    "ssl_client_certificate",
    "ssl_verify_client",
    "ssl_crl",
    "ssl_protocols",
    "ssl_session_cache",
    "ssl_session_timeout",
    "ssl_session_tickets",
    "ssl_prefer_server_ciphers",
    "ssl_handshake_timeout",
    "ssl_preread",
    "preread_buffer_size",
    "preread_timeout",
    "proxy_timeout",
    "proxy_connect_timeout",
    "proxy_protocol",
    "proxy_buffer_size",
    "proxy_next_upstream",
    "proxy_socket_keepalive",
    "tcp_nodelay",
    "js_access",
    "js_preread",
];

/// Words for a relay that asks who comes.
const GUARDED: &str = "a relay does not ask who comes: it has no listener until you have decided; let a packet filter \
                       do it, or `client_auth` of a [tls.NAME], and write a listener with protocol = \"tcp\"";
const TO_SERVERS: &str = "relays go to a backend of TCP servers: write [backend.NAME] and a route";

/// Relays of TCP.
pub(super) fn stream(stream: &Directive, plan: &mut Plan) {
    let mut relays = Relays { stream, upstreams: upstreams(stream), plan };
    for each in stream.inner().iter().filter(|each| !KNOWN.contains(&each.name())) {
        let fix = "write a route by host on a listener with protocol = \"passthrough\"";
        relays.plan.note(each.line, each.text(), fix);
    }
    stream.inner().iter().filter(|each| each.name() == "server").for_each(|server| relays.server(server));
}

struct Relays<'r> {
    stream: &'r Directive,
    upstreams: BTreeMap<String, Directive>,
    plan: &'r mut Plan,
}

impl Relays<'_> {
    fn server(&mut self, server: &Directive) {
        const UNKNOWN: &str = "it is not known to this command: see whether it matters";
        let unknown = |each: &&Directive| !KNOWN.contains(&each.name()) && !changes_relay(each) && !is_unread(each);
        server.inner().iter().filter(unknown).for_each(|each| self.plan.note(each.line, each.text(), UNKNOWN));
        let Some(pass) = server.find("proxy_pass") else {
            self.plan.note(server.line, "server", TO_SERVERS);
            return;
        };
        if pass.word(1).contains(['$', '/']) {
            self.plan.note(pass.line, pass.text(), TO_SERVERS);
            return;
        }
        let guards = guards(&[server, self.stream]);
        let lost: Vec<&&Directive> = guards.iter().filter(|each| each.name() != "ssl_verify_client").collect();
        if !lost.is_empty() {
            lost.into_iter().for_each(|each| self.plan.note(each.line, each.text(), GUARDED));
            return;
        }
        if let Some(each) = server.inner().iter().chain(self.stream.inner()).find(|each| changes_relay(each)) {
            let fix = "relays hand bytes on as they are, whatever name is asked for: it has no listener; write an \
                       http listener, or one with protocol = \"passthrough\" and routes by host";
            self.plan.note(each.line, each.text(), fix);
            return;
        }
        for listen in server.inner().iter().filter(|each| each.name() == "listen") {
            self.listen((server, listen, pass), guards.first().copied());
        }
    }

    /// A listener with its route. With `verify` its clients have to show certificates.
    fn listen(&mut self, (server, listen, pass): (&Directive, &Directive, &Directive), verify: Option<&Directive>) {
        let has = |word: &str| listen.arguments().iter().any(|each| each == word);
        if has("udp") || listen.word(1).starts_with("unix:") {
            self.plan.note(listen.line, listen.text(), "listeners are TCP: write an address with port");
            return;
        }
        let find = |name: &str| [server, self.stream].into_iter().find_map(|block| block.find(name));
        let is_tls = has("ssl");
        let mut client_auth = BTreeMap::new();
        if let Some(verify) = verify.filter(|_| is_tls) {
            let Some(ca) = find("ssl_client_certificate").filter(|_| ["on", "optional"].contains(&verify.word(1)))
            else {
                self.plan.note(verify.line, verify.text(), GUARDED);
                return;
            };
            client_auth.insert("ca".into(), quoted(ca.word(1)));
            if verify.word(1) == "optional" {
                client_auth.insert("mode".into(), quoted("optional"));
            }
            client_auth.extend(find("ssl_crl").map(|each| ("crl".to_owned(), quoted(each.word(1)))));
        }
        let certificates = if is_tls { certificates(&[server, self.stream]) } else { Vec::new() };
        let is_modern = find("ssl_protocols").is_some_and(|each| each.arguments() == ["TLSv1.3"]);
        let idle = find("proxy_timeout").and_then(|each| duration(each.word(1), 1000));
        let bind = bind(listen.word(1));
        let base = format!("tcp-{}", bind.rsplit(':').next().unwrap_or_default());
        let backend = self.backend(server, pass);
        let listener = self.plan.listener_named(&base, &bind, is_tls);
        listener.keys.insert("protocol".into(), quoted("tcp"));
        if let Some(port) = bind.strip_prefix("[::]").filter(|_| has("ipv6only=off")) {
            listener.bind.push(format!("0.0.0.0{port}"));
        }
        if has("proxy_protocol") {
            listener.keys.insert("accept_proxy_protocol".into(), "true".into());
        }
        listener.timeouts.extend(idle.map(|time| ("tunnel_idle".to_owned(), time)));
        listener.certificates = certificates;
        listener.client_auth = client_auth;
        listener.policy = Some("modern").filter(|_| is_tls && is_modern);
        let name = listener.name.clone();
        self.plan.route(Route {
            line: server.line,
            listener: name,
            host: None,
            path: Path::Prefix("/".into()),
            conditions: BTreeMap::new(),
            requires_certificate: false,
            action: Action::Backend(backend),
            changes: Changes::default(),
        });
    }

    /// The backend of these servers. Those of http have names of their own in nginx, so that one of the same name may
    /// be another.
    fn backend(&mut self, server: &Directive, pass: &Directive) -> String {
        let find = |name: &str| [server, self.stream].into_iter().find_map(|block| block.find(name));
        let (mut keys, mut notes) = (BTreeMap::new(), Vec::new());
        let mut servers = Vec::new();
        match self.upstreams.get(pass.word(1)) {
            None => servers.push(Server { address: pass.word(1).to_owned(), keys: Keys::new() }),
            Some(upstream) => {
                for each in upstream.inner() {
                    match each.name() {
                        "server" => servers.extend(super::servers::server(each, false, &mut notes)),
                        "least_conn" => drop(keys.insert("balance".to_owned(), quoted("least-connections"))),
                        "random" => drop(keys.insert("balance".to_owned(), quoted("random"))),
                        "hash" if ["$remote_addr", "$binary_remote_addr"].contains(&each.word(1)) => {
                            keys.insert("balance".to_owned(), quoted("consistent-hash"));
                        }
                        "zone" => {}
                        _ => notes.push((each.line, each.text(), "see `balance` of a backend")),
                    }
                }
            }
        }
        if find("proxy_protocol").is_some_and(|each| each.word(1) == "on") {
            keys.insert("send_proxy_protocol".to_owned(), quoted("v1"));
        }
        notes.into_iter().for_each(|(line, text, fix)| self.plan.note(line, text, fix));
        let connect = find("proxy_connect_timeout").and_then(|each| duration(each.word(1), 1000));
        let timeouts = connect.map(|time| ("connect".to_owned(), time)).into_iter().collect();
        let name = name_of(pass.word(1));
        let known = self.plan.backends.iter().find(|each| each.name == name);
        let is_other = known.is_some_and(|each| {
            (&each.servers, &each.keys, &each.timeouts) != (&servers, &keys, &timeouts) || each.tls.is_some()
        });
        let name = if is_other { name_of(&format!("{}-{}", name, pass.line)) } else { name };
        let backend = self.plan.backend(&name, pass.line);
        (backend.servers, backend.keys, backend.timeouts) = (servers, keys, timeouts);
        name
    }
}

/// Whether a relay with this is another one than there is here.
fn changes_relay(each: &Directive) -> bool {
    each.name() == "proxy_ssl" && each.word(1) == "on" || each.name() == "server_name"
}

/// Directives that ask who comes, of the innermost block that has any of the kind.
fn guards<'d>(blocks: &[&'d Directive]) -> Vec<&'d Directive> {
    let of = |is_it: &dyn Fn(&str) -> bool| -> Vec<&'d Directive> {
        let own = |block: &&'d Directive| block.inner().iter().filter(|each| is_it(each.name())).collect::<Vec<_>>();
        blocks.iter().map(own).find(|own| !own.is_empty()).unwrap_or_default()
    };
    let addresses = of(&|name| ["allow", "deny"].contains(&name));
    // Rules in front of which everybody is let in are never asked.
    let asked = addresses.iter().take_while(|each| each.text() != "allow all");
    let mut all: Vec<&Directive> = asked.copied().collect();
    if all.iter().all(|each| each.name() == "allow") {
        all.clear();
    }
    all.extend(of(&|name| ["js_access", "js_preread"].contains(&name) || name.starts_with("access_by_")));
    all.extend(blocks.first().into_iter().flat_map(|block| block.inner()).filter(|each| is_unread(each)));
    all.extend(of(&|name| name == "ssl_verify_client").into_iter().filter(|each| each.word(1) != "off"));
    all
}

//! `nginx.conf`, or one file of its sites.

mod limits;

use limits::Zones;
use std::collections::BTreeMap;

use crate::changes::{Changes, Compress, Kind, Side, groups, plain, whole};
use crate::plan::{
    Action, CLOSED, Certificate, Keys, Note, Path, Plan, Route, Server, escaped, name_of, one_or_list, quoted,
    redirect, respond,
};
use crate::words::{Directive, End, directives, duration, unix_socket, with_port};
use crate::write::key_text;

/// Directives for what Propylon does by itself, or has no need of: nothing is lost with these.
const NEEDLESS: &[&str] = &[
    "user",
    "pid",
    "events",
    "worker_rlimit_nofile",
    "error_log",
    "default_type",
    "types",
    "sendfile",
    "tcp_nopush",
    "tcp_nodelay",
    "types_hash_max_size",
    "server_names_hash_bucket_size",
    "server_names_hash_max_size",
    "keepalive_requests",
    "server_tokens",
    "log_format",
    "ssl_session_cache",
    "ssl_session_timeout",
    "ssl_session_tickets",
    "ssl_prefer_server_ciphers",
    "ssl_dhparam",
    "ssl_stapling",
    "ssl_stapling_verify",
    "resolver",
    "resolver_timeout",
    "proxy_http_version",
    "proxy_buffer_size",
    "proxy_buffers",
    "proxy_busy_buffers_size",
    "proxy_redirect",
    "proxy_temp_path",
    "zone",
    "keepalive",
    "http2",
    "fastcgi_index",
    "index",
    "charset",
    "access_log",
    "load_module",
    "variables_hash_max_size",
    "client_body_buffer_size",
    "proxy_buffering",
    "proxy_request_buffering",
    "map_hash_bucket_size",
    "log_not_found",
    "ssl_ecdh_curve",
    "ssl_buffer_size",
    "fastcgi_param",
    "ssl_early_data",
    "http3",
    "http3_hq",
    "quic_retry",
    "large_client_header_buffers",
    "client_header_buffer_size",
    "multi_accept",
    "keepalive_timeout",
    "send_timeout",
    "client_body_timeout",
    "client_header_timeout",
    "worker_connections",
    "proxy_set_header",
    "proxy_connect_timeout",
    "proxy_read_timeout",
    "proxy_send_timeout",
    "reset_timedout_connection",
    "aio",
    "directio",
    "open_file_cache",
    "open_file_cache_valid",
    "open_file_cache_min_uses",
    "open_file_cache_errors",
    "fastcgi_split_path_info",
    "fastcgi_buffers",
    "fastcgi_buffer_size",
    "fastcgi_read_timeout",
    "ssl_trusted_certificate",
    "proxy_next_upstream",
    "proxy_intercept_errors",
    "proxy_ssl_server_name",
    "proxy_ssl_name",
    "proxy_ssl_protocols",
    "proxy_ssl_verify",
    "proxy_ssl_trusted_certificate",
    "proxy_ssl_certificate",
    "proxy_ssl_certificate_key",
    "autoindex",
    "fastcgi_pass_header",
    "worker_priority",
    "daemon",
    "merge_slashes",
    "ssl_client_certificate",
    "ssl_verify_client",
    "ssl_verify_depth",
    "ssl_crl",
    "ssl_protocols",
    "ssl_certificate",
    "ssl_certificate_key",
    "listen",
    "server_name",
    "root",
    "upstream",
    "location",
    "server",
    "return",
    "map",
    "worker_cpu_affinity",
    "uwsgi_param",
    "uwsgi_read_timeout",
    "allow",
    "deny",
    "auth_basic_user_file",
    "auth_basic",
    "auth_request",
    "add_header",
    "proxy_hide_header",
    "gzip",
    "gzip_types",
    "brotli",
    "brotli_types",
    "client_max_body_size",
    "auth_request_set",
    "satisfy",
    "fastcgi_intercept_errors",
    "proxy_cache_bypass",
    "proxy_no_cache",
    "set_real_ip_from",
    "real_ip_header",
    "real_ip_recursive",
    "limit_req",
    "limit_req_zone",
    "limit_req_status",
    "limit_req_log_level",
    "limit_conn",
    "limit_conn_zone",
    "limit_conn_status",
    "limit_conn_log_level",
];

/// Directives that have no counterpart, and what to do.
const WITHOUT: &[(&str, &str)] = &[
    ("more_set_headers", "write it as `response` of its routes"),
    ("proxy_cache", "nothing is cached here: put a cache behind it"),
    ("proxy_cache_path", "nothing is cached here: put a cache behind it"),
    ("proxy_cache_valid", "nothing is cached here: put a cache behind it"),
    ("sub_filter", "bodies are not changed here"),
    ("if", "conditions are not carried over but for redirects by host: write a route with `match`"),
    ("set", "variables are not carried over: write what they stand for"),
    ("ssl_ciphers", "the policy \"intermediate\" has its own; a table of your own is `policy` in [tls.NAME]"),
    ("mirror", "copies are not carried over: write `mirror` in its route"),
    ("error_page", "pages are not carried over: write `error_pages` in the listener or in its routes"),
    ("expires", "write it as `response = { set = { Cache-Control = ... } }` of its routes"),
];

pub fn read(text: &str, plan: &mut Plan) -> Result<(), Note> {
    let mut all = directives(text, End::Semicolon)?;
    let mut streams = Vec::new();
    // `server` may stand alone in a file of sites.
    let mut top = Vec::new();
    for directive in all.drain(..) {
        match directive.name() {
            "http" => top.extend(directive.block.unwrap_or_default()),
            "stream" => streams.push(directive),
            "worker_processes" => workers(&directive, plan),
            _ => top.push(directive),
        }
    }
    let http = Directive { block: Some(top), ..Directive::default() };
    let mut reader = Reader { upstreams: upstreams(&http), zones: Zones::of(&http), plan };
    reader.notes(&http);
    for server in http.inner().iter().filter(|each| each.name() == "server") {
        reader.server(&http, server);
    }
    streams.iter().for_each(|each| stream(each, reader.plan));
    if reader.plan.listeners.is_empty() {
        return Err(Note::new(1, "the file", "no `server` with a `listen` is in it; is it a configuration of nginx?"));
    }
    Ok(())
}

fn workers(directive: &Directive, plan: &mut Plan) {
    if directive.word(1).parse::<u16>().is_ok_and(|count| count > 0) {
        plan.process.push(("workers".into(), directive.word(1).to_owned()));
    }
}

struct Reader<'p> {
    plan: &'p mut Plan,
    upstreams: BTreeMap<String, Directive>,
    zones: Zones,
}

fn upstreams(block: &Directive) -> BTreeMap<String, Directive> {
    let all = block.inner().iter().filter(|each| each.name() == "upstream");
    all.map(|each| (each.word(1).to_owned(), each.clone())).collect()
}

/// An address and port that a server listens on.
struct Listen {
    listener: String,
    is_tls: bool,
    is_default: bool,
}

/// Cure for servers of FastCGI whose address or root is not written down.
const FASTCGI: &str = "write a [backend.NAME] with protocol = \"fastcgi\" and its servers' addresses";

impl Reader<'_> {
    /// Notes of the directives in a block that have no counterpart.
    fn notes(&mut self, block: &Directive) {
        for each in block.inner() {
            if each.name() == "include" {
                const HARMLESS: &[&str] =
                    &["mime.types", "_params", "modules-enabled", "options-ssl-nginx", "fastcgi.conf", "fastcgi-php"];
                if !HARMLESS.iter().any(|name| each.word(1).contains(name)) {
                    self.plan.note(each.line, each.text(), "import that file by itself");
                }
                continue;
            }
            if each.name() == "rewrite" {
                if block.find("proxy_pass").is_none() {
                    let fix = "write a route with `redirect`, or with `request.path` for what servers are asked for";
                    self.plan.note(each.line, each.text(), fix);
                }
                continue;
            }
            let known = WITHOUT.iter().find(|(name, _)| *name == each.name());
            let is_off = each.word(1) == "off";
            match known {
                Some(_) if is_off => {}
                Some((_, fix)) => self.plan.note(each.line, each.text(), *fix),
                None if NEEDLESS.contains(&each.name()) || each.name().starts_with("gzip_") => {}
                None if is_handled(each.name()) => {}
                None if each.name() == "limit_except"
                    && each.find("deny").is_some_and(|deny| deny.word(1) == "all") => {}
                None => {
                    self.plan.note(each.line, each.text(), "it is not known to this command: see whether it matters")
                }
            }
        }
    }

    fn server(&mut self, http: &Directive, server: &Directive) {
        let listens = self.listens(server);
        let mut names: Vec<String> = Vec::new();
        for each in server.inner().iter().filter(|each| each.name() == "server_name") {
            for name in each.arguments() {
                match host(name) {
                    Some(host) => names.push(host),
                    None if name.is_empty() || name == "_" => {}
                    None => self.plan.note(
                        each.line,
                        name,
                        "it is no host name or `*.` before one: write a route for each host",
                    ),
                }
            }
        }
        let mut hosts: Vec<Option<String>> = names.iter().cloned().map(Some).collect();
        if hosts.is_empty() || listens.iter().any(|listen| listen.is_default) {
            hosts.push(None);
        }
        self.tls(server, &listens);
        self.own_notes(server);
        for listen in &listens {
            self.fields(http, server, &listen.listener);
        }
        let access = Access::of(server, &Access::of(http, &Access::default()));
        let changes = self.changes(http, server, &Directive::default());
        let place = Place { http, server, listens: &listens, hosts: &hosts, access: &access, changes: &changes };
        self.if_redirects(&place);
        let redirected: Vec<String> = server.inner().iter().filter_map(if_redirect).map(|(host, _)| host).collect();
        let rest: Vec<Option<String>> =
            hosts.iter().filter(|host| host.as_ref().is_none_or(|host| !redirected.contains(host))).cloned().collect();
        let place = Place { hosts: &rest, ..place };
        let own = server.inner().iter().find(|each| each.name() == "return");
        match own {
            Some(own) => {
                if let Some(action) = self.returned(own) {
                    self.add(&place, own.line, Path::Prefix("/".into()), &action);
                }
            }
            None => {
                for location in server.inner().iter().filter(|each| each.name() == "location") {
                    self.location(&place, location);
                }
                let has_root = server.inner().iter().any(|each| each.name() == "location" && each.word(1) == "/");
                if let (false, Some(root)) = (has_root, server.find("root")) {
                    let mut changes = changes.clone();
                    let is_open = Self::passwords(&[server, http], &mut changes);
                    let action = match guards(&[server, http]).first() {
                        Some(each) if !is_open => self.asks(each),
                        _ => self.plan.files(root.line, &root.text(), "nginx", "files are not served here"),
                    };
                    let place = Place { changes: &changes, ..place };
                    self.add(&place, root.line, Path::Prefix("/".into()), &action);
                }
            }
        }
    }

    /// As `notes`, without the conditions that became redirects.
    fn own_notes(&mut self, server: &Directive) {
        let block = server.inner().iter().filter(|each| if_redirect(each).is_none()).cloned().collect();
        self.notes(&Directive { block: Some(block), ..Directive::default() });
    }

    fn listens(&mut self, server: &Directive) -> Vec<Listen> {
        let mut listens: Vec<Listen> = Vec::new();
        let all: Vec<&Directive> = server.inner().iter().filter(|each| each.name() == "listen").collect();
        let implied = Directive { line: server.line, words: vec!["listen".into(), "80".into()], block: None };
        for each in if all.is_empty() { vec![&implied] } else { all } {
            let has = |word: &str| each.arguments().iter().any(|each| each == word);
            if has("quic") {
                self.plan.note(each.line, each.text(), "HTTP/3 is not served yet");
                continue;
            }
            let address = each.word(1);
            if address.starts_with("unix:") {
                self.plan.note(each.line, each.text(), "listeners are TCP: write an address with port");
                continue;
            }
            let is_tls = has("ssl") || server.find("ssl").is_some_and(|ssl| ssl.word(1) == "on");
            let listener = self.plan.listener(&bind(address), is_tls);
            if has("proxy_protocol") {
                listener.keys.insert("accept_proxy_protocol".into(), "true".into());
            }
            let name = listener.name.clone();
            let is_default = has("default_server") || has("default");
            match listens.iter_mut().find(|listen| listen.listener == name) {
                Some(known) => known.is_default |= is_default,
                None => listens.push(Listen { listener: name, is_tls, is_default }),
            }
        }
        listens
    }

    fn tls(&mut self, server: &Directive, listens: &[Listen]) {
        let chains: Vec<&Directive> = server.inner().iter().filter(|each| each.name() == "ssl_certificate").collect();
        let keys: Vec<&Directive> = server.inner().iter().filter(|each| each.name() == "ssl_certificate_key").collect();
        let is_modern = server.find("ssl_protocols").is_some_and(|each| each.arguments() == ["TLSv1.3"]);
        for listen in listens.iter().filter(|listen| listen.is_tls) {
            let Some(listener) = self.plan.listeners.iter_mut().find(|each| each.name == listen.listener) else {
                continue;
            };
            for (chain, key) in chains.iter().zip(&keys) {
                let (chain, key) = (chain.word(1).to_owned(), key.word(1).to_owned());
                let certificate =
                    if chain == key { Certificate::Path(chain) } else { Certificate::Pair { chain, key } };
                if !listener.certificates.contains(&certificate) {
                    listener.certificates.push(certificate);
                }
            }
            if is_modern {
                listener.policy = Some("modern");
            }
            let ca = server.find("ssl_client_certificate");
            let mode = server.find("ssl_verify_client").map(|each| each.word(1));
            if let (Some(ca), Some("on" | "optional")) = (ca, mode) {
                listener.client_auth.insert("ca".into(), quoted(ca.word(1)));
                // Other servers at this address may not ask; routes of this one require it.
                listener.client_auth.insert("mode".into(), quoted("optional"));
            }
        }
        for each in server.inner().iter().filter(|each| each.name() == "ssl_protocols") {
            if each.arguments().iter().any(|version| ["TLSv1", "TLSv1.1", "SSLv3"].contains(&version.as_str())) {
                self.plan.note(
                    each.line,
                    each.text(),
                    "TLS before 1.2 is not spoken: clients from before 2014 are refused",
                );
            }
        }
    }

    /// Proxies in front of this server, and timeouts of its clients.
    fn fields(&mut self, http: &Directive, server: &Directive, listener: &str) {
        let locations = server.inner().iter().filter(|each| each.name() == "location");
        let blocks: Vec<&Directive> = [http, server].into_iter().chain(locations).collect();
        let mut notes = Vec::new();
        let Some(listener) = self.plan.listeners.iter_mut().find(|each| each.name == listener) else { return };
        let from = blocks.iter().flat_map(|block| block.inner()).filter(|each| each.name() == "set_real_ip_from");
        let from: Vec<String> =
            from.map(|each| each.word(1).to_owned()).filter(|from| !from.starts_with("unix")).collect();
        let field =
            blocks.iter().find_map(|block| block.find("real_ip_header")).map_or("x-real-ip", |each| each.word(1));
        if !from.is_empty() {
            match field.to_ascii_lowercase().as_str() {
                "x-forwarded-for" => drop(listener.keys.insert("forwarded".into(), quoted("append"))),
                "proxy_protocol" if listener.keys.contains_key("accept_proxy_protocol") => {}
                _ => notes.push((blocks[1].line, format!("real_ip_header {field}"))),
            }
            if listener.keys.contains_key("forwarded") || listener.keys.contains_key("accept_proxy_protocol") {
                let networks: Vec<String> = from.iter().map(|network| quoted(network)).collect();
                listener.keys.insert("trusted_proxies".into(), format!("[{}]", networks.join(", ")));
            }
        }
        for (name, key) in
            [("keepalive_timeout", "idle"), ("client_header_timeout", "request_head"), ("client_body_timeout", "body")]
        {
            let found = [server, http].into_iter().find_map(|block| block.find(name));
            if let Some(time) = found.and_then(|each| duration(each.word(1), 1000)) {
                listener.timeouts.insert(key.into(), time);
            }
        }
        for (line, text) in notes {
            self.plan.note(
                line,
                text,
                "write `forwarded` and `trusted_proxies` in the listener, or accept_proxy_protocol",
            );
        }
    }

    /// `if ($host = x) { return 301 https://$host$request_uri; }`, as certbot writes it.
    fn if_redirects(&mut self, place: &Place<'_>) {
        for each in place.server.inner() {
            let Some((name, back)) = if_redirect(each) else { continue };
            let Some(action) = self.returned(back) else { continue };
            let hosts = [Some(name)];
            self.add(&Place { hosts: &hosts, ..*place }, each.line, Path::Prefix("/".into()), &action);
        }
    }

    fn returned(&mut self, each: &Directive) -> Option<Action> {
        let (status, target) = match each.word(1).parse::<u16>() {
            Ok(status) => (status, each.word(2)),
            Err(_) => (302, each.word(1)),
        };
        let is_redirect = [301, 302, 303, 307, 308].contains(&status);
        let hosts = ["$host", "$server_name", "$http_host"];
        let action = match is_redirect {
            true => redirect(target, &hosts, &["$request_uri", "$uri", "$uri$is_args$args", "$1", "/$1"], status)
                .map(Action::Redirect),
            false if (200..600).contains(&status) && !target.contains('$') => Some(respond(status, &unescaped(target))),
            // 444 closes the connection.
            false => None,
        };
        if action.is_none() {
            self.plan.note(
                each.line,
                each.text(),
                "this answer cannot be said in a route: write `redirect` or `respond`",
            );
        }
        action
    }

    /// Rates and requests at once: those of the innermost block that has any.
    fn limits(&mut self, blocks: &[&Directive], changes: &mut Changes) {
        const FIX: &str = "its zone is not in this file, or counts by what is no key here: write `limit` in its routes";
        for name in ["limit_req", "limit_conn"] {
            let Some(block) = blocks.iter().find(|block| block.find(name).is_some()) else { continue };
            for each in block.inner().iter().filter(|each| each.name() == name) {
                match self.zones.limit(each).map(|limit| (changes.limit(&limit.table), limit.differs)) {
                    Some((Ok(()), None)) => {}
                    Some((Ok(()), Some(differs))) => self.plan.note(each.line, each.text(), differs),
                    _ => self.plan.note(each.line, each.text(), FIX),
                }
            }
        }
    }

    /// Passwords, where these are all that is asked for.
    fn passwords(blocks: &[&Directive], changes: &mut Changes) -> bool {
        let find = |name: &str| blocks.iter().find_map(|block| block.find(name));
        let is_any = find("satisfy").is_some_and(|each| each.word(1) == "any");
        match (guards(blocks).as_slice(), find("auth_basic_user_file")) {
            ([each], Some(file)) if each.name() == "auth_basic" && !is_any => {
                !file.word(1).contains('$') && changes.basic(file.word(1), each.word(1)).is_ok()
            }
            _ => false,
        }
    }

    /// The answer in place of one who asks who comes.
    fn asks(&mut self, each: &Directive) -> Action {
        let fix =
            format!("who may come in is not carried over: write `auth` in the route, with `basic` or `jwt`; {CLOSED}");
        self.plan.note(each.line, each.text(), fix);
        respond(403, "")
    }

    fn location(&mut self, place: &Place<'_>, location: &Directive) {
        let Some(path) = location_path(location.arguments()) else {
            self.plan.note(location.line, location.text(), "named locations are not carried over");
            return;
        };
        self.notes(location);
        let access = Access::of(location, place.access);
        let denies = access.denies_rest && access.allowed.is_empty();
        let blocks = [location, place.server, place.http];
        let mut changes = self.changes(place.http, place.server, location);
        if !denies
            && !Self::passwords(&blocks, &mut changes)
            && let Some(each) = guards(&blocks).first()
        {
            let action = self.asks(each);
            self.add(&Place { access: &access, changes: &changes, ..*place }, location.line, path, &action);
            return;
        }
        if location.find("proxy_pass").is_some() {
            self.path_changes(location, &mut changes);
            changes.timeouts = self.own_timeouts(place, location);
        }
        let place = &Place { access: &access, changes: &changes, ..*place };
        let action = if location.find("internal").is_some() {
            Some(respond(404, ""))
        } else if denies {
            Some(respond(403, ""))
        } else if let Some(each) = location.find("proxy_pass") {
            self.proxied(place, location, each)
        } else if let Some(each) = location.find("fastcgi_pass")
            && let Some(action) = self.fastcgi(place, location, each)
        {
            Some(action)
        } else if let Some(each) = location.find("return") {
            self.returned(each)
        } else if location.find("stub_status").is_some() {
            self.plan.note(location.line, "stub_status", "metrics are at /metrics of the admin address: add [admin]");
            None
        } else {
            let program = ["fastcgi_pass", "uwsgi_pass", "scgi_pass", "grpc_pass"];
            let found = program.iter().find_map(|name| location.find(name));
            let why = match found.map(Directive::name) {
                Some("fastcgi_pass") => FASTCGI,
                Some(_) => "this protocol is not spoken to servers",
                None => "files are not served here",
            };
            let found =
                found.or_else(|| ["root", "alias", "try_files", "index"].iter().find_map(|name| location.find(name)));
            let each = found.unwrap_or(location);
            Some(self.plan.files(each.line, &each.text(), "nginx", why))
        };
        if let Some(action) = action {
            self.add(place, location.line, path, &action);
        }
    }

    fn proxied(&mut self, place: &Place<'_>, location: &Directive, pass: &Directive) -> Option<Action> {
        let target = pass.word(1);
        let Some((scheme @ ("http" | "https"), rest)) = target.split_once("://") else {
            self.plan.note(pass.line, pass.text(), "write the servers' addresses in a [backend.NAME]");
            return None;
        };
        let (authority, _) = target_parts(rest);
        let socket = unix_socket(authority);
        if rest.contains('$') || rest.starts_with("unix:") && socket.is_none() {
            let fix = "write the servers' addresses, HOST:PORT or unix:PATH, in a [backend.NAME] and a route to it";
            self.plan.note(pass.line, pass.text(), fix);
            return None;
        }
        let is_tls = scheme == "https";
        let name = name_of(authority);
        let upstream = self.upstreams.get(authority).cloned();
        let is_new = !self.plan.backends.iter().any(|each| each.name == name);
        self.plan.backend(&name, pass.line);
        if is_new {
            match upstream {
                Some(upstream) => self.upstream(&name, &upstream, is_tls),
                None => {
                    let address = socket.unwrap_or_else(|| with_port(authority, if is_tls { "443" } else { "80" }));
                    self.plan.backend(&name, pass.line).servers.push(Server { address, keys: Keys::new() });
                }
            }
            if is_tls {
                self.towards(place, location, &name);
            }
        }
        self.timeouts(place, &name, pass.line);
        Some(Action::Backend(name))
    }

    /// Servers of FastCGI; none where their addresses or the root of their scripts are not written down.
    fn fastcgi(&mut self, place: &Place<'_>, location: &Directive, pass: &Directive) -> Option<Action> {
        let target = pass.word(1);
        let upstream = self.upstreams.get(target).cloned();
        let servers = upstream.iter().flat_map(Directive::inner).filter(|each| each.name() == "server");
        let is_elsewhere = |address: &str| address.starts_with("unix:") || address.contains('$');
        if is_elsewhere(target) || servers.map(|each| each.word(1)).any(is_elsewhere) {
            return None;
        }
        let find = |key: &str| [location, place.server, place.http].into_iter().find_map(|block| block.find(key));
        let params: Vec<&Directive> = location.inner().iter().filter(|each| each.name() == "fastcgi_param").collect();
        let script = params.iter().find(|each| each.word(1) == "SCRIPT_FILENAME").map_or("", |each| each.word(2));
        let own = script.strip_suffix("$fastcgi_script_name").filter(|root| !root.contains('$'));
        let root = own.or_else(|| find("root").map(|each| each.word(1))).filter(|root| root.starts_with('/'))?;
        let scripts = if location.word(1) == "=" {
            format!("index = {}", quoted(location.word(2)))
        } else {
            format!("scripts = {}", quoted("any"))
        };
        let literal = |each: &&&Directive| !each.word(2).contains('$') && !each.word(2).is_empty();
        let params: Vec<String> = params
            .iter()
            .filter(literal)
            .filter(|each| !["REDIRECT_STATUS", "GATEWAY_INTERFACE", "CONTENT_LENGTH"].contains(&each.word(1)))
            .map(|each| {
                format!("{} = {}", key_text(each.word(1)), quoted(&each.word(2).replace('{', "{{").replace('}', "}}")))
            })
            .collect();
        let params = if params.is_empty() { String::new() } else { format!(", params = {{ {} }}", params.join(", ")) };
        let settings = format!("{{ root = {}, {scripts}{params} }}", quoted(root));
        // The same servers with other settings are another backend.
        let known = |name: &str| self.plan.backends.iter().find(|each| each.name == name);
        let is_other = |name: &String| known(name).is_some_and(|each| each.keys.get("fastcgi") != Some(&settings));
        let name = Some(name_of(target)).filter(|name| !is_other(name));
        let name = name.unwrap_or_else(|| format!("{}-{}", name_of(target), location.line));
        if known(&name).is_none() {
            self.plan.backend(&name, pass.line);
            match upstream {
                Some(upstream) => self.upstream(&name, &upstream, false),
                None => {
                    let address = with_port(target, "9000");
                    self.plan.backend(&name, pass.line).servers.push(Server { address, keys: Keys::new() });
                }
            }
            let keys = &mut self.plan.backend(&name, pass.line).keys;
            keys.insert("protocol".into(), quoted("fastcgi"));
            keys.insert("fastcgi".into(), settings);
        }
        Some(Action::Backend(name))
    }

    /// TLS to the servers, which nginx verifies only if it is told to.
    fn towards(&mut self, place: &Place<'_>, location: &Directive, name: &str) {
        let find = |key: &str| [location, place.server, place.http].into_iter().find_map(|block| block.find(key));
        let mut keys = BTreeMap::new();
        match find("proxy_ssl_verify").is_some_and(|each| each.word(1) == "on") {
            false => drop(keys.insert("verify".to_owned(), "false".to_owned())),
            true => {
                if let Some(ca) = find("proxy_ssl_trusted_certificate") {
                    keys.insert("ca".into(), quoted(ca.word(1)));
                }
                if let Some(name) = find("proxy_ssl_name").filter(|each| !each.word(1).contains('$')) {
                    keys.insert("server_name".into(), quoted(name.word(1)));
                }
            }
        }
        if !keys.contains_key("ca") && keys.contains_key("verify") {
            let line = location.line;
            self.plan.note(line, format!("[backend.{name}]"), "nginx has not verified these servers' certificates, and this does not: remove verify = false where it can");
        }
        self.plan.backend(name, location.line).tls = Some(keys);
    }

    /// Timeouts of the server's block, which are the backend's; other ones of it are those of its routes.
    fn timeouts(&mut self, place: &Place<'_>, name: &str, line: usize) {
        for (key, ours) in TIMEOUTS {
            let found = [place.server, place.http].into_iter().find_map(|block| block.find(key));
            let Some(time) = found.and_then(|each| duration(each.word(1), 1000)) else { continue };
            let timeouts = &mut self.plan.backend(name, line).timeouts;
            ours.iter().for_each(|ours| _ = timeouts.entry((*ours).to_owned()).or_insert(time.clone()));
        }
    }

    /// Timeouts that are a route's: of its location, or of a server whose backend has others.
    fn own_timeouts(&self, place: &Place<'_>, location: &Directive) -> BTreeMap<String, String> {
        let mut own = BTreeMap::new();
        let pass = location.find("proxy_pass").map_or("", |pass| pass.word(1));
        let authority = pass.split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or_default());
        let backend = self.plan.backends.iter().find(|each| each.name == name_of(authority));
        for (key, ours) in TIMEOUTS {
            let time = |block: &Directive| block.find(key).and_then(|each| duration(each.word(1), 1000));
            let outer = time(place.server).or_else(|| time(place.http));
            for ours in *ours {
                let known = backend.map_or(outer.clone(), |each| each.timeouts.get(*ours).cloned());
                let wanted = time(location).or_else(|| outer.clone());
                if let Some(wanted) = wanted.filter(|wanted| known.as_ref() != Some(wanted)) {
                    own.insert((*ours).to_owned(), wanted);
                }
            }
        }
        own
    }

    /// Fields, longest body and compression: those of the innermost block that has any of that name.
    fn changes(&mut self, http: &Directive, server: &Directive, location: &Directive) -> Changes {
        let mut changes = Changes::default();
        let blocks = [location, server, http];
        for name in ["proxy_set_header", "add_header", "proxy_hide_header"] {
            let Some(block) = blocks.iter().find(|block| block.find(name).is_some()) else { continue };
            for each in block.inner().iter().filter(|each| each.name() == name) {
                if name == "add_header" && each.word(3) != "always" && !each.word(2).is_empty() {
                    self.plan.note(each.line, each.text(), "errors have it as well here, as with `always`");
                }
                if let Err(what) = field(each, &mut changes) {
                    let kind = if name == "proxy_set_header" { "request" } else { "response" };
                    let rest = if kind == "request" { changes.withhold(each.word(1)) } else { "" };
                    let fix = format!("{what}; write what it should be in `{kind}` of its routes{rest}");
                    self.plan.note(each.line, each.text(), fix);
                }
            }
        }
        self.limits(&blocks, &mut changes);
        let find = |name: &str| blocks.iter().find_map(|block| block.find(name));
        if let Some(each) = find("client_max_body_size") {
            match bytes(each.word(1)) {
                Some(0) => {}
                Some(bytes) if changes.body_limit(bytes).is_ok() => {}
                _ => self.plan.note(each.line, each.text(), "write it as `body_limit` of its routes"),
            }
        }
        let is_on = |name: &str| find(name).is_some_and(|each| each.word(1) == "on");
        let mut compress = Compress::default();
        for (name, coding) in [("brotli", "br"), ("gzip", "gzip")] {
            if is_on(name) {
                compress.encodings.push(coding.to_owned());
            }
        }
        if let Some(each) = find("gzip").or_else(|| find("brotli")).filter(|_| !compress.encodings.is_empty()) {
            let types = find("gzip_types").or_else(|| find("brotli_types")).map_or(&[][..], Directive::arguments);
            if !types.iter().any(|word| word == "*") {
                compress.types.push("text/html".into());
                types.iter().for_each(|word| {
                    if !compress.types.contains(word) {
                        compress.types.push(word.clone());
                    }
                });
            }
            compress.minimum = Some(find("gzip_min_length").and_then(|each| bytes(each.word(1))).unwrap_or(20));
            compress.level =
                find("gzip_comp_level").and_then(|each| each.word(1).parse().ok()).filter(|_| is_on("gzip"));
            if let Err(what) = changes.compress(&compress) {
                self.plan.note(each.line, each.text(), format!("{what}; write `compress` in its routes"));
            }
        }
        changes
    }

    /// Changes of the path by a location: a URI in `proxy_pass`, or one `rewrite`.
    fn path_changes(&mut self, location: &Directive, changes: &mut Changes) {
        const FIX: &str = "write what becomes of the path as `request.path` of its route";
        for each in location.inner().iter().filter(|each| each.name() == "rewrite") {
            let is_path = ["break", ""].contains(&each.word(3)) && each.word(2).starts_with('/');
            let to = groups(each.word(2), '$').filter(|_| is_path);
            if to.is_none_or(|to| changes.path_regex(&whole(each.word(1)), &to).is_err()) {
                self.plan.note(each.line, each.text(), FIX);
            }
        }
        let Some(pass) = location.find("proxy_pass") else { return };
        let Some((_, rest)) = pass.word(1).split_once("://") else { return };
        let (_, uri) = target_parts(rest);
        if !uri.starts_with('/') || rest.contains('$') {
            return;
        }
        let uri = uri.to_owned();
        let done = match location_path(location.arguments()) {
            _ if changes.path.is_some() => Ok(()),
            Some(Path::Prefix(prefix) | Path::Exact(prefix)) if prefix == uri => Ok(()),
            Some(Path::Exact(_)) => changes.path("replace", &uri),
            Some(Path::Prefix(prefix)) if uri == "/" => changes.path("strip", prefix.trim_end_matches('/')),
            Some(Path::Prefix(prefix)) => {
                changes.path_regex(&format!("^{}", escaped(&prefix)), &uri.replace('$', "$$"))
            }
            _ => Err("a pattern".into()),
        };
        if done.is_err() {
            self.plan.note(pass.line, pass.text(), FIX);
        }
    }

    fn upstream(&mut self, name: &str, upstream: &Directive, is_tls: bool) {
        let mut notes = Vec::new();
        let backend = self.plan.backend(name, upstream.line);
        for each in upstream.inner() {
            match each.name() {
                "server" => match server(each, is_tls, &mut notes) {
                    Some(server) => backend.servers.push(server),
                    None => notes.push((each.line, each.text(), "write the server as HOST:PORT or unix:PATH")),
                },
                "least_conn" => drop(backend.keys.insert("balance".into(), quoted("least-connections"))),
                "random" => drop(backend.keys.insert("balance".into(), quoted("random"))),
                "ip_hash" => drop(backend.keys.insert("balance".into(), quoted("consistent-hash"))),
                "hash" => {
                    let key = match each.word(1) {
                        "$remote_addr" | "$binary_remote_addr" => Some(quoted("client-ip")),
                        "$uri" | "$request_uri" => Some(quoted("path")),
                        word => word
                            .strip_prefix("$http_")
                            .map(|name| format!("{{ header = {} }}", quoted(&name.replace('_', "-"))))
                            .or(word.strip_prefix("$cookie_").map(|name| format!("{{ cookie = {} }}", quoted(name)))),
                    };
                    match key {
                        Some(key) => {
                            backend.keys.insert("balance".into(), quoted("consistent-hash"));
                            backend.keys.insert("hash".into(), format!("{{ key = {key} }}"));
                        }
                        None => notes.push((each.line, each.text(), "hash by client-ip, path, a header or a cookie")),
                    }
                }
                "keepalive" | "zone" | "keepalive_timeout" | "keepalive_requests" | "keepalive_time" => {}
                _ => notes.push((each.line, each.text(), "it is not known to this command: see whether it matters")),
            }
        }
        for (line, text, fix) in notes {
            self.plan.note(line, text, fix);
        }
    }

    /// Routes of a location: for those that its `allow` and `deny` let in.
    fn add(&mut self, place: &Place<'_>, line: usize, path: Path, action: &Action) {
        let mut base = BTreeMap::new();
        if !place.access.methods.is_empty() {
            base.insert(("method".to_owned(), String::new()), one_or_list(&place.access.methods));
        }
        let source = |networks: &[String]| {
            let mut conditions = base.clone();
            conditions.insert(("source".to_owned(), String::new()), one_or_list(networks));
            conditions
        };
        if !place.access.denied.is_empty() {
            self.add_for(place, line, (&path, &source(&place.access.denied)), &respond(403, ""));
        }
        if !place.access.denies_rest {
            self.add_for(place, line, (&path, &base), action);
            if !base.is_empty() {
                self.add_for(place, line, (&path, &BTreeMap::new()), &respond(403, ""));
            }
            return;
        }
        if !place.access.allowed.is_empty() {
            self.add_for(place, line, (&path, &source(&place.access.allowed)), action);
        }
        self.add_for(place, line, (&path, &BTreeMap::new()), &respond(403, ""));
    }

    fn add_for(
        &mut self,
        place: &Place<'_>,
        line: usize,
        (path, conditions): (&Path, &BTreeMap<(String, String), String>),
        action: &Action,
    ) {
        for listen in place.listens {
            for host in place.hosts {
                self.plan.route(Route {
                    line,
                    listener: listen.listener.clone(),
                    host: host.clone(),
                    path: path.clone(),
                    conditions: conditions.clone(),
                    requires_certificate: place
                        .server
                        .find("ssl_verify_client")
                        .is_some_and(|each| each.word(1) == "on"),
                    action: action.clone(),
                    changes: place.changes.clone(),
                });
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Place<'p> {
    http: &'p Directive,
    server: &'p Directive,
    listens: &'p [Listen],
    hosts: &'p [Option<String>],
    access: &'p Access,
    changes: &'p Changes,
}

/// Clients that are let in, by address and method.
#[derive(Clone, Default)]
struct Access {
    allowed: Vec<String>,
    denied: Vec<String>,
    denies_rest: bool,
    /// Methods that are let in; none where all are.
    methods: Vec<String>,
}

impl Access {
    /// The rules of a block; those of an outer one where it has none.
    fn of(block: &Directive, outer: &Access) -> Access {
        let mut access = Access::default();
        let mut has_rules = false;
        for each in block.inner() {
            match (each.name(), each.word(1)) {
                ("allow", "all") => break,
                ("deny", "all") => access.denies_rest = true,
                ("allow", network) => access.allowed.push(network.to_owned()),
                ("deny", network) => access.denied.push(network.to_owned()),
                _ => continue,
            }
            has_rules = true;
        }
        let mut access = if has_rules { access } else { outer.clone() };
        // With another rule than `deny all` inside it is told as a directive that is not known.
        if let Some(except) =
            block.find("limit_except").filter(|each| each.find("deny").is_some_and(|deny| deny.word(1) == "all"))
        {
            access.methods = except.arguments().to_vec();
            if access.methods.iter().any(|method| method == "GET") {
                access.methods.push("HEAD".into());
            }
        }
        access
    }
}

/// Directives that ask who comes: of each kind the innermost holds.
fn guards<'d>(blocks: &[&'d Directive]) -> Vec<&'d Directive> {
    let is_guard = |each: &&Directive| {
        each.name().starts_with("auth_") && !["auth_basic_user_file", "auth_request_set"].contains(&each.name())
    };
    let mut seen: Vec<&str> = Vec::new();
    let mut found = Vec::new();
    for block in blocks {
        let own: Vec<&Directive> = block.inner().iter().filter(is_guard).collect();
        found.extend(own.iter().filter(|each| each.word(1) != "off" && !seen.contains(&each.name())));
        seen.extend(own.iter().map(|each| each.name()));
    }
    found
}

/// Timeouts, and what they are here.
const TIMEOUTS: &[(&str, &[&str])] =
    &[("proxy_connect_timeout", &["connect"]), ("proxy_read_timeout", &["first_byte", "body"])];

/// A change of a field, as `proxy_set_header`, `add_header` and `proxy_hide_header` make it.
fn field(each: &Directive, changes: &mut Changes) -> Result<(), String> {
    let (name, lower) = (each.word(1), each.word(1).to_ascii_lowercase());
    let value = || value(&unescaped(each.word(2))).ok_or("its value is made of what is no fact here".to_owned());
    match (each.name(), lower.as_str()) {
        ("proxy_hide_header", _) => changes.field((Side::Response, Kind::Remove), name, ""),
        ("proxy_set_header", "host") => match each.word(2) {
            "$host" | "$http_host" | "$host:$server_port" => Ok(()),
            "$proxy_host" => changes.host("{upstream.server}"),
            host => changes.host(host),
        },
        (
            "proxy_set_header",
            "connection" | "upgrade" | "x-forwarded-proto" | "x-forwarded-for" | "x-forwarded-host",
        ) => Ok(()),
        ("proxy_set_header", _) if each.word(2).is_empty() => changes.field((Side::Request, Kind::Remove), name, ""),
        ("proxy_set_header", _) => changes.field((Side::Request, Kind::Set), name, &value()?),
        _ if each.word(2).is_empty() => Ok(()),
        _ => changes.line(Side::Response, name, &value()?),
    }
}

/// A value with nginx's variables, where there are facts for them.
fn value(text: &str) -> Option<String> {
    const FACTS: &[(&str, &str)] = &[
        ("$remote_addr", "{client.ip}"),
        ("$remote_port", "{client.port}"),
        ("$scheme", "{request.scheme}"),
        ("$host", "{request.host}"),
        ("$request_method", "{request.method}"),
        ("$request_uri", "{request.path}{request.query}"),
        ("$ssl_protocol", "{tls.version}"),
        ("$ssl_server_name", "{tls.server_name}"),
        ("$upstream_addr", "{upstream.server}"),
    ];
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&plain(&rest[..at]));
        let variable = &rest[at..];
        let end =
            variable[1..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_').map_or(variable.len(), |end| end + 1);
        out.push_str(FACTS.iter().find(|(name, _)| *name == &variable[..end])?.1);
        rest = &variable[end..];
    }
    out.push_str(&plain(rest));
    Some(out)
}

/// A text whose escapes are nginx's: a line feed, a carriage return, a tab.
fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match (character, characters.clone().next()) {
            ('\\', Some(next @ ('n' | 'r' | 't' | '\\'))) => {
                out.push(match next {
                    'n' => '\n',
                    'r' => '\r',
                    't' => '\t',
                    other => other,
                });
                characters.next();
            }
            _ => out.push(character),
        }
    }
    out
}

/// Bytes, with nginx's k, m and g.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

fn is_handled(name: &str) -> bool {
    [
        "proxy_pass",
        "fastcgi_pass",
        "uwsgi_pass",
        "scgi_pass",
        "grpc_pass",
        "alias",
        "try_files",
        "stub_status",
        "ssl",
        "internal",
    ]
    .contains(&name)
}

fn server(each: &Directive, is_tls: bool, notes: &mut Vec<(usize, String, &'static str)>) -> Option<Server> {
    let address = match each.word(1) {
        socket if socket.starts_with("unix:") => unix_socket(socket)?,
        address => with_port(address, if is_tls { "443" } else { "80" }),
    };
    let mut server = Server { address, keys: Keys::new() };
    for word in each.arguments().iter().skip(1) {
        match word.split_once('=') {
            Some(("weight", weight)) => server.keys.push(("weight".into(), weight.to_owned())),
            Some(("max_conns", count)) if count != "0" => {
                server.keys.push(("max_connections".into(), count.to_owned()))
            }
            Some(("max_fails" | "fail_timeout" | "slow_start" | "max_conns", _)) => {}
            _ if word == "backup" => server.keys.push(("backup".into(), "true".into())),
            _ if word == "down" => server.keys.push(("drain".into(), "true".into())),
            _ => notes.push((each.line, word.clone(), "it is not known to this command: see whether it matters")),
        }
    }
    Some(server)
}

/// Parts of what stands behind the scheme in `proxy_pass`: server and URI. A socket's path ends with a colon where a
/// URI follows.
fn target_parts(rest: &str) -> (&str, &str) {
    let end = match rest.strip_prefix("unix:") {
        Some(path) => path.find(':').map_or(rest.len(), |end| "unix:".len() + end),
        None => rest.find('/').unwrap_or(rest.len()),
    };
    let (server, uri) = rest.split_at(end);
    (server, uri.trim_start_matches(':'))
}

/// `if ($host = NAME) { return ...; }`.
fn if_redirect(each: &Directive) -> Option<(String, &Directive)> {
    let condition = each.arguments().join(" ");
    let inside = condition.strip_prefix('(')?.strip_suffix(')')?;
    let (variable, name) = inside.split_once('=')?;
    let is_host = each.name() == "if" && ["$host", "$http_host"].contains(&variable.trim());
    let [back] = each.inner() else { return None };
    (is_host && back.name() == "return").then(|| Some((host(name.trim())?, back))).flatten()
}

fn host(name: &str) -> Option<String> {
    let name = name.strip_prefix('.').map_or(name.to_owned(), |rest| format!("*.{rest}"));
    let rest = name.strip_prefix("*.").unwrap_or(&name);
    let is_name = rest.contains(|c: char| c.is_ascii_alphanumeric())
        && rest.chars().all(|c| c.is_alphanumeric() || "-._".contains(c))
        && rest != "_";
    is_name.then_some(name)
}

fn bind(address: &str) -> String {
    match address.parse::<u16>() {
        Ok(port) => format!("0.0.0.0:{port}"),
        Err(_) => with_port(&address.replace('*', "0.0.0.0").replace("localhost", "127.0.0.1"), "80"),
    }
}

fn location_path(arguments: &[String]) -> Option<Path> {
    match arguments {
        [path] if path.starts_with('@') => None,
        [path] | [_, path] if path.is_empty() => None,
        [path] => Some(Path::Prefix(path.clone())),
        [kind, path] if kind == "=" => Some(Path::Exact(path.clone())),
        [kind, path] if kind == "^~" => Some(Path::Prefix(path.clone())),
        [kind, pattern] if kind == "~" => Some(Path::Regex(pattern.clone())),
        [kind, pattern] if kind == "~*" => Some(Path::Regex(format!("(?i){pattern}"))),
        _ => None,
    }
}

/// Relays of TCP.
fn stream(stream: &Directive, plan: &mut Plan) {
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
        let name = format!("tcp-{}", bind.rsplit(':').next().unwrap_or_default());
        let listener = plan.listener_named(&name, &bind, false);
        listener.keys.insert("protocol".into(), quoted("tcp"));
        let backend_name = name_of(pass.word(1));
        let mut notes = Vec::new();
        let backend = plan.backend(&backend_name, pass.line);
        if backend.servers.is_empty() {
            match all.get(pass.word(1)) {
                Some(upstream) => {
                    let servers = upstream.inner().iter().filter(|each| each.name() == "server");
                    let servers: Vec<Server> =
                        servers.filter_map(|each| super::nginx::server(each, false, &mut notes)).collect();
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

//! Words of other programs, and keys in the wrong table: what is written here for what they mean. A key that is close
//! to one of its table's is a slip, and is told as one before anybody looks here.

/// Table in which a key stands, by the title that messages give it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Listener,
    Backend,
    Route,
    Match,
}

fn place(title: &str) -> Option<Place> {
    Some(match title {
        "this route" => Place::Route,
        "`match`" => Place::Match,
        _ if title.starts_with("[listener.") => Place::Listener,
        _ if title.starts_with("[backend.") => Place::Backend,
        _ => return None,
    })
}

/// Words, in lower case and with `_` for `-`, and what to write.
const IN_ROUTES: &[(&[&str], &str)] = &[
    (&["strip_prefix", "strip_path", "strip", "uri_strip"], "request = { path = { strip = \"/api\" } }"),
    (
        &["rewrite", "rewrite_path", "replace_path", "prefix_rewrite", "uri", "rewrite_prefix"],
        "request = { path = { replace_prefix = \"/new\" } }, or { regex = \"^/a/(.*)$\", to = \"/b/$1\" }",
    ),
    (
        &["headers", "header_up", "proxy_set_header", "set_header", "set_headers", "request_headers", "request_header"],
        "request = { set = { X-Name = \"value\" } }, or response = { set = { ... } }",
    ),
    (
        &["add_header", "add_headers", "response_header", "response_headers", "header_down", "expires"],
        "response = { set = { X-Name = \"value\" } }",
    ),
    (&["remove_header", "remove_headers", "hide_header"], "response = { remove = [\"X-Name\"] }"),
    (&["hsts", "security", "secure_headers"], "security_headers = \"strict\""),
    (
        &["deny", "allow", "forbid", "block", "whitelist", "blacklist", "acl", "ip_allow", "ip_deny"],
        "limit = { exempt = [\"10.0.0.0/8\"], deny = [\"0.0.0.0/0\", \"::/0\"] }, or match = { source = ... } with respond = { status = 403 }",
    ),
    (
        &["rate_limit", "ratelimit", "limit_req", "limits", "rate"],
        "limit = { rate = \"10/s\", burst = 20, key = \"source\" }",
    ),
    (&["basic_auth", "basicauth", "auth_basic", "basic", "users"], "auth = { basic = { file = \"users\" } }"),
    (
        &["jwt", "auth_jwt", "oidc", "token"],
        "auth = { jwt = { issuer = \"https://id.example\", audience = \"app\", keys_file = \"jwks.json\" } }",
    ),
    (&["forward_auth", "auth_request", "forward"], "auth = { forward = { backend = \"auth\", path = \"/verify\" } }"),
    (&["api_key", "apikey", "api_keys"], "auth = { api_key = { file = \"keys\" } }"),
    (&["gzip", "brotli", "zstd", "encode", "compression"], "compress = {}"),
    (&["return", "status", "respond_with", "fixed_response", "static_response"], "respond = { status = 403 }"),
    (&["body"], "respond = { status = 200, body = \"text\" }"),
    (
        &["redirect_to", "redir", "location"],
        "redirect = { host = \"shop.example\" }, and path = { exact = \"/old\" } for which requests",
    ),
    (
        &[
            "proxy_pass",
            "upstream",
            "upstreams",
            "server",
            "servers",
            "to",
            "target",
            "proxy",
            "use_backend",
            "default_backend",
            "service",
        ],
        "backend = \"NAME\", with the servers in [backend.NAME]",
    ),
    (&["weight", "weights", "canary"], "backend = [{ name = \"a\", weight = 9 }, { name = \"b\", weight = 1 }]"),
    (&["path_prefix", "prefix", "paths"], "path = \"/api\": a path is a prefix"),
    (&["path_regex", "path_regexp", "regex"], "path = { regex = \"^/user/[0-9]+$\" }"),
    (&["path_exact", "exact"], "path = { exact = \"/login\" }"),
    (&["hosts", "server_name", "hostname", "domain", "domains"], "host = \"shop.example\""),
    (&["timeout", "proxy_read_timeout"], "timeouts = { request = \"30s\" }, or { connect, first_byte, body }"),
    (&["error_page", "errors", "handle_errors"], "error_pages = { 404 = \"404.html\", 5xx = \"5xx.html\" }"),
    (&["max_body", "client_max_body_size", "max_body_size", "request_body", "max_size"], "body_limit = \"1MiB\""),
    (&["retry", "lb_retries"], "retries = { attempts = 2, on = [\"reset\", 503] }"),
    (&["mirror_to", "shadow"], "mirror = { backend = \"next\", percent = 10 }"),
    (
        &["root", "file_server", "static"],
        "respond = { body_file = \"page.html\" } for one file; for folders, a backend whose servers have them",
    ),
    (&["websocket", "websockets", "upgrade"], "nothing: WebSockets pass by themselves"),
    (
        &["health", "health_check", "balance", "source_address", "protocol", "fastcgi", "hash"],
        "it in the [backend.NAME] of the route",
    ),
    (
        &["tls", "certificate", "certificates"],
        "it for the listener: [listener.NAME] has tls = \"NAME\", and [tls.NAME] certificates",
    ),
    (
        &["method", "methods", "header", "query", "cookie", "source", "port", "grpc", "remote_ip", "client_ip"],
        "it inside of `match`: match = { method = \"GET\" }, { source = \"10.0.0.0/8\" }, { header = { X-Name = \"value\" } }",
    ),
];

const IN_MATCHES: &[(&[&str], &str)] = &[
    (&["path", "host", "listener", "paths", "hosts"], "it in [[route]] itself, beside `match`"),
    (&["path_prefix", "prefix", "uri"], "path = \"/api\" in [[route]] itself, beside `match`"),
    (&["path_regex", "path_regexp", "regex"], "path = { regex = \"^/a/[0-9]+$\" } in [[route]] itself, beside `match`"),
    (&["remote_ip", "client_ip", "ip", "src", "remote_addr"], "source = \"10.0.0.0/8\""),
    (&["headers"], "header = { X-Name = \"value\" }"),
    (&["cookies"], "cookie = { name = \"value\" }"),
];

const IN_LISTENERS: &[(&[&str], &str)] = &[
    (&["listen", "address", "port", "addr"], "bind = \"[::]:443\""),
    (
        &["ssl", "certificate", "certificates", "certs", "cert", "ssl_certificate"],
        "tls = \"NAME\", with certificates = [\"site.pem\"] in [tls.NAME]",
    ),
    (
        &["server_name", "hosts", "host", "routes", "route", "backend", "default_backend"],
        "a [[route]] with `listener`, `host` and `backend`",
    ),
    (&["https_redirect", "force_https", "redirect_https"], "redirect_to_https = true"),
    (&["proxy_protocol", "accept_proxy"], "accept_proxy_protocol = true"),
    (&["mode"], "protocol = \"http\" or \"tcp\""),
    (&["h2"], "nothing: HTTP/2 is offered over TLS by itself"),
];

const IN_BACKENDS: &[(&[&str], &str)] = &[
    (
        &[
            "upstream",
            "upstreams",
            "server",
            "address",
            "addresses",
            "url",
            "urls",
            "target",
            "targets",
            "to",
            "endpoints",
        ],
        "servers = [\"10.0.0.1:8080\"]",
    ),
    (&["lb_policy", "load_balancing", "algorithm", "lb", "policy"], "balance = \"least-connections\""),
    (&["check", "health_check", "healthcheck", "health_uri", "option_httpchk"], "health = { path = \"/health\" }"),
    (&["ssl", "https", "scheme", "transport"], "tls = {}, which verifies servers by the system's authorities"),
    (&["keepalive", "keep_alive", "pool"], "max_idle = 100"),
    (
        &["maxconn", "max_conns"],
        "max_connections for a server: servers = [{ address = \"10.0.0.1:8080\", max_connections = 100 }]",
    ),
    (&["timeout"], "timeouts = { connect = \"5s\", first_byte = \"60s\" }"),
    (&["sticky_session", "affinity", "session_affinity", "stick_table"], "sticky = { cookie = \"server\" }"),
];

/// Cure for conditions that say what is not to hold.
const NEGATED: &str = "a route of its own for the requests that are meant not to fit: the more exact one goes before";

/// Whether a key says the contrary of what stands behind its first word.
pub fn negates(key: &str) -> bool {
    let first = key.split(['_', '-', '.']).next().unwrap_or_default().to_ascii_lowercase();
    ["not", "no", "non", "except", "exclude", "excluding", "without", "unless"].contains(&first.as_str())
}

/// Cure: a line in place of a key that a table does not have.
pub fn cure(title: &str, key: &str) -> Option<&'static str> {
    let place = place(title)?;
    if place == Place::Match && negates(key) {
        return Some(NEGATED);
    }
    let words = match place {
        Place::Route => IN_ROUTES,
        Place::Match => IN_MATCHES,
        Place::Listener => IN_LISTENERS,
        Place::Backend => IN_BACKENDS,
    };
    let key = key.to_ascii_lowercase().replace('-', "_");
    words.iter().find(|(words, _)| words.contains(&key.as_str())).map(|(_, cure)| *cure)
}

/// Variables of nginx, and the facts that are the same.
const VARIABLES: &[(&str, &str)] = &[
    ("remote_addr", "{client.ip}"),
    ("remote_port", "{client.port}"),
    ("host", "{request.host}"),
    ("http_host", "{request.host}"),
    ("scheme", "{request.scheme}"),
    ("uri", "{request.path}"),
    ("request_method", "{request.method}"),
    ("request_id", "{request.id}"),
    ("ssl_protocol", "{tls.version}"),
];

/// The first variable of nginx in a text, where facts have another form, and the fact.
pub fn variable(text: &str) -> Option<(&'static str, &'static str)> {
    text.split('$').skip(1).find_map(|rest| {
        let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(rest.len());
        VARIABLES.iter().copied().find(|(name, _)| *name == &rest[..end])
    })
}

/// A table as it is written for a key, by the key as messages show it.
pub fn example_table(key: &str) -> Option<&'static str> {
    Some(match key {
        "`health`" => "health = { path = \"/\" }",
        "`tls`" => "tls = {}, which verifies servers by the system's authorities",
        "`respond`" => "respond = { status = 403, body = \"text\" }",
        "`redirect`" => "redirect = { scheme = \"https\", host = \"shop.example\", path = \"/new\" }",
        "`basic`" => "basic = { file = \"users\" }",
        "`cors`" => "cors = { origins = [\"https://shop.example\"] }",
        "`mirror`" => "mirror = { backend = \"next\", percent = 10 }",
        "`auth`" => "auth = { basic = { file = \"users\" } }",
        "`limit`" => "limit = { rate = \"10/s\" }",
        "`throttle`" => "throttle = { download = \"1MiB\" }",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;

    /// Whether a configuration with a line in one of its tables is right, but for files, which nobody reads here.
    fn is_right(place: Place, line: &str) -> bool {
        let of = |wanted| if place == wanted { line } else { "" };
        let bind = if line.starts_with("bind") { "" } else { "bind = \"[::]:1\"\n" };
        let tls = if line.starts_with("alpn") || line.starts_with("accept") { "tls = \"NAME\"\n" } else { "" };
        let servers = if line.starts_with("servers") { "" } else { "servers = [\"a.test:1\"]\n" };
        let matched = if place == Place::Match { format!("match = {{ {line} }}\n") } else { String::new() };
        let route = of(Place::Route);
        let has_action = ["backend", "respond", "redirect"].iter().any(|action| route.starts_with(action));
        let action = if has_action { "" } else { "backend = \"NAME\"\n" };
        let others =
            ["auth", "a", "b", "next"].map(|name| format!("[backend.{name}]\nservers = [\"{name}.test:1\"]\n"));
        let text = format!(
            "[listener.web]\n{bind}{tls}{}\n[tls.NAME]\ncertificates = [\"a.pem\"]\n[backend.NAME]\n{servers}{}\n{}[[route]]\n{action}{route}\n{matched}",
            of(Place::Listener),
            of(Place::Backend),
            others.concat()
        );
        let source = Source { name: "a.toml".into(), base: "".into(), text };
        crate::parse(&source).is_ok()
    }

    /// The longest beginning of a cure that is a line to be written; `None`: it is all words.
    fn line_of(place: Place, cure: &str) -> Option<String> {
        let ends = cure.char_indices().rev().filter(|(_, end)| matches!(end, '"' | '}' | ']' | 'e' | '0'));
        let mut lines = ends.map(|(at, _)| cure[..=at].to_owned()).filter(|line| line.contains(" = "));
        lines.find(|line| is_right(place, line))
    }

    #[test]
    fn a_cure_is_a_line_that_is_right_or_says_where_the_key_is() {
        for (place, words) in [
            (Place::Route, IN_ROUTES),
            (Place::Match, IN_MATCHES),
            (Place::Listener, IN_LISTENERS),
            (Place::Backend, IN_BACKENDS),
        ] {
            for (_, cure) in words {
                let in_words = ["it ", "nothing:", "a route of its own", "a [[route]]", "max_connections for"];
                let is_elsewhere = cure.contains("in [[route]] itself");
                let is_told = in_words.iter().any(|begin| cure.starts_with(begin)) || is_elsewhere;
                assert!(is_told || line_of(place, cure).is_some(), "{cure}");
            }
        }
    }

    #[test]
    fn an_example_of_a_table_is_right() {
        for key in ["`respond`", "`redirect`", "`cors`", "`mirror`", "`auth`", "`limit`", "`throttle`"] {
            let example = example_table(key).expect(key);
            assert!(is_right(Place::Route, example), "{example}");
        }
        assert!(is_right(Place::Backend, example_table("`health`").expect("an example")));
        assert_eq!(example_table("`zebra`"), None);
    }

    #[test]
    fn words_of_others_are_known_in_their_tables_alone() {
        assert!(cure("this route", "Strip-Prefix").is_some_and(|cure| cure.contains("strip = ")));
        assert!(cure("`match`", "path").is_some_and(|cure| cure.contains("beside `match`")));
        assert_eq!(cure("this route", "zebra"), None);
        assert_eq!(cure("`match`", "not_source"), Some(NEGATED));
        assert!(["not", "not_source", "except-path", "exclude.ip"].iter().all(|key| negates(key)));
        assert!(["notes", "source", "nobody", "none"].iter().all(|key| !negates(key)));
        assert_eq!(variable("a $hosts, $remote_addr;"), Some(("remote_addr", "{client.ip}")));
        assert_eq!(variable("$1 $ $zebra"), None);
        let known = || crate::Fact::ALL.iter().chain(crate::Fact::OF_REQUESTS);
        for (_, fact) in VARIABLES {
            assert!(known().any(|(name, _)| *fact == format!("{{{name}}}")), "{fact}");
        }
        assert_eq!(cure("[log]", "rewrite"), None);
    }
}

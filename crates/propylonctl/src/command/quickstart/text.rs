//! The text of the configuration, which explains itself.

use std::path::{Path, PathBuf};

use super::site::{Admin, Host, Server};
use super::{HTTP_PORT, HTTPS_PORT};

/// All that the text is made of.
pub struct Plan<'a> {
    pub host: &'a Host,
    pub https_port: u16,
    pub http_port: Option<u16>,
    /// At least one, all of one kind.
    pub servers: &'a [Server],
    pub admin: &'a Admin,
    pub health_path: Option<&'a str>,
    pub certificate: Certificate,
    pub has_ipv6: bool,
}

pub enum Certificate {
    /// A certificate of this machine's authority.
    Local { file: PathBuf, root: PathBuf },
    /// A certificate of Let's Encrypt.
    Ordered { state: PathBuf, contact: Option<String> },
}

impl Plan<'_> {
    pub fn url(&self) -> String {
        match self.https_port {
            HTTPS_PORT => format!("https://{}", self.host),
            port => format!("https://{}:{port}", self.host),
        }
    }

    /// The addresses of a port, as an array.
    fn bind(&self, port: u16) -> String {
        let (v4, v6) = match self.host {
            Host::Address(address) if address.is_loopback() => {
                return format!("[{}]", quoted(&std::net::SocketAddr::new(*address, port).to_string()));
            }
            host if host.is_loopback() => ("127.0.0.1", "[::1]"),
            _ => ("0.0.0.0", "[::]"),
        };
        if self.has_ipv6 { format!("[\"{v4}:{port}\", \"{v6}:{port}\"]") } else { format!("[\"{v4}:{port}\"]") }
    }
}

/// The whole file.
pub fn configuration(plan: &Plan<'_>) -> String {
    let servers: Vec<String> = plan.servers.iter().map(Server::to_string).collect();
    let mut text = format!(
        "# {} in front of {}: written by `propylon quickstart`; the manual has every key.\n\
         #\n\
         #   propylon check -c FILE      says what is wrong with it, with line and cure\n\
         #   propylon run -c FILE        serves it; SIGHUP has a running engine read it again\n\n",
        plan.url(),
        servers.join(", ")
    );
    text.push_str(&of_process(plan));
    text.push_str(&of_listeners(plan));
    text.push_str(&of_certificate(plan));
    text.push_str(&of_backend(plan));
    text.push_str(&of_route(plan));
    text
}

fn of_process(plan: &Plan<'_>) -> String {
    format!(
        "[process]\n\
         # How long requests in progress may take to end when Propylon is stopped.\n\
         drain_timeout = \"30s\"\n\n\
         [admin]\n\
         # The dashboard at /, metrics for Prometheus at /metrics, and /health; open to this machine alone.\n\
         bind = {}\n\n\
         [log]\n\
         # A line of JSON for each request; a file's path in place of \"stdout\" writes there.\n\
         access = \"stdout\"\n\n",
        quoted(&plan.admin.to_string())
    )
}

fn of_listeners(plan: &Plan<'_>) -> String {
    let mut text = String::new();
    let reach =
        if plan.host.is_loopback() { "Reached by this machine alone." } else { "Every address of this machine." };
    if let Some(port) = plan.http_port {
        let (purpose, redirect) = match plan.https_port {
            HTTPS_PORT => ("", "true".to_owned()),
            port => (" and port", format!("{{ port = {port} }}")),
        };
        let challenge = match plan.certificate {
            Certificate::Ordered { .. } if port == HTTP_PORT => {
                " Questions of the certificate's authority are answered here."
            }
            _ => "",
        };
        text.push_str(&format!(
            "# Plaintext.{challenge}\n\
             [listener.http]\n\
             # {reach}\n\
             bind = {}\n\
             # Every other request is sent to the same URL with https{purpose}.\n\
             redirect_to_https = {redirect}\n\n",
            plan.bind(port)
        ));
    }
    text.push_str(&format!(
        "# TLS 1.2 and 1.3, HTTP/1.1 and HTTP/2.\n\
         [listener.https]\n\
         # {reach}\n\
         bind = {}\n\
         # The [tls.site] below.\n\
         tls = \"site\"\n\
         # The defaults: for a handshake, for a request's head, for waits within a body, and between two requests.\n\
         timeouts = {{ handshake = \"10s\", request_head = \"10s\", body = \"30s\", idle = \"75s\" }}\n\n",
        plan.bind(plan.https_port)
    ));
    text
}

fn of_certificate(plan: &Plan<'_>) -> String {
    match &plan.certificate {
        Certificate::Local { file, root } => format!(
            "[tls.site]\n\
             # Chain and key, of the authority of this machine, since no public one certifies this host. Clients trust it by\n\
             # {}\n\
             # and the same `propylon quickstart`, run again within its last 60 days, replaces it.\n\
             certificates = [{}]\n\
             # How often to look whether the file has changed.\n\
             watch = \"1m\"\n\n",
            root.display(),
            quoted_path(file)
        ),
        Certificate::Ordered { state, contact } => of_ordered(plan, state, contact.as_deref()),
    }
}

fn of_ordered(plan: &Plan<'_>, state: &Path, contact: Option<&str>) -> String {
    let contact = match contact {
        Some(address) => format!("contact = {}", quoted(address)),
        None => format!("# contact = \"mailto:ops@{}\"", plan.host),
    };
    let challenge = match (plan.https_port, plan.http_port) {
        (HTTPS_PORT, _) => "",
        (_, Some(HTTP_PORT)) => {
            "# The authority asks at port 80, since it would ask for TLS at 443 alone.\nchallenge = \"http-01\"\n"
        }
        _ => "# The authority asks at port 443: it has to lead here, or port 80 with challenge = \"http-01\".\n",
    };
    format!(
        "# Certificates of Let's Encrypt, ordered and renewed by Propylon itself.\n\
         [acme.letsencrypt]\n\
         # You have read https://letsencrypt.org/repository, and agree.\n\
         terms_agreed = true\n\
         # An address that the authority writes to if something is wrong.\n\
         {contact}\n\
         # The folder of the account and its certificates; it has to outlive restarts.\n\
         state = {}\n\
         {challenge}\n\
         [tls.site]\n\
         # One certificate for these names, all of which have to lead here; until it has come, TLS is refused.\n\
         certificates = [{{ acme = \"letsencrypt\", names = [{}] }}]\n\n",
        quoted_path(state),
        quoted(&plan.host.plain())
    )
}

fn of_backend(plan: &Plan<'_>) -> String {
    let servers: Vec<String> = plan.servers.iter().map(|server| quoted(&server.address)).collect();
    let tls = if plan.servers.iter().any(|server| server.is_tls) {
        "# TLS to them, verified by the system's authorities; { ca = \"FILE\", server_name = \"NAME\" } for others.\ntls = {}\n"
    } else {
        ""
    };
    let health = match plan.health_path {
        Some(path) => format!(
            "# Each is asked for this every two seconds; one that does not answer with 200 to 399 gets no requests.\n\
             health = {{ path = {} }}\n",
            quoted(path)
        ),
        None => "# Each is connected to every two seconds; one that cannot be gets no requests. { path = \"/health\" } asks it.\n\
             health = {}\n"
            .to_owned(),
    };
    format!(
        "[backend.app]\n\
         # Requests take turns at these; add others as you have them.\n\
         servers = [{}]\n\
         {tls}{health}\
         # The defaults: for a connect, for the head of a response, for waits within a body, and for idle connections.\n\
         timeouts = {{ connect = \"3s\", first_byte = \"60s\", body = \"60s\", idle = \"50s\" }}\n\n",
        servers.join(", ")
    )
}

fn of_route(plan: &Plan<'_>) -> String {
    let transport = if plan.host.is_localhost() {
        "# Without this, browsers would ask for https of all that listens at this name, at any port, for a year.\n\
         response = { set = { Strict-Transport-Security = \"max-age=0\" } }\n"
    } else {
        ""
    };
    format!(
        "[[route]]\n\
         # Requests for this host, and no other, go to the servers.\n\
         host = {}\n\
         # Fields that make browsers careful: https alone, no frames of other sites, no guesses at types.\n\
         security_headers = \"strict\"\n\
         {transport}\
         backend = \"app\"\n",
        quoted(&plan.host.to_string())
    )
}

/// A string of TOML; those of JSON are.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Paths have been looked at: they are text.
fn quoted_path(path: &Path) -> String {
    quoted(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use propylon_config::Source;

    use super::super::{checked, site};
    use super::*;

    #[test]
    fn every_kind_of_site_gives_a_text_that_check_and_fmt_are_content_with() {
        let local = || Certificate::Local { file: "/var/lib/a b/x.pem".into(), root: "/var/lib/a b/root.pem".into() };
        let ordered = |contact: Option<&str>| Certificate::Ordered {
            state: "/var/lib/x".into(),
            contact: contact.map(str::to_owned),
        };
        for (url, servers, http_port, certificate, words) in [
            ("https://localhost:8443", "http://127.0.0.1:3000", None, local(), &["127.0.0.1:8443", "max-age=0"][..]),
            ("https://shop.test", "https://app.internal", Some(80), local(), &["0.0.0.0:443", "tls = {}", "= true"]),
            ("https://[::1]:8443", "unix:/run/app.sock", Some(8080), local(), &["[\"[::1]:8443\"]", "{ port = 8443 }"]),
            ("https://shop.example", "app:3000", Some(80), ordered(None), &["# contact = \"mailto:ops@shop.example\""]),
            (
                "https://shop.example:8443",
                "app:3000",
                Some(80),
                ordered(Some("mailto:a@b.c")),
                &["\"http-01\"", "a@b.c"],
            ),
            ("https://shop.example:8443", "app:3000", Some(81), ordered(None), &["it has to lead here"]),
        ] {
            let site = site::site(url).expect("a site");
            let (servers, admin) = ([site::server(servers).expect("a server")], site::admin("127.0.0.1:9900"));
            let plan = Plan {
                host: &site.host,
                https_port: site.port.unwrap_or(HTTPS_PORT),
                http_port,
                servers: &servers,
                admin: &admin.expect("an address"),
                health_path: Some("/health"),
                certificate,
                has_ipv6: true,
            };
            let text = checked(&configuration(&plan)).expect("a good configuration");
            words.iter().for_each(|word| assert!(text.contains(word), "no {word} in:\n{text}"));
            let source = Source { name: "a.toml".into(), base: PathBuf::from("/"), text };
            assert_eq!(propylon_config::format(&source).as_ref(), Ok(&source.text));
            assert_eq!(propylon_config::parse(&source).map(|(_, warnings)| warnings), Ok(vec![]), "{url}");
            // A comment above each key, that of another or of its own.
            for (index, line) in source.text.lines().enumerate() {
                assert!(line.chars().count() <= 120, "{line}");
                let before = index.checked_sub(1).and_then(|index| source.text.lines().nth(index)).unwrap_or_default();
                let is_key = line.contains(" = ") && !line.starts_with('#');
                assert!(!is_key || before.starts_with('#') || line.starts_with("backend ="), "{before}\n{line}");
            }
        }
    }
}

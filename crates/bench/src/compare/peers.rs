//! The programs that are compared, and equal configurations for them.
//!
//! Equal means: one worker, no logs, the same certificates, TLS versions, ciphers and curves, tickets on, keep-alive on
//! both sides, `/ok` answered by the proxy itself, everything else from the origin; and each tuned as its own manual
//! advises for that.

use super::SITE_NAME;
use super::rows::Bench;
use crate::failure::{Failure, Outcome, While};
use crate::machine;
use clap::ValueEnum;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Path that the proxy answers itself.
pub const OWN_PATH: &str = "/ok";
/// Clients that a proxy with these configurations is good for, with room for what else it opens.
pub const CLIENTS_MAX: usize = 9000;
/// Connections that a proxy must be able to hold, with as many to the origin.
const CONNECTIONS_MAX: usize = 9500;
/// TLS 1.2 ciphers, offered to all clients alike. (TLS 1.3 has its own three, on in every program.)
const CIPHERS_12: &str = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:\
    ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:\
    ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305";
const CIPHERS_13: &str = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    #[value(skip)]
    Propylon,
    Haproxy,
    Nginx,
}

/// A peer that is here, and what it says about itself.
pub struct Program {
    pub peer: Peer,
    pub path: PathBuf,
    pub version: String,
}

/// Where everything is for one run of one proxy.
pub struct Site {
    pub directory: PathBuf,
    pub plain: SocketAddr,
    pub tls: SocketAddr,
    pub origin: SocketAddr,
    pub workers: usize,
    /// PEM files with chain and key.
    pub certificates: Vec<PathBuf>,
    curves: &'static str,
}

impl Site {
    pub fn new(bench: &Bench) -> Outcome<Self> {
        Self::at(bench.scratch.path(), bench.origin)
    }

    /// On free ports, with its files in `directory`; one worker, an EC and an RSA certificate.
    pub fn at(directory: &Path, origin: SocketAddr) -> Outcome<Self> {
        let certificates = ["ec", "rsa"].map(|key| directory.join(format!("{SITE_NAME}.{key}.pem")));
        Self::with(directory, origin, 1, certificates.to_vec())
    }

    /// The same with so many workers and these certificates: PEM files with chain and key.
    pub fn with(directory: &Path, origin: SocketAddr, workers: usize, certificates: Vec<PathBuf>) -> Outcome<Self> {
        let ports = machine::free_ports(2)?;
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        Ok(Self {
            directory: directory.to_owned(),
            plain: local(ports[0]),
            tls: local(ports[1]),
            origin,
            workers,
            certificates,
            curves: "X25519:P-256:P-384",
        })
    }

    fn file(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }
}

impl Program {
    /// Where it is to be expected: Propylon at `propylon` or beside this program, the others on the search path.
    pub fn find_installed(peer: Peer, propylon: Option<&Path>) -> Outcome<Self> {
        let propylon = propylon.filter(|_| peer == Peer::Propylon);
        Self::find(peer, &peer.path(propylon)?)
    }

    /// `path` may be a bare name, to be found as a shell would find it.
    pub fn find(peer: Peer, path: &Path) -> Outcome<Self> {
        let (flag, name) = match peer {
            Peer::Propylon => ("--version", "propylon"),
            Peer::Haproxy => ("-vv", "haproxy"),
            Peer::Nginx => ("-V", "nginx"),
        };
        let output = Command::new(path)
            .arg(flag)
            .output()
            .map_err(|error| Failure::new(format!("{name} ({}): {error}", path.display())))?;
        if !output.status.success() {
            return Err(Failure::new(format!("{name} {flag}: {}", output.status)));
        }
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let version = peer.version_of(&text);
        if version.is_empty() {
            let path = path.display();
            return Err(Failure::new(format!("{name} ({path}): {flag} says nothing")));
        }
        Ok(Self { peer, path: path.to_owned(), version })
    }

    /// Writes the configuration; the command starts the program in the foreground with it.
    pub fn command(&self, site: &Site) -> Outcome<Command> {
        let config = site.directory.join(self.peer.config_name());
        std::fs::write(&config, self.peer.config(site)).when(format_args!("writing {}", config.display()))?;
        let mut command = Command::new(&self.path);
        match self.peer {
            Peer::Propylon => command.args(["run", "-c"]).arg(&config),
            Peer::Haproxy => command.args(["-db", "-q", "-f"]).arg(&config),
            Peer::Nginx => command.arg("-p").arg(&site.directory).args(["-e", "stderr", "-c"]).arg(&config),
        };
        Ok(command)
    }
}

impl Peer {
    pub fn named(name: &str) -> Option<Self> {
        [Self::Propylon, Self::Haproxy, Self::Nginx].into_iter().find(|peer| peer.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Propylon => "propylon",
            Self::Haproxy => "haproxy",
            Self::Nginx => "nginx",
        }
    }

    /// The program to start: the one that was named, or propylon beside this one and peers where a shell finds them.
    pub fn path(self, given: Option<&Path>) -> Outcome<PathBuf> {
        match (given, self) {
            (Some(path), _) => Ok(path.to_owned()),
            (None, Self::Propylon) => {
                Ok(std::env::current_exe().when("finding this program")?.with_file_name(self.name()))
            }
            (None, _) => Ok(self.name().into()),
        }
    }

    pub fn config_name(self) -> &'static str {
        match self {
            Self::Propylon => "propylon.toml",
            Self::Haproxy => "haproxy.cfg",
            Self::Nginx => "nginx.conf",
        }
    }

    pub fn config(self, site: &Site) -> String {
        match self {
            Self::Propylon => propylon_config(site),
            Self::Haproxy => haproxy_config(site),
            Self::Nginx => nginx_config(site),
        }
    }

    /// The program's version and its TLS library's, in one line.
    fn version_of(self, text: &str) -> String {
        let line_with = |part: &str| text.lines().find(|line| line.contains(part)).unwrap_or_default().trim();
        match self {
            Self::Propylon => text.lines().next().unwrap_or_default().trim().to_owned(),
            Self::Haproxy => {
                let version = line_with("HAProxy version").split_ascii_whitespace().nth(2).unwrap_or("?");
                let library = line_with("Running on OpenSSL version").split(" : ").nth(1).unwrap_or("unknown TLS");
                format!("HAProxy {version}, {library}")
            }
            Self::Nginx => {
                let version = line_with("nginx version:").trim_start_matches("nginx version: ");
                let built = line_with("built with");
                // "built with OpenSSL 3.0.20 ... (running with OpenSSL 3.0.19 ...)": what runs counts.
                let library = built.split("(running with ").nth(1).unwrap_or(built).trim_end_matches(')');
                format!("{version}, {}", library.trim_start_matches("built with "))
            }
        }
    }
}

fn propylon_config(site: &Site) -> String {
    let (plain, tls, origin) = (site.plain, site.tls, site.origin);
    let certificates: Vec<String> =
        site.certificates.iter().map(|path| format!("{:?}", path.display().to_string())).collect();
    let (workers, certificates) = (site.workers, certificates.join(", "));
    format!(
        r#"[process]
workers = {workers}

[log]
access = "off"

[listener.plain]
bind = "{plain}"
protocol = "http"

[listener.secure]
bind = "{tls}"
protocol = "http"
tls = "site"

[tls.site]
certificates = [{certificates}]
policy = "intermediate"
prefer = ["ecdsa", "rsa"]

[backend.origin]
servers = ["{origin}"]

[[route]]
path = {{ exact = "{OWN_PATH}" }}
respond = {{ status = 200, body = "ok" }}

[[route]]
path = "/"
backend = "origin"
"#
    )
}

fn haproxy_config(site: &Site) -> String {
    let (plain, tls, origin, curves) = (site.plain, site.tls, site.origin, site.curves);
    let crt: Vec<String> = site.certificates.iter().map(|path| format!("crt {}", path.display())).collect();
    let (workers, crt) = (site.workers, crt.join(" "));
    format!(
        "global
    nbthread {workers}
    maxconn {CONNECTIONS_MAX}
    ssl-default-bind-options ssl-min-ver TLSv1.2
    ssl-default-bind-ciphers {CIPHERS_12}
    ssl-default-bind-ciphersuites {CIPHERS_13}

defaults
    mode http
    no log
    option dontlognull
    http-reuse always
    timeout connect 5s
    timeout client 10m
    timeout server 10m
    timeout http-keep-alive 10m

frontend site
    bind {plain} backlog 4096
    bind {tls} backlog 4096 ssl {crt} curves {curves} alpn http/1.1
    http-request return status 200 content-type text/plain string ok if {{ path {OWN_PATH} }}
    default_backend origin

backend origin
    server origin {origin} pool-purge-delay 10m
"
    )
}

fn nginx_config(site: &Site) -> String {
    let origin = site.origin;
    let temp = site.file("nginx-temp");
    let pid = site.file("nginx.pid");
    let server = nginx_server(site);
    let workers = site.workers;
    // Started by root it would become another user, who may not write to our directory.
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    format!(
        "{user}
daemon off;
worker_processes {workers};
worker_rlimit_nofile 20000;
pid {pid};
error_log stderr crit;
events {{
    worker_connections 16384;
}}
http {{
    access_log off;
    default_type text/plain;
    client_body_temp_path {temp}-body;
    proxy_temp_path {temp}-proxy;
    fastcgi_temp_path {temp}-fastcgi;
    uwsgi_temp_path {temp}-uwsgi;
    scgi_temp_path {temp}-scgi;
    keepalive_timeout 600s;
    keepalive_requests 1000000000;
    keepalive_time 24h;
    upstream origin {{
        server {origin};
        keepalive 128;
        keepalive_requests 1000000000;
        keepalive_timeout 600s;
        keepalive_time 24h;
    }}
{server}}}
"
    )
}

fn nginx_server(site: &Site) -> String {
    let (plain, tls, curves) = (site.plain, site.tls, site.curves);
    // Several workers share the load evenly only with sockets of their own, as its manual advises.
    let listen = if site.workers > 1 { "backlog=4096 reuseport" } else { "backlog=4096" };
    let pair = |path: &PathBuf| format!("ssl_certificate {0};\n        ssl_certificate_key {0};", path.display());
    let certificates = site.certificates.iter().map(pair).collect::<Vec<_>>().join("\n        ");
    format!(
        "    server {{
        listen {plain} {listen};
        listen {tls} ssl {listen};
        server_name {SITE_NAME};
        {certificates}
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_ciphers {CIPHERS_12};
        ssl_conf_command Ciphersuites {CIPHERS_13};
        ssl_prefer_server_ciphers on;
        ssl_ecdh_curve {curves};
        ssl_session_tickets on;
        location = {OWN_PATH} {{
            return 200 ok;
        }}
        location / {{
            proxy_pass http://origin;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_set_header Host $host;
            proxy_max_temp_file_size 0;
        }}
    }}
"
    )
}

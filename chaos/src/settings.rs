//! Configurations of a run: what is drawn anew at each change, and the text of it.

use crate::certificates::SERVERS_NAME;
use crate::endpoints::Endpoints;
use crate::key_servers;
use crate::plan::{SERVERS, SPARES};
use crate::server_processes::ServerAddresses;
use crate::timeline::ServerId;
use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;

/// Attempts after the first.
pub const RETRIES: usize = 2;
/// Time limit of the engine for a server that says nothing, in seconds.
pub const FIRST_BYTE_SECONDS: u64 = 2;

/// Connections that a server may have where they are limited: fewer than there are clients, and enough on one
/// server for those whose WebSockets and downloads last.
const CONNECTIONS_MAX: std::ops::RangeInclusive<u16> = 8..=16;
/// Nobody waits in line for so long while a server is there: whoever is told so has found a defect.
const QUEUE_SECONDS: u64 = 30;

const BALANCES: [&str; 5] = ["round-robin", "random", "least-connections", "p2c-ewma", "consistent-hash"];
const REUSES: [&str; 3] = ["safe", "aggressive", "safe"];

/// How the servers of `app` are spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerProtocol {
    /// Over TLS, in HTTP/2 or HTTP/1.1 as each server agrees.
    Auto,
    Http1,
    /// HTTP/2 without TLS, by prior knowledge.
    Http2,
}

/// Routes of every configuration.
const ROUTES: &str = r#"[[route]]
path = "/c/"
backend = "app"

[[route]]
path = "/ws/"
backend = "app"

[[route]]
listener = "relay"
backend = "echo"

"#;

/// Protocols in their order, so that each has its turn in every run.
const PROTOCOLS: [ServerProtocol; 3] = [ServerProtocol::Auto, ServerProtocol::Http1, ServerProtocol::Http2];
/// Configurations that go by each, so that others change while it stays.
const PROTOCOL_STAYS: u32 = 2;

/// Settings in which two configurations differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// With their weights.
    pub servers: BTreeMap<ServerId, u16>,
    pub extra_route: bool,
    /// A listener and a backend that nobody uses, in another place each time.
    pub idle_parts: u8,
    pub streams_max: u16,
    balance: &'static str,
    reuse: &'static str,
    slow_start: bool,
    /// Connections that each server of HTTP may have: with a few the load has to wait in line.
    connections_max: Option<u16>,
    protocol: ServerProtocol,
    pub workers: usize,
    /// Counts configurations, so that no two have the same text.
    serial: u32,
}

/// Folder of a run, with the files that its configurations name.
#[derive(Clone, Copy)]
struct Files<'a>(&'a Path);

impl Files<'_> {
    /// The path of a file, as TOML writes it.
    fn quoted(self, name: &str) -> String {
        format!("{:?}", self.0.join(name).display().to_string())
    }
}

impl Settings {
    pub fn first(workers: usize) -> Self {
        Self {
            servers: (0..SERVERS).map(|server| (ServerId(server), 1)).collect(),
            extra_route: true,
            idle_parts: 0,
            streams_max: 128,
            balance: BALANCES[0],
            reuse: REUSES[0],
            slow_start: false,
            connections_max: None,
            protocol: PROTOCOLS[0],
            workers,
            serial: 0,
        }
    }

    /// Another one: sometimes a little different, sometimes in everything. Never with fewer than three servers, so that
    /// the plan's faults leave one.
    pub fn drawn(&self, seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let mut next = Self { serial: self.serial + 1, ..self.clone() };
        if random.bool() {
            next.servers.values_mut().for_each(|weight| *weight = random.u16(1..=10));
        }
        if random.bool() {
            let wanted = random.usize(usize::from(SERVERS) - 1..=usize::from(SERVERS + SPARES));
            let mut all: Vec<ServerId> = (0..SERVERS + SPARES).map(ServerId).collect();
            random.shuffle(&mut all);
            let weights = self.servers.clone();
            next.servers =
                all.into_iter().take(wanted).map(|server| (server, *weights.get(&server).unwrap_or(&1))).collect();
        }
        if random.bool() {
            next.extra_route = !self.extra_route;
        }
        if random.bool() {
            next.balance = BALANCES[random.usize(..BALANCES.len())];
        }
        if random.u8(..3) == 0 {
            next.reuse = REUSES[random.usize(..REUSES.len())];
        }
        if random.u8(..3) == 0 {
            next.streams_max = random.u16(60..=200);
        }
        if random.bool() {
            next.connections_max = random.bool().then(|| random.u16(CONNECTIONS_MAX));
        }
        next.slow_start = random.bool();
        next.idle_parts = random.u8(..4);
        next.protocol = PROTOCOLS[(next.serial / PROTOCOL_STAYS) as usize % PROTOCOLS.len()];
        next
    }

    /// As it was at the start, so that the end can be compared with it.
    pub fn as_at_first(&self) -> Self {
        Self { serial: self.serial + 1, ..Self::first(self.workers) }
    }

    pub fn names(&self) -> BTreeSet<ServerId> {
        self.servers.keys().copied().collect()
    }

    /// One word, for the summary.
    pub fn summary(&self) -> String {
        let servers: Vec<String> = self.servers.iter().map(|(server, weight)| format!("{server}*{weight}")).collect();
        let Self { extra_route, balance, reuse, streams_max, protocol, .. } = self;
        let limit = self.connections_max.map_or("no limit".to_owned(), |max| format!("{max} connections"));
        format!(
            "servers {} ({protocol:?}), {limit}, {balance}, reuse {reuse}, {streams_max} streams, route {extra_route}",
            servers.join(" ")
        )
    }

    pub fn render(&self, endpoints: &Endpoints, folder: &Path, server_addresses: &[ServerAddresses]) -> String {
        let extra = match self.extra_route {
            true => "[[route]]\npath = \"/extra/\"\nbackend = \"app\"\n",
            false => "",
        };
        let files = Files(folder);
        [
            self.render_process(endpoints.admin, files),
            self.render_listeners(endpoints, files),
            self.render_backends(files, server_addresses),
            format!("{ROUTES}{extra}"),
            self.render_idle_parts(),
        ]
        .concat()
    }

    fn render_process(&self, admin: SocketAddr, files: Files<'_>) -> String {
        let Self { workers, serial, .. } = self;
        let [state, token, access] = ["state", "token", "access.log"].map(|name| files.quoted(name));
        format!(
            r#"# {serial}
[process]
workers = {workers}
drain_timeout = "10s"
state = {state}

[admin]
bind = "{admin}"
token_file = {token}

[log]
access = {access}

"#
        )
    }

    /// Listeners, and the TLS that they have.
    fn render_listeners(&self, endpoints: &Endpoints, files: Files<'_>) -> String {
        let Endpoints { secure, plain, relay, keyed, key_servers, .. } = endpoints;
        let Self { streams_max, .. } = self;
        let [certificate, tickets, authority] = ["site.pem", "tickets.keys", "ca.pem"].map(|name| files.quoted(name));
        let [keyed_certificate, identity] =
            [key_servers::CERTIFICATE, key_servers::IDENTITY].map(|name| files.quoted(name));
        let key_servers =
            key_servers.map(|address| format!("{{ address = \"{address}\", server_name = \"localhost\" }}"));
        let key_servers = key_servers.join(", ");
        format!(
            r#"[listener.secure]
bind = "{secure}"
tls = "public"
http2 = {{ max_concurrent_streams = {streams_max} }}
timeouts = {{ request_head = "5s", body = "20s" }}

[listener.plain]
bind = "{plain}"
timeouts = {{ request_head = "5s", body = "20s" }}

[listener.relay]
bind = "{relay}"
protocol = "tcp"

[listener.keyed]
bind = "{keyed}"
tls = "keyed"
timeouts = {{ request_head = "5s", body = "20s" }}

[tls.keyed]
certificates = [{keyed_certificate}]
signer = "key-servers"

[signer.key-servers]
servers = [{key_servers}]
identity = {identity}
ca = {authority}
timeout = "2s"
hedge = "50ms"

[tls.public]
certificates = [{certificate}]
ticket_keys = {{ file = {tickets}, rotate = "5s" }}

"#
        )
    }

    fn render_backends(&self, files: Files<'_>, server_addresses: &[ServerAddresses]) -> String {
        let Self { balance, reuse, .. } = self;
        let authority = files.quoted("ca.pem");
        let list = |echo: bool| -> String {
            let one = |(server, weight): (&ServerId, &u16)| {
                let addresses = server_addresses[usize::from(server.0)];
                let address = if echo { addresses.echo } else { addresses.http };
                let limit = self.connections_max.filter(|_| !echo);
                let limit = limit.map_or(String::new(), |max| format!(", max_connections = {max}"));
                format!("{{ address = \"{address}\", weight = {weight}{limit} }}")
            };
            self.servers.iter().map(one).collect::<Vec<_>>().join(", ")
        };
        let (servers, echoes) = (list(false), list(true));
        let protocol = match self.protocol {
            ServerProtocol::Auto => {
                format!("protocol = \"auto\"\ntls = {{ ca = {authority}, server_name = \"{SERVERS_NAME}\" }}\n")
            }
            ServerProtocol::Http1 => String::new(),
            ServerProtocol::Http2 => "protocol = \"h2\"\n".to_owned(),
        };
        let slow_start = if self.slow_start { "slow_start = \"2s\"\n" } else { "" };
        format!(
            r#"[backend.app]
servers = [{servers}]
balance = "{balance}"
reuse = "{reuse}"
retries = {RETRIES}
queue = {{ limit = 1000, timeout = "{QUEUE_SECONDS}s" }}
{protocol}{slow_start}timeouts = {{ connect = "2s", first_byte = "{FIRST_BYTE_SECONDS}s", body = "8s", idle = "4s" }}
health = {{ path = "/healthz", interval = "300ms", timeout = "1s", rise = 2, fall = 2 }}
outlier = {{ consecutive_failures = 5, interval = "1s", ejection = "1s", ejection_max = "3s" }}

[backend.echo]
servers = [{echoes}]
retries = {RETRIES}
timeouts = {{ connect = "2s" }}
health = {{ kind = "tcp", interval = "300ms", timeout = "1s", rise = 2, fall = 2 }}

"#
        )
    }

    fn render_idle_parts(&self) -> String {
        let one = |part: u8| {
            format!(
                "[listener.idle{part}]\nbind = \"127.0.0.1:0\"\n[backend.idle{part}]\nservers = [\"127.0.0.1:{}\"]\n\
                 [[route]]\nhost = \"idle{part}.test\"\nbackend = \"idle{part}\"\n",
                1 + u16::from(part)
            )
        };
        (0..self.idle_parts).map(one).collect()
    }

    /// A text that is no valid configuration, in one of several ways, and a word that the refusal has to say.
    pub fn mistaken(
        &self,
        seed: u64,
        endpoints: &Endpoints,
        folder: &Path,
        server_addresses: &[ServerAddresses],
    ) -> (String, &'static str) {
        let good = self.render(endpoints, folder, server_addresses);
        match seed % 6 {
            0 => (
                good.replace("path = \"/ws/\"\nbackend = \"app\"", "path = \"/ws/\"\nbackend = \"ap\""),
                "did you mean",
            ),
            1 => (good.replace("\nretries = ", "\nretries = 20"), "retries"),
            2 => (good.replace("[admin]", "[admin"), ""),
            3 => (good.replace("workers = ", "workers = 1"), "restart"),
            4 => (good.replace("site.pem", "nowhere.pem"), "nowhere.pem"),
            _ => (good.replace("balance = ", "balanse = "), "balanse"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_spoken_to_in_everything_within_a_few_changes_whatever_the_seeds() {
        for seed in 0..100 {
            let mut settings = Settings::first(2);
            let mut met = vec![settings.protocol];
            for change in 0..4 {
                settings = settings.drawn(seed * 10 + change);
                met.push(settings.protocol);
            }
            assert!(PROTOCOLS.iter().all(|protocol| met.contains(protocol)), "{met:?}");
            assert!(met.windows(2).any(|pair| pair[0] == pair[1]), "{met:?}");
        }
    }

    #[test]
    fn what_is_drawn_is_different_and_leaves_somebody_to_ask() {
        let mut settings = Settings::first(2);
        for seed in 0..500 {
            let next = settings.drawn(seed);
            assert_ne!(next, settings);
            assert!(next.servers.len() >= 3, "{}", next.summary());
            settings = next;
        }
        assert_eq!(Settings::first(2).drawn(9), Settings::first(2).drawn(9));
    }
}

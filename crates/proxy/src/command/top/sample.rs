//! What the admin address says, twice, and what has happened between.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long the admin address may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// An answer that is longer is no engine's.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
const SECONDS_PER_DAY: f64 = 86_400.0;

pub struct Sample {
    at: Instant,
    /// `snapshot` and `metrics` of `/status.json`.
    status: Value,
}

/// What has happened between two samples, per second where it is a rate.
#[derive(Debug, Default)]
pub struct Figures {
    pub version: String,
    pub pid: u64,
    pub uptime_seconds: f64,
    pub draining: bool,
    /// Those before it that have not ended yet.
    pub predecessors: Vec<Predecessor>,
    pub memory_bytes: f64,
    /// Cores' worth.
    pub cpu: f64,
    pub workers: usize,
    pub listeners: Vec<Listener>,
    pub servers: Vec<Server>,
    /// The one that expires first goes first.
    pub certificates: Vec<Certificate>,
}

/// A process that was succeeded and drains.
#[derive(Debug, Default)]
pub struct Predecessor {
    pub pid: u64,
    pub draining_seconds: u64,
    pub connections: u64,
}

#[derive(Debug, Default)]
pub struct Listener {
    pub name: String,
    pub connections: f64,
    pub accepted: f64,
    pub requests: f64,
    pub in_progress: f64,
    /// Seconds; none where nothing was answered.
    pub p50: Option<f64>,
    pub p99: Option<f64>,
    pub received_bytes: f64,
    pub sent_bytes: f64,
    pub failed_4xx: f64,
    pub failed_5xx: f64,
    /// ECDSA (and Ed25519), RSA, resumed.
    pub handshakes: [f64; 3],
    pub handshakes_failed: f64,
}

#[derive(Debug, Default)]
pub struct Server {
    pub backend: String,
    pub address: String,
    pub state: String,
    pub requests: f64,
    pub connections: f64,
    pub idle: f64,
    pub connect_failures: f64,
    /// Of the whole backend: client connections for each of its server connections; none while it has none.
    pub clients_per_connection: Option<f64>,
    pub queued: f64,
}

#[derive(Debug, Default)]
pub struct Certificate {
    pub name: String,
    pub key_type: String,
    pub days_left: f64,
}

impl Sample {
    /// Asks the admin address. Not over HTTP/1.1, so that the answer ends where the connection does.
    pub fn take(admin: SocketAddr) -> Result<Sample, String> {
        let told = |error: io::Error| {
            format!(
                "{admin} does not answer: {error}; is an engine running with this [admin] bind? --admin says another"
            )
        };
        let answer = ask(admin).map_err(told)?;
        let stranger = || format!("what answers at {admin} is no propylon admin address");
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(stranger)?;
        if head.split(' ').nth(1) != Some("200") {
            return Err(stranger());
        }
        let status: Value = serde_json::from_str(body).map_err(|_| stranger())?;
        if status["snapshot"].is_null() {
            return Err(stranger());
        }
        Ok(Sample { at: Instant::now(), status })
    }

    /// The members of a family of metrics that have these labels.
    fn members<'a>(&'a self, name: &'a str, labels: &'a [(&str, &str)]) -> impl Iterator<Item = &'a Value> {
        let all = self.status["metrics"].as_array().into_iter().flatten();
        all.filter(move |metric| {
            metric["name"] == name && labels.iter().all(|(label, value)| metric["labels"][*label] == *value)
        })
    }

    fn total(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.members(name, labels).filter_map(|metric| metric["value"].as_f64()).sum()
    }
}

fn ask(admin: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&admin, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET /status.json HTTP/1.0\r\nHost: {admin}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

fn predecessor(one: &Value) -> Predecessor {
    let number = |key: &str| one[key].as_u64().unwrap_or(0);
    Predecessor { pid: number("pid"), draining_seconds: number("draining_seconds"), connections: number("connections") }
}

impl Figures {
    pub fn between(before: &Sample, after: &Sample) -> Figures {
        let seconds = after.at.saturating_duration_since(before.at).as_secs_f64().max(1e-3);
        let change = Change { before, after, seconds };
        let now = &after.status["snapshot"];
        let names = now["listeners"].as_array().into_iter().flatten();
        Figures {
            version: text(&now["version"]),
            pid: now["pid"].as_u64().unwrap_or(0),
            uptime_seconds: number(&now["uptime_seconds"]),
            draining: now["draining"].as_bool().unwrap_or(false),
            predecessors: now["upgrade"]["predecessors"].as_array().into_iter().flatten().map(predecessor).collect(),
            memory_bytes: number(&now["memory_bytes"]),
            cpu: (number(&now["cpu_seconds"]) - number(&before.status["snapshot"]["cpu_seconds"])).max(0.0) / seconds,
            workers: now["workers"].as_array().map_or(0, Vec::len),
            listeners: names.map(|listener| change.listener(listener)).collect(),
            servers: now["backends"]
                .as_array()
                .into_iter()
                .flatten()
                .flat_map(|backend| change.servers(backend))
                .collect(),
            certificates: certificates(now),
        }
    }

    pub fn to_json(&self) -> Value {
        json!({
            "version": self.version,
            "pid": self.pid,
            "uptime_seconds": self.uptime_seconds,
            "draining": self.draining,
            "predecessors": self.predecessors.iter().map(|one| json!({
                "pid": one.pid,
                "draining_seconds": one.draining_seconds,
                "connections": one.connections,
            })).collect::<Vec<Value>>(),
            "memory_bytes": self.memory_bytes,
            "cpu_cores": self.cpu,
            "workers": self.workers,
            "listeners": self.listeners.iter().map(|listener| json!({
                "name": listener.name,
                "connections": listener.connections,
                "accepted_per_second": listener.accepted,
                "requests_per_second": listener.requests,
                "in_progress": listener.in_progress,
                "p50_seconds": listener.p50,
                "p99_seconds": listener.p99,
                "received_bytes_per_second": listener.received_bytes,
                "sent_bytes_per_second": listener.sent_bytes,
                "4xx_per_second": listener.failed_4xx,
                "5xx_per_second": listener.failed_5xx,
                "handshakes_ecdsa_per_second": listener.handshakes[0],
                "handshakes_rsa_per_second": listener.handshakes[1],
                "handshakes_resumed_per_second": listener.handshakes[2],
                "handshakes_failed_per_second": listener.handshakes_failed,
            })).collect::<Vec<Value>>(),
            "servers": self.servers.iter().map(|server| json!({
                "backend": server.backend,
                "address": server.address,
                "state": server.state,
                "requests_per_second": server.requests,
                "connections": server.connections,
                "connections_idle": server.idle,
                "connect_failures_per_second": server.connect_failures,
                "clients_per_connection": server.clients_per_connection,
                "queued": server.queued,
            })).collect::<Vec<Value>>(),
            "certificates": self.certificates.iter().map(|certificate| json!({
                "name": certificate.name,
                "type": certificate.key_type,
                "days_left": certificate.days_left,
            })).collect::<Vec<Value>>(),
        })
    }
}

/// Two samples and the time between.
struct Change<'a> {
    before: &'a Sample,
    after: &'a Sample,
    seconds: f64,
}

impl Change<'_> {
    /// A counter that fell was begun anew: by another process at the same address.
    fn rate(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        (self.after.total(name, labels) - self.before.total(name, labels)).max(0.0) / self.seconds
    }

    fn listener(&self, listener: &Value) -> Listener {
        let name = text(&listener["name"]);
        let own = [("listener", name.as_str())];
        let rate = |family: &str| self.rate(family, &own);
        let with = |family: &str, label: (&str, &str)| self.rate(family, &[own[0], label]);
        let handshakes = |label| with("propylon_tls_handshakes_total", label);
        let [p50, p99] = self.quantiles("propylon_request_duration_seconds", &own, [0.5, 0.99]);
        Listener {
            connections: number(&listener["connections"]),
            accepted: rate("propylon_connections_total"),
            requests: rate("propylon_responses_total"),
            in_progress: number(&listener["requests_in_progress"]),
            p50,
            p99,
            received_bytes: rate("propylon_received_bytes_total"),
            sent_bytes: rate("propylon_sent_bytes_total"),
            failed_4xx: with("propylon_responses_total", ("class", "4xx")),
            failed_5xx: with("propylon_responses_total", ("class", "5xx")),
            handshakes: [
                handshakes(("certificate", "ecdsa")) + handshakes(("certificate", "ed25519")),
                handshakes(("certificate", "rsa")),
                handshakes(("resumed", "true")),
            ],
            handshakes_failed: rate("propylon_tls_handshake_failures_total"),
            name,
        }
    }

    fn servers(&self, backend: &Value) -> Vec<Server> {
        let name = text(&backend["name"]);
        let servers = || backend["servers"].as_array().into_iter().flatten();
        let connections: f64 = servers().map(|server| number(&server["connections"])).sum();
        let clients = number(&backend["client_connections"]);
        let one = |server: &Value| {
            let address = text(&server["address"]);
            let own = [("backend", name.as_str()), ("server", address.as_str())];
            Server {
                backend: name.clone(),
                state: text(&server["health"]["state"]),
                requests: self.rate("propylon_server_requests_total", &own),
                connections: number(&server["connections"]),
                idle: number(&server["connections_idle"]),
                connect_failures: self.rate("propylon_server_connect_failures_total", &own),
                clients_per_connection: (connections > 0.0).then(|| clients / connections),
                queued: number(&backend["queued"]),
                address,
            }
        };
        servers().map(one).collect()
    }

    /// Of what came between the two samples, each within its bucket in proportion.
    fn quantiles(&self, family: &str, labels: &[(&str, &str)], wanted: [f64; 2]) -> [Option<f64>; 2] {
        let counts = |sample: &Sample| -> Vec<(f64, f64)> {
            let buckets =
                sample.members(family, labels).next().and_then(|metric| metric["buckets"].as_array().cloned());
            let pair = |bucket: &Value| (bucket[0].as_f64().unwrap_or(f64::INFINITY), number(&bucket[1]));
            buckets.unwrap_or_default().iter().map(pair).collect()
        };
        let (before, after) = (counts(self.before), counts(self.after));
        // They count what is not above their bound.
        let between: Vec<(f64, f64)> = after
            .iter()
            .enumerate()
            .map(|(place, (bound, count))| {
                (*bound, (count - before.get(place).map_or(0.0, |(_, count)| *count)).max(0.0))
            })
            .collect();
        wanted.map(|share| quantile(&between, share))
    }
}

/// `counts` are of what is not above each bound.
fn quantile(counts: &[(f64, f64)], share: f64) -> Option<f64> {
    let all = counts.last()?.1;
    if all <= 0.0 {
        return None;
    }
    let place = counts.iter().position(|(_, count)| *count >= share * all)?;
    let (bound, count) = counts[place];
    let (low, below) = if place == 0 { (0.0, 0.0) } else { counts[place - 1] };
    if !bound.is_finite() || count <= below {
        return Some(low);
    }
    Some(low + (bound - low) * (share * all - below) / (count - below))
}

fn certificates(now: &Value) -> Vec<Certificate> {
    let today =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let one = |certificate: &Value| Certificate {
        name: text(&certificate["name"]),
        key_type: text(&certificate["type"]),
        days_left: (number(&certificate["not_after"]) - today) / SECONDS_PER_DAY,
    };
    let mut all: Vec<Certificate> = now["certificates"].as_array().into_iter().flatten().map(one).collect();
    all.sort_by(|a, b| a.days_left.total_cmp(&b.days_left));
    all
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// Without what would act on a terminal.
fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().chars().filter(|one| !one.is_control()).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Ten seconds in which 100 requests were answered, half of them within 10 ms and all within 20.
    pub fn figures() -> Figures {
        let sample = |requests: u64, half: u64, at: Instant| Sample {
            at,
            status: json!({
                "snapshot": {
                    "version": "1.2.3", "pid": 7, "uptime_seconds": 3700.0, "draining": false, "memory_bytes": 20_971_520,
                    "upgrade": { "predecessors": [{ "pid": 6, "draining_seconds": 12, "connections": 4 }] },
                    "cpu_seconds": requests as f64 / 20.0, "workers": [{}, {}],
                    "listeners": [{ "name": "web", "connections": 5, "requests_in_progress": 1 }],
                    "certificates": [{ "name": "shop.test", "type": "ecdsa", "not_after": 0 }],
                    "backends": [{ "name": "app", "client_connections": 30, "queued": 2, "servers": [
                        { "address": "127.0.0.1:1", "connections": 3, "connections_idle": 1,
                          "health": { "state": "up", "usable": true } },
                    ] }],
                },
                "metrics": [
                    { "name": "propylon_responses_total", "labels": { "listener": "web", "class": "2xx" }, "value": requests },
                    { "name": "propylon_request_duration_seconds", "labels": { "listener": "web" },
                      "buckets": [[0.01, half], [0.02, requests], [null, requests]] },
                ],
            }),
        };
        let began = Instant::now();
        Figures::between(&sample(1000, 900, began), &sample(1100, 950, began + Duration::from_secs(10)))
    }

    #[test]
    fn rates_and_quantiles_are_of_what_happened_between_two_looks() {
        let figures = figures();
        let web = &figures.listeners[0];
        assert_eq!((web.requests, web.connections), (10.0, 5.0));
        assert_eq!(web.p50, Some(0.01));
        assert!((web.p99.unwrap() - 0.0198).abs() < 1e-9, "{:?}", web.p99);
        assert_eq!(figures.cpu, 0.5);
        assert_eq!(figures.servers[0].clients_per_connection, Some(10.0));
        assert_eq!(figures.servers[0].state, "up");
        assert_eq!(figures.to_json()["predecessors"], json!([{ "pid": 6, "draining_seconds": 12, "connections": 4 }]));
    }

    #[test]
    fn an_engine_that_began_anew_shows_no_negative_rate() {
        let (old, new) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        let sample = |count: u64, at| Sample {
            at,
            status: json!({ "snapshot": {}, "metrics": [{ "name": "x", "labels": {}, "value": count }] }),
        };
        let (before, after) = (sample(100, old), sample(1, new));
        assert_eq!(Change { before: &before, after: &after, seconds: 1.0 }.rate("x", &[]), 0.0);
    }

    #[test]
    fn nothing_answered_has_no_quantile() {
        assert_eq!(quantile(&[(0.01, 0.0), (f64::INFINITY, 0.0)], 0.5), None);
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(quantile(&[(0.01, 0.0), (f64::INFINITY, 4.0)], 0.5), Some(0.01));
    }
}

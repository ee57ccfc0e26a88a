//! Two samples of the admin address, and the difference between them.

mod attention;
mod cluster;
mod value;

use std::time::{Duration, Instant};

use propylon_config::AdminBind;
use propylon_metrics::quantile;
use serde_json::{Value, json};

use crate::command::admin_client::{AdminRequest, ask};
pub use attention::{Condition, all as attention};
pub use cluster::Cluster;
use value::{SECONDS_PER_DAY, list, number, text};

/// How long the admin address may take.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(5);

pub struct Sample {
    at: Instant,
    /// `/status.json`.
    status: Value,
    /// `/cluster`; null where the engine is not one of a cluster.
    cluster: Value,
}

/// Differences between two samples, per second for rates.
#[derive(Debug, Default)]
pub struct Figures {
    pub version: String,
    pub pid: u64,
    pub uptime_seconds: f64,
    pub draining: bool,
    /// Generation of the configuration.
    pub generation: u64,
    /// The last change of the configuration was refused.
    pub change_refused: bool,
    /// The cluster that it is one of.
    pub cluster: Option<Cluster>,
    /// Processes before this one that have not ended yet.
    pub predecessors: Vec<Predecessor>,
    /// Conditions that need attention, the gravest first; the count is limited.
    pub conditions: Vec<Condition>,
    pub memory_bytes: f64,
    /// Cores' worth.
    pub cpu: f64,
    pub workers: usize,
    pub listeners: Vec<Listener>,
    /// The worst first; not all of very many.
    pub servers: Vec<Server>,
    pub servers_total: usize,
    pub servers_usable: usize,
    /// The one that expires first goes first.
    pub certificates: Vec<Certificate>,
    pub certificates_total: usize,
    /// Certificates by days left, the most urgent first.
    pub certificates_by_days_left: Vec<(String, u64)>,
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
    pub usable: bool,
    /// Used though it is down, since too few are up.
    pub panic: bool,
    /// Why it is in this state; empty where there is nothing to say.
    pub reason: String,
    pub requests: f64,
    pub connections: f64,
    pub idle: f64,
    pub connect_failures: f64,
    /// Client connections per server connection, over the whole backend; `None` while it has no server connection.
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
    /// Asks the admin address.
    pub fn take(admin: &AdminBind) -> Result<Sample, String> {
        let asked = AdminRequest { method: "GET", path: "/status.json", fields: "", body: "", timeout: ADMIN_TIMEOUT };
        let stranger = || format!("what answers at {admin} is no propylon admin address");
        let (code, body) = ask(admin, &asked)?;
        if code != 200 {
            return Err(stranger());
        }
        let status: Value = serde_json::from_str(&body).map_err(|_| stranger())?;
        if status["shape"] != SHAPE {
            return Err(format!("the engine at {admin} is of another version than this command; use its own"));
        }
        let cluster = if status["cluster"] == true { cluster(admin) } else { Value::Null };
        Ok(Sample { at: Instant::now(), status, cluster })
    }
}

/// Version of the answer's shape.
const SHAPE: u32 = 1;

/// An engine that does not answer this has more to tell all the same.
fn cluster(admin: &AdminBind) -> Value {
    let asked = AdminRequest { method: "GET", path: "/cluster", fields: "", body: "", timeout: ADMIN_TIMEOUT };
    match ask(admin, &asked) {
        Ok((200, body)) => serde_json::from_str(&body).unwrap_or_default(),
        _ => Value::Null,
    }
}

fn predecessor(one: &Value) -> Predecessor {
    let number = |key: &str| one[key].as_u64().unwrap_or(0);
    Predecessor { pid: number("pid"), draining_seconds: number("draining_seconds"), connections: number("connections") }
}

impl Figures {
    pub fn between(before: &Sample, after: &Sample) -> Figures {
        let seconds = after.at.saturating_duration_since(before.at).as_secs_f64().max(1e-3);
        let change = Change { before, after, seconds };
        let now = &after.status;
        let (configuration, servers, certificates) = (&now["configuration"], &now["servers"], &now["certificates"]);
        let days_left = |pair: &Value| (text(&pair[0]), pair[1].as_u64().unwrap_or(0));
        Figures {
            version: text(&now["version"]),
            pid: now["pid"].as_u64().unwrap_or(0),
            uptime_seconds: number(&now["uptime_seconds"]),
            draining: now["draining"].as_bool().unwrap_or(false),
            generation: configuration["generation"].as_u64().unwrap_or(0),
            change_refused: configuration["last_reload"]["result"] == "failed",
            cluster: Cluster::of(&after.cluster),
            predecessors: now["upgrade"]["predecessors"].as_array().into_iter().flatten().map(predecessor).collect(),
            conditions: attention(now),
            memory_bytes: number(&now["memory_bytes"]),
            cpu: (number(&now["cpu_seconds"]) - number(&before.status["cpu_seconds"])).max(0.0) / seconds,
            workers: list(&now["workers"]).count(),
            listeners: list(&now["listeners"]["list"]).map(|listener| change.listener(listener)).collect(),
            servers: list(&servers["list"]).map(|server| change.server(server)).collect(),
            servers_total: number(&servers["states"]["total"]) as usize,
            servers_usable: number(&servers["states"]["usable"]) as usize,
            certificates: list(&certificates["list"]).map(|each| certificate(each, number(&now["time"]))).collect(),
            certificates_total: number(&certificates["total"]) as usize,
            certificates_by_days_left: list(&certificates["by_days_left"]).map(days_left).collect(),
        }
    }

    pub fn to_json(&self) -> Value {
        json!({
            "version": self.version,
            "pid": self.pid,
            "uptime_seconds": self.uptime_seconds,
            "draining": self.draining,
            "generation": self.generation,
            "last_change_refused": self.change_refused,
            "cluster": self.cluster.as_ref().map(Cluster::to_json),
            "predecessors": self.predecessors.iter().map(|one| json!({
                "pid": one.pid,
                "draining_seconds": one.draining_seconds,
                "connections": one.connections,
            })).collect::<Vec<Value>>(),
            "conditions": self.conditions.iter().map(|one| json!({
                "problem": one.is_problem,
                "words": one.words,
                "seconds": one.seconds,
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
            "servers_total": self.servers_total,
            "servers_usable": self.servers_usable,
            "certificates_total": self.certificates_total,
            "servers": self.servers.iter().map(|server| json!({
                "backend": server.backend,
                "address": server.address,
                "state": server.state,
                "usable": server.usable,
                "panic": server.panic,
                "reason": server.reason,
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
    fn rate(&self, now: &Value, before: &Value) -> f64 {
        (number(now) - number(before)).max(0.0) / self.seconds
    }

    /// The same thing in the earlier sample, or null.
    fn earlier(&self, kind: &str, keys: &[&str], of: &Value) -> &Value {
        let is_same = |other: &&Value| keys.iter().all(|key| other[*key] == of[*key]);
        list(&self.before.status[kind]["list"]).find(is_same).unwrap_or(&Value::Null)
    }

    fn listener(&self, now: &Value) -> Listener {
        let before = self.earlier("listeners", &["name"], now);
        let rate = |key: &str| self.rate(&now[key], &before[key]);
        let class = |class: usize| self.rate(&now["responses_total"][class], &before["responses_total"][class]);
        let handshakes = |kinds: &[&str]| {
            let count = |side: &Value| -> f64 {
                let versions = side["handshakes_total"].as_object().into_iter().flat_map(|versions| versions.values());
                versions.map(|version| kinds.iter().map(|kind| number(&version[*kind])).sum::<f64>()).sum()
            };
            (count(now) - count(before)).max(0.0) / self.seconds
        };
        let [p50, p99] = self.quantiles(&now["requests"], &before["requests"], [0.5, 0.99]);
        Listener {
            name: text(&now["name"]),
            connections: number(&now["connections"]),
            accepted: rate("connections_total"),
            requests: (0..5).map(class).sum(),
            in_progress: number(&now["in_progress"]),
            p50,
            p99,
            received_bytes: rate("received_bytes_total"),
            sent_bytes: rate("sent_bytes_total"),
            failed_4xx: class(3),
            failed_5xx: class(4),
            handshakes: [handshakes(&["ecdsa", "ed25519"]), handshakes(&["rsa"]), handshakes(&["resumed"])],
            handshakes_failed: rate("handshake_failures_total"),
        }
    }

    fn server(&self, now: &Value) -> Server {
        let before = self.earlier("servers", &["backend", "address"], now);
        let backend = list(&self.after.status["backends"]["list"]).find(|backend| backend["name"] == now["backend"]);
        let backend = backend.unwrap_or(&Value::Null);
        let (clients, connections) = (number(&backend["clients"]), number(&backend["connections"]));
        let reasons = [text(&now["reason"]), text(&now["lookup_failed"])];
        let reasons: Vec<String> = reasons.into_iter().filter(|reason| !reason.is_empty()).collect();
        let passed_over = number(&now["passed_over"]);
        let state = match now["slow_until"].is_null() {
            true if passed_over > 0.0 => format!("passed over by {passed_over} workers"),
            true => text(&now["state"]),
            false => "slow start".into(),
        };
        Server {
            backend: text(&now["backend"]),
            address: text(&now["address"]),
            state,
            usable: now["usable"].as_bool().unwrap_or(true) && passed_over == 0.0,
            panic: now["panic"].as_bool().unwrap_or(false),
            reason: reasons.join("; "),
            // A server that was not among the worst before has no earlier figure to be compared with.
            requests: if before.is_null() { 0.0 } else { self.rate(&now["requests_total"], &before["requests_total"]) },
            connections: number(&now["connections"]),
            idle: number(&now["connections_idle"]),
            connect_failures: match before.is_null() {
                true => 0.0,
                false => self.rate(&now["connect_failures_total"], &before["connect_failures_total"]),
            },
            clients_per_connection: (connections > 0.0).then(|| clients / connections),
            queued: number(&backend["queued"]),
        }
    }

    /// Quantiles of the values between the two samples, interpolated within each bucket.
    fn quantiles(&self, now: &Value, before: &Value, wanted: [f64; 2]) -> [Option<f64>; 2] {
        let bounds: Vec<f64> = list(&self.after.status["bounds_seconds"]).map(number).collect();
        let count = |(place, count)| (number(count) - number(&before[place])).max(0.0);
        let counts: Vec<f64> = list(now).enumerate().map(count).collect();
        wanted.map(|share| quantile(share, counts.iter().copied(), &bounds))
    }
}

fn certificate(value: &Value, now: f64) -> Certificate {
    Certificate {
        name: text(&value["name"]),
        key_type: text(&value["type"]),
        days_left: (number(&value["not_after"]) - now) / SECONDS_PER_DAY,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Ten seconds in which 100 requests were answered, half of them within 10 ms and all within 20; of 40 servers one is
    /// down and one is ejected.
    pub fn figures() -> Figures {
        let server = |index: u64, state: &str, reason: Option<&str>, requests: u64| {
            json!({
                "backend": "app", "address": format!("10.0.0.{index}:8080"), "state": state, "reason": reason,
                "usable": reason.is_none(), "slow_until": null, "lookup_failed": null, "connections": 3,
                "connections_idle": 1, "requests_total": requests, "connect_failures_total": 0,
            })
        };
        let servers = |requests: u64| {
            let bad =
                [server(7, "down", Some("connect-refused"), 0), server(9, "ejected", Some("5 failures in a row"), 0)];
            bad.into_iter().chain((10..48).map(|index| server(index, "up", None, requests))).collect::<Vec<Value>>()
        };
        let sample = |requests: u64, half: u64, at: Instant| Sample {
            at,
            cluster: Value::Null,
            status: json!({
                "shape": 1, "version": "1.2.3", "pid": 7, "uptime_seconds": 3700.0, "draining": false, "time": 86_400.0,
                "upgrade": { "predecessors": [{ "pid": 6, "draining_seconds": 12, "connections": 4 }] },
                "configuration": { "generation": 3, "last_reload": { "result": "applied" } },
                "memory_bytes": 20_971_520, "cpu_seconds": requests as f64 / 20.0, "workers": [{}, {}],
                "bounds_seconds": [0.01, 0.02],
                "listeners": { "total": 1, "list": [{
                    "name": "web", "connections": 5, "in_progress": 1, "connections_total": requests,
                    "responses_total": [0, requests, 0, 0, 0], "requests": [half, requests - half, 0],
                    "sent_bytes_total": requests * 20_000, "received_bytes_total": requests * 500,
                    "handshakes_total": { "TLSv1.3": { "ecdsa": requests, "resumed": half } },
                }] },
                "backends": { "total": 1, "list": [{ "name": "app", "clients": 60, "connections": 20, "queued": 2 }] },
                "servers": { "states": { "total": 40, "usable": 38 }, "found": 40, "list": servers(requests) },
                "certificates": {
                    "total": 300, "by_days_left": [["expired", 1], ["under-1", 0], ["over-30", 299]],
                    "list": [
                        { "name": "old.test", "type": "rsa", "not_after": 0 },
                        { "name": "a-name-that-is-longer-than-most-of-them-are.department.shop.test", "type": "ecdsa", "not_after": 86_400 * 61 },
                    ],
                },
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
        assert_eq!((web.handshakes, web.sent_bytes), ([10.0, 0.0, 5.0], 200_000.0));
        assert_eq!(figures.servers[0].clients_per_connection, Some(3.0));
        assert_eq!(
            (figures.servers[0].state.as_str(), figures.servers[0].reason.as_str()),
            ("down", "connect-refused")
        );
        assert_eq!((figures.servers[2].requests, figures.generation), (10.0, 3));
        assert_eq!(figures.certificates[0].days_left, -1.0);
        assert_eq!(figures.to_json()["predecessors"], json!([{ "pid": 6, "draining_seconds": 12, "connections": 4 }]));
    }

    #[test]
    fn an_engine_that_began_anew_shows_no_negative_rate() {
        let (old, new) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        let sample = |at| Sample { at, status: json!({}), cluster: Value::Null };
        let (before, after) = (sample(old), sample(new));
        let change = Change { before: &before, after: &after, seconds: 1.0 };
        assert_eq!((change.rate(&json!(1), &json!(100)), change.rate(&json!(100), &json!(1))), (0.0, 99.0));
    }
}

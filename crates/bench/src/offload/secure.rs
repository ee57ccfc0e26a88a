//! Costs of TLS to the origin: on the origin itself, and without any behind a balancer that has taken it over.

use super::steps::slow_clients;
use super::testbed::{Servers, Setup, Spent, Testbed};
use crate::client_group::clients::Behaviour;
use crate::client_group::phase::LoadPhase;
use crate::client_group::processes::{ClientProcesses, Endpoint};
use crate::compare::site::SITE_NAME;
use crate::failure::{Failure, Outcome};
use crate::link::Request;
use crate::load::{Kind, Load, Plan, Until};
use crate::machine;
use crate::report::progress;
use crate::target::{Cipher, Group, Key, Target, TlsOffer, Version};
use crate::units::show_number;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Load before each measurement that is not counted.
const WARMUP: Duration = Duration::from_millis(500);
/// Connections in flight in the rows of new connections.
const IN_FLIGHT: usize = 32;

/// The clients' pattern, the same wherever TLS ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientPattern {
    /// A connection and a full handshake for each request.
    NewConnections,
    /// Slow clients with a connection each.
    KeepAlive,
}

/// The place where TLS ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TlsEnd {
    /// There is none: plain clients on the origin.
    Nowhere,
    OnOrigin,
    OnBalancer,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Secured {
    pub pattern: ClientPattern,
    pub tls_end: TlsEnd,
    pub key: Option<Key>,
    pub requests: u64,
    pub requests_per_second: f64,
    pub failures: u64,
    pub first_error: Option<String>,
    pub spent: Spent,
}

impl Secured {
    /// CPU time of the origin per request, in microseconds.
    pub fn origin_microseconds(&self) -> f64 {
        self.spent.origin_cpu * 1e6 / self.requests.max(1) as f64
    }

    pub fn balancer_microseconds(&self) -> f64 {
        self.spent.balancer_cpu * 1e6 / self.requests.max(1) as f64
    }

    fn show(&self) -> String {
        format!(
            "{:?}, TLS {:?} {:?}: origin {} µs per request, {} MiB, {} failures",
            self.pattern,
            self.tls_end,
            self.key,
            show_number(self.origin_microseconds()),
            self.spent.origin_rss_kib / 1024,
            self.failures
        )
    }
}

pub fn compare(testbed: &Testbed) -> Outcome<Vec<Secured>> {
    use ClientPattern as H;
    use TlsEnd as P;
    let (ec, rsa) = (Some(Key::Ec), Some(Key::Rsa));
    let runs = [
        (H::NewConnections, P::Nowhere, None),
        (H::NewConnections, P::OnOrigin, ec),
        (H::NewConnections, P::OnOrigin, rsa),
        (H::NewConnections, P::OnBalancer, ec),
        (H::NewConnections, P::OnBalancer, rsa),
        (H::KeepAlive, P::OnOrigin, ec),
        (H::KeepAlive, P::OnBalancer, ec),
    ];
    let mut found = Vec::new();
    for (pattern, tls_end, key) in runs {
        testbed.interrupt.check()?;
        let secured = measure(testbed, pattern, tls_end, key)?;
        progress(secured.show());
        found.push(secured);
    }
    Ok(found)
}

fn measure(testbed: &Testbed, pattern: ClientPattern, tls_end: TlsEnd, key: Option<Key>) -> Outcome<Secured> {
    let setup = if tls_end == TlsEnd::OnBalancer { Setup::Through } else { Setup::Direct };
    let servers = testbed.servers(setup, key.filter(|_| tls_end == TlsEnd::OnOrigin))?;
    let endpoint = Endpoint {
        address: if key.is_some() { servers.tls } else { servers.plain },
        name: SITE_NAME.to_owned(),
        tls: key.map(offer),
        sources: Vec::new(),
    };
    let blank = |spent| Secured {
        pattern,
        tls_end,
        key,
        requests: 0,
        requests_per_second: 0.0,
        failures: 0,
        first_error: None,
        spent,
    };
    match pattern {
        ClientPattern::NewConnections => measure_new(testbed, &servers, &endpoint, blank),
        ClientPattern::KeepAlive => measure_kept(testbed, &servers, &endpoint, blank),
    }
}

/// The same for everyone, so that what a server prefers is not what is compared.
fn offer(key: Key) -> TlsOffer {
    TlsOffer {
        version: Version::V13,
        key: Some(key),
        group: Some(Group::X25519),
        cipher: Some(Cipher::Aes128Gcm),
        resume: false,
        ca: None,
    }
}

fn measure_new(
    testbed: &Testbed,
    servers: &Servers,
    endpoint: &Endpoint,
    blank: impl Fn(Spent) -> Secured,
) -> Outcome<Secured> {
    let target = Target::new(endpoint.address, &endpoint.name, endpoint.tls.as_ref())?;
    let plan = Plan {
        kind: Kind::NewConnections,
        connections: IN_FLIGHT,
        request: Request::new("GET", "/", SITE_NAME, "Connection: close\r\n", 0),
        timeout: testbed.arguments.timeout,
        rate: Some(f64::from(testbed.arguments.tls_rate)),
    };
    let (before, measured) = machine::on_cores(&[testbed.arguments.load_core], || {
        let mut load = Load::new(&target, plan, testbed.interrupt)?;
        let warmup = load.run(Until::Elapsed(WARMUP), "")?.stats;
        if warmup.done == 0 {
            return Err(Failure::new(warmup.first_error().unwrap_or("no request was answered").to_owned()));
        }
        let before = servers.gauge()?;
        Ok((before, load.run(Until::Elapsed(testbed.arguments.duration), "")?))
    })?;
    let summary = measured.stats.summary();
    Ok(Secured {
        requests: summary.done,
        requests_per_second: summary.per_second.0,
        failures: summary.errors_total(),
        first_error: summary.first_error,
        ..blank(servers.spent_since(&before)?)
    })
}

/// Failures, those of clients on their way in included; a client that was not served in the end has failed.
fn failures_of(grown: &LoadPhase, held: &LoadPhase) -> (u64, Option<String>) {
    let unserved = held.clients.wanted.saturating_sub(held.clients.served);
    let counted = grown.errors_total() + held.errors_total();
    let first = grown.first_error.clone().or_else(|| held.first_error.clone());
    let first = first.or_else(|| (unserved > 0).then(|| format!("{unserved} clients were not served in the end")));
    (counted.max(unserved as u64), first)
}

fn measure_kept(
    testbed: &Testbed,
    servers: &Servers,
    endpoint: &Endpoint,
    blank: impl Fn(Spent) -> Secured,
) -> Outcome<Secured> {
    let Testbed { arguments, interrupt, .. } = testbed;
    let (behaviour, core) = (Behaviour::Http1(slow_clients(testbed)), Some(arguments.load_core));
    let mut group = ClientProcesses::start(endpoint, &behaviour, arguments.processes as usize, core, interrupt)?;
    let grown = group.grow(arguments.tls_clients(), arguments.timeout * 2, "")?;
    let before = servers.gauge()?;
    let held = group.hold(arguments.duration)?;
    let (failures, first_error) = failures_of(&grown, &held);
    Ok(Secured {
        requests: held.done,
        requests_per_second: held.per_second(),
        failures,
        first_error,
        ..blank(servers.spent_since(&before)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_group::phase::ClientCounts;

    #[test]
    fn clients_that_failed_on_their_way_in_are_failures() {
        let with = |errors: u64, served: usize| LoadPhase {
            errors: [("timeout".into(), errors)].into(),
            first_error: (errors > 0).then(|| "late".to_owned()),
            clients: ClientCounts { wanted: 200, open: 200, served },
            ..LoadPhase::default()
        };
        assert_eq!(failures_of(&with(0, 200), &with(0, 200)), (0, None));
        assert_eq!(failures_of(&with(113, 200), &with(0, 200)), (113, Some("late".to_owned())));
        let (failures, first) = failures_of(&with(0, 87), &with(0, 87));
        assert_eq!((failures, first.as_deref()), (113, Some("113 clients were not served in the end")));
    }
}

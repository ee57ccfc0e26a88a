//! Costs of TLS to the origin: on the origin itself, and without any behind a balancer that has taken it over.

use super::stage::{Arrangement, Scene, Spent, Stage};
use super::steps::slow_clients;
use crate::compare::SITE_NAME;
use crate::crowd::parts::{Door, Parts};
use crate::crowd::stretch::Stretch;
use crate::failure::{Failure, Outcome};
use crate::link::Request;
use crate::load::{Kind, Load, Plan, Until};
use crate::machine;
use crate::report::progress;
use crate::target::{Cipher, Group, Key, Target, TlsOffer, Version};
use crate::units::show_number;
use serde::Serialize;
use std::time::Duration;

/// Load before each measurement that is not counted.
const WARMUP: Duration = Duration::from_millis(500);
/// Connections in flight in the rows of new connections.
const IN_FLIGHT: usize = 32;

/// The clients' habit, the same in all places of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Habit {
    /// A connection and a full handshake for each request.
    NewConnections,
    /// Slow clients with a connection each.
    KeepAlive,
}

/// The place where TLS ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// There is none: plain clients on the origin.
    Nowhere,
    OnOrigin,
    OnBalancer,
}

#[derive(Clone, Debug, Serialize)]
pub struct Secured {
    pub habit: Habit,
    pub place: Place,
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
            self.habit,
            self.place,
            self.key,
            show_number(self.origin_microseconds()),
            self.spent.origin_rss_kib / 1024,
            self.failures
        )
    }
}

pub fn compare(stage: &Stage) -> Outcome<Vec<Secured>> {
    use Habit as H;
    use Place as P;
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
    for (habit, place, key) in runs {
        stage.interrupt.check()?;
        let secured = measure(stage, habit, place, key)?;
        progress(secured.show());
        found.push(secured);
    }
    Ok(found)
}

fn measure(stage: &Stage, habit: Habit, place: Place, key: Option<Key>) -> Outcome<Secured> {
    let arrangement = if place == Place::OnBalancer { Arrangement::Through } else { Arrangement::Direct };
    let scene = stage.scene(arrangement, key.filter(|_| place == Place::OnOrigin))?;
    let door = Door {
        address: if key.is_some() { scene.tls } else { scene.plain },
        name: SITE_NAME.to_owned(),
        tls: key.map(offer),
        sources: Vec::new(),
    };
    let blank = |spent| Secured {
        habit,
        place,
        key,
        requests: 0,
        requests_per_second: 0.0,
        failures: 0,
        first_error: None,
        spent,
    };
    match habit {
        Habit::NewConnections => measure_new(stage, &scene, &door, blank),
        Habit::KeepAlive => measure_kept(stage, &scene, &door, blank),
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

fn measure_new(stage: &Stage, scene: &Scene, door: &Door, blank: impl Fn(Spent) -> Secured) -> Outcome<Secured> {
    let target = Target::new(door.address, &door.name, door.tls.as_ref())?;
    let plan = Plan {
        kind: Kind::NewConnections,
        connections: IN_FLIGHT,
        request: Request::new("GET", "/", SITE_NAME, "Connection: close\r\n", 0),
        timeout: stage.arguments.timeout,
        rate: Some(f64::from(stage.arguments.tls_rate)),
    };
    let (before, measured) = machine::on_cores(&[stage.arguments.load_core], || {
        let mut load = Load::new(&target, plan, stage.interrupt)?;
        let warmup = load.run(Until::Elapsed(WARMUP), "")?.tally;
        if warmup.done == 0 {
            return Err(Failure::new(warmup.first_error().unwrap_or("no request was answered").to_owned()));
        }
        let before = scene.gauge()?;
        Ok((before, load.run(Until::Elapsed(stage.arguments.duration), "")?))
    })?;
    let summary = measured.tally.summary();
    Ok(Secured {
        requests: summary.done,
        requests_per_second: summary.per_second,
        failures: summary.errors_total(),
        first_error: summary.first_error,
        ..blank(scene.spent_since(&before)?)
    })
}

/// Failures, those of clients on their way in included; a client that was not served in the end has failed.
fn failures_of(grown: &Stretch, held: &Stretch) -> (u64, Option<String>) {
    let unserved = held.census.wanted.saturating_sub(held.census.served);
    let counted = grown.errors_total() + held.errors_total();
    let first = grown.first_error.clone().or_else(|| held.first_error.clone());
    let first = first.or_else(|| (unserved > 0).then(|| format!("{unserved} clients were not served in the end")));
    (counted.max(unserved as u64), first)
}

fn measure_kept(stage: &Stage, scene: &Scene, door: &Door, blank: impl Fn(Spent) -> Secured) -> Outcome<Secured> {
    let arguments = stage.arguments;
    let (conduct, core) = (slow_clients(stage), Some(arguments.load_core));
    let mut parts = Parts::start(door, &conduct, arguments.processes as usize, core, stage.interrupt)?;
    let grown = parts.grow(arguments.tls_clients(), arguments.timeout * 2, "")?;
    let before = scene.gauge()?;
    let held = parts.hold(arguments.duration)?;
    let (failures, first_error) = failures_of(&grown, &held);
    Ok(Secured {
        requests: held.done,
        requests_per_second: held.per_second(),
        failures,
        first_error,
        ..blank(scene.spent_since(&before)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crowd::stretch::Census;

    #[test]
    fn clients_that_failed_on_their_way_in_are_failures() {
        let with = |errors: u64, served: usize| Stretch {
            errors: [("timeout".to_owned(), errors)].into(),
            first_error: (errors > 0).then(|| "late".to_owned()),
            census: Census { wanted: 200, open: 200, served },
            ..Stretch::default()
        };
        assert_eq!(failures_of(&with(0, 200), &with(0, 200)), (0, None));
        assert_eq!(failures_of(&with(113, 200), &with(0, 200)), (113, Some("late".to_owned())));
        let (failures, first) = failures_of(&with(0, 87), &with(0, 87));
        assert_eq!((failures, first.as_deref()), (113, Some("113 clients were not served in the end")));
    }
}

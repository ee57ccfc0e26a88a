//! Ever more slow clients, until there are as many as were asked for or some are not served.

use super::sockets::Established;
use super::testbed::{Servers, Setup, Spent, Testbed};
use crate::client_group::clients::Behaviour;
use crate::client_group::phase::LoadPhase;
use crate::client_group::processes::{ClientProcesses, Endpoint};
use crate::client_group::{ClientBehaviour, RequestPattern};
use crate::compare::site::SITE_NAME;
use crate::failure::Outcome;
use crate::link::Request;
use crate::quantity::PerSecond;
use crate::report::progress;
use crate::stats::LatencySummary;
use crate::units::{show_nanoseconds, show_number};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Steps that fail before the climb is given up: one shows the limit, the next that it stays.
const FAILED_STEPS_MAX: usize = 2;
/// Times that connections are counted in a step.
const LOOKS: usize = 8;
const LOOK_PAUSE: Duration = Duration::from_millis(25);
/// Between starting the servers and the first client.
const REST: Duration = Duration::from_millis(300);

/// One number of clients, for a while.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    pub setup: Setup,
    pub clients: usize,
    /// Clients with a connection on which they were answered, at the end.
    pub served: usize,
    /// Client connections as the balancer (directly: the origin) has accepted them, and those it has not.
    pub client_side: Established,
    /// The origin's connections.
    pub origin_side: Established,
    pub requests_per_second: PerSecond,
    /// Requests and connections that failed, while clients came and after.
    pub failures: u64,
    /// Failures after all clients had come.
    pub failures_holding: u64,
    pub first_error: Option<String>,
    /// TCP connects of this step.
    pub connect: LatencySummary,
    /// Answers after all had come.
    pub answer: LatencySummary,
    /// While it was measured.
    pub spent: Spent,
    pub load_busy: f64,
}

impl Step {
    /// Everyone is served and nobody was turned away since.
    pub fn is_borne(&self) -> bool {
        self.served == self.clients && self.failures_holding == 0
    }

    pub fn origin_microseconds(&self) -> f64 {
        let answers = self.requests_per_second.0 * self.spent.seconds;
        self.spent.origin_cpu * 1e6 / answers.max(1.0)
    }

    pub fn show(&self) -> String {
        format!(
            "{} of {} served, {} requests/s, {} connections on the origin, p99 {}, {} failures",
            self.served,
            self.clients,
            show_number(self.requests_per_second.0),
            self.origin_side.accepted,
            show_nanoseconds(self.answer.p99 as f64),
            self.failures
        )
    }
}

pub fn climb(testbed: &Testbed, setup: Setup) -> Outcome<Vec<Step>> {
    let Testbed { arguments, interrupt, .. } = testbed;
    let servers = testbed.servers(setup, None)?;
    interrupt.sleep(REST)?;
    let endpoint = Endpoint { address: servers.plain, name: SITE_NAME.to_owned(), tls: None, sources: Vec::new() };
    let core = Some(arguments.load_core);
    let behaviour = Behaviour::Http1(slow_clients(testbed));
    let mut group = ClientProcesses::start(&endpoint, &behaviour, arguments.processes as usize, core, interrupt)?;
    let mut steps: Vec<Step> = Vec::new();
    for &clients in &arguments.clients {
        let name = setup.name();
        let come = clients - steps.last().map_or(0, |step| step.clients);
        let arriving = Duration::from_secs_f64(come as f64 / f64::from(arguments.arrivals));
        let growing = group.grow(clients, arriving + arguments.timeout * 2, name)?;
        let gauge = servers.gauge()?;
        let holding = group.hold(arguments.duration)?;
        let spent = servers.spent_since(&gauge)?;
        let sides = look_at_connections(testbed, &servers)?;
        let step = Step::new((setup, clients), growing, holding, spent, sides);
        progress(format_args!("{name}: {}", step.show()));
        steps.push(step);
        if steps.iter().filter(|step| !step.is_borne()).count() >= FAILED_STEPS_MAX {
            progress(format_args!("{name}: given up here"));
            break;
        }
    }
    Ok(steps)
}

/// The most of several looks, as a balancer may open and close a connection for each request. The clients go on
/// meanwhile.
fn look_at_connections(testbed: &Testbed, servers: &Servers) -> Outcome<(Established, Established)> {
    let (mut client_side, mut origin_side) = (Established::default(), Established::default());
    for _ in 0..LOOKS {
        client_side = client_side.most(Established::at(servers.plain.port()));
        origin_side = origin_side.most(Established::at(servers.origin_address.port()));
        testbed.interrupt.sleep(LOOK_PAUSE)?;
    }
    Ok((client_side, origin_side))
}

pub fn slow_clients(testbed: &Testbed) -> ClientBehaviour {
    ClientBehaviour {
        pattern: RequestPattern::Every(testbed.arguments.every),
        request: Request::new("GET", "/", SITE_NAME, "", 0),
        timeout: testbed.arguments.timeout,
        opening_max: usize::MAX,
        arrivals_max: Some(f64::from(testbed.arguments.arrivals) / testbed.arguments.processes as f64),
    }
}

impl Step {
    fn new(
        (setup, clients): (Setup, usize),
        mut growing: LoadPhase,
        holding: LoadPhase,
        spent: Spent,
        (client_side, origin_side): (Established, Established),
    ) -> Self {
        let failures_holding = holding.errors_total();
        let counts = holding.clients;
        let answer = holding.answer_latency.summary();
        let (requests_per_second, load_busy) = (holding.per_second(), holding.load_busy);
        growing.add(holding);
        Self {
            setup,
            clients,
            served: counts.served,
            client_side,
            origin_side,
            requests_per_second: PerSecond(requests_per_second),
            failures: growing.errors_total(),
            failures_holding,
            first_error: growing.first_error.clone(),
            connect: growing.connect_latency.summary(),
            answer,
            spent,
            load_busy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_group::ClientGroup;
    use crate::interrupt::Interrupt;
    use crate::offload::prefork;
    use crate::target::Target;

    #[test]
    fn a_full_origin_serves_its_maximum_and_leaves_the_others_waiting() {
        let address = prefork::tests::started(3);
        let target = Target::new(address, "localhost", None).unwrap();
        let behaviour = ClientBehaviour {
            pattern: RequestPattern::Every(Duration::from_millis(100)),
            request: Request::new("GET", "/", "localhost", "", 0),
            timeout: Duration::from_millis(400),
            opening_max: usize::MAX,
            arrivals_max: Some(1000.0),
        };
        let mut group = ClientGroup::new(&target, behaviour, 1, &Interrupt::default()).unwrap();
        let grown = group.grow(5, Duration::from_secs(5), |_| {}).unwrap();
        assert_eq!((grown.clients.served, grown.errors["timeout"]), (3, 2));
        assert_eq!(Established::at(address.port()).accepted, 3);
    }
}

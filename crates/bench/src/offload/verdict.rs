//! The report of `offload`: the steps, TLS, and the ratios beside those that Cisco stated.

use super::arguments::Arguments;
use super::secure::{ClientPattern, Secured, TlsEnd};
use super::steps::Step;
use super::testbed::Setup;
use crate::failure::{Failure, Outcome};
use crate::report::Table;
use crate::target::Key;
use crate::units::{show_nanoseconds, show_number};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub struct Verdict {
    balancer: String,
    origin_max: usize,
    origin_per_connection_bytes: usize,
    origin_cpu_per_request_microseconds: u64,
    every_seconds: f64,
    duration_seconds: f64,
    pub steps: Vec<Step>,
    pub tls: Vec<Secured>,
    ratios: Ratios,
}

/// Ratios that the balancer brought, on this machine and at this scale. Absent: not measured.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Ratios {
    /// Most clients that were all served.
    direct_clients: usize,
    through_clients: usize,
    /// The last step was borne, so that more clients might have been too.
    through_is_open: bool,
    /// In the largest step that the balancer bore.
    clients_per_origin_connection: Option<f64>,
    clients: Option<f64>,
    requests_per_second: Option<f64>,
    /// Changes of the origin's CPU per request (a full handshake each) from TLS on it to TLS on the balancer.
    cpu_ec: Option<f64>,
    cpu_rsa: Option<f64>,
    /// The same of slow clients that keep their connections, and of the origin's memory then.
    cpu_kept: Option<f64>,
    memory_kept: Option<f64>,
}

impl Verdict {
    pub fn new(
        arguments: &Arguments,
        balancer: String,
        direct: Vec<Step>,
        through: Vec<Step>,
        tls: Vec<Secured>,
    ) -> Self {
        let ratios = Ratios::of(&direct, &through, &tls);
        Self {
            balancer,
            origin_max: arguments.cost.max,
            origin_per_connection_bytes: arguments.cost.per_connection,
            origin_cpu_per_request_microseconds: arguments.cost.cpu.as_micros() as u64,
            every_seconds: arguments.every.as_secs_f64(),
            duration_seconds: arguments.duration.as_secs_f64(),
            steps: direct.into_iter().chain(through).collect(),
            tls,
            ratios,
        }
    }

    pub fn print(&self) {
        let mut facts = Table::of_facts();
        facts.row(["balancer", &self.balancer]);
        let memory = self.origin_per_connection_bytes / 1024;
        let cpu = self.origin_cpu_per_request_microseconds;
        let max = self.origin_max;
        facts.row(["origin", &format!("at most {max} connections, {memory} KiB each; {cpu} µs of CPU per request")]);
        let every = show_number(self.every_seconds);
        facts.row(["clients", &format!("a connection each, a request every {every} s")]);
        facts.print();
        println!();
        self.print_steps();
        if !self.tls.is_empty() {
            println!();
            self.print_tls();
        }
        println!();
        self.print_ratios();
    }

    fn print_steps(&self) {
        let mut table = Table::with_head([
            "setup",
            "clients",
            "served",
            "accepted",
            "on origin",
            "queued",
            "req/s",
            "connect p99",
            "answer p50",
            "answer p99",
            "failed",
            "origin CPU",
            "µs/req",
            "origin MiB",
            "balancer CPU",
            "MiB",
        ]);
        self.steps.iter().for_each(|step| table.row(cells(step)));
        table.print();
        println!(
            "accepted: client connections that the balancer (direct: the origin) has taken. on origin: connections"
        );
        println!("the origin has taken; queued: those that wait for it to; each the most of eight looks. connect: TCP");
        println!("only, which the kernel does for a full server too; answers count from when the request was due.");
        println!("failed: timeouts and resets.");
        for step in self.steps.iter().filter(|step| step.failures > 0) {
            let first = step.first_error.as_deref().unwrap_or_default();
            println!("{:?}, {} clients: {} failures, first: {first}", step.setup, step.clients, step.failures);
        }
        if self.steps.iter().any(|step| step.load_busy > crate::handshakes::LOAD_SATURATED) {
            println!("The load filled its core in some step: it, not the servers, was the limit there.");
        }
    }

    fn print_tls(&self) {
        let mut table = Table::with_head([
            "TLS",
            "clients",
            "key",
            "req/s",
            "failed",
            "origin CPU",
            "µs/req",
            "origin MiB",
            "balancer CPU",
            "µs/req",
        ]);
        for secured in &self.tls {
            let percent = |cpu: f64| format!("{} %", show_number(cpu / secured.spent.seconds.max(1e-9) * 100.0));
            let is_offload = secured.tls_end == TlsEnd::OnBalancer;
            let of_balancer = |text: String| if is_offload { text } else { "-".to_owned() };
            table.row([
                match secured.tls_end {
                    TlsEnd::Nowhere => "none, on origin",
                    TlsEnd::OnOrigin => "on origin",
                    TlsEnd::OnBalancer => "on balancer",
                }
                .to_owned(),
                if secured.pattern == ClientPattern::KeepAlive { "slow, kept" } else { "new each" }.to_owned(),
                secured.key.map_or("-", |key| if key == Key::Ec { "ec" } else { "rsa" }).to_owned(),
                show_number(secured.requests_per_second),
                secured.failures.to_string(),
                percent(secured.spent.origin_cpu),
                show_number(secured.origin_microseconds()),
                show_number(secured.spent.origin_rss_kib as f64 / 1024.0),
                of_balancer(percent(secured.spent.balancer_cpu)),
                of_balancer(show_number(secured.balancer_microseconds())),
            ]);
        }
        table.print();
        println!("new each: a connection and a full TLS 1.3 handshake for every request. CPU in shares of one core.");
        for secured in self.tls.iter().filter(|secured| secured.failures > 0) {
            println!("{:?}: first error: {}", secured.tls_end, secured.first_error.as_deref().unwrap_or_default());
        }
    }

    fn print_ratios(&self) {
        let ratios = &self.ratios;
        let times = |value: Option<f64>| {
            let at_least = if ratios.through_is_open { "at least " } else { "" };
            value.map_or("-".to_owned(), |value| format!("{at_least}{}x", show_number(value)))
        };
        let change = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{:+.0} %", value * 100.0));
        println!("Cisco states for its ACE, on its own hardware and load; ours is of this machine, at this scale:");
        let mut table = Table::with_head(["ratio", "Cisco ACE, stated", "here"]);
        let per_origin = ratios.clients_per_origin_connection;
        table.row([
            "client connections per origin connection".to_owned(),
            "32:1 (160,000 on 5,000)".to_owned(),
            per_origin.map_or("-".to_owned(), |value| format!("{}:1", show_number(value))),
        ]);
        let improvements = "17x, 20x, 12x";
        table.row(["clients served, through / direct".to_owned(), improvements.to_owned(), times(ratios.clients)]);
        let rate = ratios.requests_per_second;
        table.row(["requests per second, through / direct".to_owned(), improvements.to_owned(), times(rate)]);
        table.row(["origin CPU, TLS taken off, new EC connections", "-70 %", &change(ratios.cpu_ec)]);
        table.row(["origin CPU, TLS taken off, new RSA-2048 connections", "-70 %", &change(ratios.cpu_rsa)]);
        table.row(["origin CPU, TLS taken off, kept connections", "-70 %", &change(ratios.cpu_kept)]);
        table.row(["origin memory, TLS taken off, kept connections", "-50 %", &change(ratios.memory_kept)]);
        table.print();
        println!("Cisco's three improvements are of its own measures; they are not matched line by line. Ours follow");
        println!("from --max, --every, --per-connection and --cpu: {} clients direct,", ratios.direct_clients);
        println!("{} through, and would be others with others.", ratios.through_clients);
    }

    /// A balancer that bears less than the origin alone has not done its work.
    pub fn outcome(&self) -> Outcome<()> {
        if self.ratios.through_clients == 0 {
            return Err(Failure::new("the balancer did not bear the first step"));
        }
        if self.ratios.through_clients < self.ratios.direct_clients {
            return Err(Failure::new("the balancer bore fewer clients than the origin alone"));
        }
        match self.tls.iter().map(|secured| secured.failures).sum::<u64>() {
            0 => Ok(()),
            failures => Err(Failure::new(format!("{failures} requests failed in the comparison of TLS"))),
        }
    }
}

fn cells(step: &Step) -> Vec<String> {
    let spent = &step.spent;
    let percent = |cpu: f64| format!("{} %", show_number(cpu / spent.seconds.max(1e-9) * 100.0));
    let mebibytes = |kib: u64| show_number(kib as f64 / 1024.0);
    let latency = |nanoseconds: u64| show_nanoseconds(nanoseconds as f64);
    let is_direct = step.setup == Setup::Direct;
    let of_balancer = |text: String| if is_direct { "-".to_owned() } else { text };
    vec![
        step.setup.name().to_owned(),
        step.clients.to_string(),
        step.served.to_string(),
        step.client_side.accepted.to_string(),
        step.origin_side.accepted.to_string(),
        step.origin_side.queued.to_string(),
        show_number(step.requests_per_second.0),
        latency(step.connect.p99),
        latency(step.answer.p50),
        latency(step.answer.p99),
        step.failures.to_string(),
        percent(spent.origin_cpu),
        show_number(step.origin_microseconds()),
        mebibytes(spent.origin_rss_kib),
        of_balancer(percent(spent.balancer_cpu)),
        of_balancer(mebibytes(spent.balancer_rss_kib)),
    ]
}

impl Ratios {
    fn of(direct: &[Step], through: &[Step], tls: &[Secured]) -> Self {
        let best = |steps: &[Step]| steps.iter().filter(|step| step.is_borne()).map(|step| step.clients).max();
        // Directly, a step in between would have been borne too: what counts is how many had an answer at all.
        let most_served = direct.iter().map(|step| step.served).max().unwrap_or(0);
        let top = through.iter().filter(|step| step.is_borne()).max_by_key(|step| step.clients);
        let best_rate = direct.iter().map(|step| step.requests_per_second.0).fold(0.0, f64::max);
        let over = |value: f64, base: f64| (base > 0.0).then(|| value / base);
        let find = |pattern: ClientPattern, tls_end: TlsEnd, key: Key| {
            tls.iter().find(|one| one.pattern == pattern && one.tls_end == tls_end && one.key == Some(key))
        };
        let change = |pattern: ClientPattern, key: Key, of: fn(&Secured) -> f64| {
            let (on_origin, off) = (find(pattern, TlsEnd::OnOrigin, key)?, find(pattern, TlsEnd::OnBalancer, key)?);
            over(of(off), of(on_origin)).map(|ratio| ratio - 1.0)
        };
        Self {
            direct_clients: most_served,
            through_clients: best(through).unwrap_or(0),
            through_is_open: through.last().is_some_and(Step::is_borne),
            clients_per_origin_connection: top
                .and_then(|step| over(step.clients as f64, step.origin_side.accepted as f64)),
            clients: top.and_then(|step| over(step.clients as f64, most_served as f64)),
            requests_per_second: top.and_then(|step| over(step.requests_per_second.0, best_rate)),
            cpu_ec: change(ClientPattern::NewConnections, Key::Ec, Secured::origin_microseconds),
            cpu_rsa: change(ClientPattern::NewConnections, Key::Rsa, Secured::origin_microseconds),
            cpu_kept: change(ClientPattern::KeepAlive, Key::Ec, Secured::origin_microseconds),
            memory_kept: change(ClientPattern::KeepAlive, Key::Ec, |one| one.spent.origin_rss_kib as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client_group::phase::Latencies;
    use crate::offload::sockets::Established;
    use crate::offload::testbed::Spent;
    use crate::quantity::PerSecond;

    fn spent(origin_cpu: f64, origin_rss_kib: u64) -> Spent {
        Spent { seconds: 1.0, origin_cpu, origin_rss_kib, balancer_cpu: 0.1, balancer_rss_kib: 1024 }
    }

    fn step(setup: Setup, clients: usize, served: usize, on_origin: usize) -> Step {
        let none = Latencies::default().summary();
        Step {
            setup,
            clients,
            served,
            client_side: Established { accepted: served, queued: 0 },
            origin_side: Established { accepted: on_origin, queued: 0 },
            requests_per_second: PerSecond(served as f64 / 2.0),
            failures: (clients - served) as u64,
            failures_holding: (clients - served) as u64,
            first_error: None,
            connect: none.clone(),
            answer: none,
            spent: spent(0.5, 1000),
            load_busy: 0.1,
        }
    }

    fn secured(tls_end: TlsEnd, origin_cpu: f64, origin_rss_kib: u64) -> Secured {
        let (pattern, key) = (ClientPattern::KeepAlive, Some(Key::Ec));
        let spent = spent(origin_cpu, origin_rss_kib);
        Secured {
            pattern,
            tls_end,
            key,
            requests: 100,
            requests_per_second: 100.0,
            failures: 0,
            first_error: None,
            spent,
        }
    }

    #[test]
    fn ratios_are_of_the_largest_step_that_was_borne() {
        use Setup::{Direct, Through};
        let direct = [step(Direct, 100, 100, 100), step(Direct, 400, 256, 256)];
        let through = [step(Through, 100, 100, 9), step(Through, 1024, 1024, 16), step(Through, 4000, 3000, 250)];
        let tls = [secured(TlsEnd::OnOrigin, 0.4, 2000), secured(TlsEnd::OnBalancer, 0.1, 500)];
        let ratios = Ratios::of(&direct, &through, &tls);
        assert_eq!((ratios.direct_clients, ratios.through_clients, ratios.through_is_open), (256, 1024, false));
        assert_eq!((ratios.clients_per_origin_connection, ratios.clients), (Some(64.0), Some(4.0)));
        assert_eq!((ratios.requests_per_second, ratios.cpu_kept), (Some(4.0), Some(-0.75)));
        assert_eq!((ratios.memory_kept, ratios.cpu_ec), (Some(-0.75), None));
    }
}

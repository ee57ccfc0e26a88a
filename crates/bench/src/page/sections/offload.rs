//! `offload`: what the balancer takes off the origin, step by step. Both arrangements in each picture.

use super::super::axis::{Axis, Scale};
use super::super::chart::{Named, bars};
use super::super::html::{Cell, details, note, table};
use super::super::latency;
use super::super::plot::{Plot, Point, Series};
use super::shared::figures;
use crate::offload::secure::{ClientPattern, Secured, TlsEnd};
use crate::offload::steps::Step;
use crate::offload::testbed::Setup::{self, Direct, Through};
use crate::offload::verdict::Verdict;
use crate::quantity::{Cores, Count, CpuNanoseconds, Kibibytes, Nanoseconds, PerSecond, Quantity};
use crate::target::Key;
use crate::units::show_nanoseconds;

/// Lines of a picture: name, setup, and the value of a step.
type Lines<'l, Q> = &'l [(&'l str, Setup, fn(&Step) -> Q)];

pub fn render(verdict: &Verdict) -> String {
    let steps = &verdict.steps;
    let mut drawn = picture::<Count>(
        steps,
        "Connections on both sides of the balancer",
        &[
            ("clients' side, through the balancer", Through, |step| {
                Count((step.client_side.accepted + step.client_side.queued) as f64)
            }),
            ("origin's side, through the balancer", Through, |step| Count(step.origin_side.accepted as f64)),
            ("origin, directly", Direct, |step| Count(step.origin_side.accepted as f64)),
        ],
    );
    let served: fn(&Step) -> Count = |step| Count(step.served as f64);
    drawn.push_str(&picture(
        steps,
        "Clients that are served",
        &[("through the balancer", Through, served), ("directly", Direct, served)],
    ));
    let rate: fn(&Step) -> PerSecond = |step| step.requests_per_second;
    drawn.push_str(&picture(
        steps,
        "Requests answered",
        &[("through the balancer", Through, rate), ("directly", Direct, rate)],
    ));
    let origin_cores: fn(&Step) -> Cores = |step| Cores(step.spent.origin_cpu / step.spent.seconds.max(1e-9));
    drawn.push_str(&picture(
        steps,
        "CPU",
        &[
            ("origin, with offload", Through, origin_cores),
            ("origin, without", Direct, origin_cores),
            ("balancer", Through, |step| Cores(step.spent.balancer_cpu / step.spent.seconds.max(1e-9))),
        ],
    ));
    let origin_memory: fn(&Step) -> Kibibytes = |step| Kibibytes(step.spent.origin_rss_kib as f64);
    drawn.push_str(&picture(
        steps,
        "Memory",
        &[
            ("origin, with offload", Through, origin_memory),
            ("origin, without", Direct, origin_memory),
            ("balancer", Through, |step| Kibibytes(step.spent.balancer_rss_kib as f64)),
        ],
    ));
    let median: fn(&Step) -> Nanoseconds = |step| Nanoseconds(step.answer.p50 as f64);
    let p99: fn(&Step) -> Nanoseconds = |step| Nanoseconds(step.answer.p99 as f64);
    drawn.push_str(&picture(
        steps,
        "Time to an answer",
        &[
            ("through, median", Through, median),
            ("directly, median", Direct, median),
            ("through, p99", Through, p99),
            ("directly, p99", Direct, p99),
        ],
    ));
    drawn.push_str(&secured(&verdict.tls));
    let mut html = figures(&drawn);
    html.push_str(&note(
        "×: in this step requests or connections failed. An origin alone fails early: that is its limit.",
    ));
    html.push_str(&values(steps));
    html
}

fn picture<Q: Quantity>(steps: &[Step], title: &str, lines: Lines<Q>) -> String {
    let series = lines.iter().map(|(name, setup, value)| {
        let own = steps.iter().filter(|step| step.setup == *setup);
        let point =
            |step: &Step| Point { x: step.clients as f64, y: value(step).drawn(), spread: None, errors: step.failures };
        Series { name: (*name).to_owned(), points: own.map(point).collect() }
    });
    let series: Vec<Series> = series.collect();
    let scale = if Q::UNIT == Nanoseconds::UNIT { latency::scale_for(&series) } else { Scale::Linear };
    Plot {
        title: title.to_owned(),
        note: None,
        x: Axis::new("clients, step by step", Scale::Linear),
        y: Axis::new(Q::UNIT, scale),
        series,
        is_ideal_shown: false,
    }
    .render()
}

/// CPU time for a request, by where TLS ends.
fn secured(rows: &[Secured]) -> String {
    let named = |row| Named { name: title(row), record: row, errors: row.failures };
    let rows: Vec<Named<Secured>> = rows.iter().filter(|row| row.requests > 0).map(named).collect();
    let origin = |row: &Secured| Some(CpuNanoseconds(row.origin_microseconds() * 1e3));
    let balancer = |row: &Secured| Some(CpuNanoseconds(row.balancer_microseconds() * 1e3));
    bars("CPU time for a request, by where TLS ends", &[("origin", &origin), ("balancer", &balancer)], &rows)
}

/// `new connections · ec · on origin (TLS)`
fn title(row: &Secured) -> String {
    let pattern = match row.pattern {
        ClientPattern::NewConnections => "new connections",
        ClientPattern::KeepAlive => "keep alive",
    };
    let key = row.key.map(|key| if key == Key::Ec { "ec" } else { "rsa" });
    let tls_end = match row.tls_end {
        TlsEnd::Nowhere => "nowhere",
        TlsEnd::OnOrigin => "on origin",
        TlsEnd::OnBalancer => "on balancer",
    };
    let parts: Vec<&str> = [Some(pattern), key, Some(tls_end)].into_iter().flatten().collect();
    format!("{} (TLS)", parts.join(" · "))
}

/// The steps' numbers, for those who do not trust a picture.
fn values(steps: &[Step]) -> String {
    let row = |step: &Step| {
        let count = |count: usize| Cell::number(Some(count as f64));
        vec![
            Cell::text(step.setup.name()),
            count(step.clients),
            count(step.served),
            count(step.client_side.accepted),
            count(step.origin_side.accepted),
            Cell::number(Some(step.requests_per_second.0)),
            Cell::Number(show_nanoseconds(step.answer.p50 as f64)),
            Cell::Number(show_nanoseconds(step.answer.p99 as f64)),
            Cell::errors(step.failures),
        ]
    };
    let rows: Vec<Vec<Cell>> = steps.iter().map(row).collect();
    let head = [
        "setup",
        "clients",
        "served",
        "accepted",
        "on the origin",
        "requests per second",
        "answer p50",
        "answer p99",
        "failed",
    ];
    details("Table: steps", &table(&head, &rows))
}

#[cfg(test)]
mod tests {
    use super::super::super::render_value;
    use serde_json::json;

    #[test]
    fn both_sides_and_both_arrangements_are_drawn() {
        let latency = json!({"mean": 1e6, "p50": 1_000_000, "p90": 1, "p99": 2_000_000, "p99_9": 1, "max": 1});
        let step = |setup: &str, clients: u32, failures: u32| {
            json!({"setup": setup, "clients": clients, "served": clients, "failures": failures,
                "client_side": {"accepted": clients, "queued": 1}, "origin_side": {"accepted": 5, "queued": 0},
                "requests_per_second": 50.0, "failures_holding": 0, "answer": latency, "connect": latency, "load_busy": 0.1,
                "spent": {"seconds": 2.0, "origin_cpu": 1.0, "origin_rss_kib": 2048, "balancer_cpu": 0.5, "balancer_rss_kib": 1024}})
        };
        let steps = [step("direct", 10, 0), step("direct", 20, 3), step("through", 10, 0), step("through", 20, 0)];
        let tls = json!([{"pattern": "new-connections", "tls_end": "on-origin", "key": "Ec", "requests": 1000,
            "requests_per_second": 1.0, "failures": 0, "spent": steps[0]["spent"]}]);
        let html = render_value(json!({"command": "offload", "balancer": "b", "origin_max": 9, "every_seconds": 1.0,
            "origin_per_connection_bytes": 1, "origin_cpu_per_request_microseconds": 1, "duration_seconds": 1.0,
            "steps": steps, "tls": tls, "ratios": {"direct_clients": 1, "through_clients": 2, "through_is_open": true}}));
        for title in [
            "Connections on both sides",
            "Requests answered",
            ">CPU<",
            ">Memory<",
            "Time to an answer",
            "by where TLS ends",
        ] {
            assert!(html.contains(title), "{title}");
        }
        assert!(html.contains("3 errors") && html.contains("new connections · ec · on origin (TLS)"), "{html}");
    }
}

//! Errors for the dashboard and `propylon errors`: what has gone wrong since the start, where and why, how often, and
//! what to do about it.

use std::collections::BTreeMap;
use std::sync::Arc;

use propylon_config::{Backend, Limit, Route};
use propylon_metrics::Counter;
use propylon_observe::conditions::TABLE;
use propylon_observe::telemetry::{BackendMetrics, LimitMetrics, ServerMetrics, WAITS};
use serde_json::{Map, Value, json};

use super::view::View;

/// Reason of the one failure that no server has a part in.
const BUFFER_FAILED: &str = propylon_http::fault::Fault::BufferFailed.label();

/// Something that has gone wrong, with the metric that counts it.
pub(super) struct Fault {
    what: &'static str,
    place: Place,
    why: &'static str,
    pub count: u64,
    metric: &'static str,
}

/// The place where something goes wrong.
#[derive(Clone)]
enum Place {
    Process,
    Listener(String),
    Backend(String),
    Server {
        backend: String,
        address: String,
    },
    /// A limit, with the first route that has it, and how many others do.
    Limit {
        limit: String,
        route: String,
        others: usize,
    },
}

impl Place {
    fn words(&self) -> String {
        match self {
            Place::Process => String::new(),
            Place::Listener(name) | Place::Backend(name) => name.clone(),
            Place::Server { backend, address } => format!("{backend}: {address}"),
            Place::Limit { limit, route, others } => {
                let more = if *others > 0 { format!(" and {others} more") } else { String::new() };
                format!("route {route}{more}: limit {limit}")
            }
        }
    }

    fn names(&self) -> Vec<(&'static str, &str)> {
        match self {
            Place::Process => Vec::new(),
            Place::Listener(name) => vec![("listener", name)],
            Place::Backend(name) => vec![("backend", name)],
            Place::Server { backend, address } => vec![("backend", backend), ("server", address)],
            Place::Limit { limit, route, .. } => vec![("route", route), ("limit", limit)],
        }
    }
}

impl Fault {
    /// Kind, place, reason and count, then the place by its names, and the cure.
    pub fn to_json(&self) -> Value {
        let pairs = self.place.names().into_iter().map(|(key, name)| (key.to_owned(), Value::from(name)));
        let mut more: Map<String, Value> = pairs.collect();
        more.insert("cure".to_owned(), cure(self.metric, self.why).into());
        json!([self.what, self.place.words(), self.why, self.count, more])
    }
}

impl View {
    /// Faults since the start, but for the backends'.
    pub(super) fn faults(&self) -> Vec<Fault> {
        let snapshot = self.current();
        let mut faults = Vec::new();
        let mut report = |what, metric, place: &Place, why, counter: Counter| {
            faults.push(Fault { what, place: place.clone(), why, count: self.store.count(counter), metric });
        };
        for listener in &snapshot.config.listeners {
            let Some(metrics) = self.telemetry.listener(listener).map(|handles| handles.listener) else { continue };
            let place = &Place::Listener(listener.name.clone());
            let kinds = [
                ("request refused", "propylon_requests_rejected_total", &metrics.rejected),
                ("request cut short by the client", "propylon_client_faults_total", &metrics.faults),
            ];
            for (what, metric, by_fault) in kinds {
                by_fault.each().for_each(|(why, counter)| report(what, metric, place, why, counter));
            }
            let (what, metric) = ("TLS failed", "propylon_tls_handshake_failures_total");
            metrics.handshake_failures.each().for_each(|(why, counter)| report(what, metric, place, why, counter));
            let (what, metric) = ("HTTP/2 client did too much", "propylon_http2_floods_total");
            metrics.http2.floods.each().for_each(|(why, counter)| report(what, metric, place, why, counter));
            let (what, metric) = ("HTTP/2 protocol broken", "propylon_http2_errors_total");
            metrics.http2.errors.each().for_each(|(why, counter)| report(what, metric, place, why, counter));
            for ((_, wait), counter) in WAITS.iter().zip(&metrics.timeouts) {
                report("limit on waiting met", "propylon_timeouts_total", place, wait, *counter);
            }
        }
        for (place, metrics) in self.limits() {
            let metric = "propylon_limit_requests_total";
            for (why, counter) in [("refused", metrics.refused), ("denied", metrics.denied)] {
                report("request refused by a limit", metric, &place, why, counter);
            }
        }
        let process = &self.telemetry.process;
        for (what, metric, counter) in [
            ("accept failed", "propylon_accept_errors_total", process.accept_errors),
            ("accepting paused: connection limit", "propylon_listener_paused", process.accept_pauses),
            ("access log line dropped", "propylon_access_log_dropped_total", process.access_log_dropped),
            ("access log write failed", "propylon_access_log_lost_total", process.access_log_failed),
            ("access log not opened anew", "propylon_access_log_reopen_errors_total", process.access_log_reopens),
            ("certificate file not usable", "propylon_certificate_unusable_files", process.certificate_reload_errors),
            ("panic: a defect, please report it", "propylon_panics_total", process.panics),
        ] {
            report(what, metric, &Place::Process, "", counter);
        }
        faults.retain(|fault| fault.count > 0);
        faults
    }

    /// Limits, each once, however many routes share it.
    fn limits(&self) -> Vec<(Place, Arc<LimitMetrics>)> {
        let snapshot = self.current();
        let mut known: BTreeMap<&str, (&Route, &Limit, usize)> = BTreeMap::new();
        for route in &snapshot.config.routes {
            for limit in &route.steps.limit {
                known.entry(&limit.label).and_modify(|(.., others)| *others += 1).or_insert((route, limit, 0));
            }
        }
        let one = |(route, limit, others): (&Route, &Limit, usize)| {
            let place = Place::Limit { limit: limit.label.clone(), route: route.label.clone(), others };
            Some((place, self.telemetry.limit(limit)?))
        };
        known.into_values().filter_map(one).collect()
    }

    /// Faults known of one server.
    pub(super) fn server_faults(
        &self,
        backend: &str,
        address: &str,
        metrics: &ServerMetrics,
    ) -> impl Iterator<Item = Fault> {
        let own = [
            ("server ejected for its answers", "propylon_server_ejected", metrics.health.ejections),
            ("name of a server not found", "propylon_server_lookup_failing", metrics.health.lookup_failures),
            ("connect to a server failed", "propylon_server_connect_failures_total", metrics.connect_failures),
            ("request failed at the server", "propylon_server_faults_total", metrics.failures),
        ];
        let counts = own.map(|(what, metric, counter)| (what, metric, self.store.count(counter)));
        let (backend, address) = (backend.to_owned(), address.to_owned());
        counts.into_iter().filter(|(_, _, count)| *count > 0).map(move |(what, metric, count)| {
            let place = Place::Server { backend: backend.clone(), address: address.clone() };
            Fault { what, place, why: "", count, metric }
        })
    }

    pub(super) fn backend_faults(&self, backend: &Backend, metrics: &BackendMetrics) -> Vec<Fault> {
        let own = [
            ("no server left", "propylon_backend_unavailable_total", "", metrics.unavailable),
            ("retry beyond its budget", "propylon_retries_refused_total", "", metrics.retries_refused),
        ];
        let faults = metrics.faults.each();
        let what = |why: &str| match why == BUFFER_FAILED {
            true => "body cannot be held",
            false => "attempt failed at a server",
        };
        let faults = faults.map(|(why, counter)| (what(why), "propylon_server_faults_total", why, counter));
        let what = "left the queue without a server connection";
        let queue = metrics.queue_refused.each();
        let queue = queue.map(|(why, counter)| (what, "propylon_queue_refused_total", why, counter));
        let all = own.into_iter().chain(faults).chain(queue).map(|(what, metric, why, counter)| {
            let place = Place::Backend(backend.name.clone());
            Fault { what, place, why, count: self.store.count(counter), metric }
        });
        all.filter(|fault| fault.count > 0).collect()
    }
}

/// The cure for a metric of trouble; of one with a reason, or a wait, about that.
fn cure(metric: &str, reason: &str) -> Option<&'static str> {
    let has = |label: &str, values: &[&str]| matches!(label, "reason" | "wait" | "outcome") && values.contains(&reason);
    let row = TABLE.iter().find(|row| {
        row.metric == metric
            && row.of.is_none()
            && row.only.is_none_or(|(label, values)| has(label, values))
            && !row.except.is_some_and(|(label, values)| has(label, values))
    });
    // A cure with a number in it is for when that is known.
    row.map(|row| row.cure).filter(|cure| !cure.contains("{value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cure_is_that_of_the_reason() {
        let of = |reason| cure("propylon_queue_refused_total", reason).expect("a cure");
        assert!(of("circuit-open").contains("circuit.requests") && of("timeout").contains("queue.limit"));
        assert!(cure("propylon_timeouts_total", "first-byte").is_some_and(|cure| cure.contains("timeouts")));
        assert!(cure("propylon_timeouts_total", "idle").is_none() && cure("nothing", "").is_none());
    }

    #[test]
    fn an_error_is_told_with_its_place_in_words_and_by_names() {
        let place = Place::Server { backend: "app".into(), address: "a:1".into() };
        let metric = "propylon_server_connect_failures_total";
        let told = Fault { what: "w", place, why: "", count: 3, metric }.to_json();
        assert_eq!(
            told.as_array().map(|parts| &parts[..4]),
            json!(["w", "app: a:1", "", 3]).as_array().map(Vec::as_slice)
        );
        assert_eq!((&told[4]["backend"], &told[4]["server"]), (&json!("app"), &json!("a:1")));
        assert!(told[4]["cure"].as_str().is_some_and(|cure| cure.starts_with("look at the server")), "{told}");
        let place = Place::Limit { limit: "customer".into(), route: "api".into(), others: 2 };
        let told =
            Fault { what: "w", place, why: "refused", count: 1, metric: "propylon_limit_requests_total" }.to_json();
        assert_eq!((&told[1], &told[4]["route"]), (&json!("route api and 2 more: limit customer"), &json!("api")));
        assert!(told[4]["cure"].as_str().is_some_and(|cure| cure.contains("raise the limit")), "{told}");
    }
}

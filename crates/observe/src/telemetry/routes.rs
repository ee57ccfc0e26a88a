//! Metrics of routes: which have series of their own, and what is counted of their requests.

use std::collections::HashMap;

use propylon_config::{Config, HostPattern, Route};
use propylon_metrics::{ACCOUNT_CLASSES, Account, AccountFamilies, Counter, Gauge, Registry};

use super::series::within;
use super::waits::DURATION_BOUNDS;

/// Routes that have series of their own, in number; requests of others are counted together.
pub const ROUTES_MAX: usize = 1_000;
/// Label of the routes beyond those.
const OTHER: &str = "(other)";
/// Label of requests that no route has taken.
const NONE: &str = "(none)";
/// Classes of requests: by the status of their response, if there was one.
const CLASSES: [&str; ACCOUNT_CLASSES] = ["1xx", "2xx", "3xx", "4xx", "5xx", "none"];

/// Metrics of a route.
pub struct RouteMetrics {
    pub account: Account,
    /// Requests that a server has left without an answer.
    pub unanswered: Counter,
    /// Whether they are of one route alone.
    pub is_own: bool,
}

pub(super) fn route_metrics(r: &mut Registry, (route, host): (&str, &str)) -> RouteMetrics {
    let families = AccountFamilies {
        classes: (
            "propylon_route_requests_total",
            "Requests that a route has taken, by the class of their response's status; none if no response began.",
        ),
        received: ("propylon_route_received_bytes_total", "Bytes of a route's requests (heads and bodies), decrypted."),
        sent: (
            "propylon_route_sent_bytes_total",
            "Bytes of responses to a route's requests (heads and bodies), before encryption.",
        ),
        duration: (
            "propylon_route_request_duration_seconds",
            "From the first byte of a route's request to its response's last.",
        ),
    };
    let labels = [("route", route), ("host", host)];
    let account = r.account(&families, &labels, &CLASSES, DURATION_BOUNDS);
    let unanswered = r.counter(
        "propylon_route_unanswered_total",
        "Requests that a route has taken and that ended without an answer, since a server failed; among those of class none.",
        &labels,
    );
    RouteMetrics { account, unanswered, is_own: ![NONE, OTHER].contains(&route) }
}

/// Share of a route's requests that fail, where that is too large; the main thread writes it.
pub(super) fn route_failing(r: &mut Registry, route: &str) -> Gauge {
    let help = "Share of a route's requests of the last minute that were answered with 5xx or, since a server failed, not at all, in percent; 0 while few are.";
    r.gauge("propylon_route_failing_percent", help, &[("route", route)])
}

/// Labels of a configuration's series: each route and its host.
pub(super) struct RouteSeries {
    /// Labels of all series.
    pub all: Vec<(String, String)>,
    /// Place among them by the index of the route; the last is that of requests without a route.
    pub places: Vec<usize>,
}

impl RouteSeries {
    /// Routes with a name come first, then the others in the order of the file. Routes of relays have no requests.
    pub fn of(config: &Config) -> RouteSeries {
        let is_relay = |route: &Route| route.listener.is_some_and(|id| config.listeners[id.0].protocol.is_relay());
        let mut own: Vec<usize> = (0..config.routes.len()).filter(|index| !is_relay(&config.routes[*index])).collect();
        own.sort_by_key(|index| config.routes[*index].name.is_none());
        let any = HostPattern::Any.to_string();
        let mut all = vec![(NONE.to_owned(), any.clone())];
        let mut places = vec![0; config.routes.len() + 1];
        let mut known = HashMap::new();
        for (count, index) in own.into_iter().enumerate() {
            let route = &config.routes[index];
            let labels = match count < ROUTES_MAX {
                true => (route.label.clone(), route.host.to_string()),
                false => (OTHER.to_owned(), any.clone()),
            };
            places[index] = *known.entry(labels.clone()).or_insert_with(|| {
                all.push(labels);
                all.len() - 1
            });
        }
        RouteSeries { all, places }
    }

    /// Routes whose requests are looked at for how many fail: all but those of no route.
    pub fn watched(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|(route, _)| route.as_str()).filter(|route| *route != NONE)
    }

    /// Key of a series among all.
    pub fn key((route, host): &(String, String)) -> String {
        within(route, host)
    }
}

#[cfg(test)]
mod tests {
    use propylon_config::{Source, parse};

    use super::*;

    #[test]
    fn the_first_routes_have_series_of_their_own_and_those_with_a_name_before_others() {
        let mut text = "[listener.web]\nbind = \"127.0.0.1:80\"\n[listener.mail]\nbind = \"127.0.0.1:25\"\n\
                        protocol = \"tcp\"\n[backend.mail]\nservers = [\"127.0.0.1:26\"]\n\
                        [[route]]\nlistener = \"mail\"\nbackend = \"mail\"\n"
            .to_owned();
        for index in 0..ROUTES_MAX + 5 {
            let name = if index == ROUTES_MAX + 4 { "name = \"last\"\n" } else { "" };
            text += &format!("[[route]]\n{name}host = \"h{index}\"\nrespond = {{}}\n");
        }
        let source = Source { name: "a.toml".into(), base: "".into(), text };
        let config = parse(&source).unwrap_or_else(|problems| panic!("{problems:?}")).0;
        let series = RouteSeries::of(&config);
        let label = |route: usize| series.all[series.places[route]].clone();
        let labels = |route: &str, host: &str| (route.to_owned(), host.to_owned());
        assert_eq!(series.all.len(), ROUTES_MAX + 2);
        assert_eq!((label(0), label(config.routes.len())), (labels("(none)", "*"), labels("(none)", "*")));
        assert_eq!((label(1), label(ROUTES_MAX - 1)), (labels("h0/", "h0"), labels("h998/", "h998")));
        assert_eq!((label(ROUTES_MAX), label(ROUTES_MAX + 3)), (labels("(other)", "*"), labels("(other)", "*")));
        assert_eq!(label(ROUTES_MAX + 5), labels("last", "h1004"));
    }
}

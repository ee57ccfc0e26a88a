//! The last minute of each route and each server, from what workers count anyway: which routes fail too many of their
//! requests, and which servers take far longer than the others. The main thread looks once a second, whoever else does.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use propylon_config::{Action, Backend, BackendId, Config, Respond, Route, SideTo};
use propylon_metrics::{Account, Column, Counter, Gauge, Histogram, Store};
use propylon_observe::conditions::Conditions;
use propylon_observe::telemetry::Telemetry;
use propylon_proxy::snapshot::Snapshot;

/// Pause between two of the moments that the present is compared with, and their number: a minute, but for less than
/// one pause.
const FRAME: Duration = Duration::from_secs(5);
const FRAMES: usize = 12;

/// A route fails from so many answers in the window on, of which so many are 5xx or never came, and more than this
/// share, beside the answers of 5xx that the configuration asks for.
const ANSWERS_MIN: u64 = 12;
const FAILED_MIN: u64 = 3;
const FAILED_PERCENT: u64 = 5;
/// A server is slow from so many heads in the window on, whose waits had this mean at least, and so many times the
/// median of the means of its backend's other servers.
const HEADS_MIN: u64 = 20;
const SLOW_MEAN: Duration = Duration::from_millis(50);
const SLOW_TIMES: u64 = 4;
/// Servers that are named as those at which a route's requests fail.
const NAMED_MAX: usize = 3;
/// Place of 5xx among the classes of an account; that of requests without a response comes behind it.
const CLASS_5XX: usize = 4;

/// Routes and servers, as the configuration in effect has them.
#[derive(Default)]
pub struct LastMinute {
    generation: Option<u64>,
    framed: Option<Instant>,
    routes: Vec<WatchedRoute>,
    /// Servers by backend, as in the configuration.
    servers: Vec<Vec<WatchedServer>>,
    all: Answers,
}

/// Answers in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    pub total: u64,
    /// Answers of 5xx, and those that a server never gave.
    pub failed: u64,
}

/// Heads of a server in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    pub heads: u64,
    pub mean: Duration,
    /// How many times as long as the others' the mean is, where the server is slow; 0 elsewhere.
    pub slow_times: u64,
    /// Median of the others' means, where there are any.
    others: Option<Duration>,
}

impl Waits {
    /// Mean in seconds; `None` where there were no heads.
    pub fn mean_seconds(&self) -> Option<f64> {
        (self.heads > 0).then_some(self.mean.as_secs_f64())
    }
}

struct WatchedRoute {
    label: String,
    /// Counts of its series, of which it has one for each of its hosts.
    series: Vec<(Account, Counter)>,
    backends: Vec<BackendId>,
    /// Share of failures that is none yet, in percent.
    allowed_percent: u64,
    /// Share that is shown; of requests that no route has taken there is none.
    gauge: Option<Gauge>,
    window: Window<2>,
}

struct WatchedServer {
    address: String,
    successes: Counter,
    failures: Counter,
    waits: Histogram,
    gauge: Gauge,
    window: Window<4>,
    /// Rises in the window: successes, failures, heads, and microseconds that were waited for these.
    rise: [u64; 4],
    shown: Waits,
}

impl LastMinute {
    /// Looks at what was counted, and says what holds. To be called by one thread, once a second, before conditions are
    /// looked at.
    pub fn look(
        &mut self,
        snapshot: &Snapshot,
        telemetry: &Telemetry,
        (store, column): (&Store, &Column),
        conditions: &mut Conditions,
    ) {
        let now = Instant::now();
        if self.generation.replace(snapshot.generation) != Some(snapshot.generation) {
            self.adopt(&snapshot.config, telemetry, store);
        }
        let is_frame = self.framed.is_none_or(|framed| now.duration_since(framed) >= FRAME);
        if is_frame {
            self.framed = Some(now);
        }
        for (of_backend, backend) in self.servers.iter_mut().zip(&snapshot.config.backends) {
            look_at_servers(of_backend, &backend.name, (store, column, conditions), is_frame);
        }
        self.all = Answers::default();
        for route in &mut self.routes {
            let answers = route.look(store, is_frame);
            self.all.total += answers.total;
            self.all.failed += answers.failed;
            let Some(gauge) = route.gauge else { continue };
            let percent = failing_percent(answers, route.allowed_percent);
            column.set(gauge, percent as i64);
            if percent > 0 {
                let places = failing_at(&route.backends, &snapshot.config.backends, &self.servers);
                let cause = format!("{} of {}{places}", answers.failed, answers.total);
                conditions.explain("route-failing", &[("route", &route.label)], cause);
            }
        }
    }

    /// All answers of the window.
    pub fn all(&self) -> Answers {
        self.all
    }

    /// Heads of a server, by the generation of a configuration and the indices of backend and server in it.
    pub fn waits(&self, generation: u64, backend: usize, server: usize) -> Waits {
        if self.generation != Some(generation) {
            return Waits::default();
        }
        self.servers.get(backend).and_then(|of_backend| of_backend.get(server)).map_or(Waits::default(), |it| it.shown)
    }

    /// Goes by another configuration: what stays goes on.
    fn adopt(&mut self, config: &Config, telemetry: &Telemetry, store: &Store) {
        let is_first = self.framed.is_none();
        let mut windows: HashMap<String, Window<2>> =
            self.routes.drain(..).map(|route| (route.label, route.window)).collect();
        let mut places: HashMap<String, usize> = HashMap::new();
        let labels = Telemetry::route_labels(config);
        let series = telemetry.routes(config).unwrap_or_default();
        for (index, (label, metrics)) in labels.into_iter().zip(series).enumerate() {
            let route = config.routes.get(index);
            let place = *places.entry(label.clone()).or_insert_with(|| {
                let gauge = telemetry.route_failing(&label).map(|gauge| *gauge);
                let (backends, series, window) = (Vec::new(), Vec::new(), Window::default());
                self.routes.push(WatchedRoute { label, series, backends, allowed_percent: 0, gauge, window });
                self.routes.len() - 1
            });
            self.routes[place].add(route, (metrics.account, metrics.unanswered));
        }
        for route in &mut self.routes {
            let begin = if is_first { [0; 2] } else { route.counts(store) };
            route.window = windows.remove(&route.label).unwrap_or_else(|| Window::beginning(begin));
        }
        self.adopt_servers(config, telemetry, store);
    }

    fn adopt_servers(&mut self, config: &Config, telemetry: &Telemetry, store: &Store) {
        let is_first = self.framed.is_none();
        let mut windows: HashMap<Gauge, Window<4>> =
            self.servers.drain(..).flatten().map(|server| (server.gauge, server.window)).collect();
        for backend in &config.backends {
            let servers = telemetry.backend(backend).map(|handles| handles.servers).unwrap_or_default();
            let of_backend = backend.servers.iter().zip(servers).map(|(configured, metrics)| {
                let mut server = WatchedServer {
                    address: configured.address.to_string(),
                    successes: metrics.successes,
                    failures: metrics.failures,
                    waits: metrics.response_wait,
                    gauge: metrics.slow,
                    window: Window::default(),
                    rise: [0; 4],
                    shown: Waits::default(),
                };
                let begin = if is_first { [0; 4] } else { server.counts(store) };
                server.window = windows.remove(&server.gauge).unwrap_or_else(|| Window::beginning(begin));
                server
            });
            let of_backend = of_backend.collect();
            self.servers.push(of_backend);
        }
    }
}

impl WatchedRoute {
    /// Takes a route of the file, or requests without one, which have these series. Several hosts make several.
    fn add(&mut self, route: Option<&Route>, series: (Account, Counter)) {
        if !self.series.iter().any(|(account, _)| *account == series.0) {
            self.series.push(series);
        }
        let Some(route) = route else { return };
        self.allowed_percent = self.allowed_percent.max(FAILED_PERCENT + wanted_percent(route));
        let first = match route.action {
            Action::Backend(first) => Some(first),
            Action::Redirect(_) | Action::Respond(_) => None,
        };
        for backend in first.into_iter().chain(route.steps.other_backends()).chain(route.steps.asked_backends()) {
            if !self.backends.contains(&backend) {
                self.backends.push(backend);
            }
        }
    }

    /// Answers since the start, and those that failed.
    fn counts(&self, store: &Store) -> [u64; 2] {
        let mut counts = [0; 2];
        for (account, unanswered) in &self.series {
            let unanswered = store.count(*unanswered);
            let of_class = account.classes[..=CLASS_5XX].iter().map(|class| store.count(*class));
            counts[0] += of_class.sum::<u64>() + unanswered;
            counts[1] += store.count(account.classes[CLASS_5XX]) + unanswered;
        }
        counts
    }

    fn look(&mut self, store: &Store, is_frame: bool) -> Answers {
        let [total, failed] = self.window.look(self.counts(store), is_frame);
        Answers { total, failed }
    }
}

impl WatchedServer {
    fn counts(&self, store: &Store) -> [u64; 4] {
        let waits = store.distribution(self.waits);
        [store.count(self.successes), store.count(self.failures), waits.count, waits.sum]
    }

    fn mean_us(&self) -> u64 {
        self.rise[3].checked_div(self.rise[2]).unwrap_or_default()
    }

    /// Comparison with all servers of its backend that have had enough heads, whose means are sorted.
    fn among(&self, means: &[u64]) -> Waits {
        let (heads, mean) = (self.rise[2], self.mean_us());
        let others = if heads >= HEADS_MIN { median_of_others(means, mean) } else { None };
        let is_slow = |others: &u64| mean >= SLOW_MEAN.as_micros() as u64 && mean >= SLOW_TIMES * others;
        let slow_times = others.filter(is_slow).map_or(0, |others| mean / others.max(1));
        Waits { heads, mean: Duration::from_micros(mean), slow_times, others: others.map(Duration::from_micros) }
    }
}

/// Looks at the servers of one backend.
fn look_at_servers(
    servers: &mut [WatchedServer],
    backend: &str,
    (store, column, conditions): (&Store, &Column, &mut Conditions),
    is_frame: bool,
) {
    for server in servers.iter_mut() {
        server.rise = server.window.look(server.counts(store), is_frame);
    }
    let known = |server: &&WatchedServer| server.rise[2] >= HEADS_MIN;
    let mut means: Vec<u64> = servers.iter().filter(known).map(WatchedServer::mean_us).collect();
    means.sort_unstable();
    let shown: Vec<Waits> = servers.iter().map(|server| server.among(&means)).collect();
    for (server, waits) in servers.iter_mut().zip(shown) {
        server.shown = waits;
        column.set(server.gauge, waits.slow_times as i64);
        if let (1.., Some(others)) = (waits.slow_times, waits.others) {
            let text = |time: Duration| format!("{} ms", (time.as_secs_f64() * 1e3).round().max(1.0));
            let cause =
                format!("{} on average of {} heads, the others {}", text(waits.mean), waits.heads, text(others));
            let labels = [("backend", backend), ("server", server.address.as_str())];
            conditions.explain("server-slow", &labels, cause);
        }
    }
}

/// The lower median of sorted means without one of them, if others are left.
fn median_of_others(means: &[u64], own: u64) -> Option<u64> {
    let place = means.partition_point(|mean| *mean < own);
    let middle = means.len().checked_sub(2)? / 2;
    means.get(if middle < place { middle } else { middle + 1 }).copied()
}

/// Share of a route's answers that failed, in percent, where it is too large; 0 elsewhere.
fn failing_percent(answers: Answers, allowed_percent: u64) -> u64 {
    let Answers { total, failed } = answers;
    let is_failing = total >= ANSWERS_MIN && failed >= FAILED_MIN && failed * 100 > total * allowed_percent;
    if is_failing { ((failed * 100 + total / 2) / total).max(1) } else { 0 }
}

/// Share of a route's requests, in percent, that the configuration itself has answered with 5xx.
fn wanted_percent(route: &Route) -> u64 {
    let is_error = |status: u16| status >= 500;
    if matches!(&route.action, Action::Respond(Respond { status, .. }) if is_error(*status)) {
        return 100;
    }
    let Some(split) = &route.steps.split else { return 0 };
    let weight = |is_counted: &dyn Fn(&SideTo) -> bool| -> u64 {
        split.sides.iter().filter(|side| is_counted(&side.to)).map(|side| u64::from(side.weight)).sum()
    };
    let errors = weight(&|to| matches!(to, SideTo::Respond(status) if is_error(*status)));
    (errors * 100).div_ceil(weight(&|_| true).max(1))
}

/// Servers at which requests for these backends have failed in the window, those with most failures first; the backends
/// where none is known.
fn failing_at(ids: &[BackendId], backends: &[Backend], servers: &[Vec<WatchedServer>]) -> String {
    let of_backends = ids.iter().filter_map(|id| Some((backends.get(id.0)?, servers.get(id.0)?)));
    let mut failing: Vec<(&str, &WatchedServer)> = of_backends
        .flat_map(|(backend, of_backend)| of_backend.iter().map(move |server| (backend.name.as_str(), server)))
        .filter(|(_, server)| server.rise[1] > 0)
        .collect();
    failing.sort_by_key(|(_, server)| std::cmp::Reverse(server.rise[1]));
    let more = match failing.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more servers"),
    };
    let one = |(backend, server): &(&str, &WatchedServer)| {
        let [successes, failures, ..] = server.rise;
        format!("{} of {backend} failed {failures} of {}", server.address, successes + failures)
    };
    let mut named: Vec<String> = failing.iter().take(NAMED_MAX).map(one).collect();
    if named.is_empty() {
        let names = ids.iter().filter_map(|id| backends.get(id.0)).take(NAMED_MAX);
        named = names.map(|backend| format!("backend {}", backend.name)).collect();
    }
    if named.is_empty() { String::new() } else { format!("; {}{more}", named.join(", ")) }
}

/// Counts as they were over the last minute.
#[derive(Default)]
struct Window<const N: usize> {
    /// The oldest first.
    frames: VecDeque<[u64; N]>,
}

impl<const N: usize> Window<N> {
    fn beginning(counts: [u64; N]) -> Window<N> {
        Window { frames: VecDeque::from([counts]) }
    }

    /// Rises in the window until these counts, which are kept as a frame where one is due.
    fn look(&mut self, counts: [u64; N], is_frame: bool) -> [u64; N] {
        // Counters that fell are another's by now.
        let has_fallen = self.frames.back().is_none_or(|last| last.iter().zip(counts).any(|(last, now)| now < *last));
        if has_fallen {
            self.frames = VecDeque::from([counts]);
        }
        let oldest = self.frames[0];
        if is_frame {
            self.frames.push_back(counts);
            if self.frames.len() > FRAMES {
                self.frames.pop_front();
            }
        }
        std::array::from_fn(|at| counts[at] - oldest[at])
    }
}

#[cfg(test)]
mod tests {
    use propylon_config::{Source, parse};

    use super::*;

    #[test]
    fn a_window_knows_the_last_minute_alone_and_begins_anew_where_counts_fall() {
        let mut window = Window::beginning([0]);
        let rises: Vec<u64> = (1..=20).map(|second| window.look([second * 5], true)[0]).collect();
        assert_eq!(rises[..12], [5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55, 60]);
        assert_eq!(rises[12..], [60; 8], "twelve frames of five seconds");
        assert_eq!((window.look([101], false), window.look([7], false), window.look([9], true)), ([56], [0], [2]));
    }

    #[test]
    fn a_route_fails_by_enough_answers_and_a_share_that_is_not_wanted() {
        let percent = |total, failed, allowed| failing_percent(Answers { total, failed }, allowed);
        assert_eq!((percent(11, 11, 5), percent(12, 2, 5), percent(60, 3, 5)), (0, 0, 0));
        assert_eq!((percent(12, 3, 5), percent(59, 3, 5), percent(1000, 51, 5)), (25, 5, 5));
        assert_eq!((percent(100, 14, 15), percent(100, 16, 15), percent(100, 100, 105)), (0, 16, 0));
        let text = "[listener.web]\nbind = \"127.0.0.1:80\"\n[backend.app]\nservers = [\"127.0.0.1:81\"]\n\
                    [[route]]\nhost = \"a\"\nbackend = [{ name = \"app\", weight = 9 }, { respond = 503, weight = 1 }]\n\
                    [[route]]\nhost = \"b\"\nrespond = { status = 503 }\n[[route]]\nhost = \"c\"\nrespond = {}\n\
                    [[route]]\nhost = \"d\"\nbackend = \"app\"\n";
        let source = Source { name: "a.toml".into(), base: "".into(), text: text.into() };
        let config = parse(&source).unwrap_or_else(|problems| panic!("{problems:?}")).0;
        let mut wanted: Vec<(String, u64)> =
            config.routes.iter().map(|route| (route.host.to_string(), wanted_percent(route))).collect();
        wanted.sort();
        assert_eq!(wanted.iter().map(|(_, percent)| *percent).collect::<Vec<_>>(), [10, 100, 0, 0]);
    }

    #[test]
    fn a_server_is_compared_with_the_median_of_the_others() {
        assert_eq!(median_of_others(&[7], 7), None);
        assert_eq!((median_of_others(&[5, 900], 900), median_of_others(&[5, 900], 5)), (Some(5), Some(900)));
        assert_eq!(median_of_others(&[1, 2, 3, 4, 100], 100), Some(2));
        assert_eq!((median_of_others(&[1, 2, 3], 2), median_of_others(&[1, 2, 3], 1)), (Some(1), Some(2)));
    }
}

//! Routes as people read them, with what is counted of their requests: for the dashboard, and whole at `/routes`.

use std::cell::RefCell;
use std::rc::Rc;

use propylon_config::{BackendId, Config, Limit, Route};
use propylon_observe::telemetry::{DURATION_BOUNDS, RouteMetrics};
use propylon_steps::sentence::Sentence;
use serde_json::{Value, json};

use super::view::View;

/// Limit on the routes that the dashboard is told of.
const ROUTES_MAX: usize = 100;

/// Words of the routes in effect, which are made once for each configuration.
#[derive(Default)]
pub struct Sentences(RefCell<(u64, Rc<[Sentence]>)>);

impl Sentences {
    /// The words of this generation's routes, by index.
    fn of(&self, generation: u64, config: &Config) -> Rc<[Sentence]> {
        let mut kept = self.0.borrow_mut();
        if kept.0 != generation {
            *kept = (generation, config.routes.iter().map(|route| Sentence::of(config, route)).collect());
        }
        Rc::clone(&kept.1)
    }
}

impl View {
    /// All routes, as JSON in one line.
    pub fn routes_json(&self) -> String {
        let mut value = self.routes(usize::MAX, "");
        value["bounds_seconds"] = bounds_seconds();
        value["uptime_seconds"] = json!((self.started.elapsed().as_secs_f64() * 1e3).round() / 1e3);
        value.to_string()
    }

    /// Routes in the order of the configuration, of those that have a text in their words the first for the dashboard.
    pub fn routes_summary(&self, filter: &str) -> Value {
        self.routes(ROUTES_MAX, filter)
    }

    fn routes(&self, max: usize, filter: &str) -> Value {
        let snapshot = self.current();
        let config = &snapshot.config;
        let metrics = self.telemetry.routes(config).unwrap_or_default();
        let sentences = self.sentences.of(snapshot.generation, config);
        let all = config.routes.iter().zip(&*sentences).enumerate();
        let fitting: Vec<_> = all.filter(|(_, (route, sentence))| fits(route, sentence, filter)).collect();
        let list = fitting.iter().take(max).map(|(index, (route, sentence))| {
            self.route(config, route, sentence, metrics.get(*index).map(|metrics| &**metrics))
        });
        let list: Vec<Value> = list.collect();
        json!({ "total": config.routes.len(), "found": fitting.len(), "list": list })
    }

    fn route(&self, config: &Config, route: &Route, sentence: &Sentence, metrics: Option<&RouteMetrics>) -> Value {
        let (name, at) = config.provenance.place(route.at);
        let backend = |id: &BackendId| config.backends[id.0].name.as_str();
        let mut value = json!({
            "route": route.label,
            "at": format!("{name}:{}", at.line),
            "for": sentence.requests,
            "do": sentence.steps,
            "then": sentence.then,
            "backends": sentence.backends.iter().map(backend).collect::<Vec<&str>>(),
            "limits": route.steps.limit.iter().filter_map(|limit| self.limit(limit)).collect::<Vec<Value>>(),
        });
        let is_relay = route.listener.is_some_and(|id| config.listeners[id.0].protocol.is_relay());
        if let Some(RouteMetrics { account, unanswered, is_own }) = metrics.filter(|_| !is_relay) {
            let count = |counter| self.store.count(counter);
            // Classes of statuses; the last is of requests without a response.
            value["requests_total"] = json!(account.classes.map(count));
            value["unanswered_total"] = json!(count(*unanswered));
            value["requests"] = json!(self.store.counts(account.duration));
            value["received_bytes_total"] = json!(count(account.received));
            value["sent_bytes_total"] = json!(count(account.sent));
            value["is_shared"] = json!(!is_own);
        }
        value
    }

    fn limit(&self, limit: &Limit) -> Option<Value> {
        let metrics = self.telemetry.limit(limit)?;
        let count = |counter| self.store.count(counter);
        Some(json!({
            "limit": limit.label,
            "allowed_total": count(metrics.allowed),
            "refused_total": count(metrics.refused),
            "denied_total": count(metrics.denied),
        }))
    }
}

/// Upper bounds of durations.
pub fn bounds_seconds() -> Value {
    DURATION_BOUNDS.iter().map(|bound| *bound as f64 / 1e6).collect()
}

/// Whether a route has the text, which is in lower case, in its name or its words.
fn fits(route: &Route, sentence: &Sentence, filter: &str) -> bool {
    let has = |text: &str| text.to_lowercase().contains(filter);
    has(&route.label) || has(&sentence.requests) || has(&sentence.then) || sentence.steps.iter().any(|step| has(step))
}

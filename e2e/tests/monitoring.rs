//! Alerts and the dashboard of packaging/monitoring: they ask for what the engine has, and rise when they should.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use propylon_e2e::external::External;
use propylon_e2e::program::run;
use propylon_e2e::{Engine, Origin, eventually};
use serde_json::Value;

const RULES: &str = "packaging/monitoring/propylon.rules.yml";
const TESTS: &str = "packaging/monitoring/propylon.rules.test.yml";
const DASHBOARD: &str = "packaging/monitoring/propylon.dashboard.json";
/// Labels that Prometheus adds, and that of a histogram's buckets.
const LABELS_OF_OTHERS: [&str; 3] = ["job", "instance", "le"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the top")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Values behind `key: ` in the lines of a text in YAML that have it.
fn values<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    let key = format!("{key}: ");
    text.lines().filter_map(|line| line.trim_start().trim_start_matches("- ").strip_prefix(&key)).collect()
}

/// All queries of a dashboard.
fn queries(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| queries(item, found)),
        Value::Object(fields) => {
            found.extend(fields.get("expr").and_then(Value::as_str).map(str::to_owned));
            fields.values().for_each(|field| queries(field, found));
        }
        _ => {}
    }
}

/// A label, and its value where that is told.
type Wanted = (String, Option<String>);

/// Metrics of an expression, each with the labels, and their values where these are told, that it has to have.
fn asked(expression: &str) -> Vec<(String, Vec<Wanted>)> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut grouped = BTreeSet::new();
    for part in expression.split(" by (").skip(1) {
        let list = part.split(')').next().unwrap_or_default();
        grouped.extend(list.split(", ").filter(|label| !LABELS_OF_OTHERS.contains(label)).map(str::to_owned));
    }
    let mut all = Vec::new();
    for (at, _) in expression.match_indices("propylon_") {
        let rest = &expression[at..];
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let matchers = rest[end..].strip_prefix('{').and_then(|rest| rest.split('}').next()).unwrap_or_default();
        let mut labels: Vec<_> = grouped.iter().map(|label| (label.clone(), None)).collect();
        for matcher in matchers.split(", ").filter(|matcher| !matcher.is_empty()) {
            let end = matcher.find(|c| !is_word(c)).expect("an operator");
            let value = matcher[end..].strip_prefix("=\"").map(|value| value.trim_end_matches('"').to_owned());
            if !LABELS_OF_OTHERS.contains(&&matcher[..end]) {
                labels.push((matcher[..end].to_owned(), value));
            }
        }
        all.push((rest[..end].to_owned(), labels));
    }
    all
}

/// Labels of a family, with the values that its series have.
type Labels = BTreeMap<String, BTreeSet<String>>;

/// Families of a text of `/metrics`, by the names that queries have for them.
fn families(text: &str) -> BTreeMap<String, Labels> {
    let mut families = BTreeMap::<String, Labels>::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, _) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let family = families.entry(name.to_owned()).or_default();
        for label in labels.trim_end_matches('}').split("\",").filter(|label| !label.is_empty()) {
            let (label, value) = label.split_once("=\"").expect("a label");
            family.entry(label.to_owned()).or_default().insert(value.trim_end_matches('"').to_owned());
        }
    }
    families
}

/// The row of the manual that tells of a metric.
fn row<'a>(manual: &'a str, metric: &str) -> Option<&'a str> {
    let (plain, with_labels) = (format!("`{metric}`"), format!("`{metric}{{"));
    manual.lines().find(|line| line.starts_with("| `") && (line.contains(&plain) || line.contains(&with_labels)))
}

#[test]
fn alerts_and_the_dashboard_ask_for_metrics_and_labels_that_there_are() {
    let origin = Origin::always("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    let engine = Engine::start(&format!(
        "[listener.web]\nbind = \"127.0.0.1:0\"\ntls = \"public\"\n[backend.app]\nservers = [\"{}\"]\nhealth = {{}}\n\
         circuit = {{ adaptive = true }}\n[[route]]\nbackend = \"app\"\nlimit = {{ rate = \"1000/s\" }}\n",
        origin.address()
    ));
    assert_eq!(engine.client("web").get("/").status, 200);
    let (families, manual) = (families(&engine.metrics()), read("docs/manual.md"));
    let rules = read(RULES);
    let mut expressions: Vec<String> = values(&rules, "expr").into_iter().map(str::to_owned).collect();
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).expect("JSON");
    queries(&dashboard, &mut expressions);
    let (mut seen, mut of_manual) = (0, 0);
    for (metric, labels) in expressions.iter().flat_map(|expression| asked(expression)) {
        if let Some(family) = families.get(&metric) {
            seen += 1;
            for (label, value) in labels {
                let values = family.get(&label).unwrap_or_else(|| panic!("{metric} has no label {label}: {family:?}"));
                assert!(value.as_ref().is_none_or(|value| values.contains(value)), "{metric}, {label}: {value:?}");
            }
            continue;
        }
        // Metrics that this engine has no use for, such as a cluster's.
        of_manual += 1;
        let row = row(&manual, &metric).unwrap_or_else(|| panic!("{metric} is not in the manual"));
        labels
            .iter()
            .for_each(|(label, _)| assert!(row.contains(label.as_str()), "{metric} has no label {label}: {row}"));
    }
    assert!(seen > 60 && of_manual < seen / 3, "{seen} in /metrics, {of_manual} in the manual alone");
}

#[test]
fn every_alert_says_what_to_do_and_rises_in_a_test_of_promtool() {
    let (rules, tests) = (read(RULES), read(TESTS));
    let alerts = values(&rules, "alert");
    assert!(alerts.len() > 20, "{alerts:?}");
    for key in ["expr", "severity", "summary", "description"] {
        assert_eq!(values(&rules, key).len(), alerts.len(), "each alert has its {key}");
    }
    let tested = values(&tests, "alertname");
    alerts.iter().for_each(|alert| assert!(tested.contains(alert), "{alert} has no test"));
    if !has("promtool") {
        return;
    }
    let promtool = |words: [&str; 2], file: &str| {
        let mut command = Command::new("promtool");
        command.args(words).arg(root().join(file));
        run(command, b"", Duration::from_secs(60))
    };
    promtool(["check", "rules"], RULES).ok();
    promtool(["test", "rules"], TESTS).ok();
}

#[test]
fn prometheus_reads_open_metrics_where_it_asks_for_that_and_others_read_what_they_always_did() {
    let engine = Engine::start("[listener.web]\nbind = \"127.0.0.1:0\"\n[[route]]\nrespond = { status = 204 }\n");
    let admin = engine.admin();
    let ask = |accept: &str| {
        let mut command = Command::new("curl");
        command.args(["-s", "-i", "-H", &format!("Accept: {accept}")]).arg(format!("http://{admin}/metrics"));
        run(command, b"", Duration::from_secs(20)).ok().text()
    };
    let plain = ask("*/*");
    assert!(plain.contains("content-type: text/plain; version=0.0.4") && !plain.contains("# EOF"), "{plain}");
    let open = ask("application/openmetrics-text; version=1.0.0, text/plain;q=0.5");
    assert!(open.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{open}");
    assert!(open.ends_with("\n# EOF\n") && open.contains("\n# UNIT propylon_"), "{open}");
    assert!(open.contains("\n# TYPE propylon_accept_errors counter\n"), "{open}");
    // Each family of the one is in the other.
    let families = |text: &str| text.lines().filter(|line| line.starts_with("# TYPE ")).count();
    assert_eq!(families(&plain), families(&open));
    if has("prometheus") {
        prometheus_has(admin, "propylon_accept_errors_total");
    }
}

/// Prometheus itself asks for OpenMetrics, and takes nothing of an answer with one wrong line.
fn prometheus_has(admin: SocketAddr, series: &str) {
    let prometheus = External::prometheus(admin);
    let query = format!("http://{}/api/v1/query?query={series}", prometheus.address());
    eventually(Duration::from_secs(60), "Prometheus has the metrics", || {
        let mut command = Command::new("curl");
        command.args(["-s", &query]);
        let answer = run(command, b"", Duration::from_secs(20)).text();
        answer.contains(&format!("\"__name__\":\"{series}\"")).then_some(())
    });
}

fn has(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(program).is_file()));
    if !found {
        eprintln!("skipped: {program} is not here; Debian's package prometheus has it");
    }
    found
}

//! The cluster as a terminal shows it: engines, configurations, certificates.

use serde_json::Value;

use super::super::control::{columns, list, text};
use super::apply::{names, phase_text, refusal};

/// Answer of `GET /cluster`.
pub fn status(cluster: &Value) -> String {
    let etcd = match cluster["connected"].as_bool() {
        Some(true) => "etcd answers",
        _ => "etcd does not answer: engines serve what they have, and this is what they were before",
    };
    let leader = cluster["leader"].as_str().map_or("none".into(), |leader| text(&leader.into()));
    let mut told = format!(
        "cluster {}, seen from {}: {etcd}; leader {leader}; configuration {}\n\n",
        text(&cluster["name"]),
        text(&cluster["engine"]),
        number(&cluster["serial"])
    );
    if cluster["left"].as_bool() == Some(true) {
        told += &format!("{} has left; a restart joins again\n\n", text(&cluster["engine"]));
    }
    told += &engines(&cluster["engines"]);
    for part in [candidate, outcome, flows, capacity, announce] {
        told += &part(cluster);
    }
    for engine in list(&cluster["engines"]) {
        let name = text(&engine["name"]);
        list(&engine["problems"]).for_each(|problem| told += &format!("problem: {name}: {}\n", text(problem)));
    }
    list(&cluster["problems"]).for_each(|problem| told += &format!("problem: {}\n", text(problem)));
    told
}

fn engines(all: &Value) -> String {
    let head = [
        "engine",
        "state",
        "address",
        "version",
        "serial",
        "cores",
        "cpu",
        "connections",
        "requests/s",
        "handshakes/s",
        "faults/s",
        "p99",
        "buckets",
    ];
    let mut rows = vec![head.map(String::from)];
    for engine in list(all) {
        let load = &engine["load"];
        let p99 = load["p99_ms"].as_f64().map_or("-".into(), |milliseconds| format!("{milliseconds:.1} ms"));
        let cpu = load["cpu"].as_f64().map_or("-".into(), |share| format!("{:.0} %", share * 100.0));
        rows.push([
            text(&engine["name"]),
            state(engine),
            text(&engine["address"]),
            text(&engine["version"]),
            number(&engine["serial"]),
            number(&engine["cores"]),
            cpu,
            number(&load["connections"]),
            number(&load["requests_per_second"]),
            number(&load["handshakes_per_second"]),
            number(&load["faults_per_second"]),
            p99,
            number(&engine["buckets"]),
        ]);
    }
    columns(&rows)
}

/// Whether it serves, whether that is not announced where it could be, and a weight that is not the usual one.
fn state(engine: &Value) -> String {
    let mut state = match (engine["draining"].as_bool(), engine["ready"].as_bool()) {
        (Some(true), _) => "draining",
        (_, Some(true)) => "ready",
        _ => "not ready",
    }
    .to_owned();
    if engine["announced"].as_bool() == Some(false) {
        state += ", withdrawn";
    }
    if let Some(percent) = engine["weight_percent"].as_u64().filter(|percent| *percent != 100) {
        state += &format!(", weight {percent} %");
    }
    state
}

fn candidate(cluster: &Value) -> String {
    let candidate = &cluster["candidate"];
    if !candidate.is_object() {
        return String::new();
    }
    let mut told = format!(
        "\ncandidate {} (configuration {}), by {}{}: {}\n",
        text(&candidate["id"]),
        number(&candidate["serial"]),
        text(&candidate["by"]),
        reason(candidate),
        phase_text(&text(&candidate["phase"]), &names(&candidate["canary"]))
    );
    let serving = names(&candidate["serving"]);
    if !serving.is_empty() {
        told += &format!("  served by {serving}\n");
    }
    for verdict in list(&candidate["verdicts"]).filter(|verdict| verdict["ok"].as_bool() != Some(true)) {
        let engine = text(&verdict["engine"]);
        list(&verdict["problems"]).for_each(|problem| told += &format!("  {engine}: {}\n", text(problem)));
    }
    told
}

fn outcome(cluster: &Value) -> String {
    let outcome = &cluster["outcome"];
    if !outcome.is_object() {
        return String::new();
    }
    let when = moment(&outcome["at"]);
    match outcome["result"].as_str() {
        Some("applied") => format!("\nlast change: configuration {} applied at {when}\n", number(&outcome["serial"])),
        _ => format!("\nlast change, at {when}: {}\n", refusal(outcome)),
    }
}

fn flows(cluster: &Value) -> String {
    let flows = &cluster["flows"];
    if !flows.is_object() {
        return String::new();
    }
    let [generation, buckets, moving] = ["generation", "buckets", "moving"].map(|key| number(&flows[key]));
    format!("flows: table {generation}, {buckets} buckets, {moving} of them moving\n")
}

fn capacity(cluster: &Value) -> String {
    let capacity = &cluster["capacity"];
    if !capacity.is_object() {
        return String::new();
    }
    let [wanted, engines] = ["wanted", "engines"].map(|key| number(&capacity[key]));
    format!("capacity: {wanted} engines are wanted, {engines} are there: {}\n", text(&capacity["reason"]))
}

fn announce(cluster: &Value) -> String {
    let announce = &cluster["announce"];
    if !announce.is_object() {
        return String::new();
    }
    let (engine, protocols) = (text(&cluster["engine"]), names(&announce["protocols"]));
    let state = if announce["announced"].as_bool() == Some(true) { "announced" } else { "withdrawn" };
    format!("{engine}: {protocols} {state}: {}\n", text(&announce["reason"]))
}

/// Answer of `GET /cluster/history`.
pub fn history(answer: &Value) -> String {
    let mut rows = vec![["serial", "when", "by", "bytes", "why"].map(String::from)];
    for one in list(&answer["history"]) {
        let mark = if one["current"].as_bool() == Some(true) { " (current)" } else { "" };
        let serial = number(&one["serial"]) + mark;
        rows.push([serial, moment(&one["at"]), text(&one["by"]), number(&one["bytes"]), text(&one["why"])]);
    }
    columns(&rows)
}

/// Answer of `GET /cluster/certificates`.
pub fn certificates(answer: &Value) -> String {
    list(&answer["certificates"]).map(|name| text(name) + "\n").collect()
}

/// `, because WHY`, where somebody has said it.
fn reason(of: &Value) -> String {
    match text(&of["why"]) {
        why if why.is_empty() => String::new(),
        why => format!(" ({why})"),
    }
}

/// A number as it came, without fractions that say nothing.
fn number(value: &Value) -> String {
    match (value.as_u64(), value.as_f64()) {
        (Some(whole), _) => whole.to_string(),
        (_, Some(fraction)) if fraction >= 10.0 => format!("{fraction:.0}"),
        (_, Some(fraction)) => format!("{fraction:.1}"),
        _ => "-".into(),
    }
}

/// A moment in UTC, of one in seconds since 1970.
fn moment(seconds: &Value) -> String {
    let moment = seconds.as_i64().and_then(|seconds| time::OffsetDateTime::from_unix_timestamp(seconds).ok());
    let Some(moment) = moment else { return "-".into() };
    let (hour, minute, second) = moment.to_hms();
    format!("{} {hour:02}:{minute:02}:{second:02} UTC", moment.date())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample() -> Value {
        json!({
            "name": "edge", "engine": "e1", "connected": true, "leader": "e2", "serial": 7,
            "engines": [
                {
                    "name": "e1", "address": "10.0.0.1", "version": "0.9.0", "cores": 4, "ready": true,
                    "draining": false,
                    "serial": 7, "generation": 3, "since": 1_700_000_000, "buckets": 512, "problems": [],
                    "load": {
                        "cpu": 0.314, "connections": 1200, "requests": 1_850_400, "requests_per_second": 850.4,
                        "handshakes_per_second": 12.25, "faults_per_second": 0.0, "p99_ms": 8.25
                    },
                },
                {
                    "name": "e2", "address": "10.0.0.2", "version": "0.9.0", "cores": 4, "ready": true,
                    "draining": true,
                    "serial": 6, "buckets": 0, "problems": ["a file is gone"], "load": null,
                },
            ],
            "candidate": {
                "id": "7f", "serial": 8, "by": "root", "why": "new shop", "phase": "canary", "canary": ["e2"],
                "serving": ["e2"], "since": 1_700_000_000,
                "verdicts": [
                    { "engine": "e1", "ok": true, "problems": [] },
                    { "engine": "e2", "ok": false, "problems": ["f:1:2: w; x"] },
                ],
            },
            "outcome": {
                "id": "6e", "serial": 7, "result": "applied", "why": "", "engine": null, "problems": [],
                "at": 1_700_000_000,
            },
            "flows": { "generation": 3, "buckets": 1024, "moving": 12 },
            "capacity": { "wanted": 3, "engines": 2, "reason": "processors are at 71 %" },
            "announce": { "announced": true, "reason": "it serves", "protocols": ["vip4", "vip6"] },
            "problems": ["the clocks of e1 and e2 differ by 4 s"],
        })
    }

    #[test]
    fn the_cluster_is_told_with_everything_that_is_known() {
        let expected = "\
cluster edge, seen from e1: etcd answers; leader e2; configuration 7

engine  state     address   version  serial  cores  cpu   connections  requests/s  handshakes/s  faults/s  p99     buckets
e1      ready     10.0.0.1  0.9.0    7       4      31 %  1200         850         12            0.0       8.2 ms  512
e2      draining  10.0.0.2  0.9.0    6       4      -     -            -           -             -         -       0

candidate 7f (configuration 8), by root (new shop): canary: e2 goes first
  served by e2
  e2: f:1:2: w; x

last change: configuration 7 applied at 2023-11-14 22:13:20 UTC
flows: table 3, 1024 buckets, 12 of them moving
capacity: 3 engines are wanted, 2 are there: processors are at 71 %
e1: vip4, vip6 announced: it serves
problem: e2: a file is gone
problem: the clocks of e1 and e2 differ by 4 s
";
        assert_eq!(status(&sample()), expected);
    }

    #[test]
    fn what_is_not_there_is_not_told() {
        let mut cluster = sample();
        for absent in ["candidate", "outcome", "flows", "capacity", "announce", "leader"] {
            cluster[absent] = Value::Null;
        }
        (cluster["connected"], cluster["engines"], cluster["problems"]) = (false.into(), json!([]), json!([]));
        let told = status(&cluster);
        let first = "cluster edge, seen from e1: etcd does not answer: engines serve what they have, and this \
                     is what they were before; leader none; configuration 7";
        assert_eq!(told.lines().next(), Some(first));
        assert_eq!(told.lines().count(), 3, "{told}");
    }

    #[test]
    fn a_change_that_was_refused_is_told_with_its_reason() {
        let mut cluster = sample();
        cluster["outcome"] = json!({
            "id": "6e", "serial": 7, "result": "refused", "why": "its faults are 4 times the rest's", "engine": "e2",
            "problems": ["12 faults a second"], "at": 0,
        });
        let told = status(&cluster);
        let expected = "last change, at 1970-01-01 00:00:00 UTC: refused: its faults are 4 times the rest's (e2)\n  \
                        12 faults a second\n";
        assert!(told.contains(expected), "{told}");
    }

    #[test]
    fn the_history_says_which_is_served() {
        let entry = |serial: u64, current: bool| {
            let (at, why) = (1_700_000_000, "new shop");
            json!({ "serial": serial, "at": at, "by": "root", "why": why, "bytes": 512, "current": current })
        };
        let answer = json!({ "history": [entry(7, true), entry(6, false)] });
        let expected = "serial       when                     by    bytes  why\n\
                        7 (current)  2023-11-14 22:13:20 UTC  root  512    new shop\n\
                        6            2023-11-14 22:13:20 UTC  root  512    new shop\n";
        assert_eq!(history(&answer), expected);
        assert_eq!(history(&Value::Null).lines().count(), 1);
    }

    #[test]
    fn certificates_are_listed_by_their_names() {
        assert_eq!(certificates(&json!({ "certificates": ["shop", "*.example"] })), "shop\n*.example\n");
        assert_eq!(certificates(&Value::Null), "");
    }

    #[test]
    fn an_engine_whose_address_is_withdrawn_is_told_from_others() {
        let with = |announced: Value| state(&json!({ "ready": true, "draining": false, "announced": announced }));
        assert_eq!(with(true.into()), "ready");
        assert_eq!(with(Value::Null), "ready", "it announces nothing");
        assert_eq!(with(false.into()), "ready, withdrawn");
        assert_eq!(state(&Value::Null), "not ready");
    }

    #[test]
    fn a_weight_that_is_not_the_usual_one_is_told() {
        let with = |percent: u64| state(&json!({ "ready": true, "announced": true, "weight_percent": percent }));
        assert_eq!([0, 25, 100].map(with), ["ready, weight 0 %", "ready, weight 25 %", "ready"]);
        let withdrawn = state(&json!({ "draining": true, "announced": false, "weight_percent": 200 }));
        assert_eq!(withdrawn, "draining, withdrawn, weight 200 %");
    }

    #[test]
    fn nothing_in_an_answer_acts_on_the_terminal() {
        let mut cluster = sample();
        cluster["name"] = "a\u{1b}[2Jb".into();
        cluster["engines"][0]["name"] = "e\u{7}\n1".into();
        let told = status(&cluster);
        assert!(told.chars().all(|one| one == '\n' || !one.is_control()), "{told:?}");
    }
}

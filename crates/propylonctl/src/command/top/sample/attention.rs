//! Everything that needs attention: the engine's conditions, servers that are down, certificates that end.

use serde_json::{Value, json};

use crate::command::control::time_left;

use super::value::{SECONDS_PER_DAY, list, number, text};

/// Servers, or certificates, that are named in one line.
const NAMED_MAX: usize = 3;
/// Backends without a usable server that have a line each.
const BACKENDS_MAX: usize = 5;
/// Days left of a certificate that is warned of, and of one that is a problem.
const DAYS_LEFT_LOW: f64 = 14.0;
const DAYS_LEFT_LEAST: f64 = 1.0;
/// How long a server may be drained until somebody is reminded of it.
const DRAINED_SECONDS_MAX: f64 = 3600.0;

/// Something that is wrong now, or will be.
#[derive(Debug, Default)]
pub struct Condition {
    /// Name for scripts: the one in the engine's table, or one of those below.
    pub name: String,
    /// Place by labels: `{"backend": "app"}`; an empty object for the process.
    pub labels: Value,
    pub is_problem: bool,
    /// Place, problem and remedy.
    pub words: String,
    /// For how long; none where that is not known, or it is still to come.
    pub seconds: Option<f64>,
}

impl Condition {
    /// A condition of the whole process.
    fn of_all(name: &str, (is_problem, words, seconds): (bool, String, Option<f64>)) -> Condition {
        Condition { name: name.to_owned(), labels: json!({}), is_problem, words, seconds }
    }
}

/// All of it, the gravest first, of `/status.json`.
pub fn all(status: &Value) -> Vec<Condition> {
    let now = number(&status["time"]);
    let found = list(&status["conditions"]["list"]).filter_map(|each| condition(each, now));
    let mut all: Vec<Condition> = found
        .chain(backends(status, now))
        .chain(down(status, now))
        .chain(drained(status, now))
        .chain(certificates(status, now))
        .collect();
    all.sort_by_key(|each| !each.is_problem);
    all
}

/// A condition of the engine's table. Of notes nobody need take note here.
fn condition(one: &Value, now: f64) -> Option<Condition> {
    let (place, why) = (text(&one["place"]), text(&one["why"]));
    let place = if place.is_empty() { place } else { format!("{place}: ") };
    let why = if why.is_empty() { why } else { format!(" ({why})") };
    (one["grade"] != "note").then(|| Condition {
        name: text(&one["name"]),
        labels: if one["labels"].is_object() { one["labels"].clone() } else { json!({}) },
        is_problem: one["grade"] == "problem",
        words: format!("{place}{}{why}; {}", text(&one["what"]), text(&one["cure"])),
        seconds: Some((now - number(&one["since"])).max(0.0)),
    })
}

/// Backends that nobody serves for.
fn backends(status: &Value, now: f64) -> impl Iterator<Item = Condition> {
    let is_hopeless = |backend: &&Value| {
        let states = &backend["states"];
        number(&states["total"]) > 0.0 && number(&states["usable"]) == 0.0
    };
    let condition_of = move |backend: &Value| {
        let (name, total) = (text(&backend["name"]), number(&backend["states"]["total"]));
        let words =
            format!("backend \"{name}\": none of its servers is usable, of {total}; bring servers back, or add some");
        // The last of them to go has left nobody.
        let own = list(&status["servers"]["list"]).filter(|server| server["backend"] == backend["name"]);
        let since = own.map(|server| number(&server["since"])).reduce(f64::max);
        Condition {
            name: "backend-unusable".to_owned(),
            labels: json!({ "backend": name }),
            is_problem: true,
            words,
            seconds: since.map(|since| (now - since).max(0.0)),
        }
    };
    list(&status["backends"]["list"]).filter(is_hopeless).take(BACKENDS_MAX).map(condition_of)
}

/// Servers that are down: as many as are named are among the list's first.
fn down(status: &Value, now: f64) -> Option<Condition> {
    let servers = &status["servers"];
    let count = number(&servers["states"]["down"]) as usize;
    let listed: Vec<&Value> = list(&servers["list"]).filter(|server| server["state"] == "down").collect();
    let name = |server: &&Value| {
        let (address, backend, reason) = (text(&server["address"]), text(&server["backend"]), text(&server["reason"]));
        format!("{address} of {backend}{}", if reason.is_empty() { reason } else { format!(" ({reason})") })
    };
    let since = listed.iter().map(|server| number(&server["since"])).reduce(f64::min);
    let total = number(&servers["states"]["total"]);
    let words = format!("{count} of {total} servers down: {}; look at them", named(count, listed.iter().map(name)));
    let seconds = since.map(|since| (now - since).max(0.0));
    (count > 0).then(|| Condition::of_all("servers-down", (true, words, seconds)))
}

/// Servers that somebody has drained and may have forgotten: as many as are named are among the list's first, unless
/// more are down.
fn drained(status: &Value, now: f64) -> Option<Condition> {
    let is_forgotten = |server: &&Value| {
        server["state"] == "draining" && server["drain"] == true && now - number(&server["since"]) > DRAINED_SECONDS_MAX
    };
    let forgotten: Vec<&Value> = list(&status["servers"]["list"]).filter(is_forgotten).collect();
    let name = |server: &&Value| format!("{} of {}", text(&server["address"]), text(&server["backend"]));
    let since = forgotten.iter().map(|server| number(&server["since"])).reduce(f64::min)?;
    let words = format!(
        "servers have been drained for more than an hour, {}: {}; `propylon undrain` gives one requests again, one that is \
         not coming back can leave the configuration",
        forgotten.len(),
        named(forgotten.len(), forgotten.iter().map(name))
    );
    Some(Condition::of_all("servers-drained", (false, words, Some(now - since))))
}

/// Certificates, and what else has an end, by how near that is.
fn certificates(status: &Value, now: f64) -> Vec<Condition> {
    let certificates = &status["certificates"];
    let count = |names: &[&str]| {
        let of =
            list(&certificates["by_days_left"]).filter(|pair| names.contains(&pair[0].as_str().unwrap_or_default()));
        of.map(|pair| number(&pair[1]) as usize).sum::<usize>()
    };
    let near = |[from, until]: [f64; 2]| {
        let left = move |each: &&Value| {
            let days = (number(&each["not_after"]) - now) / SECONDS_PER_DAY;
            (from..until).contains(&days)
        };
        let name = |each: &Value| match text(&each["name"]) {
            name if name.is_empty() => text(&each["file"]),
            name => name,
        };
        list(&certificates["list"]).filter(left).map(name)
    };
    // Since when the first has expired; of those that will, how long the first still has: they are listed so.
    let first = |[from, until]: [f64; 2]| {
        let days = |each: &Value| (number(&each["not_after"]) - now) / SECONDS_PER_DAY;
        list(&certificates["list"]).map(days).find(|days| (from..until).contains(days))
    };
    let since = |days: [f64; 2]| first(days).filter(|days| *days < 0.0).map(|days| -days * SECONDS_PER_DAY);
    let left = |days: [f64; 2]| match first(days).filter(|days| *days >= 0.0) {
        Some(days) => format!(", the first in {}", time_left(days * SECONDS_PER_DAY)),
        None => String::new(),
    };
    let others: Vec<&Value> = list(&certificates["others"]).filter(|other| number(&other["until"]) < now).collect();
    let other = |other: &&Value| format!("{} of {}", text(&other["kind"]), text(&other["of"]));
    let row = |(is_problem, name): (bool, &'static str), of: &[&str], what: &'static str, days: [f64; 2]| {
        ((is_problem, name), count(of), format!("{what}{}", left(days)), named(count(of), near(days)), since(days))
    };
    let others_since = others.iter().map(|other| now - number(&other["until"])).reduce(f64::max);
    let others_named = named(others.len(), others.iter().map(other));
    let soon = [DAYS_LEFT_LEAST, DAYS_LEFT_LOW];
    [
        row((true, "certificates-expired"), &["expired"], "certificates have expired", [f64::MIN, 0.0]),
        row((true, "certificates-last-day"), &["under-1"], "certificates expire within a day", [0.0, DAYS_LEFT_LEAST]),
        ((true, "files-outdated"), others.len(), "other files are out of date".to_owned(), others_named, others_since),
        row((false, "certificates-soon"), &["1-to-7", "7-to-14"], "certificates expire within 14 days", soon),
    ]
    .into_iter()
    .filter(|(_, count, ..)| *count > 0)
    .map(|((is_problem, name), count, what, names, seconds)| {
        let names = if names.is_empty() { names } else { format!(": {names}") };
        Condition::of_all(name, (is_problem, format!("{what}, {count}{names}; renew them"), seconds))
    })
    .collect()
}

/// The first of so many, and the number of the others.
fn named(count: usize, names: impl Iterator<Item = String>) -> String {
    let names: Vec<String> = names.take(NAMED_MAX).collect();
    match count.saturating_sub(names.len()) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn words(status: &Value) -> Vec<(bool, String)> {
        all(status).into_iter().map(|each| (each.is_problem, each.words)).collect()
    }

    #[test]
    fn servers_that_are_down_and_certificates_that_end_are_told_the_gravest_first() {
        let server = |index: u32| json!({ "backend": "app", "address": format!("10.0.0.{index}:80"), "state": "down", "reason": "refused", "since": 900.0 });
        let certificate = |name: &str, days: f64| json!({ "name": name, "not_after": 1000.0 + days * SECONDS_PER_DAY });
        let status = json!({
            "time": 1000.0,
            "conditions": { "list": [
                { "grade": "warning", "what": "attempts fail", "cure": "look", "since": 990.0 },
                { "grade": "note", "what": "clients leave", "cure": "nothing", "since": 990.0 },
            ] },
            "backends": { "list": [{ "name": "app", "states": { "total": 5, "usable": 0 } }] },
            "servers": { "states": { "total": 5, "down": 5 }, "list": (1..=5).map(server).collect::<Vec<Value>>() },
            "certificates": {
                "by_days_left": [["expired", 1], ["under-1", 1], ["1-to-7", 1], ["7-to-14", 1], ["over-30", 9]],
                "list": [certificate("old", -1.0), certificate("urgent", 0.5), certificate("a", 3.0), certificate("b", 13.0)],
                "others": [{ "kind": "revocation-list", "of": "public", "until": 900 }],
            },
        });
        let found = words(&status);
        let starts = |at: usize, is_problem: bool, text: &str| {
            assert!(found[at].0 == is_problem && found[at].1.starts_with(text), "{at}: {found:#?}");
        };
        starts(0, true, "backend \"app\": none of its servers is usable, of 5");
        starts(
            1,
            true,
            "5 of 5 servers down: 10.0.0.1:80 of app (refused), 10.0.0.2:80 of app (refused), 10.0.0.3:80 of app",
        );
        assert!(found[1].1.contains(" and 2 more; "), "{}", found[1].1);
        starts(2, true, "certificates have expired, 1: old;");
        starts(3, true, "certificates expire within a day, the first in 12 h, 1: urgent;");
        starts(4, true, "other files are out of date, 1: revocation-list of public;");
        starts(5, false, "attempts fail; look");
        starts(6, false, "certificates expire within 14 days, the first in 3 d, 2: a, b;");
        assert_eq!(found.len(), 7);
        let seconds: Vec<Option<f64>> = all(&status).into_iter().map(|each| each.seconds).collect();
        let days = |days: f64| Some(days * SECONDS_PER_DAY);
        assert_eq!(seconds, [Some(100.0), Some(100.0), days(1.0), None, Some(100.0), Some(10.0), None]);
        assert_eq!(words(&json!({})), []);
        let told = all(&status);
        let names: Vec<&str> = told.iter().map(|each| each.name.as_str()).collect();
        assert_eq!(names[..4], ["backend-unusable", "servers-down", "certificates-expired", "certificates-last-day"]);
        assert_eq!((&told[0].labels, &told[1].labels), (&json!({ "backend": "app" }), &json!({})));
    }

    #[test]
    fn a_server_that_was_drained_and_forgotten_is_told_after_an_hour() {
        let of = |seconds: f64, drain: bool| {
            let server = json!({ "backend": "app", "address": "a:1", "state": "draining", "drain": drain, "since": 9000.0 - seconds });
            all(&json!({ "time": 9000.0, "servers": { "list": [server] } }))
        };
        assert!(
            of(3599.0, true).is_empty() && of(3700.0, false).is_empty(),
            "a server may say itself that it is drained"
        );
        let told = of(3700.0, true);
        assert!(told.len() == 1 && !told[0].is_problem && told[0].seconds == Some(3700.0), "{told:?}");
        let start = "servers have been drained for more than an hour, 1: a:1 of app; `propylon undrain`";
        assert!(told[0].words.starts_with(start), "{told:?}");
    }
}

//! `propylon routes`: the routes of the running engine in words, with their requests between two looks.

use std::fmt::Write;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use propylon_metrics::quantile;
use serde_json::{Value, json};

use super::admin_client::{Where, ask_json};
use super::control::ended;
use super::top;

/// Path of the routes at the admin address.
const PATH: &str = "/v1/routes";

#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    engine: Where,
    /// List those only that have this in their name or their words
    #[arg(value_name = "TEXT")]
    text: Option<String>,
    /// Seconds between two looks, over which rates are told; 0 looks once
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=60))]
    interval: u32,
    /// Print it as JSON on standard output
    #[arg(long)]
    json: bool,
}

pub fn main(arguments: &Arguments) -> ExitCode {
    ended(routes(arguments))
}

fn routes(arguments: &Arguments) -> Result<String, String> {
    let (admin, _) = arguments.engine.find()?;
    let first = ask_json(&admin, PATH)?;
    let mut all = match arguments.interval {
        0 => list(&first).cloned().collect(),
        seconds => {
            sleep(Duration::from_secs(seconds.into()));
            between(&first, &ask_json(&admin, PATH)?)
        }
    };
    if let Some(wanted) = &arguments.text {
        all.retain(|route| has(route, &wanted.to_lowercase()));
    }
    if arguments.json {
        return Ok(format!("{:#}\n", Value::from(all)));
    }
    match all.is_empty() {
        true => Err("no such route".into()),
        false => Ok(all.iter().map(described).collect::<Vec<String>>().join("\n")),
    }
}

/// Routes of the second look, each with what it did since the first as `now`.
fn between(first: &Value, second: &Value) -> Vec<Value> {
    let seconds = (number(&second["uptime_seconds"]) - number(&first["uptime_seconds"])).max(1e-3);
    let bounds: Vec<f64> = items(&second["bounds_seconds"]).map(number).collect();
    let with_rates = |route: &Value| {
        let mut route = route.clone();
        let before = list(first).find(|before| before["route"] == route["route"]);
        let Some(before) = before.filter(|_| route["requests_total"].is_array()) else { return route };
        let change = |key: &str| -> Vec<f64> {
            let before = items(&before[key]).map(number);
            items(&route[key]).zip(before).map(|(now, before)| (number(now) - before).max(0.0)).collect()
        };
        let (classes, durations) = (change("requests_total"), change("requests"));
        let limits = items(&route["limits"]).zip(items(&before["limits"])).map(|(now, before)| {
            let refused = |limit: &Value| number(&limit["refused_total"]) + number(&limit["denied_total"]);
            (refused(now) - refused(before)).max(0.0)
        });
        let class = |class: usize| classes.get(class).copied().unwrap_or_default() / seconds;
        route["now"] = json!({
            "requests_per_second": classes.iter().sum::<f64>() / seconds,
            "failed_4xx_per_second": class(3),
            "failed_5xx_per_second": class(4),
            "p50_seconds": quantile(0.5, durations.iter().copied(), &bounds),
            "p99_seconds": quantile(0.99, durations.iter().copied(), &bounds),
            "refused_per_second": limits.sum::<f64>() / seconds,
        });
        route
    };
    list(second).map(with_rates).collect()
}

fn has(route: &Value, wanted: &str) -> bool {
    let texts = ["route", "for", "then"].into_iter().map(|key| &route[key]).chain(items(&route["do"]));
    texts.into_iter().any(|text| text.as_str().unwrap_or_default().to_lowercase().contains(wanted))
}

fn described(route: &Value) -> String {
    let mut out = format!("{} ({})\n", text(&route["route"]), text(&route["at"]));
    let mut line = |what: &str, words: &str| {
        let _ = writeln!(out, "  {what:<8} {words}");
    };
    line("for", &text(&route["for"]));
    items(&route["do"]).enumerate().for_each(|(at, step)| line(if at == 0 { "do" } else { "" }, &text(step)));
    line("then", &text(&route["then"]));
    let now = &route["now"];
    if now.is_object() {
        let rate = |key: &str| format!("{:.1}/s", number(&now[key]));
        let time = |key: &str| now[key].as_f64().map_or_else(|| "–".into(), top::duration);
        let words = format!(
            "{}, 4xx {}, 5xx {}, p50 {}, p99 {}",
            rate("requests_per_second"),
            rate("failed_4xx_per_second"),
            rate("failed_5xx_per_second"),
            time("p50_seconds"),
            time("p99_seconds")
        );
        line("now", &words);
    }
    let totals: Vec<f64> = items(&route["requests_total"]).map(number).collect();
    if let [.., client_errors, errors, _] = totals[..] {
        let shared = if route["is_shared"] == true { ", with other routes" } else { "" };
        line("so far", &format!("{} requests, 4xx {client_errors}, 5xx {errors}{shared}", totals.iter().sum::<f64>()));
    }
    for limit in items(&route["limits"]) {
        let counts = ["allowed", "refused", "denied"].map(|key| format!("{key} {}", limit[format!("{key}_total")]));
        line("limit", &format!("{}: {}", text(&limit["limit"]), counts.join(", ")));
    }
    out
}

fn list(answer: &Value) -> impl Iterator<Item = &Value> {
    items(&answer["list"])
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_default()
}

/// A text of the configuration, with nothing in it that a terminal would obey.
fn text(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    text.chars().map(|each| if each.is_control() { each.escape_default().to_string() } else { each.into() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(seconds: f64, requests: [u64; 6], durations: [u64; 3], refused: u64) -> Value {
        json!({
            "uptime_seconds": seconds, "bounds_seconds": [0.01, 0.02],
            "list": [{
                "route": "shop", "at": "a.toml:3", "for": "host a\u{1b}[1m", "do": ["limit x", "ask"], "then": "backend app",
                "requests_total": requests, "requests": durations, "is_shared": false,
                "limits": [{ "limit": "edge", "allowed_total": 7, "refused_total": refused, "denied_total": 1 }],
            }, { "route": "mail", "at": "a.toml:9", "for": "any", "do": [], "then": "backend mail", "limits": [] }],
        })
    }

    #[test]
    fn routes_are_told_with_what_they_did_between_two_looks() {
        let first = answer(10.0, [0, 5, 0, 0, 0, 0], [5, 0, 0], 0);
        let second = answer(12.0, [0, 9, 0, 2, 1, 1], [9, 4, 0], 6);
        let all = between(&first, &second);
        let now = &all[0]["now"];
        assert_eq!((&now["requests_per_second"], &now["failed_5xx_per_second"]), (&json!(4.0), &json!(0.5)));
        assert_eq!((&now["p50_seconds"], &now["refused_per_second"]), (&json!(0.01), &json!(3.0)));
        assert!(all[1]["now"].is_null());
        assert_eq!(
            described(&all[0]),
            "shop (a.toml:3)\n  for      host a\\u{1b}[1m\n  do       limit x\n           ask\n  then     backend app\n  \
             now      4.0/s, 4xx 1.0/s, 5xx 0.5/s, p50 10.0 ms, p99 19.8 ms\n  so far   13 requests, 4xx 2, 5xx 1\n  \
             limit    edge: allowed 7, refused 6, denied 1\n"
        );
        assert_eq!(described(&all[1]), "mail (a.toml:9)\n  for      any\n  then     backend mail\n");
        assert!(has(&all[0], "ask") && has(&all[0], "app") && !has(&all[0], "mail"));
    }
}

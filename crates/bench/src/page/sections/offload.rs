//! `offload`: what the balancer takes off the origin, step by step. Both arrangements in each picture.

use super::super::axis::{Axis, Scale};
use super::super::bars::{Bar, Bars, Group};
use super::super::html::{escape, note, shorten};
use super::super::latency;
use super::super::measure::readable;
use super::super::plot::{Plot, Point, Series};
use super::super::result::{Result, errors_of, number};
use super::super::track::{Record, Track, pictures, tracks_of};
use super::{figures, lists};
use serde_json::Value;

/// A line of a picture: its name, the arrangement's, the sum of which fields, and their factor.
type Line<'a> = (&'a str, &'a str, &'a [&'a str], f64);

pub fn render(result: &Result) -> String {
    let mut html = format!("<h3>{}</h3>\n", escape(&shorten(&result.name, 80)));
    let tracks = tracks_of(&result.value);
    let steps = tracks
        .iter()
        .find(|track| track.path == "steps" && track.records.iter().any(|step| arrangement(step).is_some()));
    let mut drawn = String::new();
    match steps {
        Some(steps) => {
            drawn.push_str(&courses(steps));
            let others: Vec<Track> =
                tracks.iter().filter(|track| !matches!(track.path.as_str(), "steps" | "tls")).cloned().collect();
            drawn.push_str(&secured(&result.value));
            drawn.push_str(&pictures(&others, "offload"));
        }
        // Another version of the command: by names of fields, then.
        None => drawn.push_str(&pictures(&tracks, "offload")),
    }
    html.push_str(&figures(&drawn));
    html.push_str(&note(
        "×: in this step requests or connections failed. An origin alone fails early: that is its limit.",
    ));
    html.push_str(&lists(result));
    html
}

fn arrangement(step: &Record) -> Option<&str> {
    step.words.iter().find(|(name, _)| name == "arrangement").map(|(_, word)| word.as_str())
}

fn courses(steps: &Track) -> String {
    let accepted = ["client_side.accepted", "client_side.queued"];
    let mut html = picture(
        steps,
        "Connections on both sides of the balancer",
        "connections",
        &[
            ("clients' side, through the balancer", "through", &accepted, 1.0),
            ("origin's side, through the balancer", "through", &["origin_side.accepted"], 1.0),
            ("origin, directly", "direct", &["origin_side.accepted"], 1.0),
        ],
    );
    html.push_str(&picture(
        steps,
        "Clients that are served",
        "clients served",
        &[("through the balancer", "through", &["served"], 1.0), ("directly", "direct", &["served"], 1.0)],
    ));
    let rate = ["requests_per_second"];
    html.push_str(&picture(
        steps,
        "Requests answered",
        "requests per second",
        &[("through the balancer", "through", &rate, 1.0), ("directly", "direct", &rate, 1.0)],
    ));
    html.push_str(&picture(
        steps,
        "CPU",
        "cores",
        &[
            ("origin, with offload", "through", &["origin_cpu.cores"], 1.0),
            ("origin, without", "direct", &["origin_cpu.cores"], 1.0),
            ("balancer", "through", &["balancer_cpu.cores"], 1.0),
        ],
    ));
    let mebibyte = 1.0 / 1024.0;
    html.push_str(&picture(
        steps,
        "Memory",
        "MiB RSS",
        &[
            ("origin, with offload", "through", &["spent.origin_rss_kib"], mebibyte),
            ("origin, without", "direct", &["spent.origin_rss_kib"], mebibyte),
            ("balancer", "through", &["spent.balancer_rss_kib"], mebibyte),
        ],
    ));
    html.push_str(&picture(
        steps,
        "Time to an answer",
        "ms",
        &[
            ("through, median", "through", &["answer.p50"], 1e-6),
            ("directly, median", "direct", &["answer.p50"], 1e-6),
            ("through, p99", "through", &["answer.p99"], 1e-6),
            ("directly, p99", "direct", &["answer.p99"], 1e-6),
        ],
    ));
    html
}

fn picture(steps: &Track, title: &str, label: &str, lines: &[Line]) -> String {
    let series = lines.iter().map(|(name, own, fields, factor)| {
        let records = steps.records.iter().filter(|step| arrangement(step) == Some(own));
        let point = |step: &Record| {
            let values: Vec<f64> = fields.iter().filter_map(|field| step.number(field)).collect();
            if values.is_empty() {
                return None;
            }
            let y = values.iter().sum::<f64>() * factor;
            Some(Point { x: step.number("clients")?, y, spread: None, errors: step.errors })
        };
        Series { name: (*name).to_owned(), points: records.filter_map(point).collect() }
    });
    let series: Vec<Series> = series.collect();
    let is_time = label == "ms";
    let plot = Plot {
        title: title.to_owned(),
        note: None,
        x: Axis::new("clients, step by step", Scale::Linear),
        y: Axis::new(label, if is_time { latency::scale_for(&series) } else { Scale::Linear }),
        series,
        is_ideal_shown: false,
    };
    plot.render()
}

/// CPU time for a request, by where TLS ends.
fn secured(value: &Value) -> String {
    let rows = value["tls"].as_array().into_iter().flatten();
    let group = |row: &Value| {
        let requests = number(row, &["requests"]).filter(|requests| *requests > 0.0)?;
        let bar = |field: &str| {
            let seconds = number(row, &["spent", field])?;
            Some(Bar { value: seconds * 1e6 / requests, spread: None, errors: errors_of(row) })
        };
        let words = ["habit", "key", "place"].map(|field| row[field].as_str().unwrap_or_default().to_lowercase());
        let name: Vec<String> =
            words.into_iter().filter(|word| !word.is_empty()).map(|word| readable(&word.replace('-', "_"))).collect();
        Some(Group { name: format!("{} (TLS)", name.join(" · ")), bars: vec![bar("origin_cpu"), bar("balancer_cpu")] })
    };
    let bars = Bars {
        title: "CPU time for a request, by where TLS ends".to_owned(),
        note: None,
        label: "CPU µs per request".to_owned(),
        series: vec!["origin".to_owned(), "balancer".to_owned()],
        groups: rows.filter_map(group).collect(),
        reference: None,
        decimals: None,
    };
    bars.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_sides_and_both_arrangements_are_drawn() {
        let step = |arrangement: &str, clients: u32, failures: u32| {
            json!({"arrangement": arrangement, "clients": clients, "served": clients,
                "client_side": {"accepted": clients, "queued": 1}, "origin_side": {"accepted": 5}, "requests_per_second": 50.0,
                "failures": failures, "answer": {"p50": 1e6, "p99": 2e6},
                "spent": {"seconds": 2.0, "origin_cpu": 1.0, "origin_rss_kib": 2048, "balancer_cpu": 0.5, "balancer_rss_kib": 1024}})
        };
        let steps = [step("direct", 10, 0), step("direct", 20, 3), step("through", 10, 0), step("through", 20, 0)];
        let tls = json!([{"habit": "new-connections", "place": "on-origin", "key": "Ec", "requests": 1000,
            "spent": {"origin_cpu": 0.2, "balancer_cpu": 0.0}}]);
        let html = render(&Result::new("o".into(), json!({"command": "offload", "steps": steps, "tls": tls})).unwrap());
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

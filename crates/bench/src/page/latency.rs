//! Latencies by percentile, as HdrHistogram draws them: the tail has as much room as the rest.

use super::axis::{Axis, Scale};
use super::measure::quantile_of;
use super::plot::{Plot, Point, SERIES_MAX, Series};
use super::result::{Result, errors_of};
use serde_json::Value;

/// A p of 1 has no place on the axis; nor has anything beyond what counts can tell.
const INVERSE_MAX: f64 = 1e8;

/// All latencies of all results, in as many pictures as their number needs.
pub fn pictures(results: &[&Result]) -> String {
    let mut all: Vec<Series> = Vec::new();
    for result in results {
        find(&result.value, &result.name, 0, &mut all);
    }
    let mut html = String::new();
    for series in all.chunks(SERIES_MAX) {
        let scale = scale_for(series);
        let plot = Plot {
            title: "Latency by percentile".to_owned(),
            note: Some("The last point of each line is its slowest request.".to_owned()),
            x: Axis::new("percentile of requests, spread by 1 / (1 − p)", Scale::Percentile),
            y: Axis::new("ms", scale),
            series: series.to_vec(),
            is_ideal_shown: false,
        };
        html.push_str(&plot.render());
    }
    html
}

/// A tail of seconds would press everything else onto a linear axis.
pub fn scale_for(series: &[Series]) -> Scale {
    let ends = || series.iter().flat_map(|series| &series.points).map(|point| point.y).filter(|y| *y > 0.0);
    let (low, high) = (ends().fold(f64::INFINITY, f64::min), ends().fold(0.0, f64::max));
    if high / low > 30.0 { Scale::Log } else { Scale::Linear }
}

/// Up to three levels down: a result, its parts, their parts.
fn find(value: &Value, name: &str, depth: usize, all: &mut Vec<Series>) {
    const SERIES_FOUND_MAX: usize = 3 * SERIES_MAX;
    if depth > 3 || all.len() >= SERIES_FOUND_MAX {
        return;
    }
    if value["latency"].is_object() {
        let count = value["done"].as_f64().unwrap_or(0.0);
        let points = points_of(&value["latency"], count, errors_of(value));
        if points.len() > 1 {
            all.push(Series { name: name.to_owned(), points });
        }
        return;
    }
    match value {
        Value::Object(fields) => {
            let parts = fields
                .iter()
                .filter(|(name, _)| !matches!(name.as_str(), "provenance" | "trials" | "steps" | "samples"));
            for (field, part) in parts.filter(|(_, part)| part.is_object() || part.is_array()) {
                let name = if part.is_array() {
                    name.to_owned()
                } else {
                    format!("{name} · {}", super::measure::readable(field))
                };
                find(part, &name, depth + 1, all);
            }
        }
        Value::Array(parts) => {
            for part in parts {
                let words = ["name", "program", "mode", "key", "suite", "operation"];
                let own: Vec<&str> = words.iter().filter_map(|word| part[*word].as_str()).collect();
                let name = if own.is_empty() { name.to_owned() } else { format!("{name} · {}", own.join(" · ")) };
                find(part, &name, depth + 1, all);
            }
        }
        _ => {}
    }
}

/// `p50`, `p99_9` ... and `max`, which lies where one request in all lies; or a list of percentiles with values.
fn points_of(latency: &Value, count: f64, errors: u64) -> Vec<Point> {
    let mut points = Vec::new();
    let mut push = |quantile: f64, nanoseconds: f64| {
        let inverse = 1.0 / (1.0 - quantile);
        // Quantile q needs 1 / (1 - q) requests: among 100 requests none is the 99.9th percentile.
        let is_known = count <= 0.0 || inverse <= count * 1.000_001;
        if is_known && (1.0..=INVERSE_MAX).contains(&inverse) && nanoseconds > 0.0 {
            points.push(Point { x: inverse, y: nanoseconds / 1e6, ..Point::default() });
        }
    };
    for (name, value) in latency.as_object().into_iter().flatten() {
        if let (Some(quantile), Some(nanoseconds)) = (quantile_of(name), value.as_f64()) {
            push(quantile, nanoseconds);
        }
    }
    for pair in latency["percentiles"].as_array().into_iter().flatten() {
        let quantile = pair[0].as_f64().or_else(|| pair["quantile"].as_f64());
        let nanoseconds = pair[1].as_f64().or_else(|| pair["nanoseconds"].as_f64());
        if let (Some(quantile), Some(nanoseconds)) = (quantile, nanoseconds) {
            push(quantile, nanoseconds);
        }
    }
    if let Some(max) = latency["max"].as_f64().filter(|_| count > 1.0) {
        push(1.0 - 1.0 / count, max);
    }
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    if let Some(last) = points.last_mut() {
        last.errors = errors;
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn percentiles_lie_at_the_inverse_of_what_is_left() {
        let latency = json!({"p50": 1_000_000, "p99_9": 5_000_000, "max": 9_000_000, "mean": 3.0});
        let points: Vec<(f64, f64)> =
            points_of(&latency, 100_000.0, 0).iter().map(|point| (point.x.round(), point.y)).collect();
        assert_eq!(points, [(2.0, 1.0), (1000.0, 5.0), (100_000.0, 9.0)]);
    }
}

//! Latencies by percentile, as HdrHistogram draws them: the tail has as much room as the rest.

use super::axis::{Axis, Scale};
use super::plot::{Plot, Point, SERIES_MAX, Series};
use crate::quantity::{Nanoseconds, Quantity};
use crate::stats::LatencySummary;

/// A p of 1 has no place on the axis; nor has anything beyond what counts can tell.
const INVERSE_MAX: f64 = 1e8;

/// Latencies of answers, with their name in a picture.
pub struct Latency<'r> {
    pub name: String,
    pub summary: &'r LatencySummary,
    /// Number of answers.
    pub count: u64,
    pub errors: u64,
}

/// All latencies, in as many pictures as their number needs.
pub fn pictures(latencies: &[Latency]) -> String {
    let series = latencies.iter().map(|latency| Series { name: latency.name.clone(), points: points_of(latency) });
    let series: Vec<Series> = series.filter(|series| series.points.len() > 1).collect();
    let plot = |series: &[Series]| {
        Plot {
            title: "Latency by percentile".to_owned(),
            note: Some("The last point of each line is its slowest request.".to_owned()),
            x: Axis::new("percentile of requests, spread by 1 / (1 − p)", Scale::Percentile),
            y: Axis::new(Nanoseconds::UNIT, scale_for(series)),
            series: series.to_vec(),
            is_ideal_shown: false,
        }
        .render()
    };
    series.chunks(SERIES_MAX).map(plot).collect()
}

/// A tail of seconds would press everything else onto a linear axis.
pub fn scale_for(series: &[Series]) -> Scale {
    let ends = || series.iter().flat_map(|series| &series.points).map(|point| point.y).filter(|y| *y > 0.0);
    let (low, high) = (ends().fold(f64::INFINITY, f64::min), ends().fold(0.0, f64::max));
    if high / low > 30.0 { Scale::Log } else { Scale::Linear }
}

/// The percentiles, and the slowest, which lies where one request in all lies.
fn points_of(latency: &Latency) -> Vec<Point> {
    let LatencySummary { mean: _, p50, p90, p99, p99_9, max } = *latency.summary;
    let count = latency.count as f64;
    let percentiles = [(2.0, p50), (10.0, p90), (100.0, p99), (1000.0, p99_9)];
    // Quantile q needs 1 / (1 - q) requests: among 100 requests none is the 99.9th percentile.
    let known = percentiles.into_iter().filter(|(inverse, _)| *inverse <= count);
    let slowest = (count > 1.0 && count <= INVERSE_MAX).then_some((count, max));
    let point = |(inverse, nanoseconds): (f64, u64)| {
        (nanoseconds > 0).then(|| Point { x: inverse, y: Nanoseconds(nanoseconds as f64).drawn(), ..Point::default() })
    };
    let mut points: Vec<Point> = known.chain(slowest).filter_map(point).collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    if let Some(last) = points.last_mut() {
        last.errors = latency.errors;
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_at_the_inverse_of_what_is_left() {
        let summary = LatencySummary { p50: 1_000_000, p99_9: 5_000_000, max: 9_000_000, ..LatencySummary::default() };
        let points = |count| -> Vec<(f64, f64)> {
            let latency = Latency { name: String::new(), summary: &summary, count, errors: 0 };
            points_of(&latency).iter().map(|point| (point.x, point.y)).collect()
        };
        assert_eq!(points(100_000), [(2.0, 1.0), (1000.0, 5.0), (100_000.0, 9.0)]);
        assert_eq!(points(100), [(2.0, 1.0), (100.0, 9.0)]);
    }
}

//! The results of a load phase of a client group; those of several processes add up.

use crate::quantity::Label;
use crate::stats::{LatencySummary, LoadStats, show_errors};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LoadPhase {
    pub seconds: f64,
    /// Good answers; of clients that ask for nothing, finished handshakes.
    pub done: u64,
    /// TCP connections made.
    pub connects: u64,
    /// Connections with nothing in progress that the server closed.
    pub closed_idle: u64,
    pub errors: BTreeMap<Label, u64>,
    pub first_error: Option<String>,
    /// At its end.
    pub clients: ClientCounts,
    /// Share of its core that the busiest load process used.
    pub load_busy: f64,
    /// From the start of a connect to its end, as the client sees it.
    pub connect_latency: Latencies,
    /// From when a request was due (the first: from the start of its connect) to the end of its answer.
    pub answer_latency: Latencies,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientCounts {
    pub wanted: usize,
    /// Connected as far as the client can tell; a server's kernel accepts before the server does.
    pub open: usize,
    /// Open connections that were answered.
    pub served: usize,
}

/// Nanoseconds and how often they were seen; as exact as the histogram they come from.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Latencies(Vec<(u64, u64)>);

impl LoadPhase {
    pub fn new(
        answers: &LoadStats,
        connects: &LoadStats,
        clients: ClientCounts,
        elapsed: Duration,
        cpu: Duration,
    ) -> Self {
        Self {
            seconds: elapsed.as_secs_f64(),
            done: answers.done,
            connects: connects.done,
            closed_idle: 0,
            errors: answers.errors_by_kind().clone(),
            first_error: answers.first_error().map(str::to_owned),
            clients,
            load_busy: cpu.as_secs_f64() / elapsed.as_secs_f64().max(1e-9),
            connect_latency: Latencies::of(connects.latency()),
            answer_latency: Latencies::of(answers.latency()),
        }
    }

    /// Another process's share of the same phase.
    pub fn add(&mut self, other: Self) {
        self.seconds = self.seconds.max(other.seconds);
        self.done += other.done;
        self.connects += other.connects;
        self.closed_idle += other.closed_idle;
        for (kind, count) in other.errors {
            *self.errors.entry(kind).or_default() += count;
        }
        self.first_error = self.first_error.take().or(other.first_error);
        self.clients.add(other.clients);
        self.load_busy = self.load_busy.max(other.load_busy);
        self.connect_latency.0.extend(other.connect_latency.0);
        self.answer_latency.0.extend(other.answer_latency.0);
    }

    pub fn errors_total(&self) -> u64 {
        self.errors.values().sum()
    }

    pub fn per_second(&self) -> f64 {
        self.done as f64 / self.seconds.max(1e-9)
    }

    /// `none`, or each kind with its count.
    pub fn show_errors(&self) -> String {
        show_errors(&self.errors, self.first_error.as_deref())
    }
}

impl ClientCounts {
    pub fn add(&mut self, other: Self) {
        self.wanted += other.wanted;
        self.open += other.open;
        self.served += other.served;
    }
}

impl Latencies {
    fn of(histogram: &Histogram<u64>) -> Self {
        Self(histogram.iter_recorded().map(|value| (value.value_iterated_to(), value.count_at_value())).collect())
    }

    pub fn summary(&self) -> LatencySummary {
        let mut histogram = Histogram::new(3).expect("three digits are a precision that the histogram takes");
        for (value, count) in &self.0 {
            // Histograms grow as needed: an hour fits.
            let _ = histogram.record_n(*value, *count);
        }
        LatencySummary::of(&histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::ErrorKind;

    #[test]
    fn the_stretches_of_two_processes_add_up() {
        let share = |milliseconds: u64, fails: bool| {
            let mut answers = LoadStats::new();
            answers.done = 10;
            (0..10).for_each(|_| answers.record_latency(Duration::from_millis(milliseconds)));
            if fails {
                answers.record_error(ErrorKind::Timeout, || "late".to_owned());
            }
            let clients = ClientCounts { wanted: 5, open: 4, served: 3 };
            LoadPhase {
                closed_idle: 1,
                ..LoadPhase::new(&answers, &LoadStats::new(), clients, Duration::from_secs(2), Duration::from_secs(1))
            }
        };
        let mut sum = share(1, false);
        sum.add(share(9, true));
        assert_eq!((sum.done, sum.closed_idle, sum.errors_total()), (20, 2, 1));
        assert_eq!(sum.clients, ClientCounts { wanted: 10, open: 8, served: 6 });
        let latency = sum.answer_latency.summary();
        assert!(latency.p50 < 1_100_000 && latency.p90 > 8_900_000, "{latency:?}");
        assert_eq!(sum.per_second(), 10.0);
    }
}

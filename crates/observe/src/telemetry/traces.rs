//! Metrics of traces.

use propylon_metrics::{Column, Counter, Gauge, Registry};
use propylon_policy::sampling::Decision;

/// Counts of the exporter's work so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExportCounts {
    pub exported: u64,
    pub succeeded: u64,
    pub retried: u64,
    pub failed: u64,
    pub rejected: u64,
    pub refused: u64,
    pub undeliverable: u64,
}

pub struct TraceMetrics {
    recorded: Counter,
    unrecorded: Counter,
    limited: Counter,
    pub spans_server: Counter,
    pub spans_client: Counter,
    /// Spans that wait on cores.
    pub waiting: Gauge,
    pub dropped: DroppedSpans,
    exported: Counter,
    succeeded: Counter,
    retried: Counter,
    failed: Counter,
}

/// Dropped spans by reason.
pub struct DroppedSpans {
    pub queue_full: Counter,
    rejected: Counter,
    refused: Counter,
    undeliverable: Counter,
}

impl TraceMetrics {
    pub fn new(r: &mut Registry) -> TraceMetrics {
        let mut decision = |decision: &str| {
            let help = "Requests by what became of their trace; none where nothing is traced.";
            r.counter("propylon_traces_total", help, &[("decision", decision)])
        };
        let (recorded, unrecorded, limited) = (decision("recorded"), decision("unrecorded"), decision("limited"));
        let mut kind = |kind: &str| {
            let help = "Spans made: of clients' requests, and of attempts at servers.";
            r.counter("propylon_spans_total", help, &[("kind", kind)])
        };
        let (spans_server, spans_client) = (kind("server"), kind("client"));
        let mut dropped = |reason: &str| {
            let help = "Spans that no collector has, by why: the queue was full; it rejected them, or refused their \
                        batch; it could not be reached.";
            r.counter("propylon_spans_dropped_total", help, &[("reason", reason)])
        };
        let dropped = DroppedSpans {
            queue_full: dropped("queue-full"),
            rejected: dropped("rejected"),
            refused: dropped("refused"),
            undeliverable: dropped("undeliverable"),
        };
        let mut export = |result: &str| {
            let help = "Batches of spans by what became of them; each time that one was tried again counts as well.";
            r.counter("propylon_span_exports_total", help, &[("result", result)])
        };
        let (succeeded, retried, failed) = (export("success"), export("retry"), export("failure"));
        TraceMetrics {
            recorded,
            unrecorded,
            limited,
            spans_server,
            spans_client,
            dropped,
            succeeded,
            retried,
            failed,
            waiting: r.gauge("propylon_spans_waiting", "Spans that wait on cores for the exporter.", &[]),
            exported: r.counter("propylon_spans_exported_total", "Spans that the collector has taken.", &[]),
        }
    }

    pub fn decisions(&self, decision: Decision) -> Counter {
        match decision {
            Decision::Recorded => self.recorded,
            Decision::Unrecorded => self.unrecorded,
            Decision::Limited => self.limited,
        }
    }

    /// Adds the exporter's counts since `seen`.
    pub fn report(&self, column: &Column, now: ExportCounts, seen: ExportCounts) {
        column.add(self.exported, now.exported - seen.exported);
        column.add(self.succeeded, now.succeeded - seen.succeeded);
        column.add(self.retried, now.retried - seen.retried);
        column.add(self.failed, now.failed - seen.failed);
        column.add(self.dropped.rejected, now.rejected - seen.rejected);
        column.add(self.dropped.refused, now.refused - seen.refused);
        column.add(self.dropped.undeliverable, now.undeliverable - seen.undeliverable);
    }
}

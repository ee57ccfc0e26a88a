//! Metrics of compressed responses.

use propylon_config::Encoding;
use propylon_metrics::{Counter, Gauge, Registry};

use super::by_reason::ByReason;

/// Reasons for which a response that could be compressed is not.
pub const COMPRESSION_SKIPS: &[&str] = &["not-accepted", "range", "credentials", "busy", "memory"];

/// Metrics of compressed responses.
pub struct CompressionMetrics {
    codings: [CodingMetrics; Encoding::ALL.len()],
    pub skipped: ByReason,
    pub memory: Gauge,
}

/// Metrics of one coding.
struct CodingMetrics {
    encoding: Encoding,
    responses: Counter,
    bytes_in: Counter,
    bytes_out: Counter,
}

impl CompressionMetrics {
    pub fn new(r: &mut Registry) -> CompressionMetrics {
        let codings = Encoding::ALL.map(|encoding| {
            let label = [("encoding", encoding.name())];
            CodingMetrics {
                encoding,
                responses: r.counter("propylon_compressed_responses_total", "Responses that were compressed.", &label),
                bytes_in: r.counter(
                    "propylon_compression_in_bytes_total",
                    "Bytes of bodies that were compressed, as servers have sent them.",
                    &label,
                ),
                bytes_out: r.counter(
                    "propylon_compression_out_bytes_total",
                    "Bytes that bodies have become by compression.",
                    &label,
                ),
            }
        });
        let name = "propylon_uncompressed_responses_total";
        let help = "Responses that could have been compressed and went as they were, by why.";
        CompressionMetrics {
            codings,
            skipped: ByReason::without_label(r, name, help, COMPRESSION_SKIPS),
            memory: r.gauge(
                "propylon_compression_memory_bytes",
                "Memory of encoders that have a body, as it is counted against the limit of 64 MiB for each core.",
                &[],
            ),
        }
    }

    pub fn responses(&self, encoding: Encoding) -> Counter {
        self.of(encoding).responses
    }

    pub fn bytes_in(&self, encoding: Encoding) -> Counter {
        self.of(encoding).bytes_in
    }

    pub fn bytes_out(&self, encoding: Encoding) -> Counter {
        self.of(encoding).bytes_out
    }

    fn of(&self, encoding: Encoding) -> &CodingMetrics {
        self.codings.iter().find(|of| of.encoding == encoding).unwrap_or(&self.codings[0])
    }
}

//! Spans of recorded requests, sent to a collector.

mod collector;
mod export;

pub use export::Exporter;
